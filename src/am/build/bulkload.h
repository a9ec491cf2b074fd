/*
 * bulkload.h
 *		Rows on their way to inverted lists, in bulk (bulkload.c).
 */
#ifndef IVFPQ_BULKLOAD_H
#define IVFPQ_BULKLOAD_H

#include "am/build/copies.h"
#include "am/build/placerows.h"
#include "am/calibrate/calibrate.h"
#include "am/calibrate/trialsearch.h"
#include "am/team/tempfile.h"
#include "page/record.h"

/* What a row of the table is read for. */
typedef enum IvfpqRowUse
{
	IVFPQ_ROW_NONE = 0,
	IVFPQ_ROW_PLACED = 1,
	IVFPQ_ROW_SAMPLED = 2,		/* calibration looks at it, and */
	IVFPQ_ROW_BOTH = 3
} IvfpqRowUse;

typedef struct IvfpqBulkLoad
{
	const IvfpqTraining *training;
	IvfpqParallel *parallel;
	int64		rows;			/* that all have placed, once they have */
	IvfpqStoredForm form;		/* of copies on their way */
	IvfpqPlacer placer;
	IvfpqPostings postings;		/* on their way to the pages, */
	IvfpqTempFile ranges;		/* in a team by way of this:
								 * IvfpqStoredPosting, by ranges of lists */
	IvfpqStoredPosting *item;	/* one of them */
	int64		npostings;		/* from here */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqCalibMirror calib_mirror;	/* where it searches, if gpuvecd is there */

	/* refine records, if there are to be any */
	IvfpqRecord *record;		/* or NULL */
	IvfpqRecordBuilder refine;
} IvfpqBulkLoad;

extern void IvfpqBulkLoadPrepare(IvfpqParallel *parallel,
								 const IvfpqTraining *training);
extern void IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
							   const IvfpqTraining *training,
							   IvfpqParallel *parallel,
							   const IvfpqMetaData *meta, bool log);
extern IvfpqRowUse IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id);
extern void IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
							 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use);
extern void IvfpqBulkLoadWrite(IvfpqBulkLoad *load, Relation index,
							   IvfpqMetaData *meta, bool shared);
extern void IvfpqBulkLoadFinish(IvfpqBulkLoad *load, Relation index,
								IvfpqMetaData *meta, bool shared);
extern void IvfpqBulkLoadHelp(IvfpqBulkLoad *load, Relation index);

#endif							/* IVFPQ_BULKLOAD_H */
