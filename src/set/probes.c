/*
 * probes.c
 *		How many lists have to be near so that a graph or join has the recall
 *		that is asked for.
 *
 * Of a sample the exact neighbors are known (sampled.c).  A neighbor is
 * found if its list is among those near to the list of its row; so its list's
 * rank among these says how many probes that takes, and ranks of all
 * neighbors say the recall for every number of probes.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/search/params.h"
#include "set/set.h"

/* Neighbors of a row whose ranks are found, evenly spread if k is more. */
#define JUDGED			100

/*
 * The sample's recall less STANDARD_ERRORS standard errors has to reach the
 * target recall: it is the lower end of a one-sided interval of 95 %.
 */
#define STANDARD_ERRORS	1.645

/* A neighbor of a row of the sample. */
typedef struct Neighbor
{
	int64		position;		/* its row; -1: there is none */
	int			row;			/* of the sample */
	int64		list;
	int64		rank;			/* of its list, from 0 */
} Neighbor;

typedef struct Ranks
{
	const IvfpqSampled *sampled;
	const IvfpqLists *lists;
	int			judged;			/* neighbors of a row */
	Neighbor   *neighbors;		/* [sampled->n][judged] by row */
	Neighbor  **by_position;	/* those there are, [n], by position */
	int			n;
} Ranks;

static int
compare_positions(const void *a, const void *b)
{
	int64		x = (*(Neighbor *const *) a)->position;
	int64		y = (*(Neighbor *const *) b)->position;

	return x < y ? -1 : x > y;
}

/* Which neighbors count: not those whose distance is NaN. */
static void
choose_neighbors(Ranks *ranks)
{
	const IvfpqSampled *sampled = ranks->sampled;
	int64		k = sampled->pairs->k;

	ranks->judged = (int) Min(k, JUDGED);
	ranks->neighbors = palloc(sampled->n * ranks->judged *
							  sizeof(Neighbor));
	ranks->by_position = palloc(sampled->n * ranks->judged *
								sizeof(Neighbor *));
	for (int row = 0; row < sampled->n; row++)
		for (int i = 0; i < ranks->judged; i++)
		{
			Neighbor   *neighbor = ranks->neighbors +
			row * ranks->judged + i;
			Size		item = row * k + i * k / ranks->judged;

			memset(neighbor, 0, sizeof(*neighbor));
			neighbor->row = row;
			neighbor->position = isnan(sampled->distances[item]) ? -1 :
				sampled->neighbors[item];
			if (neighbor->position >= 0)
				ranks->by_position[ranks->n++] = neighbor;
		}
	qsort(ranks->by_position, ranks->n, sizeof(Neighbor *),
		  compare_positions);
}

/* The lists of neighbors first .. first + n - 1, given their vectors. */
static void
find_some_lists(Ranks *ranks, int first, int n, const float *vectors)
{
	int64	   *found = palloc(n * sizeof(int64));

	if (n > 0)
		IvfpqListsNearest(ranks->lists, vectors, n, found);
	for (int i = 0; i < n; i++)
		ranks->by_position[first + i]->list = found[i];
	pfree(found);
}

/* The lists of neighbors. */
static void
find_lists(Ranks *ranks)
{
	IvfpqTable *rows = ranks->sampled->pairs->rows;
	int			batch = IvfpqTableBatch(rows);
	float	   *vectors = palloc((Size) batch * rows->dims * sizeof(float));
	const float *vector = NULL;
	int			first = 0;

	for (int i = 0; i < ranks->n; i++)
	{
		int64		position = ranks->by_position[i]->position;

		if (i == first + batch)
		{
			find_some_lists(ranks, first, batch, vectors);
			first = i;
		}
		/* several rows may have the same neighbor */
		if (i == 0 || position != ranks->by_position[i - 1]->position)
			vector = IvfpqTableVector(rows, position);
		memcpy(vectors + (Size) (i - first) * rows->dims, vector,
			   rows->dims * sizeof(float));
	}
	find_some_lists(ranks, first, ranks->n - first, vectors);
	pfree(vectors);
}

/*
 * The rank of a list among those near to another, which are n so far away, by
 * (distance, number), NaN behind all others.
 */
static int64
rank_among(const double *distances, int n, int64 list)
{
	double		distance = distances[list];
	int64		rank = 0;

	if (isnan(distance))
	{
		for (int i = 0; i < n; i++)
			rank += !isnan(distances[i]) || i < list;
		return rank;
	}
	for (int i = 0; i < n; i++)
		rank += distances[i] < distance ||
			(distances[i] == distance && i < list);
	return rank;
}

/* The ranks of lists. */
static void
find_ranks(Ranks *ranks)
{
	const IvfpqSampled *sampled = ranks->sampled;
	int			nlists = ranks->lists->n;
	int64	   *own = palloc(sampled->n * sizeof(int64));
	double	   *distances = palloc_extended(nlists * sizeof(double),
											MCXT_ALLOC_HUGE);

	IvfpqListsNearest(ranks->lists, sampled->vectors, sampled->n, own);
	for (int row = 0; row < sampled->n; row++)
	{
		Neighbor   *neighbors = ranks->neighbors + row * ranks->judged;

		IvfpqListsDistances(ranks->lists, own[row], distances);
		for (int i = 0; i < ranks->judged; i++)
			if (neighbors[i].position >= 0)
				neighbors[i].rank = rank_among(distances, nlists,
											   neighbors[i].list);
	}
	pfree(own);
	pfree(distances);
}

/* Is the target recall reached with this number of probes? */
static bool
suffices(const Ranks *ranks, int probes, double recall)
{
	double		sum = 0.0;
	double		squares = 0.0;
	double		mean;
	double		variance;
	int			n = 0;

	for (int row = 0; row < ranks->sampled->n; row++)
	{
		const Neighbor *neighbors = ranks->neighbors +
		row * ranks->judged;
		int			possible = 0;
		int			found = 0;
		double		fraction;

		for (int i = 0; i < ranks->judged; i++)
		{
			possible += neighbors[i].position >= 0;
			found += neighbors[i].position >= 0 &&
				neighbors[i].rank < probes;
		}
		if (possible == 0)
			continue;
		fraction = (double) found / possible;
		sum += fraction;
		squares += fraction * fraction;
		n++;
	}
	if (n == 0)
		return true;
	mean = sum / n;
	variance = Max(squares / n - mean * mean, 0.0);
	return mean - STANDARD_ERRORS * sqrt(variance / n) >= recall;
}

/* The least number of lists with which the neighbors have that recall. */
static int
least_lists(const Ranks *ranks, double recall)
{
	int			low = 1;
	int			high = ranks->lists->n;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (suffices(ranks, middle, recall))
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/*
 * The number of lists with which neighbors have that recall; all of them for
 * 1, so that the answer is exact.  So few rows cannot tell what a recall takes
 * that is higher than indexes are calibrated for: that grows as a scan's lists
 * do.
 */
int
IvfpqProbesFor(const IvfpqSampled *sampled, const IvfpqLists *lists,
			   double recall)
{
	Ranks		ranks = {.sampled = sampled, .lists = lists};
	int			probes;

	if (recall >= 1)
		return lists->n;
	choose_neighbors(&ranks);
	find_lists(&ranks);
	find_ranks(&ranks);
	probes = least_lists(&ranks, Min(recall, IVFPQ_SURE_RECALL));
	if (recall > IVFPQ_SURE_RECALL)
		probes = (int) Min(ceil(IvfpqBeyondTargets(recall, IVFPQ_SURE_RECALL,
												   least_lists(&ranks, IVFPQ_LOWER_RECALL),
												   probes)),
						   lists->n);
	pfree(ranks.neighbors);
	pfree(ranks.by_position);
	return probes;
}
