/*
 * cardtime.cuh
 *		What the programs for a card share: how long a step takes, and calls that
 *		must not fail.
 */
#ifndef CARDTIME_CUH
#define CARDTIME_CUH

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include <cuda_runtime.h>

#define CARD_REPEATS	11		/* of which the median counts */
#define CARD_SLICE_US	2000.0f /* of calls between two events, about */
#define CARD_MOST_CALLS	50

static inline void
need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

#define NEED(call)	need((call) == cudaSuccess, #call)

/*
 * Microseconds of one of the calls that `step` tells the stream: the median of
 * CARD_REPEATS slices of calls in a row, each between two events.
 */
template <typename Step>
static inline float
card_time(cudaStream_t stream, Step step)
{
	float		times[CARD_REPEATS];
	cudaEvent_t begin;
	cudaEvent_t end;
	int			calls = 1;

	NEED(cudaEventCreate(&begin));
	NEED(cudaEventCreate(&end));
	/* the first slice loads kernels, the second tells how many calls fit in one */
	for (int i = -2; i < CARD_REPEATS; i++)
	{
		float		ms;

		NEED(cudaEventRecord(begin, stream));
		for (int c = 0; c < calls; c++)
			step();
		NEED(cudaEventRecord(end, stream));
		NEED(cudaEventSynchronize(end));
		NEED(cudaEventElapsedTime(&ms, begin, end));
		if (i >= 0)
			times[i] = ms * 1000 / calls;
		else
			calls = std::clamp((int) (CARD_SLICE_US / (ms * 1000 / calls + 1)),
							   1, CARD_MOST_CALLS);
	}
	NEED(cudaEventDestroy(begin));
	NEED(cudaEventDestroy(end));
	NEED(cudaGetLastError());
	std::sort(times, times + CARD_REPEATS);
	return times[CARD_REPEATS / 2];
}

#endif							/* CARDTIME_CUH */
