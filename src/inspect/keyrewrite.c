/*
 * keyrewrite.c
 *		Rewrites conditions so that a key of an index answers them.
 *
 * A rewritten condition can replace the original condition if both are true
 * for the same rows, whatever the table holds.  It can be added to the
 * original condition if it is true for every row for which the original
 * condition is true.  If neither can be proved, the condition is not
 * rewritten, because a slow condition is better than a wrong one.  (In WHERE,
 * NULL has the same effect as false.)
 *
 * The proofs use these facts:
 *
 *	key::numeric = 7	Casts of integers to numeric are exact and keep the
 *						order.  Casts to double precision and real are exact
 *						and keep the order up to 2^53 and 2^24.
 *	key::text = '7'		Only for types that print each value in one form only,
 *						and only if '7' has this form.
 *	key::date = d		The timestamps of a day form one range.  So do
 *						timestamps with time zone if the zone's UTC offset does
 *						not change near midnight.  If it changes, a timestamp
 *						of the day is at most one day outside of that range.
 *	key ->> 'a' = 'b'	If no number, boolean, object or array has the text
 *						'b', the value is a string.  @> and = compare scalars
 *						in the same way.
 *	'b' = ANY (key)		@> finds the same arrays as = ANY, because keys have
 *						deterministic collations only.
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

/* Double precision and real represent every integer up to these exactly. */
#define FLOAT8_WHOLE	9007199254740992.0
#define FLOAT4_WHOLE	16777216.0

/* Longest text for which a comparison with a document is rewritten. */
#define MAX_TEXT		1000

/* A condition on a key, and the result of rewriting it. */
typedef struct Rewrite
{
	IndexOptInfo *info;
	int			column;

	/*
	 * The left side contains the key, perhaps in an expression.  The right
	 * side is the same for all rows.
	 */
	IvfpqComparison comparison;
	int			strategy;		/* the operator's strategy in the btree family
								 * of the left side's type; 0 = none */

	/*
	 * result: a comparison of the key with any of the values, by the operator
	 * that has key_strategy in the key's class
	 */
	Node	   *key;
	int			key_strategy;
	List	   *values;
	bool		beside;			/* the original condition has to stay, too */
} Rewrite;

/*
 * Returns whether an expression has nodes, such as SubPlan, that can be
 * deparsed only together with a finished plan.
 */
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

/* Makes an integer constant, of the type of a literal with the same digits. */
static Const *
make_integer(int64 n)
{
	return n >= PG_INT32_MIN && n <= PG_INT32_MAX ?
		make_value(INT4OID, Int32GetDatum((int32) n)) :
		make_value(INT8OID, Int64GetDatum(n));
}

/*
 * Converts an integer constant to another integer type.  Returns NULL if the
 * node is no such constant, or if the value does not fit into the type.
 */
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

/* Makes an array of the values, or NULL if their type has no array type. */
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
 * Makes the condition "key operator value", with the operator that has this
 * strategy in the key's operator class.  Returns NULL if the class has no such
 * operator.
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
 * Makes the condition "key operator ANY (values)", or "key operator value" if
 * there is only one value.  Returns NULL if there are no values or no such
 * operator.
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
	/* integers may be int4 or int8, but an array needs one type */
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

/*
 * Returns the strategy number of an operator in the default btree family of a
 * type, or 0 if the operator is not in this family.
 */
static int
btree_strategy(Oid operator, Oid type)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_BTREE_OPFAMILY);

	return OidIsValid(entry->btree_opf) ?
		get_op_opfamily_strategy(operator, entry->btree_opf) : 0;
}

/*
 * Returns whether a text is an integer between least and greatest, in exactly
 * the form that PostgreSQL prints.  Sets *n to the integer.
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
	/* this is false for NaN, too */
	if (!(fabs(number) < limit) || number != floor(number))
		return false;
	*n = (int64) number;
	return true;
}

/*
 * Sets *n to the integer that a constant equals.  Returns false if there is no
 * such integer, or if a cast to the constant's type could turn another integer
 * into the same constant.
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
 * Returns the key if it is an integer that the left side casts to another type
 * of number, and NULL otherwise.
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

/*
 * Returns the value that the type prints as this text.  Returns NULL if no
 * value has this text, or if several values may have it.
 */
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

/* Returns the key if the left side casts it to text, and NULL otherwise. */
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
 * Prepends to *names the names that a path (a constant of type text[])
 * contains.  Returns false if the path is empty or contains NULL or a number,
 * which may be an index into an array.
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
 * If the left side is key -> 'a' -> 'b', perhaps with ->>, #> or #>>, returns
 * the key, and sets *names to the names in their order (here a and b) and
 * *is_text to whether the result is text.  Otherwise returns NULL.
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
		Oid			opcode;

		if (!is_opclause(step) || list_length(step->args) != 2)
			return NULL;
		name = lsecond(step->args);
		if (!IsA(name, Const) || name->constisnull)
			return NULL;
		opcode = get_opcode(step->opno);
		/* only the outermost operator can be these: text has no fields */
		if (opcode == F_JSONB_OBJECT_FIELD_TEXT ||
			opcode == F_JSONB_EXTRACT_PATH_TEXT)
			*is_text = true;
		switch (opcode)
		{
			case F_JSONB_OBJECT_FIELD_TEXT:
			case F_JSONB_OBJECT_FIELD:
				*names = lcons(TextDatumGetCString(name->constvalue), *names);
				break;
			case F_JSONB_EXTRACT_PATH_TEXT:
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

/* Makes the document {"a": {"b": value}} if the names are a and b. */
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
 * Adds documents to rewrite->values.  If a row's document has this text (as
 * ->> returns it) at the path that the names give, the row's document contains
 * one of the documents added.  Returns false if no such documents can be made.
 */
static bool
add_texts(Rewrite *rewrite, const List *names, const char *text)
{
	JsonbValue	value = {.type = jbvString};
	const char *digits = &text[text[0] == '-'];

	/*
	 * this may be the text of an object, an array, or a number of any length
	 */
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
 * Adds a document to rewrite->values.  If a row's document has this value at
 * the path that the names give, the row's document contains the document
 * added.
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
		/* @> also holds if the document has more members or elements */
		value.type = jbvBinary;
		value.val.binary.data = &jsonb->root;
		value.val.binary.len = VARSIZE(jsonb) - VARHDRSZ;
		rewrite->beside = true;
	}
	rewrite->values = lappend(rewrite->values, make_document(names, &value));
}

/*
 * Returns whether the UTC offset of the session's time zone stays the same
 * near the midnight at which this day begins.  Then this midnight occurs
 * exactly once in local time.  Of the moments within three days of this
 * midnight, those before it belong to earlier days, and all others do not.
 */
static bool
is_plain_midnight(DateADT day)
{
	pg_time_t	midnight = ((pg_time_t) day +
							POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) *
	SECS_PER_DAY;				/* local time, in seconds */
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

/* Returns an expression for the date plus `days` days. */
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

/*
 * Rewrites a comparison of key::date with a date as a range of the key.  The
 * range begins at midnight `low` days after the date, and ends before midnight
 * `high` days after the date.
 */
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
		/*
		 * the date may be infinity, which does not change when days are
		 * added, so the range must include its end
		 */
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
 * Adds values to rewrite->values for a comparison of the left side with this
 * constant.  If the comparison is true, the operator with key_strategy holds
 * for the key and one of the values added.  The converse is also true, unless
 * rewrite->beside is set.  Adds no value if the comparison is never true.
 * Returns false if no such values are known.
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

/*
 * Rewrites "left operator constant" or "left = ANY (constant array)" as a
 * comparison of the key with constants.
 */
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

/* Rewrites "value = ANY (key)" as "key @> ARRAY[value]". */
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
	/* @> uses the column's collation, so the operator must use it, too */
	if (comparison->collation != exprCollation(key) ||
		(OidIsValid(collation) && collation != comparison->collation))
		return NULL;
	return make_condition(rewrite, IVFPQ_CONTAINS_STRATEGY, key,
						  make_array(list_make1(value)));
}

/* Exchanges the sides.  Sets the operator to its commutator or InvalidOid. */
static void
commute(IvfpqComparison *comparison)
{
	Node	   *left = comparison->left;

	comparison->left = comparison->right;
	comparison->right = left;
	comparison->operator = get_commutator(comparison->operator);
}

/* Rewrites "key = a OR key = b" as "key = ANY (ARRAY[a, b])". */
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

/* Rewrites "text key = constant of type name" with a constant of type text. */
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

/*
 * Sets *comparison to the parts of a clause.  Returns false if the clause is
 * not a comparison of two sides.
 */
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
 * Rewrites a condition that the key does not answer.  Returns a condition that
 * the key answers, or NULL if there is none.  If *beside is set, the result
 * must be added to the original condition, and otherwise it replaces that
 * condition.
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
