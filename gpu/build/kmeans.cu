/*
 * kmeans.cu
 *		Lloyd's k-means with even clusters, as src/cpu/code/kmeans.c has it.
 *
 *		assign	the nearest centroid of every row (assign.cu, exact)
 *		group	rows by cluster, ascending: a stable radix sort
 *		move	each centroid to the mean of its rows
 *		rebalance	the biggest clusters are split, with the places of empty
 *					and
 *				then of the smallest ones for their second halves (split.cu)
 *		follow	what rebalancing changed, after the last move (reassign.cu)
 *
 * Unlike there, a pass splits a cluster once at most, so that all splits go
 * side by side; passes follow each other closely enough.  The host sees sizes
 * only.  All sums have one order, so the same rows give the same centroids.
 */
#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "gpu/build/build.h"
#include "gpu/common/gv_group.h"

#define THREADS			256
#define MOVE_THREADS	128
#define LAST_PASSES		12		/* at most, to reach even sizes */

static GV_TUNABLE bool follows = true;	/* see gv_gpu_kmeans_follows */

/* Device memory of a call; d_memory is one piece of it. */
struct Clusters
{
	const GvKmeans *spec;
	const float *d_x;			/* [n][dims] */
	float	   *d_centroids;	/* [k][dims] */
	int32_t		k;				/* at most one a row */
	GvFinder   *finder;
	GvTargets	targets;
	const GvStop *stop;
	cudaStream_t stream;
	GvProbe    *d_nearest;			/* [n] */
	uint32_t   *d_keys[2];		/* [n] clusters, before and after sorting */
	uint32_t   *d_rows[2];		/* [n] */
	void	   *d_sort;
	size_t		sort_bytes;
	uint32_t   *d_starts;		/* [k + 1] */
	GvSplit    *d_splits;		/* [k] */
	int32_t    *d_done;			/* [k] */
	uint32_t   *starts;			/* [k + 1], the host's */
	GvSplit    *splits;			/* [k] */
	int32_t    *done;			/* [k] */
	int32_t    *sorted;			/* [k] clusters by size */
	int32_t		nsplits;		/* of the last rebalancing */
	uint32_t   *changed;		/* [k] clusters of which are others then, */
	uint32_t   *places;			/* [k] and where their rows are listed */
	GvReassign	re;
	GvKmeansFound *found;
};

static GvStatus
take_memory(Clusters *cl)
{
	int64_t		n = cl->spec->n;
	int64_t		k = cl->k;

	GV_TRY(gv_device_alloc(&cl->d_nearest, n));
	for (int i = 0; i < 2; i++)
	{
		GV_TRY(gv_device_alloc(&cl->d_keys[i], n));
		GV_TRY(gv_device_alloc(&cl->d_rows[i], n));
	}
	GV_TRY(gv_gpu_group_bytes(n, &cl->sort_bytes));
	GV_CUDA_TRY(cudaMalloc(&cl->d_sort, cl->sort_bytes + 1));
	GV_TRY(gv_device_alloc(&cl->d_starts, k + 1));
	GV_TRY(gv_device_alloc(&cl->d_splits, k));
	GV_TRY(gv_device_alloc(&cl->d_done, k));
	cl->starts = (uint32_t *) calloc(k + 1, sizeof(uint32_t));
	cl->splits = (GvSplit *) calloc(k, sizeof(GvSplit));
	cl->done = (int32_t *) calloc(k, sizeof(int32_t));
	cl->sorted = (int32_t *) calloc(k, sizeof(int32_t));
	cl->changed = (uint32_t *) calloc(k, sizeof(uint32_t));
	cl->places = (uint32_t *) calloc(k, sizeof(uint32_t));
	if (cl->starts == NULL || cl->splits == NULL || cl->done == NULL ||
		cl->sorted == NULL || cl->changed == NULL || cl->places == NULL)
		return GV_NO_MEMORY;
	GV_TRY(gv_reassign_create(&cl->re, cl->spec->dims, n, cl->k, cl->stream));
	return gv_targets_create(&cl->targets, GV_L2, cl->spec->dims, cl->k,
							 cl->stream);
}

static void
free_memory(Clusters *cl)
{
	(void) cudaStreamSynchronize(cl->stream);
	gv_targets_drop(&cl->targets);
	gv_reassign_drop(&cl->re);
	(void) cudaFree(cl->d_nearest);
	for (int i = 0; i < 2; i++)
	{
		(void) cudaFree(cl->d_keys[i]);
		(void) cudaFree(cl->d_rows[i]);
	}
	(void) cudaFree(cl->d_sort);
	(void) cudaFree(cl->d_starts);
	(void) cudaFree(cl->d_splits);
	(void) cudaFree(cl->d_done);
	free(cl->starts);
	free(cl->splits);
	free(cl->done);
	free(cl->sorted);
	free(cl->changed);
	free(cl->places);
}

/* The first centroids: k random rows, drawn without repetition. */
static GvStatus
draw_centroids(Clusters *cl)
{
	int64_t		n = cl->spec->n;
	uint64_t	random = cl->spec->seed;
	uint32_t   *order = (uint32_t *) malloc(n * sizeof(uint32_t));
	GvStatus	status;

	if (order == NULL)
		return GV_NO_MEMORY;
	for (int64_t i = 0; i < n; i++)
		order[i] = (uint32_t) i;
	for (int64_t i = 0; i < cl->k; i++)
	{
		int64_t		j = i + (int64_t) (gv_device_random(&random) %
									   (uint64_t) (n - i));

		std::swap(order[i], order[j]);
	}
	status = gv_cuda_status(cudaMemcpyAsync(cl->d_rows[0], order,
											cl->k * sizeof(uint32_t),
											cudaMemcpyHostToDevice,
											cl->stream));
	if (status == GV_OK)
		status = gv_gpu_gather(cl->d_x, cl->d_rows[0], cl->k, cl->spec->dims,
							   cl->d_centroids, cl->stream);
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(cl->stream));
	free(order);
	return status;
}

static __global__ void __launch_bounds__(THREADS)
keys_kernel(const GvProbe *near, int n, uint32_t *keys, uint32_t *rows)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
	{
		keys[i] = (uint32_t) near[i].list;
		rows[i] = (uint32_t) i;
	}
}

/* Group the rows by cluster; the host gets the starts. */
static GvStatus
group_rows(Clusters *cl)
{
	int			n = (int) cl->spec->n;
	GvGroup		group = {n, (uint32_t) cl->k, cl->d_keys[0], cl->d_rows[0],
		cl->d_keys[1], cl->d_rows[1], cl->d_starts, cl->d_sort,
	cl->sort_bytes};

	GV_LAUNCH(keys_kernel, gv_blocks_for(n, THREADS), THREADS, 0, cl->stream,
			  cl->d_nearest, n, cl->d_keys[0], cl->d_rows[0]);
	GV_CUDA_TRY(cudaGetLastError());
	GV_TRY(gv_gpu_group(&group, cl->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(cl->starts, cl->d_starts,
								(cl->k + 1) * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, cl->stream));
	return gv_cuda_status(cudaStreamSynchronize(cl->stream));
}

/* Compare all rows with all centroids, and group them. */
static GvStatus
assign_rows(Clusters *cl)
{
	cl->found->passes++;
	GV_TRY(gv_targets_set(&cl->targets, cl->d_centroids, cl->k));
	GV_TRY(gv_gpu_assign(cl->finder, &cl->targets, cl->d_x, cl->spec->n, 1,
						  cl->d_nearest, cl->stop));
	return group_rows(cl);
}

/* A block has a cluster, a thread some dimensions of its mean. */
static __global__ void __launch_bounds__(MOVE_THREADS)
move_kernel(const float *x, const uint32_t *rows, const uint32_t *starts,
			int dims, float *centroids)
{
	uint32_t	start = starts[blockIdx.x];
	uint32_t	end = starts[blockIdx.x + 1];

	if (start == end)
		return;
	for (int d = threadIdx.x; d < dims; d += MOVE_THREADS)
	{
		double		sum = 0.0;

#pragma unroll 4
		for (uint32_t i = start; i < end; i++)
			sum += (double) x[(int64_t) rows[i] * dims + d];
		centroids[(int64_t) blockIdx.x * dims + d] =
			gv_device_clamp(sum / (double) (end - start));
	}
}

static GvStatus
move_centroids(Clusters *cl)
{
	GV_LAUNCH(move_kernel, cl->k, MOVE_THREADS, 0, cl->stream, cl->d_x,
			  cl->d_rows[1], cl->d_starts, cl->spec->dims, cl->d_centroids);
	return gv_cuda_status(cudaGetLastError());
}

static inline uint32_t
count_of(const Clusters *cl, int32_t c)
{
	return cl->starts[c + 1] - cl->starts[c];
}

/* Which clusters to split, and into whose places; returns how many. */
static int32_t
plan_splits(Clusters *cl)
{
	double		limit = cl->spec->max_imbalance * (double) cl->spec->n / cl->k;
	int32_t		n = 0;

	for (int32_t c = 0; c < cl->k; c++)
		cl->sorted[c] = c;
	std::sort(cl->sorted, cl->sorted + cl->k,
			  [cl](int32_t a, int32_t b)
			  {
				  uint32_t	x = count_of(cl, a);
				  uint32_t	y = count_of(cl, b);

				  return x > y || (x == y && a < b);
			  });
	for (; n < cl->k / 2; n++)
	{
		int32_t		big = cl->sorted[n];
		int32_t		small = cl->sorted[cl->k - 1 - n];
		uint32_t	most = count_of(cl, big);
		uint32_t	least = count_of(cl, small);

		if (most < 2 || (least > 0 && (most <= limit || least > most / 4 * 3)))
			break;
		cl->splits[n] = {big, small};
	}
	return n;
}

/* Split what is too big; *changed tells whether anything was. */
static GvStatus
rebalance(Clusters *cl, uint64_t seed, bool *changed)
{
	double		begun = gv_seconds();
	int32_t		n = plan_splits(cl);

	*changed = false;
	cl->nsplits = n;
	if (n == 0)
		return GV_OK;
	GV_CUDA_TRY(cudaMemcpyAsync(cl->d_splits, cl->splits, n * sizeof(GvSplit),
								cudaMemcpyHostToDevice, cl->stream));
	GV_TRY(gv_gpu_split(cl->d_x, cl->spec->dims, cl->d_rows[1], cl->d_starts,
						cl->d_splits, n, seed, cl->d_centroids, cl->d_done,
						cl->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(cl->done, cl->d_done, n * sizeof(int32_t),
								cudaMemcpyDeviceToHost, cl->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(cl->stream));
	for (int32_t i = 0; i < n; i++)
		*changed |= cl->done[i] != 0;
	cl->found->split_s += gv_lap(&begun);
	return GV_OK;
}

/*
 * The clusters that rebalance changed, and where their rows go; false when
 * they are so many that comparing everything is faster.
 */
static bool
list_changed(Clusters *cl, int32_t *nchanged, int32_t *norphans)
{
	int32_t		n = 0;
	int64_t		orphans = 0;

	for (int32_t i = 0; i < cl->nsplits; i++)
	{
		if (cl->done[i] == 0)
			continue;
		if (n + 2 > cl->re.most_changed)
			return false;
		cl->changed[n++] = (uint32_t) cl->splits[i].big;
		cl->changed[n++] = (uint32_t) cl->splits[i].small;
	}
	std::sort(cl->changed, cl->changed + n);
	for (int32_t i = 0; i < n; i++)
	{
		cl->places[i] = (uint32_t) orphans;
		orphans += count_of(cl, (int32_t) cl->changed[i]);
	}
	*nchanged = n;
	*norphans = (int32_t) orphans;
	return orphans <= cl->re.most_orphans;
}

/* Assign and group the rows again after a rebalancing, and only that. */
static GvStatus
follow_rebalance(Clusters *cl)
{
	const GvClustered of = {cl->d_x, cl->spec->n, cl->d_centroids,
		&cl->targets, cl->d_rows[1], cl->d_starts, cl->d_nearest};
	int32_t		nchanged;
	int32_t		norphans;

	if (!follows || !list_changed(cl, &nchanged, &norphans))
		return assign_rows(cl);
	GV_TRY(gv_targets_set(&cl->targets, cl->d_centroids, cl->k));
	GV_TRY(gv_gpu_reassign(&cl->re, &of, cl->changed, cl->places, nchanged,
						   norphans, cl->finder, cl->stop));
	return group_rows(cl);
}

/* Close the gaps that empty clusters leave. */
static GvStatus
drop_empty(Clusters *cl)
{
	int32_t		dims = cl->spec->dims;
	uint32_t   *kept = (uint32_t *) cl->sorted;
	float	   *d_kept;
	GvStatus	status;
	int32_t		n = 0;

	for (int32_t c = 0; c < cl->k; c++)
		if (count_of(cl, c) > 0)
			kept[n++] = (uint32_t) c;
	cl->found->k = n;
	if (n == cl->k)
		return GV_OK;
	GV_TRY(gv_device_alloc(&d_kept, (int64_t) n * dims));
	status = gv_cuda_status(cudaMemcpyAsync(cl->d_keys[0], kept,
											n * sizeof(uint32_t),
											cudaMemcpyHostToDevice,
											cl->stream));
	if (status == GV_OK)
		status = gv_gpu_gather(cl->d_centroids, cl->d_keys[0], n, dims, d_kept,
							   cl->stream);
	if (status == GV_OK)
		status = gv_cuda_status(cudaMemcpyAsync(cl->d_centroids, d_kept,
												(size_t) n * dims *
												sizeof(float),
												cudaMemcpyDeviceToDevice,
												cl->stream));
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(cl->stream));
	(void) cudaFree(d_kept);
	return status;
}

static GvStatus
run(Clusters *cl)
{
	uint64_t	seed = cl->spec->seed;
	bool		changed = true;

	GV_TRY(take_memory(cl));
	GV_TRY(draw_centroids(cl));
	for (int pass = 0; pass < cl->spec->iterations; pass++)
	{
		GV_TRY(assign_rows(cl));
		GV_TRY(move_centroids(cl));
		GV_TRY(rebalance(cl, ++seed, &changed));
	}
	GV_TRY(assign_rows(cl));
	for (int pass = 0; pass < LAST_PASSES; pass++)
	{
		GV_TRY(rebalance(cl, ++seed, &changed));
		if (!changed)
			break;
		GV_TRY(follow_rebalance(cl));
	}
	return drop_empty(cl);
}

#ifdef GV_TEST_BUILD
/* See build.h. */
extern "C" void
gv_gpu_kmeans_follows(bool yes)
{
	follows = yes;
}
#endif

/* See build.h. */
GvStatus
gv_gpu_kmeans(const GvKmeans *spec, const float *d_x, float *d_centroids,
			  GvKmeansFound *found, GvFinder *finder, const GvStop *stop)
{
	Clusters	cl = {};
	GvStatus	status;

	cl.spec = spec;
	cl.d_x = d_x;
	cl.d_centroids = d_centroids;
	cl.k = spec->n < spec->k ? (int32_t) spec->n : spec->k;
	cl.finder = finder;
	cl.stop = stop;
	cl.stream = finder->searcher.stream;
	memset(found, 0, sizeof(*found));
	cl.found = found;
	status = run(&cl);
	free_memory(&cl);
	return status;
}
