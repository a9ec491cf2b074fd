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

#define IVFPQ_HELD_PAGES	8	/* maximum number of pages that are pinned
								 * before their rows are fetched */

/* Returns whether a row, in a slot of the table's type, satisfies a qual. */
typedef bool (*IvfpqEarlyQual) (void *arg, TupleTableSlot *row);

/* Rows of a heap that will all be fetched, by ascending ids. */
typedef struct IvfpqPrefetchRow
{
	Relation	heap;
	const uint64 *ids;			/* [n] in the caller's memory */
	int64		n;
	int64		next;			/* number of the row to be fetched next */
	Buffer		held[IVFPQ_HELD_PAGES]; /* pinned pages, or InvalidBuffer; row
										 * i >= next uses element i %
										 * IVFPQ_HELD_PAGES */
} IvfpqPrefetchRow;

/* A scan of the whole table. */
typedef struct IvfpqRerankTable
{
	ExprState  *predicate;		/* the index's predicate, or NULL */
	TableScanDesc scan;			/* NULL: the scan has not begun or has ended */
	BlockNumber nblocks;		/* of the table; 0: nothing is prefetched */
	BlockNumber current;		/* page of the row that was returned last */
	Buffer		held;			/* the second page after the current page,
								 * pinned, or InvalidBuffer */
} IvfpqRerankTable;

typedef struct IvfpqRerank
{
	/*
	 * The caller sets these fields after IvfpqRerankBegin, and may change
	 * them between rows.  IvfpqRerankBegin sets the snapshot, and all other
	 * fields to zero.
	 *
	 * A distance is distance(row's value, query).  A row that the snapshot
	 * sees is rejected unless it satisfies the key quals and the early qual.
	 * Key quals that were tested by abbreviated keys alone are not rechecked,
	 * unless recheck_all_keys is set.  A row whose dimensions differ from
	 * `dims` is left out.  The first such row raises a warning and sets
	 * *warned; no warning is raised if *warned is set already.
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
	bool	   *warned;			/* not NULL if dims > 0 */
	bool		want_all_dead;	/* IvfpqRerankFetch sets all_dead */

	/*
	 * results for the row that was fetched last, or that
	 * IvfpqRerankTableMatches tested last
	 */
	bool		rejected;		/* the row did not satisfy the quals */
	bool		all_dead;		/* the row is dead to all snapshots */
	TupleTableSlot *slot;		/* holds the row until IvfpqRerankDone */
	ItemPointerData tid;		/* of the tuple that the snapshot sees */

	Relation	index;
	Relation	heap;
	bool		is_heap;		/* the table's access method is heap */
	BlockNumber heap_blocks;	/* size of the table when last looked up; a
								 * TID beyond it makes us look it up again */
	struct IndexFetchTableData *fetch;
	AttrNumber	attnum;			/* the vector's column; 0 = it is an
								 * expression */
	IndexInfo  *indexInfo;		/* NULL: no indexed column is an expression */
	EState	   *estate;			/* NULL: there is neither an expression nor a
								 * predicate */
	MemoryContext context;		/* reset after every row */
	IvfpqType	type;			/* vector_type() sets it when it is first
								 * needed */
	IvfpqPrefetch prefetch;		/* pages of rows that may be fetched */
	IvfpqPrefetchRow prefetch_row;	/* rows that will be fetched */
	IvfpqRerankTable table;
} IvfpqRerank;

extern void IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap,
							 Relation index, Snapshot snapshot);
extern void IvfpqRerankEnd(IvfpqRerank *rerank);

/* Prefetch pages between IvfpqRerankPrefetch and IvfpqRerankReleasePages. */
extern void IvfpqRerankPrefetch(IvfpqRerank *rerank, const uint64 *ids,
								int64 n, bool fetches_all);
extern void IvfpqRerankSeekPlace(const IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankSeekRow(const IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankSeekTuple(const IvfpqRerank *rerank, uint64 id,
								 bool whole);
extern void IvfpqRerankReleasePages(IvfpqRerank *rerank);
extern bool IvfpqRerankReadsFromDisk(const IvfpqRerank *rerank);

/* Returns whether rows are left whose pages have to be prefetched. */
static inline bool
IvfpqRerankIsPrefetching(const IvfpqRerank *rerank)
{
	return rerank->prefetch.next < rerank->prefetch.n;
}

/* See which rows need not be fetched to know that they are visible. */
extern bool IvfpqRerankMayLook(const IvfpqRerank *rerank);
extern void IvfpqRerankLook(IvfpqRerank *rerank, const uint64 *ids, int n,
							bool *seen);

/* Fetch rows that index entries point to, named by ids (IvfpqTidToId). */
extern bool IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value);
extern const float *IvfpqRerankFetchVector(IvfpqRerank *rerank,
										   IvfpqType *type, uint64 id,
										   int *dims);
extern void IvfpqRerankMakeKeys(IvfpqRerank *rerank, IvfpqKeys *keys,
								IvfpqKeyAbbrevs *abbrevs);
extern void IvfpqRerankDone(IvfpqRerank *rerank);
extern bool IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance);

/* Serve the executor, which fetches some rows itself. */
extern void IvfpqRerankSkip(IvfpqRerank *rerank, uint64 id);
extern void IvfpqRerankGivePage(const IvfpqRerank *rerank,
								IndexFetchTableData *scan, uint64 id,
								Buffer held);

/* Read and test rows of the table that need not be in the index. */
extern void IvfpqRerankTableBegin(IvfpqRerank *rerank);
extern TupleTableSlot *IvfpqRerankTableNext(IvfpqRerank *rerank);
extern bool IvfpqRerankTableMatches(IvfpqRerank *rerank, TupleTableSlot *row);
extern bool IvfpqRerankTableRow(IvfpqRerank *rerank, TupleTableSlot *row,
								double *distance);

#endif							/* IVFPQ_RERANK_H */
