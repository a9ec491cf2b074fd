/*
 * driver.h
 *		What programs share that measure searches of a mirror: batches in lanes,
 *		which take turns.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include "measure.h"

#define NQUERIES		10000
#define SECONDS			0.7		/* of each batch size */
#define MOST_TIMES		1000000
#define MOST_LANES		16

/* A replica's searches, by a thread. */
typedef struct Driver
{
	GvMirror   *mirror;
	int32_t		nshards;		/* of the replica */
	int			nlanes;			/* so many batches are under way at a time */
	GvSearcher *searchers[MOST_LANES][GV_MAX_DEVICES];	/* [nlanes][nshards] */
	GvSearch   *searches;		/* [NQUERIES] */
	double	   *times;			/* [MOST_TIMES], of batches from begin to end */
	int			n;				/* of a batch */
	int			nbatches;
	double		busy;			/* seconds of beginning batches */
	double		copies;			/* scanned by the batches' first queries */
	double		seconds;
} Driver;

static inline void *
need(size_t bytes)
{
	void	   *memory = calloc(1, bytes > 0 ? bytes : 1);

	if (memory != NULL)
		return memory;
	fprintf(stderr, "out of memory\n");
	exit(1);
}

/* Searches of a replica whose first device is this one of a placement. */
static inline void
open_driver(Driver *driver, GvMirror *mirror, const GvPlacement *spread,
			int first, int nlanes, GvSearch *searches)
{
	driver->mirror = mirror;
	driver->nshards = spread->nshards;
	driver->nlanes = nlanes;
	driver->searches = searches;
	driver->times = (double *) need(MOST_TIMES * sizeof(double));
	for (int lane = 0; lane < nlanes; lane++)
		for (int s = 0; s < spread->nshards; s++)
			CHECKED(gv_searcher(spread->devices[first + s],
								&driver->searchers[lane][s]));
}

/* Finish the batch of a lane that began then. */
static inline void
finish(Driver *driver, int lane, double began, const GvSearch *first)
{
	CHECKED(gv_mirror_finish(driver->searchers[lane][0]));
	driver->times[driver->nbatches++] = bench_now() - began;
	driver->copies += (double) first->postings;
}

/* Batches in lanes that take turns, for a while. */
static inline void *
drive(void *arg)
{
	Driver	   *driver = (Driver *) arg;
	double		began[MOST_LANES] = {0};	/* 0: nothing is under way */
	const GvSearch *first[MOST_LANES] = {0};	/* of the batch that is */
	double		start = bench_now();
	int			at = 0;

	driver->nbatches = 0;
	driver->busy = driver->copies = 0;
	for (int begun = 0; driver->nbatches < MOST_TIMES - driver->nlanes &&
		 bench_now() - start < SECONDS; begun++)
	{
		int			lane = begun % driver->nlanes;

		if (began[lane] > 0)
			finish(driver, lane, began[lane], first[lane]);
		at = at + driver->n > NQUERIES ? 0 : at;
		first[lane] = driver->searches + at;
		began[lane] = bench_now();
		CHECKED(gv_mirror_begin_shards(driver->searchers[lane],
									   driver->nshards, driver->mirror,
									   driver->searches + at, driver->n));
		driver->busy += bench_now() - began[lane];
		at += driver->n;
	}
	for (int lane = 0; lane < driver->nlanes; lane++)
		if (began[lane] > 0)
			finish(driver, lane, began[lane], first[lane]);
	driver->seconds = bench_now() - start;
	return NULL;
}

/* Search for n queries alone, in a lane. */
static inline void
search_once(Driver *driver, int lane, int n)
{
	CHECKED(gv_mirror_search_shards(driver->searchers[lane], driver->nshards,
									driver->mirror, driver->searches, n));
}

/*
 * A number for the answers of a batch, the same for the same to the last bit.
 * FNV-1a, by words of 4 bytes.
 */
static inline uint32_t
sum_up(const GvSearch *searches, int n)
{
	uint32_t	sum = 2166136261u;

	for (int i = 0; i < n; i++)
	{
		const uint32_t *words = (const uint32_t *) searches[i].hits;
		size_t		nwords = (size_t) searches[i].nhits * sizeof(GvHit) / 4;

		for (size_t w = 0; w < nwords; w++)
			sum = (sum ^ words[w]) * 16777619u;
		words = (const uint32_t *) searches[i].bounds;
		nwords = words == NULL ? 0 :
			(size_t) searches[i].nhits * sizeof(GvBound) / 4;
		for (size_t w = 0; w < nwords; w++)
			sum = (sum ^ words[w]) * 16777619u;
	}
	return sum;
}

static inline void
print_columns(void)
{
	printf("%6s %10s %10s %12s %10s %8s %8s\n", "batch", "p50 us", "p99 us",
		   "queries/s", "busy us", "copies", "answers");
}

/*
 * A batch size: the time from its begin to its end, and how long the caller is
 * busy beginning it.
 */
static inline void
measure(Driver *driver, int n)
{
	int			nbatches;

	driver->n = n;
	/* memory is taken, and graphs are made, by the first ones */
	for (int i = 0; i < 2 * driver->nlanes; i++)
		search_once(driver, i % driver->nlanes, n);
	drive(driver);
	nbatches = driver->nbatches;
	bench_sort_times(driver->times, nbatches);
	search_once(driver, 0, n);
	printf("%6d %10.1f %10.1f %12.0f %10.1f %8.0f %08x\n", n,
		   driver->times[nbatches / 2] * 1e6,
		   driver->times[nbatches * 99 / 100] * 1e6,
		   n * (double) nbatches / driver->seconds,
		   driver->busy / nbatches * 1e6, driver->copies / nbatches,
		   sum_up(driver->searches, n));
	fflush(stdout);
}

#endif							/* DRIVER_H */
