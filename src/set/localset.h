/*
 * localset.h
 *		Work on a set of rows (engine/gv_set.h), by this session or by gpuvecd.
 *
 * gpuvecd may fail at any time.  Then IvfpqLocalSetPut, Ask, Run or Get
 * returns false, and the caller can only end the work.  The caller begins the
 * work again in this session and passes all inputs again.  The outputs that
 * the caller has already got stay valid, because both engines give the same
 * outputs.  If this session's own engine fails, or the session is interrupted,
 * these functions raise an error.
 */
#ifndef IVFPQ_LOCALSET_H
#define IVFPQ_LOCALSET_H

#include "engine/gv_set.h"

typedef struct IvfpqLocalSet IvfpqLocalSet;

typedef enum IvfpqLocalSetPlace
{
	IVFPQ_WORK_SERVER,			/* gpuvecd */
	IVFPQ_WORK_HERE				/* this session */
} IvfpqLocalSetPlace;

/* Returns where to try the work first. */
extern IvfpqLocalSetPlace IvfpqLocalSetChoose(const GvSetSpec *spec);

/*
 * Begins work on a set.  The work ends when the caller calls IvfpqLocalSetEnd,
 * or else with the current memory context.
 */
extern IvfpqLocalSet *IvfpqLocalSetBegin(const GvSetSpec *spec,
										 IvfpqLocalSetPlace place);
extern void IvfpqLocalSetEnd(IvfpqLocalSet *work);

/*
 * Like gv_set_put, gv_set_ask, gv_set_run and gv_set_get, but return false if
 * gpuvecd fails (see above).  IvfpqLocalSetAsk is for work at gpuvecd only.
 */
extern bool IvfpqLocalSetPut(IvfpqLocalSet *work, GvSetInput input,
							 const void *items,
							 int64 n);
extern bool IvfpqLocalSetAsk(IvfpqLocalSet *work, const GvSetSpec *spec);
extern bool IvfpqLocalSetRun(IvfpqLocalSet *work, GvSetDone *done);
extern bool IvfpqLocalSetGet(IvfpqLocalSet *work, GvSetOutput output,
							 int64 first,
							 int64 n, void *items);

/*
 * Announces the items that a later call of IvfpqLocalSetGet will ask for, so
 * that gpuvecd sends them meanwhile.  Announced items have to be fetched in
 * the order of their announcements, before any other items.
 */
extern void IvfpqLocalSetPrefetch(IvfpqLocalSet *work, GvSetOutput output,
								  int64 first, int64 n);

/*
 * Returns how many queries of an exact search one set may have: at least one,
 * and at most spec->nqueries.  For a set in this session, the queries and
 * their results fit into maintenance_work_mem.  For a set at gpuvecd, they
 * take a sixteenth of gpuvecd's memory, or a gigabyte if that is more, but at
 * most a quarter of the memory.
 */
extern int64 IvfpqLocalSetQueries(const GvSetSpec *spec,
								  IvfpqLocalSetPlace place);

/*
 * Returns whether gpuvecd may keep this many rows, so that a set can be asked
 * about them several times.  The rows may take a quarter of a device's memory,
 * and GV_SET_OWN_BYTES at most.  If gpuvecd has no device, it would keep the
 * rows in the host's memory, so in this case the function returns true only if
 * gpuvec.engine = gpu.
 */
extern bool IvfpqLocalSetKeeps(int64 nrows, int dims);

#endif							/* IVFPQ_LOCALSET_H */
