/*
 * check_folders.c
 *		A gpuvecd that PostgreSQL does not start: its folder, its socket, and
 *		whom it hears.  Other users take part where this is run by root.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"

/* Users of whom nobody knows. */
#define OWNER		47110
#define RUNNER		47111
#define STRANGER	47112

/* The folder inside of the test's, which gpuvecd may make. */
static void
enter_inner(TestServer *server, char *outer)
{
	server_folder(server);
	CHECK(chmod(server->folder, 0755) == 0, "chmod");
	strcpy(outer, server->folder);
	strcat(server->folder, "/inner");
}

static void
leave_inner(TestServer *server, const char *outer)
{
	server_remove(server);
	CHECK(rmdir(outer) == 0, "rmdir");
}

static bool
start(TestServer *server, const char *owner)
{
	const char *options[] = {"--socket", server->folder,
	owner != NULL ? "--owner" : NULL, owner, NULL};

	server_run(server, options);
	return server_listens(server);
}

/* It does not start there, and says this. */
static void
check_refuses(TestServer *server, const char *owner, int expected,
			  const char *text)
{
	const char *options[] = {"--socket", server->folder,
	owner != NULL ? "--owner" : NULL, owner, NULL};
	int			got;

	server_run(server, options);
	got = server_wait(server);
	CHECK(got == expected, "%s: %d", text, got);
	server_check_log(server, text);
	close(server->log);
}

static unsigned
mode_of(const char *folder, const char *name)
{
	char		path[128];
	struct stat status = {0};

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	CHECK(stat(path, &status) == 0, "%s", path);
	return status.st_mode & 07777;
}

/* It makes its folder, where there is none, for itself alone. */
static void
test_own(void)
{
	TestServer	server;
	char		outer[64];
	int			fd;

	enter_inner(&server, outer);
	CHECK(start(&server, NULL), "it does not start");
	CHECK(mode_of(server.folder, ".") == 0700, "mode of the folder");
	CHECK(mode_of(server.folder, GV_SOCKET_PATH) == 0600, "mode of the socket");
	CHECK(mode_of(server.folder, GV_LOCK_PATH) == 0600, "mode of the lock");
	fd = client_open(&server, GV_ROLE_SUPERVISOR);
	CHECK(client_ping(fd) == 0, "ping");
	close(fd);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	leave_inner(&server, outer);
}

/* Folders that are none, or that others may write to. */
static void
test_bad_folders(void)
{
	static const unsigned modes[] = {0770, 0707, 01777, 0720, 0702};
	TestServer	server;
	TestServer	other;
	char		outer[64];
	int			i;

	enter_inner(&server, outer);
	for (i = 0; i < 5; i++)
	{
		CHECK(mkdir(server.folder, 0700) == 0 &&
			  chmod(server.folder, modes[i]) == 0, "mkdir");
		check_refuses(&server, NULL, 6, "must not have write permission");
		CHECK(rmdir(server.folder) == 0, "something is in it");
	}
	i = open(server.folder, O_CREAT | O_WRONLY, 0600);
	close(i);
	check_refuses(&server, NULL, 6, "FATAL: could not change directory to");
	unlink(server.folder);

	other = server;
	strcat(other.folder, "/deeper");
	check_refuses(&other, NULL, 6, "FATAL: could not create directory");
	check_refuses(&server, "nobody of that name", 2, "invalid value for option --owner");
	check_refuses(&server, "4294967295", 2, "invalid value for option --owner");
	check_refuses(&server, "-1", 2, "invalid value for option --owner");
	server.log = -1;
	rmdir(outer);
}

/* With an option and no folder that the test made it says this, and ends. */
static void
check_option(const char *option, const char *value, const char *text)
{
	TestServer	server = {0};
	const char *options[] = {option, value, NULL};

	server_run(&server, options);
	CHECK(server_wait(&server) == 2, "%s %s", option, value);
	server_check_log(&server, text);
	close(server.log);
}

/* A path that no client could connect to, and options that go together. */
static void
test_folder_options(void)
{
	char		path[128];

	memset(path, 'x', sizeof(path));
	memcpy(path, "/tmp/", 5);
	path[108 - sizeof("/" GV_SOCKET_PATH) + 1] = '\0';
	check_option("--socket", path, "would be too long");
	check_option("--socket", "", "invalid value for option --socket");
	check_option("--owner", "0", "option --owner requires --socket");
}

/* A symbolic link leads to a folder, which is what counts. */
static void
test_link(void)
{
	TestServer	server;
	char		outer[64];
	char		real[80];

	enter_inner(&server, outer);
	snprintf(real, sizeof(real), "%s/real", outer);
	CHECK(mkdir(real, 0700) == 0 && symlink(real, server.folder) == 0, "link");
	CHECK(start(&server, NULL), "it does not start");
	CHECK(mode_of(real, GV_SOCKET_PATH) == 0600, "mode of the socket");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	close(server.log);
	CHECK(chmod(real, 0770) == 0, "chmod");
	check_refuses(&server, NULL, 6, "must not have write permission");
	unlink(server.folder);
	strcpy(server.folder, real);
	server.log = -1;
	leave_inner(&server, outer);
}

/* Its cluster's next incarnation: it restarts, and comes back. */
static void
check_restart(TestServer *server)
{
	int			fd = client_socket(server);

	close(server->supervisor);
	CHECK(client_hello(fd, GV_ROLE_SUPERVISOR, 1) == -1, "an answer");
	close(fd);
	server->supervisor = server_supervise(server, 1);
	CHECK(client_ping(server->supervisor) == 0, "it has not come back");
}

/* A relative folder is the same one when it restarts. */
static void
test_relative(void)
{
	TestServer	server;
	char		outer[64];
	char		before[1024];
	const char *options[] = {"--socket", "inner", NULL};

	enter_inner(&server, outer);
	CHECK(getcwd(before, sizeof(before)) != NULL && chdir(outer) == 0, "chdir");
	server_run(&server, options);
	CHECK(chdir(before) == 0 && server_ready(&server), "it does not start");
	check_restart(&server);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	leave_inner(&server, outer);
}

/* Started where its user may not be. */
static void
test_closed_start(void)
{
	TestServer	server;
	char		outer[64];
	char		before[1024];
	char		closed[] = "/tmp/gvXXXXXX";
	const char *options[] = {"--socket", server.folder, "--owner", "0", NULL};

	if (geteuid() != 0)
		return;
	enter_inner(&server, outer);
	CHECK(chown(outer, RUNNER, 0) == 0, "chown");
	server.user = RUNNER;
	CHECK(mkdtemp(closed) != NULL && getcwd(before, sizeof(before)) != NULL &&
		  chdir(closed) == 0, "chdir");
	server_run(&server, options);
	CHECK(chdir(before) == 0 && server_ready(&server), "it does not start");
	check_restart(&server);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	CHECK(rmdir(closed) == 0, "rmdir");
	leave_inner(&server, outer);
}

/*
 * Connect and say hello as this user; 0, a refusal, -1: cut off, -2: not let
 * in.
 */
static int
ask_as(const TestServer *server, uid_t user)
{
	int			fd;
	int			got;

	CHECK(seteuid(user) == 0, "seteuid");
	fd = client_socket(server);
	CHECK(seteuid(0) == 0, "seteuid");
	if (fd < 0)
		return -2;
	got = client_hello(fd, GV_ROLE_SUPERVISOR, TEST_INCARNATION);
	close(fd);
	return got;
}

/* Root's gpuvecd gives the socket away, that of another user cannot. */
static void
check_users(uid_t user, unsigned socket_mode)
{
	TestServer	server;
	char		outer[64];
	char		owner[16];

	enter_inner(&server, outer);
	CHECK(chown(outer, user, 0) == 0, "chown");
	server.user = user;
	snprintf(owner, sizeof(owner), "%d", OWNER);
	CHECK(start(&server, owner), "it does not start");
	CHECK(mode_of(server.folder, ".") == 0711, "mode of the folder");
	CHECK(mode_of(server.folder, GV_SOCKET_PATH) == socket_mode,
		  "mode of the socket");
	CHECK(ask_as(&server, STRANGER) == (socket_mode == 0666 ? -1 : -2),
		  "a stranger");
	CHECK(ask_as(&server, 0) == -1, "root is not the owner");
	CHECK(ask_as(&server, user) < 0, "who runs it is not the owner");
	CHECK(ask_as(&server, OWNER) == 0, "the owner");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	leave_inner(&server, outer);
}

/* Whose the folder may be. */
static void
test_users(void)
{
	TestServer	server;
	char		outer[64];
	char		owner[16];

	if (geteuid() != 0)
		return;
	check_users(0, 0600);
	check_users(RUNNER, 0666);
	enter_inner(&server, outer);
	snprintf(owner, sizeof(owner), "%d", OWNER);
	CHECK(mkdir(server.folder, 0755) == 0 &&
		  chown(server.folder, STRANGER, 0) == 0, "mkdir");
	check_refuses(&server, owner, 6, "belongs to user 47112");
	/* who could put a link into the place of the lock, for root to follow */
	CHECK(chown(server.folder, OWNER, 0) == 0, "chown");
	check_refuses(&server, owner, 6, "belongs to user 47110");
	CHECK(chown(server.folder, 0, 0) == 0, "chown");
	CHECK(start(&server, owner), "in root's folder it does not start");
	CHECK(ask_as(&server, OWNER) == 0, "the owner");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	leave_inner(&server, outer);
}

void
test_folders(void)
{
	test_own();
	test_bad_folders();
	test_folder_options();
	test_link();
	test_relative();
	test_closed_start();
	test_users();
}
