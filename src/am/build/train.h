/*
 * train.h
 *		Training of centroids and codebooks on a sample of the table (train.c).
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

/* Rows of the sample that k-means needs for each list. */
#define IVFPQ_SAMPLES_PER_LIST	64

/*
 * k-means runs IVFPQ_ITERATIONS iterations, and splits a list with more than
 * IVFPQ_MAX_IMBALANCE times the mean number of the sample's rows.  Then a list
 * of the finished index has less than four times the mean number of rows.
 */
#define IVFPQ_ITERATIONS		10
#define IVFPQ_MAX_IMBALANCE		2.0

#define IVFPQ_TRAINING_SEED		UINT64CONST(0x67707576656331)

/* Rows that a reader passes on at once. */
#define IVFPQ_READ_ROWS		256

/* Neighbors of each query that calibration looks for. */
#define IVFPQ_GROUND_TRUTH_ROWS	100

/* The result of training.  All participants share its arrays (cluster.c). */
typedef struct IvfpqTraining
{
	GvModel		gv;
	int			nlists;			/* 0 = too few rows to train */
	int			nparents;
	int			lists_per_row;	/* lists that each row is stored in: 1 or 2 */
	float	   *parents;		/* [nparents][dims] */
	int32	   *parent_offsets; /* [nparents + 1] first list of each parent */
	float	   *centroids;		/* [nlists][dims] */
	float	   *mean;			/* [dims] */
	float	   *rotation;		/* [dims][dims], or NULL */
	float	   *codebooks;		/* [16 * dims] */
	int			nqueries;		/* number of calibration queries */
	float	   *queries;		/* [nqueries][dims] rows moved a little */
	float	   *held_out;		/* [nqueries][dims] the rows before the move */
	uint64	   *query_ids;		/* [nqueries] TIDs of the rows */
	int			depth;			/* number of rows to find near each query */
	double		rows;			/* estimated number of rows to index */
	double		others;			/* estimated number of rows that differ from
								 * the most frequent row */
	bool		waits;			/* not trained, because `others` are too few */
	IvfpqBuilder *builder;		/* NULL: gpuvecd did not train */
} IvfpqTraining;

/* Takes rows [n][dims] with their TIDs.  Returns false to get no more rows. */
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
	int64		capacity;		/* maximum number of rows to take; 0 = as many
								 * as fit into memory */
	int			least;			/* minimum of `seen`, if the table has that
								 * many rows */
	bool		lenient;		/* rows of other dims are no error */
	bool		sparing;		/* read no more of the table than needed */
	bool		whole;			/* the sample is the whole table */
	int64		count;
	double		seen;			/* rows that the sample was drawn from */
	double		skip;			/* rows to skip before the next is taken */
	float	   *rows;			/* [capacity][dims] */
	uint64	   *ids;			/* [capacity] TIDs of the rows */
	int64		ndistinct;		/* number of distinct rows, which come first */
	int32	   *counts;			/* [ndistinct] how often each row occurs */
	ReservoirStateData reservoir;
	MemoryContext tmp;			/* holds one row's vector */
} IvfpqSample;

/*
 * A reader of a second, larger sample.  All participants read parts of it,
 * from enough blocks to hold the rows needed (sample.c).
 */
typedef struct IvfpqReader
{
	IvfpqTraining *training;
	IvfpqSample *sample;		/* a sample of the same table */
	int64		rows_needed;
	bool		transform;		/* transform rows before they are passed on */

	/* set while the reader reads: */
	const struct IvfpqReaderShared *shared;
	bool		boundable;		/* leave out rows whose distances no refine
								 * record can bound */
	IvfpqRowSink sink;
	void	   *sink_arg;
	bool		enough;			/* the sink needs no more rows */
	int			nbatch;
	float	   *batch;			/* [IVFPQ_READ_ROWS][dims] */
	uint64		ids[IVFPQ_READ_ROWS];
} IvfpqReader;

/* The rows taken out of a sample to make calibration queries of them. */
typedef struct IvfpqHeldOut
{
	int			n;				/* number of queries */
	int			taken;			/* rows taken from the front of the sample; if
								 * they are fewer than n, they are used
								 * repeatedly */
	int			depth;			/* number of rows to find near each query */
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
