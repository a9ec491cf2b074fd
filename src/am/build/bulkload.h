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
#include "page/refinepage.h"

/* How a row of the table is used; flags. */
typedef enum IvfpqRowUse
{
	IVFPQ_ROW_NONE = 0,
	IVFPQ_ROW_PLACED = 1,
	IVFPQ_ROW_SAMPLED = 2,		/* offered to calibration's later levels */
	IVFPQ_ROW_BOTH = 3
} IvfpqRowUse;

typedef struct IvfpqBulkLoad
{
	const IvfpqTraining *training;
	IvfpqParallel *parallel;
	int64		rows;			/* placed by all participants; set last */
	IvfpqStoredForm form;		/* of postings on their way */
	IvfpqPlacer placer;
	IvfpqPostings postings;		/* on their way to the pages, */
	IvfpqTempFile ranges;		/* with workers by way of these files:
								 * IvfpqStoredPosting, by ranges of lists */
	IvfpqStoredPosting *item;	/* one of them */
	int64		npostings;		/* of this participant */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqCalibMirror calib_mirror;	/* searched for it, if gpuvecd builds */

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
