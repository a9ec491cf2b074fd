/*
 * calibrate.h
 *		Calibration: the cost of each recall, measured (calibrate.c).
 */
#ifndef IVFPQ_CALIBRATE_H
#define IVFPQ_CALIBRATE_H

#include "am/build/recallgrid.h"
#include "am/types/queries.h"

/* A two-sided interval of 95 % reaches this many standard errors. */
#define IVFPQ_Z_95				1.959964

extern void IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
								IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
								IvfpqParallel *parallel);
extern bool IvfpqCalibrateIndex(Relation heap, Relation index,
								IvfpqQueries *given);

#endif							/* IVFPQ_CALIBRATE_H */
