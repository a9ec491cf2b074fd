/*
 * parts.c
 *		The parts of mirrors: on which devices they are, what they take of the
 *		budgets there, and replicas that are given up.
 *
 * Shards are there together or not at all.  A replica is worth less than anything
 * that has no other: it goes where others need its memory, or where it finds none
 * to grow, and the mirror stays.
 */
#include "server/gv_registry.h"

/* Locked: a mirror's part on a device, or NULL. */
GvHeldPart *
gv_registry_part(GvHeldMirror *held, int32_t device)
{
	int32_t		i;

	for (i = 0; i < held->nparts; i++)
		if (held->parts[i].device == device)
			return &held->parts[i];
	return NULL;
}

/* Locked: bytes that all parts take. */
int64_t
gv_registry_bytes(const GvHeldMirror *held)
{
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < held->nparts; i++)
		bytes += held->parts[i].bytes;
	return bytes;
}

/* Locked: what a part is charged, from what it takes; nothing if it is no more. */
static void
charge_part(GvHeldPart *part, bool there)
{
	int64_t		charge = part->bytes;

	if (charge < part->reserved)
		charge = part->reserved;
	if (!there)
		charge = 0;
	gv_registry.devices[part->device].used += charge - part->charged;
	part->charged = charge;
}

/*
 * Locked, and nobody else changes the mirror: what its parts take now, and what
 * they are charged.  Those that the engine has given up go.
 */
void
gv_registry_recharge(GvHeldMirror *held)
{
	GvPart		now[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_parts(held->mirror, now);
	int32_t		left = 0;
	int32_t		i;

	for (i = 0; i < held->nparts; i++)
	{
		GvHeldPart	part = held->parts[i];
		bool		there = left < n && now[left].device == part.device;

		if (there)
			part.bytes = now[left].bytes;
		charge_part(&part, there);
		if (there)
			held->parts[left++] = part;
	}
	held->nparts = left;
	held->spec.device = held->parts[0].device;
}

/*
 * Where a mirror, which the caller has locked, is searched: on the device that is
 * wanted, or else on its first.
 */
int32_t
gv_mirrors_device(const GvHeldMirror *held, int32_t wanted)
{
	int32_t		n = gv_registry_searched(held);
	int32_t		i;

	for (i = 0; i < n; i++)
		if (held->parts[i].device == wanted)
			return wanted;
	return held->parts[0].device;
}

/*
 * Others on a mirror's devices go, because it finds no memory there for growth
 * [GV_MAX_DEVICES] of its parts, where that is not 0; false if none may.  It is in
 * use.
 */
bool
gv_mirrors_evict_for(GvHeldMirror *held, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	bool		done = false;
	int32_t		n = 0;
	int32_t		i;

	gv_registry_lock();
	held->growing++;
	for (i = 0; i < held->nparts; i++)
		if (growth[i] > 0)
			devices[n++] = held->parts[i].device;
	gv_registry_unlock();
	for (i = 0; i < n; i++)
		done |= gv_mirrors_evict(devices[i]);
	gv_registry_lock();
	held->growing--;
	gv_registry_unlock();
	return done;
}

/* Locked: bytes that a part's device has to give, for the part to grow by so much. */
static int64_t
lacking(const GvHeldPart *part, int64_t growth)
{
	int64_t		more = part->bytes + growth - part->charged;

	return more > 0 ? more : 0;
}

/*
 * Locked: make room on a device for a mirror's part to grow by so much, and charge
 * it; false when there is none.
 */
static bool
make_part_room(GvHeldMirror *held, int32_t device, int64_t growth)
{
	GvHeldPart *part = gv_registry_part(held, device);
	int64_t		more = part == NULL ? 0 : lacking(part, growth);

	if (more == 0)
		return true;
	if (!gv_registry_make_room(device, more))
		return false;
	/* the lock was let go, perhaps */
	part = gv_registry_part(held, device);
	if (part != NULL)
	{
		gv_registry.devices[device].used += more;
		part->charged += more;
	}
	return true;
}

/* Give up the replicas on these devices, for which there is no room. */
static void
evict_replicas(GvHeldMirror *held, GvTriedDevices devices)
{
	int32_t		i;

	pthread_rwlock_wrlock(&held->lock);
	for (i = 0; i < gv_registry.ndevices; i++)
		if ((devices & 1u << i) != 0 &&
			gv_mirror_drop_part(held->mirror, i) == GV_OK)
			gv_log("LOG", "gave up the replica of index %u on device %d: it "
				   "has no room to grow", held->key.index,
				   gv_server.numbers[i]);
	gv_registry_lock();
	gv_registry_recharge(held);
	gv_registry_unlock();
	pthread_rwlock_unlock(&held->lock);
}

/* Locked: make room for all parts to grow, and charge it; or for none. */
static bool
grow_parts(GvHeldMirror *held, const int64_t *growth)
{
	int32_t		devices[GV_MAX_DEVICES];
	int32_t		n = held->nparts;
	int32_t		i;

	for (i = 0; i < n; i++)
		devices[i] = held->parts[i].device;
	for (i = 0; i < n && make_part_room(held, devices[i], growth[i]); i++)
		;
	if (i == n)
		return true;
	for (i = 0; i < held->nparts; i++)
		charge_part(&held->parts[i], true);
	return false;
}

/*
 * Locked: which replicas have to go so that one grows, or all that are left:
 * those without room.  Where none has it nothing else goes for more than one.
 * false: there is no room for one.
 */
static bool
choose_replicas(const GvHeldMirror *held, int64_t growth,
				GvTriedDevices *full)
{
	int32_t		left = 0;
	int32_t		i;

	*full = 0;
	for (i = 0; i < held->nparts; i++)
	{
		const GvHeldPart *part = &held->parts[i];

		if (gv_registry_room(part->device) < lacking(part, growth))
			*full |= 1u << part->device;
		else
			left++;
	}
	for (i = 0; left == 0 && i < held->nparts; i++)
	{
		const GvHeldPart *part = &held->parts[i];

		if (!gv_registry_can_make_room(part->device, lacking(part, growth)))
			continue;
		*full &= ~(1u << part->device);
		left++;
	}
	return left > 0;
}

/*
 * Make room for a mirror's parts to grow by growth [GV_MAX_DEVICES], in the order
 * of its parts, and charge it; false when there is none.  gv_mirrors_changed says
 * how much they grew indeed.  Replicas grow alike: those without room go as long
 * as one has it, and what others have goes for the last one only.
 */
bool
gv_mirrors_room(GvHeldMirror *held, const int64_t *growth)
{
	GvTriedDevices full = 0;
	bool		fits = true;

	gv_registry_lock();
	held->growing++;
	if (gv_registry_is_spare(held))
		fits = choose_replicas(held, growth[0], &full);
	if (fits && full != 0)
	{
		gv_registry_unlock();
		evict_replicas(held, full);
		gv_registry_lock();
	}
	fits = fits && grow_parts(held, growth);
	held->growing--;
	gv_registry_unlock();
	return fits;
}

/* It has been changed, under its lock, and holds so many copies. */
void
gv_mirrors_changed(GvHeldMirror *held, int64_t postings)
{
	int32_t		before;
	int32_t		lost;

	gv_registry_lock();
	before = held->nparts;
	held->postings = postings;
	gv_registry_recharge(held);
	lost = before - held->nparts;
	gv_registry_unlock();
	if (lost > 0)
		gv_log("LOG", "gave up replicas of index %u: %d, whose devices have no "
			   "memory", held->key.index, lost);
}
