/*
 * readteam.h
 *		Workers that read the rows to train on (readteam.c).
 */
#ifndef IVFPQ_READTEAM_H
#define IVFPQ_READTEAM_H

#include "storage/dsm.h"
#include "storage/shm_toc.h"

#include "am/train/train.h"

/*
 * The same as IvfpqReaderRun by parallel workers, for gpuvecd; see there.
 */
extern bool IvfpqReadTogether(IvfpqReader *reader, IvfpqBuilder *builder,
							  int64 most, bool *failed);

/* Entry point of a worker. */
extern PGDLLEXPORT void IvfpqReadMain(dsm_segment *seg, shm_toc *toc);

#endif							/* IVFPQ_READTEAM_H */
