/*
 * gv_neon_images.h
 *		Abbreviated keys in NEON; included by neon.c.
 *
 * A register holds 16 bytes of abbreviated keys.  If keys have `width` bytes,
 * the keys of a block fill 2 * width registers.  A lane is the part of a
 * register that holds one key.  The result of a comparison is reduced to a
 * byte for each key, and then to a bit.
 */
#define ALWAYS	inline __attribute__((always_inline))

/* Number of registers that a block's abbreviated keys fill. */
#define REGISTERS(width)	(2 * (width))

static ALWAYS uint8x16_t
load_abbrevs(const void *abbrevs, int r)
{
	return vld1q_u8((const uint8_t *) abbrevs + 16 * r);
}

/* Returns a register that has the value in each lane. */
static ALWAYS uint8x16_t
spread(uint64_t value, int width)
{
	return width == 1 ? vdupq_n_u8((uint8_t) value) :
		width == 2 ? vreinterpretq_u8_u16(vdupq_n_u16((uint16_t) value)) :
		width == 4 ? vreinterpretq_u8_u32(vdupq_n_u32((uint32_t) value)) :
		vreinterpretq_u8_u64(vdupq_n_u64(value));
}

static ALWAYS uint8x16_t
equal_abbrevs(uint8x16_t a, uint8x16_t b, int width)
{
	if (width == 1)
		return vceqq_u8(a, b);
	if (width == 2)
		return vreinterpretq_u8_u16(vceqq_u16(vreinterpretq_u16_u8(a),
											  vreinterpretq_u16_u8(b)));
	if (width == 4)
		return vreinterpretq_u8_u32(vceqq_u32(vreinterpretq_u32_u8(a),
											  vreinterpretq_u32_u8(b)));
	return vreinterpretq_u8_u64(vceqq_u64(vreinterpretq_u64_u8(a),
										  vreinterpretq_u64_u8(b)));
}

/* Returns a <= b for each lane, unsigned. */
static ALWAYS uint8x16_t
not_above(uint8x16_t a, uint8x16_t b, int width)
{
	if (width == 1)
		return vcleq_u8(a, b);
	if (width == 2)
		return vreinterpretq_u8_u16(vcleq_u16(vreinterpretq_u16_u8(a),
											  vreinterpretq_u16_u8(b)));
	if (width == 4)
		return vreinterpretq_u8_u32(vcleq_u32(vreinterpretq_u32_u8(a),
											  vreinterpretq_u32_u8(b)));
	return vreinterpretq_u8_u64(vcleq_u64(vreinterpretq_u64_u8(a),
										  vreinterpretq_u64_u8(b)));
}

/*
 * Returns a bit for each lane of places [REGISTERS(width)], which is all ones
 * or all zeros.  Drops every other byte until each key has one byte.
 */
static ALWAYS uint32_t
take_bits(uint8x16_t *places, int width)
{
	int			n;
	int			r;

	for (n = REGISTERS(width); n > 2; n /= 2)
		for (r = 0; r < n / 2; r++)
			places[r] = vuzp1q_u8(places[2 * r], places[2 * r + 1]);
	return bits_of_pair(places[0], places[1]);
}

/* Applies a test that is not GV_TEST_SET. */
static ALWAYS uint32_t
compare_abbrevs(const GvKeyTest *test, int width, const void *abbrevs)
{
	uint8x16_t	low = spread(test->low, width);
	uint8x16_t	high = spread(test->high, width);
	uint8x16_t	places[REGISTERS(8)];
	uint32_t	bits;
	int			r;

	for (r = 0; r < REGISTERS(width); r++)
	{
		uint8x16_t	abbrev = load_abbrevs(abbrevs, r);
		uint8x16_t	both = vandq_u8(abbrev, low);

		places[r] = test->kind == GV_TEST_RANGE ?
			vandq_u8(not_above(low, abbrev, width),
					 not_above(abbrev, high, width)) :
			equal_abbrevs(both, test->kind == GV_TEST_ANY_BIT ?
						  vdupq_n_u8(0) : low, width);
	}
	bits = take_bits(places, width);
	return test->kind == GV_TEST_ANY_BIT ? ~bits : bits;
}

/*
 * Looks for abbreviated keys among few values: each value is compared with all
 * keys.
 */
static ALWAYS uint32_t
compare_values(const void *abbrevs, int width, const uint64_t *values,
			   int32_t n)
{
	uint8x16_t	places[REGISTERS(8)];
	int32_t		v;
	int			r;

	for (r = 0; r < REGISTERS(width); r++)
	{
		uint8x16_t	abbrev = load_abbrevs(abbrevs, r);

		places[r] = vdupq_n_u8(0);
		for (v = 0; v < n; v++)
			places[r] = vorrq_u8(places[r],
								 equal_abbrevs(abbrev,
											   spread(values[v], width),
											   width));
	}
	return take_bits(places, width);
}

/*
 * Returns which of the abbreviated keys wide [GV_BLOCK] are among values [n],
 * n >= 1.  This is a binary search for all keys side by side.  Each step
 * halves the values that are left.  NEON has no gather, but the loads for
 * different keys do not wait for each other.
 */
static uint32_t
find_abbrevs(const uint64_t *wide, const uint64_t *values, int32_t n)
{
	const uint64_t *places[GV_BLOCK];
	uint32_t	bits = 0;
	int			i;

	for (i = 0; i < GV_BLOCK; i++)
		places[i] = values;
	while (n > 1)
	{
		int32_t		half = n / 2;

		for (i = 0; i < GV_BLOCK; i++)
			places[i] += places[i][half - 1] < wide[i] ? half : 0;
		n -= half;
	}
	for (i = 0; i < GV_BLOCK; i++)
		bits |= (uint32_t) (*places[i] == wide[i]) << i;
	return bits;
}
