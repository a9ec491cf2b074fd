/*
 * memory.c
 *		Memory that a client shares with gpuvecd, and a session's mailbox.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client.h"

#define PATIENCE_MS	30000

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

/* Send a message with n descriptors. */
static bool
pass(int fd, GvMessageType type, const void *head, size_t head_bytes,
	 const int *fds, int n)
{
	GvMessage	header = {(uint32_t) head_bytes, type, 0};
	struct iovec parts[2] = {
		{&header, sizeof(header)}, {(void *) head, head_bytes}
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
	return sendmsg(fd, &message, MSG_NOSIGNAL) ==
		(ssize_t) (sizeof(header) + head_bytes);
}

/* Send MEMORY with n descriptors; what comes back. */
int
memory_pass(int fd, uint64_t bytes, const int *fds, int n)
{
	GvAttachShmRequest request = {bytes};

	CHECK(pass(fd, GV_MSG_ATTACH_SHM, &request, sizeof(request), fds, n),
		  "pass");
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

/* Share it as a session's mailbox, in the first `bytes` of the memory. */
TestMailbox
mailbox_open(int fd, TestMemory *memory, uint64_t bytes)
{
	TestMailbox mailbox = {fd, eventfd(0, EFD_CLOEXEC), (GvMailbox *)
	memory->bytes};

	CHECK(memory_pass(fd, bytes, &memory->fd, 1) == 0, "a mailbox");
	CHECK(pass(fd, GV_MSG_LOOK, NULL, 0, &mailbox.wake, 1), "an eventfd");
	return mailbox;
}

/* Put a search there; true: gpuvecd knows of it. */
bool
mailbox_put(const TestMailbox *mailbox, const void *head, size_t head_bytes,
			const void *tail, size_t tail_bytes, GvMailState state)
{
	GvMessage	header = {(uint32_t) (head_bytes + tail_bytes), GV_MSG_SEARCH,
	0};
	GvMessage	look = {0, GV_MSG_LOOK, 0};
	char	   *to = mailbox->box->request;

	memcpy(to, &header, sizeof(header));
	memcpy(to + sizeof(header), head, head_bytes);
	memcpy(to + sizeof(header) + head_bytes, tail, tail_bytes);
	return gv_mail_exchange(mailbox->box, state) != GV_MAIL_UNATTENDED ||
		client_send(mailbox->fd, &look, sizeof(look));
}

/* Sleep until the answer is there, or something comes through the socket. */
bool
mailbox_sleep(const TestMailbox *mailbox)
{
	struct pollfd ends[] = {{.fd = mailbox->wake,.events = POLLIN},
	{.fd = mailbox->fd,.events = POLLIN}};
	uint64_t	count;

	return poll(ends, 2, PATIENCE_MS) > 0 &&
		(ends[0].revents == 0 || read(mailbox->wake, &count, 8) == 8);
}

/* The answer in the memory, or NULL if it comes through the socket. */
const GvMessage *
mailbox_answer(const TestMailbox *mailbox)
{
	const GvMessage *answer = (const GvMessage *) (mailbox->box + 1);
	uint32_t	state = gv_mail_state(mailbox->box);

	return state == GV_MAIL_ASKED || state == GV_MAIL_WAITING ||
		answer->type == 0 ? NULL : answer;
}
