/*
 * check_slots.c
 *		Batches that take a slot on each device of a replica: mirrors of shards
 *		whose devices overlap all make progress, the oldest search cannot be
 *		starved, and searchers of shards take no memory of mirrors.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	6			/* of each mirror */

static TestServer
start(const char *devices, const char *replicas, const char *fault)
{
	return server_start("--devices", devices, "--memory", "4", "--keep",
						"1000", "--patience", "1000", "--replicas", replicas,
						fault != NULL ? "--fault" : NULL, fault, NULL);
}

/* An index of so many lists, 2 kB each. */
static TestIndex
make_sized(int32_t nlists)
{
	return make_index(GV_L2 + unit_random() % 3, 32, 32, nlists, 7, 47,
					  false);
}

/*
 * Clients of n mirrors search at once, again and again: a few first, so that
 * batches of the others begin while theirs are under way.  What is answered
 * first is not prescribed, but everything is.
 */
static void
search_together(const TestServer *server, const GvMirrorKey *keys,
				const TestIndex *indexes, int n, GvRole role, int rounds)
{
	OwnCrowd	crowd = crowd_open(server, role, n * NCLIENTS);
	int			round;
	int			i;

	for (round = 0; round < rounds; round++)
	{
		for (i = 0; i < n * NCLIENTS; i++)
		{
			crowd_ask(&crowd, i, &keys[i % n], &indexes[i % n], NULL);
			if (i == 2 * n - 1)
				usleep((useconds_t) (unit_random() % 2000));
		}
		for (i = 0; i < n * NCLIENTS; i++)
		{
			int			got = crowd_answer(&crowd, i, &indexes[i % n]);

			CHECK(got == 0, "round %d, mirror %d: %d", round, i % n, got);
		}
	}
}

/* So do sessions, and then bulk clients, which share searchers. */
static void
search_all(const TestServer *server, const GvMirrorKey *keys,
		   const TestIndex *indexes, int n)
{
	search_together(server, keys, indexes, n, GV_ROLE_SESSION,
					unit_small ? 5 : 50);
	search_together(server, keys, indexes, n, GV_ROLE_BULK, 1);
}

/*
 * A mirror on one of three devices, one in shards on the other two, and one
 * in shards on a device of each.
 */
static void
test_overlapping(void)
{
	static const int32_t lists[] = {1100, 2700, 1450};
	TestServer	server = start("0,1,2", "1", NULL);
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int64_t		memory = load_totals(loader).memory;
	GvMirrorKey keys[3];
	TestIndex	indexes[3];
	int			m;

	for (m = 0; m < 3; m++)
	{
		GvMirrorStatus told;

		keys[m] = test_key((uint32_t) m + 1);
		indexes[m] = make_sized(lists[m]);
		CHECK(load_all(loader, &keys[m], &indexes[m]) == 0, "load");
		told = load_told(loader, &keys[m]);
		CHECK(told.shards == (m == 0 ? 1 : 2) && told.replicas == 1,
			  "mirror %d: %d shards, %lld bytes", m, told.shards,
			  (long long) told.bytes);
	}
	CHECK(load_totals(loader).memory == memory,
		  "shards take memory of mirrors");
	search_all(&server, keys, indexes, 3);
	close(loader);
	server_end(&server);
	for (m = 0; m < 3; m++)
		free_index(&indexes[m]);
}

/*
 * Two replicas of two shards, then one, because another mirror needs the
 * memory of one shard of the other.
 */
static void
test_replicas_of_shards(void)
{
	TestServer	server = start("0,1,2,3", "2", NULL);
	int			loader = client_open(&server, GV_ROLE_LOADER);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	TestIndex	indexes[2] = {make_sized(2700), make_sized(1300)};
	GvMirrorStatus told;

	CHECK(load_all(loader, &keys[0], &indexes[0]) == 0, "load");
	told = load_told(loader, &keys[0]);
	CHECK(told.shards == 2 && told.replicas == 2, "%d shards, %d replicas",
		  told.shards, told.replicas);
	search_all(&server, keys, indexes, 1);
	CHECK(load_lists(loader, &keys[0], &indexes[0]) == 0, "all lists again");
	search_all(&server, keys, indexes, 1);
	CHECK(load_all(loader, &keys[1], &indexes[1]) == 0, "another");
	told = load_told(loader, &keys[0]);
	CHECK(told.shards == 2 && told.replicas == 1, "%d shards, %d replicas",
		  told.shards, told.replicas);
	search_all(&server, keys, indexes, 2);
	close(loader);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server,
					 "LOG: loaded index 2 in replicas of shards on devices 0, ");
	server_remove(&server);
	free_index(&indexes[0]);
	free_index(&indexes[1]);
}

/* Where one device is left, there is no second replica of two shards. */
static void
test_half_a_replica(void)
{
	TestServer	server = start("0,1,2", "2", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(1);
	OwnIndex	index = make_sized(2700);
	GvMirrorStatus told;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	told = load_told(loader, &key);
	CHECK(told.shards == 2 && told.replicas == 1, "%d shards, %d replicas",
		  told.shards, told.replicas);
	search_all(&server, &key, &index, 1);
	server_end(&server);
}

static bool
is_answered(int fd, int ms)
{
	struct pollfd in = {.fd = fd,.events = POLLIN};

	return poll(&in, 1, ms) > 0;
}

/* n clients send a search each, which the server finds all at once. */
static void
send_batch(const TestServer *server, const int *fds, int n,
		   const TestSearch *search)
{
	int			i;

	server_freeze(server);
	for (i = 0; i < n; i++)
		CHECK(search_send(fds[i], search), "send");
	server_thaw(server);
}

/*
 * A batch of a device hangs.  That many wait for the other device is no reason
 * to begin a smaller batch on the first one.
 */
static void
check_second_slot(const TestServer *server, const int *fds,
				  const TestSearch *small, const TestSearch *other,
				  const TestIndex *index)
{
	OwnFd		late = client_open(server, GV_ROLE_SESSION);
	int			i;

	server_freeze(server);
	CHECK(search_send(late, small), "send");
	for (i = 0; i < NCLIENTS; i++)
		CHECK(search_send(fds[i], other), "send");
	server_thaw(server);
	for (i = 0; i < NCLIENTS; i++)
		CHECK(search_receive(fds[i], index, other) == 0, "the other device");
	CHECK(!is_answered(late, 300), "a smaller batch than what hangs");
}

/*
 * A batch of a mirror on one device hangs.  A search of shards, which is
 * smaller, waits, and is not overtaken by one on the other device, until as
 * many wait as the batch has.  The engine's n-th call hangs.  False: that was
 * no call that begins a batch.
 */
static bool
try_oldest(int n)
{
	TestIndex	indexes[3] = {make_sized(100), make_sized(100),
	make_sized(2300)};
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	char		fault[16];
	TestServer	server;
	TestSearch	searches[3];
	TestCrowd	victims;
	TestCrowd	others;
	int			loader;
	int			beside;
	int			i;

	snprintf(fault, sizeof(fault), "%d:6", n);
	server = start("0,1", "1", fault);
	loader = client_open(&server, GV_ROLE_LOADER);
	for (i = 0; i < 3; i++)
	{
		CHECK(load_all(loader, &keys[i], &indexes[i]) == 0, "load");
		searches[i] = make_search(&keys[i], &indexes[i]);
	}
	CHECK(load_told(loader, &keys[0]).device == 0 &&
		  load_told(loader, &keys[1]).device == 1 &&
		  load_told(loader, &keys[2]).shards == 2, "places");
	beside = client_open(&server, GV_ROLE_SESSION);
	victims = crowd_open(&server, GV_ROLE_SESSION, NCLIENTS);
	others = crowd_open(&server, GV_ROLE_SESSION, NCLIENTS);
	for (;;)
	{
		send_batch(&server, victims.fds, NCLIENTS, &searches[0]);
		if (!is_answered(victims.fds[0], 3000))
			break;
		for (i = 0; i < NCLIENTS; i++)
			OK(search_receive(victims.fds[i], &indexes[0], &searches[0]));
	}
	CHECK(search_send(beside, &searches[1]), "send");
	if (is_answered(beside, 3000))
	{
		OK(search_receive(beside, &indexes[1], &searches[1]));
		CHECK(search_send(others.fds[0], &searches[2]), "send");
		CHECK(!is_answered(others.fds[0], 300), "smaller than what hangs");
		CHECK(search_send(beside, &searches[1]), "send");
		CHECK(!is_answered(beside, 300), "the oldest search is overtaken");
		send_batch(&server, others.fds + 1, NCLIENTS - 1, &searches[2]);
		for (i = 0; i < NCLIENTS; i++)
			OK(search_receive(others.fds[i], &indexes[2], &searches[2]));
		OK(search_receive(beside, &indexes[1], &searches[1]));
		check_second_slot(&server, others.fds, &searches[0], &searches[1],
						  &indexes[1]);
		n = 0;
	}
	server_end(&server);
	crowd_close(&victims);
	crowd_close(&others);
	close(beside);
	close(loader);
	for (i = 0; i < 3; i++)
	{
		free_search(&searches[i]);
		free_index(&indexes[i]);
	}
	return n == 0;
}

void
test_slots(void)
{
	/* long after loading, of two calls one begins a batch */
	int			n = 3000;

	test_overlapping();
	test_replicas_of_shards();
	test_half_a_replica();
	CHECK(try_oldest(n) || try_oldest(n + 1), "no batch hangs");
}
