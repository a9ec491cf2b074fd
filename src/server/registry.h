/*
 * registry.h
 *		The registry of mirrors from the inside: what registry.c, registry.c and
 *		registry.c share.
 *
 * All of it is protected by its mutex.  Functions here expect it to be locked;
 * destroying a mirror, and so evicting one or freeing memory, releases it for
 * a while.
 */
#ifndef GV_REGISTRY_H
#define GV_REGISTRY_H

#include "server/server.h"

/* A device's memory, and how much of it is reserved. */
typedef struct GvDeviceMemory
{
	int64_t		budget;
	int64_t		used;
	int			works;			/* builds and sets there */
	int64_t		memory;			/* of mirrors and searchers */
	int64_t		searcher;		/* bytes that one may take */
	int32_t		extras;			/* searchers besides those of batch slots */
	GvTriedDevices guests;		/* other devices that searches of shards come
								 * from: they have searchers here from then on */
	uint16_t	coming[GV_MAX_DEVICES]; /* mirrors in shards here that will be
										 * searched from each, once ready */
} GvDeviceMemory;

typedef struct GvRegistry
{
	pthread_mutex_t mutex;
	pthread_cond_t released;	/* a mirror was let go */
	GvMirrorEntry *first;
	int32_t		ndevices;
	GvDeviceMemory devices[GV_MAX_DEVICES];
	int64_t		evictions;
	int64_t		keep_ms;		/* what was used since is not evicted */
} GvRegistry;

extern GvRegistry gv_registry;

static inline void
gv_registry_lock(void)
{
	pthread_mutex_lock(&gv_registry.mutex);
}

static inline void
gv_registry_unlock(void)
{
	pthread_mutex_unlock(&gv_registry.mutex);
}

/* Locked: are there other replicas of it, so that one is to spare? */
static inline bool
gv_registry_is_spare(const GvMirrorEntry *entry)
{
	return entry->mode == GV_REPLICAS && entry->nmembers > 1;
}

/* Locked: returns how many members, the first ones, searches go to. */
static inline int32_t
gv_registry_searched(const GvMirrorEntry *entry)
{
	return entry->mode == GV_SHARDS ? 1 : entry->nmembers;
}

/*
 * Returns the OID that names a mirror in the log, with or without the lock:
 * whoever acquires the mirror may change it (ALTER TABLE may keep pages).
 */
static inline uint32_t
gv_registry_index(const GvMirrorEntry *entry)
{
	return __atomic_load_n(&entry->key.index, __ATOMIC_RELAXED);
}

static inline int64_t
gv_now_ms(void)
{
	return (int64_t) (gv_now_ns() / 1000000);
}

/* registry.c */

/* registry.c */

/* registry.c */

#endif							/* GV_REGISTRY_H */
