/*
 * check_card.c
 *		The CUDA engine's mirrors, builders, selections and sets against the
 *		portable engine: the checks of test/unit/engine/check_mirror*.c and
 *		check_builder*.c, and those of this folder, on a device or, with the
 *		headers of emulate/ in the place of CUDA's, on emulated threads.
 *
 * Needs no server.  Prints what fails and "card: N passed, M failed".
 * Names of parts leave out all others: mirrors best rows bytes products hopper
 * builders select exact lists sets faults memory open
 */
#include "card.h"
#include "../engine/making.h"
#include "../engine/mirrors.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 1;
bool		unit_small;
GvSetBackend unit_sets;

extern int64_t gv_blas_sums;	/* gpu/product/cublas.cu */
/* Of CUDA's runtime; not there on emulated threads. */
extern int	cudaMemGetInfo(size_t *nfree, size_t *total) __attribute__((weak));

/* Bytes of the device's memory that are taken. */
static int64_t
device_used(void)
{
	size_t		nfree = 0;
	size_t		total = 0;

	if (device_is_emulated())
		return (int64_t) gv_emulated_used(0);
	CHECK(cudaMemGetInfo(&nfree, &total) == 0, "memory");
	return (int64_t) (total - nfree);
}

void
check_set_bytes(const GvSetSpec *spec, int64_t least)
{
	OWN float  *rows = unit_floats((size_t) spec->nrows * spec->dims, 1.0f);
	OWN int64_t *ranks = unit_alloc(sizeof(int64_t) * (spec->nqueries + 1));
	SetInputs	inputs = {ranks, NULL, rows, spec->nrows, spec->nrows, NULL};
	/* a device gives memory in pieces */
	int64_t		most = gv_set_size(spec) +
		(device_is_emulated() ? 0 : INT64_C(32) << 20);
	int64_t		before = device_used();
	int64_t		taken;
	GvSetDone	done;
	GvSet	   *set = NULL;
	int64_t		i;

	for (i = 0; i < spec->nqueries; i++)
		ranks[i] = spec->nrows / spec->nqueries * i;
	OK(gv_set_create(spec, &set));
	/* k-means has all of its memory from the beginning */
	if (spec->kind != GV_SET_KMEANS)
		OK(run_set(set, spec, &inputs, false, NULL, &done, NULL));
	taken = device_used() - before;
	CHECK(taken > least && taken <= most, "kind %d: %ld bytes of %ld",
		  spec->kind, (long) taken, (long) most);
	gv_set_drop(set);
}

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
	FREED char *items = calloc(2, stride);
	FREED char *found = calloc(2, stride);
	uint16_t	addresses[6] = {0, 0, 1, 1, 0, 4};
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	if (!device_is_emulated())
		return;
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
}

/*
 * The same of rows, of which one is on a page that moves: it is there after
 * all, wherever there was no memory.
 */
static void
test_refused_rows(void)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 3,.m = 1,.nlists = 1,
	.nparents = 1,.rows = GV_ROWS_FLOAT};
	size_t		stride = gv_row_stride(spec.rows, spec.dims);
	FREED char *items = calloc(3, stride);
	FREED char *found = calloc(3, stride);
	uint16_t	rowids[9] = {0, 0, 1, 0, 0, 9, 1, 0, 4};
	GvStatus	status = GV_NO_MEMORY;
	int			n;
	int			i;

	if (!device_is_emulated())
		return;
	for (i = 0; i < 3; i++)
	{
		GvRowItem  *item = (GvRowItem *) (items + stride * (size_t) i);

		memcpy(item->rowid, rowids + 3 * i, sizeof(item->rowid));
		item->known = 1;
		memset(item->values, 1 + i, gv_row_bytes(spec.rows, spec.dims));
	}
	for (n = 1; n < 20 && status == GV_NO_MEMORY; n++)
	{
		int64_t		before = gv_emulated_unrecorded;
		const GvRowItem *more = (GvRowItem *) (items + stride);
		OwnMirror	mirror = NULL;

		OK(gv_mirror_create(&spec, &mirror));
		OK(gv_mirror_put_rows(mirror, (GvRowItem *) items, 1));
		gv_emulated_fault = n;
		status = gv_mirror_put_rows(mirror, more, 2);
		gv_emulated_fault = 0;
		CHECK(gv_emulated_unrecorded == before, "without memory %d: %d steps "
			  "that nobody waits for", n,
			  (int) (gv_emulated_unrecorded - before));
		OK(gv_mirror_put_rows(mirror, more, 2));
		CHECK(gv_mirror_get_rows(mirror, rowids, 3, (GvRowItem *) found) ==
			  GV_OK && memcmp(found, items, 3 * stride) == 0,
			  "rows after %d", n);
	}
	CHECK(status == GV_OK && n > 2, "%d: %d", n, status);
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
	test_refused_rows();
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

/* Rows of the table, of which test_mirrors has all, too. */
static void
test_rows_alone(void)
{
	OwnSearcher	searcher = NULL;

	OK(gv_searcher(0, &searcher));
	test_mirror_rows(searcher);
	test_refused_rows();
}

static void
test_builders(void)
{
	unit_seed = 1;				/* models vary in quality with it */
	gv_coarse_filter_from = 0;		/* few terms, but by the way of many */
	test_builder();
	test_even_kmeans();
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
	if (device_is_emulated())
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
	unit_sets = gv_cuda_sets;
	OK(gv_sets_open(&unit_sets));
	if (argc > 1 && unit_is_wanted(argc, argv, "best"))
		test_best();
	if (argc > 1 && unit_is_wanted(argc, argv, "rows"))
		test_rows_alone();
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
		test_doubles_card();
	}
	if (unit_is_wanted(argc, argv, "exact"))
		test_exact_card();
	if (unit_is_wanted(argc, argv, "lists"))
		test_lists_card();
	if (unit_is_wanted(argc, argv, "sets"))
		test_kmeans_card();
	if (unit_is_wanted(argc, argv, "faults"))
		test_faults_card();
	/* what nvcc links does not count */
	if (unit_is_wanted(argc, argv, "memory") && device_is_emulated())
		test_memory();
	printf("card: %ld passed, %ld failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}
