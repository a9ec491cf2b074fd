/*
 * ivfpq.h
 *		The PostgreSQL side of the gpuivfpq access method: shared state, and
 *		prototypes grouped by the file that defines them.
 *
 * This side speaks to the executor, joins pages (page/page.h) with the
 * engine (engine/gv_engine.h), and is the only one that may ereport about
 * either.
 */
#ifndef IVFPQ_H
#define IVFPQ_H

#include "access/amapi.h"
#include "nodes/execnodes.h"
#include "utils/array.h"

#include "am/scan/prefetchrow.h"
#include "client/client.h"
#include "engine/gv_engine.h"
#include "page/buffer/prefetch.h"
#include "page/pending.h"
#include "page/record.h"
#include "pgcompat.h"

/* Strategy numbers of the ordering operators: they name the metric. */
#define IVFPQ_L2_STRATEGY		1
#define IVFPQ_IP_STRATEGY		2
#define IVFPQ_COSINE_STRATEGY	3
#define IVFPQ_NSTRATEGIES		3

/*
 * Support function 1, of (type, int4, bool): the value as real[].  Absent
 * for real[] itself.  pgvector's own cast functions have this form.
 */
#define IVFPQ_TOREAL_PROC		1
#define IVFPQ_NPROCS			1

/* Below this many rows an index is left untrained, unless lists says more. */
#define IVFPQ_MIN_TRAIN_ROWS	1000

/* With this many rows it trains itself; default of option train_rows. */
#define IVFPQ_TRAIN_ROWS		10000

/* Beyond this many times the rows at training an index should be rebuilt. */
#define IVFPQ_MAX_GROWTH		4

/* The most that option and setting `candidates` may ask for. */
#define IVFPQ_MAX_CANDIDATES	1000000

/* A two-sided interval of 95 % reaches so many standard errors. */
#define IVFPQ_Z_95				1.959964

/* The highest recall that calibration looks for. */
#define IVFPQ_MOST_RECALL		0.99

/* What that takes, compared with this one, tells how fast it grows beyond. */
#define IVFPQ_LOWER_RECALL		0.95

/* Options of CREATE INDEX; 0 = not given. */
typedef struct IvfpqOptions
{
	int32		vl_len_;		/* varlena header (do not touch directly!) */
	int			lists;
	int			pq_dim;
	int			probes;
	int			candidates;
	int			dims;
	int			spill;			/* -1 = not given */
	int			train_rows;
	int			refine;			/* IvfpqRefine */
} IvfpqOptions;

/* Settings (gpuvec.c); 0 = not set. */
typedef enum IvfpqOrder
{
	IVFPQ_ORDER_STRICT,
	IVFPQ_ORDER_RELAXED
} IvfpqOrder;

extern int	ivfpq_probes;
extern int	ivfpq_candidates;
extern int	ivfpq_order;
extern int	ivfpq_max_probes;
extern double ivfpq_recall;
extern int	ivfpq_max_training_workers;

/*
 * Build phases for pg_stat_progress_create_index; core owns
 * PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE = 1.
 */
#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

/* handler.c */
extern void IvfpqInitOptions(void);
extern bytea *ivfpqoptions(Datum reloptions, bool validate);
extern char *ivfpqbuildphasename(int64 phasenum);

/* build.c */
extern IndexBuildResult *ivfpqbuild(Relation heap, Relation index,
									IndexInfo *indexInfo);
extern void ivfpqbuildempty(Relation index);

/* insert.c */
extern bool ivfpqinsert(Relation index, Datum *values, bool *isnull,
						ItemPointer tid, Relation heap,
						IndexUniqueCheck checkUnique,
						bool indexUnchanged, IndexInfo *indexInfo);

/* orderedscan.c */
extern IndexScanDesc ivfpqbeginscan(Relation index, int nkeys, int norderbys);
extern void ivfpqrescan(IndexScanDesc scan, ScanKey keys, int nkeys,
						ScanKey orderbys, int norderbys);
extern bool ivfpqgettuple(IndexScanDesc scan, ScanDirection dir);
extern void ivfpqendscan(IndexScanDesc scan);

/* vacuum.c */
extern IndexBulkDeleteResult *ivfpqbulkdelete(IndexVacuumInfo *info,
											  IndexBulkDeleteResult *stats,
											  IndexBulkDeleteCallback callback,
											  void *callback_state);
extern IndexBulkDeleteResult *ivfpqvacuumcleanup(IndexVacuumInfo *info,
												 IndexBulkDeleteResult *stats);

/* cost.c */
extern void ivfpqcostestimate(PlannerInfo *root, IndexPath *path,
							  double loop_count, Cost *startup_cost,
							  Cost *total_cost, Selectivity *selectivity,
							  double *correlation, double *pages);

/* plan.c */
extern void IvfpqInitPlanner(void);

/* validate.c */
extern bool ivfpqvalidate(Oid opclassoid);
extern void ivfpqadjustmembers(Oid opfamilyoid, Oid opclassoid,
							   List *operators, List *functions);

/*
 * value.c: what the operator class says, and indexed values as floats.
 */
typedef struct IvfpqType
{
	GvMetric	metric;
	Oid			type;			/* the operator class's input type */
	Oid			collation;
	bool		has_toreal;		/* false: type is real[] */
	FmgrInfo	toreal;			/* support function 1 */
	int			typmod_dims;	/* dims the column's type modifier fixes, or 0 */
} IvfpqType;

extern void IvfpqTypeInit(IvfpqType *type, Relation index);
extern int	IvfpqIndexDims(Relation index, const IvfpqType *type);
extern const float *IvfpqValueFloats(IvfpqType *type, Datum value, int *dims);
extern const float *IvfpqQueryFloats(IvfpqType *type, Oid subtype,
									 Datum value, int *dims);
extern void IvfpqCheckDims(int expected, int dims);
extern bool IvfpqIsPlaceable(const IvfpqType *type, const float *vector,
							 int dims);
extern bool IvfpqIsBoundable(const IvfpqType *type, const float *vector,
							 int dims);

/* dims.c: rows that decide how many dimensions there are */
extern bool IvfpqHasDims(IvfpqType *type, Datum value, int dims);
extern int	IvfpqRowDims(Relation heap, Relation index,
						 const IvfpqMetaData *meta);
extern int64 IvfpqFindOdd(Relation heap, Relation index,
						  const IvfpqMetaData *meta, int *dims,
						  ItemPointer first, int *first_dims);
extern void IvfpqInsertPending(Relation heap, Relation index,
							   const IvfpqType *type,
							   const IvfpqMetaData *known, ItemPointer tid,
							   int dims);
extern int	IvfpqSettleDims(Relation heap, Relation index);

/*
 * real.c: real[] as a vector: one dimension, at least one element, at
 * most IVFPQ_MAX_DIMS, no NULL, all finite; else an error.  The result points
 * into the array, or for other element types into palloc'd memory.
 */
extern const float *IvfpqArrayFloats(ArrayType *array, int *dims);

/*
 * The last value that a function converted and what came of it, kept beside
 * its FmgrInfo, because a scan passes the same query thousands of times.
 */
typedef struct IvfpqMemo
{
	struct varlena *source;		/* NULL = holds nothing */
	void	   *result;
} IvfpqMemo;

extern bool IvfpqMemoMatches(const IvfpqMemo *memo,
							 const struct varlena *value);
extern void IvfpqMemoSet(IvfpqMemo *memo, MemoryContext context,
						 const struct varlena *value,
						 const void *result, Size result_size);

/*
 * model.c: what training fixed, in memory.  The small parts (metapage,
 * mean, codebooks) are cached with the relation; centroids stay on pages.
 */
typedef struct IvfpqModel
{
	IvfpqMetaData meta;
	GvModel		gv;				/* when meta.nlists > 0 */
	const int32 *starts;		/* [nparents + 1] first list of each parent */
	float		values[FLEXIBLE_ARRAY_MEMBER];	/* mean, codebooks, starts */
} IvfpqModel;

extern IvfpqModel *IvfpqModelGet(Relation index);
extern IvfpqModel *IvfpqModelLoad(Relation index, const IvfpqMetaData *meta);
extern void IvfpqInsertCopies(Relation index, const IvfpqModel *model,
							  const float *vector, bool boundable,
							  ItemPointer tid,
							  const IvfpqPendingPlace *pending);
extern void IvfpqCheckStatus(GvStatus status);
extern const GvStop ivfpq_stop;

/* centroids.c: centroids, as vectors such as rows are. */
extern float *IvfpqCentroids(Relation index, int dims, int *n);

/*
 * train.c: from a sample of the table to centroids and codebooks, all in
 * the memory context current at IvfpqTrain.
 */
typedef struct IvfpqTraining
{
	GvModel		gv;
	int			nlists;			/* 0 = too few rows to train */
	int			nparents;
	int			copies;			/* lists that hold a row: 1 or 2 */
	float	   *parents;		/* [nparents][dims] */
	int32	   *starts;			/* [nparents + 1] first list of each parent */
	float	   *centroids;		/* [nlists][dims] */
	float	   *mean;			/* [dims] */
	float	   *codebooks;		/* [16 * dims] */
	int			nqueries;		/* rows held out to calibrate with */
	float	   *queries;		/* [nqueries][dims] */
	uint64	   *query_ids;		/* [nqueries] their TIDs */
	double		rows;			/* estimate of the rows to index */
	IvfpqBuilder *builder;		/* gpuvecd's, which trained; or NULL */
} IvfpqTraining;

static inline GvTree
IvfpqTree(const IvfpqTraining *training)
{
	GvTree		tree = {training->gv.dims, training->nparents,
		training->nlists, training->parents, training->starts,
	training->centroids};

	return tree;
}

extern int	IvfpqLeastRows(Relation index);
extern int	IvfpqTrainRows(Relation index);
extern void IvfpqTrain(IvfpqTraining *training, Relation heap, Relation index,
					   IndexInfo *indexInfo, IvfpqType *type, int dims,
					   bool lenient);

/*
 * coarsesearch.c: a transformed vector, a query or a row, and the lists nearest
 * to it.
 */
typedef struct IvfpqQuery
{
	GvModel		gv;				/* the index's; of rows for L2 in any case */
	float	   *vector;			/* [dims] */
	float	   *table;			/* gv_table's, when it was asked for */
	bool		tabled;
} IvfpqQuery;

extern void IvfpqQueryInit(IvfpqQuery *query, const IvfpqModel *model,
						   GvMetric metric);
extern void IvfpqQuerySet(IvfpqQuery *query, const float *vector);
extern const float *IvfpqQueryTable(IvfpqQuery *query);
extern int	IvfpqListsToCompare(const IvfpqMetaData *meta, int probes);
extern int	IvfpqCentroidsToCompare(const IvfpqMetaData *meta, int probes);
extern void IvfpqSortParents(Relation index, const IvfpqModel *model,
							 const GvModel *gv, const float *vector,
							 GvTopK *parents);
extern void IvfpqNearestLists(Relation index, const IvfpqModel *model,
							  IvfpqQuery *query, GvTopK *lists);

/*
 * remote.c: from a query to candidates, by gpuvecd.
 */
typedef struct IvfpqRemoteReport
{
	char		engine[16];		/* that answered so far; "" = none yet */
	const char *fallback;		/* why gpuvecd did not, the last time, or NULL */
	bool		asked;			/* at least once, */
	bool		answered;		/* and it answered */
	uint32		batch_size;		/* searches answered together, the last time */
	int64		stale_lists;	/* read again, for what the mirror had is old */
	int64		tail_copies;	/* scored here, for the mirror had them not */
	int64		queued_us;		/* times of all searches added up */
	int64		engine_us;
	int64		trip_us;		/* from question to answer */
} IvfpqRemoteReport;

/* What an answer said of a refine record. */
typedef struct IvfpqKnownRecord
{
	uint64		address;
	uint64		tid;			/* of the row */
	float		bound;			/* the engine's */
	bool		is_known;
} IvfpqKnownRecord;

typedef struct IvfpqRemote
{
	IvfpqKnownRecord *known;	/* [nknown] of the last search's candidates, in
								 * their order, and of other copies */
	int			nknown;
	int			known_room;
	IvfpqListEntry *entries;	/* [room] of the probed lists, as they are */
	uint8	   *ages;			/* [room] of what the mirror had of them */
	int			room;
	IvfpqRemoteReport report;
} IvfpqRemote;

/*
 * candidates.c: from a query to candidates.
 */
typedef struct IvfpqSearch
{
	Relation	index;
	const IvfpqModel *model;
	IvfpqQuery	query;
	IvfpqListReader reader;
	GvTopK		lists;			/* nearest lists */
	GvTopK		candidates;		/* best copies; ids as `addresses` says */
	GvScan		scan;			/* which finds them */
	void	   *scan_memory;
	Size		scan_bytes;		/* of the scan's scratch */
	int64		lists_read;		/* by this search so far */
	int64		copies_read;
	bool		addresses;		/* ids are addresses of refine records, else
								 * TIDs */
	IvfpqRemote remote;
} IvfpqSearch;

extern int	IvfpqDefaultLists(double rows);
extern void IvfpqSearchInit(IvfpqSearch *search, Relation index,
							const IvfpqModel *model);
extern void IvfpqSearchQuery(IvfpqSearch *search, const float *query);
extern void IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates);
extern void IvfpqSearchNearest(IvfpqSearch *search, int probes);
extern int64 IvfpqSearchCount(IvfpqSearch *search, int probes);
extern void IvfpqSearchOpen(IvfpqSearch *search, int capacity);
extern void IvfpqSearchList(IvfpqSearch *search, int i);
extern void IvfpqSearchBlock(IvfpqSearch *search, int i,
							 const IvfpqBlockView *view);
extern void IvfpqSearchSettle(IvfpqSearch *search);
extern void IvfpqTopKResize(GvTopK *top, int capacity);
extern bool IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity);

/*
 * effort.c: how many lists and candidates a batch of a scan takes.
 */
typedef struct IvfpqEffort
{
	int			probes;
	int			candidates;
	int64		quota;			/* rows given out by the end of the batch */
	bool		everything;		/* read all lists and measure all rows */
} IvfpqEffort;

extern int	IvfpqFormulaProbes(const IvfpqMetaData *meta);
extern int	IvfpqFormulaCandidates(const IvfpqMetaData *meta);
extern double IvfpqBeyondTargets(double recall, double lower, double upper);
extern void IvfpqGetEffort(IvfpqEffort *effort, Relation index,
						   const IvfpqMetaData *meta, int batch);

/*
 * calibrate.c: what recall costs, measured on rows of the table.
 */
typedef struct IvfpqCalibration
{
	GvMetric	metric;
	int			dims;
	int			nqueries;
	const float *queries;		/* [nqueries][dims] transformed */
	const uint64 *ids;			/* [nqueries] TIDs of the queries' own rows */
	GvTopK	   *truth;			/* [nqueries] nearest rows so far */
} IvfpqCalibration;

extern int	IvfpqCalibrationQueries(double rows);
extern IvfpqCalibration *IvfpqCalibrationBegin(const GvModel *gv, int nqueries,
											   const float *queries,
											   const uint64 *ids);
extern void IvfpqCalibrationOffer(IvfpqCalibration *calibration,
								  const float *rows, const uint64 *ids,
								  int64 n);
extern bool IvfpqCalibrateIndex(Relation heap, Relation index);
extern void IvfpqCalibrationTake(IvfpqCalibration *calibration,
								 const GvNeighbour *neighbours, int n,
								 const uint64 *ids);
extern int	IvfpqCalibrationNearest(const IvfpqCalibration *calibration, int q,
									int most, uint64 *ids);

/* TIDs as numbers: the block above the offset. */
#define IVFPQ_ID_SHIFT			16

static inline uint64
IvfpqTidToId(const ItemPointerData *tid)
{
	return ((uint64) ItemPointerGetBlockNumberNoCheck(tid) << IVFPQ_ID_SHIFT) |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/* The same of three words, as the engine has them. */
static inline uint64
IvfpqWordsToId(const uint16 *words)
{
	return (uint64) words[0] << 32 | (uint64) words[1] << 16 | words[2];
}

static inline void
IvfpqIdToTid(uint64 id, ItemPointer tid)
{
	ItemPointerSet(tid, (BlockNumber) (id >> 16), (OffsetNumber) (id & 0xFFFF));
}

/* bound.c: records that bound distances */
extern int	IvfpqRefineOption(Relation index);
extern void IvfpqRefineCheckDims(Relation index, int dims);
extern IvfpqRecord *IvfpqRefineAlloc(int dims);
extern void IvfpqRefineMake(IvfpqRecord *record, const float *vector,
							int dims, bool boundable,
							const ItemPointerData *tid);
extern int64 IvfpqRefineBounds(const IvfpqSearch *search, const float *query,
							   uint64 *ids, int64 n, double *bounds);

/* tids.c */
extern struct Tuplesortstate *IvfpqSortTids(Relation index, int sort_mem);
extern struct Tuplesortstate *IvfpqSortSealed(Relation index,
											  const IvfpqSeal *seal,
											  int sort_mem);

/*
 * measure.c: the operator's own distance of a row, from the heap.
 */
typedef struct IvfpqRerank
{
	Relation	index;
	Relation	heap;
	BlockNumber heap_blocks;	/* no TID may lie beyond */
	Snapshot	snapshot;
	struct IndexFetchTableData *fetch;
	TupleTableSlot *slot;
	AttrNumber	attnum;			/* indexed column; 0 = an expression */
	IndexInfo  *indexInfo;		/* for an expression */
	EState	   *estate;
	FmgrInfo   *distance;
	Oid			collation;
	Datum		query;
	MemoryContext context;		/* reset after every row */
	int			dims;			/* measure rows of these only; 0 = all */
	IvfpqType	type;			/* when dims > 0 */
	bool	   *told;			/* was it said that one is passed over? */
	bool		asks_dead;		/* all_dead is wanted, */
	bool		all_dead;		/* of a row not seen: nobody ever will */
	bool		is_heap;
	IvfpqComing coming;			/* rows to be fetched, of a heap */
	IvfpqPrefetch	ahead;			/* the same, or rows foreseen */
} IvfpqRerank;

extern void IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap,
							 Relation index, Snapshot snapshot);
extern void IvfpqRerankQuery(IvfpqRerank *rerank, FmgrInfo *distance,
							 Oid collation, Datum query);
extern void IvfpqRerankDims(IvfpqRerank *rerank, int dims, bool *told);
extern void IvfpqRerankExpect(IvfpqRerank *rerank, const uint64 *ids,
							  int64 n);
extern bool IvfpqRerankIsCold(const IvfpqRerank *rerank);
extern void IvfpqRerankForesee(IvfpqRerank *rerank, const uint64 *ids,
							   int64 n);
extern bool IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value);
extern void IvfpqRerankDone(IvfpqRerank *rerank);
extern bool IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance);
extern void IvfpqRerankPause(IvfpqRerank *rerank);
extern void IvfpqRerankEnd(IvfpqRerank *rerank);

/*
 * identity.c: indexes named by users, and acting as a table's owner.
 */
typedef struct IvfpqIdentity
{
	Oid			userid;
	int			sec_context;
	int			guc_level;
	ErrorContextCallback context;
} IvfpqIdentity;

extern Relation IvfpqOpenIndex(Oid relid, LOCKMODE lockmode);
extern Relation IvfpqOpenIndexTable(Oid relid, LOCKMODE lockmode,
									Relation *table);
extern Relation IvfpqOpenToChange(Oid relid,
								  void (*check) (Relation table,
												 Relation index),
								  Relation *table);
extern void IvfpqCheckInspect(Relation index);
extern void IvfpqActAsOwner(IvfpqIdentity *caller, Relation table);
extern void IvfpqActAsCaller(const IvfpqIdentity *caller);
extern void IvfpqRenewExpressions(IndexInfo *indexInfo, Relation index);
extern IndexInfo *IvfpqIndexInfo(Relation index);
extern bool IvfpqIsInterpreted(Relation index, bool predicate);
extern void IvfpqCheckActing(Relation table, Relation index);

/* inspect.c */
extern bool IvfpqHasPlace(IvfpqType *type, Datum value, int dims);
extern int64 IvfpqCountRows(Relation index, const IvfpqMetaData *meta);
extern int64 IvfpqCountPending(Relation index, const IvfpqMetaData *meta);

/* drift.c: codes that no longer fit */
extern bool IvfpqHasDrifted(Relation heap, Relation index, int64 copies,
							int *drawn, int *far);

/*
 * verifymirror.c: a problem of a list, or IVFPQ_NO_LIST, on a block, or
 * InvalidBlockNumber; an error or a warning.
 */
typedef void (*IvfpqProblem) (void *arg, bool error, BlockNumber blkno,
							  uint32 list, const char *problem);

extern void IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg);

/*
 * inplace.c, drain.c: an index that is in use gets trained, and
 * its pending rows go to lists.
 */
typedef struct IvfpqTrainResult
{
	int			nlists;			/* of the index now; 0 = still untrained */
	bool		trained;		/* it was untrained before */
	double		rows;			/* then: what the table has to index, about */
	int64		moved;			/* rows that went to lists */
	int64		kept;			/* rows that stay pending, because nobody sees
								 * them yet, or any more */
	int64		odd;			/* rows that do because of their dimensions */
} IvfpqTrainResult;

extern void IvfpqTrainInPlace(Relation heap, Relation index,
							  IvfpqTrainResult *result);
extern void IvfpqDrain(Relation heap, Relation index,
					   IvfpqTrainResult *result);
extern void IvfpqTrainOrDrain(Relation heap, Relation index,
							  IvfpqTrainResult *result);

/* snapshot.c: what a background worker reads rows under */
extern void IvfpqSnapshotsAreOurs(void);
extern void IvfpqSnapshotTake(void);
extern void IvfpqSnapshotDrop(void);
extern void IvfpqSnapshotForget(void);
extern void IvfpqSnapshotRenew(void);

/*
 * turn.c: which database's worker trains, and whose code it runs.
 */
#define IVFPQ_WORKER_OWNERS 28	/* as many as go with an order */

typedef struct IvfpqWorkerOrder
{
	Oid			database;
	Oid			owner;			/* whose code this worker has run, if any */
	Oid			next;			/* index that the next worker begins with */
	int			nowners;
	Oid			owners[IVFPQ_WORKER_OWNERS];	/* ... this one or those before */
} IvfpqWorkerOrder;

extern int	IvfpqTurnTake(void);
extern void IvfpqTurnGiveBack(int turn);
extern bool IvfpqTurnIsFree(void);
extern bool IvfpqTurnIsFor(IvfpqWorkerOrder *order, Relation index);
extern bool IvfpqTurnUse(IvfpqWorkerOrder *order, Relation index);

/* worker.c: a background worker does it when VACUUM asks */
extern void IvfpqAskForWorker(IndexVacuumInfo *info);

#endif							/* IVFPQ_H */
