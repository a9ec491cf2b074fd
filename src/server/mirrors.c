/*
 * mirrors.c
 *		The registry: which mirrors there are, where, who uses them, and what
 *		they take of their devices' budgets.
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
 * devices [ndevices], budgets [ndevices]: bytes for all mirrors of each
 * device; what was used since keep_s is not evicted.
 */
void
gv_mirrors_init(const GvDevice *devices, const int64_t *budgets,
				int32_t ndevices, int keep_s)
{
	int32_t		i;

	gv_registry.ndevices = ndevices;
	for (i = 0; i < ndevices; i++)
	{
		gv_registry.devices[i].budget = budgets[i];
		gv_registry.devices[i].memory = devices[i].memory + devices[i].kept;
		gv_registry.devices[i].searcher = devices[i].searcher;
	}
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
	int64_t		bytes;
	int32_t		i;

	while (held->users > 0)
		pthread_cond_wait(&gv_registry.released, &gv_registry.mutex);
	bytes = gv_registry_bytes(held);
	gv_registry_unlock();
	if (reason != NULL)
		gv_log("LOG", "dropped the mirror of index %u, %lld MB: %s",
			   held->key.index, (long long) (bytes >> 20), reason);
	gv_mirror_drop(held->mirror);
	pthread_rwlock_destroy(&held->lock);
	free(held->states);
	gv_registry_lock();
	for (i = 0; i < held->nparts; i++)
		gv_registry.devices[held->parts[i].device].used -=
			held->parts[i].charged;
	gv_registry_settle(held, false);
	free(held);
}

/*
 * On which devices the mirror of a key can be searched, into devices
 * [GV_MAX_DEVICES], as far as that is known without a lock for long: it may go at
 * any time.  How many; shards are searched from one.
 */
int32_t
gv_mirrors_devices(const GvMirrorKey *key, int32_t *devices)
{
	const GvHeldMirror *held;
	int32_t		n = 0;
	int32_t		i;

	devices[0] = 0;
	if (gv_registry.ndevices == 1)
		return 1;
	gv_registry_lock();
	held = find(key);
	if (held != NULL)
		n = gv_registry_searched(held);
	for (i = 0; i < n; i++)
		devices[i] = held->parts[i].device;
	gv_registry_unlock();
	return n;
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

/* Locked: place a new entry, and put it in the list. */
static GvRefusalCode
enter(GvHeldMirror *held, GvTriedPlaces *tried)
{
	GvHeldMirror *old = find(&held->key);

	while (old != NULL && !old->ready)
	{
		gv_registry_unlink(old);
		gv_registry_destroy(old, "another loader begins anew");
		old = find(&held->key);
	}
	if (old != NULL)
		return GV_REFUSED_EXISTS;
	if (!gv_registry_place(held, tried))
		return GV_REFUSED_NO_MEMORY;
	/* room was made with the lock let go now and then */
	if (find(&held->key) != NULL)
		return GV_REFUSED_EXISTS;
	held->users = 1;
	held->next = gv_registry.first;
	gv_registry.first = held;
	return 0;
}

static GvRefusalCode
create(GvHeldMirror *held)
{
	GvSpread	spread = {.kind = held->kind, .nparts = held->nparts};
	GvStatus	status;
	int32_t		lacking;
	int32_t		i;

	for (i = 0; i < held->nparts; i++)
		spread.devices[i] = held->parts[i].device;
	do
	{
		int64_t		growth[GV_MAX_DEVICES];

		status = gv_mirror_create_on(&held->spec, &spread, &held->mirror,
									 &lacking);
		for (i = 0; i < GV_MAX_DEVICES; i++)
			growth[i] = lacking < 0 || lacking == i;
		if (status != GV_NO_MEMORY || !gv_mirrors_evict_for(held, growth))
			break;
	} while (true);
	if (status != GV_OK)
	{
		held->mirror = NULL;
		return gv_status_refusal(status);
	}
	gv_registry_lock();
	gv_registry_recharge(held);
	gv_registry_unlock();
	return 0;
}

/* Begin a mirror where that was not tried; 0 or why not. */
static GvRefusalCode
begin_somewhere(const GvMirrorKey *key, const GvMirrorSpec *spec,
				uint64_t owner, GvTriedPlaces *tried)
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
	GvTriedPlaces tried = {0, 0};
	GvTriedPlaces before;
	GvRefusalCode refusal;

	if (gv_mirror_size(spec) == 0)
		return GV_REFUSED_PROTOCOL;
	do
	{
		before = tried;
		refusal = begin_somewhere(key, spec, owner, &tried);
	} while (refusal == GV_REFUSED_NO_MEMORY &&
			 (tried.whole != before.whole || tried.shards != before.shards));
	return refusal;
}

/* Where a mirror is, for the log; nothing where there is one device. */
static void
name_place(const GvHeldMirror *held, char *text, size_t size)
{
	size_t		used;
	int32_t		i;

	text[		0] = '\0';

	if (gv_registry.ndevices == 1)
		return;
	used = (size_t) snprintf(text, size, held->nparts == 1 ? " on device" :
							 held->kind == GV_SHARDS ?
							 " in shards on devices" :
							 " in replicas on devices");
	for (i = 0; i < held->nparts && used < size; i++)
		used += (size_t) snprintf(text +used, size - used, "%s %d",
								  i > 0 ? "," : "",
								  gv_server.numbers[held->parts[i].device]);
}

/* From now on it is searched, and charged what it takes and no more. */
void
gv_mirrors_ready(GvHeldMirror *held)
{
	int64_t		postings;
	int64_t		bytes;
	char		where[32 + 12 * GV_MAX_DEVICES];
	int32_t		i;

	gv_registry_lock();
	held->ready = true;
	gv_registry_settle(held, true);
	for (i = 0; i < held->nparts; i++)
		held->parts[i].reserved = 0;
	gv_registry_recharge(held);
	postings = held->postings;
	bytes = gv_registry_bytes(held);
	name_place(held, where, sizeof(where));
	gv_registry_unlock();
	gv_log("LOG", "index %u is mirrored%s: %lld copies, %lld MB",
		   held->key.index, where, (long long) postings,
		   (long long) (bytes >> 20));
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
		mirrors[n].shards = held->kind == GV_SHARDS ? held->nparts : 1;
		mirrors[n].replicas = held->kind == GV_REPLICAS ? held->nparts : 1;
		mirrors[n].bytes = gv_registry_bytes(held);
		mirrors[n].postings = held->postings;
		mirrors[n].expected = held->spec.postings;
		mirrors[n].searches = held->searches;
		mirrors[n].idle_ms = now > held->used_ms ? now - held->used_ms : 0;
	}
	if (reply != NULL)
	{
		for (i = 0; i < gv_registry.ndevices; i++)
		{
			int64_t		memory = gv_registry_most(i);

			reply->memory += memory;
			if (memory > reply->most)
				reply->most = memory;
			reply->used += gv_registry.devices[i].used;
		}
		reply->evictions = gv_registry.evictions;
	}
	gv_registry_unlock();
	return n;
}
