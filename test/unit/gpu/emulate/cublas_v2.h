/*
 * cublas_v2.h
 *		Stands in for cuBLAS's header of that name.  Only what gpu/ uses.
 *
 * Sums are made in an order that is another for each, and some are cut where
 * others are rounded (cublas.cpp): as far off as gv_product.h says they may be
 * at most, which is what the margins of filters are to bear.
 */
#ifndef CUBLAS_V2_H
#define CUBLAS_V2_H

#include "cuda_runtime.h"

#define CUBLAS_VER_MAJOR	13

enum cublasStatus_t
{
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_NOT_INITIALIZED = 1,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_ARCH_MISMATCH = 8,
	CUBLAS_STATUS_EXECUTION_FAILED = 13,
	CUBLAS_STATUS_NOT_SUPPORTED = 15
};

enum cublasOperation_t
{
	CUBLAS_OP_N,
	CUBLAS_OP_T
};

enum cudaDataType_t
{
	CUDA_R_32F,
	CUDA_R_16F
};

enum cublasComputeType_t
{
	CUBLAS_COMPUTE_32F = 68
};

enum cublasGemmAlgo_t
{
	CUBLAS_GEMM_DEFAULT = -1
};

enum cublasMath_t
{
	CUBLAS_DEFAULT_MATH = 0,
	CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};

typedef struct gv_emulated_blas *cublasHandle_t;

extern cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
extern cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
extern cublasStatus_t cublasSetStream_v2(cublasHandle_t handle,
										 cudaStream_t stream);
extern cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle,
											void *workspace, size_t bytes);
extern cublasStatus_t cublasSetMathMode(cublasHandle_t handle,
										cublasMath_t mode);
extern cublasStatus_t cublasGemmEx(cublasHandle_t handle,
								   cublasOperation_t first_op,
								   cublasOperation_t second_op, int m, int n,
								   int k, const void *alpha,
								   const void *first, cudaDataType_t first_type,
								   int first_stride, const void *second,
								   cudaDataType_t second_type,
								   int second_stride, const void *beta,
								   void *sums, cudaDataType_t sums_type,
								   int sums_stride,
								   cublasComputeType_t compute,
								   cublasGemmAlgo_t algorithm);

#endif							/* CUBLAS_V2_H */
