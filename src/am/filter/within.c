/*
 * within.c
 *		Conditions that bound the distance, and paths for them alone.
 *
 *		d < r    d <= r    r > d    r >= d				most = r
 *		c - d > t    c - d >= t    t < c - d ...		most = c - t
 *		-d > t    d * -1 > t ...						most = -t
 *
 * where d is the distance that the index orders by, and r, c, t do not depend
 * on rows.  The query of d may be another expression than that of the order,
 * as it is where a sub-select is written twice, or an alias has it twice:
 * then the condition is a bound if both have the same value when the scan
 * begins.  Whatever rounding does to c - d and to c - t, a margin makes up
 * for; the condition itself is still asked of the rows within.
 *
 * NaN is greater than every number, so d < r holds for no NaN and c - d > t
 * for all.
 *
 * Security.  A scan that ends at a bound tells, by its time, of the rows that
 * it has seen until then.  A bound that may be promoted, as core says it of
 * an index's conditions, ends it whichever rows have shown that the rest is
 * outside. Another one, behind a policy that may hide rows, ends it only by a
 * row that comes up, has satisfied the policy and is outside: of rows hidden
 * that tells nothing.  Where the policy itself is asked late, behind the
 * distance, the bound is none.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/restrictinfo.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "am/common/options.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

/* The side that a comparison bounds from above. */
typedef enum Bounded
{
	BOUNDED_NONE,
	BOUNDED_LEFT,
	BOUNDED_RIGHT
} Bounded;

static Bounded
bounded_side(Oid operator)
{
	switch (get_opcode(operator))
	{
		case F_FLOAT8LT:
		case F_FLOAT8LE:
		case F_FLOAT84LT:
		case F_FLOAT84LE:
		case F_FLOAT48LT:
		case F_FLOAT48LE:
			return BOUNDED_LEFT;
		case F_FLOAT8GT:
		case F_FLOAT8GE:
		case F_FLOAT84GT:
		case F_FLOAT84GE:
		case F_FLOAT48GT:
		case F_FLOAT48GE:
			return BOUNDED_RIGHT;
		default:
			return BOUNDED_NONE;
	}
}

static bool
is_same_for_all(Expr *expr)
{
	return !contain_var_clause((Node *) expr) &&
		!contain_volatile_functions((Node *) expr) &&
		!contain_subplans((Node *) expr);
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

/* A value of double precision, of that or real. */
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
 * The distance d of c - d, and *from = c; NULL if the expression is not of
 * that form.
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
 * Does the condition bound a distance from above?  Which, says
 * bound->distance; that it is one is for the caller to find out.
 */
static bool
match_bound(RestrictInfo *info, IvfpqBound *bound)
{
	OpExpr	   *condition = (OpExpr *) info->clause;
	Bounded		side;
	Expr	   *left;
	Expr	   *right;

	if (info->pseudoconstant || !is_opclause(condition) ||
		list_length(condition->args) != 2)
		return false;
	side = bounded_side(condition->opno);
	if (side == BOUNDED_NONE)
		return false;
	left = linitial(condition->args);
	right = lsecond(condition->args);
	if (side == BOUNDED_RIGHT)
	{
		Expr	   *swap = left;

		left = right;
		right = swap;
	}

	/* left is less than right */
	bound->info = info;
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
 * Is the bound one of the same distance but to another expression, which may
 * have the same value?  A sub-select that is written twice is two parameters.
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
			exprType((Node *) bound->query) ==
			exprType((Node *) bound->ordered))
			return true;
	}
	return false;
}

/*
 * Is it a bound of this distance, or may it be?  The distance's other form may
 * be NULL.
 */
bool
IvfpqMatchBound(RestrictInfo *info, Expr *distance, Expr *exchanged,
				IvfpqBound *bound)
{
	if (!match_bound(info, bound))
		return false;
	if (!match_queries(bound, distance) && !match_queries(bound, exchanged))
		return false;
	if (equal(bound->query, bound->ordered))
		bound->query = bound->ordered = NULL;
	else if (IsA(bound->query, Const) && IsA(bound->ordered, Const))
		return false;
	return true;
}

/* Bounds the relation's conditions a distance? */
bool
IvfpqIsBounded(const RelOptInfo *rel, Expr *distance)
{
	Expr	   *exchanged = IvfpqExchanged(distance);
	IvfpqBound	bound;
	ListCell   *lc;

	foreach(lc, rel->baserestrictinfo)
	{
		if (IvfpqMatchBound(lfirst(lc), distance, exchanged, &bound))
			return true;
	}
	return false;
}

/*
 * Does a query change or lock rows that there are?  It is the query that says
 * so: root->rowMarks is still empty when its common table expressions are
 * planned.
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
 * May a statement miss rows that its conditions let pass?  Not where rows are
 * changed or locked by that, maybe by the query that this one is part of.
 */
static bool
may_approximate(const PlannerInfo *root)
{
	for (; root != NULL; root = root->parent_root)
		if (changes_rows(root->parse))
			return false;
	return true;
}

/* An order that no query asks for: core takes from it which way to sort. */
static PathKey *
make_key(Oid sortfamily)
{
	PathKey    *key = makeNode(PathKey);

	key->pk_opfamily = sortfamily;
	IvfpqSetAscending(key);
	return key;
}

/*
 * A path for conditions that bound a distance which no order asks for: the
 * rows within, nearly all of them, if the user wants it so; or NULL.  They
 * come by the order of the distance, but are not in order.
 */
IndexPath *
IvfpqRadiusPath(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info,
				List *found)
{
	ListCell   *lc;

	if (ivfpq_radius_recall >= 1 || !may_approximate(root) ||
		!IvfpqIsUsable(root, info) || IvfpqWouldLeak(root, info, true))
		return NULL;
	foreach(lc, rel->baserestrictinfo)
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		IvfpqBound	bound;
		Expr	   *distance;
		Oid			sortfamily;

		if (!match_bound(condition, &bound) ||
			!restriction_is_securely_promotable(condition, rel))
			continue;
		distance = IvfpqMatchDistance(info, bound.distance, &sortfamily);
		if (distance != NULL)
			return IvfpqDistancePath(root, info, found, distance,
									 make_key(sortfamily));
	}
	return NULL;
}
