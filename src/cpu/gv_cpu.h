/*
 * gv_cpu.h
 *		The CPU backend: its operations and what they share.
 *
 * The operations fill the slots of gv_cpu_backend and keep the contracts of
 * engine/gv_engine.h; their arguments were checked by the gv_... wrappers.
 * What their time goes into are the kernels of gv_kernels.h.
 */
#ifndef GV_CPU_H
#define GV_CPU_H

#include <stdlib.h>

#include "engine/gv_engine.h"

/* Work between two questions to the GvStop: multiplications, below 20 ms. */
#define GV_CPU_SLICE	(INT64_C(1) << 24)

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

/* The slots of gv_cpu_backend. */
extern size_t gv_cpu_kmeans_scratch(const GvKmeans *spec);
extern GvStatus gv_cpu_kmeans(const GvKmeans *spec, const float *x,
							  float *centroids, int32_t *found,
							  void *scratch, const GvStop *stop);
extern size_t gv_cpu_codebooks_scratch(int32_t dims, int32_t m, int64_t n);
extern GvStatus gv_cpu_codebooks(int32_t dims, int32_t m, int64_t n,
								 const float *residuals, uint64_t seed,
								 float *codebooks, void *scratch,
								 const GvStop *stop);
extern GvStatus gv_cpu_assign(int32_t dims, const float *centroids, int32_t k,
							  const float *x, int64_t n, int32_t *nearest,
							  float *sqdist, const GvStop *stop);
extern size_t gv_cpu_place_scratch(const GvTree *tree, int64_t n);
extern GvStatus gv_cpu_place(const GvTree *tree, const float *x, int64_t n,
							 int32_t copies, int32_t *lists, void *scratch,
							 const GvStop *stop);
extern int32_t gv_cpu_soar(int32_t dims, const float *x, const float *first,
						   const float *const *others, int32_t n);
extern GvStatus gv_cpu_encode(const GvModel *model, const float *x,
							  const float *centroids, const int32_t *lists,
							  int64_t n, int32_t copies, uint8_t *codes,
							  float *t);
extern GvStatus gv_cpu_coarse(const GvModel *model, const float *query,
							  const float *centroids, int32_t n,
							  uint64_t first_id, GvTopK *best);
extern GvStatus gv_cpu_table(const GvModel *model, const float *query,
							 float *table);
extern size_t gv_cpu_scan_scratch(int32_t m, int32_t capacity);
extern GvStatus gv_cpu_scan_begin(GvScan *scan);
extern GvStatus gv_cpu_scan(GvScan *scan, float base, const GvBlock *blocks,
							int32_t nblocks);
extern GvStatus gv_cpu_scan_finish(GvScan *scan);
extern GvStatus gv_cpu_exact(GvMetric metric, int32_t dims,
							 const float *queries, int32_t nqueries,
							 const float *x, int64_t n, const uint64_t *ids,
							 GvTopK *best, const GvStop *stop);
extern GvStatus gv_cpu_refine_encode(int32_t dims, const float *x, int64_t n,
									 uint8_t *codes, float *min, float *step,
									 float *error);
extern GvStatus gv_cpu_refine_bound(GvMetric metric, int32_t dims,
									const float *query,
									const GvRefine *records, int64_t n,
									float *bounds);

#endif							/* GV_CPU_H */
