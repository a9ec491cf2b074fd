/*
 * check_versions.c
 *		A mirror that is known to be current: its answers are brief, and say
 *		what full ones do; and when it is no longer.
 */
#include <unistd.h>

#include "client.h"

#define VERSION		77

static int
ask_states(int fd, const GvMirrorKey *key, int32_t first, int32_t count)
{
	GvRangeRequest request = {*key, first, count, 0, 0};

	return client_ask(fd, GV_MSG_STATES, &request, sizeof(request), NULL, 0,
					  NULL, NULL);
}

static int
say_current(int fd, const GvMirrorKey *key, uint64_t version)
{
	GvCurrentRequest request = {*key, version};

	return client_ask(fd, GV_MSG_CURRENT, &request, sizeof(request), NULL, 0,
					  NULL, NULL);
}

/*
 * The search's answer, of a directory of this version; the caller's to free.
 */
static GvSearchReply *
ask_version(int fd, TestSearch *search, uint64_t version, uint32_t *length)
{
	void	   *payload = NULL;
	size_t		bytes;
	char	   *tail = search_tail(search, &bytes);

	search->request.version = version;
	CHECK(client_ask(fd, GV_MSG_SEARCH, &search->request,
					 sizeof(search->request), tail, bytes, &payload,
					 length) == 0, "search");
	free(tail);
	return payload;
}

/* Is a mirror taken for this version of the directory? */
static bool
is_version(int fd, const GvMirrorKey *key, const TestIndex *index,
		   uint64_t version)
{
	TestSearch	search = make_search(key, index);
	uint32_t	length;
	GvSearchReply *reply = ask_version(fd, &search, version, &length);
	bool		is_brief = reply != NULL && reply->is_brief;

	free(reply);
	free_search(&search);
	return is_brief;
}

/* Hits and bounds of both are the same, and all that their heads say. */
static void
compare_answers(const GvSearchReply *brief, uint32_t brief_bytes,
				const GvSearchReply *full, uint32_t full_bytes)
{
	size_t		probes = sizeof(GvProbeReply) * (size_t) full->nprobed;
	size_t		matches = full_bytes - brief_bytes - probes;
	GvSearchReply head = *brief;

	CHECK(brief->is_brief == 1 && full->is_brief == 0, "brief, or not");
	head.is_brief = 0;
	head.batch = full->batch;
	head.queued_us = full->queued_us;
	head.engine_us = full->engine_us;
	CHECK(memcmp(&head, full, sizeof(head)) == 0, "heads");
	CHECK(matches == 0 || matches == sizeof(int32_t) * (size_t) full->nprobed,
		  "%zu bytes of matches", matches);
	CHECK(brief_bytes - sizeof(head) ==
		  sizeof(GvHit) * (size_t) full->nhits +
		  sizeof(GvBound) * full->nbounds &&
		  memcmp(brief + 1, (const char *) (full + 1) + probes,
				 brief_bytes - sizeof(head)) == 0, "hits");
}

static void
check_brief(int session, const GvMirrorKey *key, const TestIndex *index)
{
	TestSearch	search = make_search(key, index);
	uint32_t	bytes[2];
	GvSearchReply *brief = ask_version(session, &search, VERSION, &bytes[0]);
	GvSearchReply *full = ask_version(session, &search, 0, &bytes[1]);
	GvSearchReply *other = ask_version(session, &search, VERSION + 1,
									   &bytes[1]);

	if (brief != NULL && full != NULL && other != NULL)
	{
		compare_answers(brief, bytes[0], full, bytes[1]);
		compare_answers(brief, bytes[0], other, bytes[1]);
	}
	free(brief);
	free(full);
	free(other);
	free_search(&search);
}

/* Requests make a mirror current, and changes end that. */
static void
test_changes(const TestServer *server)
{
	TestIndex	index = make_index(GV_L2, 6, 3, 10, 2, 40, false);
	GvMirrorKey key = test_key(31);
	GvMirrorKey none = test_key(32);
	int			loader = client_open(server, GV_ROLE_LOADER);
	int			other = client_open(server, GV_ROLE_LOADER);
	int			session = client_open(server, GV_ROLE_SESSION);
	int			round;

#define IS_CURRENT	is_version(session, &key, &index, VERSION)
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(!IS_CURRENT, "nobody has said so");
	CHECK(say_current(loader, &key, VERSION) == 0 && !IS_CURRENT,
		  "states have not been asked for");
	CHECK(ask_states(loader, &key, 1, 9) == 0 &&
		  say_current(loader, &key, VERSION) == 0 && !IS_CURRENT,
		  "not for all");
	CHECK(ask_states(loader, &key, 0, 5) == 0 &&
		  ask_states(loader, &key, 5, 5) == 0 &&
		  say_current(loader, &key, VERSION) == 0 && IS_CURRENT, "current");
	for (round = 0; round < 20; round++)
		check_brief(session, &key, &index);
	CHECK(load_chunk(loader, &key, &index, 3, 0, index.lists[3].nblocks,
					 0) == 0 && !IS_CURRENT, "a piece has come");
	CHECK(!is_version(session, &key, &index, 0), "no version");
	CHECK(say_current(loader, &key, VERSION) == 0 && IS_CURRENT,
		  "its sender says that this was all");
	CHECK(load_chunk(loader, &key, &index, 3, 0, index.lists[3].nblocks,
					 GV_CHUNK_LIVE) == 0 && !IS_CURRENT, "live bits");
	CHECK(say_current(other, &key, VERSION) == 0 && !IS_CURRENT,
		  "another does");
	CHECK(ask_states(loader, &key, 0, 10) == 0 &&
		  load_chunk(other, &key, &index, 3, 0, index.lists[3].nblocks,
					 0) == 0 &&
		  say_current(loader, &key, VERSION) == 0 && !IS_CURRENT,
		  "another has sent a piece meanwhile");
	CHECK(ask_states(loader, &key, 0, 10) == 0 &&
		  ask_states(other, &key, 0, 10) == 0 &&
		  say_current(loader, &key, VERSION) == 0 && !IS_CURRENT,
		  "another has asked meanwhile");
	CHECK(say_current(other, &key, VERSION + 1) == 0 && !IS_CURRENT &&
		  is_version(session, &key, &index, VERSION + 1), "another version");
	CHECK(say_current(loader, &none, VERSION) == GV_REFUSED_NO_MIRROR,
		  "no mirror");
	client_cut(other, say_current(other, &key, 0), "no version");
#undef IS_CURRENT
	CHECK(load_drop(loader, &key) == 0, "drop");
	close(loader);
	close(session);
	free_index(&index);
}

/* Brief answers of mirrors of all kinds. */
static void
test_answers(const TestServer *server)
{
	int			loader = client_open(server, GV_ROLE_LOADER);
	int			session = client_open(server, GV_ROLE_SESSION);
	int			i;
	int			round;

	for (i = 0; i < 4; i++)
	{
		TestIndex	index = make_index(GV_L2 + i % 3, 8, 4, i == 3 ? 1 : 60, 1,
									   40, i == 1);
		GvMirrorKey key = test_key(40 + (uint32_t) i);

		give_keys(&index, 1 + i);
		CHECK(load_all(loader, &key, &index) == 0 &&
			  ask_states(loader, &key, 0, index.spec.nlists) == 0 &&
			  say_current(loader, &key, VERSION) == 0, "load");
		for (round = 0; round < (unit_small ? 5 : 30); round++)
			check_brief(session, &key, &index);
		CHECK(load_drop(loader, &key) == 0, "drop");
		free_index(&index);
	}
	close(loader);
	close(session);
}

void
test_versions(void)
{
	TestServer	server = server_start(NULL, NULL);

	test_changes(&server);
	test_answers(&server);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}
