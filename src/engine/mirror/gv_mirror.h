/*
 * gv_mirror.h
 *		The engine API's part for mirrors.  A mirror is a copy of an index,
 *		which is searched in one call.
 *
 * gv_engine.h works on arrays that the caller passes in each call.  A device
 * must have the arrays before a query comes.  So a mirror has an index's model
 * and lists in an engine's own memory, and one call does the whole search for
 * a query, from the coarse search to the best postings.  gpuvecd calls this
 * API; backends never do.
 *
 * Unlike those of gv_engine.h, these operations keep state and allocate
 * memory.  They may report GV_NO_MEMORY or, if the device refused a call as
 * invalid, GV_REJECTED.  After either status the mirror is unchanged, unless
 * the comment on the operation says otherwise.  They may also report
 * GV_FAILED, which means that the engine is beyond repair and the process must
 * be restarted.  They never print, exit or jump out.
 *
 * Threads: a call that changes or reads a mirror (put_..., get_...,
 * drop_replica, drop) excludes all other calls on that mirror, and the caller
 * has to lock.  Searches with different searchers, and changes of different
 * mirrors, may run concurrently.
 *
 * Results have the score S (gv_engine.h), so candidates are the same as those
 * of gv_coarse, gv_table and gv_scan, pair for pair.
 */
#ifndef GV_MIRROR_H
#define GV_MIRROR_H

#include "engine/gv_engine.h"

/*
 * A mirror, and the memory for one thread's searches.  Each engine defines its
 * own structs.
 */
typedef struct GvMirror GvMirror;
typedef struct GvSearcher GvSearcher;

/*
 * How a mirror stores rows, which are the vectors as the table has them, not
 * transformed.  A mirror of an index with refine records has no rows.
 */
typedef enum GvRowForm
{
	GV_ROWS_NONE,
	GV_ROWS_FLOAT,				/* float [dims] */
	GV_ROWS_HALF				/* uint16 [dims], in half precision */
} GvRowForm;

/* The properties of a mirror that never change, except by gv_mirror_drop_rows. */
typedef struct GvMirrorSpec
{
	int32_t		device;			/* the device that has the whole mirror,
								 * unless there is a GvPlacement */
	GvMetric	metric;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		nlists;			/* 1 .. 2^24 */
	int32_t		nparents;		/* 1 .. nlists */
	int64_t		postings;		/* approximate number of postings to expect */
	int32_t		refine_slots;	/* largest number of refine records on a page
								 * of the index, below 2^16; 0 if the index
								 * has no refine records */
	GvKeyForm	keys;			/* of the postings */
	int64_t		refine_records; /* approximate number of records, or of rows,
								 * to expect */
	int32_t		rows;			/* GvRowForm: how the mirror stores rows */
	int32_t		unused;			/* 0 */
} GvMirrorSpec;

/*
 * The placement of a mirror that is not on the device of its spec.  The mirror
 * has R replicas, so that more searches run at a time.  Each replica has the
 * whole mirror, divided into S shards.  S is above 1 if no device has memory
 * for the whole mirror (gv_multi.h).  Member r * S + s is shard s of replica
 * r.
 */
typedef struct GvPlacement
{
	int32_t		nshards;		/* S */
	int32_t		nreplicas;		/* R; R * S is 1 .. GV_MAX_DEVICES */
	int32_t		devices[GV_MAX_DEVICES];	/* [R][S], all different */
} GvPlacement;

/* Returns the number of members. */
static inline int32_t
gv_nmembers(const GvPlacement *placement)
{
	return placement->nreplicas * placement->nshards;
}

typedef struct GvDeviceUsage
{
	int32_t		device;
	int64_t		bytes;			/* bytes that the mirror takes there now */
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

/* Returns the number of elements of an array. */
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

/*
 * Returns whether these arguments can be valid for some mirror.  The engine
 * checks whether the array of the mirror in question has all of the elements.
 */
static inline bool
gv_valid_values(GvArray array, int64_t first, int64_t n, const void *values)
{
	return array >= GV_CODEBOOKS && array <= GV_CENTROIDS &&
		first >= 0 && n >= 0 && first <= INT64_MAX - n &&
		(values != NULL || n == 0);
}

/*
 * Blocks of one list.  gv_mirror_put_list leaves the list's blocks before
 * number `first` as they are, puts the blocks of the chunk behind them, and
 * removes all other blocks of the list.  All blocks except the last are full.
 * If codes, t, rowids and keys are NULL, the mirror has the blocks already,
 * and only `live` is new.
 */
typedef struct GvListChunk
{
	int32_t		list;
	int32_t		first;			/* number of the first block; block 0 is the
								 * oldest */
	int32_t		nblocks;
	const uint32_t *live;		/* [nblocks] bit i: posting i is live */
	const float *t;				/* [nblocks][GV_BLOCK] */
	const uint16_t *rowids;		/* [nblocks][GV_BLOCK][3] */
	const void *keys;			/* [nblocks], each laid out as in gv_keys.h,
								 * aligned to 4; NULL if there are no keys */
	const uint8_t *codes;		/* [nblocks][gv_code_bytes(m)][GV_BLOCK] */
} GvListChunk;

/*
 * A refine record (GvRefine) with its address.  If an index has refine
 * records, each posting has the address of its record in place of the row id,
 * and the record has the row id.  An address consists of the number of an
 * index page, as two words, and the number of a slot on that page, counted
 * from 1.  If the third word of rowid is 0, the slot is free.
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

/* Returns the bytes from one item to the next. */
static inline size_t
gv_refine_stride(int32_t dims)
{
	return (sizeof(GvRefineItem) + (size_t) dims + 3) / 4 * 4;
}

/*
 * A row of the table, by its row id.  If `known` is 0, the mirror forgets the
 * row that it has there, if any, and the values are ignored.  The same holds
 * if all bits of the first value are set, which is NaN.
 */
typedef struct GvRowItem
{
	uint16_t	rowid[3];
	uint16_t	known;			/* 0 or 1 */
	uint8_t		values[];		/* [dims], as a GvRowForm says */
} GvRowItem;

/* Returns the bytes of a row's values, and those from one item to the next. */
static inline size_t
gv_row_bytes(int32_t rows, int32_t dims)
{
	return (size_t) dims * (rows == GV_ROWS_HALF ? 2 : 4);
}

static inline size_t
gv_row_stride(int32_t rows, int32_t dims)
{
	return (sizeof(GvRowItem) + gv_row_bytes(rows, dims) + 7) / 8 * 8;
}

/* A list that was searched, and the coarse score of the list. */
typedef struct GvProbe
{
	int32_t		list;
	float		base;
} GvProbe;

/* A posting that was found.  The row id is as in GvBlock. */
typedef struct GvHit
{
	float		score;			/* S */
	uint32_t	probe;			/* number of the probe whose list has the
								 * posting */
	uint16_t	rowid[3];
	uint16_t	unused;			/* 0 */
} GvHit;

/*
 * The row that a hit's refine record names, and the bound that gv_refine_bound
 * computes.  `known` is 0 if no record is stored at the hit's address, or if
 * the slot there is free.
 */
typedef struct GvBound
{
	float		bound;
	uint16_t	rowid[3];
	uint16_t	known;			/* 0 or 1 */
} GvBound;

/*
 * The distance between a hit's row and the query as it was asked, which is
 * gv_set_distance(metric, row, asked), bit for bit unless it is NaN.  `known`
 * is 0 if the mirror does not have the row.
 */
typedef struct GvRowDistance
{
	double		distance;
	float		magnitude;		/* of GV_IP: an upper bound of the sum of
								 * |row_i asked_i|, infinite if the sum is
								 * NaN; of other metrics 0 */
	uint32_t	known;			/* 0 or 1 */
} GvRowDistance;

/*
 * The steps of a search that are requested.  Lists and hits that are passed in
 * may have been found by another mirror.  Only gv_multisearch.c requests
 * GV_STEPS_LISTS and GV_STEPS_SCAN.
 */
typedef enum GvSearchSteps
{
	GV_STEPS_ALL,
	GV_STEPS_LISTS,				/* only `probed` is requested; allowed unless
								 * by_number */
	GV_STEPS_SCAN,				/* `probed` is passed in, and all that follows
								 * it is requested */
	GV_STEPS_LAST				/* hits are passed in, and only their bounds
								 * or distances are requested */
} GvSearchSteps;

/*
 * One query.  The `probes` nearest lists are searched.  They are found among
 * the `compare` lists whose parents are nearest, or among all lists if the
 * engine prefers that.  Of the live postings in these lists that satisfy the
 * condition, the best `capacity` are returned, ascending by (S, row id).
 *
 * A sample shows how near the postings that do not satisfy the condition are.
 * The sample consists of the blocks of the searched lists that gv_sampled
 * selects.  `nearer` is the number of live postings in these blocks whose
 * score is not above the score of hit number `rank`, counted from 1.  Postings
 * count whether they satisfy the condition or not.  nearer_squares is the sum
 * of the squares of the blocks' contributions to `nearer`.
 *
 * Returned arrays are in the searcher's memory, where the engine left them, to
 * save a copy.  They are valid until the searcher searches again.
 *
 * The fields `limited`, `limit` and `steps` serve the search of shards in
 * steps (gv_multi.h).  If `limited` is true, the sample is compared with the
 * score `limit` in place of a hit's score, however many hits there are.
 * `steps` must be the same for all searches of one call, and so must be
 * whether `asked` is NULL.
 */
typedef struct GvSearch
{
	const float *query;			/* [dims], transformed */
	int32_t		probes;			/* >= 1 */
	int32_t		compare;		/* lists, >= 1 */
	int32_t		capacity;		/* >= 1 */
	bool		by_number;		/* probed ascends by list, so that the engine
								 * need not sort the lists; allowed only if
								 * all lists are probed */
	bool		sums;			/* probed and matches are not requested;
								 * allowed only if by_number */
	bool		bounded;		/* bounds are requested; allowed only if the
								 * mirror has refine records */
	const float *asked;			/* [dims], as the table's vectors are; NULL if
								 * distances are not requested, otherwise
								 * allowed only if the mirror has rows */
	const GvCondition *condition;	/* on the mirror's keys; NULL if none */
	int32_t		rank;			/* 0 if the sample is not used; otherwise 1 ..
								 * capacity, allowed only with a condition */
	bool		limited;		/* allowed only if rank > 0 */
	float		limit;
	GvSearchSteps steps;		/* GV_STEPS_LAST: allowed only if `bounded` or
								 * `asked` */
	int32_t		nprobed;		/* out; in, if GV_STEPS_SCAN */
	GvProbe    *probed;			/* out [nprobed], nearest first unless
								 * by_number; NULL if not requested; in, if
								 * GV_STEPS_SCAN */
	int32_t		nhits;			/* out; in, if GV_STEPS_LAST */
	GvHit	   *hits;			/* out [nhits]; in, if GV_STEPS_LAST */
	GvBound    *bounds;			/* out [nhits], of the hits; NULL if not
								 * requested */
	GvRowDistance *distances;	/* out [nhits], of the hits; NULL if not
								 * requested */
	int64_t		postings;		/* out: live postings of the probed lists */
	int64_t		matched;		/* out: how many of these satisfy the
								 * condition; 0 if there is no condition */
	int32_t    *matches;		/* out [nprobed]: how many live postings of
								 * each list satisfy the condition; NULL if
								 * not requested, or if there is no condition */
	int64_t		nearer;			/* out: see above; 0 if rank is 0, or if there
								 * are fewer hits than `rank` and no limit */
	int64_t		nearer_squares; /* out: see above; 0 if nearer is 0 */
} GvSearch;

/* A device that an engine runs on. */
typedef struct GvDevice
{
	char		name[128];		/* name of the device or processor; on
								 * failure, the reason */
	int32_t		number;			/* as in lists of devices */
	int64_t		memory;			/* bytes that mirrors may use */
	int64_t		kept;			/* further bytes, which are kept for the
								 * device's searchers */
	int64_t		searcher;		/* bytes that one searcher may take */
} GvDevice;

/* The functions of one engine; the functions below call them. */
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
	GvStatus	(*put_rows) (GvMirror *mirror, const GvRowItem *items,
							 int32_t n);
	GvStatus	(*drop_rows) (GvMirror *mirror);
	GvStatus	(*get_array) (GvMirror *mirror, GvArray array, int64_t first,
							  int64_t n, void *values);
	GvStatus	(*get_block) (GvMirror *mirror, int32_t list, int32_t block,
							  GvBlock *view);
	GvStatus	(*get_refine) (GvMirror *mirror,
							   const uint16_t *addresses, int32_t n,
							   GvRefineItem *items);
	GvStatus	(*get_rows) (GvMirror *mirror, const uint16_t *rowids,
							 int32_t n, GvRowItem *items);
	GvStatus	(*searcher) (int32_t device, GvSearcher **searcher);
	void		(*searcher_drop) (GvSearcher *searcher);
	GvStatus	(*begin) (GvSearcher *searcher, GvMirror *mirror,
						  GvSearch *searches, int32_t n);
	bool		(*done) (GvSearcher *searcher);
	GvStatus	(*finish) (GvSearcher *searcher);
	void		(*rejection) (char *text, size_t size); /* or NULL */
} GvMirrorBackend;

extern const GvMirrorBackend gv_cuda_mirrors;	/* in gpu/, if it is built */

/*
 * Sets the engine that this process uses.  Must be called only once.
 * `devices` is a list of device numbers separated by commas, or "" for all
 * devices that the engine can use.  Describes the devices that can be used in
 * the first *nfound elements of found [GV_MAX_DEVICES].  The names in the
 * following elements, up to the first empty name, say why other devices cannot
 * be used.
 *
 * On failure the first name says the reason.  The status says whether the
 * cause may be temporary (GV_FAILED, GV_NO_MEMORY) or is permanent
 * (GV_INVALID).  The portable engine is for tests; it has as many devices as
 * `devices` names, and divides its memory among them.
 */
extern GvStatus gv_mirrors_open(const GvMirrorBackend *engine,
								const char *devices, GvDevice *found,
								int32_t *nfound);

/*
 * The kernels that multiply matrices on a device: the engine's own kernels,
 * cuBLAS's kernels, or, for each product, the kernels that are faster on that
 * device.
 */
typedef enum GvMatmulSetting
{
	GV_MATMUL_AUTO,
	GV_MATMUL_OWN,
	GV_MATMUL_CUBLAS
} GvMatmulSetting;

/* Set and return the kernels to use.  Must be set before gv_mirrors_open. */
extern void gv_matmul_use(GvMatmulSetting setting);
extern GvMatmulSetting gv_matmul_used(void);

/*
 * Writes to `text` which call was rejected last (GV_REJECTED), or "" if that
 * is not known.
 */
extern void gv_rejection(char *text, size_t size);

/* Returns how many devices gv_mirrors_open found; 0 before it is called. */
extern int32_t gv_ndevices(void);

/*
 * Parses a list of devices, as gv_mirrors_open gets it, into numbers
 * [GV_MAX_DEVICES].  Called by engines.  Returns how many numbers there are,
 * or -1 if the list is malformed, is too long, or has a number twice.
 */
extern int32_t gv_parse_devices(const char *devices, int32_t *numbers);

/*
 * Returns about how many bytes a mirror will take.  Returns 0 for an invalid
 * spec, and INT64_MAX if the mirror takes more bytes than the device can ever
 * hold.
 */
extern int64_t gv_mirror_size(const GvMirrorSpec *spec);

#ifdef GV_TEST_BUILD

/*
 * Creates an empty mirror on the device of the spec: all lists are empty, and
 * arrays are zero.
 */
extern GvStatus gv_mirror_create(const GvMirrorSpec *spec, GvMirror **mirror);
#endif

extern void gv_mirror_drop(GvMirror *mirror);

/*
 * gv_mirror_create_on creates an empty mirror on the devices of a placement.
 * gv_mirror_member_size returns about how many bytes one member of this mirror
 * will take.  Both ignore the device of the spec.
 *
 * If a member reports GV_NO_MEMORY or GV_REJECTED, at its creation or in a
 * later change, its replica is dropped, and later replicas move up in its
 * place.  The call fails, with the greatest of these statuses, only if this
 * happens in all replicas.  After a change that failed in this way all
 * replicas remain.  Each replica is in the state that a mirror on one device
 * would have, except that some of its members may have new values of an array
 * while other members still have the old values.
 *
 * On failure gv_mirror_create_on sets *lacking, unless lacking is NULL, to a
 * bit for each member that could not be created, or to all bits if it is not
 * known which.
 */
extern int64_t gv_mirror_member_size(const GvMirrorSpec *spec,
									 const GvPlacement *placement,
									 int32_t member);
extern GvStatus gv_mirror_create_on(const GvMirrorSpec *spec,
									const GvPlacement *placement,
									GvMirror **mirror, uint32_t *lacking);

/*
 * Describes a mirror's members in usage [GV_MAX_DEVICES], in the order of the
 * placement, and returns the number of members.  A mirror on one device has
 * one member.
 */
extern int32_t gv_mirror_usage(const GvMirror *mirror, GvDeviceUsage *usage);

/*
 * Return the shard that has the blocks of a list, or the refine record or row
 * with an address, in each replica.
 */
extern int32_t gv_mirror_list_shard(const GvMirror *mirror, int32_t list);
extern int32_t gv_mirror_record_shard(const GvMirror *mirror,
									  const uint16_t *address);

/*
 * Drops the replica that has a member on a device.  The call counts as a
 * change of the mirror.  Returns GV_INVALID if the device has no member, or if
 * the mirror has only one replica.
 */
extern GvStatus gv_mirror_drop_replica(GvMirror *mirror, int32_t device);

/*
 * Sets elements first .. first + n - 1 of an array.  Returns GV_INVALID if the
 * array does not have all of these elements.
 */
extern GvStatus gv_mirror_put_array(GvMirror *mirror, GvArray array,
									int64_t first, int64_t n,
									const void *values);

/*
 * Changes a list.  Returns GV_INVALID if the chunk would leave a gap behind
 * the list's blocks, if the chunk has only `live` but does not end with the
 * list's last block, or if the chunk lacks the mirror's keys.
 */
extern GvStatus gv_mirror_put_list(GvMirror *mirror,
								   const GvListChunk *chunk);

/*
 * Stores items [n], which are gv_refine_stride bytes apart and ascend by
 * address.  Each item replaces the item at its address.  Returns GV_INVALID
 * and stores no item if the addresses do not ascend, if a slot is out of
 * range, or if the mirror has no refine records.  After GV_NO_MEMORY some of
 * the items may be stored.
 */
extern GvStatus gv_mirror_put_refine(GvMirror *mirror,
									 const GvRefineItem *items, int32_t n);

/*
 * Returns whether items ascend by address and their slots are in range.
 * Engines call this, because they know the spec.
 */
extern bool gv_refine_items_valid(const GvMirrorSpec *spec,
								  const GvRefineItem *items, int32_t n);

/*
 * Stores rows [n], which are gv_row_stride bytes apart and ascend by row id.
 * Each replaces the row with its id.  Returns GV_INVALID and stores no row if
 * the ids do not ascend, if the third word of an id is 0, or if the mirror
 * stores no rows.  After GV_NO_MEMORY some of the rows may be stored, in some
 * of the replicas, of which none is dropped; then the mirror's rows must not be
 * asked for until they are dropped.
 */
extern GvStatus gv_mirror_put_rows(GvMirror *mirror, const GvRowItem *items,
								   int32_t n);

/*
 * Returns whether rows ascend by their ids.  Engines call this, because they
 * know the spec.
 */
extern bool gv_row_items_valid(const GvMirrorSpec *spec,
							   const GvRowItem *items, int32_t n);

/*
 * Frees a mirror's rows.  From then on the mirror stores none, as if `rows` of
 * its spec were GV_ROWS_NONE.  Does nothing if it stores none already.
 */
extern GvStatus gv_mirror_drop_rows(GvMirror *mirror);

/*
 * Copies elements first .. first + n - 1 of an array, for checks.  Returns
 * GV_INVALID if the array does not have all of these elements.
 */
extern GvStatus gv_mirror_get_array(GvMirror *mirror, GvArray array,
									int64_t first, int64_t n, void *values);

/*
 * Copies the records at addresses [n][3] into items [n], which are
 * gv_refine_stride bytes apart, for checks.  If there is no record at an
 * address, its item is zero except for the address.  Returns GV_INVALID if the
 * mirror has no refine records.
 */
extern GvStatus gv_mirror_get_refine(GvMirror *mirror,
									 const uint16_t *addresses, int32_t n,
									 GvRefineItem *items);

/*
 * Copies the rows with ids [n][3] into items [n], which are gv_row_stride bytes
 * apart, for checks.  A row that the mirror does not have is zero except for
 * its id.  Returns GV_INVALID if the mirror stores no rows.
 */
extern GvStatus gv_mirror_get_rows(GvMirror *mirror, const uint16_t *rowids,
								   int32_t n, GvRowItem *items);

/*
 * Points *view to a block as the mirror has it, for checks.  The view is valid
 * until the mirror's next change or get_block.  Returns GV_INVALID if there is
 * no such block.
 */
extern GvStatus gv_mirror_get_block(GvMirror *mirror, int32_t list,
									int32_t block, GvBlock *view);

/* Creates the memory for one thread's searches of the mirrors on a device. */
extern GvStatus gv_searcher(int32_t device, GvSearcher **searcher);
extern void gv_searcher_drop(GvSearcher *searcher);

/*
 * Begins to search a mirror for n queries.  The arrays of the mirror must be
 * complete.  The search uses the replica whose shards are on the devices of
 * searchers [nshards], in the same order.  Returns GV_INVALID if there is no
 * such replica, if parent offsets do not ascend or do not cover the lists, or
 * if a condition is on keys that the mirror does not have.
 *
 * The caller can do other work while the devices search.  From the time when
 * gv_mirror_begin_shards returns GV_OK until gv_mirror_finish returns, the
 * searches with their queries and conditions belong to the engine, the mirror
 * must not be changed, and none of the searchers may begin another search.
 * gv_mirror_done and gv_mirror_finish get the first of the searchers.
 * gv_mirror_done returns whether gv_mirror_finish would return at once.  If
 * there are several shards, only calls of these two functions advance a search
 * from one step to the next (gv_multi.h).
 */
extern GvStatus gv_mirror_begin_shards(GvSearcher *const *searchers,
									   int32_t nshards, GvMirror *mirror,
									   GvSearch *searches, int32_t n);
extern bool gv_mirror_done(GvSearcher *searcher);
extern GvStatus gv_mirror_finish(GvSearcher *searcher);

/* Begins and finishes searches. */
static inline GvStatus
gv_mirror_search_shards(GvSearcher *const *searchers, int32_t nshards,
						GvMirror *mirror, GvSearch *searches, int32_t n)
{
	GvStatus	status = gv_mirror_begin_shards(searchers, nshards, mirror,
												searches, n);

	return status == GV_OK ? gv_mirror_finish(searchers[0]) : status;
}

/*
 * Begin, or begin and finish, searches on a replica of one shard, for tests and
 * benchmarks.
 */
static inline GvStatus
gv_mirror_begin(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
				int32_t n)
{
	return gv_mirror_begin_shards(&searcher, 1, mirror, searches, n);
}

static inline GvStatus
gv_mirror_search(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
				 int32_t n)
{
	return gv_mirror_search_shards(&searcher, 1, mirror, searches, n);
}

#ifdef GV_TEST_BUILD

/*
 * Injects a fault into the operations above that report a status: the n-th
 * call from now on (1 is the next call) reports `status` instead.  If n is 0,
 * no call fails.  If `status` is GV_HANGS (gv_fault.h), the call never
 * returns, except that gv_mirror_begin does return, but its search is never
 * done.
 */
extern void gv_mirror_fault(int64_t n, GvStatus status);

/* Returns the bytes that a mirror takes now on all devices together. */
extern int64_t gv_mirror_bytes(const GvMirror *mirror);

#endif

#endif							/* GV_MIRROR_H */
