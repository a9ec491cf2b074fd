/*
 * check_shared.c
 *		Messages in memory that a loader shares with gpuvecd, and memory that
 *		is none.
 */
#include <fcntl.h>
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
	fd = client_open(server, GV_ROLE_SESSION);
	client_cut(fd, memory_pass(fd, MEMORY_BYTES, &memory.fd, 1),
			   "a session's memory");
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

void
test_shared(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, 4, 2, 5, 3, 3, false);

	test_whole(&server, &index);
	test_no_memory(&server);
	test_wrong_places(&server, &index);
	server_end(&server);
}
