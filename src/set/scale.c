/*
 * scale.c
 *		Vectors whose squared distances single precision cannot hold.
 *
 * k-means squares distances in single precision.  Where these would overflow,
 * or be lost below its smallest numbers, vectors go to the engine times a
 * power of two, and centroids come back without it.
 */
#include "postgres.h"

#include <math.h>

#include "set/set.h"

/*
 * Elements should be below 2 to the power of this: with MOST_EXPONENT, at
 * 16,000 dimensions, squared distances are less than 2^126.  With
 * LEAST_EXPONENT those of elements that differ by the last bit are 2^-126.
 */
#define MOST_EXPONENT	55
#define LEAST_EXPONENT	(-39)

/* Note one more vector. */
void
IvfpqMagnitudeNote(IvfpqMagnitude *magnitude, const float *vector, int dims)
{
	float		largest = 0.0f;
	int			exponent;

	for (int i = 0; i < dims; i++)
		largest = Max(largest, fabsf(vector[i]));
	if (largest == 0.0f)
		return;
	(void) frexp(largest, &exponent);
	magnitude->most = magnitude->n == 0 ? exponent :
		Max(magnitude->most, exponent);
	magnitude->sum += exponent;
	magnitude->n++;
}

/*
 * The exponent of the power of two for such vectors, mostly 0.  Too large ones
 * become no smaller than is needed, for small elements lose bits by it, nor so
 * small that an average vector is lost; then the largest ones overflow.  Too
 * small ones grow, as long as the largest allows.
 */
int
IvfpqMagnitudeScale(const IvfpqMagnitude *magnitude)
{
	int			headroom = MOST_EXPONENT - magnitude->most;
	int			average;

	if (magnitude->n == 0)
		return 0;
	average = (int) (magnitude->sum / magnitude->n);
	if (headroom < 0)
		return Max(headroom, Min(LEAST_EXPONENT - average, 0));
	if (average < LEAST_EXPONENT)
		return Min(-average, headroom);
	return 0;
}

/* n numbers times a power of two; to may be from, which costs nothing by 1. */
void
IvfpqScale(const float *from, int64 n, int exponent, float *to)
{
	double		factor = ldexp(1.0, exponent);

	if (exponent == 0 && to == from)
		return;
	for (int64 i = 0; i < n; i++)
		to[i] = (float) (from[i] * factor);
}
