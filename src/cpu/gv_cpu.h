/*
 * gv_cpu.h
 *		What all modules of the engine for processors share.
 */
#ifndef GV_CPU_H
#define GV_CPU_H

#include <stdlib.h>

#include "engine/gv_engine.h"

/* Work between two questions to the GvStop: multiplications, below 20 ms. */
#define GV_CPU_SLICE	(INT64_C(1) << 24)

/* Of arrays on the stack that kernels read and write by whole registers. */
#define GV_CPU_ALIGNED	__attribute__((aligned(GV_ALIGN)))

/* A GvStop and the work done since it was last asked. */
typedef struct GvPoll
{
	const GvStop *stop;			/* NULL: never */
	int64_t		work;
} GvPoll;

/* Count `work` multiplications; true when the caller must give up. */
static inline bool
gv_poll(GvPoll *poll, int64_t work)
{
	poll->work += work;
	if (poll->work < GV_CPU_SLICE || poll->stop == NULL)
		return false;
	poll->work = 0;
	return poll->stop->requested(poll->stop->arg);
}

/* splitmix64: the next 64 random bits. */
static inline uint64_t
gv_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* A random number below n, 1 <= n; the bias of 2^-64 n does no harm. */
static inline int64_t
gv_random_below(uint64_t *state, int64_t n)
{
	return (int64_t) (gv_random(state) % (uint64_t) n);
}

/* Round to float, values beyond its range to the largest of their sign. */
static inline float
gv_clamp(double value)
{
	if (value > (double) FLT_MAX)
		return FLT_MAX;
	if (value < -(double) FLT_MAX)
		return -FLT_MAX;
	return (float) value;
}

/* The score of an overflow or of NaN is GV_SCORE_MAX. */
static inline float
gv_score(float value)
{
	return value < GV_SCORE_MAX ? value : GV_SCORE_MAX;
}

/* Advance *next by `bytes` rounded up to GV_ALIGN; returns what it was. */
static inline size_t
gv_carve(size_t *next, size_t bytes)
{
	size_t		start = *next;

	*next += (bytes + GV_ALIGN - 1) / GV_ALIGN * GV_ALIGN;
	return start;
}

/* Memory for n elements, aligned as scratch has to be; NULL: there is none. */
static inline void *
gv_cpu_take(int64_t n, size_t bytes)
{
	void	   *memory;

	if (posix_memalign(&memory, GV_ALIGN, (size_t) n * bytes + 1) != 0)
		return NULL;
	return memory;
}

#endif							/* GV_CPU_H */
