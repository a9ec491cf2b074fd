/*
 * distancepath.c
 *		Distances in expressions, and ordered paths of ours for them.
 *
 * Core makes an ordered path where all keys of ORDER BY are an index's.  Here
 * one is made of any distance to the index's column: for the first key of
 * several, which core does from 17 on, for conditions on the distance, and for
 * an index whose path core has dropped, not knowing what its keys answer.
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "utils/lsyscache.h"

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

/* ... that has all rows which the statement may want? */
bool
IvfpqIsUsable(const IndexOptInfo *info)
{
	return IvfpqIsOursToPlan(info) && (info->indpred == NIL || info->predOK);
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
 * for all rows, or not by an operator of the index.  *sortfamily says what order
 * distances have.
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

/* An ordered path by one distance, as IvfpqMatchDistance gives it. */
IndexPath *
IvfpqDistancePath(PlannerInfo *root, IndexOptInfo *info, Expr *distance,
				  PathKey *key)
{
	return create_index_path(root, info, IvfpqKeyClauses(root, info, NIL),
							 list_make1(distance), list_make1_int(0),
							 list_make1(key), ForwardScanDirection, false,
							 NULL, 1.0, false);
}

/*
 * Rows that will be asked of a path, as far as a limit tells; 0 = it does not.
 * Without its order a sort above wants all rows.  One for further keys sees from
 * the next row that there are no more of the last one's distance.
 */
double
IvfpqRowsWanted(const PlannerInfo *root, const Path *path)
{
	int			nkeys = list_length(path->pathkeys);
	int			asked = list_length(root->query_pathkeys);

	if (root->limit_tuples <= 0 || (nkeys == 0 && asked > 0))
		return 0;
	return root->limit_tuples + (nkeys < asked);
}

/* The distance of the index that a key of ORDER BY asks for, or NULL. */
static Expr *
distance_of_key(IndexOptInfo *info, const PathKey *key)
{
	EquivalenceClass *class = key->pk_eclass;
	ListCell   *lc;

	if (!IvfpqIsAscending(key) || key->pk_nulls_first ||
		class->ec_has_volatile)
		return NULL;
	foreach(lc, class->ec_members)
	{
		EquivalenceMember *member = lfirst(lc);
		Expr	   *distance;
		Oid			sortfamily;

		if (!bms_equal(member->em_relids, info->rel->relids))
			continue;
		distance = IvfpqMatchDistance(info, member->em_expr, &sortfamily);
		if (distance != NULL && sortfamily == key->pk_opfamily)
			return distance;
	}
	return NULL;
}

bool
IvfpqHasOrderedPath(const List *paths, const IndexOptInfo *info)
{
	ListCell   *lc;

	foreach(lc, paths)
	{
		IndexPath  *path = lfirst(lc);

		if (IsA(path, IndexPath) && path->indexinfo == info &&
			path->indexorderbys != NIL)
			return true;
	}
	return false;
}

/*
 * Ordered paths that core does not make, or has dropped.
 *
 * ORDER BY a distance, and something else: paths that bring the order of the
 * first key, for an incremental sort above.  Relaxed, the order is none that a
 * sort could rely on.
 *
 * ORDER BY a distance: of two indexes of the column core keeps the one that is
 * cheaper by the conditions that core knows (keyclauses.c).
 */
void
IvfpqAddOrderedPaths(PlannerInfo *root, RelOptInfo *rel)
{
	ListCell   *lc;
	bool		has_more_keys = list_length(root->query_pathkeys) > 1;

	if (root->query_pathkeys == NIL ||
		(has_more_keys && (!enable_incremental_sort ||
						   ivfpq_order != IVFPQ_ORDER_STRICT)))
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst(lc);
		PathKey    *key = linitial(root->query_pathkeys);
		Expr	   *distance;

		if (!IvfpqIsUsable(info) || IvfpqHasOrderedPath(rel->pathlist, info))
			continue;
		distance = distance_of_key(info, key);
		if (distance != NULL &&
			(has_more_keys || IvfpqKeyClauses(root, info, NIL) != NIL))
			add_path(rel, (Path *) IvfpqDistancePath(root, info, distance,
													 key));
	}
}
