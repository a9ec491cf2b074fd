/*
 * build.h
 *		CREATE INDEX: what build.c and parallel.c share.
 */
#ifndef IVFPQ_BUILD_H
#define IVFPQ_BUILD_H

#include "am/build/bulkload.h"

/* A participant's state of a build. */
typedef struct IvfpqBuild
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType	type;
	IvfpqMetaData meta;
	IvfpqTraining training;
	IvfpqTeam	team;			/* when trained, as is */
	IvfpqAssign assign;
	MemoryContext tmp;			/* reset after every row */
	double		heap_tuples;
	double		index_tuples;

	/* rows that only older snapshots see and whose dimension is another */
	uint64	   *odd_ids;
	int64		nodd;
	int64		max_odd;
} IvfpqBuild;

extern void IvfpqBuildInit(IvfpqBuild *build);
extern void IvfpqBuildWork(IvfpqBuild *build);

#endif							/* IVFPQ_BUILD_H */
