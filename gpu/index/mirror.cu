/*
 * mirror.cu
 *		Mirrors in the device's memory: made, filled, changed, read back.
 *
 * A chunk goes to the device as it came, in one copy, and a kernel brings it
 * into the order that scans want.  Nothing waits for that: a stream keeps
 * changes in order, and a search waits on the device for the last of them.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/coarse/gv_coarse.h"
#include "gpu/common/warpselect.cuh"
#include "gpu/index/gv_index.h"
#include "gpu/product/gv_product.h"

#define THREADS			256
#define LEAST_STAGING	((size_t) 1 << 20)
#define MOST_STAGING	((size_t) 32 << 20)

/* Where the arrays of a chunk of n blocks lie, relative to its first. */
struct ChunkShape
{
	size_t		t;
	size_t		rowids;
	size_t		keys;
	size_t		codes;
	size_t		bytes;
};

static ChunkShape
chunk_shape(size_t n, const GvBlockShape *block, bool live_only)
{
	ChunkShape	shape;

	shape.t = n * 4;
	shape.rowids = shape.t + n * GV_BLOCK * 4;
	shape.keys = shape.rowids + n * GV_BLOCK * 6;
	shape.codes = shape.keys + n * (size_t) block->keys_bytes;
	shape.bytes = live_only ? shape.t :
		shape.codes + n * GV_BLOCK * (size_t) block->code_bytes;
	shape.bytes = (shape.bytes + 255) / 256 * 256;
	return shape;
}

/* Searches to come wait for what the mirror's stream was told so far. */
GvStatus
gv_mirror_changed(GvMirror *mirror)
{
	static uint64_t versions;

	mirror->version = __atomic_add_fetch(&versions, 1, __ATOMIC_RELAXED);
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}

/* Every list's last block is half full on average. */
static int64_t
expected_blocks(const GvMirrorSpec *spec)
{
	return spec->postings / GV_BLOCK + spec->nlists / 2 + 1;
}

/* Has a block of threads memory for a query's look-up table? */
static bool
table_fits(const GvMirrorSpec *spec)
{
	GvBlockShape shape = gv_block_shape(spec);

	return gv_table_floats(&shape) * sizeof(float) + GV_SCAN_OWN <=
		gv_most_shared(spec->device);
}

/*
 * Bytes of what is held; parents stay outside, as centroids are compared flat.
 */
static int64_t
held_bytes(const GvMirrorSpec *spec)
{
	return (gv_array_length(spec, GV_CODEBOOKS) +
			gv_array_length(spec, GV_CENTROIDS)) * 4 +
		spec->nlists * (int64_t) sizeof(GvDeviceList) +
		expected_blocks(spec) * gv_block_shape(spec).block_bytes +
		gv_gpu_half_bytes(spec) + gv_gpu_records_size(spec);
}

/*
 * To grow means to wait, so large mirrors begin with all that they may have.
 */
static size_t
first_staging(const GvMirrorSpec *spec)
{
	return held_bytes(spec) >= 8 * (int64_t) MOST_STAGING ? MOST_STAGING :
		LEAST_STAGING;
}

/*
 * Returns the bytes of the staging memory after all data have come: it has
 * doubled each time that it was full.
 */
static int64_t
last_staging(const GvMirrorSpec *spec)
{
	int64_t		bytes = (int64_t) first_staging(spec);
	int64_t		held = held_bytes(spec);

	while (bytes < (int64_t) MOST_STAGING &&
		   held > 2 * bytes - (int64_t) LEAST_STAGING)
		bytes *= 2;
	return bytes;
}

/* Bytes of the device.  INT64_MAX: this device can never search it. */
int64_t
gv_gpu_size(const GvMirrorSpec *spec)
{
	return table_fits(spec) ? held_bytes(spec) + last_staging(spec) :
		INT64_MAX;
}

static GvStatus
make_memory(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;
	GvBlockShape shape = gv_block_shape(spec);

	mirror->lists = (GvHostList *) calloc(spec->nlists, sizeof(GvHostList));
	mirror->parents = (float *) calloc(gv_array_length(spec, GV_PARENTS),
									   sizeof(float));
	mirror->parent_offsets =
		(int32_t *) calloc(spec->nparents + 1, sizeof(int32_t));
	mirror->raw = (uint8_t *) malloc(shape.block_bytes);
	mirror->view = (uint8_t *) malloc(shape.block_bytes +
									  GV_BLOCK * 3 * sizeof(uint16_t));
	if (mirror->lists == NULL || mirror->parent_offsets == NULL ||
		mirror->parents == NULL ||
		mirror->raw == NULL || mirror->view == NULL)
		return GV_NO_MEMORY;
	GV_TRY(gv_pool_create(shape.block_bytes, expected_blocks(spec),
						  &mirror->pool));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&mirror->stream,
										  cudaStreamNonBlocking));
	GV_CUDA_TRY(cudaEventCreateWithFlags(&mirror->changed,
										 cudaEventDisableTiming));
	GV_CUDA_TRY(cudaMalloc((void **) &mirror->d_codebooks,
						   gv_array_length(spec, GV_CODEBOOKS) * 4));
	GV_CUDA_TRY(cudaMalloc((void **) &mirror->d_centroids,
						   gv_array_length(spec, GV_CENTROIDS) * 4));
	GV_CUDA_TRY(cudaMalloc((void **) &mirror->d_lists,
						   spec->nlists * sizeof(GvDeviceList)));
	GV_CUDA_TRY(cudaMemsetAsync(mirror->d_codebooks, 0,
								gv_array_length(spec, GV_CODEBOOKS) * 4,
								mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(mirror->d_centroids, 0,
								gv_array_length(spec, GV_CENTROIDS) * 4,
								mirror->stream));
	GV_CUDA_TRY(cudaMemsetAsync(mirror->d_lists, 0,
								spec->nlists * sizeof(GvDeviceList),
								mirror->stream));
	mirror->model.metric = spec->metric;
	mirror->model.dims = spec->dims;
	mirror->model.m = spec->m;
	mirror->model.nlists = spec->nlists;
	mirror->model.shape = shape;
	mirror->model.d_codebooks = mirror->d_codebooks;
	mirror->model.d_centroids = mirror->d_centroids;
	mirror->model.d_lists = mirror->d_lists;
	return gv_mirror_changed(mirror);
}

/* See gv_mirror_create. */
GvStatus
gv_gpu_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvMirror   *made = (GvMirror *) calloc(1, sizeof(GvMirror));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	status = table_fits(spec) ? gv_choose_device(spec->device) : GV_NO_MEMORY;
	if (status == GV_OK)
		status = make_memory(made);
	if (status == GV_OK)
		status = gv_gpu_half_create(made);
	if (status == GV_OK)
		status = gv_gpu_records_create(made);
	if (status != GV_OK)
	{
		gv_gpu_drop(made);
		return status;
	}
	*mirror = made;
	return GV_OK;
}

/* Also of a mirror that is half made. */
void
gv_gpu_drop(GvMirror *mirror)
{
	(void) gv_choose_device(mirror->spec.device);
	if (mirror->stream != NULL)
	{
		(void) cudaStreamSynchronize(mirror->stream);
		(void) cudaStreamDestroy(mirror->stream);
	}
	if (mirror->changed != NULL)
		(void) cudaEventDestroy(mirror->changed);
	(void) cudaFree(mirror->d_codebooks);
	(void) cudaFree(mirror->d_centroids);
	(void) cudaFree(mirror->d_lists);
	(void) cudaFree(mirror->staging.d_memory);
	(void) cudaFreeHost(mirror->staging.memory);
	gv_gpu_half_drop(mirror);
	gv_gpu_records_drop(mirror);
	gv_pool_drop(mirror->pool);
	if (mirror->lists != NULL)
		for (int32_t i = 0; i < mirror->spec.nlists; i++)
			free(mirror->lists[i].live);
	free(mirror->lists);
	free(mirror->parents);
	free(mirror->parent_offsets);
	free(mirror->raw);
	free(mirror->view);
	free(mirror);
}

int64_t
gv_gpu_bytes(const GvMirror *mirror)
{
	return (gv_array_length(&mirror->spec, GV_CODEBOOKS) +
			gv_array_length(&mirror->spec, GV_CENTROIDS)) * 4 +
		mirror->spec.nlists * (int64_t) sizeof(GvDeviceList) +
		gv_gpu_half_bytes(&mirror->spec) +
		(int64_t) mirror->staging.bytes + gv_pool_bytes(mirror->pool) +
		(mirror->record_pool != NULL ? gv_pool_bytes(mirror->record_pool) +
		 mirror->table_bytes : 0);
}

/*
 * Memory for `bytes` on their way, aligned for whatever they are; waits when
 * there is none.
 */
GvStatus
gv_staging_take(GvMirror *mirror, size_t bytes, size_t *offset)
{
	GvStaging  *staging = &mirror->staging;
	size_t		needed = 0;

	(void) gv_carve(&needed, bytes);
	if (staging->used + needed > staging->bytes)
	{
		size_t		wanted = staging->bytes > 0 ? staging->bytes * 2 :
			first_staging(&mirror->spec);

		GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
		staging->used = 0;
		if (wanted > MOST_STAGING)
			wanted = MOST_STAGING;
		if (wanted < needed)
			wanted = needed;
		if (wanted > staging->bytes)
		{
			(void) cudaFree(staging->d_memory);
			(void) cudaFreeHost(staging->memory);
			memset(staging, 0, sizeof(*staging));
			GV_CUDA_TRY(cudaMallocHost((void **) &staging->memory, wanted));
			GV_CUDA_TRY(cudaMalloc((void **) &staging->d_memory, wanted));
			staging->bytes = wanted;
		}
	}
	*offset = gv_carve(&staging->used, bytes);
	return GV_OK;
}

/* See gv_mirror_put_array. */
GvStatus
gv_gpu_put_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
				 const void *values)
{
	float	   *d_array = array == GV_CODEBOOKS ? mirror->d_codebooks :
		mirror->d_centroids;

	if (first < 0 || n < 0 || n > gv_array_length(&mirror->spec, array) ||
		first > gv_array_length(&mirror->spec, array) - n)
		return GV_INVALID;
	if (array == GV_PARENTS)
	{
		memcpy(mirror->parents + first, values, n * sizeof(float));
		return GV_OK;
	}
	if (array == GV_PARENT_OFFSETS)
	{
		memcpy(mirror->parent_offsets + first, values, n * sizeof(int32_t));
		mirror->checked = false;
		return GV_OK;
	}
	GV_TRY(gv_choose_device(mirror->spec.device));
	for (int64_t done = 0; done < n;)
	{
		int64_t		some = n - done;
		size_t		offset;

		if (some > (int64_t) (LEAST_STAGING / 4))
			some = LEAST_STAGING / 4;
		GV_TRY(gv_staging_take(mirror, some * 4, &offset));
		memcpy(mirror->staging.memory + offset, (const float *) values + done,
			   some * 4);
		GV_CUDA_TRY(cudaMemcpyAsync(d_array + first + done,
									mirror->staging.memory + offset, some * 4,
									cudaMemcpyHostToDevice, mirror->stream));
		done += some;
	}
	if (array == GV_CENTROIDS && n > 0)
		GV_TRY(gv_gpu_half_update(mirror, first, n));
	return gv_mirror_changed(mirror);
}

/* See gv_mirror_get_array. */
GvStatus
gv_gpu_get_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
				 void *values)
{
	const float *d_array = array == GV_CODEBOOKS ? mirror->d_codebooks :
		mirror->d_centroids;

	if (n > gv_array_length(&mirror->spec, array) ||
		first > gv_array_length(&mirror->spec, array) - n)
		return GV_INVALID;
	if (array == GV_PARENTS)
		memcpy(values, mirror->parents + first, n * 4);
	if (array == GV_PARENT_OFFSETS)
		memcpy(values, mirror->parent_offsets + first, n * 4);
	if (array == GV_PARENTS || array == GV_PARENT_OFFSETS)
		return GV_OK;
	GV_TRY(gv_choose_device(mirror->spec.device));
	GV_CUDA_TRY(cudaMemcpyAsync(values, d_array + first, n * 4,
								cudaMemcpyDeviceToHost, mirror->stream));
	return gv_cuda_status(cudaStreamSynchronize(mirror->stream));
}

/*
 * Blocks of a chunk from the order they came in to that of the device, a warp
 * each, lane i posting i.  The first thread then shows them in *list.
 * rowids, t, keys and codes are NULL when only `live` is new.
 */
static __global__ void __launch_bounds__(THREADS)
place_kernel(GvBlockShape shape, uint32_t nblocks, const uint32_t *live,
			 const float *t, const uint16_t *rowids, const uint32_t *keys,
			 const uint8_t *codes,
			 uint8_t *blocks, GvDeviceList *list, GvDeviceList entry)
{
	uint32_t	b = (blockIdx.x * THREADS + threadIdx.x) / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	uint8_t    *block = blocks + (int64_t) b * shape.block_bytes;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		*list = entry;
	if (b >= nblocks)
		return;
	if (lane == 0)
		*(uint32_t *) (block + shape.live) = live[b];
	if (codes == NULL)
		return;

	((float *) (block + shape.t))[lane] = t[(int64_t) b * GV_BLOCK + lane];
	rowids += ((int64_t) b * GV_BLOCK + lane) * 3;
	((uint32_t *) (block + shape.high))[lane] =
		(uint32_t) rowids[0] << 16 | rowids[1];
	((uint16_t *) (block + shape.low))[lane] = rowids[2];

	keys += (int64_t) b * shape.keys_bytes / 4;
	for (int i = lane; i < shape.keys_bytes / 4; i += GV_WARP)
		((uint32_t *) (block + shape.keys))[i] = keys[i];

	codes += (int64_t) b * shape.code_bytes * GV_BLOCK + lane;
	for (int c = 0; c < shape.chunks; c++)
	{
		uint32_t	words[4] = {};

#pragma unroll
		for (int i = 0; i < GV_CHUNK; i++)
		{
			int			p = c * GV_CHUNK + i;
			uint32_t	byte = p < shape.code_bytes ?
				codes[(int64_t) p * GV_BLOCK] : 0;

			words[i / 4] |= byte << 8 * (i % 4);
		}
		((uint4 *) block)[c * GV_WARP + lane] =
			make_uint4(words[0], words[1], words[2], words[3]);
	}
}

/* Memory for notes of n blocks of a list. */
static GvStatus
note_blocks(GvHostList *list, uint32_t n)
{
	uint32_t	wanted = n + n / 4 + 1;
	uint32_t   *live;

	if (n <= list->noted)
		return GV_OK;
	live = (uint32_t *) realloc(list->live, wanted * sizeof(uint32_t));
	if (live == NULL)
		return GV_NO_MEMORY;
	list->live = live;
	list->noted = wanted;
	return GV_OK;
}

/*
 * Memory for n blocks of a list, the first `kept` as they are.  The old room
 * may be taken by the next chunk at once: the stream keeps the order.
 */
static GvStatus
ensure_capacity(GvMirror *mirror, GvHostList *list, uint32_t n, uint32_t kept)
{
	uint8_t    *d_blocks;
	uint32_t	capacity;

	if (n <= list->capacity)
		return GV_OK;
	/* a list that grows, grows again */
	GV_TRY(gv_pool_take(mirror->pool, list->capacity > 0 ? n + n / 4 : n,
						&d_blocks, &capacity));
	if (kept > 0)
		GV_CUDA_TRY(cudaMemcpyAsync(d_blocks, list->d_blocks,
									(size_t) kept *
									mirror->model.shape.block_bytes,
									cudaMemcpyDeviceToDevice, mirror->stream));
	if (list->capacity > 0)
		gv_pool_give(mirror->pool, list->d_blocks, list->capacity);
	list->d_blocks = d_blocks;
	list->capacity = capacity;
	return GV_OK;
}

/* Count the live postings of the list as it will be. */
static void
note_live(GvMirror *mirror, GvHostList *list, const GvListChunk *chunk)
{
	uint32_t	n = (uint32_t) (chunk->first + chunk->nblocks);

	for (uint32_t b = chunk->first; b < list->nblocks; b++)
		list->nlive -= __builtin_popcount(list->live[b]);
	for (uint32_t b = chunk->first; b < n; b++)
	{
		list->live[b] = chunk->live[b - chunk->first];
		list->nlive += __builtin_popcount(list->live[b]);
	}
	mirror->nblocks += (int64_t) n - list->nblocks;
	if (list->nblocks > 0)
		gv_lengths_count(&mirror->lengths, list->nblocks, -1);
	if (n > 0)
		gv_lengths_count(&mirror->lengths, n, 1);
	list->nblocks = n;
}

/* See gv_mirror_put_list. */
GvStatus
gv_gpu_put_list(GvMirror *mirror, const GvListChunk *chunk)
{
	const GvBlockShape *shape = &mirror->model.shape;
	GvHostList *list;
	bool		live_only = chunk->codes == NULL;
	uint32_t	n = (uint32_t) chunk->nblocks;
	ChunkShape	way = chunk_shape(n, shape, live_only);
	uint8_t    *memory;
	uint8_t    *d_memory;
	size_t		offset;
	GvDeviceList	entry = {};

	if (chunk->list < 0 || chunk->list >= mirror->spec.nlists)
		return GV_INVALID;
	list = &mirror->lists[chunk->list];
	if ((uint32_t) chunk->first > list->nblocks ||
		(live_only ? chunk->first + n != list->nblocks :
		 (chunk->keys != NULL) != (shape->keys_bytes > 0)))
		return GV_INVALID;

	/* 1. everything that can fail for want of memory */
	GV_TRY(gv_choose_device(mirror->spec.device));
	GV_TRY(note_blocks(list, chunk->first + n));
	GV_TRY(gv_staging_take(mirror, way.bytes, &offset));
	GV_TRY(ensure_capacity(mirror, list, chunk->first + n, chunk->first));

	/* 2. to the device */
	memory = mirror->staging.memory + offset;
	d_memory = mirror->staging.d_memory + offset;
	memcpy(memory, chunk->live, n * 4);
	if (!live_only)
	{
		memcpy(memory + way.t, chunk->t, (size_t) n * GV_BLOCK * 4);
		memcpy(memory + way.rowids, chunk->rowids, (size_t) n * GV_BLOCK * 6);
		if (shape->keys_bytes > 0)
			memcpy(memory + way.keys, chunk->keys,
				   (size_t) n * shape->keys_bytes);
		memcpy(memory + way.codes, chunk->codes,
			   (size_t) n * GV_BLOCK * shape->code_bytes);
	}
	if (n > 0)
		GV_TRY(gv_noted_status(cudaMemcpyAsync(d_memory, memory, way.bytes,
											   cudaMemcpyHostToDevice,
											   mirror->stream)));

	/* 3. into its place */
	note_live(mirror, list, chunk);
	entry.d_blocks = list->d_blocks;
	entry.nblocks = list->nblocks;
	entry.nlive = (uint32_t) list->nlive;
	GV_LAUNCH(place_kernel, n * GV_WARP / THREADS + 1, THREADS, 0,
			  mirror->stream, *shape, n, (const uint32_t *) d_memory,
			  (const float *) (d_memory + way.t),
			  (const uint16_t *) (d_memory + way.rowids),
			  (const uint32_t *) (d_memory + way.keys),
			  live_only ? NULL : d_memory + way.codes,
			  list->d_blocks + (int64_t) chunk->first * shape->block_bytes,
			  mirror->d_lists + chunk->list, entry);
	GV_TRY(gv_noted_status(cudaGetLastError()));
	return gv_mirror_changed(mirror);
}

/* See gv_mirror_get_block. */
GvStatus
gv_gpu_get_block(GvMirror *mirror, int32_t list, int32_t block, GvBlock *view)
{
	const GvBlockShape *shape = &mirror->model.shape;
	const uint32_t *high;
	const uint16_t *low;
	uint16_t   *rowids;

	if (list < 0 || list >= mirror->spec.nlists || block < 0 ||
		(uint32_t) block >= mirror->lists[list].nblocks)
		return GV_INVALID;
	GV_TRY(gv_choose_device(mirror->spec.device));
	GV_CUDA_TRY(cudaMemcpyAsync(mirror->raw, mirror->lists[list].d_blocks +
								(int64_t) block * shape->block_bytes,
								shape->block_bytes, cudaMemcpyDeviceToHost,
								mirror->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
	for (int p = 0; p < shape->code_bytes; p++)
		for (int i = 0; i < GV_BLOCK; i++)
			mirror->view[p * GV_BLOCK + i] =
				mirror->raw[(p / GV_CHUNK * GV_BLOCK + i) * GV_CHUNK +
							p % GV_CHUNK];
	rowids = (uint16_t *) (mirror->view + shape->chunks * GV_CHUNK * GV_BLOCK);
	high = (const uint32_t *) (mirror->raw + shape->high);
	low = (const uint16_t *) (mirror->raw + shape->low);
	for (int i = 0; i < GV_BLOCK; i++)
	{
		rowids[3 * i] = high[i] >> 16;
		rowids[3 * i + 1] = high[i] & 0xFFFF;
		rowids[3 * i + 2] = low[i];
	}
	view->codes = mirror->view;
	view->t = (const float *) (mirror->raw + shape->t);
	view->rowids = rowids;
	view->live = *(const uint32_t *) (mirror->raw + shape->live);
	view->keys = shape->keys_bytes > 0 ? mirror->raw + shape->keys : NULL;
	view->ahead = NULL;
	return GV_OK;
}

/* See gv_mirrors_open. */
static GvStatus
open_devices(const char *devices, GvDevice *found, int32_t *nfound)
{
	GV_TRY(gv_gpu_open(devices, found, nfound));
	return gv_blas_open(found, *nfound);
}

extern "C" const GvMirrorBackend gv_cuda_mirrors = {
	.name = "cuda",
	.open = open_devices,
	.size = gv_gpu_size,
	.create = gv_gpu_create,
	.drop = gv_gpu_drop,
	.bytes = gv_gpu_bytes,
	.put_array = gv_gpu_put_array,
	.put_list = gv_gpu_put_list,
	.put_refine = gv_gpu_put_refine,
	.get_array = gv_gpu_get_array,
	.get_block = gv_gpu_get_block,
	.get_refine = gv_gpu_get_refine,
	.searcher = gv_gpu_searcher,
	.searcher_drop = gv_gpu_searcher_drop,
	.begin = gv_gpu_begin,
	.done = gv_gpu_done,
	.finish = gv_gpu_finish,
	.rejection = gv_gpu_rejection
};
