/*
 * mirrors.c
 *		The registry: which mirrors there are, who uses them, and what they
 *		take of the budget.
 *
 * A mirror that somebody uses (users > 0) is not freed: who takes it out of
 * the registry waits until it is let go.  Whoever waits so uses no other
 * mirror, and eviction takes only mirrors that nobody uses, so nobody waits
 * in a circle.  Memory is given back before its bytes are promised to others,
 * because a card has no more than that.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <string.h>

static struct
{
	pthread_mutex_t mutex;
	pthread_cond_t released;	/* somebody let a mirror go */
	GvHeldMirror *first;
	int64_t		budget;
	int64_t		used;
	int64_t		evictions;
	int64_t		keep_ms;		/* what was used since is not evicted */
} registry = {
	.mutex = PTHREAD_MUTEX_INITIALIZER,
	.released = PTHREAD_COND_INITIALIZER
};

static int64_t
now_ms(void)
{
	return (int64_t) (gv_now_ns() / 1000000);
}

static void
lock(void)
{
	pthread_mutex_lock(&registry.mutex);
}

static void
unlock(void)
{
	pthread_mutex_unlock(&registry.mutex);
}

/* budget: bytes for all mirrors; what was used for keep_s is not evicted. */
void
gv_mirrors_init(int64_t budget, int keep_s)
{
	registry.budget = budget;
	registry.keep_ms = (int64_t) keep_s * 1000;
}

/* Locked: the mirror of a key, or NULL. */
static GvHeldMirror *
find(const GvMirrorKey *key)
{
	GvHeldMirror *held = registry.first;

	while (held != NULL && !gv_same_key(&held->key, key))
		held = held->next;
	return held;
}

/* Locked: take a mirror out of the list; false if somebody did already. */
static bool
unlink_held(GvHeldMirror *held)
{
	GvHeldMirror **link = &registry.first;

	while (*link != NULL && *link != held)
		link = &(*link)->next;
	if (*link == NULL)
		return false;
	*link = held->next;
	return true;
}

/*
 * Locked: free a mirror that is out of the list, once nobody uses it.  The
 * lock is let go meanwhile.  A reason is worth a line in the log.
 */
static void
destroy(GvHeldMirror *held, const char *reason)
{
	while (held->users > 0)
		pthread_cond_wait(&registry.released, &registry.mutex);
	unlock();
	if (reason != NULL)
		gv_log("LOG", "dropped the mirror of index %u, %lld MB: %s",
			   held->key.index, (long long) (held->bytes >> 20), reason);
	gv_mirror_drop(held->mirror);
	pthread_rwlock_destroy(&held->lock);
	free(held->states);
	lock();
	registry.used -= held->charged;
	free(held);
}

/* Locked: may this one be evicted? */
static bool
evictable(const GvHeldMirror *held, int64_t now)
{
	return held->ready && held->users == 0 &&
		now - held->used_ms >= registry.keep_ms;
}

/* Locked: evict the mirror that has been idle longest; false if none may. */
static bool
evict_one(void)
{
	int64_t		now = now_ms();
	GvHeldMirror *victim = NULL;
	GvHeldMirror *held;

	for (held = registry.first; held != NULL; held = held->next)
		if (evictable(held, now) &&
			(victim == NULL || held->used_ms < victim->used_ms))
			victim = held;
	if (victim == NULL)
		return false;
	unlink_held(victim);
	registry.evictions++;
	destroy(victim, "others need its memory");
	return true;
}

/*
 * Locked: make room for `bytes` more in the budget and charge nothing; false
 * without evicting anything when that would not do.
 */
static bool
make_room(int64_t bytes)
{
	int64_t		now = now_ms();
	int64_t		free_bytes = registry.budget - registry.used;
	const GvHeldMirror *held;

	for (held = registry.first; held != NULL && free_bytes < bytes;
		 held = held->next)
		if (evictable(held, now))
			free_bytes += held->charged;
	if (free_bytes < bytes)
		return false;
	while (registry.budget - registry.used < bytes)
		if (!evict_one())
			return false;
	return true;
}

/* Evict one because the engine has no room; false if none may be. */
bool
gv_mirrors_evict(void)
{
	bool		done;

	lock();
	done = evict_one();
	unlock();
	return done;
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

	lock();
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
		held->used_ms = now_ms();
	}
	unlock();
	return held;
}

/* Let a mirror go, in which so many searches were made. */
void
gv_mirrors_release(GvHeldMirror *held, int64_t searches)
{
	lock();
	held->searches += searches;
	held->used_ms = now_ms();
	held->users--;
	pthread_cond_broadcast(&registry.released);
	unlock();
}

/* An entry that is in nobody's list yet, without its mirror. */
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
	held->used_ms = now_ms();
	/* batches follow each other closely: a loader must get its turn */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np
		(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&held->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	return held;
}

/* Locked: put a new entry in the list, with so many bytes reserved. */
static GvRefusalCode
enter(GvHeldMirror *held, int64_t bytes)
{
	GvHeldMirror *old = find(&held->key);

	while (old != NULL && !old->ready)
	{
		unlink_held(old);
		destroy(old, "another loader begins anew");
		old = find(&held->key);
	}
	if (old != NULL)
		return GV_REFUSED_EXISTS;
	if (!make_room(bytes))
		return GV_REFUSED_NO_MEMORY;
	/* room was made with the lock let go now and then */
	if (find(&held->key) != NULL)
		return GV_REFUSED_EXISTS;
	held->reserved = bytes;
	held->charged = bytes;
	registry.used += bytes;
	held->users = 1;
	held->next = registry.first;
	registry.first = held;
	return 0;
}

static GvRefusalCode
create(GvHeldMirror *held)
{
	GvStatus	status;

	do
		status = gv_mirror_create(&held->spec, &held->mirror);
	while (status == GV_NO_MEMORY && gv_mirrors_evict());
	if (status == GV_OK)
	{
		held->bytes = gv_mirror_bytes(held->mirror);
		return 0;
	}
	held->mirror = NULL;
	return gv_status_refusal(status);
}

/* Begin a mirror; 0 or why not. */
GvRefusalCode
gv_mirrors_begin(const GvMirrorKey *key, const GvMirrorSpec *spec,
				 uint64_t owner)
{
	int64_t		bytes = gv_mirror_size(spec);
	GvHeldMirror *held;
	GvRefusalCode refusal;

	if (bytes == 0)
		return GV_REFUSED_PROTOCOL;
	if (bytes > registry.budget)
		return GV_REFUSED_NO_MEMORY;
	held = new_held(key, spec, owner);
	if (held == NULL)
		return GV_REFUSED_NO_MEMORY;
	lock();
	refusal = enter(held, bytes);
	if (refusal != 0)
	{
		destroy(held, NULL);
		unlock();
		return refusal;
	}
	unlock();
	refusal = create(held);
	lock();
	held->users--;
	pthread_cond_broadcast(&registry.released);
	/* if another loader has thrown it out meanwhile, that one frees it */
	if (refusal != 0 && unlink_held(held))
		destroy(held, NULL);
	unlock();
	return refusal;
}

/* Locked: what a mirror is charged, from what it takes. */
static void
recharge(GvHeldMirror *held)
{
	int64_t		charge = held->bytes;

	if (charge < held->reserved)
		charge = held->reserved;
	registry.used += charge - held->charged;
	held->charged = charge;
}

/* From now on it is searched, and charged what it takes and no more. */
void
gv_mirrors_ready(GvHeldMirror *held)
{
	int64_t		copies;
	int64_t		bytes;

	lock();
	held->ready = true;
	held->reserved = 0;
	recharge(held);
	copies = held->copies;
	bytes = held->bytes;
	unlock();
	gv_log("LOG", "index %u is mirrored: %lld copies, %lld MB",
		   held->key.index, (long long) copies, (long long) (bytes >> 20));
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

	lock();
	more = held->bytes + growth - held->charged;
	if (more > 0)
	{
		fits = make_room(more);
		if (fits)
		{
			registry.used += more;
			held->charged += more;
		}
	}
	unlock();
	return fits;
}

/* It takes so many bytes now, and holds so many copies. */
void
gv_mirrors_changed(GvHeldMirror *held, int64_t bytes, int64_t copies)
{
	lock();
	held->bytes = bytes;
	held->copies = copies;
	recharge(held);
	unlock();
}

/* Take bytes of the budget for something that is no mirror; false: too few. */
bool
gv_mirrors_reserve(int64_t bytes)
{
	bool		fits;

	lock();
	fits = make_room(bytes);
	if (fits)
		registry.used += bytes;
	unlock();
	return fits;
}

void
gv_mirrors_unreserve(int64_t bytes)
{
	lock();
	registry.used -= bytes;
	unlock();
}

/* Drop the mirror of a key, if there is one. */
void
gv_mirrors_drop(const GvMirrorKey *key)
{
	GvHeldMirror *held;

	lock();
	held = find(key);
	if (held != NULL && unlink_held(held))
		destroy(held, NULL);
	unlock();
}

/* A connection has ended: drop what it began and did not finish. */
void
gv_mirrors_abandon(uint64_t owner)
{
	GvHeldMirror *held;

	lock();
	do
	{
		held = registry.first;
		while (held != NULL && (held->ready || held->owner != owner))
			held = held->next;
		if (held != NULL && unlink_held(held))
			destroy(held, "its loader is gone");
	} while (held != NULL);
	unlock();
}

/*
 * The registry's part of a status, and the first `room` mirrors; returns how
 * many there are.
 */
int32_t
gv_mirrors_status(GvStatusReply *reply, GvMirrorStatus *mirrors,
				  int32_t room)
{
	int64_t		now = now_ms();
	const GvHeldMirror *held;
	int32_t		n = 0;

	lock();
	for (held = registry.first; held != NULL; held = held->next, n++)
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
		mirrors[n].unused = 0;
		mirrors[n].bytes = held->bytes;
		mirrors[n].copies = held->copies;
		mirrors[n].expected = held->spec.copies;
		mirrors[n].searches = held->searches;
		mirrors[n].idle_ms = now > held->used_ms ? now - held->used_ms : 0;
	}
	if (reply != NULL)
	{
		reply->memory = registry.budget;
		reply->used = registry.used;
		reply->evictions = registry.evictions;
	}
	unlock();
	return n;
}
