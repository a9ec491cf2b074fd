/*
 * folder.c
 *		The folder where clients find us: whether it is safe, its lock, the
 *		socket in it, and who may connect.
 *
 * It is the current folder of this process, so that the paths of socket and
 * lock are short.  In a data directory there is nothing to look after; a
 * folder that PostgreSQL, perhaps another user's, shares with us must not be
 * one where a third user could put a socket of his own.
 */
#include "server/gv_server.h"

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
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

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
