/*
 * selection.c
 *		gpuvec_select returns the smallest elements of a real[], and
 *		gpuvec_quantiles the elements at given ranks (engine/gv_select.h).
 *
 * Unlike vectors, these arrays may contain infinities and NaN, which sorts
 * last.  gpuvec_select's column pos is the element's subscript in the array,
 * so that vals[pos] is val even if the array does not begin at 1.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "am/common/enginecall.h"
#include "set/set.h"

PG_FUNCTION_INFO_V1(gpuvec_select);
PG_FUNCTION_INFO_V1(gpuvec_quantiles);

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

/*
 * Asks gpuvecd to do the work.  The arguments are as in find_values(), with
 * the n numbers in `output`.  Returns false if gpuvecd failed.
 */
static bool
ask_server(const GvSetSpec *spec, const int64 *ranks, const float4 *elements,
		   GvSetOutput output, int64 n, int64 *numbers, float4 *values)
{
	IvfpqLocalSet *work = IvfpqLocalSetBegin(spec, IVFPQ_WORK_SERVER);
	GvSetDone	done;
	bool		answered;

	answered = (ranks == NULL ||
				IvfpqLocalSetPut(work, GV_SET_RANKS, ranks, n)) &&
		IvfpqLocalSetPut(work, GV_SET_ROWS, elements, spec->nrows) &&
		IvfpqLocalSetRun(work, &done) &&
		IvfpqLocalSetGet(work, output, 0, n, numbers) &&
		IvfpqLocalSetGet(work, GV_SET_VALUES, 0, n, values);
	IvfpqLocalSetEnd(work);
	return answered;
}

/*
 * Selects from the elements, at gpuvecd if that is worthwhile.  Sets `values`
 * to the elements that were found.  GV_SET_SELECT: sets `numbers` to their
 * positions; `ranks` is NULL.  GV_SET_QUANTILES: sets `numbers` to each
 * element's rank minus the rank that was requested.
 */
static void
find_values(const GvSetSpec *spec, const int64 *ranks, const float4 *elements,
			int64 *numbers, float4 *values)
{
	if (IvfpqLocalSetChoose(spec) == IVFPQ_WORK_SERVER &&
		ask_server(spec, ranks, elements,
				   ranks == NULL ? GV_SET_POSITIONS : GV_SET_RANK_ERRORS,
				   ranks == NULL ? spec->k : spec->nqueries, numbers, values))
		return;
	if (ranks == NULL)
	{
		GvSelect	select = {.rows = 1, .columns = spec->nrows, .k = spec->k,
		.method = (GvSelectMethod) spec->method};
		uint32	   *found = alloc_aligned(spec->k, sizeof(uint32));
		void	   *scratch = alloc_aligned(gv_select_scratch(&select), 1);

		IvfpqCheckStatus(gv_select(&select, elements, found, values, scratch,
								   &ivfpq_stop));
		for (int i = 0; i < spec->k; i++)
			numbers[i] = found[i];
	}
	else
	{
		int			nranks = (int) spec->nqueries;
		bool		approximate = spec->approximate;
		void	   *scratch =
		alloc_aligned(gv_quantiles_scratch(spec->nrows, nranks, approximate),
					  1);

		IvfpqCheckStatus(gv_quantiles(elements, spec->nrows, ranks, nranks,
									  approximate, values, numbers, scratch,
									  &ivfpq_stop));
	}
}

/*
 * gpuvec_select(vals real[], k integer, method text)
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
	int			n = count_elements(array, "vals");
	GvSetSpec	spec = {.kind = GV_SET_SELECT, .dims = 1, .k = Min(k, n),
	.method = method, .nrows = n};
	int64	   *positions;
	float4	   *selected;

	check_k(k, method);
	InitMaterializedSRF(fcinfo, 0);
	if (n == 0)
		return (Datum) 0;
	positions = alloc_aligned(spec.k, sizeof(int64));
	selected = alloc_aligned(spec.k, sizeof(float4));
	find_values(&spec, NULL, (const float4 *) ARR_DATA_PTR(array), positions,
				selected);
	for (int i = 0; i < spec.k; i++)
	{
		Datum		row[2];
		bool		nulls[2] = {false};

		CHECK_FOR_INTERRUPTS();
		row[0] = Int32GetDatum(ARR_LBOUND(array)[0] + (int32) positions[i]);
		row[1] = Float4GetDatum(selected[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row, nulls);
	}
	return (Datum) 0;
}

/*
 * Converts the user's ranks, which count from 1, to the engine's ranks, which
 * count from 0.  Raises an ERROR if a rank is not between 1 and n.
 */
static int64 *
read_ranks(ArrayType *array, int nranks, int n)
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
							 n)));
		ranks[i] = given[i] - 1;
	}
	return ranks;
}

/*
 * gpuvec_quantiles(vals real[], ranks bigint[], approximate boolean)
 *
 * Returns rows (rank, val, rank_error), in the order of the ranks.  If vals is
 * empty, returns no rows, whatever the ranks are.
 */
Datum
gpuvec_quantiles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	ArrayType  *rank_array = PG_GETARG_ARRAYTYPE_P(1);
	int			n = count_elements(array, "vals");
	int			nranks = count_elements(rank_array, "ranks");
	GvSetSpec	spec = {.kind = GV_SET_QUANTILES, .dims = 1,
		.approximate = PG_GETARG_BOOL(2), .nqueries = nranks,
	.nrows = n};
	int64	   *ranks;
	int64	   *rank_errors;
	float4	   *quantiles;

	InitMaterializedSRF(fcinfo, 0);
	if (n == 0 || nranks == 0)
		return (Datum) 0;
	ranks = read_ranks(rank_array, nranks, n);
	quantiles = alloc_aligned(nranks, sizeof(float4));
	rank_errors = alloc_aligned(nranks, sizeof(int64));
	find_values(&spec, ranks, (const float4 *) ARR_DATA_PTR(array),
				rank_errors, quantiles);
	for (int i = 0; i < nranks; i++)
	{
		Datum		row[3];
		bool		nulls[3] = {false};

		CHECK_FOR_INTERRUPTS();
		row[0] = Int64GetDatum(ranks[i] + 1);
		row[1] = Float4GetDatum(quantiles[i]);
		row[2] = Int64GetDatum(rank_errors[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row, nulls);
	}
	return (Datum) 0;
}
