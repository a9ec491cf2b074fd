/*
 * ivfpqworker.c
 *		A background worker that trains and drains when VACUUM asks for it.
 *
 * Training never runs inside VACUUM itself, whose process protects no
 * snapshot, and whose cancellation would lose more than the training.  The
 * worker cannot wait for the table's lock, which VACUUM still has: a waiter
 * would have autovacuum cancelled.  So it tries once a second.  Nothing has to
 * be preloaded for this.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/ps_status.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "am/ivfpq.h"

/* How long to try to get the lock of a table. */
#define MAX_TRIES		3600
#define RETRY_MS		1000

/*
 * The advisory lock that keeps a second worker from an index: users' locks
 * have 1 and 2 in this field.
 */
#define GUARD_FIELD		0xFF91

extern PGDLLEXPORT void gpuvec_train_worker(Datum arg);

/* Has the index many times the rows it was trained on? */
static bool
has_outgrown(Relation index, const IvfpqMetaData *meta, int64 *rows)
{
	int64		limit = Max(IVFPQ_MAX_GROWTH * Max(meta->rows_at_training, 1),
							2 * meta->rows_at_advice);

	*rows = IvfpqCountRows(index, meta);
	return *rows > limit;
}

/*
 * Is there anything to do?  The estimate of pending rows is an upper bound
 * that saves reading them; so is table_rows, unless negative, of all rows.
 */
static bool
has_work(Relation index, double table_rows)
{
	IvfpqMetaData meta;
	int64		pending = IvfpqPendingEstimate(index);
	int64		rows;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0)
		return pending >= IvfpqTrainRows(index) &&
			IvfpqCountPending(index, &meta) >= IvfpqTrainRows(index);
	if (pending > 0 && IvfpqPendingMayLeave(index, &meta))
		return true;
	return (table_rows < 0 ||
			table_rows > IVFPQ_MAX_GROWTH * meta.rows_at_training) &&
		has_outgrown(index, &meta, &rows);
}

/*
 * VACUUM is through with an index: start a worker if there is anything to do.
 * Temporary indexes no other process can read.
 */
void
IvfpqAskForWorker(IndexVacuumInfo *info)
{
	Relation	index = info->index;
	BackgroundWorker worker;

	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!index->rd_index->indisvalid ||
		!has_work(index, info->num_heap_tuples))
		return;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "gpuvec",
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "gpuvec_train_worker",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "gpuvec training of index %u",
			 RelationGetRelid(index));
	strlcpy(worker.bgw_type, "gpuvec training", BGW_MAXLEN);
	worker.bgw_main_arg = ObjectIdGetDatum(RelationGetRelid(index));
	memcpy(worker.bgw_extra, &MyDatabaseId, sizeof(Oid));
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
		ereport(LOG,
				(errmsg("no background worker is free to train index \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("The next VACUUM of its table asks again."),
				 errhint("Set max_worker_processes higher, or call gpuvec_train.")));
}

/* Which index an error is about. */
static void
add_context(void *arg)
{
	errcontext("training of index \"%s\"", (const char *) arg);
}

/* One line for the log about what was done. */
static void
log_result(const char *name, const IvfpqTrainResult *result,
		   TimestampTz begun)
{
	long		ms = TimestampDifferenceMilliseconds(begun,
													 GetCurrentTimestamp());

	if (result->odd > 0)
		ereport(LOG,
				(errmsg("gpuvec: %lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->odd, name)));
	if (result->nlists == 0)
		ereport(LOG,
				(errmsg("gpuvec: index \"%s\" is not trained, the table has only %.0f rows to index",
						name, result->rows)));
	else if (result->trained)
		ereport(LOG,
				(errmsg("gpuvec: trained index \"%s\": %lld rows in %d lists, %lld stay pending, %ld ms",
						name, (long long) result->moved, result->nlists,
						(long long) result->kept, ms)));
	else if (result->moved > 0)
		ereport(LOG,
				(errmsg("gpuvec: put %lld pending rows of index \"%s\" into lists, %lld stay pending, %ld ms",
						(long long) result->moved, name,
						(long long) result->kept, ms)));
}

/*
 * The index has outgrown its training: say so, once and again when it has
 * doubled, and find out what each recall takes now.
 */
static void
advise_rebuild(Relation heap, Relation index, const char *name)
{
	IvfpqMetaData meta;
	int64		rows;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0 || !has_outgrown(index, &meta, &rows))
		return;
	ereport(LOG,
			(errmsg("gpuvec: index \"%s\" was trained on %lld rows and holds %lld",
					name, (long long) meta.rows_at_training,
					(long long) rows),
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.")));
	(void) IvfpqCalibrateIndex(heap, index);
	IvfpqMetaAdvised(index, rows);
}

/* Do what there is to do; the table is locked. */
static void
serve_index(Relation heap, Relation index)
{
	char	   *name = psprintf("%s.%s",
								get_namespace_name(RelationGetNamespace(index)),
								RelationGetRelationName(index));
	char	   *activity = psprintf("gpuvec: training index %s", name);
	ErrorContextCallback context = {error_context_stack, add_context,
	name};
	TimestampTz begun = GetCurrentTimestamp();
	IvfpqIdentity caller;
	IvfpqTrainResult result;

	if (index->rd_indam->ambuild != ivfpqbuild ||
		!index->rd_index->indisvalid || !has_work(index, -1))
		return;
	pgstat_report_activity(STATE_RUNNING, activity);
	error_context_stack = &context;
	IvfpqActAsOwner(&caller, heap);
	IvfpqTrainOrDrain(heap, index, &result);
	log_result(name, &result, begun);
	advise_rebuild(heap, index, name);
	IvfpqActAsCaller(&caller);
	error_context_stack = context.previous;
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Try to lock the index's table, and serve the index.  False when somebody
 * else has the lock.
 */
static bool
try_index(Oid indexoid)
{
	Oid			heapoid = IndexGetRelation(indexoid, true);
	Relation	heap;
	Relation	index;

	if (!OidIsValid(heapoid))
		return true;
	if (!ConditionalLockRelationOid(heapoid, ShareUpdateExclusiveLock))
		return false;
	if (IndexGetRelation(indexoid, true) == heapoid)
	{
		heap = table_open(heapoid, NoLock);
		index = index_open(indexoid, RowExclusiveLock);
		serve_index(heap, index);
		index_close(index, NoLock);
		table_close(heap, NoLock);
	}
	return true;
}

/* Be the only worker of the index; false if there is another. */
static bool
take_guard(Oid indexoid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, indexoid, 0, GUARD_FIELD);
	return LockAcquire(&tag, ExclusiveLock, true, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/* Wait until it makes sense to try again. */
static void
wait_a_while(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 RETRY_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Entry of the worker.  arg: OID of the index; bgw_extra: of its database. */
void
gpuvec_train_worker(Datum arg)
{
	Oid			indexoid = DatumGetObjectId(arg);
	Oid			dboid;
	bool		done = false;

	memcpy(&dboid, MyBgworkerEntry->bgw_extra, sizeof(Oid));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);

	for (int tries = 0; tries < MAX_TRIES && !done; tries++)
	{
		if (tries > 0)
			wait_a_while();
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		if (tries == 0 && !take_guard(indexoid))
			done = true;
		else
			done = try_index(indexoid);
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
		CommitTransactionCommand();
	}
	pgstat_report_activity(STATE_IDLE, NULL);
}
