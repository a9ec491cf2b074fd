/*
 * rerank.h
 *		Rows of a table on their way into the processor's cache before they are
 *		reranked (rerank.c).
 */
#ifndef IVFPQ_RERANK_H
#define IVFPQ_RERANK_H

#include "access/relscan.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "utils/relcache.h"

#include "am/types/keys.h"
#include "am/types/vector.h"
#include "page/bufcache.h"

#define IVFPQ_HELD_PAGES	8	/* pinned before they are read, at most */

typedef struct IvfpqPrefetchRow
{
	Relation	heap;
	const uint64 *ids;			/* [n] the caller's, in the order of reading */
	int64		n;
	int64		next;			/* to be read */
	Buffer		held[IVFPQ_HELD_PAGES]; /* of ids[i], i >= next, at i modulo
										 * that many */
} IvfpqPrefetchRow;

/*
 * Rows of a heap, of ascending ids, will be read.  Until IvfpqPrefetchRowEnd
 * ids must stay as they are, and a few pages are pinned.
 */

/*
 * A row is read now: its page, pinned for the caller, or InvalidBuffer where
 * that is not known.
 */

/* No more rows are read. */
extern void IvfpqPrefetchRowEnd(IvfpqPrefetchRow *rows);

/* ----
 * Rows of a table that is read from end to end, on their way into the
 * processor's cache (rerank.c).
 */

typedef struct IvfpqPrefetchPage
{
	Relation	heap;
	BlockNumber nblocks;		/* 0: nothing is fetched */
	BlockNumber at;				/* where the reader is */
	Buffer		held;			/* the page after the next, or InvalidBuffer */
} IvfpqPrefetchPage;

/* A table will be read, front to back.  Until the end a page is pinned. */
extern void IvfpqPrefetchPageBegin(IvfpqPrefetchPage *pages, Relation heap);

/* The reader has got a row of this page. */
extern void IvfpqPrefetchPageTo(IvfpqPrefetchPage *pages, BlockNumber blkno);

/* No more is read. */
extern void IvfpqPrefetchPageEnd(IvfpqPrefetchPage *pages);

/* ----
 * Rows fetched, and the operator's own distance of them (rerank.c).
 */

/* Does a row of the table, in a slot of its kind, pass a condition? */
typedef bool (*IvfpqSatisfies) (void *arg, TupleTableSlot *row);

typedef struct IvfpqRerank
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
	int			dims;			/* rerank rows of these only; 0 = all */
	IvfpqType	type;			/* when dims > 0 */
	bool	   *told;			/* has a warning been given? */
	IvfpqSatisfies satisfies;	/* rows that do not are not reranked; NULL:
								 * all do */
	void	   *satisfies_arg;
	const IvfpqKeyQuals *quals; /* what is asked of keys, or NULL */
	bool		asks_all;		/* also what abbreviated keys have answered */
	bool		rejected;		/* the row fetched last did not pass */
	bool		asks_dead;		/* all_dead is wanted, */
	bool		all_dead;		/* of a row not seen: no snapshot ever will */
	bool		is_heap;
	IvfpqPrefetchRow prefetch_row;	/* rows to be fetched, of a heap */
	IvfpqPrefetch prefetch;		/* the same, or rows foreseen */
} IvfpqRerank;

extern void IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap,
							 Relation index, Snapshot snapshot);
extern void IvfpqRerankQuery(IvfpqRerank *rerank, FmgrInfo *distance,
							 Oid collation, Datum query);
extern void IvfpqRerankKeys(IvfpqRerank *rerank,
							const IvfpqKeyQuals *quals);
extern bool IvfpqRerankMatches(IvfpqRerank *rerank, TupleTableSlot *row,
							   bool asks_all);
extern void IvfpqRerankDims(IvfpqRerank *rerank, int dims, bool *told);
extern void IvfpqRerankPrefetchSorted(IvfpqRerank *rerank,
									  const uint64 *ids, int64 n);
extern bool IvfpqRerankIsCold(const IvfpqRerank *rerank);
extern void IvfpqRerankPrefetch(IvfpqRerank *rerank, const uint64 *ids,
								int64 n);
extern bool IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value);
extern void IvfpqRerankColumns(IvfpqRerank *rerank, Datum *values,
							   bool *isnull);
extern void IvfpqRerankDone(IvfpqRerank *rerank);
extern bool IvfpqRerankRow(IvfpqRerank *rerank, uint64 id,
						   double *distance);
extern bool IvfpqRerankWhole(IvfpqRerank *rerank, uint64 id, Datum *value);
extern void IvfpqRerankOthers(IvfpqRerank *rerank);
extern bool IvfpqRerankAdmits(IvfpqRerank *rerank, TupleTableSlot *row);
extern bool IvfpqRerankOther(IvfpqRerank *rerank, TupleTableSlot *row,
							 double *distance);
extern bool IvfpqRerankSees(IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankForesee(IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankHandOver(const IvfpqRerank *rerank,
								IndexFetchTableData *fetch, uint64 id);
extern bool IvfpqRerankIsPrefetching(const IvfpqRerank *rerank);
extern void IvfpqRerankPause(IvfpqRerank *rerank);
extern void IvfpqRerankEnd(IvfpqRerank *rerank);

#endif							/* IVFPQ_RERANK_H */
