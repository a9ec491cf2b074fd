/*
 * setargs.h
 *		What all functions over sets share: their arguments (setargs.c), what
 *		they show while they run (setargs.c), and vectors that are kept
 *		(clustering.c).  Tables are read by settable.h, work is done by localset.h.
 */
#ifndef IVFPQ_SETARGS_H
#define IVFPQ_SETARGS_H

#include "engine/gv_set.h"

/*
 * setargs.c: what users pass.
 */
typedef enum IvfpqMethod
{
	IVFPQ_METHOD_EXACT,			/* every row is compared */
	IVFPQ_METHOD_INDEX			/* those of near lists of a gpuivfpq index */
} IvfpqMethod;

extern GvSetMetric IvfpqMetricArgument(const text *name);
extern const char *IvfpqMetricName(GvSetMetric metric);
extern IvfpqMethod IvfpqMethodArgument(const text *name);
extern void IvfpqCheckRange(const char *name, int value, int least, int most,
							const char *hint);
extern void IvfpqCheckSameDims(const char *one, int one_dims,
							   const char *other, int other_dims);

/*
 * setargs.c: what gpuvec_progress shows of this session.  A slot begins
 * with zeros, which name nothing.
 */
typedef enum IvfpqProgressCommand
{
	IVFPQ_PROGRESS_EXACT = 1,
	IVFPQ_PROGRESS_GRAPH,
	IVFPQ_PROGRESS_JOIN,
	IVFPQ_PROGRESS_KMEANS,
	IVFPQ_PROGRESS_PATH
} IvfpqProgressCommand;

typedef enum IvfpqProgressPhase
{
	IVFPQ_PROGRESS_KEYS = 1,	/* rows */
	IVFPQ_PROGRESS_ROWS,
	IVFPQ_PROGRESS_SEARCHING,	/* rows, of all readings */
	IVFPQ_PROGRESS_RECALL,
	IVFPQ_PROGRESS_CLUSTERING,
	IVFPQ_PROGRESS_SORTING,		/* edges */
	IVFPQ_PROGRESS_JOINING,		/* edges, at most all */
	IVFPQ_PROGRESS_WALKING		/* edges, at most all that were joined */
} IvfpqProgressPhase;

extern void IvfpqProgressBegin(IvfpqProgressCommand command, Oid relid);
extern void IvfpqProgressPhaseOf(IvfpqProgressPhase phase, int64 total);
extern void IvfpqProgressDone(int64 done);
extern void IvfpqProgressEnd(void);

/*
 * clustering.c: vectors that are read again and again, in memory or, beyond
 * maintenance_work_mem, in a temporary file.
 */
typedef struct IvfpqStore IvfpqStore;


#endif							/* IVFPQ_SETARGS_H */
