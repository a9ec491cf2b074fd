/*
 * yard.cuh
 *		The yardstick of what multiplies matrices: cuBLAS's bare product of the
 *		same shape, halves in, sums of fp32 to memory, which nothing looks at.
 */
#ifndef YARD_CUH
#define YARD_CUH

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define YARD_ROUNDS		7
#define YARD_SUMS		(INT64_C(1) << 28)	/* of a product; more are several */

static inline void
yard_need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "yardstick: %s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

/* Rows [n][dims] by columns [m][dims] to sums, which has room for YARD_SUMS. */
static inline void
yard_multiply(cublasHandle_t handle, int64_t n, int m, int dims,
			  const uint16_t *rows, const uint16_t *columns, float *sums)
{
	const float one = 1.0f;
	const float zero = 0.0f;
	int64_t		most = YARD_SUMS / m;

	for (int64_t row = 0; row < n; row += most)
		yard_need(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m,
							   (int) (n - row < most ? n - row : most), dims,
							   &one, columns, CUDA_R_16F, dims,
							   rows + row * dims, CUDA_R_16F, dims, &zero,
							   sums, CUDA_R_32F, m, CUBLAS_COMPUTE_32F,
							   CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
				  "cublasGemmEx");
}

/* Microseconds that n x m x dims take, the least of a few; of zeros. */
static inline double
yard_us(int64_t n, int m, int dims)
{
	int			half_dims = (dims + 15) / 16 * 16;
	int64_t		nsums = n * m < YARD_SUMS ? n * m : YARD_SUMS;
	size_t		bytes = (size_t) ((n + m) * half_dims * 2 + nsums * 4);
	cublasHandle_t handle;
	cudaEvent_t begin;
	cudaEvent_t end;
	float	   *sums;
	uint16_t   *rows;
	double		least = 0.0;

	yard_need(cudaMalloc((void **) &sums, bytes) == cudaSuccess &&
			  cudaMemset(sums, 0, bytes) == cudaSuccess &&
			  cudaEventCreate(&begin) == cudaSuccess &&
			  cudaEventCreate(&end) == cudaSuccess &&
			  cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "setting up");
	rows = (uint16_t *) (sums + nsums);
	for (int i = 0; i < YARD_ROUNDS; i++)
	{
		float		ms;

		(void) cudaEventRecord(begin, 0);
		yard_multiply(handle, n, m, half_dims, rows, rows + n * half_dims,
					  sums);
		(void) cudaEventRecord(end, 0);
		yard_need(cudaEventSynchronize(end) == cudaSuccess &&
				  cudaEventElapsedTime(&ms, begin, end) == cudaSuccess,
				  "a product");
		if (i == 0 || 1000.0 * ms < least)
			least = 1000.0 * ms;
	}
	(void) cublasDestroy(handle);
	(void) cudaEventDestroy(begin);
	(void) cudaEventDestroy(end);
	(void) cudaFree(sums);
	return least;
}

#endif							/* YARD_CUH */
