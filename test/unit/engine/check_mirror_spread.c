/*
 * check_mirror_spread.c
 *		Mirrors on several devices against what one device answers: shards and
 *		replicas, members that have nothing, members without memory, faults of
 *		members.
 *
 * The engine is taken through a table of this file's, which notes on what
 * device each mirror is, and refuses or breaks where a test asks it to.
 */
#include "mirrors.h"
#include "records.h"

#include "engine/mirror/gv_multi.h"
#include "engine/mirror/gv_parallel.h"

#define MOST_NOTED	256

/* Mirrors that there are, and where. */
static struct
{
	GvMirror   *mirror;
	int32_t		device;
}			noted[MOST_NOTED];

/* Bytes that a mirror may have on a device before it gets no more. */
static int64_t limits[GV_MAX_DEVICES];

/* The n-th call of a searcher's operations reports this. */
static int64_t fault_call;
static GvStatus fault_status;

static bool
is_due(GvStatus *status)
{
	*status = fault_status;
	return fault_call > 0 && --fault_call == 0;
}

static bool
is_full(const GvMirror *mirror)
{
	int			i = 0;

	while (noted[i].mirror != mirror)
		i++;
	return UNIT_MIRRORS.bytes(mirror) > limits[noted[i].device];
}

static GvStatus
noting_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvStatus	status;
	int			i = 0;

	if (limits[spec->device] == 0)
		return GV_NO_MEMORY;
	status = UNIT_MIRRORS.create(spec, mirror);
	while (status == GV_OK)
	{
		GvMirror   *none = NULL;

		/* other threads make some, too */
		if (__atomic_compare_exchange_n(&noted[i].mirror, &none, *mirror,
										false, __ATOMIC_RELAXED,
										__ATOMIC_RELAXED))
		{
			noted[i].device = spec->device;
			break;
		}
		i++;
	}
	return status;
}

static void
noting_drop(GvMirror *mirror)
{
	int			i = 0;

	while (noted[i].mirror != mirror)
		i++;
	noted[i].mirror = NULL;
	UNIT_MIRRORS.drop(mirror);
}

static GvStatus
limited_put_list(GvMirror *mirror, const GvListChunk *chunk)
{
	return is_full(mirror) && chunk->codes != NULL ? GV_NO_MEMORY :
		UNIT_MIRRORS.put_list(mirror, chunk);
}

static GvStatus
limited_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	return is_full(mirror) ? GV_NO_MEMORY :
		UNIT_MIRRORS.put_refine(mirror, items, n);
}

static GvStatus
faulty_searcher(int32_t device, GvSearcher **searcher)
{
	GvStatus	status;

	return is_due(&status) ? status : UNIT_MIRRORS.searcher(device, searcher);
}

static GvStatus
faulty_begin(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
			 int32_t n)
{
	GvStatus	status;

	return is_due(&status) ? status :
		UNIT_MIRRORS.begin(searcher, mirror, searches, n);
}

static GvStatus
faulty_finish(GvSearcher *searcher)
{
	GvStatus	status = UNIT_MIRRORS.finish(searcher);
	GvStatus	injected;

	return is_due(&injected) ? injected : status;
}

/* The engine, through the above. */
const GvMirrorBackend *
unit_mirrors(void)
{
	static GvMirrorBackend table;
	int			i;

	table = UNIT_MIRRORS;
	table.create = noting_create;
	table.drop = noting_drop;
	table.put_list = limited_put_list;
	table.put_refine = limited_put_refine;
	table.searcher = faulty_searcher;
	table.begin = faulty_begin;
	table.finish = faulty_finish;
	for (i = 0; i < GV_MAX_DEVICES; i++)
		limits[i] = INT64_MAX;
	return &table;
}

/* n devices, in any order. */
static GvPlacement
draw_placement(GvPlacementMode mode, int32_t n)
{
	GvPlacement	placement = {mode, 0, {0}};
	uint32_t	taken = 0;

	while (placement.ndevices < n)
	{
		int32_t		device = (int32_t) (unit_random() %
										(uint64_t) gv_ndevices());

		if ((taken >> device & 1) == 0)
			placement.devices[placement.ndevices++] = device;
		taken |= UINT32_C(1) << device;
	}
	return placement;
}

/* Everything that is checked of mirrors on one device. */
static void
test_as_one(GvPlacementMode mode, int32_t n)
{
	GvSearcher *searcher = NULL;
	int32_t		member = (int32_t) (unit_random() % (uint64_t) n);

	unit_placement = draw_placement(mode, n);
	CHECK(gv_searcher(unit_placement.devices[member], &searcher) == GV_OK,
		  "searcher");
	if (mode == GV_SHARDS && !unit_small)
		test_shapes(searcher);
	test_changes(searcher, 0);
	test_changes(searcher, 2);
	test_mirror_records(searcher);
	test_mirror_sample(searcher);
	gv_searcher_drop(searcher);
	unit_placement.ndevices = 0;
}

/* Bounded searches with conditions and ranks, in two calls, of an index. */
static void
check_bounded(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			  const Records *records, int n)
{
	GvSearch   *searches = unit_alloc(sizeof(GvSearch) * n);
	int			nwrong = 0;
	int			s;
	int32_t		i;

	for (s = 0; s < n; s++)
	{
		searches[s] = new_search(index, 1 + unit_random() %
								 index->spec.nlists, index->spec.nlists,
								 1 + (int32_t) (unit_random() % 400));
		searches[s].bounded = unit_random() % 4 > 0;
	}
	CHECK(gv_mirror_begin(searcher, mirror, searches, n) == GV_OK, "begin");
	while (!gv_mirror_done(searcher))
		;
	CHECK(gv_mirror_finish(searcher) == GV_OK, "finish");
	check_answers(index, searches, n, "bounded");
	for (s = 0; s < n; s++)
		for (i = 0; searches[s].bounded && i < searches[s].nhits; i++)
			nwrong += !bound_is_right(index, records, searches[s].query,
									  &searches[s].hits[i],
									  &searches[s].bounds[i]);
	CHECK(nwrong == 0, "%d bounds", nwrong);
	free_searches(searches, n);
	unit_free(searches);
}

/* An index with records on many pages, and all of them put. */
static TestIndex
make_recorded(Records *records, int nkeys, int32_t mean)
{
	TestIndex	index = make_index(GV_L2 + unit_random() % 3, 9, 4, 30, 4,
								   mean, unit_random() % 2 > 0);

	give_keys(&index, nkeys);
	*records = make_records(&index, 8 * GV_PAGE_RUN + 5, 3);
	return index;
}

static GvStatus
put_records(GvMirror *mirror, Records *records)
{
	int32_t		n;
	char	   *items = draw_records(records, &n);
	GvStatus	status = gv_mirror_put_refine(mirror, (GvRefineItem *) items,
											  n);

	unit_free(items);
	return status;
}

/*
 * Every member is where it was placed, takes memory, and owns what it is told.
 */
static void
check_shards(const GvMirror *mirror, const TestIndex *index)
{
	GvDeviceUsage		usage[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(mirror, usage);
	int64_t		bytes = 0;
	int32_t		i;

	CHECK(n == unit_placement.ndevices, "%d parts", n);
	for (i = 0; i < n; i++)
	{
		CHECK(usage[i].device == unit_placement.devices[i] &&
			  usage[i].bytes > 0,
			  "part %d", i);
		CHECK(gv_mirror_member_size(&index->spec, &unit_placement, i) <
			  gv_mirror_size(&index->spec), "size of part %d", i);
		bytes += usage[i].bytes;
	}
	CHECK(bytes == gv_mirror_bytes(mirror), "bytes");
	for (i = 0; i < index->spec.nlists; i++)
		CHECK(gv_mirror_list_shard(mirror, i) == i % n, "list %d", i);
}

/* Records of pages that all shards have, and conditions with ranks. */
static void
test_shards(int32_t n)
{
	Records		records;
	TestIndex	index = make_recorded(&records, 2, n == 2 ? 150 : 60);
	GvMirror   *mirror;
	GvSearcher *searcher = NULL;
	int			round;

	unit_placement = draw_placement(GV_SHARDS, n);
	mirror = make_mirror(&index);
	check_shards(mirror, &index);
	CHECK(gv_mirror_drop_replica(mirror, unit_placement.devices[0]) ==
		  GV_INVALID,
		  "a shard is dropped");
	for (round = 0; round < 4; round++)
	{
		CHECK(put_records(mirror, &records) == GV_OK, "records");
		CHECK(gv_searcher(unit_placement.devices[round % n], &searcher) ==
			  GV_OK,
			  "searcher");
		check_bounded(searcher, mirror, &index, &records, 1);
		check_bounded(searcher, mirror, &index, &records, 30);
		check_bounded(searcher, mirror, &index, &records, 3);
		gv_searcher_drop(searcher);
	}
	check_contents(mirror, &index);
	gv_mirror_drop(mirror);
	unit_placement.ndevices = 0;
	free_records(&records);
	free_index(&index);
}

/* So many searches that threads share what is done with their answers. */
static void
test_helpers(void)
{
	Records		records;
	TestIndex	index = make_recorded(&records, 1, 20);
	GvMirror   *mirror;
	GvSearcher *searcher = NULL;

	unit_placement = draw_placement(GV_SHARDS, gv_ndevices());
	mirror = make_mirror(&index);
	CHECK(put_records(mirror, &records) == GV_OK, "records");
	CHECK(gv_searcher(unit_placement.devices[0], &searcher) == GV_OK,
		  "searcher");
	gv_force_helpers(2);
	check_bounded(searcher, mirror, &index, &records, 1100);
	/* less of it, where there is memory for more */
	check_bounded(searcher, mirror, &index, &records, 1030);
	gv_force_helpers(-1);
	gv_searcher_drop(searcher);
	gv_mirror_drop(mirror);
	unit_placement.ndevices = 0;
	free_records(&records);
	free_index(&index);
}

/* All lists of one shard are empty, then those of all but one. */
static void
test_empty_shards(int32_t n)
{
	Records		records;
	TestIndex	index = make_recorded(&records, 1, 50);
	GvMirror   *mirror;
	GvSearcher *searcher = NULL;
	int32_t		last = 0;
	int32_t		list;

	unit_placement = draw_placement(GV_SHARDS, n);
	mirror = make_mirror(&index);
	CHECK(put_records(mirror, &records) == GV_OK, "records");
	CHECK(gv_searcher(unit_placement.devices[n - 1], &searcher) == GV_OK,
		  "searcher");
	for (last = 0; last < n; last++)
	{
		for (list = 0; list < index.spec.nlists; list++)
		{
			GvListChunk chunk = index_chunk(&index, list, 0, 0, false);

			if (list % n != last)
				continue;
			CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "empty");
			resize_list(&index, &index.lists[list], 0, 0);
		}
		check_bounded(searcher, mirror, &index, &records, 9);
		check_searches(searcher, mirror, &index, "empty shards");
	}
	gv_searcher_drop(searcher);
	gv_mirror_drop(mirror);
	unit_placement.ndevices = 0;
	free_records(&records);
	free_index(&index);
}

/*
 * Each of the engine's calls for a search of shards fails, and the next is
 * well.
 */
static void
test_member_faults(int32_t n)
{
	Records		records;
	TestIndex	index = make_recorded(&records, 1, 40);
	GvMirror   *mirror;
	int			status;
	int			call;

	unit_placement = draw_placement(GV_SHARDS, n);
	mirror = make_mirror(&index);
	CHECK(put_records(mirror, &records) == GV_OK, "records");
	for (status = GV_NO_MEMORY; status <= GV_FAILED; status++)
		for (call = 2;; call++)
		{
			GvSearcher *searcher = NULL;
			GvSearch	search = new_search(&index, 30, 30, 200);
			GvStatus	got;
			bool		struck;

			search.bounded = true;
			CHECK(gv_searcher(unit_placement.devices[0], &searcher) == GV_OK,
				  "searcher");
			fault_call = call - 1;
			fault_status = (GvStatus) status;
			got = gv_mirror_search(searcher, mirror, &search, 1);
			struck = fault_call == 0;
			CHECK(got == (struck ? (GvStatus) status : GV_OK),
				  "call %d: %d in the place of %d", call, got, status);
			fault_call = 0;
			check_bounded(searcher, mirror, &index, &records, 5);
			gv_searcher_drop(searcher);
			free_searches(&search, 1);
			if (!struck)
				break;
		}
	gv_mirror_drop(mirror);
	unit_placement.ndevices = 0;
	free_records(&records);
	free_index(&index);
}

/* Each replica that is left answers for all. */
static void
check_replicas(GvMirror *mirror, const TestIndex *index,
			   const Records *records)
{
	GvDeviceUsage		usage[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(mirror, usage);
	uint32_t	has = 0;
	GvSearcher *searcher = NULL;
	int32_t		i;

	for (i = 0; i < n; i++)
		has |= UINT32_C(1) << usage[i].device;
	for (i = 0; i < gv_ndevices(); i++)
	{
		GvSearch	search = new_search(index, 2, 9, 5);

		CHECK(gv_searcher(i, &searcher) == GV_OK, "searcher %d", i);
		if ((has >> i & 1) != 0)
			check_bounded(searcher, mirror, index, records, 7);
		else
			CHECK(gv_mirror_search(searcher, mirror, &search,
								   1) == GV_INVALID, "device %d has none", i);
		gv_searcher_drop(searcher);
		free_searches(&search, 1);
	}
}

/* One replica and then another finds no memory; the last one stays. */
static void
test_replicas(int32_t n)
{
	Records		records;
	TestIndex	index = make_recorded(&records, 1, 40);
	GvDeviceUsage		usage[GV_MAX_DEVICES];
	GvMirror   *mirror;
	int32_t		left;

	unit_placement = draw_placement(GV_REPLICAS, n);
	mirror = make_mirror(&index);
	CHECK(put_records(mirror, &records) == GV_OK, "records");
	CHECK(gv_mirror_usage(mirror, usage) == n, "replicas");
	CHECK(gv_mirror_list_shard(mirror, 1) == -1, "a list of one replica");
	check_replicas(mirror, &index, &records);
	for (left = n; left > 0; left--)
	{
		/* the first, the last, or one between */
		int32_t		device = usage[unit_random() % (uint64_t) left].device;

		limits[device] = 1;
		/* the last one is told by lists, which it keeps as they were */
		CHECK((left % 2 > 0 ? fill_mirror(mirror, &index) :
			   put_records(mirror, &records)) ==
			  (left == 1 ? GV_NO_MEMORY : GV_OK), "%d left", left);
		CHECK(gv_mirror_usage(mirror, usage) == (left == 1 ? 1 : left - 1),
			  "replicas that are left");
		limits[device] = INT64_MAX;
		if (left == 1)
			CHECK(fill_mirror(mirror, &index) == GV_OK, "again");
		check_replicas(mirror, &index, &records);
	}
	CHECK(gv_mirror_drop_replica(mirror, usage[0].device) == GV_INVALID,
		  "the last replica goes");
	gv_mirror_drop(mirror);
	unit_placement.ndevices = 0;
	free_records(&records);
	free_index(&index);
}

/* Where no member of a new mirror has memory, and where some have. */
static void
test_creation(int32_t n)
{
	TestIndex	index = make_index(GV_L2, 4, 2, 9, 2, 20, false);
	GvPlacement	placement = draw_placement(GV_SHARDS, n);
	GvPlacement	alone = {GV_SHARDS, 1, {0}};
	GvDeviceUsage		usage[GV_MAX_DEVICES];
	GvMirror   *mirror = NULL;
	int32_t		lacking;

	limits[placement.devices[n - 1]] = 0;
	CHECK(gv_mirror_create_on(&index.spec, &placement, &mirror,
							  &lacking) == GV_NO_MEMORY && lacking == n - 1,
		  "shards: part %d", lacking);
	alone.devices[0] = placement.devices[n - 1];
	CHECK(gv_mirror_create_on(&index.spec, &alone, &mirror,
							  &lacking) == GV_NO_MEMORY && lacking == -1,
		  "alone: part %d", lacking);
	placement.mode = GV_REPLICAS;
	CHECK(gv_mirror_create_on(&index.spec, &placement, &mirror, NULL) ==
		  GV_OK &&
		  gv_mirror_usage(mirror, usage) == n - 1, "replicas");
	CHECK(fill_mirror(mirror, &index) == GV_OK, "fill");
	if (n > 2)
		CHECK(gv_mirror_drop_replica(mirror, placement.devices[0]) == GV_OK &&
			  gv_mirror_usage(mirror, usage) == n - 2, "one less");
	gv_mirror_drop(mirror);
	limits[placement.devices[n - 1]] = INT64_MAX;
#define INVALID(change) \
	do \
	{ \
		GvPlacement	bad = placement; \
\
		bad.change; \
		CHECK(gv_mirror_create_on(&index.spec, &bad, &mirror, NULL) == GV_INVALID && \
			  gv_mirror_member_size(&index.spec, &bad, 0) == 0, "accepted"); \
	} while (0)
	INVALID(ndevices = 0);
	INVALID(ndevices = gv_ndevices() + 1);
	INVALID(mode = (GvPlacementMode) 2);
	INVALID(devices[0] = -1);
	INVALID(devices[0] = gv_ndevices());
	INVALID(devices[1] = bad.devices[0]);
	CHECK(gv_mirror_member_size(&index.spec, &placement, -1) == 0 &&
		  gv_mirror_member_size(&index.spec, &placement, n) == 0,
			"no such part");
	free_index(&index);
}

void
test_mirror_spread(void)
{
	int32_t		n;

	/* who multiplies makes no difference to what is done with the answers */
	if (unit_small && gv_matmul_used() == GV_MATMUL_CUBLAS)
		return;
	for (n = 2; n <= gv_ndevices(); n++)
	{
		/* at small size all that mirrors do is looked at with three */
		if (!unit_small || n == 3)
			test_as_one(GV_SHARDS, n);
		test_shards(n);
		if (!unit_small || n == 3)
			test_empty_shards(n);
		test_member_faults(n);
		test_replicas(n);
		test_creation(n);
	}
	if (gv_ndevices() > 1)
		test_helpers();
	if (gv_ndevices() > 1 && !unit_small)
		test_as_one(GV_REPLICAS, 2);
}
