/*
 * gv_crew.h
 *		Threads that help with what thousands of searches cost the host.
 *
 * They live as long as that takes.  gpuvecd only.
 */
#ifndef GV_CREW_H
#define GV_CREW_H

#include <pthread.h>
#include <stdint.h>

#define GV_MOST_HELPERS		3	/* threads beside the caller's */

typedef struct GvCrew
{
	int			nhelpers;
	pthread_t	helpers[GV_MOST_HELPERS];
} GvCrew;

/* gv_crew_wanted: how many helpers so many portions of work are worth. */
extern int	gv_crew_wanted(int32_t nportions);

#ifdef GV_TEST_BUILD
/* gv_crew_by: so many, whatever is best; negative: as is best. */
extern void gv_crew_by(int32_t helpers);
#endif

/*
 * gv_crew_begin: so many threads do help(what); fewer, where there are no more.
 * gv_crew_end waits for them.
 */
extern void gv_crew_begin(GvCrew *crew, int wanted, void *(*help) (void *),
						  void *what);
extern void gv_crew_end(GvCrew *crew);

/* portion(what, i) for each i below n, by the caller and so many helpers. */
extern void gv_crew_share(int wanted, void (*portion) (void *, int32_t),
						  void *what, int32_t n);

#endif							/* GV_CREW_H */
