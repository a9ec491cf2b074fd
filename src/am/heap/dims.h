/*
 * dims.h
 *		How many dimensions rows have (dims.c).
 */
#ifndef IVFPQ_DIMS_H
#define IVFPQ_DIMS_H

#include "page/page.h"

extern int	IvfpqRowDims(Relation heap, Relation index,
						 const IvfpqMetaData *meta);
extern int64 IvfpqFindMismatched(Relation heap, Relation index,
								 const IvfpqMetaData *meta, int *dims,
								 ItemPointer first, int *first_dims);
extern bool IvfpqDimsBind(Relation heap, Relation index,
						  const IvfpqMetaData *meta);
extern bool IvfpqFreeDims(Relation heap, Relation index,
						  const IvfpqMetaData *meta, ItemPointer tid);

#endif							/* IVFPQ_DIMS_H */
