/*
 * heaptids.h
 *		TIDs of an index in heap order, and dimensions of rows (heaptids.c).
 */
#ifndef IVFPQ_HEAPTIDS_H
#define IVFPQ_HEAPTIDS_H

#include "am/common/util.h"
#include "engine/gv_engine.h"
#include "page/page.h"
#include "page/pending.h"

/* Sort and return TIDs, which are int8 in the sort (IvfpqTidToId). */
extern bool IvfpqSortTids(IvfpqSort *tids, Relation index,
						  const GvCondition *condition, int64 most,
						  int memory_kb);
extern void IvfpqSortFrozen(IvfpqSort *tids, Relation index,
							const IvfpqFrozen *frozen, int memory_kb);
extern bool IvfpqNextTid(IvfpqSort *tids, uint64 *id);

/* Find or check the dimensions of rows. */
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
