/*
 * distancepath.c
 *		Distances in expressions, and index paths in their order.
 *
 * Core makes an ordered path where all keys of ORDER BY are an index's, for
 * whatever may use an order.  None of these is taken (../scan/cost.c).  Here
 * one is made of any distance to the index's column: for the first key of
 * ORDER BY, where orderedpath.c wants it, and for conditions on the distance
 * (within.c).
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "utils/lsyscache.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

/* Is the index one of ours? */
bool
IvfpqIsOursToPlan(const IndexOptInfo *info)
{
	return (void *) info->amcostestimate == (void *) ivfpqcostestimate;
}

/*
 * Is it one that plans may use, and that has all rows which the statement may
 * want?  Left alone are targets of UPDATE and the like, samples, and tables
 * whose rows depend on others of a join or are proved to be none.
 */
bool
IvfpqIsUsable(PlannerInfo *root, const IndexOptInfo *info)
{
	RelOptInfo *rel = info->rel;

	return ivfpq_use_index != IVFPQ_USE_NEVER &&
		IvfpqIsOursToPlan(info) && (info->indpred == NIL || info->predOK) &&
		!IS_DUMMY_REL(rel) && bms_is_empty(rel->lateral_relids) &&
		!bms_is_member((int) rel->relid, root->all_result_relids) &&
		root->simple_rte_array[rel->relid]->tablesample == NULL;
}

/* An operator's expression with its sides exchanged. */
static OpExpr *
exchange_sides(const OpExpr *expr, Oid operator)
{
	OpExpr	   *exchanged = makeNode(OpExpr);

	memcpy(exchanged, expr, sizeof(*exchanged));
	exchanged->opno = operator;
	exchanged->opfuncid = get_opcode(operator);
	exchanged->args = list_make2(lsecond(expr->args), linitial(expr->args));
	return exchanged;
}

/*
 * A distance with its sides exchanged, where that is the same function; or
 * NULL.  It shares what stands on the sides.
 */
Expr *
IvfpqExchanged(Expr *distance)
{
	OpExpr	   *expr = (OpExpr *) distance;
	Oid			operator;

	if (!IsA(distance, OpExpr) || list_length(expr->args) != 2)
		return NULL;
	operator = get_commutator(expr->opno);
	if (!OidIsValid(operator) ||
		get_opcode(operator) != get_opcode(expr->opno))
		return NULL;
	return (Expr *) exchange_sides(expr, operator);
}

static bool
is_free(Expr *expr)
{
	return !contain_var_clause((Node *) expr) &&
		!contain_volatile_functions((Node *) expr);
}

/*
 * The distance as the index measures it, its column on the left; or NULL: the
 * expression is no distance between that column and something that is the same
 * for all rows, or not by an operator of the index.  *sortfamily says what
 * order distances have.
 */
Expr *
IvfpqMatchDistance(IndexOptInfo *info, Expr *expr, Oid *sortfamily)
{
	OpExpr	   *distance = (OpExpr *) expr;
	Oid			operator;
	Expr	   *left;
	Expr	   *right;
	bool		exchange;

	if (!is_opclause(expr) || list_length(distance->args) != 2)
		return NULL;
	if (OidIsValid(info->indexcollations[0]) &&
		info->indexcollations[0] != distance->inputcollid)
		return NULL;
	left = linitial(distance->args);
	right = lsecond(distance->args);
	if (match_index_to_operand((Node *) left, 0, info) && is_free(right))
		exchange = false;
	else if (match_index_to_operand((Node *) right, 0, info) && is_free(left))
		exchange = true;
	else
		return NULL;
	operator = exchange ? get_commutator(distance->opno) : distance->opno;
	if (!OidIsValid(operator))
		return NULL;
	*sortfamily = get_op_opfamily_sortfamily(operator, info->opfamily[0]);
	if (!OidIsValid(*sortfamily))
		return NULL;
	return exchange ? (Expr *) exchange_sides(distance, operator) : expr;
}

/*
 * A path in the order of one distance, as IvfpqMatchDistance gives it; or
 * NULL, if it would tell of hidden rows, or rows without a vector are wanted.
 * `found` are the clauses that core has found for the index.
 *
 * Core takes a path for safe to run in a worker by the conditions and columns
 * of its table.  The distance may have more: a parameter of the outer side of
 * a join, or a restricted function; the pass at the end of a scan evaluates
 * the index's expressions and predicate.
 */
IndexPath *
IvfpqDistancePath(PlannerInfo *root, IndexOptInfo *info, List *found,
				  Expr *distance, PathKey *key)
{
	List	   *clauses = IvfpqKeyClauses(root, info, found);
	IndexPath  *path;

	if (IvfpqWantsNoVector(clauses) || IvfpqWouldLeak(root, info, false))
		return NULL;
	info->amcostestimate = (void *) IvfpqCostEstimate;
	path = create_index_path(root, info, clauses, list_make1(distance),
							 list_make1_int(0), list_make1(key),
							 ForwardScanDirection, false, NULL, 1.0, false);
	info->amcostestimate = (void *) ivfpqcostestimate;
	path->path.parallel_safe = path->path.parallel_safe &&
		is_parallel_safe(root, (Node *) distance) &&
		IvfpqIsParallelSafe(info->indexprs, info->indpred);
	return path;
}

/*
 * Rows that will be asked of a path, as far as a limit tells; 0 = it does not.
 * Without its order a sort above wants all rows.  One for further keys sees
 * from the next row that there are no more of the last one's distance.
 */
double
IvfpqRowsNeeded(const PlannerInfo *root, const Path *path)
{
	int			nkeys = list_length(path->pathkeys);
	int			asked = list_length(root->query_pathkeys);

	if (root->limit_tuples <= 0 || (nkeys == 0 && asked > 0))
		return 0;
	return root->limit_tuples + (nkeys < asked);
}

/*
 * Returns the expressions of a key of the level's order that are the
 * relation's: for a child its parent's, in the child's columns.
 */
static List *
key_exprs(PlannerInfo *root, const RelOptInfo *rel, const PathKey *key)
{
	List	   *exprs = NIL;
	ListCell   *lc;

	if (rel->reloptkind == RELOPT_OTHER_MEMBER_REL)
	{
		AppendRelInfo *info = root->append_rel_array[rel->relid];

		exprs = key_exprs(root, root->simple_rel_array[info->parent_relid],
						  key);
		return (List *) adjust_appendrel_attrs(root, (Node *) exprs, 1,
											   &info);
	}
	foreach(lc, key->pk_eclass->ec_members)
	{
		EquivalenceMember *member = lfirst(lc);

		if (!member->em_is_child && bms_equal(member->em_relids, rel->relids))
			exprs = lappend(exprs, member->em_expr);
	}
	return exprs;
}

/* The distance of the index that a key of ORDER BY asks for, or NULL. */
static Expr *
distance_of_key(PlannerInfo *root, IndexOptInfo *info, const PathKey *key)
{
	ListCell   *lc;

	if (!IvfpqIsAscending(key) || key->pk_nulls_first ||
		key->pk_eclass->ec_has_volatile)
		return NULL;
	foreach(lc, key_exprs(root, info->rel, key))
	{
		Expr	   *distance;
		Oid			sortfamily;

		distance = IvfpqMatchDistance(info, lfirst(lc), &sortfamily);
		if (distance != NULL && sortfamily == key->pk_opfamily)
			return distance;
	}
	return NULL;
}

/*
 * The path by the order of an index that the query level is to have, or NULL.
 */
IndexPath *
IvfpqOrderedPath(PlannerInfo *root, IndexOptInfo *info, List *found)
{
	PathKey    *key = IvfpqRequestedOrder(root);
	Expr	   *distance;

	if (key == NULL || !IvfpqIsUsable(root, info))
		return NULL;
	distance = distance_of_key(root, info, key);
	return distance == NULL ? NULL :
		IvfpqDistancePath(root, info, found, distance, key);
}
