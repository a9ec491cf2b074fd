/*
 * check_mirror_sifts.c
 *		Selects few and many of many postings and of many lists, each way that
 *		the engine has.  Their numbers are near the engine's limits: of what it
 *		processes at once, of its capacity, and of where another way begins.
 */
#include "mirrors.h"

#ifdef UNIT_CARD
static void
select_by(int32_t what, int32_t slice)
{
	gv_select_by = what;
	gv_least_slice = slice;
}

/* What selects, and items of a piece: of two pieces, and of more. */
static const int32_t ways[][2] = {{0, 0}, {3, 0}, {3, 2500}, {3, 5000}};
#define NWAYS	4
#else
#define NWAYS	1
#endif

static float
item_value(Order order, int i, int n)
{
	float		any = (unit_float() + 1.0f) / 2.0f;

	switch (order)
	{
		case ORDER_RISING:
			return (float) i / n;
		case ORDER_FALLING:
			return (float) (n - i) / n;
		case ORDER_EQUAL:
		case ORDER_TWINS:
			return 0.5f;
		case ORDER_TIED:
			return unit_random() % 500 == 0 ? any / 2.0f :
				0.5f + (unit_random() % 4 == 0);
		case ORDER_STEPS:
			return (float) (unit_random() % 30) / 30.0f;
		case ORDER_LOOSE:
			return i / 8 % 16 == 3 ? 0.05f + 0.95f * any : any;
		case ORDER_UNDEFINED:
			return i % 3 == 0 ? NAN : i % 7 == 0 ? INFINITY : any;
		case ORDER_NEAR:
			return i / 700 == 3 ? 0.1f * any : 0.2f + any;
		case ORDER_LATE:
			return i < n / 3 * 2 ? 0.5f + (float) i / n : 0.4f;
		default:
			return any;
	}
}

TestIndex
index_of_copies(Order order, int n, int32_t nlists, int nkeys)
{
	TestIndex	index = make_index(GV_L2, 1, 1, nlists, 1, 0, false);
	int			each = n / nlists;
	int32_t		l;
	int			i;

	give_keys(&index, nkeys);
	memset(index.codebooks, 0, sizeof(float) * GV_CODEWORDS);
	memset(index.centroids, 0, sizeof(float) * nlists);
	index.spec.postings = (int64_t) each * nlists;
	for (l = 0; l < nlists; l++)
	{
		TestList   *list = &index.lists[l];

		resize_list(&index, list, each, 0);
		for (i = 0; i < each; i++)
			list->t[i] = item_value(order, l * each + i, n);
		for (i = 0; i < each && order == ORDER_TWINS; i++)
			memset(list->rowids + 3 * i, 0x11, 3 * sizeof(uint16_t));
		for (i = 0; i < list->nblocks; i++)
			if (order == ORDER_NONE || (order == ORDER_FEW && i % 50 != 7))
				list->live[i] = 0;
	}
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

/* Hashes the answers of a call, to the last bit. */
static uint64_t
hash_answers(const GvSearch *searches, int n)
{
	uint64_t	hash = 1469598103934665603u;
	int			i;

	for (i = 0; i < n; i++)
	{
		const uint8_t *parts[2] = {(const uint8_t *) searches[i].probed,
		(const uint8_t *) searches[i].hits};
		size_t		bytes[2] = {searches[i].sums ? 0 :
			sizeof(GvProbe) * searches[i].nprobed,
		sizeof(GvHit) * searches[i].nhits};
		int			part;
		size_t		b;

		for (part = 0; part < 2; part++)
			for (b = 0; b < bytes[part]; b++)
				hash = (hash ^ parts[part][b]) * 1099511628211u;
	}
	return hash;
}

/* Checks n searches in one call, each way, and frees their queries. */
static void
check_together(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			   GvSearch *searches, int n, const char *what)
{
	uint64_t	first = 0;
	int			way;

	for (way = 0; way < NWAYS; way++)
	{
		uint64_t	hash;

#ifdef UNIT_CARD
		select_by(ways[way][0], ways[way][1]);
#endif
		CHECK(unit_search(searcher, mirror, searches, n) == GV_OK,
			  "%s, way %d", what, way);
		hash = hash_answers(searches, n);
		if (way == 0)
			check_answers(index, searches, n, what);
		else
			CHECK(hash == first, "%s, way %d: other answers", what, way);
		first = way == 0 ? hash : first;
	}
#ifdef UNIT_CARD
	select_by(-1, 0);
#endif
	free_searches(searches, n);
}

/*
 * Requests few and many of an index's lists or postings, near the limits of what
 * is sorted by counting (128), sifted (256), has half of the memory of more
 * (512), and is found without CUB (2,048); together in batches that end at a 0.
 */
static void
check_wanted(GvSearcher *searcher, const TestIndex *index, const char *what)
{
	static const int32_t wanted[] = {1, 64, 255, 256, 0, 257, 0, 128, 129, 512,
	0, 513, 0, 65, 1024, 1025, 0, 2048, 16, 1030, 0, 2049, 2048, 0};
	int32_t		nlists = index->spec.nlists;
	OwnMirror	mirror = make_mirror(index);
	GvSearch	searches[4];
	int			n = 0;
	size_t		i;

	for (i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
	{
		if (wanted[i] == 0)
		{
			check_together(searcher, mirror, index, searches, n, what);
			n = 0;
			continue;
		}
		searches[n] = new_search(index, nlists > 1 ? wanted[i] : 1, nlists,
								 nlists > 1 ? 10 : wanted[i]);
		((float *) searches[n++].query)[0] = 0.0f;
	}
}

static void
test_copies(GvSearcher *searcher, int n, int nkeys)
{
	int			order;

	for (order = 0; order < NORDERS; order++)
	{
		OwnIndex	index = index_of_copies((Order) order, n, 1, nkeys);
		char		what[50];

		snprintf(what, sizeof(what), "order %d of %d copies, %d keys", order,
				 n, nkeys);
		check_wanted(searcher, &index, what);
	}
}

/* Lists have the orders up to NEAR, because the others are of postings. */
static void
test_lists(GvSearcher *searcher, int n, int nkeys)
{
	OwnIndex	index = index_of_lists(n, nkeys);
	int			order;

	for (order = 0; order < ORDER_LATE; order++)
	{
		char		what[50];

		put_values(&index, (Order) order);
		snprintf(what, sizeof(what), "order %d of %d lists, %d keys", order, n,
				 nkeys);
		check_wanted(searcher, &index, what);
	}
#ifdef UNIT_CARD
	/* lists are discarded by approximate scores although they are few */
	put_values(&index, ORDER_ANY);
	gv_coarse_filter_from = 0;
	check_wanted(searcher, &index, "close lists");
	gv_coarse_filter_from = -1;
#endif
}

#ifdef UNIT_CARD
/*
 * Postings and lists in as many pieces as a query may come in, and in one more
 * than a warp has lanes.
 */
static void
test_pieces(GvSearcher *searcher)
{
	static const Order orders[] = {ORDER_ANY, ORDER_TIED, ORDER_FEW};
	static const int32_t pieces[] = {64, 33};
	int			i;
	int			j;

	for (i = 0; i < 6; i++)
	{
		int			n = 10241;
		Order		order = orders[i / 2];
		bool		of_lists = order == ORDER_TIED;
		OwnIndex	index = of_lists ? index_of_lists(n, 0) :
			index_of_copies(order, n, 1, 0);
		OwnMirror	mirror = NULL;
		GvSearch	searches[3];
		uint64_t	hashes[2];

		if (of_lists)
			put_values(&index, order);
		mirror = make_mirror(&index);
		for (j = 0; j < 3; j++)
		{
			int32_t		k = j == 0 ? 500 : j == 1 ? 1 : 2048;

			searches[j] = new_search(&index, of_lists ? k : 1,
									 index.spec.nlists, of_lists ? 10 : k);
			((float *) searches[j].query)[0] = 0.0f;
		}
		for (j = 0; j < 2; j++)
		{
			select_by(j == 0 ? 0 : 3, n / pieces[i % 2]);
			CHECK(unit_search(searcher, mirror, searches, 3) == GV_OK,
				  "pieces, %d", i);
			hashes[j] = hash_answers(searches, 3);
		}
		check_answers(&index, searches, 3, "pieces");
		CHECK(hashes[0] == hashes[1], "pieces, %d: other answers", i);
		select_by(-1, 0);
		free_searches(searches, 3);
	}
}
#endif

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
		OwnIndex	index = make_index(GV_L2 + i % 3, 8, 4, 60, 1, 90,
									   i % 2 != 0);
		OwnMirror	mirror = make_mirror(&index);
		OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);

		for (j = 0; j < n; j++)
			searches[j] = new_search(&index, 1 + unit_random() % 60, 60,
									 10 + unit_random() % 247);
		check_together(searcher, mirror, &index, searches, n, "mixed");
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
		OwnIndex	index = make_index(GV_L2 + i % 3, codes[i], codes[i], 3, 1,
									   40, false);
		OwnMirror	mirror = make_mirror(&index);
		GvSearch	searches[6];
		int			j;

		for (j = 0; j < 6; j++)
			searches[j] = new_search(&index, 3, 3, 50);
		check_together(searcher, mirror, &index, searches, 1, "a table");
		check_together(searcher, mirror, &index, searches + 1, 5, "tables");
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
#ifdef UNIT_CARD
	test_pieces(searcher);
#endif
	test_mixed(searcher);
	test_tables(searcher);
}
