/*
 * maintain.h
 *		An index in use: rows come and go, it is trained, and checked.
 */
#ifndef IVFPQ_MAINTAIN_H
#define IVFPQ_MAINTAIN_H

#include "access/amapi.h"
#include "nodes/execnodes.h"

#include "am/common/model.h"
#include "am/types/keys.h"

/* Beyond this many times the rows at training an index should be rebuilt. */
#define IVFPQ_MAX_GROWTH		4

/* insert.c */
extern bool ivfpqinsert(Relation index, Datum *values, bool *isnull,
						ItemPointer tid, Relation heap,
						IndexUniqueCheck checkUnique,
						bool indexUnchanged, IndexInfo *indexInfo);
extern void IvfpqInsertPostings(Relation index, const IvfpqModel *model,
								const float *vector, bool boundable,
								ItemPointer tid, const IvfpqKeyAbbrevs *keys,
								const IvfpqPendingPlace *pending);

/* vacuum.c */
extern IndexBulkDeleteResult *ivfpqbulkdelete(IndexVacuumInfo *info,
											  IndexBulkDeleteResult *stats,
											  IndexBulkDeleteCallback callback,
											  void *callback_state);
extern IndexBulkDeleteResult *ivfpqvacuumcleanup(IndexVacuumInfo *info,
												 IndexBulkDeleteResult *stats);

/* worker.c */
extern void IvfpqAskForWorker(IndexVacuumInfo *info);

/* traininplace.c */
typedef struct IvfpqTrainResult
{
	int			nlists;			/* of the index afterwards; 0 = untrained */
	bool		trained;		/* it was untrained before */
	double		rows;			/* then: rows of the table to be indexed,
								 * about */
	bool		waits;			/* nearly all of these rows are equal */
	int64		moved;			/* rows that went to lists */
	int64		kept;			/* rows that stay pending, because no snapshot
								 * sees them yet, or any more */
	int64		mismatched;		/* rows that stay pending because of their
								 * dimensions */
} IvfpqTrainResult;

extern void IvfpqTrainOrFlush(Relation heap, Relation index,
							  IvfpqTrainResult *result);

/*
 * verifymirror.c
 *
 * An IvfpqProblem reports an error, or else a warning: a problem on a block,
 * or InvalidBlockNumber, of a list, or IVFPQ_NO_LIST.
 */
typedef void (*IvfpqProblem) (void *arg, bool error, BlockNumber blkno,
							  uint32 list, const char *problem);

extern void IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg);

#endif							/* IVFPQ_MAINTAIN_H */
