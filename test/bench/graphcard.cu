/*
 * graphcard.cu
 *		k-means and exact search among near lists over arrays that are on the
 *		card already, as a library for graphcard.py.
 *
 * Functions return a GvStatus, but for graph_open, which returns NULL if
 * anything fails.
 */
#include <stdlib.h>

#include "gpu/device/device.h"
#include "gpu/product/product.h"

struct Graph
{
	const GvSetOps *ops;
	void	   *state;
};

/* Take a card, once, with cuBLAS where gpuvecd would. */
extern "C" int32_t
graph_begin(void)
{
	static GvDevice devices[GV_MAX_DEVICES];
	int32_t		ndevices;

	GV_TRY(gv_gpu_open("0", devices, &ndevices));
	return gv_blas_open(devices, ndevices);
}

/*
 * k-means of rows [n][dims] from k of them; centroids [k][dims], the host's, of
 * which `found` come.
 */
extern "C" int32_t
graph_kmeans(const float *d_rows, int64_t n, int32_t dims,
			 const float *d_starts, int32_t k, int32_t iterations,
			 float *centroids, int32_t *found)
{
	const GvSetOps *ops = &gv_gpu_kmeans_set;
	GvSetSpec	spec = {};
	GvSetDone	done = {};
	void	   *state;
	GvStatus	status;

	spec.kind = GV_SET_KMEANS;
	spec.dims = dims;
	spec.k = k;
	spec.iterations = iterations;
	spec.nrows = n;
	GV_TRY(ops->create(&spec, &state));
	status = ops->put(state, GV_SET_SEEDS, d_starts, 0, k, NULL);
	if (status == GV_OK)
		status = ops->put(state, GV_SET_ROWS, d_rows, 0, n, NULL);
	while (status == GV_OK && !done.finished)
		status = ops->run(state, &done, NULL);
	*found = done.found;
	if (status == GV_OK)
		status = ops->get(state, GV_SET_CENTROIDS, 0, done.found, centroids);
	ops->drop(state);
	return status;
}

/* A search: of all rows if nlists is 0; by processors, if wanted. */
extern "C" Graph *
graph_open(int32_t metric, int32_t dims, int64_t nrows, int64_t nqueries,
		   int32_t k, int32_t nlists, int32_t probes, bool processors)
{
	Graph	   *graph = (Graph *) calloc(1, sizeof(Graph));
	GvSetSpec	spec = {};

	spec.kind = GV_SET_EXACT;
	spec.metric = metric;
	spec.dims = dims;
	spec.k = k;
	spec.self = 1;
	spec.nlists = nlists;
	spec.probes = probes;
	spec.nqueries = nqueries;
	spec.nrows = nrows;
	if (graph == NULL)
		return NULL;
	graph->ops = processors ? gv_cpu_sets.kinds[GV_SET_EXACT] :
		&gv_gpu_exact_set;
	if (graph->ops->create(&spec, &graph->state) == GV_OK)
		return graph;
	free(graph);
	return NULL;
}

extern "C" int32_t
graph_put(Graph *graph, int32_t input, const void *items, int64_t n)
{
	return graph->ops->put(graph->state, (GvSetInput) input, items, 0, n,
						   NULL);
}

extern "C" int32_t
graph_run(Graph *graph)
{
	GvSetDone	done;

	return graph->ops->run(graph->state, &done, NULL);
}

/* Items of the host's memory. */
extern "C" int32_t
graph_get(Graph *graph, int64_t first, int64_t n, int64_t *positions,
		  double *distances)
{
	GV_TRY(graph->ops->get(graph->state, GV_SET_POSITIONS, first, n,
						   positions));
	return graph->ops->get(graph->state, GV_SET_DISTANCES, first, n,
						   distances);
}

extern "C" void
graph_drop(Graph *graph)
{
	graph->ops->drop(graph->state);
	free(graph);
}
