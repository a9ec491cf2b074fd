/*
 * ivfpqassign.h
 *		Rows on their way to inverted lists, in bulk (ivfpqassign.c).
 */
#ifndef IVFPQASSIGN_H
#define IVFPQASSIGN_H

#include "am/ivfpqcopies.h"
#include "am/ivfpqplace.h"
#include "am/ivfpqtrial.h"

typedef struct IvfpqAssign
{
	const IvfpqTraining *training;
	int64		rows;			/* placed so far */
	IvfpqPlacer placer;
	IvfpqCopies copies;			/* on their way to the pages */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqTrial	trial;			/* where it searches, if gpuvecd is there */

	/* refine records, if there are to be any */
	IvfpqRefineRecord *record;	/* or NULL */
	IvfpqRefineBuilder refine;
} IvfpqAssign;

extern void IvfpqAssignBegin(IvfpqAssign *assign, Relation index,
							 const IvfpqTraining *training, bool refine,
							 bool log);
extern void IvfpqAssignRow(IvfpqAssign *assign, const float *row, uint64 id);
extern void IvfpqAssignWrite(IvfpqAssign *assign, Relation index,
							 IvfpqMetaData *meta, bool shared);

#endif							/* IVFPQASSIGN_H */
