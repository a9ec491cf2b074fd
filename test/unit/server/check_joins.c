/*
 * check_joins.c
 *		Builds that others join: what they get is what the engine makes,
 *		whoever asks; who goes away goes alone.  What they may not do is in
 *		check_wrong.c, crowds are in check_copies.c.
 */
#include <unistd.h>

#include "client.h"

#define ROWS	TEST_BUILD_ROWS
#define DIMS	TEST_BUILD_DIMS

static int
join(int fd, uint64_t id)
{
	GvJoinRequest request = {id};

	return ASK(fd, GV_MSG_JOIN, request);
}

/* A connection that joined. */
static int
helper(const TestServer *server, uint64_t id)
{
	int			fd = client_open(server, GV_ROLE_BUILDER);

	CHECK(join(fd, id) == 0, "join");
	return fd;
}

/* Rows, or with NULL the first n of the sample, are encoded as by `own`. */
static void
check_encode(int fd, GvBuilder *own, const float *rows, int32_t n)
{
	GvEncodeSampleRequest sampled = {0, n, 0};
	GvMessageType type = rows != NULL ? GV_MSG_ENCODE_ROWS : GV_MSG_ENCODE_SAMPLE;
	FREED void *payload = NULL;
	uint32_t	length = 0;

	CHECK(rows != NULL ? builder_send(fd, type, 0, rows, n) :
		  client_message(fd, type, &sampled, sizeof(sampled), NULL, 0),
		  "send");
	CHECK(client_receive(fd, type, &payload, &length) == 0, "encode");
	if (payload != NULL)
		builder_check(own, rows, n, payload, length, NULL, NULL);
}

/* One after another, so that neighbors are known, too. */
static void
check_turns(const TestServer *server, const float *rows)
{
	int			owner = client_open(server, GV_ROLE_BUILDER);
	uint64_t	id = 0;
	GvTrained	trained;
	GvBuilder  *own = builder_own(rows, &trained);
	int			first;
	int			second;

	CHECK(builder_prepare(owner, rows, &id) == 0, "prepare");
	first = helper(server, id);
	second = helper(server, id);
	check_encode(first, own, rows, 40);
	check_encode(owner, own, rows + 40 * DIMS, 9);
	check_encode(second, own, NULL, 30);
	check_encode(first, own, rows + 49 * DIMS, 40);
	CHECK(client_ping(second) == 0, "ping");
	check_calib_mirror(owner, second, own, &trained, rows);
	gv_builder_drop(own);
	close(owner);
	/* what was begun goes on without its owner */
	CHECK(builder_send(first, GV_MSG_ENCODE_ROWS, 0, rows, 1) &&
		  client_receive(first, GV_MSG_ENCODE_ROWS, NULL, NULL) == 0, "alone");
	close(first);
	close(second);
	builder_unused(server, "all are gone");
}

/* Rows for the sample get these numbers. */
static void
check_rows(int fd, const float *rows, int64_t first, int32_t n)
{
	FREED void *payload = NULL;
	uint32_t	length = 0;

	CHECK(builder_send(fd, GV_MSG_TRAIN_ROWS, GV_SAMPLE, rows + first * DIMS, n) &&
		  client_receive(fd, GV_MSG_TRAIN_ROWS, &payload, &length) == 0 &&
		  length == sizeof(GvRowsReply) &&
		  ((GvRowsReply *) payload)->first == first, "numbers");
}

/* Who may join when, what comes from whom, and who goes without others. */
static void
check_members(const TestServer *server, const float *rows)
{
	GvRowsRequest encode = {0, 1};
	int			owner = client_open(server, GV_ROLE_BUILDER);
	int			helped;
	int			fd;
	uint64_t	id = 0;

	CHECK(builder_begin(owner, &id) == 0, "begin");
	CHECK(builder_send(owner, GV_MSG_TRAIN_ROWS, GV_QUERIES, rows, 2) &&
		  client_receive(owner, GV_MSG_TRAIN_ROWS, NULL, NULL) == 0, "queries");
	fd = helper(server, id);
	client_cut(fd, ASK_MORE(fd, GV_MSG_ENCODE_ROWS, encode, rows, 4 * DIMS),
			   "not trained");
	fd = helper(server, id);
	check_rows(owner, rows, 0, 40);
	check_rows(fd, rows, 40, ROWS - 41);
	check_rows(owner, rows, ROWS - 1, 1);
	close(fd);
	CHECK(ASK_PLAIN(owner, GV_MSG_TRAIN) == 0, "train");
	helped = helper(server, id);
	client_cut(owner, join(owner, id), "its own");
	fd = client_open(server, GV_ROLE_BUILDER);
	client_cut(fd, join(fd, id), "a build whose owner is gone");
	CHECK(client_ping(helped) == 0, "a helper that joined before goes on");
	close(helped);
	builder_unused(server, "after all that");
}

/* A builder without memory is of no use to anybody any more. */
static void
check_broken(const float *rows)
{
	/* create, three rows, train, encode */
	TestServer	server = server_start("--build-fault", "6:3", NULL);
	int			owner = client_open(&server, GV_ROLE_BUILDER);
	uint64_t	id = 0;
	int			fd;

	CHECK(builder_prepare(owner, rows, &id) == 0, "prepare");
	fd = helper(&server, id);
	CHECK(builder_send(fd, GV_MSG_ENCODE_ROWS, 0, rows, 1) &&
		  client_receive(fd, GV_MSG_ENCODE_ROWS, NULL, NULL) ==
		  GV_REFUSED_NO_MEMORY, "no memory");
	CHECK(builder_send(owner, GV_MSG_ENCODE_ROWS, 0, rows, 1) &&
		  client_receive(owner, GV_MSG_ENCODE_ROWS, NULL, NULL) ==
		  GV_REFUSED_NO_MEMORY, "nor for others");
	close(fd);
	close(owner);
	builder_unused(&server, "a broken build");
	server_end(&server);
}

void
test_joins(void)
{
	OWN float  *rows = unit_floats(ROWS * DIMS, 1.0f);
	TestServer	server = server_start(NULL);
	int			i;

	for (i = 0; i < 3; i++)
		check_turns(&server, rows);
	check_members(&server, rows);
	check_crowded_calib_mirror(&server, rows);
	server_end(&server);
	check_broken(rows);
}
