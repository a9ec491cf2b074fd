/*
 * put.cu
 *		Queries into the memory that the card reads, by several threads where
 *		they are thousands.
 *
 * One core writes some 10 GB/s, and 10,000 queries are megabytes: as long as the
 * card needs for half of its work.  So parts that are gathered are put there by
 * some threads, which live as long as that takes, portion by portion in the order
 * of the parts; who launches the steps of a part helps until all of it is there,
 * and while he launches them the others are ahead.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "gpu/index/gv_index.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define STREAMED		16		/* numbers, of a line of the cache */
#define STREAMED_AHEAD	256
#define STREAMED_FROM	65		/* queries of a part that is copied */

#define PORTION			64		/* queries that a thread takes at a time */
#define CORES_A_HELPER	4		/* helpers are few: others work here, too */
#define STACK_BYTES		(128 * 1024)

static int32_t put_by = -1;		/* see gv_gpu_put_by */

/* See gv_index.h. */
void
gv_gpu_put_by(int32_t helpers)
{
	put_by = helpers;
}

/*
 * Numbers of a query to where the card looks, past the caches: the processor does
 * not look there again, and need not read what it overwrites.
 */
static void
stream_out(float *to, const float *from, size_t n)
{
	size_t		i = 0;

#ifdef __SSE2__
	if ((uintptr_t) to % sizeof(__m128i) == 0)
		for (; i + STREAMED <= n; i += STREAMED)
		{
			_mm_prefetch((const char *) (from + i + STREAMED_AHEAD), _MM_HINT_T0);
			for (size_t j = i; j < i + STREAMED; j += 4)
				_mm_stream_si128((__m128i *) (to + j),
								 _mm_loadu_si128((const __m128i *) (from + j)));
		}
#endif
	memcpy(to + i, from + i, (n - i) * sizeof(float));
}

/* Some of a part's searches, from number `first` on; of n in all. */
static void
put_some(const GvCardModel *card, const GvBatch *batch,
		 const GvSearch *searches, int32_t first, int32_t last, int32_t n)
{
	float	   *queries = (float *) batch->in_queries;
	GvWanted   *wanted = (GvWanted *) batch->in_wanted;

	for (int32_t i = first; i < last; i++)
	{
		float	   *to = queries + (size_t) i * card->dims;

		/* few are read at once, from the processor's cache */
		if (n >= STREAMED_FROM)
			stream_out(to, searches[i].query, card->dims);
		else
			memcpy(to, searches[i].query, card->dims * sizeof(float));
		wanted[i].probes = searches[i].probes;
		wanted[i].capacity = searches[i].capacity;
		wanted[i].length = card->refine_slots == 0 ||
			card->metric != GV_IP ? 0 :
			sqrt(-gv_distance_ip(searches[i].query, searches[i].query,
								 card->dims));
	}
#ifdef __SSE2__
	/* before anybody is told that they are there */
	if (n >= STREAMED_FROM)
		_mm_sfence();
#endif
}

/* Queries of n searches, and what they want, to where the card looks. */
void
gv_gpu_put_queries(const GvCardModel *card, const GvBatch *batch,
				   const GvSearch *searches, int32_t n)
{
	memset((GvWanted *) batch->in_wanted + n, 0,
		   (batch->n - n) * sizeof(GvWanted));
	put_some(card, batch, searches, 0, n, n);
}

static int32_t
count_portions(int32_t n)
{
	return (n + PORTION - 1) / PORTION;
}

/* Put the next portion there that nobody has taken; false: there is none. */
static bool
put_portion(GvPutting *putting)
{
	const GvGathered *gathered = putting->gathered;
	const GvSearch *searches = putting->searches;
	int32_t		portion = __atomic_fetch_add(&putting->next, 1,
											 __ATOMIC_RELAXED);
	int			part = 0;
	int32_t		n;
	int32_t		first;

	while (part < gathered->nparts &&
		   portion >= count_portions(gathered->taken[part]))
	{
		portion -= count_portions(gathered->taken[part]);
		searches += gathered->taken[part++];
	}
	if (part >= gathered->nparts)
		return false;
	n = gathered->taken[part];
	first = portion * PORTION;
	put_some(putting->card, &gathered->parts[part], searches, first,
			 n - first < PORTION ? n : first + PORTION, n);
	(void) __atomic_fetch_sub(&putting->left[part], 1, __ATOMIC_RELEASE);
	return true;
}

static void *
help(void *arg)
{
	while (put_portion((GvPutting *) arg))
		;
	return NULL;
}

/* How many threads are worth it? */
static int
count_helpers(int32_t nportions)
{
	long		cores = sysconf(_SC_NPROCESSORS_ONLN);
	long		helpers = put_by >= 0 ? put_by : cores / CORES_A_HELPER;

	if (helpers > GV_MOST_HELPERS)
		helpers = GV_MOST_HELPERS;
	return (int) (helpers < nportions ? helpers : nportions);
}

/* See gv_index.h. */
void
gv_gpu_put_begin(GvPutting *putting, const GvCardModel *card,
				 const GvGathered *gathered, const GvSearch *searches)
{
	int32_t		nportions = 0;
	int			wanted;
	pthread_attr_t attr;
	sigset_t	all;
	sigset_t	before;

	putting->card = card;
	putting->gathered = gathered;
	putting->searches = searches;
	putting->next = 0;
	putting->nhelpers = 0;
	for (int i = 0; i < gathered->nparts; i++)
		nportions += putting->left[i] = count_portions(gathered->taken[i]);
	wanted = count_helpers(nportions);
	if (wanted == 0 || pthread_attr_init(&attr) != 0)
		return;
	(void) pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the caller's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	/* where there are no more threads, the caller puts it all there */
	while (putting->nhelpers < wanted &&
		   pthread_create(&putting->helpers[putting->nhelpers], &attr, help,
						  putting) == 0)
		putting->nhelpers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
}

/* See gv_index.h. */
void
gv_gpu_put_part(GvPutting *putting, int part)
{
	while (__atomic_load_n(&putting->left[part], __ATOMIC_ACQUIRE) > 0)
		if (!put_portion(putting))
			sched_yield();
}

/* See gv_index.h. */
void
gv_gpu_put_end(GvPutting *putting)
{
	for (int i = 0; i < putting->nhelpers; i++)
		(void) pthread_join(putting->helpers[i], NULL);
}
