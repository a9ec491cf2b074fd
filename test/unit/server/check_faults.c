/*
 * check_faults.c
 *		Every call of the engine fails once, in each way, and so does every
 *		allocation of gpuvecd's (test/memory/heap.c): who asked gets a right
 *		answer, or a refusal, or loses the connection, and whoever comes next
 *		gets right answers.  Where all allocations from one on fail, gpuvecd
 *		still ends when it is told to.
 */
#include <unistd.h>

#include "scripts.h"

#define NCLIENTS	8			/* of one batch */
#define BATCH_CALLS	30			/* more than come before its end */
#define TOGETHER	3			/* sessions that search at once */
#define MISSED		4			/* calls in a row that are not seen to fail */

/* What a message was answered: a GvRefusalCode, 0, or -1 for the end. */
typedef struct Answers
{
	int			codes[NSCRIPTS][MAX_MESSAGES];
} Answers;

/* What fails in a server. */
typedef struct Failure
{
	char		what[64];
	GvStatus	status;			/* GV_OK: nothing */
	bool		may_end;		/* a connection, whatever the status */
} Failure;

/* Is this an answer that a client may get when that has failed once? */
static void
check_answer(int got, const Failure *failure, int which)
{
	static const int refusals[] = {
		[GV_INVALID] = GV_REFUSED_PROTOCOL,
		[GV_NO_MEMORY] = GV_REFUSED_NO_MEMORY,
		[GV_REJECTED] = GV_REFUSED_FAILED,
		[GV_FAILED] = GV_REFUSED_FAILED
	};
	bool		may_end = failure->may_end || failure->status == GV_INVALID ||
		failure->status == GV_FAILED;

	CHECK(got == 0 || got == refusals[failure->status] ||
		  (may_end && got == -1), "%s, conversation %d: %d", failure->what,
		  which, got);
}

/*
 * Hold a conversation until it goes on otherwise than the right one, which is
 * noted where `right` is to be made.  Returns the code that differs; 0: none.
 */
static int
converse(const TestServer *server, const Script *script, int *right, bool make)
{
	OwnFd		fd = client_socket(server);
	int			i;

	for (i = 0; i < script->n; i++)
	{
		int			code = script_say(fd, script, i);

		if (make)
			right[i] = code;
		if (code != right[i])
			return code;
	}
	return 0;
}

/* Sessions search at once; the first of their refusals. */
static int
search_together(const TestServer *server, const GvMirrorKey *key,
				const TestIndex *index)
{
	TestSearch	searches[TOGETHER];
	int			sessions[TOGETHER];
	int			got = 0;
	int			i;

	for (i = 0; i < TOGETHER; i++)
	{
		sessions[i] = client_open(server, GV_ROLE_SESSION);
		searches[i] = make_search(key, index);
		(void) search_send(sessions[i], &searches[i]);
	}
	for (i = 0; i < TOGETHER; i++)
	{
		int			one = search_receive(sessions[i], index, &searches[i]);

		got = got == 0 ? one : got;
		free_search(&searches[i]);
		client_close(&sessions[i]);
	}
	return got;
}

/*
 * What clients of these conversations say, with mirrors of keys from `first`
 * on.  Returns the first code that is not as in the right round, or 0.
 */
static int
hold_round(const TestServer *server, uint32_t first, unsigned scripts,
		   Answers *right, bool make, const TestIndex *index,
		   const Failure *failure)
{
	GvMirrorKey loaded = test_key(first);
	GvMirrorKey other = test_key(first + 1);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		cleaner = -1;
	int			got = load_all(loader, &loaded, index);
	int			differs = got;
	bool		is_loaded = got == 0;
	int			which;

	check_answer(got, failure, -1);
	for (which = 0; which < NSCRIPTS; which++)
	{
		Script		script = {0};

		/* perhaps there is nothing to search */
		if ((scripts >> which & 1) == 0 ||
			(!is_loaded && which < LOADER_SCRIPT))
			continue;
		unit_seed = 30;			/* whichever time it is */
		any_script(&script, which, &loaded, &other, index);
		got = converse(server, &script, right->codes[which], make);
		free_script(&script);
		check_answer(got, failure, which);
		differs = differs == 0 ? got : differs;
	}
	if (differs == 0)
	{
		differs = search_together(server, &loaded, index);
		check_answer(differs, failure, -1);
	}
	cleaner = client_open(server, GV_ROLE_LOADER);
	got = load_drop(cleaner, &loaded);
	got = got == 0 ? load_drop(cleaner, &other) : got;
	check_answer(got, failure, -1);
	return differs == 0 ? got : differs;
}

/* Calls that fail: an option's, with servers of these devices. */
typedef struct Calls
{
	const char *option;
	const char *devices;
	unsigned	scripts;		/* that make such calls, bits */
	int			first;			/* that comes when gpuvecd listens */
	int			least;			/* that fail, at least */
	int			step;
} Calls;

#define MIRROR_SCRIPTS	((1 << SET_SCRIPT) - 1)

static const Calls calls[] = {
	/* the first three are before it listens, see check_life.c */
	{"--fault", "0", MIRROR_SCRIPTS, 4, 15, 2},
	{"--build-fault", "0", 1 << BUILDER_SCRIPT, 1, 7, 1},
	{"--set-fault", "0", 1 << SET_SCRIPT, 1, 7, 1},
	{"--set-fault", "0,1", 1 << SET_SCRIPT, 1, 14, 1},
};

/*
 * The n-th call fails; false when that was not seen in the first round, since
 * there are fewer calls or it was tried again with success.
 */
static bool
check_call(const Calls *of, int n, GvStatus status, Answers *right,
		   const TestIndex *index)
{
	Failure		failure = {.status = status};
	char		fault[32];
	TestServer	server;
	int			first;
	int			second = 0;

	snprintf(failure.what, sizeof(failure.what), "%s %s, call %d, status %d",
			 of->devices, of->option, n, status);
	snprintf(fault, sizeof(fault), "%d:%d", n, status);
	server = server_start("--devices", of->devices, of->option, fault,
						  "--keep", "3600", NULL);
	first = hold_round(&server, 1, of->scripts, right, false, index, &failure);
	if (status != GV_FAILED || first == 0)
		second = hold_round(&server, 3, of->scripts, right, false, index,
							&failure);
	CHECK(first == 0 || second == 0, "%s: afterwards: %d", failure.what,
		  second);
	if (status == GV_FAILED && (first != 0 || second != 0))
	{
		CHECK(server_wait(&server) == 5, "%s: it goes on", failure.what);
		server_check_log(&server, "FATAL: engine failed");
	}
	else
	{
		builder_unused(&server, failure.what);
		CHECK(server_stop(&server) == 0, "%s: SIGTERM", failure.what);
	}
	if (status == GV_REJECTED && (first != 0 || second > 0))
		server_check_log(&server, "WARNING: device rejected a call");
	server_remove(&server);
	return first != 0;
}

/*
 * The n-th call finds no memory: a batch that was loaded for is searched all
 * the same, one search after the other.  false: it was in loading.
 */
static bool
check_batch(int n, const TestIndex *index)
{
	char		fault[32];
	GvMirrorKey key = test_key(1);
	TestServer	server;
	TestCrowd	crowd;
	int			loader;
	bool		loaded;
	int			i;

	snprintf(fault, sizeof(fault), "%d:%d", n, GV_NO_MEMORY);
	server = server_start("--fault", fault, NULL);
	loader = client_open(&server, GV_ROLE_LOADER);
	loaded = load_all(loader, &key, index) == 0;
	crowd = crowd_open(&server, GV_ROLE_SESSION, NCLIENTS);
	/* so that they are one batch */
	server_freeze(&server);
	for (i = 0; i < NCLIENTS && loaded; i++)
		crowd_ask(&crowd, i, &key, index, NULL);
	server_thaw(&server);
	for (i = 0; i < NCLIENTS && loaded; i++)
	{
		int			got = crowd_answer(&crowd, i, index);

		CHECK(got == 0, "call %d, client %d: %d", n, i, got);
	}
	crowd_close(&crowd);
	close(loader);
	server_end(&server);
	return loaded;
}

/* No memory for a batch, in its beginning or its end. */
static void
test_batch_faults(void)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 4, 2, 3, false);
	int			nloaded = 0;
	int			n;

	for (n = 4; n < BATCH_CALLS; n++)
		nloaded += check_batch(n, &index);
	CHECK(nloaded >= 8 && nloaded <= BATCH_CALLS - 4 - 8, "%d were loaded",
		  nloaded);
}

/* An index with keys, and what is said of it where nothing fails. */
static TestIndex
make_right(Answers *right)
{
	TestIndex	index = make_index(GV_L2, 5, 3, 4, 2, 30, true);
	TestServer	server = server_start("--keep", "3600", NULL);
	Failure		none = {.what = "nothing"};

	give_keys(&index, 2);
	OK(hold_round(&server, 1, ~0U, right, true, &index, &none));
	server_end(&server);
	return index;
}

void
test_faults(void)
{
	Answers		right;
	OwnIndex	index = make_right(&right);
	size_t		c;
	int			status;

	test_batch_faults();
	setenv("GPUVEC_DIVIDE", "1", 1);
	for (c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
		for (status = GV_INVALID; status <= GV_FAILED; status++)
		{
			int			step = calls[c].step * (unit_small ? 4 : 1);
			int			missed = 0;
			int			failed = 0;
			int			n;

			for (n = calls[c].first; missed < MISSED; n += step)
			{
				bool		is_seen = check_call(&calls[c], n, status, &right,
												 &index);

				failed += is_seen;
				missed = is_seen ? 0 : missed + 1;
			}
			CHECK(failed >= calls[c].least / step, "%s, status %d: %d calls",
				  calls[c].option, status, failed);
		}
	unsetenv("GPUVEC_DIVIDE");
}

/*
 * The n-th allocation fails, and all behind it or none.  Returns whether there
 * are so many.
 */
static bool
check_allocation(int n, bool after, Answers *right, const TestIndex *index)
{
	Failure		failure = {.status = GV_NO_MEMORY,.may_end = true};
	char		number[16];
	const char *options[] = {after ? "--memory-faults" : "--memory-fault",
	number, "--keep", "3600", NULL};
	TestServer	server;
	FREED char *log = NULL;
	char	   *left;
	int			ended;
	int			due;

	snprintf(number, sizeof(number), "%d", n);
	snprintf(failure.what, sizeof(failure.what), "allocation %d%s", n,
			 after ? " and on" : "");
	server_folder(&server);
	server_launch(&server, options);
	if (server_listens(&server))
	{
		int			first;

		server.supervisor = client_open(&server, GV_ROLE_SUPERVISOR);
		if (server.supervisor < 0)
			server.supervisor = client_open(&server, GV_ROLE_SUPERVISOR);
		first = hold_round(&server, 1, ~0U, right, false, index, &failure);
		if (!after)
			CHECK(hold_round(&server, 3, ~0U, right, false, index,
							 &failure) == 0 || first == 0,
				  "%s: it is not well afterwards", failure.what);
		ended = server_stop(&server);
		/* libgcov needs memory at the end, too, and crashes without */
		CHECK(ended == 0 || getenv("GPUVEC_TEST_COUNTED") != NULL,
			  "%s: exit status %d", failure.what, ended);
	}
	/* it cannot begin, and says why */
	else
	{
		ended = server_wait(&server);
		CHECK(ended > 0 && ended < 1000, "%s: exit status %d", failure.what,
			  ended);
	}
	log = server_log(&server);
	left = strstr(log, "LOG: allocations left: ");
	due = left == NULL ? 0 : atoi(left + strlen("LOG: allocations left: "));
	server_remove(&server);
	return due == 0 || (after && due == 1);
}

void
test_starved(void)
{
	Answers		right;
	OwnIndex	index = make_right(&right);
	int			step = test_long ? 1 : unit_small ? 29 : 7;
	int			n = 1;

	while (check_allocation(n, n / step % 3 == 1, &right, &index))
		n += step;
	CHECK(n > 100, "only %d allocations", n);
}
