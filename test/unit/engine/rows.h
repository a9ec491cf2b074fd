/*
 * rows.h
 *		Rows of the table of a random index, and what must be said of hits.
 */
#ifndef ROWS_H
#define ROWS_H

#include <float.h>

#include "engine/gv_set.h"
#include "index.h"

/* A table of the rows that a mirror should have. */
typedef struct Rows
{
	const GvMirrorSpec *spec;
	int32_t		npages;
	int32_t		nslots;			/* the most that a page may have */
	size_t		stride;
	char	   *items;			/* [npages][nslots] GvRowItem */
} Rows;

static inline GvRowItem *
row_at(const Rows *rows, int32_t n)
{
	return (GvRowItem *) (rows->items + rows->stride * (size_t) n);
}

/* The row with an id, or NULL when there is none. */
static inline const GvRowItem *
row_of(const Rows *rows, const uint16_t *rowid)
{
	int32_t		page = rowid[0] << 16 | rowid[1];
	const GvRowItem *item;

	if (page >= rows->npages || rowid[2] < 1 || rowid[2] > rows->nslots)
		return NULL;
	item = row_at(rows, page * rows->nslots + rowid[2] - 1);
	return item->known ? item : NULL;
}

/* Values of all kinds: most ordinary, and whole rows zero, huge or tiny. */
static inline void
draw_values(const Rows *rows, GvRowItem *item)
{
	static const float factors[] = {0.0f, 3e38f, 1e-43f, 1e4f};
	uint64_t	kind = unit_random() % 16;
	float		factor = kind < 4 ? factors[kind] : 1.0f;
	int32_t		d;

	for (d = 0; d < rows->spec->dims; d++)
	{
		float		x = unit_float() * factor;

		if (rows->spec->rows == GV_ROWS_HALF)
			gv_to_half(&x, 1, (uint16_t *) item->values + d);
		else
			((float *) item->values)[d] = x;
	}
}

/*
 * Draws some rows anew, in slots up to `most` of their pages.  Some are
 * forgotten, and some have a first value that no row has, which is the same.
 * Returns them as they are to be put, *n of them, the caller's to free.
 */
static inline char *
draw_rows(Rows *rows, int32_t most, int32_t *n)
{
	int32_t		nall = rows->npages * rows->nslots;
	char	   *items = unit_alloc(rows->stride * (size_t) nall);
	int32_t		i;

	*n = 0;
	for (i = 0; i < nall; i++)
	{
		GvRowItem  *item = row_at(rows, i);
		uint64_t	kind = unit_random() % 9;

		if (kind < 3 || i % rows->nslots >= most)
			continue;
		draw_values(rows, item);
		item->known = kind != 3;
		if (kind == 4)
			memset(item->values, 0xFF, gv_row_bytes(rows->spec->rows, 1));
		memcpy(items + rows->stride * (size_t) (*n)++, item, rows->stride);
		item->known = kind > 4;
	}
	return items;
}

/* Puts such rows in place of older ones. */
static inline GvStatus
put_some_rows(GvMirror *mirror, Rows *rows, int32_t most)
{
	int32_t		n;
	OWN char   *items = draw_rows(rows, most, &n);

	return gv_mirror_put_rows(mirror, (GvRowItem *) items, n);
}

/* A row id that leads to a row or to nothing. */
static inline void
draw_rowid(const Rows *rows, uint16_t *rowid)
{
	rowid[0] = unit_random() % 50 == 0;
	rowid[1] = (uint16_t) (unit_random() % (uint64_t) (rows->npages + 1));
	rowid[2] = (uint16_t) (unit_random() % (uint64_t) (rows->nslots + 2));
}

/* A table without rows yet, for an index whose postings get ids to match. */
static inline Rows
make_rows(TestIndex *index, GvRowForm form, int32_t npages, int32_t nslots)
{
	Rows		rows = {.spec = &index->spec,.npages = npages,
	.nslots = nslots};
	int32_t		list;
	int32_t		i;

	index->spec.rows = form;
	index->spec.refine_records = (int64_t) npages * nslots;
	rows.stride = gv_row_stride(form, index->spec.dims);
	rows.items = unit_alloc(rows.stride * (size_t) (npages * nslots));
	for (i = 0; i < npages * nslots; i++)
	{
		memset(row_at(&rows, i), 0, rows.stride);
		row_at(&rows, i)->rowid[1] = (uint16_t) (i / nslots);
		row_at(&rows, i)->rowid[2] = (uint16_t) (i % nslots + 1);
	}
	for (list = 0; list < index->spec.nlists; list++)
		for (i = 0; i < index->lists[list].nblocks * GV_BLOCK; i++)
			draw_rowid(&rows, index->lists[list].rowids + i * 3);
	return rows;
}

static inline void
free_rows(Rows *rows)
{
	unit_free(rows->items);
}

#define OwnRows		UNIT_OWN(free_rows) Rows

/*
 * A query as it was asked, of which nothing is known to the mirror but this.
 * At times it is a row.
 */
static inline const float *
draw_asked(const Rows *rows)
{
	int32_t		dims = rows->spec->dims;
	float	   *asked = unit_floats(dims, 1.0f);
	const GvRowItem *item =
	row_at(rows, (int32_t) (unit_random() %
							(uint64_t) (rows->npages * rows->nslots)));

	if (unit_random() % 4 != 0)
		return asked;
	if (rows->spec->rows == GV_ROWS_HALF)
		gv_from_half((const uint16_t *) item->values, dims, asked);
	else
		memcpy(asked, item->values, sizeof(float) * (size_t) dims);
	return asked;
}

/* Is this what must be said of a hit? */
static inline bool
distance_is_right(const Rows *rows, const float *asked, const GvHit *hit,
				  const GvRowDistance *distance)
{
	int32_t		dims = rows->spec->dims;
	const GvRowItem *item = row_of(rows, hit->rowid);
	GvRowDistance none = {0};
	OWN float  *row = unit_alloc(sizeof(float) * (size_t) dims);
	long double magnitude = 0.0;
	double		expected;
	int32_t		d;

	if (item == NULL)
		return memcmp(distance, &none, sizeof(none)) == 0;
	if (rows->spec->rows == GV_ROWS_HALF)
		gv_from_half((const uint16_t *) item->values, dims, row);
	else
		memcpy(row, item->values, sizeof(float) * (size_t) dims);
	expected = gv_set_distance((GvSetMetric) rows->spec->metric, row, asked,
							   dims);
	for (d = 0; d < dims && rows->spec->metric == GV_IP; d++)
		magnitude += fabsl((long double) row[d] * asked[d]);
	return distance->known == 1 &&
		(isnan(expected) ? isnan(distance->distance) :
		 memcmp(&distance->distance, &expected, sizeof(expected)) == 0) &&
		!(distance->magnitude < magnitude) && !isnan(distance->magnitude) &&
		(distance->magnitude <= magnitude * (1.0 + 1e-6) + 1e-44 ||
		 !(magnitude * (1.0 + 1e-6) <= FLT_MAX));
}

/* How many distances of n searches are wrong? */
static inline int
count_wrong_distances(const Rows *rows, const GvSearch *searches, int n)
{
	int			nwrong = 0;
	int			s;
	int32_t		i;

	for (s = 0; s < n; s++)
	{
		nwrong += (searches[s].distances != NULL) !=
			(searches[s].asked != NULL);
		for (i = 0; searches[s].distances != NULL && i < searches[s].nhits;
			 i++)
			nwrong += !distance_is_right(rows, searches[s].asked,
										 &searches[s].hits[i],
										 &searches[s].distances[i]);
	}
	return nwrong;
}

#endif							/* ROWS_H */
