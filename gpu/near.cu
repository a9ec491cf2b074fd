/*
 * near.cu
 *		The nearest lists of many queries, or of very many lists: scores in
 *		half precision from tensor cores, and exact ones for the lists that may
 *		be among the nearest.
 *
 *		halve	queries to half precision, and what that can do to scores
 *		product	approximate scores of all lists (product.cu)
 *		choose	the lists near enough, their exact scores, the nearest
 *				(choose.cu)
 *
 * What is proven.  Let q', c' be the half copies of q and c, and
 *		a = w * sum + |c|^2,  w = -2 and |c|^2 in fp32 (L2, cosine), or
 *		a = w * sum,          w = -1 (inner product)
 * the approximate score, sum being what a tensor core makes of <q', c'>.  With
 * Q >= |q|, E >= |q - q'|, C >= |c|, F >= |c - c'| (measured, the latter two
 * the largest of any list):
 *	- |<q', c'> - <q, c>| <= E (C + F) + Q F, by Cauchy and Schwarz
 *	- the tensor core adds products of halves, exact in fp32, in groups of 4 to
 *	  16 and the sum so far, aligned to the largest and cut to 24 bits or more
 *	  (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor
 *	  cores", 2021): at most 24 * 2^-23 (Q + E)(C + F) for 16 dimensions,
 *	  for which (dims + 32) 2^-22 (Q + E)(C + F) is taken
 *	- the exact score, and |c|^2 and the last two roundings of a, have relative
 *	  errors below (dims / 16 + 32) 2^-24 of numbers below (Q + C + E + F)^2
 *	- what underflows is less than 2^-100
 * So a (plus |q|^2, of the query alone) and the fp32 score differ by at most
 * eps, the sum of these, the first two times |w|.  p lists have approximate
 * scores up to the p-th, a_p; the p-th exact score is then at most a_p + eps,
 * and a list that has no larger one has an approximate score up to
 * a_p + 2 eps: the margin.
 */
#include "select.cuh"
#include "gv_cuda.h"
#include "mma.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define INFINITE		__int_as_float(0x7F800000)

/*
 * Below this the exact scores cost less: 16 queries of 8,192 x 384 are 50 M
 * terms of 3 operations, 5 us of the card's 30 T/s, while a filter has two more
 * launches.
 */
#define LEAST_QUERIES	16

/*
 * Beyond this L2 does not hold the centroids, and even one query is faster
 * with half the bytes.
 */
#define LARGE_CENTROIDS	(INT64_C(32) << 20)

#define MOST_PROBES		2048	/* that choose.cu has memory for */
#define LEAST_SHARE		4		/* a filter has to keep out most of the lists */

static __device__ __forceinline__ float
add_warp(float sum)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return sum;
}

/* At least the length of a vector of up to 16,000 squares, added in fp32. */
static __device__ __forceinline__ float
length(float square)
{
	return sqrtf(square) * 1.0001f + 1e-18f;
}

/* 2 eps, and infinite where that cannot be trusted; see above. */
static __device__ __forceinline__ float
margin(const GvCardModel &card, float query, float query_error)
{
	float		c = card.d_limits->length;
	float		c_error = card.d_limits->error;
	float		all = query + query_error + c + c_error;
	float		dot = query_error * (c + c_error) + query * c_error +
		(query + query_error) * (c + c_error) * (card.dims + 32) * 0x1p-22f;
	float		eps = (card.metric == GV_IP ? 1.0f : 2.0f) * dot +
		all * all * (card.dims / 16 + 64) * 0x1p-24f + 0x1p-100f;

	return eps < 1e30f ? 2.0f * 1.001f * eps : INFINITE;
}

/* A warp a query. */
static __global__ void __launch_bounds__(THREADS)
halve_kernel(GvCardModel card, GvBatch batch)
{
	int			lane = threadIdx.x % GV_WARP;
	int			query = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	const float *from = batch.d_queries + (int64_t) query * card.dims;
	uint16_t   *to = batch.near.d_halves + (int64_t) query * card.half_dims;
	float		square = 0.0f;
	float		error = 0.0f;

	if (query >= batch.n)
		return;
	for (int d = lane; d < card.half_dims; d += GV_WARP)
	{
		float		x = d < card.dims ? from[d] : 0.0f;
		uint16_t	half = gv_to_half(x);
		float		diff = x - gv_from_half(half);

		to[d] = half;
		square += x * x;
		error += diff * diff;
	}
	square = add_warp(square);
	error = add_warp(error);
	if (lane == 0)
		batch.near.d_margins[query] = margin(card, length(square),
											 length(error));
}

/* Is this the way for a batch? */
bool
gv_gpu_near_fits(const GvCardModel *card, const GvBatch *batch)
{
	bool		large = (int64_t) card->nlists * card->dims *
		(int64_t) sizeof(float) > LARGE_CENTROIDS;

	return (batch->n >= LEAST_QUERIES || large) &&
		batch->probes <= MOST_PROBES &&
		batch->probes <= card->nlists / LEAST_SHARE;
}

/* d_probed, d_starts and nprobed of a batch; d_coarse is used up. */
GvStatus
gv_gpu_near(const GvCardModel *card, const GvBatch *batch,
			cudaStream_t stream)
{
	GV_LAUNCH(halve_kernel, (batch->n + WARPS - 1) / WARPS, THREADS, 0, stream,
			  *card, *batch);
	GV_CUDA_TRY(cudaGetLastError());
	GV_TRY(gv_gpu_product(card, batch, stream));
	return gv_gpu_choose(card, batch, stream);
}

/* See gv_cuda.h. */
GvStatus
gv_gpu_near_ways(GvSearcher *searcher, uint32_t ways[GV_NEAR_WAYS])
{
	GV_TRY(gv_choose_device());
	GV_CUDA_TRY(cudaMemcpyAsync(ways, searcher->d_ways.memory,
								GV_NEAR_WAYS * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, searcher->stream));
	return gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}
