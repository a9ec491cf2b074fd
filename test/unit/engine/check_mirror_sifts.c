/*
 * check_mirror_sifts.c
 *		The few best of many postings and of many lists.  An engine may sift
 *		them in rounds, so their numbers are near the size of a round, near the
 *		sift's capacity, and near the number from which on another way is used.
 */
#include "mirrors.h"

#ifdef UNIT_CARD
/* of gpu/coarse/gv_coarse.h */
extern void gv_gpu_approximate_from(int64_t terms);
#endif

/* The distribution of scores over the items. */
typedef enum Order
{
	ANY,
	RISING,
	FALLING,					/* the best come last, in every round */
	EQUAL,						/* more equal items than the capacity */
	TIED,						/* likewise, and a few items are better */
	STEPS,						/* 30 different scores, in any order */
	LOOSE,						/* of every 128 items, 8 consecutive ones are
								 * never among the best, so the sift's bound
								 * is loose */
	FEW,						/* few of the postings are live */
	NONE,
	TWINS,						/* all postings are of one row, and equal */
	NORDERS
} Order;

static float
item_value(Order order, int i, int n)
{
	float		any = (unit_float() + 1.0f) / 2.0f;

	switch (order)
	{
		case RISING:
			return (float) i / n;
		case FALLING:
			return (float) (n - i) / n;
		case EQUAL:
		case TWINS:
			return 0.5f;
		case TIED:
			return unit_random() % 500 == 0 ? any / 2.0f :
				0.5f + (unit_random() % 4 == 0);
		case STEPS:
			return (float) (unit_random() % 30) / 30.0f;
		case LOOSE:
			return i / 8 % 16 == 3 ? 0.05f + 0.95f * any : any;
		default:
			return any;
	}
}

/*
 * Returns an index with one list of n postings.  For the query 0 a posting's
 * score is its t.
 */
static TestIndex
index_of_copies(Order order, int n, int nkeys)
{
	TestIndex	index = make_index(GV_L2, 1, 1, 1, 1, -n, false);
	TestList   *list = &index.lists[0];
	int			i;

	give_keys(&index, nkeys);
	memset(index.codebooks, 0, sizeof(float) * GV_CODEWORDS);
	index.centroids[0] = 0.0f;
	for (i = 0; i < n; i++)
		list->t[i] = item_value(order, i, n);
	for (i = 0; i < n && order == TWINS; i++)
		memset(list->rowids + 3 * i, 0x11, 3 * sizeof(uint16_t));
	for (i = 0; i < list->nblocks; i++)
		if (order == NONE || (order == FEW && i % 50 != 7))
			list->live[i] = 0;
	return index;
}

/*
 * Returns an index with n lists, of which one has postings.  For the query 0 a
 * list's score is the square of its centroid, which put_values sets.
 */
static TestIndex
index_of_lists(int n, int nkeys)
{
	TestIndex	index = make_index(GV_L2, 1, 1, n, 1, -40, false);

	give_keys(&index, nkeys);
	return index;
}

static void
put_values(TestIndex *index, Order order)
{
	int32_t		n = index->spec.nlists;
	int32_t		i;

	for (i = 0; i < n; i++)
		index->centroids[i] = sqrtf(item_value(order, i, n));
}

/* Like make_mirror, but with fewer calls. */
static GvMirror *
make_mirror_at_once(const TestIndex *index)
{
	GvMirror   *mirror = NULL;
	int			array;
	int32_t		list;

	CHECK(gv_mirror_create(&index->spec, &mirror) == GV_OK, "create");
	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		n;
		const void *values = index_array(index, (GvArray) array, &n);

		CHECK(gv_mirror_put_array(mirror, (GvArray) array, 0, n,
								  values) == GV_OK, "array");
	}
	for (list = 0; list < index->spec.nlists; list++)
	{
		GvListChunk chunk = index_chunk(index, list, 0,
										index->lists[list].nblocks, false);

		if (chunk.nblocks > 0)
			CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "list");
	}
	return mirror;
}

/* Checks n searches in one call, and frees their queries. */
static void
check_together(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			   GvSearch *searches, int n, const char *what)
{
	CHECK(unit_search(searcher, mirror, searches, n) == GV_OK, "%s",
		  what);
	check_answers(index, searches, n, what);
	free_searches(searches, n);
}

/*
 * Requests few and many of an index's lists or postings.  A device sifts if at
 * most 256 are requested, or 512 if there are conditions, and does not have to
 * sort for at most 2,048.
 */
static void
check_wanted(GvSearcher *searcher, const TestIndex *index, const char *what)
{
	static const int32_t wanted[] = {1, 16, 255, 256, 257, 512, 513, 2048, 1030};
	int32_t		nlists = index->spec.nlists;
	GvMirror   *mirror = make_mirror_at_once(index);
	GvSearch	searches[9];
	int			i;

	for (i = 0; i < 9; i++)
	{
		searches[i] = new_search(index, nlists > 1 ? wanted[i] : 1, nlists,
								 nlists > 1 ? 10 : wanted[i]);
		((float *) searches[i].query)[0] = 0.0f;
	}
	check_together(searcher, mirror, index, searches, 4, what);
	check_together(searcher, mirror, index, searches + 4, 1, what);
	check_together(searcher, mirror, index, searches + 5, 3, what);
	check_together(searcher, mirror, index, searches + 8, 1, what);
	gv_mirror_drop(mirror);
}

static void
test_copies(GvSearcher *searcher, int n, int nkeys)
{
	int			order;

	for (order = 0; order < NORDERS; order++)
	{
		TestIndex	index = index_of_copies((Order) order, n, nkeys);
		char		what[50];

		snprintf(what, sizeof(what), "order %d of %d copies, %d keys", order,
				 n, nkeys);
		check_wanted(searcher, &index, what);
		free_index(&index);
	}
}

/* Lists have the orders up to LOOSE, because the others are of postings. */
static void
test_lists(GvSearcher *searcher, int n, int nkeys)
{
	TestIndex	index = index_of_lists(n, nkeys);
	int			order;

	for (order = 0; order < FEW; order++)
	{
		char		what[50];

		put_values(&index, (Order) order);
		snprintf(what, sizeof(what), "order %d of %d lists, %d keys", order, n,
				 nkeys);
		check_wanted(searcher, &index, what);
	}
#ifdef UNIT_CARD
	/* lists are discarded by approximate scores although they are few */
	put_values(&index, ANY);
	gv_gpu_approximate_from(0);
	check_wanted(searcher, &index, "close lists");
	gv_gpu_approximate_from(-1);
#endif
	free_index(&index);
}

/* The searches of a batch request different numbers of postings. */
static void
test_mixed(GvSearcher *searcher)
{
	static const int counts[] = {2, 7, 40, 70};
	int			i;
	int			j;

	for (i = 0; i < (unit_small ? 3 : 4); i++)
	{
		int			n = counts[i];
		TestIndex	index = make_index(GV_L2 + i % 3, 8, 4, 60, 1, 90,
									   i % 2 != 0);
		GvMirror   *mirror = make_mirror_at_once(&index);
		GvSearch   *searches = unit_alloc(sizeof(GvSearch) * n);

		for (j = 0; j < n; j++)
			searches[j] = new_search(&index, 1 + unit_random() % 60, 60,
									 10 + unit_random() % 247);
		check_together(searcher, mirror, &index, searches, n, "mixed");
		unit_free(searches);
		gv_mirror_drop(mirror);
		free_index(&index);
	}
}

/*
 * Look-up tables have 2 KB for every 32 sub-quantizers.  A block of threads
 * has 48 KB of shared memory unless it requests more, and kernels need 1 KB
 * besides the table.  The tables are the longest that fit with and without
 * that 1 KB, and the next longer ones, for one query and for several, which
 * have more threads.
 */
static void
test_tables(GvSearcher *searcher)
{
	static const int32_t codes[] = {736, 737, 768, 769};
	int			i;

	for (i = 0; i < 4; i++)
	{
		TestIndex	index = make_index(GV_L2 + i % 3, codes[i], codes[i], 3, 1,
									   40, false);
		GvMirror   *mirror = make_mirror_at_once(&index);
		GvSearch	searches[6];
		int			j;

		for (j = 0; j < 6; j++)
			searches[j] = new_search(&index, 3, 3, 50);
		check_together(searcher, mirror, &index, searches, 1, "a table");
		check_together(searcher, mirror, &index, searches + 1, 5, "tables");
		gv_mirror_drop(mirror);
		free_index(&index);
	}
}

void
test_mirror_sifts(GvSearcher *searcher)
{
	/* a round of a sift has 10,240 items; these are whole rounds and parts */
	static const int counts[] = {10241, 25000, 10240, 10239, 255};
	/* sifting does not depend on the kernels that multiply matrices */
	bool		once = unit_small &&
		gv_matmul_used() == GV_MATMUL_CUBLAS;
	int			i;

	for (i = 0; i < (once ? 1 : unit_small ? 2 : 5); i++)
	{
		int			nkeys;

		for (nkeys = 0; nkeys < (once || (unit_small && i > 0) ? 1 : 2); nkeys++)
		{
			test_copies(searcher, counts[i], nkeys);
			test_lists(searcher, counts[i], nkeys);
		}
	}
	test_mixed(searcher);
	test_tables(searcher);
}
