/*
 * set.cu
 *		The CUDA engine's sets: src/engine/gv_set.h.
 */
#include "gpu/device/device.h"

extern "C" const GvSetBackend gv_cuda_sets = {
	.name = "cuda",
	.kinds = {
		&gv_gpu_exact_set,
		&gv_gpu_kmeans_set,
		&gv_gpu_select_set,
		&gv_gpu_quantiles_set
	}
};
