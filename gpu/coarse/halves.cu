/*
 * halves.cu
 *		Half-precision copies of a mirror's centroids, for the filter of
 *		approximate.cu, and what rounding did to them.
 *
 * They are made on the card from the centroids that arrive.  The limits only
 * grow: centroids that are replaced leave them wider than need be, and right.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/common/half.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define INFINITE		__int_as_float(0x7F800000)

static int32_t
half_dims(int32_t dims)
{
	return (dims + 15) / 16 * 16;
}

/* Bytes of the card. */
int64_t
gv_gpu_halves_bytes(const GvMirrorSpec *spec)
{
	return (int64_t) spec->nlists *
		(half_dims(spec->dims) * (int64_t) sizeof(uint16_t) +
		 (int64_t) sizeof(float)) + (int64_t) sizeof(GvHalfLimits);
}

/* Zeros, as the centroids are at first. */
GvStatus
gv_gpu_halves_create(GvMirror *mirror)
{
	GvCardModel *card = &mirror->card;
	size_t		bytes;

	card->half_dims = half_dims(card->dims);
	bytes = (size_t) card->nlists * card->half_dims * sizeof(uint16_t);
	GV_CUDA_TRY(cudaMalloc((void **) &card->d_halves, bytes));
	GV_CUDA_TRY(cudaMalloc((void **) &card->d_squares,
						   card->nlists * sizeof(float)));
	GV_CUDA_TRY(cudaMalloc((void **) &card->d_limits, sizeof(GvHalfLimits)));
	GV_CUDA_TRY(cudaMemsetAsync(card->d_halves, 0, bytes, mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(card->d_squares, 0,
								card->nlists * sizeof(float),
								mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(card->d_limits, 0, sizeof(GvHalfLimits),
								mirror->stream));
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}

void
gv_gpu_halves_drop(GvMirror *mirror)
{
	(void) cudaFree(mirror->card.d_halves);
	(void) cudaFree(mirror->card.d_squares);
	(void) cudaFree(mirror->card.d_limits);
}

/* Raise a limit to the root of a sum of squares. */
static __device__ __forceinline__ void
raise(float *limit, double square)
{
	float		root = (float) (sqrt(square) * (1.0 + 1e-6));

	if (!(root < INFINITE))
		root = INFINITE;
	/* what is not negative ascends as its bits do */
	atomicMax((unsigned *) limit, __float_as_uint(root));
}

/* Centroids first .. first + n - 1, a warp each. */
static __global__ void __launch_bounds__(THREADS)
halves_kernel(GvCardModel card, int first, int n)
{
	int			lane = threadIdx.x % GV_WARP;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int64_t		list = first + i;
	const float *centroid = card.d_centroids + list * card.dims;
	GvHalved<double> halved;

	if (i >= n)
		return;
	halved = gv_halve<double>([=](int d)
	{
		return d < card.dims ? centroid[d] : 0.0f;
	}, card.half_dims, card.d_halves + list * card.half_dims);
	if (lane == 0)
	{
		card.d_squares[list] = card.metric == GV_IP ? 0.0f :
			(float) halved.square;
		raise(&card.d_limits->length, halved.square);
		raise(&card.d_limits->error, halved.error);
	}
}

/* Copies of the centroids that elements first .. first + n - 1 are in. */
GvStatus
gv_gpu_put_halves(GvMirror *mirror, int64_t first, int64_t n)
{
	const GvCardModel *card = &mirror->card;
	int			row = (int) (first / card->dims);
	int			nrows = (int) ((first + n - 1) / card->dims) - row + 1;

	GV_LAUNCH(halves_kernel, (nrows + WARPS - 1) / WARPS, THREADS, 0,
			  mirror->stream, *card, row, nrows);
	return gv_cuda_status(cudaGetLastError());
}
