/*
 * select.c
 *		The choice of the method, and calls of selections and quantiles.
 */
#include "cpu/select/items.h"
#include "engine/gv_call.h"

/*
 * GV_SELECT_AUTO chooses WarpSelect if at most one in SPARSE values is
 * selected, because most values are then above WarpSelect's threshold.
 * Otherwise it chooses quick multi-select, which searches no tree of
 * splitters, unless its copy of a row would have more than GV_LONG_ROW items,
 * which take 128 MB, or 256 MB of doubles.
 */
#define SPARSE		16

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
	if (spec->method != GV_SELECT_AUTO)
		return spec->method;
	if (spec->k <= GV_WARP_MAX_K && spec->k <= spec->columns / SPARSE)
		return GV_SELECT_WARP;
	return spec->columns <= GV_LONG_ROW ? GV_SELECT_MULTI : GV_SELECT_SAMPLE;
}

static const GvSelectOps *
ops_of(bool doubles)
{
	return doubles ? &gv_select_doubles : &gv_select_floats;
}

size_t
gv_select_scratch(const GvSelect *spec)
{
	GvSelect	chosen = *spec;

	chosen.method = gv_select_choose(spec);
	return chosen.method == GV_SELECT_AUTO ? 0 :
		ops_of(spec->doubles)->rows_scratch(&chosen);
}

GvStatus
gv_select(const GvSelect *spec, const void *values, uint32_t *positions,
		  void *selected, void *scratch, const GvStop *stop)
{
	GvSelect	chosen;

	GV_CALL(gv_engine_calls, valid_spec(spec) && values != NULL &&
			positions != NULL && selected != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	chosen = *spec;
	chosen.method = gv_select_choose(spec);
	return ops_of(spec->doubles)->rows(&chosen, values, positions, selected,
									   scratch, stop);
}

static bool
valid_quantiles(const GvQuantiles *spec)
{
	return spec != NULL && spec->n >= 1 && spec->n <= GV_SELECT_MAX_N &&
		spec->nranks >= 1;
}

size_t
gv_quantiles_scratch(const GvQuantiles *spec)
{
	return valid_quantiles(spec) ?
		ops_of(spec->doubles)->quantiles_scratch(spec) : 0;
}

GvStatus
gv_quantiles(const GvQuantiles *spec, const void *values, const int64_t *ranks,
			 void *quantiles, int64_t *rank_errors, void *scratch,
			 const GvStop *stop)
{
	GV_CALL(gv_engine_calls, valid_quantiles(spec) && values != NULL &&
			ranks != NULL && quantiles != NULL && rank_errors != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	return ops_of(spec->doubles)->quantiles(spec, values, ranks, quantiles,
											rank_errors, scratch, stop);
}
