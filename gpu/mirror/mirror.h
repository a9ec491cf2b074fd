/*
 * mirror.h
 *		An index's mirror in a device's memory: blocks, lists, refine records
 *		and what kernels need of the model.
 */
#ifndef GV_GPU_MIRROR_H
#define GV_GPU_MIRROR_H

#include "gpu/device/device.h"
#include "gpu/mirror/lengths.h"

/*
 * A block on the device, block_bytes long:
 *		codes	[chunks][32] of 16 bytes: chunk c of posting i holds its code
 *				bytes 16c .. 16c + 15, so that a warp whose lane i works on
 *				posting i reads 512 bytes side by side; what is missing from
 *				the last chunk is 0
 *		t		float [32]
 *		high	uint32 [32]: the first two words of a row id
 *		low		uint16 [32]: the third
 *		live	uint32; and 12 bytes of nothing, so that blocks are aligned
 *		keys	as gv_keys.h lays them out, if postings have any; then nothing
 *				up to 16 bytes
 */
#define GV_CHUNK			16	/* code bytes that a lane loads at once */

struct GvBlockShape
{
	int32_t		code_bytes;
	int32_t		chunks;
	int32_t		terms;				/* offsets in a block */
	int32_t		high;
	int32_t		low;
	int32_t		live;
	int32_t		keys;			/* what stands before it, scans without a
								 * condition read */
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

/* Bytes of shared memory that a scan needs beside a look-up table. */
#define GV_SCAN_OWN			1024

/* Elements of a query's look-up table [chunks * 32][GV_CODEWORDS]. */
static inline int32_t
gv_table_floats(const GvBlockShape *shape)
{
	return shape->chunks * 2 * GV_CHUNK * GV_CODEWORDS;
}

/* A list as kernels see it. */
struct GvDeviceList
{
	const uint8_t *d_blocks;
	uint32_t	nblocks;
	uint32_t	nlive;			/* postings that are */
};

/*
 * A refine record on the device: min, step, error, the row id's two parts as
 * in a block (low 0: no record), 12 bytes of nothing, and codes [dims].
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

/* Tables of pages of refine records, by the two words of a page's number. */
#define GV_TABLE_PAGES		65536

/*
 * Bounds that hold for every centroid c and its half copy c'; infinite or NaN
 * when there is a centroid that half precision cannot hold.
 */
struct GvHalfLimits
{
	float		length;			/* |c| is at most this */
	float		error;			/* |c - c'| is at most this */
};

/* The part of a mirror that kernels need, passed by value. */
struct GvDeviceModel
{
	int32_t		metric;
	int32_t		dims;
	int32_t		m;
	int32_t		nlists;
	GvBlockShape shape;
	const float *d_codebooks;	/* [16 * dims] */
	const float *d_centroids;	/* [nlists][dims] */
	const GvDeviceList *d_lists;	/* [nlists] */
	int32_t		half_dims;		/* dims, rounded up to 16 */
	uint16_t   *d_half_centroids;		/* [nlists][half_dims] centroids,
										 * rounded to
								 * half precision; 0 beyond dims */
	float	   *d_squares;		/* [nlists] |c|^2; 0 for GV_IP */
	GvHalfLimits *d_limits;
	int32_t		refine_slots;	/* of a page; 0: no refine records */
	int32_t		record_bytes;
	uint8_t *const *const *d_tables;	/* [GV_TABLE_PAGES] [GV_TABLE_PAGES]
										 * refine_slots records, or NULL, at
										 * both levels */
};

struct GvPool;					/* memory for blocks */

/* The host's side of a list. */
struct GvHostList
{
	uint8_t    *d_blocks;
	uint32_t	nblocks;
	uint32_t	capacity;		/* of d_blocks */
	uint32_t	noted;			/* of live */
	uint32_t   *live;			/* [nblocks] */
	int64_t		nlive;
};

/*
 * Chunks on their way to the device: host memory and the device's side by
 * side, filled front to back; when it is full the stream has to catch up.
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
	float	   *d_codebooks;
	float	   *d_centroids;
	GvDeviceList *d_lists;
	float	   *parents;		/* [nparents][dims], which no kernel needs */
	int32_t    *parent_offsets;			/* [nparents + 1] */
	bool		checked;		/* starts were, and are good */
	GvPool	   *pool;
	GvHostList *lists;			/* [nlists] */
	GvPool	   *record_pool;	/* pages of refine records, if there are any */
	struct GvTable **tables;	/* [GV_TABLE_PAGES] the host's note, or NULL */
	uint8_t  ***d_tables;
	int64_t		table_bytes;	/* on the device */
	GvLengths	lengths;		/* of lists that are not empty */
	int64_t		nblocks;		/* of all lists */
	cudaStream_t stream;		/* of changes; only searches wait for it, */
	cudaEvent_t changed;		/* by the event of the last change */
	uint64_t	version;		/* of the last change: a number of its own, in
								 * the whole process */
	GvStaging	staging;
	uint8_t    *raw;			/* [block_bytes] a block read back */
	uint8_t    *view;			/* the same in the layout of GvBlock */
};

/* What GvMirrorBackend has of mirrors. */
extern int64_t gv_gpu_size(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_create(const GvMirrorSpec *spec, GvMirror **mirror);
extern void gv_gpu_drop(GvMirror *mirror);
extern int64_t gv_gpu_bytes(const GvMirror *mirror);
extern GvStatus gv_gpu_put_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, const void *values);
extern GvStatus gv_gpu_put_list(GvMirror *mirror, const GvListChunk *chunk);
extern GvStatus gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items,
								  int32_t n);
extern GvStatus gv_gpu_get_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, void *values);
extern GvStatus gv_gpu_get_block(GvMirror *mirror, int32_t list, int32_t block,
								 GvBlock *view);
extern GvStatus gv_gpu_get_refine(GvMirror *mirror, const uint16_t *addresses,
								  int32_t n, GvRefineItem *items);

/* Half copies of a mirror's centroids, which builders have without lists. */
extern GvStatus gv_gpu_half_create(GvMirror *mirror);
extern void gv_gpu_half_drop(GvMirror *mirror);
extern GvStatus gv_gpu_half_update(GvMirror *mirror, int64_t first, int64_t n);

#endif							/* GV_GPU_MIRROR_H */
