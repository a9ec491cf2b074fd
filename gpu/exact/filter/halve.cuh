/*
 * halve.cuh
 *		A vector as exact search's filter sees it: moved, scaled, in half
 *		precision, with what that can do to scores.  Warps of rows.cu
 *		make it.
 *
 * The bound e, for a vector v and its half copy v' (README has the proof),
 * of g = (half_dims + 32) 2^-22, all lengths rounded up:
 *		|<p', r'> - <p, r>| <= E (C + F) + P F,	P >= |p|, C >= |r|,
 *		E >= |p - p'|, F >= |r - r'|, both measured
 *		tensor cores add an error below g ((P + E)(C + F) + |bias| + |cut|)
 * and x y <= (x^2 / w + w y^2) / 2 makes of each product a part of the query
 * and one of the row.  w is what is best for vectors of one length, whose
 * halves have errors of 2^-12; others are bounded more widely, and rightly.
 */
#ifndef GV_HALVE_CUH
#define GV_HALVE_CUH

#include <stdint.h>

#include "gpu/common/half.cuh"
#include "gpu/exact/filter/exact.cuh"

#define USUAL_LENGTH	64.0	/* of rows, once scaled */
#define LARGEST			65000.0 /* component that a half holds */
#define USUAL_ERROR		0x1p-12 /* of a half copy, beside its length */
#define ROUNDING		0x1p-36 /* of sums in double of up to 16,000 terms,
								 * several times over */

/* u(x) = (x - shift) * factor. */
struct View
{
	double		shift;
	double		factor;
	bool		varies;			/* false: u(x) is not defined */
};

/* By a warp. */
static __device__ __forceinline__ View
view_of(int metric, const float *x, int dims)
{
	int			lane = threadIdx.x % GV_WARP;
	View		view = {0.0, 1.0, true};
	double		sum = 0.0;
	bool		varies = false;

	if (metric != GV_SET_COSINE && metric != GV_SET_PEARSON)
		return view;
	if (metric == GV_SET_PEARSON)
	{
		for (int d = lane; d < dims; d += GV_WARP)
			sum += (double) x[d];
		view.shift = gv_add_warp(sum) / dims;
		sum = 0.0;
	}
	for (int d = lane; d < dims; d += GV_WARP)
	{
		double		part = (double) x[d] - view.shift;

		sum += part * part;
		varies |= x[d] != (metric == GV_SET_PEARSON ? x[0] : 0.0f);
	}
	sum = gv_add_warp(sum);
	view.varies = __any_sync(GV_FULL_WARP, varies);
	view.factor = view.varies ? 1.0 / sqrt(sum) : 0.0;
	return view;
}

/* Lengths and errors measured of a vector. */
struct Measures
{
	double		square;			/* of p or r */
	double		length;			/* at least its root */
	double		error;			/* of the half copy, and of all roundings */
	double		raw;			/* length of u(x) before its shift */
	double		product;		/* <u(x), m> */
	bool		held;
};

/*
 * By a warp: the half copy [half_dims] of (u(x) - m) scale, or of u(x) scale
 * where it does not move.
 */
static __device__ __forceinline__ Measures
to_half_vector(const GvExactSpace &space, const float *x, View view,
			   bool moves,
	  double scale, uint16_t *half_vector)
{
	double		raw = 0.0;
	double		product = 0.0;
	bool		large = false;
	GvHalfRounding<double> rounding;
	Measures	measures;

	rounding = gv_to_half_vector<double>([&](int d)
	{
		double		value = d < space.dims ? (double) x[d] : 0.0;
		double		mean = d < space.dims ? space.d_mean[d] : 0.0;
		double		seen = d < space.dims ?
			(value - view.shift) * view.factor : 0.0;
		double		scaled = (seen - (moves ? mean : 0.0)) * scale;

		raw += value * value;
		product += seen * mean;
		large |= !(fabs(scaled) < LARGEST);
		return scaled;
	}, space.half_dims, half_vector);
	measures.held = !__any_sync(GV_FULL_WARP, large);
	if (!measures.held || !view.varies)
		for (int d = threadIdx.x % GV_WARP; d < space.half_dims; d += GV_WARP)
			half_vector[d] = 0;
	measures.raw = sqrt(gv_add_warp(raw)) * view.factor;
	measures.square = rounding.square;
	measures.length = sqrt(measures.square) * (1.0 + 1e-9);
	measures.error = sqrt(rounding.error) * (1.0 + 1e-9) +
		ROUNDING * scale * (measures.raw + space.d_frame->length);
	measures.product = gv_add_warp(product);
	return measures;
}

/* How a query is scaled: those of inner products to the length of rows. */
static __device__ __forceinline__ double
query_scale(const GvExactSpace &space, const float *x)
{
	double		square = 0.0;
	int			exponent = 0;

	if (space.metric == GV_SET_L2)
		return space.d_frame->scale;
	if (space.metric != GV_SET_IP)
		return USUAL_LENGTH;
	for (int d = threadIdx.x % GV_WARP; d < space.dims; d += GV_WARP)
		square += (double) x[d] * (double) x[d];
	square = gv_add_warp(square);
	if (square > 0.0)
		(void) frexp(USUAL_LENGTH / sqrt(square), &exponent);
	return ldexp(1.0, exponent);
}

/* By a warp: a query's half copy [half_dims], and what else is known of it. */
static __device__ __forceinline__ GvExactQuery
gv_exact_query_to_half(const GvExactSpace &space, const float *x,
					 uint16_t *half_vector)
{
	double		gamma = gv_exact_gamma(space.half_dims);
	bool		moves = space.metric == GV_SET_L2;
	double		scale = query_scale(space, x);
	View		view = view_of(space.metric, x, space.dims);
	Measures	measures =
		to_half_vector(space, x, view, moves, scale, half_vector);
	double		error = measures.error +
		gamma * (measures.length + measures.error);
	GvExactQuery seen = {};

	seen.kind = !view.varies ? GV_EXACT_VOID :
		measures.held ? GV_EXACT_PLAIN : GV_EXACT_UNHELD;
	seen.square = measures.square;
	seen.unit = moves ? 1.0 : scale * space.d_frame->scale;
	seen.offset = moves ? 0.0 : seen.unit * measures.product;
	/*
	 * of zeros, in the place of halves that do not hold it, nothing is known
	 */
	seen.slack = !measures.held ? GV_EXACT_INFINITE : (float)
		(1.01 * 0.5 * (error * error / (USUAL_ERROR + gamma) +
					   USUAL_ERROR * measures.length * measures.length) +
		 0x1p-40);
	return seen;
}

/* By a warp: nothing is found of a query yet. */
static __device__ __forceinline__ void
gv_exact_free_places(const GvExactQueries &queries, int64_t query)
{
	for (int64_t j = threadIdx.x % GV_WARP; j < queries.k; j += GV_WARP)
	{
		queries.d_distances[query * queries.k + j] = GV_EXACT_NAN;
		queries.d_positions[query * queries.k + j] = INT64_MAX;
	}
}

#endif							/* GV_HALVE_CUH */
