/*
 * exactset.c
 *		Exact search over rows that come by batches.
 */
#include <math.h>
#include <string.h>

#include "cpu/gv_cpu.h"
#include "cpu/gv_cpu_set.h"
#include "cpu/gv_nearest.h"

typedef struct Exact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbours that there can be: <= k */
	int64_t		nrows;			/* that have come */
	float	   *queries;		/* [nqueries][dims] */
	int64_t    *self;			/* [nqueries], with spec.self */
	GvNear	   *nearest;		/* [nqueries][kept] */
} Exact;

static int64_t
kept_of(const GvSetSpec *spec)
{
	return spec->k < spec->nrows ? spec->k : spec->nrows;
}

/* See gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	int64_t		query = (int64_t) sizeof(float) * spec->dims +
		(int64_t) sizeof(int64_t) * spec->self +
		(int64_t) sizeof(GvNear) * kept_of(spec);

	return spec->nqueries * query + (int64_t) sizeof(Exact);
}

static void
cpu_drop(void *state)
{
	Exact	   *exact = state;

	free(exact->queries);
	free(exact->self);
	free(exact->nearest);
	free(exact);
}

/* See gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	Exact	   *made = calloc(1, sizeof(Exact));

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->kept = kept_of(spec);
	made->queries = gv_cpu_take(spec->nqueries * spec->dims, sizeof(float));
	made->self = gv_cpu_take(spec->self ? spec->nqueries : 0,
							 sizeof(int64_t));
	made->nearest = gv_cpu_take(spec->nqueries * made->kept, sizeof(GvNear));
	if (made->queries == NULL || made->self == NULL || made->nearest == NULL)
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	*state = made;
	return GV_OK;
}

/* Queries [n], the first of which has number `first`. */
static GvStatus
put_queries(Exact *exact, const float *queries, int64_t first, int64_t n,
			const GvStop *stop)
{
	GvPoll		poll = {stop, 0};
	int64_t		dims = exact->spec.dims;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (gv_poll(&poll, dims + exact->kept))
			return GV_CANCELLED;
		memcpy(exact->queries + (first + i) * dims, queries + i * dims,
			   sizeof(float) * (size_t) dims);
		gv_nearest_reset(exact->nearest + (first + i) * exact->kept,
						 exact->kept);
	}
	return GV_OK;
}

/* Rows [n], the first of which has position `first`. */
static GvStatus
put_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
		 const GvStop *stop)
{
	const GvSetSpec *spec = &exact->spec;
	GvPoll		poll = {stop, 0};
	int64_t		q;
	int64_t		i;

	for (q = 0; q < spec->nqueries; q++)
		for (i = 0; i < n; i++)
		{
			if (gv_poll(&poll, 8 * (int64_t) spec->dims))
				return GV_CANCELLED;
			if (spec->self && exact->self[q] == first + i)
				continue;
			gv_nearest_push(exact->nearest + q * exact->kept, exact->kept,
							gv_set_distance((GvSetMetric) spec->metric,
											exact->queries + q * spec->dims,
											rows + i * spec->dims,
											spec->dims), first + i);
		}
	exact->nrows = first + n;
	return GV_OK;
}

/* See gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	Exact	   *exact = state;

	if (input == GV_SET_QUERIES)
		return put_queries(exact, items, first, n, stop);
	if (input == GV_SET_ROWS)
		return put_rows(exact, items, first, n, stop);
	memcpy(exact->self + first, items, sizeof(int64_t) * (size_t) n);
	return GV_OK;
}

/* See gv_set_run: neighbours in their order. */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Exact	   *exact = state;
	GvPoll		poll = {stop, 0};
	int64_t		q;

	for (q = 0; q < exact->spec.nqueries; q++)
	{
		if (gv_poll(&poll, 16 * exact->kept))
			return GV_CANCELLED;
		gv_nearest_sort(exact->nearest + q * exact->kept, exact->kept);
	}
	done->passes = 1;
	done->finished = 1;
	return GV_OK;
}

/* The neighbour that is item `item` of the outputs; free places are -1. */
static GvNear
neighbour(const Exact *exact, int64_t item)
{
	static const GvNear none = {NAN, -1};
	int64_t		query = item / exact->spec.k;
	int64_t		rank = item % exact->spec.k;
	GvNear		found = none;

	if (rank < exact->kept)
		found = exact->nearest[query * exact->kept + rank];
	return found.position != GV_NO_ROW ? found : none;
}

/* See gv_set_get. */
static GvStatus
cpu_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		void *items)
{
	const Exact *exact = state;
	int64_t    *positions = items;
	double	   *distances = items;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		GvNear		found = neighbour(exact, first + i);

		if (output == GV_SET_POSITIONS)
			positions[i] = found.position;
		else
			distances[i] = found.distance;
	}
	return GV_OK;
}

const GvSetOps gv_cpu_exact_set = {
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put = cpu_put,
	.run = cpu_run,
	.get = cpu_get,
};
