/*
 * maintain.h
 *		Changing and checking an index that is in use: inserts, VACUUM,
 *		training in place, and verification.
 */
#ifndef IVFPQ_MAINTAIN_H
#define IVFPQ_MAINTAIN_H

#include "access/amapi.h"
#include "nodes/execnodes.h"

#include "am/common/model.h"
#include "am/types/keys.h"
#include "page/refinepage.h"

/*
 * An index should be calibrated again when its number of rows has shrunk by
 * more than this factor, because searches do more work than necessary.
 */
#define IVFPQ_MAX_SHRINKAGE		2

/* insert.c */
extern bool ivfpqinsert(Relation index, Datum *values, bool *isnull,
						ItemPointer tid, Relation heap,
						IndexUniqueCheck checkUnique,
						bool indexUnchanged, IndexInfo *indexInfo);
extern bool IvfpqInsertPostings(Relation index, const IvfpqModel *model,
								const float *vector, bool boundable,
								ItemPointer tid, const IvfpqKeyAbbrevs *keys,
								const IvfpqPendingPlace *pending,
								IvfpqRecordBuilder *records);

/* vacuum.c */
extern IndexBulkDeleteResult *ivfpqbulkdelete(IndexVacuumInfo *info,
											  IndexBulkDeleteResult *stats,
											  IndexBulkDeleteCallback callback,
											  void *callback_state);
extern IndexBulkDeleteResult *ivfpqvacuumcleanup(IndexVacuumInfo *info,
												 IndexBulkDeleteResult *stats);

/* worker.c */

/* setting gpuvec.training_timeout in milliseconds; 0 = no limit */
extern int	ivfpq_training_timeout;

extern void IvfpqAskForWorker(IndexVacuumInfo *info);
extern bool IvfpqHasOutgrown(Relation index, const IvfpqMetaData *meta,
							 int64 rows);
extern bool IvfpqHasWorker(Relation index);

extern void IvfpqAskForCalibration(Relation index);

/* autocalibrate.c */

/* setting gpuvec.auto_calibrate_budget in seconds of processor time a day */
extern double ivfpq_auto_calibrate_budget;
#ifdef GV_TEST_BUILD
extern double ivfpq_forced_load;	/* of a processor; -1 = the machine's */
#endif

extern void IvfpqAutoCalibrateInit(void);
extern bool IvfpqMayAutoCalibrate(void);
extern bool IvfpqCalibrationIsCostly(void);
extern bool IvfpqWillCalibrate(Relation index, const IvfpqMetaData *meta,
							   int64 rows);
extern void IvfpqAutoCalibrate(Relation heap, Relation index,
							   const char *name);

/* traininplace.c */
typedef struct IvfpqTrainResult
{
	int			nlists;			/* number of lists after the call; 0 = the
								 * index is still untrained */
	bool		trained;		/* true if this call trained the index */
	double		rows;			/* estimated number of rows to index, if the
								 * index was untrained */
	bool		waits;			/* not trained because nearly all rows are
								 * equal */
	int64		moved;			/* rows that were put into lists */
	int64		kept;			/* rows that stay pending because our snapshot
								 * does not see them: they may be uncommitted,
								 * or dead */
	int64		mismatched;		/* rows that stay pending because they have
								 * other dimensions than the index */
} IvfpqTrainResult;

extern bool IvfpqMayFreeRetired(Relation index);
extern void IvfpqFreeRetired(Relation index, BufferAccessStrategy strategy);
extern void IvfpqTrainOrFlush(Relation heap, Relation index, bool again,
							  IvfpqTrainResult *result);

/* mirrorrows.c */
extern const struct IvfpqRowSource ivfpq_rows_of_tables;

/*
 * verifymirror.c
 *
 * An IvfpqProblem reports one problem: an error or, if `error` is false, a
 * warning.  blkno is InvalidBlockNumber if the problem is not on a single
 * block, and list is IVFPQ_NO_LIST if it is not in a single list.
 */
typedef void (*IvfpqProblem) (void *arg, bool error, BlockNumber blkno,
							  uint32 list, const char *problem);

extern void IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg);

#endif							/* IVFPQ_MAINTAIN_H */
