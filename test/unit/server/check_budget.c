/*
 * check_budget.c
 *		The budget of all mirrors: who has to go, and who is refused.
 */
#include <unistd.h>

#include "client.h"

#define KEEP_MS		1000		/* as test_budget has it */

static int64_t
used_bytes(int fd, int64_t *evictions)
{
	GvStatusReply totals = load_totals(fd);

	*evictions = totals.evictions;
	CHECK(totals.memory == 4 << 20 && totals.used <= totals.memory,
		  "%lld of %lld", (long long) totals.used, (long long) totals.memory);
	return totals.used;
}

/* Does another mirror find no memory, since this was touched so late? */
static bool
is_refused(int loader, const GvMirrorKey *other, const TestIndex *index,
		   int64_t touched, const char *what)
{
	int			got = load_begin(loader, other, index);

	/* a busy machine may take longer than what is kept */
	if (got == 0 && client_now_ms() - touched >= KEEP_MS)
		return false;
	CHECK(got == GV_REFUSED_NO_MEMORY, "while the first is %s: %d", what, got);
	return true;
}

/* Young mirrors stay, and used ones; false: ask once more. */
static bool
check_kept(int loader, int session, const GvMirrorKey *first,
		   const GvMirrorKey *second, const TestIndex *index)
{
	int64_t		touched = client_now_ms();

	CHECK(load_all(loader, first, index) == 0, "first");
	if (!is_refused(loader, second, index, touched, "young"))
		return false;
	CHECK(search_check(session, first, index) == 0, "it is still there");
	usleep(700000);
	touched = client_now_ms();
	CHECK(search_check(session, first, index) == 0, "first");
	usleep(700000);
	return is_refused(loader, second, index, touched, "used");
}

/* Idle mirrors are evicted, others stay. */
static void
test_eviction(const TestServer *server, const TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey first = test_key(1);
	GvMirrorKey second = test_key(2);
	GvMirrorKey third = test_key(3);
	int64_t		before;
	int64_t		evictions;
	int			tries = 1;
	int			got;

	while (!check_kept(loader, session, &first, &second, index) && tries++ < 10)
		CHECK(load_drop(loader, &second) == 0, "drop");
	CHECK(tries <= 10, "ten times too slow");
	used_bytes(loader, &before);
	usleep(1100000);
	CHECK(load_all(loader, &second, index) == 0, "the first is idle");
	used_bytes(loader, &evictions);
	CHECK(evictions == before + 1, "%lld evictions after %lld",
		  (long long) evictions, (long long) before);
	got = search_check(session, &first, index);
	CHECK(got == GV_REFUSED_NO_MIRROR, "evicted: %d", got);
	CHECK(search_check(session, &second, index) == 0, "second");
	/* what is not ready is not evicted, however long it takes */
	CHECK(load_drop(loader, &second) == 0, "drop");
	CHECK(load_begin(loader, &third, index) == 0, "third");
	usleep(1100000);
	got = load_begin(loader, &first, index);
	CHECK(got == GV_REFUSED_NO_MEMORY, "while one is loading: %d", got);
	CHECK(load_drop(loader, &third) == 0, "drop");
	CHECK(used_bytes(loader, &evictions) == 0, "bytes are left");
}

/*
 * Lists that grow beyond what there is: refused, and nothing is lost, no idle
 * mirror either, since it would not do.
 */
static void
test_growth(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(4);
	GvMirrorKey idle = test_key(5);
	OwnIndex	small = make_index(GV_L2, 2, 1, 1, 1, 1, false);
	OwnIndex	index = make_index(GV_L2, 64, 64, 40, 1, 0, false);
	int			got = 0;
	int32_t		list;
	int64_t		evictions;
	int64_t		before;

	CHECK(load_all(loader, &idle, &small) == 0, "idle");
	usleep(1100000);
	used_bytes(loader, &before);
	CHECK(load_all(loader, &key, &index) == 0, "empty");
	for (list = 0; list < 40 && got == 0; list++)
	{
		resize_list(&index, &index.lists[list], 4000, 0);
		got = load_chunk(loader, &key, &index, list, 0,
						 index.lists[list].nblocks, 0);
	}
	CHECK(got == GV_REFUSED_NO_MEMORY, "%d", got);
	CHECK(used_bytes(loader, &evictions) > 3 << 20, "it was not full yet");
	CHECK(evictions == before, "evicted in vain");
	resize_list(&index, &index.lists[list - 1], 0, 0);
	CHECK(search_check(session, &key, &index) == 0, "after a refusal");
	/* a list of the same length needs no more memory */
	resize_list(&index, &index.lists[0], 4000, 0);
	got = load_chunk(loader, &key, &index, 0, 0, index.lists[0].nblocks, 0);
	CHECK(got == 0, "as long as before: %d", got);
	CHECK(search_check(session, &key, &index) == 0, "after a change");
	CHECK(load_drop(loader, &key) == 0, "drop");
	CHECK(load_drop(loader, &idle) == 0, "drop");
}

/* A mirror that can never fit is refused before anything is done for it. */
static void
test_too_large(const TestServer *server, const TestIndex *index)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey first = test_key(1);
	GvMirrorKey key = test_key(5);
	TestIndex	large = *index;
	int64_t		evictions;
	int64_t		before;
	int			got;

	CHECK(load_all(loader, &first, index) == 0, "first");
	used_bytes(loader, &before);
	usleep(1100000);
	large.spec.nlists = 1 << 24;
	large.spec.dims = 16000;
	got = load_begin(loader, &key, &large);
	CHECK(got == GV_REFUSED_NO_MEMORY, "huge: %d", got);
	large = *index;
	large.spec.postings = INT64_C(1) << 40;
	got = load_begin(loader, &key, &large);
	CHECK(got == GV_REFUSED_NO_MEMORY, "many copies: %d", got);
	used_bytes(loader, &evictions);
	CHECK(evictions == before, "evicted in vain");
	CHECK(search_check(session, &first, index) == 0, "first");
}

void
test_budget(void)
{
	TestServer	server;
	/* 2.5 MB of 4 */
	TestIndex	index = make_index(GV_L2, 64, 64, 100, 1, 600, false);

	if (unit_small)
	{
		free_index(&index);
		return;
	}
	server = server_start("--memory", "4", "--keep", "1", NULL);
	test_eviction(&server, &index);
	test_growth(&server);
	test_too_large(&server, &index);
	free_index(&index);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "LOG: dropped mirror of index 2, ");
	server_remove(&server);
}
