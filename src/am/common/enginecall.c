/*
 * enginecall.c
 *		Calls of the engine from a backend: interrupts, statuses and memory.
 *
 * The engine returns a status and never jumps.  Long calls ask ivfpq_stop
 * whether to stop, and IvfpqCheckStatus raises the error, if there is one,
 * when the call has returned.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"

/*
 * True after an interrupt raised an error during an engine call, until
 * IvfpqCheckStatus throws the error again.  PostgreSQL's error stack keeps the
 * error meanwhile; a copy would need memory.
 */
static bool raised = false;

/*
 * GvStop's callback: serves interrupts, and returns whether one of them raised
 * an error.
 *
 * All kinds of interrupts are served.  A statement may have to end for more
 * reasons than a cancel, such as a parallel worker that failed or a timeout of
 * the transaction.  And other backends may wait for this one to serve an
 * interrupt, as DROP DATABASE does.
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
 * Raises an error unless the status of an engine call is GV_OK.  Call this
 * right after the engine: an error that an interrupt raised meanwhile comes
 * first.  No other function turns statuses into errors.
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
			elog(ERROR, "the engine stopped without a reason");
			break;
		case GV_INVALID:
			elog(ERROR, "engine was called with invalid arguments");
			break;
		case GV_NO_MEMORY:
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory"),
					 errdetail("The engine has no room.")));
			break;
		case GV_FAILED:
		case GV_REJECTED:
			ereport(ERROR,
					(errcode(ERRCODE_SYSTEM_ERROR),
					 errmsg("the engine failed")));
			break;
	}
}

/* Allocates memory aligned to GV_ALIGN; the caller frees *chunk. */
void *
IvfpqAllocScratch(Size size, void **chunk)
{
	*chunk = palloc_extended(size + GV_ALIGN, MCXT_ALLOC_HUGE);
	return (void *) TYPEALIGN(GV_ALIGN, *chunk);
}

/* Empties *top and sets its capacity; memory that is too small grows. */
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
 * IvfpqListReader.wants: returns whether a posting of a block may satisfy the
 * condition.  Checks the abbreviated keys, too, because the heads of many
 * blocks rule out too little.
 */
bool
IvfpqWantsBlock(const void *condition, const IvfpqSlotHeader *header,
				const char *keys)
{
	return gv_may_match(condition, keys) && gv_match(condition, keys) != 0;
}
