/*
 * calibrate.h
 *		What recall costs, measured on rows of the table (calibrate.c).
 */
#ifndef IVFPQ_CALIBRATE_H
#define IVFPQ_CALIBRATE_H

#include "am/calibrate/trialsearch.h"
#include "am/common/model.h"
#include "am/team/team.h"

/* A two-sided interval of 95 % reaches so many standard errors. */
#define IVFPQ_Z_95				1.959964

typedef struct IvfpqCalibration
{
	GvMetric	metric;
	int			dims;
	int			nqueries;
	const float *queries;		/* [nqueries][dims] transformed */
	const uint64 *ids;			/* [nqueries] TIDs of the queries' own rows */
	GvTopK	   *truth;			/* [nqueries] nearest rows so far */
} IvfpqCalibration;
extern IvfpqCalibration *IvfpqCalibrationBegin(const GvModel *gv, int nqueries,
											   const float *queries,
											   const uint64 *ids);
extern void IvfpqCalibrationOffer(IvfpqCalibration *calibration,
								  const float *rows, const uint64 *ids,
								  int64 n);
extern void IvfpqCalibrationTake(IvfpqCalibration *calibration,
								 const GvNeighbour *neighbours, int n,
								 const uint64 *ids);
extern int	IvfpqCalibrationNearest(const IvfpqCalibration *calibration, int q,
									int most, uint64 *ids);
extern void IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
								IvfpqMetaData *meta, IvfpqTrial *trial,
								IvfpqTeam *team);

/* truth.c: true neighbours, of all participants */
extern void IvfpqTruthGive(const IvfpqCalibration *calibration,
						   IvfpqTeam *team);
extern void IvfpqTruthTake(IvfpqCalibration *calibration, IvfpqTeam *team);

/* breadth.c */
extern double IvfpqBreadthFind(const IvfpqCalibration *calibration,
							   Relation index, const IvfpqModel *model);

/* targets.c */
extern bool IvfpqCalibrateIndex(Relation heap, Relation index);

#endif							/* IVFPQ_CALIBRATE_H */
