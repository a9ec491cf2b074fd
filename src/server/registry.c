/*
 * registry.c
 *		Memory of the devices: who gets it, where, and who is evicted.
 *
 * Every device has a budget of its own.  Searchers of its batch slots are
 * beside it.  All other searchers may take memory that mirrors could have:
 * those that searches of shards need on devices beside their first one, and
 * those of many searches in one message, of calibration mirrors and of
 * loaders.  Eviction takes replicas of mirrors that have others, then mirrors
 * that are not in use, and none in vain.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/registry.h"

static GvMirrorMember *registry_member(GvMirrorEntry *entry,
										  int32_t device);
static void registry_recharge(GvMirrorEntry *entry);
static bool registry_unlink(GvMirrorEntry *entry);
static void registry_destroy(GvMirrorEntry *entry, const char *reason);

/*
 * Locked: may this one be evicted, for the sake of others on a device?
 * Whoever uses it, one of several replicas may.
 */
static bool
evictable(const GvMirrorEntry *entry, int32_t device, int64_t now)
{
	return entry->ready && entry->growing == 0 &&
		registry_member((GvMirrorEntry *) entry, device) != NULL &&
		(gv_registry_is_spare(entry) ||
		 (entry->users == 0 && now - entry->used_ms >= gv_registry.keep_ms));
}

/* Locked: does a go rather than b? */
static bool
goes_before(const GvMirrorEntry *a, const GvMirrorEntry *b)
{
	bool		spare = gv_registry_is_spare(a);

	return spare != gv_registry_is_spare(b) ? spare : a->used_ms < b->used_ms;
}

/*
 * Locked: of a device's mirrors that may go one to spare or, without that, the
 * one that has been idle longest.
 */
static GvMirrorEntry *
idlest(int32_t device)
{
	int64_t		now = gv_now_ms();
	GvMirrorEntry *found = NULL;
	GvMirrorEntry *entry;

	for (entry = gv_registry.first; entry != NULL; entry = entry->next)
		if (evictable(entry, device, now) &&
			(found == NULL || goes_before(entry, found)))
			found = entry;
	return found;
}

/*
 * Locked: a replica goes, and others of the mirror stay; false: it could not.
 * The registry's lock is let go meanwhile, and the mirror's waited for: who
 * has that waits for no other.
 */
static bool
evict_replica(GvMirrorEntry *entry, int32_t device)
{
	bool		gone;

	entry->users++;
	gv_registry_unlock();
	pthread_rwlock_wrlock(&entry->lock);
	if (gv_mirror_drop_replica(entry->mirror, device) == GV_OK)
		gv_log("LOG", "gave up the replica of index %u on device %d: others "
			   "need its memory", gv_registry_index(entry),
			   gv_server.numbers[device]);
	gv_registry_lock();
	registry_recharge(entry);
	/* another thread may have been faster */
	gone = registry_member(entry, device) == NULL;
	pthread_rwlock_unlock(&entry->lock);
	entry->users--;
	pthread_cond_broadcast(&gv_registry.released);
	return gone;
}

/* Locked: evict that one, from there; false if there is none. */
static bool
evict_one(int32_t device)
{
	GvMirrorEntry *victim = idlest(device);

	if (victim == NULL)
		return false;
	if (gv_registry_is_spare(victim))
	{
		bool		done = evict_replica(victim, device);

		gv_registry.evictions += done;
		return done;
	}
	registry_unlink(victim);
	gv_registry.evictions++;
	registry_destroy(victim, "others need its memory");
	return true;
}

/*
 * Locked: bytes that mirrors may have besides searchers of the devices in
 * `guests`, and `extras` more.
 */
static int64_t
most_beside(int32_t device, GvTriedDevices guests, int32_t extras)
{
	const GvDeviceMemory *mem = &gv_registry.devices[device];
	int64_t		most = mem->memory - mem->searcher *
	(GV_BATCH_SLOTS * (1 + __builtin_popcount(guests)) + extras);

	/* searchers of its batch slots are not in the budget */
	return (guests == 0 && extras == 0) || most > mem->budget ?
		mem->budget : most;
}

/*
 * Locked: devices whose searchers are there, or will be once a mirror is
 * ready.
 */
static GvTriedDevices
guests_of(int32_t device)
{
	const GvDeviceMemory *mem = &gv_registry.devices[device];
	GvTriedDevices guests = mem->guests;
	int32_t		i;

	for (i = 0; i < gv_registry.ndevices; i++)
		if (mem->coming[i] > 0)
			guests |= 1u << i;
	return guests;
}

/* Locked: bytes that mirrors may have. */
static int64_t
registry_most(int32_t device)
{
	return most_beside(device, guests_of(device),
					   gv_registry.devices[device].extras);
}

/* Locked: bytes that are not reserved. */
static int64_t
registry_available(int32_t device)
{
	return registry_most(device) - gv_registry.devices[device].used;
}

/* Locked: would these bytes be free without all that may be evicted? */
static bool
registry_can_free_up(int32_t device, int64_t bytes)
{
	int64_t		now = gv_now_ms();
	int64_t		available = registry_available(device);
	const GvMirrorEntry *entry;

	for (entry = gv_registry.first; entry != NULL && available < bytes;
		 entry = entry->next)
		if (evictable(entry, device, now))
			available +=
				registry_member((GvMirrorEntry *) entry, device)->charged;
	return available >= bytes;
}

/*
 * Locked: frees `bytes` more of a device's budget and charges nothing;
 * false without evicting anything when that would not do.
 */
static bool
registry_free_up(int32_t device, int64_t bytes)
{
	if (!registry_can_free_up(device, bytes))
		return false;
	while (registry_available(device) < bytes)
		if (!evict_one(device))
			return false;
	return true;
}

/*
 * Locked: is device a better than b for these bytes, a member of the same size
 * on either?  One with enough memory is, or that has more; else the one whose
 * mirror has been idle longer.
 */
static bool
is_better(int32_t a, int32_t b, int64_t bytes)
{
	const GvMirrorEntry *idle_a;
	const GvMirrorEntry *idle_b;

	if (registry_available(a) >= bytes || registry_available(b) >= bytes)
		return registry_available(a) > registry_available(b);
	idle_a = idlest(a);
	idle_b = idlest(b);
	return idle_a != NULL && idle_b != NULL &&
		idle_a->used_ms < idle_b->used_ms;
}

/* Evicts one because a device has no memory; false if none may be. */
bool
gv_mirrors_evict(int32_t device)
{
	bool		done;

	gv_registry_lock();
	done = evict_one(device);
	gv_registry_unlock();
	return done;
}

/* Bytes of one of nshards shards on a device; 1: of the whole mirror. */
static int64_t
shard_size(const GvMirrorSpec *spec, int32_t device, int32_t nshards)
{
	GvPlacement placement = {GV_SHARDS, nshards, {0}};
	int32_t		i;

	for (i = 0; i < nshards; i++)
		placement.devices[i] = (device + i) % gv_registry.ndevices;
	return gv_mirror_member_size(spec, &placement, 0);
}

/*
 * Locked: memory that one of nshards members of a mirror, searched from device
 * `first`, takes on a device, with the searchers that it needs there.
 */
static int64_t
member_memory(const GvMirrorEntry *entry, int32_t device, int32_t nshards,
			  int32_t first)
{
	GvTriedDevices guests = guests_of(device);
	int32_t		extras = gv_registry.devices[device].extras;
	int64_t		bytes = shard_size(&entry->spec, device, nshards);

	if (nshards > 1 && first >= 0 && first != device)
		bytes += most_beside(device, guests, extras) -
			most_beside(device, guests | 1u << first, extras);
	return bytes;
}

/*
 * Locked: adds a member on a device where memory is freed; false: there is
 * none.
 */
static bool
add_member(GvMirrorEntry *entry, int32_t device, int32_t nshards)
{
	int64_t		bytes = shard_size(&entry->spec, device, nshards);
	int32_t		first = entry->nmembers > 0 ? entry->members[0].device :
	device;
	bool		promised = nshards > 1 && first != device;

	if (!registry_free_up(device,
							 member_memory(entry, device, nshards, first)))
		return false;
	gv_registry.devices[device].coming[first] += promised;
	gv_registry.devices[device].used += bytes;
	entry->members[entry->nmembers++] = (GvMirrorMember)
	{
		device, bytes, bytes, 0, promised
	};
	entry->spec.device = entry->members[0].device;
	return true;
}

/*
 * Locked: ends a mirror's reservation for searchers: either it is searched
 * from now on, and they stay, or it is gone.
 */
static void
registry_settle(GvMirrorEntry *entry, bool searched)
{
	int32_t		first = entry->members[0].device;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
	{
		GvMirrorMember *member = &entry->members[i];
		GvDeviceMemory *mem = &gv_registry.devices[member->device];

		if (!member->promised)
			continue;
		member->promised = false;
		mem->coming[first]--;
		if (searched)
			mem->guests |= 1u << first;
	}
}

/*
 * Locked: the device with most memory where the mirror is not yet, of those
 * that have enough without evicting, or with it; -1: there is none.
 */
static int32_t
most_available(GvMirrorEntry *entry, int32_t nshards, bool others_go)
{
	int32_t		best = -1;
	int32_t		i;

	for (i = 0; i < gv_registry.ndevices; i++)
	{
		int64_t		size =
		member_memory(entry, i, nshards, entry->nmembers > 0 ?
					  entry->members[0].device : -1);

		if (registry_member(entry, i) == NULL &&
			(best < 0 ||
			 registry_available(i) > registry_available(best)) &&
			(others_go ? registry_can_free_up(i, size) :
			 registry_available(i) >= size))
			best = i;
	}
	return best;
}

/*
 * Locked: choose one of the devices that were not tried, by what the mirror
 * would take of each, and frees memory there; false if there is none.
 * Replicas go where memory is free: nothing is evicted for a mirror that
 * exists already.
 */
static bool
place_whole(GvMirrorEntry *entry, GvTriedDevices *tried)
{
	int32_t		best = -1;
	int32_t		i;

	for (i = 0; i < gv_registry.ndevices; i++)
	{
		int64_t		size = shard_size(&entry->spec, i, 1);

		if ((*tried & 1u << i) != 0 || !registry_can_free_up(i, size) ||
			(best >= 0 && !is_better(i, best, size)))
			continue;
		best = i;
	}
	if (best < 0)
		return false;
	*tried |= 1u << best;
	entry->mode = GV_REPLICAS;
	if (!add_member(entry, best, 1))
		return false;
	while (entry->nmembers < gv_server.replicas &&
		   (best = most_available(entry, 1, false)) >= 0)
		(void) add_member(entry, best, 1);
	return true;
}

/*
 * Locked: can nshards devices free memory for a shard each, one of them the
 * first one?  Searches go there, and bring searchers to the others.
 */
static bool
can_be_first(const GvMirrorEntry *entry, int32_t nshards, int32_t first)
{
	int32_t		able = 0;
	int32_t		i;

	if (!registry_can_free_up(first, member_memory(entry, first, nshards, first)))
		return false;
	for (i = 0; i < gv_registry.ndevices; i++)
		able += registry_can_free_up(i, member_memory(entry, i, nshards, first));
	return able >= nshards;
}

/*
 * Locked: one shard each on the fewest devices that can free memory for them,
 * those with most; false if there are none.  Others than were tried.
 */
static bool
place_shards(GvMirrorEntry *entry, int32_t *tried)
{
	int32_t		n;

	entry->mode = GV_SHARDS;
	for (n = *tried < 2 ? 2 : *tried + 1; n <= gv_registry.ndevices; n++)
	{
		int32_t		next = -1;
		int32_t		i;

		/*
		 * not the one with most memory, where others cannot bear its
		 * searchers
		 */
		for (i = 0; i < gv_registry.ndevices; i++)
			if ((next < 0 ||
				 registry_available(i) > registry_available(next)) &&
				can_be_first(entry, n, i))
				next = i;
		if (next < 0)
			continue;
		*tried = n;
		while (entry->nmembers < n && next >= 0 && add_member(entry, next, n))
			next = most_available(entry, n, true);
		/* others may have been faster, where memory was given back */
		return entry->nmembers == n;
	}
	return false;
}

/*
 * Locked: place a mirror, whole if any device can have it so, and charge its
 * bytes; false if there is no place that was not tried.  Bytes charged are
 * given back with the mirror.
 */
static bool
registry_place(GvMirrorEntry *entry, GvTriedPlaces *tried)
{
	GvTriedDevices before = tried->whole;

	return place_whole(entry, &tried->whole) ||
		(tried->whole == before && place_shards(entry, &tried->shards));
}

/* Take bytes of a budget for something that is no mirror; false: too few. */
bool
gv_mirrors_reserve(int32_t device, int64_t bytes)
{
	bool		fits;

	gv_registry_lock();
	fits = registry_free_up(device, bytes);
	if (fits)
		gv_registry.devices[device].used += bytes;
	gv_registry_unlock();
	return fits;
}

void
gv_mirrors_unreserve(int32_t device, int64_t bytes)
{
	gv_registry_lock();
	gv_registry.devices[device].used -= bytes;
	gv_registry_unlock();
}

/*
 * A searcher besides those of batch slots, for which mirrors may be evicted.
 * The caller holds no mirror's lock.
 */
GvStatus
gv_mirrors_searcher(int32_t device, GvSearcher **searcher)
{
	GvDeviceMemory *mem = &gv_registry.devices[device];
	GvTriedDevices guests;
	int64_t		bytes;
	GvStatus	status = GV_NO_MEMORY;
	bool		fits;

	gv_registry_lock();
	guests = guests_of(device);
	bytes = most_beside(device, guests, mem->extras) -
		most_beside(device, guests, mem->extras + 1);
	fits = bytes <= 0 || registry_free_up(device, bytes);
	mem->extras += fits;
	gv_registry_unlock();
	if (fits)
		status = gv_searcher(device, searcher);
	if (fits && status != GV_OK)
		gv_mirrors_searcher_drop(device, NULL);
	return status;
}

/* Give it back; NULL: it could not be made. */
void
gv_mirrors_searcher_drop(int32_t device, GvSearcher *searcher)
{
	gv_searcher_drop(searcher);
	gv_registry_lock();
	gv_registry.devices[device].extras--;
	gv_registry_unlock();
}

/* How many of one kind a device bears: it has few, where they take memory. */
int32_t
gv_mirrors_searchers_most(int32_t device)
{
	return gv_registry.devices[device].searcher > 0 ? GV_MAX_EXTRAS :
		GV_MAX_LOADERS;
}

/* Locked: bytes of a device are a build's or a set's from now on. */
static void
begin_work(int32_t device, int64_t bytes, GvTriedDevices *tried)
{
	gv_registry.devices[device].used += bytes;
	gv_registry.devices[device].works++;
	*tried |= 1u << device;
}

/*
 * Where a build or a set goes: to a device that was not tried, with the least
 * such work, and of those to the one that a mirror of that size would go to.
 * The bytes are charged there; false if no device has the memory.
 */
bool
gv_mirrors_place_work(int64_t bytes, int32_t *device, GvTriedDevices *tried)
{
	int32_t		best = -1;
	bool		fits;
	int32_t		i;

	gv_registry_lock();
	for (i = 0; i < gv_registry.ndevices; i++)
	{
		int			more = best < 0 ? -1 :
		gv_registry.devices[i].works - gv_registry.devices[best].works;

		if ((*tried & 1u << i) == 0 && registry_can_free_up(i, bytes) &&
			(more < 0 || (more == 0 && is_better(i, best, bytes))))
			best = i;
	}
	fits = best >= 0 && registry_free_up(best, bytes);
	if (best >= 0)
		*tried |= 1u << best;
	if (fits)
	{
		begin_work(best, bytes, tried);
		*device = best;
	}
	gv_registry_unlock();
	return fits;
}

/*
 * Where more of the work goes that device `beside` has: likewise, but only to
 * one that has no more works than that has besides this one, and memory for
 * which nothing is evicted, since the work can do without it.
 */
bool
gv_mirrors_place_more(int64_t bytes, int32_t beside, int32_t *device,
					  GvTriedDevices *tried)
{
	const GvDeviceMemory *devices = gv_registry.devices;
	int32_t		best = -1;
	int32_t		i;

	gv_registry_lock();
	for (i = 0; i < gv_registry.ndevices; i++)
	{
		int			more = best < 0 ? -1 :
		devices[i].works - devices[best].works;

		if ((*tried & 1u << i) == 0 && registry_available(i) >= bytes &&
			devices[i].works < devices[beside].works &&
			(more < 0 || (more == 0 &&
						  registry_available(i) >
						  registry_available(best))))
			best = i;
	}
	if (best >= 0)
	{
		begin_work(best, bytes, tried);
		*device = best;
	}
	gv_registry_unlock();
	return best >= 0;
}

/*
 * Nothing more is done there for a work; its memory is to be given back, and
 * its bytes.  For all devices at once, because who comes meanwhile has to find
 * all of them idle, or none.
 */
void
gv_mirrors_end_work(GvTriedDevices devices)
{
	int32_t		i;

	gv_registry_lock();
	for (i = 0; i < gv_registry.ndevices; i++)
		if ((devices & 1u << i) != 0)
			gv_registry.devices[i].works--;
	gv_registry_unlock();
}

/* ----
 * The members of mirrors, shards and replicas: on which devices they are,
 * how much of the budgets there they use, and which replicas are evicted.
 *
 * Shards are there together or not at all.  A replica is worth less than
 * anything that has no other: it is evicted where others need its memory, or
 * where it finds none to grow, and the mirror stays.
 */

/* Locked: a mirror's member on a device, or NULL. */
static GvMirrorMember *
registry_member(GvMirrorEntry *entry, int32_t device)
{
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		if (entry->members[i].device == device)
			return &entry->members[i];
	return NULL;
}

/* Locked: bytes that all members take. */
static int64_t
registry_bytes(const GvMirrorEntry *entry)
{
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		bytes += entry->members[i].bytes;
	return bytes;
}

/* Locked: charges a member what it takes; nothing if it exists no more. */
static void
charge_member(GvMirrorMember *member, bool there)
{
	int64_t		charge = member->bytes;

	if (charge < member->reserved)
		charge = member->reserved;
	if (!there)
		charge = 0;
	gv_registry.devices[member->device].used += charge - member->charged;
	member->charged = charge;
}

/*
 * Locked, and nobody else changes the mirror: notes what its members take now,
 * and charges them that.  Members that the engine has dropped are removed.
 */
static void
registry_recharge(GvMirrorEntry *entry)
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
 * Where a mirror, which the caller has locked, is searched: on the requested
 * device, or else on its first.
 */
int32_t
gv_mirrors_device(const GvMirrorEntry *entry, int32_t wanted)
{
	int32_t		n = gv_registry_searched(entry);
	int32_t		i;

	for (i = 0; i < n; i++)
		if (entry->members[i].device == wanted)
			return wanted;
	return entry->members[0].device;
}

/*
 * Evicts others from a mirror's devices, because it finds no memory there for
 * growth [GV_MAX_DEVICES] of its members, where that is not 0; false if none
 * may be evicted.  It is in use.
 */
bool
gv_mirrors_evict_for(GvMirrorEntry *entry, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	bool		done = false;
	int32_t		n = 0;
	int32_t		i;

	gv_registry_lock();
	entry->growing++;
	for (i = 0; i < entry->nmembers; i++)
		if (growth[i] > 0)
			devices[n++] = entry->members[i].device;
	gv_registry_unlock();
	for (i = 0; i < n; i++)
		done |= gv_mirrors_evict(devices[i]);
	gv_registry_lock();
	entry->growing--;
	gv_registry_unlock();
	return done;
}

/*
 * Locked: bytes that a member's device has to free for the member to grow by
 * `growth` bytes.
 */
static int64_t
lacking(const GvMirrorMember *member, int64_t growth)
{
	int64_t		more = member->bytes + growth - member->charged;

	return more > 0 ? more : 0;
}

/*
 * Locked: frees memory on a device for a mirror's member to grow by `growth`
 * bytes, and charges it; false when there is none.
 */
static bool
charge_growth(GvMirrorEntry *entry, int32_t device, int64_t growth)
{
	GvMirrorMember *member = registry_member(entry, device);
	int64_t		more = member == NULL ? 0 : lacking(member, growth);

	if (more == 0)
		return true;
	if (!registry_free_up(device, more))
		return false;
	/* the lock was let go, perhaps */
	member = registry_member(entry, device);
	if (member != NULL)
	{
		gv_registry.devices[device].used += more;
		member->charged += more;
	}
	return true;
}

/* Evicts the replicas on these devices, for which there is no memory. */
static void
evict_replicas(GvMirrorEntry *entry, GvTriedDevices devices)
{
	int32_t		i;

	pthread_rwlock_wrlock(&entry->lock);
	for (i = 0; i < gv_registry.ndevices; i++)
		if ((devices & 1u << i) != 0 &&
			gv_mirror_drop_replica(entry->mirror, i) == GV_OK)
			gv_log("LOG", "gave up the replica of index %u on device %d: it "
				   "has no room to grow", gv_registry_index(entry),
				   gv_server.numbers[i]);
	gv_registry_lock();
	registry_recharge(entry);
	gv_registry_unlock();
	pthread_rwlock_unlock(&entry->lock);
}

/*
 * Locked: frees memory for all members to grow, and charges it; or for none.
 */
static bool
grow_members(GvMirrorEntry *entry, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	int32_t		n = entry->nmembers;
	int32_t		i;

	for (i = 0; i < n; i++)
		devices[i] = entry->members[i].device;
	for (i = 0; i < n && charge_growth(entry, devices[i], growth[i]); i++)
		;
	if (i == n)
		return true;
	for (i = 0; i < entry->nmembers; i++)
		charge_member(&entry->members[i], true);
	return false;
}

/*
 * Locked: finds the replicas to evict so that one, or all that are left, can
 * grow: those without memory.  Where none has it others are evicted for one
 * only.  false: there is no memory for one.
 */
static bool
choose_replicas(const GvMirrorEntry *entry, int64_t growth,
				GvTriedDevices *full)
{
	int32_t		left = 0;
	int32_t		i;

	*full = 0;
	for (i = 0; i < entry->nmembers; i++)
	{
		const GvMirrorMember *member = &entry->members[i];

		if (registry_available(member->device) < lacking(member, growth))
			*full |= 1u << member->device;
		else
			left++;
	}
	for (i = 0; left == 0 && i < entry->nmembers; i++)
	{
		const GvMirrorMember *member = &entry->members[i];

		if (!registry_can_free_up(member->device, lacking(member, growth)))
			continue;
		*full &= ~(1u << member->device);
		left++;
	}
	return left > 0;
}

/*
 * Frees memory for a mirror's members to grow by growth [GV_MAX_DEVICES], in
 * the order of its members, and charges it; false when there is none.
 * gv_mirrors_changed says how much they grew indeed.  Replicas grow alike:
 * those without memory are evicted as long as one has it, and other mirrors
 * are evicted for the last one only.
 */
bool
gv_mirrors_grow(GvMirrorEntry *entry, const int64_t *growth)
{
	GvTriedDevices full = 0;
	bool		fits = true;

	gv_registry_lock();
	entry->growing++;
	if (gv_registry_is_spare(entry))
		fits = choose_replicas(entry, growth[0], &full);
	if (fits && full != 0)
	{
		gv_registry_unlock();
		evict_replicas(entry, full);
		gv_registry_lock();
	}
	fits = fits && grow_members(entry, growth);
	entry->growing--;
	gv_registry_unlock();
	return fits;
}

/*
 * Notes that the mirror has been changed, under its lock, and has that many
 * postings.
 */
void
gv_mirrors_changed(GvMirrorEntry *entry, int64_t postings)
{
	int32_t		before;
	int32_t		lost;

	gv_registry_lock();
	before = entry->nmembers;
	entry->postings = postings;
	registry_recharge(entry);
	lost = before - entry->nmembers;
	gv_registry_unlock();
	if (lost > 0)
		gv_log("LOG", "gave up replicas of index %u: %d, whose devices have no "
			   "memory", gv_registry_index(entry), lost);
}

/* ----
 * The registry: which mirrors there are, where, who uses them, and how
 * much of their devices' budgets they use.
 *
 * A mirror that is in use (users > 0) is not freed: a thread that takes it out
 * of the registry waits until it is let go.  A thread that waits so uses no
 * other mirror, and eviction takes only mirrors that are not in use, so
 * threads do not wait in a circle.  Memory is freed before its bytes are
 * reserved for others, because a device has no more than that.
 */

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
static bool
registry_unlink(GvMirrorEntry *entry)
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
static void
registry_destroy(GvMirrorEntry *entry, const char *reason)
{
	int64_t		bytes;
	int32_t		i;

	while (entry->users > 0)
		pthread_cond_wait(&gv_registry.released, &gv_registry.mutex);
	bytes = registry_bytes(entry);
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
	registry_settle(entry, false);
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
		registry_unlink(old);
		registry_destroy(old, "another loader begins anew");
		old = find(&entry->key);
	}
	if (old != NULL)
		return GV_REFUSED_EXISTS;
	if (!registry_place(entry, tried))
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
	registry_recharge(entry);
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
		registry_destroy(entry, NULL);
		gv_registry_unlock();
		return refusal;
	}
	gv_registry_unlock();
	refusal = create(entry);
	gv_registry_lock();
	entry->users--;
	pthread_cond_broadcast(&gv_registry.released);
	/* if another loader has thrown it out meanwhile, that one frees it */
	if (refusal != 0 && registry_unlink(entry))
		registry_destroy(entry, NULL);
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
	registry_settle(entry, true);
	for (i = 0; i < entry->nmembers; i++)
		entry->members[i].reserved = 0;
	registry_recharge(entry);
	postings = entry->postings;
	bytes = registry_bytes(entry);
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
	if (entry != NULL && registry_unlink(entry))
		registry_destroy(entry, NULL);
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
		if (entry != NULL && registry_unlink(entry))
			registry_destroy(entry, "its loader is gone");
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
		mirrors[n].bytes = registry_bytes(entry);
		mirrors[n].postings = entry->postings;
		mirrors[n].expected = entry->spec.postings;
		mirrors[n].searches = entry->searches;
		mirrors[n].idle_ms = now > entry->used_ms ? now - entry->used_ms : 0;
	}
	if (reply != NULL)
	{
		for (i = 0; i < gv_registry.ndevices; i++)
		{
			int64_t		memory = registry_most(i);

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
