/*
 * bench_loop.c
 *		The loop of gpuvecd: processor time of its thread and of a session for
 *		each search, and searches a second, of so many sessions and so many hits
 *		of 16 bytes, by messages through sockets and then by mailboxes.
 *
 * GPUVECD has to name a gpuvecd whose engine takes no processor
 * (test/bench/idle.c).  IDLE_US and IDLE_NS say what a batch takes.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define DIMS		768			/* a query of 384, transformed and as asked */
#define MOST_HITS	2000		/* idle.c has memory for 2,048 */
#define MOST_SESSIONS	256
#define WARM_US		200000
#define MAIL_BYTES	98304		/* as remotesearch.c */

/* A thread's time in ns from /proc: on a processor, and waiting for one. */
typedef struct Times
{
	int64_t		ran;
	int64_t		waited;
} Times;

static Times
loop_times(const TestServer *server)
{
	char		path[64];
	Times		times = {0};
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", server->pid,
			 server->pid);
	file = fopen(path, "r");
	CHECK(file != NULL && fscanf(file, "%ld %ld", &times.ran,
								 &times.waited) == 2, "%s", path);
	if (file != NULL)
		fclose(file);
	return times;
}

/* Processor time of all sessions that have ended, in us. */
static double
sessions_us(void)
{
	struct rusage used;

	getrusage(RUSAGE_CHILDREN, &used);
	return 1e6 * (double) (used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
		(double) (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* A session's process: asks until it is killed, as serverconn.c does. */
static void
ask(int fd, const GvSearchRequest *request, const float *query)
{
	static char in[sizeof(GvMessage) + 65536];
	GvMessage	header = {(uint32_t) sizeof(*request) + DIMS * 4,
	GV_MSG_SEARCH, 0};

	for (;;)
	{
		struct iovec parts[] = {{&header, sizeof(header)},
		{(void *) request, sizeof(*request)}, {(void *) query, DIMS * 4}};
		struct msghdr message = {.msg_iov = parts,.msg_iovlen = 3};
		struct pollfd answer = {.fd = fd,.events = POLLIN};
		size_t		used = 0;

		if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
			_exit(1);
		do
		{
			ssize_t		n;

			(void) poll(&answer, 1, -1);
			n = recv(fd, in + used, sizeof(in) - used, 0);
			if (n <= 0)
				_exit(1);
			used += (size_t) n;
		} while (used < sizeof(header) ||
				 used < sizeof(header) + ((GvMessage *) in)->length);
	}
}

/* Likewise by a mailbox. */
static void
ask_by_mail(int fd, const GvSearchRequest *request, const float *query)
{
	static char in[MAIL_BYTES];
	TestMemory	memory = memory_make(F_SEAL_SHRINK);
	TestMailbox mailbox = mailbox_open(fd, &memory, MAIL_BYTES);

	while (mailbox_put(&mailbox, request, sizeof(*request), query, DIMS * 4,
					   GV_MAIL_WAITING) && mailbox_sleep(&mailbox))
	{
		const GvMessage *answer = mailbox_answer(&mailbox);

		if (answer == NULL)
			break;
		memcpy(in, answer, sizeof(*answer) + answer->length);
	}
	_exit(1);
}

static void
measure(const TestServer *server, const GvSearchRequest *request,
		const float *query, int sessions, int ms, bool by_mail)
{
	int			pids[MOST_SESSIONS];
	int64_t		first = server_totals(server).searches;
	double		ended_us = sessions_us();
	GvStatusReply before;
	GvStatusReply after;
	Times		began;
	Times		ended;
	int64_t		begun_ms;
	double		n;
	double		ns;
	int			i;

	fflush(stdout);
	for (i = 0; i < sessions; i++)
	{
		pids[i] = fork();
		if (pids[i] == 0)
			(by_mail ? ask_by_mail : ask) (client_open(server, GV_ROLE_SESSION),
										   request, query);
	}
	usleep(WARM_US);
	before = server_totals(server);
	began = loop_times(server);
	begun_ms = client_now_ms();
	usleep((useconds_t) ms * 1000);
	after = server_totals(server);
	ended = loop_times(server);
	ns = (double) (client_now_ms() - begun_ms) * 1e6;
	for (i = 0; i < sessions; i++)
	{
		kill(pids[i], SIGKILL);
		(void) waitpid(pids[i], NULL, 0);
	}
	n = (double) (after.searches - before.searches);
	printf("%s, %3d sessions, %5d hits: %7.0f searches/s, batches of %5.2f; the loop's thread %6.2f us each, waits %6.2f; runs %.0f %%; a session %6.2f us\n",
		   by_mail ? "mailbox" : "socket ", sessions, request->capacity, n / ns * 1e9, n /
		   (double) (after.batches - before.batches),
		   (double) (ended.ran - began.ran) / n / 1000,
		   (double) (ended.waited - began.waited) / n / 1000,
		   (double) (ended.ran - began.ran) / ns * 100,
		   (sessions_us() - ended_us) /
		   (double) (server_totals(server).searches - first));
}

void
bench_loop(int ms, int sessions, int hits)
{
	TestServer	server = server_start(NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(1);
	OwnIndex	index = make_index(GV_L2, DIMS, 32, 2, 1, -MOST_HITS, false);
	GvSearchRequest request = {.key = key,.n = 1,.dims = DIMS,.probes = 1,
	.compare = 1,.capacity = hits};

	CHECK(load_all(loader, &key, &index) == 0, "load");
	measure(&server, &request, index.centroids, sessions, ms, false);
	measure(&server, &request, index.centroids, sessions, ms, true);
	server_end(&server);
}
