/*
 * check_parts.c
 *		Mirrors on several devices: shards of a mirror that no device has
 *		memory for, and replicas: where they go, what they are charged, who is
 *		evicted for them.  check_placements.c has what they answer.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	8
#define PAGES		200			/* of refine records */
#define SLOTS		9
#define LARGE		3000		/* lists, of 6 MB */
#define SMALL		1300
/* a busy machine looks at what is young, sanitized more slowly */
#ifdef __SANITIZE_ADDRESS__
#define KEEP_S		"12"
#define IDLE_US		12100000
#else
#define KEEP_S		"3"
#define IDLE_US		3100000
#endif
#define IDLE		300

/* So many devices of so many MB each; what is not used for KEEP_S may go. */
static TestServer
start_faulty(int ndevices, const char *megabytes, const char *replicas,
			 const char *fault)
{
	static const char *const lists[] = {NULL, "3", "3,5", "3,5,2", "3,5,2,7"};

	return server_start("--devices", lists[ndevices], "--memory", megabytes,
						"--keep", KEEP_S, "--replicas", replicas,
						fault != NULL ? "--fault" : NULL, fault, NULL);
}

static TestServer
start(int ndevices, const char *megabytes, const char *replicas)
{
	return start_faulty(ndevices, megabytes, replicas, NULL);
}

static int64_t
used_bytes(int fd)
{
	GvStatusReply totals = load_totals(fd);

	CHECK(totals.used >= 0 && totals.used <= totals.memory,
		  "%lld of %lld bytes", (long long) totals.used,
		  (long long) totals.memory);
	return totals.used;
}

/*
 * An index of so many lists with a key, 2 kB each, which go in one chunk: the
 * portable engine gives a list that grows more memory than it needs.  None is
 * empty, since nobody is evicted for such a list (evicted_for).
 */
static TestIndex
make_large(int32_t nlists)
{
	TestIndex	index = make_index(GV_L2 + unit_random() % 3, 32, 32, nlists, 7,
								   47, false);
	int32_t		i;

	for (i = 0; i < nlists; i++)
		if (index.lists[i].nitems == 0)
			resize_list(&index, &index.lists[i], 1, 0);
	give_form(&index, (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}});
	return index;
}

/* All clients search at once, again and again, while lists become others. */
static void
check_together(const TestServer *server, int loader, const GvMirrorKey *key,
			   TestIndex *index, const Records *records, int rounds)
{
	OwnCrowd	crowd = crowd_open(server, GV_ROLE_SESSION, NCLIENTS);
	int			round;
	int			i;

	for (round = 0; round < rounds; round++)
	{
		int32_t		list = (int32_t) (unit_random() %
										 (uint64_t) index->spec.nlists);
		int32_t		nblocks = index->lists[list].nblocks;

		for (i = 0; i < NCLIENTS; i++)
			crowd_ask(&crowd, i, key, index, records);
		/* meanwhile a list is replaced by what it is */
		OK(load_chunk(loader, key, index, list, 0, nblocks, 0));
		for (i = 0; i < NCLIENTS; i++)
		{
			int			got = crowd_answer(&crowd, i, index);

			CHECK(got == 0, "round %d, client %d: %d", round, i, got);
		}
		/* and another one becomes what it was not */
		list = (int32_t) (unit_random() %
										 (uint64_t) index->spec.nlists);
		nblocks = index->lists[list].nblocks / 2;
		resize_list(index, &index->lists[list], index->lists[list].nitems,
					nblocks);
		if (records != NULL)
			make_addresses(index, records);
		index->lists[list].gen++;
		CHECK(records != NULL ? load_lists(loader, key, index) == 0 :
			  load_chunk(loader, key, index, list, 0,
						 index->lists[list].nblocks, 0) == 0, "rewritten");
	}
}

/* Shards grow until a device is full, are evicted, and come again. */
static void
test_growth(void)
{
	TestServer	server = start(2, "4", "1");
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	TestIndex	index = make_large(LARGE);
	OwnIndex	small = make_large(SMALL);
	GvMirrorKey key = test_key(1);
	GvMirrorKey others[2] = {test_key(2), test_key(3)};
	int			got = 0;
	int			i;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	for (i = 0; got == 0 && i < 100; i++)
	{
		TestList	before = index.lists[i];
		TestList   *list = &index.lists[i];

		/* what is refused is not there */
		*list = (TestList) {.gen = before.gen + 1,.del_seq = before.del_seq};
		resize_list(&index, list, before.nitems + 2000, 0);
		got = load_chunk(loader, &key, &index, i, 0, list->nblocks, 0);
		if (got != 0)
		{
			free_list(list);
			*list = before;
		}
		else
			free_list(&before);
	}
	CHECK(got == GV_REFUSED_NO_MEMORY && i > 3, "after %d lists: %d", i, got);
	for (i = 0; i < 10; i++)
		CHECK(search_check(session, &key, &index) == 0, "search");
	CHECK(load_begin(loader, &others[0], &small) == GV_REFUSED_NO_MEMORY,
		  "while they are young");
	usleep(IDLE_US);
	CHECK(load_all(loader, &others[0], &small) == 0, "in their place");
	CHECK(load_told(loader, &key).ready == 0, "they are there");
	CHECK(load_all(loader, &others[1], &small) == 0, "on the other device");
	CHECK(load_told(loader, &others[0]).device !=
		  load_told(loader, &others[1]).device, "both on one device");
	CHECK(load_begin(loader, &key, &index) == GV_REFUSED_NO_MEMORY,
		  "shards beside young ones");
	usleep(IDLE_US);
	free_index(&index);
	index = make_large(LARGE);
	CHECK(load_all(loader, &key, &index) == 0, "again");
	CHECK(load_told(loader, &key).shards == 2 &&
		  load_told(loader, &others[0]).ready == 0 &&
		  load_told(loader, &others[1]).ready == 0, "in the place of both");
	CHECK(search_check(session, &key, &index) == 0, "search");
	server_end(&server);
	free_index(&index);
}

/*
 * A device has no memory for a list of shards, in the n-th call: of idle
 * mirrors on both devices that one goes which is there.  On which device?
 */
static int32_t
evicted_for(int n, TestIndex *index, TestIndex *small)
{
	char		fault[32];
	TestServer	server;
	GvMirrorKey key = test_key(1);
	GvMirrorKey others[2] = {test_key(2), test_key(3)};
	int32_t		devices[2];
	int32_t		gone = -1;
	int			loader;
	int			i;

	snprintf(fault, sizeof(fault), "%d:%d", n, GV_NO_MEMORY);
	server = start_faulty(2, "5", "1", fault);
	loader = client_open(&server, GV_ROLE_LOADER);
	for (i = 0; i < 2; i++)
	{
		CHECK(load_all(loader, &others[i], small) == 0, "idle");
		devices[i] = load_told(loader, &others[i]).device;
	}
	CHECK(devices[0] != devices[1], "both are on device %d", devices[0]);
	usleep(IDLE_US);
	CHECK(load_all(loader, &key, index) == 0, "load");
	CHECK(load_told(loader, &key).shards == 2, "shards");
	for (i = 0; i < 2; i++)
		if (!load_told(loader, &others[i]).ready)
		{
			CHECK(gone == -1, "call %d: both are gone", n);
			gone = devices[i];
		}
	CHECK(gone >= 0, "call %d: both are there", n);
	close(loader);
	server_end(&server);
	return gone;
}

/* Where a device lacks memory, nothing goes on others. */
static void
test_lack(void)
{
	OwnIndex	index = make_large(LARGE);
	OwnIndex	small = make_large(IDLE);
	int			n = 2 * IDLE + LARGE / 2;	/* in the midst of the lists */
	int32_t		first = evicted_for(n, &index, &small);

	CHECK(evicted_for(n + 1, &index, &small) != first,
		  "for the next list, too, on device %d", first);
}

/*
 * No replica has memory for a list, although the budgets have: others go for
 * one of the replicas only.
 */
static void
test_lack_of_replicas(void)
{
	char		fault[32];
	TestServer	server;
	OwnIndex	index = make_large(SMALL);
	OwnIndex	small = make_large(IDLE);
	GvMirrorKey key = test_key(1);
	GvMirrorKey others[2] = {test_key(2), test_key(3)};
	int			loader;
	int			i;

	/* in the midst of the lists */
	snprintf(fault, sizeof(fault), "%d:%d", 2 * IDLE + SMALL / 2,
			 GV_NO_MEMORY);
	server = start_faulty(2, "8", "2", fault);
	loader = client_open(&server, GV_ROLE_LOADER);
	for (i = 0; i < 2; i++)
	{
		CHECK(load_all(loader, &others[i], &small) == 0, "idle");
		CHECK(load_told(loader, &others[i]).replicas == 2, "idle replicas");
	}
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(load_told(loader, &key).replicas == 2, "replicas");
	CHECK(load_totals(loader).evictions == 1, "%lld evictions",
		  (long long) load_totals(loader).evictions);
	close(loader);
	server_end(&server);
}

/* Any index and any memory: all of it is there, or nothing. */
static void
test_any_budget(void)
{
	int			round;

	for (round = 0; round < (unit_small ? 2 : 25); round++)
	{
		int			ndevices = 1 + (int) (unit_random() % 4);
		char		megabytes[8];
		char		replicas[8];
		TestServer	server;
		OwnIndex	index = make_large(200 +
									   (int32_t) (unit_random() % 3300));
		OwnRecords	records = make_records(&index, PAGES, SLOTS);
		GvMirrorKey key = test_key(1);
		int			loader;
		int			got;

		snprintf(megabytes, sizeof(megabytes), "%d",
				 1 + (int) (unit_random() % 5));
		snprintf(replicas, sizeof(replicas), "%d",
				 1 + (int) (unit_random() % 3));
		server = start(ndevices, megabytes, replicas);
		loader = client_open(&server, GV_ROLE_LOADER);
		got = load_all(loader, &key, &index);
		if (got == 0)
			got = load_records(loader, &key, &records);
		CHECK(got == 0 || got == GV_REFUSED_NO_MEMORY, "load: %d", got);
		(void) used_bytes(loader);
		if (got == 0)
			check_together(&server, loader, &key, &index, &records, 1);
		CHECK(load_drop(loader, &key) == 0, "drop");
		CHECK(used_bytes(loader) == 0, "%s MB on %d: %lld bytes are left",
			  megabytes, ndevices, (long long) used_bytes(loader));
		close(loader);
		server_end(&server);
	}
}

/* Are there so many replicas of a mirror, on these devices' budgets? */
static void
check_replicas(int fd, const GvMirrorKey *key, int32_t n)
{
	GvMirrorStatus told = load_told(fd, key);

	CHECK(told.ready && told.replicas == n && told.shards == 1,
		  "%d replicas, not %d, of index %u; %d shards, %lld bytes",
		  told.replicas, n, key->relation, told.shards,
		  (long long) told.bytes);
}

/* Replicas answer alike; they go where another mirror needs their memory. */
static void
test_replicas(void)
{
	TestServer	server = start(3, "4", "2");
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	OwnIndex	index = make_large(SMALL);
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	int64_t		alone;

	CHECK(load_all(loader, &keys[0], &index) == 0, "first");
	check_replicas(loader, &keys[0], 2);
	alone = load_told(loader, &keys[0]).bytes / 2;
	CHECK(used_bytes(loader) == 2 * alone, "%lld bytes",
		  (long long) used_bytes(loader));
	check_together(&server, loader, &keys[0], &index, NULL,
				   unit_small ? 2 : 40);
	CHECK(load_all(loader, &keys[1], &index) == 0, "second");
	check_replicas(loader, &keys[1], 1);
	check_replicas(loader, &keys[0], 2);
	/* though both have just been searched */
	CHECK(search_check(session, &keys[0], &index) == 0 &&
		  search_check(session, &keys[1], &index) == 0, "search");
	CHECK(load_all(loader, &keys[2], &index) == 0, "third");
	check_replicas(loader, &keys[0], 1);
	check_replicas(loader, &keys[1], 1);
	check_replicas(loader, &keys[2], 1);
	CHECK(search_check(session, &keys[0], &index) == 0 &&
		  search_check(session, &keys[1], &index) == 0 &&
		  search_check(session, &keys[2], &index) == 0, "all three");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "LOG: loaded index 2 in replicas on devices 3, ");
	server_remove(&server);
}

/*
 * A replica that cannot grow goes, and the other one grows: no other mirror
 * goes for a second replica.
 */
static void
test_growing_replica(void)
{
	TestServer	server = start(2, "4", "2");
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	OwnIndex	index = make_large(SMALL);
	OwnIndex	small = make_large(300);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	int			i;

	CHECK(load_all(loader, &keys[0], &index) == 0, "load");
	CHECK(load_all(loader, &keys[1], &small) == 0, "another");
	check_replicas(loader, &keys[0], 2);
	usleep(IDLE_US);
	for (i = 0; load_told(loader, &keys[0]).replicas == 2 && i < 200; i++)
	{
		TestList   *list = &index.lists[i];

		resize_list(&index, list, list->nitems + 500,
					(int32_t) (list->nitems / GV_BLOCK));
		list->gen++;
		CHECK(load_chunk(loader, &keys[0], &index, i, 0, list->nblocks, 0) == 0,
			  "list %d", i);
	}
	check_replicas(loader, &keys[0], 1);
	CHECK(load_told(loader, &keys[1]).ready, "the other one has gone");
	CHECK(search_check(session, &keys[1], &small) == 0, "search");
	check_together(&server, loader, &keys[0], &index, NULL, 5);
	CHECK(load_drop(loader, &keys[0]) == 0 &&
		  load_drop(loader, &keys[1]) == 0, "drop");
	CHECK(used_bytes(loader) == 0, "%lld bytes are left",
		  (long long) used_bytes(loader));
	server_end(&server);
}

void
test_parts(void)
{
	test_growth();
	test_lack();
	test_lack_of_replicas();
	test_any_budget();
	test_replicas();
	test_growing_replica();
}
