/*
 * gv_multisearch.c
 *		Hits of one search of shards: merged, and sorted by who has their
 *		records.
 *
 * Of thousands of searches this is what the host does between two steps of the
 * devices.  So it takes no jump that depends on scores: of two hits either may
 * be the better one, and no processor predicts that.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_multi.h"

#include "engine/mirror/gv_parallel.h"

#define LINE			64		/* bytes, of a processor's cache */

/*
 * See gv_multi.h.  A function of another file's, because a compiler drops
 * calls of those that it sees to do nothing else.
 */
static void
shards_expect(const void *from, size_t bytes)
{
	size_t		at;

	for (at = 0; at < bytes; at += LINE)
		__builtin_prefetch((const char *) from + at);
}

/* Is a before b in the order of hits? */
static bool
before(const GvHit *a, const GvHit *b)
{
	int			i;

	if (a->score != b->score)
		return a->score < b->score;
	for (i = 0; i < 3; i++)
		if (a->rowid[i] != b->rowid[i])
			return a->rowid[i] < b->rowid[i];
	return a->probe < b->probe;
}

/* The one of two pointers, without a jump. */
static inline const GvHit *
choose(bool first, const GvHit *a, const GvHit *b)
{
	uintptr_t	differ = (uintptr_t) a ^ (uintptr_t) b;

	return (const GvHit *) ((uintptr_t) b ^ (differ & -(uintptr_t) first));
}

/*
 * Merges the first `most` hits of two arrays, or all, in order; returns how
 * many.
 */
static int32_t
merge_two(const GvHit *a, int32_t na, const GvHit *b, int32_t nb,
		  GvHit *merged, int32_t most)
{
	const GvHit *a_end = a + na;
	const GvHit *b_end = b + nb;
	GvHit	   *end;

	if (most > na + nb)
		most = na + nb;
	for (end = merged + most; a < a_end && b < b_end && merged < end; merged++)
	{
		bool		first = a->score < b->score;

		if (a->score == b->score)
			first = before(a, b);
		*merged = *choose(first, a, b);
		a += first;
		b += !first;
	}
	if (merged < end)
		memcpy(merged, a < a_end ? a : b,
			   (size_t) (end - merged) * sizeof(GvHit));
	return most;
}

/*
 * Finds how many of each shard's hits may be among the first nhits of all,
 * into counts.  Where every shard has an equal fraction of nhits, no hit is
 * among them that is worse than the last one of all these.
 */
static void
count_needed(const GvSearch *asked, int32_t n, int32_t ndevices, int32_t nhits,
			 int32_t *counts)
{
	int32_t		share = (nhits + ndevices - 1) / ndevices;
	float		worst = 0;
	bool		cut = share > 0 && ndevices > 2;
	int32_t		p;

	for (p = 0; p < ndevices; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) n];

		counts[p] = answer->nhits;
		cut = cut && answer->nhits >= share;
		if (cut && (p == 0 || answer->hits[share - 1].score > worst))
			worst = answer->hits[share - 1].score;
	}
	for (p = 0; cut && p < ndevices; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) n];
		int32_t		needed = share;

		while (needed < answer->nhits && answer->hits[needed].score <= worst)
			needed++;
		counts[p] = needed;
	}
}

/* See gv_multi.h. */
static void
shards_merge_hits(const GvSearch *asked, int32_t n, int32_t ndevices,
					 GvHit *hits, int32_t nhits, GvHit *beside)
{
	int32_t		counts[GV_MAX_DEVICES];
	const GvHit *merged = asked->hits;
	int32_t		nmerged;
	int32_t		p;

	count_needed(asked, n, ndevices, nhits, counts);
	nmerged = counts[0];
	for (p = 1; p < ndevices; p++)
	{
		/* alternately, so that the last one is where it is needed */
		GvHit	   *to = (ndevices - p) % 2 > 0 ? hits : beside;

		nmerged = merge_two(merged, nmerged,
							asked[(size_t) p * (size_t) n].hits, counts[p],
							to, nhits);
		merged = to;
	}
}

/* See gv_multi.h. */
static void
shards_sort_hits(const GvPlacedMirror *mirror, const GvHit *hits,
					int32_t nhits, GvHit *sorted, uint8_t *owners,
					int32_t *counts)
{
	GvHit	   *next[GV_MAX_DEVICES];
	int32_t		p;
	int32_t		i;

	memset(counts, 0, (size_t) mirror->placement.ndevices * sizeof(*counts));
	for (i = 0; i < nhits; i++)
	{
		owners[i] = (uint8_t) gv_record_owner(mirror, hits[i].rowid);
		counts[owners[i]]++;
	}
	for (p = 0; p < mirror->placement.ndevices; p++)
	{
		next[p] = sorted;
		sorted += counts[p];
	}
	for (i = 0; i < nhits; i++)
		*next[owners[i]]++ = hits[i];
}

/* ----
 * What shards are asked, and one answer of theirs.
 *
 * All shards choose the same lists, in the same order, so a probe has one
 * number on all of them, and a list is empty except on its own shard.  Hits of
 * shards are merged as an engine orders its own: by (S, row id) and, of equal
 * pairs, the earlier probe first.  Answers lie in the searcher's memory,
 * because the next step overwrites those of the shards.  Thousands of searches
 * are divided among several threads, because the devices wait meanwhile.
 */

#define RANGE			64		/* searches that a thread takes at a time */
#define LEAST_MERGED	16		/* ranges that are worth more than one */

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

	gv_parallel_for(nranges < LEAST_MERGED ? 0 : gv_parallel_helpers(nranges),
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
		shards_expect(work->asked[(size_t) p * (size_t) work->n + (size_t) i].hits,
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
	shards_merge_hits(asked, work->n, work->mirror->placement.ndevices,
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
		shards_sort_hits(work->mirror, search->hits,
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
static GvStatus
shards_merge(const GvPlacedMirror *mirror, GvSearch *asked,
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
static int32_t
shards_ask_nearer(const GvPlacedMirror *mirror, const GvSearch *searches,
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
static void
shards_add_nearer(const GvPlacedMirror *mirror, const GvSearch *asked,
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
static void
shards_ask_bounds(const GvPlacedMirror *mirror, GvSearch *searches,
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
				shards_expect(answer[1].bounds,
								 (size_t) answer[1].nhits * sizeof(GvBound));
		}
		for (i = 0; search->bounded && i < search->nhits; i++)
			search->bounds[i] = *next[owners[i]]++;
		owners += search->nhits;
	}
}

/* Puts the shards' answers to that in the order of the hits. */
static void
shards_take_bounds(const GvPlacedMirror *mirror, GvSearch *asked,
					  GvSearch *searches, int32_t n,
					  GvShardAnswers *answers)
{
	Work		work = {mirror, asked, searches, n, answers, NULL};

	do_ranges(&work, take_range);
}

/* ----
 * Searches of mirrors on several devices, step by step (gv_multi.h).
 *
 * A searcher is a device's, and the engine's own for what that device has
 * whole.  For shards it makes searchers of other devices when it needs them
 * first.  A step ends, and the next one begins, when who waits asks whether
 * all is done: no shard is waited for but in finish.
 */

#define LEAST_SHARED	1024	/* searches that are worth more threads than
								 * one */

typedef enum Step
{
	FOUND,
	COUNTED,
	BOUNDED,
	ENDED						/* or nothing is under way */
} Step;

typedef struct Searcher
{
	int32_t		device;
	GvSearcher *own[GV_MAX_DEVICES];	/* the engine's, by device; or NULL */
	bool		alone;			/* own[device] does it all */
	const GvPlacedMirror *mirror;	/* that is searched */
	GvSearch   *searches;		/* [n] */
	int32_t		n;
	Step		step;
	bool		wanted[GV_MAX_DEVICES]; /* by shard: this step, there */
	bool		begun[GV_MAX_DEVICES];	/* likewise */
	GvStatus	statuses[GV_MAX_DEVICES];	/* of begin, likewise */
	GvSearch   *asked;			/* [nparts][nasked] in this step */
	int32_t		nasked;
	size_t		asked_capacity;
	GvShardAnswers answers;
	GvStatus	status;			/* once it has ended */
} Searcher;

/* See gv_searcher. */
GvStatus
gv_devices_searcher(int32_t device, GvSearcher **searcher)
{
	Searcher   *made = calloc(1, sizeof(Searcher));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->step = ENDED;
	status = gv_devices_engine->searcher(device, &made->own[device]);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	*searcher = (GvSearcher *) made;
	return GV_OK;
}

void
gv_devices_searcher_drop(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;
	int			i;

	for (i = 0; i < GV_MAX_DEVICES; i++)
		if (searcher->own[i] != NULL)
			gv_devices_engine->searcher_drop(searcher->own[i]);
	free(searcher->asked);
	free(searcher->answers.ranges);
	free(searcher->answers.memory);
	free(searcher);
}

#ifdef GV_TEST_BUILD
GvSearcher *
gv_devices_own(GvSearcher *searcher, int32_t device)
{
	return gv_ndevices() > 1 ? ((Searcher *) searcher)->own[device] : searcher;
}
#endif

static GvSearcher *
searcher_of(const Searcher *searcher, int32_t member)
{
	return searcher->own[searcher->mirror->placement.devices[member]];
}

/* a device that is broken is not to be searched again because another is whole */
_Static_assert(GV_FAILED > GV_REJECTED && GV_REJECTED > GV_NO_MEMORY,
			   "the greatest status is reported");

/* Wait for what has begun, and say whether it failed. */
static GvStatus
end_step(Searcher *searcher)
{
	GvStatus	status = GV_OK;
	int32_t		p;

	for (p = 0; p < searcher->mirror->placement.ndevices; p++)
	{
		GvStatus	one;

		if (!searcher->begun[p])
			continue;
		searcher->begun[p] = false;
		one = gv_devices_engine->finish(searcher_of(searcher, p));
		if (one > status)
			status = one;
	}
	return status;
}

/* Begins this step on a shard, if that is asked anything. */
static void
begin_member(void *arg, int32_t p)
{
	Searcher   *searcher = arg;

	if (!searcher->wanted[p])
		return;
	searcher->statuses[p] = gv_devices_engine->begin
		(searcher_of(searcher, p), searcher->mirror->mirrors[p],
		 &searcher->asked[(size_t) p * (size_t) searcher->nasked],
		 searcher->nasked);
	searcher->begun[p] = searcher->statuses[p] == GV_OK;
}

/*
 * Begins a step on the shards that are asked anything: all, or nhits says so.
 * With thousands of searches a thread for each, because all queries go to each
 * device.
 */
static GvStatus
begin_step(Searcher *searcher, Step step, int32_t nasked,
		   const int64_t *nhits)
{
	int32_t		ndevices = searcher->mirror->placement.ndevices;
	GvStatus	status = GV_OK;
	int32_t		p;

	searcher->step = step;
	searcher->nasked = nasked;
	for (p = 0; p < ndevices; p++)
	{
		searcher->wanted[p] = nhits == NULL || nhits[p] > 0;
		searcher->statuses[p] = GV_OK;
	}
	gv_parallel_for(nasked < LEAST_SHARED ? 0 :
					gv_parallel_helpers(ndevices - 1),
					begin_member, searcher, ndevices);
	for (p = 0; p < ndevices; p++)
		if (searcher->statuses[p] > status)
			status = searcher->statuses[p];
	if (status != GV_OK)
		(void) end_step(searcher);
	return status;
}

/* Asks for the best postings. */
static GvStatus
begin_found(Searcher *searcher)
{
	int32_t		n = searcher->n;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		GvSearch   *one = &searcher->asked[i];

		*one = searcher->searches[i];
		one->bounded = false;
		if (!one->limited)
			one->rank = 0;
	}
	for (p = 1; p < searcher->mirror->placement.ndevices; p++)
		memcpy(&searcher->asked[(size_t) p * (size_t) n], searcher->asked,
			   (size_t) n * sizeof(GvSearch));
	return begin_step(searcher, FOUND, n, NULL);
}

/* Asks for bounds, if any are requested. */
static GvStatus
begin_bounded(Searcher *searcher)
{
	int64_t		nhits[GV_MAX_DEVICES];
	int32_t		i = 0;

	while (i < searcher->n && !searcher->searches[i].bounded)
		i++;
	if (i == searcher->n)
	{
		searcher->step = ENDED;
		return GV_OK;
	}
	shards_ask_bounds(searcher->mirror, searcher->searches, searcher->n,
						 searcher->asked, &searcher->answers, nhits);
	return begin_step(searcher, BOUNDED, searcher->n, nhits);
}

/* Ask for the sample, if anybody wants it. */
static GvStatus
begin_counted(Searcher *searcher)
{
	int32_t		nasked = shards_ask_nearer(searcher->mirror,
											  searcher->searches, searcher->n,
											  searcher->asked);

	return nasked == 0 ? begin_bounded(searcher) :
		begin_step(searcher, COUNTED, nasked, NULL);
}

/* End a step, for which it waits, and begin the next one. */
static void
go_on(Searcher *searcher)
{
	const GvPlacedMirror *mirror = searcher->mirror;
	GvStatus	status = end_step(searcher);

	if (status == GV_OK && searcher->step == FOUND)
	{
		status = shards_merge(mirror, searcher->asked, searcher->searches,
								 searcher->n, &searcher->answers);
		if (status == GV_OK)
			status = begin_counted(searcher);
	}
	else if (status == GV_OK && searcher->step == COUNTED)
	{
		shards_add_nearer(mirror, searcher->asked, searcher->searches,
							 searcher->n);
		status = begin_bounded(searcher);
	}
	else if (status == GV_OK)
	{
		shards_take_bounds(mirror, searcher->asked, searcher->searches,
							  searcher->n, &searcher->answers);
		searcher->step = ENDED;
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	searcher->status = status;
}

/* Memory and searchers for n searches of all shards. */
static GvStatus
prepare(Searcher *searcher, int32_t n)
{
	const GvPlacement *placement = &searcher->mirror->placement;
	size_t		bytes = (size_t) placement->ndevices * (size_t) n *
	sizeof(GvSearch);
	GvStatus	status = GV_OK;
	int32_t		p;

	if (bytes > searcher->asked_capacity)
	{
		free(searcher->asked);
		searcher->asked = malloc(bytes);
		searcher->asked_capacity = searcher->asked != NULL ? bytes : 0;
		if (searcher->asked == NULL)
			return GV_NO_MEMORY;
	}
	for (p = 0; p < placement->ndevices && status == GV_OK; p++)
	{
		GvSearcher **own = &searcher->own[placement->devices[p]];

		if (*own != NULL)
			continue;
		status = gv_devices_engine->searcher(placement->devices[p], own);
		if (status != GV_OK)
			*own = NULL;
	}
	return status;
}

/* Returns the member on the searcher's device; -1: there is none. */
static int32_t
own_member(const GvPlacedMirror *mirror, int32_t device)
{
	int32_t		i;

	for (i = 0; i < mirror->placement.ndevices; i++)
		if (mirror->placement.devices[i] == device)
			return i;
	return -1;
}

/* See gv_mirror_begin. */
GvStatus
gv_devices_begin(GvSearcher *opaque, GvMirror *opaque_mirror,
				 GvSearch *searches, int32_t n)
{
	Searcher   *searcher = (Searcher *) opaque;
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque_mirror;
	int32_t		member = own_member(mirror, searcher->device);
	GvStatus	status;
	int32_t		i;

	if (member < 0)
		return GV_INVALID;
	searcher->mirror = mirror;
	searcher->alone = !gv_has_shards(mirror);
	if (searcher->alone)
		return gv_devices_engine->begin(searcher->own[searcher->device],
										mirror->mirrors[member], searches, n);
	for (i = 0; i < n; i++)
		if (searches[i].bounded && mirror->spec.refine_slots == 0)
			return GV_INVALID;
	status = prepare(searcher, n);
	if (status != GV_OK)
		return status;
	searcher->searches = searches;
	searcher->n = n;
	searcher->status = GV_OK;
	if (!searches[0].given)
		status = begin_found(searcher);
	else
	{
		status = shards_merge(mirror, searcher->asked, searches, n,
								 &searcher->answers);
		if (status == GV_OK)
			status = begin_bounded(searcher);
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	return status;
}

/* Returns whether every shard has done what it was asked in this step. */
static bool
step_is_done(const Searcher *searcher)
{
	int32_t		p;

	for (p = 0; p < searcher->mirror->placement.ndevices; p++)
		if (searcher->begun[p] &&
			!gv_devices_engine->done(searcher_of(searcher, p)))
			return false;
	return true;
}

/* See gv_mirror_done. */
bool
gv_devices_done(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher->alone)
		return gv_devices_engine->done(searcher->own[searcher->device]);
	while (searcher->step != ENDED)
	{
		if (!step_is_done(searcher))
			return false;
		go_on(searcher);
	}
	return true;
}

/* See gv_mirror_finish. */
GvStatus
gv_devices_finish(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher->alone)
		return gv_devices_engine->finish(searcher->own[searcher->device]);
	while (searcher->step != ENDED)
		go_on(searcher);
	return searcher->status;
}
