/*
 * bound.cu
 *		What the refine records of the hits prove: gv_refine_bound's bounds, to
 *		the last bit.
 *
 * Half a warp takes a hit: lane l has partial sum l, in fp32; the sixteen are
 * added, and all margins taken, in double, as in src/cpu/refine.c.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define THREADS			128
#define LANES			16
#define TEAMS			(THREADS / LANES)
#define HUGE_LENGTH		1e18	/* beyond these nothing is bounded */
#define HUGE_SUM		1e37

/* The largest float that is not above the value. */
static __device__ __forceinline__ float
round_down(double value)
{
	float		rounded;

	if (value < -(double) FLT_MAX)
		return __int_as_float(0xFF800000);
	rounded = value > (double) FLT_MAX ? FLT_MAX : (float) value;
	if ((double) rounded > value)
		rounded = nextafterf(rounded, __int_as_float(0xFF800000));
	return rounded;
}

/* A team's partial sums in double, in the order of the lanes. */
static __device__ __forceinline__ double
add_lanes(float sum)
{
	double		total = 0.0;

#pragma unroll
	for (int l = 0; l < LANES; l++)
		total = total + (double) __shfl_sync(GV_FULL_WARP, sum, l, LANES);
	return total;
}

/* |q - x^| - error, at least 0. */
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

/* -<q, x^> - |q| error. */
static __device__ __forceinline__ float
product_bound(double product, double magnitude, double slack, double length,
			  float record_error)
{
	double		error = length * record_error;
	double		bound = -product - error -
		2.0 * slack * (magnitude + error) - FLT_MIN * (1.0 + length);

	if (!(magnitude < HUGE_SUM) || !(length < HUGE_LENGTH) ||
		!(error < HUGE_SUM))
		return __int_as_float(0xFF800000);
	return round_down(bound);
}

/* Hits blockIdx.x * TEAMS + team of query blockIdx.y. */
static __global__ void __launch_bounds__(THREADS)
bound_kernel(GvCardModel card, GvBatch batch)
{
	int			query = blockIdx.y;
	int			lane = threadIdx.x % LANES;
	int			nhits = batch.d_found[query].nhits;
	int			i = blockIdx.x * TEAMS + threadIdx.x / LANES;
	const float *q = batch.d_queries + (int64_t) query * card.dims;
	const uint8_t *record = NULL;
	GvCardRecord head = {};
	float		sum = 0.0f;
	float		magnitude = 0.0f;
	double		total;
	double		magnitudes;

	/* 1. the record, by the hit's address */
	if ((int) blockIdx.x * TEAMS >= nhits)
		return;
	if (i < nhits)
	{
		const GvHit *hit = batch.d_hits + (int64_t) query * batch.capacity + i;
		uint8_t *const *table = card.d_tables[hit->rowid[0]];
		int			slot = hit->rowid[2];

		if (slot >= 1 && slot <= card.refine_slots && table != NULL)
			record = table[hit->rowid[1]];
		if (record != NULL)
		{
			record += (int64_t) (slot - 1) * card.record_bytes;
			head = *(const GvCardRecord *) record;
			record += sizeof(GvCardRecord);
		}
	}

	/* 2. the sums; teams without a record only shuffle */
	if (record != NULL && head.low != 0)
		for (int d = lane; d < card.dims; d += LANES)
		{
			float		x = __fadd_rn(head.min,
									  __fmul_rn(head.step, (float) record[d]));

			if (card.metric == GV_IP)
			{
				float		term = __fmul_rn(q[d], x);

				sum = __fadd_rn(sum, term);
				magnitude = __fadd_rn(magnitude, fabsf(term));
			}
			else
			{
				float		diff = __fsub_rn(q[d], x);

				sum = __fadd_rn(sum, __fmul_rn(diff, diff));
			}
		}
	total = add_lanes(sum);
	magnitudes = add_lanes(magnitude);

	/* 3. out */
	if (lane == 0 && i < nhits)
	{
		double		slack = (card.dims + 64) / 16777216.0;
		GvBound		bound = {};

		if (head.low != 0)
		{
			bound.known = 1;
			bound.rowid[0] = head.high >> 16;
			bound.rowid[1] = head.high & 0xFFFF;
			bound.rowid[2] = head.low;
			bound.bound = card.metric == GV_IP ?
				product_bound(total, magnitudes, slack,
							  batch.d_wanted[query].length, head.error) :
				distance_bound(total, slack, head.error);
		}
		batch.d_bounds[(int64_t) query * batch.capacity + i] = bound;
	}
}

/* d_bounds of a batch's hits. */
GvStatus
gv_gpu_bound(const GvCardModel *card, const GvBatch *batch,
			 cudaStream_t stream)
{
	dim3		grid((batch->capacity + TEAMS - 1) / TEAMS, batch->n);

	GV_LAUNCH(bound_kernel, grid, THREADS, 0, stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}
