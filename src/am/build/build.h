/*
 * build.h
 *		CREATE INDEX (build.c, build.c).
 */
#ifndef IVFPQ_BUILD_H
#define IVFPQ_BUILD_H

#include "access/amapi.h"
#include "storage/dsm.h"
#include "storage/shm_toc.h"

#include "am/build/bulkload.h"
#include "am/types/keys.h"

/* A participant's state of a build. */
typedef struct IvfpqBuild
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqMetaData meta;
	IvfpqTraining training;
	IvfpqParallel parallel;		/* if there are rows to train on */
	IvfpqBulkLoad load;
	MemoryContext tmp;			/* reset after every row */
	double		heap_tuples;
	double		index_tuples;

	/* rows of other dimensions, which only older snapshots see */
	uint64	   *mismatched_ids;
	int64		nmismatched;
	int64		max_mismatched;
} IvfpqBuild;

/* build.c */
extern IndexBuildResult *ivfpqbuild(Relation heap, Relation index,
									IndexInfo *indexInfo);
extern void ivfpqbuildempty(Relation index);

/* build.c */
extern PGDLLEXPORT void IvfpqWorkerMain(dsm_segment *seg, shm_toc *toc);

#endif							/* IVFPQ_BUILD_H */
