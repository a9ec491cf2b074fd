/*
 * planscans.c
 *		How a finished plan reads a table.
 */
#include "postgres.h"

#include "parser/parsetree.h"

#include "am/doctor/doctor.h"

typedef struct PlanSearch
{
	const PlannedStmt *stmt;
	Oid			table;
	Oid			index;			/* the index to find, by its order; or
								 * InvalidOid: any scan of the table */
	Plan	   *found;
	bool		is_limited;		/* a Limit is above it */
	bool		is_sorted;		/* a Sort is, with no Limit between */
} PlanSearch;

static bool
is_foreign_scan_of(const ForeignScan *scan, const PlanSearch *search)
{
	int			relid = -1;

	while ((relid = bms_next_member(scan->fs_relids, relid)) >= 0)
	{
		if (rt_fetch(relid, search->stmt->rtable)->relid == search->table)
			return true;
	}
	return false;
}

static bool
is_scan_of(Plan *plan, const PlanSearch *search)
{
	Index		relid;

	if (OidIsValid(search->index))
		return IsA(plan, IndexScan) &&
			((IndexScan *) plan)->indexid == search->index &&
			((IndexScan *) plan)->indexorderby != NIL;
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_CustomScan:
			relid = ((Scan *) plan)->scanrelid;
			return relid > 0 &&
				rt_fetch(relid, search->stmt->rtable)->relid == search->table;
		case T_ForeignScan:
			return is_foreign_scan_of((ForeignScan *) plan, search);
		default:
			return false;
	}
}

static bool find_scan(Plan *plan, PlanSearch *search);

static bool
find_among(const List *plans, PlanSearch *search)
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		if (find_scan(lfirst(lc), search))
			return true;
	}
	return false;
}

static bool
find_below(Plan *plan, PlanSearch *search)
{
	if (IsA(plan, Append) &&
		find_among(((Append *) plan)->appendplans, search))
		return true;
	if (IsA(plan, MergeAppend) &&
		find_among(((MergeAppend *) plan)->mergeplans, search))
		return true;
	if (IsA(plan, CustomScan) &&
		find_among(((CustomScan *) plan)->custom_plans, search))
		return true;
	if (IsA(plan, SubqueryScan) &&
		find_scan(((SubqueryScan *) plan)->subplan, search))
		return true;
	return find_scan(plan->lefttree, search) ||
		find_scan(plan->righttree, search);
}

/* Find the first node that is_scan_of says yes to. */
static bool
find_scan(Plan *plan, PlanSearch *search)
{
	if (plan == NULL)
		return false;
	if (is_scan_of(plan, search))
	{
		search->found = plan;
		return true;
	}
	if (!find_below(plan, search))
		return false;
	if (IsA(plan, Limit))
		search->is_limited = true;
	else if (IsA(plan, Sort) && !search->is_limited)
		search->is_sorted = true;
	return true;
}

static void
find_in_statement(PlanSearch *search)
{
	if (!find_scan(search->stmt->planTree, search))
		(void) find_among(search->stmt->subplans, search);
}

/*
 * How a plan reads a table, by the order of an index or in any way; or NULL.
 */
Plan *
IvfpqScanInPlan(const PlannedStmt *stmt, Oid table, Oid index)
{
	PlanSearch	search = {.stmt = stmt, .table = table, .index = index};

	find_in_statement(&search);
	return search.found;
}

/* Are rows of a table sorted before a LIMIT takes the first ones? */
bool
IvfpqIsSortedInPlan(const PlannedStmt *stmt, Oid table)
{
	PlanSearch	search = {.stmt = stmt, .table = table};

	find_in_statement(&search);
	return search.is_sorted;
}

/* Names the scan that reads a table. */
char *
IvfpqNameScan(const Plan *plan)
{
	if (plan == NULL)
		return "another plan";
	switch (nodeTag(plan))
	{
		case T_SeqScan:
			return "a sequential scan";
		case T_IndexScan:
			return psprintf("index %s",
							IvfpqRelationName(((const IndexScan *) plan)->indexid));
		case T_IndexOnlyScan:
			return psprintf("index %s",
							IvfpqRelationName(((const IndexOnlyScan *) plan)->indexid));
		case T_BitmapHeapScan:
			return "a bitmap of other indexes";
		case T_CustomScan:
			return "a filtered scan by another index";
		default:
			return "another plan";
	}
}
