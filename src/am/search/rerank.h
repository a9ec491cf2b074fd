/*
 * rerank.h
 *		Rows of the table, fetched under a snapshot, and their distances by
 *		the operator's own function (rerank.c).
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

/* Returns whether a row, in a slot of the table's kind, satisfies a qual. */
typedef bool (*IvfpqEarlyQual) (void *arg, TupleTableSlot *row);

/* Rows of a heap, of ascending ids, that will all be fetched. */
typedef struct IvfpqPrefetchRow
{
	Relation	heap;
	const uint64 *ids;			/* [n] the caller's */
	int64		n;
	int64		next;			/* row to be fetched next */
	Buffer		held[IVFPQ_HELD_PAGES]; /* of row i >= next, at i modulo
										 * IVFPQ_HELD_PAGES, or InvalidBuffer */
} IvfpqPrefetchRow;

/* A scan of the whole table. */
typedef struct IvfpqRerankTable
{
	ExprState  *predicate;		/* the index's, or NULL */
	TableScanDesc scan;			/* NULL: not begun, or at its end */
	BlockNumber nblocks;		/* 0: nothing is prefetched */
	BlockNumber current;		/* page of the row returned last */
	Buffer		held;			/* the page two further on, or InvalidBuffer */
} IvfpqRerankTable;

typedef struct IvfpqRerank
{
	/*
	 * The caller's, to be set after IvfpqRerankBegin and changed between
	 * rows; Begin sets all but the snapshot to zero.
	 *
	 * A distance is distance(row's value, query).  A row that the snapshot
	 * sees is rejected unless it satisfies the key quals and the early qual.
	 * Of key quals only those are rechecked that abbreviated keys do not
	 * decide, unless recheck_all_keys is set.  A row of other dimensions than
	 * `dims` is left out, with one warning, unless *warned is set already.
	 */
	Snapshot	snapshot;
	FmgrInfo   *distance;
	Oid			collation;
	Datum		query;
	const IvfpqKeyQuals *quals; /* or NULL */
	bool		recheck_all_keys;
	IvfpqEarlyQual early_qual;	/* or NULL */
	void	   *early_qual_arg;
	int			dims;			/* 0 = any */
	bool	   *warned;			/* if dims > 0 */
	bool		want_all_dead;	/* all_dead is to be set */

	/* out, of the row fetched last, or tested by IvfpqRerankTableMatches */
	bool		rejected;		/* it did not satisfy the quals */
	bool		all_dead;		/* it is dead to all snapshots */
	TupleTableSlot *slot;		/* the row, until IvfpqRerankDone */

	Relation	index;
	Relation	heap;
	bool		is_heap;		/* its access method is heap */
	BlockNumber heap_blocks;	/* no TID may lie beyond */
	struct IndexFetchTableData *fetch;
	AttrNumber	attnum;			/* indexed column; 0 = an expression */
	IndexInfo  *indexInfo;		/* if some column is an expression */
	EState	   *estate;			/* if there are expressions or a predicate */
	MemoryContext context;		/* reset after every row */
	IvfpqType	type;			/* once it is needed: see vector_type() */
	IvfpqPrefetch prefetch;		/* pages of rows that may be fetched */
	IvfpqPrefetchRow prefetch_row;	/* rows that will be fetched */
	IvfpqRerankTable table;
} IvfpqRerank;

extern void IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap,
							 Relation index, Snapshot snapshot);
extern void IvfpqRerankEnd(IvfpqRerank *rerank);

/* Prefetching, between IvfpqRerankPrefetch and IvfpqRerankReleasePages. */
extern void IvfpqRerankPrefetch(IvfpqRerank *rerank, const uint64 *ids,
								int64 n, bool fetches_all);
extern void IvfpqRerankReleasePages(IvfpqRerank *rerank);
extern bool IvfpqRerankReadsFromDisk(const IvfpqRerank *rerank);

/* Returns whether there are rows left whose pages are to be prefetched. */
static inline bool
IvfpqRerankIsPrefetching(const IvfpqRerank *rerank)
{
	return rerank->prefetch.next < rerank->prefetch.n;
}

/* Rows that index entries point to, by their ids (IvfpqTidToId). */
extern bool IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value);
extern const float *IvfpqRerankFetchVector(IvfpqRerank *rerank,
										   IvfpqType *type, uint64 id,
										   int *dims);
extern void IvfpqRerankMakeKeys(IvfpqRerank *rerank, IvfpqKeys *keys,
								IvfpqKeyAbbrevs *abbrevs);
extern void IvfpqRerankDone(IvfpqRerank *rerank);
extern bool IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance);

/* Such rows, where the executor fetches them. */
extern void IvfpqRerankSkip(IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankGivePage(const IvfpqRerank *rerank,
								IndexFetchTableData *fetch, uint64 id);

/* Rows of the table, which need not be in the index. */
extern void IvfpqRerankTableBegin(IvfpqRerank *rerank);
extern TupleTableSlot *IvfpqRerankTableNext(IvfpqRerank *rerank);
extern bool IvfpqRerankTableMatches(IvfpqRerank *rerank, TupleTableSlot *row);
extern bool IvfpqRerankTableRow(IvfpqRerank *rerank, TupleTableSlot *row,
								double *distance);

#endif							/* IVFPQ_RERANK_H */
