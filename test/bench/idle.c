/*
 * idle.c
 *		Linked into the gpuvecd of check_server --bench-loop, in place of the
 *		engine's searches (the linker's --wrap): a device that takes IDLE_US
 *		microseconds for a batch, and IDLE_NS nanoseconds for each of its
 *		searches, and no processor.
 *
 * Only queries are copied, as by an engine.  Every search has as many hits as
 * it may have, in memory of its own.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/mirror/gv_mirror.h"

#define NSEARCHERS	2			/* of the loop, for one device */
#define MOST		1024		/* searches in a batch */
#define HITS		2048		/* of a search, at most */
#define DIMS		768			/* those of bench_loop.c */

static struct
{
	GvSearcher *searcher;
	int64_t		ends_ns;
	float		queries[MOST][DIMS];
	GvProbe		probed[MOST];
	GvHit		hits[MOST][HITS];
}			idle[NSEARCHERS];

static int64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t
number(const char *name)
{
	const char *value = getenv(name);

	return value != NULL ? atoi(value) : 0;
}

static int
find(GvSearcher *searcher)
{
	int			i = 0;

	while (idle[i].searcher != NULL && idle[i].searcher != searcher)
		i++;
	idle[i].searcher = searcher;
	return i;
}

GvStatus
__wrap_gv_mirror_begin_shards(GvSearcher *const *searchers, int32_t nshards,
							  GvMirror *mirror, GvSearch *searches, int32_t n)
{
	int			at = find(searchers[0]);
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		GvSearch   *search = &searches[i];

		memcpy(idle[at].queries[i], search->query, DIMS * sizeof(float));
		search->nprobed = 1;
		search->probed = &idle[at].probed[i];
		search->nhits = search->capacity;
		search->hits = idle[at].hits[i];
	}
	idle[at].ends_ns = now_ns() + number("IDLE_US") * 1000 +
		number("IDLE_NS") * n;
	return GV_OK;
}

bool
__wrap_gv_mirror_done(GvSearcher *searcher)
{
	return now_ns() >= idle[find(searcher)].ends_ns;
}

GvStatus
__wrap_gv_mirror_finish(GvSearcher *searcher)
{
	while (!__wrap_gv_mirror_done(searcher))
		;
	return GV_OK;
}
