/*
 * codebooks.cu
 *	16 codewords for each sub-quantizer: k-means in a few dimensions, as
 *	src/cpu/pq/pq.c has it.
 *
 * A block has a sub-quantizer.  When rows are assigned, a thread takes whole
 * rows.  When codewords are moved, a thread has one dimension and a share of
 * the rows, and adds them to a sum for each codeword in shared memory.  The
 * sums of shares are added in order, so the same residuals give the same
 * codebooks.
 */
#include "gpu/build/build.h"
#include "gpu/device/warp.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define ITERATIONS		12
#define TRIES			8		/* max draws of an initial codeword; a draw is
								 * repeated if the row equals an earlier
								 * codeword */

/* The training of one sub-quantizer. */
struct Trainer
{
	const float *x;				/* [n][stride] the sub-quantizer's dimensions
								 * of residuals */
	int			stride;
	int			dims;
	int			n;
	float	   *words;			/* [GV_CODEWORDS][dims] */
	float	   *dist;			/* [n] distance to the nearest codeword */
	uint8_t    *codes;			/* [n] */
	double	   *sums;			/* shared [GV_CODEWORDS][THREADS] */
	int		   *counts;			/* shared [GV_CODEWORDS] */
};

static __device__ __forceinline__ void
set_word(const Trainer &trainer, int k, int row)
{
	for (int d = threadIdx.x; d < trainer.dims; d += THREADS)
		trainer.words[k * trainer.dims + d] =
			trainer.x[(int64_t) row * trainer.stride + d];
	__syncthreads();
}

static __device__ __forceinline__ float
word_distance(const Trainer &trainer, int row, int k)
{
	const float *x = trainer.x + (int64_t) row * trainer.stride;
	float		sum = 0.0f;

	for (int d = 0; d < trainer.dims; d++)
	{
		float		diff = x[d] - trainer.words[k * trainer.dims + d];

		sum += diff * diff;
	}
	return gv_device_score(sum);
}

/* Returns, to all threads, whether word k equals one before it. */
static __device__ __forceinline__ bool
is_repeated(const Trainer &trainer, int k)
{
	__shared__ int differs[GV_CODEWORDS];
	bool		repeated = false;

	if (threadIdx.x < GV_CODEWORDS)
		differs[threadIdx.x] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < k * trainer.dims; i += THREADS)
		if (trainer.words[i] !=
			trainer.words[k * trainer.dims + i % trainer.dims])
			atomicMax(&differs[i / trainer.dims], 1);
	__syncthreads();
	for (int other = 0; other < k; other++)
		repeated |= differs[other] == 0;
	__syncthreads();
	return repeated;
}

/*
 * Draws initial codewords from random rows.  A codeword that equals an earlier
 * one is drawn again, with at most TRIES draws.
 */
static __device__ __forceinline__ void
draw_words(const Trainer &trainer, uint64_t random)
{
	for (int k = 0; k < GV_CODEWORDS; k++)
		for (int tries = 0; tries < TRIES; tries++)
		{
			set_word(trainer, k, (int) (gv_device_random(&random) %
										(uint64_t) trainer.n));
			if (!is_repeated(trainer, k))
				break;
		}
}

/*
 * Finds the nearest codeword of every row, and counts the rows of each
 * codeword.
 */
static __device__ __forceinline__ void
assign_rows(const Trainer &trainer)
{
	if (threadIdx.x < GV_CODEWORDS)
		trainer.counts[threadIdx.x] = 0;
	__syncthreads();
	for (int row = threadIdx.x; row < trainer.n; row += THREADS)
	{
		float		best = word_distance(trainer, row, 0);
		int			code = 0;

		for (int k = 1; k < GV_CODEWORDS; k++)
		{
			float		dist = word_distance(trainer, row, k);

			if (dist < best)
			{
				best = dist;
				code = k;
			}
		}
		trainer.dist[row] = best;
		trainer.codes[row] = (uint8_t) code;
		atomicAdd(&trainer.counts[code], 1);
	}
	__syncthreads();
}

/*
 * Moves codewords to the means of their rows; codewords without rows stay.  A
 * thread has a dimension.  If there are fewer dimensions than threads, several
 * threads share a dimension and divide the rows.
 */
static __device__ __forceinline__ void
move_words(const Trainer &trainer)
{
	int			width = min(trainer.dims, THREADS);
	int			nshares = THREADS / width;
	int			share = threadIdx.x / width;

	for (int start = 0; start < trainer.dims; start += width)
	{
		int			d = start + threadIdx.x % width;

		for (int k = 0; k < GV_CODEWORDS; k++)
			trainer.sums[k * THREADS + threadIdx.x] = 0.0;
		if (share < nshares && d < trainer.dims)
			for (int row = share; row < trainer.n; row += nshares)
				trainer.sums[trainer.codes[row] * THREADS + threadIdx.x] +=
					(double) trainer.x[(int64_t) row * trainer.stride + d];
		__syncthreads();
		for (int i = threadIdx.x; i < GV_CODEWORDS * width; i += THREADS)
		{
			int			k = i / width;
			double		sum = 0.0;

			if (start + i % width >= trainer.dims || trainer.counts[k] == 0)
				continue;
			for (int s = 0; s < nshares; s++)
				sum += trainer.sums[k * THREADS + s * width + i % width];
			trainer.words[k * trainer.dims + start + i % width] =
				gv_device_clamp(sum / trainer.counts[k]);
		}
		__syncthreads();
	}
}

/*
 * Returns, to all threads, the row that is farthest from its codeword, or -1
 * if all rows equal their codewords.
 */
static __device__ __forceinline__ int
find_farthest(const Trainer &trainer)
{
	__shared__ float best[THREADS];
	__shared__ int place[THREADS];
	float		most = 0.0f;
	int			row = -1;

	best[threadIdx.x] = 0.0f;
	place[threadIdx.x] = -1;
	for (int i = threadIdx.x; i < trainer.n; i += THREADS)
		if (trainer.dist[i] > best[threadIdx.x])
		{
			best[threadIdx.x] = trainer.dist[i];
			place[threadIdx.x] = i;
		}
	__syncthreads();
	for (int t = 0; t < THREADS; t++)
		if (best[t] > most || (best[t] == most && place[t] >= 0 &&
							   place[t] < row))
		{
			most = best[t];
			row = place[t];
		}
	__syncthreads();
	return row;
}

/*
 * Sets codeword k, which has no rows, to the row that is farthest from its
 * codeword.  If all rows equal their codewords, k repeats codeword `held`.
 */
static __device__ __forceinline__ void
refill_word(const Trainer &trainer, int k, int held)
{
	int			farthest = find_farthest(trainer);

	if (farthest < 0)
	{
		for (int d = threadIdx.x; d < trainer.dims; d += THREADS)
			trainer.words[k * trainer.dims + d] =
				trainer.words[held * trainer.dims + d];
		__syncthreads();
		return;
	}
	set_word(trainer, k, farthest);
	/* rows equal to the codeword get distance 0, and are not chosen again */
	for (int row = threadIdx.x; row < trainer.n; row += THREADS)
		trainer.dist[row] = fminf(trainer.dist[row],
								  word_distance(trainer, row, k));
	__syncthreads();
}

/*
 * Trains the codebooks, a block for each sub-quantizer.  Shared memory: sums
 * [GV_CODEWORDS][THREADS].
 */
static __global__ void __launch_bounds__(THREADS)
codebooks_kernel(const float *residuals, int dims, int m, int n,
				 uint64_t seed, float *codebooks, float *dist, uint8_t *codes)
{
	__shared__ double sums[GV_CODEWORDS * THREADS];
	__shared__ int counts[GV_CODEWORDS];
	int			j = blockIdx.x;
	int			start = (int) ((int64_t) j * dims / m);
	Trainer		trainer = {residuals + start, dims,
		(int) ((int64_t) (j + 1) * dims / m) - start, n,
		codebooks + (int64_t) GV_CODEWORDS * start, dist + (int64_t) j * n,
		codes + (int64_t) j * n, sums, counts};

	draw_words(trainer, seed + (uint64_t) j);
	for (int i = 0; i < ITERATIONS; i++)
	{
		int			held;

		assign_rows(trainer);
		held = trainer.codes[0];
		move_words(trainer);
		for (int k = 0; k < GV_CODEWORDS; k++)
			if (counts[k] == 0)
				refill_word(trainer, k, held);
		__syncthreads();
	}
}

GvStatus
gv_gpu_codebooks(int32_t dims, int32_t m, int32_t n, const float *d_residuals,
				 uint64_t seed, float *d_codebooks, cudaStream_t stream)
{
	int64_t		pairs = (int64_t) m * n;
	char	   *d_memory;		/* distances, then codes */
	GvStatus	status;

	GV_CUDA_TRY(gv_device_alloc(&d_memory,
								pairs * (int64_t) (sizeof(float) + 1)));
	status = gv_launch(codebooks_kernel, m, THREADS, 0, stream, d_residuals,
					   dims, m, n, seed, d_codebooks, (float *) d_memory,
					   (uint8_t *) (d_memory + pairs * sizeof(float)));
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(stream));
	(void) cudaFree(d_memory);
	return status;
}
