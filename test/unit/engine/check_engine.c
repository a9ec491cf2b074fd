/*
 * check_engine.c
 *		Every operation of the engine against naive references.
 *
 * Compile the C files of this directory together with those of src/engine and
 * src/cpu; -std=gnu99 -O3 -ffp-contract=off -Isrc -lm.
 * Names of tests leave out all others, and "--names" prints them.
 * GPUVEC_UNIT_SIMD says which instructions are used; whatever it says, all are
 * compared.
 *
 * Needs no server.  Prints what fails and "engine: N passed, M failed".
 */
#include "mirrors.h"
#include "sets.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 1;
bool		unit_small;

#define BAD(change) (wrong = spec, wrong.change, \
	gv_kmeans(&wrong, x, out, &found, scratch, NULL))
#define BAD_MODEL(change) (bad = model, bad.change, gv_table(&bad, x, out))

static void
test_invalid_training(void)
{
	static char scratch[4096] __attribute__((aligned(64)));
	float		x[64] = {0};
	float		out[64];
	int32_t		nearest[4];
	int32_t		found;
	GvStop		bad_stop = {NULL, NULL};
	GvKmeans	spec = {4, 4, 2, 1, 2.0, 1};
	GvKmeans	wrong;

	INVALID(BAD(dims = 0));
	INVALID(BAD(dims = GV_MAX_DIMS + 1));
	INVALID(BAD(n = 0));
	INVALID(BAD(k = 0));
	INVALID(BAD(iterations = -1));
	INVALID(BAD(max_imbalance = 1.0));
	INVALID(BAD(max_imbalance = NAN));
	CHECK(gv_kmeans_scratch(&wrong) == 0, "scratch of an invalid spec");
	INVALID(gv_kmeans(NULL, x, out, &found, scratch, NULL));
	INVALID(gv_kmeans(&spec, NULL, out, &found, scratch, NULL));
	INVALID(gv_kmeans(&spec, x, NULL, &found, scratch, NULL));
	INVALID(gv_kmeans(&spec, x, out, NULL, scratch, NULL));
	INVALID(gv_kmeans(&spec, x, out, &found, NULL, NULL));
	INVALID(gv_kmeans(&spec, x, out, &found, scratch + 4, NULL));
	INVALID(gv_kmeans(&spec, x, out, &found, scratch, &bad_stop));
	INVALID(gv_codebooks(0, 1, 1, x, 1, out, scratch, NULL));
	INVALID(gv_codebooks(4, 5, 1, x, 1, out, scratch, NULL));
	INVALID(gv_codebooks(4, 0, 1, x, 1, out, scratch, NULL));
	INVALID(gv_codebooks(4, 2, 0, x, 1, out, scratch, NULL));
	INVALID(gv_codebooks(4, 2, 1, NULL, 1, out, scratch, NULL));
	INVALID(gv_codebooks(4, 2, 1, x, 1, NULL, scratch, NULL));
	INVALID(gv_codebooks(4, 2, 1, x, 1, out, NULL, NULL));
	CHECK(gv_codebooks_scratch(4, 5, 1) == 0, "scratch of a bad shape");
	INVALID(gv_assign(0, x, 1, x, 1, nearest, NULL, NULL));
	INVALID(gv_assign(4, NULL, 1, x, 1, nearest, NULL, NULL));
	INVALID(gv_assign(4, x, 0, x, 1, nearest, NULL, NULL));
	INVALID(gv_assign(4, x, 1, NULL, 1, nearest, NULL, NULL));
	INVALID(gv_assign(4, x, 1, x, 0, nearest, NULL, NULL));
	INVALID(gv_assign(4, x, 1, x, 1, NULL, NULL, NULL));
}

static void
test_invalid_search(void)
{
	float		x[64] = {0};
	float		out[64];
	int32_t		list = 0;
	uint8_t		codes[8];
	uint64_t	ids[2];
	GvBlock		block = {.live = 1};
	GvTopK		top = {2, 0, false, out, ids};
	GvTopK		bad_top = {0, 0, false, out, ids};
	GvScan		scan;
	void	   *scratch;
	GvModel		model = {GV_L2, 4, 2, 1.0f, x, x, NULL, 0.0f};
	GvModel		bad;

	INVALID(BAD_MODEL(metric = (GvMetric) 4));
	INVALID(BAD_MODEL(dims = 0));
	INVALID(BAD_MODEL(m = 5));
	INVALID(BAD_MODEL(codebooks = NULL));
	INVALID(gv_table(NULL, x, out));
	INVALID(gv_table(&model, NULL, out));
	INVALID(gv_table(&model, x, NULL));
	INVALID(gv_encode(&model, x, x, &list, 0, 1, codes, out));
	INVALID(gv_encode(&model, x, x, &list, 1, 0, codes, out));
	INVALID(gv_encode(&model, NULL, x, &list, 1, 1, codes, out));
	INVALID(gv_encode(&model, x, NULL, &list, 1, 1, codes, out));
	INVALID(gv_encode(&model, x, x, NULL, 1, 1, codes, out));
	INVALID(gv_encode(&model, x, x, &list, 1, 1, NULL, out));
	INVALID(gv_encode(&model, x, x, &list, 1, 1, codes, NULL));
	INVALID(gv_coarse(&model, NULL, x, 1, 0, &top));
	INVALID(gv_coarse(&model, x, NULL, 1, 0, &top));
	INVALID(gv_coarse(&model, x, x, 0, 0, &top));
	INVALID(gv_coarse(&model, x, x, 1, 0, &bad_top));
	INVALID(gv_coarse(&model, x, x, 1, 0, NULL));
	scan = begin_scan(&model, x, &top);
	scratch = scan.scratch;
	INVALID(gv_scan(NULL, 0, &block, 0));
	INVALID(gv_scan(&scan, 0, NULL, 1));
	INVALID(gv_scan(&scan, 0, &block, -1));
	INVALID(gv_scan(&scan, 0, &block, 1));
	INVALID(gv_scan_optimistic(&scan, 0, &block, 1));
	INVALID(gv_scan_optimistic(&scan, 0, &block, GV_OPTIMISTIC_BLOCKS + 1));
	INVALID(gv_scan_commit(NULL, true));
	CHECK(gv_scan(&scan, 0, NULL, 0) == GV_OK, "no blocks");
	top.unique = true;
	INVALID(gv_scan_optimistic(&scan, 0, NULL, 0));
	top.unique = false;
	scan.best = &bad_top;
	INVALID(gv_scan(&scan, 0, NULL, 0));
	INVALID(gv_scan_finish(&scan));
	scan.best = &top;
	scan.table = NULL;
	INVALID(gv_scan_begin(&scan));
	scan.table = x;
	scan.scratch = (char *) scratch + 1;
	INVALID(gv_scan_begin(&scan));
	scan.scratch = scratch;
	finish_scan(&scan);
}

static const struct
{
	const char *name;
	void		(*run) (void);
}			tests[] = {
	{"vectors", test_vectors},
	{"training", test_training},
	{"codes", test_codes},
	{"invalid_training", test_invalid_training},
	{"invalid_search", test_invalid_search},
	{"groups", test_groups},
	{"refine", test_refine},
	{"exact", test_exact},
	{"levels", test_levels},
	{"keep", test_keep},
	{"keys", test_keys},
	{"select", test_select},
	{"quantiles", test_quantiles},
	{"doubles", test_doubles},
	{"exact_sets", test_exact_sets},
	{"near_sets", test_near_sets},
	{"kmeans_sets", test_kmeans_sets},
	{"set_calls", test_set_calls},
	{"mirror", test_mirror},
	{"builder", test_builder},
	{"memory", test_memory},
	{"halves", test_halves},
	{"rotation", test_rotation},
};

#define NTESTS	((int) (sizeof(tests) / sizeof(tests[0])))

int
main(int argc, char **argv)
{
	int			nrun = 0;
	int			i;

	gv_simd_use(unit_simd());
	unit_small = getenv("GPUVEC_UNIT_SMALL") != NULL;
	if (argc > 1 && strcmp(argv[1], "--names") == 0)
	{
		for (i = 0; i < NTESTS; i++)
			printf("%s\n", tests[i].name);
		return 0;
	}
	if (!unit_is_wanted(argc, argv, "mirror"))
		open_mirrors();
	for (i = 0; i < NTESTS; i++)
		if (unit_is_wanted(argc, argv, tests[i].name))
		{
			unit_seed = 1;		/* whatever ran before */
			tests[i].run();
			nrun++;
		}
	CHECK(nrun > 0, "no test of that name");
	printf("engine: %ld passed, %ld failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}
