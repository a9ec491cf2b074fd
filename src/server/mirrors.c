/*
 * mirrors.c
 *		The registry: which mirrors there are, where, who uses them, and how
 *		much of their devices' budgets they use.
 *
 * A mirror that is in use (users > 0) is not freed: a thread that takes it out
 * of the registry waits until it is let go.  A thread that waits so uses no
 * other mirror, and eviction takes only mirrors that are not in use, so
 * threads do not wait in a circle.  Memory is freed before its bytes are
 * reserved for others, because a device has no more than that.
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
static GvMirrorEntry *
find(const GvMirrorKey *key)
{
	GvMirrorEntry *entry = gv_registry.first;

	while (entry != NULL && !gv_same_key(&entry->key, key))
		entry = entry->next;
	return entry;
}

/* Locked: take a mirror out of the list; false if it is out already. */
bool
gv_registry_unlink(GvMirrorEntry *entry)
{
	GvMirrorEntry **link = &gv_registry.first;

	while (*link != NULL && *link != entry)
		link = &(*link)->next;
	if (*link == NULL)
		return false;
	*link = entry->next;
	return true;
}

/*
 * Locked: free a mirror that is out of the list, once it is not in use.  The
 * lock is let go meanwhile.  A reason is worth a line in the log.
 */
void
gv_registry_destroy(GvMirrorEntry *entry, const char *reason)
{
	int64_t		bytes;
	int32_t		i;

	while (entry->users > 0)
		pthread_cond_wait(&gv_registry.released, &gv_registry.mutex);
	bytes = gv_registry_bytes(entry);
	gv_registry_unlock();
	if (reason != NULL)
		gv_log("LOG", "dropped the mirror of index %u, %lld MB: %s",
			   gv_registry_index(entry), (long long) (bytes >> 20), reason);
	gv_mirror_drop(entry->mirror);
	pthread_rwlock_destroy(&entry->lock);
	free(entry->states);
	gv_registry_lock();
	for (i = 0; i < entry->nmembers; i++)
		gv_registry.devices[entry->members[i].device].used -=
			entry->members[i].charged;
	gv_registry_settle(entry, false);
	free(entry);
}

/*
 * On which devices the mirror of a key can be searched, into devices
 * [GV_MAX_DEVICES], as far as that is known without a lock for long: it may go
 * at any time.  How many; shards are searched from one.
 */
int32_t
gv_mirrors_devices(const GvMirrorKey *key, int32_t *devices)
{
	const GvMirrorEntry *entry;
	int32_t		n = 0;
	int32_t		i;

	devices[0] = 0;
	if (gv_registry.ndevices == 1)
		return 1;
	gv_registry_lock();
	entry = find(key);
	if (entry != NULL)
		n = gv_registry_searched(entry);
	for (i = 0; i < n; i++)
		devices[i] = entry->members[i].device;
	gv_registry_unlock();
	return n;
}

/*
 * The mirror of a key, to be let go soon by gv_mirrors_release.  One that is
 * not ready is there for its owner only.  NULL: refused, see *refusal.
 */
GvMirrorEntry *
gv_mirrors_acquire(const GvMirrorKey *key, uint64_t owner,
				   GvRefusalCode *refusal)
{
	GvMirrorEntry *entry;

	gv_registry_lock();
	entry = find(key);
	if (entry == NULL)
		*refusal = GV_REFUSED_NO_MIRROR;
	else if (!entry->ready && entry->owner != owner)
	{
		*refusal = GV_REFUSED_LOADING;
		entry = NULL;
	}
	else
	{
		entry->users++;
		entry->used_ms = gv_now_ms();
		__atomic_store_n(&entry->key.index, key->index, __ATOMIC_RELAXED);
	}
	gv_registry_unlock();
	return entry;
}

/* Release a mirror, in which `searches` searches were made. */
void
gv_mirrors_release(GvMirrorEntry *entry, int64_t searches)
{
	gv_registry_lock();
	entry->searches += searches;
	entry->used_ms = gv_now_ms();
	entry->users--;
	pthread_cond_broadcast(&gv_registry.released);
	gv_registry_unlock();
}

/* An entry that is in no list yet, without its mirror. */
static GvMirrorEntry *
new_entry(const GvMirrorKey *key, const GvMirrorSpec *spec, uint64_t owner)
{
	GvMirrorEntry *entry = calloc(1, sizeof(GvMirrorEntry));
	pthread_rwlockattr_t attr;

	if (entry == NULL)
		return NULL;
	entry->states = calloc((size_t) spec->nlists, sizeof(GvListState));
	if (entry->states == NULL)
	{
		free(entry);
		return NULL;
	}
	entry->key = *key;
	entry->spec = *spec;
	entry->owner = owner;
	entry->used_ms = gv_now_ms();
	/* batches follow each other closely: a loader must get its turn */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np
		(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&entry->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	return entry;
}

/* Locked: place a new entry, and put it in the list. */
static GvRefusalCode
enter(GvMirrorEntry *entry, GvTriedPlaces *tried)
{
	GvMirrorEntry *old = find(&entry->key);

	while (old != NULL && !old->ready)
	{
		gv_registry_unlink(old);
		gv_registry_destroy(old, "another loader begins anew");
		old = find(&entry->key);
	}
	if (old != NULL)
		return GV_REFUSED_EXISTS;
	if (!gv_registry_place(entry, tried))
		return GV_REFUSED_NO_MEMORY;
	/* freeing memory released the lock now and then */
	if (find(&entry->key) != NULL)
		return GV_REFUSED_EXISTS;
	entry->users = 1;
	entry->next = gv_registry.first;
	gv_registry.first = entry;
	return 0;
}

static GvRefusalCode
create(GvMirrorEntry *entry)
{
	GvPlacement placement = {.mode = entry->mode, .ndevices = entry->nmembers};
	GvStatus	status;
	int32_t		lacking;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		placement.devices[i] = entry->members[i].device;
	do
	{
		int64_t		growth[GV_MAX_DEVICES];

		status = gv_mirror_create_on(&entry->spec, &placement, &entry->mirror,
									 &lacking);
		for (i = 0; i < GV_MAX_DEVICES; i++)
			growth[i] = lacking < 0 || lacking == i;
		if (status != GV_NO_MEMORY || !gv_mirrors_evict_for(entry, growth))
			break;
	} while (true);
	if (status != GV_OK)
	{
		entry->mirror = NULL;
		return gv_status_refusal(status);
	}
	gv_registry_lock();
	gv_registry_recharge(entry);
	gv_registry_unlock();
	return 0;
}

/* Begin a mirror where that was not tried; 0 or why not. */
static GvRefusalCode
begin_somewhere(const GvMirrorKey *key, const GvMirrorSpec *spec,
				uint64_t owner, GvTriedPlaces *tried)
{
	GvMirrorEntry *entry;
	GvRefusalCode refusal;

	entry = new_entry(key, spec, owner);
	if (entry == NULL)
		return GV_REFUSED_NO_MEMORY;
	gv_registry_lock();
	refusal = enter(entry, tried);
	if (refusal != 0)
	{
		gv_registry_destroy(entry, NULL);
		gv_registry_unlock();
		return refusal;
	}
	gv_registry_unlock();
	refusal = create(entry);
	gv_registry_lock();
	entry->users--;
	pthread_cond_broadcast(&gv_registry.released);
	/* if another loader has thrown it out meanwhile, that one frees it */
	if (refusal != 0 && gv_registry_unlink(entry))
		gv_registry_destroy(entry, NULL);
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
name_place(const GvMirrorEntry *entry, char *line, size_t size)
{
	size_t		used;
	int32_t		i;

	line[0] = '\0';

	if (gv_registry.ndevices == 1)
		return;
	used = (size_t) snprintf(line, size, entry->nmembers == 1 ? " on device" :
							 entry->mode == GV_SHARDS ?
							 " in shards on devices" :
							 " in replicas on devices");
	for (i = 0; i < entry->nmembers && used < size; i++)
		used += (size_t) snprintf(line + used, size - used, "%s %d",
								  i > 0 ? "," : "",
								  gv_server.numbers[entry->members[i].device]);
}

/* From now on it is searched, and charged what it takes and no more. */
void
gv_mirrors_ready(GvMirrorEntry *entry)
{
	int64_t		postings;
	int64_t		bytes;
	char		where[32 + 12 * GV_MAX_DEVICES];
	int32_t		i;

	gv_registry_lock();
	entry->ready = true;
	gv_registry_settle(entry, true);
	for (i = 0; i < entry->nmembers; i++)
		entry->members[i].reserved = 0;
	gv_registry_recharge(entry);
	postings = entry->postings;
	bytes = gv_registry_bytes(entry);
	name_place(entry, where, sizeof(where));
	gv_registry_unlock();
	gv_log("LOG", "index %u is mirrored%s: %lld copies, %lld MB",
		   gv_registry_index(entry), where, (long long) postings,
		   (long long) (bytes >> 20));
}

/* Drop the mirror of a key, if there is one. */
void
gv_mirrors_drop(const GvMirrorKey *key)
{
	GvMirrorEntry *entry;

	gv_registry_lock();
	entry = find(key);
	if (entry != NULL && gv_registry_unlink(entry))
		gv_registry_destroy(entry, NULL);
	gv_registry_unlock();
}

/* A connection has ended: drop what it began and did not finish. */
void
gv_mirrors_abandon(uint64_t owner)
{
	GvMirrorEntry *entry;

	gv_registry_lock();
	do
	{
		entry = gv_registry.first;
		while (entry != NULL && (entry->ready || entry->owner != owner))
			entry = entry->next;
		if (entry != NULL && gv_registry_unlink(entry))
			gv_registry_destroy(entry, "its loader is gone");
	} while (entry != NULL);
	gv_registry_unlock();
}

/*
 * The registry's part of a status, and the first `capacity` mirrors; returns
 * how many there are.
 */
int32_t
gv_mirrors_status(GvStatusReply *reply, GvMirrorStatus *mirrors,
				  int32_t capacity)
{
	int64_t		now = gv_now_ms();
	const GvMirrorEntry *entry;
	int32_t		n = 0;
	int32_t		i;

	gv_registry_lock();
	for (entry = gv_registry.first; entry != NULL; entry = entry->next, n++)
	{
		if (n >= capacity)
			continue;
		mirrors[n].key = entry->key;
		mirrors[n].ready = entry->ready;
		mirrors[n].metric = entry->spec.metric;
		mirrors[n].dims = entry->spec.dims;
		mirrors[n].m = entry->spec.m;
		mirrors[n].nlists = entry->spec.nlists;
		mirrors[n].nparents = entry->spec.nparents;
		mirrors[n].refine_slots = entry->spec.refine_slots;
		mirrors[n].device = gv_server.numbers[entry->spec.device];
		mirrors[n].shards = entry->mode == GV_SHARDS ? entry->nmembers : 1;
		mirrors[n].replicas = entry->mode == GV_REPLICAS ? entry->nmembers : 1;
		mirrors[n].bytes = gv_registry_bytes(entry);
		mirrors[n].postings = entry->postings;
		mirrors[n].expected = entry->spec.postings;
		mirrors[n].searches = entry->searches;
		mirrors[n].idle_ms = now > entry->used_ms ? now - entry->used_ms : 0;
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
