/*
 * search.cu
 *		Runs a batch of queries, from coarse search to the best postings.
 *		gpu/README explains the steps.
 *
 * The last step of a small batch writes the answers into host memory, where
 * the caller reads them.  So there is no copy afterwards, and the host waits
 * only once.  Queries and answers of large sub-batches are copied, because a
 * copy engine reads across the bus at twice the rate of threads, and no thread
 * has to wait for it.  Memory grows when a batch needs more than all batches
 * before it.
 */
#include <algorithm>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/search/search.h"

/*
 * ----
 * The steps of a batch are launched one by one, or recorded once and replayed.
 *
 * The work of a small batch takes less time than its launches, so the launches
 * are recorded as a CUDA graph, which needs a single launch.  Queries,
 * parameters and the lengths of a mirror's lists differ from call to call, but
 * are at the same memory addresses each time.  Everything else is in the
 * arguments of the graph's kernels.
 *
 * A stream has at most GV_GRAPHS graphs.  Each graph takes some kilobytes of
 * device memory, and recording it takes the host 100 us, which is as much as
 * ten batches gain by the graph.
 */

/*
 * Launches the selection and the steps behind it.  If a search asks about the
 * sample, the step after the selection needs the hits on the device, because
 * it reads a hit's score.  If there is a step for bounds or distances, the
 * hits are on the device anyway, and that step writes the answers to the host.
 * If there is none, the selection leaves the answers on the device, and
 * gv_gpu_download_matches writes them to the host.
 */
static GvStatus
last_steps(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher)
{
	GvBatch		kept = *batch;

	if (batch->sampled && batch->out_bounds == NULL && !batch->asked)
	{
		kept.out_probed = batch->d_probed;
		kept.out_hits = batch->d_hits;
		kept.out_counts = batch->d_search_counts;
	}
	GV_TRY(gv_gpu_select_postings(model, &kept, searcher));
	if (model->refine_slots > 0)
		return gv_gpu_bound(model, batch, searcher->stream);
	if (batch->asked)
		return gv_gpu_distances(model, batch, searcher->stream);
	if (batch->tests > 0)
		return gv_gpu_download_matches(model, batch, searcher->stream);
	return GV_OK;
}

/* Launches the steps from queries to their lists. */
static GvStatus
first_steps(const GvDeviceModel *model, const GvBatch *batch,
			GvSearcher *searcher)
{
	GV_TRY(gv_gpu_table(model, batch, searcher->stream));
	if (batch->steps == GV_STEPS_SCAN)
		return gv_gpu_take_lists(model, batch, searcher);
	if (batch->filter.d_half_queries != NULL)
		return gv_gpu_coarse_filter(model, batch, searcher);
	GV_TRY(gv_gpu_coarse(model, batch, searcher->stream));
	return gv_gpu_select_lists(model, batch, searcher);
}

static GvStatus
run_steps(const GvDeviceModel *model, const GvBatch *batch,
		  GvSearcher *searcher)
{
	GV_TRY(first_steps(model, batch, searcher));
	if (batch->steps == GV_STEPS_LISTS)
		return GV_OK;
	GV_TRY(gv_gpu_scan(model, batch, searcher));
	return last_steps(model, batch, searcher);
}

static void
forget(GvGraph *graph)
{
	if (graph->exec != NULL)
		(void) cudaGraphExecDestroy(graph->exec);
	graph->exec = NULL;
	graph->used = 0;
}

/* Records the steps of a batch as a graph. */
static GvStatus
record(const GvDeviceModel *model, const GvBatch *batch, GvSearcher *searcher,
	   GvGraph *graph)
{
	cudaGraph_t recorded = NULL;
	GvStatus	status;
	GvStatus	ended;

	GV_CUDA_TRY(cudaStreamBeginCapture(searcher->stream,
									   cudaStreamCaptureModeThreadLocal));
	status = run_steps(model, batch, searcher);
	ended = gv_cuda_status(cudaStreamEndCapture(searcher->stream, &recorded));
	if (status == GV_OK)
		status = ended;
	if (status == GV_OK)
		status = gv_cuda_status(cudaGraphInstantiate(&graph->exec, recorded,
													 0));
	if (recorded != NULL)
		(void) cudaGraphDestroy(recorded);
	if (status != GV_OK)
		return status;
	memcpy(&graph->model, model, sizeof(*model));
	memcpy(&graph->batch, batch, sizeof(*batch));
	return GV_OK;
}

/*
 * Returns the graph with exactly these arguments.  If there is none, sets
 * *found to false and returns the least recently used graph.
 */
static GvGraph *
find_graph(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher, bool *found)
{
	GvGraph    *oldest = &searcher->graphs[0];

	*found = true;
	for (int i = 0; i < GV_GRAPHS; i++)
	{
		GvGraph    *kept = &searcher->graphs[i];

		if (kept->exec != NULL &&
			memcmp(&kept->batch, batch, sizeof(*batch)) == 0 &&
			memcmp(&kept->model, model, sizeof(*model)) == 0)
			return kept;
		if (kept->used < oldest->used)
			oldest = kept;
	}
	*found = false;
	return oldest;
}

/*
 * Runs a batch that needs no sort.  It runs as a graph, unless a new graph
 * would have to replace one that was used recently.
 */
static GvStatus
run_graph(const GvDeviceModel *model, const GvBatch *batch,
		  GvSearcher *searcher)
{
	bool		found;
	GvGraph    *graph = find_graph(model, batch, searcher, &found);
	uint64_t	now = ++searcher->clock;

	if (!found && graph->exec != NULL && now - graph->used <= GV_GRAPH_KEPT)
	{
		GV_TEST_ONLY(searcher->counts.launched++;)
		return run_steps(model, batch, searcher);
	}
	if (!found)
	{
		GV_TEST_ONLY(searcher->counts.evicted += graph->exec != NULL;)
		forget(graph);
		GV_TRY(record(model, batch, searcher, graph));
		GV_TEST_ONLY(searcher->counts.made++;)
	}
	GV_TEST_ONLY(searcher->counts.reused += found;)
	graph->used = now;
	return gv_cuda_status(cudaGraphLaunch(graph->exec, searcher->stream));
}

#ifdef GV_TEST_BUILD

/*
 * Sets *counts to how often small batches of both streams were launched in
 * each way.
 */
extern "C" void
gv_gpu_graph_counts(const GvSearcher *searcher, GvGraphCounts *counts)
{
	*counts = searcher->counts;
	if (searcher->second_stream != NULL)
	{
		const GvGraphCounts *more = &searcher->second_stream->counts;

		counts->reused += more->reused;
		counts->made += more->made;
		counts->evicted += more->evicted;
		counts->launched += more->launched;
	}
}

#endif

/* Destroys all graphs; none is running. */
static void
drop_graphs(GvSearcher *searcher)
{
	for (int i = 0; i < GV_GRAPHS; i++)
		forget(&searcher->graphs[i]);
}

/*
 * ----
 * Polling of a small batch's answers as they arrive.
 *
 * Before the launch the host fills the memory for answers with GV_ABSENT,
 * which no valid answer contains.  The answers are complete when no relevant
 * word is GV_ABSENT any more.  GvSearchCounts, which is polled first, tells
 * how many words are relevant.
 *
 * If half of a distance or a damaged row id is equal to GV_ABSENT, or if the
 * batch fails, the answers never seem complete.  So the host also queries the
 * stream from time to time, and the stream's status decides.  When the answers
 * are complete, no step reads memory any more, although the stream itself may
 * still be busy.
 */

#define GV_ABSENT		0xFFFFFFFFu /* NaN, for scores and bounds */
#define TOGETHER		16		/* words polled together */
#define ASKED_EACH		50e-6	/* seconds between queries of the stream */

/*
 * The number of words of GvSearchCounts without the padding at its end, which
 * must not be polled.
 */
#define FOUND_WORDS		(offsetof(GvSearchCounts, matched) / 4 + 1)

/*
 * Prepares to poll the answers of a batch's first n searches.  This must be
 * called before the launch.
 */
static void
expect_answers(GvSearcher *searcher, const GvBatch *batch, int32_t n)
{
	GvCompletion *expected = &searcher->completion;
	size_t		nhits = (size_t) n * batch->k;

	memset(batch->out_counts, 0xFF, n * sizeof(GvSearchCounts));
	if (batch->listed)
		memset(batch->out_probed, 0xFF, (size_t) n * batch->nprobe *
			   sizeof(GvProbe));
	memset(batch->out_hits, 0xFF, nhits * sizeof(GvHit));
	if (batch->out_bounds != NULL)
		memset(batch->out_bounds, 0xFF, nhits * sizeof(GvBound));
	if (batch->asked)
		memset(batch->out_distances, 0xFF, nhits * sizeof(GvRowDistance));
	expected->batch = *batch;
	expected->n = n;
	expected->query = 0;
	expected->words = 0;
	expected->asked = gv_seconds();
}

/*
 * Returns whether n words have arrived.  *first is the number of words that
 * have arrived; the caller keeps it from call to call.  TOGETHER words are
 * polled at a time, so that compilers vectorize the loop.
 */
static bool
are_there(const void *from, int64_t n, int64_t *first)
{
	const uint32_t *words = (const uint32_t *) from;

	/* the device writes these words, so the compiler must read them again */
	__asm__ volatile("" ::: "memory");
	for (; *first + TOGETHER <= n; *first += TOGETHER)
	{
		uint32_t	absent = 0;

		for (int i = 0; i < TOGETHER; i++)
			absent |= words[*first + i] == GV_ABSENT;
		if (absent)
			return false;
	}
	while (*first < n && words[*first] != GV_ABSENT)
		++*first;
	return *first >= n;
}

/*
 * Returns whether a search's answer is complete.  *words is the number of
 * words that have arrived; it is 0 before the first call, and the caller keeps
 * it from call to call.
 */
extern "C" bool
gv_answer_is_complete(const GvAnswer *answer, int64_t *words)
{
	const GvSearchCounts *found = answer->found;
	int64_t		before = 0;

	if (*words < (int64_t) FOUND_WORDS &&
		!are_there(found, FOUND_WORDS, words))
		return false;

	const struct
	{
		const void *from;
		size_t		words;
	}			arrays[] = {
		{found, FOUND_WORDS},
		{answer->probed, found->nlisted * (sizeof(GvProbe) / 4)},
		{answer->hits, found->nhits * (sizeof(GvHit) / 4)},
		{answer->bounds,
			answer->bounds == NULL ? 0 : found->nhits * (sizeof(GvBound) / 4)},
		{answer->distances, answer->distances == NULL ? 0 :
			found->nhits * (sizeof(GvRowDistance) / 4)}
	};

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
	{
		int64_t		mine = *words - before;

		if (!are_there(arrays[i].from, (int64_t) arrays[i].words, &mine))
		{
			*words = before + mine;
			return false;
		}
		before += (int64_t) arrays[i].words;
		if (*words < before)
			*words = before;
	}
	return true;
}

/* Returns whether the answer of search expected->query is complete. */
static bool
is_complete(GvCompletion *expected)
{
	const GvBatch *batch = &expected->batch;
	int64_t		query = expected->query;
	int64_t		first_hit = query * batch->k;
	GvAnswer	answer = {batch->out_counts + query, batch->out_probed +
		query * batch->nprobe, (const GvHit *) batch->out_hits + first_hit,
		batch->out_bounds == NULL ? NULL : batch->out_bounds + first_hit,
		batch->asked ? (const GvRowDistance *) batch->out_distances +
		first_hit : NULL};

	return gv_answer_is_complete(&answer, &expected->words);
}

/* Returns whether a stream's answers are complete, or its work is over. */
static bool
is_stream_done(GvSearcher *searcher)
{
	GvCompletion *expected = &searcher->completion;
	cudaError_t error;
	double		now;

	if (expected->n > 0)
	{
		while (expected->query < expected->n && is_complete(expected))
		{
			expected->query++;
			expected->words = 0;
		}
		if (expected->query == expected->n)
		{
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			return true;
		}
		now = gv_seconds();
		if (now - expected->asked < ASKED_EACH)
			return false;
		expected->asked = now;
	}
	error = cudaStreamQuery(searcher->stream);
	if (error == cudaErrorNotReady)
	{
		(void) cudaGetLastError();	/* or the next launch reports it */
		return false;
	}
	/* done or failed: wait_stream reads which */
	expected->n = 0;
	return true;
}

/* Waits for a stream's answers. */
static GvStatus
wait_stream(GvSearcher *searcher)
{
	GvCompletion *expected = &searcher->completion;

	while (expected->n > 0 && !is_stream_done(searcher))
		;
	return expected->n > 0 ? GV_OK :
		gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}

/*
 * Waits until a stream, whose answers may be complete already, is no longer
 * busy.
 */
static GvStatus
wait_rest(GvSearcher *searcher)
{
	if (searcher->completion.n == 0)
		return GV_OK;
	searcher->completion.n = 0;
	return wait_stream(searcher);
}

/*
 * ----
 * Searchers, and the sub-batches of a batch.
 */

/*
 * The answers of a batch are polled if it has at most this many searches.  In
 * larger batches, polling all words takes longer than querying the stream.
 */
#define MOST_EXPECTED	8

/* Also drops a searcher that is half made. */
static void
drop_searcher(GvSearcher *searcher)
{
	(void) gv_choose_device(searcher->device);
	(void) wait_rest(searcher);
	if (searcher->second_stream != NULL)
		drop_searcher(searcher->second_stream);
	drop_graphs(searcher);
	gv_blas_drop(searcher->blas);
	if (searcher->stream != NULL)
		(void) cudaStreamDestroy(searcher->stream);
	gv_buffer_free(&searcher->in);
	gv_buffer_free(&searcher->out);
	gv_buffer_free(&searcher->d_work);
	gv_buffer_free(&searcher->d_sort);
	GV_TEST_ONLY(gv_buffer_free(&searcher->d_path_counts);)
	free(searcher);
}

/*
 * Creates a searcher's stream and, unless is_second is true, its second
 * stream.
 */
static GvStatus
fill_searcher(GvSearcher *searcher, bool is_second)
{
	int32_t		device = searcher->device;
	size_t		nfree;
	size_t		total;

	searcher->hopper = gv_has_hopper(device);
	searcher->in.pinned = true;
	searcher->out.pinned = true;
	GV_TRY(gv_choose_device(device));
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&searcher->stream,
										  cudaStreamNonBlocking));
	GV_TRY(gv_gpu_nsms(&searcher->nsms));
	GV_TRY(gv_gpu_has_pdl(&searcher->pdl));
	GV_CUDA_TRY(cudaMemGetInfo(&nfree, &total));
	/*
	 * one sub-batch's part of the device's memory; four sub-batches are in
	 * flight
	 */
	searcher->most_work = gv_gpu_stream_bytes(total) -
		gv_blas_bytes(device, 0);
	GV_TRY(gv_blas_create(device, 0, searcher->stream, &searcher->blas));
	if (is_second)
		return GV_OK;
#ifdef GV_TEST_BUILD
	/* both streams count their queries there */
	GV_TRY(gv_buffer_need(&searcher->d_path_counts,
						  GV_COARSE_PATHS * sizeof(unsigned)));
	GV_CUDA_TRY(gv_clear((char *) searcher->d_path_counts.memory,
						 searcher->d_path_counts.bytes, searcher->stream));
#endif
	searcher->second_stream = (GvSearcher *) calloc(1, sizeof(GvSearcher));
	if (searcher->second_stream == NULL)
		return GV_NO_MEMORY;
	searcher->second_stream->device = device;
	return fill_searcher(searcher->second_stream, true);
}

/* See gv_searcher. */
static GvStatus
create_searcher(int32_t device, GvSearcher **searcher)
{
	return gv_make(searcher, [=] (GvSearcher *made)
	{
		made->device = device;
		return fill_searcher(made, false);
	}, drop_searcher);
}

/* Sets where the answers of searches will be. */
static void
place_answers(const GvBatch *batch, GvSearch *searches, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
	{
		size_t		first = (size_t) i * batch->k;

		searches[i].probed = searches[i].sums ? NULL :
			batch->out_probed + (size_t) i * batch->nprobe;
		searches[i].hits = (GvHit *) batch->out_hits + first;
		searches[i].bounds = searches[i].bounded ?
			batch->out_bounds + first : NULL;
		searches[i].distances = batch->asked ?
			(GvRowDistance *) batch->out_distances + first : NULL;
		searches[i].matches = searches[i].condition == NULL ||
			searches[i].sums ? NULL :
			(int32_t *) batch->out_matches + (size_t) i * batch->nprobe;
	}
}

/*
 * Makes sure that a stream has at least `bytes` bytes of work memory.  New
 * memory is cleared, because steps read some of it before they know how much
 * was written.
 */
static GvStatus
grow_work(GvSearcher *searcher, size_t bytes)
{
	if (searcher->d_work.bytes >= bytes)
		return GV_OK;
	GV_TRY(wait_rest(searcher));
	drop_graphs(searcher);
	GV_TRY(gv_buffer_need(&searcher->d_work, bytes));
	return gv_cuda_status(gv_clear((char *) searcher->d_work.memory,
								   searcher->d_work.bytes, searcher->stream));
}

/* Makes sure that there is host memory for queries and for answers. */
static GvStatus
need_memory(GvSearcher *searcher, size_t in_bytes, size_t out_bytes)
{
	/* graphs hold the addresses of memory that grows */
	if (searcher->in.bytes < in_bytes || searcher->out.bytes < out_bytes)
	{
		GV_TRY(wait_rest(searcher));
		GV_TRY(wait_rest(searcher->second_stream));
		drop_graphs(searcher);
		drop_graphs(searcher->second_stream);
	}
	GV_TRY(gv_buffer_need(&searcher->in, in_bytes));
	return gv_buffer_need(&searcher->out, out_bytes);
}

/*
 * Places the counts and sample answers of n searches at the beginning of the
 * memory for answers, and returns how many bytes they take.  Small sub-batches
 * are rounded up, so there is memory for more searches, and all small batches
 * take the same number of bytes.
 */
static size_t
place_counts(GvSearcher *searcher, int32_t n)
{
	int32_t		capacity = (n > GV_MOST_OF_GRAPH ? n : GV_MOST_OF_GRAPH) +
		GV_MOST_OF_GRAPH;
	char	   *out = (char *) searcher->out.memory;
	size_t		bytes = 0;

	gv_place(&searcher->found, out, &bytes, capacity);
	gv_place(&searcher->near, out, &bytes, capacity * GV_COUNT_PARTS);
	return bytes;
}

/* Makes sure that there is memory for all sub-batches of n searches. */
static GvStatus
prepare(GvSearcher *searcher, const GvMirror *mirror,
		const GvSearch *searches, int32_t n)
{
	size_t		in_bytes = 0;
	size_t		out_bytes = place_counts(searcher, n);
	size_t		work_bytes = 0;
	int			nturns = 0;

	for (int32_t done = 0; done < n; nturns++)
	{
		GvBatchTurn turn;

		gv_gpu_next_turn(searcher, mirror, searches + done, n - done, n,
						 &turn);
		in_bytes += turn.in_bytes;
		out_bytes += turn.out_bytes;
		work_bytes = std::max(work_bytes, turn.work_bytes);
		done += turn.n;
	}
	GV_TRY(need_memory(searcher, in_bytes, out_bytes));
	if (nturns > 1)
		GV_TRY(grow_work(searcher->second_stream, work_bytes));
	return grow_work(searcher, work_bytes);
}

/*
 * Returns a batch in the form in which kernels get it if its queries and
 * answers are copied: in_ and out_ arrays are replaced by the d_ arrays.
 */
static GvBatch
copied_batch(const GvBatch *batch)
{
	GvBatch		copied = *batch;

	copied.in_queries = batch->d_queries;
	copied.in_asked = batch->d_asked;
	copied.in_params = batch->d_params;
	copied.in_probed = batch->d_probed;
	copied.out_probed = batch->d_probed;
	copied.out_hits = batch->d_hits;
	copied.out_counts = batch->d_search_counts;
	if (batch->out_bounds != NULL)
		copied.out_bounds = batch->d_bounds;
	copied.out_distances = batch->d_distances;
	return copied;
}

static GvStatus
copy_in(const GvBatch *batch, cudaStream_t stream)
{
	const char *in = (const char *) batch->in_queries;
	const char *end = (const char *) (batch->in_params + batch->n);

	if (batch->steps == GV_STEPS_SCAN)
		GV_CUDA_TRY(gv_upload(batch->d_probed, batch->in_probed,
							  (int64_t) batch->n * batch->nprobe, stream));
	return gv_cuda_status(gv_upload((char *) batch->d_queries, in, end - in,
									stream));
}

static GvStatus
copy_out(const GvBatch *batch, cudaStream_t stream)
{
	size_t		nhits = (size_t) batch->n * batch->k;
	char	   *out = (char *) batch->out_probed;
	char	   *end = (char *) (batch->out_hits + nhits);
	char	   *d_end = (char *) (batch->d_hits + nhits);

	/* out_probed may have no elements, while d_probed has some */
	GV_CUDA_TRY(gv_download(out, d_end - (end - out), end - out, stream));
	return gv_cuda_status(gv_download(batch->out_counts,
									  batch->d_search_counts, batch->n,
									  stream));
}

/* Starts a sub-batch whose queries and answers are copied. */
static GvStatus
start_long(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher)
{
	GvBatch		copied = copied_batch(batch);

	GV_TRY(copy_in(batch, searcher->stream));
	GV_TRY(run_steps(model, &copied, searcher));
	return copy_out(batch, searcher->stream);
}

/* Launches all steps of sub-batches that are scanned list by list. */
static GvStatus
launch_by_list(const GvDeviceModel *model, const GvBatchTurn *turn,
			   GvUpload *upload, GvSearcher *searcher)
{
	const GvListScan *lists = &turn->lists;
	cudaStream_t stream = searcher->stream;

	/*
	 * 1. for each sub-batch, when its queries are written: choose the lists
	 * and count the pairs
	 */
	GV_TRY(gv_gpu_begin_lists(model, lists, stream));
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];
		GvBatch		copied = copied_batch(batch);

		gv_gpu_wait_for_upload(upload, i);
		GV_TRY(copy_in(batch, stream));
		GV_TRY(first_steps(model, &copied, searcher));
		GV_TRY(gv_gpu_add_queries(model, &copied, lists, stream));
	}

	/* 2. scan the lists for all sub-batches */
	GV_TRY(gv_gpu_scan_lists(model, turn, stream));

	/*
	 * 3. for each sub-batch: compute exact scores, and do the steps behind a
	 * scan
	 */
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];
		GvBatch		copied = copied_batch(batch);

		GV_TRY(gv_gpu_rescore(model, &copied, lists, stream));
		GV_TRY(gv_gpu_scan(model, &copied, searcher));
		GV_TRY(last_steps(model, &copied, searcher));
		GV_TRY(copy_out(batch, stream));
	}
	return GV_OK;
}

static GvStatus
start_by_list(const GvDeviceModel *model, const GvBatchTurn *turn,
			  const GvSearch *searches, GvSearcher *searcher)
{
	GvUpload	upload;
	GvStatus	status;

	gv_gpu_upload_begin(&upload, model, turn, searches);
	status = launch_by_list(model, turn, &upload, searcher);
	gv_helpers_end(&upload.helpers);
	return status;
}

/*
 * Starts a sub-batch that is not scanned together with others.  If `expects`
 * is true, its answers may be polled.
 */
static GvStatus
start_sub_batch(const GvDeviceModel *model, GvBatchTurn *turn,
				GvSearch *searches, bool expects, GvSearcher *searcher)
{
	const GvBatch *batch = &turn->batches[0];

	gv_gpu_upload_queries(model, batch, searches, turn->n);
	if (batch->tests > 0)
		gv_gpu_upload_conditions(batch, searches, turn->n);
	if (!turn->small)
		return start_long(model, batch, searcher);
	if (expects && batch->tests == 0)
		expect_answers(searcher, batch, turn->n);
	return run_graph(model, batch, searcher);
}

/* Starts all sub-batches of n searches. */
static GvStatus
start(GvSearcher *searcher, const GvMirror *mirror, GvSearch *searches,
	  int32_t n)
{
	const GvDeviceModel *model = &mirror->model;
	GvSearcher *stream = searcher;
	char	   *in = (char *) searcher->in.memory;
	char	   *out = (char *) searcher->out.memory +
		place_counts(searcher, n);

	searcher->both = false;
	for (int32_t done = 0; done < n;)
	{
		GvBatchTurn turn;
		GvSearch   *some = searches + done;

		gv_gpu_next_turn(searcher, mirror, some, n - done, n, &turn);
		searcher->both |= stream != searcher;
		gv_gpu_place_turn(model, searcher, in, out,
						  (char *) stream->d_work.memory, &turn);
		in += turn.in_bytes;
		out += turn.out_bytes;
		for (int i = 0; i < turn.nbatches; i++)
		{
			GvBatch    *batch = &turn.batches[i];

			/*
			 * if large sub-batches of two streams fill the device, steps that
			 * are launched early and only wait would take resources from the
			 * other stream
			 */
			batch->pdl = searcher->pdl && !turn.by_list &&
				(turn.small || turn.n >= n);
			batch->out_counts = searcher->found + done;
			if (batch->sampled)
				batch->out_sample = searcher->near +
					(int64_t) done * GV_COUNT_PARTS;
			done += turn.taken[i];
		}
		/* the stream may still expect answers of an earlier sub-batch */
		stream->completion.n = 0;
		if (turn.by_list)
			GV_TRY(start_by_list(model, &turn, some, stream));
		else
			GV_TRY(start_sub_batch(model, &turn, some, n <= MOST_EXPECTED,
								   stream));
		/* queries, and lists that are passed in, were uploaded */
		for (int i = 0; i < turn.nbatches; some += turn.taken[i++])
			place_answers(&turn.batches[i], some, turn.taken[i]);
		stream = stream == searcher ? searcher->second_stream : searcher;
	}
	return GV_OK;
}

/* Waits for the streams that have work. */
static GvStatus
wait_streams(GvSearcher *searcher)
{
	GvStatus	status = wait_stream(searcher);

	if (searcher->both)
		GV_TRY(wait_stream(searcher->second_stream));
	return status;
}

/*
 * ----
 * Bounds or distances of known hits: only the last step of a batch.
 *
 * The records or rows of a search's hits may be on other devices than the
 * lists that contain the hits.  Queries and hits are copied to the device and
 * the answers are copied back, for some searches at a time, on the searcher's
 * first stream.
 */

#define MOST_QUERIES	4096	/* of a launch */

/*
 * Takes as many of n searches as fit into a stream's work memory, from the
 * first on, and places their arrays in `memory`.  Queries, parameters, counts
 * and hits come first, because they are uploaded, and bounds or distances
 * follow.  Sets *in_bytes to the size of the arrays that are uploaded, and
 * returns the size of all arrays.
 */
static size_t
place_given(const GvSearcher *searcher, const GvDeviceModel *model,
			const GvSearch *searches, int32_t n, char *memory, GvBatch *batch,
			size_t *in_bytes)
{
	size_t		bytes;

	memset(batch, 0, sizeof(*batch));
	batch->asked = searches[0].asked != NULL;
	for (batch->n = std::min(n, MOST_QUERIES);; batch->n /= 2)
	{
		bytes = 0;
		batch->k = 1;
		for (int32_t i = 0; i < batch->n; i++)
			batch->k = std::max(batch->k, searches[i].nhits);
		gv_place(&batch->d_queries, memory, &bytes,
				 (int64_t) batch->n * model->dims);
		if (batch->asked)
			gv_place(&batch->d_asked, memory, &bytes,
					 (int64_t) batch->n * model->dims);
		gv_place(&batch->d_params, memory, &bytes, batch->n);
		gv_place(&batch->d_search_counts, memory, &bytes, batch->n);
		gv_place(&batch->d_hits, memory, &bytes,
				 (int64_t) batch->n * batch->k);
		*in_bytes = bytes;
		if (batch->asked)
			gv_place(&batch->d_distances, memory, &bytes,
					 (int64_t) batch->n * batch->k);
		else
			gv_place(&batch->d_bounds, memory, &bytes,
					 (int64_t) batch->n * batch->k);
		if (batch->n == 1 || bytes <= (size_t) searcher->most_work)
			break;
	}
	*batch = copied_batch(batch);
	batch->out_bounds = batch->d_bounds;
	return bytes;
}

/*
 * Writes searches and their hits to the arrays of a batch, which are in host
 * memory.
 */
static void
upload_hits(const GvDeviceModel *model, const GvBatch *batch,
			const GvSearch *searches)
{
	GvSearchCounts *found = batch->d_search_counts;

	gv_gpu_upload_queries(model, batch, searches, batch->n);
	memset(found, 0, batch->n * sizeof(GvSearchCounts));
	for (int32_t i = 0; i < batch->n; i++)
	{
		found[i].nhits = searches[i].nhits;
		if (searches[i].nhits > 0)
			memcpy(batch->d_hits + (size_t) i * batch->k, searches[i].hits,
				   searches[i].nhits * sizeof(GvHit));
	}
}

/* See gv_mirror_begin; the searches have hits, and need the last step. */
static GvStatus
begin_given(GvSearcher *searcher, const GvDeviceModel *model,
			GvSearch *searches, int32_t n)
{
	cudaStream_t stream = searcher->stream;
	size_t		all_in = 0;
	size_t		all_out = 0;
	size_t		most_bytes = 0;
	size_t		in_bytes;
	size_t		bytes;
	GvBatch		batch;
	char	   *in;
	char	   *out;

	for (int32_t done = 0; done < n; done += batch.n)
	{
		bytes = place_given(searcher, model, searches + done, n - done, NULL,
							&batch, &in_bytes);
		all_in += in_bytes;
		all_out += bytes - in_bytes;
		most_bytes = std::max(most_bytes, bytes);
	}
	GV_TRY(need_memory(searcher, all_in, all_out));
	GV_TRY(grow_work(searcher, most_bytes));
	searcher->both = false;
	searcher->completion.n = 0;
	in = (char *) searcher->in.memory;
	out = (char *) searcher->out.memory;
	for (int32_t done = 0; done < n; done += batch.n)
	{
		GvSearch   *some = searches + done;

		(void) place_given(searcher, model, some, n - done, in, &batch,
						   &in_bytes);
		upload_hits(model, &batch, some);
		bytes = place_given(searcher, model, some, n - done,
							(char *) searcher->d_work.memory, &batch,
							&in_bytes);
		GV_CUDA_TRY(gv_upload((char *) batch.d_queries, in, in_bytes, stream));
		GV_TRY(batch.asked ? gv_gpu_distances(model, &batch, stream) :
			   gv_gpu_bound(model, &batch, stream));
		GV_CUDA_TRY(gv_download(out, (char *) batch.d_queries + in_bytes,
								bytes - in_bytes, stream));
		for (int32_t i = 0; i < batch.n; i++)
		{
			size_t		first = (size_t) i * batch.k;

			some[i].bounds = batch.asked ? NULL : (GvBound *) out + first;
			some[i].distances = batch.asked ? (GvRowDistance *) out + first :
				NULL;
		}
		in += in_bytes;
		out += bytes - in_bytes;
	}
	return GV_OK;
}

/*
 * ----
 * The backend's functions.
 */

/*
 * Returns whether the lists of the parents cover all lists in ascending order.
 */
static bool
check_parent_offsets(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;

	if (mirror->checked)
		return true;
	for (int32_t p = 0; p < spec->nparents; p++)
		if (mirror->parent_offsets[p] >= mirror->parent_offsets[p + 1])
			return false;
	mirror->checked = mirror->parent_offsets[0] == 0 &&
		mirror->parent_offsets[spec->nparents] == spec->nlists;
	return mirror->checked;
}

/* See gv_mirror_begin. */
static GvStatus
begin_searches(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
			   int32_t n)
{
	GvStatus	status;

	if (!check_parent_offsets(mirror) ||
		mirror->spec.device != searcher->device)
		return GV_INVALID;
	for (int32_t i = 0; i < n; i++)
		if ((searches[i].bounded && mirror->model.refine_slots == 0) ||
			(searches[i].asked != NULL &&
			 mirror->model.rows == GV_ROWS_NONE) ||
			(searches[i].condition != NULL &&
			 !gv_same_form(&searches[i].condition->form, &mirror->spec.keys)))
			return GV_INVALID;
	GV_TRY(gv_choose_device(searcher->device));
	searcher->last_only = searches[0].steps == GV_STEPS_LAST;
	if (!searcher->last_only)
		GV_TRY(prepare(searcher, mirror, searches, n));
	if (searcher->version != mirror->version)
	{
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->stream, mirror->changed, 0));
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->second_stream->stream,
										mirror->changed, 0));
	}
	status = searcher->last_only ?
		begin_given(searcher, &mirror->model, searches, n) :
		start(searcher, mirror, searches, n);
	if (status != GV_OK)
	{
		/* steps that have begun use the searcher's memory */
		(void) wait_streams(searcher);
		return status;
	}
	searcher->version = mirror->version;
	searcher->searches = searches;
	searcher->n = n;
	return GV_OK;
}

/* See gv_mirror_done.  finish_searches reports failures. */
static bool
are_searches_done(GvSearcher *searcher)
{
	return is_stream_done(searcher) &&
		(!searcher->both || is_stream_done(searcher->second_stream));
}

/* See gv_mirror_finish. */
static GvStatus
finish_searches(GvSearcher *searcher)
{
	const GvSearchCounts *found = searcher->found;
	const GvSampleCount *near = searcher->near;

	GV_TRY(wait_streams(searcher));
	for (int32_t i = 0; i < searcher->n && !searcher->last_only; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		search->nprobed = found[i].nprobed;
		search->nhits = found[i].nhits;
		search->postings = found[i].postings;
		search->matched = search->condition != NULL ? found[i].matched : 0;
		search->nearer = 0;
		search->nearer_squares = 0;
		for (int part = 0; part < GV_COUNT_PARTS && search->rank > 0; part++)
		{
			const GvSampleCount *one = &near[(int64_t) i * GV_COUNT_PARTS +
											 part];

			search->nearer += one->postings;
			search->nearer_squares += one->squares;
		}
	}
	searcher->n = 0;
	return GV_OK;
}

/* See gv_mirrors_open. */
static GvStatus
open_devices(const char *devices, GvDevice *found, int32_t *nfound)
{
	GV_TRY(gv_gpu_open(devices, found, nfound));
	return gv_blas_open(found, *nfound);
}

extern "C" const GvMirrorBackend gv_cuda_mirrors = {
	.name = "cuda",
	.open = open_devices,
	.size = gv_gpu_size,
	.create = gv_gpu_create,
	.drop = gv_gpu_drop,
	.bytes = gv_gpu_bytes,
	.put_array = gv_gpu_put_array,
	.put_list = gv_gpu_put_list,
	.put_refine = gv_gpu_put_refine,
	.put_rows = gv_gpu_put_rows,
	.drop_rows = gv_gpu_drop_rows,
	.get_array = gv_gpu_get_array,
	.get_block = gv_gpu_get_block,
	.get_refine = gv_gpu_get_refine,
	.get_rows = gv_gpu_get_rows,
	.searcher = create_searcher,
	.searcher_drop = drop_searcher,
	.begin = begin_searches,
	.done = are_searches_done,
	.finish = finish_searches,
	.rejection = gv_gpu_rejection
};
