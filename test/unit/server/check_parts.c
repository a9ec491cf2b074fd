/*
 * check_parts.c
 *		Mirrors on several devices: shards of a mirror that no device has
 *		memory for, and replicas: where they go, what they are charged, who is
 *		evicted for them, and that answers are those of one device.
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
	const char *options[] = {"--devices", lists[ndevices], "--memory",
		megabytes, "--keep", KEEP_S, "--replicas", replicas,
	fault != NULL ? "--fault" : NULL, fault, NULL};
	TestServer	server;

	server_folder(&server);
	server_launch(&server, options);
	CHECK(server_ready(&server), "it does not start");
	return server;
}

static TestServer
start(int ndevices, const char *megabytes, const char *replicas)
{
	return start_faulty(ndevices, megabytes, replicas, NULL);
}

static void
stop(TestServer *server)
{
	CHECK(server_stop(server) == 0, "SIGTERM");
	server_remove(server);
}

/* The status of a mirror; ready is 0 where there is none. */
static GvMirrorStatus
told_of(int fd, const GvMirrorKey *key)
{
	GvStatusReply *status = load_status(fd);
	const GvMirrorStatus *mirrors = (const GvMirrorStatus *) (status + 1);
	GvMirrorStatus found = {.ready = 0};
	int			i;

	for (i = 0; i < status->nmirrors; i++)
		if (mirrors[i].key.relation == key->relation)
			found = mirrors[i];
	free(status);
	return found;
}

static int64_t
used_bytes(int fd)
{
	GvStatusReply *status = load_status(fd);
	int64_t		used = status->used;

	CHECK(used >= 0 && used <= status->memory, "%lld of %lld bytes",
		  (long long) used, (long long) status->memory);
	free(status);
	return used;
}

/* Some of an index's records, one message; they are told nothing else. */
static int
load_records(int fd, const GvMirrorKey *key, Records *records)
{
	int32_t		n;
	char	   *items = draw_records(records, &n);
	GvListsRequest request = {*key, n, 0};
	int			refusal = client_ask(fd, GV_MSG_REFINE, &request,
									 sizeof(request), items,
									 records->stride * (size_t) n, NULL, NULL);

	unit_free(items);
	return refusal;
}

/*
 * An index of so many lists with a key, 2 kB each, which go in one chunk: the
 * portable engine gives a list that grows more memory than it needs.
 */
static TestIndex
make_large(int32_t nlists)
{
	TestIndex	index = make_index(GV_L2 + unit_random() % 3, 32, 32, nlists, 7,
								   47, false);

	give_form(&index, (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}});
	return index;
}

/* All clients search at once, again and again, while lists become others. */
static void
check_together(const TestServer *server, int loader, const GvMirrorKey *key,
			   TestIndex *index, const Records *records, int rounds)
{
	int			fds[NCLIENTS];
	TestSearch	searches[NCLIENTS];
	int			round;
	int			i;

	for (i = 0; i < NCLIENTS; i++)
		fds[i] = client_open(server, GV_ROLE_SESSION);
	for (round = 0; round < rounds; round++)
	{
		int32_t		list = (int32_t) (unit_random() %
										 (uint64_t) index->spec.nlists);
		int32_t		nblocks = index->lists[list].nblocks;

		for (i = 0; i < NCLIENTS; i++)
		{
			searches[i] = make_search(key, index);
			searches[i].records = records;
			CHECK(search_send(fds[i], &searches[i]), "send");
		}
		/* meanwhile a list is replaced by what it is */
		CHECK(load_chunk(loader, key, index, list, 0, nblocks, 0) == 0,
			  "a piece");
		for (i = 0; i < NCLIENTS; i++)
		{
			int			got = search_receive(fds[i], index, &searches[i]);

			CHECK(got == 0, "round %d, client %d: %d", round, i, got);
			free_search(&searches[i]);
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
	for (i = 0; i < NCLIENTS; i++)
		close(fds[i]);
}

/* An index of 6 MB on devices of so many, with records or without. */
static void
test_shards(int ndevices, const char *megabytes, int32_t shards,
			bool recorded)
{
	TestServer	server = start(ndevices, megabytes, "2");
	int			loader = client_open(&server, GV_ROLE_LOADER);
	TestIndex	index = make_large(LARGE);
	Records		records = {0};
	GvMirrorKey key = test_key(1);
	GvMirrorStatus told;
	TestSearch	search;
	int			bulk;

	if (recorded)
		records = make_records(&index, PAGES, SLOTS);
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(!recorded || load_records(loader, &key, &records) == 0, "records");
	told = told_of(loader, &key);
	CHECK(told.ready && told.shards == shards && told.replicas == 1,
		  "%d shards, %d replicas", told.shards, told.replicas);
	CHECK(used_bytes(loader) >= told.bytes && told.bytes > 5 << 20,
		  "%lld bytes", (long long) told.bytes);
	check_together(&server, loader, &key, &index, recorded ? &records : NULL,
				   unit_small ? 2 : 20);
	search = make_search(&key, &index);
	search.records = recorded ? &records : NULL;
	bulk = client_open(&server, GV_ROLE_BULK);
	CHECK(search_send(bulk, &search) &&
		  search_receive(bulk, &index, &search) == 0, "a thread's search");
	free_search(&search);
	CHECK(load_drop(loader, &key) == 0, "drop");
	CHECK(used_bytes(loader) == 0, "%lld bytes are left",
		  (long long) used_bytes(loader));
	close(bulk);
	close(loader);
	stop(&server);
	if (recorded)
		free_records(&records);
	free_index(&index);
}

/* Shards grow until a device is full, are evicted, and come again. */
static void
test_growth(void)
{
	TestServer	server = start(2, "4", "1");
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	TestIndex	index = make_large(LARGE);
	TestIndex	small = make_large(SMALL);
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
	CHECK(told_of(loader, &key).ready == 0, "they are there");
	CHECK(load_all(loader, &others[1], &small) == 0, "on the other device");
	CHECK(told_of(loader, &others[0]).device !=
		  told_of(loader, &others[1]).device, "both on one device");
	CHECK(load_begin(loader, &key, &index) == GV_REFUSED_NO_MEMORY,
		  "shards beside young ones");
	usleep(IDLE_US);
	free_index(&index);
	index = make_large(LARGE);
	CHECK(load_all(loader, &key, &index) == 0, "again");
	CHECK(told_of(loader, &key).shards == 2 &&
		  told_of(loader, &others[0]).ready == 0 &&
		  told_of(loader, &others[1]).ready == 0, "in the place of both");
	CHECK(search_check(session, &key, &index) == 0, "search");
	close(session);
	close(loader);
	stop(&server);
	free_index(&small);
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
		devices[i] = told_of(loader, &others[i]).device;
	}
	CHECK(devices[0] != devices[1], "both are on device %d", devices[0]);
	usleep(IDLE_US);
	CHECK(load_all(loader, &key, index) == 0, "load");
	CHECK(told_of(loader, &key).shards == 2, "shards");
	for (i = 0; i < 2; i++)
		if (!told_of(loader, &others[i]).ready)
		{
			CHECK(gone == -1, "call %d: both are gone", n);
			gone = devices[i];
		}
	CHECK(gone >= 0, "call %d: both are there", n);
	close(loader);
	stop(&server);
	return gone;
}

/* Where a device lacks memory, nothing goes on others. */
static void
test_lack(void)
{
	TestIndex	index = make_large(LARGE);
	TestIndex	small = make_large(IDLE);
	int			n = 2 * IDLE + LARGE / 2;	/* in the midst of the lists */
	int32_t		first = evicted_for(n, &index, &small);

	CHECK(evicted_for(n + 1, &index, &small) != first,
		  "for the next list, too, on device %d", first);
	free_index(&small);
	free_index(&index);
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
	TestIndex	index = make_large(SMALL);
	TestIndex	small = make_large(IDLE);
	GvMirrorKey key = test_key(1);
	GvMirrorKey others[2] = {test_key(2), test_key(3)};
	GvStatusReply *status;
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
		CHECK(told_of(loader, &others[i]).replicas == 2, "idle replicas");
	}
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(told_of(loader, &key).replicas == 2, "replicas");
	status = load_status(loader);
	CHECK(status->evictions == 1, "%lld evictions",
		  (long long) status->evictions);
	free(status);
	close(loader);
	stop(&server);
	free_index(&small);
	free_index(&index);
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
		TestIndex	index = make_large(200 +
									   (int32_t) (unit_random() % 3300));
		Records		records = make_records(&index, PAGES, SLOTS);
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
		stop(&server);
		free_records(&records);
		free_index(&index);
	}
}

/* Are there so many replicas of a mirror, on these devices' budgets? */
static void
check_replicas(int fd, const GvMirrorKey *key, int32_t n)
{
	GvMirrorStatus told = told_of(fd, key);

	CHECK(told.ready && told.replicas == n && told.shards == 1,
		  "%d replicas, not %d, of index %u; %d shards, %lld bytes",
		  told.replicas, n, key->relation, told.shards,
		  (long long) told.bytes);
}

/* A build of some MB on the device with most memory. */
static int
begin_build(int fd, int megabytes)
{
	GvBuilderSpec request =
		{.metric = GV_L2,.dims = 8,.m = 4,.lists_per_row = 1,
		.nlists = 10,.nparents = 1,.batch_rows = 10,.scale = 1.0f,
	.max_imbalance = 2.0,.sample_rows = 20000 * megabytes};
	float		mean[8] = {0};

	return client_ask(fd, GV_MSG_BUILD, &request, sizeof(request), mean,
					  sizeof(mean), NULL, NULL);
}

/* Replicas answer alike; they go where another mirror needs their memory. */
static void
test_replicas(void)
{
	TestServer	server = start(3, "4", "2");
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	TestIndex	index = make_large(SMALL);
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	int64_t		alone;

	CHECK(load_all(loader, &keys[0], &index) == 0, "first");
	check_replicas(loader, &keys[0], 2);
	alone = told_of(loader, &keys[0]).bytes / 2;
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
	close(session);
	close(loader);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "LOG: index 2 is mirrored in replicas on devices 3, ");
	server_remove(&server);
	free_index(&index);
}

/* A replica that cannot grow goes, the other one grows. */
static void
test_full_replica(void)
{
	TestServer	server = start(2, "4", "16");
	int			builder = client_open(&server, GV_ROLE_BUILDER);
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	TestIndex	index = make_large(1100);
	GvMirrorKey key = test_key(1);
	int			i;

	CHECK(begin_build(builder, 1) == 0, "a build");
	CHECK(load_all(loader, &key, &index) == 0, "load");
	check_replicas(loader, &key, 2);
	for (i = 0; told_of(loader, &key).replicas == 2 && i < 200; i++)
	{
		TestList   *list = &index.lists[i];

		resize_list(&index, list, list->nitems + 500,
					(int32_t) (list->nitems / GV_BLOCK));
		list->gen++;
		CHECK(load_chunk(loader, &key, &index, i, 0, list->nblocks, 0) == 0,
			  "list %d", i);
		CHECK(search_check(session, &key, &index) == 0, "search");
	}
	check_replicas(loader, &key, 1);
	check_together(&server, loader, &key, &index, NULL, 5);
	CHECK(load_drop(loader, &key) == 0, "drop");
	close(builder);
	for (i = 0; used_bytes(loader) > 0 && i < 1000; i++)
		usleep(10000);
	CHECK(used_bytes(loader) == 0, "%lld bytes are left",
		  (long long) used_bytes(loader));
	close(session);
	close(loader);
	stop(&server);
	free_index(&index);
}

/* Nor does another mirror go for a second replica to grow. */
static void
test_growing_replica(void)
{
	TestServer	server = start(2, "4", "2");
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	TestIndex	index = make_large(SMALL);
	TestIndex	small = make_large(300);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	int			i;

	CHECK(load_all(loader, &keys[0], &index) == 0, "load");
	CHECK(load_all(loader, &keys[1], &small) == 0, "another");
	check_replicas(loader, &keys[0], 2);
	usleep(IDLE_US);
	for (i = 0; told_of(loader, &keys[0]).replicas == 2 && i < 200; i++)
	{
		TestList   *list = &index.lists[i];

		resize_list(&index, list, list->nitems + 500,
					(int32_t) (list->nitems / GV_BLOCK));
		list->gen++;
		CHECK(load_chunk(loader, &keys[0], &index, i, 0, list->nblocks, 0) == 0,
			  "list %d", i);
	}
	check_replicas(loader, &keys[0], 1);
	CHECK(told_of(loader, &keys[1]).ready, "the other one has gone");
	CHECK(search_check(session, &keys[0], &index) == 0 &&
		  search_check(session, &keys[1], &small) == 0, "search");
	close(session);
	close(loader);
	stop(&server);
	free_index(&small);
	free_index(&index);
}

void
test_parts(void)
{
	test_shards(2, "4", 2, false);
	/* with a megabyte of tables each */
	test_shards(3, "4", 3, true);
	if (!unit_small)
	{
		test_shards(4, "3", 3, false);
		test_shards(4, "2", 4, false);
		test_shards(4, "3", 4, true);
	}
	test_growth();
	test_lack();
	test_lack_of_replicas();
	test_any_budget();
	test_replicas();
	test_full_replica();
	test_growing_replica();
}
