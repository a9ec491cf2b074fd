/*
 * records.cu
 *		Refine records in the card's memory, by address.
 *
 * As in the portable engine they lie by page of the index, and a table of
 * pages leads to them.  A page's records are an extent of a pool.
 */
#include <stdlib.h>
#include <string.h>

#include "select.cuh"
#include "gv_cuda.h"

#define THREADS			256
#define PAGES_AT_ONCE	1024	/* the table grows by at least this much */

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
	return expected_pages(spec) *
		(page_bytes(spec) + (int64_t) sizeof(uint8_t *));
}

/* A new mirror's part. */
GvStatus
gv_gpu_records_create(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;

	if (spec->refine_slots == 0)
		return GV_OK;
	mirror->card.refine_slots = spec->refine_slots;
	mirror->card.record_bytes = gv_record_bytes(spec->dims);
	return gv_pool_create(page_bytes(spec), expected_pages(spec),
						  &mirror->record_pool);
}

void
gv_gpu_records_drop(GvMirror *mirror)
{
	gv_pool_drop(mirror->record_pool);
	(void) cudaFree(mirror->d_pages);
	free(mirror->pages);
}

/* A larger table of pages; nobody searches meanwhile. */
static GvStatus
grow_table(GvMirror *mirror, uint32_t page)
{
	size_t		old = mirror->card.npages;
	size_t		npages = (size_t) page + page / 4 + PAGES_AT_ONCE;
	uint8_t   **pages;
	uint8_t   **d_pages;

	if (npages > UINT32_MAX)
		npages = UINT32_MAX;
	pages = (uint8_t **) realloc(mirror->pages, npages * sizeof(uint8_t *));
	if (pages == NULL)
		return GV_NO_MEMORY;
	memset(pages + old, 0, (npages - old) * sizeof(uint8_t *));
	mirror->pages = pages;
	GV_CUDA_TRY(cudaMalloc((void **) &d_pages, npages * sizeof(uint8_t *)));
	GV_CUDA_TRY(cudaMemsetAsync(d_pages, 0, npages * sizeof(uint8_t *),
								mirror->stream));
	if (old > 0)
		GV_CUDA_TRY(cudaMemcpyAsync(d_pages, mirror->d_pages,
									old * sizeof(uint8_t *),
									cudaMemcpyDeviceToDevice, mirror->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(mirror->stream));
	(void) cudaFree(mirror->d_pages);
	mirror->d_pages = d_pages;
	mirror->card.d_pages = d_pages;
	mirror->card.npages = (uint32_t) npages;
	return GV_OK;
}

/* A page's records, all of them none, entered into the table. */
static GvStatus
need_page(GvMirror *mirror, uint32_t page)
{
	int64_t		bytes = page_bytes(&mirror->spec);
	uint8_t    *d_records;
	uint32_t	capacity;
	size_t		offset;

	if (page >= mirror->card.npages)
		GV_TRY(grow_table(mirror, page));
	if (mirror->pages[page] != NULL)
		return GV_OK;
	GV_TRY(gv_staging_take(mirror, 256, &offset));
	GV_TRY(gv_pool_take(mirror->record_pool, 1, &d_records, &capacity));
	mirror->pages[page] = d_records;
	memcpy(mirror->staging.memory + offset, &d_records, sizeof(d_records));
	GV_CUDA_TRY(cudaMemsetAsync(d_records, 0, bytes, mirror->stream));
	return gv_cuda_status(cudaMemcpyAsync(mirror->d_pages + page,
										  mirror->staging.memory + offset,
										  sizeof(d_records),
										  cudaMemcpyHostToDevice,
										  mirror->stream));
}

/* Items [n], `stride` apart, to their places; a warp each. */
static __global__ void __launch_bounds__(THREADS)
record_kernel(GvCardModel card, int n, const uint8_t *items, int stride)
{
	int			i = (blockIdx.x * THREADS + threadIdx.x) / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const GvRefineItem *item;
	uint8_t    *record;

	if (i >= n)
		return;
	item = (const GvRefineItem *) (items + (int64_t) i * stride);
	record = card.d_pages[(uint32_t) item->address[0] << 16 | item->address[1]] +
		(int64_t) (item->address[2] - 1) * card.record_bytes;
	if (lane == 0)
		*(GvCardRecord *) record =
			{item->min, item->step, item->error,
			 (uint32_t) item->rowid[0] << 16 | item->rowid[1], item->rowid[2],
			 {}};
	for (int d = lane; d < card.dims; d += GV_WARP)
		record[sizeof(GvCardRecord) + d] = item->codes[d];
}

/* See gv_mirror_put_refine. */
GvStatus
gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	size_t		stride = gv_refine_stride(mirror->spec.dims);
	size_t		offset;
	uint32_t	last = 0;

	if (!gv_refine_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	GV_TRY(gv_choose_device());
	for (int32_t i = 0; i < n; i++)
	{
		const GvRefineItem *item = gv_refine_item(items, mirror->spec.dims, i);
		uint32_t	page = (uint32_t) item->address[0] << 16 | item->address[1];

		if (i == 0 || page != last)
			GV_TRY(need_page(mirror, page));
		last = page;
	}
	if (n == 0)
		return GV_OK;
	GV_TRY(gv_staging_take(mirror, (n * stride + 255) / 256 * 256, &offset));
	memcpy(mirror->staging.memory + offset, items, n * stride);
	GV_CUDA_TRY(cudaMemcpyAsync(mirror->staging.d_memory + offset,
								mirror->staging.memory + offset, n * stride,
								cudaMemcpyHostToDevice, mirror->stream));
	GV_LAUNCH(record_kernel, (n + THREADS / GV_WARP - 1) / (THREADS / GV_WARP),
			  THREADS, 0, mirror->stream, mirror->card, n,
			  mirror->staging.d_memory + offset, (int) stride);
	GV_CUDA_TRY(cudaGetLastError());
	return gv_cuda_status(cudaEventRecord(mirror->changed, mirror->stream));
}
