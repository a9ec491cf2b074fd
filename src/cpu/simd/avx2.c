/*
 * avx2.c
 *		The kernels in AVX2, with FMA (kernels.h describes them).
 *
 * Two registers hold the sixteen partial sums of a distance or the sixteen
 * entries of a sub-quantizer; one holds a byte column of 32 postings.
 * Multiplications and additions are separate, because a fused one would round
 * differently; only estimates are fused.
 */
#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#include "cpu/simd/kernels.h"

#define AVX2		__attribute__((target("avx2,fma,f16c")))
#define LEVEL		AVX2
#define LANES		GV_CPU_LANES
#define HALF		8			/* floats in a register */
#define CENTS		GV_CPU_TILE_CENTS
#define DRAIN		128			/* columns that 16-bit sums can take */

/* Sixteen floats, such as the partial sums of a distance. */
typedef struct Wide
{
	__m256		low;
	__m256		high;
} Wide;

static inline AVX2 Wide
zero(void)
{
	Wide		wide = {_mm256_setzero_ps(), _mm256_setzero_ps()};

	return wide;
}

static inline AVX2 Wide
load(const float *x)
{
	Wide		wide = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + HALF)};

	return wide;
}

static inline AVX2 void
store(float *x, Wide wide)
{
	_mm256_storeu_ps(x, wide.low);
	_mm256_storeu_ps(x + HALF, wide.high);
}

/* Adds the lanes: lane l takes lane l + 8, then l + 4, l + 2, l + 1. */
static inline AVX2 float
add_lanes(Wide sums)
{
	__m256		eight = _mm256_add_ps(sums.low, sums.high);
	__m128		four = _mm_add_ps(_mm256_castps256_ps128(eight),
								  _mm256_extractf128_ps(eight, 1));
	__m128		two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline AVX2 __m256
term(__m256 q, __m256 x, bool product)
{
	__m256		diff = _mm256_sub_ps(q, x);

	return product ? _mm256_mul_ps(q, x) : _mm256_mul_ps(diff, diff);
}

static inline AVX2 void
add_terms(Wide *sums, Wide q, Wide x, bool product)
{
	sums->low = _mm256_add_ps(sums->low, term(q.low, x.low, product));
	sums->high = _mm256_add_ps(sums->high, term(q.high, x.high, product));
}

#include "cpu/simd/gv_wide.h"

static inline AVX2 void
add_residuals(Wide *sums, Wide x, Wide a, Wide b)
{
	Wide		from_a = {_mm256_sub_ps(x.low, a.low),
	_mm256_sub_ps(x.high, a.high)};
	Wide		from_b = {_mm256_sub_ps(x.low, b.low),
	_mm256_sub_ps(x.high, b.high)};

	add_terms(sums, from_a, from_b, true);
}

static AVX2 void
residual_products(const float *x, const float *a, const float *b,
				  int32_t dims, float *sums)
{
	Wide		acc = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_residuals(&acc, load(x + i), load(a + i), load(b + i));
	if (i < dims)
		add_residuals(&acc, load_rest(x + i, dims - i),
					  load_rest(a + i, dims - i), load_rest(b + i, dims - i));
	store(sums, acc);
}

static inline AVX2 __m256d
term64(const float *a, const float *b, bool product)
{
	__m256d		x = _mm256_cvtps_pd(_mm_loadu_ps(a));
	__m256d		y = _mm256_cvtps_pd(_mm_loadu_ps(b));
	__m256d		diff = _mm256_sub_pd(x, y);

	return product ? _mm256_mul_pd(x, y) : _mm256_mul_pd(diff, diff);
}

static inline AVX2 double
compare64(const float *a, const float *b, int32_t dims, bool product)
{
	__m256d		low = _mm256_setzero_pd();
	__m256d		high = _mm256_setzero_pd();
	__m256d		four;
	__m128d		two;
	int32_t		i;

	for (i = 0; i + HALF <= dims; i += HALF)
	{
		low = _mm256_add_pd(low, term64(a + i, b + i, product));
		high = _mm256_add_pd(high, term64(a + i + 4, b + i + 4, product));
	}
	if (i < dims)
	{
		size_t		bytes = sizeof(float) * (size_t) (dims - i);
		float		x[HALF] = {0};
		float		y[HALF] = {0};

		memcpy(x, a + i, bytes);
		memcpy(y, b + i, bytes);
		low = _mm256_add_pd(low, term64(x, y, product));
		high = _mm256_add_pd(high, term64(x + 4, y + 4, product));
	}
	four = _mm256_add_pd(low, high);
	two = _mm_add_pd(_mm256_castpd256_pd128(four),
					 _mm256_extractf128_pd(four, 1));
	return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/*
 * Multiplies four dimensions of one row with 8 centroids, and adds up the
 * products in the prescribed order.
 */
static inline AVX2 __m256
multiply_four(const float *x, const float *panel)
{
	__m256		xy[4];
	int			d;

	for (d = 0; d < 4; d++)
		xy[d] = _mm256_mul_ps(_mm256_set1_ps(x[d]),
							  _mm256_loadu_ps(panel + d * CENTS));
	return _mm256_add_ps(_mm256_add_ps(xy[0], xy[1]),
						 _mm256_add_ps(xy[2], xy[3]));
}

/* Like multiply_four, for 16 centroids.  Adds the results to *sums. */
static inline AVX2 void
multiply_wide(const float *x, const float *panel, Wide *sums)
{
	sums->low = _mm256_add_ps(sums->low, multiply_four(x, panel));
	sums->high = _mm256_add_ps(sums->high, multiply_four(x, panel + HALF));
}

/*
 * Multiplies nrows <= 4 rows with 16 centroids.  The registers hold all of
 * these sums.
 */
static inline AVX2 void
multiply_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	Wide		sums[4];
	int32_t		whole = len / 4 * 4;
	int32_t		d;
	int			r;

	for (r = 0; r < nrows; r++)
		sums[r] = load(products + r * CENTS);
	for (d = 0; d < whole; d += 4)
		for (r = 0; r < nrows; r++)
			multiply_wide(x + (size_t) r * stride + d, panel + d * CENTS,
						  &sums[r]);
	for (r = 0; whole < len && r < nrows; r++)
	{
		float		rest[4] = {0};

		for (d = whole; d < len; d++)
			rest[d - whole] = x[(size_t) r * stride + d];
		multiply_wide(rest, panel + whole * CENTS, &sums[r]);
	}
	for (r = 0; r < nrows; r++)
		store(products + r * CENTS, sums[r]);
}

/* Like multiply_some, but fuses multiplications and additions. */
static inline AVX2 void
estimate_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	Wide		sums[4];
	int32_t		d;
	int			r;

	for (r = 0; r < nrows; r++)
		sums[r] = zero();
	for (d = 0; d < len; d++)
	{
		Wide		some = load(panel + d * CENTS);

		for (r = 0; r < nrows; r++)
		{
			__m256		one = _mm256_set1_ps(x[(size_t) r * stride + d]);

			sums[r].low = _mm256_fmadd_ps(one, some.low, sums[r].low);
			sums[r].high = _mm256_fmadd_ps(one, some.high, sums[r].high);
		}
	}
	for (r = 0; r < nrows; r++)
	{
		Wide		to = load(products + r * CENTS);

		to.low = _mm256_add_ps(to.low, sums[r].low);
		to.high = _mm256_add_ps(to.high, sums[r].high);
		store(products + r * CENTS, to);
	}
}

static AVX2 uint64_t
within(const float *squares, const float *products, float limit)
{
	uint64_t	found = 0;
	int			c;

	for (c = 0; c < CENTS; c += HALF)
	{
		__m256		product = _mm256_loadu_ps(products + c);
		__m256		value = _mm256_sub_ps(_mm256_loadu_ps(squares + c),
										  _mm256_add_ps(product, product));
		__m256		some = _mm256_cmp_ps(value, _mm256_set1_ps(limit),
										 _CMP_NGT_UQ);

		found |= (uint64_t) (uint32_t) _mm256_movemask_ps(some) << c;
	}
	return found;
}

static AVX2 uint64_t
below(const float *values, float limit)
{
	uint64_t	found = 0;
	int			i;

	for (i = 0; i < GV_CPU_COMPARED; i += HALF)
	{
		__m256		some = _mm256_cmp_ps(_mm256_loadu_ps(values + i),
										 _mm256_set1_ps(limit), _CMP_NGE_UQ);

		found |= (uint64_t) (uint32_t) _mm256_movemask_ps(some) << i;
	}
	return found;
}

static AVX2 int32_t
nearest_word(const float *x, const float *words, int32_t dims)
{
	__m256i		places = _mm256_mullo_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2,
															 1, 0),
											_mm256_set1_epi32(dims));
	Wide		sums = zero();
	__m256		least;
	uint32_t	low;
	uint32_t	high;
	int32_t		d;

	for (d = 0; d < dims; d++)
	{
		__m256		some = _mm256_set1_ps(x[d]);
		Wide		all = {some, some};
		Wide		word;

		word.low = _mm256_i32gather_ps(words + d, places, 4);
		word.high = _mm256_i32gather_ps(words + HALF * dims + d, places, 4);
		add_terms(&sums, all, word, false);
	}
	least = _mm256_min_ps(sums.low, sums.high);
	least = _mm256_min_ps(least, _mm256_permute2f128_ps(least, least, 1));
	least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0x4E));
	least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0xB1));
	low = (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(sums.low, least,
													  _CMP_NGT_UQ));
	high = (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(sums.high, least,
													   _CMP_NGT_UQ));
	return __builtin_ctz(low | high << HALF);
}

/*
 * Looks up the entries of eight postings, by the low four bits of each lane.
 */
static inline AVX2 __m256
look_up(Wide entries, __m256i codes)
{
	__m256		low = _mm256_permutevar8x32_ps(entries.low, codes);
	__m256		high = _mm256_permutevar8x32_ps(entries.high, codes);
	__m256i		which = _mm256_slli_epi32(codes, 28);	/* bit 3 becomes the
														 * sign */

	return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(which));
}

/*
 * Adds up the entries of n postings, at most a block.  The registers hold all
 * of these sums.
 */
static inline AVX2 void
sum_some(const float *table, int32_t m, const uint8_t *codes, int32_t stride,
		 int n, float *sums)
{
	__m256		acc[GV_BLOCK / HALF];
	int32_t		j;
	int			h;

	for (h = 0; h < n / HALF; h++)
		acc[h] = _mm256_setzero_ps();
	for (j = 0; j < m; j += 2)
	{
		const float *entries = table + (size_t) j * GV_CODEWORDS;
		Wide		low = load(entries);
		Wide		high = load(j + 1 < m ? entries + GV_CODEWORDS : entries);

		for (h = 0; h < n / HALF; h++)
		{
			const void *from = codes + (size_t) (j / 2) * stride + h * HALF;
			__m256i		pair = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from));
			__m256i		upper = _mm256_srli_epi32(pair, 4);

			acc[h] = _mm256_add_ps(acc[h], look_up(low, pair));
			if (j + 1 < m)
				acc[h] = _mm256_add_ps(acc[h], look_up(high, upper));
		}
	}
	for (h = 0; h < n / HALF; h++)
		_mm256_storeu_ps(sums + h * HALF, acc[h]);
}

/*
 * Sums of bytes, by 16-bit lanes.  `upper` has the sum of the lanes' upper
 * bytes.  `both` has the sum of their lower bytes, plus 256 times the sum of
 * their upper bytes (mod 2^16).
 */
typedef struct ByteSums
{
	__m256i		both;
	__m256i		upper;
} ByteSums;

static inline AVX2 void
add_bytes(ByteSums *sums, __m256i bytes)
{
	sums->both = _mm256_add_epi16(sums->both, bytes);
	sums->upper = _mm256_add_epi16(sums->upper, _mm256_srli_epi16(bytes, 8));
}

static inline AVX2 __m256i
load_bytes(const uint8_t *bytes)
{
	return _mm256_loadu_si256((const void *) bytes);
}

/*
 * Adds the entries of one column.  The bytes for its low nibbles are at
 * `bytes`, and those for its high nibbles 64 bytes further on.
 */
static inline AVX2 void
add_column(ByteSums *sums, const uint8_t *column, const uint8_t *bytes)
{
	__m256i		nibble = _mm256_set1_epi8(15);
	__m256i		codes = load_bytes(column);
	__m256i		low = _mm256_and_si256(codes, nibble);
	__m256i		high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);

	add_bytes(sums, _mm256_shuffle_epi8(load_bytes(bytes), low));
	add_bytes(sums, _mm256_shuffle_epi8(load_bytes(bytes + 64), high));
}

/*
 * Adds the 16-bit sums to total [4], which has eight postings in each element.
 */
static inline AVX2 void
drain(const ByteSums *sums, __m256i *total)
{
	__m256i		even = _mm256_sub_epi16(sums->both,
										_mm256_slli_epi16(sums->upper, 8));
	__m256i		a = _mm256_unpacklo_epi16(even, sums->upper);
	__m256i		b = _mm256_unpackhi_epi16(even, sums->upper);
	__m128i		eights[4] = {_mm256_castsi256_si128(a),
		_mm256_castsi256_si128(b), _mm256_extracti128_si256(a, 1),
	_mm256_extracti128_si256(b, 1)};
	int			h;

	for (h = 0; h < 4; h++)
		total[h] = _mm256_add_epi32(total[h],
									_mm256_cvtepu16_epi32(eights[h]));
}

/* Returns which of 8 sums are not above their postings' limits. */
static inline AVX2 uint32_t
compare_sums(__m256i total, const float *t, const GvCut *cut)
{
	__m256		start = _mm256_add_ps(_mm256_set1_ps(cut->base),
									  _mm256_loadu_ps(t));
	__m256		rest = _mm256_sub_ps(_mm256_set1_ps(cut->reach), start);
	__m256		limit = _mm256_mul_ps(rest, _mm256_set1_ps(cut->inverse));
	__m256		kept = _mm256_cmp_ps(_mm256_cvtepi32_ps(total), limit,
									 _CMP_NGT_UQ);

	return (uint32_t) _mm256_movemask_ps(kept);
}

static AVX2 uint32_t
filter(const uint8_t *bytes, int32_t m, const uint8_t *codes, const float *t,
	   const GvCut *cut, const uint8_t *ahead)
{
	int32_t		ncolumns = (m + 1) / 2;
	__m256i		total[4];
	uint32_t	kept = 0;
	int32_t		p = 0;
	int			h;

	for (h = 0; h < 4; h++)
		total[h] = _mm256_setzero_si256();
	while (p < ncolumns)
	{
		ByteSums	sums = {_mm256_setzero_si256(), _mm256_setzero_si256()};
		int32_t		end = ncolumns - p < DRAIN ? ncolumns : p + DRAIN;

		for (; p + 2 <= end; p += 2)
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_column(&sums, codes + p * GV_BLOCK, bytes + p * 64);
			add_column(&sums, codes + p * GV_BLOCK + GV_BLOCK,
					   bytes + p * 64 + 32);
		}
		if (p < end)			/* the last column has no partner */
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_column(&sums, codes + p * GV_BLOCK,
					   bytes + gv_filter_place(2 * p));
			p++;
		}
		drain(&sums, total);
	}
	for (h = 0; h < 4; h++)
		kept |= compare_sums(total[h], t + h * HALF, cut) << h * HALF;
	return kept;
}

/* Returns sixteen elements of the x^ of a refine record. */
static inline AVX2 Wide
decode(const GvRefine *record, const uint8_t *codes)
{
	__m256		min = _mm256_set1_ps(record->min);
	__m256		step = _mm256_set1_ps(record->step);
	__m128i		bytes = _mm_loadu_si128((const __m128i *) codes);
	Wide		wide;

	wide.low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
	bytes = _mm_srli_si128(bytes, 8);
	wide.high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
	wide.low = _mm256_add_ps(min, _mm256_mul_ps(step, wide.low));
	wide.high = _mm256_add_ps(min, _mm256_mul_ps(step, wide.high));
	return wide;
}

static inline AVX2 void
add_record(Wide *acc, Wide *size, Wide q, Wide x)
{
	__m256		sign = _mm256_set1_ps(-0.0f);
	__m256		low = _mm256_mul_ps(q.low, x.low);
	__m256		high = _mm256_mul_ps(q.high, x.high);

	acc->low = _mm256_add_ps(acc->low, low);
	acc->high = _mm256_add_ps(acc->high, high);
	size->low = _mm256_add_ps(size->low, _mm256_andnot_ps(sign, low));
	size->high = _mm256_add_ps(size->high, _mm256_andnot_ps(sign, high));
}

/* Returns sixteen elements of the x^ of a half-precision record. */
static inline AVX2 Wide
from_half(const uint16_t *half_vector)
{
	Wide		wide;

	wide.low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) half_vector));
	wide.high =
		_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) half_vector + 1));
	return wide;
}

#define KERNELS		gv_avx2_kernels
#define AT_ONCE		LANES		/* centroids of multiply_some */
#define ESTIMATE_AT_ONCE	LANES
#define SUM_AT_ONCE	GV_BLOCK
#include "cpu/simd/gv_wide_records.h"
#include "cpu/simd/gv_avx_table.h"
#include "cpu/simd/gv_avx2_images.h"
#include "cpu/simd/gv_level.h"

#endif							/* __x86_64__ */
