/*
 * ivfpqtrain.h
 *		What ivfpqtrain.c and ivfpqcluster.c share.
 */
#ifndef IVFPQTRAIN_H
#define IVFPQTRAIN_H

#include "am/ivfpq.h"

/* Rows of the sample that k-means wants for a list. */
#define IVFPQ_SAMPLES_PER_LIST	64

#define IVFPQ_TRAINING_SEED		UINT64CONST(0x67707576656331)

/* Where transformed rows [n][dims] go, and who sends them there. */
typedef void (*IvfpqRowSink) (void *arg, const float *rows, int n);
typedef void (*IvfpqRowSource) (void *arg, IvfpqRowSink sink, void *sink_arg);

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
