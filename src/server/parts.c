/*
 * parts.c
 *		The members of mirrors, shards and replicas: on which devices they are,
 *		how much of the budgets there they use, and which replicas are evicted.
 *
 * Shards are there together or not at all.  A replica is worth less than
 * anything that has no other: it is evicted where others need its memory, or
 * where it finds none to grow, and the mirror stays.
 */
#include "server/gv_registry.h"

/* Locked: a mirror's member on a device, or NULL. */
GvMirrorMember *
gv_registry_member(GvMirrorEntry *entry, int32_t device)
{
	int32_t		i;

	for (i = 0; i < entry->nmembers; i++)
		if (entry->members[i].device == device)
			return &entry->members[i];
	return NULL;
}

/* Locked: bytes that all members take. */
int64_t
gv_registry_bytes(const GvMirrorEntry *entry)
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
void
gv_registry_recharge(GvMirrorEntry *entry)
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
	GvMirrorMember *member = gv_registry_member(entry, device);
	int64_t		more = member == NULL ? 0 : lacking(member, growth);

	if (more == 0)
		return true;
	if (!gv_registry_free_up(device, more))
		return false;
	/* the lock was let go, perhaps */
	member = gv_registry_member(entry, device);
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
	gv_registry_recharge(entry);
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

		if (gv_registry_available(member->device) < lacking(member, growth))
			*full |= 1u << member->device;
		else
			left++;
	}
	for (i = 0; left == 0 && i < entry->nmembers; i++)
	{
		const GvMirrorMember *member = &entry->members[i];

		if (!gv_registry_can_free_up(member->device, lacking(member, growth)))
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
	gv_registry_recharge(entry);
	lost = before - entry->nmembers;
	gv_registry_unlock();
	if (lost > 0)
		gv_log("LOG", "gave up replicas of index %u: %d, whose devices have no "
			   "memory", gv_registry_index(entry), lost);
}
