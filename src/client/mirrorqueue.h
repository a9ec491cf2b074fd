/*
 * mirrorqueue.h
 *		Mirrors of indexes in gpuvecd: what names one, having one brought, and
 *		reading one back.
 */
#ifndef IVFPQ_MIRRORQUEUE_H
#define IVFPQ_MIRRORQUEUE_H

#include "client/servershared.h"
#include "client/settings.h"
#include "postmaster/bgworker.h"
#include "utils/rel.h"

#include "engine/mirror/gv_mirror.h"
#include "page/page.h"
#include "protocol/gv_protocol.h"

/* mirrorqueue.c */
extern GvMirrorKey IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta);
extern bool IvfpqSameKey(const GvMirrorKey *a, const GvMirrorKey *b);
extern bool IvfpqCanMirror(Relation index, const IvfpqMetaData *meta);
extern GvKeyForm IvfpqMirrorKeys(const IvfpqMetaData *meta);

/* Do mirrors have the refine records?  Halves are read from pages. */
static inline bool
IvfpqMirrorHasRecords(const IvfpqMetaData *meta)
{
	return meta->refine == IVFPQ_REFINE_SQ8;
}

/* mirrorqueue.c: for gpuvec_prewarm */
extern int64 IvfpqPrewarm(const GvMirrorKey *key);

/*
 * mirrorread.c: what gpuvecd holds of an index, for checks.
 */
typedef struct IvfpqMirrorChunks
{
	const char *next;			/* a GvChunk and its arrays */
	const char *end;
	int32		code_bytes;
	Size		keys_bytes;		/* of a block */
} IvfpqMirrorChunks;

extern IvfpqServed IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta,
								   int first, int count, int block,
								   IvfpqMirrorChunks *chunks,
								   const char **reason);
extern IvfpqServed IvfpqMirrorValues(Relation index, const IvfpqMetaData *meta,
									 GvArray array, int64 first, int64 count,
									 const char **values, const char **reason);
extern IvfpqServed IvfpqMirrorRecords(Relation index,
									  const IvfpqMetaData *meta,
									  const ItemPointerData *addresses, int n,
									  const char **items, const char **reason);
extern bool IvfpqMirrorNext(IvfpqMirrorChunks *chunks, GvListChunk *chunk,
							GvListState *state);

/* ----
 * Mirror requests, in shared memory: those of sessions, what loaders
 * report, and what the supervisor sees.  With ivfpq_shared only.
 */

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

#endif							/* IVFPQ_MIRRORQUEUE_H */
