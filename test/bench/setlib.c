/*
 * setlib.c
 *		Exact search and k-means over sets, as a library for setlib.py: arrays of
 *		the host or, with an engine for cards, of the card.
 *
 * Functions return a GvStatus, but for set_open, which returns NULL if anything
 * fails.  They call the engine's table and not gv_set.c, which looks at items.
 */
#include <stdlib.h>

#include "engine/gv_set.h"
#include "engine/mirror/gv_mirror.h"

typedef struct Set
{
	const GvSetOps *ops;
	void	   *state;
	GvSetDone	done;
} Set;

/* Take the card, once, if there is an engine for it; a GvMatmulSetting. */
int32_t
set_begin(int32_t matmul)
{
	(void) matmul;
	gv_simd_use(GV_SIMD_AUTO);
#ifdef GV_HAVE_CUDA
	{
		static GvDevice devices[GV_MAX_DEVICES];
		int32_t		ndevices;

		gv_matmul_use((GvMatmulSetting) matmul);
		return gv_mirrors_open(&gv_cuda_mirrors, "0", devices, &ndevices);
	}
#else
	return GV_OK;
#endif
}

/*
 * A search among lists, or of all rows if nlists is 0; or, if nqueries is 0,
 * k-means.  By the card, if there is an engine for it.
 */
Set *
set_open(int32_t metric, int32_t dims, int32_t k, int32_t iterations,
		 int32_t self, int32_t nlists, int32_t probes, int64_t nqueries,
		 int64_t nrows)
{
	GvSetSpec	spec = {.kind = nqueries > 0 ? GV_SET_EXACT : GV_SET_KMEANS,
		.metric = metric,.dims = dims,.k = k,.iterations = iterations,
		.self = (uint8_t) self,.nlists = nlists,.probes = probes,
	.nqueries = nqueries,.nrows = nrows};
	Set		   *set = calloc(1, sizeof(Set));

	if (set == NULL)
		return NULL;
#ifdef GV_HAVE_CUDA
	set->ops = gv_cuda_sets.kinds[spec.kind];
#else
	set->ops = gv_cpu_sets.kinds[spec.kind];
#endif
	if (set->ops->create(&spec, &set->state) == GV_OK)
		return set;
	free(set);
	return NULL;
}

int32_t
set_put(Set *set, int32_t input, const void *items, int64_t first, int64_t n)
{
	return set->ops->put(set->state, (GvSetInput) input, items, first, n,
						 NULL);
}

/* One pass; *state is 0: go on, 1: put all rows again, 2: it has finished. */
int32_t
set_run(Set *set, double *error, int32_t *found, int32_t *state)
{
	GvStatus	status = set->ops->run(set->state, &set->done, NULL);

	*error = set->done.error;
	*found = set->done.found;
	*state = set->done.finished ? 2 : set->done.again;
	return status;
}

/* Items of the host's memory. */
int32_t
set_get(Set *set, int32_t output, int64_t first, int64_t n, void *items)
{
	return set->ops->get(set->state, (GvSetOutput) output, first, n, items);
}

void
set_drop(Set *set)
{
	set->ops->drop(set->state);
	free(set);
}
