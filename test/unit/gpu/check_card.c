/*
 * check_card.c
 *		The CUDA engine's mirrors, builders, selections and sets against the
 *		portable engine: the checks of test/unit/engine/check_mirror*.c and
 *		check_builder*.c, and those of this folder, on a device or, with the
 *		headers of emulate/ in the place of CUDA's, on emulated threads.
 *
 * Needs no server.  Prints what fails and "card: N passed, M failed".
 * Names of parts leave out all others: mirrors best bytes products hopper
 * builders select exact lists sets faults memory open
 */
#include "engine/gv_set.h"
#include "engine/mirror/gv_mirror.h"

#include "../engine/making.h"
#include "../engine/mirrors.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 1;
bool		unit_small;

/* gpu/search/coarsefilter.cu */
extern int64_t gv_coarse_filter_from;
/* gpu/kmeans */
extern int32_t gv_kmeans_piece;
extern int32_t gv_kmeans_columns;
extern int32_t gv_kmeans_early;
extern bool gv_kmeans_reassigns_all;
extern int64_t gv_blas_sums;	/* gpu/product/cublas.cu */
extern void test_arrive_card(void); /* check_arrive_card.c */
extern void test_bytes_card(void);	/* check_bytes_card.c */
extern void test_products_card(void);	/* check_products_card.c */
extern void test_select_card(void); /* check_select_card.c */
extern void test_select_sets_card(void);	/* check_selectsets_card.c */
extern void test_exact_card(void);	/* check_exact_card.c */
extern void test_lists_card(void);	/* check_lists_card.c */
extern void test_kmeans_card(void); /* check_kmeans_card.c */
extern void test_faults_card(void); /* check_faults_card.c */
extern void test_open_card(void);	/* check_open_card.c */

/* A look-up table that no block of threads has memory for. */
static void
test_long_table(void)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 8000,.m = 8000,.nlists = 1,
	.nparents = 1,.postings = 1};
	GvMirror   *mirror = NULL;

	CHECK(gv_mirror_size(&spec) == INT64_MAX, "size");
	CHECK(gv_mirror_create(&spec, &mirror) == GV_NO_MEMORY && mirror == NULL,
		  "create");
}

/* Of emulate/; not there on a device. */
extern int64_t gv_emulated_fault __attribute__((weak));
extern int64_t gv_emulated_unrecorded __attribute__((weak));

/*
 * Refine records of two pages, which tables and segments of the pool are taken
 * for: where one is not to be had, what went to the device before is noted as
 * a change that searches wait for.
 */
static void
test_refused_records(void)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 8,.m = 4,.nlists = 1,
	.nparents = 1,.refine_slots = 4};
	size_t		stride = gv_refine_stride(8);
	char	   *items = calloc(2, stride);
	char	   *found = calloc(2, stride);
	uint16_t	addresses[6] = {0, 0, 1, 1, 0, 4};
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	if (&gv_emulated_fault == NULL)
	{
		free(found);
		free(items);
		return;
	}
	((GvRefineItem *) items)->address[2] = 1;
	((GvRefineItem *) (items + stride))->address[0] = 1;
	((GvRefineItem *) (items + stride))->address[2] = 4;
	for (n = 1; n < 20 && status == GV_NO_MEMORY; n++)
	{
		int64_t		before = gv_emulated_unrecorded;
		OwnMirror	mirror = NULL;

		CHECK(gv_mirror_create(&spec, &mirror) == GV_OK, "create");
		gv_emulated_fault = n;
		status = gv_mirror_put_refine(mirror, (GvRefineItem *) items, 2);
		gv_emulated_fault = 0;
		CHECK(gv_emulated_unrecorded == before, "without memory %d: %d steps "
			  "that nobody waits for", n,
			  (int) (gv_emulated_unrecorded - before));
		CHECK(gv_mirror_put_refine(mirror, (GvRefineItem *) items, 2) == GV_OK,
			  "again, after %d", n);
		CHECK(gv_mirror_get_refine(mirror, addresses, 2,
								   (GvRefineItem *) found) == GV_OK &&
			  memcmp(found, items, 2 * stride) == 0, "records after %d", n);
	}
	CHECK(status == GV_OK && n > 4, "%d: %d", n, status);
	free(found);
	free(items);
}

/* Trains a builder on these rows, for 280 lists of 5 dimensions. */
static Making
train_on(const float *rows, int32_t n)
{
	GvBuilderSpec spec = make_spec(GV_L2, 5, 3, 280);
	float	   *same = unit_alloc(sizeof(float) * n * 5);
	Making		making;

	memcpy(same, rows, sizeof(float) * n * 5);
	spec.iterations = 2;
	spec.max_imbalance = 1.3;	/* few splits are left for the end */
	making = begin_making(spec, same, n, n);
	CHECK(train_making(&making) == GV_OK, "train");
	get_model(&making);
	return making;
}

/*
 * k-means of builds finds the same centroids when it compares everything after
 * a rebalancing, by small pieces and several products a piece, and with bounds
 * from a few centroids.
 */
static void
test_even_kmeans(void)
{
	int32_t		n = unit_small ? 700 : 2500;
	OWN float  *rows = clustered(n, 5, 9, 0.2f);
	int32_t		early = gv_kmeans_early;
	Making		usual;
	int			i;

	memset(rows, 0, sizeof(float) * n); /* some are equal */
	usual = train_on(rows, n);
	for (i = 0; i < 3; i++)
	{
		Making		other;

		gv_kmeans_reassigns_all = i == 0;
		gv_kmeans_piece = i == 1 ? 197 : 0;
		gv_kmeans_columns = i > 0;
		gv_kmeans_early = i == 2 ? 280 : early;
		other = train_on(rows, n);
		CHECK(usual.trained.nlists == other.trained.nlists &&
			  memcmp(usual.centroids, other.centroids, sizeof(float) * 5 *
					 usual.trained.nlists) == 0, "other centroids: %d", i);
		CHECK(i > 0 || usual.trained.times.passes < other.trained.times.passes,
			  "%d and %d passes", usual.trained.times.passes,
			  other.trained.times.passes);
		end_making(&other);
	}
	gv_kmeans_columns = 0;
	gv_kmeans_early = early;
	end_making(&usual);
}

static void
test_mirrors(void)
{
	test_mirror();
	test_long_table();
	test_refused_records();
	test_arrive_card();
}

/* The selection of lists and postings, of which test_mirrors has all. */
static void
test_best(void)
{
	OwnSearcher	searcher = NULL;

	CHECK(gv_searcher(0, &searcher) == GV_OK, "searcher");
	test_mirror_sifts(searcher);
}

static void
test_builders(void)
{
	unit_seed = 1;				/* models vary in quality with it */
	gv_coarse_filter_from = 0;		/* few terms, but by the way of many */
	test_builder();
	test_even_kmeans();
}

static void
test_sets(void)
{
	CHECK(gv_sets_open(&gv_cuda_sets) == GV_OK, "no engine of sets");
	test_kmeans_card();
}

/*
 * Who multiplies: GPUVEC_UNIT_MATMUL, own or cublas.  Emulated devices have
 * tiles of a few thousand sums, so that products have several.
 */
static void
choose_matmul(void)
{
	const char *matmul = getenv("GPUVEC_UNIT_MATMUL");

	if (matmul != NULL)
		gv_matmul_use(strcmp(matmul, "cublas") == 0 ?
						GV_MATMUL_CUBLAS : GV_MATMUL_OWN);
	if (&gv_emulated_fault != NULL)
		gv_blas_sums = 1 << 13;
}

int
main(int argc, char **argv)
{
	unit_small = getenv("GPUVEC_UNIT_SMALL") != NULL;
	choose_matmul();
	if (unit_is_wanted(argc, argv, "open"))
		test_open_card();
	if (unit_is_wanted(argc, argv, "mirrors"))
		test_mirrors();
	else
		open_mirrors();
	if (argc > 1 && unit_is_wanted(argc, argv, "best"))
		test_best();
	if (unit_is_wanted(argc, argv, "bytes"))
		test_bytes_card();
	if (unit_is_wanted(argc, argv, "products"))
		test_products_card();
	if (unit_is_wanted(argc, argv, "hopper"))
		test_hopper();
	if (unit_is_wanted(argc, argv, "builders"))
		test_builders();
	if (unit_is_wanted(argc, argv, "select"))
	{
		test_select_card();
		test_select_sets_card();
	}
	if (unit_is_wanted(argc, argv, "exact"))
		test_exact_card();
	if (unit_is_wanted(argc, argv, "lists"))
		test_lists_card();
	if (unit_is_wanted(argc, argv, "sets"))
		test_sets();
	if (unit_is_wanted(argc, argv, "faults"))
		test_faults_card();
	/* what nvcc links does not count */
	if (unit_is_wanted(argc, argv, "memory") && &gv_emulated_fault != NULL)
		test_memory();
	printf("card: %ld passed, %ld failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}
