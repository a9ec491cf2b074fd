/*
 * check_shared.c
 *		Messages in memory that a loader shares with gpuvecd, searches whose
 *		queries and answers are in shared memory, and memory that is none.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"

static int
bring_array(int fd, const TestMemory *memory, const GvMirrorKey *key,
			const TestIndex *index, GvArray array)
{
	int64_t		n;
	const void *values = index_array(index, array, &n);
	GvArrayRequest request = {*key, array, 0, 0, n};
	GvMessage	header = {sizeof(request) + 4 * n, GV_MSG_ARRAY, 0};

	return memory_ask(fd, memory, 4096 * (array % 2), header, &request,
					  sizeof(request), values, 4 * n);
}

static int
bring_list(int fd, const TestMemory *memory, const GvMirrorKey *key,
		   const TestIndex *index, int32_t list)
{
	GvListsRequest request = {*key, 1, 0};
	size_t		bytes;
	FREED char *chunk = chunk_bytes(index, list, 0,
									index->lists[list].nblocks, 0, &bytes);
	GvMessage	header = {sizeof(request) + bytes, GV_MSG_LISTS, 0};

	return memory_ask(fd, memory, 8 * (1 + list), header, &request,
					  sizeof(request), chunk, bytes);
}

/* A mirror through memory alone, twice through other memory. */
static void
test_whole(const TestServer *server, const TestIndex *index)
{
	OwnFd		fd = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(7);
	int			i;

	for (i = 0; i < 2; i++)
	{
		OwnMemory	memory = memory_make(F_SEAL_SHRINK);
		int32_t		list;
		int			array;

		CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory %d",
			  i);
		CHECK(load_begin(fd, &key, index) == 0, "begin");
		for (array = 0; array < GV_NARRAYS; array++)
			CHECK(bring_array(fd, &memory, &key, index, array) == 0, "array");
		for (list = 0; list < index->spec.nlists; list++)
			CHECK(bring_list(fd, &memory, &key, index, list) == 0, "list");
		CHECK(load_ready(fd, &key) == 0, "ready");
		CHECK(search_check(session, &key, index) == 0, "found");
		CHECK(load_drop(fd, &key) == 0, "drop");
	}
}

/* Descriptors that are no memory to share are refused. */
static void
test_no_memory(const TestServer *server)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnMemory	unsealed = memory_make(0);
	OwnFd		null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int			two[2] = {memory.fd, unsealed.fd};
	const struct
	{
		const char *what;
		uint64_t	bytes;
		const int  *fds;
		int			n;
	}			wrongs[] = {
		{"no descriptor", MEMORY_BYTES, NULL, 0},
		{"unsealed", MEMORY_BYTES, &unsealed.fd, 1},
		{"no file", MEMORY_BYTES, &null, 1},
		{"too short", MEMORY_BYTES + 1, &memory.fd, 1},
		{"nothing", 0, &memory.fd, 1},
		{"too much", GV_MAX_SHARED + 1, &memory.fd, 1}
	};
	size_t		i;
	int			fd;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		fd = client_open(server, GV_ROLE_LOADER);
		client_cut(fd, memory_pass(fd, wrongs[i].bytes, wrongs[i].fds,
								   wrongs[i].n), wrongs[i].what);
	}
	fd = client_open(server, GV_ROLE_BUILDER);
	client_cut(fd, memory_pass(fd, MEMORY_BYTES, &memory.fd, 1),
			   "a builder's memory");
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(memory_pass(fd, MEMORY_BYTES, two, 2) == 0, "the first of two");
	CHECK(client_ping(fd) == 0, "goes on");
	close(fd);
}

/* Messages in memory that are none. */
static void
test_wrong_places(const TestServer *server, const TestIndex *index)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	GvMirrorKey key = test_key(8);
	GvListsRequest lists = {key, 0, 0};
	const struct
	{
		const char *what;
		uint64_t	offset;
		GvMessage	header;
	}			wrongs[] = {
		{"behind the end", MEMORY_BYTES, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"far behind", UINT64_MAX - 7, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"header alone", MEMORY_BYTES - 8, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"odd", 4, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"too long", 0, {MEMORY_BYTES - 7, GV_MSG_LISTS, 0}},
		{"too short", 0, {sizeof(lists) - 1, GV_MSG_LISTS, 0}},
		{"an answer", 0, {sizeof(lists), GV_MSG_LISTS, GV_MSG_LISTS}},
		{"a ping", 0, {0, GV_MSG_PING, 0}},
		{"itself", 0, {sizeof(GvInShmRequest), GV_MSG_IN_SHM, 0}}
	};
	size_t		i;
	int			fd;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		bool		inside = wrongs[i].offset < MEMORY_BYTES / 2;
		GvInShmRequest request = {wrongs[i].offset};

		fd = client_open(server, GV_ROLE_LOADER);
		CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
		if (inside)
		{
			memcpy(memory.bytes + wrongs[i].offset, &wrongs[i].header,
				   sizeof(GvMessage));
			memcpy(memory.bytes + wrongs[i].offset + sizeof(GvMessage),
				   &lists, sizeof(lists));
		}
		else if (wrongs[i].offset == MEMORY_BYTES - 8)
			memcpy(memory.bytes + MEMORY_BYTES - 8, &wrongs[i].header,
				   sizeof(GvMessage));
		client_cut(fd, ASK(fd, GV_MSG_IN_SHM, request), wrongs[i].what);
	}
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(bring_list(fd, &memory, &key, index, 0) == GV_REFUSED_NO_MIRROR,
		  "not shared, or with another connection");
	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	CHECK(bring_list(fd, &memory, &key, index, 0) == GV_REFUSED_NO_MIRROR,
		  "no mirror");
	CHECK(client_ping(fd) == 0, "goes on");
	close(fd);
}

#define QUERIES		5			/* of one message */

/* Puts queries into the memory, and asks for the answers behind them. */
static bool
send_shared(int fd, const TestMemory *memory, TestSearch *search,
			const float *queries, int64_t offset)
{
	size_t		bytes;
	FREED char *tail = search_tail(search, &bytes);

	search->request.shared = 1;
	search->request.offset = offset;
	memcpy(memory->bytes + offset, queries,
		   gv_queries_bytes(&search->request));
	return client_message(fd, GV_MSG_SEARCH, &search->request,
						  sizeof(search->request), tail,
						  gv_tests_bytes(&search->request));
}

/* Two messages are under way; the second has a condition. */
static void
test_shared_searches(const TestServer *server, const TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	OwnFd		bulk = client_open(server, GV_ROLE_BULK);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	int64_t		half = (int64_t) MEMORY_BYTES / 2;
	GvMirrorKey key = test_key(9);
	TestSearch	searches[2];
	size_t		ends[2];
	int			i;

	CHECK(load_all(loader, &key, index) == 0, "load");
	CHECK(memory_pass(bulk, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	for (i = 0; i < 2; i++)
	{
		searches[i] = make_search(&key, index);
		if (i == 0)
			searches[i].request.ntests = searches[i].request.nvalues =
				searches[i].request.rank = 0;
		searches[i].request.n = QUERIES - i;
		/* search_tail copies so many queries */
		unit_free(searches[i].query);
		searches[i].query = unit_alloc(QUERIES * 4 * sizeof(float));
		memcpy(searches[i].query, index->centroids,
			   QUERIES * 4 * sizeof(float));
		CHECK(send_shared(bulk, &memory, &searches[i], searches[i].query,
						  i * half), "send");
	}
	for (i = 0; i < 2; i++)
	{
		const GvSearchRequest *request = &searches[i].request;
		size_t		at = (size_t) request->offset +
		gv_shared_queries_bytes(request);
		uint32_t	length = 1;

		CHECK(client_receive(bulk, GV_MSG_SEARCH, NULL, &length) == 0 &&
			  length == 0, "message %d", i);
		ends[i] = at + search_compare(session, &searches[i],
									  searches[i].query, memory.bytes + at,
									  (uint32_t) (MEMORY_BYTES - at));
	}
	for (i = 0; i < 2; i++)
	{
		size_t		end = (size_t) half * (size_t) (1 + i);

		while (ends[i] < end && memory.bytes[ends[i]] == 0)
			ends[i]++;
		CHECK(ends[i] == end, "byte %zu was written", ends[i]);
	}

	/* what is refused ends the connection: the next message is not read */
	searches[1].request.key.relation++;
	CHECK(send_shared(bulk, &memory, &searches[1], searches[1].query, 0),
		  "send");
	(void) send_shared(bulk, &memory, &searches[0], searches[0].query, half);
	CHECK(client_receive(bulk, GV_MSG_SEARCH, NULL, NULL) ==
		  GV_REFUSED_NO_MIRROR && client_ended(bulk), "no mirror");
	for (i = 0; i < 2; i++)
		free_search(&searches[i]);
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Places for queries and answers that are none; nothing is written there. */
static void
test_wrong_searches(const TestServer *server, const TestIndex *index)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(10);
	GvSearchRequest request = {.key = key, .n = QUERIES, .dims = 4,
	.probes = 1, .compare = 1, .capacity = 1, .shared = 1};
	int64_t		end = (int64_t) MEMORY_BYTES -
	(int64_t) gv_shared_queries_bytes(&request) -
	QUERIES * gv_answer_most(&request, false);
	const struct
	{
		const char *what;
		GvRole		role;
		bool		has_memory;
		int32_t		shared;
		int32_t		asked;
		int64_t		offset;
		int			code;		/* 0: it is answered */
	}			places[] = {
		{"the last place", GV_ROLE_BULK, true, 1, 0, end, 0},
		{"beyond the end", GV_ROLE_BULK, true, 1, 0, end + 8, 1},
		{"with queries as asked", GV_ROLE_BULK, true, 1, 1, end, 1},
		{"behind the end", GV_ROLE_BULK, true, 1, 0, MEMORY_BYTES, 1},
		{"far behind", GV_ROLE_BULK, true, 1, 0, INT64_MAX - 7, 1},
		{"before it", GV_ROLE_BULK, true, 1, 0, -8, 1},
		{"far before it", GV_ROLE_BULK, true, 1, 0, INT64_MIN, 1},
		{"odd", GV_ROLE_BULK, true, 1, 0, 4, 1},
		{"no memory", GV_ROLE_BULK, false, 1, 0, 0, 1},
		{"a session", GV_ROLE_SESSION, false, 1, 0, 0, 1},
		{"no truth", GV_ROLE_BULK, true, 2, 0, 0, 1},
		{"asked twice", GV_ROLE_BULK, true, 1, 2, 0, 1},
		{"asked minus once", GV_ROLE_BULK, true, 1, -1, 0, 1},
		{"not shared", GV_ROLE_BULK, true, 0, 0, 0, 1}
	};
	size_t		i;

	CHECK(load_all(loader, &key, index) == 0, "load");
	for (i = 0; i < sizeof(places) / sizeof(places[0]); i++)
	{
		int			fd = client_open(server, places[i].role);

		request.shared = places[i].shared;
		request.asked = places[i].asked;
		request.offset = places[i].offset;
		request.n = places[i].role == GV_ROLE_SESSION ? 1 : QUERIES;
		if (places[i].has_memory)
			CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0,
				  "memory");
		if (places[i].code == 0)
		{
			CHECK(ASK(fd, GV_MSG_SEARCH, request) == 0, "%s", places[i].what);
			CHECK(client_ping(fd) == 0, "goes on");
			close(fd);
			memset(memory.bytes, 0, MEMORY_BYTES);
		}
		else
			client_cut(fd, ASK(fd, GV_MSG_SEARCH, request), places[i].what);
	}
	for (i = 0; i < MEMORY_BYTES && memory.bytes[i] == 0; i++)
		;
	CHECK(i == MEMORY_BYTES, "byte %zu was written", i);
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* A client with memory that does not read long answers, which are not there. */
static void
test_unread(const TestIndex *index)
{
	TestServer	server = server_start("--message", "1", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		bulk = client_open(&server, GV_ROLE_BULK);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	GvMirrorKey key = test_key(11);
	GvSearchRequest request = {.key = key, .dims = 4, .probes = 5, .compare = 5,
	.capacity = 9};
	FREED void *queries = calloc(1, GV_MAX_MESSAGE);
	struct pollfd end = {.fd = bulk,.events = POLLRDHUP};

	OK(load_all(loader, &key, index));
	OK(memory_pass(bulk, MEMORY_BYTES, &memory.fd, 1));
	request.n = gv_queries_most(&request, false);
	CHECK(client_message(bulk, GV_MSG_SEARCH, &request, sizeof(request),
						 queries, gv_queries_bytes(&request)), "send");
	CHECK(poll(&end, 1, 20000) == 1, "it does not read, and is still there");
	server_end(&server);
}

void
test_shared(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, 4, 2, 5, 3, 3, false);
	OwnIndex	keyed = make_index(GV_L2, 4, 2, 5, 3, 40, false);

	give_keys(&keyed, 3);
	test_shared_searches(&server, &keyed);
	test_wrong_searches(&server, &index);
	test_whole(&server, &index);
	test_no_memory(&server);
	test_wrong_places(&server, &index);
	server_end(&server);
	test_unread(&index);
}
