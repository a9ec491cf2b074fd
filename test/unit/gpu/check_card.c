/*
 * check_card.c
 *		The CUDA engine's mirrors and builders against the portable engine: the
 *		checks of test/unit/engine/check_mirror*.c and check_builder*.c, on a
 *		card or, with the headers of emulate/ in the place of CUDA's, on
 *		emulated threads.
 *
 * Needs no server.  Prints what fails and "card: N passed, M failed".
 */
#include "../engine/unit.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 1;
bool		unit_small;

extern void gv_gpu_near_from(int64_t terms);	/* gpu/gv_cuda.h */

int
main(void)
{
	unit_small = getenv("GPUVEC_UNIT_SMALL") != NULL;
	test_mirror();
	unit_seed = 1;				/* models vary in quality with it */
	gv_gpu_near_from(0);		/* few terms, but by the way of many */
	test_builder();
	printf("card: %ld passed, %ld failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}
