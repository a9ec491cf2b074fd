/*
 * ivfpqsampled.c
 *		How good approximate neighbours are: those of some rows, evenly spread
 *		over the table, compared with exact ones under the same snapshot.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "set/ivfpqset.h"

/* Rows to compare, and fewer if they take more than so many bytes. */
#define SAMPLE			100
#define SAMPLE_BYTES	(16 * 1024 * 1024)

struct IvfpqSampled
{
	const IvfpqPairs *pairs;
	int			n;				/* rows of the sample */
	int			noted;			/* of which neighbours were given */
	int64	   *positions;		/* [n] ascending */
	float	   *vectors;		/* [n][dims] */
	double	   *distances;		/* [n][k] of what was found, then NaN */
	int64		hits;
	int64		possible;
};

IvfpqSampled *
IvfpqSampledBegin(const IvfpqPairs *pairs)
{
	int64		nqueries = pairs->queries->nrows;
	int			dims = pairs->rows->dims;
	IvfpqSampled *sampled = palloc0(sizeof(IvfpqSampled));
	Size		bytes = dims * sizeof(float) + pairs->k * sizeof(double);
	int64		n = Max(Min(SAMPLE_BYTES / bytes, SAMPLE), 1);

	sampled->pairs = pairs;
	sampled->n = (int) Min(n, nqueries);
	sampled->positions = palloc(sampled->n * sizeof(int64));
	sampled->vectors = palloc((Size) sampled->n * dims * sizeof(float));
	sampled->distances = palloc((Size) sampled->n * pairs->k * sizeof(double));
	for (int i = 0; i < sampled->n; i++)
		sampled->positions[i] = nqueries / sampled->n * i +
			nqueries % sampled->n * i / sampled->n;
	return sampled;
}

/* What was found for a query; they come ascending. */
void
IvfpqSampledNote(IvfpqSampled *sampled, int64 query, const float *vector,
				 const IvfpqMatch *found, int n)
{
	int			dims = sampled->pairs->rows->dims;
	int			k = sampled->pairs->k;
	double	   *distances = sampled->distances + (Size) sampled->noted * k;

	if (sampled->noted == sampled->n ||
		query != sampled->positions[sampled->noted])
		return;
	memcpy(sampled->vectors + (Size) sampled->noted * dims, vector,
		   dims * sizeof(float));
	for (int i = 0; i < k; i++)
		distances[i] = i < n ? found[i].distance : NAN;
	sampled->noted++;
}

/*
 * How many of the distances found are among the k smallest; one that is equal
 * to the largest of these is as good as any.
 */
static void
Compare(void *arg, int64 query, const int64 *positions,
		const double *distances)
{
	IvfpqSampled *sampled = arg;
	int			k = sampled->pairs->k;
	const double *found = sampled->distances + query * k;
	int			possible = 0;
	int			hits = 0;

	while (possible < k && positions[possible] >= 0 &&
		   !isnan(distances[possible]))
		possible++;
	for (int i = 0; i < possible; i++)
		hits += found[i] <= distances[possible - 1];
	sampled->hits += hits;
	sampled->possible += possible;
}

/* Compare, and tell the user. */
void
IvfpqSampledEnd(IvfpqSampled *sampled)
{
	const IvfpqPairs *pairs = sampled->pairs;
	IvfpqNeighbours wanted = {.rows = pairs->rows,.metric = pairs->metric,
		.k = pairs->k,.nqueries = sampled->n,.vectors = sampled->vectors,
		.self = pairs->self,
		.selves = pairs->self ? sampled->positions : NULL,
		.phase = IVFPQ_PROGRESS_RECALL,
	.sink = Compare,.arg = sampled};

	IvfpqFindNeighbours(&wanted);
	if (sampled->possible > 0)
		ereport(NOTICE,
				(errmsg("recall@%d is about %.3f (%d rows compared)", pairs->k,
						(double) sampled->hits / sampled->possible,
						sampled->n)));
}
