/*
 * planner.h
 *		Custom Scan (GpuvecScan): an ordered index scan of ours with the
 *		conditions of its table.
 */
#ifndef IVFPQ_PLANNER_H
#define IVFPQ_PLANNER_H

#include "executor/executor.h"
#include "nodes/extensible.h"
#include "nodes/pathnodes.h"

#include "am/scan/scanfilter.h"

/*
 * The plan's data for the executor, in custom_private: see conditions.c.
 * custom_plans are the ordered index scan and, where there is one, a bitmap
 * heap scan; custom_exprs the conditions, the early ones first, and behind
 * them IVFPQ_BOUND_EXPRS for each bound; custom_scan_tlist columns of the
 * table and, last, the distance, once or twice: the second time with its
 * sides exchanged.
 */
typedef struct IvfpqFilterPlan
{
	int			nearly;			/* conditions asked before a row is reranked */
	double		rows_needed;	/* see IvfpqFilter */
	double		selectivity;
	double		qual_ns;
	double		matches;
	double		key_selectivity;
	int			ndistances;
	int			nbounds;
	bool		by_all;			/* see IvfpqRadius */
	bool		any_order;		/* rows may come in any */
} IvfpqFilterPlan;

/*
 * The expressions of each bound in custom_exprs: the condition, from, less,
 * query, ordered, with_nan.
 */
#define IVFPQ_BOUND_EXPRS	6

/*
 * A condition that bounds a distance: it is at most from - less.  If `query`
 * is not NULL the scan orders by the distance to `ordered`, another
 * expression, and the condition bounds that if the values of both are the
 * same.
 */
typedef struct IvfpqBound
{
	RestrictInfo *info;
	Expr	   *distance;
	Expr	   *from;
	Expr	   *less;
	Expr	   *query;
	Expr	   *ordered;
	bool		with_nan;		/* NaN satisfies the condition */
} IvfpqBound;

/* The same of a running node. */
typedef struct IvfpqBoundState
{
	ExprState  *from;
	ExprState  *less;
	ExprState  *query;			/* or NULL, as `ordered` */
	ExprState  *ordered;
	bool		query_byval;
	int16		query_len;
	bool		with_nan;
} IvfpqBoundState;

/* The running node; CustomScanState must be first. */
typedef struct IvfpqFilterScan
{
	CustomScanState css;
	IvfpqFilterPlan plan;
	IndexScanState *index;
	PlanState  *bitmap;			/* or NULL */
	bool		bitmap_used;	/* since the last rescan */
	ExprState  *early;
	ExprState  *late;
	IvfpqBoundState *bounds;	/* [plan.nbounds] */
	bool		radius_known;	/* since the last rescan */
	ProjectionInfo *columns;	/* from a row of the table to the node's */
	ExprState  *distance;		/* for rows that do not come by the index */
	AttrNumber	distance_column;	/* the first */
	ExprContext *row_context;	/* its scan tuple is a row of the table */
	IvfpqFilter filter;
} IvfpqFilterScan;

extern const CustomPathMethods ivfpq_path_methods;
extern const CustomScanMethods ivfpq_scan_methods;

/* conditions.c */
extern void IvfpqFilterPlanOf(const CustomScan *scan, IvfpqFilterPlan *plan);
extern Node *IvfpqAsTableColumns(Node *node, void *columns);
extern bool IvfpqIsFilterScan(const Plan *plan);
extern bool IvfpqIsFilterDistance(const CustomScan *scan, Node *expr);

/* customscan.c */

/* customscan.c */
extern void IvfpqInitExplain(void);

/* clauses.c */
extern bool IvfpqIsOursToPlan(const IndexOptInfo *info);
extern Expr *IvfpqExchanged(Expr *distance);
extern Expr *IvfpqMatchDistance(IndexOptInfo *info, Expr *expr,
								Oid *sortfamily);
extern double IvfpqRowsNeeded(const PlannerInfo *root, const Path *path);
extern IndexPath *IvfpqOrderedPath(PlannerInfo *root, IndexOptInfo *info,
								   List *found);

/* custompath.c */
extern PathKey *IvfpqRequestedOrder(const PlannerInfo *root);

/* clauses.c */
extern List *IvfpqKeyClauses(PlannerInfo *root, IndexOptInfo *index,
							 List *found);
extern List *IvfpqUnanswered(List *conditions, const IndexPath *path);

/* clauses.c */
extern bool IvfpqMatchBound(RestrictInfo *info, Expr *distance,
							Expr *exchanged, IvfpqBound *bound);
extern bool IvfpqIsBounded(const RelOptInfo *rel, Expr *distance);
extern IndexPath *IvfpqRadiusPath(PlannerInfo *root, RelOptInfo *rel,
								  IndexOptInfo *info, List *found);

#ifdef GV_TEST_BUILD
/* plancheck.c */
extern void IvfpqInitPlanCheck(void);
#endif

/* custompath.c */
extern void IvfpqInitFilter(void);

#endif							/* IVFPQ_PLANNER_H */
