/*
 * gv_crew.c
 *		See gv_crew.h.
 */
#include "engine/mirror/gv_crew.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "engine/gv_test.h"

#define CORES_A_HELPER	4		/* helpers are few: others work here, too */
#define STACK_BYTES		(1024 * 1024)	/* a card's driver wants some of it */

static GV_TUNABLE int32_t crew_by = -1;

#ifdef GV_TEST_BUILD
void
gv_crew_by(int32_t helpers)
{
	crew_by = helpers;
}
#endif

int
gv_crew_wanted(int32_t nportions)
{
	long		cores = sysconf(_SC_NPROCESSORS_ONLN);
	long		helpers = crew_by >= 0 ? crew_by : cores / CORES_A_HELPER;

	if (helpers > GV_MOST_HELPERS)
		helpers = GV_MOST_HELPERS;
	return (int) (helpers < nportions ? helpers : nportions);
}

void
gv_crew_begin(GvCrew *crew, int wanted, void *(*help) (void *), void *what)
{
	pthread_attr_t attr;
	sigset_t	all;
	sigset_t	before;

	crew->nhelpers = 0;
	if (wanted == 0 || pthread_attr_init(&attr) != 0)
		return;
	(void) pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the caller's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	while (crew->nhelpers < wanted &&
		   pthread_create(&crew->helpers[crew->nhelpers], &attr, help,
						  what) == 0)
		crew->nhelpers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
}

void
gv_crew_end(GvCrew *crew)
{
	int			i;

	for (i = 0; i < crew->nhelpers; i++)
		(void) pthread_join(crew->helpers[i], NULL);
}

/* What is shared, and the portion that nobody has taken. */
typedef struct Share
{
	void		(*portion) (void *, int32_t);
	void	   *what;
	int32_t		n;
	int32_t		next;
} Share;

static void *
do_portions(void *arg)
{
	Share	   *share = arg;
	int32_t		i;

	while ((i = __atomic_fetch_add(&share->next, 1,
								   __ATOMIC_RELAXED)) < share->n)
		share->portion(share->what, i);
	return NULL;
}

void
gv_crew_share(int wanted, void (*portion) (void *, int32_t), void *what,
			  int32_t n)
{
	Share		share = {portion, what, n, 0};
	GvCrew		crew;

	gv_crew_begin(&crew, wanted, do_portions, &share);
	(void) do_portions(&share);
	gv_crew_end(&crew);
}
