/*
 * engine.c
 *		Calling the engine: what it asks and says, and memory for it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/engine.h"

/*
 * Long engine calls ask here.  They must end when the statement is to end;
 * the caller then lets CHECK_FOR_INTERRUPTS say why.
 */
static bool
interrupted(void *arg)
{
	return QueryCancelPending || ProcDiePending;
}

const GvStop ivfpq_stop = {interrupted, NULL};

/* Turn an engine's status into what PostgreSQL expects; the one place. */
void
IvfpqCheckStatus(GvStatus status)
{
	switch (status)
	{
		case GV_OK:
			return;
		case GV_CANCELLED:
			CHECK_FOR_INTERRUPTS();
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("canceling statement due to user request")));
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
			ereport(ERROR,
					(errcode(ERRCODE_SYSTEM_ERROR),
					 errmsg("the engine failed")));
			break;
	}
}

/* Aligned scratch memory; the caller frees *chunk. */
void *
IvfpqAllocScratch(Size size, void **chunk)
{
	*chunk = palloc_extended(size + GV_ALIGN, MCXT_ALLOC_HUGE);
	return (void *) TYPEALIGN(GV_ALIGN, *chunk);
}

/* Memory for the k nearest of something. */
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
