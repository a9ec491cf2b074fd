/*
 * gv_spreadhits.c
 *		Hits of one search of shards: merged, and sorted by who has their
 *		records.
 *
 * Of thousands of searches this is what the host does between two steps of the
 * devices.  So it takes no jump that depends on scores: of two hits either may
 * be the better one, and no processor predicts that.
 */
#include "engine/mirror/gv_spread.h"

#include <string.h>

#define LINE			64		/* bytes, of a processor's cache */

/*
 * See gv_spread.h.  A function of another file's, because a compiler drops
 * calls of those that it sees to do nothing else.
 */
void
gv_shards_expect(const void *from, size_t bytes)
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

/* See gv_spread.h. */
void
gv_shards_merge_hits(const GvSearch *asked, int32_t n, int32_t ndevices,
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

/* See gv_spread.h. */
void
gv_shards_sort_hits(const GvPlacedMirror *mirror, const GvHit *hits,
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
