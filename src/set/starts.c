/*
 * starts.c
 *		The seeds of k-means, its first centroids.
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

typedef struct SeedRow
{
	uint64		rank;
	int64		position;
} SeedRow;

struct IvfpqKmeansSeeds
{
	int			k;
	uint64		seed;
	uint64		limit;			/* larger ranks are none of the k smallest */
	SeedRow    *rows;			/* [capacity] the smallest so far, and others */
	int64		n;
	int64		capacity;		/* 2k at least */
};

IvfpqKmeansSeeds *
IvfpqKmeansSeedsBegin(int k, int seed)
{
	IvfpqKmeansSeeds *seeds = palloc0(sizeof(IvfpqKmeansSeeds));

	seeds->k = k;
	seeds->seed = (uint32) seed;
	seeds->limit = PG_UINT64_MAX;
	seeds->capacity = Max(2 * (int64) k, 1024);
	seeds->rows = palloc_extended(seeds->capacity * sizeof(SeedRow),
								  MCXT_ALLOC_HUGE);
	return seeds;
}

static int
compare_ranks(const void *a, const void *b)
{
	const SeedRow *x = a;
	const SeedRow *y = b;

	CHECK_FOR_INTERRUPTS();
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

/* Keep the k smallest ranks, of equal ones the first row. */
static void
compact(IvfpqKmeansSeeds *seeds)
{
	int64		kept = 0;

	qsort(seeds->rows, seeds->n, sizeof(SeedRow), compare_ranks);
	for (int64 i = 0; i < seeds->n && kept < seeds->k; i++)
		if (kept == 0 ||
			seeds->rows[kept - 1].rank != seeds->rows[i].rank)
			seeds->rows[kept++] = seeds->rows[i];
	seeds->n = kept;
	if (kept == seeds->k)
		seeds->limit = seeds->rows[kept - 1].rank;
}

/* The row at that position has that vector. */
void
IvfpqKmeansSeedsOffer(IvfpqKmeansSeeds *seeds, int64 position,
					  const float *vector,
					  int dims)
{
	uint64		rank = hash_bytes_extended((const unsigned char *) vector,
										   dims * (int) sizeof(float),
										   seeds->seed);

	if (rank > seeds->limit)
		return;
	if (seeds->n == seeds->capacity)
		compact(seeds);
	seeds->rows[seeds->n].rank = rank;
	seeds->rows[seeds->n].position = position;
	seeds->n++;
}

/*
 * All rows were offered: the positions [k] of those taken, ascending.  Where
 * there are fewer different vectors, some come again.
 */
const int64 *
IvfpqKmeansSeedsEnd(IvfpqKmeansSeeds *seeds)
{
	int64	   *positions = palloc_extended(seeds->k * sizeof(int64),
											MCXT_ALLOC_HUGE);

	compact(seeds);
	for (int i = 0; i < seeds->k; i++)
		positions[i] = seeds->rows[i % seeds->n].position;
	qsort(positions, seeds->k, sizeof(int64), IvfpqCompareSigned);
	pfree(seeds->rows);
	pfree(seeds);
	return positions;
}
