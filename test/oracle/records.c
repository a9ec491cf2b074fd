/*
 * records.c
 *		Refine records of a mirror, by address, and the bounds they give.
 *
 * Addresses are those of the index: page, in two words, and slot.  So records
 * lie by page, and a table of tables, one for each first word, leads to them:
 * no address, however wrong, takes much memory.
 */
#include "test/oracle/gv_cpu_mirror.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES		((size_t) GV_TABLE_PAGES * sizeof(char *))

static size_t
page_bytes(const GvMirrorSpec *spec)
{
	return (size_t) spec->refine_slots * gv_refine_stride(spec->dims);
}

/* About what the records of a mirror will take. */
int64_t
gv_cpu_records_size(const GvMirrorSpec *spec)
{
	int64_t		npages;

	if (spec->refine_slots == 0)
		return 0;
	npages = spec->refine_records / spec->refine_slots + 1;
	return npages * (int64_t) page_bytes(spec) +
		(npages / GV_TABLE_PAGES + 2) * (int64_t) TABLE_BYTES;
}

/* The table of tables; false: no memory. */
bool
gv_cpu_records_create(GvMirror *mirror)
{
	if (mirror->spec.refine_slots == 0)
		return true;
	mirror->tables = calloc(1, TABLE_BYTES);
	mirror->bytes += (int64_t) TABLE_BYTES;
	return mirror->tables != NULL;
}

/* A page's slots, or NULL when nothing has come for it. */
static char *
find_page(const GvMirror *mirror, const uint16_t *address)
{
	char	  **table = mirror->tables[address[0]];

	return table != NULL ? table[address[1]] : NULL;
}

/* Memory for a mirror, all zero, which is what free slots are. */
static void *
take(GvMirror *mirror, size_t bytes)
{
	void	   *memory = calloc(1, bytes);

	if (memory != NULL)
		mirror->bytes += (int64_t) bytes;
	return memory;
}

/* A page's slots, made if there are none; NULL: no memory. */
static char *
need_page(GvMirror *mirror, const uint16_t *address)
{
	char	 ***table = &mirror->tables[address[0]];

	if (*table == NULL)
		*table = take(mirror, TABLE_BYTES);
	if (*table == NULL)
		return NULL;
	if ((*table)[address[1]] == NULL)
		(*table)[address[1]] = take(mirror, page_bytes(&mirror->spec));
	return (*table)[address[1]];
}

/* See gv_mirror_put_refine. */
GvStatus
gv_cpu_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	const GvMirrorSpec *spec = &mirror->spec;
	size_t		stride = gv_refine_stride(spec->dims);
	int32_t		i;

	if (!gv_refine_items_valid(spec, items, n))
		return GV_INVALID;
	for (i = 0; i < n; i++)
	{
		const GvRefineItem *item = gv_refine_item(items, spec->dims, i);
		char	   *page = need_page(mirror, item->address);

		if (page == NULL)
			return GV_NO_MEMORY;
		memcpy(page + stride * (size_t) (item->address[2] - 1), item,
			   sizeof(*item) + (size_t) spec->dims);
	}
	return GV_OK;
}

void
gv_cpu_drop_records(GvMirror *mirror)
{
	int			i;
	int			j;

	for (i = 0; mirror->tables != NULL && i < GV_TABLE_PAGES; i++)
	{
		char	  **table = mirror->tables[i];

		for (j = 0; table != NULL && j < GV_TABLE_PAGES; j++)
			free(table[j]);
		free(table);
	}
	free(mirror->tables);
}

/* The record at an address, or NULL when there is none. */
static const GvRefineItem *
find_item(const GvMirror *mirror, const uint16_t *address)
{
	const char *page = find_page(mirror, address);
	const GvRefineItem *item;

	if (page == NULL || address[2] < 1 ||
		address[2] > mirror->spec.refine_slots)
		return NULL;
	item = (const GvRefineItem *)
		(page + gv_refine_stride(mirror->spec.dims) *
		 (size_t) (address[2] - 1));
	return item->rowid[2] != 0 ? item : NULL;
}

/* See gv_mirror_get_refine. */
GvStatus
gv_cpu_get_refine(GvMirror *mirror, const uint16_t *addresses, int32_t n,
				  GvRefineItem *items)
{
	const GvMirrorSpec *spec = &mirror->spec;
	size_t		stride = gv_refine_stride(spec->dims);
	int32_t		i;

	if (spec->refine_slots == 0)
		return GV_INVALID;
	memset(items, 0, stride * (size_t) n);
	for (i = 0; i < n; i++)
	{
		const uint16_t *address = addresses + 3 * (size_t) i;
		const GvRefineItem *held = find_item(mirror, address);
		char	   *item = (char *) items + stride * (size_t) i;

		if (held != NULL)
			memcpy(item, held, sizeof(*held) + (size_t) spec->dims);
		else
			memcpy(item, address, 3 * sizeof(uint16_t));
	}
	return GV_OK;
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
