/*
 * neon.c
 *		The kernels in NEON, which every arm64 has (kernels.h describes
 *		them).
 *
 * Four registers hold the sixteen partial sums of a distance or the sixteen
 * entries of a sub-quantizer; two hold a byte column of 32 postings.
 * Multiplications and additions are separate, because a fused one would round
 * differently; only estimates are fused.
 */
#include "cpu/simd/kernels.h"

#ifdef GV_HAS_NEON

#include <arm_neon.h>
#include <string.h>

#define LEVEL					/* no attribute: all processors have NEON */
#define LANES		GV_CPU_LANES
#define FOUR		4			/* floats in a register */
#define NFOURS		(LANES / FOUR)
#define CENTS		GV_CPU_TILE_CENTS
#define DRAIN		128			/* columns that 16-bit sums can take */

/* Sixteen floats, such as the partial sums of a distance. */
typedef struct Wide
{
	float32x4_t fours[NFOURS];
} Wide;

static inline Wide
zero(void)
{
	Wide		wide;
	int			h;

	for (h = 0; h < NFOURS; h++)
		wide.fours[h] = vdupq_n_f32(0.0f);
	return wide;
}

static inline Wide
load(const float *x)
{
	Wide		wide;
	int			h;

	for (h = 0; h < NFOURS; h++)
		wide.fours[h] = vld1q_f32(x + h * FOUR);
	return wide;
}

static inline void
store(float *x, Wide wide)
{
	int			h;

	for (h = 0; h < NFOURS; h++)
		vst1q_f32(x + h * FOUR, wide.fours[h]);
}

/* Adds the lanes: lane l takes lane l + 8, then l + 4, l + 2, l + 1. */
static inline float
add_lanes(Wide sums)
{
	float32x4_t low = vaddq_f32(sums.fours[0], sums.fours[2]);
	float32x4_t high = vaddq_f32(sums.fours[1], sums.fours[3]);
	float32x4_t four = vaddq_f32(low, high);

	return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

static inline void
add_terms(Wide *sums, Wide q, Wide x, bool product)
{
	int			h;

	for (h = 0; h < NFOURS; h++)
	{
		float32x4_t diff = vsubq_f32(q.fours[h], x.fours[h]);
		float32x4_t term = product ? vmulq_f32(q.fours[h], x.fours[h]) :
		vmulq_f32(diff, diff);

		sums->fours[h] = vaddq_f32(sums->fours[h], term);
	}
}

#include "cpu/simd/gv_wide.h"

static inline Wide
subtract_wide(Wide a, Wide b)
{
	int			h;

	for (h = 0; h < NFOURS; h++)
		a.fours[h] = vsubq_f32(a.fours[h], b.fours[h]);
	return a;
}

static void
residual_products(const float *x, const float *a, const float *b,
				  int32_t dims, float *sums)
{
	Wide		acc = zero();
	int32_t		i;

	for (i = 0; i + LANES <= dims; i += LANES)
		add_terms(&acc, subtract_wide(load(x + i), load(a + i)),
				  subtract_wide(load(x + i), load(b + i)), true);
	if (i < dims)
	{
		Wide		rest = load_rest(x + i, dims - i);

		add_terms(&acc, subtract_wide(rest, load_rest(a + i, dims - i)),
				  subtract_wide(rest, load_rest(b + i, dims - i)), true);
	}
	store(sums, acc);
}

/* Returns two terms in double, from the lower or the upper half of a and b. */
static inline float64x2_t
term64(float32x4_t a, float32x4_t b, bool upper, bool product)
{
	float64x2_t x = upper ? vcvt_high_f64_f32(a) :
	vcvt_f64_f32(vget_low_f32(a));
	float64x2_t y = upper ? vcvt_high_f64_f32(b) :
	vcvt_f64_f32(vget_low_f32(b));
	float64x2_t diff = vsubq_f64(x, y);

	return product ? vmulq_f64(x, y) : vmulq_f64(diff, diff);
}

/* Adds the terms of eight dimensions to sums [4]. */
static inline void
add_terms64(float64x2_t * sums, const float *a, const float *b, bool product)
{
	int			h;

	for (h = 0; h < 4; h++)
		sums[h] = vaddq_f64(sums[h],
							term64(vld1q_f32(a + h / 2 * FOUR),
								   vld1q_f32(b + h / 2 * FOUR),
								   h % 2 != 0, product));
}

static inline double
compare64(const float *a, const float *b, int32_t dims, bool product)
{
	float64x2_t sums[4];
	int32_t		i;
	int			h;

	for (h = 0; h < 4; h++)
		sums[h] = vdupq_n_f64(0.0);
	for (i = 0; i + GV_CPU_LANES64 <= dims; i += GV_CPU_LANES64)
		add_terms64(sums, a + i, b + i, product);
	if (i < dims)
	{
		size_t		bytes = sizeof(float) * (size_t) (dims - i);
		float		x[GV_CPU_LANES64] = {0};
		float		y[GV_CPU_LANES64] = {0};

		memcpy(x, a + i, bytes);
		memcpy(y, b + i, bytes);
		add_terms64(sums, x, y, product);
	}
	return vpaddd_f64(vaddq_f64(vaddq_f64(sums[0], sums[2]),
								vaddq_f64(sums[1], sums[3])));
}

/*
 * Multiplies four dimensions of one row with 4 centroids, and adds up the
 * products in the prescribed order.
 */
static inline float32x4_t
multiply_four(float32x4_t x, const float *panel)
{
	float32x4_t x0 = vmulq_laneq_f32(vld1q_f32(panel), x, 0);
	float32x4_t x1 = vmulq_laneq_f32(vld1q_f32(panel + CENTS), x, 1);
	float32x4_t x2 = vmulq_laneq_f32(vld1q_f32(panel + 2 * CENTS), x, 2);
	float32x4_t x3 = vmulq_laneq_f32(vld1q_f32(panel + 3 * CENTS), x, 3);

	return vaddq_f32(vaddq_f32(x0, x1), vaddq_f32(x2, x3));
}

/* Like multiply_four, for 8 centroids.  Adds the results to sums [2]. */
static inline void
multiply_eight(float32x4_t x, const float *panel, float32x4_t *sums)
{
	sums[0] = vaddq_f32(sums[0], multiply_four(x, panel));
	sums[1] = vaddq_f32(sums[1], multiply_four(x, panel + FOUR));
}

/*
 * Multiplies nrows <= 4 rows with 8 centroids.  The registers hold all of
 * these sums and the panel's numbers.
 */
static inline void
multiply_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	float32x4_t sums[4][2];
	int32_t		whole = len / FOUR * FOUR;
	int32_t		d;
	int			r;

	for (r = 0; r < nrows; r++)
	{
		sums[r][0] = vld1q_f32(products + r * CENTS);
		sums[r][1] = vld1q_f32(products + r * CENTS + FOUR);
	}
	for (d = 0; d < whole; d += FOUR)
		for (r = 0; r < nrows; r++)
			multiply_eight(vld1q_f32(x + (size_t) r * stride + d),
						   panel + d * CENTS, sums[r]);
	for (r = 0; whole < len && r < nrows; r++)
	{
		float		rest[FOUR] = {0};

		for (d = whole; d < len; d++)
			rest[d - whole] = x[(size_t) r * stride + d];
		multiply_eight(vld1q_f32(rest), panel + whole * CENTS, sums[r]);
	}
	for (r = 0; r < nrows; r++)
	{
		vst1q_f32(products + r * CENTS, sums[r][0]);
		vst1q_f32(products + r * CENTS + FOUR, sums[r][1]);
	}
}

/*
 * Multiplies nrows <= 4 rows with 16 centroids, and fuses multiplications and
 * additions.
 */
static inline void
estimate_some(const float *x, int32_t stride, int nrows, int32_t len,
			  const float *panel, float *products)
{
	Wide		sums[4];
	int32_t		d;
	int			r;
	int			h;

	for (r = 0; r < nrows; r++)
		sums[r] = zero();
	for (d = 0; d < len; d++)
	{
		Wide		some = load(panel + d * CENTS);

		for (r = 0; r < nrows; r++)
			for (h = 0; h < NFOURS; h++)
				sums[r].fours[h] = vfmaq_n_f32(sums[r].fours[h], some.fours[h],
											   x[(size_t) r * stride + d]);
	}
	for (r = 0; r < nrows; r++)
	{
		Wide		to = load(products + r * CENTS);

		for (h = 0; h < NFOURS; h++)
			to.fours[h] = vaddq_f32(to.fours[h], sums[r].fours[h]);
		store(products + r * CENTS, to);
	}
}

/*
 * Keeps one bit of each byte of `places`, which is all ones or all zeros.  It
 * is a different bit in each of eight consecutive bytes, so that adding these
 * up gives all eight bits.
 */
static inline uint8x16_t
weigh(uint8x16_t places)
{
	uint64x2_t	weights = vdupq_n_u64(UINT64_C(0x8040201008040201));

	return vandq_u8(places, vreinterpretq_u8_u64(weights));
}

/* Returns a bit for each of 32 bytes. */
static inline uint32_t
bits_of_pair(uint8x16_t a, uint8x16_t b)
{
	uint8x16_t	fours = vpaddq_u8(weigh(a), weigh(b));
	uint8x16_t	sums = vpaddq_u8(fours, fours);

	return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(sums, sums)), 0);
}

/*
 * Returns a bit for each of the bytes of places [4], sixteen in each register.
 */
static inline uint64_t
bits_of(const uint8x16_t *places)
{
	uint8x16_t	low = vpaddq_u8(weigh(places[0]), weigh(places[1]));
	uint8x16_t	high = vpaddq_u8(weigh(places[2]), weigh(places[3]));
	uint8x16_t	sums = vpaddq_u8(low, high);

	return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

/* Reduces sixteen lanes of 4 bytes to one byte each. */
static inline uint8x16_t
narrow(const uint32x4_t * places /* [4] */ )
{
	uint16x8_t	low = vuzp1q_u16(vreinterpretq_u16_u32(places[0]),
								 vreinterpretq_u16_u32(places[1]));
	uint16x8_t	high = vuzp1q_u16(vreinterpretq_u16_u32(places[2]),
								  vreinterpretq_u16_u32(places[3]));

	return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

static uint64_t
within(const float *squares, const float *products, float limit)
{
	uint8x16_t	above[4];
	int			c;
	int			h;

	for (c = 0; c < CENTS; c += LANES)
	{
		uint32x4_t	some[NFOURS];

		for (h = 0; h < NFOURS; h++)
		{
			float32x4_t product = vld1q_f32(products + c + h * FOUR);
			float32x4_t value = vsubq_f32(vld1q_f32(squares + c + h * FOUR),
										  vaddq_f32(product, product));

			some[h] = vcgtq_f32(value, vdupq_n_f32(limit));
		}
		above[c / LANES] = narrow(some);
	}
	return ~bits_of(above);
}

static uint64_t
below(const float *values, float limit)
{
	uint8x16_t	others[4];
	int			i;
	int			h;

	for (i = 0; i < GV_CPU_COMPARED; i += LANES)
	{
		uint32x4_t	some[NFOURS];

		for (h = 0; h < NFOURS; h++)
			some[h] = vcgeq_f32(vld1q_f32(values + i + h * FOUR),
								vdupq_n_f32(limit));
		others[i / LANES] = narrow(some);
	}
	return ~bits_of(others);
}

/*
 * Looks up the entries of sixteen postings, and adds them to the postings'
 * sums.  Entries are looked up byte by byte: planes.val[b] has byte b of all
 * entries of the sub-quantizer.
 */
static inline void
add_entries(Wide *sums, uint8x16x4_t planes, uint8x16_t codes)
{
	uint8x16_t	found[4];
	uint16x8_t	low[2];
	uint16x8_t	high[2];
	int			h;

	for (h = 0; h < 4; h++)
		found[h] = vqtbl1q_u8(planes.val[h], codes);
	low[0] = vreinterpretq_u16_u8(vzip1q_u8(found[0], found[1]));
	low[1] = vreinterpretq_u16_u8(vzip2q_u8(found[0], found[1]));
	high[0] = vreinterpretq_u16_u8(vzip1q_u8(found[2], found[3]));
	high[1] = vreinterpretq_u16_u8(vzip2q_u8(found[2], found[3]));
	for (h = 0; h < NFOURS; h++)
	{
		uint16x8_t	four = h % 2 == 0 ? vzip1q_u16(low[h / 2], high[h / 2]) :
		vzip2q_u16(low[h / 2], high[h / 2]);

		sums->fours[h] = vaddq_f32(sums->fours[h], vreinterpretq_f32_u16(four));
	}
}

/* Adds up the entries of n postings; n is GV_BLOCK or 2 * GV_BLOCK. */
static inline void
sum_some(const float *table, int32_t m, const uint8_t *codes, int32_t stride,
		 int n, float *sums)
{
	Wide		acc[2 * GV_BLOCK / LANES];
	int32_t		j;
	int			h;

	for (h = 0; h < n / LANES; h++)
		acc[h] = zero();
	for (j = 0; j < m; j += 2)
	{
		const uint8_t *entries =
		(const uint8_t *) (table + (size_t) j * GV_CODEWORDS);
		const uint8_t *column = codes + (size_t) (j / 2) * stride;
		uint8x16x4_t planes = vld4q_u8(entries);

		for (h = 0; h < n / LANES; h++)
			add_entries(&acc[h], planes,
						vandq_u8(vld1q_u8(column + h * LANES), vdupq_n_u8(15)));
		if (j + 1 == m)
			break;
		planes = vld4q_u8(entries + sizeof(float) * GV_CODEWORDS);
		for (h = 0; h < n / LANES; h++)
			add_entries(&acc[h], planes,
						vshrq_n_u8(vld1q_u8(column + h * LANES), 4));
	}
	for (h = 0; h < n / LANES; h++)
		store(sums + h * LANES, acc[h]);
}

/*
 * Adds the entries of one column to 16-bit sums.  The bytes for its low
 * nibbles are at `bytes`, and those for its high nibbles 64 bytes further on.
 */
static inline void
add_column(uint16x8_t * sums /* [4] */ , const uint8_t *column,
		   const uint8_t *bytes)
{
	uint8x16_t	lower = vld1q_u8(bytes);
	uint8x16_t	upper = vld1q_u8(bytes + 64);
	int			h;

	for (h = 0; h < 2; h++)
	{
		uint8x16_t	codes = vld1q_u8(column + 16 * h);
		uint8x16_t	a = vqtbl1q_u8(lower, vandq_u8(codes, vdupq_n_u8(15)));
		uint8x16_t	b = vqtbl1q_u8(upper, vshrq_n_u8(codes, 4));

		sums[2 * h] = vaddq_u16(sums[2 * h], vaddl_u8(vget_low_u8(a),
													  vget_low_u8(b)));
		sums[2 * h + 1] = vaddq_u16(sums[2 * h + 1], vaddl_high_u8(a, b));
	}
}

/* Returns which of 4 sums are above their postings' limits. */
static inline uint32x4_t
compare_sums(uint32x4_t total, const float *t, const GvCut *cut)
{
	float32x4_t start = vaddq_f32(vdupq_n_f32(cut->base), vld1q_f32(t));
	float32x4_t rest = vsubq_f32(vdupq_n_f32(cut->reach), start);

	return vcgtq_f32(vcvtq_f32_u32(total), vmulq_n_f32(rest, cut->inverse));
}

static uint32_t
filter(const uint8_t *bytes, int32_t m, const uint8_t *codes, const float *t,
	   const GvCut *cut, const uint8_t *ahead)
{
	int32_t		ncolumns = (m + 1) / 2;
	uint32x4_t	total[GV_BLOCK / FOUR];
	int32_t		p = 0;
	int			h;

	for (h = 0; h < GV_BLOCK / FOUR; h++)
		total[h] = vdupq_n_u32(0);
	while (p < ncolumns)
	{
		uint16x8_t	sums[4];
		int32_t		end = ncolumns - p < DRAIN ? ncolumns : p + DRAIN;

		for (h = 0; h < 4; h++)
			sums[h] = vdupq_n_u16(0);
		for (; p + 2 <= end; p += 2)
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_column(sums, codes + p * GV_BLOCK, bytes + p * 64);
			add_column(sums, codes + p * GV_BLOCK + GV_BLOCK,
					   bytes + p * 64 + 32);
		}
		if (p < end)			/* the last column has no partner */
		{
			gv_fetch(ahead + p * GV_BLOCK);
			add_column(sums, codes + p * GV_BLOCK,
					   bytes + gv_filter_place(2 * p));
			p++;
		}
		for (h = 0; h < 4; h++)
		{
			total[2 * h] = vaddw_u16(total[2 * h], vget_low_u16(sums[h]));
			total[2 * h + 1] = vaddw_high_u16(total[2 * h + 1], sums[h]);
		}
	}
	for (h = 0; h < GV_BLOCK / FOUR; h++)
		total[h] = compare_sums(total[h], t + h * FOUR, cut);
	return ~bits_of_pair(narrow(total), narrow(total + 4));
}

/* Returns sixteen elements of the x^ of a refine record. */
static inline Wide
decode(const GvRefine *record, const uint8_t *codes)
{
	uint8x16_t	bytes = vld1q_u8(codes);
	uint16x8_t	halves[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
	Wide		wide;
	int			h;

	for (h = 0; h < NFOURS; h++)
	{
		uint32x4_t	four = h % 2 == 0 ? vmovl_u16(vget_low_u16(halves[h / 2])) :
		vmovl_high_u16(halves[h / 2]);

		wide.fours[h] = vaddq_f32(vdupq_n_f32(record->min),
								  vmulq_n_f32(vcvtq_f32_u32(four),
											  record->step));
	}
	return wide;
}

static inline void
add_record(Wide *acc, Wide *size, Wide q, Wide x)
{
	int			h;

	for (h = 0; h < NFOURS; h++)
	{
		float32x4_t term = vmulq_f32(q.fours[h], x.fours[h]);

		acc->fours[h] = vaddq_f32(acc->fours[h], term);
		size->fours[h] = vaddq_f32(size->fours[h], vabsq_f32(term));
	}
}

/* Returns sixteen elements of the x^ of a half-precision record. */
static inline Wide
from_half(const uint16_t *halves)
{
	Wide		wide;
	int			h;

	for (h = 0; h < NFOURS; h++)
	{
		uint16x4_t	four = vld1_u16(halves + h * FOUR);

		wide.fours[h] = vcvt_f32_f16(vreinterpret_f16_u16(four));
	}
	return wide;
}

#define KERNELS		gv_neon_kernels
#define AT_ONCE		(2 * FOUR)	/* centroids of multiply_some */
#define ESTIMATE_AT_ONCE	LANES
#define SUM_AT_ONCE	(2 * GV_BLOCK)
#include "cpu/simd/gv_wide_records.h"
#include "cpu/simd/gv_neon_table.h"
#include "cpu/simd/gv_neon_images.h"
#include "cpu/simd/gv_level.h"

#endif							/* GV_HAS_NEON */
