/*
 * baddisk.c
 *		A disk that fails, and one that loses what was not synced: a library
 *		that is preloaded into a server.  GpuvecDisk.pm has both ends.
 *
 * BADDISK_CONTROL names a file with a Control.  The n-th read, write or sync of
 * users' tables and indexes and of temporary files fails once.
 *
 * BADDISK_UNDO names a file to which every write to a file of the data folder
 * adds what was there before, and every sync that it was called.  A server that
 * was killed loses what it wrote to a file since the last sync when these are
 * written back, the last first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define READS	1
#define WRITES	2				/* changes of a file's size, too */
#define SYNCS	4

typedef struct Control
{
	int32_t		kinds;			/* that are counted */
	int32_t		error;			/* errno of the one that fails */
	int64_t		left;			/* calls to the one that fails; 0: none does */
	int64_t		seen;			/* calls so far */
} Control;

#define FIRST_USERS		16384	/* FirstNormalObjectId */

/* Bytes follow; a sync has none and length -1. */
typedef struct Undo
{
	uint64_t	inode;
	int64_t		offset;
	int64_t		length;
	int64_t		size;			/* of the file */
} Undo;

static Control *control = NULL;
static int	undo = -1;
static const char *data = NULL; /* the data folder */

__attribute__((constructor))
static void
begin(void)
{
	const char *path = getenv("BADDISK_CONTROL");
	int			fd;

	if (path != NULL && (fd = open(path, O_RDWR | O_CLOEXEC)) >= 0)
	{
		control = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE,
					   MAP_SHARED, fd, 0);
		close(fd);
	}
	path = getenv("BADDISK_UNDO");
	data = getenv("BADDISK_DATA");
	if (path != NULL && data != NULL)
	{
		fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
		/* out of the way of those that the server closes or counts */
		undo = fcntl(fd, F_DUPFD_CLOEXEC, 900);
		close(fd);
	}
}

/* Its path; false if it has none. */
static int
path_of(int fd, char *path)
{
	char		link[40];
	ssize_t		n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH_MAX - 1);
	if (n <= 0 || path[0] != '/')
		return 0;
	path[n] = '\0';
	return 1;
}

/* Is it a user's table or index, or a temporary file? */
static int
is_users(int fd)
{
	char		path[PATH_MAX];

	return path_of(fd, path) &&
		(strstr(path, "/pgsql_tmp") != NULL ||
		 (strstr(path, "/base/") != NULL &&
		  atol(strrchr(path, '/') + 1) >= FIRST_USERS));
}

/* Does this call fail?  With errno set, then. */
static int
fails(int kind, int fd)
{
	if (control == NULL || (control->kinds & kind) == 0 || !is_users(fd))
		return 0;
	__atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&control->left, __ATOMIC_SEQ_CST) <= 0 ||
		__atomic_sub_fetch(&control->left, 1, __ATOMIC_SEQ_CST) != 0)
		return 0;
	errno = control->error;
	return 1;
}

/* Is it a file that would lose what was not synced? */
static int
is_kept(int fd, struct stat *file)
{
	char		path[PATH_MAX];
	size_t		n;

	if (undo < 0 || fd == undo || fstat(fd, file) != 0 ||
		!S_ISREG(file->st_mode) || !path_of(fd, path))
		return 0;
	n = strlen(data);
	return strncmp(path, data, n) == 0 && path[n] == '/' &&
		strstr(path, "/pgsql_tmp") == NULL &&
		strstr(path, "/postmaster.") == NULL;
}

/* Keep what a call is about to change. */
static void
keep(int fd, int64_t offset, int64_t length)
{
	int			error = errno;
	struct stat file;
	Undo	   *record;
	ssize_t		n = 0;

	if (!is_kept(fd, &file))
	{
		errno = error;
		return;
	}
	record = malloc(sizeof(Undo) + (length > 0 ? length : 0));
	if (length > 0 && (n = syscall(SYS_pread64, fd, record + 1, length,
								   offset)) < 0)
	{
		/* it is open for writing alone */
		char		link[40];
		int			again;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		again = open(link, O_RDONLY | O_CLOEXEC);
		n = syscall(SYS_pread64, again, record + 1, length, offset);
		close(again);
		if (n < 0)
			n = 0;
	}
	*record = (Undo) {file.st_ino, offset, length < 0 ? -1 : n, file.st_size};
	if (syscall(SYS_write, undo, record, sizeof(Undo) + n) < 0)
		abort();
	free(record);
	errno = error;
}

static int64_t
bytes_of(const struct iovec *parts, int n)
{
	int64_t		bytes = 0;

	for (int i = 0; i < n; i++)
		bytes += parts[i].iov_len;
	return bytes;
}

ssize_t
pread64(int fd, void *buf, size_t n, off64_t offset)
{
	return fails(READS, fd) ? -1 : syscall(SYS_pread64, fd, buf, n, offset);
}

ssize_t
pread(int fd, void *buf, size_t n, off_t offset)
{
	return pread64(fd, buf, n, offset);
}

ssize_t
preadv64(int fd, const struct iovec *parts, int n, off64_t offset)
{
	return fails(READS, fd) ? -1 :
		syscall(SYS_preadv, fd, parts, n, offset, 0L);
}

ssize_t
preadv(int fd, const struct iovec *parts, int n, off_t offset)
{
	return preadv64(fd, parts, n, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t n, off64_t offset)
{
	if (fails(WRITES, fd))
		return -1;
	keep(fd, offset, n);
	return syscall(SYS_pwrite64, fd, buf, n, offset);
}

ssize_t
pwrite(int fd, const void *buf, size_t n, off_t offset)
{
	return pwrite64(fd, buf, n, offset);
}

ssize_t
pwritev64(int fd, const struct iovec *parts, int n, off64_t offset)
{
	if (fails(WRITES, fd))
		return -1;
	keep(fd, offset, bytes_of(parts, n));
	return syscall(SYS_pwritev, fd, parts, n, offset, 0L);
}

ssize_t
pwritev(int fd, const struct iovec *parts, int n, off_t offset)
{
	return pwritev64(fd, parts, n, offset);
}

ssize_t
write(int fd, const void *buf, size_t n)
{
	if (undo >= 0)
		keep(fd, syscall(SYS_lseek, fd, 0, SEEK_CUR), n);
	return syscall(SYS_write, fd, buf, n);
}

int
ftruncate64(int fd, off64_t size)
{
	struct stat file;

	if (fails(WRITES, fd))
		return -1;
	if (undo >= 0 && fstat(fd, &file) == 0)
		keep(fd, size, file.st_size > size ? file.st_size - size : 0);
	return syscall(SYS_ftruncate, fd, size);
}

int
ftruncate(int fd, off_t size)
{
	return ftruncate64(fd, size);
}

int
posix_fallocate64(int fd, off64_t offset, off64_t n)
{
	if (fails(WRITES, fd))
		return errno;
	keep(fd, offset, 0);
	return syscall(SYS_fallocate, fd, 0, offset, n) == 0 ? 0 : errno;
}

int
posix_fallocate(int fd, off_t offset, off_t n)
{
	return posix_fallocate64(fd, offset, n);
}

int
fsync(int fd)
{
	if (fails(SYNCS, fd))
		return -1;
	keep(fd, 0, -1);
	return syscall(SYS_fsync, fd);
}

int
fdatasync(int fd)
{
	if (fails(SYNCS, fd))
		return -1;
	keep(fd, 0, -1);
	return syscall(SYS_fdatasync, fd);
}
