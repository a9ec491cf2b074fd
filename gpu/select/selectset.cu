/*
 * selectset.cu
 *		k-selection on a device: the choice of the method, and GV_SET_SELECT
 *		and GV_SET_QUANTILES, whose row comes in chunks and is selected from
 *		as a whole.
 */
#include <algorithm>
#include <stdlib.h>

#include "gpu/select/rows.cuh"

#define CHUNK		(INT64_C(1) << 24)	/* values between two checks of
										 * `stop` */
#define GRANULES	(INT64_C(16) << 20) /* max bytes that a device adds when
										 * it rounds up allocations */

extern "C" void
gv_gpu_selector_drop(GvSelector *selector)
{
	if (selector == NULL)
		return;
	gv_buffer_free(&selector->d_work);
	gv_buffer_free(&selector->d_small);
	gv_buffer_free(&selector->d_sort);
	free(selector);
}

extern "C" GvStatus
gv_gpu_selector(GvSelector **selector)
{
	return gv_make(selector, [] (GvSelector *made)
	{
		GV_TRY(gv_gpu_nsms(&made->nsms));
		return gv_gpu_has_pdl(&made->pdl);
	}, gv_gpu_selector_drop);
}

extern "C" GvSelectMethod
gv_gpu_select_choose(const GvSelect *spec)
{
	if (spec->doubles)
		return GV_SELECT_SAMPLE;
	return spec->method == GV_SELECT_AUTO ? GV_SELECT_MULTI : spec->method;
}

extern "C" GvStatus
gv_gpu_select_rows(GvSelector *selector, const GvSelect *spec,
				   const void *d_values, uint32_t *d_positions,
				   void *d_selected, void *stream)
{
	GvSelectMethod method = gv_gpu_select_choose(spec);
	GvRowsCall	call = {(const float *) d_values, spec->columns, spec->rows,
		d_positions, (float *) d_selected, spec->k};
	GvCallOf<double> wide = {(const double *) d_values, spec->columns,
		spec->rows, d_positions, (double *) d_selected, spec->k};

	if (spec->doubles)
		return gv_rows_sample(selector, &wide, true, (cudaStream_t) stream);
	if (method == GV_SELECT_WARP)
		return gv_rows_warp(selector, &call, (cudaStream_t) stream);
	if (method == GV_SELECT_MULTI && gv_multi_fits(spec->columns, spec->k))
		return gv_rows_multi(selector, &call, (cudaStream_t) stream);
	return gv_rows_sample(selector, &call, method == GV_SELECT_SAMPLE,
						  (cudaStream_t) stream);
}

/* -- sets */

struct SelectSet
{
	GvSetSpec	spec;
	GvSelector *selector;
	cudaStream_t stream;
	size_t		value_bytes;	/* of a float or double */
	char	   *d_values;		/* [nrows] the row */
	uint32_t   *d_positions;	/* [k] */
	char	   *d_selected;		/* [k] */
	int64_t    *ranks;			/* [nqueries] in the host's memory, as the
								 * arrays below */
	char	   *quantiles;
	int64_t    *rank_errors;
};

/* Returns the bytes of a set's memory.  sampleselect.cu takes most of them. */
static int64_t
select_size(const GvSetSpec *spec)
{
	return (int64_t) sizeof(float) * spec->dims * (spec->nrows + spec->k) +
		(int64_t) sizeof(uint32_t) * spec->k +
		(int64_t) gv_sample_bytes(spec->k, spec->dims == 2) + GRANULES;
}

/*
 * Returns the bytes of a set's memory for quantiles, for two average buckets
 * for each rank but at most for all buckets.  An adversarial input can have
 * larger buckets, for which this memory may not suffice.
 */
static int64_t
quantiles_size(const GvSetSpec *spec)
{
	int64_t		item = spec->dims == 2 ? sizeof(GvItem<double>) :
		sizeof(GvItem<float>);
	int64_t		bytes = (int64_t) sizeof(float) * spec->dims * spec->nrows +
		GRANULES + 16 * spec->nqueries * spec->dims;
	int64_t		buckets = spec->nqueries < 128 ? 2 * spec->nqueries : 256;
	int64_t		kept = (spec->nrows / 256 + 4096) * buckets;
	int64_t		sorted = 2 * item * kept + gv_sort_most_bytes(kept, item);

	if (spec->approximate)
		return bytes;
	return bytes + sorted + sorted / 4; /* gv_buffer_need allocates this
										 * much */
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

static GvStatus
select_create(const GvSetSpec *spec, void **state)
{
	return gv_make((SelectSet **) state, [=] (SelectSet *set)
	{
		size_t		n = (size_t) spec->nqueries + 1;

		set->spec = *spec;
		set->value_bytes = sizeof(float) * (size_t) spec->dims;
		GV_TRY(gv_choose_device(spec->device));
		GV_CUDA_TRY(cudaStreamCreateWithFlags(&set->stream,
											  cudaStreamNonBlocking));
		GV_CUDA_TRY(gv_device_alloc(&set->d_values,
									spec->nrows * set->value_bytes));
		GV_CUDA_TRY(gv_device_alloc(&set->d_positions, spec->k));
		GV_CUDA_TRY(gv_device_alloc(&set->d_selected,
									spec->k * set->value_bytes));
		set->ranks = (int64_t *) malloc(sizeof(int64_t) * n);
		set->quantiles = (char *) malloc(set->value_bytes * n);
		set->rank_errors = (int64_t *) malloc(sizeof(int64_t) * n);
		if (set->ranks == NULL || set->quantiles == NULL ||
			set->rank_errors == NULL)
			return GV_NO_MEMORY;
		return gv_gpu_selector(&set->selector);
	}, select_drop);
}

static GvStatus
select_put(void *state, GvSetInput input, const void *items, int64_t first,
		   int64_t n, const GvStop *stop)
{
	SelectSet  *set = (SelectSet *) state;
	int64_t		bytes = (int64_t) set->value_bytes;

	GV_TRY(gv_choose_device(set->spec.device));
	if (input == GV_SET_RANKS)
	{
		memcpy(set->ranks + first, items, sizeof(int64_t) * (size_t) n);
		return GV_OK;
	}
	for (int64_t i = 0; i < n; i += CHUNK)
	{
		int64_t		count = std::min(n - i, CHUNK);

		if (gv_is_stopped(stop))
			return GV_CANCELED;
		GV_CUDA_TRY(gv_upload(set->d_values + (first + i) * bytes,
							  (const char *) items + i * bytes, count * bytes,
							  set->stream));
		GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	}
	return GV_OK;
}

/*
 * Checks `stop` only at the beginning, because the device takes only
 * milliseconds.
 */
static GvStatus
select_run(void *state, GvSetDone *done, const GvStop *stop)
{
	SelectSet  *set = (SelectSet *) state;
	bool		doubles = set->spec.dims == 2;
	GvSelect	spec = {1, set->spec.nrows, set->spec.k,
		(GvSelectMethod) set->spec.method, doubles};
	GvQuantiles quantiles = {set->spec.nrows, (int32_t) set->spec.nqueries,
		set->spec.approximate != 0, doubles};

	if (gv_is_stopped(stop))
		return GV_CANCELED;
	GV_TRY(gv_choose_device(set->spec.device));
	if (set->spec.kind == GV_SET_SELECT)
		GV_TRY(gv_gpu_select_rows(set->selector, &spec, set->d_values,
								  set->d_positions, set->d_selected,
								  set->stream));
	else
		GV_TRY(gv_gpu_quantiles(set->selector, &quantiles, set->d_values,
								set->ranks, set->quantiles, set->rank_errors,
								set->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	done->passes++;
	done->finished = 1;
	return GV_OK;
}

/*
 * Copies positions to the host, and widens them from 32 bits, which they have
 * on the device, to 64 bits.
 */
static GvStatus
get_positions(SelectSet *set, int64_t first, int64_t n, int64_t *positions)
{
	/* copy to the upper half of the output, then widen in order */
	uint32_t   *narrow = (uint32_t *) (positions + n) - n;

	GV_CUDA_TRY(gv_download(narrow, set->d_positions + first, n, set->stream));
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
	size_t		bytes = set->value_bytes;

	GV_TRY(gv_choose_device(set->spec.device));
	if (output == GV_SET_POSITIONS)
		return get_positions(set, first, n, (int64_t *) items);
	if (output == GV_SET_RANK_ERRORS)
		memcpy(items, set->rank_errors + first, sizeof(int64_t) * (size_t) n);
	else if (set->spec.kind == GV_SET_QUANTILES)
		memcpy(items, set->quantiles + first * bytes, n * bytes);
	else
		GV_CUDA_TRY(gv_download((char *) items, set->d_selected + first * bytes,
								n * bytes, set->stream));
	return gv_cuda_status(cudaStreamSynchronize(set->stream));
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
	select_create,
	select_drop,
	select_put,
	select_run,
	select_get,
	NULL,
};
