/*
 * manyrows.c
 *		Many searches for other code of this backend, which knows the caller's
 *		rights.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/predicate.h"
#include "utils/memutils.h"

#include "am/common/model.h"
#include "am/many/many.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/heaptids.h"
#include "client/client.h"
#include "page/pending.h"

/* Nanoseconds that a query answered by gpuvecd takes here, beside its rows. */
#define ANSWER_NS		5000.0

/* See manyrows.h. */
bool
IvfpqBulkServes(Relation heap, Relation index, int dims)
{
	HeapTuple	tuple = index->rd_indextuple;
	IvfpqMetaData meta;

	if (!IvfpqBulkIsWhole(index) ||
		!heap_attisnull(tuple, Anum_pg_index_indpred, NULL) ||
		!heap_attisnull(tuple, Anum_pg_index_indexprs, NULL))
		return false;
	IvfpqMetaRead(index, &meta);
	return meta.nlists > 0 && IvfpqRowDims(heap, index, &meta) == dims;
}

/* See manyrows.h. */
double
IvfpqBulkCost(Relation heap, Relation index, double n, int dims, int k,
			  double *rows)
{
	IvfpqBulk	bulk = {.heap = heap, .index = index, .k = k};
	const IvfpqMetaData *meta;
	double		row = IVFPQ_FETCH_NS + dims * IVFPQ_DIMENSION_NS;
	double		pending;		/* rows, which every query is compared with */
	double		postings;
	IvfpqSearchParams params;
	bool		is_last;

	bulk.model = IvfpqModelGet(index);
	meta = &bulk.model->meta;
	*rows = IvfpqRowsAbout(index, meta);
	pending = (double) IvfpqPendingEstimate(index);
	if (pending > IVFPQ_MIN_RERANKED)	/* it may be too many */
		pending = (double) IvfpqCountPending(index, meta);
	bulk.everything = pending > IVFPQ_MIN_RERANKED;
	pending *= IVFPQ_FETCH_NS + n * dims * IVFPQ_DIMENSION_NS;
	postings = *rows * meta->lists_per_row / meta->nlists;
	if (!IvfpqBulkParams(&bulk, Max(k, IVFPQ_FIRST_ROWS), 0, &params,
						 &is_last))
		return *rows * (IVFPQ_FETCH_NS + n * dims * IVFPQ_DIMENSION_NS);
	if (IvfpqServerIsWanted())
		return pending + n * (params.candidates * row + ANSWER_NS);
	return pending +
		n * (params.candidates * row +
			 params.probes * postings * bulk.model->gv.m * IVFPQ_LOOKUP_NS +
			 IvfpqCentroidsToCompare(meta, params.probes,
									 params.beyond_parents) *
			 dims * IVFPQ_LOOKUP_NS);
}

/* See manyrows.h. */
void
IvfpqBulkFind(const IvfpqBulkRequest *request)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq searches",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	IvfpqBulk	bulk = {
		.heap = request->heap,
		.index = request->index,
		.snapshot = request->snapshot,
		.k = request->k,
		.queries = {.vectors = request->vectors, .n = request->n,
		.dims = request->dims}
	};

	bulk.model = IvfpqModelGet(bulk.index);
	PredicateLockRelation(bulk.index, bulk.snapshot);
	IvfpqCountersOpen();
	IvfpqBulkAnswer(&bulk, request->sink, request->arg);
	IvfpqBulkCount(&bulk, request->more);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
