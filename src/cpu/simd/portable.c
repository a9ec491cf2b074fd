/*
 * portable.c
 *		The kernels in plain C, which define the results of all other kernels
 *		(see kernels.h).
 *
 * Partial sums are independent of each other, so compilers keep them in vector
 * registers without having to reorder any addition.  Dimension i is always
 * added to partial sum i mod (number of sums), also in the last, incomplete
 * round.
 */
#include <math.h>
#include <string.h>

#include "cpu/simd/kernels.h"

#define LEVEL					/* no attribute: runs on all processors */
#define KERNELS		gv_portable_kernels
#define FILTERS		false
#define ALWAYS		inline __attribute__((always_inline))
#define LANES		GV_CPU_LANES
#define LANES64		GV_CPU_LANES64
#define CENTS		GV_CPU_TILE_CENTS
#define SLICE		GV_CPU_SLICE_DIMS
#define STEP		4			/* dimensions multiplied at a time */
#define SPAN		8			/* postings summed at a time */

/* Adds up the sums pairwise: l takes l + 8, then l + 4, l + 2 and l + 1. */
static inline float
add_lanes(float *sums /* [LANES] */ )
{
	int			half;
	int			l;

	for (half = LANES / 2; half > 0; half /= 2)
		for (l = 0; l < half; l++)
			sums[l] += sums[l + half];
	return sums[0];
}

/*
 * Returns a term of a product if `product`, else a term of a squared distance.
 */
static ALWAYS float
term(float a, float b, bool product)
{
	float		diff = a - b;

	return product ? a * b : diff * diff;
}

static ALWAYS float
compare(const float *a, const float *b, int32_t dims, bool product)
{
	float		sums[LANES] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
			sums[l] += term(a[i + l], b[i + l], product);
	for (l = 0; i < dims; i++, l++)
		sums[l] += term(a[i], b[i], product);
	return add_lanes(sums);
}

static void
dots(const float *q, const float *rows, int32_t n, int32_t dims,
	 float *products)
{
	int32_t		i;

	for (i = 0; i < n; i++)
		products[i] = compare(q, rows + (size_t) i * dims, dims, true);
}

static void
sqdists(const float *q, const float *rows, int32_t n, int32_t dims,
		float *squares)
{
	int32_t		i;

	for (i = 0; i < n; i++)
		squares[i] = compare(q, rows + (size_t) i * dims, dims, false);
}

static void
residual_products(const float *x, const float *a, const float *b,
				  int32_t dims, float *sums)
{
	int32_t		i;
	int			l;

	memset(sums, 0, sizeof(float) * LANES);
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
			sums[l] += (x[i + l] - a[i + l]) * (x[i + l] - b[i + l]);
	for (l = 0; i < dims; i++, l++)
		sums[l] += (x[i] - a[i]) * (x[i] - b[i]);
}

static ALWAYS double
term64(double a, double b, bool product)
{
	double		diff = a - b;

	return product ? a * b : diff * diff;
}

static ALWAYS double
compare64(const float *a, const float *b, int32_t dims, bool product)
{
	double		sums[LANES64] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		for (l = 0; l < LANES64; l++)
			sums[l] += term64(a[i + l], b[i + l], product);
	for (l = 0; i < dims; i++, l++)
		sums[l] += term64(a[i], b[i], product);
	return gv_add_lanes64(sums);
}

static double
dot64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, true);
}

static double
sqdist64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, false);
}

/*
 * Adds to `out` the products of one vector with CENTS centroids over STEP
 * dimensions.  STEP is 4, because there are then enough additions for each
 * load and store of `out`, and few enough factors for sixteen registers.
 */
static inline void
multiply_step(const float *x /* [STEP] */ ,
			  const float *restrict y /* [STEP][CENTS] */ ,
			  float *restrict out /* [CENTS] */ )
{
	float		x0 = x[0];
	float		x1 = x[1];
	float		x2 = x[2];
	float		x3 = x[3];
	int			c;

	for (c = 0; c < CENTS; c++)
		out[c] += (x0 * y[c] + x1 * y[CENTS + c]) +
			(x2 * y[2 * CENTS + c] + x3 * y[3 * CENTS + c]);
}

/* Like multiply_step, but over len dimensions, 1 <= len <= SLICE. */
static void
multiply_row(const float *x, int32_t len,
			 const float *panel /* [SLICE][CENTS] */ , float *out)
{
	int32_t		d;

	for (d = 0; d + STEP <= len; d += STEP)
		multiply_step(x + d, panel + d * CENTS, out);
	if (d < len)
	{
		float		rest[STEP] = {0};
		int			i;

		for (i = 0; d + i < len; i++)
			rest[i] = x[d + i];
		multiply_step(rest, panel + d * CENTS, out);
	}
}

static void
multiply(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			row;

	for (row = 0; row < nrows; row++)
		multiply_row(x + (size_t) row * stride, len, panel,
					 products + row * CENTS);
}

/* Adds up the products of a panel before it adds the sum to `products`. */
static void
estimate(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			row;
	int			c;

	for (row = 0; row < nrows; row++)
	{
		const float *from = x + (size_t) row * stride;
		float	   *to = products + row * CENTS;
		float		sums[CENTS] = {0};
		int32_t		d;

		for (d = 0; d < len; d++)
			for (c = 0; c < CENTS; c++)
				sums[c] += from[d] * panel[d * CENTS + c];
		for (c = 0; c < CENTS; c++)
			to[c] += sums[c];
	}
}

static uint64_t
within(const float *squares, const float *products, float limit)
{
	uint64_t	found = 0;
	int			c;

	for (c = 0; c < CENTS; c++)
		found |= (uint64_t) !(squares[c] - 2.0f * products[c] > limit) << c;
	return found;
}

/*
 * The first loop finds out whether any bit has to be set, which is rarely so.
 * Compilers use vector instructions for this loop.
 */
static uint64_t
below(const float *values, float limit)
{
	uint64_t	found = 0;
	int			any = 0;
	int			i;

	for (i = 0; i < GV_CPU_COMPARED; i++)
		any |= !(values[i] >= limit);
	for (i = 0; any != 0 && i < GV_CPU_COMPARED; i++)
		found |= (uint64_t) !(values[i] >= limit) << i;
	return found;
}

static int32_t
nearest_word(const float *x, const float *words, int32_t dims)
{
	float		least = 0.0f;
	int32_t		nearest = 0;
	int32_t		d;
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
	{
		const float *word = words + (size_t) k * dims;
		float		sum = 0.0f;

		for (d = 0; d < dims; d++)
			sum += (x[d] - word[d]) * (x[d] - word[d]);
		if (k == 0 || sum < least)
		{
			least = sum;
			nearest = k;
		}
	}
	return nearest;
}

/*
 * Computes the entries [GV_CODEWORDS] of one sub-quantizer (see "The score S"
 * in gv_engine.h).
 */
static inline void
find_entries(const float *restrict query /* [dims] */ ,
			 const float *restrict words /* [GV_CODEWORDS][dims] */ ,
			 int32_t dims, float weight, float *restrict entries)
{
	float		sums[GV_CODEWORDS] = {0};
	int32_t		d;
	int			k;

	for (d = 0; d < dims; d++)
		for (k = 0; k < GV_CODEWORDS; k++)
			sums[k] += query[d] * words[k * dims + d];
	for (k = 0; k < GV_CODEWORDS; k++)
		entries[k] = weight * sums[k];
}

/* Finds the least and the greatest of a sub-quantizer's entries. */
static inline void
find_range(const float *restrict entries, float *least, float *most)
{
	float		low[GV_CODEWORDS];
	float		high[GV_CODEWORDS];
	int			half;
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
		low[k] = high[k] = entries[k];
	for (half = GV_CODEWORDS / 2; half > 0; half /= 2)
		for (k = 0; k < half; k++)
		{
			low[k] = low[k + half] < low[k] ? low[k + half] : low[k];
			high[k] = high[k + half] > high[k] ? high[k + half] : high[k];
		}
	*least = low[0];
	*most = high[0];
}

/*
 * Stores the bytes of a sub-quantizer twice.  In a damaged index, entries may
 * be NaN, and NaN must not be converted to an integer.
 */
static inline void
put_bytes(const float *restrict entries, float least, float inverse,
		  uint8_t *restrict bytes)
{
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
	{
		float		level = (entries[k] - least) * inverse;

		level = level > 0 ? level : 0;
		level = level < GV_FILTER_LEVELS ? level : GV_FILTER_LEVELS;
		bytes[k] = bytes[k + GV_CODEWORDS] = (uint8_t) (int32_t) level;
	}
}

/*
 * Computes the sums [SPAN] of postings.  The codes of posting i are
 * codes[..][i].  Entries are added one after another, not in pairs first,
 * because the score S is defined in that way.
 */
static inline void
sum_span(const float *restrict table, int32_t m,
		 const uint8_t *restrict codes, int32_t stride, float *restrict sums)
{
	float		acc[SPAN] = {0};
	int32_t		p;
	int			i;

	for (p = 0; p < m / 2; p++)
	{
		const float *low = table + (size_t) p * 2 * GV_CODEWORDS;
		const float *high = low + GV_CODEWORDS;
		const uint8_t *column = codes + (size_t) p * stride;

		for (i = 0; i < SPAN; i++)
		{
			acc[i] += low[column[i] & 15];
			acc[i] += high[column[i] >> 4];
		}
	}
	if (m % 2 != 0)
	{
		const float *low = table + (size_t) p * 2 * GV_CODEWORDS;

		for (i = 0; i < SPAN; i++)
			acc[i] += low[codes[(size_t) p * stride + i] & 15];
	}
	for (i = 0; i < SPAN; i++)
		sums[i] = acc[i];
}

static void
sum_postings(const float *table, int32_t m, const uint8_t *codes,
			 int32_t stride, int32_t n, float *sums)
{
	int32_t		i;

	/* a constant stride saves compilers a register */
	for (i = 0; i < n; i += SPAN)
		if (stride == GV_BLOCK)
			sum_span(table, m, codes + i, GV_BLOCK, sums + i);
		else
			sum_span(table, m, codes + i, stride, sums + i);
}

static void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	int			n = 0;
	int32_t		p;

	for (; wanted != 0; wanted &= wanted - 1, n++)
		for (p = 0; p < code_bytes; p++)
			gathered[(size_t) p * GV_GATHERED_STRIDE + n] =
				codes[(size_t) p * GV_BLOCK + __builtin_ctz(wanted)];
}

static uint32_t
filter(const uint8_t *bytes, int32_t m, const uint8_t *codes,
	   const float *t, const GvCut *cut, const uint8_t *ahead)
{
	uint32_t	kept = 0;
	int32_t		j;
	int			i;

	for (i = 0; i < GV_BLOCK; i++)
	{
		float		limit = (cut->reach - (cut->base + t[i])) * cut->inverse;
		uint32_t	sum = 0;

		for (j = 0; j < m; j++)
		{
			int			code = codes[j / 2 * GV_BLOCK + i] >> (j % 2 * 4) & 15;

			sum += bytes[gv_filter_place(j) + code];
		}
		kept |= (uint32_t) !((float) sum > limit) << i;
	}
	return kept;
}

/* Converts abbreviated keys to 64 bits each. */
static void
widen(const void *abbrevs, int width, uint64_t *wide)
{
	int			i;

	for (i = 0; i < GV_BLOCK; i++)
		wide[i] = width == 1 ? ((const uint8_t *) abbrevs)[i] :
			width == 2 ? ((const uint16_t *) abbrevs)[i] :
			width == 4 ? ((const uint32_t *) abbrevs)[i] :
			((const uint64_t *) abbrevs)[i];
}

static bool
is_in_set(uint64_t abbrev, const uint64_t *values, int32_t n)
{
	while (n > 0)
	{
		int32_t		half = n / 2;

		if (values[half] == abbrev)
			return true;
		if (values[half] < abbrev)
		{
			values += half + 1;
			n -= half + 1;
		}
		else
			n = half;
	}
	return false;
}

static bool
matches(const GvKeyTest *test, uint64_t abbrev)
{
	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return test->low <= abbrev && abbrev <= test->high;
		case GV_TEST_SET:
			return is_in_set(abbrev, test->values, test->nvalues);
		case GV_TEST_ANY_BIT:
			return (abbrev & test->low) != 0;
		default:
			return (abbrev & test->low) == test->low;
	}
}

static uint32_t
match(const GvKeyTest *test, int width, const void *abbrevs)
{
	uint64_t	wide[GV_BLOCK];
	uint32_t	bits = 0;
	int			i;

	widen(abbrevs, width, wide);
	for (i = 0; i < GV_BLOCK; i++)
		bits |= (uint32_t) matches(test, wide[i]) << i;
	return bits;
}

/*
 * Returns element i of a vector x^, which is half_vector or, if half_vector is
 * NULL, the vector of a refine record.
 */
static ALWAYS float
element(const GvRefine *record, const uint16_t *half_vector, int32_t i)
{
	return half_vector != NULL ? gv_half_value(half_vector[i]) :
		gv_refine_decode(record->min, record->step, record->codes[i]);
}

/*
 * Adds a term to partial sum l.  If `product`, also adds the magnitude of the
 * term to magnitudes[l].
 */
static ALWAYS void
add_term(float q, float x, bool product, int l, float *sums, float *magnitudes)
{
	float		added = term(q, x, product);

	sums[l] += added;
	if (product)
		magnitudes[l] += fabsf(added);
}

/*
 * Computes the partial sums of |q - x^|^2 in fp32 or, if `product`, the
 * partial sums of <q, x^> and of the magnitudes of its terms.
 */
static ALWAYS void
sum_elements(const float *restrict q, const GvRefine *record,
			 const uint16_t *restrict half_vector, int32_t dims, bool product,
			 float *restrict sums, float *restrict magnitudes)
{
	GvRefine	own = {0};		/* not in memory that sums might overlap */
	int32_t		i;
	int			l;

	if (record != NULL)
		own = *record;
	for (l = 0; l < LANES; l++)
		sums[l] = 0.0f;
	for (l = 0; l < LANES && product; l++)
		magnitudes[l] = 0.0f;
	for (i = 0; i + LANES <= dims; i += LANES)
		for (l = 0; l < LANES; l++)
			add_term(q[i + l], element(&own, half_vector, i + l), product, l,
					 sums, magnitudes);
	for (l = 0; i < dims; i++, l++)
		add_term(q[i], element(&own, half_vector, i), product, l, sums,
				 magnitudes);
}

#include "cpu/simd/shared.h"

#ifdef GV_TEST_BUILD
/*
 * Makes the filter of a table, whose entries [m][GV_CODEWORDS] must have been
 * computed.
 */
void
gv_filter_make(float *table, int32_t m)
{
	make_filter(table, m);
}
#endif
