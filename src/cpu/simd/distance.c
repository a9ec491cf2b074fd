/*
 * distance.c
 *		Distances between two vectors, half precision, the filter of a look-up
 *		table, and the choice of the kernels.
 *
 * Distances add up numbers in one fixed order, which is that of the kernels.
 */
#include <math.h>
#include <string.h>

#include "cpu/simd/kernels.h"
#include "engine/gv_call.h"
#include "engine/gv_set.h"

#define LANES64	GV_CPU_LANES64

/*
 * The loop has no branch for a value, so that compilers use vector
 * instructions.
 */
bool
gv_is_finite(const float *x, int64_t n)
{
	uint32_t	bad = 0;
	int64_t		i;

	for (i = 0; i < n; i++)
		bad |= !(fabsf(x[i]) <= FLT_MAX);
	return bad == 0;
}

float
gv_cpu_dot(const float *a, const float *b, int32_t dims)
{
	float		product;

	gv_kernels->dots(a, b, 1, dims, &product);
	return product;
}

float
gv_cpu_sqdist(const float *a, const float *b, int32_t dims)
{
	float		square;

	gv_kernels->sqdists(a, b, 1, dims, &square);
	return square;
}

double
gv_distance_l2(const float *a, const float *b, int32_t dims)
{
	return sqrt(gv_kernels->sqdist64(a, b, dims));
}

double
gv_distance_ip(const float *a, const float *b, int32_t dims)
{
	return -gv_kernels->dot64(a, b, dims);
}

double
gv_square(const float *a, int32_t dims)
{
	return gv_kernels->dot64(a, a, dims);
}

/*
 * Returns the distance that belongs to a cosine or correlation, or NaN if the
 * argument is NaN.
 */
static double
distance_of(double cosine)
{
	cosine = cosine > 1.0 ? 1.0 : cosine;
	return 1.0 - (cosine < -1.0 ? -1.0 : cosine);
}

/*
 * Returns the cosine distance of raw vectors, 0 to 2, or NaN if either has
 * length zero.  Squared lengths of finite floats neither overflow nor vanish
 * in double, and neither does the product of two squared lengths.  With the
 * root of this product, a vector has distance 0 from itself.
 */
double
gv_distance_cosine_of(const float *a, double a_square, const float *b,
					  double b_square, int32_t dims)
{
	return distance_of(gv_kernels->dot64(a, b, dims) /
					   sqrt(a_square * b_square));
}

double
gv_distance_cosine(const float *a, const float *b, int32_t dims)
{
	return gv_distance_cosine_of(a, gv_square(a, dims), b, gv_square(b, dims),
								 dims);
}

double
gv_cpu_mean64(const float *a, int32_t dims)
{
	double		sums[LANES64] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		for (l = 0; l < LANES64; l++)
			sums[l] += (double) a[i + l];
	for (l = 0; i < dims; i++, l++)
		sums[l] += (double) a[i];
	return gv_add_lanes64(sums) / dims;
}

double
gv_cpu_centered_dot64(const float *a, double a_mean, const float *b,
					  double b_mean, int32_t dims)
{
	double		sums[LANES64] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		for (l = 0; l < LANES64; l++)
			sums[l] += ((double) a[i + l] - a_mean) *
				((double) b[i + l] - b_mean);
	for (l = 0; i < dims; i++, l++)
		sums[l] += ((double) a[i] - a_mean) * ((double) b[i] - b_mean);
	return gv_add_lanes64(sums);
}

/*
 * If all numbers of a vector are equal, the result is 0 / 0, which is NaN.
 * Their mean is then exactly that number, because their sums are exact in
 * double.
 */
double
gv_distance_pearson(const float *a, const float *b, int32_t dims)
{
	double		a_mean = gv_cpu_mean64(a, dims);
	double		b_mean = gv_cpu_mean64(b, dims);
	double		product = gv_cpu_centered_dot64(a, a_mean, a, a_mean, dims) *
	gv_cpu_centered_dot64(b, b_mean, b, b_mean, dims);

	return distance_of(gv_cpu_centered_dot64(a, a_mean, b, b_mean, dims) /
					   sqrt(product));
}

double
gv_set_distance(GvSetMetric metric, const float *a, const float *b,
				int32_t dims)
{
	switch (metric)
	{
		case GV_SET_L2:
			return gv_distance_l2(a, b, dims);
		case GV_SET_IP:
			return gv_distance_ip(a, b, dims);
		case GV_SET_COSINE:
			return gv_distance_cosine(a, b, dims);
		case GV_SET_PEARSON:
			return gv_distance_pearson(a, b, dims);
	}
	return 0.0;
}

/* ----
 * Conversion of float32 to half precision and back, by integer
 * arithmetic.
 */

#define HALF_MAX	0x7BFF		/* 65504, the largest finite value */

static uint16_t
to_half(float x)
{
	uint32_t	bits;
	uint32_t	sign;
	uint32_t	value;
	uint32_t	half;
	uint32_t	rest;
	int			shift;

	memcpy(&bits, &x, sizeof(bits));
	sign = bits >> 16 & 0x8000;
	value = bits & 0x7FFFFFFF;
	if (value >= 0x47800000)	/* from 65536 on; also infinity and NaN */
		return (uint16_t) (sign | HALF_MAX);
	if (value < 0x33000000)		/* below half of the smallest value */
		return (uint16_t) sign;

	/* drop 13 bits of the mantissa, or more if the result is subnormal */
	if (value >= 0x38800000)
	{
		shift = 13;
		value -= 0x38000000;	/* 112 << 23, the difference of the biases */
	}
	else
	{
		shift = 126 - (int) (value >> 23);
		value = (value & 0x7FFFFF) | 0x800000;
	}
	half = value >> shift;
	rest = value & ((UINT32_C(1) << shift) - 1);
	if (rest > UINT32_C(1) << (shift - 1) ||
		(rest == UINT32_C(1) << (shift - 1) && (half & 1) != 0))
		half++;
	return (uint16_t) (sign | (half < HALF_MAX ? half : HALF_MAX));
}

static float
from_half(uint16_t half)
{
	uint32_t	sign = (uint32_t) (half & 0x8000) << 16;
	uint32_t	value = half & 0x7FFF;
	uint32_t	bits;
	float		x;

	if (value < 0x400)			/* subnormal: value * 2^-24 */
	{
		x = (float) value * (1.0f / 16777216.0f);
		return sign != 0 ? -x : x;
	}
	bits = sign | ((value << 13) + 0x38000000);
	memcpy(&x, &bits, sizeof(x));
	return x;
}

void
gv_to_half(const float *x, int64_t n, uint16_t *half)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		half[i] = to_half(x[i]);
}

void
gv_from_half(const uint16_t *half, int64_t n, float *x)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		x[i] = from_half(half[i]);
}

/* ----
 * A query's look-up table, and its filter: a table in bytes, which proves for
 * most postings that they are not among the best.
 *
 * The kernels make both (shared.h).  A posting's S is (base + T) + sum, where
 * sum adds up the posting's entries a of the table.  Most postings of a long
 * list are far above the worst score that is kept.  For these postings a lower
 * bound of the sum is enough.  The bound follows from a sum of bytes, because
 * shuffles look up 32 or 64 bytes at once.
 *
 * The bound.  Let lo_j be the least entry of sub-quantizer j, and let all
 * sub-quantizers have the same step.  Byte q stands for lo_j + step * q and is
 * rounded down, so that
 *	a >= lo_j + step * q - 8 u A_j,  u = 2^-24,
 * where A_j is the largest magnitude of an entry of j; the last term is for
 * the fp32 arithmetic that finds q.  m entries added up in fp32 are off by
 * less than (m + 32) u M, where M is the sum of all A_j, even for the largest
 * m, GV_MAX_DIMS.  So with lift = (m + 64) u M - sum of lo_j, the sum is at
 * least step * (sum of q) - lift.
 *
 * A posting may be left out if S is above the worst useful score w.  Rounding
 * is monotonic, so this is true if (base + T) + sum, unrounded, is at least
 * w', the float after w:
 *	step * (sum of q) >= reach - (base + T),  reach >= w' + lift
 * The difference is computed in fp32 (relative error u) and multiplied by an
 * inverse of the step that is slightly too large.  The sum of bytes, which is
 * exact as a float because it is below 2^24, must be above the product.
 */

/* Returns the bytes of a table for gv_table. */
size_t
gv_table_bytes(int32_t m)
{
	return (size_t) m * GV_CODEWORDS * sizeof(float) + sizeof(GvFilter) +
		gv_filter_place((m + 3) / 4 * 4) + GV_ALIGN;
}

GvStatus
gv_table(const GvModel *model, const float *query /* [dims] */ ,
		 float *table /* [m][GV_CODEWORDS], and the filter */ )
{
	GV_CALL(gv_engine_calls, gv_valid_model(model) &&
			model->codebooks != NULL && query != NULL && table != NULL);
	gv_kernels->table(model, query, table);
	return GV_OK;
}

/*
 * Returns the filter, which is behind the entries and is aligned even if the
 * entries are not.
 */
const GvFilter *
gv_filter_of(const float *table, int32_t m)
{
	uintptr_t	end = (uintptr_t) (table + (size_t) m * GV_CODEWORDS);

	return (const GvFilter *) ((end + GV_ALIGN - 1) / GV_ALIGN * GV_ALIGN);
}

/*
 * Sets *cut, except cut->base, so that the filter leaves out postings above
 * `score`.  Returns false if the filter cannot be used for this score.
 */
bool
gv_filter_cut(const GvFilter *filter, float score, GvCut *cut)
{
	double		worst = score;
	double		lift = filter->lift;

	if (!filter->usable || !(fabs(worst) < GV_FILTER_HUGE))
		return false;
	cut->reach = (float) (worst + lift + FLT_MIN +
						  4.0 * GV_FILTER_UNIT * (fabs(worst) + fabs(lift)));
	cut->inverse = (float) ((1.0 + 16.0 * GV_FILTER_UNIT) / filter->step);
	return true;
}

/* ----
 * The choice among the tables of kernels.
 *
 * A processor never executes instructions that it lacks.  The functions that
 * have the instructions of a level are called only through the table of that
 * level.  The table is used only if the processor has the instructions and the
 * system saves the registers of the level.
 */

#ifdef __x86_64__
#include <cpuid.h>
#endif

const GvKernels *gv_kernels = &gv_portable_kernels;

#ifdef __x86_64__
/*
 * Returns whether the processor converts half precision to floats.  For clang,
 * __builtin_cpu_supports has no name for this feature.
 */
static bool
has_f16c(void)
{
	unsigned int eax;
	unsigned int ebx;
	unsigned int ecx = 0;
	unsigned int edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
		(ecx & bit_F16C) != 0;
}
#endif

/* Returns the kernels of a level, or NULL if the processor lacks the level. */
static const GvKernels *
kernels_of(GvSimd level)
{
#ifdef __x86_64__
	__builtin_cpu_init();
	if (level == GV_SIMD_AVX512 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw"))
		return &gv_avx512_kernels;
	if (level == GV_SIMD_AVX2 && __builtin_cpu_supports("avx2") &&
		__builtin_cpu_supports("fma") && has_f16c())
		return &gv_avx2_kernels;
#endif
#ifdef GV_HAS_NEON
	if (level == GV_SIMD_NEON)
		return &gv_neon_kernels;
#endif
	return level == GV_SIMD_PORTABLE ? &gv_portable_kernels : NULL;
}

const char *
gv_simd_name(GvSimd level)
{
	static const char *const names[GV_NSIMD] = {
		[GV_SIMD_AUTO] = "auto",
		[GV_SIMD_PORTABLE] = "portable",
		[GV_SIMD_AVX2] = "avx2",
		[GV_SIMD_AVX512] = "avx512",
		[GV_SIMD_NEON] = "neon"
	};

	return names[level];
}

bool
gv_simd_has(GvSimd level)
{
	return level == GV_SIMD_AUTO || kernels_of(level) != NULL;
}

void
gv_simd_use(GvSimd level)
{
	const GvKernels *kernels = NULL;

	if (level != GV_SIMD_AUTO)
		kernels = kernels_of(level);
	else
		for (level = GV_NSIMD - 1; kernels == NULL; level--)
			kernels = kernels_of(level);
	if (kernels != NULL)
		gv_kernels = kernels;
}
