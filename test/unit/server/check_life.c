/*
 * check_life.c
 *		How gpuvecd starts and ends: options, lock, signals; that it ends with
 *		its parent is test/t/gpuvecd_lifecycle.pl's.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define LOCK_WAIT_MS	10000	/* as gpuvecd.c has it */
#define HELLO_MS		5000	/* as eventloop.c has it */

/* Start with one option and wait for the end; the log must have this. */
static void
check_end(const char *option, const char *value, int expected,
		  const char *text)
{
	const char *options[] = {option, value, NULL};
	TestServer	server;
	int			got;

	server_folder(&server);
	server_launch(&server, options);
	got = server_wait(&server);
	CHECK(got == expected, "%s %s: %d", option, value == NULL ? "" : value,
		  got);
	server_check_log(&server, text);
	server_remove(&server);
}

static void
test_options(void)
{
	const char *usage = "Try \"gpuvecd --help\" for more information.";

	check_end("--engine", "gpu", 2, usage);
	check_end("--engine", NULL, 2, usage);
	check_end("--simd", "sse2", 2, usage);
	check_end("--matmul", "mkl", 2, usage);
	check_end("--memory", "-1", 2, usage);
	check_end("--memory", "1x", 2, usage);
	check_end("--memory", "99999999999999999999", 2, usage);
	check_end("--max-connections", "0", 2, usage);
	check_end("--keep", "", 2, usage);
	check_end("--parent", "me", 2, usage);
	check_end("--color", "red", 2, usage);
	check_end("red", NULL, 2, usage);
	check_end("--data", "/nowhere/at/all", 6, "FATAL: ");
	check_end("--help", NULL, 0, "  gpuvecd [OPTION]...");
	check_end("--version", NULL, 0, "gpuvecd ");
	check_end("--fault", "1", 2, usage);
	check_end("--fault", "0:3", 2, usage);
	check_end("--fault", "1:1", 2, usage);
	check_end("--fault", "1:7", 2, usage);
	check_end("--build-fault", "1:6", 2, usage);
	check_end("--patience", "-1", 2, usage);
	check_end("--fault", "1:3", 5, "FATAL: could not start engine: injected fault");
	check_end("--fault", "2:5", 5, "FATAL: ");
	check_end("--fault", "2:3", 5, "FATAL: ");
	check_end("--fault", "3:3", 5, "FATAL: ");
	check_end("--parent", "1", 0, "LOG: ");
}

static void
wait_ms(int ms)
{
	struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&pause, NULL);
}

/* Signals in the midst of everything; a loader is connected, too. */
static void
test_signals(void)
{
	static const int ends[] = {SIGTERM, SIGINT};
	OwnIndex	index = make_index(GV_L2, 64, 64, 1, 1, -100000, false);
	GvMirrorKey key = test_key(1);
	int			i;
	int			n;

	for (i = 0; i < 2; i++)
	{
		TestServer	server = server_start("--devices", "0", NULL);
		OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
		TestCrowd	sessions;
		OwnSearch	search = make_search(&key, &index);
		int64_t		began;

		kill(server.pid, SIGHUP);
		kill(server.pid, SIGPIPE);
		CHECK(load_all(loader, &key, &index) == 0, "load");
		/* 40 searches of 100,000 postings take a while */
		sessions = crowd_open(&server, GV_ROLE_SESSION, 40);
		OK(search_check(sessions.fds[0], &key, &index));
		for (n = 0; n < 40; n++)
			CHECK(search_send(sessions.fds[n], &search), "send");
		wait_ms(5);
		began = client_now_ms();
		kill(server.pid, ends[i]);
		CHECK(server_wait(&server) == 0, "signal %d", ends[i]);
		CHECK(client_now_ms() - began < 5000, "it took long to end");
		crowd_close(&sessions);
		CHECK(client_ended(loader), "the loader");
		CHECK(client_socket(&server) < 0, "somebody listens");
		server_remove(&server);
	}
}

/* A server that waits for the lock serves as soon as the one before ends. */
static void
test_lock(void)
{
	static const char *const none[] = {NULL};
	TestServer	first = server_start(NULL);
	TestServer	second = first;
	int64_t		began = client_now_ms();
	char		path[128];
	char		pid[32] = "";
	bool		ready;
	int			fd;

	server_launch(&second, none);
	wait_ms(300);
	fd = client_open(&first, GV_ROLE_SESSION);
	CHECK(client_ping(fd) == 0, "the first server answers");
	close(fd);
	/* killed: its socket stays behind, its lock does not */
	kill(first.pid, SIGKILL);
	CHECK(server_wait(&first) == 1000 + SIGKILL, "SIGKILL");
	close(first.log);
	ready = server_ready(&second);
	if (!ready && client_now_ms() - began >= LOCK_WAIT_MS)
	{
		/* a busy machine took what it waits */
		CHECK(server_wait(&second) == 4, "it gave up");
		close(second.log);
		server_launch(&second, none);
		ready = server_ready(&second);
	}
	CHECK(ready, "the second server");
	fd = client_open(&second, GV_ROLE_SESSION);
	CHECK(client_ping(fd) == 0, "the second server");
	close(fd);
	snprintf(path, sizeof(path), "%s/%s", second.folder, GV_LOCK_PATH);
	fd = open(path, O_RDONLY);
	CHECK(read(fd, pid, sizeof(pid) - 1) > 0 && atoi(pid) == second.pid,
		  "pid %s", pid);
	close(fd);
	server_end(&second);
}

/* Nobody reads what it prints: it goes on. */
static void
test_deaf_parent(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, 2, 1, 1, 1, 1, false);
	GvMirrorKey key = test_key(1);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	int			i;

	/* a pipe holds 64 kB; each round prints some 50 bytes */
	for (i = 0; i < (unit_small ? 10 : 3000); i++)
		if (load_all(loader, &key, &index) != 0 ||
			load_drop(loader, &key) != 0)
			CHECK(false, "round %d", i);
	close(server.log);
	server.log = -1;
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(search_check(session, &key, &index) == 0, "search");
	server_end(&server);
}

/* How many times that is in what it has printed since it was ready. */
static int
count_lines(const TestServer *server, const char *text)
{
	struct pollfd in = {.fd = server->log,.events = POLLIN};
	static char log[65536 + 1];
	size_t		used = 0;
	const char *next = log;
	int			n = 0;

	while (used < sizeof(log) - 1 && poll(&in, 1, 0) == 1)
	{
		ssize_t		got = read(server->log, log + used,
							   sizeof(log) - 1 - used);

		if (got <= 0)
			break;
		used += got;
	}
	log[used] = '\0';
	while ((next = strstr(next, text)) != NULL)
	{
		next += strlen(text);
		n++;
	}
	return n;
}

/*
 * No client gets in, and searches of two mirrors, in two batches, keep the
 * loop at work: that is said once, and again when some have got in meanwhile.
 */
static void
check_shortage(const TestServer *server, TestCrowd *sessions,
			   const GvMirrorKey *keys, const TestIndex *index)
{
	int			round;
	int			i;

	for (round = 0; round < 300; round++)
	{
		for (i = 0; i < 2; i++)
			crowd_ask(sessions, i, &keys[i], index, NULL);
		for (i = 0; i < 2; i++)
			OK(crowd_answer(sessions, i, index));
	}
	i = count_lines(server, "WARNING: could not accept a connection: ");
	CHECK(i >= 1 && i < 10, "%d warnings", i);
}

/* More clients than there may be open files: they wait for each other. */
static void
test_few_files(void)
{
	static const char *const none[] = {NULL};
	TestIndex	index = make_index(GV_L2, 64, 64, 1, 1, -3000, false);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	TestServer	server;
	TestCrowd	sessions;
	int			loader;
	int			crowd[200];
	int			early;
	int			late;
	int			i;

	server_folder(&server);
	server.files = 120;
	server_launch(&server, none);
	CHECK(server_ready(&server), "it does not start");
	early = client_open(&server, GV_ROLE_SESSION);
	loader = client_open(&server, GV_ROLE_LOADER);
	for (i = 0; i < 2; i++)
		CHECK(load_all(loader, &keys[i], &index) == 0, "load");
	sessions = crowd_open(&server, GV_ROLE_SESSION, 2);
	for (i = 0; i < 200; i++)
		crowd[i] = client_socket(&server);
	CHECK(client_ping(early) == 0, "who was there before");
	check_shortage(&server, &sessions, keys, &index);
	crowd_close(&sessions);
	close(loader);
	free_index(&index);
	for (i = 0; i < 200; i++)
		close(crowd[i]);
	/* until it has seen them go there are too many */
	late = client_open(&server, GV_ROLE_SESSION);
	for (i = 0; i < 1000 && late < 0; i++)
	{
		wait_ms(10);
		late = client_open(&server, GV_ROLE_SESSION);
	}
	CHECK(client_ping(late) == 0, "who comes afterwards");
	CHECK(client_ping(early) == 0, "who was there before");
	close(early);
	close(late);
	server_end(&server);
}

/* Who does not say what he wants is dropped; who did may take his time. */
static void
test_strangers(void)
{
	TestServer	server = server_start("--max-connections", "3", NULL);
	GvMessage	hello = {sizeof(GvHello), GV_MSG_HELLO, 0};
	int64_t		began = client_now_ms();
	OwnFd		silent = client_socket(&server);
	OwnFd		slow = client_socket(&server);
	OwnFd		idle = client_open(&server, GV_ROLE_SESSION);
	int			late;

	CHECK(client_send(slow, &hello, sizeof(hello)), "send");
	late = client_open(&server, GV_ROLE_SESSION);
	CHECK(late < 0 || client_now_ms() - began >= HELLO_MS, "a fourth client");
	if (late >= 0)
		close(late);
	CHECK(client_ended(silent), "it says nothing, and is still there");
	CHECK(client_ended(slow), "it says half of it, and is still there");
	CHECK(client_ping(idle) == 0, "who said hello is gone");
	late = client_open(&server, GV_ROLE_SESSION);
	CHECK(client_ping(late) == 0, "there is no room");
	close(late);
	server_end(&server);
}

/*
 * One server a folder: a second one gives up after ten seconds, in which
 * other tests run.
 */
static TestServer lock_holder;
static TestServer lock_waiter;

void
test_lock_begin(void)
{
	static const char *const none[] = {NULL};

	lock_holder = server_start(NULL);
	lock_waiter = lock_holder;
	server_launch(&lock_waiter, none);
}

void
test_lock_end(void)
{
	CHECK(server_wait(&lock_waiter) == 4, "a second server");
	server_check_log(&lock_waiter, "FATAL: another gpuvecd");
	close(lock_waiter.log);
	server_end(&lock_holder);
}

void
test_life(void)
{
	test_options();
	test_signals();
	test_lock();
	test_deaf_parent();
	test_few_files();
	test_strangers();
}
