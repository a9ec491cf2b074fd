/*
 * check_mirror_memory.c
 *		Each allocation of the engine fails, alone or with all later ones.
 *		Calls then report GV_NO_MEMORY and leak nothing, a mirror and its
 *		searcher still work, and results are right.
 *
 * Tests mirrors, searches, builders and sets of one engine.  Allocations of
 * the tests themselves do not count (test/memory/heap.c).
 */
#include <limits.h>

#include "making.h"
#include "mirrors.h"
#include "sets.h"

#define SEED		7			/* of random numbers, so that all runs of some
								 * work are the same */
#define NSEARCHES	5
#define NROWS		60
#define DIMS		4

/* Work that uses an engine, from the creation of objects to their end. */
typedef GvStatus (*Work) (const void *arg);

/* Number of calls that found no memory and were repeated. */
static int	nagain;

/*
 * Makes a call and sets `status`, unless an earlier call failed.  If the call
 * finds no memory, and only one allocation fails, repeats the call.
 */
#define GO_ON(call) \
	do { \
		if (status == GV_OK && (status = (call)) == GV_NO_MEMORY && \
			!gv_allocations.after) \
		{ \
			nagain++; \
			status = (call); \
		} \
	} while (0)

/*
 * Does the work while the n-th allocation fails, and with `after` all later
 * ones.  Sets *left to what is left of n, which allocations count down.
 */
static GvStatus
run(Work work, const void *arg, int n, bool after, int *left)
{
	GvStatus	status;

	unit_seed = SEED;
	gv_allocations.after = after;
	gv_allocations.due = n;
	status = work(arg);
	*left = gv_allocations.due;
	gv_allocations.due = 0;
	gv_allocations.after = false;
	return status;
}

/*
 * Repeats the work for each of its allocations: the allocation fails alone,
 * and then together with all later ones.  On an emulated device at small size
 * only some of the allocations fail.
 */
static void
fail_each(const char *what, Work work, const void *arg)
{
	int			left;
	int			count;
	int			nfailed = 0;
	int			step;
	int			i;
	int			live;
	GvStatus	status;

	/* the first run allocates the memory that the engine never frees */
	status = run(work, arg, 0, false, &left);
	CHECK(status == GV_OK, "%s: status %d", what, status);
	live = gv_allocations.live;
	CHECK(run(work, arg, INT_MAX, false, &left) == GV_OK, "%s", what);
	CHECK(gv_allocations.live == live, "%s: %d are left", what,
		  gv_allocations.live - live);
	count = INT_MAX - left;
	CHECK(count > 0, "%s: none", what);
	step = unit_small && UNIT_FLAT ? 1 + count / 5 : 1;
	nagain = 0;
	for (i = 0; i < 2 * count; i += i % 2 == 0 ? 1 : 2 * step - 1)
	{
		int			n = 1 + i / 2;

		status = run(work, arg, n, i % 2 == 1, &left);
		CHECK(status == GV_OK || status == GV_NO_MEMORY,
			  "%s, %d of %d: status %d", what, n, count, status);
		CHECK(gv_allocations.live == live, "%s, %d of %d: %d are left", what,
			  n, count, gv_allocations.live - live);
		nfailed += status != GV_OK;
	}
	CHECK(nfailed + nagain > 0, "%s: no failure was noticed", what);
	CHECK(run(work, arg, 0, false, &left) == GV_OK, "%s, afterwards", what);
	if (gv_allocations.live != live)
		CHECK(false, "%s, afterwards: %d are left", what,
			  gv_allocations.live - live);
}

/* ---- mirrors */

typedef struct MirrorCase
{
	TestIndex	index;
	Records		records;
	Rows		rows;			/* if its items are not NULL, in place of
								 * records */
	const float *asked;
	GvPlacement placement;
} MirrorCase;

/* Checks the hits, and the bounds or distances, of n searches. */
static void
check_found(const MirrorCase *c, GvSearch *searches, int n)
{
	check_answers(&c->index, searches, n, "without memory");
	OK(c->rows.items != NULL ? count_wrong_distances(&c->rows, searches, n) :
	   count_wrong_bounds(&c->index, &c->records, searches, n));
}

static GvStatus
work_on_mirror(const void *arg)
{
	const MirrorCase *c = arg;
	GvSearch	searches[NSEARCHES];
	OwnMirror	mirror = NULL;
	GvStatus	status = GV_OK;
	GvDeviceUsage usage[GV_MAX_DEVICES];
	GvBlock		view;
	int			i;

	for (i = 0; i < NSEARCHES; i++)
	{
		searches[i] = new_search(&c->index, 1 + i, c->index.spec.nlists,
								 5 + 40 * i);
		searches[i].bounded = c->rows.items == NULL;
		searches[i].asked = c->asked;
	}
	GO_ON(gv_mirror_create_on(&c->index.spec, &c->placement, &mirror, NULL));
	GO_ON(fill_mirror(mirror, &c->index));
	if (c->rows.items == NULL)
		GO_ON(gv_mirror_put_refine(mirror, (GvRefineItem *) c->records.items,
								   c->records.npages * c->records.nslots));
	for (i = 0; c->rows.items != NULL && i < 2; i++)
		GO_ON(gv_mirror_put_rows(mirror, (GvRowItem *) c->rows.items,
								 c->rows.npages * c->rows.nslots - 1 + i));
	/* a replica that found no memory is dropped: ask which devices are left */
	if (status == GV_OK)
		(void) gv_mirror_usage(mirror, usage);
	GO_ON(unit_open_team(usage, c->placement.nshards));
	GO_ON(unit_search(unit_team.of[0], mirror, searches, 1));
	if (status == GV_OK)
		check_found(c, searches, 1);
	GO_ON(unit_search(unit_team.of[0], mirror, searches, NSEARCHES));
	if (status == GV_OK)
		check_found(c, searches, NSEARCHES);
	GO_ON(gv_mirror_get_block(mirror, 0, 0, &view));
	CHECK(status == GV_OK || gv_allocations.after,
		  "a repeated call: status %d", status);
	unit_close_team();
	free_searches(searches, NSEARCHES);
	return status;
}

static void
fail_mirrors(const char *what, int32_t nshards, int32_t nreplicas, int nkeys)
{
	MirrorCase	c = {
		.index = make_index(GV_L2, DIMS, 2, 9, 3, 70, false),
		.placement = {nshards, nreplicas, {0, 1, 2, 3}}
	};
	int32_t		n;

	resize_list(&c.index, &c.index.lists[0], 150, 0);
	give_keys(&c.index, nkeys);
	c.records = make_records(&c.index, 3, 20);
	/* items include the free slots */
	unit_free(draw_records(&c.records, &n));
	for (n = 0; n < c.records.npages * c.records.nslots; n++)
	{
		GvRefineItem *item = record_at(&c.records, n);

		if (!c.records.there[n])
			memset(item, 0, c.records.stride);
		item->address[1] = (uint16_t) (n / c.records.nslots);
		item->address[2] = (uint16_t) (n % c.records.nslots + 1);
	}
	fail_each(what, work_on_mirror, &c);
	free_records(&c.records);
	free_index(&c.index);
}

/* Rows that come twice, the second time one more, so that a page grows. */
static void
fail_rows(const char *what, int32_t nshards)
{
	MirrorCase	c = {
		.index = make_index(GV_IP, DIMS, 2, 9, 3, 70, false),
		.placement = {nshards, 1, {0, 1, 2, 3}}
	};
	int32_t		i;

	c.rows = make_rows(&c.index, GV_ROWS_FLOAT, 3, 20);
	for (i = 0; i < c.rows.npages * c.rows.nslots; i++)
	{
		draw_values(&c.rows, row_at(&c.rows, i));
		row_at(&c.rows, i)->known = 1;
	}
	c.asked = draw_asked(&c.rows);
	fail_each(what, work_on_mirror, &c);
	unit_free((void *) c.asked);
	free_rows(&c.rows);
	free_index(&c.index);
}

/* ---- builders */

/* The result of a build; each build must have the result of the first one. */
typedef struct Made
{
	GvTrained	trained;
	float		centroids[10 * DIMS];
	uint8_t		codes[2 * NROWS];
} Made;

static GvStatus
work_on_builder(const void *arg)
{
	Made	   *right = (Made *) arg;
	GvBuilderSpec spec = make_spec(GV_L2, DIMS, 2, 10);
	Making		making = begin_making(spec, unit_floats(NROWS * DIMS, 1.0f),
									  NROWS, NROWS);
	GvEncoded	encoded = new_encoded(&spec, NROWS);
	GvStatus	status = train_making(&making);
	Made		made;

	memset(&made, 0, sizeof(made));
	if (status == GV_OK)
		status = gv_builder_encode(making.builder, making.rows, NROWS,
								   &encoded, NULL);
	if (status == GV_OK)
		status = gv_builder_get_array(making.builder, GV_CENTROIDS, 0,
									  making.trained.nlists * DIMS,
									  made.centroids);
	if (status == GV_OK)
	{
		made.trained.nlists = making.trained.nlists;
		memcpy(made.codes, encoded.codes, sizeof(made.codes));
		if (right->trained.nlists == 0)
			*right = made;
		CHECK(memcmp(&made, right, sizeof(made)) == 0, "made something else");
	}
	free_encoded(&encoded);
	end_making(&making);
	return status;
}

/* ---- sets */

typedef struct SetCase
{
	GvSetSpec	spec;
	float	   *rows;			/* [NROWS][dims] */
	char	   *right;			/* outputs of the first run, or NULL */
	size_t		bytes;
} SetCase;

/* Returns all outputs, one after another.  The caller must free them. */
static char *
set_outputs(GvSet *set, const GvSetSpec *spec, const GvSetDone *done,
			size_t *bytes, GvStatus *status)
{
	char	   *outputs = unit_alloc(1 << 16);
	int			i;

	*bytes = 0;
	for (i = 0; i < GV_NSET_OUTPUTS && *status == GV_OK; i++)
	{
		GvSetOutput output = (GvSetOutput) i;
		int64_t		n = gv_set_output_length(spec, output, done->found);

		if (gv_set_output_bytes(spec, output) == 0)
			continue;
		*status = gv_set_get(set, output, 0, n, outputs + *bytes);
		*bytes += (size_t) (n * gv_set_output_bytes(spec, output));
	}
	return outputs;
}

static GvStatus
work_on_set(const void *arg)
{
	SetCase    *c = (SetCase *) arg;
	const GvSetSpec *spec = &c->spec;
	int64_t		ranks[2] = {0, NROWS / 2};
	SetInputs	inputs = {spec->kind == GV_SET_QUANTILES ?
		(const void *) ranks : c->rows, NULL, c->rows, NROWS, 40, c->rows};
	GvSetDone	done;
	GvSet	   *set = NULL;
	GvStatus	status = gv_set_create(spec, &set);

	if (status == GV_OK)
		status = run_set(set, spec, &inputs, false, NULL, &done, NULL);
	if (status == GV_OK)
	{
		size_t		bytes;
		char	   *outputs = set_outputs(set, spec, &done, &bytes, &status);

		if (status == GV_OK && c->right == NULL)
		{
			c->right = outputs;
			c->bytes = bytes;
			outputs = NULL;
		}
		CHECK(status != GV_OK || outputs == NULL ||
			  (bytes == c->bytes && memcmp(outputs, c->right, bytes) == 0),
			  "other outputs of kind %d", spec->kind);
		if (outputs != NULL)
			unit_free(outputs);
	}
	gv_set_drop(set);
	return status;
}

static void
fail_sets(void)
{
	static const struct
	{
		const char *name;
		GvSetSpec	spec;
	}			sets[] = {
		{"exact search", {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = DIMS,.k = 3,.nqueries = 9,.nrows = NROWS}},
		{"near lists", {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = DIMS,.k = 3,.nqueries = 9,.nrows = NROWS,.nlists = 5,
		.probes = 4}},
		{"a graph", {.kind = GV_SET_EXACT,.metric = GV_SET_COSINE,
		.dims = DIMS,.k = 3,.own = 1,.nqueries = NROWS,.nrows = NROWS}},
		{"k-means", {.kind = GV_SET_KMEANS,.dims = DIMS,.k = 5,
		.iterations = 2,.nrows = NROWS}},
		{"selection", {.kind = GV_SET_SELECT,.dims = 1,.k = 7,
		.nrows = NROWS}},
		{"selection by samples", {.kind = GV_SET_SELECT,.dims = 1,.k = 7,
		.method = GV_SELECT_SAMPLE,.nrows = NROWS}},
		{"selection by pivots", {.kind = GV_SET_SELECT,.dims = 1,.k = 7,
		.method = GV_SELECT_MULTI,.nrows = NROWS}},
		{"quantiles", {.kind = GV_SET_QUANTILES,.dims = 1,.nqueries = 2,
		.nrows = NROWS}},
	};
	size_t		i;

	for (i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
	{
		SetCase		c = {
			.spec = sets[i].spec,
			.rows = unit_floats(NROWS * DIMS, 1.0f)
		};

		fail_each(sets[i].name, work_on_set, &c);
		unit_free(c.rows);
		if (c.right != NULL)
			unit_free(c.right);
	}
}

void
test_memory(void)
{
	Made		made = {0};

	/* has no effect if an earlier test has opened the engine */
	(void) gv_builders_open(&UNIT_BUILDERS);
	fail_mirrors("a mirror", 1, 1, 0);
	fail_mirrors("a mirror with keys", 1, 1, 2);
	fail_rows("rows", 1);
	if (gv_ndevices() > 1)
	{
		fail_rows("rows in shards", 2);
		fail_mirrors("shards", 2, 1, 2);
		fail_mirrors("replicas", 1, 2, 0);
		if (gv_ndevices() > 3)
			fail_mirrors("replicas of shards", 2, 2, 0);
	}
	fail_each("a builder", work_on_builder, &made);
	fail_sets();
}
