/*
 * table.cu
 *		A batch's first step: queries come to the card, and the look-up table
 *		of each is made.
 *
 * A query crosses the bus once: its dimensions are dealt to the thread blocks
 * that make the chunks of its table, which read them from the host's memory
 * and leave them in the card's.  Entries are gv_table's to the last bit.
 */
#include "gv_cuda.h"
#include "near.cuh"

#define CHUNK_CODES		(2 * GV_CHUNK)	/* sub-quantizers of a chunk */
#define THREADS			(CHUNK_CODES * GV_CODEWORDS)
#define SLICE			512		/* dimensions in shared memory at a time */
#define AHEAD			4		/* of a codeword, loaded as the query is */

/* The sum of all threads' squares. */
static __device__ __forceinline__ void
put_squares(float2 *to, float2 mine)
{
	__shared__ float2 sums[THREADS / GV_WARP];
	int			lane = threadIdx.x % GV_WARP;

	mine = {gv_near_add(mine.x), gv_near_add(mine.y)};
	if (lane == 0)
		sums[threadIdx.x / GV_WARP] = mine;
	__syncthreads();
	if (threadIdx.x >= GV_WARP)
		return;
	mine = lane < THREADS / GV_WARP ? sums[lane] : make_float2(0.0f, 0.0f);
	mine = {gv_near_add(mine.x), gv_near_add(mine.y)};
	if (lane == 0)
		*to = mine;
}

/*
 * Block (x, y): chunk x of query y, an entry of the table each thread.  Rows
 * beyond m are 0, so that the spare codes of the last chunk add nothing.  Of
 * batches whose lists are found by near.cu, each makes a part of the half copy.
 */
static __global__ void __launch_bounds__(THREADS, 3)
table_kernel(GvCardModel card, GvBatch batch)
{
	__shared__ float slice[SLICE];
	int			query = blockIdx.y;
	int			j = blockIdx.x * CHUNK_CODES + threadIdx.x / GV_CODEWORDS;
	int			word = threadIdx.x % GV_CODEWORDS;
	int			begin = gv_card_sub_start(card, blockIdx.x * CHUNK_CODES);
	int			end = gv_card_sub_start(card, min(card.m, (int)
												  (blockIdx.x + 1) * CHUNK_CODES));
	int			start = gv_card_sub_start(card, min(j, card.m));
	int			ndims = gv_card_sub_start(card, min(j + 1, card.m)) - start;
	const float *words = card.d_codebooks + (int64_t) GV_CODEWORDS * start +
		(int64_t) word * ndims;
	const float *in = batch.in_queries + (int64_t) query * card.dims;
	float	   *out = batch.d_queries + (int64_t) query * card.dims;
	uint16_t   *halves = batch.near.d_halves == NULL ? NULL :
		batch.near.d_halves + (int64_t) query * card.half_dims;
	float2		squares = {0.0f, 0.0f};
	float		ahead[AHEAD];
	float		sum = 0.0f;

	gv_step_begins();
#pragma unroll
	for (int d = 0; d < AHEAD; d++)
		ahead[d] = d < ndims ? words[d] : 0.0f;
	if (blockIdx.x == 0 && threadIdx.x == 0 && out != in)
		batch.d_wanted[query] = batch.in_wanted[query];
	for (int first = begin; first < end; first += SLICE)
	{
		int			last = min(first + SLICE, end);

		__syncthreads();
		for (int d = first + threadIdx.x; d < last; d += THREADS)
		{
			float		x = in[d];

			slice[d - first] = x;
			if (out != in)
				out[d] = x;
			if (halves != NULL)
				halves[d] = gv_near_round(x, &squares);
		}
		__syncthreads();
		if (first <= start && start + ndims <= last && ndims <= AHEAD)
		{
#pragma unroll
			for (int d = 0; d < AHEAD; d++)
				if (d < ndims)
					sum = __fadd_rn(sum, __fmul_rn(slice[start - first + d],
												   ahead[d]));
			continue;
		}
		for (int d = max(first, start); d < min(last, start + ndims); d++)
			sum = __fadd_rn(sum, __fmul_rn(slice[d - first],
										   words[d - start]));
	}
	batch.d_tables[((int64_t) query * card.shape.chunks + blockIdx.x) * THREADS +
				   threadIdx.x] =
		__fmul_rn(card.metric == GV_IP ? -1.0f : -2.0f, sum);
	if (halves == NULL)
		return;
	if (end == card.dims && end + (int) threadIdx.x < card.half_dims)
		halves[end + threadIdx.x] = 0;
	put_squares(batch.near.d_squares + (int64_t) query * batch.near.nparts +
				blockIdx.x, squares);
}

/* d_queries, d_wanted and d_tables of a batch; d_halves if it has them. */
GvStatus
gv_gpu_table(const GvCardModel *card, const GvBatch *batch,
			 cudaStream_t stream)
{
	dim3		grid(card->shape.chunks, batch->n);

	GV_LAUNCH(table_kernel, grid, THREADS, 0, stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}
