/*
 * coarse.c
 *		The list scores of a query: its distances to a slice of the centroids.
 */
#include "cpu/simd/kernels.h"
#include "engine/gv_call.h"

#define RUN		64				/* centroids compared at a time */

GvStatus
gv_coarse(const GvModel *model, const float *query,
		  const float *centroids /* [n][dims] */ , int32_t n,
		  uint64_t first_id, GvTopK *best)
{
	float		scores[RUN];
	bool		product;
	int32_t		dims;
	int32_t		done;
	int32_t		i;

	GV_CALL(gv_engine_calls, gv_valid_model(model) && query != NULL &&
			centroids != NULL && n >= 1 && gv_valid_topk(best));
	dims = model->dims;
	product = model->metric == GV_IP;
	for (done = 0; done < n; done += RUN)
	{
		const float *some = centroids + (size_t) done * dims;
		int32_t		count = n - done < RUN ? n - done : RUN;

		if (product)
			gv_kernels->dots(query, some, count, dims, scores);
		else
			gv_kernels->sqdists(query, some, count, dims, scores);
		for (i = 0; i < count; i++)
			gv_topk_push(best, gv_score(product ? -scores[i] : scores[i]),
						 first_id + (uint64_t) (done + i));
	}
	return GV_OK;
}
