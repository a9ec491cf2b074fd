/*
 * mirrorqueue.c
 *		Mirror requests: the names of mirrors, and the entries that say which
 *		mirrors are requested and loaded.
 *
 * Each mirror that is or was requested has an entry in shared memory.
 * Sessions make requests, loaders take entries and report, and the supervisor
 * looks for entries with work that is due.
 *
 * Every request gets a ticket, a number that grows.  An entry's `asked` is the
 * ticket of its last request.  Requests with tickets up to `done` have been
 * served, and later requests with tickets up to `refused` have failed.  A
 * loader takes an entry, works without the lock, and reports the result.  The
 * entry may be requested again meanwhile.
 *
 * The entry stays after its mirror has become ready, so that the mirror can be
 * loaded again after a restart of gpuvecd, and so that two indexes that do not
 * fit into memory together do not keep evicting each other.
 *
 * Exported functions take ivfpq_shared->lock themselves.  Static functions on
 * entries expect that the caller holds the lock.
 */
#include "postgres.h"

#include "access/relation.h"
#include "client/servershared.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/timestamp.h"

#include "client/mirrorqueue.h"
#include "pgcompat.h"

const IvfpqRowSource *ivfpq_row_source;

/* Pauses after failures: 1 s, 2 s, 4 s, ... */
#define FIRST_PAUSE_MS		1000
#define MAX_PAUSE_MS		(10 * 60 * 1000)

/* Minimum time between a mirror's load and its next load after an eviction. */
#define RELOAD_PAUSE_MS		60000

/* A locked index is tried again every LOCKED_PAUSE_MS, for MAX_LOCKED_MS. */
#define LOCKED_PAUSE_MS		50
#define MAX_LOCKED_MS		10000

/* Interval at which a waiting session checks that gpuvecd still runs. */
#define LOOK_MS				200

/* Time that gpuvecd may take to start. */
#define START_US			INT64CONST(30000000)

GvMirrorKey
IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta)
{
	IvfpqStorage storage = IvfpqStorageOf(index);
	GvMirrorKey key = {storage.database, storage.tablespace, storage.number,
	RelationGetRelid(index), meta->build_id};

	return key;
}

/* Returns whether gpuvecd may have a mirror of the index. */
bool
IvfpqCanMirror(Relation index, const IvfpqMetaData *meta)
{
	return index->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		meta->build_id != 0 && meta->nlists > 0 && !IvfpqIsUncommitted(index);
}

/*
 * Locks a mirror's index without waiting.  Returns false if the lock is not
 * free.  Otherwise sets *index to the open index or, without a lock, to NULL
 * if the index is gone or has another file.
 */
bool
IvfpqMirrorIndexOpen(const GvMirrorKey *key, Relation *index)
{
	IvfpqStorage storage;

	*index = NULL;
	if (!ConditionalLockRelationOid(key->index, AccessShareLock))
		return false;
	*index = try_relation_open(key->index, NoLock);
	if (*index == NULL)
	{
		UnlockRelationOid(key->index, AccessShareLock);
		return true;
	}
	storage = IvfpqStorageOf(*index);
	/* the OID may have been reused for any relation */
	if ((*index)->rd_rel->relkind != RELKIND_INDEX ||
		(*index)->rd_rel->relam != get_index_am_oid("gpuivfpq", true) ||
		storage.database != key->database ||
		storage.tablespace != key->tablespace ||
		storage.number != key->relation)
	{
		relation_close(*index, AccessShareLock);
		*index = NULL;
	}
	return true;
}

/* Returns the form of the keys that postings have in the index's mirror. */
GvKeyForm
IvfpqMirrorKeys(const IvfpqMetaData *meta)
{
	GvKeyForm	form = {0};

	StaticAssertStmt(sizeof(form.kind) == sizeof(meta->key_kinds) &&
					 sizeof(form.width) == sizeof(meta->key_widths),
					 "engine and pages have as many keys");
	memcpy(form.kind, meta->key_kinds, sizeof(form.kind));
	memcpy(form.width, meta->key_widths, sizeof(form.width));
	while (form.kind[form.nkeys] != 0)
		form.nkeys++;
	return form;
}

/* Returns the entry of a key; NULL if there is none. */
static IvfpqMirrorRequest *
find(const GvMirrorKey *key)
{
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (request->state != IVFPQ_REQUEST_FREE &&
			gv_same_key(&request->key, key))
			return request;
	}
	return NULL;
}

/* Returns an entry's eviction priority; 0 means that the entry must stay. */
static int
expendable(const IvfpqMirrorRequest *request)
{
	static const int priorities[] = {
		[IVFPQ_REQUEST_FREE] = 4,
		[IVFPQ_REQUEST_EVICTED] = 3,
		[IVFPQ_REQUEST_FAILED] = 2,
		[IVFPQ_REQUEST_READY] = 1
	};

	if (request->state == IVFPQ_REQUEST_READY &&
		(request->refresh || request->loader != 0))
		return 0;
	return priorities[request->state];
}

/* Adds an entry.  Returns NULL if all existing entries must stay. */
static IvfpqMirrorRequest *
add(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *best = NULL;

	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (expendable(request) > (best ? expendable(best) : 0))
			best = request;
	}
	if (best != NULL)
	{
		memset(best, 0, sizeof(*best));
		best->key = *key;
		best->retry_at = GetCurrentTimestamp();
	}
	return best;
}

/*
 * Queues the mirror for loading.  After a failure, does nothing until
 * retry_at, unless `now` is set.  Returns whether there is new work.
 */
static bool
ask_load(IvfpqMirrorRequest *request, bool now)
{
	TimestampTz time = GetCurrentTimestamp();
	bool		news = request->state != IVFPQ_REQUEST_WAITING || now;

	if (request->loader != 0)
	{
		request->refresh = true;
		return false;
	}
	if (request->state == IVFPQ_REQUEST_FAILED && request->retry_at > time &&
		!now)
		return false;
	if (request->state == IVFPQ_REQUEST_READY ||
		request->state == IVFPQ_REQUEST_EVICTED)
		request->retry_at = TimestampTzPlusMilliseconds(request->ready_at,
														RELOAD_PAUSE_MS);
	if (now)
		request->retry_at = Min(request->retry_at, time);
	request->state = IVFPQ_REQUEST_WAITING;
	return news;
}

/* Notes that a mirror is outdated.  Returns whether there is new work. */
static bool
ask_catch_up(IvfpqMirrorRequest *request)
{
	bool		news = !request->refresh && request->loader == 0;

	if (request->state == IVFPQ_REQUEST_FAILED)
		return ask_load(request, false);
	if (request->state == IVFPQ_REQUEST_FREE ||
		request->state == IVFPQ_REQUEST_EVICTED)
		request->state = IVFPQ_REQUEST_READY;
	request->refresh = true;
	return news && request->state == IVFPQ_REQUEST_READY;
}

/*
 * Requests that a mirror is loaded, if `load` is set, or else that an existing
 * mirror catches up.  If `now` is set, the mirror is loaded at once, even
 * shortly after a failure or an eviction.  Returns the ticket, or 0 if no slot
 * is free.
 */
uint64
IvfpqRequestMirror(const GvMirrorKey *key, bool load, bool now)
{
	IvfpqMirrorRequest *request;
	uint64		ticket = 0;
	bool		wake = false;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find(key);
	if (request == NULL)
		request = add(key);
	else if (request->loader == 0)
		request->key.index = key->index;	/* ALTER TABLE may change it */
	if (request != NULL)
	{
		ticket = ++ivfpq_shared->tickets;
		request->asked = ticket;
		wake = load ? ask_load(request, now) : ask_catch_up(request);
	}
	LWLockRelease(ivfpq_shared->lock);
	if (wake)
		IvfpqWakeSupervisor();
	return ticket;
}

/*
 * Notes rows tids [n], n <= IVFPQ_NLACKING, that a mirror lacks, and requests
 * that the mirror catches up.  If there is no space for them, forgets all rows
 * noted before: sessions will note rows that are still lacking again.
 */
void
IvfpqMirrorNoteLacking(const GvMirrorKey *key, const ItemPointerData *tids, int n)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	if (ivfpq_shared->nlacking + n > IVFPQ_NLACKING)
		ivfpq_shared->nlacking = 0;
	for (int i = 0; i < n; i++)
		ivfpq_shared->lacking[ivfpq_shared->nlacking++] =
			(IvfpqLackingRow)
	{
		*key, tids[i]
	};
	LWLockRelease(ivfpq_shared->lock);
	(void) IvfpqRequestMirror(key, false, false);
}

/* Moves the rows that were noted for a mirror to tids [IVFPQ_NLACKING]. */
int
IvfpqMirrorTakeLacking(const GvMirrorKey *key, ItemPointerData *tids)
{
	int			left = 0;
	int			n = 0;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ivfpq_shared->nlacking; i++)
	{
		IvfpqLackingRow row = ivfpq_shared->lacking[i];

		if (gv_same_key(&row.key, key))
			tids[n++] = row.tid;
		else
			ivfpq_shared->lacking[left++] = row;
	}
	ivfpq_shared->nlacking = left;
	LWLockRelease(ivfpq_shared->lock);
	return n;
}

/* Copies the entry of a key.  Returns false if there is none. */
bool
IvfpqMirrorRequestGet(const GvMirrorKey *key, IvfpqMirrorRequest *request)
{
	IvfpqMirrorRequest *found;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	found = find(key);
	if (found)
		*request = *found;
	LWLockRelease(ivfpq_shared->lock);
	return found != NULL;
}

/*
 * Copies all entries to requests [IVFPQ_NREQUESTS] and returns their number.
 */
int
IvfpqMirrorRequestsCopy(IvfpqMirrorRequest *requests)
{
	int			n = 0;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
		if (ivfpq_shared->requests[i].state != IVFPQ_REQUEST_FREE)
			requests[n++] = ivfpq_shared->requests[i];
	LWLockRelease(ivfpq_shared->lock);
	return n;
}

/* Returns whether a loader has something to do for the entry, now or later. */
static bool
has_work(const IvfpqMirrorRequest *request)
{
	if (request->loader != 0)
		return false;
	return request->state == IVFPQ_REQUEST_WAITING ||
		(request->state == IVFPQ_REQUEST_READY && request->refresh);
}

/*
 * Returns the database, except those in busy [IVFPQ_MAX_LOADERS], whose work
 * has been due longest.  If there is none, returns InvalidOid, and lowers
 * *next to the time at which work becomes due, if that is earlier.
 */
Oid
IvfpqMirrorRequestsDue(const Oid *busy, TimestampTz *next)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz since = DT_NOEND;
	Oid			database = InvalidOid;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		const IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];
		bool		is_busy = false;

		for (int j = 0; j < IVFPQ_MAX_LOADERS; j++)
			is_busy |= busy[j] == request->key.database;
		if (!has_work(request))
			continue;
		if (request->retry_at > now)
			*next = Min(*next, request->retry_at);
		else if (!is_busy && request->retry_at < since)
		{
			database = request->key.database;
			since = request->retry_at;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
	return database;
}

/*
 * Takes for this loader the entry of its database that has been due longest,
 * and copies the entry.  Returns false if no entry is due.
 */
bool
IvfpqMirrorRequestTake(Oid database, IvfpqMirrorRequest *request)
{
	TimestampTz now = GetCurrentTimestamp();
	IvfpqMirrorRequest *first = NULL;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *entry = &ivfpq_shared->requests[i];

		if (entry->key.database == database && has_work(entry) &&
			entry->retry_at <= now &&
			(first == NULL || entry->retry_at < first->retry_at))
			first = entry;
	}
	if (first != NULL)
	{
		*request = *first;
		first->loader = MyProcPid;
		first->taken = first->asked;
		first->refresh = false;
		if (first->state != IVFPQ_REQUEST_READY)
			first->state = IVFPQ_REQUEST_LOADING;
	}
	LWLockRelease(ivfpq_shared->lock);
	return first != NULL;
}

/* Releases the lock, and wakes the sessions that wait for mirrors. */
static void
unlock_and_wake(void)
{
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* Marks the entry as failed and sets its retry time. */
static void
set_failed(IvfpqMirrorRequest *request, const char *error, int pause_ms)
{
	int64		pause = Min((int64) FIRST_PAUSE_MS << Min(request->failures, 20),
							MAX_PAUSE_MS);

	request->state = IVFPQ_REQUEST_FAILED;
	request->loader = 0;
	request->refresh = false;
	request->refused = request->asked;
	request->failures++;
	request->locked_since = 0;
	request->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													Max(pause, pause_ms));
	strlcpy(request->error, error, sizeof(request->error));
}

/*
 * Records how this loader's work on a mirror has ended, and wakes the sessions
 * that wait for the mirror.  No loader takes the mirror again before pause_ms
 * have passed, and after several failures before an even longer pause.
 * Returns whether `error` should be logged: the loader has failed, and the
 * error differs from the last one.
 *
 * If the index is locked, other entries have their turn before this entry is
 * tried again.  If it has been locked for too long, the loader has failed.
 */
bool
IvfpqMirrorRequestEnd(const GvMirrorKey *key, IvfpqLoadResult result,
					  int64 postings, const char *error, int pause_ms)
{
	TimestampTz now = GetCurrentTimestamp();
	IvfpqMirrorRequest none = {0};
	IvfpqMirrorRequest *request;
	bool		news = false;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find(key);
	/* the entry may have been removed meanwhile */
	if (request == NULL || request->loader != MyProcPid)
		request = &none;
	request->loader = 0;
	if (result == IVFPQ_LOAD_LOCKED)
	{
		if (request->locked_since == 0)
			request->locked_since = now;
		if (now >= TimestampTzPlusMilliseconds(request->locked_since,
											   MAX_LOCKED_MS))
			result = IVFPQ_LOAD_FAILED;
	}
	switch (result)
	{
		case IVFPQ_LOAD_DONE:
			if (request->state != IVFPQ_REQUEST_READY)
				request->ready_at = now;
			request->state = IVFPQ_REQUEST_READY;
			request->done = request->taken;
			request->failures = 0;
			request->locked_since = 0;
			request->retry_at = TimestampTzPlusMilliseconds(now, pause_ms);
			request->postings = postings;
			request->error[0] = '\0';
			pg_atomic_fetch_add_u64(&ivfpq_shared->epoch, 1);
			break;
		case IVFPQ_LOAD_GONE:
			request->state = IVFPQ_REQUEST_FREE;
			break;
		case IVFPQ_LOAD_ABSENT:
			request->state = IVFPQ_REQUEST_EVICTED;
			request->refresh = false;
			request->refused = request->asked;
			strlcpy(request->error, "gpuvecd evicted the mirror",
					sizeof(request->error));
			break;
		case IVFPQ_LOAD_LOCKED:
			request->retry_at = TimestampTzPlusMilliseconds(now,
															LOCKED_PAUSE_MS);
			if (request->state == IVFPQ_REQUEST_READY)
				request->refresh = true;
			else
				request->state = IVFPQ_REQUEST_WAITING;
			break;
		default:
			news = request != &none &&
				strncmp(request->error, error, sizeof(request->error) - 1) != 0;
			set_failed(request, error, pause_ms);
			break;
	}
	unlock_and_wake();
	return news;
}

/*
 * Finds an entry with the key's index OID, but for a file that the index had
 * before.  Returns false if there is none.
 */
bool
IvfpqMirrorRequestOlder(const GvMirrorKey *key, GvMirrorKey *older)
{
	bool		found = false;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NREQUESTS && !found; i++)
	{
		const IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		found = request->state != IVFPQ_REQUEST_FREE &&
			request->key.database == key->database &&
			request->key.index == key->index &&
			!gv_same_key(&request->key, key);
		if (found)
			*older = request->key;
	}
	LWLockRelease(ivfpq_shared->lock);
	return found;
}

/* Removes the entry of a mirror whose index, or its file, is gone. */
void
IvfpqMirrorRequestForget(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *request;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find(key);
	if (request)
		request->state = IVFPQ_REQUEST_FREE;
	unlock_and_wake();
}

/* Removes all entries of a database to which no loader can connect. */
void
IvfpqMirrorRequestForgetDatabase(Oid database)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
		if (ivfpq_shared->requests[i].key.database == database)
			ivfpq_shared->requests[i].state = IVFPQ_REQUEST_FREE;
	unlock_and_wake();
}

/* When a loader ends, marks the entries that it has taken as failed. */
void
IvfpqMirrorRequestRelease(const char *error)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (request->state != IVFPQ_REQUEST_FREE &&
			request->loader == MyProcPid)
			set_failed(request, error, 0);
	}
	unlock_and_wake();
}

/*
 * Queues for loading, without a pause, all mirrors that were ready or are
 * waiting, because a new gpuvecd has no mirrors.
 */
void
IvfpqMirrorRequestsRestart(void)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (request->state == IVFPQ_REQUEST_READY ||
			(request->state == IVFPQ_REQUEST_FAILED && request->ready_at != 0))
			request->state = IVFPQ_REQUEST_WAITING;
		if (request->state == IVFPQ_REQUEST_WAITING)
			request->retry_at = now;
	}
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_fetch_add_u64(&ivfpq_shared->epoch, 1);
}

/*
 * Marks as evicted the ready mirrors that gpuvecd did not report in mirrors
 * [nmirrors].  gpuvecd was asked at the time `then`, so its report may lack
 * mirrors that became ready later.
 */
void
IvfpqMirrorRequestsPrune(const GvMirrorStatus *mirrors, int nmirrors,
						 TimestampTz then)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];
		int			j = 0;

		if (request->state != IVFPQ_REQUEST_READY || request->loader != 0 ||
			request->ready_at >= then)
			continue;
		while (j < nmirrors && !gv_same_key(&mirrors[j].key, &request->key))
			j++;
		if (j == nmirrors)
		{
			request->state = IVFPQ_REQUEST_EVICTED;
			request->refresh = false;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
}

/* Raises an error unless gpuvecd is up or starting. */
static void
check_server(void)
{
	IvfpqServerState state = IvfpqSharedState();

	if (ivfpq_shared == NULL || state == IVFPQ_STATE_OFF)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("gpuvecd is not running"),
				 ivfpq_shared == NULL && !IvfpqPreloadHelps() &&
				 ivfpq_server == IVFPQ_SERVER_AUTO ?
				 errdetail("The machine has no usable GPU.") :
				 ivfpq_shared == NULL && ivfpq_server != IVFPQ_SERVER_OFF ?
				 errhint("Add \"gpuvec\" to \"shared_preload_libraries\" and restart the server.") :
				 errdetail("\"gpuvec.server\" is set to \"off\".")));
	if (state != IVFPQ_STATE_UP && state != IVFPQ_STATE_STARTING)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("gpuvecd is not running"),
				 errdetail("The state is \"%s\".", IvfpqStateName()),
				 errhint("See the server log for details.")));
}

/*
 * Requests that a mirror is loaded or brought up to date, and waits until a
 * loader has done so.  Raises an error if the loader fails.  Returns the
 * number of the mirror's postings.  The caller must not hold a lock on the
 * index that keeps the loader out.
 */
int64
IvfpqPrewarm(const GvMirrorKey *key)
{
	int64		deadline = IvfpqNow() + START_US;
	uint64		ticket;
	IvfpqMirrorRequest request;

	check_server();
	while (IvfpqSharedState() != IVFPQ_STATE_UP)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT |
						 WL_EXIT_ON_PM_DEATH, LOOK_MS, IvfpqWaitEvent());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		check_server();
		if (IvfpqNow() > deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("could not start gpuvecd"),
					 errhint("See the server log for details.")));
	}
	ticket = IvfpqRequestMirror(key, true, true);
	if (ticket == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many indexes are being loaded into gpuvecd"),
				 errhint("Try again later.")));
	ConditionVariablePrepareToSleep(&ivfpq_shared->changed);
	for (;;)
	{
		if (!IvfpqMirrorRequestGet(key, &request))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index was changed while it was loaded into gpuvecd"),
					 errhint("Try again.")));
		if (request.done >= ticket)
			break;
		if (request.refused >= ticket)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("could not load the index into gpuvecd: %s", request.error)));
		(void) ConditionVariableTimedSleep(&ivfpq_shared->changed, LOOK_MS,
										   IvfpqWaitEvent());
		check_server();
	}
	ConditionVariableCancelSleep();
	return request.postings;
}
