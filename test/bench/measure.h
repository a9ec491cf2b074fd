/*
 * measure.h
 *		What programs share that measure an engine: which one, and times.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/mirror/gv_mirror.h"

#ifdef GV_HAVE_CUDA
#define BENCH_ENGINE	gv_cuda_mirrors
#else
#include "test/oracle/gv_oracle.h"
#define BENCH_ENGINE	gv_cpu_mirrors
#endif

#define CHECKED(call) \
	do { \
		if ((call) != 0) \
		{ \
			fprintf(stderr, "%s failed\n", #call); \
			exit(1); \
		} \
	} while (0)

/* Seconds, of a clock that only goes on. */
static inline double
bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static inline int
bench_compare_times(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Sort times [n]; the median is [n / 2] then. */
static inline void
bench_sort_times(double *times, int n)
{
	qsort(times, (size_t) n, sizeof(double), bench_compare_times);
}

#endif							/* MEASURE_H */
