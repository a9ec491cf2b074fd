/*
 * encode.cu
 *		The steps that encode rows: transformation, lists, codes, T and refine
 *		records, bit for bit as src/cpu computes them.
 *
 * Sums whose order gv_engine.h or src/cpu prescribes are added in that order;
 * all else is spread over threads.  These kernels are simple, because finding
 * the nearest lists (build.cu) takes some hundred times as many terms.
 */
#include <math.h>

#include "gpu/build/build.h"
#include "gpu/device/warp.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define LANES			16		/* partial sums in fp32 */
#define LANES64			8		/* partial sums in double */
#define LAMBDA			1.5		/* the weight of gv_soar */
#define LEVELS			255		/* quantization steps of a refine record */
#define HUGE_LENGTH		1e18	/* see src/cpu/pq/refine.c */

/*
 * Transforms rows in place: y = (x' - mean) * scale.  Each warp has a row.
 * The length of x is summed as gv_distance_ip sums it: dimension i goes to sum
 * i mod 8; then lane l adds the sums of l + 4, l + 2 and l + 1.
 */
static __global__ void __launch_bounds__(THREADS)
transform_kernel(GvDeviceRows rows)
{
	int			lane = threadIdx.x % GV_WARP;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	float	   *x = rows.d_rows + (int64_t) i * rows.dims;
	double		factor = 1.0;

	if (i >= rows.n)
		return;
	if (rows.metric == GV_COSINE)
	{
		double		sum = 0.0;

		for (int d = lane % LANES64; d < rows.dims; d += LANES64)
			sum = __dadd_rn(sum, __dmul_rn((double) x[d], (double) x[d]));
		for (int half = LANES64 / 2; half > 0; half /= 2)
			sum = __dadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half,
												  LANES64));
		sum = __shfl_sync(GV_FULL_WARP, sum, 0);
		factor = sum > 0.0 ? __ddiv_rn(1.0, __dsqrt_rn(sum)) : 0.0;
	}
	for (int d = lane; d < rows.dims; d += GV_WARP)
		x[d] = gv_device_clamp(__dmul_rn(__dadd_rn(__dmul_rn((double) x[d],
															 factor),
												   -(double) rows.d_mean[d]),
										 (double) rows.scale));
}

GvStatus
gv_gpu_transform(const GvDeviceRows *rows, cudaStream_t stream)
{
	return gv_launch(transform_kernel, gv_blocks_for(rows->n, WARPS), THREADS,
					 0, stream, *rows);
}

/*
 * Adds the partial sums of the 16 lanes of half a warp, in the order of
 * gv_cpu_sqdist.  All 16 lanes get the result.
 */
static __device__ __forceinline__ float
add_lanes(float sum)
{
	for (int half = LANES / 2; half > 0; half /= 2)
		sum = __fadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half, LANES));
	return __shfl_sync(GV_FULL_WARP, sum, 0, LANES);
}

/*
 * Chooses the lists of rows, a warp for each row.  For the second list each
 * half of the warp computes the cost of another candidate; then all lanes
 * compare both costs.
 */
static __global__ void __launch_bounds__(THREADS)
lists_kernel(GvDeviceRows rows)
{
	int			lane = threadIdx.x % LANES;
	int			side = threadIdx.x / LANES % 2;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	const GvProbe *near = rows.d_nearest + (int64_t) i * rows.near;
	const float *x = rows.d_rows + (int64_t) i * rows.dims;
	const float *first;
	double		square;
	double		least = 0.0;
	int			best = -1;
	float		sum = 0.0f;

	if (i >= rows.n)
		return;
	if (threadIdx.x % GV_WARP == 0)
		rows.d_lists[(int64_t) i * rows.lists_per_row] = near[0].list;
	if (rows.lists_per_row < 2)
		return;
	first = rows.d_centroids + (int64_t) near[0].list * rows.dims;
	for (int d = lane; d < rows.dims; d += LANES)
	{
		float		diff = __fsub_rn(x[d], first[d]);

		sum = __fadd_rn(sum, __fmul_rn(diff, diff));
	}
	square = (double) add_lanes(sum);
	for (int j = 1; j < rows.near; j += 2)
	{
		const float *other = rows.d_centroids +
			(int64_t) near[min(j + side, rows.near - 1)].list * rows.dims;
		float		distance = 0.0f;
		float		products = 0.0f;
		double		product = 0.0;
		double		cost;

		for (int d = lane; d < rows.dims; d += LANES)
		{
			float		diff = __fsub_rn(x[d], other[d]);

			distance = __fadd_rn(distance, __fmul_rn(diff, diff));
			products = __fadd_rn(products,
								 __fmul_rn(diff, __fsub_rn(x[d], first[d])));
		}
		distance = add_lanes(distance);
		for (int l = 0; l < LANES; l++)
			product = __dadd_rn(product,
								(double) __shfl_sync(GV_FULL_WARP, products, l,
													 LANES));
		cost = (double) distance;
		if (square > 0.0)
			cost = __dadd_rn(cost,
							 __ddiv_rn(__dmul_rn(__dmul_rn(LAMBDA, product),
												 product), square));
		for (int s = 0; s < 2; s++)
		{
			double		theirs = __shfl_sync(GV_FULL_WARP, cost, s * LANES);

			if (j + s < rows.near && (best < 0 || theirs < least))
			{
				least = theirs;
				best = j + s;
			}
		}
	}
	if (threadIdx.x % GV_WARP == 0)
		rows.d_lists[(int64_t) i * 2 + 1] = best < 0 ? -1 : near[best].list;
}

/* Sets d_lists, from d_nearest. */
GvStatus
gv_gpu_lists(const GvDeviceRows *rows, cudaStream_t stream)
{
	return gv_launch(lists_kernel, gv_blocks_for(rows->n, WARPS), THREADS, 0,
					 stream, *rows);
}

/* Returns the value that gv_difference returns. */
static __device__ __forceinline__ float
clamped_difference(float a, float b)
{
	float		diff = __fsub_rn(a, b);

	diff = diff < FLT_MAX ? diff : FLT_MAX;
	return diff > -FLT_MAX ? diff : -FLT_MAX;
}

/*
 * Computes the residuals of postings, a warp for each posting.  If a row has
 * no second list, the row's first residual is stored twice.
 */
static __global__ void __launch_bounds__(THREADS)
residuals_kernel(GvDeviceRows rows, float *d_residuals)
{
	int			lane = threadIdx.x % GV_WARP;
	int64_t		i = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int64_t		row = i / rows.lists_per_row;
	int			list;

	if (row >= rows.n)
		return;
	list = rows.d_lists[i];
	if (list < 0)
		list = rows.d_lists[row * rows.lists_per_row];
	for (int d = lane; d < rows.dims; d += GV_WARP)
		d_residuals[i * rows.dims + d] =
			clamped_difference(rows.d_rows[row * rows.dims + d],
							   rows.d_centroids[(int64_t) list * rows.dims +
												d]);
}

/* Sets d_residuals [n][lists_per_row][dims]. */
GvStatus
gv_gpu_residuals(const GvDeviceRows *rows, float *d_residuals,
				 cudaStream_t stream)
{
	return gv_launch(residuals_kernel,
					 gv_blocks_for((int64_t) rows->n * rows->lists_per_row,
								   WARPS), THREADS, 0, stream, *rows,
					 d_residuals);
}

static __device__ __forceinline__ int
sub_start(const GvDeviceRows &rows, int j)
{
	return (int) ((int64_t) j * rows.dims / rows.m);
}

/* Returns the codeword of sub-quantizer j nearest to the residual x - c. */
static __device__ __forceinline__ int
nearest_word(const GvDeviceRows &rows, int j, const float *x, const float *c)
{
	int			start = sub_start(rows, j);
	int			dims = sub_start(rows, j + 1) - start;
	const float *words = rows.d_codebooks + GV_CODEWORDS * (int64_t) start;
	float		best = 0.0f;
	int			code = 0;

	for (int k = 0; k < GV_CODEWORDS; k++)
	{
		float		dist = 0.0f;

		for (int d = 0; d < dims; d++)
		{
			float		diff = __fsub_rn(clamped_difference(x[start + d],
															c[start + d]),
										 words[k * dims + d]);

			dist = __fadd_rn(dist, __fmul_rn(diff, diff));
		}
		if (k == 0 || dist < best)
		{
			best = dist;
			code = k;
		}
	}
	return code;
}

/*
 * Computes the codes of postings.  Each thread computes one byte, which has
 * the codes of two sub-quantizers.
 */
static __global__ void __launch_bounds__(THREADS)
codes_kernel(GvDeviceRows rows)
{
	int			code_bytes = (rows.m + 1) / 2;
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		posting = at / code_bytes;
	int			byte = (int) (at % code_bytes);
	int64_t		row = posting / rows.lists_per_row;
	int			code = 0;

	if (row >= rows.n)
		return;
	if (rows.d_lists[posting] >= 0)
	{
		const float *x = rows.d_rows + row * rows.dims;
		const float *c = rows.d_centroids +
			(int64_t) rows.d_lists[posting] * rows.dims;

		code = nearest_word(rows, 2 * byte, x, c);
		if (2 * byte + 1 < rows.m)
			code |= nearest_word(rows, 2 * byte + 1, x, c) << 4;
	}
	rows.d_codes[at] = (uint8_t) code;
}

/*
 * Computes T of postings, a thread for each posting.  T is a sum in double, by
 * ascending dimension.
 */
static __global__ void __launch_bounds__(THREADS)
terms_kernel(GvDeviceRows rows)
{
	int64_t		posting = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int			code_bytes = (rows.m + 1) / 2;
	double		terms = 0.0;
	int			list;

	if (posting >= (int64_t) rows.n * rows.lists_per_row)
		return;
	list = rows.d_lists[posting];
	for (int j = 0; j < rows.m && list >= 0 && rows.metric != GV_IP; j++)
	{
		int			start = sub_start(rows, j);
		int			dims = sub_start(rows, j + 1) - start;
		int			code = rows.d_codes[posting * code_bytes + j / 2] >>
			(j % 2 * 4) & 15;
		const float *word = rows.d_codebooks +
			GV_CODEWORDS * (int64_t) start + code * dims;
		const float *c = rows.d_centroids + (int64_t) list * rows.dims + start;

		for (int d = 0; d < dims; d++)
			terms = __dadd_rn(terms,
							  __dmul_rn((double) word[d],
										__dadd_rn((double) word[d],
												  __dmul_rn(2.0,
															(double) c[d]))));
	}
	rows.d_terms[posting] = gv_device_clamp(terms);
}

/*
 * Returns the least of a warp's values and, of equal values (-0 and 0), the
 * one with the smallest place.
 */
static __device__ __forceinline__ float
first_least(float value, int place)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
	{
		float		other = __shfl_xor_sync(GV_FULL_WARP, value, half);
		int			other_place = __shfl_xor_sync(GV_FULL_WARP, place, half);

		if (other < value || (other == value && other_place < place))
		{
			value = other;
			place = other_place;
		}
	}
	return value;
}

/* Returns the smallest float that is not below the value. */
static __device__ __forceinline__ float
round_up(double value)
{
	float		rounded;

	if (value > (double) FLT_MAX)
		return GV_INFINITY;
	rounded = gv_device_clamp(value);
	if ((double) rounded < value)
		rounded = nextafterf(rounded, GV_INFINITY);
	return rounded;
}

/* The steps of a refine record of bytes: x is about least + step * code. */
struct Steps
{
	float		least;
	float		step;
	double		levels;			/* number of steps in a distance of 1; 0 if all
								 * elements are equal */
};

/* Returns the steps of a row, to all lanes of its warp. */
static __device__ __forceinline__ Steps
steps_of(const float *x, int dims)
{
	int			lane = threadIdx.x % GV_WARP;
	int			place = min(lane, dims - 1);
	float		least = x[place];
	float		most = least;
	double		range;

	for (int d = lane + GV_WARP; d < dims; d += GV_WARP)
	{
		if (x[d] < least)
		{
			least = x[d];
			place = d;
		}
		most = x[d] > most ? x[d] : most;
	}
	least = first_least(least, place);
	for (int half = GV_WARP / 2; half > 0; half /= 2)
	{
		float		other = __shfl_xor_sync(GV_FULL_WARP, most, half);

		most = other > most ? other : most;
	}
	range = __dadd_rn((double) most, -(double) least);
	return {least, (float) __ddiv_rn(range, (double) LEVELS),
		most > least ? __ddiv_rn((double) LEVELS, range) : 0.0};
}

/*
 * Makes refine records, of bytes or of halves, a warp for each row.  The
 * squared error is one sum in double, by ascending dimension: each lane
 * computes a term, and then every lane adds the terms of all 32 lanes.
 */
template <bool HALF>
static __global__ void __launch_bounds__(THREADS)
records_kernel(GvDeviceRows rows)
{
	int			lane = threadIdx.x % GV_WARP;
	int			i = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	int64_t		first = (int64_t) i * rows.dims;
	const float *x = rows.d_rows + first;
	Steps		steps = {};
	bool		huge = false;
	double		square = 0.0;

	if (i >= rows.n)
		return;
	if (!HALF)
		steps = steps_of(x, rows.dims);
	for (int start = 0; start < rows.dims; start += GV_WARP)
	{
		int			d = start + lane;
		double		term = 0.0;

		if (d < rows.dims)
		{
			float		value;
			double		diff;

			if (HALF)
			{
				uint16_t	half = gv_to_half(fminf(fmaxf(x[d], -GV_MOST_HALF),
													GV_MOST_HALF));

				((uint16_t *) rows.d_records)[first + d] = half;
				value = gv_from_half(half);
			}
			else
			{
				uint8_t		code = (uint8_t)
					__dadd_rn(__dmul_rn(__dadd_rn((double) x[d],
												  -(double) steps.least),
										steps.levels), 0.5);

				rows.d_records[first + d] = code;
				value = __fadd_rn(steps.least,
								  __fmul_rn(steps.step, (float) code));
			}
			diff = __dadd_rn((double) x[d], -(double) value);
			term = __dmul_rn(diff, diff);
			huge |= !(x[d] < HUGE_LENGTH && x[d] > -HUGE_LENGTH);
		}
		for (int l = 0; l < GV_WARP; l++)
			square = __dadd_rn(square, __shfl_sync(GV_FULL_WARP, term, l));
	}
	huge = __any_sync(GV_FULL_WARP, huge);
	if (lane == 0)
	{
		rows.d_min[i] = steps.least;
		rows.d_step[i] = steps.step;
		rows.d_error[i] = huge ? GV_INFINITY :
			round_up(__dmul_rn(__dsqrt_rn(square), 1.0 + 1e-9));
	}
}

/*
 * Sets d_codes, d_terms and, if there are records, the arrays of records, from
 * d_lists.
 */
GvStatus
gv_gpu_codes(const GvDeviceRows *rows, GvRecords records, cudaStream_t stream)
{
	int64_t		postings = (int64_t) rows->n * rows->lists_per_row;

	GV_TRY(gv_launch(codes_kernel,
					 gv_blocks_for(postings * gv_code_bytes(rows->m), THREADS),
					 THREADS, 0, stream, *rows));
	GV_TRY(gv_launch(terms_kernel, gv_blocks_for(postings, THREADS), THREADS,
					 0, stream, *rows));
	if (records == GV_RECORDS_NONE)
		return GV_OK;
	return gv_launch(records == GV_RECORDS_HALF ? records_kernel<true> :
					 records_kernel<false>, gv_blocks_for(rows->n, WARPS),
					 THREADS, 0, stream, *rows);
}
