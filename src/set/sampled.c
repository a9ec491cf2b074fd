/*
 * sampled.c
 *		How good approximate neighbors are: some rows, evenly spread over the
 *		table, whose exact neighbors are found under the same snapshot.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "set/set.h"

/* Rows to compare, and fewer if they take more than SAMPLE_BYTES. */
#define SAMPLE			200
#define SAMPLE_BYTES	(16 * 1024 * 1024)

/* Which rows, and their vectors. */
static void
read_sample(IvfpqSampled *sampled)
{
	IvfpqTable *queries = sampled->pairs->queries;
	int64		nqueries = queries->nrows;
	int			n = sampled->n;

	for (int i = 0; i < n; i++)
	{
		int64		position = nqueries / n * i + nqueries % n * i / n;

		sampled->positions[i] = position;
		memcpy(sampled->vectors + (Size) i * queries->dims,
			   IvfpqTableVector(queries, position),
			   queries->dims * sizeof(float));
	}
}

static void
take_exact(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	IvfpqSampled *sampled = arg;
	int			k = sampled->pairs->k;

	memcpy(sampled->neighbors + query * k, positions, k * sizeof(int64));
	memcpy(sampled->distances + query * k, distances, k * sizeof(double));
}

/* Choose rows and find their exact neighbors. */
IvfpqSampled *
IvfpqSampledBegin(const IvfpqPairs *pairs)
{
	int			dims = pairs->rows->dims;
	IvfpqSampled *sampled = palloc0(sizeof(IvfpqSampled));
	Size		bytes = dims * sizeof(float) +
	pairs->k * (sizeof(int64) + sizeof(double));
	int64		n = Max(Min(SAMPLE_BYTES / bytes, SAMPLE), 1);
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .self = pairs->self, .phase = IVFPQ_PROGRESS_RECALL,
	.sink = take_exact, .arg = sampled};

	sampled->pairs = pairs;
	sampled->n = (int) Min(n, pairs->queries->nrows);
	sampled->positions = palloc(sampled->n * sizeof(int64));
	sampled->vectors = palloc((Size) sampled->n * dims * sizeof(float));
	sampled->neighbors = palloc((Size) sampled->n * pairs->k *
								sizeof(int64));
	sampled->distances = palloc((Size) sampled->n * pairs->k *
								sizeof(double));
	read_sample(sampled);
	wanted.nqueries = sampled->n;
	wanted.vectors = sampled->vectors;
	wanted.selves = pairs->self ? sampled->positions : NULL;
	IvfpqFindNeighbors(&wanted);
	return sampled;
}

/*
 * Counts the distances [k] found for a query, NaN where there is no neighbor;
 * they ascend, and queries come ascending.  A distance equal to the largest of
 * the exact ones counts as found.  Queries without neighbors add nothing.
 */
void
IvfpqSampledNote(IvfpqSampled *sampled, int64 query, const double *distances)
{
	int			k = sampled->pairs->k;
	const double *exact;
	int			possible = 0;

	while (sampled->noted < sampled->n &&
		   sampled->positions[sampled->noted] < query)
		sampled->noted++;
	if (sampled->noted == sampled->n ||
		query != sampled->positions[sampled->noted])
		return;
	exact = sampled->distances + (Size) sampled->noted * k;
	while (possible < k && !isnan(exact[possible]))
		possible++;
	for (int i = 0; i < possible; i++)
		sampled->hits += distances[i] <= exact[possible - 1];
	sampled->possible += possible;
	sampled->noted++;
}

/* Tell the user; how rows were found is a sentence. */
void
IvfpqSampledEnd(const IvfpqSampled *sampled, const char *how)
{
	if (sampled->possible > 0)
		ereport(NOTICE,
				(errmsg("recall@%d is about %.3f (%d rows compared)",
						sampled->pairs->k,
						(double) sampled->hits / sampled->possible,
						sampled->n),
				 errdetail("%s", how)));
}
