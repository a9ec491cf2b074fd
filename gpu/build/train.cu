/*
 * train.cu
 *		From a sample in the device's memory to an index's model.
 *
 *		lists		k-means of the sample
 *		parents		k-means of the lists, which are then brought, by the host,
 *					into the order of their parents
 *		codebooks	from residuals of the first rows in their lists
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/build/gv_build.h"

static GvStatus
run_kmeans(GvBuilder *builder, const float *d_x, int64_t n, int32_t k,
		   float *d_centroids, GvKmeansFound *found, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvKmeans	kmeans =
		{spec->dims, n, k, spec->iterations, spec->max_imbalance,
	spec->seed};

	return gv_gpu_kmeans(&kmeans, d_x, d_centroids, found, &builder->finder,
						 stop);
}

/* Which of the parents each list is nearest to. */
static GvStatus
find_owners(GvBuilder *builder, const float *d_parents, int32_t nparents,
			int32_t *owners, const GvStop *stop)
{
	int32_t		nlists = builder->trained.nlists;
	size_t		bytes = nlists * sizeof(GvProbe);
	GvTargets	parents;
	GvProbe    *near = (GvProbe *) malloc(bytes);
	GvStatus	status;

	if (near == NULL)
		return GV_NO_MEMORY;
	status = gv_targets_create(&parents, GV_L2, builder->spec.dims, nparents,
							   builder->stream);
	if (status == GV_OK)
		status = gv_targets_set(&parents, d_parents, nparents);
	if (status == GV_OK)
		status = gv_buffer_need(&builder->d_nearest, bytes);
	if (status == GV_OK)
		status = gv_gpu_assign(&builder->finder, &parents,
								builder->d_centroids, nlists, 1,
								(GvProbe *) builder->d_nearest.memory, stop);
	if (status == GV_OK)
		status = gv_cuda_status(cudaMemcpyAsync(near,
												builder->d_nearest.memory,
												bytes, cudaMemcpyDeviceToHost,
												builder->stream));
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(builder->stream));
	for (int32_t i = 0; i < nlists && status == GV_OK; i++)
		owners[i] = near[i].list;
	(void) cudaStreamSynchronize(builder->stream);
	gv_targets_drop(&parents);
	free(near);
	return status;
}

/* The host's part: bring the lists into the order of their parents. */
static GvStatus
reorder(GvBuilder *builder, const float *d_parents, int32_t nparents,
		const int32_t *owners, float *lists, float *grouped)
{
	int32_t		dims = builder->spec.dims;
	size_t		bytes = (size_t) builder->trained.nlists * dims *
		sizeof(float);

	GV_CUDA_TRY(cudaMemcpyAsync(lists, builder->d_centroids, bytes,
								cudaMemcpyDeviceToHost, builder->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(builder->parents, d_parents,
								(size_t) nparents * dims * sizeof(float),
								cudaMemcpyDeviceToHost, builder->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(builder->stream));
	builder->trained.nparents =
		gv_group_lists(dims, builder->trained.nlists, lists, owners, nparents,
					   builder->parents, builder->parent_offsets, grouped);
	GV_CUDA_TRY(cudaMemcpyAsync(builder->d_centroids, grouped, bytes,
								cudaMemcpyHostToDevice, builder->stream));
	return gv_cuda_status(cudaStreamSynchronize(builder->stream));
}

/* Parents of the lists, which are brought into their order. */
static GvStatus
group(GvBuilder *builder, const GvStop *stop)
{
	int64_t		dims = builder->spec.dims;
	int32_t		nlists = builder->trained.nlists;
	GvKmeansFound parents;
	size_t		values = (size_t) nlists * dims;
	float	   *lists = (float *) malloc(2 * values * sizeof(float));
	int32_t    *owners = (int32_t *) malloc(nlists * sizeof(int32_t));
	float	   *d_parents = NULL;
	GvStatus	status = GV_NO_MEMORY;

	if (lists != NULL && owners != NULL)
		status = gv_device_alloc(&d_parents, builder->spec.nparents * dims);
	if (status == GV_OK)
		status = run_kmeans(builder, builder->d_centroids, nlists,
							builder->spec.nparents, d_parents, &parents, stop);
	if (status == GV_OK)
		status = find_owners(builder, d_parents, parents.k, owners, stop);
	if (status == GV_OK)
		status = reorder(builder, d_parents, parents.k, owners, lists,
						 lists + values);
	(void) cudaFree(d_parents);
	free(lists);
	free(owners);
	return status;
}

static GvStatus
train_codebooks(GvBuilder *builder, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	int32_t		n = builder->nsample < GV_CODEBOOK_ROWS ?
		(int32_t) builder->nsample : GV_CODEBOOK_ROWS;
	GvDeviceRows	rows = gv_build_rows(builder, builder->d_sample, n);
	float	   *d_residuals = NULL;
	GvStatus	status;

	GV_TRY(gv_buffer_need(&builder->d_out, (size_t) n * spec->lists_per_row *
						  sizeof(int32_t)));
	rows.d_lists = (int32_t *) builder->d_out.memory;
	GV_TRY(gv_build_lists(builder, &rows, stop));
	GV_TRY(gv_device_alloc(&d_residuals, (int64_t) n * spec->lists_per_row *
						 spec->dims));
	status = gv_gpu_residuals(&rows, d_residuals, builder->stream);
	if (status == GV_OK)
		status = gv_gpu_codebooks(&builder->model, n * spec->lists_per_row,
								  d_residuals, spec->seed,
								  builder->d_codebooks, builder->stream);
	(void) cudaStreamSynchronize(builder->stream);
	(void) cudaFree(d_residuals);
	return status;
}

/* See gv_build.h. */
GvStatus
gv_gpu_train(GvBuilder *builder, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvTrainTimes *times = &builder->trained.times;
	double		begun = gv_seconds();
	GvKmeansFound found;

	GV_TRY(gv_choose_device(builder->spec.device));
	GV_TRY(run_kmeans(builder, builder->d_sample, builder->nsample,
					  spec->nlists, builder->d_centroids, &found, stop));
	times->lists = gv_lap(&begun);
	times->splits = found.split_s;
	times->passes = found.passes;
	builder->trained.nlists = found.k;
	builder->trained.nparents = 1;
	builder->parent_offsets[1] = found.k;
	if (spec->nparents > 1)
		GV_TRY(group(builder, stop));
	times->parents = gv_lap(&begun);
	GV_TRY(gv_targets_set(&builder->lists, builder->d_centroids, found.k));
	GV_TRY(train_codebooks(builder, stop));
	times->codebooks = gv_lap(&begun);
	return GV_OK;
}
