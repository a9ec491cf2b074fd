/*
 * memory.c
 *		Memory to share with gpuvecd.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/channel/memory.h"

/* Memory of a size that cannot change; its descriptor, or -1. */
int
IvfpqMakeMemory(Size bytes)
{
	int			fd = memfd_create("gpuvec",
								  MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* all of it now, because who has none later gets a signal */
	if (posix_fallocate(fd, 0, (off_t) bytes) == 0 &&
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		return fd;
	close(fd);
	return -1;
}
