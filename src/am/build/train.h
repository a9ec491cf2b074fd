/*
 * train.h
 *		From a sample of the table to centroids and codebooks (train.c).
 */
#ifndef IVFPQ_TRAIN_H
#define IVFPQ_TRAIN_H

#include "nodes/execnodes.h"
#include "storage/block.h"
#include "utils/sampling.h"

#include "am/build/parallel.h"
#include "am/types/vector.h"
#include "client/client.h"
#include "engine/gv_engine.h"

/* Rows of the sample that k-means needs for a list. */
#define IVFPQ_SAMPLES_PER_LIST	64

/*
 * k-means: iterations, and the most that a list of the sample may hold, times
 * the mean; lists of the whole table then keep below four times it.
 */
#define IVFPQ_ITERATIONS		10
#define IVFPQ_MAX_IMBALANCE		2.0

#define IVFPQ_TRAINING_SEED		UINT64CONST(0x67707576656331)

/* Rows that a reader passes on at once. */
#define IVFPQ_READ_ROWS		256

/* Neighbors of each query that calibration looks for. */
#define IVFPQ_GROUND_TRUTH_ROWS	100

/* The result of training; all participants share its arrays (cluster.c). */
typedef struct IvfpqTraining
{
	GvModel		gv;
	int			nlists;			/* 0 = too few rows to train */
	int			nparents;
	int			lists_per_row;	/* lists that hold a row: 1 or 2 */
	float	   *parents;		/* [nparents][dims] */
	int32	   *parent_offsets; /* [nparents + 1] first list of each parent */
	float	   *centroids;		/* [nlists][dims] */
	float	   *mean;			/* [dims] */
	float	   *rotation;		/* [dims][dims], or NULL */
	float	   *codebooks;		/* [16 * dims] */
	int			nqueries;		/* for calibration: */
	float	   *queries;		/* [nqueries][dims] moved rows */
	float	   *held_out;		/* [nqueries][dims] the rows themselves */
	uint64	   *query_ids;		/* [nqueries] their TIDs */
	int			depth;			/* rows near each query to look for */
	double		rows;			/* estimate of the rows to index */
	double		others;			/* of these, those unlike the most frequent */
	bool		waits;			/* others are too few: there is no training */
	IvfpqBuilder *builder;		/* gpuvecd's, which trained; or NULL */
} IvfpqTraining;

/* Takes rows [n][dims] with their TIDs; returns false to get no more. */
typedef bool (*IvfpqRowSink) (void *arg, const float *rows,
							  const uint64 *ids, int n);

/* A sample of a table (sample.c). */
typedef struct IvfpqSample
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType  *type;
	int			dims;			/* 0 = not known yet */
	int64		capacity;		/* rows to take; 0 = those that fit memory */
	int			least;			/* rows to see, or all if fewer */
	bool		lenient;		/* rows of other dims are no error */
	bool		sparing;		/* read no more of the table than needed */
	bool		whole;			/* the sample is the whole table */
	int64		count;
	double		seen;			/* rows that could have been taken */
	double		skip;			/* rows to pass over before the next */
	float	   *rows;			/* [capacity][dims] */
	uint64	   *ids;			/* [capacity] their TIDs */
	int64		ndistinct;		/* rows, the first ones, that all differ */
	int32	   *counts;			/* [ndistinct] how often each is there */
	ReservoirStateData reservoir;
	MemoryContext tmp;			/* of one row's vector */
} IvfpqSample;

/*
 * Reads a second, larger sample by all participants, from enough blocks to
 * hold the rows needed (sample.c).
 */
typedef struct IvfpqReader
{
	IvfpqTraining *training;
	IvfpqSample *sample;		/* of the same table */
	int64		rows_needed;
	bool		transform;		/* transform rows before they are passed on */

	/* while it runs: */
	const struct IvfpqReaderShared *shared;
	bool		boundable;		/* only rows that refine records can bound */
	IvfpqRowSink sink;
	void	   *sink_arg;
	bool		enough;			/* the sink needs no more */
	int			nbatch;
	float	   *batch;			/* [IVFPQ_READ_ROWS][dims] */
	uint64		ids[IVFPQ_READ_ROWS];
} IvfpqReader;

/* Rows taken out of a sample, of which calibration queries are made. */
typedef struct IvfpqHeldOut
{
	int			n;				/* queries */
	int			taken;			/* rows, the sample's first ones; queries
								 * beyond are of the same rows again */
	int			depth;			/* rows near each query to look for */
} IvfpqHeldOut;

static inline GvTree
IvfpqTree(const IvfpqTraining *training)
{
	GvTree		tree = {training->gv.dims, training->nparents,
		training->nlists, training->parents, training->parent_offsets,
	training->centroids};

	return tree;
}

/* sample.c */
extern double IvfpqSampleTake(IvfpqSample *sample);
extern void IvfpqSampleShuffle(IvfpqSample *sample);
extern double IvfpqSampleDistinct(IvfpqSample *sample);
extern void IvfpqTransformRows(const IvfpqTraining *training, float *rows,
							   int64 n);
extern void IvfpqReaderShare(IvfpqReader *reader, IvfpqParallel *parallel,
							 int64 nskip);
extern void IvfpqReaderRun(IvfpqReader *reader, IvfpqParallel *parallel,
						   IvfpqRowSink sink, void *arg);

/* cluster.c */
extern void IvfpqTrainingAlloc(IvfpqTraining *training,
							   IvfpqParallel *parallel, int nparents,
							   int lists);
extern void IvfpqTrainingShare(const IvfpqTraining *training,
							   IvfpqParallel *parallel);
extern void IvfpqTrainingOpen(IvfpqTraining *training,
							  IvfpqParallel *parallel);
extern void *IvfpqAllocGroups(const IvfpqTraining *training,
							  GvGroups *groups);
extern int	IvfpqRowsToPlace(const GvGroups *groups, Size memory);
extern int	IvfpqParents(int lists);
extern int	IvfpqKmeans(const float *rows, int64 n, int dims, int k,
						int iterations, float *centroids);
extern void IvfpqTrainLists(IvfpqTraining *training, IvfpqParallel *parallel,
							const float *rows, int64 n, int lists,
							IvfpqReader *reader);
extern void IvfpqClusterHelp(IvfpqReader *reader, IvfpqParallel *parallel);

/* train.c */
extern Size IvfpqMemoryForLists(int lists, int dims);
extern int	IvfpqCalibrationQueries(double rows);
extern int	IvfpqRowsAround(int dims);
extern void IvfpqHoldOut(const IvfpqSample *sample, int n, double rows,
						 IvfpqHeldOut *held);
extern void IvfpqMakeCalibrationQueries(const IvfpqSample *sample,
										const IvfpqHeldOut *held, float *queries,
										float *held_out, uint64 *ids);
extern bool IvfpqIsNearlyOne(double others, double rows, int least);
extern void IvfpqTrain(IvfpqTraining *training, IvfpqParallel *parallel,
					   Relation heap, Relation index, IndexInfo *indexInfo,
					   IvfpqType *type, int dims, bool in_place);
extern void IvfpqSendHelp(IvfpqReader *reader, IvfpqParallel *parallel);

#endif							/* IVFPQ_TRAIN_H */
