/*
 * server.c
 *		Starts and ends a gpuvecd for a test, in a folder of its own.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define READY_MS	20000		/* sanitized, on a busy machine */
#define END_MS		300000
#define RESTART_MS	60000
#define LOOK_MS		2

/* The program under test: GPUVECD, or what lies beside this one. */
static const char *
program(void)
{
	static char path[4096];
	const char *given = getenv("GPUVECD");
	ssize_t		n;

	if (given != NULL)
		return given;
	n = readlink("/proc/self/exe", path, sizeof(path) - 16);
	path[n < 0 ? 0 : n] = '\0';
	strcpy(strrchr(path, '/') + 1, "gpuvecd");
	return path;
}

/* A server that is not started yet, in a new folder. */
void
server_folder(TestServer *server)
{
	const char *tmp = getenv("TMPDIR");

	memset(server, 0, sizeof(*server));
	snprintf(server->folder, sizeof(server->folder), "%s/gvXXXXXX",
			 tmp != NULL && strlen(tmp) < 40 ? tmp : "/tmp");
	if (mkdtemp(server->folder) == NULL)
		abort();
}

/* Start it in its folder; options end with NULL. */
void
server_launch(TestServer *server, const char *const *options)
{
	const char *all[16] = {"--data", server->folder};
	int			n = 2;

	while (*options != NULL)
		all[n++] = *options++;
	all[n] = NULL;
	server_run(server, all);
}

/* Start it with nothing but these options and the engine. */
void
server_run(TestServer *server, const char *const *options)
{
	const char *argv[20] = {program(), "--engine", test_engine};
	struct rlimit files = {server->files, server->files};
	int			n = 3;
	int			ends[2];

	while (*options != NULL)
		argv[n++] = *options++;
	if (pipe2(ends, O_CLOEXEC) != 0)
		abort();
	server->supervisor = 0;
	server->pid = fork();
	if (server->pid == 0)
	{
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		if (server->files > 0)
			setrlimit(RLIMIT_NOFILE, &files);
		if (server->user != 0 && setuid(server->user) != 0)
			_exit(127);
		execv(argv[0], (char *const *) argv);
		_exit(127);
	}
	close(ends[1]);
	server->log = ends[0];
}

/* Wait until it prints "LOG: ready ..."; false if it ends instead. */
bool
server_listens(TestServer *server)
{
	struct pollfd in = {.fd = server->log,.events = POLLIN};
	char		log[2048];
	size_t		used = 0;

	for (;;)
	{
		ssize_t		n = -1;

		if (poll(&in, 1, READY_MS) == 1)
			n = read(server->log, log + used, sizeof(log) - 1 - used);
		used += n > 0 ? n : 0;
		log[used] = '\0';
		if (strstr(log, "LOG: ready") != NULL)
			return true;
		if (n <= 0)
			break;
	}
	printf("gpuvecd: %s", log);
	return false;
}

/*
 * The process that serves where that is a child of the one that was started
 * (--socket); 0: there is none at the moment.
 */
int
server_child(const TestServer *server)
{
	char		path[64];
	char		children[64] = "";
	int			fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", server->pid,
			 server->pid);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && read(fd, children, sizeof(children) - 1) >= 0, "%s",
		  path);
	close(fd);
	return atoi(children);
}

/* Likewise, and supervise it, so that others may come. */
bool
server_ready(TestServer *server)
{
	if (!server_listens(server))
		return false;
	server->supervisor = client_open(server, GV_ROLE_SUPERVISOR);
	return server->supervisor >= 0;
}

/*
 * Supervise it, as one of this incarnation, when it has restarted; the
 * connection.
 */
int
server_supervise(const TestServer *server, uint64_t incarnation)
{
	int64_t		began = client_now_ms();
	int			fd = -1;

	while (fd < 0 && client_now_ms() - began < RESTART_MS)
	{
		usleep(LOOK_MS * 1000);
		fd = client_socket(server);
		if (fd >= 0 && client_hello(fd, GV_ROLE_SUPERVISOR, incarnation) != 0)
		{
			close(fd);
			fd = -1;
		}
	}
	CHECK(fd >= 0, "it does not come back");
	return fd;
}

/* A server with these options; NULL is behind the last. */
TestServer
server_start(const char *option, ...)
{
	const char *options[16];
	TestServer	server;
	va_list		more;
	int			n;

	va_start(more, option);
	for (n = 0, options[0] = option; options[n] != NULL;)
		options[++n] = va_arg(more, const char *);
	va_end(more);
	server_folder(&server);
	server_launch(&server, options);
	CHECK(server_ready(&server), "it does not start");
	return server;
}

/*
 * Its exit status, or 1000 and the signal that ended it, which is ours if it
 * goes on for ever.
 */
int
server_wait(TestServer *server)
{
	int			status;
	int			ms;
	int			ended;

	if (server->supervisor > 0)
		close(server->supervisor);
	server->supervisor = 0;
	for (ms = 0;; ms += LOOK_MS)
	{
		ended = waitpid(server->pid, &status, WNOHANG);
		if (ended > 0)
			break;
		if (ended < 0 && errno != EINTR)
			return -1;
		if (ms >= END_MS && ms < END_MS + LOOK_MS)
		{
			CHECK(false, "gpuvecd does not end");
			kill(server->pid, SIGKILL);
		}
		usleep(LOOK_MS * 1000);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int
server_stop(TestServer *server)
{
	/* or it would not tidy up, for the sake of that thread */
	if (server->supervisor > 0)
		close(server->supervisor);
	server->supervisor = 0;
	kill(server->pid, SIGTERM);
	return server_wait(server);
}

/* What it printed since it was ready; after its end; the caller's to free. */
char *
server_log(TestServer *server)
{
	size_t		most = (size_t) 1 << 16;
	char	   *log = malloc(most);
	size_t		used = 0;
	ssize_t		n;

	while (used < most - 1 &&
		   (n = read(server->log, log + used, most - 1 - used)) > 0)
		used += n;
	log[used] = '\0';
	return log;
}

/* Does it have this in it? */
void
server_check_log(TestServer *server, const char *text)
{
	char	   *log = server_log(server);

	CHECK(strstr(log, text) != NULL, "no \"%s\" in \"%s\"", text, log);
	free(log);
}

/* Remove the folder; what else is there than the lock should not be. */
void
server_remove(TestServer *server)
{
	char		path[128];

	close(server->log);
	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_LOCK_PATH);
	unlink(path);
	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_SOCKET_PATH);
	CHECK(access(path, F_OK) != 0, "the socket is still there");
	unlink(path);
	CHECK(rmdir(server->folder) == 0, "%s: %s", server->folder,
		  strerror(errno));
}

/* It ends when it is told to, and leaves nothing behind. */
void
server_end(TestServer *server)
{
	CHECK(server_stop(server) == 0, "SIGTERM");
	server_remove(server);
}

/* It does nothing until it is let go, and finds all that came meanwhile. */
void
server_freeze(const TestServer *server)
{
	int			status;

	kill(server->pid, SIGSTOP);
	CHECK(waitpid(server->pid, &status, WUNTRACED) == server->pid &&
		  WIFSTOPPED(status), "SIGSTOP");
}

void
server_thaw(const TestServer *server)
{
	kill(server->pid, SIGCONT);
}

/* Is what runs on GPUs there, and are they emulated? */
bool
server_is_emulated(void)
{
	TestServer	server = server_start(NULL);
	GvStatusReply totals = server_totals(&server);
	bool		is = strstr(totals.device, "emulated") != NULL;

	server_end(&server);
	return is;
}
