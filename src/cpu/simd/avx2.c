/*
 * avx2.c
 *		The primitives of the kernels in AVX2, with FMA.  vectors.h says what
 *		the primitives do, and body.h has the kernels.
 *
 * Two registers hold the sixteen partial sums of a distance or the sixteen
 * entries of a sub-quantizer.  One register holds a byte column of 32
 * postings, or 32 bytes of abbreviated keys.
 */
#ifdef __x86_64__

#include <immintrin.h>

#include "cpu/simd/kernels.h"

#define LEVEL			__attribute__((target("avx2,fma,f16c")))
#define KERNELS			gv_avx2_kernels
#define REG				8
#define Entries			Wide
#define ESTIMATE_REGS	2
#define SUM_AT_ONCE		GV_BLOCK

typedef __m256 Reg;
typedef __m256i Keys;
typedef __m256i Mask;
typedef uint64_t Comparisons;
typedef uint32_t KeyBits;

#include "cpu/simd/vectors.h"

static ALWAYS LEVEL __m256
add_halves(Wide sums)
{
	return sums.part[0] + sums.part[1];
}

static ALWAYS LEVEL Reg
fuse(Reg x, Reg y, Reg sum)
{
	return _mm256_fmadd_ps(x, y, sum);
}

static ALWAYS LEVEL void
add_comparison(Comparisons *found, Reg value, Reg limit, int h, bool at)
{
	Reg			mask = at ? _mm256_cmp_ps(value, limit, _CMP_NGE_UQ) :
	_mm256_cmp_ps(value, limit, _CMP_NGT_UQ);

	*found |= (uint64_t) (uint32_t) _mm256_movemask_ps(mask) << h * REG;
}

static ALWAYS LEVEL Reg64
load_doubles(const float *x)
{
	return _mm256_cvtps_pd(_mm_loadu_ps(x));
}

static ALWAYS LEVEL Wide
load_bytes(const uint8_t *bytes)
{
	__m128i		all = _mm_loadu_si128((const __m128i *) bytes);
	Wide		wide;

	wide.part[0] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all));
	all = _mm_srli_si128(all, 8);
	wide.part[1] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all));
	return wide;
}

static ALWAYS LEVEL Wide
load_halves(const uint16_t *halves)
{
	const __m128i *from = (const __m128i *) halves;
	Wide		wide;

	wide.part[0] = _mm256_cvtph_ps(_mm_loadu_si128(from));
	wide.part[1] = _mm256_cvtph_ps(_mm_loadu_si128(from + 1));
	return wide;
}

static ALWAYS LEVEL Wide
load_words(const float *words, int32_t dims, int32_t d)
{
	__m256i		eight = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	__m256i		places = _mm256_mullo_epi32(eight, _mm256_set1_epi32(dims));
	Wide		wide;

	if (dims == 1)
		return load(words);
	wide.part[0] = _mm256_i32gather_ps(words + d, places, 4);
	wide.part[1] = _mm256_i32gather_ps(words + REG * dims + d, places, 4);
	return wide;
}

static ALWAYS LEVEL void
load_pairs(const float *words, Wide *first, Wide *second)
{
	int			h;

	for (h = 0; h < PARTS; h++)
	{
		__m256		a = load_reg(words + h * 2 * REG);
		__m256		b = load_reg(words + h * 2 * REG + REG);
		__m256		low = _mm256_permute2f128_ps(a, b, 0x20);
		__m256		high = _mm256_permute2f128_ps(a, b, 0x31);

		first->part[h] = _mm256_shuffle_ps(low, high, 0x88);
		second->part[h] = _mm256_shuffle_ps(low, high, 0xDD);
	}
}

static ALWAYS LEVEL Reg
least_lane(Wide x)
{
	Reg			least = _mm256_min_ps(x.part[0], x.part[1]);

	least = _mm256_min_ps(least, _mm256_permute2f128_ps(least, least, 1));
	least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0x4E));
	return _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0xB1));
}

static ALWAYS LEVEL void
add_entries(Reg *sums, Entries entries, const uint8_t *codes, bool upper)
{
	int			h;

	for (h = 0; h < PARTS; h++)
	{
		__m128i		eight = _mm_loadl_epi64((const __m128i *) (codes + h * REG));
		__m256i		code = _mm256_cvtepu8_epi32(eight);
		__m256		low;
		__m256		high;
		__m256i		which;		/* bit 3 becomes the sign */

		if (upper)
			code = _mm256_srli_epi32(code, 4);
		low = _mm256_permutevar8x32_ps(entries.part[0], code);
		high = _mm256_permutevar8x32_ps(entries.part[1], code);
		which = _mm256_slli_epi32(code, 28);
		sums[h] += _mm256_blendv_ps(low, high, _mm256_castsi256_ps(which));
	}
}

static ALWAYS LEVEL Keys
shuffle_bytes(Keys bytes, Keys nibbles)
{
	return _mm256_shuffle_epi8(bytes, nibbles);
}

static ALWAYS LEVEL Keys
load_columns(const uint8_t *columns, int n)
{
	return *(const KeysAt *) columns;
}

static ALWAYS LEVEL void
drain(const Keys16 *sums, RegInt *total)
{
	Keys		upper = (Keys) sums[1];
	Keys		even = (Keys) (sums[0] - (sums[1] << 8));
	Keys		a = _mm256_unpacklo_epi16(even, upper);
	Keys		b = _mm256_unpackhi_epi16(even, upper);
	__m128i		eights[4] = {_mm256_castsi256_si128(a),
		_mm256_castsi256_si128(b), _mm256_extracti128_si256(a, 1),
	_mm256_extracti128_si256(b, 1)};
	int			h;

	for (h = 0; h < 4; h++)
		total[h] += (RegInt) _mm256_cvtepu16_epi32(eights[h]);
}

/*
 * A key of a is not above the key of b if it is the minimum of both.  AVX2 has
 * no minimum of 64-bit lanes, and compares 64-bit lanes as signed numbers, so
 * these lanes are compared with their sign bits flipped.
 */
static ALWAYS LEVEL Mask
not_above(Keys a, Keys b, int width)
{
	Keys		sign = _mm256_set1_epi64x(INT64_MIN);

	if (width == 1)
		return equal_abbrevs(_mm256_min_epu8(a, b), a, 1);
	if (width == 2)
		return equal_abbrevs(_mm256_min_epu16(a, b), a, 2);
	if (width == 4)
		return equal_abbrevs(_mm256_min_epu32(a, b), a, 4);
	return ~_mm256_cmpgt_epi64(a ^ sign, b ^ sign);
}

static ALWAYS LEVEL void
keep_mask(KeyBits *bits, Mask mask, int r, int width)
{
	uint32_t	some;

	if (width == 1)
		some = (uint32_t) _mm256_movemask_epi8(mask);
	else if (width == 4)
		some = (uint32_t) _mm256_movemask_ps((__m256) mask);
	else if (width == 8)
		some = (uint32_t) _mm256_movemask_pd((__m256d) mask);
	else
	{
		mask = _mm256_packs_epi16(mask, _mm256_setzero_si256());
		some = (uint32_t) _mm256_movemask_epi8(mask);
		some = (some & 0xFF) | (some >> 8 & 0xFF00);
	}
	*bits |= some << r * (GV_BLOCK / width);
}

static ALWAYS LEVEL Keys
gather_keys(const uint64_t *values, Keys64 places)
{
	return _mm256_i64gather_epi64((const long long *) values, (Keys) places, 8);
}

typedef int64_t __attribute__((vector_size(4 * REG)))
SignedKeys64;

/* Flips the sign bits, so that 64-bit numbers compare as unsigned ones. */
static ALWAYS LEVEL Keys64
step_above(Keys abbrev, Keys last, int32_t step)
{
	Keys		sign = spread((uint64_t) INT64_MIN, 8);

	return (Keys64) ((SignedKeys64) (abbrev ^ sign) >
					 (SignedKeys64) (last ^ sign)) & (uint64_t) step;
}

#include "cpu/simd/avx.h"

#endif							/* __x86_64__ */
