/*
 * check_mirror_rows.c
 *		Rows of the table in mirrors: what is read back, and the distances that
 *		searches take from them, for all metrics and both forms.
 */
#include "mirrors.h"

#define NROUNDS		3			/* after each, pages have more slots */

/* Checks that all rows are read as they were put, and no others. */
static void
check_rows(GvMirror *mirror, const Rows *rows)
{
	int32_t		n = rows->npages * rows->nslots;
	OWN uint16_t *ids = unit_alloc((size_t) (n + 3) * 6);
	OWN char   *items = unit_alloc((size_t) (n + 3) * rows->stride);
	uint16_t	nothing[3][3] = {{0, 0, 0},
	{0, 0, (uint16_t) (rows->nslots + 1)}, {1, 0, 1}};
	int			nwrong = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
		memcpy(ids + 3 * i, row_at(rows, i)->rowid, 6);
	memcpy(ids + 3 * n, nothing, sizeof(nothing));
	OK(gv_mirror_get_rows(mirror, ids, n + 3, (GvRowItem *) items));
	for (i = 0; i < n + 3; i++)
	{
		const char *item = items + rows->stride * (size_t) i;
		const GvRowItem *right = row_of(rows, ids + 3 * i);
		OWN char   *none = unit_alloc(rows->stride);

		memset(none, 0, rows->stride);
		memcpy(none, ids + 3 * i, 6);
		nwrong += memcmp(item, right != NULL ? (const char *) right : none,
						 sizeof(GvRowItem) +
						 gv_row_bytes(rows->spec->rows, rows->spec->dims)) !=
			0;
	}
	CHECK(nwrong == 0, "%d rows, form %d dims %d", nwrong, rows->spec->rows,
		  rows->spec->dims);
}

static void
check_invalid_rows(GvMirror *mirror, const Rows *rows)
{
	OWN char   *two = unit_alloc(2 * rows->stride);
	GvRowItem  *first = (GvRowItem *) two;
	GvRowItem  *second = (GvRowItem *) (two + rows->stride);

	memset(two, 0, 2 * rows->stride);
	first->rowid[2] = 1;
	second->rowid[2] = 1;
	INVALID(gv_mirror_put_rows(mirror, first, 2));
	second->rowid[2] = 0;
	second->rowid[1] = 1;
	INVALID(gv_mirror_put_rows(mirror, first, 2));
	INVALID(gv_mirror_put_rows(mirror, second, 1));
	INVALID(gv_mirror_put_rows(mirror, NULL, 1));
	INVALID(gv_mirror_put_rows(NULL, first, 1));
	INVALID(gv_mirror_put_rows(mirror, first, -1));
	INVALID(gv_mirror_get_rows(mirror, NULL, 1, first));
	INVALID(gv_mirror_get_rows(mirror, first->rowid, 1, NULL));
	INVALID(gv_mirror_drop_rows(NULL));
	OK(gv_mirror_put_rows(mirror, first, 0));
}

/* Checks distances of given hits for n searches in one call. */
static void
check_given(GvSearcher *searcher, GvMirror *mirror, const Rows *rows, int n,
			int most)
{
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	int32_t		i;
	int			s;

	for (s = 0; s < n; s++)
	{
		int32_t		nhits = (int32_t) (unit_random() % (most + 1));
		GvHit	   *hits = unit_alloc(sizeof(GvHit) * (nhits + 1));

		memset(hits, 0, sizeof(GvHit) * (nhits + 1));
		for (i = 0; i < nhits; i++)
			draw_rowid(rows, hits[i].rowid);
		searches[s] = (GvSearch) {
			.query = unit_floats(rows->spec->dims, 1.0f),
			.asked = draw_asked(rows),.steps = GV_STEPS_LAST,.nhits = nhits,
			.hits = hits
		};
	}
	OK(unit_search(searcher, mirror, searches, n));
	i = count_wrong_distances(rows, searches, n);
	CHECK(i == 0, "given: %d distances, metric %d form %d dims %d", i,
		  rows->spec->metric, rows->spec->rows, rows->spec->dims);
	for (s = 0; s < n; s++)
	{
		unit_free((void *) searches[s].query);
		unit_free((void *) searches[s].asked);
		unit_free(searches[s].hits);
	}
}

/* Searches without distances, and what is refused. */
static void
check_unasked(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			  const Rows *rows)
{
	GvSearch	two[2] = {new_search(index, 2, 9, 5),
	new_search(index, 1, 9, 40)};

	check_call(searcher, mirror, index, two, 2, "not asked");
	CHECK(two[0].distances == NULL && two[1].distances == NULL, "distances");
	two[1].asked = draw_asked(rows);
	INVALID(unit_search(searcher, mirror, two, 2));
	unit_free((void *) two[1].asked);
	free_searches(two, 2);
}

/* The rows are dropped: nothing is left of them, and nothing comes again. */
static void
check_dropped(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			  Rows *rows)
{
	int64_t		bytes = gv_mirror_bytes(mirror);
	GvSearch	search = new_search(index, 2, 9, 5);
	OWN char   *item = unit_alloc(rows->stride);

	OK(gv_mirror_drop_rows(mirror));
	CHECK(gv_mirror_bytes(mirror) < bytes, "dropped rows keep their memory");
	memcpy(item, row_at(rows, 0), rows->stride);
	INVALID(gv_mirror_put_rows(mirror, (GvRowItem *) item, 1));
	INVALID(gv_mirror_get_rows(mirror, row_at(rows, 0)->rowid, 1,
							   (GvRowItem *) item));
	check_call(searcher, mirror, index, &search, 1, "without rows");
	search.asked = search.query;
	INVALID(unit_search(searcher, mirror, &search, 1));
	free_searches(&search, 1);
	bytes = gv_mirror_bytes(mirror);
	OK(gv_mirror_drop_rows(mirror));
	CHECK(gv_mirror_bytes(mirror) == bytes, "dropped twice");
}

/*
 * Rows that come in rounds, so that pages grow, and searches of n and of
 * `several` queries after each.
 */
static void
check_table(GvSearcher *searcher, TestIndex *index, GvRowForm form,
			int32_t npages, int32_t nslots, int n, int several,
			int32_t capacity)
{
	OwnRows		rows = make_rows(index, form, npages, nslots);
	OwnMirror	mirror = make_mirror(index);
	int			round;

	check_asked(searcher, mirror, index, &rows, n, capacity, "no rows yet");
	check_invalid_rows(mirror, &rows);
	for (round = 1; round <= NROUNDS; round++)
	{
		int64_t		bytes = gv_mirror_bytes(mirror);

		OK(put_some_rows(mirror, &rows, nslots * round / NROUNDS));
		CHECK(gv_mirror_bytes(mirror) >= bytes, "bytes");
		check_asked(searcher, mirror, index, &rows, n, capacity, "rows");
		check_given(searcher, mirror, &rows, 1 + 4 * round, 60);
	}
	check_rows(mirror, &rows);
	check_unasked(searcher, mirror, index, &rows);
	if (several > 0)
		check_asked(searcher, mirror, index, &rows, several, capacity,
					"several");
	check_dropped(searcher, mirror, index, &rows);
}

void
test_rows(GvSearcher *searcher)
{
	OwnIndex	index = make_index(GV_L2 + unit_random() % 3, 9, 4, 9, 3, 70,
								   false);

	give_keys(&index, 1);
	check_table(searcher, &index, GV_ROWS_FLOAT + unit_random() % 2, 70, 5,
				3, 40, 90);
}

/* Metrics, forms and dimensions; one search, and several. */
static void
test_forms(GvSearcher *searcher)
{
	static const int32_t dims[] = {1, 3, 8, 96, 384, 2000};
	int			i;

	for (i = 0; i < 36; i++)
	{
		int32_t		d = dims[i / 6];
		OwnIndex	index = make_index(GV_L2 + i % 3, d, 1, 9, 3, 70, false);

		if (i % 2 > 0)
			give_keys(&index, 2);
		check_table(searcher, &index, GV_ROWS_FLOAT + i / 3 % 2, 5,
					d > 100 ? 6 : 40, 1, d > 100 ? 0 : 5,
					d > 100 ? 20 : 200);
	}
}

/* Batches of all sizes, with conditions and without. */
static void
test_batches(GvSearcher *searcher)
{
	static const int sizes[] = {2, 64, 65, 300};
	int			i;

	for (i = 0; i < 8; i++)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, 8, 4, 12, 3, 30, false);

		give_keys(&index, i / 4);
		check_table(searcher, &index, GV_ROWS_FLOAT + i % 2, 20, 9, 5,
					sizes[i % 4], 30);
	}
}

/*
 * More hits than are selected without a sort; and many queries whose lists a
 * device scans together.
 */
static void
test_ways(GvSearcher *searcher)
{
	OwnIndex	index = make_index(GV_IP, 3, 2, 9, 3, 300, false);
	OwnIndex	few = make_index(GV_COSINE, 8, 4, 12, 3, 30, false);

	check_table(searcher, &index, GV_ROWS_HALF, 9, 20, 1, 0, 3000);
#ifdef UNIT_CARD
	gv_batch_by_list = 70;
#endif
	check_table(searcher, &few, GV_ROWS_FLOAT, 9, 20, 1, 150, 20);
#ifdef UNIT_CARD
	gv_batch_by_list = -1;
#endif
}

void
test_mirror_rows(GvSearcher *searcher)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 4,.m = 2,.nlists = 1,
	.nparents = 1};
	GvMirror   *made;
	int64_t		bytes = gv_mirror_size(&spec);

	spec.rows = GV_ROWS_HALF + 1;
	INVALID(gv_mirror_create(&spec, &made));
	spec.rows = -1;
	INVALID(gv_mirror_create(&spec, &made));
	spec.rows = GV_ROWS_FLOAT;
	spec.refine_slots = 1;
	INVALID(gv_mirror_create(&spec, &made));
	spec.refine_slots = 0;
	spec.refine_records = 100000000;
	CHECK(gv_mirror_size(&spec) > bytes + 16 * 100000000LL &&
		  gv_mirror_size(&spec) < bytes + 25 * 100000000LL,
		  "size of rows");
	test_forms(searcher);
	test_batches(searcher);
	test_ways(searcher);
}
