/*
 * mirror.h
 *		Mirrors of indexes in gpuvecd: what names one, having one brought, and
 *		reading one back.
 */
#ifndef IVFPQ_MIRROR_H
#define IVFPQ_MIRROR_H

#include "utils/rel.h"

#include "client/state/served.h"
#include "engine/mirror/gv_mirror.h"
#include "page/page.h"
#include "protocol/gv_protocol.h"

/* key.c */
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

/* wait.c: for gpuvec_prewarm */
extern int64 IvfpqPrewarm(const GvMirrorKey *key);

/*
 * readmirror.c: what gpuvecd holds of an index, for checks.
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

#endif							/* IVFPQ_MIRROR_H */
