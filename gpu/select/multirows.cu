/*
 * multirows.cu
 *		Quick multi-select: many rows of one matrix, each in the registers of a
 *		block, counted as teamrow.cuh says; guessrows.cu has those of which few
 *		are wanted.
 *
 * Source: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014.
 */
#include "gpu/select/buckets.cuh"
#include "gpu/select/teamrow.cuh"

/* A row a block.  Shared: gv_bucket_bytes of most, a power of two. */
template <int THREADS, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
team_kernel(GvRowsCall call, uint32_t most)
{
	GV_SHARED(memory);
	[[maybe_unused]] __shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t found;
	int64_t		number = call.first + blockIdx.x;
	GvBuckets	buckets(memory, most);
	GvTeamRow<THREADS, KEYS> row;

	gv_step_begins();
	row.me = threadIdx.x;
	row.n = (uint32_t) call.columns;
	row.team = {{said, 0}};
	if (row.me == 0)
		found = 0;
	__syncthreads();
	gv_select_counted(gv_row(call, number), row, (uint32_t) call.out.k, most,
					  buckets.items, &found);
	gv_buckets_write<THREADS>(buckets, found, call.out, number);
}

template <int THREADS, int KEYS, int BLOCKS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		all = gv_power(call->columns, GV_WARP);
	int64_t		most = gv_counted_most(call->out.k);

	most = most < all ? most : all;
	return gv_launch_early(selector->overlap,
						   team_kernel<THREADS, KEYS, BLOCKS>, call->rows,
						   THREADS,
						   gv_bucket_bytes((uint32_t) most,
										   (uint32_t) call->out.k),
						   stream, *call, (uint32_t) most);
}

/* Rows of up to GV_TEAM_COLUMNS, k <= GV_TEAM_MAX_K. */
GvStatus
gv_rows_team(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	if (call->out.k <= gv_estimate_most(call->columns))
		return gv_rows_estimate(selector, call, stream);
	if (call->columns <= 1024)
		return launch<128, 8, 8>(selector, call, stream);
	if (call->columns <= 4096)
		return launch<256, 16, 4>(selector, call, stream);
	if (call->columns <= 10240)
		return launch<512, 20, 2>(selector, call, stream);
	return launch<512, GV_TEAM_COLUMNS / 512, 2>(selector, call, stream);
}
