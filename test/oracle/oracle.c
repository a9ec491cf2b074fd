/*
 * oracle.c
 *		The engines of the test build: the portable one, and those of the
 *		release (server/engines.c).
 */
#include "engine/mirror/gv_engines.h"
#include "test/oracle/gv_oracle.h"

const GvEngine gv_engines[] = {
	{&gv_cpu_mirrors, &gv_cpu_builders, &gv_cpu_sets, true},
#ifdef GV_HAVE_CUDA
	{&gv_cuda_mirrors, &gv_cuda_builders, &gv_cuda_sets, false},
#endif
	{.mirrors = NULL}
};
