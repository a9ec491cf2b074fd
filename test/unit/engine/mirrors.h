/*
 * mirrors.h
 *		Functions that fill mirrors from a random index, and check searches.
 *
 * The mirrors are those of the portable engine or, if UNIT_MIRRORS is defined,
 * of the engine that it names (test/unit/gpu).  The latter may compare a query
 * with all lists, and may keep the memory of lists that shrink.
 */
#ifndef MIRRORS_H
#define MIRRORS_H

#include "records.h"
#include "rows.h"
#include "test/oracle/gv_oracle.h"

#ifdef UNIT_MIRRORS
#define UNIT_CARD				/* the CUDA engine, emulated or on a device */
#define UNIT_FLAT		true

/* of gpu/search: where its ways begin, see there */
extern int64_t gv_coarse_filter_from;
extern int64_t gv_scores_kept;
extern int32_t gv_select_by;
extern int32_t gv_least_slice;
extern int32_t gv_batch_by_list;
#else
#define UNIT_MIRRORS	gv_cpu_mirrors
#define UNIT_FLAT		false
#endif

static inline void
unit_drop_mirror(GvMirror **mirror)
{
	gv_mirror_drop(*mirror);
}

static inline void
unit_drop_searcher(GvSearcher **searcher)
{
	gv_searcher_drop(*searcher);
}

#define OwnMirror	UNIT_OWN(unit_drop_mirror) GvMirror *
#define OwnSearcher	UNIT_OWN(unit_drop_searcher) GvSearcher *

/* Opens an engine for tests of other things, if test_mirror does not run. */
static inline void
open_mirrors(void)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;

	CHECK(gv_mirrors_open(&UNIT_MIRRORS, "", found, &nfound) == GV_OK,
		  "no engine: %s", found->name);
}

/*
 * Puts all of an index into a mirror: lists in chunks of 3 blocks, and of a
 * large index, which takes fewer calls, whole ones that are not empty.
 */
static inline GvStatus
fill_mirror(GvMirror *mirror, const TestIndex *index)
{
	bool		large = index->spec.postings + index->spec.nlists > 5000;
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
		int32_t		nblocks = index->lists[list].nblocks;
		int32_t		most = large ? nblocks : 3;
		int32_t		first = 0;

		if (large && nblocks == 0)
			continue;
		do
		{
			int32_t		left = nblocks - first;
			GvListChunk chunk = index_chunk(index, list, first,
											left < most ? left : most, false);

			status = gv_mirror_put_list(mirror, &chunk);
			first += chunk.nblocks;
		} while (first < nblocks && status == GV_OK);
	}
	return status;
}

/* The placement of the mirrors that make_mirror makes, unless nshards is 0. */
extern GvPlacement unit_placement;

/*
 * Searchers of the shards of a replica.  Tests pass on the first one only;
 * unit_begin and unit_search take all of them if they get that one.
 */
typedef struct UnitTeam
{
	int32_t		n;
	GvSearcher *of[GV_MAX_DEVICES];
} UnitTeam;

extern UnitTeam unit_team;

static inline void
unit_close_team(void)
{
	while (unit_team.n > 0)
		gv_searcher_drop(unit_team.of[--unit_team.n]);
}

/* Creates searchers for the shards of a replica, which are on n devices. */
static inline GvStatus
unit_open_team(const GvDeviceUsage *usage, int32_t n)
{
	GvStatus	status = GV_OK;

	unit_close_team();
	for (; unit_team.n < n && status == GV_OK;
		 unit_team.n += status == GV_OK)
		status = gv_searcher(usage[unit_team.n].device,
							 &unit_team.of[unit_team.n]);
	return status;
}

static inline GvStatus
unit_begin(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
		   int32_t n)
{
	return unit_team.n > 1 && searcher == unit_team.of[0] ?
		gv_mirror_begin_shards(unit_team.of, unit_team.n, mirror, searches,
							   n) :
		gv_mirror_begin(searcher, mirror, searches, n);
}

static inline GvStatus
unit_search(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
			int32_t n)
{
	GvStatus	status = unit_begin(searcher, mirror, searches, n);

	return status == GV_OK ? gv_mirror_finish(searcher) : status;
}

static inline GvMirror *
make_mirror(const TestIndex *index)
{
	GvMirror   *mirror = NULL;

	CHECK((unit_placement.nshards == 0 ?
		   gv_mirror_create(&index->spec, &mirror) :
		   gv_mirror_create_on(&index->spec, &unit_placement,
							   &mirror, NULL)) == GV_OK, "create");
	CHECK(fill_mirror(mirror, index) == GV_OK, "fill");
	return mirror;
}

static inline GvSearch
new_search(const TestIndex *index, int32_t probes, int32_t compare,
		   int32_t capacity)
{
	GvSearch	search = {0};

	search.query = index_floats(index->spec.dims, index->ties);
	search.probes = probes;
	search.compare = compare;
	search.capacity = capacity;
	search.by_number = probes >= index->spec.nlists && unit_random() % 2 > 0;
	search.sums = search.by_number && unit_random() % 2 > 0;
	if (index->spec.keys.nkeys > 0 && unit_random() % 4 > 0)
	{
		UnitCondition *made = unit_alloc(sizeof(UnitCondition));

		unit_make_condition(made, &index->spec.keys,
							(int) (unit_random() % 3));
		search.condition = &made->condition;
		if (unit_random() % 2 > 0)
			search.rank = 1 + (int32_t) (unit_random() %
										 (capacity < 40 ? capacity : 40));
	}
	return search;
}

static inline void
free_searches(GvSearch *searches, int n)
{
	int			i;

	for (i = 0; i < n; i++)
	{
		UnitCondition *made = (UnitCondition *) searches[i].condition;

		unit_free((void *) searches[i].query);
		if (made == NULL)
			continue;
		unit_free_condition(made);
		unit_free(made);
	}
}

/*
 * Compares the answers of one call, which the next call overwrites, with those
 * of the reference.
 */
static inline void
check_answers(const TestIndex *index, const GvSearch *searches, int n,
			  const char *what)
{
	int			i;

	for (i = 0; i < n; i++)
		CHECK(search_is_right(index, searches[i].query, searches[i].probes,
							  UNIT_FLAT ? index->spec.nlists :
							  searches[i].compare, searches[i].capacity,
							  &searches[i]),
			  "%s: probes %d compare %d capacity %d: %d lists, %d hits, "
			  "%ld postings, %d tests; rank %d: %ld, squares %ld", what, searches[i].probes,
			  searches[i].compare, searches[i].capacity, searches[i].nprobed,
			  searches[i].nhits, (long) searches[i].postings,
			  searches[i].condition == NULL ? 0 :
			  searches[i].condition->ntests, searches[i].rank,
			  (long) searches[i].nearer, (long) searches[i].nearer_squares);
}

/* Searches [n] of one call, and their answers. */
static inline void
check_call(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
		   GvSearch *searches, int n, const char *what)
{
	CHECK(unit_search(searcher, mirror, searches, n) == GV_OK, "%s", what);
	check_answers(index, searches, n, what);
}

/*
 * n random searches in one call, of up to `probes` lists and `capacity`
 * postings each; with records, most of them bounded.  If these may be all
 * lists, all of the searches request only sums now and then.
 */
static inline void
check_batch(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			const Records *records, int n, int32_t probes, int32_t capacity,
			const char *what)
{
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	bool		sums = probes >= index->spec.nlists && unit_random() % 4 == 0;
	int			i;

	for (i = 0; i < n; i++)
	{
		int32_t		some = 1 + (int32_t) (unit_random() % probes);

		searches[i] = new_search(index, sums ? probes : some,
								 index->spec.nlists,
								 1 + (int32_t) (unit_random() % capacity));
		if (sums)
			searches[i].by_number = searches[i].sums = true;
		searches[i].bounded = records != NULL && unit_random() % 4 > 0;
	}
	CHECK(unit_begin(searcher, mirror, searches, n) == GV_OK, "%s", what);
	while (!gv_mirror_done(searcher))
		;
	CHECK(gv_mirror_finish(searcher) == GV_OK, "%s", what);
	check_answers(index, searches, n, what);
	CHECK(records == NULL ||
		  count_wrong_bounds(index, records, searches, n) == 0,
		  "%s: bounds, dims %d", what, index->spec.dims);
	free_searches(searches, n);
}

/* Puts some records, of which some are free slots, in place of older ones. */
static inline GvStatus
put_records(GvMirror *mirror, Records *records)
{
	int32_t		n;
	OWN char   *items = draw_records(records, &n);

	return gv_mirror_put_refine(mirror, (GvRefineItem *) items, n);
}

/* Checks searches of every size, in one call and then each alone. */
static inline void
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
	check_call(searcher, mirror, index, searches, n, what);
	/* engines may select few postings in another way than many */
	for (i = 0; i < n; i++)
		check_call(searcher, mirror, index, &searches[i], 1, what);
	free_searches(searches, n);
}

/*
 * check_mirror_sifts.c: the order of scores over the postings or lists of an
 * index.
 */
typedef enum Order
{
	ORDER_ANY,
	ORDER_RISING,
	ORDER_FALLING,				/* the best come last, in every round */
	ORDER_EQUAL,				/* more equal items than the capacity */
	ORDER_TIED,					/* likewise, and a few items are better */
	ORDER_STEPS,				/* 30 different scores, in any order */
	ORDER_LOOSE,				/* of every 128 items, 8 consecutive ones are
								 * never among the best, so the sift's bound
								 * is loose */
	ORDER_UNDEFINED,			/* NaN and infinity among others */
	ORDER_NEAR,					/* the best are consecutive, like those of the
								 * nearest list */
	ORDER_LATE,					/* those of the last third are equal, and
								 * best */
	ORDER_FEW,					/* few of the postings are live */
	ORDER_NONE,
	ORDER_TWINS,				/* all postings are of one row, and equal */
	NORDERS
} Order;

/*
 * An index with n postings in lists that are as near as each other.  For the
 * query 0 a posting's score is its t.
 */
extern TestIndex index_of_copies(Order order, int n, int32_t nlists,
								 int nkeys);

/*
 * check_mirror_lists.c: checks the lists that n queries in one call choose, up
 * to `probes` each.  Returns the searcher, which the caller must drop.
 */
extern GvSearcher *check_some_lists(GvMetric metric, int32_t dims,
									int32_t nlists, int32_t probes, int n);

/* check_mirror_shapes.c: checks that blocks and arrays are read as put. */
extern void check_contents(GvMirror *mirror, const TestIndex *index);

/* Parts of test_mirror, of which mirrors on several devices use the first. */
extern void test_shapes(GvSearcher *searcher);
extern void test_changes(GvSearcher *searcher, int nkeys);
extern void test_rows(GvSearcher *searcher);
extern void test_mirror_rows(GvSearcher *searcher);
extern const GvMirrorBackend *unit_mirrors(void);
extern void test_mirror_spread(void);
extern void test_mirror_lists(void);
extern void test_mirror_sifts(GvSearcher *searcher);

/* test/unit/gpu/check_hopper.c */
extern void test_hopper(void);

/* n random searches in one call, as check_batch has them, which ask. */
static inline void
check_asked(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			const Rows *rows, int n, int32_t capacity, const char *what)
{
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	int			i;

	for (i = 0; i < n; i++)
	{
		searches[i] = new_search(index, 1 + unit_random() %
								 index->spec.nlists, index->spec.nlists,
								 1 + (int32_t) (unit_random() % capacity));
		searches[i].asked = draw_asked(rows);
	}
	searches[n / 2].capacity = capacity;
	CHECK(unit_begin(searcher, mirror, searches, n) == GV_OK, "%s", what);
	while (!gv_mirror_done(searcher))
		;
	CHECK(gv_mirror_finish(searcher) == GV_OK, "%s", what);
	check_answers(index, searches, n, what);
	i = count_wrong_distances(rows, searches, n);
	CHECK(i == 0, "%s: %d distances, metric %d form %d dims %d, %d searches",
		  what, i, index->spec.metric, index->spec.rows, index->spec.dims, n);
	for (i = 0; i < n; i++)
		unit_free((void *) searches[i].asked);
	free_searches(searches, n);
}

#endif							/* MIRRORS_H */
