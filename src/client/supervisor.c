/*
 * supervisor.c
 *		The supervisor starts loaders where mirrors are requested: one for a
 *		database, and not too many.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "client/supervisor.h"
#include "pgcompat.h"

/* A database's loaders start so far apart. */
#define PAUSE_US			200000

/* When no background worker is free. */
#define RETRY_US			5000000

typedef struct Slot
{
	Oid			database;		/* of the last one */
	int64		launched;		/* when that was */
	BackgroundWorkerHandle *handle; /* NULL: it does not run */
} Slot;

static Slot slots[IVFPQ_MAX_LOADERS];

/* Frees the slots of loaders that have ended; true if there were any. */
static bool
reap(void)
{
	bool		any = false;

	for (int i = 0; i < IVFPQ_MAX_LOADERS; i++)
	{
		bool		connected;
		pid_t		pid;

		if (slots[i].handle == NULL ||
			GetBackgroundWorkerPid(slots[i].handle, &pid) != BGWH_STOPPED)
			continue;
		pfree(slots[i].handle);
		slots[i].handle = NULL;
		any = true;
		LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
		connected = ivfpq_shared->loader_connected[i];
		LWLockRelease(ivfpq_shared->lock);
		if (!connected)
		{
			/*
			 * dropped, most likely; sessions that need a mirror request it
			 * again
			 */
			ereport(LOG,
					(errmsg("gpuvec loader found no way into database %u",
							slots[i].database)));
			IvfpqMirrorRequestForgetDatabase(slots[i].database);
		}
	}
	return any;
}

/*
 * The slot to start a loader of the database in, or NULL.  *when: try again
 * then, if that is earlier.  *none_free: it has to wait for another
 * database's.
 */
static Slot *
choose_slot(Oid database, int64 now, int64 *when, bool *none_free)
{
	Slot	   *free_slot = NULL;

	for (int i = 0; i < IVFPQ_MAX_LOADERS; i++)
	{
		Slot	   *slot = &slots[i];

		if (slot->database == database)
		{
			if (slot->handle != NULL)
				return NULL;
			if (now < slot->launched + PAUSE_US)
			{
				*when = Min(*when, slot->launched + PAUSE_US);
				return NULL;
			}
		}
		if (slot->handle == NULL)
			free_slot = slot;
	}
	if (free_slot == NULL)
		*none_free = true;
	return free_slot;
}

/* Start a loader; false when no background worker is free. */
static bool
launch(Slot *slot, Oid database, int64 now)
{
	static bool complained = false;
	BackgroundWorker worker;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	bool		registered;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->loader_connected[slot - slots] = false;
	LWLockRelease(ivfpq_shared->lock);
	IvfpqFillLoader(&worker, database, (int) (slot - slots));
	registered = RegisterDynamicBackgroundWorker(&worker, &slot->handle);
	MemoryContextSwitchTo(old);
	if (!registered)
	{
		slot->handle = NULL;
		if (!complained)
			ereport(LOG,
					(errmsg("no background worker is free to load gpuvec mirrors"),
					 errhint("Set max_worker_processes higher.")));
		complained = true;
		return false;
	}
	complained = false;
	slot->database = database;
	slot->launched = now;
	return true;
}

/*
 * Start the loaders that are needed.  Returns when to look again, unless
 * something is asked for, or a loader ends, before.  *ended: one has just
 * ended.
 */
static int64
launch_loaders(bool *ended)
{
	Oid			databases[IVFPQ_NREQUESTS];
	int64		now = IvfpqNow();
	int64		when = PG_INT64_MAX;
	TimestampTz time = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	bool		none_free = false;
	int			n;

	*ended = reap();
	n = IvfpqMirrorRequestsDue(databases, time, &next);
	if (next != DT_NOEND)
		when = now + (next - time);
	for (int i = 0; i < n; i++)
	{
		Slot	   *slot = choose_slot(databases[i], now, &when, &none_free);

		if (slot != NULL && !launch(slot, databases[i], now))
		{
			when = Min(when, now + RETRY_US);
			break;
		}
	}
	pg_atomic_write_u32(&ivfpq_shared->loaders_awaited, none_free);
	return when;
}

/* ----
 * The supervisor has gpuvecd let go of mirrors that nobody can search any
 * more.
 */

/* A mirror's index has gone, and its file with it. */
static bool
is_orphan(const GvMirrorKey *key)
{
	IvfpqStorage storage = {key->database, key->tablespace, key->relation};
	char		path[MAXPGPATH];
	struct stat st;

	IvfpqStoragePath(storage, path, sizeof(path));
	if (stat(path, &st) == 0)
		return st.st_size == 0;
	return errno == ENOENT || errno == ENOTDIR;
}

/* Let go of mirrors whose indexes were dropped, or have new files. */
static void
drop_orphans(const GvMirrorStatus *mirrors, int nmirrors,
				 int64 timeout_us)
{
	for (int i = 0; i < nmirrors; i++)
	{
		GvKeyRequest request = {mirrors[i].key};
		IvfpqChannel *channel;

		if (!is_orphan(&mirrors[i].key))
			continue;
		channel = IvfpqConnect(GV_ROLE_SUPERVISOR, IvfpqNow() + timeout_us);
		if (IvfpqChannelExchange(channel, GV_MSG_DROP, &request,
								 sizeof(request), NULL, 0, 0) != IVFPQ_SERVED)
			return;
		IvfpqMirrorRequestForget(&mirrors[i].key);
	}
}

/* ----
 * The background worker that runs gpuvecd: starts it, asks it again and
 * again whether it is well, restarts it when it is not, and launches
 * loaders.  One that others start it only asks.
 *
 * It is in no database and reads no page.  It never waits for gpuvecd longer
 * than PING_US at a time.  An error here ends it, and the gpuvecd that it
 * started with it; the postmaster starts it again.
 */

#define SECOND				INT64CONST(1000000)

/* How long it may take to answer the supervisor. */
#define PING_US				SECOND

/* How often it is asked: when all is well, when not, when it just started. */
#define PING_WELL_US		(10 * SECOND)
#define PING_ILL_US			SECOND
#define PING_NEW_US			(SECOND / 10)
#define NEW_US				(10 * SECOND)

/* After so long without an answer it is replaced; at its start, so long. */
#define REPLACE_US			(30 * SECOND)
#define REPLACE_NEW_US		(120 * SECOND)

/* A shorter run, or one that never got up, failed: the next start waits. */
#define QUICK_US			(10 * SECOND)
#define MAX_BACKOFF			6	/* 2^6 s, or rather: */
#define MAX_BACKOFF_US		(60 * SECOND)

/*
 * It answers the supervisor, but not sessions: after so many rounds, each
 * twice as long as the last, in which it ended no batch, it is replaced.
 */
#define MAX_RELAPSES		5

/* Exit codes of gpuvecd. */
#define EXIT_NO_DEVICE		3

extern PGDLLEXPORT void gpuvec_supervisor_main(Datum arg);

typedef struct Supervisor
{
	IvfpqServerInfo info;
	bool		give_up;		/* there is no device: do not start it again */
	int64		start_at;		/* when it is to be started */
	int64		started;		/* when it was; of an external one since when
								 * it is looked for */
	int			failures;		/* quick ends in a row */
	int64		ping_at;		/* when to ask */
	int64		answered;		/* when it answered last, or was started */
	bool		suspended;		/* sessions' time-outs are being looked into */
	int			relapses;		/* time-outs soon after all seemed well */
	int64		resumed;		/* when all seemed well */
	bool		doubted;		/* a session waited long, and in vain */
	int64		batches;		/* it had ended when it told last */
	int64		batches_then;	/* it had ended at the first time-out */
	char		told[200];		/* the log: why an external one is away */
	MemoryContext scratch;		/* reset after every round */
} Supervisor;

static Supervisor self;

static void
set_state(IvfpqServerState state)
{
	pg_atomic_write_u32(&ivfpq_shared->state, state);
}

/* ---- start and end */

/* It has ended, and what was known of it is no longer true. */
static void
forget_server(void)
{
	set_state(IVFPQ_STATE_DOWN);
	pg_atomic_write_u64(&ivfpq_shared->instance, 0);
	pg_atomic_write_u32(&ivfpq_shared->suspended, 0);
	self.suspended = false;
	self.doubted = false;
	self.info.pid = 0;
	self.info.used = 0;
	IvfpqSharedSetServer(&self.info);
	IvfpqDisconnect();
}

static void
start_server(int64 now)
{
	if (!IvfpqChildStart())
	{
		set_state(IVFPQ_STATE_DOWN);
		self.start_at = now + MAX_BACKOFF_US;
		return;
	}
	if (self.info.started != 0)
		self.info.restarts++;
	self.info.started = GetCurrentTimestamp();
	self.info.pid = IvfpqChildPid();
	IvfpqSharedSetServer(&self.info);
	set_state(IVFPQ_STATE_STARTING);
	self.started = self.answered = now;
	self.ping_at = now + PING_NEW_US;
	self.relapses = 0;
	self.batches = 0;
	ereport(LOG, (errmsg("started gpuvecd, PID %d", self.info.pid)));
}

/*
 * An external one is not to be reached, or its connection has ended: it is
 * asked again and again, at first very often, since it may be just starting.
 */
static void
lose_server(const char *problem, bool is_others)
{
	int64		now = IvfpqNow();
	bool		was_up = IvfpqSharedState() == IVFPQ_STATE_UP;

	/* while it restarts it is away for a moment */
	if (was_up ||
		(now - self.started > SECOND && strcmp(self.told, problem) != 0))
	{
		strlcpy(self.told, problem, sizeof(self.told));
		ereport(LOG,
				(errmsg("%s gpuvecd in \"%s\": %s",
						was_up ? "lost" : "cannot reach",
						ivfpq_server_directory, problem),
				 is_others ?
				 errhint("Each cluster needs a gpuvecd and a folder of its own.") :
				 0));
	}
	if (was_up)
		self.started = now;
	strlcpy(self.info.problem, problem, sizeof(self.info.problem));
	self.info.is_others = is_others;
	forget_server();
	self.answered = now;
	self.ping_at = now + (now < self.started + NEW_US ? PING_NEW_US :
						  PING_ILL_US);
}

/* Did one that is gone have a device? */
static bool
has_seen_device(void)
{
	return strcmp(self.info.engine, "cuda") == 0;
}

/*
 * It has ended: when is it to be started again?  Where a device was seen it
 * may come back, even if there seems to be none now.
 */
static void
note_end(int status)
{
	int64		now = IvfpqNow();
	int64		pause = 0;
	bool		was_up = IvfpqSharedState() == IVFPQ_STATE_UP;

	forget_server();
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_DEVICE)
	{
		pg_atomic_write_u32(&ivfpq_shared->has_device, 0);
		if (ivfpq_server == IVFPQ_SERVER_AUTO && !has_seen_device())
		{
			set_state(IVFPQ_STATE_NO_DEVICE);
			self.give_up = true;
			ereport(LOG,
					(errmsg("gpuvec found no card, and searches without one"),
					 errhint("With gpuvec.server = off nobody looks for one.")));
			return;
		}
	}
	IvfpqChildLogEnd(status);
	if (!was_up || now - self.started < QUICK_US)
	{
		pause = Min(SECOND << Min(self.failures, MAX_BACKOFF),
					MAX_BACKOFF_US);
		self.failures++;
	}
	else
		self.failures = 0;
	self.start_at = now + pause;
}

/* It is of no use any more: end it, unless that is up to others. */
static void
replace_server(const char *why)
{
	int			status = 0;

	if (IvfpqServerIsExternal())
		return;
	ereport(LOG, (errmsg("gpuvecd is replaced: %s", why)));
	IvfpqChildStop(&status);
	note_end(status);
}

/* ---- is it well? */

/* It answers, and is another than before. */
static void
meet_server(const GvWelcome *welcome)
{
	if (IvfpqServerIsExternal() && self.info.instance != welcome->instance)
	{
		if (self.info.instance != 0)
			self.info.restarts++;
		self.info.started = GetCurrentTimestamp();
		self.batches = 0;
		self.relapses = 0;
	}
	self.info.instance = welcome->instance;
	self.info.problem[0] = self.told[0] = '\0';
	self.info.pid = welcome->pid;
	strlcpy(self.info.engine, welcome->engine, sizeof(self.info.engine));
	pg_atomic_write_u32(&ivfpq_shared->has_device, has_seen_device());
	pg_atomic_write_u64(&ivfpq_shared->instance, welcome->instance);
	IvfpqMirrorRequestsRestart();
	set_state(IVFPQ_STATE_UP);
	ereport(LOG,
			(errmsg("gpuvecd is up, engine \"%s\"", self.info.engine)));
}

/* Ask for everything. */
static IvfpqServed
ask_status(IvfpqChannel *channel, GvStatusReply *told)
{
	GvStatusReply status;
	GvMirrorStatus *mirrors;
	TimestampTz then = GetCurrentTimestamp();
	IvfpqServed served = IvfpqAskStatus(channel, &status, &mirrors);

	if (served != IVFPQ_SERVED)
		return served;
	*told = status;
	strlcpy(self.info.device, status.device, sizeof(self.info.device));
	self.info.memory = status.memory;
	self.info.most = status.most;
	self.info.used = status.used;
	if (pg_atomic_read_u64(&ivfpq_shared->instance) != status.instance)
		meet_server(&channel->welcome);
	IvfpqSharedSetServer(&self.info);
	IvfpqMirrorRequestsPrune(mirrors, status.nmirrors, then);
	drop_orphans(mirrors, status.nmirrors, PING_US);
	return IVFPQ_SERVED;
}

/* Sessions are not to wait for it, for this reason. */
static void
suspend(const char *why)
{
	if (self.suspended)
		return;
	self.suspended = true;
	self.relapses = 0;
	self.batches_then = self.batches;
	pg_atomic_write_u32(&ivfpq_shared->suspended, 1);
	ereport(LOG, (errmsg("gpuvecd does not answer: %s", why)));
}

/*
 * It answers us, from a thread of its own; but a session has waited in vain.
 * Is it all the time at the same batches?  Then it is as good as silent until
 * they are done.  It ends by itself if its device never ends them.
 */
static bool
is_stuck(const GvStatusReply *status, int64 now)
{
	bool		waits = (self.doubted || self.suspended) &&
	status->oldest_ms >= ivfpq_server_timeout;
	bool		moves = status->batches != self.batches;

	self.batches = status->batches;
	if (!waits)
		return false;
	self.answered = now;
	self.ping_at = now + PING_ILL_US;
	if (!moves)
		suspend("it is at the same searches all the time");
	return true;
}

/* It answered. */
static void
note_answer(int64 now)
{
	self.answered = now;
	self.ping_at = now + PING_WELL_US;
	self.doubted = false;
	if (!self.suspended)
		return;
	self.suspended = false;
	self.resumed = now;
	pg_atomic_write_u32(&ivfpq_shared->suspended, 0);
	if (self.relapses == 0)
		ereport(LOG, (errmsg("gpuvecd answers again")));
}

/* It is of another version than we. */
static void
note_mismatch(int64 now)
{
	if (IvfpqSharedState() != IVFPQ_STATE_MISMATCH)
		ereport(LOG,
				(errmsg("gpuvecd speaks another version of the protocol"),
				 IvfpqServerIsExternal() ?
				 errhint("It has to be of the version of gpuvec that the server has loaded.") :
				 errhint("Restart the server after an upgrade of gpuvec.")));
	self.info.problem[0] = '\0';
	if (IvfpqServerIsExternal())
		forget_server();
	set_state(IVFPQ_STATE_MISMATCH);
	self.answered = now;
	self.ping_at = now + (IvfpqServerIsExternal() ? PING_ILL_US :
						  PING_WELL_US);
}

/* It did not. */
static void
note_silence(const IvfpqChannel *channel, int64 now)
{
	bool		is_new = IvfpqSharedState() != IVFPQ_STATE_UP;

	if (IvfpqServerIsExternal() &&
		(is_new || channel->served != IVFPQ_TIMED_OUT))
	{
		lose_server(channel->reason,
					channel->refusal == GV_REFUSED_INCARNATION);
		return;
	}
	self.ping_at = now + (is_new && now < self.started + NEW_US ?
						  PING_NEW_US : PING_ILL_US);
	if (!is_new)
		suspend(channel->reason);
	if (now - self.answered > (is_new ? REPLACE_NEW_US : REPLACE_US))
		replace_server("it does not answer");
}

/* Ask whether it is well. */
static void
ping_server(void)
{
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_SUPERVISOR,
										 IvfpqNow() + PING_US);
	GvStatusReply status;
	IvfpqServed served = ask_status(channel, &status);

	if (ShutdownRequestPending)
		return;
	if (served == IVFPQ_SERVED)
	{
		if (!is_stuck(&status, IvfpqNow()))
			note_answer(IvfpqNow());
		/* what was said after that may have ended the connection */
		if (IvfpqServerIsExternal() && IvfpqOwnSocket() == PGINVALID_SOCKET)
			self.ping_at = IvfpqNow();
	}
	else if (channel->refusal == GV_REFUSED_VERSION)
		note_mismatch(IvfpqNow());
	else if (channel->refusal == GV_REFUSED_FULL &&
			 (!IvfpqServerIsExternal() ||
			  IvfpqSharedState() == IVFPQ_STATE_UP))
	{
		/* it lives; what it is at is not known */
		note_answer(IvfpqNow());
		self.ping_at = self.answered + PING_ILL_US;
		self.batches_then = -1;
	}
	else
		note_silence(channel, IvfpqNow());
}

/*
 * A session waited in vain: see at once what is the matter.  When a second one
 * did, all search themselves from then on.  The ping that ends this comes at
 * once; but when it has ended and the same happens again, because it answers
 * us and not them, only after a while.
 */
static void
heed_silence(int64 now)
{
	bool		doubted = pg_atomic_exchange_u32(&ivfpq_shared->doubted, 0) != 0;

	if (self.suspended)
		return;
	if (doubted)
	{
		self.doubted = true;
		self.ping_at = now;
	}
	if (pg_atomic_read_u32(&ivfpq_shared->suspended) == 0)
		return;
	self.suspended = true;
	if (self.resumed != 0 && now - self.resumed < PING_WELL_US)
		self.relapses++;
	else
		self.relapses = 0;
	if (self.relapses == 0)
	{
		self.batches_then = self.batches;
		ereport(LOG,
				(errmsg("gpuvecd did not answer sessions in time")));
	}
	if (self.relapses >= MAX_RELAPSES && self.batches == self.batches_then &&
		!IvfpqServerIsExternal())
		replace_server("it answers no session");
	else
		self.ping_at = self.relapses == 0 ? now :
			now + (SECOND << Min(self.relapses - 1, MAX_RELAPSES));
}

/* ---- the worker */

/* The supervisor ends, by whatever way runs callbacks. */
static void
end_server(int code, Datum arg)
{
	int			status = 0;

	LWLockReleaseAll();
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->supervisor = NULL;
	LWLockRelease(ivfpq_shared->lock);
	set_state(IVFPQ_STATE_DOWN);
	pg_atomic_write_u64(&ivfpq_shared->instance, 0);
	IvfpqChildStop(&status);
}

/* SIGQUIT: an immediate shutdown, or another process crashed. */
static void
crash_exit(SIGNAL_ARGS)
{
	IvfpqChildTerminate();
	_exit(2);
}

static void
become_supervisor(void)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->supervisor = MyLatch;
	self.info = ivfpq_shared->server;
	LWLockRelease(ivfpq_shared->lock);
	self.started = IvfpqNow();
	before_shmem_exit(end_server, (Datum) 0);
	self.scratch = AllocSetContextCreate(TopMemoryContext, "gpuvec supervisor",
										 ALLOCSET_DEFAULT_SIZES);
}

/* The process is there, if that is ours to see to. */
static void
run_server(int64 now)
{
	int			status;

	if (IvfpqServerIsExternal())
		return;
	if (IvfpqChildEnded(&status))
		note_end(status);
	if (IvfpqChildPid() == 0 && !self.give_up && now >= self.start_at)
		start_server(now);
}

/* Is there one that can be asked, as far as we know? */
static bool
has_server(void)
{
	return IvfpqServerIsExternal() || IvfpqChildPid() != 0;
}

/* Everything that is due; returns when there is more. */
static int64
do_what_is_due(void)
{
	int64		now = IvfpqNow();
	int64		next = now + PING_WELL_US;
	bool		ended;

	run_server(now);
	if (has_server())
	{
		heed_silence(now);
		if (now >= self.ping_at)
		{
			ping_server();
			/* what woke us in the midst of that is still to be looked at */
			SetLatch(MyLatch);
		}
	}
	if (IvfpqSharedState() == IVFPQ_STATE_UP && !self.suspended)
	{
		next = Min(next, launch_loaders(&ended));

		/*
		 * Look at what there is now and what is not needed any more; not
		 * quite yet, because it may have ended for a DROP DATABASE, and the
		 * files are still there.
		 */
		if (ended)
			self.ping_at = Min(self.ping_at, now + SECOND);
	}
	if (IvfpqServerIsExternal())
		next = Min(next, self.ping_at);
	else if (IvfpqChildPid() != 0)
		next = Min(next, IvfpqChildLog() < 0 ? now + SECOND : self.ping_at);
	else if (!self.give_up)
		next = Min(next, self.start_at);
	return next;
}

/* Sleep until then, or until something happens. */
static void
sleep_until(int64 when)
{
	int			log = IvfpqServerIsExternal() ? IvfpqOwnSocket() :
	IvfpqChildLog();
	int64		ms = Max((when - IvfpqNow() + 999) / 1000, 0);
	int			events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
	int			happened;

	if (log >= 0)
		events |= WL_SOCKET_READABLE;
	happened = WaitLatchOrSocket(MyLatch, events,
								 log >= 0 ? log : PGINVALID_SOCKET,
								 (long) ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		/* what it could not be started for may be mended */
		self.start_at = 0;
	}
	if (IvfpqServerIsExternal())
	{
		/* between requests it says nothing but that it ends */
		if (happened & WL_SOCKET_READABLE)
			lose_server("the connection ended", false);
		return;
	}
	/* what it prints at its start may mean that it is ready */
	if ((happened & WL_SOCKET_READABLE) && IvfpqChildReadLog() &&
		IvfpqSharedState() == IVFPQ_STATE_STARTING)
		self.ping_at = IvfpqNow();
	/* its end of the pipe closes a moment before it can be waited for */
	if (log >= 0 && IvfpqChildLog() < 0)
		pg_usleep(1000);
}

/* Entry of the supervisor. */
void
gpuvec_supervisor_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGUSR1, procsignal_sigusr1_handler);
	pqsignal(SIGQUIT, crash_exit);
	BackgroundWorkerUnblockSignals();

	become_supervisor();
	while (!ShutdownRequestPending)
	{
		MemoryContext old = MemoryContextSwitchTo(self.scratch);
		int64		when = do_what_is_due();

		MemoryContextSwitchTo(old);
		MemoryContextReset(self.scratch);
		if (!ShutdownRequestPending)
			sleep_until(when);
	}

	/* a status of 0 would mean: never start me again */
	proc_exit(1);
}
