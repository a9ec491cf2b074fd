/*
 * check_divided.c
 *		A set on several devices: which take part, what the budget is charged
 *		with, and a task that fails.  Sets of all kinds on several devices are
 *		in check_sets.c, builds in check_copies.c, other faults in
 *		check_faults.c.
 *
 * Servers here divide whatever can be (GPUVEC_DIVIDE).
 */
#include <unistd.h>

#include "client.h"

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

/* The bytes that a set is charged with in n tasks. */
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
		bytes += gv_set_size(&task);
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
check_memory(void)
{
	TestServer	server = server_start("--devices", "0,1,2", "--memory", "4",
									  NULL);
	OwnIndex	index = make_index(GV_L2, 64, 64, 100, 1, 750, false);
	GvMirrorKey keys[] = {test_key(1), test_key(2)};
	OwnSet		set = set_make(0);
	OwnSet		other = set_make(2);
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

/* Where the second or third call, a task's creation, finds no memory. */
static void
check_fewer_tasks(int n)
{
	char		fault[32];
	TestServer	server;
	OwnSet		set = set_make(0);
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
	static const char *const devices[] = {"0", "0,1", "3,5,4", "0,1,2,3"};
	int			i;

	setenv("GPUVEC_DIVIDE", "1", 1);
	for (i = 0; i < 4; i++)
	{
		TestServer	server = server_start("--devices", devices[i], NULL);

		check_few(&server);
		check_too_many(&server);
		server_end(&server);
	}
	check_memory();
	check_fewer_tasks(2);
	check_fewer_tasks(3);
	check_failed_task();
	unsetenv("GPUVEC_DIVIDE");
}
