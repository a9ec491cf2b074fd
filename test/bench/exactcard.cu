/*
 * exactcard.cu
 *		Exact search on a card over arrays that are there already, and what cuBLAS
 *		takes for bare products, as a library for exactcard.py and kmeanscard.py.
 *
 * A Bench has rows [nrows][dims] with their half copies, and room for nqueries
 * queries; the arrays themselves are the caller's.  setlib.c has taken the
 * card.  Functions return a
 * GvStatus, but for bench_open, which returns NULL if anything fails.
 */
#include <chrono>
#include <stdlib.h>

#include "gpu/exact/exact.h"
#include "yard.cuh"

struct Bench
{
	GvExactNormalization norm;
	GvExactRows rows;
	GvExactQueries queries;
	GvExactWork work;
};

template <typename T>
static bool
take(T **memory, int64_t n)
{
	return cudaMalloc((void **) memory, (size_t) n * sizeof(T)) == cudaSuccess;
}

extern "C" void
bench_drop(Bench *bench)
{
	gv_gpu_exact_work_drop(&bench->work);
	(void) cudaFree(bench->norm.d_mean);
	(void) cudaFree(bench->norm.d_scale);
	(void) cudaFree(bench->rows.d_half_rows);
	(void) cudaFree(bench->rows.d_bias);
	(void) cudaFree(bench->rows.d_error_bounds);
	(void) cudaFree(bench->queries.d_half_queries);
	(void) cudaFree(bench->queries.d_forms);
	(void) cudaFree(bench->queries.d_distances);
	(void) cudaFree(bench->queries.d_positions);
	free(bench);
}

extern "C" Bench *
bench_open(int32_t metric, int32_t dims, int64_t nrows, int64_t nqueries,
		   int32_t k)
{
	Bench	   *bench = (Bench *) calloc(1, sizeof(Bench));
	int64_t		slots = (nrows + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN *
		GV_EXACT_ALIGN;
	int32_t		half_dims = (dims + 15) / 16 * 16;
	GvExactAmount amount = {nqueries, k, nrows, 0};

	if (bench == NULL)
		return NULL;
	bench->norm.metric = metric;
	bench->norm.dims = dims;
	bench->norm.half_dims = half_dims;
	bench->rows.n = nrows;
	bench->rows.stride = gv_gpu_exact_stride(nrows);
	bench->queries.n = nqueries;
	bench->queries.k = k;
	if (take(&bench->norm.d_mean, dims) &&
		take(&bench->norm.d_scale, 1) &&
		take(&bench->rows.d_half_rows, slots * half_dims) &&
		take(&bench->rows.d_bias, slots) && take(&bench->rows.d_error_bounds, slots) &&
		take(&bench->queries.d_half_queries, nqueries * half_dims) &&
		take(&bench->queries.d_forms, nqueries) &&
		take(&bench->queries.d_distances, nqueries * k) &&
		take(&bench->queries.d_positions, nqueries * k) &&
		gv_gpu_exact_work(&bench->work, 0, &bench->norm, &amount) == GV_OK)
		return bench;
	bench_drop(bench);
	return NULL;
}

/* Half copies of rows. */
extern "C" int32_t
bench_rows(Bench *bench, const float *d_rows)
{
	cudaStream_t stream = bench->work.stream;

	bench->rows.d_rows = d_rows;
	GV_TRY(gv_gpu_exact_normalization(&bench->norm, d_rows, bench->rows.n, stream));
	GV_TRY(gv_gpu_exact_rows(&bench->norm, &bench->rows, stream));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* Search for queries [n], n as in bench_open; d_self as in exact.h. */
extern "C" int32_t
bench_search(Bench *bench, const float *d_queries, const int64_t *d_self)
{
	cudaStream_t stream = bench->work.stream;
	GvExactSearch search = {&bench->work, &bench->norm, &bench->rows,
		&bench->queries, NULL};

	bench->queries.d_queries = d_queries;
	bench->queries.d_self = d_self;
	GV_TRY(gv_gpu_exact_search(&search));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* Seconds [n] of searches, one after the other, for the same queries. */
extern "C" int32_t
bench_times(Bench *bench, const float *d_queries, int32_t n, double *seconds)
{
	for (int32_t i = 0; i < n; i++)
	{
		auto		began = std::chrono::steady_clock::now();
		int32_t		status = bench_search(bench, d_queries, NULL);

		if (status != GV_OK)
			return status;
		seconds[i] = std::chrono::duration<double>(
			std::chrono::steady_clock::now() - began).count();
	}
	return GV_OK;
}

/* Neighbors [nqueries][k], to the card's memory. */
extern "C" int32_t
bench_get(Bench *bench, int64_t *d_positions, double *d_distances)
{
	size_t		bytes = (size_t) (bench->queries.n * bench->queries.k) * 8;

	GV_CUDA_TRY(cudaMemcpyAsync(d_positions, bench->queries.d_positions, bytes,
								cudaMemcpyDeviceToDevice, bench->work.stream));
	GV_CUDA_TRY(cudaMemcpyAsync(d_distances, bench->queries.d_distances, bytes,
								cudaMemcpyDeviceToDevice, bench->work.stream));
	return gv_cuda_status(cudaStreamSynchronize(bench->work.stream));
}

/* Microseconds of cuBLAS's bare product. */
extern "C" double
bench_yard(int64_t nrows, int32_t ncolumns, int32_t dims)
{
	return yard_us(NULL, nrows, ncolumns, dims);
}
