/*
 * check_hopper.c
 *		Batches of hundreds of queries: products, which devices of compute
 *		capability 9.0 make in their own way, scans, and scans list by list.
 */
#include "card.h"
#include "../engine/mirrors.h"

#include "engine/mirror/gv_parallel.h"

extern bool hopper_multiplies(void);	/* matmul.cu */

/* Products, with tiles of all widths. */
static void
test_products(void)
{
	static const int32_t widths[] = {0, -1, 96, 128, 160, 192, 256, 288, 320};
	static const int32_t shapes[][4] = {
		/* dims, lists, probes, queries */
		{1, 33, 1, 516}, {15, 95, 2, 517}, {63, 97, 3, 1021}, {64, 256, 5, 520},
		{65, 321, 6, 700}, {127, 1001, 4, 777}, {640, 577, 8, 519},
		/* blocks of threads take several tiles */
		{8, 20001, 9, 1100}
	};
	bool		emulated = device_is_emulated();
	int			i;
	int			w;

	if (!hopper_multiplies())
		return;
	gv_coarse_filter_from = 0;		/* few terms, but the ways of many */
	for (i = 0; i < (unit_small ? 6 : emulated ? 7 : 8); i++)
		for (w = 0; w < 9; w++)
		{
			/* emulated threads: each width with some shapes */
			if (emulated && (i + w) % (unit_small ? 6 : 3) != 0)
				continue;
			gv_matmul_width = widths[w];
			gv_searcher_drop(check_some_lists(GV_L2 + i % 3, shapes[i][0],
											  shapes[i][1], shapes[i][2],
											  shapes[i][3]));
		}
	gv_matmul_width = -1;
	gv_coarse_filter_from = -1;
}

/*
 * Scans of postings whose codes end in each word of a chunk, or are more than
 * those that come at once; of more probes than are kept in shared memory.
 */
static void
test_scans(void)
{
	static const int32_t lengths[] = {1, 8, 9, 17, 24, 25, 32, 33, 48, 90, 136,
	193, 249, 256, 257, 300};
	GvSearch	searches[516];
	int			n = 516;		/* four parts of 129 */
	int			i;
	int			k;

	for (i = 0; i < 16; i += unit_small ? 3 : 1)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, lengths[i], lengths[i],
									   i % 4 == 0 ? 90 : 9, 1,
									   i % 4 == 0 ? 12 : 100, i % 3 == 0);
		OwnMirror	mirror = make_mirror(&index);
		OwnSearcher	searcher = NULL;
		char		what[20];

		snprintf(what, sizeof(what), "scan, m %d", lengths[i]);
		for (k = 0; k < n; k++)
			searches[k] = new_search(&index, 1 + k % index.spec.nlists,
									 index.spec.nlists, 5 + k % 3);
		CHECK(gv_searcher(0, &searcher) == GV_OK &&
			  gv_mirror_search(searcher, mirror, searches, n) == GV_OK,
			  "%s", what);
		check_answers(&index, searches, n, what);
		free_searches(searches, n);
	}
}

/* How scores lie from posting to posting. */
typedef enum Order
{
	ANY,
	RISING,
	FALLING,					/* each is within the bound of those before */
	EQUAL,						/* more than are noted of a query */
	STEPS,						/* some hundreds of each */
	LATE,						/* those of the last list are equal, and
								 * best */
	NORDERS
} Order;

/*
 * Three lists, as near as each other, whose postings' scores are what t says.
 */
static TestIndex
index_of_scores(Order order, int each)
{
	TestIndex	index = make_index(GV_L2, 1, 1, 3, 1, 0, false);
	int			list;
	int			i;

	memset(index.codebooks, 0, sizeof(float) * GV_CODEWORDS);
	memset(index.centroids, 0, sizeof(float) * 3);
	for (list = 0; list < 3; list++)
	{
		resize_list(&index, &index.lists[list], each, 0);
		index.spec.postings += each;
		for (i = 0; i < each; i++)
		{
			float		at = (float) (list * each + i);

			index.lists[list].t[i] = order == ANY ? unit_float() :
				order == RISING ? at : order == FALLING ? -at :
				order == STEPS ? (float) (unit_random() % 12) :
				order == LATE && list < 2 ? at + 1.0f : 0.5f;
		}
	}
	return index;
}

/* Searches of a mirror, of whose index they are, checked; all is let go. */
static void
check_and_free(TestIndex *index, GvMirror *mirror, GvSearch *searches, int n,
			   const char *what)
{
	OwnSearcher	searcher = NULL;

	CHECK(gv_searcher(0, &searcher) == GV_OK &&
		  gv_mirror_search(searcher, mirror, searches, n) == GV_OK,
		  "%s", what);
	check_answers(index, searches, n, what);
	free_searches(searches, n);
	gv_mirror_drop(mirror);
	free_index(index);
}

/*
 * Lists whose postings near enough are few, or more than are noted of a query,
 * which is scanned again then.
 */
static void
test_orders(void)
{
	static const int32_t wanted[] = {1, 10, 60, 256};
	GvSearch	searches[516];
	int			n = 516;
	int			order;
	int			k;

	for (order = 0; order < NORDERS; order++)
	{
		TestIndex	index = index_of_scores((Order) order,
											unit_small ? 1900 : 2900);
		GvMirror   *mirror = make_mirror(&index);
		char		what[40];

		snprintf(what, sizeof(what), "list by list, order %d", order);
		for (k = 0; k < n; k++)
			searches[k] = new_search(&index, 3, 3, wanted[3 - k % 4]);
		check_and_free(&index, mirror, searches, n, what);
	}
}

/*
 * Lists scanned for all queries that meet them: sub-quantizers of up to four
 * dimensions, lists met by few and many, queries and postings of whom
 * approximate scores tell nothing, and more postings wanted than there are.
 */
static void
test_gathered(void)
{
	static const int32_t shapes[][6] = {
		/* dims, m, lists, mean postings, probes, wanted */
		{24, 8, 9, 100, 9, 10}, {33, 12, 40, 60, 12, 60}, {5, 5, 90, 8, 80, 200},
		{500, 250, 7, 40, 3, 3}, {1000, 256, 5, 50, 4, 20}, {7, 2, 3, 900, 3, 1},
		{17, 17, 1, 700, 1, 100}, {26, 9, 60, 0, 20, 9}, {514, 257, 4, 90, 2, 5}
	};
	GvSearch	searches[516];
	int			n = 516;
	int			i;
	int			k;

	gv_batch_by_list = 129;
	gv_force_helpers(2);
	for (i = 0; i < 9; i += unit_small ? 2 : 1)
	{
		const int32_t *shape = shapes[i];
		TestIndex	index = make_index(GV_L2 + i % 3, shape[0], shape[1],
									   shape[2], 1, shape[3], i % 4 == 3);
		GvMirror   *mirror;
		char		what[40];

		snprintf(what, sizeof(what), "list by list, case %d", i);
		if (i % 2 > 0 && index.lists[0].nblocks > 0)
			for (k = 0; k < 20; k++)
				index.lists[0].t[k] *= k % 2 ? 1e6f : 1e30f;
		mirror = make_mirror(&index);
		for (k = 0; k < n; k++)
		{
			float	   *query;
			int			d;

			searches[k] = new_search(&index, 1 + k % shape[4], shape[2],
									 1 + (k + shape[5]) % shape[5]);
			query = (float *) searches[k].query;
			for (d = 0; d < shape[0] && k % 40 == 7; d++)
				query[d] *= k % 80 == 7 ? 1e25f : 1e-25f;
		}
		check_and_free(&index, mirror, searches, n, what);
	}
	test_orders();
	gv_force_helpers(-1);
	gv_batch_by_list = -1;
}

/* An engine was opened. */
void
test_hopper(void)
{
	if (gv_has_hopper(0))
		test_products();
	else
		printf("card: no products of compute capability 9.0 to check\n");
	test_scans();
	test_gathered();
}
