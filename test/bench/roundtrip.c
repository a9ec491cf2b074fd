/*
 * roundtrip.c
 *		What asking gpuvecd costs: round trips a second, and their median, by
 *		number of clients, against a mirror so small that searching it is
 *		nothing; beside a socket whose other end only echoes.
 *
 * usage: roundtrip PATH-OF-GPUVECD [SECONDS]
 * build: gcc -std=gnu99 -O2 -D_GNU_SOURCE -Isrc test/bench/roundtrip.c \
 *			-lpthread -o build/roundtrip
 *
 * A query has 384 floats, an answer 80 hits of one list.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/mirror/gv_mirror.h"
#include "protocol/gv_protocol.h"

#define DIMS		384
#define HITS		80
#define COPIES		96			/* three blocks */
#define M			2
#define MAX_CLIENTS	64
#define MAX_TIMES	2000000

typedef struct Client
{
	pthread_t	thread;
	int			fd;
	bool		echo;
	long		n;
	uint32_t   *times_ns;
	double		engine_us;		/* that searching took, its share of batches */
	double		batches;		/* searches that were answered together */
} Client;

typedef struct Question
{
	GvMessage	header;
	GvSearchRequest request;
	float		query[DIMS];
} Question;

#define ANSWER_BYTES	(sizeof(GvMessage) + (sizeof(GvSearchReply) + \
						 sizeof(GvProbeReply) + HITS * sizeof(GvHit) + 7) / 8 * 8)

static const GvMirrorKey key = {1, 2, 3, 4, 5};
static volatile bool stop;

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static void
send_all(int fd, const void *bytes, size_t n)
{
	if (send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t) n)
		die("send");
}

static void
receive_all(int fd, void *bytes, size_t n)
{
	/* for nothing at all it would wait, too */
	if (n > 0 && recv(fd, bytes, n, MSG_WAITALL) != (ssize_t) n)
		die("recv");
}

/* Send a message of two parts, and expect OK and so many bytes. */
static void
ask(int fd, int type, const void *head, size_t head_bytes, const void *tail,
	size_t tail_bytes, size_t reply_bytes)
{
	GvMessage	header = {(uint32_t) (head_bytes + tail_bytes), type, 0};
	char		reply[1024];

	send_all(fd, &header, sizeof(header));
	send_all(fd, head, head_bytes);
	if (tail_bytes > 0)
		send_all(fd, tail, tail_bytes);
	receive_all(fd, &header, sizeof(header));
	if (header.type != GV_MSG_OK || header.length != reply_bytes)
	{
		fprintf(stderr, "message %d was refused\n", type);
		exit(1);
	}
	receive_all(fd, reply, reply_bytes);
}

static int
open_client(GvRole role)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX,
	.sun_path = GV_SOCKET_PATH};
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role, 1, 1};
	int			fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		die("connect");
	ask(fd, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0, sizeof(GvWelcome));
	return fd;
}

static void
load(void)
{
	static float zeros[GV_CODEWORDS * DIMS];
	static struct
	{
		GvListsRequest request;
		GvChunk		piece;
		uint32_t	live[COPIES / GV_BLOCK];
		float		t[COPIES];
		uint16_t	rowids[COPIES][3];
		uint8_t		codes[COPIES];
	}			lists;
	static const int64_t lengths[GV_NARRAYS] = {GV_CODEWORDS * DIMS, DIMS, 2,
	DIMS};
	GvBeginRequest begin = {key, {0, GV_L2, DIMS, M, 1, 1, COPIES, 0, 0, 0}};
	int32_t		starts[2] = {0, 1};
	int			fd;
	int			i;

	/* who lets others in */
	(void) open_client(GV_ROLE_SUPERVISOR);
	fd = open_client(GV_ROLE_LOADER);
	ask(fd, GV_MSG_BEGIN, &begin, sizeof(begin), NULL, 0, 0);
	for (i = 0; i < GV_NARRAYS; i++)
	{
		GvArrayRequest array = {key, i, 0, 0, lengths[i]};

		ask(fd, GV_MSG_ARRAY, &array, sizeof(array),
			i == GV_PARENT_OFFSETS ? (void *) starts : zeros, lengths[i] * 4,
				0);
	}
	lists.request = (GvListsRequest) {key, 1, 0};
	lists.piece.nblocks = COPIES / GV_BLOCK;
	lists.piece.state.nitems = COPIES;
	memset(lists.live, 255, sizeof(lists.live));
	ask(fd, GV_MSG_LISTS, &lists, sizeof(lists), NULL, 0, 0);
	ask(fd, GV_MSG_READY, &key, sizeof(key), NULL, 0, 0);
	close(fd);
}

/* The bare socket: as many bytes each way, and a thread that waits. */
static void *
echo_main(void *arg)
{
	static const char answer[ANSWER_BYTES];
	int			fd = *(int *) arg;
	Question	question;

	while (recv(fd, &question, sizeof(question), MSG_WAITALL) ==
		   (ssize_t) sizeof(question))
		send_all(fd, answer, sizeof(answer));
	close(fd);
	free(arg);
	return NULL;
}

static int
open_echo(void)
{
	pthread_t	thread;
	int			ends[2];
	int		   *other = malloc(sizeof(int));

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
		die("socketpair");
	*other = ends[1];
	pthread_create(&thread, NULL, echo_main, other);
	pthread_detach(thread);
	return ends[0];
}

static void *
client_main(void *arg)
{
	Client	   *client = arg;
	Question	question = {{sizeof(question) - sizeof(GvMessage),
	GV_MSG_SEARCH, 0}, {key, 1, DIMS, 1, 1, HITS}, {0}};
	char		answer[ANSWER_BYTES] = {0};
	const GvSearchReply *reply = (GvSearchReply *) (answer +
													sizeof(GvMessage));

	while (!stop && client->n < MAX_TIMES)
	{
		uint64_t	began = now_ns();

		send_all(client->fd, &question, sizeof(question));
		receive_all(client->fd, answer, sizeof(answer));
		client->times_ns[client->n++] = (uint32_t) (now_ns() - began);
		if (client->echo)
			continue;
		client->engine_us += (double) reply->engine_us / reply->batch;
		client->batches += reply->batch;
	}
	return NULL;
}

static int
compare_times(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return x < y ? -1 : x > y;
}

/* So many clients for so long; prints a line. */
static void
measure(bool echo, int nclients, int seconds)
{
	static Client clients[MAX_CLIENTS];
	uint32_t   *all;
	long		n = 0;
	uint64_t	began;
	double		engine_us = 0;
	double		batches = 0;
	double		took;
	int			i;

	stop = false;
	for (i = 0; i < nclients; i++)
	{
		clients[i].fd = echo ? open_echo() : open_client(GV_ROLE_SESSION);
		clients[i].echo = echo;
		clients[i].n = 0;
		clients[i].engine_us = 0;
		clients[i].batches = 0;
		clients[i].times_ns = malloc(sizeof(uint32_t) * MAX_TIMES);
	}
	began = now_ns();
	for (i = 0; i < nclients; i++)
		pthread_create(&clients[i].thread, NULL, client_main, &clients[i]);
	sleep(seconds);
	stop = true;
	for (i = 0; i < nclients; i++)
	{
		pthread_join(clients[i].thread, NULL);
		close(clients[i].fd);
		n += clients[i].n;
		engine_us += clients[i].engine_us;
		batches += clients[i].batches;
	}
	took = (now_ns() - began) / 1e9;
	all = malloc(sizeof(uint32_t) * n);
	for (n = 0, i = 0; i < nclients; i++)
	{
		memcpy(all + n, clients[i].times_ns,
			   sizeof(uint32_t) * clients[i].n);
		n += clients[i].n;
		free(clients[i].times_ns);
	}
	qsort(all, n, sizeof(uint32_t), compare_times);
	printf("%-8s %2d clients: %8.0f round trips/s, p50 %6.1f us, "
		   "p99 %6.1f us", echo ? "echo" : "gpuvecd", nclients, n / took,
		   all[n / 2] / 1e3, all[n - n / 100 - 1] / 1e3);
	if (!echo)
		printf(", engine %.1f us, batches of %.1f", engine_us / n,
			   batches / n);
	printf("\n");
	fflush(stdout);
	free(all);
}

int
main(int argc, char **argv)
{
	char		folder[] = "/tmp/gvXXXXXX";
	int			seconds = argc > 2 ? atoi(argv[2]) : 3;
	char	   *program = argc > 1 ? realpath(argv[1], NULL) : NULL;
	int			tries = 0;
	int			pid;
	int			n;

	if (program == NULL || mkdtemp(folder) == NULL || chdir(folder) != 0)
		die("usage: roundtrip PATH-OF-GPUVECD [SECONDS]");
	pid = fork();
	if (pid == 0)
	{
		execl(program, program, "--engine", "cpu", NULL);
		_exit(127);
	}
	while (access(GV_SOCKET_PATH, F_OK) != 0 && tries++ < 1000)
		usleep(10000);
	load();
	for (n = 1; n <= 64; n *= 4)
	{
		measure(true, n, seconds);
		measure(false, n, seconds);
	}
	kill(pid, SIGTERM);
	waitpid(pid, NULL, 0);
	unlink(GV_LOCK_PATH);
	if (rmdir(folder) != 0)
		die(folder);
	return 0;
}
