/*
 * cublas.cu
 *		Loads cuBLAS, calls it for products, and converts its statuses.
 *
 * cuBLAS is not linked but loaded when the first device needs it, because the
 * library has 600 MB, and devices that multiply by our own loops work without
 * it.
 *
 * Inputs are half precision, sums are fp32, and no step in between is less
 * precise (CUBLAS_COMPUTE_32F, no reductions of lower precision).  cuBLAS
 * stores matrices column by column, so our rows are its columns.
 *
 * Each searcher, builder and set has a cuBLAS handle for its stream, a
 * workspace and memory for a tile, which are created with the searcher,
 * builder or set.  So a batch allocates nothing, and a graph may contain the
 * launches.
 *
 * One call multiplies a tile, and the next launch runs the epilogue on the
 * tile's sums while they are in L2.  Each sum is written to L2 and read back,
 * which is 8 bytes for 2 dims operations (Johnson, Douze, Jegou,
 * "Billion-scale similarity search with GPUs", section 5.1).  So the number of
 * dimensions decides which way is faster.  On an H200 that uses only the loop
 * for every device, cuBLAS takes 1.6 to 2.5 times as long as this loop with
 * 128 dimensions, .8 to 1.8 times with 384, and .5 to 1.1 times with 768 and
 * more (test/bench/PAPERS.md, "products").
 */
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __CUDACC__
#include <dlfcn.h>
#if !__has_include(<cublas_v2.h>)
#error "no cublas_v2.h: install libcublas-dev of the CUDA toolkit (without a card: make NVCC=)"
#endif
#endif
#include <cublas_v2.h>

#include "gpu/product/product.h"

#define WORKSPACE			(INT64_C(8) << 20)
#define HOPPER_WORKSPACE	(INT64_C(32) << 20) /* as NVIDIA recommends */
#define MOST_SUMS			(INT64_C(8) << 20)	/* of a tile: 32 MB */
#define LEAST_SUMS			(INT64_C(1) << 18)	/* 32 rows x 8,192 columns */
#define LEAST_DIMS			512		/* see gv_blas_multiplies */
#define WIDE_COLUMNS		2048	/* of a tile of many rows */
#define TALL_COLUMNS		512		/* of a tall tile */
#define STREAM_DIVISOR		8		/* of a stream's memory, for a tile */

struct GvBlas
{
	cublasHandle_t handle;
	char	   *d_memory;		/* workspace, then sums */
	int64_t		workspace;		/* bytes */
	int64_t		nsums;
	bool		pdl;			/* see gv_gpu_has_pdl */
};

/*
 * The type of cublasGemmEx.  It is spelled out because the header also
 * declares an older overload.
 */
typedef cublasStatus_t (*Multiply) (cublasHandle_t, cublasOperation_t,
									cublasOperation_t, int, int, int,
									const void *, const void *, cudaDataType_t,
									int, const void *, cudaDataType_t, int,
									const void *, void *, cudaDataType_t, int,
									cublasComputeType_t, cublasGemmAlgo_t);

/* The library's functions. */
struct Library
{
	decltype(&cublasCreate_v2) create;
	decltype(&cublasDestroy_v2) destroy;
	decltype(&cublasSetStream_v2) set_stream;
	decltype(&cublasSetWorkspace_v2) set_workspace;
	decltype(&cublasSetMathMode) set_math_mode;
	Multiply	multiply;
	bool		found;
};

static bool used[GV_MAX_DEVICES];

/* Number of sums that a tile has memory for; 0 chooses the best number. */
GV_TUNABLE int64_t gv_blas_sums = 0;

#ifdef __CUDACC__

/* Returns false if the library has no such function. */
template <typename Function>
static bool
find(void *library, const char *name, Function *function)
{
	*function = (Function) dlsym(library, name);
	return *function != NULL;
}

static Library
load_library()
{
	Library		found = {};
	char		name[40];
	void	   *library;

	snprintf(name, sizeof(name), "libcublas.so.%d", CUBLAS_VER_MAJOR);
	library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	found.found = library != NULL &&
		find(library, "cublasCreate_v2", &found.create) &&
		find(library, "cublasDestroy_v2", &found.destroy) &&
		find(library, "cublasSetStream_v2", &found.set_stream) &&
		find(library, "cublasSetWorkspace_v2", &found.set_workspace) &&
		find(library, "cublasSetMathMode", &found.set_math_mode) &&
		find(library, "cublasGemmEx", &found.multiply);
	return found;
}

#else

static Library
load_library()
{
	return {cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2,
		cublasSetWorkspace_v2, cublasSetMathMode, cublasGemmEx,
		getenv("GPUVEC_EMULATED_NO_CUBLAS") == NULL};
}

#endif

/*
 * Returns the library.  It is loaded at the first call, and stays loaded until
 * the process ends.
 */
static const Library &
library()
{
	static const Library found = load_library();

	return found;
}

/* Returns the status of a cuBLAS call; see gv_cuda_status_at. */
static GvStatus
blas_status(cublasStatus_t status, int line)
{
	GvStatus	known;

	switch (status)
	{
		case CUBLAS_STATUS_SUCCESS:
			return GV_OK;
		case CUBLAS_STATUS_ALLOC_FAILED:
		case CUBLAS_STATUS_NOT_INITIALIZED: /* no memory for a handle */
			(void) cudaGetLastError();
			return GV_NO_MEMORY;
		case CUBLAS_STATUS_INVALID_VALUE:
		case CUBLAS_STATUS_ARCH_MISMATCH:
		case CUBLAS_STATUS_NOT_SUPPORTED:
			(void) cudaGetLastError();
			return gv_note_rejection("cuBLAS rejected it", __FILE__, line);
		default:				/* a launch failed: CUDA knows why */
			known = gv_cuda_status_at(cudaGetLastError(), __FILE__, line);
			return gv_is_survivable(known) ? known : GV_FAILED;
	}
}

#define BLAS_STATUS(call)	blas_status(call, __LINE__)
#define GV_BLAS_TRY(call)	GV_TRY(BLAS_STATUS(call))

extern "C" GvStatus
gv_blas_open(GvDevice *devices, int32_t n)
{
	GvMatmulSetting wanted = gv_matmul_used();
	char		reason[80];

	snprintf(reason, sizeof(reason),
			 "no cuBLAS (libcublas.so.%d: install libcublas-%d-%d)",
			 CUBLAS_VER_MAJOR, CUDART_VERSION / 1000,
			 CUDART_VERSION % 1000 / 10);	/* as packages are named */
	for (int32_t i = 0; i < n; i++)
	{
		size_t		length = strlen(devices[i].name);

		used[i] = wanted == GV_MATMUL_CUBLAS ||
			(wanted == GV_MATMUL_AUTO && !gv_has_hopper(i));
		if (!used[i] || library().found)
			continue;
		used[i] = false;
		if (wanted == GV_MATMUL_CUBLAS)
		{
			snprintf(devices[0].name, sizeof(devices[0].name), "%s", reason);
			return GV_INVALID;
		}
		snprintf(devices[i].name + length, sizeof(devices[i].name) - length,
				 ", %s", reason);
	}
	return GV_OK;
}

static int64_t
round_up(int64_t n)
{
	return (n + GV_COLUMN_GROUP - 1) / GV_COLUMN_GROUP * GV_COLUMN_GROUP;
}

/* Sets the sizes of a stream's workspace and tile on a device. */
static GvStatus
plan(int32_t device, GvBlas *blas)
{
	size_t		nfree;
	size_t		total;

	GV_TRY(gv_choose_device(device));
	GV_CUDA_TRY(cudaMemGetInfo(&nfree, &total));
	blas->workspace = gv_has_hopper(device) ? HOPPER_WORKSPACE : WORKSPACE;
	blas->nsums = std::clamp(gv_gpu_stream_bytes(total) / STREAM_DIVISOR /
							 (int64_t) sizeof(float), LEAST_SUMS, MOST_SUMS);
	if (gv_blas_sums > 0)
	{
		blas->workspace = std::min(blas->workspace, gv_blas_sums * 4);
		blas->nsums = gv_blas_sums;
	}
	return gv_gpu_has_pdl(&blas->pdl);
}

/*
 * Returns whether cuBLAS pays for this number of dimensions: whether the
 * multiplication takes longer than writing the sums to memory and reading them
 * back, or the setting asks for cuBLAS.
 */
static bool
is_worth(int32_t dims)
{
	return gv_matmul_used() == GV_MATMUL_CUBLAS || dims >= LEAST_DIMS;
}

static bool
is_used(int32_t device, int32_t dims)
{
	return used[device] && (dims == 0 || is_worth(dims));
}

extern "C" int64_t
gv_blas_bytes(int32_t device, int32_t dims)
{
	GvBlas		blas = {};

	if (!is_used(device, dims) || plan(device, &blas) != GV_OK)
		return 0;
	return blas.workspace + blas.nsums * (int64_t) sizeof(float);
}

static GvStatus
prepare(GvBlas *blas, int32_t device, cudaStream_t stream)
{
	GV_TRY(plan(device, blas));
	GV_BLAS_TRY(library().create(&blas->handle));
	GV_CUDA_TRY(cudaMalloc((void **) &blas->d_memory, (size_t)
						   (blas->workspace + blas->nsums * sizeof(float))));
	/*
	 * clear the memory, because the epilogue reads beyond the end of a
	 * product's sums, and ignores those values
	 */
	GV_CUDA_TRY(cudaMemsetAsync(blas->d_memory + blas->workspace, 0,
								blas->nsums * sizeof(float), stream));
	GV_BLAS_TRY(library().set_stream(blas->handle, stream));
	/* after the stream, since setting that resets the workspace */
	GV_BLAS_TRY(library().set_workspace(blas->handle, blas->d_memory,
										(size_t) blas->workspace));
	return BLAS_STATUS(library().set_math_mode(blas->handle,
											   (cublasMath_t)
											   (CUBLAS_DEFAULT_MATH |
												CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
}

GvStatus
gv_blas_create(int32_t device, int32_t dims, cudaStream_t stream,
			   GvBlas **blas)
{
	*blas = NULL;
	if (!is_used(device, dims))
		return GV_OK;
	return gv_make(blas, [=] (GvBlas *made)
	{
		return prepare(made, device, stream);
	}, gv_blas_drop);
}

/*
 * Drops a GvBlas, which may be only partly initialized.  Its stream must still
 * exist.
 */
void
gv_blas_drop(GvBlas *blas)
{
	if (blas == NULL)
		return;
	if (blas->handle != NULL)
		(void) library().destroy(blas->handle);
	(void) cudaFree(blas->d_memory);
	free(blas);
}

bool
gv_blas_multiplies(const GvBlas *blas, const GvMatmul *matmul)
{
	return blas != NULL && is_worth(matmul->half_dims);
}

/*
 * In a tall tile each row belongs to one warp.  A device runs thousands of
 * warps, so a tall tile has many rows and few columns.
 */
GvStatus
gv_blas_multiply(const GvBlas *blas, const GvMatmul *matmul, int32_t row,
				 int32_t column, bool tall, GvMatmulTile *tile)
{
	const float one = 1.0f;
	const float zero = 0.0f;
	int			dims = matmul->half_dims;
	int64_t		columns = std::min(round_up(matmul->ncolumns), (int64_t)
								   (tall ? TALL_COLUMNS : WIDE_COLUMNS));
	int64_t		rows = round_up(matmul->nrows);

	/* if there are few rows, a tile has more columns, to fill the device */
	rows = std::min(rows, blas->nsums / columns / GV_COLUMN_GROUP *
					GV_COLUMN_GROUP);
	rows = std::max(rows, (int64_t) GV_COLUMN_GROUP);
	columns = std::min(round_up(matmul->ncolumns), blas->nsums / rows /
					   GV_COLUMN_GROUP * GV_COLUMN_GROUP);
	tile->row = row;
	tile->nrows = (int32_t) std::min(rows, (int64_t) matmul->nrows - row);
	tile->column = column;
	tile->ncolumns =
		(int32_t) std::min(columns, (int64_t) matmul->ncolumns - column);
	tile->stride = (int32_t) columns;
	tile->d_sums = (float *) (blas->d_memory + blas->workspace);
	tile->pdl = blas->pdl;
	return BLAS_STATUS(library().multiply(blas->handle, CUBLAS_OP_T,
										  CUBLAS_OP_N, tile->ncolumns,
										  tile->nrows, dims, &one,
										  matmul->d_columns +
										  (int64_t) column * dims,
										  CUDA_R_16F, dims, matmul->d_rows +
										  (int64_t) row * dims,
										  CUDA_R_16F, dims, &zero,
										  tile->d_sums, CUDA_R_32F,
										  tile->stride, CUBLAS_COMPUTE_32F,
										  CUBLAS_GEMM_DEFAULT));
}
