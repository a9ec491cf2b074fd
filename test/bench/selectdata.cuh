/*
 * selectdata.cuh
 *		What is selected from, and how long a selection takes: the same for
 *		selectcard.cu and for the peer of selectpeer.cu.
 */
#ifndef SELECTDATA_CUH
#define SELECTDATA_CUH

#include <stdint.h>
#include <stdlib.h>

#include <cuda_runtime.h>

#define SELECT_REPEATS		11
#define SELECT_SLICE_US		2000.0f /* of calls between two events, about */
#define SELECT_MOST_CALLS	50

/* values [n], the same whatever the grid. */
static __global__ void
select_fill_kernel(float *values, int64_t n)
{
	int64_t		i = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;

	for (; i < n; i += (int64_t) gridDim.x * blockDim.x)
	{
		uint64_t	z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

		z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
		z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
		z ^= z >> 31;
		values[i] = (float) (z >> 40) / 16777216.0f;
	}
}

static int
compare_floats(const void *a, const void *b)
{
	float		x = *(const float *) a;
	float		y = *(const float *) b;

	return (x > y) - (x < y);
}

/*
 * Microseconds of one of the calls that `step` tells the stream: the median of
 * SELECT_REPEATS slices of calls in a row, each between two events.
 */
template <typename Step>
static cudaError_t
select_time(cudaStream_t stream, Step step, float *us)
{
	float		times[SELECT_REPEATS] = {};
	cudaEvent_t events[2] = {};
	cudaError_t error = cudaEventCreate(&events[0]);
	int			calls = 1;

	if (error == cudaSuccess)
		error = cudaEventCreate(&events[1]);
	for (int i = -2; i < SELECT_REPEATS && error == cudaSuccess; i++)
	{
		float		ms = 0.0f;

		(void) cudaEventRecord(events[0], stream);
		for (int c = 0; c < calls; c++)
			step();
		(void) cudaEventRecord(events[1], stream);
		error = cudaEventSynchronize(events[1]);
		if (error == cudaSuccess)
			error = cudaEventElapsedTime(&ms, events[0], events[1]);
		if (i >= 0)
			times[i] = ms * 1000 / calls;
		else
		{
			calls = (int) (SELECT_SLICE_US / (ms * 1000 / calls + 1));
			calls = calls < 1 ? 1 : calls > SELECT_MOST_CALLS ?
				SELECT_MOST_CALLS : calls;
		}
	}
	for (cudaEvent_t event : events)
		if (event != NULL)
			(void) cudaEventDestroy(event);
	qsort(times, SELECT_REPEATS, sizeof(float), compare_floats);
	*us = times[SELECT_REPEATS / 2];
	return error == cudaSuccess ? cudaGetLastError() : error;
}

#endif							/* SELECTDATA_CUH */
