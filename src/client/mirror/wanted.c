/*
 * wanted.c
 *		The mirrors that are wanted, and how far they are.
 *
 * A request is a ticket: an entry's `asked` is the last one, `done` and
 * `refused` say up to which ticket requests have been fulfilled or have
 * failed.  A loader takes an entry, works without the lock, and reports; an
 * entry may be asked for again meanwhile.
 *
 * An entry of a mirror that was ready stays, so that the mirror is loaded
 * again when gpuvecd was restarted, and so that two indexes that have no room
 * side by side do not push each other out all the time.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "client/mirror/wanted.h"

/* After a failure: 1 s, 2 s, 4 s ... */
#define FIRST_PAUSE_MS		1000
#define MAX_PAUSE_MS		(10 * 60 * 1000)

/* A mirror that was given up is not loaded again so soon after it was. */
#define RELOAD_PAUSE_MS		60000

/* A locked index is tried again after, and given up after so long. */
#define LOCKED_PAUSE_MS		50
#define MAX_LOCKED_MS		10000

/* The entry of a key, or NULL. */
static IvfpqWanted *
find(const GvMirrorKey *key)
{
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		if (wanted->state != IVFPQ_WANTED_FREE &&
			IvfpqSameKey(&wanted->key, key))
			return wanted;
	}
	return NULL;
}

/* How gladly an entry gives its slot away; 0 = not at all. */
static int
expendable(const IvfpqWanted *wanted)
{
	switch (wanted->state)
	{
		case IVFPQ_WANTED_FREE:
			return 4;
		case IVFPQ_WANTED_EVICTED:
			return 3;
		case IVFPQ_WANTED_FAILED:
			return 2;
		case IVFPQ_WANTED_READY:
			return wanted->catch_up || wanted->loader != 0 ? 0 : 1;
		default:
			return 0;
	}
}

/* A new entry, or NULL when all slots are taken. */
static IvfpqWanted *
add(const GvMirrorKey *key)
{
	IvfpqWanted *best = NULL;

	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		if (expendable(wanted) > (best ? expendable(best) : 0))
			best = wanted;
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
ask_load(IvfpqWanted *wanted, bool now)
{
	TimestampTz time = GetCurrentTimestamp();
	bool		news = wanted->state != IVFPQ_WANTED_WAITING || now;

	if (wanted->loader != 0)
	{
		wanted->catch_up = true;
		return false;
	}
	if (wanted->state == IVFPQ_WANTED_FAILED && wanted->retry_at > time &&
		!now)
		return false;
	if (wanted->state == IVFPQ_WANTED_READY ||
		wanted->state == IVFPQ_WANTED_EVICTED)
		wanted->retry_at = later(wanted->ready_at, RELOAD_PAUSE_MS);
	if (now)
		wanted->retry_at = Min(wanted->retry_at, time);
	wanted->state = IVFPQ_WANTED_WAITING;
	return news;
}

/* Note that the mirror, which is there, lacks something. */
static bool
ask_catch_up(IvfpqWanted *wanted)
{
	bool		news = !wanted->catch_up && wanted->loader == 0;

	if (wanted->state == IVFPQ_WANTED_FAILED)
		return ask_load(wanted, false);
	if (wanted->state == IVFPQ_WANTED_FREE ||
		wanted->state == IVFPQ_WANTED_EVICTED)
		wanted->state = IVFPQ_WANTED_READY;
	wanted->catch_up = true;
	return news && wanted->state == IVFPQ_WANTED_READY;
}

/*
 * A mirror is wanted: to be loaded, or, if it is there, to catch up; at
 * once, or when its turn comes.  Returns a ticket; 0 = there is no room.
 */
uint64
IvfpqWant(const GvMirrorKey *key, bool load, bool now)
{
	IvfpqWanted *wanted;
	uint64		ticket = 0;
	bool		wake = false;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find(key);
	if (wanted == NULL)
		wanted = add(key);
	else if (wanted->loader == 0)
		wanted->key.index = key->index; /* ALTER TABLE may keep pages */
	if (wanted != NULL)
	{
		ticket = ++ivfpq_shared->tickets;
		wanted->asked = ticket;
		wake = load ? ask_load(wanted, now) : ask_catch_up(wanted);
	}
	LWLockRelease(ivfpq_shared->lock);
	if (wake)
		IvfpqWakeSupervisor();
	return ticket;
}

/* Copy the entry of a key; false if there is none. */
bool
IvfpqWantedGet(const GvMirrorKey *key, IvfpqWanted *wanted)
{
	IvfpqWanted *found;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	found = find(key);
	if (found)
		*wanted = *found;
	LWLockRelease(ivfpq_shared->lock);
	return found != NULL;
}

/* Copy all entries to wanted [IVFPQ_NWANTED]; returns how many. */
int
IvfpqWantedCopy(IvfpqWanted *wanted)
{
	int			n = 0;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
		if (ivfpq_shared->wanted[i].state != IVFPQ_WANTED_FREE)
			wanted[n++] = ivfpq_shared->wanted[i];
	LWLockRelease(ivfpq_shared->lock);
	return n;
}

/* Is there anything to do, now or later? */
static bool
has_work(const IvfpqWanted *wanted)
{
	if (wanted->loader != 0)
		return false;
	return wanted->state == IVFPQ_WANTED_WAITING ||
		(wanted->state == IVFPQ_WANTED_READY && wanted->catch_up);
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
 * Databases [IVFPQ_NWANTED] with work that is due, each once, those first that
 * wait longest; returns how many.  *next: when there will be more, if that is
 * earlier.
 */
int
IvfpqWantedDue(Oid *databases, TimestampTz now, TimestampTz *next)
{
	TimestampTz since[IVFPQ_NWANTED];
	int			n = 0;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		const IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		if (!has_work(wanted))
			continue;
		if (wanted->retry_at > now)
			*next = Min(*next, wanted->retry_at);
		else
			n = note_due(databases, since, n, wanted->key.database,
						 wanted->retry_at);
	}
	LWLockRelease(ivfpq_shared->lock);
	return n;
}

/*
 * For a loader: take the entry of its database that is due longest, and copy it.
 */
bool
IvfpqWantedTake(Oid database, IvfpqWanted *wanted)
{
	TimestampTz now = GetCurrentTimestamp();
	IvfpqWanted *first = NULL;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *entry = &ivfpq_shared->wanted[i];

		if (entry->key.database == database && has_work(entry) &&
			entry->retry_at <= now &&
			(first == NULL || entry->retry_at < first->retry_at))
			first = entry;
	}
	if (first != NULL)
	{
		*wanted = *first;
		first->loader = MyProcPid;
		first->taken = first->asked;
		first->catch_up = false;
		if (first->state != IVFPQ_WANTED_READY)
		{
			first->state = IVFPQ_WANTED_LOADING;
			first->postings = first->expected = 0;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
	return first != NULL;
}

/* The entry of a key that this loader has taken, or NULL. */
static IvfpqWanted *
find_own(const GvMirrorKey *key)
{
	IvfpqWanted *wanted = find(key);

	return wanted != NULL && wanted->loader == MyProcPid ? wanted : NULL;
}

/* For a loader: so far it is. */
void
IvfpqWantedProgress(const GvMirrorKey *key, int64 postings, int64 expected)
{
	IvfpqWanted *wanted;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find_own(key);
	if (wanted)
	{
		wanted->postings = postings;
		wanted->expected = expected;
	}
	LWLockRelease(ivfpq_shared->lock);
}

/*
 * For a loader: the mirror is ready, or has caught up.  It shall not be asked
 * to do so again for a while.
 */
void
IvfpqWantedDone(const GvMirrorKey *key, int64 postings, int pause_ms)
{
	IvfpqWanted *wanted;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find_own(key);
	if (wanted)
	{
		if (wanted->state != IVFPQ_WANTED_READY)
			wanted->ready_at = now;
		wanted->state = IVFPQ_WANTED_READY;
		wanted->loader = 0;
		wanted->done = wanted->taken;
		wanted->failures = 0;
		wanted->locked_since = 0;
		wanted->retry_at = later(now, pause_ms);
		wanted->postings = postings;
		wanted->error[0] = '\0';
	}
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_fetch_add_u64(&ivfpq_shared->epoch, 1);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* Note a failure under the lock. */
static void
set_failed(IvfpqWanted *wanted, const char *error, int pause_ms)
{
	int64		pause = Min((int64) FIRST_PAUSE_MS << Min(wanted->failures, 20),
							MAX_PAUSE_MS);

	wanted->state = IVFPQ_WANTED_FAILED;
	wanted->loader = 0;
	wanted->catch_up = false;
	wanted->refused = wanted->asked;
	wanted->failures++;
	wanted->locked_since = 0;
	wanted->retry_at = later(GetCurrentTimestamp(), Max(pause, pause_ms));
	strlcpy(wanted->error, error, sizeof(wanted->error));
}

/*
 * For a loader: it did not work; who asks again is not heard for pause_ms or
 * more.  True if the error is another than last time, and worth
 * a line in the log.
 */
bool
IvfpqWantedFailed(const GvMirrorKey *key, const char *error, int pause_ms)
{
	IvfpqWanted *wanted;
	bool		news = false;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find_own(key);
	if (wanted)
	{
		news = strncmp(wanted->error, error, sizeof(wanted->error) - 1) != 0;
		set_failed(wanted, error, pause_ms);
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
IvfpqWantedPutBack(const GvMirrorKey *key)
{
	IvfpqWanted *wanted;
	TimestampTz now = GetCurrentTimestamp();
	bool		again = true;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find_own(key);
	if (wanted)
	{
		if (wanted->locked_since == 0)
			wanted->locked_since = now;
		again = now < later(wanted->locked_since, MAX_LOCKED_MS);
	}
	if (wanted && again)
	{
		wanted->loader = 0;
		wanted->retry_at = later(now, LOCKED_PAUSE_MS);
		if (wanted->state == IVFPQ_WANTED_READY)
			wanted->catch_up = true;
		else
			wanted->state = IVFPQ_WANTED_WAITING;
	}
	LWLockRelease(ivfpq_shared->lock);
	return again;
}

/* For a loader: gpuvecd has given the mirror up. */
void
IvfpqWantedGone(const GvMirrorKey *key)
{
	IvfpqWanted *wanted;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find_own(key);
	if (wanted)
	{
		wanted->state = IVFPQ_WANTED_EVICTED;
		wanted->loader = 0;
		wanted->catch_up = false;
		wanted->refused = wanted->asked;
		strlcpy(wanted->error, "gpuvecd gave the mirror up",
				sizeof(wanted->error));
	}
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/*
 * Another mirror of the same index, by its OID: of pages that it had before.
 * False if none is known.
 */
bool
IvfpqWantedOlder(const GvMirrorKey *key, GvMirrorKey *older)
{
	bool		found = false;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	for (int i = 0; i < IVFPQ_NWANTED && !found; i++)
	{
		const IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		found = wanted->state != IVFPQ_WANTED_FREE &&
			wanted->key.database == key->database &&
			wanted->key.index == key->index &&
			!IvfpqSameKey(&wanted->key, key);
		if (found)
			*older = wanted->key;
	}
	LWLockRelease(ivfpq_shared->lock);
	return found;
}

/* This mirror cannot be wanted any more. */
void
IvfpqWantedForget(const GvMirrorKey *key)
{
	IvfpqWanted *wanted;

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	wanted = find(key);
	if (wanted)
		wanted->state = IVFPQ_WANTED_FREE;
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* ... nor any mirror of a database where no loader gets in. */
void
IvfpqWantedForgetDatabase(Oid database)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
		if (ivfpq_shared->wanted[i].key.database == database)
			ivfpq_shared->wanted[i].state = IVFPQ_WANTED_FREE;
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/* A loader ends, for whatever reason: what it had taken is not done. */
void
IvfpqWantedRelease(const char *error)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		if (wanted->state != IVFPQ_WANTED_FREE && wanted->loader == MyProcPid)
			set_failed(wanted, error, 0);
	}
	LWLockRelease(ivfpq_shared->lock);
	ConditionVariableBroadcast(&ivfpq_shared->changed);
}

/*
 * gpuvecd is new and has no mirror: whatever was ready, or was to be, is
 * wanted at once.
 */
void
IvfpqWantedRestart(void)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *wanted = &ivfpq_shared->wanted[i];

		if (wanted->state == IVFPQ_WANTED_READY ||
			(wanted->state == IVFPQ_WANTED_FAILED && wanted->ready_at != 0))
			wanted->state = IVFPQ_WANTED_WAITING;
		if (wanted->state == IVFPQ_WANTED_WAITING)
			wanted->retry_at = now;
	}
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_fetch_add_u64(&ivfpq_shared->epoch, 1);
}

/*
 * gpuvecd had these mirrors when it was asked, then: note which others it
 * gave up.
 */
void
IvfpqWantedPrune(const GvMirrorStatus *mirrors, int nmirrors,
				 TimestampTz then)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IVFPQ_NWANTED; i++)
	{
		IvfpqWanted *wanted = &ivfpq_shared->wanted[i];
		int			j = 0;

		if (wanted->state != IVFPQ_WANTED_READY || wanted->loader != 0 ||
			wanted->ready_at >= then)
			continue;
		while (j < nmirrors && !IvfpqSameKey(&mirrors[j].key, &wanted->key))
			j++;
		if (j == nmirrors)
		{
			wanted->state = IVFPQ_WANTED_EVICTED;
			wanted->catch_up = false;
		}
	}
	LWLockRelease(ivfpq_shared->lock);
}
