/*
 * check_hopper.c
 *		What only cards of compute capability 9.0 do, for parts of more than 128
 *		queries, and what every card does instead: both find what the portable
 *		engine does.
 */
#include "../engine/mirrors.h"

/* gpu/coarse/gv_coarse.h */
extern void gv_gpu_approximate_from(int64_t terms);
extern bool gv_product_hopper(int32_t columns);	/* gpu/product/gv_product.h */
extern bool gv_gpu_hopper_multiplies(void);
extern bool gv_has_hopper(int32_t device);

/* Of emulate/; not there on a card. */
extern int	gv_emulated_card __attribute__((weak));

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
	bool		emulated = &gv_emulated_card != NULL;
	int			i;
	int			w;

	if (!gv_gpu_hopper_multiplies())
		return;
	gv_gpu_approximate_from(0);		/* few terms, but the ways of many */
	for (i = 0; i < (unit_small ? 6 : emulated ? 7 : 8); i++)
		for (w = 0; w < 9; w++)
		{
			/* emulated threads: each width with some shapes */
			if (emulated && (i + w) % (unit_small ? 6 : 3) != 0)
				continue;
			CHECK(gv_product_hopper(widths[w]), "no tiles of %d lists",
				  widths[w]);
			gv_searcher_drop(check_some_lists(GV_L2 + i % 3, shapes[i][0],
											  shapes[i][1], shapes[i][2],
											  shapes[i][3]));
		}
	gv_product_hopper(-1);
	gv_gpu_approximate_from(-1);
}

/*
 * Scans of copies whose codes end in each word of a chunk, or are more than a
 * lane has registers for; of more probes than are kept in shared memory.
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
		TestIndex	index = make_index(GV_L2 + i % 3, lengths[i], lengths[i],
									   i % 4 == 0 ? 90 : 9, 1,
									   i % 4 == 0 ? 12 : 100, i % 3 == 0);
		GvMirror   *mirror = make_mirror(&index);
		GvSearcher *searcher = NULL;
		char		what[20];

		snprintf(what, sizeof(what), "scan, m %d", lengths[i]);
		for (k = 0; k < n; k++)
			searches[k] = new_search(&index, 1 + k % index.spec.nlists,
									 index.spec.nlists, 5 + k % 3);
		CHECK(gv_searcher(0, &searcher) == GV_OK &&
			  gv_mirror_search(searcher, mirror, searches, n) == GV_OK,
			  "%s", what);
		check_answers(&index, searches, n, what);
		gv_product_hopper(0);
		CHECK(gv_mirror_search(searcher, mirror, searches, n) == GV_OK,
			  "%s", what);
		check_answers(&index, searches, n, what);
		gv_product_hopper(-1);
		gv_searcher_drop(searcher);
		free_searches(searches, n);
		gv_mirror_drop(mirror);
		free_index(&index);
	}
}

/* An engine was opened. */
void
test_hopper(void)
{
	if (!gv_has_hopper(0))
	{
		printf("card: nothing for compute capability 9.0 alone to check\n");
		return;
	}
	test_products();
	test_scans();
}
