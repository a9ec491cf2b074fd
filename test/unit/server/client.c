/*
 * client.c
 *		Connections to gpuvecd: bytes, messages, questions.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define PATIENCE_S	300			/* then the server hangs; valgrind is slow */

int64_t
client_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A connection that has not said anything. */
int
client_socket(const TestServer *server)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = PATIENCE_S};
	int			fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s",
			 server->folder, GV_SOCKET_PATH);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

/*
 * Say hello as one of this incarnation: 0, a GvRefusalCode, or -1 for the end.
 */
int
client_hello(int fd, GvRole role, uint64_t incarnation)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role,
	(uint32_t) getpid(), incarnation};

	return ASK(fd, GV_MSG_HELLO, hello);
}

void
client_close(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

/* A connection that has said hello, and is welcome. */
int
client_open(const TestServer *server, GvRole role)
{
	int			fd = client_socket(server);

	if (fd >= 0 && client_hello(fd, role, TEST_INCARNATION) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

bool
client_send(int fd, const void *bytes, size_t n)
{
	const char *next = bytes;

	while (n > 0)
	{
		ssize_t		sent = send(fd, next, n, MSG_NOSIGNAL);

		if (sent <= 0)
			return false;
		next += sent;
		n -= sent;
	}
	return true;
}

bool
client_message(int fd, GvMessageType type, const void *head,
			   size_t head_bytes, const void *tail, size_t tail_bytes)
{
	GvMessage	header = {(uint32_t) (head_bytes + tail_bytes), type, 0};

	return client_send(fd, &header, sizeof(header)) &&
		client_send(fd, head, head_bytes) &&
		client_send(fd, tail, tail_bytes);
}

static bool
receive(int fd, void *bytes, size_t n)
{
	char	   *next = bytes;

	while (n > 0)
	{
		ssize_t		got = recv(fd, next, n, 0);

		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			CHECK(false, "no answer in %d s", PATIENCE_S);
		if (got <= 0)
			return false;
		next += got;
		n -= got;
	}
	return true;
}

void *
client_answer(int fd, GvMessage *header)
{
	void	   *payload;

	if (!receive(fd, header, sizeof(*header)))
		return NULL;
	payload = malloc(header->length + 1);
	if (receive(fd, payload, header->length))
		return payload;
	free(payload);
	return NULL;
}

/* The refusal, 0 or -1 that comes next, as an answer to this request. */
int
client_receive(int fd, GvMessageType type, void **payload, uint32_t *length)
{
	GvMessage	header;
	void	   *answer = client_answer(fd, &header);
	int			refusal = 0;

	if (answer == NULL)
		return -1;
	CHECK(header.request == type, "an answer to %d for %d", header.request,
		  type);
	if (header.type == GV_MSG_REFUSED)
		refusal = (int) ((GvRefusal *) answer)->code;
	if (length != NULL)
		*length = header.length;
	if (payload != NULL && refusal == 0)
		*payload = answer;
	else
		free(answer);
	return refusal;
}

int
client_ask(int fd, GvMessageType type, const void *head, size_t head_bytes,
		   const void *tail, size_t tail_bytes, void **payload,
		   uint32_t *length)
{
	/* who is cut off in mid-message may still read why */
	(void) client_message(fd, type, head, head_bytes, tail, tail_bytes);
	return client_receive(fd, type, payload, length);
}

int
client_ping(int fd)
{
	return ASK_PLAIN(fd, GV_MSG_PING);
}

/* Has the server closed the connection?  It gets time to do so. */
bool
client_ended(int fd)
{
	struct pollfd in = {.fd = fd,.events = POLLIN};
	char		byte;

	return poll(&in, 1, PATIENCE_S * 1000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

/* Who got this answer broke the rules: is it cut off, and does it know why? */
void
client_cut(int fd, int got, const char *what)
{
	CHECK(got == GV_REFUSED_PROTOCOL, "%s: %d", what, got);
	/* whoever was answered would be waited for in vain */
	CHECK(got != 0 && client_ended(fd), "%s", what);
	close(fd);
}

/* The process of the i-th of several clients. */
int
client_fork(const TestServer *server, int i, int rounds, ClientRound round,
			const void *arg)
{
	int			pid = fork();
	int			session;

	if (pid != 0)
		return pid;
	session = client_open(server, GV_ROLE_SESSION);
	unit_seed += (uint64_t) i * 1000003;
	while (rounds > 0 && round(session, arg))
		rounds--;
	_exit(rounds > 0);
}
