/*
 * check_exact_card.c
 *		Exact search on a device, or emulated threads: positions and distances
 *		of gv_cpu_sets, to the last bit, by every way that queries can go.
 */
#include <math.h>

#include "searches.h"

extern void test_exact_card(void);

#define NLOOKS	(LOOK_COMING + 1)
#define GV_EXACT_FEW	16		/* gpu/exact/exact.h */

typedef struct Case
{
	int32_t		metric;
	int32_t		dims;
	int64_t		nrows;
	int64_t		nqueries;
	int32_t		k;
	Look		look;
	int64_t		batch;			/* rows put at a time */
	bool		self;
} Case;

static double far;				/* 0, or how far the first query is from
								 * rows */
static bool alike;				/* the numbers of a vector are the same */

/*
 * Vectors [n][dims] whose dimensions are all rounded the same way: by what
 * half precision cannot hold of a number a little above 1.
 */
static void
make_alike(float *x, int64_t n, int32_t dims)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		float		value = 1.0f + fabsf(unit_float()) * 0x1p-9f;
		int32_t		d;

		for (d = 0; d < dims; d++)
			x[i * dims + d] = i % 2 == 0 ? value : -value;
	}
}

/* Every query may have a row of its own, which is not its neighbor. */
static SearchInputs
make_inputs(const Case *test)
{
	SearchInputs in = {.batch = test->batch};
	int64_t		i;

	in.queries = look_vectors(test->look, test->nqueries, test->dims);
	in.rows = look_vectors(test->look, test->nrows, test->dims);
	if (far > 0.0)
		in.rows[7 * test->dims] = 1000.0f;
	if (alike)
	{
		make_alike(in.queries, test->nqueries, test->dims);
		make_alike(in.rows, test->nrows, test->dims);
	}
	in.self = unit_alloc(sizeof(int64_t) * (size_t) test->nqueries);
	for (i = 0; i < test->nqueries; i++)
	{
		if (far > 0.0)
			in.queries[i * test->dims] += far * pow(1.004, i);
		in.self[i] = i * 13 % (test->nrows + 1) - 1;
		if (test->self && in.self[i] >= 0)
			memcpy(in.queries + i * test->dims,
				   in.rows + in.self[i] * test->dims,
				   sizeof(float) * test->dims);
	}
	return in;
}

static void
check_case(const Case *test)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = test->metric,
	.dims = test->dims,.k = test->k,.nqueries = test->nqueries,
	.nrows = test->nrows,.self = test->self};
	size_t		n = (size_t) (test->nqueries * test->k);
	OwnInputs	in = make_inputs(test);
	OwnOutputs	cpu = make_outputs(&spec);
	OwnOutputs	device = make_outputs(&spec);
	int64_t		wrong;

	OK(run_search(gv_cpu_sets.kinds[GV_SET_EXACT], &spec, &in, NULL, &cpu));
	CHECK(gv_gpu_exact_set.size(&spec) > 0, "size");
	OK(run_search(&gv_gpu_exact_set, &spec, &in, NULL, &device));
	wrong = count_differences(&spec, &cpu, &device);
	CHECK(wrong == 0, "metric %d, %d dims, %d rows, %d queries, k %d, look %d, "
		  "batch %d, self %d: %d of %d differ", test->metric, test->dims,
		  (int) test->nrows, (int) test->nqueries, test->k, test->look,
		  (int) test->batch, test->self, (int) wrong, (int) n);
}

/* All metrics and looks, by few and by many queries. */
static void
test_looks(void)
{
	int			metric;
	int			look;

	for (metric = GV_SET_L2; metric <= GV_SET_PEARSON; metric++)
		for (look = unit_small ? metric % 3 : 0; look < NLOOKS;
			 look += unit_small ? 3 : 1)
		{
			int			odd = metric * NLOOKS + look;
			Case		many = {metric, 3 + odd * 7 % 40, 1500 + odd, 19, 5,
			look, 700, odd % 2 == 0};
			Case		few = {metric, 1 + odd * 5 % 70, 3000 + odd,
			1 + odd % GV_EXACT_FEW, 7, look, 2900, odd % 3 == 0};

			gv_exact_capacity = 0;
			gv_exact_seed = 256;
			check_case(&many);
			check_case(&few);
			/* a seed of several blocks */
			gv_exact_capacity = 0;
			gv_exact_seed = 768;
			few.batch = few.nrows + 1000;
			few.nrows = 3300 + odd;
			check_case(&few);
		}
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
}

/*
 * Queries that half precision nearly holds, some 2,040 times what rows are
 * scaled by, and a row on their side, which no bias of its own brings near.
 */
static void
test_far(void)
{
	Case		many = {GV_SET_L2, 8, 3000, 60, 5, LOOK_NORMAL, 3000, false};
	Case		few = {GV_SET_L2, 8, 3000, 16, 5, LOOK_NORMAL, 3000, false};

	gv_exact_capacity = 4096;
	gv_exact_seed = 256;
	far = 1800.0;
	check_case(&many);
	far = 1980.0;
	check_case(&few);
	far = 0.0;
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
}

/* Rounding alone decides which rows seem near. */
static void
test_rounded(void)
{
	Case		many = {GV_SET_IP, 8, 3000, 60, 5, LOOK_NORMAL, 600, false};
	Case		few = {GV_SET_L2, 8, 3000, 16, 5, LOOK_NORMAL, 600, false};

	alike = true;
	check_case(&many);
	check_case(&few);
	many.metric = GV_SET_L2;
	few.metric = GV_SET_IP;
	check_case(&many);
	check_case(&few);
	alike = false;
}

/* Odd shapes: one of anything, more neighbors than rows, long merges. */
static void
test_shapes(void)
{
	static const Case cases[] = {
		{GV_SET_L2, 1, 1, 1, 1, LOOK_NORMAL, 1, false},
		{GV_SET_L2, 1, 1, 1, 1, LOOK_SAME, 1, true},
		{GV_SET_PEARSON, 1, 40, 3, 4, LOOK_NORMAL, 7, false},
		{GV_SET_IP, 2, 5, 9, 8, LOOK_NORMAL, 2, true},
		{GV_SET_COSINE, 17, 300, 9, 300, LOOK_NORMAL, 100, false},
		{GV_SET_L2, 200, 2000, 20, 300, LOOK_NORMAL, 333, true},
		{GV_SET_L2, 63, 1300, 140, 2, LOOK_NORMAL, 1300, false},
		{GV_SET_IP, 96, 2000, 10, 1, LOOK_NORMAL, 999, false},
		{GV_SET_COSINE, 30, 1025, 9, 40, LOOK_ZEROS, 1, true},
		{GV_SET_PEARSON, 8, 5000, 2, 1200, LOOK_TIES, 5000, false}
	};
	size_t		i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_case(&cases[i]);
}

/* Little memory for slots: queries go every way. */
static void
test_overflows(void)
{
	static const int32_t capacities[] = {1, 7, 40, 1500};
	int64_t		before[2];
	int64_t		after[2];
	int			i;

	memcpy(before, gv_exact_ways, sizeof(gv_exact_ways));
	for (i = 0; i < 4; i += unit_small ? 2 : 1)
	{
		Case		wide = {GV_SET_L2, 12, 1400, 21, 20, LOOK_COMING, 1400,
		false};
		Case		voids = {GV_SET_COSINE, 5, 300, 18, 9, LOOK_ZEROS, 77,
		true};
		Case		ties = {GV_SET_PEARSON, 6, 900, 9, 3, LOOK_TIES, 450,
		false};
		Case		few = {GV_SET_IP, 21, 2100, 2, 10, LOOK_CLUSTERED, 2100,
		false};

		gv_exact_capacity = capacities[i];
		gv_exact_seed = i % 2 == 0 ? 512 : 256;
		check_case(&wide);
		check_case(&voids);
		check_case(&ties);
		check_case(&few);
	}
	gv_exact_capacity = 0;
	gv_exact_seed = 0;
	memcpy(after, gv_exact_ways, sizeof(gv_exact_ways));
	CHECK(after[0] > before[0] && after[1] > before[1],
		  "matrix %d, slow %d", (int) (after[0] - before[0]),
		  (int) (after[1] - before[1]));
}

/*
 * So many queries that a device of compute capability 9.0 has a way of its
 * own.
 */
static void
test_large(void)
{
	static const int32_t dims[] = {16, 100, 128, 192, 200, 384, 448, 460, 768};
	int			i;
	int			way;

	for (i = 0; i < 9; i++)
		for (way = 0; way < 2; way++)
		{
			Case		large = {GV_SET_L2 + i % 4, dims[i], 9001, 700 - 55 * i,
			10, i % 2 == 0 ? LOOK_NORMAL : LOOK_CLUSTERED, 7000, i == 4};

			gv_exact_no_hopper = way == 1;
			check_case(&large);
		}
	gv_exact_no_hopper = false;
}

/* Whoever asks is obeyed, and without memory there is no set. */
static void
test_stops(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 4,
	.k = 3,.nqueries = 9,.nrows = 900};
	OWN float  *x = look_vectors(LOOK_NORMAL, 900, 4);
	int			left = 1;
	GvStop		stop = {counts_down, &left};
	void	   *state = NULL;

	CHECK(gv_gpu_exact_set.create(&spec, &state) == GV_OK, "create");
	OK(gv_gpu_exact_set.put(state, GV_SET_QUERIES, x, 0, 9, NULL));
	CHECK(gv_gpu_exact_set.put(state, GV_SET_ROWS, x, 0, 900, &stop) ==
		  GV_CANCELED, "stop");
	gv_gpu_exact_set.drop(state);
}

static void
test_no_memory(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_IP,.dims = 9,
	.k = 2,.nqueries = 5,.nrows = 50};
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	if (!device_is_emulated())
		return;
	for (n = 1; n < 20 && status == GV_NO_MEMORY; n++)
	{
		void	   *state = NULL;

		gv_emulated_fault = n;
		status = gv_gpu_exact_set.create(&spec, &state);
		gv_emulated_fault = 0;
		if (status == GV_OK)
			gv_gpu_exact_set.drop(state);
	}
	CHECK(status == GV_OK && n > 4, "%d: %d", n, status);
}

/* An engine was opened. */
void
test_exact_card(void)
{
	unit_seed = 7;
	test_shapes();
	test_looks();
	test_far();
	test_rounded();
	test_overflows();
	test_stops();
	test_no_memory();
	if (!device_is_emulated())
		test_large();
}
