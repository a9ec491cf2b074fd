/*
 * tids.h
 *		TIDs of an index in heap order (tids.c).
 */
#ifndef IVFPQ_TIDS_H
#define IVFPQ_TIDS_H

#include "utils/tuplesort.h"

#include "engine/gv_engine.h"
#include "page/pending.h"

extern Tuplesortstate *IvfpqSortTids(Relation index,
									 const GvCondition *condition,
									 int sort_mem);
extern Tuplesortstate *IvfpqSortFrozen(Relation index,
									   const IvfpqFrozen *frozen,
									   int sort_mem);

#endif							/* IVFPQ_TIDS_H */
