/*
 * serverconn.c
 *		The connection to gpuvecd: where its socket is, requests and answers,
 *		and the channel that each process keeps.
 *
 * A gpuvecd that the supervisor starts runs as the server's own user, and its
 * socket is in the data directory.  A gpuvecd that PostgreSQL does not start
 * (gpuvec.server = external) has its socket in gpuvec.server_directory, and
 * may run as another user, whom gpuvec.server_owner names.  No third user may
 * be able to put a socket there, so the folder is checked before each connect,
 * and the peer's user is checked afterwards.
 *
 * The channel of a process stays open between requests.  It is closed and
 * opened again if the next request needs another role, if an error interrupted
 * the last request, or if gpuvecd has been restarted.
 *
 * A search goes through the channel's mailbox (GvMailbox), if there is one and
 * the search fits there, and becomes a request of type LOOK, which has to be
 * sent only if gpuvecd sleeps.
 */
#include "postgres.h"

#include <pwd.h>
#include <sys/eventfd.h>
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

/* Positions of the socket and the eventfd in a channel's WaitEventSet. */
#define SOCKET_EVENT		2
#define WAKE_EVENT			3

/* Initial size of the buffer for answers, and the most kept between requests */
#define MIN_CAPACITY		(16 * 1024)
#define KEPT_CAPACITY		(256 * 1024)

/*
 * Microseconds to wait before connecting again, after a failure to connect and
 * after gpuvecd refused the connection.
 */
#define HOLD_OFF_US			100000
#define REFUSED_HOLD_OFF_US	1000000

/* The user that runs gpuvecd; set while the library is preloaded. */
static uid_t owner;

/* The channel of this process. */
static IvfpqChannel own = {.sock = PGINVALID_SOCKET, .passed_fd = -1,
.wake_fd = -1};

/*
 * After a failure to connect, the channel of this process keeps its outcome,
 * and is not connected before this time (IvfpqNow) unless gpuvecd's instance
 * is another one.
 */
static int64 held_until;
static uint64 held_instance;

/*
 * Finds a user by name or number; an empty name means the user who runs the
 * server.  Returns false if there is no such user.
 */
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
		/* (uid_t) -1 is no user: system calls take it for "unchanged" */
		return errno == 0 && number < PG_UINT32_MAX;
	}
	user = getpwnam(name);
	if (user == NULL)
		return false;
	*uid = user->pw_uid;
	return true;
}

/* Returns whether the path of a socket in the folder is short enough. */
bool
IvfpqFolderFits(const char *folder)
{
	return strlen(folder) + sizeof("/" GV_SOCKET_PATH) <=
		sizeof(((struct sockaddr_un *) NULL)->sun_path);
}

/*
 * Sets `owner` from the settings, while the library is preloaded.  These
 * settings change only at server start.
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
				 errmsg("\"gpuvec.server_directory\" must be set if \"gpuvec.server\" is \"external\""),
				 errhint("Set it to the directory that the option --socket of gpuvecd names.")));
	/* the setting's check hook does not accept a name that no user has */
	if (!IvfpqFindUser(ivfpq_server_owner, &owner))
		owner = geteuid();
}

/* Sets *reason, which is valid until the next call, and returns false. */
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

/*
 * Returns whether nobody but `owner` and root can put a socket into the
 * folder; if not, *reason says why.
 */
static bool
is_safe(const char **reason)
{
	struct stat status;

	if (stat(ivfpq_server_directory, &status) != 0)
		return refuse(reason, "could not access the socket directory: %s",
					  strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return refuse(reason, "the socket directory is not a directory");
	if (status.st_uid != owner && status.st_uid != 0)
		return refuse(reason, "the socket directory belongs to user %u, not to gpuvec.server_owner or root",
					  (unsigned) status.st_uid);
	if ((status.st_mode & 022) != 0)
		return refuse(reason, "the socket directory has mode %03o, so the group or others can write to it",
					  (unsigned) status.st_mode & 07777);
	return true;
}

/*
 * Sets the outcome of a request.  The reason may be channel->reason itself.
 */
static void
set_outcome(IvfpqChannel *channel, IvfpqOutcome served, const char *reason)
{
	channel->served = served;
	if (reason != channel->reason)
		strlcpy(channel->reason, reason, sizeof(channel->reason));
}

/* Initializes a closed channel, whose answers will be in the context. */
void
IvfpqChannelInit(IvfpqChannel *channel, MemoryContext context)
{
	memset(channel, 0, sizeof(*channel));
	channel->sock = PGINVALID_SOCKET;
	channel->passed_fd = channel->wake_fd = -1;
	channel->context = context;
	channel->served = IVFPQ_DOWN;
}

/*
 * Closes the channel and sets its outcome.  A channel that is closed already
 * keeps its outcome, because the first reason is the one to report.
 */
void
IvfpqChannelClose(IvfpqChannel *channel, IvfpqOutcome served,
				  const char *reason)
{
	if (channel->events != NULL)
		FreeWaitEventSet(channel->events);
	channel->events = NULL;
	if (!IvfpqChannelIsOpen(channel))
		return;
	if (channel->wake_fd >= 0)
	{
		close(channel->wake_fd);
		ReleaseExternalFD();
	}
	channel->wake_fd = -1;
	channel->mailbox = NULL;
	closesocket(channel->sock);
	ReleaseExternalFD();
	channel->sock = PGINVALID_SOCKET;
	channel->busy_poll = false;
	channel->made = channel->sent = channel->answered = 0;
	channel->received = 0;
	channel->passed_fd = -1;
	set_outcome(channel, served, reason);
}

/*
 * Closes the channel because the contents of an answer are invalid.  Returns
 * false.
 */
bool
IvfpqChannelReject(IvfpqChannel *channel)
{
	IvfpqChannelClose(channel, IVFPQ_BROKEN, "invalid response");
	return false;
}

/* Requires that the requests under way are answered within timeout_us. */
void
IvfpqChannelExpect(IvfpqChannel *channel, int64 timeout_us)
{
	channel->begun = IvfpqNow();
	channel->answers = ivfpq_shared ?
		pg_atomic_read_u64(&ivfpq_shared->answers) : 0;
	channel->deadline = channel->begun + timeout_us;
}

/* Returns whether clients of a role have requests under way from the start. */
static bool
is_job(GvRole role)
{
	return role == GV_ROLE_BUILDER || role == GV_ROLE_SET;
}

/*
 * Adds a request without sending it.  Copies the head, but not the tail, which
 * must stay valid until it is sent.  Fewer than IVFPQ_MAX_REQUESTS requests
 * must be unanswered.  Returns NULL if the channel is closed.
 */
IvfpqRequest *
IvfpqChannelAdd(IvfpqChannel *channel, GvMessageType type,
				const void *head, Size head_bytes,
				const void *tail, Size tail_bytes, uint32 max_length)
{
	IvfpqRequest *request = &channel->requests[channel->made %
											   IVFPQ_MAX_REQUESTS];

	/* a longer head would overwrite the memory behind request->head */
	if (head_bytes > sizeof(request->head))
		elog(ERROR, "the head of message %d has %zu bytes", (int) type,
			 head_bytes);
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
	request->take = NULL;
	channel->made++;
	return request;
}

/*
 * Uses zeroed memory, which is shared with gpuvecd, as the channel's mailbox,
 * unless there is no descriptor left for the eventfd with which gpuvecd wakes
 * this process.
 */
void
IvfpqChannelUse(IvfpqChannel *channel, void *memory, Size bytes)
{
	if (!AcquireExternalFD())
		return;
	channel->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (channel->wake_fd < 0)
	{
		ReleaseExternalFD();
		return;
	}
	AddWaitEventToSet(channel->events, WL_SOCKET_READABLE, channel->wake_fd,
					  NULL, NULL);
	/* it is passed with the next request, at the latest with the first LOOK */
	channel->passed_fd = channel->wake_fd;
	channel->mailbox = memory;
	channel->answer_bytes = bytes - sizeof(GvMailbox);
}

/*
 * Puts a search into the mailbox, unless the channel has none or the search
 * does not fit there.
 */
static void
mail_request(IvfpqChannel *channel, IvfpqRequest *request)
{
	Size		fixed = offsetof(IvfpqRequest, head) + request->head_bytes;
	char	   *to = channel->mailbox ? channel->mailbox->request : NULL;

	if (to == NULL || request->header.type != GV_MSG_SEARCH ||
		request->sent > 0 ||
		fixed + request->tail_bytes > sizeof(channel->mailbox->request))
		return;
	memcpy(to, request, fixed);
	memcpy(to + fixed, request->tail, request->tail_bytes);
	if (ivfpq_shared)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sent,
								fixed + request->tail_bytes);
	request->header.length = 0;
	request->header.type = GV_MSG_LOOK;
	request->head_bytes = request->tail_bytes = 0;
	if (gv_mail_exchange(channel->mailbox, channel->busy_poll ?
						 GV_MAIL_ASKED : GV_MAIL_WAITING) !=
		GV_MAIL_UNATTENDED)
		request->sent = sizeof(request->header);
}

/*
 * Sends as much of a request as the socket takes, and channel->passed_fd with
 * it.  Returns whether the whole request is sent.  If gpuvecd has closed the
 * connection, leaves the channel open, because there may be a refusal to read;
 * receive() notices the end of the connection.
 */
static bool
send_some(IvfpqChannel *channel, IvfpqRequest *request)
{
	Size		fixed;

	mail_request(channel, request);
	fixed = offsetof(IvfpqRequest, head) + request->head_bytes;
	while (request->sent < fixed + request->tail_bytes)
	{
		Size		from_fixed = Min(request->sent, fixed);
		Size		from_tail = request->sent - from_fixed;
		struct iovec parts[] = {
			{(char *) request + from_fixed, fixed - from_fixed},
			{(char *) request->tail + from_tail,
			request->tail_bytes - from_tail}
		};
		struct msghdr message = {.msg_iov = parts,
		.msg_iovlen = lengthof(parts)};
		union
		{
			struct cmsghdr head;
			char		bytes[CMSG_SPACE(sizeof(int))];
		}			control = {.head = {.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(sizeof(int))}};
		ssize_t		sent;

		if (channel->passed_fd >= 0)
		{
			memcpy(CMSG_DATA(&control.head), &channel->passed_fd, sizeof(int));
			message.msg_control = control.bytes;
			message.msg_controllen = sizeof(control.bytes);
		}
		sent = sendmsg(channel->sock, &message, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
		{
			if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE &&
				errno != ECONNRESET)
				IvfpqChannelClose(channel, IVFPQ_BROKEN,
								  "the connection was lost");
			return false;
		}
		channel->passed_fd = -1;
		request->sent += sent;
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->sent, sent);
	}
	return true;
}

/* Returns whether a request, or a part of one, is to be sent now. */
static bool
has_to_send(const IvfpqChannel *channel)
{
	return channel->sent < channel->made &&
		channel->sent - channel->answered < (uint64) channel->max_in_flight;
}

/* Sends requests, in order, as far as the socket takes them. */
static void
send_requests(IvfpqChannel *channel)
{
	while (has_to_send(channel) &&
		   send_some(channel, &channel->requests[channel->sent %
												 IVFPQ_MAX_REQUESTS]))
		channel->sent++;
}

/*
 * Enlarges the buffer to `size` bytes and keeps the bytes received.  Returns
 * false if there is no memory.
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
 * Checks the header of an answer, and makes room for the whole answer.  If
 * that fails, closes the channel and returns false.  Before a request is
 * completely sent, gpuvecd may refuse it but not answer it.
 */
static bool
check_header(IvfpqChannel *channel)
{
	const GvMessage *header = (const GvMessage *) channel->in;
	const IvfpqRequest *request = &channel->requests[channel->answered %
													 IVFPQ_MAX_REQUESTS];
	bool		is_sent = channel->sent > channel->answered;

	if (header->request != request->header.type ||
		!((header->type == GV_MSG_OK && is_sent &&
		   header->length <= request->max_length) ||
		  (header->type == GV_MSG_REFUSED &&
		   header->length == sizeof(GvRefusal))))
		return IvfpqChannelReject(channel);
	if (channel_reserve(channel, sizeof(*header) + header->length))
		return true;
	IvfpqChannelClose(channel, IVFPQ_BROKEN, "out of memory for the response");
	return false;
}

/*
 * Sets the outcome from a refusal.  Closes the channel if several requests may
 * be under way, if the refused request is not completely sent, or if the
 * outcome is IVFPQ_BROKEN.
 */
static void
take_refusal(IvfpqChannel *channel)
{
	GvRefusal  *refusal = (GvRefusal *) (channel->in + sizeof(GvMessage));
	bool		several = channel->max_in_flight > 1;
	bool		job = is_job(channel->role);
	const char *reason = refusal->reason;

	refusal->reason[sizeof(refusal->reason) - 1] = '\0';
	if (job && reason[0] == '\0')
		reason = gv_refusal_name(refusal->code);
	channel->refusal = refusal->code;
	switch (refusal->code)
	{
		case GV_REFUSED_NO_MIRROR:
			channel->served = IVFPQ_NOT_MIRRORED;
			break;
		case GV_REFUSED_LOADING:
			channel->served = IVFPQ_LOADING;
			break;
		case GV_REFUSED_FAILED:
			channel->served = IVFPQ_ENGINE_FAILED;
			break;
		case GV_REFUSED_VERSION:
		case GV_REFUSED_INCARNATION:
		case GV_REFUSED_FULL:
		case GV_REFUSED_EXISTS:
		case GV_REFUSED_NO_MEMORY:
			channel->served = IVFPQ_REFUSED;
			break;
		default:
			channel->served = IVFPQ_BROKEN;
			break;
	}
	snprintf(channel->reason, sizeof(channel->reason), "%s%s",
			 job ? "request refused: " : "", reason);
	if (several || channel->served == IVFPQ_BROKEN ||
		channel->sent == channel->answered)
		IvfpqChannelClose(channel, channel->served, channel->reason);
}

/*
 * Receives available bytes, like recv().  If the answer is expected soon, and
 * not in a mailbox, polls for up to IVFPQ_BUSY_POLL_US unless the latch is set,
 * because waking up takes a noticeable part of the time of a search by a GPU.
 */
static ssize_t
receive_some(IvfpqChannel *channel, Size bytes)
{
	int64		until = channel->busy_poll && channel->mailbox == NULL ?
	IvfpqNow() + IVFPQ_BUSY_POLL_US : 0;
	ssize_t		received;

	do
		received = recv(channel->sock, channel->in + channel->received, bytes,
						0);
	while (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) &&
		   until > 0 && !MyLatch->is_set && IvfpqNow() < until);
	return received;
}

/*
 * Receives the answer to the oldest request, if it is in the mailbox.  May poll
 * for the answer, too, and then lets gpuvecd know that this process sleeps.
 */
static bool
receive_mail(IvfpqChannel *channel)
{
	GvMailbox  *mailbox = channel->mailbox;
	const char *answer = (const char *) (mailbox + 1);
	int64		until = IvfpqNow() + IVFPQ_BUSY_POLL_US;
	uint32		state;
	GvMessage	header;

	while ((state = gv_mail_state(mailbox)) == GV_MAIL_ASKED &&
		   !MyLatch->is_set && IvfpqNow() < until)
		;
	if (state == GV_MAIL_WAITING ||
		(state == GV_MAIL_ASKED &&
		 gv_mail_change(mailbox, GV_MAIL_ASKED, GV_MAIL_WAITING)))
		return false;
	/* gpuvecd could change the answer, so only our copy is checked and used */
	memcpy(&header, answer, sizeof(header));
	if (header.type == 0)
		return false;
	memcpy(channel->in, &header, sizeof(header));
	channel->received = sizeof(header); /* is kept if the buffer grows */
	if (!check_header(channel))
		return false;
	channel->received = 0;
	if (header.type != GV_MSG_OK ||
		sizeof(header) + header.length > channel->answer_bytes)
		return IvfpqChannelReject(channel);
	memcpy(channel->in + sizeof(header), answer + sizeof(header),
		   header.length);
	if (ivfpq_shared)
		pg_atomic_fetch_add_u64(&ivfpq_shared->received, header.length);
	channel->refusal = 0;
	set_outcome(channel, IVFPQ_ANSWERED, "");
	return true;
}

/*
 * Receives available bytes of the answer to the oldest request.  Returns
 * whether the answer is complete.  The answer may be a refusal;
 * channel->served tells whether it is.
 */
static bool
receive(IvfpqChannel *channel)
{
	const Size	head = sizeof(GvMessage);

	if (channel->received == 0 && channel->sent > channel->answered &&
		channel->requests[channel->answered % IVFPQ_MAX_REQUESTS].header.type ==
		GV_MSG_LOOK &&
		receive_mail(channel))
		return true;
	while (IvfpqChannelIsOpen(channel))
	{
		Size		before = channel->received;
		Size		whole = before < head ? head :
		head + IvfpqAnswerLength(channel);

		/*
		 * If several requests may be under way, other answers may follow, so
		 * read only this answer.  Otherwise nothing may follow, and the read
		 * may fill the buffer.
		 */
		Size		bytes = (channel->max_in_flight > 1 ? whole :
							 channel->capacity) -
		before;
		ssize_t		received = receive_some(channel, bytes);

		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return false;
		if (received <= 0)
		{
			IvfpqChannelClose(channel, IVFPQ_BROKEN, "the connection was lost");
			return false;
		}
		if (ivfpq_shared)
			pg_atomic_fetch_add_u64(&ivfpq_shared->received, received);
		channel->received += received;
		if (channel->received >= head)
		{
			if (before < head && !check_header(channel))
				return false;
			whole = head + IvfpqAnswerLength(channel);
			if (channel->received > whole)
			{
				IvfpqChannelClose(channel, IVFPQ_BROKEN,
								  "the response is too long");
				return false;
			}
			if (channel->received == whole)
			{
				channel->refusal = 0;
				set_outcome(channel, IVFPQ_ANSWERED, "");
				if (((GvMessage *) channel->in)->type == GV_MSG_REFUSED)
					take_refusal(channel);
				return true;
			}
		}

		/*
		 * a short read took all available bytes, so do not call recv() again
		 */
		if ((Size) received < bytes)
			return false;
	}
	return false;
}

/*
 * Processes answers that can be received without waiting, while more than
 * `pending` requests are unanswered.  Returns false if the channel is closed
 * or a request was refused; channel->served tells which of the two happened.
 */
static bool
take_answers(IvfpqChannel *channel, uint64 pending)
{
	while (channel->made - channel->answered > pending && receive(channel))
	{
		const IvfpqRequest *request = &channel->requests[channel->answered %
														 IVFPQ_MAX_REQUESTS];
		bool		served = channel->served == IVFPQ_ANSWERED;

		if (served && request->take != NULL &&
			!request->take(request->take_arg, request))
			(void) IvfpqChannelReject(channel);
		if (IvfpqChannelIsOpen(channel))
		{
			channel->received = 0;
			channel->answered++;
		}
		if (!served)
			return false;
	}
	return IvfpqChannelIsOpen(channel);
}

/*
 * Sends and receives as much as is possible without waiting.  Returns false in
 * the same cases as take_answers().
 */
bool
IvfpqChannelMove(IvfpqChannel *channel)
{
	send_requests(channel);
	return take_answers(channel, 0);
}

/*
 * Resets the latch and processes interrupts.  If these throw an error, the
 * channel is closed, because the rest of the answer will never be read.
 */
static void
process_latch(IvfpqChannel *channel)
{
	ResetLatch(MyLatch);
	PG_TRY();
	{
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		IvfpqChannelClose(channel, IVFPQ_BROKEN, "the connection was closed");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Pings gpuvecd through the channel of the process, and closes *channel if
 * there is no answer.  If gpuvecd refuses the connection, it is alive.  If
 * this process has no descriptors left for a connection, does nothing.
 */
static void
check_alive(IvfpqChannel *channel)
{
	IvfpqChannel *other;

	/* a connection needs two descriptors: its socket and its WaitEventSet */
	bool		one = AcquireExternalFD();
	bool		two = one && AcquireExternalFD();

	if (two)
		ReleaseExternalFD();
	if (one)
		ReleaseExternalFD();
	if (!two)
		return;
	other = IvfpqConnect(GV_ROLE_SESSION,
						 (int64) ivfpq_request_timeout * 1000);
	if (!IvfpqChannelExchange(other, GV_MSG_PING, NULL, 0, NULL, 0, 0) &&
		other->served != IVFPQ_REFUSED)
		IvfpqChannelClose(channel, other->served,
						  other->served == IVFPQ_TIMED_OUT ?
						  "no response" : "gpuvecd has exited");
}

/*
 * Waits until there is something to receive, be it in the mailbox, or until the
 * socket takes more of a request that is to be sent.  Returns WL_SOCKET_READABLE,
 * WL_SOCKET_WRITEABLE or both; 0 if the channel was closed.  Without a
 * deadline, waits as long as gpuvecd is alive.  Checks whether gpuvecd is
 * alive whenever nothing has come for gpuvec.request_timeout, however often
 * the latch is set meanwhile.
 */
static uint32
wait_for_socket(IvfpqChannel *channel)
{
	uint32		events = WL_SOCKET_READABLE |
	(has_to_send(channel) ? WL_SOCKET_WRITEABLE : 0);
	int64		check_at = IvfpqNow() + (int64) ivfpq_request_timeout * 1000;

	while (IvfpqChannelIsOpen(channel))
	{
		int64		left = (channel->deadline != 0 ? channel->deadline :
							check_at) - IvfpqNow();
		WaitEvent	event;
		uint64		wakes;

		if (channel->deadline == 0 && left <= 0)
		{
			check_alive(channel);
			check_at = IvfpqNow() + (int64) ivfpq_request_timeout * 1000;
			continue;
		}

		/* do not wait for the deadline if this process has to shut down */
		if (channel->deadline != 0 && (left <= 0 || ShutdownRequestPending))
		{
			IvfpqChannelClose(channel, IVFPQ_TIMED_OUT,
							  has_to_send(channel) ? "could not send a message" :
							  "no response in time");
			if (channel->role == GV_ROLE_SESSION ||
				channel->role == GV_ROLE_BULK)
				IvfpqReportTimeout(channel->begun, channel->answers);
			break;
		}
		ModifyWaitEvent(channel->events, SOCKET_EVENT, events, NULL);
		if (WaitEventSetWait(channel->events, (long) ((left + 999) / 1000),
							 &event, 1, IvfpqWaitEvent()) == 0)
			continue;
		if (event.events & WL_LATCH_SET)
			process_latch(channel);
		else if (event.pos != WAKE_EVENT ||
				 read(channel->wake_fd, &wakes, sizeof(wakes)) > 0)
			return event.events;
	}
	return 0;
}

/*
 * Sends and receives until no more than `pending` requests are unanswered and,
 * in a channel for one request at a time, all requests are sent.  The last
 * answer stays in the buffer.  Returns false in the same cases as
 * take_answers().
 */
bool
IvfpqChannelAwait(IvfpqChannel *channel, uint64 pending)
{
	/*
	 * If a request is sent only now, do not call recv() for its answer before
	 * waiting, because the answer takes a while.  But call recv() if we poll
	 * for the answer.
	 */
	bool		may_be_there = channel->busy_poll ||
	channel->sent > channel->answered;

	while (IvfpqChannelIsOpen(channel))
	{
		uint32		events;

		send_requests(channel);
		if (may_be_there && !take_answers(channel, pending))
			return false;
		/* an error of sendmsg() closes the channel and drops its requests */
		if (channel->made - channel->answered <= pending &&
			(channel->max_in_flight > 1 || channel->sent == channel->made))
			return IvfpqChannelIsOpen(channel);
		events = wait_for_socket(channel);
		may_be_there = (events & WL_SOCKET_READABLE) != 0;
	}
	return false;
}

/*
 * Sends a request and waits for its answer, which has at most max_length
 * bytes.  No other request may be under way.  If the result is IVFPQ_ANSWERED,
 * IvfpqAnswerBody returns the answer.
 */
IvfpqOutcome
IvfpqChannelAsk(IvfpqChannel *channel, GvMessageType type,
				const void *head, Size head_bytes,
				const void *tail, Size tail_bytes, uint32 max_length)
{
	Assert(channel->made == channel->answered);
	if (IvfpqChannelAdd(channel, type, head, head_bytes, tail, tail_bytes,
						max_length) != NULL)
		(void) IvfpqChannelAwait(channel, 0);
	return channel->served;
}

/*
 * Like IvfpqChannelAsk, for an answer of exactly `length` bytes.  Returns
 * whether the outcome is IVFPQ_ANSWERED.
 */
bool
IvfpqChannelExchange(IvfpqChannel *channel, GvMessageType type,
					 const void *head, Size head_bytes,
					 const void *tail, Size tail_bytes, uint32 length)
{
	return IvfpqChannelAsk(channel, type, head, head_bytes, tail, tail_bytes,
						   length) == IVFPQ_ANSWERED &&
		(IvfpqAnswerLength(channel) == length || IvfpqChannelReject(channel));
}

/*
 * Connects a nonblocking socket to gpuvecd, and reserves its descriptor
 * (AcquireExternalFD).  On failure, returns PGINVALID_SOCKET with a reason.
 */
static pgsocket
open_socket(const char **reason)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	pgsocket	sock;
	uid_t		uid;
	gid_t		gid;

	if (!IvfpqServerIsExternal())
		strlcpy(address.sun_path, GV_SOCKET_PATH, sizeof(address.sun_path));
	else
	{
		snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s",
				 ivfpq_server_directory, GV_SOCKET_PATH);
		if (!is_safe(reason))
			return PGINVALID_SOCKET;
	}
	*reason = "out of file descriptors";
	if (!AcquireExternalFD())
		return PGINVALID_SOCKET;
	*reason = "could not create a socket";
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
		*reason = "gpuvecd belongs to another user";
		if (getpeereid(sock, &uid, &gid) == 0 && uid == owner)
			return sock;
	}
	else if (!IvfpqServerIsExternal())
		*reason = "gpuvecd is not listening";
	else if (errno == ENOENT)
		*reason = "no socket in the socket directory";
	else if (errno == ECONNREFUSED)
		*reason = "no process is listening on the socket";
	else
		(void) refuse(reason, "could not connect to the socket: %s",
					  strerror(errno));
	closesocket(sock);
	ReleaseExternalFD();
	return PGINVALID_SOCKET;
}

/* Makes the channel's WaitEventSet.  An error closes the channel. */
static void
make_events(IvfpqChannel *channel)
{
	PG_TRY();
	{
		channel->events = IvfpqCreateWaitEventSet(4);
		AddWaitEventToSet(channel->events, WL_LATCH_SET, PGINVALID_SOCKET,
						  MyLatch, NULL);
		AddWaitEventToSet(channel->events, WL_EXIT_ON_PM_DEATH,
						  PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(channel->events, WL_SOCKET_READABLE, channel->sock,
						  NULL, NULL);
	}
	PG_CATCH();
	{
		IvfpqChannelClose(channel, IVFPQ_DOWN, "could not wait for a response");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Connects a closed channel and says hello.  Returns false if the channel is
 * closed; its outcome tells why.
 */
bool
IvfpqChannelOpen(IvfpqChannel *channel, GvRole role)
{
	const char *reason = "out of memory for responses";
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role,
		(uint32) MyProcPid,
	ivfpq_shared ? ivfpq_shared->incarnation : 0};
	GvWelcome  *welcome = &channel->welcome;

	channel->role = role;
	channel->connection++;
	channel->max_in_flight = is_job(role) ? IVFPQ_MAX_REQUESTS : 1;
	channel->refusal = 0;
	if (channel_reserve(channel, MIN_CAPACITY))
		channel->sock = open_socket(&reason);
	if (!IvfpqChannelIsOpen(channel))
	{
		set_outcome(channel, IVFPQ_DOWN, reason);
		return false;
	}
	make_events(channel);
	if (!IvfpqChannelExchange(channel, GV_MSG_HELLO, &hello, sizeof(hello),
							  NULL, 0, sizeof(*welcome)))
	{
		IvfpqChannelClose(channel, channel->served, channel->reason);
		return false;
	}
	memcpy(welcome, IvfpqAnswerBody(channel), sizeof(*welcome));
	welcome->engine[sizeof(welcome->engine) - 1] = '\0';
	return true;
}

/* Closes the channel of the process, if it is open. */
void
IvfpqDisconnect(void)
{
	IvfpqChannelClose(&own, IVFPQ_DOWN, "the connection was closed");
}

/*
 * Returns the socket of the process's channel, on which a caller can wait
 * between requests to notice the end of the connection.
 */
pgsocket
IvfpqOwnSocket(void)
{
	return own.sock;
}

/*
 * Returns the channel of the process for one request, which has to be answered
 * within timeout_us.  If gpuvecd cannot be reached, the channel is closed, and
 * the request will fail with the reason.
 */
IvfpqChannel *
IvfpqConnect(GvRole role, int64 timeout_us)
{
	uint64		instance = ivfpq_shared ?
	pg_atomic_read_u64(&ivfpq_shared->instance) : 0;

	own.context = TopMemoryContext;
	IvfpqChannelExpect(&own, timeout_us);
	/* few answers need a large buffer */
	if (own.capacity > KEPT_CAPACITY)
	{
		pfree(own.in);
		own.in = NULL;
		own.capacity = 0;
	}
	if (IvfpqChannelIsOpen(&own) &&
		own.made == own.answered && own.role == role &&
		(instance == 0 || own.welcome.instance == instance) &&
		channel_reserve(&own, MIN_CAPACITY))
		return &own;
	IvfpqDisconnect();
	if (IvfpqNow() < held_until && held_instance == instance)
		return &own;
	held_until = 0;
	held_instance = instance;
	if (!IvfpqChannelOpen(&own, role) &&
		(own.refusal != 0 || own.served == IVFPQ_DOWN))
		held_until = IvfpqNow() +
			(own.refusal != 0 ? REFUSED_HOLD_OFF_US : HOLD_OFF_US);
	return &own;
}

/*
 * Returns why gpuvecd cannot do work that may take long, or NULL if it can.
 */
const char *
IvfpqServerProblem(void)
{
	switch (IvfpqSharedState())
	{
		case IVFPQ_STATE_UP:
			return pg_atomic_read_u32(&ivfpq_shared->suspended) == 0 ? NULL :
				"no response";
		case IVFPQ_STATE_OFF:
			return "gpuvecd is not available";
		default:
			return "gpuvecd is not running";
	}
}

/*
 * Asks gpuvecd for its status.  Sets *head, and *mirrors to an array
 * [head->nmirrors] in the current memory context.
 */
IvfpqOutcome
IvfpqFetchStatus(IvfpqChannel *channel, GvStatusReply *head,
				 GvMirrorStatus **mirrors)
{
	const char *body;
	Size		size;

	if (IvfpqChannelAsk(channel, GV_MSG_STATUS, NULL, 0, NULL, 0,
						GV_MAX_MESSAGE) != IVFPQ_ANSWERED)
		return channel->served;
	body = IvfpqAnswerBody(channel);
	size = IvfpqAnswerLength(channel) - sizeof(*head);
	if (IvfpqAnswerLength(channel) >= sizeof(*head))
		memcpy(head, body, sizeof(*head));
	if (IvfpqAnswerLength(channel) < sizeof(*head) || head->nmirrors < 0 ||
		size != head->nmirrors * sizeof(GvMirrorStatus))
	{
		(void) IvfpqChannelReject(channel);
		return channel->served;
	}
	head->device[sizeof(head->device) - 1] = '\0';
	*mirrors = palloc(Max(size, 1));
	memcpy(*mirrors, body + sizeof(*head), size);
	return IVFPQ_ANSWERED;
}
