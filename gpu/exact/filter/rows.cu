/*
 * rows.cu
 *		Rows and queries as exact search's filter sees them (halve.cuh),
 *		and the frame that both are seen in.
 */
#include "gpu/exact/filter/halve.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define FRAME_THREADS	1024
#define SAMPLE			256		/* rows that a frame is made from */
#define INFINITE		__int_as_float(0x7F800000)

/* Rows that a frame is made from, `apart` floats from one to the next. */
struct Sample
{
	const float *rows;
	int64_t		apart;
	int			n;
	const View *views;			/* [n] shared */
	int			count;			/* of those that are defined */
};

/* d_mean, a thread a dimension. */
static __device__ __forceinline__ void
find_mean(const GvExactSpace &space, const Sample &sample)
{
	for (int d = threadIdx.x; d < space.dims; d += FRAME_THREADS)
	{
		double		sum = 0.0;

#pragma unroll 8
		for (int i = 0; i < sample.n; i++)
			sum += ((double) sample.rows[i * sample.apart + d] -
					sample.views[i].shift) * sample.views[i].factor;
		space.d_mean[d] = sample.count > 0 ? sum / sample.count : 0.0;
	}
}

/* This lane's part of all squared lengths; a warp a row. */
static __device__ __forceinline__ double
add_squares(const GvExactSpace &space, const Sample &sample)
{
	double		square = 0.0;

	for (int i = threadIdx.x / GV_WARP; i < sample.n;
		 i += FRAME_THREADS / GV_WARP)
		if (sample.views[i].varies)
			for (int d = threadIdx.x % GV_WARP; d < space.dims; d += GV_WARP)
			{
				double		part =
					((double) sample.rows[i * sample.apart + d] -
					 sample.views[i].shift) * sample.views[i].factor -
					space.d_mean[d];

				square += part * part;
			}
	return square;
}

/* d_frame, by a warp that knows the usual squared length of rows. */
static __device__ __forceinline__ void
put_frame(const GvExactSpace &space, double usual_square)
{
	double		square = 0.0;
	int			exponent = 0;

	for (int d = threadIdx.x; d < space.dims; d += GV_WARP)
		square += space.d_mean[d] * space.d_mean[d];
	square = gv_add_warp(square);
	if (threadIdx.x > 0)
		return;
	if (usual_square > 0.0)
		(void) frexp(USUAL_LENGTH / sqrt(usual_square), &exponent);
	space.d_frame->scale = ldexp(1.0, exponent);
	space.d_frame->length = sqrt(square) * (1.0 + 1e-9);
}

/*
 * Mean, its length, and a scale from a sample.  One block.
 * Shared: views of the sample, and a number of each warp.
 */
static __global__ void __launch_bounds__(FRAME_THREADS)
frame_kernel(GvExactSpace space, const float *d_rows, int64_t n)
{
	__shared__ View views[SAMPLE];
	__shared__ double squares[FRAME_THREADS / GV_WARP];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	int			m = n < SAMPLE ? (int) n : SAMPLE;
	Sample		sample = {d_rows, n / m * space.dims, m, views, 0};
	double		square;

	/* 1. how the sample is seen */
	for (int i = warp; i < m; i += FRAME_THREADS / GV_WARP)
	{
		View		view = view_of(space.metric, d_rows + i * sample.apart,
								   space.dims);

		if (lane == 0)
			views[i] = view;
	}
	__syncthreads();
	for (int i = 0; i < m; i++)
		sample.count += views[i].varies;

	/* 2. its mean, and how far rows are from that */
	find_mean(space, sample);
	__syncthreads();
	square = gv_add_warp(add_squares(space, sample));
	if (lane == 0)
		squares[warp] = square;
	__syncthreads();
	if (warp > 0)
		return;
	square = gv_add_warp(squares[lane]);
	put_frame(space, sample.count > 0 ? square / sample.count : 0.0);
}

/* A warp a slot; beyond the last, biases alone. */
static __global__ void __launch_bounds__(THREADS)
rows_kernel(GvExactSpace space, GvExactRows rows)
{
	int64_t		slot = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	bool		leads = threadIdx.x % GV_WARP == 0;
	double		gamma = gv_exact_gamma(space.half_dims);
	const float *x;
	View		view;
	Measures	row;
	double		bias = 0.0;
	double		both;
	double		slack;

	if (slot >= rows.n)
	{
		if (leads && slot < (rows.n + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN *
			GV_EXACT_ALIGN)
			rows.d_bias[slot] = -INFINITE;
		return;
	}
	x = rows.d_rows + gv_exact_row(rows, (uint32_t) slot) * space.dims;
	view = view_of(space.metric, x, space.dims);
	row = to_half_vector(space, x, view, true, space.d_frame->scale,
				rows.d_half_rows + slot * space.half_dims);
	if (!leads)
		return;
	if (!view.varies || !row.held)
	{
		rows.d_bias[slot] = view.varies ? INFINITE : -INFINITE;
		rows.d_slack[slot] = 0.0f;
		return;
	}
	if (space.metric == GV_SET_L2)
		bias = -0.5 * row.square;
	both = row.length + row.error;
	slack = 1.01 * 0.5 * ((USUAL_ERROR + gamma) * both * both +
						  row.error * row.error / USUAL_ERROR) +
		(gamma + 0x1p-20) * fabs(bias) + 0x1p-40;
	rows.d_bias[slot] = (float) (bias + slack);
	rows.d_slack[slot] = (float) (slack * (1.0 + 1e-6));
}

/* A warp a query, of which nothing is found yet. */
static __global__ void __launch_bounds__(THREADS)
queries_kernel(GvExactSpace space, GvExactQueries queries)
{
	int64_t		query = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	GvExactQuery seen;

	gv_step_begins();
	if (query >= queries.n)
		return;
	gv_exact_free_places(queries, query);
	seen = gv_exact_query_to_half(space,
								  queries.d_queries + query * space.dims,
								queries.d_half_queries + query *
									space.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		queries.d_seen[query] = seen;
}

/* Half copies of some queries side by side; a thread 16 bytes. */
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

/* d_mean and d_frame, from n rows. */
GvStatus
gv_gpu_exact_frame(const GvExactSpace *space, const float *d_rows, int64_t n,
				   cudaStream_t stream)
{
	GV_LAUNCH(frame_kernel, 1, FRAME_THREADS, 0, stream, *space, d_rows, n);
	return gv_cuda_status(cudaGetLastError());
}

/* Half copies, biases and slacks of rows. */
GvStatus
gv_gpu_exact_rows(const GvExactSpace *space, const GvExactRows *rows,
				  cudaStream_t stream)
{
	int64_t		n = (rows->n + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN *
		GV_EXACT_ALIGN;

	GV_LAUNCH(rows_kernel, gv_exact_blocks(n, WARPS), THREADS, 0, stream,
			  *space, *rows);
	return gv_cuda_status(cudaGetLastError());
}

/* Half copies of queries, what else the filter knows of them, free places. */
GvStatus
gv_gpu_exact_queries(const GvExactSpace *space, const GvExactQueries *queries,
					 cudaStream_t stream)
{
	GV_LAUNCH(queries_kernel, gv_exact_blocks(queries->n, WARPS), THREADS, 0,
			  stream, *space, *queries);
	return gv_cuda_status(cudaGetLastError());
}

/* The half copies of a list of queries, side by side. */
GvStatus
gv_gpu_exact_gather(const GvExactSpace *space, const GvExactQueries *queries,
					const GvExactPart *part, uint16_t *d_half_queries,
					cudaStream_t stream)
{
	int			pieces = space->half_dims / 8;

	GV_LAUNCH(gather_kernel, gv_exact_blocks((int64_t) part->n * pieces,
											 THREADS), THREADS, 0, stream,
			  pieces, (const uint16_t *) queries->d_half_queries, *part,
				d_half_queries);
	return gv_cuda_status(cudaGetLastError());
}
