/*
 * check_kmeans_card.c
 *		k-means of the CUDA engine's sets against the portable engine's: errors
 *		of all passes, centroids and sizes, bit for bit.
 *
 * For check_card, which has opened the engine's sets.
 */
#include "searches.h"

extern void test_kmeans_card(void);

/* gpu/kmeans */
extern int32_t gv_kmeans_piece;
extern int32_t gv_kmeans_columns;
extern int32_t gv_kmeans_early;
extern GvStatus gv_gpu_kmeans_overflowed(void *state, uint32_t *n);
extern int64_t gv_blas_bytes(int32_t device, int32_t dims);	/* gpu/product */

/* Rows, first centroids and what is to be made of them. */
typedef struct Work
{
	GvSetSpec	spec;
	float	   *rows;			/* [nrows][dims] */
	float	   *seeds;			/* [k][dims] */
} Work;

/* The results. */
typedef struct Outcome
{
	int32_t		passes;
	int32_t		found;
	double		errors[GV_SET_MAX_PASSES];
	float	   *centroids;		/* [found][dims] */
	int64_t    *sizes;			/* [found] */
} Outcome;

static float
around(float spread)
{
	return (unit_random() % 20001 / 10000.0f - 1.0f) * spread;
}

/* Rows around a tenth as many points, and some of them to start from. */
static Work
make_work(int32_t dims, int64_t n, int32_t k, int32_t iterations,
		  bool balanced)
{
	Work		work = {.spec = {.kind = GV_SET_KMEANS,.dims = dims,.k = k,
	.iterations = iterations,.balanced = balanced,.nrows = n}};
	int64_t		npoints = n / 10 + 1;
	OWN float  *points = unit_alloc(sizeof(float) * npoints * dims);
	int64_t		i;

	work.rows = unit_alloc(sizeof(float) * n * dims);
	work.seeds = unit_alloc(sizeof(float) * k * dims);
	for (i = 0; i < npoints * dims; i++)
		points[i] = around(1.0f);
	for (i = 0; i < n * dims; i++)
		work.rows[i] = points[i / dims % npoints * dims + i % dims] +
			around(0.2f);
	for (i = 0; i < k; i++)
		memcpy(work.seeds + i * dims, work.rows + i * (n / k) * dims,
			   sizeof(float) * dims);
	return work;
}

static void
end_work(Work *work)
{
	unit_free(work->rows);
	unit_free(work->seeds);
}

static void
end_outcome(Outcome *outcome)
{
	unit_free(outcome->centroids);
	unit_free(outcome->sizes);
	unit_free(outcome);
}

static Outcome *
begin_outcome(const GvSetSpec *spec)
{
	Outcome    *outcome = unit_alloc(sizeof(Outcome));

	memset(outcome, 0, sizeof(*outcome));
	outcome->centroids = unit_alloc(sizeof(float) * spec->k * spec->dims);
	outcome->sizes = unit_alloc(sizeof(int64_t) * spec->k);
	return outcome;
}

/* The outcome by an engine's own functions, all rows at once. */
static Outcome *
run_ops(const Work *work, const GvSetOps *ops, uint32_t *noverflowed)
{
	Outcome    *outcome = begin_outcome(&work->spec);
	GvSetDone	done = {.again = 1};
	void	   *state;

	CHECK(ops->create(&work->spec, &state) == GV_OK, "create");
	OK(ops->put(state, GV_SET_SEEDS, work->seeds, 0, work->spec.k, NULL));
	while (!done.finished)
	{
		if (done.again)
			CHECK(ops->put(state, GV_SET_ROWS, work->rows, 0,
						   work->spec.nrows, NULL) == GV_OK, "rows");
		CHECK(ops->run(state, &done, NULL) == GV_OK, "run");
		outcome->errors[outcome->passes++] = done.error;
	}
	outcome->found = done.found;
	OK(ops->get(state, GV_SET_CENTROIDS, 0, done.found, outcome->centroids));
	OK(ops->get(state, GV_SET_SIZES, 0, done.found, outcome->sizes));
	if (noverflowed != NULL)
		CHECK(gv_gpu_kmeans_overflowed(state, noverflowed) == GV_OK, "overflowed");
	ops->drop(state);
	return outcome;
}

/* Put an input in pieces of any size. */
static void
put_pieces(GvSet *set, GvSetInput input, const float *items, int64_t n,
		   int32_t dims)
{
	int64_t		done = 0;

	while (done < n)
	{
		int64_t		some = 1 + (int64_t) (unit_random() % n);

		if (some > n - done)
			some = n - done;
		CHECK(gv_set_put(set, input, items + done * dims, some, NULL) == GV_OK,
			  "put %d of %d", (int) some, (int) n);
		done += some;
	}
}

/* The same by the engine that is open, rows by batches, and once. */
static Outcome *
run_set(const Work *work)
{
	const GvSetSpec *spec = &work->spec;
	Outcome    *outcome = begin_outcome(spec);
	GvSetDone	done = {0};
	GvSet	   *set = NULL;
	int32_t		half;

	CHECK(gv_set_create(spec, &set) == GV_OK, "create");
	put_pieces(set, GV_SET_SEEDS, work->seeds, spec->k, spec->dims);
	put_pieces(set, GV_SET_ROWS, work->rows, spec->nrows, spec->dims);
	while (!done.finished)
	{
		CHECK(gv_set_run(set, &done, NULL) == GV_OK, "run");
		CHECK(!done.again, "rows are not kept");
		outcome->errors[outcome->passes++] = done.error;
		CHECK(done.passes == outcome->passes, "%d passes", done.passes);
	}
	outcome->found = done.found;
	half = done.found / 2;
	OK(gv_set_get(set, GV_SET_CENTROIDS, half, done.found - half,
				  outcome->centroids + (size_t) half * spec->dims));
	OK(gv_set_get(set, GV_SET_CENTROIDS, 0, half, outcome->centroids));
	OK(gv_set_get(set, GV_SET_SIZES, 0, half, outcome->sizes));
	CHECK(gv_set_get(set, GV_SET_SIZES, half, done.found - half,
					 outcome->sizes + half) == GV_OK, "later sizes");
	gv_set_drop(set);
	return outcome;
}

static void
compare(const Work *work, const Outcome *a, const Outcome *b)
{
	const GvSetSpec *spec = &work->spec;
	int			pass;

	CHECK(a->passes == b->passes && a->found == b->found,
		  "n %d dims %d k %d: %d and %d passes, %d and %d found",
		  (int) spec->nrows, spec->dims, spec->k, a->passes, b->passes,
		  a->found, b->found);
	for (pass = 0; pass < a->passes; pass++)
		CHECK(memcmp(&a->errors[pass], &b->errors[pass], sizeof(double)) == 0,
			  "n %d dims %d k %d: errors of pass %d: %.17g and %.17g",
			  (int) spec->nrows, spec->dims, spec->k, pass, a->errors[pass],
			  b->errors[pass]);
	if (a->found != b->found)
		return;
	CHECK(memcmp(a->centroids, b->centroids, sizeof(float) * a->found *
				 spec->dims) == 0, "n %d dims %d k %d: other centroids",
		  (int) spec->nrows, spec->dims, spec->k);
	CHECK(memcmp(a->sizes, b->sizes, sizeof(int64_t) * a->found) == 0,
		  "n %d dims %d k %d: other sizes", (int) spec->nrows, spec->dims,
		  spec->k);
}

/* Both engines' outcomes; the work is done with. */
static void
compare_engines(Work work)
{
	Outcome    *ours = run_set(&work);
	Outcome    *theirs = run_ops(&work, gv_cpu_sets.kinds[GV_SET_KMEANS], NULL);

	compare(&work, ours, theirs);
	end_outcome(ours);
	end_outcome(theirs);
	end_work(&work);
}

/* Sizes of all kinds; the last two have large tiles. */
static void
test_shapes(void)
{
	static const struct
	{
		int32_t		dims;
		int32_t		n;
		int32_t		k;
		int32_t		iterations;
	}			shapes[] = {
		{1, 1, 1, 0}, {1, 1, 1, 3}, {1, 700, 9, 4}, {3, 100, 1, 2},
		{3, 65, 64, 2}, {3, 600, 40, 6}, {7, 33, 33, 3}, {7, 1500, 65, 5},
		{64, 300, 20, 0}, {64, 900, 31, 3}, {130, 400, 200, 2},
		{130, 260, 17, 4}, {70, 4100, 270, 1}, {150, 4100, 66, 0}
	};
	size_t		i;

	for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
	{
		/* the rows are the same for both */
		if (unit_small && shapes[i].n > 1000)
			continue;
		compare_engines(make_work(shapes[i].dims, shapes[i].n, shapes[i].k,
								  shapes[i].iterations, false));
		if (shapes[i].n < 4000)
			compare_engines(make_work(shapes[i].dims, shapes[i].n, shapes[i].k,
									  shapes[i].iterations, true));
	}
}

/* Few distinct rows: ties, clusters without rows, rows that overflow. */
static void
test_duplicates(void)
{
	int			distinct;

	for (distinct = 1; distinct <= 40; distinct = distinct * 3 + 1)
	{
		int			balanced;

		for (balanced = 0; balanced < 2; balanced++)
		{
			Work		work = make_work(5, 500, 70, 4, balanced);
			int			i;

			for (i = 0; i < 500; i++)
				memcpy(work.rows + i * 5, work.rows + i % distinct * 5,
					   sizeof(float) * 5);
			for (i = 0; i < 70; i++)
				memcpy(work.seeds + i * 5, work.rows + i * i % 500 * 5,
					   sizeof(float) * 5);
			compare_engines(work);
		}
	}
}

/* Multiply and move all numbers; some rows go far away. */
static void
distort(Work *work, float factor, float offset, int64_t every, float far)
{
	int32_t		dims = work->spec.dims;
	int64_t		i;

	for (i = 0; i < work->spec.nrows * dims; i++)
	{
		work->rows[i] = work->rows[i] * factor + offset;
		if (every > 0 && i / dims % every == every - 1)
			work->rows[i] *= far;
	}
	for (i = 0; i < (int64_t) work->spec.k * dims; i++)
		work->seeds[i] = work->seeds[i] * factor + offset;
}

/* Numbers of all sizes, whose squares overflow or vanish. */
static void
test_ranges(void)
{
	static const float factors[] = {1e-38f, 1e-24f, 1e-19f, 1e-8f, 1.0f, 1e6f,
	1e17f, 1e19f, 1e30f, 2.5e38f};
	size_t		i;

	for (i = 0; i < sizeof(factors) / sizeof(factors[0]); i++)
	{
		Work		work = make_work(9, 300, 24, 3, false);

		distort(&work, factors[i], 0.0f, 0, 0.0f);
		compare_engines(work);
		work = make_work(9, 300, 24, 3, false);
		distort(&work, factors[i], factors[i] < 1e30f ? factors[i] * 1000.0f :
				0.0f, 0, 0.0f);
		compare_engines(work);
		work = make_work(9, 300, 24, 3, false);
		distort(&work, factors[i], 0.0f, 97, factors[i] < 1e30f ? 1e6f : 0.0f);
		compare_engines(work);
	}
}

/* First centroids that are nowhere near the rows. */
static void
test_far_seeds(void)
{
	Work		work = make_work(12, 400, 30, 4, false);
	int			i;

	for (i = 0; i < 10 * 12; i++)
		work.seeds[i] *= 1e7f;
	compare_engines(work);
	work = make_work(12, 400, 30, 4, false);
	for (i = 0; i < 30 * 12; i++)
		work.seeds[i] = work.seeds[i % 12] + 50.0f;
	compare_engines(work);
}

/*
 * In pieces of any size; 0 is the usual one.  Then by several products a piece,
 * the first of which only finds bounds.
 */
static void
test_pieces(void)
{
	static const int32_t pieces[] = {1, 31, 128, 400, 0};
	int32_t		early = gv_kmeans_early;
	int			i;

	for (i = 0; i < 5; i++)
	{
		gv_kmeans_piece = pieces[i];
		compare_engines(make_work(6, pieces[i] == 1 ? 40 : 401, 20, 3, false));
	}
	gv_kmeans_columns = 1;
	for (i = 0; i < 2; i++)
	{
		gv_kmeans_piece = 300 * i;
		gv_kmeans_early = i == 0 ? early : 500;
		compare_engines(make_work(6, 901, 600, 1, false));
	}
	gv_kmeans_columns = 0;
	gv_kmeans_piece = 0;
	gv_kmeans_early = early;
}

/* Few ordinary rows overflow. */
static void
test_filter(void)
{
	Work		work = make_work(32, 1000, 100, 3, false);
	uint32_t	noverflowed = 0;
	Outcome    *ours = run_ops(&work, gv_cuda_sets.kinds[GV_SET_KMEANS],
							   &noverflowed);

	CHECK(noverflowed < 50, "%u of 4,000 rows overflowed", (unsigned) noverflowed);
	end_outcome(ours);
	memset(work.rows, 0, sizeof(float) * 1000 * 32);
	memset(work.seeds, 0, sizeof(float) * 100 * 32);
	ours = run_ops(&work, gv_cuda_sets.kinds[GV_SET_KMEANS], &noverflowed);
	CHECK(noverflowed > 1000, "only %u of 4,000 rows overflowed", (unsigned) noverflowed);
	end_outcome(ours);
	end_work(&work);
}

static void
test_stopped(void)
{
	int			asked;
	int			nstopped = 0;

	gv_kmeans_piece = 100;
	for (asked = 0; asked < 40; asked++)
	{
		Work		work = make_work(4, 350, 12, 2, false);
		int			left = asked;
		GvStop		stop = {counts_down, &left};
		GvSetDone	done = {0};
		GvStatus	status = GV_OK;
		GvSet	   *set = NULL;

		CHECK(gv_set_create(&work.spec, &set) == GV_OK, "create");
		status = gv_set_put(set, GV_SET_SEEDS, work.seeds, 12, &stop);
		if (status == GV_OK)
			status = gv_set_put(set, GV_SET_ROWS, work.rows, 350, &stop);
		while (status == GV_OK && !done.finished)
			status = gv_set_run(set, &done, &stop);
		CHECK(status == GV_OK ? done.finished : status == GV_CANCELED,
			  "asked %d times: %d", asked, status);
		if (status != GV_OK)
		{
			nstopped++;
			INVALID(gv_set_run(set, &done, NULL));
		}
		gv_set_drop(set);
		end_work(&work);
	}
	gv_kmeans_piece = 0;
	CHECK(nstopped > 10 && nstopped < 40, "%d of 40 stopped", nstopped);
}

/* A set takes no more memory than it says. */
static void
test_size(void)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 1,.k = 2,
	.nrows = device_is_emulated() ? 300000 : 30000000};
	int64_t		before = device_used();
	GvSet	   *set = NULL;
	int64_t		taken;

	CHECK(gv_set_create(&spec, &set) == GV_OK, "create");
	taken = device_used() - before;
	CHECK(taken > 8 * spec.nrows &&
		  taken <= gv_set_size(&spec) + DEVICE_PIECES,
		  "%ld bytes of %ld", (long) taken, (long) gv_set_size(&spec));
	gv_set_drop(set);
}

static void
test_no_memory(void)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 3,.k = 5,
	.iterations = 1,.nrows = 100};
	GvStatus	status = GV_NO_MEMORY;
	GvSet	   *set = NULL;
	int			n;

	CHECK(gv_set_size(&spec) > 100 * 3 * 4 &&
		  gv_set_size(&spec) < (4 << 20) + gv_blas_bytes(0, 3), "%d bytes",
		  (int) gv_set_size(&spec));
	for (n = 1; device_is_emulated() && status == GV_NO_MEMORY; n++)
	{
		gv_emulated_fault = n;
		status = gv_set_create(&spec, &set);
		gv_emulated_fault = 0;
		CHECK(status == GV_NO_MEMORY ? set == NULL : status == GV_OK && n > 2,
			  "%d: %d", n, status);
	}
	gv_set_drop(set);
	set = NULL;
	spec.nrows = INT64_C(1) << 31;
	CHECK(gv_set_size(&spec) == INT64_MAX, "size of too many rows");
	CHECK(gv_set_create(&spec, &set) == GV_NO_MEMORY && set == NULL,
		  "too many rows");
}

void
test_kmeans_card(void)
{
	test_shapes();
	test_duplicates();
	test_ranges();
	test_far_seeds();
	test_pieces();
	test_filter();
	test_stopped();
	test_size();
	test_no_memory();
}
