/*
 * body.h
 *		The kernels of all levels that have vector instructions, written once
 *		over vector types.  kernels.h says what each kernel computes.
 *
 * Included at the end of the file of each level, after vectors.h and the
 * primitives of the level, because functions cannot be shared between levels.
 *
 * Multiplications and additions are separate, because a fused multiplication
 * and addition would round differently.  Only estimates use fused ones.
 */
#ifndef HAS_MASKS
static ALWAYS LEVEL Wide
load_rest(const float *x, int32_t n)
{
	float		rest[LANES] = {0};

	memcpy(rest, x, sizeof(float) * (size_t) n);
	return load(rest);
}

static ALWAYS LEVEL Wide
bytes_rest(const uint8_t *bytes, int32_t n)
{
	uint8_t		rest[LANES] = {0};

	memcpy(rest, bytes, (size_t) n);
	return load_bytes(rest);
}

static ALWAYS LEVEL Wide
halves_rest(const uint16_t *halves, int32_t n)
{
	uint16_t	rest[LANES] = {0};

	memcpy(rest, halves, sizeof(uint16_t) * (size_t) n);
	return load_halves(rest);
}

static ALWAYS LEVEL Wide
lanes_rest(Wide x, int32_t n)
{
	float		lanes[LANES];

	store(lanes, x);
	return load_rest(lanes, n);
}
#endif

/* ----
 * Distances and products.
 */

static ALWAYS LEVEL void
add_terms(Wide *sums, Wide q, Wide x, bool product)
{
	int			h;

	for (h = 0; h < PARTS; h++)
	{
		Reg			diff = q.part[h] - x.part[h];

		sums->part[h] += product ? q.part[h] * x.part[h] : diff * diff;
	}
}

/*
 * Computes the products or squared distances of q and nrows <= 4 rows, which
 * are read side by side.
 */
static ALWAYS LEVEL void
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

static ALWAYS LEVEL void
compare_rows(const float *q, const float *rows, int32_t n, int32_t dims,
			 bool product, float *out)
{
	int32_t		i;

	for (i = 0; i + 4 <= n; i += 4)
		compare_some(q, rows + (size_t) i * dims, 4, dims, product, out + i);
	for (; i < n; i++)
		compare_some(q, rows + (size_t) i * dims, 1, dims, product, out + i);
}

static LEVEL void
dots(const float *q, const float *rows, int32_t n, int32_t dims,
	 float *products)
{
	compare_rows(q, rows, n, dims, true, products);
}

static LEVEL void
sqdists(const float *q, const float *rows, int32_t n, int32_t dims,
		float *squares)
{
	compare_rows(q, rows, n, dims, false, squares);
}

static ALWAYS LEVEL Wide
subtract(Wide a, Wide b)
{
	int			h;

	for (h = 0; h < PARTS; h++)
		a.part[h] -= b.part[h];
	return a;
}

static LEVEL void
residual_products(const float *x, const float *a, const float *b,
				  int32_t dims, float *sums)
{
	Wide		acc = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_terms(&acc, subtract(load(x + i), load(a + i)),
				  subtract(load(x + i), load(b + i)), true);
	if (i < dims)
	{
		Wide		rest = load_rest(x + i, dims - i);

		add_terms(&acc, subtract(rest, load_rest(a + i, dims - i)),
				  subtract(rest, load_rest(b + i, dims - i)), true);
	}
	store(sums, acc);
}

/* Adds the terms of eight dimensions to sums [PARTS]. */
static ALWAYS LEVEL void
add_terms64(Reg64 *sums, const float *a, const float *b, bool product)
{
	int			h;

	for (h = 0; h < PARTS; h++)
	{
		Reg64		x = load_doubles(a + h * (REG / 2));
		Reg64		y = load_doubles(b + h * (REG / 2));
		Reg64		diff = x - y;

		sums[h] += product ? x * y : diff * diff;
	}
}

static ALWAYS LEVEL double
compare64(const float *a, const float *b, int32_t dims, bool product)
{
	Reg64		sums[PARTS] = {{0}};
	double		lanes[LANES64];
	int32_t		i;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		add_terms64(sums, a + i, b + i, product);
	if (i < dims)
	{
		float		x[LANES];
		float		y[LANES];

		store(x, load_rest(a + i, dims - i));
		store(y, load_rest(b + i, dims - i));
		add_terms64(sums, x, y, product);
	}
	memcpy(lanes, sums, sizeof(lanes));
	return gv_add_lanes64(lanes);
}

static LEVEL double
dot64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, true);
}

static LEVEL double
sqdist64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, false);
}

/* ----
 * Blocked products.
 */

/*
 * Multiplies four dimensions of one row with a register of centroids, and adds
 * up the products in the prescribed order.
 */
static ALWAYS LEVEL Reg
multiply_four(const float *x, const float *panel)
{
	Reg			xy[4];
	int			d;

	for (d = 0; d < 4; d++)
		xy[d] = x[d] * load_reg(panel + d * CENTS);
	return (xy[0] + xy[1]) + (xy[2] + xy[3]);
}

/*
 * Multiplies nrows <= 4 rows with MULTIPLY_REGS registers of centroids.  A
 * processor has enough registers for all of these sums and for the numbers of
 * the panel.
 */
static ALWAYS LEVEL void
multiply_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	Reg			sums[4][MULTIPLY_REGS];
	int32_t		whole = len / 4 * 4;
	int32_t		d;
	int			r;
	int			c;

	for (r = 0; r < nrows; r++)
		for (c = 0; c < MULTIPLY_REGS; c++)
			sums[r][c] = load_reg(products + r * CENTS + c * REG);
	for (d = 0; d < whole; d += 4)
		for (r = 0; r < nrows; r++)
			for (c = 0; c < MULTIPLY_REGS; c++)
				sums[r][c] += multiply_four(x + (size_t) r * stride + d,
											panel + d * CENTS + c * REG);
	for (r = 0; whole < len && r < nrows; r++)
	{
		float		rest[4] = {0};

		for (d = whole; d < len; d++)
			rest[d - whole] = x[(size_t) r * stride + d];
		for (c = 0; c < MULTIPLY_REGS; c++)
			sums[r][c] += multiply_four(rest, panel + whole * CENTS + c * REG);
	}
	for (r = 0; r < nrows; r++)
		for (c = 0; c < MULTIPLY_REGS; c++)
			store_reg(products + r * CENTS + c * REG, sums[r][c]);
}

static LEVEL void
multiply(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			c;
	int			r;

	for (c = 0; c < CENTS; c += MULTIPLY_REGS * REG)
	{
		float	   *to = products + c;

		for (r = 0; r + 4 <= nrows; r += 4)
			multiply_some(x + (size_t) r * stride, stride, 4, len, panel + c,
						  to + r * CENTS);
		for (; r < nrows; r++)
			multiply_some(x + (size_t) r * stride, stride, 1, len, panel + c,
						  to + r * CENTS);
	}
}

/*
 * Multiplies nrows <= 4 rows with ESTIMATE_REGS registers of centroids, and
 * fuses multiplications and additions.
 */
static ALWAYS LEVEL void
estimate_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	Reg			sums[4][ESTIMATE_REGS];
	int32_t		d;
	int			r;
	int			c;

	for (r = 0; r < nrows; r++)
		for (c = 0; c < ESTIMATE_REGS; c++)
			sums[r][c] = spread_float(0.0f);
	for (d = 0; d < len; d++)
		for (r = 0; r < nrows; r++)
			for (c = 0; c < ESTIMATE_REGS; c++)
				sums[r][c] =
					fuse(spread_float(x[(size_t) r * stride + d]),
						 load_reg(panel + d * CENTS + c * REG), sums[r][c]);
	for (r = 0; r < nrows; r++)
		for (c = 0; c < ESTIMATE_REGS; c++)
		{
			float	   *to = products + r * CENTS + c * REG;

			store_reg(to, load_reg(to) + sums[r][c]);
		}
}

static LEVEL void
estimate(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			c;
	int			r;

	for (c = 0; c < CENTS; c += ESTIMATE_REGS * REG)
	{
		float	   *to = products + c;

		for (r = 0; r + 4 <= nrows; r += 4)
			estimate_some(x + (size_t) r * stride, stride, 4, len, panel + c,
						  to + r * CENTS);
		for (; r < nrows; r++)
			estimate_some(x + (size_t) r * stride, stride, 1, len, panel + c,
						  to + r * CENTS);
	}
}

static LEVEL uint64_t
within(const float *squares, const float *products, float limit)
{
	Comparisons found = {0};
	int			c;

	for (c = 0; c < CENTS / REG; c++)
	{
		Reg			product = load_reg(products + c * REG);
		Reg			value = load_reg(squares + c * REG) - (product + product);

		add_comparison(&found, value, spread_float(limit), c, false);
	}
	return take_comparisons(&found, CENTS / REG);
}

static LEVEL uint64_t
below(const float *values, float limit)
{
	Comparisons found = {0};
	int			i;

	for (i = 0; i < GV_CPU_COMPARED / REG; i++)
		add_comparison(&found, load_reg(values + i * REG), spread_float(limit),
					   i, true);
	return take_comparisons(&found, GV_CPU_COMPARED / REG);
}

/* ----
 * Codewords, look-up tables, and the sums of a block's postings.
 */

/*
 * Returns the products, or the squared distances, of x [dims] and all words
 * [GV_CODEWORDS][dims] of a sub-quantizer, side by side.
 */
static ALWAYS LEVEL Wide
sum_words(const float *x, const float *words, int32_t dims, bool product)
{
	Wide		sums = zero();
	Wide		word[2];
	int32_t		d;
	int			h;

	if (dims == 2)
		load_pairs(words, &word[0], &word[1]);
	for (d = 0; d < dims; d++)
	{
		Wide		all;

		for (h = 0; h < PARTS; h++)
			all.part[h] = spread_float(x[d]);
		add_terms(&sums, all,
				  dims == 2 ? word[d] : load_words(words, dims, d), product);
	}
	return sums;
}

static LEVEL int32_t
nearest_word(const float *x, const float *words, int32_t dims)
{
	Wide		sums = sum_words(x, words, dims, false);
	Reg			least = least_lane(sums);
	Comparisons found = {0};
	int			h;

	for (h = 0; h < PARTS; h++)
		add_comparison(&found, sums.part[h], least, h, false);
	return __builtin_ctzll(take_comparisons(&found, PARTS));
}

static ALWAYS LEVEL void
find_entries(const float *query, const float *words, int32_t dims,
			 float weight, float *entries)
{
	Wide		sums = sum_words(query, words, dims, true);
	int			h;

	for (h = 0; h < PARTS; h++)
		sums.part[h] *= weight;
	store(entries, sums);
}

/*
 * Adds up the entries of n <= SUM_AT_ONCE postings.  A processor has enough
 * registers for all of these sums.
 */
static ALWAYS LEVEL void
sum_some(const float *table, int32_t m, const uint8_t *codes, int32_t stride,
		 int n, float *sums)
{
	Reg			acc[SUM_AT_ONCE / REG];
	int32_t		j;
	int			h;

	for (h = 0; h < n / REG; h++)
		acc[h] = spread_float(0.0f);
	for (j = 0; j < m; j += 2)
	{
		const float *entries = table + (size_t) j * GV_CODEWORDS;
		const uint8_t *column = codes + (size_t) (j / 2) * stride;
		Entries		low = load_entries(entries);
		Entries		high = load_entries(j + 1 < m ? entries + GV_CODEWORDS :
										entries);

		for (h = 0; h < n / REG; h += PARTS)
		{
			add_entries(acc + h, low, column + h * REG, false);
			if (j + 1 < m)
				add_entries(acc + h, high, column + h * REG, true);
		}
	}
	for (h = 0; h < n / REG; h++)
		store_reg(sums + h * REG, acc[h]);
}

static LEVEL void
sum_postings(const float *table, int32_t m, const uint8_t *codes,
			 int32_t stride, int32_t n, float *sums)
{
	int32_t		i;

	for (i = 0; i + SUM_AT_ONCE <= n; i += SUM_AT_ONCE)
		sum_some(table, m, codes + i, stride, SUM_AT_ONCE, sums + i);
	for (; i < n; i += GV_BLOCK)
		sum_some(table, m, codes + i, stride, GV_BLOCK, sums + i);
}

static LEVEL uint32_t
filter(const uint8_t *bytes, int32_t m, const uint8_t *codes, const float *t,
	   const GvCut *cut, const uint8_t *ahead)
{
	int32_t		ncolumns = (m + 1) / 2;
	RegInt		none = {0};
	RegInt		total[BLOCK_REGS];
	Comparisons found = {0};
	int32_t		p = 0;
	int			h;

	for (h = 0; h < BLOCK_REGS; h++)
		total[h] = none;
	while (p < ncolumns)
	{
		Keys16		sums[4] = {{0}};
		int32_t		end = ncolumns - p < DRAIN ? ncolumns : p + DRAIN;

		for (; p + 2 <= end; p += 2)
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_columns(sums, codes + p * GV_BLOCK, 2, bytes + p * 64);
		}
		if (p < end)			/* the last column has no partner */
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_columns(sums, codes + p * GV_BLOCK, 1, bytes + p * 64);
			p++;
		}
		drain(sums, total);
	}
	for (h = 0; h < BLOCK_REGS; h++)
	{
		Reg			start = cut->base + load_reg(t + h * REG);

		add_comparison(&found, __builtin_convertvector(total[h], Reg),
					   (cut->reach - start) * cut->inverse, h, false);
	}
	return (uint32_t) take_comparisons(&found, BLOCK_REGS);
}

/* ----
 * Refine records.
 */

/*
 * Returns n <= 16 elements of a vector x^ from element i on, followed by
 * zeros.  x^ is half_vector or, if half_vector is NULL, the vector of the
 * record.
 */
static ALWAYS LEVEL Wide
load_elements(const GvRefine *record, const uint16_t *half_vector, int32_t i,
			  int32_t n)
{
	Wide		x;
	int			h;

	if (half_vector != NULL)
		return n < LANES ? halves_rest(half_vector + i, n) :
			load_halves(half_vector + i);
	x = n < LANES ? bytes_rest(record->codes + i, n) :
		load_bytes(record->codes + i);
	for (h = 0; h < PARTS; h++)
		x.part[h] = record->min + record->step * x.part[h];
	return n < LANES ? lanes_rest(x, n) : x;
}

/*
 * Adds the squares of q - x to sums.  If `product`, adds the products of q and
 * x to sums instead, and adds the magnitudes of the products to magnitudes.
 */
static ALWAYS LEVEL void
add_elements(Wide *sums, Wide *magnitudes, Wide q, Wide x, bool product)
{
	int			h;

	add_terms(sums, q, x, product);
	for (h = 0; h < PARTS && product; h++)
		magnitudes->part[h] +=
			(Reg) ((RegInt) (q.part[h] * x.part[h]) & INT32_MAX);
}

static ALWAYS LEVEL void
sum_elements(const float *q, const GvRefine *record,
			 const uint16_t *half_vector, int32_t dims, bool product,
			 float *sums, float *magnitudes)
{
	Wide		acc = zero();
	Wide		size = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_elements(&acc, &size, load(q + i),
					 load_elements(record, half_vector, i, LANES), product);
	if (i < dims)
		add_elements(&acc, &size, load_rest(q + i, dims - i),
					 load_elements(record, half_vector, i, dims - i), product);
	store(sums, acc);
	if (product)
		store(magnitudes, size);
}

/* ----
 * Abbreviated keys.  A lane is the part of a register that holds one key.
 */

/*
 * Maximum number of values that are compared with all abbreviated keys, one
 * value after another.
 */
#define FEW_VALUES(width)	((width) == 8 ? 24 : 64)

/* Returns a - b for each lane. */
static ALWAYS LEVEL Keys
subtract_keys(Keys a, Keys b, int width)
{
	return width == 1 ? (Keys) ((Keys8) a - (Keys8) b) :
		width == 2 ? (Keys) ((Keys16) a - (Keys16) b) :
		width == 4 ? (Keys) ((Keys32) a - (Keys32) b) :
		(Keys) ((Keys64) a - (Keys64) b);
}

/*
 * Applies a test, which is not GV_TEST_SET, to abbreviated keys.  If the test
 * is a range, test->low is not above test->high.
 */
static ALWAYS LEVEL uint32_t
compare_abbrevs(const GvKeyTest *test, int width, const void *abbrevs)
{
	Keys		low = spread(test->low, width);
	Keys		reach = spread(test->high - test->low, width);
	Keys		none = spread(0, width);
	KeyBits		kept = {0};
	uint32_t	bits;
	int			r;

	for (r = 0; r < KEY_REGS(width); r++)
	{
		Keys		abbrev = load_abbrevs(abbrevs, r, width);

		keep_mask(&kept, test->kind == GV_TEST_RANGE ?
				  not_above(subtract_keys(abbrev, low, width), reach, width) :
				  equal_abbrevs(abbrev & low, test->kind == GV_TEST_ANY_BIT ?
								none : low, width), r, width);
	}
	bits = take_bits(&kept, width);
	return test->kind == GV_TEST_ANY_BIT ? ~bits : bits;
}

/*
 * Returns which abbreviated keys are among few values.  Compares each value
 * with all keys.
 */
static ALWAYS LEVEL uint32_t
compare_values(const void *abbrevs, int width, const uint64_t *values,
			   int32_t n)
{
	KeyBits		kept = {0};
	int32_t		v;
	int			r;

	for (r = 0; r < KEY_REGS(width); r++)
	{
		Keys		abbrev = load_abbrevs(abbrevs, r, width);
		Mask		equal = {0};

		for (v = 0; v < n; v++)
			equal |= equal_abbrevs(abbrev, spread(values[v], width), width);
		keep_mask(&kept, equal, r, width);
	}
	return take_bits(&kept, width);
}

/*
 * Returns which abbreviated keys are among many values.  Keys of one byte have
 * only 256 values, so an array says which of these values are in the set.
 */
static OUTSIDE LEVEL uint32_t
abbrevs_in_many(const void *abbrevs, int width, const uint64_t *values,
				int32_t n)
{
	uint64_t	wide[GV_BLOCK] GV_CPU_ALIGNED;
	int			i;

	if (width == 1)
	{
		uint8_t		is_value[256] = {0};
		uint32_t	bits = 0;

		for (i = 0; i < n; i++)
			is_value[values[i]] = 1;
		for (i = 0; i < GV_BLOCK; i++)
			bits |= (uint32_t) is_value[((const uint8_t *) abbrevs)[i]] << i;
		return bits;
	}
	if (width == 2)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint16_t *) abbrevs)[i];
	else if (width == 4)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint32_t *) abbrevs)[i];
	else
		memcpy(wide, abbrevs, sizeof(wide));
	return find_abbrevs(wide, values, n);
}

/* Applies GV_TEST_SET: looks for abbreviated keys among values. */
static OUTSIDE LEVEL uint32_t
abbrevs_in(const void *abbrevs, int width, const uint64_t *values, int32_t n)
{
	if (n > FEW_VALUES(width))
		return abbrevs_in_many(abbrevs, width, values, n);
	switch (width)
	{
		case 1:
			return compare_values(abbrevs, 1, values, n);
		case 2:
			return compare_values(abbrevs, 2, values, n);
		case 4:
			return compare_values(abbrevs, 4, values, n);
		default:
			return compare_values(abbrevs, 8, values, n);
	}
}

/*
 * Applies a test to abbreviated keys.  Calls the functions that compare keys
 * with constant widths, so that the compiler makes a version for each width.
 */
static LEVEL uint32_t
match(const GvKeyTest *test, int width, const void *abbrevs)
{
	if (test->kind == GV_TEST_SET)
		return abbrevs_in(abbrevs, width, test->values, test->nvalues);
	if (test->kind == GV_TEST_RANGE && test->low > test->high)
		return 0;
	switch (width)
	{
		case 1:
			return compare_abbrevs(test, 1, abbrevs);
		case 2:
			return compare_abbrevs(test, 2, abbrevs);
		case 4:
			return compare_abbrevs(test, 4, abbrevs);
		default:
			return compare_abbrevs(test, 8, abbrevs);
	}
}

#include "cpu/simd/shared.h"
