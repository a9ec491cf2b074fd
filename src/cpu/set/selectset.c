/*
 * selectset.c
 *		Selections of values that come in batches.
 *
 * The values are kept until all have come.  Then gv_select or gv_quantiles
 * makes the selection.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/set/gv_cpu_set.h"

#define SLICE		(INT64_C(1) << 20)	/* values copied at a time */

typedef struct Selection
{
	GvSetSpec	spec;
	int64_t		n;				/* number of outputs */
	float	   *values;			/* [nrows] */
	int64_t    *ranks;			/* [n], for GV_SET_QUANTILES */
	float	   *selected;		/* [n] */
	uint32_t   *positions;		/* [n], for GV_SET_SELECT */
	int64_t    *rank_errors;	/* [n], for GV_SET_QUANTILES */
} Selection;

static bool
is_quantiles(const GvSetSpec *spec)
{
	return spec->kind == GV_SET_QUANTILES;
}

static GvSelect
select_spec(const GvSetSpec *spec)
{
	GvSelect	select = {1, spec->nrows, spec->k,
	(GvSelectMethod) spec->method};

	return select;
}

static size_t
scratch_bytes(const GvSetSpec *spec)
{
	GvSelect	select = select_spec(spec);

	return is_quantiles(spec) ?
		gv_quantiles_scratch(spec->nrows, (int32_t) spec->nqueries,
							 spec->approximate) :
		gv_select_scratch(&select);
}

/* Implements gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	int64_t		n = is_quantiles(spec) ? spec->nqueries : spec->k;

	return (int64_t) sizeof(float) * spec->nrows +
		(int64_t) scratch_bytes(spec) + n * 24;
}

static void
cpu_drop(void *state)
{
	Selection  *selection = state;

	free(selection->values);
	free(selection->ranks);
	free(selection->selected);
	free(selection->positions);
	free(selection->rank_errors);
	free(selection);
}

/* Implements gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	Selection  *made = calloc(1, sizeof(Selection));
	bool		quantiles = is_quantiles(spec);

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->n = quantiles ? spec->nqueries : spec->k;
	made->values = gv_cpu_take(spec->nrows, sizeof(float));
	made->selected = gv_cpu_take(made->n, sizeof(float));
	made->ranks = gv_cpu_take(quantiles ? made->n : 0, sizeof(int64_t));
	made->rank_errors = gv_cpu_take(quantiles ? made->n : 0, sizeof(int64_t));
	made->positions = gv_cpu_take(quantiles ? 0 : made->n, sizeof(uint32_t));
	if (made->values == NULL || made->selected == NULL ||
		made->ranks == NULL || made->rank_errors == NULL ||
		made->positions == NULL)
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	*state = made;
	return GV_OK;
}

/* Implements gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	Selection  *selection = state;
	GvPoll		poll = {stop, 0};
	const float *values = items;
	int64_t		done;

	if (input == GV_SET_RANKS)
	{
		memcpy(selection->ranks + first, items, sizeof(int64_t) * (size_t) n);
		return GV_OK;
	}
	for (done = 0; done < n; done += SLICE)
	{
		int64_t		some = n - done < SLICE ? n - done : SLICE;

		if (gv_poll(&poll, SLICE))
			return GV_CANCELED;
		memcpy(selection->values + first + done, values + done,
			   sizeof(float) * (size_t) some);
	}
	return GV_OK;
}

/* Implements gv_set_run: does everything in one pass. */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Selection  *selection = state;
	const GvSetSpec *spec = &selection->spec;
	void	   *scratch = gv_cpu_take((int64_t) scratch_bytes(spec), 1);
	GvSelect	select = select_spec(spec);
	GvStatus	status;

	if (scratch == NULL)
		return GV_NO_MEMORY;
	if (is_quantiles(spec))
		status = gv_quantiles(selection->values, spec->nrows,
							  selection->ranks, (int32_t) spec->nqueries,
							  spec->approximate, selection->selected,
							  selection->rank_errors, scratch, stop);
	else
		status = gv_select(&select, selection->values, selection->positions,
						   selection->selected, scratch, stop);
	free(scratch);
	done->passes = 1;
	done->finished = 1;
	return status;
}

/* Implements gv_set_get. */
static GvStatus
cpu_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		void *items)
{
	const Selection *selection = state;
	int64_t    *positions = items;
	int64_t		i;

	if (output == GV_SET_VALUES)
		memcpy(items, selection->selected + first, sizeof(float) * (size_t) n);
	else if (output == GV_SET_RANK_ERRORS)
		memcpy(items, selection->rank_errors + first,
			   sizeof(int64_t) * (size_t) n);
	else
		for (i = 0; i < n; i++)
			positions[i] = selection->positions[first + i];
	return GV_OK;
}

const GvSetOps gv_cpu_select_set = {
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put = cpu_put,
	.run = cpu_run,
	.get = cpu_get,
};

const GvSetOps gv_cpu_quantiles_set = {
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put = cpu_put,
	.run = cpu_run,
	.get = cpu_get,
};
