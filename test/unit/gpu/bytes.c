/*
 * bytes.c
 *		See bytes.h.
 */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"

#define MB				(INT64_C(1) << 20)
#define STAGING			(32 * MB)	/* on its way, of all but small mirrors */
#define LEAST_SEGMENT	(4 * MB)
#define MOST_SEGMENT	(256 * MB)
#define TABLE_PAGES		65536	/* of records or rows, in a table */
#define TABLES			(TABLE_PAGES * 8)	/* pointers to tables */
#define TABLE			(TABLE_PAGES * 16)	/* pages, a pointer and a number
											 * each */
#define PAGE_BYTES		(8192 - 24 - 8 - 8) /* for refine records */
#define RECORDS			4096	/* sent at once */
#define FIRST_PAGE		1000	/* of records or rows */

static int64_t
up_to(int64_t n, int64_t step)
{
	return (n + step - 1) / step * step;
}

int32_t
device_record_slots(int32_t dims)
{
	return PAGE_BYTES / (dims + 18);
}

/*
 * Bytes of a pool that was made for `expected` items and has n, an average,
 * that are handed out in runs: half of one is lost at the end of a segment.
 */
static int64_t
pool_bytes(double n, int64_t expected, int64_t item_bytes, double run)
{
	int64_t		bytes = expected * item_bytes / 8;
	int64_t		ordinary;
	int64_t		items = 0;

	bytes = bytes < LEAST_SEGMENT ? LEAST_SEGMENT :
		bytes > MOST_SEGMENT ? MOST_SEGMENT : bytes;
	ordinary = bytes / item_bytes + 1;
	while ((double) items < n)
	{
		int64_t		segment = expected - items;

		segment = segment < ordinary / 4 ? ordinary / 4 :
			segment > ordinary ? ordinary : segment;
		items += segment;
		n += (run - 1) / 2;
	}
	return items * item_bytes;
}

/* Slots of a page that has so many rows, of eight for each power of two. */
static int64_t
row_slots(int64_t rows)
{
	int64_t		step = 1;

	while (step * 16 < rows)
		step *= 2;
	return up_to(rows, step);
}

int64_t
device_bytes(const DeviceIndex *index)
{
	int64_t		d = index->dims;
	int64_t		d16 = up_to(d, 16);
	int64_t		lists = index->lists;
	double		fraction = 1.0 / index->devices;

	/* codebooks; centroids, halves and squares of them, entries of lists */
	int64_t		model = 16 * d * 4 + lists * (4 * d + 2 * d16 + 4 + 16);

	/* a posting's code in chunks of 16 bytes, T, row id; live bits and keys */
	int64_t		block = 32 * (up_to(index->m, 32) / 2 + 4 + 6) + 16 +
		up_to(index->key_bytes, 16);

	/* a list's last block is half full: 31 of 64 blocks are empty */
	double		blocks = fraction * ((double) index->postings / 32 +
								  (double) lists * 31 / 64);
	int64_t		bytes = model + STAGING +
		pool_bytes(blocks,
				   (int64_t) (fraction * (double) index->postings / 32 +
									  fraction * (double) lists / 2 + 1),
										block,
				   blocks / (fraction * (double) lists));

	if (index->records)
	{
		int64_t		slots = device_record_slots(index->dims);
		double		all = (double) index->rows / (double) slots;
		double		pages = fraction * all;

		bytes += pool_bytes(pages + 0.5, (int64_t) pages + 1,
							slots * (32 + d16), 1) +
			TABLES + TABLE * (int64_t) (all / TABLE_PAGES + 1);
	}
	if (index->stored != GV_ROWS_NONE)
	{
		double		pages = (double) index->rows / index->page_rows;
		double		rows = fraction * (double) index->rows;
		int64_t		slots = row_slots(index->page_rows);

		bytes += pool_bytes(fraction * pages * (double) slots,
							(int64_t) (rows + rows / 32 + 1),
							up_to(d * (index->stored == GV_ROWS_HALF ? 2 : 4),
								  16), (double) slots) +
			TABLES + TABLE * (int64_t) (pages / TABLE_PAGES + 1);
	}
	return bytes;
}

/* ------------------------------------------------------------------ mirrors */

/* Between 0 and n. */
static int64_t
draw(int64_t n)
{
	static uint64_t seed = 88172645463325252u;

	/* Marsaglia, "Xorshift RNGs", 2003 */
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (int64_t) (seed >> 16) % (n + 1);
}

static GvStatus
fill_lists(GvMirror *mirror, const DeviceIndex *index)
{
	int64_t		mean = index->postings / index->lists;
	size_t		most = (size_t) mean * 3 / 2 / GV_BLOCK + 2;
	uint32_t   *live = calloc(most, sizeof(uint32_t));
	float	   *t = calloc(most * GV_BLOCK, sizeof(float));
	uint16_t   *ids = calloc(most * GV_BLOCK * 3, sizeof(uint16_t));
	uint8_t    *codes = calloc(most * GV_BLOCK,
							   (size_t) gv_code_bytes(index->m));
	GvStatus	status = live == NULL || t == NULL || ids == NULL ||
		codes == NULL ? GV_NO_MEMORY : GV_OK;

	for (int32_t list = 0; list < index->lists && status == GV_OK; list++)
	{
		int64_t		n = mean / 2 + draw(mean);
		GvListChunk chunk = {.list = list,.live = live,.t = t,.rowids = ids,
		.codes = codes};

		chunk.nblocks = (int32_t) ((n + GV_BLOCK - 1) / GV_BLOCK);
		status = gv_mirror_put_list(mirror, &chunk);
	}
	free(live);
	free(t);
	free(ids);
	free(codes);
	return status;
}

static GvStatus
fill_records(GvMirror *mirror, const DeviceIndex *index)
{
	size_t		stride = gv_refine_stride(index->dims);
	int64_t		slots = device_record_slots(index->dims);
	char	   *items = calloc(RECORDS, stride);
	GvStatus	status = items == NULL ? GV_NO_MEMORY : GV_OK;

	for (int64_t row = 0; row < index->rows && status == GV_OK;)
	{
		int32_t		n = 0;

		for (; n < RECORDS && row < index->rows; n++, row++)
		{
			GvRefineItem *item = (GvRefineItem *) (items + stride * (size_t) n);
			int64_t		page = FIRST_PAGE + row / slots;

			item->address[0] = (uint16_t) (page >> 16);
			item->address[1] = (uint16_t) page;
			item->address[2] = (uint16_t) (row % slots + 1);
			item->rowid[2] = 1;
		}
		status = gv_mirror_put_refine(mirror, (const GvRefineItem *) items, n);
	}
	free(items);
	return status;
}

/* Rows that are all zero, page by page. */
static GvStatus
fill_rows(GvMirror *mirror, const DeviceIndex *index)
{
	size_t		stride = gv_row_stride(index->stored, index->dims);
	char	   *items = calloc(RECORDS, stride);
	GvStatus	status = items == NULL ? GV_NO_MEMORY : GV_OK;

	for (int64_t row = 0; row < index->rows && status == GV_OK;)
	{
		int32_t		n = 0;

		for (; n < RECORDS && row < index->rows; n++, row++)
		{
			GvRowItem  *item = (GvRowItem *) (items + stride * (size_t) n);
			int64_t		page = FIRST_PAGE + row / index->page_rows;

			/* a page comes whole */
			if (row % index->page_rows == 0 &&
				n + index->page_rows > RECORDS)
				break;
			item->rowid[0] = (uint16_t) (page >> 16);
			item->rowid[1] = (uint16_t) page;
			item->rowid[2] = (uint16_t) (row % index->page_rows + 1);
			item->known = 1;
		}
		status = gv_mirror_put_rows(mirror, (const GvRowItem *) items, n);
	}
	free(items);
	return status;
}

GvMirror *
device_mirror(const DeviceIndex *index)
{
	GvMirrorSpec spec = {
		.metric = GV_L2,.dims = index->dims,.m = index->m,
		.nlists = index->lists,.nparents = 1,.postings = index->postings
	};
	GvPlacement	placement = {.nshards = index->devices,.nreplicas = 1};
	GvMirror   *mirror;

	if (index->records)
	{
		spec.refine_slots = device_record_slots(index->dims);
		spec.refine_records = index->rows;
	}
	if (index->stored != GV_ROWS_NONE)
	{
		spec.rows = index->stored;
		spec.refine_records = index->rows;
	}
	for (int32_t i = 0; i < index->devices; i++)
		placement.devices[i] = i;
	if (gv_mirror_create_on(&spec, &placement, &mirror, NULL) != GV_OK)
		return NULL;
	if (fill_lists(mirror, index) == GV_OK &&
		(!index->records || fill_records(mirror, index) == GV_OK) &&
		(index->stored == GV_ROWS_NONE || fill_rows(mirror, index) == GV_OK))
		return mirror;
	gv_mirror_drop(mirror);
	return NULL;
}
