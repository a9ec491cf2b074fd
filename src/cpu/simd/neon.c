/*
 * neon.c
 *		The primitives of the kernels in NEON, which every arm64 has.
 *		vectors.h says what the primitives do, and body.h has the kernels.
 *
 * Four registers hold the sixteen partial sums of a distance or the sixteen
 * entries of a sub-quantizer.  Two registers hold a byte column of 32
 * postings, or 32 bytes of abbreviated keys.  Results of comparisons are
 * reduced to a byte for each value, and then to a bit.
 */
#include "cpu/simd/kernels.h"

#ifdef GV_HAS_NEON

#include <arm_neon.h>

#define LEVEL					/* no attribute: all processors have NEON */
#define KERNELS			gv_neon_kernels
#define REG				4
#define ESTIMATE_REGS	4
#define SUM_AT_ONCE		(2 * GV_BLOCK)

typedef float32x4_t Reg;
typedef uint8x16_t Keys;
typedef uint8x16_t Mask;
typedef uint8x16x4_t Entries;

/* Masks of at most 64 floats, and masks of a block's keys. */
typedef struct Comparisons
{
	uint32x4_t	masks[16];
} Comparisons;

typedef struct KeyBits
{
	uint8x16_t	masks[16];
} KeyBits;

#include "cpu/simd/vectors.h"

static ALWAYS LEVEL float
add_lanes(Wide sums)
{
	float32x4_t four = (sums.part[0] + sums.part[2]) +
	(sums.part[1] + sums.part[3]);

	return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

static ALWAYS LEVEL Reg
fuse(Reg x, Reg y, Reg sum)
{
	return vfmaq_f32(sum, x, y);
}

/*
 * Keeps one bit of each byte of `places`, whose bytes are all ones or all
 * zeros.  A different bit is kept in each of eight consecutive bytes, so that
 * the sum of the eight bytes has all eight bits.
 */
static ALWAYS LEVEL uint8x16_t
weigh(uint8x16_t places)
{
	uint64x2_t	weights = vdupq_n_u64(UINT64_C(0x8040201008040201));

	return vandq_u8(places, vreinterpretq_u8_u64(weights));
}

/* Returns a bit for each of 32 bytes. */
static ALWAYS LEVEL uint32_t
bits_of_pair(uint8x16_t a, uint8x16_t b)
{
	uint8x16_t	fours = vpaddq_u8(weigh(a), weigh(b));
	uint8x16_t	sums = vpaddq_u8(fours, fours);

	return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(sums, sums)), 0);
}

/* Reduces sixteen lanes of 4 bytes to one byte each. */
static ALWAYS LEVEL uint8x16_t
narrow(const uint32x4_t * places /* [4] */ )
{
	uint16x8_t	low = vuzp1q_u16(vreinterpretq_u16_u32(places[0]),
								 vreinterpretq_u16_u32(places[1]));
	uint16x8_t	high = vuzp1q_u16(vreinterpretq_u16_u32(places[2]),
								  vreinterpretq_u16_u32(places[3]));

	return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

static ALWAYS LEVEL void
add_comparison(Comparisons *found, Reg value, Reg limit, int h, bool at)
{
	found->masks[h] = at ? vcgeq_f32(value, limit) : vcgtq_f32(value, limit);
}

static ALWAYS LEVEL uint64_t
take_comparisons(Comparisons *found, int n)
{
	uint64_t	bits = 0;
	int			h;

	if (n == PARTS)
		return (uint16_t) ~bits_of_pair(narrow(found->masks),
										vdupq_n_u8(0));
	for (h = 0; h < n; h += BLOCK_REGS)
		bits |= (uint64_t) (uint32_t) ~bits_of_pair(narrow(found->masks + h),
													narrow(found->masks + h + 4))
			<< h * REG;
	return bits;
}

static ALWAYS LEVEL Reg64
load_doubles(const float *x)
{
	return vcvt_f64_f32(vld1_f32(x));
}

static ALWAYS LEVEL Wide
load_bytes(const uint8_t *bytes)
{
	uint8x16_t	all = vld1q_u8(bytes);
	uint16x8_t	halves[2] = {vmovl_u8(vget_low_u8(all)), vmovl_high_u8(all)};
	Wide		wide;
	int			h;

	for (h = 0; h < PARTS; h++)
		wide.part[h] = vcvtq_f32_u32(h % 2 == 0 ?
									 vmovl_u16(vget_low_u16(halves[h / 2])) :
									 vmovl_high_u16(halves[h / 2]));
	return wide;
}

static ALWAYS LEVEL Wide
load_halves(const uint16_t *halves)
{
	Wide		wide;
	int			h;

	for (h = 0; h < PARTS; h++)
		wide.part[h] =
			vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + h * REG)));
	return wide;
}

static ALWAYS LEVEL Wide
load_words(const float *words, int32_t dims, int32_t d)
{
	Wide		wide;
	int			h;

	if (dims == 1)
		return load(words);
	for (h = 0; h < PARTS; h++)
	{
		const float *from = words + (size_t) h * REG * dims + d;
		float32x4_t four = vld1q_dup_f32(from);

		four = vld1q_lane_f32(from + dims, four, 1);
		four = vld1q_lane_f32(from + 2 * dims, four, 2);
		wide.part[h] = vld1q_lane_f32(from + 3 * dims, four, 3);
	}
	return wide;
}

static ALWAYS LEVEL void
load_pairs(const float *words, Wide *first, Wide *second)
{
	int			h;

	for (h = 0; h < PARTS; h++)
	{
		float32x4x2_t pairs = vld2q_f32(words + h * 2 * REG);

		first->part[h] = pairs.val[0];
		second->part[h] = pairs.val[1];
	}
}

static ALWAYS LEVEL Reg
least_lane(Wide x)
{
	float32x4_t least = vminq_f32(vminq_f32(x.part[0], x.part[1]),
								  vminq_f32(x.part[2], x.part[3]));

	return vdupq_n_f32(vminvq_f32(least));
}

/* Returns in each lane the lesser of a and b, or a if they do not compare. */
static ALWAYS LEVEL float32x4_t
lesser(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcltq_f32(b, a), b, a);
}

static ALWAYS LEVEL float32x4_t
greater(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcgtq_f32(b, a), b, a);
}

static ALWAYS LEVEL void
find_range(const float *entries, float *least, float *most)
{
	Wide		wide = load(entries);
	float32x4_t low = lesser(lesser(wide.part[0], wide.part[2]),
							 lesser(wide.part[1], wide.part[3]));
	float32x4_t high = greater(greater(wide.part[0], wide.part[2]),
							   greater(wide.part[1], wide.part[3]));

	low = lesser(low, vextq_f32(low, low, 2));
	high = greater(high, vextq_f32(high, high, 2));
	*least = vgetq_lane_f32(lesser(low, vextq_f32(low, low, 1)), 0);
	*most = vgetq_lane_f32(greater(high, vextq_f32(high, high, 1)), 0);
}

/*
 * The conversion turns negative numbers and NaN into 0, and narrowing limits
 * the levels to 255.
 */
static ALWAYS LEVEL void
put_bytes(const float *entries, float least, float inverse, uint8_t *bytes)
{
	Wide		wide = load(entries);
	uint16x4_t	levels[PARTS];
	uint8x8_t	low;
	uint8x8_t	high;
	int			h;

	for (h = 0; h < PARTS; h++)
		levels[h] = vqmovn_u32(vcvtq_u32_f32((wide.part[h] - least) * inverse));
	low = vqmovn_u16(vcombine_u16(levels[0], levels[1]));
	high = vqmovn_u16(vcombine_u16(levels[2], levels[3]));
	vst1q_u8(bytes, vcombine_u8(low, high));
	vst1q_u8(bytes + GV_CODEWORDS, vcombine_u8(low, high));
}

/* Gathers sixteen postings at a time.  One look-up covers a whole column. */
static LEVEL void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	for (; wanted != 0; gathered += 16)
	{
		uint64_t	places[2];
		uint8x16_t	numbers;
		int32_t		p;

		gv_take_places(&wanted, places);
		numbers = vcombine_u8(vcreate_u8(places[0]), vcreate_u8(places[1]));
		for (p = 0; p < code_bytes; p++)
		{
			const uint8_t *column = codes + (size_t) p * GV_BLOCK;
			uint8x16x2_t both = {{vld1q_u8(column), vld1q_u8(column + 16)}};

			vst1q_u8(gathered + (size_t) p * GV_GATHERED_STRIDE,
					 vqtbl2q_u8(both, numbers));
		}
	}
}

/* Register b of the result has byte b of all entries. */
static ALWAYS LEVEL Entries
load_entries(const float *entries)
{
	return vld4q_u8((const uint8_t *) entries);
}

/* Entries are looked up byte by byte. */
static ALWAYS LEVEL void
add_entries(Reg *sums, Entries entries, const uint8_t *codes, bool upper)
{
	uint8x16_t	all = vld1q_u8(codes);
	uint8x16_t	nibbles = upper ? vshrq_n_u8(all, 4) :
	vandq_u8(all, vdupq_n_u8(15));
	uint8x16_t	found[4];
	uint16x8_t	low[2];
	uint16x8_t	high[2];
	int			h;

	for (h = 0; h < 4; h++)
		found[h] = vqtbl1q_u8(entries.val[h], nibbles);
	low[0] = vreinterpretq_u16_u8(vzip1q_u8(found[0], found[1]));
	low[1] = vreinterpretq_u16_u8(vzip2q_u8(found[0], found[1]));
	high[0] = vreinterpretq_u16_u8(vzip1q_u8(found[2], found[3]));
	high[1] = vreinterpretq_u16_u8(vzip2q_u8(found[2], found[3]));
	for (h = 0; h < PARTS; h++)
		sums[h] += vreinterpretq_f32_u16(h % 2 == 0 ?
										 vzip1q_u16(low[h / 2], high[h / 2]) :
										 vzip2q_u16(low[h / 2], high[h / 2]));
}

/* sums[h] has the sums of postings 8 h .. 8 h + 7. */
static ALWAYS LEVEL void
add_columns(Keys16 *sums, const uint8_t *columns, int n, const uint8_t *bytes)
{
	int			c;
	int			h;

	for (c = 0; c < n * GV_BLOCK; c += GV_BLOCK)
	{
		uint8x16_t	lower = vld1q_u8(bytes + c);
		uint8x16_t	upper = vld1q_u8(bytes + c + 64);

		for (h = 0; h < 2; h++)
		{
			uint8x16_t	codes = vld1q_u8(columns + c + 16 * h);
			uint8x16_t	a = vqtbl1q_u8(lower, vandq_u8(codes, vdupq_n_u8(15)));
			uint8x16_t	b = vqtbl1q_u8(upper, vshrq_n_u8(codes, 4));

			sums[2 * h] += vaddl_u8(vget_low_u8(a), vget_low_u8(b));
			sums[2 * h + 1] += vaddl_high_u8(a, b);
		}
	}
}

static ALWAYS LEVEL void
drain(const Keys16 *sums, RegInt *total)
{
	int			h;

	for (h = 0; h < 4; h++)
	{
		total[2 * h] += (RegInt) vmovl_u16(vget_low_u16(sums[h]));
		total[2 * h + 1] += (RegInt) vmovl_high_u16(sums[h]);
	}
}

static ALWAYS LEVEL Mask
not_above(Keys a, Keys b, int width)
{
	return width == 1 ? (Mask) ((Keys8) a <= (Keys8) b) :
		width == 2 ? (Mask) ((Keys16) a <= (Keys16) b) :
		width == 4 ? (Mask) ((Keys32) a <= (Keys32) b) :
		(Mask) ((Keys64) a <= (Keys64) b);
}

static ALWAYS LEVEL void
keep_mask(KeyBits *bits, Mask mask, int r, int width)
{
	bits->masks[r] = mask;
}

/* Drops every other byte until each key has one byte. */
static ALWAYS LEVEL uint32_t
take_bits(KeyBits *bits, int width)
{
	uint8x16_t *masks = bits->masks;
	int			n;
	int			r;

	for (n = KEY_REGS(width); n > 2; n /= 2)
		for (r = 0; r < n / 2; r++)
			masks[r] = vuzp1q_u8(masks[2 * r], masks[2 * r + 1]);
	return bits_of_pair(masks[0], masks[1]);
}

/*
 * NEON has no gather, but the loads for different keys do not wait for each
 * other.
 */
static OUTSIDE LEVEL uint32_t
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

#include "cpu/simd/body.h"

#endif							/* GV_HAS_NEON */
