/*
 * remotesearch.h
 *		Searches by gpuvecd, and their answers.
 */
#ifndef IVFPQ_REMOTESEARCH_H
#define IVFPQ_REMOTESEARCH_H

#include "utils/rel.h"

#include "client/settings.h"
#include "page/page.h"
#include "protocol/gv_protocol.h"

struct IvfpqChannel;

/*
 * n queries to search for in one index.  The other fields have the same
 * meaning as the fields of GvSearchRequest.
 */
typedef struct IvfpqRemoteQuery
{
	const float *queries;		/* [n][dims], transformed */
	const float *asked;			/* [n][dims], as users asked them, to get
								 * distances if the mirror has rows; or NULL */
	int			n;				/* 1 .. IvfpqMaxQueries; for
								 * IvfpqRemoteBulkBegin, all queries */
	const GvCondition *condition;	/* on the index's keys, or NULL */
	int			probes;
	int			compare;
	int			capacity;
	int			keep;			/* 0, or as in GvSearchRequest */
	int			rows;
	uint64		version;

	/* used only with a condition */
	double		part;
	int			rank;
} IvfpqRemoteQuery;

/*
 * The answer to one query.  Its pointers are valid until the next request, or
 * until the next call of IvfpqRemoteBulkTake.
 */
typedef struct IvfpqRemoteResult
{
	GvSearchReply head;
	const char *engine;			/* gpuvecd's engine: "cpu" or "cuda" */
	const GvProbeReply *probed; /* [head.nprobed]; NULL if head.is_brief */
	const GvHit *hits;			/* [head.nhits] ascending by (S, row id), each
								 * with a probe below head.nprobed */
	const GvBound *bounds;		/* [head.nhits]; NULL if mirrors have no
								 * refine records */
	const GvRowDistance *distances; /* [head.nhits]; NULL if the mirror has no
									 * rows or distances were not asked for */
	const int32 *matches;		/* [head.nprobed] for each list, the number of
								 * postings that satisfy the condition, 0 ..
								 * 2^31 - 1; NULL if there is no condition or
								 * head.is_brief is set */
} IvfpqRemoteResult;

extern int	IvfpqMaxQueries(const IvfpqMetaData *meta,
							const IvfpqRemoteQuery *question,
							bool has_records);
extern IvfpqOutcome IvfpqRemoteSearch(Relation index,
									  const IvfpqMetaData *meta,
									  const IvfpqRemoteQuery *question,
									  IvfpqRemoteResult *answer);

/*
 * Many queries, in messages of at most IvfpqRemoteBulkSize queries.  Up to
 * IVFPQ_BULK_UNDER_WAY messages are under way, if IvfpqRemoteBulkMaySend says
 * so: while the caller works on the answers of one, gpuvecd searches for the
 * queries of the next.
 *
 * IvfpqRemoteBulkTake sets the answers to the oldest message and returns its
 * outcome, as IvfpqRemoteSearch does.  After another outcome than
 * IVFPQ_ANSWERED, the messages under way have no answers, and the bulk must be
 * ended.
 */
#define IVFPQ_BULK_UNDER_WAY	2

typedef struct IvfpqRemoteBulk IvfpqRemoteBulk;

/* Sets vectors [n][dims] to the transformed queries first .. first + n - 1. */
typedef void (*IvfpqQueryPut) (void *arg, int first, int n, float *vectors);

extern IvfpqRemoteBulk *IvfpqRemoteBulkBegin(Relation index,
											 const IvfpqMetaData *meta,
											 const IvfpqRemoteQuery *question);
extern int	IvfpqRemoteBulkSize(const IvfpqRemoteBulk *bulk);
extern bool IvfpqRemoteBulkMaySend(const IvfpqRemoteBulk *bulk);
extern void IvfpqRemoteBulkSend(IvfpqRemoteBulk *bulk,
								const IvfpqRemoteQuery *question,
								IvfpqQueryPut put, void *arg, int first);
extern IvfpqOutcome IvfpqRemoteBulkTake(IvfpqRemoteBulk *bulk,
										IvfpqRemoteResult *answers);
extern void IvfpqRemoteBulkEnd(IvfpqRemoteBulk *bulk);

extern void IvfpqMirrorLacksRows(Relation index, const IvfpqMetaData *meta,
								 const ItemPointerData *tids, int n);
extern bool IvfpqMirrorMayBeStale(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMirrorMarkStale(Relation index, const IvfpqMetaData *meta,
								 bool useless);

/* for channels other than the process's own */
extern GvSearchRequest IvfpqSearchRequest(const GvMirrorKey *key, int dims,
										  const IvfpqRemoteQuery *question);
extern IvfpqOutcome IvfpqSearchExchange(struct IvfpqChannel *channel,
										const GvSearchRequest *request,
										const IvfpqRemoteQuery *question,
										int nlists, bool has_records,
										IvfpqRemoteResult *answers);

#endif							/* IVFPQ_REMOTESEARCH_H */
