/*
 * work.cu
 *		Memory for searches: how many queries come at once, how many slots each
 *		has memory for, and where everything lies.
 */
#include "gpu/exact/filter/gv_exact.h"

#define LEAST_CAPACITY	256
#define FEW_CAPACITY	2048
#define MOST_PIECE		(1 << 17)	/* queries at once */
#define MOST_FOUND		(INT64_C(1) << 30)	/* bytes for what they find */
#define MOST_SCORES		(INT64_C(1) << 26)
#define LEAST_SCORES	(INT64_C(1) << 16)
#define MOST_MATRIX		16384	/* queries of a matrix, */
#define LEAST_MATRIX	128
#define MATRIX_BYTES	(INT64_C(64) << 20)	/* of gathered half copies */

static GV_TUNABLE int32_t forced_capacity = 0;

#ifdef GV_TEST_BUILD

static int32_t forced_seed;

/* See gv_exact.h. */
extern "C" void
gv_gpu_exact_force(int32_t capacity, int32_t seed)
{
	forced_capacity = capacity;
	forced_seed = seed;
}

/* See gv_exact.h. */
int32_t
gv_gpu_exact_forced_seed(void)
{
	return forced_seed;
}

#endif

/*
 * Slots that a query has memory for.  Of few queries three times what cuts
 * from a seed let pass of all other rows.
 */
static uint32_t
capacity_for(const GvExactAmount *amount)
{
	int64_t		capacity = 6 * (amount->k + 1);
	int64_t		least = LEAST_CAPACITY;

	if (forced_capacity > 0)
		return (uint32_t) forced_capacity;
	if (amount->capacity > 0)
		least = amount->capacity;
	else if (amount->n <= GV_EXACT_FEW)
	{
		int64_t		matching = 3 * (amount->k + 1) *
			(amount->nrows / GV_EXACT_FEW_SEED + 1);

		least = matching < amount->nrows ? matching : amount->nrows;
		least = least > FEW_CAPACITY ? least : FEW_CAPACITY;
	}
	return (uint32_t) (capacity > least ? capacity : least);
}

/* Where everything lies in d_work. */
struct Plan
{
	int32_t		piece;
	int32_t		matrix;			/* queries of a matrix */
	int64_t		nscores;
	uint32_t	capacity;
	size_t		scores;
	size_t		gathered;
	size_t		cuts;
	size_t		counts;
	size_t		slots;
	size_t		distances;
	size_t		other;
	size_t		other_rows;
	size_t		merged;
	size_t		merged_positions;
	size_t		ready;
	size_t		list_counts;
	size_t		list;			/* of the matrix way */
	size_t		slow;
	size_t		bytes;
};

static Plan
make_plan(const GvExactSpace *space, const GvExactAmount *amount)
{
	Plan		plan = {};
	int64_t		n = amount->n;
	int64_t		k = amount->k;
	int64_t		nrows = amount->nrows;
	int64_t		each;
	int64_t		piece;
	int64_t		half_bytes = space->half_dims * (int64_t) sizeof(uint16_t);
	int64_t		matrix = MATRIX_BYTES / half_bytes;
	size_t		found;

	plan.capacity = capacity_for(amount);
	each = (int64_t) plan.capacity * 24 + k * 16;
	piece = MOST_FOUND / each;
	piece = piece < MOST_PIECE ? piece : MOST_PIECE;
	piece = piece < n ? piece : n;
	plan.piece = piece > 1 ? (int32_t) piece : 1;
	plan.nscores = nrows < GV_EXACT_COLUMNS ? n * nrows : MOST_SCORES;
	if (plan.nscores > MOST_SCORES)
		plan.nscores = MOST_SCORES;
	if (plan.nscores < LEAST_SCORES)
		plan.nscores = LEAST_SCORES;
	found = (size_t) plan.piece * plan.capacity;
	matrix = matrix > LEAST_MATRIX ? matrix : LEAST_MATRIX;
	matrix = matrix < MOST_MATRIX ? matrix : MOST_MATRIX;
	plan.matrix = matrix < plan.piece ? (int32_t) matrix : plan.piece;
	plan.scores = gv_carve(&plan.bytes, plan.nscores * sizeof(float));
	plan.gathered = gv_carve(&plan.bytes, (size_t) plan.matrix * half_bytes);
	plan.cuts = gv_carve(&plan.bytes, plan.piece * sizeof(float));
	plan.counts = gv_carve(&plan.bytes, plan.piece * sizeof(uint32_t));
	plan.slots = gv_carve(&plan.bytes, found * sizeof(uint32_t));
	plan.distances = gv_carve(&plan.bytes, found * sizeof(double));
	plan.other = gv_carve(&plan.bytes, found * sizeof(double));
	plan.other_rows = gv_carve(&plan.bytes, found * sizeof(uint32_t));
	plan.merged = gv_carve(&plan.bytes, plan.piece * k * sizeof(double));
	plan.merged_positions = gv_carve(&plan.bytes,
									 plan.piece * k * sizeof(int64_t));
	plan.ready = gv_carve(&plan.bytes, plan.piece * sizeof(uint32_t));
	plan.list_counts = gv_carve(&plan.bytes, 2 * sizeof(uint32_t));
	plan.list = gv_carve(&plan.bytes, plan.piece * sizeof(uint32_t));
	plan.slow = gv_carve(&plan.bytes, n * sizeof(uint32_t));
	return plan;
}

/* See gv_exact.h. */
size_t
gv_gpu_exact_work_bytes(int32_t device, const GvExactSpace *space,
						const GvExactAmount *amount)
{
	return make_plan(space, amount).bytes +
		(size_t) gv_blas_bytes(device, space->half_dims);
}

/* See gv_exact.h. */
GvStatus
gv_gpu_exact_work(GvExactWork *work, int32_t device, const GvExactSpace *space,
				  const GvExactAmount *amount)
{
	Plan		plan = make_plan(space, amount);
	char	   *memory;
	int			number;
	bool		overlaps;

	work->device = device;
	GV_CUDA_TRY(cudaGetDevice(&number));
	GV_CUDA_TRY(cudaDeviceGetAttribute(&work->nsms,
									   cudaDevAttrMultiProcessorCount,
									   number));
	GV_TRY(gv_gpu_overlaps(&overlaps));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&work->stream,
										  cudaStreamNonBlocking));
	GV_TRY(gv_blas_create(device, space->half_dims, work->stream, &work->blas));
	GV_CUDA_TRY(cudaMallocHost((void **) &work->counts,
							   2 * sizeof(uint32_t)));
	GV_TRY(gv_buffer_need(&work->d_work, plan.bytes));
	memory = (char *) work->d_work.memory;
	work->piece = plan.piece;
	work->matrix = plan.matrix;
	work->nscores = plan.nscores;
	work->d_scores = (float *) (memory + plan.scores);
	work->d_gathered = (uint16_t *) (memory + plan.gathered);
	work->filter = {(float *) (memory + plan.cuts),
		(uint32_t *) (memory + plan.counts),
		(uint32_t *) (memory + plan.slots), plan.capacity, overlaps};
	work->found = {(double *) (memory + plan.distances),
		(double *) (memory + plan.other),
		(uint32_t *) (memory + plan.other_rows),
		(double *) (memory + plan.merged),
		(int64_t *) (memory + plan.merged_positions),
		(uint32_t *) (memory + plan.ready)};
	work->lists = {(uint32_t *) (memory + plan.list_counts),
		(uint32_t *) (memory + plan.list),
		(uint32_t *) (memory + plan.slow)};
	return gv_cuda_status(cudaMemsetAsync(work->found.d_ready, 0,
										  plan.piece * sizeof(uint32_t),
										  work->stream));
}

void
gv_gpu_exact_work_drop(GvExactWork *work)
{
	if (work->stream != NULL)
	{
		(void) cudaStreamSynchronize(work->stream);
		gv_blas_drop(work->blas);
		(void) cudaStreamDestroy(work->stream);
	}
	if (work->counts != NULL)
		(void) cudaFreeHost(work->counts);
	gv_buffer_free(&work->d_work);
}
