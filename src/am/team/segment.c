/*
 * segment.c
 *		Pieces of a parallel context's segment: asked for, then taken; and the
 *		leader's query, so that views tell what a worker is for.
 */
#include "postgres.h"

#include "tcop/tcopprot.h"
#include "utils/backend_status.h"

#include "am/team/segment.h"

/* Ask for room for a piece, before the segment is made. */
void
IvfpqSegmentAsk(ParallelContext *context, Size bytes)
{
	shm_toc_estimate_chunk(&context->estimator, bytes);
	shm_toc_estimate_keys(&context->estimator, 1);
}

/* ... for the query, if there is one. */
void
IvfpqSegmentAskQuery(ParallelContext *context)
{
	if (debug_query_string)
		IvfpqSegmentAsk(context, strlen(debug_query_string) + 1);
}

/* A piece that was asked for, which workers find by its key. */
void *
IvfpqSegmentTake(ParallelContext *context, uint64 key, Size bytes)
{
	void	   *memory = shm_toc_allocate(context->toc, bytes);

	shm_toc_insert(context->toc, key, memory);
	return memory;
}

/* Put the query there. */
void
IvfpqSegmentGiveQuery(ParallelContext *context, uint64 key)
{
	if (debug_query_string)
		strcpy(IvfpqSegmentTake(context, key, strlen(debug_query_string) + 1),
			   debug_query_string);
}

/* A worker says what it is for. */
void
IvfpqSegmentReportQuery(shm_toc *toc, uint64 key)
{
	debug_query_string = shm_toc_lookup(toc, key, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
}
