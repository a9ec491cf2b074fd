/*
 * chooserows.cu
 *		Selections: which way, memory, rows in passes.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/common/gv_group.h"
#include "gpu/select/gv_select_table.h"
#include "gpu/select/rows.cuh"

static const char letters[GV_NROWS_WAYS + 1] = "thwsr";

#define LEAST_SAMPLED	4096	/* columns, for a threshold */
#define SPARSE			24		/* columns of which one is wanted, at most */

extern "C" bool
gv_gpu_rows_can(const GvSelect *spec, GvRowsWay way)
{
	switch (way)
	{
		case GV_ROWS_TEAM:
			return spec->columns <= GV_TEAM_COLUMNS &&
				spec->k <= GV_TEAM_MAX_K;
		case GV_ROWS_THRESHOLD:
			return spec->columns >= LEAST_SAMPLED &&
				spec->k <= GV_THRESHOLD_MAX_K &&
				spec->k <= spec->columns / SPARSE;
		case GV_ROWS_WARP:
			return spec->k <= GV_WARP_MAX_K;
		default:
			return true;
	}
}

/* The first class that holds n, or the last. */
static int
class_of(const long long *classes, int count, int64_t n)
{
	int			i = 0;

	while (i < count - 1 && classes[i] < n)
		i++;
	return i;
}

/* The table's word, where it can be followed. */
static bool
look_up(const GvSelect *spec, GvRowsWay *way)
{
	const char *line = gv_table_ways
		[class_of(gv_table_rows, GV_TABLE_ROWS, spec->rows)]
		[class_of(gv_table_columns, GV_TABLE_COLUMNS, spec->columns)];
	char		letter = line[class_of(gv_table_ks, GV_TABLE_KS, spec->k)];
	const char *found = strchr(letters, letter);

	if (found == NULL || letter == '\0')
		return false;
	*way = (GvRowsWay) (found - letters);
	return gv_gpu_rows_can(spec, *way);
}

/* Quick multi-select, in all its sizes. */
static GvRowsWay
choose_multi(const GvSelect *spec)
{
	if (gv_gpu_rows_can(spec, GV_ROWS_TEAM))
		return GV_ROWS_TEAM;
	return gv_gpu_rows_can(spec, GV_ROWS_THRESHOLD) ? GV_ROWS_THRESHOLD :
		GV_ROWS_RADIX;
}

extern "C" GvRowsWay
gv_gpu_rows_choose(const GvSelect *spec)
{
	GvRowsWay	way;

	switch (spec->method)
	{
		case GV_SELECT_WARP:
			return GV_ROWS_WARP;
		case GV_SELECT_SAMPLE:
			return GV_ROWS_SAMPLE;
		case GV_SELECT_MULTI:
			return choose_multi(spec);
		default:
			return look_up(spec, &way) ? way : choose_multi(spec);
	}
}

/* Memory that is 0 to begin with. */
static GvStatus
take_zeros(void **memory, size_t bytes)
{
	cudaStream_t stream;
	GvStatus	status;

	GV_CUDA_TRY(cudaMalloc(memory, bytes));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	status = gv_cuda_status(cudaMemsetAsync(*memory, 0, bytes, stream));
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(stream));
	(void) cudaStreamDestroy(stream);
	return status;
}

static GvStatus
fill_selector(GvSelector *selector)
{
	int			device;

	GV_CUDA_TRY(cudaGetDevice(&device));
	GV_CUDA_TRY(cudaDeviceGetAttribute(&selector->nsms,
									   cudaDevAttrMultiProcessorCount,
									   device));
	GV_TRY(gv_gpu_overlaps(&selector->overlap));
	selector->nblocks = gv_exact_blocks(selector->nsms);
	if (selector->nblocks < 1)
		return GV_FAILED;
	GV_TRY(take_zeros((void **) &selector->d_states,
					  sizeof(GvRowState) * GV_ROWS_PASS));
	GV_TRY(take_zeros((void **) &selector->d_missed, sizeof(GvMissed)));
	GV_TRY(take_zeros((void **) &selector->d_together,
					  sizeof(GvTogether) * selector->nblocks));
	return gv_cuda_status(cudaMalloc((void **) &selector->d_items,
									 sizeof(uint64_t) * GV_ROWS_CAPACITY *
									 selector->nblocks));
}

extern "C" GvStatus
gv_gpu_selector(GvSelector **selector)
{
	GvSelector *made = (GvSelector *) calloc(1, sizeof(GvSelector));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	status = fill_selector(made);
	if (status != GV_OK)
	{
		gv_gpu_selector_drop(made);
		return status;
	}
	*selector = made;
	return GV_OK;
}

extern "C" void
gv_gpu_selector_drop(GvSelector *selector)
{
	if (selector == NULL)
		return;
	(void) cudaFree(selector->d_states);
	(void) cudaFree(selector->d_missed);
	(void) cudaFree(selector->d_together);
	(void) cudaFree(selector->d_items);
	gv_buffer_free(&selector->d_work);
	gv_buffer_free(&selector->d_list);
	gv_buffer_free(&selector->d_sort);
	free(selector);
}

/* Bytes that a row takes of d_work. */
static size_t
row_bytes(const GvSelector *selector, const GvSelect *spec, GvRowsWay way)
{
	switch (way)
	{
		case GV_ROWS_TEAM:
			return 0;
		case GV_ROWS_THRESHOLD:
			return gv_threshold_bytes(spec->columns, spec->k);
		case GV_ROWS_WARP:
			return gv_warp_bytes(selector, spec->rows, spec->columns,
								 spec->k);
		default:
			return gv_exact_bytes(spec->k);
	}
}

/* Rows of one pass. */
static int64_t
rows_at_once(const GvSelector *selector, const GvSelect *spec, GvRowsWay way)
{
	int64_t		bytes = (int64_t) row_bytes(selector, spec, way);
	int64_t		rows = spec->rows;

	if (way == GV_ROWS_TEAM)
		return rows < INT32_MAX ? rows : INT32_MAX;
	if (rows > GV_ROWS_PASS)
		rows = GV_ROWS_PASS;
	if (bytes > 0 && rows > GV_ROWS_MEMORY / bytes)
		rows = GV_ROWS_MEMORY / bytes;
	return rows < 1 ? 1 : rows;
}

extern "C" size_t
gv_gpu_rows_bytes(const GvSelect *spec, GvRowsWay way)
{
	GvSelector	any = {};
	int64_t		rows;
	int64_t		each;
	int64_t		bytes;

	any.nsms = 1 << 10;			/* more than any device has */
	rows = rows_at_once(&any, spec, way);
	each = (int64_t) row_bytes(&any, spec, way);
	bytes = rows * each;
	/* what a block cannot sort: items [rows][2][capacity], see sortrows.cu */
	if (each > 0 && (way == GV_ROWS_SAMPLE || way == GV_ROWS_RADIX))
		bytes += gv_sort_most_bytes(rows > 1 ? 2 * rows * each / 16 :
									each / 16, sizeof(uint64_t));
	return (size_t) (bytes + bytes / 4);
}

static GvStatus
select_pass(GvSelector *selector, const GvRowsCall *call, GvRowsWay way,
			cudaStream_t stream)
{
	switch (way)
	{
		case GV_ROWS_TEAM:
			return gv_rows_team(selector, call, stream);
		case GV_ROWS_THRESHOLD:
			return gv_rows_threshold(selector, call, stream);
		case GV_ROWS_WARP:
			return gv_rows_warp(selector, call, stream);
		default:
			return gv_rows_exact(selector, call, way, stream);
	}
}

extern "C" GvStatus
gv_gpu_select_rows(GvSelector *selector, const GvSelect *spec, GvRowsWay way,
				   const float *d_values, uint32_t *d_positions,
				   float *d_selected, void *stream)
{
	int64_t		step = rows_at_once(selector, spec, way);
	GvRowsCall	call = {};

	call.d_values = d_values;
	call.columns = spec->columns;
	call.all_rows = spec->rows;
	call.out = {d_positions, d_selected, spec->k};
	GV_TRY(gv_buffer_need(&selector->d_work,
						  row_bytes(selector, spec, way) * step));
	if (way == GV_ROWS_THRESHOLD)
		GV_TRY(gv_buffer_need(&selector->d_list, sizeof(uint32_t) * step));
	for (int64_t first = 0; first < spec->rows; first += step)
	{
		call.first = first;
		call.rows = spec->rows - first < step ? spec->rows - first : step;
		GV_TRY(select_pass(selector, &call, way, (cudaStream_t) stream));
	}
	return GV_OK;
}

#ifdef GV_TEST_BUILD

extern "C" const char *
gv_gpu_rows_name(GvRowsWay way)
{
	static const char *const names[GV_NROWS_WAYS] = {
		"team", "threshold", "warp", "sample", "radix"
	};

	return names[way];
}

extern "C" GvStatus
gv_gpu_rows_missed(GvSelector *selector, uint32_t *missed)
{
	GvMissed	found;

	GV_CUDA_TRY(cudaDeviceSynchronize());
	GV_CUDA_TRY(cudaMemcpy(&found, selector->d_missed, sizeof(found),
						   cudaMemcpyDeviceToHost));
	*missed = found.total;
	return GV_OK;
}

#endif
