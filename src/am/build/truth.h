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
	int			first;			/* its depths, of IVFPQ_DEPTH_ROWS */
	int			end;
} IvfpqLevel;

extern const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS];

typedef struct IvfpqCalibration
{
	const GvModel *gv;
	int			nqueries;
	const float *queries;		/* [nqueries][dims] transformed */
	const float *deep_queries;	/* [nqueries][dims] the same of later levels */
	const uint64 *ids;			/* [nqueries] TIDs of the rows that they are
								 * made of, or IVFPQ_NO_ROW */
	int			depth;			/* nearest rows that are looked for */
	GvTopK	   *ground_truth[IVFPQ_LEVELS]; /* [queries of the level] nearest
											 * rows so far */
	int			nsampled;		/* rows of the second level that wait */
	float	   *sampled;		/* [SAMPLED_ROWS][dims] */
	uint64	   *sampled_ids;	/* [SAMPLED_ROWS] */

	/* when all rows have been offered: */
	float	   *own[IVFPQ_LEVELS];	/* [queries of the level] scores of their
									 * own rows */
	float	   *margin[IVFPQ_LEVELS];	/* how near to these copies' scores
										 * are */
	int			nknown[IVFPQ_LEVELS];	/* queries that have neighbors */
	bool		has_copies[IVFPQ_LEVELS];	/* copies are neighbors, too */
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

/* Returns query q of a level. */
static inline const float *
IvfpqLevelQuery(const IvfpqCalibration *calibration, int level, int q)
{
	return (level == 0 ? calibration->queries : calibration->deep_queries) +
		(Size) q * calibration->gv->dims;
}

extern int	IvfpqLevelQueries(const IvfpqCalibration *calibration, int level);
extern IvfpqCalibration *IvfpqCalibrationBegin(const GvModel *gv, int nqueries,
											   const float *queries,
											   const float *deep_queries,
											   const uint64 *ids, int depth);
extern void IvfpqCalibrationOffer(IvfpqCalibration *calibration,
								  const float *rows, const uint64 *ids,
								  int64 n);
extern void IvfpqCalibrationTake(IvfpqCalibration *calibration,
								 const GvNeighbor *neighbors, int n,
								 const uint64 *ids);
extern void IvfpqCalibrationSample(IvfpqCalibration *calibration,
								   const float *row, uint64 id);
extern void IvfpqCalibrationFlush(IvfpqCalibration *calibration);
extern void IvfpqGroundTruthExport(IvfpqCalibration *calibration,
								   IvfpqParallel *parallel);
extern void IvfpqGroundTruthImport(IvfpqCalibration *calibration,
								   IvfpqParallel *parallel);
extern void IvfpqCalibrationSettle(IvfpqCalibration *calibration);
extern void IvfpqCalibrationGroundTruth(const IvfpqCalibration *calibration,
										int level, int q,
										IvfpqGroundTruth *ground_truth);

#endif							/* IVFPQ_TRUTH_H */
