/*
 * doctorreason.c
 *		Finds the reasons why an index does not provide the order that a
 *		statement requests, and why conditions and joins on its keys are not
 *		conditions of the index scan.
 *
 * The reasons are read from the planner's own structures when it has made all
 * paths of a table.  By then expressions are simplified, views and policies
 * are part of the statement, and the order to provide is known.  A partition
 * has to provide the order that is requested of its parent, translated to the
 * partition's own columns.
 */
#include "postgres.h"

#include <math.h>

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_index.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

#include "am/common/options.h"
#include "am/types/vector.h"
#include "inspect/doctor.h"
#include "inspect/doctortexts.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* A search of an expression for an index column with first <= column < end. */
typedef struct ColumnSearch
{
	IndexOptInfo *info;
	int			first;
	int			end;
	int			column;			/* the result */
} ColumnSearch;

/* A search of an expression for a distance of the index's vector. */
typedef struct DistanceSearch
{
	IndexOptInfo *info;
	OpExpr	   *found;
} DistanceSearch;

/* Sets *why.  Returns true. */
static bool
because(IvfpqReason *why, const char *state, const char *advice)
{
	why->state = state;
	why->advice = advice;
	return true;
}

/* Returns the definition of an index column, as a user would write it. */
static char *
index_column(const IndexOptInfo *info, int column)
{
	Datum		name = DirectFunctionCall3(pg_get_indexdef_ext,
										   ObjectIdGetDatum(info->indexoid),
										   Int32GetDatum(column + 1),
										   BoolGetDatum(true));

	return text_to_cstring(DatumGetTextPP(name));
}

/* Returns whether an operator has the name of a distance operator. */
static bool
is_distance_operator(Oid operator)
{
	static const char *const names[] = {
		"<->", "<#>", "<=>", "<+>", "<~>", "<%>"
	};
	char	   *name = get_opname(operator);

	for (int i = 0; name != NULL && i < (int) lengthof(names); i++)
	{
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

/* Returns the distance operator that the index's operator class serves. */
static Oid
operator_of(const IndexOptInfo *info)
{
	int			strategy;

	return IvfpqDistanceOperator(info->opfamily[0], info->opcintype[0],
								 &strategy);
}

/* Returns the name of the index's operator class, or NULL if not found. */
static char *
class_of(const IndexOptInfo *info)
{
	Oid			class = get_index_column_opclass(info->indexoid, 1);
	HeapTuple	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(class));
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	name = pstrdup(NameStr(((Form_pg_opclass) GETSTRUCT(tuple))->opcname));
	ReleaseSysCache(tuple);
	return name;
}

/*
 * Returns the name of our operator class that would serve a distance operator
 * on a type, or NULL if there is no such class.
 */
static char *
class_for(const char *type, Oid operator)
{
	char	   *name = get_opname(operator);
	const char *metric = name == NULL ? NULL :
	strcmp(name, "<->") == 0 ? "l2" : strcmp(name, "<#>") == 0 ? "ip" :
	strcmp(name, "<=>") == 0 ? "cosine" : NULL;

	return metric ? psprintf("%s_%s_ops", type, metric) : NULL;
}

/* Finds one of the index's columns in an expression, at any depth. */
static bool
find_column(Node *node, void *context)
{
	ColumnSearch *search = context;

	if (node == NULL)
		return false;
	for (int column = search->first; column < search->end; column++)
	{
		if (match_index_to_operand(node, column, search->info))
		{
			search->column = column;
			return true;
		}
	}
	return expression_tree_walker(node, find_column, context);
}

/* Returns whether an expression contains the index's vector column. */
static bool
has_vector(Node *node, IndexOptInfo *info)
{
	ColumnSearch search = {info, 0, 1, 0};

	return find_column(node, &search);
}

static bool
find_distance(Node *node, void *context)
{
	DistanceSearch *search = context;

	if (node == NULL)
		return false;
	if (IsA(node, OpExpr) && is_distance_operator(((OpExpr *) node)->opno) &&
		has_vector(node, search->info))
	{
		search->found = (OpExpr *) node;
		return true;
	}
	return expression_tree_walker(node, find_distance, context);
}

/*
 * Returns the first distance of the index's vector column in an expression, or
 * NULL.  The index need not serve the distance's operator.
 */
static OpExpr *
distance_in(Node *node, IndexOptInfo *info)
{
	DistanceSearch search = {info, NULL};

	return find_distance(node, &search) ? search.found : NULL;
}

/*
 * Translates an expression from the columns of a partition's topmost parent to
 * the partition's own columns.  Returns the expression unchanged if rel is no
 * partition.
 */
static Node *
in_columns_of(PlannerInfo *root, const RelOptInfo *rel, Node *expr)
{
	AppendRelInfo *chain[32];
	int			n = 0;
	Index		relid = rel->relid;

	while (root->append_rel_array != NULL &&
		   root->append_rel_array[relid] != NULL && n < (int) lengthof(chain))
	{
		chain[n++] = root->append_rel_array[relid];
		relid = chain[n - 1]->parent_relid;
	}
	while (n > 0)
		expr = adjust_appendrel_attrs(root, expr, 1, &chain[--n]);
	return expr;
}

/* Returns the first expression of ORDER BY, or NULL without ORDER BY. */
static Node *
first_sort_expr(const PlannerInfo *root)
{
	const Query *parse = root->parse;

	return parse->sortClause == NIL ? NULL :
		get_sortgroupclause_expr(linitial(parse->sortClause),
								 root->processed_tlist);
}

/* Returns whether a node of FROM has only tables and inner joins. */
static bool
is_inner_joined(Node *node)
{
	ListCell   *lc;

	if (IsA(node, RangeTblRef))
		return true;
	if (IsA(node, JoinExpr))
		return ((JoinExpr *) node)->jointype == JOIN_INNER &&
			is_inner_joined(((JoinExpr *) node)->larg) &&
			is_inner_joined(((JoinExpr *) node)->rarg);
	foreach(lc, ((FromExpr *) node)->fromlist)
	{
		if (!is_inner_joined(lfirst(lc)))
			return false;
	}
	return true;
}

/*
 * Returns whether the statement returns the rows of FROM and WHERE one by one,
 * up to LIMIT: it does not group, combine, multiply or lock rows, and has no
 * OFFSET.
 */
bool
IvfpqIsPlainSelect(const Query *parse)
{
	return parse->limitOffset == NULL &&
		parse->limitOption == LIMIT_OPTION_COUNT &&
		parse->groupClause == NIL && parse->groupingSets == NIL &&
		!parse->hasAggs && !parse->hasWindowFuncs &&
		!parse->hasTargetSRFs && parse->distinctClause == NIL &&
		parse->setOperations == NULL && parse->rowMarks == NIL;
}

/*
 * Sets *why if `query`, one side of a distance, is not the same for all rows.
 * Returns false if `query` is the same for all rows.
 */
static bool
why_query(PlannerInfo *root, const RelOptInfo *rel, Node *query,
		  IvfpqReason *why)
{
	const Query *parse = root->parse;

	if (contain_volatile_functions(query))
		return because(why,
					   DOCTOR_VOLATILE_QUERY,
					   DOCTOR_USE_SUBQUERY);
	if (!contain_var_clause(query))
		return false;
	if (bms_equal(pull_varnos(root, query), rel->relids))
		return because(why,
					   DOCTOR_TWO_COLUMNS,
					   NULL);
	return because(why,
				   DOCTOR_JOINED_QUERY,
				   parse->limitCount != NULL && IvfpqIsPlainSelect(parse) &&
				   is_inner_joined((Node *) parse->jointree) ?
				   DOCTOR_USE_LATERAL :
				   NULL);
}

/*
 * Sets *why if the index does not serve a distance.  One side of the distance
 * contains the index's vector column.  Returns false if the index serves the
 * distance.
 */
static bool
why_distance(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			 OpExpr *expr, IvfpqReason *why)
{
	Node	   *left = linitial(expr->args);
	Node	   *right = lsecond(expr->args);
	Node	   *column = has_vector(left, info) ? left : right;
	Oid			served = operator_of(info);
	char	   *class = class_of(info);
	char	   *needed = NULL;

	if (!match_index_to_operand(column, 0, info))
		return because(why,
					   psprintf(DOCTOR_COLUMN_CAST,
								index_column(info, 0),
								format_type_be(exprType(column))),
					   DOCTOR_INDEX_EXPRESSION);
	if (why_query(root, rel, column == left ? right : left, why))
		return true;
	if (get_op_opfamily_strategy(expr->opno, info->opfamily[0]) != 0 ||
		OidIsValid(get_op_opfamily_sortfamily(expr->opno, info->opfamily[0])))
		return false;
	/* the name of a class begins with the name of its type */
	if (class != NULL && strchr(class, '_') != NULL)
		needed = class_for(pnstrdup(class, strchr(class, '_') - class),
						   expr->opno);
	return because(why,
				   psprintf(DOCTOR_OTHER_OPERATOR,
							get_opname(expr->opno),
							format_type_be(exprType(left)),
							format_type_be(exprType(right)),
							class ? class : "?",
							OidIsValid(served) ? get_opname(served) :
							DOCTOR_NO_OPERATOR),
				   needed == NULL || strcmp(needed, class) == 0 ? NULL :
				   psprintf(DOCTOR_OTHER_CLASS, needed));
}

/* Returns whether NOT NULL or a condition ensures a vector in every row. */
static bool
has_all_vectors(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	int			attno = info->indexkeys[0];
	ListCell   *lc;

	if (attno > 0)
	{
		Relation	table = table_open(planner_rt_fetch(rel->relid, root)->relid,
									   NoLock);
		bool		notnull = IvfpqIsNotNull(RelationGetDescr(table), attno);

		table_close(table, NoLock);
		if (notnull)
			return true;
	}
	foreach(lc, rel->baserestrictinfo)
	{
		NullTest   *test = (NullTest *) lfirst_node(RestrictInfo, lc)->clause;

		if (IsA(test, NullTest) && test->nulltesttype == IS_NOT_NULL &&
			match_index_to_operand((Node *) test->arg, 0, info))
			return true;
	}
	return false;
}

/*
 * Returns the value of a finite constant of type double precision, or 0 if the
 * node is no such constant.
 */
static double
constant_number(Node *node)
{
	Const	   *value = (Const *) node;

	if (!IsA(value, Const) || value->constisnull ||
		value->consttype != FLOAT8OID ||
		!isfinite(DatumGetFloat8(value->constvalue)))
		return 0;
	return DatumGetFloat8(value->constvalue);
}

/*
 * Returns 1 if an expression that contains the distance never falls when the
 * distance grows, -1 if it never rises, and 0 if neither is known.  The
 * expression may be equal for rows at different distances, because ORDER BY
 * allows any order of such rows.
 */
static int
slope_of(Node *expr, Node *distance)
{
	Oid			function;
	List	   *args;
	double		left;
	double		constant;
	int			slope;

	check_stack_depth();
	while (IsA(expr, RelabelType))
		expr = (Node *) ((RelabelType *) expr)->arg;
	if (expr == distance)
		return 1;
	if (IsA(expr, FuncExpr))
	{
		function = ((FuncExpr *) expr)->funcid;
		args = ((FuncExpr *) expr)->args;
		return function == F_FLOAT4_FLOAT8 || function == F_NUMERIC_FLOAT8 ||
			function == F_DSQRT || function == F_SQRT_FLOAT8 ?
			slope_of(linitial(args), distance) : 0;
	}
	if (!is_opclause(expr))
		return 0;
	function = get_opcode(((OpExpr *) expr)->opno);
	args = ((OpExpr *) expr)->args;
	if (function == F_FLOAT8UM)
		return -slope_of(linitial(args), distance);
	if (list_length(args) != 2)
		return 0;
	left = constant_number(linitial(args));
	constant = left != 0 ? left : constant_number(lsecond(args));
	if (constant == 0)
		return 0;
	slope = slope_of(left != 0 ? lsecond(args) : linitial(args), distance);
	switch (function)
	{
		case F_FLOAT8PL:
			return slope;
		case F_FLOAT8MI:
			return left != 0 ? -slope : slope;
		case F_FLOAT8MUL:
			return constant > 0 ? slope : -slope;
		case F_FLOAT8DIV:
			return left != 0 ? 0 : constant > 0 ? slope : -slope;
		default:
			return 0;
	}
}

/*
 * Sets *why for an ORDER BY that begins with an expression around the index's
 * distance, and returns true.
 *
 * Ascending order by the distance itself is also an order by the expression in
 * two cases: the statement's order is ascending and the expression never falls
 * as the distance grows, or the statement's order is DESC and the expression
 * never rises.  In both cases the advice is to order by the distance.  Rows
 * without a distance (NULL or NaN) are then last, so the advice warns if the
 * statement puts them first.
 */
static bool
why_around(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
		   Node *expr, OpExpr *distance, IvfpqReason *why)
{
	const char *state = DOCTOR_AROUND_DISTANCE;
	const PathKey *key = root->sort_pathkeys == NIL ? NULL :
	linitial(root->sort_pathkeys);
	int			slope = slope_of(expr, (Node *) distance);
	char	   *operator = get_opname(distance->opno);
	bool		has_first;

	if (key == NULL || slope == 0 || IvfpqIsAscending(key) != (slope > 0))
		return because(why, state, NULL);
	has_first = (key->pk_nulls_first && !has_all_vectors(root, rel, info)) ||
		(slope < 0 && strcmp(operator, "<=>") == 0);
	return because(why, state,
				   psprintf(DOCTOR_ORDER_BY_DISTANCE,
							index_column(info, 0), operator,
							has_first ?
							DOCTOR_ROWS_WITHOUT_DISTANCE : ""));
}

/*
 * Sets *why to the reason why the first expression of ORDER BY is not a
 * distance that the index serves.  Returns false if it is such a distance.
 */
static bool
why_expression(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			   Node *expr, IvfpqReason *why)
{
	Oid			served = operator_of(info);
	OpExpr	   *distance;

	while (IsA(expr, RelabelType))
		expr = (Node *) ((RelabelType *) expr)->arg;
	if (IsA(expr, Const) && ((Const *) expr)->constisnull)
		return because(why,
					   DOCTOR_NULL_QUERY,
					   DOCTOR_NO_NULL_QUERY);
	if (!has_vector(expr, info))
		return because(why,
					   psprintf(DOCTOR_OTHER_KEY,
								index_column(info, 0)),
					   NULL);
	if (IsA(expr, OpExpr) && list_length(((OpExpr *) expr)->args) == 2 &&
		is_distance_operator(((OpExpr *) expr)->opno))
		return why_distance(root, rel, info, (OpExpr *) expr, why);
	if (IsA(expr, FuncExpr) && OidIsValid(served) &&
		((FuncExpr *) expr)->funcid == get_opcode(served))
		return because(why, DOCTOR_FUNCTION,
					   psprintf(DOCTOR_USE_OPERATOR,
								index_column(info, 0), get_opname(served)));
	distance = distance_in(expr, info);
	if (distance != NULL)
		return why_distance(root, rel, info, distance, why) ||
			why_around(root, rel, info, expr, distance, why);
	return because(why,
				   psprintf(DOCTOR_NO_DISTANCE,
							index_column(info, 0)),
				   NULL);
}

/*
 * Returns whether this query level is a WITH query that is planned separately,
 * but would give the same rows if it were a sub-select of the statement.  The
 * planner plans the WITH queries of a level one after another, before the rest
 * of the level, and adds an element to cte_plan_ids for each.  So the length
 * of this list tells which WITH query is being planned.
 */
static bool
is_separate_with(const PlannerInfo *root)
{
	const PlannerInfo *above = root->parent_root;
	const		CommonTableExpr *with;
	const Query *query;

	if (above == NULL ||
		list_length(above->cte_plan_ids) >= list_length(above->parse->cteList))
		return false;
	with = list_nth_node(CommonTableExpr, above->parse->cteList,
						 list_length(above->cte_plan_ids));
	query = (const Query *) with->ctequery;
	return !with->cterecursive && query->commandType == CMD_SELECT &&
		query->rowMarks == NIL &&
		!contain_volatile_functions(with->ctequery);
}

/* Returns whether a condition contains a distance of the index's vector. */
static bool
has_distance_condition(const RelOptInfo *rel, IndexOptInfo *info)
{
	List	   *conditions = extract_actual_clauses(rel->baserestrictinfo,
													false);

	return distance_in((Node *) conditions, info) != NULL;
}

/*
 * Returns whether this query level is known to be a sub-select in an
 * expression, such as one that fetches the query vector, and contains no
 * distance.  Such a level does not look for nearest rows, so the doctor says
 * nothing about it.
 */
bool
IvfpqIsNoSearch(const PlannerInfo *root, const RelOptInfo *rel,
				IndexOptInfo *info)
{
	ListCell   *lc;

	if (root->parent_root == NULL || root->parse->sortClause != NIL ||
		root->parent_root->parse->cteList != NIL)
		return false;
	foreach(lc, root->parent_root->parse->rtable)
	{
		/* the level may be this sub-select in FROM */
		if (lfirst_node(RangeTblEntry, lc)->rtekind == RTE_SUBQUERY)
			return false;
	}
	return distance_in((Node *) root->processed_tlist, info) == NULL &&
		!has_distance_condition(rel, info);
}

/*
 * Sets *why to the reason why the query level has no ORDER BY that the index
 * could serve.  Returns false if the index serves a condition on the distance.
 */
static bool
why_without_order(PlannerInfo *root, RelOptInfo *rel,
				  IndexOptInfo *info, IvfpqReason *why)
{
	const PlannerInfo *above;

	if ((root->parse->hasAggs || root->parse->groupClause != NIL) &&
		distance_in((Node *) root->processed_tlist, info) != NULL)
		return because(why,
					   DOCTOR_AGGREGATE_OF_ALL,
					   NULL);
	if (has_distance_condition(rel, info))
	{
		bool		is_served = IvfpqRadiusPath(root, rel, info, NIL) != NULL;

		if (is_served && ivfpq_radius_recall < 1)
			return false;
		return because(why,
					   DOCTOR_DISTANCE_CONDITION,
					   is_served ? DOCTOR_USE_RADIUS_RECALL : NULL);
	}
	for (above = root->parent_root; above != NULL; above = above->parent_root)
	{
		if (above->parse->sortClause != NIL)
			return because(why,
						   DOCTOR_OUTER_ORDER,
						   is_separate_with(root) ?
						   DOCTOR_NOT_MATERIALIZED :
						   NULL);
	}
	return because(why,
				   DOCTOR_NO_ORDER,
				   NULL);
}

/* Returns whether an expression has a window function that counts all rows. */
static bool
counts_rows(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc))
		switch (((WindowFunc *) node)->winfnoid)
		{
			case F_NTILE:
			case F_PERCENT_RANK_:
			case F_CUME_DIST_:
				return true;
		}
	return expression_tree_walker(node, counts_rows, context);
}

/*
 * Returns whether a window function needs all rows before it can return the
 * first row.  A window function over the rows up to the current row, in the
 * order of ORDER BY, does not need all rows.
 */
static bool
has_window_of_all(const Query *parse, List *targets)
{
	const int	so_far = FRAMEOPTION_START_UNBOUNDED_PRECEDING |
	FRAMEOPTION_END_CURRENT_ROW;
	ListCell   *lc;

	if (!parse->hasWindowFuncs)
		return false;
	foreach(lc, parse->windowClause)
	{
		const		WindowClause *window = lfirst_node(WindowClause, lc);

		if (window->partitionClause != NIL || window->orderClause == NIL ||
			parse->sortClause == NIL ||
			linitial_node(SortGroupClause, window->orderClause)->tleSortGroupRef !=
			linitial_node(SortGroupClause, parse->sortClause)->tleSortGroupRef ||
			(window->frameOptions & so_far) != so_far)
			return true;
	}
	return counts_rows((Node *) targets, NULL);
}

/*
 * Sets *why if a part of the statement between the table and ORDER BY needs
 * all rows.  Returns false if there is no such part.
 */
static bool
why_grouped(const PlannerInfo *root, IvfpqReason *why)
{
	const Query *parse = root->parse;

	if (parse->setOperations != NULL)
		return because(why,
					   DOCTOR_SET_OPERATION,
					   NULL);
	if (parse->groupClause != NIL || parse->groupingSets != NIL ||
		parse->hasAggs)
		return because(why,
					   DOCTOR_GROUPED,
					   NULL);
	if (parse->hasTargetSRFs)
		return because(why,
					   DOCTOR_SET_RETURNING,
					   NULL);
	if (has_window_of_all(parse, root->processed_tlist))
		return because(why,
					   DOCTOR_WINDOW,
					   NULL);
	return false;
}

/* Returns the relids of a table or, for a partition, of its topmost parent. */
static Relids
relids_of(const RelOptInfo *rel)
{
	return rel->top_parent_relids ? rel->top_parent_relids : rel->relids;
}

/*
 * Sets *why if the table is on the inner side of an outer join or a semi-join,
 * or on either side of a full join.  Such a join looks up the table's rows for
 * each row of another table, or adds rows of NULLs, so it does not keep the
 * table's order.  Returns false if there is no such join.
 */
static bool
why_looked_for(const PlannerInfo *root, const RelOptInfo *rel,
			   IvfpqReason *why)
{
	ListCell   *lc;

	foreach(lc, root->join_info_list)
	{
		SpecialJoinInfo *join = lfirst(lc);

		if (bms_overlap(relids_of(rel), join->syn_righthand) ||
			(join->jointype == JOIN_FULL &&
			 bms_overlap(relids_of(rel), join->syn_lefthand)))
			return because(why,
						   DOCTOR_INNER_SIDE,
						   NULL);
	}
	return false;
}

/*
 * Sets *why if all rows are requested, or if a join does not keep the table's
 * order.  Returns false otherwise.
 */
static bool
why_unlimited(const PlannerInfo *root, const RelOptInfo *rel,
			  IvfpqReason *why)
{
	if (root->tuple_fraction <= 0 && enable_seqscan && enable_sort)
		return because(why,
					   DOCTOR_NO_LIMIT,
					   DOCTOR_USE_LIMIT);
	if (!enable_nestloop && bms_membership(root->all_baserels) == BMS_MULTIPLE)
		return because(why,
					   DOCTOR_NESTLOOP_OFF,
					   DOCTOR_ENABLE_NESTLOOP);
	return why_looked_for(root, rel, why);
}

/*
 * Sets *why if the first sort key is DESC or NULLS FIRST, which the index does
 * not provide.  Returns false otherwise.
 */
static bool
why_direction(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			  IvfpqReason *why)
{
	const PathKey *key;

	if (root->sort_pathkeys == NIL)
		return false;
	key = linitial(root->sort_pathkeys);
	if (!IvfpqIsAscending(key))
		return because(why,
					   DOCTOR_DESCENDING,
					   NULL);
	if (key->pk_nulls_first)
		return because(why,
					   DOCTOR_NULLS_FIRST,
					   has_all_vectors(root, rel, info) ?
					   DOCTOR_NO_NULLS_FIRST : NULL);
	return false;
}

/*
 * Returns whether the first key of the order that the planner requests is a
 * distance that the index serves.
 */
static bool
is_first_key(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	PathKey    *key;
	ListCell   *lc;

	if (root->query_pathkeys == NIL)
		return false;
	key = linitial(root->query_pathkeys);
	if (!IvfpqIsAscending(key) || key->pk_nulls_first)
		return false;
	foreach(lc, key->pk_eclass->ec_members)
	{
		EquivalenceMember *member = lfirst(lc);
		Oid			sortfamily;

		if (!member->em_is_child &&
			IvfpqMatchDistance(info, (Expr *)
							   in_columns_of(root, rel,
											 (Node *) member->em_expr),
							   &sortfamily) != NULL)
			return true;
	}
	return false;
}

/* Returns whether ORDER BY begins with the index's distance, ascending. */
bool
IvfpqIsOrderedBy(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	Node	   *expr = first_sort_expr(root);
	const PathKey *key;
	Oid			sortfamily;

	if (expr == NULL || root->sort_pathkeys == NIL)
		return false;
	key = linitial(root->sort_pathkeys);
	return IvfpqIsAscending(key) && !key->pk_nulls_first &&
		IvfpqMatchDistance(info, (Expr *) in_columns_of(root, rel, expr),
						   &sortfamily) != NULL;
}

/*
 * Sets *why if gpuvec.scan_order is relaxed and the statement relies on the
 * order, because a relaxed scan may return rows out of order.  Returns false
 * otherwise.
 */
static bool
why_relaxed(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			IvfpqReason *why)
{
	if (ivfpq_order != IVFPQ_ORDER_RELAXED ||
		!is_first_key(root, rel, info) || !IvfpqReliesOnOrder(root))
		return false;
	return because(why,
				   root->query_pathkeys == root->sort_pathkeys &&
				   list_length(root->query_pathkeys) > 1 ?
				   DOCTOR_RELAXED_KEYS :
				   DOCTOR_RELAXED_USE,
				   DOCTOR_USE_STRICT);
}

/* Returns the predicate of a partial index as SQL text. */
static char *
predicate_of(Oid indexoid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexoid));
	char	   *words = "its WHERE";
	Datum		predicate;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return words;
	predicate = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indpred,
								&isnull);
	if (!isnull)
	{
		Oid			table = ((Form_pg_index) GETSTRUCT(tuple))->indrelid;

		predicate = DirectFunctionCall2(pg_get_expr, predicate,
										ObjectIdGetDatum(table));
		words = text_to_cstring(DatumGetTextPP(predicate));
	}
	ReleaseSysCache(tuple);
	return words;
}

/*
 * Sets *why to the reason why a table is not read in the order of this index;
 * has_path says whether the planner has made a path in that order.  Returns
 * false if there is no reason.  Then a plan in the index's order may exist,
 * but cost more.  Checks the reasons in the order in which the planner tests
 * the corresponding conditions.
 */
bool
IvfpqWhyNoOrder(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info,
				bool has_path, IvfpqReason *why)
{
	const Query *parse = root->parse;
	Node	   *expr;
	Oid			sortfamily;

	if (has_path)
		return why_grouped(root, why) || why_unlimited(root, rel, why);
	if (info->indpred != NIL && !info->predOK)
		return because(why,
					   psprintf(DOCTOR_PARTIAL,
								predicate_of(info->indexoid)),
					   DOCTOR_ADD_PREDICATE);
	if (planner_rt_fetch(rel->relid, root)->tablesample != NULL)
		return because(why, DOCTOR_TABLESAMPLE, NULL);
	if (why_relaxed(root, rel, info, why))
		return true;
	if (parse->sortClause == NIL && parse->setOperations == NULL)
		return why_without_order(root, rel, info, why);
	if (why_grouped(root, why))
		return true;
	expr = first_sort_expr(root);
	if (expr == NULL)
		return false;

	/* an outer join may have changed the vector to NULL */
	if (bms_overlap(pull_varnos(root, expr), relids_of(rel)) &&
		why_looked_for(root, rel, why))
		return true;
	expr = in_columns_of(root, rel, expr);
	if (IvfpqMatchDistance(info, (Expr *) expr, &sortfamily) == NULL &&
		why_expression(root, rel, info, expr, why))
		return true;
	if (why_direction(root, rel, info, why))
		return true;
	if (IvfpqWouldLeak(root, info, false))
		return because(why,
					   DOCTOR_LEAK,
					   DOCTOR_INDEX_SAFE_EXPRESSION);
	if (ivfpq_use_index == IVFPQ_USE_NEVER)
		return because(why, DOCTOR_USE_INDEX_NEVER,
					   DOCTOR_USE_INDEX_AUTO);
	if (!enable_incremental_sort && list_length(root->query_pathkeys) > 1)
		return because(why,
					   DOCTOR_INCREMENTAL_SORT_OFF,
					   DOCTOR_ENABLE_INCREMENTAL_SORT);
	if (why_unlimited(root, rel, why))
		return true;
	if (parse->distinctClause != NIL)
		return because(why, DOCTOR_DISTINCT,
					   NULL);
	return false;
}

/*
 * Returns the distance that the statement orders by first, if it is a distance
 * of a column of this table, and NULL otherwise.  Sets *column to this column
 * and *class to the name of the operator class that would serve the distance.
 *
 * Other extensions have operators of the same names for types of their own, so
 * we must have an operator class for the column's type.  Our classes for
 * pgvector's types may not exist yet, so these types are recognized by their
 * names.
 */
OpExpr *
IvfpqOrderedDistance(PlannerInfo *root, const RelOptInfo *rel, Var **column,
					 char **class)
{
	OpExpr	   *distance = (OpExpr *) first_sort_expr(root);
	ListCell   *lc;

	if (distance == NULL)
		return NULL;
	distance = (OpExpr *) in_columns_of(root, rel, (Node *) distance);
	if (!IsA(distance, OpExpr) || !is_distance_operator(distance->opno))
		return NULL;
	foreach(lc, distance->args)
	{
		Var		   *var = lfirst(lc);
		const char *name;
		Oid			type;

		while (IsA(var, RelabelType))	/* a domain over the type */
			var = (Var *) ((RelabelType *) var)->arg;
		if (!IsA(var, Var) || var->varno != (int) rel->relid ||
			var->varattno <= 0)
			continue;
		type = getBaseType(var->vartype);
		name = type == FLOAT4ARRAYOID ? "real" : format_type_be(type);
		if (type != FLOAT4ARRAYOID &&
			!OidIsValid(GetDefaultOpClass(type,
										  get_am_oid("gpuivfpq", true))) &&
			strcmp(name, "vector") != 0 && strcmp(name, "halfvec") != 0)
			continue;
		*class = class_for(name, distance->opno);
		if (*class == NULL)
			continue;
		*column = var;
		return distance;
	}
	return NULL;
}

/*
 * Replaces each sub-select in an expression by a NULL of the same type,
 * because a sub-select can be printed only together with a finished plan.
 * `context` points to a list, to which the text of each such NULL is appended.
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
 * Returns the SQL text of a condition on one table.  Dates are in ISO format,
 * which every session reads in the same way.
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

/* Returns the reason why a key of the index does not answer a condition. */
static const char *
why_filter(IndexOptInfo *info, int column, RestrictInfo *condition)
{
	Oid			wanted = info->indexcollations[column];
	IvfpqComparison comparison;
	Node	   *left;
	Node	   *right;
	Node	   *key;
	Node	   *value;
	Oid			operator;

	if (!restriction_is_securely_promotable(condition, info->rel))
		return DOCTOR_SECURITY;
	if (is_orclause(condition->clause))
		return DOCTOR_IS_OR;
	if (!IvfpqGetComparison(condition->clause, &comparison))
		return DOCTOR_NO_COMPARISON;
	left = comparison.left;
	right = comparison.right;
	if (match_index_to_operand(left, column, info))
		key = left;
	else if (match_index_to_operand(right, column, info))
		key = right;
	else
	{
		key = contain_var_clause(left) ? left : right;
		return psprintf(DOCTOR_KEY_CAST,
						format_type_be(exprType(key)));
	}
	value = key == left ? right : left;
	if (contain_var_clause(value))
		return DOCTOR_KEY_TO_COLUMN;
	if (contain_volatile_functions(value))
		return DOCTOR_VOLATILE_VALUE;
	if (key == right && comparison.any)
		return DOCTOR_ANY_OF_ARRAY;
	if (OidIsValid(wanted) && wanted != comparison.collation)
		return DOCTOR_OTHER_COLLATION;
	operator = key == left ? comparison.operator :
		get_commutator(comparison.operator);
	if (!OidIsValid(operator) ||
		!op_in_opfamily(operator, info->opfamily[column]))
		return psprintf(DOCTOR_OPERATOR_MISSING,
						OidIsValid(operator) ? get_opname(operator) : "?",
						format_type_be(exprType(left)),
						format_type_be(exprType(right)));
	return DOCTOR_PLANNER;
}

/* Returns advice on writing a condition so that a key answers it, or NULL. */
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
			return psprintf(beside ? DOCTOR_ADD_CONDITION :
							DOCTOR_REPLACE_CONDITION,
							condition_text(root, info->rel, (Node *) better));
	}
	return NULL;
}

static List *
add_reason(List *reasons, const char *state, const char *advice)
{
	IvfpqReason *reason = palloc(sizeof(IvfpqReason));

	(void) because(reason, state, advice);
	return lappend(reasons, reason);
}

/* Returns the relids of all tables in a node of FROM. */
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

/*
 * If the condition `equal` says that a key column equals an expression of only
 * these tables, returns the number of the column.  Otherwise returns 0.
 */
static int
key_equal_to(PlannerInfo *root, IndexOptInfo *info, OpExpr *equal,
			 Relids tables)
{
	if (!is_opclause(equal) || list_length(equal->args) != 2)
		return 0;
	for (int i = 0; i < 2; i++)
	{
		Node	   *side = in_columns_of(root, info->rel,
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
 * If the only condition of a semi-join on this table is that a key equals a
 * value of other tables, as in key IN (SELECT ...), returns the number of the
 * key's column.  Otherwise returns 0.
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

/*
 * Adds an IvfpqReason for each join in `node` that could be a key condition.
 */
static List *
add_joins(PlannerInfo *root, IndexOptInfo *info, Node *node, List *reasons)
{
	JoinExpr   *join = (JoinExpr *) node;
	int			key;
	ListCell   *lc;

	if (IsA(node, FromExpr))
	{
		foreach(lc, ((FromExpr *) node)->fromlist)
			reasons = add_joins(root, info, lfirst(lc), reasons);
	}
	if (!IsA(node, JoinExpr))
		return reasons;
	reasons = add_joins(root, info, join->larg, reasons);
	reasons = add_joins(root, info, join->rarg, reasons);
	key = join->jointype == JOIN_SEMI ? key_of_semi_join(root, info, join) : 0;
	if (key == 0)
		return reasons;
	return add_reason(reasons,
					  psprintf(DOCTOR_JOIN,
							   index_column(info, key)),
					  psprintf(DOCTOR_REPLACE_JOIN,
							   index_column(info, key)));
}

/*
 * Returns an IvfpqReason for each condition on keys that the index does not
 * answer, and for each join that could be written as a condition on a key.
 * `path` is the planner's path in the index's order.  If `path` is NULL, the
 * result names the conditions that such a path would not answer.
 */
List *
IvfpqWhyFilters(PlannerInfo *root, IndexOptInfo *info, const IndexPath *path)
{
	List	   *answered = IvfpqKeyClauses(root, info,
										   path ? path->indexclauses : NIL);
	List	   *reasons = NIL;
	ListCell   *lc;

	foreach(lc, info->indrestrictinfo)
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		Node	   *clause = (Node *) condition->clause;
		ColumnSearch search = {info, 1, info->nkeycolumns, 0};

		if (condition->pseudoconstant ||
			is_redundant_with_indexclauses(condition, answered) ||
			!find_column(clause, &search))
			continue;
		reasons = add_reason(reasons,
							 psprintf(DOCTOR_FILTER,
									  condition_text(root, info->rel, clause),
									  why_filter(info, search.column,
												 condition)),
							 restriction_is_securely_promotable(condition,
																info->rel) ?
							 advise_rewriting(root, info, condition) : NULL);
	}
	return add_joins(root, info, (Node *) root->parse->jointree, reasons);
}
