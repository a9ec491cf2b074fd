/*
 * kmeanscard.cu
 *		k-means over a set alone, on a card, with its rows there: what all passes
 *		take, and each of them.  kmeanscard.py builds and runs it.
 *
 * usage: kmeanscard ROWS N DIMS STARTS K ITERATIONS REPEATS CENTROIDS PRODUCTS
 *		ROWS, STARTS	files of float [n][dims] and [k][dims]
 *		CENTROIDS		file to be written, float [found][dims]
 *		PRODUCTS		auto, own or cublas, as gpuvecd has it
 * Prints lines of a word and numbers: yard milliseconds of cuBLAS's bare product
 * of rows and centroids (yard.cuh); put seconds; total seconds (of each
 * repetition but the first, which loads kernels); error and milliseconds of each
 * pass of the last one; found.
 * Errors of all repetitions must be the same to the last bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device/device.h"
#include "gpu/kmeans/kmeans.h"
#include "gpu/product/product.h"
#include "yard.cuh"

static void
need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "kmeanscard: %s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

static float *
read_file(const char *name, size_t n)
{
	FILE	   *file = fopen(name, "rb");
	float	   *values = (float *) malloc(n * sizeof(float));

	need(file != NULL && values != NULL &&
		 fread(values, sizeof(float), n, file) == n, name);
	fclose(file);
	return values;
}

/* A set with all its rows. */
static void *
make_set(const GvSetSpec *spec, const float *rows, const float *starts)
{
	const GvSetOps *ops = &gv_gpu_kmeans_set;
	double		begun = gv_seconds();
	void	   *state;

	need(ops->create(spec, &state) == GV_OK, "create");
	need(ops->put(state, GV_SET_SEEDS, starts, 0, spec->k, NULL) == GV_OK,
		 "starts");
	need(ops->put(state, GV_SET_ROWS, rows, 0, spec->nrows, NULL) == GV_OK,
		 "rows");
	need(cudaDeviceSynchronize() == cudaSuccess, "wait");
	printf("put %.4f\n", gv_seconds() - begun);
	return state;
}

/* All passes, errors [passes], which must be those of the first time. */
static int32_t
run_set(void *state, int repeat, bool last_one, double *errors)
{
	GvSetDone	done = {};
	double		begun = gv_seconds();
	double		last = begun;
	double		now;

	while (!done.finished)
	{
		need(gv_gpu_kmeans_set.run(state, &done, NULL) == GV_OK, "run");
		now = gv_seconds();
		need(repeat == 0 || errors[done.passes - 1] == done.error,
			 "an error that is always the same");
		errors[done.passes - 1] = done.error;
		if (last_one)
			printf("pass %d %.17g %.4f\n", done.passes, done.error,
				   (now - last) * 1e3);
		last = now;
	}
	if (repeat > 0 && !last_one)
		printf("total %.6f\n", last - begun);
	return done.found;
}

static void
write_centroids(void *state, const GvSetSpec *spec, int32_t found,
				const char *name)
{
	size_t		n = (size_t) found * spec->dims;
	float	   *centroids = (float *) malloc(n * sizeof(float));
	FILE	   *file = fopen(name, "wb");

	need(file != NULL && gv_gpu_kmeans_set.get(state, GV_SET_CENTROIDS, 0,
											   found, centroids) == GV_OK &&
		 fwrite(centroids, sizeof(float), n, file) == n &&
		 fclose(file) == 0, name);
	printf("found %d\n", found);
	free(centroids);
}

static GvMatmulSetting
products_named(const char *name)
{
	if (strcmp(name, "own") == 0)
		return GV_MATMUL_OWN;
	if (strcmp(name, "cublas") == 0)
		return GV_MATMUL_CUBLAS;
	need(strcmp(name, "auto") == 0, "PRODUCTS, which is auto, own or cublas:");
	return GV_MATMUL_AUTO;
}

int
main(int argc, char **argv)
{
	static double errors[GV_SET_MAX_PASSES];
	static GvDevice devices[GV_MAX_DEVICES];
	GvSetSpec	spec = {};
	int32_t		ndevices;
	float	   *rows;
	float	   *starts;
	int			repeats;

	need(argc == 10, "usage: kmeanscard ROWS N DIMS STARTS K ITERATIONS "
		 "REPEATS CENTROIDS PRODUCTS:");
	gv_matmul_use(products_named(argv[9]));
	need(gv_gpu_open("", devices, &ndevices) == GV_OK &&
		 gv_blas_open(devices, ndevices) == GV_OK, devices[0].name);
	spec.kind = GV_SET_KMEANS;
	spec.nrows = atoll(argv[2]);
	spec.dims = atoi(argv[3]);
	spec.k = atoi(argv[5]);
	spec.iterations = atoi(argv[6]);
	repeats = atoi(argv[7]);
	rows = read_file(argv[1], (size_t) spec.nrows * spec.dims);
	starts = read_file(argv[4], (size_t) spec.k * spec.dims);

	printf("yard %.4f\n", yard_us(NULL, spec.nrows, spec.k, spec.dims) / 1e3);

	for (int i = 0; i <= repeats + 1; i++)
	{
		bool		last = i == repeats + 1;
		void	   *state = make_set(&spec, rows, starts);
		int32_t		found;

		found = run_set(state, i, last, errors);
		if (last)
			write_centroids(state, &spec, found, argv[8]);
		gv_gpu_kmeans_set.drop(state);
	}
	free(rows);
	free(starts);
	return 0;
}
