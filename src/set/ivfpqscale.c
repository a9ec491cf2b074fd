/*
 * ivfpqscale.c
 *		Vectors whose squared distances single precision cannot hold.
 *
 * k-means squares distances in single precision.  Where these would overflow,
 * or be lost below its smallest numbers, vectors go to the engine times a
 * power of two, and centroids come back without it.
 */
#include "postgres.h"

#include <math.h>

#include "set/ivfpqset.h"

/*
 * Largest elements are below 2 to the power of this.  With MOST_EXPONENT, at
 * 16,000 dimensions, squared distances are less than 2^126; with
 * LEAST_EXPONENT those of elements that differ by the last bit of the largest
 * are 2^-126.
 */
#define MOST_EXPONENT	55
#define LEAST_EXPONENT	(-39)

/* The largest of n numbers, without their signs, and one known before. */
float
IvfpqLargest(const float *numbers, int64 n, float largest)
{
	for (int64 i = 0; i < n; i++)
		largest = Max(largest, fabsf(numbers[i]));
	return largest;
}

/*
 * The exponent of the power of two for vectors with that largest element,
 * mostly 0.  No more than is needed where they are too large, because small
 * elements lose bits by it; those that are all small lose none.
 */
int
IvfpqScaleFor(float largest)
{
	int			exponent;

	(void) frexp(largest, &exponent);
	if (exponent > MOST_EXPONENT)
		return MOST_EXPONENT - exponent;
	if (exponent < LEAST_EXPONENT)
		return -exponent;
	return 0;
}

/* n numbers times a power of two; to may be from. */
void
IvfpqScale(const float *from, int64 n, int exponent, float *to)
{
	double		factor = ldexp(1.0, exponent);

	for (int64 i = 0; i < n; i++)
		to[i] = (float) (from[i] * factor);
}
