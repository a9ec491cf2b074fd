/*
 * broken.cu
 *		Linked into the gpuvecd of test/gpu/card_faults.pl, between the server
 *		and the wrappers of the engine (the linker's --wrap): when a file
 *		break.OPERATION is in the data directory, it is deleted, and a kernel
 *		writes where no memory is before that operation.  From then on every
 *		CUDA call of the process fails.
 */
#include <unistd.h>

#include "gpu/device/device.h"

static __global__ void
write_nowhere_kernel(int *d_nowhere)
{
	*d_nowhere = 1;
}

static void
break_if_wanted(const char *file)
{
	if (unlink(file) != 0)
		return;
	(void) gv_choose_device(0);
	(void) gv_launch(write_nowhere_kernel, 1, 32, 0, 0, (int *) 64);
}

extern "C"
{
extern GvStatus __real_gv_mirror_begin_shards(GvSearcher *const *searchers,
											  int32_t nshards,
											  GvMirror *mirror,
											  GvSearch *searches, int32_t n);
extern GvStatus __real_gv_mirror_put_list(GvMirror *mirror,
										  const GvListChunk *piece);

GvStatus
__wrap_gv_mirror_begin_shards(GvSearcher *const *searchers, int32_t nshards,
							  GvMirror *mirror, GvSearch *searches, int32_t n)
{
	break_if_wanted("break.search");
	return __real_gv_mirror_begin_shards(searchers, nshards, mirror, searches,
										 n);
}

GvStatus
__wrap_gv_mirror_put_list(GvMirror *mirror, const GvListChunk *piece)
{
	break_if_wanted("break.put_list");
	return __real_gv_mirror_put_list(mirror, piece);
}
}
