/*
 * selectpapers.cu
 *		The experiments of two papers on selection, on a processor or, if nvcc
 *		compiles it, on a card; answers are checked.
 *
 * usage: selectpapers ranks|rows [LARGEST]
 *	ranks	Ribizel, Anzt, 2019, section V: one rank of n values, 2^16 to
 *			2^LARGEST (28), which are uniform among d distinct ones; exactly, and
 *			100 random ranks approximately, beside std::nth_element and a sort
 *	rows	Komarov, Dashti, D'Souza, 2014, figures 5 and 10: the first k of rows
 *			of 2^13 to 2^20 values, beside the same and a sort of the rows
 * build: test/bench/selectpapers.py does, runs this and prints tables of it
 *
 * A sort is std::sort or, on a card, CUB's.  Milliseconds, on a processor those
 * that it worked; -1: not measured.  ranks prints precision, log2 n, d (0: n),
 * log2 of the buckets, exact, 16 ranks exactly, approximate, mean error of a rank
 * in n, nth_element, sort, wrong answers.  rows prints columns, k, the method
 * that is chosen, milliseconds of a row by each method, nth_element, sort, wrong
 * rows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <vector>

#ifdef __CUDACC__
#include <cub/device/device_segmented_radix_sort.cuh>

#include "gpu/device/device.h"
/* with TREE_BITS; in place of the library's */
#include "gpu/select/sampleselect.cu"
#include "cardtime.cuh"
#define BITS		TREE_BITS
#define CLOCK		CLOCK_MONOTONIC
#define choose		gv_gpu_select_choose
#define EQUALS		28
#define LONG_RUNS	7			/* of more than 2^24 values */
#else
extern "C"
{
#include "engine/gv_select.h"
}
#define BITS		GV_BUCKET_BITS
#define CLOCK		CLOCK_PROCESS_CPUTIME_ID
#define choose		gv_select_choose
#define EQUALS		24			/* log2 of values many of which are equal */
#define LONG_RUNS	3
#define NEED(call)	need((call) == 0, #call)

static void
need(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "selectpapers: %s failed\n", what);
	exit(1);
}
#endif

#define SOME_RANKS	16			/* asked for exactly at once */
#define NRANKS		100			/* ... and approximately */
#define LOOKED_AT	8			/* rows; a processor has no more */

static double
now_ms()
{
	struct timespec now;

	clock_gettime(CLOCK, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* The median of some runs; prepare() is not counted. */
template <typename Prepare, typename Step>
static double
time_ms(int runs, Prepare prepare, Step step)
{
	std::vector<double> times;

	for (int i = 0; i < runs; i++)
	{
		double		began;

		prepare();
		began = now_ms();
		step();
		times.push_back(now_ms() - began);
	}
	std::sort(times.begin(), times.end());
	return times[runs / 2];
}

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t
random_of(uint64_t i)
{
	uint64_t	z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return z ^ z >> 31;
}

/* values [n] of d distinct ones, or of any from 0 to 1 if d is 0. */
template <typename Value>
static std::vector<Value>
make_values(int64_t n, int64_t d)
{
	std::vector<Value> values(n);

#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		values[i] = d > 0 ? (Value) (random_of(i) % d) :
			(Value) (random_of(i) >> 11) / (Value) (UINT64_C(1) << 53);
	return values;
}

/* Memory that the caller of the engine gives, or a card's copy of values. */
struct Memory
{
	void	   *bytes = NULL;

	void
	take(size_t n)
	{
#ifdef __CUDACC__
		NEED(cudaMalloc(&bytes, n));
#else
		bytes = aligned_alloc(64, (n + 63) / 64 * 64);
		need(bytes != NULL, "memory");
#endif
	}

	~Memory()
	{
#ifdef __CUDACC__
		(void) cudaFree(bytes);
#else
		free(bytes);
#endif
	}
};

#ifdef __CUDACC__
static GvSelector *selector;

template <typename Value>
static void
upload(Memory *memory, const std::vector<Value> &values)
{
	memory->take(sizeof(Value) * values.size());
	NEED(cudaMemcpy(memory->bytes, values.data(), sizeof(Value) *
					values.size(), cudaMemcpyHostToDevice));
}
#endif

/* Returns whether value is at this rank of the sorted values. */
template <typename Value>
static bool
is_at_rank(const std::vector<Value> &values, int64_t rank, Value value)
{
	int64_t		nbelow = 0;
	int64_t		nequal = 0;

#pragma omp parallel for reduction(+:nbelow, nequal)
	for (size_t i = 0; i < values.size(); i++)
	{
		nbelow += values[i] < value;
		nequal += values[i] == value;
	}
	return rank >= nbelow && rank < nbelow + nequal;
}

/* A line of `ranks`. */
template <typename Value>
static void
measure_ranks(int log_n, int64_t d, bool alone)
{
	int64_t		n = INT64_C(1) << log_n;
	int			runs = log_n > 24 ? LONG_RUNS : 7;
	std::vector<Value> values = make_values<Value>(n, d);
	std::vector<Value> copy;
	GvQuantiles exact = {n, 1, false, sizeof(Value) == 8};
	GvQuantiles some = {n, SOME_RANKS, false, exact.doubles};
	GvQuantiles approximate = {n, NRANKS, true, exact.doubles};
	int64_t		ranks[NRANKS];
	int64_t		errors[NRANKS];
	Value		found[NRANKS];
	Value		quantile = 0;
	double		ours[3];
	double		nth = -1;
	double		sort = -1;
	double		error = 0;
	int			nwrong = 0;
	Memory		memory;
	auto		nothing = [] {};
	auto		restore = [&] { copy = values; };

	for (int i = 0; i < NRANKS; i++)
		ranks[i] = random_of(n + i) % n;
#ifdef __CUDACC__
	upload(&memory, values);
	auto		run = [&](const GvQuantiles *spec, Value *answers)
	{
		need(gv_gpu_quantiles(selector, spec, memory.bytes, ranks, answers,
							  errors, NULL) == GV_OK, "quantiles");
	};
#else
	memory.take(std::max(gv_quantiles_scratch(&some),
						 gv_quantiles_scratch(&approximate)));
	auto		run = [&](const GvQuantiles *spec, Value *answers)
	{
		need(gv_quantiles(spec, values.data(), ranks, answers, errors,
						  memory.bytes, NULL) == GV_OK, "quantiles");
	};
#endif
	run(&exact, &quantile);
	ours[0] = time_ms(runs, nothing, [&] { run(&exact, &quantile); });
	ours[1] = time_ms(runs, nothing, [&] { run(&some, found); });
	nwrong += found[0] != quantile;
	ours[2] = time_ms(runs, nothing, [&] { run(&approximate, found); });
	for (int i = 0; i < NRANKS; i++)
		error += std::abs((double) errors[i]) / n / NRANKS;
	nwrong += !is_at_rank(values, ranks[0], quantile) ||
		!is_at_rank(values, ranks[0] + errors[0], found[0]);
	/* once for the most values: it takes seconds on whatever host */
	if (alone && (log_n <= 24 || d == 0))
		nth = time_ms(log_n > 24 ? 1 : 7, restore, [&]
		{
			std::nth_element(copy.begin(), copy.begin() + ranks[0], copy.end());
		});
	if (alone)
	{
#ifdef __CUDACC__
		Memory		sorted;
		Memory		space;
		size_t		bytes = 0;
		auto		sort_all = [&]
		{
			NEED(cub::DeviceRadixSort::SortKeys(
					 space.bytes, bytes, (const Value *) memory.bytes,
					 (Value *) sorted.bytes, n));
			NEED(cudaDeviceSynchronize());
		};

		sorted.take(sizeof(Value) * n);
		sort_all();
		space.take(bytes);
		sort_all();
		sort = time_ms(runs, nothing, sort_all);
#else
		sort = time_ms(log_n > 24 ? 1 : 3, restore, [&]
		{
			std::sort(copy.begin(), copy.end());
		});
#endif
	}
	printf("%s\t%d\t%lld\t%d\t%.3f\t%.3f\t%.3f\t%.6f\t%.3f\t%.3f\t%d\n",
		   exact.doubles ? "double" : "single", log_n, (long long) d, BITS,
		   ours[0], ours[1], ours[2], error, nth, sort, nwrong);
	fflush(stdout);
}

/* Of other numbers of buckets than the engine's only all distinct values. */
template <typename Value>
static void
measure_all_ranks(int largest)
{
	for (int log_n = 16; log_n <= largest; log_n += 4)
		for (int64_t d : {0, 1, 16, 128, 1024})
			if (d == 0 || (BITS == 8 && log_n == std::min(largest, EQUALS)))
				measure_ranks<Value>(log_n, d, BITS == 8);
}

/*
 * Lines of `rows`: milliseconds of one row.  On a card 2^27 values, but at least
 * 128 rows, and its sort of them.
 */
static void
measure_rows(int64_t columns, std::initializer_list<int32_t> ks)
{
	int32_t		most = *(ks.end() - 1);
#ifdef __CUDACC__
	int64_t		rows = std::max((INT64_C(1) << 27) / columns, INT64_C(128));
#else
	int64_t		rows = LOOKED_AT;
#endif
	std::vector<float> values = make_values<float>(rows * columns, 0);
	std::vector<float> copy;
	std::vector<float> selected(rows * most);
	std::vector<uint32_t> positions(rows * most);
	double		sort;
	auto		nothing = [] {};
	auto		restore = [&]
	{
		copy.assign(values.begin(), values.begin() + LOOKED_AT * columns);
	};
#ifdef __CUDACC__
	std::vector<int> starts(rows + 1);
	Memory		d_values;
	Memory		d_sorted;
	Memory		d_positions;
	Memory		d_selected;
	Memory		d_starts;
	Memory		space;
	size_t		bytes = 0;
	auto		run = [&](const GvSelect *spec)
	{
		need(gv_gpu_select_rows(selector, spec, d_values.bytes,
								(uint32_t *) d_positions.bytes,
								d_selected.bytes, NULL) == GV_OK, "selection");
		NEED(cudaDeviceSynchronize());
	};
	auto		sort_all = [&]
	{
		NEED(cub::DeviceSegmentedRadixSort::SortKeys(
				 space.bytes, bytes, (const float *) d_values.bytes,
				 (float *) d_sorted.bytes, (int) values.size(), (int) rows,
				 (const int *) d_starts.bytes,
				 (const int *) d_starts.bytes + 1));
		NEED(cudaDeviceSynchronize());
	};

	for (int64_t i = 0; i <= rows; i++)
		starts[i] = (int) (i * columns);
	upload(&d_values, values);
	upload(&d_starts, starts);
	d_sorted.take(sizeof(float) * values.size());
	d_positions.take(sizeof(uint32_t) * positions.size());
	d_selected.take(sizeof(float) * selected.size());
	sort_all();
	space.take(bytes);
	sort_all();
	sort = time_ms(7, nothing, sort_all) / rows;
#else
	auto		run = [&](const GvSelect *spec)
	{
		Memory		scratch;

		scratch.take(gv_select_scratch(spec));
		need(gv_select(spec, values.data(), positions.data(), selected.data(),
					   scratch.bytes, NULL) == GV_OK, "selection");
	};

	sort = time_ms(3, restore, [&]
	{
		for (int i = 0; i < LOOKED_AT; i++)
			std::sort(copy.begin() + i * columns,
					  copy.begin() + (i + 1) * columns);
	}) / rows;
#endif
	for (int32_t k : ks)
	{
		GvSelect	spec = {rows, columns, k, GV_SELECT_AUTO, false};
		int			nwrong = 0;
		double		nth = time_ms(7, restore, [&]
		{
			for (int i = 0; i < LOOKED_AT; i++)
				std::nth_element(copy.begin() + i * columns,
								 copy.begin() + i * columns + k - 1,
								 copy.begin() + (i + 1) * columns);
		}) / LOOKED_AT;

		printf("%lld\t%d\t%s", (long long) columns, k,
			   gv_select_name(choose(&spec)));
		for (GvSelectMethod method : {GV_SELECT_WARP, GV_SELECT_MULTI,
									  GV_SELECT_SAMPLE})
		{
			spec.method = method;
			run(&spec);
			printf("\t%.6f",
				   time_ms(7, nothing, [&] { run(&spec); }) / rows);
#ifdef __CUDACC__
			NEED(cudaMemcpy(selected.data(), d_selected.bytes, sizeof(float) *
							rows * k, cudaMemcpyDeviceToHost));
#endif
			for (int i = 0; i < LOOKED_AT; i++)
				nwrong += copy[i * columns + k - 1] != selected[(i + 1) * k - 1];
		}
		printf("\t%.6f\t%.6f\t%d\n", nth, sort, nwrong);
		fflush(stdout);
	}
}

int
main(int argc, char **argv)
{
	int			largest = argc > 2 ? atoi(argv[2]) : 28;

	need(argc > 1 && largest >= 16 && largest <= 30, "the command line");
#ifdef __CUDACC__
	need(gv_gpu_selector(&selector) == GV_OK, "selector");
	/* the trees of more buckets take more than a launch allows */
	NEED(cudaFuncSetAttribute(bucket_kernel<float>,
							  cudaFuncAttributeMaxDynamicSharedMemorySize,
							  sizeof(GvItem<float>) * SAMPLED));
#endif
	if (strcmp(argv[1], "ranks") == 0)
	{
		measure_all_ranks<float>(largest);
		measure_all_ranks<double>(largest);
		return 0;
	}
	for (int log_n = 13; log_n <= 20; log_n++)
		measure_rows(INT64_C(1) << log_n, {64, 128, 256, 512, 1024});
	/* Johnson, Douze, Jegou, 2017, section 6.1 */
	measure_rows(128000, {100, 1000, 1024});
	return 0;
}
