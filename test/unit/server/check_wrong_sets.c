/*
 * check_wrong_sets.c
 *		What is malformed, out of turn or too much in work on sets: who does so
 *		is cut off, and nobody else notices.
 */
#include <fcntl.h>
#include <unistd.h>

#include "client.h"

/* Begin this test set with one thing wrong. */
#define WRONG(which, change) \
	do { \
		int			fd_ = client_open(server, GV_ROLE_SET); \
		GvSetSpec	wrong = set_spec(which); \
		wrong.change; \
		client_cut(fd_, client_ask(fd_, GV_MSG_SET, &wrong, sizeof(wrong), \
								   NULL, 0, NULL, NULL), \
				   #which ": " #change); \
	} while (0)

/* The engine refuses them (check_setcalls.c); a few show that it is asked. */
static void
check_specs(const TestServer *server)
{
	WRONG(0, kind = -1);
	WRONG(0, kind = GV_NSETS);
	WRONG(0, dims = GV_MAX_DIMS + 1);
	WRONG(0, nqueries = INT64_MIN);
	WRONG(0, nrows = INT64_MAX);
	WRONG(0, device = 1);
	WRONG(TEST_NEAR_SET, probes = 13);
	WRONG(2, iterations = GV_SET_MAX_PASSES);
	WRONG(4, nrows = GV_SELECT_MAX_N + 1);
	WRONG(5, k = 1);
}

/* How far a conversation has come. */
typedef enum Stage
{
	OPEN,						/* it has said hello */
	BEGUN,
	READY,						/* all that comes before rows has come */
	WHOLE,						/* and rows */
	DONE						/* it is finished */
} Stage;

static int
come_to(const TestServer *server, const TestSet *set, Stage stage)
{
	int			fd = client_open(server, GV_ROLE_SET);
	int			input;

	if (stage >= BEGUN)
		CHECK(set_begin(fd, &set->spec) == 0, "begin");
	for (input = GV_SET_ROWS + 1; input < GV_NSET_INPUTS; input++)
		if (stage >= READY)
			CHECK(set_bring(fd, set, (GvSetInput) input) == 0, "%d", input);
	if (stage >= WHOLE)
		CHECK(set_bring(fd, set, GV_SET_ROWS) == 0, "rows");
	if (stage >= DONE)
		CHECK(set_finish(fd, set) == 0, "finish");
	return fd;
}

/* At this stage, a message that ends the connection. */
static void
check_cut(const TestServer *server, const TestSet *set, Stage stage,
		  GvMessageType type, const void *head, size_t head_bytes,
		  const void *tail, size_t tail_bytes, const char *what)
{
	int			fd = come_to(server, set, stage);

	client_cut(fd, client_ask(fd, type, head, head_bytes, tail, tail_bytes,
							  NULL, NULL), what);
}

/* `bytes` of items as n of an input. */
#define PUT(set, stage, input, n, items, bytes) \
	do { \
		GvPutRequest put_ = {input, 0, n}; \
		check_cut(server, set, stage, GV_MSG_PUT, &put_, sizeof(put_), items, \
				  bytes, #set " " #stage ": " #n " of " #input); \
	} while (0)

#define GET(set, stage, output, first, n) \
	do { \
		GvGetRequest get_ = {output, 0, first, n, -1}; \
		check_cut(server, set, stage, GV_MSG_GET, &get_, sizeof(get_), NULL, \
				  0, #set " " #stage ": " #n " of " #output " from " #first); \
	} while (0)

#define RUN(set, stage) \
	check_cut(server, set, stage, GV_MSG_RUN, NULL, 0, NULL, 0, \
			  #set " " #stage ": run")

static void
check_puts(const TestServer *server, const TestSet *exact,
		   const TestSet *near, const TestSet *clusters, const TestSet *ranks)
{
	const char *items = exact->items[GV_SET_ROWS];
	GvPutRequest unused = {GV_SET_ROWS, 1, 1};
	float		wrong[7] = {0, 0, 0, NAN, 0, 0, 0};
	int64_t		rank = ranks->spec.nrows;
	int64_t		row = 28;		/* bytes */

	PUT(exact, OPEN, GV_SET_QUERIES, 1, items, row);
	PUT(exact, BEGUN, -1, 1, items, row);
	PUT(exact, BEGUN, GV_NSET_INPUTS, 1, items, row);
	PUT(exact, BEGUN, INT32_MIN, 1, items, row);
	PUT(exact, BEGUN, GV_SET_SEEDS, 1, items, row);
	PUT(exact, BEGUN, GV_SET_RANKS, 1, items, 8);
	PUT(exact, BEGUN, GV_SET_ROWS, 1, items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 0, items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, -1, items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 2, items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 1, items, 2 * row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 1, items, row - 1);
	PUT(exact, BEGUN, GV_SET_QUERIES, INT64_MAX, items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, INT64_C(0x4000000000000001), items, row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 21, items, 21 * row);
	PUT(exact, BEGUN, GV_SET_QUERIES, 1, wrong, row);
	PUT(exact, READY, GV_SET_QUERIES, 1, items, row);
	PUT(exact, READY, GV_SET_ROWS, 1, wrong, row);
	PUT(exact, WHOLE, GV_SET_SELF, 1, items, 8);
	PUT(exact, WHOLE, GV_SET_ROWS, 11, items, 11 * row);
	PUT(exact, DONE, GV_SET_ROWS, 1, items, row);
	PUT(exact, BEGUN, GV_SET_LISTS, 1, items, row);
	PUT(near, READY, GV_SET_LISTS, 1, items, row);
	PUT(near, BEGUN, GV_SET_LISTS, 13, items, 13 * row);
	PUT(near, BEGUN, GV_SET_LISTS, 1, wrong, row);
	wrong[3] = -INFINITY;
	PUT(clusters, BEGUN, GV_SET_SEEDS, 1, wrong, row);
	PUT(clusters, READY, GV_SET_ROWS, 1, wrong, row);
	PUT(clusters, WHOLE, GV_SET_ROWS, 1, items, row);
	PUT(ranks, BEGUN, GV_SET_RANKS, 1, &rank, 8);
	rank = -1;
	PUT(ranks, BEGUN, GV_SET_RANKS, 1, &rank, 8);
	check_cut(server, exact, READY, GV_MSG_PUT, &unused, sizeof(unused),
			  items, (size_t) row, "not 0");
}

static void
check_gets(const TestServer *server, const TestSet *exact,
		   const TestSet *clusters)
{
	GvGetRequest unused = {GV_SET_POSITIONS, 1, 0, 1, -1};

	GET(exact, OPEN, GV_SET_POSITIONS, 0, 1);
	GET(exact, BEGUN, GV_SET_POSITIONS, 0, 1);
	GET(exact, WHOLE, GV_SET_POSITIONS, 0, 1);
	GET(exact, DONE, -1, 0, 1);
	GET(exact, DONE, GV_NSET_OUTPUTS, 0, 1);
	GET(exact, DONE, GV_SET_VALUES, 0, 1);
	GET(exact, DONE, GV_SET_POSITIONS, -1, 1);
	GET(exact, DONE, GV_SET_POSITIONS, 0, 0);
	GET(exact, DONE, GV_SET_POSITIONS, 0, -1);
	GET(exact, DONE, GV_SET_POSITIONS, 0, 101);
	GET(exact, DONE, GV_SET_POSITIONS, 100, 1);
	GET(exact, DONE, GV_SET_DISTANCES, INT64_MAX, 1);
	GET(exact, DONE, GV_SET_DISTANCES, 0, INT64_MAX);
	GET(exact, DONE, GV_SET_DISTANCES, INT64_MAX, INT64_MAX);
	GET(clusters, DONE, GV_SET_CENTROIDS, 9, 1);
	GET(clusters, DONE, GV_SET_SIZES, 0, 10);
	check_cut(server, exact, DONE, GV_MSG_GET, &unused, sizeof(unused), NULL,
			  0, "not 0");
}

/* Finished, with memory or without, n positions to go to this offset. */
static void
check_place(const TestServer *server, const TestSet *set,
			const TestMemory *memory, int64_t n, int64_t offset,
			const char *what)
{
	GvGetRequest request = {GV_SET_POSITIONS, 0, 0, n, offset};
	int			fd = come_to(server, set, DONE);

	if (memory != NULL)
		CHECK(memory_pass(fd, MEMORY_BYTES, &memory->fd, 1) == 0, "memory");
	client_cut(fd, ASK(fd, GV_MSG_GET, request), what);
}

/* Places for outputs that are none; nothing is written anywhere. */
static void
check_places(const TestServer *server, const TestSet *exact)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnMemory	constant = memory_make(F_SEAL_SHRINK);
	int64_t		end = (int64_t) MEMORY_BYTES;
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	size_t		i;

	check_place(server, exact, NULL, 1, 0, "no memory");
	check_place(server, exact, &memory, 1, -2, "before it");
	check_place(server, exact, &memory, 1, -8, "eight before it");
	check_place(server, exact, &memory, 1, INT64_MIN, "far before it");
	check_place(server, exact, &memory, 1, end, "behind it");
	check_place(server, exact, &memory, 100, end - 792, "beyond its end");
	check_place(server, exact, &memory, 1, INT64_MAX - 7, "far behind it");
	check_place(server, exact, &memory, 1, 4, "not aligned");
	check_place(server, exact, &memory, 1, end - 12, "at an odd end");
	check_place(server, exact, &memory, 101, 0, "too many");
	for (i = 0; i < MEMORY_BYTES && memory.bytes[i] == 0; i++)
		;
	CHECK(i == MEMORY_BYTES, "byte %zu was written", i);
	CHECK(fcntl(constant.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 &&
		  memory_pass(fd, MEMORY_BYTES, &constant.fd, 1) ==
		  GV_REFUSED_NO_MEMORY, "memory that cannot be written");
}

static void
check_runs(const TestServer *server, const TestSet *exact,
		   const TestSet *clusters, const TestSet *ranks)
{
	RUN(exact, OPEN);
	RUN(exact, BEGUN);
	RUN(exact, DONE);
	RUN(clusters, BEGUN);
	RUN(clusters, READY);
	RUN(ranks, READY);
}

/* Asked too soon, too late, or what cannot be. */
static void
check_asks(const TestServer *server, const TestSet *exact)
{
	OwnSet		own = set_make(TEST_OWN_SET);
	GvSetSpec	keeper = set_keeper(&own.spec);
	GvSetSpec	wrong[] = {own.spec, own.spec, own.spec, keeper};
	int			fd;
	int			i;

	check_cut(server, exact, BEGUN, GV_MSG_ASK, &own.spec, sizeof(own.spec),
			  NULL, 0, "not begun to keep");
	check_cut(server, &own, DONE, GV_MSG_ASK, &own.spec, sizeof(own.spec),
			  NULL, 0, "begun with queries");
	wrong[0].device = 1;
	wrong[1].first = own.n[GV_SET_ROWS] - 5;
	wrong[2].nrows--;
	for (i = 0; i < 4; i++)
	{
		fd = client_open(server, GV_ROLE_SET);
		CHECK(set_begin(fd, &keeper) == 0 &&
			  set_bring(fd, &own, GV_SET_ROWS) == 0, "keep");
		client_cut(fd, set_ask(fd, &wrong[i]), "asked");
	}
	fd = client_open(server, GV_ROLE_SET);
	client_cut(fd, set_ask(fd, &own.spec), "no set");
	fd = client_open(server, GV_ROLE_SET);
	CHECK(set_begin(fd, &keeper) == 0, "keep");
	client_cut(fd, ASK_PLAIN(fd, GV_MSG_RUN), "run what was not asked");
}

void
test_wrong_sets(void)
{
	TestServer	server = server_start(NULL);
	OwnSet		exact = set_make(0);
	OwnSet		near = set_make(TEST_NEAR_SET);
	OwnSet		clusters = set_make(2);
	OwnSet		ranks = set_make(5);
	int			bystander = client_open(&server, GV_ROLE_SET);
	GvSetSpec	none = exact.spec;
	int			got;

	CHECK(set_begin(bystander, &exact.spec) == 0 &&
		  set_bring_all(bystander, &exact) == 0, "a bystander");
	check_specs(&server);
	check_puts(&server, &exact, &near, &clusters, &ranks);
	check_gets(&server, &exact, &clusters);
	check_places(&server, &exact);
	check_runs(&server, &exact, &clusters, &ranks);
	check_asks(&server, &exact);
	got = set_finish(bystander, &exact);
	CHECK(got == 0, "the bystander: %d", got);
	/* what is refused takes the set with it */
	none.k = 0;
	client_cut(bystander, set_begin(bystander, &none), "replaced by none");
	builder_unused(&server, "after all that");
	server_end(&server);
}
