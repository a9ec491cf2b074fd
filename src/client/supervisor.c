/*
 * supervisor.c
 *		The background worker that runs gpuvecd, or only checks an external
 *		one, and starts loaders.
 *
 * The worker does not connect to a database and does not read pages.  It never
 * waits for gpuvecd longer than PING_US at a time.  An error here ends the
 * worker and the gpuvecd that it started.  The postmaster starts the worker
 * again.
 *
 * The worker starts a loader for each database in which mirrors are requested,
 * but at most IVFPQ_MAX_LOADERS at a time.  It also makes gpuvecd drop mirrors
 * that cannot be searched any more, because their indexes were dropped or have
 * new files.
 *
 * gpuvecd is a separate program in a session of its own (setsid), so that
 * PostgreSQL goes on whatever happens to gpuvecd.  gpuvecd ends when the
 * supervisor ends, even if the supervisor is killed.  The supervisor reads
 * gpuvecd's output from a pipe and writes it to the server's log.  The program
 * may have been installed with the extension or separately: client/README,
 * "Supervisor", lists the folders in which it is looked for.
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

#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "engine/gv_engine.h"
#include "pgcompat.h"

/* Minimum interval between two starts of loaders for the same database. */
#define PAUSE_US			200000

/* Pause after no background worker was free for a loader. */
#define RETRY_US			5000000

#define SECOND				INT64CONST(1000000)

/* Time that gpuvecd may take to answer the supervisor. */
#define PING_US				SECOND

/*
 * Interval between status requests: while gpuvecd works, while it does not,
 * and for NEW_US after it was started.
 */
#define PING_WELL_US		(10 * SECOND)
#define PING_ILL_US			SECOND
#define PING_NEW_US			(SECOND / 10)
#define NEW_US				(10 * SECOND)

/* gpuvecd is replaced if it does not answer, or come up, within this time. */
#define REPLACE_US			(30 * SECOND)
#define REPLACE_NEW_US		(120 * SECOND)

/*
 * After a run that was shorter than QUICK_US, or in which gpuvecd never came
 * up, the next start waits for 1 s, 2 s, 4 s, ... MAX_BACKOFF_US.
 */
#define QUICK_US			(10 * SECOND)
#define MAX_BACKOFF			6	/* 2^6 s is more than MAX_BACKOFF_US */
#define MAX_BACKOFF_US		(60 * SECOND)

/*
 * gpuvecd is replaced after this many relapses if it finished no batch
 * meanwhile.  A relapse means that gpuvecd answered the supervisor, which
 * ended a suspension, but soon afterwards did not answer sessions again.
 */
#define MAX_RELAPSES		5

/* Exit code with which gpuvecd reports that it has found no device. */
#define EXIT_NO_DEVICE		3

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

extern PGDLLEXPORT void gpuvec_supervisor_main(Datum arg);

/* A slot for a loader.  Describes the last loader even after it has ended. */
typedef struct Slot
{
	Oid			database;		/* database that it loads mirrors of */
	int64		launched;		/* when it was started */
	BackgroundWorkerHandle *handle; /* NULL: it has ended */
} Slot;

typedef struct Supervisor
{
	IvfpqServerInfo info;
	bool		give_up;		/* there is no device: never start gpuvecd */
	int64		start_at;		/* when to start gpuvecd next */
	int64		started;		/* when gpuvecd was started or, if it is
								 * external, when we began to look for it */
	int			failures;		/* consecutive failed runs of gpuvecd */
	int64		ping_at;		/* when to ask gpuvecd for its status */
	int64		answered;		/* when gpuvecd last answered or was started */
	bool		suspended;		/* sessions are told not to use gpuvecd */
	int			relapses;		/* consecutive relapses, see MAX_RELAPSES */
	int64		resumed;		/* when the last suspension ended */
	bool		check_requested;	/* a session waited for server_timeout */
	int64		batches;		/* that gpuvecd had finished at its last
								 * status */
	int64		batches_then;	/* `batches` before the first relapse; -1 =
								 * not known */
	char		told[200];		/* IvfpqServerInfo.problem logged last */
	MemoryContext scratch;		/* reset after every round */
} Supervisor;

/* The process gpuvecd, unless it is external. */
typedef struct Child
{
	int			pid;			/* 0: not running */
	int			log;			/* read end of its pipe; -1: closed */
	char		line[1024];		/* incomplete line of its output */
	int			length;
} Child;

static Supervisor self;
static Child child = {.log = -1};
static Slot slots[IVFPQ_MAX_LOADERS];

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
				 errhint("Check the setting \"gpuvec.server_path\".")));
		return false;
	}

	/* "bin" beside the folder of our library */
	if (dladdr((const void *) &is_program, &library) != 0 &&
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
			 errmsg("could not find program \"%s\"", PROGRAM),
			 errdetail("Searched the \"bin\" directory of the library, the directory of \"postgres\", and PATH."),
			 errhint("Install gpuvecd, or set \"gpuvec.server_path\".  If you do not need gpuvecd, set \"gpuvec.server\" to \"off\".")));
	return false;
}

/*
 * Executes gpuvecd in the child process.  Exits instead if the supervisor,
 * whose PID is `parent`, ended before prctl() took effect, since no signal
 * would end gpuvecd then.  Between fork and exec, does only what a signal
 * handler may do.
 */
static void
run_program(char *const *argv, int log, int parent)
{
	static const char message[] = "FATAL: could not execute gpuvecd\n";
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t	none;
	int			file;

	(void) setsid();
#ifdef __linux__
	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != parent)
		_exit(1);
	for (int i = 1; i < NSIG; i++)
		(void) sigaction(i, &action, NULL);
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);

	/* let the out-of-memory killer choose gpuvecd before the postmaster */
	file = open("/proc/self/oom_score_adj", O_WRONLY);
	if (file >= 0)
	{
		(void) !write(file, "0", 1);
		(void) close(file);
	}
	file = open("/dev/null", O_RDONLY);
	(void) dup2(file, STDIN_FILENO);
	(void) dup2(log, STDOUT_FILENO);
	(void) dup2(log, STDERR_FILENO);
#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3, ~0U, 0) != 0)
#endif
		for (int fd = 3; fd < MAX_DESCRIPTORS; fd++)
			(void) close(fd);
	(void) execv(argv[0], argv);
	(void) !write(STDERR_FILENO, message, sizeof(message) - 1);
	_exit(127);
}

/* Starts gpuvecd.  If that fails, logs the reason and returns false. */
static bool
start_child(void)
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
		ereport(LOG, (errmsg("could not create pipe: %m")));
		return false;
	}
	(void) fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	if (!pg_set_noblock(ends[0]))
		ereport(LOG, (errmsg("could not set pipe to nonblocking mode: %m")));
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
static bool
read_log(void)
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
static bool
child_ended(int *status)
{
	int			pid;

	if (child.pid == 0)
		return false;
	pid = waitpid(child.pid, status, WNOHANG);
	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	if (pid < 0)
		*status = 0;			/* somebody else has reaped the process */
	(void) read_log();
	forget_child();
	return true;
}

/*
 * Waits up to `ms` milliseconds for gpuvecd's end.  Returns whether it has
 * ended.
 */
static bool
wait_for_end(int ms, int *status)
{
	int64		deadline = IvfpqNow() + (int64) ms * 1000;

	while (!child_ended(status))
	{
		if (IvfpqNow() > deadline)
			return false;
		(void) read_log();
		pg_usleep(POLL_MS * 1000L);
	}
	return true;
}

/* Makes gpuvecd end, even if it is stopped.  Safe in a signal handler. */
static void
terminate_child(void)
{
	if (child.pid != 0)
	{
		(void) kill(child.pid, SIGTERM);
		(void) kill(child.pid, SIGCONT);
	}
}

/*
 * Ends gpuvecd, first by SIGTERM, then by SIGKILL, and returns its status as
 * set by waitpid().  If the process does not end even then, because a driver
 * blocks it, we leave it alone.
 */
static int
stop_child(void)
{
	int			status = 0;

	if (child.pid == 0)
		return 0;
	terminate_child();
	if (wait_for_end(TERM_MS, &status))
		return status;
	(void) kill(child.pid, SIGKILL);
	if (wait_for_end(KILL_MS, &status))
		return status;
	ereport(LOG, (errmsg("gpuvecd (PID %d) did not exit", child.pid)));
	forget_child();
	return 0;
}

static void
set_state(IvfpqServerState state)
{
	pg_atomic_write_u32(&ivfpq_shared->state, state);
}

/* Records that gpuvecd has ended or cannot be reached. */
static void
forget_server(void)
{
	set_state(IVFPQ_STATE_DOWN);
	pg_atomic_write_u64(&ivfpq_shared->instance, 0);
	pg_atomic_write_u32(&ivfpq_shared->suspended, 0);
	self.suspended = false;
	self.check_requested = false;
	self.info.pid = 0;
	self.info.used = 0;
	IvfpqSharedSetServer(&self.info);
	IvfpqDisconnect();
}

static void
start_server(int64 now)
{
	if (!start_child())
	{
		set_state(IVFPQ_STATE_DOWN);
		self.start_at = now + MAX_BACKOFF_US;
		return;
	}
	if (self.info.started != 0)
		self.info.restarts++;
	self.info.started = GetCurrentTimestamp();
	self.info.pid = child.pid;
	IvfpqSharedSetServer(&self.info);
	set_state(IVFPQ_STATE_STARTING);
	self.started = self.answered = now;
	self.ping_at = now + PING_NEW_US;
	self.relapses = 0;
	self.batches = 0;
	ereport(LOG, (errmsg("started gpuvecd (PID %d)", self.info.pid)));
}

/*
 * Records that an external gpuvecd cannot be reached, or that its connection
 * has ended.  We keep trying to connect, at first very often, since gpuvecd
 * may be starting.
 */
static void
lose_server(const char *problem, bool is_others)
{
	int64		now = IvfpqNow();
	bool		was_up = IvfpqSharedState() == IVFPQ_STATE_UP;

	/* do not log a failure at first, since gpuvecd may be restarting */
	if (was_up ||
		(now - self.started > SECOND && strcmp(self.told, problem) != 0))
	{
		strlcpy(self.told, problem, sizeof(self.told));
		ereport(LOG,
				(was_up ?
				 errmsg("lost connection to gpuvecd in \"%s\": %s",
						ivfpq_server_directory, problem) :
				 errmsg("could not connect to gpuvecd in \"%s\": %s",
						ivfpq_server_directory, problem),
				 is_others ?
				 errhint("Each cluster requires a separate gpuvecd and directory.") :
				 0));
	}
	if (was_up)
		self.started = now;
	strlcpy(self.info.problem, problem, sizeof(self.info.problem));
	self.info.is_others = is_others;
	forget_server();
	self.answered = now;
	self.ping_at = now + (now < self.started + NEW_US ? PING_NEW_US :
						  PING_ILL_US);
}

/* Returns whether the gpuvecd that answered last had a device. */
static bool
has_seen_device(void)
{
	return strcmp(self.info.engine, "cuda") == 0;
}

/*
 * Records how gpuvecd ended, and decides when to start it again.  If gpuvecd
 * finds no device but had one before, it is started again, since the device
 * may return.
 */
static void
note_end(int status)
{
	int64		now = IvfpqNow();
	int64		pause = 0;
	bool		was_up = IvfpqSharedState() == IVFPQ_STATE_UP;

	forget_server();
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_DEVICE)
	{
		pg_atomic_write_u32(&ivfpq_shared->has_device, 0);
		if (ivfpq_server == IVFPQ_SERVER_AUTO && !has_seen_device())
		{
			set_state(IVFPQ_STATE_NO_DEVICE);
			self.give_up = true;
			ereport(LOG,
					(errmsg("found no GPU, so gpuvecd is not used"),
					 errhint("To disable the search for a GPU, set \"gpuvec.server\" to \"off\".")));
			return;
		}
	}
	if (WIFSIGNALED(status))
		ereport(LOG,
				(errmsg("gpuvecd was terminated by signal %d: %s",
						WTERMSIG(status), pg_strsignal(WTERMSIG(status)))));
	else
		ereport(LOG,
				(errmsg("gpuvecd exited with exit code %d",
						WEXITSTATUS(status))));
	if (!was_up || now - self.started < QUICK_US)
	{
		pause = Min(SECOND << Min(self.failures, MAX_BACKOFF),
					MAX_BACKOFF_US);
		self.failures++;
	}
	else
		self.failures = 0;
	self.start_at = now + pause;
}

/* Ends gpuvecd, which does not work any more, unless it is external. */
static void
replace_server(const char *why)
{
	if (IvfpqServerIsExternal())
		return;
	ereport(LOG, (errmsg("restarting gpuvecd: %s", why)));
	note_end(stop_child());
}

/* Returns whether the file of a mirror's index is missing or empty. */
static bool
is_orphan(const GvMirrorKey *key)
{
	IvfpqStorage storage = {key->database, key->tablespace, key->relation};
	char		path[MAXPGPATH];
	struct stat st;

	IvfpqStoragePath(storage, path, sizeof(path));
	if (stat(path, &st) == 0)
		return st.st_size == 0;
	return errno == ENOENT || errno == ENOTDIR;
}

/* Drops mirrors whose indexes were dropped or have new files. */
static void
drop_orphans(const GvMirrorStatus *mirrors, int nmirrors)
{
	for (int i = 0; i < nmirrors; i++)
	{
		GvKeyRequest request = {mirrors[i].key};
		IvfpqChannel *channel;

		if (!is_orphan(&mirrors[i].key))
			continue;
		channel = IvfpqConnect(GV_ROLE_SUPERVISOR, PING_US);
		if (!IvfpqChannelExchange(channel, GV_MSG_DROP, &request,
								  sizeof(request), NULL, 0, 0))
			return;
		IvfpqMirrorRequestForget(&mirrors[i].key);
	}
}

/* Records that a new gpuvecd answers. */
static void
meet_server(const GvWelcome *welcome)
{
	if (IvfpqServerIsExternal() && self.info.instance != welcome->instance)
	{
		if (self.info.instance != 0)
			self.info.restarts++;
		self.info.started = GetCurrentTimestamp();
		self.batches = 0;
		self.relapses = 0;
	}
	self.info.instance = welcome->instance;
	self.info.problem[0] = self.told[0] = '\0';
	self.info.pid = welcome->pid;
	strlcpy(self.info.engine, welcome->engine, sizeof(self.info.engine));
	pg_atomic_write_u32(&ivfpq_shared->has_device, has_seen_device());
	pg_atomic_write_u64(&ivfpq_shared->instance, welcome->instance);
	IvfpqMirrorRequestsRestart();
	set_state(IVFPQ_STATE_UP);
	ereport(LOG,
			(errmsg("gpuvecd is ready with engine \"%s\"", self.info.engine)));
}

/* Asks gpuvecd for its status and mirrors, and acts on both. */
static IvfpqOutcome
ask_status(IvfpqChannel *channel, GvStatusReply *status)
{
	GvMirrorStatus *mirrors;
	TimestampTz then = GetCurrentTimestamp();
	IvfpqOutcome served = IvfpqFetchStatus(channel, status, &mirrors);

	if (served != IVFPQ_ANSWERED)
		return served;
	strlcpy(self.info.device, status->device, sizeof(self.info.device));
	self.info.memory = status->memory;
	self.info.most = status->most;
	self.info.used = status->used;
	if (pg_atomic_read_u64(&ivfpq_shared->instance) != status->instance)
		meet_server(&channel->welcome);
	IvfpqSharedSetServer(&self.info);
	IvfpqMirrorRequestsPrune(mirrors, status->nmirrors, then);
	drop_orphans(mirrors, status->nmirrors);
	return IVFPQ_ANSWERED;
}

/* Tells sessions not to use gpuvecd, and logs the reason. */
static void
suspend(const char *why)
{
	if (self.suspended)
		return;
	self.suspended = true;
	self.relapses = 0;
	self.batches_then = self.batches;
	pg_atomic_write_u32(&ivfpq_shared->suspended, 1);
	ereport(LOG, (errmsg("gpuvecd is not responding: %s", why)));
}

/*
 * Returns whether a session has waited in vain and gpuvecd's oldest batch is
 * older than gpuvec.server_timeout.  gpuvecd has answered us nevertheless,
 * because a separate thread serves us.  If, in addition, no batch has ended
 * since the last status, tells sessions not to use gpuvecd until these batches
 * have ended.  gpuvecd ends by itself if its device never finishes them.
 */
static bool
is_stuck(const GvStatusReply *status, int64 now)
{
	bool		waits = (self.check_requested || self.suspended) &&
	status->oldest_ms >= ivfpq_server_timeout;
	bool		moves = status->batches != self.batches;

	self.batches = status->batches;
	if (!waits)
		return false;
	self.answered = now;
	self.ping_at = now + PING_ILL_US;
	if (!moves)
		suspend("searches do not finish");
	return true;
}

/* Records that gpuvecd answers, and lets sessions use it again. */
static void
note_answer(int64 now)
{
	self.answered = now;
	self.ping_at = now + PING_WELL_US;
	self.check_requested = false;
	if (!self.suspended)
		return;
	self.suspended = false;
	self.resumed = now;
	pg_atomic_write_u32(&ivfpq_shared->suspended, 0);
	if (self.relapses == 0)
		ereport(LOG, (errmsg("connection to gpuvecd restored")));
}

/* Records that gpuvecd speaks another version of the protocol. */
static void
note_mismatch(int64 now)
{
	if (IvfpqSharedState() != IVFPQ_STATE_MISMATCH)
		ereport(LOG,
				(errmsg("gpuvecd has an incompatible protocol version"),
				 IvfpqServerIsExternal() ?
				 errhint("Start gpuvecd of the version of gpuvec that the server has loaded.") :
				 errhint("Restart the server after an upgrade of gpuvec.")));
	self.info.problem[0] = '\0';
	if (IvfpqServerIsExternal())
		forget_server();
	set_state(IVFPQ_STATE_MISMATCH);
	self.answered = now;
	self.ping_at = now + (IvfpqServerIsExternal() ? PING_ILL_US :
						  PING_WELL_US);
}

static void
note_timeout(const IvfpqChannel *channel, int64 now)
{
	bool		is_new = IvfpqSharedState() != IVFPQ_STATE_UP;

	if (IvfpqServerIsExternal() &&
		(is_new || channel->served != IVFPQ_TIMED_OUT))
	{
		lose_server(channel->reason,
					channel->refusal == GV_REFUSED_INCARNATION);
		return;
	}
	self.ping_at = now + (is_new && now < self.started + NEW_US ?
						  PING_NEW_US : PING_ILL_US);
	if (!is_new)
		suspend(channel->reason);
	if (now - self.answered > (is_new ? REPLACE_NEW_US : REPLACE_US))
		replace_server("no response");
}

/* Asks gpuvecd for its status and acts on the result. */
static void
ping_server(void)
{
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_SUPERVISOR, PING_US);
	GvStatusReply status;
	IvfpqOutcome served = ask_status(channel, &status);

	if (ShutdownRequestPending)
		return;
	if (served == IVFPQ_ANSWERED)
	{
		if (!is_stuck(&status, IvfpqNow()))
			note_answer(IvfpqNow());
		/* dropping mirrors may have ended the connection */
		if (IvfpqServerIsExternal() && IvfpqOwnSocket() == PGINVALID_SOCKET)
			self.ping_at = IvfpqNow();
	}
	else if (channel->refusal == GV_REFUSED_VERSION)
		note_mismatch(IvfpqNow());
	else if (channel->refusal == GV_REFUSED_FULL &&
			 (!IvfpqServerIsExternal() ||
			  IvfpqSharedState() == IVFPQ_STATE_UP))
	{
		/* gpuvecd is alive, but we do not know whether it finishes batches */
		note_answer(IvfpqNow());
		self.ping_at = self.answered + PING_ILL_US;
		self.batches_then = -1;
	}
	else
		note_timeout(channel, IvfpqNow());
}

/*
 * Acts on reports of sessions that waited in vain.  After the first report, we
 * ask gpuvecd for its status at once.  After the second report, all sessions
 * search by themselves (IvfpqReportTimeout) until gpuvecd has answered us.  We
 * ask for that answer at once, too, but after a pause if this is a relapse,
 * because then gpuvecd answers us but not the sessions.
 */
static void
process_reports(int64 now)
{
	bool		check_requested =
	pg_atomic_exchange_u32(&ivfpq_shared->check_requested, 0) != 0;

	if (self.suspended)
		return;
	if (check_requested)
	{
		self.check_requested = true;
		self.ping_at = now;
	}
	if (pg_atomic_read_u32(&ivfpq_shared->suspended) == 0)
		return;
	self.suspended = true;
	if (self.resumed != 0 && now - self.resumed < PING_WELL_US)
		self.relapses++;
	else
		self.relapses = 0;
	if (self.relapses == 0)
	{
		self.batches_then = self.batches;
		ereport(LOG,
				(errmsg("gpuvecd is not responding")));
	}
	if (self.relapses >= MAX_RELAPSES && self.batches == self.batches_then &&
		!IvfpqServerIsExternal())
		replace_server("no response to sessions");
	else
		self.ping_at = self.relapses == 0 ? now :
			now + (SECOND << Min(self.relapses - 1, MAX_RELAPSES));
}

/*
 * Frees the slots of loaders that have ended.  Returns whether a loader has
 * ended.
 */
static bool
reap(void)
{
	bool		any = false;

	for (int i = 0; i < IVFPQ_MAX_LOADERS; i++)
	{
		pid_t		pid;

		if (slots[i].handle == NULL ||
			GetBackgroundWorkerPid(slots[i].handle, &pid) != BGWH_STOPPED)
			continue;
		pfree(slots[i].handle);
		slots[i].handle = NULL;
		any = true;
		if (pg_atomic_read_u32(&ivfpq_shared->loader_connected[i]) == 0)
		{
			/*
			 * Most likely the database was dropped.  If it was not, sessions
			 * that need a mirror will request the mirror again.
			 */
			ereport(LOG,
					(errmsg("loader of mirrors could not connect to database %u",
							slots[i].database)));
			IvfpqMirrorRequestForgetDatabase(slots[i].database);
		}
	}
	return any;
}

/*
 * Starts a loader, which gets the number of its slot as its argument, and the
 * OID of its database in bgw_extra.  Returns false if no background worker is
 * free.
 */
static bool
launch(Slot *slot, Oid database, int64 now)
{
	static bool complained = false;
	int			number = (int) (slot - slots);
	BackgroundWorker worker = {
		.bgw_type = "gpuvec loader",
		.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_ConsistentState,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = "gpuvec",
		.bgw_function_name = "gpuvec_loader_main",
		.bgw_main_arg = Int32GetDatum(number),
		.bgw_notify_pid = MyProcPid
	};
	MemoryContext old;
	bool		registered;

	pg_atomic_write_u32(&ivfpq_shared->loader_connected[number], 0);
	snprintf(worker.bgw_name, BGW_MAXLEN, "gpuvec loader of database %u",
			 database);
	memcpy(worker.bgw_extra, &database, sizeof(Oid));

	/* the handle must outlive this round */
	old = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &slot->handle);
	MemoryContextSwitchTo(old);
	if (!registered)
	{
		slot->handle = NULL;
		if (!complained)
			ereport(LOG,
					(errmsg("could not start background worker to load mirrors"),
					 errhint("Increase \"max_worker_processes\".")));
		complained = true;
		return false;
	}
	complained = false;
	slot->database = database;
	slot->launched = now;
	return true;
}

/*
 * Starts the loaders that are needed, for the databases that have waited
 * longest.  Returns the time of the next call, unless a mirror is requested or
 * a loader ends before that time.  Sets *ended to whether a loader has ended
 * since the last call.
 */
static int64
launch_loaders(bool *ended)
{
	int64		now = IvfpqNow();
	int64		when = PG_INT64_MAX;
	TimestampTz next = DT_NOEND;
	Oid			database;
	Slot	   *free_slot;

	*ended = reap();
	for (;;)
	{
		Oid			busy[IVFPQ_MAX_LOADERS] = {InvalidOid};

		free_slot = NULL;
		for (int i = 0; i < IVFPQ_MAX_LOADERS; i++)
		{
			int64		again_at = slots[i].launched + PAUSE_US;

			if (slots[i].handle != NULL || now < again_at)
				busy[i] = slots[i].database;
			if (slots[i].handle != NULL)
				continue;
			if (now < again_at)
				when = Min(when, again_at);
			free_slot = &slots[i];
		}
		database = IvfpqMirrorRequestsDue(busy, &next);
		if (!OidIsValid(database) || free_slot == NULL)
			break;
		if (!launch(free_slot, database, now))
		{
			when = Min(when, now + RETRY_US);
			break;
		}
	}
	pg_atomic_write_u32(&ivfpq_shared->loaders_awaited,
						OidIsValid(database) && free_slot == NULL);
	if (next != DT_NOEND)
		when = Min(when, now + (next - GetCurrentTimestamp()));
	return when;
}

/* Exit callback. gpuvecd ends with the supervisor. */
static void
end_server(int code, Datum arg)
{
	LWLockReleaseAll();
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->supervisor = NULL;
	LWLockRelease(ivfpq_shared->lock);
	set_state(IVFPQ_STATE_DOWN);
	pg_atomic_write_u64(&ivfpq_shared->instance, 0);
	(void) stop_child();
}

/* Handles SIGQUIT, after an immediate shutdown or a crash of a process. */
static void
crash_exit(SIGNAL_ARGS)
{
	terminate_child();
	_exit(2);
}

/* Does everything that is due.  Returns the time of the next call. */
static int64
do_what_is_due(void)
{
	int64		now = IvfpqNow();
	int64		next = now + PING_WELL_US;
	int			status;
	bool		ended;

	if (!IvfpqServerIsExternal())
	{
		if (child_ended(&status))
			note_end(status);
		if (child.pid == 0 && !self.give_up && now >= self.start_at)
			start_server(now);
	}
	if (IvfpqServerIsExternal() || child.pid != 0)
	{
		process_reports(now);
		if (now >= self.ping_at)
		{
			ping_server();
			/* ping_server() may have reset the latch while it waited */
			SetLatch(MyLatch);
		}
	}
	if (IvfpqSharedState() == IVFPQ_STATE_UP && !self.suspended)
	{
		next = Min(next, launch_loaders(&ended));

		/*
		 * Ask for the status soon, to see new mirrors and drop orphans.  Do
		 * not ask at once, because the loader may have ended for a DROP
		 * DATABASE that has not removed the files yet.
		 */
		if (ended)
			self.ping_at = Min(self.ping_at, now + SECOND);
	}
	if (IvfpqServerIsExternal())
		next = Min(next, self.ping_at);
	else if (child.pid != 0)
		next = Min(next, child.log < 0 ? now + SECOND : self.ping_at);
	else if (!self.give_up)
		next = Min(next, self.start_at);
	return next;
}

/*
 * Sleeps until `when`, or until the latch is set, gpuvecd prints something, or
 * the connection to an external gpuvecd ends.
 */
static void
sleep_until(int64 when)
{
	int			log = IvfpqServerIsExternal() ? IvfpqOwnSocket() :
	child.log;
	int64		ms = Max((when - IvfpqNow() + 999) / 1000, 0);
	int			events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
	int			happened;

	if (log >= 0)
		events |= WL_SOCKET_READABLE;
	happened = WaitLatchOrSocket(MyLatch, events,
								 log >= 0 ? log : PGINVALID_SOCKET,
								 (long) ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		/* with the new settings gpuvecd may be able to start */
		self.start_at = 0;
	}
	if (IvfpqServerIsExternal())
	{
		/* between requests, the socket is readable if the connection ended */
		if (happened & WL_SOCKET_READABLE)
			lose_server("the connection was lost", false);
		return;
	}
	/* output of a gpuvecd that is starting may mean that it is ready */
	if ((happened & WL_SOCKET_READABLE) && read_log() &&
		IvfpqSharedState() == IVFPQ_STATE_STARTING)
		self.ping_at = IvfpqNow();
	/* the pipe closes a moment before waitpid() finds the process ended */
	if (log >= 0 && child.log < 0)
		pg_usleep(1000);
}

void
gpuvec_supervisor_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGUSR1, procsignal_sigusr1_handler);
	pqsignal(SIGQUIT, crash_exit);
	BackgroundWorkerUnblockSignals();

	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->supervisor = MyLatch;
	self.info = ivfpq_shared->server;
	LWLockRelease(ivfpq_shared->lock);
	self.started = IvfpqNow();
	before_shmem_exit(end_server, (Datum) 0);
	self.scratch = AllocSetContextCreate(TopMemoryContext, "gpuvec supervisor",
										 ALLOCSET_DEFAULT_SIZES);
	while (!ShutdownRequestPending)
	{
		MemoryContext old = MemoryContextSwitchTo(self.scratch);
		int64		when = do_what_is_due();

		MemoryContextSwitchTo(old);
		MemoryContextReset(self.scratch);
		if (!ShutdownRequestPending)
			sleep_until(when);
	}

	/* after a status of 0 the postmaster would not restart us */
	proc_exit(1);
}
