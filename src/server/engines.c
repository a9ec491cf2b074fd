/*
 * engines.c
 *		The engines of the release: CUDA, where it is compiled, or none.
 */
#include "engine/mirror/gv_engines.h"

const GvEngine gv_engines[] = {
#ifdef GV_HAVE_CUDA
	{&gv_cuda_mirrors, &gv_cuda_builders, &gv_cuda_sets, false},
#endif
	{.mirrors = NULL}
};
