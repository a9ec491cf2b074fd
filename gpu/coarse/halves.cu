/*
 * halves.cu
 *		Half-precision copies of a mirror's centroids, for the filter of
 *		approximate.cu, and what rounding did to them.
 *
 * They are made on the device from the centroids that arrive.  The limits only
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

/* Bytes of the device. */
int64_t
gv_gpu_half_bytes(const GvMirrorSpec *spec)
{
	return (int64_t) spec->nlists *
		(half_dims(spec->dims) * (int64_t) sizeof(uint16_t) +
		 (int64_t) sizeof(float)) + (int64_t) sizeof(GvHalfLimits);
}

/* Zeros, as the centroids are at first. */
GvStatus
gv_gpu_half_create(GvMirror *mirror)
{
	GvDeviceModel *model = &mirror->model;
	size_t		bytes;

	model->half_dims = half_dims(model->dims);
	bytes = (size_t) model->nlists * model->half_dims * sizeof(uint16_t);
	GV_CUDA_TRY(cudaMalloc((void **) &model->d_half_centroids, bytes));
	GV_CUDA_TRY(cudaMalloc((void **) &model->d_squares,
						   model->nlists * sizeof(float)));
	GV_CUDA_TRY(cudaMalloc((void **) &model->d_limits, sizeof(GvHalfLimits)));
	GV_CUDA_TRY(cudaMemsetAsync(model->d_half_centroids, 0, bytes,
								mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(model->d_squares, 0,
								model->nlists * sizeof(float),
								mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(model->d_limits, 0, sizeof(GvHalfLimits),
								mirror->stream));
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}

void
gv_gpu_half_drop(GvMirror *mirror)
{
	(void) cudaFree(mirror->model.d_half_centroids);
	(void) cudaFree(mirror->model.d_squares);
	(void) cudaFree(mirror->model.d_limits);
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
centroids_to_half_kernel(GvDeviceModel model, int first, int n)
{
	int			lane = threadIdx.x % GV_WARP;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int64_t		list = first + i;
	const float *centroid = model.d_centroids + list * model.dims;
	GvHalfRounding<double> rounding;

	if (i >= n)
		return;
	rounding = gv_to_half_vector<double>([=](int d)
	{
		return d < model.dims ? centroid[d] : 0.0f;
	}, model.half_dims, model.d_half_centroids + list * model.half_dims);
	if (lane == 0)
	{
		model.d_squares[list] = model.metric == GV_IP ? 0.0f :
			(float) rounding.square;
		raise(&model.d_limits->length, rounding.square);
		raise(&model.d_limits->error, rounding.error);
	}
}

/* Copies of the centroids that elements first .. first + n - 1 are in. */
GvStatus
gv_gpu_half_update(GvMirror *mirror, int64_t first, int64_t n)
{
	const GvDeviceModel *model = &mirror->model;
	int			row = (int) (first / model->dims);
	int			nrows = (int) ((first + n - 1) / model->dims) - row + 1;

	GV_LAUNCH(centroids_to_half_kernel, (nrows + WARPS - 1) / WARPS, THREADS,
			  0,
			  mirror->stream, *model, row, nrows);
	return gv_cuda_status(cudaGetLastError());
}
