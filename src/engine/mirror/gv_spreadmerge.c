/*
 * gv_spreadmerge.c
 *		What shards are asked, and one answer of theirs.
 *
 * All shards choose the same lists, in the same order, so a probe has one
 * number on all of them, and a list is empty except on its own shard.  Hits of
 * shards are merged as an engine orders its own: by (S, row id) and, of equal
 * pairs, the earlier probe first.  Answers lie in the searcher's memory,
 * because the next step overwrites those of the shards.  Thousands of searches
 * are divided among several threads, because the devices wait meanwhile.
 */
#include "engine/mirror/gv_spread.h"

#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_crew.h"

#define RANGE			64		/* searches that a thread takes at a time */
#define LEAST_SHARED	16		/* ranges that are worth more than one */

/*
 * Returns how many hits the shards found for the i-th of n searches, in all.
 */
static int32_t
count_hits(const GvPlacedMirror *mirror, const GvSearch *asked,
		   int32_t n, int32_t i)
{
	int64_t		nhits = 0;
	int32_t		p;

	for (p = 0; p < mirror->placement.ndevices; p++)
		nhits += asked[(size_t) p * (size_t) n + (size_t) i].nhits;
	return nhits < asked[i].capacity ? (int32_t) nhits : asked[i].capacity;
}

/* Memory for the ranges of n searches. */
static GvStatus
need_ranges(GvShardAnswers *answers, int32_t n)
{
	int32_t		nranges = (n + RANGE - 1) / RANGE;
	GvShardRange *ranges = answers->ranges;

	if (nranges > answers->ranges_capacity)
	{
		ranges = realloc(ranges, (size_t) nranges * sizeof(*ranges));
		if (ranges == NULL)
			return GV_NO_MEMORY;
		answers->ranges = ranges;
		answers->ranges_capacity = nranges;
	}
	answers->nranges = nranges;
	return GV_OK;
}

/*
 * Memory for the counts of the ranges of n searches; tells each range where
 * its own begins.
 */
static GvStatus
need_answers(GvShardAnswers *answers, const GvPlacedMirror *mirror, int32_t n)
{
	size_t		ncounts = (size_t) n * (size_t) mirror->placement.ndevices;
	size_t		nhits = 0;
	size_t		other = 0;
	size_t		bytes;
	int32_t		i;

	for (i = 0; i < answers->nranges; i++)
	{
		GvShardRange *range = &answers->ranges[i];

		range->first = nhits;
		range->at = other;
		nhits += range->nhits;
		other += range->bytes;
	}
	/* never nothing */
	bytes = ncounts * sizeof(int32_t) + other +
		nhits * (sizeof(GvHit) + sizeof(uint8_t));
	if (bytes > answers->bytes)
	{
		free(answers->memory);
		answers->bytes = bytes + bytes / 4;
		answers->memory = malloc(answers->bytes);
		if (answers->memory == NULL)
		{
			answers->bytes = 0;
			return GV_NO_MEMORY;
		}
	}
	answers->sorted = (GvHit *) answers->memory;
	answers->counts = (int32_t *) (answers->sorted + nhits);
	answers->others = (char *) (answers->counts + ncounts);
	answers->owners = (uint8_t *) answers->others + other;
	return GV_OK;
}

/*
 * Takes bytes for answers at *next; all elements are of 4 bytes.
 */
static void *
take(char **next, size_t bytes)
{
	void	   *place = *next;

	*next += bytes;
	return place;
}

/* Adds up what shards counted in the lists of a search, and in the sample. */
static void
add_up(const GvPlacedMirror *mirror, const GvSearch *asked, int32_t n,
	   GvSearch *search)
{
	int32_t		p;
	int32_t		i;

	search->postings = 0;
	search->nearer = 0;
	search->nearer_squares = 0;
	if (search->matches != NULL)
		memset(search->matches, 0, (size_t) search->nprobed * sizeof(int32_t));
	for (p = 0; p < mirror->placement.ndevices; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) n];

		search->postings += answer->postings;
		search->nearer += answer->nearer;
		search->nearer_squares += answer->nearer_squares;
		for (i = 0; search->matches != NULL && i < search->nprobed; i++)
			search->matches[i] += answer->matches[i];
	}
}

/* A step, of which threads do ranges. */
typedef struct Work
{
	const GvPlacedMirror *mirror;
	GvSearch   *asked;			/* [nparts][n] */
	GvSearch   *searches;		/* [n] */
	int32_t		n;
	GvShardAnswers *answers;
	int64_t    *nhits;			/* [nparts] that are asked for */
} Work;

/* Does all ranges, by several threads where they are many. */
static void
do_ranges(Work *work, void (*range) (void *, int32_t))
{
	int32_t		nranges = work->answers->nranges;

	gv_parallel_for(nranges < LEAST_SHARED ? 0 : gv_parallel_helpers(nranges),
					range,
					work, nranges);
}

/* The first search behind a range. */
static int32_t
range_end(const Work *work, int32_t range)
{
	return (range + 1) * RANGE < work->n ? (range + 1) * RANGE : work->n;
}

/* Counts what the searches of a range found, and what memory that takes. */
static void
count_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	GvShardRange *range = &work->answers->ranges[r];
	int32_t		end = range_end(work, r);
	int32_t		i;

	*range = (GvShardRange)
	{
		0
	};
	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &work->searches[i];

		if (!search->given)
		{
			search->nprobed = work->asked[i].nprobed;
			search->nhits = count_hits(work->mirror, work->asked, work->n, i);
			range->bytes += (size_t) search->nprobed *
				(sizeof(GvProbe) + sizeof(int32_t)) +
				(size_t) search->nhits * sizeof(GvHit);
		}
		range->bytes += (size_t) search->nhits * sizeof(GvBound);
		range->nhits += (size_t) search->nhits;
	}
}

/* Prefetches the i-th search's hits, about nhits / ndevices of each shard. */
static void
expect_hits(const Work *work, int32_t i)
{
	int32_t		ndevices = work->mirror->placement.ndevices;
	int32_t		nhits = work->searches[i].nhits;
	int32_t		p;

	for (p = 0; p < ndevices; p++)
		gv_shards_expect(work->asked[(size_t) p * (size_t) work->n + (size_t) i].hits,
						 (size_t) (nhits / ndevices + nhits / 8) * sizeof(GvHit));
}

/*
 * Makes the i-th search's answer from what each shard found; first sorts its
 * hits by owner.
 */
static void
merge_search(Work *work, int32_t i, char **next, size_t first)
{
	GvSearch   *search = &work->searches[i];
	const GvSearch *asked = &work->asked[i];
	size_t		nprobed = (size_t) search->nprobed;

	search->probed = take(next, nprobed * sizeof(GvProbe));
	search->hits = take(next, (size_t) search->nhits * sizeof(GvHit));
	search->matches = search->condition != NULL ?
		take(next, nprobed * sizeof(int32_t)) : NULL;
	if (nprobed > 0)
		memcpy(search->probed, asked->probed, nprobed * sizeof(GvProbe));
	gv_shards_merge_hits(asked, work->n, work->mirror->placement.ndevices,
						 search->hits, search->nhits,
						 work->answers->sorted + first);
	add_up(work->mirror, asked, work->n, search);
}

/*
 * Makes the answers of a range, unless they were given, and sorts hits by
 * owner.
 */
static void
answer_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	GvShardAnswers *answers = work->answers;
	int32_t		ndevices = work->mirror->placement.ndevices;
	int32_t		end = range_end(work, r);
	size_t		first = answers->ranges[r].first;
	char	   *next = answers->others + answers->ranges[r].at;
	int32_t		i;

	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &work->searches[i];

		if (!search->given && i + 1 < end)
			expect_hits(work, i + 1);
		if (!search->given)
			merge_search(work, i, &next, first);
		search->bounds = search->bounded ?
			take(&next, (size_t) search->nhits * sizeof(GvBound)) : NULL;
		gv_shards_sort_hits(work->mirror, search->hits,
							search->bounded ? search->nhits : 0,
							answers->sorted + first, answers->owners + first,
							answers->counts + (size_t) i * (size_t) ndevices);
		first += (size_t) search->nhits;
	}
}

/*
 * Merges what each shard found for n searches.  Hits that were given have
 * memory for bounds then.
 */
GvStatus
gv_shards_merge(const GvPlacedMirror *mirror, GvSearch *asked,
				GvSearch *searches, int32_t n, GvShardAnswers *answers)
{
	Work		work = {mirror, asked, searches, n, answers, NULL};
	GvStatus	status = need_ranges(answers, n);

	if (status != GV_OK)
		return status;
	do_ranges(&work, count_range);
	status = need_answers(answers, mirror, n);
	if (status == GV_OK)
		do_ranges(&work, answer_range);
	return status;
}

/*
 * Returns whether a search waits for the sample's count by the merged hit
 * number `rank`.
 */
static bool
asks_nearer(const GvSearch *search)
{
	return search->rank > 0 && !search->limited &&
		search->nhits >= search->rank;
}

/*
 * Collects the searches that ask for the sample, with the score that it is
 * compared with; returns how many, for each shard.
 */
int32_t
gv_shards_ask_nearer(const GvPlacedMirror *mirror, const GvSearch *searches,
					 int32_t n, GvSearch *asked)
{
	int32_t		nasked = 0;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
		if (asks_nearer(&searches[i]))
		{
			GvSearch   *one = &asked[nasked++];

			*one = searches[i];
			one->limit = one->hits[one->rank - 1].score;
			one->limited = true;
			one->rank = 1;
			one->capacity = 1;
			one->bounded = false;
		}
	for (p = 1; p < mirror->placement.ndevices; p++)
		memcpy(&asked[(size_t) p * (size_t) nasked], asked,
			   (size_t) nasked * sizeof(GvSearch));
	return nasked;
}

/* Adds up the shards' answers to that. */
void
gv_shards_add_nearer(const GvPlacedMirror *mirror, const GvSearch *asked,
					 GvSearch *searches, int32_t n)
{
	int32_t		nasked = 0;
	int32_t		at = 0;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
		nasked += asks_nearer(&searches[i]);
	for (i = 0; i < n; i++)
	{
		if (!asks_nearer(&searches[i]))
			continue;
		for (p = 0; p < mirror->placement.ndevices; p++)
		{
			const GvSearch *answer = &asked[p * nasked + at];

			searches[i].nearer += answer->nearer;
			searches[i].nearer_squares += answer->nearer_squares;
		}
		at++;
	}
}

/* The bounds of a range's hits are asked for. */
static void
ask_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	const GvShardAnswers *answers = work->answers;
	GvHit	   *hits = answers->sorted + answers->ranges[r].first;
	int64_t		nhits[GV_MAX_DEVICES] = {0};
	int32_t		ndevices = work->mirror->placement.ndevices;
	int32_t		end = range_end(work, r);
	int32_t		p;
	int32_t		i;

	for (i = r * RANGE; i < end; i++)
	{
		const int32_t *counts = answers->counts + (size_t) i *
		(size_t) ndevices;
		const GvSearch *search = &work->searches[i];
		GvHit	   *next = hits;

		for (p = 0; p < ndevices; p++)
		{
			work->asked[(size_t) p * (size_t) work->n + (size_t) i] = (GvSearch)
			{
				.query = search->query, .bounded = true, .given = true,
					.nhits = counts[p], .hits = next
			};
			next += counts[p];
			nhits[p] += counts[p];
		}
		hits += search->nhits;
	}
	for (p = 0; p < ndevices; p++)
		(void) __atomic_fetch_add(&work->nhits[p], nhits[p], __ATOMIC_RELAXED);
}

/*
 * Asks for the bounds of all hits, each of the shard that has its record; so
 * many of each shard.
 */
void
gv_shards_ask_bounds(const GvPlacedMirror *mirror, GvSearch *searches,
					 int32_t n, GvSearch *asked, GvShardAnswers *answers,
					 int64_t *nhits)
{
	Work		work = {mirror, asked, searches, n, answers, nhits};

	memset(nhits, 0, GV_MAX_DEVICES * sizeof(*nhits));
	do_ranges(&work, ask_range);
}

/* Bounds of a range's hits, in their order. */
static void
take_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	const uint8_t *owners = work->answers->owners +
	work->answers->ranges[r].first;
	int32_t		end = range_end(work, r);
	int32_t		s;
	int32_t		p;
	int32_t		i;

	for (s = r * RANGE; s < end; s++)
	{
		const GvBound *next[GV_MAX_DEVICES];
		GvSearch   *search = &work->searches[s];

		for (p = 0; p < work->mirror->placement.ndevices; p++)
		{
			const GvSearch *answer = &work->asked[(size_t) p *
												  (size_t) work->n + (size_t) s];

			next[p] = answer->bounds;
			if (s + 1 < end)
				gv_shards_expect(answer[1].bounds,
								 (size_t) answer[1].nhits * sizeof(GvBound));
		}
		for (i = 0; search->bounded && i < search->nhits; i++)
			search->bounds[i] = *next[owners[i]]++;
		owners += search->nhits;
	}
}

/* Puts the shards' answers to that in the order of the hits. */
void
gv_shards_take_bounds(const GvPlacedMirror *mirror, GvSearch *asked,
					  GvSearch *searches, int32_t n,
					  GvShardAnswers *answers)
{
	Work		work = {mirror, asked, searches, n, answers, NULL};

	do_ranges(&work, take_range);
}
