/*
 * distances.cu
 *		Computes the distances between hits' rows and the queries as they were
 *		asked.  They are equal to gv_set_distance's to the last bit.
 *
 * A team of eight lanes takes a hit (device/distance.cuh).  Each lane loads 16
 * bytes of the row at a time, so that all loads of a row of up to 1.5 KB are
 * in flight together, and shared memory passes the values to the lanes that
 * add them.  All teams of a block have the same query, which is in shared
 * memory in double precision, because conversions to double are slow.
 */
#include "gpu/device/distance.cuh"
#include "gpu/search/answers.cuh"
#include "gpu/search/search.h"

#define THREADS			128
#define LANES			GV_TEAM_LANES
#define TEAMS			(THREADS / LANES)
#define AHEAD			12		/* loads of a lane in flight */
#define ROUND_BYTES		(AHEAD * LANES * (int) sizeof(uint4))

static __device__ __forceinline__ double
to_double(float value)
{
	return (double) value;
}

static __device__ __forceinline__ double
to_double(uint16_t half)
{
	return (double) gv_from_half(half);
}

/*
 * Returns an upper bound of a sum of numbers that are not negative, which was
 * computed in double with less than 10^6 additions, or infinity if the sum is
 * NaN.
 */
static __device__ __forceinline__ float
bound_sum(double sum)
{
	double		bound = sum * (1.0 + 1e-9);
	float		rounded = (float) bound;

	if (!(bound <= (double) FLT_MAX))
		return GV_INFINITY;
	return (double) rounded < bound ? nextafterf(rounded, GV_INFINITY) :
		rounded;
}

/*
 * A team owns hit blockIdx.x * TEAMS + team of query blockIdx.y, and takes
 * ROUND_BYTES bytes of the row in a round.  A block writes the hits and
 * distances of all its teams together, because writes to the host cross the
 * bus.  As in bound_kernel, the first block of a query also writes the query's
 * probes and counts, and in batches with conditions each query has more
 * blocks, which write the counts of matches.
 */
template <int METRIC, typename Value>
static __global__ void __launch_bounds__(THREADS)
distance_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int ROUND = ROUND_BYTES / (int) sizeof(Value);	/* in values */
	__shared__ double asked[ROUND];
	__shared__ uint4 values[TEAMS][AHEAD * LANES + 2];	/* two more, for other
														 * banks */
	__shared__ uint4 hits[TEAMS];
	__shared__ uint4 distances[TEAMS];
	int			query = blockIdx.y;
	int			lane = threadIdx.x % LANES;
	int			team = threadIdx.x / LANES;
	int			first = blockIdx.x * TEAMS;
	int			nhits;
	int64_t		at = (int64_t) query * batch.k + first;
	const uint8_t *row = NULL;
	const float *all_asked;
	uint4		hit = {};
	GvSearchCounts found;
	bool		known = false;
	GvDistanceSums<METRIC> sums = {};
	double		magnitude = 0.0;
	union
	{
		GvRowDistance distance;
		uint4		words;
	}			answer;

	/*
	 * 1. Find the hit's row.  The hit is read before we know whether it
	 * exists.
	 */
	gv_pdl_wait();
	if (first >= batch.k)
	{
		gv_download_matches<THREADS>(batch, query, (int) blockIdx.x -
									 (batch.k + TEAMS - 1) / TEAMS,
									 batch.d_search_counts[query]);
		return;
	}
	all_asked = batch.d_asked + (int64_t) query * model.dims;
	if (first + team < batch.k)
	{
		hit = batch.d_hits[at + team];
		row = gv_find_item(model, batch, at + team, hit);
	}
	found = batch.d_search_counts[query];
	nhits = found.nhits - first;
	if (team >= nhits)
		row = NULL;
	if (first == 0)
		gv_download_found(batch, query, found);
	if (nhits <= 0)
		return;

	/*
	 * 2. Compute the sums, even if the slot has no row.  Teams without a slot
	 * only take part in barriers.
	 */
	for (int start = 0; start < model.dims; start += ROUND)
	{
		int			ndims = min(ROUND, model.dims - start);
		int			nwords = row == NULL ? 0 :
			(ndims * (int) sizeof(Value) + 15) / 16;
		const Value *mine = (const Value *) values[team];
		uint4		ahead[AHEAD] = {};

#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (i * LANES + lane < nwords)
				ahead[i] = ((const uint4 *) (row + start * sizeof(Value)))
					[i * LANES + lane];
		__syncthreads();
		for (int d = threadIdx.x; d < ndims; d += THREADS)
			asked[d] = (double) all_asked[start + d];
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			values[team][i * LANES + lane] = ahead[i];
		if (start == 0)
			known = row != NULL && !gv_row_is_none(model.rows, ahead[0].x);
		__syncthreads();
		if (row == NULL)
			continue;
#pragma unroll 8
		for (int d = lane; d < ndims; d += LANES)
		{
			double		x = to_double(mine[d]);

			sums.add(x, asked[d]);
			if (METRIC == GV_SET_IP)
				magnitude = __dadd_rn(magnitude, fabs(__dmul_rn(x, asked[d])));
		}
	}

	/* 3. the first lane, which has seen the first value, writes the answer */
	answer.distance = {sums.distance(), 0.0f, 1};
	if (METRIC == GV_SET_IP)
		answer.distance.magnitude = bound_sum(gv_add_team(magnitude));
	/* NaN of which no word is the host's mark of absent answers */
	if (answer.distance.distance != answer.distance.distance)
		answer.distance.distance = (double) GV_NAN;
	if (lane == 0)
	{
		hits[team] = hit;
		distances[team] = known ? answer.words : make_uint4(0, 0, 0, 0);
	}
	__syncthreads();
	if ((int) threadIdx.x < min(nhits, TEAMS))
	{
		batch.out_distances[at + threadIdx.x] = distances[threadIdx.x];
		if (batch.out_hits != batch.d_hits)
			batch.out_hits[at + threadIdx.x] = hits[threadIdx.x];
	}
}

template <int METRIC>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, cudaStream_t stream)
{
	dim3		grid((batch->k + TEAMS - 1) / TEAMS +
					 (batch->tests > 0 ? GV_COUNT_PARTS : 0), batch->n);

	return gv_launch_step(model->rows == GV_ROWS_HALF ?
						  distance_kernel<METRIC, uint16_t> :
						  distance_kernel<METRIC, float>, grid, THREADS, 0,
						  stream, model, batch);
}

/*
 * Launches the step that writes out_distances of a batch and all its other
 * answers.
 */
GvStatus
gv_gpu_distances(const GvDeviceModel *model, const GvBatch *batch,
				 cudaStream_t stream)
{
	static_assert((int) GV_L2 == (int) GV_SET_L2 &&
				  (int) GV_IP == (int) GV_SET_IP &&
				  (int) GV_COSINE == (int) GV_SET_COSINE,
				  "a metric of mirrors has the distance of sets");
	static_assert(sizeof(GvRowDistance) == sizeof(uint4),
				  "distances are written whole");

	switch (model->metric)
	{
		case GV_L2:
			return launch<GV_SET_L2>(model, batch, stream);
		case GV_IP:
			return launch<GV_SET_IP>(model, batch, stream);
		default:
			return launch<GV_SET_COSINE>(model, batch, stream);
	}
}
