/*
 * link.c
 *		The connection of a build or of work on a set: bytes out, answers in,
 *		and the waiting.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "client/channel/link.h"
#include "client/state/state.h"
#include "pgcompat.h"

#define SOCKET_EVENT		2	/* in the set of events */

/* Close it and keep the reason; the first one counts. */
void
IvfpqLinkClose(IvfpqLink *link, const char *reason)
{
	if (link->events != NULL)
		FreeWaitEventSet(link->events);
	link->events = NULL;
	if (link->sock == PGINVALID_SOCKET)
		return;
	closesocket(link->sock);
	ReleaseExternalFD();
	link->sock = PGINVALID_SOCKET;
	strlcpy(link->reason, reason, sizeof(link->reason));
}

/* Make a message ready; the tail is not copied. */
void
IvfpqLinkPack(IvfpqParcel *parcel, GvMessageType type, const void *head,
			  Size head_bytes, const void *tail, Size tail_bytes)
{
	Assert(head_bytes <= sizeof(parcel->head));
	parcel->header.length = (uint32) (head_bytes + tail_bytes);
	parcel->header.type = type;
	parcel->header.request = 0;
	if (head_bytes > 0)
		memcpy(parcel->head, head, head_bytes);
	parcel->head_bytes = head_bytes;
	parcel->tail = tail;
	parcel->tail_bytes = tail_bytes;
	parcel->sent = 0;
	parcel->passed_fd = -1;
}

/* What is left of a part that begins `before` bytes into the message. */
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

/*
 * Send what the socket takes; true when the message is out.  When gpuvecd has
 * gone there may be a refusal to read, so that is found out there.
 */
bool
IvfpqLinkSend(IvfpqLink *link, IvfpqParcel *parcel)
{
	Size		head = sizeof(parcel->header);
	Size		tail = head + parcel->head_bytes;

	while (parcel->sent < tail + parcel->tail_bytes)
	{
		struct iovec parts[3];
		struct msghdr message = {.msg_iov = parts};
		ssize_t		sent;
		int			n = 0;

		n = add_part(parts, n, &parcel->header, head, 0, parcel->sent);
		n = add_part(parts, n, parcel->head, parcel->head_bytes, head,
					 parcel->sent);
		n = add_part(parts, n, parcel->tail, parcel->tail_bytes, tail,
					 parcel->sent);
		message.msg_iovlen = n;
		sent = IvfpqSendMessage(link->sock, &message,
								parcel->sent == 0 ? parcel->passed_fd : -1);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return false;
		parcel->sent += sent;
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->sent, sent);
	}
	return true;
}

/* Room for the body of an answer; false: closed. */
static bool
make_room(IvfpqLink *link, Size size)
{
	if (size <= link->room)
		return true;
	if (link->body)
		pfree(link->body);
	link->room = 0;
	link->body = MemoryContextAllocExtended(link->context, size,
											MCXT_ALLOC_HUGE |
											MCXT_ALLOC_NO_OOM);
	if (link->body == NULL)
	{
		IvfpqLinkClose(link, "no memory for its answers");
		return false;
	}
	link->room = size;
	return true;
}

/* The header of an answer is there: does it make sense? */
static bool
check_header(IvfpqLink *link, uint32 max_length)
{
	const GvMessage *header = &link->header;

	if ((header->type == GV_MSG_OK && header->length <= max_length) ||
		(header->type == GV_MSG_REFUSED &&
		 header->length == sizeof(GvRefusal)))
		return make_room(link, header->length);
	IvfpqLinkClose(link, "its answer makes no sense");
	return false;
}

/* A refusal is the end. */
static void
take_refusal(IvfpqLink *link)
{
	GvRefusal  *refusal = (GvRefusal *) link->body;
	char		reason[sizeof(link->reason)];

	refusal->reason[sizeof(refusal->reason) - 1] = '\0';
	snprintf(reason, sizeof(reason), "it refused: %s",
			 refusal->reason[0] != '\0' ? refusal->reason :
			 gv_refusal_name(refusal->code));
	IvfpqLinkClose(link, reason);
}

/*
 * Receive what there is of an answer of at most max_length bytes; true when
 * it is whole, in link->body.  IvfpqLinkTaken makes way for the next.
 */
bool
IvfpqLinkReceive(IvfpqLink *link, uint32 max_length)
{
	Size		head = sizeof(link->header);

	while (link->sock != PGINVALID_SOCKET)
	{
		ssize_t		received;

		if (link->received < head)
			received = recv(link->sock, (char *) &link->header +
							link->received, head - link->received, 0);
		else if (link->received < head + link->header.length)
			received = recv(link->sock, link->body + link->received - head,
							head + link->header.length - link->received, 0);
		else if (link->header.type == GV_MSG_OK)
			return true;
		else
		{
			take_refusal(link);
			return false;
		}
		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return false;
		if (received <= 0)
		{
			IvfpqLinkClose(link, "the connection ended");
			return false;
		}
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->received, received);
		link->received += received;
		if (link->received == head && !check_header(link, max_length))
			return false;
	}
	return false;
}

/* The answer is done with. */
void
IvfpqLinkTaken(IvfpqLink *link)
{
	link->received = 0;
}

/* Nothing has moved for long: does gpuvecd live? */
static bool
is_alive(IvfpqLink *link)
{
	IvfpqReply	reply;
	uint64		before = IvfpqCountServed();
	int64		begun = IvfpqNow();
	IvfpqServed served;

	served = IvfpqExchange(GV_ROLE_SESSION, GV_MSG_PING, NULL, 0, 0,
						   begun + (int64) ivfpq_request_timeout * 1000,
						   &reply);
	if (served == IVFPQ_SERVED)
		return true;
	if (served == IVFPQ_TIMED_OUT)
		IvfpqNoteSilence(begun, before);
	IvfpqLinkClose(link, served == IVFPQ_TIMED_OUT ? "it does not answer" :
				   "it is gone");
	return false;
}

/*
 * Wait until there is something to receive, or room to send if that is wanted
 * as well; false: closed.  As long as gpuvecd lives its answer may take any
 * time.
 */
bool
IvfpqLinkWait(IvfpqLink *link, bool to_send)
{
	uint32		what = WL_SOCKET_READABLE |
		(to_send ? WL_SOCKET_WRITEABLE : 0);

	while (link->sock != PGINVALID_SOCKET)
	{
		WaitEvent	event;

		ModifyWaitEvent(link->events, SOCKET_EVENT, what, NULL);
		if (WaitEventSetWait(link->events, ivfpq_request_timeout, &event, 1,
							 GvWaitEvent()) == 0)
		{
			if (!is_alive(link))
				return false;
		}
		else if (event.events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		else
			return true;
	}
	return false;
}

/*
 * Send a message and receive its answer, of at most this length, while there
 * is nothing else on its way; false: closed.
 */
bool
IvfpqLinkAsk(IvfpqLink *link, IvfpqParcel *parcel, uint32 max_length)
{
	bool		sent = false;

	for (;;)
	{
		sent = sent || IvfpqLinkSend(link, parcel);
		if (IvfpqLinkReceive(link, max_length))
			break;
		if (!IvfpqLinkWait(link, !sent))
			return false;
	}
	if (link->header.request == parcel->header.type)
		return true;
	IvfpqLinkClose(link, "its answer makes no sense");
	return false;
}

/* The same, and the answer has exactly this length. */
bool
IvfpqLinkExchange(IvfpqLink *link, IvfpqParcel *parcel, uint32 length)
{
	if (!IvfpqLinkAsk(link, parcel, length))
		return false;
	if (link->header.length == length)
		return true;
	IvfpqLinkClose(link, "its answer makes no sense");
	return false;
}

/* Is gpuvecd there?  If not, why, or NULL if nobody starts it. */
bool
IvfpqLinkIsPossible(const char **reason)
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

/* Connect; false: closed. */
static bool
connect_link(IvfpqLink *link)
{
	const char *reason;

	link->context = CurrentMemoryContext;
	link->sock = IvfpqOpenSocket(&reason);
	if (link->sock == PGINVALID_SOCKET)
	{
		strlcpy(link->reason, reason, sizeof(link->reason));
		return false;
	}
	link->events = GvCreateWaitEventSet(3);
	AddWaitEventToSet(link->events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch,
					  NULL);
	AddWaitEventToSet(link->events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET,
					  NULL, NULL);
	AddWaitEventToSet(link->events, WL_SOCKET_READABLE, link->sock, NULL,
					  NULL);
	return true;
}

/*
 * Connect and say hello; false: closed, with the reason.  Answers get their
 * memory from the current context.
 */
bool
IvfpqLinkOpen(IvfpqLink *link, GvRole role)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role,
	(uint32) MyProcPid};
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0);
	if (!connect_link(link) ||
		!IvfpqLinkExchange(link, &parcel, sizeof(GvWelcome)))
		return false;
	IvfpqLinkTaken(link);
	return true;
}
