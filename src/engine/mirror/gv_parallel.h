/*
 * gv_parallel.h
 *		Threads that help with what thousands of searches cost the host.
 *
 * They live as long as that takes.  gpuvecd only.
 */
#ifndef GV_GV_PARALLEL_H
#define GV_GV_PARALLEL_H

#include <pthread.h>
#include <stdint.h>

#define GV_MOST_HELPERS		3	/* threads beside the caller's */

typedef struct GvHelpers
{
	int			nhelpers;
	pthread_t	threads[GV_MOST_HELPERS];
} GvHelpers;

/* gv_parallel_helpers: how many helpers ntasks tasks are worth. */
extern int	gv_parallel_helpers(int32_t ntasks);

#ifdef GV_TEST_BUILD
/* gv_force_helpers: sets the number of helpers; negative: as is best. */
extern void gv_force_helpers(int32_t helpers);
#endif

/*
 * gv_helpers_begin: nhelpers threads do help(what); fewer, where there are no
 * more.  gv_helpers_end waits for them.
 */
extern void gv_helpers_begin(GvHelpers *helpers, int nhelpers,
							 void *(*help) (void *),
							 void *what);
extern void gv_helpers_end(GvHelpers *helpers);

/*
 * gv_parallel_for: task(what, i) for each i below n, by the caller and
 * nhelpers helpers.
 */
extern void gv_parallel_for(int nhelpers, void (*task) (void *, int32_t),
							void *what, int32_t n);

#endif							/* GV_GV_PARALLEL_H */
