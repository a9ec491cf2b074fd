/*
 * yard.cuh
 *		The yardstick of what multiplies matrices: cuBLAS's bare product of the
 *		same shape, halves in, sums of fp32 to memory, which nothing looks at.
 *
 * More sums than YARD_SUMS are several products of as many each, one after the
 * other into the same memory.  They have many rows and many columns, because one
 * that is narrow reads the other matrix too often, which would flatter us.
 */
#ifndef YARD_CUH
#define YARD_CUH

#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#define YARD_ROUNDS		5		/* of which the median counts */
#define YARD_REPEATS	20		/* at most, in a row, of a round, */
#define YARD_ROUND_US	1000.0	/* that a round should take */
#define YARD_SUMS		(INT64_C(1) << 28)
#define YARD_ROWS		(INT64_C(1) << 14)	/* of a part of a product */
#define YARD_ALIGN		INT64_C(32) /* sums: rows of them begin at such, because
									 * cuBLAS is slow where they do not */

static inline void
yard_need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "yardstick: %s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

/* Floats from a row of sums to the next. */
static inline int64_t
yard_stride(int64_t ncolumns)
{
	return (ncolumns + YARD_ALIGN - 1) / YARD_ALIGN * YARD_ALIGN;
}

/* Room for sums that yard_multiply needs. */
static inline int64_t
yard_sums(int64_t n, int m)
{
	int64_t		sums = n * yard_stride(m);

	return sums < YARD_SUMS ? sums : YARD_SUMS;
}

/* Rows [n][dims] by columns [m][dims] to sums, on the handle's stream. */
static inline void
yard_multiply(cublasHandle_t handle, int64_t n, int m, int dims,
			  const uint16_t *rows, const uint16_t *columns, float *sums)
{
	const float one = 1.0f;
	const float zero = 0.0f;
	int64_t		least = n < YARD_ROWS ? n : YARD_ROWS;
	int64_t		high = YARD_SUMS / yard_stride(m);
	int64_t		wide;

	if (high < least)
		high = least;
	wide = YARD_SUMS / high / YARD_ALIGN * YARD_ALIGN;
	for (int64_t row = 0; row < n; row += high)
		for (int64_t column = 0; column < m; column += wide)
		{
			int			nrows = (int) (n - row < high ? n - row : high);
			int			ncolumns = (int) (m - column < wide ? m - column :
										  wide);

			/* matrices of cuBLAS are column by column: our rows are columns */
			yard_need(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, ncolumns,
								   nrows, dims, &one, columns + column * dims,
								   CUDA_R_16F, dims, rows + row * dims,
								   CUDA_R_16F, dims, &zero, sums, CUDA_R_32F,
								   (int) yard_stride(ncolumns),
								   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) ==
					  CUBLAS_STATUS_SUCCESS, "cublasGemmEx");
		}
}

/*
 * [n] numbers around 0, of which rows of dims have a length of about 1.  Not
 * zeros: of these a product needs less power, and a card is the faster for it.
 */
static __global__ void
yard_noise_kernel(uint16_t *halves, int64_t n, int dims, uint64_t seed)
{
	int64_t		i = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;

	for (; i < n; i += (int64_t) gridDim.x * blockDim.x)
	{
		uint64_t	x = (i + seed) * 0x9E3779B97F4A7C15ull;

		x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
		x = (x ^ x >> 27) * 0x94D049BB133111EBull;
		x ^= x >> 31;
		halves[i] = __half_as_ushort(
			__float2half(((x & 65535) + (x >> 16 & 65535) +
						  (x >> 32 & 65535) + (x >> 48)) / 65536.0f - 2.0f) *
			__float2half(1.7f * rsqrtf((float) dims)));
	}
}

/*
 * Microseconds that n x m x dims take: the median of a few rounds, each of which
 * has short products in a row, so that a launch is not what is measured.
 */
static inline double
yard_us(cudaStream_t stream, int64_t n, int m, int dims)
{
	int			half_dims = (dims + 15) / 16 * 16;
	int64_t		nsums = yard_sums(n, m);
	int64_t		nhalves = (n + m) * half_dims;
	int			repeats = 1;
	cublasHandle_t handle;
	cudaEvent_t begin;
	cudaEvent_t end;
	float	   *sums;
	uint16_t   *halves;
	double		times[YARD_ROUNDS];

	yard_need(cudaMalloc((void **) &sums, (size_t) nsums * 4) == cudaSuccess &&
			  cudaMalloc((void **) &halves, (size_t) nhalves * 2) ==
			  cudaSuccess, "memory");
	yard_need(cudaEventCreate(&begin) == cudaSuccess &&
			  cudaEventCreate(&end) == cudaSuccess &&
			  cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS &&
			  cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS,
			  "setting up");
	yard_noise_kernel<<<1024, 256, 0, stream>>>(halves, nhalves, half_dims, 1);

	/* the first round loads kernels, the second tells how many fit in one */
	for (int i = -2; i < YARD_ROUNDS; i++)
	{
		float		ms;
		double		us;

		(void) cudaEventRecord(begin, stream);
		for (int j = 0; j < repeats; j++)
			yard_multiply(handle, n, m, half_dims, halves,
						  halves + n * half_dims, sums);
		(void) cudaEventRecord(end, stream);
		yard_need(cudaEventSynchronize(end) == cudaSuccess &&
				  cudaEventElapsedTime(&ms, begin, end) == cudaSuccess,
				  "a product");
		us = 1000.0 * ms / repeats;
		if (i >= 0)
			times[i] = us;
		else if (i == -1)
			repeats = us * YARD_REPEATS <= YARD_ROUND_US ? YARD_REPEATS :
				us >= YARD_ROUND_US ? 1 : (int) (YARD_ROUND_US / us);
	}
	bench_sort_times(times, YARD_ROUNDS);
	(void) cublasDestroy(handle);
	(void) cudaEventDestroy(begin);
	(void) cudaEventDestroy(end);
	(void) cudaFree(sums);
	(void) cudaFree(halves);
	return times[YARD_ROUNDS / 2];
}

#endif							/* YARD_CUH */
