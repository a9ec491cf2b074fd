/*
 * cpu.h
 *		Functions that all modules of the engine for processors share.
 */
#ifndef GV_CPU_H
#define GV_CPU_H

#include <stdlib.h>

#include "engine/gv_engine.h"

/*
 * Number of multiplications between two polls of a GvStop.  They take less
 * than 20 ms.
 */
#define GV_CPU_SLICE	(INT64_C(1) << 24)

/*
 * Aligns arrays on the stack that kernels read and write in whole registers.
 */
#define GV_CPU_ALIGNED	__attribute__((aligned(GV_ALIGN)))

/* A GvStop, and the number of multiplications since it was last polled. */
typedef struct GvPoll
{
	const GvStop *stop;			/* NULL: the call is never stopped */
	int64_t		work;
} GvPoll;

/*
 * Counts `work` more multiplications, and polls the GvStop if GV_CPU_SLICE of
 * them have been done since the last poll.  Returns true if the caller must
 * give up.  Other functions that take a GvPoll and return bool return false in
 * that case.
 */
static inline bool
gv_poll(GvPoll *poll, int64_t work)
{
	poll->work += work;
	if (poll->work < GV_CPU_SLICE || poll->stop == NULL)
		return false;
	poll->work = 0;
	return poll->stop->requested(poll->stop->arg);
}

/* Returns the next 64 random bits, by splitmix64. */
static inline uint64_t
gv_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/*
 * Returns a random number below n, n >= 1.  The bias of 2^-64 n does no harm.
 */
static inline int64_t
gv_random_below(uint64_t *state, int64_t n)
{
	return (int64_t) (gv_random(state) % (uint64_t) n);
}

/*
 * Rounds to float.  A value beyond the range of float becomes the largest
 * float with its sign.
 */
static inline float
gv_clamp(double value)
{
	if (value > (double) FLT_MAX)
		return FLT_MAX;
	if (value < -(double) FLT_MAX)
		return -FLT_MAX;
	return (float) value;
}

/*
 * Returns the score for a value: GV_SCORE_MAX if the value is NaN or has
 * overflowed, else the value.
 */
static inline float
gv_score(float value)
{
	return value < GV_SCORE_MAX ? value : GV_SCORE_MAX;
}

/*
 * Returns the memory at offset *next of `scratch`, and advances *next by
 * `bytes`, rounded up to a multiple of GV_ALIGN.  Returns NULL if `scratch` is
 * NULL, so that a function that lays out memory can also be called to compute
 * only the size of that memory.
 */
static inline void *
gv_carve(char *scratch, size_t *next, size_t bytes)
{
	char	   *start = scratch == NULL ? NULL : scratch + *next;

	*next += (bytes + GV_ALIGN - 1) / GV_ALIGN * GV_ALIGN;
	return start;
}

/*
 * Returns the smaller of `left`, the number of elements that remain, and
 * `most`, the number of elements that are processed at a time.
 */
static inline int
gv_at_most(int64_t left, int most)
{
	return left < most ? (int) left : most;
}

/*
 * Allocates memory for n elements of `bytes` bytes each, aligned to GV_ALIGN
 * as scratch must be.  Returns NULL if out of memory.
 */
static inline void *
gv_cpu_take(int64_t n, size_t bytes)
{
	void	   *memory;

	if (posix_memalign(&memory, GV_ALIGN, (size_t) n * bytes + 1) != 0)
		return NULL;
	return memory;
}

#endif							/* GV_CPU_H */
