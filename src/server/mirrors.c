/*
 * mirrors.c
 *		The registry: which mirrors there are, where, who uses them, and what
 *		they take of their device's budget.
 *
 * A mirror that is in use (users > 0) is not freed: a thread that takes it out
 * of the registry waits until it is let go.  A thread that waits so uses no
 * other mirror, and eviction takes only mirrors that are not in use, so
 * threads do not wait in a circle.  Memory is given back before its bytes are
 * promised to others, because a card has no more than that.
 */
#include "server/gv_registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

GvRegistry	gv_registry = {
	.mutex = PTHREAD_MUTEX_INITIALIZER,
	.released = PTHREAD_COND_INITIALIZER
};

/*
 * budgets [ndevices]: bytes for all mirrors of each device; what was used
 * since keep_s is not evicted.
 */
void
gv_mirrors_init(const int64_t *budgets, int32_t ndevices, int keep_s)
{
	int32_t		i;

	gv_registry.ndevices = ndevices;
	for (i = 0; i < ndevices; i++)
		gv_registry.devices[i].budget = budgets[i];
	gv_registry.keep_ms = (int64_t) keep_s * 1000;
}

/* Locked: the mirror of a key, or NULL. */
static GvHeldMirror *
find(const GvMirrorKey *key)
{
	GvHeldMirror *held = gv_registry.first;

	while (held != NULL && !gv_same_key(&held->key, key))
		held = held->next;
	return held;
}

/* Locked: take a mirror out of the list; false if it is out already. */
bool
gv_registry_unlink(GvHeldMirror *held)
{
	GvHeldMirror **link = &gv_registry.first;

	while (*link != NULL && *link != held)
		link = &(*link)->next;
	if (*link == NULL)
		return false;
	*link = held->next;
	return true;
}

/*
 * Locked: free a mirror that is out of the list, once it is not in use.  The
 * lock is let go meanwhile.  A reason is worth a line in the log.
 */
void
gv_registry_destroy(GvHeldMirror *held, const char *reason)
{
	while (held->users > 0)
		pthread_cond_wait(&gv_registry.released, &gv_registry.mutex);
	gv_registry_unlock();
	if (reason != NULL)
		gv_log("LOG", "dropped the mirror of index %u, %lld MB: %s",
			   held->key.index, (long long) (held->bytes >> 20), reason);
	gv_mirror_drop(held->mirror);
	pthread_rwlock_destroy(&held->lock);
	free(held->states);
	gv_registry_lock();
	gv_registry_device(held)->used -= held->charged;
	free(held);
}

/*
 * Where the mirror of a key is, as far as that is known without a lock for
 * long: it may go at any time.
 */
int32_t
gv_mirrors_device(const GvMirrorKey *key)
{
	const GvHeldMirror *held;
	int32_t		device;

	if (gv_registry.ndevices == 1)
		return 0;
	gv_registry_lock();
	held = find(key);
	device = held != NULL ? held->spec.device : -1;
	gv_registry_unlock();
	return device;
}

/*
 * The mirror of a key, to be let go soon by gv_mirrors_release.  One that is
 * not ready is there for its owner only.  NULL: refused, see *refusal.
 */
GvHeldMirror *
gv_mirrors_acquire(const GvMirrorKey *key, uint64_t owner,
				   GvRefusalCode *refusal)
{
	GvHeldMirror *held;

	gv_registry_lock();
	held = find(key);
	if (held == NULL)
		*refusal = GV_REFUSED_NO_MIRROR;
	else if (!held->ready && held->owner != owner)
	{
		*refusal = GV_REFUSED_LOADING;
		held = NULL;
	}
	else
	{
		held->users++;
		held->used_ms = gv_now_ms();
		held->key.index = key->index;	/* ALTER TABLE may keep pages */
	}
	gv_registry_unlock();
	return held;
}

/* Let a mirror go, in which so many searches were made. */
void
gv_mirrors_release(GvHeldMirror *held, int64_t searches)
{
	gv_registry_lock();
	held->searches += searches;
	held->used_ms = gv_now_ms();
	held->users--;
	pthread_cond_broadcast(&gv_registry.released);
	gv_registry_unlock();
}

/* An entry that is in no list yet, without its mirror. */
static GvHeldMirror *
new_held(const GvMirrorKey *key, const GvMirrorSpec *spec, uint64_t owner)
{
	GvHeldMirror *held = calloc(1, sizeof(GvHeldMirror));
	pthread_rwlockattr_t attr;

	if (held == NULL)
		return NULL;
	held->states = calloc((size_t) spec->nlists, sizeof(GvListState));
	if (held->states == NULL)
	{
		free(held);
		return NULL;
	}
	held->key = *key;
	held->spec = *spec;
	held->owner = owner;
	held->used_ms = gv_now_ms();
	/* batches follow each other closely: a loader must get its turn */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np
		(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&held->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	return held;
}

/* Locked: put a new entry in the list, with what it takes reserved. */
static GvRefusalCode
enter(GvHeldMirror *held, GvTriedDevices *tried)
{
	int64_t		bytes = 0;
	GvHeldMirror *old = find(&held->key);

	while (old != NULL && !old->ready)
	{
		gv_registry_unlink(old);
		gv_registry_destroy(old, "another loader begins anew");
		old = find(&held->key);
	}
	if (old != NULL)
		return GV_REFUSED_EXISTS;
	if (!gv_registry_place(held, &bytes, tried))
		return GV_REFUSED_NO_MEMORY;
	/* room was made with the lock let go now and then */
	if (find(&held->key) != NULL)
		return GV_REFUSED_EXISTS;
	held->reserved = bytes;
	held->charged = bytes;
	gv_registry_device(held)->used += bytes;
	held->users = 1;
	held->next = gv_registry.first;
	gv_registry.first = held;
	return 0;
}

static GvRefusalCode
create(GvHeldMirror *held)
{
	GvStatus	status;

	do
		status = gv_mirror_create(&held->spec, &held->mirror);
	while (status == GV_NO_MEMORY && gv_mirrors_evict(held->spec.device));
	if (status == GV_OK)
	{
		held->bytes = gv_mirror_bytes(held->mirror);
		return 0;
	}
	held->mirror = NULL;
	return gv_status_refusal(status);
}

/* Begin a mirror on one of the devices that were not tried; 0 or why not. */
static GvRefusalCode
begin_somewhere(const GvMirrorKey *key, const GvMirrorSpec *spec,
				uint64_t owner, GvTriedDevices *tried)
{
	GvHeldMirror *held;
	GvRefusalCode refusal;

	held = new_held(key, spec, owner);
	if (held == NULL)
		return GV_REFUSED_NO_MEMORY;
	gv_registry_lock();
	refusal = enter(held, tried);
	if (refusal != 0)
	{
		gv_registry_destroy(held, NULL);
		gv_registry_unlock();
		return refusal;
	}
	gv_registry_unlock();
	refusal = create(held);
	gv_registry_lock();
	held->users--;
	pthread_cond_broadcast(&gv_registry.released);
	/* if another loader has thrown it out meanwhile, that one frees it */
	if (refusal != 0 && gv_registry_unlink(held))
		gv_registry_destroy(held, NULL);
	gv_registry_unlock();
	return refusal;
}

/* Begin a mirror; 0 or why not. */
GvRefusalCode
gv_mirrors_begin(const GvMirrorKey *key, const GvMirrorSpec *spec,
				 uint64_t owner)
{
	GvTriedDevices tried = 0;
	GvTriedDevices before;
	GvRefusalCode refusal;

	if (gv_mirror_size(spec) == 0)
		return GV_REFUSED_PROTOCOL;
	do
	{
		before = tried;
		refusal = begin_somewhere(key, spec, owner, &tried);
	} while (refusal == GV_REFUSED_NO_MEMORY && tried != before);
	return refusal;
}

/* Locked: what a mirror is charged, from what it takes. */
static void
recharge(GvHeldMirror *held)
{
	int64_t		charge = held->bytes;

	if (charge < held->reserved)
		charge = held->reserved;
	gv_registry_device(held)->used += charge - held->charged;
	held->charged = charge;
}

/* From now on it is searched, and charged what it takes and no more. */
void
gv_mirrors_ready(GvHeldMirror *held)
{
	int64_t		copies;
	int64_t		bytes;
	char		where[32] = "";

	gv_registry_lock();
	held->ready = true;
	held->reserved = 0;
	recharge(held);
	copies = held->copies;
	bytes = held->bytes;
	gv_registry_unlock();
	if (gv_registry.ndevices > 1)
		snprintf(where, sizeof(where), " on device %d",
				 gv_server.numbers[held->spec.device]);
	gv_log("LOG", "index %u is mirrored%s: %lld copies, %lld MB",
		   held->key.index, where, (long long) copies,
		   (long long) (bytes >> 20));
}

/*
 * Make room for a mirror to grow by so much, and charge it; false when there
 * is none.  gv_mirrors_changed says how much it grew indeed.
 */
bool
gv_mirrors_room(GvHeldMirror *held, int64_t growth)
{
	int64_t		more;
	bool		fits = true;

	gv_registry_lock();
	more = held->bytes + growth - held->charged;
	if (more > 0)
	{
		fits = gv_registry_make_room(held->spec.device, more);
		if (fits)
		{
			gv_registry_device(held)->used += more;
			held->charged += more;
		}
	}
	gv_registry_unlock();
	return fits;
}

/* It takes so many bytes now, and holds so many copies. */
void
gv_mirrors_changed(GvHeldMirror *held, int64_t bytes, int64_t copies)
{
	gv_registry_lock();
	held->bytes = bytes;
	held->copies = copies;
	recharge(held);
	gv_registry_unlock();
}

/* Drop the mirror of a key, if there is one. */
void
gv_mirrors_drop(const GvMirrorKey *key)
{
	GvHeldMirror *held;

	gv_registry_lock();
	held = find(key);
	if (held != NULL && gv_registry_unlink(held))
		gv_registry_destroy(held, NULL);
	gv_registry_unlock();
}

/* A connection has ended: drop what it began and did not finish. */
void
gv_mirrors_abandon(uint64_t owner)
{
	GvHeldMirror *held;

	gv_registry_lock();
	do
	{
		held = gv_registry.first;
		while (held != NULL && (held->ready || held->owner != owner))
			held = held->next;
		if (held != NULL && gv_registry_unlink(held))
			gv_registry_destroy(held, "its loader is gone");
	} while (held != NULL);
	gv_registry_unlock();
}

/*
 * The registry's part of a status, and the first `room` mirrors; returns how
 * many there are.
 */
int32_t
gv_mirrors_status(GvStatusReply *reply, GvMirrorStatus *mirrors,
				  int32_t room)
{
	int64_t		now = gv_now_ms();
	const GvHeldMirror *held;
	int32_t		n = 0;
	int32_t		i;

	gv_registry_lock();
	for (held = gv_registry.first; held != NULL; held = held->next, n++)
	{
		if (n >= room)
			continue;
		mirrors[n].key = held->key;
		mirrors[n].ready = held->ready;
		mirrors[n].metric = held->spec.metric;
		mirrors[n].dims = held->spec.dims;
		mirrors[n].m = held->spec.m;
		mirrors[n].nlists = held->spec.nlists;
		mirrors[n].nparents = held->spec.nparents;
		mirrors[n].refine_slots = held->spec.refine_slots;
		mirrors[n].device = gv_server.numbers[held->spec.device];
		mirrors[n].bytes = held->bytes;
		mirrors[n].copies = held->copies;
		mirrors[n].expected = held->spec.copies;
		mirrors[n].searches = held->searches;
		mirrors[n].idle_ms = now > held->used_ms ? now - held->used_ms : 0;
	}
	if (reply != NULL)
	{
		for (i = 0; i < gv_registry.ndevices; i++)
		{
			reply->memory += gv_registry.devices[i].budget;
			reply->used += gv_registry.devices[i].used;
		}
		reply->evictions = gv_registry.evictions;
	}
	gv_registry_unlock();
	return n;
}
