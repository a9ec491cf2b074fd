/*
 * avx512.c
 *		The kernels in AVX-512 (F, BW) (kernels.h describes them).
 *
 * A register holds the sixteen partial sums of a distance, the sixteen entries
 * of a sub-quantizer, or two byte columns of 32 postings.  Multiplications and
 * additions are separate, because a fused one would round differently; only
 * estimates are fused.
 */
#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#include "cpu/simd/kernels.h"

#define AVX512		__attribute__((target("avx512f,avx512bw")))
#define LANES		GV_CPU_LANES
#define CENTS		GV_CPU_TILE_CENTS
#define DRAIN		64			/* column pairs that 16-bit sums can take */

/* Returns the first n numbers of x, followed by zeros if n < 16. */
static inline AVX512 __m512
load_some(const float *x, int32_t n)
{
	return n >= LANES ? _mm512_loadu_ps(x) :
		_mm512_maskz_loadu_ps((__mmask16) ((1U << n) - 1), x);
}

/* Adds the lanes: lane l takes lane l + 8, then l + 4, l + 2, l + 1. */
static inline AVX512 float
add_lanes(__m512 sums)
{
	__m512d		moved = _mm512_castps_pd(sums);
	__m256		upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(moved, 1));
	__m256		eight = _mm256_add_ps(_mm512_castps512_ps256(sums), upper);
	__m128		four = _mm_add_ps(_mm256_castps256_ps128(eight),
								  _mm256_extractf128_ps(eight, 1));
	__m128		two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline AVX512 __m512
add_term(__m512 sums, __m512 q, __m512 x, bool product)
{
	__m512		diff = _mm512_sub_ps(q, x);

	return _mm512_add_ps(sums, product ? _mm512_mul_ps(q, x) :
						 _mm512_mul_ps(diff, diff));
}

/* Compares q with nrows <= 4 rows, which are read side by side. */
static inline AVX512 void
compare_some(const float *q, const float *rows, int nrows, int32_t dims,
			 bool product, float *out)
{
	__m512		sums[4];
	int32_t		i;
	int			r;

	for (r = 0; r < nrows; r++)
		sums[r] = _mm512_setzero_ps();
	for (i = 0; i < dims; i += LANES)
	{
		__m512		some = load_some(q + i, dims - i);

		for (r = 0; r < nrows; r++)
			sums[r] = add_term(sums[r], some,
							   load_some(rows + (size_t) r * dims + i,
										 dims - i), product);
	}
	for (r = 0; r < nrows; r++)
		out[r] = add_lanes(sums[r]);
}

static AVX512 void
residual_products(const float *x, const float *a, const float *b,
				  int32_t dims, float *sums)
{
	__m512		acc = _mm512_setzero_ps();
	int32_t		i;

	for (i = 0; i < dims; i += LANES)
	{
		__m512		some = load_some(x + i, dims - i);
		__m512		from_a = _mm512_sub_ps(some, load_some(a + i, dims - i));
		__m512		from_b = _mm512_sub_ps(some, load_some(b + i, dims - i));

		acc = add_term(acc, from_a, from_b, true);
	}
	_mm512_storeu_ps(sums, acc);
}

/* Returns eight terms of a sum in double, one in each lane. */
static inline AVX512 __m512d
terms64(__m256 a, __m256 b, bool product)
{
	__m512d		x = _mm512_cvtps_pd(a);
	__m512d		y = _mm512_cvtps_pd(b);
	__m512d		diff = _mm512_sub_pd(x, y);

	return product ? _mm512_mul_pd(x, y) : _mm512_mul_pd(diff, diff);
}

static inline AVX512 double
compare64(const float *a, const float *b, int32_t dims, bool product)
{
	__m512d		sums = _mm512_setzero_pd();
	__m256d		four;
	__m128d		two;
	int32_t		i;

	for (i = 0; i + 8 <= dims; i += 8)
		sums = _mm512_add_pd(sums, terms64(_mm256_loadu_ps(a + i),
										   _mm256_loadu_ps(b + i), product));
	if (i < dims)
	{
		__m256		x = _mm512_castps512_ps256(load_some(a + i, dims - i));
		__m256		y = _mm512_castps512_ps256(load_some(b + i, dims - i));

		sums = _mm512_add_pd(sums, terms64(x, y, product));
	}
	four = _mm256_add_pd(_mm512_castpd512_pd256(sums),
						 _mm512_extractf64x4_pd(sums, 1));
	two = _mm_add_pd(_mm256_castpd256_pd128(four),
					 _mm256_extractf128_pd(four, 1));
	return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/*
 * Multiplies four dimensions of one row with 16 centroids, and adds up the
 * products in the prescribed order.
 */
static inline AVX512 __m512
multiply_four(const float *x, const float *panel)
{
	__m512		xy[4];
	int			d;

	for (d = 0; d < 4; d++)
		xy[d] = _mm512_mul_ps(_mm512_set1_ps(x[d]),
							  _mm512_loadu_ps(panel + d * CENTS));
	return _mm512_add_ps(_mm512_add_ps(xy[0], xy[1]),
						 _mm512_add_ps(xy[2], xy[3]));
}

/* Like multiply_four, for 32 centroids.  Adds the results to sums [2]. */
static inline AVX512 void
multiply_two(const float *x, const float *panel, __m512 *sums)
{
	sums[0] = _mm512_add_ps(sums[0], multiply_four(x, panel));
	sums[1] = _mm512_add_ps(sums[1], multiply_four(x, panel + LANES));
}

/*
 * Multiplies nrows <= 4 rows with 32 centroids.  The registers hold all of
 * these sums and the panel's numbers.
 */
static inline AVX512 void
multiply_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	__m512		sums[4][2];
	int32_t		whole = len / 4 * 4;
	int32_t		d;
	int			r;

	for (r = 0; r < nrows; r++)
	{
		sums[r][0] = _mm512_loadu_ps(products + r * CENTS);
		sums[r][1] = _mm512_loadu_ps(products + r * CENTS + LANES);
	}
	for (d = 0; d < whole; d += 4)
		for (r = 0; r < nrows; r++)
			multiply_two(x + (size_t) r * stride + d, panel + d * CENTS,
						 sums[r]);
	for (r = 0; whole < len && r < nrows; r++)
	{
		float		rest[4] = {0};

		for (d = whole; d < len; d++)
			rest[d - whole] = x[(size_t) r * stride + d];
		multiply_two(rest, panel + whole * CENTS, sums[r]);
	}
	for (r = 0; r < nrows; r++)
	{
		_mm512_storeu_ps(products + r * CENTS, sums[r][0]);
		_mm512_storeu_ps(products + r * CENTS + LANES, sums[r][1]);
	}
}

/*
 * Multiplies nrows <= 4 rows with all 64 centroids of a panel, and fuses
 * multiplications and additions.
 */
static inline AVX512 void
estimate_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	__m512		sums[4][CENTS / LANES];
	int32_t		d;
	int			r;
	int			c;

	for (r = 0; r < nrows; r++)
		for (c = 0; c < CENTS / LANES; c++)
			sums[r][c] = _mm512_setzero_ps();
	for (d = 0; d < len; d++)
		for (r = 0; r < nrows; r++)
		{
			__m512		one = _mm512_set1_ps(x[(size_t) r * stride + d]);

			for (c = 0; c < CENTS / LANES; c++)
				sums[r][c] =
					_mm512_fmadd_ps(one, _mm512_loadu_ps(panel + d * CENTS +
														 c * LANES),
									sums[r][c]);
		}
	for (r = 0; r < nrows; r++)
		for (c = 0; c < CENTS / LANES; c++)
		{
			float	   *to = products + r * CENTS + c * LANES;

			_mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to),
											   sums[r][c]));
		}
}

static AVX512 uint64_t
within(const float *squares, const float *products, float limit)
{
	uint64_t	found = 0;
	int			c;

	for (c = 0; c < CENTS; c += LANES)
	{
		__m512		product = _mm512_loadu_ps(products + c);
		__m512		value = _mm512_sub_ps(_mm512_loadu_ps(squares + c),
										  _mm512_add_ps(product, product));
		__mmask16	some = _mm512_cmp_ps_mask(value, _mm512_set1_ps(limit),
											  _CMP_NGT_UQ);

		found |= (uint64_t) some << c;
	}
	return found;
}

static AVX512 uint64_t
below(const float *values, float limit)
{
	uint64_t	found = 0;
	int			i;

	for (i = 0; i < GV_CPU_COMPARED; i += LANES)
	{
		__mmask16	some = _mm512_cmp_ps_mask(_mm512_loadu_ps(values + i),
											  _mm512_set1_ps(limit),
											  _CMP_NGE_UQ);

		found |= (uint64_t) some << i;
	}
	return found;
}

/*
 * Returns dimension d of all codewords.  Lane k takes number k dims + d of the
 * words' numbers, which fill `dims` registers.
 */
static inline AVX512 __m512
word_dimension(const float *words, int32_t dims, int32_t d)
{
	__m512i		lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8,
										7, 6, 5, 4, 3, 2, 1, 0);
	__m512i		number =
	_mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(dims)),
					 _mm512_set1_epi32(d));
	__m512i		which = _mm512_srli_epi32(number, 4);
	__m512		found = _mm512_setzero_ps();
	int32_t		r;

	for (r = 0; r < dims; r++)
	{
		__mmask16	here = _mm512_cmpeq_epi32_mask(which,
												   _mm512_set1_epi32(r));

		found = _mm512_mask_permutexvar_ps(found, here, number,
										   _mm512_loadu_ps(words + r * LANES));
	}
	return found;
}

static AVX512 int32_t
nearest_word(const float *x, const float *words, int32_t dims)
{
	__m512		sums = _mm512_setzero_ps();
	__m512		least;
	int32_t		d;

	for (d = 0; d < dims; d++)
		sums = add_term(sums, _mm512_set1_ps(x[d]),
						word_dimension(words, dims, d), false);
	least = _mm512_set1_ps(_mm512_reduce_min_ps(sums));
	return __builtin_ctz(_mm512_cmp_ps_mask(sums, least, _CMP_NGT_UQ));
}

/*
 * Looks up the entries of sixteen postings, by the low four bits of each lane.
 */
static inline AVX512 __m512
look_up(const float *entries, __m512i codes)
{
	return _mm512_permutexvar_ps(codes, _mm512_loadu_ps(entries));
}

/* Adds up the entries of n postings; n is GV_BLOCK or 2 * GV_BLOCK. */
static inline AVX512 void
sum_some(const float *table, int32_t m, const uint8_t *codes, int32_t stride,
		 int n, float *sums)
{
	__m512		acc[2 * GV_BLOCK / LANES];
	int32_t		j;
	int			h;

	for (h = 0; h < n / LANES; h++)
		acc[h] = _mm512_setzero_ps();
	for (j = 0; j < m; j += 2)
	{
		const float *low = table + (size_t) j * GV_CODEWORDS;

		for (h = 0; h < n / LANES; h++)
		{
			const void *from = codes + (size_t) (j / 2) * stride + h * LANES;
			__m512i		pair = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
			__m512i		upper = _mm512_srli_epi32(pair, 4);

			acc[h] = _mm512_add_ps(acc[h], look_up(low, pair));
			if (j + 1 < m)
				acc[h] = _mm512_add_ps(acc[h],
									   look_up(low + GV_CODEWORDS, upper));
		}
	}
	for (h = 0; h < n / LANES; h++)
		_mm512_storeu_ps(sums + h * LANES, acc[h]);
}

/*
 * Sums of bytes, by 16-bit lanes.  `upper` has the sum of the lanes' upper
 * bytes.  `both` has the sum of their lower bytes, plus 256 times the sum of
 * their upper bytes (mod 2^16).
 */
typedef struct ByteSums
{
	__m512i		both;
	__m512i		upper;
} ByteSums;

static inline AVX512 void
add_bytes(ByteSums *sums, __m512i bytes)
{
	sums->both = _mm512_add_epi16(sums->both, bytes);
	sums->upper = _mm512_add_epi16(sums->upper, _mm512_srli_epi16(bytes, 8));
}

/*
 * Adds the entries of two columns.  The bytes for the low nibbles are at
 * `bytes`, and those for the high nibbles 64 bytes further on.
 */
static inline AVX512 void
add_columns(ByteSums *sums, __m512i codes, const uint8_t *bytes)
{
	__m512i		nibble = _mm512_set1_epi8(15);
	__m512i		low = _mm512_and_si512(codes, nibble);
	__m512i		high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);

	add_bytes(sums, _mm512_shuffle_epi8(_mm512_loadu_si512(bytes), low));
	add_bytes(sums, _mm512_shuffle_epi8(_mm512_loadu_si512(bytes + 64), high));
}

/* Adds the sums of the two columns that are in the halves of a register. */
static inline AVX512 __m256i
add_halves(__m512i sums)
{
	return _mm256_add_epi16(_mm512_castsi512_si256(sums),
							_mm512_extracti64x4_epi64(sums, 1));
}

/*
 * Adds the 16-bit sums to total [2], which has postings 0 .. 15 and 16 .. 31.
 * The numbers below are those of postings.
 */
static inline AVX512 void
drain(const ByteSums *sums, __m512i *total)
{
	__m512i		lower = _mm512_sub_epi16(sums->both,
										 _mm512_slli_epi16(sums->upper, 8));
	__m256i		even = add_halves(lower);
	__m256i		odd = add_halves(sums->upper);
	__m256i		a = _mm256_unpacklo_epi16(even, odd);	/* 0-7, 16-23 */
	__m256i		b = _mm256_unpackhi_epi16(even, odd);	/* 8-15, 24-31 */
	__m256i		first = _mm256_permute2x128_si256(a, b, 0x20);
	__m256i		second = _mm256_permute2x128_si256(a, b, 0x31);

	total[0] = _mm512_add_epi32(total[0], _mm512_cvtepu16_epi32(first));
	total[1] = _mm512_add_epi32(total[1], _mm512_cvtepu16_epi32(second));
}

/* Returns which of 16 sums are not above their postings' limits. */
static inline AVX512 uint32_t
compare_sums(__m512i total, const float *t, const GvCut *cut)
{
	__m512		start = _mm512_add_ps(_mm512_set1_ps(cut->base),
									  _mm512_loadu_ps(t));
	__m512		rest = _mm512_sub_ps(_mm512_set1_ps(cut->reach), start);
	__m512		limit = _mm512_mul_ps(rest, _mm512_set1_ps(cut->inverse));

	return _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(total), limit, _CMP_NGT_UQ);
}

static AVX512 uint32_t
filter(const uint8_t *bytes, int32_t m, const uint8_t *codes, const float *t,
	   const GvCut *cut, const uint8_t *ahead)
{
	int32_t		ncolumns = (m + 1) / 2;
	__m512i		total[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
	int32_t		p = 0;

	while (p < ncolumns)
	{
		ByteSums	sums = {_mm512_setzero_si512(), _mm512_setzero_si512()};
		int32_t		end = ncolumns - p < 2 * DRAIN ? ncolumns : p + 2 * DRAIN;

		for (; p + 2 <= end; p += 2)
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_columns(&sums, _mm512_loadu_si512(codes + p * GV_BLOCK),
						bytes + p * 64);
		}
		if (p < end)			/* the last column has no partner */
		{
			const void *last = codes + p * GV_BLOCK;

			gv_fetch(ahead + p * GV_BLOCK);
			add_columns(&sums,
						_mm512_zextsi256_si512(_mm256_loadu_si256(last)),
						bytes + p * 64);
			p++;
		}
		drain(&sums, total);
	}
	return compare_sums(total[0], t, cut) |
		compare_sums(total[1], t + LANES, cut) << LANES;
}

/*
 * Returns sixteen elements of x^, from element i on.  The first n come from
 * the record's codes, and the others are undefined.
 */
static inline AVX512 __m512
decode(const GvRefine *record, int32_t i, int32_t n)
{
	__mmask64	mask = n >= LANES ? 0xFFFF : (1U << n) - 1;
	__m512i		loaded = _mm512_maskz_loadu_epi8(mask, record->codes + i);
	__m512i		codes = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(loaded));
	__m512		steps = _mm512_mul_ps(_mm512_set1_ps(record->step),
									  _mm512_cvtepi32_ps(codes));

	return _mm512_add_ps(_mm512_set1_ps(record->min), steps);
}

static AVX512 void
record_squares(const float *q, const GvRefine *record, int32_t dims,
			   float *sums)
{
	__m512		acc = _mm512_setzero_ps();
	int32_t		i;

	for (i = 0; i < dims; i += LANES)
	{
		int32_t		n = dims - i < LANES ? dims - i : LANES;
		__m512		diff = _mm512_sub_ps(load_some(q + i, n),
										 decode(record, i, n));

		acc = _mm512_mask_add_ps(acc, (__mmask16) ((1U << n) - 1), acc,
								 _mm512_mul_ps(diff, diff));
	}
	_mm512_storeu_ps(sums, acc);
}

static AVX512 void
record_products(const float *q, const GvRefine *record, int32_t dims,
				float *sums, float *magnitudes)
{
	__m512		acc = _mm512_setzero_ps();
	__m512		size = _mm512_setzero_ps();
	int32_t		i;

	for (i = 0; i < dims; i += LANES)
	{
		int32_t		n = dims - i < LANES ? dims - i : LANES;
		__mmask16	mask = (__mmask16) ((1U << n) - 1);
		__m512		term = _mm512_mul_ps(load_some(q + i, n),
										 decode(record, i, n));

		acc = _mm512_mask_add_ps(acc, mask, acc, term);
		size = _mm512_mask_add_ps(size, mask, size, _mm512_abs_ps(term));
	}
	_mm512_storeu_ps(sums, acc);
	_mm512_storeu_ps(magnitudes, size);
}

/*
 * Returns sixteen elements of the x^ of a half-precision record.  The first n
 * come from half_vector, and the others are 0.
 */
static inline AVX512 __m512
from_half(const uint16_t *half_vector, int32_t n)
{
	__mmask32	mask = n >= LANES ? 0xFFFF : (1U << n) - 1;
	__m512i		loaded = _mm512_maskz_loadu_epi16(mask, half_vector);

	return _mm512_cvtph_ps(_mm512_castsi512_si256(loaded));
}

static AVX512 void
half_squares(const float *q, const uint16_t *half_vector, int32_t dims,
			 float *sums)
{
	__m512		acc = _mm512_setzero_ps();
	int32_t		i;

	for (i = 0; i < dims; i += LANES)
	{
		int32_t		n = dims - i < LANES ? dims - i : LANES;
		__m512		diff = _mm512_sub_ps(load_some(q + i, n),
										 from_half(half_vector + i, n));

		acc = _mm512_mask_add_ps(acc, (__mmask16) ((1U << n) - 1), acc,
								 _mm512_mul_ps(diff, diff));
	}
	_mm512_storeu_ps(sums, acc);
}

static AVX512 void
half_products(const float *q, const uint16_t *half_vector, int32_t dims,
			  float *sums, float *magnitudes)
{
	__m512		acc = _mm512_setzero_ps();
	__m512		size = _mm512_setzero_ps();
	int32_t		i;

	for (i = 0; i < dims; i += LANES)
	{
		int32_t		n = dims - i < LANES ? dims - i : LANES;
		__mmask16	mask = (__mmask16) ((1U << n) - 1);
		__m512		term = _mm512_mul_ps(load_some(q + i, n),
										 from_half(half_vector + i, n));

		acc = _mm512_mask_add_ps(acc, mask, acc, term);
		size = _mm512_mask_add_ps(size, mask, size, _mm512_abs_ps(term));
	}
	_mm512_storeu_ps(sums, acc);
	_mm512_storeu_ps(magnitudes, size);
}

#define LEVEL		AVX512
#define KERNELS		gv_avx512_kernels
#define AT_ONCE		(2 * LANES) /* centroids of multiply_some */
#define ESTIMATE_AT_ONCE	CENTS
#define SUM_AT_ONCE	(2 * GV_BLOCK)
#include "cpu/simd/gv_avx_table.h"
#include "cpu/simd/gv_avx512_images.h"
#include "cpu/simd/gv_level.h"

#endif							/* __x86_64__ */
