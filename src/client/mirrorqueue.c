/*
 * mirrorqueue.c
 *		What names the mirror of an index, and what its postings' keys are.
 */
#include "postgres.h"

#include "client/servershared.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "client/mirrorqueue.h"
#include "pgcompat.h"

/* The key that names the mirror of an index. */
GvMirrorKey
IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta)
{
	IvfpqStorage storage = IvfpqStorageOf(index);
	GvMirrorKey key = {storage.database, storage.tablespace, storage.number,
	RelationGetRelid(index), meta->build_id};

	return key;
}

/* Do these name the same mirror? */
bool
IvfpqSameKey(const GvMirrorKey *a, const GvMirrorKey *b)
{
	return a->relation == b->relation && a->database == b->database &&
		a->tablespace == b->tablespace && a->build_id == b->build_id;
}

/* May gpuvecd have a mirror of the index? */
bool
IvfpqCanMirror(Relation index, const IvfpqMetaData *meta)
{
	return index->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		meta->build_id != 0 && meta->nlists > 0 && !IvfpqIsUncommitted(index);
}

/* Which keys the postings of the index's mirror have. */
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

/* ----
 * Mirror requests, and how far they are.
 *
 * A request is a ticket: an entry's `asked` is the last one, `done` and
 * `refused` say up to which ticket requests have been served or have failed.
 * A loader takes an entry, works without the lock, and reports; an entry may
 * be asked for again meanwhile.
 *
 * An entry of a mirror that was ready stays, so that the mirror is loaded
 * again when gpuvecd was restarted, and so that two indexes that memory does
 * not hold side by side do not evict each other all the time.
 */

/* After a failure: 1 s, 2 s, 4 s ... */
#define FIRST_PAUSE_MS		1000
#define MAX_PAUSE_MS		(10 * 60 * 1000)

/* A mirror that was given up is not loaded again so soon after it was. */
#define RELOAD_PAUSE_MS		60000

/* A locked index is tried again after, and given up after so long. */
#define LOCKED_PAUSE_MS		50
#define MAX_LOCKED_MS		10000

/* The entry of a key, or NULL. */
static IvfpqMirrorRequest *
find(const GvMirrorKey *key)
{
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (request->state != IVFPQ_REQUEST_FREE &&
			IvfpqSameKey(&request->key, key))
			return request;
	}
	return NULL;
}

/* How gladly an entry gives its slot away; 0 = not at all. */
static int
expendable(const IvfpqMirrorRequest *request)
{
	switch (request->state)
	{
		case IVFPQ_REQUEST_FREE:
			return 4;
		case IVFPQ_REQUEST_EVICTED:
			return 3;
		case IVFPQ_REQUEST_FAILED:
			return 2;
		case IVFPQ_REQUEST_READY:
			return request->catch_up || request->loader != 0 ? 0 : 1;
		default:
			return 0;
	}
}

/* A new entry, or NULL when all slots are taken. */
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

static TimestampTz
later(TimestampTz time, int64 ms)
{
	return TimestampTzPlusMilliseconds(time, ms);
}

/*
 * Note that the mirror is to be loaded; one that failed when its time has
 * come.  True if there is something new to do.
 */
static bool
ask_load(IvfpqMirrorRequest *request, bool now)
{
	TimestampTz time = GetCurrentTimestamp();
	bool		news = request->state != IVFPQ_REQUEST_WAITING || now;

	if (request->loader != 0)
	{
		request->catch_up = true;
		return false;
	}
	if (request->state == IVFPQ_REQUEST_FAILED && request->retry_at > time &&
		!now)
		return false;
	if (request->state == IVFPQ_REQUEST_READY ||
		request->state == IVFPQ_REQUEST_EVICTED)
		request->retry_at = later(request->ready_at, RELOAD_PAUSE_MS);
	if (now)
		request->retry_at = Min(request->retry_at, time);
	request->state = IVFPQ_REQUEST_WAITING;
	return news;
}

/* Note that the mirror, which is there, lacks something. */
static bool
ask_catch_up(IvfpqMirrorRequest *request)
{
	bool		news = !request->catch_up && request->loader == 0;

	if (request->state == IVFPQ_REQUEST_FAILED)
		return ask_load(request, false);
	if (request->state == IVFPQ_REQUEST_FREE ||
		request->state == IVFPQ_REQUEST_EVICTED)
		request->state = IVFPQ_REQUEST_READY;
	request->catch_up = true;
	return news && request->state == IVFPQ_REQUEST_READY;
}

/*
 * Requests a mirror: to be loaded, or, if it is there, to catch up; at once,
 * or when its turn comes.  Returns a ticket; 0 = no slot is free.
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
		request->key.index = key->index;	/* ALTER TABLE may keep pages */
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

/* Copy the entry of a key; false if there is none. */
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

/* Copies all entries to requests [IVFPQ_NREQUESTS]; returns how many. */
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

/* Is there anything to do, now or later? */
static bool
has_work(const IvfpqMirrorRequest *request)
{
	if (request->loader != 0)
		return false;
	return request->state == IVFPQ_REQUEST_WAITING ||
		(request->state == IVFPQ_REQUEST_READY && request->catch_up);
}

/* A database has work that is due since then: those who wait longest first. */
static int
note_due(Oid *databases, TimestampTz *since, int n, Oid database,
		 TimestampTz due)
{
	int			i = 0;

	while (i < n && databases[i] != database)
		i++;
	if (i == n)
		n++;
	else if (due >= since[i])
		return n;
	for (; i > 0 && due < since[i - 1]; i--)
	{
		databases[i] = databases[i - 1];
		since[i] = since[i - 1];
	}
	databases[i] = database;
	since[i] = due;
	return n;
}

/*
 * Databases [IVFPQ_NREQUESTS] with work that is due, each once, those first
 * that wait longest; returns how many.  *next: when there will be more, if
 * that is earlier.
 */
int
IvfpqMirrorRequestsDue(Oid *databases, TimestampTz now, TimestampTz *next)
{
	TimestampTz since[IVFPQ_NREQUESTS];
	int			n = 0;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
	{
		const IvfpqMirrorRequest *request = &ivfpq_shared->requests[i];

		if (!has_work(request))
			continue;
		if (request->retry_at > now)
			*next = Min(*next, request->retry_at);
		else
			n = note_due(databases, since, n, request->key.database,
						 request->retry_at);
	}
	LWLockRelease(ivfpq_shared->lock);
	return n;
}

/*
 * For a loader: take the entry of its database that is due longest, and copy
 * it.
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
		first->catch_up = false;
		if (first->state != IVFPQ_REQUEST_READY)
		{
			first->state = IVFPQ_REQUEST_LOADING;
			first->postings = first->expected = 0;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
	return first != NULL;
}

/* The entry of a key that this loader has taken, or NULL. */
static IvfpqMirrorRequest *
find_own(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *request = find(key);

	return request != NULL && request->loader == MyProcPid ? request : NULL;
}

/* For a loader: so far it is. */
void
IvfpqMirrorRequestProgress(const GvMirrorKey *key, int64 postings,
						   int64 expected)
{
	IvfpqMirrorRequest *request;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find_own(key);
	if (request)
	{
		request->postings = postings;
		request->expected = expected;
	}
	LWLockRelease(ivfpq_shared->lock);
}

/*
 * For a loader: the mirror is ready, or has caught up.  It shall not be asked
 * to do so again for a while.
 */
void
IvfpqMirrorRequestDone(const GvMirrorKey *key, int64 postings, int pause_ms)
{
	IvfpqMirrorRequest *request;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find_own(key);
	if (request)
	{
		if (request->state != IVFPQ_REQUEST_READY)
			request->ready_at = now;
		request->state = IVFPQ_REQUEST_READY;
		request->loader = 0;
		request->done = request->taken;
		request->failures = 0;
		request->locked_since = 0;
		request->retry_at = later(now, pause_ms);
		request->postings = postings;
		request->error[0] = '\0';
	}
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_fetch_add_u64(&ivfpq_shared->epoch, 1);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* Note a failure under the lock. */
static void
set_failed(IvfpqMirrorRequest *request, const char *error, int pause_ms)
{
	int64		pause = Min((int64) FIRST_PAUSE_MS << Min(request->failures, 20),
							MAX_PAUSE_MS);

	request->state = IVFPQ_REQUEST_FAILED;
	request->loader = 0;
	request->catch_up = false;
	request->refused = request->asked;
	request->failures++;
	request->locked_since = 0;
	request->retry_at = later(GetCurrentTimestamp(), Max(pause, pause_ms));
	strlcpy(request->error, error, sizeof(request->error));
}

/*
 * For a loader: it did not work; who asks again is not heard for pause_ms or
 * more.  True if the error is another than last time, and worth
 * a line in the log.
 */
bool
IvfpqMirrorRequestFailed(const GvMirrorKey *key, const char *error,
						 int pause_ms)
{
	IvfpqMirrorRequest *request;
	bool		news = false;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find_own(key);
	if (request)
	{
		news = strncmp(request->error, error, sizeof(request->error) - 1) != 0;
		set_failed(request, error, pause_ms);
	}
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
	return news;
}

/*
 * For a loader: the index is locked.  Others come first, and then it is tried
 * again; false when it has been locked for too long.
 */
bool
IvfpqMirrorRequestPutBack(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *request;
	TimestampTz now = GetCurrentTimestamp();
	bool		again = true;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find_own(key);
	if (request)
	{
		if (request->locked_since == 0)
			request->locked_since = now;
		again = now < later(request->locked_since, MAX_LOCKED_MS);
	}
	if (request && again)
	{
		request->loader = 0;
		request->retry_at = later(now, LOCKED_PAUSE_MS);
		if (request->state == IVFPQ_REQUEST_READY)
			request->catch_up = true;
		else
			request->state = IVFPQ_REQUEST_WAITING;
	}
	LWLockRelease(ivfpq_shared->lock);
	return again;
}

/* For a loader: gpuvecd has given the mirror up. */
void
IvfpqMirrorRequestEvicted(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *request;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find_own(key);
	if (request)
	{
		request->state = IVFPQ_REQUEST_EVICTED;
		request->loader = 0;
		request->catch_up = false;
		request->refused = request->asked;
		strlcpy(request->error, "gpuvecd gave the mirror up",
				sizeof(request->error));
	}
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/*
 * Another mirror of the same index, by its OID: of pages that it had before.
 * False if none is known.
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
			!IvfpqSameKey(&request->key, key);
		if (found)
			*older = request->key;
	}
	LWLockRelease(ivfpq_shared->lock);
	return found;
}

/* This mirror cannot be requested any more. */
void
IvfpqMirrorRequestForget(const GvMirrorKey *key)
{
	IvfpqMirrorRequest *request;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	request = find(key);
	if (request)
		request->state = IVFPQ_REQUEST_FREE;
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* Nor can any mirror of this database, where no loader gets in. */
void
IvfpqMirrorRequestForgetDatabase(Oid database)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NREQUESTS; i++)
		if (ivfpq_shared->requests[i].key.database == database)
			ivfpq_shared->requests[i].state = IVFPQ_REQUEST_FREE;
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* A loader ends, for whatever reason: what it had taken is not done. */
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
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/*
 * gpuvecd is new and has no mirror: every mirror that was ready, or was to be,
 * is requested again at once.
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
 * gpuvecd had these mirrors when it was asked, then: note which others it
 * gave up.
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
		while (j < nmirrors && !IvfpqSameKey(&mirrors[j].key, &request->key))
			j++;
		if (j == nmirrors)
		{
			request->state = IVFPQ_REQUEST_EVICTED;
			request->catch_up = false;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
}

/* ----
 * Have an index mirrored, and wait for it.
 */

/* How often to look whether gpuvecd is still there. */
#define LOOK_MS				200

/* How long it may take gpuvecd to come up. */
#define START_US			INT64CONST(30000000)

/* ERROR unless there can be mirrors. */
static void
check_server(void)
{
	IvfpqServerState state = IvfpqSharedState();

	if (ivfpq_shared == NULL || state == IVFPQ_STATE_OFF)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no gpuvecd"),
				 ivfpq_shared == NULL && !IvfpqPreloadHelps() &&
				 ivfpq_server == IVFPQ_SERVER_AUTO ?
				 errdetail("This machine shows no card that it could use.") :
				 ivfpq_shared == NULL && ivfpq_server != IVFPQ_SERVER_OFF ?
				 errhint("Add gpuvec to shared_preload_libraries and restart the server.") :
				 errhint("It is turned off by gpuvec.server.")));
	if (state != IVFPQ_STATE_UP && state != IVFPQ_STATE_STARTING)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("gpuvecd is not running"),
				 errdetail("State is \"%s\".", IvfpqStateName()),
				 errhint("Look into the server's log.")));
}

/* Wait until it is up; ERROR if it is not to be. */
static void
wait_for_server(void)
{
	int64		deadline = IvfpqNow() + START_US;

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
					 errmsg("gpuvecd does not come up"),
					 errhint("Look into the server's log.")));
	}
}

/*
 * Is the request fulfilled?  ERROR if it failed.
 */
static bool
is_done(const GvMirrorKey *key, uint64 ticket, int64 *postings)
{
	IvfpqMirrorRequest request;

	if (!IvfpqMirrorRequestGet(key, &request))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the index was changed while it was mirrored"),
				 errhint("Try again.")));
	*postings = request.postings;
	if (request.done >= ticket)
		return true;
	if (request.refused >= ticket)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not mirror the index: %s", request.error)));
	return false;
}

/*
 * Have a mirror brought, or brought up to date, and wait for that; returns
 * the postings that it holds.  ERROR if it cannot be.  No loader brings the
 * mirror of an index that the caller has locked exclusively.
 */
int64
IvfpqPrewarm(const GvMirrorKey *key)
{
	uint64		ticket;
	int64		postings;

	wait_for_server();
	ticket = IvfpqRequestMirror(key, true, true);
	if (ticket == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many indexes are being mirrored"),
				 errhint("Try again later.")));
	ConditionVariablePrepareToSleep(&ivfpq_shared->changed);
	while (!is_done(key, ticket, &postings))
	{
		(void) ConditionVariableTimedSleep(&ivfpq_shared->changed, LOOK_MS,
										   IvfpqWaitEvent());
		check_server();
	}
	ConditionVariableCancelSleep();
	return postings;
}
