/*
 * tables.cu
 *		The first step of a batch copies queries, and the queries as they were
 *		asked, to the device, and makes the look-up table of each query.
 *
 * A query crosses the bus only once: the dimensions of a query are divided
 * among the blocks that make the chunks of its table.  Each block reads its
 * dimensions from host memory and stores them in device memory.  The entries
 * of tables are equal to gv_table's to the last bit.
 */
#include "gpu/device/warp.cuh"
#include "gpu/search/search.h"

#define CHUNK_CODES		(2 * GV_CHUNK)	/* sub-quantizers of a chunk */
#define THREADS			(CHUNK_CODES * GV_CODEWORDS)
#define SLICE			512		/* dimensions in shared memory at a time */
#define AHEAD			4		/* dimensions of a codeword in registers */
#define FEW				64		/* up to this number of queries, each query has
								 * its own blocks */
#define TOGETHER		8		/* queries of a block, if there are more */

/*
 * Stores the sums of squares of part blockIdx.x of QUERIES queries, from
 * `query` on.  The threads of TEAM consecutive warps have the squares of one
 * query.
 */
template <int QUERIES>
static __device__ __forceinline__ void
put_squares(const GvBatch &batch, int query, GvHalfRounding<float> mine)
{
	constexpr int TEAM = THREADS / GV_WARP / QUERIES;	/* warps */
	__shared__ GvHalfRounding<float> sums[THREADS / GV_WARP];
	int			q = threadIdx.x;

	mine = {gv_add_warp(mine.square), gv_add_warp(mine.error)};
	if (threadIdx.x % GV_WARP == 0)
		sums[threadIdx.x / GV_WARP] = mine;
	__syncthreads();
	if (q >= QUERIES || query + q >= batch.n)
		return;
	mine = {0.0f, 0.0f};
	for (int i = q * TEAM; i < (q + 1) * TEAM; i++)
		mine = {mine.square + sums[i].square, mine.error + sums[i].error};
	batch.filter.d_squares[(int64_t) (query + q) * batch.filter.nsquares +
						   blockIdx.x] = {mine.square, mine.error};
}

/*
 * Copies tests, values of sets and sample queries to the device, and clears
 * the counts of matches and of sampled blocks.  Thread `me` takes every
 * `step`-th element.
 */
static __device__ __forceinline__ void
bring_conditions(const GvBatch &batch, int64_t me, int64_t step)
{
	int64_t		nwords = (int64_t) batch.n * batch.tests *
		(sizeof(GvDeviceTest) / 8);

	for (int64_t i = me; i < nwords; i += step)
		((uint64_t *) batch.d_tests)[i] =
			((const uint64_t *) batch.in_tests)[i];
	for (int64_t i = me; i < batch.values; i += step)
		batch.d_values[i] = batch.in_values[i];
	for (int64_t i = me;
		 i < (int64_t) batch.n * batch.nprobe && batch.listed; i += step)
		batch.d_matches[i] = 0;
	for (int64_t i = me; i < batch.n && batch.sampled; i += step)
	{
		batch.d_sample_queries[i] = batch.in_sample_queries[i];
		batch.d_nsampled[i] = 0;
	}
}

/*
 * Block (x, y) owns chunk x of the tables of QUERIES queries, and a thread
 * owns one entry of each table.  Rows from m on are 0, so that the unused
 * codes of the last chunk add nothing.  For coarsefilter.cu, each block also
 * makes a part of the queries' half copies.  Blocks with x beyond the last
 * chunk copy conditions.
 */
template <int QUERIES>
static __global__ void __launch_bounds__(THREADS, 3)
table_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int TEAM = THREADS / QUERIES; /* threads that read a query */
	__shared__ float slices[QUERIES][SLICE];
	int			query = blockIdx.y * QUERIES;
	int			j = blockIdx.x * CHUNK_CODES + threadIdx.x / GV_CODEWORDS;
	int			word = threadIdx.x % GV_CODEWORDS;
	int			begin = gv_device_sub_start(model, blockIdx.x * CHUNK_CODES);
	int			end =
		gv_device_sub_start(model, min(model.m,
									   (int) (blockIdx.x + 1) * CHUNK_CODES));
	int			start = gv_device_sub_start(model, min(j, model.m));
	int			ndims = gv_device_sub_start(model, min(j + 1, model.m)) -
		start;
	const float *words = model.d_codebooks + (int64_t) GV_CODEWORDS * start +
		(int64_t) word * ndims;
	int			mine = query + threadIdx.x / TEAM;	/* the query that this
													 * thread reads */
	int			lane = mine < batch.n ? threadIdx.x % TEAM : SLICE;
	float	   *slice = slices[threadIdx.x / TEAM];
	const float *in = batch.in_queries + (int64_t) mine * model.dims;
	float	   *out = batch.d_queries + (int64_t) mine * model.dims;
	bool		brings_asked = batch.asked && out != in;
	uint16_t   *half_query = batch.filter.d_half_queries == NULL ? NULL :
		batch.filter.d_half_queries + (int64_t) mine * model.half_dims;
	GvHalfRounding<float> rounding = {};
	float		ahead[AHEAD];
	float		sums[QUERIES] = {};

	if ((int) blockIdx.x == model.shape.chunks)
	{
		gv_pdl_wait();
		bring_conditions(batch, (int64_t) blockIdx.y * THREADS + threadIdx.x,
						 (int64_t) gridDim.y * THREADS);
		return;
	}
#pragma unroll
	for (int d = 0; d < AHEAD; d++)
		ahead[d] = d < ndims ? words[d] : 0.0f;
	gv_pdl_wait();
	if (blockIdx.x == 0 && lane == 0 && out != in)
		batch.d_params[mine] = batch.in_params[mine];
	if (blockIdx.x == 0 && lane == 0 && batch.d_nscores != NULL)
		batch.d_nscores[mine] = 0;
	for (int first = begin; first < end; first += SLICE)
	{
		int			last = min(first + SLICE, end);

		__syncthreads();
		for (int d = first + lane; d < last; d += TEAM)
		{
			float		x = in[d];
			int64_t		at = (int64_t) mine * model.dims + d;
			float		asked = brings_asked ? batch.in_asked[at] : 0.0f;

			slice[d - first] = x;
			if (out != in)
				out[d] = x;
			if (brings_asked)
				batch.d_asked[at] = asked;
			if (half_query != NULL)
				half_query[d] = rounding.round(x);
		}
		__syncthreads();
		if (first <= start && start + ndims <= last && ndims <= AHEAD)
		{
#pragma unroll
			for (int q = 0; q < QUERIES; q++)
#pragma unroll
				for (int d = 0; d < AHEAD; d++)
				{
					int			i = start - first + d;

					if (d < ndims)
						sums[q] = __fadd_rn(sums[q],
											__fmul_rn(slices[q][i], ahead[d]));
				}
			continue;
		}
		for (int d = max(first, start); d < min(last, start + ndims); d++)
		{
			float		coordinate = words[d - start];

#pragma unroll
			for (int q = 0; q < QUERIES; q++)
				sums[q] = __fadd_rn(sums[q], __fmul_rn(slices[q][d - first],
													   coordinate));
		}
	}
#pragma unroll
	for (int q = 0; q < QUERIES; q++)
		if (query + q < batch.n)
			batch.d_tables[((int64_t) (query + q) * model.shape.chunks +
							blockIdx.x) * THREADS + threadIdx.x] =
				__fmul_rn(model.metric == GV_IP ? -1.0f : -2.0f, sums[q]);
	if (half_query == NULL)
		return;
	if (end == model.dims && end + lane < model.half_dims)
		half_query[end + lane] = 0;
	put_squares<QUERIES>(batch, query, rounding);
}

/*
 * Launches the kernel that makes d_queries, d_asked, d_params and d_tables of
 * a batch, and d_half_queries if the batch has this array.  The kernel also
 * copies conditions.
 */
GvStatus
gv_gpu_table(const GvDeviceModel *model, const GvBatch *batch,
			 cudaStream_t stream)
{
	dim3		grid(model->shape.chunks + (batch->tests > 0 ? 1 : 0),
					 batch->n <= FEW ? batch->n :
					 (batch->n + TOGETHER - 1) / TOGETHER);

	/* this is the first step, so there is no step before it to overlap */
	return gv_launch(batch->n <= FEW ? table_kernel<1> :
					 table_kernel<TOGETHER>, grid, THREADS, 0, stream, *model,
					 *batch);
}
