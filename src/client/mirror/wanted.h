/*
 * wanted.h
 *		Mirror requests, in shared memory: those of sessions, what loaders
 *		report, and what the supervisor sees.  With ivfpq_shared only.
 */
#ifndef IVFPQ_WANTED_H
#define IVFPQ_WANTED_H

#include "postmaster/bgworker.h"

#include "client/mirror/mirror.h"
#include "client/state/state.h"

extern uint64 IvfpqRequestMirror(const GvMirrorKey *key, bool load, bool now);
extern bool IvfpqMirrorRequestGet(const GvMirrorKey *key,
								  IvfpqMirrorRequest *request);
extern int	IvfpqMirrorRequestsCopy(IvfpqMirrorRequest *requests);
extern int	IvfpqMirrorRequestsDue(Oid *databases, TimestampTz now,
								   TimestampTz *next);
extern bool IvfpqMirrorRequestTake(Oid database, IvfpqMirrorRequest *request);
extern void IvfpqMirrorRequestProgress(const GvMirrorKey *key, int64 postings,
									   int64 expected);
extern void IvfpqMirrorRequestDone(const GvMirrorKey *key, int64 postings,
								   int pause_ms);
extern bool IvfpqMirrorRequestFailed(const GvMirrorKey *key, const char *error,
									 int pause_ms);
extern bool IvfpqMirrorRequestPutBack(const GvMirrorKey *key);
extern void IvfpqMirrorRequestEvicted(const GvMirrorKey *key);
extern bool IvfpqMirrorRequestOlder(const GvMirrorKey *key,
									GvMirrorKey *older);
extern void IvfpqMirrorRequestForget(const GvMirrorKey *key);
extern void IvfpqMirrorRequestForgetDatabase(Oid database);
extern void IvfpqMirrorRequestRelease(const char *error);
extern void IvfpqMirrorRequestsRestart(void);
extern void IvfpqMirrorRequestsPrune(const GvMirrorStatus *mirrors,
									 int nmirrors,
									 TimestampTz then);

/* loader.c: how a loader of a database is started */
extern void IvfpqFillLoader(BackgroundWorker *worker, Oid database, int slot);

#endif							/* IVFPQ_WANTED_H */
