/*
 * mirror.cu
 *		Creates, fills, changes and reads back mirrors in a device's memory,
 *		with their refine records or rows and half copies of their centroids.
 *
 * One copy uploads a chunk unchanged, and a kernel converts it to the layout
 * that scans read.  The host does not wait for this: a stream keeps the
 * changes in order, and a search waits on the device for the last change.
 */
#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "gpu/device/warp.cuh"
#include "gpu/mirror/mirror.h"

#define THREADS			256
#define LEAST_STAGING	(INT64_C(1) << 20)
#define MOST_STAGING	(INT64_C(32) << 20)
#define WARPS			(THREADS / GV_WARP)

/*
 * ----
 * The device's memory for blocks of lists, and for refine records or rows.
 *
 * Lists grow, shrink and vanish, and cudaMalloc for each would synchronize the
 * device.  So a pool allocates large segments and hands out extents of whole
 * blocks.  An extent that a list returns is kept for another list that needs
 * the same capacity.  There are only eight capacities for every power of two,
 * so there soon is another list with this capacity.  Segments are freed with
 * the mirror.
 *
 * A segment is an eighth of the expected memory, and the last segment is only
 * as large as the rest of the expected memory.  If lists need more than
 * expected, each further segment is a quarter of a full one.
 */

#define STEPS			8		/* capacities to every power of two */
#define NCAPACITIES		(STEPS * 30)
/*
 * A mirror may exceed its budget by one segment, because only the growth of a
 * list is charged in advance.
 */
#define MIN_SEGMENT		(INT64_C(4) << 20)
#define MAX_SEGMENT		(INT64_C(256) << 20)

/* A segment, or a free extent. */
struct Extent
{
	Extent	   *next;
	uint8_t    *d_blocks;
};

struct GvPool
{
	int64_t		block_bytes;
	int64_t		segment_blocks; /* of a full segment */
	int64_t		expected;		/* blocks expected beyond those of the
								 * segments */
	int64_t		bytes;			/* of all segments */
	Extent	   *segments;
	uint8_t    *d_free;			/* unused rest of the newest segment */
	int64_t		nfree;			/* its blocks */
	Extent	   *waiting[NCAPACITIES];
};

/*
 * Sets *capacity to the smallest capacity that holds nblocks blocks, and
 * returns the number of this capacity.
 */
static int
capacity_for(uint32_t nblocks, uint32_t *capacity)
{
	uint64_t	base = 1;
	int			number = 0;

	if (nblocks <= STEPS)
	{
		*capacity = nblocks;
		return (int) nblocks;
	}
	while (base * STEPS * 2 < nblocks)
	{
		base *= 2;
		number += STEPS;
	}
	/* base * 8 < nblocks <= base * 16, so capacities are multiples of base */
	*capacity = (uint32_t) ((nblocks + base - 1) / base * base);
	return number + (int) (*capacity / base);
}

/*
 * Creates a pool for blocks of block_bytes bytes.  Device memory is allocated
 * later.
 */
static GvStatus
pool_create(int64_t block_bytes, int64_t expected_blocks, GvPool **pool)
{
	GvPool	   *made = (GvPool *) calloc(1, sizeof(GvPool));
	int64_t		bytes = std::clamp(expected_blocks * block_bytes / 8,
								   MIN_SEGMENT, MAX_SEGMENT);

	if (made == NULL)
		return GV_NO_MEMORY;
	made->block_bytes = block_bytes;
	made->segment_blocks = bytes / block_bytes + 1;
	made->expected = expected_blocks;
	*pool = made;
	return GV_OK;
}

/* Adds an extent to a list.  Returns false if there was no memory. */
static bool
push_extent(Extent **list, uint8_t *d_blocks)
{
	Extent	   *extent = (Extent *) malloc(sizeof(Extent));

	if (extent == NULL)
		return false;
	extent->next = *list;
	extent->d_blocks = d_blocks;
	*list = extent;
	return true;
}

/* Removes the first extent of a list. */
static uint8_t *
pop_extent(Extent **list)
{
	Extent	   *extent = *list;
	uint8_t    *d_blocks = extent->d_blocks;

	*list = extent->next;
	free(extent);
	return d_blocks;
}

/* Frees a pool, or NULL. */
static void
pool_drop(GvPool *pool)
{
	if (pool == NULL)
		return;
	while (pool->segments != NULL)
		(void) cudaFree(pop_extent(&pool->segments));
	for (int i = 0; i < NCAPACITIES; i++)
		while (pool->waiting[i] != NULL)
			(void) pop_extent(&pool->waiting[i]);
	free(pool);
}

/*
 * Adds a segment of at least nblocks blocks.  The unused rest of the previous
 * segment is never used.
 */
static GvStatus
add_segment(GvPool *pool, int64_t nblocks)
{
	uint8_t    *d_memory;

	nblocks = std::max(nblocks, std::clamp(pool->expected,
										   pool->segment_blocks / 4,
										   pool->segment_blocks));
	GV_CUDA_TRY(gv_device_alloc(&d_memory, nblocks * pool->block_bytes));
	if (!push_extent(&pool->segments, d_memory))
	{
		(void) cudaFree(d_memory);
		return GV_NO_MEMORY;
	}
	pool->bytes += nblocks * pool->block_bytes;
	pool->expected -= nblocks;
	pool->d_free = d_memory;
	pool->nfree = nblocks;
	return GV_OK;
}

/* Takes an extent of at least nblocks > 0 blocks from the pool. */
static GvStatus
pool_take(GvPool *pool, uint32_t nblocks, uint8_t **blocks, uint32_t *capacity)
{
	int			number = capacity_for(nblocks, capacity);

	if (pool->waiting[number] != NULL)
	{
		*blocks = pop_extent(&pool->waiting[number]);
		return GV_OK;
	}
	if (*capacity > pool->nfree)
		GV_TRY(add_segment(pool, *capacity));
	*blocks = pool->d_free;
	pool->d_free += *capacity * pool->block_bytes;
	pool->nfree -= *capacity;
	return GV_OK;
}

/*
 * Returns an extent to the pool.  If there is no memory for the extent's
 * struct, nothing can use the extent until the pool is dropped.
 */
static void
pool_give(GvPool *pool, uint8_t *blocks, uint32_t capacity)
{
	uint32_t	same;

	(void) push_extent(&pool->waiting[capacity_for(capacity, &same)], blocks);
}

/*
 * ----
 * How many bytes a mirror takes.
 */

#define FIRST_TABLE_BYTES \
	((int64_t) GV_TABLE_PAGES * (int64_t) sizeof(GvDevicePage *))
#define TABLE_BYTES \
	((int64_t) GV_TABLE_PAGES * (int64_t) sizeof(GvDevicePage))

static int32_t
half_dims(int32_t dims)
{
	return (dims + 15) / 16 * 16;
}

/* Returns how many bytes the model and the entries of the lists take. */
static int64_t
model_bytes(const GvMirrorSpec *spec)
{
	return (gv_array_length(spec, GV_CODEBOOKS) +
			gv_array_length(spec, GV_CENTROIDS)) * 4 +
		(int64_t) spec->nlists *
		(int64_t) (sizeof(GvDeviceList) + sizeof(float) +
				   half_dims(spec->dims) * sizeof(uint16_t)) +
		(int64_t) sizeof(GvHalfLimits);
}

/*
 * A pool of items hands out whole blocks, too.  Returns the slots of a block:
 * all slots of a page of refine records, which has a fixed number of them, and
 * one slot if the items are rows.
 */
static uint32_t
block_slots(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 ? spec->refine_slots : 1;
}

static bool
has_items(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 || spec->rows != GV_ROWS_NONE;
}

static int32_t
item_bytes(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 ? gv_record_bytes(spec->dims) :
		gv_row_item_bytes(spec);
}

/*
 * Estimates the number of blocks of a mirror's items.  Pages of rows have some
 * slots more than they need, because capacities are rounded up.
 */
static int64_t
expected_item_blocks(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 ?
		spec->refine_records / spec->refine_slots + 1 :
		spec->refine_records + spec->refine_records / 32 + 1;
}

/*
 * Returns about how many bytes the items of a mirror will take.  The number of
 * pages of rows is estimated as if pages had nothing else, which is too many
 * if rows are longer than pages, but then the tables are next to nothing.
 */
static int64_t
items_size(const GvMirrorSpec *spec)
{
	int64_t		of_page = spec->refine_slots > 0 ? spec->refine_slots :
		std::max(8192 / item_bytes(spec), 1);
	int64_t		ntables = spec->refine_records / of_page / GV_TABLE_PAGES + 1;

	if (!has_items(spec))
		return 0;
	return expected_item_blocks(spec) * block_slots(spec) *
		item_bytes(spec) + FIRST_TABLE_BYTES + ntables * TABLE_BYTES;
}

/*
 * Estimates the number of blocks of a mirror.  The last block of a list is
 * half full on average.
 */
static int64_t
expected_blocks(const GvMirrorSpec *spec)
{
	return spec->postings / GV_BLOCK + spec->nlists / 2 + 1;
}

/*
 * Returns whether a query's look-up table fits into the shared memory of a
 * block of threads.
 */
static bool
table_fits(const GvMirrorSpec *spec)
{
	GvBlockShape shape = gv_block_shape(spec);

	return gv_table_floats(&shape) * sizeof(float) + GV_SCAN_OWN <=
		gv_most_shared(spec->device);
}

/*
 * Returns how many bytes a mirror takes without staging buffers.  Parents are
 * not on the device, because searches on a device compare all centroids.
 */
static int64_t
held_bytes(const GvMirrorSpec *spec)
{
	return model_bytes(spec) + items_size(spec) +
		expected_blocks(spec) * gv_block_shape(spec).block_bytes;
}

/* Returns the size of the staging buffers. */
static int64_t
staging_size(const GvMirrorSpec *spec)
{
	return std::clamp(held_bytes(spec), LEAST_STAGING, MOST_STAGING);
}

/*
 * Returns how many bytes a mirror takes, or INT64_MAX if its device could
 * never search the mirror.
 */
int64_t
gv_gpu_size(const GvMirrorSpec *spec)
{
	return table_fits(spec) ? held_bytes(spec) + staging_size(spec) :
		INT64_MAX;
}

/*
 * ----
 * Uploads.  They go through pinned memory, in the order of the mirror's
 * stream.
 */

/*
 * Makes later searches wait for all work that is on the mirror's stream so
 * far.
 */
static GvStatus
mirror_changed(GvMirror *mirror)
{
	static uint64_t versions;

	mirror->version = __atomic_add_fetch(&versions, 1, __ATOMIC_RELAXED);
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}

/*
 * Reserves `bytes` bytes of the staging buffers, aligned for any type, and
 * sets *offset to their offset.  If the buffers are full, waits for the stream
 * first.
 */
static GvStatus
staging_take(GvMirror *mirror, size_t bytes, size_t *offset)
{
	GvStaging  *staging = &mirror->staging;
	size_t		needed = 0;

	(void) gv_carve(&needed, bytes);
	if (staging->used + needed > staging->bytes)
	{
		size_t		wanted = std::max((size_t) staging_size(&mirror->spec),
									  needed);

		GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
		staging->used = 0;
		if (wanted > staging->bytes)
		{
			(void) cudaFree(staging->d_memory);
			(void) cudaFreeHost(staging->memory);
			memset(staging, 0, sizeof(*staging));
			GV_CUDA_TRY(cudaMallocHost((void **) &staging->memory, wanted));
			GV_CUDA_TRY(gv_device_alloc(&staging->d_memory, wanted));
			staging->bytes = wanted;
		}
	}
	*offset = gv_carve(&staging->used, bytes);
	return GV_OK;
}

/*
 * ----
 * Half copies of a mirror's centroids, for coarsefilter.cu, and their errors.
 *
 * The device makes the half copies from the centroids that arrive.  The limits
 * of the errors only grow.  When centroids are replaced, the limits may stay
 * wider than necessary, which is still correct.
 */

/* Allocates n elements, all zero. */
template <typename T>
static GvStatus
alloc_cleared(T **memory, int64_t n, cudaStream_t stream)
{
	GV_CUDA_TRY(gv_device_alloc(memory, n));
	return gv_cuda_status(gv_clear(*memory, n, stream));
}

/* Allocates half copies, which are 0 like the centroids. */
GvStatus
gv_gpu_half_create(GvMirror *mirror)
{
	GvDeviceModel *model = &mirror->model;
	int64_t		nlists = model->nlists;

	model->half_dims = half_dims(model->dims);
	GV_TRY(alloc_cleared(&model->d_half_centroids, nlists * model->half_dims,
						 mirror->stream));
	GV_TRY(alloc_cleared(&model->d_squares, nlists, mirror->stream));
	GV_TRY(alloc_cleared(&model->d_limits, 1, mirror->stream));
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}

void
gv_gpu_half_drop(GvMirror *mirror)
{
	(void) cudaFree(mirror->model.d_half_centroids);
	(void) cudaFree(mirror->model.d_squares);
	(void) cudaFree(mirror->model.d_limits);
}

/*
 * Raises *limit to the root of `square`, a sum of squares, if the root is
 * larger.
 */
static __device__ __forceinline__ void
raise(float *limit, double square)
{
	float		root = (float) (sqrt(square) * (1.0 + 1e-6));

	if (!(root < GV_INFINITY))
		root = GV_INFINITY;
	/* floats that are not negative compare as their bits do */
	atomicMax((unsigned *) limit, __float_as_uint(root));
}

/*
 * A warp makes the half copy of one of the centroids first .. first + n - 1.
 */
static __global__ void __launch_bounds__(THREADS)
centroids_to_half_kernel(GvDeviceModel model, int first, int n)
{
	int			lane = threadIdx.x % GV_WARP;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int64_t		list = first + i;
	const float *centroid = model.d_centroids + list * model.dims;
	GvHalfRounding<double> rounding;

	if (i >= n)
		return;
	rounding = gv_to_half_vector<double>([=](int d)
	{
		return d < model.dims ? centroid[d] : 0.0f;
	}, model.half_dims, model.d_half_centroids + list * model.half_dims);
	if (lane == 0)
	{
		model.d_squares[list] = model.metric == GV_IP ? 0.0f :
			(float) rounding.square;
		raise(&model.d_limits->length, rounding.square);
		raise(&model.d_limits->error, rounding.error);
	}
}

/*
 * Makes half copies of the centroids that contain elements first .. first + n
 * - 1 of the array of centroids.
 */
GvStatus
gv_gpu_half_update(GvMirror *mirror, int64_t first, int64_t n)
{
	const GvDeviceModel *model = &mirror->model;
	int			row = (int) (first / model->dims);
	int			nrows = (int) ((first + n - 1) / model->dims) - row + 1;

	return gv_launch(centroids_to_half_kernel, gv_blocks_for(nrows, WARPS),
					 THREADS, 0, mirror->stream, *model, row, nrows);
}

/*
 * ----
 * Items in the device's memory, by address: refine records or rows.
 *
 * As in the portable engine, items are grouped by their pages, and two levels
 * of tables lead to the groups.  A page of refine records is one that the
 * index has, and a page of rows is one of the table.  The slots of a page are
 * an extent of a pool.  A page of refine records gets all of its slots at
 * once.  How many rows a page of the table has is not known in advance.  So its
 * extent is as large as the rows that have come need, and the page moves to a
 * larger one when a row with a greater offset comes.
 */

/* The host's copy of a table of pages. */
struct GvTable
{
	GvDevicePage *d_pages;		/* [GV_TABLE_PAGES] on the device */
	GvDevicePage noted[GV_TABLE_PAGES]; /* its elements */
};

/* A page that was just allocated, or that moves. */
struct GvNewPage
{
	GvDevicePage *d_place;		/* its element in its table */
	GvDevicePage page;
	GvDevicePage old;			/* 0 if it was just allocated */
};

/* Items that a caller puts; each begins with its address. */
struct GvItems
{
	const uint8_t *items;
	int32_t		n;
	size_t		stride;

	const uint16_t *
	address(int32_t i) const
	{
		return (const uint16_t *) (items + stride * i);
	}

	/* Returns whether item i is the last one of its page. */
	bool
	ends_page(int32_t i) const
	{
		return i + 1 == n ||
			memcmp(address(i), address(i + 1), 2 * sizeof(uint16_t)) != 0;
	}
};

/* Allocates what a new mirror has for items. */
static GvStatus
items_create(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;
	GvDeviceModel *model = &mirror->model;

	if (!has_items(spec))
		return GV_OK;
	model->refine_slots = spec->refine_slots;
	model->rows = spec->rows;
	model->item_bytes = item_bytes(spec);
	mirror->tables = (GvTable **) calloc(GV_TABLE_PAGES, sizeof(GvTable *));
	if (mirror->tables == NULL)
		return GV_NO_MEMORY;
	GV_TRY(pool_create((int64_t) block_slots(spec) * model->item_bytes,
					   expected_item_blocks(spec), &mirror->item_pool));
	mirror->table_bytes = FIRST_TABLE_BYTES;
	return alloc_cleared(&model->d_tables, GV_TABLE_PAGES, mirror->stream);
}

static void
items_drop(GvMirror *mirror)
{
	for (int i = 0; mirror->tables != NULL && i < GV_TABLE_PAGES; i++)
		if (mirror->tables[i] != NULL)
		{
			(void) cudaFree(mirror->tables[i]->d_pages);
			free(mirror->tables[i]);
		}
	pool_drop(mirror->item_pool);
	(void) cudaFree(mirror->model.d_tables);
	free(mirror->tables);
	mirror->item_pool = NULL;
	mirror->model.d_tables = NULL;
	mirror->tables = NULL;
	mirror->table_bytes = 0;
}

/*
 * Makes sure that there is a table of the pages whose numbers begin with
 * `word`.
 */
static GvStatus
need_table(GvMirror *mirror, uint16_t word)
{
	GvTable    *table;
	GvStatus	status;

	if (mirror->tables[word] != NULL)
		return GV_OK;
	table = (GvTable *) calloc(1, sizeof(GvTable));
	if (table == NULL)
		return GV_NO_MEMORY;
	status = alloc_cleared(&table->d_pages, GV_TABLE_PAGES, mirror->stream);
	if (status == GV_OK)
		status = gv_cuda_status(gv_upload(mirror->model.d_tables + word,
										  &table->d_pages, 1,
										  mirror->stream));
	/*
	 * record the table only after the upload succeeded, because the caller
	 * tries again if there was no memory
	 */
	if (status != GV_OK)
	{
		(void) cudaFree(table->d_pages);
		free(table);
		return status;
	}
	mirror->tables[word] = table;
	mirror->table_bytes += TABLE_BYTES;
	return GV_OK;
}

/*
 * A block fills a page that is new or moves, and enters it into its table.
 * The old items come first, and the bits of further slots are `fill`, which
 * says that they have no item.  Only this mirror's stream uses the page so
 * far.
 */
static __global__ void __launch_bounds__(THREADS)
enter_kernel(const GvNewPage *pages, int64_t item_bytes, uint32_t fill)
{
	GvNewPage	entered = pages[blockIdx.x];
	const uint4 *old_words = (const uint4 *) entered.old.d_items;
	uint4	   *words = (uint4 *) entered.page.d_items;
	int64_t		nold = entered.old.nslots * item_bytes / 16;

	for (int64_t i = threadIdx.x; i < entered.page.nslots * item_bytes / 16;
		 i += THREADS)
		words[i] = i < nold ? old_words[i] :
			make_uint4(fill, fill, fill, fill);
	if (threadIdx.x == 0)
		*entered.d_place = entered.page;
}

/* Returns the place of an item whose page has been entered. */
static __device__ __forceinline__ uint8_t *
place_of(const GvDeviceModel &model, const uint16_t *address)
{
	return model.d_tables[address[0]][address[1]].d_items +
		(int64_t) (address[2] - 1) * model.item_bytes;
}

/*
 * A warp stores one of n items as a record.  Items are `stride` bytes apart.
 */
static __global__ void __launch_bounds__(THREADS)
record_kernel(GvDeviceModel model, int n, const uint8_t *items, int stride)
{
	int			i = (blockIdx.x * THREADS + threadIdx.x) / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const GvRefineItem *item;
	uint8_t    *record;

	if (i >= n)
		return;
	item = (const GvRefineItem *) (items + (int64_t) i * stride);
	record = place_of(model, item->address);
	if (lane == 0)
		*(GvDeviceRecord *) record =
			{item->min, item->step, item->error, (uint32_t) item->rowid[0] <<
				16 | item->rowid[1], item->rowid[2], {}};
	for (int d = lane; d < model.dims; d += GV_WARP)
		record[sizeof(GvDeviceRecord) + d] = item->codes[d];
}

/*
 * A warp stores one of n items as a row, 8 bytes at a time, as far as the item
 * has them.
 */
static __global__ void __launch_bounds__(THREADS)
row_kernel(GvDeviceModel model, int n, const uint8_t *items, int stride)
{
	int			i = (blockIdx.x * THREADS + threadIdx.x) / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const GvRowItem *item;
	uint64_t   *row;

	if (i >= n)
		return;
	item = (const GvRowItem *) (items + (int64_t) i * stride);
	row = (uint64_t *) place_of(model, item->rowid);
	for (int w = lane; w < (stride - (int) sizeof(GvRowItem)) / 8;
		 w += GV_WARP)
		row[w] = item->known ? ((const uint64_t *) item->values)[w] :
			UINT64_MAX;
}

/*
 * Makes sure that the tables of all items exist.  Sets *npages to the number
 * of pages that the items are on.
 */
static GvStatus
need_tables(GvMirror *mirror, const GvItems *items, int32_t *npages)
{
	*npages = 0;
	for (int32_t i = 0; i < items->n; i++)
		if (items->ends_page(i))
		{
			++*npages;
			GV_TRY(need_table(mirror, items->address(i)[0]));
		}
	return GV_OK;
}

/*
 * Allocates memory for all items whose pages do not exist or have too few
 * slots.  A page that grows gets a quarter more at least, because it will grow
 * again.  Each allocated page is recorded in the host's table, so the caller
 * must enter it on the device even if there is no memory for the other pages.
 */
static GvStatus
take_pages(GvMirror *mirror, const GvItems *items, GvNewPage *pages,
		   int32_t *nnew)
{
	uint32_t	of_block = block_slots(&mirror->spec);

	*nnew = 0;
	for (int32_t i = 0; i < items->n; i++)
	{
		const uint16_t *address = items->address(i);
		GvTable    *table = mirror->tables[address[0]];
		GvDevicePage *noted = &table->noted[address[1]];
		GvDevicePage made = {};
		uint32_t	needed = address[2];
		uint32_t	capacity;

		/* the last item of a page has the greatest slot */
		if (!items->ends_page(i) || needed <= noted->nslots)
			continue;
		needed = std::max(needed, noted->nslots + noted->nslots / 4);
		GV_TRY(pool_take(mirror->item_pool, (needed + of_block - 1) / of_block,
						 &made.d_items, &capacity));
		made.nslots = capacity * of_block;
		pages[(*nnew)++] = {table->d_pages + address[1], made, *noted};
		*noted = made;
	}
	return GV_OK;
}

/*
 * Uploads items with one copy and two launches, because a call for each page
 * would take longer than copying its bytes.  If there is no memory for a page,
 * only the new pages before it are entered.
 */
static GvStatus
upload_items(GvMirror *mirror, const GvItems *items)
{
	bool		are_rows = mirror->spec.rows != GV_ROWS_NONE;
	size_t		bytes = 0;
	size_t		offset;
	size_t		items_at;
	size_t		pages_at;
	uint8_t    *memory;
	uint8_t    *d_memory;
	GvNewPage  *pages;
	int32_t		npages;
	int32_t		nnew;
	GvStatus	status;

	GV_TRY(need_tables(mirror, items, &npages));
	pages_at = gv_carve(&bytes, npages * sizeof(GvNewPage));
	items_at = gv_carve(&bytes, items->n * items->stride);
	GV_TRY(staging_take(mirror, bytes, &offset));
	memory = mirror->staging.memory + offset;
	d_memory = mirror->staging.d_memory + offset;
	pages = (GvNewPage *) (memory + pages_at);

	status = take_pages(mirror, items, pages, &nnew);
	if (status == GV_OK)
		memcpy(memory + items_at, items->items, items->n * items->stride);
	GV_TRY(gv_noted_status(gv_cuda_status(
			   gv_upload(d_memory, memory, status == GV_OK ? bytes : items_at,
						 mirror->stream))));
	/* enter the new pages first, because items are stored on them */
	if (nnew > 0)
		GV_TRY(gv_noted_status( gv_launch(enter_kernel, nnew, THREADS, 0,
										  mirror->stream,
										  (GvNewPage *) (d_memory + pages_at),
										  (int64_t) mirror->model.item_bytes,
										  are_rows ? UINT32_MAX : 0)));
	if (status == GV_OK)
		GV_TRY(gv_noted_status( gv_launch(are_rows ? row_kernel :
										  record_kernel,
										  gv_blocks_for(items->n, WARPS),
										  THREADS, 0, mirror->stream,
										  mirror->model, items->n,
										  d_memory + items_at,
										  (int) items->stride)));
	/*
	 * later changes may reuse old memory, which other pages of this change
	 * must not get while a page moves from there
	 */
	for (int32_t i = 0; i < nnew; i++)
		if (pages[i].old.nslots > 0)
			pool_give(mirror->item_pool, pages[i].old.d_items,
					  pages[i].old.nslots / block_slots(&mirror->spec));
	return status;
}

/* Stores items, which are valid. */
static GvStatus
put_items(GvMirror *mirror, const void *items, int32_t n, size_t stride)
{
	GvItems		all = {(const uint8_t *) items, n, stride};
	GvStatus	status;
	GvStatus	noted;

	if (n == 0)
		return GV_OK;
	GV_TRY(gv_choose_device(mirror->spec.device));
	status = upload_items(mirror, &all);
	/* searches must wait even if only pages were entered */
	noted = mirror_changed(mirror);
	return status != GV_OK ? status : noted;
}

/* See gv_mirror_put_refine. */
GvStatus
gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	if (!gv_refine_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	return put_items(mirror, items, n, gv_refine_stride(mirror->spec.dims));
}

/* See gv_mirror_put_rows. */
GvStatus
gv_gpu_put_rows(GvMirror *mirror, const GvRowItem *items, int32_t n)
{
	const GvMirrorSpec *spec = &mirror->spec;

	if (!gv_row_items_valid(spec, items, n))
		return GV_INVALID;
	return put_items(mirror, items, n, gv_row_stride(spec->rows, spec->dims));
}

/* See gv_mirror_drop_rows. */
GvStatus
gv_gpu_drop_rows(GvMirror *mirror)
{
	if (mirror->spec.rows == GV_ROWS_NONE)
		return GV_OK;
	GV_TRY(gv_choose_device(mirror->spec.device));
	GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
	items_drop(mirror);
	mirror->spec.rows = GV_ROWS_NONE;
	mirror->model.rows = GV_ROWS_NONE;
	mirror->model.item_bytes = 0;
	return mirror_changed(mirror);
}

/*
 * Copies the item at an address to raw [item_bytes].  Sets *found to whether
 * there is a slot for it.
 */
static GvStatus
get_item(GvMirror *mirror, const uint16_t *address, uint8_t *raw, bool *found)
{
	int32_t		bytes = mirror->model.item_bytes;
	const GvTable *table = mirror->tables[address[0]];
	GvDevicePage page = {};

	if (table != NULL)
		page = table->noted[address[1]];
	*found = address[2] >= 1 && address[2] <= page.nslots;
	if (!*found)
		return GV_OK;
	GV_CUDA_TRY(gv_download(raw, page.d_items +
							(int64_t) (address[2] - 1) * bytes, bytes,
							mirror->stream));
	return gv_cuda_status(cudaStreamSynchronize(mirror->stream));
}

/*
 * Clears items [n] of `stride` bytes, sets their addresses [n][3], and calls
 * fill(item, raw) for each item that has a slot.
 */
template <typename Item, typename Fill>
static GvStatus
get_items(GvMirror *mirror, const uint16_t *addresses, int32_t n, Item *items,
		  size_t stride, const Fill &fill)
{
	GvStatus	status = GV_OK;
	uint8_t    *raw;

	GV_TRY(gv_choose_device(mirror->spec.device));
	raw = (uint8_t *) malloc(mirror->model.item_bytes);
	if (raw == NULL)
		return GV_NO_MEMORY;
	memset((void *) items, 0, stride * n);
	for (int32_t i = 0; i < n && status == GV_OK; i++)
	{
		const uint16_t *address = addresses + 3 * (size_t) i;
		Item	   *item = (Item *) ((char *) items + stride * i);
		bool		found;

		memcpy((void *) item, address, 3 * sizeof(*address));
		status = get_item(mirror, address, raw, &found);
		if (status == GV_OK && found)
			fill(item, raw);
	}
	free(raw);
	return status;
}

/* See gv_mirror_get_refine. */
GvStatus
gv_gpu_get_refine(GvMirror *mirror, const uint16_t *addresses, int32_t n,
				  GvRefineItem *items)
{
	int32_t		dims = mirror->spec.dims;

	if (mirror->spec.refine_slots == 0)
		return GV_INVALID;
	return get_items(mirror, addresses, n, items, gv_refine_stride(dims),
					 [=] (GvRefineItem *item, const uint8_t *raw)
	{
		const GvDeviceRecord *record = (const GvDeviceRecord *) raw;

		if (record->low == 0)
			return;
		item->rowid[0] = record->high >> 16;
		item->rowid[1] = record->high & 0xFFFF;
		item->rowid[2] = (uint16_t) record->low;
		item->min = record->min;
		item->step = record->step;
		item->error = record->error;
		memcpy(item->codes, raw + sizeof(GvDeviceRecord), dims);
	});
}

/* See gv_mirror_get_rows. */
GvStatus
gv_gpu_get_rows(GvMirror *mirror, const uint16_t *rowids, int32_t n,
				GvRowItem *items)
{
	const GvMirrorSpec *spec = &mirror->spec;
	size_t		bytes = gv_row_bytes(spec->rows, spec->dims);

	if (spec->rows == GV_ROWS_NONE)
		return GV_INVALID;
	return get_items(mirror, rowids, n, items,
					 gv_row_stride(spec->rows, spec->dims),
					 [=] (GvRowItem *item, const uint8_t *raw)
	{
		item->known = !gv_row_is_none(spec->rows, *(const uint32_t *) raw);
		if (item->known)
			memcpy(item->values, raw, bytes);
	});
}

/*
 * ----
 * Mirrors created and dropped.
 */

static GvStatus
make_memory(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;
	GvDeviceModel *model = &mirror->model;
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
		mirror->parents == NULL || mirror->raw == NULL || mirror->view == NULL)
		return GV_NO_MEMORY;
	GV_TRY(pool_create(shape.block_bytes, expected_blocks(spec),
					   &mirror->pool));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&mirror->stream,
										  cudaStreamNonBlocking));
	GV_CUDA_TRY(cudaEventCreateWithFlags(&mirror->changed,
										 cudaEventDisableTiming));
	model->metric = spec->metric;
	model->dims = spec->dims;
	model->m = spec->m;
	model->nlists = spec->nlists;
	model->shape = shape;
	GV_TRY(alloc_cleared(&model->d_codebooks,
						 gv_array_length(spec, GV_CODEBOOKS), mirror->stream));
	GV_TRY(alloc_cleared(&model->d_centroids,
						 gv_array_length(spec, GV_CENTROIDS), mirror->stream));
	GV_TRY(alloc_cleared(&model->d_lists, spec->nlists, mirror->stream));
	return mirror_changed(mirror);
}

/* See gv_mirror_create. */
GvStatus
gv_gpu_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	return gv_make(mirror, [=] (GvMirror *made)
	{
		made->spec = *spec;
		if (!table_fits(spec))
			return GV_NO_MEMORY;
		GV_TRY(gv_choose_device(spec->device));
		GV_TRY(make_memory(made));
		GV_TRY(gv_gpu_half_create(made));
		return items_create(made);
	}, gv_gpu_drop);
}

/* Also drops a mirror that is half made. */
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
	(void) cudaFree(mirror->model.d_codebooks);
	(void) cudaFree(mirror->model.d_centroids);
	(void) cudaFree(mirror->model.d_lists);
	(void) cudaFree(mirror->staging.d_memory);
	(void) cudaFreeHost(mirror->staging.memory);
	gv_gpu_half_drop(mirror);
	items_drop(mirror);
	pool_drop(mirror->pool);
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
	return model_bytes(&mirror->spec) +
		(int64_t) mirror->staging.bytes + mirror->pool->bytes +
		mirror->table_bytes +
		(mirror->item_pool != NULL ? mirror->item_pool->bytes : 0);
}

/* ----
 * Arrays of the model.
 */

/* See gv_mirror_put_array. */
GvStatus
gv_gpu_put_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
				 const void *values)
{
	float	   *d_array = array == GV_CODEBOOKS ?
		mirror->model.d_codebooks : mirror->model.d_centroids;

	if (first < 0 || n < 0 || n > gv_array_length(&mirror->spec, array) ||
		first > gv_array_length(&mirror->spec, array) - n)
		return GV_INVALID;
	if (n == 0)
		return GV_OK;
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
	GV_CUDA_TRY(gv_upload(d_array + first, (const float *) values, n,
						  mirror->stream));
	/* the values are the caller's */
	GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
	if (array == GV_CENTROIDS)
		GV_TRY(gv_gpu_half_update(mirror, first, n));
	return mirror_changed(mirror);
}

/* See gv_mirror_get_array. */
GvStatus
gv_gpu_get_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
				 void *values)
{
	const float *d_array = array == GV_CODEBOOKS ?
		mirror->model.d_codebooks : mirror->model.d_centroids;

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
	GV_CUDA_TRY(gv_download((float *) values, d_array + first, n,
							mirror->stream));
	return gv_cuda_status(cudaStreamSynchronize(mirror->stream));
}

/* ----
 * Lists.
 */

/* Offsets of the arrays in a chunk of n blocks.  The first array is `live`. */
struct ChunkShape
{
	size_t		terms;
	size_t		rowids;
	size_t		keys;
	size_t		codes;			/* 0: only `live` is new */
	size_t		bytes;
};

static ChunkShape
chunk_shape(size_t n, const GvBlockShape *block, bool live_only)
{
	ChunkShape	shape;

	shape.terms = n * 4;
	shape.rowids = shape.terms + n * GV_BLOCK * 4;
	shape.keys = shape.rowids + n * GV_BLOCK * 6;
	shape.codes = shape.keys + n * (size_t) block->keys_bytes;
	shape.bytes = live_only ? shape.terms :
		shape.codes + n * GV_BLOCK * (size_t) block->code_bytes;
	shape.bytes = (shape.bytes + 255) / 256 * 256;
	if (live_only)
		shape.codes = 0;
	return shape;
}

/*
 * A warp converts a block of a chunk to the device's layout, and lane i
 * converts posting i.  The first thread of the grid also stores the list's
 * entry in *list.
 */
static __global__ void __launch_bounds__(THREADS)
place_kernel(GvBlockShape shape, uint32_t nblocks, const uint8_t *chunk,
			 ChunkShape from, uint8_t *blocks, GvDeviceList *list,
			 GvDeviceList entry)
{
	uint32_t	b = (blockIdx.x * THREADS + threadIdx.x) / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	uint8_t    *block = blocks + (int64_t) b * shape.block_bytes;
	const uint16_t *rowid;
	const uint32_t *keys;
	const uint8_t *codes;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		*list = entry;
	if (b >= nblocks)
		return;
	if (lane == 0)
		*(uint32_t *) (block + shape.live) = ((const uint32_t *) chunk)[b];
	if (from.codes == 0)
		return;

	((float *) (block + shape.terms))[lane] =
		((const float *) (chunk + from.terms))[(int64_t) b * GV_BLOCK + lane];
	rowid = (const uint16_t *) (chunk + from.rowids) +
		((int64_t) b * GV_BLOCK + lane) * 3;
	((uint32_t *) (block + shape.high))[lane] =
		(uint32_t) rowid[0] << 16 | rowid[1];
	((uint16_t *) (block + shape.low))[lane] = rowid[2];

	keys = (const uint32_t *) (chunk + from.keys) +
		(int64_t) b * shape.keys_bytes / 4;
	for (int i = lane; i < shape.keys_bytes / 4; i += GV_WARP)
		((uint32_t *) (block + shape.keys))[i] = keys[i];

	codes = chunk + from.codes + (int64_t) b * shape.code_bytes * GV_BLOCK +
		lane;
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

/* Makes sure that list->live has memory for n blocks. */
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
 * Makes sure that a list has memory for n blocks, and keeps the contents of
 * its first `kept` blocks.  The next chunk may reuse the old memory at once,
 * because the stream keeps the order.
 */
static GvStatus
ensure_capacity(GvMirror *mirror, GvHostList *list, uint32_t n, uint32_t kept)
{
	uint8_t    *d_blocks;
	uint32_t	capacity;

	if (n <= list->capacity)
		return GV_OK;
	/* a list that grows will grow again */
	GV_TRY(pool_take(mirror->pool, list->capacity > 0 ? n + n / 4 : n,
					 &d_blocks, &capacity));
	if (kept > 0)
		GV_CUDA_TRY(cudaMemcpyAsync(d_blocks, list->d_blocks,
									(size_t) kept *
									mirror->model.shape.block_bytes,
									cudaMemcpyDeviceToDevice, mirror->stream));
	if (list->capacity > 0)
		pool_give(mirror->pool, list->d_blocks, list->capacity);
	list->d_blocks = d_blocks;
	list->capacity = capacity;
	return GV_OK;
}

/*
 * Updates the host's record of a list's live postings and length after a
 * chunk.
 */
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
	GvDeviceList entry = {};

	if (chunk->list < 0 || chunk->list >= mirror->spec.nlists)
		return GV_INVALID;
	list = &mirror->lists[chunk->list];
	if ((uint32_t) chunk->first > list->nblocks ||
		(live_only ? chunk->first + n != list->nblocks :
		 (chunk->keys != NULL) != (shape->keys_bytes > 0)))
		return GV_INVALID;

	/* 1. do everything that can fail because there is no memory */
	GV_TRY(gv_choose_device(mirror->spec.device));
	GV_TRY(note_blocks(list, chunk->first + n));
	GV_TRY(staging_take(mirror, way.bytes, &offset));
	GV_TRY(ensure_capacity(mirror, list, chunk->first + n, chunk->first));

	/* 2. to the device */
	memory = mirror->staging.memory + offset;
	d_memory = mirror->staging.d_memory + offset;
	memcpy(memory, chunk->live, n * 4);
	if (!live_only)
	{
		memcpy(memory + way.terms, chunk->t, (size_t) n * GV_BLOCK * 4);
		memcpy(memory + way.rowids, chunk->rowids, (size_t) n * GV_BLOCK * 6);
		if (shape->keys_bytes > 0)
			memcpy(memory + way.keys, chunk->keys,
				   (size_t) n * shape->keys_bytes);
		memcpy(memory + way.codes, chunk->codes,
			   (size_t) n * GV_BLOCK * shape->code_bytes);
	}
	if (n > 0)
		GV_TRY(gv_noted_status(gv_cuda_status(
			   gv_upload(d_memory, memory, way.bytes, mirror->stream))));

	/* 3. into its place */
	note_live(mirror, list, chunk);
	entry.d_blocks = list->d_blocks;
	entry.nblocks = list->nblocks;
	entry.nlive = (uint32_t) list->nlive;
	GV_TRY(gv_noted_status(
			   gv_launch(place_kernel, n * GV_WARP / THREADS + 1, THREADS, 0,
						 mirror->stream, *shape, n, d_memory, way,
						 list->d_blocks +
						 (int64_t) chunk->first * shape->block_bytes,
						 mirror->model.d_lists + chunk->list, entry)));
	return mirror_changed(mirror);
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
	GV_CUDA_TRY(gv_download(mirror->raw, mirror->lists[list].d_blocks +
							(int64_t) block * shape->block_bytes,
							shape->block_bytes, mirror->stream));
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
	view->t = (const float *) (mirror->raw + shape->terms);
	view->rowids = rowids;
	view->live = *(const uint32_t *) (mirror->raw + shape->live);
	view->keys = shape->keys_bytes > 0 ? mirror->raw + shape->keys : NULL;
	view->ahead = NULL;
	return GV_OK;
}

