/*
 * gv_wide.h
 *		Compares rows sixteen dimensions at a time, for levels on which this
 *		takes several registers.
 *
 * Included by the files of these levels.  They define LEVEL, the attribute of
 * their functions, LANES, the type Wide, which has sixteen floats, and its
 * functions zero, load, add_terms and add_lanes.
 */

/* Returns the first n numbers of x, 0 < n < 16, followed by zeros. */
static LEVEL Wide
load_rest(const float *x, int32_t n)
{
	float		rest[LANES] = {0};

	memcpy(rest, x, sizeof(float) * (size_t) n);
	return load(rest);
}

/* Compares q with nrows <= 4 rows, which are read side by side. */
static inline LEVEL void
compare_some(const float *q, const float *rows, int nrows, int32_t dims,
			 bool product, float *out)
{
	Wide		sums[4];
	int32_t		i;
	int			r;

	for (r = 0; r < nrows; r++)
		sums[r] = zero();
	for (i = 0; i + LANES <= dims; i += LANES)
		for (r = 0; r < nrows; r++)
			add_terms(&sums[r], load(q + i),
					  load(rows + (size_t) r * dims + i), product);
	for (r = 0; i < dims && r < nrows; r++)
		add_terms(&sums[r], load_rest(q + i, dims - i),
				  load_rest(rows + (size_t) r * dims + i, dims - i), product);
	for (r = 0; r < nrows; r++)
		out[r] = add_lanes(sums[r]);
}
