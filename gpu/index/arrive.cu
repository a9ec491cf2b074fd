/*
 * arrive.cu
 *		Answers of a small batch, noticed as they arrive.
 *
 * When a graph is over, the device says so behind the last of its writes, and
 * the driver looks for that: some microseconds after the answers have crossed
 * the bus.  So the host looks at these.  Before the batch is launched it fills
 * the memory for them with words that no answer has, GV_ABSENT, and they are
 * there when none is left among those that count: how many those are stands in
 * GvFound, which is looked at first.  Each word is looked at, so nothing is
 * assumed of the order in which they come, nor does the device have to see to
 * one.
 *
 * A word that is meant to be GV_ABSENT, which only damaged row ids can have,
 * is never there, nor are those of a batch that fails.  So the stream is asked
 * now and then, too, and what it says counts.  Once the answers are there
 * steps have nothing left to read, and what they do besides touches the stream
 * alone.
 */
#include <stddef.h>
#include <string.h>

#include "gpu/index/gv_index.h"

#define GV_ABSENT		0xFFFFFFFFu	/* NaN, of scores and bounds */
#define TOGETHER		16		/* words that are looked at */
#define ASKED_EACH		50e-6	/* seconds from one question to the stream to
								 * the next */

/* Without what its size is rounded up by, which nobody writes. */
#define FOUND_WORDS		(offsetof(GvFound, nblocks) / 4 + 1)

/*
 * Before the launch of a batch: the answers of its first n searches will be
 * looked for.
 */
void
gv_gpu_expect(GvSearcher *searcher, const GvBatch *batch, int32_t n)
{
	GvCompletion *expected = &searcher->completion;
	size_t		nhits = (size_t) n * batch->capacity;

	memset(batch->out_found, 0xFF, n * sizeof(GvFound));
	memset(batch->out_probed, 0xFF, (size_t) n * batch->probes *
		   sizeof(GvProbe));
	memset(batch->out_hits, 0xFF, nhits * sizeof(GvHit));
	if (batch->out_bounds != NULL)
		memset(batch->out_bounds, 0xFF, nhits * sizeof(GvBound));
	expected->batch = *batch;
	expected->n = n;
	expected->query = 0;
	expected->words = 0;
	expected->asked = gv_seconds();
}

/*
 * Are n words there?  *first counts them, and goes on where it was.  Many are
 * looked at together, as compilers make vectors of them.
 */
static bool
are_there(const void *from, int64_t n, int64_t *first)
{
	const uint32_t *words = (const uint32_t *) from;

	/* the device writes there: nothing read before is true any more */
	__asm__ volatile("" ::: "memory");
	for (; *first + TOGETHER <= n; *first += TOGETHER)
	{
		uint32_t	absent = 0;

		for (int i = 0; i < TOGETHER; i++)
			absent |= words[*first + i] == GV_ABSENT;
		if (absent)
			return false;
	}
	while (*first < n && words[*first] != GV_ABSENT)
		++*first;
	return *first >= n;
}

/*
 * Is all of a search's answer there?  *words counts what is, from call to
 * call, 0 at first.
 */
extern "C" bool
gv_answer_is_complete(const GvAnswer *answer, int64_t *words)
{
	const GvFound *found = answer->found;
	int64_t		before = 0;

	if (*words < (int64_t) FOUND_WORDS && !are_there(found, FOUND_WORDS, words))
		return false;

	const struct
	{
		const void *from;
		size_t		words;
	}			arrays[] = {
		{found, FOUND_WORDS},
		{answer->probed, found->nprobed * (sizeof(GvProbe) / 4)},
		{answer->hits, found->nhits * (sizeof(GvHit) / 4)},
		{answer->bounds, answer->bounds == NULL ? 0 :
		found->nhits * (sizeof(GvBound) / 4)}
	};

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
	{
		int64_t		mine = *words - before;

		if (!are_there(arrays[i].from, (int64_t) arrays[i].words, &mine))
		{
			*words = before + mine;
			return false;
		}
		before += (int64_t) arrays[i].words;
		if (*words < before)
			*words = before;
	}
	return true;
}

/* All of the search that is looked for now? */
static bool
is_complete(GvCompletion *expected)
{
	const GvBatch *batch = &expected->batch;
	int64_t		query = expected->query;
	int64_t		first_hit = query * batch->capacity;
	GvAnswer	answer = {batch->out_found + query,
		batch->out_probed + query * batch->probes,
		(const GvHit *) batch->out_hits + first_hit,
		batch->out_bounds == NULL ? NULL : batch->out_bounds + first_hit};

	return gv_answer_is_complete(&answer, &expected->words);
}

/* Is a stream's work done, as far as who waits for it is concerned? */
bool
gv_gpu_is_complete(GvSearcher *searcher)
{
	GvCompletion *expected = &searcher->completion;
	cudaError_t error;
	double		now;

	if (expected->n > 0)
	{
		while (expected->query < expected->n && is_complete(expected))
		{
			expected->query++;
			expected->words = 0;
		}
		if (expected->query == expected->n)
		{
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			return true;
		}
		now = gv_seconds();
		if (now - expected->asked < ASKED_EACH)
			return false;
		expected->asked = now;
	}
	error = cudaStreamQuery(searcher->stream);
	if (error == cudaErrorNotReady)
	{
		(void) cudaGetLastError();	/* or the next launch reports it */
		return false;
	}
	/* done or failed, whatever has arrived: who waits is told which */
	expected->n = 0;
	return true;
}

/* Wait for a stream's work, and say whether it failed. */
GvStatus
gv_gpu_wait(GvSearcher *searcher)
{
	GvCompletion *expected = &searcher->completion;

	while (expected->n > 0 && !gv_gpu_is_complete(searcher))
		;
	return expected->n > 0 ? GV_OK :
		gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}

/* Wait for what a lane may still have to do, though its answers were there. */
GvStatus
gv_gpu_wait_whole(GvSearcher *searcher)
{
	if (searcher->completion.n == 0)
		return GV_OK;
	searcher->completion.n = 0;
	return gv_gpu_wait(searcher);
}
