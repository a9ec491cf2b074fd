/*
 * check_lives.c
 *		gpuvecd serves one incarnation of one cluster, and has another child
 *		process serve the next: no client and no mirror of an earlier
 *		incarnation is there then.
 */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define OTHER_INCARNATION	UINT64_C(0x0102030405060708)

/* Start it as one that PostgreSQL does not start, in a folder of its own. */
static TestServer
launch(void)
{
	TestServer	server;
	const char *options[] = {"--socket", server.folder, NULL};

	server_folder(&server);
	server_run(&server, options);
	return server;
}

/* Likewise, and supervise it. */
static TestServer
start(void)
{
	TestServer	server = launch();

	CHECK(server_ready(&server), "it does not start");
	return server;
}

/* Hello on a new connection, which is closed again. */
static int
greet(const TestServer *server, GvRole role, uint64_t incarnation)
{
	OwnFd		fd = client_socket(server);
	int			got = client_hello(fd, role, incarnation);

	CHECK(got == 0 || client_ended(fd), "refused, and not cut off");
	return got;
}

/* All roles but the supervisor's with that incarnation. */
static void
check_others(const TestServer *server, uint64_t incarnation, int expected)
{
	int			role;

	for (role = GV_ROLE_SESSION; role < GV_ROLE_SUPERVISOR; role++)
	{
		int			got = greet(server, (GvRole) role, incarnation);

		CHECK(got == expected, "role %d: %d", role, got);
	}
}

/* Who comes before any supervisor, and who comes then. */
static void
test_first(void)
{
	TestServer	server = launch();
	int			first;
	int			second;

	CHECK(server_listens(&server), "it does not start");
	check_others(&server, TEST_INCARNATION, GV_REFUSED_INCARNATION);
	check_others(&server, 0, GV_REFUSED_PROTOCOL);
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, 0) == GV_REFUSED_PROTOCOL,
		  "no life");
	check_others(&server, TEST_INCARNATION, GV_REFUSED_INCARNATION);
	first = client_open(&server, GV_ROLE_SUPERVISOR);
	check_others(&server, TEST_INCARNATION, 0);
	check_others(&server, OTHER_INCARNATION, GV_REFUSED_INCARNATION);
	/*
	 * another one of the same incarnation, which may come before the first has
	 * gone
	 */
	second = client_open(&server, GV_ROLE_SUPERVISOR);
	CHECK(client_ping(first) == 0 && client_ping(second) == 0, "ping");
	OK(greet(&server, GV_ROLE_SUPERVISOR, TEST_INCARNATION));
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) ==
		  GV_REFUSED_INCARNATION,
		  "the third has gone, others are there");
	close(first);
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) ==
		  GV_REFUSED_INCARNATION,
		  "the second is there");
	close(second);
	/* without one its sessions are there, until they have gone, too */
	first = client_open(&server, GV_ROLE_SESSION);
	check_others(&server, TEST_INCARNATION, 0);
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) ==
		  GV_REFUSED_INCARNATION,
		  "a session is there");
	CHECK(client_ping(first) == 0, "the session");
	close(first);
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) == -1,
		  "nobody is there");
	server.supervisor = server_supervise(&server, OTHER_INCARNATION);
	check_others(&server, OTHER_INCARNATION, 0);
	server_end(&server);
}

/* Hellos of other versions are told, however long they are. */
static void
test_other_versions(void)
{
	TestServer	server = start();
	uint32_t	hello[24] = {GV_PROTOCOL_MAGIC};
	size_t		bytes;

	for (bytes = 8; bytes <= sizeof(hello); bytes += 8)
	{
		OwnFd		fd = client_socket(&server);
		int			got;

		hello[1] = bytes % 16 == 0 ? GV_PROTOCOL_VERSION + 1 :
			GV_PROTOCOL_VERSION - 1;
		got = client_ask(fd, GV_MSG_HELLO, hello, bytes, NULL, 0, NULL, NULL);
		CHECK(got == GV_REFUSED_VERSION && client_ended(fd), "%zu bytes: %d",
			  bytes, got);
	}
	server_end(&server);
}

/*
 * A mirror is searched, and another one is on its way, when the next
 * incarnation begins.
 */
static void
test_next(void)
{
	OwnIndex	index = make_index(GV_L2, 64, 64, 1, 1, -20000, false);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	TestServer	server = start();
	OwnSearch	search = make_search(&keys[0], &index);
	uint64_t	instance = load_totals(server.supervisor).instance;
	int			child = server_child(&server);
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	int			builder = client_open(&server, GV_ROLE_BUILDER);
	int			i;

	CHECK(load_all(loader, &keys[0], &index) == 0, "load");
	CHECK(load_begin(loader, &keys[1], &index) == 0, "begin");
	CHECK(load_arrays(loader, &keys[1], &index) == 0, "arrays");
	for (i = 0; i < 3; i++)
		CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) ==
			  GV_REFUSED_INCARNATION, "another cluster");
	CHECK(search_check(session, &keys[0], &index) == 0, "search");

	CHECK(search_send(session, &search), "send");
	close(server.supervisor);
	shutdown(session, SHUT_WR);
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) == -1,
		  "an answer of the life before");
	CHECK(client_ended(loader) && client_ended(builder), "others");
	(void) search_receive(session, &index, &search);
	CHECK(client_ping(session) == -1, "a session goes on");
	CHECK(waitpid(server.pid, NULL, WNOHANG) == 0, "what was started ends");
	server.supervisor = server_supervise(&server, OTHER_INCARNATION);
	CHECK(server_child(&server) != child, "the same process serves");
	CHECK(load_totals(server.supervisor).instance != instance,
		  "the same instance");
	check_others(&server, TEST_INCARNATION, GV_REFUSED_INCARNATION);
	close(loader);
	close(session);
	close(builder);

	loader = client_socket(&server);
	OK(client_hello(loader, GV_ROLE_LOADER, OTHER_INCARNATION));
	session = client_socket(&server);
	OK(client_hello(session, GV_ROLE_SESSION, OTHER_INCARNATION));
	CHECK(search_check(session, &keys[0], &index) == GV_REFUSED_NO_MIRROR,
		  "a mirror has outlived it");
	CHECK(load_all(loader, &keys[0], &index) == 0, "load");
	CHECK(search_check(session, &keys[0], &index) == 0, "search");
	close(session);
	close(loader);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "WARNING: refused another cluster, because each "
					 "cluster requires a separate gpuvecd and directory\nLOG: ");
	server_remove(&server);
}

/*
 * It was stopped while an incarnation ended: what waits for it then is all too
 * late.
 */
static void
test_stopped(void)
{
	OwnIndex	index = make_index(GV_L2, 5, 3, 4, 2, 30, true);
	GvMirrorKey key = test_key(1);
	TestServer	server = start();
	int			loader = client_open(&server, GV_ROLE_LOADER);
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_SUPERVISOR, 1, OTHER_INCARNATION};
	int			child = server_child(&server);
	GvMessage	answer;
	int			waiting[2];
	int			late;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	kill(child, SIGSTOP);
	/* a loader's last words, a session that says hello, and two supervisors */
	CHECK(client_message(loader, GV_MSG_DROP, &key, sizeof(key), NULL, 0),
		  "send");
	close(loader);
	close(server.supervisor);
	waiting[0] = client_socket(&server);
	waiting[1] = client_socket(&server);
	CHECK(client_message(waiting[0], GV_MSG_HELLO, &hello, sizeof(hello), NULL,
						 0), "send");
	close(waiting[0]);
	hello.incarnation = TEST_INCARNATION;
	hello.role = GV_ROLE_SESSION;
	CHECK(client_message(waiting[1], GV_MSG_HELLO, &hello, sizeof(hello), NULL,
						 0), "send");
	shutdown(waiting[1], SHUT_WR);
	kill(child, SIGCONT);
	server.supervisor = server_supervise(&server, OTHER_INCARNATION);
	check_others(&server, TEST_INCARNATION, GV_REFUSED_INCARNATION);
	check_others(&server, OTHER_INCARNATION, 0);
	/*
	 * it may have been welcome for a moment, by the incarnation that was its
	 * own
	 */
	free(client_answer(waiting[1], &answer));
	CHECK(client_ended(waiting[1]), "a session of the life before");
	close(waiting[1]);
	late = client_socket(&server);
	CHECK(client_hello(late, GV_ROLE_SESSION, OTHER_INCARNATION) == 0, "hello");
	CHECK(search_check(late, &key, &index) == GV_REFUSED_NO_MIRROR, "a mirror");
	close(late);
	server_end(&server);
}

/* Asked to end while one child follows another, it ends, whenever that is. */
static void
test_end(void)
{
	int			rounds = unit_small ? 8 : 40;
	int			i;

	for (i = 0; i < rounds; i++)
	{
		TestServer	server = start();
		OwnFd		fd = client_socket(&server);
		GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
		GV_ROLE_SUPERVISOR, 1, OTHER_INCARNATION};

		close(server.supervisor);
		server.supervisor = 0;
		CHECK(client_message(fd, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0),
			  "send");
		usleep((useconds_t) i * 200);
		CHECK(server_stop(&server) == 0, "SIGTERM in round %d", i);
		server_remove(&server);
	}
}

/* Who is killed leaves its socket behind. */
static void
remove_killed(TestServer *server)
{
	char		path[128];

	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_SOCKET_PATH);
	CHECK(unlink(path) == 0, "no socket");
	server_remove(server);
}

/*
 * The child goes with the process that was started, and the other way round;
 * but neither goes when its terminal does.
 */
static void
test_killed(void)
{
	TestServer	server = start();
	int			session = client_open(&server, GV_ROLE_SESSION);

	kill(server.pid, SIGHUP);
	kill(server.pid, SIGPIPE);
	kill(server_child(&server), SIGHUP);
	usleep(100000);
	CHECK(client_ping(session) == 0, "SIGHUP or SIGPIPE ends it");
	CHECK(waitpid(server.pid, NULL, WNOHANG) == 0, "what was started ends");
	kill(server.pid, SIGKILL);
	CHECK(server_wait(&server) == 1000 + SIGKILL, "SIGKILL");
	CHECK(client_ended(session), "the child is still there");
	close(session);
	remove_killed(&server);
	server = start();
	kill(server_child(&server), SIGKILL);
	CHECK(server_wait(&server) == 128 + SIGKILL, "of the child");
	server_check_log(&server, "FATAL: terminated by signal 9");
	remove_killed(&server);
}

/* Who starts it may block the signals that end it: they end it all the same. */
static void
test_blocked(void)
{
	sigset_t	signals;
	sigset_t	before;
	int			i;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	for (i = 0; i < 2; i++)
	{
		TestServer	server;

		sigprocmask(SIG_BLOCK, &signals, &before);
		server = i == 0 ? start() : server_start(NULL);
		sigprocmask(SIG_SETMASK, &before, NULL);
		server_end(&server);
	}
}

/* Where it has no parent of its own, it ends, and says why. */
static void
test_without_socket(void)
{
	TestServer	server = server_start(NULL);

	close(server.supervisor);
	server.supervisor = 0;
	CHECK(greet(&server, GV_ROLE_SUPERVISOR, OTHER_INCARNATION) == -1,
		  "another incarnation");
	CHECK(server_wait(&server) == 7, "exit status");
	server_remove(&server);
}

void
test_incarnations(void)
{
	test_first();
	test_other_versions();
	test_next();
	test_stopped();
	test_end();
	test_killed();
	test_blocked();
	test_without_socket();
}
