/*
 * launch.c
 *		The supervisor starts loaders where mirrors are requested: one for a
 *		database, and not too many.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "client/mirror/wanted.h"
#include "client/state/state.h"
#include "client/supervise/supervisor.h"

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
int64
IvfpqLaunchLoaders(bool *ended)
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
