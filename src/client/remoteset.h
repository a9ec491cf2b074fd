/*
 * remoteset.h
 *		Work on sets of rows by gpuvecd, as engine/gv_set.h describes it.
 *
 * Inputs and outputs are as there, of any length.  NULL: gpuvecd is not to be
 * asked, or cannot.  Functions that return false have failed for good, and
 * _Reason says why: the caller begins again with its own engine, and ends the
 * set in any case.  With gpuvec.on_gpu_error = error, all this is an error
 * instead where gpuvecd should have done it.  The set lives in the context in
 * which it was begun, which ends it as well.  While it waits it heeds
 * interrupts.
 */
#ifndef IVFPQ_REMOTESET_H
#define IVFPQ_REMOTESET_H

#include "engine/gv_set.h"

typedef struct IvfpqRemoteSet IvfpqRemoteSet;

extern IvfpqRemoteSet *IvfpqRemoteSetBegin(const GvSetSpec *spec);
extern bool IvfpqRemoteSetPut(IvfpqRemoteSet *set, GvSetInput input,
							  const void *items, int64 n);
extern bool IvfpqRemoteSetAsk(IvfpqRemoteSet *set, const GvSetSpec *spec);
extern bool IvfpqRemoteSetRun(IvfpqRemoteSet *set, GvSetDone *done);
extern bool IvfpqRemoteSetGet(IvfpqRemoteSet *set, GvSetOutput output,
							  int64 first, int64 n, void *items);

/*
 * Ask for items that the next calls of Get will ask for, in this order and as
 * many at a time: they come while the caller does other things.  Nothing else
 * may be asked for before.
 */
extern void IvfpqRemoteSetPrefetch(IvfpqRemoteSet *set, GvSetOutput output,
								   int64 first, int64 n);
extern void IvfpqRemoteSetEnd(IvfpqRemoteSet *set);
extern const char *IvfpqRemoteSetReason(const IvfpqRemoteSet *set);

#endif							/* IVFPQ_REMOTESET_H */
