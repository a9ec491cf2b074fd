/*
 * coded.h
 *		Centroids in codes; see coded.c.
 */
#ifndef IVFPQ_CODED_H
#define IVFPQ_CODED_H

#include "am/ivfpq.h"

extern void IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
							const IvfpqTraining *training, bool shared);
extern void IvfpqCodedOffer(Relation index, const IvfpqModel *model,
							IvfpqQuery *query, const GvTopK *parents,
							int nparents, GvTopK *lists);

#endif							/* IVFPQ_CODED_H */
