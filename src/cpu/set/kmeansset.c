/*
 * kmeansset.c
 *		k-means over rows that come in batches.
 *
 * Passes are as gv_set.h defines them.  The state has the clusters, but not
 * the rows.
 */
#include <string.h>

#include "cpu/pq/assign.h"
#include "cpu/set/gv_cpu_set.h"

#define BATCH		1024		/* rows assigned before they are summed up */

typedef struct Clusters
{
	GvSetSpec	spec;
	float	   *centroids;		/* [k][dims] */
	double	   *sums;			/* [k][dims] sums of the rows of this pass */
	int64_t    *sizes;			/* [k] */
	double	   *errors;			/* [k] sums of the squared distances of rows */
	float	   *far_distances;	/* [k] squared distance of the farthest row; 0
								 * if there is none */
	float	   *farthest;		/* [k][dims] the farthest row */
	int32_t    *order;			/* [k] scratch of gv_set_reseed */
	int32_t		nearest[BATCH];
	float		sqdist[BATCH];
} Clusters;

/* Implements gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	return spec->k * ((int64_t) spec->dims * 16 + 24) +
		(int64_t) sizeof(Clusters);
}

static void
cpu_drop(void *state)
{
	Clusters   *clusters = state;

	free(clusters->centroids);
	free(clusters->sums);
	free(clusters->sizes);
	free(clusters->errors);
	free(clusters->far_distances);
	free(clusters->farthest);
	free(clusters->order);
	free(clusters);
}

/*
 * Begins a pass.  No cluster has rows, so its sum will not be read before it
 * is set.
 */
static void
start_pass(Clusters *clusters)
{
	size_t		k = (size_t) clusters->spec.k;

	memset(clusters->sizes, 0, sizeof(int64_t) * k);
	memset(clusters->errors, 0, sizeof(double) * k);
	memset(clusters->far_distances, 0, sizeof(float) * k);
}

/* Implements gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	Clusters   *made = calloc(1, sizeof(Clusters));
	int64_t		n = (int64_t) spec->k * spec->dims;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->centroids = gv_cpu_take(n, sizeof(float));
	made->sums = gv_cpu_take(n, sizeof(double));
	made->sizes = gv_cpu_take(spec->k, sizeof(int64_t));
	made->errors = gv_cpu_take(spec->k, sizeof(double));
	made->far_distances = gv_cpu_take(spec->k, sizeof(float));
	made->farthest = gv_cpu_take(n, sizeof(float));
	made->order = gv_cpu_take(spec->k, sizeof(int32_t));
	if (made->centroids == NULL || made->sums == NULL ||
		made->sizes == NULL || made->errors == NULL ||
		made->far_distances == NULL || made->farthest == NULL ||
		made->order == NULL)
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	start_pass(made);
	*state = made;
	return GV_OK;
}

/* Adds a row to the cluster to which it was assigned. */
static void
add_row(Clusters *clusters, const float *row, int32_t c, float sqdist)
{
	int32_t		dims = clusters->spec.dims;
	double	   *sum = clusters->sums + (size_t) c * dims;
	int32_t		d;

	if (clusters->sizes[c]++ == 0)
		for (d = 0; d < dims; d++)
			sum[d] = 0.0 + row[d];	/* turns -0 into 0 */
	else
		for (d = 0; d < dims; d++)
			sum[d] += row[d];
	clusters->errors[c] += sqdist;
	if (sqdist > clusters->far_distances[c])
	{
		clusters->far_distances[c] = sqdist;
		memcpy(clusters->farthest + (size_t) c * dims, row,
			   sizeof(float) * dims);
	}
}

/* Implements gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	Clusters   *clusters = state;
	int32_t		dims = clusters->spec.dims;
	const float *rows = items;
	GvPoll		poll = {stop, 0};
	int64_t		done;

	if (input == GV_SET_SEEDS)
	{
		memcpy(clusters->centroids + first * dims, items,
			   sizeof(float) * (size_t) (n * dims));
		return GV_OK;
	}
	for (done = 0; done < n; done += BATCH)
	{
		int64_t		some = n - done < BATCH ? n - done : BATCH;
		const float *batch = rows + done * dims;
		int64_t		i;

		/* gv_cpu_assign begins a count of its own in each call */
		if (gv_poll(&poll, some * dims * (clusters->spec.k + (int64_t) 8)) ||
			gv_cpu_assign(dims, clusters->centroids, clusters->spec.k, batch,
						  some, clusters->nearest, clusters->sqdist,
						  stop) != GV_OK)
			return GV_CANCELED;
		for (i = 0; i < some; i++)
			add_row(clusters, batch + i * dims, clusters->nearest[i],
					clusters->sqdist[i]);
	}
	return GV_OK;
}

/*
 * Sets centroids to the means of their rows.  Returns false if the caller must
 * give up.
 */
static bool
move_centroids(Clusters *clusters, const GvStop *stop)
{
	int32_t		dims = clusters->spec.dims;
	GvPoll		poll = {stop, 0};
	int32_t		c;
	int32_t		d;

	for (c = 0; c < clusters->spec.k; c++)
	{
		float	   *centroid = clusters->centroids + (size_t) c * dims;
		const double *sum = clusters->sums + (size_t) c * dims;

		if (gv_poll(&poll, dims))
			return false;
		if (clusters->sizes[c] == 0)
			continue;
		for (d = 0; d < dims; d++)
			centroid[d] = (float) (sum[d] / (double) clusters->sizes[c]);
	}
	return true;
}

/*
 * Closes the gaps that clusters without rows leave.  Returns how many clusters
 * remain.
 */
static int32_t
close_gaps(Clusters *clusters)
{
	int32_t		dims = clusters->spec.dims;
	int32_t		found = 0;
	int32_t		c;

	for (c = 0; c < clusters->spec.k; c++)
	{
		if (clusters->sizes[c] == 0)
			continue;
		if (found < c)
			memcpy(clusters->centroids + (size_t) found * dims,
				   clusters->centroids + (size_t) c * dims,
				   sizeof(float) * dims);
		clusters->sizes[found++] = clusters->sizes[c];
	}
	return found;
}

/* Implements gv_set_run: ends a pass. */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Clusters   *clusters = state;
	const GvSetSpec *spec = &clusters->spec;
	int32_t		c;

	done->error = 0.0;
	for (c = 0; c < spec->k; c++)
		done->error += clusters->errors[c];
	done->passes++;
	done->finished = done->passes > spec->iterations;
	done->again = !done->finished;
	if (done->finished)
	{
		done->found = close_gaps(clusters);
		return GV_OK;
	}
	if (!move_centroids(clusters, stop))
		return GV_CANCELED;
	(void) gv_set_reseed(spec, clusters->sizes, clusters->errors,
						 clusters->far_distances, clusters->farthest,
						 clusters->centroids, clusters->order);
	start_pass(clusters);
	return GV_OK;
}

/* Implements gv_set_get. */
static GvStatus
cpu_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		void *items)
{
	const Clusters *clusters = state;
	int32_t		dims = clusters->spec.dims;

	if (output == GV_SET_CENTROIDS)
		memcpy(items, clusters->centroids + first * dims,
			   sizeof(float) * (size_t) (n * dims));
	else
		memcpy(items, clusters->sizes + first, sizeof(int64_t) * (size_t) n);
	return GV_OK;
}

const GvSetOps gv_cpu_kmeans_set = {
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put = cpu_put,
	.run = cpu_run,
	.get = cpu_get,
};
