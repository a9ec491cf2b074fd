/*
 * socketdir.c
 *		The folder where clients find gpuvecd, and the incarnation of the
 *		cluster that it serves there.
 *
 * The folder becomes the current folder of this process, so that the paths of
 * socket and lock are short.  A data directory needs no checks.  If the folder
 * is not a data directory, PostgreSQL may run as another user.  Then we check
 * that no third user can put a socket into the folder.
 *
 * This process serves one incarnation of a cluster, that of the first
 * supervisor.  server/README, "Incarnations", says why, which clients we
 * refuse, and when this process ends so that another one serves the next.
 */
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG			256
#define LOCK_WAIT_MS	10000	/* how long to wait for an old gpuvecd */
#define LOCK_TRY_MS		50

#define ORPHANED_NS		UINT64_C(30000000000)	/* see is_used() */

static int	lock = -1;			/* descriptor of the lock file */

/* Set when we are in the folder and hold its lock. */
static volatile sig_atomic_t entered;

static struct
{
	pthread_mutex_t lock;
	uint64_t	number;			/* 0: no supervisor has come yet */
	GvConnections supervisors;	/* an earlier one may not have gone yet */
	uint64_t	refused;		/* the other incarnation whose refusal was the
								 * last to be logged */
	uint64_t	orphaned_ns;	/* when we noticed that sessions have no
								 * supervisor, or 0 if they have one */
	bool		over;			/* our incarnation has ended, and so must this
								 * process */
}			incarnation = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the folder */

/*
 * Exits if another user, even the owner of the socket, can change what is in
 * the folder.  Such a user could put a link in place of our lock file, and so
 * make us overwrite files.
 */
static void
check_folder(int fd, const char *path)
{
	struct stat status;

	if (fstat(fd, &status) != 0)
		gv_system_error("access directory \"%s\"", path);
	if (status.st_uid != geteuid() && status.st_uid != 0)
		gv_log("FATAL", "directory \"%s\" belongs to user %u, but must belong to the user of gpuvecd or root",
			   path, (unsigned) status.st_uid);
	else if ((status.st_mode & 022) != 0)
		gv_log("FATAL", "directory \"%s\" has mode %03o, but its group and others must not have write permission",
			   path,
			   (unsigned) status.st_mode & 07777);
	else
		return;
	exit(GV_EXIT_SYSTEM);
}

/*
 * Locks the folder until this process ends, so that only one gpuvecd serves
 * there.  Waits for an old gpuvecd that has not ended yet.  Writes
 * gv_server.pid to the lock file; gv_incarnation_admits adds the incarnation.
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
			gv_log("FATAL", "another gpuvecd is running in this directory (see %s)",
				   GV_LOCK_PATH);
			exit(GV_EXIT_LOCKED);
		}
		nanosleep(&pause, NULL);
	}
	snprintf(pid, sizeof(pid), "%d\n", gv_server.pid);
	if (ftruncate(lock, 0) != 0 || write(lock, pid, strlen(pid)) < 0)
		gv_system_error("write " GV_LOCK_PATH);
}

/*
 * See server.h.  Creates a shared folder that does not exist, but not its
 * parent folder.  If another user owns the socket, everyone may pass through
 * the folder.
 */
void
gv_folder_enter(const char *path, bool is_shared)
{
	mode_t		mode = gv_server.owner == geteuid() ? 0700 : 0711;
	int			fd;

	if (is_shared)
	{
		mode_t		mask = umask(0);

		if (mkdir(path, mode) != 0 && errno != EEXIST)
			gv_system_error("create directory \"%s\"", path);
		umask(mask);
	}
	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fchdir(fd) != 0)
		gv_system_error("change directory to \"%s\"", path);
	if (is_shared)
		check_folder(fd, path);
	close(fd);
	umask(077);
	take_lock();
	entered = 1;
}

void
gv_folder_leave(void)
{
	if (entered)
		unlink(GV_SOCKET_PATH);
}

int
gv_folder_listen(void)
{
	struct sockaddr_un address;
	int			fd;
	mode_t		mask;
	bool		opened;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, GV_SOCKET_PATH);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	unlink(GV_SOCKET_PATH);
	mask = umask(0177);
	opened = bind(fd, (struct sockaddr *) &address, sizeof(address)) == 0;
	umask(mask);

	/*
	 * Let gv_server.owner connect to the socket, which only our user can so
	 * far.  If we may not change the socket's owner, let everyone connect;
	 * gv_folder_admits keeps the others out.
	 */
	if (opened && gv_server.owner != geteuid())
		opened = chown(GV_SOCKET_PATH, gv_server.owner, (gid_t) -1) == 0 ||
			chmod(GV_SOCKET_PATH, 0666) == 0;
	if (opened && listen(fd, BACKLOG) == 0)
		return fd;
	close(fd);
	return -1;
}

bool
gv_folder_admits(int fd)
{
	struct ucred peer;
	socklen_t	length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
		peer.uid == gv_server.owner;
}

/* ---- incarnations */

/*
 * Returns whether a supervisor of our incarnation is connected.  The caller
 * holds the mutex.
 */
static bool
is_supervised(void)
{
	const GvConnection *connection;

	LIST_FOREACH(connection, &incarnation.supervisors, supervisor)
		if (!gv_connection_is_gone(connection))
		return true;
	return false;
}

/*
 * Returns whether sessions of our incarnation are connected; if so, PostgreSQL
 * will start their supervisor again.  After ORPHANED_NS without a supervisor,
 * sessions do not count, because a process that a session has forked may still
 * hold the connection.  The caller holds the mutex.
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
 * Refuses a supervisor of another incarnation if ours is in use.  Otherwise
 * makes the loop end, and this process with it.  The caller holds the mutex.
 */
static void
meet_other(GvConnection *connection, uint64_t other)
{
	if (!is_supervised() && !is_used())
	{
		gv_log("LOG", "restarting gpuvecd, because the cluster crashed or restarted");
		incarnation.over = true;
		/* the supervisor gets no answer, and connects again */
		connection->close_after_send = true;
		return;
	}
	if (incarnation.refused != other)
		gv_log("WARNING", "refused another cluster, because each cluster requires a separate gpuvecd and directory");
	incarnation.refused = other;
	gv_refuse(connection, GV_REFUSED_INCARNATION, "gpuvecd serves another cluster");
}

bool
gv_incarnation_admits(GvConnection *connection, const GvHello *hello)
{
	bool		admitted = true;

	pthread_mutex_lock(&incarnation.lock);
	if (incarnation.number == 0 && hello->role == GV_ROLE_SUPERVISOR)
	{
		char		line[20];

		incarnation.number = hello->incarnation;
		/* for tests and benchmarks that speak the protocol themselves */
		snprintf(line, sizeof(line), "%016llx\n",
				 (unsigned long long) incarnation.number);
		if (write(lock, line, strlen(line)) < 0)
			gv_log("WARNING", "could not write %s: %s", GV_LOCK_PATH,
				   strerror(errno));
	}
	if (incarnation.number != hello->incarnation)
	{
		admitted = false;
		if (hello->role == GV_ROLE_SUPERVISOR)
			meet_other(connection, hello->incarnation);
		else
			gv_refuse(connection, GV_REFUSED_INCARNATION,
					  incarnation.number == 0 ?
					  "no supervisor has connected yet" :
					  "gpuvecd serves another cluster, or another incarnation of it");
	}
	pthread_mutex_unlock(&incarnation.lock);
	return admitted;
}

void
gv_incarnation_supervised(GvConnection *connection)
{
	gv_count(connections, -1);
	pthread_mutex_lock(&incarnation.lock);
	LIST_INSERT_HEAD(&incarnation.supervisors, connection, supervisor);
	incarnation.orphaned_ns = 0;
	pthread_mutex_unlock(&incarnation.lock);
}

void
gv_incarnation_unsupervised(GvConnection *connection)
{
	pthread_mutex_lock(&incarnation.lock);
	LIST_REMOVE(connection, supervisor);
	pthread_mutex_unlock(&incarnation.lock);
}

bool
gv_incarnation_is_over(void)
{
	return incarnation.over;
}
