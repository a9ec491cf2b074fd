/*
 * clientconn.c
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
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/server.h"

static void loader_begin(GvConnection *connection);
static void loader_drop(GvConnection *connection);

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
static void
shared_release(GvConnection *connection)
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
static void
shared_take(GvConnection *connection)
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
static bool
shared_open(GvConnection *connection)
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

/* ----
 * One client: its buffers, the framing of messages, answers.
 *
 * The same code serves the loop, which never waits, and loaders' threads,
 * which do.  A buffer grows to what the message at hand needs, once its type
 * and length have been found to be allowed, and large ones are given back.
 * A client may be idle between messages, but not within one, nor while it is
 * to read an answer, as threads and memory are few.
 */

#define FIRST_CAPACITY		128 /* enough for all but searches and loads */
#define KEPT_CAPACITY		65536	/* what an idle client may hold on to */

/* NULL when there is no memory; then the socket is still the caller's. */
GvConnection *
gv_connection_open(int fd, uint64_t number)
{
	GvConnection *connection = calloc(1, sizeof(GvConnection));

	if (connection == NULL)
		return NULL;
	connection->fd = fd;
	connection->number = number;
	connection->opened_ns = gv_now_ns();
	connection->passed_fd = -1;
	connection->idle_ms = -1;
	connection->in_capacity = FIRST_CAPACITY;
	connection->in = malloc(FIRST_CAPACITY);
	connection->out_capacity = sizeof(GvMessage) + sizeof(GvRefusal);
	connection->out = malloc(connection->out_capacity);
	if (connection->in == NULL || connection->out == NULL)
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
	shared_release(connection);
	free(connection->in);
	free(connection->out);
	free(connection);
}

/* Make a buffer hold `need` bytes, of which the first `used` matter. */
static bool
grow(char **buffer, size_t *capacity, size_t used, size_t need)
{
	char	   *larger;

	if (need <= *capacity)
		return true;
	larger = malloc(need);
	if (larger == NULL)
		return false;
	if (used > 0)
		memcpy(larger, *buffer, used);
	free(*buffer);
	*buffer = larger;
	*capacity = need;
	return true;
}

/* Give a large buffer back; when that fails it stays. */
static void
shrink(char **buffer, size_t *capacity, size_t kept)
{
	char	   *smaller;

	if (*capacity <= KEPT_CAPACITY)
		return;
	smaller = malloc(kept);
	if (smaller == NULL)
		return;
	free(*buffer);
	*buffer = smaller;
	*capacity = kept;
}

/* May this client send such a message now?  If not, it has been refused. */
static bool
check_header(GvConnection *connection)
{
	const GvMessage *message = gv_message(connection);
	const GvMessageKind *kind = gv_message_kind(message);
	bool		first = connection->role == 0;
	const char *wrong = NULL;

	if (kind == NULL)
		wrong = "no such message, or it has a wrong length";
	else if (message->request != 0)
		wrong = "the header is malformed";
	else if (first != (message->type == GV_MSG_HELLO))
		wrong = first ? "the first message is not a hello" :
			"a second hello";
	else if (!gv_role_sends(connection->role, kind))
		wrong = "this is for others";
	if (wrong != NULL)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
	return wrong == NULL;
}

/* Returns whether `in` has part of a message, a whole or a wrong one. */
static GvReceived
examine(GvConnection *connection)
{
	size_t		whole;

	if (connection->in_used < sizeof(GvMessage))
		return GV_RECEIVED_PART;
	if (!check_header(connection))
		return GV_RECEIVED_WRONG;
	whole = sizeof(GvMessage) + gv_message(connection)->length;
	if (connection->in_used > whole)
	{
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "a message before the answer to the last one");
		return GV_RECEIVED_WRONG;
	}
	if (!grow(&connection->in, &connection->in_capacity, connection->in_used,
			  whole))
	{
		gv_refuse(connection, GV_REFUSED_NO_MEMORY,
				  "no memory for the message");
		connection->ending = true;
		return GV_RECEIVED_WRONG;
	}
	return connection->in_used == whole ? GV_RECEIVED_WHOLE :
		GV_RECEIVED_PART;
}

/*
 * How much to read now.  A client that may send on before it is answered is
 * read up to the end of the message at hand; of others nothing can lie behind
 * that.
 */
static size_t
bytes_to_read(const GvConnection *connection)
{
	size_t		whole = sizeof(GvMessage);

	if (!gv_role_speaks_on(connection->role))
		return connection->in_capacity - connection->in_used;
	if (connection->in_used >= whole)
		whole += gv_message(connection)->length;
	return whole - connection->in_used;
}

/* Receive up to this many bytes; without `wait` only those that are there. */
static ssize_t
receive_some(GvConnection *connection, size_t bytes, bool wait)
{
	char	   *end = connection->in + connection->in_used;

	/* a thread's client may share memory */
	if (wait)
		return shared_receive(connection, end, bytes);
	return recv(connection->fd, end, bytes, MSG_DONTWAIT);
}

/* Milliseconds that a message, or an answer, begun then has left; 0: none. */
static int
time_left(uint64_t begun_ns)
{
	int64_t		left = (int64_t) gv_server.message_s * 1000 -
	(int64_t) ((gv_now_ns() - begun_ns) / 1000000);

	return left > 0 ? (int) left : 0;
}

/* Is a client within what began at begun_ns, and has been for too long? */
bool
gv_connection_is_stuck(const GvConnection *connection)
{
	return connection->in_used > 0 && time_left(connection->begun_ns) == 0;
}

/* Wait for the client, for so long (-1: for ever); false: in vain. */
static bool
await(const GvConnection *connection, short events, int timeout_ms)
{
	struct pollfd client = {.fd = connection->fd, .events = events};
	int			n;

	while ((n = poll(&client, 1, timeout_ms)) < 0 && errno == EINTR)
		;
	return n > 0;
}

/* The same for more of a message, or for the next one. */
static bool
await_message(const GvConnection *connection)
{
	if (connection->in_used == 0)
		return await(connection, POLLIN, connection->idle_ms);
	if (await(connection, POLLIN, time_left(connection->begun_ns)))
		return true;
	gv_log("LOG", "closed a connection whose client had not ended a message "
		   "in %d s", gv_server.message_s);
	return false;
}

/*
 * Read until a message is whole, or, unless we may wait, until there is
 * nothing to be read.  The last message's answer must have been made.
 */
GvReceived
gv_connection_receive(GvConnection *connection, bool wait)
{
	GvReceived	state = GV_RECEIVED_PART;

	while (state == GV_RECEIVED_PART)
	{
		size_t		bytes = bytes_to_read(connection);
		ssize_t		n = receive_some(connection, bytes, wait);

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
		/* less than the buffer takes: that was all, do not ask again */
		if (state == GV_RECEIVED_PART && !wait && (size_t) n < bytes)
			return state;
	}
	return state;
}

/*
 * Send what is left of the answer.  When all is sent the request is done
 * with, and the next one may come.  Who may speak on before it reads may leave
 * the answer for as long as it likes.
 */
GvFlushed
gv_connection_flush(GvConnection *connection, bool wait)
{
	bool		speaks_on = gv_role_speaks_on(connection->role);
	uint64_t	begun_ns = wait && !speaks_on ? gv_now_ns() : 0;

	while (connection->out_sent < connection->out_used)
	{
		ssize_t		n = send(connection->fd,
							 connection->out + connection->out_sent,
							 connection->out_used - connection->out_sent,
							 MSG_NOSIGNAL |
							 (wait && speaks_on ? 0 : MSG_DONTWAIT));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			if (!wait)
				return GV_FLUSH_LATER;
			if (await(connection, POLLOUT, time_left(begun_ns)))
				continue;
			gv_log("LOG", "closed a connection whose client had not read an "
				   "answer in %d s", gv_server.message_s);
		}
		if (n < 0)
			return GV_FLUSH_BROKEN;
		connection->out_sent += (size_t) n;
		gv_count(sent, n);
	}
	connection->place = NULL;
	connection->in_used = 0;
	connection->out_used = 0;
	connection->out_sent = 0;
	/* loaders need their large buffer again at once, who speaks on both */
	if (connection->role == GV_ROLE_SESSION ||
		connection->role == GV_ROLE_BULK)
		shrink(&connection->in, &connection->in_capacity, FIRST_CAPACITY);
	if (!speaks_on)
		shrink(&connection->out, &connection->out_capacity,
			   sizeof(GvMessage) + sizeof(GvRefusal));
	return GV_FLUSHED;
}

/* Has the client gone?  Its socket tells, whatever waits in it to be read. */
bool
gv_connection_is_gone(const GvConnection *connection)
{
	struct pollfd client = {.fd = connection->fd, .events = POLLRDHUP};

	return poll(&client, 1, 0) > 0 &&
		(client.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* GvStop: no client waits for the result any more. */
static bool
is_abandoned(void *arg)
{
	return gv_server_failed() || gv_connection_is_gone(arg);
}

/* See server.h. */
GvStop
gv_connection_stop(GvConnection *connection)
{
	GvStop		stop = {is_abandoned, connection};

	return stop;
}

/* The type of the message from the socket, wherever its contents lie. */
static uint16_t
asked_type(const GvConnection *connection)
{
	return ((const GvMessage *) connection->in)->type;
}

/* See server.h. */
void *
gv_reply(GvConnection *connection, size_t length)
{
	GvMessage	header = {
		.length = (uint32_t) length,
		.type = GV_MSG_OK,
		.request = asked_type(connection)
	};

	if (!grow(&connection->out, &connection->out_capacity, 0,
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

/*
 * Refuse the request in `in`, instead of what has been made of an answer.
 * Who broke the rules is cut off afterwards.
 */
void
gv_refuse(GvConnection *connection, GvRefusalCode code, const char *reason)
{
	GvMessage	header = {
		.length = sizeof(GvRefusal),
		.type = GV_MSG_REFUSED,
		.request = asked_type(connection)
	};
	GvRefusal	refusal = {.code = code};

	strncpy(refusal.reason, reason, sizeof(refusal.reason) - 1);
	/* memory for this is there from the beginning */
	memcpy(connection->out, &header, sizeof(header));
	memcpy(connection->out + sizeof(header), &refusal, sizeof(refusal));
	connection->out_used = sizeof(header) + sizeof(refusal);
	if (code == GV_REFUSED_PROTOCOL || code == GV_REFUSED_VERSION ||
		code == GV_REFUSED_FULL || code == GV_REFUSED_INCARNATION)
		connection->ending = true;
	gv_count(refusals[code], 1);
}

/* ----
 * What clients may say: who says it, how long it is, when it has its
 * turn, and which function answers it.
 *
 * The table is all that validation (clientconn.c, clientconn.c) and dispatch know
 * of messages; protocol/gv_protocol.h says what they mean.
 */

/* Who sends it. */
#define STRANGER	(1U << 0)
#define SESSION		(1U << GV_ROLE_SESSION)
#define LOADER		(1U << GV_ROLE_LOADER)
#define BUILDER		(1U << GV_ROLE_BUILDER)
#define SET			(1U << GV_ROLE_SET)
#define BULK		(1U << GV_ROLE_BULK)
#define SUPERVISOR	(1U << GV_ROLE_SUPERVISOR)

/*
 * Its length: none, that of a struct, or of one and more; of a hello those of
 * other versions, too, so that these can be told.
 */
#define NONE		0, 0
#define IS(type)	sizeof(type), sizeof(type)
#define FROM(type)	sizeof(type), GV_MAX_MESSAGE
#define HELLO		offsetof(GvHello, role), 4 * sizeof(GvHello)
#define BEYOND(type) sizeof(type) + 1, GV_MAX_MESSAGE
#define VECTOR(type) sizeof(type) + 1, sizeof(type) + 4 * GV_MAX_DIMS
#define SEARCH		sizeof(GvSearchRequest) + 1, \
	sizeof(GvSearchRequest) + sizeof(GvTestRequest) * GV_MAX_TESTS + \
	sizeof(uint64_t) * GV_MAX_VALUES + 4 * GV_MAX_DIMS

static const GvMessageKind kinds[GV_MSG_OK] = {
	[GV_MSG_HELLO] = {STRANGER, HELLO, GV_ANY_TIME, false, gv_session_hello},
	[GV_MSG_PING] = {SESSION | LOADER | BUILDER | SET | BULK | SUPERVISOR, NONE,
	GV_ANY_TIME, false, gv_session_ping},
	[GV_MSG_STATUS] = {SESSION | LOADER | SUPERVISOR, NONE, GV_ANY_TIME, false,
	gv_session_status},
	[GV_MSG_SEARCH] = {SESSION | LOADER, SEARCH, GV_ANY_TIME, false,
	gv_session_search},

	[GV_MSG_BEGIN] = {LOADER, IS(GvBeginRequest), GV_ANY_TIME, false,
	loader_begin},
	[GV_MSG_ARRAY] = {LOADER, FROM(GvArrayRequest), GV_ANY_TIME, true,
	gv_chunks_array},
	[GV_MSG_LISTS] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, true,
	gv_chunks_lists},
	[GV_MSG_READY] = {LOADER, IS(GvKeyRequest), GV_ANY_TIME, false,
	gv_chunks_ready},
	[GV_MSG_CURRENT] = {LOADER, IS(GvCurrentRequest), GV_ANY_TIME, false,
	gv_chunks_current},
	[GV_MSG_STATES] = {LOADER, IS(GvRangeRequest), GV_ANY_TIME, false,
	gv_read_states},
	[GV_MSG_BLOCKS] = {LOADER, IS(GvRangeRequest), GV_ANY_TIME, false,
	gv_read_blocks},
	[GV_MSG_REFINE] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, true,
	gv_chunks_refine},
	[GV_MSG_DROP] = {LOADER | SUPERVISOR, IS(GvKeyRequest), GV_ANY_TIME, false,
	loader_drop},
	[GV_MSG_VALUES] = {LOADER, IS(GvArrayRequest), GV_ANY_TIME, false,
	gv_read_values},
	[GV_MSG_RECORDS] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, false,
	gv_read_records},

	[GV_MSG_MEMORY] = {LOADER | SET, IS(GvMemoryRequest), GV_ANY_TIME, false,
	shared_take},
	[GV_MSG_HERE] = {LOADER | SET, IS(GvHereRequest), GV_ANY_TIME, false,
	NULL},

	[GV_MSG_BUILD] = {BUILDER, VECTOR(GvBuilderSpec), GV_BEFORE_WORK, false,
	gv_build_begin},
	[GV_MSG_ROWS] = {BUILDER, BEYOND(GvRowsRequest), GV_DURING_WORK, false,
	gv_build_rows},
	[GV_MSG_TRAIN] = {BUILDER, NONE, GV_OWN_WORK, false, gv_build_train},
	[GV_MSG_TRAINED] = {BUILDER, IS(GvTrainedRequest), GV_OWN_WORK, false,
	gv_build_trained},
	[GV_MSG_ENCODE] = {BUILDER, BEYOND(GvRowsRequest), GV_DURING_WORK, false,
	gv_build_encoded},
	[GV_MSG_SAMPLED] = {BUILDER, IS(GvSampledRequest), GV_DURING_WORK, false,
	gv_build_sampled},
	[GV_MSG_CALIB_MIRROR] =
	{BUILDER, IS(GvCalibMirrorRequest), GV_OWN_WORK, false,
	gv_build_calib_mirror},
	[GV_MSG_CHUNKS] = {BUILDER, FROM(GvListsRequest), GV_DURING_WORK, false,
	gv_build_chunks},
	[GV_MSG_TRY] = {BUILDER, BEYOND(GvTryRequest), GV_OWN_WORK, false,
	gv_build_try},
	[GV_MSG_JOIN] = {BUILDER, IS(GvJoinRequest), GV_BEFORE_WORK, false,
	gv_build_join},

	[GV_MSG_SET] = {SET, IS(GvSetSpec), GV_ANY_TIME, false,
	gv_setwork_begin},
	[GV_MSG_PUT] = {SET, BEYOND(GvPutRequest), GV_DURING_WORK, true,
	gv_setwork_put},
	[GV_MSG_RUN] = {SET, NONE, GV_DURING_WORK, false, gv_setwork_run},
	[GV_MSG_GET] = {SET, IS(GvGetRequest), GV_DURING_WORK, false,
	gv_setwork_get},

	[GV_MSG_ASK] = {SET, IS(GvSetSpec), GV_DURING_WORK, false,
	gv_setwork_ask},

	[GV_MSG_SEARCHES] = {BULK, BEYOND(GvSearchesRequest), GV_ANY_TIME, false,
	gv_bulk_search},
};

/* See server.h. */
const GvMessageKind *
gv_message_kind(const GvMessage *message)
{
	const GvMessageKind *kind;

	if (message->type >= GV_MSG_OK)
		return NULL;
	kind = &kinds[message->type];
	return kind->roles != 0 && message->length >= kind->least &&
		message->length <= kind->most ? kind : NULL;
}

/* ----
 * Threads with one client: a loader's reads, applies and answers one
 * message at a time, and waits for its client only.
 */

#define STACK_BYTES		(1024 * 1024)

/* See GV_MSG_BEGIN. */
static void
loader_begin(GvConnection *connection)
{
	const GvBeginRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_PROTOCOL;

	if (request->spec.device == 0)
		refusal = gv_mirrors_begin(&request->key, &request->spec,
								   connection->number);
	if (refusal != 0)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	else
		gv_reply(connection, 0);
}

/* See GV_MSG_DROP. */
static void
loader_drop(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);

	gv_mirrors_drop(&request->key);
	gv_reply(connection, 0);
}

/*
 * Have a client's messages answered until it goes.  After a refusal a builder
 * or a set has nothing more to say, and what it sent already is not read.
 */
void
gv_thread_serve(GvConnection *connection,
				void (*answer) (GvConnection *connection))
{
	bool		speaks_on = gv_role_speaks_on(connection->role);
	GvReceived	received;

	do
	{
		received = gv_connection_receive(connection, true);
		if (received == GV_RECEIVED_END)
			break;
		if (received == GV_RECEIVED_WHOLE &&
			(gv_message(connection)->type != GV_MSG_HERE ||
			 shared_open(connection)))
			answer(connection);
		if (speaks_on &&
			((const GvMessage *) connection->out)->type == GV_MSG_REFUSED)
			connection->ending = true;
	} while (gv_connection_flush(connection, true) == GV_FLUSHED &&
			 !connection->ending);
}

static void
serve_loader(GvConnection *connection)
{
	gv_thread_serve(connection, gv_message_answer);
	gv_mirrors_abandon(connection->number);
	gv_worker_close(connection->work);
}

static void *
thread_main(void *arg)
{
	GvConnection *connection = arg;

	if (connection->role == GV_ROLE_BUILDER)
		gv_build_serve(connection);
	else if (connection->role == GV_ROLE_SET)
		gv_setwork_serve(connection);
	else if (connection->role == GV_ROLE_BULK)
		gv_bulk_serve(connection);
	else
		serve_loader(connection);
	gv_connection_close(connection);
	gv_count(loaders, -1);
	return NULL;
}

/*
 * A thread, which is to be joined, or with NULL one that is not waited for;
 * false: there is none.
 */
bool
gv_thread_start(void *(*main) (void *), void *arg, pthread_t *joined)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	bool		started;

	pthread_attr_init(&attr);
	if (joined == NULL)
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the loop's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	started = pthread_create(joined != NULL ? joined : &thread, &attr, main,
							 arg) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return started;
}

/* Give a connection to a thread of its own; false: it is still ours. */
bool
gv_loader_start(GvConnection *connection)
{
	bool		started;

	gv_count(loaders, 1);
	started = gv_thread_start(thread_main, connection, NULL);
	if (!started)
		gv_count(loaders, -1);
	return started;
}
