/*
 * exactmeasure.cu
 *		Distances in double, in the order of operations of gv_set_distance.
 *
 * Eight lanes take a pair of query and row: lane l has partial sum l, of
 * dimensions l, l + 8, ..., and the sums are added l + 4, l + 2, l + 1.  So a
 * lane's loads are 32 bytes side by side with its neighbours', AHEAD of them on
 * their way.
 */
#include "exact.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define LANES			8		/* partial sums of gv_set_distance */
#define TEAMS			(GV_WARP / LANES)
#define AHEAD			8		/* loads on their way */
#define MOST_ACROSS		4096	/* warps of a query */

/* Partial sums of a team, in its first lane in the order that counts. */
static __device__ __forceinline__ double
add_lanes(double sum)
{
#pragma unroll
	for (int half = LANES / 2; half > 0; half /= 2)
		sum = __dadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half, LANES));
	return __shfl_sync(GV_FULL_WARP, sum, 0, LANES);
}

/* f(a[i], b[i]) added up in double. */
template <typename Term>
static __device__ __forceinline__ double
add_terms(const float *a, const float *b, int dims, const Term &term)
{
	int			i = threadIdx.x % LANES;
	double		sum = 0.0;

	for (; i + (AHEAD - 1) * LANES < dims; i += AHEAD * LANES)
	{
		float		x[AHEAD];
		float		y[AHEAD];

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
		{
			x[j] = a[i + j * LANES];
			y[j] = b[i + j * LANES];
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			sum = __dadd_rn(sum, term((double) x[j], (double) y[j]));
	}
	for (; i < dims; i += LANES)
		sum = __dadd_rn(sum, term((double) a[i], (double) b[i]));
	return add_lanes(sum);
}

static __device__ __forceinline__ double
dot(const float *a, const float *b, int dims)
{
	return add_terms(a, b, dims, [] (double x, double y)
	{
		return __dmul_rn(x, y);
	});
}

static __device__ __forceinline__ double
mean(const float *a, int dims)
{
	return __ddiv_rn(add_terms(a, a, dims, [] (double x, double)
	{
		return x;
	}), (double) dims);
}

static __device__ __forceinline__ double
centred_dot(const float *a, double a_mean, const float *b, double b_mean,
			int dims)
{
	return add_terms(a, b, dims, [=] (double x, double y)
	{
		return __dmul_rn(__dadd_rn(x, -a_mean), __dadd_rn(y, -b_mean));
	});
}

/* One minus a cosine, which is kept within -1 and 1. */
static __device__ __forceinline__ double
one_minus(double product, double squares)
{
	double		cosine = __ddiv_rn(product, __dsqrt_rn(squares));

	if (cosine > 1.0)
		cosine = 1.0;
	else if (cosine < -1.0)
		cosine = -1.0;
	return __dadd_rn(1.0, -cosine);
}

/* By all teams of a warp: gv_set_distance to the last bit, but of NaN. */
template <int METRIC>
static __device__ __forceinline__ double
distance_of(const float *a, const float *b, int dims)
{
	if (METRIC == GV_SET_L2)
		return __dsqrt_rn(add_terms(a, b, dims, [] (double x, double y)
		{
			double		diff = __dadd_rn(x, -y);

			return __dmul_rn(diff, diff);
		}));
	if (METRIC == GV_SET_IP)
		return -dot(a, b, dims);
	if (METRIC == GV_SET_COSINE)
		return one_minus(dot(a, b, dims),
						 __dmul_rn(dot(a, a, dims), dot(b, b, dims)));

	double		a_mean = mean(a, dims);
	double		b_mean = mean(b, dims);

	return one_minus(centred_dot(a, a_mean, b, b_mean, dims),
					 __dmul_rn(centred_dot(a, a_mean, a, a_mean, dims),
							   centred_dot(b, b_mean, b, b_mean, dims)));
}

/* What a launch measures. */
struct Measured
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
 * across-th so many.  A query's own row becomes a free place.
 */
template <int METRIC>
static __global__ void __launch_bounds__(THREADS)
measure_kernel(Measured measured)
{
	int64_t		warp = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int			team = threadIdx.x % GV_WARP / LANES;
	int			i = (int) (warp / measured.across);
	uint32_t	count;
	int64_t		query;
	int64_t		at;

	if (i >= measured.part.n)
		return;
	count = measured.filter.d_counts[i];
	query = measured.part.d_list != NULL ? measured.part.d_list[i] :
		measured.part.first + i;
	at = (int64_t) i * measured.filter.capacity;
	for (uint32_t first = (uint32_t) (warp % measured.across) * TEAMS;
		 first < count; first += measured.across * TEAMS)
	{
		uint32_t	c = first + team;
		int64_t		row = c < count ?
			gv_exact_row(measured.rows, measured.filter.d_slots[at + c]) : 0;
		double		distance =
			distance_of<METRIC>(measured.queries.d_queries +
								query * measured.dims,
								measured.rows.d_rows + row * measured.dims,
								measured.dims);

		if (threadIdx.x % LANES != 0 || c >= count)
			continue;
		if (measured.queries.d_self != NULL &&
			measured.queries.d_self[query] == measured.position + row)
		{
			distance = GV_EXACT_NAN;
			row = GV_EXACT_NO_ROW;
		}
		measured.d_distances[at + c] = distance;
		measured.filter.d_slots[at + c] = (uint32_t) row;
	}
}

/* Distances of all slots that were found, whose place their rows take. */
GvStatus
gv_gpu_exact_measure(const GvExactSpace *space, const GvExactRows *rows,
					 const GvExactQueries *queries, const GvExactPart *part,
					 const GvExactFilter *filter, const GvExactFound *found,
					 int64_t position, cudaStream_t stream)
{
	int			across = (int) (MOST_ACROSS / part->n);
	Measured	measured;

	if (across > (int) (filter->capacity + TEAMS - 1) / TEAMS)
		across = (int) (filter->capacity + TEAMS - 1) / TEAMS;
	if (across < 1)
		across = 1;
	measured = {*rows, *queries, *part, *filter, found->d_distances, position,
		space->dims, across};

	int			blocks = gv_exact_blocks((int64_t) part->n * across, WARPS);

	switch (space->metric)
	{
		case GV_SET_L2:
			GV_LAUNCH(measure_kernel<GV_SET_L2>, blocks, THREADS, 0, stream,
					  measured);
			break;
		case GV_SET_IP:
			GV_LAUNCH(measure_kernel<GV_SET_IP>, blocks, THREADS, 0, stream,
					  measured);
			break;
		case GV_SET_COSINE:
			GV_LAUNCH(measure_kernel<GV_SET_COSINE>, blocks, THREADS, 0,
					  stream, measured);
			break;
		default:
			GV_LAUNCH(measure_kernel<GV_SET_PEARSON>, blocks, THREADS, 0,
					  stream, measured);
	}
	return gv_cuda_status(cudaGetLastError());
}
