/*
 * measure.cu
 *		Distances of slots, however many; see distance.cuh.
 */
#include "gpu/exact/filter/distance.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define MOST_ACROSS		4096	/* warps of a query */

/* The queries and slots that a launch reranks. */
struct Reranked
{
	GvExactRows rows;
	GvExactQueries queries;
	GvExactPart part;
	GvExactFilter filter;
	double	   *d_distances;	/* [n][capacity] */
	int64_t		position;		/* of row 0 */
	int32_t		dims;
	int32_t		across;			/* warps of a query */
};

/*
 * Warp w takes slots w % across * TEAMS .. of query w / across, and every
 * across-th so many.
 */
template <int METRIC>
static __global__ void __launch_bounds__(THREADS)
rerank_kernel(Reranked reranked)
{
	int64_t		warp = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int			team = threadIdx.x % GV_WARP / LANES;
	int			i = (int) (warp / reranked.across);
	uint32_t	count;
	int64_t		query;
	int64_t		at;

	if (i >= reranked.part.n)
		return;
	count = reranked.filter.d_counts[i];
	query = reranked.part.d_list != NULL ? reranked.part.d_list[i] :
		reranked.part.first + i;
	at = (int64_t) i * reranked.filter.capacity;
	for (uint32_t first = (uint32_t) (warp % reranked.across) * TEAMS;
		 first < count; first += reranked.across * TEAMS)
	{
		uint32_t	c = first + team;
		GvExactPair pair =
			gv_exact_rerank<METRIC>(reranked.rows, reranked.queries,
									 reranked.dims, reranked.position, query,
									 c < count ?
									 reranked.filter.d_slots[at + c] : 0);

		if (threadIdx.x % LANES != 0 || c >= count)
			continue;
		reranked.d_distances[at + c] = pair.distance;
		reranked.filter.d_slots[at + c] = pair.row;
	}
}

/* Distances of all slots that were found, whose place their rows take. */
GvStatus
gv_gpu_exact_rerank(const GvExactSpace *space, const GvExactRows *rows,
					 const GvExactQueries *queries, const GvExactPart *part,
					 const GvExactFilter *filter, const GvExactFound *found,
					 int64_t position, cudaStream_t stream)
{
	int			across = (int) (MOST_ACROSS / part->n);
	Reranked	reranked;

	if (across > (int) (filter->capacity + TEAMS - 1) / TEAMS)
		across = (int) (filter->capacity + TEAMS - 1) / TEAMS;
	if (across < 1)
		across = 1;
	reranked = {*rows, *queries, *part, *filter, found->d_distances, position,
		space->dims, across};

	int			blocks = gv_exact_blocks((int64_t) part->n * across, WARPS);

	switch (space->metric)
	{
		case GV_SET_L2:
			GV_LAUNCH(rerank_kernel<GV_SET_L2>, blocks, THREADS, 0, stream,
					  reranked);
			break;
		case GV_SET_IP:
			GV_LAUNCH(rerank_kernel<GV_SET_IP>, blocks, THREADS, 0, stream,
					  reranked);
			break;
		case GV_SET_COSINE:
			GV_LAUNCH(rerank_kernel<GV_SET_COSINE>, blocks, THREADS, 0,
					  stream, reranked);
			break;
		default:
			GV_LAUNCH(rerank_kernel<GV_SET_PEARSON>, blocks, THREADS, 0,
					  stream, reranked);
	}
	return gv_cuda_status(cudaGetLastError());
}
