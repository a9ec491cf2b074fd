/*
 * check_exact_card.c
 *		Exact search on a device, or emulated threads, of all rows and of those
 *		of near lists: positions and distances of gv_cpu_sets, to the last bit,
 *		by every way that queries can go.
 */
#include "card.h"

/* gpu/exact */
extern int32_t gv_exact_capacity;
extern int32_t gv_exact_seed;
extern int64_t gv_exact_ways[2];
extern bool gv_exact_no_hopper;
extern int64_t gv_exact_batch;
extern int64_t gv_exact_tile;

#define GV_EXACT_FEW	16		/* gpu/exact/exact.h */

typedef struct Case
{
	int32_t		metric;
	int32_t		dims;
	int64_t		nrows;
	int64_t		nqueries;		/* 0: rows, none its own neighbor */
	int32_t		k;
	Kind		kind;
	int64_t		batch;			/* rows put at a time, or on the device at
								 * once; 0: all */
	int32_t		nlists;			/* 0: all rows are compared */
	int32_t		probes;
	int64_t		tile;			/* of lists' rows; 0: all */
} Case;

/*
 * Queries up to `far` from rows of about 1, and a row on their side, which no
 * bias of its own brings near.
 */
static void
move_far(const GvSetSpec *spec, const SetInputs *inputs, double far)
{
	float	   *queries = (float *) inputs->queries;
	float	   *rows = (float *) inputs->rows;
	int64_t		i;

	for (i = 0; i < inputs->nrows * spec->dims; i++)
		rows[i] = unit_float() + unit_float() + unit_float();
	rows[7 * spec->dims] = 1000.0f;
	for (i = 0; i < spec->nqueries; i++)
		queries[i * spec->dims] += (float) (far * pow(1.004, (double) i));
}

/* far: see move_far; or 0 */
static void
check_far_case(const Case *test, double far)
{
	/* there might have been more rows */
	int64_t		more = unit_random() % 2 ? 3 : 0;
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = test->metric,
		.dims = test->dims,.k = test->k,.nrows = test->nrows + more,
		.nlists = test->nlists,.probes = test->probes,
	.nqueries = test->nqueries > 0 ? test->nqueries : 1};
	OwnInputs	inputs = make_inputs(&spec, test->kind, test->nrows);
	OWN int64_t *positions = NULL;
	OWN double *distances = NULL;
	int64_t		nwrong = 0;
	int64_t		n;
	int64_t		i;

	if (far > 0.0)
		move_far(&spec, &inputs, far);
	if (test->batch > 0)
		inputs.batch = test->batch;
	if (test->nqueries == 0)
	{
		spec.own = 1;
		spec.first = unit_random() % 2 ? 0 :
			(int64_t) (unit_random() % test->nrows);
		spec.nqueries = test->nrows - spec.first;
	}
	else
		spec.self = unit_random() % 2;
	n = spec.nqueries * spec.k;
	positions = unit_alloc(2 * sizeof(int64_t) * n);
	distances = unit_alloc(2 * sizeof(double) * n);
	gv_exact_batch = test->nlists > 0 ? test->batch : 0;
	gv_exact_tile = test->tile;
	find_neighbors(&spec, &inputs, positions, distances);
	unit_sets = gv_cpu_sets;
	find_neighbors(&spec, &inputs, positions + n, distances + n);
	unit_sets = gv_cuda_sets;
	gv_exact_batch = 0;
	gv_exact_tile = 0;
	for (i = 0; i < n; i++)
		nwrong += positions[i] != positions[n + i] ||
			(memcmp(&distances[i], &distances[n + i], sizeof(double)) != 0 &&
			 !(isnan(distances[i]) && isnan(distances[n + i])));
	CHECK(nwrong == 0, "metric %d, %d dims, %d rows, %d queries from %d, "
		  "k %d, kind %d, batch %d, self %d, %d of %d lists, tile %d: "
		  "%d of %d differ", test->metric, test->dims, (int) test->nrows, (int) spec.nqueries,
		  (int) spec.first, test->k, test->kind, (int) test->batch, spec.self,
		  test->probes, test->nlists, (int) test->tile, (int) nwrong, (int) n);
}

static void
check_case(const Case *test)
{
	check_far_case(test, 0.0);
}

/* Checks cases by a capacity for candidates and a seed of slots; 0: usual */
static void
check_cases(const Case *cases, int n, int32_t capacity, int32_t seed)
{
	int			i;

	gv_exact_capacity = capacity;
	gv_exact_seed = seed;
	for (i = 0; i < n; i++)
		check_case(&cases[i]);
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
}

/* All metrics and kinds, by few and by many queries. */
static void
test_kinds(void)
{
	int			step = unit_small ? 4 : device_is_emulated() ? 2 : 1;
	int			metric;
	int			kind;

	for (metric = GV_SET_L2; metric <= GV_SET_PEARSON; metric++)
		for (kind = metric % step; kind < NKINDS; kind += step)
		{
			int			odd = metric * NKINDS + kind;
			Case		some[] = {
				{metric, 3 + odd * 7 % 40, 1500 + odd, 19, 5, kind, 700, 0, 0,
				0},
				{metric, 1 + odd * 5 % 70, 3000 + odd, 1 + odd % GV_EXACT_FEW,
				7, kind, 2900, 0, 0, 0}
			};

			check_cases(some, 2, 0, 256);
			/* a seed of several blocks */
			some[1].batch = some[1].nrows + 1000;
			some[1].nrows = 3300 + odd;
			check_cases(&some[1], 1, 0, 768);
		}
}

/* Queries that half precision nearly holds, some 2,040 times rows' scale. */
static void
test_far(void)
{
	static const Case many = {GV_SET_L2, 8, 3000, 60, 5, KIND_UNIFORM, 3000,
	0, 0, 0};
	static const Case few = {GV_SET_L2, 8, 3000, 16, 5, KIND_UNIFORM, 3000,
	0, 0, 0};

	gv_exact_capacity = 4096;
	gv_exact_seed = 256;
	check_far_case(&many, 1800.0);
	check_far_case(&few, 1980.0);
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
}

/*
 * Odd shapes: rounding alone decides which rows seem near; one of anything,
 * more neighbors than rows, long merges.
 */
static void
test_shapes(void)
{
	static const Case cases[] = {
		{GV_SET_IP, 8, 3000, 60, 5, KIND_ALIKE, 600, 0, 0, 0},
		{GV_SET_L2, 8, 3000, 60, 5, KIND_ALIKE, 600, 0, 0, 0},
		{GV_SET_IP, 8, 3000, 16, 5, KIND_ALIKE, 600, 0, 0, 0},
		{GV_SET_L2, 8, 3000, 16, 5, KIND_ALIKE, 600, 0, 0, 0},
		{GV_SET_L2, 1, 1, 1, 1, KIND_UNIFORM, 1, 0, 0, 0},
		{GV_SET_L2, 1, 1, 0, 1, KIND_ALL_EQUAL, 1, 0, 0, 0},
		{GV_SET_PEARSON, 1, 40, 3, 4, KIND_UNIFORM, 7, 0, 0, 0},
		{GV_SET_IP, 2, 5, 9, 8, KIND_UNIFORM, 2, 0, 0, 0},
		{GV_SET_COSINE, 17, 300, 9, 300, KIND_UNIFORM, 100, 0, 0, 0},
		{GV_SET_L2, 200, 2000, 20, 300, KIND_UNIFORM, 333, 0, 0, 0},
		{GV_SET_L2, 63, 1300, 140, 2, KIND_UNIFORM, 1300, 0, 0, 0},
		{GV_SET_IP, 96, 2000, 10, 1, KIND_UNIFORM, 999, 0, 0, 0},
		{GV_SET_COSINE, 30, 1025, 9, 40, KIND_ZEROS, 1, 0, 0, 0},
		{GV_SET_PEARSON, 8, 5000, 2, 1200, KIND_FEW_VALUES, 5000, 0, 0, 0}
	};

	check_cases(cases, sizeof(cases) / sizeof(cases[0]), 0, 0);
}

/* Little memory for slots: queries of n cases go every way. */
static void
check_overflows(const Case *cases, int n, const int32_t *capacities,
				int ncapacities)
{
	int64_t		before[2];
	int			i;

	memcpy(before, gv_exact_ways, sizeof(gv_exact_ways));
	for (i = 0; i < ncapacities; i += unit_small ? 2 : 1)
		check_cases(cases, n, capacities[i],
					cases->nlists == 0 && i % 2 == 0 ? 512 : 256);
	CHECK(gv_exact_ways[0] > before[0] && gv_exact_ways[1] > before[1],
		  "matrix %d, slow %d", (int) (gv_exact_ways[0] - before[0]),
		  (int) (gv_exact_ways[1] - before[1]));
}

static void
test_overflows(void)
{
	static const int32_t capacities[] = {1, 7, 40, 1500};
	static const Case cases[] = {
		{GV_SET_L2, 12, 1400, 21, 20, KIND_COMING, 1400, 0, 0, 0},
		{GV_SET_COSINE, 5, 300, 18, 9, KIND_ZEROS, 77, 0, 0, 0},
		{GV_SET_PEARSON, 6, 900, 9, 3, KIND_FEW_VALUES, 450, 0, 0, 0},
		{GV_SET_IP, 21, 2100, 2, 10, KIND_CLUSTERED, 2100, 0, 0, 0}
	};

	check_overflows(cases, 4, capacities, 4);
}

/*
 * So many queries, or lists of so many, that a device of compute capability
 * 9.0 has a way of its own.
 */
static void
check_large(Case large)
{
	check_case(&large);
	gv_exact_no_hopper = true;
	check_case(&large);
	gv_exact_no_hopper = false;
}

static void
test_large(void)
{
	static const int32_t dims[] = {16, 100, 128, 192, 200, 384, 448, 460, 768};
	int			i;

	for (i = 0; i < 9; i++)
		check_large((Case) {
					GV_SET_L2 + i % 4, dims[i], 9001, 700 - 55 * i, 10,
					i % 2 == 0 ? KIND_UNIFORM : KIND_CLUSTERED, 7000, 0, 0,
					0});
}

/* An engine was opened. */
void
test_exact_card(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 4,
	.k = 3,.nqueries = 9,.nrows = 900};

	unit_seed = 7;
	test_shapes();
	test_kinds();
	test_far();
	test_overflows();
	check_set_stops(&spec, 2);
	if (!device_is_emulated())
		test_large();
}

/* ---------- near lists ---------- */

/* All metrics, kinds, batches and tiles. */
static void
test_near_kinds(void)
{
	int			step = unit_small ? 3 : 1;
	int			metric;
	int			kind;

	for (metric = GV_SET_L2; metric <= GV_SET_PEARSON; metric++)
		for (kind = metric % step; kind < NKINDS; kind += step)
		{
			int			odd = NKINDS * metric + kind;
			Case		cases[] = {
				{metric, 2 + odd * 3 % 20, 60 + odd, 0, 3, kind,
				odd % 2 == 0 ? 0 : 50, 8, 1 + odd % 5, 0},
				{metric, 2 + odd * 7 % 40, 310 + odd, 20, 4, kind,
				odd % 2 == 0 ? 0 : 170, 24, 6, odd % 4 == 1 ? 0 : 256},
				{metric, 2 + odd * 5 % 30, 270 + odd, 14, 7, kind,
				odd % 2 == 0 ? 0 : 200, 8, 8, odd % 4 == 1 ? 0 : 256}
			};

			check_cases(&cases[odd % 3], 1, 0, 256);
		}
}

/* One of anything, more neighbors than rows, many of them. */
static void
test_near_shapes(void)
{
	static const Case cases[] = {
		{GV_SET_L2, 1, 1, 1, 1, KIND_CLUSTERED, 0, 1, 1, 0},
		{GV_SET_L2, 3, 1, 0, 2, KIND_CLUSTERED, 0, 1, 1, 0},
		{GV_SET_IP, 2, 40, 0, 8, KIND_CLUSTERED, 7, 40, 1, 0},
		{GV_SET_L2, 5, 50, 3, 60, KIND_CLUSTERED, 0, 64, 64, 0},
		{GV_SET_COSINE, 17, 200, 8, 130, KIND_CLUSTERED, 100, 5, 2, 0},
		{GV_SET_COSINE, 8, 300, 12, 150, KIND_ZEROS, 0, 7, 3, 256},
		{GV_SET_PEARSON, 1, 30, 4, 3, KIND_CLUSTERED, 9, 6, 4, 0},
		{GV_SET_PEARSON, 4, 90, 0, 5, KIND_FEW_VALUES, 0, 20, 2, 0},
		{GV_SET_L2, 20, 600, 150, 3, KIND_CLUSTERED, 0, 4, 3, 0}
	};

	check_cases(cases, sizeof(cases) / sizeof(cases[0]), 0, 0);
}

static void
test_near_overflows(void)
{
	static const int32_t capacities[] = {1, 9, 60};
	static const Case cases[] = {
		{GV_SET_L2, 4, 40, 0, 3, KIND_ALL_EQUAL, 25, 4, 2, 0},
		{GV_SET_COSINE, 3, 340, 20, 4, KIND_FEW_VALUES, 0, 12, 5, 256},
		{GV_SET_IP, 9, 300, 20, 6, KIND_OUTLIERS, 0, 12, 4, 0}
	};

	check_overflows(cases, 3, capacities, 3);
}

static void
test_near_large(void)
{
	static const int32_t dims[] = {16, 96, 200, 460};
	int			i;

	for (i = 0; i < 16; i++)
	{
		bool		all = i / 4 % 2 == i % 2;

		check_large((Case) {
					GV_SET_L2 + i % 4, dims[i / 4], 6001, 0, 10,
					i % 3 == 0 ? KIND_ZEROS : KIND_CLUSTERED,
					i % 5 == 0 ? 4500 : 0, all ? 40 : 20, all ? 40 : 7,
					i % 3 == 1 ? 2048 : 0});
	}
}

/* An engine was opened. */
void
test_lists_card(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 4,
	.k = 3,.nqueries = 8,.nrows = 300,.nlists = 8,.probes = 6};

	unit_seed = 11;
	test_near_shapes();
	test_near_kinds();
	test_near_overflows();
	gv_exact_tile = 256;
	check_set_stops(&spec, 2);
	gv_exact_tile = 0;
	if (!device_is_emulated())
		test_near_large();
}
