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
#include "client/client.h"
#include "engine/gv_engine.h"

/* Depths and recalls.  Each pair of a depth and a recall is a target. */
extern const int ivfpq_depths[IVFPQ_DEPTHS];
extern const double ivfpq_recalls[IVFPQ_TARGETS];

#define IVFPQ_LEVELS			3

/*
 * A level of calibration samples one row in every `stride` rows, and finds the
 * IVFPQ_GROUND_TRUTH_ROWS sampled rows nearest to a query.  Roughly, these lie
 * among the stride * IVFPQ_GROUND_TRUTH_ROWS nearest rows of the table.
 */
typedef struct IvfpqLevel
{
	int			stride;
	int			nqueries;		/* maximum; the first queries are used */
	int			first;			/* depths: ivfpq_depths[first .. end - 1] */
	int			end;
} IvfpqLevel;

extern const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS];

/* Returns the index in ivfpq_depths after a level's last calibrated depth. */
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
	GvTopK	   *nearest;		/* [nqueries] nearest rows found so far */

	/* set when all rows have been offered: */
	float	   *own;			/* [nqueries] score of each query's own row */
	float	   *margin;			/* [nqueries] copies have scores that differ
								 * from `own` by no more than this */
	int			nknown;			/* number of queries that have neighbors */
	bool		has_copies;		/* copies count as neighbors */
} IvfpqLevelTruth;

typedef struct IvfpqCalibration
{
	const IvfpqTraining *training;	/* has the queries */
	IvfpqLevelTruth levels[IVFPQ_LEVELS];
	int			nsampled;		/* number of sampled rows not offered yet */
	float	   *sampled;		/* [SAMPLED_ROWS][dims] */
	uint64	   *sampled_ids;	/* [SAMPLED_ROWS] */

	/* the portion of rows that gpuvecd has got (IvfpqCalibrationSend) */
	IvfpqRemoteSet *portion;	/* NULL: none */
	int			nportion;
	uint64	   *portion_ids;	/* [nportion] their TIDs */
} IvfpqCalibration;

/* The ground truth of a query. */
typedef struct IvfpqGroundTruth
{
	int			nneighbors;
	uint64		neighbors[IVFPQ_GROUND_TRUTH_ROWS]; /* ids, nearest first */
	float		scores[IVFPQ_GROUND_TRUTH_ROWS];
	int			nown;			/* the query's own row and its copies */
	uint64		own[GV_MAX_DEPTH];	/* ids */
} IvfpqGroundTruth;

/*
 * Returns whether a level samples a row.  If it does, all previous levels
 * sample the row, too.
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
extern bool IvfpqCalibrationSend(IvfpqCalibration *calibration,
								 const float *rows, const uint64 *ids,
								 int64 n);
extern bool IvfpqCalibrationSent(IvfpqCalibration *calibration);
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
