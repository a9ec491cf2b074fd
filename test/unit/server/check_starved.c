/*
 * check_starved.c
 *		Every allocation of gpuvecd's fails once (test/memory/heap.c): who asked
 *		is told that there is no memory, or loses the connection, and whoever
 *		comes next gets right answers.  Where all that follow it fail, too,
 *		gpuvecd still ends when it is told to.
 */
#include <unistd.h>

#include "scripts.h"

#define MOST		100000		/* allocations; fewer are there */
#define NSCRIPTS	(4 + TEST_SETS)

/* What a message was answered: a GvRefusalCode, 0, or -1 for the end. */
typedef struct Answers
{
	int			n;
	int			codes[NSCRIPTS][MAX_MESSAGES];
} Answers;

static void
make_script(int which, Script *script, const GvMirrorKey *loaded,
			const GvMirrorKey *other, const TestIndex *index,
			const TestIndex *bare)
{
	unit_seed = 30;				/* whichever time it is */
	switch (which)
	{
		case 0:
			session_script(script, loaded, index);
			break;
		case 1:
			bulk_script(script, loaded, index);
			break;
		case 2:
			loader_script(script, other, index);
			break;
		case 3:
			builder_script(script, bare);
			break;
		default:
			set_script(script, which - 4);
			break;
	}
}

/*
 * Hold a conversation until it ends otherwise than the right one, which is
 * noted where `right` is to be made.  Returns the code that differs; 0: none.
 */
static int
converse(const TestServer *server, Script *script, int *right, bool make)
{
	int			fd = client_socket(server);
	int			differs = 0;
	int			i;

	for (i = 0; i < script->n && differs == 0; i++)
	{
		GvMessage	header;
		void	   *answer = NULL;
		int			code = -1;

		if (fd >= 0 &&
			client_send(fd, script->messages[i], script->bytes[i]))
			answer = client_answer(fd, &header);
		if (answer != NULL)
			code = header.type == GV_MSG_REFUSED ?
				(int) ((GvRefusal *) answer)->code : 0;
		free(answer);
		if (make)
			right[i] = code;
		if (code != right[i])
			differs = code;
	}
	if (fd >= 0)
		close(fd);
	return differs;
}

/*
 * Everything that clients say, with mirrors of keys from `first` on.  Returns
 * whether all of it was answered as in the right round.
 */
static bool
hold_round(const TestServer *server, uint32_t first, Answers *right,
		   bool make, const TestIndex *index, const TestIndex *bare,
		   const char *what)
{
	GvMirrorKey loaded = test_key(first);
	GvMirrorKey other = test_key(first + 1);
	int			loader = client_open(server, GV_ROLE_LOADER);
	int			got = loader < 0 ? -1 : load_all(loader, &loaded, index);
	bool		same = got == 0;
	int			which;

	CHECK(got == 0 || got == -1 || got == GV_REFUSED_NO_MEMORY,
		  "%s: load: %d", what, got);
	for (which = 0; which < NSCRIPTS; which++)
	{
		Script		script = {0};

		if (got != 0 && which < 2)
			continue;			/* there is nothing to search */
		make_script(which, &script, &loaded, &other, index, bare);
		got = converse(server, &script, right->codes[which], make);
		CHECK(got == 0 || got == -1 || got == GV_REFUSED_NO_MEMORY,
			  "%s: conversation %d: %d", what, which, got);
		same = same && got == 0;
		got = 0;
		free_script(&script);
	}
	if (loader >= 0)
	{
		int			session = client_open(server, GV_ROLE_SESSION);

		got = !same ? 0 : session < 0 ? -1 :
			search_check(session, &loaded, index);
		CHECK(got == 0 || got == -1 || got == GV_REFUSED_NO_MEMORY,
			  "%s: search: %d", what, got);
		same = same && got == 0;
		if (session >= 0)
			close(session);
		close(loader);
	}
	return same;
}

/*
 * The n-th allocation fails, and all behind it or none.  Returns whether there
 * are so many.
 */
static bool
check_allocation(int n, bool after, Answers *right, const TestIndex *index,
				 const TestIndex *bare)
{
	char		what[64];
	char		number[16];
	const char *options[] = {after ? "--memory-faults" : "--memory-fault",
	number, "--keep", "3600", NULL};
	TestServer	server;
	FREED char *log = NULL;
	char	   *left;
	int			ended;
	int			due;

	snprintf(number, sizeof(number), "%d", n);
	snprintf(what, sizeof(what), "allocation %d%s", n, after ? " and on" : "");
	server_folder(&server);
	server_launch(&server, options);
	if (server_listens(&server))
	{
		bool		same;

		server.supervisor = client_open(&server, GV_ROLE_SUPERVISOR);
		if (server.supervisor < 0)
			server.supervisor = client_open(&server, GV_ROLE_SUPERVISOR);
		same = hold_round(&server, 1, right, n == MOST, index, bare, what);
		if (!after)
			CHECK(hold_round(&server, 3, right, false, index, bare, what) ||
				  same, "%s: it is not well afterwards", what);
		ended = server_stop(&server);
		/* libgcov needs memory at the end, too, and crashes without */
		CHECK(ended == 0 || getenv("GPUVEC_TEST_COUNTED") != NULL,
			  "%s: exit status %d", what, ended);
	}
	/* it cannot begin, and says why */
	else
	{
		ended = server_wait(&server);
		CHECK(ended > 0 && ended < 1000, "%s: exit status %d", what, ended);
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
	OwnIndex	index = make_index(GV_L2, 5, 3, 4, 2, 30, true);
	OwnIndex	bare = make_index(GV_L2, 5, 3, 4, 2, 30, true);	/* no keys */
	Answers		right = {0};
	int			step = test_long ? 1 : unit_small ? 29 : 7;
	int			n = 1;

	give_keys(&index, 2);
	CHECK(!check_allocation(MOST, false, &right, &index, &bare), "so many");
	while (check_allocation(n, n / step % 3 == 1, &right, &index, &bare))
		n += step;
	CHECK(n > 100, "only %d allocations", n);
}
