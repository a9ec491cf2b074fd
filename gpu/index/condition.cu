/*
 * condition.cu
 *		Conditions on keys as devices see them, and what satisfies them on its
 *		way back.  table.cu brings them, keyscan.cu asks them.
 */
#include <string.h>

#include "gpu/common/common.cuh"
#include "gpu/index/give.cuh"
#include "gpu/index/gv_index.h"

#define THREADS			256

/* The conditions of n searches, and their ranks, to where the device looks. */
void
gv_gpu_upload_conditions(const GvBatch *batch, const GvSearch *searches,
					  int32_t n)
{
	GvDeviceTest *tests = (GvDeviceTest *) batch->in_tests;
	uint64_t   *values = (uint64_t *) batch->in_values;
	int32_t		nvalues = 0;

	memset(tests, 0, (size_t) batch->n * batch->tests * sizeof(GvDeviceTest));
	for (int32_t i = 0; batch->sampled && i < batch->n; i++)
		((GvRank *) batch->in_ranks)[i] = i >= n ? GvRank {0, 0.0f} :
			GvRank {searches[i].limited ? -1 : searches[i].rank,
				searches[i].limit};
	for (int32_t i = 0; i < n; i++)
	{
		const GvCondition *condition = searches[i].condition;
		GvDeviceTest *out = tests + (size_t) i * batch->tests;

		for (int32_t t = 0; condition != NULL && t < condition->ntests;
			 t++, out++)
		{
			const GvKeyTest *test = &condition->tests[t];
			const GvKeyForm *form = &condition->form;

			out->low = test->low;
			out->high = test->high;
			out->key = (uint8_t) test->key;
			out->kind = (uint8_t) test->kind;
			out->width = form->width[test->key];
			out->abbrevs_at = (int32_t) gv_keys_at(form, test->key);
			if (test->kind != GV_TEST_SET || test->nvalues == 0)
				continue;
			out->low = test->values[0];
			out->high = test->values[test->nvalues - 1];
			out->first = nvalues;
			out->nvalues = test->nvalues;
			memcpy(values + nvalues, test->values,
				   test->nvalues * sizeof(uint64_t));
			nvalues += test->nvalues;
		}
	}
}

/*
 * Query blockIdx.x: what gv_download_matches gives, and all the rest, where it
 * is still on the device.
 */
static __global__ void __launch_bounds__(THREADS)
download_matches_kernel(GvDeviceModel model, GvBatch batch)
{
	int			query = blockIdx.x;
	int64_t		first_hit = (int64_t) query * batch.capacity;
	GvFound		found;

	gv_step_begins();
	found = batch.d_found[query];
	gv_download_matches<THREADS>(batch, query, found);
	if (!batch.sampled || found.nprobed == 0 || batch.out_hits == batch.d_hits)
		return;
	gv_download_probes(batch, query, found.nprobed);
	for (int i = threadIdx.x; i < found.nhits; i += THREADS)
		batch.out_hits[first_hit + i] = batch.d_hits[first_hit + i];
	if (threadIdx.x == 0)
		batch.out_found[query] = found;
}

/* The last step of a batch with conditions, where bounds do not follow. */
GvStatus
gv_gpu_download_matches(const GvDeviceModel *model, const GvBatch *batch,
					cudaStream_t stream)
{
	return gv_launch_step(download_matches_kernel, batch->n, THREADS, 0,
						  stream,
						  model, batch);
}
