/*
 * gv_spread.h
 *		Mirrors that lie on several devices, whatever the engine.
 *
 * An engine's mirror is on one device.  Where several devices were found,
 * gv_mirrors_open puts gv_spread_mirrors in front of the engine: its mirrors have
 * parts, each a mirror of the engine's on a device of its own.
 *
 *	shards		every part has all arrays, so each finds the same lists with the
 *				same bases; a list's blocks, and a page's refine records, are one
 *				part's
 *	replicas	every part has everything
 *
 * A search of shards goes through all parts, in up to three steps, of which
 * each begins on all parts when the one before has ended on all:
 *
 *	found		the best copies of each part's lists; merged by (S, row id)
 *	counted		the sample by the score of the merged hit number `rank`, where
 *				searches ask for that; sums are added
 *	bounded		merged hits go to the parts that have their records
 *
 * So answers are those of one mirror that has everything, bit for bit.  A search
 * of a replica is the engine's own: it goes to the part on the searcher's device.
 */
#ifndef GV_SPREAD_H
#define GV_SPREAD_H

#include "engine/mirror/gv_mirror.h"

/* Refine records of so many pages in a row are one shard's. */
#define GV_PAGE_RUN		32

typedef struct GvSpreadMirror
{
	GvMirrorSpec spec;			/* of all of it */
	GvSpread	spread;			/* one part: whole, whatever its kind */
	GvMirror   *parts[GV_MAX_DEVICES];	/* the engine's */
} GvSpreadMirror;

static inline bool
gv_has_shards(const GvSpreadMirror *mirror)
{
	return mirror->spread.kind == GV_SHARDS && mirror->spread.nparts > 1;
}

/* The part that has a list, or a record; 0 where every part has all. */
static inline int32_t
gv_list_owner(const GvSpreadMirror *mirror, int32_t list)
{
	/* neighbors in space have neighboring numbers: probes are spread, too */
	return gv_has_shards(mirror) ? list % mirror->spread.nparts : 0;
}

static inline int32_t
gv_record_owner(const GvSpreadMirror *mirror, const uint16_t *address)
{
	uint32_t	page = (uint32_t) address[0] << 16 | address[1];

	return gv_has_shards(mirror) ?
		(int32_t) (page / GV_PAGE_RUN % (uint32_t) mirror->spread.nparts) : 0;
}

/* gv_spread.c */
extern const GvMirrorBackend gv_spread_mirrors;
extern const GvMirrorBackend *gv_spread_engine; /* that makes parts */

extern int64_t gv_spread_size(const GvMirrorSpec *spec,
							  const GvSpread *spread, int32_t part);
extern GvStatus gv_spread_create(const GvMirrorSpec *spec,
								 const GvSpread *spread, GvMirror **mirror,
								 int32_t *lacking);
extern int32_t gv_spread_parts(const GvMirror *mirror, GvPart *parts);
extern GvStatus gv_spread_drop_part(GvMirror *mirror, int32_t device);

/* gv_spreadsearch.c: functions of gv_spread_mirrors */
extern GvStatus gv_spread_searcher(int32_t device, GvSearcher **searcher);
extern void gv_spread_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_spread_begin(GvSearcher *searcher, GvMirror *mirror,
								GvSearch *searches, int32_t n);
extern bool gv_spread_done(GvSearcher *searcher);
extern GvStatus gv_spread_finish(GvSearcher *searcher);

#ifdef GV_TEST_BUILD
/* The engine's own searcher, of a device. */
extern GvSearcher *gv_spread_own(GvSearcher *searcher, int32_t device);
#endif

/*
 * gv_spreadhits.c: the processor may fetch what is soon read.  Answers of parts lie
 * apart, and with those that are not needed between them, so that by itself it
 * finds none.
 */
extern void gv_spread_expect(const void *from, size_t bytes);

/*
 * gv_spreadhits.c, of one search: the first nhits hits of all parts, asked
 * [nparts][n], into hits [nhits], with as much room beside them; hits in turn by
 * the owners of their records, sorted [nhits], how many each has, counts [nparts],
 * and whose each is, owners [nhits]
 */
extern void gv_spread_merge_hits(const GvSearch *asked, int32_t n,
								 int32_t nparts, GvHit *hits, int32_t nhits,
								 GvHit *beside);
extern void gv_spread_sort_hits(const GvSpreadMirror *mirror,
								const GvHit *hits, int32_t nhits,
								GvHit *sorted, uint8_t *owners,
								int32_t *counts);

/*
 * gv_spreadmerge.c: what shards are asked, asked [nparts][n], and what comes of
 * their answers
 */
typedef struct GvSpreadRange
{
	size_t		nhits;			/* of some searches in a row */
	size_t		bytes;			/* of their answers */
	size_t		first;			/* of those hits, among all */
	size_t		at;				/* of those bytes */
} GvSpreadRange;

typedef struct GvSpreadAnswers
{
	GvSpreadRange *ranges;		/* [nranges], all searches */
	int32_t		nranges;
	int32_t		ranges_capacity;
	char	   *memory;			/* what follows, and answers */
	size_t		bytes;
	GvHit	   *sorted;			/* [nhits] of all searches, of each by the
								 * owners of records, */
	int32_t    *counts;			/* [n][nparts] so many */
	uint8_t    *owners;			/* [nhits] by the order of hits */
	char	   *others;			/* by ranges */
} GvSpreadAnswers;

extern GvStatus gv_spread_merge(const GvSpreadMirror *mirror,
								GvSearch *asked, GvSearch *searches,
								int32_t n, GvSpreadAnswers *answers);
extern int32_t gv_spread_ask_nearer(const GvSpreadMirror *mirror,
									const GvSearch *searches, int32_t n,
									GvSearch *asked);
extern void gv_spread_add_nearer(const GvSpreadMirror *mirror,
								 const GvSearch *asked, GvSearch *searches,
								 int32_t n);
extern void gv_spread_ask_bounds(const GvSpreadMirror *mirror,
								 GvSearch *searches, int32_t n,
								 GvSearch *asked, GvSpreadAnswers *answers,
								 int64_t *nhits);
extern void gv_spread_take_bounds(const GvSpreadMirror *mirror,
								  GvSearch *asked, GvSearch *searches,
								  int32_t n, GvSpreadAnswers *answers);

#endif							/* GV_SPREAD_H */
