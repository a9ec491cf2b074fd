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

/*
 * Returns the mirror that a request names, for the caller to release.  If
 * there is none, refuses the request and returns NULL.
 */
static GvMirrorEntry *
acquire(GvConnection *connection, const GvMirrorKey *key)
{
	GvRefusalCode refusal;
	GvMirrorEntry *entry = gv_mirrors_acquire(key, connection->owner,
											  &refusal);

	if (entry == NULL)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	return entry;
}

/* Answers GV_MSG_BEGIN. */
static void
begin_mirror(GvConnection *connection)
{
	const GvBeginRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_PROTOCOL;

	/* only builds begin calibration mirrors */
	if (request->spec.device == 0 && !gv_is_calibration(&request->key))
		refusal = gv_mirrors_begin(&request->key, &request->spec,
								   connection->number);
	if (refusal != 0)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	else
		gv_reply(connection, 0);
}

/* Answers GV_MSG_DROP. */
static void
drop_mirror(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);

	gv_mirrors_drop(&request->key);
	gv_reply(connection, 0);
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

/* Answers GV_MSG_ARRAY. */
static void
put_array(GvConnection *connection)
{
	const GvArrayRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvMirrorEntry *entry;
	const char *wrong = NULL;
	GvStatus	status = GV_OK;

	if (request->array < 0 || request->array >= GV_NARRAYS ||
		request->unused != 0 || request->count < 1 || bytes % 4 != 0 ||
		request->count != bytes / 4)
	{
		gv_refuse_protocol(connection, "a malformed array");
		return;
	}
	entry = acquire(connection, &request->key);
	if (entry == NULL)
		return;
	pthread_rwlock_wrlock(&entry->lock);
	wrong = check_array(entry, request);
	if (wrong == NULL)
		status = gv_mirror_put_array(entry->mirror, (GvArray) request->array,
									 request->first, request->count,
									 request + 1);
	if (wrong == NULL && status == GV_OK)
		entry->filled[request->array] += request->count;
	pthread_rwlock_unlock(&entry->lock);
	gv_mirrors_release(entry, 0);
	gv_reply_status(connection, status, wrong);
}

/* Answers GV_MSG_READY. */
static void
make_ready(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);
	const char *wrong = NULL;
	int32_t		array;

	if (entry == NULL)
		return;
	if (entry->ready)
		wrong = "the mirror is ready already";
	for (array = 0; array < GV_NARRAYS; array++)
		if (entry->filled[array] != gv_array_length(&entry->spec,
													(GvArray) array))
			wrong = "the mirror is not complete";
	if (wrong == NULL)
		gv_mirrors_ready(entry);
	gv_mirrors_release(entry, 0);
	gv_reply_status(connection, GV_OK, wrong);
}

/* Answers GV_MSG_MARK_CURRENT. */
static void
mark_current(GvConnection *connection)
{
	const GvCurrentRequest *request = gv_payload(connection);
	GvMirrorEntry *entry;

	if (request->version == 0)
	{
		gv_refuse_protocol(connection, "no version");
		return;
	}
	entry = acquire(connection, &request->key);
	if (entry == NULL)
		return;
	pthread_rwlock_wrlock(&entry->lock);
	if (entry->seen_by == connection->number)
		entry->version = request->version;
	pthread_rwlock_unlock(&entry->lock);
	gv_mirrors_release(entry, 0);
	gv_reply_status(connection, GV_OK, NULL);
}

/* Lists */

/* Returns the size in bytes of a chunk for a mirror with this spec. */
static int64_t
bytes_of(const GvMirrorSpec *spec, const GvChunk *chunk)
{
	return gv_chunk_bytes(chunk, gv_code_bytes(spec->m),
						  gv_keys_bytes(&spec->keys));
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
 * Sets growth [GV_MAX_DEVICES] to the estimated bytes by which each shard of a
 * mirror grows with a chunk.
 */
static void
chunk_growth(GvMirrorEntry *entry, const GvChunk *chunk, int64_t *growth)
{
	int32_t		shard = gv_mirror_list_shard(entry->mirror, chunk->list);
	int64_t		blocks = (int64_t) chunk->first + chunk->nblocks;
	GvChunk		one = {.nblocks = 1};

	pthread_rwlock_rdlock(&entry->lock);
	blocks -= gv_blocks_of(entry->states[chunk->list].nitems);
	pthread_rwlock_unlock(&entry->lock);
	if (blocks < 0)
		blocks = 0;
	memset(growth, 0, GV_MAX_DEVICES * sizeof(*growth));
	growth[shard] = blocks *
		(bytes_of(&entry->spec, &one) - (int64_t) sizeof(one));
}

/*
 * Adds a well-formed chunk that connection `sender` has sent.  The caller has
 * reserved memory for the chunk.  Sets *wrong to a message if the chunk does
 * not fit what its list holds.
 */
static GvStatus
apply_chunk(GvMirrorEntry *entry, uint64_t sender, const GvChunk *chunk,
			const char **wrong)
{
	GvListChunk open = gv_chunk_open(chunk, gv_keys_bytes(&entry->spec.keys));
	GvStatus	status = GV_OK;

	pthread_rwlock_wrlock(&entry->lock);
	entry->version = 0;
	if (entry->seen_by != sender)
		entry->seen_by = 0;
	if (!chunk_follows(entry, chunk))
		*wrong = "a piece that does not follow what the list holds";
	else
		status = gv_mirror_put_list(entry->mirror, &open);
	if (*wrong == NULL && status == GV_OK)
	{
		entry->nitems += (int64_t) chunk->state.nitems -
			(int64_t) entry->states[chunk->list].nitems;
		entry->states[chunk->list] = chunk->state;
	}

	/*
	 * report the change under the lock, because other threads report changes,
	 * too
	 */
	gv_mirrors_changed(entry, entry->nitems);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* Answers GV_MSG_LISTS. */
static void
put_lists(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	bool		fits;			/* if not, eviction cannot free the memory */
	int32_t		i;

	if (entry == NULL)
		return;
	if (!check_chunks(connection, &entry->spec))
		wrong = "malformed pieces";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		int64_t		growth[GV_MAX_DEVICES];

		do
		{
			chunk_growth(entry, chunk, growth);
			fits = gv_mirrors_reserve_growth(entry, growth);
			status = fits ? apply_chunk(entry, connection->number, chunk,
										&wrong) : GV_NO_MEMORY;
		} while (fits && status == GV_NO_MEMORY &&
				 gv_mirrors_evict_for(entry, growth));
		next += bytes_of(&entry->spec, chunk);
	}
	gv_mirrors_release(entry, 0);
	gv_reply_status(connection, status, wrong);
}

/* Refine records */

/* Answers GV_MSG_REFINE. */
static void
put_refine(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	const GvRefineItem *items = (const GvRefineItem *) (request + 1);
	int64_t		growth[GV_MAX_DEVICES] = {0};	/* by shard: estimated bytes */
	int64_t		stride;
	GvStatus	status = GV_OK;
	bool		fits;			/* as in put_lists */
	int32_t		i;

	if (entry == NULL)
		return;
	stride = (int64_t) gv_refine_stride(entry->spec.dims);
	if (request->unused != 0 || request->nchunks < 0 ||
		entry->spec.refine_slots == 0 || bytes != request->nchunks * stride)
	{
		gv_mirrors_release(entry, 0);
		gv_refuse_protocol(connection, "malformed refine records");
		return;
	}
	for (i = 0; i < request->nchunks; i++)
	{
		const GvRefineItem *item = gv_refine_item(items, entry->spec.dims, i);

		growth[gv_mirror_record_shard(entry->mirror, item->address)] += stride;
	}
	do
	{
		status = GV_NO_MEMORY;
		fits = gv_mirrors_reserve_growth(entry, growth);
		if (fits)
		{
			pthread_rwlock_wrlock(&entry->lock);
			status = gv_mirror_put_refine(entry->mirror, items,
										  request->nchunks);
			gv_mirrors_changed(entry, entry->nitems);
			pthread_rwlock_unlock(&entry->lock);
		}
	} while (fits && status == GV_NO_MEMORY &&
			 gv_mirrors_evict_for(entry, growth));
	gv_mirrors_release(entry, 0);
	gv_reply_status(connection, status, NULL);
}

/* Reading back */

/*
 * Returns the mirror that a request for a range of lists names, or refuses the
 * request and returns NULL.  The range may have up to `most` lists, and the
 * number of its first block may be up to `last_block`.
 */
static GvMirrorEntry *
acquire_range(GvConnection *connection, int64_t most, int32_t last_block)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);

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

/* Answers GV_MSG_LIST_STATES. */
static void
read_states(GvConnection *connection)
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

		/*
		 * use an atomic store, because other threads with the shared lock
		 * store seen_by, too
		 */
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
 * Returns the header of a chunk that has the list's blocks from number `first`
 * on, or as many of them as fit into `capacity` bytes.  The caller holds the
 * mirror's lock.
 */
static GvChunk
chunk_of(const GvMirrorEntry *entry, int32_t list, int32_t first,
		 int64_t capacity)
{
	GvChunk		one = {.nblocks = 1};
	GvChunk		chunk = {.list = list, .first = first,
	.state = entry->states[list]};
	int64_t		block = bytes_of(&entry->spec, &one) -
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
	GvStatus	status = GV_OK;
	int32_t		b;

	*bytes = 0;
	if (capacity < (int64_t) sizeof(*chunk))
		return GV_OK;
	pthread_rwlock_wrlock(&entry->lock);
	*chunk = chunk_of(entry, request->first + i, i == 0 ? request->block : 0,
					  capacity);
	if (i == 0 || chunk->state.nitems == entry->states[chunk->list].nitems)
	{
		*bytes = bytes_of(&entry->spec, chunk);
		for (b = 0; b < chunk->nblocks && status == GV_OK; b++)
		{
			GvBlock		block;

			status = gv_mirror_get_block(entry->mirror, chunk->list,
										 chunk->first + b, &block);
			if (status == GV_OK)
				gv_chunk_put(chunk, gv_code_bytes(entry->spec.m),
							 gv_keys_bytes(&entry->spec.keys), (size_t) b,
							 &block);
		}
	}
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* Releases the mirror.  If reading failed, replaces the reply by a refusal. */
static void
conclude_reading(GvConnection *connection, GvMirrorEntry *entry,
				 GvStatus status)
{
	gv_mirrors_release(entry, 0);
	if (status != GV_OK)
		gv_reply_status(connection, status, NULL);
}

/* Answers GV_MSG_READ_LISTS. */
static void
read_lists(GvConnection *connection)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire_range(connection, INT32_MAX,
										 INT32_MAX / GV_BLOCK);
	GvStatus	status = GV_OK;
	int64_t		capacity = 0;
	int64_t		used = 0;
	int64_t		bytes = 1;
	char	   *out;
	int32_t		i;

	if (entry == NULL)
		return;

	/*
	 * compute the bytes of all lists, or of as many lists as fit into a
	 * message
	 */
	pthread_rwlock_rdlock(&entry->lock);
	for (i = 0; i < request->count && capacity < GV_MAX_MESSAGE; i++)
	{
		GvChunk		chunk = chunk_of(entry, request->first + i,
									 i == 0 ? request->block : 0,
									 GV_MAX_MESSAGE);

		capacity += bytes_of(&entry->spec, &chunk);
	}
	pthread_rwlock_unlock(&entry->lock);
	if (capacity > GV_MAX_MESSAGE)
		capacity = GV_MAX_MESSAGE;
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

/* Answers GV_MSG_READ_ARRAY. */
static void
read_array(GvConnection *connection)
{
	const GvArrayRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);
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
		gv_refuse_protocol(connection, "values out of range");
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

/* Answers GV_MSG_READ_REFINE. */
static void
read_refine(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = acquire(connection, &request->key);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvStatus	status = GV_OK;
	void	   *items;

	if (entry == NULL)
		return;
	if (request->unused != 0 || request->nchunks < 1 ||
		entry->spec.refine_slots == 0 ||
		bytes != request->nchunks * INT64_C(6) ||
		request->nchunks >
		GV_MAX_MESSAGE / (int64_t) gv_refine_stride(entry->spec.dims))
	{
		gv_mirrors_release(entry, 0);
		gv_refuse_protocol(connection, "malformed addresses");
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

const GvMessageKind gv_mirror_messages[] = {
	{GV_MSG_BEGIN, GV_BY(LOADER), GV_ONE(GvBeginRequest), GV_ANY_TIME, false,
	begin_mirror},
	{GV_MSG_ARRAY, GV_BY(LOADER), GV_FROM(GvArrayRequest), GV_ANY_TIME, true,
	put_array},
	{GV_MSG_LISTS, GV_BY(LOADER) | GV_BY(BUILDER), GV_FROM(GvListsRequest),
	GV_DURING_JOB, true, put_lists},
	{GV_MSG_REFINE, GV_BY(LOADER), GV_FROM(GvListsRequest), GV_ANY_TIME, true,
	put_refine},
	{GV_MSG_READY, GV_BY(LOADER), GV_ONE(GvKeyRequest), GV_ANY_TIME, false,
	make_ready},
	{GV_MSG_MARK_CURRENT, GV_BY(LOADER), GV_ONE(GvCurrentRequest), GV_ANY_TIME,
	false, mark_current},
	{GV_MSG_LIST_STATES, GV_BY(LOADER), GV_ONE(GvRangeRequest), GV_ANY_TIME,
		false,
	read_states},
	{GV_MSG_READ_LISTS, GV_BY(LOADER), GV_ONE(GvRangeRequest), GV_ANY_TIME,
		false,
	read_lists},
	{GV_MSG_READ_ARRAY, GV_BY(LOADER), GV_ONE(GvArrayRequest), GV_ANY_TIME,
		false,
	read_array},
	{GV_MSG_READ_REFINE, GV_BY(LOADER), GV_FROM(GvListsRequest), GV_ANY_TIME,
	false, read_refine},
	{GV_MSG_DROP, GV_BY(LOADER) | GV_BY(SUPERVISOR), GV_ONE(GvKeyRequest),
	GV_ANY_TIME, false, drop_mirror},
	{0}
};
