/*
 * gv_parallel.c
 *		See gv_parallel.h.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "engine/gv_test.h"
#include "engine/mirror/gv_parallel.h"

#define CORES_A_HELPER	4		/* helpers are few: others work here, too */
#define STACK_BYTES		(1024 * 1024)	/* a CUDA driver wants some of it */

static GV_TUNABLE int32_t forced_helpers = -1;

#ifdef GV_TEST_BUILD
void
gv_force_helpers(int32_t helpers)
{
	forced_helpers = helpers;
}
#endif

int
gv_parallel_helpers(int32_t ntasks)
{
	long		cores = sysconf(_SC_NPROCESSORS_ONLN);
	long		helpers = forced_helpers >= 0 ? forced_helpers : cores /
	CORES_A_HELPER;

	if (helpers > GV_MOST_HELPERS)
		helpers = GV_MOST_HELPERS;
	return (int) (helpers < ntasks ? helpers : ntasks);
}

void
gv_helpers_begin(GvHelpers *helpers, int nhelpers, void *(*help) (void *),
				 void *what)
{
	pthread_attr_t attr;
	sigset_t	all;
	sigset_t	before;

	helpers->nhelpers = 0;
	if (nhelpers == 0 || pthread_attr_init(&attr) != 0)
		return;
	(void) pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the caller's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	while (helpers->nhelpers < nhelpers &&
		   pthread_create(&helpers->threads[helpers->nhelpers], &attr, help,
						  what) == 0)
		helpers->nhelpers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
}

void
gv_helpers_end(GvHelpers *helpers)
{
	int			i;

	for (i = 0; i < helpers->nhelpers; i++)
		(void) pthread_join(helpers->threads[i], NULL);
}

/* The state of a parallel loop, and the next task that nobody has taken. */
typedef struct ParallelFor
{
	void		(*task) (void *, int32_t);
	void	   *what;
	int32_t		n;
	int32_t		next;
} ParallelFor;

static void *
do_tasks(void *arg)
{
	ParallelFor *loop = arg;
	int32_t		i;

	while ((i = __atomic_fetch_add(&loop->next, 1,
								   __ATOMIC_RELAXED)) < loop->n)
		loop->task(loop->what, i);
	return NULL;
}

void
gv_parallel_for(int nhelpers, void (*task) (void *, int32_t), void *what,
				int32_t n)
{
	ParallelFor loop = {task, what, n, 0};
	GvHelpers	helpers;

	gv_helpers_begin(&helpers, nhelpers, do_tasks, &loop);
	(void) do_tasks(&loop);
	gv_helpers_end(&helpers);
}
