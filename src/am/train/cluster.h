/*
 * cluster.h
 *		Lists under parents: what the participants of their training share
 *		(cluster.c, polish.c, clusterteam.c).
 */
#ifndef IVFPQ_CLUSTER_H
#define IVFPQ_CLUSTER_H

#include "access/parallel.h"

#include "am/team/tempfile.h"
#include "am/train/train.h"

/*
 * What all participants see; the arrays of IvfpqCluster follow it.  In shared
 * memory, or in the leader's own where it is alone.
 */
typedef struct IvfpqClusterShared
{
	IvfpqTeamShared team;
	GvModel		gv;				/* less its arrays */
	int			lists;			/* wanted */
	int			nparents;		/* that rows are sorted by */
	int			nranges;		/* of these parents */
	uint64		nblocks;		/* to read */
	int64		nskip;			/* rows to leave out */

	pg_atomic_uint64 next_block;	/* that is to be read */
	pg_atomic_uint64 next;		/* piece of this round to be done */

	/* written by the leader while workers wait */
	int64		nrows;			/* that were read */
	int			ntrainers;		/* participants that may train at once */
	int			parents_made;	/* IvfpqTraining's nparents, */
	int			lists_made;		/* and nlists */
} IvfpqClusterShared;

/* A participant's view. */
typedef struct IvfpqCluster
{
	IvfpqClusterShared *shared;
	IvfpqTeam	team;
	IvfpqTraining *training;	/* mean, parents, starts and centroids [lists
								 * + nparents] lie behind *shared */
	IvfpqReader *reader;		/* of rows; so does what it skips */
	BlockNumber *blocks;		/* [nblocks] to read */
	pg_atomic_uint64 *counts;	/* [nparents] rows of each parent */
	int32	   *found;			/* [nparents] lists of each parent */
	IvfpqTempFile rows;			/* IvfpqClusterRow, by ranges of parents */
	ParallelContext *context;	/* the leader's hold on workers, or NULL */
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
extern void IvfpqClusterWork(IvfpqCluster *cluster);
extern void IvfpqClusterEndRound(IvfpqCluster *cluster,
								 void (*between) (IvfpqCluster *cluster));
extern bool IvfpqClusterTake(IvfpqCluster *cluster, int npieces, int *piece);

/* polish.c */
extern void IvfpqPolish(IvfpqCluster *cluster, int pass);

/* clusterteam.c */
extern void IvfpqClusterBegin(IvfpqCluster *cluster, IvfpqTraining *training,
							  int lists, IvfpqReader *reader);
extern void IvfpqClusterEnd(IvfpqCluster *cluster);
extern PGDLLEXPORT void IvfpqClusterMain(dsm_segment *seg, shm_toc *toc);

#endif							/* IVFPQ_CLUSTER_H */
