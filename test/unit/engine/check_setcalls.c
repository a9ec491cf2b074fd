/*
 * check_setcalls.c
 *		Selections as sets, and calls of all sets: out of order, invalid,
 *		stopped, without memory.
 */
#include "sets.h"

/* ---------- selections ---------- */

static void
check_selections(void)
{
	Input		input;
	int			method;

	for (input = 0; input < NINPUTS; input++)
	{
		for (method = 0; method < GV_NSELECT; method++)
		{
			check_selection_set(input, 1, 1, (GvSelectMethod) method);
			check_selection_set(input, 3000, 100, (GvSelectMethod) method);
		}
		check_selection_set(input, 20000, 20000, GV_SELECT_AUTO);
		check_quantiles_set(input, 1, 1, false);
		check_quantiles_set(input, 20000, 50, false);
		check_quantiles_set(input, 20000, 50, true);
	}
}

/* ---------- calls ---------- */

/* A spec of each kind; the vectors below serve all of them. */
static const GvSetSpec specs[GV_NSETS] = {
	[GV_SET_EXACT] = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 2,
		.k = 2,.self = 1,.nqueries = 5,.nrows = 6},
	[GV_SET_KMEANS] = {.kind = GV_SET_KMEANS,.dims = 2,.k = 2,
		.iterations = 1,.nrows = 6},
	[GV_SET_SELECT] = {.kind = GV_SET_SELECT,.dims = 1,.k = 2,.nrows = 6},
	[GV_SET_QUANTILES] = {.kind = GV_SET_QUANTILES,.dims = 1,.nqueries = 2,
		.nrows = 6},
};
static const float vectors[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const int64_t numbers[5] = {0, 1, 5, 0, 0};

static void
refuse(int kind, GvSetSpec wrong, int line)
{
	GvSet	   *set = NULL;

	CHECK(gv_set_create(&wrong, &set) == GV_INVALID && set == NULL &&
		  gv_set_size(&wrong) == 0, "kind %d, line %d", kind, line);
}

#define REFUSE(kind, change) \
	(wrong = specs[kind], wrong.change, refuse(kind, wrong, __LINE__))

static void
check_invalid_specs(void)
{
	GvSetSpec	wrong;
	int			kind;

	for (kind = 0; kind < GV_NSETS; kind++)
	{
		CHECK(gv_set_size(&specs[kind]) > 0, "kind %d", kind);
		REFUSE(kind, kind = GV_NSETS);
		REFUSE(kind, dims = 0);
		REFUSE(kind, dims = GV_MAX_DIMS + 1);
		REFUSE(kind, nrows = 0);
		REFUSE(kind, nrows = INT64_MAX / 8);
		REFUSE(kind, k = -1);
		REFUSE(kind, metric = GV_SET_PEARSON + 1);
		REFUSE(kind, nqueries = -1);
		REFUSE(kind, nqueries = GV_SET_MAX_QUERIES + 1);
		REFUSE(kind, self = 2);
		REFUSE(kind, balanced = 2);
		REFUSE(kind, approximate = 2);
		REFUSE(kind, own = 2);
		REFUSE(kind, first = 1);
		REFUSE(kind, device = -1);
		REFUSE(kind, iterations = GV_SET_MAX_PASSES);
		REFUSE(kind, method = GV_NSELECT);
		REFUSE(kind, nlists = GV_SET_MAX_CLUSTERS + 1);
		REFUSE(kind, probes = -1);
	}
	REFUSE(GV_SET_EXACT, k = 0);
	REFUSE(GV_SET_EXACT, k = GV_SET_MAX_K + 1);
	REFUSE(GV_SET_EXACT, metric = 0);
	REFUSE(GV_SET_EXACT, nqueries = 0);
	REFUSE(GV_SET_EXACT, nlists = -1);
	REFUSE(GV_SET_EXACT, nlists = 3);
	REFUSE(GV_SET_EXACT, probes = 1);
	REFUSE(GV_SET_EXACT, kind = -1);
	REFUSE(GV_SET_EXACT, nqueries = INT64_MIN);
	REFUSE(GV_SET_EXACT, nrows = -1);
	REFUSE(GV_SET_EXACT, method = 1);
	REFUSE(GV_SET_EXACT, iterations = 1);
	REFUSE(GV_SET_EXACT, balanced = 1);
	REFUSE(GV_SET_EXACT, approximate = 1);
	REFUSE(GV_SET_KMEANS, k = 7);
	REFUSE(GV_SET_KMEANS, k = 0);
	REFUSE(GV_SET_KMEANS, iterations = -1);
	REFUSE(GV_SET_KMEANS, self = 1);
	REFUSE(GV_SET_KMEANS, nlists = 1);
	REFUSE(GV_SET_KMEANS, nqueries = 1);
	REFUSE(GV_SET_SELECT, k = 7);
	REFUSE(GV_SET_SELECT, dims = 3);
	REFUSE(GV_SET_SELECT, nrows = GV_SELECT_MAX_N + 1);
	REFUSE(GV_SET_QUANTILES, nqueries = 0);
	REFUSE(GV_SET_QUANTILES, dims = 3);
	REFUSE(GV_SET_QUANTILES, k = 1);
	INVALID(gv_set_create(&specs[0], NULL));
	INVALID(gv_set_create(NULL, NULL));
}

/* Put the inputs that come before the rows. */
static void
put_first(GvSet *set, int kind)
{
	const GvSetSpec *spec = &specs[kind];

	if (kind == GV_SET_EXACT)
	{
		OK(gv_set_put(set, GV_SET_QUERIES, vectors, 5, NULL));
		INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 1, NULL));
		INVALID(gv_set_put(set, GV_SET_LISTS, vectors, 1, NULL));
		CHECK(gv_set_put(set, GV_SET_SELF, numbers, 5, NULL) == GV_OK, "put");
	}
	else if (kind == GV_SET_KMEANS)
		OK(gv_set_put(set, GV_SET_SEEDS, vectors, spec->k, NULL));
	else if (kind == GV_SET_QUANTILES)
	{
		const int64_t beyond[2] = {0, 6};

		INVALID(gv_set_put(set, GV_SET_RANKS, beyond, 2, NULL));
		CHECK(gv_set_put(set, GV_SET_RANKS, numbers, 2, NULL) == GV_OK, "put");
	}
}

static void
check_order(int kind)
{
	const float nan[2] = {1.0f, NAN};
	GvStop		bad_stop = {NULL, NULL};
	GvSet	   *set;
	GvSetDone	done;
	char		out[256];
	int			output;

	CHECK(gv_set_create(&specs[kind], &set) == GV_OK, "create");
	if (kind != GV_SET_SELECT)
	{
		INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 1, NULL));
		INVALID(gv_set_run(set, &done, NULL));
	}
	INVALID(gv_set_put(set, (GvSetInput) GV_NSET_INPUTS, vectors, 1, NULL));
	put_first(set, kind);
	if (kind != GV_SET_EXACT)
		INVALID(gv_set_put(set, GV_SET_QUERIES, vectors, 1, NULL));
	INVALID(gv_set_put(set, GV_SET_ROWS, NULL, 1, NULL));
	INVALID(gv_set_put(set, GV_SET_ROWS, vectors, -1, NULL));
	INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 1, &bad_stop));
	if (kind == GV_SET_EXACT || kind == GV_SET_KMEANS)
		INVALID(gv_set_put(set, GV_SET_ROWS, nan, 1, NULL));
	CHECK(gv_set_put(set, GV_SET_ROWS, vectors, 4, NULL) == GV_OK &&
		  gv_set_put(set, GV_SET_ROWS, NULL, 0, NULL) == GV_OK, "put");
	INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 3, NULL));
	if (kind != GV_SET_EXACT)	/* fewer rows are all right there */
	{
		INVALID(gv_set_run(set, &done, NULL));
		CHECK(gv_set_put(set, GV_SET_ROWS, vectors, 2, NULL) == GV_OK, "put");
	}
	INVALID(gv_set_get(set, GV_SET_POSITIONS, 0, 1, out));
	INVALID(gv_set_run(set, NULL, NULL));
	INVALID(gv_set_run(set, &done, &bad_stop));
	CHECK(gv_set_run(set, &done, NULL) == GV_OK, "run");
	if (kind == GV_SET_KMEANS)
	{
		CHECK(done.again && !done.finished && done.passes == 1, "again");
		INVALID(gv_set_run(set, &done, NULL));
		INVALID(gv_set_put(set, GV_SET_SEEDS, vectors, 1, NULL));
		CHECK(gv_set_put(set, GV_SET_ROWS, vectors, 6, NULL) == GV_OK &&
			  gv_set_run(set, &done, NULL) == GV_OK, "the last pass");
	}
	CHECK(done.finished && !done.again, "finished");
	INVALID(gv_set_run(set, &done, NULL));
	INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 1, NULL));
	for (output = 0; output < GV_NSET_OUTPUTS; output++)
	{
		int64_t		n = gv_set_output_length(&specs[kind],
											 (GvSetOutput) output, done.found);

		CHECK(gv_set_get(set, (GvSetOutput) output, 0, n, out) == GV_OK,
			  "output %d of kind %d", output, kind);
		INVALID(gv_set_get(set, (GvSetOutput) output, 0, n + 1, out));
		INVALID(gv_set_get(set, (GvSetOutput) output, -1, 1, out));
		INVALID(gv_set_get(set, (GvSetOutput) output, 0, 1, NULL));
	}
	gv_set_drop(set);
}

/* A set whose five rows were asked: what may be asked of them next. */
static void
check_asking(GvSet *set, const GvSetSpec *own)
{
	GvSetSpec	next = specs[GV_SET_EXACT];
	GvSetSpec	wrong = *own;
	GvSetDone	done;
	int64_t		found[2];

	next.nqueries = 1;
	wrong.first = 4;			/* two from there on: one has come */
	INVALID(gv_set_ask(set, &wrong));
	wrong = next;
	wrong.nrows--;
	INVALID(gv_set_ask(set, &wrong));
	wrong = next;
	wrong.dims--;
	INVALID(gv_set_ask(set, &wrong));
	wrong = next;
	wrong.k = 0;
	INVALID(gv_set_ask(set, &wrong));
	wrong = *own;
	wrong.nqueries = 0;
	INVALID(gv_set_ask(set, &wrong));
	INVALID(gv_set_ask(set, NULL));
	INVALID(gv_set_ask(NULL, &next));
	CHECK(gv_set_ask(set, &next) == GV_OK, "ask");
	INVALID(gv_set_ask(set, &next));
	INVALID(gv_set_run(set, &done, NULL));
	CHECK(gv_set_put(set, GV_SET_QUERIES, vectors, 1, NULL) == GV_OK &&
		  gv_set_put(set, GV_SET_SELF, numbers, 1, NULL) == GV_OK, "put");
	INVALID(gv_set_put(set, GV_SET_ROWS, vectors, 1, NULL));
	INVALID(gv_set_get(set, GV_SET_POSITIONS, 0, 1, found));
	CHECK(gv_set_run(set, &done, NULL) == GV_OK && done.passes == 1 &&
		  gv_set_get(set, GV_SET_POSITIONS, 0, 2, found) == GV_OK &&
		  found[0] == 1 && found[1] == 2, "neighbors");
}

/* Queries that are rows: which ones there may be, and that they come. */
static void
check_own(void)
{
	GvSetSpec	own = specs[GV_SET_EXACT];
	GvSetSpec	wrong;
	GvSet	   *set;
	GvSetDone	done;
	int64_t		found[4];

	own.self = 0;
	own.own = 1;
	own.nqueries = 2;
	own.first = 3;
	wrong = own;
	wrong.self = 1;
	refuse(GV_SET_EXACT, wrong, __LINE__);
	wrong = own;
	wrong.first = -1;
	refuse(GV_SET_EXACT, wrong, __LINE__);
	wrong.first = 5;
	refuse(GV_SET_EXACT, wrong, __LINE__);
	wrong = own;
	wrong.nrows = GV_SET_OWN_BYTES / 8 + 1;
	refuse(GV_SET_EXACT, wrong, __LINE__);
	wrong = specs[GV_SET_KMEANS];
	wrong.own = 1;
	refuse(GV_SET_KMEANS, wrong, __LINE__);
	CHECK(gv_set_create(&own, &set) == GV_OK, "create");
	INVALID(gv_set_put(set, GV_SET_QUERIES, vectors, 1, NULL));
	INVALID(gv_set_put(set, GV_SET_SELF, numbers, 1, NULL));
	CHECK(gv_set_put(set, GV_SET_ROWS, vectors, 4, NULL) == GV_OK, "put");
	INVALID(gv_set_run(set, &done, NULL));
	CHECK(gv_set_put(set, GV_SET_ROWS, vectors + 8, 1, NULL) == GV_OK &&
		  gv_set_run(set, &done, NULL) == GV_OK &&
		  gv_set_get(set, GV_SET_POSITIONS, 0, 4, found) == GV_OK, "run");
	/* rows lie on a line: 2 and 4 are as far from 3, 3 is nearest to 4 */
	CHECK(found[0] == 2 && found[1] == 4 && found[2] == 3 && found[3] == 2,
		  "neighbors");
	check_asking(set, &own);
	gv_set_drop(set);
	CHECK(gv_set_create(&specs[GV_SET_EXACT], &set) == GV_OK, "create");
	INVALID(gv_set_ask(set, &specs[GV_SET_EXACT]));
	gv_set_drop(set);
}

static void
check_all_stops(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_PEARSON,
	.dims = 300,.k = 5,.nqueries = 400,.nrows = 1500};

	check_set_stops(&spec, 8);
	spec.nlists = 500;
	spec.probes = 100;
	check_set_stops(&spec, 8);
	spec.nlists = spec.probes = 0;
	spec.nqueries = 2;			/* without panels */
	spec.nrows = 40000;
	check_set_stops(&spec, 1);
	spec = (GvSetSpec) {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 1,
		.k = 1 << 16,.nqueries = 4,.nrows = 1 << 16};
	if (!unit_small)
		check_set_stops(&spec, 6);	/* much to keep and to sort */
	spec.nqueries = 3;			/* without panels */
	if (!unit_small)
		check_set_stops(&spec, 4);
	spec = (GvSetSpec) {.kind = GV_SET_KMEANS,.dims = 10,.k = 100,
		.iterations = 2,.nrows = 70000};
	check_set_stops(&spec, 4);
	spec = (GvSetSpec) {.kind = GV_SET_SELECT,.dims = 1,.k = 10,
		.nrows = INT64_C(1) << 26};
	if (!unit_small)
		check_set_stops(&spec, 4);
	spec = (GvSetSpec) {.kind = GV_SET_QUANTILES,.dims = 1,.nqueries = 1,
		.nrows = INT64_C(1) << 24};
	if (!unit_small)
		check_set_stops(&spec, 1);
}

/*
 * The memory of lists of very many rows does not grow as dimensions become
 * fewer.
 */
static void
check_lists_memory(void)
{
	static const int32_t dims[] = {1, 2, 3, 16, 63};
	GvSetSpec	spec = specs[GV_SET_EXACT];
	int64_t		most;
	int			i;

	spec.nrows = 10000000;
	spec.nqueries = 1;
	spec.nlists = 10000;
	spec.probes = 6;
	spec.dims = 64;
	most = gv_set_size(&spec);
	CHECK(most > 0, "size");
	for (i = 0; i < 5; i++)
	{
		spec.dims = dims[i];
		CHECK(gv_set_size(&spec) <= most, "%d dims: %lld bytes, %lld of 64",
			  spec.dims, (long long) gv_set_size(&spec), (long long) most);
	}
}

/* A sanitizer shall let malloc fail, as it does without one. */
extern const char *__asan_default_options(void);

const char *
__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

/* More than a processor has addresses for: sizes do not overflow. */
static void
check_no_memory(void)
{
	GvSetSpec	spec = specs[GV_SET_EXACT];
	GvSet	   *set = NULL;

	spec.k = GV_SET_MAX_K;
	spec.dims = GV_MAX_DIMS;
	spec.nqueries = GV_SET_MAX_QUERIES;
	spec.nrows = INT64_C(1) << 40;
	CHECK(gv_set_size(&spec) > INT64_C(1) << 50, "size");
	CHECK(gv_set_create(&spec, &set) == GV_NO_MEMORY && set == NULL, "taken");
	spec = specs[GV_SET_EXACT];
	spec.nlists = GV_SET_MAX_CLUSTERS;
	spec.probes = GV_SET_MAX_CLUSTERS - 1;
	CHECK(gv_set_size(&spec) > INT64_C(1) << 48, "size with lists");
}

/* ---------- clients that write where their items are ---------- */

static GvSetOps meddled_ops;
static int64_t *meddled;		/* ranks, where they came; or NULL */

/* The client's moment, between the check of ranks and their use. */
static GvStatus
put_meddled(void *state, GvSetInput input, const void *items, int64_t first,
			int64_t n, const GvStop *stop)
{
	if (input == GV_SET_RANKS && meddled != NULL)
		meddled[0] = meddled[1] = INT64_C(1) << 20;
	return gv_cpu_sets.kinds[GV_SET_QUANTILES]->put(state, input, items,
													first, n, stop);
}

/*
 * An engine's ranks are those that were checked.  It is the process's from
 * here on, and does what gv_cpu_sets does.
 */
static void
check_changed_ranks(void)
{
	static GvSetBackend engine;
	int64_t		ranks[2] = {5, 0};
	float		got[2] = {0, 0};
	GvSetDone	done;
	GvSet	   *set = NULL;

	engine = gv_cpu_sets;
	meddled_ops = *gv_cpu_sets.kinds[GV_SET_QUANTILES];
	meddled_ops.put = put_meddled;
	engine.kinds[GV_SET_QUANTILES] = &meddled_ops;
	CHECK(gv_sets_open(&engine) == GV_OK, "open");
	INVALID(gv_sets_open(&engine));
	meddled = ranks;
	CHECK(gv_set_create(&specs[GV_SET_QUANTILES], &set) == GV_OK &&
		  gv_set_put(set, GV_SET_RANKS, ranks, 2, NULL) == GV_OK &&
		  gv_set_put(set, GV_SET_ROWS, vectors, 6, NULL) == GV_OK, "put");
	meddled = NULL;
	CHECK(ranks[0] > 5, "nobody wrote");
	CHECK(gv_set_run(set, &done, NULL) == GV_OK &&
		  gv_set_get(set, GV_SET_VALUES, 0, 2, got) == GV_OK &&
		  got[0] == vectors[5] && got[1] == vectors[0], "%g %g", got[0],
		  got[1]);
	gv_set_drop(set);
}

void
test_set_calls(void)
{
	int			kind;

	check_selections();
	check_invalid_specs();
	check_own();
	for (kind = 0; kind < GV_NSETS; kind++)
		check_order(kind);
	check_all_stops();
	check_lists_memory();
	check_no_memory();
	gv_set_drop(NULL);
	INVALID(gv_sets_open(NULL));
	check_changed_ranks();
	INVALID(gv_set_put(NULL, GV_SET_ROWS, vectors, 1, NULL));
	INVALID(gv_set_run(NULL, NULL, NULL));
	INVALID(gv_set_get(NULL, GV_SET_VALUES, 0, 0, NULL));
}
