/*
 * worker.c
 *		A background worker that trains indexes, and flushes their pending
 *		rows, when VACUUM asks for it.
 *
 * Neither runs inside VACUUM itself: VACUUM protects no snapshot, and to
 * cancel it would lose more than the training (README).  The worker must not
 * queue for the table's lock, which VACUUM still has: a waiter has autovacuum
 * canceled.  So it tries once a second, for an hour, each time in a
 * transaction of its own.
 *
 * A worker needs a worker slot.  A database has one for all its indexes that
 * call no interpreted code, and one for each owner whose indexes do; there are
 * gpuvec.max_training_workers of them in all.  VACUUM starts no second worker
 * for the same slot.  A process remembers how it compiled code that it ran
 * (identity.c), and code may run for long.  So a worker runs the code of one
 * owner, and an owner's code has one worker.
 *
 * Worker slots are locks in the server's lock table, so that nothing has to be
 * preloaded and a worker that dies releases its slot.  They are locks of the
 * default method, because a function of an index may release all advisory
 * locks of its session.  An abort releases them, also those of the session, so
 * the worker acquires its slot again after each error.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/defrem.h"
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
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "am/build/calibrate.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/search/params.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* How often, and how many times, to try to get the lock of a table. */
#define RETRY_MS		1000
#define MAX_TRIES		3600

/*
 * Tries reserved for the index that we were asked for, before others are
 * served: a VACUUM that goes through partitions would come after us, and
 * cancel us in the next one.
 */
#define PATIENCE		10

/*
 * Sub-object of the locks of a slot: databases and roles have none such, so
 * nobody else locks it.
 */
#define SLOT_PART		0xFF91

/* As many owners as an order has space for. */
#define MAX_OWNERS		27

/* Goes to a worker in bgw_extra, and from that worker to the next one. */
typedef struct WorkerOrder
{
	Oid			database;
	Oid			owner;			/* whose interpreted code it runs; invalid: it
								 * serves indexes that have none */
	Oid			next;			/* index that the next worker begins with */
	Oid			next_owner;		/* that index's owner, in the same sense */
	int			nowners;
	Oid			owners[MAX_OWNERS]; /* of this worker and those before */
} WorkerOrder;

StaticAssertDecl(sizeof(WorkerOrder) <= BGW_EXTRALEN,
				 "an order goes with its worker");

typedef enum SlotState
{
	SLOT_FREE,
	SLOT_OURS,					/* a worker here serves such indexes */
	SLOT_OWNERS,				/* one of another database runs the owner's
								 * code */
	SLOT_TAKEN					/* others have all */
} SlotState;

/* The outcome for an index, or the greatest outcome for several. */
typedef enum Outcome
{
	NOTHING,					/* it has no work that can be done now */
	LOCKED,						/* its table is locked, by VACUUM perhaps */
	SERVED						/* something was done, or is to be done */
} Outcome;

/* An index that this worker has served, or has failed to. */
typedef struct Tried
{
	Oid			index;
	int64		vacuums;		/* of its table, before; -1: unreadable */
} Tried;

static Oid	asked = InvalidOid; /* the index to begin with */
static WorkerOrder order;
static int	patience = PATIENCE;	/* tries left for `asked` alone */
static int	slot = -1;			/* our worker slot, or -1 */
static List *tried = NIL;		/* of Tried */

/* While an index is served. */
static Oid	serving_heap = InvalidOid;
static char serving_name[2 * NAMEDATALEN];
static char serving_owner[NAMEDATALEN];

extern PGDLLEXPORT void gpuvec_train_worker(Datum arg);

/* Returns whether the index has many times the rows it was trained on. */
static bool
has_outgrown(Relation index, const IvfpqMetaData *meta, int64 *rows)
{
	int64		limit = Max(IVFPQ_MAX_GROWTH * Max(meta->rows_at_training, 1),
							2 * meta->rows_at_advice);

	*rows = IvfpqCountRows(index, meta);
	return *rows > limit;
}

/*
 * Returns whether the index has work for a worker.  The estimate of pending
 * rows is an upper bound that saves reading them; so is table_rows, unless
 * negative, of all rows.
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

/* Takes one lock of a worker slot.  Returns false if it is not free. */
static bool
lock_slot(Oid database, Oid class, Oid object, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, database, class, object, SLOT_PART);
	return LockAcquire(&tag, ExclusiveLock, session, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_slot(Oid database, Oid class, Oid object, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, database, class, object, SLOT_PART);
	(void) LockRelease(&tag, ExclusiveLock, session);
}

/*
 * Takes the three locks of a worker slot, until the transaction ends or the
 * session does: the owner's in this database (without an owner, the database's
 * own), the owner's in all databases, and one of max_training_workers, whose
 * number *number gets.
 */
static SlotState
lock_all(Oid owner, bool session, int *number)
{
	SlotState	state = SLOT_TAKEN;

	if (!lock_slot(MyDatabaseId, AuthIdRelationId, owner, session))
		return SLOT_OURS;
	if (OidIsValid(owner) &&
		!lock_slot(InvalidOid, AuthIdRelationId, owner, session))
		state = SLOT_OWNERS;
	else
	{
		for (int i = 0; i < ivfpq_max_training_workers; i++)
			if (lock_slot(InvalidOid, DatabaseRelationId, i, session))
			{
				*number = i;
				return SLOT_FREE;
			}
		if (OidIsValid(owner))
			unlock_slot(InvalidOid, AuthIdRelationId, owner, session);
	}
	unlock_slot(MyDatabaseId, AuthIdRelationId, owner, session);
	return state;
}

static void
unlock_all(Oid owner, bool session, int number)
{
	unlock_slot(InvalidOid, DatabaseRelationId, number, session);
	if (OidIsValid(owner))
		unlock_slot(InvalidOid, AuthIdRelationId, owner, session);
	unlock_slot(MyDatabaseId, AuthIdRelationId, owner, session);
}

/*
 * Acquires a worker slot, which lasts until it is released or a transaction
 * aborts.  Returns its number, or -1 if there is none now.
 */
static int
worker_slot_acquire(Oid owner)
{
	int			number = -1;

	(void) lock_all(owner, true, &number);
	return number;
}

/*
 * Returns whether a worker for that owner would get a slot now.  Call in a
 * transaction.
 */
static SlotState
worker_slot_check(Oid owner)
{
	int			number;
	SlotState	state = lock_all(owner, false, &number);

	if (state == SLOT_FREE)
		unlock_all(owner, false, number);
	return state;
}

/*
 * Returns whose worker slot serves an index: its owner's, if it calls
 * interpreted code.
 */
static Oid
worker_slot_owner(Relation index)
{
	return IvfpqIsInterpreted(index, true) ? index->rd_rel->relowner :
		InvalidOid;
}

/*
 * Returns whether there was a worker for that owner, this one or one before
 * it.
 */
static bool
has_run(Oid owner)
{
	for (int i = 0; i < order.nowners; i++)
		if (order.owners[i] == owner)
			return true;
	return false;
}

/*
 * Returns whether this worker may serve the index.  If not, and no index is
 * chosen yet, the next worker begins with this one, unless there is a worker
 * for its owner, or was, or no slot is free, or there were too many owners.
 */
static bool
worker_slot_is_for(Relation index)
{
	Oid			owner = worker_slot_owner(index);

	if (order.owner == owner)
		return true;
	if (!OidIsValid(order.next) && !has_run(owner) &&
		order.nowners < MAX_OWNERS &&
		worker_slot_check(owner) == SLOT_FREE)
	{
		order.next = RelationGetRelid(index);
		order.next_owner = owner;
	}
	return false;
}

/*
 * Starts a worker that begins with an index.  Returns false if the server has
 * none free.
 */
static bool
start_worker(Oid indexoid, const WorkerOrder *its_order)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "gpuvec",
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "gpuvec_train_worker",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "gpuvec training in database %u",
			 MyDatabaseId);
	strlcpy(worker.bgw_type, "gpuvec training", BGW_MAXLEN);
	worker.bgw_main_arg = ObjectIdGetDatum(indexoid);
	memcpy(worker.bgw_extra, its_order, sizeof(*its_order));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

void
IvfpqAskForWorker(IndexVacuumInfo *info)
{
	Relation	index = info->index;
	WorkerOrder its_order = {.database = MyDatabaseId};
	const char *why;

	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!index->rd_index->indisvalid || ivfpq_max_training_workers == 0 ||
		!has_work(index, info->num_heap_tuples))
		return;

	its_order.owner = worker_slot_owner(index);
	switch (worker_slot_check(its_order.owner))
	{
		case SLOT_OURS:
			return;
		case SLOT_OWNERS:
			why = "a worker of another database runs its owner's code";
			break;
		case SLOT_TAKEN:
			why = "all gpuvec.max_training_workers are at work";
			break;
		default:
			why = NULL;
	}
	if (why != NULL)
		ereport(LOG,
				(errmsg("index \"%s\" has to wait: %s",
						RelationGetRelationName(index), why),
				 errdetail("The next VACUUM of its table asks again."),
				 errhint("Set gpuvec.max_training_workers higher, or call gpuvec_train.")));
	else if (!start_worker(RelationGetRelid(index), &its_order))
		ereport(LOG,
				(errmsg("no background worker is free for index \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("The next VACUUM of its table asks again."),
				 errhint("Set max_worker_processes higher, or call gpuvec_train.")));
}

/* Logs, in one line, what was done to an index, which it names itself. */
static void
log_result(const char *name, const IvfpqTrainResult *result,
		   TimestampTz begun)
{
	long		ms = TimestampDifferenceMilliseconds(begun,
													 GetCurrentTimestamp());

	if (result->mismatched > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: %lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->mismatched, name)));
	if (result->nlists == 0 && result->waits)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: index \"%s\" is not trained, nearly all of its %.0f rows are equal",
						name, result->rows)));
	else if (result->nlists == 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: index \"%s\" is not trained, the table has only %.0f rows to index",
						name, result->rows)));
	else if (result->trained)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: trained index \"%s\": %lld rows in %d lists, %lld stay pending, %ld ms",
						name, (long long) result->moved, result->nlists,
						(long long) result->kept, ms)));
	else if (result->moved > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: put %lld pending rows of index \"%s\" into lists, %lld stay pending, %ld ms",
						(long long) result->moved, name,
						(long long) result->kept, ms)));
}

/*
 * Logs that an index has outgrown its training, once and at every doubling
 * after that, and recalibrates it.  Targets for queries that only a user can
 * name are left alone.
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
			(errhidecontext(true),
			 errmsg("gpuvec: index \"%s\" was trained on %lld rows and holds %lld",
					name, (long long) meta.rows_at_training,
					(long long) rows),
			 meta.calibrated_for == IVFPQ_FOR_ROWS ?
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.") :
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.  Then calibrate it with your queries again.")));
	if (meta.calibrated_for == IVFPQ_FOR_ROWS)
		(void) IvfpqCalibrateIndex(heap, index, NULL);
	IvfpqMetaAdvised(index, rows);
}

/*
 * Names the index that an error is about; and its owner, if a limit on the
 * owner's code ends us.
 */
static void
add_context(void *arg)
{
	IvfpqLimitHit hit = IvfpqLimitIsHit();

	if (hit == IVFPQ_LIMIT_ROW)
		errmsg("gpuvec: training of index \"%s\" ended, its code finished no row within gpuvec.training_timeout",
			   serving_name);
	else if (hit == IVFPQ_LIMIT_CANCEL)
		errmsg("gpuvec: training of index \"%s\" ended, its code did not heed a cancellation",
			   serving_name);
	if (hit != IVFPQ_LIMIT_NONE)
	{
		errdetail("The code is that of role \"%s\". The next VACUUM of the table has training begun again.",
				  serving_owner);
		errhint("Make the functions of the index faster, or call gpuvec_train.");
	}
	errcontext("training of index \"%s\"", (const char *) arg);
}

/*
 * Trains the index or flushes its pending rows, and calibrates it if it has
 * outgrown its training.  The caller has locked the table.
 */
static void
serve_index(Relation heap, Relation index)
{
	char	   *name = psprintf("%s.%s",
								get_namespace_name(RelationGetNamespace(index)),
								RelationGetRelationName(index));
	char	   *activity = psprintf("gpuvec: training index %s", name);
	ErrorContextCallback context = {error_context_stack, add_context,
	name};
	IvfpqIdentity caller;
	IvfpqTrainResult result;
	TimestampTz begun;

	pgstat_report_activity(STATE_RUNNING, activity);
	strlcpy(serving_name, name, sizeof(serving_name));
	strlcpy(serving_owner,
			GetUserNameFromId(heap->rd_rel->relowner, false),
			sizeof(serving_owner));
	serving_heap = RelationGetRelid(heap);
	error_context_stack = &context;
	IvfpqActAsOwner(&caller, heap);
	if (OidIsValid(order.owner))
		IvfpqLimitBegin();
	begun = GetCurrentTimestamp();
	IvfpqTrainOrFlush(heap, index, &result);
	log_result(name, &result, begun);
	advise_rebuild(heap, index, name);
	if (OidIsValid(order.owner))
		IvfpqLimitEnd();
	IvfpqActAsCaller(&caller);
	error_context_stack = context.previous;
	serving_heap = InvalidOid;
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Returns whether this is a gpuivfpq index that has work for us, as far as can
 * be seen without a lock on its table.  Locks the index, unless that would
 * take waiting: the session that has it locked rebuilds or drops it.
 */
static bool
wants_service(Oid indexoid)
{
	Relation	index;
	bool		wants;

	if (!ConditionalLockRelationOid(indexoid, AccessShareLock))
		return false;
	index = try_relation_open(indexoid, NoLock);
	if (index == NULL)
		return false;
	wants = index->rd_rel->relkind == RELKIND_INDEX &&
		IvfpqIsOurs(index) &&
		index->rd_index->indisvalid && has_work(index, -1) &&
		worker_slot_is_for(index);
	relation_close(index, NoLock);
	return wants;
}

/* Returns the entry of an index that was tried, or NULL. */
static Tried *
find_tried(Oid indexoid)
{
	ListCell   *cell;

	foreach(cell, tried)
	{
		Tried	   *known = lfirst(cell);

		if (known->index == indexoid)
			return known;
	}
	return NULL;
}

/* Remembers that an index was tried; call before that is done. */
static void
remember_tried(Oid indexoid, int64 vacuums)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	Tried	   *known = find_tried(indexoid);

	if (known == NULL)
	{
		known = palloc(sizeof(Tried));
		known->index = indexoid;
		tried = lappend(tried, known);
	}
	known->vacuums = vacuums;
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Tries to lock the index's table, and serves the index, unless just_look.  An
 * index is tried once, and again after each VACUUM of its table, which started
 * no worker because it found us here.
 */
static Outcome
try_index(Oid indexoid, bool just_look)
{
	Oid			heapoid = IndexGetRelation(indexoid, true);
	Tried	   *known = find_tried(indexoid);
	int64		vacuums;

	if (!OidIsValid(heapoid) || (known != NULL && known->vacuums < 0) ||
		!wants_service(indexoid))
		return NOTHING;
	/* VACUUM, which may be about to ask, does not exclude readers */
	if (known != NULL && !ConditionalLockRelationOid(heapoid, AccessShareLock))
		return NOTHING;
	if (!ConditionalLockRelationOid(heapoid, ShareUpdateExclusiveLock))
		return LOCKED;
	vacuums = IvfpqCountVacuums(heapoid);
	if (IndexGetRelation(indexoid, true) != heapoid ||
		(known != NULL && known->vacuums == vacuums))
		return NOTHING;
	if (!just_look)
	{
		Relation	heap = table_open(heapoid, NoLock);
		Relation	index = index_open(indexoid, RowExclusiveLock);

		remember_tried(indexoid, vacuums);
		if (worker_slot_is_for(index))
			serve_index(heap, index);
		index_close(index, NoLock);
		table_close(heap, NoLock);
	}
	return SERVED;
}

/* Releases our worker slot, if we have one. */
static void
release_slot(void)
{
	if (slot >= 0)
		unlock_all(order.owner, true, slot);
	slot = -1;
}

/*
 * Logs that the service of an index was canceled, and releases our worker
 * slot.  As a rule a session that waits for the table has canceled it.  If
 * that session runs VACUUM, it must find the slot released when it gets the
 * table, so that it starts a worker.
 */
static void
report_canceled(void)
{
	LOCKTAG		tag;
	bool		waited_for;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, serving_heap);
	waited_for = LockHasWaiters(&tag, ShareUpdateExclusiveLock, false);
	ereport(LOG,
			(waited_for ?
			 errmsg("gpuvec: training of index \"%s\" ended, a session waits for its table",
					serving_name) :
			 errmsg("gpuvec: training of index \"%s\" was canceled",
					serving_name),
			 errdetail("The next VACUUM of the table has it begun again.")));
	release_slot();
}

/* Ends the work on an index after an error; the worker goes on. */
static void
recover(Oid indexoid)
{
	bool		canceled = OidIsValid(serving_heap) &&
	geterrcode() == ERRCODE_QUERY_CANCELED;

	HOLD_INTERRUPTS();
	IvfpqLimitEnd();
	if (!OidIsValid(serving_heap))
		remember_tried(indexoid, -1);
	MemoryContextSwitchTo(TopMemoryContext);
	if (!canceled)
		EmitErrorReport();
	FlushErrorState();
	if (canceled)
		report_canceled();
	serving_heap = InvalidOid;
	AbortCurrentTransaction();
	/* the abort has released the slot */
	if (slot >= 0)
		slot = worker_slot_acquire(order.owner);
	pgstat_report_activity(STATE_IDLE, NULL);
	RESUME_INTERRUPTS();
}

/* Handles SIGINT as a session does, and has the cancellation heeded. */
static void
cancel(SIGNAL_ARGS)
{
	IvfpqLimitCancel();
	IvfpqTakeCancel();
}

/* Heeds interrupts and rereads the configuration, between transactions. */
static void
obey(void)
{
	/* what was to be canceled has ended */
	QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Tries an index in a transaction of its own. */
static Outcome
try_safely(Oid indexoid, bool just_look)
{
	volatile Outcome outcome = NOTHING;

	obey();
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		outcome = try_index(indexoid, just_look);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		recover(indexoid);
	}
	PG_END_TRY();
	return outcome;
}

/*
 * Returns all gpuivfpq indexes of the database, in the current context; first
 * the one that we were asked for.  Leaves out temporary indexes, since those
 * of other sessions cannot be read.
 */
static List *
list_indexes(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *indexes = NIL;
	Oid			am;
	Relation	classes;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	am = get_index_am_oid("gpuivfpq", true);
	classes = table_open(RelationRelationId, AccessShareLock);
	scan = table_beginscan_catalog(classes, 0, NULL);
	MemoryContextSwitchTo(context);
	while (OidIsValid(am) &&
		   (tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);

		if (class->relam != am || class->relkind != RELKIND_INDEX ||
			class->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		indexes = class->oid == asked ? lcons_oid(class->oid, indexes) :
			lappend_oid(indexes, class->oid);
	}
	table_endscan(scan);
	table_close(classes, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return indexes;
}

/*
 * Goes through all indexes.  Serves them if we have a worker slot, else only
 * looks for work.
 */
static Outcome
go_through(void)
{
	bool		just_look = slot < 0;
	List	   *indexes = list_indexes();
	Outcome		most = NOTHING;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Outcome		outcome = try_safely(lfirst_oid(cell), just_look);

		most = Max(most, outcome);
		if (just_look ? most > NOTHING : slot < 0)
			break;
		if (outcome == LOCKED && lfirst_oid(cell) == asked && patience-- > 0)
			break;
	}
	list_free(indexes);
	return most;
}

/*
 * Serves all indexes until none has work, or until our worker slot is lost.
 * Returns false if we have waited for a table for too long.
 */
static bool
serve_database(void)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		Outcome		most = go_through();

		if (slot < 0 || most == NOTHING)
			return true;
		if (most == SERVED)
		{
			tries = 0;
			continue;
		}
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 RETRY_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		obey();
	}
	return false;
}

/*
 * Replaces the settings of the database, which are meant for sessions, by
 * autovacuum's, for its reasons: at SERIALIZABLE every row that is read counts
 * against writers, a time-out would end each try, and an index's functions
 * must find what they name.
 */
static void
set_own_settings(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"stats_fetch_consistency", "none"},
		{"zero_damaged_pages", "off"},
		{"search_path", ""}
	};

	for (int i = 0; i < (int) lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET,
						PGC_S_OVERRIDE);
	/* an owner's code has one process */
	if (OidIsValid(order.owner))
		SetConfigOption("max_parallel_maintenance_workers", "0", PGC_SUSET,
						PGC_S_OVERRIDE);
	IvfpqSetNoTransactionTimeout();
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		SetConfigOption("synchronous_commit", "local", PGC_SUSET,
						PGC_S_OVERRIDE);
}

/*
 * Releases the locks of a process that ends between transactions: PostgreSQL
 * releases them with a transaction, and would leave ours behind.
 */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/* Entry of the worker.  arg: OID of the index; bgw_extra: its WorkerOrder. */
void
gpuvec_train_worker(Datum arg)
{
	bool		again = true;

	asked = DatumGetObjectId(arg);
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	if (order.nowners < MAX_OWNERS)
		order.owners[order.nowners++] = order.owner;
	pqsignal(SIGINT, cancel);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	set_own_settings();

	/*
	 * Count as an autovacuum worker: a session that has waited for our table
	 * for deadlock_timeout cancels us, and DROP DATABASE ends us.  As there,
	 * this is set for good, and before other processes see us.
	 */
	MyProc->statusFlags |= PROC_IS_AUTOVACUUM;
	BackgroundWorkerInitializeConnectionByOid(order.database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	IvfpqSnapshotsAreOurs();
	IvfpqLimitInit();
	before_shmem_exit(release_at_exit, (Datum) 0);

	/*
	 * A VACUUM that found us at work started no worker.  So look once more
	 * after the slot is released.
	 */
	while (again && (slot = worker_slot_acquire(order.owner)) >= 0)
	{
		again = serve_database();
		release_slot();
		again = again && go_through() > NOTHING;
	}
	if (OidIsValid(order.next))
	{
		Oid			next = order.next;

		order.owner = order.next_owner;
		order.next = InvalidOid;
		(void) start_worker(next, &order);
	}
	pgstat_report_activity(STATE_IDLE, NULL);
}
