/*
 * gv_engine.c
 *		The wrappers of the engine's operations, and the choice of backend.
 *
 * A wrapper refuses arguments that break the contract, so that a backend may
 * trust them; it cannot know the sizes of arrays.
 */
#include "engine/gv_engine.h"

#include "engine/gv_valid.h"

/* The one place that says which engine answers. */
static const GvBackend *const backend = &gv_cpu_backend;

/* Calls until one reports fault_status; 0: none will.  For tests. */
static int64_t fault_countdown;
static GvStatus fault_status;

/* From now on the n-th call reports `status`, see gv_engine.h. */
void
gv_engine_fault(int64_t n, GvStatus status)
{
	fault_countdown = n;
	fault_status = status;
}

/* Is this the call that shall fail? */
static inline bool
fault_is_due(void)
{
	return fault_countdown > 0 && --fault_countdown == 0;
}

static bool
valid_dims(int32_t dims)
{
	return dims >= 1 && dims <= GV_MAX_DIMS;
}

static bool
valid_shape(int32_t dims, int32_t m)
{
	return valid_dims(dims) && m >= 1 && m <= dims;
}

static bool
valid_metric(GvMetric metric)
{
	return metric == GV_L2 || metric == GV_IP || metric == GV_COSINE;
}

static bool
valid_model(const GvModel *model)
{
	return model != NULL && valid_metric(model->metric) &&
		valid_shape(model->dims, model->m);
}

static bool
valid_kmeans(const GvKmeans *spec)
{
	return spec != NULL && valid_dims(spec->dims) &&
		spec->n >= 1 && spec->k >= 1 && spec->iterations >= 0 &&
		spec->max_share > 1.0;	/* false for NaN */
}

static bool
valid_topk(const GvTopK *top)
{
	return top != NULL && top->capacity >= 1 && top->count >= 0 &&
		top->count <= top->capacity &&
		top->scores != NULL && top->ids != NULL;
}

/* Bytes of scratch for gv_kmeans; 0 for an invalid spec. */
size_t
gv_kmeans_scratch(const GvKmeans *spec)
{
	return valid_kmeans(spec) ? backend->kmeans_scratch(spec) : 0;
}

GvStatus
gv_kmeans(const GvKmeans *spec, const float *x, float *centroids,
		  int32_t *found, void *scratch, const GvStop *stop)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_kmeans(spec) || x == NULL || centroids == NULL ||
		found == NULL || !gv_valid_scratch(scratch) || !gv_valid_stop(stop))
		return GV_INVALID;
	return backend->kmeans(spec, x, centroids, found, scratch, stop);
}

/* Bytes of scratch for gv_codebooks; 0 for invalid arguments. */
size_t
gv_codebooks_scratch(int32_t dims, int32_t m, int64_t n)
{
	if (!valid_shape(dims, m) || n < 1)
		return 0;
	return backend->codebooks_scratch(dims, m, n);
}

GvStatus
gv_codebooks(int32_t dims, int32_t m, int64_t n, const float *residuals,
			 uint64_t seed, float *codebooks, void *scratch,
			 const GvStop *stop)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_shape(dims, m) || n < 1 || residuals == NULL ||
		codebooks == NULL || !gv_valid_scratch(scratch) || !gv_valid_stop(stop))
		return GV_INVALID;
	return backend->codebooks(dims, m, n, residuals, seed, codebooks,
							  scratch, stop);
}

GvStatus
gv_assign(int32_t dims, const float *centroids, int32_t k, const float *x,
		  int64_t n, int32_t *nearest, float *sqdist, const GvStop *stop)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_dims(dims) || centroids == NULL || k < 1 || x == NULL ||
		n < 1 || nearest == NULL || !gv_valid_stop(stop))
		return GV_INVALID;
	return backend->assign(dims, centroids, k, x, n, nearest, sqdist, stop);
}

static bool
valid_tree(const GvTree *tree)
{
	return tree != NULL && valid_dims(tree->dims) && tree->nparents >= 1 &&
		tree->nlists >= tree->nparents && tree->parents != NULL &&
		tree->starts != NULL && tree->centroids != NULL;
}

size_t
gv_place_scratch(const GvTree *tree, int64_t n)
{
	if (!valid_tree(tree) || n < 1 || n > INT32_MAX)
		return 0;
	return backend->place_scratch(tree, n);
}

GvStatus
gv_place(const GvTree *tree, const float *x, int64_t n, int32_t copies,
		 int32_t *lists, void *scratch, const GvStop *stop)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_tree(tree) || x == NULL || n < 1 || n > INT32_MAX ||
		copies < 1 || copies > 2 || lists == NULL ||
		!gv_valid_scratch(scratch) || !gv_valid_stop(stop))
		return GV_INVALID;
	return backend->place(tree, x, n, copies, lists, scratch, stop);
}

int32_t
gv_soar(int32_t dims, const float *x, const float *first,
		const float *const *others, int32_t n)
{
	if (!valid_dims(dims) || n < 1)
		return -1;
	return backend->soar(dims, x, first, others, n);
}

GvStatus
gv_encode(const GvModel *model, const float *x, const float *centroids,
		  const int32_t *lists, int64_t n, int32_t copies, uint8_t *codes,
		  float *t)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_model(model) || model->codebooks == NULL || x == NULL ||
		centroids == NULL || lists == NULL || n < 1 || copies < 1 ||
		codes == NULL || t == NULL)
		return GV_INVALID;
	return backend->encode(model, x, centroids, lists, n, copies, codes, t);
}

GvStatus
gv_coarse(const GvModel *model, const float *query, const float *centroids,
		  int32_t n, uint64_t first_id, GvTopK *best)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_model(model) || query == NULL || centroids == NULL || n < 1 ||
		!valid_topk(best))
		return GV_INVALID;
	return backend->coarse(model, query, centroids, n, first_id, best);
}

GvStatus
gv_table(const GvModel *model, const float *query, float *table)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_model(model) || model->codebooks == NULL || query == NULL ||
		table == NULL)
		return GV_INVALID;
	return backend->table(model, query, table);
}

static bool
valid_scan(const GvScan *scan)
{
	return scan != NULL && valid_model(scan->model) && scan->table != NULL &&
		valid_topk(scan->best) && gv_valid_scratch(scan->scratch);
}

size_t
gv_scan_scratch(int32_t m, int32_t capacity)
{
	if (!valid_dims(m) || capacity < 1)
		return 0;
	return backend->scan_scratch(m, capacity);
}

GvStatus
gv_scan_begin(GvScan *scan)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_scan(scan))
		return GV_INVALID;
	return backend->scan_begin(scan);
}

GvStatus
gv_scan(GvScan *scan, float base, const GvBlock *blocks, int32_t nblocks)
{
	int32_t		b;

	if (fault_is_due())
		return fault_status;
	if (!valid_scan(scan) || nblocks < 0 || (blocks == NULL && nblocks > 0))
		return GV_INVALID;
	for (b = 0; b < nblocks; b++)
		if (blocks[b].live != 0 &&
			(blocks[b].codes == NULL || blocks[b].t == NULL))
			return GV_INVALID;
	return backend->scan(scan, base, blocks, nblocks);
}

GvStatus
gv_scan_finish(GvScan *scan)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_scan(scan))
		return GV_INVALID;
	return backend->scan_finish(scan);
}

GvStatus
gv_exact(GvMetric metric, int32_t dims, const float *queries,
		 int32_t nqueries, const float *x, int64_t n, const uint64_t *ids,
		 GvTopK *best, const GvStop *stop)
{
	int32_t		i;

	if (fault_is_due())
		return fault_status;
	if (metric < GV_L2 || metric > GV_COSINE || !valid_dims(dims) ||
		queries == NULL || nqueries < 1 || x == NULL || n < 1 ||
		ids == NULL || best == NULL || !gv_valid_stop(stop))
		return GV_INVALID;
	for (i = 0; i < nqueries; i++)
		if (!valid_topk(&best[i]))
			return GV_INVALID;
	return backend->exact(metric, dims, queries, nqueries, x, n, ids, best,
						  stop);
}

GvStatus
gv_refine_encode(int32_t dims, const float *x, int64_t n, uint8_t *codes,
				 float *min, float *step, float *error)
{
	if (fault_is_due())
		return fault_status;
	if (!valid_dims(dims) || x == NULL || n < 1 || codes == NULL ||
		min == NULL || step == NULL || error == NULL)
		return GV_INVALID;
	return backend->refine_encode(dims, x, n, codes, min, step, error);
}

GvStatus
gv_refine_bound(GvMetric metric, int32_t dims, const float *query,
				const GvRefine *records, int64_t n, float *bounds)
{
	int64_t		i;

	if (fault_is_due())
		return fault_status;
	if (!valid_metric(metric) || !valid_dims(dims) || query == NULL ||
		records == NULL || n < 1 || bounds == NULL)
		return GV_INVALID;
	for (i = 0; i < n; i++)
		if (records[i].codes == NULL)
			return GV_INVALID;
	return backend->refine_bound(metric, dims, query, records, n, bounds);
}
