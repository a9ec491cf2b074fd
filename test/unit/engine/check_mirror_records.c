/*
 * check_mirror_records.c
 *		Refine records of mirrors, and the bounds that searches take from them.
 */
#include "mirrors.h"

/* Numbers of hits; a device selects few hits in another way than many. */
#define FEW_HITS		100
#define MANY_HITS		300

/*
 * Checks bounds of given hits, which no search has found, for n searches in
 * one call with up to `most` hits each.
 */
static void
check_given(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			const Records *records, int n, int most)
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
			draw_address(records, hits[i].rowid);
		searches[s] = (GvSearch) {
			.query = index_floats(index->spec.dims, false),.bounded = true,
			.given = true,.nhits = nhits,.hits = hits
		};
	}
	CHECK(unit_search(searcher, mirror, searches, n) == GV_OK, "given");
	CHECK(count_wrong_bounds(index, records, searches, n) == 0, "dims %d",
		  index->spec.dims);
	searches[n / 2].given = false;
	searches[n / 2].probes = searches[n / 2].compare = 1;
	searches[n / 2].capacity = 1;
	CHECK(n == 1 || unit_search(searcher, mirror, searches,
									 n) == GV_INVALID, "some are given");
	searches[n / 2].given = true;
	searches[0].bounded = false;
	INVALID(unit_search(searcher, mirror, searches, n));
	searches[0].bounded = true;
	searches[0].nhits = -1;
	INVALID(unit_search(searcher, mirror, searches, n));
	for (s = 0; s < n; s++)
		unit_free(searches[s].hits);
	free_searches(searches, n);
}

/* Reads all records back, and addresses at which there is no record. */
static void
check_records(GvMirror *mirror, const Records *records)
{
	int32_t		n = records->npages * records->nslots;
	OWN uint16_t *addresses = unit_alloc((size_t) (n + 2) * 6);
	OWN uint16_t *all = record_addresses(records);
	OWN char   *items = unit_alloc((size_t) (n + 2) * records->stride);
	uint16_t	nothing[2][3] = {{0, 0, (uint16_t) (records->nslots + 1)},
	{1, 0, (uint16_t) (records->nslots + 1)}};
	int			nwrong = 0;
	int32_t		i;

	memcpy(addresses, all, (size_t) n * 6);
	memcpy(addresses + 3 * n, nothing, sizeof(nothing));
	OK(gv_mirror_get_refine(mirror, addresses, n + 2, (GvRefineItem *) items));
	for (i = 0; i < n + 2; i++)
	{
		const GvRefineItem *item = (GvRefineItem *)
			(items + records->stride * (size_t) i);

		nwrong += memcmp(item->address, addresses + 3 * i, 6) != 0;
		if (i < n && records->there[i])
			nwrong += memcmp(item, record_at(records, i),
							 sizeof(*item) + (size_t) records->dims) != 0;
		else
			nwrong += item->rowid[2] != 0;
	}
	CHECK(nwrong == 0, "%d records", nwrong);
}

static void
check_invalid_records(GvMirror *mirror, const Records *records)
{
	size_t		stride = records->stride;
	OWN char   *items = unit_alloc(2 * stride);
	GvRefineItem *first = (GvRefineItem *) items;
	GvRefineItem *second = (GvRefineItem *) (items + stride);

	memset(items, 0, 2 * stride);
	first->address[2] = 1;
	second->address[2] = 1;
	CHECK(gv_mirror_put_refine(mirror, first, 2) == GV_INVALID, "twice");
	second->address[2] = 0;
	CHECK(gv_mirror_put_refine(mirror, first, 2) == GV_INVALID, "slot 0");
	second->address[2] = (uint16_t) (records->nslots + 1);
	CHECK(gv_mirror_put_refine(mirror, first, 2) == GV_INVALID, "no slot");
	CHECK(gv_mirror_put_refine(mirror, NULL, 1) == GV_INVALID, "NULL");
	CHECK(gv_mirror_put_refine(mirror, first, -1) == GV_INVALID, "-1");
	CHECK(gv_mirror_put_refine(NULL, first, 1) == GV_INVALID, "no mirror");
	CHECK(gv_mirror_put_refine(mirror, NULL, 0) == GV_OK, "nothing");
}

void
test_mirror_records(GvSearcher *searcher)
{
	static const int32_t shapes[][3] = {
		/* dims, pages, slots */
		{1, 1, 1}, {3, 40, 2}, {16, 7, 20}, {33, 30, 5}, {384, 10, 20},
		{1100, 20, 7}
	};
	int			first = unit_small && unit_placement.nshards > 0;
	int			i;
	int			round;

	/* on several devices at small size: half of the shapes, each metric */
	for (i = first; i < 6; i += 1 + first)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, shapes[i][0], 1, 9, 3,
									   70, false);
		OwnRecords	records = make_records(&index, shapes[i][1], shapes[i][2]);
		int32_t		n = records.npages * records.nslots;
		OwnMirror	mirror = NULL;

		mirror = make_mirror(&index);
		CHECK(gv_mirror_size(&index.spec) > (int64_t) (n * records.stride),
			  "size leaves records out");
		check_invalid_records(mirror, &records);
		for (round = 0; round < 3; round++)
		{
			OK(put_records(mirror, &records));
			check_batch(searcher, mirror, &index, &records, 1, 9, MANY_HITS,
						"records");
			check_given(searcher, mirror, &index, &records, 1 + 9 * round,
						round == 0 ? FEW_HITS : MANY_HITS);
			check_records(mirror, &records);
		}
		/* batches that a device replays as a graph, larger ones, and parts */
		for (round = 0; round < 2 && shapes[i][0] < 100; round++)
			check_batch(searcher, mirror, &index, &records,
						i == 0 ? 40 : i == 2 ? 270 : 70, 9,
						round == 0 ? MANY_HITS : FEW_HITS, "many bounds");
		check_searches(searcher, mirror, &index, "with records");
		CHECK(gv_mirror_bytes(mirror) > (int64_t) (n * records.stride) / 2,
			  "bytes leave records out");
	}
}
