/*
 * cost.c
 *		Cost estimates for the planner.
 *
 * Start-up: the centroids' codes and a few centroids, the probed lists, one
 * heap page and its TOAST pages for every candidate and every pending row, all
 * before the first row is returned.  Every further row costs a fraction of the
 * further candidates.  With refine records each candidate costs a page of
 * those, and only a few rows more than are returned are fetched.  So the index
 * wins for ORDER BY ... LIMIT, and a sequential scan and a sort win when most
 * of the table is needed.
 *
 * Rows are sorted, fetched in heap order, and their pages are asked for ahead
 * (../heap/README), so a page of them costs what it does in sequence.  Graphs
 * like hnsw read one page after the other at random: 50,000 rows x 384 cost
 * 175 here and 665 there for LIMIT 10, and take about a fifth of the time.
 *
 * The planner charges a sequential scan nothing for TOAST, though it has to
 * read all of it here.  To make the two comparable, the cost of a page is
 * multiplied by the fraction of the table's own pages of all its pages.
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
#include "page/pending.h"
#include "pgcompat.h"

/*
 * The cost of paths that core makes: more than any other, and more than those
 * that settings disable, but finite, since sums and differences of costs have
 * to be numbers.
 */
#define REFUSED_COST		1e20

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
 * Returns whether a scan could leak hidden rows.  It computes the index's
 * expression, as the current user, for rows that are filtered only afterwards;
 * a full pass over the table computes the predicate, too.  Under a policy that
 * user's search_path could lead an interpreted function to one that tells of
 * hidden rows; so the expression has to be computed above the filter.
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

/* Returns whether a window function needs rows in an order, or in groups. */
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
 * first key.  A sort for further keys does; so do nodes that compare a row
 * with the one before, and would see two groups of equal rows where one is out
 * of order.  For a limit alone a row out of order is a row like any other.
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

/*
 * Pages of the table's TOAST table; where VACUUM has not counted them yet,
 * those of its file, as core does it for tables.
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

/* Rows fetched for each row returned, by refine records. */
#define FETCHES_PER_ROW		1.4
#define FIRST_FETCHES		14	/* of the first ten */

/* The same for half precision, where the executor fetches most rows. */
#define HALF_FETCHES_PER_ROW	.1
#define HALF_FIRST_FETCHES		1

/* The work of the index before the first row, and for further rows. */
typedef struct Demand
{
	double		pages;			/* index pages read */
	double		lists;			/* random accesses among them */
	double		postings;		/* codes scored */
	double		centroids;		/* centroids compared */
	double		rows;			/* heap rows reranked */
	double		rows_per_row;	/* further rows reranked for a further row */
	double		pages_per_row;	/* further refine pages for a further row */
} Demand;

/*
 * Adds the candidates of the first batch, and per_row for every further row:
 * heap rows, or refine pages and few heap rows.
 */
static void
demand_candidates(Demand *demand, const IvfpqMetaData *meta,
				  double candidates, double per_row, double tuples,
				  double refine_pages)
{
	double		pages = Min(candidates, refine_pages);
	bool		half = meta->refine == IVFPQ_REFINE_HALF;

	if (meta->refine == IVFPQ_REFINE_NONE)
	{
		demand->rows += Min(candidates, tuples);
		demand->rows_per_row = per_row;
		return;
	}
	demand->rows += Min(half ? HALF_FIRST_FETCHES : FIRST_FETCHES, tuples);
	demand->rows_per_row = half ? HALF_FETCHES_PER_ROW : FETCHES_PER_ROW;
	demand->pages += pages;
	demand->pages_per_row = per_row;
}

/* The search parameters of a batch, at this selectivity of the key quals. */
static void
get_params(IvfpqSearchParams *params, Relation index,
		   const IvfpqMetaData *meta,
		   int batch, double selectivity)
{
	double		rows;

	IvfpqParamsForBatch(params, index, meta, ivfpq_recall, batch);
	if (selectivity >= 1)
		return;
	rows = params->quota;
	IvfpqParamsForRows(params, index, meta, ivfpq_recall,
					   Min(IvfpqSpreadRows(rows /
										   Max(selectivity, IVFPQ_LEAST_SELECTIVITY),
										   true), PG_INT32_MAX));
	params->candidates = IvfpqKeyCandidates(params->candidates, selectivity);
	params->quota = (int64) rows;
}

/*
 * Sets *demand; `selectivity` is that of the key quals.
 */
static void
get_demand(Demand *demand, const IndexOptInfo *info, double tuples,
		   double selectivity)
{
	Relation	index;
	IvfpqMetaData meta;
	IvfpqSearchParams params;

	memset(demand, 0, sizeof(*demand));
	if (info->hypothetical)		/* nothing to open: as if it had one list */
	{
		demand->pages = info->pages;
		return;
	}

	index = index_open(info->indexoid, NoLock);
	IvfpqMetaRead(index, &meta);
	/* the estimate includes rows that VACUUM removed */
	demand->rows = (double) IvfpqPendingEstimate(index);
	demand->pages = 1 + ceil(demand->rows / IVFPQ_PENDING_PER_PAGE);
	demand->rows = Min(demand->rows, tuples);
	get_params(&params, index, &meta, 0, selectivity);
	if (meta.nlists > 0 && params.read_all)
	{
		demand->pages = info->pages;
		demand->rows = tuples * selectivity;
	}
	else if (meta.nlists > 0)
	{
		double		probed = (double) params.probes / meta.nlists;
		double		centroids = meta.codes - meta.centroids;
		double		fixed = IvfpqModelPages(&meta) + 1 - centroids;
		double		refine = meta.refine == IVFPQ_REFINE_NONE ? 0 :
		ceil(tuples / IvfpqRecordSlots(IvfpqRecordCodeBytes(meta.refine,
															meta.dims)));
		double		candidates = params.candidates;

		demand->lists = params.probes;
		demand->centroids = meta.nlists;
		demand->postings = tuples * meta.lists_per_row * probed;
		demand->pages += fixed +
			Min(centroids, IvfpqCentroidsToCompare(&meta, params.probes, false)) +
			Max(info->pages - fixed - centroids - refine, 0) * probed;
		get_params(&params, index, &meta, 1, selectivity);
		/* where no number of candidates suffices, the rest is read */
		demand_candidates(demand, &meta, candidates,
						  (params.read_all ? tuples * selectivity :
						   params.candidates) / params.quota,
						  tuples * selectivity, refine);
	}
	index_close(index, NoLock);
}

/*
 * Returns whether a clause asks for rows without a vector; the index has none.
 */
bool
IvfpqWantsNoVector(const List *clauses)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		IndexClause *clause = lfirst_node(IndexClause, lc);
		RestrictInfo *condition = linitial_node(RestrictInfo,
												clause->indexquals);

		if (clause->indexcol == 0 && IsA(condition->clause, NullTest) &&
			((NullTest *) condition->clause)->nulltesttype == IS_NULL)
			return true;
	}
	return false;
}

/*
 * amcostestimate.  Core makes a path wherever an order of the level or a join
 * could use one, and an approximate scan is right in few of these places: so
 * core's paths are never taken, and ours are made by filter/orderedpath.c.
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

/* The same for a path of ours. */
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

	/* the cost of reranking a row, where rows share heap pages */
	heap_pages = index_pages_fetched(Max(demand.rows, 1) * Max(loop_count, 1),
									 rel->pages, info->pages, root) /
		Max(loop_count, 1);
	row_cost = seq_page * (heap_pages / Max(demand.rows, 1) +
						   toast / tuples) +
		2 * (cpu_tuple_cost + cpu_operator_cost) +
		2 * cpu_operator_cost * log2(Max(demand.rows, 1));

	*startup_cost = seq_page * demand.pages +
		(random_page - seq_page) * Min(demand.lists, demand.pages) +
		cpu_operator_cost * (demand.centroids + demand.postings) +
		row_cost * demand.rows;
	*total_cost = *startup_cost +
		tuples * key_selectivity *
		(cpu_index_tuple_cost + row_cost * demand.rows_per_row +
		 seq_page * demand.pages_per_row);
	*selectivity = key_selectivity;
	*correlation = 0;
	*pages = demand.pages;
}

/*
 * The cost of the table's pages with these rows, read in heap order, as for a
 * bitmap scan.
 */
static Cost
heap_cost(const RelOptInfo *rel, double rows, double random_page,
		  double seq_page)
{
	double		all = Max(rel->pages, 1);
	double		pages = Min(2 * all * rows / (2 * all + rows), all);

	return pages * (random_page -
					(random_page - seq_page) * sqrt(pages / all));
}

/*
 * The cost of a scan with a filter that searches for the nearest `depth` rows,
 * where the condition costs per_row: no less than any other path, if
 * everything is read.  Candidates satisfy the key quals.
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
	return seq_page * info->pages * fraction +
		(random_page - seq_page) * Min((double) params.probes, info->pages) +
		cpu_operator_cost *
		(meta.nlists + tuples * meta.lists_per_row * fraction) +
		heap_cost(info->rel, candidates, random_page, seq_page) +
		candidates * (cpu_tuple_cost + per_row);
}
