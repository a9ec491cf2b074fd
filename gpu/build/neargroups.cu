/*
 * neargroups.cu
 *		The nearest of very many centroids to each row, looked for among those
 *		of near groups: what k-means compares grows as rows times the root of
 *		the centroids, and not as rows times centroids.
 *
 *		begin	centers of groups, twice the root of the centroids: k-means of
 *				some of these, once
 *		set		centroids go to the group of their nearest center, and come to
 *				lie side by side
 *		assign	each row tries the groups of its nearest centers, which stay
 *				the same: pairs (row, group), some rows' at a time, are sorted
 *				by group, and a group's rows meet its centroids by what finds a
 *				query's lists (assign.cu); of what the groups found the nearest
 *				counts
 *
 * Of 32,768 centroids of synthetic rows, 362 groups, 32 tried, that finds the
 * nearest one of .986 of the rows, of 16,384 of words and 256 groups of .979;
 * by groups near to a row's own group, instead of to the row, it would be .73
 * and .88.  (src/cpu/code/groups.c has the same purpose.)
 */
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "gpu/build/build.h"
#include "gpu/common/gv_group.h"

#define THREADS			256
#define LEAST_CENTROIDS	131072	/* below, scores of all take no longer */
#define TRIED			32		/* groups of a row */
#define OF_A_GROUP		64		/* centroids that centers are made of */
#define ITERATIONS		4
#define ALIGN			64		/* of a group's first centroid */
#define PIECE			65536	/* rows that meet a group at once */
#define LEAST_BLOCK		65536	/* rows whose pairs are sorted at once */
#define PAIR_BYTES		33		/* of a pair: its probe, keys and numbers
								 * twice, what the sort takes */

static GV_TUNABLE int32_t forced_from = 0;
static GV_TUNABLE int32_t forced_tried = 0;
static GV_TUNABLE int64_t forced_block = 0;

#ifdef GV_TEST_BUILD
/* See build.h. */
extern "C" void
gv_gpu_near_groups_force(int32_t from, int32_t tried, int64_t block)
{
	forced_from = from;
	forced_tried = tried;
	forced_block = block;
}
#endif

/* See build.h. */
bool
gv_near_groups_serve(int32_t k)
{
	return k >= (forced_from > 0 ? forced_from : LEAST_CENTROIDS);
}

/* Centers for k centroids, at most. */
static int32_t
groups_of(int32_t k)
{
	return 2 * (int32_t) sqrt((double) k);
}

/* Rows that meet a group at once. */
static int32_t
piece(void)
{
	return forced_block > 0 ? (int32_t) forced_block / 4 : PIECE;
}

/*
 * Rows whose pairs are sorted at once: as many as give each group a piece of
 * them, and take half as much memory as all rows at most.
 */
static int64_t
block_of(int32_t dims, int64_t n, int32_t k, int32_t tried)
{
	int64_t		block = std::min(n * dims * (int64_t) sizeof(float) /
								 (2 * PAIR_BYTES * tried),
								 (int64_t) PIECE * groups_of(k) / tried);

	if (forced_block > 0)
		block = forced_block;
	else if (block < LEAST_BLOCK)
		block = LEAST_BLOCK;
	return std::min(block, n);
}

/* See build.h. */
int64_t
gv_near_groups_bytes(int32_t dims, int64_t n, int32_t k)
{
	if (!gv_near_groups_serve(k))
		return 0;
	return (block_of(dims, n, k, TRIED) * PAIR_BYTES +
			n * (int64_t) sizeof(uint16_t)) * TRIED;
}

static GvStatus
take_memory(GvNearGroups *near, int64_t n, int32_t k, int32_t most)
{
	int64_t		pairs = near->block * near->tried;
	int64_t		capacity = std::max(pairs, (int64_t) k);
	int64_t		places = k + (int64_t) ALIGN * most;

	GV_TRY(gv_device_alloc(&near->d_centers, (int64_t) most * near->dims));
	for (int i = 0; i < 2; i++)
	{
		GV_TRY(gv_device_alloc(&near->d_keys[i], capacity));
		GV_TRY(gv_device_alloc(&near->d_numbers[i], capacity));
	}
	GV_TRY(gv_device_alloc(&near->d_probes, capacity));
	GV_TRY(gv_device_alloc(&near->d_tried, n * near->tried));
	GV_TRY(gv_device_alloc(&near->d_own, k));
	GV_TRY(gv_gpu_group_bytes(capacity, &near->sort_bytes));
	GV_CUDA_TRY(cudaMalloc(&near->d_sort, near->sort_bytes + 1));
	GV_TRY(gv_device_alloc(&near->d_starts, most + 1));
	GV_TRY(gv_device_alloc(&near->d_places, most + 1));
	GV_TRY(gv_device_alloc(&near->d_members, places * near->dims));
	GV_TRY(gv_device_alloc(&near->d_names, places));
	GV_TRY(gv_device_alloc(&near->d_rows, (int64_t) PIECE * near->dims));
	GV_TRY(gv_device_alloc(&near->d_found, PIECE));
	near->starts = (uint32_t *) calloc(most + 1, sizeof(uint32_t));
	near->places = (uint32_t *) calloc(most + 1, sizeof(uint32_t));
	near->counts = (uint32_t *) calloc(most + 1, sizeof(uint32_t));
	if (near->starts == NULL || near->places == NULL || near->counts == NULL)
		return GV_NO_MEMORY;
	GV_CUDA_TRY(cudaMemsetAsync(near->d_members, 0,
								places * near->dims * sizeof(float),
								near->stream));
	GV_TRY(gv_targets_create(&near->centers, GV_L2, near->dims, most,
							 near->stream));
	return gv_targets_create(&near->members, GV_L2, near->dims,
							 (int32_t) places, near->stream);
}

/* See build.h. */
void
gv_near_groups_drop(GvNearGroups *near)
{
	gv_targets_drop(&near->centers);
	gv_targets_drop(&near->members);
	(void) cudaFree(near->d_centers);
	for (int i = 0; i < 2; i++)
	{
		(void) cudaFree(near->d_keys[i]);
		(void) cudaFree(near->d_numbers[i]);
	}
	(void) cudaFree(near->d_probes);
	(void) cudaFree(near->d_tried);
	(void) cudaFree(near->d_own);
	(void) cudaFree(near->d_sort);
	(void) cudaFree(near->d_starts);
	(void) cudaFree(near->d_places);
	(void) cudaFree(near->d_members);
	(void) cudaFree(near->d_names);
	(void) cudaFree(near->d_rows);
	(void) cudaFree(near->d_found);
	free(near->starts);
	free(near->places);
	free(near->counts);
}

/* See build.h. */
GvStatus
gv_near_groups_begin(GvNearGroups *near, const GvKmeans *kmeans,
					 const float *d_centroids, int32_t k, GvFinder *finder,
					 const GvStop *stop)
{
	int32_t		most = groups_of(k);
	GvKmeans	some = *kmeans;
	GvKmeansFound found;

	near->dims = kmeans->dims;
	near->stream = finder->searcher.stream;
	near->tried = std::min(forced_tried > 0 ? forced_tried : TRIED, most);
	near->block = block_of(near->dims, kmeans->n, k, near->tried);
	GV_TRY(take_memory(near, kmeans->n, k, most));
	some.n = std::min((int64_t) k, (int64_t) OF_A_GROUP * most);
	some.k = most;
	some.iterations = ITERATIONS;
	GV_TRY(gv_gpu_kmeans(&some, d_centroids, near->d_centers, &found, finder,
						 stop));
	near->ngroups = found.k;
	return GV_OK;
}

/* The groups that are nearest to some rows. */
static __global__ void __launch_bounds__(THREADS)
tried_kernel(const GvProbe *probes, int64_t n, uint16_t *tried)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		tried[i] = (uint16_t) probes[i].list;
}

/* Groups become keys, beside the numbers of what tries them. */
static __global__ void __launch_bounds__(THREADS)
pairs_kernel(const uint16_t *groups, int64_t n, int tried, uint32_t *keys,
			 uint32_t *numbers)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i >= n)
		return;
	keys[i] = groups[i];
	numbers[i] = (uint32_t) (i / tried);
}

/* The `tried` groups nearest to each of some vectors, to d_groups. */
static GvStatus
find_groups(GvNearGroups *near, const float *d_vectors, int64_t n,
			int32_t tried, uint16_t *d_groups, GvFinder *finder,
			const GvStop *stop)
{
	GV_TRY(gv_gpu_assign(finder, &near->centers, d_vectors, n, tried,
						 near->d_probes, stop));
	GV_LAUNCH(tried_kernel, gv_blocks_for(n * tried, THREADS), THREADS, 0,
			  near->stream, near->d_probes, n * tried, d_groups);
	return gv_cuda_status(cudaGetLastError());
}

/* Of n vectors the numbers by each of the groups that they try. */
static GvStatus
group(GvNearGroups *near, const uint16_t *d_groups, int64_t n, int32_t tried)
{
	int64_t		pairs = n * tried;
	GvGroup		group = {pairs, (uint32_t) near->ngroups, near->d_keys[0],
		near->d_numbers[0], near->d_keys[1], near->d_numbers[1],
	near->d_starts, near->d_sort, near->sort_bytes};

	GV_LAUNCH(pairs_kernel, gv_blocks_for(pairs, THREADS), THREADS, 0,
			  near->stream, d_groups, pairs, tried, near->d_keys[0],
			  near->d_numbers[0]);
	GV_CUDA_TRY(cudaGetLastError());
	GV_TRY(gv_gpu_group(&group, near->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(near->starts, near->d_starts,
								(near->ngroups + 1) * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, near->stream));
	return gv_cuda_status(cudaStreamSynchronize(near->stream));
}

/* Centers that no centroid is near to are no groups any more. */
static GvStatus
drop_empty(GvNearGroups *near, GvFinder *finder)
{
	int32_t		dims = near->dims;
	int32_t		n = 0;

	for (int32_t g = 0; g < near->ngroups; g++)
		if (near->starts[g + 1] > near->starts[g])
			near->counts[n++] = (uint32_t) g;
	if (n == near->ngroups)
		return GV_OK;
	/* keys and members are made anew */
	GV_CUDA_TRY(cudaMemcpyAsync(near->d_keys[0], near->counts,
								n * sizeof(uint32_t), cudaMemcpyHostToDevice,
								near->stream));
	GV_TRY(gv_gpu_gather(near->d_centers, near->d_keys[0], n, dims,
						 near->d_members, near->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(near->d_centers, near->d_members,
								(size_t) n * dims * sizeof(float),
								cudaMemcpyDeviceToDevice, near->stream));
	near->ngroups = n;
	return GV_OK;
}

/* A centroid, by a block, to its place among its group's. */
static __global__ void __launch_bounds__(THREADS)
members_kernel(const float *centroids, int dims, const uint32_t *groups,
			   const uint32_t *order, const uint32_t *starts,
			   const uint32_t *places, float *members, uint32_t *names)
{
	uint32_t	group = groups[blockIdx.x];
	int64_t		place = places[group] + (blockIdx.x - starts[group]);
	const float *from = centroids + (int64_t) order[blockIdx.x] * dims;

	if (threadIdx.x == 0)
		names[place] = order[blockIdx.x];
	for (int d = threadIdx.x; d < dims; d += THREADS)
		members[place * dims + d] = from[d];
}

/* See build.h. */
GvStatus
gv_near_groups_set(GvNearGroups *near, const float *d_centroids, int32_t k,
				   GvFinder *finder, const GvStop *stop)
{
	int32_t		before;

	do
	{
		before = near->ngroups;
		GV_TRY(gv_targets_set(&near->centers, near->d_centers,
							  near->ngroups));
		GV_TRY(find_groups(near, d_centroids, k, 1, near->d_own, finder,
						   stop));
		GV_TRY(group(near, near->d_own, k, 1));
		GV_TRY(drop_empty(near, finder));
	} while (near->ngroups < before);
	near->places[0] = 0;
	for (int32_t g = 0; g < near->ngroups; g++)
	{
		near->counts[g] = near->starts[g + 1] - near->starts[g];
		near->places[g + 1] = near->places[g] +
			(near->counts[g] + ALIGN - 1) / ALIGN * ALIGN;
	}
	GV_CUDA_TRY(cudaMemcpyAsync(near->d_places, near->places,
								(near->ngroups + 1) * sizeof(uint32_t),
								cudaMemcpyHostToDevice, near->stream));
	GV_LAUNCH(members_kernel, k, THREADS, 0, near->stream, d_centroids,
			  near->dims, near->d_keys[1], near->d_numbers[1], near->d_starts,
			  near->d_places, near->d_members, near->d_names);
	GV_CUDA_TRY(cudaGetLastError());
	return gv_targets_set(&near->members, near->d_members,
						  (int32_t) near->places[near->ngroups]);
}

static __global__ void __launch_bounds__(THREADS)
clear_kernel(GvProbe *nearest, int64_t n)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		nearest[i] = {-1, 0.0f};
}

/* Of what a row has and what a group found for it the nearer one. */
static __global__ void __launch_bounds__(THREADS)
prefer_kernel(const GvProbe *found, const uint32_t *rows, int n,
			  const uint32_t *names, GvProbe *nearest)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		gv_take_nearer(nearest + rows[i], (int32_t) names[found[i].list],
					   found[i].base);
}

/* The rows of a block that try a group, and its centroids. */
static GvStatus
try_group(GvNearGroups *near, int32_t group, const float *d_rows,
		  GvProbe *d_nearest, GvFinder *finder, const GvStop *stop)
{
	int64_t		first = near->places[group];
	GvTargets	some = near->members;
	GvDeviceModel *model = &some.mirror.model;

	model->nlists = (int32_t) near->counts[group];
	model->d_centroids += first * model->dims;
	model->d_half_centroids += first * model->half_dims;
	model->d_squares += first;
	for (uint32_t at = near->starts[group]; at < near->starts[group + 1];
		 at += (uint32_t) piece())
	{
		int32_t		n = (int32_t) std::min((uint32_t) piece(),
										   near->starts[group + 1] - at);
		const uint32_t *d_numbers = near->d_numbers[1] + at;

		GV_TRY(gv_gpu_gather(d_rows, d_numbers, n, near->dims, near->d_rows,
							 near->stream));
		GV_TRY(gv_gpu_assign(finder, &some, near->d_rows, n, 1, near->d_found,
							 stop));
		GV_LAUNCH(prefer_kernel, gv_blocks_for(n, THREADS), THREADS, 0,
				  near->stream, near->d_found, d_numbers, n,
				  near->d_names + first, d_nearest);
		GV_CUDA_TRY(cudaGetLastError());
	}
	return GV_OK;
}

/* d_tried of all rows, anew where groups have gone. */
static GvStatus
try_groups(GvNearGroups *near, const float *d_rows, int64_t n, int32_t tried,
		   GvFinder *finder, const GvStop *stop)
{
	if (near->ntried == near->ngroups)
		return GV_OK;
	for (int64_t done = 0; done < n; done += near->block)
		GV_TRY(find_groups(near, d_rows + done * near->dims,
						   std::min(near->block, n - done), tried,
						   near->d_tried + done * tried, finder, stop));
	near->ntried = near->ngroups;
	return GV_OK;
}

/* See build.h. */
GvStatus
gv_near_groups_assign(GvNearGroups *near, const float *d_rows, int64_t n,
					  GvProbe *d_nearest, GvFinder *finder, const GvStop *stop)
{
	int32_t		tried = std::min(near->tried, near->ngroups);

	GV_TRY(try_groups(near, d_rows, n, tried, finder, stop));
	GV_LAUNCH(clear_kernel, gv_blocks_for(n, THREADS), THREADS, 0,
			  near->stream, d_nearest, n);
	GV_CUDA_TRY(cudaGetLastError());
	for (int64_t done = 0; done < n; done += near->block)
	{
		GV_TRY(group(near, near->d_tried + done * tried,
					 std::min(near->block, n - done), tried));
		for (int32_t g = 0; g < near->ngroups; g++)
			GV_TRY(try_group(near, g, d_rows + done * near->dims,
							 d_nearest + done, finder, stop));
	}
	return GV_OK;
}
