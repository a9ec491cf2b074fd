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

#include "cardtime.cuh"

#define YARD_SUMS		(INT64_C(1) << 28)
#define YARD_ROWS		(INT64_C(1) << 14)	/* of a part of a product */
#define YARD_ALIGN		INT64_C(32) /* sums: rows of them begin at such, because
									 * cuBLAS is slow where they do not */

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
			need(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, ncolumns, nrows,
							  dims, &one, columns + column * dims, CUDA_R_16F,
							  dims, rows + row * dims, CUDA_R_16F, dims, &zero,
							  sums, CUDA_R_32F, (int) yard_stride(ncolumns),
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

/* Microseconds that n x m x dims take. */
static inline double
yard_us(cudaStream_t stream, int64_t n, int m, int dims)
{
	int			half_dims = (dims + 15) / 16 * 16;
	int64_t		nhalves = (n + m) * half_dims;
	cublasHandle_t handle;
	float	   *sums;
	uint16_t   *halves;
	double		us;

	NEED(cudaMalloc((void **) &sums, (size_t) yard_sums(n, m) * 4));
	NEED(cudaMalloc((void **) &halves, (size_t) nhalves * 2));
	need(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS &&
		 cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS, "cuBLAS");
	yard_noise_kernel<<<1024, 256, 0, stream>>>(halves, nhalves, half_dims, 1);
	us = card_time(stream, [&]
	{
		yard_multiply(handle, n, m, half_dims, halves, halves + n * half_dims,
					  sums);
	});
	(void) cublasDestroy(handle);
	(void) cudaFree(sums);
	(void) cudaFree(halves);
	return us;
}

#endif							/* YARD_CUH */
