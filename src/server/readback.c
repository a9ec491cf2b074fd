/*
 * readback.c
 *		What loaders read of a mirror: states of lists, and, to compare them
 *		with the index, its contents.
 */
#include "server/gv_server.h"

#include <string.h>

/* A range of lists of a mirror, from a block up to the last; NULL: refused. */
static GvMirrorEntry *
acquire_range(GvConnection *connection, int64_t most, int32_t last_block)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = gv_chunks_acquire(connection, &request->key);

	if (entry == NULL)
		return NULL;
	if (request->first >= 0 && request->count >= 1 &&
		request->count <= most &&
		request->block >= 0 && request->block <= last_block &&
		request->unused == 0 &&
		(int64_t) request->first + request->count <= entry->spec.nlists)
		return entry;
	gv_mirrors_release(entry, 0);
	gv_refuse(connection, GV_REFUSED_PROTOCOL, "lists out of range");
	return NULL;
}

/* See GV_MSG_STATES. */
void
gv_read_states(GvConnection *connection)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire_range(connection,
										 GV_MAX_MESSAGE / sizeof(GvListState), 0);
	GvListState *states;

	if (entry == NULL)
		return;
	states = gv_reply(connection,
					  (size_t) request->count * sizeof(GvListState));
	if (states != NULL)
	{
		pthread_rwlock_rdlock(&entry->lock);
		/* others who read may do the same */
		if (request->first == 0)
			__atomic_store_n(&entry->seen_by, connection->number,
							 __ATOMIC_RELAXED);
		memcpy(states, entry->states + request->first,
			   (size_t) request->count * sizeof(GvListState));
		pthread_rwlock_unlock(&entry->lock);
	}
	gv_mirrors_release(entry, 0);
}

/*
 * Locked: the chunk of a list from block `first` on, without its arrays, cut
 * to at most `capacity` bytes.
 */
static GvChunk
chunk_of(const GvMirrorEntry *entry, int32_t list, int32_t first,
		 int64_t capacity)
{
	GvChunk		one = {.nblocks = 1};
	GvChunk		chunk = {.list = list, .first = first,
	.state = entry->states[list]};
	int64_t		block = gv_chunks_bytes(&entry->spec, &one) -
	(int64_t) sizeof(one);
	int64_t		most = (capacity - (int64_t) sizeof(chunk)) / block;
	int64_t		nblocks = gv_blocks_of(chunk.state.nitems) - first;

	chunk.nblocks = (int32_t) (nblocks > 0 ? nblocks : 0);
	if (chunk.nblocks > most)
	{
		chunk.nblocks = (int32_t) most;
		chunk.state.nitems = (uint32_t) (first + most) * GV_BLOCK;
	}
	return chunk;
}

/* Locked: copy a chunk's blocks to `next`, in a chunk's order. */
static GvStatus
read_blocks(GvMirrorEntry *entry, const GvChunk *chunk, char *next)
{
	size_t		n = (size_t) chunk->nblocks;
	size_t		t_bytes = GV_BLOCK * sizeof(float);
	size_t		rowid_bytes = GV_BLOCK * 3 * sizeof(uint16_t);
	size_t		keys_bytes = gv_keys_bytes(&entry->spec.keys);
	size_t		code_bytes = (size_t) gv_code_bytes(entry->spec.m) * GV_BLOCK;
	char	   *t = next + n * sizeof(uint32_t);
	char	   *rowids = t + n * t_bytes;
	char	   *keys = rowids + n * rowid_bytes;
	char	   *codes = keys + n * keys_bytes;
	size_t		i;

	for (i = 0; i < n; i++)
	{
		GvBlock		view;
		GvStatus	status = gv_mirror_get_block(entry->mirror, chunk->list,
												 chunk->first + (int32_t) i,
												 &view);

		if (status != GV_OK)
			return status;
		memcpy(next + i * sizeof(uint32_t), &view.live, sizeof(uint32_t));
		memcpy(t + i * t_bytes, view.t, t_bytes);
		memcpy(rowids + i * rowid_bytes, view.rowids, rowid_bytes);
		if (keys_bytes > 0)
			memcpy(keys + i * keys_bytes, view.keys, keys_bytes);
		memcpy(codes + i * code_bytes, view.codes, code_bytes);
	}
	return GV_OK;
}

/*
 * Copy list i of a range to `next` if it fits into `capacity` bytes, or is the
 * first; *bytes is 0 if not.  The lock is exclusive because get_block changes
 * a mirror.
 */
static GvStatus
read_list(GvMirrorEntry *entry, const GvRangeRequest *request, int32_t i,
		  char *next, int64_t capacity, int64_t *bytes)
{
	GvStatus	status = GV_OK;
	GvChunk		chunk;

	*bytes = 0;
	if (capacity < (int64_t) sizeof(chunk))
		return GV_OK;
	pthread_rwlock_wrlock(&entry->lock);
	chunk = chunk_of(entry, request->first + i, i == 0 ? request->block : 0,
					 capacity);
	if (i == 0 || chunk.state.nitems == entry->states[chunk.list].nitems)
	{
		memcpy(next, &chunk, sizeof(chunk));
		*bytes = gv_chunks_bytes(&entry->spec, &chunk);
		status = read_blocks(entry, &chunk, next + sizeof(chunk));
	}
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* Bytes of an answer with these lists, or with as many as fit. */
static int64_t
range_bytes(GvMirrorEntry *entry, const GvRangeRequest *request)
{
	int64_t		bytes = 0;
	int32_t		i;

	pthread_rwlock_rdlock(&entry->lock);
	for (i = 0; i < request->count && bytes < GV_MAX_MESSAGE; i++)
	{
		GvChunk		chunk = chunk_of(entry, request->first + i,
									 i == 0 ? request->block : 0,
									 GV_MAX_MESSAGE);

		bytes += gv_chunks_bytes(&entry->spec, &chunk);
	}
	pthread_rwlock_unlock(&entry->lock);
	return bytes < GV_MAX_MESSAGE ? bytes : GV_MAX_MESSAGE;
}

/* Give out what was read into the reply, if it could be. */
static void
conclude_reading(GvConnection *connection, GvMirrorEntry *entry,
				 GvStatus status)
{
	gv_mirrors_release(entry, 0);
	if (status != GV_OK)
		gv_chunks_conclude(connection, status, NULL);
}

/* See GV_MSG_BLOCKS. */
void
gv_read_blocks(GvConnection *connection)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire_range(connection, INT32_MAX,
										 INT32_MAX / GV_BLOCK);
	GvStatus	status = GV_OK;
	int64_t		capacity;
	int64_t		used = 0;
	int64_t		bytes = 1;
	char	   *out;
	int32_t		i;

	if (entry == NULL)
		return;
	capacity = range_bytes(entry, request);
	out = gv_reply(connection, (size_t) capacity);
	if (out != NULL)
	{
		for (i = 0; i < request->count && bytes > 0 && status == GV_OK; i++)
		{
			status = read_list(entry, request, i, out + used, capacity - used,
							   &bytes);
			used += bytes;
		}
		gv_reply_cut(connection, (size_t) used);
	}
	conclude_reading(connection, entry, status);
}

/* See GV_MSG_VALUES. */
void
gv_read_values(GvConnection *connection)
{
	const GvArrayRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = gv_chunks_acquire(connection, &request->key);
	GvStatus	status = GV_OK;
	void	   *values;

	if (entry == NULL)
		return;
	if (request->array < 0 || request->array >= GV_NARRAYS ||
		request->unused != 0 || request->first < 0 || request->count < 1 ||
		request->count > GV_MAX_MESSAGE / 4 ||
		request->first > gv_array_length(&entry->spec,
										 (GvArray) request->array) -
		request->count)
	{
		gv_mirrors_release(entry, 0);
		gv_chunks_conclude(connection, GV_OK, "values out of range");
		return;
	}
	values = gv_reply(connection, (size_t) request->count * 4);
	if (values != NULL)
	{
		pthread_rwlock_wrlock(&entry->lock);
		status = gv_mirror_get_array(entry->mirror, (GvArray) request->array,
									 request->first, request->count, values);
		pthread_rwlock_unlock(&entry->lock);
	}
	conclude_reading(connection, entry, status);
}

/* See GV_MSG_RECORDS. */
void
gv_read_records(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = gv_chunks_acquire(connection, &request->key);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvStatus	status = GV_OK;
	void	   *items;

	if (entry == NULL)
		return;
	if (request->unused != 0 || request->nchunks < 1 ||
		entry->spec.refine_slots == 0 || bytes != request->nchunks * INT64_C(6) ||
		request->nchunks >
		GV_MAX_MESSAGE / (int64_t) gv_refine_stride(entry->spec.dims))
	{
		gv_mirrors_release(entry, 0);
		gv_chunks_conclude(connection, GV_OK, "malformed addresses");
		return;
	}
	items = gv_reply(connection, (size_t) request->nchunks *
					 gv_refine_stride(entry->spec.dims));
	if (items != NULL)
	{
		pthread_rwlock_wrlock(&entry->lock);
		status = gv_mirror_get_refine(entry->mirror,
									  (const uint16_t *) (request + 1),
									  request->nchunks, items);
		pthread_rwlock_unlock(&entry->lock);
	}
	conclude_reading(connection, entry, status);
}
