/*
 * connection.c
 *		One client: its buffers, the framing of messages, answers.
 *
 * The same code serves the loop, which never waits, and loaders' threads,
 * which do.  A buffer grows to what the message at hand needs, once its type
 * and length have been found to be allowed, and large ones are given back.
 * A client may be idle between messages, but not within one, nor while it is
 * to read an answer, as threads and memory are few.
 */
#include "server/gv_server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
	gv_shared_release(connection);
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
		return gv_shared_receive(connection, end, bytes);
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

/* See gv_server.h. */
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

/* See gv_server.h. */
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
