/*
 * scanstats.c
 *		Statistics of scans: gpuvec_last_scan, of this session's last one, and
 *		gpuvec_stat_indexes, sums over the scans of each index.
 *
 * Where the library is preloaded counters are in the main shared memory; where
 * it is not, and the server has named segments (from 17 on), in one of those;
 * else there are none.  The server's own kinds of statistics (from 18 on) are
 * no better: they want the library preloaded, too, and a server that is
 * started without it then drops all statistics that it has saved, those of
 * tables, by which autovacuum goes, among them.
 *
 * An index has its slot in a set that a hash of its OID chooses.  If all slots
 * of the set are taken, the one that was used longest ago goes to the new
 * index.  Scans add under a shared lock, and take the exclusive one for a
 * slot.
 *
 * Counts that include rows which policies or a view hide are shown only to
 * users to whom a SELECT shows all rows (am/README, "Rights"), and sums also
 * to members of pg_read_all_stats.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rls.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "client/client.h"
#include "page/attempt.h"
#include "pgcompat.h"

#define NSETS		512
#define SET_SLOTS	8

/* Name of the segment; changes with its layout. */
#define NAME		"gpuvec counters 1"

typedef struct Slot
{
	Oid			database;		/* InvalidOid: free */
	Oid			index;
	TimestampTz since;			/* when it was taken or set back */
	pg_atomic_uint64 used;		/* when it was counted in last, TimestampTz */
	pg_atomic_uint64 counts[IVFPQ_NCOUNTERS];
} Slot;

typedef struct Counters
{
	LWLock	   *lock;			/* NULL: `own` is */
	LWLock		own;			/* in a named segment */
	Slot		slots[NSETS * SET_SLOTS];
} Counters;

/* Columns of gpuvec_last_scan, in its order. */
enum
{
	REPORT_INDEX,
	REPORT_RECALL,
	REPORT_PROBES,
	REPORT_CANDIDATES,
	REPORT_BATCHES,
	REPORT_LISTS,
	REPORT_POSTINGS,
	REPORT_REFINED,
	REPORT_RERANKED,
	REPORT_RETURNED,
	REPORT_OUT_OF_ORDER,
	REPORT_FULL_PASS,
	REPORT_ENGINE,
	REPORT_BATCH_SIZE,
	REPORT_STALE_LISTS,
	REPORT_TAIL_POSTINGS,
	REPORT_QUEUED_US,
	REPORT_ENGINE_US,
	REPORT_TRIP_US,
	REPORT_FALLBACK,
	REPORT_MATCHED,
	REPORT_NCOLUMNS
};

/*
 * Columns that rows count in, also rows that a policy or a view's condition
 * took out of the result.
 */
static const int hidden[] = {
	REPORT_BATCHES, REPORT_LISTS, REPORT_POSTINGS, REPORT_REFINED,
	REPORT_RERANKED, REPORT_RETURNED, REPORT_OUT_OF_ORDER, REPORT_FULL_PASS,
	REPORT_STALE_LISTS, REPORT_TAIL_POSTINGS, REPORT_MATCHED
};

static IvfpqScanReport last;	/* index is InvalidOid until a scan has ended */
static Counters *shared = NULL; /* NULL: not there, or not opened yet */
static bool is_tried = false;	/* to open a segment */

PG_FUNCTION_INFO_V1(gpuvec_last_scan);
PG_FUNCTION_INFO_V1(gpuvec_index_counters);
PG_FUNCTION_INFO_V1(gpuvec_stat_reset);

static void
init_slots(Counters *counters)
{
	for (int i = 0; i < NSETS * SET_SLOTS; i++)
	{
		Slot	   *slot = &counters->slots[i];

		slot->database = slot->index = InvalidOid;
		pg_atomic_init_u64(&slot->used, 0);
		for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
			pg_atomic_init_u64(&slot->counts[c], 0);
	}
}

static void
init_shared(void *memory, LWLock *lock)
{
	Counters   *counters = memory;

	counters->lock = lock;
	init_slots(counters);
}

static void
init_segment(void *memory)
{
	Counters   *counters = memory;

	counters->lock = NULL;
	LWLockInitialize(&counters->own, IvfpqNewTranche(NAME));
	init_slots(counters);
}

static const IvfpqSharedPart part = {
	.name = "gpuvec counters",
	.size = sizeof(Counters),
	.address = (void **) &shared,
	.init = init_shared
};

void
IvfpqCountersInit(void)
{
	IvfpqShare(&part);
}

/*
 * Returns the lock of the counters.  If it is in a segment, its address
 * differs between processes.
 */
static LWLock *
get_lock(void)
{
	return shared->lock != NULL ? shared->lock : &shared->own;
}

static void
open_segment(void *arg)
{
	Counters   *counters = IvfpqNamedMemory(NAME, sizeof(Counters),
											init_segment);

	if (counters != NULL)
		IvfpqNameTranche(counters->own.tranche, NAME);
	shared = counters;
}

void
IvfpqCountersOpen(void)
{
	ErrorData  *error;

	if (shared != NULL || is_tried || IsInParallelMode())
		return;
	error = IvfpqAttempt(open_segment, NULL);
	is_tried = true;			/* unless it was canceled */
	if (error == NULL)
		return;
	ereport(LOG,
			(errmsg("gpuvec: scans of this session are not counted: %s",
					error->message)));
	FreeErrorData(error);
}

static Slot *
set_of(Oid index)
{
	uint32		hash = murmurhash32(index ^ murmurhash32(MyDatabaseId));

	return &shared->slots[hash % NSETS * SET_SLOTS];
}

/*
 * Returns the slot of an index of this database, or NULL.  The caller holds
 * the lock.
 */
static Slot *
find_slot(Oid index)
{
	Slot	   *set = set_of(index);

	for (int i = 0; i < SET_SLOTS; i++)
		if (set[i].index == index && set[i].database == MyDatabaseId)
			return &set[i];
	return NULL;
}

/*
 * Sets the counters of a slot to zero, as of now.  The caller holds the
 * exclusive lock.
 */
static void
clear_slot(Slot *slot)
{
	slot->since = GetCurrentTimestamp();
	for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
		pg_atomic_write_u64(&slot->counts[c], 0);
}

/*
 * Returns the slot of an index, which may have to be taken.  The caller holds
 * the exclusive lock.
 */
static Slot *
take_slot(Oid index)
{
	Slot	   *set = set_of(index);
	Slot	   *slot = find_slot(index);

	if (slot != NULL)
		return slot;
	slot = &set[0];
	for (int i = 1; i < SET_SLOTS && slot->database != InvalidOid; i++)
		if (set[i].database == InvalidOid ||
			pg_atomic_read_u64(&set[i].used) < pg_atomic_read_u64(&slot->used))
			slot = &set[i];
	slot->database = MyDatabaseId;
	slot->index = index;
	clear_slot(slot);
	return slot;
}

/* Counts scans that have ended, and the work that they did together. */
static void
counters_add(const IvfpqScanReport *report, int64 scans)
{
	const int64 counts[IVFPQ_NCOUNTERS] = {
		[IVFPQ_COUNT_SCANS] = scans,
		[IVFPQ_COUNT_BATCHES] = report->batches,
		[IVFPQ_COUNT_LISTS] = report->lists,
		[IVFPQ_COUNT_POSTINGS] = report->postings,
		[IVFPQ_COUNT_MATCHED] = report->asks_keys ? report->matched : 0,
		[IVFPQ_COUNT_RERANKED] = report->reranked,
		[IVFPQ_COUNT_RETURNED] = report->returned,
		[IVFPQ_COUNT_OUT_OF_ORDER] = report->out_of_order,
		[IVFPQ_COUNT_FULL_PASSES] = report->full_pass
	};
	Slot	   *slot;

	if (shared == NULL)
		return;
	LWLockAcquire(get_lock(), LW_SHARED);
	slot = find_slot(report->index);
	if (slot == NULL)
	{
		LWLockRelease(get_lock());
		LWLockAcquire(get_lock(), LW_EXCLUSIVE);
		slot = take_slot(report->index);
	}
	for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
		if (counts[c] != 0)
			pg_atomic_fetch_add_u64(&slot->counts[c], counts[c]);
	pg_atomic_write_u64(&slot->used,
						(uint64) GetCurrentStatementStartTimestamp());
	LWLockRelease(get_lock());
}

bool
IvfpqCountersGet(Oid index, IvfpqCounts *counts)
{
	Slot	   *slot;

	memset(counts, 0, sizeof(*counts));
	IvfpqCountersOpen();
	if (shared == NULL)
		return false;
	LWLockAcquire(get_lock(), LW_SHARED);
	slot = find_slot(index);
	if (slot != NULL)
	{
		counts->since = slot->since;
		for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
			counts->counts[c] = (int64) pg_atomic_read_u64(&slot->counts[c]);
	}
	LWLockRelease(get_lock());
	return true;
}

/*
 * Returns whether a scan ends in a pass over the whole table.  Another index
 * may name the rows instead, or keys, but while there are no lists these name
 * all of them.
 */
static bool
is_full_pass(const IvfpqScanRun *run)
{
	IvfpqRestSource rest = run->report.filter.rest;

	return run->pass.active && (rest == IVFPQ_REST_TABLE ||
								(rest == IVFPQ_REST_LISTS &&
								 run->model->meta.nlists == 0));
}

/*
 * Sets *report to the work of a scan so far or, before its first row, to that
 * of the run before a rescan.
 */
void
IvfpqScanReportOf(const IvfpqScan *scan, IvfpqScanReport *report)
{
	const IvfpqScanRun *run = &scan->run;

	*report = run->index != NULL ? run->report : scan->last_report;
	report->index = RelationGetRelid(scan->index);
	if (run->index == NULL)
		return;
	report->batches = run->depth.batches;
	report->lists = run->search.lists_read;
	report->postings = run->search.postings_read;
	report->asks_keys = run->keys.any;
	report->matched = run->search.matched;
	report->returned = run->rows.returned;
	report->out_of_order = run->rows.out_of_order;
	report->full_pass = is_full_pass(run);
	report->remote = run->search.remote.report;
}

/* Remembers and counts the work of a scan that ends. */
void
IvfpqReportScan(const IvfpqScanReport *report)
{
	last = *report;
	IvfpqCountScans(1, last.out_of_order, last.full_pass);
	counters_add(&last, 1);
}

/* Adds gpuvecd's part of the work that was done before. */
static void
add_remote(IvfpqRemoteReport *remote, const IvfpqRemoteReport *before)
{
	if (before->engine[0] != '\0')
		IvfpqReportEngine(remote, before->engine);
	remote->asked |= before->asked;
	remote->answered |= before->answered;
	remote->stale_lists += before->stale_lists;
	remote->tail_postings += before->tail_postings;
	remote->queued_us += before->queued_us;
	remote->engine_us += before->engine_us;
	remote->trip_us += before->trip_us;
}

/* Adds the work that was done before. */
static void
add_report(IvfpqScanReport *report, const IvfpqScanReport *before)
{
	report->probes = before->probes;	/* of the first batch */
	report->candidates = before->candidates;
	report->batches += before->batches;
	report->lists += before->lists;
	report->postings += before->postings;
	report->matched += before->matched;
	report->refined += before->refined;
	report->reranked += before->reranked;
	report->returned += before->returned;
	report->out_of_order += before->out_of_order;
	report->full_pass |= before->full_pass;
	add_remote(&report->remote, &before->remote);
}

/*
 * Remembers and counts the work of `searches` searches that were made at once.
 * With `more` it is added to the work that was remembered last.
 */
void
IvfpqReportBulk(const IvfpqScanReport *report, int64 searches, bool more)
{
	IvfpqScanReport before = last;

	last = *report;
	if (more)
		add_report(&last, &before);
	IvfpqCountScans(searches, report->out_of_order, report->full_pass);
	counters_add(report, searches);
}

/*
 * Returns whether a SELECT of the indexed column would show the current user
 * all rows.  The scan may have run in a view or a function, with the rights of
 * its owner.  Returns false for an index that was dropped: nothing is known
 * about its rows.
 */
bool
IvfpqSeesAllRows(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	AttrNumber	key;
	Oid			table;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	key = form->indkey.values[0];	/* 0: an expression */
	table = form->indrelid;
	ReleaseSysCache(tuple);
	return (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
			(key > 0 && pg_attribute_aclcheck(table, key, GetUserId(),
											  ACL_SELECT) == ACLCHECK_OK)) &&
		check_enable_rls(table, InvalidOid, true) != RLS_ENABLED;
}

/* Sets the columns about gpuvecd; NULL those that it had no part in. */
static void
report_remote(const IvfpqRemoteReport *remote, Datum *values, bool *nulls)
{
	const char *engine = remote->engine[0] ? remote->engine : "session";

	values[REPORT_ENGINE] = CStringGetTextDatum(engine);
	values[REPORT_BATCH_SIZE] = Int32GetDatum((int32) remote->batch_size);
	nulls[REPORT_BATCH_SIZE] = !remote->answered;
	values[REPORT_STALE_LISTS] = Int64GetDatum(remote->stale_lists);
	values[REPORT_TAIL_POSTINGS] = Int64GetDatum(remote->tail_postings);
	values[REPORT_QUEUED_US] = Int64GetDatum(remote->queued_us);
	nulls[REPORT_QUEUED_US] = !remote->answered;
	values[REPORT_ENGINE_US] = Int64GetDatum(remote->engine_us);
	nulls[REPORT_ENGINE_US] = !remote->answered;
	values[REPORT_TRIP_US] = Int64GetDatum(remote->trip_us);
	nulls[REPORT_TRIP_US] = !remote->asked;
	nulls[REPORT_FALLBACK] = remote->fallback == NULL;
	if (remote->fallback != NULL)
		values[REPORT_FALLBACK] = CStringGetTextDatum(remote->fallback);
}

/* gpuvec_last_scan() */
Datum
gpuvec_last_scan(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[REPORT_NCOLUMNS] = {0};
	bool		nulls[REPORT_NCOLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[REPORT_INDEX] = ObjectIdGetDatum(last.index);
	values[REPORT_RECALL] = Float8GetDatum(last.recall);
	values[REPORT_PROBES] = Int32GetDatum(last.probes);
	values[REPORT_CANDIDATES] = Int32GetDatum(last.candidates);
	values[REPORT_BATCHES] = Int32GetDatum(last.batches);
	values[REPORT_LISTS] = Int64GetDatum(last.lists);
	values[REPORT_POSTINGS] = Int64GetDatum(last.postings);
	values[REPORT_REFINED] = Int64GetDatum(last.refined);
	values[REPORT_RERANKED] = Int64GetDatum(last.reranked);
	values[REPORT_RETURNED] = Int64GetDatum(last.returned);
	values[REPORT_OUT_OF_ORDER] = Int64GetDatum(last.out_of_order);
	values[REPORT_FULL_PASS] = BoolGetDatum(last.full_pass);
	report_remote(&last.remote, values, nulls);
	values[REPORT_MATCHED] = Int64GetDatum(last.matched);
	nulls[REPORT_MATCHED] = !last.asks_keys;
	if (!OidIsValid(last.index))
		memset(nulls, true, sizeof(nulls));
	else if (!IvfpqSeesAllRows(last.index))
		for (int i = 0; i < (int) lengthof(hidden); i++)
			nulls[hidden[i]] = true;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/*
 * Returns whether the current user may see counts of rows.  From the part that
 * a scan adds to them its user could tell how many rows that a policy hides
 * satisfy a condition.
 */
static bool
may_see_rows(Oid index)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		IvfpqSeesAllRows(index);
}

/*
 * gpuvec_index_counters(index oid): all NULL where nothing is counted, all but
 * scans and since where rows are hidden
 */
Datum
gpuvec_index_counters(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[IVFPQ_NCOUNTERS + 1] = {0};
	bool		nulls[IVFPQ_NCOUNTERS + 1] = {false};
	IvfpqCounts counts;
	Oid			index = PG_GETARG_OID(0);
	bool		known = IvfpqCountersGet(index, &counts);
	bool		seen = known && may_see_rows(index);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
	{
		values[c] = Int64GetDatum(counts.counts[c]);
		nulls[c] = c == IVFPQ_COUNT_SCANS ? !known : !seen;
	}
	values[IVFPQ_NCOUNTERS] = TimestampTzGetDatum(counts.since);
	nulls[IVFPQ_NCOUNTERS] = counts.since == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/* gpuvec_stat_reset(index regclass): all indexes of this database if NULL */
Datum
gpuvec_stat_reset(PG_FUNCTION_ARGS)
{
	Oid			index = PG_ARGISNULL(0) ? InvalidOid : PG_GETARG_OID(0);

	IvfpqCountersOpen();
	if (shared == NULL)
		PG_RETURN_VOID();
	LWLockAcquire(get_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < NSETS * SET_SLOTS; i++)
	{
		Slot	   *slot = &shared->slots[i];

		if (slot->database == MyDatabaseId &&
			(!OidIsValid(index) || slot->index == index))
			clear_slot(slot);
	}
	LWLockRelease(get_lock());
	PG_RETURN_VOID();
}
