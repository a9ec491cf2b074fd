/*
 * gv_avx2_images.h
 *		Abbreviated keys in AVX2; included by avx2.c.
 *
 * A register holds 32 bytes of abbreviated keys.  If keys have `width` bytes,
 * the keys of a block fill `width` registers.  A lane is the part of a
 * register that holds one key.
 */
#define ALWAYS	inline __attribute__((always_inline))

static ALWAYS AVX2 __m256i
load_abbrevs(const void *abbrevs, int r)
{
	return _mm256_loadu_si256((const __m256i *) abbrevs + r);
}

/* Returns a register that has the value in each lane. */
static ALWAYS AVX2 __m256i
spread(uint64_t value, int width)
{
	return width == 1 ? _mm256_set1_epi8((char) value) :
		width == 2 ? _mm256_set1_epi16((short) value) :
		width == 4 ? _mm256_set1_epi32((int) value) :
		_mm256_set1_epi64x((long long) value);
}

static ALWAYS AVX2 __m256i
equal_abbrevs(__m256i a, __m256i b, int width)
{
	return width == 1 ? _mm256_cmpeq_epi8(a, b) :
		width == 2 ? _mm256_cmpeq_epi16(a, b) :
		width == 4 ? _mm256_cmpeq_epi32(a, b) : _mm256_cmpeq_epi64(a, b);
}

/* Returns a - b for each lane. */
static ALWAYS AVX2 __m256i
subtract(__m256i a, __m256i b, int width)
{
	return width == 1 ? _mm256_sub_epi8(a, b) :
		width == 2 ? _mm256_sub_epi16(a, b) :
		width == 4 ? _mm256_sub_epi32(a, b) : _mm256_sub_epi64(a, b);
}

/*
 * Returns a <= b for each lane, unsigned: a is the minimum of a and b.  There
 * is no minimum of 64-bit lanes, so these are compared with their signs
 * flipped.
 */
static ALWAYS AVX2 __m256i
not_above(__m256i a, __m256i b, int width)
{
	__m256i		sign = _mm256_set1_epi64x(INT64_MIN);
	__m256i		above;

	if (width == 1)
		return equal_abbrevs(_mm256_min_epu8(a, b), a, 1);
	if (width == 2)
		return equal_abbrevs(_mm256_min_epu16(a, b), a, 2);
	if (width == 4)
		return equal_abbrevs(_mm256_min_epu32(a, b), a, 4);
	above = _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign),
							   _mm256_xor_si256(b, sign));
	return _mm256_xor_si256(above, _mm256_set1_epi64x(-1));
}

/*
 * Returns the lanes of register r that are not 0, as bits of the block's
 * postings.
 */
static ALWAYS AVX2 uint32_t
take_bits(__m256i places, int r, int width)
{
	uint32_t	bits;

	if (width == 1)
		return (uint32_t) _mm256_movemask_epi8(places);
	if (width == 4)
		bits = (uint32_t) _mm256_movemask_ps(_mm256_castsi256_ps(places));
	else if (width == 8)
		bits = (uint32_t) _mm256_movemask_pd(_mm256_castsi256_pd(places));
	else
	{
		__m256i		none = _mm256_setzero_si256();

		bits = (uint32_t) _mm256_movemask_epi8(_mm256_packs_epi16(places,
																  none));
		bits = (bits & 0xFF) | (bits >> 8 & 0xFF00);
	}
	return bits << r * (GV_BLOCK / width);
}

/*
 * Applies a test that is not GV_TEST_SET.  In a range, low is not above high.
 */
static ALWAYS AVX2 uint32_t
compare_abbrevs(const GvKeyTest *test, int width, const void *abbrevs)
{
	__m256i		low = spread(test->low, width);
	__m256i		reach = spread(test->high - test->low, width);
	__m256i		none = _mm256_setzero_si256();
	uint32_t	bits = 0;
	int			r;

	for (r = 0; r < width; r++)
	{
		__m256i		abbrev = load_abbrevs(abbrevs, r);
		__m256i		both = _mm256_and_si256(abbrev, low);

		bits |= take_bits(test->kind == GV_TEST_RANGE ?
						  not_above(subtract(abbrev, low, width), reach, width) :
						  equal_abbrevs(both,
										test->kind == GV_TEST_ANY_BIT ?
										none : low, width), r, width);
	}
	return test->kind == GV_TEST_ANY_BIT ? ~bits : bits;
}

/*
 * Looks for abbreviated keys among few values: each value is compared with all
 * keys.
 */
static ALWAYS AVX2 uint32_t
compare_values(const void *abbrevs, int width, const uint64_t *values,
			   int32_t n)
{
	uint32_t	bits = 0;
	int32_t		v;
	int			r;

	for (r = 0; r < width; r++)
	{
		__m256i		abbrev = load_abbrevs(abbrevs, r);
		__m256i		equal = _mm256_setzero_si256();

		for (v = 0; v < n; v++)
			equal = _mm256_or_si256(equal,
									equal_abbrevs(abbrev,
												  spread(values[v], width),
												  width));
		bits |= take_bits(equal, r, width);
	}
	return bits;
}

/*
 * Returns which of the abbreviated keys wide [GV_BLOCK] are among values [n],
 * n >= 1.  This is a binary search for all keys side by side.  Each step
 * halves the values that are left.  Signs are flipped so that 64-bit numbers
 * compare as unsigned ones.
 */
static AVX2 uint32_t
find_abbrevs(const uint64_t *wide, const uint64_t *values, int32_t n)
{
	const long long *from = (const long long *) values;
	__m256i		sign = _mm256_set1_epi64x(INT64_MIN);
	__m256i		places[GV_BLOCK / 4];
	uint32_t	bits = 0;
	int			r;

	for (r = 0; r < GV_BLOCK / 4; r++)
		places[r] = _mm256_setzero_si256();
	while (n > 1)
	{
		int32_t		half = n / 2;
		__m256i		step = _mm256_set1_epi64x(half);

		for (r = 0; r < GV_BLOCK / 4; r++)
		{
			__m256i		last = _mm256_i64gather_epi64(from + half - 1,
													  places[r], 8);
			__m256i		abbrev = load_abbrevs(wide, r);
			__m256i		above = _mm256_cmpgt_epi64(_mm256_xor_si256(abbrev, sign),
												   _mm256_xor_si256(last, sign));

			places[r] = _mm256_add_epi64(places[r],
										 _mm256_and_si256(above, step));
		}
		n -= half;
	}
	for (r = 0; r < GV_BLOCK / 4; r++)
		bits |= take_bits(equal_abbrevs(_mm256_i64gather_epi64(from, places[r], 8),
										load_abbrevs(wide, r), 8), r, 8);
	return bits;
}
