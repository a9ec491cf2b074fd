/*
 * rows.cu
 *		The normalization of exact search's filter: the mean and scale of rows,
 *		and half copies of rows and queries with their errors.
 *
 * The error bounds e (exact.cuh has the proof), with g = (half_dims + 32) 2^-22
 * and all lengths rounded up:
 *		|<p', r'> - <p, r>| <= E (C + F) + P F,	P >= |p|, C >= |r|,
 *		E >= |p - p'|, F >= |r - r'|, both measured
 *		tensor cores add an error below g ((P + E)(C + F) + |bias| +
 *		|threshold|)
 * As x y <= (x^2 / w + w y^2) / 2, each product is at most the sum of a part
 * of the query and a part of the row.  The value of w is the best one for
 * vectors of equal length whose half copies have errors of 2^-12.  For other
 * vectors the bounds are wider, but still valid.
 */
#include <algorithm>

#include "gpu/exact/exact.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define NORMALIZATION_THREADS	1024
#define SAMPLE			256		/* rows from which the normalization is
								 * computed */
#define USUAL_LENGTH	64.0	/* length of rows after scaling */
#define LARGEST			65000.0 /* largest component that a half holds */
#define USUAL_ERROR		0x1p-12 /* error of a half copy, relative to its
								 * length */
#define ROUNDING		0x1p-36 /* relative error of four sums in double, of up
								 * to 16,000 terms each */

/* -- one vector, by a warp */

/* The normalized vector u(x) = (x - shift) * factor. */
struct Normalized
{
	double		shift;
	double		factor;
	bool		varies;			/* false: u(x) is undefined */
};

/* Returns how a vector is normalized.  Called by a whole warp. */
static __device__ __forceinline__ Normalized
normalize(int metric, const float *x, int dims)
{
	int			lane = threadIdx.x % GV_WARP;
	Normalized	normalized = {0.0, 1.0, true};
	double		sum = 0.0;
	bool		varies = false;

	if (metric != GV_SET_COSINE && metric != GV_SET_PEARSON)
		return normalized;
	if (metric == GV_SET_PEARSON)
	{
		for (int d = lane; d < dims; d += GV_WARP)
			sum += (double) x[d];
		normalized.shift = gv_add_warp(sum) / dims;
		sum = 0.0;
	}
	for (int d = lane; d < dims; d += GV_WARP)
	{
		double		part = (double) x[d] - normalized.shift;

		sum += part * part;
		varies |= x[d] != (metric == GV_SET_PEARSON ? x[0] : 0.0f);
	}
	sum = gv_add_warp(sum);
	normalized.varies = __any_sync(GV_FULL_WARP, varies);
	normalized.factor = normalized.varies ? 1.0 / sqrt(sum) : 0.0;
	return normalized;
}

/* The measured lengths and errors of a vector. */
struct Measures
{
	double		square;			/* |p|^2 or |r|^2 */
	double		length;			/* the root of `square`, rounded up */
	double		error;			/* error of the half copy, including all
								 * roundings */
	double		raw;			/* |x| times the factor of u(x) */
	double		product;		/* <u(x), m> */
	bool		held;
};

/*
 * Makes the half copy [half_dims] of (u(x) - m) scale if `moves` is true, or
 * of u(x) scale otherwise, and measures the vector and its half copy.  Called
 * by a whole warp.
 */
static __device__ __forceinline__ Measures
to_half_vector(const GvExactNormalization &norm, const float *x,
			   Normalized normalized, bool moves, double scale,
			   uint16_t *half_vector)
{
	double		raw = 0.0;
	double		product = 0.0;
	bool		large = false;
	GvHalfRounding<double> rounding;
	Measures	measures;

	rounding = gv_to_half_vector<double>([&](int d)
	{
		double		value = d < norm.dims ? (double) x[d] : 0.0;
		double		mean = d < norm.dims ? norm.d_mean[d] : 0.0;
		double		form = d < norm.dims ?
			(value - normalized.shift) * normalized.factor : 0.0;
		double		scaled = (form - (moves ? mean : 0.0)) * scale;

		raw += value * value;
		product += form * mean;
		large |= !(fabs(scaled) < LARGEST);
		return scaled;
	}, norm.half_dims, half_vector);
	measures.held = !__any_sync(GV_FULL_WARP, large);
	if (!measures.held || !normalized.varies)
		for (int d = threadIdx.x % GV_WARP; d < norm.half_dims; d += GV_WARP)
			half_vector[d] = 0;
	measures.raw = sqrt(gv_add_warp(raw)) * normalized.factor;
	measures.square = rounding.square;
	measures.length = sqrt(measures.square) * (1.0 + 1e-9);
	measures.error = sqrt(rounding.error) * (1.0 + 1e-9) +
		ROUNDING * scale * (measures.raw + norm.d_scale->length);
	measures.product = gv_add_warp(product);
	return measures;
}

/*
 * Returns the scale of a query.  For inner products, the scaled query is about
 * as long as the scaled rows.  Called by a whole warp.
 */
static __device__ __forceinline__ double
query_scale(const GvExactNormalization &norm, const float *x)
{
	double		square = 0.0;
	int			exponent = 0;

	if (norm.metric == GV_SET_L2)
		return norm.d_scale->scale;
	if (norm.metric != GV_SET_IP)
		return USUAL_LENGTH;
	for (int d = threadIdx.x % GV_WARP; d < norm.dims; d += GV_WARP)
		square += (double) x[d] * (double) x[d];
	square = gv_add_warp(square);
	if (square > 0.0)
		(void) frexp(USUAL_LENGTH / sqrt(square), &exponent);
	return ldexp(1.0, exponent);
}

/*
 * Makes a query's half copy [half_dims] and returns the query's form.  Called
 * by a whole warp.
 */
static __device__ __forceinline__ GvExactQuery
query_to_half(const GvExactNormalization &norm, const float *x,
			  uint16_t *half_vector)
{
	double		gamma = gv_exact_gamma(norm.half_dims);
	bool		moves = norm.metric == GV_SET_L2;
	double		scale = query_scale(norm, x);
	Normalized	normalized = normalize(norm.metric, x, norm.dims);
	Measures	measures =
		to_half_vector(norm, x, normalized, moves, scale, half_vector);
	double		error = measures.error +
		gamma * (measures.length + measures.error);
	GvExactQuery form = {};

	form.kind = !normalized.varies ? GV_EXACT_UNDEFINED :
		measures.held ? GV_EXACT_PLAIN : GV_EXACT_UNHELD;
	form.square = measures.square;
	form.unit = moves ? 1.0 : scale * norm.d_scale->scale;
	form.offset = moves ? 0.0 : form.unit * measures.product;
	/* the scores of a half copy of zeros bound nothing */
	form.error_bound = !measures.held ? GV_INFINITY : (float)
		(1.01 * 0.5 * (error * error / (USUAL_ERROR + gamma) +
					   USUAL_ERROR * measures.length * measures.length) +
		 0x1p-40);
	return form;
}

/* -- mean and scale */

/*
 * Computes the mean, its length and the scale from a sample of the rows, by
 * one block.  Shared memory: the normalization of each sampled row, and a
 * partial sum of each warp.
 */
static __global__ void __launch_bounds__(NORMALIZATION_THREADS)
normalization_kernel(GvExactNormalization norm, const float *d_rows, int64_t n)
{
	constexpr int NWARPS = NORMALIZATION_THREADS / GV_WARP;
	__shared__ Normalized all[SAMPLE];
	__shared__ double squares[NWARPS];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	int			m = n < SAMPLE ? (int) n : SAMPLE;
	int64_t		apart = n / m * norm.dims;	/* stride of the sampled rows */
	int			count = 0;		/* sampled rows whose u(x) is defined */
	double		square = 0.0;
	int			exponent = 0;

	/* 1. normalize the sample, a warp for each row */
	for (int i = warp; i < m; i += NWARPS)
	{
		Normalized	normalized =
			normalize(norm.metric, d_rows + i * apart, norm.dims);

		if (lane == 0)
			all[i] = normalized;
	}
	__syncthreads();
	for (int i = 0; i < m; i++)
		count += all[i].varies;

	/* 2. compute the sample's mean, a thread for each dimension */
	for (int d = threadIdx.x; d < norm.dims; d += NORMALIZATION_THREADS)
	{
		double		sum = 0.0;

#pragma unroll 8
		for (int i = 0; i < m; i++)
			sum += ((double) d_rows[i * apart + d] - all[i].shift) *
				all[i].factor;
		norm.d_mean[d] = count > 0 ? sum / count : 0.0;
	}
	__syncthreads();

	/*
	 * 3. add up the squared distances of rows from the mean, a warp for each
	 * row
	 */
	for (int i = warp; i < m; i += NWARPS)
		if (all[i].varies)
			for (int d = lane; d < norm.dims; d += GV_WARP)
			{
				double		part = ((double) d_rows[i * apart + d] -
									all[i].shift) * all[i].factor -
					norm.d_mean[d];

				square += part * part;
			}
	square = gv_add_warp(square);
	if (lane == 0)
		squares[warp] = square;
	__syncthreads();
	if (warp > 0)
		return;

	/*
	 * 4. compute the length of the mean, and the scale from the mean squared
	 * distance
	 */
	square = count > 0 ? gv_add_warp(squares[lane]) / count : 0.0;
	if (square > 0.0)
		(void) frexp(USUAL_LENGTH / sqrt(square), &exponent);
	square = 0.0;
	for (int d = lane; d < norm.dims; d += GV_WARP)
		square += norm.d_mean[d] * norm.d_mean[d];
	square = gv_add_warp(square);
	if (lane == 0)
		*norm.d_scale = {ldexp(1.0, exponent), sqrt(square) * (1.0 + 1e-9)};
}

/* -- rows and queries */

/*
 * Makes the half copies, biases and error bounds of slots, a warp for each
 * slot.  Slots beyond the last row get only a bias.
 */
static __global__ void __launch_bounds__(THREADS)
rows_kernel(GvExactNormalization norm, GvExactRows rows)
{
	int64_t		slot = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	bool		leads = threadIdx.x % GV_WARP == 0;
	double		gamma = gv_exact_gamma(norm.half_dims);
	const float *x;
	Normalized	normalized;
	Measures	row;
	double		bias = 0.0;
	double		both;
	double		error_bound;

	if (slot >= rows.n)
	{
		if (leads && slot < gv_exact_padded(rows.n))
			rows.d_bias[slot] = -GV_INFINITY;
		return;
	}
	x = rows.d_rows + gv_exact_row(rows, (uint32_t) slot) * norm.dims;
	normalized = normalize(norm.metric, x, norm.dims);
	row = to_half_vector(norm, x, normalized, true, norm.d_scale->scale,
						 rows.d_half_rows + slot * norm.half_dims);
	if (!leads)
		return;
	if (!normalized.varies || !row.held)
	{
		rows.d_bias[slot] = normalized.varies ? GV_INFINITY : -GV_INFINITY;
		rows.d_error_bounds[slot] = 0.0f;
		return;
	}
	if (norm.metric == GV_SET_L2)
		bias = -0.5 * row.square;
	both = row.length + row.error;
	error_bound = 1.01 * 0.5 * ((USUAL_ERROR + gamma) * both * both +
								row.error * row.error / USUAL_ERROR) +
		(gamma + 0x1p-20) * fabs(bias) + 0x1p-40;
	rows.d_bias[slot] = (float) (bias + error_bound);
	rows.d_error_bounds[slot] = (float) (error_bound * (1.0 + 1e-6));
}

/*
 * Makes the half copies and forms of queries, and clears the queries'
 * neighbors, a warp for each query.
 */
static __global__ void __launch_bounds__(THREADS)
queries_kernel(GvExactNormalization norm, GvExactQueries queries)
{
	int64_t		query = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	GvExactQuery form;

	gv_pdl_wait();
	if (query >= queries.n)
		return;
	/* there are no neighbors yet */
	for (int64_t j = threadIdx.x % GV_WARP; j < queries.k; j += GV_WARP)
	{
		queries.d_distances[query * queries.k + j] = GV_EXACT_NAN;
		queries.d_positions[query * queries.k + j] = INT64_MAX;
	}
	form = query_to_half(norm, queries.d_queries + query * norm.dims,
						 queries.d_half_queries + query * norm.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		queries.d_forms[query] = form;
}

/*
 * Copies the half copies of the queries in a part's list side by side.  Each
 * thread copies 16 bytes.
 */
static __global__ void __launch_bounds__(THREADS)
gather_kernel(int pieces, const uint16_t *d_from, GvExactPart part,
			  uint16_t *d_to)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		query = i / pieces;

	if (query < part.n)
		((uint4 *) d_to)[i] = ((const uint4 *) d_from)
			[(int64_t) part.d_list[query] * pieces + i % pieces];
}

GvStatus
gv_gpu_exact_normalization(const GvExactNormalization *norm,
						   const float *d_rows, int64_t n, cudaStream_t stream)
{
	return gv_launch(normalization_kernel, 1, NORMALIZATION_THREADS, 0, stream,
					 *norm, d_rows, n);
}

GvStatus
gv_gpu_exact_rows(const GvExactNormalization *norm, const GvExactRows *rows,
				  cudaStream_t stream)
{
	return gv_launch(rows_kernel,
					 gv_blocks_for(gv_exact_padded(rows->n), WARPS), THREADS,
					 0, stream, *norm, *rows);
}

GvStatus
gv_gpu_exact_queries(const GvExactNormalization *norm,
					 const GvExactQueries *queries, cudaStream_t stream)
{
	return gv_launch(queries_kernel, gv_blocks_for(queries->n, WARPS), THREADS,
					 0, stream, *norm, *queries);
}

GvStatus
gv_gpu_exact_gather(const GvExactSearch *search, const GvExactPart *part)
{
	int			pieces = search->norm->half_dims / 8;

	return gv_launch(gather_kernel,
					 gv_blocks_for((int64_t) part->n * pieces, THREADS),
					 THREADS, 0, search->work->stream, pieces,
					 search->queries->d_half_queries, *part,
					 search->work->d_gathered);
}

static int64_t
common_divisor(int64_t a, int64_t b)
{
	return b == 0 ? a : common_divisor(b, a % b);
}

/*
 * Returns a stride of about .618 n that has no common divisor with n, so that
 * every row has exactly one slot.
 */
int64_t
gv_gpu_exact_stride(int64_t n)
{
	int64_t		stride = std::max((int64_t) (0.6180339887 * (double) n),
								  INT64_C(1));

	while (common_divisor(n, stride) != 1)
		stride++;
	return stride;
}
