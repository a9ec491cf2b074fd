/*
 * gv_wide_records.h
 *		Sums over refine records, sixteen dimensions at a time, for levels on
 *		which this takes several registers.
 *
 * Included by the files of these levels.  They have included gv_wide.h, and
 * define store, and decode and from_half, which make sixteen elements of x^,
 * and add_record, which adds the terms of a product, and their magnitudes.
 */

/* Returns the last n < 16 elements, followed by zeros. */
static LEVEL Wide
decode_rest(const GvRefine *record, const uint8_t *codes, int32_t n)
{
	uint8_t		some[LANES] = {0};
	float		rest[LANES];

	memcpy(some, codes, (size_t) n);
	store(rest, decode(record, some));
	return load_rest(rest, n);
}

static LEVEL void
record_squares(const float *q, const GvRefine *record, int32_t dims,
			   float *sums)
{
	Wide		acc = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_terms(&acc, load(q + i), decode(record, record->codes + i),
				  false);
	if (i < dims)
		add_terms(&acc, load_rest(q + i, dims - i),
				  decode_rest(record, record->codes + i, dims - i), false);
	store(sums, acc);
}

static LEVEL void
record_products(const float *q, const GvRefine *record, int32_t dims,
				float *sums, float *magnitudes)
{
	Wide		acc = zero();
	Wide		size = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_record(&acc, &size, load(q + i),
				   decode(record, record->codes + i));
	if (i < dims)
		add_record(&acc, &size, load_rest(q + i, dims - i),
				   decode_rest(record, record->codes + i, dims - i));
	store(sums, acc);
	store(magnitudes, size);
}

/* Returns the last n < 16 elements, followed by zeros. */
static LEVEL Wide
from_half_rest(const uint16_t *half_vector, int32_t n)
{
	uint16_t	some[LANES] = {0};

	memcpy(some, half_vector, (size_t) n * sizeof(*half_vector));
	return from_half(some);
}

static LEVEL void
half_squares(const float *q, const uint16_t *half_vector, int32_t dims,
			 float *sums)
{
	Wide		acc = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_terms(&acc, load(q + i), from_half(half_vector + i), false);
	if (i < dims)
		add_terms(&acc, load_rest(q + i, dims - i),
				  from_half_rest(half_vector + i, dims - i), false);
	store(sums, acc);
}

static LEVEL void
half_products(const float *q, const uint16_t *half_vector, int32_t dims,
			  float *sums, float *magnitudes)
{
	Wide		acc = zero();
	Wide		size = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_record(&acc, &size, load(q + i), from_half(half_vector + i));
	if (i < dims)
		add_record(&acc, &size, load_rest(q + i, dims - i),
				   from_half_rest(half_vector + i, dims - i));
	store(sums, acc);
	store(magnitudes, size);
}
