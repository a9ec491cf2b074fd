/*
 * gv_parallel.h
 *		Threads of gpuvecd.
 *
 * Most of these threads are helpers.  Helpers do part of the work that
 * thousands of searches cause on the host, or the tasks of a set on several
 * devices.  A helper ends when the work for which it was started is done.
 */
#ifndef GV_GV_PARALLEL_H
#define GV_GV_PARALLEL_H

#include <pthread.h>

#include "engine/gv_engine.h"

/*
 * Starts a thread that calls start(arg), with all signals blocked, because the
 * first thread of the process handles signals.  Sets *joined to the thread,
 * which the caller has to join; if joined is NULL, the thread is detached.
 * Returns false if no thread can be started.
 */
extern bool gv_thread_start(void *(*start) (void *), void *arg,
							pthread_t *joined);

/* Threads that help the caller for a while. */
typedef struct GvHelpers
{
	int			nhelpers;
	pthread_t	threads[GV_MAX_DEVICES];
} GvHelpers;

/*
 * Returns the number of helper threads to use for ntasks tasks that keep
 * processors busy: at most three, in addition to the caller's thread.
 */
extern int	gv_parallel_helpers(int32_t ntasks);

#ifdef GV_TEST_BUILD
/*
 * Sets the number of helpers to use.  A negative number restores the default.
 */
extern void gv_force_helpers(int32_t helpers);
#endif

/*
 * Starts nhelpers threads, at most GV_MAX_DEVICES, which call help(arg).  If the
 * system refuses a thread, there are fewer helpers, or none.  gv_helpers_end
 * waits for all of them.
 */
extern void gv_helpers_begin(GvHelpers *helpers, int nhelpers,
							 void *(*help) (void *), void *arg);
extern void gv_helpers_end(GvHelpers *helpers);

/*
 * Calls task(arg, i) for each i below n, in the caller's thread and in
 * nhelpers helpers.  Returns when all tasks are done.
 */
extern void gv_parallel_for(int nhelpers, void (*task) (void *, int32_t),
							void *arg, int32_t n);

#endif							/* GV_GV_PARALLEL_H */
