/*
 * gv_fault.h
 *		A call or an allocation that fails because a test wants it to, also
 *		among threads.
 *
 * In the test build; in the release no call is one that fails, and a GvFault
 * need not be there.
 */
#ifndef GV_FAULT_H
#define GV_FAULT_H

#include "engine/gv_engine.h"

#ifdef GV_TEST_BUILD

/* In the place of a status: the call never ends. */
#define GV_HANGS	6

/* Calls until one reports status; 0 or less: none will. */
typedef struct GvFault
{
	int64_t		countdown;
	int			status;
} GvFault;

/* That of gv_engine.h and gv_select.h: gv_engine_fault. */
extern GvFault gv_engine_calls;

extern void gv_fault_set(GvFault *fault, int64_t n, GvStatus status);

/* Count down, from above 0; is this the call? */
extern bool gv_fault_count(GvFault *fault, GvStatus *status);

/* Never return. */
extern void gv_fault_hang(void);

/* Count down gv_allocations; is this the allocation that shall fail? */
extern bool gv_allocation_fails(void);

/* Is this the call that shall fail?  One of several threads is told. */
static inline bool
gv_fault_strikes(GvFault *fault, GvStatus *status)
{
	return __atomic_load_n(&fault->countdown, __ATOMIC_ACQUIRE) > 0 &&
		gv_fault_count(fault, status);
}

/* The same, and if it shall hang it does so here. */
static inline bool
gv_fault_is_due(GvFault *fault, GvStatus *status)
{
	if (!gv_fault_strikes(fault, status))
		return false;
	if ((int) *status == GV_HANGS)
		gv_fault_hang();
	return true;
}

#else
#define gv_fault_is_due(fault, status) ((void) (status), false)
#endif

#endif							/* GV_FAULT_H */
