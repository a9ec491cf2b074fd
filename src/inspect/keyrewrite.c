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

/* A condition on a key, and what it is written as. */
typedef struct Rewrite
{
	IndexOptInfo *info;
	int			column;

	/*
	 * Its left side has the key, in an expression or not; its right side is
	 * the same for all rows.
	 */
	IvfpqComparison comparison;
	int			strategy;		/* as btree's of the left type; 0 = none */

	/* result: key compares with any of the values, by the key's class */
	Node	   *key;
	int			key_strategy;
	List	   *values;
	bool		beside;			/* the condition has to stay beside it */
} Rewrite;

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
is_key(const Rewrite *rewrite, Node *node)
{
	return match_index_to_operand(node, rewrite->column, rewrite->info);
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

/* Returns an integer constant as one of another type, or NULL. */
static Node *
cast_integer(Node *node, Oid type)
{
	const Const *value = (Const *) node;
	int64		n;

	if (!IsA(node, Const) || value->constisnull)
		return NULL;
	switch (value->consttype)
	{
		case INT2OID:
			n = DatumGetInt16(value->constvalue);
			break;
		case INT4OID:
			n = DatumGetInt32(value->constvalue);
			break;
		case INT8OID:
			n = DatumGetInt64(value->constvalue);
			break;
		default:
			return NULL;
	}
	if (type == INT8OID)
		return (Node *) make_value(type, Int64GetDatum(n));
	if (type == INT4OID && n == (int32) n)
		return (Node *) make_value(type, Int32GetDatum((int32) n));
	if (type == INT2OID && n == (int16) n)
		return (Node *) make_value(type, Int16GetDatum((int16) n));
	return NULL;
}

/* Makes an array of values, or NULL if their type has none. */
static Node *
make_array(List *values)
{
	ArrayExpr  *array = makeNode(ArrayExpr);

	array->element_typeid = exprType(linitial(values));
	array->array_typeid = get_array_type(array->element_typeid);
	array->array_collid = exprCollation(linitial(values));
	array->elements = values;
	array->location = -1;
	return OidIsValid(array->array_typeid) ?
		eval_const_expressions(NULL, (Node *) array) : NULL;
}

/*
 * Makes "key operator value", by the key's class.  Returns NULL if the class
 * has no such operator.
 */
static Expr *
make_condition(const Rewrite *rewrite, int strategy, Node *key, Node *value)
{
	const IndexOptInfo *info = rewrite->info;
	Oid			type = info->opcintype[rewrite->column];
	Oid			right = exprType(value);
	Oid			operator;

	if (type_is_array(type))
		type = right = ANYARRAYOID;
	else if (type == ANYENUMOID)
		right = type;
	operator = get_opfamily_member(info->opfamily[rewrite->column], type,
								   right, (int16) strategy);
	if (!OidIsValid(operator))
		return NULL;
	return make_opclause(operator, BOOLOID, false, (Expr *) key,
						 (Expr *) value, InvalidOid,
						 info->indexcollations[rewrite->column]);
}

/*
 * Makes "key operator ANY (values)", or "key operator value" if there is one
 * value only.  Returns NULL if there are none.
 */
static Expr *
make_any(const Rewrite *rewrite, int strategy, Node *key, List *values)
{
	bool		mixed = false;
	Expr	   *one;
	Node	   *array;
	ScalarArrayOpExpr *any;
	ListCell   *lc;

	if (values == NIL)
		return NULL;
	/* literals of integers are of two types, an array is of one */
	foreach(lc, values)
		mixed = mixed || exprType(lfirst(lc)) != exprType(linitial(values));
	foreach(lc, values)
	{
		if (mixed)
			lfirst(lc) = cast_integer(lfirst(lc), INT8OID);
	}
	one = make_condition(rewrite, strategy, key, linitial(values));
	if (one == NULL || list_length(values) == 1)
		return one;
	array = make_array(values);
	if (array == NULL)
		return NULL;
	any = makeNode(ScalarArrayOpExpr);
	any->opno = ((OpExpr *) one)->opno;
	any->useOr = true;
	any->inputcollid = ((OpExpr *) one)->inputcollid;
	any->args = list_make2(key, array);
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

/*
 * Returns whether a text is that of an integer between these, as it is
 * printed, and sets *n.
 */
static bool
is_integer_text(const char *text, int64 least, int64 greatest, int64 *n)
{
	errno = 0;
	*n = strtoll(text, NULL, 10);
	return errno == 0 && *n >= least && *n <= greatest &&
		strcmp(psprintf(INT64_FORMAT, *n), text) == 0;
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
	Datum		digits;

	switch (value->consttype)
	{
		case FLOAT4OID:
			return whole_float(DatumGetFloat4(value->constvalue),
							   FLOAT4_WHOLE, n);
		case FLOAT8OID:
			return whole_float(DatumGetFloat8(value->constvalue),
							   FLOAT8_WHOLE, n);
		case NUMERICOID:
			digits = DirectFunctionCall1(numeric_trim_scale,
										 value->constvalue);
			digits = DirectFunctionCall1(numeric_out, digits);
			return is_integer_text(DatumGetCString(digits), PG_INT64_MIN,
								   PG_INT64_MAX, n);
		default:
			return false;
	}
}

/*
 * Returns the key if the left side casts it, an integer, to another number;
 * else NULL.
 */
static Node *
key_cast_to_number(const Rewrite *rewrite)
{
	FuncExpr   *cast = (FuncExpr *) rewrite->comparison.left;
	Node	   *key;
	Oid			type;
	Oid			function;

	if (!IsA(cast, FuncExpr) || list_length(cast->args) != 1)
		return NULL;
	key = linitial(cast->args);
	type = exprType(key);
	if (!is_key(rewrite, key) ||
		(type != INT2OID && type != INT4OID && type != INT8OID) ||
		find_coercion_pathway(cast->funcresulttype, type, COERCION_EXPLICIT,
							  &function) != COERCION_PATH_FUNC ||
		function != cast->funcid)
		return NULL;
	return key;
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

/* Returns the key if the left side casts it to text, else NULL. */
static Node *
key_cast_to_text(const Rewrite *rewrite)
{
	Node	   *side = rewrite->comparison.left;
	Node	   *key = NULL;

	if (IsA(side, CoerceViaIO))
		key = (Node *) ((CoerceViaIO *) side)->arg;
	else if (IsA(side, FuncExpr) && ((FuncExpr *) side)->funcid == F_TEXT_BOOL)
		key = linitial(((FuncExpr *) side)->args);
	return key != NULL && exprType(side) == TEXTOID &&
		is_key(rewrite, key) ? key : NULL;
}

/*
 * Puts the names of a path, text[], in front of others.  Returns false if one
 * may be an index into an array.
 */
static bool
add_path_names(Const *path, List **names)
{
	ArrayIterator elements;
	Datum		element;
	bool		isnull;
	List	   *front = NIL;

	if (path->consttype != TEXTARRAYOID)
		return false;
	elements = array_create_iterator(DatumGetArrayTypeP(path->constvalue), 0,
									 NULL);
	while (array_iterate(elements, &element, &isnull))
	{
		char	   *name;
		char	   *end;

		if (isnull)
			return false;
		name = TextDatumGetCString(element);
		(void) strtol(name, &end, 10);
		if (name[0] != '\0' && *end == '\0')
			return false;
		front = lappend(front, name);
	}
	*names = list_concat(front, *names);
	return front != NIL;
}

/*
 * Takes apart key -> 'a' -> 'b', also with ->> or paths.  Returns the key, and
 * sets *names to the names in their order and *is_text to whether the result
 * is text.  Returns NULL if the left side is nothing of the kind.
 */
static Node *
find_document(const Rewrite *rewrite, List **names, bool *is_text)
{
	Node	   *node = rewrite->comparison.left;

	*names = NIL;
	*is_text = false;
	while (!is_key(rewrite, node))
	{
		OpExpr	   *step = (OpExpr *) node;
		Const	   *name;

		if (!is_opclause(step) || list_length(step->args) != 2)
			return NULL;
		name = lsecond(step->args);
		if (!IsA(name, Const) || name->constisnull)
			return NULL;
		switch (get_opcode(step->opno))
		{
			case F_JSONB_OBJECT_FIELD_TEXT:
				*is_text = true;	/* the outermost: text has no fields */
				/* FALLTHROUGH */
			case F_JSONB_OBJECT_FIELD:
				*names = lcons(TextDatumGetCString(name->constvalue), *names);
				break;
			case F_JSONB_EXTRACT_PATH_TEXT:
				*is_text = true;
				/* FALLTHROUGH */
			case F_JSONB_EXTRACT_PATH:
				if (!add_path_names(name, names))
					return NULL;
				break;
			default:
				return NULL;
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
 * Adds documents to the values such that a document which has this text below
 * the names holds one of them.  Returns false if there may be no such
 * documents.
 */
static bool
add_texts(Rewrite *rewrite, const List *names, const char *text)
{
	JsonbValue	value = {.type = jbvString};
	const char *digits = &text[text[0] == '-'];

	/* it may be that of an object, an array, or a number of any length */
	if (text[0] == '{' || text[0] == '[' || strlen(text) > MAX_TEXT)
		return false;
	value.val.string.val = unconstify(char *, text);
	value.val.string.len = (int) strlen(text);
	rewrite->values = lappend(rewrite->values, make_document(names, &value));
	if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
	{
		value.type = jbvBool;
		value.val.boolean = text[0] == 't';
	}
	else if (strspn(digits, "0123456789.") == strlen(digits) &&
			 strspn(digits, "0123456789") > 0 &&
			 strchr(digits, '.') == strrchr(digits, '.'))
	{
		/* 5 and 5.0 are equal numbers, but not equal texts */
		value.type = jbvNumeric;
		value.val.numeric =
			DatumGetNumeric(DirectFunctionCall3(numeric_in,
												CStringGetDatum(text),
												ObjectIdGetDatum(InvalidOid),
												Int32GetDatum(-1)));
		rewrite->beside = true;
	}
	if (value.type != jbvString)
		rewrite->values = lappend(rewrite->values,
								  make_document(names, &value));
	return true;
}

/*
 * Adds a document such that one which has this value below the names holds it.
 */
static void
add_value(Rewrite *rewrite, const List *names, Datum datum)
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
		rewrite->beside = true;
	}
	rewrite->values = lappend(rewrite->values, make_document(names, &value));
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
	List	   *operator;

	if (days == 0)
		return date;
	if (IsA(date, Const))
	{
		DateADT		day = DatumGetDateADT(((Const *) date)->constvalue);

		return (Node *) make_value(DATEOID, DateADTGetDatum(day + days));
	}
	operator = list_make2(makeString("pg_catalog"),
						  makeString(days > 0 ? "+" : "-"));
	return (Node *) make_opclause(OpernameGetOprid(operator, DATEOID, INT4OID),
								  DATEOID, false, (Expr *) date,
								  (Expr *) make_integer(abs(days)), InvalidOid,
								  InvalidOid);
}

/* key::date compared with a date: the key is in [low, high) of its days */
static Expr *
rewrite_date(Rewrite *rewrite)
{
	FuncExpr   *cast = (FuncExpr *) rewrite->comparison.left;
	Node	   *value = rewrite->comparison.right;
	int			strategy = rewrite->strategy;
	bool		has_low = strategy >= BTEqualStrategyNumber;
	bool		has_high = strategy <= BTEqualStrategyNumber;
	int			low = strategy == BTGreaterStrategyNumber;
	int			high = strategy != BTLessStrategyNumber;
	int			high_strategy = BTLessStrategyNumber;
	bool		is_zoned;
	bool		is_exact = false;
	Node	   *key;
	Expr	   *from = NULL;
	Expr	   *to = NULL;

	if (!IsA(cast, FuncExpr) || list_length(cast->args) != 1 ||
		(cast->funcid != F_DATE_TIMESTAMP &&
		 cast->funcid != F_DATE_TIMESTAMPTZ) ||
		exprType(value) != DATEOID || !is_key(rewrite, linitial(cast->args)))
		return NULL;
	key = linitial(cast->args);
	is_zoned = cast->funcid == F_DATE_TIMESTAMPTZ;
	if (IsA(value, Const))
	{
		DateADT		day = DatumGetDateADT(((Const *) value)->constvalue);

		if (DATE_NOT_FINITE(day) || !IS_VALID_DATE(day - 3) ||
			!IS_VALID_DATE(day + 3))
			return NULL;
		is_exact = !is_zoned ||
			((!has_low || is_plain_midnight(day + low)) &&
			 (!has_high || is_plain_midnight(day + high)));
	}
	if (!is_exact)
	{
		/* infinity is a day of its own */
		high_strategy = BTLessEqualStrategyNumber;
		low = is_zoned ? -1 : 0;
		high = is_zoned ? 2 : 1;
	}
	if (has_low)
		from = make_condition(rewrite, BTGreaterEqualStrategyNumber, key,
							  add_days(value, low));
	if (has_high)
		to = make_condition(rewrite, high_strategy, key,
							add_days(value, high));
	if (has_low != (from != NULL) || has_high != (to != NULL))
		return NULL;
	rewrite->beside = !is_exact;
	return !has_high ? from : !has_low ? to :
		make_andclause(list_make2(from, to));
}

/*
 * Adds the values to compare the key with, of which one satisfies the
 * condition if and only if the left side compares so with this constant; none
 * if no key can.  Returns false if they are not known.
 */
static bool
add_equals(Rewrite *rewrite, const Const *value)
{
	Oid			collation = rewrite->comparison.collation;
	List	   *names;
	bool		is_text;
	int64		n;

	rewrite->key_strategy = rewrite->strategy;
	if (value->constisnull)
		return true;
	rewrite->key = key_cast_to_number(rewrite);
	if (rewrite->key != NULL)
	{
		if (!whole_number(value, &n))
			return false;
		rewrite->values = lappend(rewrite->values, make_integer(n));
		return true;
	}
	if (rewrite->strategy != BTEqualStrategyNumber ||
		(OidIsValid(collation) && !get_collation_isdeterministic(collation)))
		return false;
	rewrite->key = key_cast_to_text(rewrite);
	if (rewrite->key != NULL && value->consttype == TEXTOID)
	{
		Const	   *equal = value_of_text(exprType(rewrite->key),
										  TextDatumGetCString(value->constvalue));

		if (equal == NULL)
			return false;
		rewrite->values = lappend(rewrite->values, equal);
		return true;
	}
	rewrite->key = find_document(rewrite, &names, &is_text);
	rewrite->key_strategy = IVFPQ_CONTAINS_STRATEGY;
	if (rewrite->key == NULL ||
		value->consttype != (is_text ? TEXTOID : JSONBOID))
		return false;
	if (is_text)
		return add_texts(rewrite, names,
						 TextDatumGetCString(value->constvalue));
	add_value(rewrite, names, value->constvalue);
	return true;
}

/* left operator constant, or left = ANY (constant array) */
static Expr *
rewrite_comparison(Rewrite *rewrite)
{
	Const	   *value = (Const *) rewrite->comparison.right;
	ArrayIterator elements;
	Datum		element;
	bool		isnull;

	if (!IsA(value, Const))
		return NULL;
	if (!rewrite->comparison.any)
	{
		if (!add_equals(rewrite, value))
			return NULL;
	}
	else
	{
		Oid			type = get_element_type(value->consttype);

		if (value->constisnull || rewrite->strategy != BTEqualStrategyNumber)
			return NULL;
		elements = array_create_iterator(DatumGetArrayTypeP(value->constvalue),
										 0, NULL);
		while (array_iterate(elements, &element, &isnull))
		{
			if (!isnull && !add_equals(rewrite, make_value(type, element)))
				return NULL;
		}
	}
	return make_any(rewrite, rewrite->key_strategy, rewrite->key,
					rewrite->values);
}

/* value = ANY (key): key @> ARRAY[value] */
static Expr *
rewrite_membership(const Rewrite *rewrite)
{
	const IvfpqComparison *comparison = &rewrite->comparison;
	Node	   *value = comparison->left;
	Node	   *key = comparison->right;
	Oid			type = get_element_type(exprType(strip_relabel(key)));
	Oid			collation = rewrite->info->indexcollations[rewrite->column];

	if (!OidIsValid(type) || !is_key(rewrite, key) || !is_value(value))
		return NULL;
	if (exprType(value) != type)
	{
		if (btree_strategy(comparison->operator, type) !=
			BTEqualStrategyNumber)
			return NULL;
		value = cast_integer(value, type);
		if (value == NULL)
			return NULL;
	}
	else if (lookup_type_cache(type, TYPECACHE_EQ_OPR)->eq_opr !=
			 comparison->operator)
		return NULL;
	/* @> has the collation of the column */
	if (comparison->collation != exprCollation(key) ||
		(OidIsValid(collation) && collation != comparison->collation))
		return NULL;
	return make_condition(rewrite, IVFPQ_CONTAINS_STRATEGY, key,
						  make_array(list_make1(value)));
}

/* Exchanges both sides.  The operator is invalid if it has no commutator. */
static void
commute(IvfpqComparison *comparison)
{
	Node	   *left = comparison->left;

	comparison->left = comparison->right;
	comparison->right = left;
	comparison->operator = get_commutator(comparison->operator);
}

/* key = a OR key = b: key = ANY (ARRAY[a, b]) */
static Expr *
rewrite_or(const Rewrite *rewrite, BoolExpr *clause)
{
	Oid			family = rewrite->info->opfamily[rewrite->column];
	Oid			wanted = rewrite->info->indexcollations[rewrite->column];
	List	   *values = NIL;
	Node	   *key = NULL;
	Oid			collation = InvalidOid;
	ListCell   *lc;

	foreach(lc, clause->args)
	{
		IvfpqComparison equal;

		if (!IvfpqGetComparison(lfirst(lc), &equal) || equal.any)
			return NULL;
		if (!is_key(rewrite, equal.left))
			commute(&equal);
		if (!OidIsValid(equal.operator) || !is_key(rewrite, equal.left) ||
			!is_value(equal.right) ||
			get_op_opfamily_strategy(equal.operator, family) !=
			BTEqualStrategyNumber ||
			(key != NULL &&
			 (exprType(equal.right) != exprType(linitial(values)) ||
			  equal.collation != collation)))
			return NULL;
		key = equal.left;
		collation = equal.collation;
		values = lappend(values, equal.right);
	}
	if (OidIsValid(wanted) && wanted != collation)
		return NULL;
	return make_any(rewrite, BTEqualStrategyNumber, key, values);
}

/* key = name: the latter as text */
static Expr *
rewrite_name(const Rewrite *rewrite)
{
	const IvfpqComparison *comparison = &rewrite->comparison;
	Const	   *value = (Const *) comparison->right;
	const char *name;

	if (get_opcode(comparison->operator) != F_TEXTEQNAME ||
		!IsA(value, Const) || value->constisnull ||
		value->consttype != NAMEOID ||
		(OidIsValid(comparison->collation) &&
		 !get_collation_isdeterministic(comparison->collation)))
		return NULL;
	name = NameStr(*DatumGetName(value->constvalue));
	return make_condition(rewrite, BTEqualStrategyNumber, comparison->left,
						  (Node *) make_value(TEXTOID,
											  CStringGetTextDatum(name)));
}

/* Takes a comparison apart.  Returns false if the clause is none. */
bool
IvfpqGetComparison(Expr *clause, IvfpqComparison *comparison)
{
	List	   *args = NIL;

	comparison->any = IsA(clause, ScalarArrayOpExpr);
	if (is_opclause(clause))
	{
		comparison->operator = ((OpExpr *) clause)->opno;
		comparison->collation = ((OpExpr *) clause)->inputcollid;
		args = ((OpExpr *) clause)->args;
	}
	else if (comparison->any && ((ScalarArrayOpExpr *) clause)->useOr)
	{
		comparison->operator = ((ScalarArrayOpExpr *) clause)->opno;
		comparison->collation = ((ScalarArrayOpExpr *) clause)->inputcollid;
		args = ((ScalarArrayOpExpr *) clause)->args;
	}
	if (list_length(args) != 2)
		return false;
	comparison->left = linitial(args);
	comparison->right = lsecond(args);
	return true;
}

/*
 * Returns a condition that the key answers, to be put in the place of one that
 * the key does not answer or, if *beside is set, to be added to that one.
 * Returns NULL if there is none.
 */
Expr *
IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause, bool *beside)
{
	Rewrite		rewrite = {.info = info, .column = column};
	IvfpqComparison *comparison = &rewrite.comparison;
	Expr	   *better;

	*beside = false;
	if (is_orclause(clause))
		return rewrite_or(&rewrite, (BoolExpr *) clause);
	if (!IvfpqGetComparison(clause, comparison))
		return NULL;
	if (!contain_var_clause(comparison->left))
	{
		if (comparison->any)
			return rewrite_membership(&rewrite);
		commute(comparison);
	}
	if (!OidIsValid(comparison->operator) || !is_value(comparison->right))
		return NULL;
	comparison->left = strip_relabel(comparison->left);
	rewrite.strategy = btree_strategy(comparison->operator,
									  exprType(comparison->left));
	if (!comparison->any && is_key(&rewrite, comparison->left))
		return rewrite_name(&rewrite);
	if (rewrite.strategy == 0)
		return NULL;
	better = comparison->any ? NULL : rewrite_date(&rewrite);
	if (better == NULL)
		better = rewrite_comparison(&rewrite);
	*beside = rewrite.beside;
	return better;
}
