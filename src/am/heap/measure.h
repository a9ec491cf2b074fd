/*
 * measure.h
 *		Rows fetched, and the operator's own distance of them (measure.c).
 */
#ifndef IVFPQ_MEASURE_H
#define IVFPQ_MEASURE_H

#include "access/relscan.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"

#include "am/heap/prefetchrow.h"
#include "am/keys/keys.h"
#include "am/value/value.h"
#include "page/buffer/prefetch.h"

/* Does a row of the table, in a slot of its kind, pass a condition? */
typedef bool (*IvfpqPasses) (void *arg, TupleTableSlot *row);

typedef struct IvfpqMeasure
{
	Relation	index;
	Relation	heap;
	BlockNumber heap_blocks;	/* no TID may lie beyond */
	Snapshot	snapshot;
	struct IndexFetchTableData *fetch;
	TupleTableSlot *slot;
	AttrNumber	attnum;			/* indexed column; 0 = an expression */
	IndexInfo  *indexInfo;		/* if some column is an expression */
	EState	   *estate;
	ExprState  *predicate;		/* of rows that do not come by the index */
	FmgrInfo   *distance;
	Oid			collation;
	Datum		query;
	MemoryContext context;		/* reset after every row */
	int			dims;			/* measure rows of these only; 0 = all */
	IvfpqType	type;			/* when dims > 0 */
	bool	   *told;			/* has a warning been given? */
	IvfpqPasses passes;			/* rows that do not are not measured; NULL:
								 * all do */
	void	   *passes_arg;
	const IvfpqKeyTests *tests; /* what is asked of keys, or NULL */
	bool		asks_all;		/* also what images have answered */
	bool		rejected;		/* the row fetched last did not pass */
	bool		asks_dead;		/* all_dead is wanted, */
	bool		all_dead;		/* of a row not seen: no snapshot ever will */
	bool		is_heap;
	IvfpqPrefetchRow prefetch_row;	/* rows to be fetched, of a heap */
	IvfpqPrefetch prefetch;		/* the same, or rows foreseen */
} IvfpqMeasure;

extern void IvfpqMeasureBegin(IvfpqMeasure *measure, Relation heap,
							  Relation index, Snapshot snapshot);
extern void IvfpqMeasureQuery(IvfpqMeasure *measure, FmgrInfo *distance,
							  Oid collation, Datum query);
extern void IvfpqMeasureKeys(IvfpqMeasure *measure,
							 const IvfpqKeyTests *tests);
extern bool IvfpqMeasureMatches(IvfpqMeasure *measure, TupleTableSlot *row,
								bool asks_all);
extern void IvfpqMeasureDims(IvfpqMeasure *measure, int dims, bool *told);
extern void IvfpqMeasurePrefetchSorted(IvfpqMeasure *measure,
									   const uint64 *ids, int64 n);
extern bool IvfpqMeasureIsCold(const IvfpqMeasure *measure);
extern void IvfpqMeasurePrefetch(IvfpqMeasure *measure, const uint64 *ids,
								 int64 n);
extern bool IvfpqMeasureFetch(IvfpqMeasure *measure, uint64 id, Datum *value);
extern void IvfpqMeasureColumns(IvfpqMeasure *measure, Datum *values,
								bool *isnull);
extern void IvfpqMeasureDone(IvfpqMeasure *measure);
extern bool IvfpqMeasureRow(IvfpqMeasure *measure, uint64 id,
							double *distance);
extern bool IvfpqMeasureWhole(IvfpqMeasure *measure, uint64 id, Datum *value);
extern void IvfpqMeasureOthers(IvfpqMeasure *measure);
extern bool IvfpqMeasureAdmits(IvfpqMeasure *measure, TupleTableSlot *row);
extern bool IvfpqMeasureOther(IvfpqMeasure *measure, TupleTableSlot *row,
							  double *distance);
extern bool IvfpqMeasureSees(IvfpqMeasure *measure, uint64 id);
extern void IvfpqMeasureForesee(IvfpqMeasure *measure, uint64 id);
extern void IvfpqMeasureHandOver(const IvfpqMeasure *measure,
								 IndexFetchTableData *fetch, uint64 id);
extern bool IvfpqMeasureIsPrefetching(const IvfpqMeasure *measure);
extern void IvfpqMeasurePause(IvfpqMeasure *measure);
extern void IvfpqMeasureEnd(IvfpqMeasure *measure);

#endif							/* IVFPQ_MEASURE_H */
