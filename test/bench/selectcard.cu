/*
 * selectcard.cu
 *		k-selection alone, on a card: rows in its memory; answers against the
 *		portable engine's.
 *
 * usage: selectcard anchors|papers chosen|methods uniform|alike|few
 * build: test/bench/selectcard.py does, runs this and makes tables of it
 *
 * Prints a line for each measurement: rows, columns, k, method, 1 if the
 * method is the chosen one, microseconds by launches, microseconds by a graph's
 * launch (0: none), wrong rows of those looked at.  Each shape has the line of
 * the chosen method or, with methods, a line of each, without graphs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iterator>

#include "gpu/device/device.h"
#include "gpu/select/select.h"
#include "selectdata.cuh"

#define MOST_VALUES		(INT64_C(1) << 27)
#define PAPERS_VALUES	(INT64_C(1) << 31)	/* of the papers' shapes, 8 GB */
#define MOST_WANTED		(INT64_C(1) << 24)	/* rows * k */
#define LOOKED_AT		3		/* rows */

struct Shape
{
	int64_t		rows;
	int64_t		columns;
	int32_t		k;
};

/* Those of the issue, and others that the peers were measured at. */
static const Shape anchors[] = {
	{1, 100000, 10}, {1, 100000, 100}, {1, 100000, 2048},
	{1, 1000000, 10}, {1, 1000000, 100}, {1, 1000000, 1024},
	{1, 1000000, 2048}, {1, 10000000, 10}, {1, 10000000, 100},
	{1, 10000000, 2048}, {1, 100000000, 10}, {1, 100000000, 100},
	{1, 100000000, 1024}, {1, 100000000, 2048}, {10, 1000000, 10},
	{10, 1000000, 100}, {10, 1000000, 2048}, {100, 10000, 10},
	{100, 10000, 100}, {100, 10000, 2048}, {100, 100000, 10},
	{100, 100000, 100}, {100, 100000, 2048}, {100, 1000000, 10},
	{100, 1000000, 100}, {100, 1000000, 1024}, {1000, 10000, 10},
	{1000, 10000, 100}, {1000, 10000, 1024}, {1000, 100000, 10},
	{1000, 100000, 100}, {1000, 100000, 1024}, {1000, 100000, 2048},
	{10000, 1024, 10}, {10000, 1024, 100}, {10000, 10000, 10},
	{10000, 10000, 100}, {100000, 1024, 10}, {1, 1000000, 10000},
	{1, 100000000, 1000000}
};

/*
 * The papers' own experiments.  Johnson, Douze, Jegou, section 6.1 and figure
 * 3: 10,000 rows of 1,000 to 128,000, k 100, 1,000 and, of the longest rows,
 * 1,024.  Komarov, Dashti, D'Souza: figure 5, 2^13 rows of 2^13 to 2^16; figure
 * 6, rows of 2^16, 2^13 to 2^15 of them (2^16 are 16 GB); figure 7, 2^27 values
 * divided in rows of 2^12 to 2^23; k 64 and 512.
 */
static const Shape papers[] = {
	{10000, 1000, 100}, {10000, 1000, 1000}, {10000, 4000, 100},
	{10000, 4000, 1000}, {10000, 16000, 100}, {10000, 16000, 1000},
	{10000, 64000, 100}, {10000, 64000, 1000}, {10000, 128000, 100},
	{10000, 128000, 1000}, {10000, 128000, 1024},
	{8192, 8192, 64}, {8192, 8192, 512}, {8192, 16384, 64},
	{8192, 16384, 512}, {8192, 32768, 64}, {8192, 32768, 512},
	{8192, 65536, 64}, {8192, 65536, 512}, {16384, 65536, 64},
	{16384, 65536, 512}, {32768, 65536, 64}, {32768, 65536, 512},
	{32768, 4096, 64}, {32768, 4096, 512}, {2048, 65536, 64},
	{2048, 65536, 512}, {128, 1048576, 64}, {128, 1048576, 512},
	{16, 8388608, 64}, {16, 8388608, 512}
};

struct Bench
{
	GvSelector *selector;
	cudaStream_t stream;
	int64_t		nvalues;
	float	   *d_values;		/* [nvalues] */
	uint32_t   *d_positions;	/* [MOST_WANTED] */
	float	   *d_selected;
};

static void
call(Bench *bench, const GvSelect *spec)
{
	need(gv_gpu_select_rows(bench->selector, spec, bench->d_values,
							bench->d_positions, bench->d_selected,
							bench->stream) == GV_OK, "selection");
}

/* Microseconds of a call that was recorded; 0: it cannot be. */
static float
time_graph(Bench *bench, const GvSelect *spec)
{
	cudaGraph_t graph;
	cudaGraphExec_t made;
	float		us = 0.0f;

	if (cudaStreamBeginCapture(bench->stream,
							   cudaStreamCaptureModeThreadLocal) != cudaSuccess)
		return us;
	call(bench, spec);
	if (cudaStreamEndCapture(bench->stream, &graph) != cudaSuccess ||
		cudaGraphInstantiate(&made, graph, 0) != cudaSuccess)
	{
		(void) cudaGetLastError();
		return us;
	}
	us = card_time(bench->stream, [&]
	{
		NEED(cudaGraphLaunch(made, bench->stream));
	});
	NEED(cudaGraphExecDestroy(made));
	NEED(cudaGraphDestroy(graph));
	return us;
}

/* One row as the portable engine selects from it: is it the same? */
static bool
is_row_right(Bench *bench, const GvSelect *spec, int64_t row)
{
	GvSelect	one = {1, spec->columns, spec->k, GV_SELECT_AUTO};
	size_t		n = (size_t) spec->columns;
	size_t		k = (size_t) spec->k;
	float	   *values = (float *) malloc(sizeof(float) * n);
	uint32_t   *positions = (uint32_t *) malloc(sizeof(uint32_t) * 2 * k);
	float	   *selected = (float *) malloc(sizeof(float) * 2 * k);
	void	   *scratch = aligned_alloc(64, (gv_select_scratch(&one) + 63) /
										64 * 64);
	bool		right;

	need(values != NULL && positions != NULL && selected != NULL &&
		 scratch != NULL, "memory");
	NEED(cudaMemcpy(values, bench->d_values + row * n, sizeof(float) * n,
					cudaMemcpyDeviceToHost));
	NEED(cudaMemcpy(positions + k, bench->d_positions + row * k,
					sizeof(uint32_t) * k, cudaMemcpyDeviceToHost));
	NEED(cudaMemcpy(selected + k, bench->d_selected + row * k,
					sizeof(float) * k, cudaMemcpyDeviceToHost));
	need(gv_select(&one, values, positions, selected, scratch, NULL) == GV_OK,
		 "the portable engine");
	right = memcmp(positions, positions + k, sizeof(uint32_t) * k) == 0 &&
		memcmp(selected, selected + k, sizeof(float) * k) == 0;
	free(values);
	free(positions);
	free(selected);
	free(scratch);
	return right;
}

/* One line.  Only calls that leave the choice to the engine are graphs, too. */
static void
measure(Bench *bench, const GvSelect *spec)
{
	GvSelect	any = {spec->rows, spec->columns, spec->k, GV_SELECT_AUTO};
	GvSelectMethod method = gv_gpu_select_choose(spec);
	int			nwrong = 0;
	float		us;
	float		graph_us;

	NEED(cudaMemset(bench->d_positions, 0xFF,
					sizeof(uint32_t) * spec->rows * spec->k));
	call(bench, spec);
	NEED(cudaStreamSynchronize(bench->stream));
	for (int i = 0; i < LOOKED_AT && i < spec->rows; i++)
		nwrong += !is_row_right(bench, spec,
								i == 0 ? 0 : (spec->rows - 1) / i);
	us = card_time(bench->stream, [&] { call(bench, spec); });
	graph_us = spec->method == GV_SELECT_AUTO ? time_graph(bench, spec) : 0;
	printf("%lld\t%lld\t%d\t%s\t%d\t%.2f\t%.2f\t%d\n",
		   (long long) spec->rows, (long long) spec->columns, spec->k,
		   gv_select_name(method), method == gv_gpu_select_choose(&any), us,
		   graph_us, nwrong);
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	bool		of_papers = argc == 4 && strcmp(argv[1], "papers") == 0;
	bool		by_methods = argc == 4 && strcmp(argv[2], "methods") == 0;
	SelectValues kind = argc < 4 || strcmp(argv[3], "uniform") == 0 ? UNIFORM :
		strcmp(argv[3], "alike") == 0 ? ALIKE : FEW;
	const Shape *shapes = of_papers ? papers : anchors;
	size_t		nshapes = of_papers ? std::size(papers) : std::size(anchors);
	Bench		bench = {};
	cudaDeviceProp properties;

	NEED(cudaGetDeviceProperties(&properties, 0));
	printf("card\t%s\n", properties.name);
	NEED(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking));
	bench.nvalues = of_papers ? PAPERS_VALUES : MOST_VALUES;
	NEED(cudaMalloc((void **) &bench.d_values, sizeof(float) * bench.nvalues));
	NEED(cudaMalloc((void **) &bench.d_positions,
					sizeof(uint32_t) * MOST_WANTED));
	NEED(cudaMalloc((void **) &bench.d_selected,
					sizeof(float) * MOST_WANTED));
	need(gv_gpu_selector(&bench.selector) == GV_OK, "selector");
	need(gv_launch(select_fill_kernel, 1024, 256, 0, bench.stream,
				   bench.d_values, bench.nvalues, kind) == GV_OK, "fill");
	NEED(cudaStreamSynchronize(bench.stream));
	for (size_t i = 0; i < nshapes; i++)
	{
		GvSelect	spec = {shapes[i].rows, shapes[i].columns, shapes[i].k,
		GV_SELECT_AUTO};

		if (!by_methods)
			measure(&bench, &spec);
		else
			for (GvSelectMethod method : {GV_SELECT_WARP, GV_SELECT_MULTI,
										  GV_SELECT_SAMPLE})
			{
				spec.method = method;
				if (method != GV_SELECT_WARP || spec.k <= GV_WARP_MAX_K)
					measure(&bench, &spec);
			}
	}
	gv_gpu_selector_drop(bench.selector);
	return 0;
}
