/*
 * candidates.cu
 *		The centroids that may be nearest to each of many rows: a matrix
 *		product of half copies (gpu/product; gv_clusters.h has the proof).
 *
 * A row has a bound, which falls as centroids are met and is the better the
 * sooner it is low: hence the one that it starts from (settle.cu).  Of a run
 * of 32 centroids and a row a quad of lanes finds the least score; eps, from
 * what is known of the run, is taken off it once.  Only where that is within
 * the bound, in one of 128 runs when clusters are 4,096, scores are looked at
 * one by one.  That is a product and a minimum for each score, and half an
 * operation for eps.
 */
#include "gpu/cluster/clusters.cuh"
#include "gpu/product/product.cuh"

#define TILES			(GV_RUN / 8)	/* of products, in a run */

/* Sums become close centroids: see gpu/product/become.cuh. */
struct Close
{
	GvClusters	cl;
	int64_t		first;			/* row of the piece, */
	int			n;				/* rows of the piece */

	struct alignas(16) Row
	{
		float4		parts;		/* factors of a run's 2 (L + F) and 2 F, eps's
								 * own part less Q^2, Q^2 */
		int			bound;		/* with Q^2; a float's bits, which ascend as it
								 * does because it is not negative */
		uint32_t	count;		/* close centroids */
	};

	struct Columns
	{
		float2		squares[TILES];
		float4		span;		/* of the run */
	};

	/* Beyond the last row all are too far. */
	__device__ __forceinline__ void
	begin(Row *mine, int row) const
	{
		float4		parts = {0.0f, 0.0f, 0.0f, 0.0f};
		float		bound = 0.0f;
		uint32_t	count = 0;

		if (row < n)
		{
			float2		lengths = cl.d_lengths[first + row];
			float		both = lengths.x + lengths.y;

			parts.w = lengths.x * lengths.x;
			parts.x = 1.001f * (lengths.y + both * (float) (cl.dims + 32) *
								0x1p-22f);
			parts.y = 1.001f * lengths.x;
			parts.z = gv_clusters_row_rest(cl, lengths,
										   gv_clusters_scale(cl)) - parts.w;
			bound = cl.d_reach[row];
			count = cl.d_counts[row];
		}
		mine->parts = parts;
		mine->bound = (int) __float_as_uint(bound);
		mine->count = count;
	}

	__device__ __forceinline__ void
	end(const Row *mine, int row) const
	{
		if (row >= n)
			return;
		cl.d_reach[row] = __int_as_float(mine->bound);
		cl.d_counts[row] = mine->count;
	}

	/* There are squares and spans up to a multiple of GV_CLOSE_LISTS. */
	__device__ __forceinline__ Columns
	columns(int run) const
	{
		const float *squares = cl.d_squares + run * GV_RUN +
			threadIdx.x % 4 * 2;
		Columns		found;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			found.squares[j] = *(const float2 *) (squares + j * 8);
		found.span = cl.d_spans[run];
		return found;
	}

	__device__ __forceinline__ void
	take(const Columns &of, Row *mine, int row, int run,
		 const float2 (&sums)[TILES]) const
	{
		float4		parts = mine->parts;
		float		bound = __int_as_float(mine->bound);
		float		least = __int_as_float(0x7F800000);
		/* eps - Q^2 */
		float		shift = fmaf(parts.x, of.span.x,
								 fmaf(parts.y, of.span.y,
									  parts.z + of.span.z));
		float2		scores[TILES];

#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			/* the product is exact */
			scores[j].x = fmaf(-2.0f, sums[j].x, of.squares[j].x);
			scores[j].y = fmaf(-2.0f, sums[j].y, of.squares[j].y);
			least = fminf(least, fminf(scores[j].x, scores[j].y));
		}
		if (__any_sync(GV_FULL_WARP, !(least - shift > bound)))
			note(mine, row, shift, scores, least,
				 run * GV_RUN + threadIdx.x % 4 * 2);
	}

	/* A quad's bound of a row, and the centroids within it, from `list` on. */
	__device__ __forceinline__ void
	note(Row *mine, int row, float shift, const float2 (&scores)[TILES],
		 float least, int list) const
	{
		float		bound = __int_as_float(mine->bound);
		float		found;

		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 1));
		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 2));
		found = least + (shift + 2.0f * mine->parts.w); /* a + eps + Q^2 */
		if (found < bound)
		{
			bound = fmaxf(found, 0.0f);
			if (threadIdx.x % 4 == 0)
				atomicMin(&mine->bound, (int) __float_as_uint(bound));
		}
#pragma unroll
		for (int i = 0; i < 2 * TILES; i++)
		{
			float		score = (i % 2 == 0 ? scores[i / 2].x :
								 scores[i / 2].y) - shift;
			uint32_t	c = (uint32_t) (list + i / 2 * 8 + i % 2);

			if (!(score > bound) && (int) c < cl.k && row < n)
			{
				uint32_t	at = atomicAdd(&mine->count, 1u);

				if (at < GV_CLOSE_CAPACITY)
					cl.d_close[row * GV_CLOSE_CAPACITY + at] = {c, score};
			}
		}
	}
};

/* See gv_clusters.h. */
GvStatus
gv_gpu_candidates(const GvClusters *cl, int64_t first, int32_t n,
				  const GvMatmulContext *by)
{
	GvMatmul	matmul = {cl->d_half_rows + first * cl->half_dims, n,
	cl->d_half_centroids, cl->k, cl->half_dims};

	GV_CUDA_TRY(cudaMemsetAsync(cl->d_counts, 0, n * sizeof(uint32_t),
								by->stream));
	return gv_gpu_matmul<true>(by, &matmul, Close {*cl, first, n});
}
