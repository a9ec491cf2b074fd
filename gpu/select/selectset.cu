/*
 * selectset.cu
 *		GV_SET_SELECT and GV_SET_QUANTILES on a device: the row comes in
 *		pieces, is selected from as a whole, and the answers are read back.
 *
 * A selector is made with the set and its memory goes with it.
 */
#include <stdlib.h>

#include "gpu/common/gv_cuda.h"
#include "gpu/common/gv_group.h"
#include "gpu/common/gv_sets.h"
#include "gpu/select/gv_selection.h"

#define PIECE		(INT64_C(1) << 24)	/* values between looks at stop */

struct SelectSet
{
	GvSetSpec	spec;
	GvSelect	select;
	GvRowsWay	way;
	GvSelector *selector;
	cudaStream_t stream;
	float	   *d_values;		/* [nrows] */
	uint32_t   *d_positions;	/* [k] */
	float	   *d_selected;		/* [k] */
	int64_t    *ranks;			/* [nqueries] the host's, as those below */
	float	   *quantiles;
	int64_t    *rank_errors;
};

static GvSelect
select_of(const GvSetSpec *spec)
{
	GvSelect	select = {1, spec->nrows, spec->k,
	(GvSelectMethod) spec->method};

	return select;
}

static int64_t
select_size(const GvSetSpec *spec)
{
	GvSelect	select = select_of(spec);

	return (int64_t) sizeof(float) * spec->nrows + INT64_C(8) * spec->k +
		(int64_t) gv_gpu_rows_bytes(&select, gv_gpu_rows_choose(&select)) +
		(INT64_C(32) << 20);
}

/* Where the input is not made for it, a bucket a rank; all at most. */
static int64_t
quantiles_size(const GvSetSpec *spec)
{
	int64_t		bytes = (int64_t) sizeof(float) * spec->nrows +
		(INT64_C(32) << 20) + 12 * spec->nqueries;
	int64_t		buckets = spec->nqueries < 128 ? 2 * spec->nqueries : 256;
	int64_t		kept = (spec->nrows / 256 + 4096) * buckets;
	int64_t		sorted = 2 * (int64_t) sizeof(uint64_t) * kept +
		gv_sort_most_bytes(kept, sizeof(uint64_t));

	if (spec->approximate)
		return bytes;
	return bytes + sorted + sorted / 4; /* as gv_buffer_need takes it */
}

static GvStatus
begin(SelectSet *set)
{
	GV_TRY(gv_choose_device(set->spec.device));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&set->stream,
										  cudaStreamNonBlocking));
	GV_CUDA_TRY(cudaMalloc((void **) &set->d_values,
						   sizeof(float) * (size_t) set->spec.nrows));
	return gv_gpu_selector(&set->selector);
}

static GvStatus
begin_select(SelectSet *set)
{
	GV_TRY(begin(set));
	set->select = select_of(&set->spec);
	set->way = gv_gpu_rows_choose(&set->select);
	GV_CUDA_TRY(cudaMalloc((void **) &set->d_positions,
						   sizeof(uint32_t) * (size_t) set->spec.k));
	return gv_cuda_status(cudaMalloc((void **) &set->d_selected,
									 sizeof(float) * (size_t) set->spec.k));
}

static GvStatus
begin_quantiles(SelectSet *set)
{
	size_t		n = (size_t) set->spec.nqueries;

	GV_TRY(begin(set));
	set->ranks = (int64_t *) malloc(sizeof(int64_t) * n);
	set->quantiles = (float *) malloc(sizeof(float) * n);
	set->rank_errors = (int64_t *) malloc(sizeof(int64_t) * n);
	return set->ranks == NULL || set->quantiles == NULL ||
		set->rank_errors == NULL ? GV_NO_MEMORY : GV_OK;
}

static void
select_drop(void *state)
{
	SelectSet  *set = (SelectSet *) state;

	if (gv_choose_device(set->spec.device) == GV_OK)
	{
		gv_gpu_selector_drop(set->selector);
		(void) cudaFree(set->d_values);
		(void) cudaFree(set->d_positions);
		(void) cudaFree(set->d_selected);
		if (set->stream != NULL)
			(void) cudaStreamDestroy(set->stream);
	}
	free(set->ranks);
	free(set->quantiles);
	free(set->rank_errors);
	free(set);
}

/* Make a set, which the caller gets only where all of it is there. */
static GvStatus
create(const GvSetSpec *spec, GvStatus (*fill) (SelectSet *), void **state)
{
	SelectSet  *set = (SelectSet *) calloc(1, sizeof(SelectSet));
	GvStatus	status;

	if (set == NULL)
		return GV_NO_MEMORY;
	set->spec = *spec;
	status = fill(set);
	if (status != GV_OK)
	{
		select_drop(set);
		return status;
	}
	*state = set;
	return GV_OK;
}

static GvStatus
select_create(const GvSetSpec *spec, void **state)
{
	return create(spec, begin_select, state);
}

static GvStatus
quantiles_create(const GvSetSpec *spec, void **state)
{
	return create(spec, begin_quantiles, state);
}

static bool
is_stopped(const GvStop *stop)
{
	return stop != NULL && stop->requested(stop->arg);
}

static GvStatus
select_put(void *state, GvSetInput input, const void *items, int64_t first,
		   int64_t n, const GvStop *stop)
{
	SelectSet  *set = (SelectSet *) state;

	GV_TRY(gv_choose_device(set->spec.device));
	if (input == GV_SET_RANKS)
	{
		memcpy(set->ranks + first, items, sizeof(int64_t) * (size_t) n);
		return GV_OK;
	}
	for (int64_t i = 0; i < n; i += PIECE)
	{
		int64_t		count = n - i < PIECE ? n - i : PIECE;

		if (is_stopped(stop))
			return GV_CANCELED;
		GV_CUDA_TRY(cudaMemcpyAsync(set->d_values + first + i,
									(const float *) items + i,
									sizeof(float) * (size_t) count,
									cudaMemcpyHostToDevice, set->stream));
		GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	}
	return GV_OK;
}

/*
 * The device is done in a few milliseconds: no stop is looked for meanwhile.
 */
static GvStatus
select_run(void *state, GvSetDone *done, const GvStop *stop)
{
	SelectSet  *set = (SelectSet *) state;

	if (is_stopped(stop))
		return GV_CANCELED;
	GV_TRY(gv_choose_device(set->spec.device));
	GV_TRY(gv_gpu_select_rows(set->selector, &set->select, set->way,
							  set->d_values, set->d_positions,
							  set->d_selected, set->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	done->passes++;
	done->finished = 1;
	return GV_OK;
}

static GvStatus
quantiles_run(void *state, GvSetDone *done, const GvStop *stop)
{
	SelectSet  *set = (SelectSet *) state;

	if (is_stopped(stop))
		return GV_CANCELED;
	GV_TRY(gv_choose_device(set->spec.device));
	GV_TRY(gv_gpu_quantiles(set->selector, set->d_values, set->spec.nrows,
							set->ranks, (int32_t) set->spec.nqueries,
							set->spec.approximate, set->quantiles,
							set->rank_errors, set->stream));
	done->passes++;
	done->finished = 1;
	return GV_OK;
}

/* Positions lie on the device in 32 bits, and go out in 64. */
static GvStatus
get_positions(SelectSet *set, int64_t first, int64_t n, int64_t *positions)
{
	/* to the upper half of what is to be filled, and from there down */
	uint32_t   *narrow = (uint32_t *) (positions + n) - n;

	GV_CUDA_TRY(cudaMemcpyAsync(narrow, set->d_positions + first,
								sizeof(uint32_t) * (size_t) n,
								cudaMemcpyDeviceToHost, set->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	for (int64_t i = 0; i < n; i++)
	{
		uint32_t	position;
		int64_t		wide;

		memcpy(&position, narrow + i, sizeof(position));
		wide = position;
		memcpy(positions + i, &wide, sizeof(wide));
	}
	return GV_OK;
}

static GvStatus
select_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		   void *items)
{
	SelectSet  *set = (SelectSet *) state;

	GV_TRY(gv_choose_device(set->spec.device));
	if (output == GV_SET_POSITIONS)
		return get_positions(set, first, n, (int64_t *) items);
	GV_CUDA_TRY(cudaMemcpyAsync(items, set->d_selected + first,
								sizeof(float) * (size_t) n,
								cudaMemcpyDeviceToHost, set->stream));
	return gv_cuda_status(cudaStreamSynchronize(set->stream));
}

static GvStatus
quantiles_get(void *state, GvSetOutput output, int64_t first, int64_t n,
			  void *items)
{
	SelectSet  *set = (SelectSet *) state;

	if (output == GV_SET_VALUES)
		memcpy(items, set->quantiles + first, sizeof(float) * (size_t) n);
	else
		memcpy(items, set->rank_errors + first, sizeof(int64_t) * (size_t) n);
	return GV_OK;
}

extern "C" const GvSetOps gv_gpu_select_set = {
	select_size,
	select_create,
	select_drop,
	select_put,
	select_run,
	select_get,
	NULL,
};

extern "C" const GvSetOps gv_gpu_quantiles_set = {
	quantiles_size,
	quantiles_create,
	select_drop,
	select_put,
	quantiles_run,
	quantiles_get,
	NULL,
};
