/*
 * connect.c
 *		The connection to gpuvecd.
 *
 * The path is relative to the data directory, where every process of the
 * server is at home.  Nothing here throws because of what gpuvecd does or
 * does not do; the outcome is an IvfpqServed.  Memory follows what was really
 * sent, and that is bounded by what was asked for.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "client/channel/connect.h"
#include "client/state/state.h"
#include "pgcompat.h"

/* After a failure to connect, no other try for so long. */
#define HOLD_OFF_US			100000

/* ... when it was gpuvecd that did not want. */
#define REFUSED_HOLD_OFF_US 1000000

/* Memory for answers that is kept between requests. */
#define LEAST_BUFFER		(16 * 1024)
#define MOST_BUFFER			(256 * 1024)

#define SOCKET_EVENT		2	/* in the set of events */

typedef struct Connection
{
	pgsocket	sock;			/* PGINVALID_SOCKET: not connected */
	WaitEventSet *events;		/* latch, postmaster's death, socket */
	int			pid;			/* whose it is */
	GvRole		role;
	GvWelcome	welcome;
	bool		busy;			/* in the midst of a message */
	int			passed_fd;		/* goes along with the next bytes; -1 = none */
	uint16		asked;			/* what waits for an answer; 0 = nothing */
	bool		soon;			/* answers are likely to come at once */
	char	   *buffer;			/* [size] a GvMessage and what follows */
	Size		size;

	/* not connected, and not again before this */
	int64		not_before;
	uint64		hold_instance;	/* unless this is not the server's any more */
	IvfpqServed held;			/* why */
} Connection;

static Connection connection = {.sock = PGINVALID_SOCKET,.passed_fd = -1};

/* Are the answers to come likely to come within IVFPQ_SOON_US? */
void
IvfpqExpectSoon(bool soon)
{
	connection.soon = soon;
}

/* Who we are connected to. */
const GvWelcome *
IvfpqWelcome(void)
{
	return connection.sock == PGINVALID_SOCKET ? NULL : &connection.welcome;
}

/* Close the connection, if there is one. */
void
IvfpqDisconnect(void)
{
	if (connection.events != NULL)
		FreeWaitEventSet(connection.events);
	connection.events = NULL;
	if (connection.sock != PGINVALID_SOCKET)
	{
		closesocket(connection.sock);
		ReleaseExternalFD();
	}
	connection.sock = PGINVALID_SOCKET;
	connection.busy = false;
	connection.passed_fd = -1;
	connection.asked = 0;
	connection.soon = false;
}

/* Close it, and say why. */
static IvfpqServed
give_up(IvfpqServed served, const char *reason, IvfpqReply *reply)
{
	IvfpqDisconnect();
	reply->reason = reason;
	return served;
}

static uint64
server_instance(void)
{
	return ivfpq_shared ? pg_atomic_read_u64(&ivfpq_shared->instance) : 0;
}

/* There was no connecting: do not try again for a while. */
static IvfpqServed
hold_off(IvfpqServed served, int64 us, const char *reason, IvfpqReply *reply)
{
	connection.held = served;
	connection.not_before = IvfpqNow() + us;
	connection.hold_instance = server_instance();
	return give_up(served, reason, reply);
}

/*
 * The latch was set.  Serving an interrupt may end in an error; then nobody
 * will read the rest of the answer.
 */
static void
heed_latch(void)
{
	ResetLatch(MyLatch);
	PG_TRY();
	{
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		IvfpqDisconnect();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Wait until the socket can be read or written; false when it is too late, or
 * when this process is to end.
 */
static bool
wait_for(uint32 what, int64 deadline)
{
	for (;;)
	{
		int64		left = deadline - IvfpqNow();
		WaitEvent	event;

		if (left <= 0 || ShutdownRequestPending)
			return false;
		ModifyWaitEvent(connection.events, SOCKET_EVENT, what, NULL);
		if (WaitEventSetWait(connection.events, (long) ((left + 999) / 1000),
							 &event, 1, GvWaitEvent()) == 0)
			continue;
		if (event.events & WL_LATCH_SET)
			heed_latch();
		else
			return true;
	}
}

/* Room for so many bytes of an answer; what is in the buffer stays. */
static bool
make_room(Size size)
{
	char	   *buffer;

	if (size <= connection.size)
		return true;
	buffer = MemoryContextAllocExtended(TopMemoryContext, size,
										MCXT_ALLOC_NO_OOM);
	if (buffer == NULL)
		return false;
	if (connection.buffer != NULL)
	{
		memcpy(buffer, connection.buffer, connection.size);
		pfree(connection.buffer);
	}
	connection.buffer = buffer;
	connection.size = size;
	return true;
}

/* As sendmsg; a descriptor goes along unless it is -1. */
ssize_t
IvfpqSendMessage(pgsocket sock, struct msghdr *message, int passed_fd)
{
	union
	{
		struct cmsghdr head;
		char		bytes[CMSG_SPACE(sizeof(int))];
	}			control;

	if (passed_fd >= 0)
	{
		memset(&control, 0, sizeof(control));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &passed_fd, sizeof(int));
		message->msg_control = control.bytes;
		message->msg_controllen = sizeof(control.bytes);
	}
	return sendmsg(sock, message, MSG_NOSIGNAL);
}

/* Send everything; header and parts are ours to change. */
static IvfpqServed
send_parts(struct iovec *parts, int nparts, int64 deadline, IvfpqReply *reply)
{
	while (nparts > 0)
	{
		struct msghdr message = {.msg_iov = parts,.msg_iovlen = nparts};
		ssize_t		sent = IvfpqSendMessage(connection.sock, &message,
											connection.passed_fd);

		if (sent > 0)
			connection.passed_fd = -1;
		if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			if (!wait_for(WL_SOCKET_WRITEABLE, deadline))
				return give_up(IVFPQ_TIMED_OUT, "it takes no message", reply);
			continue;
		}
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return give_up(IVFPQ_BROKEN, "the connection ended", reply);
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->sent, sent);
		while (nparts > 0 && (size_t) sent >= parts->iov_len)
		{
			sent -= parts->iov_len;
			parts++;
			nparts--;
		}
		if (nparts > 0)
		{
			parts->iov_base = (char *) parts->iov_base + sent;
			parts->iov_len -= sent;
		}
	}
	return IVFPQ_SERVED;
}

/* Receive what there is, or comes until then unless the latch is set. */
static ssize_t
receive_some(Size filled, int64 until)
{
	ssize_t		received;

	do
		received = recv(connection.sock, connection.buffer + filled,
						connection.size - filled, 0);
	while (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) &&
		   until > 0 && !MyLatch->is_set && IvfpqNow() < until);
	return received;
}

/*
 * Receive until the buffer holds `wanted` bytes, or more.  What is likely to
 * come at once is looked for before we sleep: to be woken takes a good part of
 * what a card takes to search.
 */
static IvfpqServed
receive_bytes(Size *filled, Size wanted, int64 deadline, IvfpqReply *reply)
{
	int64		until = connection.soon ? IvfpqNow() + IVFPQ_SOON_US : 0;

	while (*filled < wanted)
	{
		ssize_t		received;

		if (until == 0 && !wait_for(WL_SOCKET_READABLE, deadline))
			return give_up(IVFPQ_TIMED_OUT, "nothing came in time", reply);
		received = receive_some(*filled, until);
		until = 0;
		if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK ||
							 errno == EINTR))
			continue;
		if (received <= 0)
			return give_up(IVFPQ_BROKEN, "the connection ended", reply);
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->received, received);
		*filled += received;
	}
	return IVFPQ_SERVED;
}

/* A refusal, and what it means for a search. */
static IvfpqServed
take_refusal(IvfpqReply *reply)
{
	GvRefusal  *refusal = (GvRefusal *) (connection.buffer +
										 sizeof(GvMessage));

	refusal->reason[sizeof(refusal->reason) - 1] = '\0';
	reply->refusal = refusal->code;
	reply->reason = refusal->reason;
	switch (refusal->code)
	{
		case GV_REFUSED_NO_MIRROR:
			return IVFPQ_NOT_MIRRORED;
		case GV_REFUSED_LOADING:
			return IVFPQ_LOADING;
		case GV_REFUSED_FAILED:
			return IVFPQ_ENGINE_FAILED;
		case GV_REFUSED_VERSION:
		case GV_REFUSED_FULL:
		case GV_REFUSED_EXISTS:
		case GV_REFUSED_NO_MEMORY:
			return IVFPQ_REFUSED;
		default:
			IvfpqDisconnect();
			return IVFPQ_BROKEN;
	}
}

/*
 * Receive the answer to what was sent, at most max_length bytes behind its
 * header.
 */
IvfpqServed
IvfpqReceive(uint32 max_length, int64 deadline, IvfpqReply *reply)
{
	GvMessage	header;
	Size		filled = 0;
	IvfpqServed served;

	memset(reply, 0, sizeof(*reply));
	reply->reason = "";
	if (connection.sock == PGINVALID_SOCKET || connection.asked == 0)
		return give_up(IVFPQ_BROKEN, "nothing was asked", reply);

	connection.busy = true;
	served = receive_bytes(&filled, sizeof(header), deadline, reply);
	if (served != IVFPQ_SERVED)
		return served;
	memcpy(&header, connection.buffer, sizeof(header));
	if (header.request != connection.asked ||
		(header.type != GV_MSG_OK && header.type != GV_MSG_REFUSED) ||
		(header.type == GV_MSG_OK && header.length > max_length) ||
		(header.type == GV_MSG_REFUSED && header.length != sizeof(GvRefusal)))
		return give_up(IVFPQ_BROKEN, "its answer makes no sense", reply);
	if (!make_room(sizeof(header) + header.length))
		return give_up(IVFPQ_BROKEN, "no memory for its answer", reply);
	served = receive_bytes(&filled, sizeof(header) + header.length, deadline,
						   reply);
	if (served != IVFPQ_SERVED)
		return served;
	if (filled != sizeof(header) + header.length)
		return give_up(IVFPQ_BROKEN, "its answer is too long", reply);

	connection.busy = false;
	connection.asked = 0;
	if (header.type == GV_MSG_REFUSED)
		return take_refusal(reply);
	reply->body = connection.buffer + sizeof(header);
	reply->length = header.length;
	return IVFPQ_SERVED;
}

/*
 * A socket to gpuvecd, that does not block; PGINVALID_SOCKET, and why.
 */
pgsocket
IvfpqOpenSocket(const char **reason)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	pgsocket	sock;
	uid_t		uid;
	gid_t		gid;

	*reason = "no file descriptor is free";
	if (!AcquireExternalFD())
		return PGINVALID_SOCKET;
	*reason = "there is no socket for it";
	sock = socket(AF_UNIX, SOCK_STREAM, 0);
	if (sock == PGINVALID_SOCKET)
	{
		ReleaseExternalFD();
		return PGINVALID_SOCKET;
	}
	(void) fcntl(sock, F_SETFD, FD_CLOEXEC);
	strlcpy(address.sun_path, GV_SOCKET_PATH, sizeof(address.sun_path));
	*reason = "it does not listen";
	if (pg_set_noblock(sock) &&
		connect(sock, (struct sockaddr *) &address, sizeof(address)) == 0)
	{
		*reason = "it is another user's";
		if (getpeereid(sock, &uid, &gid) == 0 && uid == geteuid())
			return sock;
	}
	closesocket(sock);
	ReleaseExternalFD();
	return PGINVALID_SOCKET;
}

/* Be connected to it, or say why not. */
static IvfpqServed
open_socket(IvfpqReply *reply)
{
	const char *reason;

	connection.sock = IvfpqOpenSocket(&reason);
	if (connection.sock == PGINVALID_SOCKET)
		return hold_off(IVFPQ_DOWN, HOLD_OFF_US, reason, reply);
	return IVFPQ_SERVED;
}

/* The things to wait for; an error leaves no connection. */
static void
make_events(void)
{
	PG_TRY();
	{
		connection.events = GvCreateWaitEventSet(3);
		AddWaitEventToSet(connection.events, WL_LATCH_SET, PGINVALID_SOCKET,
						  MyLatch, NULL);
		AddWaitEventToSet(connection.events, WL_EXIT_ON_PM_DEATH,
						  PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(connection.events, WL_SOCKET_READABLE,
						  connection.sock, NULL, NULL);
	}
	PG_CATCH();
	{
		IvfpqDisconnect();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Say who we are, and hear who that is. */
static IvfpqServed
greet(GvRole role, int64 deadline, IvfpqReply *reply)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role,
	(uint32) MyProcPid};
	GvMessage	header = {sizeof(hello), GV_MSG_HELLO, 0};
	struct iovec parts[2] = {{&header, sizeof(header)}, {&hello, sizeof(hello)}};
	IvfpqServed served;

	connection.busy = true;
	served = send_parts(parts, 2, deadline, reply);
	if (served != IVFPQ_SERVED)
		return served;
	connection.asked = GV_MSG_HELLO;
	served = IvfpqReceive(sizeof(GvWelcome), deadline, reply);
	if (served == IVFPQ_SERVED && reply->length != sizeof(GvWelcome))
		return give_up(IVFPQ_BROKEN, "its answer makes no sense", reply);
	if (reply->refusal != 0)
		return hold_off(served, REFUSED_HOLD_OFF_US, reply->reason, reply);
	if (served != IVFPQ_SERVED)
		return served;
	memcpy(&connection.welcome, reply->body, sizeof(GvWelcome));
	connection.welcome.engine[sizeof(connection.welcome.engine) - 1] = '\0';
	connection.welcome.release[sizeof(connection.welcome.release) - 1] = '\0';
	return IVFPQ_SERVED;
}

/* Be connected in this role. */
static IvfpqServed
be_connected(GvRole role, int64 deadline, IvfpqReply *reply)
{
	uint64		instance = server_instance();
	IvfpqServed served;

	if (connection.sock != PGINVALID_SOCKET &&
		!connection.busy && connection.asked == 0 &&
		connection.pid == MyProcPid && connection.role == role &&
		(instance == 0 || connection.welcome.instance == instance))
		return IVFPQ_SERVED;
	IvfpqDisconnect();

	if (IvfpqNow() < connection.not_before &&
		connection.hold_instance == instance)
		return give_up(connection.held, "it was not to be reached", reply);
	if (!make_room(LEAST_BUFFER))
		return give_up(IVFPQ_DOWN, "no memory for its answers", reply);
	served = open_socket(reply);
	if (served != IVFPQ_SERVED)
		return served;
	make_events();
	connection.pid = MyProcPid;
	connection.role = role;
	return greet(role, deadline, reply);
}

/* Answers need not all be as long as the last one. */
static void
shrink_buffer(void)
{
	if (connection.size > MOST_BUFFER)
	{
		pfree(connection.buffer);
		connection.buffer = NULL;
		connection.size = 0;
		make_room(LEAST_BUFFER);
	}
}

/*
 * Send a request; IVFPQ_SERVED: on its way.  `parts` are what follows the
 * header.
 */
IvfpqServed
IvfpqSend(GvRole role, GvMessageType type, const struct iovec *parts,
		  int nparts, int64 deadline, IvfpqReply *reply)
{
	GvMessage	header = {0, type, 0};
	struct iovec all[IVFPQ_REQUEST_PARTS + 1] = {{&header, sizeof(header)}};
	IvfpqServed served;

	Assert(nparts <= IVFPQ_REQUEST_PARTS);
	memset(reply, 0, sizeof(*reply));
	reply->reason = "";
	served = be_connected(role, deadline, reply);
	if (served != IVFPQ_SERVED)
		return served;
	shrink_buffer();
	for (int i = 0; i < nparts; i++)
	{
		all[i + 1] = parts[i];
		header.length += parts[i].iov_len;
	}
	connection.busy = true;
	served = send_parts(all, nparts + 1, deadline, reply);
	if (served != IVFPQ_SERVED)
		return served;
	connection.busy = false;
	connection.asked = type;
	return IVFPQ_SERVED;
}

/* Send a request and receive its answer. */
IvfpqServed
IvfpqExchange(GvRole role, GvMessageType type, const struct iovec *parts,
			  int nparts, uint32 max_length, int64 deadline,
			  IvfpqReply *reply)
{
	IvfpqServed served = IvfpqSend(role, type, parts, nparts, deadline,
								   reply);

	if (served != IVFPQ_SERVED)
		return served;
	return IvfpqReceive(max_length, deadline, reply);
}

/* Send a request, and a file descriptor with it; receive an answer of nothing. */
IvfpqServed
IvfpqPass(GvRole role, GvMessageType type, const void *request, Size bytes,
		  int fd, int64 deadline, IvfpqReply *reply)
{
	struct iovec part = {(void *) request, bytes};
	IvfpqServed served;

	memset(reply, 0, sizeof(*reply));
	reply->reason = "";
	served = be_connected(role, deadline, reply);
	if (served != IVFPQ_SERVED)
		return served;
	connection.passed_fd = fd;
	return IvfpqExchange(role, type, &part, 1, 0, deadline, reply);
}
