/*
 * check_server.c
 *		gpuvecd, from outside: every rule of its protocol, and every way to
 *		disturb it.
 *
 * Runs the gpuvecd that GPUVECD names, or the one beside this program, in
 * temporary folders; with the engine that GPUVEC_UNIT_ENGINE names, cpu if none
 * is.  Of another one, what depends on the portable engine's sizes and numbers,
 * or only on the server, is left out.  Prints what fails and "check_server: N passed, M
 * failed".
 */
#include <signal.h>

#include "client.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 20;
bool		unit_small;
bool		test_long;
const char *test_engine = "cpu";
bool		test_card;

int
main(void)
{
	const char *full = getenv("GPUVEC_TEST_LONG");

	signal(SIGPIPE, SIG_IGN);
	setenv("GPUVEC_FAULTS", "1", 1);
	unit_small = getenv("GPUVEC_UNIT_SMALL") != NULL;
	test_long = full != NULL && *full != '\0';
	if (getenv("GPUVEC_UNIT_ENGINE") != NULL)
		test_engine = getenv("GPUVEC_UNIT_ENGINE");
	test_card = strcmp(test_engine, "cpu") != 0;
	test_lock_begin();
	test_rules();
	test_searches();
	test_loading();
	test_shared();
	test_following();
	test_versions();
	test_sets();
	if (!test_card)
	{
		test_budget();
		test_devices();
		test_builders();
		test_joins();
		test_wrong_sets();
		test_life();
		test_faults();
	}
	if (test_card)
		test_lost_cards();
	test_fuzz();
	test_lock_end();
	printf("check_server: %ld passed, %ld failed\n", unit_passed,
		   unit_failed);
	return unit_failed > 0;
}
