/*
 * remoteset.h
 *		Work that gpuvecd does on sets of rows (engine/gv_set.h).
 *
 * IvfpqRemoteSetBegin returns NULL if the settings do not choose gpuvecd, or
 * if gpuvecd cannot do the work.  When another function returns false, the set
 * has failed, IvfpqRemoteSetReason says why, and the caller begins the work
 * again with its own engine.  With gpuvec.on_gpu_error = error, these failures
 * raise an error.  The caller must end the set in any case.  A reset of the
 * memory context in which the set was begun ends the set, too.  Waits can be
 * interrupted.
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
 * Requests n items, so that they arrive while the caller does other things.
 * The next calls of IvfpqRemoteSetGet must get the requested items, with the
 * same `first` and n and in the order of the requests.
 */
extern void IvfpqRemoteSetPrefetch(IvfpqRemoteSet *set, GvSetOutput output,
								   int64 first, int64 n);
extern void IvfpqRemoteSetEnd(IvfpqRemoteSet *set);
extern const char *IvfpqRemoteSetReason(const IvfpqRemoteSet *set);

#endif							/* IVFPQ_REMOTESET_H */
