/*
 * build.h
 *		CREATE INDEX (build.c).
 */
#ifndef IVFPQ_BUILD_H
#define IVFPQ_BUILD_H

#include "access/amapi.h"
#include "nodes/execnodes.h"
#include "storage/dsm.h"
#include "storage/shm_toc.h"

extern IndexBuildResult *ivfpqbuild(Relation heap, Relation index,
									IndexInfo *indexInfo);
extern void ivfpqbuildempty(Relation index);
extern PGDLLEXPORT void IvfpqWorkerMain(dsm_segment *seg, shm_toc *toc);

#endif							/* IVFPQ_BUILD_H */
