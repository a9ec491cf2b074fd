/*
 * hits.c
 *		The best postings that a search of a mirror has seen, as a heap of
 *		GvHit.
 *
 * A GvTopK does not store the probe that a posting was found in, hence a heap
 * of its own, in the memory where the hits are returned.  It keeps the pairs
 * (S, row id) that a GvTopK of the same capacity would keep; of equal pairs it
 * prefers the earlier probe, so that an answer is one and the same each time.
 */
#include "test/oracle/gv_cpu_mirror.h"

static inline uint64_t
row_id(const GvHit *hit)
{
	return (uint64_t) hit->rowid[0] << 32 | (uint64_t) hit->rowid[1] << 16 |
		hit->rowid[2];
}

/* Is a before b in the order of results? */
static inline bool
before(const GvHit *a, const GvHit *b)
{
	uint64_t	a_id;
	uint64_t	b_id;

	if (a->score != b->score)
		return a->score < b->score;
	a_id = row_id(a);
	b_id = row_id(b);
	if (a_id != b_id)
		return a_id < b_id;
	return a->probe < b->probe;
}

/* Put a hit at `hole` or below it, in a heap of count hits. */
static void
sift_down(GvHit *hits, int32_t count, int32_t hole, GvHit hit)
{
	while (hole < count / 2)
	{
		int32_t		child = 2 * hole + 1;

		if (child + 1 < count && before(&hits[child], &hits[child + 1]))
			child++;
		if (!before(&hit, &hits[child]))
			break;
		hits[hole] = hits[child];
		hole = child;
	}
	hits[hole] = hit;
}

/* Put a hit at `hole` or above it. */
static void
sift_up(GvHit *hits, int32_t hole, GvHit hit)
{
	while (hole > 0)
	{
		int32_t		parent = (hole - 1) / 2;

		if (!before(&hits[parent], &hit))
			break;
		hits[hole] = hits[parent];
		hole = parent;
	}
	hits[hole] = hit;
}

/* Offers a posting to a search's hits. */
void
gv_cpu_hit(GvSearch *search, float score, uint64_t id, uint32_t probe)
{
	GvHit		hit = {
		.score = score,
		.probe = probe,
		.rowid = {(uint16_t) (id >> 32), (uint16_t) (id >> 16),
		(uint16_t) id}
	};

	if (search->nhits < search->capacity)
		sift_up(search->hits, search->nhits++, hit);
	else if (before(&hit, &search->hits[0]))
		sift_down(search->hits, search->nhits, 0, hit);
}

/* The pair that a posting has to precede, when the hits are full. */
void
gv_cpu_worst_hit(const GvSearch *search, float *score, uint64_t *id)
{
	*score = search->hits[0].score;
	*id = row_id(&search->hits[0]);
}

/* Turn the heap into results, ascending. */
void
gv_cpu_sort_hits(GvSearch *search)
{
	GvHit	   *hits = search->hits;
	int32_t		i;

	for (i = search->nhits - 1; i > 0; i--)
	{
		GvHit		hit = hits[i];

		hits[i] = hits[0];
		sift_down(hits, i, 0, hit);
	}
}
