/*
 * count.h
 *		How many rows an index has (count.c).
 */
#ifndef IVFPQ_COUNT_H
#define IVFPQ_COUNT_H

#include "page/page.h"

/*
 * While at least this fraction of the rows at calibration is left,
 * calibration's results hold: it asks for more than the recall, to be safe
 * from chance.
 */
#define IVFPQ_ENOUGH_LEFT	0.8

/* Sums over the directory's entries. */
typedef struct IvfpqListTotals
{
	int64		rows;			/* by their primary postings */
	int64		live;			/* postings */
	int64		dead;
	int64		longest;		/* live postings of the longest list */
	int			longest_list;
	int64		blocks;
} IvfpqListTotals;

extern void IvfpqSumLists(Relation index, const IvfpqMetaData *meta,
						  IvfpqListTotals *totals);
extern int64 IvfpqCountRows(Relation index, const IvfpqMetaData *meta);
extern double IvfpqRowsAbout(Relation index, const IvfpqMetaData *meta);
extern double IvfpqVisibleFraction(Relation index, const IvfpqMetaData *meta,
								   Relation heap);
extern bool IvfpqHasRows(Relation index, const IvfpqMetaData *meta,
						 double rows);
extern int64 IvfpqCountPending(Relation index, const IvfpqMetaData *meta);

#endif							/* IVFPQ_COUNT_H */
