/*
 * fuzz_protocol.c
 *		Conversations with gpuvecd, whose thread of sessions and threads of
 *		others run here one after another, without sockets.
 *
 * An input is what one client sends, from its hello on, behind a byte that says
 * how much of it comes at a time: with RUDE the next message may come before
 * the last one is answered.  The same bytes are the memory that it
 * shares; where that is a mailbox, there is always a search in it.  Whatever
 * they are, the server goes on: another client's mirror
 * still gives the answers that it gave before.
 *
 * Version 0 of a hello stands for today's, so that inputs outlive it.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "server/scripts.h"
#include "server/server.h"
#include "test/oracle/gv_oracle.h"

#define BUDGET		((int64_t) 64 << 20)
#define RUDE		0x80
#define TODAYS		0			/* version of a hello */

/* Of the tests whose scripts are used. */
long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 20;
bool		unit_small;
bool		test_long;
const char *test_engine = "cpu";
bool		test_device;

/* gpuvecd.c's */
GvServer	gv_server;

/* The bytes that the client sends, and its answers. */
static struct
{
	const char *bytes;
	size_t		left;
	size_t		step;			/* bytes at a time */
	size_t		message;		/* left of the message; rude: of all */
	bool		rude;
	int			memory;			/* a memfd, which comes with the first */
	int			wake;			/* an eventfd, which comes with the others */
	bool		passed;			/* the memory did */
	char	   *answer;			/* NULL: nobody looks at it */
	size_t		answer_bytes;
	size_t		answer_capacity;
	GvMessage	header;			/* of an answer under way, as far as it is there */
	size_t		header_bytes;
	size_t		answer_left;	/* of what follows it */
	int			taken;			/* messages that were not refused */
}			wire = {.memory = -1};

/* ---- the system, as the server's files call it (Makefile) */

ssize_t
wire_recv(int fd, void *to, size_t capacity, int flags)
{
	size_t		n = capacity;
	GvMessage	header;

	if (wire.message == 0 && wire.left >= sizeof(header))
	{
		memcpy(&header, wire.bytes, sizeof(header));
		wire.message = sizeof(header) + header.length;
	}
	if (wire.rude || wire.message == 0)
		wire.message = wire.left;
	n = n < wire.step ? n : wire.step;
	n = n < wire.left ? n : wire.left;
	n = n < wire.message ? n : wire.message;
	if (n > 0)
		memcpy(to, wire.bytes, n);
	wire.bytes += n;
	wire.left -= n;
	wire.message -= n;
	return (ssize_t) n;
}

/* With the first bytes behind the hello comes the memory. */
ssize_t
wire_recvmsg(int fd, struct msghdr *message, int flags)
{
	struct cmsghdr *control = CMSG_FIRSTHDR(message);
	int			passed = dup(wire.passed ? wire.wake : wire.memory);

	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(control), &passed, sizeof(int));
	message->msg_controllen = CMSG_SPACE(sizeof(int));
	wire.passed = true;
	return wire_recv(fd, message->msg_iov->iov_base,
					 message->msg_iov->iov_len, flags);
}

/* The next bytes of the answers: how many are there that refuse nothing? */
static void
count_answers(const char *bytes, size_t n)
{
	while (n > 0)
	{
		size_t		part = sizeof(GvMessage) - wire.header_bytes;

		if (wire.answer_left > 0)
		{
			part = wire.answer_left < n ? wire.answer_left : n;
			wire.answer_left -= part;
		}
		else
		{
			part = part < n ? part : n;
			memcpy((char *) &wire.header + wire.header_bytes, bytes, part);
			wire.header_bytes += part;
			if (wire.header_bytes == sizeof(GvMessage))
			{
				wire.header_bytes = 0;
				wire.answer_left = wire.header.length;
				wire.taken += wire.header.type == GV_MSG_OK;
			}
		}
		bytes += part;
		n -= part;
	}
}

ssize_t
wire_send(int fd, const void *bytes, size_t n, int flags)
{
	/* that all of it is there is for sanitizers to say */
	volatile char last = ((const char *) bytes)[n - 1];

	(void) last;
	count_answers(bytes, n);
	if (wire.answer == NULL)
		return (ssize_t) n;
	if (wire.answer_bytes + n > wire.answer_capacity)
		FAULT("an answer of %zu bytes", wire.answer_bytes + n);
	memcpy(wire.answer + wire.answer_bytes, bytes, n);
	wire.answer_bytes += n;
	return (ssize_t) n;
}

/* A client's thread runs to its end before anything else goes on. */
bool
wire_gv_thread_start(void *(*start) (void *), void *arg, pthread_t *joined)
{
	(void) start(arg);
	return true;
}

/* ---- gpuvecd.c's, and two of eventloop.c's (weak.h) */

void
gv_log(const char *level, const char *format,...)
{
	char		line[1000];
	va_list		args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
}

void
gv_system_error(const char *format,...)
{
	FAULT("the system has failed: %s", format);
}

bool
gv_server_failed(void)
{
	return false;
}

GvRefusalCode
gv_status_refusal(GvStatus status)
{
	if (status == GV_FAILED)
		FAULT("engine failed");
	return status == GV_OK ? 0 : status == GV_NO_MEMORY ?
		GV_REFUSED_NO_MEMORY : GV_REFUSED_PROTOCOL;
}

/* Nothing depends on the time. */
uint64_t
gv_now_ns(void)
{
	return UINT64_C(1000000000000);
}

bool
gv_loop_answer(GvConnection *connection)
{
	return gv_connection_flush(connection, false) == GV_FLUSHED;
}

/* ---- a client */

/* It said something; *goes_on: may it go on?  False if its thread closed it. */
static bool
answer_message(GvConnection *connection, bool *goes_on)
{
	bool		greets = connection->role == 0;

	gv_message_answer(connection);
	if (greets && connection->role != 0 &&
		connection->role != GV_ROLE_SESSION)
	{
		(void) gv_loop_answer(connection);
		if (!gv_client_start(connection))
			FAULT("no thread");
		return false;
	}
	while (connection->search_pending)
		gv_batches_go_on(1);
	(void) gv_loop_answer(connection);
	*goes_on = !connection->close_after_send;
	return true;
}

/* A session's next search is in its mailbox; was the last one answered there? */
static void
ask_again(const GvConnection *connection)
{
	GvMailbox  *mailbox = gv_mailbox(connection);
	GvMessage  *answer = (GvMessage *) (mailbox + 1);

	if (mailbox == NULL)
		return;
	wire.taken += answer->type == GV_MSG_OK;
	answer->type = 0;
	(void) gv_mail_exchange(mailbox, GV_MAIL_WAITING);
}

/* The whole life of a client that sends these bytes. */
static void
converse(const void *bytes, size_t size, uint8_t manner)
{
	static uint64_t number;
	GvConnection *connection = gv_connection_open(open("/dev/null", O_RDWR),
												  ++number);
	bool		goes_on = true;

	wire.bytes = bytes;
	wire.left = size;
	wire.step = manner % RUDE == 0 ? SIZE_MAX : manner % RUDE;
	wire.rude = (manner & RUDE) != 0;
	wire.message = 0;
	wire.passed = false;
	wire.header_bytes = wire.answer_left = 0;
	wire.taken = 0;
	while (goes_on)
	{
		ask_again(connection);
		switch (gv_connection_receive(connection, false))
		{
			case GV_RECEIVED_PART:
				continue;
			case GV_RECEIVED_WHOLE:
				if (!answer_message(connection, &goes_on))
					return;
				break;
			case GV_RECEIVED_WRONG:
				(void) gv_loop_answer(connection);
				goes_on = false;
				break;
			case GV_RECEIVED_END:
				goes_on = false;
				break;
		}
	}
	gv_connection_close(connection);
}

/* A hello that asks for it, at the beginning of these bytes, has today's version. */
static void
set_version(char *bytes, size_t size)
{
	const uint32_t todays = GV_PROTOCOL_VERSION;
	char	   *version = bytes + sizeof(GvMessage) + offsetof(GvHello, version);
	GvMessage	header;
	uint32_t	said;

	if (size < sizeof(header) + sizeof(GvHello))
		return;
	memcpy(&header, bytes, sizeof(header));
	memcpy(&said, version, sizeof(said));
	if (header.type == GV_MSG_HELLO && said == TODAYS)
		memcpy(version, &todays, sizeof(todays));
}

/* ---- the other client, whose mirror stays */

static GvMirrorKey healthy;
static GvMirrorKey none;		/* of which there is no mirror */
static char *question;			/* hello and search */
static size_t question_bytes;
static char first_answer[1 << 16];
static size_t first_bytes;
static int	taken;				/* of the last input */

/* The first n messages of a script, one behind the other; the caller's to free. */
static char *
join(const Script *script, int n, size_t *bytes)
{
	char	   *all = NULL;
	int			i;

	*bytes = 0;
	for (i = 0; i < n; i++)
	{
		all = realloc(all, *bytes + script->bytes[i]);
		memcpy(all + *bytes, script->messages[i], script->bytes[i]);
		*bytes += script->bytes[i];
	}
	return all;
}

/* The answers to the other client, without times. */
static size_t
ask(char *answer, size_t capacity)
{
	const size_t welcome = sizeof(GvMessage) + sizeof(GvWelcome);
	const size_t refused = welcome + sizeof(GvMessage) + sizeof(GvRefusal);
	GvSearchReply *reply;

	wire.answer = answer;
	wire.answer_bytes = 0;
	wire.answer_capacity = capacity;
	converse(question, question_bytes, 0);
	wire.answer = NULL;
	reply = (GvSearchReply *) (answer + welcome + sizeof(GvMessage));
	if (wire.answer_bytes < welcome + sizeof(GvMessage) + sizeof(*reply))
		FAULT("the healthy mirror gives no answer: %s",
			  wire.answer_bytes == refused ?
			  ((GvRefusal *) (answer + welcome + sizeof(GvMessage)))->reason :
			  "something else");
	reply->queued_us = reply->engine_us = 0;
	return wire.answer_bytes;
}

/* Says the first n messages of a script, and frees it. */
static void
say(Script *script, int n)
{
	size_t		size;
	char	   *bytes = join(script, n, &size);

	converse(bytes, size, 0);
	free(bytes);
	free_script(script);
}

static TestIndex
small_index(void)
{
	return make_index(GV_L2, 5, 3, 4, 2, 30, true);
}

static void
set_up(void)
{
	GvDevice	devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	int64_t		budget = BUDGET;
	TestIndex	index = small_index();
	Script		script = {0};

	gv_server.engine = "cpu";
	gv_server.release = "fuzzed";
	gv_server.max_connections = 10;
	gv_server.at_once = 2;		/* messages of more are searched in parts */
	if (gv_mirrors_open(&gv_cpu_mirrors, "", devices, &ndevices) != GV_OK ||
		gv_builders_open(&gv_cpu_builders) != GV_OK ||
		gv_setjob_open(&gv_cpu_sets) != GV_OK)
		FAULT("no engine");
	gv_mirrors_init(devices, &budget, 1, 3600);
	if (gv_batches_open() != GV_OK)
		FAULT("no turns");
	wire.wake = eventfd(0, 0);
	wire.memory = memfd_create("fuzz", MFD_ALLOW_SEALING);
	if (ftruncate(wire.memory, 1 << 16) != 0 ||
		fcntl(wire.memory, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
		FAULT("no memory to share");

	healthy = test_key(1);
	none = test_key(2);
	supervisor_script(&script, &none);
	say(&script, script.n);
	loader_script(&script, &healthy, &index);
	/* but for STATES and DROP at the end */
	say(&script, script.n - 2);
	session_script(&script, &healthy, &index);
	question = join(&script, 2, &question_bytes);
	free_script(&script);
	free_index(&index);
	first_bytes = ask(first_answer, sizeof(first_answer));
}

/* Searches a mirror that the client under test left, whatever is in it. */
static void
search_left(const GvMirrorStatus *mirror)
{
	size_t		hello = sizeof(GvMessage) + sizeof(GvHello);
	size_t		row = 4 * (size_t) mirror->dims;
	GvSearchRequest request = {.key = mirror->key, .n = 1,
		.dims = mirror->dims, .probes = 5, .compare = 5, .capacity = 10};
	GvMessage	header = {sizeof(request) + (uint32_t) row, GV_MSG_SEARCH, 0};
	char	   *bytes = malloc(hello + sizeof(header) + header.length);
	char	   *next = bytes + hello;
	float	   *query;
	int32_t		i;

	memcpy(bytes, question, hello);
	memcpy(next, &header, sizeof(header));
	memcpy(next + sizeof(header), &request, sizeof(request));
	query = (float *) (next + sizeof(header) + sizeof(request));
	for (i = 0; i < mirror->dims; i++)
		query[i] = (float) (i % 5 - 2);
	converse(bytes, hello + sizeof(header) + header.length, 0);
	free(bytes);
}

/*
 * Searches and drops what the client under test left, and asks the other one.
 */
static void
look_around(void)
{
	static GvMirrorStatus mirrors[1000];
	GvStatusReply reply = {0};
	char		answer[sizeof(first_answer)];
	int32_t		n;
	int32_t		i;

	n = gv_mirrors_status(&reply, mirrors, 1000);
	for (i = 0; i < n; i++)
		if (!gv_same_key(&mirrors[i].key, &healthy))
		{
			search_left(&mirrors[i]);
			gv_mirrors_drop(&mirrors[i].key);
		}
	memset(&reply, 0, sizeof(reply));
	n = gv_mirrors_status(&reply, mirrors, 1000);
	if (n != 1 || reply.used != mirrors[0].bytes)
		FAULT("%d mirrors and %lld bytes are left, of which %lld are used",
			  n, (long long) reply.used, (long long) mirrors[0].bytes);
	if (gv_server.connections != 0 || gv_server.client_threads != 0)
		FAULT("%d connections, %d threads are left", gv_server.connections,
			  gv_server.client_threads);
	if (ask(answer, sizeof(answer)) != first_bytes ||
		memcmp(answer, first_answer, first_bytes) != 0)
		FAULT("the healthy mirror answers otherwise");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const GvMessage nothing = {0};
	size_t		n = size < 1 << 16 ? size : 1 << 16;
	char	   *bytes;

	if (size == 0)
		return 0;
	if (question == NULL)
		set_up();
	if (pwrite(wire.memory, data + 1, n - 1, 0) != (ssize_t) n - 1)
		FAULT("the shared memory cannot be written");
	if (n - 1 <= sizeof(GvMailbox) &&
		pwrite(wire.memory, &nothing, sizeof(nothing), sizeof(GvMailbox)) !=
		sizeof(nothing))
		FAULT("the shared memory cannot be written");
	/* no byte more, so that what reads behind them is seen */
	bytes = malloc(size - 1);
	memcpy(bytes, data + 1, size - 1);
	set_version(bytes, size - 1);
	converse(bytes, size - 1, data[0]);
	free(bytes);
	taken = wire.taken;
	look_around();
	return 0;
}

int
fuzz_taken(void)
{
	return taken;
}

/* Keeps a script, of whose messages so many are taken, and frees it. */
static void
keep_script(FuzzKeep keep, const char *kind, Script *script, int messages)
{
	char		name[64];
	size_t		size;
	char	   *bytes = join(script, script->n, &size);
	char	   *input = malloc(size + 1);
	GvHello	   *hello = (GvHello *) (bytes + sizeof(GvMessage));

	hello->version = TODAYS;
	input[0] = 0;
	memcpy(input + 1, bytes, size);
	snprintf(name, sizeof(name), "%s@%d", kind, messages);
	keep(name, input, size + 1);
	free(input);
	free(bytes);
	free_script(script);
}

/* A message of one number, or LOOK, comes into a script as its message `at`. */
static void
insert(Script *script, int at, GvMessageType type, uint64_t number)
{
	GvMessage  *message = malloc(sizeof(*message) + sizeof(number));
	uint32_t	bytes = type == GV_MSG_LOOK ? 0 : sizeof(number);
	int			i;

	*message = (GvMessage) {bytes, type, 0};
	memcpy(message + 1, &number, sizeof(number));
	for (i = script->n++; i > at; i--)
	{
		script->messages[i] = script->messages[i - 1];
		script->bytes[i] = script->bytes[i - 1];
	}
	script->messages[at] = (char *) message;
	script->bytes[at] = sizeof(*message) + bytes;
}

/* A loader whose first array is in memory, that of a message that is not taken. */
static void
keep_shared(FuzzKeep keep, const GvMirrorKey *key, const TestIndex *index)
{
	Script		script = {0};

	loader_script(&script, key, index);
	while (script.n > 3)
		free(script.messages[--script.n]);
	insert(&script, 1, GV_MSG_ATTACH_SHM, 1 << 16);
	insert(&script, 3, GV_MSG_IN_SHM, script.bytes[0] + script.bytes[1] +
		   script.bytes[2] + sizeof(GvMessage) + sizeof(GvInShmRequest));
	keep_script(keep, "loader-here", &script, script.n - 1);
}

/* A set whose outputs go to memory. */
static void
keep_fetched(FuzzKeep keep)
{
	Script		script = {0};
	int			i;

	set_script(&script, 0);
	for (i = 0; i < script.n; i++)
		if (((GvMessage *) script.messages[i])->type == GV_MSG_GET)
			((GvGetRequest *) (script.messages[i] +
							   sizeof(GvMessage)))->offset = 64 * i;
	insert(&script, 1, GV_MSG_ATTACH_SHM, 1 << 16);
	keep_script(keep, "set-fetched", &script, script.n - 1);
}

/* A session whose first search is in its mailbox, too, before it is sent. */
static void
keep_mailed(FuzzKeep keep, const GvMirrorKey *key, const TestIndex *index)
{
	Script		script = {0};

	session_script(&script, key, index);
	insert(&script, 1, GV_MSG_LOOK, 0);
	insert(&script, 1, GV_MSG_LOOK, 0);
	insert(&script, 1, GV_MSG_ATTACH_SHM, 1 << 16);
	keep_script(keep, "session-mailed", &script, script.n);
}

/* Messages of a client of each role. */
void
fuzz_seeds(FuzzKeep keep)
{
	static const int sets[] = {0, 2, 3, 7};
	TestIndex	index = small_index();
	GvMirrorKey key = test_key(1000);
	GvMirrorKey other = test_key(1);
	Script		script = {0};
	size_t		i;

	session_script(&script, &other, &index);
	keep_script(keep, "session", &script, script.n);
	keep_mailed(keep, &other, &index);
	supervisor_script(&script, &key);
	keep_script(keep, "supervisor", &script, script.n);
	/* one of another incarnation */
	supervisor_script(&script, &key);
	script.messages[0][script.bytes[0] - 1] ^= 1;
	keep_script(keep, "other-supervisor", &script, 0);
	bulk_script(&script, &other, &index);
	keep_script(keep, "many", &script, script.n);
	for (i = 0; i < 2; i++)
	{
		loader_script(&script, &key, &index);
		/* one leaves its mirror */
		if (i == 1)
			free(script.messages[--script.n]);
		keep_script(keep, i == 0 ? "loader-1" : "loader-2", &script, script.n);
	}
	builder_script(&script, &index);
	keep_script(keep, "builder", &script, script.n);
	keep_shared(keep, &key, &index);
	keep_fetched(keep);
	for (i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
	{
		char		name[16];

		set_script(&script, sets[i]);
		snprintf(name, sizeof(name), "set-%d", sets[i]);
		keep_script(keep, name, &script, script.n - 1);
	}
	free_index(&index);
}
