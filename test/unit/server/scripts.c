/*
 * scripts.c
 *		What clients of every role say, as messages that can be damaged before
 *		they are sent.
 */
#include "scripts.h"

#define VERSION		99			/* of mirrors */

static void
add(Script *script, GvMessageType type, const void *head, size_t head_bytes,
	const void *tail, size_t tail_bytes)
{
	GvMessage	header = {(uint32_t) (head_bytes + tail_bytes), type, 0};
	size_t		bytes = sizeof(header) + header.length;
	char	   *message = malloc(bytes);

	memcpy(message, &header, sizeof(header));
	if (head_bytes > 0)
		memcpy(message + sizeof(header), head, head_bytes);
	if (tail_bytes > 0)
		memcpy(message + sizeof(header) + head_bytes, tail, tail_bytes);
	script->messages[script->n] = message;
	script->bytes[script->n++] = bytes;
}

static void
add_hello(Script *script, GvRole role)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role, 1,
	TEST_INCARNATION};

	add(script, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0);
}

/* The version is the mirror's, or 0. */
static void
add_search(Script *script, const GvMirrorKey *key, const TestIndex *index,
		   uint64_t version)
{
	TestSearch	search = make_search(key, index);
	size_t		bytes;
	char	   *tail = search_tail(&search, &bytes);

	search.request.version = version;
	add(script, GV_MSG_SEARCH, &search.request, sizeof(search.request), tail,
		bytes);
	free(tail);
	free_search(&search);
}

static void
add_chunks(Script *script, const GvMirrorKey *key, const TestIndex *index,
		   uint32_t flags)
{
	GvListsRequest request = {*key, index->spec.nlists, 0};
	char	   *chunks = NULL;
	size_t		used = 0;
	int32_t		list;

	for (list = 0; list < index->spec.nlists; list++)
	{
		size_t		bytes;
		char	   *chunk = chunk_bytes(index, list, 0,
										index->lists[list].nblocks, flags,
										&bytes);

		chunks = realloc(chunks, used + bytes);
		memcpy(chunks + used, chunk, bytes);
		used += bytes;
		free(chunk);
	}
	add(script, GV_MSG_LISTS, &request, sizeof(request), chunks, used);
	free(chunks);
}

/* Two refine records. */
static void
add_items(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	GvListsRequest request = {*key, 2, 0};
	size_t		stride = gv_refine_stride(index->spec.dims);
	char	   *items = calloc(2, stride);
	int			i;

	for (i = 0; i < 2; i++)
	{
		GvRefineItem *item = (GvRefineItem *) (items + stride * i);

		item->address[0] = (uint16_t) i;
		item->address[2] = 1;
		item->rowid[2] = (uint16_t) i;
	}
	add(script, GV_MSG_REFINE, &request, sizeof(request), items, 2 * stride);
	free(items);
}

/* All that a loader does: it makes a mirror of `key`, uses and drops it. */
void
loader_script(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	GvBeginRequest begin = {*key, *spec};
	GvRangeRequest range = {*key, 0, spec->nlists, 0, 0};
	GvCurrentRequest current = {*key, VERSION};
	int			array;

	begin.spec.refine_slots = 2;
	begin.spec.refine_records = 9;
	add_hello(script, GV_ROLE_LOADER);
	add(script, GV_MSG_BEGIN, &begin, sizeof(begin), NULL, 0);
	for (array = 0; array < GV_NARRAYS; array++)
	{
		GvArrayRequest request = {*key, array, 0, 0, 0};
		const void *values = index_array(index, (GvArray) array,
										 &request.count);

		add(script, GV_MSG_ARRAY, &request, sizeof(request), values,
			4 * (size_t) request.count);
	}
	add_chunks(script, key, index, 0);
	add(script, GV_MSG_READY, key, sizeof(*key), NULL, 0);
	add_chunks(script, key, index, GV_CHUNK_LIVE);
	add_items(script, key, index);
	add(script, GV_MSG_LIST_STATES, &range, sizeof(range), NULL, 0);
	add(script, GV_MSG_MARK_CURRENT, &current, sizeof(current), NULL, 0);
	add(script, unit_random() % 2 ? GV_MSG_LIST_STATES : GV_MSG_READ_LISTS, &range,
		sizeof(range), NULL, 0);
	add(script, GV_MSG_DROP, key, sizeof(*key), NULL, 0);
}

/*
 * A builder's: it trains on the index's centroids, encodes, and searches its
 * mirror.
 */
void
builder_script(Script *script, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	GvBuilderSpec build = {0, spec->metric, spec->dims, spec->m, 2, 1, 2, 1, 1,
	1, spec->nlists, 2, 1.0f, 0, 2.0, 1, spec->nlists};
	GvRowsRequest sample = {GV_SAMPLE, spec->nlists};
	GvRowsRequest query = {GV_QUERIES, 1};
	GvRowsRequest encode = {0, spec->nlists};
	GvGetModelRequest array = {GV_CENTROIDS, 0, 0, spec->dims};
	GvCalibMirrorRequest calib = {100};
	GvSearchRequest search = {.n = 1, .dims = spec->dims, .probes = 2,
	.compare = 2, .capacity = 3};
	GvListsRequest chunks = {.nchunks = 1};
	size_t		row = 4 * (size_t) spec->dims;
	size_t		bytes;
	char	   *chunk = chunk_bytes(index, 0, 0, index->lists[0].nblocks, 0,
									&bytes);
	float	   *mean = calloc(spec->dims, sizeof(float));

	add_hello(script, GV_ROLE_BUILDER);
	add(script, GV_MSG_BUILD, &build, sizeof(build), mean, row);
	add(script, GV_MSG_TRAIN_ROWS, &query, sizeof(query), index->centroids, row);
	add(script, GV_MSG_TRAIN_ROWS, &sample, sizeof(sample), index->centroids,
		row * spec->nlists);
	add(script, GV_MSG_TRAIN, NULL, 0, NULL, 0);
	add(script, GV_MSG_GET_MODEL, &array, sizeof(array), NULL, 0);
	add(script, GV_MSG_ENCODE_ROWS, &encode, sizeof(encode), index->centroids,
		row * spec->nlists);
	add(script, GV_MSG_CALIB_MIRROR, &calib, sizeof(calib), NULL, 0);
	add(script, GV_MSG_LISTS, &chunks, sizeof(chunks), chunk, bytes);
	add(script, GV_MSG_SEARCH, &search, sizeof(search), index->centroids, row);
	free(chunk);
	free(mean);
}

/*
 * A set's: test set `which`, with what little there is of it.  The last
 * message is refused, as that set began with queries.
 */
void
set_script(Script *script, int which)
{
	TestSet		set = set_make(which);
	GvSetSpec	request = set.spec;
	int			i;

	/* one pass */
	request.iterations = 0;
	add_hello(script, GV_ROLE_SET);
	add(script, GV_MSG_SET, &request, sizeof(request), NULL, 0);
	for (i = GV_NSET_INPUTS - 1; i >= 0; i--)
	{
		GvPutRequest put = {i, 0, set.n[i]};
		int64_t		item = gv_set_input_bytes(&set.spec, (GvSetInput) i);

		if (set.n[i] > 0)
			add(script, GV_MSG_PUT, &put, sizeof(put), set.items[i],
				(size_t) (set.n[i] * item));
	}
	add(script, GV_MSG_RUN, NULL, 0, NULL, 0);
	for (i = 0; i < GV_NSET_OUTPUTS; i++)
	{
		GvGetRequest get = {i, 0, 0, 1, -1};

		if (gv_set_output_bytes(&set.spec, (GvSetOutput) i) > 0)
			add(script, GV_MSG_GET, &get, sizeof(get), NULL, 0);
	}
	add(script, GV_MSG_SET, &request, sizeof(request), NULL, 0);
	add(script, GV_MSG_ASK, &request, sizeof(request), NULL, 0);
	set_free(&set);
}

/*
 * A supervisor's: it asks for the status, and drops a mirror that there may
 * be.
 */
void
supervisor_script(Script *script, const GvMirrorKey *key)
{
	add_hello(script, GV_ROLE_SUPERVISOR);
	add(script, GV_MSG_STATUS, NULL, 0, NULL, 0);
	add(script, GV_MSG_DROP, key, sizeof(*key), NULL, 0);
	add(script, GV_MSG_PING, NULL, 0, NULL, 0);
}

void
session_script(Script *script, const GvMirrorKey *key,
			   const TestIndex *index)
{
	add_hello(script, GV_ROLE_SESSION);
	add_search(script, key, index, VERSION);
	add(script, GV_MSG_PING, NULL, 0, NULL, 0);
	add(script, GV_MSG_STATUS, NULL, 0, NULL, 0);
	add_search(script, key, index, 0);
}

/* Many queries', without a condition and then with one, if there are keys. */
void
bulk_script(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	GvSearchRequest request = {
		.key = *key,
		.n = 1 + (int32_t) (unit_random() % index->spec.nlists),
		.dims = index->spec.dims,
		.probes = 2,
		.compare = 3,
		.capacity = 5,
		.version = unit_random() % 2 ? VERSION : 0
	};
	size_t		bytes = 4 * (size_t) request.n * (size_t) request.dims;

	add_hello(script, GV_ROLE_BULK);
	add(script, GV_MSG_SEARCH, &request, sizeof(request), index->centroids,
		bytes);
	add(script, GV_MSG_PING, NULL, 0, NULL, 0);
	add_search(script, key, index, request.version);
}

/* It is empty then. */
void
free_script(Script *script)
{
	int			i;

	for (i = 0; i < script->n; i++)
		free(script->messages[i]);
	script->n = 0;
}
