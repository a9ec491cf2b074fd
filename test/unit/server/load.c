/*
 * load.c
 *		A loader: brings an index to gpuvecd.
 */
#include "client.h"

#define MESSAGE_BYTES	20000	/* chunks in a message, about */

GvMirrorKey
test_key(uint32_t relation)
{
	GvMirrorKey key = {5, 1663, relation, relation + 1, 0x1234567890};

	return key;
}

int
load_begin(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	GvBeginRequest request = {.key = *key,.spec = index->spec};

	return ASK(fd, GV_MSG_BEGIN, request);
}

int
load_array(int fd, const GvMirrorKey *key, GvArray array, int64_t first,
		   int64_t n, const void *values)
{
	GvArrayRequest request = {*key, array, 0, first, n};

	return ASK_MORE(fd, GV_MSG_ARRAY, request,
					(const char *) values + first * 4, n * 4);
}

/* Each array in two messages, if it has two elements. */
int
load_arrays(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	int			refusal = 0;
	int			array;

	for (array = 0; array < GV_NARRAYS && refusal == 0; array++)
	{
		int64_t		n;
		const void *values = index_array(index, (GvArray) array, &n);
		int64_t		half = n / 2;

		if (half > 0)
			refusal = load_array(fd, key, (GvArray) array, 0, half, values);
		if (refusal == 0)
			refusal = load_array(fd, key, (GvArray) array, half, n - half,
								 values);
	}
	return refusal;
}

char *
chunk_bytes(const TestIndex *index, int32_t list, int32_t first,
			int32_t nblocks, uint32_t flags, size_t *bytes)
{
	const TestList *held = &index->lists[list];
	GvListChunk arrays = index_chunk(index, list, first, nblocks, false);
	size_t		n = (size_t) nblocks * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&index->spec.keys);
	GvChunk		chunk = {list, first, nblocks, flags,
	{held->gen, held->nitems, held->del_seq}};
	GvChunkArrays to;
	char	   *memory;

	if (first + nblocks < held->nblocks)
		chunk.state.nitems = (uint32_t) (first + nblocks) * GV_BLOCK;
	*bytes = gv_chunk_bytes(&chunk, gv_code_bytes(index->spec.m), keys_bytes);
	memory = malloc(*bytes);
	memcpy(memory, &chunk, sizeof(chunk));
	to = gv_chunk_arrays((GvChunk *) memory, keys_bytes);
	memcpy(to.live, arrays.live, nblocks * sizeof(uint32_t));
	if ((flags & GV_CHUNK_LIVE) != 0)
		return memory;
	memcpy(to.t, arrays.t, n * sizeof(float));
	memcpy(to.rowids, arrays.rowids, n * 3 * sizeof(uint16_t));
	if (keys_bytes > 0)
		memcpy(to.keys, arrays.keys, nblocks * keys_bytes);
	memcpy(to.codes, arrays.codes, n * gv_code_bytes(index->spec.m));
	return memory;
}

static int
send_chunks(int fd, const GvMirrorKey *key, int32_t nchunks,
			const char *chunks, size_t bytes)
{
	GvListsRequest request = {*key, nchunks, 0};

	return ASK_MORE(fd, GV_MSG_LISTS, request, chunks, bytes);
}

int
load_chunk(int fd, const GvMirrorKey *key, const TestIndex *index,
		   int32_t list, int32_t first, int32_t nblocks, uint32_t flags)
{
	size_t		bytes;
	FREED char *chunk = chunk_bytes(index, list, first, nblocks, flags,
									&bytes);

	return send_chunks(fd, key, 1, chunk, bytes);
}

/* All lists, many in a message; long ones in several chunks. */
int
load_lists(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	FREED char *message = malloc(MESSAGE_BYTES + 64 * 1024 * 32);
	size_t		used = 0;
	int32_t		nchunks = 0;
	int			refusal = 0;
	int32_t		list;

	for (list = 0; list < index->spec.nlists && refusal == 0; list++)
	{
		int32_t		first = 0;

		do
		{
			int32_t		left = index->lists[list].nblocks - first;
			int32_t		n = left < 3 ? left : 3;
			size_t		bytes;
			char	   *chunk = chunk_bytes(index, list, first, n, 0, &bytes);

			memcpy(message + used, chunk, bytes);
			free(chunk);
			used += bytes;
			nchunks++;
			first += n;
			if (used > MESSAGE_BYTES)
			{
				refusal = send_chunks(fd, key, nchunks, message, used);
				used = 0;
				nchunks = 0;
			}
		} while (first < index->lists[list].nblocks && refusal == 0);
	}
	if (refusal == 0)
		refusal = send_chunks(fd, key, nchunks, message, used);
	return refusal;
}

/* Some of an index's records, drawn anew, in one message. */
int
load_records(int fd, const GvMirrorKey *key, Records *records)
{
	int32_t		n;
	OWN char   *items = draw_records(records, &n);
	GvListsRequest request = {*key, n, 0};

	return ASK_MORE(fd, GV_MSG_REFINE, request, items,
					records->stride * (size_t) n);
}

int
load_ready(int fd, const GvMirrorKey *key)
{
	return ASK(fd, GV_MSG_READY, *key);
}

int
load_drop(int fd, const GvMirrorKey *key)
{
	return ASK(fd, GV_MSG_DROP, *key);
}

int
load_all(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	int			refusal = load_begin(fd, key, index);

	if (refusal == 0)
		refusal = load_arrays(fd, key, index);
	if (refusal == 0)
		refusal = load_lists(fd, key, index);
	if (refusal == 0)
		refusal = load_ready(fd, key);
	return refusal;
}

/* A GvStatusReply and its mirrors, the caller's to free; NULL: none. */
GvStatusReply *
load_status(int fd)
{
	void	   *reply = NULL;
	uint32_t	length;

	if (client_ask(fd, GV_MSG_STATUS, NULL, 0, NULL, 0, &reply,
				   &length) != 0)
	{
		CHECK(false, "no status");
		return calloc(1, sizeof(GvStatusReply));
	}
	CHECK(length == sizeof(GvStatusReply) + sizeof(GvMirrorStatus) *
		  (size_t) ((GvStatusReply *) reply)->nmirrors, "%u", length);
	return reply;
}

GvStatusReply
load_totals(int fd)
{
	FREED GvStatusReply *status = load_status(fd);

	return *status;
}

/* A mirror's status; there is none: it is not ready, and on device -1. */
GvMirrorStatus
load_told(int fd, const GvMirrorKey *key)
{
	FREED GvStatusReply *status = load_status(fd);
	const GvMirrorStatus *mirrors = (const GvMirrorStatus *) (status + 1);
	GvMirrorStatus found = {.device = -1};
	int			i;

	for (i = 0; i < status->nmirrors; i++)
		if (mirrors[i].key.relation == key->relation)
			found = mirrors[i];
	return found;
}

/* By a connection of its own. */
GvStatusReply
server_totals(const TestServer *server)
{
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);

	return load_totals(fd);
}
