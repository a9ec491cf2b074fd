/*
 * setargs.h
 *		Arguments of whole-table functions, and the progress that they report.
 */
#ifndef IVFPQ_SETARGS_H
#define IVFPQ_SETARGS_H

#include "engine/gv_set.h"

/*
 * Arguments
 */
typedef enum IvfpqMethod
{
	IVFPQ_METHOD_EXACT,			/* compare each query with every row */
	IVFPQ_METHOD_INDEX			/* use a gpuivfpq index: search it, or compare
								 * each query with the rows of lists near the
								 * query */
} IvfpqMethod;

/*
 * Return the metric or the method with this name.  Raise an ERROR if the name
 * is unknown.
 */
extern GvSetMetric IvfpqMetricArgument(const text *name);
extern IvfpqMethod IvfpqMethodArgument(const text *name);

extern const char *IvfpqMetricName(GvSetMetric metric);

/* Raises an ERROR if an argument is not in its range. */
extern void IvfpqCheckRange(const char *name, int value, int least, int most,
							const char *hint);

/*
 * Raises an ERROR unless two sets of vectors have the same number of
 * dimensions.  `one` and `other` are the names of the two sets in the message.
 */
extern void IvfpqCheckSameDims(const char *one, int one_dims,
							   const char *other, int other_dims);

/*
 * Progress, as gpuvec_progress shows it for this session.  The numbers begin
 * with 1, because a slot contains zeros at first, and 0 must not stand for any
 * command or phase.
 */
typedef enum IvfpqProgressCommand
{
	IVFPQ_PROGRESS_EXACT = 1,
	IVFPQ_PROGRESS_GRAPH,
	IVFPQ_PROGRESS_JOIN,
	IVFPQ_PROGRESS_KMEANS,
	IVFPQ_PROGRESS_PATH
} IvfpqProgressCommand;

/* A phase counts rows, unless its comment says otherwise. */
typedef enum IvfpqProgressPhase
{
	IVFPQ_PROGRESS_KEYS = 1,
	IVFPQ_PROGRESS_ROWS,
	IVFPQ_PROGRESS_SEARCHING,	/* rows, which are counted again in each
								 * reading of the table */
	IVFPQ_PROGRESS_RECALL,
	IVFPQ_PROGRESS_CLUSTERING,
	IVFPQ_PROGRESS_SORTING,		/* edges */
	IVFPQ_PROGRESS_JOINING,		/* edges; the phase may end before the last
								 * edge */
	IVFPQ_PROGRESS_WALKING		/* edges that were joined; the phase may end
								 * before the last one */
} IvfpqProgressPhase;

/*
 * Begins to show the progress of a command.  Does nothing if the command runs
 * within another command whose progress PostgreSQL shows, such as COPY.
 */
extern void IvfpqProgressBegin(IvfpqProgressCommand command, Oid relid);

/*
 * Begins a phase.  `total` is the number to which the phase will count, or 0
 * if that number is unknown.
 */
extern void IvfpqProgressPhaseOf(IvfpqProgressPhase phase, int64 total);

/* Reports that the phase has counted to `done`. */
extern void IvfpqProgressDone(int64 done);
extern void IvfpqProgressEnd(void);

#endif							/* IVFPQ_SETARGS_H */
