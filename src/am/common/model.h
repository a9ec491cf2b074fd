/*
 * model.h
 *		The results of training, in memory (model.c).  The small parts
 *		(metapage, mean, codebooks) are cached with the relation; centroids and
 *		a rotation stay on pages.
 */
#ifndef IVFPQ_MODEL_H
#define IVFPQ_MODEL_H

#include "engine/gv_engine.h"
#include "page/page.h"

typedef struct IvfpqModel
{
	IvfpqMetaData meta;
	GvModel		gv;				/* when meta.nlists > 0; without rotation */
	const int32 *parent_offsets;	/* [nparents + 1] first list of each
									 * parent */
	float		values[FLEXIBLE_ARRAY_MEMBER];	/* mean, codebooks,
												 * parent_offsets */
} IvfpqModel;

extern IvfpqModel *IvfpqModelGet(Relation index);
extern IvfpqModel *IvfpqModelLoad(Relation index, const IvfpqMetaData *meta);
extern float *IvfpqRotationLoad(Relation index, const IvfpqMetaData *meta);
extern void IvfpqTransform(Relation index, const IvfpqModel *model,
						   const float *raw, float *vector);
extern void IvfpqModelCheckKeys(Relation index, const IvfpqModel *model,
								const IvfpqKeyForm *columns);

#endif							/* IVFPQ_MODEL_H */
