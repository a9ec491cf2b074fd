/*
 * loader.c
 *		A background worker that brings mirrors of a database's indexes to
 *		gpuvecd, and what they lack.
 *
 * It works where there can be no writing, too: on a hot standby.  It ends
 * soon after there is nothing to do, and at once when a session wants the
 * database for itself, because a database with a session in it can be
 * neither dropped nor copied.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "client/mirror/load.h"
#include "client/mirror/wanted.h"
#include "client/state/state.h"
#include "pgcompat.h"

/* How often to look for work, and how long. */
#define LOOK_MS				50
#define IDLE_US				1000000

/* How long it stays when another database waits for a loader. */
#define TURN_US				1000000

/*
 * A mirror rests at least this many times as long as catching up took, within
 * these limits.
 */
#define CATCH_UP_REST		10
#define CATCH_UP_PAUSE_MS	200
#define CATCH_UP_MOST_MS	60000

/* The time before gpuvecd is asked again after it had no memory. */
#define NO_MEMORY_PAUSE_MS	30000

extern PGDLLEXPORT void gpuvec_loader_main(Datum arg);

/* How a loader of a database is started. */
void
IvfpqFillLoader(BackgroundWorker *worker, Oid database, int slot)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_ConsistentState;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "gpuvec",
			sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, "gpuvec_loader_main",
			sizeof(worker->bgw_function_name));
	snprintf(worker->bgw_name, BGW_MAXLEN, "gpuvec loader of database %u",
			 database);
	strlcpy(worker->bgw_type, "gpuvec loader", BGW_MAXLEN);
	worker->bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker->bgw_extra, &database, sizeof(Oid));
	worker->bgw_notify_pid = MyProcPid;
}

/* Load, and let an error be a result. */
static IvfpqLoadResult
load_safely(IvfpqLoad *load, bool whole)
{
	volatile IvfpqLoadResult result = IVFPQ_LOAD_FAILED;

	PG_TRY();
	{
		result = IvfpqLoadMirror(load, whole);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(load->context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		strlcpy(load->error, error->message, sizeof(load->error));
		/* it may be cut in a character, and is read in other databases, too */
		for (char *c = load->error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	/* gpuvecd throws an unfinished mirror away with the connection */
	if (result != IVFPQ_LOAD_DONE)
		IvfpqDisconnect();
	return result;
}

static void
log_done(const IvfpqLoad *load, int64 us)
{
	ereport(load->fresh ? LOG : DEBUG1,
			(errmsg("gpuvec: %s index \"%s\": %lld copies in %d lists, %.0f ms",
					load->fresh ? "mirrored" : "caught up with", load->name,
					(long long) load->postings, load->meta.nlists,
					us / 1000.0)));
}

/* Have it tried again, not before so long; once told, it is not told again. */
static void
note_failed(const IvfpqLoad *load, int pause_ms)
{
	if (IvfpqMirrorRequestFailed(&load->key, load->error, pause_ms))
		ereport(LOG,
				(errmsg("gpuvec: could not mirror index %u: %s",
						load->key.index, load->error)));
}

/* Tell everyone what became of it. */
static void
report(IvfpqLoad *load, IvfpqLoadResult result, int64 us)
{
	int64		rest = CATCH_UP_REST * us / 1000;

	switch (result)
	{
		case IVFPQ_LOAD_DONE:
			IvfpqMirrorRequestDone(&load->key, load->postings,
								   (int) Min(Max(rest, CATCH_UP_PAUSE_MS),
											 CATCH_UP_MOST_MS));
			log_done(load, us);
			break;
		case IVFPQ_LOAD_GONE:
			IvfpqMirrorRequestForget(&load->key);
			break;
		case IVFPQ_LOAD_ABSENT:
			IvfpqMirrorRequestEvicted(&load->key);
			break;
		case IVFPQ_LOAD_LOCKED:
			if (!IvfpqMirrorRequestPutBack(&load->key))
				note_failed(load, 0);
			break;
		case IVFPQ_LOAD_NO_MEMORY:
			note_failed(load, NO_MEMORY_PAUSE_MS);
			break;
		case IVFPQ_LOAD_YIELD:
		case IVFPQ_LOAD_FAILED:
			note_failed(load, 0);
			break;
	}
}

/* Serve one request; false when the loader is to end. */
static bool
serve(const IvfpqMirrorRequest *request)
{
	IvfpqLoad	load = {.key = request->key};
	bool		whole = request->state != IVFPQ_REQUEST_READY;
	int64		begun = IvfpqNow();
	IvfpqLoadResult result;

	load.context = AllocSetContextCreate(TopMemoryContext, "gpuvec load",
										 ALLOCSET_DEFAULT_SIZES);
	pgstat_report_activity(STATE_RUNNING, whole ? "gpuvec: loading a mirror" :
						   "gpuvec: catching up with an index");
	SetCurrentStatementStartTimestamp();
	result = load_safely(&load, whole);
	IvfpqRingClose(&load.ring);
	report(&load, result, IvfpqNow() - begun);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(load.context);
	return result != IVFPQ_LOAD_YIELD;
}

/* Wait a moment; false when a session wants the database for itself. */
static bool
wait_a_moment(void)
{
	bool		alone;

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 LOOK_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	StartTransactionCommand();
	alone = IvfpqDatabaseIsFree();
	CommitTransactionCommand();
	return alone;
}

static void
release_all(int code, Datum arg)
{
	LWLockReleaseAll();
	IvfpqMirrorRequestRelease("the loader was ended");
}

/* Entry of the worker.  arg: its slot; bgw_extra: OID of its database. */
void
gpuvec_loader_main(Datum arg)
{
	int			slot = DatumGetInt32(arg);
	Oid			database;
	int64		begun;
	int64		last;

	memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof(Oid));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	IvfpqSetNoTransactionTimeout();

	/* its sessions go on where no new ones are allowed */
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->loader_connected[slot] = true;
	LWLockRelease(ivfpq_shared->lock);
	before_shmem_exit(release_all, (Datum) 0);

	begun = last = IvfpqNow();
	while (IvfpqNow() - last < IDLE_US)
	{
		IvfpqMirrorRequest request;

		CHECK_FOR_INTERRUPTS();
		if (IvfpqMirrorRequestTake(database, &request))
		{
			if (!serve(&request))
				break;
			last = IvfpqNow();
		}
		else if (!wait_a_moment())
			break;
		if (IvfpqNow() - begun > TURN_US &&
			pg_atomic_read_u32(&ivfpq_shared->loaders_awaited) != 0)
			break;
	}
	IvfpqDisconnect();
}
