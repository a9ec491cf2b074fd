/*
 * gv_multisearch.c
 *		Searches of mirrors on several devices, step by step (gv_multi.h).
 *
 * A searcher belongs to a device, and has a searcher of the engine for that
 * device.  If a replica is one shard, its device's searcher passes the whole
 * search to the engine's searcher.  A replica of several shards is searched by
 * a searcher of each of its devices.  The first of these has the state of the
 * search; of the others only the engine's searchers are used.  When the caller
 * asks whether the search is done, and all shards have done the current step,
 * that step is ended and the next one begins.  Only gv_devices_finish waits
 * for a shard.
 *
 * All shards choose the same lists in the same order, so a probe has the same
 * number on all of them.  A list is empty on all shards except its owner.  The
 * shards' hits are merged in the order that an engine uses: by (score, row id)
 * and, if both are equal, the earlier probe first.  Merged answers are in the
 * searcher's memory, because the next step overwrites those of the shards.
 *
 * With thousands of searches, the devices wait while the host merges between
 * two steps.  So searches are divided into ranges, which several threads
 * merge.  The merge has no branch that depends on scores, because a processor
 * cannot predict which of two hits is the better one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_multi.h"
#include "engine/mirror/gv_parallel.h"

#define LINE			64		/* bytes of a processor's cache line */
#define RANGE			64		/* searches that a thread takes at a time */
#define LEAST_MERGED	16		/* several threads merge if there are at least
								 * this many ranges */
#define LEAST_SHARED	1024	/* several threads begin a step if it has at
								 * least this many searches */

/* Consecutive searches that one thread merges. */
typedef struct SearchRange
{
	size_t		nhits;			/* hits of these searches */
	size_t		bytes;			/* bytes of the searches' arrays in
								 * Answers.others */
	size_t		first;			/* number of the first of these hits in
								 * Answers.sorted and Answers.owners */
	size_t		at;				/* offset of the searches' arrays in
								 * Answers.others */
} SearchRange;

/* Merged answers of all searches. */
typedef struct Answers
{
	SearchRange *ranges;		/* [nranges], which cover all searches */
	int32_t		nranges;
	int32_t		ranges_capacity;
	char	   *memory;			/* the block of memory that has all arrays
								 * below */
	size_t		bytes;
	GvHit	   *sorted;			/* [nhits] hits of all searches; the hits of
								 * one search are grouped by the owners of
								 * their records */
	int32_t    *counts;			/* [n][nshards] number of each search's hits
								 * whose records are on each shard */
	uint8_t    *owners;			/* [nhits] the owner of each hit's record;
								 * hits are in the order that is returned */
	char	   *others;			/* the arrays that are returned, range by
								 * range */
} Answers;

typedef enum Step
{
	FOUND,
	COUNTED,
	BOUNDED,
	ENDED						/* no step is running */
} Step;

typedef struct Searcher
{
	int32_t		device;
	GvSearcher *own;			/* the engine's searcher */
	bool		alone;			/* `own` does the whole search */
	const GvPlacedMirror *mirror;	/* the mirror that is searched */
	int32_t		first;			/* number of the member that is shard 0 of the
								 * replica that is searched */
	GvSearcher *shards[GV_MAX_DEVICES]; /* by shard: the engine's searchers */
	GvSearch   *searches;		/* [n] the caller's searches */
	int32_t		n;
	Step		step;
	bool		wanted[GV_MAX_DEVICES]; /* by shard: takes part in this step */
	bool		begun[GV_MAX_DEVICES];	/* by shard: true while the shard does
										 * this step */
	GvStatus	statuses[GV_MAX_DEVICES];	/* by shard: status of begin */
	GvSearch   *asked;			/* [nshards][nasked] the searches of this step */
	int32_t		nasked;
	size_t		asked_capacity; /* bytes */
	Answers		answers;
	GvStatus	status;			/* of the whole search, once it has ended */
} Searcher;

/* Work that threads of the host do for all searches, range by range. */
typedef struct Work
{
	const GvPlacedMirror *mirror;
	GvSearch   *asked;			/* [nshards][n] the shards' searches */
	GvSearch   *searches;		/* [n] the caller's searches */
	int32_t		n;
	Answers    *answers;
	int64_t    *nhits;			/* [nshards] number of hits whose bounds each
								 * shard computes */
} Work;

/*
 * Prefetches an array.  The answers of the shards to one search are far apart
 * in memory, because answers to other searches lie between them, so the
 * processor does not prefetch the answers by itself.  This is a macro, because
 * a compiler removes calls of a function that only prefetches.
 */
#define PREFETCH(from, bytes) \
	do \
	{ \
		uintptr_t	line = (uintptr_t) (from); \
		uintptr_t	array_end = line + (bytes); \
\
		for (; line < array_end; line += LINE) \
			__builtin_prefetch((const void *) line); \
	} while (0)

/* Returns whether hit a precedes hit b in the order of hits. */
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

/* Returns a if `first` is true, otherwise b, without a jump. */
static inline const GvHit *
choose(bool first, const GvHit *a, const GvHit *b)
{
	uintptr_t	differ = (uintptr_t) a ^ (uintptr_t) b;

	return (const GvHit *) ((uintptr_t) b ^ (differ & -(uintptr_t) first));
}

/*
 * Merges two sorted arrays of hits.  Sets `merged` to the first `most` hits,
 * or to all hits if there are fewer, and returns how many hits were merged.
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
 * Sets counts [nshards] to how many of each shard's hits may be among the
 * first nhits of all.  Let `share` be nhits / nshards, rounded up.  If every
 * shard has at least `share` hits, there are nhits hits in the shards' first
 * `share` places, so a hit that is worse than the worst hit in these places is
 * not among the first nhits.
 */
static void
count_needed(const GvSearch *asked, int32_t n, int32_t nshards, int32_t nhits,
			 int32_t *counts)
{
	int32_t		share = (nhits + nshards - 1) / nshards;
	float		worst = 0;
	int32_t		p;

	/* for two shards there is only one merge, which ends at nhits anyway */
	bool		cut = share > 0 && nshards > 2;

	for (p = 0; p < nshards; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) n];

		counts[p] = answer->nhits;
		cut = cut && answer->nhits >= share;
		if (cut && (p == 0 || answer->hits[share - 1].score > worst))
			worst = answer->hits[share - 1].score;
	}
	for (p = 0; cut && p < nshards; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) n];
		int32_t		needed = share;

		while (needed < answer->nhits && answer->hits[needed].score <= worst)
			needed++;
		counts[p] = needed;
	}
}

/*
 * Merges the hits that all shards found for one search.  asked[p * n] is the
 * answer of shard p.  The first nhits merged hits go to hits [nhits].
 * scratch [nhits] is overwritten.
 */
static void
shards_merge_hits(const GvSearch *asked, int32_t n, int32_t nshards,
				  GvHit *hits, int32_t nhits, GvHit *scratch)
{
	int32_t		counts[GV_MAX_DEVICES];
	const GvHit *merged = asked->hits;
	int32_t		nmerged;
	int32_t		p;

	count_needed(asked, n, nshards, nhits, counts);
	nmerged = counts[0];
	for (p = 1; p < nshards; p++)
	{
		/* alternate, so that the last merge goes to `hits` */
		GvHit	   *to = (nshards - p) % 2 > 0 ? hits : scratch;

		nmerged = merge_two(merged, nmerged,
							asked[(size_t) p * (size_t) n].hits, counts[p],
							to, nhits);
		merged = to;
	}
}

/*
 * Copies the hits of one search to sorted [nhits], grouped by the owners of
 * their records; hits of the same owner keep their order.  Sets counts
 * [nshards] to the number of hits that each shard owns, and owners [nhits] to
 * the owner of each hit.
 */
static void
shards_sort_hits(const GvPlacedMirror *mirror, const GvHit *hits,
				 int32_t nhits, GvHit *sorted, uint8_t *owners,
				 int32_t *counts)
{
	GvHit	   *next[GV_MAX_DEVICES];
	int32_t		p;
	int32_t		i;

	memset(counts, 0, (size_t) mirror->placement.nshards * sizeof(*counts));
	for (i = 0; i < nhits; i++)
	{
		owners[i] = (uint8_t) gv_record_owner(mirror, hits[i].rowid);
		counts[owners[i]]++;
	}
	for (p = 0; p < mirror->placement.nshards; p++)
	{
		next[p] = sorted;
		sorted += counts[p];
	}
	for (i = 0; i < nhits; i++)
		*next[owners[i]]++ = hits[i];
}

/*
 * Returns the memory at *next and advances *next by `bytes`.  Nothing that is
 * taken from this memory needs an alignment of more than 4 bytes.
 */
static void *
take(char **next, size_t bytes)
{
	void	   *place = *next;

	*next += bytes;
	return place;
}

/* Processes all ranges, by several threads if there are many ranges. */
static void
do_ranges(Work *work, void (*range) (void *, int32_t))
{
	int32_t		nranges = work->answers->nranges;

	gv_parallel_for(nranges < LEAST_MERGED ? 0 : gv_parallel_helpers(nranges),
					range, work, nranges);
}

/* Returns the number of the first search after a range. */
static int32_t
range_end(const Work *work, int32_t range)
{
	return (range + 1) * RANGE < work->n ? (range + 1) * RANGE : work->n;
}

/*
 * Counts the hits that a range's searches have after the merge, and the bytes
 * of their answers.
 */
static void
count_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	SearchRange *range = &work->answers->ranges[r];
	int32_t		end = range_end(work, r);
	int32_t		i;
	int32_t		p;

	memset(range, 0, sizeof(*range));
	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &work->searches[i];

		if (!search->given)
		{
			int64_t		nhits = 0;

			for (p = 0; p < work->mirror->placement.nshards; p++)
				nhits += work->asked[(size_t) p * (size_t) work->n +
									 (size_t) i].nhits;
			search->nhits = nhits < search->capacity ? (int32_t) nhits :
				search->capacity;
			search->nprobed = work->asked[i].nprobed;
			range->bytes += (size_t) search->nprobed *
				(sizeof(GvProbe) + sizeof(int32_t)) +
				(size_t) search->nhits * sizeof(GvHit);
		}
		range->bytes += (size_t) search->nhits * sizeof(GvBound);
		range->nhits += (size_t) search->nhits;
	}
}

/*
 * Makes the i-th search's answer, at *next, from the answers of the shards:
 * merges their hits, and adds up their counts of postings in the search's
 * lists and in the sample.  scratch [search's nhits] is overwritten.
 */
static void
merge_search(Work *work, int32_t i, char **next, GvHit *scratch)
{
	GvSearch   *search = &work->searches[i];
	const GvSearch *asked = &work->asked[i];
	int32_t		nshards = work->mirror->placement.nshards;
	size_t		nprobed = (size_t) search->nprobed;
	int32_t		p;
	int32_t		j;

	search->probed = take(next, nprobed * sizeof(GvProbe));
	search->hits = take(next, (size_t) search->nhits * sizeof(GvHit));
	search->matches = search->condition != NULL ?
		take(next, nprobed * sizeof(int32_t)) : NULL;
	if (nprobed > 0)
		memcpy(search->probed, asked->probed, nprobed * sizeof(GvProbe));
	shards_merge_hits(asked, work->n, nshards, search->hits, search->nhits,
					  scratch);
	search->postings = 0;
	search->nearer = 0;
	search->nearer_squares = 0;
	if (search->matches != NULL)
		memset(search->matches, 0, nprobed * sizeof(int32_t));
	for (p = 0; p < nshards; p++)
	{
		const GvSearch *answer = &asked[(size_t) p * (size_t) work->n];

		search->postings += answer->postings;
		search->nearer += answer->nearer;
		search->nearer_squares += answer->nearer_squares;
		for (j = 0; search->matches != NULL && j < search->nprobed; j++)
			search->matches[j] += answer->matches[j];
	}
}

/*
 * Makes the answers of a range's searches.  If the caller has given a search's
 * hits, the search only gets memory for the bounds.  If a search requests
 * bounds, its hits are grouped by the owners of their records.
 */
static void
answer_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	Answers    *answers = work->answers;
	int32_t		nshards = work->mirror->placement.nshards;
	int32_t		end = range_end(work, r);
	size_t		first = answers->ranges[r].first;
	char	   *next = answers->others + answers->ranges[r].at;
	int32_t		i;
	int32_t		p;

	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &work->searches[i];

		/*
		 * prefetch the next search's hits: nhits / nshards hits of each
		 * shard, and some more, because some shards have more hits than
		 * others
		 */
		if (!search->given && i + 1 < end)
		{
			int32_t		nhits = search[1].nhits;

			for (p = 0; p < nshards; p++)
				PREFETCH(work->asked[(size_t) p * (size_t) work->n +
									 (size_t) (i + 1)].hits,
						 (size_t) (nhits / nshards + nhits / 8) *
						 sizeof(GvHit));
		}
		/* the merge may use `sorted` as scratch, because it is filled later */
		if (!search->given)
			merge_search(work, i, &next, answers->sorted + first);
		search->bounds = search->bounded ?
			take(&next, (size_t) search->nhits * sizeof(GvBound)) : NULL;
		shards_sort_hits(work->mirror, search->hits,
						 search->bounded ? search->nhits : 0,
						 answers->sorted + first, answers->owners + first,
						 answers->counts + (size_t) i * (size_t) nshards);
		first += (size_t) search->nhits;
	}
}

/*
 * Merges the shards' answers to all searches, and groups the merged hits by
 * owner.  If the caller has given the hits, only groups these hits and
 * provides memory for their bounds.
 *
 * The hits and bytes of all ranges are counted first.  So each range gets its
 * own part of the memory, and several threads can make the answers.
 */
static GvStatus
shards_merge(Searcher *searcher)
{
	Answers    *answers = &searcher->answers;
	int32_t		n = searcher->n;
	Work		work = {searcher->mirror, searcher->asked, searcher->searches,
	n, answers, NULL};
	int32_t		nranges = (n + RANGE - 1) / RANGE;
	size_t		ncounts = (size_t) n *
	(size_t) searcher->mirror->placement.nshards;
	size_t		nhits = 0;
	size_t		other = 0;
	size_t		bytes;
	int32_t		r;

	if (nranges > answers->ranges_capacity)
	{
		SearchRange *ranges = realloc(answers->ranges,
									  (size_t) nranges * sizeof(*ranges));

		if (ranges == NULL)
			return GV_NO_MEMORY;
		answers->ranges = ranges;
		answers->ranges_capacity = nranges;
	}
	answers->nranges = nranges;
	do_ranges(&work, count_range);
	for (r = 0; r < nranges; r++)
	{
		SearchRange *range = &answers->ranges[r];

		range->first = nhits;
		range->at = other;
		nhits += range->nhits;
		other += range->bytes;
	}
	/* `bytes` is above 0, so malloc returns NULL only if there is no memory */
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
	do_ranges(&work, answer_range);
	return GV_OK;
}

/*
 * Returns whether a search still needs the counts of the sample, which depend
 * on the merged hit number `rank`.
 */
static bool
asks_nearer(const GvSearch *search)
{
	return search->rank > 0 && !search->limited &&
		search->nhits >= search->rank;
}

/*
 * Requests the bounds of the hits of a range's searches.  Each hit goes to the
 * shard that has its record.  Adds the number of hits for each shard to
 * work->nhits.
 */
static void
ask_range(void *arg, int32_t r)
{
	Work	   *work = arg;
	const Answers *answers = work->answers;
	GvHit	   *hits = answers->sorted + answers->ranges[r].first;
	int64_t		nhits[GV_MAX_DEVICES] = {0};
	int32_t		nshards = work->mirror->placement.nshards;
	int32_t		end = range_end(work, r);
	int32_t		p;
	int32_t		i;

	for (i = r * RANGE; i < end; i++)
	{
		const int32_t *counts = answers->counts + (size_t) i *
		(size_t) nshards;
		const GvSearch *search = &work->searches[i];
		GvHit	   *next = hits;

		for (p = 0; p < nshards; p++)
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
	for (p = 0; p < nshards; p++)
		(void) __atomic_fetch_add(&work->nhits[p], nhits[p], __ATOMIC_RELAXED);
}

/*
 * Copies the bounds of a range's hits from the shards' answers into the order
 * of the hits.
 */
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

		for (p = 0; p < work->mirror->placement.nshards; p++)
		{
			const GvSearch *answer = &work->asked[(size_t) p *
												  (size_t) work->n + (size_t) s];

			next[p] = answer->bounds;
			if (s + 1 < end)
				PREFETCH(answer[1].bounds,
						 (size_t) answer[1].nhits * sizeof(GvBound));
		}
		for (i = 0; search->bounded && i < search->nhits; i++)
			search->bounds[i] = *next[owners[i]]++;
		owners += search->nhits;
	}
}

GvStatus
gv_devices_searcher(int32_t device, GvSearcher **searcher)
{
	Searcher   *made = calloc(1, sizeof(Searcher));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->step = ENDED;
	status = gv_devices_engine->searcher(device, &made->own);
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

	gv_devices_engine->searcher_drop(searcher->own);
	free(searcher->asked);
	free(searcher->answers.ranges);
	free(searcher->answers.memory);
	free(searcher);
}

#ifdef GV_TEST_BUILD
GvSearcher *
gv_devices_own(GvSearcher *searcher)
{
	return gv_ndevices() > 1 ? ((Searcher *) searcher)->own : searcher;
}
#endif

/*
 * If one shard's device is broken, end_step must not report the milder failure
 * of another shard instead, because the broken device would be searched again.
 */
_Static_assert(GV_FAILED > GV_REJECTED && GV_REJECTED > GV_NO_MEMORY,
			   "the greatest status is reported");

/*
 * Waits for the shards on which this step has begun, and returns the greatest
 * of their statuses.
 */
static GvStatus
end_step(Searcher *searcher)
{
	GvStatus	status = GV_OK;
	int32_t		p;

	for (p = 0; p < searcher->mirror->placement.nshards; p++)
	{
		GvStatus	one;

		if (!searcher->begun[p])
			continue;
		searcher->begun[p] = false;
		one = gv_devices_engine->finish(searcher->shards[p]);
		if (one > status)
			status = one;
	}
	return status;
}

/* Begins this step on a shard, if the shard takes part in it. */
static void
begin_shard(void *arg, int32_t p)
{
	Searcher   *searcher = arg;

	if (!searcher->wanted[p])
		return;
	searcher->statuses[p] = gv_devices_engine->begin
		(searcher->shards[p], searcher->mirror->mirrors[searcher->first + p],
		 &searcher->asked[(size_t) p * (size_t) searcher->nasked],
		 searcher->nasked);
	searcher->begun[p] = searcher->statuses[p] == GV_OK;
}

/*
 * Begins a step on the shards that take part in it.  If nhits is NULL, all
 * shards take part; otherwise a shard takes part if its nhits is above 0.
 * With thousands of searches several threads begin the step, because it takes
 * long to copy all queries to each device.
 */
static GvStatus
begin_step(Searcher *searcher, Step step, int32_t nasked,
		   const int64_t *nhits)
{
	int32_t		nshards = searcher->mirror->placement.nshards;
	GvStatus	status = GV_OK;
	int32_t		p;

	searcher->step = step;
	searcher->nasked = nasked;
	for (p = 0; p < nshards; p++)
	{
		searcher->wanted[p] = nhits == NULL || nhits[p] > 0;
		searcher->statuses[p] = GV_OK;
	}
	gv_parallel_for(nasked < LEAST_SHARED ? 0 :
					gv_parallel_helpers(nshards - 1),
					begin_shard, searcher, nshards);
	for (p = 0; p < nshards; p++)
		if (searcher->statuses[p] > status)
			status = searcher->statuses[p];
	if (status != GV_OK)
	{
		GvStatus	ended = end_step(searcher);

		/* one of the other shards may have reported a greater status */
		if (ended > status)
			status = ended;
	}
	return status;
}

/*
 * Begins the last step, which computes the bounds of all hits, if any search
 * requests bounds.
 */
static GvStatus
begin_bounded(Searcher *searcher)
{
	int64_t		nhits[GV_MAX_DEVICES] = {0};
	Work		work = {searcher->mirror, searcher->asked, searcher->searches,
	searcher->n, &searcher->answers, nhits};
	int32_t		i = 0;

	while (i < searcher->n && !searcher->searches[i].bounded)
		i++;
	if (i == searcher->n)
	{
		searcher->step = ENDED;
		return GV_OK;
	}
	do_ranges(&work, ask_range);
	return begin_step(searcher, BOUNDED, searcher->n, nhits);
}

/*
 * Begins the second step, if any search needs the counts of the sample.
 * Otherwise begins the last step.
 */
static GvStatus
begin_counted(Searcher *searcher)
{
	const GvSearch *searches = searcher->searches;
	GvSearch   *asked = searcher->asked;
	int32_t		nasked = 0;
	int32_t		p;
	int32_t		i;

	/* each shard compares its part of the sample with the score `limit` */
	for (i = 0; i < searcher->n; i++)
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
	if (nasked == 0)
		return begin_bounded(searcher);
	for (p = 1; p < searcher->mirror->placement.nshards; p++)
		memcpy(&asked[(size_t) p * (size_t) nasked], asked,
			   (size_t) nasked * sizeof(GvSearch));
	return begin_step(searcher, COUNTED, nasked, NULL);
}

/*
 * Adds up the shards' counts of the sample, and stores the sums in the
 * searches that need them.
 */
static void
end_counted(Searcher *searcher)
{
	int32_t		at = 0;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < searcher->n; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		if (!asks_nearer(search))
			continue;
		for (p = 0; p < searcher->mirror->placement.nshards; p++)
		{
			const GvSearch *answer = &searcher->asked[p * searcher->nasked +
													  at];

			search->nearer += answer->nearer;
			search->nearer_squares += answer->nearer_squares;
		}
		at++;
	}
}

/*
 * Ends this step, which may require waiting for shards, and begins the next
 * one.  If either fails, or if no step is left, the search ends.
 */
static void
go_on(Searcher *searcher)
{
	GvStatus	status = end_step(searcher);

	if (status == GV_OK && searcher->step == FOUND)
	{
		status = shards_merge(searcher);
		if (status == GV_OK)
			status = begin_counted(searcher);
	}
	else if (status == GV_OK && searcher->step == COUNTED)
	{
		end_counted(searcher);
		status = begin_bounded(searcher);
	}
	else if (status == GV_OK)
	{
		Work		work = {searcher->mirror, searcher->asked,
		searcher->searches, searcher->n, &searcher->answers, NULL};

		do_ranges(&work, take_range);
		searcher->step = ENDED;
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	searcher->status = status;
}

/*
 * Returns the number of the first member of the replica whose shards are on
 * the devices of these searchers, or -1 if there is no such replica.
 */
static int32_t
find_replica(const GvPlacedMirror *mirror, GvSearcher *const *searchers,
			 int32_t nsearchers)
{
	int32_t		nshards = mirror->placement.nshards;
	int32_t		first;
	int32_t		i;

	if (nsearchers != nshards)
		return -1;
	for (first = 0; first < gv_nmembers(&mirror->placement); first += nshards)
	{
		for (i = 0; i < nshards; i++)
			if (searchers[i] == NULL ||
				((const Searcher *) searchers[i])->device !=
				mirror->placement.devices[first + i])
				break;
		if (i == nshards)
			return first;
	}
	return -1;
}

GvStatus
gv_devices_begin(GvSearcher *const *searchers, int32_t nsearchers,
				 GvMirror *opaque_mirror, GvSearch *searches, int32_t n)
{
	Searcher   *searcher = (Searcher *) searchers[0];
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque_mirror;
	size_t		asked_bytes = (size_t) nsearchers * (size_t) n *
	sizeof(GvSearch);
	GvStatus	status;
	int32_t		p;
	int32_t		i;

	searcher->first = find_replica(mirror, searchers, nsearchers);
	if (searcher->first < 0)
		return GV_INVALID;
	searcher->mirror = mirror;
	searcher->alone = nsearchers == 1;
	if (searcher->alone)
		return gv_devices_engine->begin(searcher->own,
										mirror->mirrors[searcher->first],
										searches, n);
	for (p = 0; p < nsearchers; p++)
		searcher->shards[p] = ((Searcher *) searchers[p])->own;
	for (i = 0; i < n; i++)
		if (searches[i].bounded && mirror->spec.refine_slots == 0)
			return GV_INVALID;
	if (asked_bytes > searcher->asked_capacity)
	{
		free(searcher->asked);
		searcher->asked = malloc(asked_bytes);
		searcher->asked_capacity = searcher->asked != NULL ? asked_bytes : 0;
		if (searcher->asked == NULL)
			return GV_NO_MEMORY;
	}
	searcher->searches = searches;
	searcher->n = n;
	searcher->status = GV_OK;
	if (searches[0].given)
	{
		status = shards_merge(searcher);
		if (status == GV_OK)
			status = begin_bounded(searcher);
	}
	else
	{
		/*
		 * request neither bounds nor the sample yet, because both need merged
		 * hits, except that a sample with a given limit does not
		 */
		for (i = 0; i < n; i++)
		{
			GvSearch   *one = &searcher->asked[i];

			*one = searches[i];
			one->bounded = false;
			if (!one->limited)
				one->rank = 0;
		}
		for (p = 1; p < nsearchers; p++)
			memcpy(&searcher->asked[(size_t) p * (size_t) n], searcher->asked,
				   (size_t) n * sizeof(GvSearch));
		status = begin_step(searcher, FOUND, n, NULL);
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	return status;
}

bool
gv_devices_done(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;
	int32_t		p;

	if (searcher->alone)
		return gv_devices_engine->done(searcher->own);
	while (searcher->step != ENDED)
	{
		for (p = 0; p < searcher->mirror->placement.nshards; p++)
			if (searcher->begun[p] &&
				!gv_devices_engine->done(searcher->shards[p]))
				return false;
		go_on(searcher);
	}
	return true;
}

GvStatus
gv_devices_finish(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher->alone)
		return gv_devices_engine->finish(searcher->own);
	while (searcher->step != ENDED)
		go_on(searcher);
	return searcher->status;
}
