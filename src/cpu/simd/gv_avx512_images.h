/*
 * gv_avx512_images.h
 *		Abbreviated keys in AVX-512; included by avx512.c.
 *
 * A register holds 64 bytes of abbreviated keys.  Keys of one byte fill half
 * of a register; the results of comparisons in the other half are cut off.  A
 * lane is the part of a register that holds one key.
 */
#define ALWAYS	inline __attribute__((always_inline))

/*
 * Number of registers that a block's abbreviated keys fill, and of keys in
 * each.
 */
#define REGISTERS(width)	((width) > 1 ? (width) / 2 : 1)
#define IN_REGISTER(width)	(GV_BLOCK / REGISTERS(width))

static ALWAYS AVX512 __m512i
load_abbrevs(const void *abbrevs, int r, int width)
{
	const char *from = (const char *) abbrevs + r * 64;

	return width == 1 ?
		_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) from)) :
		_mm512_loadu_si512(from);
}

/* Returns a register that has the value in each lane. */
static ALWAYS AVX512 __m512i
spread(uint64_t value, int width)
{
	return width == 1 ? _mm512_set1_epi8((char) value) :
		width == 2 ? _mm512_set1_epi16((short) value) :
		width == 4 ? _mm512_set1_epi32((int) value) :
		_mm512_set1_epi64((long long) value);
}

static ALWAYS AVX512 uint32_t
equal_abbrevs(__m512i a, __m512i b, int width)
{
	return width == 1 ? (uint32_t) _mm512_cmpeq_epu8_mask(a, b) :
		width == 2 ? (uint32_t) _mm512_cmpeq_epu16_mask(a, b) :
		width == 4 ? (uint32_t) _mm512_cmpeq_epu32_mask(a, b) :
		(uint32_t) _mm512_cmpeq_epu64_mask(a, b);
}

static ALWAYS AVX512 uint32_t
not_above(__m512i a, __m512i b, int width)
{
	return width == 1 ? (uint32_t) _mm512_cmple_epu8_mask(a, b) :
		width == 2 ? (uint32_t) _mm512_cmple_epu16_mask(a, b) :
		width == 4 ? (uint32_t) _mm512_cmple_epu32_mask(a, b) :
		(uint32_t) _mm512_cmple_epu64_mask(a, b);
}

/* Applies a test that is not GV_TEST_SET. */
static ALWAYS AVX512 uint32_t
compare_abbrevs(const GvKeyTest *test, int width, const void *abbrevs)
{
	__m512i		low = spread(test->low, width);
	__m512i		high = spread(test->high, width);
	__m512i		none = _mm512_setzero_si512();
	uint32_t	bits = 0;
	int			r;

	for (r = 0; r < REGISTERS(width); r++)
	{
		__m512i		abbrev = load_abbrevs(abbrevs, r, width);
		__m512i		both = _mm512_and_si512(abbrev, low);
		uint32_t	some = test->kind == GV_TEST_RANGE ?
		not_above(low, abbrev, width) & not_above(abbrev, high, width) :
		equal_abbrevs(both, test->kind == GV_TEST_ANY_BIT ? none : low,
					  width);

		bits |= some << r * IN_REGISTER(width);
	}
	return test->kind == GV_TEST_ANY_BIT ? ~bits : bits;
}

/*
 * Looks for abbreviated keys among few values: each value is compared with all
 * keys.
 */
static ALWAYS AVX512 uint32_t
compare_values(const void *abbrevs, int width, const uint64_t *values,
			   int32_t n)
{
	uint32_t	bits = 0;
	int32_t		v;
	int			r;

	for (r = 0; r < REGISTERS(width); r++)
	{
		__m512i		abbrev = load_abbrevs(abbrevs, r, width);
		uint32_t	some = 0;

		for (v = 0; v < n; v++)
			some |= equal_abbrevs(abbrev, spread(values[v], width), width);
		bits |= some << r * IN_REGISTER(width);
	}
	return bits;
}

/*
 * Returns which of the abbreviated keys wide [GV_BLOCK] are among values [n],
 * n >= 1.  This is a binary search for all keys side by side.  Each step
 * halves the values that are left.
 */
static AVX512 uint32_t
find_abbrevs(const uint64_t *wide, const uint64_t *values, int32_t n)
{
	__m512i		places[GV_BLOCK / 8];
	uint32_t	bits = 0;
	int			r;

	for (r = 0; r < GV_BLOCK / 8; r++)
		places[r] = _mm512_setzero_si512();
	while (n > 1)
	{
		int32_t		half = n / 2;
		__m512i		step = _mm512_set1_epi64(half);

		for (r = 0; r < GV_BLOCK / 8; r++)
		{
			__m512i		last = _mm512_i64gather_epi64(places[r],
													  values + half - 1, 8);
			__mmask8	above = _mm512_cmplt_epu64_mask(last,
														load_abbrevs(wide, r, 8));

			places[r] = _mm512_mask_add_epi64(places[r], above, places[r],
											  step);
		}
		n -= half;
	}
	for (r = 0; r < GV_BLOCK / 8; r++)
		bits |= equal_abbrevs(_mm512_i64gather_epi64(places[r], values, 8),
							  load_abbrevs(wide, r, 8), 8) << r * 8;
	return bits;
}
