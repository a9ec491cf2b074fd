/*
 * mirrorload.c
 *		Loading: contents that loaders add to a mirror, or read from a mirror.
 *
 * Chunks are checked before they are added to the mirror.  A mirror is locked
 * for one chunk at a time, so that searches go on while a loader fills the
 * mirror or brings it up to date.  Loaders read the states of lists to find
 * out what a mirror lacks, and read its contents to compare them with the
 * index.
 */
#include "server/server.h"

#include <string.h>

static GvStatus
begin_mirror(GvConnection *connection, const char **wrong)
{
	const GvBeginRequest *request = gv_payload(connection);
	GvMirrorSpec spec = request->spec;
	GvRefusalCode refusal;
	GvBeginReply *reply;

	/* only builds begin calibration mirrors */
	if (spec.device != 0 || gv_is_calibration(&request->key) ||
		request->must < 0 || request->must > 1 || request->unused != 0)
		return GV_INVALID;
	refusal = gv_mirrors_begin(&request->key, &spec, request->must != 0,
							   connection->number);
	if (refusal != 0)
	{
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
		return GV_OK;
	}
	reply = gv_reply(connection, sizeof(*reply));
	if (reply != NULL)
		*reply = (GvBeginReply)
	{
		.rows = spec.rows
	};
	return GV_OK;
}

static GvStatus
drop_mirror(GvConnection *connection, const char **wrong)
{
	const GvKeyRequest *request = gv_payload(connection);

	gv_mirrors_drop(&request->key);
	return GV_OK;
}

/* Arrays */

/*
 * Returns NULL if these elements of an array may come now, and otherwise an
 * error message.  All elements have to come in order, each once, before the
 * mirror is ready.  Parent offsets have to ascend, from 0 to the number of
 * lists.
 */
static const char *
check_array(GvMirrorEntry *entry, const GvArrayRequest *request)
{
	const int32_t *offsets = (const int32_t *) (request + 1);
	int64_t		i;

	if (entry->ready)
		return "the mirror has its arrays";
	if (request->first != entry->filled[request->array] ||
		request->count > gv_array_length(&entry->spec,
										 (GvArray) request->array) -
		request->first)
		return "an array out of order";
	for (i = 0; request->array == GV_PARENT_OFFSETS && i < request->count; i++)
	{
		int64_t		number = request->first + i;

		if ((number == 0 ? offsets[i] != 0 :
			 offsets[i] <= entry->last_parent_offset) ||
			(number == entry->spec.nparents &&
			 offsets[i] != entry->spec.nlists))
			return "the parents' lists do not follow each other";
		entry->last_parent_offset = offsets[i];
	}
	return NULL;
}

static GvStatus
put_array(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvArrayRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvStatus	status = GV_INVALID;

	*wrong = "a malformed array";
	if (request->array < 0 || request->array >= GV_NARRAYS ||
		request->unused != 0 || request->count < 1 || bytes % 4 != 0 ||
		request->count != bytes / 4)
		return GV_INVALID;
	pthread_rwlock_wrlock(&entry->lock);
	*wrong = check_array(entry, request);
	if (*wrong == NULL)
		status = gv_mirror_put_array(entry->mirror, (GvArray) request->array,
									 request->first, request->count,
									 request + 1);
	if (status == GV_OK)
		entry->filled[request->array] += request->count;
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

static GvStatus
make_ready(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	int32_t		array;

	*wrong = "the mirror is ready already, or not complete";
	if (entry->ready)
		return GV_INVALID;
	for (array = 0; array < GV_NARRAYS; array++)
		if (entry->filled[array] != gv_array_length(&entry->spec,
													(GvArray) array))
			return GV_INVALID;
	gv_mirrors_ready(entry);
	return GV_OK;
}

static GvStatus
mark_current(GvConnection *connection, GvMirrorEntry *entry,
			 const char **wrong)
{
	const GvCurrentRequest *request = gv_payload(connection);

	*wrong = "no version";
	if (request->version == 0)
		return GV_INVALID;
	pthread_rwlock_wrlock(&entry->lock);
	if (entry->seen_by == connection->number)
		entry->version = request->version;
	pthread_rwlock_unlock(&entry->lock);
	return GV_OK;
}

/* Lists */

/* Returns the size in bytes of a chunk for a mirror with this spec. */
static int64_t
bytes_of(const GvMirrorSpec *spec, const GvChunk *chunk)
{
	return gv_chunk_bytes(chunk, gv_code_bytes(spec->m),
						  gv_keys_bytes(&spec->keys));
}

/* Returns the bytes by which a block enlarges a chunk. */
static int64_t
block_bytes(const GvMirrorSpec *spec)
{
	GvChunk		one = {.nblocks = 1};

	return bytes_of(spec, &one) - (int64_t) sizeof(one);
}

/*
 * Returns whether a chunk is well-formed, whatever its list holds in the
 * mirror.  The caller has checked that the message has all bytes of the chunk.
 */
static bool
check_chunk(const GvMirrorSpec *spec, const GvChunk *chunk)
{
	const uint32_t *live = (const uint32_t *) (chunk + 1);
	int64_t		last = (int64_t) chunk->first + chunk->nblocks;
	uint32_t	tail = chunk->state.nitems % GV_BLOCK;

	if (chunk->list < 0 || chunk->list >= spec->nlists || chunk->first < 0 ||
		last > INT32_MAX || (chunk->flags & ~(uint32_t) GV_CHUNK_LIVE) != 0 ||
		last != gv_blocks_of(chunk->state.nitems))
		return false;
	if ((chunk->flags & GV_CHUNK_LIVE) != 0 && chunk->first != 0)
		return false;
	/* without new blocks, the list has to end with a full block */
	if (chunk->nblocks == 0)
		return tail == 0;
	return tail == 0 || live[chunk->nblocks - 1] >> tail == 0;
}

/* Returns whether well-formed chunks fill the message to its last byte. */
static bool
check_chunks(const GvConnection *connection, const GvMirrorSpec *spec)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	int64_t		left = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	int32_t		i;

	if (request->unused != 0 || request->nchunks < 0)
		return false;
	for (i = 0; i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		int64_t		bytes;

		if (left < (int64_t) sizeof(*chunk) || chunk->nblocks < 0)
			return false;
		bytes = bytes_of(spec, chunk);
		if (bytes > left || !check_chunk(spec, chunk))
			return false;
		next += bytes;
		left -= bytes;
	}
	return left == 0;
}

/*
 * Returns whether a chunk fits what its list holds, so that it can be added.
 * The caller holds the mirror's lock.
 */
static bool
chunk_follows(const GvMirrorEntry *entry, const GvChunk *chunk)
{
	const GvListState *old = &entry->states[chunk->list];

	if ((chunk->flags & GV_CHUNK_LIVE) != 0)
		return chunk->state.gen == old->gen &&
			chunk->state.nitems == old->nitems;
	if (chunk->first == 0)
		return true;
	return chunk->state.gen == old->gen &&
		chunk->state.del_seq == old->del_seq &&
		(int64_t) chunk->first * GV_BLOCK <= (int64_t) old->nitems;
}

/*
 * Adds a well-formed chunk that connection `sender` has sent.  The caller has
 * reserved memory for the chunk.
 */
static GvStatus
apply_chunk(GvMirrorEntry *entry, uint64_t sender, const GvChunk *chunk,
			const char **wrong)
{
	GvListChunk open = gv_chunk_open(chunk, gv_keys_bytes(&entry->spec.keys));
	GvStatus	status = GV_INVALID;
	int64_t		more = 0;

	pthread_rwlock_wrlock(&entry->lock);
	entry->version = 0;
	if (entry->seen_by != sender)
		entry->seen_by = 0;
	*wrong = "a chunk that does not follow the contents of the list";
	if (chunk_follows(entry, chunk))
		status = gv_mirror_put_list(entry->mirror, &open);
	if (status == GV_OK)
	{
		more = (int64_t) chunk->state.nitems -
			(int64_t) entry->states[chunk->list].nitems;
		entry->states[chunk->list] = chunk->state;
	}
	gv_mirrors_changed(entry, more);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

static GvStatus
put_lists(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	GvStatus	status = GV_OK;
	int32_t		i;

	*wrong = "malformed chunks";
	if (!check_chunks(connection, &entry->spec))
		return GV_INVALID;
	for (i = 0; status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		int64_t		growth[GV_MAX_DEVICES] = {0};	/* by shard: estimated
													 * bytes */
		int64_t		blocks = (int64_t) chunk->first + chunk->nblocks;

		pthread_rwlock_rdlock(&entry->lock);
		blocks -= gv_blocks_of(entry->states[chunk->list].nitems);
		pthread_rwlock_unlock(&entry->lock);
		if (blocks > 0)
			growth[gv_mirror_list_shard(entry->mirror, chunk->list)] =
				blocks * block_bytes(&entry->spec);
		do
		{
			if (!gv_mirrors_reserve_growth(entry, growth))
				return GV_NO_MEMORY;
			status = apply_chunk(entry, connection->number, chunk, wrong);
		} while (status == GV_NO_MEMORY &&
				 gv_mirrors_evict_for(entry, growth));
		next += bytes_of(&entry->spec, chunk);
	}
	return status;
}

/* Refine records and rows */

/*
 * Adds the bytes of a message's items, each of which begins with its address, to
 * the growth of their shards.  Returns false unless items of `stride` bytes fill
 * the message.
 */
static bool
count_items(GvConnection *connection, const GvMirrorEntry *entry,
			size_t stride, int64_t *growth)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *item = (const char *) (request + 1);
	int32_t		i;

	if (request->unused != 0 || request->nchunks < 0 ||
		gv_message(connection)->length != sizeof(*request) +
		(size_t) request->nchunks * stride)
		return false;
	for (i = 0; i < request->nchunks; i++, item += stride)
		growth[gv_mirror_record_shard(entry->mirror, (const uint16_t *) item)] +=
			(int64_t) stride;
	return true;
}

static GvStatus
put_refine(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvListsRequest *request = gv_payload(connection);
	int64_t		growth[GV_MAX_DEVICES] = {0};	/* as in put_lists */
	GvStatus	status;

	*wrong = "malformed refine records";
	if (entry->spec.refine_slots == 0 ||
		!count_items(connection, entry, gv_refine_stride(entry->spec.dims),
					 growth))
		return GV_INVALID;
	do
	{
		if (!gv_mirrors_reserve_growth(entry, growth))
			return GV_NO_MEMORY;
		pthread_rwlock_wrlock(&entry->lock);
		status = gv_mirror_put_refine(entry->mirror,
									  (const GvRefineItem *) (request + 1),
									  request->nchunks);
		gv_mirrors_changed(entry, 0);
		pthread_rwlock_unlock(&entry->lock);
	} while (status == GV_NO_MEMORY && gv_mirrors_evict_for(entry, growth));
	return status;
}

/*
 * Rows that do not fit into memory are dropped, all of them, because a row that
 * is not stored may have to replace an older one.  Then searches have no
 * distances, and loaders bring rows in vain until they begin the mirror again.
 *
 * A row that a loader has sent before it was killed must not replace one that
 * the next loader brings.
 */
static GvStatus
put_rows(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvListsRequest *request = gv_payload(connection);
	int64_t		growth[GV_MAX_DEVICES] = {0};	/* as in put_lists */
	GvStatus	status = GV_NO_MEMORY;
	GvMirrorSpec spec;

	pthread_rwlock_rdlock(&entry->lock);
	spec = entry->spec;
	pthread_rwlock_unlock(&entry->lock);
	if (spec.rows == GV_ROWS_NONE)
		return GV_OK;
	*wrong = "malformed rows";
	if (!count_items(connection, entry, gv_row_stride(spec.rows, spec.dims),
					 growth))
		return GV_INVALID;
	if (gv_mirrors_reserve_rows(entry, growth))
	{
		pthread_rwlock_wrlock(&entry->lock);
		*wrong = "rows from another loader than the last";
		if (entry->ready && entry->loader != connection->number)
			status = GV_INVALID;
		/* others may have dropped the rows meanwhile */
		else if (entry->spec.rows == GV_ROWS_NONE)
			status = GV_OK;
		else
			status = gv_mirror_put_rows(entry->mirror,
										(const GvRowItem *) (request + 1),
										request->nchunks);
		gv_mirrors_changed(entry, 0);
		pthread_rwlock_unlock(&entry->lock);
	}
	if (status != GV_NO_MEMORY)
		return status;
	gv_mirrors_drop_rows(entry);
	return GV_OK;
}

/* Reading back */

/*
 * Returns whether a request for a range of lists is valid.  The range may have
 * up to `most` lists, and the number of its first block may be up to
 * `last_block`.
 */
static bool
check_range(const GvMirrorEntry *entry, const GvRangeRequest *request,
			int64_t most, int32_t last_block)
{
	return request->first >= 0 && request->count >= 1 &&
		request->count <= most &&
		request->block >= 0 && request->block <= last_block &&
		request->unused == 0 &&
		(int64_t) request->first + request->count <= entry->spec.nlists;
}

static GvStatus
read_states(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvListState *states;

	*wrong = "lists out of range";
	if (!check_range(entry, request, GV_MAX_MESSAGE / sizeof(GvListState), 0))
		return GV_INVALID;
	states = gv_reply(connection,
					  (size_t) request->count * sizeof(GvListState));
	if (states == NULL)
		return GV_OK;
	pthread_rwlock_rdlock(&entry->lock);

	/*
	 * use an atomic store, because other threads with the shared lock store
	 * these fields, too
	 */
	if (request->first == 0)
	{
		__atomic_store_n(&entry->seen_by, connection->number,
						 __ATOMIC_RELAXED);
		__atomic_store_n(&entry->loader, connection->number,
						 __ATOMIC_RELAXED);
	}
	memcpy(states, entry->states + request->first,
		   (size_t) request->count * sizeof(GvListState));
	pthread_rwlock_unlock(&entry->lock);
	return GV_OK;
}

/*
 * Copies list i of a range to `next`, as a chunk, and sets *bytes.  If the
 * list does not fit into `capacity` bytes, copies the part of it that fits if
 * i is 0; otherwise copies nothing and sets *bytes to 0.  Locks the mirror
 * exclusively, because gv_mirror_get_block changes a mirror.
 */
static GvStatus
read_list(GvMirrorEntry *entry, const GvRangeRequest *request, int32_t i,
		  char *next, int64_t capacity, int64_t *bytes)
{
	GvChunk    *chunk = (GvChunk *) next;
	int32_t		list = request->first + i;
	int32_t		first = i == 0 ? request->block : 0;
	int64_t		most = (capacity - (int64_t) sizeof(*chunk)) /
	block_bytes(&entry->spec);
	int64_t		nblocks;
	GvStatus	status = GV_OK;
	int32_t		b;

	*bytes = 0;
	if (capacity < (int64_t) sizeof(*chunk))
		return GV_OK;
	pthread_rwlock_wrlock(&entry->lock);
	nblocks = gv_blocks_of(entry->states[list].nitems) - first;
	if (nblocks <= most || i == 0)
	{
		*chunk = (GvChunk)
		{
			.list = list,
				.first = first,
				.nblocks = (int32_t) (nblocks > 0 ? nblocks : 0),
				.state = entry->states[list]
		};
		if (nblocks > most)
		{
			chunk->nblocks = (int32_t) most;
			chunk->state.nitems = (uint32_t) (first + most) * GV_BLOCK;
		}
		*bytes = bytes_of(&entry->spec, chunk);
	}
	for (b = 0; *bytes > 0 && b < chunk->nblocks && status == GV_OK; b++)
	{
		GvBlock		block;

		status = gv_mirror_get_block(entry->mirror, list, first + b, &block);
		if (status == GV_OK)
			gv_chunk_put(chunk, gv_code_bytes(entry->spec.m),
						 gv_keys_bytes(&entry->spec.keys), (size_t) b, &block);
	}
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

static GvStatus
read_lists(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvStatus	status = GV_OK;
	int64_t		used = 0;
	int64_t		bytes = 1;
	char	   *out;
	int32_t		i;

	*wrong = "lists out of range";
	if (!check_range(entry, request, INT32_MAX, INT32_MAX / GV_BLOCK))
		return GV_INVALID;
	out = gv_reply(connection, GV_MAX_MESSAGE);
	if (out == NULL)
		return GV_OK;
	for (i = 0; i < request->count && bytes > 0 && status == GV_OK; i++)
	{
		status = read_list(entry, request, i, out + used,
						   GV_MAX_MESSAGE - used, &bytes);
		used += bytes;
	}
	gv_reply_cut(connection, (size_t) used);
	return status;
}

static GvStatus
read_array(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvArrayRequest *request = gv_payload(connection);
	GvStatus	status;
	void	   *values;

	*wrong = "values out of range";
	if (request->array < 0 || request->array >= GV_NARRAYS ||
		request->unused != 0 || request->first < 0 || request->count < 1 ||
		request->count > GV_MAX_MESSAGE / 4 ||
		request->first > gv_array_length(&entry->spec,
										 (GvArray) request->array) -
		request->count)
		return GV_INVALID;
	values = gv_reply(connection, (size_t) request->count * 4);
	if (values == NULL)
		return GV_OK;
	pthread_rwlock_wrlock(&entry->lock);
	status = gv_mirror_get_array(entry->mirror, (GvArray) request->array,
								 request->first, request->count, values);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

static GvStatus
read_refine(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvListsRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	size_t		stride = gv_refine_stride(entry->spec.dims);
	GvStatus	status;
	void	   *items;

	*wrong = "malformed addresses";
	if (request->unused != 0 || request->nchunks < 1 ||
		entry->spec.refine_slots == 0 ||
		bytes != request->nchunks * INT64_C(6) ||
		request->nchunks > GV_MAX_MESSAGE / (int64_t) stride)
		return GV_INVALID;
	items = gv_reply(connection, (size_t) request->nchunks * stride);
	if (items == NULL)
		return GV_OK;
	pthread_rwlock_wrlock(&entry->lock);
	status = gv_mirror_get_refine(entry->mirror,
								  (const uint16_t *) (request + 1),
								  request->nchunks, items);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* The answer is empty if the mirror has dropped its rows. */
static GvStatus
read_rows(GvConnection *connection, GvMirrorEntry *entry, const char **wrong)
{
	const GvListsRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvStatus	status = GV_OK;
	size_t		stride;
	void	   *items;

	*wrong = "malformed row ids";
	if (request->unused != 0 || request->nchunks < 1 ||
		bytes != request->nchunks * INT64_C(6) ||
		request->nchunks > GV_MAX_MESSAGE /
		(int64_t) gv_row_stride(GV_ROWS_FLOAT, entry->spec.dims))
		return GV_INVALID;
	pthread_rwlock_wrlock(&entry->lock);
	stride = gv_row_stride(entry->spec.rows, entry->spec.dims);
	items = entry->spec.rows == GV_ROWS_NONE ? NULL :
		gv_reply(connection, (size_t) request->nchunks * stride);
	if (items != NULL)
		status = gv_mirror_get_rows(entry->mirror,
									(const uint16_t *) (request + 1),
									request->nchunks, items);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

const GvMessageKind gv_mirror_messages[] = {
	{GV_MSG_BEGIN, GV_BY(LOADER), GV_ONE(GvBeginRequest),
	.answer = begin_mirror},
	{GV_MSG_ARRAY, GV_BY(LOADER), GV_FROM(GvArrayRequest),
	.mirror = put_array, .in_memory = true},
	{GV_MSG_LISTS, GV_BY(LOADER) | GV_BY(BUILDER), GV_FROM(GvListsRequest),
	.mirror = put_lists, .phase = GV_DURING_JOB, .in_memory = true},
	{GV_MSG_REFINE, GV_BY(LOADER), GV_FROM(GvListsRequest),
	.mirror = put_refine, .in_memory = true},
	{GV_MSG_ROWS, GV_BY(LOADER), GV_FROM(GvListsRequest),
	.mirror = put_rows, .in_memory = true},
	{GV_MSG_READY, GV_BY(LOADER), GV_ONE(GvKeyRequest), .mirror = make_ready},
	{GV_MSG_MARK_CURRENT, GV_BY(LOADER), GV_ONE(GvCurrentRequest),
	.mirror = mark_current},
	{GV_MSG_LIST_STATES, GV_BY(LOADER), GV_ONE(GvRangeRequest),
	.mirror = read_states},
	{GV_MSG_READ_LISTS, GV_BY(LOADER), GV_ONE(GvRangeRequest),
	.mirror = read_lists},
	{GV_MSG_READ_ARRAY, GV_BY(LOADER), GV_ONE(GvArrayRequest),
	.mirror = read_array},
	{GV_MSG_READ_REFINE, GV_BY(LOADER), GV_FROM(GvListsRequest),
	.mirror = read_refine},
	{GV_MSG_READ_ROWS, GV_BY(LOADER), GV_FROM(GvListsRequest),
	.mirror = read_rows},
	{GV_MSG_DROP, GV_BY(LOADER) | GV_BY(SUPERVISOR), GV_ONE(GvKeyRequest),
	.answer = drop_mirror},
	{0}
};
