/*
 * mirrorqueue.h
 *		Mirrors of indexes in gpuvecd: their names, requests for mirrors, and
 *		functions that read a mirror back.
 */
#ifndef IVFPQ_MIRRORQUEUE_H
#define IVFPQ_MIRRORQUEUE_H

#include "client/servershared.h"
#include "client/settings.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "engine/mirror/gv_mirror.h"
#include "page/page.h"
#include "protocol/gv_protocol.h"

/* mirrorqueue.c: the name of a mirror, its index, the keys of its postings */
extern GvMirrorKey IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta);
extern bool IvfpqCanMirror(Relation index, const IvfpqMetaData *meta);
extern bool IvfpqMirrorIndexOpen(const GvMirrorKey *key, Relation *index);
extern GvKeyForm IvfpqMirrorKeys(const IvfpqMetaData *meta);

/*
 * Returns whether mirrors of the index have its refine records.  Records in
 * half precision are only on the index's pages.
 */
static inline bool
IvfpqMirrorHasRecords(const IvfpqMetaData *meta)
{
	return meta->refine == IVFPQ_REFINE_SQ8;
}

/*
 * How loaders read the rows of an index's table.  The index and its table are
 * open and locked.
 *
 * form		returns how mirrors store the rows, GV_ROWS_NONE if they cannot
 * read		reads the rows that the snapshot sees at tids [n], which ascend, into
 *			items, which are gv_row_stride apart; without a snapshot, takes one.  A row that is not seen,
 *			or that has no distances that can be bounded, becomes an item that
 *			is not known or, if only_known is set, none.  Returns the number of
 *			items.
 */
typedef struct IvfpqRowSource
{
	GvRowForm	(*form) (Relation index, Relation heap);
	int			(*read) (Relation index, Relation heap, Snapshot snapshot,
						 GvRowForm form, int dims, const ItemPointerData *tids, int n,
						 bool only_known, char *items);
} IvfpqRowSource;

extern const IvfpqRowSource *ivfpq_row_source;	/* set when the library is
												 * loaded */

/* How a loader's work on a mirror has ended. */
typedef enum IvfpqLoadResult
{
	IVFPQ_LOAD_DONE,			/* loaded or brought up to date */
	IVFPQ_LOAD_GONE,			/* the index is gone */
	IVFPQ_LOAD_ABSENT,			/* gpuvecd has evicted the mirror */
	IVFPQ_LOAD_YIELD,			/* a session wants the database for itself */
	IVFPQ_LOAD_LOCKED,			/* the index is locked, nothing was begun */
	IVFPQ_LOAD_NO_MEMORY,		/* gpuvecd has no memory */
	IVFPQ_LOAD_FAILED
} IvfpqLoadResult;

/* mirrorqueue.c: mirror requests.  All need ivfpq_shared. */
extern uint64 IvfpqRequestMirror(const GvMirrorKey *key, bool load, bool now);
extern void IvfpqMirrorNoteLacking(const GvMirrorKey *key,
								   const ItemPointerData *tids, int n);
extern int	IvfpqMirrorTakeLacking(const GvMirrorKey *key,
								   ItemPointerData *tids);
extern bool IvfpqMirrorRequestGet(const GvMirrorKey *key,
								  IvfpqMirrorRequest *request);
extern int	IvfpqMirrorRequestsCopy(IvfpqMirrorRequest *requests);
extern Oid	IvfpqMirrorRequestsDue(const Oid *busy, TimestampTz *next);
extern bool IvfpqMirrorRequestTake(Oid database, IvfpqMirrorRequest *request);
extern bool IvfpqMirrorRequestEnd(const GvMirrorKey *key,
								  IvfpqLoadResult result, int64 postings,
								  const char *error, int pause_ms);
extern bool IvfpqMirrorRequestOlder(const GvMirrorKey *key,
									GvMirrorKey *older);
extern void IvfpqMirrorRequestForget(const GvMirrorKey *key);
extern void IvfpqMirrorRequestForgetDatabase(Oid database);
extern void IvfpqMirrorRequestRelease(const char *error);
extern void IvfpqMirrorRequestsRestart(void);
extern void IvfpqMirrorRequestsPrune(const GvMirrorStatus *mirrors,
									 int nmirrors,
									 TimestampTz then);

/* mirrorqueue.c: for gpuvec_prewarm */
extern int64 IvfpqPrewarm(const GvMirrorKey *key);

/* mirrorread.c: the contents of a mirror, for checks. */

/* The chunks of an answer that have not been read yet. */
typedef struct IvfpqMirrorChunks
{
	const char *next;			/* a GvChunk and its arrays */
	const char *end;
	int32		code_bytes;
	Size		keys_bytes;		/* bytes of a block's keys */
} IvfpqMirrorChunks;

extern IvfpqOutcome IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta,
									int first, int count, int block,
									IvfpqMirrorChunks *chunks,
									const char **reason);
extern IvfpqOutcome IvfpqMirrorValues(Relation index,
									  const IvfpqMetaData *meta,
									  GvArray array, int64 first, int64 count,
									  const char **values,
									  const char **reason);
extern IvfpqOutcome IvfpqMirrorRecords(Relation index,
									   const IvfpqMetaData *meta,
									   const ItemPointerData *addresses, int n,
									   const char **items,
									   const char **reason);
extern IvfpqOutcome IvfpqMirrorRows(Relation index, const IvfpqMetaData *meta,
									GvRowForm rows,
									const ItemPointerData *tids, int n,
									const char **items, const char **reason);
extern bool IvfpqMirrorNext(IvfpqMirrorChunks *chunks, GvListChunk *chunk,
							GvListState *state);

#endif							/* IVFPQ_MIRRORQUEUE_H */
