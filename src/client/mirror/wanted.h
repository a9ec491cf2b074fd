/*
 * wanted.h
 *		The mirrors that are wanted, in shared memory: requests, what
 *		loaders report, and what the supervisor sees.  With ivfpq_shared only.
 */
#ifndef IVFPQ_WANTED_H
#define IVFPQ_WANTED_H

#include "postmaster/bgworker.h"

#include "client/mirror/mirror.h"
#include "client/state/state.h"

extern uint64 IvfpqWant(const GvMirrorKey *key, bool load, bool now);
extern bool IvfpqWantedGet(const GvMirrorKey *key, IvfpqWanted *wanted);
extern int	IvfpqWantedCopy(IvfpqWanted *wanted);
extern int	IvfpqWantedDue(Oid *databases, TimestampTz now,
						   TimestampTz *next);
extern bool IvfpqWantedTake(Oid database, IvfpqWanted *wanted);
extern void IvfpqWantedProgress(const GvMirrorKey *key, int64 postings,
								int64 expected);
extern void IvfpqWantedDone(const GvMirrorKey *key, int64 postings,
							int pause_ms);
extern bool IvfpqWantedFailed(const GvMirrorKey *key, const char *error,
							  int pause_ms);
extern bool IvfpqWantedPutBack(const GvMirrorKey *key);
extern void IvfpqWantedGone(const GvMirrorKey *key);
extern bool IvfpqWantedOlder(const GvMirrorKey *key, GvMirrorKey *older);
extern void IvfpqWantedForget(const GvMirrorKey *key);
extern void IvfpqWantedForgetDatabase(Oid database);
extern void IvfpqWantedRelease(const char *error);
extern void IvfpqWantedRestart(void);
extern void IvfpqWantedPrune(const GvMirrorStatus *mirrors, int nmirrors,
							 TimestampTz then);

/* loader.c: how a loader of a database is started */
extern void IvfpqFillLoader(BackgroundWorker *worker, Oid database, int slot);

#endif							/* IVFPQ_WANTED_H */
