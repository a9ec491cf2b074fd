/*
 * measure.h
 *		Rows fetched, and the operator's own distance of them (measure.c).
 */
#ifndef IVFPQ_MEASURE_H
#define IVFPQ_MEASURE_H

#include "access/relscan.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"

#include "am/common/value.h"
#include "am/heap/prefetchrow.h"
#include "page/buffer/prefetch.h"

typedef struct IvfpqRerank
{
	Relation	index;
	Relation	heap;
	BlockNumber heap_blocks;	/* no TID may lie beyond */
	Snapshot	snapshot;
	struct IndexFetchTableData *fetch;
	TupleTableSlot *slot;
	AttrNumber	attnum;			/* indexed column; 0 = an expression */
	IndexInfo  *indexInfo;		/* for an expression */
	EState	   *estate;
	FmgrInfo   *distance;
	Oid			collation;
	Datum		query;
	MemoryContext context;		/* reset after every row */
	int			dims;			/* measure rows of these only; 0 = all */
	IvfpqType	type;			/* when dims > 0 */
	bool	   *told;			/* was it said that one is passed over? */
	bool		asks_dead;		/* all_dead is wanted, */
	bool		all_dead;		/* of a row not seen: nobody ever will */
	bool		is_heap;
	IvfpqComing coming;			/* rows to be fetched, of a heap */
	IvfpqAhead	ahead;			/* the same, or rows foreseen */
} IvfpqRerank;

extern void IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap,
							 Relation index, Snapshot snapshot);
extern void IvfpqRerankQuery(IvfpqRerank *rerank, FmgrInfo *distance,
							 Oid collation, Datum query);
extern void IvfpqRerankDims(IvfpqRerank *rerank, int dims, bool *told);
extern void IvfpqRerankExpect(IvfpqRerank *rerank, const uint64 *ids,
							  int64 n);
extern bool IvfpqRerankIsCold(const IvfpqRerank *rerank);
extern void IvfpqRerankForesee(IvfpqRerank *rerank, const uint64 *ids,
							   int64 n);
extern bool IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value);
extern void IvfpqRerankDone(IvfpqRerank *rerank);
extern bool IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance);
extern void IvfpqRerankPause(IvfpqRerank *rerank);
extern void IvfpqRerankEnd(IvfpqRerank *rerank);

#endif							/* IVFPQ_MEASURE_H */
