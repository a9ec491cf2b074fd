/*
 * gv_multi.h
 *		Mirrors on several devices, for any engine.
 *
 * An engine's mirror is on one device.  If several devices were found,
 * gv_mirrors_open puts gv_devices_mirrors in front of the engine.  A mirror of
 * gv_devices_mirrors has R replicas of S shards each.  Each of these R * S
 * members is a mirror of the engine, and no two are on the same device.  Every
 * member has all arrays of the model, so each member finds the same lists with
 * the same coarse scores.  The blocks of a list, and the refine records of a
 * page, are on one shard of each replica.
 *
 * A search goes to one replica.  If S is 1, the engine does the whole search.
 * Otherwise the search takes up to three steps on the shards of the replica.
 * A step begins when all shards have ended the step before:
 *
 *	found		each shard finds the best postings of its lists, and these are
 *				merged by (score, row id)
 *	counted		only if searches request the sample: each shard compares its
 *				part of the sample with the score of the merged hit number
 *				`rank`, and the shards' counts are added up
 *	bounded		only if searches request bounds: each merged hit goes to the
 *				shard that has its record, which computes the bound
 *
 * So the answers are the same, bit for bit, as those of one mirror that has
 * all shards' contents.
 */
#ifndef GV_GV_MULTI_H
#define GV_GV_MULTI_H

#include "engine/mirror/gv_mirror.h"

/* Number of consecutive pages whose refine records are on the same shard. */
#define GV_PAGE_RUN		32

typedef struct GvPlacedMirror
{
	GvMirrorSpec spec;			/* of the whole mirror */
	GvPlacement placement;		/* of the replicas that are left */
	GvMirror   *mirrors[GV_MAX_DEVICES];	/* the members, which are mirrors
											 * of the engine */
} GvPlacedMirror;

/*
 * Return the shard that has the blocks of a list, or the refine record with an
 * address.
 */
static inline int32_t
gv_list_owner(const GvPlacedMirror *mirror, int32_t list)
{
	/*
	 * lists near each other have adjacent numbers, so this spreads probes
	 * over all shards
	 */
	return list % mirror->placement.nshards;
}

static inline int32_t
gv_record_owner(const GvPlacedMirror *mirror, const uint16_t *address)
{
	uint32_t	page = (uint32_t) address[0] << 16 | address[1];

	return (int32_t) (page / GV_PAGE_RUN %
					  (uint32_t) mirror->placement.nshards);
}

/* These are in gv_multi.c. */
extern const GvMirrorBackend gv_devices_mirrors;
extern const GvMirrorBackend *gv_devices_engine;	/* the engine, even if
													 * there is only one
													 * device */

/*
 * Like gv_mirror_member_size, gv_mirror_create_on, gv_mirror_usage and
 * gv_mirror_drop_replica.
 */
extern int64_t gv_devices_size(const GvMirrorSpec *spec,
							   const GvPlacement *placement, int32_t member);
extern GvStatus gv_devices_create(const GvMirrorSpec *spec,
								  const GvPlacement *placement,
								  GvMirror **mirror,
								  uint32_t *lacking);
extern int32_t gv_devices_usage(const GvMirror *mirror, GvDeviceUsage *usage);
extern GvStatus gv_devices_drop_replica(GvMirror *mirror, int32_t device);

/*
 * These functions are in gv_multisearch.c.  All are callbacks of
 * gv_devices_mirrors, except gv_devices_begin, which gv_mirror.c calls
 * directly, with the searchers of all shards.
 */
extern GvStatus gv_devices_searcher(int32_t device, GvSearcher **searcher);
extern void gv_devices_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_devices_begin(GvSearcher *const *searchers,
								 int32_t nsearchers, GvMirror *mirror,
								 GvSearch *searches, int32_t n);
extern bool gv_devices_done(GvSearcher *searcher);
extern GvStatus gv_devices_finish(GvSearcher *searcher);

#ifdef GV_TEST_BUILD
/* Returns the engine's own searcher. */
extern GvSearcher *gv_devices_own(GvSearcher *searcher);
#endif

#endif							/* GV_GV_MULTI_H */
