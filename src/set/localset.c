/*
 * localset.c
 *		Work on sets by gpuvecd or by this session's engine.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "client/client.h"
#include "set/localset.h"

/*
 * Work that takes a processor less than a tenth of a second or so stays here:
 * products of numbers in it.
 */
#define LEAST_PRODUCTS	1e9

/* A search that reads each row for fewer queries costs more to send. */
#define LEAST_QUERIES	8

/* Finding quantiles takes longer than sending this many values. */
#define LEAST_VALUES	(1 << 20)

/*
 * Queries and results that gpuvecd gets at a time: 1 / SERVER_DIVISOR of its
 * memory, or SERVER_BYTES if that is more, but at most 1 / SERVER_MOST, since
 * it refuses work that it has no memory for.  Rows that it keeps may have 1 /
 * SERVER_MOST, too.
 */
#define SERVER_DIVISOR	16
#define SERVER_BYTES	((int64) 1 << 30)
#define SERVER_MOST		4

struct IvfpqWork
{
	IvfpqWorkPlace place;
	GvSet	   *set;			/* of this session, or NULL */
	IvfpqRemoteSet *remote;		/* of gpuvecd; NULL: it cannot */
	MemoryContextCallback callback;
};

/* The engine's memory is not PostgreSQL's. */
static void
drop_set(void *arg)
{
	IvfpqWork  *work = arg;

	gv_set_drop(work->set);
	work->set = NULL;
}

/* Products of an exact search, rows with queries and both with centroids. */
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

/* Is it more work than sending the rows? */
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
			return false;		/* it takes less than to send them */
		case GV_SET_QUANTILES:
			return spec->nrows >= LEAST_VALUES;
	}
	return false;
}

/* Where to try first, see localset.h. */
IvfpqWorkPlace
IvfpqWorkChoose(const GvSetSpec *spec)
{
	if (IvfpqServerIsWanted() &&
		(ivfpq_engine == IVFPQ_ENGINE_GPU || pays(spec)))
		return IVFPQ_WORK_SERVER;
	return IVFPQ_WORK_HERE;
}

/* Begin, see localset.h. */
IvfpqWork *
IvfpqWorkBegin(const GvSetSpec *spec, IvfpqWorkPlace place)
{
	IvfpqWork  *work = palloc0(sizeof(IvfpqWork));

	work->place = place;
	work->callback.func = drop_set;
	work->callback.arg = work;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &work->callback);
	if (place == IVFPQ_WORK_SERVER)
		work->remote = IvfpqRemoteSetBegin(spec);
	else
		IvfpqCheckStatus(gv_set_create(spec, &work->set));
	return work;
}

/* Returns whether gpuvecd has done its part. */
static bool
note(const IvfpqWork *work, bool done)
{
	if (!done)
		ereport(DEBUG1,
				(errmsg_internal("gpuvecd did not do work on a set: %s",
								 work->remote == NULL ? "it cannot" :
								 IvfpqRemoteSetReason(work->remote))));
	return done;
}

bool
IvfpqWorkPut(IvfpqWork *work, GvSetInput input, const void *items, int64 n)
{
	CHECK_FOR_INTERRUPTS();
	if (work->place == IVFPQ_WORK_SERVER)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetPut(work->remote, input, items, n));
	IvfpqCheckStatus(gv_set_put(work->set, input, items, n, &ivfpq_stop));
	return true;
}

bool
IvfpqWorkAsk(IvfpqWork *work, const GvSetSpec *spec)
{
	CHECK_FOR_INTERRUPTS();
	Assert(work->place == IVFPQ_WORK_SERVER);
	return note(work, work->remote != NULL &&
				IvfpqRemoteSetAsk(work->remote, spec));
}

bool
IvfpqWorkRun(IvfpqWork *work, GvSetDone *done)
{
	CHECK_FOR_INTERRUPTS();
	if (work->place == IVFPQ_WORK_SERVER)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetRun(work->remote, done));
	IvfpqCheckStatus(gv_set_run(work->set, done, &ivfpq_stop));
	return true;
}

bool
IvfpqWorkGet(IvfpqWork *work, GvSetOutput output, int64 first, int64 n,
			 void *items)
{
	CHECK_FOR_INTERRUPTS();
	if (work->place == IVFPQ_WORK_SERVER)
		return note(work, work->remote != NULL &&
					IvfpqRemoteSetGet(work->remote, output, first, n, items));
	IvfpqCheckStatus(gv_set_get(work->set, output, first, n, items));
	return true;
}

void
IvfpqWorkPrefetch(IvfpqWork *work, GvSetOutput output, int64 first, int64 n)
{
	if (work->remote != NULL)
		IvfpqRemoteSetPrefetch(work->remote, output, first, n);
}

void
IvfpqWorkEnd(IvfpqWork *work)
{
	if (work->remote != NULL)
		IvfpqRemoteSetEnd(work->remote);
	work->remote = NULL;
	drop_set(work);
}

/*
 * Bytes of queries and results that gpuvecd may get.  Work with lists stays on
 * one device.
 */
static int64
server_bytes(const GvSetSpec *spec)
{
	int64		memory = IvfpqServerMemory(spec->nlists > 0 || spec->own);

	if (memory <= 0)
		return SERVER_BYTES;	/* it is not known yet */
	return Min(Max(memory / SERVER_DIVISOR, SERVER_BYTES),
			   memory / SERVER_MOST);
}

/*
 * How many queries at a time, see localset.h.  The engine's memory that does not
 * depend on their number is not counted, or where memory is scarce they would
 * come one by one.  Queries that are rows take less than others, but a GPU
 * more than is known here.
 */
int64
IvfpqWorkQueries(const GvSetSpec *spec, IvfpqWorkPlace place)
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

/* See localset.h. */
bool
IvfpqWorkKeeps(int64 nrows, int dims)
{
	int64		row = dims * sizeof(float);

	return (ivfpq_engine == IVFPQ_ENGINE_GPU ? IvfpqServerIsWanted() :
			IvfpqServerHasDevice()) && nrows <= GV_SET_OWN_BYTES / row &&
		nrows * row <= IvfpqServerMemory(true) / SERVER_MOST;
}

/* The memory in which rows may be kept, see localset.h. */
Size
IvfpqWorkSpareMemory(void)
{
	return IvfpqServerIsWanted() ? IvfpqMemoryLimit() : 0;
}
