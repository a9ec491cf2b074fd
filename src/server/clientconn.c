/*
 * clientconn.c
 *		One client: its buffers, the framing of its messages and their answers,
 *		the memory that it shares, its hello, the rules of messages, and its
 *		thread.
 *
 * The same code serves the loop, which never waits, and threads with one
 * client, which wait.  A buffer grows to the length of a message after the
 * message's type and length were found to be allowed, and a large buffer is
 * freed afterwards.  A client may be idle between messages.  It may not be
 * idle within a message, or while it has an answer to read, because threads
 * and memory are limited.
 *
 * Some clients may share memory with gpuvecd (server/README, "Protocol").
 * Each file that answers messages has a table of them, with all that is needed
 * to check and dispatch a message.  protocol/gv_protocol.h describes the
 * messages.
 */
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_CAPACITY		128 /* bytes, enough for all messages except
								 * searches and messages of loaders, builders
								 * and sets */
#define KEPT_CAPACITY		65536	/* bytes of a buffer that an idle client
									 * may keep */
#define FIRST_OUT_CAPACITY	(sizeof(GvMessage) + sizeof(GvRefusal))

/*
 * Unmaps the memory that the client shares.  A bulk client keeps it mapped
 * after its connection has ended.  If the client has taken all answers, it has
 * no more use for what is there, so that is given back to the system first.
 */
static void
unmap(GvConnection *connection)
{
	if (connection->shm != NULL && connection->role == GV_ROLE_BULK &&
		__atomic_load_n((uint64_t *) (void *) connection->shm,
						__ATOMIC_SEQ_CST) == 0)
		(void) madvise(connection->shm, connection->shm_bytes, MADV_REMOVE);
	if (connection->shm != NULL)
		(void) munmap(connection->shm, connection->shm_bytes);
	connection->shm = NULL;
}

/*
 * Makes a buffer `bytes` large.  If there is no memory, leaves the buffer as it
 * is and returns false.
 */
static bool
resize(char **buffer, size_t *capacity, size_t bytes)
{
	char	   *resized = realloc(*buffer, bytes);

	if (resized == NULL)
		return false;
	*buffer = resized;
	*capacity = bytes;
	return true;
}

bool
gv_connection_is_gone(const GvConnection *connection)
{
	struct pollfd client = {.fd = connection->fd, .events = POLLRDHUP};

	return poll(&client, 1, 0) > 0 &&
		(client.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/*
 * GvStop.requested callback.  Returns whether nobody waits for the result of
 * the engine's work.
 */
static bool
is_abandoned(void *arg)
{
	return gv_server_failed() || gv_connection_is_gone(arg);
}

GvConnection *
gv_connection_open(int fd, uint64_t number)
{
	GvConnection *connection = calloc(1, sizeof(GvConnection));

	if (connection == NULL)
		return NULL;
	connection->fd = fd;
	connection->number = connection->owner = number;
	connection->opened_ns = gv_now_ns();
	connection->passed_fd = connection->wake_fd = -1;
	connection->stop = (GvStop)
	{
		is_abandoned, connection
	};
	if (!resize(&connection->in, &connection->in_capacity, FIRST_CAPACITY) ||
		!resize(&connection->out, &connection->out_capacity,
				FIRST_OUT_CAPACITY))
	{
		free(connection->in);
		free(connection->out);
		free(connection);
		return NULL;
	}
	gv_count(connections, 1);
	return connection;
}

void
gv_connection_close(GvConnection *connection)
{
	if (connection->role == GV_ROLE_SUPERVISOR)
		gv_incarnation_unsupervised(connection);
	else
		gv_count(connections, -1);
	close(connection->fd);
	if (connection->passed_fd >= 0)
		close(connection->passed_fd);
	if (connection->wake_fd >= 0)
		close(connection->wake_fd);
	unmap(connection);
	free(connection->in);
	free(connection->out);
	free(connection);
}

/* ---- answers */

/*
 * An answer's header names the type of the message that came through the
 * socket.  For a message in shared memory, this is IN_SHM or LOOK.
 */
static GvMessage
answer_header(const GvConnection *connection, GvMessageType type,
			  size_t length)
{
	return (GvMessage)
	{
		(uint32_t) length, (uint16_t) type, connection->mailed ? GV_MSG_LOOK :
			((const GvMessage *) connection->in)->type
	};
}

void *
gv_reply(GvConnection *connection, size_t length)
{
	GvMessage	header = answer_header(connection, GV_MSG_OK, length);

	if (connection->mailed &&
		sizeof(header) + length <= connection->shm_bytes - sizeof(GvMailbox))
	{
		char	   *answer = connection->shm + sizeof(GvMailbox);

		memcpy(answer, &header, sizeof(header));
		connection->mailed_bytes = sizeof(header) + length;
		return answer + sizeof(header);
	}
	if (sizeof(header) + length > connection->out_capacity &&
		!resize(&connection->out, &connection->out_capacity,
				sizeof(header) + length))
	{
		gv_refuse(connection, GV_REFUSED_NO_MEMORY,
				  "no memory for the answer");
		return NULL;
	}
	memcpy(connection->out, &header, sizeof(header));
	connection->out_used = sizeof(header) + length;
	return connection->out + sizeof(header);
}

void
gv_reply_cut(GvConnection *connection, size_t length)
{
	GvMessage  *header = (GvMessage *) connection->out;

	header->length = (uint32_t) length;
	connection->out_used = sizeof(*header) + length;
}

void
gv_refuse(GvConnection *connection, GvRefusalCode code, const char *reason)
{
	GvMessage	header = answer_header(connection, GV_MSG_REFUSED,
									   sizeof(GvRefusal));
	GvRefusal	refusal = {.code = code};

	strncpy(refusal.reason, reason, sizeof(refusal.reason) - 1);
	/* FIRST_OUT_CAPACITY holds this */
	memcpy(connection->out, &header, sizeof(header));
	memcpy(connection->out + sizeof(header), &refusal, sizeof(refusal));
	connection->out_used = sizeof(header) + sizeof(refusal);
	connection->mailed_bytes = 0;
	if (code == GV_REFUSED_PROTOCOL || code == GV_REFUSED_VERSION ||
		code == GV_REFUSED_FULL || code == GV_REFUSED_INCARNATION)
		connection->close_after_send = true;
	gv_count(refusals[code], 1);
}

void
gv_refuse_status(GvConnection *connection, GvStatus status)
{
	GvRefusalCode refusal = gv_status_refusal(status);

	gv_refuse(connection, refusal, gv_refusal_name(refusal));
}

void
gv_answer_by(GvConnection *connection, GvAnswer answer)
{
	const char *wrong = NULL;
	GvStatus	status = answer(connection, &wrong);

	if (status == GV_INVALID && wrong != NULL)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
	else if (status != GV_OK)
		gv_refuse_status(connection, status);
	else if (connection->out_used == 0 && !connection->search_pending &&
			 !connection->close_after_send)
		gv_reply(connection, 0);
}

/* ---- shared memory */

/*
 * Answers GV_MSG_ATTACH_SHM: maps the client's memory, in place of memory that
 * the client has shared before.
 */
static GvStatus
shared_take(GvConnection *connection, const char **wrong)
{
	const GvAttachShmRequest *request = gv_payload(connection);
	int			fd = connection->passed_fd;
	int			seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
	struct stat status;
	void	   *memory;

	*wrong = "no shareable memory";
	/* if the memory could shrink, reading it could end in SIGBUS */
	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
		request->bytes < sizeof(GvMessage) + sizeof(GvMailbox) ||
		request->bytes > GV_MAX_SHARED ||
		fstat(fd, &status) != 0 || status.st_size < 0 ||
		(uint64_t) status.st_size < request->bytes ||
		gv_mailbox(connection) != NULL)
		return GV_INVALID;
	unmap(connection);
	/* loaders have no outputs, which we would write there */
	memory = mmap(NULL, request->bytes,
				  connection->role == GV_ROLE_LOADER ? PROT_READ :
				  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	connection->passed_fd = -1;
	if (memory == MAP_FAILED)
		return GV_NO_MEMORY;
	connection->shm = memory;
	connection->shm_bytes = request->bytes;

	/*
	 * the answers of a bulk client are short from now on, and a session may
	 * send LOOK when its search has been found already
	 */
	connection->pipelines |= connection->role == GV_ROLE_BULK ||
		connection->role == GV_ROLE_SESSION;
	return GV_OK;
}

void *
gv_shared_at(const GvConnection *connection, int64_t offset, int64_t bytes)
{
	int64_t		shared_bytes = (int64_t) connection->shm_bytes;

	if (connection->shm == NULL || offset < 0 || offset % 8 != 0 ||
		bytes > shared_bytes || offset > shared_bytes - bytes)
		return NULL;
	return connection->shm + offset;
}

/*
 * Handles GV_MSG_IN_SHM: makes a message in shared memory the message at hand,
 * until its answer is sent.  Returns false if the message was refused.
 */
static bool
shared_open(GvConnection *connection)
{
	const GvInShmRequest *request = gv_payload(connection);
	int64_t		offset = (int64_t) request->offset;
	char	   *message = gv_shared_at(connection, offset, sizeof(GvMessage));
	GvMessage  *header = &connection->shm_header;
	const GvMessageKind *kind;

	/* a loader that had to connect again has lost its mirror, too */
	if (connection->shm == NULL)
	{
		gv_refuse(connection, GV_REFUSED_NO_MIRROR,
				  gv_refusal_name(GV_REFUSED_NO_MIRROR));
		return false;
	}
	if (message == NULL)
	{
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "a message outside the memory");
		return false;
	}
	memcpy(header, message, sizeof(*header));
	kind = gv_message_kind(header);
	if (kind == NULL || !kind->in_memory || header->request != 0 ||
		(kind->roles & (1U << connection->role)) == 0 ||
		gv_shared_at(connection, offset, (int64_t) sizeof(*header) +
					 header->length) == NULL)
	{
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "a malformed message in memory");
		return false;
	}
	connection->shm_message = message;
	gv_count(received, header->length);
	return true;
}

/*
 * Tells a session that the message in its mailbox is answered.  If the answer
 * is in `out`, it is sent next, and need not wake the session.
 */
static void
mailbox_answer(GvConnection *connection)
{
	GvMailbox  *mailbox = gv_mailbox(connection);
	const GvMessage elsewhere = {0};
	const uint64_t one = 1;

	connection->mailed = false;
	if (connection->mailed_bytes == 0)
		memcpy(mailbox + 1, &elsewhere, sizeof(elsewhere));
	if (gv_mail_exchange(mailbox, connection->attended ? GV_MAIL_ATTENDED :
						 GV_MAIL_UNATTENDED) != GV_MAIL_ASKED &&
		connection->mailed_bytes > 0 &&
		write(connection->wake_fd, &one, sizeof(one)) < 0)
		connection->close_after_send = true;
	gv_count(sent, (int64_t) connection->mailed_bytes);
	connection->mailed_bytes = 0;
}

/* ---- messages of all clients */

/*
 * Answers GV_MSG_HELLO: checks a client's first message, and lets the client
 * in or refuses it.
 */
static GvStatus
answer_hello(GvConnection *connection, const char **wrong)
{
	const GvHello *hello = gv_payload(connection);
	GvWelcome  *welcome;

	*wrong = "a wrong magic number, an unknown role, or no incarnation";
	if (hello->magic == GV_PROTOCOL_MAGIC &&
		hello->version != GV_PROTOCOL_VERSION)
	{
		gv_refuse(connection, GV_REFUSED_VERSION,
				  "gpuvecd has an incompatible protocol version");
		return GV_OK;
	}
	if (hello->magic != GV_PROTOCOL_MAGIC ||
		gv_message(connection)->length != sizeof(*hello) ||
		hello->role < GV_ROLE_SESSION ||
		hello->role > GV_ROLE_SUPERVISOR || hello->incarnation == 0)
		return GV_INVALID;
	if (!gv_incarnation_admits(connection, hello))
		return GV_OK;
	if (hello->role != GV_ROLE_SUPERVISOR &&
		(connection->over_limit ||
		 (hello->role != GV_ROLE_SESSION &&
		  gv_counted(client_threads) >= GV_MAX_CLIENT_THREADS)))
	{
		gv_refuse(connection, GV_REFUSED_FULL, "too many connections");
		return GV_OK;
	}
	welcome = gv_reply(connection, sizeof(*welcome));
	if (welcome == NULL)
		return GV_OK;
	connection->role = hello->role;
	connection->pipelines = hello->role == GV_ROLE_BUILDER ||
		hello->role == GV_ROLE_SET;
	if (hello->role == GV_ROLE_SUPERVISOR)
		gv_incarnation_supervised(connection);
	memset(welcome, 0, sizeof(*welcome));
	welcome->instance = gv_server.instance;
	welcome->pid = (uint32_t) gv_server.pid;
	strncpy(welcome->engine, gv_server.engine, sizeof(welcome->engine) - 1);
	strncpy(welcome->release, gv_server.release,
			sizeof(welcome->release) - 1);
	return GV_OK;
}

static GvStatus
answer_ping(GvConnection *connection, const char **wrong)
{
	return GV_OK;
}

/* Answers GV_MSG_STATUS: the counters, and the status of every mirror. */
static GvStatus
answer_status(GvConnection *connection, const char **wrong)
{
	int32_t		capacity = gv_mirrors_status(NULL, NULL, 0);
	GvStatusReply *reply;
	int			i;

	reply = gv_reply(connection, sizeof(*reply) +
					 (size_t) capacity * sizeof(GvMirrorStatus));
	if (reply == NULL)
		return GV_OK;
	memset(reply, 0, sizeof(*reply));
	reply->instance = gv_server.instance;
	memcpy(reply->device, gv_server.device, sizeof(reply->device));
	reply->searches = gv_counted(searches);
	reply->batches = gv_counted(batches);
	reply->largest_batch = gv_counted(largest_batch);
	reply->sets = gv_counted(sets);
	for (i = 0; i < GV_NREFUSALS; i++)
		reply->refusals[i] = gv_counted(refusals[i]);
	reply->received = gv_counted(received);
	reply->sent = gv_counted(sent);
	reply->connections = gv_counted(connections);
	reply->oldest_ms = gv_watchdog_oldest_ms();
	reply->nmirrors = gv_mirrors_status(reply, (GvMirrorStatus *) (reply + 1),
										capacity);
	/* mirrors may have come or gone since they were counted */
	if (reply->nmirrors > capacity)
		reply->nmirrors = capacity;
	gv_reply_cut(connection, sizeof(*reply) +
				 (size_t) reply->nmirrors * sizeof(GvMirrorStatus));
	return GV_OK;
}

/* The bit, among the bits of roles, for clients that have not said hello. */
#define STRANGER	1U

/*
 * A hello of another protocol version may be shorter or longer.  It is refused
 * because of its version, not because of its length.
 */
#define HELLO		offsetof(GvHello, role), 4 * sizeof(GvHello)

static const GvMessageKind client_messages[] = {
	{GV_MSG_HELLO, STRANGER, HELLO, .answer = answer_hello},
	{GV_MSG_PING, GV_BY(SESSION) | GV_BY(LOADER) | GV_BY(BUILDER) |
	GV_BY(SET) | GV_BY(BULK) | GV_BY(SUPERVISOR), 0, 0, .answer = answer_ping},
	{GV_MSG_STATUS, GV_BY(SESSION) | GV_BY(LOADER) | GV_BY(SUPERVISOR), 0, 0,
	.answer = answer_status},
	{GV_MSG_ATTACH_SHM, GV_BY(SESSION) | GV_BY(LOADER) | GV_BY(SET) |
	GV_BY(BULK), GV_ONE(GvAttachShmRequest), .answer = shared_take},
	{GV_MSG_LOOK, GV_BY(SESSION), 0, 0, .answer = NULL},
	{GV_MSG_IN_SHM, GV_BY(LOADER) | GV_BY(SET), GV_ONE(GvInShmRequest),
	.answer = NULL},
	{0}
};

/* The tables of messages, beginning with the messages that come most often. */
static const GvMessageKind *const tables[] = {
	gv_search_messages, client_messages, gv_mirror_messages,
	gv_build_messages, gv_set_messages
};

/* The longest message of a session: a search for one query. */
#define SESSION_MOST	(sizeof(GvSearchRequest) + \
	sizeof(GvTestRequest) * GV_MAX_TESTS + \
	sizeof(uint64_t) * GV_MAX_VALUES + 4 * GV_MAX_DIMS)

const GvMessageKind *
gv_message_kind(const GvMessage *message)
{
	const GvMessageKind *kind;
	size_t		i;

	for (i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (kind = tables[i]; kind->type != 0; kind++)
			if (kind->type == message->type)
				return message->length >= kind->min &&
					message->length <= kind->max ? kind : NULL;
	return NULL;
}

GvStatus
gv_message_act(GvConnection *connection, const char **wrong)
{
	const GvMessageKind *kind = gv_message_kind(gv_message(connection));
	const GvMirrorKey *key = gv_payload(connection);
	GvMirrorEntry *entry;
	GvRefusalCode refusal;
	GvStatus	status;

	if (kind->mirror == NULL)
		return kind->answer(connection, wrong);
	entry = gv_mirrors_acquire(key, connection->owner, &refusal);
	if (entry == NULL)
	{
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
		return GV_OK;
	}
	status = kind->mirror(connection, entry, wrong);
	gv_mirrors_release(entry, 0);
	return status;
}

/* ---- receiving and sending */

/*
 * Receives bytes like recv(), without waiting.  If descriptors come with the
 * bytes, keeps one of them for GV_MSG_ATTACH_SHM and closes the others.
 */
static ssize_t
shared_receive(GvConnection *connection, void *bytes, size_t length)
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
	struct cmsghdr *passed;

	for (passed = n < 0 ? NULL : CMSG_FIRSTHDR(&message); passed != NULL;
		 passed = CMSG_NXTHDR(&message, passed))
	{
		size_t		nfds = (passed->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		size_t		i;

		if (passed->cmsg_level != SOL_SOCKET ||
			passed->cmsg_type != SCM_RIGHTS)
			continue;
		for (i = 0; i < nfds; i++)
		{
			int			fd;

			memcpy(&fd, CMSG_DATA(passed) + i * sizeof(int), sizeof(int));
			if (connection->passed_fd < 0)
				connection->passed_fd = fd;
			else
				close(fd);
		}
	}
	return n;
}

/*
 * Returns whether `in` has a part of a message, a whole message, or an invalid
 * message, which is refused here.  Makes room in `in` for the whole message.
 */
static GvReceived
examine(GvConnection *connection)
{
	const GvMessage *message = gv_message(connection);
	const GvMessageKind *kind;
	const char *wrong = NULL;
	size_t		whole;

	if (connection->in_used < sizeof(GvMessage))
		return GV_RECEIVED_PART;
	kind = gv_message_kind(message);
	whole = sizeof(GvMessage) + message->length;
	if (kind == NULL)
		wrong = "unknown message type or wrong length";
	else if (message->request != 0)
		wrong = "the header is malformed";
	else if ((kind->roles & (1U << connection->role)) == 0)
		wrong = "message not allowed for this client, or unexpected hello";
	else if (connection->role == GV_ROLE_SESSION &&
			 message->length > SESSION_MOST)
		wrong = "message too long for a session";
	else if (connection->in_used > whole)
		wrong = "a message before the response to the last one";
	if (wrong != NULL)
	{
		gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
		return GV_RECEIVED_WRONG;
	}
	if (whole > connection->in_capacity &&
		!resize(&connection->in, &connection->in_capacity, whole))
	{
		gv_refuse(connection, GV_REFUSED_NO_MEMORY,
				  "no memory for the message");
		connection->close_after_send = true;
		return GV_RECEIVED_WRONG;
	}
	return connection->in_used == whole ? GV_RECEIVED_WHOLE :
		GV_RECEIVED_PART;
}

GvReceived
gv_mailbox_take(GvConnection *connection)
{
	const GvMailbox *mailbox = gv_mailbox(connection);
	const GvMessage *message;
	const char *wrong = "a look at no mailbox";

	if (connection->wake_fd < 0)
	{
		connection->wake_fd = connection->passed_fd;
		connection->passed_fd = -1;
		(void) fcntl(connection->wake_fd, F_SETFL, O_NONBLOCK);
	}
	if (mailbox != NULL && connection->wake_fd >= 0)
	{
		uint32_t	state = gv_mail_state(mailbox);

		if (connection->in_used > 0 ||
			(state != GV_MAIL_ASKED && state != GV_MAIL_WAITING))
			return GV_RECEIVED_PART;
		connection->mailed = true;
		memcpy(connection->in, mailbox->request, sizeof(*message));
		connection->in_used = sizeof(*message);
		if (examine(connection) == GV_RECEIVED_WRONG)
			return GV_RECEIVED_WRONG;
		message = gv_message(connection);
		if (gv_message_kind(message)->in_memory &&
			message->length <= sizeof(mailbox->request) - sizeof(*message))
		{
			memcpy(connection->in + sizeof(*message),
				   mailbox->request + sizeof(*message), message->length);
			connection->in_used += message->length;
			gv_count(received, (int64_t) connection->in_used);
			return GV_RECEIVED_WHOLE;
		}
		wrong = "a malformed message in memory";
	}
	gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
	return GV_RECEIVED_WRONG;
}

/*
 * Returns how many ms are left for a message or an answer begun at begun_ns.
 */
static int
time_left(uint64_t begun_ns)
{
	int64_t		left = (int64_t) gv_server.message_s * 1000 -
	(int64_t) ((gv_now_ns() - begun_ns) / 1000000);

	return left > 0 ? (int) left : 0;
}

static void
log_stuck(const char *what)
{
	gv_log("LOG", "closed a connection because its client had not %s in %d s",
		   what,
		   gv_server.message_s);
}

bool
gv_connection_is_stuck(const GvConnection *connection)
{
	if (connection->in_used == 0 || time_left(connection->begun_ns) > 0)
		return false;
	log_stuck(connection->writing ? "read a response" : "completed a message");
	return true;
}

/*
 * Waits for events of the client's socket, for at most timeout_ms or, if that
 * is -1, without a limit.  Returns false if no event came.
 */
static bool
await(const GvConnection *connection, short events, int timeout_ms)
{
	struct pollfd client = {.fd = connection->fd, .events = events};
	int			n;

	while ((n = poll(&client, 1, timeout_ms)) < 0 && errno == EINTR)
		;
	return n > 0;
}

/*
 * Waits for the rest of a message or, between messages, for the next message.
 * Returns false if the client takes too long.
 */
static bool
await_message(const GvConnection *connection)
{
	if (connection->in_used == 0)
		return await(connection, POLLIN, connection->role == GV_ROLE_BULK ?
					 GV_BULK_IDLE_MS : -1);
	if (await(connection, POLLIN, time_left(connection->begun_ns)))
		return true;
	log_stuck("completed a message");
	return false;
}

GvReceived
gv_connection_receive(GvConnection *connection, bool wait)
{
	GvReceived	state = GV_RECEIVED_PART;

	while (state == GV_RECEIVED_PART)
	{
		size_t		bytes = connection->in_capacity - connection->in_used;
		char	   *end = connection->in + connection->in_used;
		ssize_t		n;

		/*
		 * A client that pipelines may have sent further messages, so read up
		 * to the end of this message only.
		 */
		if (connection->pipelines)
			bytes = sizeof(GvMessage) - connection->in_used +
				(connection->in_used >= sizeof(GvMessage) ?
				 gv_message(connection)->length : 0);
		/* a client that has not said hello shares no memory */
		n = connection->role != 0 ? shared_receive(connection, end, bytes) :
			recv(connection->fd, end, bytes, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			if (!wait)
				return GV_RECEIVED_PART;
			if (await_message(connection))
				continue;
		}
		if (n <= 0)
			return GV_RECEIVED_END;
		if (connection->in_used == 0)
			connection->begun_ns = gv_now_ns();
		connection->in_used += (size_t) n;
		gv_count(received, n);
		state = examine(connection);
		if (state == GV_RECEIVED_WHOLE &&
			gv_message(connection)->type == GV_MSG_LOOK)
		{
			connection->in_used = 0;
			return gv_mailbox_take(connection);
		}
		/* nothing more can be read if we got less than we asked for */
		if (state == GV_RECEIVED_PART && !wait && (size_t) n < bytes)
			return state;
	}
	return state;
}

/*
 * There is no time limit for sending to a builder or a set: it may send more
 * requests before it reads the answer.  So may a bulk client that shares memory,
 * but its answers there are short enough to be sent at once.
 */
GvFlushed
gv_connection_flush(GvConnection *connection, bool wait)
{
	bool		pipelines = connection->role == GV_ROLE_BUILDER ||
	connection->role == GV_ROLE_SET;
	uint64_t	begun_ns = wait && !pipelines ? gv_now_ns() : 0;

	if (connection->mailed)
		mailbox_answer(connection);
	while (connection->out_sent < connection->out_used)
	{
		ssize_t		n = send(connection->fd,
							 connection->out + connection->out_sent,
							 connection->out_used - connection->out_sent,
							 MSG_NOSIGNAL |
							 (wait && pipelines ? 0 : MSG_DONTWAIT));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			if (!wait)
				return GV_FLUSH_LATER;
			if (await(connection, POLLOUT, time_left(begun_ns)))
				continue;
			log_stuck("read a response");
		}
		if (n < 0)
			return GV_FLUSH_BROKEN;
		connection->out_sent += (size_t) n;
		gv_count(sent, n);
	}
	connection->shm_message = NULL;
	connection->in_used = 0;
	connection->out_used = 0;
	connection->out_sent = 0;

	/*
	 * keep large buffers that are soon needed again: `in` for a loader, and
	 * both buffers for a builder or a set
	 */
	if (connection->in_capacity > KEPT_CAPACITY &&
		(connection->role == GV_ROLE_SESSION ||
		 connection->role == GV_ROLE_BULK))
		(void) resize(&connection->in, &connection->in_capacity,
					  FIRST_CAPACITY);
	if (connection->out_capacity > KEPT_CAPACITY && !pipelines)
		(void) resize(&connection->out, &connection->out_capacity,
					  FIRST_OUT_CAPACITY);
	return GV_FLUSHED;
}

/* ---- threads with one client */

/*
 * A refusal ends the connection of a client that pipelines.  Messages that this
 * client has already sent are not read.
 */
void
gv_thread_serve(GvConnection *connection, GvAnswer answer)
{
	GvReceived	received;

	do
	{
		received = gv_connection_receive(connection, true);
		if (received == GV_RECEIVED_END)
			break;
		if (received == GV_RECEIVED_WHOLE &&
			(gv_message(connection)->type != GV_MSG_IN_SHM ||
			 shared_open(connection)))
			gv_answer_by(connection, answer);
		if (connection->pipelines &&
			((const GvMessage *) connection->out)->type == GV_MSG_REFUSED)
			connection->close_after_send = true;
	} while (gv_connection_flush(connection, true) == GV_FLUSHED &&
			 !connection->close_after_send);
}

static void *
thread_main(void *arg)
{
	GvConnection *connection = arg;

	if (connection->role == GV_ROLE_BUILDER)
		gv_buildjob_serve(connection);
	else if (connection->role == GV_ROLE_SET)
		gv_setjob_serve(connection);
	else
	{
		gv_thread_serve(connection, gv_message_act);
		gv_mirrors_abandon(connection->number);
	}
	if (connection->searches)
		gv_searchers_count(-1);
	gv_connection_close(connection);
	gv_count(client_threads, -1);
	return NULL;
}

bool
gv_client_start(GvConnection *connection)
{
	gv_count(client_threads, 1);
	if (gv_thread_start(thread_main, connection, NULL))
		return true;
	gv_count(client_threads, -1);
	return false;
}
