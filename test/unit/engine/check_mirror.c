/*
 * check_mirror.c
 *		Mirrors: answers are compared with those of a sort of all postings;
 *		invalid arguments are refused.
 */
#include "mirrors.h"

GvPlacement	unit_placement;
UnitTeam	unit_team;

/* Changes a list of index and mirror as loaders do. */
static void
change_list(GvMirror *mirror, TestIndex *index)
{
	int32_t		number = (int32_t) (unit_random() % index->spec.nlists);
	TestList   *list = &index->lists[number];
	int32_t		first = 0;
	uint32_t	nitems = (uint32_t) (unit_random() % 200);
	GvListChunk chunk;
	int32_t		i;

	switch (unit_random() % 4)
	{
		case 0:					/* other postings die */
			for (i = 0; i < list->nblocks; i++)
				list->live[i] &= (uint32_t) unit_random();
			chunk = index_chunk(index, number, 0, list->nblocks, true);
			break;
		case 1:					/* the list is rewritten */
			resize_list(index, list, nitems, 0);
			chunk = index_chunk(index, number, 0, list->nblocks, false);
			break;
		case 2:					/* the end is cut off */
			first = list->nblocks / 2;
			resize_list(index, list, (uint32_t) first * GV_BLOCK, first);
			chunk = index_chunk(index, number, first, 0, false);
			break;
		default:				/* postings are appended */
			first = (int32_t) (list->nitems / GV_BLOCK);
			resize_list(index, list, list->nitems + nitems, first);
			chunk = index_chunk(index, number, first, list->nblocks - first,
								false);
			break;
	}
	CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "change");
}

void
test_changes(GvSearcher *searcher, int nkeys)
{
	OwnIndex	index = make_index(GV_L2, 6, 3, 12, 3, 30, true);
	OwnMirror	mirror = NULL;
	int64_t		bytes;
	int			round;
	int			i;

	give_keys(&index, nkeys);
	mirror = make_mirror(&index);

	for (round = 0; round < (unit_small ? 10 : 200); round++)
	{
		for (i = 0; i < 10; i++)
			change_list(mirror, &index);
		/* so many searches that an engine may divide them */
		check_batch(searcher, mirror, &index, NULL, 40, 8, 20, "parts");
		if (round % 5 > 0)
			continue;
		check_searches(searcher, mirror, &index, "changed");
		check_contents(mirror, &index);
	}
	bytes = gv_mirror_bytes(mirror);
	for (i = 0; i < index.spec.nlists; i++)
	{
		GvListChunk chunk = index_chunk(&index, i, 0, 0, false);

		CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "empty");
		resize_list(&index, &index.lists[i], 0, 0);
	}
	CHECK(UNIT_FLAT || gv_mirror_bytes(mirror) < bytes, "emptied lists keep their memory");
	check_searches(searcher, mirror, &index, "emptied");
}

static void
test_invalid_chunks(GvMirror *mirror, const TestIndex *index)
{
	GvListChunk good = index_chunk(index, 0, 0, index->lists[0].nblocks,
								   false);
	GvListChunk chunk;
	GvBlock		view;

#define BAD_CHUNK(change) \
	(chunk = good, chunk.change, gv_mirror_put_list(mirror, &chunk))
	INVALID(BAD_CHUNK(list = -1));
	INVALID(BAD_CHUNK(list = index->spec.nlists));
	INVALID(BAD_CHUNK(first = -1));
	INVALID(BAD_CHUNK(first = INT32_MAX));
	INVALID(BAD_CHUNK(first = good.nblocks + 1));
	INVALID(BAD_CHUNK(nblocks = -1));
	INVALID(BAD_CHUNK(live = NULL));
	INVALID(BAD_CHUNK(t = NULL));
	INVALID(BAD_CHUNK(rowids = NULL));
	INVALID(BAD_CHUNK(codes = NULL));
	good.codes = NULL;
	good.t = NULL;
	good.rowids = NULL;
	INVALID(BAD_CHUNK(nblocks = good.nblocks - 1));
	INVALID(BAD_CHUNK(first = 1));
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
	INVALID(gv_mirror_put_array(mirror, GV_PARENT_OFFSETS, 2, 2, values));
	for (i = 0; i < 3; i++)
	{
		OK(gv_mirror_put_array(mirror, GV_PARENT_OFFSETS, 0, 3, wrong[i]));
		INVALID(unit_search(searcher, mirror, &search, 1));
	}
	OK(gv_mirror_put_array(mirror, GV_PARENT_OFFSETS, 0, 3,
						   index->parent_offsets));
	CHECK(unit_search(searcher, mirror, &search, 1) == GV_OK, "starts");
	free_searches(&search, 1);
}

static void
test_invalid_search(GvSearcher *searcher, GvMirror *mirror,
					const TestIndex *index)
{
	GvSearch	good = new_search(index, 1, 1, 1);
	GvBound		bound = {0};
	GvSearch	bad;
	OwnSearcher	other = NULL;
	GvMirror   *made;
	GvMirrorSpec spec;
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;

#define BAD_SEARCH(change) \
	(bad = good, bad.change, unit_search(searcher, mirror, &bad, 1))
#define BAD_SPEC(change) \
	(spec = index->spec, spec.change, gv_mirror_create(&spec, &made))
	INVALID(BAD_SEARCH(query = NULL));
	INVALID(BAD_SEARCH(probes = 0));
	INVALID(BAD_SEARCH(compare = 0));
	INVALID(BAD_SEARCH(capacity = 0));
	INVALID(BAD_SEARCH(bounded = true));
	INVALID(BAD_SEARCH(limited = true));
	INVALID(BAD_SEARCH(by_number = true));
	INVALID(BAD_SEARCH(sums = true));
	for (int steps = GV_STEPS_LISTS; steps <= GV_STEPS_LAST; steps++)
		INVALID(BAD_SEARCH(steps = (GvSearchSteps) steps));
	INVALID(BAD_SEARCH(rank = 1));
	INVALID(BAD_SEARCH(rank = -1));
	INVALID(gv_mirror_put_refine(mirror, (GvRefineItem *) &bound, 1));
	INVALID(gv_mirror_get_refine(mirror, bound.rowid, 1,
								 (GvRefineItem *) &bound));
	INVALID(gv_mirror_get_refine(NULL, bound.rowid, 0, NULL));
	INVALID(gv_mirror_get_array(mirror, GV_PARENT_OFFSETS, -1, 1, &bound));
	INVALID(gv_mirror_get_array(mirror, (GvArray) 4, 0, 1, &bound));
	INVALID(gv_mirror_get_array(mirror, GV_PARENT_OFFSETS, 0, 1, NULL));
	INVALID(unit_search(NULL, mirror, &good, 1));
	INVALID(unit_search(searcher, NULL, &good, 1));
	INVALID(unit_search(searcher, mirror, NULL, 1));
	INVALID(unit_search(searcher, mirror, &good, 0));
	INVALID(BAD_SPEC(device = -1));
	INVALID(BAD_SPEC(device = gv_ndevices()));
	INVALID(BAD_SPEC(metric = (GvMetric) 0));
	INVALID(BAD_SPEC(dims = 0));
	INVALID(BAD_SPEC(dims = GV_MAX_DIMS + 1));
	INVALID(BAD_SPEC(m = 0));
	INVALID(BAD_SPEC(m = index->spec.dims + 1));
	INVALID(BAD_SPEC(nlists = 0));
	INVALID(BAD_SPEC(nlists = (1 << 24) + 1));
	INVALID(BAD_SPEC(nparents = 0));
	INVALID(BAD_SPEC(nparents = index->spec.nlists + 1));
	INVALID(BAD_SPEC(postings = -1));
	INVALID(BAD_SPEC(refine_slots = -1));
	INVALID(BAD_SPEC(refine_slots = 65536));
	INVALID(BAD_SPEC(refine_records = -1));
	CHECK(gv_mirror_size(&spec) == 0, "size of an invalid spec");
	INVALID(gv_mirror_create(NULL, &made));
	INVALID(gv_mirror_create(&index->spec, NULL));
	INVALID(gv_searcher(0, NULL));
	INVALID(gv_searcher(-1, &other));
	INVALID(gv_searcher(gv_ndevices(), &other));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, "", found, &nfound));
	CHECK(gv_searcher(0, &other) == GV_OK, "a second searcher");
	gv_searcher_drop(NULL);
	gv_mirror_drop(NULL);
	free_searches(&good, 1);
}

/* Chunks and conditions whose keys are not those of the mirror are refused. */
static void
test_invalid_keys(GvSearcher *searcher)
{
	OwnIndex	with = make_index(GV_L2, 2, 2, 4, 2, 40, false);
	OwnIndex	without = make_index(GV_L2, 2, 2, 4, 2, 40, false);
	GvKeyTest	test = {0, GV_TEST_NULL, 0, 0, 0, NULL};
	GvCondition condition = {.ntests = 1,.tests = &test};
	OwnMirror	keyed = NULL;
	OwnMirror	bare = NULL;
	GvMirror   *mirror;
	GvListChunk good;
	GvListChunk chunk;
	GvSearch	search = new_search(&without, 1, 1, 1);
	GvMirrorSpec spec;

	give_keys(&with, 3);
	keyed = make_mirror(&with);
	bare = make_mirror(&without);
	good = index_chunk(&with, 0, 0, with.lists[0].nblocks, false);
	mirror = keyed;
	INVALID(BAD_CHUNK(keys = NULL));
	mirror = bare;
	INVALID(gv_mirror_put_list(mirror, &good));
	mirror = keyed;
	CHECK(gv_mirror_put_list(mirror, &good) == GV_OK, "a piece");
	condition.form = with.spec.keys;
	search.condition = &condition;
	CHECK(unit_search(searcher, keyed, &search, 1) == GV_OK, "search");
	INVALID(unit_search(searcher, bare, &search, 1));
	search.rank = 2;
	INVALID(unit_search(searcher, keyed, &search, 1));
	search.rank = 1;
	CHECK(unit_search(searcher, keyed, &search, 1) == GV_OK, "rank");
	search.rank = 0;
	condition.form.nkeys--;
	INVALID(unit_search(searcher, keyed, &search, 1));
	condition.form = with.spec.keys;
	condition.form.width[0] = condition.form.width[0] == 8 ? 4 : 8;
	INVALID(unit_search(searcher, keyed, &search, 1));
	condition.form = with.spec.keys;
	test.key = 3;
	INVALID(unit_search(searcher, keyed, &search, 1));
	spec = with.spec;
	spec.keys.width[1] = 3;
	INVALID(gv_mirror_create(&spec, &mirror));
	search.condition = NULL;
	free_searches(&search, 1);
}

static void
test_invalid(GvSearcher *searcher)
{
	OwnIndex	index = make_index(GV_IP, 2, 2, 4, 2, 0, false);
	OwnMirror	mirror = NULL;

	resize_list(&index, &index.lists[0], 70, 0);
	mirror = make_mirror(&index);
	test_invalid_chunks(mirror, &index);
	test_invalid_arrays(searcher, mirror, &index);
	test_invalid_search(searcher, mirror, &index);
	check_searches(searcher, mirror, &index, "after refusals");
	check_contents(mirror, &index);
}

/* Lists of devices: malformed ones are refused, others are parsed. */
static void
test_device_lists(void)
{
	static const char *const wrong[] = {",", "0,", ",0", "a", "0 1", "0,,1",
		"-1", "0,1,0", "0;1", "4294967296",
	"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
	int32_t		numbers[GV_MAX_DEVICES] = {0};
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;
	size_t		i;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
	{
		CHECK(gv_parse_devices(wrong[i], numbers) == -1, "\"%s\"", wrong[i]);
		CHECK(gv_mirrors_open(&UNIT_MIRRORS, wrong[i], found,
							  &nfound) == GV_INVALID && found->name[0] != '\0',
			  "devices \"%s\"", wrong[i]);
	}
	CHECK(gv_parse_devices("", numbers) == 0, "no devices");
	CHECK(gv_parse_devices("7, 3 ,12", numbers) == 3 && numbers[0] == 7 &&
		  numbers[1] == 3 && numbers[2] == 12, "three devices");
	CHECK(gv_parse_devices("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
						   numbers) == GV_MAX_DEVICES, "all devices");
}

/* Checks an engine's report of n devices. */
static void
check_devices(const GvDevice *found, int32_t n)
{
	int32_t		i;

	CHECK(n >= 1 && n <= 6 && gv_ndevices() == n, "%d devices", n);
	for (i = 0; i < n; i++)
		CHECK(found[i].name[0] != '\0' && found[i].number == i &&
			  found[i].memory > 1 << 20, "%d: %s, %lld bytes",
			  found[i].number, found[i].name, (long long) found[i].memory);
}

void
test_mirror(void)
{
	GvSearcher *searcher = NULL;
	GvMirror   *mirror;
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 1,.m = 1,.nlists = 1,
	.nparents = 1};
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound = 0;

	CHECK(gv_mirror_size(&spec) == 0, "size before an engine");
	INVALID(gv_mirror_create(&spec, &mirror));
	INVALID(gv_searcher(0, &searcher));
	INVALID(gv_mirrors_open(NULL, "", found, &nfound));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, NULL, found, &nfound));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, "", NULL, &nfound));
	INVALID(gv_mirrors_open(&UNIT_MIRRORS, "", found, NULL));
	gv_mirror_fault(1, GV_NO_MEMORY);
	CHECK(gv_mirrors_open(&UNIT_MIRRORS, "", found, &nfound) == GV_NO_MEMORY &&
		  found->name[0] != '\0', "a fault at the beginning");
	test_device_lists();
	/* six devices, or four, or all that this machine has */
	if (gv_mirrors_open(unit_mirrors(), "0,1,2,3,4,5", found,
						&nfound) != GV_OK &&
		gv_mirrors_open(unit_mirrors(), "0,1,2,3", found, &nfound) != GV_OK &&
		gv_mirrors_open(unit_mirrors(), "", found, &nfound) != GV_OK)
	{
		CHECK(false, "no engine: %s", found->name);
		return;
	}
	check_devices(found, nfound);
	CHECK(gv_searcher(0, &searcher) == GV_OK, "searcher");
	test_shapes(searcher);
	test_changes(searcher, 0);
	test_changes(searcher, 2);
	test_mirror_rows(searcher);
	test_mirror_lists();
	test_mirror_sifts(searcher);
	test_mirror_spread();
	test_invalid(searcher);
	test_invalid_keys(searcher);
	gv_searcher_drop(searcher);
}
