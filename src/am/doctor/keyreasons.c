/*
 * keyreasons.c
 *		Why conditions on keys of an index are filters beside it, or joins.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"

#include "am/doctor/doctor.h"
#include "planner/planner.h"

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

/*
 * Puts a NULL in the place of each sub-select, which only a finished plan can
 * be printed with; `context` is a list of how these NULLs are printed.
 */
static Node *
replace_subselects(Node *node, void *context)
{
	List	  **printed = context;
	Oid			type;

	if (node == NULL)
		return NULL;
	if (IsA(node, AlternativeSubPlan))
		return replace_subselects(linitial(((AlternativeSubPlan *) node)->subplans),
								  context);
	if (IsA(node, SubPlan) && ((SubPlan *) node)->testexpr != NULL)
		return replace_subselects(((SubPlan *) node)->testexpr, context);
	if (!IsA(node, SubPlan) &&
		!(IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC))
		return expression_tree_mutator(node, replace_subselects, context);
	type = exprType(node);
	*printed = lappend(*printed, psprintf("NULL::%s", format_type_be(type)));
	return (Node *) makeNullConst(type, -1, InvalidOid);
}

/*
 * A condition of one table, as a user would write it, with dates that every
 * session reads alike.
 */
static char *
condition_text(PlannerInfo *root, const RelOptInfo *rel, Node *clause)
{
	Oid			table = planner_rt_fetch(rel->relid, root)->relid;
	int			level = NewGUCNestLevel();
	List	   *printed = NIL;
	ListCell   *lc;
	char	   *text;

	clause = replace_subselects(copyObject(clause), &printed);
	ChangeVarNodes(clause, (int) rel->relid, 1, 0);
	(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	text = deparse_expression(clause,
							  deparse_context_for(get_rel_name(table), table),
							  false, false);

	AtEOXact_GUC(true, level);
	foreach(lc, printed)
	{
		const char *null = lfirst(lc);
		char	   *found = strstr(text, null);

		if (found != NULL)
			text = psprintf("%.*s(SELECT ...)%s", (int) (found - text), text,
							found + strlen(null));
	}
	return text;
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

/* Returns why the key does not answer a condition. */
static char *
why_filter(IndexOptInfo *info, int column, RestrictInfo *condition)
{
	Oid			operator;
	Oid			collation;
	Oid			wanted = info->indexcollations[column];
	Node	   *left;
	Node	   *right;
	Node	   *key;
	Node	   *value;

	if (!restriction_is_securely_promotable(condition, info->rel))
		return "a policy or a security barrier has to be asked before it";
	if (is_orclause(condition->clause))
		return "it is an OR";
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
		return psprintf("the key is cast to %s, or is in an expression",
						format_type_be(exprType(key)));
	}
	value = key == left ? right : left;
	if (contain_var_clause(value))
		return "it compares the key with another column";
	if (contain_volatile_functions(value))
		return "what it compares the key with is volatile";
	if (key == right && IsA(condition->clause, ScalarArrayOpExpr))
		return "keys that are arrays answer @> and &&, and not ANY";
	if (OidIsValid(wanted) && wanted != collation)
		return "it is of another collation than the key";
	if (key == right)
		operator = get_commutator(operator);
	if (!OidIsValid(operator) ||
		!op_in_opfamily(operator, info->opfamily[column]))
		return psprintf("the key's class does not have its operator, %s (%s, %s)",
						OidIsValid(operator) ? get_opname(operator) : "?",
						format_type_be(exprType(left)),
						format_type_be(exprType(right)));
	return "the planner did not give it to the index";
}

/* Returns how to write a condition so that a key answers it, or NULL. */
static char *
advise_rewriting(PlannerInfo *root, IndexOptInfo *info,
				 const RestrictInfo *condition)
{
	for (int column = 1; column < info->nkeycolumns; column++)
	{
		bool		beside;
		Expr	   *better = IvfpqRewriteForKey(info, column,
												condition->clause, &beside);

		if (better != NULL)
			return psprintf(beside ? "add %s beside it" :
							"write %s in its place",
							condition_text(root, info->rel, (Node *) better));
	}
	return NULL;
}

static void
add_reason(List **reasons, char *state, char *advice)
{
	IvfpqReason *reason = palloc(sizeof(IvfpqReason));

	reason->state = state;
	reason->advice = advice;
	*reasons = lappend(*reasons, reason);
}

/*
 * Adds an IvfpqReason to *reasons for each condition on keys that is a filter,
 * or would be in a path of the index; `path` is one that there is, or NULL.
 */
void
IvfpqWhyFilters(PlannerInfo *root, IndexOptInfo *info, const IndexPath *path,
				List **reasons)
{
	List	   *answered = IvfpqKeyClauses(root, info,
										   path ? path->indexclauses : NIL);
	ListCell   *lc;

	foreach(lc, info->indrestrictinfo)
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		KeySearch	search = {info, 0};

		if (condition->pseudoconstant ||
			is_redundant_with_indexclauses(condition, answered) ||
			!find_key((Node *) condition->clause, &search))
			continue;
		add_reason(reasons,
				   psprintf("%s is a filter, not a condition of the index: %s",
							condition_text(root, info->rel,
										   (Node *) condition->clause),
							why_filter(info, search.column, condition)),
				   restriction_is_securely_promotable(condition, info->rel) ?
				   advise_rewriting(root, info, condition) : NULL);
	}
}

/* ---- key IN (SELECT ...) */

/* Returns the tables of a node of FROM. */
static Relids
tables_in(Node *node)
{
	Relids		tables = NULL;
	ListCell   *lc;

	if (IsA(node, RangeTblRef))
		return bms_make_singleton(((RangeTblRef *) node)->rtindex);
	if (IsA(node, JoinExpr))
		return bms_union(tables_in(((JoinExpr *) node)->larg),
						 tables_in(((JoinExpr *) node)->rarg));
	foreach(lc, ((FromExpr *) node)->fromlist)
		tables = bms_add_members(tables, tables_in(lfirst(lc)));
	return tables;
}

/* Which key is equal to something of these tables alone?  0 = none is. */
static int
key_equal_to(PlannerInfo *root, IndexOptInfo *info, OpExpr *equal,
			 Relids tables)
{
	if (!is_opclause(equal) || list_length(equal->args) != 2)
		return 0;
	for (int i = 0; i < 2; i++)
	{
		Node	   *side = IvfpqInColumnsOf(root, info->rel,
											list_nth(equal->args, i));
		Node	   *other = list_nth(equal->args, 1 - i);
		Oid			operator = i == 0 ? equal->opno :
		get_commutator(equal->opno);

		if (!OidIsValid(operator) ||
			!bms_is_subset(pull_varnos(root, other), tables))
			continue;
		for (int column = 1; column < info->nkeycolumns; column++)
		{
			if (match_index_to_operand(side, column, info) &&
				get_op_opfamily_strategy(operator, info->opfamily[column]) ==
				BTEqualStrategyNumber)
				return column;
		}
	}
	return 0;
}

/*
 * Does a semi-join ask nothing else of this table than that a key is among
 * what other tables hold?  The key, or 0.
 */
static int
key_of_semi_join(PlannerInfo *root, IndexOptInfo *info, JoinExpr *join)
{
	Relids		tables = tables_in(join->rarg);
	int			key = 0;
	int			table = -1;
	ListCell   *lc;

	while ((table = bms_next_member(tables, table)) >= 0)
	{
		const RelOptInfo *rel = root->simple_rel_array[table];

		if (rel == NULL || !bms_is_empty(rel->lateral_relids))
			return 0;
	}
	foreach(lc, (List *) join->quals)
	{
		Node	   *condition = lfirst(lc);

		if (bms_is_subset(pull_varnos(root, condition), tables))
			continue;
		if (key != 0)
			return 0;
		key = key_equal_to(root, info, (OpExpr *) condition, tables);
		if (key == 0)
			return 0;
	}
	return key;
}

static void
look_for_semi_joins(PlannerInfo *root, IndexOptInfo *info, Node *node,
					List **reasons)
{
	ListCell   *lc;

	if (IsA(node, FromExpr))
		foreach(lc, ((FromExpr *) node)->fromlist)
			look_for_semi_joins(root, info, lfirst(lc), reasons);
	if (!IsA(node, JoinExpr))
		return;
	look_for_semi_joins(root, info, ((JoinExpr *) node)->larg, reasons);
	look_for_semi_joins(root, info, ((JoinExpr *) node)->rarg, reasons);
	if (((JoinExpr *) node)->jointype == JOIN_SEMI)
	{
		int			key = key_of_semi_join(root, info, (JoinExpr *) node);

		if (key == 0)
			return;
		add_reason(reasons,
				   psprintf("%s IN (SELECT ...), or EXISTS, is a join, not a condition of the index",
							IvfpqIndexColumn(info, key)),
				   psprintf("write %s = ANY (ARRAY(SELECT ...)), of the same SELECT, in its place",
							IvfpqIndexColumn(info, key)));
	}
}

/* Adds an IvfpqReason to *reasons for each join that could be a condition. */
void
IvfpqWhyJoins(PlannerInfo *root, IndexOptInfo *info, List **reasons)
{
	look_for_semi_joins(root, info, (Node *) root->parse->jointree, reasons);
}
