/*
 * pgcompat.h
 *		Differences between PostgreSQL 15 and 19; the only file that asks for
 *		the version.
 */
#ifndef PGCOMPAT_H
#define PGCOMPAT_H

#include "access/amapi.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/nbtxlog.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "nodes/tidbitmap.h"
#include "optimizer/cost.h"
#include "optimizer/pathnode.h"
#include "optimizer/planner.h"
#include "optimizer/plancat.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplesort.h"
#include "utils/typcache.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error "gpuvec supports PostgreSQL 15 to 19"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "commands/explain.h"
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
#if PG_VERSION_NUM >= 190000
#include "optimizer/geqo.h"
#endif

/*
 * Add a page to the main fork; returned pinned and exclusively locked, all
 * zero.
 */
static inline Buffer
IvfpqExtendRelation(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return ExtendBufferedRel(BMR_REL(rel), MAIN_FORKNUM, NULL, EB_LOCK_FIRST);
#else
	Buffer		buf;

	LockRelationForExtension(rel, ExclusiveLock);
	buf = ReadBufferExtended(rel, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, NULL);
	UnlockRelationForExtension(rel, ExclusiveLock);
	return buf;
#endif
}

/* ReadRecentBuffer of the main fork. */
static inline bool
IvfpqReadRecentBuffer(Relation rel, BlockNumber blkno, Buffer buffer)
{
#if PG_VERSION_NUM >= 160000
	return ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, blkno, buffer);
#else
	return ReadRecentBuffer(rel->rd_node, MAIN_FORKNUM, blkno, buffer);
#endif
}

/*
 * Add that many consecutive pages, all zero, to the main fork; returns the
 * first.
 */
static inline BlockNumber
IvfpqExtendRelationBy(Relation rel, BlockNumber npages)
{
	BlockNumber first = InvalidBlockNumber;
	BlockNumber done = 0;

	LockRelationForExtension(rel, ExclusiveLock);
	while (done < npages)
	{
		Buffer		buffers[64];
		uint32		n = 1;

		CHECK_FOR_INTERRUPTS();
#if PG_VERSION_NUM >= 160000
		ExtendBufferedRelBy(BMR_REL(rel), MAIN_FORKNUM, NULL,
							EB_SKIP_EXTENSION_LOCK,
							Min(lengthof(buffers), npages - done), buffers,
							&n);
#else
		buffers[0] = ReadBufferExtended(rel, MAIN_FORKNUM, P_NEW, RBM_NORMAL,
										NULL);
#endif
		if (done == 0)
			first = BufferGetBlockNumber(buffers[0]);
		for (uint32 i = 0; i < n; i++)
			ReleaseBuffer(buffers[i]);
		done += n;
	}
	UnlockRelationForExtension(rel, ExclusiveLock);
	return first;
}

/*
 * Slots of IndexAmRoutine that not every version has.  18 needs no
 * translation of strategies, which only equality and ordering AMs offer.
 */
static inline void
IvfpqFillVersionSlots(IndexAmRoutine *amroutine)
{
#if PG_VERSION_NUM >= 160000
	amroutine->amsummarizing = false;
#endif
#if PG_VERSION_NUM >= 170000
	amroutine->amcanbuildparallel = true;
	amroutine->aminsertcleanup = NULL;
#endif
#if PG_VERSION_NUM >= 180000
	amroutine->amcanhash = false;
	amroutine->amconsistentequality = false;
	amroutine->amconsistentordering = false;
	amroutine->amgettreeheight = NULL;
	amroutine->amtranslatestrategy = NULL;
	amroutine->amtranslatecmptype = NULL;
#endif
}

static inline void
IvfpqVacuumDelayPoint(void)
{
#if PG_VERSION_NUM >= 180000
	vacuum_delay_point(false);
#else
	vacuum_delay_point();
#endif
}

/* The next Datum of a sort of by-value Datums; false at the end. */
static inline bool
IvfpqTuplesortGetDatum(Tuplesortstate *sort, Datum *value, bool *isnull)
{
#if PG_VERSION_NUM >= 160000
	return tuplesort_getdatum(sort, true, false, value, isnull, NULL);
#else
	return tuplesort_getdatum(sort, true, value, isnull, NULL);
#endif
}

/* Does a key of an order ask for small values first? */
static inline bool
IvfpqIsAscending(const PathKey *key)
{
#if PG_VERSION_NUM >= 180000
	return key->pk_cmptype == COMPARE_LT;
#else
	return key->pk_strategy == BTLessStrategyNumber;
#endif
}

static inline void
IvfpqSetAscending(PathKey *key)
{
#if PG_VERSION_NUM >= 180000
	key->pk_cmptype = COMPARE_LT;
#else
	key->pk_strategy = BTLessStrategyNumber;
#endif
}

/*
 * The order in which a set operation may take the rows of one of its queries:
 * before 17 it sorts or hashes them itself.
 */
static inline List *
IvfpqSetOperationKeys(const PlannerInfo *root)
{
#if PG_VERSION_NUM >= 170000
	return root->setop_pathkeys;
#else
	return NIL;
#endif
}

/*
 * Returns whether a constraint says that no row has NULL in a column.  From
 * PostgreSQL 18 on attnotnull says so of constraints that are NOT VALID, too:
 * older rows may have NULL.
 */
static inline bool
IvfpqIsNotNull(TupleDesc desc, int attno)
{
#if PG_VERSION_NUM >= 180000
	return TupleDescCompactAttr(desc, attno - 1)->attnullability ==
		ATTNULLABLE_VALID;
#else
	return TupleDescAttr(desc, attno - 1)->attnotnull;
#endif
}

/* All relations of a query level: the join of the whole level has these. */
static inline Relids
IvfpqAllRels(const PlannerInfo *root)
{
#if PG_VERSION_NUM >= 160000
	return root->all_query_rels;
#else
	return root->all_baserels;
#endif
}

/* Mark a path as one that only a lack of others may choose. */
static inline void
IvfpqDisablePath(Path *path)
{
#if PG_VERSION_NUM >= 180000
	path->disabled_nodes = 2;
#endif
}

/* A path is disabled where the one that it stands for is. */
static inline void
IvfpqCopyDisabled(Path *path, const Path *from)
{
#if PG_VERSION_NUM >= 180000
	path->disabled_nodes = from->disabled_nodes;
#endif
}

/*
 * Have a function called for every node that EXPLAIN shows, where there is a
 * hook for that; returns which one was called so far.
 */
struct ExplainState;
typedef void (*IvfpqExplainHook) (PlanState *planstate, List *ancestors,
								  const char *relationship,
								  const char *plan_name,
								  struct ExplainState *es);

static inline IvfpqExplainHook
IvfpqHookExplain(IvfpqExplainHook hook)
{
	IvfpqExplainHook previous = NULL;

#if PG_VERSION_NUM >= 180000
	previous = explain_per_node_hook;
	explain_per_node_hook = hook;
#endif
	return previous;
}

/* Count a search for EXPLAIN ANALYZE. */
static inline void
IvfpqCountIndexSearch(IndexScanDesc scan)
{
#if PG_VERSION_NUM >= 180000
	if (scan->instrument)
		scan->instrument->nsearches++;
#endif
}

/* ERROR unless the current user may do what a plan does. */
static inline void
IvfpqCheckPermissions(PlannedStmt *plan)
{
#if PG_VERSION_NUM >= 160000
	(void) ExecCheckPermissions(plan->rtable, plan->permInfos, true);
#else
	(void) ExecCheckRTPerms(plan->rtable, true);
#endif
}

/* Begins an ordered scan that no EXPLAIN reports. */
static inline IndexScanDesc
IvfpqIndexBeginScan(Relation heap, Relation index, Snapshot snapshot)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(heap, index, snapshot, NULL, 0, 1, SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, 0, 1);
#else
	return index_beginscan(heap, index, snapshot, 0, 1);
#endif
}

/* Begin the scan of an executor's node. */
static inline IndexScanDesc
IvfpqIndexBeginScanOf(IndexScanState *node)
{
	Relation	heap = node->ss.ss_currentRelation;
	Snapshot	snapshot = node->ss.ps.state->es_snapshot;

#if PG_VERSION_NUM >= 190000
	return index_beginscan(heap, node->iss_RelationDesc, snapshot,
						   node->iss_Instrument, node->iss_NumScanKeys,
						   node->iss_NumOrderByKeys,
						   ScanRelIsReadOnly(&node->ss) ?
						   SO_HINT_REL_READ_ONLY : SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(heap, node->iss_RelationDesc, snapshot,
						   &node->iss_Instrument, node->iss_NumScanKeys,
						   node->iss_NumOrderByKeys);
#else
	return index_beginscan(heap, node->iss_RelationDesc, snapshot,
						   node->iss_NumScanKeys, node->iss_NumOrderByKeys);
#endif
}

/* Returns the status of a backend, of those there are, counted from 1. */
static inline LocalPgBackendStatus *
IvfpqBackendEntry(int i)
{
#if PG_VERSION_NUM >= 160000
	return pgstat_get_local_beentry_by_index(i);
#else
	return pgstat_fetch_stat_local_beentry(i);
#endif
}

/* VACUUMs of a table, by hand or not, as far as statistics know. */
static inline int64
IvfpqCountVacuums(Oid relid)
{
	PgStat_StatTabEntry *entry = pgstat_fetch_stat_tabentry(relid);

	if (entry == NULL)
		return 0;
#if PG_VERSION_NUM >= 160000
	return entry->vacuum_count + entry->autovacuum_count;
#else
	return entry->vacuum_count + entry->autovac_vacuum_count;
#endif
}

/* In a background worker: no limit to how long a transaction takes. */
static inline void
IvfpqSetNoTransactionTimeout(void)
{
#if PG_VERSION_NUM >= 170000
	SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
#endif
}

/* Does the role own the relation? */
static inline bool
IvfpqOwnsRelation(Oid relid, Oid roleid)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, roleid);
#else
	return pg_class_ownercheck(relid, roleid);
#endif
}

/* nbtree's record that pages are used again, which conflicts with snapshots. */
static inline xl_btree_reuse_page
IvfpqReuseRecord(Relation index, FullTransactionId xid)
{
	xl_btree_reuse_page record;

	memset(&record, 0, sizeof(record));
	record.block = InvalidBlockNumber;
#if PG_VERSION_NUM >= 160000
	record.locator = index->rd_locator;
	record.snapshotConflictHorizon = xid;
#else
	record.node = index->rd_node;
	record.latestRemovedFullXid = xid;
#endif
	return record;
}

/* Where an index's pages are. */
typedef struct IvfpqStorage
{
	Oid			database;
	Oid			tablespace;
	Oid			number;			/* relfilenumber */
} IvfpqStorage;

static inline IvfpqStorage
IvfpqStorageOf(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	IvfpqStorage storage = {rel->rd_locator.dbOid, rel->rd_locator.spcOid,
	rel->rd_locator.relNumber};
#else
	IvfpqStorage storage = {rel->rd_node.dbNode, rel->rd_node.spcNode,
	rel->rd_node.relNode};
#endif

	return storage;
}

/* Was the relation made or rewritten in a transaction that still runs? */
static inline bool
IvfpqIsUncommitted(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	SubTransactionId rewritten = rel->rd_firstRelfilelocatorSubid;
#else
	SubTransactionId rewritten = rel->rd_firstRelfilenodeSubid;
#endif

	return rel->rd_createSubid != InvalidSubTransactionId ||
		rewritten != InvalidSubTransactionId;
}

/*
 * The first file of a permanent or unlogged relation, below the data folder.
 */
static inline void
IvfpqStoragePath(IvfpqStorage storage, char *path, Size size)
{
#if PG_VERSION_NUM >= 180000
	strlcpy(path, GetRelationPath(storage.database, storage.tablespace,
								  storage.number, INVALID_PROC_NUMBER,
								  MAIN_FORKNUM).str, size);
#else
	char	   *name = GetRelationPath(storage.database, storage.tablespace,
									   storage.number, -1, MAIN_FORKNUM);

	strlcpy(path, name, size);
	pfree(name);
#endif
}

/*
 * Returns whether snapshots can get too old (old_snapshot_threshold, before 17;
 * with utils/snapmgr.h).
 */
#if PG_VERSION_NUM >= 170000
#define IvfpqSnapshotsExpire()	false
#else
#define IvfpqSnapshotsExpire()	(old_snapshot_threshold >= 0)
#endif

/* Makes a WaitEventSet that lasts until it is freed. */
static inline WaitEventSet *
IvfpqCreateWaitEventSet(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* The usage count of a buffer; with storage/buf_internals.h. */
#if PG_VERSION_NUM >= 190000
#define IvfpqBufferUsage(desc) \
	BUF_STATE_GET_USAGECOUNT(pg_atomic_read_u64(&(desc)->state))
#else
#define IvfpqBufferUsage(desc) \
	BUF_STATE_GET_USAGECOUNT(pg_atomic_read_u32(&(desc)->state))
#endif

/* Begins to read all rows of a table. */
static inline TableScanDesc
IvfpqTableBeginScan(Relation rel, Snapshot snapshot)
{
#if PG_VERSION_NUM >= 190000
	return table_beginscan(rel, snapshot, 0, NULL, SO_NONE);
#else
	return table_beginscan(rel, snapshot, 0, NULL);
#endif
}

/* The same for a participant of a parallel scan. */
static inline TableScanDesc
IvfpqTableBeginParallelScan(Relation rel, ParallelTableScanDesc shared)
{
#if PG_VERSION_NUM >= 190000
	return table_beginscan_parallel(rel, shared, SO_NONE);
#else
	return table_beginscan_parallel(rel, shared);
#endif
}

/* Begins to fetch rows of a table by their places. */
static inline IndexFetchTableData *
IvfpqTableBeginFetch(Relation rel)
{
#if PG_VERSION_NUM >= 190000
	return table_index_fetch_begin(rel, SO_NONE);
#else
	return table_index_fetch_begin(rel);
#endif
}

/*
 * Make a page of a heap, of which the caller has a pin, the current one of such
 * a fetch, which takes the pin over; removes dead rows if it is worth it.
 */
static inline void
IvfpqGiveHeapPage(Relation heap, IndexFetchHeapData *fetch, Buffer buffer)
{
	if (BufferIsValid(fetch->xs_cbuf))
		ReleaseBuffer(fetch->xs_cbuf);
	fetch->xs_cbuf = buffer;
#if PG_VERSION_NUM >= 190000
	fetch->xs_blk = BufferGetBlockNumber(buffer);
	heap_page_prune_opt(heap, buffer, &fetch->xs_vmbuffer, false);
#else
	heap_page_prune_opt(heap, buffer);
#endif
}

/* A descriptor that was made by hand is complete. */
static inline void
IvfpqFinishTupleDesc(TupleDesc desc)
{
#if PG_VERSION_NUM >= 190000
	TupleDescFinalize(desc);
#endif
}

static inline TupleTableSlot *
IvfpqAllocTableSlot(EState *estate, TupleDesc desc,
					const TupleTableSlotOps *ops)
{
#if PG_VERSION_NUM >= 190000
	return ExecAllocTableSlot(&estate->es_tupleTable, desc, ops, 0);
#else
	return ExecAllocTableSlot(&estate->es_tupleTable, desc, ops);
#endif
}

/* What EXPLAIN ANALYZE counts of a node. */
#if PG_VERSION_NUM >= 190000
typedef NodeInstrumentation IvfpqNodeInstrumentation;
#else
typedef Instrumentation IvfpqNodeInstrumentation;
#endif

static inline bool
IvfpqDomainHasConstraints(Oid type)
{
#if PG_VERSION_NUM >= 190000
	return DomainHasConstraints(type, NULL);
#else
	return DomainHasConstraints(type);
#endif
}

/* The parameters of a planner_hook, and what it passes on. */
#if PG_VERSION_NUM >= 190000
#define IVFPQ_PLANNER_PARAMS \
	Query *query, const char *source, int options, ParamListInfo params, \
	struct ExplainState *explain
#define IVFPQ_PLANNER_ARGS	query, source, options, params, explain
#else
#define IVFPQ_PLANNER_PARAMS \
	Query *query, const char *source, int options, ParamListInfo params
#define IVFPQ_PLANNER_ARGS	query, source, options, params
#endif

/* Plans a statement without parameters. */
static inline PlannedStmt *
IvfpqPlanQuery(Query *query, const char *source, int options)
{
#if PG_VERSION_NUM >= 190000
	return pg_plan_query(query, source, options, NULL, NULL);
#else
	return pg_plan_query(query, source, options, NULL);
#endif
}

/*
 * The hook that may drop indexes of relation IVFPQ_INFO_TABLE before paths are
 * made, and its parameters.
 */
#if PG_VERSION_NUM >= 190000
typedef build_simple_rel_hook_type IvfpqInfoHook;
#define IVFPQ_INFO_HOOK		build_simple_rel_hook
#define IVFPQ_INFO_PARAMS	PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte
#define IVFPQ_INFO_ARGS		root, rel, rte
#define IVFPQ_INFO_TABLE	(rte->rtekind == RTE_RELATION ? rte->relid : InvalidOid)
#else
typedef get_relation_info_hook_type IvfpqInfoHook;
#define IVFPQ_INFO_HOOK		get_relation_info_hook
#define IVFPQ_INFO_PARAMS \
	PlannerInfo *root, Oid table, bool inhparent, RelOptInfo *rel
#define IVFPQ_INFO_ARGS		root, table, inhparent, rel
#define IVFPQ_INFO_TABLE	table
#endif

/* Does GEQO try orders of joins at this query level? */
static inline bool
IvfpqIsGeqo(PlannerInfo *root)
{
#if PG_VERSION_NUM >= 190000
	/* less than 0 before its first use */
	return Geqo_planner_extension_id >= 0 &&
		GetPlannerInfoExtensionState(root, Geqo_planner_extension_id) != NULL;
#else
	return root->join_search_private != NULL;
#endif
}

/* May a nested loop have its inner rows in memory? */
static inline bool
IvfpqMaterializes(const JoinPathExtraData *extra)
{
#if PG_VERSION_NUM >= 190000
	return (extra->pgs_mask & PGS_NESTLOOP_MATERIALIZE) != 0;
#else
	return enable_material;
#endif
}

static inline Path *
IvfpqMaterialPath(RelOptInfo *rel, Path *subpath)
{
#if PG_VERSION_NUM >= 190000
	return (Path *) create_material_path(rel, subpath, true);
#else
	return (Path *) create_material_path(rel, subpath);
#endif
}

static inline void
IvfpqCostNestLoop(PlannerInfo *root, JoinCostWorkspace *workspace,
				  JoinType jointype, Path *outer, Path *inner,
				  JoinPathExtraData *extra)
{
#if PG_VERSION_NUM >= 190000
	initial_cost_nestloop(root, workspace, jointype,
						  PGS_CONSIDER_NONPARTIAL |
						  (IsA(inner, MaterialPath) ?
						   PGS_NESTLOOP_MATERIALIZE : PGS_NESTLOOP_PLAIN),
						  outer, inner, extra);
#else
	initial_cost_nestloop(root, workspace, jointype, outer, inner, extra);
#endif
}

static inline Path *
IvfpqMergeAppendPath(PlannerInfo *root, RelOptInfo *rel, List *paths,
					 List *pathkeys)
{
#if PG_VERSION_NUM >= 190000
	return (Path *) create_merge_append_path(root, rel, paths, NIL, pathkeys,
											 NULL);
#else
	return (Path *) create_merge_append_path(root, rel, paths, pathkeys, NULL);
#endif
}

/* A JSON document that is made step by step. */
#if PG_VERSION_NUM >= 190000
typedef JsonbInState IvfpqJsonb;
#else
typedef struct IvfpqJsonb
{
	JsonbParseState *state;
	JsonbValue *result;
} IvfpqJsonb;
#endif

static inline void
IvfpqPushJsonb(IvfpqJsonb *document, JsonbIteratorToken token,
			   JsonbValue *value)
{
#if PG_VERSION_NUM >= 190000
	pushJsonbValue(document, token, value);
#else
	document->result = pushJsonbValue(&document->state, token, value);
#endif
}

/* A tranche of locks in memory that is no preloaded library's. */
static inline int
IvfpqNewTranche(const char *name)
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

/* Tells a process the name of such a tranche. */
static inline void
IvfpqNameTranche(int tranche, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche, name);
#endif
}

/* In a handler of SIGINT: as a session takes it. */
#if PG_VERSION_NUM >= 190000
#define IvfpqTakeCancel()	StatementCancelHandler(postgres_signal_arg, pg_siginfo)
#else
#define IvfpqTakeCancel()	StatementCancelHandler(postgres_signal_arg)
#endif

/*
 * Shared memory that the first process which asks for it by this name makes,
 * and that stays; NULL where the server has none but for preloaded libraries.
 */
#if PG_VERSION_NUM >= 190000
static inline void
IvfpqInitNamedMemory(void *memory, void *init)
{
	(*(void (**) (void *)) init) (memory);
}
#endif

static inline void *
IvfpqNamedMemory(const char *name, Size size, void (*init) (void *memory))
{
#if PG_VERSION_NUM >= 190000
	bool		found;

	return GetNamedDSMSegment(name, size, IvfpqInitNamedMemory, &found, &init);
#elif PG_VERSION_NUM >= 170000
	bool		found;

	return GetNamedDSMSegment(name, size, init, &found);
#else
	return NULL;
#endif
}

/*
 * The wait event that pg_stat_activity shows of a backend that waits for
 * gpuvecd.
 */
static inline uint32
IvfpqWaitEvent(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("GpuvecServer");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

static inline MinimalTuple
IvfpqFormMinimalTuple(TupleDesc descriptor, Datum *values, bool *isnulls)
{
#if PG_VERSION_NUM >= 180000
	return heap_form_minimal_tuple(descriptor, values, isnulls, 0);
#else
	return heap_form_minimal_tuple(descriptor, values, isnulls);
#endif
}

/* Returns whether a node is JSON_QUERY or the like, which are new in 17. */
static inline bool
IvfpqIsJsonExpr(const Node *node)
{
#if PG_VERSION_NUM >= 170000
	return IsA(node, JsonExpr);
#else
	return false;
#endif
}

/* An iteration over the pages of a TIDBitmap. */
typedef struct IvfpqTidIterator
{
#if PG_VERSION_NUM >= 180000
	TBMPrivateIterator *iterator;
#else
	TBMIterator *iterator;
#endif
} IvfpqTidIterator;

static inline void
IvfpqTidIterate(IvfpqTidIterator *iterator, TIDBitmap * tids)
{
#if PG_VERSION_NUM >= 180000
	iterator->iterator = tbm_begin_private_iterate(tids);
#else
	iterator->iterator = tbm_begin_iterate(tids);
#endif
}

/*
 * Sets *blkno and offsets [MaxHeapTuplesPerPage] to the next page and its
 * offsets, and returns their number: all offsets if the bitmap is lossy there,
 * and 0 at the end.
 */
static inline int
IvfpqTidNextPage(IvfpqTidIterator *iterator, BlockNumber *blkno,
				 OffsetNumber *offsets)
{
	int			n;
#if PG_VERSION_NUM >= 180000
	TBMIterateResult page;

	if (!tbm_private_iterate(iterator->iterator, &page))
		return 0;
	*blkno = page.blockno;
	n = page.lossy ? -1 :
		tbm_extract_page_tuple(&page, offsets, MaxHeapTuplesPerPage);
#else
	const		TBMIterateResult *page = tbm_iterate(iterator->iterator);

	if (page == NULL)
		return 0;
	*blkno = page->blockno;
	n = page->ntuples;
	if (n > 0)
		memcpy(offsets, page->offsets, n * sizeof(OffsetNumber));
#endif
	if (n >= 0)
		return n;
	for (n = 0; n < MaxHeapTuplesPerPage; n++)
		offsets[n] = (OffsetNumber) (FirstOffsetNumber + n);
	return n;
}

static inline void
IvfpqTidIterateEnd(IvfpqTidIterator *iterator)
{
#if PG_VERSION_NUM >= 180000
	tbm_end_private_iterate(iterator->iterator);
#else
	tbm_end_iterate(iterator->iterator);
#endif
}

#endif							/* PGCOMPAT_H */
