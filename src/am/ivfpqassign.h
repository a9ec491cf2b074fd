/*
 * ivfpqassign.h
 *		Rows on their way to inverted lists, in bulk (ivfpqassign.c).
 */
#ifndef IVFPQASSIGN_H
#define IVFPQASSIGN_H

#include "utils/tuplesort.h"

#include "am/ivfpqtrain.h"

typedef struct IvfpqAssign
{
	const IvfpqTraining *training;
	int64		rows;			/* placed so far */

	/* rows waiting to be placed */
	int			batch_rows;		/* capacity */
	int			nbatch;
	float	   *batch;			/* [batch_rows][dims] */
	uint64	   *batch_ids;		/* [batch_rows] TIDs */
	int32	   *batch_lists;	/* [batch_rows][copies] */
	void	   *scratch;		/* of gv_place */

	/* copies on their way to the pages */
	Tuplesortstate *sort;
	TupleDesc	sort_desc;
	TupleTableSlot *sort_slot;
	bytea	   *copy;			/* T, code, refine record's address */
	uint32	   *counts;			/* [nlists] copies of each list */

	IvfpqCalibration *calibration;	/* NULL: too few rows */

	/* refine records, if there are to be any */
	IvfpqRefineRecord *record;	/* or NULL */
	IvfpqRefineBuilder refine;
	ItemPointerData address;	/* of the row's whose copies are sorted */
} IvfpqAssign;

extern void IvfpqAssignBegin(IvfpqAssign *assign,
							 const IvfpqTraining *training);
extern void IvfpqAssignRefine(IvfpqAssign *assign, Relation index, bool log);
extern void IvfpqAssignRow(IvfpqAssign *assign, const float *row, uint64 id);
extern void IvfpqAssignWrite(IvfpqAssign *assign, Relation index,
							 IvfpqMetaData *meta, bool shared);

#endif							/* IVFPQASSIGN_H */
