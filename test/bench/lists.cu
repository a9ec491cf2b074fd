/*
 * lists.cu
 *		The choice of lists alone, on a card: random centroids, batches of all
 *		sizes, exact scores (coarse.cu, select.cu) beside the filter (coarsefilter.cu),
 *		whose lists must be the same.
 *
 * usage: lists [DIMS [NLISTS [PROBES [sorted]]]], 384, 8192 and 30 unless said
 * build: nvcc -std=c++17 -O3 -fmad=false -arch=sm_90a -Isrc -I.
 *			test/bench/lists.cu, the engine's objects, -lcublas (test/gpu/run.sh)
 *
 * Centroids lie around a hundred centers, those of one side by side if sorted, a
 * query near one of them.  Times are
 * of kernels without copies, the mean of REPEATS in a row between two events.
 * The share is of what a product in half precision needs at 989 T/s; bare is
 * cuBLAS's bare product of the same shape (yard.cuh), and x a time as a multiple
 * of that.  Scores go to memory there, all of them; where it is better that only
 * the least ones of runs do, a line more has the product and the filter so.  A
 * batch that wgmma.cuh serves has two lines more: the product that every card
 * can do, and how far scores differ from its; wgmma.cuh's by each width of
 * tiles.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/search/search.h"
#include "yard.cuh"

/* gpu/search/coarsefilter.cu */
extern int64_t gv_scores_kept;
extern "C" GvStatus gv_gpu_coarse_paths(GvSearcher *searcher,
										uint32_t paths[GV_COARSE_PATHS]);

#define REPEATS			20
#define CENTERS			100
#define MOST_QUERIES	10000
#define PEAK			989e12
#define LARGEST			1e-4f	/* difference of two approximate scores of such
								 * numbers that rounding may make */

/* Arrays of a batch on the card, and what both ways put there. */
struct Bench
{
	GvMirror   *mirror;
	GvSearcher *searcher;
	GvBatch		batch;
	float	   *d_other;		/* [n][nlists] scores of another way */
	float	   *d_other_group_min;	/* [n][nruns] */
	float	   *d_difference;
	size_t		probed_bytes;
	size_t		starts_bytes;
	cudaEvent_t begin;
	cudaEvent_t end;
};

static void
need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "lists: %s failed: %s\n", what,
			cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

static void *
on_card(const void *from, size_t bytes)
{
	void	   *memory;

	need(cudaMalloc(&memory, bytes) == cudaSuccess, "memory");
	if (from != NULL)
		need(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice) ==
			 cudaSuccess, "copy");
	return memory;
}

/* Between -2 and 2, mostly about 0. */
static float
noise(void)
{
	static uint64_t seed = 1;

	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (float) ((seed & 65535) + (seed >> 16 & 65535)) / 32768.0f -
		(float) ((seed >> 32 & 65535) + (seed >> 48)) / 32768.0f;
}

/* Rows [n][dims] around centers, one after the other or in turn. */
static float *
make_rows(const float *centers, int n, int dims, bool sorted)
{
	float	   *rows = (float *) malloc(sizeof(float) * n * dims);

	for (int i = 0; i < n; i++)
	{
		int			c = sorted ? (int) ((int64_t) i * CENTERS / n) : i % CENTERS;
		const float *center = centers + (size_t) c * dims;

		for (int d = 0; d < dims; d++)
			rows[(size_t) i * dims + d] = (center[d] + noise()) /
				sqrtf((float) dims);
	}
	return rows;
}

static GvStatus
find_exactly(const Bench *bench)
{
	const GvDeviceModel *model = &bench->mirror->model;

	GV_TRY(gv_gpu_coarse(model, &bench->batch, bench->searcher->stream));
	return gv_gpu_select_lists(model, &bench->batch, bench->searcher);
}

static GvStatus
score_exactly(const Bench *bench)
{
	return gv_gpu_coarse(&bench->mirror->model, &bench->batch,
						 bench->searcher->stream);
}

static GvStatus
find_near(const Bench *bench)
{
	return gv_gpu_coarse_filter(&bench->mirror->model, &bench->batch,
							  bench->searcher);
}

/* Only the product, of queries that find_near has left behind. */
static GvStatus
multiply(const Bench *bench)
{
	return gv_gpu_list_scores(&bench->mirror->model, &bench->batch,
						  bench->searcher);
}

/* Microseconds that a step takes. */
static double
measure(const Bench *bench, GvStatus (*step) (const Bench *bench))
{
	cudaStream_t stream = bench->searcher->stream;
	float		ms = 0.0f;

	need(step(bench) == GV_OK, "step");
	(void) cudaEventRecord(bench->begin, stream);
	for (int i = 0; i < REPEATS; i++)
		need(step(bench) == GV_OK, "step");
	(void) cudaEventRecord(bench->end, stream);
	need(cudaStreamSynchronize(stream) == cudaSuccess, "wait");
	(void) cudaEventElapsedTime(&ms, bench->begin, bench->end);
	return 1000.0 * ms / REPEATS;
}

/* The lists and starts that a way finds, the caller's to free. */
static char *
find(const Bench *bench, GvStatus (*way) (const Bench *bench))
{
	char	   *found = (char *) malloc(bench->probed_bytes +
										bench->starts_bytes);

	need(way(bench) == GV_OK &&
		 cudaStreamSynchronize(bench->searcher->stream) == cudaSuccess, "way");
	need(cudaMemcpy(found, bench->batch.d_probed, bench->probed_bytes,
					cudaMemcpyDeviceToHost) == cudaSuccess &&
		 cudaMemcpy(found + bench->probed_bytes, bench->batch.d_starts,
					bench->starts_bytes, cudaMemcpyDeviceToHost) ==
		 cudaSuccess, "copy back");
	return found;
}

/* The largest difference of two arrays [n]; infinities of a sign have none. */
static __global__ void
difference_kernel(const float *one, const float *other, int64_t n,
				  float *largest)
{
	int64_t		i = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;
	float		difference = 0.0f;

	for (; i < n; i += (int64_t) gridDim.x * blockDim.x)
		if (one[i] != other[i])
		{
			float		here = fabsf(one[i] - other[i]);

			/* NaN is as bad as can be */
			difference = here <= difference ? difference :
				here < INFINITY ? here : INFINITY;
		}
	/* what is not negative ascends as its bits do */
	atomicMax((unsigned *) largest, __float_as_uint(difference));
}

/*
 * How far the scores, and the least ones of runs, of wgmma.cuh's product by
 * tiles of so many lists differ from the baseline's, which are in d_other.
 */
static float
compare_products(const Bench *bench, int lists)
{
	const GvBatch *batch = &bench->batch;
	int64_t		n = batch->n;
	int32_t		nlists = bench->mirror->spec.nlists;
	int64_t		ngroups = gv_ncolumn_groups(nlists);
	cudaStream_t stream = bench->searcher->stream;
	float		difference;

	/* what is not written differs */
	need(cudaMemsetAsync(batch->d_coarse, 0xFF,
						 sizeof(float) * n * gv_score_stride(nlists),
						 stream) == cudaSuccess &&
		 cudaMemsetAsync(batch->filter.d_group_min, 0xFF,
						 sizeof(float) * n * ngroups,
						 stream) == cudaSuccess &&
		 cudaMemsetAsync(bench->d_difference, 0, sizeof(float), stream) ==
		 cudaSuccess, "clearing");
	gv_matmul_width = lists;
	need(multiply(bench) == GV_OK, "product");
	difference_kernel<<<1024, 256, 0, stream>>>(batch->d_coarse,
												bench->d_other,
												n * gv_score_stride(nlists),
												bench->d_difference);
	difference_kernel<<<1024, 256, 0, stream>>>(batch->filter.d_group_min,
												bench->d_other_group_min,
												n * ngroups,
												bench->d_difference);
	need(cudaStreamSynchronize(stream) == cudaSuccess &&
		 cudaMemcpy(&difference, bench->d_difference, sizeof(float),
					cudaMemcpyDeviceToHost) == cudaSuccess, "difference");
	return difference;
}

/* The other lines of the table, of a batch that wgmma.cuh serves. */
static bool
run_variants(Bench *bench, double floor, double yard)
{
	static const int widths[] = {96, 128, 160, 192, 256, 288, 320};
	GvBatch		kept = bench->batch;
	float		difference = 0.0f;
	double		times[2];

	gv_matmul_width = 0;
	times[0] = measure(bench, multiply);
	times[1] = measure(bench, find_near);
	bench->batch.d_coarse = bench->d_other;
	bench->batch.filter.d_group_min = bench->d_other_group_min;
	need(multiply(bench) == GV_OK, "baseline");
	bench->batch = kept;
	for (int width : widths)
		difference = fmaxf(difference, compare_products(bench, width));
	printf("   baseline                  %13.1f %5.0f %% %9s %5.2f %9.1f %5.2f  "
		   "scores differ by up to %.1e%s\n   widths   ", times[0],
		   100.0 * floor / times[0], "", times[0] / yard, times[1],
		   times[1] / yard, difference,
		   difference <= LARGEST ? "" : "  DIFFERENT SCORES");
	for (int width : widths)
	{
		gv_matmul_width = width;
		printf("  %d: %.1f", width, measure(bench, multiply));
	}
	printf("\n");
	gv_matmul_width = -1;
	return difference <= LARGEST;
}

/* The line of a batch whose scores need not go to memory. */
static bool
run_alone(Bench *bench, const char *exact, double yard)
{
	double		times[3];
	uint32_t	ways[GV_COARSE_PATHS];
	uint32_t	before[GV_COARSE_PATHS];
	bool		same;
	char	   *near;

	gv_scores_kept = 0;
	need(gv_gpu_coarse_paths(bench->searcher, before) == GV_OK, "ways");
	near = find(bench, find_near);
	need(gv_gpu_coarse_paths(bench->searcher, ways) == GV_OK, "ways");
	same = memcmp(exact, near, bench->probed_bytes + bench->starts_bytes) == 0;
	times[0] = measure(bench, multiply);
	times[1] = measure(bench, find_near);
	gv_matmul_width = 0;
	times[2] = measure(bench, multiply);
	gv_matmul_width = -1;
	if (gv_gpu_group_min_alone(&bench->mirror->model, &bench->batch))
		printf("   least alone               %13.1f, baseline %6.1f %5.2f %9.1f "
			   "%5.2f  %u/%u%s\n", times[0], times[2], times[0] / yard,
			   times[1], times[1] / yard,
			   ways[GV_COARSE_GROUPS_ALONE] - before[GV_COARSE_GROUPS_ALONE],
			   ways[GV_COARSE_EXACT] - before[GV_COARSE_EXACT],
			   same ? "" : "  DIFFERENT LISTS");
	gv_scores_kept = INT64_MAX;
	free(near);
	return same;
}

/* A line of the table, or some. */
static bool
group(Bench *bench, int n)
{
	const GvMirrorSpec *spec = &bench->mirror->spec;
	GvBatch    *batch = &bench->batch;
	double		floor = 2.0 * n * spec->nlists * spec->dims / PEAK * 1e6;
	uint32_t	before[GV_COARSE_PATHS];
	uint32_t	ways[GV_COARSE_PATHS];
	double		times[4];
	double		yard;
	char	   *exact;
	char	   *near;
	bool		same;

	gv_scores_kept = INT64_MAX;
	batch->n = n;
	bench->probed_bytes = sizeof(GvProbe) * (size_t) n * batch->nprobe;
	bench->starts_bytes = sizeof(uint32_t) * (size_t) n * (batch->nprobe + 1);
	exact = find(bench, find_exactly);
	need(gv_gpu_coarse_paths(bench->searcher, before) == GV_OK, "ways");
	near = find(bench, find_near);
	need(gv_gpu_coarse_paths(bench->searcher, ways) == GV_OK, "ways");
	same = memcmp(exact, near, bench->probed_bytes + bench->starts_bytes) == 0;
	times[0] = measure(bench, score_exactly);
	times[1] = measure(bench, find_exactly);
	times[2] = measure(bench, multiply);
	times[3] = measure(bench, find_near);
	yard = yard_us(bench->searcher->stream, n, spec->nlists, spec->dims);
	printf("%6d %11.1f %9.1f %13.1f %5.0f %% %9.1f %5.2f %9.1f %5.2f  "
		   "%u/%u/%u%s\n",
		   n, times[0], times[1], times[2], 100.0 * floor / times[2], yard,
		   times[2] / yard, times[3], times[3] / yard,
		   ways[GV_COARSE_GROUPS] - before[GV_COARSE_GROUPS],
		   ways[GV_COARSE_ALL] - before[GV_COARSE_ALL],
		   ways[GV_COARSE_EXACT] - before[GV_COARSE_EXACT],
		   same ? "" : "  DIFFERENT LISTS");
	same &= run_alone(bench, exact, yard);
	if (bench->searcher->hopper && batch->n > GV_SMALL_ROWS &&
		gv_gpu_hopper_multiplies())
		same &= run_variants(bench, floor, yard);
	free(exact);
	free(near);
	return same;
}

/* A mirror with such centroids and empty lists; queries and arrays beside. */
static void
prepare(Bench *bench, int dims, int nlists, int probes, int most, bool sorted)
{
	GvMirrorSpec spec = {};
	GvBatch    *batch = &bench->batch;
	GvSearchParams   *wanted = (GvSearchParams *) calloc(most, sizeof(GvSearchParams));
	float	   *centers = (float *) malloc(sizeof(float) * CENTERS * dims);
	float	   *centroids;
	float	   *queries;

	spec.metric = GV_L2;
	spec.dims = dims;
	spec.m = 1;
	spec.nlists = nlists;
	spec.nparents = 1;
	for (int i = 0; i < CENTERS * dims; i++)
		centers[i] = noise();
	centroids = make_rows(centers, nlists, dims, sorted);
	queries = make_rows(centers, most, dims, false);
	need(gv_gpu_create(&spec, &bench->mirror) == GV_OK &&
		 gv_gpu_put_array(bench->mirror, GV_CENTROIDS, 0,
						  (int64_t) nlists * dims, centroids) == GV_OK &&
		 gv_cuda_mirrors.searcher(0, &bench->searcher) == GV_OK &&
		 cudaDeviceSynchronize() == cudaSuccess, "mirror");
	for (int i = 0; i < most; i++)
		params[i].nprobe = probes;
	batch->nprobe = probes;
	batch->d_queries = (float *) on_card(queries, sizeof(float) *
										 (size_t) most * dims);
	batch->d_params = (GvSearchParams *) on_card(wanted, sizeof(GvSearchParams) * most);
	batch->d_coarse = (float *) on_card(NULL, sizeof(float) *
										most * gv_score_stride(nlists));
	bench->d_other = (float *) on_card(NULL, sizeof(float) *
									   most * gv_score_stride(nlists));
	bench->d_other_group_min = (float *) on_card(NULL, sizeof(float) *
											 (size_t) most * gv_ncolumn_groups(nlists));
	bench->d_difference = (float *) on_card(NULL, sizeof(float));
	batch->d_probed = (GvProbe *) on_card(NULL, sizeof(GvProbe) *
										  (size_t) most * probes);
	batch->d_starts = (uint32_t *) on_card(NULL, sizeof(uint32_t) *
										   (size_t) most * (probes + 1));
	batch->d_search_counts = (GvSearchCounts *) on_card(NULL, sizeof(GvSearchCounts) * most);
	batch->filter.d_half_queries = (uint16_t *)
		on_card(NULL, sizeof(uint16_t) * most *
				(size_t) bench->mirror->model.half_dims);
	batch->filter.nsquares = 1;
	batch->filter.d_squares = (float2 *) on_card(NULL, sizeof(float2) * most);
	batch->filter.d_group_min = (float *) on_card(NULL, sizeof(float) *
											(size_t) most * gv_ncolumn_groups(nlists));
	batch->filter.d_path_counts = (unsigned *) bench->searcher->d_path_counts.memory;
	need(cudaEventCreate(&bench->begin) == cudaSuccess &&
		 cudaEventCreate(&bench->end) == cudaSuccess, "events");
	free(centers);
	free(centroids);
	free(queries);
	free(wanted);
}

int
main(int argc, char **argv)
{
	static const int sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 1024,
	4096, MOST_QUERIES};
	int			dims = argc > 1 ? atoi(argv[1]) : 384;
	int			nlists = argc > 2 ? atoi(argv[2]) : 8192;
	int			probes = argc > 3 ? atoi(argv[3]) : 30;
	int64_t		capacity = ((int64_t) 1 << 33) / 4 / nlists;
	int			most = capacity < MOST_QUERIES ? (int) capacity : MOST_QUERIES;
	Bench		bench = {};
	GvDevice	devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	bool		good = true;

	need(dims > 0 && probes > 0 && probes <= 2048 && nlists >= probes &&
		 most > 0, "reading the arguments");
	need(gv_gpu_open("0", devices, &ndevices) == GV_OK, "opening the card");
	prepare(&bench, dims, nlists, probes, most,
			argc > 4 && strcmp(argv[4], "sorted") == 0);
	printf("%s: %d dimensions, %d lists, %d probes; microseconds%s\n",
		   devices[0].name, dims, nlists, probes,
		   bench.searcher->hopper ? "" : "; without wgmma.cuh");
	printf(" batch exact: scores     lists near: product   share      bare     x "
		   "    lists     x  runs/all/exact\n");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i] <= most)
			good &= group(&bench, sizes[i]);
	return good ? 0 : 1;
}
