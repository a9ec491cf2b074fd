/*
 * ivfpqreadtogether.h
 *		Workers that read the rows to train on (ivfpqreadtogether.c).
 */
#ifndef IVFPQREADTOGETHER_H
#define IVFPQREADTOGETHER_H

#include "storage/dsm.h"
#include "storage/shm_toc.h"

#include "am/ivfpqtrain.h"

/*
 * The same as IvfpqReaderRun by parallel workers, for gpuvecd; see there.
 */
extern bool IvfpqReadTogether(IvfpqReader *reader, IvfpqBuilder *builder,
							  int64 most, bool *failed);

/* Entry point of a worker. */
extern PGDLLEXPORT void IvfpqReadMain(dsm_segment *seg, shm_toc *toc);

#endif							/* IVFPQREADTOGETHER_H */
