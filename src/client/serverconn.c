/*
 * serverconn.c
 *		Where gpuvecd listens, and whose it is.
 *
 * One that the supervisor starts is the server's own user's, and its socket
 * lies in the data directory.  One that PostgreSQL does not start
 * (gpuvec.server = external) is found in a folder that both know, and may be
 * another user's, whom gpuvec.server_owner names.  In that folder nobody else
 * may be able to put a socket.
 */
#include "postgres.h"

#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/servershared.h"
#include "client/settings.h"
#include "miscadmin.h"
#include "port.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "client/serverconn.h"
#include "pgcompat.h"

/* Who runs it; found while the library is preloaded. */
static uid_t owner;

/* Has PostgreSQL nothing to do with its start and its end? */
bool
IvfpqServerIsExternal(void)
{
	return ivfpq_server == IVFPQ_SERVER_EXTERNAL;
}

/* See settings.h. */
bool
IvfpqFindUser(const char *name, uid_t *uid)
{
	struct passwd *user;
	char	   *end;
	unsigned long long number;

	if (name[0] == '\0')
	{
		*uid = geteuid();
		return true;
	}
	errno = 0;
	number = strtoull(name, &end, 10);
	if (name[0] >= '0' && name[0] <= '9' && *end == '\0')
	{
		*uid = (uid_t) number;
		/* the last one means no user to the system */
		return errno == 0 && number < PG_UINT32_MAX;
	}
	user = getpwnam(name);
	if (user == NULL)
		return false;
	*uid = user->pw_uid;
	return true;
}

/* See settings.h. */
bool
IvfpqFolderFits(const char *folder)
{
	return strlen(folder) + sizeof("/" GV_SOCKET_PATH) <=
		sizeof(((struct sockaddr_un *) NULL)->sun_path);
}

/*
 * Look at the settings, which stay as they are, while the library is
 * preloaded.
 */
void
IvfpqPlaceInit(void)
{
	owner = geteuid();
	if (!IvfpqServerIsExternal())
		return;
	if (ivfpq_server_directory[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("gpuvec.server is external, and gpuvec.server_directory is empty"),
				 errhint("Set it to the folder that gpuvecd's option --socket names.")));
	/* a name that no user has is not accepted, and warned of */
	if (!IvfpqFindUser(ivfpq_server_owner, &owner))
		owner = geteuid();
}

/* Does it run as who it should? */
static bool
is_server_owner(uid_t uid)
{
	return uid == owner;
}

/* Say why there is no way to it; false. */
static bool
pg_attribute_printf(2, 3)
refuse(const char **reason, const char *format,...)
{
	static char text[200];
	va_list		args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	*reason = text;

	return false;
}

/* Can nobody but its owner and root put a socket into the folder? */
static bool
is_safe(const char **reason)
{
	struct stat status;

	if (stat(ivfpq_server_directory, &status) != 0)
		return refuse(reason, "its folder cannot be looked at: %s",
					  strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return refuse(reason, "its folder is no folder");
	if (status.st_uid != owner && status.st_uid != 0)
		return refuse(reason, "its folder is user %u's, neither gpuvec.server_owner's nor root's",
					  (unsigned) status.st_uid);
	if ((status.st_mode & 022) != 0)
		return refuse(reason, "its folder has mode %03o: the group or others may write to it",
					  (unsigned) status.st_mode & 07777);
	return true;
}

/* The socket's address; false, and why, if it is not to be trusted. */
static bool
find_socket(struct sockaddr_un *address, const char **reason)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (!IvfpqServerIsExternal())
	{
		strlcpy(address->sun_path, GV_SOCKET_PATH, sizeof(address->sun_path));
		return true;
	}
	snprintf(address->sun_path, sizeof(address->sun_path), "%s/%s",
			 ivfpq_server_directory, GV_SOCKET_PATH);
	return is_safe(reason);
}

/* Why connect() has failed. */
static const char *
connect_problem(int error)
{
	const char *reason;

	if (!IvfpqServerIsExternal())
		return "it does not listen";
	if (error == ENOENT)
		return "there is no socket in its folder";
	if (error == ECONNREFUSED)
		return "nobody listens at the socket in its folder";
	(void) refuse(&reason, "the socket in its folder cannot be connected to: %s",
				  strerror(error));
	return reason;
}

/* ----
 * A socket to gpuvecd: requests out, answers in, and the waiting.
 *
 * Memory follows what was really sent, and that is bounded by what was asked
 * for.
 */

#define SOCKET_EVENT		2	/* in the set of events */

/* Sets the outcome of a request; the reason may be the channel's own. */
static void
conclude(IvfpqChannel *channel, IvfpqServed served, const char *reason)
{
	channel->served = served;
	if (reason != channel->reason)
		strlcpy(channel->reason, reason, sizeof(channel->reason));
}

/* A closed channel, whose answers will be in this context. */
void
IvfpqChannelInit(IvfpqChannel *channel, MemoryContext context)
{
	memset(channel, 0, sizeof(*channel));
	channel->sock = PGINVALID_SOCKET;
	channel->passed_fd = -1;
	channel->context = context;
	channel->served = IVFPQ_DOWN;
}

/* Close it, if it is open, and keep the reason; the first one counts. */
void
IvfpqChannelClose(IvfpqChannel *channel, IvfpqServed served,
				  const char *reason)
{
	if (channel->events != NULL)
		FreeWaitEventSet(channel->events);
	channel->events = NULL;
	if (!IvfpqChannelIsOpen(channel))
		return;
	closesocket(channel->sock);
	ReleaseExternalFD();
	channel->sock = PGINVALID_SOCKET;
	channel->soon = false;
	channel->made = channel->sent = channel->answered = 0;
	channel->received = 0;
	channel->passed_fd = -1;
	conclude(channel, served, reason);
}

/* Close it because of what an answer says. */
IvfpqServed
IvfpqChannelReject(IvfpqChannel *channel)
{
	IvfpqChannelClose(channel, IVFPQ_BROKEN, "its answer makes no sense");
	return IVFPQ_BROKEN;
}

/* ---- requests */

/*
 * Make a request, the tail of which is not copied.  There is a place for it;
 * NULL when the channel is closed.
 */
IvfpqRequest *
IvfpqChannelAdd(IvfpqChannel *channel, GvMessageType type,
				const void *head, Size head_bytes,
				const void *tail, Size tail_bytes, uint32 max_length)
{
	IvfpqRequest *request = &channel->requests[channel->made %
											   IVFPQ_MAX_REQUESTS];

	/* what lies behind would be sent in its place */
	if (head_bytes > sizeof(request->head))
		elog(ERROR, "the head of message %d has %zu bytes", (int) type, head_bytes);
	if (!IvfpqChannelIsOpen(channel))
		return NULL;
	Assert(channel->made - channel->answered < IVFPQ_MAX_REQUESTS);
	request->header.length = (uint32) (head_bytes + tail_bytes);
	request->header.type = type;
	request->header.request = 0;
	if (head_bytes > 0)
		memcpy(request->head, head, head_bytes);
	request->head_bytes = head_bytes;
	request->tail = tail;
	request->tail_bytes = tail_bytes;
	request->sent = 0;
	request->max_length = max_length;
	channel->made++;
	return request;
}

/* Adds the unsent rest of a part `before` bytes into the message. */
static int
add_part(struct iovec *parts, int nparts, const void *bytes, Size length,
		 Size before, Size sent)
{
	Size		skip = sent > before ? sent - before : 0;

	if (skip >= length)
		return nparts;
	parts[nparts].iov_base = (char *) bytes + skip;
	parts[nparts].iov_len = length - skip;
	return nparts + 1;
}

/* As sendmsg; a descriptor goes along if there is one to be passed. */
static ssize_t
send_message(IvfpqChannel *channel, struct msghdr *message)
{
	union
	{
		struct cmsghdr head;
		char		bytes[CMSG_SPACE(sizeof(int))];
	}			control;
	ssize_t		sent;

	if (channel->passed_fd >= 0)
	{
		memset(&control, 0, sizeof(control));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &channel->passed_fd, sizeof(int));
		message->msg_control = control.bytes;
		message->msg_controllen = sizeof(control.bytes);
	}
	sent = sendmsg(channel->sock, message, MSG_NOSIGNAL);
	if (sent > 0)
		channel->passed_fd = -1;
	return sent;
}

/*
 * Send what the socket takes; true when the request is out.  When gpuvecd has
 * gone there may be a refusal to read, so that is found out there.
 */
static bool
send_some(IvfpqChannel *channel, IvfpqRequest *request)
{
	Size		head = sizeof(request->header);
	Size		tail = head + request->head_bytes;

	while (request->sent < tail + request->tail_bytes)
	{
		struct iovec parts[3];
		struct msghdr message = {.msg_iov = parts};
		ssize_t		sent;
		int			n = 0;

		n = add_part(parts, n, &request->header, head, 0, request->sent);
		n = add_part(parts, n, request->head, request->head_bytes, head,
					 request->sent);
		n = add_part(parts, n, request->tail, request->tail_bytes, tail,
					 request->sent);
		message.msg_iovlen = n;
		sent = send_message(channel, &message);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
		{
			if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE &&
				errno != ECONNRESET)
				IvfpqChannelClose(channel, IVFPQ_BROKEN,
								  "the connection ended");
			return false;
		}
		request->sent += sent;
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->sent, sent);
	}
	return true;
}

/* Is there a request that may be sent, or a part of one? */
static bool
has_to_send(const IvfpqChannel *channel)
{
	return channel->sent < channel->made &&
		channel->sent - channel->answered < (uint64) channel->most;
}

static void
send_requests(IvfpqChannel *channel)
{
	while (has_to_send(channel) &&
		   send_some(channel, &channel->requests[channel->sent %
												 IVFPQ_MAX_REQUESTS]))
		channel->sent++;
}

/* ---- answers */

/*
 * Makes the buffer hold `size` bytes of an answer; bytes received stay.
 * False: there is no memory.
 */
static bool
channel_reserve(IvfpqChannel *channel, Size size)
{
	char	   *in;

	if (size <= channel->capacity)
		return true;
	in = MemoryContextAllocExtended(channel->context, size,
									MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (in == NULL)
		return false;
	if (channel->received > 0)
		memcpy(in, channel->in, channel->received);
	if (channel->in != NULL)
		pfree(channel->in);
	channel->in = in;
	channel->capacity = size;
	return true;
}

/*
 * The header of an answer is there: does it make sense?  Before a request is
 * out it may be refused, not answered.
 */
static bool
check_header(IvfpqChannel *channel)
{
	const GvMessage *header = (const GvMessage *) channel->in;
	const IvfpqRequest *request = &channel->requests[channel->answered %
													 IVFPQ_MAX_REQUESTS];
	bool		is_out = channel->sent > channel->answered;

	if (header->request != request->header.type ||
		!((header->type == GV_MSG_OK && is_out &&
		   header->length <= request->max_length) ||
		  (header->type == GV_MSG_REFUSED &&
		   header->length == sizeof(GvRefusal))))
	{
		(void) IvfpqChannelReject(channel);
		return false;
	}
	if (channel_reserve(channel, sizeof(*header) + header->length))
		return true;
	IvfpqChannelClose(channel, IVFPQ_BROKEN, "no memory for its answer");
	return false;
}

/* The outcome of a search that is refused with this code. */
static IvfpqServed
refused_as(uint32 code)
{
	switch (code)
	{
		case GV_REFUSED_NO_MIRROR:
			return IVFPQ_NOT_MIRRORED;
		case GV_REFUSED_LOADING:
			return IVFPQ_LOADING;
		case GV_REFUSED_FAILED:
			return IVFPQ_ENGINE_FAILED;
		case GV_REFUSED_VERSION:
		case GV_REFUSED_INCARNATION:
		case GV_REFUSED_FULL:
		case GV_REFUSED_EXISTS:
		case GV_REFUSED_NO_MEMORY:
			return IVFPQ_REFUSED;
		default:
			return IVFPQ_BROKEN;
	}
}

/*
 * A refusal.  It is the end where several requests are on their way, and of
 * one that was not out yet.
 */
static void
take_refusal(IvfpqChannel *channel)
{
	GvRefusal  *refusal = (GvRefusal *) (channel->in + sizeof(GvMessage));
	bool		several = channel->most > 1;
	const char *reason = refusal->reason;

	refusal->reason[sizeof(refusal->reason) - 1] = '\0';
	if (several && reason[0] == '\0')
		reason = gv_refusal_name(refusal->code);
	channel->refusal = refusal->code;
	channel->served = refused_as(refusal->code);
	snprintf(channel->reason, sizeof(channel->reason), "%s%s",
			 several ? "it refused: " : "", reason);
	if (several || channel->served == IVFPQ_BROKEN ||
		channel->sent == channel->answered)
		IvfpqChannelClose(channel, channel->served, channel->reason);
}

/* Bytes came, `before` were there: is the answer whole? */
static bool
is_whole(IvfpqChannel *channel, Size before)
{
	Size		head = sizeof(GvMessage);

	if (channel->received < head ||
		(before < head && !check_header(channel)))
		return false;
	if (channel->received > head + IvfpqAnswerLength(channel))
		IvfpqChannelClose(channel, IVFPQ_BROKEN, "its answer is too long");
	return IvfpqChannelIsOpen(channel) &&
		channel->received == head + IvfpqAnswerLength(channel);
}

/*
 * How much to read now.  Where several requests are on their way it is no more
 * than the answer at hand; else nothing can lie behind that.
 */
static Size
bytes_to_read(const IvfpqChannel *channel)
{
	Size		whole = sizeof(GvMessage);

	if (channel->most == 1)
		return channel->capacity - channel->received;
	if (channel->received >= whole)
		whole += IvfpqAnswerLength(channel);
	return whole - channel->received;
}

/*
 * Receives the bytes that are there.  An answer that is likely to come at once
 * is polled for before we sleep, unless the latch is set: waking up takes a
 * good part of the time that a GPU takes to search.
 */
static ssize_t
receive_some(IvfpqChannel *channel, Size bytes)
{
	int64		until = channel->soon ? IvfpqNow() + IVFPQ_SOON_US : 0;
	ssize_t		received;

	do
		received = recv(channel->sock, channel->in + channel->received, bytes,
						0);
	while (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) &&
		   until > 0 && !MyLatch->is_set && IvfpqNow() < until);
	return received;
}

/*
 * Receive what there is of the answer to the oldest request; true when it is
 * whole.  A refusal is an answer, too: `served` tells.
 */
static bool
receive(IvfpqChannel *channel)
{
	while (IvfpqChannelIsOpen(channel))
	{
		Size		before = channel->received;
		Size		bytes = bytes_to_read(channel);
		ssize_t		received;

		if (bytes == 0)
			return true;		/* it was whole before, and is not taken yet */
		received = receive_some(channel, bytes);
		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return false;
		if (received <= 0)
		{
			IvfpqChannelClose(channel, IVFPQ_BROKEN, "the connection ended");
			return false;
		}
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->received, received);
		channel->received += received;
		if (is_whole(channel, before))
		{
			channel->refusal = 0;
			conclude(channel, IVFPQ_SERVED, "");
			if (((GvMessage *) channel->in)->type == GV_MSG_REFUSED)
				take_refusal(channel);
			return true;
		}
		/* less than the buffer takes: that was all, do not ask again */
		if ((Size) received < bytes)
			return false;
	}
	return false;
}

/*
 * Move what can be moved without waiting; true when the answer to the oldest
 * request is there, to be taken (IvfpqChannelTaken).
 */
bool
IvfpqChannelMove(IvfpqChannel *channel)
{
	send_requests(channel);
	return channel->answered < channel->made && receive(channel);
}

/* The answer is done with, and its request. */
void
IvfpqChannelTaken(IvfpqChannel *channel)
{
	if (!IvfpqChannelIsOpen(channel))
		return;
	channel->received = 0;
	channel->answered++;
}

/* ---- waiting */

/*
 * The latch was set.  Serving an interrupt may end in an error; then the
 * rest of the answer is never read.
 */
static void
heed_latch(IvfpqChannel *channel)
{
	ResetLatch(MyLatch);
	PG_TRY();
	{
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		IvfpqChannelClose(channel, IVFPQ_BROKEN, "it was left");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Are there descriptors for a socket, and for what waits for it? */
static bool
can_connect(void)
{
	bool		one = AcquireExternalFD();
	bool		two = one && AcquireExternalFD();

	if (two)
		ReleaseExternalFD();
	if (one)
		ReleaseExternalFD();
	return two;
}

/*
 * Nothing has moved for long: does gpuvecd live?  If not, close.  One that
 * refuses a connection lives; and if we cannot make one, that is no silence of
 * gpuvecd's.
 */
static void
check_life(IvfpqChannel *channel)
{
	uint64		before = IvfpqCountServed();
	int64		begun = IvfpqNow();
	IvfpqChannel *other;
	IvfpqServed served;

	if (!can_connect())
		return;
	other = IvfpqConnect(GV_ROLE_SESSION, begun +
						 (int64) ivfpq_request_timeout * 1000);
	served = IvfpqChannelExchange(other, GV_MSG_PING, NULL, 0, NULL, 0, 0);
	if (served == IVFPQ_SERVED || served == IVFPQ_REFUSED)
		return;
	if (served == IVFPQ_TIMED_OUT)
		IvfpqNoteSilence(begun, before);
	IvfpqChannelClose(channel, served, served == IVFPQ_TIMED_OUT ?
					  "it does not answer" : "it is gone");
}

/* How long to sleep at most, ms; 0: it is too late, or we are to end. */
static long
time_left(const IvfpqChannel *channel)
{
	int64		left;

	if (channel->deadline == 0)
		return ivfpq_request_timeout;
	left = channel->deadline - IvfpqNow();
	if (left <= 0 || ShutdownRequestPending)
		return 0;
	return (long) ((left + 999) / 1000);
}

/*
 * Wait until there is something to receive, or the socket takes more if there
 * is something to be sent; returns which of them, 0: closed.  Without a
 * deadline an answer may take any time, as long as gpuvecd lives.
 */
uint32
IvfpqChannelWait(IvfpqChannel *channel)
{
	uint32		what = WL_SOCKET_READABLE |
	(has_to_send(channel) ? WL_SOCKET_WRITEABLE : 0);

	while (IvfpqChannelIsOpen(channel))
	{
		long		ms = time_left(channel);
		WaitEvent	event;

		if (ms == 0)
		{
			IvfpqChannelClose(channel, IVFPQ_TIMED_OUT,
							  has_to_send(channel) ? "it takes no message" :
							  "nothing came in time");
			break;
		}
		ModifyWaitEvent(channel->events, SOCKET_EVENT, what, NULL);
		if (WaitEventSetWait(channel->events, ms, &event, 1,
							 IvfpqWaitEvent()) == 0)
		{
			if (channel->deadline == 0)
				check_life(channel);
		}
		else if (event.events & WL_LATCH_SET)
			heed_latch(channel);
		else
			return event.events;
	}
	return 0;
}

/*
 * Send a request and receive its answer, of at most this length, while there
 * is nothing else on its way.  IVFPQ_SERVED: it is there.
 */
IvfpqServed
IvfpqChannelAsk(IvfpqChannel *channel, GvMessageType type,
				const void *head, Size head_bytes,
				const void *tail, Size tail_bytes, uint32 max_length)
{
	uint32		ready = channel->soon ? WL_SOCKET_READABLE : 0;

	Assert(channel->made == channel->answered);
	if (IvfpqChannelAdd(channel, type, head, head_bytes, tail, tail_bytes,
						max_length) == NULL)
		return channel->served;
	send_requests(channel);
	while (!((ready & WL_SOCKET_READABLE) && receive(channel)))
	{
		ready = IvfpqChannelWait(channel);
		if (ready == 0)
			return channel->served;
		if (ready & WL_SOCKET_WRITEABLE)
			send_requests(channel);
	}
	IvfpqChannelTaken(channel);
	return channel->served;
}

/* The same, and the answer has exactly this length. */
IvfpqServed
IvfpqChannelExchange(IvfpqChannel *channel, GvMessageType type,
					 const void *head, Size head_bytes,
					 const void *tail, Size tail_bytes, uint32 length)
{
	IvfpqServed served = IvfpqChannelAsk(channel, type, head, head_bytes,
										 tail, tail_bytes, length);

	if (served == IVFPQ_SERVED && IvfpqAnswerLength(channel) != length)
		return IvfpqChannelReject(channel);
	return served;
}

/* ----
 * A channel is connected; and the one that each process has.
 *
 * Where the socket is: state/socketplace.c.  The channel of a process, for one
 * request at a time, stays open between requests.  Another one is opened when
 * it is not fit for the next: in another role, in the midst of a request that
 * an error ended, or to a gpuvecd that has been replaced.
 */

/* The time after a failure to connect in which there is no other try, */
#define HOLD_OFF_US			100000

/* and the time after gpuvecd refused. */
#define REFUSED_HOLD_OFF_US 1000000

/* Bytes of the memory for answers that are kept between requests. */
#define KEPT_CAPACITY			(256 * 1024)

/* Say why it is not open. */
static void
stay_closed(IvfpqChannel *channel, IvfpqServed served, const char *reason)
{
	channel->served = served;
	channel->refusal = 0;
	strlcpy(channel->reason, reason, sizeof(channel->reason));
}

/* A socket to gpuvecd that does not block; PGINVALID_SOCKET, and why. */
static pgsocket
open_socket(const char **reason)
{
	struct sockaddr_un address;
	pgsocket	sock;
	uid_t		uid;
	gid_t		gid;

	if (!find_socket(&address, reason))
		return PGINVALID_SOCKET;
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
	if (pg_set_noblock(sock) &&
		connect(sock, (struct sockaddr *) &address, sizeof(address)) == 0)
	{
		*reason = "it is another user's";
		if (getpeereid(sock, &uid, &gid) == 0 && is_server_owner(uid))
			return sock;
	}
	else
		*reason = connect_problem(errno);
	closesocket(sock);
	ReleaseExternalFD();
	return PGINVALID_SOCKET;
}

/* The things to wait for; an error closes the channel. */
static void
make_events(IvfpqChannel *channel)
{
	PG_TRY();
	{
		channel->events = IvfpqCreateWaitEventSet(3);
		AddWaitEventToSet(channel->events, WL_LATCH_SET, PGINVALID_SOCKET,
						  MyLatch, NULL);
		AddWaitEventToSet(channel->events, WL_EXIT_ON_PM_DEATH,
						  PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(channel->events, WL_SOCKET_READABLE, channel->sock,
						  NULL, NULL);
	}
	PG_CATCH();
	{
		IvfpqChannelClose(channel, IVFPQ_DOWN, "it cannot be waited for");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Say who we are, and hear who that is. */
static bool
greet(IvfpqChannel *channel)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
		channel->role, (uint32) MyProcPid,
	ivfpq_shared ? ivfpq_shared->incarnation : 0};
	GvWelcome  *welcome = &channel->welcome;

	if (IvfpqChannelExchange(channel, GV_MSG_HELLO, &hello, sizeof(hello),
							 NULL, 0, sizeof(*welcome)) != IVFPQ_SERVED)
	{
		IvfpqChannelClose(channel, channel->served, channel->reason);
		return false;
	}
	memcpy(welcome, IvfpqAnswerBody(channel), sizeof(*welcome));
	welcome->engine[sizeof(welcome->engine) - 1] = '\0';
	welcome->release[sizeof(welcome->release) - 1] = '\0';
	return true;
}

/* Connect a closed channel and say hello; false: it is closed. */
bool
IvfpqChannelOpen(IvfpqChannel *channel, GvRole role)
{
	const char *reason = "no memory for its answers";

	channel->pid = MyProcPid;
	channel->role = role;
	channel->most = role == GV_ROLE_BUILDER || role == GV_ROLE_SET ?
		IVFPQ_MAX_REQUESTS : 1;
	channel->refusal = 0;
	if (channel_reserve(channel, IVFPQ_LEAST_CAPACITY))
		channel->sock = open_socket(&reason);
	if (!IvfpqChannelIsOpen(channel))
	{
		stay_closed(channel, IVFPQ_DOWN, reason);
		return false;
	}
	make_events(channel);
	return greet(channel);
}

/* ---- the channel of this process */

static IvfpqChannel own = {.sock = PGINVALID_SOCKET, .passed_fd = -1};

/* Not connected, and not again before this */
static int64 not_before;
static uint64 hold_instance;	/* unless this is not the server's any more */
static struct
{
	IvfpqServed served;
	uint32		refusal;
	char		reason[sizeof(own.reason)];
}			held;				/* why */

/* Close it, if it is open. */
void
IvfpqDisconnect(void)
{
	IvfpqChannelClose(&own, IVFPQ_DOWN, "it was left");
}

/* The socket to wait for, between requests, to notice the channel's end. */
pgsocket
IvfpqOwnSocket(void)
{
	return own.sock;
}

static uint64
server_instance(void)
{
	return ivfpq_shared ? pg_atomic_read_u64(&ivfpq_shared->instance) : 0;
}

/* Can the next request go through it as it is? */
static bool
is_fit(GvRole role, uint64 instance)
{
	return IvfpqChannelIsOpen(&own) &&
		own.made == own.answered &&
		own.pid == MyProcPid && own.role == role &&
		(instance == 0 || own.welcome.instance == instance);
}

/* Answers need not all be as long as the last one; false: no memory. */
static bool
shrink(void)
{
	if (own.capacity <= KEPT_CAPACITY)
		return true;
	pfree(own.in);
	own.in = NULL;
	own.capacity = 0;
	return channel_reserve(&own, IVFPQ_LEAST_CAPACITY);
}

/* There was no connecting: do not try again for a while. */
static void
hold_off(int64 us, uint64 instance)
{
	held.served = own.served;
	held.refusal = own.refusal;
	strlcpy(held.reason, own.reason, sizeof(held.reason));
	not_before = IvfpqNow() + us;
	hold_instance = instance;
}

/*
 * The channel of this process, to be used until then.  It is closed when
 * gpuvecd cannot be reached, and whatever is asked tells why.
 */
IvfpqChannel *
IvfpqConnect(GvRole role, int64 deadline)
{
	uint64		instance = server_instance();

	own.context = TopMemoryContext;
	own.deadline = deadline;
	if (is_fit(role, instance) && shrink())
		return &own;
	IvfpqDisconnect();
	if (IvfpqNow() < not_before && hold_instance == instance)
	{
		stay_closed(&own, held.served, held.reason);
		own.refusal = held.refusal;
	}
	else if (!IvfpqChannelOpen(&own, role))
	{
		if (own.refusal != 0)
			hold_off(REFUSED_HOLD_OFF_US, instance);
		else if (own.served == IVFPQ_DOWN)
			hold_off(HOLD_OFF_US, instance);
	}
	return &own;
}

/*
 * Is gpuvecd there, for work that may take long?  If not, why, or NULL if
 * it is not to be started.
 */
bool
IvfpqServerAnswers(const char **reason)
{
	IvfpqServerState state = IvfpqSharedState();

	*reason = NULL;
	if (state == IVFPQ_STATE_UP)
	{
		if (pg_atomic_read_u32(&ivfpq_shared->suspended) == 0)
			return true;
		*reason = "it does not answer";
	}
	else if (state != IVFPQ_STATE_OFF)
		*reason = "it is not running";
	return false;
}

/* ----
 * What gpuvecd says of itself.
 */

/*
 * Ask for the status: *head, and *mirrors [head->nmirrors] in the current
 * memory context.
 */
IvfpqServed
IvfpqAskStatus(IvfpqChannel *channel, GvStatusReply *head,
			   GvMirrorStatus **mirrors)
{
	IvfpqServed served = IvfpqChannelAsk(channel, GV_MSG_STATUS, NULL, 0,
										 NULL, 0, GV_MAX_MESSAGE);
	const char *body;
	uint32		length;
	Size		size;

	if (served != IVFPQ_SERVED)
		return served;
	body = IvfpqAnswerBody(channel);
	length = IvfpqAnswerLength(channel);
	if (length >= sizeof(*head))
		memcpy(head, body, sizeof(*head));
	if (length < sizeof(*head) || head->nmirrors < 0 ||
		length - sizeof(*head) != head->nmirrors * sizeof(GvMirrorStatus))
		return IvfpqChannelReject(channel);
	head->device[sizeof(head->device) - 1] = '\0';
	size = head->nmirrors * sizeof(GvMirrorStatus);
	*mirrors = palloc(Max(size, 1));
	memcpy(*mirrors, body + sizeof(*head), size);
	return IVFPQ_SERVED;
}
