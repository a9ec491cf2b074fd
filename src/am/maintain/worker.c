/*
 * worker.c
 *		A background worker that trains and flushes when VACUUM asks for it.
 *
 * Neither runs inside VACUUM itself: VACUUM protects no snapshot, and to
 * cancel it would lose more than the training (README).  The worker cannot
 * wait for the table's lock, which VACUUM still has: a waiter has autovacuum
 * canceled.  So it tries once a second.  Nothing has to be preloaded for this.
 *
 * A database has one worker at a time, which serves every index there that has
 * work, and one for each owner whose indexes call interpreted code: VACUUM
 * starts no second one for the same slot.
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
#include "page/pending.h"
#include "pgcompat.h"

static void worker_slot_init(void);
static int	worker_slot_acquire(Oid owner);
static void worker_slot_release(Oid owner, int slot);
static IvfpqWorkerSlotState worker_slot_check(Oid owner);
static Oid	worker_slot_owner(Relation index);
static bool worker_slot_is_for(IvfpqWorkerOrder *order, Relation index);
static bool has_work(Relation index, double table_rows);
static void do_work(Relation heap, Relation index, const char *name);

/* How long to try to get the lock of a table. */
#define MAX_TRIES		3600
#define RETRY_MS		1000

/*
 * Tries that go to the index that we were asked for, before other indexes: a
 * VACUUM that goes through partitions would come after us, and cancel us in
 * the next one.
 */
#define PATIENCE		10

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
static IvfpqWorkerOrder order;
static int	patience = PATIENCE;	/* tries left for `asked` alone */
static int	slot = -1;			/* our worker slot, or -1 */
static List *tried = NIL;		/* of Tried */

/* While an index is served. */
static Oid	serving_heap = InvalidOid;
static char serving_name[2 * NAMEDATALEN];
static char serving_owner[NAMEDATALEN];

extern PGDLLEXPORT void gpuvec_train_worker(Datum arg);

StaticAssertDecl(sizeof(IvfpqWorkerOrder) <= BGW_EXTRALEN,
				 "an order goes with its worker");

/* Have a worker started that begins with an index; false if none is free. */
static bool
start_worker(Oid indexoid, const IvfpqWorkerOrder *its_order)
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

/*
 * VACUUM is through with an index: start a worker if there is work, and no
 * worker that will do it.  No other process can read temporary indexes.
 */
void
IvfpqAskForWorker(IndexVacuumInfo *info)
{
	Relation	index = info->index;
	IvfpqWorkerOrder its_order = {.database = MyDatabaseId};
	const char *why;

	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!index->rd_index->indisvalid || ivfpq_max_training_workers == 0 ||
		!has_work(index, info->num_heap_tuples))
		return;

	its_order.owner = worker_slot_owner(index);
	switch (worker_slot_check(its_order.owner))
	{
		case IVFPQ_SLOT_OURS:
			return;
		case IVFPQ_SLOT_OWNERS:
			why = "a worker of another database runs its owner's code";
			break;
		case IVFPQ_SLOT_TAKEN:
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

/* Which index an error is about; and whose, if that is what ends us. */
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
	IvfpqIdentity caller;

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
	do_work(heap, index, name);
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
		worker_slot_is_for(&order, index);
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
	/* what excludes readers is no VACUUM that may be about to ask */
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
		if (worker_slot_is_for(&order, index))
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
		worker_slot_release(order.owner, slot);
	slot = -1;
}

/*
 * Serving an index has been canceled, as a rule by a session that waits for
 * its table.  If that session runs VACUUM, it must find our worker slot
 * released when it gets the table, so that it starts a worker.
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

/* An error ends the work on an index, not the worker. */
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
	/* which has released the slot */
	if (slot >= 0)
		slot = worker_slot_acquire(order.owner);
	pgstat_report_activity(STATE_IDLE, NULL);
	RESUME_INTERRUPTS();
}

/* SIGINT: as a session takes it, but it has to be heeded. */
static void
cancel(SIGNAL_ARGS)
{
	IvfpqLimitCancel();
	IvfpqTakeCancel();
}

/* Between transactions: heed interrupts, and read a changed configuration. */
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

/* In a transaction of its own. */
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
 * All gpuivfpq indexes of the database, in the current context; first the one
 * that we were asked for.  Temporary ones of other sessions cannot be read.
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

/* Goes through all indexes, and serves them if we have a worker slot. */
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
 * With a worker slot: serves all indexes until none has work, or until the
 * slot is lost.  False: we have waited for a table for too long.
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
 * Settings of the database are meant for sessions.  These are autovacuum's,
 * for its reasons: at SERIALIZABLE every row that is read counts against
 * writers, a time-out would end each try, and an index's functions must find
 * what they name.
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

/* Entry of the worker.  arg: OID of the index; bgw_extra: its order. */
void
gpuvec_train_worker(Datum arg)
{
	bool		again = true;

	asked = DatumGetObjectId(arg);
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	if (order.nowners < IVFPQ_WORKER_OWNERS)
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
	worker_slot_init();

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

/* ----
 * Worker slots, the right to train: gpuvec.max_training_workers in all,
 * of which a database has one, and each owner of interpreted code one
 * more.
 *
 * A process remembers how it compiled code that it ran (identity.c), and code
 * may run for long.  So a worker runs the code of one owner, and an owner's
 * code has one worker.
 *
 * Worker slots are locks in the server's lock table, so that nothing has to be
 * preloaded and a worker that dies releases its slot.  They are locks of the
 * default method, because a function of an index may release all advisory
 * locks of its session.  An abort releases them, also those of the session.
 */

/* Databases and roles have no such sub-object: nobody else locks it. */
#define SLOT_PART		0xFF91

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
 * session does: the owner's in this database (no owner: the database's own),
 * the owner's in all databases, and one of max_training_workers, whose number
 * *number gets.
 */
static IvfpqWorkerSlotState
lock_all(Oid owner, bool session, int *number)
{
	IvfpqWorkerSlotState state = IVFPQ_SLOT_TAKEN;

	if (!lock_slot(MyDatabaseId, AuthIdRelationId, owner, session))
		return IVFPQ_SLOT_OURS;
	if (OidIsValid(owner) &&
		!lock_slot(InvalidOid, AuthIdRelationId, owner, session))
		state = IVFPQ_SLOT_OWNERS;
	else
	{
		for (int i = 0; i < ivfpq_max_training_workers; i++)
			if (lock_slot(InvalidOid, DatabaseRelationId, i, session))
			{
				*number = i;
				return IVFPQ_SLOT_FREE;
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
 * A process that ends between transactions would leave its locks behind:
 * PostgreSQL releases them with a transaction.
 */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/* Called once in a worker, before it acquires a slot. */
static void
worker_slot_init(void)
{
	before_shmem_exit(release_at_exit, (Datum) 0);
}

/*
 * Acquires a worker slot, which lasts until it is released or a transaction
 * aborts.  Returns its number, or -1 if there is none now.
 */
static int
worker_slot_acquire(Oid owner)
{
	int			slot = -1;

	(void) lock_all(owner, true, &slot);
	return slot;
}

static void
worker_slot_release(Oid owner, int slot)
{
	unlock_all(owner, true, slot);
}

/*
 * Returns whether a worker for that owner would get a slot now.  Call in a
 * transaction.
 */
static IvfpqWorkerSlotState
worker_slot_check(Oid owner)
{
	int			number;
	IvfpqWorkerSlotState state = lock_all(owner, false, &number);

	if (state == IVFPQ_SLOT_FREE)
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
has_run(const IvfpqWorkerOrder *order, Oid owner)
{
	for (int i = 0; i < order->nowners; i++)
		if (order->owners[i] == owner)
			return true;
	return false;
}

/*
 * Returns whether this worker may serve the index.  If not, the next worker
 * begins with it, unless there is one for its owner, or was, or there were too
 * many.
 */
static bool
worker_slot_is_for(IvfpqWorkerOrder *order, Relation index)
{
	Oid			owner = worker_slot_owner(index);

	if (order->owner == owner)
		return true;
	if (!OidIsValid(order->next) && !has_run(order, owner) &&
		order->nowners < IVFPQ_WORKER_OWNERS &&
		worker_slot_check(owner) == IVFPQ_SLOT_FREE)
	{
		order->next = RelationGetRelid(index);
		order->next_owner = owner;
	}
	return false;
}

/* ----
 * What an index needs of the background worker, and doing it.
 */

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
 * Returns whether the index has work.  The estimate of pending rows is an
 * upper bound that saves reading them; so is table_rows, unless negative, of
 * all rows.
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

/* One line for the log about what was done; it names the index itself. */
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
 * The index has outgrown its training: say so, once and again when it has
 * doubled, and calibrate it anew.  Targets for queries which only a user can
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
 * Trains the index or flushes its pending rows, calibrates one that has
 * outgrown its training, and says so in the log.  The caller acts as the owner
 * of the table, which is locked.
 */
static void
do_work(Relation heap, Relation index, const char *name)
{
	TimestampTz begun = GetCurrentTimestamp();
	IvfpqTrainResult result;

	IvfpqTrainOrFlush(heap, index, &result);
	log_result(name, &result, begun);
	advise_rebuild(heap, index, name);
}
