/*
 * parallel.h
 *		The leader of a build or of training, and its parallel workers
 *		(parallel.c).
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
	IVFPQ_JOB_END,				/* there are no more jobs */
	IVFPQ_JOB_SEND,				/* send rows to train on to gpuvecd: train.c */
	IVFPQ_JOB_CLUSTER,			/* train lists: cluster.c */
	IVFPQ_JOB_BUILD				/* assign rows, write lists, calibrate:
								 * build.c */
} IvfpqJob;

/* Memory that all participants see, by its contents. */
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

	IVFPQ_PARALLEL_READER,		/* IvfpqReaderShared: sample.c */

	IVFPQ_PARALLEL_SENT,		/* what goes to gpuvecd: train.c */
	IVFPQ_PARALLEL_SAMPLE,		/* uint64 [sample_rows] TIDs of its sample */

	IVFPQ_PARALLEL_CLUSTER,		/* IvfpqClusterShared: cluster.c */
	IVFPQ_PARALLEL_COUNTS,		/* pg_atomic_uint64 [nparents] rows */
	IVFPQ_PARALLEL_FOUND,		/* int32 [nparents] lists */

	IVFPQ_PARALLEL_SCAN,		/* ParallelTableScanDesc; alone: none */
	IVFPQ_PARALLEL_SHARING,		/* IvfpqSharing, if gpuvecd builds */
	IVFPQ_PARALLEL_ENTRIES,		/* IvfpqDirEntry [nlists] */
	IVFPQ_PARALLEL_PARTS		/* number of parts */
} IvfpqParallelPart;

/* A recall grid that all participants are to measure (recallgrid.c). */
typedef struct IvfpqGridSpec
{
	int			level;			/* of the neighbors to find */
	int			nqueries;		/* 0: there is no grid */
	int			least;			/* lists of the grid: from, */
	int			most;			/* to */
	int			most_width;		/* the most candidates */
} IvfpqGridSpec;

/* The state that all participants share. */
typedef struct IvfpqParallelShared
{
	Oid			heap;
	Oid			index;
	bool		concurrent;		/* rows as a snapshot sees them */
	bool		in_place;		/* the index is in use while it is trained */
	int			nparts;			/* of maintenance_work_mem: the workers that
								 * were asked for, and the leader */
	SharedFileSet files;		/* unless the leader is alone */
	dsa_handle	area;			/* which has the parts */
	ConditionVariable changed;	/* narrived or phase changed */

	slock_t		mutex;			/* protects these */
	int			size;			/* participants; 0 = not known yet */
	int			narrived;		/* participants at the end of this phase */
	int			phase;
	double		heap_tuples;
	bool		broken_hot_chain;

	pg_atomic_uint64 done;		/* rows done in this phase */
	pg_atomic_uint64 next;		/* first piece of this phase that is not
								 * claimed */
	pg_atomic_uint64 npostings; /* to be written */
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

/* Temporary files of records on their way between participants. */
typedef struct IvfpqTempFile
{
	SharedFileSet *files;		/* NULL: the leader is alone */
	const char *what;			/* name of its files */
	int			me;				/* participant */
	int			nranges;
	BufFile   **ranges;			/* [nranges] own files; NULL: no records */

	/* records that are read: */
	int			range;
	int			from;			/* of this participant, */
	int			end;			/* and of those before this one */
	BufFile    *file;			/* from's; NULL: not open yet */
} IvfpqTempFile;

extern void IvfpqParallelInitSerial(IvfpqParallel *parallel);
extern void IvfpqParallelBegin(IvfpqParallel *parallel, Relation heap,
							   Relation index, IndexInfo *indexInfo,
							   Size bytes, bool in_place);
extern void IvfpqParallelEndWorkers(IvfpqParallel *parallel);
extern void IvfpqParallelEnd(IvfpqParallel *parallel);
extern void IvfpqParallelAttach(IvfpqParallel *parallel, dsm_segment *seg,
								shm_toc *toc);
extern void IvfpqParallelDetach(IvfpqParallel *parallel, shm_toc *toc);

extern void IvfpqParallelStartJob(IvfpqParallel *parallel, IvfpqJob job);
extern bool IvfpqParallelEndPhase(IvfpqParallel *parallel);
extern void IvfpqParallelStartPhase(IvfpqParallel *parallel);
extern bool IvfpqParallelNext(IvfpqParallel *parallel, int64 npieces,
							  int64 *piece);
extern void IvfpqParallelProgress(IvfpqParallel *parallel, int64 n);

extern void *IvfpqParallelAlloc(IvfpqParallel *parallel,
								IvfpqParallelPart part, Size bytes);
extern void *IvfpqParallelMemory(const IvfpqParallel *parallel,
								 IvfpqParallelPart part);
extern void IvfpqParallelFree(IvfpqParallel *parallel, IvfpqParallelPart part);

extern void IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
							   const char *what, int nranges);
extern void IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record,
							 Size bytes);
extern void IvfpqTempFileDone(IvfpqTempFile *temp);
extern void IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int first,
							  int end);
extern bool IvfpqTempFileRead(IvfpqTempFile *temp, void *record, Size bytes);
extern void IvfpqTempFileEnd(IvfpqTempFile *temp);

/* Of n things, divided into ranges, returns the range that holds thing i. */
static inline int
IvfpqTempFileRange(const IvfpqTempFile *temp, int i, int n)
{
	return (int) ((int64) i * temp->nranges / n);
}

/* Returns the first thing of a range, or n after the last range. */
static inline int
IvfpqTempFileFirst(const IvfpqTempFile *temp, int range, int n)
{
	return (int) (((int64) range * n + temp->nranges - 1) / temp->nranges);
}

#endif							/* IVFPQ_PARALLEL_H */
