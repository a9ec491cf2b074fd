/*
 * mirrorread.c
 *		What gpuvecd holds of an index, for checks.
 *
 * A session that reads a mirror speaks as a loader does, so the session's next
 * search opens a new connection.
 */
#include "postgres.h"

#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"

/* A message of many megabytes takes its time. */
#define LEAST_TIMEOUT_US	10000000

static IvfpqChannel *
connect_as_loader(void)
{
	return IvfpqConnect(GV_ROLE_LOADER, IvfpqNow() + LEAST_TIMEOUT_US);
}

/*
 * Ask for lists first .. first + count - 1 of the index's mirror, of the first
 * of them the blocks from number `block` on.  One chunk alone may be a part of
 * its list, see GV_MSG_BLOCKS.  *chunks is good until the process' next
 * request; it begins with list `first`.  Otherwise *reason says what kept us
 * from it.
 */
IvfpqServed
IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta, int first,
				int count, int block, IvfpqMirrorChunks *chunks,
				const char **reason)
{
	GvRangeRequest request = {IvfpqMirrorKey(index, meta), first, count,
	block, 0};
	GvKeyForm	form = IvfpqMirrorKeys(meta);
	IvfpqChannel *channel = connect_as_loader();
	IvfpqServed served = IvfpqChannelAsk(channel, GV_MSG_BLOCKS, &request,
										 sizeof(request), NULL, 0,
										 GV_MAX_MESSAGE);

	*reason = channel->reason;
	if (served != IVFPQ_SERVED)
		return served;
	chunks->next = IvfpqAnswerBody(channel);
	chunks->end = chunks->next + IvfpqAnswerLength(channel);
	chunks->code_bytes = gv_code_bytes(meta->pq_dim);
	chunks->keys_bytes = gv_keys_bytes(&form);
	return served;
}

/* Ask for elements first .. first + count - 1 of an array of the model. */
IvfpqServed
IvfpqMirrorValues(Relation index, const IvfpqMetaData *meta, GvArray array,
				  int64 first, int64 count, const char **values,
				  const char **reason)
{
	GvArrayRequest request = {IvfpqMirrorKey(index, meta), array, 0, first,
	count};
	IvfpqChannel *channel = connect_as_loader();
	IvfpqServed served = IvfpqChannelExchange(channel, GV_MSG_VALUES,
											  &request, sizeof(request),
											  NULL, 0, count * sizeof(float));

	*reason = channel->reason;
	*values = IvfpqAnswerBody(channel);
	return served;
}

/* Ask for the refine records at addresses [n]. */
IvfpqServed
IvfpqMirrorRecords(Relation index, const IvfpqMetaData *meta,
				   const ItemPointerData *addresses, int n,
				   const char **items, const char **reason)
{
	GvListsRequest request = {IvfpqMirrorKey(index, meta), n, 0};
	Size		length = n * gv_refine_stride(meta->dims);
	IvfpqChannel *channel = connect_as_loader();
	IvfpqServed served = IvfpqChannelExchange(channel, GV_MSG_RECORDS,
											  &request, sizeof(request),
											  addresses,
											  n * sizeof(ItemPointerData),
											  (uint32) length);

	*reason = channel->reason;
	*items = IvfpqAnswerBody(channel);
	return served;
}

/*
 * The next chunk of an answer, its arrays where they are in it; false at the
 * end, or when what comes makes no sense.
 */
bool
IvfpqMirrorNext(IvfpqMirrorChunks *chunks, GvListChunk *chunk,
				GvListState *state)
{
	const GvChunk *header = (const GvChunk *) chunks->next;
	const char *arrays = chunks->next + sizeof(GvChunk);
	int64		bytes;

	if (chunks->end - chunks->next < (int64) sizeof(GvChunk))
		return false;
	bytes = gv_chunk_bytes(header, chunks->code_bytes, chunks->keys_bytes);
	if (header->nblocks < 0 || header->flags != 0 ||
		chunks->end - chunks->next < bytes)
		return false;

	chunk->list = header->list;
	chunk->first = header->first;
	chunk->nblocks = header->nblocks;
	chunk->live = (const uint32 *) arrays;
	arrays += header->nblocks * sizeof(uint32);
	chunk->t = (const float *) arrays;
	arrays += (Size) header->nblocks * GV_BLOCK * sizeof(float);
	chunk->rowids = (const uint16 *) arrays;
	arrays += (Size) header->nblocks * GV_BLOCK * 3 * sizeof(uint16);
	chunk->keys = chunks->keys_bytes > 0 ? arrays : NULL;
	arrays += header->nblocks * chunks->keys_bytes;
	chunk->codes = (const uint8 *) arrays;
	*state = header->state;
	chunks->next += bytes;
	return true;
}
