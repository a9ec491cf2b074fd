/*
 * records.cu
 *		Refine records in the device's memory, by address.
 *
 * As in the portable engine they lie by page of the index, and a table of
 * tables leads to them.  A page's records are an extent of a pool.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/common/warpselect.cuh"
#include "gpu/index/gv_index.h"

#define THREADS			256
#define TABLE_BYTES		((int64_t) GV_TABLE_PAGES * (int64_t) sizeof(void *))

/* The host's note of a table of pages. */
struct GvTable
{
	uint8_t   **d_pages;		/* [GV_TABLE_PAGES] on the device */
	uint8_t    *noted[GV_TABLE_PAGES];	/* what is in it */
};

/* A page whose records the device has no memory for yet. */
struct GvNewPage
{
	uint8_t   **d_place;		/* in its table */
	uint8_t    *d_records;
};

static int64_t
page_bytes(const GvMirrorSpec *spec)
{
	return (int64_t) spec->refine_slots * gv_record_bytes(spec->dims);
}

static int64_t
expected_pages(const GvMirrorSpec *spec)
{
	return spec->refine_records / spec->refine_slots + 1;
}

/* About what the records of a mirror will take. */
int64_t
gv_gpu_records_size(const GvMirrorSpec *spec)
{
	if (spec->refine_slots == 0)
		return 0;
	return expected_pages(spec) * page_bytes(spec) +
		(expected_pages(spec) / GV_TABLE_PAGES + 2) * TABLE_BYTES;
}

/* A new mirror's part. */
GvStatus
gv_gpu_records_create(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;

	if (spec->refine_slots == 0)
		return GV_OK;
	mirror->model.refine_slots = spec->refine_slots;
	mirror->model.record_bytes = gv_record_bytes(spec->dims);
	mirror->tables = (GvTable **) calloc(GV_TABLE_PAGES, sizeof(GvTable *));
	if (mirror->tables == NULL)
		return GV_NO_MEMORY;
	GV_TRY(gv_pool_create(page_bytes(spec), expected_pages(spec),
						  &mirror->record_pool));
	GV_CUDA_TRY(cudaMalloc((void **) &mirror->d_tables, TABLE_BYTES));
	mirror->table_bytes = TABLE_BYTES;
	mirror->model.d_tables = mirror->d_tables;
	return gv_cuda_status(cudaMemsetAsync(mirror->d_tables, 0, TABLE_BYTES,
										  mirror->stream));
}

void
gv_gpu_records_drop(GvMirror *mirror)
{
	for (int i = 0; mirror->tables != NULL && i < GV_TABLE_PAGES; i++)
		if (mirror->tables[i] != NULL)
		{
			(void) cudaFree(mirror->tables[i]->d_pages);
			free(mirror->tables[i]);
		}
	gv_pool_drop(mirror->record_pool);
	(void) cudaFree(mirror->d_tables);
	free(mirror->tables);
}

/* Write a pointer to the device's memory, behind all that was sent before. */
static GvStatus
upload_pointer(GvMirror *mirror, void *d_place, const void *pointer)
{
	size_t		offset;

	GV_TRY(gv_staging_take(mirror, 256, &offset));
	memcpy(mirror->staging.memory + offset, &pointer, sizeof(pointer));
	return gv_cuda_status(cudaMemcpyAsync(d_place,
										  mirror->staging.memory + offset,
										  sizeof(pointer),
										  cudaMemcpyHostToDevice,
										  mirror->stream));
}

/* The table of pages that begin with a word. */
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
	status = gv_cuda_status(cudaMalloc((void **) &table->d_pages,
									   TABLE_BYTES));
	if (status != GV_OK)
	{
		free(table);
		return status;
	}
	/* noted once the device knows it, because who has no memory tries again */
	status = gv_cuda_status(cudaMemsetAsync(table->d_pages, 0, TABLE_BYTES,
											mirror->stream));
	if (status == GV_OK)
		status = upload_pointer(mirror, mirror->d_tables + word,
								table->d_pages);
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
 * Clear pages, a block each, and enter them into their tables.  A page is new:
 * nothing but the copies of this mirror's stream knows it.
 */
static __global__ void __launch_bounds__(THREADS)
enter_kernel(const GvNewPage *pages, int64_t page_bytes)
{
	GvNewPage	page = pages[blockIdx.x];

	for (int64_t i = threadIdx.x; i < page_bytes / 16; i += THREADS)
		((uint4 *) page.d_records)[i] = make_uint4(0, 0, 0, 0);
	if (threadIdx.x == 0)
		*page.d_place = page.d_records;
}

/* Items [n], `stride` apart, to their places; a warp each. */
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
	record = model.d_tables[item->address[0]][item->address[1]] +
		(int64_t) (item->address[2] - 1) * model.record_bytes;
	if (lane == 0)
		*(GvDeviceRecord *) record =
			{item->min, item->step, item->error,
			 (uint32_t) item->rowid[0] << 16 | item->rowid[1], item->rowid[2],
			 {}};
	for (int d = lane; d < model.dims; d += GV_WARP)
		record[sizeof(GvDeviceRecord) + d] = item->codes[d];
}

/* Do the records of two items lie on one page? */
static bool
same_page(const GvRefineItem *a, const GvRefineItem *b)
{
	return a->address[0] == b->address[0] && a->address[1] == b->address[1];
}

/* See to the tables of all items; *npages: on how many pages they are. */
static GvStatus
need_tables(GvMirror *mirror, const GvRefineItem *items, int32_t n,
			int32_t *npages)
{
	int32_t		dims = mirror->spec.dims;
	const GvRefineItem *last = NULL;

	*npages = 0;
	for (int32_t i = 0; i < n; i++)
	{
		const GvRefineItem *item = gv_refine_item(items, dims, i);

		if (last != NULL && same_page(item, last))
			continue;
		last = item;
		++*npages;
		GV_TRY(need_table(mirror, item->address[0]));
	}
	return GV_OK;
}

/*
 * Memory for the pages of all items that have none; they are noted, and have
 * to be entered even when there is not memory for all.
 */
static GvStatus
take_pages(GvMirror *mirror, const GvRefineItem *items, int32_t n,
		   GvNewPage *pages, int32_t *nnew)
{
	GvStatus	status = GV_OK;

	*nnew = 0;
	for (int32_t i = 0; i < n && status == GV_OK; i++)
	{
		const uint16_t *address = gv_refine_item(items, mirror->spec.dims,
												 i)->address;
		GvTable    *table = mirror->tables[address[0]];
		uint8_t    *d_records;
		uint32_t	capacity;

		if (table->noted[address[1]] != NULL)
			continue;
		status = gv_pool_take(mirror->record_pool, 1, &d_records, &capacity);
		if (status != GV_OK)
			break;
		table->noted[address[1]] = d_records;
		pages[*nnew].d_place = table->d_pages + address[1];
		pages[(*nnew)++].d_records = d_records;
	}
	return status;
}

/*
 * Put items in, up to the first failure.  One copy and two launches, however
 * many records: a call for each page would take longer than its bytes.
 */
static GvStatus
upload_items(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	size_t		stride = gv_refine_stride(mirror->spec.dims);
	size_t		bytes = 0;
	size_t		offset;
	size_t		items_at;
	size_t		pages_at;
	uint8_t    *memory;
	uint8_t    *d_memory;
	int32_t		npages;
	int32_t		nnew;
	GvStatus	status;

	/* first, because tables are sent by way of the staging memory, too */
	GV_TRY(need_tables(mirror, items, n, &npages));
	pages_at = gv_carve(&bytes, npages * sizeof(GvNewPage));
	items_at = gv_carve(&bytes, n * stride);
	GV_TRY(gv_staging_take(mirror, bytes, &offset));
	memory = mirror->staging.memory + offset;
	d_memory = mirror->staging.d_memory + offset;

	status = take_pages(mirror, items, n, (GvNewPage *) (memory + pages_at),
						&nnew);
	if (status == GV_OK)
		memcpy(memory + items_at, items, n * stride);
	GV_TRY(gv_noted_status(cudaMemcpyAsync(d_memory, memory,
										   status == GV_OK ? bytes : items_at,
										   cudaMemcpyHostToDevice,
										   mirror->stream)));
	if (nnew > 0)
	{
		GV_LAUNCH(enter_kernel, nnew, THREADS, 0, mirror->stream,
				  (const GvNewPage *) (d_memory + pages_at),
				  page_bytes(&mirror->spec));
		/* records without their pages would go nowhere */
		GV_TRY(gv_noted_status(cudaGetLastError()));
	}
	if (status == GV_OK)
		GV_LAUNCH(record_kernel,
				  (n + THREADS / GV_WARP - 1) / (THREADS / GV_WARP), THREADS,
				  0, mirror->stream, mirror->model, n, d_memory + items_at,
				  (int) stride);
	GV_TRY(gv_noted_status(cudaGetLastError()));
	return status;
}

/* See gv_mirror_put_refine. */
GvStatus
gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	GvStatus	status;
	GvStatus	noted;

	if (!gv_refine_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	if (n == 0)
		return GV_OK;
	GV_TRY(gv_choose_device(mirror->spec.device));
	status = upload_items(mirror, items, n);
	/* pages may have come, though no item did: searches wait for these, too */
	noted = gv_mirror_changed(mirror);
	return status != GV_OK ? status : noted;
}

/* The record at an address into an item that is all zero; if there is one. */
static GvStatus
get_record(GvMirror *mirror, const uint16_t *address, GvRefineItem *item,
		   uint8_t *raw)
{
	int32_t		record_bytes = mirror->model.record_bytes;
	const GvTable *table = mirror->tables[address[0]];
	const GvDeviceRecord *record = (const GvDeviceRecord *) raw;

	memcpy(item->address, address, sizeof(item->address));
	if (table == NULL || table->noted[address[1]] == NULL ||
		address[2] < 1 || address[2] > mirror->spec.refine_slots)
		return GV_OK;
	GV_CUDA_TRY(cudaMemcpyAsync(raw, table->noted[address[1]] +
								(int64_t) (address[2] - 1) * record_bytes,
								record_bytes, cudaMemcpyDeviceToHost,
								mirror->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
	if (record->low == 0)
		return GV_OK;
	item->rowid[0] = record->high >> 16;
	item->rowid[1] = record->high & 0xFFFF;
	item->rowid[2] = (uint16_t) record->low;
	item->min = record->min;
	item->step = record->step;
	item->error = record->error;
	memcpy(item->codes, raw + sizeof(GvDeviceRecord), mirror->spec.dims);
	return GV_OK;
}

/* See gv_mirror_get_refine. */
GvStatus
gv_gpu_get_refine(GvMirror *mirror, const uint16_t *addresses, int32_t n,
				  GvRefineItem *items)
{
	size_t		stride = gv_refine_stride(mirror->spec.dims);
	GvStatus	status = GV_OK;
	uint8_t    *raw;

	if (mirror->spec.refine_slots == 0)
		return GV_INVALID;
	GV_TRY(gv_choose_device(mirror->spec.device));
	raw = (uint8_t *) malloc(mirror->model.record_bytes);
	if (raw == NULL)
		return GV_NO_MEMORY;
	memset((void *) items, 0, stride * n);
	for (int32_t i = 0; i < n && status == GV_OK; i++)
		status = get_record(mirror, addresses + 3 * (size_t) i,
							(GvRefineItem *) ((char *) items + stride * i),
							raw);
	free(raw);
	return status;
}
