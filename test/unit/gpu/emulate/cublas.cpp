/*
 * cublas.cpp
 *		cuBLAS's product, by plain loops in an order of its own.
 *
 * A sum is made in one of four ways, chosen by its place and a number of the
 * launch: rounded, from the first product to the last; cut towards zero, in a
 * random order; in groups of 4, 8 or 16 as tensor cores have them, each of
 * whose products is aligned to the largest and cut; and the same in parts
 * whose sums are added in the end.
 */
#include <cstdio>

#include "cublas_v2.h"
#include "cuda_fp16.h"
#include "gpu/device/warp.cuh"

#define THREADS			32
#define MOST_DIMS		16384
#define UNIT_BITS		23		/* of what groups are aligned to, behind its
								 * first */

struct gv_emulated_blas
{
	cudaStream_t stream;
	void	   *workspace;
	bool		exact;			/* reductions of lower precision are not to
								 * be */
};

/* The arguments of a launch. */
struct Matrices
{
	int			m;
	int			n;
	int			k;
	const uint16_t *first;		/* [m][first_stride] */
	int			first_stride;
	const uint16_t *second;		/* [n][second_stride] */
	int			second_stride;
	float	   *sums;			/* [n][sums_stride] */
	int			sums_stride;
	uint64_t	seed;
};

static uint64_t
scramble(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xBF58476D1CE4E5B9);
	x ^= x >> 27;
	x *= UINT64_C(0x94D049BB133111EB);
	return x ^ x >> 31;
}

/* A number of fp32, towards zero. */
static float
cut(double x)
{
	float		rounded = (float) x;

	return fabs((double) rounded) > fabs(x) ? nextafterf(rounded, 0.0f) :
		rounded;
}

/* Products and the sum so far, in units of the largest, and cut again. */
static float
add_group(float sum, const float *products, int n)
{
	double		largest = fabs((double) sum);
	double		all;
	double		unit;
	int			exponent;

	for (int i = 0; i < n; i++)
		largest = std::max(largest, fabs((double) products[i]));
	/* infinite, NaN, or nothing to add */
	if (!(largest > 0.0 && largest <= 3.4e38))
	{
		for (int i = 0; i < n; i++)
			sum += products[i];
		return sum;
	}
	(void) frexp(largest, &exponent);
	unit = ldexp(1.0, exponent - 1 - UNIT_BITS);
	all = trunc(sum / unit);
	for (int i = 0; i < n; i++)
		all += trunc(products[i] / unit);
	return cut(all * unit);
}

static float
add_groups(const float *products, int n, int group)
{
	float		sum = 0.0f;

	for (int i = 0; i < n; i += group)
		sum = add_group(sum, products + i, std::min(group, n - i));
	return sum;
}

/* All of n products, which it may move. */
static float
add_products(float *products, int n, uint64_t random)
{
	int			group = 4 << random / 4 % 3;
	int			part = std::max(group, (int) (random / 16 % 4 + 1) * 16);
	float		sum = 0.0f;

	switch (random % 4)
	{
		case 0:
			for (int i = 0; i < n; i++)
				sum += products[i];
			return sum;
		case 1:
			for (int i = n - 1; i > 0; i--)
			{
				random = scramble(random + 1);
				std::swap(products[i], products[random % (i + 1)]);
			}
			for (int i = 0; i < n; i++)
				sum = cut((double) sum + products[i]);
			return sum;
		case 2:
			return add_groups(products, n, group);
		default:
			for (int i = 0; i < n; i += part)
				sum = cut((double) sum + add_groups(products + i,
													std::min(part, n - i),
													group));
			return sum;
	}
}

/* A column of sums a block, its threads in turn a sum. */
static void
multiply_kernel(Matrices of)
{
	static float products[MOST_DIMS];	/* used up between two switches */
	const uint16_t *y = of.second + (int64_t) blockIdx.x * of.second_stride;

	for (int i = threadIdx.x; i < of.m; i += THREADS)
	{
		const uint16_t *x = of.first + (int64_t) i * of.first_stride;

		for (int d = 0; d < of.k; d++)
			products[d] = gv_from_half(x[d]) * gv_from_half(y[d]);
		of.sums[(int64_t) blockIdx.x * of.sums_stride + i] =
			add_products(products, of.k,
						 scramble(of.seed + (uint64_t) blockIdx.x * of.m + i));
	}
}

cublasStatus_t
cublasCreate_v2(cublasHandle_t *handle)
{
	*handle = NULL;
	if (gv_emulated_fault > 0 && --gv_emulated_fault == 0)
		return CUBLAS_STATUS_ALLOC_FAILED;
	*handle = new gv_emulated_blas {};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasDestroy_v2(cublasHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
	handle->stream = stream;
	handle->workspace = NULL;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
	if ((uintptr_t) workspace % 256 != 0)
		return CUBLAS_STATUS_INVALID_VALUE;
	handle->workspace = workspace;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
	handle->exact = (mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) != 0;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasGemmEx(cublasHandle_t handle, cublasOperation_t first_op,
			 cublasOperation_t second_op, int m, int n, int k,
			 const void *alpha, const void *first, cudaDataType_t first_type,
			 int first_stride, const void *second, cudaDataType_t second_type,
			 int second_stride, const void *beta, void *sums,
			 cudaDataType_t sums_type, int sums_stride,
			 cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
	static uint64_t launches;
	Matrices	of = {m, n, k, (const uint16_t *) first, first_stride,
		(const uint16_t *) second, second_stride, (float *) sums, sums_stride,
	scramble(__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED))};

	/* without a workspace of its own a handle takes memory when it likes */
	if (handle->workspace == NULL || !handle->exact)
	{
		fprintf(stderr, "cuBLAS is not set up as it is to be\n");
		abort();
	}
	if (first_op != CUBLAS_OP_T || second_op != CUBLAS_OP_N || m < 1 ||
		n < 1 || k < 1 || k > MOST_DIMS || first_stride < k ||
		second_stride < k || sums_stride < m || first_type != CUDA_R_16F ||
		second_type != CUDA_R_16F || sums_type != CUDA_R_32F ||
		compute != CUBLAS_COMPUTE_32F || *(const float *) alpha != 1.0f ||
		*(const float *) beta != 0.0f || algorithm != CUBLAS_GEMM_DEFAULT)
		return CUBLAS_STATUS_INVALID_VALUE;
	return gv_emulate_launch(false, dim3(n), dim3(THREADS), 0, handle->stream,
							 multiply_kernel, of) == cudaSuccess ?
		CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
