/*
 * check_shared.c
 *		Messages in memory that a loader shares with gpuvecd, and memory that
 *		is none.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client.h"

#define BYTES		((size_t) 1 << 20)

/* A loader's memory. */
typedef struct Memory
{
	int			fd;
	char	   *bytes;			/* [BYTES] */
} Memory;

static Memory
make_memory(int seals)
{
	Memory		memory = {memfd_create("check", MFD_CLOEXEC |
									   MFD_ALLOW_SEALING), NULL};

	CHECK(memory.fd >= 0 && ftruncate(memory.fd, BYTES) == 0 &&
		  fcntl(memory.fd, F_ADD_SEALS, seals) == 0, "memory");
	memory.bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
						memory.fd, 0);
	CHECK(memory.bytes != MAP_FAILED, "map");
	return memory;
}

static void
free_memory(Memory *memory)
{
	munmap(memory->bytes, BYTES);
	close(memory->fd);
}

/* Send MEMORY with n descriptors; what comes back. */
static int
pass(int fd, uint64_t bytes, const int *fds, int n)
{
	GvMessage	header = {sizeof(GvMemoryRequest), GV_MSG_MEMORY, 0};
	GvMemoryRequest request = {bytes};
	struct iovec parts[2] = {
		{&header, sizeof(header)}, {&request, sizeof(request)}
	};
	union
	{
		struct cmsghdr head;
		char		bytes[CMSG_SPACE(4 * sizeof(int))];
	}			control;
	struct msghdr message = {.msg_iov = parts,.msg_iovlen = 2};
	GvMessage	answer;
	void	   *payload;
	int			refusal = 0;

	memset(&control, 0, sizeof(control));
	if (n > 0)
	{
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
	}
	CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) ==
		  sizeof(header) + sizeof(request), "pass");
	payload = client_answer(fd, &answer);
	if (payload == NULL)
		return -1;
	if (answer.type == GV_MSG_REFUSED)
		refusal = (int) ((GvRefusal *) payload)->code;
	free(payload);
	return refusal;
}

/* Ask by a message in memory. */
static int
ask_here(int fd, const Memory *memory, uint64_t offset, GvMessage header,
		 const void *head, size_t head_bytes, const void *tail,
		 size_t tail_bytes)
{
	GvHereRequest request = {offset};
	char	   *place = memory->bytes + offset;

	memcpy(place, &header, sizeof(header));
	memcpy(place + sizeof(header), head, head_bytes);
	memcpy(place + sizeof(header) + head_bytes, tail, tail_bytes);
	return client_ask(fd, GV_MSG_HERE, &request, sizeof(request), NULL, 0,
					  NULL, NULL);
}

static int
bring_array(int fd, const Memory *memory, const GvMirrorKey *key,
			const TestIndex *index, GvArray array)
{
	int64_t		n;
	const void *values = index_array(index, array, &n);
	GvArrayRequest request = {*key, array, 0, 0, n};
	GvMessage	header = {sizeof(request) + 4 * n, GV_MSG_ARRAY, 0};

	return ask_here(fd, memory, 4096 * (array % 2), header, &request,
					sizeof(request), values, 4 * n);
}

static int
bring_list(int fd, const Memory *memory, const GvMirrorKey *key,
		   const TestIndex *index, int32_t list)
{
	GvListsRequest request = {*key, 1, 0};
	size_t		bytes;
	char	   *piece = piece_bytes(index, list, 0,
									index->lists[list].nblocks, 0, &bytes);
	GvMessage	header = {sizeof(request) + bytes, GV_MSG_LISTS, 0};
	int			got = ask_here(fd, memory, 8 * (1 + list), header, &request,
							   sizeof(request), piece, bytes);

	free(piece);
	return got;
}

/* A mirror through memory alone, twice through other memory. */
static void
test_whole(const TestServer *server, const TestIndex *index)
{
	int			fd = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(7);
	int			i;

	for (i = 0; i < 2; i++)
	{
		Memory		memory = make_memory(F_SEAL_SHRINK);
		int32_t		list;
		int			array;

		CHECK(pass(fd, BYTES, &memory.fd, 1) == 0, "memory %d", i);
		CHECK(load_begin(fd, &key, index) == 0, "begin");
		for (array = 0; array < GV_NARRAYS; array++)
			CHECK(bring_array(fd, &memory, &key, index, array) == 0, "array");
		for (list = 0; list < index->spec.nlists; list++)
			CHECK(bring_list(fd, &memory, &key, index, list) == 0, "list");
		CHECK(load_ready(fd, &key) == 0, "ready");
		CHECK(search_check(fd, &key, index) == 0, "found");
		CHECK(load_drop(fd, &key) == 0, "drop");
		free_memory(&memory);
	}
	close(fd);
}

/* What is no memory to share. */
static void
test_no_memory(const TestServer *server)
{
	Memory		memory = make_memory(F_SEAL_SHRINK);
	Memory		unsealed = make_memory(0);
	int			null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int			two[2] = {memory.fd, unsealed.fd};
	const struct
	{
		const char *what;
		uint64_t	bytes;
		const int  *fds;
		int			n;
	}			wrongs[] = {
		{"no descriptor", BYTES, NULL, 0},
		{"unsealed", BYTES, &unsealed.fd, 1},
		{"no file", BYTES, &null, 1},
		{"too short", BYTES + 1, &memory.fd, 1},
		{"nothing", 0, &memory.fd, 1},
		{"too much", GV_MAX_SHARED + 1, &memory.fd, 1}
	};
	size_t		i;
	int			fd;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		fd = client_open(server, GV_ROLE_LOADER);
		client_cut(fd, pass(fd, wrongs[i].bytes, wrongs[i].fds, wrongs[i].n),
				   wrongs[i].what);
	}
	fd = client_open(server, GV_ROLE_SESSION);
	client_cut(fd, pass(fd, BYTES, &memory.fd, 1), "a session's memory");
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(pass(fd, BYTES, two, 2) == 0, "the first of two");
	CHECK(client_ping(fd) == 0, "goes on");
	close(fd);
	close(null);
	free_memory(&unsealed);
	free_memory(&memory);
}

/* Messages in memory that are none. */
static void
test_wrong_places(const TestServer *server, const TestIndex *index)
{
	Memory		memory = make_memory(F_SEAL_SHRINK);
	GvMirrorKey key = test_key(8);
	GvListsRequest lists = {key, 0, 0};
	const struct
	{
		const char *what;
		uint64_t	offset;
		GvMessage	header;
	}			wrongs[] = {
		{"behind the end", BYTES, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"far behind", UINT64_MAX - 7, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"header alone", BYTES - 8, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"odd", 4, {sizeof(lists), GV_MSG_LISTS, 0}},
		{"too long", 0, {BYTES - 7, GV_MSG_LISTS, 0}},
		{"too short", 0, {sizeof(lists) - 1, GV_MSG_LISTS, 0}},
		{"an answer", 0, {sizeof(lists), GV_MSG_LISTS, GV_MSG_LISTS}},
		{"a ping", 0, {0, GV_MSG_PING, 0}},
		{"itself", 0, {sizeof(GvHereRequest), GV_MSG_HERE, 0}}
	};
	size_t		i;
	int			fd;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		bool		inside = wrongs[i].offset < BYTES / 2;
		GvHereRequest request = {wrongs[i].offset};

		fd = client_open(server, GV_ROLE_LOADER);
		CHECK(pass(fd, BYTES, &memory.fd, 1) == 0, "memory");
		if (inside)
		{
			memcpy(memory.bytes + wrongs[i].offset, &wrongs[i].header,
				   sizeof(GvMessage));
			memcpy(memory.bytes + wrongs[i].offset + sizeof(GvMessage),
				   &lists, sizeof(lists));
		}
		else if (wrongs[i].offset == BYTES - 8)
			memcpy(memory.bytes + BYTES - 8, &wrongs[i].header,
				   sizeof(GvMessage));
		client_cut(fd, client_ask(fd, GV_MSG_HERE, &request, sizeof(request),
								  NULL, 0, NULL, NULL), wrongs[i].what);
	}
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(bring_list(fd, &memory, &key, index, 0) == GV_REFUSED_NO_MIRROR,
		  "not shared, or with another connection");
	CHECK(pass(fd, BYTES, &memory.fd, 1) == 0, "memory");
	CHECK(bring_list(fd, &memory, &key, index, 0) == GV_REFUSED_NO_MIRROR,
		  "no mirror");
	CHECK(client_ping(fd) == 0, "goes on");
	close(fd);
	free_memory(&memory);
}

void
test_shared(void)
{
	TestServer	server = server_start(NULL, NULL);
	TestIndex	index = make_index(GV_L2, 4, 2, 5, 3, 3, false);

	test_whole(&server, &index);
	test_no_memory(&server);
	test_wrong_places(&server, &index);
	free_index(&index);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}
