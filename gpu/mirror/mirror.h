/*
 * mirror.h
 *		An index's mirror in a device's memory: its blocks, lists, refine
 *		records or rows, and the part of the model that kernels need.
 */
#ifndef GV_GPU_MIRROR_H
#define GV_GPU_MIRROR_H

#include "gpu/device/device.h"
#include "gpu/mirror/lengths.h"

/*
 * A block on the device, block_bytes long:
 *		codes	[chunks][32] of 16 bytes: chunk c of posting i holds its code
 *				bytes 16c .. 16c + 15, so a warp whose lane i works on posting
 *				i reads 512 consecutive bytes; the last chunk is filled with 0
 *		terms	float [32]: T of each posting
 *		high	uint32 [32]: the first two words of a row id
 *		low		uint16 [32]: the third word
 *		live	uint32, and 12 unused bytes that align what follows
 *		keys	if postings have any, laid out as in gv_keys.h; then unused
 *				bytes up to a multiple of 16
 */
#define GV_CHUNK			16	/* code bytes of one load of a lane */

struct GvBlockShape
{
	int32_t		code_bytes;
	int32_t		chunks;
	int32_t		terms;			/* offsets in a block, from here to keys */
	int32_t		high;
	int32_t		low;
	int32_t		live;
	int32_t		keys;			/* scans without a condition read only what
								 * precedes the keys */
	int32_t		keys_bytes;
	int32_t		block_bytes;
};

static inline GvBlockShape
gv_block_shape(const GvMirrorSpec *spec)
{
	GvBlockShape shape;

	shape.code_bytes = gv_code_bytes(spec->m);
	shape.chunks = (shape.code_bytes + GV_CHUNK - 1) / GV_CHUNK;
	shape.terms = shape.chunks * GV_CHUNK * GV_BLOCK;
	shape.high = shape.terms + GV_BLOCK * 4;
	shape.low = shape.high + GV_BLOCK * 4;
	shape.live = shape.low + GV_BLOCK * 2;
	shape.keys = shape.live + 16;
	shape.keys_bytes = (int32_t) gv_keys_bytes(&spec->keys);
	shape.block_bytes = shape.keys + (shape.keys_bytes + 15) / 16 * 16;
	return shape;
}

/* Bytes of shared memory that a scan needs in addition to a look-up table. */
#define GV_SCAN_OWN			1024

/*
 * Returns the number of elements of a query's look-up table [chunks *
 * 32][GV_CODEWORDS].
 */
static inline int32_t
gv_table_floats(const GvBlockShape *shape)
{
	return shape->chunks * 2 * GV_CHUNK * GV_CODEWORDS;
}

/* A list, as kernels see it. */
struct GvDeviceList
{
	const uint8_t *d_blocks;
	uint32_t	nblocks;
	uint32_t	nlive;			/* live postings */
};

/*
 * A refine record on the device, followed by its codes [dims].  high and low
 * are the row id, as in a block.  If low is 0, there is no record.
 */
struct GvDeviceRecord
{
	float		min;
	float		step;
	float		error;
	uint32_t	high;
	uint32_t	low;
	uint32_t	unused[3];
};

static inline int32_t
gv_record_bytes(int32_t dims)
{
	return (int32_t) sizeof(GvDeviceRecord) + (dims + 15) / 16 * 16;
}

/*
 * A row on the device is its values, in the form that the spec says, and
 * unused bytes up to a multiple of 16.  If all bits of the first value are
 * set, which is NaN, there is no row.
 */
static inline int32_t
gv_row_item_bytes(const GvMirrorSpec *spec)
{
	return (int32_t) ((gv_row_bytes(spec->rows, spec->dims) + 15) / 16 * 16);
}

/* Returns whether there is no row; `first` is the first word of its values. */
static __host__ __device__ __forceinline__ bool
gv_row_is_none(int32_t rows, uint32_t first)
{
	uint32_t	mark = rows == GV_ROWS_HALF ? 0xFFFFu : 0xFFFFFFFFu;

	return (first & mark) == mark;
}

/*
 * Refine records and rows are items, which are found by address: a page, whose
 * number has two words, and a slot on that page, counted from 1.  Two levels
 * of tables lead to pages.  The first level is indexed by the first word of a
 * page's number, the second level by the second word.
 */
#define GV_TABLE_PAGES		65536

/* A page of items.  A page that does not exist is 0. */
struct GvDevicePage
{
	uint8_t    *d_items;		/* [nslots][item_bytes] */
	uint32_t	nslots;
	uint32_t	unused;
};

/*
 * Bounds that hold for every centroid c and its half copy c'.  They are
 * infinite or NaN if half precision cannot represent some centroid.
 */
struct GvHalfLimits
{
	float		length;			/* |c| is at most this */
	float		error;			/* |c - c'| is at most this */
};

/* The part of a mirror that kernels need.  It is passed by value. */
struct GvDeviceModel
{
	int32_t		metric;
	int32_t		dims;
	int32_t		m;
	int32_t		nlists;
	GvBlockShape shape;
	float	   *d_codebooks;	/* [16 * dims] */
	float	   *d_centroids;	/* [nlists][dims] */
	GvDeviceList *d_lists;		/* [nlists] */
	int32_t		half_dims;		/* dims, rounded up to 16 */
	uint16_t   *d_half_centroids;	/* [nlists][half_dims] half copies of
									 * centroids; 0 beyond dims */
	float	   *d_squares;		/* [nlists] |c|^2; 0 for GV_IP */
	GvHalfLimits *d_limits;
	int32_t		refine_slots;	/* slots of a page; 0: no refine records */
	int32_t		rows;			/* GvRowForm */
	int32_t		item_bytes;		/* of a refine record or a row */
	GvDevicePage **d_tables;	/* [GV_TABLE_PAGES][GV_TABLE_PAGES] pages; a
								 * table that does not exist is NULL; NULL if
								 * the mirror has neither refine records nor
								 * rows */
};

/* -- device code that reads a mirror */

/*
 * Returns the first dimension of sub-quantizer j <= m; see gv_sub_start.  The
 * product fits in 32 bits; a 64-bit division would take longer than computing
 * an entry of a look-up table.
 */
static __device__ __forceinline__ int
gv_device_sub_start(const GvDeviceModel &model, int j)
{
	static_assert(GV_MAX_DIMS < 1 << 15, "a product of two fits 32 bits");

	return (int) ((uint32_t) j * (uint32_t) model.dims / (uint32_t) model.m);
}

/*
 * Returns the item in a slot of a page, or NULL if there is no such page or
 * slot.
 */
static __device__ __forceinline__ const uint8_t *
gv_item_at(const GvDeviceModel &model, GvDevicePage page, uint32_t slot)
{
	return slot < 1 || slot > page.nslots ? NULL :
		page.d_items + (int64_t) (slot - 1) * model.item_bytes;
}

/* -- the host's side */

struct GvPool;					/* memory for blocks */

/* The host's side of a list. */
struct GvHostList
{
	uint8_t    *d_blocks;
	uint32_t	nblocks;
	uint32_t	capacity;		/* blocks that d_blocks has memory for */
	uint32_t	noted;			/* blocks that live has memory for */
	uint32_t   *live;			/* [nblocks] */
	int64_t		nlive;
};

/*
 * Staging buffers for uploads, one in the host's memory and one on the device.
 * They are filled from front to back.  When they are full, the host waits for
 * the stream.
 */
struct GvStaging
{
	uint8_t    *memory;			/* pinned */
	uint8_t    *d_memory;
	size_t		bytes;
	size_t		used;
};

struct GvMirror
{
	GvMirrorSpec spec;
	GvDeviceModel model;
	float	   *parents;		/* [nparents][dims], for the host alone */
	int32_t    *parent_offsets; /* [nparents + 1] */
	bool		checked;		/* parent_offsets were checked, and are
								 * valid */
	GvPool	   *pool;
	GvHostList *lists;			/* [nlists] */
	GvPool	   *item_pool;		/* refine records or rows, or NULL */
	struct GvTable **tables;	/* [GV_TABLE_PAGES] the host's copy, or NULL */
	int64_t		table_bytes;	/* on the device */
	GvLengths	lengths;		/* lengths of the lists that are not empty */
	int64_t		nblocks;		/* of all lists */
	cudaStream_t stream;		/* changes are made on it */
	cudaEvent_t changed;		/* recorded after the last change; searches
								 * wait for it */
	uint64_t	version;		/* number of the last change, unique in the
								 * process */
	GvStaging	staging;
	uint8_t    *raw;			/* [block_bytes] a block read back */
	uint8_t    *view;			/* the same block in the layout of GvBlock */
};

/* The functions of GvMirrorBackend for mirrors. */
extern int64_t gv_gpu_size(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_create(const GvMirrorSpec *spec, GvMirror **mirror);
extern void gv_gpu_drop(GvMirror *mirror);
extern int64_t gv_gpu_bytes(const GvMirror *mirror);
extern GvStatus gv_gpu_put_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, const void *values);
extern GvStatus gv_gpu_put_list(GvMirror *mirror, const GvListChunk *chunk);
extern GvStatus gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items,
								  int32_t n);
extern GvStatus gv_gpu_put_rows(GvMirror *mirror, const GvRowItem *items,
								int32_t n);
extern GvStatus gv_gpu_drop_rows(GvMirror *mirror);
extern GvStatus gv_gpu_get_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, void *values);
extern GvStatus gv_gpu_get_block(GvMirror *mirror, int32_t list, int32_t block,
								 GvBlock *view);
extern GvStatus gv_gpu_get_refine(GvMirror *mirror, const uint16_t *addresses,
								  int32_t n, GvRefineItem *items);
extern GvStatus gv_gpu_get_rows(GvMirror *mirror, const uint16_t *rowids,
								int32_t n, GvRowItem *items);

/*
 * Functions for the half copies of a mirror's centroids.  Builders use them
 * without a real mirror.
 */
extern GvStatus gv_gpu_half_create(GvMirror *mirror);
extern void gv_gpu_half_drop(GvMirror *mirror);
extern GvStatus gv_gpu_half_update(GvMirror *mirror, int64_t first, int64_t n);

#endif							/* GV_GPU_MIRROR_H */
