/*
 * bounds.cu
 *		Computes bounds of hits from their refine records.  They are equal to
 *		gv_refine_bound's to the last bit.
 *
 * Half a warp, a team, computes the bound of a hit: lane l adds up partial sum
 * l, in fp32.  Then one thread for each hit adds the sixteen partial sums and
 * applies all margins in double precision, as src/cpu/pq/refine.c does.  These
 * threads are all in one warp, because conversions to double are slow.  Each
 * lane loads 16 bytes of codes at a time, so that all loads of a record are in
 * flight together, and shared memory passes the codes to the lanes that need
 * them.
 */
#include "gpu/device/warp.cuh"
#include "gpu/search/answers.cuh"
#include "gpu/search/search.h"

#define THREADS			128
#define LANES			16
#define TEAMS			(THREADS / LANES)
#define SLICE			512		/* dimensions in shared memory at a time */
#define BOUND_WORDS		(sizeof(GvBound) / 4)
#define HUGE_LENGTH		1e18	/* beyond these limits there is no bound */
#define HUGE_SUM		1e37

/* Returns the largest float that does not exceed the value. */
static __device__ __forceinline__ float
round_down(double value)
{
	float		rounded;

	if (value < -(double) FLT_MAX)
		return -GV_INFINITY;
	rounded = value > (double) FLT_MAX ? FLT_MAX : (float) value;
	if ((double) rounded > value)
		rounded = nextafterf(rounded, -GV_INFINITY);
	return rounded;
}

/*
 * The partial sums of a team's lanes.  The additional element puts the sums of
 * the next team into other banks.
 */
struct Partial
{
	float		of[LANES + 1];

	/*
	 * Returns the sum of all lanes in double precision, added in the order of
	 * the lanes.
	 */
	__device__ __forceinline__ double
	add() const
	{
		double		total = 0.0;

#pragma unroll
		for (int l = 0; l < LANES; l++)
			total = total + (double) of[l];
		return total;
	}
};

/* Returns |q - x^| - error, or 0 if that is negative. */
static __device__ __forceinline__ float
distance_bound(double sum, double slack, float error)
{
	double		square = sum * (1.0 - slack) - FLT_MIN;
	double		bound;

	if (!(sum < HUGE_SUM) || square <= 0.0)
		return 0.0f;
	bound = sqrt(square) * (1.0 - 1e-9) - error;
	return bound > 0.0 ? round_down(bound) : 0.0f;
}

/* Returns -<q, x^> - |q| error. */
static __device__ __forceinline__ float
product_bound(double product, double magnitude, double slack, double length,
			  float record_error)
{
	double		error = length * record_error;
	double		bound = -product - error -
		2.0 * slack * (magnitude + error) - FLT_MIN * (1.0 + length);

	if (!(magnitude < HUGE_SUM) || !(length < HUGE_LENGTH) ||
		!(error < HUGE_SUM))
		return -GV_INFINITY;
	return round_down(bound);
}

/* Adds a dimension to the sums. */
static __device__ __forceinline__ void
add_dimension(const GvDeviceModel &model, const GvDeviceRecord &head, float q,
			  uint8_t code, float *sum, float *magnitude)
{
	float		x = __fadd_rn(head.min, __fmul_rn(head.step, (float) code));

	if (model.metric == GV_IP)
	{
		float		term = __fmul_rn(q, x);

		*sum = __fadd_rn(*sum, term);
		*magnitude = __fadd_rn(*magnitude, fabsf(term));
	}
	else
	{
		float		diff = __fsub_rn(q, x);

		*sum = __fadd_rn(*sum, __fmul_rn(diff, diff));
	}
}

/*
 * A team of 16 lanes owns hit blockIdx.x * TEAMS + team of query blockIdx.y.
 * A block writes the hits and bounds of all its teams together, because writes
 * to the host cross the bus.  The first block of a query also writes the
 * query's probes and counts.  In batches with conditions, each query has
 * GV_COUNT_PARTS more blocks, which write the counts of matches; a separate
 * step for this would take 8 us more for one query.
 */
static __global__ void __launch_bounds__(THREADS)
bound_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ float q[SLICE];
	__shared__ uint4 codes[TEAMS][SLICE / 16 + 1];	/* one more, for other
													 * banks */
	__shared__ Partial sums[TEAMS];
	__shared__ Partial magnitudes[TEAMS];
	__shared__ GvDeviceRecord heads[TEAMS];
	__shared__ uint32_t bounds[TEAMS][BOUND_WORDS];
	__shared__ uint4 hits[TEAMS];
	int			query = blockIdx.y;
	int			lane = threadIdx.x % LANES;
	int			team = threadIdx.x / LANES;
	int			first = blockIdx.x * TEAMS;
	int			nhits;
	GvSearchCounts found;
	uint4		hit = {};
	int64_t		at = (int64_t) query * batch.k + first;
	const float *all = batch.d_queries + (int64_t) query * model.dims;
	const uint8_t *record = NULL;
	GvDeviceRecord head = {};
	float		ahead[SLICE / THREADS];
	float		sum = 0.0f;
	float		magnitude = 0.0f;

	/*
	 * 1. Find the hit's record.  The hit is read before we know whether it
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
#pragma unroll
	for (int i = 0; i < SLICE / THREADS; i++)
	{
		int			d = i * THREADS + threadIdx.x;

		ahead[i] = d < model.dims ? all[d] : 0.0f;
	}
	if (first + team < batch.k)
	{
		hit = batch.d_hits[at + team];
		record = gv_find_item(model, batch, at + team, hit);
	}
	found = batch.d_search_counts[query];
	nhits = found.nhits - first;
	if (team >= nhits)
		record = NULL;
	if (first == 0)
		gv_download_found(batch, query, found);
	if (nhits <= 0)
		return;
	if (lane < (int) BOUND_WORDS)
		bounds[team][lane] = 0;
	if (lane == 0)
		hits[team] = hit;
	if (record != NULL)
		head = *(const GvDeviceRecord *) record;

	/*
	 * 2. Compute the sums, even if the record's slot is unused.  Teams
	 * without a record only take part in barriers.
	 */
	for (int start = 0; start < model.dims; start += SLICE)
	{
		int			ndims = min(SLICE, model.dims - start);

		__syncthreads();
		for (int i = lane; i < (ndims + 15) / 16 && record != NULL; i += LANES)
			codes[team][i] =
				((const uint4 *) (record + sizeof(GvDeviceRecord) + start))[i];
#pragma unroll
		for (int i = 0; i < SLICE / THREADS; i++)
		{
			int			d = i * THREADS + threadIdx.x;

			if (d < ndims)
				q[d] = start == 0 ? ahead[i] : all[start + d];
		}
		__syncthreads();
		if (start == 0 && (int) threadIdx.x < min(nhits, TEAMS) &&
			batch.out_hits != batch.d_hits)
			batch.out_hits[at + threadIdx.x] = hits[threadIdx.x];
		if (record != NULL)
		{
#pragma unroll 8
			for (int d = lane; d < ndims; d += LANES)
				add_dimension(model, head, q[d],
							  ((const uint8_t *) codes[team])[d], &sum,
							  &magnitude);
		}
	}
	sums[team].of[lane] = sum;
	magnitudes[team].of[lane] = magnitude;
	if (lane == 0)
		heads[team] = head;
	__syncthreads();

	/* 3. a thread writes a hit's bound */
	if (threadIdx.x < TEAMS && heads[threadIdx.x].low != 0)
	{
		int			mine = threadIdx.x;
		double		slack = (model.dims + 64) / 16777216.0;
		double		total = sums[mine].add();

		float		bound = model.metric == GV_IP ?
			product_bound(total, magnitudes[mine].add(), slack,
						  batch.d_params[query].length, heads[mine].error) :
			distance_bound(total, slack, heads[mine].error);

		/* a GvBound */
		bounds[mine][0] = __float_as_uint(bound);
		bounds[mine][1] = heads[mine].high >> 16 | heads[mine].high << 16;
		bounds[mine][2] = heads[mine].low | 1u << 16;
	}
	__syncthreads();
	for (int w = threadIdx.x;
		 w < min(nhits, TEAMS) * (int) BOUND_WORDS; w += THREADS)
		((uint32_t *) (batch.out_bounds + at))[w] = (&bounds[0][0])[w];
}

/*
 * Launches the step that writes out_bounds of a batch and all its other
 * answers.
 */
GvStatus
gv_gpu_bound(const GvDeviceModel *model, const GvBatch *batch,
			 cudaStream_t stream)
{
	dim3		grid((batch->k + TEAMS - 1) / TEAMS +
					 (batch->tests > 0 ? GV_COUNT_PARTS : 0), batch->n);

	return gv_launch_step(bound_kernel, grid, THREADS, 0, stream, model,
						  batch);
}
