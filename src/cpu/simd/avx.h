/*
 * avx.h
 *		The primitives that are the same in AVX2 and AVX-512.
 *
 * Included at the end of a level's file, in place of body.h, which is included
 * at the end of this file.  The level's file has defined the other primitives
 * of vectors.h and these:
 *	add_halves(sums)	lanes 0 .. 7 plus lanes 8 .. 15
 *	shuffle_bytes(bytes, nibbles)
 *						the bytes of `bytes` that the low four bits of
 *						`nibbles` select
 *	load_columns(columns, n)
 *						a register of n <= 2 columns of codes; a single column
 *						is in the low half of a register of 64 bytes
 *	gather_keys(values, places)
 *						the values with numbers `places`, of 64 bits each
 *	step_above(abbrev, last, step)
 *						`step` in those lanes of 64 bits whose key is above the
 *						number in `last`, else 0
 * Look-up tables and gathering use registers of 32 bytes on both levels.
 */
static ALWAYS LEVEL float
add_lanes(Wide sums)
{
	__m256		eight = add_halves(sums);
	__m128		four = _mm256_castps256_ps128(eight) +
	_mm256_extractf128_ps(eight, 1);
	__m128		two = four + _mm_movehl_ps(four, four);

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static ALWAYS LEVEL Entries
load_entries(const float *entries)
{
	return load(entries);
}

static ALWAYS LEVEL void
find_range(const float *entries, float *least, float *most)
{
	__m256		a = _mm256_loadu_ps(entries);
	__m256		b = _mm256_loadu_ps(entries + 8);
	__m256		low = _mm256_min_ps(b, a);
	__m256		high = _mm256_max_ps(b, a);
	__m128		low4 = _mm_min_ps(_mm256_extractf128_ps(low, 1),
								  _mm256_castps256_ps128(low));
	__m128		high4 = _mm_max_ps(_mm256_extractf128_ps(high, 1),
								   _mm256_castps256_ps128(high));

	low4 = _mm_min_ps(_mm_movehl_ps(low4, low4), low4);
	high4 = _mm_max_ps(_mm_movehl_ps(high4, high4), high4);
	*least = _mm_cvtss_f32(_mm_min_ss(_mm_shuffle_ps(low4, low4, 1), low4));
	*most = _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps(high4, high4, 1), high4));
}

/*
 * Computes the levels of eight entries.  Levels may be above GV_FILTER_LEVELS.
 */
static ALWAYS LEVEL __m256i
find_levels(const float *entries, float least, float inverse)
{
	__m256		above = _mm256_sub_ps(_mm256_loadu_ps(entries),
									  _mm256_set1_ps(least));

	return _mm256_cvttps_epi32(_mm256_mul_ps(above, _mm256_set1_ps(inverse)));
}

/* Packing limits the levels to 255. */
static ALWAYS LEVEL void
put_bytes(const float *entries, float least, float inverse, uint8_t *bytes)
{
	__m256i		low = find_levels(entries, least, inverse);
	__m256i		high = find_levels(entries + 8, least, inverse);
	__m256i		words = _mm256_packus_epi32(low, high);
	__m256i		packed = _mm256_packus_epi16(words, words);
	__m256i		order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);

	_mm256_storeu_si256((__m256i *) bytes,
						_mm256_permutevar8x32_epi32(packed, order));
}

/*
 * Stores the bytes of a column that `places` selects in chosen [16].  The low
 * half of `places` selects from the first half of the column, and the high
 * half from the second half.  A posting's number is in one of the halves of
 * `places`.  In the other half the number has its highest bit set, so that the
 * shuffle gives 0.
 */
static ALWAYS LEVEL void
choose(const uint8_t *column, __m256i places, uint8_t *chosen)
{
	__m256i		all = _mm256_loadu_si256((const __m256i *) column);
	__m256i		both = _mm256_shuffle_epi8(all, places);

	_mm_storeu_si128((__m128i *) chosen,
					 _mm_or_si128(_mm256_castsi256_si128(both),
								  _mm256_extracti128_si256(both, 1)));
}

/*
 * Gathers sixteen postings at a time.  Each half of `places` has the numbers
 * of these postings in one half of a column (see choose).
 */
static LEVEL void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	for (; wanted != 0; gathered += 16)
	{
		uint64_t	taken[2];
		__m128i		numbers;
		__m256i		places;
		int32_t		p;

		gv_take_places(&wanted, taken);
		numbers = _mm_set_epi64x((long long) taken[1], (long long) taken[0]);
		places = _mm256_set_m128i(_mm_sub_epi8(numbers, _mm_set1_epi8(16)),
								  _mm_add_epi8(numbers, _mm_set1_epi8(0x70)));
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

/*
 * In lanes of 16 bits, sums[1] has the sums of the upper bytes, and sums[0]
 * has the sums of the lower bytes plus 256 times the sums of the upper bytes
 * (mod 2^16).
 */
static ALWAYS LEVEL void
add_columns(Keys16 *sums, const uint8_t *columns, int n, const uint8_t *bytes)
{
	size_t		c;
	int			upper;

	for (c = 0; c < (size_t) n * GV_BLOCK; c += sizeof(Keys))
	{
		Keys8		codes = (Keys8) load_columns(columns + c, n);
		Keys8		nibbles[2] = {codes & 15,
		(Keys8) ((Keys16) codes >> 4) & 15};

		for (upper = 0; upper < 2; upper++)
		{
			Keys		table = *(const KeysAt *) (bytes + c + upper * 64);
			Keys16		found = (Keys16) shuffle_bytes(table, (Keys) nibbles[upper]);

			sums[0] += found;
			sums[1] += found >> 8;
		}
	}
}

static ALWAYS LEVEL uint64_t
take_comparisons(Comparisons *found, int n)
{
	return *found;
}

static ALWAYS LEVEL uint32_t
take_bits(KeyBits *bits, int width)
{
	return *bits;
}

/*
 * The first step needs no gather, because all keys are compared with the same
 * value.
 */
static OUTSIDE LEVEL uint32_t
find_abbrevs(const uint64_t *wide, const uint64_t *values, int32_t n)
{
	Keys64		places[KEY_REGS(8)];
	KeyBits		kept = 0;
	int32_t		half = n / 2;
	int			r;

	for (r = 0; r < KEY_REGS(8); r++)
		places[r] = step_above(load_abbrevs(wide, r, 8),
							   spread(values[half - 1], 8), half);
	for (n -= half; n > 1; n -= half)
	{
		half = n / 2;
		for (r = 0; r < KEY_REGS(8); r++)
			places[r] += step_above(load_abbrevs(wide, r, 8),
									gather_keys(values + half - 1, places[r]),
									half);
	}
	for (r = 0; r < KEY_REGS(8); r++)
		keep_mask(&kept, equal_abbrevs(gather_keys(values, places[r]),
									   load_abbrevs(wide, r, 8), 8), r, 8);
	return kept;
}

#include "cpu/simd/body.h"
