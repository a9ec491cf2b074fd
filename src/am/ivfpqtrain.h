/*
 * ivfpqtrain.h
 *		What ivfpqtrain.c and ivfpqcluster.c share.
 */
#ifndef IVFPQTRAIN_H
#define IVFPQTRAIN_H

#include "utils/sampling.h"

#include "am/ivfpq.h"

/* Rows of the sample that k-means wants for a list. */
#define IVFPQ_SAMPLES_PER_LIST	64

/*
 * ... where all lists are trained at once, by gpuvecd: its time is in reading
 * rows, and with half of them they are still better than those of two levels.
 */
#define IVFPQ_REMOTE_SAMPLES	32

/*
 * k-means: iterations, and the most that a list of the sample may hold, times
 * the mean; lists of the whole table then keep below four times it.
 */
#define IVFPQ_ITERATIONS		10
#define IVFPQ_MAX_SHARE			2.0

#define IVFPQ_TRAINING_SEED		UINT64CONST(0x67707576656331)

/* Where rows [n][dims] with their TIDs go, and who sends them there. */
typedef void (*IvfpqRowSink) (void *arg, const float *rows,
							  const uint64 *ids, int n);
typedef void (*IvfpqRowSource) (void *arg, IvfpqRowSink sink, void *sink_arg);

/* A sample of a table (ivfpqsample.c). */
typedef struct IvfpqSample
{
	IvfpqType  *type;
	int			dims;			/* 0 = not known yet */
	int64		capacity;		/* rows to take; 0 = what memory holds */
	bool		sparing;		/* read no more of the table than it takes */
	bool		whole;			/* it is the whole table */
	int64		count;
	double		seen;			/* rows that could have been taken */
	double		skip;			/* rows to pass over before the next */
	float	   *rows;			/* [capacity][dims] */
	uint64	   *ids;			/* [capacity] their TIDs */
	ReservoirStateData reservoir;
	MemoryContext tmp;
} IvfpqSample;

extern void IvfpqSampleTake(IvfpqSample *sample, Relation heap,
							Relation index, IndexInfo *indexInfo,
							double *rows);
extern void IvfpqSampleShuffle(IvfpqSample *sample);

/* ivfpqtrain.c */
extern Size IvfpqMemoryLimit(void);

/*
 * ivfpqremotetrain.c: from a sample to centroids and codebooks by gpuvecd;
 * false: it is not to be asked, or failed.
 */
extern bool IvfpqTrainRemote(IvfpqTraining *training, Relation index,
							 const IvfpqSample *sample, int lists,
							 int64 wanted, IvfpqRowSource read, void *arg);

/* ivfpqcluster.c */
extern int	IvfpqParents(int lists);
extern Size IvfpqTrainingSize(int64 n, int k, int dims);
extern void *IvfpqAllocScratch(Size size, void **chunk);
extern void IvfpqTrainLists(IvfpqTraining *training, const float *rows,
							int64 n, int lists, IvfpqRowSource read,
							void *arg);

#endif							/* IVFPQTRAIN_H */
