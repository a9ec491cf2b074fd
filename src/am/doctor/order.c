/*
 * order.c
 *		What keeps an index from bringing the order that a statement wants.
 *
 * Asked of the planner's own structures, when it has made all paths of a table:
 * expressions are simplified, views and policies are part of the statement, and
 * what is to be ordered is known.  A partition's order is its parent's, in its
 * own columns.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_index.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

#include "am/common/options.h"
#include "am/doctor/doctor.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

static const IvfpqReason no_reason = {NULL, NULL};

static IvfpqReason
reason(char *state, char *advice)
{
	IvfpqReason reason = {state, advice};

	return reason;
}

/* ---- names */

/* The index's column, as a user would write it. */
static char *
column_name(const IndexOptInfo *info, int column)
{
	Datum		name = DirectFunctionCall3(pg_get_indexdef_ext,
										   ObjectIdGetDatum(info->indexoid),
										   Int32GetDatum(column + 1),
										   BoolGetDatum(true));

	return text_to_cstring(DatumGetTextPP(name));
}

/* Is it one of the operators that distances are written with? */
static bool
is_distance_operator(Oid operator)
{
	static const char *const names[] = {
		"<->", "<#>", "<=>", "<+>", "<~>", "<%>"
	};
	char	   *name = get_opname(operator);

	for (int i = 0; name != NULL && i < (int) lengthof(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* The operator that the index's class serves, or InvalidOid. */
static Oid
operator_of(const IndexOptInfo *info)
{
	for (int16 strategy = 1; strategy <= 3; strategy++)
	{
		Oid			operator = get_opfamily_member(info->opfamily[0],
												   info->opcintype[0],
												   info->opcintype[0],
												   strategy);

		if (OidIsValid(operator))
			return operator;
	}
	return InvalidOid;
}

/* The name of the index's class; *type gets what it begins with. */
static char *
class_of(const IndexOptInfo *info, char **type)
{
	HeapTuple	index = SearchSysCache1(INDEXRELID,
										ObjectIdGetDatum(info->indexoid));
	HeapTuple	tuple;
	oidvector  *classes;
	Datum		datum;
	bool		isnull;
	char	   *name;

	*type = NULL;
	if (!HeapTupleIsValid(index))
		return NULL;
	datum = SysCacheGetAttr(INDEXRELID, index, Anum_pg_index_indclass,
							&isnull);
	classes = (oidvector *) DatumGetPointer(datum);
	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(classes->values[0]));
	ReleaseSysCache(index);
	if (!HeapTupleIsValid(tuple))
		return NULL;
	name = pstrdup(NameStr(((Form_pg_opclass) GETSTRUCT(tuple))->opcname));
	ReleaseSysCache(tuple);
	if (strchr(name, '_') != NULL)
		*type = pnstrdup(name, strchr(name, '_') - name);
	return name;
}

/* The class that would serve a distance operator, or NULL. */
static char *
class_for(const char *type, Oid operator)
{
	char	   *name = get_opname(operator);
	const char *metric = name == NULL || type == NULL ? NULL :
	strcmp(name, "<->") == 0 ? "l2" : strcmp(name, "<#>") == 0 ? "ip" :
	strcmp(name, "<=>") == 0 ? "cosine" : NULL;

	return metric ? psprintf("%s_%s_ops", type, metric) : NULL;
}

/* ---- what an expression holds */

typedef struct ColumnSearch
{
	IndexOptInfo *info;
	int			column;
	Oid			sortfamily;
	Node	   *found;
} ColumnSearch;

/* Find the index's column, as it is or within something else. */
static bool
find_column(Node *node, void *context)
{
	ColumnSearch *search = context;

	if (node == NULL)
		return false;
	if (match_index_to_operand(node, search->column, search->info))
	{
		search->found = node;
		return true;
	}
	return expression_tree_walker(node, find_column, context);
}

static bool
has_column(Node *node, IndexOptInfo *info)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};

	return find_column(node, &search);
}

/* Find a distance that the index measures, or one that it might. */
static bool
find_distance(Node *node, void *context)
{
	ColumnSearch *search = context;

	if (node == NULL)
		return false;
	if (IsA(node, OpExpr) && is_distance_operator(((OpExpr *) node)->opno) &&
		has_column(node, search->info))
	{
		search->found = node;
		return true;
	}
	return expression_tree_walker(node, find_distance, context);
}

/* The expression in a partition's columns, which is made for its parent's. */
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

/* ---- reasons */

/* The other side of a distance is no query that is the same for all rows. */
static IvfpqReason
why_query(PlannerInfo *root, const RelOptInfo *rel, Node *query)
{

	if (contain_volatile_functions(query))
		return reason("the query vector is volatile: it may be another one for each row",
					  "compute it once, in a sub-select: ORDER BY column <-> (SELECT ...)");
	if (!contain_var_clause(query))
		return no_reason;
	if (bms_equal(pull_varnos(root, query), rel->relids))
		return reason("the distance is between two columns of a row, not to one query",
					  NULL);
	return reason("the query vector is a column of another table that is joined: there is no one order",
				  "put the search into LATERAL (SELECT ... ORDER BY distance LIMIT n)");
}

/* A distance that is not the index's: by which of its sides? */
static IvfpqReason
why_distance(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			 OpExpr *expr)
{
	Node	   *left = linitial(expr->args);
	Node	   *right = lsecond(expr->args);
	Node	   *column = has_column(left, info) ? left : right;
	Node	   *query = column == left ? right : left;
	char	   *type;
	char	   *class = class_of(info, &type);
	char	   *needed = class_for(type, expr->opno);
	IvfpqReason why;

	if (!match_index_to_operand(column, 0, info))
		return reason(psprintf("the column %s is cast to %s, or is in an expression: that is not what is indexed",
							   column_name(info, 0),
							   format_type_be(exprType(column))),
					  "cast the query vector and leave the column as it is, or index that expression");
	why = why_query(root, rel, query);
	if (why.state != NULL)
		return why;
	if (get_op_opfamily_strategy(expr->opno, info->opfamily[0]) == 0 &&
		!OidIsValid(get_op_opfamily_sortfamily(expr->opno, info->opfamily[0])))
		return reason(psprintf("ORDER BY is by the operator %s (%s, %s); the index, of class %s, serves %s",
							   get_opname(expr->opno),
							   format_type_be(exprType(left)),
							   format_type_be(exprType(right)),
							   class ? class : "?",
							   OidIsValid(operator_of(info)) ?
							   get_opname(operator_of(info)) : "no distance"),
					  needed == NULL || (class && strcmp(needed, class) == 0) ?
					  "cast the query vector to the column's type, or to real[]" :
					  psprintf("order by %s, or create an index with class %s",
							   OidIsValid(operator_of(info)) ?
							   get_opname(operator_of(info)) : "its operator",
							   needed));
	return no_reason;
}

/* A call of a distance's function, where the operator is wanted. */
static bool
is_distance_call(const FuncExpr *call, const IndexOptInfo *info)
{
	for (int16 strategy = 1; strategy <= 3; strategy++)
	{
		Oid			operator = get_opfamily_member(info->opfamily[0],
												   info->opcintype[0],
												   info->opcintype[0],
												   strategy);

		if (OidIsValid(operator) && get_opcode(operator) == call->funcid)
			return true;
	}
	return false;
}

/* What ORDER BY begins with is no distance of the index. */
static IvfpqReason
why_expression(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			   Node *expr)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};
	char	   *column = column_name(info, 0);
	char	   *operator = OidIsValid(operator_of(info)) ?
	get_opname(operator_of(info)) : "<->";

	while (IsA(expr, RelabelType))
		expr = (Node *) ((RelabelType *) expr)->arg;
	if (IsA(expr, Const) && ((Const *) expr)->constisnull)
		return reason("the query vector is NULL, so all rows are equally near",
					  "leave such a search out");
	if (!has_column(expr, info))
		return reason(psprintf("ORDER BY does not begin with a distance to %s",
							   column),
					  psprintf("ORDER BY %s %s query LIMIT n, and what else orders rows behind it",
							   column, operator));
	if (IsA(expr, OpExpr) && list_length(((OpExpr *) expr)->args) == 2 &&
		is_distance_operator(((OpExpr *) expr)->opno))
		return why_distance(root, rel, info, (OpExpr *) expr);
	if (IsA(expr, FuncExpr) && is_distance_call((FuncExpr *) expr, info))
		return reason("ORDER BY calls the distance's function",
					  psprintf("write the operator: ORDER BY %s %s query",
							   column, operator));
	if (find_distance(expr, &search))
		return reason("ORDER BY is by an expression around the distance",
					  psprintf("order by the distance itself, %s %s query, ascending, and compute the expression among what is selected",
							   column, operator));
	return reason(psprintf("ORDER BY is by an expression of %s that is no distance",
						   column),
				  psprintf("ORDER BY %s %s query LIMIT n", column, operator));
}

/* Nothing orders rows where the table is read. */
static IvfpqReason
why_without_order(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	const PlannerInfo *above;
	ListCell   *lc;

	foreach(lc, rel->baserestrictinfo)
	{
		ColumnSearch search = {info, 0, InvalidOid, NULL};

		if (find_distance((Node *) lfirst_node(RestrictInfo, lc)->clause,
						  &search))
			return reason("a condition on the distance without ORDER BY is answered exactly, and by no index",
						  "add ORDER BY that distance and LIMIT, or SET gpuvec.radius_recall = 0.99");
	}
	for (above = root->parent_root; above != NULL; above = above->parent_root)
		if (above->parse->sortClause != NIL)
			return reason("ORDER BY stands outside of the sub-select or WITH query that reads the table",
						  "put ORDER BY distance LIMIT n where the table is read");
	return reason("nothing orders rows by their distance where the table is read",
				  psprintf("ORDER BY %s %s query LIMIT n",
						   column_name(info, 0),
						   OidIsValid(operator_of(info)) ?
						   get_opname(operator_of(info)) : "<->"));
}

/* Something takes rows in an order of its own, before ORDER BY. */
static IvfpqReason
why_other_order(const PlannerInfo *root)
{
	const Query *parse = root->parse;
	char	   *advice = "put the search, with ORDER BY and LIMIT, into a sub-select of its own";

	if (parse->setOperations != NULL)
		return reason("UNION, INTERSECT or EXCEPT stands between ORDER BY and the table",
					  advice);
	if (parse->groupClause != NIL || parse->groupingSets != NIL ||
		parse->hasAggs)
		return reason("GROUP BY or an aggregate stands between ORDER BY and the table",
					  advice);
	if (parse->hasWindowFuncs)
		return reason("a window function stands between ORDER BY and the table",
					  advice);
	if (parse->distinctClause != NIL)
		return reason("DISTINCT stands between ORDER BY and the table",
					  advice);
	return no_reason;
}

/* The direction of the first key. */
static IvfpqReason
why_direction(const PlannerInfo *root)
{
	const PathKey *key;

	if (root->sort_pathkeys == NIL)
		return no_reason;
	key = linitial(root->sort_pathkeys);
	if (!IvfpqIsAscending(key))
		return reason("ORDER BY is DESC: an index finds the nearest rows, not the farthest",
					  "leave DESC out; of a similarity such as 1 - distance order by the distance");
	if (key->pk_nulls_first)
		return reason("ORDER BY has NULLS FIRST",
					  "leave it out");
	return no_reason;
}

/* Is the first key of the order that is wanted a distance of the index? */
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

/* Late rows would be out of an order that something relies on. */
static IvfpqReason
why_relaxed(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	char	   *advice = "SET gpuvec.scan_order = strict";

	if (ivfpq_order != IVFPQ_ORDER_RELAXED ||
		!is_first_key(root, rel, info) || !IvfpqReliesOnOrder(root))
		return no_reason;
	if (root->query_pathkeys == root->sort_pathkeys &&
		list_length(root->query_pathkeys) > 1)
		return reason("ORDER BY has further keys, and gpuvec.scan_order is relaxed",
					  advice);
	return reason("DISTINCT, GROUP BY, a window function, WITH TIES, UNION or a join would rely on the order of the distance, and gpuvec.scan_order is relaxed",
				  advice);
}

/* The predicate of a partial index, as it is written. */
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
 * Why has a table no path by the order of this index?  No reason: there may be
 * one.
 */
IvfpqReason
IvfpqWhyNoOrder(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	const Query *parse = root->parse;
	IvfpqReason why;
	Node	   *expr;
	Oid			sortfamily;

	if (info->indpred != NIL && !info->predOK)
		return reason(psprintf("the index has only rows with %s, and the statement's conditions do not say that it wants no others",
							   predicate_of(info->indexoid)),
					  "write that condition into WHERE, with constants as in the index");
	if (planner_rt_fetch(rel->relid, root)->tablesample != NULL)
		return reason("TABLESAMPLE reads the table", NULL);
	why = why_relaxed(root, rel, info);
	if (why.state != NULL)
		return why;
	if (parse->sortClause == NIL && parse->setOperations == NULL)
		return why_without_order(root, rel, info);
	why = why_other_order(root);
	if (why.state != NULL || parse->sortClause == NIL)
		return why;

	expr = get_sortgroupclause_expr(linitial(parse->sortClause),
									root->processed_tlist);
	expr = in_columns_of(root, rel, expr);
	if (IvfpqMatchDistance(info, (Expr *) expr, &sortfamily) == NULL)
	{
		why = why_expression(root, rel, info, expr);
		if (why.state != NULL)
			return why;
	}
	why = why_direction(root);
	if (why.state != NULL)
		return why;
	if (IvfpqWouldLeak(root, info, false))
		return reason("a policy hides rows from you, and the index's expression calls functions that are not in C",
					  "index the column itself, or an expression of C functions");
	if (!enable_incremental_sort && list_length(root->query_pathkeys) > 1)
		return reason("ORDER BY has further keys, and enable_incremental_sort is off",
					  "SET enable_incremental_sort = on");
	return no_reason;
}

/*
 * The class that would serve a distance operator on a type, or NULL: other
 * extensions give operators of the same names to types of their own.  Classes of
 * pgvector's types may not be there yet.
 */
static char *
class_for_type(Oid type, Oid operator)
{
	char	   *name = format_type_be(type);

	if (type == FLOAT4ARRAYOID)
		return class_for("real", operator);
	if (!OidIsValid(GetDefaultOpClass(type, get_am_oid("gpuivfpq", true))) &&
		strcmp(name, "vector") != 0 && strcmp(name, "halfvec") != 0)
		return NULL;
	return class_for(name, operator);
}

/*
 * The distance that the statement orders by first, if it is one of a column of this
 * table; or NULL.  Sets the column and the class that would serve it.
 */
OpExpr *
IvfpqOrderedDistance(PlannerInfo *root, RelOptInfo *rel, Var **column,
					 char **class)
{
	const Query *parse = root->parse;
	OpExpr	   *distance;
	ListCell   *lc;

	if (parse->sortClause == NIL)
		return NULL;
	distance = (OpExpr *)
		in_columns_of(root, rel,
					  get_sortgroupclause_expr(linitial(parse->sortClause),
											   root->processed_tlist));
	if (!IsA(distance, OpExpr) || !is_distance_operator(distance->opno))
		return NULL;
	foreach(lc, distance->args)
	{
		Var		   *var = lfirst(lc);

		while (IsA(var, RelabelType))	/* a domain */
			var = (Var *) ((RelabelType *) var)->arg;
		if (!IsA(var, Var) || var->varno != (int) rel->relid ||
			var->varattno <= 0)
			continue;
		*class = class_for_type(getBaseType(var->vartype), distance->opno);
		if (*class == NULL)
			continue;
		*column = var;
		return distance;
	}
	return NULL;
}

/*
 * A table without an index of ours: does the statement order by a distance of
 * one of its columns?  Then it lacks one.
 */
IvfpqReason
IvfpqWhyNoIndex(PlannerInfo *root, RelOptInfo *rel)
{
	Oid			table = planner_rt_fetch(rel->relid, root)->relid;
	Var		   *column;
	char	   *class;

	if (IvfpqOrderedDistance(root, rel, &column, &class) == NULL)
		return no_reason;
	return reason("no gpuivfpq index is on it, and the statement orders by a distance to one of its columns",
				  psprintf("CREATE INDEX ON %s USING gpuivfpq (%s %s)",
						   IvfpqRelationName(table),
						   quote_identifier(get_attname(table,
														column->varattno,
														false)),
						   class));
}
