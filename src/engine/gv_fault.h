/*
 * gv_fault.h
 *		Fault injection: makes calls and allocations fail when a test requests
 *		it.
 *
 * Several threads may call an engine at the same time, and exactly one of
 * their calls fails.  Fault injection exists in the test build only.  In the
 * release no fault is ever due, and a GvFault need not even be declared.
 */
#ifndef GV_FAULT_H
#define GV_FAULT_H

#include "engine/gv_engine.h"

#ifdef GV_TEST_BUILD

/* Used in place of a status: the call does not fail, but never returns. */
#define GV_HANGS	6

/*
 * A fault.  Each call decrements the countdown if it is above 0, and the call
 * that brings it to 0 reports `status`.
 */
typedef struct GvFault
{
	int64_t		countdown;
	int			status;
} GvFault;

/*
 * The fault of the operations in gv_engine.h and gv_select.h; see
 * gv_engine_fault.
 */
extern GvFault gv_engine_calls;

/* The fault of the calls in gv_set.h; see gv_set_fault. */
extern GvFault gv_set_calls;

/* Makes the n-th call from now on report `status`. */
extern void gv_fault_set(GvFault *fault, int64_t n, GvStatus status);

/* Never returns. */
extern void gv_fault_hang(void);

/*
 * Counts gv_allocations down, and returns whether this allocation must fail.
 */
extern bool gv_allocation_fails(void);

/*
 * Return true for exactly one call, the one at which the fault is due, and set
 * *status.  If the fault is GV_HANGS, gv_fault_is_due never returns.
 */
extern bool gv_fault_strikes(GvFault *fault, GvStatus *status);
extern bool gv_fault_is_due(GvFault *fault, GvStatus *status);

#else
#define gv_fault_is_due(fault, status) ((void) (status), false)
#endif

#endif							/* GV_FAULT_H */
