/*
 * gv_fault.h
 *		A call that fails because a test wants it to, in one of several threads.
 */
#ifndef GV_FAULT_H
#define GV_FAULT_H

#include "engine/gv_engine.h"

/* In the place of a status: the call never ends. */
#define GV_HANGS	5

/* Calls until one reports status; 0 or less: none will. */
typedef struct GvFault
{
	int64_t		countdown;
	int			status;
} GvFault;

/* From now on the n-th call reports `status`. */
static inline void
gv_fault_set(GvFault *fault, int64_t n, GvStatus status)
{
	__atomic_store_n(&fault->status, (int) status, __ATOMIC_RELAXED);
	__atomic_store_n(&fault->countdown, n, __ATOMIC_RELEASE);
}

/* Is this the call that shall fail?  One of several threads is told. */
static inline bool
gv_fault_is_due(GvFault *fault, GvStatus *status)
{
	if (__atomic_load_n(&fault->countdown, __ATOMIC_ACQUIRE) <= 0 ||
		__atomic_sub_fetch(&fault->countdown, 1, __ATOMIC_ACQ_REL) != 0)
		return false;
	*status = (GvStatus) __atomic_load_n(&fault->status, __ATOMIC_RELAXED);
	return true;
}

#endif							/* GV_FAULT_H */
