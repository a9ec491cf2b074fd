/*
 * beside.c
 *		Points beside rows, to calibrate with.
 *
 * Hardly any application searches with rows: it asks questions of answers, and
 * finds them farther away, in more lists, than a row finds its own neighbours.
 * So each row that is to be a query is moved away from the rows around it, by
 * half of the way between them: where rows are dense a little, where they are
 * thin far.  am/calibrate/README, "Queries", says why so and no other way.
 *
 * Every operation here is exact, or rounds once and has no product to be fused
 * with, so that all processors make the same queries.
 */
#include "postgres.h"

#include <float.h>

#include "miscadmin.h"

#include "am/common/engine.h"
#include "am/train/train.h"

#define AROUND			4		/* rows that a query is moved away from, */
#define MOST_ROWS		4096	/* of so many */
#define MOST_VALUES		(1 << 22)	/* ... with so many floats */

/* Rows to look for those around a query in, if there are so many. */
int
IvfpqRowsAround(int dims)
{
	return Min(MOST_ROWS, Max(AROUND, MOST_VALUES / dims));
}

/* Move a query [dims] away from the mean of the rows that it has around it. */
static void
move(float *query, const float *rows, int dims, const GvTopK *around)
{
	for (int d = 0; d < dims; d++)
	{
		double		sum = 0;
		double		to;

		for (int i = 0; i < around->count; i++)
			sum += rows[around->ids[i] * dims + d];
		to = query[d] + (query[d] - sum / around->count) / 2;
		query[d] = (float) Max(-FLT_MAX, Min(to, FLT_MAX));
	}
}

/*
 * Make points beside rows of raw rows [n][dims], with the help of other raw
 * rows [nothers][dims], of which IvfpqRowsAround() are enough; neither has one
 * that the metric cannot place.  Points have the length that the metric gives
 * them.
 */
void
IvfpqMoveBeside(GvMetric metric, int dims, float *queries, int n,
				const float *others, int64 nothers)
{
	GvModel		unmoved = {.metric = metric, .dims = dims, .scale = 1};
	int			nrows = (int) Min(nothers, IvfpqRowsAround(dims));
	float	   *rows;
	uint64	   *ids;
	GvTopK	   *around;

	if (nrows == 0)
		return;
	unmoved.mean = palloc0(dims * sizeof(float));
	rows = palloc((Size) nrows * dims * sizeof(float));
	ids = palloc(nrows * sizeof(uint64));
	around = palloc0(n * sizeof(GvTopK));
	(void) gv_transform(&unmoved, others, nrows, rows);
	(void) gv_transform(&unmoved, queries, n, queries);
	for (int i = 0; i < nrows; i++)
		ids[i] = i;
	for (int i = 0; i < n; i++)
		IvfpqTopKResize(&around[i], Min(AROUND, nrows));

	IvfpqCheckStatus(gv_exact(GV_L2, dims, queries, n, rows, nrows, ids,
							  around, &ivfpq_stop));
	for (int i = 0; i < n; i++)
	{
		gv_topk_sort(&around[i]);
		move(queries + (Size) i * dims, rows, dims, &around[i]);
		pfree(around[i].scores);
		pfree(around[i].ids);
	}
	pfree(around);
	pfree(ids);
	pfree(rows);
	pfree((float *) unmoved.mean);
}
