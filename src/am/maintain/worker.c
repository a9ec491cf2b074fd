/*
 * worker.c
 *		A background worker that trains indexes, and flushes their pending
 *		rows, when VACUUM asks for it, and that calibrates indexes when scans
 *		ask for it (autocalibrate.c).
 *
 * Training and flushing do not run inside VACUUM itself, because VACUUM does
 * not hold a snapshot that protects the rows' TOAST values, and because
 * canceling VACUUM would lose more than the training (README).  VACUUM still
 * has the table's lock when the worker starts.  The worker must not wait for
 * that lock, because a session that waits for a lock of autovacuum cancels
 * autovacuum.  So the worker tries to get the lock once a second, for an hour,
 * each time in a transaction of its own.
 *
 * A worker needs a worker slot.  A database has one slot for all its indexes
 * that call no interpreted code, and one slot for each owner whose indexes
 * call such code.  At most gpuvec.max_training_workers slots are in use in all
 * databases together.  VACUUM does not start a second worker for the same
 * slot.  A worker runs the interpreted code of only one owner, because a
 * process remembers how it compiled such code (identity.c).  An owner's code
 * is run by only one worker, because the code may run for a long time.
 *
 * Worker slots are locks in the server's lock table, so nothing has to be
 * preloaded, and a worker that dies releases its slot.  They are locks of the
 * default lock method, because a function of an index may release all advisory
 * locks of its session.  A transaction that aborts releases even session locks
 * of this method, so the worker acquires its slot again after each error.
 *
 * The worker limits the time that an index owner's code takes.  A function of
 * an index may wait forever, and may catch a cancellation.  So the process
 * terminates itself as pg_terminate_backend would, which no code can catch.  A
 * timer checks whether a row was finished since the timer's last check.  A
 * worker has a snapshot only while it reads rows (util.c), so the time in which
 * it clusters or writes does not count.
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
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "am/build/train.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/scan/querylog.h"
#include "am/search/params.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Time between two attempts to lock a table, and the number of attempts. */
#define RETRY_MS		1000
#define MAX_TRIES		3600

/*
 * Number of times that we retry the index that we were asked for, before we
 * serve other indexes.  VACUUM may be going through the partitions of a table.
 * If we served a later partition's index, VACUUM would wait for us there, and
 * cancel us.
 */
#define ASKED_RETRIES	10

/*
 * Sub-object number in the tags of a slot's locks.  Nobody else takes a lock
 * with this tag, because databases and roles have no sub-objects.
 */
#define SLOT_PART		0xFF91

/*
 * Interval of the timer that limits the time of an owner's code, and the time
 * in which the code must react to a cancellation.
 */
#define LOOK_MS			200
#define CANCEL_MS		1000

/*
 * An index is trained again when it has MAX_GROWTH times the rows of its
 * training or, from LEAST_GROWTH times on, when searches take SLOWDOWN times as
 * long as in a fresh index, which they do about then.  LEAST_GROWTH limits the
 * time that a growing table spends on training: no row is placed more than
 * three times on the average.
 */
#define MAX_GROWTH		4.0
#define LEAST_GROWTH	1.5
#define SLOWDOWN		1.2

/* Number of owners that a worker's arguments have space for. */
#define MAX_OWNERS		27

/* A worker's arguments, in bgw_extra.  The next worker gets them, too. */
typedef struct WorkerArgs
{
	Oid			database;
	Oid			owner;			/* owner whose interpreted code the worker
								 * runs; InvalidOid: the worker serves indexes
								 * without such code */
	Oid			next;			/* index that the next worker begins with */
	Oid			next_owner;		/* the next worker's `owner` */
	int			nowners;
	Oid			owners[MAX_OWNERS]; /* [nowners] `owner` of this worker and of
									 * the workers before it */
} WorkerArgs;

StaticAssertDecl(sizeof(WorkerArgs) <= BGW_EXTRALEN,
				 "arguments go with their worker");

typedef enum SlotState
{
	SLOT_FREE,
	SLOT_OURS,					/* a worker of this database has the slot */
	SLOT_OWNERS,				/* a worker of another database runs the
								 * owner's code */
	SLOT_TAKEN					/* other workers have all slots */
} SlotState;

/* The result of trying an index.  For several indexes, the highest result. */
typedef enum Outcome
{
	NOTHING,					/* there is no work that can be done now */
	LOCKED,						/* the table is locked, perhaps by VACUUM */
	SERVED						/* the index was served or, if we have no
								 * slot, could be served */
} Outcome;

/* An index that this worker has tried to serve. */
typedef struct Tried
{
	Oid			index;			/* hash key */
	int64		vacuums;		/* number of VACUUMs of the table before the
								 * attempt; -1: the index could not be read,
								 * and is not tried again */
} Tried;

/* The limit that an owner's code has hit.  It ends the process. */
typedef enum LimitHit
{
	NO_LIMIT,
	ROW_LIMIT,					/* one row took too long */
	CANCEL_LIMIT,				/* the code did not react to a cancellation in
								 * time */
	BUDGET_LIMIT				/* a measurement took too long */
} LimitHit;

int			ivfpq_training_timeout = 60000;

static Oid	asked = InvalidOid; /* the index that we were asked for */
static int	asked_retries = ASKED_RETRIES;	/* retries left for `asked` */
static WorkerArgs args;
static int	slot = -1;			/* our worker slot, or -1 */
static HTAB *tried;				/* of Tried */

/* the limit on an owner's code */
static TimeoutId timer;
static int	timeout_ms;			/* 0: there is no limit */
static uint32 rows_seen;		/* ivfpq_rows_done at the last check */
static TimestampTz row_since;	/* when the current row was begun */
static TimestampTz cancel_since;	/* when the timer saw a cancellation; 0 =
									 * it saw none */
static volatile sig_atomic_t canceled = false;
static volatile LimitHit hit = NO_LIMIT;

/* The index that is being served. */
static struct
{
	Oid			heap;			/* its table; InvalidOid if no index is being
								 * served */
	char		name[2 * NAMEDATALEN];
	char		owner[NAMEDATALEN];
	const char *work;			/* "training" or "calibration" */
	const char *asked_by;		/* "VACUUM of the table" or "queries of the
								 * index" */
}			serving;

extern PGDLLEXPORT void gpuvec_train_worker(Datum arg);

/*
 * Returns whether searches with this target recall take SLOWDOWN times as long
 * as in a fresh index of these rows, or read all rows.  How many lists have to
 * be probed for the same recall follows from their number by the formula for
 * indexes without calibration.
 */
static bool
is_slow(Relation index, const IvfpqMetaData *meta, double rows, double recall)
{
	int			lists = IvfpqGetOptions(index)->lists;
	IvfpqMetaData fresh = *meta;
	IvfpqSearchParams params;
	double		probes;

	IvfpqParamsForRows(&params, index, meta, recall, IVFPQ_FIRST_ROWS);
	if (params.read_all)
		return true;
	fresh.nlists = lists > 0 ? lists : IvfpqDefaultLists(rows);
	fresh.nparents = IvfpqParents(fresh.nlists);
	probes = (double) params.probes * IvfpqFormulaProbes(&fresh) /
		IvfpqFormulaProbes(meta);
	return IvfpqSearchNs(meta, rows, params.probes, params.candidates, false) >
		SLOWDOWN * IvfpqSearchNs(&fresh, rows, probes, params.candidates,
								 false);
}

/*
 * Returns whether an index with this number of rows in lists should be trained
 * again: it has grown by the factor MAX_GROWTH, or searches with the targets
 * that are asked for most are slow.
 */
bool
IvfpqHasOutgrown(Relation index, const IvfpqMetaData *meta, int64 rows)
{
	double		growth = (double) rows / Max(meta->rows_at_training, 1);

	return meta->nlists > 0 && growth >= LEAST_GROWTH &&
		(growth >= MAX_GROWTH ||
		 is_slow(index, meta, (double) rows, IVFPQ_LOWER_RECALL) ||
		 is_slow(index, meta, (double) rows, IVFPQ_SURE_RECALL));
}

/*
 * Returns whether the worker should train the index again.  An index that was
 * calibrated for queries is left alone, because its targets would be lost,
 * unless the next query has it calibrated again.
 */
static bool
has_outgrown(Relation index, const IvfpqMetaData *meta)
{
	int64		rows;

	if (meta->nlists == 0)
		return false;
	rows = IvfpqCountRows(index, meta);
	return IvfpqHasOutgrown(index, meta, rows) &&
		(IvfpqGetOptions(index)->calibrated_for == IVFPQ_FOR_ROWS ||
		 IvfpqWillCalibrate(index, meta, rows));
}

/*
 * Returns whether the index has work for a worker.  Rows are counted only if
 * an upper bound of their number is high enough.  For pending rows the upper
 * bound is IvfpqPendingEstimate.  For all rows it is table_rows; if table_rows
 * is negative, there is no upper bound, and the rows are always counted.
 */
static bool
has_work(Relation index, double table_rows)
{
	IvfpqMetaData meta;
	int64		pending = IvfpqPendingEstimate(index);

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0)
		return pending >= IvfpqTrainRows(index) &&
			IvfpqCountPending(index, &meta) >= IvfpqTrainRows(index);
	if (pending > 0 && IvfpqPendingMayLeave(index, &meta))
		return true;
	return (table_rows < 0 ||
			table_rows > LEAST_GROWTH * meta.rows_at_training) &&
		has_outgrown(index, &meta);
}

/* Takes a lock of a worker slot.  Returns false if another process has it. */
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
 * Acquires a worker slot.  The slot is held until the transaction ends or, if
 * `session` is true, until the slot is released or a transaction aborts.  Sets
 * *number to the slot's number, or to -1 if no slot is available now.
 *
 * A slot with an owner consists of three locks.  The first lock is for the
 * owner in this database, and the second for the owner in all databases.  The
 * third is one of gpuvec.max_training_workers locks, and its number is the
 * slot's number.  A slot without an owner has a lock for the database in place
 * of the first two locks.
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

/* Releases a worker slot if *number is not -1, and sets *number to -1. */
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

/* Returns the state of an owner's slot.  Must be called in a transaction. */
static SlotState
check_slot(Oid owner)
{
	int			number;
	SlotState	state = acquire_slot(owner, false, &number);

	release_slot(owner, false, &number);
	return state;
}

/*
 * Returns the owner of the worker slot that serves an index: the index's owner
 * if the index calls interpreted code, otherwise InvalidOid.
 */
static Oid
slot_owner(Relation index)
{
	return IvfpqIsInterpreted(index, true) ? index->rd_rel->relowner :
		InvalidOid;
}

/*
 * Returns whether this worker may serve the index.  If not, lets the next
 * worker begin with this index if all of the following hold: no index has been
 * chosen for the next worker yet; neither this worker nor a worker before it
 * has run the owner's code; the arguments have space for another owner; and a
 * slot is free.
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
 * Returns whether a worker is running that serves the index now or later, if
 * the index has work.  Looks at the lock table and takes no lock, because a
 * lock of the slot, however short, could keep a worker from its slot.
 */
bool
IvfpqHasWorker(Relation index)
{
	LockData   *held = GetLockStatusData();
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, AuthIdRelationId, slot_owner(index),
					   SLOT_PART);
	for (int i = 0; i < held->nelements; i++)
		if (memcmp(&held->locks[i].locktag, &tag, sizeof(tag)) == 0 &&
			held->locks[i].holdMask != 0)
			return true;
	return false;
}

/*
 * Starts a worker that begins with the given index.  Returns false if the
 * server has no free background worker.
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
 * Starts a background worker for an index that VACUUM has finished, if the
 * index has work that no running worker will do.  A temporary index gets no
 * worker, because no other process can read it.
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
				(errmsg("no training worker available for index \"%s\"",
						RelationGetRelationName(index)),
				 state == SLOT_OWNERS ?
				 errdetail("A worker of another database runs functions of the owner of the index.  The next VACUUM of the table will retry.") :
				 errdetail("Other databases use all %d workers allowed by \"gpuvec.max_training_workers\".  The next VACUUM of the table will retry.",
						   ivfpq_max_training_workers),
				 errhint("Increase \"gpuvec.max_training_workers\", or call gpuvec_train.")));
	else if (!start_worker(RelationGetRelid(index), &its_args))
		ereport(LOG,
				(errmsg("could not start background worker to train index \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("The next VACUUM of the table will retry."),
				 errhint("Increase \"max_worker_processes\", or call gpuvec_train.")));
}

/*
 * Starts a background worker to calibrate an index whose queries ask for it,
 * unless the machine is busy or the budget is used up.  If no worker can be
 * started, a later query asks again.
 */
void
IvfpqAskForCalibration(Relation index)
{
	WorkerArgs	its_args = {.database = MyDatabaseId};

	if (ivfpq_max_training_workers == 0 || !index->rd_index->indisvalid ||
		!IvfpqMayAutoCalibrate())
		return;
	its_args.owner = slot_owner(index);
	if (check_slot(its_args.owner) == SLOT_FREE)
		(void) start_worker(RelationGetRelid(index), &its_args);
}

/*
 * Logs what was done to the index that is being served.  Every message names
 * the index, so the error context, which also names it, is hidden.
 */
static void
log_result(const IvfpqTrainResult *result, TimestampTz begun)
{
	long		ms = TimestampDifferenceMilliseconds(begun,
													 GetCurrentTimestamp());

	if (result->mismatched > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg_plural("%lld row of index \"%s\" remains pending because its dimensions do not match",
							   "%lld rows of index \"%s\" remain pending because their dimensions do not match",
							   (unsigned long) result->mismatched,
							   (long long) result->mismatched, serving.name)));
	if (result->nlists == 0)
		ereport(LOG,
				(errhidecontext(true),
				 result->waits ?
				 errmsg("index \"%s\" is not trained because nearly all of its %.0f rows are equal",
						serving.name, result->rows) :
				 errmsg_plural("index \"%s\" is not trained because the table has only %.0f row to index",
							   "index \"%s\" is not trained because the table has only %.0f rows to index",
							   (unsigned long) result->rows,
							   serving.name, result->rows)));
	else if (result->trained || result->moved > 0)
		ereport(LOG,
				(errhidecontext(true),
				 result->trained ?
				 errmsg("trained index \"%s\": %lld rows in %d lists, %lld remain pending, elapsed: %ld ms",
						serving.name, (long long) result->moved,
						result->nlists, (long long) result->kept, ms) :
				 errmsg_plural("moved %lld pending row of index \"%s\" into a list: %lld remain, elapsed: %ld ms",
							   "moved %lld pending rows of index \"%s\" into lists: %lld remain, elapsed: %ld ms",
							   (unsigned long) result->moved,
							   (long long) result->moved, serving.name,
							   (long long) result->kept, ms)));
}

/* Timer callback, in a signal handler.  Ends the process if a limit is hit. */
static void
check_limit(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (rows_seen != ivfpq_rows_done || !ActiveSnapshotSet())
		row_since = now;
	rows_seen = ivfpq_rows_done;
	if (canceled && cancel_since == 0)
		cancel_since = now;
	if (canceled &&
		TimestampDifferenceExceeds(cancel_since, now, CANCEL_MS))
		hit = CANCEL_LIMIT;
	else if (timeout_ms > 0 &&
			 TimestampDifferenceExceeds(row_since, now, timeout_ms))
		hit = ROW_LIMIT;
	else if (IvfpqCalibrationIsCostly())
		hit = BUDGET_LIMIT;
	else
		return;
	/* do what die() does */
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/*
 * Begins the limit.  From now on each row must be finished within
 * gpuvec.training_timeout, and a cancellation obeyed within CANCEL_MS.
 */
static void
begin_limit(void)
{
	timeout_ms = ivfpq_training_timeout;
	rows_seen = ivfpq_rows_done;
	row_since = GetCurrentTimestamp();
	cancel_since = 0;
	canceled = false;
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(row_since, LOOK_MS),
						 LOOK_MS);
}

/*
 * Error context callback.  Names the index that is being served.  If a limit
 * on the owner's code ends the worker, the message says so and the detail
 * names the owner.
 */
static void
add_context(void *arg)
{
	if (hit == ROW_LIMIT)
		errmsg("terminating %s of index \"%s\" because its functions exceeded \"gpuvec.training_timeout\"",
			   serving.work, serving.name);
	else if (hit == CANCEL_LIMIT)
		errmsg("terminating %s of index \"%s\" because its functions did not respond to cancellation",
			   serving.work, serving.name);
	else if (hit == BUDGET_LIMIT)
		errmsg("terminating %s of index \"%s\" because its functions exceeded a tenth of \"gpuvec.auto_calibrate_budget\"",
			   serving.work, serving.name);
	if (hit != NO_LIMIT)
	{
		errdetail("The functions run as role \"%s\".  The next %s will retry.",
				  serving.owner, serving.asked_by);
		errhint("Make the functions of the index faster, or call gpuvec_train.");
	}
	errcontext("%s of index \"%s\"", serving.work, serving.name);
}

/* Names the work that messages and pg_stat_activity report. */
static void
begin_work(const char *work, const char *asked_by)
{
	serving.work = work;
	serving.asked_by = asked_by;
	pgstat_report_activity(STATE_RUNNING,
						   psprintf("gpuvec: %s of index %s", work,
									serving.name));
}

/*
 * Trains the index, again if it has outgrown its training, or flushes its
 * pending rows, and calibrates it if its queries ask for it.  The caller has
 * locked the table.
 */
static void
serve_index(Relation heap, Relation index)
{
	ErrorContextCallback context = {error_context_stack, add_context, NULL};
	IvfpqIdentity caller;
	IvfpqMetaData meta;
	IvfpqTrainResult result;
	TimestampTz begun;

	snprintf(serving.name, sizeof(serving.name), "%s.%s",
			 get_namespace_name(RelationGetNamespace(index)),
			 RelationGetRelationName(index));
	strlcpy(serving.owner,
			GetUserNameFromId(heap->rd_rel->relowner, false),
			sizeof(serving.owner));
	begin_work("training", "VACUUM of the table");
	serving.heap = RelationGetRelid(heap);
	error_context_stack = &context;
	IvfpqActAsOwner(&caller, heap);
	if (OidIsValid(args.owner))
		begin_limit();
	if (has_work(index, -1))
	{
		begun = GetCurrentTimestamp();
		IvfpqMetaRead(index, &meta);
		IvfpqTrainOrFlush(heap, index, has_outgrown(index, &meta), &result);
		log_result(&result, begun);
	}
	if (IvfpqLogIsDue(index))
	{
		begin_work("calibration", "queries of the index");
		IvfpqAutoCalibrate(heap, index, serving.name);
	}
	if (OidIsValid(args.owner))
		disable_timeout(timer, false);
	IvfpqActAsCaller(&caller);
	error_context_stack = context.previous;
	serving.heap = InvalidOid;
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Records that an index was tried, and sets its Tried.vacuums.  Called before
 * the index is served, because serving it may fail.
 */
static void
remember_tried(Oid indexoid, int64 vacuums)
{
	Tried	   *known = hash_search(tried, &indexoid, HASH_ENTER, NULL);

	known->vacuums = vacuums;
}

/*
 * Serves an index if it has work for this worker and its table can be locked
 * without waiting.  If just_look is true, does not serve the index, but
 * returns SERVED if it could be served.
 *
 * An index is tried once, and again after each VACUUM of its table, because
 * such a VACUUM does not start another worker while this worker is running.
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
	 * Look for work, as far as that is possible without a lock on the table.
	 * If the index cannot be locked, a session is rebuilding or dropping it.
	 */
	if (!ConditionalLockRelationOid(indexoid, AccessShareLock))
		return NOTHING;
	index = try_relation_open(indexoid, NoLock);
	if (index == NULL)
		return NOTHING;
	has_ours = index->rd_rel->relkind == RELKIND_INDEX &&
		IvfpqIsOurs(index) && index->rd_index->indisvalid &&
		(has_work(index, -1) ||
		 (IvfpqLogIsDue(index) && IvfpqMayAutoCalibrate())) &&
		slot_is_for(index);
	relation_close(index, NoLock);
	if (!has_ours)
		return NOTHING;

	/*
	 * An index that was tried is tried again only after a VACUUM.  If even
	 * AccessShareLock is not available, the table is not locked by VACUUM,
	 * because VACUUM's lock does not conflict with AccessShareLock.
	 */
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

	/*
	 * check again: the code or owner may have changed before we had the lock
	 */
	if (slot_is_for(index))
		serve_index(heap, index);
	index_close(index, NoLock);
	table_close(heap, NoLock);
	return SERVED;
}

/*
 * Ends the work on an index after an error.  Then the worker can continue with
 * other indexes.
 *
 * Usually the work was canceled for a session that waits for the table.  If
 * that session runs VACUUM, it must find our worker slot free when it gets the
 * table's lock, so that it starts a worker.  So we release the slot before we
 * release the table's lock.
 */
static void
recover(Oid indexoid)
{
	bool		was_canceled = OidIsValid(serving.heap) &&
	geterrcode() == ERRCODE_QUERY_CANCELED;

	HOLD_INTERRUPTS();
	disable_timeout(timer, false);
	if (!OidIsValid(serving.heap))
		remember_tried(indexoid, -1);
	MemoryContextSwitchTo(TopMemoryContext);
	if (!was_canceled)
		EmitErrorReport();
	FlushErrorState();
	if (was_canceled)
	{
		LOCKTAG		tag;
		bool		waited_for;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, serving.heap);
		waited_for = LockHasWaiters(&tag, ShareUpdateExclusiveLock, false);
		ereport(LOG,
				(waited_for ?
				 errmsg("canceled %s of index \"%s\" because a session waits for its table",
						serving.work, serving.name) :
				 errmsg("%s of index \"%s\" was canceled",
						serving.work, serving.name),
				 errdetail("The next %s will retry.", serving.asked_by)));
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

/*
 * SIGINT handler.  Cancels the work as in a session, and starts the time limit
 * within which an owner's code must react to the cancel request.
 */
static void
cancel(SIGNAL_ARGS)
{
	canceled = true;
	IvfpqTakeCancel();
}

/* Processes interrupts and rereads the configuration, between transactions. */
static void
process_interrupts(void)
{
	/* the work that was to be canceled has ended */
	QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Calls try_index in its own transaction.  Errors are logged and not raised.
 */
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
 * Tries all indexes of the database, first the index that we were asked for,
 * and returns the highest result.  If we have a worker slot, indexes are
 * served; otherwise we only look for work.  Temporary indexes are left out,
 * because those of other sessions cannot be read.
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
 * Serves the indexes of the database until no index has work, or until our
 * worker slot is lost.  Returns false if we have waited for a table for too
 * long.
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
 * Overrides per-database settings in the same way as an autovacuum worker.  At
 * SERIALIZABLE every row that is read could conflict with writers.  A timeout
 * would end each attempt.  The functions of an index must find the objects
 * that they name, whatever the database's search_path is.
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
		{"search_path", ""},
		{"gpuvec.probes", "0"},
		{"gpuvec.candidates", "0"},
		{"gpuvec.max_probes", "0"},
		{"gpuvec.on_gpu_error", "fallback"},
		{"gpuvec.scan_order", "strict"}
	};

	for (int i = 0; i < (int) lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET,
						PGC_S_OVERRIDE);
	/* an owner's code must run in one process, so no parallel workers */
	if (OidIsValid(args.owner))
		SetConfigOption("max_parallel_maintenance_workers", "0", PGC_SUSET,
						PGC_S_OVERRIDE);
	IvfpqSetNoTransactionTimeout();
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		SetConfigOption("synchronous_commit", "local", PGC_SUSET,
						PGC_S_OVERRIDE);
}

/*
 * Releases our locks if the process ends between transactions.  PostgreSQL
 * would release locks of the default method only when a transaction ends.
 */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/*
 * Main function of the worker.  `arg` is the OID of the index to begin with,
 * and bgw_extra has the WorkerArgs.
 */
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
	 * Mark this process as an autovacuum worker.  Then a session that has
	 * waited for our table for deadlock_timeout cancels us, and DROP DATABASE
	 * ends us.  As in an autovacuum worker, the flag is set before other
	 * processes see us, and it stays set.
	 */
	MyProc->statusFlags |= PROC_IS_AUTOVACUUM;
	BackgroundWorkerInitializeConnectionByOid(args.database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	IvfpqSnapshotsAreOurs();
	timer = RegisterTimeout(USER_TIMEOUT, check_limit);
	before_shmem_exit(release_at_exit, (Datum) 0);

	/* after releasing the slot, look again: VACUUM may have found us busy */
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
