/*
 * condition.cu
 *		Conditions on keys on their way to the card, and what fulfils them on its
 *		way back.  condition.cuh asks them.
 */
#include <string.h>

#include "gpu/common/common.cuh"
#include "gpu/index/gv_index.h"

#define THREADS			256

/* A bit for each of a set's hashes. */
static uint64_t
hash_bits(const GvKeyTest *test)
{
	uint64_t	bits = 0;

	for (int32_t v = 0; v < test->nvalues; v++)
		bits |= (uint64_t) 1 << test->values[v] % 64;
	return bits;
}

/* What heads tell of a test of an ordered key, a hash, or a signature. */
static void
put_head_test(const GvKeyTest *test, int kind, GvCardTest *out)
{
	if (test->kind == GV_TEST_NULL)
		out->head = GV_HEAD_NULLS;
	else if (test->kind == GV_TEST_NOT_NULL)
		out->head = GV_HEAD_SOME;
	else if (kind == GV_KEY_ORDERED)
	{
		out->head = GV_HEAD_RANGE;
		if (test->kind == GV_TEST_SET && test->nvalues > 0)
		{
			out->low = test->values[0];
			out->high = test->values[test->nvalues - 1];
		}
	}
	else if (kind == GV_KEY_HASH)
	{
		out->head = GV_HEAD_ANY_BIT;
		out->bits = test->kind == GV_TEST_SET ? hash_bits(test) :
			(uint64_t) 1 << test->low % 64;
	}
	else
	{
		out->head = test->kind == GV_TEST_ANY_BIT ? GV_HEAD_ANY_BIT :
			GV_HEAD_ALL_BITS;
		out->bits = test->low;
	}
}

/* The conditions of n searches to where the card looks. */
void
gv_gpu_put_conditions(const GvBatch *batch, const GvSearch *searches,
					  int32_t n)
{
	GvCardTest *tests = (GvCardTest *) batch->in_tests;
	uint64_t   *values = (uint64_t *) batch->in_values;
	int32_t		nvalues = 0;

	memset(tests, 0, (size_t) batch->n * batch->tests * sizeof(GvCardTest));
	for (int32_t i = 0; i < n; i++)
	{
		const GvCondition *condition = searches[i].condition;
		GvCardTest *out = tests + (size_t) i * batch->tests;

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
			out->images = (int32_t) gv_keys_at(form, test->key);
			put_head_test(test, form->kind[test->key], out);
			if (test->kind != GV_TEST_SET || test->nvalues == 0)
				continue;
			out->first = nvalues;
			out->nvalues = test->nvalues;
			memcpy(values + nvalues, test->values,
				   test->nvalues * sizeof(uint64_t));
			nvalues += test->nvalues;
		}
	}
}

/*
 * Tests and values from the host's memory to the card's, 8 bytes a thread, and
 * no matches and no scores of them yet.
 */
static __global__ void __launch_bounds__(THREADS)
bring_kernel(GvCardModel card, GvBatch batch)
{
	int64_t		step = (int64_t) gridDim.x * THREADS;
	int64_t		me = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		nwords = (int64_t) batch.n * batch.tests *
		(sizeof(GvCardTest) / 8);

	for (int64_t i = me; i < nwords; i += step)
		((uint64_t *) batch.d_tests)[i] = ((const uint64_t *) batch.in_tests)[i];
	for (int64_t i = me; i < batch.values; i += step)
		batch.d_values[i] = batch.in_values[i];
	for (int64_t i = me; i < (int64_t) batch.n * batch.probes; i += step)
		batch.d_matches[i] = 0;
	for (int64_t i = me; i < batch.n; i += step)
		batch.d_kept[i] = 0;
}

/* d_tests, d_values, d_matches and d_kept of a batch with conditions. */
GvStatus
gv_gpu_bring_conditions(const GvCardModel *card, const GvBatch *batch,
						cudaStream_t stream)
{
	int64_t		words = (int64_t) batch->n *
		(batch->tests * (sizeof(GvCardTest) / 8) + batch->probes) +
		batch->values;
	int64_t		nblocks = (words + THREADS - 1) / THREADS;

	GV_LAUNCH(bring_kernel, (unsigned) (nblocks < 128 ? nblocks : 128),
			  THREADS, 0, stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}

/* The matches of query blockIdx.x's probes. */
static __global__ void __launch_bounds__(THREADS)
give_matches_kernel(GvCardModel card, GvBatch batch)
{
	int64_t		first = (int64_t) blockIdx.x * batch.probes;
	int			nprobed = batch.d_found[blockIdx.x].nprobed;

	for (int p = threadIdx.x; p < nprobed; p += THREADS)
		batch.out_matches[first + p] = batch.d_matches[first + p];
}

/* out_matches of a batch with conditions; the last step. */
GvStatus
gv_gpu_give_matches(const GvCardModel *card, const GvBatch *batch,
					cudaStream_t stream)
{
	GV_LAUNCH(give_matches_kernel, batch->n, THREADS, 0, stream, *card,
			  *batch);
	return gv_cuda_status(cudaGetLastError());
}
