/*
 * gv_portable_records.h
 *		Sums over refine records, of bytes and in half precision.  Included by
 *		portable.c, so these functions define the kernels of all levels.
 */

/* Computes the partial sums of |q - x^|^2 in fp32. */
static void
record_squares(const float *restrict q, const GvRefine *record,
			   int32_t dims, float *restrict sums)
{
	const uint8_t *restrict codes = record->codes;
	float		min = record->min;
	float		step = record->step;
	int32_t		i;
	int			l;

	for (l = 0; l < LANES; l++)
		sums[l] = 0.0f;
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
		{
			float		diff = q[i + l] -
			gv_refine_decode(min, step, codes[i + l]);

			sums[l] += diff * diff;
		}
	for (l = 0; i < dims; i++, l++)
	{
		float		diff = q[i] - gv_refine_decode(min, step, codes[i]);

		sums[l] += diff * diff;
	}
}

/*
 * Computes the partial sums of <q, x^> in fp32, and those of the terms'
 * magnitudes.
 */
static void
record_products(const float *restrict q, const GvRefine *record,
				int32_t dims, float *restrict sums,
				float *restrict magnitudes)
{
	const uint8_t *restrict codes = record->codes;
	float		min = record->min;
	float		step = record->step;
	int32_t		i;
	int			l;

	for (l = 0; l < LANES; l++)
		sums[l] = magnitudes[l] = 0.0f;
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
		{
			float		term = q[i + l] *
			gv_refine_decode(min, step, codes[i + l]);

			sums[l] += term;
			magnitudes[l] += fabsf(term);
		}
	for (l = 0; i < dims; i++, l++)
	{
		float		term = q[i] * gv_refine_decode(min, step, codes[i]);

		sums[l] += term;
		magnitudes[l] += fabsf(term);
	}
}

/* The following two are like the functions above, for half precision. */
static void
half_squares(const float *restrict q, const uint16_t *restrict half_vector,
			 int32_t dims, float *restrict sums)
{
	int32_t		i;
	int			l;

	for (l = 0; l < LANES; l++)
		sums[l] = 0.0f;
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
		{
			float		diff = q[i + l] - gv_half_value(half_vector[i + l]);

			sums[l] += diff * diff;
		}
	for (l = 0; i < dims; i++, l++)
	{
		float		diff = q[i] - gv_half_value(half_vector[i]);

		sums[l] += diff * diff;
	}
}

static void
half_products(const float *restrict q, const uint16_t *restrict half_vector,
			  int32_t dims, float *restrict sums, float *restrict magnitudes)
{
	int32_t		i;
	int			l;

	for (l = 0; l < LANES; l++)
		sums[l] = magnitudes[l] = 0.0f;
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
		{
			float		term = q[i + l] * gv_half_value(half_vector[i + l]);

			sums[l] += term;
			magnitudes[l] += fabsf(term);
		}
	for (l = 0; i < dims; i++, l++)
	{
		float		term = q[i] * gv_half_value(half_vector[i]);

		sums[l] += term;
		magnitudes[l] += fabsf(term);
	}
}
