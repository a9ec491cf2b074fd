/*
 * gv_parallel.c
 *		Threads, helper threads, and parallel loops.
 *
 * Helper threads are started for each use and joined at its end.
 */
#include <signal.h>
#include <unistd.h>

#include "engine/gv_test.h"
#include "engine/mirror/gv_parallel.h"

#define CORES_A_HELPER	4		/* there is one helper for this many cores,
								 * because the host has other work */
#define MOST_HELPERS	3		/* threads in addition to the caller's */
#define STACK_BYTES		(1024 * 1024)	/* a CUDA driver uses part of the
										 * stack */

static GV_TUNABLE int32_t forced_helpers = -1;

#ifdef GV_TEST_BUILD
void
gv_force_helpers(int32_t helpers)
{
	forced_helpers = helpers;
}
#endif

bool
gv_thread_start(void *(*start) (void *), void *arg, pthread_t *joined)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	bool		started;

	if (pthread_attr_init(&attr) != 0)
		return false;
	if (joined == NULL)
		(void) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void) pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* the thread inherits this mask */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	started = pthread_create(joined != NULL ? joined : &thread, &attr, start,
							 arg) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return started;
}

int
gv_parallel_helpers(int32_t ntasks)
{
	long		helpers = sysconf(_SC_NPROCESSORS_ONLN) / CORES_A_HELPER;

	if (forced_helpers >= 0)
		helpers = forced_helpers;
	if (helpers > MOST_HELPERS)
		helpers = MOST_HELPERS;
	return (int) (helpers < ntasks ? helpers : ntasks);
}

void
gv_helpers_begin(GvHelpers *helpers, int nhelpers, void *(*help) (void *),
				 void *arg)
{
	helpers->nhelpers = 0;
	while (helpers->nhelpers < nhelpers &&
		   gv_thread_start(help, arg, &helpers->threads[helpers->nhelpers]))
		helpers->nhelpers++;
}

void
gv_helpers_end(GvHelpers *helpers)
{
	int			i;

	for (i = 0; i < helpers->nhelpers; i++)
		(void) pthread_join(helpers->threads[i], NULL);
}

/* The state of a parallel loop. */
typedef struct ParallelFor
{
	void		(*task) (void *, int32_t);
	void	   *arg;
	int32_t		n;
	int32_t		next;			/* the next task that no thread has taken;
								 * atomic */
} ParallelFor;

static void *
do_tasks(void *arg)
{
	ParallelFor *loop = arg;
	int32_t		i;

	while ((i = __atomic_fetch_add(&loop->next, 1,
								   __ATOMIC_RELAXED)) < loop->n)
		loop->task(loop->arg, i);
	return NULL;
}

void
gv_parallel_for(int nhelpers, void (*task) (void *, int32_t), void *arg,
				int32_t n)
{
	ParallelFor loop = {task, arg, n, 0};
	GvHelpers	helpers;

	gv_helpers_begin(&helpers, nhelpers, do_tasks, &loop);
	(void) do_tasks(&loop);
	gv_helpers_end(&helpers);
}
