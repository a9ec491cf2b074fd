/*
 * check_setmeans.c
 *		k-means over sets against plain loops, bit for bit, and gv_set_end_pass.
 */
#include "sets.h"

/* The result that k-means must have. */
typedef struct Plain
{
	GvSetSpec	spec;
	const float *rows;			/* [nrows][dims] */
	float	   *centroids;		/* [k][dims] */
	int64_t    *sizes;			/* [k] */
	double	   *errors;			/* [k] */
	float	   *far_distances;	/* [k] */
	float	   *farthest;		/* [k][dims] */
} Plain;

/* The nearest centroid as gv_assign defines it, and its squared distance. */
static int32_t
plain_nearest(const Plain *plain, const float *row, float *sqdist)
{
	int32_t		dims = plain->spec.dims;
	int32_t		nearest = 0;
	int32_t		c;

	*sqdist = HUGE_VALF;
	for (c = 0; c < plain->spec.k; c++)
	{
		float		dist = score_of(lanes16(row, plain->centroids +
											(size_t) c * dims, dims, false));

		if (dist < *sqdist)
		{
			*sqdist = dist;
			nearest = c;
		}
	}
	return nearest;
}

/* Of n slices' sums, each `stride` behind the one before. */
static double
plain_sum(const double *sums, size_t stride, int n)
{
	return n == 1 ? sums[0] : plain_sum(sums, stride, n / 2) +
		plain_sum(sums + n / 2 * stride, stride, n / 2);
}

/* A pass; returns its error.  sums [k][dims] */
static double
plain_pass(Plain *plain, double *sums)
{
	int32_t		dims = plain->spec.dims;
	int32_t		k = plain->spec.k;
	size_t		n = (size_t) k * dims;
	FREED double *slices = calloc(8 * n, sizeof(double));
	FREED double *errors = calloc(8 * k, sizeof(double));
	double		error = 0.0;
	int64_t		i;
	int			slice = 0;
	int32_t		c;
	int32_t		d;

	for (c = 0; c < k; c++)
	{
		plain->sizes[c] = 0;
		plain->far_distances[c] = 0.0f;
	}
	for (i = 0; i < plain->spec.nrows; i++)
	{
		const float *row = plain->rows + i * dims;
		float		sqdist;

		while (i >= plain->spec.nrows * (slice + 1) / 8)
			slice++;
		c = plain_nearest(plain, row, &sqdist);
		for (d = 0; d < dims; d++)
			slices[slice * n + (size_t) c * dims + d] += row[d];
		plain->sizes[c]++;
		errors[slice * k + c] += sqdist;
		if (sqdist > plain->far_distances[c])
		{
			plain->far_distances[c] = sqdist;
			memcpy(plain->farthest + (size_t) c * dims, row,
				   sizeof(float) * dims);
		}
	}
	for (i = 0; i < (int64_t) n; i++)
		sums[i] = plain_sum(slices + i, n, 8);
	for (c = 0; c < k; c++)
	{
		plain->errors[c] = plain_sum(errors + c, k, 8);
		error += plain->errors[c];
	}
	return error;
}

/* The next giver in its order, none of those marked; -1: there is none. */
static int32_t
plain_giver(const GvSetSpec *spec, const int64_t *sizes, const double *errors,
			const float *far_distances, const bool *has_given)
{
	double		mean = (double) spec->nrows / spec->k;
	int32_t		best = -1;
	int32_t		c;

	for (c = 0; c < spec->k; c++)
	{
		if (has_given[c] || !(far_distances[c] > 0.0f) ||
			(spec->balanced && (double) sizes[c] <= mean))
			continue;
		if (best < 0 || (spec->balanced ? sizes[c] > sizes[best] :
						 errors[c] > errors[best]))
			best = c;
	}
	return best;
}

/* Reseeds, in as many steps as the text of gv_set_end_pass has. */
static int32_t
plain_reseed(const GvSetSpec *spec, const int64_t *sizes, const double *errors,
		   const float *far_distances, const float *farthest,
		   float *centroids)
{
	double		mean = (double) spec->nrows / spec->k;
	FREED bool *has_given = calloc(spec->k, sizeof(bool));
	int32_t		ntaken = 0;
	int32_t		c;

	for (c = 0; c < spec->k; c++)
	{
		int32_t		giver;

		if (sizes[c] > 0 &&
			!(spec->balanced && (double) sizes[c] < mean / 4.0))
			continue;
		giver = plain_giver(spec, sizes, errors, far_distances, has_given);
		if (giver < 0)
			break;
		has_given[giver] = true;
		memcpy(centroids + (size_t) c * spec->dims,
			   farthest + (size_t) giver * spec->dims,
			   sizeof(float) * spec->dims);
		ntaken++;
	}
	return ntaken;
}

/* All passes; errors [iterations + 1]; returns the clusters that have rows. */
static int32_t
plain_kmeans(Plain *plain, double *errors)
{
	int32_t		dims = plain->spec.dims;
	int32_t		k = plain->spec.k;
	FREED double *sums = malloc(sizeof(double) * k * dims);
	int32_t		found = 0;
	int32_t		c;
	int32_t		d;
	int			i;

	for (i = 0; i < plain->spec.iterations; i++)
	{
		errors[i] = plain_pass(plain, sums);
		for (c = 0; c < k; c++)
			for (d = 0; plain->sizes[c] > 0 && d < dims; d++)
				plain->centroids[(size_t) c * dims + d] =
					(float) (sums[(size_t) c * dims + d] /
							 (double) plain->sizes[c]);
		(void) plain_reseed(&plain->spec, plain->sizes, plain->errors,
						  plain->far_distances, plain->farthest,
						  plain->centroids);
	}
	errors[i] = plain_pass(plain, sums);
	for (c = 0; c < k; c++)
		if (plain->sizes[c] > 0)
		{
			memmove(plain->centroids + (size_t) found * dims,
					plain->centroids + (size_t) c * dims,
					sizeof(float) * dims);
			plain->sizes[found++] = plain->sizes[c];
		}
	return found;
}

/* A set with these inputs finds the same as the plain one. */
static void
check_run(const Plain *plain, int32_t found, const double *plain_errors,
		  const SetInputs *inputs)
{
	const GvSetSpec *spec = &plain->spec;
	size_t		vector = sizeof(float) * spec->dims;
	OWN float  *centroids = unit_alloc(vector * spec->k);
	OWN int64_t *sizes = unit_alloc(sizeof(int64_t) * spec->k);
	OWN double *errors = unit_alloc(sizeof(double) * (spec->iterations + 1));
	GvSetDone	done;
	GvSet	   *set = finished_set(spec, inputs, &done, errors);

	if (set != NULL)
	{
		CHECK(done.found == found && done.passes == spec->iterations + 1 &&
			  !done.again, "%d found, not %d, of %d", done.found, found,
			  spec->k);
		CHECK(memcmp(errors, plain_errors, sizeof(double) *
					 (spec->iterations + 1)) == 0, "errors");
		CHECK(gv_set_get(set, GV_SET_CENTROIDS, 0, found,
						 centroids) == GV_OK &&
			  memcmp(centroids, plain->centroids, vector * found) == 0,
			  "centroids: dims %d k %d rows %ld", spec->dims, spec->k,
			  (long) spec->nrows);
		CHECK(gv_set_get(set, GV_SET_SIZES, 0, found, sizes) == GV_OK &&
			  memcmp(sizes, plain->sizes, sizeof(int64_t) * found) == 0,
			  "sizes");
		CHECK(gv_set_get(set, GV_SET_SIZES, found - 1, 1, sizes) == GV_OK &&
			  sizes[0] == plain->sizes[found - 1], "the last size");
	}
	gv_set_drop(set);
}

/* See sets.h: in batches of all sizes. */
void
check_clusters(const GvSetSpec *spec, const float *seeds, const float *rows)
{
	size_t		n = (size_t) spec->k * spec->dims;
	Plain		plain = {.spec = *spec,.rows = rows};
	FREED double *errors = malloc(sizeof(double) * (spec->iterations + 1));
	SetInputs	inputs = {seeds, NULL, rows, spec->nrows, spec->nrows,
	NULL};
	int			run;
	int32_t		found;

	plain.centroids = malloc(sizeof(float) * n);
	plain.farthest = malloc(sizeof(float) * n);
	plain.sizes = malloc(sizeof(int64_t) * spec->k);
	plain.errors = malloc(sizeof(double) * spec->k);
	plain.far_distances = malloc(sizeof(float) * spec->k);
	memcpy(plain.centroids, seeds, sizeof(float) * n);
	found = plain_kmeans(&plain, errors);
	for (run = 0; run < SET_RUNS; run++)
	{
		gv_simd_use((GvSimd) (GV_SIMD_PORTABLE + run));
		inputs.batch = run == 1 ? spec->nrows :
			1 + (int64_t) (unit_random() % spec->nrows);
		check_run(&plain, found, errors, &inputs);
	}
	gv_simd_use(unit_simd());
	free(plain.centroids);
	free(plain.farthest);
	free(plain.sizes);
	free(plain.errors);
	free(plain.far_distances);
}

/* See sets.h. */
void
stretch_rows(float *rows, int64_t n, int32_t dims)
{
	int64_t		i;
	int32_t		d;

	for (i = 0; i < n; i++)
	{
		float		factor = ldexpf(1.0f, (int) (unit_random() % 60) - 30);

		for (d = 0; d < dims; d++)
			rows[i * dims + d] *= factor;
	}
}

/*
 * Rows of which every (nsame)th is the same; the seeds are the first of them.
 */
static void
check_shape(int64_t nrows, int32_t dims, int32_t k, int32_t iterations,
			int nsame)
{
	OWN float  *rows = clustered(nrows, dims, 1 + k / 2, 0.2f);
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = dims,.k = k,
		.iterations = iterations,.nrows = nrows};
	int64_t		i;

	for (i = 0; nsame > 0 && i < nrows; i += nsame)
		memcpy(rows + i * dims, rows, sizeof(float) * dims);
	check_clusters(&spec, rows, rows);
	spec.balanced = 1;
	check_clusters(&spec, rows, rows);
	stretch_rows(rows, nrows, dims);
	check_clusters(&spec, rows, rows);
}

/* Seeds far from all rows, and equal ones: most clusters begin empty. */
static void
check_empty_clusters(void)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 3,.k = 12,
	.nrows = 100};
	OWN float  *rows = unit_floats((size_t) spec.nrows * 3, 1.0f);
	OWN float  *seeds = unit_alloc(sizeof(float) * 12 * 3);
	int			i;

	for (i = 0; i < 12 * 3; i++)
		seeds[i] = i < 15 ? 0.1f : 100.0f;
	for (spec.iterations = 0; spec.iterations < 6; spec.iterations++)
		for (spec.balanced = 0; spec.balanced < 2; spec.balanced++)
			check_clusters(&spec, seeds, rows);
	for (i = 0; i < 100 * 3; i++)	/* two rows, fifty times each */
		rows[i] = (float) (i / 3 % 2);
	spec.iterations = 4;
	for (spec.balanced = 0; spec.balanced < 2; spec.balanced++)
		check_clusters(&spec, seeds, rows);
	spec.balanced = 0;
	for (i = 0; i < 100 * 3; i++)	/* distances that overflow */
		rows[i] = unit_float() * 3e38f;
	check_clusters(&spec, seeds, rows);
}

/*
 * gv_set_end_pass alone, of any sizes, errors and distances in so many parts:
 * the reseeds are right, and the farthest rows are of the first part that has
 * such a row.
 */
static void
check_end_pass(int32_t k, int n)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 1,.k = k,
	.iterations = 1,.balanced = (uint8_t) (unit_random() % 2)};
	OWN GvSetCluster *clusters = unit_alloc(sizeof(GvSetCluster) * k * n);
	OWN GvSetReseed *reseeds = unit_alloc(sizeof(GvSetReseed) * k);
	FREED int64_t *sizes = calloc(k, sizeof(int64_t));
	FREED double *errors = calloc(k, sizeof(double));
	FREED float *far_distances = calloc(k, sizeof(float));
	OWN float  *numbers = unit_alloc(sizeof(float) * k);
	OWN float  *want = unit_alloc(sizeof(float) * k);
	OWN float  *got = unit_alloc(sizeof(float) * k);
	OWN int32_t *order = unit_alloc(sizeof(int32_t) * k);
	FREED uint32_t *parts = calloc(k, sizeof(uint32_t));
	int			nempty = 1 + (int) (unit_random() % 5);
	GvSetDone	done = {.passes = 0};
	double		error = 0.0;
	int32_t		ntaken;
	int32_t		i;

	for (i = 0; i < n * k; i++)
	{
		int32_t		c = i % k;
		bool		empty = unit_random() % 5 < (uint64_t) nempty;

		clusters[i].size = empty ? 0 : 1 + (int64_t) (unit_random() % 20);
		clusters[i].error = empty ? 0.0 : (double) (unit_random() % 6);
		clusters[i].far_distance = clusters[i].error > 0.0 ?
			(float) (1 + unit_random() % 3) : 0.0f;
		clusters[i].farthest = (uint32_t) (i / k);
		sizes[c] += clusters[i].size;
		errors[c] += clusters[i].error;
		if (clusters[i].far_distance > far_distances[c])
		{
			far_distances[c] = clusters[i].far_distance;
			parts[c] = (uint32_t) (i / k);
		}
		spec.nrows += clusters[i].size;
	}
	spec.nrows = spec.nrows > k ? spec.nrows : k;
	for (i = 0; i < k; i++)
	{
		error += errors[i];
		numbers[i] = (float) i;
		want[i] = got[i] = -1.0f;
	}
	ntaken = plain_reseed(&spec, sizes, errors, far_distances, numbers, want);
	CHECK(gv_set_end_pass(&spec, clusters, n, reseeds, order,
						  &done) == ntaken, "%d took of %d", ntaken, k);
	CHECK(done.passes == 1 && !done.finished && done.error == error, "done");
	for (i = 0; i < ntaken; i++)
		got[reseeds[i].to] = (float) reseeds[i].from;
	CHECK(memcmp(got, want, sizeof(float) * k) == 0, "k %d", k);
	for (i = 0; i < k; i++)
		CHECK(clusters[i].size == sizes[i] && (far_distances[i] == 0.0f ||
			  clusters[i].farthest == parts[i]), "cluster %d", i);
}

void
test_kmeans_sets(void)
{
	int32_t		dims;
	int			i;

	for (i = 0; i < 300; i++)
		check_end_pass(1 + i % 70, 1 << i % 4);
	for (dims = 1; dims < 200; dims += unit_small ? 37 : 7)
	{
		check_shape(2 + dims * 5, dims, 1 + dims % 40, 3, 0);
		check_shape(200, dims, 66, 2, 3);
	}
	for (i = 1; i < 20; i++)	/* fewer rows than slices, and more */
		check_shape(i, 5, 1 + i / 4, 3, 0);
	check_shape(500, 8, 1, 5, 0);	/* k = 1 */
	check_shape(130, 8, 130, 3, 0); /* k = n */
	check_shape(130, 8, 130, 3, 2); /* with duplicates */
	check_shape(50, 4, 7, 3, 1);	/* all the same */
	check_shape(3000, 16, 20, 0, 0);	/* nothing but sizes */
	check_shape(3000, 16, 20, 12, 0);
	check_shape(300, 1200, 9, 2, 0);
	check_empty_clusters();
}
