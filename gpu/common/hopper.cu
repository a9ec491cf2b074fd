/*
 * hopper.cu
 *		What a device of compute capability 9.0 is asked before hopper.cuh can
 *		serve: whether code for it is there, and the driver's maps of arrays.
 */
#ifdef __CUDACC__
#include <cudaTypedefs.h>
#endif

#include "gpu/common/gv_cuda.h"
#include "gpu/common/hopper.cuh"

#ifdef __CUDACC__

/* As the host may ask of the code that its device runs. */
static __constant__ int compiled_for_hopper = GV_HOPPER;

/* See gv_cuda.h. */
bool
gv_gpu_hopper_works()
{
	int			compiled = 0;

	if (cudaMemcpyFromSymbol(&compiled, compiled_for_hopper,
							 sizeof(compiled)) != cudaSuccess)
		(void) cudaGetLastError();
	return compiled;
}

/* A function of the driver, which is not linked. */
typedef PFN_cuTensorMapEncodeTiled_v12000 Encode;

/* NULL: it is not there. */
static Encode
find_encode()
{
	static const char name[] = "cuTensorMapEncodeTiled";
	void	   *found = NULL;
	cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
	cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000,
														 cudaEnableDefault,
														 &result);
#else
	cudaError_t error = cudaGetDriverEntryPoint(name, &found,
												cudaEnableDefault, &result);
#endif

	if (error == cudaSuccess && result == cudaDriverEntryPointSuccess)
		return (Encode) found;
	(void) cudaGetLastError();
	return NULL;
}

/* The same, looked for once. */
static Encode
encode_function()
{
	static const Encode found = find_encode();

	return found;
}

/* See gv_cuda.h. */
bool
gv_gpu_hopper_multiplies()
{
	return encode_function() != NULL;
}

/* See hopper.cuh. */
GvStatus
gv_gpu_hopper_map(CUtensorMap *map, const uint16_t *array, int64_t nrows,
				  int half_dims, int box_rows)
{
	cuuint64_t	shape[2] = {(cuuint64_t) half_dims, (cuuint64_t) nrows};
	cuuint64_t	row_bytes[1] = {half_dims * sizeof(uint16_t)};
	cuuint32_t	box[2] = {GV_HOPPER_ROW / 2, (cuuint32_t) box_rows};
	cuuint32_t	each[2] = {1, 1};
	CUresult	result;

	result = encode_function() (map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
								(void *) array, shape, row_bytes, box, each,
								CU_TENSOR_MAP_INTERLEAVE_NONE,
								CU_TENSOR_MAP_SWIZZLE_128B,
								CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
								CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return result == CUDA_SUCCESS ? GV_OK : GV_FAILED;
}

#else

bool
gv_gpu_hopper_works()
{
	return gv_emulated_capability == 90 && gv_emulated_code == 90;
}

bool
gv_gpu_hopper_multiplies()
{
	return true;
}

GvStatus
gv_gpu_hopper_map(CUtensorMap *map, const uint16_t *array, int64_t nrows,
				  int half_dims, int box_rows)
{
	*map = {array, nrows, half_dims, box_rows};
	return GV_OK;
}

#endif
