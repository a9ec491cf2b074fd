/*
 * calibrate.h
 *		Calibration, which measures the cost of each recall (calibrate.c).
 */
#ifndef IVFPQ_CALIBRATE_H
#define IVFPQ_CALIBRATE_H

#include "am/build/recallgrid.h"
#include "am/types/queries.h"

/* Standard errors on each side of the mean in a two-sided interval of 95 %. */
#define IVFPQ_Z_95				1.959964

/* The calibration of an index in use. */
typedef struct IvfpqRemeasure
{
	IvfpqModel *model;
	IvfpqType	type;
	IvfpqTraining training;		/* the index's model, and the queries */
	const IvfpqQueries *given;	/* a user's queries, in the order of training,
								 * or NULL */
	IvfpqCalibration *calibration;	/* has the ground truth */
	int64		rows;
} IvfpqRemeasure;

/* Sums over the recalls of single queries. */
typedef struct IvfpqRecallSums
{
	int64		n;
	double		sum;
	double		sum_squares;
} IvfpqRecallSums;

extern void IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
								IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
								IvfpqParallel *parallel);
extern IvfpqRemeasure *IvfpqRemeasureBegin(Relation heap, Relation index,
										   IvfpqQueries *given,
										   bool must_serve);
extern bool IvfpqRemeasureStore(IvfpqRemeasure *remeasure, Relation index);
extern void IvfpqSetCalibratedFor(Relation index, IvfpqCalibratedFor what);
extern void IvfpqRecallInterval(const IvfpqRecallSums *sums, double *low,
								double *high);
extern bool IvfpqCalibrateIndex(Relation heap, Relation index,
								IvfpqQueries *given);

#endif							/* IVFPQ_CALIBRATE_H */
