/*
 * socketdir.c
 *		The incarnation of the cluster that we serve, and how we restart for
 *		the next one.
 *
 * A cluster's shared memory has a random number, its incarnation, which each
 * start and each recovery from a crash choose again.  Then pages may lose
 * postings that mirrors have, and other postings may take their positions
 * under the same numbers.  So this process serves one incarnation: that of the
 * supervisor that came first.  A client of another incarnation is refused.
 * When a supervisor of another incarnation comes, and our supervisor and its
 * sessions have gone, the program is executed again.  No mirror, message,
 * connection or thread of the old incarnation survives that.
 */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "server/server.h"

#define CLOSE_ON_EXEC	(1U << 2)	/* of close_range() */
#define MAX_DESCRIPTORS 65536	/* open ones, where there is no such call */
#define PASSED_ON_US	10000
#define ORPHANED_NS		UINT64_C(30000000000)	/* sessions without supervisor */

static struct
{
	pthread_mutex_t lock;
	uint64_t	number;			/* 0: nobody's yet */
	GvConnection *supervisors;	/* of that incarnation: one, or one after
								 * another */
	uint64_t	refused;		/* another one, of which the log knows */
	uint64_t	orphaned_ns;	/* since when sessions are known to be without
								 * a supervisor; 0: they are not */
	bool		over;			/* we are to restart */
}			incarnation = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* In gv_restart(). */
static volatile sig_atomic_t restarting;

/*
 * Is a supervisor at the other end of one of them, or has it at least not
 * gone?
 */
static bool
is_supervised(void)
{
	const GvConnection *connection;

	for (connection = incarnation.supervisors; connection != NULL;
		 connection = connection->next_supervisor)
		if (!gv_connection_is_gone(connection))
			return true;
	return false;
}

/*
 * Are sessions of ours there, whose supervisor will be started again?  One
 * that has none for long is no proof: what a process left behind may hold a
 * session's connection.
 */
static bool
is_used(void)
{
	uint64_t	now = gv_now_ns();

	if (!gv_loop_has_sessions())
		return false;
	if (incarnation.orphaned_ns == 0)
		incarnation.orphaned_ns = now;
	return now - incarnation.orphaned_ns < ORPHANED_NS;
}

/*
 * A supervisor of another incarnation has come: refuses it, or has us restart.
 */
static void
meet_other(GvConnection *connection, uint64_t other)
{
	if (!is_supervised() && !is_used())
	{
		gv_log("LOG", "the cluster has crashed, or started again: gpuvecd "
			   "begins anew");
		incarnation.over = true;
		/* no answer; it connects again */
		connection->ending = true;
		return;
	}
	if (incarnation.refused != other)
		gv_log("WARNING", "another cluster was refused: each one needs a "
			   "gpuvecd and a folder of its own");
	incarnation.refused = other;
	gv_refuse(connection, GV_REFUSED_INCARNATION, "it serves another cluster");
}

/*
 * May a client that says this come in?  If not it has been refused, or is told
 * nothing because we restart.  In the loop's thread.
 */
bool
gv_incarnation_admits(GvConnection *connection, const GvHello *hello)
{
	bool		admitted = true;

	pthread_mutex_lock(&incarnation.lock);
	if (incarnation.number == 0 && hello->role == GV_ROLE_SUPERVISOR)
	{
		incarnation.number = hello->incarnation;
		gv_folder_note_incarnation(incarnation.number);
	}
	if (incarnation.number != hello->incarnation)
	{
		admitted = false;
		if (hello->role == GV_ROLE_SUPERVISOR)
			meet_other(connection, hello->incarnation);
		else
			gv_refuse(connection, GV_REFUSED_INCARNATION,
					  incarnation.number == 0 ?
					  "no supervisor has come yet" :
					  "it serves another cluster, or another life of it");
	}
	pthread_mutex_unlock(&incarnation.lock);
	return admitted;
}

/*
 * The supervisor is there, on this connection, which is not counted with those
 * of clients.  An earlier one of the same incarnation may not have gone yet.
 */
void
gv_incarnation_supervised(GvConnection *connection)
{
	gv_count(connections, -1);
	pthread_mutex_lock(&incarnation.lock);
	connection->next_supervisor = incarnation.supervisors;
	incarnation.supervisors = connection;
	incarnation.orphaned_ns = 0;
	pthread_mutex_unlock(&incarnation.lock);
}

/* It has gone; its connection is still open here. */
void
gv_incarnation_unsupervised(GvConnection *connection)
{
	GvConnection **at = &incarnation.supervisors;

	pthread_mutex_lock(&incarnation.lock);
	while (*at != NULL && *at != connection)
		at = &(*at)->next_supervisor;
	if (*at != NULL)
		*at = connection->next_supervisor;
	pthread_mutex_unlock(&incarnation.lock);
}

/* Returns whether we are to restart. */
bool
gv_incarnation_is_over(void)
{
	return incarnation.over;
}

/*
 * In a handler: another thread, such as a driver's, may be gone before it has
 * done anything, since we restart: it passes the signal on to the first
 * thread, where it waits for the program that comes.  False: this is that one.
 */
bool
gv_restart_pass_on(int signal)
{
	pid_t		process = getpid();

	return syscall(SYS_gettid) != process &&
		syscall(SYS_tgkill, process, process, signal) == 0;
}

static void
end_at_once(int signal)
{
	if (restarting && gv_restart_pass_on(signal))
		return;
	gv_folder_leave();
	_exit(0);
}

/*
 * From now on SIGTERM and SIGINT end us at once.  This thread takes them, or,
 * with SIG_BLOCK for `how`, leaves them to who can: the first process of a
 * container is ended by no signal that it does not handle, and gv_restart()
 * may have left one waiting.  The device's driver has threads that take them,
 * too.
 */
void
gv_restart_heed_signals(int how)
{
	struct sigaction action;
	sigset_t	ends;

	memset(&action, 0, sizeof(action));
	sigemptyset(&action.sa_mask);
	action.sa_handler = end_at_once;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sigprocmask(how, &ends, NULL);
}

/* The device's driver has descriptors, too, which keep its memory. */
static void
close_on_exec(void)
{
	int			fd;

#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3, ~0U, CLOSE_ON_EXEC) == 0)
		return;
#endif
	for (fd = 3; fd < MAX_DESCRIPTORS; fd++)
		(void) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/*
 * Execute our own file.  First by its name: with valgrind or qemu the other
 * path leads to these.  When the file was replaced only that is left.
 */
static void
execute_self(char **argv)
{
	char		path[4096];
	ssize_t		n = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (n > 0)
	{
		path[n] = '\0';
		(void) execv(path, argv);
	}
	(void) execv("/proc/self/exe", argv);
}

/*
 * Executes the program again, with its arguments, in the folder where it was
 * started, or `home` is -1.  It returns only if that fails, or if we are to
 * end: the exit status.
 */
int
gv_restart(int home, char **argv)
{
	/*
	 * what came before the loop has noted; what comes later is not forgotten
	 */
	restarting = 1;
	gv_restart_heed_signals(SIG_BLOCK);
	/* what another thread has taken by now it has passed on then */
	usleep(PASSED_ON_US);
	if (gv_loop_stops())
		return 0;
	close_on_exec();
	/* where it could not be opened no path that we have begins there */
	if (home < 0 || fchdir(home) == 0)
		execute_self(argv);
	gv_log("FATAL", "could not begin anew: %s", strerror(errno));
	return GV_EXIT_FAILED;
}

/* ----
 * The folder where clients find us: whether it is safe, its lock, the
 * socket in it, and who may connect.
 *
 * It is the current folder of this process, so that the paths of socket and
 * lock are short.  In a data directory there is nothing to look after; a
 * folder that PostgreSQL, perhaps another user's, shares with us must not be
 * one where a third user could put a socket of his own.
 */

#define BACKLOG			256
#define LOCK_WAIT_MS	10000	/* an old server may still be dying */
#define LOCK_TRY_MS		50

/* Have we come to the folder, and is its lock ours? */
static volatile sig_atomic_t entered;

static int	lock = -1;			/* the lock file */

/* Whether clients can connect to a socket in such a folder. */
bool
gv_folder_fits(const char *path)
{
	return strlen(path) + sizeof("/" GV_SOCKET_PATH) <=
		sizeof(((struct sockaddr_un *) NULL)->sun_path);
}

/* A user by his name or number; false: there is none. */
bool
gv_folder_user(const char *name, uid_t *uid)
{
	struct passwd *user;
	char	   *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(name, &end, 10);
	if (name[0] >= '0' && name[0] <= '9' && *end == '\0')
	{
		*uid = (uid_t) number;
		/* the last one means no user to the system */
		return errno == 0 && number < UINT32_MAX;
	}
	user = getpwnam(name);
	if (user == NULL)
		return false;
	*uid = user->pw_uid;
	return true;
}

/* Its descriptor; it is made where the folder that it lies in is there. */
static int
open_folder(const char *path, bool is_shared)
{
	mode_t		mode = gv_server.owner == geteuid() ? 0700 : 0711;

	if (is_shared)
	{
		mode_t		mask = umask(0);

		if (mkdir(path, mode) != 0 && errno != EEXIST)
			gv_system_error("make the folder \"%s\"", path);
		umask(mask);
	}
	return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/*
 * Can nobody else change what is in it, not even the owner of the socket?  He
 * could have us change files of ours for him, by a link in place of a name
 * that we use.  If somebody can, the end.
 */
static void
check_folder(int fd, const char *path)
{
	struct stat status;

	if (fstat(fd, &status) != 0)
		gv_system_error("look at the folder \"%s\"", path);
	if (status.st_uid != geteuid() && status.st_uid != 0)
		gv_log("FATAL", "the folder \"%s\" is user %u's: it has to be that of "
			   "who runs gpuvecd, or root's", path, (unsigned) status.st_uid);
	else if ((status.st_mode & 022) != 0)
		gv_log("FATAL", "the folder \"%s\" has mode %03o: its group and others "
			   "must not write to it", path,
			   (unsigned) status.st_mode & 07777);
	else
		return;
	exit(GV_EXIT_SYSTEM);
}

/*
 * One gpuvecd a folder, for as long as this process lives; the file says
 * which process that is and, later, which incarnation it serves.
 */
static void
take_lock(void)
{
	struct timespec pause = {.tv_nsec = LOCK_TRY_MS * 1000000};
	char		pid[16];
	int			waited;

	lock = open(GV_LOCK_PATH, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0)
		gv_system_error("open the lock file " GV_LOCK_PATH);
	for (waited = 0; flock(lock, LOCK_EX | LOCK_NB) != 0; waited += LOCK_TRY_MS)
	{
		if (errno != EWOULDBLOCK && errno != EINTR)
			gv_system_error("lock " GV_LOCK_PATH);
		if (waited >= LOCK_WAIT_MS)
		{
			gv_log("FATAL", "another gpuvecd runs in this folder (see %s)",
				   GV_LOCK_PATH);
			exit(GV_EXIT_LOCKED);
		}
		nanosleep(&pause, NULL);
	}
	snprintf(pid, sizeof(pid), "%d\n", gv_server.pid);
	if (ftruncate(lock, 0) != 0 || write(lock, pid, strlen(pid)) < 0)
		gv_system_error("write " GV_LOCK_PATH);
}

/* Whom we serve, for tests and measurements that speak the protocol. */
void
gv_folder_note_incarnation(uint64_t incarnation)
{
	char		line[20];

	snprintf(line, sizeof(line), "%016llx\n",
			 (unsigned long long) incarnation);
	if (write(lock, line, strlen(line)) < 0)
		gv_log("WARNING", "could not write %s: %s", GV_LOCK_PATH,
			   strerror(errno));
}

/* Be at home there, alone; where that cannot be, the end. */
void
gv_folder_enter(const char *path, bool is_shared)
{
	int			fd = open_folder(path, is_shared);

	if (fd < 0 || fchdir(fd) != 0)
		gv_system_error("enter the folder \"%s\"", path);
	if (is_shared)
		check_folder(fd, path);
	close(fd);
	umask(077);
	take_lock();
	entered = 1;
}

/* Leave no socket; for any thread and signal handler, at any time. */
void
gv_folder_leave(void)
{
	if (entered)
		unlink(GV_SOCKET_PATH);
}

/*
 * Let the owner reach the socket, which is ours alone: it is made his or,
 * where we may not give it away, everyone's.  gv_folder_admits keeps others
 * out.
 */
static bool
open_up(void)
{
	return gv_server.owner == geteuid() ||
		chown(GV_SOCKET_PATH, gv_server.owner, (gid_t) -1) == 0 ||
		chmod(GV_SOCKET_PATH, 0666) == 0;
}

/*
 * The listening socket, in the folder whose lock we have.  -1, with errno,
 * when it cannot be made.
 */
int
gv_folder_listen(void)
{
	struct sockaddr_un address;
	int			fd;
	mode_t		mask;
	bool		bound;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, GV_SOCKET_PATH);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	unlink(GV_SOCKET_PATH);
	mask = umask(0177);
	bound = bind(fd, (struct sockaddr *) &address, sizeof(address)) == 0;
	umask(mask);
	if (bound && open_up() && listen(fd, BACKLOG) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Is it the owner who has connected here? */
bool
gv_folder_admits(int fd)
{
	struct ucred peer;
	socklen_t	length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
		peer.uid == gv_server.owner;
}
