/*
 * gv_call.h
 *		Checks of arguments at the beginning of the engine's operations, and
 *		the engine's clock.
 *
 * If a test injected a status, GV_CALL makes the operation return this status.
 * Otherwise GV_CALL makes the operation return GV_INVALID if arguments break
 * the contract, so that the rest of the operation may trust its arguments.
 * The sizes of arrays cannot be checked.
 */
#ifndef GV_CALL_H
#define GV_CALL_H

#include <time.h>

#include "engine/gv_fault.h"

/* Must be the first statement of an operation that returns a GvStatus. */
#define GV_CALL(fault, is_valid) \
	do \
	{ \
		GvStatus	gv_injected; \
\
		if (gv_fault_is_due(&(fault), &gv_injected)) \
			return gv_injected; \
		if (!(is_valid)) \
			return GV_INVALID; \
	} while (0)

static inline bool
gv_valid_scratch(const void *scratch)
{
	return scratch != NULL && (uintptr_t) scratch % GV_ALIGN == 0;
}

/* NULL is valid and means that the call is never stopped. */
static inline bool
gv_valid_stop(const GvStop *stop)
{
	return stop == NULL || stop->requested != NULL;
}

static inline bool
gv_valid_dims(int32_t dims)
{
	return dims >= 1 && dims <= GV_MAX_DIMS;
}

static inline bool
gv_valid_shape(int32_t dims, int32_t m)
{
	return gv_valid_dims(dims) && m >= 1 && m <= dims;
}

static inline bool
gv_valid_metric(GvMetric metric)
{
	return metric == GV_L2 || metric == GV_IP || metric == GV_COSINE;
}

static inline bool
gv_valid_model(const GvModel *model)
{
	return model != NULL && gv_valid_metric(model->metric) &&
		gv_valid_shape(model->dims, model->m);
}

static inline bool
gv_valid_tree(const GvTree *tree)
{
	return tree != NULL && gv_valid_dims(tree->dims) && tree->nparents >= 1 &&
		tree->nlists >= tree->nparents && tree->parents != NULL &&
		tree->parent_offsets != NULL && tree->centroids != NULL;
}

static inline bool
gv_valid_topk(const GvTopK *top)
{
	return top != NULL && top->capacity >= 1 && top->count >= 0 &&
		top->count <= top->capacity &&
		top->scores != NULL && top->ids != NULL;
}

/* Returns the time of a monotonic clock, in seconds. */
static inline double
gv_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

#endif							/* GV_CALL_H */
