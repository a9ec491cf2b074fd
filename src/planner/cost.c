/*
 * cost.c
 *		Estimates the cost of a scan, and decides whether a statement may use
 *		a scan at all.
 *
 * Before its first row a scan reads the centroids' codes and a few centroids,
 * and then the probed lists.  For every candidate and every pending row it
 * reads one heap page and its TOAST pages.  All of this is start-up cost.  The
 * run cost of each further row is that of reading the additional candidates
 * that are needed to return the row.  With refine records each candidate costs
 * a refine page instead of a heap page, and the scan fetches only a few rows
 * more than it returns.  So the index is cheaper for ORDER BY ... LIMIT, and a
 * sequential scan with a sort is cheaper when most of the table is needed.
 *
 * Inner pages.  Metapage, arrays and directory are to the lists what inner
 * pages are to the leaves of a tree: a small part of the index, which all
 * scans share, so that they stay in memory.  Core's cost functions of trees
 * charge such pages as processor time only, and so do we.
 *
 * Lists.  A scan whose lists are not in memory reads their first pages in the
 * order of blocks, with prefetching (page/listread.c), as a bitmap heap scan
 * reads the heap.  So these pages cost what cost_bitmap_heap_scan charges, a
 * random page if few pages are read and a sequential page if all are.  The
 * further pages of a list follow its first page, and are sequential.  Small
 * lists share pages, so there are no more first pages than pages.
 *
 * Candidates are sorted and fetched in heap order, with prefetching
 * (am/search/rerank.c), so a heap page costs as much as in a sequential scan.
 * Graph indexes like hnsw read one page after the other at random.  For LIMIT
 * 5 of 50,000 rows with 50 dimensions the estimates are 118 for this index and
 * 166 for hnsw, which takes 3.6 times as long.
 *
 * The planner charges a sequential scan nothing for TOAST, although the scan
 * reads all TOAST pages to compute distances.  To make the two costs
 * comparable, the cost of a page is multiplied by the fraction of the table's
 * pages, TOAST included, that are not TOAST pages.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/spccache.h"
#include "utils/syscache.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/scan/scan.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"
#include "planner/planner.h"

/*
 * Cost of the paths that core makes.  It is higher than the cost of any other
 * path, even of paths that settings disable.  It is finite, because the
 * planner adds and subtracts costs, and the results must be numbers.
 */
#define REFUSED_COST		1e20

/* Rows fetched for each row returned, with refine records in 8 bits. */
#define FETCHES_PER_ROW		1.4
#define FIRST_FETCHES		14	/* rows fetched for the first ten returned */

/*
 * Rows fetched for each row returned, and for the first ten returned, with
 * refine records in half precision.  The scan itself fetches few rows then,
 * because the executor fetches most of the rows that are returned.
 */
#define HALF_FETCHES_PER_ROW	.1
#define HALF_FIRST_FETCHES		1

/* Operators that an inner page costs, as in core's btcostestimate. */
#define INNER_PAGE_OPERATORS	50.0

/* The work that a scan does before its first row, and for each further row. */
typedef struct Demand
{
	double		inner_pages;	/* metapage, arrays and directory */
	double		pages;			/* other index pages read */
	double		random_pages;	/* random accesses among these pages */
	double		postings;		/* codes scored */
	double		centroids;		/* centroids compared */
	double		rows;			/* heap rows reranked */
	double		rows_per_row;	/* rows reranked for each further row */
	double		pages_per_row;	/* refine pages read for each further row */
} Demand;

/*
 * Returns the number of pages of the table's TOAST table.  If VACUUM has not
 * counted these pages yet, uses the length of the file, as core does for
 * tables.
 */
static double
toast_pages(Oid heapoid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(heapoid));
	double		pages = 0;
	Oid			toastoid;

	if (!HeapTupleIsValid(tuple))
		return 0;
	toastoid = ((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid;
	ReleaseSysCache(tuple);
	if (!OidIsValid(toastoid))
		return 0;

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(toastoid));
	if (!HeapTupleIsValid(tuple))
		return 0;
	pages = Max(((Form_pg_class) GETSTRUCT(tuple))->relpages, 0);
	ReleaseSysCache(tuple);
	if (pages == 0)
	{
		Relation	toast = relation_open(toastoid, AccessShareLock);

		pages = RelationGetNumberOfBlocks(toast);
		relation_close(toast, AccessShareLock);
	}
	return pages;
}

/* Sets *params for a batch whose key quals have this selectivity. */
static void
get_params(IvfpqSearchParams *params, Relation index,
		   const IvfpqMetaData *meta, int batch, double selectivity)
{
	double		rows;
	double		depth;

	IvfpqParamsForBatch(params, index, meta, ivfpq_recall, batch);
	if (selectivity >= 1)
		return;
	rows = params->quota;
	depth = IvfpqSpreadRows(rows / Max(selectivity, IVFPQ_LEAST_SELECTIVITY),
							true);
	IvfpqParamsForRows(params, index, meta, ivfpq_recall,
					   Min(depth, PG_INT32_MAX));
	params->candidates = IvfpqKeyCandidates(params->candidates, selectivity);
	params->quota = (int64) rows;
}

/*
 * Returns the number of random accesses in reading the first pages of lists,
 * by the formula of a bitmap heap scan, if `fraction` of the pages are read.
 */
static double
count_random(double lists, double pages, double fraction)
{
	return Min(lists, pages) * (1 - sqrt(fraction));
}

/* Sets *demand to the work of a scan whose key quals have this selectivity. */
static void
get_demand(Demand *demand, const IndexOptInfo *info, double tuples,
		   double selectivity)
{
	Relation	index;
	IvfpqMetaData meta;
	IvfpqSearchParams params;
	double		matching = tuples * selectivity;

	memset(demand, 0, sizeof(*demand));
	if (info->hypothetical)		/* no index to open; assume one list */
	{
		demand->pages = info->pages;
		return;
	}

	index = index_open(info->indexoid, NoLock);
	IvfpqMetaRead(index, &meta);
	/* the estimate still includes rows that VACUUM has removed */
	demand->rows = (double) IvfpqPendingEstimate(index);
	demand->inner_pages = 1;
	demand->pages = ceil(demand->rows / IVFPQ_PENDING_PER_PAGE);
	demand->rows = Min(demand->rows, tuples);
	get_params(&params, index, &meta, 0, selectivity);
	if (meta.nlists > 0 && params.read_all)
	{
		demand->pages = info->pages;
		demand->rows = matching;
	}
	else if (meta.nlists > 0)
	{
		double		probed = (double) params.probes / meta.nlists;
		double		centroids = meta.codes - meta.centroids;
		double		compared = IvfpqCentroidsToCompare(&meta, params.probes,
													   false);
		double		fixed = IvfpqModelPages(&meta) + 1;
		IvfpqLayout layout;
		double		list_pages; /* pages of lists to read */
		double		records = 0;	/* pages of refine records */
		double		candidates = params.candidates;
		double		per_row;	/* candidates for each further row */

		if (meta.refine != IVFPQ_REFINE_NONE)
			records = ceil(tuples /
						   IvfpqRecordSlots(IvfpqRecordCodeBytes(meta.refine,
																 meta.dims)));
		/* free pages, and those of earlier trainings, are not read */
		if (!IvfpqLayoutGet(&layout, &meta))
			IvfpqCorrupted(index, IVFPQ_METAPAGE,
						   "its parameters are out of range");
		list_pages = (tuples * meta.lists_per_row / IVFPQ_BLOCK_POSTINGS +
					  meta.nlists) * layout.nparts / layout.slots_per_page;
		list_pages = Min(list_pages, Max(info->pages - fixed - records, 0)) *
			probed;
		demand->inner_pages = fixed - centroids + Min(centroids, compared);
		demand->pages += list_pages;
		demand->random_pages = count_random(params.probes, list_pages, probed);
		demand->centroids = meta.nlists;
		demand->postings = tuples * meta.lists_per_row * probed;
		get_params(&params, index, &meta, 1, selectivity);
		/* if no number of candidates suffices, all matching rows are read */
		per_row = (params.read_all ? matching : params.candidates) /
			params.quota;
		if (meta.refine == IVFPQ_REFINE_NONE)
		{
			demand->rows += Min(candidates, matching);
			demand->rows_per_row = per_row;
		}
		else
		{
			bool		half = meta.refine == IVFPQ_REFINE_HALF;

			demand->rows += Min(half ? HALF_FIRST_FETCHES : FIRST_FETCHES,
								matching);
			demand->rows_per_row = half ? HALF_FETCHES_PER_ROW :
				FETCHES_PER_ROW;
			demand->pages += Min(candidates, records);
			demand->pages_per_row = per_row;
		}
	}
	index_close(index, NoLock);
}

/*
 * amcostestimate callback, for the paths that core makes.  Core makes a path
 * wherever the query's sort order or a join could use it, but an approximate
 * scan is right in few of these places.  So core's paths are never chosen, and
 * custompath.c makes our own paths.
 */
void
ivfpqcostestimate(PlannerInfo *root, IndexPath *path, double loop_count,
				  Cost *startup_cost, Cost *total_cost,
				  Selectivity *selectivity, double *correlation,
				  double *pages)
{
	*startup_cost = REFUSED_COST;
	*total_cost = REFUSED_COST;
	*selectivity = 0;
	*correlation = 0;
	*pages = 0;
	IvfpqDisablePath(&path->path);
}

/* amcostestimate for the paths that we make (distance_path in clauses.c). */
void
IvfpqCostEstimate(PlannerInfo *root, IndexPath *path, double loop_count,
				  Cost *startup_cost, Cost *total_cost,
				  Selectivity *selectivity, double *correlation,
				  double *pages)
{
	IndexOptInfo *info = path->indexinfo;
	RelOptInfo *rel = info->rel;
	double		tuples = Max(info->tuples, 1);
	double		random_page;
	double		seq_page;
	double		row_cost;
	double		heap_pages;
	double		toast;
	double		key_selectivity;
	Demand		demand;

	key_selectivity = clauselist_selectivity(root,
											 get_quals_from_indexclauses(path->indexclauses),
											 (int) rel->relid, JOIN_INNER, NULL);
	get_demand(&demand, info, tuples, key_selectivity);
	get_tablespace_page_costs(info->reltablespace, &random_page, &seq_page);
	toast = toast_pages(root->simple_rte_array[rel->relid]->relid);
	random_page *= Max(rel->pages, 1) / (Max(rel->pages, 1) + toast);
	seq_page *= Max(rel->pages, 1) / (Max(rel->pages, 1) + toast);

	/* the cost of reranking a row; a heap page may have several of the rows */
	heap_pages = index_pages_fetched(Max(demand.rows, 1) * Max(loop_count, 1),
									 rel->pages, info->pages, root) /
		Max(loop_count, 1);
	row_cost = seq_page * (heap_pages / Max(demand.rows, 1) +
						   toast / tuples) +
		2 * (cpu_tuple_cost + cpu_operator_cost) +
		2 * cpu_operator_cost * log2(Max(demand.rows, 1));

	*startup_cost = seq_page * demand.pages +
		(random_page - seq_page) * demand.random_pages +
		cpu_operator_cost * (INNER_PAGE_OPERATORS * demand.inner_pages +
							 demand.centroids + demand.postings) +
		row_cost * demand.rows;
	*total_cost = *startup_cost +
		tuples * key_selectivity *
		(cpu_index_tuple_cost + row_cost * demand.rows_per_row +
		 seq_page * demand.pages_per_row);
	*selectivity = key_selectivity;
	*correlation = 0;
	*pages = demand.inner_pages + demand.pages;
}

/*
 * Returns the cost of a filtered scan that searches for the nearest `depth`
 * rows.  Evaluating the conditions costs per_row for each row.  Candidates
 * satisfy the key quals, and their rows are fetched in heap order, as in a
 * bitmap heap scan.  A scan that would read everything has REFUSED_COST, which
 * no other path exceeds.
 */
Cost
IvfpqDepthCost(PlannerInfo *root, const IndexPath *path, double recall,
			   double depth, Cost per_row)
{
	const IndexOptInfo *info = path->indexinfo;
	double		tuples = Max(info->tuples, 1);
	IvfpqMetaData meta;
	IvfpqSearchParams params;
	Relation	index;
	double		random_page;
	double		seq_page;
	double		fraction;
	double		candidates;
	double		all_heap_pages = Max(info->rel->pages, 1);
	double		heap_pages;

	if (info->hypothetical)
		return REFUSED_COST;
	index = index_open(info->indexoid, NoLock);
	IvfpqMetaRead(index, &meta);
	IvfpqParamsForRows(&params, index, &meta, recall,
					   Min(depth, PG_INT32_MAX));
	index_close(index, NoLock);
	if (params.read_all)
		return REFUSED_COST;
	get_tablespace_page_costs(info->reltablespace, &random_page, &seq_page);
	fraction = (double) params.probes / meta.nlists;
	candidates = Min(params.candidates, tuples) * path->indexselectivity;
	heap_pages = Min(2 * all_heap_pages * candidates /
					 (2 * all_heap_pages + candidates), all_heap_pages);
	return seq_page * info->pages * fraction +
		(random_page - seq_page) *
		count_random(params.probes, info->pages * fraction, fraction) +
		cpu_operator_cost *
		(meta.nlists + tuples * meta.lists_per_row * fraction) +
		heap_pages * (random_page - (random_page - seq_page) *
					  sqrt(heap_pages / all_heap_pages)) +
		candidates * (cpu_tuple_cost + per_row);
}

/* Returns whether a policy or a security barrier hides rows of a table. */
static bool
hides_rows(PlannerInfo *root, RelOptInfo *rel)
{
	ListCell   *lc;

	foreach(lc, rel->baserestrictinfo)
		if (lfirst_node(RestrictInfo, lc)->security_level <
			root->qual_security_level)
		return true;
	return false;
}

/*
 * Returns whether a scan could leak hidden rows.
 *
 * A scan computes the index's expression as the current user, and also for
 * rows that are filtered out later.  A full pass over the table computes the
 * index's predicate as well.  If a policy hides rows from this user, the
 * user's search_path could make an interpreted function call a function that
 * reveals hidden rows.  Then the expression has to be computed above the
 * filter.
 */
bool
IvfpqWouldLeak(PlannerInfo *root, const IndexOptInfo *info, bool by_full_pass)
{
	Relation	index;
	bool		leaks;

	if ((info->indexprs == NIL && !(by_full_pass && info->indpred != NIL)) ||
		info->hypothetical || !hides_rows(root, info->rel))
		return false;
	index = index_open(info->indexoid, NoLock);
	leaks = IvfpqIsInterpreted(index, by_full_pass);
	index_close(index, NoLock);
	return leaks;
}

/* Returns whether a window has an ORDER BY or a PARTITION BY. */
static bool
has_ordered_window(const Query *query)
{
	ListCell   *lc;

	foreach(lc, query->windowClause)
	{
		const		WindowClause *window = lfirst_node(WindowClause, lc);

		if (window->orderClause != NIL || window->partitionClause != NIL)
			return true;
	}
	return false;
}

/*
 * Returns whether a node above an ordered path relies on the order of the
 * first key.  A sort by further keys relies on it.  So do nodes that compare
 * each row with the row before it, because they would see two groups of equal
 * rows if one row is out of order.  A limit alone does not rely on it, because
 * it treats a row that is out of order like any other row.
 */
bool
IvfpqReliesOnOrder(const PlannerInfo *root)
{
	const Query *query = root->parse;
	List	   *setop = IvfpqSetOperationKeys(root);

	return list_length(root->query_pathkeys) > 1 ||
		query->distinctClause != NIL || has_ordered_window(query) ||
		(setop != NIL &&
		 linitial(setop) == linitial(root->query_pathkeys)) ||
		query->limitOption == LIMIT_OPTION_WITH_TIES;
}
