/*
 * gv_valid.h
 *		What wrappers of all contracts ask of their arguments.
 */
#ifndef GV_VALID_H
#define GV_VALID_H

#include "engine/gv_engine.h"

static inline bool
gv_valid_scratch(const void *scratch)
{
	return scratch != NULL && (uintptr_t) scratch % GV_ALIGN == 0;
}

/* No GvStop at all means: do not stop. */
static inline bool
gv_valid_stop(const GvStop *stop)
{
	return stop == NULL || stop->requested != NULL;
}

#endif							/* GV_VALID_H */
