/*
 * check_server.c
 *		gpuvecd, from outside: every rule of its protocol, and every way to
 *		disturb it.
 *
 * Runs the gpuvecd that GPUVECD names, or the one beside this program, in
 * temporary folders; with the engine that GPUVEC_UNIT_ENGINE names, cpu if
 * none is.  Of another one, what depends on the portable engine's sizes and
 * numbers, or only on the server, is left out.  Names of tests leave out all
 * others; GPUVEC_UNIT_SMALL makes all of them small, GPUVEC_UNIT_SMALL_TESTS
 * those that it names; "--bench DEVICES..." measures work that is divided
 * (bench_divided.c), "--bench-loop MS SESSIONS HITS" the loop
 * (bench_loop.c).  Prints what fails and "check_server: N passed, M failed".
 * A test that does not end is named, and ends the program.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 20;
bool		unit_small;
bool		test_long;
const char *test_engine = "cpu";
bool		test_device;

/* On which engine a test is run. */
typedef enum On
{
	ON_ALL,
	ON_CPU,
	ON_DEVICE
}			On;

static const struct
{
	const char *name;
	void		(*run) (void);
	On			on;
}			tests[] = {
	{"rules", test_rules, ON_ALL},
	{"wrong", test_wrong, ON_ALL},
	{"searches", test_searches, ON_ALL},
	{"loading", test_loading, ON_ALL},
	{"rows", test_rows_sent, ON_ALL},
	{"shared", test_shared, ON_ALL},
	{"mailboxes", test_mailboxes, ON_ALL},
	{"following", test_following, ON_ALL},
	{"versions", test_versions, ON_ALL},
	{"sets", test_sets, ON_ALL},
	{"devices", test_devices, ON_CPU},
	{"parts", test_parts, ON_CPU},
	{"builders", test_builders, ON_CPU},
	{"joins", test_joins, ON_CPU},
	{"divided", test_divided, ON_CPU},
	{"copies", test_copies, ON_CPU},
	{"life", test_life, ON_CPU},
	{"lives", test_incarnations, ON_ALL},
	{"folders", test_folders, ON_CPU},
	{"faults", test_faults, ON_CPU},
	{"starved", test_starved, ON_CPU},
	{"lost_cards", test_lost_devices, ON_DEVICE},
	{"slots", test_slots, ON_CPU},
	{"placements", test_placements, ON_CPU},
	{"fuzz", test_fuzz, ON_ALL},
};

#define NTESTS	((int) (sizeof(tests) / sizeof(tests[0])))

/* Of a test, under valgrind and beside others; at small size. */
#define LIMIT_S			7200
#define LIMIT_SMALL_S	600

static const char *volatile running = "";

static void
stop_endless(int signal_number)
{
	const char *words[] = {"check_server: the test ", running,
	" does not end\n"};
	size_t		i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (write(STDERR_FILENO, words[i], strlen(words[i])) < 0)
			break;
	_exit(1);
}

/* Is a test, or "" for all of them, to have its small size? */
static bool
is_small(const char *name)
{
	const char *names = getenv("GPUVEC_UNIT_SMALL_TESTS");

	return getenv("GPUVEC_UNIT_SMALL") != NULL ||
		(names != NULL && *name != '\0' && strstr(names, name) != NULL);
}

int
main(int argc, char **argv)
{
	const char *full = getenv("GPUVEC_TEST_LONG");
	int			nrun = 0;
	int			i;

	/* what failed is to be seen, however this ends */
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, stop_endless);
	unit_small = is_small("");
	test_long = full != NULL && *full != '\0';
	if (getenv("GPUVEC_UNIT_ENGINE") != NULL)
		test_engine = getenv("GPUVEC_UNIT_ENGINE");
	test_device = strcmp(test_engine, "cpu") != 0;
	if (argc > 2 && strcmp(argv[1], "--bench") == 0)
	{
		bench_divided(argc - 2, argv + 2);
		return unit_failed > 0;
	}
	if (argc == 5 && strcmp(argv[1], "--bench-loop") == 0)
	{
		bench_loop(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
		return unit_failed > 0;
	}
	test_lock_begin();
	for (i = 0; i < NTESTS; i++)
		if (tests[i].on != (test_device ? ON_CPU : ON_DEVICE) &&
			unit_is_wanted(argc, argv, tests[i].name))
		{
			running = tests[i].name;
			unit_small = is_small(tests[i].name);
			alarm(unit_small ? LIMIT_SMALL_S : LIMIT_S);
			tests[i].run();
			nrun++;
		}
	CHECK(nrun > 0, "no test of that name");
	test_lock_end();
	printf("check_server: %ld passed, %ld failed\n", unit_passed,
		   unit_failed);
	return unit_failed > 0;
}
