/*
 * gv_multi.h
 *		Mirrors on one or several devices, for any engine.
 *
 * An engine's mirror is on one device.  The GvMirror that gv_mirror_create_on
 * makes is a GvPlacedMirror, which has R replicas of S shards each.  Each of
 * these R * S members is a mirror of the engine, and no two are on the same
 * device.  Every member has all arrays of the model, so each member finds the
 * same lists with the same coarse scores.  The blocks of a list, and the
 * refine records or rows of a page, are on one shard of each replica.
 *
 * A search goes to one replica.  If S is 1, the engine does the whole search.
 * Otherwise the search takes up to four steps on the shards of the replica.
 * A step begins when all shards have ended the step before:
 *
 *	chosen		only of many searches among many lists: each shard chooses the
 *				lists of a share of the searches, instead of those of all
 *	found		each shard finds the best postings of its lists, and these are
 *				merged by (score, row id)
 *	counted		only if searches request the sample: each shard compares its
 *				part of the sample with the score of the merged hit number
 *				`rank`, and the shards' counts are added up
 *	bounded		only if searches request bounds or distances: each merged hit
 *				goes to the shard that has its record or row, which computes
 *				the bound or distance
 *
 * So the answers are the same, bit for bit, as those of one mirror that has
 * all shards' contents.
 */
#ifndef GV_GV_MULTI_H
#define GV_GV_MULTI_H

#include "engine/gv_call.h"
#include "engine/mirror/gv_mirror.h"

/* Number of consecutive pages whose records or rows are on the same shard. */
#define GV_PAGE_RUN		32

typedef struct GvPlacedMirror
{
	GvMirrorSpec spec;			/* of the whole mirror; its device is not used */
	GvPlacement placement;		/* of the replicas that are left */
	GvMirror   *mirrors[GV_MAX_DEVICES];	/* the members, which are mirrors
											 * of the engine */
} GvPlacedMirror;

/* Returns the shard that has the refine record or row with an address. */
static inline int32_t
gv_record_owner(const GvPlacedMirror *mirror, const uint16_t *address)
{
	uint32_t	page = (uint32_t) address[0] << 16 | address[1];

	return (int32_t) (page / GV_PAGE_RUN %
					  (uint32_t) mirror->placement.nshards);
}

/*
 * The engine that gv_mirrors_open was called with; NULL before the call, and
 * if it failed.
 */
extern const GvMirrorBackend *gv_mirrors_engine;

#ifdef GV_TEST_BUILD
extern GvFault gv_mirror_calls;

/* Has shards share the choice of lists always, or only if it pays. */
extern void gv_devices_share_choice(bool always);

/* Returns the engine's own searcher. */
extern GvSearcher *gv_devices_own(GvSearcher *searcher);
#endif

#endif							/* GV_GV_MULTI_H */
