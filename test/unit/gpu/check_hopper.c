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
test_scans(GvSearcher *searcher)
{
	static const int32_t lengths[] = {1, 8, 9, 17, 24, 25, 32, 33, 48, 90, 136,
	193, 249, 256, 257, 300};
	int			i;

	for (i = 0; i < 16; i += unit_small ? 3 : 1)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, lengths[i], lengths[i],
									   i % 4 == 0 ? 90 : 9, 1,
									   i % 4 == 0 ? 12 : 100, i % 3 == 0);
		OwnMirror	mirror = make_mirror(&index);
		char		what[20];

		snprintf(what, sizeof(what), "scan, m %d", lengths[i]);
		/* four parts of 129 */
		check_batch(searcher, mirror, &index, NULL, 516, index.spec.nlists, 7,
					what);
	}
}

/*
 * Lists whose postings near enough are few, or more than are noted of a query,
 * which is scanned again then.
 */
static void
test_orders(GvSearcher *searcher)
{
	static const int32_t wanted[] = {1, 60, 200, 256};
	static const Order orders[] = {ORDER_ANY, ORDER_RISING, ORDER_FALLING,
	ORDER_EQUAL, ORDER_STEPS, ORDER_LATE};
	GvSearch	searches[516];
	int			n = 516;
	int			i;
	int			k;

	for (i = 0; i < 6; i++)
	{
		OwnIndex	index = index_of_copies(orders[i],
											unit_small ? 5700 : 8700, 3, 0);
		OwnMirror	mirror = make_mirror(&index);

		for (k = 0; k < n; k++)
			searches[k] = new_search(&index, 3, 3, wanted[3 - k % 4]);
		check_call(searcher, mirror, &index, searches, n,
				   "list by list, in order");
		free_searches(searches, n);
	}
}

/*
 * Lists scanned for all queries that meet them: sub-quantizers of up to four
 * dimensions, lists met by few and many, queries and postings of whom
 * approximate scores tell nothing, and more postings wanted than there are.
 */
static void
test_gathered(GvSearcher *searcher)
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
		OwnIndex	index = make_index(GV_L2 + i % 3, shape[0], shape[1],
									   shape[2], 1, shape[3], i % 4 == 3);
		OwnMirror	mirror = NULL;
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
		check_call(searcher, mirror, &index, searches, n, what);
		free_searches(searches, n);
	}
	test_orders(searcher);
	gv_force_helpers(-1);
	gv_batch_by_list = -1;
}

/* An engine was opened. */
void
test_hopper(void)
{
	OwnSearcher	searcher = NULL;

	if (gv_has_hopper(0))
		test_products();
	else
		printf("card: no products of compute capability 9.0 to check\n");
	OK(gv_searcher(0, &searcher));
	test_scans(searcher);
	test_gathered(searcher);
}
