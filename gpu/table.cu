/*
 * table.cu
 *		A batch's first step: queries come to the card, and the look-up table
 *		of each is made.
 *
 * A query crosses the bus once: its dimensions are dealt to the thread blocks
 * that make the chunks of its table, which read them from the host's memory
 * and leave them in the card's.  Entries are gv_table's to the last bit.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define CHUNK_CODES		(2 * GV_CHUNK)	/* sub-quantizers of a chunk */
#define THREADS			(CHUNK_CODES * GV_CODEWORDS)
#define SLICE			512		/* dimensions in shared memory at a time */

/*
 * Block (x, y): chunk x of query y, an entry of the table each thread.  Rows
 * beyond m are 0, so that the spare codes of the last chunk add nothing.
 */
static __global__ void __launch_bounds__(THREADS)
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
	float		sum = 0.0f;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		batch.d_wanted[query] = batch.in_wanted[query];
	for (int first = begin; first < end; first += SLICE)
	{
		int			last = min(first + SLICE, end);

		__syncthreads();
		for (int d = first + threadIdx.x; d < last; d += THREADS)
			slice[d - first] = out[d] = in[d];
		__syncthreads();
		for (int d = max(first, start); d < min(last, start + ndims); d++)
			sum = __fadd_rn(sum, __fmul_rn(slice[d - first],
										   words[d - start]));
	}
	batch.d_tables[((int64_t) query * gridDim.x + blockIdx.x) * THREADS +
				   threadIdx.x] =
		__fmul_rn(card.metric == GV_IP ? -1.0f : -2.0f, sum);
}

/* d_queries, d_wanted and d_tables of a batch. */
GvStatus
gv_gpu_table(const GvCardModel *card, const GvBatch *batch,
			 cudaStream_t stream)
{
	dim3		grid(card->shape.chunks, batch->n);

	GV_LAUNCH(table_kernel, grid, THREADS, 0, stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}
