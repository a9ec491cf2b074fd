/*
 * starts.c
 *		Which rows are the first centroids of k-means.
 *
 * A row's rank is a hash of its vector and the seed, and those of the k
 * smallest ranks are taken: k rows drawn at random without replacement, which
 * are different vectors, since equal ones have the same rank.  So the choice
 * hangs on the seed and on what the rows are, and one reading is enough.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "set/set.h"

typedef struct Start
{
	uint64		rank;
	int64		position;
} Start;

struct IvfpqStarts
{
	int			k;
	uint64		seed;
	uint64		limit;			/* larger ranks are none of the k smallest */
	Start	   *starts;			/* [room] the smallest so far, and others */
	int64		n;
	int64		room;			/* 2k at least */
};

IvfpqStarts *
IvfpqStartsBegin(int k, int seed)
{
	IvfpqStarts *starts = palloc0(sizeof(IvfpqStarts));

	starts->k = k;
	starts->seed = (uint32) seed;
	starts->limit = PG_UINT64_MAX;
	starts->room = Max(2 * (int64) k, 1024);
	starts->starts = palloc_extended(starts->room * sizeof(Start),
									 MCXT_ALLOC_HUGE);
	return starts;
}

static int
compare_ranks(const void *a, const void *b)
{
	const Start *x = a;
	const Start *y = b;

	CHECK_FOR_INTERRUPTS();
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

/* Keep the k smallest ranks, of equal ones the first row. */
static void
compact(IvfpqStarts *starts)
{
	int64		kept = 0;

	qsort(starts->starts, starts->n, sizeof(Start), compare_ranks);
	for (int64 i = 0; i < starts->n && kept < starts->k; i++)
		if (kept == 0 ||
			starts->starts[kept - 1].rank != starts->starts[i].rank)
			starts->starts[kept++] = starts->starts[i];
	starts->n = kept;
	if (kept == starts->k)
		starts->limit = starts->starts[kept - 1].rank;
}

/* The row at that position has that vector. */
void
IvfpqStartsOffer(IvfpqStarts *starts, int64 position, const float *vector,
				 int dims)
{
	uint64		rank = hash_bytes_extended((const unsigned char *) vector,
										   dims * (int) sizeof(float),
										   starts->seed);

	if (rank > starts->limit)
		return;
	if (starts->n == starts->room)
		compact(starts);
	starts->starts[starts->n].rank = rank;
	starts->starts[starts->n].position = position;
	starts->n++;
}

/*
 * All rows were offered: the positions [k] of those taken, ascending.  Where
 * there are fewer different vectors, some come again.
 */
const int64 *
IvfpqStartsEnd(IvfpqStarts *starts)
{
	int64	   *positions = palloc_extended(starts->k * sizeof(int64),
											MCXT_ALLOC_HUGE);

	compact(starts);
	for (int i = 0; i < starts->k; i++)
		positions[i] = starts->starts[i % starts->n].position;
	qsort(positions, starts->k, sizeof(int64), IvfpqCompareSigned);
	pfree(starts->starts);
	pfree(starts);
	return positions;
}
