/*
 * localset.h
 *		A piece of work on a set (engine/gv_set.h), done by this session or by
 *		gpuvecd.
 *
 * gpuvecd may fail at any time.  Then Put, Run or Get returns false, the work
 * can only be ended, and the caller begins it anew, all inputs included, in
 * this session; the outputs that it has are those that it would get.  Errors
 * of this session's own engine are raised, as is an interrupt.
 */
#ifndef IVFPQ_LOCALSET_H
#define IVFPQ_LOCALSET_H

#include "engine/gv_set.h"

typedef struct IvfpqWork IvfpqWork;

typedef enum IvfpqWorkPlace
{
	IVFPQ_WORK_SERVER,			/* gpuvecd */
	IVFPQ_WORK_HERE				/* this session */
} IvfpqWorkPlace;

/* Where work should be tried first. */
extern IvfpqWorkPlace IvfpqWorkChoose(const GvSetSpec *spec);

/* Begin; the memory context of the time ends it, or IvfpqWorkEnd. */
extern IvfpqWork *IvfpqWorkBegin(const GvSetSpec *spec, IvfpqWorkPlace place);

/*
 * As gv_set_put, gv_set_ask, gv_set_run and gv_set_get, but for what is said
 * above; only gpuvecd is asked again.
 */
extern bool IvfpqWorkPut(IvfpqWork *work, GvSetInput input, const void *items,
						 int64 n);
extern bool IvfpqWorkAsk(IvfpqWork *work, const GvSetSpec *spec);
extern bool IvfpqWorkRun(IvfpqWork *work, GvSetDone *done);
extern bool IvfpqWorkGet(IvfpqWork *work, GvSetOutput output, int64 first,
						 int64 n, void *items);

/*
 * Items that the next calls of IvfpqWorkGet will ask for, in this order: of
 * gpuvecd they come meanwhile.
 */
extern void IvfpqWorkPrefetch(IvfpqWork *work, GvSetOutput output,
							  int64 first, int64 n);
extern void IvfpqWorkEnd(IvfpqWork *work);

/*
 * How many queries of an exact search may be asked together: what they take of
 * this session fits maintenance_work_mem, of gpuvecd a sixteenth of its memory
 * or a gigabyte, a quarter at most; at least one, no more than spec->nqueries.
 */
extern int64 IvfpqWorkQueries(const GvSetSpec *spec, IvfpqWorkPlace place);

/*
 * May gpuvecd be given nrows rows to keep, for as long as something is asked
 * of them, a quarter of a device's memory?  It has to have one, or the user
 * wants it in any case: processors take memory of the host for them.
 */
extern bool IvfpqWorkKeeps(int64 nrows, int dims);

/*
 * Bytes that a session has for vectors meanwhile: maintenance_work_mem where
 * gpuvecd is to do the work, nothing where the session's own engine takes
 * that.
 */
extern Size IvfpqWorkSpareMemory(void);

#endif							/* IVFPQ_LOCALSET_H */
