/*
 * records.c
 *		Refine records of a mirror, by address, and the bounds they give; rows
 *		of a mirror, by row id, and their distances.
 *
 * Addresses are those of the index, or of the table: page, in two words, and
 * slot.  So items lie by page, and a table of tables, one for each first word,
 * leads to them: no address, however wrong, takes much memory.  A page of
 * refine records has all of its slots at once, a page of rows as many as its
 * rows so far need.
 */
#include "engine/gv_set.h"
#include "test/oracle/gv_cpu_mirror.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES		((size_t) GV_TABLE_PAGES * sizeof(char *))
#define PAGES_BYTES		((size_t) GV_TABLE_PAGES * sizeof(GvCpuPage))
#define LIKELY_SLOTS	20		/* of a page of rows */

static bool
has_items(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 || spec->rows != GV_ROWS_NONE;
}

static size_t
item_stride(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 ? gv_refine_stride(spec->dims) :
		gv_row_stride(spec->rows, spec->dims);
}

/* Of an item, without what fills it up to the stride. */
static size_t
item_bytes(const GvMirrorSpec *spec)
{
	return spec->refine_slots > 0 ? sizeof(GvRefineItem) + (size_t) spec->dims :
		sizeof(GvRowItem) + gv_row_bytes(spec->rows, spec->dims);
}

/* About what the records or rows of a mirror will take. */
int64_t
gv_cpu_records_size(const GvMirrorSpec *spec)
{
	int64_t		nslots = spec->refine_slots > 0 ? spec->refine_slots :
	LIKELY_SLOTS;
	int64_t		npages = spec->refine_records / nslots + 1;

	if (!has_items(spec))
		return 0;
	return npages * nslots * (int64_t) item_stride(spec) +
		(int64_t) TABLE_BYTES +
		(npages / GV_TABLE_PAGES + 1) * (int64_t) PAGES_BYTES;
}

/* The table of tables; false: no memory. */
bool
gv_cpu_records_create(GvMirror *mirror)
{
	if (!has_items(&mirror->spec))
		return true;
	mirror->tables = calloc(1, TABLE_BYTES);
	mirror->bytes += (int64_t) TABLE_BYTES;
	return mirror->tables != NULL;
}

/* The place of an item, or NULL when its page has no such slot. */
static char *
find_slot(const GvMirror *mirror, const uint16_t *address)
{
	const GvCpuPage *table = mirror->tables[address[0]];
	const GvCpuPage *page = table != NULL ? &table[address[1]] : NULL;

	return page == NULL || address[2] < 1 || address[2] > page->nslots ?
		NULL : page->items + item_stride(&mirror->spec) *
		(size_t) (address[2] - 1);
}

/*
 * The place of an item that is to be put, made if there is none; NULL: no
 * memory.  New slots are zero, which is what free ones are.
 */
static char *
need_slot(GvMirror *mirror, const uint16_t *address)
{
	size_t		stride = item_stride(&mirror->spec);
	GvCpuPage **table = &mirror->tables[address[0]];
	int32_t		nslots = mirror->spec.refine_slots > 0 ?
	mirror->spec.refine_slots : address[2];
	GvCpuPage  *page;

	if (*table == NULL)
	{
		*table = calloc(1, PAGES_BYTES);
		if (*table == NULL)
			return NULL;
		mirror->bytes += (int64_t) PAGES_BYTES;
	}
	page = &(*table)[address[1]];
	if (address[2] > page->nslots)
	{
		size_t		old = stride * (size_t) page->nslots;
		char	   *items = realloc(page->items, stride * (size_t) nslots);

		if (items == NULL)
			return NULL;
		memset(items + old, 0, stride * (size_t) nslots - old);
		mirror->bytes += (int64_t) (stride * (size_t) nslots - old);
		page->items = items;
		page->nslots = nslots;
	}
	return find_slot(mirror, address);
}

/* Is the first value one that no row has, so that this is none? */
static bool
is_none(const GvMirrorSpec *spec, const GvRowItem *item)
{
	return memcmp(item->values, "\xFF\xFF\xFF\xFF",
				  gv_row_bytes(spec->rows, 1)) == 0;
}

/* Stores items, which are valid. */
static GvStatus
put_items(GvMirror *mirror, const void *items, int32_t n)
{
	const GvMirrorSpec *spec = &mirror->spec;
	const char *item = items;
	int32_t		i;

	for (i = 0; i < n; i++, item += item_stride(spec))
	{
		char	   *slot = need_slot(mirror, (const uint16_t *) item);

		if (slot == NULL)
			return GV_NO_MEMORY;
		memcpy(slot, item, item_bytes(spec));
		if (spec->rows != GV_ROWS_NONE && is_none(spec, (GvRowItem *) slot))
			((GvRowItem *) slot)->known = 0;
	}
	return GV_OK;
}

/* See gv_mirror_put_refine. */
GvStatus
gv_cpu_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	return gv_refine_items_valid(&mirror->spec, items, n) ?
		put_items(mirror, items, n) : GV_INVALID;
}

/* See gv_mirror_put_rows. */
GvStatus
gv_cpu_put_rows(GvMirror *mirror, const GvRowItem *items, int32_t n)
{
	return gv_row_items_valid(&mirror->spec, items, n) ?
		put_items(mirror, items, n) : GV_INVALID;
}

void
gv_cpu_drop_records(GvMirror *mirror)
{
	int			i;
	int			j;

	for (i = 0; mirror->tables != NULL && i < GV_TABLE_PAGES; i++)
	{
		GvCpuPage  *table = mirror->tables[i];

		for (j = 0; table != NULL && j < GV_TABLE_PAGES; j++)
		{
			mirror->bytes -= (int64_t) (item_stride(&mirror->spec) *
										(size_t) table[j].nslots);
			free(table[j].items);
		}
		mirror->bytes -= table != NULL ? (int64_t) PAGES_BYTES : 0;
		free(table);
	}
	mirror->bytes -= mirror->tables != NULL ? (int64_t) TABLE_BYTES : 0;
	free(mirror->tables);
	mirror->tables = NULL;
}

/* See gv_mirror_drop_rows. */
GvStatus
gv_cpu_drop_rows(GvMirror *mirror)
{
	if (mirror->spec.rows != GV_ROWS_NONE)
		gv_cpu_drop_records(mirror);
	mirror->spec.rows = GV_ROWS_NONE;
	return GV_OK;
}

/* The record or row at an address, or NULL when there is none. */
static const void *
find_item(const GvMirror *mirror, const uint16_t *address)
{
	const void *slot = find_slot(mirror, address);
	bool		there = slot != NULL &&
	(mirror->spec.refine_slots > 0 ?
	 ((const GvRefineItem *) slot)->rowid[2] != 0 :
	 ((const GvRowItem *) slot)->known != 0);

	return there ? slot : NULL;
}

/* Items at addresses [n], with nothing but the address where there is none. */
static GvStatus
get_items(GvMirror *mirror, const uint16_t *addresses, int32_t n, void *items)
{
	const GvMirrorSpec *spec = &mirror->spec;
	char	   *item = items;
	int32_t		i;

	memset(items, 0, item_stride(spec) * (size_t) n);
	for (i = 0; i < n; i++, item += item_stride(spec), addresses += 3)
	{
		const void *held = find_item(mirror, addresses);

		memcpy(item, held != NULL ? held : addresses,
			   held != NULL ? item_bytes(spec) : 3 * sizeof(uint16_t));
	}
	return GV_OK;
}

/* See gv_mirror_get_refine. */
GvStatus
gv_cpu_get_refine(GvMirror *mirror, const uint16_t *addresses, int32_t n,
				  GvRefineItem *items)
{
	return mirror->spec.refine_slots == 0 ? GV_INVALID :
		get_items(mirror, addresses, n, items);
}

/* See gv_mirror_get_rows. */
GvStatus
gv_cpu_get_rows(GvMirror *mirror, const uint16_t *rowids, int32_t n,
				GvRowItem *items)
{
	return mirror->spec.rows == GV_ROWS_NONE ? GV_INVALID :
		get_items(mirror, rowids, n, items);
}

/* The bounds of a search's hits. */
GvStatus
gv_cpu_bound_hits(const GvMirror *mirror, GvSearch *search)
{
	GvStatus	status = GV_OK;
	int32_t		i;

	for (i = 0; status == GV_OK && i < search->nhits; i++)
	{
		const GvRefineItem *item = find_item(mirror, search->hits[i].rowid);
		GvBound    *bound = &search->bounds[i];
		GvRefine	record;

		memset(bound, 0, sizeof(*bound));
		if (item == NULL)
			continue;
		record.min = item->min;
		record.step = item->step;
		record.error = item->error;
		record.codes = item->codes;
		memcpy(bound->rowid, item->rowid, sizeof(bound->rowid));
		bound->known = 1;
		status = gv_refine_bound(mirror->spec.metric, mirror->spec.dims,
								 search->query, &record, 1, &bound->bound);
	}
	return status;
}

/*
 * An upper bound of the sum of |row_i asked_i|, with so much more than the sum
 * in double that its additions may have rounded down.  Overwrites both arrays.
 */
static float
bound_magnitude(float *row, float *asked, int32_t dims)
{
	double		bound;
	float		rounded;
	int32_t		i;

	for (i = 0; i < dims; i++)
	{
		row[i] = fabsf(row[i]);
		asked[i] = fabsf(asked[i]);
	}
	bound = -gv_distance_ip(row, asked, dims) * (1.0 + 1e-9);
	if (!(bound <= (double) FLT_MAX))
		return HUGE_VALF;
	rounded = (float) bound;
	return (double) rounded < bound ? nextafterf(rounded, HUGE_VALF) : rounded;
}

/* The distances of a search's hits. */
GvStatus
gv_cpu_measure_hits(const GvMirror *mirror, GvSearch *search)
{
	const GvMirrorSpec *spec = &mirror->spec;
	size_t		bytes = (size_t) spec->dims * sizeof(float);
	float	   *row = malloc(2 * bytes);
	float	   *asked = row + spec->dims;
	int32_t		i;

	if (row == NULL)
		return GV_NO_MEMORY;
	for (i = 0; i < search->nhits; i++)
	{
		const GvRowItem *item = find_item(mirror, search->hits[i].rowid);
		GvRowDistance *distance = &search->distances[i];

		memset(distance, 0, sizeof(*distance));
		if (item == NULL)
			continue;
		if (spec->rows == GV_ROWS_HALF)
			gv_from_half((const uint16_t *) item->values, spec->dims, row);
		else
			memcpy(row, item->values, bytes);
		distance->known = 1;
		distance->distance = gv_set_distance((GvSetMetric) spec->metric, row,
											 search->asked, spec->dims);
		if (spec->metric != GV_IP)
			continue;
		memcpy(asked, search->asked, bytes);
		distance->magnitude = bound_magnitude(row, asked, spec->dims);
	}
	free(row);
	return GV_OK;
}
