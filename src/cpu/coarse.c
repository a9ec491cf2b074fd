/*
 * coarse.c
 *		The list scores of a query: its distance to a slice of centroids.
 */
#include "cpu/gv_cpu.h"

/* See gv_coarse. */
GvStatus
gv_cpu_coarse(const GvModel *model, const float *query,
			  const float *centroids /* [n][dims] */ , int32_t n,
			  uint64_t first_id, GvTopK *best)
{
	int32_t		dims = model->dims;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		const float *centroid = centroids + (size_t) i * dims;
		float		score;

		if (model->metric == GV_IP)
			score = -gv_cpu_dot(query, centroid, dims);
		else
			score = gv_cpu_sqdist(query, centroid, dims);
		gv_topk_push(best, gv_score(score), first_id + (uint64_t) i);
	}
	return GV_OK;
}
