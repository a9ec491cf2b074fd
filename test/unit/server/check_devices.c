/*
 * check_devices.c
 *		The budgets of one device and of several: where mirrors and builds go,
 *		who has to go for them, who is refused; devices that hang or are
 *		lost.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	8

static TestServer
start_two(const char *option, const char *value)
{
	return server_start("--devices", "3,5", "--memory", "4", "--keep", "1",
						option, value, NULL);
}

/* The number of a mirror's device; -1: there is no such mirror. */
static int
device_of(int fd, const GvMirrorKey *key)
{
	return load_told(fd, key).device;
}

static void
check_memory(int fd, int64_t evictions)
{
	GvStatusReply totals = load_totals(fd);

	CHECK(totals.memory == 8 << 20 && totals.used <= totals.memory &&
		  totals.evictions == evictions, "%lld of %lld bytes, %lld evictions",
		  (long long) totals.used, (long long) totals.memory,
		  (long long) totals.evictions);
}

/* A mirror goes where most memory is free; eviction is each device's own. */
static void
test_places(const TestServer *server, const TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	GvMirrorKey moved = keys[1];

	CHECK(load_all(loader, &keys[0], index) == 0, "first");
	CHECK(load_all(loader, &keys[1], index) == 0, "second");
	CHECK(device_of(loader, &keys[0]) == 3 && device_of(loader, &keys[1]) == 5,
		  "devices %d and %d", device_of(loader, &keys[0]),
		  device_of(loader, &keys[1]));
	usleep(1100000);
	CHECK(search_check(session, &keys[0], index) == 0, "first");
	CHECK(load_all(loader, &keys[2], index) == 0, "third");
	CHECK(device_of(loader, &keys[2]) == 5 && device_of(loader, &keys[1]) < 0,
		  "it is not in the place of the idle one");
	check_memory(loader, 1);
	CHECK(search_check(session, &keys[0], index) == 0, "first, after all");
	/* both idle: the one that has been so longer is evicted */
	usleep(200000);
	CHECK(search_check(session, &keys[2], index) == 0, "third");
	usleep(1100000);
	CHECK(load_all(loader, &moved, index) == 0, "second, again");
	CHECK(device_of(loader, &moved) == 3 && device_of(loader, &keys[0]) < 0,
		  "it is not in the place of the one idle longest");
	check_memory(loader, 2);
	CHECK(search_check(session, &moved, index) == 0 &&
		  search_check(session, &keys[2], index) == 0, "both");
	CHECK(load_drop(loader, &moved) == 0, "drop");
	CHECK(load_drop(loader, &keys[2]) == 0, "drop");
}

/*
 * A mirror that can never fit goes for no other one, though that is idle, and
 * one that is being loaded goes for nobody, however long that takes.
 */
static void
test_in_vain(const TestServer *server, const TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	int64_t		evictions = load_totals(loader).evictions;
	TestIndex	large = *index;
	int			i;

	CHECK(load_all(loader, &keys[0], index) == 0, "first");
	usleep(1100000);
	large.spec.nlists = 1 << 24;
	large.spec.dims = 16000;
	CHECK(load_begin(loader, &keys[1], &large) == GV_REFUSED_NO_MEMORY,
		  "huge");
	large.spec = index->spec;
	large.spec.postings = INT64_C(1) << 40;
	CHECK(load_begin(loader, &keys[1], &large) == GV_REFUSED_NO_MEMORY,
		  "many postings");
	check_memory(loader, evictions);
	CHECK(search_check(session, &keys[0], index) == 0, "first");
	CHECK(load_drop(loader, &keys[0]) == 0, "drop");
	for (i = 0; i < 2; i++)
		CHECK(load_begin(loader, &keys[i], index) == 0, "begin");
	usleep(1100000);
	CHECK(load_begin(loader, &keys[2], index) == GV_REFUSED_NO_MEMORY,
		  "while two are loading");
	for (i = 0; i < 2; i++)
		CHECK(load_drop(loader, &keys[i]) == 0, "drop");
	check_memory(loader, evictions);
}

/*
 * Lists that grow beyond what there is: refused, and nothing is lost, no idle
 * mirror either, since it would not do.
 */
static void
test_growth(void)
{
	TestServer	server = server_start("--memory", "4", "--keep", "1", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(1);
	GvMirrorKey idle = test_key(2);
	OwnIndex	small = make_index(GV_L2, 2, 1, 1, 1, 1, false);
	OwnIndex	index = make_index(GV_L2, 64, 64, 40, 1, 0, false);
	GvStatusReply totals;
	int			got = 0;
	int32_t		list;

	CHECK(load_all(loader, &idle, &small) == 0, "idle");
	usleep(1100000);
	CHECK(load_all(loader, &key, &index) == 0, "empty");
	for (list = 0; list < 40 && got == 0; list++)
	{
		resize_list(&index, &index.lists[list], 4000, 0);
		got = load_chunk(loader, &key, &index, list, 0,
						 index.lists[list].nblocks, 0);
	}
	CHECK(got == GV_REFUSED_NO_MEMORY, "%d", got);
	totals = load_totals(loader);
	CHECK(totals.used > 3 << 20 && totals.used <= totals.memory,
		  "it was not full yet");
	CHECK(totals.evictions == 0, "evicted in vain");
	resize_list(&index, &index.lists[list - 1], 0, 0);
	CHECK(search_check(session, &key, &index) == 0, "after a refusal");
	/* a list of the same length needs no more memory */
	resize_list(&index, &index.lists[0], 4000, 0);
	got = load_chunk(loader, &key, &index, 0, 0, index.lists[0].nblocks, 0);
	CHECK(got == 0, "as long as before: %d", got);
	CHECK(search_check(session, &key, &index) == 0, "after a change");
	CHECK(load_drop(loader, &key) == 0 && load_drop(loader, &idle) == 0,
		  "drop");
	CHECK(load_totals(loader).used == 0, "bytes are left");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}

/* One build has each device; where a mirror is there is no memory for it. */
static void
test_builds(const TestServer *server, const TestIndex *index)
{
	int			builders[3];
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(7);
	int			got;
	int			i;

	for (i = 0; i < 3; i++)
		builders[i] = client_open(server, GV_ROLE_BUILDER);
	CHECK(builder_reserve(builders[0], 3) == 0, "first");
	CHECK(load_all(loader, &key, index) == 0, "a mirror beside it");
	CHECK(device_of(loader, &key) == 5, "on device %d",
		  device_of(loader, &key));
	got = builder_reserve(builders[1], 3);
	CHECK(got == GV_REFUSED_NO_MEMORY, "beside a young mirror: %d", got);
	CHECK(load_drop(loader, &key) == 0, "drop");
	CHECK(builder_reserve(builders[2], 3) == 0, "on the other device");
	got = load_begin(loader, &key, index);
	CHECK(got == GV_REFUSED_NO_MEMORY, "a mirror beside two builds: %d", got);
	for (i = 0; i < 3; i++)
		close(builders[i]);
	got = -1;
	for (i = 0; i < 1000 && got != 0; i++)
	{
		usleep(10000);
		got = load_begin(loader, &key, index);
	}
	CHECK(got == 0, "after the builds: %d", got);
	CHECK(load_drop(loader, &key) == 0, "drop");
	check_memory(loader, 0);
}

/* One device has less memory than it seemed to: the other is tried. */
static void
test_other(const TestIndex *index)
{
	/* the call after the devices and four searchers are there */
	TestServer	server = start_two("--fault", "6:3");
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(8);

	CHECK(load_all(loader, &key, index) == 0, "load");
	CHECK(device_of(loader, &key) == 5, "on device %d",
		  device_of(loader, &key));
	CHECK(search_check(session, &key, index) == 0, "search");
	server_end(&server);
}

/* Is there a batch that has been under way for a second? */
static bool
is_old(int loader)
{
	return load_totals(loader).oldest_ms >= 1000;
}

/*
 * Search until a batch hangs, or the server has ended: a busy machine may keep
 * an answer back for a while.  The last question stays unanswered.
 */
static void
search_until_hung(int fd, int loader, const GvMirrorKey *key,
				  const TestIndex *index)
{
	struct pollfd in = {.fd = fd,.events = POLLIN};
	OwnSearch	search = make_search(key, index);
	int			looks = 0;

	while (looks < 2 && search_send(fd, &search))
	{
		looks = 0;
		while (looks < 2 && poll(&in, 1, 200) == 0)
			looks = is_old(loader) ? looks + 1 : 0;
		if (looks < 2 && search_receive(fd, index, &search) != 0)
			break;
	}
}

/*
 * Clients that go while their searches wait are not kept.  False: a busy
 * machine took so long that the server may have ended meanwhile.
 */
static bool
check_impatient(const TestServer *server, int loader, const GvMirrorKey *key,
				const TestIndex *index, int patience_s)
{
	TestCrowd	crowd;
	OwnSearch	search = make_search(key, index);
	int64_t		asked = client_now_ms();
	GvStatusReply totals = load_totals(loader);
	int64_t		oldest_ms = totals.oldest_ms;
	int			before = totals.connections;
	int			sent = 0;
	bool		in_time;
	int			i;

	crowd = crowd_open(server, GV_ROLE_SESSION, NCLIENTS);
	for (i = 0; i < NCLIENTS; i++)
		sent += search_send(crowd.fds[i], &search);
	crowd_close(&crowd);
	/* the second batch of the device may have one of them */
	for (i = 0; i < 300 && totals.connections > before + 1; i++)
	{
		usleep(10000);
		totals = load_totals(loader);
	}
	in_time = before > 0 &&
		client_now_ms() < asked - oldest_ms + patience_s * 1000;
	CHECK(!in_time || oldest_ms >= 1000, "the oldest batch: %lld ms",
		  (long long) oldest_ms);
	CHECK(!in_time || sent == NCLIENTS, "%d sent", sent);
	CHECK(!in_time || totals.connections <= before + 1,
		  "%d clients, then %d", before, totals.connections);
	return in_time;
}

/* Say what is to happen to emulated devices: see emulate/cuda_runtime.h. */
static void
write_faults(const char *path, const char *faults)
{
	FILE	   *file = fopen(path, "w");

	fputs(faults, file);
	fclose(file);
}

/*
 * The first of two devices hangs, in a batch or in the call that ends one: the
 * other one goes on in the first case, and in both the process ends, after so
 * many seconds.  By this option, or when the mirrors are loaded by this file.
 * False: they were over before it was asked whether the other one goes on.
 */
static bool
try_hung(const TestIndex *index, const char *devices, const char *fault,
		 const char *path, const char *patience, bool *goes_on)
{
	char		log[64];
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	TestServer	server;
	int			loader;
	int			victim;
	int			other;
	int64_t		asked;
	bool		in_time;

	if (path != NULL)
		write_faults(path, "");
	server = server_start("--devices", devices, "--patience", patience,
						  fault != NULL ? "--fault" : NULL, fault, NULL);
	loader = client_open(&server, GV_ROLE_LOADER);
	CHECK(load_all(loader, &keys[0], index) == 0, "first");
	CHECK(load_all(loader, &keys[1], index) == 0, "second");
	other = client_open(&server, GV_ROLE_SESSION);
	victim = client_open(&server, GV_ROLE_SESSION);
	if (path != NULL)
		write_faults(path, "hang 0\n");
	search_until_hung(victim, loader, &keys[0], index);
	asked = client_now_ms();
	*goes_on = search_check(other, &keys[1], index) == 0;
	if (*goes_on)
		in_time = check_impatient(&server, loader, &keys[0], index,
								  atoi(patience));
	else
		in_time = client_now_ms() - asked >= 1000;
	CHECK(server_wait(&server) == 5, "it goes on for ever");
	snprintf(log, sizeof(log), "FATAL: device %d has not finished a batch in "
			 "%s s", atoi(devices), patience);
	server_check_log(&server, log);
	close(victim);
	close(other);
	close(loader);
	server_remove(&server);
	return in_time;
}

/* Does the other device go on?  A busy machine is asked once more. */
static bool
check_hung(const TestIndex *index, const char *devices, const char *fault,
		   const char *path)
{
	bool		goes_on;

	if (!try_hung(index, devices, fault, path, "5", &goes_on))
		CHECK(try_hung(index, devices, fault, path, "60", &goes_on),
			  "a minute is over");
	return goes_on;
}

/* Long after loading, of two calls one begins a batch, the other ends it. */
static void
test_hung(void)
{
	OwnIndex	index = make_index(GV_L2, 8, 4, 10, 1, 40, false);

	CHECK(check_hung(&index, "3,5", "400:6", NULL) !=
		  check_hung(&index, "3,5", "401:6", NULL), "hung devices");
}

/* Two searches of one message, in a mirror of 8 dimensions. */
static bool
send_bulk(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	GvSearchRequest request = {.key = *key,.n = 2,.dims = 8,.probes = 2,
	.compare = 3,.capacity = 5};

	return client_message(fd, GV_MSG_SEARCH, &request, sizeof(request),
						  index->centroids, 2 * 8 * sizeof(float));
}

/* It hangs with many searches, and nobody else asks. */
static void
test_hung_bulk(void)
{
	OwnIndex	index = make_index(GV_L2, 8, 4, 10, 1, 40, false);
	GvMirrorKey key = test_key(1);
	TestServer	server = server_start("--patience", "2", "--fault", "100:6",
									  NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		bulk = -1;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	bulk = client_open(&server, GV_ROLE_BULK);
	do
		CHECK(send_bulk(bulk, &key, &index), "send");
	while (client_receive(bulk, GV_MSG_SEARCH, NULL, NULL) == 0);
	CHECK(server_wait(&server) == 5, "it goes on for ever");
	server_check_log(&server, "FATAL: many searches have not finished in 8 s");
	server_remove(&server);
}

void
test_devices(void)
{
	/* 3 MB of 4: of what is left twice shards have no memory either */
	OwnIndex	index = make_index(GV_L2, 64, 64, 100, 1, 700, false);
	/* with time enough for a busy machine to ask of what is young */
	TestServer	server = start_two("--keep", "1000");

	test_builds(&server, &index);
	server_end(&server);
	server = start_two(NULL, NULL);
	test_in_vain(&server, &index);
	test_places(&server, &index);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "LOG: loaded index 2 on device 3: ");
	server_remove(&server);
	test_growth();
	test_other(&index);
	test_hung();
	test_hung_bulk();
}

/*
 * A device hangs with many searches; who is to end then does not wait for it.
 */
static void
check_stopped(const TestIndex *index, const char *path)
{
	TestServer	server = server_start("--devices", "0", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		bulk = client_open(&server, GV_ROLE_BULK);
	GvMirrorKey key = test_key(1);

	CHECK(load_all(loader, &key, index) == 0, "load");
	CHECK(send_bulk(bulk, &key, index) &&
		  client_receive(bulk, GV_MSG_SEARCH, NULL, NULL) == 0, "an answer");
	write_faults(path, "hang 0\n");
	CHECK(send_bulk(bulk, &key, index), "send");
	usleep(500000);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}

/* Of two devices one is lost, then both, then one hangs, and again. */
void
test_lost_devices(void)
{
	static const char *const two[] = {"--devices", "0,1", NULL};
	OwnIndex	index = make_index(GV_L2, 8, 4, 10, 1, 40, false);
	char		path[] = "/tmp/gvfaultsXXXXXX";
	TestServer	server;

	if (server_is_emulated())
	{
		close(mkstemp(path));
		setenv("GPUVEC_EMULATED_FAULTS", path, 1);
		write_faults(path, "lost 0 214\n");
		server = server_start(NULL);
		server_end(&server);
		write_faults(path, "lost 0 214\nlost 1 46\n");
		server_folder(&server);
		server_launch(&server, two);
		CHECK(server_wait(&server) == 5, "without cards");
		server_check_log(&server, "FATAL: could not start engine: card 0: ");
		server_remove(&server);
		write_faults(path, "");
		CHECK(check_hung(&index, "0,1", NULL, path), "the other card waits");
		write_faults(path, "");
		check_stopped(&index, path);
		unlink(path);
		unsetenv("GPUVEC_EMULATED_FAULTS");
	}
}
