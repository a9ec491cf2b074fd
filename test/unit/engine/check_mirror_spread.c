/*
 * check_mirror_spread.c
 *		Mirrors on several devices answer as a mirror on one device does: with
 *		shards and replicas, with members that are empty, that find no memory,
 *		or whose calls fail.
 *
 * Calls of the engine go through functions in this file, which note the device
 * of each mirror, and fail when a test requests it.
 */
#include "mirrors.h"

#include "engine/mirror/gv_multi.h"
#include "engine/mirror/gv_parallel.h"

#define MOST_NOTED	256

/* The engine's mirrors that exist, and their devices. */
static struct
{
	GvMirror   *mirror;
	int32_t		device;
}			noted[MOST_NOTED];

/*
 * By device: a mirror that has more than this many bytes on the device gets no
 * more memory there, and if the limit is 0 no mirror can be created.  Calls
 * that fail for that report lacks[device], which is GV_NO_MEMORY unless a test
 * sets it.
 */
static int64_t limits[GV_MAX_DEVICES];
static GvStatus lacks[GV_MAX_DEVICES];

/* If fault_call is n > 0, the n-th call of a searcher reports fault_status. */
static int64_t fault_call;
static GvStatus fault_status;

/* If this is not GV_OK, all calls of finish report it. */
static GvStatus finish_status;

static bool
is_due(GvStatus *status)
{
	*status = fault_status;
	return fault_call > 0 && --fault_call == 0;
}

/* Returns the status with which a change of the mirror must fail, or GV_OK. */
static GvStatus
refusal(const GvMirror *mirror)
{
	int			i = 0;

	while (noted[i].mirror != mirror)
		i++;
	return UNIT_MIRRORS.bytes(mirror) > limits[noted[i].device] ?
		lacks[noted[i].device] : GV_OK;
}

static GvStatus
noting_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvStatus	status;
	int			i = 0;

	if (limits[spec->device] == 0)
		return lacks[spec->device];
	status = UNIT_MIRRORS.create(spec, mirror);
	while (status == GV_OK)
	{
		GvMirror   *none = NULL;

		/* other threads may create mirrors at the same time */
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
	GvStatus	status = chunk->codes != NULL ? refusal(mirror) : GV_OK;

	return status != GV_OK ? status : UNIT_MIRRORS.put_list(mirror, chunk);
}

static GvStatus
limited_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	GvStatus	status = refusal(mirror);

	return status != GV_OK ? status :
		UNIT_MIRRORS.put_refine(mirror, items, n);
}

static GvStatus
limited_put_rows(GvMirror *mirror, const GvRowItem *items, int32_t n)
{
	GvStatus	status = refusal(mirror);

	return status != GV_OK ? status : UNIT_MIRRORS.put_rows(mirror, items, n);
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

	if (is_due(&injected))
		return injected;
	return finish_status != GV_OK ? finish_status : status;
}

/* Returns the engine with the functions above in place of its own. */
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
	table.put_rows = limited_put_rows;
	table.searcher = faulty_searcher;
	table.begin = faulty_begin;
	table.finish = faulty_finish;
	for (i = 0; i < GV_MAX_DEVICES; i++)
	{
		limits[i] = INT64_MAX;
		lacks[i] = GV_NO_MEMORY;
	}
	return &table;
}

/* Returns a placement on devices drawn at random. */
static GvPlacement
draw_placement(int32_t nshards, int32_t nreplicas)
{
	GvPlacement	placement = {nshards, nreplicas, {0}};
	uint32_t	taken = 0;
	int32_t		n = 0;

	while (n < gv_nmembers(&placement))
	{
		int32_t		device = (int32_t) (unit_random() %
										(uint64_t) gv_ndevices());

		if ((taken >> device & 1) == 0)
			placement.devices[n++] = device;
		taken |= UINT32_C(1) << device;
	}
	return placement;
}

/*
 * Creates searchers for a replica of a placement, in unit_team.  Its shards
 * share the choice of lists or not, at random.
 */
static void
open_team(const GvPlacement *placement, int32_t replica)
{
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		i;

	for (i = 0; i < placement->nshards; i++)
		usage[i].device = placement->devices[replica * placement->nshards + i];
	CHECK(unit_open_team(usage, placement->nshards) == GV_OK, "searchers");
	gv_devices_share_choice(unit_random() % 2 > 0);
}

/* Runs the tests of mirrors on one device on a replica drawn at random. */
static void
test_as_one(int32_t nshards, int32_t nreplicas)
{
	GvSearcher *searcher;

	unit_placement = draw_placement(nshards, nreplicas);
	open_team(&unit_placement,
			  (int32_t) (unit_random() % (uint64_t) nreplicas));
	searcher = unit_team.of[0];
	test_shapes(searcher);
	test_changes(searcher, 0);
	test_changes(searcher, 2);
	test_rows(searcher);
	unit_close_team();
	unit_placement.nshards = 0;
}

/*
 * An index with keys and records on many pages, and its mirror at
 * unit_placement; open_team opens searchers of a replica.
 */
typedef struct Spread
{
	TestIndex	index;
	Records		records;
	GvMirror   *mirror;
} Spread;

static Spread
begin_spread(int32_t nshards, int32_t nreplicas, int nkeys, int32_t mean)
{
	Spread		spread = {.index = make_index(GV_L2 + unit_random() % 3, 9, 4,
											  30, 4, mean,
											  unit_random() % 2 > 0)};

	give_keys(&spread.index, nkeys);
	spread.records = make_records(&spread.index, 8 * GV_PAGE_RUN + 5, 3);
	unit_placement = draw_placement(nshards, nreplicas);
	spread.mirror = make_mirror(&spread.index);
	OK(put_records(spread.mirror, &spread.records));
	return spread;
}

static void
end_spread(Spread *spread)
{
	unit_close_team();
	gv_mirror_drop(spread->mirror);
	free_records(&spread->records);
	free_index(&spread->index);
	unit_placement.nshards = 0;
}

#define OwnSpread	UNIT_OWN(end_spread) Spread

/* n searches by the replica whose searchers are open. */
static void
check_spread(const Spread *spread, int n)
{
	check_batch(unit_team.of[0], spread->mirror, &spread->index,
				&spread->records, n, 30, 400, "spread");
}

/*
 * Checks that every member is on the device of the placement and takes memory,
 * and which shard owns each list.
 */
static void
check_shards(const GvMirror *mirror, const TestIndex *index)
{
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(mirror, usage);
	int64_t		bytes = 0;
	int32_t		i;

	CHECK(n == gv_nmembers(&unit_placement), "%d members", n);
	for (i = 0; i < n; i++)
	{
		CHECK(usage[i].device == unit_placement.devices[i] &&
			  usage[i].bytes > 0,
			  "member %d", i);
		CHECK(gv_mirror_member_size(&index->spec, &unit_placement, i) <
			  gv_mirror_size(&index->spec), "size of member %d", i);
		bytes += usage[i].bytes;
	}
	CHECK(bytes == gv_mirror_bytes(mirror), "bytes");
	for (i = 0; i < index->spec.nlists; i++)
		CHECK(gv_mirror_list_shard(mirror, i) == i % unit_placement.nshards,
			  "list %d", i);
}

/* Searchers that are not those of a replica, in its order, are refused. */
static void
check_strangers(GvMirror *mirror, const TestIndex *index)
{
	GvSearch	search = new_search(index, 2, 9, 5);
	int32_t		n = unit_team.n;
	GvSearcher *first = unit_team.of[0];
	GvSearcher *swapped[GV_MAX_DEVICES];
	int32_t		i;

	INVALID(gv_mirror_search(first, mirror, &search, 1));
	INVALID(gv_mirror_search_shards(unit_team.of, n - 1, mirror, &search, 1));
	for (i = 0; i < n; i++)
		swapped[i] = unit_team.of[n - 1 - i];
	INVALID(gv_mirror_search_shards(swapped, n, mirror, &search, 1));
	swapped[0] = unit_team.of[0];
	for (i = 1; i < n; i++)
		swapped[i] = unit_team.of[i];
	swapped[n - 1] = NULL;
	INVALID(gv_mirror_search_shards(swapped, n, mirror, &search, 1));
	free_searches(&search, 1);
}

/*
 * Each replica answers searches with bounds, conditions and ranks.  Then the
 * last replica is dropped, and the others still answer.
 */
static void
test_shards(int32_t nshards, int32_t nreplicas)
{
	OwnSpread	spread = begin_spread(nshards, nreplicas, 2,
									  nshards == 2 ? 150 : 60);
	int			round;
	int32_t		left;

	check_shards(spread.mirror, &spread.index);
	for (left = nreplicas; left > 0; left--)
	{
		for (round = 0; round < 4; round++)
		{
			OK(put_records(spread.mirror, &spread.records));
			open_team(&unit_placement, round % left);
			check_spread(&spread, 1);
			check_spread(&spread, 30);
			check_spread(&spread, 3);
			check_strangers(spread.mirror, &spread.index);
			unit_close_team();
		}
		check_contents(spread.mirror, &spread.index);
		/* drop the last replica, named by any of its devices */
		unit_placement.nreplicas = left - 1;
		CHECK(gv_mirror_drop_replica
			  (spread.mirror, unit_placement.devices
			   [(left - 1) * nshards + (int32_t) (unit_random() %
												  (uint64_t) nshards)]) ==
			  (left > 1 ? GV_OK : GV_INVALID), "%d replicas", left);
	}
}

/* All replicas search at the same time, and answer as one device does. */
static void
test_together(int32_t nshards, int32_t nreplicas)
{
	OwnSpread	spread = begin_spread(nshards, nreplicas, 0, 60);
	int32_t		n = gv_nmembers(&unit_placement);
	GvSearcher *searchers[GV_MAX_DEVICES];
	GvSearch	searches[GV_MAX_DEVICES][3];
	int32_t		i;
	int			j;

	for (i = 0; i < n; i++)
		OK(gv_searcher(unit_placement.devices[i], &searchers[i]));
	for (i = 0; i < nreplicas; i++)
	{
		for (j = 0; j < 3; j++)
			searches[i][j] = new_search(&spread.index, 2 + 9 * j, 20,
										5 << 4 * j);
		OK(gv_mirror_begin_shards(&searchers[i * nshards], nshards,
								  spread.mirror, searches[i], 3));
	}
	for (i = nreplicas - 1; i >= 0; i--)
	{
		OK(gv_mirror_finish(searchers[i * nshards]));
		check_answers(&spread.index, searches[i], 3,
					  "replicas at the same time");
		free_searches(searches[i], 3);
	}
	for (i = 0; i < n; i++)
		gv_searcher_drop(searchers[i]);
}

/* There are so many searches that several threads merge the answers. */
static void
test_helpers(void)
{
	OwnSpread	spread = begin_spread(gv_ndevices(), 1, 1, 20);

	open_team(&unit_placement, 0);
	gv_force_helpers(2);
	check_spread(&spread, 1100);
	/* fewer searches than the searcher has memory for */
	check_spread(&spread, 1030);
	gv_force_helpers(-1);
}

/* The lists of one shard after another become empty, until all are empty. */
static void
test_empty_shards(int32_t n)
{
	OwnSpread	spread = begin_spread(n, 1, 1, 50);
	int32_t		last;
	int32_t		list;

	open_team(&unit_placement, 0);
	for (last = 0; last < n; last++)
	{
		for (list = last; list < spread.index.spec.nlists; list += n)
		{
			GvListChunk chunk = index_chunk(&spread.index, list, 0, 0, false);

			OK(gv_mirror_put_list(spread.mirror, &chunk));
			resize_list(&spread.index, &spread.index.lists[list], 0, 0);
		}
		check_spread(&spread, 9);
		check_searches(unit_team.of[0], spread.mirror, &spread.index,
					   "empty shards");
	}
}

/*
 * Each of the engine's calls in a search of shards fails once.  The search
 * then reports that status, and the next searches succeed.
 */
static void
test_member_faults(int32_t n)
{
	OwnSpread	spread = begin_spread(n, 1, 1, 40);
	int			status;
	int			call;

	for (status = GV_NO_MEMORY; status <= GV_FAILED; status++)
	{
		bool		struck = true;

		for (call = 2; struck; call++)
		{
			GvSearch	search = new_search(&spread.index, 30, 30, 200);
			GvStatus	got;

			search.bounded = true;
			open_team(&unit_placement, 0);
			fault_call = call - 1;
			fault_status = (GvStatus) status;
			got = unit_search(unit_team.of[0], spread.mirror, &search, 1);
			struck = fault_call == 0;
			CHECK(got == (struck ? (GvStatus) status : GV_OK),
				  "call %d: %d instead of %d", call, got, status);
			fault_call = 0;
			check_spread(&spread, 5);
			free_searches(&search, 1);
		}
	}
}

/* Each replica that is left answers, and all other devices are refused. */
static void
check_replicas(const Spread *spread, int32_t nshards)
{
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(spread->mirror, usage);
	uint32_t	has = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
		has |= UINT32_C(1) << usage[i].device;
	for (i = 0; i < n; i += nshards)
	{
		OK(unit_open_team(&usage[i], nshards));
		check_spread(spread, 7);
		unit_close_team();
	}
	for (i = 0; i < gv_ndevices(); i++)
	{
		GvSearch	search = new_search(&spread->index, 2, 9, 5);
		OwnSearcher	searcher = NULL;

		OK(gv_searcher(i, &searcher));
		if ((has >> i & 1) == 0)
			INVALID(gv_mirror_search(searcher, spread->mirror, &search, 1));
		free_searches(&search, 1);
	}
}

/*
 * A shard of one replica after another finds no memory for lists or records.
 * The replica is dropped, unless it is the last one.
 */
static void
test_replicas(int32_t nshards, int32_t nreplicas)
{
	OwnSpread	spread = begin_spread(nshards, nreplicas, 1, 40);
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		left;

	CHECK(gv_mirror_usage(spread.mirror, usage) == nshards * nreplicas,
		  "replicas");
	check_replicas(&spread, nshards);
	for (left = nreplicas; left > 0; left--)
	{
		/* any shard of any replica */
		int32_t		device = usage[unit_random() %
								   (uint64_t) (left * nshards)].device;
		int32_t		n = nshards * (left == 1 ? 1 : left - 1);
		int32_t		i;

		limits[device] = 1;
		/* the last replica is refused lists, and keeps those that it has */
		CHECK((left % 2 > 0 ? fill_mirror(spread.mirror, &spread.index) :
			   put_records(spread.mirror, &spread.records)) ==
			  (left == 1 ? GV_NO_MEMORY : GV_OK), "%d left", left);
		CHECK(gv_mirror_usage(spread.mirror, usage) == n,
			  "replicas that are left");
		for (i = 0; i < n && left > 1; i++)
			CHECK(usage[i].device != device, "it is still there");
		limits[device] = INT64_MAX;
		if (left == 1)
			OK(fill_mirror(spread.mirror, &spread.index));
		check_replicas(&spread, nshards);
	}
	INVALID(gv_mirror_drop_replica(spread.mirror, usage[0].device));
}

/*
 * A shard finds no memory for rows.  No replica is dropped for that, and all
 * answer when the rows are dropped.
 */
static void
test_rows_memory(int32_t nshards, int32_t nreplicas)
{
	OwnIndex	index = make_index(GV_L2, 9, 4, 9, 3, 40, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_HALF, 70, 2);
	OwnMirror	mirror = NULL;
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		n = nshards * nreplicas;
	int32_t		i;

	unit_placement = draw_placement(nshards, nreplicas);
	mirror = make_mirror(&index);
	OK(put_some_rows(mirror, &rows, 1));
	limits[unit_placement.devices[n - 1]] = 1;
	CHECK(put_some_rows(mirror, &rows, 2) == GV_NO_MEMORY, "rows");
	limits[unit_placement.devices[n - 1]] = INT64_MAX;
	OK(gv_mirror_drop_rows(mirror));
	CHECK(gv_mirror_usage(mirror, usage) == n, "a replica is dropped");
	for (i = 0; i < n; i += nshards)
	{
		OK(unit_open_team(&usage[i], nshards));
		check_searches(unit_team.of[0], mirror, &index, "without rows");
		unit_close_team();
	}
	unit_placement.nshards = 0;
}

/* Members of a new mirror find no memory; invalid placements are refused. */
static void
test_creation(int32_t n)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 9, 2, 20, false);
	GvPlacement	placement = draw_placement(n, 1);
	GvPlacement	alone = {1, 1, {0}};
	GvDeviceUsage usage[GV_MAX_DEVICES];
	GvMirror   *mirror = NULL;
	uint32_t	lacking;

	limits[placement.devices[n - 1]] = 0;
	CHECK(gv_mirror_create_on(&index.spec, &placement, &mirror,
							  &lacking) == GV_NO_MEMORY &&
		  lacking == UINT32_C(1) << (n - 1), "shards: members %x", lacking);
	alone.devices[0] = placement.devices[n - 1];
	CHECK(gv_mirror_create_on(&index.spec, &alone, &mirror,
							  &lacking) == GV_NO_MEMORY && lacking == 1,
		  "alone: members %x", lacking);
	placement.nshards = 1;
	placement.nreplicas = n;
	CHECK(gv_mirror_create_on(&index.spec, &placement, &mirror, NULL) ==
		  GV_OK &&
		  gv_mirror_usage(mirror, usage) == n - 1, "replicas");
	CHECK(fill_mirror(mirror, &index) == GV_OK, "fill");
	if (n > 2)
		CHECK(gv_mirror_drop_replica(mirror, placement.devices[0]) == GV_OK &&
			  gv_mirror_usage(mirror, usage) == n - 2, "one less");
	gv_mirror_drop(mirror);
	limits[placement.devices[n - 1]] = INT64_MAX;
#define REFUSED(change) \
	do \
	{ \
		GvPlacement	bad = placement; \
\
		bad.change; \
		CHECK(gv_mirror_create_on(&index.spec, &bad, &mirror, NULL) == GV_INVALID && \
			  gv_mirror_member_size(&index.spec, &bad, 0) == 0, "accepted"); \
	} while (0)
	REFUSED(nreplicas = 0);
	REFUSED(nshards = 0);
	REFUSED(nreplicas = gv_ndevices() + 1);
	REFUSED(nshards = gv_ndevices() / n + 1);
	REFUSED(nshards = INT32_MAX);
	REFUSED(devices[0] = -1);
	REFUSED(devices[0] = gv_ndevices());
	REFUSED(devices[1] = bad.devices[0]);
	CHECK(gv_mirror_member_size(&index.spec, &placement, -1) == 0 &&
		  gv_mirror_member_size(&index.spec, &placement, n) == 0,
		  "no such member");
}

/*
 * Two replicas of two shards are created.  First a shard of each finds no
 * memory, then only a shard of the first replica.
 */
static void
test_creation_of_both(void)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 9, 2, 20, false);
	GvPlacement	placement = draw_placement(2, 2);
	GvDeviceUsage usage[GV_MAX_DEVICES];
	GvMirror   *mirror = NULL;
	uint32_t	lacking;

	limits[placement.devices[1]] = 0;
	limits[placement.devices[2]] = 0;
	CHECK(gv_mirror_create_on(&index.spec, &placement, &mirror,
							  &lacking) == GV_NO_MEMORY && lacking == 6,
		  "members %x", lacking);
	limits[placement.devices[2]] = INT64_MAX;
	OK(gv_mirror_create_on(&index.spec, &placement, &mirror, &lacking));
	CHECK(gv_mirror_usage(mirror, usage) == 2 &&
		  usage[0].device == placement.devices[2] &&
		  usage[1].device == placement.devices[3], "the other replica");
	CHECK(fill_mirror(mirror, &index) == GV_OK, "fill");
	gv_mirror_drop(mirror);
	limits[placement.devices[1]] = INT64_MAX;
}

/*
 * If two members fail in different ways, the greatest status is reported: of
 * two replicas in either order, and of two shards if one fails to begin and
 * the other to finish.
 */
static void
test_greatest_status(void)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 9, 2, 20, false);
	GvSearch	search = new_search(&index, 2, 9, 5);
	GvDeviceUsage usage[GV_MAX_DEVICES];
	OwnMirror	replicas = NULL;
	OwnMirror	shards = NULL;
	GvMirror   *none = NULL;
	int			i;
	int			r;

	unit_placement = draw_placement(1, 2);
	replicas = make_mirror(&index);
	for (i = 0; i < 2; i++)
	{
		for (r = 0; r < 2; r++)
		{
			limits[unit_placement.devices[r]] = 0;
			lacks[unit_placement.devices[r]] = r == i ? GV_REJECTED :
				GV_NO_MEMORY;
		}
		CHECK(gv_mirror_create_on(&index.spec, &unit_placement, &none,
								  NULL) == GV_REJECTED, "create, %d", i);
		CHECK(fill_mirror(replicas, &index) == GV_REJECTED, "fill, %d", i);
		CHECK(gv_mirror_usage(replicas, usage) == 2, "a replica is dropped");
		for (r = 0; r < 2; r++)
		{
			limits[unit_placement.devices[r]] = INT64_MAX;
			lacks[unit_placement.devices[r]] = GV_NO_MEMORY;
		}
	}
	OK(fill_mirror(replicas, &index));

	unit_placement = draw_placement(2, 1);
	shards = make_mirror(&index);
	open_team(&unit_placement, 0);
	gv_devices_share_choice(false);
	fault_call = 2;
	fault_status = GV_NO_MEMORY;
	finish_status = GV_FAILED;
	CHECK(unit_search(unit_team.of[0], shards, &search, 1) == GV_FAILED,
		  "begin and finish");
	fault_call = 0;
	finish_status = GV_OK;
	check_searches(unit_team.of[0], shards, &index, "after a failure");
	unit_close_team();
	unit_placement.nshards = 0;
	free_searches(&search, 1);
}

void
test_mirror_spread(void)
{
	static const int32_t both[][2] = {{2, 2}, {2, 3}, {3, 2}};
	int32_t		n;
	int			i;

	/* these tests do not depend on the kernels that multiply matrices */
	if (unit_small && gv_matmul_used() == GV_MATMUL_CUBLAS)
		return;
	if (gv_ndevices() > 1)
		test_as_one(1, 1);
	for (n = 2; n <= gv_ndevices() && n <= 4; n++)
	{
		/* at small size, run the tests of one device with three shards only */
		if (!unit_small || n == 3)
			test_as_one(n, 1);
		test_shards(n, 1);
		if (!unit_small || n == 3)
			test_empty_shards(n);
		test_member_faults(n);
		test_replicas(1, n);
		test_together(1, n);
		test_creation(n);
	}
	/* up to 3 replicas of 2 shards, and 2 of 3 */
	for (i = 0; i < 3 && both[i][0] * both[i][1] <= gv_ndevices(); i++)
	{
		test_as_one(both[i][0], both[i][1]);
		test_shards(both[i][0], both[i][1]);
		test_replicas(both[i][0], both[i][1]);
		test_together(both[i][0], both[i][1]);
	}
	if (gv_ndevices() > 3)
	{
		test_creation_of_both();
		test_rows_memory(2, 2);
	}
	if (gv_ndevices() > 1)
	{
		test_rows_memory(1, 2);
		test_greatest_status();
		test_helpers();
		test_as_one(1, 3 < gv_ndevices() ? 3 : 2);
	}
}
