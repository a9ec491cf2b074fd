/*
 * nearest.cu
 *		The nearest centroid of each row, exactly, by a filter in half
 *		precision (kmeans.h has the proof).
 *
 *		begin	computes once the middle, the scale, and the half copies of
 *				rows that are kept
 *		halve	makes half copies of centroids, and of a piece of rows
 *		bounds	computes the score of the centroid that was nearest before: it
 *				is a bound, and often the answer
 *		candidates
 *				finds the centroids that may be nearest, by a matrix product of
 *				half copies (gpu/product)
 *		rescore	computes exact scores of the candidates, gv_assign's to the
 *				last bit; of centroids with equal scores the one with the
 *				smaller number comes first
 *		brute force
 *				compares rows that have more candidates than there is memory
 *				for with all centroids, four rows at a time
 *
 * Distances do not change when all vectors are moved, but the error of half
 * precision does, because it is relative to the lengths of vectors.  The
 * middle is the mean of the first centroids.  The scale brings the largest
 * number to at most 2^14, so that numbers 2^28 times smaller keep all of their
 * bits.
 *
 * A row's bound falls as the row meets centroids, and the lower it starts, the
 * fewer candidates there are.  For a row and a group of 32 centroids four
 * lanes find the smallest score and subtract once an eps that holds for the
 * whole group.  Only if the result is within the bound, as in one of 128
 * groups when there are 4,096 clusters, are the scores looked at one by one.
 * So a score costs a product, a minimum and half an operation for eps.
 */
#include <algorithm>

#include "gpu/kmeans/kmeans.h"
#include "gpu/product/product.cuh"
#include "gpu/search/coarse.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define LANE_GROUPS		(THREADS / GV_LANE_GROUP)
#define STRANDS			8		/* partial sums of each mean */
#define TILES			(GV_COLUMN_GROUP / 8)	/* tiles of a product in a
												 * group of columns */
#define BRUTE_ROWS		4		/* rows that a block compares at once */
#define EARLY_PART		16		/* the first 1 / 16 of the centroids gives the
								 * first bounds */
#define LAST_ITEM		UINT64_C(0xFFFFFFFFFFFFFFFF)

/*
 * most rows that are assigned at once, and most centroids that are multiplied
 * at once; 0 for the default
 */
GV_TUNABLE int32_t gv_kmeans_piece = 0;
GV_TUNABLE int32_t gv_kmeans_columns = 0;

/*
 * with at least this many centroids, the first pass finds bounds among a few
 * centroids before it compares all
 */
GV_TUNABLE int32_t gv_kmeans_early = 1 << 15;

/*
 * Rows that are assigned at once, and the centroids with which they are
 * compared.  d_rows [n] and d_centroids [k] have the numbers of these rows and
 * centroids, and cl has their half copies.
 */
struct Piece
{
	GvClusters	cl;
	int			n;
	const uint32_t *d_rows;
	int			k;
	const uint32_t *d_centroids;
	GvKmeansBound bound;
};

/* -- half copies */

/*
 * Returns the scale s.  If possible, it brings the largest |x_i - m_i| below
 * 2^14.
 */
static __device__ __forceinline__ float
scale_of(const GvClusters &cl)
{
	int			exponent = 13 + 127 - (int) (*cl.d_most >> 23);

	exponent = exponent < -50 ? -50 : exponent > 60 ? 60 : exponent;
	return __uint_as_float((uint32_t) (exponent + 127) << 23);
}

/*
 * Returns the term of eps for (Q + E)^2 or (L + F)^2, whose root is `length`.
 * The term is infinite if a score with a vector of this length may overflow.
 */
static __device__ __forceinline__ float
eps_of_length(const GvClusters &cl, float length, float scale)
{
	float		square = length * length;

	if (!(square < 0x1p118f * (scale * scale)))
		return GV_INFINITY;
	return 1.001f * 2.0f * square * (float) (cl.dims / 16 + 64) * 0x1p-24f;
}

/*
 * Computes the mean of the centroids.  Each block has 32 dimensions, and
 * STRANDS partial sums of each dimension.
 */
static __global__ void __launch_bounds__(GV_WARP *STRANDS)
middle_kernel(GvClusters cl)
{
	__shared__ double sums[STRANDS][GV_WARP];
	int			lane = threadIdx.x % GV_WARP;
	int			strand = threadIdx.x / GV_WARP;
	int			d = blockIdx.x * GV_WARP + lane;
	double		sum = 0.0;

	if (d < cl.dims)
	{
#pragma unroll 4
		for (int c = strand; c < cl.k; c += STRANDS)
			sum += (double) cl.d_centroids[(int64_t) c * cl.dims + d];
	}
	sums[strand][lane] = sum;
	__syncthreads();
	if (strand > 0 || d >= cl.dims)
		return;
	for (int s = 1; s < STRANDS; s++)
		sum += sums[s][lane];
	cl.d_middle[d] = gv_device_clamp(sum / cl.k);
}

/* Sets d_all to the numbers of the rows. */
static __global__ void __launch_bounds__(THREADS)
number_kernel(GvClusters cl)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < cl.n)
		cl.d_all[i] = (uint32_t) i;
}

/*
 * Sets *d_most to the largest |x_i - m_i| over the dimensions i of all rows x.
 * Each warp takes one row after the other.
 */
static __global__ void __launch_bounds__(THREADS)
most_kernel(GvClusters cl)
{
	int			lane = threadIdx.x % GV_WARP;
	int64_t		nwarps = (int64_t) gridDim.x * WARPS;
	float		most = 0.0f;

	for (int64_t row = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
		 row < cl.n; row += nwarps)
		for (int d = lane; d < cl.dims; d += GV_WARP)
			most = fmaxf(most, fabsf(cl.d_rows[row * cl.dims + d] -
									 cl.d_middle[d]));
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		most = fmaxf(most, __shfl_xor_sync(GV_FULL_WARP, most, half));
	/* floats that are not negative are ordered as their bits */
	if (lane == 0)
		atomicMax(cl.d_most, __float_as_uint(most));
}

/*
 * Stores the half copy [half_dims] of a vector that is moved and scaled.
 * Returns an upper bound of the moved vector's length in x, and an upper bound
 * of the length of the rounding error in y.  Called by a whole warp.
 */
static __device__ __forceinline__ float2
to_half_vector(const GvClusters &cl, const float *from, float scale,
			   uint16_t *to)
{
	GvHalfRounding<double> rounding = gv_to_half_vector<double,
		true>([&](int d)
	{
		return d < cl.dims ? (from[d] - cl.d_middle[d]) * scale : 0.0f;
	}, cl.half_dims, to);
	float		length = (float) (sqrt(rounding.square) * (1.0 + 0x1p-21));

	return make_float2(length, (float) (sqrt(rounding.error) *
										(1.0 + 0x1p-20)) +
					   length * 0x1p-22f + 1e-18f);
}

/* Makes half copies of the rows of a piece.  Each warp has a row. */
static __global__ void __launch_bounds__(THREADS)
rows_to_half_kernel(Piece piece)
{
	const GvClusters &cl = piece.cl;
	int64_t		i = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	float2		lengths;

	if (i >= piece.n)
		return;
	lengths = to_half_vector(cl, cl.d_rows +
							 (int64_t) piece.d_rows[i] * cl.dims,
							 scale_of(cl), cl.d_half_rows + i * cl.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		cl.d_lengths[i] = lengths;
}

/*
 * Makes half copies of centroids.  Each block has a group of centroids, and
 * each warp takes one centroid of the group after the other.
 */
static __global__ void __launch_bounds__(THREADS)
centroids_to_half_kernel(Piece piece)
{
	__shared__ float lengths[GV_COLUMN_GROUP];
	__shared__ float lost[GV_COLUMN_GROUP];
	const GvClusters &cl = piece.cl;
	float		scale = scale_of(cl);
	float		length = 0.0f;
	float		error = 0.0f;

	for (int i = threadIdx.x / GV_WARP; i < GV_COLUMN_GROUP; i += WARPS)
	{
		int64_t		c = (int64_t) blockIdx.x * GV_COLUMN_GROUP + i;
		float2		found = {0.0f, 0.0f};

		if (c < piece.k)
			found = to_half_vector(cl, cl.d_centroids +
								   (int64_t) piece.d_centroids[c] * cl.dims,
								   scale,
								   cl.d_half_centroids + c * cl.half_dims);
		if (threadIdx.x % GV_WARP == 0)
		{
			lengths[i] = found.x;
			lost[i] = found.y;
			/* above |C|^2 by less than 22 2^-24 |C|^2 */
			cl.d_squares[c] = c < piece.k ? found.x * found.x : GV_INFINITY;
		}
	}
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int i = 0; i < GV_COLUMN_GROUP; i++)
	{
		length = fmaxf(length, lengths[i]);
		error = fmaxf(error, lost[i]);
	}
	cl.d_group_norms[blockIdx.x] =
		make_float4(2.0f * (length + error), 2.0f * error,
					eps_of_length(cl, length + error, scale), 0.0f);
}

/* -- candidates */

/* The epilogue that lowers rows' bounds and notes candidates. */
struct CandidateEpilogue
{
	GvClusters	cl;				/* d_squares and d_group_norms begin at the
								 * product's first centroid */
	int			n;				/* rows of the piece */
	int			k;				/* centroids of the product */
	int			first;			/* number of the product's first centroid */

	struct alignas(16) Row
	{
		float4		parts;		/* factors of the group's 2 (L + F) and 2 F,
								 * the row's own part of eps less Q^2, and
								 * Q^2 */
		int			bound;		/* the bound with Q^2, as a float's bits, which
								 * are ordered as the float because it is not
								 * negative */
		uint32_t	count;		/* candidates */
	};

	struct ColumnState
	{
		float2		squares[TILES];
		float4		norms;		/* d_group_norms of the group */
	};

	/* A row beyond n gets bound 0, and `note` ignores its scores. */
	__device__ __forceinline__ void
	begin(Row *mine, int row) const
	{
		float4		parts = {0.0f, 0.0f, 0.0f, 0.0f};
		float		bound = 0.0f;
		uint32_t	count = 0;

		if (row < n)
		{
			float2		lengths = cl.d_lengths[row];
			float		both = lengths.x + lengths.y;
			float		scale = scale_of(cl);

			parts.w = lengths.x * lengths.x;
			parts.x = 1.001f * (lengths.y + both * (float) (cl.dims + 32) *
								0x1p-22f);
			parts.y = 1.001f * lengths.x;
			parts.z = eps_of_length(cl, both, scale) +
				(float) cl.dims * 0x1p-148f * scale * scale + 1e-30f -
				parts.w;
			bound = cl.d_bounds[row];
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
		cl.d_bounds[row] = __int_as_float(mine->bound);
		cl.d_counts[row] = mine->count;
	}

	/*
	 * d_squares and d_group_norms are padded to a multiple of GV_KMEANS_ALIGN.
	 */
	__device__ __forceinline__ ColumnState
	column_state(int group) const
	{
		const float *squares = cl.d_squares + group * GV_COLUMN_GROUP +
			threadIdx.x % 4 * 2;
		ColumnState found;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			found.squares[j] = *(const float2 *) (squares + j * 8);
		found.norms = cl.d_group_norms[group];
		return found;
	}

	__device__ __forceinline__ void
	consume(const ColumnState &of, Row *mine, int row, int group,
			const float2 (&sums)[TILES]) const
	{
		float4		parts = mine->parts;
		float		bound = __int_as_float(mine->bound);
		float		least = GV_INFINITY;
		/* eps - Q^2 */
		float		shift = fmaf(parts.x, of.norms.x,
								 fmaf(parts.y, of.norms.y,
									  parts.z + of.norms.z));
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
				 group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2);
	}

	/*
	 * Lowers a row's bound to the least score of its four lanes, and notes the
	 * centroids within the bound.  This lane has the scores of centroids
	 * `lane_first` and `lane_first` + 1, of the two centroids 8 further on,
	 * and so on.
	 */
	__device__ __forceinline__ void
	note(Row *mine, int row, float shift, const float2 (&scores)[TILES],
		 float least, int lane_first) const
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
			int			c = lane_first + i / 2 * 8 + i % 2;

			if (!(score > bound) && c < k && row < n)
			{
				uint32_t	at = atomicAdd(&mine->count, 1u);

				if (at < GV_KMEANS_CANDIDATES)
					cl.d_candidates[row * GV_KMEANS_CANDIDATES + at] =
						{(uint32_t) (first + c), score};
			}
		}
	}
};

/*
 * Lowers bounds and notes candidates: compares the first n rows that have half
 * copies with the first k centroids that have them.  Either k is a multiple of
 * GV_KMEANS_ALIGN, or no other centroids have half copies.
 */
static GvStatus
find_candidates(const GvClusters *cl, int32_t n, int32_t k,
				const GvMatmulContext *context)
{
	GV_CUDA_TRY(gv_clear(cl->d_counts, n, context->stream));
	for (int32_t first = 0; first < k; first += cl->columns)
	{
		int			some = std::min(cl->columns, k - first);
		GvMatmul	matmul = {cl->d_half_rows, n, cl->d_half_centroids +
			(int64_t) first * cl->half_dims, some, cl->half_dims};
		CandidateEpilogue epilogue = {*cl, n, some, first};

		epilogue.cl.d_squares += first;
		epilogue.cl.d_group_norms += first / GV_COLUMN_GROUP;
		GV_TRY(gv_gpu_matmul<true>(context, &matmul, epilogue));
	}
	return GV_OK;
}

/* -- exact scores */

/*
 * Returns an item of a score and a number.  Items are ordered by (score,
 * number), because floats that are not negative are ordered as their bits.
 */
static __device__ __forceinline__ uint64_t
item_of(float score, uint32_t number)
{
	return (uint64_t) __float_as_uint(score) << 32 | number;
}

/* Returns the item with which the search for the row's best item begins. */
static __device__ __forceinline__ uint64_t
known_item(const Piece &piece, uint32_t row)
{
	return piece.bound == GV_BOUND_NONE ? LAST_ITEM :
		item_of(piece.cl.d_sqdist[row], piece.cl.d_nearest[row]);
}

static __device__ __forceinline__ void
store_item(const GvClusters &cl, uint32_t row, uint64_t item)
{
	cl.d_nearest[row] = (uint32_t) item;
	cl.d_sqdist[row] = __uint_as_float((uint32_t) (item >> 32));
}

/*
 * Returns the exact score, in the first of the row's four lanes.  All lanes of
 * a warp call this.
 */
static __device__ __forceinline__ float
score_of(const GvClusters &cl, uint32_t row, uint32_t c)
{
	return gv_lane_group_score<false>(cl.d_rows + (int64_t) row * cl.dims,
									  cl.d_centroids + (int64_t) c * cl.dims,
									  cl.dims);
}

/*
 * Returns s^2 S - |X|^2 + Q^2, rounded up: Q^2 is above |X|^2 by less than
 * 2^-18 of |X|^2.  Returns infinity instead of NaN.
 */
static __device__ __forceinline__ float
bound_of(const GvClusters &cl, float score, float length)
{
	float		scale = scale_of(cl);
	float		bound = score * scale * scale * (1.0f + 0x1p-20f) +
		length * length * 0x1p-18f + 1e-30f;

	return bound < FLT_MAX ? bound : GV_INFINITY;
}

/* Sets the initial bounds of a piece's rows.  Each row has four lanes. */
static __global__ void __launch_bounds__(THREADS)
bounds_kernel(Piece piece)
{
	const GvClusters &cl = piece.cl;
	int			i = blockIdx.x * LANE_GROUPS + threadIdx.x / GV_LANE_GROUP;
	uint32_t	row = piece.d_rows[min(i, piece.n - 1)];
	bool		mine = threadIdx.x % GV_LANE_GROUP == 0 && i < piece.n;

	if (piece.bound == GV_BOUND_NEAREST)
	{
		float		score = score_of(cl, row, cl.d_nearest[row]);

		if (mine)
			cl.d_sqdist[row] = score;
	}
	if (mine)
		cl.d_bounds[i] = piece.bound == GV_BOUND_NONE ? GV_INFINITY :
			bound_of(cl, cl.d_sqdist[row], cl.d_lengths[i].x);
}

/*
 * Finds the nearest candidate of each row of a piece by exact scores, and
 * lists the rows that have too many candidates.  Each row has four lanes.
 */
static __global__ void __launch_bounds__(THREADS)
rescore_kernel(Piece piece)
{
	const GvClusters &cl = piece.cl;
	int			i = blockIdx.x * LANE_GROUPS + threadIdx.x / GV_LANE_GROUP;
	int			at = min(i, piece.n - 1);
	uint32_t	row = piece.d_rows[at];
	const GvKmeansCandidate *candidates = cl.d_candidates +
		(int64_t) at * GV_KMEANS_CANDIDATES;
	uint32_t	count = i < piece.n ? cl.d_counts[at] : 0;
	bool		overflowed = count > GV_KMEANS_CANDIDATES;
	float		bound = cl.d_bounds[at];
	uint64_t	best = known_item(piece, row);
	uint32_t	own = (uint32_t) best;	/* the known centroid, which need not
										 * be scored again, if there is one */
	uint32_t	j = 0;

	if (overflowed)
		count = 0;
	for (;;)
	{
		uint32_t	c = own;
		float		score;

		/* Skip candidates beyond the current bound.  NaN is never skipped. */
		for (; j < count; j++)
		{
			GvKmeansCandidate one = candidates[j];

			c = piece.d_centroids[one.number];
			if (!(one.score > bound) && c != own)
				break;
		}
		if (!__any_sync(GV_FULL_WARP, j < count))
			break;
		score = score_of(cl, row, j < count ? c : 0);
		if (threadIdx.x % GV_LANE_GROUP == 0 && j < count)
			best = min(best, item_of(score, c));
		j++;
	}
	if (threadIdx.x % GV_LANE_GROUP != 0 || i >= piece.n)
		return;
	if (overflowed)
	{
		cl.d_overflowed[atomicAdd(cl.d_noverflowed, 1u)] = row;
		GV_TEST_ONLY(atomicAdd(cl.d_noverflowed + 1, 1u);)
	}
	else
		store_item(cl, row, best);
}

/* Adds a lane's terms of BRUTE_ROWS rows and a centroid. */
template <bool ALIGNED>
static __device__ __forceinline__ void
add_rows(const GvClusters &cl, const float *const (&rows)[BRUTE_ROWS],
		 const float *centroid, float (&sums)[BRUTE_ROWS][4])
{
#pragma unroll 2
	for (int d = threadIdx.x % GV_LANE_GROUP * 4; d < cl.dims; d += GV_SUMS)
	{
		float4		y = gv_load_four<ALIGNED>(centroid, d, cl.dims);

#pragma unroll
		for (int r = 0; r < BRUTE_ROWS; r++)
			gv_add_four<false>(sums[r], gv_load_four<ALIGNED>(rows[r], d,
															  cl.dims), y);
	}
}

/*
 * Compares rows that overflowed with all centroids.  Each block takes
 * BRUTE_ROWS rows at a time, and each centroid has four lanes.
 */
template <bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
brute_force_kernel(Piece piece)
{
	__shared__ unsigned long long best[BRUTE_ROWS];
	const GvClusters &cl = piece.cl;
	int			n = (int) *cl.d_noverflowed;

	for (int first = blockIdx.x * BRUTE_ROWS; first < n;
		 first += gridDim.x * BRUTE_ROWS)
	{
		const float *rows[BRUTE_ROWS];
		uint64_t	mine[BRUTE_ROWS];

		__syncthreads();
		if (threadIdx.x < BRUTE_ROWS)
			best[threadIdx.x] = LAST_ITEM;
		__syncthreads();
#pragma unroll
		for (int r = 0; r < BRUTE_ROWS; r++)
		{
			uint32_t	row = cl.d_overflowed[min(first + r, n - 1)];

			rows[r] = cl.d_rows + (int64_t) row * cl.dims;
			mine[r] = known_item(piece, row);
		}
		for (int start = 0; start < piece.k; start += LANE_GROUPS)
		{
			int			i = start + threadIdx.x / GV_LANE_GROUP;
			uint32_t	c = piece.d_centroids[min(i, piece.k - 1)];
			float		sums[BRUTE_ROWS][4] = {};

			add_rows<ALIGNED>(cl, rows, cl.d_centroids +
							  (int64_t) c * cl.dims, sums);
#pragma unroll
			for (int r = 0; r < BRUTE_ROWS; r++)
			{
				float		score = gv_add_sums<false>(sums[r]);

				if (i < piece.k)
					mine[r] = min(mine[r], item_of(score, c));
			}
		}
#pragma unroll
		for (int r = 0; r < BRUTE_ROWS; r++)
			if (threadIdx.x % GV_LANE_GROUP == 0)
				atomicMin(&best[r], (unsigned long long) mine[r]);
		__syncthreads();
		if (threadIdx.x < BRUTE_ROWS && first + (int) threadIdx.x < n)
			store_item(cl, cl.d_overflowed[first + threadIdx.x],
					   best[threadIdx.x]);
	}
}

/* -- the host */

void
gv_clusters_shape(GvClusters *cl, int64_t n, int32_t dims, int32_t k,
				  int64_t terms, int64_t piece, bool kept)
{
	int64_t		columns;

	piece = std::min(gv_kmeans_piece > 0 ? gv_kmeans_piece : piece, n);
	columns = std::min(gv_kmeans_columns > 0 ? (int64_t) gv_kmeans_columns :
					   terms / piece / dims, (int64_t) k);
	cl->n = n;
	cl->nslices = 1;
	cl->dims = dims;
	cl->half_dims = (dims + 15) / 16 * 16;
	cl->k = k;
	cl->piece = (int32_t) piece;
	cl->columns = (int32_t) (columns / GV_KMEANS_ALIGN + 1) * GV_KMEANS_ALIGN;
	cl->kept = kept;
}

void
gv_clusters_place(GvClusters *cl, char *memory, size_t *bytes)
{
	int64_t		n = cl->n;
	int64_t		k = cl->k;
	int64_t		piece = cl->piece;
	int64_t		nhalf = cl->kept ? n : piece;
	int64_t		padded_k = (k + GV_KMEANS_ALIGN - 1) / GV_KMEANS_ALIGN *
		GV_KMEANS_ALIGN;

	gv_place(&cl->d_middle, memory, bytes, cl->dims);
	gv_place(&cl->d_most, memory, bytes, 1);
	gv_place(&cl->d_half_rows, memory, bytes, nhalf * cl->half_dims);
	gv_place(&cl->d_lengths, memory, bytes, nhalf);
	gv_place(&cl->d_half_centroids, memory, bytes, k * cl->half_dims);
	gv_place(&cl->d_squares, memory, bytes, padded_k);
	gv_place(&cl->d_group_norms, memory, bytes, padded_k / GV_COLUMN_GROUP);
	gv_place(&cl->d_nearest, memory, bytes, n);
	gv_place(&cl->d_sqdist, memory, bytes, n);
	gv_place(&cl->d_all, memory, bytes, n);
	gv_place(&cl->d_keys, memory, bytes, n);
	gv_place(&cl->d_order, memory, bytes, n);
	gv_place(&cl->d_starts, memory, bytes, k + 1);
	gv_place((char **) &cl->d_sort, memory, bytes, (int64_t) cl->sort_bytes);
	gv_place(&cl->d_bounds, memory, bytes, piece);
	gv_place(&cl->d_counts, memory, bytes, piece);
	gv_place(&cl->d_candidates, memory, bytes, piece * GV_KMEANS_CANDIDATES);
	gv_place(&cl->d_overflowed, memory, bytes, piece);
	gv_place(&cl->d_noverflowed, memory, bytes, 2);
}

/* Returns the piece of an assignment that begins at row `first`. */
static Piece
piece_of(const GvClusters *cl, const GvAssignment *assignment, int64_t first)
{
	Piece		piece = {*cl,
		(int) std::min((int64_t) cl->piece, assignment->n - first),
		assignment->d_rows + first, assignment->k, assignment->d_centroids,
		assignment->bound};

	if (cl->kept)
	{
		piece.cl.d_half_rows += first * cl->half_dims;
		piece.cl.d_lengths += first;
	}
	return piece;
}

static GvStatus
rows_to_half(const Piece *piece, cudaStream_t stream)
{
	return gv_launch(rows_to_half_kernel, gv_blocks_for(piece->n, WARPS),
					 THREADS, 0, stream, *piece);
}

GvStatus
gv_gpu_kmeans_begin(const GvClusters *cl, cudaStream_t stream)
{
	Piece		all = {*cl, (int) cl->n, cl->d_all, 0, NULL, GV_BOUND_NONE};

	GV_CUDA_TRY(gv_clear(cl->d_noverflowed, 2, stream));
	GV_TRY(gv_launch(number_kernel, gv_blocks_for(cl->n, THREADS), THREADS, 0,
					 stream, *cl));
	GV_TRY(gv_launch(middle_kernel, gv_blocks_for(cl->dims, GV_WARP),
					 GV_WARP * STRANDS, 0, stream, *cl));
	GV_CUDA_TRY(gv_clear(cl->d_most, 1, stream));
	GV_TRY(gv_launch(most_kernel,
					 std::min(gv_blocks_for(cl->n, WARPS), 16 * cl->nsms),
					 THREADS, 0, stream, *cl));
	return cl->kept ? rows_to_half(&all, stream) : GV_OK;
}

/* Assigns the rows of a piece.  Their half copies have been made. */
static GvStatus
assign_piece(const Piece *piece, const GvMatmulContext *context)
{
	const GvClusters *cl = &piece->cl;
	cudaStream_t stream = context->stream;
	int			early = (piece->k / EARLY_PART / GV_KMEANS_ALIGN + 1) *
		GV_KMEANS_ALIGN;
	int			nblocks = gv_blocks_for(piece->n, LANE_GROUPS);
	int			blocks = std::min(gv_blocks_for(piece->n, BRUTE_ROWS),
								  4 * cl->nsms);

	GV_TRY(gv_launch(bounds_kernel, nblocks, THREADS, 0, stream, *piece));
	/*
	 * Without a bound, a row notes more candidates the more centroids there
	 * are.  With very many centroids, first find a bound among a few of them,
	 * because many rows would overflow otherwise.
	 */
	if (piece->bound == GV_BOUND_NONE && piece->k >= gv_kmeans_early)
		GV_TRY(find_candidates(cl, piece->n, early, context));
	GV_TRY(find_candidates(cl, piece->n, piece->k, context));
	GV_CUDA_TRY(gv_clear(cl->d_noverflowed, 1, stream));
	GV_TRY(gv_launch(rescore_kernel, nblocks, THREADS, 0, stream, *piece));
	/* the host does not know whether any row overflowed */
	return gv_launch(cl->dims % 4 == 0 ? brute_force_kernel<true> :
					 brute_force_kernel<false>, blocks, THREADS, 0, stream,
					 *piece);
}

GvStatus
gv_gpu_nearest(const GvClusters *cl, const GvAssignment *assignment,
			   const GvMatmulContext *context, const GvStop *stop)
{
	int			groups = (assignment->k + GV_KMEANS_ALIGN - 1) /
		GV_KMEANS_ALIGN * (GV_KMEANS_ALIGN / GV_COLUMN_GROUP);

	for (int64_t done = 0; done < assignment->n; done += cl->piece)
	{
		Piece		piece = piece_of(cl, assignment, done);

		if (done == 0)
		{
			GV_TRY(gv_launch(centroids_to_half_kernel, groups, THREADS, 0,
							 context->stream, piece));
		}
		if (!cl->kept)
			GV_TRY(rows_to_half(&piece, context->stream));
		GV_TRY(assign_piece(&piece, context));
		if (assignment->wait && done + piece.n < assignment->n)
			GV_CUDA_TRY(cudaStreamSynchronize(context->stream));
		if (gv_is_stopped(stop))
			return GV_CANCELED;
	}
	return GV_OK;
}
