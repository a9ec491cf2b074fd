/*
 * memory.c
 *		Memory that a client shares with gpuvecd.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client.h"

TestMemory
memory_make(int seals)
{
	TestMemory	memory = {memfd_create("check", MFD_CLOEXEC |
									   MFD_ALLOW_SEALING), NULL};

	CHECK(memory.fd >= 0 && ftruncate(memory.fd, MEMORY_BYTES) == 0 &&
		  fcntl(memory.fd, F_ADD_SEALS, seals) == 0, "memory");
	memory.bytes = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
						memory.fd, 0);
	CHECK(memory.bytes != MAP_FAILED, "map");
	return memory;
}

void
memory_free(TestMemory *memory)
{
	munmap(memory->bytes, MEMORY_BYTES);
	close(memory->fd);
}

/* Send MEMORY with n descriptors; what comes back. */
int
memory_pass(int fd, uint64_t bytes, const int *fds, int n)
{
	GvMessage	header = {sizeof(GvAttachShmRequest), GV_MSG_ATTACH_SHM, 0};
	GvAttachShmRequest request = {bytes};
	struct iovec parts[2] = {
		{&header, sizeof(header)}, {&request, sizeof(request)}
	};
	union
	{
		struct cmsghdr head;
		char		bytes[CMSG_SPACE(4 * sizeof(int))];
	}			control;
	struct msghdr message = {.msg_iov = parts,.msg_iovlen = 2};

	memset(&control, 0, sizeof(control));
	if (n > 0)
	{
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
	}
	CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) ==
		  sizeof(header) + sizeof(request), "pass");
	return client_receive(fd, GV_MSG_ATTACH_SHM, NULL, NULL);
}

/* Ask by a message in memory. */
int
memory_ask(int fd, const TestMemory *memory, uint64_t offset, GvMessage header,
		 const void *head, size_t head_bytes, const void *tail,
		 size_t tail_bytes)
{
	GvInShmRequest request = {offset};
	char	   *place = memory->bytes + offset;

	memcpy(place, &header, sizeof(header));
	memcpy(place + sizeof(header), head, head_bytes);
	memcpy(place + sizeof(header) + head_bytes, tail, tail_bytes);
	return ASK(fd, GV_MSG_IN_SHM, request);
}
