/*
 * registry.c
 *		The registry: which mirrors there are, on which devices, who uses them,
 *		and how much of the devices' budgets they take.
 *
 * Every device has a budget, which mirrors, builds and sets share.  The budget
 * does not include the searchers of the device's batch slots, but searchers
 * for messages of many queries take memory that mirrors could have.
 *
 * A mirror has replicas, each of one or more shards, and each shard is on a
 * device that has no other member of the mirror.  The shards of a replica
 * exist together or not at all.  A replica that is not the mirror's only one
 * may be evicted alone.  Eviction takes such replicas first, then mirrors that
 * are not in use, and nothing if that would not be enough.  Memory is freed
 * before its bytes are reserved for others, because a device has no more than
 * that.
 *
 * A mirror that is in use (users > 0) is not freed: a thread that removes the
 * mirror from the registry waits until all users have released it.  A thread
 * that waits in this way uses no other mirror, and eviction removes only
 * mirrors that are not in use, so threads do not wait in a circle.
 *
 * The mutex protects all of the registry.  The callers of static functions
 * hold it, unless a comment says otherwise.  Destroying or evicting a mirror,
 * and so freeing memory, releases the mutex for a while.
 */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The memory account of a device, in bytes. */
typedef struct GvDeviceMemory
{
	int64_t		budget;			/* for mirrors, builds and sets */
	int64_t		used;			/* charged of the budget */
	int			jobs;			/* number of builds and sets on the device */
	int64_t		memory;			/* that mirrors and searchers have together */
	int64_t		searcher;		/* that one searcher may take */
	int32_t		extras;			/* number of searchers for messages of many
								 * queries */
} GvDeviceMemory;

typedef struct GvRegistry
{
	pthread_mutex_t mutex;
	pthread_cond_t released;	/* a mirror was released */
	GvMirrorEntry *first;
	int32_t		ndevices;
	GvDeviceMemory devices[GV_MAX_DEVICES];
	int64_t		evictions;
	int64_t		evict_grace_ms; /* mirrors used in this time are not evicted */
} GvRegistry;

static GvRegistry registry = {
	.mutex = PTHREAD_MUTEX_INITIALIZER,
	.released = PTHREAD_COND_INITIALIZER
};

/*
 * Returns the OID that names a mirror in the log.  The caller need not hold
 * the mutex.  A session that acquires the mirror may change the OID meanwhile,
 * because ALTER TABLE may give an index another OID and keep its pages.
 */
static inline uint32_t
registry_index(const GvMirrorEntry *entry)
{
	return __atomic_load_n(&entry->key.index, __ATOMIC_RELAXED);
}

static inline int64_t
now_ms(void)
{
	return (int64_t) (gv_now_ns() / 1000000);
}

/*
 * Sets the devices [ndevices] and their budgets [ndevices], in bytes for all
 * mirrors of a device.  Mirrors used within keep_s are not evicted.
 */
void
gv_mirrors_init(const GvDevice *devices, const int64_t *budgets,
				int32_t ndevices, int keep_s)
{
	int32_t		i;

	registry.ndevices = ndevices;
	for (i = 0; i < ndevices; i++)
	{
		registry.devices[i].budget = budgets[i];
		registry.devices[i].memory = devices[i].memory + devices[i].kept;
		registry.devices[i].searcher = devices[i].searcher;
	}
	registry.evict_grace_ms = (int64_t) keep_s * 1000;
}

/* Returns the mirror of a key, or NULL. */
static GvMirrorEntry *
find(const GvMirrorKey *key)
{
	GvMirrorEntry *entry = registry.first;

	while (entry != NULL && !gv_same_key(&entry->key, key))
		entry = entry->next;
	return entry;
}

/*
 * Takes a mirror out of the list.  Returns false if another thread has taken
 * it out already.
 */
static bool
unlink_entry(GvMirrorEntry *entry)
{
	GvMirrorEntry **link = &registry.first;

	while (*link != NULL && *link != entry)
		link = &(*link)->next;
	if (*link == NULL)
		return false;
	*link = entry->next;
	return true;
}

/* Members of a mirror */

/*
 * Returns whether the mirror has several replicas, so that one can be evicted.
 */
static inline bool
is_spare(const GvMirrorEntry *entry)
{
	return entry->nmembers > entry->nshards;
}

/* Returns a mirror's member on a device, or NULL. */
static GvMirrorMember *
find_member(GvMirrorEntry *entry, int32_t device)
{
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		if (entry->members[i].device == device)
			return &entry->members[i];
	return NULL;
}

static int64_t
mirror_bytes(const GvMirrorEntry *entry)
{
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		bytes += entry->members[i].bytes;
	return bytes;
}

/*
 * Charges a member the bytes that it takes, but at least the bytes that are
 * reserved for it.  Charges nothing if the engine has dropped the member.
 */
static void
charge_member(GvMirrorMember *member, bool there)
{
	int64_t		charge = member->bytes;

	if (charge < member->reserved)
		charge = member->reserved;
	if (!there)
		charge = 0;
	registry.devices[member->device].used += charge - member->charged;
	member->charged = charge;
}

/*
 * Charges a mirror's members the bytes that they take now, as the engine says.
 * Removes members that the engine has dropped.  The caller makes sure that no
 * other thread changes the mirror meanwhile.
 */
static void
recharge(GvMirrorEntry *entry)
{
	GvDeviceUsage now[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(entry->mirror, now);
	int32_t		left = 0;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
	{
		GvMirrorMember member = entry->members[i];
		bool		there = left < n && now[left].device == member.device;

		if (there)
			member.bytes = now[left].bytes;
		charge_member(&member, there);
		if (there)
			entry->members[left++] = member;
	}
	entry->nmembers = left;
	entry->spec.device = entry->members[0].device;
}

/*
 * Waits until a mirror that was taken out of the list is not in use, frees the
 * mirror, and gives back its bytes.  Releases the mutex meanwhile.  Logs the
 * reason, unless that is NULL.
 */
static void
destroy_entry(GvMirrorEntry *entry, const char *reason)
{
	int64_t		bytes;
	int32_t		i;

	while (entry->users > 0)
		pthread_cond_wait(&registry.released, &registry.mutex);
	bytes = mirror_bytes(entry);
	pthread_mutex_unlock(&registry.mutex);
	if (reason != NULL)
		gv_log("LOG", "dropped the mirror of index %u, %lld MB: %s",
			   registry_index(entry), (long long) (bytes >> 20), reason);
	gv_mirror_drop(entry->mirror);
	pthread_rwlock_destroy(&entry->lock);
	free(entry->states);
	pthread_mutex_lock(&registry.mutex);
	for (i = 0; i < entry->nmembers; i++)
		registry.devices[entry->members[i].device].used -=
			entry->members[i].charged;
	free(entry);
}

/* Accounts of the devices */

/*
 * Returns the bytes that mirrors, builds and sets may have on a device that
 * has `extras` searchers for messages of many queries.
 */
static int64_t
most_beside(int32_t device, int32_t extras)
{
	const GvDeviceMemory *mem = &registry.devices[device];
	int64_t		most = mem->memory -
	mem->searcher * (GV_BATCH_SLOTS + extras);

	/* searchers of batch slots are not in the budget */
	return extras == 0 || most > mem->budget ? mem->budget : most;
}

/* Returns the bytes that mirrors, builds and sets may have on a device. */
static int64_t
most_bytes(int32_t device)
{
	return most_beside(device, registry.devices[device].extras);
}

/*
 * Returns the bytes of a device that are not charged; negative if the budget
 * is exceeded.
 */
static int64_t
available_bytes(int32_t device)
{
	return most_bytes(device) - registry.devices[device].used;
}

/* Eviction */

/*
 * Returns whether a mirror, or its replica on the device, may be evicted to
 * free memory on the device.  One of several replicas may be evicted even
 * while the mirror is in use.
 */
static bool
evictable(const GvMirrorEntry *entry, int32_t device, int64_t now)
{
	return entry->ready && entry->growing == 0 &&
		find_member((GvMirrorEntry *) entry, device) != NULL &&
		(is_spare(entry) ||
		 (entry->users == 0 && now -
		  entry->used_ms >= registry.evict_grace_ms));
}

/*
 * Returns the mirror that a device evicts next.  Mirrors with several replicas
 * are evicted before other mirrors.  Within both groups, the mirror that has
 * been idle longest is evicted first.  Returns NULL if no mirror may be
 * evicted.
 */
static GvMirrorEntry *
idlest(int32_t device)
{
	int64_t		now = now_ms();
	GvMirrorEntry *found = NULL;
	GvMirrorEntry *entry;

	for (entry = registry.first; entry != NULL; entry = entry->next)
		if (evictable(entry, device, now) &&
			(found == NULL ||
			 (is_spare(entry) != is_spare(found) ? is_spare(entry) :
			  entry->used_ms < found->used_ms)))
			found = entry;
	return found;
}

/*
 * Evicts a mirror's replicas that have a member on one of the devices, except
 * the last replica.  Logs the reason.  Releases the mutex and waits for the
 * mirror's lock, but not in a circle, because a thread that holds a mirror's
 * lock waits for no other mirror's lock.
 */
static void
evict_replicas(GvMirrorEntry *entry, GvDeviceSet devices, const char *reason)
{
	int32_t		i;

	entry->users++;
	pthread_mutex_unlock(&registry.mutex);
	pthread_rwlock_wrlock(&entry->lock);
	for (i = 0; i < registry.ndevices; i++)
		if ((devices & 1u << i) != 0 &&
			gv_mirror_drop_replica(entry->mirror, i) == GV_OK)
			gv_log("LOG", "gave up the replica of index %u on device %d: %s",
				   registry_index(entry), gv_server.numbers[i], reason);
	pthread_mutex_lock(&registry.mutex);
	recharge(entry);
	pthread_rwlock_unlock(&entry->lock);
	entry->users--;
	pthread_cond_broadcast(&registry.released);
}

/*
 * Evicts the next mirror or replica from a device.  Returns false if there is
 * no mirror or replica that may be evicted.  Releases the mutex meanwhile.
 */
static bool
evict_one(int32_t device)
{
	GvMirrorEntry *victim = idlest(device);

	if (victim == NULL)
		return false;
	if (is_spare(victim))
	{
		bool		done;

		evict_replicas(victim, 1u << device, "others need its memory");
		/* this thread holds the mutex again, so the victim is still there */
		done = find_member(victim, device) == NULL;
		registry.evictions += done;
		return done;
	}
	unlink_entry(victim);
	registry.evictions++;
	destroy_entry(victim, "others need its memory");
	return true;
}

/*
 * Returns whether `bytes` of a device are available, or would be if all
 * mirrors and replicas were evicted that may be evicted.
 */
static bool
can_free_up(int32_t device, int64_t bytes)
{
	int64_t		now = now_ms();
	int64_t		available = available_bytes(device);
	const GvMirrorEntry *entry;

	for (entry = registry.first; entry != NULL && available < bytes;
		 entry = entry->next)
		if (evictable(entry, device, now))
			available +=
				find_member((GvMirrorEntry *) entry, device)->charged;
	return available >= bytes;
}

/*
 * Frees `bytes` of a device's budget without charging them.  If so many bytes
 * cannot be freed, evicts nothing and returns false.  Releases the mutex while
 * it evicts.
 */
static bool
free_up(int32_t device, int64_t bytes)
{
	if (!can_free_up(device, bytes))
		return false;
	while (available_bytes(device) < bytes)
		if (!evict_one(device))
			return false;
	return true;
}

/* The placement of mirrors */

/*
 * Returns whether device a is better than b for a member of this size.  If one
 * of the devices has enough memory available, the device with more memory
 * available is better.  Otherwise, the device is better whose next mirror to
 * evict has been idle longer.
 */
static bool
is_better(int32_t a, int32_t b, int64_t bytes)
{
	const GvMirrorEntry *idle_a;
	const GvMirrorEntry *idle_b;

	if (available_bytes(a) >= bytes || available_bytes(b) >= bytes)
		return available_bytes(a) > available_bytes(b);
	idle_a = idlest(a);
	idle_b = idlest(b);
	return idle_a != NULL && idle_b != NULL &&
		idle_a->used_ms < idle_b->used_ms;
}

/*
 * Returns the bytes that one of a mirror's nshards shards takes on a device.
 * With nshards = 1 the shard is the whole mirror.
 */
static int64_t
shard_size(const GvMirrorSpec *spec, int32_t device, int32_t nshards)
{
	GvPlacement placement = {nshards, 1, {0}};
	int32_t		i;

	for (i = 0; i < nshards; i++)
		placement.devices[i] = (device + i) % registry.ndevices;
	return gv_mirror_member_size(spec, &placement, 0);
}

/*
 * Returns the best device for one more shard of a mirror, of all devices that
 * have no member of the mirror, are not in `skip`, and have enough memory.  If
 * others_go is set, memory that can be freed by eviction counts, too.  Sets
 * *able to the number of these devices.  Returns -1 if there is none.
 */
static int32_t
choose_device(GvMirrorEntry *entry, GvDeviceSet skip, bool others_go,
			  int32_t *able)
{
	int32_t		best = -1;
	int32_t		i;

	*able = 0;
	for (i = 0; i < registry.ndevices; i++)
	{
		int64_t		bytes = shard_size(&entry->spec, i, entry->nshards);

		if ((skip & 1u << i) != 0 || find_member(entry, i) != NULL ||
			(others_go ? !can_free_up(i, bytes) :
			 available_bytes(i) < bytes))
			continue;
		(*able)++;
		if (best < 0 || is_better(i, best, bytes))
			best = i;
	}
	return best;
}

/*
 * Frees memory on a device, charges the memory, and adds a member on the
 * device.  Returns false if the memory cannot be freed.
 */
static bool
add_member(GvMirrorEntry *entry, int32_t device)
{
	int64_t		bytes = shard_size(&entry->spec, device, entry->nshards);

	if (!free_up(device, bytes))
		return false;
	registry.devices[device].used += bytes;
	entry->members[entry->nmembers++] = (GvMirrorMember)
	{
		device, bytes, bytes, 0
	};
	entry->spec.device = entry->members[0].device;
	return true;
}

/*
 * Adds replicas, up to gv_server.replicas in all, while memory for all shards
 * of another replica is available without evicting others.
 */
static void
add_replicas(GvMirrorEntry *entry)
{
	int32_t		able;
	int32_t		i;

	while (entry->nmembers / entry->nshards < gv_server.replicas)
	{
		(void) choose_device(entry, 0, false, &able);
		if (able < entry->nshards)
			return;
		/* evicts nothing, so the mutex is not released */
		for (i = 0; i < entry->nshards; i++)
			(void) add_member(entry, choose_device(entry, 0, false, &able));
	}
}

/*
 * Places a mirror in the fewest shards for which devices can free memory, adds
 * replicas, and charges the bytes of all members until the mirror is
 * destroyed.  A calibration mirror is neither divided, because its build can
 * do without it, nor replicated, because only one thread searches it.  Skips
 * the places in *tried, and adds the new place to *tried.  Returns false if
 * there is no other place, or if other threads took the memory that was freed.
 */
static bool
place(GvMirrorEntry *entry, GvTriedPlaces *tried)
{
	bool		is_own = gv_is_calibration(&entry->key);
	int32_t		most = is_own ? 1 : registry.ndevices;
	int32_t		able;
	int32_t		n;

	for (n = tried->shards + 1; n <= most; n++)
	{
		GvDeviceSet skip = n == 1 ? tried->whole : 0;

		entry->nshards = n;
		(void) choose_device(entry, skip, true, &able);
		if (able < n)
			continue;
		if (n > 1)
			tried->shards = n;
		while (entry->nmembers < n)
		{
			int32_t		device = choose_device(entry, skip, true, &able);

			if (n == 1 && device >= 0)
				tried->whole |= 1u << device;
			/* other threads may have taken the memory that was freed */
			if (device < 0 || !add_member(entry, device))
				return false;
		}
		if (!is_own)
			add_replicas(entry);
		return true;
	}
	return false;
}

/* Memory of builds, sets and searchers */

/*
 * Charges bytes of a device's budget for something that is not a mirror.
 * Returns false if so many bytes cannot be freed.
 */
bool
gv_mirrors_reserve(int32_t device, int64_t bytes)
{
	bool		fits;

	pthread_mutex_lock(&registry.mutex);
	fits = free_up(device, bytes);
	if (fits)
		registry.devices[device].used += bytes;
	pthread_mutex_unlock(&registry.mutex);
	return fits;
}

void
gv_mirrors_unreserve(int32_t device, int64_t bytes)
{
	pthread_mutex_lock(&registry.mutex);
	registry.devices[device].used -= bytes;
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Makes a searcher for messages of many queries.  If the memory that is kept
 * for searchers is not enough for another searcher, mirrors may be evicted.
 * The caller holds no mirror's lock.
 */
GvStatus
gv_mirrors_searcher(int32_t device, GvSearcher **searcher)
{
	GvDeviceMemory *mem = &registry.devices[device];
	int64_t		bytes;
	GvStatus	status = GV_NO_MEMORY;
	bool		fits;

	pthread_mutex_lock(&registry.mutex);
	bytes = most_beside(device, mem->extras) -
		most_beside(device, mem->extras + 1);
	fits = bytes <= 0 || free_up(device, bytes);
	mem->extras += fits;
	pthread_mutex_unlock(&registry.mutex);
	if (fits)
		status = gv_searcher(device, searcher);
	if (fits && status != GV_OK)
		gv_mirrors_searcher_drop(device, NULL);
	return status;
}

/*
 * Drops a searcher that gv_mirrors_searcher has made, and its account.  If
 * searcher is NULL, drops the account only.
 */
void
gv_mirrors_searcher_drop(int32_t device, GvSearcher *searcher)
{
	gv_searcher_drop(searcher);
	pthread_mutex_lock(&registry.mutex);
	registry.devices[device].extras--;
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Returns how many searchers for messages of many queries a device may have.
 * The number is small if a searcher takes memory.
 */
int32_t
gv_mirrors_searchers_most(int32_t device)
{
	return registry.devices[device].searcher > 0 ? GV_MAX_EXTRAS :
		GV_MAX_CLIENT_THREADS;
}

/*
 * Chooses a device for a build or a set: of the devices that were not tried,
 * the one with the fewest builds and sets, and of several such devices the
 * best one for a mirror of that size.  If `beside` is not -1, the build or set
 * is on the device `beside` already, and can do without another device.  Then
 * nothing is evicted, and only a device with fewer builds and sets than
 * `beside` is chosen.  Returns -1 if there is no device.
 */
static int32_t
choose_for_job(int64_t bytes, int32_t beside, GvDeviceSet tried)
{
	const GvDeviceMemory *devices = registry.devices;
	int32_t		best = -1;
	int32_t		i;

	for (i = 0; i < registry.ndevices; i++)
	{
		int			more = best < 0 ? -1 : devices[i].jobs - devices[best].jobs;

		if ((tried & 1u << i) != 0 ||
			(beside < 0 ? !can_free_up(i, bytes) :
			 available_bytes(i) < bytes ||
			 devices[i].jobs >= devices[beside].jobs))
			continue;
		if (more < 0 || (more == 0 && is_better(i, best, bytes)))
			best = i;
	}
	return best;
}

/*
 * Creates a part of a build or a set by create(arg), on a device that
 * choose_for_job() chooses: sets *device, charges the bytes there, and counts
 * the build or set.  If the device turns out to have no memory, tries the
 * others.
 */
GvStatus
gv_job_create(int64_t bytes, int32_t beside, int32_t *device,
			  GvDeviceSet *tried, GvStatus (*create) (void *), void *arg)
{
	GvStatus	status = GV_NO_MEMORY;
	int32_t		chosen;

	pthread_mutex_lock(&registry.mutex);
	while (status == GV_NO_MEMORY &&
		   (chosen = choose_for_job(bytes, beside, *tried)) >= 0)
	{
		*tried |= 1u << chosen;
		if (!free_up(chosen, bytes))
			continue;
		registry.devices[chosen].used += bytes;
		registry.devices[chosen].jobs++;
		*device = chosen;
		do
		{
			pthread_mutex_unlock(&registry.mutex);
			status = create(arg);
			pthread_mutex_lock(&registry.mutex);
		} while (status == GV_NO_MEMORY && beside < 0 && evict_one(chosen));
		if (status == GV_OK)
			break;
		registry.devices[chosen].used -= bytes;
		registry.devices[chosen].jobs--;
	}
	pthread_mutex_unlock(&registry.mutex);
	return status;
}

/*
 * Notes that a build or a set has ended on these devices.  The caller then
 * frees the memory of the build or set, and gives back the bytes.  All devices
 * are noted at once, so that another thread finds either all of these devices
 * idle or none of them.
 */
void
gv_job_end(GvDeviceSet devices)
{
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	for (i = 0; i < registry.ndevices; i++)
		if ((devices & 1u << i) != 0)
			registry.devices[i].jobs--;
	pthread_mutex_unlock(&registry.mutex);
}

/* Growth of mirrors */

/*
 * Called if the engine found no memory in any replica of a mirror for the
 * shards to grow by growth [GV_MAX_DEVICES] bytes.  Chooses the first replica
 * for which anything can be evicted, and evicts another mirror or replica from
 * each device where a shard of this replica has to grow.  Evicts nothing for
 * further replicas, because the mirror can do without them.  Returns false if
 * nothing was evicted.  The caller uses the mirror.
 */
bool
gv_mirrors_evict_for(GvMirrorEntry *entry, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	bool		done = false;
	int32_t		n;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	entry->growing++;
	n = entry->nmembers;
	for (i = 0; i < n; i++)
		devices[i] = entry->members[i].device;
	for (i = 0; i < n && (!done || i % entry->nshards != 0); i++)
		if (growth[i % entry->nshards] > 0)
			done |= evict_one(devices[i]);
	entry->growing--;
	pthread_mutex_unlock(&registry.mutex);
	return done;
}

/*
 * Returns the bytes that must be charged to a member, in addition to its
 * charge, if it grows by `growth` bytes.
 */
static int64_t
lacking(const GvMirrorMember *member, int64_t growth)
{
	int64_t		more = member->bytes + growth - member->charged;

	return more > 0 ? more : 0;
}

/*
 * Returns whether there is memory for all shards of a replica, which begins
 * with member `first`, to grow by growth [nshards] bytes: memory that is
 * available or, if others_go is set, that eviction can free.  A shard whose
 * charge covers the growth needs none, even on a device whose budget is
 * exceeded.
 */
static bool
can_grow(const GvMirrorEntry *entry, int32_t first, const int64_t *growth,
		 bool others_go)
{
	int32_t		i;

	for (i = 0; i < entry->nshards; i++)
	{
		const GvMirrorMember *member = &entry->members[first + i];
		int64_t		more = lacking(member, growth[i]);

		if (more > 0 &&
			(others_go ? !can_free_up(member->device, more) :
			 available_bytes(member->device) < more))
			return false;
	}
	return true;
}

/*
 * Frees memory for the shards of each replica to grow by growth
 * [GV_MAX_DEVICES] bytes, and charges it.  Evicts the replicas for which no
 * memory is available.  If no replica has memory, one replica stays, and other
 * mirrors are evicted for it.  If the other mirrors cannot be evicted either,
 * returns false and charges nothing.  gv_mirrors_changed corrects the charge
 * to what the members take.
 */
bool
gv_mirrors_reserve_growth(GvMirrorEntry *entry, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	GvDeviceSet full = 0;
	int32_t		left = 0;
	bool		fits;
	int32_t		n;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	entry->growing++;
	for (i = 0; i < entry->nmembers; i += entry->nshards)
	{
		if (can_grow(entry, i, growth, false))
			left++;
		else
			full |= 1u << entry->members[i].device;
	}
	for (i = 0; left == 0 && i < entry->nmembers; i += entry->nshards)
		if (can_grow(entry, i, growth, true))
		{
			full &= ~(1u << entry->members[i].device);
			left++;
		}
	fits = left > 0;
	if (fits && full != 0)
		evict_replicas(entry, full, "it has no room to grow");

	/*
	 * Charge all members.  Freeing memory may release the mutex, and other
	 * threads may evict replicas meanwhile, so look members up by device.
	 */
	n = entry->nmembers;
	for (i = 0; i < n; i++)
		devices[i] = entry->members[i].device;
	for (i = 0; i < n && fits; i++)
	{
		GvMirrorMember *member = find_member(entry, devices[i]);
		int64_t		more = member == NULL ? 0 :
		lacking(member, growth[i % entry->nshards]);

		if (more == 0)
			continue;
		fits = free_up(devices[i], more);
		member = find_member(entry, devices[i]);
		if (fits && member != NULL)
		{
			registry.devices[devices[i]].used += more;
			member->charged += more;
		}
	}
	for (i = 0; i < entry->nmembers && !fits; i++)
		charge_member(&entry->members[i], true);
	entry->growing--;
	pthread_mutex_unlock(&registry.mutex);
	return fits;
}

/*
 * Notes that the mirror has been changed, and how many postings it has.  The
 * caller holds the mirror's lock.
 */
void
gv_mirrors_changed(GvMirrorEntry *entry, int64_t postings)
{
	int32_t		before;
	int32_t		lost;

	pthread_mutex_lock(&registry.mutex);
	before = entry->nmembers;
	entry->postings = postings;
	recharge(entry);
	lost = (before - entry->nmembers) / entry->nshards;
	pthread_mutex_unlock(&registry.mutex);
	if (lost > 0)
		gv_log("LOG", "gave up replicas of index %u: %d, whose devices have no "
			   "memory", registry_index(entry), lost);
}

/* Mirrors from their beginning to their end */

/*
 * Returns the mirror of a key.  The mirror is then in use until
 * gv_mirrors_release.  If there is no such mirror, or if it is not ready and
 * has another owner, sets *refusal and returns NULL.  If the key names a
 * calibration mirror, returns the calibration mirror of this owner.
 */
GvMirrorEntry *
gv_mirrors_acquire(const GvMirrorKey *key, uint64_t owner,
				   GvRefusalCode *refusal)
{
	GvMirrorKey own;
	GvMirrorEntry *entry;

	if (gv_is_calibration(key))
	{
		own = gv_calibration_key(owner);
		key = &own;
	}
	pthread_mutex_lock(&registry.mutex);
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
		entry->used_ms = now_ms();
		__atomic_store_n(&entry->key.index, key->index, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&registry.mutex);
	return entry;
}

/*
 * Returns the devices that have members of a key's mirror.  The set is empty
 * if the key has no mirror.  The members may change at any time.
 */
GvDeviceSet
gv_mirrors_devices(const GvMirrorKey *key)
{
	const GvMirrorEntry *entry;
	GvDeviceSet devices = 0;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	entry = find(key);
	for (i = 0; entry != NULL && i < entry->nmembers; i++)
		devices |= 1u << entry->members[i].device;
	pthread_mutex_unlock(&registry.mutex);
	return devices;
}

/* Releases a mirror, and counts its searches. */
void
gv_mirrors_release(GvMirrorEntry *entry, int64_t searches)
{
	pthread_mutex_lock(&registry.mutex);
	entry->searches += searches;
	entry->used_ms = now_ms();
	entry->users--;
	pthread_cond_broadcast(&registry.released);
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Returns an entry that is in no list yet, and has neither a mirror nor an
 * owner, or NULL.  The caller does not hold the mutex.
 */
static GvMirrorEntry *
new_entry(const GvMirrorKey *key, const GvMirrorSpec *spec)
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
	entry->used_ms = now_ms();
	/* batches follow each other closely, but a loader must not starve */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np
		(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&entry->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	return entry;
}

/*
 * Creates the engine's mirror of an entry.  Evicts other mirrors if a device
 * turns out to have no memory.  Then gives the entry its owner.  The caller
 * uses the entry and does not hold the mutex.
 */
static GvRefusalCode
create(GvMirrorEntry *entry, uint64_t owner)
{
	GvPlacement placement = {.nshards = entry->nshards,
	.nreplicas = entry->nmembers / entry->nshards};
	GvStatus	status;
	uint32_t	lacking;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		placement.devices[i] = entry->members[i].device;
	do
	{
		int64_t		growth[GV_MAX_DEVICES] = {0};

		status = gv_mirror_create_on(&entry->spec, &placement, &entry->mirror,
									 &lacking);
		for (i = 0; i < entry->nmembers; i++)
			if ((lacking >> i & 1) != 0)
				growth[i % entry->nshards] = 1;
		if (status != GV_NO_MEMORY || !gv_mirrors_evict_for(entry, growth))
			break;
	} while (true);
	if (status != GV_OK)
	{
		entry->mirror = NULL;
		return gv_status_refusal(status);
	}
	pthread_mutex_lock(&registry.mutex);
	recharge(entry);
	entry->owner = owner;
	pthread_mutex_unlock(&registry.mutex);
	return 0;
}

/*
 * Begins a mirror in a place that was not tried.  Returns 0, or the reason of
 * the failure.  The caller does not hold the mutex.
 *
 * The entry is in the list before the mirror is created, so that no other
 * thread begins the same mirror.  Until then the entry has no owner, so that
 * no other thread of its build can acquire the entry.
 */
static GvRefusalCode
begin_somewhere(const GvMirrorKey *key, const GvMirrorSpec *spec,
				uint64_t owner, GvTriedPlaces *tried)
{
	GvMirrorEntry *entry = new_entry(key, spec);
	GvMirrorEntry *old;
	GvRefusalCode refusal = 0;

	if (entry == NULL)
		return GV_REFUSED_NO_MEMORY;
	pthread_mutex_lock(&registry.mutex);
	while ((old = find(key)) != NULL && !old->ready)
	{
		unlink_entry(old);
		destroy_entry(old, "another loader begins anew");
	}
	if (old != NULL)
		refusal = GV_REFUSED_EXISTS;
	else if (!place(entry, tried))
		refusal = GV_REFUSED_NO_MEMORY;
	/* freeing memory may have released the mutex */
	else if (find(key) != NULL)
		refusal = GV_REFUSED_EXISTS;
	if (refusal != 0)
	{
		destroy_entry(entry, NULL);
		pthread_mutex_unlock(&registry.mutex);
		return refusal;
	}
	entry->users = 1;
	entry->next = registry.first;
	registry.first = entry;
	pthread_mutex_unlock(&registry.mutex);
	refusal = create(entry, owner);
	pthread_mutex_lock(&registry.mutex);
	entry->users--;
	pthread_cond_broadcast(&registry.released);
	/* if another loader has removed the entry, that loader frees it */
	if (refusal != 0 && unlink_entry(entry))
		destroy_entry(entry, NULL);
	pthread_mutex_unlock(&registry.mutex);
	return refusal;
}

/* Begins a mirror.  Returns 0, or the reason of the failure. */
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

/*
 * Lets sessions search a mirror.  From now on the mirror is charged the bytes
 * that it takes, instead of the bytes that were reserved when it was begun.
 */
void
gv_mirrors_ready(GvMirrorEntry *entry)
{
	int64_t		postings;
	int64_t		bytes;
	char		where[32 + 12 * GV_MAX_DEVICES] = "";	/* for the log */
	size_t		used = 0;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	entry->ready = true;
	for (i = 0; i < entry->nmembers; i++)
		entry->members[i].reserved = 0;
	recharge(entry);
	postings = entry->postings;
	bytes = mirror_bytes(entry);
	if (registry.ndevices > 1)
		used = (size_t) snprintf(where, sizeof(where),
								 entry->nmembers == 1 ? " on device" :
								 !is_spare(entry) ? " in shards on devices" :
								 entry->nshards == 1 ?
								 " in replicas on devices" :
								 " in replicas of shards on devices");
	for (i = 0; i < entry->nmembers && used > 0 && used < sizeof(where); i++)
		used += (size_t) snprintf(where + used, sizeof(where) - used, "%s %d",
								  i > 0 ? "," : "",
								  gv_server.numbers[entry->members[i].device]);
	pthread_mutex_unlock(&registry.mutex);
	gv_log("LOG", "index %u is mirrored%s: %lld copies, %lld MB",
		   registry_index(entry), where, (long long) postings,
		   (long long) (bytes >> 20));
}

void
gv_mirrors_drop(const GvMirrorKey *key)
{
	GvMirrorEntry *entry;

	pthread_mutex_lock(&registry.mutex);
	entry = find(key);
	if (entry != NULL && unlink_entry(entry))
		destroy_entry(entry, NULL);
	pthread_mutex_unlock(&registry.mutex);
}

/* Drops the mirrors that an owner who has gone has left unfinished. */
void
gv_mirrors_abandon(uint64_t owner)
{
	GvMirrorEntry *entry;

	pthread_mutex_lock(&registry.mutex);
	do
	{
		entry = registry.first;
		while (entry != NULL && (entry->ready || entry->owner != owner))
			entry = entry->next;
		if (entry != NULL && unlink_entry(entry))
			destroy_entry(entry, "its loader is gone");
	} while (entry != NULL);
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Writes the status of the first `capacity` mirrors to `mirrors` and, unless
 * reply is NULL, the registry's part of a server's status to *reply.  Returns
 * how many mirrors there are.
 */
int32_t
gv_mirrors_status(GvStatusReply *reply, GvMirrorStatus *mirrors,
				  int32_t capacity)
{
	int64_t		now = now_ms();
	const GvMirrorEntry *entry;
	int32_t		n = 0;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	for (entry = registry.first; entry != NULL; entry = entry->next)
	{
		/* calibration mirrors belong to their builds */
		if (gv_is_calibration(&entry->key))
			continue;
		if (n < capacity)
			mirrors[n] = (GvMirrorStatus)
		{
			.key = entry->key,
				.ready = entry->ready,
				.metric = entry->spec.metric,
				.dims = entry->spec.dims,
				.m = entry->spec.m,
				.nlists = entry->spec.nlists,
				.nparents = entry->spec.nparents,
				.refine_slots = entry->spec.refine_slots,
				.device = gv_server.numbers[entry->spec.device],
				.shards = entry->nshards,
				.replicas = entry->nmembers / entry->nshards,
				.bytes = mirror_bytes(entry),
				.postings = entry->postings,
				.expected = entry->spec.postings,
				.searches = entry->searches,
				.idle_ms = now > entry->used_ms ? now - entry->used_ms : 0
		};
		n++;
	}
	if (reply != NULL)
	{
		for (i = 0; i < registry.ndevices; i++)
		{
			int64_t		memory = most_bytes(i);

			reply->memory += memory;
			if (memory > reply->most)
				reply->most = memory;
			reply->used += registry.devices[i].used;
		}
		reply->evictions = registry.evictions;
	}
	pthread_mutex_unlock(&registry.mutex);
	return n;
}
