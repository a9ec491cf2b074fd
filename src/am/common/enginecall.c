/*
 * enginecall.c
 *		Calls of the engine from a backend: interrupts, statuses and memory.
 *
 * The engine returns a status and never jumps out of a call.  Long calls ask
 * ivfpq_stop whether to stop.  When the call has returned, IvfpqCheckStatus
 * raises the error, if there is one.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"

/*
 * True if an interrupt raised an error during an engine call.  PostgreSQL's
 * error stack keeps the error until IvfpqCheckStatus throws it again.  We do
 * not copy the error, because a copy would need memory.
 */
static bool raised = false;

/*
 * GvStop callback.  Processes interrupts, and returns whether one of them
 * raised an error.
 *
 * All kinds of interrupts are processed.  A statement may have to end for
 * other reasons than a cancel request, such as a parallel worker that failed
 * or a timeout of the transaction.  Besides, other backends may be waiting
 * until this backend processes an interrupt, as DROP DATABASE does.
 */
static bool
interrupted(void *arg)
{
	MemoryContext context = CurrentMemoryContext;

	if (raised || !InterruptPending)
		return raised;
	PG_TRY();
	{
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		raised = true;
	}
	PG_END_TRY();
	return raised;
}

const GvStop ivfpq_stop = {interrupted, NULL};

/*
 * Raises an error unless the status of an engine call is GV_OK.  If an
 * interrupt raised an error during the call, throws that error instead,
 * regardless of the status.  So call this right after the engine has returned.
 * No other function turns statuses into errors.
 */
void
IvfpqCheckStatus(GvStatus status)
{
	if (raised)
	{
		raised = false;
		PG_RE_THROW();
	}
	switch (status)
	{
		case GV_OK:
			return;
		case GV_CANCELED:
			elog(ERROR, "engine stopped without a reason");
			break;
		case GV_INVALID:
			elog(ERROR, "engine was called with invalid arguments");
			break;
		case GV_NO_MEMORY:
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory"),
					 errdetail("The engine could not allocate memory.")));
			break;
		case GV_FAILED:
		case GV_REJECTED:
			ereport(ERROR,
					(errcode(ERRCODE_SYSTEM_ERROR),
					 errmsg("engine failed")));
			break;
	}
}

/*
 * Returns `size` bytes of memory aligned to GV_ALIGN.  *chunk is set to the
 * allocation itself, which the caller frees.
 */
void *
IvfpqAllocScratch(Size size, void **chunk)
{
	*chunk = palloc_extended(size + GV_ALIGN, MCXT_ALLOC_HUGE);
	return (void *) TYPEALIGN(GV_ALIGN, *chunk);
}

/* Empties *top and sets its capacity, allocating new memory if needed. */
void
IvfpqTopKResize(GvTopK *top, int capacity)
{
	if (capacity > top->capacity)
	{
		if (top->scores)
		{
			pfree(top->scores);
			pfree(top->ids);
		}
		top->scores = palloc_extended(capacity * sizeof(float),
									  MCXT_ALLOC_HUGE);
		top->ids = palloc_extended(capacity * sizeof(uint64_t),
								   MCXT_ALLOC_HUGE);
	}
	top->capacity = capacity;
	gv_topk_reset(top);
}

/*
 * IvfpqListReader.wants callback.  Returns whether any posting of a block may
 * satisfy the condition.  The heads of the keys alone rule out too few blocks,
 * so the abbreviated keys are tested, too.
 */
bool
IvfpqWantsBlock(const void *condition, const IvfpqSlotHeader *header,
				const char *keys)
{
	return gv_may_match(condition, keys) && gv_match(condition, keys) != 0;
}
