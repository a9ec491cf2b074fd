/*
 * beside.c
 *		Calibration queries: rows moved a little.
 *
 * Hardly any application searches with rows: it asks questions of answers, and
 * finds them farther away, in more lists, than a row finds its own neighbors.
 * So each row that is to be a query is moved away from the rows around it, by
 * half of its distance from them: a little where rows are dense, far where
 * they are thin.  am/calibrate/README, "Queries", says why so and in no other
 * way.
 *
 * Rows that equal others are drawn once, and do not count among those around
 * an equal one: a query that is not moved would lie among its copies, which
 * any search finds.
 *
 * Every operation here is exact, or rounds once and has no product to be fused
 * with, so that all processors make the same queries.
 */
#include "postgres.h"

#include <float.h>

#include "miscadmin.h"

#include "am/common/enginecall.h"
#include "am/train/train.h"

#define AROUND			4		/* rows that a query is moved away from, */
#define MOST_ROWS		4096	/* rows these are chosen from, at most */
#define MOST_VALUES		(1 << 22)	/* floats of those rows, at most */

/*
 * Rows whose squared distance is this fraction of the query's square differ by
 * rounding alone.
 */
#define SAME_SQUARE		1e-12

/* Fraction of the queries that have no more copies than are looked for. */
#define MOST_QUERIES_FRACTION	0.9

/*
 * Returns the number of rows, at most, among which those around a query are
 * looked for.
 */
int
IvfpqRowsAround(int dims)
{
	return Min(MOST_ROWS, Max(AROUND, MOST_VALUES / dims));
}

/*
 * Returns the number of rows near each query that are to be known:
 * IVFPQ_GROUND_TRUTH_ROWS behind its own row and the copies that most queries'
 * rows have in a table of `rows`.
 */
static int
find_depth(const IvfpqSample *sample, int taken, double rows)
{
	uint64	   *copies = palloc((taken + 1) * sizeof(uint64));
	double		most = 0;

	for (int i = 0; i < taken; i++)
		copies[i] = (uint64) sample->counts[i] - 1;
	IvfpqSortNumbers(copies, (Size) taken);
	if (taken > 0)
		most = copies[(int) (MOST_QUERIES_FRACTION * (taken - 1))] *
			Max(rows / sample->count, 1);
	pfree(copies);
	return IVFPQ_GROUND_TRUTH_ROWS + 1 + (int) Min(most, IVFPQ_MOST_COPIES);
}

/*
 * Chooses rows of a sample, whose distinct ones come first, for n queries or,
 * where distinct rows are fewer, for as many as there are, but enough to tell
 * targets; of a table of `rows`.
 */
void
IvfpqHoldOut(const IvfpqSample *sample, int n, double rows,
			 IvfpqHeldOut *held)
{
	held->n = (int) Min(n, Max(sample->ndistinct, IVFPQ_LEAST_QUERIES));
	held->taken = (int) Min(held->n, sample->ndistinct);
	held->depth = find_depth(sample, held->taken, rows);
}

/*
 * Moves a query [dims] away from the mean of the rows around it, nearest
 * first, without those that it equals.
 */
static void
move(float *query, const float *rows, int dims, GvTopK *around)
{
	double		same = SAME_SQUARE * gv_square(query, dims);
	int			first = 0;
	int			n;

	gv_topk_sort(around);
	while (first < around->count && around->scores[first] <= same)
		first++;
	n = Min(around->count - first, AROUND);
	if (n <= 0)
		return;
	for (int d = 0; d < dims; d++)
	{
		double		sum = 0;
		double		to;

		for (int i = first; i < first + n; i++)
			sum += rows[around->ids[i] * dims + d];
		to = query[d] + (query[d] - sum / n) / 2;
		query[d] = (float) Max(-FLT_MAX, Min(to, FLT_MAX));
	}
}

/*
 * Makes calibration queries of raw rows [n][dims], with the help of other raw
 * rows [nothers][dims], all different, of which IvfpqRowsAround() are enough;
 * neither has one that the metric cannot place.  Queries have the length that
 * the metric gives them.
 */
static void
move_queries(GvMetric metric, int dims, float *queries, int n,
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
	for (int i = 0; i < n; i++) /* it may be among them itself */
		IvfpqTopKResize(&around[i], Min(AROUND + 1, nrows));

	IvfpqCheckStatus(gv_exact(GV_L2, dims, queries, n, rows, nrows, ids,
							  around, &ivfpq_stop));
	for (int i = 0; i < n; i++)
	{
		move(queries + (Size) i * dims, rows, dims, &around[i]);
		pfree(around[i].scores);
		pfree(around[i].ids);
	}
	pfree(around);
	pfree(ids);
	pfree(rows);
	pfree((float *) unmoved.mean);
}

/*
 * Fills in queries [n][dims], the raw rows [n][dims] that they are made of,
 * and these rows' TIDs [n].  Rows around a query are those of the sample of
 * which no query is made, or all where copies leave fewer of them.
 */
void
IvfpqMakeCalibrationQueries(const IvfpqSample *sample,
							const IvfpqHeldOut *held,
							float *queries, float *held_out, uint64 *ids)
{
	int			dims = sample->dims;
	Size		row = dims * sizeof(float);
	int64		first = sample->ndistinct - held->taken < held->taken ? 0 :
	held->taken;

	for (int i = 0; i < held->n; i++)
	{
		int			from = i % held->taken;

		memcpy(held_out + (Size) i * dims,
			   sample->rows + (Size) from * dims, row);
		ids[i] = sample->ids[from];
	}
	memcpy(queries, held_out, held->n * row);
	move_queries(sample->type->metric, dims, queries, held->n,
				 sample->rows + first * dims, sample->ndistinct - first);
}
