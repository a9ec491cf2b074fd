/*
 * clauses.c
 *		Which parts of a statement an index answers: its order, its conditions
 *		on keys, and its conditions on the distance; and the index paths that
 *		do so.
 *
 * Core makes an ordered path where all keys of ORDER BY are an index's, for
 * whatever may use an order.  None of these is taken (cost.c).  Here a path is
 * made in the order of any distance to the index's column: for the first key
 * of ORDER BY where the query level wants the nearest rows first, and for a
 * condition on the distance.
 *
 * Keys.  Core finds the conditions that keys of an index answer, and gives
 * them to the paths that it makes.  But up to 16 it takes an array (IN) on any
 * column but the first for something that spoils the order, and on 15 it knows
 * only the bare booleans of its own operator families.  So this file looks for
 * such conditions in core's ways, besides those that core has found.
 *
 * Bounds.  These conditions bound a distance d that the index orders by, if r,
 * c and t do not depend on rows:
 *
 *	d < r    d <= r    r > d    r >= d			d is at most r
 *	c - d > t    c - d >= t    t < c - d ...	d is at most c - t
 *	-d > t    d * -1 > t ...					d is at most -t
 *
 * The query of d may be another expression than that of the order, as it is
 * where a sub-select is written twice, or an alias has it twice.  Then the
 * condition is a bound if both have the same value when the scan begins.
 * Whatever rounding does to c - d and to c - t, a margin makes up for; the
 * condition itself is still asked of the rows within.
 *
 * NaN is greater than every number, so d < r holds for no NaN and c - d > t
 * for all.
 *
 * Which bounds may end a scan without telling of hidden rows: README, "Bounds
 * on the Distance".
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "pgcompat.h"
#include "planner/planner.h"

double		ivfpq_radius_recall = 1;

/* Returns whether the index is one of ours. */
bool
IvfpqIsOursToPlan(const IndexOptInfo *info)
{
	return (void *) info->amcostestimate == (void *) ivfpqcostestimate;
}

/* Returns an operator's expression with its sides exchanged. */
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
 * Returns a distance with its sides exchanged, or NULL if that is another
 * function.  The result shares the arguments.
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

/* Returns whether an expression has the same value for all rows. */
static bool
is_same_for_all(Expr *expr)
{
	return !contain_var_clause((Node *) expr) &&
		!contain_volatile_functions((Node *) expr);
}

/*
 * Returns the distance as the index measures it, with the index's column on
 * the left.  Returns NULL if the expression is no distance between that column
 * and something that is the same for all rows, or has no operator of the
 * index.  Sets *sortfamily to the family that orders distances.
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
	if (match_index_to_operand((Node *) left, 0, info) &&
		is_same_for_all(right))
		exchange = false;
	else if (match_index_to_operand((Node *) right, 0, info) &&
			 is_same_for_all(left))
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

static IndexClause *
make_clause(RestrictInfo *info, RestrictInfo *condition, int column)
{
	IndexClause *clause = makeNode(IndexClause);

	clause->rinfo = info;
	clause->indexquals = list_make1(condition);
	clause->indexcol = (AttrNumber) column;
	return clause;
}

/*
 * Returns whether a column is compared with something that is the same for all
 * rows.
 */
static bool
compares(IndexOptInfo *index, int column, Node *left, Node *right,
		 Oid operator, Oid collation)
{
	Oid			wanted = index->indexcollations[column];

	return match_index_to_operand(left, column, index) &&
		(!OidIsValid(wanted) || wanted == collation) &&
		op_in_opfamily(operator, index->opfamily[column]) &&
		is_same_for_all((Expr *) right);
}

/* column operator value, or value operator column */
static IndexClause *
match_operator(IndexOptInfo *index, int column, RestrictInfo *info)
{
	OpExpr	   *expr = (OpExpr *) info->clause;
	Oid			commutator;

	if (list_length(expr->args) != 2)
		return NULL;
	if (compares(index, column, linitial(expr->args), lsecond(expr->args),
				 expr->opno, expr->inputcollid))
		return make_clause(info, info, column);
	commutator = get_commutator(expr->opno);
	if (!OidIsValid(commutator) ||
		!compares(index, column, lsecond(expr->args), linitial(expr->args),
				  commutator, expr->inputcollid))
		return NULL;
	return make_clause(info, commute_restrictinfo(info, commutator), column);
}

/* column, NOT column, column IS TRUE, column IS FALSE */
static IndexClause *
match_boolean(PlannerInfo *root, IndexOptInfo *index, int column,
			  RestrictInfo *info)
{
	Node	   *operand = (Node *) info->clause;
	bool		wanted = true;
	Expr	   *equal;

	if (!op_in_opfamily(BooleanEqualOperator, index->opfamily[column]))
		return NULL;
	if (is_notclause(operand))
	{
		operand = (Node *) get_notclausearg(operand);
		wanted = false;
	}
	else if (IsA(operand, BooleanTest))
	{
		BooleanTest *test = (BooleanTest *) operand;

		if (test->booltesttype != IS_TRUE && test->booltesttype != IS_FALSE)
			return NULL;
		operand = (Node *) test->arg;
		wanted = test->booltesttype == IS_TRUE;
	}
	if (!match_index_to_operand(operand, column, index))
		return NULL;
	equal = make_opclause(BooleanEqualOperator, BOOLOID, false,
						  (Expr *) operand,
						  (Expr *) makeBoolConst(wanted, false),
						  InvalidOid, InvalidOid);
	return make_clause(info, make_simple_restrictinfo(root, equal), column);
}

/* Returns how a column answers a condition, or NULL. */
static IndexClause *
match_clause(PlannerInfo *root, IndexOptInfo *index, int column,
			 RestrictInfo *info)
{
	Node	   *clause = (Node *) info->clause;

	if (info->pseudoconstant ||
		!restriction_is_securely_promotable(info, index->rel))
		return NULL;
	/* column IS [NOT] NULL */
	if (IsA(clause, NullTest))
	{
		NullTest   *test = (NullTest *) clause;

		return !test->argisrow &&
			match_index_to_operand((Node *) test->arg, column, index) ?
			make_clause(info, info, column) : NULL;
	}
	if (column == 0)			/* the vector */
		return NULL;
	/* column operator ANY (array) */
	if (IsA(clause, ScalarArrayOpExpr))
	{
		ScalarArrayOpExpr *expr = (ScalarArrayOpExpr *) clause;

		return expr->useOr &&
			compares(index, column, linitial(expr->args), lsecond(expr->args),
					 expr->opno, expr->inputcollid) ?
			make_clause(info, info, column) : NULL;
	}
	return is_opclause(clause) ? match_operator(index, column, info) :
		match_boolean(root, index, column, info);
}

/* Returns which of these clauses stands for the condition, or NULL. */
static IndexClause *
find_clause(List *clauses, const RestrictInfo *info)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (lfirst_node(IndexClause, lc)->rinfo == info)
			return lfirst(lc);
	}
	return NULL;
}

/*
 * Returns all conditions of the table that the index answers, column by
 * column, with the clauses of `found`, which core has found, unchanged.
 */
List *
IvfpqKeyClauses(PlannerInfo *root, IndexOptInfo *index, List *found)
{
	List	   *clauses = NIL;
	ListCell   *lc;

	for (int column = 0; column < index->nkeycolumns; column++)
	{
		foreach(lc, found)
		{
			if (lfirst_node(IndexClause, lc)->indexcol == column)
				clauses = lappend(clauses, lfirst(lc));
		}
		foreach(lc, index->indrestrictinfo)
		{
			RestrictInfo *info = lfirst_node(RestrictInfo, lc);
			IndexClause *clause;

			if (find_clause(found, info) || find_clause(clauses, info))
				continue;
			clause = match_clause(root, index, column, info);
			if (clause != NULL)
				clauses = lappend(clauses, clause);
		}
	}
	return clauses;
}

/*
 * Returns which of these conditions the path leaves to the executor: neither
 * those that keys answer, nor those that the index's predicate proves, nor
 * those that do not depend on rows, which a Result above evaluates.
 */
List *
IvfpqUnanswered(List *conditions, const IndexPath *path)
{
	const List *unproved = path->indexinfo->indrestrictinfo;
	List	   *unanswered = NIL;
	ListCell   *lc;

	foreach(lc, conditions)
	{
		RestrictInfo *info = lfirst_node(RestrictInfo, lc);

		if (!info->pseudoconstant && list_member_ptr(unproved, info) &&
			!is_redundant_with_indexclauses(info, path->indexclauses))
			unanswered = lappend(unanswered, info);
	}
	return unanswered;
}

/*
 * Returns whether plans may use the index, and it has all rows that the
 * statement may want.  Left alone are targets of UPDATE and the like, samples,
 * and tables whose rows depend on others of a join or are proved to be none.
 */
static bool
is_usable(PlannerInfo *root, const IndexOptInfo *info)
{
	RelOptInfo *rel = info->rel;

	return ivfpq_use_index != IVFPQ_USE_NEVER &&
		IvfpqIsOursToPlan(info) && (info->indpred == NIL || info->predOK) &&
		!IS_DUMMY_REL(rel) && bms_is_empty(rel->lateral_relids) &&
		!bms_is_member((int) rel->relid, root->all_result_relids) &&
		root->simple_rte_array[rel->relid]->tablesample == NULL;
}

/*
 * Returns whether a clause asks for rows without a vector; the index has none.
 */
static bool
wants_no_vector(const List *clauses)
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
 * Returns a path in the order of one distance, which is as IvfpqMatchDistance
 * returns it, or NULL if the path would leak hidden rows or rows without a
 * vector are wanted.  `found` are the clauses that core has found for the
 * index.
 *
 * Core decides by the conditions and columns of the path's table whether the
 * path is safe to run in a worker.  The distance may have more: a parameter of
 * the outer side of a join, or a restricted function.  And the pass at the end
 * of a scan evaluates the index's expressions and predicate.
 */
static IndexPath *
distance_path(PlannerInfo *root, IndexOptInfo *info, List *found,
			  Expr *distance, PathKey *key)
{
	List	   *clauses = IvfpqKeyClauses(root, info, found);
	IndexPath  *path;

	if (wants_no_vector(clauses) || IvfpqWouldLeak(root, info, false))
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
 * Returns whether the level is core's rewrite of min(distance), as
 * build_minmax_path() makes it.  An aggregate is exact.
 */
static bool
is_minmax(const PlannerInfo *root)
{
	const PlannerInfo *parent = root->parent_root;
	const TargetEntry *target;

	if (parent == NULL || parent->simple_rel_array != NULL ||
		!parent->parse->hasAggs || list_length(root->parse->targetList) != 1)
		return false;
	target = linitial_node(TargetEntry, root->parse->targetList);
	return target->resname != NULL &&
		strcmp(target->resname, "agg_target") == 0;
}

/*
 * Returns whether the level has a LIMIT.  OFFSET alone leaves the rest to be
 * read.
 */
static bool
has_limit(const Query *query)
{
	const Node *count = query->limitCount;

	return count != NULL &&
		!(IsA(count, Const) && ((const Const *) count)->constisnull);
}

/*
 * Returns whether the level stops early.  A sub-select of an expression is
 * planned before the relations of its level: of IN (SELECT ...) the planner
 * expects half of the rows, which is no reason to leave out others.  UNION
 * without ALL reads all, and so may a window of the level above.
 */
static bool
stops_early(const PlannerInfo *root)
{
	const PlannerInfo *parent = root->parent_root;

	return root->tuple_fraction > 0 &&
		(parent == NULL || has_limit(root->parse) ||
		 (parent->simple_rel_array != NULL &&
		  parent->parse->setOperations == NULL &&
		  !parent->parse->hasWindowFuncs && stops_early(parent)));
}

/*
 * Returns whether an expression has a window function that needs rows beyond
 * the current one.  An aggregate needs those of its frame.
 */
static bool
reads_on(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc) && !((WindowFunc *) node)->winagg)
		switch (((WindowFunc *) node)->winfnoid)
		{
			case F_ROW_NUMBER:
			case F_RANK_:
			case F_DENSE_RANK_:
			case F_LAG_ANYELEMENT:
			case F_LAG_ANYELEMENT_INT4:
			case F_LAG_ANYCOMPATIBLE_INT4_ANYCOMPATIBLE:
			case F_LEAD_ANYELEMENT:
			case F_LEAD_ANYELEMENT_INT4:
			case F_LEAD_ANYCOMPATIBLE_INT4_ANYCOMPATIBLE:
			case F_FIRST_VALUE:
			case F_LAST_VALUE:
			case F_NTH_VALUE:
				break;
			default:
				return true;
		}
	return expression_tree_walker(node, reads_on, context);
}

/* Returns whether all windows run along with the order of the first key. */
static bool
windows_run_along(const Query *query)
{
	const		SortGroupClause *first = linitial(query->sortClause);
	ListCell   *lc;

	if (!query->hasWindowFuncs)
		return true;
	foreach(lc, query->windowClause)
	{
		WindowClause *window = lfirst_node(WindowClause, lc);
		int			frame = window->frameOptions;

		if (window->partitionClause != NIL || window->orderClause == NIL ||
			!equal(linitial(window->orderClause), first) ||
			!(frame & FRAMEOPTION_START_UNBOUNDED_PRECEDING) ||
			!(frame & FRAMEOPTION_END_CURRENT_ROW) ||
			(frame & FRAMEOPTION_EXCLUSION))
			return false;
	}
	return !reads_on((Node *) query->targetList, NULL);
}

/*
 * Returns the key of the level's order that an ordered path has to provide, or
 * NULL if there is to be no such path: conditions (a) and (b) of custompath.c,
 * and what (c) says of windows.
 */
PathKey *
IvfpqRequestedOrder(const PlannerInfo *root)
{
	const Query *query = root->parse;

	if (root->sort_pathkeys == NIL || root->query_pathkeys == NIL ||
		linitial(root->sort_pathkeys) != linitial(root->query_pathkeys) ||
		query->groupClause != NIL || query->groupingSets != NIL ||
		query->hasAggs || root->hasHavingQual || query->hasTargetSRFs ||
		is_minmax(root) || !windows_run_along(query) ||
		(enable_seqscan && enable_sort && !stops_early(root)) ||
		(ivfpq_order == IVFPQ_ORDER_RELAXED && IvfpqReliesOnOrder(root)) ||
		(list_length(root->query_pathkeys) > 1 && !enable_incremental_sort))
		return NULL;
	return linitial(root->sort_pathkeys);
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

/*
 * Returns the path in the order of an index that the query level is to have,
 * or NULL.
 */
IndexPath *
IvfpqOrderedPath(PlannerInfo *root, IndexOptInfo *info, List *found)
{
	PathKey    *key = IvfpqRequestedOrder(root);
	ListCell   *lc;

	if (key == NULL || !is_usable(root, info) || !IvfpqIsAscending(key) ||
		key->pk_nulls_first || key->pk_eclass->ec_has_volatile)
		return NULL;
	foreach(lc, key_exprs(root, info->rel, key))
	{
		Expr	   *distance;
		Oid			sortfamily;

		distance = IvfpqMatchDistance(info, lfirst(lc), &sortfamily);
		if (distance != NULL && sortfamily == key->pk_opfamily)
			return distance_path(root, info, found, distance, key);
	}
	return NULL;
}

static Expr *
zero(void)
{
	return (Expr *) makeConst(FLOAT8OID, -1, InvalidOid, sizeof(float8),
							  Float8GetDatum(0), false, FLOAT8PASSBYVAL);
}

static bool
is_minus_one(const Expr *expr)
{
	const Const *constant = (const Const *) expr;

	return IsA(expr, Const) && !constant->constisnull &&
		constant->consttype == FLOAT8OID &&
		DatumGetFloat8(constant->constvalue) == -1;
}

/* Returns a value of double precision or real as one of double precision. */
static Expr *
as_float8(Expr *expr)
{
	if (exprType((Node *) expr) == FLOAT8OID)
		return expr;
	return (Expr *) makeFuncExpr(F_FLOAT8_FLOAT4, FLOAT8OID,
								 list_make1(expr), InvalidOid, InvalidOid,
								 COERCE_IMPLICIT_CAST);
}

/*
 * Returns the distance d of c - d and sets *from to c.  Returns NULL if the
 * expression is not of that form.
 */
static Expr *
subtracted(Expr *expr, Expr **from)
{
	OpExpr	   *op = (OpExpr *) expr;
	Expr	   *left;
	Expr	   *right;

	if (!IsA(expr, OpExpr))
		return NULL;
	left = linitial(op->args);
	right = llast(op->args);
	*from = zero();
	switch (get_opcode(op->opno))
	{
		case F_FLOAT8UM:
			return right;
		case F_FLOAT8MUL:
			return is_minus_one(left) ? right :
				is_minus_one(right) ? left : NULL;
		case F_FLOAT8MI:
			if (!is_same_for_all(left))
				return NULL;
			*from = left;
			return right;
		default:
			return NULL;
	}
}

/*
 * Returns whether the condition bounds something from above, and sets
 * bound->distance to that.  Whether it is a distance is for the caller to find
 * out.
 */
static bool
match_bound(RestrictInfo *info, IvfpqBound *bound)
{
	OpExpr	   *condition = (OpExpr *) info->clause;
	Expr	   *left;
	Expr	   *right;

	if (info->pseudoconstant || !is_opclause(condition) ||
		list_length(condition->args) != 2)
		return false;
	switch (get_opcode(condition->opno))
	{
		case F_FLOAT8LT:
		case F_FLOAT8LE:
		case F_FLOAT84LT:
		case F_FLOAT84LE:
		case F_FLOAT48LT:
		case F_FLOAT48LE:
			left = linitial(condition->args);
			right = lsecond(condition->args);
			break;
		case F_FLOAT8GT:
		case F_FLOAT8GE:
		case F_FLOAT84GT:
		case F_FLOAT84GE:
		case F_FLOAT48GT:
		case F_FLOAT48GE:
			left = lsecond(condition->args);
			right = linitial(condition->args);
			break;
		default:
			return false;
	}

	/* a sub-plan would run twice: for the condition and for its bound */
	if (contain_subplans((Node *) condition))
		return false;

	/* left is less than right */
	if (is_same_for_all(right))
	{
		bound->distance = left;
		bound->from = as_float8(right);
		bound->less = zero();
		bound->with_nan = false;
		return true;
	}
	if (!is_same_for_all(left))
		return false;
	bound->distance = subtracted(right, &bound->from);
	bound->less = as_float8(left);
	bound->with_nan = true;
	return bound->distance != NULL;
}

/*
 * Returns whether the bound is one of the same distance, though perhaps to
 * another expression, which may have the same value.  A sub-select that is
 * written twice is two parameters.
 */
static bool
match_queries(IvfpqBound *bound, Expr *distance)
{
	OpExpr	   *bounded = (OpExpr *) bound->distance;
	OpExpr	   *ordered = (OpExpr *) distance;

	if (distance == NULL || !is_opclause(bounded) || !is_opclause(ordered) ||
		bounded->opno != ordered->opno ||
		bounded->inputcollid != ordered->inputcollid ||
		list_length(bounded->args) != 2)
		return false;
	for (int column = 0; column < 2; column++)
	{
		bound->query = list_nth(bounded->args, 1 - column);
		bound->ordered = list_nth(ordered->args, 1 - column);
		if (equal(list_nth(bounded->args, column),
				  list_nth(ordered->args, column)) &&
			is_same_for_all(bound->query) && is_same_for_all(bound->ordered) &&
			!contain_subplans((Node *) bound->ordered) &&
			exprType((Node *) bound->query) ==
			exprType((Node *) bound->ordered))
			return true;
	}
	return false;
}

/*
 * Returns whether the condition bounds this distance, or may do so if
 * bound->query and bound->ordered turn out to have the same value.
 */
bool
IvfpqMatchBound(RestrictInfo *info, Expr *distance, IvfpqBound *bound)
{
	if (!match_bound(info, bound) ||
		(!match_queries(bound, distance) &&
		 !match_queries(bound, IvfpqExchanged(distance))))
		return false;
	if (equal(bound->query, bound->ordered))
		bound->query = bound->ordered = NULL;
	else if (IsA(bound->query, Const) && IsA(bound->ordered, Const))
		return false;
	return true;
}

/*
 * Returns whether a query changes or locks rows that exist.  The query says
 * so, not root->rowMarks, which is still empty when common table expressions
 * are planned.
 */
static bool
changes_rows(const Query *query)
{
	if (query->commandType == CMD_INSERT)
		return query->hasModifyingCTE ||
			(query->onConflict != NULL &&
			 query->onConflict->action == ONCONFLICT_UPDATE);
	return query->commandType != CMD_SELECT || query->hasModifyingCTE ||
		query->rowMarks != NIL;
}

/*
 * Returns whether a statement may miss rows that satisfy its conditions.  It
 * may not if rows are changed or locked by them, perhaps by a query that this
 * one is part of.
 */
static bool
may_approximate(const PlannerInfo *root)
{
	for (; root != NULL; root = root->parent_root)
		if (changes_rows(root->parse))
			return false;
	return true;
}

/*
 * Returns a path for a condition that bounds a distance which no order asks
 * for, or NULL.  The path finds nearly all rows within, so it is made only if
 * the user accepts that.  Rows come by the distance, but are not in order.
 */
IndexPath *
IvfpqRadiusPath(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info,
				List *found)
{
	ListCell   *lc;

	if (ivfpq_radius_recall >= 1 || !may_approximate(root) ||
		!is_usable(root, info) || IvfpqWouldLeak(root, info, true))
		return NULL;
	foreach(lc, rel->baserestrictinfo)
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		IvfpqBound	bound;
		Expr	   *distance;
		PathKey    *key;
		Oid			sortfamily;

		if (!match_bound(condition, &bound) ||
			!restriction_is_securely_promotable(condition, rel))
			continue;
		distance = IvfpqMatchDistance(info, bound.distance, &sortfamily);
		if (distance == NULL)
			continue;
		/* an order that no query asks for; core takes from it how to sort */
		key = makeNode(PathKey);
		key->pk_opfamily = sortfamily;
		IvfpqSetAscending(key);
		return distance_path(root, info, found, distance, key);
	}
	return NULL;
}
