/*
 * keyclauses.c
 *		Conditions that the keys of an index answer.
 *
 * Core finds them, and gives them to the paths that it makes.  But up to 16 it
 * takes an array (IN) on any column but the first for something that spoils
 * the order, and on 15 it knows the bare booleans of its own operator families
 * only.  So they are looked for here, in core's ways, beside those that core
 * has found.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "utils/lsyscache.h"

#include "am/filter/customscan.h"

static IndexClause *
make_clause(RestrictInfo *info, RestrictInfo *condition, int column)
{
	IndexClause *clause = makeNode(IndexClause);

	clause->rinfo = info;
	clause->indexquals = list_make1(condition);
	clause->indexcol = (AttrNumber) column;
	return clause;
}

/* Is a column compared with something that is the same for all rows? */
static bool
compares(IndexOptInfo *index, int column, Node *left, Node *right,
		 Oid operator, Oid collation)
{
	Oid			wanted = index->indexcollations[column];

	return match_index_to_operand(left, column, index) &&
		(!OidIsValid(wanted) || wanted == collation) &&
		op_in_opfamily(operator, index->opfamily[column]) &&
		!contain_var_clause(right) &&
		!contain_volatile_functions(right);
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

/* column operator ANY (array) */
static IndexClause *
match_array(IndexOptInfo *index, int column, RestrictInfo *info)
{
	ScalarArrayOpExpr *expr = (ScalarArrayOpExpr *) info->clause;

	if (!expr->useOr ||
		!compares(index, column, linitial(expr->args), lsecond(expr->args),
				  expr->opno, expr->inputcollid))
		return NULL;
	return make_clause(info, info, column);
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

/* column IS [NOT] NULL */
static IndexClause *
match_null(IndexOptInfo *index, int column, RestrictInfo *info)
{
	NullTest   *test = (NullTest *) info->clause;

	if (test->argisrow ||
		!match_index_to_operand((Node *) test->arg, column, index))
		return NULL;
	return make_clause(info, info, column);
}

/* How a column answers a condition, or NULL. */
static IndexClause *
match_clause(PlannerInfo *root, IndexOptInfo *index, int column,
			 RestrictInfo *info)
{
	if (info->pseudoconstant ||
		!restriction_is_securely_promotable(info, index->rel))
		return NULL;
	if (IsA(info->clause, NullTest))
		return match_null(index, column, info);
	if (column == 0)			/* the vector */
		return NULL;
	if (is_opclause(info->clause))
		return match_operator(index, column, info);
	if (IsA(info->clause, ScalarArrayOpExpr))
		return match_array(index, column, info);
	return match_boolean(root, index, column, info);
}

/* The one of these clauses that stands for the condition, or NULL. */
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
 * All conditions of the table that the index answers, column by column; those
 * of `found`, which core has found, as they are there.
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
 * Which of these conditions does the path leave to the executor?  Not those
 * that keys answer, nor those that the index's predicate does.
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

		if (list_member_ptr(unproved, info) &&
			!is_redundant_with_indexclauses(info, path->indexclauses))
			unanswered = lappend(unanswered, info);
	}
	return unanswered;
}
