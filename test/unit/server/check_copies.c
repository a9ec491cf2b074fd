/*
 * check_copies.c
 *		A build on several devices: what copies of its builder make of rows,
 *		and what they name as near to queries; clients that leave, and what
 *		fails.
 *
 * Servers here divide whatever can be (GPUVEC_DIVIDE).
 */
#include <unistd.h>

#include "client.h"

#define DIMS	TEST_BUILD_DIMS
#define QUERIES	2				/* of a build, and how many neighbors each */
#define DEPTH	4
#define CLIENTS	4				/* of a build */
#define BATCHES	10				/* that each sends */
#define BATCH	30

/* In the log, of a build that one builder has encoded the rows of. */
#define NO_COPY	" s; calibration: "

/* The rows near to queries, by the answers. */
typedef struct GroundTruth
{
	GvTopK		best[QUERIES];
} GroundTruth;

static GroundTruth
new_ground_truth(void)
{
	GroundTruth ground_truth;
	int			q;

	for (q = 0; q < QUERIES; q++)
		ground_truth.best[q] = new_topk(DEPTH, false);
	return ground_truth;
}

static void
add_neighbors(GroundTruth *ground_truth, const GvEncoded *encoded,
			  int64_t first)
{
	int32_t		i;

	for (i = 0; i < encoded->nneighbors; i++)
	{
		const GvNeighbor *neighbor = &encoded->neighbors[i];

		gv_topk_push(&ground_truth->best[neighbor->query], neighbor->score,
					 (uint64_t) (first + neighbor->row));
	}
}

/* Test: both have found the same; then they are freed. */
static void
compare_ground_truths(GroundTruth *a, GroundTruth *b)
{
	int			q;

	for (q = 0; q < QUERIES; q++)
	{
		gv_topk_sort(&a->best[q]);
		gv_topk_sort(&b->best[q]);
		CHECK(a->best[q].count == DEPTH && b->best[q].count == DEPTH &&
			  memcmp(a->best[q].ids, b->best[q].ids, DEPTH * 8) == 0 &&
			  memcmp(a->best[q].scores, b->best[q].scores, DEPTH * 4) == 0,
			  "query %d: other neighbors", q);
		free_topk(&a->best[q]);
		free_topk(&b->best[q]);
	}
}

/* A table's rows, all that its build should make of them, and who asks. */
typedef struct Table
{
	float	   *rows;			/* [CLIENTS][BATCHES][BATCH][DIMS] */
	GvBuilder  *own;
	int			fds[CLIENTS];
	int64_t		first;			/* row of the batch that is taken */
	GroundTruth expected;
	GroundTruth found;
} Table;

static const float *
batch_of(const Table *table, int client, int batch)
{
	return table->rows +
		(size_t) (client * BATCHES + batch) * BATCH * DIMS;
}

/* Which rows a copy names depends on those that it had before. */
static void
note_neighbors(void *arg, const GvEncoded *right, const GvEncoded *found)
{
	Table	   *table = arg;

	add_neighbors(&table->expected, right, table->first);
	add_neighbors(&table->found, found, table->first);
}

/* Take the answer to a batch and compare it. */
static void
take_batch(Table *table, int client, int batch)
{
	table->first = (int64_t) (client * BATCHES + batch) * BATCH;
	builder_check(table->fds[client], table->own,
				  batch_of(table, client, batch), BATCH, note_neighbors,
				  table);
}

/* A build of several clients at once. */
static void
check_build(const TestServer *server, const float *sample)
{
	Table		table = {.expected = new_ground_truth(),
	.found = new_ground_truth()};
	GvTrained	trained;
	uint64_t	id = 0;
	int			c;
	int			b;

	table.rows = unit_floats((size_t) CLIENTS * BATCHES * BATCH * DIMS, 1.0f);
	table.own = builder_own(sample, &trained);
	table.fds[0] = client_open(server, GV_ROLE_BUILDER);
	CHECK(builder_prepare(table.fds[0], sample, &id) == 0, "prepare");
	for (c = 1; c < CLIENTS; c++)
		table.fds[c] = builder_join(server, id);
	for (b = 0; b < BATCHES; b++)
		for (c = 0; c < CLIENTS; c++)
			builder_encode(table.fds[c], batch_of(&table, c, b), BATCH);
	for (b = 0; b < BATCHES; b++)
		for (c = 0; c < CLIENTS; c++)
			take_batch(&table, c, b);
	compare_ground_truths(&table.expected, &table.found);
	check_calib_mirror(table.fds[0], table.fds[1], table.own, &trained,
					   sample);
	for (c = CLIENTS - 1; c >= 0; c--)
		close(table.fds[c]);
	gv_builder_drop(table.own);
	unit_free(table.rows);
	builder_unused(server, "a build of several");
}

/* Clients that go away while their rows are encoded, the owner first. */
static void
check_leavers(const TestServer *server, const float *sample)
{
	int			fds[CLIENTS];
	uint64_t	id = 0;
	int			c;
	int			b;

	fds[0] = client_open(server, GV_ROLE_BUILDER);
	CHECK(builder_prepare(fds[0], sample, &id) == 0, "prepare");
	for (c = 1; c < CLIENTS; c++)
		fds[c] = builder_join(server, id);
	for (b = 0; b < 3; b++)
		for (c = 0; c < CLIENTS; c++)
			builder_encode(fds[c], sample, BATCH);
	for (c = 0; c < CLIENTS - 1; c++)
		close(fds[c]);
	for (b = 0; b < 3; b++)
		OK(client_receive(fds[c], GV_MSG_ENCODE_ROWS, NULL, NULL));
	close(fds[c]);
	builder_unused(server, "all are gone");
}

/*
 * One client.  The first builder has the first batch, and then there is a
 * copy, which has all others; but the sample is the first one's.
 */
static int
build_alone(const TestServer *server, const float *sample)
{
	GvEncodeSampleRequest sampled = {0, BATCH, 0};
	OwnFd		fd = client_open(server, GV_ROLE_BUILDER);
	int			got = builder_prepare(fd, sample, NULL);
	int			i;

	for (i = 0; i < 3 && got == 0; i++)
	{
		(void) builder_send(fd, GV_MSG_ENCODE_ROWS, 0, sample, BATCH);
		got = client_receive(fd, GV_MSG_ENCODE_ROWS, NULL, NULL);
	}
	if (got == 0)
		got = ASK(fd, GV_MSG_ENCODE_SAMPLE, sampled);
	return got;
}

/*
 * Of the calls create, 3 times rows, train, copy, encode and so on one fails.
 */
static void
check_build_fault(const float *sample, int n, GvStatus status,
				  const char *text)
{
	char		fault[32];
	TestServer	server;
	int			got;

	snprintf(fault, sizeof(fault), "%d:%d", n, (int) status);
	server = server_start("--devices", "0,1", "--build-fault", fault, NULL);
	got = build_alone(&server, sample);
	if (status == GV_FAILED)
	{
		/* without a copy it may be over before the process is */
		CHECK(got == GV_REFUSED_FAILED || got == -1 || (n == 6 && got == 0),
			  "call %d: %d", n, got);
		CHECK(server_wait(&server) == 5, "call %d", n);
	}
	else
	{
		CHECK(got == 0, "call %d, status %d: %d", n, status, got);
		builder_unused(&server, "after a fault");
		CHECK(build_alone(&server, sample) == 0, "after call %d", n);
		builder_unused(&server, "a build");
		CHECK(server_stop(&server) == 0, "stop");
		server_check_log(&server, text);
	}
	server_remove(&server);
}

static void
check_build_faults(const float *sample)
{
	/* there is no copy, or no more */
	check_build_fault(sample, 6, GV_NO_MEMORY, NO_COPY);
	check_build_fault(sample, 6, GV_INVALID, NO_COPY);
	check_build_fault(sample, 8, GV_NO_MEMORY,
					  ", 120 on device 0, 0 on device 1; ");
	check_build_fault(sample, 9, GV_NO_MEMORY,
					  ", 90 on device 0, 30 on device 1; ");
	check_build_fault(sample, 6, GV_FAILED, NULL);
	check_build_fault(sample, 8, GV_FAILED, NULL);
}

/*
 * A device that has more work than the build's has besides gets no copy.  The
 * work is selections, which are not divided.
 */
static void
check_build_memory(const float *sample)
{
	TestServer	server = server_start("--devices", "0,1", NULL);
	OwnSet		other = set_make(4);
	int			fds[3];
	int			i;

	for (i = 0; i < 3; i++)
	{
		fds[i] = client_open(&server, GV_ROLE_SET);
		CHECK(set_begin(fds[i], &other.spec) == 0, "other work");
	}
	CHECK(build_alone(&server, sample) == 0, "build");
	for (i = 0; i < 3; i++)
		close(fds[i]);
	builder_unused(&server, "beside other work");
	CHECK(server_stop(&server) == 0, "stop");
	server_check_log(&server, NO_COPY);
	server_remove(&server);
}

void
test_copies(void)
{
	static const char *const devices[] = {"0", "0,1", "3,5,4", "0,1,2,3"};
	OWN float  *sample = unit_floats(TEST_BUILD_ROWS * DIMS, 1.0f);
	int			i;

	setenv("GPUVEC_DIVIDE", "1", 1);
	for (i = 0; i < 4; i++)
	{
		TestServer	server = server_start("--devices", devices[i], NULL);

		check_build(&server, sample);
		check_leavers(&server, sample);
		check_build(&server, sample);
		server_end(&server);
	}
	check_build_faults(sample);
	check_build_memory(sample);
	unsetenv("GPUVEC_DIVIDE");
}
