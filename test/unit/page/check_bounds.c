/*
 * check_bounds.c
 *		Tests of IvfpqDistanceBounds without a server: what operators return
 *		that sum in fp32, in any order, lies within, and the bounds are as
 *		close as refinerecord.c says.  Compiled with the server's headers,
 *		linked with refinerecord.c, of which the linker leaves out all that
 *		needs a server.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "am/search/search.h"
#include "engine/gv_set.h"

#undef printf					/* the server's is not linked */

#define MOST_LANES	16

/* Shorter vectors by cosine are not bounded (IvfpqIsBoundable). */
#define LEAST_SQUARE	(64.0 * FLT_MIN)

static long passed;
static long failed;

static void
check(bool ok, const char *what, GvMetric metric, int dims, int kind)
{
	if (ok)
		passed++;
	else if (failed++ < 20)
		printf("FAILED: %s, metric %d dims %d kind %d\n", what, (int) metric,
			   dims, kind);
}

static uint64
draw(void)
{
	static uint64 random = 0x9E3779B97F4A7C15;

	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	return random * UINT64_C(0x2545F4914F6CDD1D);
}

/* Uniform in [-1, 1). */
static float
draw_float(void)
{
	return (float) ((double) (draw() >> 11) / (1LL << 52) - 1);
}

/*
 * Orders in which operators add: forward, backward, by lanes that are added at
 * the end, and by halves.
 */
typedef struct Order
{
	int			lanes;			/* 0: by halves */
	bool		backward;
	bool		fused;			/* a product is added without being rounded */
} Order;

static const Order orders[] = {
	{1, false, false}, {1, true, false}, {4, false, false}, {8, false, false},
	{16, false, false}, {8, true, false}, {0, false, false},
	{1, false, true}, {8, false, true}, {16, true, true}
};

/* A term of a sum: a product, or the square of a difference. */
static inline float
left_of(const float *a, const float *b, int i, bool squared)
{
	return squared ? a[i] - b[i] : a[i];
}

static float
add_halves(const float *a, const float *b, int n, bool squared)
{
	float		left = left_of(a, b, 0, squared);

	if (n == 1)
		return left * (squared ? left : b[0]);
	return add_halves(a, b, n / 2, squared) +
		add_halves(a + n / 2, b + n / 2, n - n / 2, squared);
}

/* The sum of a_i b_i, or of (a_i - b_i)^2. */
static float
add(const Order *order, const float *a, const float *b, int n, bool squared)
{
	volatile float sums[MOST_LANES] = {0};
	volatile float sum = 0;

	if (order->lanes == 0)
		return add_halves(a, b, n, squared);
	for (int k = 0; k < n; k++)
	{
		int			i = order->backward ? n - 1 - k : k;
		float		left = left_of(a, b, i, squared);
		float		right = squared ? left : b[i];
		volatile float product = left * right;

		sums[k % order->lanes] = order->fused ?
			fmaf(left, right, sums[k % order->lanes]) :
			sums[k % order->lanes] + product;
	}
	for (int l = 0; l < order->lanes; l++)
		sum += sums[l];
	return sum;
}

/* What pgvector's operator returns, if it adds in this order. */
static double
operator_result(GvMetric metric, const Order *order, const float *a,
				const float *b, int dims)
{
	double		cosine;

	if (metric == GV_L2)
		return sqrt((double) add(order, a, b, dims, true));
	if (metric == GV_IP)
		return -(double) add(order, a, b, dims, false);
	cosine = (double) add(order, a, b, dims, false) /
		sqrt((double) add(order, a, a, dims, false) *
			 (double) add(order, b, b, dims, false));
	return 1 - Max(-1, Min(1, cosine));
}

/*
 * Draws two vectors: at random, near each other, of the same sign, of
 * alternating signs that cancel, of very different elements, equal, opposite,
 * short, long, with squares that underflow; `half` rounds them to half precision.
 */
#define NKINDS	10

static void
draw_pair(int kind, bool half, float *a, float *b, int dims)
{
	for (int i = 0; i < dims; i++)
	{
		float		x = draw_float();

		a[i] = x;
		b[i] = draw_float();
		switch (kind)
		{
			case 1:
				b[i] = x * (1 + 1e-3f * b[i]);
				break;
			case 2:
				a[i] = 1 + fabsf(x);
				b[i] = 1 + fabsf(b[i]);
				break;
			case 3:
				a[i] = 1 + 1e-4f * x;
				b[i] = i % 2 > 0 ? 1 : -1;
				break;
			case 4:
				a[i] = x * powf(2, (float) (draw() % 24) - 12);
				b[i] *= powf(2, (float) (draw() % 24) - 12);
				break;
			case 5:
				b[i] = x;
				break;
			case 6:
				b[i] = -x;
				break;
			case 7:
				a[i] = x * (half ? 1e-6f : 1e-15f);
				b[i] *= half ? 1e-6f : 1e-15f;
				break;
			case 8:
				a[i] = x * (half ? 6e4f : 1e15f);
				b[i] *= half ? 6e4f : 1e15f;
				break;
			case 9:
				a[i] = x * 1e-21f;
				b[i] *= 1e-21f;
				break;
		}
	}
	if (half)
	{
		uint16	   *codes = malloc(2 * dims);

		gv_to_half(a, dims, codes);
		gv_from_half(codes, dims, a);
		gv_to_half(b, dims, codes);
		gv_from_half(codes, dims, b);
		free(codes);
	}
}

/* Operators return nothing beyond the bounds, which are close. */
static void
check_pair(GvMetric metric, int kind, const float *a, const float *b, int dims)
{
	GvModel		gv = {.metric = metric,.dims = dims,.scale = 1};
	double		distance = gv_set_distance((GvSetMetric) metric, a, b, dims);
	double		slack = (dims + 64) / 16777216.0;
	double		magnitude = 0;
	double		width;
	IvfpqRowBounds bounds;

	if (metric == GV_COSINE && (-gv_distance_ip(a, a, dims) <= LEAST_SQUARE ||
								-gv_distance_ip(b, b, dims) <= LEAST_SQUARE))
		return;
	for (int i = 0; i < dims; i++)
		magnitude += fabs((double) a[i] * b[i]);
	magnitude = nextafterf((float) magnitude, INFINITY);
	bounds = IvfpqDistanceBounds(&gv, distance, (float) magnitude, true);
	check(bounds.least == distance && bounds.most == distance,
		  "the operator is exact", metric, dims, kind);
	bounds = IvfpqDistanceBounds(&gv, distance, (float) magnitude, false);
	width = metric == GV_L2 ? distance * slack / 2 + 1e-20 :
		metric == GV_IP ? magnitude * slack + 1e-37 : 2.5 * slack;
	check(bounds.least <= distance && distance <= bounds.most &&
		  bounds.most - bounds.least <= 2 * width * (1 + 1e-9), "bounds are close",
		  metric, dims, kind);
	for (int o = 0; o < (int) lengthof(orders); o++)
	{
		double		result = operator_result(metric, &orders[o], a, b, dims);

		check(bounds.least <= result && result <= bounds.most,
			  "the operator's result is within", metric, dims, kind);
	}
}

/* Distances that fp32 cannot square, and none. */
static void
check_ends(void)
{
	GvModel		gv = {.metric = GV_L2,.dims = 3,.scale = 1};
	IvfpqRowBounds bounds = IvfpqDistanceBounds(&gv, 2e19, 0, false);

	check(bounds.least <= 2e19 && bounds.least > 1.9e19 && isinf(bounds.most),
		  "an overflow", GV_L2, 3, 0);
	bounds = IvfpqDistanceBounds(&gv, 2e19, 0, true);
	check(bounds.least == 2e19 && bounds.most == 2e19, "no overflow", GV_L2, 3,
		  0);
	bounds = IvfpqDistanceBounds(&gv, 1e-22, 0, false);
	check(bounds.least <= 0, "an underflow", GV_L2, 3, 0);
	for (int exact = 0; exact < 2; exact++)
	{
		bounds = IvfpqDistanceBounds(&gv, NAN, 0, exact);
		check(bounds.least == -INFINITY && bounds.most == INFINITY,
			  "no distance", GV_L2, 3, exact);
	}
}

/* All of it; adds what passed and failed. */
extern void check_bounds(long *all_passed, long *all_failed);

void
check_bounds(long *all_passed, long *all_failed)
{
	static const int widths[] = {1, 2, 3, 7, 8, 31, 96, 384, 1000, 4096, 16000};

	for (int w = 0; w < (int) lengthof(widths); w++)
	{
		int			dims = widths[w];
		float	   *a = malloc(dims * sizeof(float));
		float	   *b = malloc(dims * sizeof(float));

		for (int i = 0; i < 4 * NKINDS * (dims < 1000 ? 10 : 1); i++)
		{
			draw_pair(i / 4 % NKINDS, i % 2, a, b, dims);
			for (GvMetric metric = GV_L2; metric <= GV_COSINE; metric++)
				check_pair(metric, i / 4 % NKINDS, a, b, dims);
		}
		free(a);
		free(b);
	}
	check_ends();
	*all_passed += passed;
	*all_failed += failed;
}
