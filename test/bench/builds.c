/*
 * builds.c
 *		Training and encoding alone, on random rows of any size: nothing but an
 *		engine is needed.
 *
 * usage: builds ROWS DIMS LISTS [REPEATS]
 *
 * Rows lie near 4,096 points of 24 dimensions, which a random matrix spreads
 * over all.  A builder trains on 32 rows a list, or on all rows if there are
 * fewer, with the parents, iterations and imbalance that CREATE INDEX chooses,
 * and encodes all rows, those of the sample without sending them again.
 *
 * Prints for each repetition, the first of which also loads kernels: seconds
 * of k-means of the lists and, of these, of splits; its passes; seconds of
 * parents, codebooks and encoding; and a checksum of all that was trained,
 * which two engines that find the same centroids have in common.
 */
#include <math.h>
#include <string.h>

#include "engine/mirror/gv_builder.h"
#include "measure.h"

#ifdef GV_HAVE_CUDA
#define BENCH_BUILDERS	gv_cuda_builders
#else
#define BENCH_BUILDERS	gv_cpu_builders
#endif

#define POINTS			4096
#define LATENT			24
#define BATCH			(1 << 16)

static uint64_t seed = 88172645463325252u;

/* Marsaglia, "Xorshift RNGs", 2003: a number from -1 to 1. */
static float
draw(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (float) (int32_t) (seed >> 32) * 0x1p-31f;
}

static float *
draw_all(int64_t n)
{
	float	   *values = malloc((size_t) n * sizeof(float));

	if (values == NULL)
		exit(1);
	for (int64_t i = 0; i < n; i++)
		values[i] = draw();
	return values;
}

/* n rows of the table. */
static void
make_rows(const float *points, const float *mixing, int32_t dims, int64_t n,
		  float *rows)
{
	for (int64_t i = 0; i < n; i++)
	{
		const float *point = points + (seed >> 20) % POINTS * LATENT;
		float	   *row = rows + i * dims;

		for (int32_t d = 0; d < dims; d++)
			row[d] = draw() * 0.1f;
		for (int l = 0; l < LATENT; l++)
		{
			float		value = point[l] + draw() * 0.5f;

			for (int32_t d = 0; d < dims; d++)
				row[d] += value * mixing[l * dims + d];
		}
	}
}

/* FNV-1a over the arrays of a trained builder. */
static uint64_t
checksum(GvBuilder *builder, const GvBuilderSpec *spec,
		 const GvTrained *trained)
{
	static const GvArray arrays[] = {GV_CENTROIDS, GV_PARENTS,
	GV_PARENT_OFFSETS, GV_CODEBOOKS};
	uint64_t	sum = UINT64_C(14695981039346656037);

	for (int i = 0; i < 4; i++)
	{
		int64_t		n = gv_builder_array_length(spec, trained, arrays[i]);
		uint32_t   *values = malloc(4 * (size_t) n);

		CHECKED(gv_builder_get_array(builder, arrays[i], 0, n, values));
		for (int64_t j = 0; j < n; j++)
			sum = (sum ^ values[j]) * UINT64_C(1099511628211);
		free(values);
	}
	return sum;
}

static void
run(const GvBuilderSpec *spec, const float *mean, const float *rows,
	int64_t nrows)
{
	void	   *memory = malloc(gv_encoded_bytes(spec, BATCH, 0));
	GvBuilder  *builder;
	GvTrained	trained;
	GvEncoded	encoded;
	double		begun;

	CHECKED(gv_builder_create(spec, mean, &builder));
	for (int64_t done = 0; done < spec->sample_rows; done += BATCH)
	{
		int64_t		left = spec->sample_rows - done;

		CHECKED(gv_builder_put_rows(builder, GV_SAMPLE, rows +
									done * spec->dims,
									left < BATCH ? (int32_t) left : BATCH));
	}
	CHECKED(gv_builder_train(builder, &trained, NULL));
	begun = bench_now();
	for (int64_t done = 0; done < nrows;)
	{
		int64_t		end = done < spec->sample_rows ? spec->sample_rows : nrows;
		int32_t		n = end - done < BATCH ? (int32_t) (end - done) : BATCH;

		gv_encoded_open(spec, memory, n, 0, &encoded);
		if (done < spec->sample_rows)
			CHECKED(gv_builder_encode_sample(builder, done, n, &encoded,
											 NULL));
		else
			CHECKED(gv_builder_encode(builder, rows + done * spec->dims, n,
									  &encoded, NULL));
		done += n;
	}
	printf("lists %.4f splits %.4f passes %d parents %.4f codebooks %.4f "
		   "encode %.4f sum %016llx\n", trained.times.lists,
		   trained.times.splits, trained.times.passes, trained.times.parents,
		   trained.times.codebooks, bench_now() - begun,
		   (unsigned long long) checksum(builder, spec, &trained));
	fflush(stdout);
	gv_builder_drop(builder);
	free(memory);
}

int
main(int argc, char **argv)
{
	int64_t		nrows = argc > 3 ? atoll(argv[1]) : 0;
	GvBuilderSpec spec = {.metric = GV_L2,.lists_per_row = 2,
		.refine = GV_RECORDS_NONE,.batch_rows = BATCH,.iterations = 10,
	.max_imbalance = 2.0,.seed = 1};
	int			repeats = argc > 4 ? atoi(argv[4]) : 3;
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;
	float	   *points;
	float	   *mixing;
	float	   *rows;
	float	   *mean;

	spec.dims = argc > 3 ? atoi(argv[2]) : 0;
	spec.nlists = argc > 3 ? atoi(argv[3]) : 0;
	if (nrows < 1 || spec.dims < 1 || spec.nlists < 1)
	{
		fprintf(stderr, "usage: builds ROWS DIMS LISTS [REPEATS]\n");
		return 2;
	}
	spec.m = (spec.dims + 3) / 4;
	spec.nparents = (int32_t) sqrt((double) spec.nlists);
	spec.sample_rows = nrows < 32 * (int64_t) spec.nlists ? nrows :
		32 * (int64_t) spec.nlists;
	points = draw_all(POINTS * LATENT);
	mixing = draw_all((int64_t) LATENT * spec.dims);
	mean = malloc((size_t) spec.dims * sizeof(float));
	rows = malloc((size_t) nrows * spec.dims * sizeof(float));
	if (mean == NULL || rows == NULL)
		return 1;
	make_rows(points, mixing, spec.dims, nrows, rows);
	gv_fit_transform(spec.metric, spec.dims, rows, nrows < BATCH ? nrows :
					 BATCH, mean, &spec.scale);
	CHECKED(gv_mirrors_open(&BENCH_ENGINE, "0", found, &nfound));
	CHECKED(gv_builders_open(&BENCH_BUILDERS));
	printf("%s: %lld rows x %d, %d lists, %d parents, sample %lld, %lld MB\n",
		   found[0].name, (long long) nrows, spec.dims, spec.nlists,
		   spec.nparents, (long long) spec.sample_rows,
		   (long long) (gv_builder_size(&spec) >> 20));
	for (int i = 0; i <= repeats; i++)
		run(&spec, mean, rows, nrows);
	free(rows);
	free(mean);
	free(mixing);
	free(points);
	return 0;
}
