/*
 * readmirror.c
 *		What gpuvecd holds of an index, for checks.
 *
 * Whoever reads a mirror speaks as a loader does, so the session's next
 * search opens a new connection.
 */
#include "postgres.h"

#include "client/channel/connect.h"
#include "client/mirror/mirror.h"
#include "client/state/state.h"

/* A message of many megabytes takes its time. */
#define LEAST_TIMEOUT_US	10000000

/*
 * Ask for lists first .. first + count - 1 of the index's mirror, of the first
 * of them the blocks from number `block` on.  One piece alone may be a part of
 * its list, see GV_MSG_BLOCKS.  *pieces is good until the process' next
 * request; it begins with list `first`.  Otherwise *reason says what kept us
 * from it.
 */
IvfpqServed
IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta, int first,
				int count, int block, IvfpqMirrorPieces *pieces,
				const char **reason)
{
	GvRangeRequest request = {IvfpqMirrorKey(index, meta), first, count,
	block, 0};
	struct iovec part = {&request, sizeof(request)};
	IvfpqReply	reply;
	IvfpqServed served;

	served = IvfpqExchange(GV_ROLE_LOADER, GV_MSG_BLOCKS, &part, 1,
						   GV_MAX_MESSAGE, IvfpqNow() + LEAST_TIMEOUT_US,
						   &reply);
	*reason = reply.reason;
	pieces->next = reply.body;
	pieces->end = reply.body + reply.length;
	pieces->code_bytes = gv_code_bytes(meta->pq_dim);
	return served;
}

/* Ask for something of a length that is known; *body is likewise good. */
static IvfpqServed
read_exactly(GvMessageType type, const struct iovec *parts, int nparts,
			 Size length, const char **body, const char **reason)
{
	IvfpqReply	reply;
	IvfpqServed served;

	served = IvfpqExchange(GV_ROLE_LOADER, type, parts, nparts, length,
						   IvfpqNow() + LEAST_TIMEOUT_US, &reply);
	*reason = reply.reason;
	*body = reply.body;
	if (served == IVFPQ_SERVED && reply.length != length)
	{
		IvfpqDisconnect();
		*reason = "its answer makes no sense";
		return IVFPQ_BROKEN;
	}
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
	struct iovec part = {&request, sizeof(request)};

	return read_exactly(GV_MSG_VALUES, &part, 1, count * sizeof(float),
						values, reason);
}

/* Ask for the refine records at addresses [n]. */
IvfpqServed
IvfpqMirrorRecords(Relation index, const IvfpqMetaData *meta,
				   const ItemPointerData *addresses, int n,
				   const char **items, const char **reason)
{
	GvListsRequest request = {IvfpqMirrorKey(index, meta), n, 0};
	struct iovec parts[2] = {
		{&request, sizeof(request)},
		{(void *) addresses, n * sizeof(ItemPointerData)}
	};

	return read_exactly(GV_MSG_RECORDS, parts, 2,
						n * gv_refine_stride(meta->dims), items, reason);
}

/*
 * The next piece of an answer, its arrays where they are in it; false at the
 * end, or when what comes makes no sense.
 */
bool
IvfpqMirrorNext(IvfpqMirrorPieces *pieces, GvListPiece *piece,
				GvListState *state)
{
	const GvPiece *header = (const GvPiece *) pieces->next;
	const char *arrays = pieces->next + sizeof(GvPiece);
	int64		bytes;

	if (pieces->end - pieces->next < (int64) sizeof(GvPiece))
		return false;
	bytes = gv_piece_bytes(header, pieces->code_bytes);
	if (header->nblocks < 0 || header->flags != 0 ||
		pieces->end - pieces->next < bytes)
		return false;

	piece->list = header->list;
	piece->first = header->first;
	piece->nblocks = header->nblocks;
	piece->live = (const uint32 *) arrays;
	arrays += header->nblocks * sizeof(uint32);
	piece->t = (const float *) arrays;
	arrays += (Size) header->nblocks * GV_BLOCK * sizeof(float);
	piece->rowids = (const uint16 *) arrays;
	arrays += (Size) header->nblocks * GV_BLOCK * 3 * sizeof(uint16);
	piece->codes = (const uint8 *) arrays;
	*state = header->state;
	pieces->next += bytes;
	return true;
}
