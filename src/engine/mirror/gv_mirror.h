/*
 * gv_mirror.h
 *		The engine API's part for mirrors: a copy of an index, searched whole.
 *
 * gv_engine.h works on arrays that the caller brings each time.  A device has
 * to have them before the query comes: a mirror is an index's model and lists
 * in an engine's own memory, and a search takes a query all the way from
 * coarse search to the best postings.  gpuvecd calls this; backends never do.
 *
 * Unlike gv_engine.h these operations keep state and take memory, and may
 * report GV_NO_MEMORY or, for a call that is a fault of ours, GV_REJECTED (the
 * mirror is as it was, after either), and GV_FAILED (the engine is
 * beyond repair: the process must be restarted).  They never print, exit
 * or jump out.
 *
 * Threads: changes of a mirror (put_array, put_list, drop) exclude all else on
 * that mirror; the caller locks.  Searches with different searchers, and
 * changes of different mirrors, may run side by side.
 *
 * Results are those of the score S (gv_engine.h), so that candidates are the
 * same as those of gv_coarse, gv_table and gv_scan, pair for pair.
 */
#ifndef GV_MIRROR_H
#define GV_MIRROR_H

#include "engine/gv_engine.h"

/* One mirror and one worker's memory, each an engine's own. */
typedef struct GvMirror GvMirror;
typedef struct GvSearcher GvSearcher;

/* The properties of a mirror that never change. */
typedef struct GvMirrorSpec
{
	int32_t		device;			/* that holds it, all of it, or see
								 * GvPlacement */
	GvMetric	metric;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		nlists;			/* 1 .. 2^24 */
	int32_t		nparents;		/* 1 .. nlists */
	int64_t		postings;		/* about how many there are to come */
	int32_t		refine_slots;	/* refine records that fit a page of the
								 * index, below 2^16; 0 = no refine records */
	GvKeyForm	keys;			/* of its postings */
	int64_t		refine_records; /* about how many there are to come */
} GvMirrorSpec;

/*
 * The placement of a mirror, if not on its specification's device.  With
 * several devices each has a member: a shard, where none has memory for the
 * whole, or a replica, so that more is searched at a time (gv_multi.h).
 */
typedef enum GvPlacementMode
{
	GV_SHARDS,
	GV_REPLICAS
} GvPlacementMode;

typedef struct GvPlacement
{
	GvPlacementMode mode;		/* of one member: no matter which */
	int32_t		ndevices;		/* 1 .. GV_MAX_DEVICES */
	int32_t		devices[GV_MAX_DEVICES];	/* [ndevices], none twice */
} GvPlacement;

typedef struct GvDeviceUsage
{
	int32_t		device;
	int64_t		bytes;			/* that it takes there now */
} GvDeviceUsage;

/* The arrays of the model, of 4-byte elements. */
typedef enum GvArray
{
	GV_CODEBOOKS,				/* float [GV_CODEWORDS * dims] */
	GV_PARENTS,					/* float [nparents][dims] */
	GV_PARENT_OFFSETS,			/* int32 [nparents + 1] */
	GV_CENTROIDS				/* float [nlists][dims] */
} GvArray;

#define GV_NARRAYS		4

/* Elements of an array. */
static inline int64_t
gv_array_length(const GvMirrorSpec *spec, GvArray array)
{
	switch (array)
	{
		case GV_CODEBOOKS:
			return (int64_t) GV_CODEWORDS * spec->dims;
		case GV_PARENTS:
			return (int64_t) spec->nparents * spec->dims;
		case GV_PARENT_OFFSETS:
			return (int64_t) spec->nparents + 1;
		case GV_CENTROIDS:
			return (int64_t) spec->nlists * spec->dims;
	}
	return 0;
}

/* Elements that an array may have; whether this one has, its engine knows. */
static inline bool
gv_valid_values(GvArray array, int64_t first, int64_t n, const void *values)
{
	return array >= GV_CODEBOOKS && array <= GV_CENTROIDS &&
		first >= 0 && n >= 0 && first <= INT64_MAX - n &&
		(values != NULL || n == 0);
}

/*
 * Blocks of one list: with these in place the list holds its blocks
 * 0 .. first - 1 as before, these, and no others.  All but the last are full.
 * With codes, t, rowids and keys NULL only `live` is new, and the blocks are
 * there.
 */
typedef struct GvListChunk
{
	int32_t		list;
	int32_t		first;			/* block number, 0 the oldest */
	int32_t		nblocks;
	const uint32_t *live;		/* [nblocks] bit i: posting i is live */
	const float *t;				/* [nblocks][GV_BLOCK] */
	const uint16_t *rowids;		/* [nblocks][GV_BLOCK][3] */
	const void *keys;			/* [nblocks], each as gv_keys.h lays them out,
								 * aligned to 4; NULL of an index without */
	const uint8_t *codes;		/* [nblocks][gv_code_bytes(m)][GV_BLOCK] */
} GvListChunk;

/*
 * A refine record (GvRefine) on its way.  Its address is what postings of such
 * an index have for a row id: the index's page, as two words, and the slot on
 * it, from 1.  The record names the row itself; a third word of 0 there says
 * that the slot is free.
 */
typedef struct GvRefineItem
{
	uint16_t	address[3];
	uint16_t	rowid[3];
	float		min;
	float		step;
	float		error;
	uint8_t		codes[];		/* [dims] */
} GvRefineItem;

/* Bytes from one item to the next. */
static inline size_t
gv_refine_stride(int32_t dims)
{
	return (sizeof(GvRefineItem) + (size_t) dims + 3) / 4 * 4;
}

static inline const GvRefineItem *
gv_refine_item(const GvRefineItem *items, int32_t dims, int32_t i)
{
	return (const GvRefineItem *) ((const char *) items +
								   gv_refine_stride(dims) * (size_t) i);
}

/* A list that was searched, and its coarse score. */
typedef struct GvProbe
{
	int32_t		list;
	float		base;
} GvProbe;

/* A posting found.  A row id is as in GvBlock. */
typedef struct GvHit
{
	float		score;			/* S */
	uint32_t	probe;			/* which of the probes holds it */
	uint16_t	rowid[3];
	uint16_t	unused;			/* 0 */
} GvHit;

/*
 * The content of a hit's refine record: the row, and gv_refine_bound's bound.
 * known is 0 where there is no record of the hit's address, or a free one.
 */
typedef struct GvBound
{
	float		bound;
	uint16_t	rowid[3];
	uint16_t	known;			/* 0 or 1 */
} GvBound;

/*
 * One query.  The `probes` nearest lists are searched, found among `compare`
 * lists whose parents are nearest, or among all lists where an engine prefers
 * that; of their live postings that satisfy the condition the best `capacity`
 * come back, ascending by (S, row id).
 *
 * A sample tells how near those are that do not satisfy the condition: of the
 * blocks of the lists searched that gv_sampled takes, `nearer` is the number
 * of live postings, whether they satisfy it or not, whose score is not beyond
 * that of hit number `rank`, counted from 1; nearer_squares is the sum of the
 * squares of each block's number.
 *
 * Arrays that come back are the searcher's memory, where the engine left them
 * without another copy: they are good until that searcher searches again.
 *
 * Shards are searched in steps (gv_multi.h).  With `limited` the sample is
 * compared with a score, `limit`, in the place of the hit's, however many hits
 * there are.  With `given` nhits hits of whatever mirror are the caller's, and
 * only their bounds are requested; of one call all searches are such, or none.
 */
typedef struct GvSearch
{
	const float *query;			/* [dims], transformed */
	int32_t		probes;			/* >= 1 */
	int32_t		compare;		/* >= 1 */
	int32_t		capacity;		/* >= 1 */
	bool		bounded;		/* bounds are requested; only of mirrors with
								 * refine records */
	const GvCondition *condition;	/* of the mirror's keys; NULL: none */
	int32_t		rank;			/* 0: nothing is asked of the sample; else 1
								 * .. capacity, and only with a condition */
	bool		limited;		/* only with a rank */
	float		limit;
	bool		given;			/* only where bounds are requested */
	int32_t		nprobed;		/* out */
	GvProbe    *probed;			/* out [nprobed], nearest first */
	int32_t		nhits;			/* out; in where they are given */
	GvHit	   *hits;			/* likewise, [nhits] */
	GvBound    *bounds;			/* out [nhits], of the hits; or NULL */
	int64_t		postings;		/* out: live ones of the lists probed */
	int32_t    *matches;		/* out [nprobed]: of each list's live postings
								 * those that satisfy the condition; NULL
								 * without one */
	int64_t		nearer;			/* out: see above; 0 where there are fewer
								 * hits than `rank`, or that is 0 */
	int64_t		nearer_squares; /* out: likewise */
} GvSearch;

/* A device that an engine runs on. */
typedef struct GvDevice
{
	char		name[128];		/* the device's or the processor's; on
								 * failure, the reason */
	int32_t		number;			/* as lists of devices name it */
	int64_t		memory;			/* bytes that mirrors may have */
	int64_t		kept;			/* besides, for searchers of its own */
	int64_t		searcher;		/* bytes that one may take */
} GvDevice;

/* One engine, complete; the functions below call it. */
typedef struct GvMirrorBackend
{
	const char *name;			/* "cpu", "cuda" */

	GvStatus	(*open) (const char *devices, GvDevice *found,
						 int32_t *nfound);
	int64_t		(*size) (const GvMirrorSpec *spec);
	GvStatus	(*create) (const GvMirrorSpec *spec, GvMirror **mirror);
	void		(*drop) (GvMirror *mirror);
	int64_t		(*bytes) (const GvMirror *mirror);
	GvStatus	(*put_array) (GvMirror *mirror, GvArray array, int64_t first,
							  int64_t n, const void *values);
	GvStatus	(*put_list) (GvMirror *mirror, const GvListChunk *chunk);
	GvStatus	(*put_refine) (GvMirror *mirror, const GvRefineItem *items,
							   int32_t n);
	GvStatus	(*get_array) (GvMirror *mirror, GvArray array, int64_t first,
							  int64_t n, void *values);
	GvStatus	(*get_block) (GvMirror *mirror, int32_t list, int32_t block,
							  GvBlock *view);
	GvStatus	(*get_refine) (GvMirror *mirror,
							   const uint16_t *addresses, int32_t n,
							   GvRefineItem *items);
	GvStatus	(*searcher) (int32_t device, GvSearcher **searcher);
	void		(*searcher_drop) (GvSearcher *searcher);
	GvStatus	(*begin) (GvSearcher *searcher, GvMirror *mirror,
						  GvSearch *searches, int32_t n);
	bool		(*done) (GvSearcher *searcher);
	GvStatus	(*finish) (GvSearcher *searcher);
	void		(*rejection) (char *text, size_t size); /* or NULL */
} GvMirrorBackend;

extern const GvMirrorBackend gv_cuda_mirrors;	/* gpu/, where it is built */

/*
 * gv_mirrors_open: take this engine from now on, on these devices: numbers
 * separated by commas, or "" for all that it can use.  They come back in found
 * [GV_MAX_DEVICES], of which *nfound are filled; the names behind them, up to
 * the first that is empty, say why the rest cannot be used.  On failure the
 * first has the reason, and the status says whether it may pass, GV_FAILED and
 * GV_NO_MEMORY, or not, GV_INVALID.  Once a process.  The portable engine has
 * as many devices as are named, for tests, and divides its memory among them.
 */
extern GvStatus gv_mirrors_open(const GvMirrorBackend *engine,
								const char *devices, GvDevice *found,
								int32_t *nfound);

/*
 * The kernels that multiply matrices on a device: the engine's own, cuBLAS's,
 * or the best there.  gv_matmul_use: sets that from now on, before
 * gv_mirrors_open.
 */
typedef enum GvMatmulSetting
{
	GV_MATMUL_AUTO,
	GV_MATMUL_OWN,
	GV_MATMUL_CUBLAS
} GvMatmulSetting;

extern void gv_matmul_use(GvMatmulSetting matmul);
extern GvMatmulSetting gv_matmul_used(void);

/* gv_rejection: which call was the last to be GV_REJECTED; "": not known. */
extern void gv_rejection(char *text, size_t size);

/* gv_ndevices: how many were found; 0 before. */
extern int32_t gv_ndevices(void);

/*
 * For engines: the numbers of such a list into numbers [GV_MAX_DEVICES];
 * returns how many, or -1 when it is malformed, too long, or has one twice.
 */
extern int32_t gv_parse_devices(const char *devices, int32_t *numbers);

/*
 * gv_mirror_size: bytes that a mirror will take, about; 0: invalid spec,
 * INT64_MAX: more than the device can ever hold.
 */
extern int64_t gv_mirror_size(const GvMirrorSpec *spec);

/* gv_mirror_create: an empty mirror; all lists are empty, arrays zero. */
extern GvStatus gv_mirror_create(const GvMirrorSpec *spec, GvMirror **mirror);
extern void gv_mirror_drop(GvMirror *mirror);

/*
 * The same on the devices of a placement, whatever device the spec names.
 * gv_mirror_member_size: what one of its members will take, as gv_mirror_size.
 *
 * gv_mirror_create_on: as gv_mirror_create.  A replica that finds no memory
 * then, or in a later change, is given up, and others move up in its place;
 * only when there is none left it is GV_NO_MEMORY, and the last one is left as
 * any mirror would be.  After GV_NO_MEMORY of shards some may have the values
 * of an array that others lack.  With GV_NO_MEMORY *lacking, unless NULL, is
 * the member that found none; -1: every one.
 */
extern int64_t gv_mirror_member_size(const GvMirrorSpec *spec,
									 const GvPlacement *placement,
									 int32_t member);
extern GvStatus gv_mirror_create_on(const GvMirrorSpec *spec,
									const GvPlacement *placement,
									GvMirror **mirror, int32_t *lacking);

/*
 * gv_mirror_usage: the members that it has, into usage [GV_MAX_DEVICES];
 * returns how many.  A mirror on one device has one.
 *
 * gv_mirror_list_shard, gv_mirror_record_shard: which of them a list's blocks
 * go to, or a refine record by its address; -1: all.
 *
 * gv_mirror_drop_replica: a change, by which the replica on a device goes.
 * GV_INVALID when there is none, or no other.
 */
extern int32_t gv_mirror_usage(const GvMirror *mirror, GvDeviceUsage *usage);
extern int32_t gv_mirror_list_shard(const GvMirror *mirror, int32_t list);
extern int32_t gv_mirror_record_shard(const GvMirror *mirror,
									  const uint16_t *address);
extern GvStatus gv_mirror_drop_replica(GvMirror *mirror, int32_t device);

/*
 * gv_mirror_put_array: elements first .. first + n - 1 of an array.
 * GV_INVALID when they are not all in it.
 */
extern GvStatus gv_mirror_put_array(GvMirror *mirror, GvArray array,
									int64_t first, int64_t n,
									const void *values);

/*
 * gv_mirror_put_list: GV_INVALID when the chunk leaves a gap, has `live` only
 * and the list has other blocks, or lacks the mirror's keys.
 */
extern GvStatus gv_mirror_put_list(GvMirror *mirror,
								   const GvListChunk *chunk);

/*
 * gv_mirror_put_refine: items [n], gv_refine_stride apart, ascending by
 * address, each in the place of what was there.  GV_INVALID, and none is in,
 * when they do not ascend, a slot is out of range, or the mirror has no refine
 * records.  After GV_NO_MEMORY some may be in.
 */
extern GvStatus gv_mirror_put_refine(GvMirror *mirror,
									 const GvRefineItem *items, int32_t n);
extern bool gv_refine_items_valid(const GvMirrorSpec *spec,
								  const GvRefineItem *items, int32_t n);

/*
 * gv_mirror_get_array: elements as the mirror has them, for checks.
 * GV_INVALID when they are not all in the array.
 */
extern GvStatus gv_mirror_get_array(GvMirror *mirror, GvArray array,
									int64_t first, int64_t n, void *values);

/*
 * gv_mirror_get_refine: the records at addresses [n][3], for checks, into
 * items [n], gv_refine_stride apart; zero, but for the address, where there is
 * none.  GV_INVALID when the mirror has no refine records.
 */
extern GvStatus gv_mirror_get_refine(GvMirror *mirror,
									 const uint16_t *addresses, int32_t n,
									 GvRefineItem *items);

/*
 * gv_mirror_get_block: a block as the mirror has it, for checks; the view is
 * good until the mirror's next change or get_block.  GV_INVALID when there is
 * none.
 */
extern GvStatus gv_mirror_get_block(GvMirror *mirror, int32_t list,
									int32_t block, GvBlock *view);

/* gv_searcher: memory for one thread's searches of a device's mirrors. */
extern GvStatus gv_searcher(int32_t device, GvSearcher **searcher);
extern void gv_searcher_drop(GvSearcher *searcher);

/*
 * gv_mirror_search: n queries of one mirror, whose arrays are complete.
 * Parent offsets that are no ascending cover of the lists are GV_INVALID, and
 * so are a mirror that has no member on the searcher's device and a condition
 * of other keys than its own.  Shards may be searched from any of their
 * devices.
 */
extern GvStatus gv_mirror_search(GvSearcher *searcher, GvMirror *mirror,
								 GvSearch *searches, int32_t n);

/*
 * The same in two calls, so that the caller can do something else while a
 * device works.  Between a begin that was GV_OK and its finish the searches
 * are the engine's, with their queries and conditions, the mirror must not be
 * changed, and the searcher begins nothing else.  gv_mirror_done: returns
 * whether finish would return at once.
 */
extern GvStatus gv_mirror_begin(GvSearcher *searcher, GvMirror *mirror,
								GvSearch *searches, int32_t n);
extern bool gv_mirror_done(GvSearcher *searcher);
extern GvStatus gv_mirror_finish(GvSearcher *searcher);

#ifdef GV_TEST_BUILD

/*
 * Fault injection: from now on the n-th call of the operations above that
 * report a status (1 = the next) reports this one instead; 0 = none does.
 * GV_HANGS (gv_fault.h): it never ends, or what it has begun is never done.
 */
extern void gv_mirror_fault(int64_t n, GvStatus status);

/* gv_mirror_bytes: what a mirror takes now, on all devices. */
extern int64_t gv_mirror_bytes(const GvMirror *mirror);

#endif

#endif							/* GV_MIRROR_H */
