/*
 * util.h
 *		Snapshots under which a background worker reads rows, phases of a
 *		build's progress, and pairs of numbers, sorted (util.c).
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

/*
 * Build phases for pg_stat_progress_create_index.  Core owns
 * PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE = 1.
 */
#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

/*
 * A sort of pairs of numbers, on disk if there are many.  Pairs are put in any
 * order.  After IvfpqPairSortPerform, IvfpqPairSortNext returns them in the
 * order of the first number, then of the second, both as int8; and false at
 * their end.  Memory belongs to the context that was current at
 * IvfpqPairSortBegin.
 */
typedef struct IvfpqPairSort
{
	Tuplesortstate *state;
	TupleTableSlot *slot;
} IvfpqPairSort;

extern void IvfpqPairSortBegin(IvfpqPairSort *sort);
extern void IvfpqPairSortPut(IvfpqPairSort *sort, uint64 first, uint64 second);
extern void IvfpqPairSortPerform(IvfpqPairSort *sort);
extern bool IvfpqPairSortNext(IvfpqPairSort *sort, uint64 *first,
							  uint64 *second);
extern void IvfpqPairSortEnd(IvfpqPairSort *sort);

#endif							/* IVFPQ_UTIL_H */
