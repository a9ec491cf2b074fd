/*
 * batch.cu
 *		The search of one batch of rows for all queries: which slots are
 *		filtered at once, which queries are searched again, and the memory for
 *		searches.
 *
 * Chunks.  After `seen` rows a query has the k nearest of these rows.  Of the
 * next c rows in random order about k c / seen are nearer, and a few more
 * reach the threshold because of its error.  A chunk costs 50 us, for some ten
 * launches and for its last, partly filled round of tiles.  A reranked row
 * costs the time to read it: 512 bytes take .17 ns at 3 TB/s, which is 1.7 us
 * for 10,000 queries.  If each chunk multiplies the rows seen by g, L chunks
 * lead from 2,048 rows to 10^6, and rerank L k (g - 1) rows for each query.
 * For k = 10 and 10,000 queries this takes
 *
 *	g		L		rows reranked	time to rerank	time of chunks
 *	2		9		90				.15 ms			.45 ms
 *	3.5		5		120				.21 ms			.25 ms
 *	7.9		3		210				.35 ms			.15 ms
 *	22		2		420				.71 ms			.10 ms
 *
 * So g is 8, or smaller if the expected candidates would fill more than a
 * third of a query's capacity, which is 6 k and at least 256.  The seed, whose
 * scores go to memory, costs .15 us a row.  A seed of 2,048 rows
 * and a seed of 4,096 rows divide 10^6 rows into the same number of chunks.
 *
 * If queries are few, the time to read all half copies matters most.  So there
 * are two chunks: a seed, whose scores give thresholds, and all other rows.
 * This takes four launches, each of which may begin early, and the host waits
 * once.
 */
#include <algorithm>

#include "gpu/exact/exact.h"

#define MOST_GROWTH		7		/* max rows of a chunk for each row before the
								 * chunk */
#define MOST_TERMS		(INT64_C(1) << 43)	/* max terms of a product, which
											 * take .03 s */
#define LEAST_CAPACITY	256
#define FEW_CAPACITY	INT64_C(2048)
#define MOST_PIECE		(1 << 17)	/* maximum queries that are searched at
									 * once */
#define MOST_FOUND		(INT64_C(1) << 30)	/* max bytes for the candidates of
											 * these queries */
#define MOST_SCORES		(INT64_C(1) << 26)
#define LEAST_SCORES	(INT64_C(1) << 16)
#define MOST_FULL_SCORES	INT64_C(16384)	/* max queries that are searched
											 * by full scores at once */
#define LEAST_FULL_SCORES	INT64_C(128)
#define MATRIX_BYTES	(INT64_C(64) << 20) /* max bytes of the half copies of
											 * these queries */

/*
 * capacity of a query for candidates, and number of slots from which the first
 * thresholds come; 0 for the default
 */
GV_TUNABLE int32_t gv_exact_capacity = 0;
GV_TUNABLE int32_t gv_exact_seed = 0;

#ifdef GV_TEST_BUILD
/*
 * number of queries that were searched by full scores (not counting first
 * thresholds), and by brute force
 */
int64_t gv_exact_ways[2];
#endif

/*
 * Counts n queries that are searched by full scores (way 0) or by brute force
 * (way 1).
 */
static void
count_ways(int way, int64_t n)
{
	GV_TEST_ONLY(__atomic_fetch_add(&gv_exact_ways[way], n, __ATOMIC_RELAXED);)
}

/* -- memory */

/*
 * Returns the capacity of a query for candidates.  If queries are few, the
 * capacity is three times the number of slots that thresholds from a seed let
 * pass among all other slots.
 */
static uint32_t
capacity_for(const GvExactAmount *amount)
{
	int64_t		capacity = 6 * (amount->k + 1);
	int64_t		least = LEAST_CAPACITY;

	if (gv_exact_capacity > 0)
		return (uint32_t) gv_exact_capacity;
	if (amount->capacity > 0)
		least = amount->capacity;
	else if (amount->n <= GV_EXACT_FEW)
	{
		int64_t		matching = 3 * (amount->k + 1) *
			(amount->nrows / GV_EXACT_FEW_SEED + 1);

		least = std::max(std::min(matching, amount->nrows), FEW_CAPACITY);
	}
	return (uint32_t) std::max(capacity, least);
}

/*
 * Sets the numbers of queries, candidates and scores that searches have memory
 * for.
 */
static void
set_shape(GvExactWork *work, const GvExactNormalization *norm,
		  const GvExactAmount *amount)
{
	int64_t		half_bytes = norm->half_dims * (int64_t) sizeof(uint16_t);
	int64_t		each;
	int64_t		piece;

	work->filter.capacity = capacity_for(amount);
	each = (int64_t) work->filter.capacity * 12 + amount->k * 16;
	piece = std::min({MOST_FOUND / each, (int64_t) MOST_PIECE, amount->n});
	work->piece = (int32_t) std::max(piece, INT64_C(1));
	work->nfull = std::min((int32_t) std::clamp(MATRIX_BYTES / half_bytes,
												LEAST_FULL_SCORES,
												MOST_FULL_SCORES),
						   work->piece);
	work->nscores = amount->nrows < GV_EXACT_COLUMNS ?
		amount->n * amount->nrows : MOST_SCORES;
	work->nscores = std::clamp(work->nscores, LEAST_SCORES, MOST_SCORES);
}

/* Places all arrays in memory and returns their size in bytes. */
static size_t
place_work(GvExactWork *work, const GvExactNormalization *norm,
		   const GvExactAmount *amount, char *memory)
{
	int64_t		piece = work->piece;
	int64_t		found = piece * work->filter.capacity;
	size_t		bytes = 0;

	gv_place(&work->d_scores, memory, &bytes, work->nscores);
	gv_place(&work->d_gathered, memory, &bytes,
			 (int64_t) work->nfull * norm->half_dims);
	gv_place(&work->filter.d_thresholds, memory, &bytes, piece);
	gv_place(&work->filter.d_counts, memory, &bytes, piece);
	gv_place(&work->filter.d_candidates, memory, &bytes, found);
	gv_place(&work->found.d_distances, memory, &bytes, found);
	gv_place(&work->found.d_merged, memory, &bytes, piece * amount->k);
	gv_place(&work->found.d_merged_positions, memory, &bytes,
			 piece * amount->k);
	gv_place(&work->found.d_ready, memory, &bytes, piece);
	gv_place(&work->lists.d_counts, memory, &bytes, 2);
	gv_place(&work->lists.d_full_scores, memory, &bytes, piece);
	gv_place(&work->lists.d_brute_force, memory, &bytes, amount->n);
	return bytes;
}

size_t
gv_gpu_exact_work_bytes(int32_t device, const GvExactNormalization *norm,
						const GvExactAmount *amount)
{
	GvExactWork work = {};

	set_shape(&work, norm, amount);
	return place_work(&work, norm, amount, NULL) +
		(size_t) gv_blas_bytes(device, norm->half_dims);
}

GvStatus
gv_gpu_exact_work(GvExactWork *work, int32_t device,
				  const GvExactNormalization *norm,
				  const GvExactAmount *amount)
{
	work->device = device;
	set_shape(work, norm, amount);
	GV_TRY(gv_gpu_nsms(&work->nsms));
	GV_TRY(gv_gpu_has_pdl(&work->filter.pdl));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&work->stream,
										  cudaStreamNonBlocking));
	GV_TRY(gv_blas_create(device, norm->half_dims, work->stream, &work->blas));
	GV_CUDA_TRY(cudaMallocHost((void **) &work->counts, 2 * sizeof(uint32_t)));
	GV_TRY(gv_buffer_need(&work->d_work,
						  place_work(work, norm, amount, NULL)));
	(void) place_work(work, norm, amount, (char *) work->d_work.memory);
	return gv_cuda_status(gv_clear(work->found.d_ready, work->piece,
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

/* -- steps */

static GvStatus
multiply(const GvExactWork *work, const GvExactMatmul *matmul)
{
	if (gv_gpu_exact_scan_fits(matmul))
		return gv_gpu_exact_scan(matmul, work->nsms, work->stream);
	if (work->blas == NULL && gv_gpu_exact_hopper_fits(matmul, work->device))
		return gv_gpu_exact_hopper(matmul, work->nsms, work->stream);
	return gv_gpu_exact_matmul(matmul, work->blas, work->stream);
}

/*
 * Returns the parameters of the product of a part's queries with slots first
 * .. last - 1.
 */
static GvExactMatmul
matmul_of(const GvExactSearch *search, const GvExactPart *part, int64_t first,
		  int64_t last)
{
	const GvExactWork *work = search->work;
	int32_t		half_dims = search->norm->half_dims;

	return {half_dims, part->n, (uint32_t) first, (uint32_t) (last - first),
		part->d_list != NULL ? work->d_gathered :
		search->queries->d_half_queries + part->first * half_dims,
		search->rows->d_half_rows + first * half_dims,
		search->rows->d_bias + first, NULL, work->filter};
}

/*
 * Computes thresholds of a part's queries from the scores of slots first ..
 * last - 1, and appends the slots that reach a query's threshold to its
 * candidates.
 */
static GvStatus
score(const GvExactSearch *search, const GvExactPart *part, int64_t first,
	  int64_t last, GvExactUse use, const GvExactOverflowed *lists)
{
	GvExactMatmul matmul = matmul_of(search, part, first, last);

	matmul.d_scores = search->work->d_scores;
	GV_TRY(multiply(search->work, &matmul));
	return gv_gpu_exact_score_thresholds(search, part, &matmul, use, lists);
}

/*
 * Filters slots first .. last - 1, if there are any, for a part's queries.
 * Then reranks the candidates and merges them with the neighbors, or appends
 * queries with too many candidates to `lists`.
 */
static GvStatus
filter(const GvExactSearch *search, const GvExactPart *part, int64_t first,
	   int64_t last, const GvExactOverflowed *lists)
{
	if (first < last)
	{
		GvExactMatmul matmul = matmul_of(search, part, first, last);

		GV_TRY(multiply(search->work, &matmul));
	}
	return gv_gpu_exact_nearest(search, part, {}, &lists->d_counts[0],
								lists->d_full_scores);
}

static GvStatus
clear_lists(const GvExactWork *work)
{
	return gv_cuda_status(gv_clear(work->lists.d_counts, 2, work->stream));
}

/*
 * Waits for the stream and reads how many queries the lists have.  Returns
 * GV_CANCELED on a request to stop.
 */
static GvStatus
read_lists(const GvExactSearch *search, int32_t *nfull, int32_t *nbrute)
{
	GvExactWork *work = search->work;

	GV_CUDA_TRY(gv_download(work->counts, work->lists.d_counts, 2,
							work->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(work->stream));
	*nfull = (int32_t) work->counts[0];
	*nbrute = (int32_t) work->counts[1];
	return gv_is_stopped(search->stop) ? GV_CANCELED : GV_OK;
}

/*
 * If the search may be stopped, waits for its steps.  Returns GV_CANCELED on a
 * request to stop.
 */
static GvStatus
pause_between(const GvExactSearch *search)
{
	if (search->stop == NULL)
		return GV_OK;
	GV_CUDA_TRY(cudaStreamSynchronize(search->work->stream));
	return gv_is_stopped(search->stop) ? GV_CANCELED : GV_OK;
}

/*
 * Reranks slots first .. last - 1 for the n queries in the list for brute
 * force.
 */
static GvStatus
rerank_all(const GvExactSearch *search, int32_t n, int64_t first, int64_t last)
{
	GvExactWork *work = search->work;
	int64_t		capacity = work->filter.capacity;

	count_ways(1, n);
	for (int32_t done = 0; done < n; done += work->piece)
	{
		GvExactPart part = {work->lists.d_brute_force + done, 0,
			n - done < work->piece ? n - done : work->piece};

		for (int64_t s = first; s < last; s += capacity)
		{
			GvExactSlots slots = {(uint32_t) s,
				(uint32_t) std::min(last - s, capacity)};

			GV_TRY(gv_gpu_exact_nearest(search, &part, slots, NULL, NULL));
			GV_TRY(pause_between(search));
		}
	}
	return GV_OK;
}

/*
 * Searches slots first .. last - 1 for the n queries in the list for full
 * scores.  Queries that still have too many candidates are searched by brute
 * force.
 */
static GvStatus
search_full_scores(const GvExactSearch *search, int32_t n, int64_t first,
				   int64_t last)
{
	GvExactWork *work = search->work;
	int64_t		columns = std::min(work->nscores / GV_EXACT_ALIGN *
								   GV_EXACT_ALIGN, GV_EXACT_COLUMNS);
	int32_t		none;
	int32_t		nbrute;

	for (int64_t s = first; s < last; s += columns)
	{
		int64_t		end = last - s < columns ? last : s + columns;
		int64_t		most = std::min(work->nscores / (end - s),
									(int64_t) work->nfull);

		GV_TRY(clear_lists(work));
		for (int32_t done = 0; done < n; done += (int32_t) most)
		{
			GvExactPart part = {work->lists.d_full_scores + done, 0,
				n - done < most ? n - done : (int32_t) most};

			GV_TRY(gv_gpu_exact_gather(search, &part));
			GV_TRY(score(search, &part, s, end, GV_FOR_OVERFLOWED, NULL));
			GV_TRY(gv_gpu_exact_nearest(search, &part, {},
										&work->lists.d_counts[1],
										work->lists.d_brute_force));
			GV_TRY(pause_between(search));
		}
		GV_TRY(read_lists(search, &none, &nbrute));
		GV_TRY(rerank_all(search, nbrute, s, end));
	}
	return GV_OK;
}

/* Searches slots first .. last - 1 for the queries in both lists. */
static GvStatus
search_lists(const GvExactSearch *search, int64_t first, int64_t last)
{
	int32_t		nfull;
	int32_t		nbrute;

	GV_TRY(read_lists(search, &nfull, &nbrute));
	count_ways(0, nfull);
	GV_TRY(rerank_all(search, nbrute, first, last));
	return nfull > 0 ? search_full_scores(search, nfull, first, last) : GV_OK;
}

/*
 * Searches slots first .. last - 1 for a piece of the queries.  If no rows
 * have been searched before, the thresholds come from the scores of these
 * slots.
 */
static GvStatus
search_piece(const GvExactSearch *search, const GvExactPart *part,
			 int64_t first, int64_t last)
{
	GvExactWork *work = search->work;
	int64_t		most = work->nscores / last;

	GV_TRY(clear_lists(work));
	if (work->seen + first > 0)
	{
		GV_TRY(gv_gpu_exact_thresholds(search, part));
		GV_TRY(filter(search, part, first, last, &work->lists));
		return search_lists(search, first, last);
	}
	for (int64_t done = 0; done < part->n; done += most)
	{
		GvExactPart some = {NULL, part->first + done,
			(int32_t) std::min(part->n - done, most)};

		GV_TRY(score(search, &some, 0, last, GV_FOR_THESE, NULL));
		GV_TRY(filter(search, &some, last, last, &work->lists));
		GV_TRY(pause_between(search));
	}
	return search_lists(search, 0, last);
}

/* -- the whole batch */

static int64_t
seed_for(const GvExactQueries *queries, int64_t usual)
{
	return gv_exact_padded(std::max(gv_exact_seed > 0 ? gv_exact_seed : usual,
									4 * queries->k));
}

/*
 * Returns the number of slots of the chunk that begins at `first`: see the
 * head of this file.
 */
static int64_t
chunk_at(const GvExactSearch *search, int64_t first)
{
	const GvExactWork *work = search->work;
	int64_t		seen = work->seen + first;
	int64_t		seed = seed_for(search->queries, GV_EXACT_SEED);
	int64_t		wanted = 3 * (search->queries->k + 1);
	int64_t		most = MOST_TERMS / search->norm->half_dims / work->piece;
	int64_t		chunk = work->filter.capacity < wanted * MOST_GROWTH ?
		(int64_t) ((double) seen * work->filter.capacity / wanted) :
		seen * MOST_GROWTH;

	return gv_exact_padded(std::min(std::max(chunk, seed), most));
}

/*
 * Searches undefined queries, which exist only for cosine and Pearson.  All
 * their distances are NaN, so their neighbors are the rows that come first,
 * and the filter cannot find these.
 */
static GvStatus
search_undefined(const GvExactSearch *search)
{
	GvExactWork *work = search->work;
	GvExactRows rows = *search->rows;
	GvExactSearch first = *search;
	int32_t		none;
	int32_t		nbrute;

	if (search->norm->metric != GV_SET_COSINE &&
		search->norm->metric != GV_SET_PEARSON)
		return GV_OK;
	GV_TRY(clear_lists(work));
	GV_TRY(gv_gpu_exact_undefined(search, &work->lists));
	GV_TRY(read_lists(search, &none, &nbrute));
	rows.stride = 1;
	first.rows = &rows;
	/* one row more than k, because the query's own row may be one of them */
	return rerank_all(&first, nbrute, 0, std::min(search->queries->k + 1,
												  rows.n));
}

/* Searches many rows for few queries, in two chunks and with one wait. */
static GvStatus
search_few(const GvExactSearch *search, int64_t seed)
{
	GvExactWork *work = search->work;
	GvExactPart part = {NULL, 0, (int32_t) search->queries->n};

	GV_TRY(score(search, &part, 0, seed, GV_FOR_OTHERS, &work->lists));
	GV_TRY(filter(search, &part, seed, search->rows->n, &work->lists));
	return search_lists(search, 0, search->rows->n);
}

GvStatus
gv_gpu_exact_search(const GvExactSearch *search)
{
	const GvExactWork *work = search->work;
	const GvExactRows *rows = search->rows;
	const GvExactQueries *queries = search->queries;
	int64_t		few = seed_for(queries, GV_EXACT_FEW_SEED);

	if (work->seen == 0)
		GV_TRY(gv_gpu_exact_queries(search->norm, queries, work->stream));
	GV_TRY(search_undefined(search));
	if (queries->n <= GV_EXACT_FEW && rows->n >= 4 * few &&
		queries->n * few <= work->nscores)
		return search_few(search, few);
	for (int64_t first = 0; first < rows->n;)
	{
		int64_t		chunk = chunk_at(search, first);
		int64_t		last = rows->n - first < chunk ? rows->n : first + chunk;

		for (int64_t q = 0; q < queries->n; q += work->piece)
		{
			GvExactPart part = {NULL, q, queries->n - q < work->piece ?
				(int32_t) (queries->n - q) : work->piece};

			GV_TRY(search_piece(search, &part, first, last));
		}
		first = last;
	}
	return GV_OK;
}

/* -- tiles of nearlists.cu */

int64_t
gv_gpu_exact_tile_most(const GvExactWork *work, const GvExactQueries *queries)
{
	int64_t		most = work->nscores / seed_for(queries, GV_EXACT_SEED);

	return std::max(std::min(most, (int64_t) work->nfull), INT64_C(1));
}

GvStatus
gv_gpu_exact_tile(const GvExactSearch *search, const GvExactPart *part,
				  const GvExactOverflowed *lists)
{
	int64_t		seed = std::min(seed_for(search->queries, GV_EXACT_SEED),
								gv_exact_padded(search->rows->n));

	GV_TRY(gv_gpu_exact_gather(search, part));
	/*
	 * thresholds come from the first slots, which are those of the nearest
	 * lists
	 */
	GV_TRY(score(search, part, 0, seed, GV_FOR_OTHERS, NULL));
	return filter(search, part, seed, search->rows->n, lists);
}

GvStatus
gv_gpu_exact_finish(const GvExactSearch *search,
					const GvExactOverflowed *lists, const uint32_t counts[2])
{
	GvExactWork *work = search->work;
	GvExactOverflowed own = work->lists;
	GvStatus	status;

	count_ways(0, counts[0]);
	work->lists.d_full_scores = lists->d_full_scores;
	work->lists.d_brute_force = lists->d_brute_force;
	status = rerank_all(search, (int32_t) counts[1], 0, search->rows->n);
	if (status == GV_OK && counts[0] > 0)
	{
		/*
		 * search_full_scores appends queries to the work's own list for brute
		 * force
		 */
		work->lists.d_brute_force = own.d_brute_force;
		status = search_full_scores(search, (int32_t) counts[0], 0,
									search->rows->n);
	}
	work->lists = own;
	return status;
}
