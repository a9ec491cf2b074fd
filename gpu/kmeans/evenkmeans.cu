/*
 * evenkmeans.cu
 *	Lloyd's k-means with even clusters, for builds, as
 *	src/cpu/pq/kmeans.c has it.
 *
 *	assign		finds the nearest centroid of every row (nearest.cu, exact)
 *	group		sorts rows by cluster
 *	move		moves each centroid to the mean of its rows
 *	rebalance	splits the largest clusters; the second halves take the places
 *				of empty clusters, and then of the smallest ones
 *	reassign	after a rebalancing that follows the last move: compares rows
 *				of the clusters that changed with all centroids, and all rows
 *				with the centroids that changed
 *
 * Unlike on the processor, a pass splits a cluster at most once, so that all
 * splits run side by side.  Large clusters are split again in the passes that
 * follow.  The host reads only sizes.  All sums have one order, so the same
 * rows give the same centroids.
 *
 * Each pass makes the rows' half copies piece by piece.  Half copies of the
 * whole sample would need memory for half the sample's bytes.
 */
#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "gpu/device/warp.cuh"
#include "gpu/kmeans/kmeans.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
}

#define THREADS			256
#define LAST_PASSES		12		/* maximum passes that make the sizes even */
#define SPLIT_THREADS	128
#define SPLIT_WARPS		(SPLIT_THREADS / GV_WARP)
#define SPLIT_ROWS		1024	/* rows of a cluster that a split looks at */
#define SPLIT_STEPS		4

/*
 * A product may keep a device busy for only about a millisecond, because
 * searches wait for it.  A block of the product has TILE_ROWS rows, so the
 * number of rows of a piece is a multiple of TILE_ROWS times the number of
 * SMs.
 */
#define MOST_TERMS		(INT64_C(1) << 37)
#define MOST_ROWS		(INT64_C(1) << 16)
#define MOST_HALF		(INT64_C(64) << 20) /* max numbers in the half copies
											 * of a piece */
#define TILE_ROWS		128

/* If true, all rows are compared with all centroids after each rebalancing. */
GV_TUNABLE bool gv_kmeans_reassigns_all = false;

/* A split: a cluster is divided, and another one becomes its second half. */
struct GvSplit
{
	int32_t		big;
	int32_t		small;
};

/* A call of gv_gpu_kmeans, and its memory. */
struct EvenKmeans
{
	const GvKmeans *spec;
	GvClusters	cl;
	const GvMatmulContext *context;
	const GvStop *stop;
	GvKmeansFound *found;
	char	   *d_memory;		/* the arrays of cl and the next five arrays */
	GvSplit    *d_splits;		/* [k] */
	int32_t    *d_done;			/* [k] */
	uint32_t   *d_changed;		/* [k] */
	uint32_t   *d_offsets;		/* [k] */
	uint32_t   *d_moved;		/* [n / 4] rows of clusters that changed */
	char	   *host;			/* the arrays below */
	uint32_t   *starts;			/* [k + 1] */
	GvSplit    *splits;			/* [k] */
	int32_t    *done;			/* [k] */
	uint32_t   *sorted;			/* [k] clusters by size; finally the clusters
								 * that are kept */
	uint32_t   *changed;		/* [k] clusters that the last rebalancing
								 * changed */
	uint32_t   *offsets;		/* [k] where the rows of each of them begin in
								 * d_moved */
	int32_t		nsplits;		/* number of splits of the last rebalancing */
};

/*
 * Sets the shape for a device of nsms SMs.  If nsms is 0, sets the largest
 * shape that any device has.
 */
static void
set_shape(GvClusters *cl, int32_t dims, int64_t n, int32_t k, int nsms)
{
	int64_t		piece = std::min(MOST_ROWS, MOST_HALF / dims);

	if (nsms > 0 && piece > TILE_ROWS * nsms)
		piece -= piece % (TILE_ROWS * nsms);
	cl->nsms = nsms;
	gv_clusters_shape(cl, n, dims, k, MOST_TERMS, piece, false);
}

/* Places all arrays in memory, and returns their size in bytes. */
static size_t
place_all(EvenKmeans *km, char *memory)
{
	int64_t		k = km->cl.k;
	size_t		bytes = 0;

	gv_clusters_place(&km->cl, memory, &bytes);
	gv_place(&km->d_splits, memory, &bytes, k);
	gv_place(&km->d_done, memory, &bytes, k);
	gv_place(&km->d_changed, memory, &bytes, k);
	gv_place(&km->d_offsets, memory, &bytes, k);
	gv_place(&km->d_moved, memory, &bytes, km->cl.n / 4);
	return bytes;
}

/* Places the host's arrays in memory, and returns their size in bytes. */
static size_t
place_host(EvenKmeans *km, char *memory)
{
	int64_t		k = km->cl.k;
	size_t		bytes = 0;

	gv_place(&km->starts, memory, &bytes, k + 1);
	gv_place(&km->splits, memory, &bytes, k);
	gv_place(&km->done, memory, &bytes, k);
	gv_place(&km->sorted, memory, &bytes, k);
	gv_place(&km->changed, memory, &bytes, k);
	gv_place(&km->offsets, memory, &bytes, k);
	return bytes;
}

/*
 * See kmeans.h.  Besides the arrays, drop_empty needs memory for a copy of the
 * centroids.
 */
int64_t
gv_gpu_kmeans_bytes(int32_t dims, int64_t n, int32_t k)
{
	EvenKmeans	km = {};

	if (k > n)
		k = (int32_t) n;
	set_shape(&km.cl, dims, n, k, 0);
	km.cl.sort_bytes = (size_t) gv_sort_most_bytes(n, 8);
	return (int64_t) place_all(&km, NULL) +
		(int64_t) k * dims * (int64_t) sizeof(float);
}

static GvStatus
make_memory(EvenKmeans *km)
{
	GV_TRY(gv_gpu_group_bytes(km->cl.n, &km->cl.sort_bytes));
	GV_CUDA_TRY(gv_device_alloc(&km->d_memory, place_all(km, NULL)));
	(void) place_all(km, km->d_memory);
	km->host = (char *) malloc(place_host(km, NULL));
	if (km->host == NULL)
		return GV_NO_MEMORY;
	(void) place_host(km, km->host);
	return GV_OK;
}

/* -- splits */

/* The cluster that a block splits, and the rows of it that it looks at. */
struct Cluster
{
	const float *x;				/* [n][dims] */
	int			dims;
	const uint32_t *rows;		/* [count] */
	uint32_t	count;
	uint32_t	taken;			/* number of rows looked at, spread over the
								 * cluster */

	__device__ __forceinline__ const float *
	row(uint32_t i) const
	{
		uint32_t	at = (uint32_t) ((uint64_t) i * count / taken);

		return x + (int64_t) rows[at] * dims;
	}
};

/*
 * Returns the approximate squared distance of two vectors.  Called by a whole
 * warp.
 */
static __device__ __forceinline__ float
distance(const float *a, const float *b, int dims)
{
	float		sum = 0.0f;

	for (int d = threadIdx.x % GV_WARP; d < dims; d += GV_WARP)
		sum += (a[d] - b[d]) * (a[d] - b[d]);
	return gv_device_score(gv_add_warp(sum));
}

/*
 * Finds the row that is farthest from `from`, and sets *farthest to its number
 * in all threads.  Returns false if all rows are equal to `from`.
 */
static __device__ __forceinline__ bool
find_farthest(const Cluster &cluster, const float *from, uint32_t *farthest)
{
	__shared__ float best[SPLIT_WARPS];
	__shared__ uint32_t place[SPLIT_WARPS];
	int			warp = threadIdx.x / GV_WARP;
	float		mine = 0.0f;
	uint32_t	at = 0;

	for (uint32_t i = warp; i < cluster.taken; i += SPLIT_WARPS)
	{
		float		dist = distance(cluster.row(i), from, cluster.dims);

		if (dist > mine)
		{
			mine = dist;
			at = i;
		}
	}
	__syncthreads();
	if (threadIdx.x % GV_WARP == 0)
	{
		best[warp] = mine;
		place[warp] = at;
	}
	__syncthreads();
	mine = 0.0f;
	for (int w = 0; w < SPLIT_WARPS; w++)
		if (best[w] > mine || (best[w] == mine && best[w] > 0.0f &&
							   place[w] < *farthest))
		{
			mine = best[w];
			*farthest = place[w];
		}
	return mine > 0.0f;
}

static __device__ __forceinline__ void
copy_row(float *to, const float *from, int dims)
{
	for (int d = threadIdx.x; d < dims; d += SPLIT_THREADS)
		to[d] = from[d];
}

/*
 * Sets sides [taken] to 1 for rows that are nearer to b than to a.  Returns
 * the number of these rows.
 */
static __device__ __forceinline__ uint32_t
choose_sides(const Cluster &cluster, const float *a, const float *b,
			 uint8_t *sides)
{
	uint32_t	n = 0;

	for (uint32_t i = threadIdx.x / GV_WARP; i < cluster.taken;
		 i += SPLIT_WARPS)
	{
		const float *row = cluster.row(i);
		bool		second = !(distance(row, a, cluster.dims) <=
							   distance(row, b, cluster.dims));

		if (threadIdx.x % GV_WARP == 0)
			sides[i] = second;
	}
	__syncthreads();
	for (uint32_t i = 0; i < cluster.taken; i++)
		n += sides[i];
	return n;
}

/* Moves a and b to the means of the rows on their sides. */
static __device__ __forceinline__ void
move_both(const Cluster &cluster, const uint8_t *sides, uint32_t nsecond,
		  float *a, float *b)
{
	for (int d = threadIdx.x; d < cluster.dims; d += SPLIT_THREADS)
	{
		double		sums[2] = {0.0, 0.0};

		for (uint32_t i = 0; i < cluster.taken; i++)
		{
			double		value = (double) cluster.row(i)[d];

			sums[0] += sides[i] ? 0.0 : value;
			sums[1] += sides[i] ? value : 0.0;
		}
		a[d] = gv_device_clamp(sums[0] / (double) (cluster.taken - nsecond));
		b[d] = gv_device_clamp(sums[1] / (double) nsecond);
	}
}

/*
 * Splits clusters whose rows are grouped, a block for each cluster.  Each
 * thread adds up one dimension at a time.  Sets `done` to 1 for clusters that
 * have different rows, and leaves the other clusters unchanged.
 *
 * A cluster is divided by a few steps of 2-means over a thousand of its rows,
 * spread over the cluster.  This is enough to place the halves, because the
 * next pass assigns all rows anyway.
 */
static __global__ void __launch_bounds__(SPLIT_THREADS)
split_kernel(GvClusters cl, const GvSplit *splits, uint64_t seed,
			 int32_t *done)
{
	__shared__ uint8_t sides[SPLIT_ROWS];
	GvSplit		split = splits[blockIdx.x];
	int			dims = cl.dims;
	uint32_t	start = cl.d_starts[split.big];
	uint32_t	count = cl.d_starts[split.big + 1] - start;
	Cluster		cluster = {cl.d_rows, dims, cl.d_order + start, count,
		min(count, (uint32_t) SPLIT_ROWS)};
	float	   *a = cl.d_centroids + (int64_t) split.big * dims;
	float	   *b = cl.d_centroids + (int64_t) split.small * dims;
	uint64_t	random = seed + (uint64_t) split.big;
	uint32_t	first = (uint32_t) (gv_device_random(&random) % cluster.taken);
	const float *seed_row = cluster.row(first);
	uint32_t	farthest = 0;
	bool		apart = find_farthest(cluster, seed_row, &farthest);
	const float *other_row = cluster.row(farthest);

	/* if the rows looked at are all equal, look at all rows */
	if (!apart && cluster.taken < count)
	{
		Cluster		whole = cluster;

		whole.taken = count;
		apart = find_farthest(whole, seed_row, &farthest);
		other_row = whole.row(farthest);
	}
	if (threadIdx.x == 0)
		done[blockIdx.x] = apart;
	if (!apart)
		return;
	copy_row(a, seed_row, dims);
	copy_row(b, other_row, dims);
	__syncthreads();
	for (int step = 0; step < SPLIT_STEPS; step++)
	{
		uint32_t	nsecond = choose_sides(cluster, a, b, sides);

		/* rounding may have made the means equal */
		if (nsecond == 0 || nsecond == cluster.taken)
			break;
		__syncthreads();
		move_both(cluster, sides, nsecond, a, b);
		__syncthreads();
	}
}

/* -- steps */

/*
 * Copies vector order[i] of `from` to place i of `to` [n][dims], a block for
 * each vector.
 */
static __global__ void __launch_bounds__(THREADS)
gather_kernel(const float *from, const uint32_t *order, int dims, float *to)
{
	const float *row = from + (int64_t) order[blockIdx.x] * dims;

	for (int d = threadIdx.x; d < dims; d += THREADS)
		to[(int64_t) blockIdx.x * dims + d] = row[d];
}

/*
 * Copies the vectors of d_from with the given numbers to d_to.  The numbers
 * [n], n <= k, are in the host's memory.
 */
static GvStatus
gather(EvenKmeans *km, const float *d_from, const uint32_t *numbers, int32_t n,
	   float *d_to)
{
	cudaStream_t stream = km->context->stream;

	GV_CUDA_TRY(gv_upload(km->d_changed, numbers, n, stream));
	GV_TRY(gv_launch(gather_kernel, n, THREADS, 0, stream, d_from,
					 km->d_changed, km->cl.dims, d_to));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* Draws k different random rows as the first centroids. */
static GvStatus
draw_centroids(EvenKmeans *km)
{
	int64_t		n = km->cl.n;
	uint64_t	random = km->spec->seed;
	uint32_t   *order = (uint32_t *) malloc(n * sizeof(uint32_t));
	GvStatus	status;

	if (order == NULL)
		return GV_NO_MEMORY;
	for (int64_t i = 0; i < n; i++)
		order[i] = (uint32_t) i;
	for (int64_t i = 0; i < km->cl.k; i++)
	{
		int64_t		j = i + (int64_t) (gv_device_random(&random) %
									   (uint64_t) (n - i));

		std::swap(order[i], order[j]);
	}
	status = gather(km, km->cl.d_rows, order, km->cl.k, km->cl.d_centroids);
	free(order);
	return status;
}

/* Groups the rows by cluster, and copies the starts to the host. */
static GvStatus
group_rows(EvenKmeans *km)
{
	GV_TRY(gv_gpu_group_clusters(&km->cl, km->context->stream));
	GV_CUDA_TRY(gv_download(km->starts, km->cl.d_starts, km->cl.k + 1,
							km->context->stream));
	return gv_cuda_status(cudaStreamSynchronize(km->context->stream));
}

/* Compares all rows with all centroids, and groups the rows by cluster. */
static GvStatus
assign_rows(EvenKmeans *km)
{
	const GvClusters *cl = &km->cl;
	GvAssignment all = {cl->n, cl->d_all, cl->k, cl->d_all,
		km->found->passes > 0 ? GV_BOUND_NEAREST : GV_BOUND_NONE, false};

	GV_TRY(gv_gpu_nearest(cl, &all, km->context, km->stop));
	km->found->passes++;
	return group_rows(km);
}

static inline uint32_t
count_of(const EvenKmeans *km, uint32_t c)
{
	return km->starts[c + 1] - km->starts[c];
}

/*
 * Chooses the clusters to split, and the clusters whose places their second
 * halves take.
 */
static void
plan_splits(EvenKmeans *km)
{
	int32_t		k = km->cl.k;
	double		limit = km->spec->max_imbalance * (double) km->cl.n / k;

	for (int32_t c = 0; c < k; c++)
		km->sorted[c] = (uint32_t) c;
	std::sort(km->sorted, km->sorted + k,
			  [km](uint32_t a, uint32_t b)
			  {
				  uint32_t	x = count_of(km, a);
				  uint32_t	y = count_of(km, b);

				  return x > y || (x == y && a < b);
			  });
	for (km->nsplits = 0; km->nsplits < k / 2; km->nsplits++)
	{
		uint32_t	big = km->sorted[km->nsplits];
		uint32_t	small = km->sorted[k - 1 - km->nsplits];
		uint32_t	most = count_of(km, big);
		uint32_t	least = count_of(km, small);

		if (most < 2 || (least > 0 && (most <= limit || least > most / 4 * 3)))
			break;
		km->splits[km->nsplits] = {(int32_t) big, (int32_t) small};
	}
}

/*
 * Splits clusters that are too large.  Sets *changed to whether any cluster
 * was split.
 */
static GvStatus
rebalance(EvenKmeans *km, uint64_t seed, bool *changed)
{
	cudaStream_t stream = km->context->stream;
	double		begun = gv_seconds();
	int32_t		n;

	*changed = false;
	plan_splits(km);
	n = km->nsplits;
	if (n == 0)
		return GV_OK;
	GV_CUDA_TRY(gv_upload(km->d_splits, km->splits, n, stream));
	GV_TRY(gv_launch(split_kernel, n, SPLIT_THREADS, 0, stream, km->cl,
					 km->d_splits, seed, km->d_done));
	GV_CUDA_TRY(gv_download(km->done, km->d_done, n, stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	for (int32_t i = 0; i < n; i++)
		*changed |= km->done[i] != 0;
	km->found->split_s += gv_lap(&begun);
	return GV_OK;
}

/*
 * Lists the clusters that the last rebalancing changed, and places their rows
 * in d_moved.  Returns false if the clusters or their rows are more than a
 * quarter of all, because then it is faster to compare everything.
 */
static bool
list_changed(EvenKmeans *km, int32_t *nchanged, int64_t *nmoved)
{
	int32_t		most = std::max(km->cl.k / 4, 1);
	int32_t		n = 0;

	for (int32_t i = 0; i < km->nsplits; i++)
	{
		if (km->done[i] == 0)
			continue;
		if (n + 2 > most)
			return false;
		km->changed[n++] = (uint32_t) km->splits[i].big;
		km->changed[n++] = (uint32_t) km->splits[i].small;
	}
	std::sort(km->changed, km->changed + n);
	*nmoved = 0;
	for (int32_t i = 0; i < n; i++)
	{
		km->offsets[i] = (uint32_t) *nmoved;
		*nmoved += count_of(km, km->changed[i]);
	}
	*nchanged = n;
	return *nmoved <= km->cl.n / 4;
}

/*
 * Copies the numbers of the rows of changed clusters to `moved`, a block for
 * each cluster.
 */
static __global__ void __launch_bounds__(THREADS)
moved_kernel(GvClusters cl, const uint32_t *changed, const uint32_t *offsets,
			 uint32_t *moved)
{
	uint32_t	start = cl.d_starts[changed[blockIdx.x]];
	uint32_t	n = cl.d_starts[changed[blockIdx.x] + 1] - start;

	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
		moved[offsets[blockIdx.x] + i] = cl.d_order[start + i];
}

/*
 * Assigns and groups the rows again after a rebalancing.  The result is the
 * same as if everything were compared, ties included, because scores are
 * exact: if a row's own centroid did not change, the row is nearest to this
 * centroid or to one that changed.
 */
static GvStatus
reassign_changed(EvenKmeans *km)
{
	const GvClusters *cl = &km->cl;
	cudaStream_t stream = km->context->stream;
	GvAssignment moved = {0, km->d_moved, cl->k, cl->d_all, GV_BOUND_NEAREST,
		false};
	GvAssignment all = {cl->n, cl->d_all, 0, km->d_changed, GV_BOUND_SQDIST,
		false};

	if (gv_kmeans_reassigns_all || !list_changed(km, &all.k, &moved.n))
		return assign_rows(km);
	GV_CUDA_TRY(gv_upload(km->d_changed, km->changed, all.k, stream));
	GV_CUDA_TRY(gv_upload(km->d_offsets, km->offsets, all.k, stream));
	GV_TRY(gv_launch(moved_kernel, all.k, THREADS, 0, stream, *cl,
					 km->d_changed, km->d_offsets, km->d_moved));
	GV_TRY(gv_gpu_nearest(cl, &moved, km->context, km->stop));
	GV_TRY(gv_gpu_nearest(cl, &all, km->context, km->stop));
	return group_rows(km);
}

/* Closes the gaps that empty clusters leave. */
static GvStatus
drop_empty(EvenKmeans *km)
{
	const GvClusters *cl = &km->cl;
	int64_t		values;
	float	   *d_kept;
	GvStatus	status;
	int32_t		n = 0;

	for (int32_t c = 0; c < cl->k; c++)
		if (count_of(km, c) > 0)
			km->sorted[n++] = (uint32_t) c;
	km->found->k = n;
	if (n == cl->k)
		return GV_OK;
	values = (int64_t) n * cl->dims;
	GV_CUDA_TRY(gv_device_alloc(&d_kept, values));
	status = gather(km, cl->d_centroids, km->sorted, n, d_kept);
	if (status == GV_OK)
		status = gv_cuda_status(cudaMemcpyAsync(cl->d_centroids, d_kept,
												values * sizeof(float),
												cudaMemcpyDeviceToDevice,
												km->context->stream));
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(km->context->stream));
	(void) cudaFree(d_kept);
	return status;
}

/*
 * Copies the number of each row's centroid to the host.  Centroids are
 * numbered without the empty clusters.
 */
static GvStatus
get_owners(EvenKmeans *km, int32_t *owners)
{
	int32_t		n = 0;

	GV_CUDA_TRY(gv_download((uint32_t *) owners, km->cl.d_nearest, km->cl.n,
							km->context->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(km->context->stream));
	for (int32_t c = 0; c < km->cl.k; c++)
	{
		km->done[c] = n;
		n += count_of(km, c) > 0;
	}
	for (int64_t i = 0; i < km->cl.n; i++)
		owners[i] = km->done[owners[i]];
	return GV_OK;
}

static GvStatus
run(EvenKmeans *km, int32_t *owners)
{
	uint64_t	seed = km->spec->seed;
	bool		changed = true;

	GV_TRY(make_memory(km));
	GV_TRY(draw_centroids(km));
	GV_TRY(gv_gpu_kmeans_begin(&km->cl, km->context->stream));
	for (int pass = 0; pass < km->spec->iterations; pass++)
	{
		GV_TRY(assign_rows(km));
		GV_TRY(gv_gpu_means(&km->cl, km->context->stream));
		GV_TRY(rebalance(km, ++seed, &changed));
	}
	GV_TRY(assign_rows(km));
	for (int pass = 0; pass < LAST_PASSES; pass++)
	{
		GV_TRY(rebalance(km, ++seed, &changed));
		if (!changed)
			break;
		GV_TRY(reassign_changed(km));
	}
	GV_TRY(drop_empty(km));
	return owners == NULL ? GV_OK : get_owners(km, owners);
}

GvStatus
gv_gpu_kmeans(const GvKmeans *spec, const float *d_x, float *d_centroids,
			  int32_t *owners, GvKmeansFound *found,
			  const GvMatmulContext *context, const GvStop *stop)
{
	EvenKmeans	km = {};
	GvStatus	status;

	km.spec = spec;
	km.context = context;
	km.stop = stop;
	km.found = found;
	memset(found, 0, sizeof(*found));
	set_shape(&km.cl, spec->dims, spec->n,
			  spec->n < spec->k ? (int32_t) spec->n : spec->k, context->nsms);
	km.cl.d_rows = (float *) d_x;	/* kernels only read them */
	km.cl.d_centroids = d_centroids;
	status = run(&km, owners);
	(void) cudaStreamSynchronize(context->stream);
	(void) cudaFree(km.d_memory);
	free(km.host);
	return status;
}
