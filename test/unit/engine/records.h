/*
 * records.h
 *		Refine records of a random index, and what must be said of hits.
 */
#ifndef RECORDS_H
#define RECORDS_H

#include "index.h"

/* A table of the refine records that a mirror should hold. */
typedef struct Records
{
	int32_t		dims;
	int32_t		npages;
	int32_t		nslots;			/* a page */
	size_t		stride;
	char	   *items;			/* [npages][nslots] GvRefineItem */
	bool	   *there;			/* [npages][nslots] */
} Records;

static inline GvRefineItem *
record_at(const Records *records, int32_t n)
{
	return (GvRefineItem *) (records->items + records->stride * (size_t) n);
}

/*
 * Some records anew, some of them free slots: as they are to be put, *n of
 * them, the caller's to free.
 */
static inline char *
draw_records(Records *records, int32_t *n)
{
	int32_t		most = records->npages * records->nslots;
	char	   *items = unit_alloc(records->stride * (size_t) most);
	OWN float  *x = unit_alloc(sizeof(float) * (size_t) records->dims);
	int32_t		i;
	int32_t		d;

	*n = 0;

	for (i = 0; i < most; i++)
	{
		GvRefineItem *item = record_at(records, i);

		if (unit_random() % 3 == 0)
			continue;
		for (d = 0; d < records->dims; d++)
			x[d] = unit_float();
		memset(item, 0, records->stride);
		item->address[1] = (uint16_t) (i / records->nslots);
		item->address[2] = (uint16_t) (i % records->nslots + 1);
		item->rowid[0] = (uint16_t) unit_random();
		item->rowid[1] = (uint16_t) unit_random();
		item->rowid[2] = (uint16_t) (unit_random() % 4);	/* 0: free */
		(void) gv_refine_encode(records->dims, x, 1, item->codes, &item->min,
								&item->step, &item->error);
		records->there[i] = item->rowid[2] != 0;
		memcpy(items + records->stride * (size_t) (*n)++, item,
			   records->stride);
	}
	return items;
}

/* Is this what must be said of a hit? */
static inline bool
bound_is_right(const TestIndex *index, const Records *records,
			   const float *query, const GvHit *hit, const GvBound *bound)
{
	int32_t		page = hit->rowid[0] << 16 | hit->rowid[1];
	int32_t		slot = hit->rowid[2];
	GvBound		none = {0};
	const GvRefineItem *item;
	GvRefine	record;
	float		expected;

	if (page >= records->npages || slot < 1 || slot > records->nslots ||
		!records->there[page * records->nslots + slot - 1])
		return memcmp(bound, &none, sizeof(none)) == 0;
	item = record_at(records, page * records->nslots + slot - 1);
	record = (GvRefine) {item->min, item->step, item->error, item->codes};
	(void) gv_refine_bound(index->spec.metric, index->spec.dims, query,
						   &record, 1, &expected);
	return bound->known == 1 && bound->bound == expected &&
		memcmp(bound->rowid, item->rowid, sizeof(item->rowid)) == 0;
}

/* How many bounds of those of n searches that are bounded are wrong? */
static inline int
count_wrong_bounds(const TestIndex *index, const Records *records,
				   const GvSearch *searches, int n)
{
	int			nwrong = 0;
	int			s;
	int32_t		i;

	for (s = 0; s < n; s++)
		for (i = 0; searches[s].bounded && i < searches[s].nhits; i++)
			nwrong += !bound_is_right(index, records, searches[s].query,
									  &searches[s].hits[i],
									  &searches[s].bounds[i]);
	return nwrong;
}

/* An address that leads to a record, to a free slot or to nothing. */
static inline void
draw_address(const Records *records, uint16_t *address)
{
	address[0] = unit_random() % 50 == 0;
	address[1] = (uint16_t) (unit_random() %
							 (uint64_t) (records->npages + 1));
	address[2] = (uint16_t) (unit_random() %
							 (uint64_t) (records->nslots + 2));
}

/* Postings with such addresses. */
static inline void
make_addresses(TestIndex *index, const Records *records)
{
	int32_t		list;
	int32_t		i;

	for (list = 0; list < index->spec.nlists; list++)
		for (i = 0; i < index->lists[list].nblocks * GV_BLOCK; i++)
			draw_address(records, index->lists[list].rowids + i * 3);
}

/* A table without records yet, for an index that gets addresses to match. */
static inline Records
make_records(TestIndex *index, int32_t npages, int32_t nslots)
{
	Records		records = {
		.dims = index->spec.dims,.npages = npages,.nslots = nslots
	};
	size_t		n = (size_t) npages * nslots;

	records.stride = gv_refine_stride(records.dims);
	records.items = unit_alloc(records.stride * n);
	records.there = calloc(n, sizeof(bool));
	index->spec.refine_slots = nslots;
	index->spec.refine_records = (int64_t) n;
	make_addresses(index, &records);
	return records;
}

/* The addresses [npages][nslots][3] of all of them, the caller's to free. */
static inline uint16_t *
record_addresses(const Records *records)
{
	int32_t		n = records->npages * records->nslots;
	uint16_t   *addresses = unit_alloc((size_t) n * 6);
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		addresses[3 * i] = 0;
		addresses[3 * i + 1] = (uint16_t) (i / records->nslots);
		addresses[3 * i + 2] = (uint16_t) (i % records->nslots + 1);
	}
	return addresses;
}

static inline void
free_records(Records *records)
{
	free(records->there);
	if (records->items != NULL)
		unit_free(records->items);
}

#define OwnRecords	UNIT_OWN(free_records) Records

#endif							/* RECORDS_H */
