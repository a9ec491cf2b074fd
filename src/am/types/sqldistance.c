/*
 * sqldistance.c
 *		SQL's distance functions: those for real[], and those for two different
 *		types of vectors.
 *
 * The functions for real[] take a real[] on the left.  On the right they also
 * take an array of double precision, smallint, integer, bigint or numeric.
 * The elements of such an array are rounded to real first, as a cast to real[]
 * would do, so that a query gives the same distances whichever type a driver
 * sends.
 *
 * The mixed functions take two different types, such as (vector, real[]) or
 * (halfvec, vector), if there is a cast from one to the other.  They are
 * needed because pgvector casts vector to real[] implicitly.  Without an
 * operator for exactly these types, v <-> ARRAY[...] would call the operator
 * for real[], which no index on v supports.
 *
 * The planner replaces a mixed operator by a cast and pgvector's own operator,
 * as in v <-> ARRAY[...]::vector.  Every index on v supports this, including
 * pgvector's indexes.  If a call is not replaced, the mixed function itself
 * calls the cast and the operator.  There is one exception: if a real[] comes
 * from a table and the other value does not, as in ORDER BY e <->
 * '[1,2,3]'::vector, the other value is cast to real[] instead, so that an
 * index on e supports it.
 *
 * This file does not rely on how pgvector stores its types.  pgvector's own
 * cast converts the value, and pgvector's own operator computes the distance;
 * both are looked up in the catalogs.  An array that pgvector does not cast,
 * such as smallint[] or bigint[], is converted to real[] first.
 * IvfpqCastVector uses the same casts for queries that are not arguments of an
 * operator.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "catalog/pg_type_d.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/supportnodes.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "am/types/sqldistance.h"
#include "am/types/vector.h"
#include "engine/gv_engine.h"

/* Larger values are not remembered: comparing them would cost too much. */
#define MEMO_MAX_BYTES	(256 * 1024)

/*
 * The last value that a function converted, and the result of the conversion.
 * The memo is kept with the function's FmgrInfo, because a scan passes the
 * same query thousands of times.
 */
typedef struct Memo
{
	struct varlena *source;		/* NULL = the memo is empty */
	void	   *result;
} Memo;

/* How a mixed function computes the distance. */
typedef struct MixedPlan
{
	int			source;			/* argument to convert, 0 or 1 */
	Oid			target;			/* type of the other argument */
	bool		by_real;		/* source becomes real[] before the cast */
	Oid			cast;			/* function that casts source (or the real[]
								 * made from it) to target */
	int			cast_nargs;		/* 1 .. 3 */
	Oid			operator;		/* computes the distance of (target, target) */
} MixedPlan;

/* The state of one call site of a mixed function, allocated in fn_mcxt. */
typedef struct MixedCall
{
	MixedPlan	plan;
	FmgrInfo	cast;
	FmgrInfo	distance;
	Memo		memo;			/* last value converted */
} MixedCall;

PG_FUNCTION_INFO_V1(gpuvec_l2_distance);
PG_FUNCTION_INFO_V1(gpuvec_negative_inner_product);
PG_FUNCTION_INFO_V1(gpuvec_cosine_distance);
PG_FUNCTION_INFO_V1(gpuvec_vectors_to_real);
PG_FUNCTION_INFO_V1(gpuvec_mixed_l2);
PG_FUNCTION_INFO_V1(gpuvec_mixed_ip);
PG_FUNCTION_INFO_V1(gpuvec_mixed_cosine);
PG_FUNCTION_INFO_V1(gpuvec_mixed_l2_support);
PG_FUNCTION_INFO_V1(gpuvec_mixed_ip_support);
PG_FUNCTION_INFO_V1(gpuvec_mixed_cosine_support);

/*
 * Returns whether a value is equal to the value in the memo.  Compares bytes.
 * So a value that is only a pointer (to TOAST, or to an expanded object) never
 * matches, because the data behind the pointer can change.
 */
static bool
memo_matches(const Memo *memo, const struct varlena *value)
{
	return memo->source != NULL && !VARATT_IS_EXTERNAL(value) &&
		VARSIZE_ANY(memo->source) == VARSIZE_ANY(value) &&
		memcmp(memo->source, value, VARSIZE_ANY(value)) == 0;
}

/*
 * Replaces the contents of the memo by copies of a value and its result, which
 * are allocated in `context`.  Does nothing if memo_matches() could not
 * compare the value cheaply.
 */
static void
memo_set(Memo *memo, MemoryContext context,
		 const struct varlena *value,
		 const void *result, Size result_size)
{
	struct varlena *source;

	if (VARATT_IS_EXTERNAL(value) || VARSIZE_ANY(value) > MEMO_MAX_BYTES)
		return;

	if (memo->source != NULL)
		pfree(memo->source);
	memo->source = NULL;
	if (memo->result != NULL)
		pfree(memo->result);
	memo->result = NULL;

	memo->result = MemoryContextAlloc(context, result_size);
	memcpy(memo->result, result, result_size);
	source = MemoryContextAlloc(context, VARSIZE_ANY(value));
	memcpy(source, value, VARSIZE_ANY(value));
	memo->source = source;
}

/*
 * Returns the elements of a numeric[] as floats.  The floats are remembered
 * from call to call, because the conversion takes longer than anything else in
 * this file.  The array must be detoasted and at most MEMO_MAX_BYTES long.
 * The result belongs to flinfo, so the caller must not free it.
 */
static const float *
numeric_floats(FmgrInfo *flinfo, ArrayType *array, int *dims)
{
	Memo	   *memo = flinfo->fn_extra;
	const struct varlena *value = (const struct varlena *) array;

	if (memo == NULL)
	{
		memo = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(Memo));
		flinfo->fn_extra = memo;
	}
	if (!memo_matches(memo, value))
	{
		const float *values = IvfpqArrayFloats(array, dims);

		memo_set(memo, flinfo->fn_mcxt, value, values,
				 *dims * sizeof(float4));
		pfree(unconstify(float *, values));
	}
	*dims = ARR_DIMS(array)[0];
	return memo->result;
}

/*
 * Computes the distance between argument 0, a real[], and argument 1, an array
 * of any number type that IvfpqArrayFloats takes.  Raises an error if their
 * dimensions differ.  Frees all memory that it allocates, except the memo.
 */
static float8
compute_distance(FunctionCallInfo fcinfo, IvfpqRealDistance function)
{
	ArrayType  *a = PG_GETARG_ARRAYTYPE_P(0);
	ArrayType  *b = PG_GETARG_ARRAYTYPE_P(1);
	int			a_dims;
	int			b_dims;
	const float *x = IvfpqArrayFloats(a, &a_dims);
	const float *y;
	float8		distance;
	bool		remember;

	remember = ARR_ELEMTYPE(b) == NUMERICOID && fcinfo->flinfo != NULL &&
		VARSIZE(b) <= MEMO_MAX_BYTES;
	if (remember)
		y = numeric_floats(fcinfo->flinfo, b, &b_dims);
	else
		y = IvfpqArrayFloats(b, &b_dims);
	if (a_dims != b_dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("different vector dimensions %d and %d",
						a_dims, b_dims)));

	distance = function(x, y, a_dims);

	if (!remember && ARR_ELEMTYPE(b) != FLOAT4OID)
		pfree(unconstify(float *, y));
	PG_FREE_IF_COPY(a, 0);
	PG_FREE_IF_COPY(b, 1);
	return distance;
}

/* gpuvec_l2_distance(real[], array of numbers): Euclidean distance */
Datum
gpuvec_l2_distance(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_l2));
}

/* gpuvec_negative_inner_product(real[], array of numbers) */
Datum
gpuvec_negative_inner_product(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_ip));
}

/* gpuvec_cosine_distance(real[], array of numbers): 1 - cosine, or NaN */
Datum
gpuvec_cosine_distance(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_cosine));
}

/*
 * Returns the engine's function that computes the distance for one of the
 * three SQL functions above.  Returns NULL if `function` is another function.
 */
IvfpqRealDistance
IvfpqRealDistanceOf(const FmgrInfo *function)
{
	if (function->fn_addr == gpuvec_l2_distance)
		return gv_distance_l2;
	if (function->fn_addr == gpuvec_negative_inner_product)
		return gv_distance_ip;
	if (function->fn_addr == gpuvec_cosine_distance)
		return gv_distance_cosine;
	return NULL;
}

/*
 * Returns the engine's function for a metric, which computes in double whatever
 * type the vectors come from.
 */
IvfpqRealDistance
IvfpqDistanceOfMetric(GvMetric metric)
{
	return metric == GV_L2 ? gv_distance_l2 :
		metric == GV_IP ? gv_distance_ip : gv_distance_cosine;
}

/* Returns the function that casts source to target, or raises an error. */
static Oid
cast_function(Oid source, Oid target)
{
	Oid			function;

	if (find_coercion_pathway(target, source, COERCION_EXPLICIT, &function) !=
		COERCION_PATH_FUNC)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("cast from type %s to type %s does not exist", format_type_be(source),
						format_type_be(target)),
				 errhint("Install a version of pgvector that has this cast.")));
	return function;
}

/*
 * Returns the operator called `name` that takes (type, type), from the schema
 * of the type.  Raises an error if there is none.
 */
static Oid
distance_operator(const char *name, Oid type)
{
	HeapTuple	tuple;
	Oid			schema;
	Oid			operator;

	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	schema = ((Form_pg_type) GETSTRUCT(tuple))->typnamespace;
	ReleaseSysCache(tuple);

	operator = GetSysCacheOid4(OPERNAMENSP, Anum_pg_operator_oid,
							   CStringGetDatum(name),
							   ObjectIdGetDatum(type),
							   ObjectIdGetDatum(type),
							   ObjectIdGetDatum(schema));
	if (!OidIsValid(operator))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("type %s has no operator %s in its schema",
						format_type_be(type), name)));
	return operator;
}

/*
 * Plans how a mixed function computes the distance.  `name` is the name of its
 * operator.  The argument types come from the function's row in pg_proc,
 * because an index scan passes no expression from which they could be taken.
 */
static void
init_plan(MixedPlan *plan, Oid function, const char *name)
{
	Oid		   *types;
	int			ntypes;
	Oid			source;
	Oid			unused;

	get_func_signature(function, &types, &ntypes);
	if (ntypes != 2)
		elog(ERROR, "distance function %u has %d arguments",
			 function, ntypes);

	/*
	 * Convert the array.  If neither argument is an array, convert the
	 * argument that pgvector casts implicitly to the other's type.
	 */
	if (type_is_array(types[0]))
		plan->source = 0;
	else if (type_is_array(types[1]))
		plan->source = 1;
	else
		plan->source = find_coercion_pathway(types[1], types[0],
											 COERCION_IMPLICIT, &unused) ==
			COERCION_PATH_FUNC ? 0 : 1;
	plan->target = types[1 - plan->source];
	source = types[plan->source];
	plan->by_real = type_is_array(source) &&
		find_coercion_pathway(plan->target, source, COERCION_EXPLICIT,
							  &plan->cast) != COERCION_PATH_FUNC;
	plan->cast = cast_function(plan->by_real ? FLOAT4ARRAYOID : source,
							   plan->target);
	plan->cast_nargs = get_func_nargs(plan->cast);
	plan->operator = distance_operator(name, plan->target);
	pfree(types);
}

/* Calls a cast function, which has nargs arguments. */
static Datum
call_cast(FmgrInfo *cast, int nargs, Datum value)
{
	LOCAL_FCINFO(fcinfo, 3);
	Datum		result;

	InitFunctionCallInfoData(*fcinfo, cast, nargs, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = value;
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = Int32GetDatum(-1);	/* type modifier */
	fcinfo->args[1].isnull = false;
	fcinfo->args[2].value = BoolGetDatum(false);	/* implicit cast */
	fcinfo->args[2].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	if (fcinfo->isnull)
		elog(ERROR, "cast function %u returned NULL", cast->fn_oid);
	return result;
}

/* Casts the source argument of a call.  The result is palloc'd. */
static Datum
cast_source(MixedCall *call, Datum value)
{
	ArrayType  *array;
	ArrayType  *real;
	const float *floats;
	int			dims;
	Datum		result;

	if (!call->plan.by_real)
		return call_cast(&call->cast, call->plan.cast_nargs, value);

	array = DatumGetArrayTypeP(value);
	floats = IvfpqArrayFloats(array, &dims);
	real = IvfpqMakeReal(floats, dims);
	if (ARR_ELEMTYPE(array) != FLOAT4OID)
		pfree(unconstify(float *, floats));
	if ((Pointer) array != DatumGetPointer(value))
		pfree(array);
	result = call_cast(&call->cast, call->plan.cast_nargs,
					   PointerGetDatum(real));
	pfree(real);
	return result;
}

/*
 * Casts the source argument and computes the distance with the operator called
 * `name`.  Leaves no memory allocated except for the memo in fn_mcxt.
 */
static Datum
mixed_distance(FunctionCallInfo fcinfo, const char *name)
{
	FmgrInfo   *flinfo = fcinfo->flinfo;
	MixedCall  *call = flinfo->fn_extra;
	int			source;
	Datum		args[2] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	struct varlena *value;
	void	   *fresh = NULL;
	Datum		distance;

	if (call == NULL)
	{
		call = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(MixedCall));
		init_plan(&call->plan, flinfo->fn_oid, name);
		fmgr_info_cxt(call->plan.cast, &call->cast, flinfo->fn_mcxt);
		fmgr_info_cxt(get_opcode(call->plan.operator), &call->distance,
					  flinfo->fn_mcxt);
		/* set this last, so that an error above leaves no incomplete state */
		flinfo->fn_extra = call;
	}

	source = call->plan.source;
	value = (struct varlena *) DatumGetPointer(args[source]);
	if (memo_matches(&call->memo, value))
		args[source] = PointerGetDatum(call->memo.result);
	else
	{
		args[source] = cast_source(call, args[source]);
		fresh = DatumGetPointer(args[source]);
		memo_set(&call->memo, flinfo->fn_mcxt, value, fresh,
				 VARSIZE_ANY(fresh));
	}

	distance = FunctionCall2Coll(&call->distance, PG_GET_COLLATION(),
								 args[0], args[1]);
	if (fresh != NULL && fresh != (void *) value)
		pfree(fresh);
	return distance;
}

/* gpuvec_l2_distance(vector, real[]) and other mixed types */
Datum
gpuvec_mixed_l2(PG_FUNCTION_ARGS)
{
	return mixed_distance(fcinfo, "<->");
}

/* gpuvec_negative_inner_product(vector, real[]) and other mixed types */
Datum
gpuvec_mixed_ip(PG_FUNCTION_ARGS)
{
	return mixed_distance(fcinfo, "<#>");
}

/* gpuvec_cosine_distance(vector, real[]) and other mixed types */
Datum
gpuvec_mixed_cosine(PG_FUNCTION_ARGS)
{
	return mixed_distance(fcinfo, "<=>");
}

/*
 * Returns the operator called `name` that takes (real[], real[]) and by which
 * gpuivfpq can order, from any schema, or InvalidOid if there is none.
 */
static Oid
real_operator(const char *name)
{
	Oid			am = get_index_am_oid("gpuivfpq", true);
	Oid			operator = InvalidOid;
	CatCList   *operators;

	operators = SearchSysCacheList3(OPERNAMENSP, CStringGetDatum(name),
									ObjectIdGetDatum(FLOAT4ARRAYOID),
									ObjectIdGetDatum(FLOAT4ARRAYOID));
	for (int i = 0; i < operators->n_members; i++)
	{
		HeapTuple	tuple = &operators->members[i]->tuple;
		Oid			candidate = ((Form_pg_operator) GETSTRUCT(tuple))->oid;
		CatCList   *families = SearchSysCacheList2(AMOPOPID,
												   ObjectIdGetDatum(candidate),
												   CharGetDatum(AMOP_ORDER));

		for (int j = 0; j < families->n_members; j++)
		{
			tuple = &families->members[j]->tuple;
			if (((Form_pg_amop) GETSTRUCT(tuple))->amopmethod == am)
				operator = candidate;
		}
		ReleaseSysCacheList(families);
	}
	ReleaseSysCacheList(operators);
	return operator;
}

/*
 * Reverses the plan if the argument to convert is a real[] from a table and
 * the other argument is not from a table.  Then the other argument is
 * converted to real[] instead, so that an index on the table can be used.
 */
static void
prefer_real_column(MixedPlan *plan, const char *name, List *args)
{
	Node	   *source = list_nth(args, plan->source);
	Node	   *other = list_nth(args, 1 - plan->source);
	Oid			operator;

	if (exprType(source) != FLOAT4ARRAYOID ||
		!contain_vars_of_level(source, 0) || contain_vars_of_level(other, 0))
		return;
	operator = real_operator(name);
	if (!OidIsValid(operator))
		return;

	plan->cast = cast_function(plan->target, FLOAT4ARRAYOID);
	plan->cast_nargs = get_func_nargs(plan->cast);
	plan->source = 1 - plan->source;
	plan->target = FLOAT4ARRAYOID;
	plan->operator = operator;
}

/*
 * Planner support function of a mixed function, whose operator is called
 * `name`.  Replaces a call of the mixed function by a cast and an operator:
 * pgvector's operator or, if prefer_real_column() has reversed the plan, the
 * operator for real[].  Returns NULL for other requests.
 */
static Node *
mixed_support(Node *rawreq, const char *name)
{
	SupportRequestSimplify *req = (SupportRequestSimplify *) rawreq;
	MixedPlan	plan;
	Expr	   *args[2];
	Node	   *source;
	List	   *cast_args;
	Expr	   *result;

	if (!IsA(rawreq, SupportRequestSimplify) ||
		list_length(req->fcall->args) != 2)
		return NULL;

	init_plan(&plan, req->fcall->funcid, name);
	prefer_real_column(&plan, name, req->fcall->args);
	args[0] = linitial(req->fcall->args);
	args[1] = lsecond(req->fcall->args);

	source = (Node *) args[plan.source];
	if (plan.by_real)
		source = coerce_to_target_type(NULL, source, exprType(source),
									   FLOAT4ARRAYOID, -1, COERCION_EXPLICIT,
									   COERCE_EXPLICIT_CAST, -1);
	if (source == NULL)
		return NULL;
	cast_args = list_make1(source);
	if (plan.cast_nargs > 1)
		cast_args = lappend(cast_args,
							makeConst(INT4OID, -1, InvalidOid, sizeof(int32),
									  Int32GetDatum(-1), false, true));
	if (plan.cast_nargs > 2)
		cast_args = lappend(cast_args, makeBoolConst(false, false));
	args[plan.source] = (Expr *)
		eval_const_expressions(req->root, (Node *)
							   makeFuncExpr(plan.cast, plan.target, cast_args,
											InvalidOid, InvalidOid,
											COERCE_EXPLICIT_CAST));

	result = make_opclause(plan.operator, FLOAT8OID, false, args[0], args[1],
						   InvalidOid, req->fcall->inputcollid);
	set_opfuncid((OpExpr *) result);
	return (Node *) result;
}

/* planner support of gpuvec_mixed_l2 */
Datum
gpuvec_mixed_l2_support(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(mixed_support((Node *) PG_GETARG_POINTER(0), "<->"));
}

/* planner support of gpuvec_mixed_ip */
Datum
gpuvec_mixed_ip_support(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(mixed_support((Node *) PG_GETARG_POINTER(0), "<#>"));
}

/* planner support of gpuvec_mixed_cosine */
Datum
gpuvec_mixed_cosine_support(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(mixed_support((Node *) PG_GETARG_POINTER(0), "<=>"));
}

/*
 * Prepares *cast to convert vectors to values of a type, which is real[] or a
 * type to which real[] can be cast.  Allocates memory in the current context,
 * which must live as long as *cast.
 */
void
IvfpqCastBegin(IvfpqCast *cast, Oid type)
{
	cast->is_real = type == FLOAT4ARRAYOID;
	if (!cast->is_real)
		fmgr_info(cast_function(FLOAT4ARRAYOID, type), &cast->function);
}

/* Returns a vector as a value of the type of *cast, palloc'd. */
Datum
IvfpqCastVector(IvfpqCast *cast, const float *vector, int dims)
{
	Datum		real = PointerGetDatum(IvfpqMakeReal(vector, dims));

	if (cast->is_real)
		return real;
	return call_cast(&cast->function, cast->function.fn_nargs, real);
}

/* Returns a single vector as a value of a type, palloc'd. */
Datum
IvfpqCastReal(Oid type, const float *vector, int dims)
{
	IvfpqCast	cast;

	IvfpqCastBegin(&cast, type);
	return IvfpqCastVector(&cast, vector, dims);
}

/* Returns a real[][] of n vectors [dims], whose elements are not set. */
static ArrayType *
make_reals(int n, int dims)
{
	Size		size = ARR_OVERHEAD_NONULLS(2) +
	(Size) n * dims * sizeof(float4);
	ArrayType  *result;

	if (!AllocSizeIsValid(size))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("array of %d vectors of %d dimensions exceeds the maximum size of an array",
						n, dims),
				 errhint("Pass fewer vectors at a time.")));
	result = palloc(size);
	SET_VARSIZE(result, size);
	result->ndim = 2;
	result->dataoffset = 0;
	result->elemtype = FLOAT4OID;
	ARR_DIMS(result)[0] = n;
	ARR_DIMS(result)[1] = dims;
	ARR_LBOUND(result)[0] = ARR_LBOUND(result)[1] = 1;
	return result;
}

/*
 * gpuvec_vectors_to_real(vector[]) -> real[][], and the same for arrays of
 * pgvector's other types.  With this cast, a function that takes queries as
 * real[][] also takes arrays of pgvector's types.
 */
Datum
gpuvec_vectors_to_real(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	IvfpqType	type = {.type = ARR_ELEMTYPE(array), .has_toreal = true};
	MemoryContext oldcontext;
	MemoryContext context;		/* of one vector */
	ArrayIterator iterator;
	ArrayType  *result = NULL;
	char	   *next = NULL;	/* where the next vector goes */
	Datum		vector;
	bool		isnull;
	int			dims = 0;

	if (n == 0)
		PG_RETURN_ARRAYTYPE_P(construct_empty_array(FLOAT4OID));
	fmgr_info(cast_function(type.type, FLOAT4ARRAYOID), &type.toreal);
	IvfpqTypeStudy(&type);
	context = AllocSetContextCreate(CurrentMemoryContext, "gpuvec vector",
									ALLOCSET_DEFAULT_SIZES);
	iterator = array_create_iterator(array, 0, NULL);
	while (array_iterate(iterator, &vector, &isnull))
	{
		const float *floats;
		int			vector_dims;

		CHECK_FOR_INTERRUPTS();
		if (isnull)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("NULL element not allowed in an array of vectors"),
					 errhint("Remove rows without a vector.")));
		oldcontext = MemoryContextSwitchTo(context);
		floats = IvfpqValueFloats(&type, vector, &vector_dims);
		MemoryContextSwitchTo(oldcontext);
		if (result == NULL)
		{
			dims = vector_dims;
			result = make_reals(n, dims);
			next = ARR_DATA_PTR(result);
		}
		if (vector_dims != dims)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_EXCEPTION),
					 errmsg("vectors of an array must have the same number of dimensions"),
					 errhint("Remove vectors of other dimensions.")));
		memcpy(next, floats, dims * sizeof(float4));
		next += dims * sizeof(float4);
		MemoryContextReset(context);
	}
	array_free_iterator(iterator);
	MemoryContextDelete(context);
	PG_RETURN_ARRAYTYPE_P(result);
}
