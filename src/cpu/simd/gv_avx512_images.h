/*
 * gv_avx512_images.h
 *		Abbreviated keys in AVX-512: avx512.c includes it.
 *
 * A register holds 64 bytes of abbreviated keys.  Those of one byte fill half
 * of one: what is compared in the other half is cut off.
 */
#define ALWAYS	inline __attribute__((always_inline))

/* Registers of a block's abbreviated keys, and keys in each. */
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

/* A value in each place of a register. */
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

/* A test other than that of a set. */
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

/* Few values: each is compared with all abbreviated keys. */
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
 * Returns which of abbreviated keys wide [GV_BLOCK] are among values [n], n >=
 * 1.  All are looked for side by side, half of what is left at a time.
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
