/*
 * check_versions.c
 *		Tests brief answers, which a mirror gives if it is known to be of the
 *		version of the directory that the search names.
 *
 * A brief answer must say the same as a full one, apart from the lists.  The
 * tests also check which messages make a mirror current, and which changes end
 * that.
 */
#include <unistd.h>

#include "client.h"

#define VERSION		77

static int
ask_states(int fd, const GvMirrorKey *key, int32_t first, int32_t count)
{
	GvRangeRequest request = {*key, first, count, 0, 0};

	return ASK(fd, GV_MSG_LIST_STATES, request);
}

static int
say_current(int fd, const GvMirrorKey *key, uint64_t version)
{
	GvCurrentRequest request = {*key, version};

	return ASK(fd, GV_MSG_MARK_CURRENT, request);
}

/*
 * Searches, and names this version of the directory.  Returns the answer, which
 * the caller frees.
 */
static GvSearchReply *
ask_version(int fd, TestSearch *search, uint64_t version, uint32_t *length)
{
	void	   *payload = NULL;

	search->request.version = version;
	CHECK(search_send(fd, search), "send");
	OK(client_receive(fd, GV_MSG_SEARCH, &payload, length));
	return payload;
}

/* Returns whether gpuvecd takes the mirror to be of this version. */
static bool
is_version(int fd, const GvMirrorKey *key, const TestIndex *index,
		   uint64_t version)
{
	OwnSearch	search = make_search(key, index);
	uint32_t	length;
	FREED GvSearchReply *reply = ask_version(fd, &search, version, &length);
	bool		is_brief = reply != NULL && reply->is_brief;

	return is_brief;
}

/*
 * Checks that both answers have the same hits and bounds, and the same heads
 * apart from is_brief and the fields about the batch.
 */
static void
compare_answers(const GvSearchRequest *request, GvSearchReply *brief,
				uint32_t brief_bytes, GvSearchReply *full, uint32_t full_bytes)
{
	GvAnswerArrays found = gv_answer_arrays(brief, brief);
	GvAnswerArrays expected = gv_answer_arrays(full, full);
	GvSearchReply head = *brief;

	CHECK(brief->is_brief == 1 && full->is_brief == 0, "brief, or not");
	head.is_brief = 0;
	CHECK(search_same_head(&head, full), "heads");
	CHECK(gv_answer_bytes(request, brief) == brief_bytes &&
		  gv_answer_bytes(request, full) == full_bytes &&
		  (brief_bytes < full_bytes || full->nprobed == 0), "lengths");
	CHECK(memcmp(found.hits, expected.hits,
				 sizeof(GvHit) * (size_t) full->nhits) == 0 &&
		  memcmp(found.bounds, expected.bounds,
				 sizeof(GvBound) * full->nbounds) == 0, "hits");
}

/*
 * Compares a brief answer with two full ones: to searches that name no version,
 * and another version.
 */
static void
check_brief(int session, const GvMirrorKey *key, const TestIndex *index)
{
	OwnSearch	search = make_search(key, index);
	uint32_t	bytes[2];
	GvSearchReply *brief = ask_version(session, &search, VERSION, &bytes[0]);
	FREED GvSearchReply *full = ask_version(session, &search, 0, &bytes[1]);
	FREED GvSearchReply *other = ask_version(session, &search, VERSION + 1,
									   &bytes[1]);

	if (brief != NULL && full != NULL && other != NULL)
	{
		compare_answers(&search.request, brief, bytes[0], full, bytes[1]);
		compare_answers(&search.request, brief, bytes[0], other, bytes[1]);
	}
	free(brief);
}

/* Tests which requests make a mirror current, and which changes end that. */
static void
test_changes(const TestServer *server)
{
	OwnIndex	index = make_index(GV_L2, 6, 3, 10, 2, 40, false);
	GvMirrorKey key = test_key(31);
	GvMirrorKey none = test_key(32);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		other = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
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
#undef IS_CURRENT
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Compares answers of mirrors with other metrics, sizes, records and keys. */
static void
test_answers(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			i;
	int			round;

	for (i = 0; i < 4; i++)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, 8, 4, i == 3 ? 1 : 60, 1,
									   40, i == 1);
		GvMirrorKey key = test_key(40 + (uint32_t) i);

		give_keys(&index, 1 + i);
		CHECK(load_all(loader, &key, &index) == 0 &&
			  ask_states(loader, &key, 0, index.spec.nlists) == 0 &&
			  say_current(loader, &key, VERSION) == 0, "load");
		for (round = 0; round < (unit_small ? 5 : 30); round++)
			check_brief(session, &key, &index);
		CHECK(load_drop(loader, &key) == 0, "drop");
	}
}

void
test_versions(void)
{
	TestServer	server = server_start(NULL);

	test_changes(&server);
	test_answers(&server);
	server_end(&server);
}
