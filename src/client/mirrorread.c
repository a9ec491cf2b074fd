/*
 * mirrorread.c
 *		Reads the contents of a mirror back from gpuvecd, for checks.
 *
 * A session that reads a mirror connects as a loader does, so the session's
 * next search opens a new connection.  If the result is not IVFPQ_ANSWERED,
 * *reason explains it.  Answers are valid until the process's next request.
 */
#include "postgres.h"

#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"

/* Time limit for one request.  The answer may have many megabytes. */
#define TIMEOUT_US	10000000

/*
 * Asks for lists first .. first + count - 1 of the index's mirror, but only
 * for the blocks of list `first` from number `block` on.  Sets *chunks to the
 * answer, which begins with list `first`.  If the answer has a single chunk,
 * this chunk may hold only a part of the list (GV_MSG_READ_LISTS).
 */
IvfpqOutcome
IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta, int first,
				int count, int block, IvfpqMirrorChunks *chunks,
				const char **reason)
{
	GvRangeRequest request = {IvfpqMirrorKey(index, meta), first, count,
	block, 0};
	GvKeyForm	form = IvfpqMirrorKeys(meta);
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_LOADER, TIMEOUT_US);
	IvfpqOutcome served = IvfpqChannelAsk(channel, GV_MSG_READ_LISTS, &request,
										  sizeof(request), NULL, 0,
										  GV_MAX_MESSAGE);

	*reason = channel->reason;
	if (served != IVFPQ_ANSWERED)
		return served;
	chunks->next = IvfpqAnswerBody(channel);
	chunks->end = chunks->next + IvfpqAnswerLength(channel);
	chunks->code_bytes = gv_code_bytes(meta->pq_dim);
	chunks->keys_bytes = gv_keys_bytes(&form);
	return served;
}

/* Asks for elements first .. first + count - 1 of an array of the model. */
IvfpqOutcome
IvfpqMirrorValues(Relation index, const IvfpqMetaData *meta, GvArray array,
				  int64 first, int64 count, const char **values,
				  const char **reason)
{
	GvArrayRequest request = {IvfpqMirrorKey(index, meta), array, 0, first,
	count};
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_LOADER, TIMEOUT_US);

	(void) IvfpqChannelExchange(channel, GV_MSG_READ_ARRAY, &request,
								sizeof(request), NULL, 0,
								count * sizeof(float));
	*reason = channel->reason;
	*values = IvfpqAnswerBody(channel);
	return channel->served;
}

/* Asks for the refine records at addresses [n]. */
IvfpqOutcome
IvfpqMirrorRecords(Relation index, const IvfpqMetaData *meta,
				   const ItemPointerData *addresses, int n,
				   const char **items, const char **reason)
{
	GvListsRequest request = {IvfpqMirrorKey(index, meta), n, 0};
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_LOADER, TIMEOUT_US);

	(void) IvfpqChannelExchange(channel, GV_MSG_READ_REFINE, &request,
								sizeof(request), addresses,
								n * sizeof(ItemPointerData),
								(uint32) (n * gv_refine_stride(meta->dims)));
	*reason = channel->reason;
	*items = IvfpqAnswerBody(channel);
	return channel->served;
}

/*
 * Asks for the rows at tids [n], as the mirror stores them.  Sets *items to
 * NULL if the mirror stores no rows.
 */
IvfpqOutcome
IvfpqMirrorRows(Relation index, const IvfpqMetaData *meta, GvRowForm rows,
				const ItemPointerData *tids, int n, const char **items,
				const char **reason)
{
	GvListsRequest request = {IvfpqMirrorKey(index, meta), n, 0};
	uint32		bytes = (uint32) (n * gv_row_stride(rows, meta->dims));
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_LOADER, TIMEOUT_US);

	(void) IvfpqChannelAsk(channel, GV_MSG_READ_ROWS, &request,
						   sizeof(request), (const char *) tids,
						   n * sizeof(ItemPointerData), bytes);
	if (channel->served == IVFPQ_ANSWERED &&
		IvfpqAnswerLength(channel) != 0 && IvfpqAnswerLength(channel) != bytes)
		(void) IvfpqChannelReject(channel);
	*reason = channel->reason;
	*items = channel->served == IVFPQ_ANSWERED &&
		IvfpqAnswerLength(channel) > 0 ? IvfpqAnswerBody(channel) : NULL;
	return channel->served;
}

/*
 * Reads the next chunk of an answer without copying its arrays.  Returns false
 * at the end, or if the chunk is malformed.
 */
bool
IvfpqMirrorNext(IvfpqMirrorChunks *chunks, GvListChunk *chunk,
				GvListState *state)
{
	const GvChunk *header = (const GvChunk *) chunks->next;
	int64		bytes;

	if (chunks->end - chunks->next < (int64) sizeof(GvChunk))
		return false;
	bytes = gv_chunk_bytes(header, chunks->code_bytes, chunks->keys_bytes);
	if (header->nblocks < 0 || header->flags != 0 ||
		chunks->end - chunks->next < bytes)
		return false;
	*chunk = gv_chunk_open(header, chunks->keys_bytes);
	*state = header->state;
	chunks->next += bytes;
	return true;
}
