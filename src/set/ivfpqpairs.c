/*
 * ivfpqpairs.c
 *		The nearest rows of one table to every row of another or the same: the
 *		body of gpuvec_knn_graph and gpuvec_knn_join.
 *
 * Exact: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014: all rows against all, and a selection.  Through an
 * index: Johnson, Douze, Jegou, 2017, section 6.6: every row is a query.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "set/ivfpqset.h"

/* A row (key, neighbour, rank, distance); ranks count from 1. */
static void
PutPair(const IvfpqPairs *pairs, int64 key, int64 neighbour, int rank,
		double distance)
{
	Datum		values[4];
	bool		nulls[4] = {false};

	values[0] = Int64GetDatum(key);
	values[1] = Int64GetDatum(neighbour);
	values[2] = Int32GetDatum(rank);
	values[3] = Float8GetDatum(distance);
	tuplestore_putvalues(pairs->rsinfo->setResult, pairs->rsinfo->setDesc,
						 values, nulls);
}

/* The neighbours of one row, from the engine. */
static void
TakeNeighbours(void *arg, int64 query, const int64 *positions,
			   const double *distances)
{
	const IvfpqPairs *pairs = arg;

	for (int i = 0; i < pairs->k && positions[i] >= 0; i++)
		PutPair(pairs, pairs->queries->keys[query],
				pairs->rows->keys[positions[i]], i + 1, distances[i]);
}

static void
FindExactly(const IvfpqPairs *pairs)
{
	IvfpqNeighbours wanted = {.rows = pairs->rows,.metric = pairs->metric,
		.k = pairs->k,.nqueries = pairs->queries->nrows,
		.from = pairs->queries,.self = pairs->self,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = TakeNeighbours,.arg = (void *) pairs};

	IvfpqFindNeighbours(&wanted);
}

static void
FindThroughIndex(const IvfpqPairs *pairs)
{
	IvfpqTable *queries = pairs->queries;
	IvfpqIndexed *indexed = IvfpqIndexedBegin(pairs->rows, queries->type.type,
											  pairs->metric, pairs->k);
	IvfpqSampled *sampled = IvfpqSampledBegin(pairs);

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SEARCHING, queries->nrows);
	IvfpqTableSeek(queries, 0);
	while (IvfpqTableNext(queries))
	{
		int64		query = queries->next - 1;
		const float *vector = IvfpqTableFloats(queries);
		const IvfpqMatch *found;
		int			n = IvfpqIndexedFind(indexed, queries->vector, vector,
										 pairs->self ? &queries->slot->tts_tid
										 : NULL, &found);

		for (int i = 0; i < n; i++)
			PutPair(pairs, queries->keys[query], found[i].key, i + 1,
					found[i].distance);
		IvfpqSampledNote(sampled, query, vector, found, n);
		if (query % 64 == 0)
			IvfpqProgressDone(query);
	}
	IvfpqIndexedEnd(indexed);
	IvfpqSampledEnd(sampled);
}

/* All pairs into pairs->rsinfo, see ivfpqset.h. */
void
IvfpqFindPairs(const IvfpqPairs *pairs, IvfpqMethod method)
{
	switch (method)
	{
		case IVFPQ_METHOD_EXACT:
			FindExactly(pairs);
			break;
		case IVFPQ_METHOD_INDEX:
			FindThroughIndex(pairs);
			break;
	}
}
