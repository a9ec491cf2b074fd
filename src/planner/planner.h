/*
 * planner.h
 *		The planner's side of the access method: the cost of an index, the
 *		matching of statements to an index, and Custom Scan (GpuvecScan), an
 *		ordered index scan that evaluates the conditions on its table.
 */
#ifndef IVFPQ_PLANNER_H
#define IVFPQ_PLANNER_H

#include "nodes/extensible.h"
#include "nodes/pathnodes.h"

#include "am/scan/scanfilter.h"

/*
 * The plan of a filtered scan, which is stored in custom_private.  The node's
 * other lists are:
 *
 *	custom_plans		the ordered index scan and, if there is one, a bitmap
 *						heap scan
 *	custom_exprs		three lists: the conditions evaluated before a row is
 *						reranked, the late conditions, and the bounds.  Each
 *						bound is a list of its condition, from, less, query,
 *						ordered and with_nan (IvfpqBound)
 *	custom_scan_tlist	columns of the table, the distance and, if the plan
 *						uses it, the commuted distance
 */
typedef struct IvfpqFilterPlan
{
	IvfpqFilterGoal goal;
	int			ndistances;		/* number of distances in custom_scan_tlist */
	bool		ends_on_any_row;	/* see IvfpqRadius */
	bool		any_order;		/* rows may come in any order */
} IvfpqFilterPlan;

/*
 * A condition that bounds a distance from above, by `from - less`.  If `query`
 * is NULL, the scan orders by this distance.  Otherwise it is the distance to
 * `query`, while the scan orders by the distance to another expression,
 * `ordered`.  In that case the condition is a bound only if both expressions
 * have the same value.
 */
typedef struct IvfpqBound
{
	Expr	   *distance;
	Expr	   *from;
	Expr	   *less;
	Expr	   *query;
	Expr	   *ordered;
	bool		with_nan;		/* NaN satisfies the condition */
} IvfpqBound;

/* cost.c */
extern void ivfpqcostestimate(PlannerInfo *root, IndexPath *path,
							  double loop_count, Cost *startup_cost,
							  Cost *total_cost, Selectivity *selectivity,
							  double *correlation, double *pages);
extern void IvfpqCostEstimate(PlannerInfo *root, IndexPath *path,
							  double loop_count, Cost *startup_cost,
							  Cost *total_cost, Selectivity *selectivity,
							  double *correlation, double *pages);
extern Cost IvfpqDepthCost(PlannerInfo *root, const IndexPath *path,
						   double recall, double depth, Cost per_row);
extern bool IvfpqWouldLeak(PlannerInfo *root, const IndexOptInfo *info,
						   bool by_full_pass);
extern bool IvfpqReliesOnOrder(const PlannerInfo *root);

/* clauses.c */
extern bool IvfpqIsOursToPlan(const IndexOptInfo *info);
extern Expr *IvfpqExchanged(Expr *distance);
extern Expr *IvfpqMatchDistance(IndexOptInfo *info, Expr *expr,
								Oid *sortfamily);
extern List *IvfpqKeyClauses(PlannerInfo *root, IndexOptInfo *index,
							 List *found);
extern List *IvfpqUnanswered(List *conditions, const IndexPath *path);
extern PathKey *IvfpqRequestedOrder(const PlannerInfo *root);
extern IndexPath *IvfpqOrderedPath(PlannerInfo *root, IndexOptInfo *info,
								   List *found);
extern bool IvfpqMatchBound(RestrictInfo *info, Expr *distance,
							IvfpqBound *bound);
extern IndexPath *IvfpqRadiusPath(PlannerInfo *root, RelOptInfo *rel,
								  IndexOptInfo *info, List *found);

/* customscan.c */
extern const CustomScanMethods ivfpq_scan_methods;
extern List *IvfpqFilterPrivate(const IvfpqFilterPlan *plan);
extern void IvfpqFilterPlanOf(const CustomScan *scan, IvfpqFilterPlan *plan);
extern bool IvfpqIsFilterScan(const Plan *plan);
extern bool IvfpqIsFilterDistance(const CustomScan *scan, Node *expr);
extern void IvfpqInitExplain(void);

/* custompath.c */
extern const CustomPathMethods ivfpq_path_methods;
extern void IvfpqInitFilter(void);

/* unread.c */
extern List *IvfpqFurtherChildren(const Plan *plan);
extern void IvfpqInitPlanner(void);

#ifdef GV_TEST_BUILD
/* plancheck.c */
extern void IvfpqInitPlanCheck(void);
#endif

#endif							/* IVFPQ_PLANNER_H */
