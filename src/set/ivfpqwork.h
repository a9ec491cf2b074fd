/*
 * ivfpqwork.h
 *		A piece of work on a set (engine/gv_set.h), whoever does it: this
 *		session, or gpuvecd.
 *
 * gpuvecd may fail at any time.  Then Put, Run or Get returns false, once, and
 * the work is as it was when it began, but this session's: the caller brings all
 * inputs again, which is why he should be able to.  Errors of this session's
 * own engine are raised, as is an interrupt.
 */
#ifndef IVFPQWORK_H
#define IVFPQWORK_H

#include "engine/gv_set.h"

typedef struct IvfpqWork IvfpqWork;

/* Begin; the memory context of the time ends it, or IvfpqWorkEnd. */
extern IvfpqWork *IvfpqWorkBegin(const GvSetSpec *spec);

/* As gv_set_put, gv_set_run and gv_set_get, but for what is said above. */
extern bool IvfpqWorkPut(IvfpqWork *work, GvSetInput input, const void *items,
						 int64 n);
extern bool IvfpqWorkRun(IvfpqWork *work, GvSetDone *done);
extern bool IvfpqWorkGet(IvfpqWork *work, GvSetOutput output, int64 first,
						 int64 n, void *items);
extern void IvfpqWorkEnd(IvfpqWork *work);

/*
 * How many queries of an exact search may be asked together, so that what this
 * session takes for them fits maintenance_work_mem; at least one, no more than
 * spec->nqueries.
 */
extern int64 IvfpqWorkQueries(const GvSetSpec *spec);

#endif							/* IVFPQWORK_H */
