/*
 * check_mirror.c
 *		Mirrors against sorting everything; what they refuse; faults.
 *
 * Of the portable engine, or of the one that UNIT_MIRRORS names when this is
 * compiled (test/unit/gpu); that one may compare all lists flat, and keep the
 * memory of lists that shrink.
 */
#include "records.h"

#ifdef UNIT_MIRRORS
#define UNIT_FLAT		true
#else
#define UNIT_MIRRORS	gv_cpu_mirrors
#define UNIT_FLAT		false
#endif

/* Put all of an index into a mirror; long lists in pieces of 3 blocks. */
static GvStatus
fill_mirror(GvMirror *mirror, const TestIndex *index)
{
	GvStatus	status = GV_OK;
	int			array;
	int32_t		list;

	for (array = 0; array < GV_NARRAYS && status == GV_OK; array++)
	{
		int64_t		n;
		const char *values = index_array(index, (GvArray) array, &n);

		status = gv_mirror_put_array(mirror, (GvArray) array, 0, n / 2,
									 values);
		if (status == GV_OK)
			status = gv_mirror_put_array(mirror, (GvArray) array, n / 2,
										 n - n / 2, values + n / 2 * 4);
	}
	for (list = 0; list < index->spec.nlists && status == GV_OK; list++)
	{
		int32_t		first = 0;

		do
		{
			int32_t		left = index->lists[list].nblocks - first;
			GvListPiece piece = index_piece(index, list, first,
											left < 3 ? left : 3, false);

			status = gv_mirror_put_list(mirror, &piece);
			first += piece.nblocks;
		} while (first < index->lists[list].nblocks && status == GV_OK);
	}
	return status;
}

static GvMirror *
make_mirror(const TestIndex *index)
{
	GvMirror   *mirror = NULL;

	CHECK(gv_mirror_create(&index->spec, &mirror) == GV_OK, "create");
	CHECK(fill_mirror(mirror, index) == GV_OK, "fill");
	return mirror;
}

static GvSearch
new_search(const TestIndex *index, int32_t probes, int32_t compare,
		   int32_t capacity)
{
	GvSearch	search = {0};

	search.query = index_floats(index->spec.dims, index->ties);
	search.probes = probes;
	search.compare = compare;
	search.capacity = capacity;
	return search;
}

static void
free_searches(GvSearch *searches, int n)
{
	int			i;

	for (i = 0; i < n; i++)
		unit_free((void *) searches[i].query);
}

/* Answers of one call, which are good until the next, against the reference. */
static void
check_answers(const TestIndex *index, const GvSearch *searches, int n,
			  const char *what)
{
	int			i;

	for (i = 0; i < n; i++)
		CHECK(search_is_right(index, searches[i].query, searches[i].probes,
							  UNIT_FLAT ? index->spec.nlists :
							  searches[i].compare, searches[i].capacity,
							  &searches[i]),
			  "%s: probes %d compare %d capacity %d: %d lists, %d hits", what,
			  searches[i].probes, searches[i].compare, searches[i].capacity,
			  searches[i].nprobed, searches[i].nhits);
}

/* Searches of every size together, and each alone. */
static void
check_searches(GvSearcher *searcher, GvMirror *mirror,
			   const TestIndex *index, const char *what)
{
	int32_t		nlists = index->spec.nlists;
	GvSearch	searches[12];
	int			n = 0;
	int			i;

	searches[n++] = new_search(index, 1, 1, 1);
	searches[n++] = new_search(index, 1, nlists, 10);
	searches[n++] = new_search(index, nlists, nlists, 1);
	searches[n++] = new_search(index, nlists, nlists, 100000);
	searches[n++] = new_search(index, nlists + 7, 1, 100000);
	while (n < (unit_small ? 8 : 12))
		searches[n++] = new_search(index, 1 + unit_random() % nlists,
								   1 + unit_random() % nlists,
								   1 << unit_random() % 12);
	CHECK(gv_mirror_search(searcher, mirror, searches, n) == GV_OK, "%s",
		  what);
	check_answers(index, searches, n, what);
	/* engines may select few copies in another way than many */
	for (i = 0; i < n; i++)
	{
		CHECK(gv_mirror_search(searcher, mirror, &searches[i], 1) == GV_OK,
			  "%s", what);
		check_answers(index, &searches[i], 1, what);
	}
	free_searches(searches, n);
}

/* Every block as it was put, and none more. */
static void
check_blocks(GvMirror *mirror, const TestIndex *index)
{
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
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
					   code_bytes) != 0)
				nwrong++;
		}
		CHECK(gv_mirror_get_block(mirror, list, b, &view) == GV_INVALID,
			  "a block too many");
	}
	CHECK(nwrong == 0, "%d blocks", nwrong);
}

/* The arrays as they were put, whole and in part. */
static void
check_arrays(GvMirror *mirror, const TestIndex *index)
{
	int			array;

	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		n;
		const char *values = index_array(index, (GvArray) array, &n);
		char	   *got = unit_alloc(n * 4);
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
		unit_free(got);
	}
}

static void
test_shapes(GvSearcher *searcher)
{
	static const int32_t shapes[][6] = {
		/* dims, m, nlists, nparents, mean, ties */
		{1, 1, 1, 1, 40, 0}, {1, 1, 7, 3, 20, 1}, {2, 1, 30, 30, 33, 0},
		{3, 2, 5, 2, 10, 1}, {5, 3, 64, 1, 70, 1}, {17, 17, 300, 17, 40, 0},
		{50, 13, 64, 8, -3000, 0}, {8, 4, 40, 40, 0, 1}, {7, 5, 50, 7, 64, 1},
		{384, 96, 100, 10, 50, 0}, {768, 111, 20, 4, 90, 0},
		{16, 8, 5000, 70, 3, 0}, {16000, 9, 3, 2, 20, 0},
		{1, 1, 3, 2, -30000, 1}, {1, 1, 9000, 9, 1, 1}
	};
	int			i;

	for (i = 0; i < 15; i++)
	{
		const int32_t *s = shapes[i];
		/* emulated threads take seconds for what threads do in microseconds */
		int32_t		nlists = unit_small && s[2] > 100 ? 100 : s[2];
		int32_t		mean = unit_small && s[4] < 0 ? s[4] / 5 : s[4];
		TestIndex	index = make_index(GV_L2 + i % 3, s[0], s[1], nlists,
									   s[3], mean, s[5] != 0);
		GvMirror   *mirror = make_mirror(&index);
		int64_t		size = gv_mirror_size(&index.spec);
		int64_t		bytes = gv_mirror_bytes(mirror);
		char		what[40];

		snprintf(what, sizeof(what), "shape %d", i);
		check_searches(searcher, mirror, &index, what);
		check_blocks(mirror, &index);
		check_arrays(mirror, &index);
		CHECK(bytes > 0 && (UNIT_FLAT ||
							(size > bytes / 2 && size < bytes * 2)),
			  "shape %d: size %lld, bytes %lld", i, (long long) size,
			  (long long) bytes);
		gv_mirror_drop(mirror);
		free_index(&index);
	}
}

/* Change a list of index and mirror as loaders do. */
static void
change_list(GvMirror *mirror, TestIndex *index)
{
	int32_t		number = (int32_t) (unit_random() % index->spec.nlists);
	TestList   *list = &index->lists[number];
	int32_t		first = 0;
	uint32_t	nitems = (uint32_t) (unit_random() % 200);
	GvListPiece piece;
	int32_t		i;

	switch (unit_random() % 4)
	{
		case 0:					/* other copies die */
			for (i = 0; i < list->nblocks; i++)
				list->live[i] &= (uint32_t) unit_random();
			piece = index_piece(index, number, 0, list->nblocks, true);
			break;
		case 1:					/* it is rewritten */
			resize_list(index, list, nitems, 0);
			piece = index_piece(index, number, 0, list->nblocks, false);
			break;
		case 2:					/* the end is cut off */
			first = list->nblocks / 2;
			resize_list(index, list, (uint32_t) first * GV_BLOCK, first);
			piece = index_piece(index, number, first, 0, false);
			break;
		default:				/* copies are appended */
			first = (int32_t) (list->nitems / GV_BLOCK);
			resize_list(index, list, list->nitems + nitems, first);
			piece = index_piece(index, number, first, list->nblocks - first,
								false);
			break;
	}
	CHECK(gv_mirror_put_list(mirror, &piece) == GV_OK, "change");
}

static void
test_changes(GvSearcher *searcher)
{
	TestIndex	index = make_index(GV_L2, 6, 3, 12, 3, 30, true);
	GvMirror   *mirror = make_mirror(&index);
	int64_t		bytes;
	int			round;
	int			i;

	for (round = 0; round < (unit_small ? 2 : 40); round++)
	{
		for (i = 0; i < 10; i++)
			change_list(mirror, &index);
		check_searches(searcher, mirror, &index, "changed");
		check_blocks(mirror, &index);
	}
	bytes = gv_mirror_bytes(mirror);
	for (i = 0; i < index.spec.nlists; i++)
	{
		GvListPiece piece = index_piece(&index, i, 0, 0, false);

		CHECK(gv_mirror_put_list(mirror, &piece) == GV_OK, "empty");
		resize_list(&index, &index.lists[i], 0, 0);
	}
	CHECK(UNIT_FLAT || gv_mirror_bytes(mirror) < bytes, "emptied lists keep their memory");
	check_searches(searcher, mirror, &index, "emptied");
	gv_mirror_drop(mirror);
	free_index(&index);
}

/* Put some records, some of them free slots, over what there was. */
static void
change_records(GvMirror *mirror, Records *records)
{
	int32_t		nput;
	char	   *items = draw_records(records, &nput);

	CHECK(gv_mirror_put_refine(mirror, (GvRefineItem *) items, nput) == GV_OK,
		  "put %d records", nput);
	unit_free(items);
}

static void
check_bounds(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			 const Records *records)
{
	int32_t		capacity = 1 + (int32_t) (unit_random() % 300);
	GvSearch	search = new_search(index, index->spec.nlists,
									index->spec.nlists, capacity);
	int			nwrong = 0;
	int			nknown = 0;
	int32_t		i;

	search.bounded = true;
	CHECK(gv_mirror_search(searcher, mirror, &search, 1) == GV_OK, "search");
	for (i = 0; i < search.nhits; i++)
	{
		nwrong += !bound_is_right(index, records, search.query,
								  &search.hits[i], &search.bounds[i]);
		nknown += search.bounds[i].known;
	}
	CHECK(nwrong == 0, "dims %d: %d of %d bounds", index->spec.dims, nwrong,
		  search.nhits);
	CHECK(nknown > 0 || search.nhits < 50 ||
		  records->npages * records->nslots < 20, "no hit has a record");
	free_searches(&search, 1);
}

/* All records there are, and some there are not, read back. */
static void
check_records(GvMirror *mirror, const Records *records)
{
	int32_t		n = records->npages * records->nslots;
	uint16_t   *addresses = unit_alloc((size_t) (n + 2) * 6);
	char	   *items = unit_alloc((size_t) (n + 2) * records->stride);
	int			nwrong = 0;
	int32_t		i;

	for (i = 0; i < n + 2; i++)
	{
		addresses[3 * i] = i == n + 1;
		addresses[3 * i + 1] = (uint16_t) (i < n ? i / records->nslots : 0);
		addresses[3 * i + 2] = (uint16_t)
			(i < n ? i % records->nslots + 1 : records->nslots + 1);
	}
	CHECK(gv_mirror_get_refine(mirror, addresses, n + 2,
							   (GvRefineItem *) items) == GV_OK, "get");
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
	unit_free(addresses);
	unit_free(items);
}

static void
check_invalid_records(GvMirror *mirror, const Records *records)
{
	size_t		stride = records->stride;
	char	   *items = unit_alloc(2 * stride);
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
	unit_free(items);
}

static void
test_records(GvSearcher *searcher)
{
	static const int32_t shapes[][3] = {
		/* dims, pages, slots */
		{1, 1, 1}, {3, 40, 2}, {16, 7, 20}, {33, 30, 5}, {384, 10, 20},
		{1100, 20, 7}
	};
	int			i;
	int			round;

	for (i = 0; i < 6; i++)
	{
		TestIndex	index = make_index(GV_L2 + i % 3, shapes[i][0], 1, 9, 3,
									   70, false);
		Records		records = make_records(&index, shapes[i][1], shapes[i][2]);
		int32_t		n = records.npages * records.nslots;
		GvMirror   *mirror;

		mirror = make_mirror(&index);
		CHECK(gv_mirror_size(&index.spec) > (int64_t) (n * records.stride),
			  "size leaves records out");
		check_invalid_records(mirror, &records);
		for (round = 0; round < 3; round++)
		{
			change_records(mirror, &records);
			check_bounds(searcher, mirror, &index, &records);
			check_records(mirror, &records);
		}
		check_searches(searcher, mirror, &index, "with records");
		CHECK(gv_mirror_bytes(mirror) > (int64_t) (n * records.stride) / 2,
			  "bytes leave records out");
		gv_mirror_drop(mirror);
		free_records(&records);
		free_index(&index);
	}
}

#define INVALID(call) CHECK((call) == GV_INVALID, "accepted")

static void
test_invalid_pieces(GvMirror *mirror, const TestIndex *index)
{
	GvListPiece good = index_piece(index, 0, 0, index->lists[0].nblocks,
								   false);
	GvListPiece piece;
	GvBlock		view;

#define BAD_PIECE(change) \
	(piece = good, piece.change, gv_mirror_put_list(mirror, &piece))
	INVALID(BAD_PIECE(list = -1));
	INVALID(BAD_PIECE(list = index->spec.nlists));
	INVALID(BAD_PIECE(first = -1));
	INVALID(BAD_PIECE(first = INT32_MAX));
	INVALID(BAD_PIECE(first = good.nblocks + 1));
	INVALID(BAD_PIECE(nblocks = -1));
	INVALID(BAD_PIECE(live = NULL));
	INVALID(BAD_PIECE(t = NULL));
	INVALID(BAD_PIECE(rowids = NULL));
	INVALID(BAD_PIECE(codes = NULL));
	good.codes = NULL;
	good.t = NULL;
	good.rowids = NULL;
	INVALID(BAD_PIECE(nblocks = good.nblocks - 1));
	INVALID(BAD_PIECE(first = 1));
	INVALID(gv_mirror_put_list(mirror, NULL));
	INVALID(gv_mirror_put_list(NULL, &good));
	CHECK(gv_mirror_put_list(mirror, &good) == GV_OK, "live only");
	INVALID(gv_mirror_get_block(mirror, -1, 0, &view));
	INVALID(gv_mirror_get_block(mirror, 0, -1, &view));
	INVALID(gv_mirror_get_block(mirror, index->spec.nlists, 0, &view));
	INVALID(gv_mirror_get_block(mirror, 0, 0, NULL));
	INVALID(gv_mirror_get_block(NULL, 0, 0, &view));
}

static void
test_invalid_arrays(GvSearcher *searcher, GvMirror *mirror,
					const TestIndex *index)
{
	float		values[4] = {0};
	GvSearch	search = new_search(index, 1, 1, 1);
	int32_t		wrong[3][3] = {{1, 2, 4}, {0, 0, 4}, {0, 2, 5}};
	int			i;

	INVALID(gv_mirror_put_array(NULL, GV_PARENTS, 0, 1, values));
	INVALID(gv_mirror_put_array(mirror, (GvArray) 4, 0, 1, values));
	INVALID(gv_mirror_put_array(mirror, (GvArray) -1, 0, 1, values));
	INVALID(gv_mirror_put_array(mirror, GV_PARENTS, -1, 1, values));
	INVALID(gv_mirror_put_array(mirror, GV_PARENTS, 0, -1, values));
	INVALID(gv_mirror_put_array(mirror, GV_PARENTS, 0, 1, NULL));
	INVALID(gv_mirror_put_array(mirror, GV_PARENTS, INT64_MAX, 1, values));
	INVALID(gv_mirror_put_array(mirror, GV_STARTS, 2, 2, values));
	for (i = 0; i < 3; i++)
	{
		CHECK(gv_mirror_put_array(mirror, GV_STARTS, 0, 3, wrong[i]) ==
			  GV_OK, "starts");
		INVALID(gv_mirror_search(searcher, mirror, &search, 1));
	}
	CHECK(gv_mirror_put_array(mirror, GV_STARTS, 0, 3, index->starts) ==
		  GV_OK, "starts");
	CHECK(gv_mirror_search(searcher, mirror, &search, 1) == GV_OK, "starts");
	free_searches(&search, 1);
}

static void
test_invalid_search(GvSearcher *searcher, GvMirror *mirror,
					const TestIndex *index)
{
	GvSearch	good = new_search(index, 1, 1, 1);
	GvBound		bound;
	GvSearch	bad;
	GvSearcher *other;
	GvMirror   *made;
	GvMirrorSpec spec;
	GvDevice	device;

#define BAD_SEARCH(change) \
	(bad = good, bad.change, gv_mirror_search(searcher, mirror, &bad, 1))
#define BAD_SPEC(change) \
	(spec = index->spec, spec.change, gv_mirror_create(&spec, &made))
	INVALID(BAD_SEARCH(query = NULL));
	INVALID(BAD_SEARCH(probes = 0));
	INVALID(BAD_SEARCH(compare = 0));
	INVALID(BAD_SEARCH(capacity = 0));
	INVALID(BAD_SEARCH(bounded = true));
	INVALID(gv_mirror_put_refine(mirror, (GvRefineItem *) &bound, 1));
	INVALID(gv_mirror_get_refine(mirror, bound.rowid, 1,
								 (GvRefineItem *) &bound));
	INVALID(gv_mirror_get_refine(NULL, bound.rowid, 0, NULL));
	INVALID(gv_mirror_get_array(mirror, GV_STARTS, -1, 1, &bound));
	INVALID(gv_mirror_get_array(mirror, (GvArray) 4, 0, 1, &bound));
	INVALID(gv_mirror_get_array(mirror, GV_STARTS, 0, 1, NULL));
	INVALID(gv_mirror_search(NULL, mirror, &good, 1));
	INVALID(gv_mirror_search(searcher, NULL, &good, 1));
	INVALID(gv_mirror_search(searcher, mirror, NULL, 1));
	INVALID(gv_mirror_search(searcher, mirror, &good, 0));
	INVALID(BAD_SPEC(metric = (GvMetric) 0));
	INVALID(BAD_SPEC(dims = 0));
	INVALID(BAD_SPEC(dims = GV_MAX_DIMS + 1));
	INVALID(BAD_SPEC(m = 0));
	INVALID(BAD_SPEC(m = index->spec.dims + 1));
	INVALID(BAD_SPEC(nlists = 0));
	INVALID(BAD_SPEC(nlists = (1 << 24) + 1));
	INVALID(BAD_SPEC(nparents = 0));
	INVALID(BAD_SPEC(nparents = index->spec.nlists + 1));
	INVALID(BAD_SPEC(copies = -1));
	INVALID(BAD_SPEC(refine_slots = -1));
	INVALID(BAD_SPEC(refine_slots = 65536));
	INVALID(BAD_SPEC(refine_records = -1));
	CHECK(gv_mirror_size(&spec) == 0, "size of an invalid spec");
	INVALID(gv_mirror_create(NULL, &made));
	INVALID(gv_mirror_create(&index->spec, NULL));
	INVALID(gv_searcher(NULL));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, "", &device));
	CHECK(gv_searcher(&other) == GV_OK, "a second searcher");
	gv_searcher_drop(other);
	gv_searcher_drop(NULL);
	gv_mirror_drop(NULL);
	free_searches(&good, 1);
}

static void
test_invalid(GvSearcher *searcher)
{
	TestIndex	index = make_index(GV_IP, 2, 2, 4, 2, 0, false);
	GvMirror   *mirror;

	resize_list(&index, &index.lists[0], 70, 0);
	mirror = make_mirror(&index);
	test_invalid_pieces(mirror, &index);
	test_invalid_arrays(searcher, mirror, &index);
	test_invalid_search(searcher, mirror, &index);
	check_searches(searcher, mirror, &index, "after refusals");
	check_blocks(mirror, &index);
	gv_mirror_drop(mirror);
	free_index(&index);
}

/* Everything once; the first status that is not GV_OK. */
static GvStatus
work(const TestIndex *index)
{
	GvMirror   *mirror = NULL;
	GvSearcher *searcher = NULL;
	GvSearch	search = new_search(index, 2, 4, 9);
	GvBlock		view;
	GvStatus	status;

	status = gv_mirror_create(&index->spec, &mirror);
	if (status == GV_OK)
		status = fill_mirror(mirror, index);
	if (status == GV_OK)
		status = gv_mirror_get_block(mirror, 0, 0, &view);
	if (status == GV_OK)
		status = gv_searcher(&searcher);
	if (status == GV_OK)
		status = gv_mirror_search(searcher, mirror, &search, 1);
	gv_searcher_drop(searcher);
	gv_mirror_drop(mirror);
	free_searches(&search, 1);
	return status;
}

/* Each call fails once, with each status, and only that call. */
static void
test_faults(void)
{
	TestIndex	index = make_index(GV_COSINE, 4, 2, 4, 2, 0, false);
	int			calls = 1 + 2 * GV_NARRAYS + 4 + 1 + 1 + 1;
	int			status;
	int			n;

	resize_list(&index, &index.lists[0], 5, 0);
	for (status = GV_INVALID; status <= GV_FAILED; status++)
		for (n = 1; n <= calls + 1; n++)
		{
			GvStatus	due = n <= calls ? (GvStatus) status : GV_OK;
			GvStatus	got;

			gv_mirror_fault(n, (GvStatus) status);
			got = work(&index);
			CHECK(got == due, "call %d: %d", n, got);
			gv_mirror_fault(n <= calls ? -1 : 0, GV_FAILED);
			CHECK(work(&index) == GV_OK, "after call %d", n);
		}
	gv_mirror_fault(0, GV_FAILED);
	free_index(&index);
}

void
test_mirror(void)
{
	GvSearcher *searcher = NULL;
	GvMirror   *mirror;
	GvMirrorSpec spec = {GV_L2, 1, 1, 1, 1, 0, 0, 0};
	GvDevice	device;

	CHECK(gv_mirror_size(&spec) == 0, "size before an engine");
	INVALID(gv_mirror_create(&spec, &mirror));
	INVALID(gv_searcher(&searcher));
	INVALID(gv_mirrors_open(NULL, "", &device));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, NULL, &device));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, "", NULL));
	gv_mirror_fault(1, GV_NO_MEMORY);
	CHECK(gv_mirrors_open(&UNIT_MIRRORS, "", &device) == GV_NO_MEMORY &&
		  device.name[0] != '\0', "a fault at the beginning");
	if (gv_mirrors_open(&UNIT_MIRRORS, "", &device) != GV_OK)
	{
		CHECK(false, "no engine: %s", device.name);
		return;
	}
	CHECK(device.name[0] != '\0' && device.memory > 1 << 20, "%s, %lld bytes",
		  device.name, (long long) device.memory);
	CHECK(gv_searcher(&searcher) == GV_OK, "searcher");
	test_shapes(searcher);
	test_changes(searcher);
	test_records(searcher);
	test_invalid(searcher);
	test_faults();
	gv_searcher_drop(searcher);
}
