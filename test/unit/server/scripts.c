/*
 * scripts.c
 *		What clients of every role say, as messages that can be damaged before
 *		they are sent.
 */
#include "scripts.h"

#define VERSION		99			/* of mirrors */

void
script_add(Script *script, GvMessageType type, const void *head,
		   size_t head_bytes, const void *tail, size_t tail_bytes)
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

/* Say message i, and take the answer; as client_receive. */
int
script_say(int fd, const Script *script, int i)
{
	const GvMessage *message = (const GvMessage *) script->messages[i];

	(void) client_send(fd, message, script->bytes[i]);
	return client_receive(fd, (GvMessageType) message->type, NULL, NULL);
}

void
script_hello(Script *script, GvRole role)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role, 1,
	TEST_INCARNATION};

	SAY(script, HELLO, hello);
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
	SAY_MORE(script, SEARCH, search.request, tail, bytes);
	free(tail);
	free_search(&search);
}

/* All lists; of one that has several blocks the last comes by itself. */
static void
add_chunks(Script *script, const GvMirrorKey *key, const TestIndex *index,
		   uint32_t flags)
{
	GvListsRequest request = {*key, 0, 0};
	char	   *chunks = NULL;
	size_t		used = 0;
	int32_t		list;

	for (list = 0; list < index->spec.nlists; list++)
	{
		int32_t		nblocks = index->lists[list].nblocks;
		int32_t		first = 0;
		int32_t		n = flags == 0 && nblocks > 1 ? nblocks - 1 : nblocks;

		do
		{
			size_t		bytes;
			FREED char *chunk = chunk_bytes(index, list, first, n, flags,
											&bytes);

			chunks = realloc(chunks, used + bytes);
			memcpy(chunks + used, chunk, bytes);
			used += bytes;
			request.nchunks++;
			first += n;
			n = nblocks - first;
		} while (n > 0);
	}
	SAY_MORE(script, LISTS, request, chunks, used);
	free(chunks);
}

/* Two refine records, which are written, or read back. */
static void
add_items(Script *script, const GvMirrorKey *key, const TestIndex *index,
		  bool written)
{
	GvListsRequest request = {*key, 2, 0};
	size_t		stride = gv_refine_stride(index->spec.dims);
	FREED char *items = calloc(2, stride);
	uint16_t	addresses[2][3] = {{0, 0, 1}, {1, 0, 1}};
	int			i;

	for (i = 0; i < 2; i++)
	{
		GvRefineItem *item = (GvRefineItem *) (items + stride * i);

		memcpy(item->address, addresses[i], sizeof(item->address));
		item->rowid[2] = (uint16_t) i;
	}
	if (written)
		SAY_MORE(script, REFINE, request, items, 2 * stride);
	else
		SAY_MORE(script, READ_REFINE, request, addresses, sizeof(addresses));
}

/* All arrays of the model, each in a message. */
static void
add_model(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	int			array;

	for (array = 0; array < GV_NARRAYS; array++)
	{
		GvArrayRequest request = {*key, array, 0, 0, 0};
		const void *values = index_array(index, (GvArray) array,
										 &request.count);

		SAY_MORE(script, ARRAY, request, values, 4 * (size_t) request.count);
	}
}

/* Two rows, of half floats. */
static void
add_rows(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	GvListsRequest request = {*key, 2, 0};
	size_t		stride = gv_row_stride(GV_ROWS_HALF, index->spec.dims);
	FREED char *items = calloc(2, stride);
	int			i;

	for (i = 0; i < 2; i++)
	{
		GvRowItem  *item = (GvRowItem *) (items + stride * i);

		item->rowid[2] = (uint16_t) (i + 1);
		item->known = 1;
	}
	SAY_MORE(script, ROWS, request, items, 2 * stride);
}

/* A loader of a mirror with rows; loader_script's has refine records. */
void
rows_script(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	GvBeginRequest begin = {.key = *key,.spec = index->spec};
	GvRangeRequest range = {*key, 0, index->spec.nlists, 0, 0};
	GvListsRequest request = {*key, 2, 0};
	uint16_t	ids[2][3] = {{0, 0, 1}, {0, 0, 9}};

	begin.spec.rows = GV_ROWS_HALF;
	begin.spec.refine_records = 9;
	script_hello(script, GV_ROLE_LOADER);
	/* another one's, perhaps */
	SAY(script, DROP, *key);
	SAY(script, BEGIN, begin);
	add_model(script, key, index);
	add_rows(script, key, index);
	add_chunks(script, key, index, 0);
	SAY(script, LIST_STATES, range);
	SAY(script, READY, *key);
	add_rows(script, key, index);
	SAY_MORE(script, READ_ROWS, request, ids, sizeof(ids));
	SAY(script, DROP, *key);
}

/* All that a loader does: it makes a mirror of `key`, uses and drops it. */
void
loader_script(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	GvBeginRequest begin = {.key = *key,.spec = *spec};
	GvRangeRequest range = {*key, 0, spec->nlists, 0, 0};
	GvCurrentRequest current = {*key, VERSION};
	GvArrayRequest read = {*key, GV_PARENT_OFFSETS, 0, 0, spec->nparents + 1};

	begin.spec.refine_slots = 2;
	begin.spec.refine_records = 9;
	script_hello(script, GV_ROLE_LOADER);
	SAY(script, BEGIN, begin);
	add_model(script, key, index);
	add_chunks(script, key, index, 0);
	SAY(script, READY, *key);
	add_chunks(script, key, index, GV_CHUNK_LIVE);
	add_items(script, key, index, true);
	SAY(script, READ_LISTS, range);
	SAY(script, READ_ARRAY, read);
	add_items(script, key, index, false);
	SAY(script, LIST_STATES, range);
	SAY(script, MARK_CURRENT, current);
	SAY(script, LIST_STATES, range);
	SAY(script, DROP, *key);
}

/*
 * A builder's: it trains on the index's centroids, encodes, and searches its
 * mirror, which has no keys.
 */
void
builder_script(Script *script, const TestIndex *index)
{
	TestIndex	bare = *index;
	const GvMirrorSpec *spec = &bare.spec;
	GvBuilderSpec build = {0, spec->metric, spec->dims, spec->m, 2, 1, 2, 1, 1,
	1, spec->nlists, 2, 1.0f, 0, 2.0, 1, spec->nlists};
	GvRowsRequest sample = {GV_SAMPLE, spec->nlists};
	GvRowsRequest query = {GV_QUERIES, 1};
	GvRowsRequest encode = {0, spec->nlists};
	GvEncodeSampleRequest sampled = {0, 2, 0};
	GvGetModelRequest array = {GV_CENTROIDS, 0, 0, spec->dims};
	GvCalibMirrorRequest calib = {100};
	GvSearchRequest search = {.n = 1, .dims = spec->dims, .probes = 2,
	.compare = 2, .capacity = 3};
	GvListsRequest chunks = {.nchunks = 1};
	size_t		row = 4 * (size_t) spec->dims;
	size_t		bytes;
	FREED char *chunk = NULL;
	FREED float *mean = calloc(spec->dims, sizeof(float));

	bare.spec.keys.nkeys = 0;
	chunk = chunk_bytes(&bare, 0, 0, index->lists[0].nblocks, 0, &bytes);
	script_hello(script, GV_ROLE_BUILDER);
	SAY_MORE(script, BUILD, build, mean, row);
	SAY_MORE(script, TRAIN_ROWS, query, index->centroids, row);
	SAY_MORE(script, TRAIN_ROWS, sample, index->centroids,
			 row * spec->nlists);
	SAY_PLAIN(script, TRAIN);
	SAY(script, GET_MODEL, array);
	SAY_MORE(script, ENCODE_ROWS, encode, index->centroids,
			 row * spec->nlists);
	SAY(script, ENCODE_SAMPLE, sampled);
	SAY(script, CALIB_MIRROR, calib);
	SAY_MORE(script, LISTS, chunks, chunk, bytes);
	SAY_MORE(script, SEARCH, search, index->centroids, row);
}

/*
 * A set's: test set `which`, with what little there is of it.  The last
 * message is refused, as that set began with queries.
 */
void
set_script(Script *script, int which)
{
	OwnSet		set = set_make(which);
	GvSetSpec	request = set.spec;
	int			i;

	/* one pass */
	request.iterations = 0;
	script_hello(script, GV_ROLE_SET);
	SAY(script, SET, request);
	for (i = GV_NSET_INPUTS - 1; i >= 0; i--)
	{
		GvPutRequest put = {i, 0, set.n[i]};
		int64_t		item = gv_set_input_bytes(&set.spec, (GvSetInput) i);

		if (set.n[i] > 0)
			SAY_MORE(script, PUT, put, set.items[i],
					 (size_t) (set.n[i] * item));
	}
	SAY_PLAIN(script, RUN);
	for (i = 0; i < GV_NSET_OUTPUTS; i++)
	{
		GvGetRequest get = {i, 0, 0, 1, -1};

		if (gv_set_output_bytes(&set.spec, (GvSetOutput) i) > 0)
			SAY(script, GET, get);
	}
	SAY(script, SET, request);
	SAY(script, ASK, request);
}

/*
 * A supervisor's: it asks for the status, and drops a mirror that there may
 * be.
 */
void
supervisor_script(Script *script, const GvMirrorKey *key)
{
	script_hello(script, GV_ROLE_SUPERVISOR);
	SAY_PLAIN(script, STATUS);
	SAY(script, DROP, *key);
	SAY_PLAIN(script, PING);
}

void
session_script(Script *script, const GvMirrorKey *key,
			   const TestIndex *index)
{
	script_hello(script, GV_ROLE_SESSION);
	add_search(script, key, index, VERSION);
	SAY_PLAIN(script, PING);
	SAY_PLAIN(script, STATUS);
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

	script_hello(script, GV_ROLE_BULK);
	SAY_MORE(script, SEARCH, request, index->centroids, bytes);
	SAY_PLAIN(script, PING);
	add_search(script, key, index, request.version);
}

/*
 * A conversation of some kind, 0 .. NSCRIPTS - 1: searches of a mirror that is
 * loaded, a loader's of another one, a builder's or a set's.
 */
void
any_script(Script *script, int which, const GvMirrorKey *loaded,
		   const GvMirrorKey *other, const TestIndex *index)
{
	switch (which)
	{
		case 0:
			session_script(script, loaded, index);
			break;
		case 1:
			bulk_script(script, loaded, index);
			break;
		case LOADER_SCRIPT:
			loader_script(script, other, index);
			break;
		case ROWS_SCRIPT:
			rows_script(script, other, index);
			break;
		case BUILDER_SCRIPT:
			builder_script(script, index);
			break;
		default:
			set_script(script, which - SET_SCRIPT);
			break;
	}
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
