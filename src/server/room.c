/*
 * room.c
 *		Memory of the devices: who gets it, where, and who is evicted.
 *
 * Every device has a budget of its own.  Searchers of its batch slots are
 * beside it.  All other searchers may take memory that mirrors could have:
 * those that searches of shards need on devices beside their first one, and
 * those of many searches in one message, of calibration mirrors and of
 * loaders.  Eviction takes replicas of mirrors that have others, then mirrors
 * that are not in use, and none in vain.
 */
#include "server/gv_registry.h"

/*
 * Locked: may this one be evicted, for the sake of others on a device?
 * Whoever uses it, one of several replicas may.
 */
static bool
evictable(const GvMirrorEntry *entry, int32_t device, int64_t now)
{
	return entry->ready && entry->growing == 0 &&
		gv_registry_member((GvMirrorEntry *) entry, device) != NULL &&
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
	gv_registry_recharge(entry);
	/* another thread may have been faster */
	gone = gv_registry_member(entry, device) == NULL;
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
	gv_registry_unlink(victim);
	gv_registry.evictions++;
	gv_registry_destroy(victim, "others need its memory");
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
int64_t
gv_registry_most(int32_t device)
{
	return most_beside(device, guests_of(device),
					   gv_registry.devices[device].extras);
}

/* Locked: bytes that are not reserved. */
int64_t
gv_registry_available(int32_t device)
{
	return gv_registry_most(device) - gv_registry.devices[device].used;
}

/* Locked: would these bytes be free without all that may be evicted? */
bool
gv_registry_can_free_up(int32_t device, int64_t bytes)
{
	int64_t		now = gv_now_ms();
	int64_t		available = gv_registry_available(device);
	const GvMirrorEntry *entry;

	for (entry = gv_registry.first; entry != NULL && available < bytes;
		 entry = entry->next)
		if (evictable(entry, device, now))
			available +=
				gv_registry_member((GvMirrorEntry *) entry, device)->charged;
	return available >= bytes;
}

/*
 * Locked: frees `bytes` more of a device's budget and charges nothing;
 * false without evicting anything when that would not do.
 */
bool
gv_registry_free_up(int32_t device, int64_t bytes)
{
	if (!gv_registry_can_free_up(device, bytes))
		return false;
	while (gv_registry_available(device) < bytes)
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

	if (gv_registry_available(a) >= bytes || gv_registry_available(b) >= bytes)
		return gv_registry_available(a) > gv_registry_available(b);
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

	if (!gv_registry_free_up(device,
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
void
gv_registry_settle(GvMirrorEntry *entry, bool searched)
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

		if (gv_registry_member(entry, i) == NULL &&
			(best < 0 ||
			 gv_registry_available(i) > gv_registry_available(best)) &&
			(others_go ? gv_registry_can_free_up(i, size) :
			 gv_registry_available(i) >= size))
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

		if ((*tried & 1u << i) != 0 || !gv_registry_can_free_up(i, size) ||
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

	if (!gv_registry_can_free_up(first, member_memory(entry, first, nshards, first)))
		return false;
	for (i = 0; i < gv_registry.ndevices; i++)
		able += gv_registry_can_free_up(i, member_memory(entry, i, nshards, first));
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
				 gv_registry_available(i) > gv_registry_available(next)) &&
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
bool
gv_registry_place(GvMirrorEntry *entry, GvTriedPlaces *tried)
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
	fits = gv_registry_free_up(device, bytes);
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
	fits = bytes <= 0 || gv_registry_free_up(device, bytes);
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

		if ((*tried & 1u << i) == 0 && gv_registry_can_free_up(i, bytes) &&
			(more < 0 || (more == 0 && is_better(i, best, bytes))))
			best = i;
	}
	fits = best >= 0 && gv_registry_free_up(best, bytes);
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

		if ((*tried & 1u << i) == 0 && gv_registry_available(i) >= bytes &&
			devices[i].works < devices[beside].works &&
			(more < 0 || (more == 0 &&
						  gv_registry_available(i) >
						  gv_registry_available(best))))
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
