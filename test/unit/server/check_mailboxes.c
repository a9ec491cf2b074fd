/*
 * check_mailboxes.c
 *		Sessions' searches in shared memory: answers are right wherever they
 *		come, whoever sleeps is woken, and what is wrong ends its connection.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define DIMS		4
#define IDLE_US		1200000		/* then nobody looks any more */
#define SLOW_MS		400			/* a round that waited for no wake, but for the
								 * loop's time-out */
#define MOST_SLOW	10
#define SMALL_BYTES	(sizeof(GvMailbox) + 1024)	/* room for short answers */
#define BATCH		1024		/* GV_MAX_BATCH */
#define CROWD		(5 * BATCH + 100)
#define HANGS_MS	1000		/* without an answer: a batch hangs */

typedef struct Searched
{
	const TestServer *server;
	GvMirrorKey key;
	const TestIndex *index;
} Searched;

/* Put a search there; the session looks at the state, or sleeps at once. */
static bool
put_search(const TestMailbox *mailbox, const TestSearch *search, bool looks)
{
	size_t		bytes;
	FREED char *tail = search_tail(search, &bytes);

	return mailbox_put(mailbox, &search->request, sizeof(search->request),
					   tail, bytes, looks ? GV_MAIL_ASKED : GV_MAIL_WAITING);
}

/* As search_receive; *there says whether the answer was in the memory. */
static int
take_search(const TestMailbox *mailbox, const TestIndex *index,
			const TestSearch *search, int looks, bool *there)
{
	const GvMessage *answer = NULL;
	void	   *payload = NULL;
	uint32_t	length;
	int			got = 0;

	while (looks-- > 0 && gv_mail_state(mailbox->box) == GV_MAIL_ASKED)
		;
	(void) gv_mail_change(mailbox->box, GV_MAIL_ASKED, GV_MAIL_WAITING);
	while (gv_mail_state(mailbox->box) == GV_MAIL_WAITING)
		if (!mailbox_sleep(mailbox))
			return -1;
	answer = mailbox_answer(mailbox);
	*there = answer != NULL;
	if (answer == NULL)
		got = client_receive(mailbox->fd, GV_MSG_LOOK, &payload, &length);
	else
	{
		length = answer->length;
		payload = malloc(length + 1);
		memcpy(payload, answer + 1, length);
		CHECK(answer->type == GV_MSG_OK && answer->request == GV_MSG_LOOK,
			  "an answer %d to %d", answer->type, answer->request);
	}
	if (got == 0 && !search_is_answered(index, search, payload, length))
		got = WRONG_ANSWER;
	free(payload);
	return got;
}

static int
ask_search(const TestMailbox *mailbox, const TestIndex *index,
		   const TestSearch *search, int looks, bool *there)
{
	CHECK(put_search(mailbox, search, looks > 0), "put");
	return take_search(mailbox, index, search, looks, there);
}

/*
 * Answers come in the memory or, where they are too long, through the socket,
 * and so do refusals; other messages may come between.
 */
static void
test_answers(const TestServer *server, const Searched *searched)
{
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	TestMailbox mailbox = mailbox_open(fd, &memory, SMALL_BYTES);
	GvMirrorKey none = test_key(99);
	int			nthere = 0;
	int			rounds = unit_small ? 100 : 1000;
	int			i;

	for (i = 0; i < rounds; i++)
	{
		OwnSearch	search = make_search(&searched->key, searched->index);
		int			looks = (int) (unit_random() % 3) * 1000000;
		bool		there;
		int			got = ask_search(&mailbox, searched->index, &search, looks,
									 &there);

		CHECK(got == 0, "search %d: %d", i, got);
		if (got == -1)
			break;
		nthere += there;
		if (i % 7 == 0)
			CHECK(client_ping(fd) == 0, "ping");
		if (i % 11 == 0)
			OK(search_check(fd, &searched->key, searched->index));
		if (i % 13 != 0)
			continue;
		search.request.key = none;
		got = ask_search(&mailbox, searched->index, &search, looks, &there);
		CHECK(got == GV_REFUSED_NO_MIRROR && !there, "no mirror: %d", got);
	}
	CHECK(nthere > rounds / 10 && nthere < rounds, "%d of %d in the memory",
		  nthere, rounds);
	close(mailbox.wake);
}

/* A session that has not asked for a while has to tell when it does. */
static void
test_idle(const TestServer *server, const Searched *searched)
{
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	TestMailbox mailbox = mailbox_open(fd, &memory, MEMORY_BYTES);
	OwnSearch	search = make_search(&searched->key, searched->index);
	bool		there;

	OK(ask_search(&mailbox, searched->index, &search, 0, &there));
	usleep(IDLE_US);
	CHECK(gv_mail_state(mailbox.box) == GV_MAIL_UNATTENDED, "it is attended");
	OK(ask_search(&mailbox, searched->index, &search, 0, &there));
	close(mailbox.wake);
}

/* What is no search of one query, and memory that is no mailbox. */
static void
test_malformed(const TestServer *server, const Searched *searched)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	const uint32_t one = sizeof(GvSearchRequest) + 4 * DIMS;
	const struct
	{
		const char *what;
		GvMessage	header;
		int32_t		n;
		int32_t		shared;
	}			wrongs[] = {
		{"a ping", {0, GV_MSG_PING, 0}, 1, 0},
		{"a look", {0, GV_MSG_LOOK, 0}, 1, 0},
		{"other memory", {sizeof(GvAttachShmRequest), GV_MSG_ATTACH_SHM, 0}, 1,
		0},
		{"a hello", {sizeof(GvHello), GV_MSG_HELLO, 0}, 1, 0},
		{"an array", {sizeof(GvArrayRequest) + 4, GV_MSG_ARRAY, 0}, 1, 0},
		{"an answer", {one, GV_MSG_SEARCH, 1}, 1, 0},
		{"too short", {one - 4, GV_MSG_SEARCH, 0}, 1, 0},
		{"too long", {sizeof(((GvMailbox *) NULL)->request) - 4,
		GV_MSG_SEARCH, 0}, 1, 0},
		{"far too long", {UINT32_MAX, GV_MSG_SEARCH, 0}, 1, 0},
		{"two queries", {one + 4 * DIMS, GV_MSG_SEARCH, 0}, 2, 0},
		{"queries elsewhere", {one, GV_MSG_SEARCH, 0}, 1, 1}
	};
	GvMessage	look = {0, GV_MSG_LOOK, 0};
	size_t		i;
	int			fd;

	for (i = 0; i < 2 * sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		GvSearchRequest request = {.key = searched->key, .dims = DIMS,
			.n = wrongs[i / 2].n, .probes = 1, .compare = 1, .capacity = 1,
		.shared = wrongs[i / 2].shared};
		TestMailbox mailbox;

		memset(memory.bytes, 0, sizeof(GvMailbox) + sizeof(GvMessage));
		fd = client_open(server, GV_ROLE_SESSION);
		mailbox = mailbox_open(fd, &memory, MEMORY_BYTES);
		/* whether it is told of the message or finds it */
		if (i % 2 == 0)
			CHECK(client_ping(fd) == 0, "ping");
		memcpy(mailbox.box->request + sizeof(look), &request,
			   sizeof(request));
		memcpy(mailbox.box->request, &wrongs[i / 2].header, sizeof(look));
		if (gv_mail_exchange(mailbox.box, GV_MAIL_WAITING) ==
			GV_MAIL_UNATTENDED)
			CHECK(client_send(fd, &look, sizeof(look)), "look");
		client_cut(fd, client_receive(fd, GV_MSG_LOOK, NULL, NULL),
				   wrongs[i / 2].what);
		close(mailbox.wake);
	}
	fd = client_open(server, GV_ROLE_SESSION);
	client_cut(fd, ASK_PLAIN(fd, GV_MSG_LOOK), "no memory");
	fd = client_open(server, GV_ROLE_SESSION);
	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	client_cut(fd, ASK_PLAIN(fd, GV_MSG_LOOK), "no eventfd");
	fd = client_open(server, GV_ROLE_SESSION);
	client_cut(fd, memory_pass(fd, sizeof(GvMailbox), &memory.fd, 1),
			   "no room for answers");
	fd = client_open(server, GV_ROLE_SESSION);
	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	client_cut(fd, memory_pass(fd, MEMORY_BYTES, &memory.fd, 1),
			   "memory once more");
}

/* A session that scribbles over its memory until it is killed. */
static void
scribble(const Searched *searched)
{
	int			fd = client_open(searched->server, GV_ROLE_SESSION);
	TestMemory	memory = memory_make(F_SEAL_SHRINK);
	TestMailbox mailbox = mailbox_open(fd, &memory, SMALL_BYTES);
	TestSearch	search = make_search(&searched->key, searched->index);

	for (;;)
	{
		uint32_t	at = (uint32_t) (unit_random() % 300);

		if (unit_random() % 8 == 0)
			(void) put_search(&mailbox, &search, true);
		else if (unit_random() % 4 == 0)
			mailbox.box->state = (uint32_t) (unit_random() % 6);
		else
			mailbox.box->request[at] ^= (char) (1 << unit_random() % 8);
		/* cut off: begin anew */
		if (recv(fd, memory.bytes + sizeof(GvMailbox), 1, MSG_DONTWAIT) == 0)
			break;
	}
	_exit(0);
}

/* Sessions that scribble, or are killed while they are searched for. */
static void
test_strange(const TestServer *server, const Searched *searched)
{
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	TestMailbox mailbox = mailbox_open(fd, &memory, MEMORY_BYTES);
	int			rounds = unit_small ? 20 : 200;
	int			i;

	for (i = 0; i < rounds; i++)
	{
		int			pid = fork();
		int			n;

		if (pid == 0)
		{
			unit_seed += (uint64_t) i;
			scribble(searched);
		}
		for (n = 0; n < 20; n++)
		{
			OwnSearch	search = make_search(&searched->key, searched->index);
			bool		there;
			int			got = ask_search(&mailbox, searched->index, &search, n,
										 &there);

			CHECK(got == 0, "beside a strange session: %d", got);
		}
		kill(pid, SIGKILL);
		(void) waitpid(pid, NULL, 0);
	}
	close(mailbox.wake);
}

/*
 * A round of a session that sleeps at any moment.  A wake of the session that is
 * lost ends the test by a time-out, one of the loop costs LOOK_MS.
 */
static bool
race(int fd, const void *arg)
{
	static TestMemory memory;
	static TestMailbox mailbox;
	static TestSearch search;
	const Searched *searched = arg;
	static int	nslow;
	int			pause = (int) (unit_random() % 64);
	int64_t		began;
	bool		there;
	int			got;

	if (memory.bytes == NULL)
	{
		memory = memory_make(F_SEAL_SHRINK);
		mailbox = mailbox_open(fd, &memory, MEMORY_BYTES);
		search = make_search(&searched->key, searched->index);
		search.request.capacity = 3;
		search.request.rank = 0;
	}
	/* so that gpuvecd sleeps now and then, or is about to */
	if (pause == 0)
		usleep((useconds_t) (unit_random() % 100));
	else
		for (; pause > 0; pause--)
			(void) client_now_ms();
	began = client_now_ms();
	got = ask_search(&mailbox, searched->index, &search,
					 1 + (int) (unit_random() % 2000) * (int) (unit_random() % 2),
					 &there);
	nslow += client_now_ms() - began >= SLOW_MS;
	return got == 0 && nslow <= MOST_SLOW;
}

static void
test_races(const TestServer *server, Searched *searched)
{
	int			pids[3];
	int			status;
	int			i;

	for (i = 0; i < 3; i++)
		pids[i] = client_fork(server, i, unit_small ? 20000 : 1000000, race,
							  searched);
	for (i = 0; i < 3; i++)
		CHECK(waitpid(pids[i], &status, 0) == pids[i] && status == 0,
			  "session %d ended with %d", i, status);
}

static bool
is_answered(int fd, int ms)
{
	struct pollfd in = {.fd = fd,.events = POLLIN};

	return poll(&in, 1, ms) > 0;
}

/*
 * A batch hangs, so the loop never rests.  A search in a mailbox does not wait
 * until sockets have fewer searches than the queue has room for.  The engine's
 * n-th call hangs.  False: that was no call that begins a batch.
 */
static bool
try_crowd(int n)
{
	static int	fds[CROWD];
	OwnIndex	index = make_index(GV_L2, 32, 8, 8, 3, 1000, false);
	GvMirrorKey key = test_key(1);
	OwnSearch	search = make_search(&key, &index);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	char		fault[16];
	TestServer	server;
	bool		there;
	int			i;

	/* a round takes longer than to look at the mailbox */
	search.request.probes = index.spec.nlists;
	snprintf(fault, sizeof(fault), "%d:6", n);
	server = server_start("--max-connections", "6000", "--fault", fault, NULL);
	for (i = 0; i < 3; i++)
		fds[i] = client_open(&server, i == 0 ? GV_ROLE_LOADER :
							 GV_ROLE_SESSION);
	CHECK(load_all(fds[0], &key, &index) == 0, "load");
	do
		CHECK(search_send(fds[1], &search), "send");
	while (is_answered(fds[1], HANGS_MS) &&
		   search_receive(fds[1], &index, &search) == 0);
	CHECK(search_send(fds[2], &search), "send");
	if (is_answered(fds[2], HANGS_MS))
	{
		TestMailbox mailbox;

		OK(search_receive(fds[2], &index, &search));
		mailbox = mailbox_open(fds[2], &memory, MEMORY_BYTES);
		for (; i < CROWD; i++)
			fds[i] = client_open(&server, GV_ROLE_SESSION);
		OK(ask_search(&mailbox, &index, &search, 0, &there));
		server_freeze(&server);
		for (i = 3; i < CROWD; i++)
			CHECK(search_send(fds[i], &search), "session %d", i);
		server_thaw(&server);
		OK(search_receive(fds[3], &index, &search));
		CHECK(put_search(&mailbox, &search, false), "put");
		OK(search_receive(fds[4 * BATCH + 50], &index, &search));
		/* unless we were so slow that the loop was at rest before we asked */
		CHECK(gv_mail_state(mailbox.box) != GV_MAIL_WAITING ||
			  is_answered(fds[CROWD - 1], 0), "it waits");
		OK(take_search(&mailbox, &index, &search, 0, &there));
		close(mailbox.wake);
		n = 0;
	}
	while (i > 0)
		close(fds[--i]);
	server_end(&server);
	return n == 0;
}

static void
test_crowd(void)
{
	struct rlimit files;
	int			n = 1000;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < 2 * CROWD)
		return;
	files.rlim_cur = files.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0, "descriptors");
	while (n < 1004 && !try_crowd(n))
		n++;
	CHECK(n < 1004, "no batch hangs");
}

void
test_mailboxes(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, DIMS, 2, 5, 3, 40, false);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	Searched	searched = {&server, test_key(1), &index};

	CHECK(load_all(loader, &searched.key, &index) == 0, "load");
	test_answers(&server, &searched);
	test_idle(&server, &searched);
	test_malformed(&server, &searched);
	test_strange(&server, &searched);
	test_races(&server, &searched);
	server_end(&server);
	if (!test_device)
		test_crowd();
}
