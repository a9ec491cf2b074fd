/*
 * mirrors.h
 *		Mirrors filled from a random index, and searches of them checked.
 *
 * Of the portable engine, or of the one that UNIT_MIRRORS names when this is
 * compiled (test/unit/gpu); that one may compare all lists flat, and keep the
 * memory of lists that shrink.
 */
#ifndef MIRRORS_H
#define MIRRORS_H

#include "index.h"
#include "test/oracle/gv_oracle.h"

#ifdef UNIT_MIRRORS
#define UNIT_CARD				/* the CUDA engine, whatever it runs on */
#define UNIT_FLAT		true
#else
#define UNIT_MIRRORS	gv_cpu_mirrors
#define UNIT_FLAT		false
#endif

/* Where test_mirror does not: other tests need an engine, too. */
static inline void
open_mirrors(void)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;

	CHECK(gv_mirrors_open(&UNIT_MIRRORS, "", found, &nfound) == GV_OK,
		  "no engine: %s", found->name);
}

/* Puts all of an index into a mirror; long lists in chunks of 3 blocks. */
static inline GvStatus
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
			GvListChunk chunk = index_chunk(index, list, first,
											left < 3 ? left : 3, false);

			status = gv_mirror_put_list(mirror, &chunk);
			first += chunk.nblocks;
		} while (first < index->lists[list].nblocks && status == GV_OK);
	}
	return status;
}

/* Where make_mirror makes mirrors, if nparts is not 0. */
extern GvPlacement unit_placement;

static inline GvMirror *
make_mirror(const TestIndex *index)
{
	GvMirror   *mirror = NULL;

	CHECK((unit_placement.ndevices == 0 ?
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
 * Answers of one call, which are good until the next, against the reference.
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
			  "%ld copies, %d tests; rank %d: %ld, squares %ld", what, searches[i].probes,
			  searches[i].compare, searches[i].capacity, searches[i].nprobed,
			  searches[i].nhits, (long) searches[i].postings,
			  searches[i].condition == NULL ? 0 :
			  searches[i].condition->ntests, searches[i].rank,
			  (long) searches[i].nearer, (long) searches[i].nearer_squares);
}

/* Searches of every size together, and each alone. */
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
	CHECK(gv_mirror_search(searcher, mirror, searches, n) == GV_OK, "%s",
		  what);
	check_answers(index, searches, n, what);
	/* engines may select few postings in another way than many */
	for (i = 0; i < n; i++)
	{
		CHECK(gv_mirror_search(searcher, mirror, &searches[i], 1) == GV_OK,
			  "%s", what);
		check_answers(index, &searches[i], 1, what);
	}
	free_searches(searches, n);
}

/*
 * check_mirror_lists.c: n queries for up to `probes` of some lists at once, by
 * a searcher that the caller drops.
 */
extern GvSearcher *check_some_lists(GvMetric metric, int32_t dims,
									int32_t nlists, int32_t probes, int n);

/*
 * check_mirror.c: blocks and arrays as they were put, and parts of test_mirror
 * that mirrors on several devices go through, too.
 */
extern void check_contents(GvMirror *mirror, const TestIndex *index);
extern void test_changes(GvSearcher *searcher, int nkeys);
extern void test_shapes(GvSearcher *searcher);

/* Parts of test_mirror in files of their own. */
extern const GvMirrorBackend *unit_mirrors(void);
extern void test_mirror_spread(void);
extern void test_mirror_records(GvSearcher *searcher);
extern void test_mirror_sample(GvSearcher *searcher);
extern void test_mirror_lists(void);
extern void test_mirror_sifts(GvSearcher *searcher);
extern void test_device_lists(void);
extern void check_devices(const GvDevice *found, int32_t n);
extern void test_mirror_devices(void);

/* test/unit/gpu/check_hopper.c */
extern void test_hopper(void);

#endif							/* MIRRORS_H */
