/*
 * avx512.c
 *		The primitives of the kernels in AVX-512 (F, BW).  vectors.h says what
 *		the primitives do, and body.h has the kernels.
 *
 * A register holds the sixteen partial sums of a distance, the sixteen entries
 * of a sub-quantizer, two byte columns of 32 postings, or 64 bytes of
 * abbreviated keys.  Keys of one byte fill half of a register; the results of
 * comparisons in the other half are cut off.
 */
#ifdef __x86_64__

#include <immintrin.h>

#include "cpu/simd/kernels.h"

#define LEVEL			__attribute__((target("avx512f,avx512bw")))
#define KERNELS			gv_avx512_kernels
#define REG				16
#define HAS_MASKS
#define Entries			Wide
#define ESTIMATE_REGS	4
#define SUM_AT_ONCE		(2 * GV_BLOCK)

typedef __m512 Reg;
typedef __m512i Keys;
typedef uint32_t Mask;
typedef uint64_t Comparisons;
typedef uint32_t KeyBits;

#include "cpu/simd/vectors.h"

#define FIRST(n)		((1U << (n)) - 1)	/* a mask of n lanes */
#define MOST_PERMUTED	8		/* words with more dimensions are gathered */

static ALWAYS LEVEL Wide
wide_of(Reg reg)
{
	Wide		wide;

	wide.part[0] = reg;
	return wide;
}

static ALWAYS LEVEL __m256
add_halves(Wide sums)
{
	__m512d		moved = _mm512_castps_pd(sums.part[0]);
	__m256		upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(moved, 1));

	return _mm512_castps512_ps256(sums.part[0]) + upper;
}

static ALWAYS LEVEL Reg
fuse(Reg x, Reg y, Reg sum)
{
	return _mm512_fmadd_ps(x, y, sum);
}

static ALWAYS LEVEL void
add_comparison(Comparisons *found, Reg value, Reg limit, int h, bool at)
{
	__mmask16	mask = at ? _mm512_cmp_ps_mask(value, limit, _CMP_NGE_UQ) :
	_mm512_cmp_ps_mask(value, limit, _CMP_NGT_UQ);

	*found |= (uint64_t) mask << h * REG;
}

static ALWAYS LEVEL Reg64
load_doubles(const float *x)
{
	return _mm512_cvtps_pd(_mm256_loadu_ps(x));
}

static ALWAYS LEVEL Wide
load_bytes(const uint8_t *bytes)
{
	__m128i		all = _mm_loadu_si128((const __m128i *) bytes);

	return wide_of(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(all)));
}

static ALWAYS LEVEL Wide
load_halves(const uint16_t *halves)
{
	return wide_of(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) halves)));
}

static ALWAYS LEVEL Wide
load_rest(const float *x, int32_t n)
{
	return wide_of(_mm512_maskz_loadu_ps((__mmask16) FIRST(n), x));
}

static ALWAYS LEVEL Wide
bytes_rest(const uint8_t *bytes, int32_t n)
{
	__m512i		loaded = _mm512_maskz_loadu_epi8(FIRST(n), bytes);
	__m512i		codes = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(loaded));

	return wide_of(_mm512_cvtepi32_ps(codes));
}

static ALWAYS LEVEL Wide
halves_rest(const uint16_t *halves, int32_t n)
{
	__m512i		loaded = _mm512_maskz_loadu_epi16(FIRST(n), halves);

	return wide_of(_mm512_cvtph_ps(_mm512_castsi512_si256(loaded)));
}

static ALWAYS LEVEL Wide
lanes_rest(Wide x, int32_t n)
{
	return wide_of(_mm512_maskz_mov_ps((__mmask16) FIRST(n), x.part[0]));
}

/*
 * Lane k gets element k * dims + d of `words`, whose elements fill `dims`
 * registers.
 */
static ALWAYS LEVEL Wide
load_words(const float *words, int32_t dims, int32_t d)
{
	__m512i		lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8,
										7, 6, 5, 4, 3, 2, 1, 0);
	__m512i		number =
	_mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(dims)),
					 _mm512_set1_epi32(d));
	__m512i		which = _mm512_srli_epi32(number, 4);
	__m512		found = _mm512_setzero_ps();
	int32_t		r;

	if (dims == 1)
		return load(words);
	if (dims > MOST_PERMUTED)
		return wide_of(_mm512_i32gather_ps(number, words, 4));
	for (r = 0; r < dims; r++)
	{
		__mmask16	here = _mm512_cmpeq_epi32_mask(which,
												   _mm512_set1_epi32(r));

		found = _mm512_mask_permutexvar_ps(found, here, number,
										   load_reg(words + r * LANES));
	}
	return wide_of(found);
}

static ALWAYS LEVEL void
load_pairs(const float *words, Wide *first, Wide *second)
{
	__m512i		even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16,
										14, 12, 10, 8, 6, 4, 2, 0);
	__m512i		odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
	__m512		a = load_reg(words);
	__m512		b = load_reg(words + REG);

	*first = wide_of(_mm512_permutex2var_ps(a, even, b));
	*second = wide_of(_mm512_permutex2var_ps(a, odd, b));
}

static ALWAYS LEVEL Reg
least_lane(Wide x)
{
	return _mm512_set1_ps(_mm512_reduce_min_ps(x.part[0]));
}

static ALWAYS LEVEL void
add_entries(Reg *sums, Entries entries, const uint8_t *codes, bool upper)
{
	__m128i		loaded = _mm_loadu_si128((const __m128i *) codes);
	__m512i		code = _mm512_cvtepu8_epi32(loaded);

	if (upper)
		code = _mm512_srli_epi32(code, 4);
	sums[0] += _mm512_permutexvar_ps(code, entries.part[0]);
}

static ALWAYS LEVEL Keys
shuffle_bytes(Keys bytes, Keys nibbles)
{
	return _mm512_shuffle_epi8(bytes, nibbles);
}

static ALWAYS LEVEL Keys
load_columns(const uint8_t *columns, int n)
{
	const __m256i *first = (const __m256i *) columns;

	return n == 2 ? _mm512_loadu_si512(columns) :
		_mm512_zextsi256_si512(_mm256_loadu_si256(first));
}

/* Adds the two halves of a register, which have the sums of two columns. */
static ALWAYS LEVEL __m256i
add_columns_of(Keys16 sums)
{
	__m512i		both = (__m512i) sums;

	return _mm256_add_epi16(_mm512_castsi512_si256(both),
							_mm512_extracti64x4_epi64(both, 1));
}

/*
 * total[0] has the sums of postings 0 .. 15, and total[1] those of postings 16
 * .. 31.  The comments below name the postings in each half of a register.
 */
static ALWAYS LEVEL void
drain(const Keys16 *sums, RegInt *total)
{
	__m256i		even = add_columns_of(sums[0] - (sums[1] << 8));
	__m256i		odd = add_columns_of(sums[1]);
	__m256i		a = _mm256_unpacklo_epi16(even, odd);	/* 0-7, 16-23 */
	__m256i		b = _mm256_unpackhi_epi16(even, odd);	/* 8-15, 24-31 */
	__m256i		first = _mm256_permute2x128_si256(a, b, 0x20);
	__m256i		second = _mm256_permute2x128_si256(a, b, 0x31);

	total[0] += (RegInt) _mm512_cvtepu16_epi32(first);
	total[1] += (RegInt) _mm512_cvtepu16_epi32(second);
}

static ALWAYS LEVEL Keys
load_abbrevs(const void *abbrevs, int r, int width)
{
	const __m512i *from = abbrevs;

	return width > 1 ? _mm512_loadu_si512(from + r) :
		_mm512_castsi256_si512(_mm256_loadu_si256(abbrevs));
}

static ALWAYS LEVEL Mask
equal_abbrevs(Keys a, Keys b, int width)
{
	return width == 1 ? (uint32_t) _mm512_cmpeq_epu8_mask(a, b) :
		width == 2 ? (uint32_t) _mm512_cmpeq_epu16_mask(a, b) :
		width == 4 ? (uint32_t) _mm512_cmpeq_epu32_mask(a, b) :
		(uint32_t) _mm512_cmpeq_epu64_mask(a, b);
}

static ALWAYS LEVEL Mask
not_above(Keys a, Keys b, int width)
{
	return width == 1 ? (uint32_t) _mm512_cmple_epu8_mask(a, b) :
		width == 2 ? (uint32_t) _mm512_cmple_epu16_mask(a, b) :
		width == 4 ? (uint32_t) _mm512_cmple_epu32_mask(a, b) :
		(uint32_t) _mm512_cmple_epu64_mask(a, b);
}

static ALWAYS LEVEL void
keep_mask(KeyBits *bits, Mask mask, int r, int width)
{
	*bits |= mask << r * (GV_BLOCK / KEY_REGS(width));
}

static ALWAYS LEVEL Keys
gather_keys(const uint64_t *values, Keys64 places)
{
	return _mm512_i64gather_epi64((Keys) places, values, 8);
}

static ALWAYS LEVEL Keys64
step_above(Keys abbrev, Keys last, int32_t step)
{
	__mmask8	above = _mm512_cmpgt_epu64_mask(abbrev, last);

	return (Keys64) _mm512_maskz_set1_epi64(above, step);
}

#include "cpu/simd/avx.h"

#endif							/* __x86_64__ */
