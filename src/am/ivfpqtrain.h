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

#define IVFPQ_TRAINING_SEED		UINT64CONST(0x67707576656331)

/* Where transformed rows [n][dims] go, and who sends them there. */
typedef void (*IvfpqRowSink) (void *arg, const float *rows, int n);
typedef void (*IvfpqRowSource) (void *arg, IvfpqRowSink sink, void *sink_arg);

/* A sample of a table (ivfpqsample.c). */
typedef struct IvfpqSample
{
	IvfpqType  *type;
	int			dims;			/* 0 = not known yet */
	int64		capacity;		/* rows to take; 0 = what memory holds */
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

/* ivfpqcluster.c */
extern int	IvfpqParents(int lists);
extern Size IvfpqTrainingSize(int64 n, int k, int dims);
extern void *IvfpqAllocScratch(Size size, void **chunk);
extern void IvfpqTrainLists(IvfpqTraining *training, const float *rows,
							int64 n, int lists, IvfpqRowSource read,
							void *arg);

#endif							/* IVFPQTRAIN_H */
