/*
 * util.h
 *		Snapshots under which a background worker reads rows (util.c).
 */
#ifndef IVFPQ_UTIL_H
#define IVFPQ_UTIL_H

#include "executor/tuptable.h"
#include "utils/tuplesort.h"

extern void IvfpqSnapshotsAreOurs(void);
extern void IvfpqSnapshotTake(void);
extern void IvfpqSnapshotDrop(void);
extern void IvfpqSnapshotForget(void);
extern void IvfpqSnapshotRenew(void);

/* ----
 * Build phases for pg_stat_progress_create_index; core owns
 * PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE = 1.
 */

#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

/* ----
 * Pairs of numbers, sorted, on disk where they are many (util.c).
 */

typedef struct IvfpqPairSort
{
	Tuplesortstate *state;
	TupleTableSlot *slot;
} IvfpqPairSort;

/*
 * Pairs are put in any order.  After IvfpqPairSortPerform they come by the
 * first number, then by the second, as int8; false at their end.  Memory is of
 * the current context at the beginning.
 */
extern void IvfpqPairSortBegin(IvfpqPairSort *sort);
extern void IvfpqPairSortPut(IvfpqPairSort *sort, uint64 first, uint64 second);
extern void IvfpqPairSortPerform(IvfpqPairSort *sort);
extern bool IvfpqPairSortNext(IvfpqPairSort *sort, uint64 *first,
							  uint64 *second);
extern void IvfpqPairSortEnd(IvfpqPairSort *sort);

#endif							/* IVFPQ_UTIL_H */
