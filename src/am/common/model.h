/*
 * model.h
 *		The model of an index in memory, and the number of its rows (model.c).
 */
#ifndef IVFPQ_MODEL_H
#define IVFPQ_MODEL_H

#include "engine/gv_engine.h"
#include "page/page.h"

typedef struct IvfpqModel
{
	IvfpqMetaData meta;
	GvModel		gv;				/* valid if meta.nlists > 0; without the
								 * rotation */
	IvfpqLayout layout;			/* of blocks; valid if meta.nlists > 0 */
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

/*
 * The results of calibration hold while the index still has at least this
 * fraction of the rows that it had at calibration.  They hold for somewhat
 * fewer rows because calibration aims above the target recall, to allow for
 * chance.
 */
#define IVFPQ_ENOUGH_LEFT	0.8

/* Sums over the directory's entries. */
typedef struct IvfpqListTotals
{
	int64		rows;			/* rows, counted by their primary postings */
	int64		live;			/* live postings */
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

#endif							/* IVFPQ_MODEL_H */
