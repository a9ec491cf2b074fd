/*
 * sort.h
 *		Sorting uint64, among them TIDs as numbers (IvfpqTidToId).
 */
#ifndef IVFPQ_SORT_H
#define IVFPQ_SORT_H

extern int	IvfpqCompareNumbers(const void *a, const void *b);
extern void IvfpqSortNumbers(uint64 *numbers, Size n);
extern void IvfpqSortBits(uint64 *numbers, uint64 *scratch, int64 n, int bit);

#endif							/* IVFPQ_SORT_H */
