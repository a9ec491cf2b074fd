/*
 * check_lists_card.c
 *		Exact search among near lists on a device, or emulated threads:
 *		positions and distances of gv_cpu_sets, to the last bit, and those of a
 *		search that compares all rows where all lists are near.
 */
#include "searches.h"

extern void test_lists_card(void);
/* gpu/exact/nearlists.cu */
extern int64_t gv_exact_batch;
extern int64_t gv_exact_tile;

static const Look looks[] = {LOOK_MIXED, LOOK_TIES, LOOK_SAME, LOOK_ZEROS,
LOOK_OUTLIERS};

#define NLOOKS	((int) (sizeof(looks) / sizeof(looks[0])))

typedef struct Case
{
	int32_t		metric;
	int32_t		dims;
	int64_t		nrows;
	int64_t		nqueries;		/* 0: all rows, and none its own neighbor */
	int32_t		k;
	int32_t		nlists;
	int32_t		probes;
	Look		look;
	int64_t		batch;			/* rows on the device at once; 0: all */
	int64_t		unit;			/* of a unit; 0: all */
} Case;

static GvSetSpec
spec_of(const Case *test)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = test->metric,
	.dims = test->dims,.k = test->k,.nrows = test->nrows,
	.nlists = test->nlists,.probes = test->probes};

	spec.self = test->nqueries == 0;
	spec.nqueries = spec.self ? test->nrows : test->nqueries;
	return spec;
}

static SearchInputs
make_inputs(const Case *test, const GvSetSpec *spec)
{
	SearchInputs in = {.batch = spec->nrows};
	int64_t		i;

	in.rows = look_vectors(test->look, spec->nrows, spec->dims);
	in.queries = look_vectors(test->look, spec->nqueries, spec->dims);
	in.lists = unit_alloc(sizeof(float) * (size_t) spec->nlists * spec->dims);
	in.self = unit_alloc(sizeof(int64_t) * (size_t) spec->nqueries);
	if (spec->self)
		memcpy(in.queries, in.rows,
			   sizeof(float) * (size_t) (spec->nrows * spec->dims));
	for (i = 0; i < spec->nqueries; i++)
		in.self[i] = i;
	/* rows; every eighth is the one before again, and has an empty list */
	for (i = 0; i < spec->nlists; i++)
	{
		int64_t		row = (i - (i % 8 == 7)) * 5 % spec->nrows;

		memcpy(in.lists + i * spec->dims, in.rows + row * spec->dims,
			   sizeof(float) * spec->dims);
	}
	return in;
}

static void
compare(const Case *test, const GvSetSpec *spec, const SearchOutputs *a,
		const SearchOutputs *b)
{
	int64_t		wrong = count_differences(spec, a, b);

	CHECK(wrong == 0, "metric %d, %d dims, %d rows, %d queries, k %d, %d of %d "
		  "lists, look %d, batch %d, unit %d: %d of %d differ", test->metric,
		  test->dims, (int) test->nrows, (int) test->nqueries, test->k,
		  test->probes, test->nlists, test->look, (int) test->batch,
		  (int) test->unit, (int) wrong, (int) (spec->nqueries * spec->k));
}

/*
 * The last two thirds of all rows, which are queries, in two portions, by sets
 * of their own and of rows that are kept; and once more all of these as
 * queries.
 */
static void
check_own(const Case *test, const GvSetSpec *all, const SearchInputs *in,
		  const SearchOutputs *expected)
{
	GvSetSpec	own = *all;
	int64_t		third = all->nqueries / 3;
	OwnOutputs	again = make_outputs(all);
	void	   *kept = NULL;

	/* where all lists are near it is as without */
	if (all->probes == all->nlists && test->dims % 2 == 0)
		own.nlists = own.probes = 0;
	own.self = 0;
	own.own = 1;
	own.nqueries = third;
	CHECK(keep_rows(&gv_gpu_exact_set, all, in, &kept) == GV_OK, "keep");
	for (own.first = third; third > 0 && own.first < 3 * third;
		 own.first += third)
	{
		SearchOutputs part = {expected->positions + own.first * own.k,
		expected->distances + own.first * own.k};
		OwnOutputs	device = make_outputs(&own);
		OwnOutputs	cpu = make_outputs(&own);

		CHECK(gv_gpu_exact_set.size(&own) > 0, "size");
		CHECK(run_search(&gv_gpu_exact_set, &own, in, NULL, &device) ==
			  GV_OK &&
			  run_search(gv_cpu_sets.kinds[GV_SET_EXACT], &own, in, NULL,
						 &cpu) == GV_OK, "own");
		compare(test, &own, &part, &device);
		compare(test, &own, &part, &cpu);
		OK(ask_search(&gv_gpu_exact_set, kept, &own, in, &device));
		compare(test, &own, &part, &device);
	}
	OK(ask_search(&gv_gpu_exact_set, kept, all, in, &again));
	compare(test, all, expected, &again);
	gv_gpu_exact_set.drop(kept);
}

static void
check_case(const Case *test)
{
	GvSetSpec	spec = spec_of(test);
	GvSetSpec	plain = spec;
	OwnInputs	in = make_inputs(test, &spec);
	OwnOutputs	cpu = make_outputs(&spec);
	OwnOutputs	device = make_outputs(&spec);

	gv_exact_batch = test->batch;
	gv_exact_tile = test->unit;
	CHECK(gv_gpu_exact_set.size(&spec) > 0, "size");
	OK(run_search(&gv_gpu_exact_set, &spec, &in, NULL, &device));
	OK(run_search(gv_cpu_sets.kinds[GV_SET_EXACT], &spec, &in, NULL, &cpu));
	compare(test, &spec, &cpu, &device);
	plain.nlists = 0;
	plain.probes = 0;
	if (spec.probes == spec.nlists)
	{
		CHECK(run_search(gv_cpu_sets.kinds[GV_SET_EXACT], &plain, &in, NULL,
						 &cpu) == GV_OK, "all rows");
		compare(test, &spec, &cpu, &device);
	}
	if (spec.self)
		check_own(test, &spec, &in, &device);
	gv_exact_batch = 0;
	gv_exact_tile = 0;
}

/* All metrics, looks, batches and units. */
static void
test_looks(void)
{
	int			metric;
	int			i;

	for (metric = GV_SET_L2; metric <= GV_SET_PEARSON; metric++)
		for (i = unit_small ? metric % 2 : 0; i < NLOOKS;
			 i += unit_small ? 2 : 1)
		{
			Look		look = looks[i];
			int			odd = NLOOKS * metric + i;
			Case		some = {metric, 2 + odd * 7 % 40, 310 + odd, 20, 4, 24,
			6, look, odd % 2 == 0 ? 0 : 170, odd % 4 == 1 ? 0 : 256};
			Case		self = {metric, 2 + odd * 3 % 20, 60 + odd, 0, 3, 8,
			1 + odd % 5, look, odd % 2 == 0 ? 0 : 50, 0};
			Case		all = {metric, 2 + odd * 5 % 30, 270 + odd, 14, 7, 8,
			8, look, odd % 2 == 0 ? 0 : 200, odd % 4 == 1 ? 0 : 256};

			gv_exact_capacity = 0;
			gv_exact_seed = 256;
			check_case(odd % 3 == 0 ? &self : odd % 3 == 1 ? &some : &all);
		}
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
}

/* One of anything, more neighbors than rows, many of them. */
static void
test_shapes(void)
{
	static const Case cases[] = {
		{GV_SET_L2, 1, 1, 1, 1, 1, 1, LOOK_MIXED, 0, 0},
		{GV_SET_L2, 3, 1, 0, 2, 1, 1, LOOK_MIXED, 0, 0},
		{GV_SET_IP, 2, 40, 0, 8, 40, 1, LOOK_MIXED, 7, 0},
		{GV_SET_L2, 5, 50, 3, 60, 64, 64, LOOK_MIXED, 0, 0},
		{GV_SET_COSINE, 17, 200, 8, 130, 5, 2, LOOK_MIXED, 100, 0},
		{GV_SET_COSINE, 8, 300, 12, 150, 7, 3, LOOK_ZEROS, 0, 256},
		{GV_SET_PEARSON, 1, 30, 4, 3, 6, 4, LOOK_MIXED, 9, 0},
		{GV_SET_PEARSON, 4, 90, 0, 5, 20, 2, LOOK_TIES, 0, 0},
		{GV_SET_L2, 20, 600, 150, 3, 4, 3, LOOK_MIXED, 0, 0}
	};
	size_t		i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_case(&cases[i]);
}

/* Little memory for slots: queries go every way. */
static void
test_overflows(void)
{
	static const int32_t capacities[] = {1, 9, 60};
	int64_t		before[2];
	int64_t		after[2];
	int			i;

	memcpy(before, gv_exact_ways, sizeof(gv_exact_ways));
	for (i = 0; i < 3; i += unit_small ? 2 : 1)
	{
		Case		same = {GV_SET_L2, 4, 40, 0, 3, 4, 2, LOOK_SAME, 25, 0};
		Case		ties = {GV_SET_COSINE, 3, 340, 20, 4, 12, 5, LOOK_TIES, 0,
		256};
		Case		held = {GV_SET_IP, 9, 300, 20, 6, 12, 4, LOOK_OUTLIERS, 0,
		0};

		gv_exact_capacity = capacities[i];
		gv_exact_seed = 256;
		check_case(&same);
		check_case(&ties);
		check_case(&held);
	}
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
	memcpy(after, gv_exact_ways, sizeof(gv_exact_ways));
	CHECK(after[0] > before[0] && after[1] > before[1],
		  "matrix %d, slow %d", (int) (after[0] - before[0]),
		  (int) (after[1] - before[1]));
}

/*
 * Lists of many queries, for which compute capability 9.0 has kernels of its
 * own.
 */
static void
test_large(void)
{
	static const int32_t dims[] = {16, 96, 200, 460};
	int			i;

	for (i = 0; i < 16; i++)
	{
		int			all = i / 4 % 2 == i % 2;
		Case		large = {GV_SET_L2 + i % 4, dims[i / 4], 6001, 0, 10,
		all ? 40 : 20, all ? 40 : 7, i % 3 == 0 ? LOOK_ZEROS : LOOK_MIXED,
		i % 5 == 0 ? 4500 : 0, i % 3 == 1 ? 2048 : 0};

		check_case(&large);
		gv_exact_no_hopper = true;
		check_case(&large);
		gv_exact_no_hopper = false;
	}
}

/* Whoever asks is obeyed, wherever that is. */
static void
test_stops(void)
{
	Case		test = {GV_SET_L2, 4, 300, 8, 3, 8, 6, LOOK_MIXED, 0, 256};
	GvSetSpec	spec = spec_of(&test);
	OwnInputs	in = make_inputs(&test, &spec);
	GvStatus	status = GV_CANCELED;
	int			n;

	gv_exact_batch = test.batch;
	gv_exact_tile = test.unit;
	for (n = 0; n < 1000 && status == GV_CANCELED; n += n + 1)
	{
		int			left = n;
		GvStop		stop = {counts_down, &left};

		status = run_search(&gv_gpu_exact_set, &spec, &in, &stop, NULL);
	}
	CHECK(status == GV_OK && n > 3, "%d: %d", n, status);
	gv_exact_batch = 0;
	gv_exact_tile = 0;
}

/* Without memory there is no set, or no answer. */
static void
test_no_memory(void)
{
	Case		test = {GV_SET_IP, 9, 50, 20, 2, 4, 2, LOOK_MIXED, 0, 0};
	GvSetSpec	spec = spec_of(&test);
	OwnInputs	in = make_inputs(&test, &spec);
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	for (n = 1; n < 60 && status == GV_NO_MEMORY; n++)
	{
		gv_emulated_fault = n;
		status = run_search(&gv_gpu_exact_set, &spec, &in, NULL, NULL);
		gv_emulated_fault = 0;
	}
	CHECK(status == GV_OK && n > 12, "%d: %d", n, status);
}

/* An engine was opened. */
void
test_lists_card(void)
{
	unit_seed = 11;
	test_shapes();
	test_looks();
	test_overflows();
	test_stops();
	if (!device_is_emulated())
		test_large();
	else
		test_no_memory();
}
