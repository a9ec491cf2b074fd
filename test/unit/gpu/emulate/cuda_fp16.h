/*
 * cuda_fp16.h
 *		Stands in for CUDA's header of that name: half precision in 16 bits of
 *		an integer, rounded to nearest, ties to even.
 */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include <cuda_runtime.h>

struct __half
{
	uint16_t	bits;
};

static inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
static inline uint16_t __half_as_ushort(__half value) { return value.bits; }

static inline float
__half2float(__half value)
{
	int			exponent = value.bits >> 10 & 31;
	int			fraction = value.bits & 1023;
	float		magnitude;

	if (exponent == 31)
		magnitude = fraction != 0 ? NAN : INFINITY;
	else if (exponent == 0)
		magnitude = ldexpf((float) fraction, -24);
	else
		magnitude = ldexpf((float) (fraction + 1024), exponent - 25);
	return value.bits & 0x8000 ? -magnitude : magnitude;
}

static inline __half
__float2half_rn(float value)
{
	uint16_t	sign = std::signbit(value) ? 0x8000 : 0;
	float		magnitude = fabsf(value);
	int			exponent;
	int			steps;

	if (std::isnan(value))
		return {0x7FFF};
	if (magnitude >= 65520.0f)
		return {(uint16_t) (sign | 0x7C00)};
	if (magnitude < 0x1p-14f)
		return {(uint16_t) (sign | (int) nearbyintf(ldexpf(magnitude, 24)))};
	(void) frexpf(magnitude, &exponent);
	/* 1024 .. 2048 steps of this power of two; 2048 is the next one's 1024 */
	steps = (int) nearbyintf(ldexpf(magnitude, 11 - exponent));
	return {(uint16_t) (sign | (((exponent + 14) << 10) + steps - 1024))};
}

#endif							/* CUDA_FP16_H */
