/*
 * ivfpqcoded.h
 *		Centroids in codes; see ivfpqcoded.c.
 */
#ifndef IVFPQCODED_H
#define IVFPQCODED_H

#include "am/ivfpq.h"

extern void IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
							const IvfpqTraining *training, bool shared);
extern void IvfpqCodedOffer(Relation index, const IvfpqModel *model,
							IvfpqQuery *query, const GvTopK *parents,
							int nparents, GvTopK *lists);

#endif							/* IVFPQCODED_H */
