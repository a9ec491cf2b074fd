/*
 * check_fuzz.c
 *		Conversations in which one message has been damaged: whatever the
 *		server makes of it, others get right answers.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

#define MAX_MESSAGES	16
#define HEALTHY_EVERY	50

/* A conversation: messages with their headers. */
typedef struct Script
{
	int			n;
	char	   *messages[MAX_MESSAGES];
	size_t		bytes[MAX_MESSAGES];
} Script;

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
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role, 1};

	add(script, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0);
}

static void
add_search(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	TestSearch	search = make_search(key, index);
	size_t		bytes;
	char	   *tail = search_tail(&search, &bytes);

	add(script, GV_MSG_SEARCH, &search.request, sizeof(search.request), tail,
		bytes);
	free(tail);
	free_search(&search);
}

static void
add_pieces(Script *script, const GvMirrorKey *key, const TestIndex *index,
		   uint32_t flags)
{
	GvListsRequest request = {*key, index->spec.nlists, 0};
	char	   *pieces = NULL;
	size_t		used = 0;
	int32_t		list;

	for (list = 0; list < index->spec.nlists; list++)
	{
		size_t		bytes;
		char	   *piece = piece_bytes(index, list, 0,
										index->lists[list].nblocks, flags,
										&bytes);

		pieces = realloc(pieces, used + bytes);
		memcpy(pieces + used, piece, bytes);
		used += bytes;
		free(piece);
	}
	add(script, GV_MSG_LISTS, &request, sizeof(request), pieces, used);
	free(pieces);
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

/* A loader's whole life: it makes a mirror of `key`, uses and drops it. */
static void
loader_script(Script *script, const GvMirrorKey *key, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	GvBeginRequest begin = {*key, *spec};
	GvRangeRequest range = {*key, 0, spec->nlists, 0, 0};
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
	add_pieces(script, key, index, 0);
	add(script, GV_MSG_READY, key, sizeof(*key), NULL, 0);
	add_pieces(script, key, index, GV_PIECE_LIVE);
	add_items(script, key, index);
	add_search(script, key, index);
	add(script, unit_random() % 2 ? GV_MSG_STATES : GV_MSG_BLOCKS, &range,
		sizeof(range), NULL, 0);
	add(script, GV_MSG_DROP, key, sizeof(*key), NULL, 0);
}

/* A builder's: it trains on the index's centroids, encodes and tries. */
static void
builder_script(Script *script, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	GvBuilderSpec build = {0, spec->metric, spec->dims, spec->m, 2, 1, 2, 1, 1,
	1, spec->nlists, 2, 1.0f, 0, 2.0, 1, spec->nlists};
	GvRowsRequest sample = {GV_SAMPLE, spec->nlists};
	GvRowsRequest query = {GV_QUERIES, 1};
	GvRowsRequest encode = {0, spec->nlists};
	GvTrainedRequest array = {GV_CENTROIDS, 0, 0, spec->dims};
	GvTrialRequest trial = {100};
	GvTryRequest try = {1, 2, 2, 3};
	GvListsRequest pieces = {.npieces = 1};
	size_t		row = 4 * (size_t) spec->dims;
	size_t		bytes;
	char	   *piece = piece_bytes(index, 0, 0, index->lists[0].nblocks, 0,
									&bytes);
	float	   *mean = calloc(spec->dims, sizeof(float));

	add_hello(script, GV_ROLE_BUILDER);
	add(script, GV_MSG_BUILD, &build, sizeof(build), mean, row);
	add(script, GV_MSG_ROWS, &query, sizeof(query), index->centroids, row);
	add(script, GV_MSG_ROWS, &sample, sizeof(sample), index->centroids,
		row * spec->nlists);
	add(script, GV_MSG_TRAIN, NULL, 0, NULL, 0);
	add(script, GV_MSG_TRAINED, &array, sizeof(array), NULL, 0);
	add(script, GV_MSG_ENCODE, &encode, sizeof(encode), index->centroids,
		row * spec->nlists);
	add(script, GV_MSG_TRIAL, &trial, sizeof(trial), NULL, 0);
	add(script, GV_MSG_PIECES, &pieces, sizeof(pieces), piece, bytes);
	add(script, GV_MSG_TRY, &try, sizeof(try), index->centroids, row);
	free(piece);
	free(mean);
}

/* One for each kind of work, with what little there is of it. */
static void
set_script(Script *script)
{
	TestSet		set = set_make((int) (unit_random() % TEST_SETS));
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
		GvGetRequest get = {i, 0, 0, 1};

		if (gv_set_output_bytes(&set.spec, (GvSetOutput) i) > 0)
			add(script, GV_MSG_GET, &get, sizeof(get), NULL, 0);
	}
	add(script, GV_MSG_SET, &request, sizeof(request), NULL, 0);
	set_free(&set);
}

static void
session_script(Script *script, const GvMirrorKey *key,
			   const TestIndex *index)
{
	add_hello(script, GV_ROLE_SESSION);
	add_search(script, key, index);
	add(script, GV_MSG_PING, NULL, 0, NULL, 0);
	add(script, GV_MSG_STATUS, NULL, 0, NULL, 0);
	add_search(script, key, index);
}

/* Damage a message: numbers, bits, length; its header more than the rest. */
static void
damage(char *message, size_t *bytes)
{
	static const uint32_t numbers[] = {0, 1, 2, 31, 32, 33, 255, 65535,
	65536, 1 << 24, INT32_MAX, 0x80000000, UINT32_MAX};
	int			n = 1 + (int) (unit_random() % 3);

	while (n-- > 0)
	{
		size_t		reach = unit_random() % 3 == 0 ? *bytes :
			*bytes < 80 ? *bytes : 80;
		size_t		at = unit_random() % (reach == 0 ? 1 : reach);
		uint32_t	number = numbers[unit_random() % 13];

		switch (unit_random() % 6)
		{
			case 0:
				if (at < *bytes)
					message[at] ^= (char) (1 << unit_random() % 8);
				break;
			case 1:
				if (at < *bytes)
					message[at] = (char) unit_random();
				break;
			case 2:
				*bytes = at;	/* and the length is a lie */
				break;
			default:
				at = at / 4 * 4;
				if (unit_random() % 2 == 0 && at + 4 <= *bytes)
				{
					memcpy(&number, message + at, 4);
					number += (uint32_t) (unit_random() % 5) - 2;
				}
				if (at + 4 <= *bytes)
					memcpy(message + at, &number, 4);
				break;
		}
	}
}

/* Read whatever comes until the end. */
static void
drain(int fd)
{
	char		bytes[4096];

	shutdown(fd, SHUT_WR);
	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
}

/* Hold a conversation up to a message that is damaged. */
static void
converse(const TestServer *server, Script *script)
{
	int			worst = (int) (unit_random() % script->n);
	int			fd = client_socket(server);
	int			i;

	CHECK(fd >= 0, "nobody listens");
	for (i = 0; i < worst; i++)
	{
		GvMessage	header;
		void	   *answer;

		if (!client_send(fd, script->messages[i], script->bytes[i]))
			break;
		answer = client_answer(fd, &header);
		/* the key may be in use: what another one left, or is loading */
		if (answer == NULL)
			break;
		free(answer);
	}
	damage(script->messages[worst], &script->bytes[worst]);
	(void) client_send(fd, script->messages[worst], script->bytes[worst]);
	/* some go without a word */
	if (unit_random() % 4 != 0)
		drain(fd);
	close(fd);
}

static void
one_round(const TestServer *server, const GvMirrorKey *healthy,
		  const TestIndex *index, const TestIndex *bare)
{
	Script		script = {0};
	GvMirrorKey key = test_key(1000 + (uint32_t) (unit_random() % 3));
	int			i;

	key.build_id = 77;
	switch (unit_random() % 5)
	{
		case 0:
			session_script(&script, healthy, index);
			break;
		case 1:
			builder_script(&script, bare);
			break;
		case 2:
			set_script(&script);
			break;
		default:
			loader_script(&script, &key, index);
			break;
	}
	converse(server, &script);
	for (i = 0; i < script.n; i++)
		free(script.messages[i]);
}

void
test_fuzz(void)
{
	static const char *const options[] = {"--memory", "64", "--keep", "3600",
	NULL};
	TestServer	server;
	TestIndex	index = make_index(GV_L2, 5, 3, 4, 2, 30, true);
	TestIndex	bare = make_index(GV_L2, 5, 3, 4, 2, 30, true);	/* no keys */
	GvMirrorKey healthy = test_key(1);
	int			rounds = unit_small ? 200 : !test_long || test_card ? 2000 : 100000;
	int			loader;
	int			session;
	int			i;
	int			got;

	give_keys(&index, 2);
	server_folder(&server);
	server_launch(&server, options);
	CHECK(server_ready(&server), "it does not start");
	loader = client_open(&server, GV_ROLE_LOADER);
	session = client_open(&server, GV_ROLE_SESSION);
	CHECK(load_all(loader, &healthy, &index) == 0, "load");
	for (i = 1; i <= rounds; i++)
	{
		one_round(&server, &healthy, &index, &bare);
		if (i % HEALTHY_EVERY != 0)
			continue;
		got = search_check(session, &healthy, &index);
		CHECK(got == 0, "a healthy client after %d conversations: %d", i,
			  got);
		got = load_piece(loader, &healthy, &index, 0, 0,
						 index.lists[0].nblocks, 0);
		CHECK(got == 0, "a healthy loader after %d conversations: %d", i,
			  got);
	}
	close(loader);
	close(session);
	free_index(&index);
	free_index(&bare);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}
