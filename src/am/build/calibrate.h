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

extern void IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
								IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
								IvfpqParallel *parallel);
extern bool IvfpqCalibrateIndex(Relation heap, Relation index,
								IvfpqQueries *given);

#endif							/* IVFPQ_CALIBRATE_H */
