/*
 * localset.c
 *		Work on sets of rows, by gpuvecd or by this session's engine.
 *
 * gpuvecd gets the work if sending the inputs takes less time than a processor
 * would need for the work.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "client/client.h"
#include "set/set.h"

/*
 * Work that needs fewer multiplications than this stays in this session,
 * because a processor takes less than about 0.1 s for the work.
 */
#define LEAST_PRODUCTS	1e9

/*
 * For fewer queries than this, sending the rows takes longer than comparing
 * them with the queries.
 */
#define LEAST_QUERIES	8

/*
 * For at least this many values, finding quantiles takes longer than sending
 * the values.
 */
#define LEAST_VALUES	(1 << 20)

/*
 * The queries that gpuvecd gets at a time, and their results, take 1 /
 * SERVER_DIVISOR of gpuvecd's memory, or SERVER_BYTES if that is more.  The
 * queries and results never take more than 1 / SERVER_MOST of the memory,
 * because gpuvecd refuses work for which it has no memory.
 */
#define SERVER_DIVISOR	16
#define SERVER_BYTES	((int64) 1 << 30)
#define SERVER_MOST		4

/*
 * Rows that gpuvecd keeps may take 1 / KEPT_DIVISOR of its memory: buffers are
 * a quarter larger, and half copies of all rows take half as much again.
 */
#define KEPT_DIVISOR	3

struct IvfpqLocalSet
{
	GvSet	   *set;			/* this session's set; NULL if gpuvecd works */
	IvfpqRemoteSet *remote;		/* gpuvecd's set; NULL if gpuvecd does not
								 * take the work, or if this session does the
								 * work */
	MemoryContextCallback callback;
};

/*
 * Memory context callback: frees this session's set, whose memory belongs to
 * no memory context.
 */
static void
drop_set(void *arg)
{
	IvfpqLocalSet *work = arg;

	gv_set_drop(work->set);
	work->set = NULL;
}

/*
 * Returns the number of multiplications that an exact search needs to compare
 * rows with queries and, if there are lists, rows and queries with the lists'
 * centroids.
 */
static double
search_products(const GvSetSpec *spec)
{
	double		rows = (double) spec->nrows;
	double		queries = (double) spec->nqueries;

	if (spec->probes == spec->nlists)
		return rows * queries * spec->dims;
	return (rows * queries * spec->probes / spec->nlists +
			(rows + queries) * spec->nlists) * spec->dims;
}

/*
 * Returns whether doing the work in this session takes longer than sending its
 * inputs to gpuvecd.
 */
static bool
pays(const GvSetSpec *spec)
{
	double		numbers = (double) spec->nrows * spec->dims;

	switch ((GvSetKind) spec->kind)
	{
		case GV_SET_EXACT:
			return spec->nqueries >= LEAST_QUERIES &&
				search_products(spec) >= LEAST_PRODUCTS;
		case GV_SET_KMEANS:
			return numbers * spec->k * (spec->iterations + 1) >=
				LEAST_PRODUCTS;
		case GV_SET_SELECT:
			return false;		/* selecting is faster than sending */
		case GV_SET_QUANTILES:
			return spec->nrows >= LEAST_VALUES;
	}
	return false;
}

IvfpqLocalSetPlace
IvfpqLocalSetChoose(const GvSetSpec *spec)
{
	if (IvfpqServerIsWanted() &&
		(ivfpq_engine == IVFPQ_ENGINE_GPU || pays(spec)))
		return IVFPQ_WORK_SERVER;
	return IVFPQ_WORK_HERE;
}

IvfpqLocalSet *
IvfpqLocalSetBegin(const GvSetSpec *spec, IvfpqLocalSetPlace place)
{
	IvfpqLocalSet *work = palloc0(sizeof(IvfpqLocalSet));

	work->callback.func = drop_set;
	work->callback.arg = work;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &work->callback);
	if (place == IVFPQ_WORK_SERVER)
		work->remote = IvfpqRemoteSetBegin(spec);
	else
		IvfpqCheckStatus(gv_set_create(spec, &work->set));
	return work;
}

/*
 * Returns `done`.  If `done` is false, logs why gpuvecd has not done the work.
 */
static bool
note(const IvfpqLocalSet *work, bool done)
{
	if (!done)
		ereport(DEBUG1,
				(errmsg_internal("gpuvecd did not do work on a set: %s",
								 work->remote == NULL ? "it cannot" :
								 IvfpqRemoteSetReason(work->remote))));
	return done;
}

bool
IvfpqLocalSetPut(IvfpqLocalSet *work, GvSetInput input, const void *items,
				 int64 n)
{
	CHECK_FOR_INTERRUPTS();
	if (work->set == NULL)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetPut(work->remote, input, items, n));
	IvfpqCheckStatus(gv_set_put(work->set, input, items, n, &ivfpq_stop));
	return true;
}

bool
IvfpqLocalSetAsk(IvfpqLocalSet *work, const GvSetSpec *spec)
{
	CHECK_FOR_INTERRUPTS();
	return note(work, work->remote != NULL &&
				IvfpqRemoteSetAsk(work->remote, spec));
}

bool
IvfpqLocalSetRun(IvfpqLocalSet *work, GvSetDone *done)
{
	CHECK_FOR_INTERRUPTS();
	if (work->set == NULL)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetRun(work->remote, done));
	IvfpqCheckStatus(gv_set_run(work->set, done, &ivfpq_stop));
	return true;
}

bool
IvfpqLocalSetGet(IvfpqLocalSet *work, GvSetOutput output, int64 first, int64 n,
				 void *items)
{
	CHECK_FOR_INTERRUPTS();
	if (work->set == NULL)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetGet(work->remote, output, first, n, items));
	IvfpqCheckStatus(gv_set_get(work->set, output, first, n, items));
	return true;
}

void
IvfpqLocalSetPrefetch(IvfpqLocalSet *work, GvSetOutput output, int64 first,
					  int64 n)
{
	if (work->remote != NULL)
		IvfpqRemoteSetPrefetch(work->remote, output, first, n);
}

void
IvfpqLocalSetEnd(IvfpqLocalSet *work)
{
	if (work->remote != NULL)
		IvfpqRemoteSetEnd(work->remote);
	work->remote = NULL;
	drop_set(work);
}

/*
 * Returns how many bytes of queries and results gpuvecd may get at a time.
 * Work with lists, and work whose queries are rows that gpuvecd keeps, uses
 * one device only, so one device's memory is the limit.
 */
static int64
server_bytes(const GvSetSpec *spec)
{
	int64		memory = IvfpqServerMemory(spec->nlists > 0 || spec->own);

	if (memory <= 0)
		return SERVER_BYTES;	/* gpuvecd's memory is not known yet */
	return Min(Max(memory / SERVER_DIVISOR, SERVER_BYTES),
			   memory / SERVER_MOST);
}

/*
 * See set.h.  We do not count memory that does not depend on the number
 * of queries.  Otherwise, with little memory, queries would be answered one by
 * one.  Queries that are rows of the set are counted like other queries.
 * Although their vectors take no further memory, a GPU needs other memory for
 * these queries, whose size is not known here.
 */
int64
IvfpqLocalSetQueries(const GvSetSpec *spec, IvfpqLocalSetPlace place)
{
	int64		limit = place == IVFPQ_WORK_SERVER ? server_bytes(spec) :
	(int64) maintenance_work_mem * 1024;
	GvSetSpec	tried = *spec;
	int64		low = 1;
	int64		high = Min(spec->nqueries, GV_SET_MAX_QUERIES);
	int64		fixed;

	tried.own = 0;
	tried.first = 0;
	tried.nqueries = 1;
	fixed = gv_set_size(&tried);
	while (low < high)
	{
		tried.nqueries = low + (high - low + 1) / 2;
		if (gv_set_size(&tried) - fixed <= limit)
			low = tried.nqueries;
		else
			high = tried.nqueries - 1;
	}
	return low;
}

bool
IvfpqLocalSetKeeps(int64 nrows, int dims)
{
	int64		row = dims * sizeof(float);

	return (ivfpq_engine == IVFPQ_ENGINE_GPU ? IvfpqServerIsWanted() :
			IvfpqServerHasDevice()) && nrows <= GV_SET_OWN_BYTES / row &&
		nrows * row <= IvfpqServerMemory(true) / KEPT_DIVISOR;
}
