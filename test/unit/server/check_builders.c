/*
 * check_builders.c
 *		Builds by gpuvecd: what comes back is what the engine makes, in the
 *		order in which it was asked for, whoever has joined; what is too
 *		large; clients that go away, alone.  What they may not do is in
 *		check_wrong.c.
 */
#include <unistd.h>

#include "client.h"
#include "test/oracle/gv_oracle.h"

#define ROWS	TEST_BUILD_ROWS
#define DIMS	TEST_BUILD_DIMS

/* The specification of all these builds. */
GvBuilderSpec
builder_spec(void)
{
	GvBuilderSpec request = {
		.metric = GV_L2,
		.dims = DIMS,
		.m = 3,
		.lists_per_row = 2,
		.refine = 1,
		.nlists = 8,
		.nparents = 3,
		.nqueries = 2,
		.depth = 4,
		.batch_rows = 40,
		.iterations = 5,
		.scale = 1.0f,
		.max_imbalance = 2.0,
		.seed = 9,
		.sample_rows = ROWS
	};

	return request;
}

static int
build(int fd, const GvBuilderSpec *request, uint64_t *id)
{
	float		mean[DIMS] = {0};
	FREED void *payload = NULL;
	uint32_t	length = 0;
	int			got = client_ask(fd, GV_MSG_BUILD, request, sizeof(*request),
								 mean, sizeof(mean), &payload, &length);

	CHECK(got != 0 || length == sizeof(GvBuildReply), "%u bytes", length);
	if (got == 0 && id != NULL)
		*id = ((GvBuildReply *) payload)->id;
	return got;
}

/* Begin a build, and no more. */
int
builder_begin(int fd, uint64_t *id)
{
	GvBuilderSpec request = builder_spec();

	return build(fd, &request, id);
}

/* A build of some MB on the device with most memory. */
int
builder_reserve(int fd, int megabytes)
{
	GvBuilderSpec request =
		{.metric = GV_L2,.dims = 8,.m = 4,.lists_per_row = 1,
		.nlists = 10,.nparents = 1,.batch_rows = 10,.scale = 1.0f,
	.max_imbalance = 2.0,.sample_rows = 20000 * megabytes};
	float		mean[8] = {0};

	return ASK_MORE(fd, GV_MSG_BUILD, request, mean, sizeof(mean));
}

bool
builder_send(int fd, GvMessageType type, int32_t kind, const float *rows,
		  int32_t n)
{
	GvRowsRequest request = {kind, n};

	return client_message(fd, type, &request, sizeof(request), rows,
						  sizeof(float) * DIMS * n);
}

/* All that comes before rows are encoded; the first refusal, 0 or -1. */
int
builder_prepare(int fd, const float *rows, uint64_t *id)
{
	int			got = fd < 0 ? -1 : builder_begin(fd, id);

	if (got != 0)
		return got;
	/* without waiting in between */
	(void) (builder_send(fd, GV_MSG_TRAIN_ROWS, GV_QUERIES, rows, 2) &&
			builder_send(fd, GV_MSG_TRAIN_ROWS, GV_SAMPLE, rows, 50) &&
			builder_send(fd, GV_MSG_TRAIN_ROWS, GV_SAMPLE, rows + 50 * DIMS,
					  ROWS - 50) &&
			client_message(fd, GV_MSG_TRAIN, NULL, 0, NULL, 0));
	got = client_receive(fd, GV_MSG_TRAIN_ROWS, NULL, NULL);
	if (got == 0)
		got = client_receive(fd, GV_MSG_TRAIN_ROWS, NULL, NULL);
	if (got == 0)
		got = client_receive(fd, GV_MSG_TRAIN_ROWS, NULL, NULL);
	if (got == 0)
		got = client_receive(fd, GV_MSG_TRAIN, NULL, NULL);
	return got;
}

/* The portable engine in this process, once. */
static void
open_own(void)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;

	if (gv_ndevices() > 0)
		return;
	CHECK(gv_builders_open(&gv_cpu_builders) == GV_OK &&
		  gv_mirrors_open(&gv_cpu_mirrors, "", found, &nfound) == GV_OK, "open");
}

/* The builder that the server must have. */
GvBuilder *
builder_own(const float *rows, GvTrained *trained)
{
	GvBuilderSpec spec = builder_spec();
	float		mean[DIMS] = {0};
	GvBuilder  *builder;

	open_own();
	CHECK(gv_builder_create(&spec, mean, &builder) == GV_OK &&
		  gv_builder_put_rows(builder, GV_QUERIES, rows, 2) == GV_OK &&
		  gv_builder_put_rows(builder, GV_SAMPLE, rows, ROWS) == GV_OK &&
		  gv_builder_train(builder, trained, NULL) == GV_OK, "own builder");
	return builder;
}

static void
check_array(int fd, GvBuilder *own, const GvTrained *trained, GvArray array)
{
	GvBuilderSpec spec = builder_spec();
	int64_t		n = gv_builder_array_length(&spec, trained, array);
	GvGetModelRequest ask = {array, 0, 1, n - 1};
	FREED char *right = malloc(4 * n);
	FREED void *values = NULL;
	uint32_t	length = 0;

	(void) gv_builder_get_array(own, array, 0, n, right);
	CHECK(client_ask(fd, GV_MSG_GET_MODEL, &ask, sizeof(ask), NULL, 0, &values,
					 &length) == 0 && length == 4 * (n - 1) &&
		  memcmp(values, right + 4, length) == 0, "array %d", array);
}

/* Ask for rows to be encoded, or, with NULL, for the first n of the sample. */
void
builder_encode(int fd, const float *rows, int32_t n)
{
	GvEncodeSampleRequest sampled = {0, n, 0};

	CHECK(rows != NULL ? builder_send(fd, GV_MSG_ENCODE_ROWS, 0, rows, n) :
		  client_message(fd, GV_MSG_ENCODE_SAMPLE, &sampled, sizeof(sampled),
						 NULL, 0), "send");
}

/*
 * Is the answer what the engine makes of these rows, or, with NULL, of the
 * first n of the sample?  What is near to queries has to be the same, too, or
 * is given to `neighbors`, if that is not NULL.
 */
void
builder_check(int fd, GvBuilder *own, const float *rows, int32_t n,
			  BuilderNeighbors neighbors, void *arg)
{
	GvBuilderSpec spec = builder_spec();
	FREED void *payload = NULL;
	uint32_t	length = 0;
	GvEncodeReply *reply;
	size_t		postings = (size_t) n * spec.lists_per_row;
	int64_t		most = gv_builder_most_neighbors(&spec, n);
	FREED void *memory = malloc(gv_encoded_bytes(&spec, n, most));
	GvEncoded	right;
	GvEncoded	found;

	OK(client_receive(fd, rows != NULL ? GV_MSG_ENCODE_ROWS :
					  GV_MSG_ENCODE_SAMPLE, &payload, &length));
	if (payload == NULL)
		return;
	reply = payload;
	gv_encoded_open(&spec, memory, n, most, &right);
	OK(rows != NULL ? gv_builder_encode(own, rows, n, &right, NULL) :
	   gv_builder_encode_sample(own, 0, n, &right, NULL));
	CHECK(reply->n == n && length == sizeof(*reply) +
		  gv_encoded_bytes(&spec, n, reply->nneighbors), "%d rows, %u bytes",
		  reply->n, length);
	gv_encoded_open(&spec, reply + 1, n, reply->nneighbors, &found);
	found.nneighbors = reply->nneighbors;
	CHECK(memcmp(found.lists, right.lists, 4 * postings) == 0 &&
		  memcmp(found.t, right.t, 4 * postings) == 0 &&
		  memcmp(found.codes, right.codes,
				 postings * gv_code_bytes(spec.m)) == 0, "postings");
	CHECK(memcmp(found.min, right.min, 4 * (size_t) n) == 0 &&
		  memcmp(found.step, right.step, 4 * (size_t) n) == 0 &&
		  memcmp(found.error, right.error, 4 * (size_t) n) == 0 &&
		  memcmp(found.records, right.records, (size_t) n * DIMS) == 0,
		  "records");
	if (neighbors != NULL)
		neighbors(arg, &right, &found);
	else
		CHECK(found.nneighbors == right.nneighbors &&
			  memcmp(found.neighbors, right.neighbors, sizeof(GvNeighbor) *
					 (size_t) right.nneighbors) == 0, "neighbors");
}

/* A whole build, with rows sent ahead. */
static void
check_build(const TestServer *server, const float *rows)
{
	OwnFd		fd = client_open(server, GV_ROLE_BUILDER);
	GvTrained	trained;
	GvBuilder  *own = builder_own(rows, &trained);
	int32_t		sizes[] = {40, 1, 9, 40};
	const float *next = rows;
	int			array;
	int			i;

	CHECK(builder_prepare(fd, rows, NULL) == 0, "prepare");
	builder_encode(fd, NULL, 30);
	builder_check(fd, own, NULL, 30, NULL, NULL);
	for (array = 0; array < GV_NARRAYS; array++)
		check_array(fd, own, &trained, (GvArray) array);
	for (i = 0; i < 4; next += sizes[i] * DIMS, i++)
		builder_encode(fd, next, sizes[i]);
	CHECK(client_message(fd, GV_MSG_PING, NULL, 0, NULL, 0), "ping");
	for (next = rows, i = 0; i < 4; next += sizes[i] * DIMS, i++)
		builder_check(fd, own, next, sizes[i], NULL, NULL);
	CHECK(client_receive(fd, GV_MSG_PING, NULL, NULL) == 0, "ping's answer");
	check_calib_mirror(fd, fd, own, &trained, rows);
	gv_builder_drop(own);
}

/* Wait until builders that are gone have given back what they had. */
void
builder_unused(const TestServer *server, const char *what)
{
	int			tries = 0;

	while (server_totals(server).used != 0 && tries++ < 20000)
		usleep(5000);
	CHECK(server_totals(server).used == 0, "%s: %lld bytes are in use", what,
		  (long long) server_totals(server).used);
}

/* A client that goes away while a long training is at work. */
static void
check_abandoned(const TestServer *server)
{
	enum
	{
		N = 20000
	};
	OWN float  *rows = unit_floats((size_t) N * DIMS, 1.0f);
	GvBuilderSpec request = builder_spec();
	int			fd = client_open(server, GV_ROLE_BUILDER);

	request.nlists = 4000;
	request.iterations = 1000;
	request.nqueries = 0;
	request.depth = 0;
	request.sample_rows = N;
	CHECK(build(fd, &request, NULL) == 0, "build");
	CHECK(builder_send(fd, GV_MSG_TRAIN_ROWS, GV_SAMPLE, rows, N) &&
		  client_receive(fd, GV_MSG_TRAIN_ROWS, NULL, NULL) == 0 &&
		  client_message(fd, GV_MSG_TRAIN, NULL, 0, NULL, 0), "train");
	CHECK(server_totals(server).used > 0, "nothing is charged");
	close(fd);
	builder_unused(server, "abandoned in training");
}

/* A build that does not fit is refused, and one that fits goes on. */
static void
check_memory(const float *rows)
{
	TestServer	server = server_start("--memory", "1", NULL);
	GvBuilderSpec request = builder_spec();
	int			large = client_open(&server, GV_ROLE_BUILDER);
	int			small = client_open(&server, GV_ROLE_BUILDER);

	request.sample_rows = 1 << 20;
	CHECK(build(large, &request, NULL) == GV_REFUSED_NO_MEMORY, "too large");
	CHECK(builder_prepare(small, rows, NULL) == 0, "a small one");
	close(large);
	close(small);
	builder_unused(&server, "after a refusal");
	server_end(&server);
}

void
test_builders(void)
{
	OWN float  *rows = unit_floats(ROWS * DIMS, 1.0f);
	TestServer	server = server_start(NULL);
	int			i;

	for (i = 0; i < 3; i++)
		check_build(&server, rows);
	check_abandoned(&server);
	check_build(&server, rows);
	CHECK(server_stop(&server) == 0, "stop");
	server_check_log(&server, "s; calibration: lists ");
	server_remove(&server);
	check_memory(rows);
}

/* ---- builds that others join; crowds are in check_copies.c */

static int
join(int fd, uint64_t id)
{
	GvJoinRequest request = {id};

	return ASK(fd, GV_MSG_JOIN, request);
}

/* A connection that joined. */
int
builder_join(const TestServer *server, uint64_t id)
{
	int			fd = client_open(server, GV_ROLE_BUILDER);

	CHECK(join(fd, id) == 0, "join");
	return fd;
}

static void
check_encoded(int fd, GvBuilder *own, const float *rows, int32_t n)
{
	builder_encode(fd, rows, n);
	builder_check(fd, own, rows, n, NULL, NULL);
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
	first = builder_join(server, id);
	second = builder_join(server, id);
	check_encoded(first, own, rows, 40);
	check_encoded(owner, own, rows + 40 * DIMS, 9);
	check_encoded(second, own, NULL, 30);
	check_encoded(first, own, rows + 49 * DIMS, 40);
	CHECK(client_ping(second) == 0, "ping");
	check_calib_mirror(owner, second, own, &trained, rows);
	gv_builder_drop(own);
	close(owner);
	/* what was begun goes on without its owner */
	builder_encode(first, rows, 1);
	OK(client_receive(first, GV_MSG_ENCODE_ROWS, NULL, NULL));
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
	fd = builder_join(server, id);
	client_cut(fd, ASK_MORE(fd, GV_MSG_ENCODE_ROWS, encode, rows, 4 * DIMS),
			   "not trained");
	fd = builder_join(server, id);
	check_rows(owner, rows, 0, 40);
	check_rows(fd, rows, 40, ROWS - 41);
	check_rows(owner, rows, ROWS - 1, 1);
	close(fd);
	CHECK(ASK_PLAIN(owner, GV_MSG_TRAIN) == 0, "train");
	helped = builder_join(server, id);
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
	fd = builder_join(&server, id);
	builder_encode(fd, rows, 1);
	CHECK(client_receive(fd, GV_MSG_ENCODE_ROWS, NULL, NULL) ==
		  GV_REFUSED_NO_MEMORY, "no memory");
	builder_encode(owner, rows, 1);
	CHECK(client_receive(owner, GV_MSG_ENCODE_ROWS, NULL, NULL) ==
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
