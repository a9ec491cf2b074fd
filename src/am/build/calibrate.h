/*
 * calibrate.h
 *		The calibration mirror: an index that is being built, searched by
 *		gpuvecd (recallgrid.c).
 */
#ifndef IVFPQ_CALIBRATE_H
#define IVFPQ_CALIBRATE_H

#include "am/build/parallel.h"
#include "common/hashfn.h"

#include "am/build/train.h"
#include "am/common/model.h"
#include "am/types/queries.h"
#include "client/client.h"
#include "page/page.h"

typedef struct IvfpqCalibMirror
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no mirror */
	IvfpqSharing *sharing;		/* with other participants; or NULL */
	int			code_bytes;
	char	   *message;		/* [capacity] GvListsRequest and chunks */
	Size		capacity;
	Size		used;
	uint32	   *live;			/* where the arrays of the chunk at hand lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* of its postings that are there */
} IvfpqCalibMirror;

extern void IvfpqCalibMirrorJoin(IvfpqCalibMirror *mirror, Relation index,
								 IvfpqBuilder *builder, IvfpqSharing *sharing,
								 int code_bytes);
extern void IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, int64 postings);
extern void IvfpqCalibMirrorAgree(IvfpqCalibMirror *mirror);
extern void IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list,
								 uint32 npostings);
extern void IvfpqCalibMirrorAdd(IvfpqCalibMirror *mirror,
								const IvfpqPosting *posting);
extern void IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror);

/* ----
 * What each recall costs, measured (calibrate.c).
 */

/* A two-sided interval of 95 % reaches this many standard errors. */
#define IVFPQ_Z_95				1.959964

/*
 * A depth of n rows is calibrated in tables of at least this many times n
 * rows; the first two depths in all.
 */
#define IVFPQ_ROWS_A_RANK		10

/*
 * Levels.  Each looks for the IVFPQ_GROUND_TRUTH_ROWS rows nearest to a query
 * among one of `stride` rows: among the first stride x IVFPQ_GROUND_TRUTH_ROWS
 * of all, by and large.
 */
#define IVFPQ_LEVELS			3

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
	const float *queries;		/* [nqueries][dims] transformed, */
	const float *deep_queries;	/* [nqueries][dims] ... of later levels */
	const uint64 *ids;			/* [nqueries] TIDs of the rows that they are
								 * made of, or IVFPQ_NO_ROW */
	int			depth;			/* nearest rows that are looked for */
	GvTopK	   *ground_truth[IVFPQ_LEVELS]; /* [queries of the level] nearest
											 * rows so far */

	/* when all rows have been offered: */
	float	   *own[IVFPQ_LEVELS];	/* [queries of the level] scores of their
									 * own rows */
	float	   *margin[IVFPQ_LEVELS];	/* how near to these copies' scores
										 * are */
	int			nknown[IVFPQ_LEVELS];	/* queries that have neighbors */
	bool		has_copies[IVFPQ_LEVELS];	/* copies are neighbors, too */
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

/* Returns query q of a level. */
static inline const float *
IvfpqLevelQuery(const IvfpqCalibration *calibration, int level, int q)
{
	return (level == 0 ? calibration->queries : calibration->deep_queries) +
		(Size) q * calibration->gv->dims;
}

extern IvfpqCalibration *IvfpqCalibrationBegin(const GvModel *gv, int nqueries,
											   const float *queries,
											   const float *deep_queries,
											   const uint64 *ids, int depth);
extern int	IvfpqLevelQueries(const IvfpqCalibration *calibration, int level);
extern void IvfpqCalibrationOffer(IvfpqCalibration *calibration,
								  const float *rows, const uint64 *ids,
								  int64 n);
extern void IvfpqCalibrationTake(IvfpqCalibration *calibration,
								 const GvNeighbor *neighbors, int n,
								 const uint64 *ids);
extern void IvfpqCalibrationSample(IvfpqCalibration *calibration,
								   const float *row, uint64 id);
extern void IvfpqCalibrationFlush(IvfpqCalibration *calibration);
extern void IvfpqCalibrationSettle(IvfpqCalibration *calibration);
extern void IvfpqCalibrationGroundTruth(const IvfpqCalibration *calibration,
										int level, int q,
										IvfpqGroundTruth *ground_truth);
extern void IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
								IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
								IvfpqParallel *parallel);

/* truth.c: ground truth, of all participants */
extern void IvfpqGroundTruthExport(IvfpqCalibration *calibration,
								   IvfpqParallel *parallel);
extern void IvfpqGroundTruthImport(IvfpqCalibration *calibration,
								   IvfpqParallel *parallel);

/* calibrate.c */

/* calibrate.c */
extern bool IvfpqCalibrateIndex(Relation heap, Relation index,
								IvfpqQueries *given);

#endif							/* IVFPQ_CALIBRATE_H */
