/*
 * selection.c
 *		gpuvec_select returns the smallest elements of an array,
 *		gpuvec_quantiles the elements at given ranks, and gpuvec_percentiles
 *		the values at given fractions of a table's column
 *		(engine/gv_select.h).  Values are real or double precision.
 *
 * Unlike vectors, these arrays may contain infinities and NaN, which sorts
 * last.  gpuvec_select's column pos is the element's subscript in the array,
 * so that vals[pos] is val even if the array does not begin at 1.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/common/enginecall.h"
#include "am/common/util.h"
#include "pgcompat.h"
#include "set/set.h"

/* Rows between two reports of the progress. */
#define PROGRESS_EVERY	4096

PG_FUNCTION_INFO_V1(gpuvec_select);
PG_FUNCTION_INFO_V1(gpuvec_quantiles);
PG_FUNCTION_INFO_V1(gpuvec_percentiles);

/* Values to select from. */
typedef struct Values
{
	void	   *items;			/* [n] float8 if `doubles`, otherwise float4 */
	int64		n;
	bool		doubles;
} Values;

/*
 * Returns the number of elements of an array.  Raises an ERROR if the array
 * has several dimensions or a NULL element.  `name` is the argument's name.
 */
static int
count_elements(ArrayType *array, const char *name)
{
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must be a one-dimensional array, not %d-dimensional",
						name, ARR_NDIM(array)),
				 errhint("Pass one row at a time.")));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("NULL element not allowed in %s", name),
				 errhint("Remove it with array_remove, or replace it with array_replace.")));
	return ARR_NDIM(array) == 0 ? 0 : ARR_DIMS(array)[0];
}

/*
 * Returns the elements of an array of real or double precision.  Raises an
 * ERROR if it is of another type.
 */
static Values
array_values(ArrayType *array)
{
	Oid			type = getBaseType(ARR_ELEMTYPE(array));
	Values		values = {ARR_DATA_PTR(array), count_elements(array, "vals"),
	type == FLOAT8OID};

	if (type != FLOAT4OID && type != FLOAT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("cannot select from elements of type %s",
						format_type_be(type)),
				 errhint("Cast vals to real[] or double precision[].")));
	return values;
}

/*
 * Returns the selection method with this name.  Raises an ERROR if the name is
 * unknown.
 */
static GvSelectMethod
find_method(const char *name)
{
	GvSelectMethod method;

	for (method = GV_SELECT_AUTO; method < GV_NSELECT; method++)
		if (strcmp(name, gv_select_name(method)) == 0)
			return method;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown selection method \"%s\"", name),
			 errhint("Use \"auto\", \"warp\", \"sample\" or \"multi\".")));
}

static void
check_k(int k, GvSelectMethod method)
{
	if (k < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"k\" must be at least 1, not %d", k),
				 errhint("\"k\" is the number of elements to return.")));
	if (method == GV_SELECT_WARP && k > GV_WARP_MAX_K)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("method \"warp\" supports at most %d elements, not %d",
						GV_WARP_MAX_K, k),
				 errhint("Use method \"auto\", \"sample\" or \"multi\".")));
}

/* Allocates n elements of `size` bytes, aligned as the engine requires. */
static void *
alloc_aligned(Size n, Size size)
{
	void	   *chunk = palloc_extended(n * size + GV_ALIGN, MCXT_ALLOC_HUGE);

	return (void *) TYPEALIGN(GV_ALIGN, chunk);
}

static Size
value_size(bool doubles)
{
	return doubles ? sizeof(float8) : sizeof(float4);
}

/* Returns value i, as a datum of its type. */
static Datum
value_datum(const Values *values, int64 i)
{
	return values->doubles ? Float8GetDatum(((float8 *) values->items)[i]) :
		Float4GetDatum(((float4 *) values->items)[i]);
}

/*
 * Asks gpuvecd to do the work.  The arguments are as in find_values(), with
 * the numbers in `output`.  Returns false if gpuvecd failed.
 */
static bool
ask_server(const GvSetSpec *spec, const int64 *ranks, const Values *from,
		   GvSetOutput output, int64 *numbers, Values *found)
{
	IvfpqLocalSet *work = IvfpqLocalSetBegin(spec, IVFPQ_WORK_SERVER);
	GvSetDone	done;
	bool		answered;

	answered = (ranks == NULL ||
				IvfpqLocalSetPut(work, GV_SET_RANKS, ranks, found->n)) &&
		IvfpqLocalSetPut(work, GV_SET_ROWS, from->items, from->n) &&
		IvfpqLocalSetRun(work, &done) &&
		IvfpqLocalSetGet(work, output, 0, found->n, numbers) &&
		IvfpqLocalSetGet(work, GV_SET_VALUES, 0, found->n, found->items);
	IvfpqLocalSetEnd(work);
	return answered;
}

/*
 * Selects from values, at gpuvecd if that is worthwhile.  Returns the values
 * that were found.  GV_SET_SELECT: sets *numbers to their positions; `ranks` is
 * NULL.  GV_SET_QUANTILES: sets *numbers to each value's rank minus the rank
 * that was requested.
 */
static Values
find_values(GvSetSpec *spec, const int64 *ranks, const Values *from,
			int64 **numbers)
{
	int			n = ranks == NULL ? spec->k : (int) spec->nqueries;
	Values		found = {alloc_aligned(n, value_size(from->doubles)), n,
	from->doubles};

	spec->dims = from->doubles ? 2 : 1;
	spec->nrows = from->n;
	*numbers = alloc_aligned(n, sizeof(int64));
	if (IvfpqLocalSetChoose(spec) == IVFPQ_WORK_SERVER &&
		ask_server(spec, ranks, from, ranks == NULL ? GV_SET_POSITIONS :
				   GV_SET_RANK_ERRORS, *numbers, &found))
		return found;
	if (ranks == NULL)
	{
		GvSelect	select = {1, from->n, n, (GvSelectMethod) spec->method,
		from->doubles};
		uint32	   *positions = alloc_aligned(n, sizeof(uint32));
		void	   *scratch = alloc_aligned(gv_select_scratch(&select), 1);

		IvfpqCheckStatus(gv_select(&select, from->items, positions,
								   found.items, scratch, &ivfpq_stop));
		for (int i = 0; i < n; i++)
			(*numbers)[i] = positions[i];
	}
	else
	{
		GvQuantiles quantiles = {from->n, n, spec->approximate, from->doubles};
		void	   *scratch = alloc_aligned(gv_quantiles_scratch(&quantiles), 1);

		IvfpqCheckStatus(gv_quantiles(&quantiles, from->items, ranks,
									  found.items, *numbers, scratch,
									  &ivfpq_stop));
	}
	return found;
}

/*
 * gpuvec_select(vals anyarray, k integer, method text)
 *
 * Returns rows (pos, val), the smallest element first.  If there are fewer
 * than k elements, returns all of them, as LIMIT does.
 */
Datum
gpuvec_select(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	int			k = PG_GETARG_INT32(1);
	GvSelectMethod method = find_method(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	Values		values = array_values(array);
	GvSetSpec	spec = {.kind = GV_SET_SELECT, .k = (int) Min(k, values.n),
	.method = method};
	Values		found;
	int64	   *positions;

	check_k(k, method);
	InitMaterializedSRF(fcinfo, 0);
	if (values.n == 0)
		return (Datum) 0;
	found = find_values(&spec, NULL, &values, &positions);
	for (int i = 0; i < spec.k; i++)
	{
		Datum		row[2];
		bool		nulls[2] = {false};

		CHECK_FOR_INTERRUPTS();
		row[0] = Int32GetDatum(ARR_LBOUND(array)[0] + (int32) positions[i]);
		row[1] = value_datum(&found, i);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row, nulls);
	}
	return (Datum) 0;
}

/*
 * Converts the user's ranks, which count from 1, to the engine's ranks, which
 * count from 0.  Raises an ERROR if a rank is not between 1 and n.
 */
static int64 *
read_ranks(ArrayType *array, int nranks, int64 n)
{
	const int64 *given = (const int64 *) ARR_DATA_PTR(array);
	int64	   *ranks = alloc_aligned(nranks, sizeof(int64));

	for (int i = 0; i < nranks; i++)
	{
		if (given[i] < 1 || given[i] > n)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("rank %lld is out of range",
							(long long) given[i]),
					 errhint("Ranks must be between 1 and %d, the number of elements.",
							 (int) n)));
		ranks[i] = given[i] - 1;
	}
	return ranks;
}

/*
 * gpuvec_quantiles(vals anyarray, ranks bigint[], approximate boolean)
 *
 * Returns rows (rank, val, rank_error), in the order of the ranks.  If vals is
 * empty, returns no rows, whatever the ranks are.
 */
Datum
gpuvec_quantiles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *rank_array = PG_GETARG_ARRAYTYPE_P(1);
	Values		values = array_values(PG_GETARG_ARRAYTYPE_P(0));
	int			nranks = count_elements(rank_array, "ranks");
	GvSetSpec	spec = {.kind = GV_SET_QUANTILES,
	.approximate = PG_GETARG_BOOL(2), .nqueries = nranks};
	int64	   *ranks;
	int64	   *rank_errors;
	Values		found;

	InitMaterializedSRF(fcinfo, 0);
	if (values.n == 0 || nranks == 0)
		return (Datum) 0;
	ranks = read_ranks(rank_array, nranks, values.n);
	found = find_values(&spec, ranks, &values, &rank_errors);
	for (int i = 0; i < nranks; i++)
	{
		Datum		row[3];
		bool		nulls[3] = {false};

		CHECK_FOR_INTERRUPTS();
		row[0] = Int64GetDatum(ranks[i] + 1);
		row[1] = value_datum(&found, i);
		row[2] = Int64GetDatum(rank_errors[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row, nulls);
	}
	return (Datum) 0;
}

/* Appends a value of the type of `values`, which have memory for *most. */
static void
append_value(Values *values, int64 *most, Datum value)
{
	if (values->n == GV_SELECT_MAX_N)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("cannot select from more than %lld values",
						(long long) GV_SELECT_MAX_N)));
	if (values->doubles)
	{
		float8	   *items = values->items;

		IvfpqGrow(items, values->n, *most);
		items[values->n++] = DatumGetFloat8(value);
		values->items = items;
	}
	else
	{
		float4	   *items = values->items;

		IvfpqGrow(items, values->n, *most);
		items[values->n++] = DatumGetFloat4(value);
		values->items = items;
	}
}

/*
 * Reads the values of a column, under the active snapshot.  Raises an ERROR if
 * the caller may not read all rows and the column, or if the column is of
 * another type.
 */
static Values
read_column(Oid relid, const char *name)
{
	Relation	rel = IvfpqTableRelation(relid);
	Values		values = {NULL, 0, false};
	int64		most = 0;
	int64		nrows = 0;
	Oid			type;
	AttrNumber	column = IvfpqTableColumn(rel, name, &type);
	TupleTableSlot *slot;
	TableScanDesc scan;

	if (type != FLOAT4OID && type != FLOAT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of type %s cannot be selected from",
						name, format_type_be(type)),
				 errhint("Values must be of type real or double precision.")));
	values.doubles = type == FLOAT8OID;
	slot = table_slot_create(rel, NULL);
	scan = IvfpqTableBeginScan(rel, GetActiveSnapshot());
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);

		CHECK_FOR_INTERRUPTS();
		if (++nrows % PROGRESS_EVERY == 0)
			IvfpqProgressDone(nrows);
		if (!isnull)
			append_value(&values, &most, value);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	relation_close(rel, NoLock);
	return values;
}

/*
 * gpuvec_percentiles(rel regclass, value_column name,
 *					  fractions double precision[], approximate boolean)
 *
 * Returns rows (fraction, val, rank, rank_error), in the order of the
 * fractions.  The rank of a fraction is that of percentile_disc.
 */
Datum
gpuvec_percentiles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(2);
	int			n = count_elements(array, "fractions");
	const float8 *fractions = (const float8 *) ARR_DATA_PTR(array);
	GvSetSpec	spec = {.kind = GV_SET_QUANTILES,
	.approximate = PG_GETARG_BOOL(3), .nqueries = n};
	int64	   *ranks = alloc_aligned(n, sizeof(int64));
	int64	   *rank_errors;
	Values		values;
	Values		found;

	for (int i = 0; i < n; i++)
		if (!(fractions[i] >= 0 && fractions[i] <= 1))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("fraction %g is not between 0 and 1",
							fractions[i])));
	InitMaterializedSRF(fcinfo, 0);
	IvfpqProgressBegin(IVFPQ_PROGRESS_PERCENTILES, PG_GETARG_OID(0));
	values = read_column(PG_GETARG_OID(0), NameStr(*PG_GETARG_NAME(1)));
	IvfpqProgressEnd();
	if (values.n == 0 || n == 0)
		return (Datum) 0;
	for (int i = 0; i < n; i++)
		ranks[i] = Max((int64) ceil(fractions[i] * values.n), 1) - 1;
	found = find_values(&spec, ranks, &values, &rank_errors);
	for (int i = 0; i < n; i++)
	{
		Datum		row[4];
		bool		nulls[4] = {false};

		CHECK_FOR_INTERRUPTS();
		row[0] = Float8GetDatum(fractions[i]);
		row[1] = found.doubles ? value_datum(&found, i) :
			Float8GetDatum(((float4 *) found.items)[i]);
		row[2] = Int64GetDatum(ranks[i] + 1);
		row[3] = Int64GetDatum(rank_errors[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row, nulls);
	}
	return (Datum) 0;
}
