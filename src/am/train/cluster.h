/*
 * cluster.h
 *		Lists under parents: what the participants of their training share
 *		(cluster.c, polish.c).
 */
#ifndef IVFPQ_CLUSTER_H
#define IVFPQ_CLUSTER_H

#include "am/team/tempfile.h"
#include "am/train/train.h"

/* The state that all participants share (IVFPQ_PARALLEL_CLUSTER). */
typedef struct IvfpqClusterShared
{
	int			lists;			/* requested */
	int			nparents;		/* that rows are sorted by */
	int			nranges;		/* of these parents */

	/* written by the leader while workers wait */
	int64		nrows;			/* that were read */
	int			ntrainers;		/* participants that may train at once */
} IvfpqClusterShared;

/* A participant's view. */
typedef struct IvfpqCluster
{
	IvfpqParallel *parallel;
	IvfpqTraining *training;	/* centroids: [lists + nparents] */
	IvfpqReader *reader;		/* of rows */
	IvfpqClusterShared *shared;
	pg_atomic_uint64 *counts;	/* [nparents] rows of each parent */
	int32	   *found;			/* [nparents] lists of each parent */
	IvfpqTempFile rows;			/* IvfpqClusterRow, by ranges of parents */
} IvfpqCluster;

/* A row in a file; its dimensions in half precision follow. */
typedef struct IvfpqClusterRow
{
	int64		order;			/* by parent, then as good as random */
	int64		id;				/* IvfpqTidToId: orders the rest */
} IvfpqClusterRow;

/* cluster.c */
extern int	IvfpqKmeans(const float *rows, int64 n, int dims, int k,
						float *centroids);
extern void IvfpqClusterEndPhase(IvfpqCluster *cluster,
								 void (*between) (IvfpqCluster *cluster));

/* polish.c */
extern void IvfpqFinalLloydPass(IvfpqCluster *cluster);

#endif							/* IVFPQ_CLUSTER_H */
