/*
 * products.cu
 *		Products of half-precision matrices alone, on a card: cuBLAS's bare
 *		product (yard.cuh) beside those whose sums become scores of lists, rows
 *		that reach a cut, or candidates of k-means; each by cuBLAS, by the loop that
 *		every card has and by what only cards of compute capability 9.0 have.
 *
 * usage: products [ROWS COLUMNS DIMS]...
 *
 * Random numbers.  A row is a query and a column a list or a row of a set; or a
 * row is one of a set's and a column a centroid.  About one in a thousand columns
 * reaches a row's cut, and bounds of candidates are as an earlier pass left them.  Scores of lists are left out where they do not fit into YARD_SUMS, and
 * what 9.0 has where rows are so few that searches do not take it.
 *
 * Times are of kernels, the median of ROUNDS rounds in which all take turns: the
 * bare product's with its share of 989 T/s, the others' as multiples of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/exact/exact.h"
#include "gpu/kmeans/kmeans.h"
#include "gpu/product/wgmma.cuh"
#include "gpu/search/search.h"
#include "measure.h"
#include "yard.cuh"

#define ROUNDS			15
#define PEAK			989e12

/* A shape's arrays on the card. */
struct Bench
{
	int			nrows;
	int			ncolumns;
	int			dims;
	cudaStream_t stream;
	cublasHandle_t handle;
	GvBlas	   *blas;
	float	   *d_sums;
	GvDeviceModel model;
	GvBatch		batch;
	GvSearcher	searcher;
	GvExactMatmul exact;
	GvClusters	cl;
};

static void
need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "products: %s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

template <typename T>
static void
take(T **memory, int64_t n)
{
	need(cudaMalloc((void **) memory, (size_t) n * sizeof(T)) == cudaSuccess &&
		 cudaMemset(*memory, 0, (size_t) n * sizeof(T)) == cudaSuccess,
		 "memory");
}

static __global__ void
fill_kernel(float *values, int64_t n, float value)
{
	int64_t		i = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;

	for (; i < n; i += (int64_t) gridDim.x * blockDim.x)
		values[i] = value;
}

static float *
filled(int64_t n, float value)
{
	float	   *values;

	take(&values, n);
	fill_kernel<<<256, 256>>>(values, n, value);
	return values;
}

static void
make(Bench *bench)
{
	int64_t		rows = bench->nrows;
	int64_t		columns = (bench->ncolumns + 255) / 256 * 256;
	int			half_dims = (bench->dims + 15) / 16 * 16;
	uint16_t   *d_rows;
	uint16_t   *d_columns;
	float	   *d_squares = filled(columns, 1.0f);
	GvClusters *cl = &bench->cl;
	GvExactMatmul *exact = &bench->exact;
	static float2 length = {1.0f, 0x1p-12f};
	static float4 norm = {2.0f, 0x1p-11f, 0.0f, 0.0f};
	float2	   *lengths = (float2 *) malloc(rows * sizeof(float2));
	float4	   *norms = (float4 *) malloc(columns / GV_COLUMN_GROUP * sizeof(float4));

	for (int64_t i = 0; i < rows; i++)
		lengths[i] = length;
	for (int64_t i = 0; i < columns / GV_COLUMN_GROUP; i++)
		norms[i] = norm;
	take(&d_rows, rows * half_dims);
	take(&d_columns, columns * half_dims);
	yard_noise_kernel<<<1024, 256>>>(d_rows, rows * half_dims, half_dims, 1);
	yard_noise_kernel<<<1024, 256>>>(d_columns, columns * half_dims, half_dims,
									 1ull << 40);
	take(&bench->d_sums, yard_sums(rows, bench->ncolumns));

	bench->model.metric = GV_L2;
	bench->model.dims = bench->dims;
	bench->model.half_dims = half_dims;
	bench->model.nlists = bench->ncolumns;
	bench->model.d_half_centroids = d_columns;
	bench->model.d_squares = d_squares;
	bench->batch.n = (int32_t) rows;
	bench->batch.filter.d_half_queries = d_rows;
	if (rows * columns < YARD_SUMS)
	{
		take(&bench->batch.d_coarse, rows * columns);
		take(&bench->batch.filter.d_group_min, rows * columns / GV_COLUMN_GROUP);
	}
	bench->searcher.hopper = gv_has_hopper(0);
	bench->searcher.stream = bench->stream;

	exact->half_dims = half_dims;
	exact->n = (int32_t) rows;
	exact->nslots = (uint32_t) bench->ncolumns;
	exact->d_queries = d_rows;
	exact->d_half_rows = d_columns;
	exact->d_bias = d_squares;
	/* three times what sums vary by */
	exact->filter.d_thresholds = filled(rows, 1.0f + 3.0f / sqrtf(bench->dims));
	take(&exact->filter.d_counts, rows);
	take(&exact->filter.d_candidates, rows * 256);
	exact->filter.capacity = 256;

	cl->n = rows;
	cl->dims = bench->dims;
	cl->half_dims = half_dims;
	cl->k = bench->ncolumns;
	cl->columns = (int32_t) columns;
	cl->d_half_rows = d_rows;
	cl->d_half_centroids = d_columns;
	cl->d_squares = d_squares;
	take(&cl->d_most, 1);
	take(&cl->d_lengths, rows);
	take(&cl->d_group_norms, columns / GV_COLUMN_GROUP);
	need(cudaMemcpy(cl->d_lengths, lengths, rows * sizeof(float2),
					cudaMemcpyHostToDevice) == cudaSuccess &&
		 cudaMemcpy(cl->d_group_norms, norms, columns / GV_COLUMN_GROUP * sizeof(float4),
					cudaMemcpyHostToDevice) == cudaSuccess, "copy");
	cl->d_bounds = filled(rows, 4.0f);
	take(&cl->d_counts, rows);
	take(&cl->d_candidates, rows * GV_KMEANS_CANDIDATES);
	free(lengths);
	free(norms);
	need(cudaDeviceSynchronize() == cudaSuccess, "arrays");
}

static void
drop(Bench *bench)
{
	void	   *all[] = {bench->exact.filter.d_thresholds,
		bench->exact.filter.d_counts, bench->exact.filter.d_candidates,
		(void *) bench->exact.d_queries, bench->model.d_half_centroids,
		bench->model.d_squares, bench->d_sums, bench->batch.d_coarse,
		bench->batch.filter.d_group_min, bench->cl.d_most, bench->cl.d_lengths,
		bench->cl.d_group_norms, bench->cl.d_bounds, bench->cl.d_counts,
	bench->cl.d_candidates};

	for (void *memory : all)
		(void) cudaFree(memory);
}

/* -- ways, by whom `by` says */

enum By
{
	BY_CUBLAS,
	BY_LOOP,
	BY_HOPPER
};

static void
score_lists(Bench *bench, By by)
{
	bench->searcher.blas = by == BY_CUBLAS ? bench->blas : NULL;
	gv_matmul_width = by == BY_HOPPER ? -1 : 0;
	need(gv_gpu_list_scores(&bench->model, &bench->batch, &bench->searcher) ==
		 GV_OK, "scores of lists");
}

static void
reach_cuts(Bench *bench, By by)
{
	(void) cudaMemsetAsync(bench->exact.filter.d_counts, 0,
						   bench->nrows * sizeof(uint32_t), bench->stream);
	if (by == BY_HOPPER)
		need(gv_gpu_exact_hopper(&bench->exact, bench->searcher.nsms,
								 bench->stream) == GV_OK, "filter");
	else
		need(gv_gpu_exact_matmul(&bench->exact, by == BY_CUBLAS ?
								  bench->blas : NULL, bench->stream) == GV_OK,
			 "filter");
}

static void
find_candidates(Bench *bench, By by)
{
	GvMatmulContext product = {by == BY_CUBLAS ? bench->blas : NULL,
	by == BY_HOPPER, bench->searcher.nsms, false, bench->stream};

	gv_matmul_width = -1;
	need(gv_gpu_candidates(&bench->cl, bench->nrows, bench->ncolumns,
						   &product) == GV_OK, "candidates");
}

static void
bare(Bench *bench, By by)
{
	yard_multiply(bench->handle, bench->nrows, bench->ncolumns,
				  bench->model.half_dims, bench->exact.d_queries,
				  bench->model.d_half_centroids, bench->d_sums);
}

struct Way
{
	const char *name;
	void		(*work) (Bench *bench, By by);
	By			by;
	bool		fits;
	double		times[ROUNDS] = {};
};

static double
measure(Bench *bench, const Way *way, cudaEvent_t begin, cudaEvent_t end)
{
	float		ms;

	(void) cudaEventRecord(begin, bench->stream);
	way->work(bench, way->by);
	(void) cudaEventRecord(end, bench->stream);
	need(cudaStreamSynchronize(bench->stream) == cudaSuccess &&
		 cudaEventElapsedTime(&ms, begin, end) == cudaSuccess, way->name);
	return 1000.0 * ms;
}

static void
run(Bench *bench)
{
	bool		hopper = gv_has_hopper(0) && gv_gpu_hopper_multiplies();
	bool		held = bench->batch.d_coarse != NULL;
	Way			ways[] = {
		{"cublas bare", bare, BY_CUBLAS, true},
		{"lists cublas", score_lists, BY_CUBLAS, held},
		{"lists loop", score_lists, BY_LOOP, held},
		{"lists 9.0", score_lists, BY_HOPPER, held && hopper &&
		bench->nrows > GV_SMALL_ROWS},
		{"exact cublas", reach_cuts, BY_CUBLAS, true},
		{"exact loop", reach_cuts, BY_LOOP, true},
		{"exact 9.0", reach_cuts, BY_HOPPER, hopper && bench->nrows > 64},
		{"kmeans cublas", find_candidates, BY_CUBLAS, true},
		{"kmeans loop", find_candidates, BY_LOOP, true},
		{"kmeans 9.0", find_candidates, BY_HOPPER, hopper &&
		bench->nrows > GV_SMALL_FULL_ROWS},
	};
	cudaEvent_t begin;
	cudaEvent_t end;
	double		yard = 0.0;

	(void) cudaEventCreate(&begin);
	(void) cudaEventCreate(&end);
	for (int round = -2; round < ROUNDS; round++)
		for (Way &way : ways)
		{
			double		us = way.fits ? measure(bench, &way, begin, end) : 0;

			if (round >= 0)
				way.times[round] = us;
		}
	printf("%d x %d x %d\n", bench->nrows, bench->ncolumns, bench->dims);
	for (Way &way : ways)
	{
		double		us;

		bench_sort_times(way.times, ROUNDS);
		us = way.times[ROUNDS / 2];
		if (way.work == bare)
		{
			yard = us;
			printf("  %-14s %10.1f us  %3.0f %% of the peak\n", way.name, us,
				   100.0 * 2e6 * bench->nrows * bench->ncolumns *
				   bench->dims / PEAK / us);
		}
		else if (way.fits)
			printf("  %-14s %10.1f us  %5.2f\n", way.name, us, us / yard);
	}
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	static const char *usual[] = {
		"64", "8192", "384", "128", "8450", "384", "500", "8450", "384",
		"10000", "8192", "384", "10000", "8192", "768", "10000", "20000",
		"128", "10000", "20000", "384", "10000", "20000", "960",
	"131072", "1000", "128", "262144", "4096", "128", "131072", "4096", "384",
	"131072", "4096", "768", "65536", "4096", "1536"};
	int			n = argc > 1 ? argc - 1 : (int) (sizeof(usual) / sizeof(usual[0]));
	const char *const *shapes = argc > 1 ? argv + 1 : usual;
	static GvDevice devices[GV_MAX_DEVICES];
	int32_t		ndevices;

	gv_matmul_use(GV_MATMUL_CUBLAS);
	need(gv_gpu_open("", devices, &ndevices) == GV_OK &&
		 gv_blas_open(devices, ndevices) == GV_OK, devices[0].name);
	printf("%s\n", devices[0].name);
	for (int i = 0; i + 2 < n; i += 3)
	{
		Bench		bench = {};

		bench.nrows = atoi(shapes[i]);
		bench.ncolumns = atoi(shapes[i + 1]);
		bench.dims = atoi(shapes[i + 2]);
		need(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking) ==
			 cudaSuccess && gv_blas_create(0, 0, bench.stream, &bench.blas) ==
			 GV_OK && cublasCreate(&bench.handle) == CUBLAS_STATUS_SUCCESS &&
			 cublasSetStream(bench.handle, bench.stream) ==
			 CUBLAS_STATUS_SUCCESS &&
			 cudaDeviceGetAttribute(&bench.searcher.nsms,
									cudaDevAttrMultiProcessorCount, 0) ==
			 cudaSuccess, "a stream");
		make(&bench);
		run(&bench);
		drop(&bench);
		(void) cublasDestroy(bench.handle);
		gv_blas_drop(bench.blas);
		(void) cudaStreamDestroy(bench.stream);
	}
	return 0;
}
