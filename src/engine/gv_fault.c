/*
 * gv_fault.c
 *		Fault injection: makes calls and allocations fail when a test requests
 *		it.
 *
 * The counters are atomic, because several threads may call an engine.  This
 * file is part of the test build only.
 */
#include "engine/gv_fault.h"

#include <time.h>

GvFault		gv_engine_calls;
GvAllocations gv_allocations;

void
gv_fault_set(GvFault *fault, int64_t n, GvStatus status)
{
	__atomic_store_n(&fault->status, (int) status, __ATOMIC_RELAXED);
	__atomic_store_n(&fault->countdown, n, __ATOMIC_RELEASE);
}

bool
gv_fault_strikes(GvFault *fault, GvStatus *status)
{
	if (__atomic_load_n(&fault->countdown, __ATOMIC_ACQUIRE) <= 0 ||
		__atomic_sub_fetch(&fault->countdown, 1, __ATOMIC_ACQ_REL) != 0)
		return false;
	*status = (GvStatus) __atomic_load_n(&fault->status, __ATOMIC_RELAXED);
	return true;
}

void
gv_fault_hang(void)
{
	struct timespec pause = {1, 0};

	for (;;)
		nanosleep(&pause, NULL);
}

bool
gv_fault_is_due(GvFault *fault, GvStatus *status)
{
	if (!gv_fault_strikes(fault, status))
		return false;
	if ((int) *status == GV_HANGS)
		gv_fault_hang();
	return true;
}

bool
gv_allocation_fails(void)
{
	int			due = __atomic_load_n(&gv_allocations.due, __ATOMIC_RELAXED);

	while (due > 0)
	{
		if (due == 1 && gv_allocations.after)
			return true;
		if (__atomic_compare_exchange_n(&gv_allocations.due, &due, due - 1,
										false, __ATOMIC_ACQ_REL,
										__ATOMIC_RELAXED))
			return due == 1;
	}
	return false;
}

void
gv_engine_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&gv_engine_calls, n, status);
}
