/*
 * sets.c
 *		k-means and selections over rows that come in batches, and the table of
 *		set operations on processors.  These operations are the oracle for the
 *		set operations of every other engine.  (Exact search is in
 *		exact/exactset.c.)
 *
 * The passes of k-means are defined in gv_set.h.  The state of a k-means has
 * the clusters, but not the rows.
 */
#include <string.h>

#include "cpu/exact/exact.h"

#define BATCH		1024		/* rows assigned before they are summed up */

typedef struct Clusters
{
	GvSetSpec	spec;
	int64_t		nrows;			/* rows of this pass so far */
	int32_t		slice;			/* the slice that rows are added to */
	int64_t		slice_end;		/* number of the first row behind it */
	float	   *centroids;		/* [k][dims] */
	double	   *sums;			/* [k][dims] sums of the rows of the slice;
								 * when the pass has ended, of all rows */
	double	   *errors;			/* [k] behind the sums, added up like them */
	double	   *lower;			/* [GV_SET_LEVELS][k * dims + k] lower[i]:
								 * sums and errors of 2^i slices, which wait
								 * for those of the next 2^i slices */
	GvSetCluster *found;		/* [k] without errors, until the pass ends */
	float	   *farthest;		/* [k][dims] the farthest row */
	GvSetReseed *reseeds;		/* [k] */
	int32_t    *order;			/* [k] see gv_set_end_pass */
	int32_t		nearest[BATCH];
	float		sqdist[BATCH];
} Clusters;

/* Returns how many sums and errors there are of a slice. */
static size_t
count_sums(const GvSetSpec *spec)
{
	return (size_t) spec->k * ((size_t) spec->dims + 1);
}

/*
 * Lays out a state and the arrays behind it, and returns the size of the
 * whole.
 */
static size_t
carve_clusters(Clusters *clusters, char *memory)
{
	size_t		k = (size_t) clusters->spec.k;
	size_t		n = k * (size_t) clusters->spec.dims;
	size_t		nsums = count_sums(&clusters->spec);
	size_t		next = 0;

	(void) gv_carve(memory, &next, sizeof(Clusters));
	clusters->centroids = gv_carve(memory, &next, sizeof(float) * n);
	clusters->sums = gv_carve(memory, &next, sizeof(double) * nsums);
	clusters->errors = memory == NULL ? NULL : clusters->sums + n;
	clusters->lower = gv_carve(memory, &next, sizeof(double) * nsums *
							   GV_SET_LEVELS);
	clusters->found = gv_carve(memory, &next, sizeof(GvSetCluster) * k);
	clusters->farthest = gv_carve(memory, &next, sizeof(float) * n);
	clusters->reseeds = gv_carve(memory, &next, sizeof(GvSetReseed) * k);
	clusters->order = gv_carve(memory, &next, sizeof(int32_t) * k);
	return next;
}

/* Implements gv_set_size. */
static int64_t
kmeans_size(const GvSetSpec *spec)
{
	Clusters	clusters = {.spec = *spec};

	return (int64_t) carve_clusters(&clusters, NULL);
}

/* Begins a pass, in which no cluster has rows yet. */
static void
start_pass(Clusters *clusters)
{
	clusters->nrows = 0;
	clusters->slice = 0;
	clusters->slice_end = gv_set_slice(&clusters->spec, 1);
	memset(clusters->sums, 0, sizeof(double) * count_sums(&clusters->spec));
	memset(clusters->found, 0, sizeof(GvSetCluster) *
		   (size_t) clusters->spec.k);
}

/* Implements gv_set_create. */
static GvStatus
kmeans_create(const GvSetSpec *spec, void **state)
{
	Clusters   *made = gv_cpu_take(kmeans_size(spec), 1);

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	(void) carve_clusters(made, (char *) made);
	*state = made;
	return GV_OK;
}

/*
 * Ends a slice: adds its sums to those of the slices before it, as far as
 * these make pairs, and begins the next slice, if there is one.
 */
static void
end_slice(Clusters *clusters)
{
	const GvSetSpec *spec = &clusters->spec;
	size_t		n = count_sums(spec);
	double	   *sums = clusters->sums;
	double	   *lower = clusters->lower;
	size_t		i;

	for (int32_t odd = clusters->slice; odd & 1; odd >>= 1, lower += n)
		for (i = 0; i < n; i++)
			sums[i] += lower[i];
	if (++clusters->slice == gv_set_nslices(spec))
		return;
	memcpy(lower, sums, sizeof(double) * n);
	memset(sums, 0, sizeof(double) * n);
	clusters->slice_end = gv_set_slice(spec, clusters->slice + 1);
}

/* Adds the next row to the cluster to which it was assigned. */
static void
add_row(Clusters *clusters, const float *row, int32_t c, float sqdist)
{
	int32_t		dims = clusters->spec.dims;
	double	   *sum = clusters->sums + (size_t) c * dims;
	int32_t		d;

	while (clusters->nrows >= clusters->slice_end)
		end_slice(clusters);
	clusters->nrows++;
	clusters->found[c].size++;
	for (d = 0; d < dims; d++)
		sum[d] += row[d];
	clusters->errors[c] += sqdist;
	if (sqdist > clusters->found[c].far_distance)
	{
		clusters->found[c].far_distance = sqdist;
		memcpy(clusters->farthest + (size_t) c * dims, row,
			   sizeof(float) * dims);
	}
}

/* Implements gv_set_put. */
static GvStatus
kmeans_put(void *state, GvSetInput input, const void *items, int64_t first,
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
	if (first == 0)
		start_pass(clusters);
	for (done = 0; done < n; done += BATCH)
	{
		int64_t		some = n - done < BATCH ? n - done : BATCH;
		const float *batch = rows + done * dims;
		int64_t		i;

		memset(clusters->nearest, -1, sizeof(clusters->nearest));

		/*
		 * each call of gv_cpu_assign begins to count its work anew, so poll
		 * here, too
		 */
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

/* Implements gv_set_run: ends a pass. */
static GvStatus
kmeans_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Clusters   *clusters = state;
	const GvSetSpec *spec = &clusters->spec;
	size_t		dims = (size_t) spec->dims;
	GvPoll		poll = {stop, 0};
	int32_t		nreseeds;
	int32_t		c;

	while (clusters->slice < gv_set_nslices(spec))
		end_slice(clusters);
	for (c = 0; c < spec->k; c++)
		clusters->found[c].error = clusters->errors[c];
	done->again = done->passes < spec->iterations;
	if (spec->nslices > 0)
	{
		done->finished = done->passes++ == spec->iterations;
		return GV_OK;
	}
	nreseeds = gv_set_end_pass(spec, clusters->found, 1, clusters->reseeds,
							   clusters->order, done);
	for (c = 0; c < spec->k && !done->finished; c++)
	{
		if (gv_poll(&poll, spec->dims))
			return GV_CANCELED;
		if (clusters->found[c].size > 0)
			gv_set_mean(clusters->sums + c * dims, 1, 0,
						clusters->found[c].size, spec->dims,
						clusters->centroids + c * dims);
	}
	for (c = 0; c < nreseeds; c++)
		memcpy(clusters->centroids + clusters->reseeds[c].to * dims,
			   clusters->farthest + clusters->reseeds[c].from * dims,
			   sizeof(float) * dims);
	return GV_OK;
}

/* Implements gv_set_get. */
static GvStatus
kmeans_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		   void *items)
{
	const Clusters *clusters = state;
	size_t		dims = (size_t) clusters->spec.dims;

	if (output == GV_SET_SUMS)
		memcpy(items, clusters->sums + first * dims,
			   sizeof(double) * dims * (size_t) n);
	else if (output == GV_SET_CLUSTERS)
		memcpy(items, clusters->found + first,
			   sizeof(GvSetCluster) * (size_t) n);
	else if (output == GV_SET_FARTHEST)
		memcpy(items, clusters->farthest + first * dims,
			   sizeof(float) * dims * (size_t) n);
	else
		gv_set_copy(clusters->order + first, n, clusters->spec.dims,
					clusters->found, clusters->centroids, output, items);
	return GV_OK;
}

static const GvSetOps kmeans_set = {
	.size = kmeans_size,
	.create = kmeans_create,
	.drop = free,
	.put = kmeans_put,
	.run = kmeans_run,
	.get = kmeans_get,
};

/* ----
 * Selections of values that come in batches.
 *
 * The values are kept until all of them have come.  Then gv_select or
 * gv_quantiles makes the selection.
 */

#define SLICE		(INT64_C(1) << 20)	/* values copied at a time */

typedef struct Selection
{
	GvSetSpec	spec;
	char	   *values;			/* [nrows], floats or doubles */
	int64_t    *ranks;			/* [n outputs], for GV_SET_QUANTILES */
	char	   *selected;		/* [n], as the values */
	uint32_t   *positions;		/* [n], for GV_SET_SELECT */
	int64_t    *rank_errors;	/* [n], for GV_SET_QUANTILES */
} Selection;

static bool
is_quantiles(const GvSetSpec *spec)
{
	return spec->kind == GV_SET_QUANTILES;
}

static size_t
value_bytes(const GvSetSpec *spec)
{
	return sizeof(float) * (size_t) spec->dims;
}

static GvSelect
select_spec(const GvSetSpec *spec)
{
	GvSelect	select = {1, spec->nrows, spec->k,
	(GvSelectMethod) spec->method, spec->dims == 2};

	return select;
}

static GvQuantiles
quantiles_spec(const GvSetSpec *spec)
{
	GvQuantiles quantiles = {spec->nrows, (int32_t) spec->nqueries,
	spec->approximate, spec->dims == 2};

	return quantiles;
}

static size_t
scratch_bytes(const GvSetSpec *spec)
{
	GvSelect	select = select_spec(spec);
	GvQuantiles quantiles = quantiles_spec(spec);

	return is_quantiles(spec) ? gv_quantiles_scratch(&quantiles) :
		gv_select_scratch(&select);
}

/* Like carve_clusters. */
static size_t
carve_selection(Selection *selection, char *memory)
{
	const GvSetSpec *spec = &selection->spec;
	bool		quantiles = is_quantiles(spec);
	size_t		n = (size_t) (quantiles ? spec->nqueries : spec->k);
	size_t		nranks = quantiles ? n : 0;
	size_t		next = 0;

	(void) gv_carve(memory, &next, sizeof(Selection));
	selection->values = gv_carve(memory, &next, value_bytes(spec) *
								 (size_t) spec->nrows);
	selection->selected = gv_carve(memory, &next, value_bytes(spec) * n);
	selection->ranks = gv_carve(memory, &next, sizeof(int64_t) * nranks);
	selection->rank_errors = gv_carve(memory, &next, sizeof(int64_t) * nranks);
	selection->positions = gv_carve(memory, &next,
									quantiles ? 0 : sizeof(uint32_t) * n);
	return next;
}

/* Implements gv_set_size. */
static int64_t
selection_size(const GvSetSpec *spec)
{
	Selection	selection = {.spec = *spec};

	return (int64_t) (carve_selection(&selection, NULL) + scratch_bytes(spec));
}

/* Implements gv_set_create. */
static GvStatus
selection_create(const GvSetSpec *spec, void **state)
{
	Selection	sized = {.spec = *spec};
	Selection  *made = gv_cpu_take((int64_t) carve_selection(&sized, NULL), 1);

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	(void) carve_selection(made, (char *) made);
	*state = made;
	return GV_OK;
}

/* Implements gv_set_put. */
static GvStatus
selection_put(void *state, GvSetInput input, const void *items, int64_t first,
			  int64_t n, const GvStop *stop)
{
	Selection  *selection = state;
	size_t		bytes = value_bytes(&selection->spec);
	GvPoll		poll = {stop, 0};
	int64_t		done;

	if (input == GV_SET_RANKS)
	{
		memcpy(selection->ranks + first, items, sizeof(int64_t) * (size_t) n);
		return GV_OK;
	}
	for (done = 0; done < n; done += SLICE)
	{
		int64_t		some = n - done < SLICE ? n - done : SLICE;

		if (gv_poll(&poll, SLICE))
			return GV_CANCELED;
		memcpy(selection->values + bytes * (size_t) (first + done),
			   (const char *) items + bytes * (size_t) done,
			   bytes * (size_t) some);
	}
	return GV_OK;
}

/* Implements gv_set_run: does everything in one pass. */
static GvStatus
selection_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Selection  *selection = state;
	const GvSetSpec *spec = &selection->spec;
	void	   *scratch = gv_cpu_take((int64_t) scratch_bytes(spec), 1);
	GvSelect	select = select_spec(spec);
	GvQuantiles quantiles = quantiles_spec(spec);
	GvStatus	status;

	if (scratch == NULL)
		return GV_NO_MEMORY;
	if (is_quantiles(spec))
		status = gv_quantiles(&quantiles, selection->values, selection->ranks,
							  selection->selected, selection->rank_errors,
							  scratch, stop);
	else
		status = gv_select(&select, selection->values, selection->positions,
						   selection->selected, scratch, stop);
	free(scratch);
	done->passes = 1;
	done->finished = 1;
	return status;
}

/* Implements gv_set_get. */
static GvStatus
selection_get(void *state, GvSetOutput output, int64_t first, int64_t n,
			  void *items)
{
	const Selection *selection = state;
	size_t		bytes = value_bytes(&selection->spec);
	int64_t    *positions = items;
	int64_t		i;

	if (output == GV_SET_VALUES)
		memcpy(items, selection->selected + bytes * (size_t) first,
			   bytes * (size_t) n);
	else if (output == GV_SET_RANK_ERRORS)
		memcpy(items, selection->rank_errors + first,
			   sizeof(int64_t) * (size_t) n);
	else
		for (i = 0; i < n; i++)
			positions[i] = selection->positions[first + i];
	return GV_OK;
}

/* Both kinds of selections have these. */
static const GvSetOps select_set = {
	.size = selection_size,
	.create = selection_create,
	.drop = free,
	.put = selection_put,
	.run = selection_run,
	.get = selection_get,
};

const GvSetBackend gv_cpu_sets = {
	.name = "cpu",
	.kinds = {
		[GV_SET_EXACT] = &gv_cpu_exact_set,
		[GV_SET_KMEANS] = &kmeans_set,
		[GV_SET_SELECT] = &select_set,
		[GV_SET_QUANTILES] = &select_set,
	},
};
