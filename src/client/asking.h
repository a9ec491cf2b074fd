/*
 * asking.h
 *		What all ways of asking for searches have in common (ask.c): whether to
 *		ask, what an answer may be, and what is remembered of it.  Private to
 *		src/client.
 */
#ifndef IVFPQ_ASKING_H
#define IVFPQ_ASKING_H

#include "client/client.h"

extern IvfpqServed IvfpqAskDecide(Relation index, const IvfpqMetaData *meta,
								  const GvSearchRequest *request);
extern Size IvfpqCheckAnswer(const char *body, Size length,
							 const GvSearchRequest *request,
							 const IvfpqMetaData *meta, IvfpqAnswer *answer);
extern void IvfpqAskNote(const GvMirrorKey *key, IvfpqServed served,
						 int64 begun, uint64 before, uint64 epoch);
extern void IvfpqAskCount(IvfpqServed served);
extern void IvfpqAskComplain(IvfpqServed served, const char *reason);

#endif							/* IVFPQ_ASKING_H */
