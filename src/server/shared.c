/*
 * shared.c
 *		Memory that a loader or a set shares with us, so that what it brings
 *		or fetches is not copied through the socket.
 *
 * The client makes it, seals its size, and passes its descriptor along with
 * GV_MSG_MEMORY.  Then messages may lie in it: GV_MSG_HERE says where, and the
 * client lets that place alone until it is answered.  Should it not, its
 * mirror or its answer is spoilt, which it can have without that.  It could do
 * worse; but whoever may connect is the owner, whom we trust with that.
 *
 * Outputs that a set asks for are written to where the request says, before it
 * is answered.  No more depends on them here: whatever lies there a moment
 * later, nobody but the client goes by it.
 */
#include "server/gv_server.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Keep one descriptor, for the message that speaks of it; close others. */
static void
take_descriptors(GvConnection *connection, struct msghdr *message)
{
	struct cmsghdr *control;

	for (control = CMSG_FIRSTHDR(message); control != NULL;
		 control = CMSG_NXTHDR(message, control))
	{
		size_t		n = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		size_t		i;

		if (control->cmsg_level != SOL_SOCKET ||
			control->cmsg_type != SCM_RIGHTS)
			continue;
		for (i = 0; i < n; i++)
		{
			int			fd;

			memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
			if (connection->passed_fd < 0)
				connection->passed_fd = fd;
			else
				close(fd);
		}
	}
}

/* As recv without waiting, but descriptors that come along are kept. */
ssize_t
gv_shared_receive(GvConnection *connection, void *bytes, size_t length)
{
	union
	{
		struct cmsghdr aligned;
		char		bytes[CMSG_SPACE(sizeof(int))];
	}			control;
	struct iovec part = {bytes, length};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)
	};
	ssize_t		n = recvmsg(connection->fd, &message,
							MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	if (n >= 0)
		take_descriptors(connection, &message);
	return n;
}

static void
unmap(GvConnection *connection)
{
	if (connection->shared != NULL)
		(void) munmap(connection->shared, connection->shared_bytes);
	connection->shared = NULL;
}

/* Let go of the memory, and of a descriptor that no message named. */
void
gv_shared_release(GvConnection *connection)
{
	if (connection->passed_fd >= 0)
		close(connection->passed_fd);
	connection->passed_fd = -1;
	unmap(connection);
}

/* Is it memory of that size, which can be made smaller no more? */
static bool
is_sealed(int fd, uint64_t bytes)
{
	int			seals = fcntl(fd, F_GET_SEALS);
	struct stat status;

	return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
		fstat(fd, &status) == 0 && status.st_size >= 0 &&
		(uint64_t) status.st_size >= bytes;
}

/* See GV_MSG_MEMORY. */
void
gv_shared_take(GvConnection *connection)
{
	const GvMemoryRequest *request = gv_payload(connection);
	int			fd = connection->passed_fd;
	void	   *memory;

	unmap(connection);
	if (fd < 0 || request->bytes < sizeof(GvMessage) ||
		request->bytes > GV_MAX_SHARED || !is_sealed(fd, request->bytes))
	{
		gv_chunks_conclude(connection, GV_OK, "no memory that can be shared");
		return;
	}
	/* only sets have something written there */
	memory = mmap(NULL, request->bytes,
				  connection->role == GV_ROLE_SET ? PROT_READ | PROT_WRITE :
				  PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	connection->passed_fd = -1;
	if (memory == MAP_FAILED)
	{
		gv_chunks_conclude(connection, GV_NO_MEMORY, NULL);
		return;
	}
	connection->shared = memory;
	connection->shared_bytes = request->bytes;
	gv_reply(connection, 0);
}

/*
 * See GV_MSG_HERE: the message there is the connection's until it is answered.
 * False: refused.
 */
bool
gv_shared_open(GvConnection *connection)
{
	const GvHereRequest *request = gv_payload(connection);
	const GvMessage *message;
	const GvMessageKind *kind;
	uint64_t	shared_bytes = connection->shared_bytes;

	/* a loader that had to connect again: its mirror is gone as well */
	if (connection->shared == NULL)
	{
		gv_refuse(connection, GV_REFUSED_NO_MIRROR,
				  gv_refusal_name(GV_REFUSED_NO_MIRROR));
		return false;
	}
	if (request->offset % 8 != 0 ||
		request->offset > shared_bytes - sizeof(*message))
	{
		gv_chunks_conclude(connection, GV_OK, "a message outside the memory");
		return false;
	}
	message = (const GvMessage *) (connection->shared + request->offset);
	connection->here = *message;
	kind = gv_message_kind(&connection->here);
	if (connection->here.length > shared_bytes - sizeof(*message) -
		request->offset ||
		connection->here.request != 0 || kind == NULL || !kind->in_memory ||
		!gv_role_sends(connection->role, kind))
	{
		gv_chunks_conclude(connection, GV_OK, "a malformed message in memory");
		return false;
	}
	connection->place = connection->shared + request->offset;
	gv_count(received, connection->here.length);
	return true;
}

/*
 * Where a set's client asks for these bytes, in the memory that it shares;
 * NULL: that is not in it, or there is none.
 */
void *
gv_shared_at(const GvConnection *connection, int64_t offset, int64_t bytes)
{
	int64_t		shared_bytes = (int64_t) connection->shared_bytes;

	if (connection->shared == NULL || offset < 0 || offset % 8 != 0 ||
		bytes > shared_bytes || offset > shared_bytes - bytes)
		return NULL;
	return connection->shared + offset;
}
