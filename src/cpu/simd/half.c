/*
 * half.c
 *		Conversion of float32 to half precision and back, by integer
 *		arithmetic.
 */
#include <string.h>

#include "engine/gv_engine.h"

#define HALF_MAX	0x7BFF		/* 65504, the largest finite value */

static uint16_t
to_half(float x)
{
	uint32_t	bits;
	uint32_t	sign;
	uint32_t	value;
	uint32_t	half;
	uint32_t	rest;
	int			shift;

	memcpy(&bits, &x, sizeof(bits));
	sign = bits >> 16 & 0x8000;
	value = bits & 0x7FFFFFFF;
	if (value >= 0x47800000)	/* from 65536 on; also infinity and NaN */
		return (uint16_t) (sign | HALF_MAX);
	if (value < 0x33000000)		/* below half of the smallest value */
		return (uint16_t) sign;

	/* drop 13 bits of the mantissa, or more if the result is subnormal */
	if (value >= 0x38800000)
	{
		shift = 13;
		value -= 0x38000000;	/* 112 << 23, the difference of the biases */
	}
	else
	{
		shift = 126 - (int) (value >> 23);
		value = (value & 0x7FFFFF) | 0x800000;
	}
	half = value >> shift;
	rest = value & ((UINT32_C(1) << shift) - 1);
	if (rest > UINT32_C(1) << (shift - 1) ||
		(rest == UINT32_C(1) << (shift - 1) && (half & 1) != 0))
		half++;
	return (uint16_t) (sign | (half < HALF_MAX ? half : HALF_MAX));
}

static float
from_half(uint16_t half)
{
	uint32_t	sign = (uint32_t) (half & 0x8000) << 16;
	uint32_t	value = half & 0x7FFF;
	uint32_t	bits;
	float		x;

	if (value < 0x400)			/* subnormal: value * 2^-24 */
	{
		x = (float) value * (1.0f / 16777216.0f);
		return sign != 0 ? -x : x;
	}
	bits = sign | ((value << 13) + 0x38000000);
	memcpy(&x, &bits, sizeof(x));
	return x;
}

void
gv_to_half(const float *x, int64_t n, uint16_t *half)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		half[i] = to_half(x[i]);
}

void
gv_from_half(const uint16_t *half, int64_t n, float *x)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		x[i] = from_half(half[i]);
}
