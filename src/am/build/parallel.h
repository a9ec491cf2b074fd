/*
 * parallel.h
 *		The participants of a build or of training: a leader, and parallel
 *		workers if there are any.
 *
 * Workers begin before training and wait.  The leader lays out memory that all
 * see, starts a job, takes part in it, and waits until all have come to its
 * end.  Jobs consist of phases (parallel.c).  A leader that is alone goes through
 * the same without waiting.
 */
#ifndef IVFPQ_PARALLEL_H
#define IVFPQ_PARALLEL_H

#include "access/parallel.h"
#include "executor/instrument.h"
#include "nodes/execnodes.h"
#include "port/atomics.h"
#include "storage/buffile.h"
#include "storage/condition_variable.h"
#include "storage/sharedfileset.h"
#include "storage/spin.h"
#include "utils/dsa.h"

#include "page/page.h"

typedef enum IvfpqJob
{
	IVFPQ_JOB_END,				/* there is no more */
	IVFPQ_JOB_SEND,				/* rows to train on go to gpuvecd:
								 * train/sendrows.c */
	IVFPQ_JOB_CLUSTER,			/* lists are trained: train/cluster.c */
	IVFPQ_JOB_BUILD				/* rows are assigned, lists written, targets
								 * calibrated: build/build.c */
} IvfpqJob;

/* Memory that all participants see, by what is in it. */
typedef enum IvfpqParallelPart
{
	IVFPQ_PARALLEL_TRAINING,	/* IvfpqTraining, and its arrays: */
	IVFPQ_PARALLEL_QUERIES,
	IVFPQ_PARALLEL_HELD_OUT,
	IVFPQ_PARALLEL_QUERY_IDS,
	IVFPQ_PARALLEL_MEAN,
	IVFPQ_PARALLEL_ROTATION,
	IVFPQ_PARALLEL_PARENTS,
	IVFPQ_PARALLEL_PARENT_OFFSETS,
	IVFPQ_PARALLEL_CENTROIDS,
	IVFPQ_PARALLEL_CODEBOOKS,

	IVFPQ_PARALLEL_READER,		/* what to read: train/blockrows.c */
	IVFPQ_PARALLEL_BLOCKS,		/* BlockNumber [nblocks] to read */
	IVFPQ_PARALLEL_SKIP,		/* uint64 [nskip] TIDs to leave out */

	IVFPQ_PARALLEL_SENT,		/* what goes to gpuvecd: train/sendrows.c */
	IVFPQ_PARALLEL_SAMPLE,		/* uint64 [sample_rows] TIDs of its sample */

	IVFPQ_PARALLEL_CLUSTER,		/* IvfpqClusterShared */
	IVFPQ_PARALLEL_COUNTS,		/* pg_atomic_uint64 [nparents] rows */
	IVFPQ_PARALLEL_FOUND,		/* int32 [nparents] lists */

	IVFPQ_PARALLEL_SCAN,		/* ParallelTableScanDesc; alone: none */
	IVFPQ_PARALLEL_SHARING,		/* IvfpqSharing, if gpuvecd builds */
	IVFPQ_PARALLEL_ENTRIES,		/* IvfpqDirEntry [nlists] */
	IVFPQ_PARALLEL_PARTS		/* how many there are */
} IvfpqParallelPart;

/* A recall grid that all participants are to measure (calibrate/ladder.c). */
typedef struct IvfpqGridSpec
{
	int			level;			/* of the neighbors to find */
	int			nqueries;		/* 0: there is no grid */
	int			least;			/* lists of the grid: from, */
	int			most;
	int			most_width;		/* candidates, to */
} IvfpqGridSpec;

/* The state that all participants share. */
typedef struct IvfpqParallelShared
{
	Oid			heap;
	Oid			index;
	bool		concurrent;		/* rows as a snapshot sees them */
	bool		in_place;		/* the index is in use while it is trained */
	int			nparts;			/* of maintenance_work_mem: workers that were
								 * asked for, and the leader */
	SharedFileSet files;		/* unless the leader is alone */
	dsa_handle	area;			/* which has the parts */
	ConditionVariable changed;	/* narrived or phase */

	slock_t		mutex;			/* protects these */
	int			size;			/* participants; 0 = not known yet */
	int			narrived;		/* at the end of this phase */
	int			phase;
	double		heap_tuples;
	bool		broken_hot_chain;

	pg_atomic_uint64 done;		/* rows, of this phase */
	pg_atomic_uint64 next;		/* piece of this phase to be done */
	pg_atomic_uint64 npostings; /* that there are to be written */
	pg_atomic_uint32 refine_head;	/* see IvfpqRecordBuilderFinish */

	/* written by the leader while workers wait */
	IvfpqJob	job;
	dsa_pointer parts[IVFPQ_PARALLEL_PARTS];
	IvfpqMetaData meta;
	IvfpqGridSpec grid_spec;
	BlockNumber npages;			/* of the index */
} IvfpqParallelShared;

/* A participant's view. */
typedef struct IvfpqParallel
{
	IvfpqParallelShared *shared;
	int			me;				/* 0 = the leader */
	bool		has_workers;	/* false: the leader is alone */
	dsa_area   *area;			/* NULL: parts are the leader's own */
	void	   *own[IVFPQ_PARALLEL_PARTS];

	/* the leader's hold on workers */
	ParallelContext *context;	/* NULL: there are none */
	WalUsage   *wal;			/* [nworkers] */
	BufferUsage *buffers;		/* [nworkers] */
} IvfpqParallel;

/* parallel.c */
extern void IvfpqParallelInitSerial(IvfpqParallel *parallel);
extern bool IvfpqParallelEndPhase(IvfpqParallel *parallel);
extern void IvfpqParallelStartPhase(IvfpqParallel *parallel);
extern void IvfpqParallelStartJob(IvfpqParallel *parallel, IvfpqJob job);
extern void IvfpqParallelProgress(IvfpqParallel *parallel, int64 n);
extern bool IvfpqParallelNext(IvfpqParallel *parallel, int64 npieces,
							  int64 *piece);
extern void *IvfpqParallelAlloc(IvfpqParallel *parallel,
								IvfpqParallelPart part, Size bytes);
extern void *IvfpqParallelMemory(const IvfpqParallel *parallel,
								 IvfpqParallelPart part);
extern void IvfpqParallelFree(IvfpqParallel *parallel, IvfpqParallelPart part);

/* parallel.c */
extern int	IvfpqCountWorkers(Relation heap, Relation index);
extern void IvfpqParallelBegin(IvfpqParallel *parallel, int nworkers,
							   Relation heap,
							   Relation index, IndexInfo *indexInfo, Size bytes,
							   bool in_place);
extern void IvfpqParallelEndWorkers(IvfpqParallel *parallel);
extern void IvfpqParallelEnd(IvfpqParallel *parallel);
extern void IvfpqParallelAttach(IvfpqParallel *parallel, dsm_segment *seg,
								shm_toc *toc);
extern void IvfpqParallelDetach(IvfpqParallel *parallel, shm_toc *toc);

/* ----
 * Records on their way between participants, in temporary files
 * (parallel.c).
 */

typedef struct IvfpqTempFile
{
	SharedFileSet *files;		/* NULL: the leader is alone */
	const char *what;			/* name of its files */
	int			me;				/* participant */
	int			nranges;
	BufFile   **ranges;			/* [nranges] own files; NULL: nothing came */
} IvfpqTempFile;

extern void IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
							   const char *what, int nranges);
extern void IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record,
							 Size bytes);
extern void IvfpqTempFileDone(IvfpqTempFile *temp);
extern BufFile *IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int from);
extern bool IvfpqTempFileRead(BufFile *file, void *bytes, Size n);
extern void IvfpqTempFileClose(IvfpqTempFile *temp, BufFile *file);
extern void IvfpqTempFileEnd(IvfpqTempFile *temp);

/* Of n things, divided into ranges, returns the range that holds thing i. */
static inline int
IvfpqTempFileRange(const IvfpqTempFile *temp, int i, int n)
{
	return (int) ((int64) i * temp->nranges / n);
}

/* Returns the first thing of a range, or n behind the last range. */
static inline int
IvfpqTempFileFirst(const IvfpqTempFile *temp, int range, int n)
{
	return (int) (((int64) range * n + temp->nranges - 1) / temp->nranges);
}

#endif							/* IVFPQ_PARALLEL_H */
