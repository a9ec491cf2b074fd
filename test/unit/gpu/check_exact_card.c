/*
 * check_exact_card.c
 *		Exact search on a card, or emulated threads: positions and distances of
 *		gv_cpu_sets, to the last bit, by every way that queries can go.
 */
#include "engine/gv_set.h"

#include <math.h>
#include <string.h>

#include "../engine/unit.h"

extern const GvSetOps gv_gpu_exact_set; /* gpu/gv_sets.h */
extern void gv_gpu_exact_force(int32_t capacity, int32_t seed); /* gpu/gv_exact.h */
extern void gv_gpu_exact_ways(int64_t ways[2]);
extern void gv_gpu_exact_hopper_forbid(bool yes);

/* What rows and queries look like. */
typedef enum Look
{
	LOOK_NORMAL,
	LOOK_CLUSTERED,				/* in the order of clusters */
	LOOK_TIES,					/* small whole numbers */
	LOOK_SAME,					/* all rows are equal */
	LOOK_OFFSET,				/* small beside what they have in common */
	LOOK_ZEROS,					/* every third vector does not vary */
	LOOK_RANGE,					/* lengths of 10^-30 to 10^30 */
	LOOK_OUTLIER,				/* one that half precision cannot hold */
	LOOK_TINY,					/* near the least float */
	LOOK_COMING					/* ever nearer to all queries */
} Look;

#define NLOOKS	(LOOK_COMING + 1)
#define GV_EXACT_FEW	8		/* gpu/gv_exact.h */

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

static float
component(Look look, int64_t i, int64_t n)
{
	float		x = unit_float() + unit_float() + unit_float();

	switch (look)
	{
		case LOOK_CLUSTERED:
			return 0.3f * x + (float) ((i * 7 / n * 31) % 5);
		case LOOK_TIES:
			return floorf(1.5f * x);
		case LOOK_SAME:
			return 0.25f;
		case LOOK_OFFSET:
			return 1000.0f + 0.01f * x;
		case LOOK_ZEROS:
			return i % 3 == 0 ? (i % 2 == 0 ? 0.0f : 1.5f) : x;
		case LOOK_RANGE:
			return x * powf(10.0f, (float) (i % 61 - 30));
		case LOOK_OUTLIER:
			return i == n / 2 ? 1e6f * x : x;
		case LOOK_TINY:
			return x * 1e-42f;
		case LOOK_COMING:
			return x * (float) (n + 2 - i) / (float) n;
		default:
			return x;
	}
}

static float *
make_vectors(Look look, int64_t n, int32_t dims)
{
	float	   *x = unit_alloc(sizeof(float) * (size_t) (n * dims));
	int64_t		i;

	for (i = 0; i < n * dims; i++)
		x[i] = component(look, i / dims, n);
	return x;
}

/* All outputs of one engine. */
static GvStatus
search(const GvSetOps *ops, const GvSetSpec *spec, const Case *test,
	   const float *queries, const float *rows, const int64_t *self,
	   int64_t *positions, double *distances)
{
	void	   *state = NULL;
	GvSetDone	done;
	GvStatus	status = ops->create(spec, &state);
	int64_t		i;

	if (status != GV_OK)
		return status;
	status = ops->put(state, GV_SET_QUERIES, queries, 0, spec->nqueries, NULL);
	if (status == GV_OK && spec->self)
		status = ops->put(state, GV_SET_SELF, self, 0, spec->nqueries, NULL);
	for (i = 0; i < test->nrows && status == GV_OK; i += test->batch)
		status = ops->put(state, GV_SET_ROWS, rows + i * spec->dims, i,
						  test->nrows - i < test->batch ? test->nrows - i :
						  test->batch, NULL);
	if (status == GV_OK)
		status = ops->run(state, &done, NULL);
	if (status == GV_OK)
		status = ops->get(state, GV_SET_POSITIONS, 0,
						  spec->nqueries * spec->k, positions);
	/* in two pieces that begin and end inside a query's */
	i = spec->nqueries * spec->k / 3;
	if (status == GV_OK)
		status = ops->get(state, GV_SET_DISTANCES, 0, i, distances);
	if (status == GV_OK)
		status = ops->get(state, GV_SET_DISTANCES, i,
						  spec->nqueries * spec->k - i, distances + i);
	ops->drop(state);
	return status;
}

/* Bits, but for which NaN it is. */
static bool
is_same(double a, double b)
{
	return (a != a && b != b) || memcmp(&a, &b, sizeof(a)) == 0;
}

static void
check_case(const Case *test)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = test->metric,
	.dims = test->dims,.k = test->k,.nqueries = test->nqueries,
	.nrows = test->nrows,.self = test->self};
	size_t		n = (size_t) (test->nqueries * test->k);
	float	   *queries = make_vectors(test->look, test->nqueries, test->dims);
	float	   *rows = make_vectors(test->look, test->nrows, test->dims);
	int64_t    *self = unit_alloc(sizeof(int64_t) * (size_t) test->nqueries);
	int64_t    *positions = unit_alloc(2 * sizeof(int64_t) * n);
	double	   *distances = unit_alloc(2 * sizeof(double) * n);
	size_t		wrong = 0;
	size_t		i;

	for (i = 0; i < (size_t) test->nqueries; i++)
	{
		self[i] = (int64_t) (i * 13) % (test->nrows + 1) - 1;
		if (test->self && self[i] >= 0)
			memcpy(queries + i * test->dims, rows + self[i] * test->dims,
				   sizeof(float) * test->dims);
	}
	CHECK(search(gv_cpu_sets.kinds[GV_SET_EXACT], &spec, test, queries, rows,
				 self, positions, distances) == GV_OK, "cpu");
	CHECK(gv_gpu_exact_set.size(&spec) > 0, "size");
	CHECK(search(&gv_gpu_exact_set, &spec, test, queries, rows, self,
				 positions + n, distances + n) == GV_OK, "card");
	for (i = 0; i < n; i++)
		wrong += positions[i] != positions[n + i] ||
			!is_same(distances[i], distances[n + i]);
	CHECK(wrong == 0, "metric %d, %d dims, %d rows, %d queries, k %d, look %d, "
		  "batch %d, self %d: %d of %d differ", test->metric, test->dims,
		  (int) test->nrows, (int) test->nqueries, test->k, test->look,
		  (int) test->batch, test->self, (int) wrong, (int) n);
	unit_free(queries);
	unit_free(rows);
	unit_free(self);
	unit_free(positions);
	unit_free(distances);
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

			gv_gpu_exact_force(0, 256);
			check_case(&many);
			check_case(&few);
			/* a scan by several blocks, and what other cards do */
			gv_gpu_exact_force(0, 768);
			few.batch = few.nrows + 1000;
			few.nrows = 3300 + odd;
			check_case(&few);
			gv_gpu_exact_hopper_forbid(true);
			check_case(&few);
			gv_gpu_exact_hopper_forbid(false);
		}
	gv_gpu_exact_force(0, 0);
}

/* Odd shapes: one of anything, more neighbours than rows, long merges. */
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

/* Little room for slots: queries go every way. */
static void
test_overflows(void)
{
	static const int32_t rooms[] = {1, 7, 40, 1500};
	int64_t		before[2];
	int64_t		after[2];
	int			i;

	gv_gpu_exact_ways(before);
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

		gv_gpu_exact_force(rooms[i], i % 2 == 0 ? 512 : 256);
		check_case(&wide);
		check_case(&voids);
		check_case(&ties);
		check_case(&few);
	}
	gv_gpu_exact_force(0, 0);
	gv_gpu_exact_ways(after);
	CHECK(after[0] > before[0] && after[1] > before[1],
		  "matrix %d, slow %d", (int) (after[0] - before[0]),
		  (int) (after[1] - before[1]));
}

/* So many queries that a card of compute capability 9.0 has a way of its own. */
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

			gv_gpu_exact_hopper_forbid(way == 1);
			check_case(&large);
		}
	gv_gpu_exact_hopper_forbid(false);
}

static bool
stops(void *arg)
{
	return --*(int *) arg < 0;
}

/* Whoever asks is obeyed, and without memory there is no set. */
static void
test_stops(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 4,
	.k = 3,.nqueries = 9,.nrows = 900};
	float	   *x = make_vectors(LOOK_NORMAL, 900, 4);
	int			left = 1;
	GvStop		stop = {stops, &left};
	void	   *state = NULL;

	CHECK(gv_gpu_exact_set.create(&spec, &state) == GV_OK, "create");
	CHECK(gv_gpu_exact_set.put(state, GV_SET_QUERIES, x, 0, 9, NULL) == GV_OK,
		  "queries");
	CHECK(gv_gpu_exact_set.put(state, GV_SET_ROWS, x, 0, 900, &stop) ==
		  GV_CANCELLED, "stop");
	gv_gpu_exact_set.drop(state);
	unit_free(x);
}

extern int64_t gv_emulated_fault __attribute__((weak)); /* not on a card */

static void
test_no_memory(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_IP,.dims = 9,
	.k = 2,.nqueries = 5,.nrows = 50};
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	if (&gv_emulated_fault == NULL)
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
	test_overflows();
	test_stops();
	test_no_memory();
	if (&gv_emulated_fault == NULL)
		test_large();
}
