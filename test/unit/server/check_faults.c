/*
 * check_faults.c
 *		Every call of the engine fails once, in each way: each answer is right,
 *		or a refusal, or the connection ends; and afterwards all is well.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	8			/* of one batch */
#define BATCH_CALLS	30			/* more than come before its end */

/* Is this an answer that a client may get when the engine has failed once? */
static bool
may_be(int got, GvStatus status)
{
	switch (status)
	{
		case GV_NO_MEMORY:
			return got == 0 || got == GV_REFUSED_NO_MEMORY;
		case GV_FAILED:
			return got == 0 || got == GV_REFUSED_FAILED || got == -1;
		case GV_REJECTED:
			return got == 0 || got == GV_REFUSED_FAILED;
		default:
			return got == 0 || got == GV_REFUSED_PROTOCOL || got == -1;
	}
}

/*
 * The work of loaders and sessions, up to the first refusal, which is
 * returned; -1 for the end of a connection.
 */
static int
work(const TestServer *server, GvMirrorKey key, TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	int			sessions[3];
	TestSearch	searches[3];
	GvRangeRequest range = {key, 0, 2, 0, 0};
	int			refusal;
	int			got;
	int			i;

	refusal = loader < 0 ? -1 : load_all(loader, &key, index);
	for (i = 0; i < 3; i++)
	{
		sessions[i] = client_open(server, GV_ROLE_SESSION);
		searches[i] = make_search(&key, index);
		if (refusal == 0 && sessions[i] < 0)
			refusal = -1;
	}
	for (i = 0; i < 3 && refusal == 0; i++)
		(void) search_send(sessions[i], &searches[i]);
	got = refusal;
	for (i = 0; i < 3 && got == 0; i++)
	{
		int			one = search_receive(sessions[i], index, &searches[i]);

		refusal = refusal == 0 ? one : refusal;
	}
	if (refusal == 0)
		refusal = search_check(sessions[0], &key, index);
	if (refusal == 0)
		refusal = load_chunk(loader, &key, index, 0, 0,
							 index->lists[0].nblocks, GV_CHUNK_LIVE);
	if (refusal == 0)
		refusal = ASK(loader, GV_MSG_READ_LISTS, range);
	if (refusal == 0)
		refusal = load_drop(loader, &key);
	for (i = 0; i < 3; i++)
	{
		free_search(&searches[i]);
		close(sessions[i]);
	}
	return refusal;
}

/*
 * The n-th call fails; false when that was not seen in the first round, since
 * there are fewer calls or it was tried again with success.
 */
static bool
check_fault(int n, GvStatus status, TestIndex *index)
{
	char		fault[32];
	TestServer	server;
	int			first;
	int			second = -1;
	int			ended;

	snprintf(fault, sizeof(fault), "%d:%d", n, status);
	server = server_start("--fault", fault, NULL);
	first = work(&server, test_key(1), index);
	CHECK(may_be(first, status), "call %d, status %d: %d", n, status, first);
	if (status != GV_FAILED || first == 0)
	{
		second = work(&server, test_key(2), index);
		CHECK(first == 0 ? may_be(second, status) : second == 0,
			  "after call %d, status %d: %d", n, status, second);
	}
	if (status == GV_FAILED && (first != 0 || second != 0))
	{
		ended = server_wait(&server);
		CHECK(ended == 5, "call %d: exit status %d", n, ended);
		server_check_log(&server, "FATAL: engine failed");
	}
	else
	{
		ended = server_stop(&server);
		CHECK(ended == 0, "call %d, status %d: exit status %d", n, status,
			  ended);
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
check_batch(int n, TestIndex *index)
{
	char		fault[32];
	GvMirrorKey key = test_key(1);
	TestServer	server;
	int			loader;
	int			clients[NCLIENTS];
	TestSearch	searches[NCLIENTS];
	bool		loaded;
	int			result;
	int			i;

	snprintf(fault, sizeof(fault), "%d:%d", n, GV_NO_MEMORY);
	server = server_start("--fault", fault, NULL);
	loader = client_open(&server, GV_ROLE_LOADER);
	loaded = load_all(loader, &key, index) == 0;
	for (i = 0; i < NCLIENTS; i++)
	{
		clients[i] = client_open(&server, GV_ROLE_SESSION);
		searches[i] = make_search(&key, index);
	}
	/* so that they are one batch */
	server_freeze(&server);
	for (i = 0; i < NCLIENTS && loaded; i++)
		CHECK(search_send(clients[i], &searches[i]), "client %d", i);
	server_thaw(&server);
	for (i = 0; i < NCLIENTS; i++)
	{
		result = loaded ? search_receive(clients[i], index, &searches[i]) : 0;
		CHECK(result == 0, "call %d, client %d: %d", n, i, result);
		free_search(&searches[i]);
		close(clients[i]);
	}
	close(loader);
	server_end(&server);
	return loaded;
}

/* No memory for a batch, in its beginning or its end. */
static void
test_batch_faults(TestIndex *index)
{
	int			nloaded = 0;
	int			n;

	for (n = 4; n < BATCH_CALLS; n++)
		nloaded += check_batch(n, index);
	CHECK(nloaded >= 8 && nloaded <= BATCH_CALLS - 4 - 8, "%d were loaded",
		  nloaded);
}

void
test_faults(void)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 4, 2, 3, false);
	int			status;
	int			n;

	test_batch_faults(&index);
	for (status = GV_INVALID; status <= GV_FAILED; status++)
	{
		int			missed = 0;
		int			failed = 0;

		/* the first three are before it listens, see check_life.c */
		for (n = 4; missed < 8; n += unit_small ? 5 : 1)
			if (check_fault(n, (GvStatus) status, &index))
				failed++;
			else
				missed++;
		CHECK(failed >= (unit_small ? 2 : 15), "status %d: only %d calls",
			  status, failed);
	}
}
