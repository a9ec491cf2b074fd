/*
 * registry.c
 *		The registry: which mirrors there are, on which devices, who uses them,
 *		and how much of the devices' budgets they take.
 *
 * Every device has a budget, which mirrors, builds and sets share (server/README,
 * "Memory of the devices").  The shards of a replica exist together or not at
 * all, and a replica that is not the mirror's only one may be evicted alone.
 * Eviction takes such replicas first, then the rows of mirrors, then mirrors
 * that are not in use, and nothing if that would not be enough.  Memory is
 * freed before its bytes are reserved for others, because a device has no more
 * than that.
 *
 * A mirror that is in use (users > 0) is not freed: a thread that removes the
 * mirror from the registry waits until all users have released it.  A thread
 * that waits in this way uses no other mirror, and eviction removes only
 * mirrors that are not in use, so threads do not wait in a circle.
 *
 * The mutex protects all of the registry.  The callers of static functions
 * hold it, unless a comment says otherwise.  Destroying or evicting a mirror,
 * and so freeing memory, and creating a mirror or a searcher release the mutex
 * for a while.
 */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_EXTRAS		2		/* searchers of a device for messages of many
								 * queries, if a searcher takes memory */
#define LOOK_MS			100		/* after which a thread that waits for a
								 * searcher looks whether its client is gone */

/* A device: its memory account, in bytes, and its searchers. */
typedef struct DeviceAccount
{
	int64_t		budget;			/* for mirrors, builds and sets */
	int64_t		used;			/* charged of the budget */
	int			jobs;			/* number of builds and sets on the device */
	int64_t		memory;			/* that mirrors and searchers have together */
	int64_t		searcher;		/* that one searcher may take */

	/* searchers for messages of many queries, which clients' threads share */
	int32_t		extras;			/* number of them, idle or not */
	int32_t		nidle;
	GvSearcher *idle[GV_MAX_CLIENT_THREADS];	/* [nidle] */
	int32_t		busy;			/* threads that have one or wait for one */
	pthread_cond_t given;		/* one was given back */
} DeviceAccount;

static struct
{
	pthread_mutex_t mutex;
	pthread_cond_t released;	/* a mirror was released */
	GvMirrorEntry *first;
	int32_t		ndevices;
	DeviceAccount devices[GV_MAX_DEVICES];
	int32_t		searching;		/* clients' threads that have sent a search,
								 * busy or not */
	int64_t		evictions;
	int64_t		evict_grace_ms; /* mirrors used in this time are not evicted */
}			registry = {

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
		pthread_cond_init(&registry.devices[i].given, NULL);
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

/* Takes a mirror out of the list.  Returns false if it is not there. */
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

/* Returns whether the mirror has several replicas. */
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

/* Gives back the bytes of a mirror's members, and removes the members. */
static void
remove_members(GvMirrorEntry *entry)
{
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		charge_member(&entry->members[i], false);
	entry->nmembers = 0;
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

	while (entry->users > 0)
		pthread_cond_wait(&registry.released, &registry.mutex);
	bytes = mirror_bytes(entry);
	pthread_mutex_unlock(&registry.mutex);
	if (reason != NULL)
		gv_log("LOG", "dropped mirror of index %u, %lld MB: %s",
			   registry_index(entry), (long long) (bytes >> 20), reason);
	gv_mirror_drop(entry->mirror);
	pthread_rwlock_destroy(&entry->lock);
	free(entry->states);
	pthread_mutex_lock(&registry.mutex);
	remove_members(entry);
	free(entry);
}

/* Accounts of the devices */

/* Returns the bytes that mirrors, builds and sets may have on a device. */
static int64_t
most_bytes(int32_t device)
{
	const DeviceAccount *account = &registry.devices[device];
	int64_t		most = account->memory -
	account->searcher * (GV_BATCH_SLOTS + account->extras);

	/* searchers of batch slots are not in the budget */
	return account->extras == 0 || most > account->budget ? account->budget :
		most;
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
evictable(GvMirrorEntry *entry, int32_t device, int64_t now)
{
	return entry->ready && entry->growing == 0 &&
		find_member(entry, device) != NULL &&
		(is_spare(entry) ||
		 (entry->users == 0 && now -
		  entry->used_ms >= registry.evict_grace_ms));
}

/* Returns the bytes that one of a mirror's nshards shards takes on a device. */
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
 * Returns about how many bytes a device gains if a mirror drops its rows; 0 if
 * it may not do that now.  Where they are fewer, the rows may go in vain, which
 * costs searches time and nothing else.
 */
static int64_t
droppable_bytes(GvMirrorEntry *entry, int32_t device)
{
	const GvMirrorMember *member = find_member(entry, device);
	GvMirrorSpec bare = entry->spec;
	int64_t		bytes;

	if (!entry->ready || member == NULL || bare.rows == GV_ROWS_NONE)
		return 0;
	bare.rows = GV_ROWS_NONE;
	/* what lists have got since they were begun stays */
	if (bare.postings < entry->nitems)
		bare.postings = entry->nitems;
	bytes = member->charged - shard_size(&bare, device, entry->nshards);
	return bytes > 0 ? bytes : 0;
}

/*
 * Returns the mirror that a device evicts next, or NULL if none may be evicted:
 * of the mirrors with several replicas or, if there is none, of all mirrors,
 * the one that has been idle longest.
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
			gv_log("LOG", "dropped replica of index %u on device %d: %s",
				   registry_index(entry), gv_server.numbers[i], reason);
	pthread_mutex_lock(&registry.mutex);
	recharge(entry);
	pthread_rwlock_unlock(&entry->lock);
	entry->users--;
	pthread_cond_broadcast(&registry.released);
}

/*
 * Drops the rows of a mirror, and logs the reason.  Does nothing if the mirror
 * has none.  Releases the mutex and waits for the mirror's lock, as
 * evict_replicas does.
 */
static void
drop_rows(GvMirrorEntry *entry, const char *reason)
{
	bool		dropped;

	entry->users++;
	pthread_mutex_unlock(&registry.mutex);
	pthread_rwlock_wrlock(&entry->lock);
	dropped = entry->spec.rows != GV_ROWS_NONE &&
		gv_mirror_drop_rows(entry->mirror) == GV_OK;
	pthread_mutex_lock(&registry.mutex);
	entry->spec.rows = GV_ROWS_NONE;
	recharge(entry);
	pthread_rwlock_unlock(&entry->lock);
	entry->users--;
	pthread_cond_broadcast(&registry.released);
	if (dropped)
		gv_log("LOG", "dropped rows of the mirror of index %u: %s",
			   registry_index(entry), reason);
}

/*
 * Drops the rows of the mirror on a device that was searched least recently.
 * Returns false if no mirror there has rows.  Releases the mutex meanwhile.
 */
static bool
drop_some_rows(int32_t device)
{
	GvMirrorEntry *victim = NULL;
	GvMirrorEntry *entry;

	for (entry = registry.first; entry != NULL; entry = entry->next)
		if (droppable_bytes(entry, device) > 0 &&
			(victim == NULL || entry->used_ms < victim->used_ms))
			victim = entry;
	if (victim == NULL)
		return false;
	drop_rows(victim, "evicted for other memory");
	return true;
}

/*
 * Evicts the next mirror, its rows, or a replica from a device.  Returns false
 * if nothing may be evicted.  Releases the mutex meanwhile.
 */
static bool
evict_one(int32_t device)
{
	GvMirrorEntry *victim = idlest(device);

	if ((victim == NULL || !is_spare(victim)) && drop_some_rows(device))
		return true;
	if (victim == NULL)
		return false;
	if (is_spare(victim))
	{
		bool		done;

		evict_replicas(victim, 1u << device, "evicted for another mirror");
		/* this thread holds the mutex again, so the victim is still there */
		done = find_member(victim, device) == NULL;
		registry.evictions += done;
		return done;
	}
	unlink_entry(victim);
	registry.evictions++;
	destroy_entry(victim, "evicted for another mirror");
	return true;
}

/*
 * Returns whether `bytes` of a device are available or, if others_go is set,
 * would be if all mirrors, replicas and rows were evicted that may be evicted.
 */
static bool
has_memory(int32_t device, int64_t bytes, bool others_go)
{
	int64_t		now = now_ms();
	int64_t		available = available_bytes(device);
	GvMirrorEntry *entry;

	for (entry = registry.first; entry != NULL && available < bytes;
		 entry = entry->next)
		if (others_go)
			available += evictable(entry, device, now) ?
				find_member(entry, device)->charged :
				droppable_bytes(entry, device);
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
	if (!has_memory(device, bytes, true))
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
			!has_memory(i, bytes, others_go))
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
 * Creates the engine's mirror of an entry, and gives the entry its owner.
 * Evicts other mirrors if a device turns out to have no memory.  Releases the
 * mutex meanwhile.
 */
static GvRefusalCode
create(GvMirrorEntry *entry, uint64_t owner)
{
	GvPlacement placement = {.nshards = entry->nshards,
	.nreplicas = entry->nmembers / entry->nshards};
	GvRefusalCode refusal;
	GvStatus	status;
	uint32_t	lacking;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		placement.devices[i] = entry->members[i].device;
	pthread_mutex_unlock(&registry.mutex);
	while ((status = gv_mirror_create_on(&entry->spec, &placement,
										 &entry->mirror, &lacking)) ==
		   GV_NO_MEMORY)
	{
		int64_t		growth[GV_MAX_DEVICES] = {0};

		for (i = 0; i < entry->nmembers; i++)
			if ((lacking >> i & 1) != 0)
				growth[i % entry->nshards] = 1;
		if (!gv_mirrors_evict_for(entry, growth))
			break;
	}
	refusal = gv_status_refusal(status);
	pthread_mutex_lock(&registry.mutex);
	if (refusal == 0)
	{
		recharge(entry);
		entry->owner = owner;
	}
	else
		entry->mirror = NULL;
	return refusal;
}

/*
 * Creates a mirror in the fewest shards for which devices can free memory, and
 * with replicas.  The bytes of all members are charged until the mirror is
 * destroyed.  If a device turns out to have no memory, tries other places:
 * each device for the whole mirror, then more shards.  A calibration mirror is
 * neither divided, because its build can do without it, nor replicated,
 * because only one thread searches it.  Returns 0, or the reason of the
 * failure.
 */
static GvRefusalCode
place(GvMirrorEntry *entry, uint64_t owner)
{
	bool		is_own = gv_is_calibration(&entry->key);
	int32_t		most = is_own ? 1 : registry.ndevices;
	GvRefusalCode refusal = GV_REFUSED_NO_MEMORY;
	int32_t		n;

	for (n = 1; n <= most && refusal == GV_REFUSED_NO_MEMORY; n++)
	{
		GvDeviceSet tried = 0;
		int32_t		able;

		entry->nshards = n;
		do
		{
			while (entry->nmembers < n)
			{
				int32_t		device = choose_device(entry, tried, true, &able);

				if (able < n - entry->nmembers)
					break;
				tried |= 1u << device;
				/* other threads may have taken the memory that was freed */
				if (!add_member(entry, device))
					break;
			}
			if (entry->nmembers == n)
			{
				if (!is_own)
					add_replicas(entry);
				refusal = create(entry, owner);
			}
			if (refusal != 0)
				remove_members(entry);
		} while (n == 1 && able > 0 && refusal == GV_REFUSED_NO_MEMORY);
	}
	return refusal;
}

/*
 * Leaves out the rows of a mirror that has not been placed, if they would cost
 * others memory or the mirror another shard.  They stay if devices have enough
 * free memory for them, with the number of shards that suffices without rows.
 */
static void
choose_rows(GvMirrorEntry *entry)
{
	int32_t		rows = entry->spec.rows;
	int32_t		able = 0;
	int32_t		n;

	entry->spec.rows = GV_ROWS_NONE;
	for (n = 1; n <= registry.ndevices && able < n; n++)
	{
		entry->nshards = n;
		(void) choose_device(entry, 0, true, &able);
	}
	entry->spec.rows = rows;
	(void) choose_device(entry, 0, false, &able);
	if (able < entry->nshards)
		entry->spec.rows = GV_ROWS_NONE;
}

/* Builds and sets */

/* Gives back the bytes that a job has on these devices, and leaves them. */
static void
leave_devices(GvJob *job, GvDeviceSet devices)
{
	int32_t		i;

	devices &= job->devices;
	job->devices &= ~devices;
	for (i = 0; i < registry.ndevices; i++)
		if ((devices & 1u << i) != 0)
		{
			registry.devices[i].used -= job->charged[i];
			registry.devices[i].jobs--;
		}
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
	const DeviceAccount *devices = registry.devices;
	int32_t		best = -1;
	int32_t		i;

	for (i = 0; i < registry.ndevices; i++)
	{
		int			more = best < 0 ? -1 : devices[i].jobs - devices[best].jobs;

		if ((tried & 1u << i) != 0 ||
			!has_memory(i, bytes, beside < 0) ||
			(beside >= 0 && devices[i].jobs >= devices[beside].jobs))
			continue;
		if (more < 0 || (more == 0 && is_better(i, best, bytes)))
			best = i;
	}
	return best;
}

/*
 * Creates a part of a job by create(arg), on a device that choose_for_job()
 * chooses: sets *device, and charges the bytes there.  If the device turns out
 * to have no memory, tries the others.
 */
GvStatus
gv_job_create(GvJob *job, int64_t bytes, int32_t beside, int32_t *device,
			  GvStatus (*create) (void *), void *arg)
{
	GvStatus	status = GV_NO_MEMORY;
	int32_t		chosen;

	pthread_mutex_lock(&registry.mutex);
	while (status == GV_NO_MEMORY &&
		   (chosen = choose_for_job(bytes, beside, job->tried)) >= 0)
	{
		job->tried |= 1u << chosen;
		if (!free_up(chosen, bytes))
			continue;
		registry.devices[chosen].used += bytes;
		registry.devices[chosen].jobs++;
		job->devices |= 1u << chosen;
		job->charged[chosen] = bytes;
		*device = chosen;
		do
		{
			pthread_mutex_unlock(&registry.mutex);
			status = create(arg);
			pthread_mutex_lock(&registry.mutex);
		} while (status == GV_NO_MEMORY && beside < 0 && evict_one(chosen));
		if (status != GV_OK)
			leave_devices(job, 1u << chosen);
	}
	pthread_mutex_unlock(&registry.mutex);
	return status;
}

/*
 * Raises the charge of a job's part to `bytes`, if it is less.  Returns false
 * if the memory cannot be freed.
 */
bool
gv_job_grow(GvJob *job, int32_t device, int64_t bytes)
{
	int64_t		more = bytes - job->charged[device];
	bool		fits;

	pthread_mutex_lock(&registry.mutex);
	fits = more <= 0 || free_up(device, more);
	if (fits && more > 0)
	{
		registry.devices[device].used += more;
		job->charged[device] = bytes;
	}
	pthread_mutex_unlock(&registry.mutex);
	return fits;
}

void
gv_job_end(GvJob *job, GvDeviceSet devices)
{
	pthread_mutex_lock(&registry.mutex);
	leave_devices(job, devices);
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

		if (more > 0 && !has_memory(member->device, more, others_go))
			return false;
	}
	return true;
}

/*
 * Charges all members the bytes by which they will grow, and frees memory for
 * them where too little is available.  Returns false if it cannot be freed.
 * Then charge_member has to correct the charges.
 */
static bool
charge_growth(GvMirrorEntry *entry, const int64_t *growth)
{
	int32_t		i = 0;

	while (i < entry->nmembers)
	{
		GvMirrorMember *member = &entry->members[i++];
		int64_t		more = lacking(member, growth[(i - 1) % entry->nshards]);

		if (more > 0 && available_bytes(member->device) < more)
		{
			if (!free_up(member->device, more))
				return false;
			/* members or their charges may have changed: look at all again */
			i = 0;
			continue;
		}
		registry.devices[member->device].used += more;
		member->charged += more;
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
	GvDeviceSet full = 0;
	int32_t		left = 0;
	bool		fits;
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
		evict_replicas(entry, full, "out of memory to extend it");
	fits = fits && charge_growth(entry, growth);
	for (i = 0; i < entry->nmembers && !fits; i++)
		charge_member(&entry->members[i], true);
	entry->growing--;
	pthread_mutex_unlock(&registry.mutex);
	return fits;
}

/*
 * Charges the bytes by which the rows of each replica's shards will grow, if
 * they are available without evicting others.  Otherwise returns false and
 * charges nothing.  gv_mirrors_changed corrects the charge.
 */
bool
gv_mirrors_reserve_rows(GvMirrorEntry *entry, const int64_t *growth)
{
	bool		fits = true;
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	for (i = 0; i < entry->nmembers && fits; i += entry->nshards)
		fits = can_grow(entry, i, growth, false);
	fits = fits && charge_growth(entry, growth);
	pthread_mutex_unlock(&registry.mutex);
	return fits;
}

/* Drops the rows of a mirror for which there was no memory.  The caller uses it. */
void
gv_mirrors_drop_rows(GvMirrorEntry *entry)
{
	pthread_mutex_lock(&registry.mutex);
	drop_rows(entry, "out of memory to extend them");
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Notes that the mirror has been changed, and has got `more` postings.  The
 * caller holds the mirror's lock.
 */
void
gv_mirrors_changed(GvMirrorEntry *entry, int64_t more)
{
	int32_t		before;
	int32_t		lost;

	pthread_mutex_lock(&registry.mutex);
	before = entry->nmembers;
	entry->nitems += more;
	recharge(entry);
	lost = (before - entry->nmembers) / entry->nshards;
	pthread_mutex_unlock(&registry.mutex);
	if (lost > 0)
		gv_log("LOG", "dropped replicas of index %u: %d, whose devices lack memory",
			   registry_index(entry), lost);
}

/* Mirrors from their beginning to their end */

/*
 * Returns the mirror of a key.  The mirror is then in use until
 * gv_mirrors_release.  If the engine has failed, if there is no such mirror,
 * or if it is not ready and has another owner, sets *refusal and returns NULL.
 * If the key names a calibration mirror, returns the calibration mirror of
 * this owner.
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
	*refusal = gv_server_failed() ? GV_REFUSED_FAILED :
		entry == NULL ? GV_REFUSED_NO_MIRROR : 0;
	if (*refusal == 0 && !entry->ready && entry->owner != owner)
		*refusal = GV_REFUSED_LOADING;
	if (*refusal == 0)
	{
		entry->users++;
		entry->used_ms = now_ms();
		__atomic_store_n(&entry->key.index, key->index, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&registry.mutex);
	return *refusal == 0 ? entry : NULL;
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
 * Returns an entry that has neither members nor a mirror nor an owner, or
 * NULL.  The caller does not hold the mutex.
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
	entry->nshards = 1;
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
 * Begins a mirror.  Returns 0, or the reason of the failure.  Sets spec->rows
 * to what the mirror takes: no rows if there is no memory for them or, unless
 * rows_must is set, if others would have to be evicted.
 *
 * The entry is in the list before the mirror is created, so that no other
 * thread begins the same mirror.  Until then the entry has no owner, so that
 * no other thread of its build can acquire the entry.
 */
GvRefusalCode
gv_mirrors_begin(const GvMirrorKey *key, GvMirrorSpec *spec, bool rows_must,
				 uint64_t owner)
{
	GvMirrorEntry *entry;
	GvMirrorEntry *old;
	GvRefusalCode refusal = GV_REFUSED_EXISTS;

	if (gv_mirror_size(spec) == 0)
		return GV_REFUSED_PROTOCOL;
	entry = new_entry(key, spec);
	if (entry == NULL)
		return GV_REFUSED_NO_MEMORY;
	pthread_mutex_lock(&registry.mutex);
	while ((old = find(key)) != NULL && !old->ready)
	{
		unlink_entry(old);
		destroy_entry(old, "another loader has restarted it");
	}
	entry->users = 1;
	entry->next = registry.first;
	registry.first = entry;
	if (old == NULL)
	{
		if (!rows_must && spec->rows != GV_ROWS_NONE)
			choose_rows(entry);
		refusal = place(entry, owner);
		if (refusal == GV_REFUSED_NO_MEMORY &&
			entry->spec.rows != GV_ROWS_NONE)
		{
			entry->spec.rows = GV_ROWS_NONE;
			refusal = place(entry, owner);
		}
		spec->rows = entry->spec.rows;
	}
	entry->users--;
	pthread_cond_broadcast(&registry.released);
	/* if another loader has removed the entry, that loader frees it */
	if (refusal != 0 && unlink_entry(entry))
		destroy_entry(entry, NULL);
	pthread_mutex_unlock(&registry.mutex);
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
	postings = entry->nitems;
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
	gv_log("LOG", "loaded index %u%s: %lld postings, %lld MB",
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
			destroy_entry(entry, "its loader has exited");
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
				.postings = entry->nitems,
				.expected = entry->spec.postings,
				.searches = entry->searches,
				.idle_ms = now > entry->used_ms ? now - entry->used_ms : 0,
				.rows = entry->spec.rows
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

/* Searchers for messages of many queries */

/*
 * Takes an idle searcher of a device, or makes one if the device may have
 * more.  A searcher counts before it is made, so the budget is smaller then:
 * if the memory that is kept for searchers is not enough, mirrors may be
 * evicted.  If there is no memory for another searcher, but the device has
 * some, waits until a thread gives one back, which wakes one thread: hundreds
 * may wait, and the loop needs the mutex meanwhile.
 */
static GvStatus
take_searcher(int32_t device, const GvStop *stop, GvSearcher **searcher)
{
	DeviceAccount *account = &registry.devices[device];
	int32_t		most_extras = account->searcher > 0 ? MAX_EXTRAS :
	GV_MAX_CLIENT_THREADS;

	while (account->nidle == 0)
	{
		struct timespec until;

		if (account->extras < most_extras)
		{
			int64_t		before = most_bytes(device);
			GvStatus	status = GV_NO_MEMORY;

			account->extras++;
			if (most_bytes(device) >= before || free_up(device, 0))
			{
				pthread_mutex_unlock(&registry.mutex);
				status = gv_searcher(device, searcher);
				pthread_mutex_lock(&registry.mutex);
			}
			if (status == GV_OK)
				return GV_OK;
			account->extras--;
			if (status != GV_NO_MEMORY || account->extras == 0)
				return status;
		}
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += LOOK_MS * 1000000L;
		until.tv_sec += until.tv_nsec / 1000000000L;
		until.tv_nsec %= 1000000000L;
		(void) pthread_cond_timedwait(&account->given, &registry.mutex,
									  &until);
		if (stop->requested(stop->arg))
		{
			/* the searcher that woke this thread is for another one */
			pthread_cond_signal(&account->given);
			return GV_CANCELED;
		}
	}
	*searcher = account->idle[--account->nidle];
	return GV_OK;
}

/*
 * Gives back the searchers of a team.  A member whose searcher is NULL has
 * none.
 */
static void
give_searchers(GvTeam *team)
{
	int32_t		s;

	for (s = 0; s < team->nshards; s++)
	{
		DeviceAccount *account = &registry.devices[team->devices[s]];

		if (team->searchers[s] == NULL)
			continue;
		account->busy--;
		account->idle[account->nidle++] = team->searchers[s];
		pthread_cond_signal(&account->given);
	}
}

/*
 * Takes a searcher of each of the team's devices.  Takes them in the order of
 * the devices' numbers, so that threads that have some searchers and wait for
 * others do not wait in a circle.  On failure the team has no searchers.
 */
static GvStatus
take_searchers(GvTeam *team, const GvStop *stop)
{
	GvStatus	status = GV_OK;
	int32_t		device;
	int32_t		s;

	for (device = 0; device < registry.ndevices; device++)
		for (s = 0; s < team->nshards && status == GV_OK; s++)
		{
			if (team->devices[s] != device)
				continue;
			registry.devices[device].busy++;
			status = take_searcher(device, stop, &team->searchers[s]);
			if (status == GV_OK)
				continue;
			registry.devices[device].busy--;
			team->searchers[s] = NULL;
		}
	if (status != GV_OK)
		give_searchers(team);
	return status;
}

/*
 * Sets *team to the devices of the mirror's replica whose devices have the
 * fewest busy threads.
 */
static void
choose_team(const GvMirrorEntry *entry, GvTeam *team)
{
	int32_t		fewest = INT32_MAX;
	int32_t		first;
	int32_t		s;

	*team = (GvTeam)
	{
		.nshards = entry->nshards
	};
	for (first = 0; first < entry->nmembers; first += entry->nshards)
	{
		const GvMirrorMember *members = &entry->members[first];
		int32_t		busy = 0;

		for (s = 0; s < entry->nshards; s++)
			busy += registry.devices[members[s].device].busy;
		if (busy >= fewest)
			continue;
		fewest = busy;
		for (s = 0; s < entry->nshards; s++)
			team->devices[s] = members[s].device;
	}
}

/*
 * Chooses a replica of a mirror, takes searchers for it, and locks the mirror.
 * Does not wait for a searcher under that lock, because threads that have
 * searchers take the lock, too.  The caller uses the mirror, and holds no
 * mirror's lock.
 */
GvStatus
gv_searchers_take(GvMirrorEntry *entry, const GvStop *stop, GvTeam *team)
{
	for (;;)
	{
		GvStatus	status;

		pthread_mutex_lock(&registry.mutex);
		choose_team(entry, team);
		status = take_searchers(team, stop);
		pthread_mutex_unlock(&registry.mutex);
		if (status != GV_OK)
			return status;
		pthread_rwlock_rdlock(&entry->lock);
		/* replicas are evicted as a whole */
		if (find_member(entry, team->devices[0]) != NULL)
			return GV_OK;
		pthread_rwlock_unlock(&entry->lock);
		gv_searchers_give(team);
	}
}

void
gv_searchers_give(GvTeam *team)
{
	pthread_mutex_lock(&registry.mutex);
	give_searchers(team);
	pthread_mutex_unlock(&registry.mutex);
}

/*
 * Notes that a client's thread has begun to send searches (1) or ends (-1).
 * Drops idle searchers of devices that have more of them than there are such
 * threads.
 */
void
gv_searchers_count(int32_t more)
{
	int32_t		i;

	pthread_mutex_lock(&registry.mutex);
	registry.searching += more;
	for (i = 0; i < registry.ndevices; i++)
	{
		DeviceAccount *account = &registry.devices[i];

		while (account->nidle > 0 && account->extras > registry.searching)
		{
			GvSearcher *searcher = account->idle[--account->nidle];

			pthread_mutex_unlock(&registry.mutex);
			gv_searcher_drop(searcher);
			pthread_mutex_lock(&registry.mutex);
			account->extras--;
		}
	}
	pthread_mutex_unlock(&registry.mutex);
}
