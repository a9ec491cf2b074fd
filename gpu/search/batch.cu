/*
 * batch.cu
 *		Divides a batch into sub-batches: determines how many searches each
 *		sub-batch has, the shapes of its arrays, and the addresses of the
 *		arrays.
 *
 * Small sub-batches run as CUDA graphs, which contain the shapes and addresses
 * of arrays.  So the shapes of small sub-batches are rounded up, so that few
 * graphs serve many batches.
 */
#include <algorithm>
#include <math.h>
#include <sched.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "gpu/search/search.h"

#define MOST_QUERIES	512

#define POSTING_BYTES		((int64_t) (sizeof(float) + sizeof(uint64_t)))

/*
 * A batch has at least two sub-batches from this number of queries on, and at
 * least four from the second number on.
 */
#define TWO_SUB_BATCHES		32
#define FOUR_SUB_BATCHES	256

/* Rounds up to a number with three significant bits. */
static int64_t
round_up(int64_t number)
{
	int64_t		step = 1;

	while (step * 8 <= number)
		step *= 2;
	return (number + step - 1) / step * step;
}

/* Returns how many postings a search of `probes` lists has memory for. */
static int64_t
most_postings(const GvMirror *mirror, int32_t probes)
{
	int64_t		nblocks = gv_lengths_most(&mirror->lengths, probes);

	return round_up(nblocks < mirror->nblocks ? nblocks : mirror->nblocks) *
		GV_BLOCK;
}

/*
 * Returns how many searches each sub-batch of a batch of n searches has.  All
 * sub-batches have about the same number.  In small sub-batches this number is
 * rounded up, because the address of the next sub-batch's answers depends on
 * it and is an argument of the next sub-batch's graph.
 */
static int32_t
sub_batch_size(int32_t n)
{
	int32_t		few = n >= FOUR_SUB_BATCHES ? 4 : n >= TWO_SUB_BATCHES ? 2 : 1;
	int32_t		nbatches = (n + MOST_QUERIES - 1) / MOST_QUERIES;

	if (nbatches < few)
		nbatches = few;
	n = (n + nbatches - 1) / nbatches;
	return n <= GV_MOST_OF_GRAPH ? (int32_t) round_up(n) : n;
}

/*
 * Returns whether the batch can run as a CUDA graph.  Rounding the shape of
 * the batch does not change the result.
 */
static bool
is_small(const GvBatch *batch)
{
	return batch->n <= GV_MOST_OF_GRAPH &&
		batch->nselected <= GV_MANY_PROBES &&
		batch->k <= GV_MANY_POSTINGS && batch->postings > 0;
}

/* Rounds up to a power of two; 0 stays 0. */
static int64_t
round_far_up(int64_t number)
{
	int64_t		power = number > 0;

	while (power < number)
		power *= 2;
	return power;
}

/*
 * Rounds up a small batch's shape, so that few graphs serve many batches.  The
 * searches that are added have k = 0.  Searches with conditions probe a
 * different number of lists each time, so their shapes are rounded up to
 * powers of two, which costs only memory.
 */
static void
round_batch(const GvMirror *mirror, GvBatch *batch)
{
	int64_t		(*round) (int64_t number) = batch->tests > 0 ? round_far_up :
		round_up;
	int64_t		nlists = mirror->spec.nlists;

	batch->n = (int32_t) round_up(batch->n);
	batch->nprobe = (int32_t) std::min(round(batch->nprobe), nlists);
	batch->nselected = (int32_t) std::min(round(batch->nselected), nlists);
	batch->k = (int32_t) round(batch->k);
	batch->postings = most_postings(mirror, batch->nprobe);
	batch->tests = (int32_t) round_up(batch->tests);
	batch->values = (int32_t) round_far_up(batch->values);
}

/* Estimates how many bytes of a stream's work memory a batch takes. */
static int64_t
rounded_bytes(const GvMirror *mirror, GvBatch batch)
{
	int64_t		posting_bytes = POSTING_BYTES;
	int64_t		hit_bytes = sizeof(GvHit) + sizeof(uint8_t *) +
		(batch.asked ? sizeof(GvRowDistance) : 0);
	int64_t		asked_bytes = batch.asked ?
		mirror->spec.dims * (int64_t) sizeof(float) : 0;
	int64_t		scores;			/* of lists, and of groups */

	if (is_small(&batch))
		round_batch(mirror, &batch);
	if (gv_gpu_bins_postings(&batch))
		posting_bytes = sizeof(float) + sizeof(uint4);
	if (batch.sampled)
		posting_bytes += sizeof(float);
	scores = batch.n * (int64_t) gv_ncolumn_groups(mirror->spec.nlists) +
		gv_gpu_coarse_rows(&mirror->model, batch.n, batch.nprobe) *
		(int64_t) mirror->spec.nlists;
	return scores * (int64_t) sizeof(float) +
		batch.n * (batch.postings * posting_bytes + batch.k * hit_bytes +
				   asked_bytes +
				   batch.tests * (int64_t) sizeof(GvDeviceTest)) +
		batch.values * (int64_t) sizeof(uint64_t);
}

/* Sets the shape of a batch of n searches. */
static void
set_shape(const GvMirror *mirror, const GvSearch *searches, int32_t n,
		  GvBatch *batch)
{
	memset(batch, 0, sizeof(*batch));
	batch->n = n;
	batch->asked = searches[0].asked != NULL;
	batch->steps = searches[0].steps;
	for (int32_t i = 0; i < n; i++)
	{
		const GvSearch *search = &searches[i];
		const GvCondition *condition = search->condition;

		batch->nprobe = std::max(batch->nprobe, search->probes);
		if (!search->by_number && search->steps != GV_STEPS_SCAN)
			batch->nselected = std::max(batch->nselected, search->probes);
		batch->listed |= !search->sums;
		batch->k = std::max(batch->k, search->capacity);
		batch->sampled |= search->rank > 0;
		if (condition == NULL)
			continue;
		/* a condition without tests still counts the postings */
		batch->tests = std::max({batch->tests, condition->ntests, 1});
		for (int32_t t = 0; t < condition->ntests; t++)
			if (condition->tests[t].kind == GV_TEST_SET)
				batch->values += condition->tests[t].nvalues;
	}
	batch->nprobe = std::min(batch->nprobe, mirror->spec.nlists);
	batch->nselected = std::min(batch->nselected, mirror->spec.nlists);
	batch->postings = batch->steps == GV_STEPS_LISTS ? 0 :
		most_postings(mirror, batch->nprobe);
}

/*
 * Sets the shape of the next sub-batch, which takes as many of the n searches
 * as fit into work memory, from the first on.  Returns how many searches it
 * takes.
 */
static int32_t
next_sub_batch(const GvSearcher *searcher, const GvMirror *mirror,
			   const GvSearch *searches, int32_t n, GvBatch *batch)
{
	int32_t		fits = 1;
	int32_t		most = n;

	set_shape(mirror, searches, n, batch);
	for (;;)
	{
		if (rounded_bytes(mirror, *batch) <= searcher->most_work)
			fits = batch->n;
		else
			most = batch->n - 1;
		if (fits >= most && batch->n == fits)
			break;
		set_shape(mirror, searches, fits + (most - fits + 1) / 2, batch);
	}
	if (is_small(batch))
		round_batch(mirror, batch);
	return fits;
}

/*
 * Places arrays one after the other: the next array begins at offset `bytes`
 * of `memory`.  If memory is NULL, only `bytes` advances.
 */
struct Arena
{
	char	   *memory;
	size_t		bytes;

	template <typename T>
	void
	place(T **array, int64_t n)
	{
		gv_place(array, memory, &bytes, n);
	}
};

/*
 * Places a batch's arrays in four parts of memory.  `in` is host memory that
 * the device reads, and `out` is host memory that the device writes.  `shared`
 * is work memory that all sub-batches of a turn share; this works because one
 * sub-batch has read its arrays there before the next one writes.  `own` is
 * work memory of this sub-batch alone.  Arrays that are copied together
 * (queries and parameters; probes, bounds or distances, and hits) have the
 * same order in host memory and in work memory.
 */
static void
place_sub_batch(const GvDeviceModel *model, const GvSearcher *searcher,
				Arena *in, Arena *out, Arena *shared, Arena *own,
				GvBatch *batch)
{
	int64_t		n = batch->n;
	int64_t		nhits = n * batch->k;
	int64_t		nprobes = n * batch->nprobe;
	int64_t		nlisted = batch->listed ? nprobes : 0;
	int64_t		nscores = n * batch->postings;
	bool		bounded = model->refine_slots > 0;
	bool		sorts = gv_gpu_sorts_postings(batch);

	in->place(&batch->in_queries, n * model->dims);
	own->place(&batch->d_queries, n * model->dims);
	if (batch->asked)
	{
		in->place(&batch->in_asked, n * model->dims);
		own->place(&batch->d_asked, n * model->dims);
	}
	in->place(&batch->in_params, n);
	if (batch->steps == GV_STEPS_SCAN)
		in->place(&batch->in_probed, nprobes);
	own->place(&batch->d_params, n);
	own->place(&batch->d_tables, n * gv_table_floats(&model->shape));
	shared->place(&batch->d_coarse,
				  gv_gpu_coarse_rows(model, batch->n, batch->nprobe) *
				  gv_score_stride(model->nlists));
	out->place(&batch->out_probed, nlisted);
	own->place(&batch->d_probed, nprobes);
	if (bounded)
	{
		out->place(&batch->out_bounds, nhits);
		own->place(&batch->d_bounds, nhits);
	}
	if (batch->asked)
	{
		out->place(&batch->out_distances, nhits);
		own->place(&batch->d_distances, nhits);
	}
	out->place(&batch->out_hits, nhits);
	own->place(&batch->d_hits, nhits);
	gv_gpu_place_slices(model, searcher, batch, shared->memory,
						&shared->bytes);
	if ((bounded || batch->asked) && !sorts)
		shared->place(&batch->d_items, nhits);
	own->place(&batch->d_starts, n * (batch->nprobe + 1));
	own->place(&batch->d_list_blocks, nprobes);
	shared->place(&batch->d_scores, nscores);
	if (!sorts)
		shared->place(&batch->d_ids, nscores);
	else if (batch->list_slices.select_by != 0 && gv_gpu_bins_postings(batch))
		gv_gpu_place_bins(batch, shared->memory, &shared->bytes);
	own->place(&batch->d_search_counts, n);
	if (batch->steps != GV_STEPS_SCAN &&
		gv_gpu_coarse_filter_pays(model, batch))
	{
		GvCoarseFilter *filter = &batch->filter;

		filter->nsquares = model->shape.chunks;
		shared->place(&filter->d_half_queries, n * model->half_dims);
		shared->place(&filter->d_squares, n * filter->nsquares);
		shared->place(&filter->d_group_min,
					  n * gv_ncolumn_groups(model->nlists));
		GV_TEST_ONLY(filter->d_path_counts =
					 (unsigned *) searcher->d_path_counts.memory;)
	}
	if (batch->tests > 0 || batch->by_list)
		own->place(&batch->d_nscores, n);
	if (batch->by_list)
		own->place(&batch->d_overflowed, n);
	if (batch->tests > 0)
	{
		in->place(&batch->in_tests, n * batch->tests);
		in->place(&batch->in_values, batch->values);
		out->place(&batch->out_matches, nlisted);
		own->place(&batch->d_tests, n * batch->tests);
		own->place(&batch->d_values, batch->values);
		own->place(&batch->d_matches, nlisted);
	}
	if (batch->sampled)
	{
		in->place(&batch->in_sample_queries, n);
		own->place(&batch->d_sample_queries, n);
		own->place(&batch->d_sampled, nscores);
		own->place(&batch->d_nsampled, n);
	}
}

/*
 * ----
 * Sub-batches that are scanned together, list by list.
 *
 * If a batch has thousands of queries, many of them probe each list, and the
 * codes of the list need to be read and looked up only once for all these
 * queries.  This requires that the lists of all queries are known first.  So
 * sub-batches run one after the other, as usual, until their lists are chosen,
 * which keeps list scores in L2 and the host one sub-batch ahead of the
 * device.  Then all of them are scanned together.  Each stream has half of a
 * batch, so that one half is scanned while the lists of the other half are
 * chosen.
 */

/* minimum number of queries that probe a list, on average */
#define LEAST_PAIRS			8
#define LEAST_QUERIES		256		/* least queries of such a batch */
#define SUB_BATCH_QUERIES	1280	/* queries of a sub-batch; more than 512,
									 * because kernels with a block for each
									 * query need more blocks */

/*
 * If positive, batches are scanned list by list even if this is slower, in
 * sub-batches of this many queries.  If 0, no batch is scanned list by list;
 * if negative, the faster way is chosen.
 */
GV_TUNABLE int32_t gv_batch_by_list = -1;

/*
 * Returns whether a batch of `all` searches may be scanned list by list, as
 * far as this depends on its first search.
 */
static bool
may_scan_by_list(const GvDeviceModel *model, const GvSearch *first,
				 int32_t all)
{
	if (gv_batch_by_list == 0 || first->condition != NULL || first->rank > 0 ||
		model->shape.chunks > GV_INT8_CHUNKS ||
		model->dims > GV_INT8_DIMS * model->m)
		return false;
	return gv_batch_by_list > 0 ||
		(all >= LEAST_QUERIES && (int64_t) all * first->probes >=
		 (int64_t) LEAST_PAIRS * model->nlists);
}

/* Returns whether a sub-batch may be scanned list by list. */
static bool
scans_by_list(const GvBatch *batch)
{
	return !is_small(batch) && batch->tests == 0 && batch->postings > 0 &&
		gv_gpu_can_sift(batch);
}

/*
 * Places the arrays of all sub-batches of a turn in `in`, `out` and `work`.
 * If these pointers are NULL, only computes the sizes, as turn->in_bytes and
 * so on.
 */
void
gv_gpu_place_turn(const GvDeviceModel *model, const GvSearcher *searcher,
				  char *in, char *out, char *work, GvBatchTurn *turn)
{
	Arena		host_in = {in, 0};
	Arena		host_out = {out, 0};
	Arena		own = {work == NULL ? NULL : work + turn->shared_bytes, 0};
	size_t		shared_bytes = 0;
	int32_t		first = 0;
	int64_t		npairs = 0;

	for (int i = 0; i < turn->nbatches; i++)
	{
		GvBatch    *batch = &turn->batches[i];
		Arena		shared = {work, 0};

		place_sub_batch(model, searcher, &host_in, &host_out, &shared, &own,
						batch);
		shared_bytes = std::max(shared_bytes, shared.bytes);
		batch->first = first;
		first += batch->n;
		npairs += (int64_t) batch->n * batch->nprobe;
	}
	if (turn->by_list)
		gv_gpu_place_lists(model, own.memory, &own.bytes, first, npairs,
						   &turn->lists);
	turn->in_bytes = host_in.bytes;
	turn->out_bytes = host_out.bytes;
	turn->shared_bytes = shared_bytes;
	turn->work_bytes = shared_bytes + own.bytes;
}

/*
 * Makes a turn of sub-batches that are scanned list by list, from the first of
 * n searches on; the n searches are the rest of a batch of `all` searches.
 * Returns false if scanning list by list would not be faster.
 */
static bool
take_turn(const GvSearcher *searcher, const GvMirror *mirror,
		  const GvSearch *searches, int32_t n, int32_t all, GvBatchTurn *turn)
{
	const GvDeviceModel *model = &mirror->model;
	int32_t		most = gv_batch_by_list > 0 ? gv_batch_by_list :
		SUB_BATCH_QUERIES;
	int32_t		nbatches = (all + most - 1) / most;
	int64_t		npairs = 0;
	int32_t		together;

	/*
	 * there is at least one turn for each stream, and all turns have about the
	 * same size
	 */
	for (int32_t turns = 2;; turns++)
		if ((together = (nbatches + turns - 1) / turns) <= GV_MOST_TOGETHER)
			break;
	most = (all + nbatches - 1) / nbatches;
	while (turn->nbatches < together && turn->n < n)
	{
		int			i = turn->nbatches;
		int32_t		left = n - turn->n;

		turn->taken[i] = next_sub_batch(searcher, mirror, searches + turn->n,
										left < most ? left : most,
										&turn->batches[i]);
		if (!scans_by_list(&turn->batches[i]))
			break;
		turn->batches[i].by_list = true;
		turn->n += turn->taken[i];
		turn->nbatches++;
		gv_gpu_place_turn(model, searcher, NULL, NULL, NULL, turn);
		if (turn->work_bytes > (size_t) searcher->most_work)
		{
			turn->n -= turn->taken[i];
			turn->nbatches--;
			break;
		}
		npairs += (int64_t) turn->batches[i].n * turn->batches[i].nprobe;
	}
	return turn->nbatches > 0 && (gv_batch_by_list > 0 || npairs >=
								  (int64_t) LEAST_PAIRS * model->nlists);
}

void
gv_gpu_next_turn(const GvSearcher *searcher, const GvMirror *mirror,
				 const GvSearch *searches, int32_t n, int32_t all,
				 GvBatchTurn *turn)
{
	int32_t		most = sub_batch_size(all);

	turn->nbatches = 0;
	turn->n = 0;
	turn->by_list = true;
	if (!may_scan_by_list(&mirror->model, searches, all) ||
		!take_turn(searcher, mirror, searches, n, all, turn))
	{
		turn->by_list = false;
		turn->nbatches = 1;
		turn->taken[0] = turn->n =
			next_sub_batch(searcher, mirror, searches, n < most ? n : most,
						   &turn->batches[0]);
	}
	turn->small = !turn->by_list && is_small(&turn->batches[0]);
	gv_gpu_place_turn(&mirror->model, searcher, NULL, NULL, NULL, turn);
}

/*
 * ----
 * Uploads of queries into the memory that the device reads.
 */

#define STREAMED		16		/* numbers of a cache line */
#define STREAMED_AHEAD	256
#define STREAMED_FROM	65		/* queries of a sub-batch that is copied */
#define TASK_QUERIES	64		/* queries of a thread's task */

/*
 * Copies floats with stores that bypass the caches.  The processor does not
 * read these floats again, and with such stores it need not load the cache
 * lines that it overwrites.
 */
static void
stream_out(float *to, const float *from, size_t n)
{
	size_t		i = 0;

#ifdef __SSE2__
	if ((uintptr_t) to % sizeof(__m128i) == 0)
		for (; i + STREAMED <= n; i += STREAMED)
		{
			_mm_prefetch((const char *) (from + i + STREAMED_AHEAD),
						 _MM_HINT_T0);
			for (size_t j = i; j < i + STREAMED; j += 4)
			{
				const __m128i *four = (const __m128i *) (from + j);

				_mm_stream_si128((__m128i *) (to + j), _mm_loadu_si128(four));
			}
		}
#endif
	memcpy(to + i, from + i, (n - i) * sizeof(float));
}

/*
 * Writes the queries and parameters of searches first .. last - 1 of a
 * sub-batch to host memory that the device reads.  The sub-batch has n
 * searches.
 */
static void
upload_some(const GvDeviceModel *model, const GvBatch *batch,
			const GvSearch *searches, int32_t first, int32_t last, int32_t n)
{
	float	   *queries = (float *) batch->in_queries;
	float	   *asked = (float *) batch->in_asked;
	GvSearchParams *params = (GvSearchParams *) batch->in_params;

	for (int32_t i = first; i < last; i++)
	{
		size_t		at = (size_t) i * model->dims;

		/*
		 * the device reads few queries soon, and then from the processor's
		 * cache
		 */
		if (n >= STREAMED_FROM)
		{
			stream_out(queries + at, searches[i].query, model->dims);
			if (batch->asked)
				stream_out(asked + at, searches[i].asked, model->dims);
		}
		else
		{
			memcpy(queries + at, searches[i].query,
				   model->dims * sizeof(float));
			if (batch->asked)
				memcpy(asked + at, searches[i].asked,
					   model->dims * sizeof(float));
		}
		params[i].nprobe = searches[i].probes;
		if (batch->steps == GV_STEPS_SCAN)
		{
			params[i].nprobe = searches[i].nprobed;
			memcpy((GvProbe *) batch->in_probed + (size_t) i * batch->nprobe,
				   searches[i].probed, searches[i].nprobed * sizeof(GvProbe));
		}
		params[i].k = searches[i].capacity;
		params[i].by_number = searches[i].by_number;
		params[i].sums = searches[i].sums;
		params[i].length = model->refine_slots == 0 || model->metric != GV_IP ?
			0 : sqrt(-gv_distance_ip(searches[i].query, searches[i].query,
									 model->dims));
	}
#ifdef __SSE2__
	/* before another thread launches their copy */
	if (n >= STREAMED_FROM)
		_mm_sfence();
#endif
}

/* Writes queries and parameters of n searches. */
void
gv_gpu_upload_queries(const GvDeviceModel *model, const GvBatch *batch,
					  const GvSearch *searches, int32_t n)
{
	memset((GvSearchParams *) batch->in_params + n, 0,
		   (batch->n - n) * sizeof(GvSearchParams));
	upload_some(model, batch, searches, 0, n, n);
}

/*
 * Several threads write the queries of sub-batches that are scanned together.
 * One core writes some 10 GB/s, and 10,000 queries are megabytes, so one core
 * would take as long as half of the device's work.  The additional threads
 * exist only during an upload, and take tasks in the order of the sub-batches.
 * The thread that launches the steps of a sub-batch helps until all queries of
 * this sub-batch are written.  While it launches steps, the other threads
 * continue.
 *
 * Does the next task that no thread has taken.  Returns false if there is
 * none.
 */
static bool
upload_task(GvUpload *upload)
{
	const GvBatchTurn *turn = upload->turn;
	const GvSearch *searches = upload->searches;
	int32_t		task = __atomic_fetch_add(&upload->next, 1, __ATOMIC_RELAXED);
	int			sub_batch = 0;
	int32_t		n;
	int32_t		first;

	while (sub_batch < turn->nbatches &&
		   task >= gv_blocks_for(turn->taken[sub_batch], TASK_QUERIES))
	{
		task -= gv_blocks_for(turn->taken[sub_batch], TASK_QUERIES);
		searches += turn->taken[sub_batch++];
	}
	if (sub_batch >= turn->nbatches)
		return false;
	n = turn->taken[sub_batch];
	first = task * TASK_QUERIES;
	upload_some(upload->model, &turn->batches[sub_batch], searches, first,
				n - first < TASK_QUERIES ? n : first + TASK_QUERIES, n);
	(void) __atomic_fetch_sub(&upload->left[sub_batch], 1, __ATOMIC_RELEASE);
	return true;
}

static void *
upload_tasks(void *arg)
{
	while (upload_task((GvUpload *) arg))
		;
	return NULL;
}

/*
 * Starts an upload of the queries of all sub-batches, with additional threads
 * if there are enough tasks.
 */
void
gv_gpu_upload_begin(GvUpload *upload, const GvDeviceModel *model,
					const GvBatchTurn *turn, const GvSearch *searches)
{
	int32_t		ntasks = 0;

	upload->model = model;
	upload->turn = turn;
	upload->searches = searches;
	upload->next = 0;
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];
		int32_t		n = turn->taken[i];

		memset((GvSearchParams *) batch->in_params + n, 0,
			   (batch->n - n) * sizeof(GvSearchParams));
		ntasks += upload->left[i] = gv_blocks_for(n, TASK_QUERIES);
	}
	gv_helpers_begin(&upload->helpers, gv_parallel_helpers(ntasks),
					 upload_tasks, upload);
}

/*
 * Waits until all queries of a sub-batch are written, and does tasks
 * meanwhile.
 */
void
gv_gpu_wait_for_upload(GvUpload *upload, int sub_batch)
{
	while (__atomic_load_n(&upload->left[sub_batch], __ATOMIC_ACQUIRE) > 0)
		if (!upload_task(upload))
			sched_yield();
}
