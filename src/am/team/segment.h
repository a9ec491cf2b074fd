/*
 * segment.h
 *		A parallel context's segment of shared memory (segment.c).
 */
#ifndef IVFPQ_SEGMENT_H
#define IVFPQ_SEGMENT_H

#include "access/parallel.h"

extern void IvfpqSegmentAsk(ParallelContext *context, Size bytes);
extern void IvfpqSegmentAskQuery(ParallelContext *context);
extern void *IvfpqSegmentTake(ParallelContext *context, uint64 key,
							  Size bytes);
extern void IvfpqSegmentGiveQuery(ParallelContext *context, uint64 key);
extern void IvfpqSegmentReportQuery(shm_toc *toc, uint64 key);

#endif							/* IVFPQ_SEGMENT_H */
