/*
 * searches.c
 *		See searches.h.
 */
#include "searches.h"

/* Of emulate/ and of CUDA's runtime: one of them is there. */
extern size_t gv_emulated_used(int device) __attribute__((weak));
extern int	cudaMemGetInfo(size_t *nfree, size_t *total) __attribute__((weak));

int64_t
device_used(void)
{
	size_t		nfree = 0;
	size_t		total = 0;

	if (&gv_emulated_used != NULL)
		return (int64_t) gv_emulated_used(0);
	CHECK(cudaMemGetInfo(&nfree, &total) == 0, "memory");
	return (int64_t) (total - nfree);
}

/* Of vector i of n. */
static float
component(Look look, int64_t i, int64_t n)
{
	float		x = unit_float() + unit_float() + unit_float();

	switch (look)
	{
		case LOOK_NORMAL:
			break;
		case LOOK_CLUSTERED:
			return 0.3f * x + (float) ((i * 7 / n * 31) % 5);
		case LOOK_TIES:
			return floorf(1.5f * x);
		case LOOK_SAME:
			return 0.25f;
		case LOOK_OFFSET:
			return 1000.0f + 0.01f * x;
		case LOOK_ZEROS:
			return i % 3 == 0 ? (i % 2 == 0 ? 0.0f : 1.5f) : x;
		case LOOK_RANGE:
			return x * powf(10.0f, (float) (i % 61 - 30));
		case LOOK_OUTLIER:
			return i == n / 2 ? 1e6f * x : x;
		case LOOK_TINY:
			return x * 1e-42f;
		case LOOK_COMING:
			return x * (float) (n + 2 - i) / (float) n;
		case LOOK_MIXED:
			return 0.3f * x + (float) (i * 7 % 11);
		case LOOK_OUTLIERS:
			return i % 97 == 50 ? 1e6f * x : x;
	}
	return x;
}

float *
look_vectors(Look look, int64_t n, int32_t dims)
{
	float	   *x = unit_alloc(sizeof(float) * (size_t) (n * dims));
	int64_t		i;

	for (i = 0; i < n * dims; i++)
		x[i] = component(look, i / dims, n);
	return x;
}

void
free_search_inputs(SearchInputs *in)
{
	unit_free(in->queries);
	unit_free(in->rows);
	unit_free(in->self);
	if (in->lists != NULL)
		unit_free(in->lists);
}

/* Centroids in two pieces; not the rows. */
static GvStatus
put_question(const GvSetOps *ops, void *state, const GvSetSpec *spec,
			 const SearchInputs *in)
{
	int32_t		half = spec->nlists / 2;
	GvStatus	status = GV_OK;

	if (!spec->own)
		status = ops->put(state, GV_SET_QUERIES, in->queries, 0,
						  spec->nqueries, NULL);
	if (status == GV_OK && spec->self)
		status = ops->put(state, GV_SET_SELF, in->self, 0, spec->nqueries,
						  NULL);
	if (status == GV_OK && half > 0)
		status = ops->put(state, GV_SET_LISTS, in->lists, 0, half, NULL);
	if (status == GV_OK && spec->nlists > 0)
		status = ops->put(state, GV_SET_LISTS,
						  in->lists + (size_t) half * spec->dims, half,
						  spec->nlists - half, NULL);
	return status;
}

/* Rows in batches. */
static GvStatus
put_rows(const GvSetOps *ops, void *state, const GvSetSpec *spec,
		 const SearchInputs *in, const GvStop *stop)
{
	GvStatus	status = GV_OK;
	int64_t		i;

	for (i = 0; i < spec->nrows && status == GV_OK; i += in->batch)
		status = ops->put(state, GV_SET_ROWS, in->rows + i * spec->dims, i,
						  spec->nrows - i < in->batch ? spec->nrows - i :
						  in->batch, stop);
	return status;
}

/* Distances in two pieces that begin and end inside a query's. */
static GvStatus
get_outputs(const GvSetOps *ops, void *state, const GvSetSpec *spec,
			const SearchOutputs *out)
{
	int64_t		n = spec->nqueries * spec->k;
	int64_t		third = n / 3;
	GvStatus	status;

	status = ops->get(state, GV_SET_POSITIONS, 0, n, out->positions);
	if (status == GV_OK)
		status = ops->get(state, GV_SET_DISTANCES, 0, third, out->distances);
	if (status == GV_OK)
		status = ops->get(state, GV_SET_DISTANCES, third, n - third,
						  out->distances + third);
	return status;
}

GvStatus
run_search(const GvSetOps *ops, const GvSetSpec *spec,
		   const SearchInputs *in, const GvStop *stop,
		   const SearchOutputs *out)
{
	void	   *state = NULL;
	GvSetDone	done;
	GvStatus	status = ops->create(spec, &state);

	if (status != GV_OK)
		return status;
	status = put_question(ops, state, spec, in);
	if (status == GV_OK)
		status = put_rows(ops, state, spec, in, stop);
	if (status == GV_OK)
		status = ops->run(state, &done, stop);
	if (status == GV_OK && out != NULL)
		status = get_outputs(ops, state, spec, out);
	ops->drop(state);
	return status;
}

GvStatus
keep_rows(const GvSetOps *ops, const GvSetSpec *spec, const SearchInputs *in,
		  void **state)
{
	GvSetSpec	keeper = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = spec->dims,.k = 1,.own = 1,.nrows = spec->nrows + 3};
	GvStatus	status = ops->create(&keeper, state);

	return status == GV_OK ? put_rows(ops, *state, spec, in, NULL) : status;
}

GvStatus
ask_search(const GvSetOps *ops, void *state, const GvSetSpec *spec,
		   const SearchInputs *in, const SearchOutputs *out)
{
	GvSetSpec	asked = *spec;
	GvSetDone	done;
	GvStatus	status;

	asked.nrows += 3;			/* as in keep_rows */
	status = ops->ask(state, &asked);
	if (status == GV_OK)
		status = put_question(ops, state, &asked, in);
	if (status == GV_OK)
		status = ops->run(state, &done, NULL);
	return status == GV_OK ? get_outputs(ops, state, &asked, out) : status;
}

static bool
is_same(double a, double b)
{
	return (a != a && b != b) || memcmp(&a, &b, sizeof(a)) == 0;
}

int64_t
count_differences(const GvSetSpec *spec, const SearchOutputs *a,
				  const SearchOutputs *b)
{
	int64_t		n = spec->nqueries * spec->k;
	int64_t		ndifferent = 0;
	int64_t		i;

	for (i = 0; i < n; i++)
		ndifferent += a->positions[i] != b->positions[i] ||
			!is_same(a->distances[i], b->distances[i]);
	return ndifferent;
}

bool
counts_down(void *arg)
{
	return --*(int *) arg < 0;
}
