/*
 * sets.c
 *		Inputs of sets for the checks of them, and sets from the first call to
 *		the last.
 */
#include "sets.h"

/* All rows, some at a time; the last batch is what is left. */
static GvStatus
put_rows(GvSet *set, const GvSetSpec *spec, const SetInputs *inputs,
		 const GvStop *stop)
{
	GvStatus	status = GV_OK;
	int64_t		first;

	for (first = 0; status == GV_OK && first < inputs->nrows;
		 first += inputs->batch)
	{
		int64_t		left = inputs->nrows - first;
		int64_t		n = left < inputs->batch ? left : inputs->batch;
		OWN float  *batch = unit_alloc(sizeof(float) * n * spec->dims);

		/* a batch of its own, so that nobody looks at it later */
		memcpy(batch, inputs->rows + first * spec->dims,
			   sizeof(float) * n * spec->dims);
		status = gv_set_put(set, GV_SET_ROWS, batch, n, stop);
	}
	return status;
}

/* A set that keeps rows, all of which are there, asked nothing or else before. */
static GvStatus
make_keeper(const GvSetSpec *spec, const SetInputs *inputs, GvSet **set)
{
	GvSetSpec	keeper = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = spec->dims,.k = 3,.own = 1,.nrows = spec->nrows,
	.nqueries = unit_random() % 2};
	GvSetDone	done;
	GvStatus	status = gv_set_create(&keeper, set);

	if (status == GV_OK)
		status = put_rows(*set, &keeper, inputs, NULL);
	if (status == GV_OK && keeper.nqueries > 0)
		status = gv_set_run(*set, &done, NULL);
	return status == GV_OK ? gv_set_ask(*set, spec) : status;
}

GvStatus
run_set(GvSet *set, const GvSetSpec *spec, const SetInputs *inputs,
		bool kept, const GvStop *stop, GvSetDone *done, double *errors)
{
	static const GvSetInput firsts[GV_NSETS] = {GV_SET_QUERIES, GV_SET_SEEDS,
	GV_SET_ROWS, GV_SET_RANKS};
	GvSetInput	input = spec->own ? GV_SET_ROWS : firsts[spec->kind];
	GvStatus	status = GV_OK;

	if (input != GV_SET_ROWS)
		status = gv_set_put(set, input, inputs->queries,
							spec->kind == GV_SET_KMEANS ? spec->k :
							spec->nqueries, stop);
	if (status == GV_OK && spec->self)
		status = gv_set_put(set, GV_SET_SELF, inputs->self, spec->nqueries,
							stop);
	if (status == GV_OK && spec->nlists > 0)
		status = gv_set_put(set, GV_SET_LISTS, inputs->lists, spec->nlists,
							stop);
	*done = (GvSetDone) {.again = !kept};
	while (status == GV_OK && !done->finished)
	{
		if (done->again)
			status = put_rows(set, spec, inputs, stop);
		if (status == GV_OK)
			status = gv_set_run(set, done, stop);
		if (status == GV_OK && errors != NULL)
			errors[done->passes - 1] = done->error;
	}
	return status;
}

GvSet *
finished_set(const GvSetSpec *spec, const SetInputs *inputs, GvSetDone *done,
			 double *errors)
{
	GvSet	   *set = NULL;
	/* of exact searches every second one is of rows that are there already */
	bool		kept = spec->kind == GV_SET_EXACT && unit_random() % 2;
	GvStatus	status = kept ? make_keeper(spec, inputs, &set) :
	gv_set_create(spec, &set);

	CHECK(gv_set_size(spec) > 0, "size");
	if (status == GV_OK)
		status = run_set(set, spec, inputs, kept, NULL, done, errors);
	CHECK(status == GV_OK, "status %d of kind %d", status, spec->kind);
	if (status == GV_OK)
		return set;
	gv_set_drop(set);
	return NULL;
}

void
find_neighbors(const GvSetSpec *spec, const SetInputs *inputs,
			   int64_t *positions, double *distances)
{
	int64_t		n = spec->nqueries * spec->k;
	int64_t		third = n / 3;
	GvSetDone	done;
	GvSet	   *set = finished_set(spec, inputs, &done, NULL);

	if (set == NULL)
		return;
	CHECK(done.passes == 1 && !done.again && done.found == 0, "done");
	/* distances in two pieces that begin and end inside a query's */
	OK(gv_set_get(set, GV_SET_POSITIONS, 0, n, positions));
	OK(gv_set_get(set, GV_SET_DISTANCES, 0, third, distances));
	OK(gv_set_get(set, GV_SET_DISTANCES, third, n - third, distances + third));
	gv_set_drop(set);
}

GvStatus
use_set(const GvSetSpec *spec, const float *rows, const GvStop *stop)
{
	static const int64_t ranks[] = {0, 1, 2};
	SetInputs	inputs = {spec->kind == GV_SET_QUANTILES ?
		(const void *) ranks : rows, NULL, rows, spec->nrows,
	spec->nrows / 2, rows};
	GvSet	   *set;
	GvSetDone	done;
	char		out[16];
	GvStatus	status = gv_set_create(spec, &set);

	if (status != GV_OK)
		return status;
	status = run_set(set, spec, &inputs, false, stop, &done, NULL);
	if (status == GV_OK)
		status = gv_set_get(set, spec->kind == GV_SET_KMEANS ? GV_SET_SIZES :
							spec->kind == GV_SET_EXACT ? GV_SET_POSITIONS :
							GV_SET_VALUES, 0, 1, out);
	if (status != GV_OK)
	{
		INVALID(gv_set_put(set, GV_SET_ROWS, rows, 1, NULL));
		INVALID(gv_set_run(set, &done, NULL));
		INVALID(gv_set_get(set, GV_SET_SIZES, 0, 1, out));
	}
	gv_set_drop(set);
	return status;
}

void
check_set_stops(const GvSetSpec *spec, int nasked)
{
	OWN float  *rows = unit_floats((size_t) spec->nrows * spec->dims, 1.0f);
	Patience	patience = {0, 0};
	GvStop		stop = {lose_patience, &patience};
	GvStatus	status;

	do
	{
		patience.asked = 0;
		patience.last++;
		status = use_set(spec, rows, &stop);
		CHECK((status == GV_OK) == (patience.asked < patience.last) &&
			  (status == GV_OK || status == GV_CANCELED),
			  "kind %d: status %d", spec->kind, status);
		/* one after the other takes long */
		patience.last += unit_small ? patience.last : patience.last / 4;
	} while (status != GV_OK);
	CHECK(patience.asked >= nasked, "kind %d asked %d times", spec->kind,
		  patience.asked);
}

/* ---------- vectors ---------- */

/* Vector `number`, for which rows [nrows] are there already. */
static void
make_vector(Kind kind, float *x, int32_t dims, int64_t number,
			const float *rows, int64_t nrows)
{
	float		size = 1.0f;
	float		offset = 0.0f;
	uint64_t	choice = unit_random();
	int32_t		i;

	if (kind == KIND_OFFSET)
		offset = 1000.0f;
	else if (kind == KIND_FAR_OFFSET)
		offset = 1e6f;
	else if (kind == KIND_CLUSTERED)
		offset = (float) (number / 50 % 11);
	else if (kind == KIND_TINY)
		size = 1e-30f;
	else if (kind == KIND_SUBNORMAL)
		size = 1e-43f;
	else if (kind == KIND_HUGE)
		size = 1e30f;
	else if (kind == KIND_MIXED)
		size = powf(10.0f, 30.0f * unit_float());
	else if (kind == KIND_OUTLIERS && number % 97 == 50)
		size = 1e6f;
	else if (kind == KIND_COMING)
		size = 1.0f / (1.0f + 0.01f * (float) number);
	for (i = 0; i < dims; i++)
		x[i] = offset + size * unit_float();
	for (i = 0; kind == KIND_FEW_VALUES && i < dims; i++)
		x[i] = (float) (unit_random() % 3);
	for (i = 0; (kind == KIND_ZEROS && choice % 3 == 0) && i < dims; i++)
		x[i] = choice % 2 ? 0.0f : 0.1f;
	for (i = 0; kind == KIND_ALL_EQUAL && i < dims; i++)
		x[i] = 0.5f + (float) i;
	/* by what half precision cannot hold of a number a little above 1 */
	for (i = 0; kind == KIND_ALIKE && i < dims; i++)
		x[i] = i > 0 ? x[0] :
			(choice % 2 ? 1.0f : -1.0f) * (1.0f + fabsf(x[0]) * 0x1p-9f);
	for (i = 0; kind == KIND_NEAR_TIES && nrows > 0 && choice % 2 && i < dims;
		 i++)
		x[i] = nextafterf(rows[i], x[i] > 0 ? 9.0f : -9.0f);
	if (kind == KIND_DUPLICATES && nrows > 0 && choice % 4 != 0)
		memcpy(x, rows + choice / 4 % nrows * dims, sizeof(float) * dims);
}

/*
 * Centroids of the rows' kind, some of them rows, some twice: lists of any
 * size, and lists that are not near themselves.
 */
static float *
make_lists(Kind kind, int32_t nlists, int32_t dims, const float *rows,
		   int64_t nrows)
{
	float	   *lists = unit_alloc(sizeof(float) * nlists * dims);
	int32_t		l;

	for (l = 0; l < nlists; l++)
	{
		uint64_t	choice = unit_random();

		if (choice % 4 == 0)
			memcpy(lists + l * dims, rows + choice / 4 % nrows * dims,
				   sizeof(float) * dims);
		else if (choice % 4 == 1 && l > 0)
			memcpy(lists + l * dims, lists + choice / 4 % l * dims,
				   sizeof(float) * dims);
		else
			make_vector(kind, lists + l * dims, dims, choice / 4 % nrows,
						rows, nrows);
	}
	return lists;
}

SetInputs
make_inputs(const GvSetSpec *spec, Kind kind, int64_t nrows)
{
	int32_t		dims = spec->dims;
	float	   *rows = unit_alloc(sizeof(float) * nrows * dims);
	float	   *queries = unit_alloc(sizeof(float) * spec->nqueries * dims);
	int64_t    *self = unit_alloc(sizeof(int64_t) * spec->nqueries);
	SetInputs	inputs = {queries, self, rows, nrows, nrows, NULL};
	int64_t		i;

	for (i = 0; i < nrows; i++)
		make_vector(kind, rows + i * dims, dims, i, rows, i);
	for (i = 0; i < spec->nqueries; i++)
	{
		int64_t		row = (int64_t) (unit_random() % nrows);

		self[i] = (int64_t) (unit_random() % (nrows + 3)) - 1;
		if (unit_random() % 3 == 0)
		{
			memcpy(queries + i * dims, rows + row * dims,
				   sizeof(float) * dims);
			if (unit_random() % 2)
				self[i] = row;
		}
		else
			make_vector(kind, queries + i * dims, dims, row, rows, nrows);
	}
	if (spec->nlists > 0)
		inputs.lists = make_lists(kind, spec->nlists, dims, rows, nrows);
	return inputs;
}

void
free_inputs(SetInputs *inputs)
{
	unit_free((void *) inputs->queries);
	unit_free((void *) inputs->self);
	unit_free((void *) inputs->rows);
	if (inputs->lists != NULL)
		unit_free((void *) inputs->lists);
}
