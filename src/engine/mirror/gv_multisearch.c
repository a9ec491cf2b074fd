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
 * that step is ended and the next one begins.  Only gv_mirror_finish waits for
 * a shard.
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

#include "engine/gv_test.h"
#include "engine/mirror/gv_multi.h"
#include "engine/mirror/gv_parallel.h"

#define LINE			64		/* bytes of a processor's cache line */
#define RANGE			64		/* searches that a thread takes at a time */
#define LEAST_MERGED	16		/* several threads merge if there are at least
								 * this many ranges */
#define LEAST_SHARED	1024	/* several threads begin a step if it has at
								 * least this many searches */

/*
 * Consecutive searches that one thread merges.  Both numbers are first those
 * of the range, and then those of all ranges before it.
 */
typedef struct SearchRange
{
	size_t		nhits;			/* hits in `sorted` and `owners` */
	size_t		bytes;			/* bytes of the searches' arrays in `others` */
} SearchRange;

typedef enum Step
{
	CHOSEN,
	FOUND,
	COUNTED,
	BOUNDED,
	ENDED						/* no step is running */
} Step;

typedef struct Searcher
{
	int32_t		device;
	GvSearcher *own;			/* the engine's searcher */

	/* the search, which `own` alone does if nshards is 1 */
	const GvPlacedMirror *mirror;
	int32_t		nshards;		/* of the mirror */
	int32_t		first;			/* number of the member that is shard 0 of the
								 * replica that is searched */
	GvSearcher *shards[GV_MAX_DEVICES]; /* by shard: the engine's searchers */
	GvSearch   *searches;		/* [n] the caller's searches */
	int32_t		n;
	GvStatus	status;			/* of the whole search, once it has ended */

	/* the step */
	Step		step;
	bool		begun[GV_MAX_DEVICES];	/* by shard: true while the shard does
										 * this step */
	GvStatus	statuses[GV_MAX_DEVICES];	/* by shard: status of begin */
	int64_t		nhits[GV_MAX_DEVICES];	/* by shard: number of hits whose
										 * bounds or distances the shard
										 * computes */
	GvSearch   *asked;			/* [nshards][nasked] the shards' searches */
	int32_t		nasked;
	size_t		asked_capacity; /* bytes of `asked` and `ranges` together */

	/* the lists that the shards have chosen for their shares of the searches */
	GvProbe    *probes;			/* [n][nprobes] */
	int32_t		nprobes;
	size_t		probes_bytes;

	/* the merged answers of all searches */
	SearchRange *ranges;		/* [number of ranges], behind the memory of
								 * `asked` */
	char	   *memory;			/* the block of memory that has all arrays
								 * below */
	size_t		memory_bytes;
	GvRowDistance *distances;	/* [nhits], if searches request them */
	GvHit	   *sorted;			/* [nhits] hits of all searches; the hits of
								 * one search are grouped by the owners of
								 * their records or rows */
	int32_t    *counts;			/* [n][nshards] number of each search's hits
								 * whose records or rows are on each shard */
	uint8_t    *owners;			/* [nhits] the owner of each hit's record or
								 * row; hits are in the order that is returned */
	char	   *others;			/* the arrays that are returned, range by
								 * range */
} Searcher;

/* Returns whether the caller passes a search's hits. */
static inline bool
has_hits(const GvSearch *search)
{
	return search->steps == GV_STEPS_LAST;
}

/*
 * Returns whether the searches request distances, which is the same for all of
 * them.
 */
static inline bool
wants_distances(const Searcher *searcher)
{
	return searcher->searches[0].asked != NULL;
}

/* Returns whether a search requests the last step. */
static inline bool
wants_last(const GvSearch *search)
{
	return search->bounded || search->asked != NULL;
}

/* Returns how many lists are in a search's answer. */
static inline size_t
nlisted(const GvSearch *search)
{
	return search->sums ? 0 : (size_t) search->nprobed;
}

/* Returns what shard p is asked for search i; its answer is there, too. */
static inline GvSearch *
asked_of(const Searcher *searcher, int32_t p, int32_t i)
{
	return &searcher->asked[(size_t) p * (size_t) searcher->nasked +
							(size_t) i];
}

/*
 * Returns memory of at least `bytes` bytes in place of `memory`, which has
 * *capacity bytes and whose contents are lost, or NULL.  It gets a quarter more,
 * so that it grows rarely.
 */
static void *
grow(void *memory, size_t *capacity, size_t bytes)
{
	if (bytes <= *capacity)
		return memory;
	free(memory);
	bytes += bytes / 4;
	memory = malloc(bytes);
	*capacity = memory != NULL ? bytes : 0;
	return memory;
}

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
count_needed(const Searcher *searcher, int32_t i, int32_t *counts)
{
	int32_t		nshards = searcher->nshards;
	int32_t		nhits = searcher->searches[i].nhits;
	int32_t		share = (nhits + nshards - 1) / nshards;
	float		worst = 0;
	int32_t		p;

	/* for two shards there is only one merge, which ends at nhits anyway */
	bool		cut = share > 0 && nshards > 2;

	for (p = 0; p < nshards; p++)
	{
		const GvSearch *answer = asked_of(searcher, p, i);

		counts[p] = answer->nhits;
		cut = cut && answer->nhits >= share;
		if (cut && (p == 0 || answer->hits[share - 1].score > worst))
			worst = answer->hits[share - 1].score;
	}
	for (p = 0; cut && p < nshards; p++)
	{
		const GvSearch *answer = asked_of(searcher, p, i);
		int32_t		needed = share;

		while (needed < answer->nhits && answer->hits[needed].score <= worst)
			needed++;
		counts[p] = needed;
	}
}

/*
 * Merges the hits that all shards found for search i into its hits [nhits].
 * scratch [nhits] is overwritten.
 */
static void
merge_hits(const Searcher *searcher, int32_t i, GvHit *scratch)
{
	int32_t		counts[GV_MAX_DEVICES];
	const GvSearch *search = &searcher->searches[i];
	const GvHit *merged = asked_of(searcher, 0, i)->hits;
	int32_t		nmerged;
	int32_t		p;

	count_needed(searcher, i, counts);
	nmerged = counts[0];
	for (p = 1; p < searcher->nshards; p++)
	{
		/* alternate, so that the last merge goes to the search's hits */
		GvHit	   *to = (searcher->nshards - p) % 2 > 0 ? search->hits :
		scratch;

		nmerged = merge_two(merged, nmerged, asked_of(searcher, p, i)->hits,
							counts[p], to, search->nhits);
		merged = to;
	}
}

/*
 * Copies hits [nhits] to sorted [nhits], grouped by the owners of their
 * records or rows; hits of the same owner keep their order.  Sets counts
 * [nshards] to the number of hits that each shard owns, and owners [nhits] to
 * the owner of each hit.
 */
static void
sort_hits(const GvPlacedMirror *mirror, const GvHit *hits, int32_t nhits,
		  GvHit *sorted, uint8_t *owners, int32_t *counts)
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

static int32_t
count_ranges(const Searcher *searcher)
{
	return (searcher->n + RANGE - 1) / RANGE;
}

/* Processes all ranges, by several threads if there are many ranges. */
static void
do_ranges(Searcher *searcher, void (*range) (void *, int32_t))
{
	int32_t		nranges = count_ranges(searcher);

	gv_parallel_for(nranges < LEAST_MERGED ? 0 : gv_parallel_helpers(nranges),
					range, searcher, nranges);
}

/* Returns the number of the first search after a range. */
static int32_t
range_end(const Searcher *searcher, int32_t range)
{
	return (range + 1) * RANGE < searcher->n ? (range + 1) * RANGE :
		searcher->n;
}

/*
 * Counts the hits that a range's searches have after the merge, and the bytes
 * of their answers.
 */
static void
count_range(void *arg, int32_t r)
{
	Searcher   *searcher = arg;
	SearchRange *range = &searcher->ranges[r];
	int32_t		end = range_end(searcher, r);
	int32_t		i;
	int32_t		p;

	memset(range, 0, sizeof(*range));
	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		if (!has_hits(search))
		{
			int64_t		nhits = 0;

			for (p = 0; p < searcher->nshards; p++)
				nhits += asked_of(searcher, p, i)->nhits;
			search->nhits = nhits < search->capacity ? (int32_t) nhits :
				search->capacity;
			search->nprobed = searcher->asked[i].nprobed;
			range->bytes += nlisted(search) *
				(sizeof(GvProbe) + sizeof(int32_t)) +
				(size_t) search->nhits * sizeof(GvHit);
		}
		if (search->bounded)
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
merge_search(Searcher *searcher, int32_t i, char **next, GvHit *scratch)
{
	GvSearch   *search = &searcher->searches[i];
	size_t		n = nlisted(search);
	int32_t		p;
	size_t		j;

	search->probed = search->sums ? NULL : take(next, n * sizeof(GvProbe));
	search->hits = take(next, (size_t) search->nhits * sizeof(GvHit));
	search->matches = search->condition != NULL && !search->sums ?
		take(next, n * sizeof(int32_t)) : NULL;
	if (n > 0)
		memcpy(search->probed, searcher->asked[i].probed,
			   n * sizeof(GvProbe));
	merge_hits(searcher, i, scratch);
	search->postings = 0;
	search->matched = 0;
	search->nearer = 0;
	search->nearer_squares = 0;
	if (search->matches != NULL)
		memset(search->matches, 0, n * sizeof(int32_t));
	for (p = 0; p < searcher->nshards; p++)
	{
		const GvSearch *answer = asked_of(searcher, p, i);

		search->postings += answer->postings;
		search->matched += answer->matched;
		search->nearer += answer->nearer;
		search->nearer_squares += answer->nearer_squares;
		for (j = 0; search->matches != NULL && j < n; j++)
			search->matches[j] += answer->matches[j];
	}
}

/*
 * Makes the answers of a range's searches.  If the caller has given a search's
 * hits, the search only gets memory for the bounds or distances.  If a search
 * requests these, its hits are grouped by the owners of their records or rows.
 */
static void
answer_range(void *arg, int32_t r)
{
	Searcher   *searcher = arg;
	int32_t		nshards = searcher->nshards;
	int32_t		end = range_end(searcher, r);
	size_t		first = searcher->ranges[r].nhits;
	char	   *next = searcher->others + searcher->ranges[r].bytes;
	int32_t		i;
	int32_t		p;

	for (i = r * RANGE; i < end; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		/*
		 * prefetch the next search's hits: nhits / nshards hits of each
		 * shard, and some more, because some shards have more hits than
		 * others
		 */
		if (!has_hits(search) && i + 1 < end)
		{
			int32_t		nhits = search[1].nhits;

			for (p = 0; p < nshards; p++)
				PREFETCH(asked_of(searcher, p, i + 1)->hits,
						 (size_t) (nhits / nshards + nhits / 8) *
						 sizeof(GvHit));
		}
		/* the merge may use `sorted` as scratch, because it is filled later */
		if (!has_hits(search))
			merge_search(searcher, i, &next, searcher->sorted + first);
		search->bounds = search->bounded ?
			take(&next, (size_t) search->nhits * sizeof(GvBound)) : NULL;
		search->distances = wants_distances(searcher) ?
			searcher->distances + first : NULL;
		sort_hits(searcher->mirror, search->hits,
				  wants_last(search) ? search->nhits : 0,
				  searcher->sorted + first, searcher->owners + first,
				  searcher->counts + (size_t) i * (size_t) nshards);
		first += (size_t) search->nhits;
	}
}

/*
 * Merges the shards' answers to all searches, and groups the merged hits by
 * owner.  If the caller has given the hits, only groups these hits and
 * provides memory for their bounds or distances.
 *
 * The hits and bytes of all ranges are counted first.  So each range gets its
 * own part of the memory, and several threads can make the answers.
 */
static GvStatus
merge_answers(Searcher *searcher)
{
	int32_t		nranges = count_ranges(searcher);
	size_t		ncounts = (size_t) searcher->n * (size_t) searcher->nshards;
	SearchRange all = {0};
	size_t		ndistances;
	size_t		bytes;
	int32_t		r;

	do_ranges(searcher, count_range);
	for (r = 0; r < nranges; r++)
	{
		SearchRange one = searcher->ranges[r];

		searcher->ranges[r] = all;
		all.nhits += one.nhits;
		all.bytes += one.bytes;
	}
	/* `bytes` is above 0, so malloc returns NULL only if there is no memory */
	ndistances = wants_distances(searcher) ? all.nhits : 0;
	bytes = ndistances * sizeof(GvRowDistance) +
		ncounts * sizeof(int32_t) + all.bytes +
		all.nhits * (sizeof(GvHit) + sizeof(uint8_t));
	searcher->memory = grow(searcher->memory, &searcher->memory_bytes, bytes);
	if (searcher->memory == NULL)
		return GV_NO_MEMORY;
	searcher->distances = (GvRowDistance *) searcher->memory;
	searcher->sorted = (GvHit *) (searcher->distances + ndistances);
	searcher->counts = (int32_t *) (searcher->sorted + all.nhits);
	searcher->others = (char *) (searcher->counts + ncounts);
	searcher->owners = (uint8_t *) searcher->others + all.bytes;
	do_ranges(searcher, answer_range);
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
 * Requests the bounds or distances of the hits of a range's searches.  Each
 * hit goes to the shard that has its record or row.  Adds the number of hits
 * for each shard to searcher->nhits.
 */
static void
ask_range(void *arg, int32_t r)
{
	Searcher   *searcher = arg;
	GvHit	   *hits = searcher->sorted + searcher->ranges[r].nhits;
	int64_t		nhits[GV_MAX_DEVICES] = {0};
	int32_t		nshards = searcher->nshards;
	int32_t		end = range_end(searcher, r);
	int32_t		p;
	int32_t		i;

	for (i = r * RANGE; i < end; i++)
	{
		const int32_t *counts = searcher->counts + (size_t) i *
		(size_t) nshards;
		const GvSearch *search = &searcher->searches[i];
		GvHit	   *next = hits;

		for (p = 0; p < nshards; p++)
		{
			*asked_of(searcher, p, i) = (GvSearch)
			{
				.query = search->query, .bounded = search->asked == NULL,
					.asked = search->asked, .steps = GV_STEPS_LAST,
					.nhits = counts[p], .hits = next
			};
			next += counts[p];
			nhits[p] += counts[p];
		}
		hits += search->nhits;
	}
	for (p = 0; p < nshards; p++)
		(void) __atomic_fetch_add(&searcher->nhits[p], nhits[p],
								  __ATOMIC_RELAXED);
}

/*
 * Copies the bounds or distances of a range's hits from the shards' answers
 * into the order of the hits.
 */
static void
take_range(void *arg, int32_t r)
{
	Searcher   *searcher = arg;
	const uint8_t *owners = searcher->owners + searcher->ranges[r].nhits;
	int32_t		end = range_end(searcher, r);
	int32_t		s;
	int32_t		p;
	int32_t		i;

	for (s = r * RANGE; s < end; s++)
	{
		const GvBound *bounds[GV_MAX_DEVICES];
		const GvRowDistance *distances[GV_MAX_DEVICES];
		GvSearch   *search = &searcher->searches[s];

		for (p = 0; p < searcher->nshards; p++)
		{
			const GvSearch *answer = asked_of(searcher, p, s);

			bounds[p] = answer->bounds;
			distances[p] = answer->distances;
			if (s + 1 < end && !wants_distances(searcher))
				PREFETCH(answer[1].bounds,
						 (size_t) answer[1].nhits * sizeof(GvBound));
			else if (s + 1 < end)
				PREFETCH(answer[1].distances,
						 (size_t) answer[1].nhits * sizeof(GvRowDistance));
		}
		for (i = 0; search->bounded && i < search->nhits; i++)
			search->bounds[i] = *bounds[owners[i]]++;
		for (i = 0; search->asked != NULL && i < search->nhits; i++)
			search->distances[i] = *distances[owners[i]]++;
		owners += search->nhits;
	}
}

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

	for (p = 0; p < searcher->nshards; p++)
	{
		GvStatus	one;

		if (!searcher->begun[p])
			continue;
		searcher->begun[p] = false;
		one = gv_mirrors_engine->finish(searcher->shards[p]);
		if (one > status)
			status = one;
	}
	return status;
}

/*
 * Begins this step on a shard.  A shard that has none of the hits does not
 * take part in the last step.
 */
static void
begin_shard(void *arg, int32_t p)
{
	Searcher   *searcher = arg;
	int32_t		n = searcher->nasked;

	searcher->statuses[p] = GV_OK;
	if (searcher->step == BOUNDED && searcher->nhits[p] == 0)
		return;
	if (searcher->step == CHOSEN && (p + 1) * n > searcher->n)
		n = searcher->n - p * n;
	if (n <= 0)
		return;
	searcher->statuses[p] = gv_mirrors_engine->begin
		(searcher->shards[p], searcher->mirror->mirrors[searcher->first + p],
		 asked_of(searcher, p, 0), n);
	searcher->begun[p] = searcher->statuses[p] == GV_OK;
}

/*
 * Begins a step on the shards that take part in it.  With thousands of
 * searches several threads begin the step, because it takes long to copy all
 * queries to each device.
 */
static GvStatus
begin_step(Searcher *searcher, Step step)
{
	int32_t		nshards = searcher->nshards;
	GvStatus	status = GV_OK;
	int32_t		p;

	searcher->step = step;
	gv_parallel_for(searcher->nasked < LEAST_SHARED ? 0 :
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
 * Begins the last step, which computes the bounds or distances of all hits, if
 * any search requests them.
 */
static GvStatus
begin_bounded(Searcher *searcher)
{
	int32_t		i = 0;

	while (i < searcher->n && !wants_last(&searcher->searches[i]))
		i++;
	if (i == searcher->n)
	{
		searcher->step = ENDED;
		return GV_OK;
	}
	searcher->nasked = searcher->n;
	memset(searcher->nhits, 0, sizeof(searcher->nhits));
	do_ranges(searcher, ask_range);
	return begin_step(searcher, BOUNDED);
}

/* Copies what shard 0 is asked to the other shards. */
static void
ask_all(Searcher *searcher)
{
	int32_t		p;

	for (p = 1; p < searcher->nshards; p++)
		memcpy(asked_of(searcher, p, 0), searcher->asked,
			   (size_t) searcher->nasked * sizeof(GvSearch));
}

/*
 * Begins the step that finds postings.  It requests neither bounds or distances
 * nor the sample yet, because these need merged hits, except that a sample with
 * a given limit does not.
 */
static GvStatus
begin_found(Searcher *searcher, GvSearchSteps steps)
{
	int32_t		i;

	searcher->nasked = searcher->n;
	for (i = 0; i < searcher->n; i++)
	{
		GvSearch   *one = &searcher->asked[i];
		int32_t		nprobed = one->nprobed;

		*one = searcher->searches[i];
		one->steps = steps;
		one->bounded = false;
		one->asked = NULL;
		if (!one->limited)
			one->rank = 0;
		if (steps == GV_STEPS_ALL)
			continue;
		one->nprobed = nprobed;
		one->probed = searcher->probes + (size_t) i *
			(size_t) searcher->nprobes;
	}
	ask_all(searcher);
	return begin_step(searcher, FOUND);
}

/*
 * If there are many searches and lists, it pays that each shard chooses the
 * lists of a share of the searches, and that all shards get these lists.  A
 * device compares some 10^14 dimensions a second: 2^36 in .7 ms, for which a
 * further step is worth its launches, and 2^17 in as long as 8 bytes, a list,
 * take twice on the bus and in the host's memory.
 */
#define LEAST_COMPARED		36
#define LEAST_A_PROBE		17

/* log2 of these numbers; in tests the first may be 0 */
static GV_TUNABLE int32_t least_compared = LEAST_COMPARED;

/* Returns whether shards choose the lists of a share of the searches each. */
static bool
shares_choice(Searcher *searcher)
{
	const GvMirrorSpec *spec = &searcher->mirror->spec;
	int64_t		compared = (int64_t) spec->nlists * spec->dims;
	int32_t		i;

	if (compared * searcher->n >> least_compared == 0)
		return false;
	searcher->nprobes = 1;
	for (i = 0; i < searcher->n; i++)
	{
		int32_t		probes = searcher->searches[i].probes;

		if (searcher->searches[i].by_number)
			return false;
		if (probes > searcher->nprobes)
			searcher->nprobes = probes;
	}
	if (searcher->nprobes > spec->nlists)
		searcher->nprobes = spec->nlists;
	return least_compared == 0 ||
		compared >> LEAST_A_PROBE >= searcher->nprobes;
}

/*
 * Begins the choice of lists: shard p gets the searches from number
 * p * nasked on, so asked_of(p, i) is searcher->asked[p * nasked + i].
 */
static GvStatus
begin_chosen(Searcher *searcher)
{
	size_t		bytes = (size_t) searcher->n * (size_t) searcher->nprobes *
	sizeof(GvProbe);
	int32_t		i;

	searcher->probes = grow(searcher->probes, &searcher->probes_bytes, bytes);
	if (searcher->probes == NULL)
		return GV_NO_MEMORY;
	searcher->nasked = (searcher->n + searcher->nshards - 1) /
		searcher->nshards;
	for (i = 0; i < searcher->n; i++)
		searcher->asked[i] = (GvSearch)
	{
		.query = searcher->searches[i].query, .steps = GV_STEPS_LISTS,
			.probes = searcher->searches[i].probes,
			.compare = searcher->searches[i].compare, .capacity = 1
	};
	return begin_step(searcher, CHOSEN);
}

/* Copies the chosen lists, because the next step overwrites them. */
static void
take_chosen(void *arg, int32_t r)
{
	Searcher   *searcher = arg;
	int32_t		end = range_end(searcher, r);
	int32_t		i;

	for (i = r * RANGE; i < end; i++)
		memcpy(searcher->probes + (size_t) i * (size_t) searcher->nprobes,
			   searcher->asked[i].probed,
			   (size_t) searcher->asked[i].nprobed * sizeof(GvProbe));
}

/*
 * Begins the second step, if any search needs the counts of the sample.
 * Otherwise begins the last step.
 */
static GvStatus
begin_counted(Searcher *searcher)
{
	const GvSearch *searches = searcher->searches;
	int32_t		nasked = 0;
	int32_t		i;

	/* each shard compares its part of the sample with the score `limit` */
	for (i = 0; i < searcher->n; i++)
		if (asks_nearer(&searches[i]))
		{
			GvSearch   *one = &searcher->asked[nasked++];

			*one = searches[i];
			one->limit = one->hits[one->rank - 1].score;
			one->limited = true;
			one->rank = 1;
			one->capacity = 1;
			one->sums = one->by_number;
			one->bounded = false;
			one->asked = NULL;
		}
	if (nasked == 0)
		return begin_bounded(searcher);
	searcher->nasked = nasked;
	ask_all(searcher);
	return begin_step(searcher, COUNTED);
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
		for (p = 0; p < searcher->nshards; p++)
		{
			const GvSearch *answer = asked_of(searcher, p, at);

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

	if (status == GV_OK && searcher->step == CHOSEN)
	{
		do_ranges(searcher, take_chosen);
		status = begin_found(searcher, GV_STEPS_SCAN);
	}
	else if (status == GV_OK && searcher->step == FOUND)
	{
		status = merge_answers(searcher);
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
		do_ranges(searcher, take_range);
		searcher->step = ENDED;
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	searcher->status = status;
}

GvStatus
gv_searcher(int32_t device, GvSearcher **searcher)
{
	Searcher   *made;
	GvStatus	status;

	GV_CALL(gv_mirror_calls, device >= 0 && device < gv_ndevices() &&
			searcher != NULL);
	made = calloc(1, sizeof(Searcher));
	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->step = ENDED;
	status = gv_mirrors_engine->searcher(device, &made->own);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	*searcher = (GvSearcher *) made;
	return GV_OK;
}

void
gv_searcher_drop(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher == NULL)
		return;
	gv_mirrors_engine->searcher_drop(searcher->own);
	free(searcher->asked);
	free(searcher->probes);
	free(searcher->memory);
	free(searcher);
}

#ifdef GV_TEST_BUILD

void
gv_devices_share_choice(bool always)
{
	least_compared = always ? 0 : LEAST_COMPARED;
}

static Searcher *hung;			/* a searcher whose searches never end, or
								 * NULL; atomic */

/* Returns whether a test made the searcher hang. */
static bool
is_hung(const Searcher *searcher)
{
	return __atomic_load_n(&hung, __ATOMIC_ACQUIRE) == searcher;
}

GvSearcher *
gv_devices_own(GvSearcher *searcher)
{
	return ((Searcher *) searcher)->own;
}

#else
#define is_hung(searcher) false
#endif

static bool
valid_search(const GvSearch *search)
{
	if (search->steps != GV_STEPS_ALL)
		return has_hits(search) && search->query != NULL &&
			wants_last(search) &&
			search->nhits >= 0 && (search->hits != NULL || search->nhits == 0);
	return search->query != NULL && search->probes >= 1 &&
		(search->rank > 0 || !search->limited) &&
		(search->by_number || !search->sums) &&
		search->compare >= 1 && search->capacity >= 1 &&
		search->rank >= 0 && search->rank <= search->capacity &&
		(search->condition != NULL ? gv_condition_valid(search->condition) :
		 search->rank == 0);
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
gv_mirror_begin_shards(GvSearcher *const *searchers, int32_t nshards,
					   GvMirror *opaque_mirror, GvSearch *searches, int32_t n)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque_mirror;
	Searcher   *searcher;
	size_t		nasked;
	size_t		asked_bytes;
	GvStatus	status;
	int32_t		i;

#ifdef GV_TEST_BUILD
	if (gv_fault_strikes(&gv_mirror_calls, &status))
	{
		if ((int) status != GV_HANGS)
			return status;
		__atomic_store_n(&hung, (Searcher *) searchers[0], __ATOMIC_RELEASE);
		return GV_OK;
	}
#endif
	if (nshards < 1 || mirror == NULL || searches == NULL || n < 1)
		return GV_INVALID;
	for (i = 0; i < n; i++)
		if (!valid_search(&searches[i]) ||
			searches[i].steps != searches[0].steps ||
			(searches[i].asked != NULL) != (searches[0].asked != NULL) ||
			(searches[i].by_number &&
			 searches[i].probes < mirror->spec.nlists) ||
			(searches[i].bounded && mirror->spec.refine_slots == 0) ||
			(searches[i].asked != NULL && mirror->spec.rows == GV_ROWS_NONE))
			return GV_INVALID;
	i = find_replica(mirror, searchers, nshards);
	if (i < 0)
		return GV_INVALID;
	searcher = (Searcher *) searchers[0];
	searcher->first = i;
	searcher->mirror = mirror;
	searcher->nshards = nshards;
	if (nshards == 1)
		return gv_mirrors_engine->begin(searcher->own, mirror->mirrors[i],
										searches, n);
	for (i = 0; i < nshards; i++)
		searcher->shards[i] = ((Searcher *) searchers[i])->own;
	searcher->searches = searches;
	searcher->n = searcher->nasked = n;
	searcher->status = GV_OK;
	nasked = (size_t) nshards * (size_t) n;
	asked_bytes = nasked * sizeof(GvSearch) +
		(size_t) count_ranges(searcher) * sizeof(SearchRange);
	searcher->asked = grow(searcher->asked, &searcher->asked_capacity,
						   asked_bytes);
	if (searcher->asked == NULL)
		return GV_NO_MEMORY;
	searcher->ranges = (SearchRange *) (searcher->asked + nasked);
	if (has_hits(&searches[0]))
	{
		status = merge_answers(searcher);
		if (status == GV_OK)
			status = begin_bounded(searcher);
	}
	else if (shares_choice(searcher))
		status = begin_chosen(searcher);
	else
		status = begin_found(searcher, GV_STEPS_ALL);
	if (status != GV_OK)
		searcher->step = ENDED;
	return status;
}

bool
gv_mirror_done(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;
	int32_t		p;

	if (searcher == NULL)
		return true;
	if (is_hung(searcher))
		return false;
	if (searcher->nshards == 1)
		return gv_mirrors_engine->done(searcher->own);
	while (searcher->step != ENDED)
	{
		for (p = 0; p < searcher->nshards; p++)
			if (searcher->begun[p] &&
				!gv_mirrors_engine->done(searcher->shards[p]))
				return false;
		go_on(searcher);
	}
	return true;
}

GvStatus
gv_mirror_finish(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;
	GvStatus	injected = GV_OK;
	GvStatus	status;

	if (searcher == NULL)
		return GV_INVALID;
#ifdef GV_TEST_BUILD
	if (is_hung(searcher))
		gv_fault_hang();
#endif
	/* the search must be ended even if a test makes this call fail */
	(void) gv_fault_is_due(&gv_mirror_calls, &injected);
	while (searcher->nshards > 1 && searcher->step != ENDED)
		go_on(searcher);
	status = searcher->nshards == 1 ?
		gv_mirrors_engine->finish(searcher->own) : searcher->status;
	return injected != GV_OK ? injected : status;
}
