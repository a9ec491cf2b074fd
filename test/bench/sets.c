/*
 * sets.c
 *		Times exact search and k-means of gv_cpu_sets on one core; for sets.py.
 *
 * usage: sets exact METRIC K DIMS NQUERIES NROWS FILE
 *		  sets kmeans ITERATIONS K DIMS NROWS FILE
 *
 * FILE has queries [nqueries][dims], or first centroids [k][dims], and then
 * rows [nrows][dims], as float.  Prints the seconds that it took; writes to
 * standard error what was found, for sets.py to compare: positions
 * [nqueries][k] as int64, or the last error as double.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/gv_set.h"

#define BATCH		2048		/* rows that come at a time */

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}

static void
must(bool is_true, const char *what)
{
	if (!is_true)
	{
		printf("sets: failed to %s\n", what);
		exit(1);
	}
}

static float *
read_floats(const char *path, size_t n)
{
	FILE	   *file = fopen(path, "rb");
	float	   *x = malloc(sizeof(float) * n);

	must(file != NULL && x != NULL, "open the file");
	must(fread(x, sizeof(float), n, file) == n, "read the file");
	fclose(file);
	return x;
}

/* One pass after the other over rows, until the set has finished. */
static GvSetDone
run(GvSet *set, const GvSetSpec *spec, const float *rows)
{
	GvSetDone	done;

	do
	{
		int64_t		first;

		for (first = 0; first < spec->nrows; first += BATCH)
		{
			int64_t		left = spec->nrows - first;

			must(gv_set_put(set, GV_SET_ROWS, rows + first * spec->dims,
							left < BATCH ? left : BATCH, NULL) == GV_OK,
				 "put rows");
		}
		must(gv_set_run(set, &done, NULL) == GV_OK, "run");
	} while (!done.finished);
	return done;
}

/* Writes the results to standard error. */
static void
write_found(GvSet *set, const GvSetSpec *spec, const GvSetDone *done)
{
	size_t		n = (size_t) (spec->nqueries * spec->k);
	int64_t    *positions;

	if (spec->kind == GV_SET_KMEANS)
	{
		must(fwrite(&done->error, sizeof(double), 1, stderr) == 1, "write");
		return;
	}
	positions = malloc(sizeof(int64_t) * n);
	must(positions != NULL &&
		 gv_set_get(set, GV_SET_POSITIONS, 0, (int64_t) n,
					positions) == GV_OK &&
		 fwrite(positions, sizeof(int64_t), n, stderr) == n, "write");
	free(positions);
}

int
main(int argc, char **argv)
{
	bool		exact = argc == 8 && strcmp(argv[1], "exact") == 0;
	GvSetSpec	spec = {.kind = exact ? GV_SET_EXACT : GV_SET_KMEANS};
	int64_t		nfirst;
	float	   *x;
	GvSet	   *set;
	GvSetDone	done;
	double		start;

	must(exact || (argc == 7 && strcmp(argv[1], "kmeans") == 0),
		 "understand the arguments");
	spec.k = atoi(argv[3]);
	spec.dims = atoi(argv[4]);
	spec.nrows = atoll(argv[argc - 2]);
	if (exact)
	{
		spec.metric = atoi(argv[2]);
		spec.nqueries = atoll(argv[5]);
	}
	else
		spec.iterations = atoi(argv[2]);
	nfirst = exact ? spec.nqueries : spec.k;
	x = read_floats(argv[argc - 1],
					(size_t) ((nfirst + spec.nrows) * spec.dims));
	gv_simd_use(GV_SIMD_AUTO);
	start = seconds();
	must(gv_set_create(&spec, &set) == GV_OK, "create");
	must(gv_set_put(set, exact ? GV_SET_QUERIES : GV_SET_SEEDS, x, nfirst,
					NULL) == GV_OK, "put what comes first");
	done = run(set, &spec, x + nfirst * spec.dims);
	printf("%.3f\n", seconds() - start);
	write_found(set, &spec, &done);
	gv_set_drop(set);
	free(x);
	return 0;
}
