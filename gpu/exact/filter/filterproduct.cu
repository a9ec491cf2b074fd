/*
 * filterproduct.cu
 *		Scores of queries and rows as every device can have them (gpu/product),
 *		and what reaches a query's cut; or all of them, to memory.
 */
#include "gpu/exact/filter/exact.cuh"
#include "gpu/product/product.cuh"

#define TILES			(GV_RUN / 8)

/* The biases of a lane's rows of a run. */
struct Biases
{
	float2		bias[TILES];
};

static __device__ __forceinline__ float
bias_of(const GvExactMatmul &matmul, int row)
{
	return row < (int) matmul.nslots ? matmul.d_bias[row] :
		__int_as_float(0xFF800000);
}

static __device__ __forceinline__ Biases
biases_of(const GvExactMatmul &matmul, int run)
{
	int			row = run * GV_RUN + threadIdx.x % 4 * 2;
	Biases		found;

#pragma unroll
	for (int j = 0; j < TILES; j++)
		found.bias[j] = make_float2(bias_of(matmul, row + j * 8),
									bias_of(matmul, row + j * 8 + 1));
	return found;
}

/* Sums become scores in memory: see gpu/product/become.cuh. */
struct Stored : GvNoRow
{
	GvExactMatmul matmul;

	using Columns = Biases;

	__device__ __forceinline__ Biases
	columns(int run) const
	{
		return biases_of(matmul, run);
	}

	__device__ __forceinline__ void
	take(const Biases &of, Row *, int query, int run,
		 const float2 (&sums)[TILES]) const
	{
		int			row = run * GV_RUN + threadIdx.x % 4 * 2;
		float	   *to = matmul.d_scores + (int64_t) query * matmul.nslots;

		if (query >= matmul.n)
			return;
#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			if (row + j * 8 < (int) matmul.nslots)
				to[row + j * 8] = sums[j].x + of.bias[j].x;
			if (row + j * 8 + 1 < (int) matmul.nslots)
				to[row + j * 8 + 1] = sums[j].y + of.bias[j].y;
		}
	}
};

/* Slots of sums that reach the query's cut are appended, to be reranked. */
struct Reaching
{
	GvExactMatmul matmul;

	using Columns = Biases;
	struct Row
	{
		float		cut;
	};

	/* rows that cannot be held reach everything but NaN */
	__device__ __forceinline__ void
	begin(Row *mine, int query) const
	{
		mine->cut = query < matmul.n ? matmul.filter.d_cuts[query] :
			__int_as_float(0x7FC00000);
	}

	__device__ __forceinline__ void
	end(Row *, int) const
	{
	}

	__device__ __forceinline__ Biases
	columns(int run) const
	{
		return biases_of(matmul, run);
	}

	__device__ __forceinline__ void
	take(const Biases &of, const Row *mine, int query, int run,
		 const float2 (&sums)[TILES]) const
	{
		uint32_t	slot = matmul.first + run * GV_RUN + threadIdx.x % 4 * 2;
		float		cut = mine->cut;

#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			if (sums[j].x + of.bias[j].x >= cut)
				gv_exact_append(matmul.filter, query, slot + j * 8);
			if (sums[j].y + of.bias[j].y >= cut)
				gv_exact_append(matmul.filter, query, slot + j * 8 + 1);
		}
	}
};

/* See gv_exact.h. */
GvStatus
gv_gpu_exact_matmul(const GvExactMatmul *exact, const GvBlas *blas,
					 cudaStream_t stream)
{
	GvMatmul	matmul = {exact->d_queries, exact->n, exact->d_half_rows,
	(int32_t) exact->nslots, exact->half_dims};
	/* devices of 9.0 have hopperfilter.cu */
	GvMatmulContext by = {blas, false, 0, false, stream};

	if (exact->d_scores != NULL)
		return gv_gpu_matmul<false>(&by, &matmul, Stored {{}, *exact});
	return gv_gpu_matmul<false>(&by, &matmul, Reaching {*exact});
}
