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
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
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
#include "utils/hsearch.h"
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
 * Retries reserved for the index that we were asked for, before others are
 * served: a VACUUM that goes through partitions would come after us, and
 * cancel us in the next one.
 */
#define ASKED_RETRIES	10

/*
 * Sub-object of the locks of a slot: databases and roles have none such, so
 * nobody else locks it.
 */
#define SLOT_PART		0xFF91

/* As many owners as a worker's arguments have space for. */
#define MAX_OWNERS		27

/* Goes to a worker in bgw_extra, and from that worker to the next one. */
typedef struct WorkerArgs
{
	Oid			database;
	Oid			owner;			/* whose interpreted code it runs; invalid: it
								 * serves indexes that have none */
	Oid			next;			/* index that the next worker begins with */
	Oid			next_owner;		/* that index's owner, in the same sense */
	int			nowners;
	Oid			owners[MAX_OWNERS]; /* of this worker and those before */
} WorkerArgs;

StaticAssertDecl(sizeof(WorkerArgs) <= BGW_EXTRALEN,
				 "arguments go with their worker");

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
	Oid			index;			/* hash key */
	int64		vacuums;		/* of its table, before; -1: unreadable */
} Tried;

static Oid	asked = InvalidOid; /* the index to begin with */
static int	asked_retries = ASKED_RETRIES;	/* that are left */
static WorkerArgs args;
static int	slot = -1;			/* our worker slot, or -1 */
static HTAB *tried;				/* of Tried */

/* The index that is served. */
static struct
{
	Oid			heap;			/* invalid: none is */
	char		name[2 * NAMEDATALEN];
	char		owner[NAMEDATALEN];
}			serving;

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
 * Acquires a worker slot, until the transaction ends or, with `session`, until
 * the slot is released or a transaction aborts.  Sets *number to the slot's
 * number, or to -1 if there is none now.
 *
 * A slot is three locks: the owner's in this database (without an owner, the
 * database's own), the owner's in all databases, and one of
 * max_training_workers, which has the number.
 */
static SlotState
acquire_slot(Oid owner, bool session, int *number)
{
	SlotState	state = SLOT_TAKEN;

	*number = -1;
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

/* Releases a worker slot, if there is one, and sets its number to -1. */
static void
release_slot(Oid owner, bool session, int *number)
{
	if (*number < 0)
		return;
	unlock_slot(InvalidOid, DatabaseRelationId, *number, session);
	if (OidIsValid(owner))
		unlock_slot(InvalidOid, AuthIdRelationId, owner, session);
	unlock_slot(MyDatabaseId, AuthIdRelationId, owner, session);
	*number = -1;
}

/*
 * Returns whether a worker for that owner would get a slot now.  Call in a
 * transaction.
 */
static SlotState
check_slot(Oid owner)
{
	int			number;
	SlotState	state = acquire_slot(owner, false, &number);

	release_slot(owner, false, &number);
	return state;
}

/*
 * Returns whose worker slot serves an index: its owner's, if it calls
 * interpreted code.
 */
static Oid
slot_owner(Relation index)
{
	return IvfpqIsInterpreted(index, true) ? index->rd_rel->relowner :
		InvalidOid;
}

/*
 * Returns whether this worker may serve the index.  If not, and no index is
 * chosen yet, the next worker begins with this one, unless there is a worker
 * for its owner, or was, or no slot is free, or there were too many owners.
 */
static bool
slot_is_for(Relation index)
{
	Oid			owner = slot_owner(index);

	if (args.owner == owner)
		return true;
	/* this worker, or one before it, has run that owner's code */
	for (int i = 0; i < args.nowners; i++)
		if (args.owners[i] == owner)
			return false;
	if (!OidIsValid(args.next) && args.nowners < MAX_OWNERS &&
		check_slot(owner) == SLOT_FREE)
	{
		args.next = RelationGetRelid(index);
		args.next_owner = owner;
	}
	return false;
}

/*
 * Starts a worker that begins with an index.  Returns false if the server has
 * none free.
 */
static bool
start_worker(Oid indexoid, const WorkerArgs *its_args)
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
	memcpy(worker.bgw_extra, its_args, sizeof(*its_args));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/*
 * Starts a background worker for an index that VACUUM is through with, if the
 * index has work and no worker will do it.  Temporary indexes get none: no
 * other process can read them.
 */
void
IvfpqAskForWorker(IndexVacuumInfo *info)
{
	Relation	index = info->index;
	WorkerArgs	its_args = {.database = MyDatabaseId};
	SlotState	state;

	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!index->rd_index->indisvalid || ivfpq_max_training_workers == 0 ||
		!has_work(index, info->num_heap_tuples))
		return;

	its_args.owner = slot_owner(index);
	state = check_slot(its_args.owner);
	if (state == SLOT_OURS)
		return;
	if (state != SLOT_FREE)
		ereport(LOG,
				(errmsg("index \"%s\" has to wait: %s",
						RelationGetRelationName(index),
						state == SLOT_OWNERS ?
						"a worker of another database runs its owner's code" :
						"all gpuvec.max_training_workers are at work"),
				 errdetail("The next VACUUM of its table asks again."),
				 errhint("Set gpuvec.max_training_workers higher, or call gpuvec_train.")));
	else if (!start_worker(RelationGetRelid(index), &its_args))
		ereport(LOG,
				(errmsg("no background worker is free for index \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("The next VACUUM of its table asks again."),
				 errhint("Set max_worker_processes higher, or call gpuvec_train.")));
}

/* Logs what was done to the index that is served, which a line names. */
static void
log_result(const IvfpqTrainResult *result, TimestampTz begun)
{
	long		ms = TimestampDifferenceMilliseconds(begun,
													 GetCurrentTimestamp());

	if (result->mismatched > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: %lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->mismatched, serving.name)));
	if (result->nlists == 0)
		ereport(LOG,
				(errhidecontext(true),
				 result->waits ?
				 errmsg("gpuvec: index \"%s\" is not trained, nearly all of its %.0f rows are equal",
						serving.name, result->rows) :
				 errmsg("gpuvec: index \"%s\" is not trained, the table has only %.0f rows to index",
						serving.name, result->rows)));
	else if (result->trained || result->moved > 0)
		ereport(LOG,
				(errhidecontext(true),
				 result->trained ?
				 errmsg("gpuvec: trained index \"%s\": %lld rows in %d lists, %lld stay pending, %ld ms",
						serving.name, (long long) result->moved,
						result->nlists, (long long) result->kept, ms) :
				 errmsg("gpuvec: put %lld pending rows of index \"%s\" into lists, %lld stay pending, %ld ms",
						(long long) result->moved, serving.name,
						(long long) result->kept, ms)));
}

/*
 * Logs that the index that is served has outgrown its training, once and at
 * every doubling after that, and recalibrates it.  Targets for queries that
 * only a user can name are left alone.
 */
static void
advise_rebuild(Relation heap, Relation index)
{
	IvfpqMetaData meta;
	int64		rows;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0 || !has_outgrown(index, &meta, &rows))
		return;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("gpuvec: index \"%s\" was trained on %lld rows and holds %lld",
					serving.name, (long long) meta.rows_at_training,
					(long long) rows),
			 meta.calibrated_for == IVFPQ_FOR_ROWS ?
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.") :
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.  Then calibrate it with your queries again.")));
	if (meta.calibrated_for == IVFPQ_FOR_ROWS)
		(void) IvfpqCalibrateIndex(heap, index, NULL);
	IvfpqMetaAdvised(index, rows);
}

/*
 * Error context callback: names the index that is served; and its owner, if a
 * limit on the owner's code ends us.
 */
static void
add_context(void *arg)
{
	IvfpqLimitHit hit = IvfpqLimitIsHit();

	if (hit == IVFPQ_LIMIT_ROW)
		errmsg("gpuvec: training of index \"%s\" ended, its code finished no row within gpuvec.training_timeout",
			   serving.name);
	else if (hit == IVFPQ_LIMIT_CANCEL)
		errmsg("gpuvec: training of index \"%s\" ended, its code did not heed a cancellation",
			   serving.name);
	if (hit != IVFPQ_LIMIT_NONE)
	{
		errdetail("The code is that of role \"%s\". The next VACUUM of the table has training begun again.",
				  serving.owner);
		errhint("Make the functions of the index faster, or call gpuvec_train.");
	}
	errcontext("training of index \"%s\"", serving.name);
}

/*
 * Trains the index or flushes its pending rows, and calibrates it if it has
 * outgrown its training.  The caller has locked the table.
 */
static void
serve_index(Relation heap, Relation index)
{
	ErrorContextCallback context = {error_context_stack, add_context, NULL};
	IvfpqIdentity caller;
	IvfpqTrainResult result;
	TimestampTz begun;

	snprintf(serving.name, sizeof(serving.name), "%s.%s",
			 get_namespace_name(RelationGetNamespace(index)),
			 RelationGetRelationName(index));
	strlcpy(serving.owner,
			GetUserNameFromId(heap->rd_rel->relowner, false),
			sizeof(serving.owner));
	pgstat_report_activity(STATE_RUNNING,
						   psprintf("gpuvec: training index %s",
									serving.name));
	serving.heap = RelationGetRelid(heap);
	error_context_stack = &context;
	IvfpqActAsOwner(&caller, heap);
	if (OidIsValid(args.owner))
		IvfpqLimitBegin();
	begun = GetCurrentTimestamp();
	IvfpqTrainOrFlush(heap, index, &result);
	log_result(&result, begun);
	advise_rebuild(heap, index);
	if (OidIsValid(args.owner))
		IvfpqLimitEnd();
	IvfpqActAsCaller(&caller);
	error_context_stack = context.previous;
	serving.heap = InvalidOid;
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Remembers that an index was tried; call before that is done. */
static void
remember_tried(Oid indexoid, int64 vacuums)
{
	Tried	   *known = hash_search(tried, &indexoid, HASH_ENTER, NULL);

	known->vacuums = vacuums;
}

/*
 * Serves an index if it has work for us and its table can be locked, or, with
 * just_look, only says so.  Waits for no lock.  An index is tried once, and
 * again after each VACUUM of its table, which started no worker because it
 * found us here.
 */
static Outcome
try_index(Oid indexoid, bool just_look)
{
	Oid			heapoid = IndexGetRelation(indexoid, true);
	Tried	   *known = hash_search(tried, &indexoid, HASH_FIND, NULL);
	Relation	heap;
	Relation	index;
	int64		vacuums;
	bool		has_ours;

	if (!OidIsValid(heapoid) || (known != NULL && known->vacuums < 0))
		return NOTHING;

	/*
	 * Look for work, as far as that can be seen without a lock on the table.
	 * A session that has the index locked rebuilds or drops it.
	 */
	if (!ConditionalLockRelationOid(indexoid, AccessShareLock))
		return NOTHING;
	index = try_relation_open(indexoid, NoLock);
	if (index == NULL)
		return NOTHING;
	has_ours = index->rd_rel->relkind == RELKIND_INDEX &&
		IvfpqIsOurs(index) && index->rd_index->indisvalid &&
		has_work(index, -1) && slot_is_for(index);
	relation_close(index, NoLock);
	if (!has_ours)
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
	if (just_look)
		return SERVED;

	heap = table_open(heapoid, NoLock);
	index = index_open(indexoid, RowExclusiveLock);
	remember_tried(indexoid, vacuums);
	/* before the table was locked, the index's code may have changed hands */
	if (slot_is_for(index))
		serve_index(heap, index);
	index_close(index, NoLock);
	table_close(heap, NoLock);
	return SERVED;
}

/*
 * Ends the work on an index after an error; the worker goes on.
 *
 * As a rule a session that waits for the table has canceled the work.  If that
 * session runs VACUUM, it must find our worker slot released when it gets the
 * table, so that it starts a worker.
 */
static void
recover(Oid indexoid)
{
	bool		canceled = OidIsValid(serving.heap) &&
	geterrcode() == ERRCODE_QUERY_CANCELED;

	HOLD_INTERRUPTS();
	IvfpqLimitEnd();
	if (!OidIsValid(serving.heap))
		remember_tried(indexoid, -1);
	MemoryContextSwitchTo(TopMemoryContext);
	if (!canceled)
		EmitErrorReport();
	FlushErrorState();
	if (canceled)
	{
		LOCKTAG		tag;
		bool		waited_for;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, serving.heap);
		waited_for = LockHasWaiters(&tag, ShareUpdateExclusiveLock, false);
		ereport(LOG,
				(waited_for ?
				 errmsg("gpuvec: training of index \"%s\" ended, a session waits for its table",
						serving.name) :
				 errmsg("gpuvec: training of index \"%s\" was canceled",
						serving.name),
				 errdetail("The next VACUUM of the table has it begun again.")));
		release_slot(args.owner, true, &slot);
	}
	serving.heap = InvalidOid;
	AbortCurrentTransaction();
	/* the abort has released the slot */
	if (slot >= 0)
		(void) acquire_slot(args.owner, true, &slot);
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
process_interrupts(void)
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

	process_interrupts();
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
 * Goes through all indexes of the database, first the one that we were asked
 * for.  Serves them if we have a worker slot, else only looks for work.
 * Leaves out temporary indexes, since those of other sessions cannot be read.
 */
static Outcome
go_through(void)
{
	MemoryContext context = CurrentMemoryContext;
	bool		just_look = slot < 0;
	List	   *indexes;
	Outcome		most = NOTHING;
	ListCell   *cell;

	StartTransactionCommand();
	indexes = IvfpqListIndexes(false);
	if (list_member_oid(indexes, asked))
		indexes = lcons_oid(asked, list_delete_oid(indexes, asked));
	MemoryContextSwitchTo(context);
	indexes = list_copy(indexes);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	foreach(cell, indexes)
	{
		Outcome		outcome = try_safely(lfirst_oid(cell), just_look);

		most = Max(most, outcome);
		if (just_look ? most > NOTHING : slot < 0)
			break;
		if (outcome == LOCKED && lfirst_oid(cell) == asked &&
			asked_retries-- > 0)
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
		process_interrupts();
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
	if (OidIsValid(args.owner))
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

/* Entry of the worker.  arg: OID of the index; bgw_extra: its WorkerArgs. */
void
gpuvec_train_worker(Datum arg)
{
	bool		again = true;
	HASHCTL		hash = {0};

	asked = DatumGetObjectId(arg);
	memcpy(&args, MyBgworkerEntry->bgw_extra, sizeof(args));
	if (args.nowners < MAX_OWNERS)
		args.owners[args.nowners++] = args.owner;
	hash.keysize = sizeof(Oid);
	hash.entrysize = sizeof(Tried);
	tried = hash_create("gpuvec tried indexes", 64, &hash,
						HASH_ELEM | HASH_BLOBS);
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
	BackgroundWorkerInitializeConnectionByOid(args.database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	IvfpqSnapshotsAreOurs();
	IvfpqLimitInit();
	before_shmem_exit(release_at_exit, (Datum) 0);

	/*
	 * A VACUUM that found us at work started no worker.  So look once more
	 * after the slot is released.
	 */
	while (again && acquire_slot(args.owner, true, &slot) == SLOT_FREE)
	{
		again = serve_database();
		release_slot(args.owner, true, &slot);
		again = again && go_through() > NOTHING;
	}
	if (OidIsValid(args.next))
	{
		Oid			next = args.next;

		args.owner = args.next_owner;
		args.next = InvalidOid;
		(void) start_worker(next, &args);
	}
	pgstat_report_activity(STATE_IDLE, NULL);
}
