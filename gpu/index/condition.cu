/*
 * condition.cu
 *		Conditions on keys on their way to the card, and what fulfils them on its
 *		way back.  condition.cuh asks them.
 */
#include <string.h>

#include "gpu/common/common.cuh"
#include "gpu/index/give.cuh"
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

/* The conditions of n searches, and their ranks, to where the card looks. */
void
gv_gpu_put_conditions(const GvBatch *batch, const GvSearch *searches,
					  int32_t n)
{
	GvCardTest *tests = (GvCardTest *) batch->in_tests;
	uint64_t   *values = (uint64_t *) batch->in_values;
	int32_t		nvalues = 0;

	memset(tests, 0, (size_t) batch->n * batch->tests * sizeof(GvCardTest));
	for (int32_t i = 0; batch->sampled && i < batch->n; i++)
		((int32_t *) batch->in_ranks)[i] = i < n ? searches[i].rank : 0;
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
 * Tests, values and ranks from the host's memory to the card's, and no matches,
 * no scores of them and no sample yet.
 */
static __global__ void __launch_bounds__(THREADS)
bring_kernel(GvCardModel card, GvBatch batch)
{
	int64_t		step = (int64_t) gridDim.x * THREADS;
	int64_t		me = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		nwords = (int64_t) batch.n * batch.tests *
		(sizeof(GvCardTest) / 8);

	gv_let_next_begin();
	for (int64_t i = me; i < nwords; i += step)
		((uint64_t *) batch.d_tests)[i] = ((const uint64_t *) batch.in_tests)[i];
	for (int64_t i = me; i < batch.values; i += step)
		batch.d_values[i] = batch.in_values[i];
	for (int64_t i = me; i < (int64_t) batch.n * batch.probes; i += step)
		batch.d_matches[i] = 0;
	for (int64_t i = me; i < batch.n; i += step)
	{
		batch.d_kept[i] = 0;
		if (batch.sampled)
		{
			batch.d_ranks[i] = batch.in_ranks[i];
			batch.d_nsampled[i] = 0;
		}
	}
}

/* What scans need of a batch with conditions. */
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

/*
 * By all threads of a block: how many copies of each sampled block, of a query's
 * nblocks, are not beyond `last`, a warp a block.  The first thread has the
 * result.
 */
static __device__ __forceinline__ GvNear
count_near(const GvBatch &batch, int query, uint32_t nblocks, float last)
{
	constexpr int warps = THREADS / GV_WARP;
	__shared__ GvNear counted[warps];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const float *scores = batch.d_sampled + (int64_t) query * batch.copies +
		lane;
	GvNear		near = {};

#pragma unroll 4
	for (uint32_t b = warp; b < nblocks; b += warps)
	{
		int			count = __popc(__ballot_sync(GV_FULL_WARP,
												 scores[(int64_t) b * GV_WARP] <=
												 last));

		near.copies += count;
		near.squares += count * count;
	}
	if (lane == 0)
		counted[warp] = near;
	__syncthreads();
	near = counted[0];
	for (int w = 1; w < warps; w++)
	{
		near.copies += counted[w].copies;
		near.squares += counted[w].squares;
	}
	return near;
}

/*
 * Query blockIdx.x: the matches of its probes; of the sample what is as near as
 * its hit number `rank`; and all the rest, where it is still on the card.
 */
static __global__ void __launch_bounds__(THREADS)
give_matches_kernel(GvCardModel card, GvBatch batch)
{
	int			query = blockIdx.x;
	int64_t		first_probe = (int64_t) query * batch.probes;
	int64_t		first_hit = (int64_t) query * batch.capacity;
	GvFound		found;
	GvNear		near = {};
	int			rank;

	gv_step_begins();
	found = batch.d_found[query];
	for (int p = threadIdx.x; p < found.nprobed; p += THREADS)
		batch.out_matches[first_probe + p] = batch.d_matches[first_probe + p];
	/* a batch's spare places are the next part's in the host's memory */
	if (!batch.sampled || found.nprobed == 0)
		return;
	rank = batch.d_ranks[query];
	if (rank > 0 && found.nhits >= rank)
		near = count_near(batch, query, batch.d_nsampled[query],
						  __uint_as_float(batch.d_hits[first_hit + rank -
													   1].x));
	if (threadIdx.x == 0)
		batch.out_near[query] = near;
	if (batch.out_bounds != NULL || batch.out_hits == batch.d_hits)
		return;
	gv_give_probes(batch, query, found.nprobed);
	for (int i = threadIdx.x; i < found.nhits; i += THREADS)
		batch.out_hits[first_hit + i] = batch.d_hits[first_hit + i];
	if (threadIdx.x == 0)
		batch.out_found[query] = found;
}

/* The last step of a batch with conditions. */
GvStatus
gv_gpu_give_matches(const GvCardModel *card, const GvBatch *batch,
					cudaStream_t stream)
{
	return gv_launch_step(give_matches_kernel, batch->n, THREADS, 0, stream,
						  card, batch);
}
