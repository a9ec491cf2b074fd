/*
 * mirrorload.c
 *		The chunks that loaders bring: checks them and adds them to a mirror.
 *
 * A mirror is locked for one chunk at a time, so that searches go on while it
 * is loaded and brought up to date.
 */
#include <string.h>

#include "server/server.h"

/* The mirror that a loader names, or NULL: refused. */
static GvMirrorEntry *
chunks_acquire(GvConnection *connection, const GvMirrorKey *key)
{
	GvRefusalCode refusal;
	GvMirrorEntry *entry = gv_mirrors_acquire(key, connection->number,
											  &refusal);

	if (entry == NULL)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	return entry;
}

/* Say OK, or refuse; `wrong` for who broke the rules. */
void
gv_chunks_conclude(GvConnection *connection, GvStatus status, const char *wrong)
{
	GvRefusalCode refusal;

	if (wrong != NULL)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
	else if (status == GV_OK)
		gv_reply(connection, 0);
	else
	{
		refusal = gv_status_refusal(status);
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	}
}

/*
 * Do the parent offsets that came go on ascending, from 0 to the number of
 * lists?
 */
static bool
check_parent_offsets(GvMirrorEntry *entry, int64_t first, int64_t n,
					 const int32_t *parent_offsets)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (first + i == 0 ? parent_offsets[i] != 0 :
			parent_offsets[i] <= entry->last_parent_offset)
			return false;
		if (first + i == entry->spec.nparents &&
			parent_offsets[i] != entry->spec.nlists)
			return false;
		entry->last_parent_offset = parent_offsets[i];
	}
	return true;
}

/* Elements come one after another, once, while the mirror is not ready. */
static const char *
check_array(GvMirrorEntry *entry, const GvArrayRequest *request)
{
	if (entry->ready)
		return "the mirror has its arrays";
	if (request->first != entry->filled[request->array] ||
		request->count > gv_array_length(&entry->spec, (GvArray) request->array) -
		request->first)
		return "an array out of order";
	if (request->array == GV_PARENT_OFFSETS &&
		!check_parent_offsets(entry, request->first, request->count,
							  (const int32_t *) (request + 1)))
		return "the parents' lists do not follow each other";
	return NULL;
}

/* See GV_MSG_ARRAY. */
void
gv_chunks_array(GvConnection *connection)
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
		gv_chunks_conclude(connection, GV_OK, "a malformed array");
		return;
	}
	entry = chunks_acquire(connection, &request->key);
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
	gv_chunks_conclude(connection, status, wrong);
}

/* See GV_MSG_READY. */
void
gv_chunks_ready(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);
	const char *wrong = NULL;
	int32_t		array;

	if (entry == NULL)
		return;
	if (entry->ready)
		wrong = "the mirror is ready already";
	for (array = 0; array < GV_NARRAYS; array++)
		if (entry->filled[array] != gv_array_length(&entry->spec, (GvArray) array))
			wrong = "the mirror is not complete";
	if (wrong == NULL)
		gv_mirrors_ready(entry);
	gv_mirrors_release(entry, 0);
	gv_chunks_conclude(connection, GV_OK, wrong);
}

/* See GV_MSG_CURRENT. */
void
gv_chunks_current(GvConnection *connection)
{
	const GvCurrentRequest *request = gv_payload(connection);
	GvMirrorEntry *entry;

	if (request->version == 0)
	{
		gv_chunks_conclude(connection, GV_OK, "no version");
		return;
	}
	entry = chunks_acquire(connection, &request->key);
	if (entry == NULL)
		return;
	pthread_rwlock_wrlock(&entry->lock);
	if (entry->seen_by == connection->number)
		entry->version = request->version;
	pthread_rwlock_unlock(&entry->lock);
	gv_mirrors_release(entry, 0);
	gv_chunks_conclude(connection, GV_OK, NULL);
}

/* Where the arrays of a chunk of such a mirror are. */
GvListChunk
gv_chunks_open(const GvMirrorSpec *spec, const GvChunk *chunk)
{
	GvListChunk open = {
		.list = chunk->list,
		.first = chunk->first,
		.nblocks = chunk->nblocks
	};
	size_t		postings = (size_t) chunk->nblocks * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&spec->keys);
	const char *next = (const char *) (chunk + 1);

	open.live = (const uint32_t *) next;
	if ((chunk->flags & GV_CHUNK_LIVE) != 0)
		return open;
	next += (size_t) chunk->nblocks * sizeof(uint32_t);
	open.t = (const float *) next;
	next += postings * sizeof(float);
	open.rowids = (const uint16_t *) next;
	next += postings * 3 * sizeof(uint16_t);
	if (keys_bytes > 0)
		open.keys = next;
	next += (size_t) chunk->nblocks * keys_bytes;
	open.codes = (const uint8_t *) next;
	return open;
}

/* Is a chunk well-formed, whatever the list holds?  It is all there. */
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
	/* what is in place already is full */
	if (chunk->nblocks == 0)
		return tail == 0;
	return tail == 0 || live[chunk->nblocks - 1] >> tail == 0;
}

/* Do nchunks chunks fill the message to its last byte? */
bool
gv_chunks_check(const GvConnection *connection, const GvMirrorSpec *spec)
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
		bytes = gv_chunks_bytes(spec, chunk);
		if (bytes > left || !check_chunk(spec, chunk))
			return false;
		next += bytes;
		left -= bytes;
	}
	return left == 0;
}

/* Locked: does the chunk fit to what the list holds? */
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
 * Estimates the bytes by which each member of a mirror grows with a chunk,
 * into growth [GV_MAX_DEVICES].
 */
static void
chunk_growth(GvMirrorEntry *entry, const GvChunk *chunk, int64_t *growth)
{
	int32_t		shard = gv_mirror_list_shard(entry->mirror, chunk->list);
	int64_t		blocks = (int64_t) chunk->first + chunk->nblocks;
	GvChunk		one = {.nblocks = 1};
	int32_t		i;

	pthread_rwlock_rdlock(&entry->lock);
	blocks -= gv_blocks_of(entry->states[chunk->list].nitems);
	pthread_rwlock_unlock(&entry->lock);
	if (blocks < 0)
		blocks = 0;
	for (i = 0; i < GV_MAX_DEVICES; i++)
		growth[i] = shard >= 0 && shard != i ? 0 : blocks *
			(gv_chunks_bytes(&entry->spec, &one) - (int64_t) sizeof(one));
}

/* The same of n items. */
static void
items_growth(const GvMirrorEntry *entry, const GvRefineItem *items, int32_t n,
			 int64_t *growth)
{
	int64_t		stride = (int64_t) gv_refine_stride(entry->spec.dims);
	int32_t		i;
	int32_t		p;

	memset(growth, 0, GV_MAX_DEVICES * sizeof(*growth));
	for (i = 0; i < n; i++)
	{
		int32_t		shard = gv_mirror_record_shard
		(entry->mirror, gv_refine_item(items, entry->spec.dims, i)->address);

		for (p = 0; p < GV_MAX_DEVICES; p++)
			growth[p] += shard >= 0 && shard != p ? 0 : stride;
	}
}

/*
 * Adds a well-formed chunk, which a connection has sent and for which there is
 * memory; *wrong is told when it does not follow.
 */
static GvStatus
apply_chunk(GvMirrorEntry *entry, uint64_t sender, const GvChunk *chunk,
			const char **wrong)
{
	GvListChunk open = gv_chunks_open(&entry->spec, chunk);
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
	/* in here, because others who change the mirror report too */
	gv_mirrors_changed(entry, entry->nitems);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* See GV_MSG_LISTS. */
void
gv_chunks_lists(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	bool		fits;			/* else others would be evicted in vain */
	int32_t		i;

	if (entry == NULL)
		return;
	if (!gv_chunks_check(connection, &entry->spec))
		wrong = "malformed pieces";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		int64_t		growth[GV_MAX_DEVICES];

		do
		{
			chunk_growth(entry, chunk, growth);
			fits = gv_mirrors_grow(entry, growth);
			status = fits ? apply_chunk(entry, connection->number, chunk,
										&wrong) : GV_NO_MEMORY;
		} while (fits && status == GV_NO_MEMORY &&
				 gv_mirrors_evict_for(entry, growth));
		next += gv_chunks_bytes(&entry->spec, chunk);
	}
	gv_mirrors_release(entry, 0);
	gv_chunks_conclude(connection, status, wrong);
}

/* Adds items, for which there is memory. */
static GvStatus
apply_items(GvMirrorEntry *entry, const GvRefineItem *items, int32_t n)
{
	GvStatus	status;

	pthread_rwlock_wrlock(&entry->lock);
	status = gv_mirror_put_refine(entry->mirror, items, n);
	gv_mirrors_changed(entry, entry->nitems);
	pthread_rwlock_unlock(&entry->lock);
	return status;
}

/* See GV_MSG_REFINE. */
void
gv_chunks_refine(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	const GvRefineItem *items = (const GvRefineItem *) (request + 1);
	int64_t		growth[GV_MAX_DEVICES];
	bool		fits;			/* as above */

	if (entry == NULL)
		return;
	if (request->unused != 0 || request->nchunks < 0 ||
		entry->spec.refine_slots == 0 ||
		bytes != request->nchunks *
		(int64_t) gv_refine_stride(entry->spec.dims))
		wrong = "malformed refine records";
	else
		do
		{
			items_growth(entry, items, request->nchunks, growth);
			fits = gv_mirrors_grow(entry, growth);
			status = fits ? apply_items(entry, items, request->nchunks) :
				GV_NO_MEMORY;
		} while (fits && status == GV_NO_MEMORY && gv_mirrors_evict_for(entry, growth));
	gv_mirrors_release(entry, 0);
	gv_chunks_conclude(connection, status, wrong);
}

/* ----
 * What loaders read of a mirror: states of lists, and, to compare them
 * with the index, its contents.
 */

/* A range of lists of a mirror, from a block up to the last; NULL: refused. */
static GvMirrorEntry *
acquire_range(GvConnection *connection, int64_t most, int32_t last_block)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);

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
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);
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
	GvMirrorEntry *entry = chunks_acquire(connection, &request->key);
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
