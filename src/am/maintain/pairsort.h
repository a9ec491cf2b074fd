/*
 * pairsort.h
 *		Pairs of numbers, sorted, on disk where they are many (pairsort.c).
 */
#ifndef IVFPQ_PAIRSORT_H
#define IVFPQ_PAIRSORT_H

#include "executor/tuptable.h"
#include "utils/tuplesort.h"

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

#endif							/* IVFPQ_PAIRSORT_H */
