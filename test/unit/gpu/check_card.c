/*
 * check_card.c
 *		The CUDA engine's mirrors and builders against the portable engine: the
 *		checks of test/unit/engine/check_mirror*.c and check_builder*.c, on a
 *		card or, with the headers of emulate/ in the place of CUDA's, on
 *		emulated threads.
 *
 * Needs no server.  Prints what fails and "card: N passed, M failed".
 */
#include "engine/gv_mirror.h"

#include "../engine/unit.h"

long		unit_passed;
long		unit_failed;
uint64_t	unit_seed = 1;
bool		unit_small;

extern void gv_gpu_near_from(int64_t terms);	/* gpu/gv_cuda.h */

/* A look-up table that no block of threads has room for. */
static void
test_long_table(void)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = 8000,.m = 8000,.nlists = 1,
	.nparents = 1,.copies = 1};
	GvMirror   *mirror = NULL;

	CHECK(gv_mirror_size(&spec) == INT64_MAX, "size");
	CHECK(gv_mirror_create(&spec, &mirror) == GV_NO_MEMORY && mirror == NULL,
		  "create");
}

int
main(void)
{
	unit_small = getenv("GPUVEC_UNIT_SMALL") != NULL;
	test_mirror();
	test_long_table();
	unit_seed = 1;				/* models vary in quality with it */
	gv_gpu_near_from(0);		/* few terms, but by the way of many */
	test_builder();
	printf("card: %ld passed, %ld failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}
