/*
 * check_sets.c
 *		Work on sets by gpuvecd: what comes back is what the engine makes of
 *		it, however it was brought, whoever else is served, and on however
 *		many devices; clients that go away, memory, a task that fails.  Other
 *		faults are in check_faults.c, what clients may not do in check_wrong.c.
 */
#include <fcntl.h>
#include <unistd.h>

#include "client.h"

/* Every kind, on a connection of its own. */
static void
check_kinds(const TestServer *server)
{
	int64_t		before = server_totals(server).sets;
	int64_t		after;
	int			n = 0;
	int			i;

	for (i = 0; i < TEST_SETS; i++)
	{
		OwnFd		fd = client_open(server, GV_ROLE_SET);
		OwnSet		set = set_make(i);
		int			got;

		if (!test_device || i != TEST_LIKELY_SET)
		{
			got = set_check(fd, &set);
			CHECK(got == 0, "set %d: %d", i, got);
			CHECK(client_ping(fd) == 0, "set %d: goes on", i);
			n++;
		}
	}
	after = server_totals(server).sets;
	CHECK(after - before == n, "%lld sets", (long long) (after - before));
}

/* One connection, one set after the other, some of them given up. */
static void
check_replaced(const TestServer *server)
{
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	OwnSet		exact = set_make(0);
	OwnSet		clusters = set_make(2);
	int			got;

	CHECK(set_begin(fd, &exact.spec) == 0, "begun");
	CHECK(set_begin(fd, &clusters.spec) == 0, "replaced at once");
	CHECK(set_bring(fd, &clusters, GV_SET_SEEDS) == 0, "starts");
	got = set_check(fd, &exact);
	CHECK(got == 0, "replaced on its way: %d", got);
	got = set_check(fd, &clusters);
	CHECK(got == 0, "replaced when finished: %d", got);
}

/* Rows that are kept are asked, first of themselves. */
static void
check_kept(const TestServer *server)
{
	static const int asked[] = {TEST_OWN_SET, TEST_NEAR_SET, 0, TEST_OWN_SET};
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	OwnSet		rows = set_make(TEST_OWN_SET);
	GvSetSpec	keeper = set_keeper(&rows.spec);
	int			got;
	int			i;

	CHECK(set_begin(fd, &keeper) == 0 &&
		  set_bring(fd, &rows, GV_SET_ROWS) == 0, "keep");
	for (i = 0; i < 4; i++)
	{
		OwnSet		set = set_make(asked[i]);
		void	   *own_rows = set.items[GV_SET_ROWS];

		set.items[GV_SET_ROWS] = rows.items[GV_SET_ROWS];
		got = set_ask(fd, &set.spec);
		CHECK(got == 0, "ask %d: %d", i, got);
		if (got == 0 && (got = set_bring(fd, &set, GV_SET_QUERIES)) == 0 &&
			(got = set_bring(fd, &set, GV_SET_SELF)) == 0 &&
			(got = set_bring(fd, &set, GV_SET_LISTS)) == 0)
			got = set_finish(fd, &set);
		CHECK(got == 0, "asked %d: %d", i, got);
		set.items[GV_SET_ROWS] = own_rows;
	}
	got = set_check(fd, &rows);
	CHECK(got == 0, "another set: %d", got);
}

/* Two at once, who come to their turn in turn. */
static void
check_two(const TestServer *server)
{
	OwnFd		first = client_open(server, GV_ROLE_SET);
	OwnFd		second = client_open(server, GV_ROLE_SET);
	OwnSet		exact = set_make(1);
	OwnSet		clusters = set_make(3);
	int			got;

	CHECK(set_begin(first, &exact.spec) == 0, "first");
	CHECK(set_begin(second, &clusters.spec) == 0, "second");
	CHECK(set_bring(first, &exact, GV_SET_QUERIES) == 0, "queries");
	CHECK(set_bring_all(second, &clusters) == 0, "all of the second");
	CHECK(set_bring(first, &exact, GV_SET_ROWS) == 0, "rows");
	got = set_finish(second, &clusters);
	CHECK(got == 0, "the second: %d", got);
	got = set_finish(first, &exact);
	CHECK(got == 0, "the first: %d", got);
}

/* An input, one message in memory. */
static int
bring_here(int fd, const TestMemory *memory, const TestSet *set,
		   GvSetInput input)
{
	GvPutRequest request = {input, 0, set->n[input]};
	size_t		bytes = (size_t) (set->n[input] *
								  gv_set_input_bytes(&set->spec, input));
	GvMessage	header = {sizeof(request) + bytes, GV_MSG_PUT, 0};

	return set->n[input] == 0 ? 0 :
		memory_ask(fd, memory, 4096, header, &request, sizeof(request),
				   set->items[input], bytes);
}

/* Inputs that do not come through the socket. */
static void
check_shared(const TestServer *server)
{
	int			fd = client_open(server, GV_ROLE_SET);
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnSet		set = set_make(0);
	GvInShmRequest here = {4096};
	GvMessage	lists = {sizeof(GvListsRequest), GV_MSG_LISTS, 0};
	int			got;

	CHECK(bring_here(fd, &memory, &set, GV_SET_QUERIES) ==
		  GV_REFUSED_NO_MIRROR, "not shared");
	CHECK(client_ended(fd), "a refusal ends it");
	close(fd);
	fd = client_open(server, GV_ROLE_SET);
	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	CHECK(set_begin(fd, &set.spec) == 0 &&
		  bring_here(fd, &memory, &set, GV_SET_QUERIES) == 0 &&
		  bring_here(fd, &memory, &set, GV_SET_SELF) == 0 &&
		  bring_here(fd, &memory, &set, GV_SET_ROWS) == 0, "bring");
	got = set_finish(fd, &set);
	CHECK(got == 0, "%d", got);
	memcpy(memory.bytes + here.offset, &lists, sizeof(lists));
	client_cut(fd, ASK(fd, GV_MSG_IN_SHM, here), "a loader's message");
}

/* Outputs that do not come through the socket, of every kind. */
static void
check_fetched(const TestServer *server)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	int			got;
	int			i;

	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0, "memory");
	for (i = 0; i < TEST_SETS; i++)
	{
		OwnSet		set = set_make(i);

		set.memory = &memory;
		if (!test_device || i != TEST_LIKELY_SET)
		{
			got = set_check(fd, &set);
			CHECK(got == 0, "set %d: %d", i, got);
		}
		set.memory = NULL;
		if (i == 0)
			CHECK(set_check(fd, &set) == 0, "through the socket again");
	}
}

/* A request for n positions to be written there, which is answered later. */
static void
send_get(int fd, int64_t first, int64_t n, int64_t offset)
{
	GvGetRequest request = {GV_SET_POSITIONS, 0, first, n, offset};

	CHECK(client_message(fd, GV_MSG_GET, &request, sizeof(request), NULL, 0),
		  "send");
}

/* Several on their way, to places of their own and to the same. */
static void
check_fetched_ahead(const TestServer *server)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnSet		set = set_make(0);
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	const int64_t *places = (const int64_t *) memory.bytes;
	int64_t		got[100];
	int			i;

	set.memory = &memory;
	CHECK(memory_pass(fd, MEMORY_BYTES, &memory.fd, 1) == 0 &&
		  set_check(fd, &set) == 0, "a set");
	send_get(fd, 0, 100, 0);
	send_get(fd, 0, 50, 1024);
	send_get(fd, 50, 50, 1024 + 8 * 50);
	/* the last one counts */
	send_get(fd, 0, 100, 4096);
	send_get(fd, 90, 10, 4096 + 8 * 45);
	for (i = 0; i < 5; i++)
		CHECK(client_receive(fd, GV_MSG_GET, NULL, NULL) == 0, "%d", i);
	memcpy(got, places, sizeof(got));
	CHECK(memcmp(places + 128, got, sizeof(got)) == 0, "in two parts");
	memcpy(got + 45, got + 90, 10 * sizeof(int64_t));
	CHECK(memcmp(places + 512, got, sizeof(got)) == 0, "one over another");
}

/*
 * A client that goes away while what it sent takes minutes, and more of it
 * waits in the socket.
 */
static void
check_abandoned(const TestServer *server)
{
	OwnSet		set = {.spec = set_spec(0)};
	int			fd = client_open(server, GV_ROLE_SET);
	int			i;

	set.spec.self = 0;
	set.spec.nqueries = 400000;
	set.spec.nrows = 600000;
	set.n[GV_SET_QUERIES] = 400000;
	set.n[GV_SET_ROWS] = 400000;
	set.items[GV_SET_QUERIES] = unit_floats(7 * 400000, 1.0f);
	set.items[GV_SET_ROWS] = unit_floats(7 * 400000, 1.0f);
	CHECK(set_begin(fd, &set.spec) == 0 &&
		  set_bring(fd, &set, GV_SET_QUERIES) == 0, "begin");
	CHECK(server_totals(server).used > 0, "nothing is charged");
	for (i = 0; i < 3; i++)
		CHECK(set_send(fd, &set, GV_SET_ROWS, 20 * i, 20), "send");
	CHECK(client_receive(fd, GV_MSG_PUT, NULL, NULL) == 0, "some rows");
	CHECK(set_send(fd, &set, GV_SET_ROWS, 0, 400000), "many rows");
	usleep(50000);
	close(fd);
	builder_unused(server, "abandoned");
}

/* Sets that do not fit are refused, and those that fit go on. */
static void
check_memory(void)
{
	TestServer	server = server_start("--memory", "1", NULL);
	OwnSet		small = set_make(0);
	GvSetSpec	large = small.spec;
	int			first = client_open(&server, GV_ROLE_SET);
	int			second = client_open(&server, GV_ROLE_SET);
	int64_t		charged;
	int			got;

	large.nqueries = 100000;
	CHECK(set_begin(first, &small.spec) == 0, "small");
	charged = server_totals(&server).used;
	CHECK(charged > 0 && charged == gv_set_size(&small.spec), "%lld bytes",
		  (long long) charged);
	got = set_begin(second, &large);
	CHECK(got == GV_REFUSED_NO_MEMORY, "too large: %d", got);
	CHECK(client_ended(second), "a refusal ends it");
	close(second);
	CHECK(set_begin(first, &small.spec) == 0 &&
		  server_totals(&server).used == charged, "replaced");
	CHECK(set_bring_all(first, &small) == 0 &&
		  set_finish(first, &small) == 0, "the small one");
	CHECK(set_begin(first, &large) == GV_REFUSED_NO_MEMORY, "no more");
	close(first);
	builder_unused(&server, "after refusals");
	server_end(&server);
}

/* A set with so many of its queries. */
static TestSet
make_few(int which, int64_t nqueries)
{
	TestSet		set = set_make(which);

	set.spec.nqueries = nqueries;
	if (!set.spec.own)
		set.n[GV_SET_QUERIES] = nqueries;
	if (set.spec.self)
		set.n[GV_SET_SELF] = nqueries;
	return set;
}

/* Fewer queries than devices, as many, and more than tasks are even for. */
static void
check_few(const TestServer *server)
{
	static const int kinds[] = {0, 1, TEST_NEAR_SET, TEST_OWN_SET};
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	int			i;

	for (i = 0; i < 4 * 7; i++)
	{
		OwnSet		set = make_few(kinds[i % 4], 1 + i / 4);
		int			got = set_check(fd, &set);

		CHECK(got == 0, "set %d, %d queries: %d", kinds[i % 4], 1 + i / 4,
			  got);
	}
}

/* More queries, or selves, than were announced. */
static void
check_too_many(const TestServer *server)
{
	OwnSet		set = set_make(0);
	GvSetInput	inputs[] = {GV_SET_QUERIES, GV_SET_SELF};
	int			i;

	for (i = 0; i < 2; i++)
	{
		int			fd = client_open(server, GV_ROLE_SET);

		CHECK(set_begin(fd, &set.spec) == 0 &&
			  set_bring(fd, &set, inputs[i]) == 0, "begin");
		CHECK(set_send(fd, &set, inputs[i], 0, 1), "send");
		client_cut(fd, client_receive(fd, GV_MSG_PUT, NULL, NULL),
				   "one more");
		fd = client_open(server, GV_ROLE_SET);
		CHECK(set_begin(fd, &set.spec) == 0 &&
			  set_send(fd, &set, inputs[i], 0, 12) &&
			  client_receive(fd, GV_MSG_PUT, NULL, NULL) == 0, "begin");
		CHECK(set_send(fd, &set, inputs[i], 10, 10), "send");
		client_cut(fd, client_receive(fd, GV_MSG_PUT, NULL, NULL),
				   "some more");
	}
}

/*
 * k-means of many shapes: seeds that are rows or far from all rows, so that
 * most clusters begin empty, and rows of which many are the same.
 */
static void
check_kmeans(const TestServer *server)
{
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	int			i;

	for (i = 0; i < 48; i++)
	{
		int32_t		k = 1 + i % 13;
		int32_t		dims = 1 + i % 7;
		int64_t		nrows = k + (int64_t) (unit_random() % 200);
		int64_t		distinct = i % 3 == 0 ? 1 + i / 6 : nrows;
		OwnSet		set = {.spec = {.kind = GV_SET_KMEANS,.dims = dims,.k = k,
			.iterations = i % 5,.balanced = i % 2,.nrows = nrows}};
		float	   *rows = unit_floats((size_t) (nrows * dims), 1.0f);
		float	   *seeds = unit_floats((size_t) (k * dims), 1.0f);
		int64_t		j;
		int			got;

		for (j = distinct * dims; j < nrows * dims; j++)
			rows[j] = rows[j - distinct * dims];
		/* sums of these in double depend on their order */
		for (j = 0; i % 8 < 3 && j < nrows * dims; j++)
			rows[j] = ldexpf(rows[j], (int) (unit_random() % 60) - 30);
		for (j = 0; j < k * dims; j++)
			seeds[j] = i % 4 < 2 ? rows[j] : seeds[j] + (float) (j / dims);
		set.n[GV_SET_ROWS] = nrows;
		set.n[GV_SET_SEEDS] = k;
		set.items[GV_SET_ROWS] = rows;
		set.items[GV_SET_SEEDS] = seeds;
		got = set_check(fd, &set);
		CHECK(got == 0, "k-means %d, %d of %d rows: %d", i, (int) k,
			  (int) nrows, got);
	}
}

/* Everything, of these devices; on which of them the log says. */
static void
check_all(const char *devices, const char *text)
{
	TestServer	server = server_start("--devices", devices, NULL);

	check_kinds(&server);
	check_replaced(&server);
	check_kept(&server);
	check_two(&server);
	check_shared(&server);
	check_fetched(&server);
	check_fetched_ahead(&server);
	check_kmeans(&server);
	if (!test_device)
	{
		check_few(&server);
		check_too_many(&server);
		builder_unused(&server, "after all that");
		check_abandoned(&server);
		check_kinds(&server);
	}
	CHECK(server_stop(&server) == 0, "stop");
	server_check_log(&server, text);
	server_remove(&server);
}

void
test_sets(void)
{
	check_all("0", "job of kind 3: 5000 rows, finished");
	setenv("GPUVEC_DIVIDE", "1", 1);
	if (test_device)
		check_all("", "passes; device"); /* all that there are */
	else
	{
		check_all("0,1", "passes; devices 0, 1");
		check_all("3,5,4", "passes; devices 3, 5, 4");
		check_all("0,1,2,3", "passes; devices 0, 1, 2, 3");
		check_all("0,1,2,3,4,5,6,7",
				  "passes; devices 0, 1, 2, 3, 4, 5, 6, 7");
	}
	unsetenv("GPUVEC_DIVIDE");
	if (test_device)
		return;
	check_memory();
}

/* ---- devices that take part; servers here divide whatever can be */

/*
 * The bytes that a set is charged with in n tasks; of k-means, by the table,
 * because gv_set_size refuses parts.
 */
static int64_t
tasks_bytes(const GvSetSpec *spec, int n)
{
	GvSetSpec	task = *spec;
	int64_t		bytes = 0;
	int			i;

	for (i = 0; i < n; i++)
	{
		task.nqueries = spec->nqueries * (i + 1) / n -
			spec->nqueries * i / n;
		if (n > 1 && spec->kind == GV_SET_KMEANS)
		{
			task.nslices = GV_SET_SLICES / n;
			task.first_slice = i * task.nslices;
		}
		bytes += gv_cpu_sets.kinds[spec->kind]->size(&task);
	}
	return bytes;
}

/* Test: the set has so many tasks, and works. */
static void
check_tasks(const TestServer *server, const TestSet *set, int n)
{
	int64_t		before = server_totals(server).used;
	int			fd = client_open(server, GV_ROLE_SET);
	int			got = set_begin(fd, &set->spec);
	int64_t		charged = server_totals(server).used - before;

	CHECK(got == 0 && charged == tasks_bytes(&set->spec, n),
		  "%d; %lld bytes are not those of %d portions", got,
		  (long long) charged, n);
	CHECK(set_bring_all(fd, set) == 0 && set_finish(fd, set) == 0, "work");
	close(fd);
	while (server_totals(server).used != before)
		usleep(1000);
}

/*
 * Three devices of 4 MB.  A mirror has 3 of one, so a set of which two
 * tasks have 2 each does without it; the fewer take part the larger are
 * tasks, and with two mirrors one device has all.  A device that has other
 * work does not take part.
 */
static void
check_charges(void)
{
	TestServer	server = server_start("--devices", "0,1,2", "--memory", "4",
									  NULL);
	OwnIndex	index = make_index(GV_L2, 64, 64, 100, 1, 750, false);
	GvMirrorKey keys[] = {test_key(1), test_key(2)};
	OwnSet		set = set_make(0);
	OwnSet		other = set_make(4);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		fd = client_open(&server, GV_ROLE_SET);

	/* so many that a set of all of them takes 3.7 MB */
	for (set.spec.nqueries = 1;
		 gv_set_size(&set.spec) < (37 << 20) / 10; set.spec.nqueries++)
		;
	unit_free(set.items[GV_SET_QUERIES]);
	unit_free(set.items[GV_SET_SELF]);
	set.n[GV_SET_QUERIES] = set.n[GV_SET_SELF] = set.spec.nqueries;
	set.items[GV_SET_QUERIES] = unit_floats(7 * set.spec.nqueries, 1.0f);
	set.items[GV_SET_SELF] = unit_alloc(8 * set.spec.nqueries);
	memset(set.items[GV_SET_SELF], 0xff, 8 * set.spec.nqueries);
	check_tasks(&server, &set, 3);
	CHECK(load_all(loader, &keys[0], &index) == 0, "a mirror");
	check_tasks(&server, &set, 2);
	CHECK(load_all(loader, &keys[1], &index) == 0, "another");
	check_tasks(&server, &set, 1);
	CHECK(load_drop(loader, &keys[0]) == 0 &&
		  load_drop(loader, &keys[1]) == 0, "drop");
	CHECK(set_begin(fd, &other.spec) == 0, "other work");
	check_tasks(&server, &set, 2);
	server_end(&server);
}

/*
 * Devices of k-means: as many as are a power of two, and each with k rows at
 * least, with room for their parts, and no others have.
 */
static void
check_kmeans_charges(void)
{
	TestServer	server = server_start("--devices", "0,1,2,3,4", "--memory",
									  "1", NULL);
	OwnSet		set = set_make(2);
	OwnSet		other = set_make(2);
	int			fds[2];
	int			i;

	check_tasks(&server, &set, 4);
	set.spec.k = 75;
	unit_free(set.items[GV_SET_SEEDS]);
	set.items[GV_SET_SEEDS] = unit_floats(75 * 7, 1.0f);
	set.n[GV_SET_SEEDS] = 75;
	check_tasks(&server, &set, 4);
	set.spec.nrows = set.n[GV_SET_ROWS] = 299;
	check_tasks(&server, &set, 2);
	other.spec.nrows = 9;
	for (i = 0; i < 2; i++)
	{
		fds[i] = client_open(&server, GV_ROLE_SET);
		CHECK(set_begin(fds[i], &other.spec) == 0, "other work");
	}
	set.spec.nrows = set.n[GV_SET_ROWS] = 300;
	check_tasks(&server, &set, 2);
	close(fds[0]);
	close(fds[1]);
	server_end(&server);
}

/* Work that a single device has, as too few rows or products are each one's. */
static void
check_little_kmeans(void)
{
	TestServer	server = server_start("--devices", "0,1", NULL);
	OwnFd		fd = client_open(&server, GV_ROLE_SET);
	GvSetSpec	spec = {.kind = GV_SET_KMEANS,.dims = 1,.k = 4,
	.iterations = 999,.nrows = 1 << 20};
	int64_t		rows;

	for (rows = spec.nrows - 1; rows <= spec.nrows; rows++)
	{
		GvSetSpec	some = spec;

		some.nrows = rows;
		CHECK(set_begin(fd, &some) == 0 &&
			  server_totals(&server).used ==
			  tasks_bytes(&some, rows == spec.nrows ? 2 : 1), "%ld rows",
			  (long) rows);
		some.iterations = 900;
		CHECK(set_begin(fd, &some) == 0 &&
			  server_totals(&server).used == tasks_bytes(&some, 1),
			  "few products");
	}
	server_end(&server);
}

/*
 * Where the second or third call, a task's creation, finds no memory.  Exact
 * search or k-means.
 */
static void
check_fewer_tasks(int n, int which)
{
	char		fault[32];
	TestServer	server;
	OwnSet		set = set_make(which);
	int			fd;

	snprintf(fault, sizeof(fault), "%d:%d", n, GV_NO_MEMORY);
	server = server_start("--devices", "0,1", "--set-fault", fault, NULL);
	fd = client_open(&server, GV_ROLE_SET);
	OK(set_check(fd, &set));
	close(fd);
	builder_unused(&server, "without a task");
	server_end(&server);
}

/* One task fails at once where the other one has minutes to go. */
static void
check_failed_task(void)
{
	/* a creation, three messages with queries, and rows: the second task */
	TestServer	server = server_start("--devices", "0,1", "--set-fault",
									  "15:2", NULL);
	OwnSet		set = {.spec = set_spec(0)};
	int			fd = client_open(&server, GV_ROLE_SET);
	int64_t		begun;
	int			input;

	set.spec.self = 0;
	set.spec.nqueries = set.spec.nrows = 400000;
	for (input = GV_SET_ROWS; input <= GV_SET_QUERIES; input++)
	{
		set.n[input] = 400000;
		set.items[input] = unit_floats(7 * 400000, 1.0f);
	}
	CHECK(set_begin(fd, &set.spec) == 0 &&
		  set_bring(fd, &set, GV_SET_QUERIES) == 0, "begin");
	begun = client_now_ms();
	CHECK(set_send(fd, &set, GV_SET_ROWS, 0, 400000), "send");
	client_cut(fd, client_receive(fd, GV_MSG_PUT, NULL, NULL), "a fault");
	CHECK(client_now_ms() - begun < 20000, "the other goes on for %lld ms",
		  (long long) (client_now_ms() - begun));
	server_end(&server);
}

void
test_divided(void)
{
	setenv("GPUVEC_DIVIDE", "1", 1);
	check_charges();
	check_kmeans_charges();
	check_fewer_tasks(2, 0);
	check_fewer_tasks(3, 0);
	check_fewer_tasks(2, 2);
	check_fewer_tasks(3, 2);
	check_failed_task();
	unsetenv("GPUVEC_DIVIDE");
	check_little_kmeans();
}
