/*
 * truth.h
 *		The ground truth of calibration: the rows nearest to each query
 *		(truth.c).
 */
#ifndef IVFPQ_TRUTH_H
#define IVFPQ_TRUTH_H

#include "common/hashfn.h"

#include "am/build/parallel.h"
#include "am/build/train.h"
#include "engine/gv_engine.h"

/* The depths and the recalls whose pairs are the targets. */
extern const int ivfpq_depths[IVFPQ_DEPTHS];
extern const double ivfpq_recalls[IVFPQ_TARGETS];

#define IVFPQ_LEVELS			3

/*
 * A level of calibration.  Each looks for the IVFPQ_GROUND_TRUTH_ROWS rows
 * nearest to a query among one of `stride` rows: among the first stride x
 * IVFPQ_GROUND_TRUTH_ROWS of all, by and large.
 */
typedef struct IvfpqLevel
{
	int			stride;
	int			nqueries;		/* the first ones, at most */
	int			first;			/* its depths, of ivfpq_depths: first .. end -
								 * 1 */
	int			end;
} IvfpqLevel;

extern const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS];

/* Returns where a level's depths end that an index is calibrated for. */
static inline int
IvfpqLevelEnd(const IvfpqMetaData *meta, int level)
{
	return Min(ivfpq_levels[level].end, meta->calibrated_depths);
}

/* The queries of a level, and the rows found for them. */
typedef struct IvfpqLevelTruth
{
	int			nqueries;
	const float *queries;		/* [nqueries][dims] transformed */
	GvTopK	   *nearest;		/* [nqueries] nearest rows so far */

	/* when all rows have been offered: */
	float	   *own;			/* [nqueries] scores of their own rows */
	float	   *margin;			/* [nqueries] how near to these copies' scores
								 * are */
	int			nknown;			/* queries that have neighbors */
	bool		has_copies;		/* copies are neighbors, too */
} IvfpqLevelTruth;

typedef struct IvfpqCalibration
{
	const IvfpqTraining *training;	/* whose queries these are */
	IvfpqLevelTruth levels[IVFPQ_LEVELS];
	int			nsampled;		/* rows of the second level that wait */
	float	   *sampled;		/* [SAMPLED_ROWS][dims] */
	uint64	   *sampled_ids;	/* [SAMPLED_ROWS] */
} IvfpqCalibration;

/* The ground truth of a query. */
typedef struct IvfpqGroundTruth
{
	int			nneighbors;
	uint64		neighbors[IVFPQ_GROUND_TRUTH_ROWS]; /* ids, nearest first */
	float		scores[IVFPQ_GROUND_TRUTH_ROWS];
	int			nown;			/* its own row and that row's copies */
	uint64		own[GV_MAX_DEPTH];	/* ids */
} IvfpqGroundTruth;

/*
 * Returns whether a level looks at a row.  Each level's rows are among those
 * of the level before.
 */
static inline bool
IvfpqLevelHas(int level, uint64 id)
{
	uint32		hash = murmurhash32((uint32) id ^
									(uint32) (id >> 32) * UINT32_C(0x9E3779B1));

	return hash % ivfpq_levels[level].stride == 0;
}

extern IvfpqCalibration *IvfpqCalibrationBegin(const IvfpqTraining *training);
extern void IvfpqCalibrationOffer(IvfpqCalibration *calibration, int level,
								  const float *rows, const uint64 *ids,
								  int64 n);
extern void IvfpqCalibrationTake(IvfpqCalibration *calibration,
								 const GvNeighbor *neighbors, int n,
								 const uint64 *ids);
extern void IvfpqCalibrationSample(IvfpqCalibration *calibration,
								   const float *row, uint64 id);
extern void IvfpqCalibrationFlush(IvfpqCalibration *calibration,
								  IvfpqParallel *parallel);
extern void IvfpqCalibrationSettle(IvfpqCalibration *calibration,
								   IvfpqParallel *parallel);
extern int	IvfpqCalibrationGroundTruth(const IvfpqCalibration *calibration,
										int level, int q,
										IvfpqGroundTruth *truth);

#endif							/* IVFPQ_TRUTH_H */
