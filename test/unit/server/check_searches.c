/*
 * check_searches.c
 *		Answers equal the engine's own; many clients make batches; one that
 *		does not read, or not write to the end, stops nobody.
 */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scripts.h"

#define NCLIENTS	100

static void
test_shapes(const TestServer *server)
{
	static const int32_t shapes[][6] = {
		/* dims, m, nlists, nparents, mean, ties */
		{1, 1, 1, 1, 40, 0}, {3, 2, 5, 2, 10, 1}, {17, 17, 300, 17, 40, 0},
		{50, 13, 64, 8, -3000, 0}, {8, 4, 40, 40, 0, 1},
		{384, 96, 100, 10, 50, 0}, {16000, 7, 2, 1, 20, 0}
	};
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			i;
	int			n;

	for (i = 0; i < 7; i++)
	{
		const int32_t *s = shapes[i];
		OwnIndex	index = make_index(GV_L2 + i % 3, s[0], s[1], s[2], s[3],
									   s[4], s[5] != 0);
		GvMirrorKey key = test_key(100 + i);
		int			result;

		if (i % 2 == 0)
			give_keys(&index, 1 + i);
		result = load_all(loader, &key, &index);
		CHECK(result == 0, "shape %d: %d", i, result);
		for (n = 0; n < 20; n++)
		{
			/* a thread's own search, of one that is not closed as idle */
			int			bulk = n % 5 == 0 ? client_open(server, GV_ROLE_BULK) :
			-1;

			result = search_check(bulk >= 0 ? bulk : session, &key, &index);
			CHECK(result == 0, "shape %d: %d", i, result);
			if (bulk >= 0)
				close(bulk);
		}
		CHECK(load_drop(loader, &key) == 0, "shape %d", i);
		result = search_check(session, &key, &index);
		CHECK(result == GV_REFUSED_NO_MIRROR, "shape %d: %d", i, result);
	}
}

/* Is it soon all that it was, since no such client is left? */
static void
check_all_memory(int loader, int64_t all)
{
	int			i;

	for (i = 0; i < 1000 && load_totals(loader).memory != all; i++)
		usleep(10000);
	CHECK(load_totals(loader).memory == all, "a searcher stays for nobody");
}

/* The bytes that searchers for n such clients at once take of `all`. */
static int64_t
searchers_memory(const TestServer *server, int loader, int64_t all, int n,
				 const GvSearchRequest *request, const float *queries)
{
	int64_t		taken;
	int			bulk[8];
	int			i;

	check_all_memory(loader, all);
	for (i = 0; i < n; i++)
	{
		bulk[i] = client_open(server, GV_ROLE_BULK);
		CHECK(client_message(bulk[i], GV_MSG_SEARCH, request,
							 sizeof(*request), queries,
							 4 * (size_t) request->n *
							 (size_t) request->dims), "many %d", i);
	}
	for (i = 0; i < n; i++)
		OK(client_receive(bulk[i], GV_MSG_SEARCH, NULL, NULL));
	taken = all - load_totals(loader).memory;
	for (i = 0; i < n; i++)
		close(bulk[i]);
	check_all_memory(loader, all);
	return taken;
}

/*
 * A device has few searchers for them, in its budget, however many they are.
 * The processor's take nothing, a large GPU's what is kept for searches.
 */
static void
check_searchers(const TestServer *server, int loader, int64_t all,
				const GvSearchRequest *request, const float *queries)
{
	int64_t		one = searchers_memory(server, loader, all, 1, request,
									   queries);
	int64_t		eight = searchers_memory(server, loader, all, 8, request,
										 queries);

	CHECK(server_is_emulated() ?
		  one > 0 && eight >= one && eight - one < one + 1024 : eight >= one,
		  "%lld bytes, of 8 clients %lld", (long long) one,
		  (long long) eight);
}

/* One that is idle is closed, but not in the midst of a message. */
static void
check_idle(const TestServer *server, GvSearchRequest *request,
		   const float *queries)
{
	size_t		bytes = 4 * (size_t) request->n * (size_t) request->dims;
	GvMessage	header = {sizeof(*request) + (uint32_t) bytes, GV_MSG_SEARCH,
	0};
	OwnFd		idle = client_open(server, GV_ROLE_BULK);
	OwnFd		slow = client_open(server, GV_ROLE_BULK);

	CHECK(client_ping(idle) == 0, "ping");
	CHECK(client_send(slow, &header, sizeof(header)) &&
		  client_send(slow, request, sizeof(*request)), "half a message");
	CHECK(client_ended(idle), "an idle client has its searcher for ever");
	/* it was there before */
	usleep(200000);
	CHECK(client_send(slow, queries, bytes), "the rest");
	CHECK(client_receive(slow, GV_MSG_SEARCH, NULL, NULL) == 0,
		  "half a message is cut");
}

static void
test_bulk(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	OwnIndex	index = make_index(GV_L2, 12, 6, 70, 8, 40, true);
	GvMirrorKey key = test_key(300);
	GvSearchRequest request = {.key = key, .dims = 12, .probes = 9,
	.compare = 40, .capacity = 30};
	TestSearch	search;
	int			bulk;
	int64_t		nsearches;
	int64_t		all;
	/* thousands take a sanitized device's emulated threads a minute */
	int			most = unit_small && test_device ? 400 : 5000;
	OWN float  *queries = unit_alloc((size_t) most * 12 * sizeof(float));
	int			i;

	give_keys(&index, 3);
	for (i = 0; i < most * 12; i++)
		queries[i] = index.centroids[unit_random() % (70 * 12)];
	CHECK(load_all(loader, &key, &index) == 0, "load");
	all = load_totals(loader).memory;
	for (i = 1; i <= most; i = 3 * i + 1)
	{
		search = make_search(&key, &index);
		/* with a condition, and without */
		if (i % 2 == 0)
			search.request.ntests = search.request.nvalues =
				search.request.rank = 0;
		search.request.n = i;
		search.request.probes = 1 + i % 80;
		search.request.compare = 40;
		search.request.capacity = 1 << i % 9;
		if (search.request.rank > search.request.capacity)
			search.request.rank = search.request.capacity;
		bulk = client_open(server, GV_ROLE_BULK);
		search_many(bulk, session, &search, queries);
		close(bulk);
		free_search(&search);
	}

	request.n = 2;
	check_idle(server, &request, queries);
	check_searchers(server, loader, all, &request, queries);
	nsearches = load_told(loader, &key).searches;
	request.dims = 24;
	bulk = client_open(server, GV_ROLE_BULK);
	client_cut(bulk, ASK_MORE(bulk, GV_MSG_SEARCH, request, queries, 4 * 48),
			   "other dimensions");
	CHECK(load_told(loader, &key).searches == nsearches,
		  "refused searches count");

	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* One client of each mirror asks for other dims than it has. */
static bool
is_mismatched(int i)
{
	return i == 20 || i == 41;
}

/*
 * Two mirrors, and clients who all have asked before the server looks: it must
 * answer in two batches, and refuse only the client whose search is malformed.
 */
static void
test_batches(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	TestIndex	index[2];
	GvMirrorKey key[2];
	OwnCrowd	crowd = crowd_open(server, GV_ROLE_SESSION, NCLIENTS);
	GvStatusReply before;
	GvStatusReply after;
	int			result;
	int			i;

	for (i = 0; i < 2; i++)
	{
		index[i] = make_index(GV_L2, 8 + i, 4, 50, 5, 40, i == 0);
		if (i == 0)
			give_keys(&index[i], 3);	/* each asks another condition */
		key[i] = test_key(200 + i);
		CHECK(load_all(loader, &key[i], &index[i]) == 0, "load");
	}
	before = load_totals(loader);
	server_freeze(server);
	for (i = 0; i < NCLIENTS; i++)
		if (is_mismatched(i))
		{
			crowd.searches[i] = make_search(&key[i % 2], &index[i % 2]);
			crowd.searches[i].request.dims--;
			CHECK(search_send(crowd.fds[i], &crowd.searches[i]), "send");
		}
		else
			crowd_ask(&crowd, i, &key[i % 2], &index[i % 2], NULL);
	server_thaw(server);
	for (i = 0; i < NCLIENTS; i++)
	{
		result = crowd_answer(&crowd, i, &index[i % 2]);
		CHECK(result == (is_mismatched(i) ? GV_REFUSED_PROTOCOL : 0),
			  "client %d: %d", i, result);
	}
	after = load_totals(loader);
	CHECK(after.searches == before.searches + NCLIENTS - 2, "%lld",
		  (long long) (after.searches - before.searches));
	CHECK(after.batches == before.batches + 2, "%lld batches",
		  (long long) (after.batches - before.batches));
	CHECK(after.largest_batch == NCLIENTS / 2 - 1, "%lld",
		  (long long) after.largest_batch);
	CHECK(after.nmirrors == 2 && after.used > 0 &&
		  after.received > before.received && after.sent > before.sent,
		  "status");
	for (i = 0; i < 2; i++)
	{
		CHECK(load_drop(loader, &key[i]) == 0, "drop");
		free_index(&index[i]);
	}
}

/* A search of all there is, whose answer is larger than sockets' buffers. */
static TestSearch
make_large(const GvMirrorKey *key, const TestIndex *index)
{
	TestSearch	search = make_search(key, index);

	search.request.probes = 10;
	search.request.compare = 10;
	search.request.capacity = GV_MAX_HITS;
	return search;
}

/*
 * A batch whose answers another thread sends: one is large and not read until
 * its client has asked for the next, another client has gone at once; the
 * others ask again.
 */
static void
test_large_batch(const TestServer *server)
{
	enum
	{
		SLOW = 2, GONE = 5, N = 8
	};
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnIndex	index = make_index(GV_IP, 2, 2, 10, 1, -60000, false);
	GvMirrorKey key = test_key(302);
	OwnCrowd	crowd = crowd_open(server, GV_ROLE_SESSION, N);
	OwnSearch	large = make_large(&key, &index);
	struct pollfd in = {.fd = crowd.fds[SLOW],.events = POLLIN};
	int			result;
	int			i;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	server_freeze(server);
	for (i = 0; i < N; i++)
		if (i == SLOW)
			CHECK(search_send(crowd.fds[SLOW], &large), "slow");
		else
			crowd_ask(&crowd, i, &key, &index, NULL);
	server_thaw(server);
	close(crowd.fds[GONE]);
	crowd.fds[GONE] = -1;
	free_search(&crowd.searches[GONE]);
	CHECK(poll(&in, 1, 60000) == 1, "slow");
	/* the next one before the answer was read: nobody looks at it yet */
	CHECK(search_send(crowd.fds[SLOW], &large), "slow");
	for (i = 0; i < 3 * N; i++)
	{
		int			n = i % N;

		if (n == SLOW || n == GONE)
			continue;
		result = crowd_answer(&crowd, n, &index);
		CHECK(result == 0, "client %d: %d", n, result);
		if (i < 2 * N)
			crowd_ask(&crowd, n, &key, &index, NULL);
	}
	for (i = 0; i < 2; i++)
	{
		result = search_receive(crowd.fds[SLOW], &index, &large);
		CHECK(result == 0, "slow: %d", result);
	}
	/* and one that goes away without having read */
	CHECK(search_send(crowd.fds[SLOW], &large), "slow");
	close(crowd.fds[SLOW]);
	crowd.fds[SLOW] = -1;
	OK(search_check(crowd.fds[0], &key, &index));
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* A request that comes byte by byte, while others ask. */
static void
test_slow_writer(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	int			slow = client_open(server, GV_ROLE_SESSION);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	OwnIndex	index = make_index(GV_COSINE, 60, 9, 10, 2, 30, false);
	GvMirrorKey key = test_key(301);
	OwnSearch	search = make_search(&key, &index);
	Script		script = {0};
	size_t		i;
	int			result;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	SAY_MORE(&script, SEARCH, search.request, search.query, 4 * 60);
	for (i = 0; i < script.bytes[0]; i++)
	{
		CHECK(client_send(slow, script.messages[0] + i, 1), "byte %zu", i);
		if (i % 20 == 0)
		{
			result = search_check(session, &key, &index);
			CHECK(result == 0, "beside a slow writer: %d", result);
		}
	}
	result = search_receive(slow, &index, &search);
	CHECK(result == 0, "slow: %d", result);
	CHECK(client_send(slow, script.messages[0], script.bytes[0] / 2), "half");
	close(slow);
	result = search_check(session, &key, &index);
	CHECK(result == 0, "after half a message: %d", result);
	free_script(&script);
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Has the server closed it?  Of what it sent before something may be left. */
static bool
is_closed(int fd)
{
	struct pollfd in = {.fd = fd,.events = POLLRDHUP};

	return poll(&in, 1, 20000) == 1;
}

/* A client that stops within a message, or within an answer, is closed. */
static void
test_stuck(void)
{
	static const GvRole roles[] = {GV_ROLE_SESSION, GV_ROLE_LOADER,
	GV_ROLE_BULK, GV_ROLE_BUILDER, GV_ROLE_SET};
	TestServer	server = server_start("--message", "1", NULL);
	TestIndex	index = make_index(GV_IP, 2, 2, 10, 1, -60000, false);
	GvMirrorKey key = test_key(303);
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	int			bulk = client_open(&server, GV_ROLE_BULK);
	GvSearchRequest request = {.key = key, .n = 2, .dims = 2, .probes = 10,
	.compare = 10, .capacity = GV_MAX_HITS};
	GvMessage	header = {0, GV_MSG_PING, 0};
	TestSearch	search;
	int			stuck[5];
	int			i;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	search = make_large(&key, &index);
	CHECK(search_send(session, &search), "session");
	CHECK(client_message(bulk, GV_MSG_SEARCH, &request, sizeof(request),
						 index.centroids, 16), "many");
	for (i = 0; i < 5; i++)
	{
		stuck[i] = client_open(&server, roles[i]);
		CHECK(client_send(stuck[i], &header, sizeof(header) / 2), "part");
	}
	for (i = 0; i < 5; i++)
	{
		CHECK(client_ended(stuck[i]), "role %d is within a message for ever",
			  roles[i]);
		close(stuck[i]);
	}
	CHECK(is_closed(session), "a session does not read for ever");
	CHECK(is_closed(bulk), "a client does not read for ever");
	/* between messages there is time */
	CHECK(client_ping(loader) == 0, "an idle client is closed");
	close(session);
	close(bulk);
	close(loader);
	free_search(&search);
	free_index(&index);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "closed a connection because its client had not "
					 "completed a message in 1 s");
	server_remove(&server);
}

void
test_searches(void)
{
	TestServer	server = server_start(NULL);

	test_shapes(&server);
	test_bulk(&server);
	test_batches(&server);
	test_large_batch(&server);
	test_slow_writer(&server);
	test_stuck();
	server_end(&server);
}
