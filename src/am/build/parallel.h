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
	IVFPQ_JOB_SEND,				/* send rows to gpuvecd, which trains on them:
								 * train.c */
	IVFPQ_JOB_CLUSTER,			/* train lists: cluster.c */
	IVFPQ_JOB_BUILD				/* assign rows, write lists, calibrate:
								 * build.c */
} IvfpqJob;

/* Parts of the memory that all participants see, named for their contents. */
typedef enum IvfpqParallelPart
{
	IVFPQ_PARALLEL_TRAINING,	/* IvfpqTraining; the next nine parts are its
								 * arrays */
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

	IVFPQ_PARALLEL_SENT,		/* Sent: train.c */
	IVFPQ_PARALLEL_SAMPLE,		/* uint64 [sample_rows] TIDs of gpuvecd's
								 * sample */

	IVFPQ_PARALLEL_CLUSTER,		/* IvfpqClusterShared: cluster.c */
	IVFPQ_PARALLEL_COUNTS,		/* pg_atomic_uint64 [nparents] rows of each
								 * parent */
	IVFPQ_PARALLEL_FOUND,		/* int32 [nparents] lists of each parent */

	IVFPQ_PARALLEL_SCAN,		/* ParallelTableScanDesc, if has_workers */
	IVFPQ_PARALLEL_SHARING,		/* IvfpqBuildShared, if gpuvecd builds */
	IVFPQ_PARALLEL_ENTRIES,		/* IvfpqDirEntry [nlists] */
	IVFPQ_PARALLEL_PARTS		/* number of parts */
} IvfpqParallelPart;

/* The size of a recall grid, which all participants measure (recallgrid.c). */
typedef struct IvfpqGridSpec
{
	int			level;			/* level of calibration (truth.h) */
	int			nqueries;		/* 0: no grid is to be measured */
	int			least;			/* smallest number of lists */
	int			most;			/* largest number of lists */
	int			most_width;		/* largest number of candidates */
} IvfpqGridSpec;

/* The state that all participants share. */
typedef struct IvfpqParallelShared
{
	Oid			heap;
	Oid			index;
	bool		concurrent;		/* CREATE INDEX CONCURRENTLY, which reads rows
								 * that a snapshot sees */
	bool		in_place;		/* the index is in use while it is trained */
	int			nparts;			/* maintenance_work_mem is divided by this: 1
								 * + the number of workers asked for */
	SharedFileSet files;		/* used if there are workers */
	dsa_handle	area;			/* handle of the area that has the parts */
	ConditionVariable changed;	/* signaled when narrived or phase changes */

	slock_t		mutex;			/* protects the next five fields */
	int			size;			/* number of participants; 0 = not known yet */
	int			narrived;		/* participants that have ended this phase */
	int			phase;
	double		heap_tuples;
	bool		broken_hot_chain;

	pg_atomic_uint64 done;		/* rows done in this phase */
	pg_atomic_uint64 next;		/* first piece of this phase that nobody has
								 * claimed */
	pg_atomic_uint64 npostings; /* postings that will be written to lists */
	pg_atomic_uint32 refine_head;	/* first page of a chain of record pages;
									 * see IvfpqRecordBuilderFinish */

	/* written by the leader while workers wait */
	IvfpqJob	job;
	dsa_pointer parts[IVFPQ_PARALLEL_PARTS];
	IvfpqMetaData meta;
	IvfpqGridSpec grid_spec;
	BlockNumber npages;			/* pages of the index */
} IvfpqParallelShared;

/* A participant's view of the shared state. */
typedef struct IvfpqParallel
{
	IvfpqParallelShared *shared;
	int			me;				/* 0 = the leader */
	bool		has_workers;	/* false: the leader is alone */
	dsa_area   *area;			/* the area that has the parts; NULL: they are
								 * in `own` */
	void	   *own[IVFPQ_PARALLEL_PARTS];

	/* used by the leader only */
	ParallelContext *context;	/* NULL: there are no workers */
	WalUsage   *wal;			/* [nworkers], filled in by workers */
	BufferUsage *buffers;		/* [nworkers], filled in by workers */
} IvfpqParallel;

/* Temporary files for records that participants pass to one another. */
typedef struct IvfpqTempFile
{
	SharedFileSet *files;		/* NULL: the leader is alone */
	const char *what;			/* prefix of the files' names */
	int			me;				/* number of this participant */
	int			nranges;
	BufFile   **ranges;			/* [nranges] this participant's files; NULL:
								 * the range has no records */

	/* used to read records */
	int			range;
	int			from;			/* participant whose file is read */
	int			end;			/* last participant whose file is to be read,
								 * plus 1 */
	BufFile    *file;			/* file that is read; NULL: not open */
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

/* Divides n things into ranges, and returns the range that holds thing i. */
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
