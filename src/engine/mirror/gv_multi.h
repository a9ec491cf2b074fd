/*
 * gv_multi.h
 *		Mirrors that lie on several devices, whatever the engine.
 *
 * An engine's mirror is on one device.  Where several devices were found,
 * gv_mirrors_open puts gv_devices_mirrors in front of the engine: its mirrors
 * have members, each a mirror of the engine's on a device of its own.
 *
 *	shards		every member has all arrays, so each finds the same lists with
 *				the same bases; a list's blocks, and a page's refine records,
 *				are one shard's
 *	replicas	every member has everything
 *
 * A search of shards goes through all shards, in up to three steps, of which
 * each begins on all shards when the one before has ended on all:
 *
 *	found		the best postings of each shard's lists; merged by (S, row id)
 *	counted		the sample by the score of the merged hit number `rank`, where
 *				searches ask for that; sums are added
 *	bounded		merged hits go to the shards that have their records
 *
 * So answers are those of one mirror that has everything, bit for bit.  A
 * search of a replica is the engine's own: it goes to the replica on the
 * searcher's device.
 */
#ifndef GV_GV_MULTI_H
#define GV_GV_MULTI_H

#include "engine/mirror/gv_mirror.h"

/* Pages in a row whose refine records are one shard's. */
#define GV_PAGE_RUN		32

typedef struct GvPlacedMirror
{
	GvMirrorSpec spec;			/* of all of it */
	GvPlacement placement;		/* one member: whole, whatever its mode */
	GvMirror   *mirrors[GV_MAX_DEVICES];	/* the engine's */
} GvPlacedMirror;

static inline bool
gv_has_shards(const GvPlacedMirror *mirror)
{
	return mirror->placement.mode == GV_SHARDS &&
		mirror->placement.ndevices > 1;
}

/*
 * Returns the member that has a list, or a record; 0 where every member has
 * all.
 */
static inline int32_t
gv_list_owner(const GvPlacedMirror *mirror, int32_t list)
{
	/*
	 * neighbors in space have neighboring numbers: so probes go to all shards
	 */
	return gv_has_shards(mirror) ? list % mirror->placement.ndevices : 0;
}

static inline int32_t
gv_record_owner(const GvPlacedMirror *mirror, const uint16_t *address)
{
	uint32_t	page = (uint32_t) address[0] << 16 | address[1];

	return gv_has_shards(mirror) ?
		(int32_t) (page /
				   GV_PAGE_RUN % (uint32_t) mirror->placement.ndevices) : 0;
}

/* gv_multi.c */
extern const GvMirrorBackend gv_devices_mirrors;
extern const GvMirrorBackend *gv_devices_engine;	/* that makes parts */

extern int64_t gv_devices_size(const GvMirrorSpec *spec,
							   const GvPlacement *placement, int32_t member);
extern GvStatus gv_devices_create(const GvMirrorSpec *spec,
								  const GvPlacement *placement,
								  GvMirror **mirror,
								  int32_t *lacking);
extern int32_t gv_devices_usage(const GvMirror *mirror, GvDeviceUsage *usage);
extern GvStatus gv_devices_drop_replica(GvMirror *mirror, int32_t device);

/* gv_multisearch.c: functions of gv_devices_mirrors */
extern GvStatus gv_devices_searcher(int32_t device, GvSearcher **searcher);
extern void gv_devices_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_devices_begin(GvSearcher *searcher, GvMirror *mirror,
								 GvSearch *searches, int32_t n);
extern bool gv_devices_done(GvSearcher *searcher);
extern GvStatus gv_devices_finish(GvSearcher *searcher);

#ifdef GV_TEST_BUILD
/* The engine's own searcher, of a device. */
extern GvSearcher *gv_devices_own(GvSearcher *searcher, int32_t device);
#endif

/*
 * gv_multisearch.c: the processor may fetch what is soon read.  Answers of
 * shards lie apart, with others that are not needed between them, so that by
 * itself it prefetches none.
 */

/*
 * gv_multisearch.c, of one search: the first nhits hits of all shards, asked
 * [ndevices][n], into hits [nhits], with as much scratch behind them; hits in
 * order by the owners of their records, sorted [nhits], how many each has,
 * counts [ndevices], and whose each is, owners [nhits]
 */

/*
 * gv_multisearch.c: what shards are asked, asked [ndevices][n], and how their
 * answers are merged
 */
typedef struct GvShardRange
{
	size_t		nhits;			/* of some searches in a row */
	size_t		bytes;			/* of their answers */
	size_t		first;			/* of those hits, among all */
	size_t		at;				/* of those bytes */
} GvShardRange;

typedef struct GvShardAnswers
{
	GvShardRange *ranges;		/* [nranges], all searches */
	int32_t		nranges;
	int32_t		ranges_capacity;
	char	   *memory;			/* what follows, and answers */
	size_t		bytes;
	GvHit	   *sorted;			/* [nhits] of all searches, of each by the
								 * owners of records, */
	int32_t    *counts;			/* [n][ndevices] hits of each owner */
	uint8_t    *owners;			/* [nhits] by the order of hits */
	char	   *others;			/* by ranges */
} GvShardAnswers;


#endif							/* GV_GV_MULTI_H */
