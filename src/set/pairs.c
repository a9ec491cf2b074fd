/*
 * pairs.c
 *		The nearest rows of one table to every row of another or the same: the
 *		body of gpuvec_knn_graph and gpuvec_knn_join.
 *
 * Exact: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014: all rows against all, and a selection.  Through
 * an index: after Johnson, Douze, Jegou, 2017, section 6.6, every row is a
 * query, but compared, exactly, with all rows of the lists near to its own.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "am/common/options.h"
#include "set/set.h"

/* Where the neighbors found go. */
typedef struct Found
{
	const IvfpqPairs *pairs;
	IvfpqSampled *sampled;		/* or NULL: they are exact */
} Found;

/* The neighbors of one row, from the engine. */
static void
take_neighbors(void *arg, int64 query, const int64 *positions,
			   const double *distances)
{
	const Found *found = arg;
	const IvfpqPairs *pairs = found->pairs;

	if (found->sampled != NULL)
		IvfpqSampledNote(found->sampled, query, distances);
	IvfpqPutNeighbors(pairs->result, pairs->queries->keys[query],
					  pairs->rows->keys, positions, distances, pairs->k);
}

/* lists: only rows of `probes` near ones count; NULL: all. */
static void
find(Found *found, const IvfpqLists *lists, int probes)
{
	const IvfpqPairs *pairs = found->pairs;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .nqueries = pairs->queries->nrows,
		.from = pairs->queries, .self = pairs->self,
		.lists = lists, .probes = probes,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_neighbors, .arg = found};

	IvfpqFindNeighbors(&wanted);
}

/* Probes are as many as the user says, or as the recall asked for takes. */
static void
find_through_index(const IvfpqPairs *pairs)
{
	IvfpqLists *lists = IvfpqListsGet(pairs->rows, pairs->metric);
	IvfpqSampled *sampled = IvfpqSampledBegin(pairs);
	Found		found = {pairs, sampled};
	int			probes = ivfpq_probes > 0 ? Min(ivfpq_probes, lists->n) :
	IvfpqProbesFor(sampled, lists, ivfpq_recall);

	find(&found, lists, probes);
	IvfpqSampledEnd(sampled,
					psprintf("Each row was compared with those of %d of %d lists.",
							 probes, lists->n));
}

/* All pairs into pairs->rsinfo, see set.h. */
void
IvfpqFindPairs(const IvfpqPairs *pairs, IvfpqMethod method)
{
	Found		exact = {pairs, NULL};

	switch (method)
	{
		case IVFPQ_METHOD_EXACT:
			find(&exact, NULL, 0);
			break;
		case IVFPQ_METHOD_INDEX:
			find_through_index(pairs);
			break;
	}
}
