/*
 * client.h
 *		PostgreSQL's side of gpuvecd, as the rest of the extension sees it:
 *		searches here, and by module settings, mirrors, builds and sets.
 *
 * Nothing here is needed to answer a query: whatever goes wrong, the session's
 * own engine answers.  No function waits for gpuvecd with a lock of a relation
 * or a page held that the session did not hold before.
 */
#ifndef IVFPQ_CLIENT_H
#define IVFPQ_CLIENT_H

#include "client/mirrorqueue.h"
#include "client/remotebuild.h"
#include "client/remoteset.h"
#include "client/servershared.h"
#include "client/settings.h"
#include "client/views.h"

/* servershared.c: for _PG_init, while the library is preloaded. */
extern void IvfpqClientInit(void);

/*
 * remotesearch.c: a search.  Pointers are good until the next one.
 */
typedef struct IvfpqAnswer
{
	GvSearchReply head;
	const char *engine;			/* gpuvecd's: "cpu", "cuda" */
	const GvProbeReply *probed; /* [head.nprobed]; NULL of a brief one */
	const GvHit *hits;			/* [head.nhits] ascending by (S, row id);
								 * their probes are in range */
	const GvBound *bounds;		/* [head.nhits], or NULL where mirrors have no
								 * refine records */
	const int32 *matches;		/* [head.nprobed] postings of each list that
								 * satisfy the condition, in 0 .. 2^31 - 1;
								 * NULL where none was asked, and of a brief
								 * one */
} IvfpqAnswer;

/* A question to gpuvecd. */
typedef struct IvfpqQuestion
{
	const float *query;			/* [dims], transformed */
	const GvCondition *condition;	/* on keys, or NULL */
	int			probes;
	int			compare;
	int			capacity;

	uint64		version;		/* see GvSearchRequest */

	/* with a condition; likewise */
	double		part;
	int			rank;
} IvfpqQuestion;

extern IvfpqServed IvfpqAskSearch(Relation index, const IvfpqMetaData *meta,
								  const IvfpqQuestion *question,
								  IvfpqAnswer *answer);

/* remotesearch.c: many searches at once, of one question but for its query. */
typedef struct IvfpqAnswers
{
	GvSearchRequest request;	/* as of one search */
	const char *engine;
	int			nleft;
	const char *next;
	const char *end;
} IvfpqAnswers;

extern int	IvfpqAskBulkCapacity(Relation index, const IvfpqMetaData *meta,
								 const IvfpqQuestion *question,
								 IvfpqServed *served);
extern IvfpqServed IvfpqAskBulk(Relation index, const IvfpqMetaData *meta,
								const IvfpqQuestion *question,
								const float *queries, int n,
								IvfpqAnswers *answers);
extern bool IvfpqNextAnswer(IvfpqAnswers *answers, const IvfpqMetaData *meta,
							IvfpqAnswer *answer);

extern void IvfpqAskStale(Relation index, const IvfpqMetaData *meta,
						  bool useless);

#endif							/* IVFPQ_CLIENT_H */
