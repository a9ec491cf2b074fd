/*
 * check_kmeans_card.c
 *		k-means of the CUDA engine's sets against plain loops: errors of all
 *		passes, centroids and sizes, bit for bit.
 */
#include "card.h"

/* gpu/kmeans */
extern GvStatus gv_gpu_kmeans_overflowed(void *state, uint32_t *n);
extern int64_t gv_blas_bytes(int32_t device, int32_t dims);	/* gpu/product */

/* Rows, first centroids and what is to be made of them. */
typedef struct Work
{
	GvSetSpec	spec;
	float	   *rows;			/* [nrows][dims] */
	float	   *seeds;			/* [k][dims] */
} Work;

/* Rows around a tenth as many points, and some of them to start from. */
static Work
make_work(int32_t dims, int64_t n, int32_t k, int32_t iterations,
		  bool balanced)
{
	Work		work = {.spec = {.kind = GV_SET_KMEANS,.dims = dims,.k = k,
	.iterations = iterations,.balanced = balanced,.nrows = n}};
	int64_t		i;

	work.rows = clustered(n, dims, (int32_t) n / 10 + 1, 0.2f);
	work.seeds = unit_alloc(sizeof(float) * k * dims);
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

/* The work is done with. */
static void
check_work(Work work)
{
	check_clusters(&work.spec, work.seeds, work.rows);
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
		check_work(make_work(shapes[i].dims, shapes[i].n, shapes[i].k,
							 shapes[i].iterations, false));
		if (shapes[i].n < 4000)
		{
			Work		work = make_work(shapes[i].dims, shapes[i].n,
										 shapes[i].k, shapes[i].iterations,
										 true);

			stretch_rows(work.rows, work.spec.nrows, work.spec.dims);
			check_work(work);
		}
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
			check_work(work);
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
	1e17f, 1e19f, 1e30f, 2e38f};
	size_t		i;

	for (i = 0; i < sizeof(factors) / sizeof(factors[0]); i++)
	{
		Work		work = make_work(9, 300, 24, 3, false);

		distort(&work, factors[i], 0.0f, 0, 0.0f);
		check_work(work);
		work = make_work(9, 300, 24, 3, false);
		distort(&work, factors[i], factors[i] < 1e30f ? factors[i] * 1000.0f :
				0.0f, 0, 0.0f);
		check_work(work);
		work = make_work(9, 300, 24, 3, false);
		distort(&work, factors[i], 0.0f, 97, factors[i] < 1e30f ? 1e6f : 0.0f);
		check_work(work);
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
	check_work(work);
	work = make_work(12, 400, 30, 4, false);
	for (i = 0; i < 30 * 12; i++)
		work.seeds[i] = work.seeds[i % 12] + 50.0f;
	check_work(work);
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
		check_work(make_work(6, pieces[i] == 1 ? 40 : 401, 20, 3, false));
	}
	gv_kmeans_columns = 1;
	for (i = 0; i < 2; i++)
	{
		gv_kmeans_piece = 300 * i;
		gv_kmeans_early = i == 0 ? early : 500;
		check_work(make_work(6, 901, 600, 1, false));
	}
	gv_kmeans_columns = 0;
	gv_kmeans_piece = 0;
	gv_kmeans_early = early;
}

/*
 * Checks that the device's items of an output of a pass, n from the first on,
 * are those of the portable engine.
 */
static void
check_part_output(const GvSetOps *const *ops, void *const *states,
				  GvSetOutput output, int64_t first, int64_t n, size_t bytes)
{
	OWN char   *got = unit_alloc(n * bytes);
	OWN char   *want = unit_alloc(n * bytes);

	OK(ops[0]->get(states[0], output, first, n, got));
	OK(ops[1]->get(states[1], output, first, n, want));
	CHECK(memcmp(got, want, n * bytes) == 0, "output %d from %d on", output,
		  (int) first);
}

/*
 * A part of this many slices: in each pass the device has the sums, errors,
 * sizes and farthest rows that the portable engine has.  Before each pass but
 * the first, some rows become seeds.
 */
static void
check_part(const Work *work, int nslices, int first_slice)
{
	const GvSetOps *ops[] = {gv_cuda_sets.kinds[GV_SET_KMEANS],
	gv_cpu_sets.kinds[GV_SET_KMEANS]};
	GvSetSpec	spec = work->spec;
	size_t		dims = (size_t) spec.dims;
	int64_t		first = spec.nrows * first_slice / 8;
	int64_t		n = spec.nrows * (first_slice + nslices) / 8 - first;
	OWN GvSetCluster *got = unit_alloc(sizeof(GvSetCluster) * spec.k);
	OWN GvSetCluster *want = unit_alloc(sizeof(GvSetCluster) * spec.k);
	GvSetDone	done[2] = {{.again = 1}, {.again = 1}};
	void	   *states[2];
	int32_t		c;
	int			i;

	spec.nslices = (uint8_t) nslices;
	spec.first_slice = (uint8_t) first_slice;
	for (i = 0; i < 2; i++)
		OK(ops[i]->create(&spec, &states[i]));
	while (!done[1].finished)
	{
		const float *seeds = done[0].passes == 0 ? work->seeds :
		work->rows + done[0].passes * dims;

		for (i = 0; i < 2; i++)
		{
			OK(ops[i]->put(states[i], GV_SET_SEEDS, seeds, 0, spec.k, NULL));
			if (done[i].again)
				OK(ops[i]->put(states[i], GV_SET_ROWS, work->rows +
							   first * dims, 0, n, NULL));
			OK(ops[i]->run(states[i], &done[i], NULL));
			OK(ops[i]->get(states[i], GV_SET_CLUSTERS, 0, spec.k,
						   i == 0 ? got : want));
		}
		CHECK(done[0].passes == done[1].passes &&
			  done[0].finished == done[1].finished, "done");
		for (c = 0; c < spec.k; c++)
		{
			CHECK(memcmp(&got[c], &want[c],
						 offsetof(GvSetCluster, farthest)) == 0,
				  "cluster %d, %d slices from %d", c, nslices, first_slice);
			if (want[c].far_distance > 0.0f)
				check_part_output(ops, states, GV_SET_FARTHEST, c, 1,
								  sizeof(float) * dims);
		}
		if (done[1].finished)
			break;
		c = spec.k / 2;
		check_part_output(ops, states, GV_SET_SUMS, 0, spec.k,
						  sizeof(double) * dims);
		check_part_output(ops, states, GV_SET_SUMS, c, spec.k - c,
						  sizeof(double) * dims);
	}
	for (i = 0; i < 2; i++)
		ops[i]->drop(states[i]);
}

/* All parts of works that devices share. */
static void
test_parts(void)
{
	static const int32_t shapes[][4] = {	/* dims, n, k, distinct */
		{1, 16, 2, 16}, {3, 700, 5, 700}, {5, 300, 37, 300}, {5, 700, 20, 3},
	{130, 1300, 2, 1300}};
	size_t		i;

	for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
	{
		int32_t		dims = shapes[i][0];
		Work		work = make_work(dims, shapes[i][1], shapes[i][2], 2, i % 2);
		int64_t		j;
		int			nslices;
		int			first;

		for (j = shapes[i][3] * dims; j < work.spec.nrows * dims; j++)
			work.rows[j] = work.rows[j - shapes[i][3] * dims];
		if (shapes[i][3] == shapes[i][1])
			stretch_rows(work.rows, work.spec.nrows, dims);
		for (nslices = 1; nslices < 8; nslices *= 2)
			for (first = 0; first < 8; first += nslices)
				check_part(&work, nslices, first);
		end_work(&work);
	}
}

/* How many rows overflow in all passes of the work. */
static uint32_t
count_overflowed(const Work *work)
{
	const GvSetOps *ops = gv_cuda_sets.kinds[GV_SET_KMEANS];
	GvSetDone	done = {.again = 1};
	uint32_t	noverflowed = 0;
	void	   *state;

	OK(ops->create(&work->spec, &state));
	OK(ops->put(state, GV_SET_SEEDS, work->seeds, 0, work->spec.k, NULL));
	while (!done.finished)
	{
		if (done.again)
			OK(ops->put(state, GV_SET_ROWS, work->rows, 0, work->spec.nrows,
						NULL));
		OK(ops->run(state, &done, NULL));
	}
	OK(gv_gpu_kmeans_overflowed(state, &noverflowed));
	ops->drop(state);
	return noverflowed;
}

/* Few ordinary rows overflow. */
static void
test_filter(void)
{
	Work		work = make_work(32, 1000, 100, 3, false);
	uint32_t	noverflowed = count_overflowed(&work);

	CHECK(noverflowed < 50, "%u of 4,000 rows overflowed",
		  (unsigned) noverflowed);
	memset(work.rows, 0, sizeof(float) * 1000 * 32);
	memset(work.seeds, 0, sizeof(float) * 100 * 32);
	noverflowed = count_overflowed(&work);
	CHECK(noverflowed > 1000, "only %u of 4,000 rows overflowed",
		  (unsigned) noverflowed);
	end_work(&work);
}

void
test_kmeans_card(void)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 4,.k = 12,
	.iterations = 2,.nrows = 350};
	GvSet	   *set = NULL;

	test_shapes();
	test_duplicates();
	test_ranges();
	test_far_seeds();
	test_pieces();
	test_parts();
	test_filter();
	gv_kmeans_piece = 100;
	check_set_stops(&spec, 10);
	gv_kmeans_piece = 0;

	spec.nrows = 100;
	CHECK(gv_set_size(&spec) > 100 * 4 * 4 &&
		  gv_set_size(&spec) < (4 << 20) + gv_blas_bytes(0, 4), "%d bytes",
		  (int) gv_set_size(&spec));
	spec.nrows = INT64_C(1) << 31;
	CHECK(gv_set_size(&spec) == INT64_MAX, "size of too many rows");
	CHECK(gv_set_create(&spec, &set) == GV_NO_MEMORY && set == NULL,
		  "too many rows");
	spec = (GvSetSpec) {.kind = GV_SET_KMEANS,.dims = 1,.k = 2,
		.nrows = device_is_emulated() ? 300000 : 30000000};
	check_set_bytes(&spec, 8 * spec.nrows);
}
