/*
 * check_mirror_devices.c
 *		Mirrors that are each on one of several devices.  They are searched one
 *		by one and at the same time, and only on their own devices.
 */
#include "mirrors.h"

/* Lists of devices: malformed ones are refused, others are parsed. */
void
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
void
check_devices(const GvDevice *found, int32_t n)
{
	int32_t		i;

	CHECK(n >= 1 && n <= 6 && gv_ndevices() == n, "%d devices", n);
	for (i = 0; i < n; i++)
		CHECK(found[i].name[0] != '\0' && found[i].number == i &&
			  found[i].memory > 1 << 20, "%d: %s, %lld bytes",
			  found[i].number, found[i].name, (long long) found[i].memory);
}

/* All devices search at the same time; the last search is finished first. */
static void
check_side_by_side(GvSearcher **searchers, GvMirror **mirrors,
				   const TestIndex *indexes, int32_t n)
{
	GvSearch	searches[GV_MAX_DEVICES][3];
	int32_t		i;
	int			j;

	for (i = 0; i < n; i++)
	{
		for (j = 0; j < 3; j++)
			searches[i][j] = new_search(&indexes[i], 2 + j, 9, 5 << 4 * j);
		CHECK(gv_mirror_begin(searchers[i], mirrors[i], searches[i],
							  3) == GV_OK, "begin %d", i);
	}
	for (i = n - 1; i >= 0; i--)
	{
		while (!gv_mirror_done(searchers[i]))
			;
		CHECK(gv_mirror_finish(searchers[i]) == GV_OK, "finish %d", i);
	}
	for (i = 0; i < n; i++)
	{
		check_answers(&indexes[i], searches[i], 3, "at the same time");
		free_searches(searches[i], 3);
	}
}

void
test_mirror_devices(void)
{
	int32_t		n = gv_ndevices();
	TestIndex	indexes[GV_MAX_DEVICES];
	GvMirror   *mirrors[GV_MAX_DEVICES];
	GvSearcher *searchers[GV_MAX_DEVICES];
	GvSearch	search;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		indexes[i] = make_index(GV_L2, 24, 12, 20 + i, 4, 60, false);
		indexes[i].spec.device = i;
		mirrors[i] = make_mirror(&indexes[i]);
		CHECK(gv_searcher(i, &searchers[i]) == GV_OK, "searcher %d", i);
	}
	for (i = 0; i < n; i++)
		check_searches(searchers[i], mirrors[i], &indexes[i], "a device");
	check_side_by_side(searchers, mirrors, indexes, n);
	search = new_search(&indexes[0], 2, 9, 5);
	for (i = 1; i < n; i++)
		CHECK(gv_mirror_search(searchers[i], mirrors[0], &search,
							   1) == GV_INVALID, "searched from device %d", i);
	/* a list of each mirror grows after another device was used */
	for (i = 0; i < n; i++)
	{
		GvListChunk chunk;

		resize_list(&indexes[i], &indexes[i].lists[1], 300, 0);
		chunk = index_chunk(&indexes[i], 1, 0, indexes[i].lists[1].nblocks,
							false);
		CHECK(gv_mirror_put_list(mirrors[i], &chunk) == GV_OK, "put");
	}
	check_side_by_side(searchers, mirrors, indexes, n);
	for (i = 0; i < n; i++)
	{
		gv_searcher_drop(searchers[i]);
		gv_mirror_drop(mirrors[i]);
		free_index(&indexes[i]);
	}
	free_searches(&search, 1);
}
