/*
 * ivfpqscan.c
 *		The ordered scan: its callbacks, its start, and its next row.
 *
 * Candidates come in batches.  Each batch takes more candidates from more
 * lists than the one before (depth.c), reranks the candidates that were not
 * reranked before, and returns as many rows as its quota allows.  The other
 * rows wait in a queue for the next batch (roworder.c).  So the access method
 * does not need to know a LIMIT, and imposes none.
 *
 * With refine records a batch reranks nothing.  Instead, rows enter the queue
 * with bounds of their distances.  A row is fetched and reranked only when it
 * is first in the queue, and most rows of a batch never become first.  A row
 * that has an upper bound is returned unfetched if no other row can be nearer.
 *
 * The scan ends with one pass over all remaining rows (batch.c) if the index
 * is untrained, or if a batch would rerank or return too many rows or take too
 * much memory.  So the worst case costs about as much as a sequential scan and
 * a sort.
 *
 * A scan also learns from the executor how many rows its statement needs
 * ("Limits" below), even for LIMIT $1 and LIMIT (SELECT ...).  Nodes between
 * the Limit and the scan may drop or multiply rows.  So the number is only a
 * hint, and recall does not depend on it.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/querylog.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/heaptids.h"
#include "am/types/sqldistance.h"
#include "client/client.h"
#include "pgcompat.h"

const IvfpqScanFilter ivfpq_no_filter = {
	.goal = {.selectivity = 1, .key_selectivity = 1}
};

/*
 * Limits.  When a statement starts, the hook walks the finished plan, and
 * notes each of our index scans with the Limit node above it.  The Limit
 * computes its numbers before it requests its first row, and again after each
 * rescan, so a scan can read these numbers when it starts.
 *
 * amrescan does not get the plan node, but it gets the node's array of order
 * keys, which belongs to no other node.  Notes live in the memory of the
 * statement, as the plan and the scan do, and are freed with that memory.
 */

/* A note of one of our index scans. */
typedef struct Note
{
	dlist_node	node;
	const IndexScanState *scan;
	const LimitState *limit;	/* the next Limit above the scan, or NULL */
	MemoryContextCallback callback;
} Note;

/* The state of a walk over a plan. */
typedef struct Walk
{
	PlanState  *above;			/* the node above, or NULL */
	const LimitState *limit;	/* the Limit on the rows of `above`, or NULL */
	MemoryContext context;		/* memory of the statement */
} Walk;

static dlist_head notes = DLIST_STATIC_INIT(notes);
static ExecutorStart_hook_type previous_start = NULL;

/* Memory context callback.  Removes a note at the end of its statement. */
static void
forget(void *arg)
{
	dlist_delete(&((Note *) arg)->node);
}

static bool
is_among(const PlanState *node, PlanState **others, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (others[i] == node)
			return true;
	}
	return false;
}

/*
 * Returns whether `above` needs about as many rows from its child `node` as it
 * returns itself.  Not all nodes that may be above a scan
 * (src/planner/plancheck.c) do so.  For example, ProjectSet may return several
 * rows for each row of its child.
 */
static bool
hands_on(PlanState *above, PlanState *node)
{
	switch (nodeTag(above))
	{
		case T_AppendState:
			return is_among(node, ((AppendState *) above)->appendplans,
							((AppendState *) above)->as_nplans);
		case T_MergeAppendState:
			return is_among(node, ((MergeAppendState *) above)->mergeplans,
							((MergeAppendState *) above)->ms_nplans);
		case T_SubqueryScanState:
			return node == ((SubqueryScanState *) above)->subplan;
		case T_CustomScanState:
			return strcmp(((CustomScanState *) above)->methods->CustomName,
						  IVFPQ_CUSTOM_NAME) == 0 &&
				node == linitial(((CustomScanState *) above)->custom_ps);
		case T_LimitState:
		case T_ResultState:
		case T_LockRowsState:
		case T_NestLoopState:
		case T_IncrementalSortState:
		case T_UniqueState:
		case T_WindowAggState:
			return node == outerPlanState(above);
		default:
			return false;
	}
}

/* Notes the index scans at this plan node and below it. */
static bool
walk_plan(PlanState *node, void *context)
{
	const Walk *walk = context;
	Walk		below = {node, NULL, walk->context};
	const IndexScanState *scan = IsA(node, IndexScanState) ?
	(IndexScanState *) node : NULL;

	check_stack_depth();
	if (IsA(node, LimitState))
		below.limit = (LimitState *) node;
	else if (walk->above != NULL && hands_on(walk->above, node))
		below.limit = walk->limit;

	/* EXPLAIN without ANALYZE does not open the index */
	if (scan != NULL && scan->iss_RelationDesc != NULL &&
		scan->iss_NumOrderByKeys != 0 &&
		scan->iss_RelationDesc->rd_indam->amgettuple == ivfpqgettuple)
	{
		Note	   *note = MemoryContextAllocZero(walk->context, sizeof(Note));

		note->scan = scan;
		note->limit = below.limit;
		note->callback.func = forget;
		note->callback.arg = note;
		dlist_push_head(&notes, &note->node);
		MemoryContextRegisterResetCallback(walk->context, &note->callback);
	}
	return planstate_tree_walker(node, walk_plan, &below);
}

/* ExecutorStart_hook.  Notes the index scans of a statement that starts. */
static void
start_statement(QueryDesc *query, int eflags)
{
	Walk		walk = {0};

	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (query->planstate == NULL || (eflags & EXEC_FLAG_EXPLAIN_ONLY))
		return;
	walk.context = query->estate->es_query_cxt;
	(void) walk_plan(query->planstate, &walk);
}

/* Installs the hook.  Must be called once in a process. */
void
IvfpqInitLimit(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = start_statement;
}

/* ambeginscan callback. */
IndexScanDesc
ivfpqbeginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc desc = RelationGetIndexScan(index, nkeys, norderbys);
	IvfpqScan  *scan = palloc0(sizeof(IvfpqScan));

	scan->index = index;
	scan->filter = &ivfpq_no_filter;
	scan->context = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq scan",
										  ALLOCSET_DEFAULT_SIZES);
	desc->opaque = scan;
	return desc;
}

/*
 * Ends the run: reports its work, releases its pins, files and relations, and
 * frees its memory.  Keeps the fields that live as long as the descriptor.
 */
static void
end_run(IvfpqScan *scan)
{
	IvfpqScanRun *run = &scan->run;

	if (run->index != NULL)
	{
		IvfpqScanReportOf(scan, &scan->last_report);
		IvfpqReportScan(&scan->last_report, false);
	}
	IvfpqSortEnd(&run->pass.sort);
	if (run->rerank)
		IvfpqRerankEnd(run->rerank);
	MemoryContextReset(scan->context);
	memset(run, 0, sizeof(*run));
}

/*
 * Copies the scan keys given [n], which were passed to a rescan, to keys [n].
 * As in GiST, a key keeps the data that its operator's function has cached in
 * it.  Otherwise every rescan would make the data again, and would use more
 * memory until the end of the statement.
 */
static void
take_keys(IvfpqScan *scan, ScanKey keys, const ScanKeyData *given, int n)
{
	for (int i = 0; i < n; i++)
	{
		FmgrInfo	function = keys[i].sk_func;
		FmgrInfo	wanted = given[i].sk_func;

		keys[i] = given[i];
		if (scan->keys_set && function.fn_oid == wanted.fn_oid)
			keys[i].sk_func = function;
		else if (OidIsValid(wanted.fn_oid)) /* IS NULL has no function */
			fmgr_info_copy(&keys[i].sk_func, &wanted,
						   GetMemoryChunkContext(scan));
	}
}

/* amrescan callback. */
void
ivfpqrescan(IndexScanDesc desc, ScanKey keys, int nkeys,
			ScanKey orderbys, int norderbys)
{
	IvfpqScan  *scan = (IvfpqScan *) desc->opaque;

	end_run(scan);
	if (keys != NULL)
		take_keys(scan, desc->keyData, keys, desc->numberOfKeys);

	/*
	 * Find the note of the plan node.  The plan node, and so its Limit, is
	 * the same at every rescan.
	 */
	if (orderbys != NULL && !scan->keys_set)
	{
		dlist_iter	iter;

		scan->limit = NULL;
		scan->planned_rows = 0;
		dlist_foreach(iter, &notes)
		{
			const Note *note = dlist_container(Note, node, iter.cur);

			if (note->scan->iss_OrderByKeys != orderbys)
				continue;
			scan->limit = note->limit;
			scan->planned_rows = note->scan->ss.ps.plan->plan_rows;
			break;
		}
	}
	if (orderbys != NULL)
		take_keys(scan, desc->orderByData, orderbys, desc->numberOfOrderBys);
	scan->keys_set = true;
}

/* amendscan callback. */
void
ivfpqendscan(IndexScanDesc desc)
{
	IvfpqScan  *scan = (IvfpqScan *) desc->opaque;

	end_run(scan);
	MemoryContextDelete(scan->context);
	pfree(scan);
	desc->opaque = NULL;
}

/*
 * Sets the scan's filter.  Must be called before the first row is requested.
 */
void
IvfpqScanSetFilter(IndexScanDesc desc, const IvfpqScanFilter *filter)
{
	Assert(filter->early_qual != NULL && filter->late_qual != NULL);
	((IvfpqScan *) desc->opaque)->filter = filter;
}

/*
 * Returns whether the query, and so each distance, is NULL.  This is known
 * only after the first row was requested.
 */
bool
IvfpqScanIsOfNull(IndexScanDesc desc)
{
	return ((IvfpqScan *) desc->opaque)->run.query.is_null;
}

/*
 * Checks the dimensions of the query and, if the index is trained, prepares to
 * search for the query.
 */
static void
start_search(IvfpqScanRun *run, Relation heap, ScanKey key)
{
	const IvfpqMetaData *meta = &run->model->meta;
	IvfpqType	type;
	const float *vector;
	float	   *transformed;
	int			dims;

	IvfpqTypeInit(&type, run->index);

	/*
	 * If the declaration of the index does not fix the dimensions, its rows
	 * do.  While the index is untrained, the query must have the dimensions
	 * of these rows.  Pending rows of other dimensions may have to be left
	 * out.  The rows of nearly all trained indexes were checked before.
	 */
	if (type.typmod_dims <= 0 &&
		(meta->nlists == 0 || !(meta->dims_flags & IVFPQ_DIMS_CHECKED)))
	{
		int			expected = IvfpqRowDims(heap, run->index, meta);

		if (meta->nlists == 0 && expected > 0)
		{
			(void) IvfpqQueryFloats(&type, key->sk_subtype, key->sk_argument,
									&dims);
			if (dims != expected && IvfpqDimsBind(heap, run->index, meta))
				IvfpqCheckDims(expected, dims);
		}
		if (!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
			run->query.pending_dims = expected;
	}
	if (meta->nlists == 0)
		return;

	vector = IvfpqQueryFloats(&type, key->sk_subtype, key->sk_argument, &dims);
	IvfpqCheckDims(meta->dims, dims);
	IvfpqLogQuery(run->index, meta, vector, run->query.recall,
				  run->is_filtered || run->keys.any);
	transformed = palloc(dims * sizeof(float));
	IvfpqTransform(run->index, run->model, vector, transformed);
	IvfpqSearchInit(&run->search, run->index, run->model);
	run->search.report = &run->report;
	run->search.addresses = meta->refine != IVFPQ_REFINE_NONE;

	/*
	 * A dead row's posting may lead to the refine record of another row, so
	 * all keys must be rechecked.  See README, "Keys".
	 */
	run->rerank->recheck_all_keys = run->search.addresses;
	if (run->keys.any)
		IvfpqSearchCondition(&run->search, &run->keys.quals.condition);
	IvfpqSearchQuery(&run->search, transformed);

	/*
	 * Prepare to compute bounds of distances, if they are sure to be correct.
	 * An operator of another type than the column's may round the query to
	 * that type, and then the bounds might be wrong.  Operators of real[] do
	 * not round.  The bounds might also be wrong if the operator overflows or
	 * loses precision (IvfpqIsBoundable), or if the transformation loses
	 * precision (IvfpqQueryIsBoundable).
	 */
	if ((!type.has_toreal || !OidIsValid(key->sk_subtype) ||
		 key->sk_subtype == type.type) &&
		IvfpqIsBoundable(&type, vector, dims) &&
		IvfpqQueryIsBoundable(&run->model->gv, vector, transformed))
		run->query.bound_query = transformed;

	/*
	 * Without records, rows in a mirror bound distances, of queries whose
	 * bounds are sure.  Keys in a posting are those of the row that its TID
	 * names, so a row need not be fetched for them.
	 */
	if (!run->search.addresses && !run->rows.counts_matching &&
		run->query.bound_query != NULL &&
		ivfpq_mirror_rows != IVFPQ_MIRROR_ROWS_OFF)
	{
		run->search.asked = memcpy(palloc(dims * sizeof(float)), vector,
								   dims * sizeof(float));
		run->query.is_exact = IvfpqRealDistanceOf(&key->sk_func) != NULL;
		run->rows.needs_distance = false;
	}
}

/* Starts the run, when the first row after a rescan is requested. */
static void
start_run(IndexScanDesc desc)
{
	IvfpqScan  *scan = (IvfpqScan *) desc->opaque;
	IvfpqScanRun *run = &scan->run;
	IvfpqScanKeys *keys = &run->keys;
	const IvfpqScanFilter *filter = scan->filter;
	const LimitState *limit = scan->limit;
	ScanKey		key = desc->orderByData;

	if (desc->numberOfOrderBys != 1)
		elog(ERROR, "gpuivfpq index \"%s\" cannot be scanned without ORDER BY",
			 RelationGetRelationName(scan->index));
	if (!IsMVCCSnapshot(desc->xs_snapshot))
		elog(ERROR, "gpuivfpq indexes need an MVCC snapshot");

	pgstat_count_index_scan(scan->index);
	IvfpqCountIndexSearch(desc);
	IvfpqCountersOpen();
	run->index = scan->index;
	run->filter = filter;
	run->is_filtered = filter != &ivfpq_no_filter;
	run->context = scan->context;
	run->query.recall = run->is_filtered ? filter->recall : ivfpq_recall;
	run->query.strict = ivfpq_order == IVFPQ_ORDER_STRICT &&
		!filter->any_order;
	run->query.is_null = (key->sk_flags & SK_ISNULL) != 0;
	run->query.warned_mismatched = &scan->warned_mismatched;
	run->report.recall = run->query.recall;
	run->model = IvfpqModelGet(run->index);
	run->batches = AllocSetContextCreate(run->context, "gpuivfpq batches",
										 ALLOCSET_DEFAULT_SIZES);
	IvfpqRowsInit(run);
	run->depth.planned_rows = scan->planned_rows;

	/*
	 * Rows that OFFSET skips do not count.  WITH TIES counts as one more row,
	 * though any number of rows may be tied.
	 */
	if (limit != NULL && limit->lstate != LIMIT_INITIAL && !limit->noCount)
		run->depth.rows_needed = (double) limit->count +
			(limit->limitOption == LIMIT_OPTION_WITH_TIES);
	if (run->depth.rows_needed == 0)
		run->depth.rows_needed = filter->goal.rows_needed;
	run->depth.visible = IvfpqVisibleFraction(run->index, &run->model->meta,
											  desc->heapRelation);

	keys->selectivity = 1;
	for (int i = 0; i < desc->numberOfKeys; i++)
	{
		ScanKey		scan_key = &desc->keyData[i];

		/* IS NOT NULL on the vector is true for all rows of the index */
		keys->any |= scan_key->sk_attno > 1 ||
			(scan_key->sk_flags & SK_SEARCHNOTNULL) == 0;
	}
	if (keys->any)
	{
		IvfpqKeysInit(&keys->columns, run->index);
		IvfpqModelCheckKeys(run->index, run->model, &keys->columns.form);
		IvfpqKeyQualsMake(&keys->quals, &keys->columns, desc->keyData,
						  desc->numberOfKeys);
		keys->selectivity = Min(Max(filter->goal.key_selectivity,
									IVFPQ_LEAST_SELECTIVITY), 1);
	}

	/* end the scan at once if no row satisfies the key quals or the radius */
	if (keys->quals.never ||
		(filter->radius.is_set &&
		 (filter->radius.is_empty || run->query.is_null)))
	{
		run->exhausted = true;
		return;
	}
	run->rows.counts_matching = run->is_filtered || keys->quals.nrechecks > 0;
	run->rows.needs_distance = run->is_filtered || keys->any;
	/* rows may come in any order, and no row has to be fetched */
	if (run->query.is_null && !run->rows.needs_distance)
	{
		IvfpqFullPassBegin(run);
		return;
	}

	run->rerank = palloc(sizeof(IvfpqRerank));
	IvfpqRerankBegin(run->rerank, desc->heapRelation, run->index,
					 desc->xs_snapshot);
	run->rerank->early_qual = filter->early_qual;
	run->rerank->early_qual_arg = filter->arg;
	if (keys->any)
		run->rerank->quals = &keys->quals;
	if (run->query.is_null)
	{
		IvfpqFullPassBegin(run);
		return;
	}
	run->rerank->distance = &key->sk_func;
	run->rerank->collation = key->sk_collation;
	run->rerank->query = key->sk_argument;
	start_search(run, desc->heapRelation, key);
}

/*
 * Fetches a row that has left the queue or the sort into the filter's slot,
 * and returns whether the filter admits the row.  `id` is the TID of the row's
 * tuple if the full pass has read the table or a bitmap.  Otherwise it is a
 * posting's TID, and the TID of the row's tuple is noted.  A row that is gone,
 * which cannot happen under a snapshot, is not admitted.
 */
static bool
is_admitted(IvfpqScanRun *run, IndexScanDesc desc, uint64 id, double distance)
{
	const IvfpqScanFilter *filter = run->filter;
	TupleTableSlot *row = filter->row;
	bool		found;

	IvfpqIdToTid(id, &desc->xs_heaptid);
	if (run->pass.active && run->pass.source != IVFPQ_REST_LISTS)
		return table_tuple_fetch_row_version(desc->heapRelation,
											 &desc->xs_heaptid,
											 desc->xs_snapshot, row) &&
			filter->late_qual(filter->arg, distance);
	if (!index_fetch_heap(desc, row))
		return false;
	if (run->rows.returned_tids == NULL)
		run->rows.returned_tids = tidset_create(run->context, 16, NULL);
	tidset_insert(run->rows.returned_tids, IvfpqTidToId(&row->tts_tid),
				  &found);
	return filter->late_qual(filter->arg, distance);
}

/* amgettuple callback. */
bool
ivfpqgettuple(IndexScanDesc desc, ScanDirection dir)
{
	IvfpqScan  *scan = (IvfpqScan *) desc->opaque;
	IvfpqScanRun *run = &scan->run;
	MemoryContext oldcontext;
	IvfpqNextRow row;
	bool		found = false;

	Assert(ScanDirectionIsForward(dir));
	oldcontext = MemoryContextSwitchTo(scan->context);
	if (run->index == NULL)
		start_run(desc);
	while (!found)
	{
		CHECK_FOR_INTERRUPTS();
		if (!run->exhausted && IvfpqRowsQuotaIsUsed(run))
			IvfpqScanNextBatch(run);
		else if (!IvfpqRowsNext(run, &row))
		{
			if (run->exhausted && run->rows.nomitted == 0)
				break;
			IvfpqScanNextBatch(run);
		}
		else if (IvfpqIsOutside(&run->filter->radius, row.lower))
		{
			/*
			 * All rows within the radius have been read.  The remaining rows
			 * are outside, too, except rows whose distance is NaN.
			 */
			run->exhausted = true;
			if (!run->filter->radius.with_nan)
				break;
		}
		else if (!IvfpqRowIsOutOfOrder(run, &row))
		{
			/*
			 * A row that the filter rejects does not count as returned, so
			 * the order of later rows is not checked against it.
			 */
			run->rows.popped++;
			found = !run->is_filtered ||
				is_admitted(run, desc, row.id, row.lower);
			if (found)
				IvfpqRowReturned(run, &row);
		}
	}
	MemoryContextSwitchTo(oldcontext);

	if (found)
	{
		/* the executor fetches this row next: tell it where the page is */
		if (run->rerank != NULL && desc->xs_heapfetch != NULL)
			IvfpqRerankGivePage(run->rerank, desc->xs_heapfetch, row.id,
								InvalidBuffer);
		IvfpqIdToTid(row.id, &desc->xs_heaptid);
		desc->xs_recheck = false;
		desc->xs_recheckorderby = false;
	}
	return found;
}
