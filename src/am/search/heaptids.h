/*
 * heaptids.h
 *		All TIDs of an index, in heap order, and the dimensions of its rows
 *		(heaptids.c).
 */
#ifndef IVFPQ_HEAPTIDS_H
#define IVFPQ_HEAPTIDS_H

#include "utils/tuplesort.h"

#include "engine/gv_engine.h"
#include "page/page.h"
#include "page/pending.h"

/* Sorts of TIDs as int8 (IvfpqTidToId), ready to be read */
extern Tuplesortstate *IvfpqSortTids(Relation index,
									 const GvCondition *condition,
									 int sort_mem);
extern Tuplesortstate *IvfpqSortFrozen(Relation index,
									   const IvfpqFrozen *frozen,
									   int sort_mem);

/* Dimensions */
extern int	IvfpqRowDims(Relation heap, Relation index,
						 const IvfpqMetaData *meta);
extern int64 IvfpqFindMismatched(Relation heap, Relation index,
								 const IvfpqMetaData *meta, int *dims,
								 ItemPointer first, int *first_dims);
extern bool IvfpqDimsBind(Relation heap, Relation index,
						  const IvfpqMetaData *meta);
extern bool IvfpqFreeDims(Relation heap, Relation index,
						  const IvfpqMetaData *meta, ItemPointer tid);

#endif							/* IVFPQ_HEAPTIDS_H */
