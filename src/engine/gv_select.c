/*
 * gv_select.c
 *		The wrappers of selection, the choice of its engine, and the fault that
 *		tests inject.
 *
 * A wrapper refuses arguments that break the contract, so that an engine may
 * trust them; it cannot know the sizes of arrays.
 */
#include "engine/gv_select.h"

#include "engine/gv_fault.h"
#include "engine/gv_valid.h"

/* The one place that says which engine answers. */
static const GvSelectBackend *const backend = &gv_cpu_selection;

static GvFault fault;

/* From now on the n-th call reports `status`, see gv_select.h. */
void
gv_select_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&fault, n, status);
}

const char *
gv_select_name(GvSelectMethod method)
{
	static const char *const names[GV_NSELECT] = {
		[GV_SELECT_AUTO] = "auto",
		[GV_SELECT_WARP] = "warp",
		[GV_SELECT_SAMPLE] = "sample",
		[GV_SELECT_MULTI] = "multi",
	};

	return names[method];
}

static bool
valid_spec(const GvSelect *spec)
{
	return spec != NULL &&
		spec->columns >= 1 && spec->columns <= GV_SELECT_MAX_N &&
		spec->rows >= 1 && spec->rows <= INT64_MAX / 8 / spec->columns &&
		spec->k >= 1 && spec->k <= spec->columns &&
		(uint32_t) spec->method < GV_NSELECT &&
		(spec->method != GV_SELECT_WARP || spec->k <= GV_WARP_MAX_K);
}

GvSelectMethod
gv_select_choose(const GvSelect *spec)
{
	if (!valid_spec(spec))
		return GV_SELECT_AUTO;
	return spec->method != GV_SELECT_AUTO ? spec->method :
		backend->choose(spec);
}

size_t
gv_select_scratch(const GvSelect *spec)
{
	GvSelect	chosen;

	if (!valid_spec(spec))
		return 0;
	chosen = *spec;
	chosen.method = gv_select_choose(spec);
	return backend->select_scratch(&chosen);
}

GvStatus
gv_select(const GvSelect *spec, const float *values, uint32_t *positions,
		  float *selected, void *scratch, const GvStop *stop)
{
	GvSelect	chosen;
	GvStatus	status;

	if (gv_fault_is_due(&fault, &status))
		return status;
	if (!valid_spec(spec) || values == NULL || positions == NULL ||
		selected == NULL || !gv_valid_scratch(scratch) || !gv_valid_stop(stop))
		return GV_INVALID;
	chosen = *spec;
	chosen.method = gv_select_choose(spec);
	return backend->select(&chosen, values, positions, selected, scratch,
						   stop);
}

size_t
gv_quantiles_scratch(int64_t n, int32_t nranks, bool approximate)
{
	if (n < 1 || n > GV_SELECT_MAX_N || nranks < 1)
		return 0;
	return backend->quantiles_scratch(n, nranks, approximate);
}

GvStatus
gv_quantiles(const float *values, int64_t n, const int64_t *ranks,
			 int32_t nranks, bool approximate, float *quantiles,
			 int64_t *rank_errors, void *scratch, const GvStop *stop)
{
	GvStatus	status;
	int32_t		i;

	if (gv_fault_is_due(&fault, &status))
		return status;
	if (values == NULL || n < 1 || n > GV_SELECT_MAX_N || ranks == NULL ||
		nranks < 1 || quantiles == NULL || rank_errors == NULL ||
		!gv_valid_scratch(scratch) || !gv_valid_stop(stop))
		return GV_INVALID;
	for (i = 0; i < nranks; i++)
		if (ranks[i] < 0 || ranks[i] >= n)
			return GV_INVALID;
	return backend->quantiles(values, n, ranks, nranks, approximate,
							  quantiles, rank_errors, scratch, stop);
}
