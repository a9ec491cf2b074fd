/*
 * clauses.c
 *		Matches parts of a statement to an index (the order, conditions on keys
 *		and conditions on the distance), and makes index paths.
 *
 * Core makes an ordered path if an index provides the order of all keys of
 * ORDER BY, and any node may use that order.  The planner never chooses core's
 * ordered paths for our indexes (cost.c).  This file makes other paths, in the
 * order of any distance to the index's column: for the first key of ORDER BY,
 * if the query level reads only the nearest rows, and for a condition on the
 * distance.
 *
 * Keys.  Core matches conditions to the keys of an index, and uses them in the
 * paths that it makes.  But up to PostgreSQL 16 core leaves out an array (IN)
 * on any column except the first, because it assumes that such an array makes
 * the scan unordered.  And PostgreSQL 15 matches bare boolean columns only for
 * built-in operator families.  So this file matches such conditions in the
 * same way as core, in addition to those that core has matched.
 *
 * Bounds.  The following conditions bound a distance d that the index orders
 * by, if r, c and t do not depend on rows:
 *
 *	d < r    d <= r    r > d    r >= d			d is at most r
 *	c - d > t    c - d >= t    t < c - d ...	d is at most c - t
 *	-d > t    d * -1 > t ...					d is at most -t
 *
 * The query in d may be a different expression from the query of the order,
 * because a statement may have the same sub-select twice, written out or
 * through an alias.  Then the condition is a bound if both queries have the
 * same value when the scan begins.  The rounding of c - d and that of c - t
 * may differ, so the bound has a margin; the condition itself is still
 * evaluated on the rows within the bound.  NaN is greater than every number,
 * so for a distance of NaN the condition d < r is false, and c - d > t is
 * true.  am/scan/README, "Bounds on the distance", says which bounds may end
 * a scan without revealing hidden rows to the user.
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

/* Returns the commuted expression; `operator` is the commutator. */
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
 * Returns the commuted distance, or NULL if the operator has no commutator
 * that calls the same function.  The result shares the arguments of
 * `distance`.
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
 * Returns the distance in the form that the index supports, with the index's
 * column on the left.  Returns NULL unless the expression is a distance
 * between that column and a value that is the same for all rows, and its
 * operator is in the index's operator family.  Sets *sortfamily to the
 * operator family that orders distances.
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
 * Returns whether `left` is the column, `right` has the same value for all
 * rows, the operator is in the column's operator family, and the collation is
 * that of the column.
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

/* Matches "column operator value" and "value operator column". */
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

/* Matches "column", "NOT column", "column IS TRUE" and "column IS FALSE". */
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

/* Matches a condition to an index column.  Returns an index clause or NULL. */
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

/* Returns the clause in the list that comes from the condition, or NULL. */
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
 * Returns index clauses, column by column, for all conditions of the table
 * that match the index.  They include the clauses in `found`, which core has
 * matched, unchanged.
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
 * Returns the conditions that the path leaves to the executor.  Leaves out
 * conditions that the path's index clauses evaluate, conditions that the
 * index's predicate proves, and conditions that do not depend on rows, which a
 * Result node above evaluates.
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
 * Returns whether plans may use the index, and whether its predicate holds for
 * all rows that the statement needs.  Returns false for a target of UPDATE,
 * DELETE or MERGE, for a table with TABLESAMPLE, for a table with lateral
 * references, and for a table that is proved to be empty.
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

/* Returns whether a clause is "vector IS NULL"; the index has no such rows. */
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
 * Makes a path in the order of `distance`, which is a result of
 * IvfpqMatchDistance.  `found` is the list of clauses that core has matched to
 * the index.  Returns NULL if the path would leak hidden rows, or if the
 * statement needs rows whose vector is NULL.
 *
 * Core decides by the conditions and columns of the path's table whether a
 * parallel worker may run the path.  That is not enough, for two reasons.  The
 * distance may contain a parameter of the outer side of a join, or a function
 * that is parallel restricted.  And the full pass at the end of a scan
 * evaluates the index's expressions and predicate.  So we check the distance,
 * the expressions and the predicate, too.
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
 * Returns whether build_minmax_path() made this query level for min(distance).
 * An aggregate must be computed from all rows, so the approximate order of the
 * index must not answer it.
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
 * Returns whether the level has a LIMIT.  OFFSET alone does not count, because
 * all rows after the offset are read.
 */
static bool
has_limit(const Query *query)
{
	const Node *count = query->limitCount;

	return count != NULL &&
		!(IsA(count, Const) && ((const Const *) count)->constisnull);
}

/*
 * Returns whether the level stops early, so that only its first rows are read.
 * The outermost level stops early if it has a LIMIT or is a cursor.  A
 * sub-select in FROM stops early if it has a LIMIT, or if the level above
 * stops early.
 *
 * A sub-select in an expression is planned before the relations of the level
 * above.  It stops early only if it has a LIMIT.  For IN (SELECT ...) the
 * planner expects that half of the rows are read, but all rows may be needed.
 * UNION without ALL reads all rows of its sub-selects, and window functions of
 * the level above may do so, too.
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
 * Returns whether an expression has a window function that may read its
 * partition to the end, like ntile().  Aggregates are not examined, because
 * they need only the rows of their frame.
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

/*
 * Returns whether all windows can be computed while rows come in the order of
 * the first key.  Such a window is ordered by that key first, has no
 * partitions, has a frame that ends at the current row, and has no function
 * that may read its partition to the end.
 */
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
 * Returns the first key of the level's order if an ordered path should provide
 * it, otherwise NULL.  An ordered path should do so if conditions (a) and (b)
 * of custompath.c hold, and also the part of (c) that is about windows.
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
 * Returns the expressions of a sort key that belong to the relation.  For a
 * child relation, returns its parent's expressions with the child's columns.
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
 * Returns a path of the index in the sort order that the query level requests.
 * Returns NULL if that is not the order of a distance, or if the index cannot
 * or must not provide it.
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

/* Returns a real or double precision expression as double precision. */
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
 * If the expression is c - d, returns the distance d and sets *from to c.  For
 * -d and for d * -1, c is 0.  Returns NULL for any other expression.
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
 * If the condition bounds an expression from above, sets distance, from, less
 * and with_nan in *bound, and returns true.  bound->distance is the bounded
 * expression; the caller must check that it is a distance.
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

	/* a sub-plan would run twice: in the condition and in its bound */
	if (contain_subplans((Node *) condition))
		return false;

	/* here the condition is left < right or left <= right */
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
 * Returns whether bound->distance is the given distance, except that the query
 * may be a different expression.  For example, a sub-select that is written
 * twice becomes two different parameters.  Sets bound->query and
 * bound->ordered to the two queries.
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
 * Returns whether the condition bounds this distance.  If bound->query is not
 * NULL afterwards, the condition is a bound only while the two expressions
 * bound->query and bound->ordered have the same value.
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
 * Returns whether a query changes or locks existing rows.  Examines the query
 * instead of root->rowMarks, because rowMarks is still empty when common table
 * expressions are planned.
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
 * Returns whether a statement may miss rows that satisfy its conditions.
 * Returns false if this query, or a query that contains it, changes or locks
 * rows, because the conditions may decide which rows these are.
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
 * Returns an unordered path for a condition that bounds the distance, or NULL.
 * The path finds nearly all rows within the bound, so it may be used only if
 * the user accepts that (gpuvec.radius_recall below 1).  The scan searches by
 * distance, but does not return its rows in that order.
 */
IndexPath *
IvfpqRadiusPath(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info,
				List *found)
{
	ListCell   *lc;

	if (!ivfpq_enable_custom_scan || !may_approximate(root) ||
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

		/* core gets the sort operator from this key; no node sorts by it */
		key = makeNode(PathKey);
		key->pk_opfamily = sortfamily;
		IvfpqSetAscending(key);
		return distance_path(root, info, found, distance, key);
	}
	return NULL;
}
