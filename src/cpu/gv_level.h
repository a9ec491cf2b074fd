/*
 * gv_level.h
 *		What the kernels of all levels have in common: many rows by fours, and
 *		the table.
 *
 * Included at the end of a level's file, once, because functions cannot be
 * shared between levels.  The file has compare_some, compare64, multiply_codes,
 * multiply_some, sum_some, filter, record_squares and record_products, and
 * these macros:
 *		LEVEL		the attribute that functions of the level have
 *		KERNELS		the name of its table
 *		AT_ONCE		centroids that multiply_some multiplies with
 *		SUM_AT_ONCE	copies that sum_some adds up at most, GV_BLOCK at least
 */
#include "cpu/gv_words.h"

static inline LEVEL void
compare(const float *q, const float *rows, int32_t n, int32_t dims,
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
	compare(q, rows, n, dims, true, products);
}

static LEVEL void
sqdists(const float *q, const float *rows, int32_t n, int32_t dims,
		float *squares)
{
	compare(q, rows, n, dims, false, squares);
}

static LEVEL void
byte_dots(const int8_t *q, const int8_t *codes, int32_t n, int32_t dims,
		  int32_t *products)
{
	int32_t		i;

	for (i = 0; i + 4 <= n; i += 4)
		multiply_codes(q, codes + (size_t) i * dims, 4, dims, products + i);
	for (; i < n; i++)
		multiply_codes(q, codes + (size_t) i * dims, 1, dims, products + i);
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

static LEVEL void
multiply(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			c;
	int			r;

	for (c = 0; c < GV_CPU_TILE_CENTS; c += AT_ONCE)
	{
		float	   *to = products + c;

		for (r = 0; r + 4 <= nrows; r += 4)
			multiply_some(x + (size_t) r * stride, stride, 4, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
		for (; r < nrows; r++)
			multiply_some(x + (size_t) r * stride, stride, 1, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
	}
}

static LEVEL void
add_distances(const float *x, size_t stride, int nrows, const float *words,
			  int32_t dims, int32_t len, float *dist)
{
	gv_add_distances(x, stride, nrows, words, dims, len, dist);
}

static LEVEL void
nearest_words(const float *dist, int nrows, float *best, int32_t *code)
{
	gv_nearest_words(dist, nrows, best, code);
}

static LEVEL void
sum_copies(const float *table, int32_t m, const uint8_t *codes,
		   int32_t stride, int32_t n, float *sums)
{
	int32_t		i;

	for (i = 0; i + SUM_AT_ONCE <= n; i += SUM_AT_ONCE)
		sum_some(table, m, codes + i, stride, SUM_AT_ONCE, sums + i);
	for (; i < n; i += GV_BLOCK)
		sum_some(table, m, codes + i, stride, GV_BLOCK, sums + i);
}

/* The numbers of the first bits, at most 16, taken out of *bits. */
static inline LEVEL __m128i
take_places(uint32_t *bits)
{
	uint64_t	places[2] = {0, 0};
	int			n;

	for (n = 0; n < 16 && *bits != 0; n++, *bits &= *bits - 1)
		places[n / 8] |= (uint64_t) __builtin_ctz(*bits) << n % 8 * 8;
	return _mm_set_epi64x((long long) places[1], (long long) places[0]);
}

/* Bytes of a column come to where `places` has their numbers, if any. */
static inline LEVEL void
choose(const uint8_t *column, __m256i places, uint8_t *chosen)
{
	__m256i		all = _mm256_loadu_si256((const __m256i *) column);
	__m256i		both = _mm256_shuffle_epi8(all, places);

	_mm_storeu_si128((__m128i *) chosen,
					 _mm_or_si128(_mm256_castsi256_si128(both),
								  _mm256_extracti128_si256(both, 1)));
}

/*
 * Sixteen copies at a time.  A shuffle leaves a zero where a number's highest
 * bit is set, as in each half of a column that of copies in the other half is.
 */
static LEVEL void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	for (; wanted != 0; gathered += 16)
	{
		__m128i		numbers = take_places(&wanted);
		__m128i		low = _mm_add_epi8(numbers, _mm_set1_epi8(0x70));
		__m128i		high = _mm_sub_epi8(numbers, _mm_set1_epi8(16));
		__m256i		places = _mm256_set_m128i(high, low);
		int32_t		p;

		for (p = 0; p + 4 <= code_bytes; p += 4)
		{
			const uint8_t *from = codes + p * GV_BLOCK;
			uint8_t    *to = gathered + p * GV_GATHERED_STRIDE;

			choose(from, places, to);
			choose(from + GV_BLOCK, places, to + GV_GATHERED_STRIDE);
			choose(from + 2 * GV_BLOCK, places, to + 2 * GV_GATHERED_STRIDE);
			choose(from + 3 * GV_BLOCK, places, to + 3 * GV_GATHERED_STRIDE);
		}
		for (; p < code_bytes; p++)
			choose(codes + p * GV_BLOCK, places,
				   gathered + p * GV_GATHERED_STRIDE);
	}
}

const GvKernels KERNELS = {
	.filters = true,
	.dots = dots,
	.sqdists = sqdists,
	.byte_dots = byte_dots,
	.dot64 = dot64,
	.sqdist64 = sqdist64,
	.multiply = multiply,
	.add_distances = add_distances,
	.nearest_words = nearest_words,
	.sum_copies = sum_copies,
	.gather = gather,
	.filter = filter,
	.record_squares = record_squares,
	.record_products = record_products,
};
