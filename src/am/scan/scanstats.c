/*
 * scanstats.c
 *		Statistics of scans: gpuvec_last_scan shows the last scan of this
 *		session, and gpuvec_stat_indexes shows sums over the scans of each
 *		index.
 *
 * If the library is preloaded, the counters are in the main shared memory.  If
 * not, they are in a named segment, which servers from version 17 on have.
 * Older servers without preloading have no counters.  The server's own custom
 * statistics (from version 18 on) are no better.  They require preloading,
 * too.  Moreover, a server that is then started without the library drops all
 * statistics that it has saved, even those of tables, on which autovacuum
 * relies.
 *
 * Slots are divided into sets.  The set in which an index has its slot follows
 * from a hash of the OIDs of the index and its database.  If all slots of the
 * set are taken, a new index gets the slot that was used longest ago.  Scans
 * add to counters under a shared lock, and take the exclusive lock only to
 * assign a slot.
 *
 * Some counts include rows that policies or a view hide.  These counts are
 * shown only to users to whom a SELECT shows all rows (am/README, "Rights").
 * Their sums are also shown to members of pg_read_all_stats.
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

/* Name of the segment.  It must change when the layout changes. */
#define NAME		"gpuvec counters 2"

typedef struct Slot
{
	Oid			database;		/* InvalidOid: the slot is free */
	Oid			index;
	TimestampTz since;			/* when the slot was assigned or last reset */
	pg_atomic_uint64 used;		/* when a scan was last counted here,
								 * TimestampTz */
	pg_atomic_uint64 counts[IVFPQ_NCOUNTERS];
} Slot;

typedef struct Counters
{
	LWLock		lock;			/* in a cache line of its own */
	char		unused[LWLOCK_PADDED_SIZE - sizeof(LWLock)];
	Slot		slots[NSETS * SET_SLOTS];
} Counters;

/* Columns of gpuvec_last_scan, in their order. */
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

/* The column of each IvfpqCount; the number of scans has none */
static const int columns[] = {
	-1, REPORT_BATCHES, REPORT_LISTS, REPORT_POSTINGS, REPORT_MATCHED,
	REPORT_RERANKED, REPORT_RETURNED, REPORT_OUT_OF_ORDER, REPORT_FULL_PASS,
	REPORT_REFINED, REPORT_STALE_LISTS, REPORT_TAIL_POSTINGS,
	REPORT_QUEUED_US, REPORT_ENGINE_US, REPORT_TRIP_US
};

StaticAssertDecl(lengthof(columns) == IVFPQ_NCOUNTS, "a count has no column");

static IvfpqScanReport last;	/* index is InvalidOid until a scan ends */
static Counters *shared = NULL; /* NULL: none, or not opened yet */
static bool is_tried = false;	/* an attempt to open a segment has ended */

PG_FUNCTION_INFO_V1(gpuvec_last_scan);
PG_FUNCTION_INFO_V1(gpuvec_index_counters);
PG_FUNCTION_INFO_V1(gpuvec_stat_reset);

static void
init_counters(Counters *counters, int tranche)
{
	LWLockInitialize(&counters->lock, tranche);
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
	init_counters(memory, lock->tranche);
}

static void
init_segment(void *memory)
{
	init_counters(memory, IvfpqNewTranche(NAME));
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

static void
open_segment(void *arg)
{
	Counters   *counters = IvfpqNamedMemory(NAME, sizeof(Counters),
											init_segment);

	if (counters != NULL)
		IvfpqNameTranche(counters->lock.tranche, NAME);
	shared = counters;
}

void
IvfpqCountersOpen(void)
{
	ErrorData  *error;

	if (shared != NULL || is_tried || IsInParallelMode())
		return;
	error = IvfpqAttempt(open_segment, NULL);
	is_tried = true;			/* not reached after a cancellation */
	if (error == NULL)
		return;
	ereport(LOG,
			(errmsg("could not count scans of this session: %s",
					error->message)));
	FreeErrorData(error);
}

/* Resets the counters of a slot.  The caller holds the exclusive lock. */
static void
clear_slot(Slot *slot)
{
	slot->since = GetCurrentTimestamp();
	for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
		pg_atomic_write_u64(&slot->counts[c], 0);
}

/*
 * Returns the slot of an index of this database.  If the index has none,
 * assigns one if `assign` is set, otherwise returns NULL.  The caller holds
 * the lock, exclusively if `assign` is set.
 */
static Slot *
find_slot(Oid index, bool assign)
{
	uint32		hash = murmurhash32(index ^ murmurhash32(MyDatabaseId));
	Slot	   *set = &shared->slots[hash % NSETS * SET_SLOTS];
	Slot	   *slot = &set[0];

	for (int i = 0; i < SET_SLOTS; i++)
		if (set[i].index == index && set[i].database == MyDatabaseId)
			return &set[i];
	if (!assign)
		return NULL;
	for (int i = 1; i < SET_SLOTS && slot->database != InvalidOid; i++)
		if (set[i].database == InvalidOid ||
			pg_atomic_read_u64(&set[i].used) < pg_atomic_read_u64(&slot->used))
			slot = &set[i];
	slot->database = MyDatabaseId;
	slot->index = index;
	clear_slot(slot);
	return slot;
}

bool
IvfpqCountersGet(Oid index, IvfpqCounts *counts)
{
	Slot	   *slot;

	memset(counts, 0, sizeof(*counts));
	IvfpqCountersOpen();
	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_SHARED);
	slot = find_slot(index, false);
	if (slot != NULL)
	{
		counts->since = slot->since;
		for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
			counts->counts[c] = (int64) pg_atomic_read_u64(&slot->counts[c]);
	}
	LWLockRelease(&shared->lock);
	return true;
}

/*
 * Sets *report to the work that a scan has done so far.  Before the first row
 * of a rescan, this is the work of the previous run.  A full pass counts as a
 * pass over the table, unless another index or the keys in the lists select
 * the rows that it reads.  Keys cannot select rows of an untrained index,
 * because it has no lists.
 */
void
IvfpqScanReportOf(const IvfpqScan *scan, IvfpqScanReport *report)
{
	const IvfpqScanRun *run = &scan->run;
	IvfpqRestSource source = run->pass.source;
	int64	   *counts = report->counts;

	*report = run->index != NULL ? run->report : scan->last_report;
	report->index = RelationGetRelid(scan->index);
	if (run->index == NULL)
		return;
	report->asks_keys = run->keys.any;
	report->source = source;
	counts[IVFPQ_COUNT_SCANS] = 1;
	counts[IVFPQ_COUNT_BATCHES] = run->depth.batches;
	counts[IVFPQ_COUNT_LISTS] = run->search.lists_read;
	counts[IVFPQ_COUNT_POSTINGS] = run->search.postings_read;
	counts[IVFPQ_COUNT_MATCHED] = run->keys.any ? run->search.matched : 0;
	counts[IVFPQ_COUNT_RETURNED] = run->rows.returned;
	counts[IVFPQ_COUNT_OUT_OF_ORDER] = run->rows.out_of_order;
	counts[IVFPQ_COUNT_FULL_PASSES] = run->pass.active &&
		(source == IVFPQ_REST_TABLE ||
		 (source == IVFPQ_REST_LISTS && run->model->meta.nlists == 0));
}

/*
 * Counts the work of an ended scan, or of many queries that were answered
 * together, and remembers it for gpuvec_last_scan.  If `more` is true, adds
 * the work to the report that was remembered last.
 */
void
IvfpqReportScan(const IvfpqScanReport *report, bool more)
{
	Slot	   *slot;

	if (!more)
		last = *report;
	else
	{
		IvfpqScanReport before = last;

		last = *report;
		/* report the parameters of the first batch */
		last.probes = before.probes;
		last.candidates = before.candidates;
		if (before.engine[0] != '\0')
			IvfpqReportEngine(&last, before.engine);
		last.asked |= before.asked;
		last.answered |= before.answered;
		for (int c = 0; c < IVFPQ_NCOUNTS; c++)
			last.counts[c] += before.counts[c];
	}

	IvfpqCountScans(report->counts[IVFPQ_COUNT_SCANS],
					report->counts[IVFPQ_COUNT_OUT_OF_ORDER],
					report->counts[IVFPQ_COUNT_FULL_PASSES] > 0);
	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_SHARED);
	slot = find_slot(report->index, false);
	if (slot == NULL)
	{
		LWLockRelease(&shared->lock);
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		slot = find_slot(report->index, true);
	}
	for (int c = 0; c < IVFPQ_NCOUNTERS; c++)
		if (report->counts[c] != 0)
			pg_atomic_fetch_add_u64(&slot->counts[c], report->counts[c]);
	pg_atomic_write_u64(&slot->used,
						(uint64) GetCurrentStatementStartTimestamp());
	LWLockRelease(&shared->lock);
}

/*
 * Returns whether a SELECT would show the current user all rows and columns of
 * the index's table.  A user who has run a scan need not have that right,
 * because the scan may have run in a view or a function, with the rights of
 * its owner; its conditions may be on any column.  Returns false for an index
 * that was dropped, because nothing is known about its rows.
 */
bool
IvfpqSeesAllRows(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Oid			table;

	if (!HeapTupleIsValid(tuple))
		return false;
	table = ((Form_pg_index) GETSTRUCT(tuple))->indrelid;
	ReleaseSysCache(tuple);
	return (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
			pg_attribute_aclcheck_all(table, GetUserId(), ACL_SELECT,
									  ACLMASK_ALL) == ACLCHECK_OK) &&
		check_enable_rls(table, InvalidOid, true) != RLS_ENABLED;
}

/*
 * gpuvec_last_scan(): counts are NULL if rows are hidden from the user;
 * columns about gpuvecd are NULL if it had no part in the scan
 */
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
	for (int c = IVFPQ_COUNT_BATCHES; c < IVFPQ_NCOUNTS; c++)
		values[columns[c]] = Int64GetDatum(last.counts[c]);
	/* these two columns have other types */
	values[REPORT_BATCHES] =
		Int32GetDatum((int32) last.counts[IVFPQ_COUNT_BATCHES]);
	values[REPORT_FULL_PASS] =
		BoolGetDatum(last.counts[IVFPQ_COUNT_FULL_PASSES] > 0);
	nulls[REPORT_MATCHED] = !last.asks_keys;
	values[REPORT_ENGINE] =
		CStringGetTextDatum(last.engine[0] ? last.engine : "session");
	values[REPORT_BATCH_SIZE] = Int32GetDatum((int32) last.batch_size);
	nulls[REPORT_BATCH_SIZE] = nulls[REPORT_QUEUED_US] =
		nulls[REPORT_ENGINE_US] = !last.answered;
	nulls[REPORT_TRIP_US] = !last.asked;
	nulls[REPORT_FALLBACK] = last.fallback == NULL;
	if (last.fallback != NULL)
		values[REPORT_FALLBACK] = CStringGetTextDatum(last.fallback);
	if (!OidIsValid(last.index))
		memset(nulls, true, sizeof(nulls));
	else if (!IvfpqSeesAllRows(last.index))
		/* counts include rows that a policy or a view's condition hides */
		for (int c = IVFPQ_COUNT_BATCHES; c < IVFPQ_COUNT_QUEUED_US; c++)
			nulls[columns[c]] = true;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/*
 * gpuvec_index_counters(index oid): all columns are NULL if scans are not
 * counted; all except scans and since are NULL if rows are hidden from the
 * user
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

	/*
	 * From the difference that a scan makes to the counts, a user could tell
	 * how many hidden rows satisfy a condition.
	 */
	bool		seen = known &&
	(has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
	 IvfpqSeesAllRows(index));

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

/*
 * gpuvec_stat_reset(index regclass): resets the counters of an index, or of
 * all indexes of this database if NULL
 */
Datum
gpuvec_stat_reset(PG_FUNCTION_ARGS)
{
	Oid			index = PG_ARGISNULL(0) ? InvalidOid : PG_GETARG_OID(0);

	IvfpqCountersOpen();
	if (shared == NULL)
		PG_RETURN_VOID();
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < NSETS * SET_SLOTS; i++)
	{
		Slot	   *slot = &shared->slots[i];

		if (slot->database == MyDatabaseId &&
			(!OidIsValid(index) || slot->index == index))
			clear_slot(slot);
	}
	LWLockRelease(&shared->lock);
	PG_RETURN_VOID();
}
