/*
 * channel.c
 *		A socket to gpuvecd: requests out, answers in, and the waiting.
 *
 * Memory follows what was really sent, and that is bounded by what was asked
 * for.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "client/channel/channel.h"
#include "client/state/state.h"
#include "pgcompat.h"

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
bool
IvfpqChannelReserve(IvfpqChannel *channel, Size size)
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
	if (IvfpqChannelReserve(channel, sizeof(*header) + header->length))
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
