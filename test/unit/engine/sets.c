/*
 * sets.c
 *		Sets for the checks of them, from the first call to the last.
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

/* See sets.h. */
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

/* See sets.h; errors [iterations + 1] are those of passes, or NULL. */
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
