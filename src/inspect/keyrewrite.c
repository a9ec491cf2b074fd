/*
 * keyrewrite.c
 *		Conditions written so that a key of an index answers them.
 *
 * A rewritten condition is true of the same rows, whatever the table holds, or
 * it stands beside the one that it was made of and is true of all rows that
 * this one is true of.  Where neither can be proved there is none: a condition
 * that is slow is better than another one.  (A condition in WHERE that is NULL
 * is as good as one that is false.)
 *
 * The proofs use these facts:
 *
 *	key::numeric = 7	casts of integers to numeric are exact and ascend;
 *						those to floats are and do up to 2^53 and 2^24
 *	key::text = '7'		only of types whose values have one text each, and only
 *						if it is such a text
 *	key::date = d		the days of a timestamp follow each other; those of a
 *						timestamptz do in a time zone that does not change its
 *						clock about midnight, and nowhere by more than a day
 *	key ->> 'a' = 'b'	a text that no number, boolean, object or array has is
 *						a string; @> compares scalars as = does
 *	'b' = ANY (key)		@> finds what = finds, of deterministic collations
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "catalog/namespace.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type_d.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "parser/parse_coerce.h"
#include "pgtime.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

#include "am/types/keys.h"
#include "inspect/doctor.h"
#include "pgcompat.h"

/* Every integer up to these numbers is a value of the type. */
#define FLOAT8_WHOLE	9007199254740992.0
#define FLOAT4_WHOLE	16777216.0

/* Longer texts are not searched for in documents. */
#define MAX_TEXT		1000

/* A comparison of the key, in an expression or not, with a value. */
typedef struct Comparison
{
	IndexOptInfo *info;
	int			column;
	Node	   *side;			/* the side with the key */
	Node	   *value;			/* the same for all rows */
	Oid			operator;		/* (side, value) */
	Oid			collation;
	int			strategy;		/* as btree's of the side's type; 0 = none */
} Comparison;

/* Returns whether an expression has parts that only a plan can print. */
static bool
is_of_plan(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) || IsA(node, AlternativeSubPlan) ||
		(IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC))
		return true;
	return expression_tree_walker(node, is_of_plan, context);
}

static bool
is_value(Node *node)
{
	return !contain_var_clause(node) && !contain_volatile_functions(node) &&
		!is_of_plan(node, NULL);
}

static bool
is_key(const Comparison *comparison, Node *node)
{
	return match_index_to_operand(node, comparison->column,
								  comparison->info);
}

static Node *
strip_relabel(Node *node)
{
	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return node;
}

static Const *
make_value(Oid type, Datum value)
{
	int16		length;
	bool		by_value;

	get_typlenbyval(type, &length, &by_value);
	return makeConst(type, -1, get_typcollation(type), length, value, false,
					 by_value);
}

/* Makes an integer, of the type that a literal of its digits has. */
static Const *
make_integer(int64 n)
{
	return n >= PG_INT32_MIN && n <= PG_INT32_MAX ?
		make_value(INT4OID, Int32GetDatum((int32) n)) :
		make_value(INT8OID, Int64GetDatum(n));
}

/*
 * Makes "key operator value", by the key's class.  Returns NULL if the class
 * has no such operator.
 */
static Expr *
make_condition(const IndexOptInfo *info, int column, int strategy, Node *key,
			   Node *value)
{
	Oid			type = info->opcintype[column];
	Oid			right = exprType(value);
	Oid			operator;

	if (type_is_array(type))
		type = right = ANYARRAYOID;
	else if (type == ANYENUMOID)
		right = type;
	operator = get_opfamily_member(info->opfamily[column], type, right,
								   (int16) strategy);
	if (!OidIsValid(operator))
		return NULL;
	return make_opclause(operator, BOOLOID, false, (Expr *) key,
						 (Expr *) value, InvalidOid,
						 info->indexcollations[column]);
}

/*
 * Makes "key operator ANY (values)", or "key operator value" if there is one
 * value only.  Returns NULL if there are none.
 */
static Expr *
make_any(const IndexOptInfo *info, int column, int strategy, Node *key,
		 List *values)
{
	ScalarArrayOpExpr *any = makeNode(ScalarArrayOpExpr);
	ArrayExpr  *array = makeNode(ArrayExpr);
	Expr	   *one;

	if (values == NIL)
		return NULL;
	one = make_condition(info, column, strategy, key, linitial(values));
	if (one == NULL || list_length(values) == 1)
		return one;
	array->element_typeid = exprType(linitial(values));
	array->array_typeid = get_array_type(array->element_typeid);
	array->array_collid = exprCollation(linitial(values));
	array->elements = values;
	array->location = -1;
	if (!OidIsValid(array->array_typeid))
		return NULL;
	any->opno = ((OpExpr *) one)->opno;
	any->useOr = true;
	any->inputcollid = ((OpExpr *) one)->inputcollid;
	any->args = list_make2(key, eval_const_expressions(NULL, (Node *) array));
	any->location = -1;
	return (Expr *) any;
}

/* Returns the operator's number in the btree family of a type, or 0. */
static int
btree_strategy(Oid operator, Oid type)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_BTREE_OPFAMILY);

	return OidIsValid(entry->btree_opf) ?
		get_op_opfamily_strategy(operator, entry->btree_opf) : 0;
}

static bool
whole_float(double number, double limit, int64 *n)
{
	/* false for NaN, too */
	if (!(fabs(number) < limit) || number != floor(number))
		return false;
	*n = (int64) number;
	return true;
}

/*
 * Sets *n to the integer that a number is, if no other integer becomes that
 * number.  Returns false if there is none.
 */
static bool
whole_number(const Const *value, int64 *n)
{
	char	   *digits;
	char	   *end;

	switch (value->consttype)
	{
		case FLOAT4OID:
			return whole_float(DatumGetFloat4(value->constvalue),
							   FLOAT4_WHOLE, n);
		case FLOAT8OID:
			return whole_float(DatumGetFloat8(value->constvalue),
							   FLOAT8_WHOLE, n);
		case NUMERICOID:
			digits = DatumGetCString(DirectFunctionCall1(numeric_out,
														 value->constvalue));
			if (strspn(digits, "-0123456789.") != strlen(digits))
				return false;	/* NaN, infinity */
			errno = 0;
			*n = strtoll(digits, &end, 10);
			return errno == 0 &&
				(*end == '\0' || strspn(end + 1, "0") == strlen(end + 1));
		default:
			return false;
	}
}

/*
 * Returns the key if the side casts it, an integer, to another number; else
 * NULL.
 */
static Node *
key_cast_to_number(const Comparison *comparison)
{
	FuncExpr   *cast = (FuncExpr *) comparison->side;
	Node	   *key;
	Oid			type;
	Oid			function;

	if (!IsA(cast, FuncExpr) || list_length(cast->args) != 1)
		return NULL;
	key = linitial(cast->args);
	type = exprType(key);
	if (!is_key(comparison, key) ||
		(type != INT2OID && type != INT4OID && type != INT8OID) ||
		find_coercion_pathway(cast->funcresulttype, type, COERCION_EXPLICIT,
							  &function) != COERCION_PATH_FUNC ||
		function != cast->funcid)
		return NULL;
	return key;
}

/* Returns whether a text is that of an integer between these, and sets *n. */
static bool
is_integer_text(const char *text, int64 least, int64 greatest, int64 *n)
{
	const char *digits = text[0] == '-' ? &text[1] : text;
	char	   *end;

	if (digits[0] == '\0' || strspn(digits, "0123456789") != strlen(digits) ||
		(digits[0] == '0' && (digits[1] != '\0' || digits != text)))
		return false;
	errno = 0;
	*n = strtoll(text, &end, 10);
	return errno == 0 && *n >= least && *n <= greatest;
}

static bool
is_uuid_text(const char *text)
{
	for (int i = 0; i < 36; i++)
		if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-' :
			text[i] == '\0' || strchr("0123456789abcdef", text[i]) == NULL)
			return false;
	return text[36] == '\0';
}

/* Returns the one value of a type that has this text, or NULL. */
static Const *
value_of_text(Oid type, const char *text)
{
	int64		n;

	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
			return is_integer_text(text, PG_INT64_MIN, PG_INT64_MAX, &n) ?
				make_integer(n) : NULL;
		case OIDOID:
			return is_integer_text(text, 0, PG_UINT32_MAX, &n) ?
				make_value(OIDOID, ObjectIdGetDatum((Oid) n)) : NULL;
		case BOOLOID:
			return strcmp(text, "true") != 0 && strcmp(text, "false") != 0 ?
				NULL : make_value(BOOLOID,
								  BoolGetDatum(text[0] == 't'));
		case UUIDOID:
			return !is_uuid_text(text) ? NULL :
				make_value(UUIDOID, DirectFunctionCall1(uuid_in,
														CStringGetDatum(text)));
		default:
			break;
	}
	if (type_is_enum(type) && strlen(text) < NAMEDATALEN)
	{
		HeapTuple	label = SearchSysCache2(ENUMTYPOIDNAME,
											ObjectIdGetDatum(type),
											CStringGetDatum(text));

		if (HeapTupleIsValid(label))
		{
			Oid			member = ((Form_pg_enum) GETSTRUCT(label))->oid;

			ReleaseSysCache(label);
			return make_value(type, ObjectIdGetDatum(member));
		}
	}
	return NULL;
}

/* Returns the key if the side casts it to text, else NULL. */
static Node *
key_cast_to_text(const Comparison *comparison)
{
	Node	   *side = comparison->side;
	Node	   *key = NULL;

	if (IsA(side, CoerceViaIO))
		key = (Node *) ((CoerceViaIO *) side)->arg;
	else if (IsA(side, FuncExpr) && ((FuncExpr *) side)->funcid == F_TEXT_BOOL)
		key = linitial(((FuncExpr *) side)->args);
	return key != NULL && exprType(side) == TEXTOID &&
		is_key(comparison, key) ? key : NULL;
}

/* Returns whether a name might be an index into an array. */
static bool
is_subscript(const char *name)
{
	char	   *end;

	(void) strtol(name, &end, 10);
	return name[0] != '\0' && *end == '\0';
}

/*
 * Puts the names of a path, text[], in front of others.  Returns false if one
 * may be an index.
 */
static bool
add_path_names(Const *path, List **names)
{
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (!IsA(path, Const) || path->constisnull ||
		path->consttype != TEXTARRAYOID)
		return false;
	deconstruct_array(DatumGetArrayTypeP(path->constvalue), TEXTOID, -1, false,
					  TYPALIGN_INT, &elements, &nulls, &n);
	for (int i = n; i-- > 0;)
	{
		char	   *name = nulls[i] ? NULL : TextDatumGetCString(elements[i]);

		if (name == NULL || is_subscript(name))
			return false;
		*names = lcons(name, *names);
	}
	return n > 0;
}

/*
 * Takes apart key -> 'a' -> 'b', also with ->> or paths.  Returns the key, and
 * sets *names to the names in their order and *is_text to whether the result
 * is text.  Returns NULL if the side is nothing of the kind.
 */
static Node *
find_document(const Comparison *comparison, List **names, bool *is_text)
{
	Node	   *node = comparison->side;

	*names = NIL;
	*is_text = false;
	while (!is_key(comparison, node))
	{
		OpExpr	   *step = (OpExpr *) node;
		Const	   *name;
		Oid			function;
		bool		is_path;

		if (!is_opclause(step) || list_length(step->args) != 2)
			return NULL;
		function = get_opcode(step->opno);
		name = lsecond(step->args);
		is_path = function == F_JSONB_EXTRACT_PATH ||
			function == F_JSONB_EXTRACT_PATH_TEXT;
		if (function == F_JSONB_OBJECT_FIELD_TEXT ||
			function == F_JSONB_EXTRACT_PATH_TEXT)
			*is_text = true;	/* the outermost: text has no fields */
		else if (function != F_JSONB_OBJECT_FIELD && !is_path)
			return NULL;
		if (is_path && !add_path_names(name, names))
			return NULL;
		if (!is_path)
		{
			if (!IsA(name, Const) || name->constisnull)
				return NULL;
			*names = lcons(TextDatumGetCString(name->constvalue), *names);
		}
		node = linitial(step->args);
	}
	return *names != NIL && exprType(node) == JSONBOID ? node : NULL;
}

/* Makes {"a": {"b": value}} of the names a, b. */
static Const *
make_document(const List *names, JsonbValue *value)
{
	IvfpqJsonb	document = {0};
	ListCell   *lc;

	foreach(lc, names)
	{
		JsonbValue	name = {.type = jbvString};

		name.val.string.val = lfirst(lc);
		name.val.string.len = (int) strlen(lfirst(lc));
		IvfpqPushJsonb(&document, WJB_BEGIN_OBJECT, NULL);
		IvfpqPushJsonb(&document, WJB_KEY, &name);
	}
	IvfpqPushJsonb(&document, WJB_VALUE, value);
	foreach(lc, names)
		IvfpqPushJsonb(&document, WJB_END_OBJECT, NULL);
	return make_value(JSONBOID,
					  JsonbPGetDatum(JsonbValueToJsonb(document.result)));
}

/*
 * Adds documents to *documents such that a document which has this text below
 * the names holds one of them.  Sets *beside if others hold one, too.  Returns
 * false if there may be no such documents.
 */
static bool
add_texts(const List *names, const char *text, List **documents, bool *beside)
{
	JsonbValue	value = {.type = jbvString};

	/* it may be that of an object, an array, or a number of any length */
	if (text[0] == '{' || text[0] == '[' || strlen(text) > MAX_TEXT)
		return false;
	value.val.string.val = unconstify(char *, text);
	value.val.string.len = (int) strlen(text);
	*documents = lappend(*documents, make_document(names, &value));
	if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
	{
		value.type = jbvBool;
		value.val.boolean = text[0] == 't';

		*documents = lappend(*documents, make_document(names, &value));
	}
	else if (text[0] != '\0' &&
			 strspn(text, "-0123456789.") == strlen(text) &&
			 strspn(&text[text[0] == '-'], "0123456789") > 0 &&
			 strchr(&text[1], '-') == NULL &&
			 strchr(text, '.') == strrchr(text, '.'))
	{
		/* 5 and 5.0 are equal numbers, but not equal texts */
		value.type = jbvNumeric;
		value.val.numeric =
			DatumGetNumeric(DirectFunctionCall3(numeric_in,
												CStringGetDatum(text),
												ObjectIdGetDatum(InvalidOid),
												Int32GetDatum(-1)));
		*documents = lappend(*documents, make_document(names, &value));
		*beside = true;
	}
	return true;
}

/* Does the same for a value that is compared as jsonb. */
static void
add_value(const List *names, Datum datum, List **documents, bool *beside)
{
	Jsonb	   *jsonb = DatumGetJsonbP(datum);
	JsonbValue	value;

	if (JB_ROOT_IS_SCALAR(jsonb))
		(void) JsonbExtractScalar(&jsonb->root, &value);
	else
	{
		/* other documents may hold what it holds, and more */
		value.type = jbvBinary;
		value.val.binary.data = &jsonb->root;
		value.val.binary.len = VARSIZE(jsonb) - VARHDRSZ;
		*beside = true;
	}
	*documents = lappend(*documents, make_document(names, &value));
}

/*
 * Returns whether the midnight before this day is one moment, long before
 * which it is the day before, and long after which it is this day.  It is not
 * if the session's time zone puts its clock forward or back across it.
 */
static bool
is_plain_midnight(DateADT day)
{
	pg_time_t	midnight = ((pg_time_t) day +
							POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) *
	SECS_PER_DAY;				/* as the clock shows it */
	pg_time_t	at = midnight - 3 * SECS_PER_DAY;

	for (;;)
	{
		long		before;
		long		after;
		int			unused;
		pg_time_t	change;

		if (pg_next_dst_boundary(&at, &before, &unused, &change, &after,
								 &unused, session_timezone) != 1 ||
			change > midnight + 3 * SECS_PER_DAY)
			return true;
		if (midnight >= change + Min(before, after) &&
			midnight <= change + Max(before, after))
			return false;
		at = change;
	}
}

/* Returns a date that is `days` later. */
static Node *
add_days(Node *date, int days)
{
	if (IsA(date, Const))
		return (Node *) make_value(DATEOID,
								   DateADTGetDatum(DatumGetDateADT(((Const *) date)->constvalue) +
												   days));
	if (days == 0)
		return date;
	return (Node *) make_opclause(OpernameGetOprid(list_make2(makeString("pg_catalog"),
															  makeString(days > 0 ? "+" : "-")),
												   DATEOID, INT4OID),
								  DATEOID, false, (Expr *) date,
								  (Expr *) make_integer(abs(days)), InvalidOid,
								  InvalidOid);
}

/*
 * Returns whether a date is a constant, finite, with days around it that are
 * dates, too.
 */
static bool
is_finite_date(Node *date)
{
	DateADT		day;

	if (!IsA(date, Const))
		return false;
	day = DatumGetDateADT(((Const *) date)->constvalue);
	return !DATE_NOT_FINITE(day) && IS_VALID_DATE(day - 3) &&
		IS_VALID_DATE(day + 3);
}

/* key::date compared with a date */
static Expr *
rewrite_date(const Comparison *comparison, bool *beside)
{
	FuncExpr   *cast = (FuncExpr *) comparison->side;
	Node	   *value = comparison->value;
	int			strategy = comparison->strategy;
	bool		is_zoned;
	bool		has_low = strategy >= BTEqualStrategyNumber;
	bool		has_high = strategy <= BTEqualStrategyNumber;
	int			low_strategy = BTGreaterEqualStrategyNumber;
	int			high_strategy;
	int			low = 0;
	int			high;
	Node	   *key;
	Expr	   *from = NULL;
	Expr	   *to = NULL;

	if (!IsA(cast, FuncExpr) || list_length(cast->args) != 1 ||
		(cast->funcid != F_DATE_TIMESTAMP &&
		 cast->funcid != F_DATE_TIMESTAMPTZ) ||
		exprType(value) != DATEOID || strategy == 0)
		return NULL;
	key = linitial(cast->args);
	if (!is_key(comparison, key))
		return NULL;
	is_zoned = cast->funcid == F_DATE_TIMESTAMPTZ;

	/* its days are [low, high) */
	high_strategy = BTLessStrategyNumber;
	low = strategy == BTGreaterStrategyNumber;
	high = strategy != BTLessStrategyNumber;
	*beside = !is_finite_date(value) ||
		(is_zoned &&
		 ((has_low && !is_plain_midnight(DatumGetDateADT(((Const *) value)->constvalue) + low)) ||
		  (has_high && !is_plain_midnight(DatumGetDateADT(((Const *) value)->constvalue) + high))));
	if (*beside)
	{
		/* infinity is a day of its own */
		high_strategy = BTLessEqualStrategyNumber;
		low = is_zoned ? -1 : 0;
		high = is_zoned ? 2 : 1;
		if (IsA(value, Const) && !is_finite_date(value))
			return NULL;
	}
	if (has_low)
		from = make_condition(comparison->info, comparison->column,
							  low_strategy, key, add_days(value, low));
	if (has_high)
		to = make_condition(comparison->info, comparison->column,
							high_strategy, key, add_days(value, high));
	if ((has_low && from == NULL) || (has_high && to == NULL))
		return NULL;
	if (from == NULL || to == NULL)
		return from ? from : to;
	return make_andclause(list_make2(from, to));
}

/*
 * Adds to *values the values to compare the key with, of which one satisfies
 * the condition if and only if the key equals this constant; none if no key
 * can be equal.  Returns false if they are not known.
 */
static bool
add_equals(const Comparison *comparison, const Const *value, Node **key,
		   int *strategy, List **values, bool *beside)
{
	List	   *names;
	bool		is_text;
	int64		n;
	Node	   *document;

	*strategy = comparison->strategy;
	if (value->constisnull)
		return true;
	*key = key_cast_to_number(comparison);
	if (*key != NULL)
	{
		bool		is_whole = whole_number(value, &n);

		if (is_whole)
			*values = lappend(*values, make_integer(n));
		return is_whole;
	}
	if (*strategy != BTEqualStrategyNumber ||
		(OidIsValid(comparison->collation) &&
		 !get_collation_isdeterministic(comparison->collation)))
		return false;
	*key = key_cast_to_text(comparison);
	if (*key != NULL && value->consttype == TEXTOID)
	{
		Const	   *equal = value_of_text(exprType(*key),
										  TextDatumGetCString(value->constvalue));

		if (equal != NULL)
			*values = lappend(*values, equal);
		return equal != NULL;
	}
	document = find_document(comparison, &names, &is_text);
	if (document == NULL)
		return false;
	*key = document;
	*strategy = IVFPQ_CONTAINS_STRATEGY;
	if (is_text)
		return value->consttype == TEXTOID &&
			add_texts(names, TextDatumGetCString(value->constvalue), values,
					  beside);
	if (value->consttype == JSONBOID)
		add_value(names, value->constvalue, values, beside);
	return value->consttype == JSONBOID;
}

/* side operator value */
static Expr *
rewrite_comparison(const Comparison *comparison, bool *beside)
{
	Node	   *key = NULL;
	List	   *values = NIL;
	int			strategy;
	Expr	   *range;

	if (comparison->strategy == 0)
		return NULL;
	range = rewrite_date(comparison, beside);
	if (range != NULL)
		return range;
	*beside = false;
	if (!IsA(comparison->value, Const) ||
		!add_equals(comparison, (Const *) comparison->value, &key, &strategy,
					&values, beside))
		return NULL;
	return make_any(comparison->info, comparison->column, strategy, key,
					values);
}

/* side = ANY (constant array) */
static Expr *
rewrite_array(Comparison *comparison, bool *beside)
{
	Const	   *array = (Const *) comparison->value;
	Oid			type;
	int16		length;
	bool		by_value;
	char		align;
	Datum	   *elements;
	bool	   *nulls;
	int			n;
	Node	   *key = NULL;
	List	   *values = NIL;
	int			strategy = 0;

	if (!IsA(array, Const) || array->constisnull ||
		comparison->strategy != BTEqualStrategyNumber)
		return NULL;
	type = get_element_type(array->consttype);
	get_typlenbyvalalign(type, &length, &by_value, &align);
	deconstruct_array(DatumGetArrayTypeP(array->constvalue), type, length,
					  by_value, align, &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		if (!nulls[i] &&
			!add_equals(comparison, make_value(type, elements[i]), &key,
						&strategy, &values, beside))
			return NULL;
	}
	return key == NULL ? NULL :
		make_any(comparison->info, comparison->column, strategy, key, values);
}

/* value = ANY (key): key @> ARRAY[value] */
static Expr *
rewrite_membership(IndexOptInfo *info, int column, ScalarArrayOpExpr *expr)
{
	Node	   *value = linitial(expr->args);
	Node	   *key = lsecond(expr->args);
	Oid			type = get_element_type(exprType(strip_relabel(key)));
	ArrayExpr  *array = makeNode(ArrayExpr);
	TypeCacheEntry *entry;

	if (!OidIsValid(type) || !match_index_to_operand(key, column, info) ||
		!is_value(value))
		return NULL;
	entry = lookup_type_cache(type, TYPECACHE_EQ_OPR);
	if (exprType(value) != type)
	{
		/* an integer of another size */
		int			strategy = btree_strategy(expr->opno, type);
		Const	   *number = (Const *) value;
		int64		n;

		if (strategy != BTEqualStrategyNumber || !IsA(number, Const))
			return NULL;
		switch (number->consttype)
		{
			case INT2OID:
				n = DatumGetInt16(number->constvalue);
				break;
			case INT4OID:
				n = DatumGetInt32(number->constvalue);
				break;
			case INT8OID:
				n = DatumGetInt64(number->constvalue);
				break;
			default:
				return NULL;
		}
		if (type == INT8OID)
			value = (Node *) make_value(type, Int64GetDatum(n));
		else if (type == INT4OID && n == (int32) n)
			value = (Node *) make_value(type, Int32GetDatum((int32) n));
		else if (type == INT2OID && n == (int16) n)
			value = (Node *) make_value(type, Int16GetDatum((int16) n));
		else
			return NULL;
	}
	else if (entry->eq_opr != expr->opno)
		return NULL;
	/* @> has the collation of the column */
	if (expr->inputcollid != exprCollation(key) ||
		(OidIsValid(info->indexcollations[column]) &&
		 info->indexcollations[column] != expr->inputcollid))
		return NULL;
	array->element_typeid = type;
	array->array_typeid = get_array_type(type);
	array->array_collid = exprCollation(value);
	array->elements = list_make1(value);
	array->location = -1;
	return make_condition(info, column, IVFPQ_CONTAINS_STRATEGY, key,
						  eval_const_expressions(NULL, (Node *) array));
}

/* key = a OR key = b: key = ANY (ARRAY[a, b]) */
static Expr *
rewrite_or(IndexOptInfo *info, int column, BoolExpr *clause)
{
	List	   *values = NIL;
	Node	   *key = NULL;
	Oid			collation = InvalidOid;
	ListCell   *lc;

	foreach(lc, clause->args)
	{
		OpExpr	   *equal = lfirst(lc);
		Node	   *side;
		Node	   *value;
		Oid			operator;

		if (!is_opclause(equal) || list_length(equal->args) != 2)
			return NULL;
		side = linitial(equal->args);
		value = lsecond(equal->args);
		operator = equal->opno;
		if (!match_index_to_operand(side, column, info))
		{
			side = lsecond(equal->args);
			value = linitial(equal->args);
			operator = get_commutator(operator);
		}
		if (!OidIsValid(operator) ||
			!match_index_to_operand(side, column, info) || !is_value(value) ||
			get_op_opfamily_strategy(operator, info->opfamily[column]) !=
			BTEqualStrategyNumber ||
			(key != NULL && (exprType(value) != exprType(linitial(values)) ||
							 equal->inputcollid != collation)))
			return NULL;
		key = side;
		collation = equal->inputcollid;
		values = lappend(values, value);
	}
	if (OidIsValid(info->indexcollations[column]) &&
		info->indexcollations[column] != collation)
		return NULL;
	return make_any(info, column, BTEqualStrategyNumber, key, values);
}

/* text = name: the latter as text */
static Expr *
rewrite_name(const Comparison *comparison)
{
	Const	   *value = (Const *) comparison->value;
	Oid			function = get_opcode(comparison->operator);

	if (function != F_TEXTEQNAME || !IsA(value, Const) ||
		value->constisnull || value->consttype != NAMEOID ||
		!is_key(comparison, comparison->side) ||
		(OidIsValid(comparison->collation) &&
		 !get_collation_isdeterministic(comparison->collation)))
		return NULL;
	return make_condition(comparison->info, comparison->column,
						  BTEqualStrategyNumber, comparison->side, (Node *)
						  make_value(TEXTOID,
									 CStringGetTextDatum(NameStr(*DatumGetName(value->constvalue)))));
}

/*
 * Returns a condition that the key answers, to be put in the place of one that
 * the key does not answer or, if *beside is set, to be added to that one.
 * Returns NULL if there is none.
 */
Expr *
IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause, bool *beside)
{
	Comparison	comparison = {.info = info, .column = column};
	List	   *args;

	*beside = false;
	if (is_orclause(clause))
		return rewrite_or(info, column, (BoolExpr *) clause);
	if (IsA(clause, ScalarArrayOpExpr))
	{
		ScalarArrayOpExpr *expr = (ScalarArrayOpExpr *) clause;

		if (!expr->useOr)
			return NULL;
		if (!contain_var_clause(linitial(expr->args)))
			return rewrite_membership(info, column, expr);
		comparison.operator = expr->opno;
		comparison.collation = expr->inputcollid;
		args = expr->args;
	}
	else if (is_opclause(clause) &&
			 list_length(((OpExpr *) clause)->args) == 2)
	{
		comparison.operator = ((OpExpr *) clause)->opno;
		comparison.collation = ((OpExpr *) clause)->inputcollid;
		args = ((OpExpr *) clause)->args;
	}
	else
		return NULL;
	comparison.side = linitial(args);
	comparison.value = lsecond(args);
	if (is_opclause(clause) && !contain_var_clause(comparison.side))
	{
		comparison.side = lsecond(args);
		comparison.value = linitial(args);
		comparison.operator = get_commutator(comparison.operator);
	}
	if (!OidIsValid(comparison.operator) || !is_value(comparison.value))
		return NULL;
	comparison.side = strip_relabel(comparison.side);
	comparison.strategy = btree_strategy(comparison.operator,
										 exprType(comparison.side));
	if (IsA(clause, ScalarArrayOpExpr))
		return rewrite_array(&comparison, beside);
	if (is_key(&comparison, comparison.side))
		return rewrite_name(&comparison);
	return rewrite_comparison(&comparison, beside);
}
