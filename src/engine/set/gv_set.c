/*
 * gv_set.c
 *		Sets: argument checks, dispatch to the engine, and the end of a pass of
 *		k-means.
 *
 * A GvSet counts the items of each input that have come.  So the functions
 * here can refuse inputs that are out of order or too many, and calls that are
 * too early, and an engine need not check arguments.  All operations go to the
 * engine that gv_sets_open selected, or to gv_cpu_sets if gv_sets_open was not
 * called.
 *
 * gv_set_end_pass is called by engines, and for parts by gpuvecd.  It merges
 * the parts' results of a pass, and finds new centroids for clusters that have
 * no rows.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/gv_call.h"
#include "engine/gv_set.h"

struct GvSet
{
	GvSetSpec	spec;
	const GvSetOps *ops;
	void	   *state;
	int64_t		came[GV_NSET_INPUTS];	/* items of each input so far */
	GvSetDone	done;			/* after the last run */
	bool		is_kept;		/* the engine still has the rows for the next
								 * pass */
	bool		keeps;			/* the set was created with `own`, so
								 * gv_set_ask may be called */
	bool		is_broken;		/* a call failed, so the set can only be
								 * dropped */
};

static const GvSetBackend *backend = &gv_cpu_sets;
static bool is_open;			/* gv_sets_open selected the engine */

#ifdef GV_TEST_BUILD

GvFault		gv_set_calls;

void
gv_set_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&gv_set_calls, n, status);
}

#endif

GvStatus
gv_sets_open(const GvSetBackend *engine)
{
	if (engine == NULL || is_open)
		return GV_INVALID;
	backend = engine;
	is_open = true;
	return GV_OK;
}

/*
 * Returns whether `own` and `first` are valid.  If `own` is set, the queries
 * are rows of the set, and the rows must not be too many to be kept.
 */
static bool
valid_own(const GvSetSpec *spec)
{
	if (!spec->own)
		return spec->first == 0;
	return spec->own == 1 && spec->self == 0 && spec->first >= 0 &&
		(spec->nqueries > 0 || spec->nlists == 0) &&
		spec->first <= spec->nrows - spec->nqueries &&
		spec->nrows <= GV_SET_OWN_BYTES / (int64_t) sizeof(float) / spec->dims;
}

static bool
valid_exact(const GvSetSpec *spec)
{
	return spec->metric >= GV_SET_L2 && spec->metric <= GV_SET_PEARSON &&
		spec->k >= 1 && spec->k <= GV_SET_MAX_K &&
		spec->nqueries >= (spec->own ? 0 : 1) &&
		spec->nqueries <= GV_SET_MAX_QUERIES && spec->self <= 1 &&
		valid_own(spec) &&
		spec->nlists >= 0 && spec->nlists <= GV_SET_MAX_CLUSTERS &&
		spec->probes >= (spec->nlists > 0) && spec->probes <= spec->nlists;
}

static bool
valid_spec(const GvSetSpec *spec)
{
	if (spec == NULL || spec->dims < 1 || spec->dims > GV_MAX_DIMS ||
		spec->nrows < 1 || spec->nrows > INT64_MAX / 8 / GV_MAX_DIMS ||
		spec->device < 0 || spec->device >= GV_MAX_DEVICES)
		return false;
	/* fields of other kinds of work are 0 */
	if ((spec->kind != GV_SET_EXACT &&
		 ((spec->metric | spec->self | spec->nlists | spec->probes |
		   spec->own) != 0 || spec->first != 0)) ||
		(spec->kind != GV_SET_KMEANS &&
		 (spec->iterations | spec->balanced) != 0) ||
		(spec->nslices | spec->first_slice | spec->unused) != 0 ||
		(spec->kind != GV_SET_SELECT && spec->method != 0) ||
		(spec->kind != GV_SET_QUANTILES && spec->approximate != 0))
		return false;
	switch ((GvSetKind) spec->kind)
	{
		case GV_SET_EXACT:
			return valid_exact(spec);
		case GV_SET_KMEANS:
			return spec->k >= 1 && spec->k <= GV_SET_MAX_CLUSTERS &&
				spec->k <= spec->nrows && spec->nqueries == 0 &&
				spec->iterations >= 0 &&
				spec->iterations < GV_SET_MAX_PASSES && spec->balanced <= 1;
		case GV_SET_SELECT:
			return spec->dims <= 2 && spec->nrows <= GV_SELECT_MAX_N &&
				spec->k >= 1 && spec->k <= spec->nrows &&
				spec->nqueries == 0 &&
				spec->method < GV_NSELECT &&
				(spec->method != GV_SELECT_WARP || spec->k <= GV_WARP_MAX_K);
		case GV_SET_QUANTILES:
			return spec->dims <= 2 && spec->nrows <= GV_SELECT_MAX_N &&
				spec->k == 0 && spec->nqueries >= 1 &&
				spec->nqueries <= GV_SET_MAX_QUERIES && spec->approximate <= 1;
	}
	return false;
}

int64_t
gv_set_input_bytes(const GvSetSpec *spec, GvSetInput input)
{
	const bool	comes[GV_NSET_INPUTS] = {
		[GV_SET_ROWS] = true,
		[GV_SET_QUERIES] = spec->kind == GV_SET_EXACT && !spec->own,
		[GV_SET_SELF] = spec->self != 0,
		[GV_SET_RANKS] = spec->kind == GV_SET_QUANTILES,
		[GV_SET_SEEDS] = spec->kind == GV_SET_KMEANS,
		[GV_SET_LISTS] = spec->nlists > 0,
	};

	if ((uint32_t) input >= GV_NSET_INPUTS || !comes[input])
		return 0;
	return input == GV_SET_SELF || input == GV_SET_RANKS ?
		(int64_t) sizeof(int64_t) : (int64_t) sizeof(float) * spec->dims;
}

/*
 * Returns how many items an input has or, for the rows of an exact search, how
 * many it may have.
 */
static int64_t
input_length(const GvSetSpec *spec, GvSetInput input)
{
	return input == GV_SET_ROWS ? spec->nrows :
		input == GV_SET_SEEDS ? spec->k :
		input == GV_SET_LISTS ? spec->nlists : spec->nqueries;
}

int64_t
gv_set_output_bytes(const GvSetSpec *spec, GvSetOutput output)
{
	static const uint8_t bytes[GV_NSETS][GV_NSET_OUTPUTS] = {
		[GV_SET_EXACT] = {
			[GV_SET_POSITIONS] = sizeof(int64_t),
			[GV_SET_DISTANCES] = sizeof(double)
		},
		[GV_SET_KMEANS] = {
			[GV_SET_CENTROIDS] = sizeof(float),
			[GV_SET_SIZES] = sizeof(int64_t)
		},
		[GV_SET_SELECT] = {
			[GV_SET_POSITIONS] = sizeof(int64_t),
			[GV_SET_VALUES] = sizeof(float)
		},
		[GV_SET_QUANTILES] = {
			[GV_SET_VALUES] = sizeof(float),
			[GV_SET_RANK_ERRORS] = sizeof(int64_t)
		},
	};

	if ((uint32_t) spec->kind >= GV_NSETS ||
		(uint32_t) output >= GV_NSET_OUTPUTS)
		return 0;
	return bytes[spec->kind][output] *
		(output == GV_SET_CENTROIDS || output == GV_SET_VALUES ?
		 (int64_t) spec->dims : 1);
}

int64_t
gv_set_output_length(const GvSetSpec *spec, GvSetOutput output, int32_t found)
{
	if (gv_set_output_bytes(spec, output) == 0)
		return 0;
	return spec->kind == GV_SET_EXACT ? spec->nqueries * spec->k :
		spec->kind == GV_SET_KMEANS ? found :
		spec->kind == GV_SET_SELECT ? spec->k : spec->nqueries;
}

int64_t
gv_set_size(const GvSetSpec *spec)
{
	return valid_spec(spec) ? backend->kinds[spec->kind]->size(spec) : 0;
}

GvStatus
gv_set_create(const GvSetSpec *spec, GvSet **set)
{
	GvStatus	status;
	GvSet	   *made;

	GV_CALL(gv_set_calls, set != NULL && valid_spec(spec));
	made = calloc(1, sizeof(*made));
	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->keeps = spec->own != 0;
	made->ops = backend->kinds[spec->kind];
	status = made->ops->create(spec, &made->state);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	*set = made;
	return GV_OK;
}

void
gv_set_drop(GvSet *set)
{
	if (set != NULL)
	{
		set->ops->drop(set->state);
		free(set);
	}
}

/* Returns whether a set with this spec only keeps rows and has no queries. */
static bool
asks_nothing(const GvSetSpec *spec)
{
	return spec->kind == GV_SET_EXACT && spec->nqueries == 0;
}

/* Returns whether all inputs other than the rows are complete. */
static bool
is_prepared(const GvSet *set)
{
	for (int input = GV_SET_ROWS + 1; input < GV_NSET_INPUTS; input++)
		if (gv_set_input_bytes(&set->spec, input) > 0 &&
			set->came[input] < input_length(&set->spec, input))
			return false;
	return true;
}

/*
 * Returns whether n items of this input may come next.  Rows may come when all
 * other inputs are complete, unless the engine still has the rows.  Other
 * inputs may come before the first row or, if the engine still has the rows,
 * before the run.  Nothing may come beyond an input's length, or after the
 * last pass.
 */
static bool
is_wanted(const GvSet *set, GvSetInput input, int64_t n)
{
	return !set->is_broken && !set->done.finished && n >= 0 &&
		gv_set_input_bytes(&set->spec, input) > 0 &&
		n <= input_length(&set->spec, input) - set->came[input] &&
		(input == GV_SET_ROWS ? is_prepared(set) && !set->is_kept :
		 (set->came[GV_SET_ROWS] == 0 || set->is_kept) &&
		 set->done.passes == 0);
}

/* Returns whether these numbers are allowed as items of this input. */
static bool
valid_items(const GvSetSpec *spec, GvSetInput input, const void *items,
			int64_t n)
{
	const int64_t *ranks = items;
	int64_t		i = 0;

	if (items == NULL)
		return n == 0;
	if (input == GV_SET_SELF)
		return true;
	if (input == GV_SET_RANKS)
	{
		while (i < n && ranks[i] >= 0 && ranks[i] < spec->nrows)
			i++;
		return i == n;
	}
	return spec->kind == GV_SET_SELECT || spec->kind == GV_SET_QUANTILES ||
		gv_is_finite(items, n * spec->dims);
}

/*
 * Returns `status`, and marks the set, if there is one, as broken if `status`
 * is a failure.
 */
static GvStatus
note(GvSet *set, GvStatus status)
{
	if (set != NULL)
		set->is_broken |= status != GV_OK;
	return status;
}

GvStatus
gv_set_put(GvSet *set, GvSetInput input, const void *items, int64_t n,
		   const GvStop *stop)
{
	GvStatus	status;
	int64_t    *ranks = NULL;

	if (gv_fault_is_due(&gv_set_calls, &status))
		return note(set, status);
	if (set == NULL || (uint32_t) input >= GV_NSET_INPUTS ||
		!is_wanted(set, input, n) || !gv_valid_stop(stop))
		return GV_INVALID;

	/*
	 * The ranks may be in memory that a client of gpuvecd shares and could
	 * still change after the check, and engines use ranks as positions.  So
	 * copy the ranks, check the copy, and pass the copy to the engine.
	 */
	if (input == GV_SET_RANKS && items != NULL)
	{
		ranks = malloc(sizeof(int64_t) * (size_t) (n + 1));
		if (ranks == NULL)
			return note(set, GV_NO_MEMORY);
		memcpy(ranks, items, sizeof(int64_t) * (size_t) n);
		items = ranks;
	}
	if (!valid_items(&set->spec, input, items, n))
		status = GV_INVALID;
	else if (n == 0)
		status = GV_OK;
	else
	{
		status = note(set, set->ops->put(set->state, input, items,
										 set->came[input], n, stop));
		set->came[input] += n;
	}
	free(ranks);
	return status;
}

/* Returns whether the rows that are the queries of this spec have come. */
static bool
has_own(const GvSet *set, const GvSetSpec *spec)
{
	return !spec->own ||
		spec->first + spec->nqueries <= set->came[GV_SET_ROWS];
}

GvStatus
gv_set_run(GvSet *set, GvSetDone *done, const GvStop *stop)
{
	GvStatus	status;
	bool		whole;

	if (gv_fault_is_due(&gv_set_calls, &status))
		return note(set, status);
	if (set == NULL || done == NULL || set->is_broken || set->done.finished ||
		!gv_valid_stop(stop) || !is_prepared(set) || asks_nothing(&set->spec))
		return GV_INVALID;
	whole = set->is_kept || set->came[GV_SET_ROWS] == set->spec.nrows;
	if (!whole && (set->spec.kind != GV_SET_EXACT ||
				   !has_own(set, &set->spec)))
		return GV_INVALID;
	status = set->ops->run(set->state, &set->done, stop);
	if (status != GV_OK)
		return note(set, status);
	set->is_kept = !set->done.finished && !set->done.again;
	if (set->done.again)
		set->came[GV_SET_ROWS] = 0;
	*done = set->done;
	return GV_OK;
}

GvStatus
gv_set_get(GvSet *set, GvSetOutput output, int64_t first, int64_t n,
		   void *items)
{
	GvStatus	status;
	int64_t		length;

	if (gv_fault_is_due(&gv_set_calls, &status))
		return note(set, status);
	if (set == NULL || (uint32_t) output >= GV_NSET_OUTPUTS ||
		set->is_broken || !set->done.finished ||
		(items == NULL && n > 0))
		return GV_INVALID;
	length = gv_set_output_length(&set->spec, output, set->done.found);
	if (first < 0 || n < 0 || first > length || n > length - first)
		return GV_INVALID;
	if (n == 0)
		return GV_OK;
	return note(set, set->ops->get(set->state, output, first, n, items));
}

GvStatus
gv_set_ask(GvSet *set, const GvSetSpec *spec)
{
	int64_t		nrows;
	GvStatus	status;

	if (gv_fault_is_due(&gv_set_calls, &status))
		return note(set, status);
	if (set == NULL || set->is_broken || !set->keeps ||
		!(set->done.finished || asks_nothing(&set->spec)) ||
		!valid_spec(spec) || spec->kind != GV_SET_EXACT ||
		spec->device != set->spec.device || spec->dims != set->spec.dims ||
		spec->nrows != set->spec.nrows || asks_nothing(spec) ||
		!has_own(set, spec))
		return GV_INVALID;
	status = set->ops->ask(set->state, spec);
	if (status != GV_OK)
		return note(set, status);
	nrows = set->came[GV_SET_ROWS];
	memset(set->came, 0, sizeof(set->came));
	memset(&set->done, 0, sizeof(set->done));
	set->came[GV_SET_ROWS] = nrows;
	set->is_kept = true;
	set->spec = *spec;
	return GV_OK;
}

/*
 * Clusters that give their farthest row.  They form a heap, whose top is the
 * cluster that gives next.  We do not sort these clusters, because usually
 * fewer clusters take a row, so that most of the heap is never needed.
 */
typedef struct Givers
{
	const GvSetCluster *clusters;	/* [k] */
	bool		by_size;		/* the heap is ordered by sizes, not errors */
	int32_t    *heap;			/* [n] clusters */
	int32_t		n;
} Givers;

/* Returns whether cluster a gives before cluster b. */
static bool
gives_before(const Givers *givers, int32_t a, int32_t b)
{
	const GvSetCluster *one = &givers->clusters[a];
	const GvSetCluster *other = &givers->clusters[b];

	if (!givers->by_size && one->error != other->error)
		return one->error > other->error;
	if (givers->by_size && one->size != other->size)
		return one->size > other->size;
	return a < b;
}

/* Moves the cluster at a place of the heap down to its right place. */
static void
sink(Givers *givers, int32_t place)
{
	int32_t		moved = givers->heap[place];

	while (place < givers->n / 2)
	{
		int32_t		child = 2 * place + 1;

		if (child + 1 < givers->n &&
			gives_before(givers, givers->heap[child + 1],
						 givers->heap[child]))
			child++;
		if (!gives_before(givers, givers->heap[child], moved))
			break;
		givers->heap[place] = givers->heap[child];
		place = child;
	}
	givers->heap[place] = moved;
}

static bool
takes(const GvSetSpec *spec, int64_t size)
{
	int64_t		quarters = 4 * (int64_t) spec->k;

	/* balanced: quarters * size < nrows, in a form that cannot overflow */
	return size == 0 ||
		(spec->balanced && size <= (spec->nrows - 1) / quarters);
}

static bool
gives(const GvSetSpec *spec, const GvSetCluster *cluster)
{
	return cluster->far_distance > 0.0f &&
		(!spec->balanced || cluster->size > spec->nrows / spec->k);
}

/* Sets reseeds, as gv_set_end_pass says, and returns their number. */
static int32_t
find_reseeds(const GvSetSpec *spec, const GvSetCluster *clusters,
			 GvSetReseed *reseeds, int32_t *order)
{
	Givers		givers = {clusters, spec->balanced, order, 0};
	int32_t		ntaken = 0;
	int32_t		c;

	for (c = 0; c < spec->k; c++)
		if (gives(spec, &clusters[c]))
			order[givers.n++] = c;
	for (c = givers.n / 2; c > 0; c--)
		sink(&givers, c - 1);
	for (c = 0; c < spec->k && givers.n > 0; c++)
		if (takes(spec, clusters[c].size))
		{
			reseeds[ntaken++] = (GvSetReseed)
			{
				order[0], c
			};
			/* remove the top of the heap */
			order[0] = order[--givers.n];
			sink(&givers, 0);
		}
	return ntaken;
}

/* Merges what two parts, of which `to` comes first, found of a cluster. */
static void
merge(GvSetCluster *to, const GvSetCluster *from)
{
	to->error += from->error;
	to->size += from->size;
	if (from->far_distance > to->far_distance)
	{
		to->far_distance = from->far_distance;
		to->farthest = from->farthest;
	}
}

int32_t
gv_set_end_pass(const GvSetSpec *spec, GvSetCluster *clusters, int32_t n,
				GvSetReseed *reseeds, int32_t *order, GvSetDone *done)
{
	size_t		k = (size_t) spec->k;
	size_t		c;

	for (int32_t step = 1; step < n; step *= 2)
		for (int32_t i = 0; i < n; i += 2 * step)
			for (c = i * k; c < (i + 1) * k; c++)
				merge(&clusters[c], &clusters[c + step * k]);
	done->error = 0.0;
	done->found = 0;
	for (c = 0; c < k; c++)
		done->error += clusters[c].error;
	done->finished = ++done->passes > spec->iterations;
	if (!done->finished)
		return find_reseeds(spec, clusters, reseeds, order);
	for (c = 0; c < k; c++)
		if (clusters[c].size > 0)
			order[done->found++] = (int32_t) c;
	return 0;
}

void
gv_set_mean(double *sums, int32_t n, size_t stride, int64_t size,
			int32_t dims, float *centroid)
{
	int32_t		d;

	for (int32_t step = 1; step < n; step *= 2)
		for (int32_t i = 0; i < n; i += 2 * step)
			for (d = 0; d < dims; d++)
				sums[i * stride + d] += sums[(i + step) * stride + d];
	for (d = 0; d < dims; d++)
		centroid[d] = (float) (sums[d] / (double) size);
}

void
gv_set_copy(const int32_t *order, int64_t n, int32_t dims,
			const GvSetCluster *clusters, const float *centroids,
			GvSetOutput output, void *items)
{
	for (int64_t i = 0; i < n; i++)
		if (output == GV_SET_SIZES)
			((int64_t *) items)[i] = clusters[order[i]].size;
		else
			memcpy((float *) items + i * dims, centroids +
				   (size_t) order[i] * dims, sizeof(float) * (size_t) dims);
}
