/*
 * maintain.h
 *		An index in use: rows come and go, it is trained, and checked.
 */
#ifndef IVFPQ_MAINTAIN_H
#define IVFPQ_MAINTAIN_H

#include "access/amapi.h"
#include "nodes/execnodes.h"

#include "am/common/model.h"
#include "am/common/util.h"
#include "am/search/rerank.h"
#include "am/types/keys.h"
#include "page/pagecheck.h"
#include "page/refinepage.h"

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
extern void IvfpqFetchedKeys(IvfpqKeys *keys, IvfpqRerank *rows,
							 IvfpqKeyAbbrevs *abbrevs);

/* vacuum.c */
extern IndexBulkDeleteResult *ivfpqbulkdelete(IndexVacuumInfo *info,
											  IndexBulkDeleteResult *stats,
											  IndexBulkDeleteCallback callback,
											  void *callback_state);
extern IndexBulkDeleteResult *ivfpqvacuumcleanup(IndexVacuumInfo *info,
												 IndexBulkDeleteResult *stats);

/*
 * traininplace.c, traininplace.c: an index that is in use is trained, and its pending rows
 * are flushed.
 */
typedef struct IvfpqTrainResult
{
	int			nlists;			/* of the index now; 0 = still untrained */
	bool		trained;		/* it was untrained before */
	double		rows;			/* then: rows of the table to be indexed,
								 * about */
	bool		waits;			/* nearly all of these rows are equal */
	int64		moved;			/* rows that went to lists */
	int64		kept;			/* rows that stay pending, because no snapshot
								 * sees them yet, or any more */
	int64		mismatched;		/* rows that do because of their dimensions */
} IvfpqTrainResult;

extern void IvfpqTrainOrFlush(Relation heap, Relation index,
							  IvfpqTrainResult *result);

/*
 * worker.c: which workers train, and whose code each of them runs.
 */
#define IVFPQ_WORKER_OWNERS 27	/* as many as an order has space for */

typedef struct IvfpqWorkerOrder
{
	Oid			database;
	Oid			owner;			/* whose interpreted code it runs; invalid: it
								 * serves indexes that have none */
	Oid			next;			/* index that the next worker begins with */
	Oid			next_owner;		/* that index's owner, in the same sense */
	int			nowners;
	Oid			owners[IVFPQ_WORKER_OWNERS];	/* of this worker and those
												 * before */
} IvfpqWorkerOrder;

typedef enum IvfpqWorkerSlotState
{
	IVFPQ_SLOT_FREE,
	IVFPQ_SLOT_OURS,			/* a worker here serves such indexes */
	IVFPQ_SLOT_OWNERS,			/* one of another database runs the owner's
								 * code */
	IVFPQ_SLOT_TAKEN			/* others have all */
} IvfpqWorkerSlotState;


/* worker.c: what an index needs of a background worker */

/* worker.c: a background worker does that work when VACUUM asks */
extern void IvfpqAskForWorker(IndexVacuumInfo *info);

/*
 * inspect.c: codes that no longer fit, and rows that are copies of few vectors
 */
typedef struct IvfpqDrift
{
	int			drawn;			/* postings whose rows were judged */
	int			far;			/* of these are beyond what codes reach */
	int			centered;		/* lie at their list's centroid */
	bool		has_drifted;
	bool		has_copies;
} IvfpqDrift;


/*
 * verifymirror.c: a problem of a list, or IVFPQ_NO_LIST, on a block, or
 * InvalidBlockNumber; an error or a warning.
 */
typedef void (*IvfpqProblem) (void *arg, bool error, BlockNumber blkno,
							  uint32 list, const char *problem);

extern void IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg);

/* verify.c */

/* verify.c: do refine records bound their rows? */
typedef struct IvfpqVerifyRecords
{
	Relation	index;
	IvfpqModel *model;
	IvfpqType	type;
	IvfpqRerank rows;			/* fetches them */
	float	   *vector;			/* [dims] of one */
} IvfpqVerifyRecords;


/* ----
 * Images of keys compared with the table's values (verify.c).
 */

typedef struct IvfpqVerifyKeys
{
	IvfpqKeys	keys;			/* if there are none, all calls do nothing */
	IvfpqPairSort sort;			/* place, digest */
} IvfpqVerifyKeys;


#endif							/* IVFPQ_MAINTAIN_H */
