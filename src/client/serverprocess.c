/*
 * serverprocess.c
 *		The process gpuvecd, a child of the supervisor: how its program is
 *		found and executed, its log, and its end.
 *
 * gpuvecd is a separate program in a session of its own (setsid), so that
 * PostgreSQL goes on whatever happens to gpuvecd.  gpuvecd ends when the
 * supervisor ends, even if the supervisor is killed.  The supervisor reads
 * gpuvecd's output from a pipe and writes it to the server's log.
 *
 * The program may have been installed with the extension or separately.
 * client/README, "Supervisor", lists the folders in which it is looked for.
 */
#include "postgres.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "miscadmin.h"
#include "port.h"

#include "client/serverprocess.h"
#include "client/servershared.h"
#include "engine/gv_engine.h"

/*
 * How long to wait for gpuvecd's end after each signal, and how often to
 * check.
 */
#define TERM_MS			2000
#define KILL_MS			2000
#define POLL_MS			10

/* Without close_range(), all descriptors below this number are closed. */
#define MAX_DESCRIPTORS 65536

#define PROGRAM			"gpuvecd"

/* Used if the postmaster has no PATH, as under Debian's pg_ctlcluster. */
#define USUAL_PATH		"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"

typedef struct Child
{
	int			pid;			/* 0: not running */
	int			log;			/* read end of its pipe; -1: closed */
	char		line[1024];		/* incomplete line of its output */
	int			length;
} Child;

static Child child = {.log = -1};

int
IvfpqChildPid(void)
{
	return child.pid;
}

/* Returns the read end of gpuvecd's pipe, or -1 if it is closed. */
int
IvfpqChildLog(void)
{
	return child.log;
}

/* Returns whether we may execute the file; if not, errno says why. */
static bool
is_program(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return false;
	if (!S_ISREG(st.st_mode))
	{
		errno = EACCES;
		return false;
	}
	return access(path, X_OK) == 0;
}

/*
 * Sets path to the program in the folder.  Returns whether the program exists.
 */
static bool
is_in(const char *folder, char *path)
{
	join_path_components(path, folder, PROGRAM);
	return is_program(path);
}

/*
 * Looks for the program in the folders of the postmaster's PATH.  Skips
 * relative folders, because they would be in the data directory.
 */
static bool
is_in_search_path(char *path)
{
	const char *next = getenv("PATH");

	if (next == NULL)
		next = USUAL_PATH;
	while (*next != '\0')
	{
		size_t		length = strcspn(next, ":");
		char		folder[MAXPGPATH];

		if (is_absolute_path(next) && length < sizeof(folder))
		{
			strlcpy(folder, next, length + 1);
			if (is_in(folder, path))
				return true;
		}
		next += length + (next[length] == ':');
	}
	return false;
}

/*
 * Writes the path of the program to path [MAXPGPATH].  If there is no program,
 * logs the failure and returns false.  If gpuvec.server_path is set, only that
 * file is tried.
 */
static bool
find_program(char *path)
{
	char		folder[MAXPGPATH];
	Dl_info		library;

	if (ivfpq_server_path[0] != '\0')
	{
		strlcpy(path, ivfpq_server_path, MAXPGPATH);
		if (is_program(path))
			return true;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not execute \"%s\": %m", path),
				 errhint("gpuvec.server_path names it.")));
		return false;
	}

	/* "bin" beside the folder of our library */
	if (dladdr((const void *) &IvfpqChildStart, &library) != 0 &&
		library.dli_fname != NULL && is_absolute_path(library.dli_fname))
	{
		strlcpy(folder, library.dli_fname, sizeof(folder));
		get_parent_directory(folder);
		get_parent_directory(folder);
		join_path_components(folder, folder, "bin");
		if (is_in(folder, path))
			return true;
	}

	/* the folder of "postgres" */
	strlcpy(folder, my_exec_path, sizeof(folder));
	get_parent_directory(folder);
	if (is_in(folder, path) || is_in_search_path(path))
		return true;
	ereport(LOG,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("could not find the program \"%s\"", PROGRAM),
			 errdetail("It is neither in \"bin\" beside the folder of gpuvec's library, nor beside \"postgres\", nor in the server's PATH."),
			 errhint("Install it, as by the package gpuvecd, or name it by gpuvec.server_path; with gpuvec.server = off nobody looks for it.")));
	return false;
}

/*
 * The functions from here to run_program() run between fork and exec, so they
 * do only what a signal handler may do.
 */

static void
reset_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t	none;

	for (int i = 1; i < NSIG; i++)
		(void) sigaction(i, &action, NULL);
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
}

static void
close_descriptors(void)
{
#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3, ~0U, 0) == 0)
		return;
#endif
	for (int fd = 3; fd < MAX_DESCRIPTORS; fd++)
		(void) close(fd);
}

/* Lets the out-of-memory killer choose gpuvecd before the postmaster. */
static void
offer_to_oom(void)
{
	int			fd = open("/proc/self/oom_score_adj", O_WRONLY);

	if (fd >= 0)
	{
		(void) !write(fd, "0", 1);
		(void) close(fd);
	}
}

/*
 * Executes gpuvecd in the child process.  Exits instead if the supervisor,
 * whose PID is `parent`, ended before prctl() took effect, since no signal
 * would end gpuvecd then.
 */
static void
run_program(char *const *argv, int log, int parent)
{
	static const char message[] = "FATAL: gpuvecd could not be executed\n";
	int			null;

	(void) setsid();
#ifdef __linux__
	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != parent)
		_exit(1);
	reset_signals();
	offer_to_oom();
	null = open("/dev/null", O_RDONLY);
	(void) dup2(null, STDIN_FILENO);
	(void) dup2(log, STDOUT_FILENO);
	(void) dup2(log, STDERR_FILENO);
	close_descriptors();
	(void) execv(argv[0], argv);
	(void) !write(STDERR_FILENO, message, sizeof(message) - 1);
	_exit(127);
}

/* Starts gpuvecd.  If that fails, logs the reason and returns false. */
bool
IvfpqChildStart(void)
{
	static const char *const engines[] = {
		[IVFPQ_SERVER_AUTO] = "auto",
#ifdef GV_TEST_BUILD
		[IVFPQ_SERVER_CPU] = "cpu",
#endif
		[IVFPQ_SERVER_CUDA] = "cuda"
	};
	static const char *const matmul[] = {
		[IVFPQ_MATMUL_AUTO] = "auto",
		[IVFPQ_MATMUL_OWN] = "own",
		[IVFPQ_MATMUL_CUBLAS] = "cublas"
	};
	char		path[MAXPGPATH];
	char		memory[32];
	char		replicas[32];
	char		parent[32];
	const char *argv[] = {path, "--data", DataDir,
		"--engine", engines[ivfpq_server], "--memory", memory,
		"--devices", ivfpq_devices, "--replicas", replicas, "--matmul", matmul[ivfpq_matmul],
		"--simd", gv_simd_name(ivfpq_simd),
		"--parent", parent,
	NULL};
	int			ends[2];
	int			pid;

	if (!find_program(path))
		return false;
	snprintf(memory, sizeof(memory), "%d", ivfpq_gpu_memory);
	snprintf(replicas, sizeof(replicas), "%d", ivfpq_replicas);
	snprintf(parent, sizeof(parent), "%d", MyProcPid);
	if (pipe(ends) != 0)
	{
		ereport(LOG, (errmsg("could not create a pipe: %m")));
		return false;
	}
	(void) fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	if (!pg_set_noblock(ends[0]))
		ereport(LOG, (errmsg("could not set a pipe to nonblocking mode: %m")));
	pid = fork();
	if (pid == 0)
		run_program((char *const *) argv, ends[1], MyProcPid);
	(void) close(ends[1]);
	if (pid < 0)
	{
		ereport(LOG, (errmsg("could not fork: %m")));
		(void) close(ends[0]);
		return false;
	}
	child.pid = pid;
	child.log = ends[0];
	child.length = 0;
	return true;
}

static void
log_line(char *line)
{
	static const struct
	{
		const char *prefix;
		int			level;
	}			levels[] = {
		{"LOG:", LOG}, {"WARNING:", WARNING}, {"FATAL:", LOG},
		{"DEBUG:", DEBUG1}
	};
	int			level = LOG;

	if (line[0] == '\0')
		return;
	for (int i = 0; i < (int) lengthof(levels); i++)
	{
		size_t		length = strlen(levels[i].prefix);

		if (strncmp(line, levels[i].prefix, length) == 0)
		{
			level = levels[i].level;
			line += length;
			break;
		}
	}
	ereport(level, (errmsg_internal("gpuvecd: %s", line + strspn(line, " "))));
}

/*
 * Logs the complete lines in the buffer.  A line longer than the buffer is
 * split.
 */
static void
log_lines(void)
{
	char	   *start = child.line;
	char	   *end;

	child.line[child.length] = '\0';
	while ((end = strchr(start, '\n')) != NULL)
	{
		*end = '\0';
		log_line(start);
		start = end + 1;
	}
	child.length -= start - child.line;
	memmove(child.line, start, child.length + 1);
	if (child.length == sizeof(child.line) - 1)
	{
		log_line(child.line);
		child.length = 0;
	}
}

/* Logs the output of gpuvecd that has come.  Returns whether any has come. */
bool
IvfpqChildReadLog(void)
{
	bool		any = false;

	while (child.log >= 0)
	{
		int			left = (int) sizeof(child.line) - 1 - child.length;
		ssize_t		got = read(child.log, child.line + child.length, left);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (got <= 0)
		{
			(void) close(child.log);
			child.log = -1;
			break;
		}
		/* a NUL would hide the rest */
		for (ssize_t i = 0; i < got; i++)
			if (child.line[child.length + i] == '\0')
				child.line[child.length + i] = '?';
		child.length += got;
		log_lines();
		any = true;
	}
	return any;
}

static void
forget_child(void)
{
	if (child.log >= 0)
		(void) close(child.log);
	child.log = -1;
	child.pid = 0;
}

/* Returns whether gpuvecd has ended, with *status as set by waitpid(). */
bool
IvfpqChildEnded(int *status)
{
	int			pid;

	if (child.pid == 0)
		return false;
	pid = waitpid(child.pid, status, WNOHANG);
	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	if (pid < 0)
		*status = 0;			/* somebody else has reaped the process */
	(void) IvfpqChildReadLog();
	forget_child();
	return true;
}

void
IvfpqChildLogEnd(int status)
{
	if (WIFSIGNALED(status))
		ereport(LOG,
				(errmsg("gpuvecd was terminated by signal %d: %s",
						WTERMSIG(status), pg_strsignal(WTERMSIG(status)))));
	else
		ereport(LOG,
				(errmsg("gpuvecd exited with exit code %d",
						WEXITSTATUS(status))));
}

/*
 * Waits up to `ms` milliseconds for gpuvecd's end.  Returns whether it has
 * ended.
 */
static bool
wait_for_end(int ms, int *status)
{
	int64		deadline = IvfpqNow() + (int64) ms * 1000;

	while (!IvfpqChildEnded(status))
	{
		if (IvfpqNow() > deadline)
			return false;
		(void) IvfpqChildReadLog();
		pg_usleep(POLL_MS * 1000L);
	}
	return true;
}

/* Makes gpuvecd end, even if it is stopped.  Safe in a signal handler. */
void
IvfpqChildTerminate(void)
{
	if (child.pid != 0)
	{
		(void) kill(child.pid, SIGTERM);
		(void) kill(child.pid, SIGCONT);
	}
}

/*
 * Ends gpuvecd, first by SIGTERM, then by SIGKILL.  If the process does not
 * end even then, because a driver blocks it, we leave it alone.
 */
void
IvfpqChildStop(int *status)
{
	if (child.pid == 0)
		return;
	IvfpqChildTerminate();
	if (wait_for_end(TERM_MS, status))
		return;
	(void) kill(child.pid, SIGKILL);
	if (wait_for_end(KILL_MS, status))
		return;
	ereport(LOG, (errmsg("gpuvecd (PID %d) does not end", child.pid)));
	forget_child();
	*status = 0;
}
