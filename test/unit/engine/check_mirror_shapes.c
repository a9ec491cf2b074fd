/*
 * check_mirror_shapes.c
 *		Mirrors of indexes of all shapes: searches, what is read back, refine
 *		records and the bounds that searches take from them, and the sample
 *		that searches count.
 */
#include "mirrors.h"

/* Numbers of hits; a device selects few hits in another way than many. */
#define FEW_HITS		100
#define MANY_HITS		300

typedef struct Shape
{
	int32_t		dims;
	int32_t		m;
	int32_t		nlists;
	int32_t		nparents;
	int32_t		mean;			/* see make_index */
	bool		ties;
	int			nkeys;
	int32_t		npages;			/* of refine records, or 0 */
	int32_t		nslots;			/* a page */
	bool		ranks;			/* several blocks are in the sample */
} Shape;

#define NPLAIN	15				/* without records and ranks */

static const Shape shapes[] = {
	{1, 1, 1, 1, 40, 0, 0, 0, 0, 0},
	{1, 1, 7, 3, 20, 1, 2, 0, 0, 0},
	{2, 1, 30, 30, 33, 0, 0, 0, 0, 0},
	{3, 2, 5, 2, 10, 1, 4, 0, 0, 0},
	{5, 3, 64, 1, 70, 1, 0, 0, 0, 0},
	{17, 17, 300, 17, 40, 0, 6, 0, 0, 0},
	{50, 13, 64, 8, -3000, 0, 0, 0, 0, 0},
	{8, 4, 40, 40, 0, 1, 1, 0, 0, 0},
	{7, 5, 50, 7, 64, 1, 0, 0, 0, 0},
	{384, 96, 100, 10, 50, 0, 3, 0, 0, 0},
	{768, 111, 20, 4, 90, 0, 0, 0, 0, 0},
	{16, 8, 5000, 70, 3, 0, 5, 0, 0, 0},
	{16000, 9, 3, 2, 20, 0, 0, 0, 0, 0},
	{1, 1, 3, 2, -30000, 1, 7, 0, 0, 0},
	{1, 1, 9000, 9, 1, 1, 0, 0, 0, 0},
	{1, 1, 9, 3, 70, 0, 0, 1, 1, 0},
	{3, 1, 9, 3, 70, 0, 0, 40, 2, 0},
	{16, 1, 9, 3, 70, 0, 0, 7, 20, 0},
	{33, 1, 9, 3, 70, 0, 0, 30, 5, 0},
	{384, 1, 9, 3, 70, 0, 0, 10, 20, 0},
	{1100, 1, 9, 3, 70, 0, 0, 20, 7, 0},
	{3, 2, 40, 3, 160, 1, 1, 0, 0, 1},
	{5, 3, 40, 3, 160, 0, 2, 3, 4, 1},
	{40, 34, 30, 3, 250, 0, 3, 0, 0, 1},
	{2, 1, 90, 3, 60, 1, 1, 3, 3, 1},
	{4, 2, 300, 3, 40, 0, 2, 0, 0, 1}
};

/* Checks that the mirror has all blocks as they were put, and no others. */
static void
check_blocks(GvMirror *mirror, const TestIndex *index)
{
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&index->spec.keys);
	GvBlock		view;
	int			nwrong = 0;
	int32_t		list;
	int32_t		b;

	for (list = 0; list < index->spec.nlists; list++)
	{
		const TestList *held = &index->lists[list];

		for (b = 0; b < held->nblocks; b++)
		{
			if (gv_mirror_get_block(mirror, list, b, &view) != GV_OK ||
				view.live != held->live[b] ||
				memcmp(view.t, held->t + b * GV_BLOCK,
					   sizeof(float) * GV_BLOCK) != 0 ||
				memcmp(view.rowids, held->rowids + b * GV_BLOCK * 3,
					   sizeof(uint16_t) * GV_BLOCK * 3) != 0 ||
				memcmp(view.codes, held->codes + b * code_bytes,
					   code_bytes) != 0 ||
				(view.keys != NULL) != (keys_bytes > 0) ||
				(keys_bytes > 0 &&
				 memcmp(view.keys, held->keys + b * keys_bytes,
						keys_bytes) != 0))
				nwrong++;
		}
		INVALID(gv_mirror_get_block(mirror, list, b, &view));
	}
	CHECK(nwrong == 0, "%d blocks", nwrong);
}

/* Checks that arrays, and parts of them, are read as they were put. */
static void
check_arrays(GvMirror *mirror, const TestIndex *index)
{
	int			array;

	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		n;
		const char *values = index_array(index, (GvArray) array, &n);
		OWN char   *got = unit_alloc(n * 4);
		int64_t		first = (int64_t) (unit_random() % (uint64_t) n);

		CHECK(gv_mirror_get_array(mirror, (GvArray) array, 0, n, got) ==
			  GV_OK && memcmp(got, values, n * 4) == 0, "array %d", array);
		CHECK(gv_mirror_get_array(mirror, (GvArray) array, first, n - first,
								  got) == GV_OK &&
			  memcmp(got, values + first * 4, (n - first) * 4) == 0,
			  "array %d from %lld", array, (long long) first);
		CHECK(gv_mirror_get_array(mirror, (GvArray) array, first,
								  n - first + 1, got) == GV_INVALID,
			  "beyond array %d", array);
	}
}

void
check_contents(GvMirror *mirror, const TestIndex *index)
{
	check_blocks(mirror, index);
	check_arrays(mirror, index);
}

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
			.steps = GV_STEPS_LAST,.nhits = nhits,.hits = hits
		};
	}
	CHECK(unit_search(searcher, mirror, searches, n) == GV_OK, "given");
	CHECK(count_wrong_bounds(index, records, searches, n) == 0, "dims %d",
		  index->spec.dims);
	searches[n / 2].steps = GV_STEPS_ALL;
	searches[n / 2].probes = searches[n / 2].compare = 1;
	searches[n / 2].by_number = false;
	searches[n / 2].capacity = 1;
	CHECK(n == 1 || unit_search(searcher, mirror, searches,
									 n) == GV_INVALID, "some are given");
	searches[n / 2].steps = GV_STEPS_LAST;
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

/* Records are put again and again, and searches have their bounds. */
static void
check_recorded(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			   Records *records, int several)
{
	int64_t		bytes = (int64_t) (records->stride * records->npages *
								   records->nslots);
	int32_t		nlists = index->spec.nlists;
	int			round;

	CHECK(gv_mirror_size(&index->spec) > bytes, "size leaves records out");
	check_invalid_records(mirror, records);
	for (round = 0; round < 3; round++)
	{
		OK(put_records(mirror, records));
		check_batch(searcher, mirror, index, records, 1, nlists, MANY_HITS,
					"records");
		check_given(searcher, mirror, index, records, 1 + 9 * round,
					round == 0 ? FEW_HITS : MANY_HITS);
		check_records(mirror, records);
	}
	/* batches that a device replays as a graph, larger ones, and parts */
	for (round = 0; round < 2 && index->spec.dims < 100; round++)
		check_batch(searcher, mirror, index, records, several, nlists,
					round == 0 ? MANY_HITS : FEW_HITS, "many bounds");
	CHECK(gv_mirror_bytes(mirror) > bytes / 2, "bytes leave records out");
}

/* Returns how many blocks of all lists are in the sample. */
static int
count_sampled(const TestIndex *index)
{
	int			n = 0;
	int32_t		list;
	int32_t		b;

	for (list = 0; list < index->spec.nlists; list++)
		for (b = 0; b < index->lists[list].nblocks; b++)
			n += gv_sampled((uint32_t) list, (uint32_t) b);
	return n;
}

/*
 * Checks n searches with ranks in one call.  Repeats the call, so that a
 * device replays the steps that it recorded in the first call.  Then repeats
 * it with other ranks, of which some have limits, and without ranks.
 */
static void
check_ranks(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			int n, int32_t probes, int32_t capacity)
{
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	int64_t		nearer = 0;
	int			round;
	int			i;

	for (i = 0; i < n; i++)
	{
		searches[i] = new_search(index, probes, index->spec.nlists, capacity);
		searches[i].bounded = index->spec.refine_slots > 0 &&
			unit_random() % 2 > 0;
	}
	for (round = 0; round < 4; round++)
	{
		check_call(searcher, mirror, index, searches, n, "sample");
		for (i = 0; i < n; i++)
		{
			nearer += searches[i].nearer;
			if (searches[i].condition == NULL || round == 0)
				continue;
			/* some of the next searches get a limit in place of the rank */
			if (searches[i].nhits > 0)
				searches[i].limit =
					searches[i].hits[searches[i].nhits / 2].score;
			searches[i].rank = round == 2 ? 0 :
				1 + (int32_t) (unit_random() % capacity);
			searches[i].limited = searches[i].rank > 0 &&
				unit_random() % 3 == 0;
		}
	}
	CHECK(nearer > 0 || n < 40, "%d searches, and nothing was near", n);
	free_searches(searches, n);
}

/* Marks postings dead and empties lists; the sample has the same blocks. */
static void
thin_out(GvMirror *mirror, TestIndex *index)
{
	int32_t		list;
	int32_t		b;

	for (list = 0; list < index->spec.nlists; list++)
	{
		TestList   *held = &index->lists[list];
		GvListChunk chunk;

		if (unit_random() % 8 == 0)
			resize_list(index, held, 0, 0);
		for (b = 0; b < held->nblocks; b++)
			held->live[b] &= unit_random() % 4 == 0 ? 0 :
				(uint32_t) unit_random();
		chunk = index_chunk(index, list, 0, held->nblocks,
							held->nblocks > 0);
		CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "thinned out");
	}
}

/* Batches of every size, of which the largest are left out if `few`. */
static void
check_sampled(GvSearcher *searcher, GvMirror *mirror, TestIndex *index,
			  bool few)
{
	int32_t		nlists = index->spec.nlists;

	CHECK(count_sampled(index) > 1, "no sample of %d lists", nlists);
	check_ranks(searcher, mirror, index, 1, nlists, 100);
	check_ranks(searcher, mirror, index, 5, nlists / 2, 300);
	check_ranks(searcher, mirror, index, 40, 9, 20);
	if (!few)
	{
		check_ranks(searcher, mirror, index, 150, 5, 7);
		check_ranks(searcher, mirror, index, 2, nlists, 3000);
	}
	thin_out(mirror, index);
	check_ranks(searcher, mirror, index, 10, nlists, 50);
}

void
test_shapes(GvSearcher *searcher)
{
	bool		spread = unit_placement.nshards > 0;
	int			n = (int) (sizeof(shapes) / sizeof(shapes[0]));
	int			i;

	for (i = 0; i < n; i++)
	{
		const Shape *s = &shapes[i];
		/* emulated threads are about a million times slower than a device's */
		int32_t		nlists = unit_small && i < NPLAIN && s->nlists > 100 ?
			100 : s->nlists;
		int32_t		mean = unit_small && s->mean < 0 ? s->mean / 5 : s->mean;
		OwnIndex	index = make_index(GV_L2 + i % 3, s->dims, s->m, nlists,
									   s->nparents, mean, s->ties);
		OwnRecords	records = {0};
		OwnMirror	mirror = NULL;
		int64_t		size;
		int64_t		bytes;
		char		what[40];

		/* on several devices some only, and at small size few */
		if (spread && (i < NPLAIN ? unit_small || unit_placement.nshards == 1 :
					   unit_small && i % 2 > 0))
			continue;
		if (s->nkeys > 0)
			give_keys(&index, s->nkeys);
		if (s->npages > 0)
			records = make_records(&index, s->npages, s->nslots);
		mirror = make_mirror(&index);
		size = gv_mirror_size(&index.spec);
		bytes = gv_mirror_bytes(mirror);
		CHECK(bytes > 0 && (UNIT_FLAT || spread || s->npages > 0 ||
							(size > bytes / 2 && size < bytes * 2)),
			  "shape %d: size %lld, bytes %lld", i, (long long) size,
			  (long long) bytes);
		snprintf(what, sizeof(what), "shape %d", i);
		check_searches(searcher, mirror, &index, what);
		check_contents(mirror, &index);
		if (s->npages > 0)
			check_recorded(searcher, mirror, &index, &records,
						   i % 3 == 0 ? 40 : i % 3 == 1 ? 70 : 270);
		if (s->ranks)
			check_sampled(searcher, mirror, &index, unit_small && i % 7 > 0);
	}
}
