/*
 * check_changes.c
 *		Mirrors that follow an index: lists change, are read back, and are
 *		searched meanwhile.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

/* All chunks of a range of lists as they should come back; the server's. */
static void
check_range(int fd, const GvMirrorKey *key, const TestIndex *index,
			int32_t first, int32_t count)
{
	GvRangeRequest request = {*key, first, count, 0, 0};
	void	   *payload = NULL;
	uint32_t	length = 0;
	size_t		used = 0;
	int32_t		i;

	CHECK(client_ask(fd, GV_MSG_LIST_STATES, &request, sizeof(request), NULL, 0,
					 &payload, &length) == 0 &&
		  length == count * sizeof(GvListState), "states");
	for (i = 0; payload != NULL && i < count; i++)
	{
		const TestList *list = &index->lists[first + i];
		GvListState state = {list->gen, list->nitems, list->del_seq};

		CHECK(memcmp((GvListState *) payload + i, &state,
					 sizeof(state)) == 0, "state of list %d", first + i);
	}
	free(payload);
	payload = NULL;
	CHECK(client_ask(fd, GV_MSG_READ_LISTS, &request, sizeof(request), NULL, 0,
					 &payload, &length) == 0, "blocks");
	for (i = 0; payload != NULL && i < count; i++)
	{
		size_t		bytes;
		FREED char *chunk = chunk_bytes(index, first + i, 0,
										index->lists[first + i].nblocks, 0,
										&bytes);

		CHECK(used + bytes <= length &&
			  memcmp((char *) payload + used, chunk, bytes) == 0,
			  "list %d", first + i);
		used += bytes;
	}
	CHECK(used == length, "%zu of %u", used, length);
	free(payload);
}

/* A change of an index, and of its mirror after it. */
static void
change(int fd, const GvMirrorKey *key, TestIndex *index)
{
	int32_t		number = (int32_t) (unit_random() % index->spec.nlists);
	TestList   *list = &index->lists[number];
	int32_t		first = 0;
	uint32_t	flags = 0;
	int32_t		i;
	int			got;

	switch (unit_random() % 3)
	{
		case 0:
			for (i = 0; i < list->nblocks; i++)
				list->live[i] &= (uint32_t) unit_random();
			list->del_seq++;
			flags = GV_CHUNK_LIVE;
			break;
		case 1:
			resize_list(index, list, (uint32_t) (unit_random() % 150), 0);
			list->gen++;
			break;
		default:
			first = (int32_t) (list->nitems / GV_BLOCK);
			resize_list(index, list,
						list->nitems + (uint32_t) (unit_random() % 150),
						first);
			break;
	}
	got = load_chunk(fd, key, index, number, first, list->nblocks - first,
					 flags);
	CHECK(got == 0, "list %d, first %d, flags %u: %d", number, first, flags,
		  got);
}

static void
test_changes(const TestServer *server)
{
	OwnIndex	index = make_index(GV_COSINE, 9, 5, 20, 4, 40, true);
	GvMirrorKey key = test_key(15);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorStatus told;
	int64_t		postings = 0;
	int			round;
	int			i;
	int			got;

	give_keys(&index, 3);
	CHECK(load_all(loader, &key, &index) == 0, "load");
	check_range(loader, &key, &index, 0, 20);
	for (round = 0; round < (unit_small ? 3 : 30); round++)
	{
		for (i = 0; i < 8; i++)
			change(loader, &key, &index);
		got = search_check(session, &key, &index);
		CHECK(got == 0, "changed: %d", got);
		check_range(loader, &key, &index, round % 20, 20 - round % 20);
	}
	told = load_told(session, &key);
	for (i = 0; i < index.spec.nlists; i++)
		postings += index.lists[i].nitems;
	CHECK(told.postings == postings && told.ready == 1 &&
		  told.searches == round, "status");
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Read a list in chunks; the server's. */
static void
check_chunks(int fd, const GvMirrorKey *key, const TestIndex *index,
			 int32_t list)
{
	const TestList *held = &index->lists[list];
	GvRangeRequest request = {*key, list, 1, 0, 0};
	int			nchunks = 0;
	GvChunk    *chunk;

	do
	{
		void	   *payload = NULL;
		uint32_t	length = 0;
		size_t		bytes;
		char	   *expected;

		CHECK(client_ask(fd, GV_MSG_READ_LISTS, &request, sizeof(request), NULL,
						 0, &payload, &length) == 0, "piece %d", nchunks);
		if (payload == NULL)
			return;
		chunk = payload;
		expected = chunk_bytes(index, list, request.block, chunk->nblocks, 0,
							   &bytes);
		CHECK(length <= GV_MAX_MESSAGE && length == bytes &&
			  memcmp(payload, expected, bytes) == 0,
			  "piece %d from block %d on", nchunks, request.block);
		CHECK(nchunks > 0 || length > GV_MAX_MESSAGE - 20000,
			  "the first piece is short: %u bytes", length);
		request.block += chunk->nblocks;
		nchunks += chunk->nblocks > 0;
		if (chunk->nblocks == 0)
			chunk = NULL;
		free(expected);
		free(payload);
	} while (chunk != NULL && nchunks < 10);
	CHECK(request.block == held->nblocks && nchunks == 2,
		  "%d blocks of %d in %d pieces", request.block, held->nblocks,
		  nchunks);
}

/* Lists of more than a message: as many come back as fit, or a part of one. */
static void
test_large(const TestServer *server)
{
	OwnIndex	index = make_index(GV_L2, 800, 800, 2, 1, 0, false);
	GvMirrorKey key = test_key(16);
	GvRangeRequest request = {key, 0, 2, 0, 0};
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	void	   *payload = NULL;
	uint32_t	length = 0;
	size_t		keys_bytes;
	int32_t		i;

	give_keys(&index, 1);
	keys_bytes = gv_keys_bytes(&index.spec.keys);
	for (i = 0; i < 2; i++)
		resize_list(&index, &index.lists[i], i == 0 ? 100 : 45000, 0);
	CHECK(load_begin(loader, &key, &index) == 0, "begin");
	OK(load_chunk(loader, &key, &index, 0, 0, index.lists[0].nblocks, 0));
	for (i = 0; i < index.lists[1].nblocks; i += 500)
	{
		int32_t		left = index.lists[1].nblocks - i;

		OK(load_chunk(loader, &key, &index, 1, i, left < 500 ? left : 500, 0));
	}
	CHECK(client_ask(loader, GV_MSG_READ_LISTS, &request, sizeof(request), NULL,
					 0, &payload, &length) == 0, "both");
	CHECK(payload != NULL && length == (uint32_t)
		  gv_chunk_bytes(payload, gv_code_bytes(800), keys_bytes), "the first only");
	free(payload);
	check_chunks(loader, &key, &index, 1);
}

/*
 * Searches while lists change back and forth between two versions: what an
 * answer says of its lists' states is what it searched.
 */
static bool
versions_are_right(int fd, const void *arg)
{
	const TestIndex *versions = arg;
	GvMirrorKey key = test_key(17);
	TestIndex	seen = versions[0];
	OwnSearch	search = make_search(&key, &versions[0]);
	FREED GvSearchReply *reply = NULL;
	uint32_t	length = 0;
	size_t		bytes = sizeof(TestList) * (size_t) seen.spec.nlists;
	bool		right = false;
	int32_t		i;

	seen.lists = malloc(bytes);
	memcpy(seen.lists, versions[0].lists, bytes);
	search.request.probes = seen.spec.nlists;
	if (search_send(fd, &search) &&
		client_receive(fd, GV_MSG_SEARCH, (void **) &reply, &length) == 0)
	{
		GvProbeReply *probed = (GvProbeReply *) (reply + 1);

		for (i = 0; i < reply->nprobed; i++)
			seen.lists[probed[i].list] =
				versions[probed[i].state.gen == 2].lists[probed[i].list];
		right = search_is_answered(&seen, &search, (char *) reply, length);
	}
	free(seen.lists);
	return right;
}

/*
 * How many of these clients, processes of ours, have ended: `ended` or one
 * more, which must have got right answers.  Asked by number, since servers are
 * processes of ours, too.
 */
static int
count_ended(const int *clients, int ended)
{
	int			status;

	if (waitpid(clients[ended], &status, WNOHANG) <= 0)
		return ended;
	CHECK(status == 0, "wrong answers: %d", status);
	return ended + 1;
}

static void
test_meanwhile(const TestServer *server)
{
	int			loader = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(17);
	TestIndex	versions[2];
	int			clients[3];
	int			ended = 0;
	int			rounds = unit_small ? 10 : 150;
	int			i;
	int			n;

	versions[0] = make_index(GV_L2, 6, 3, 10, 1, 60, false);
	versions[1] = versions[0];
	versions[1].lists = calloc(10, sizeof(TestList));
	for (i = 0; i < 10; i++)
	{
		versions[0].lists[i].gen = 1;
		versions[1].lists[i].gen = 2;
		resize_list(&versions[1], &versions[1].lists[i],
					(uint32_t) (unit_random() % 100), 0);
	}
	CHECK(load_all(loader, &key, &versions[0]) == 0, "load");
	for (i = 0; i < 3; i++)
		clients[i] = client_fork(server, i, rounds, versions_are_right,
								 versions);
	for (n = 0; ended < 3; n++)
	{
		ended = count_ended(clients, ended);
		if (load_chunk(loader, &key, &versions[n / 10 % 2 == 0], n % 10, 0,
					   versions[n / 10 % 2 == 0].lists[n % 10].nblocks,
					   0) != 0)
			CHECK(false, "change %d", n);
	}
	CHECK(load_drop(loader, &key) == 0, "drop");
	close(loader);
	for (i = 0; i < 10; i++)
		free_list(&versions[1].lists[i]);
	free(versions[1].lists);
	free_index(&versions[0]);
}

static bool
is_there_or_not(int session, const void *index)
{
	GvMirrorKey key = test_key(18);
	int			got = search_check(session, &key, index);

	return got == 0 || got == GV_REFUSED_NO_MIRROR ||
		got == GV_REFUSED_LOADING;
}

/*
 * Searches of a mirror that comes and goes: the answer is right, or there is
 * no mirror.
 */
static void
test_coming_and_going(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(18);
	OwnIndex	index = make_index(GV_L2, 6, 3, 10, 1, 60, false);
	int			clients[2];
	int			ended = 0;
	int			rounds = unit_small ? 20 : 300;
	int			i;

	for (i = 0; i < 2; i++)
		clients[i] = client_fork(server, i, rounds, is_there_or_not, &index);
	while (ended < 2)
	{
		ended = count_ended(clients, ended);
		if (load_all(loader, &key, &index) != 0 ||
			load_drop(loader, &key) != 0)
			CHECK(false, "load and drop");
	}
}

void
test_following(void)
{
	TestServer	server = server_start(NULL);

	test_changes(&server);
	test_large(&server);
	test_meanwhile(&server);
	test_coming_and_going(&server);
	server_end(&server);
}
