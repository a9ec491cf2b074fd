/*
 * keyreasons.c
 *		Why conditions on keys of an index are filters beside it.
 */
#include "postgres.h"

#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"

#include "am/keys/keys.h"
#include "am/doctor/doctor.h"
#include "am/filter/customscan.h"

typedef struct KeySearch
{
	IndexOptInfo *info;
	int			column;			/* found: behind the vector */
} KeySearch;

/* Find a key of the index in an expression. */
static bool
find_key(Node *node, void *context)
{
	KeySearch  *search = context;

	if (node == NULL)
		return false;
	for (int column = 1; column < search->info->nkeycolumns; column++)
		if (match_index_to_operand(node, column, search->info))
		{
			search->column = column;
			return true;
		}
	return expression_tree_walker(node, find_key, context);
}

/* A condition of one table, as a user would write it. */
static char *
condition_text(PlannerInfo *root, const RelOptInfo *rel, Node *clause)
{
	Oid			table = planner_rt_fetch(rel->relid, root)->relid;

	clause = copyObject(clause);
	ChangeVarNodes(clause, (int) rel->relid, 1, 0);
	return deparse_expression(clause,
							  deparse_context_for(get_rel_name(table), table),
							  false, false);
}

/* Both sides of a comparison, or NULLs. */
static void
get_sides(const RestrictInfo *condition, Oid *operator, Oid *collation,
		  Node **left, Node **right)
{
	List	   *args = NIL;

	*operator = *collation = InvalidOid;
	*left = *right = NULL;
	if (is_opclause(condition->clause))
	{
		OpExpr	   *expr = (OpExpr *) condition->clause;

		args = expr->args;
		*operator = expr->opno;
		*collation = expr->inputcollid;
	}
	else if (IsA(condition->clause, ScalarArrayOpExpr))
	{
		ScalarArrayOpExpr *expr = (ScalarArrayOpExpr *) condition->clause;

		args = expr->args;
		*operator = expr->useOr ? expr->opno : InvalidOid;
		*collation = expr->inputcollid;
	}
	if (list_length(args) != 2 || !OidIsValid(*operator))
		return;
	*left = linitial(args);
	*right = lsecond(args);
}

/* Has the key's class an operator of the same name, if for other types? */
static bool
has_namesake(const IndexOptInfo *info, int column, Oid operator)
{
	char	   *name = OidIsValid(operator) ? get_opname(operator) : NULL;

	for (int16 s = 1; name != NULL && s <= IVFPQ_NKEY_STRATEGIES; s++)
	{
		Oid			member = get_opfamily_member(info->opfamily[column],
												 info->opcintype[column],
												 info->opcintype[column], s);

		if (OidIsValid(member) && strcmp(get_opname(member), name) == 0)
			return true;
	}
	return false;
}

/* Why does the key not answer it?  *advice may become what to do. */
static char *
why_filter(PlannerInfo *root, IndexOptInfo *info, int column,
		   RestrictInfo *condition, char **advice)
{
	Oid			operator;
	Oid			collation;
	Oid			wanted = info->indexcollations[column];
	Node	   *left;
	Node	   *right;
	Node	   *key;
	Node	   *value;

	*advice = NULL;
	if (!restriction_is_securely_promotable(condition, info->rel))
		return "a policy or a security barrier has to be asked before it";
	if (is_orclause(condition->clause))
	{
		*advice = "write IN (...) or = ANY where all alternatives are of one column";
		return "it is an OR";
	}
	get_sides(condition, &operator, &collation, &left, &right);
	if (left == NULL)
		return "it is no comparison that keys answer";
	if (match_index_to_operand(left, column, info))
		key = left;
	else if (match_index_to_operand(right, column, info))
		key = right;
	else
	{
		key = contain_var_clause(left) ? left : right;
		*advice = psprintf("cast the value to %s, the key's type, and leave the key as it is",
						   format_type_be(info->opcintype[column]));
		return psprintf("the key is cast to %s, or is in an expression",
						format_type_be(exprType(key)));
	}
	value = key == left ? right : left;
	if (contain_var_clause(value))
		return "it compares the key with another column";
	if (contain_volatile_functions(value))
		return "what it compares the key with is volatile";
	if (OidIsValid(wanted) && wanted != collation)
		return "it is of another collation than the key";
	if (key == right)
		operator = get_commutator(operator);
	if (!OidIsValid(operator) ||
		!op_in_opfamily(operator, info->opfamily[column]))
	{
		if (has_namesake(info, column, operator))
			*advice = psprintf("cast the value to %s, the key's type",
							   format_type_be(info->opcintype[column]));
		return psprintf("the key's class does not have its operator, %s (%s, %s)",
						OidIsValid(operator) ? get_opname(operator) : "?",
						format_type_be(exprType(left)),
						format_type_be(exprType(right)));
	}
	return "the planner did not give it to the index";
}

/* Add an IvfpqReason to *reasons for each condition on keys that is a filter. */
void
IvfpqWhyFilters(PlannerInfo *root, const IndexPath *path, List **reasons)
{
	IndexOptInfo *info = path->indexinfo;
	ListCell   *lc;

	foreach(lc, IvfpqUnanswered(info->indrestrictinfo, path))
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		KeySearch	search = {info, 0};
		IvfpqReason *reason;
		char	   *why;

		if (condition->pseudoconstant ||
			!find_key((Node *) condition->clause, &search))
			continue;
		reason = palloc(sizeof(IvfpqReason));
		why = why_filter(root, info, search.column, condition,
						 &reason->advice);
		reason->state = psprintf("%s is a filter, not a condition of the index: %s",
								 condition_text(root, info->rel,
												(Node *) condition->clause),
								 why);
		*reasons = lappend(*reasons, reason);
	}
}
