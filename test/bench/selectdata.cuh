/*
 * selectdata.cuh
 *		What selectcard.cu and the peer of selectpeer.cu select from.
 */
#ifndef SELECTDATA_CUH
#define SELECTDATA_CUH

#include <stdint.h>

#include "cardtime.cuh"

enum SelectValues
{
	UNIFORM,					/* from 0 to 1 */
	ALIKE,						/* from 16 to 20: 11 bits are the same */
	FEW							/* 16 distinct ones */
};

/* values [n], the same whatever the grid. */
static __global__ void
select_fill_kernel(float *values, int64_t n, SelectValues kind)
{
	int64_t		i = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;

	for (; i < n; i += (int64_t) gridDim.x * blockDim.x)
	{
		uint64_t	z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

		z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
		z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
		z ^= z >> 31;
		values[i] = (float) (z >> 40) / 16777216.0f;
		if (kind == ALIKE)
			values[i] = 16.0f + 4.0f * values[i];
		else if (kind == FEW)
			values[i] = floorf(16.0f * values[i]);
	}
}

#endif							/* SELECTDATA_CUH */
