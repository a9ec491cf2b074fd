/*
 * search.cu
 *		A batch of queries, from coarse search to the best postings.
 *
 *		table	queries and what they want are read from the host's memory;
 *				their look-up tables
 *		coarse	their scores against all centroids
 *		probes	the nearest lists, and a numbering of their blocks
 *		scan	the score S of every posting in them
 *		select	the best postings
 *		bound	what their refine records prove, if there are any
 *
 * The last steps of a small batch write answers into the host's memory, from
 * where the caller reads them: nothing is copied afterwards, and the host
 * waits once.  Long batches go in parts, in turn on two streams with memory of
 * their own, so that the host makes one ready, the bus carries another, and
 * kernels that wait for memory share the device with those that compute.
 * Their queries and answers are copied, since a copy engine reads the bus at
 * twice the rate of threads and keeps none of them waiting.  Memory is taken
 * when a batch needs more than any before it.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/search/search.h"

/* ----
 * The steps of a batch: launched one by one, or recorded once and made
 * again.
 *
 * A small batch takes less time than its launches, so they are recorded as a
 * graph, which is one launch.  A graph holds its kernels' arguments; it is
 * used again only for a batch whose arguments are the same to the last byte,
 * so it never has a stale address.  The queries and their parameters, which
 * differ from call to call, lie in memory, at the same place each time, and
 * the sizes of a mirror's lists are in the device's memory, too.
 *
 * A stream has GV_GRAPHS graphs at most, each some kilobytes of the driver's
 * memory on the device and 100 us of the host to make, as much as ten batches
 * gain by theirs.
 */

/*
 * Select, and what follows.  Where the sample is asked for, a hit's score is
 * wanted on the device after it: so where no bounds follow, which give the
 * answers to the host, the last step does, and select leaves them on the
 * device.
 */
static GvStatus
last_steps(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher)
{
	GvBatch		kept = *batch;

	if (batch->sampled && batch->out_bounds == NULL)
	{
		kept.out_probed = batch->d_probed;
		kept.out_hits = batch->d_hits;
		kept.out_counts = batch->d_search_counts;
	}
	GV_TRY(gv_gpu_select_postings(model, &kept, searcher));
	if (model->refine_slots > 0)
		return gv_gpu_bound(model, batch, searcher->stream);
	if (batch->tests > 0)
		return gv_gpu_download_matches(model, batch, searcher->stream);
	return GV_OK;
}

/* From queries to their lists. */
static GvStatus
first_steps(const GvDeviceModel *model, const GvBatch *batch,
			GvSearcher *searcher)
{
	GV_TRY(gv_gpu_table(model, batch, searcher->stream));
	if (batch->filter.d_half_queries != NULL)
	{
		GV_TRY(gv_gpu_list_scores(model, batch, searcher));
		return gv_gpu_filter_lists(model, batch, searcher->stream);
	}
	GV_TRY(gv_gpu_coarse(model, batch, searcher->stream));
	return gv_gpu_select_lists(model, batch, searcher);
}

/* Launch all steps. */
static GvStatus
run_steps(const GvDeviceModel *model, const GvBatch *batch,
		  GvSearcher *searcher)
{
	GV_TRY(first_steps(model, batch, searcher));
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

/* Record the steps of a batch, instead of launching them. */
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
 * The graph of just these arguments, or the place for it: the one that was
 * used longest ago, in the worst case.
 */
static GvGraph *
find_graph(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher, bool *found)
{
	GvGraph   *oldest = &searcher->graphs[0];

	*found = true;
	for (int i = 0; i < GV_GRAPHS; i++)
	{
		GvGraph   *kept = &searcher->graphs[i];

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

/* The steps of a batch that needs no sort, as a graph if there is room. */
static GvStatus
run_graph(const GvDeviceModel *model, const GvBatch *batch,
		  GvSearcher *searcher)
{
	bool		found;
	GvGraph   *graph = find_graph(model, batch, searcher, &found);
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

/* Reads how a searcher's small batches were launched, on both streams. */
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

/* None is of use any more, or under way. */
static void
drop_graphs(GvSearcher *searcher)
{
	for (int i = 0; i < GV_GRAPHS; i++)
		forget(&searcher->graphs[i]);
}

/* ----
 * Answers of a small batch, noticed as they arrive.
 *
 * When a graph is over, the device says so behind the last of its writes, and
 * the driver looks for that: some microseconds after the answers have crossed
 * the bus.  So the host looks at these.  Before the batch is launched it fills
 * the memory for them with words that no answer has, GV_ABSENT, and they are
 * there when none is left among those that count: how many those are stands in
 * GvSearchCounts, which is looked at first.  Each word is looked at, so nothing is
 * assumed of the order in which they come, nor does the device have to see to
 * one.
 *
 * A word that is meant to be GV_ABSENT, which only damaged row ids can have,
 * is never there, nor are those of a batch that fails.  So the stream is asked
 * now and then, too, and what it says counts.  Once the answers are there
 * steps have nothing left to read, and what they do besides touches the stream
 * alone.
 */

#define GV_ABSENT		0xFFFFFFFFu	/* NaN, of scores and bounds */
#define TOGETHER		16		/* words that are looked at */
#define ASKED_EACH		50e-6	/* seconds from one question to the stream to
								 * the next */

/* Without what its size is rounded up by, which nobody writes. */
#define FOUND_WORDS		(offsetof(GvSearchCounts, nblocks) / 4 + 1)

/*
 * Before the launch of a batch: the answers of its first n searches will be
 * looked for.
 */
static void
expect_answers(GvSearcher *searcher, const GvBatch *batch, int32_t n)
{
	GvCompletion *expected = &searcher->completion;
	size_t		nhits = (size_t) n * batch->k;

	memset(batch->out_counts, 0xFF, n * sizeof(GvSearchCounts));
	memset(batch->out_probed, 0xFF, (size_t) n * batch->nprobe *
		   sizeof(GvProbe));
	memset(batch->out_hits, 0xFF, nhits * sizeof(GvHit));
	if (batch->out_bounds != NULL)
		memset(batch->out_bounds, 0xFF, nhits * sizeof(GvBound));
	expected->batch = *batch;
	expected->n = n;
	expected->query = 0;
	expected->words = 0;
	expected->asked = gv_seconds();
}

/*
 * Are n words there?  *first counts them, and goes on where it was.  Many are
 * looked at together, as compilers make vectors of them.
 */
static bool
are_there(const void *from, int64_t n, int64_t *first)
{
	const uint32_t *words = (const uint32_t *) from;

	/* the device writes there: nothing read before is true any more */
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
 * Is all of a search's answer there?  *words counts what is, from call to
 * call, 0 at first.
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
		{answer->probed, found->nprobed * (sizeof(GvProbe) / 4)},
		{answer->hits, found->nhits * (sizeof(GvHit) / 4)},
		{answer->bounds,
			answer->bounds == NULL ? 0 : found->nhits * (sizeof(GvBound) / 4)}
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

/* All of the search that is looked for now? */
static bool
is_complete(GvCompletion *expected)
{
	const GvBatch *batch = &expected->batch;
	int64_t		query = expected->query;
	int64_t		first_hit = query * batch->k;
	GvAnswer	answer = {batch->out_counts + query, batch->out_probed +
		query * batch->nprobe, (const GvHit *) batch->out_hits + first_hit,
		batch->out_bounds == NULL ? NULL : batch->out_bounds + first_hit};

	return gv_answer_is_complete(&answer, &expected->words);
}

/* Is a stream's work done, as far as who waits for it is concerned? */
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
	/* done or failed, whatever has arrived: who waits is told which */
	expected->n = 0;
	return true;
}

/* Wait for a stream's work, and say whether it failed. */
static GvStatus
wait_stream(GvSearcher *searcher)
{
	GvCompletion *expected = &searcher->completion;

	while (expected->n > 0 && !is_stream_done(searcher))
		;
	return expected->n > 0 ? GV_OK :
		gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}

/* Wait for what a lane may still have to do, though its answers were there. */
static GvStatus
wait_rest(GvSearcher *searcher)
{
	if (searcher->completion.n == 0)
		return GV_OK;
	searcher->completion.n = 0;
	return wait_stream(searcher);
}

/* ----
 * Searchers, and parts of a batch.
 */

/*
 * Answers of batches of up to here are looked for as they arrive; beyond, to
 * look at all of them takes longer than to ask.
 */
#define MOST_EXPECTED	8

/* Also of a searcher that is half made. */
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
 * Makes what a searcher has: its stream, and unless it is the second stream
 * itself, that.
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
	/* of one sub-batch, of four in flight */
	searcher->most_work = gv_gpu_stream_bytes(total) -
		gv_blas_bytes(device, 0);
	GV_TRY(gv_blas_create(device, 0, searcher->stream, &searcher->blas));
	if (is_second)
		return GV_OK;
#ifdef GV_TEST_BUILD
	/* the queries of both streams are counted there */
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

/* Tell the askers where their answers will be. */
static void
place_answers(const GvBatch *batch, GvSearch *searches, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
	{
		size_t		first = (size_t) i * batch->k;

		searches[i].probed = batch->out_probed + (size_t) i * batch->nprobe;
		searches[i].hits = (GvHit *) batch->out_hits + first;
		searches[i].bounds = searches[i].bounded ?
			batch->out_bounds + first : NULL;
		searches[i].matches = searches[i].condition == NULL ? NULL :
			(int32_t *) batch->out_matches + (size_t) i * batch->nprobe;
	}
}

/*
 * Memory for what a stream's steps hand each other.  Steps read some of it
 * before they know how much of it there is: where nothing was written are
 * zeros.
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

/* Memory for what comes from the host, and what goes back. */
static GvStatus
need_memory(GvSearcher *searcher, size_t in_bytes, size_t out_bytes)
{
	/* graphs have the addresses of what grows */
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

/* Memory for all parts of n searches. */
static GvStatus
prepare(GvSearcher *searcher, const GvMirror *mirror,
		const GvSearch *searches, int32_t n)
{
	size_t		sample_at;
	GvLayout	layout = {};
	size_t		most_bytes = 0;
	int			nturns = 0;

	layout.out_bytes = gv_gpu_counts_bytes(n, &sample_at);
	for (int32_t done = 0; done < n; nturns++)
	{
		GvBatchTurn	turn;

		gv_gpu_next_turn(searcher, mirror, searches + done, n - done, n,
						 &turn);
		gv_gpu_place_turn(&mirror->model, searcher, searcher, &layout, &turn);
		if (most_bytes < turn.work_bytes)
			most_bytes = turn.work_bytes;
		done += turn.n;
	}
	GV_TRY(need_memory(searcher, layout.in_bytes, layout.out_bytes));
	if (nturns > 1)
		GV_TRY(grow_work(searcher->second_stream, most_bytes));
	return grow_work(searcher, most_bytes);
}

/* A part whose queries and answers are copied, as kernels see it. */
static GvBatch
copied_batch(const GvBatch *batch)
{
	GvBatch		copied = *batch;

	copied.in_queries = batch->d_queries;
	copied.in_params = batch->d_params;
	copied.out_probed = batch->d_probed;
	copied.out_hits = batch->d_hits;
	copied.out_counts = batch->d_search_counts;
	if (batch->out_bounds != NULL)
		copied.out_bounds = batch->d_bounds;
	return copied;
}

static GvStatus
copy_in(const GvBatch *batch, cudaStream_t stream)
{
	const char *in = (const char *) batch->in_queries;

	return gv_cuda_status(gv_upload((char *) batch->d_queries, in,
									(const char *) (batch->in_params +
													batch->n) - in, stream));
}

static GvStatus
copy_out(const GvBatch *batch, cudaStream_t stream)
{
	size_t		nhits = (size_t) batch->n * batch->k;
	char	   *out = (char *) batch->out_probed;
	char	   *end = batch->out_bounds != NULL ?
		(char *) (batch->out_bounds + nhits) :
		(char *) (batch->out_hits + nhits);

	GV_CUDA_TRY(gv_download(out, (char *) batch->d_probed, end - out, stream));
	return gv_cuda_status(gv_download(batch->out_counts,
									  batch->d_search_counts, batch->n,
									  stream));
}

/* Start a part whose queries and answers are copied. */
static GvStatus
start_long(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher)
{
	GvBatch		copied = copied_batch(batch);

	GV_TRY(copy_in(batch, searcher->stream));
	GV_TRY(run_steps(model, &copied, searcher));
	return copy_out(batch, searcher->stream);
}

/* Launch all steps of parts that are scanned list by list. */
static GvStatus
launch_by_list(const GvDeviceModel *model, const GvBatchTurn *turn,
			   GvUpload *upload, GvSearcher *searcher)
{
	const GvListScan *lists = &turn->lists;
	cudaStream_t stream = searcher->stream;
	int32_t		first = 0;

	/* 1. parts, as their queries come, up to whom each meets */
	GV_TRY(gv_gpu_begin_lists(model, lists, stream));
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];
		GvBatch		copied = copied_batch(batch);

		gv_gpu_wait_for_upload(upload, i);
		GV_TRY(copy_in(batch, stream));
		GV_TRY(first_steps(model, &copied, searcher));
		GV_TRY(gv_gpu_add_queries(model, &copied, lists, first, stream));
		first += batch->n;
	}

	/* 2. all of them */
	GV_TRY(gv_gpu_scan_lists(model, turn, stream));

	/* 3. parts, as if each had been scanned */
	first = 0;
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];
		GvBatch		copied = copied_batch(batch);

		copied.d_overflowed = lists->d_overflowed + first;
		GV_TRY(gv_gpu_rescore(model, &copied, lists, first, stream));
		GV_TRY(gv_gpu_scan(model, &copied, searcher));
		GV_TRY(last_steps(model, &copied, searcher));
		GV_TRY(copy_out(batch, stream));
		first += batch->n;
	}
	return GV_OK;
}

/* Start parts that are scanned list by list. */
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

/* Start a part of its own: its searches are the first of n, of a batch's. */
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

/* Start all parts of n searches. */
static GvStatus
start(GvSearcher *searcher, const GvMirror *mirror, GvSearch *searches,
	  int32_t n)
{
	const GvDeviceModel *model = &mirror->model;
	GvSearcher *stream = searcher;
	GvLayout	layout = {};
	size_t		sample_at;

	layout.out_bytes = gv_gpu_counts_bytes(n, &sample_at);
	searcher->both = false;
	for (int32_t done = 0; done < n;)
	{
		GvBatchTurn	turn;
		int32_t		first = done;

		gv_gpu_next_turn(searcher, mirror, searches + done, n - done, n,
						 &turn);
		searcher->both |= stream != searcher;
		layout.batch_from = turn.batch_from;
		gv_gpu_place_turn(model, searcher, stream, &layout, &turn);
		for (int i = 0; i < turn.nbatches; i++)
		{
			GvBatch    *batch = &turn.batches[i];

			/* where long parts of two streams fill the device, steps that wait
			 * are in the way */
			batch->pdl = searcher->pdl && !turn.by_list &&
				(turn.small || turn.n >= n);
			batch->out_counts =
				(GvSearchCounts *) searcher->out.memory + first;
			if (batch->sampled)
				batch->out_sample =
					(GvSampleCount *) ((char *) searcher->out.memory +
									   sample_at) + first;
			first += turn.taken[i];
		}
		/*
		 * what was looked for is of an earlier part, and this one ends later
		 */
		stream->completion.n = 0;
		if (turn.by_list)
			GV_TRY(start_by_list(model, &turn, searches + done, stream));
		else
			GV_TRY(start_sub_batch(model, &turn, searches + done,
								   n <= MOST_EXPECTED, stream));
		for (int i = 0; i < turn.nbatches; i++)
		{
			place_answers(&turn.batches[i], searches + done, turn.taken[i]);
			done += turn.taken[i];
		}
		stream = stream == searcher ? searcher->second_stream : searcher;
	}
	return GV_OK;
}

/* Wait for the lanes that have work. */
static GvStatus
wait_streams(GvSearcher *searcher)
{
	GvStatus	status = wait_stream(searcher);

	if (searcher->both)
		GV_TRY(wait_stream(searcher->second_stream));
	return status;
}

/* ----
 * Bounds of hits that are returned: the last step of a batch alone.
 *
 * Records of the hits of a search may be on other devices than the lists they
 * were found in.  Queries and hits are copied to the device and bounds back,
 * some searches at a time, one after another on the searcher's first stream.
 */

#define MOST_QUERIES	4096	/* of a launch */

/* Some searches, and how many bytes go to the device and come back. */
struct BoundsBatch
{
	GvBatch		batch;
	size_t		in_bytes;
	size_t		out_bytes;
};

/*
 * Takes the first of n searches, as many as fit into a stream's work, and
 * places their arrays on the device.  Arrays that are uploaded lie in the same
 * order in the host's memory.
 */
static void
place_bounds(const GvSearcher *searcher, const GvDeviceModel *model,
			 const GvSearch *searches, int32_t n, BoundsBatch *bounds)
{
	GvBatch    *batch = &bounds->batch;
	char	   *work = (char *) searcher->d_work.memory;
	size_t		bytes;

	memset(batch, 0, sizeof(*batch));
	batch->k = 1;
	do
	{
		int32_t		capacity = batch->k;

		if (capacity < searches[batch->n].nhits)
			capacity = searches[batch->n].nhits;
		bytes =
			(batch->n + 1) * (model->dims * sizeof(float) +
							  sizeof(GvSearchParams) + sizeof(GvSearchCounts) +
							  capacity * (sizeof(GvHit) + sizeof(GvBound)));
		if (batch->n > 0 && (int64_t) bytes > searcher->most_work)
			break;
		batch->k = capacity;
		batch->n++;
	} while (batch->n < n && batch->n < MOST_QUERIES);

	bounds->in_bytes = 0;
	gv_place(&batch->d_queries, work, &bounds->in_bytes,
			 (int64_t) batch->n * model->dims);
	gv_place(&batch->d_params, work, &bounds->in_bytes, batch->n);
	gv_place(&batch->d_search_counts, work, &bounds->in_bytes, batch->n);
	gv_place(&batch->d_hits, work, &bounds->in_bytes,
			 (int64_t) batch->n * batch->k);
	bytes = bounds->in_bytes;
	gv_place(&batch->d_bounds, work, &bytes, (int64_t) batch->n * batch->k);
	bounds->out_bytes = bytes - bounds->in_bytes;
	batch->out_probed = batch->d_probed;
	batch->out_hits = batch->d_hits;
	batch->out_counts = batch->d_search_counts;
	batch->out_bounds = batch->d_bounds;
}

/* Where in the host's memory an array goes to the device from. */
template <typename T>
static T *
source(char *in, const BoundsBatch *bounds, T *d_array)
{
	return (T *) (in + ((char *) d_array - (char *) bounds->batch.d_queries));
}

/* Searches and their hits to the host's memory at `in`. */
static void
upload_hits(const GvDeviceModel *model, const BoundsBatch *bounds,
			const GvSearch *searches, char *in)
{
	GvBatch		batch = bounds->batch;
	GvSearchCounts    *found = source(in, bounds, batch.d_search_counts);
	uint4	   *hits = source(in, bounds, batch.d_hits);

	batch.in_queries = source(in, bounds, batch.d_queries);
	batch.in_params = source(in, bounds, batch.d_params);
	gv_gpu_upload_queries(model, &batch, searches, batch.n);
	memset(found, 0, batch.n * sizeof(GvSearchCounts));
	for (int32_t i = 0; i < batch.n; i++)
	{
		found[i].nhits = searches[i].nhits;
		if (searches[i].nhits > 0)
			memcpy(hits + (size_t) i * batch.k, searches[i].hits,
				   searches[i].nhits * sizeof(GvHit));
	}
}

/* See gv_mirror_begin, of searches whose hits are returned. */
static GvStatus
begin_bounds(GvSearcher *searcher, const GvDeviceModel *model,
			 GvSearch *searches, int32_t n)
{
	size_t		in_bytes = 0;
	size_t		out_bytes = 0;
	size_t		most_bytes = 0;
	BoundsBatch		bounds;

	for (int32_t done = 0; done < n; done += bounds.batch.n)
	{
		place_bounds(searcher, model, searches + done, n - done, &bounds);
		in_bytes += bounds.in_bytes;
		out_bytes += bounds.out_bytes;
		if (most_bytes < bounds.in_bytes + bounds.out_bytes)
			most_bytes = bounds.in_bytes + bounds.out_bytes;
	}
	GV_TRY(need_memory(searcher, in_bytes, out_bytes));
	GV_TRY(grow_work(searcher, most_bytes));
	searcher->both = false;
	searcher->completion.n = 0;
	in_bytes = 0;
	out_bytes = 0;
	for (int32_t done = 0; done < n; done += bounds.batch.n)
	{
		char	   *in = (char *) searcher->in.memory + in_bytes;
		GvBound *out = (GvBound *) ((char *) searcher->out.memory + out_bytes);

		place_bounds(searcher, model, searches + done, n - done, &bounds);
		upload_hits(model, &bounds, searches + done, in);
		GV_CUDA_TRY(gv_upload((char *) bounds.batch.d_queries, in,
							  bounds.in_bytes, searcher->stream));
		GV_TRY(gv_gpu_bound(model, &bounds.batch, searcher->stream));
		GV_CUDA_TRY(gv_download((char *) out, (char *) bounds.batch.d_bounds,
								bounds.out_bytes, searcher->stream));
		for (int32_t i = 0; i < bounds.batch.n; i++)
			searches[done + i].bounds = out + (size_t) i * bounds.batch.k;
		in_bytes += bounds.in_bytes;
		out_bytes += bounds.out_bytes;
	}
	return GV_OK;
}

/* ----
 * What the engine is asked to do.
 */

/* Do the lists of the parents cover all lists, ascending? */
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
			(searches[i].condition != NULL &&
			 !gv_same_form(&searches[i].condition->form, &mirror->spec.keys)))
			return GV_INVALID;
	GV_TRY(gv_choose_device(searcher->device));
	searcher->bounds_only = searches[0].given;
	if (!searcher->bounds_only)
		GV_TRY(prepare(searcher, mirror, searches, n));
	if (searcher->version != mirror->version)
	{
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->stream, mirror->changed, 0));
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->second_stream->stream,
										mirror->changed, 0));
	}
	status = searcher->bounds_only ?
		begin_bounds(searcher, &mirror->model, searches, n) :
		start(searcher, mirror, searches, n);
	if (status != GV_OK)
	{
		/* what has begun uses the searcher's memory */
		(void) wait_streams(searcher);
		return status;
	}
	searcher->version = mirror->version;
	searcher->searches = searches;
	searcher->n = n;
	return GV_OK;
}

/* See gv_mirror_done; what failed finish will report. */
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
	const GvSearchCounts *found =
		(const GvSearchCounts *) searcher->out.memory;
	size_t		sample_at;
	const GvSampleCount *near;

	(void) gv_gpu_counts_bytes(searcher->n, &sample_at);
	near = (const GvSampleCount *) ((const char *) searcher->out.memory +
									sample_at);
	GV_TRY(wait_streams(searcher));
	for (int32_t i = 0; i < searcher->n && !searcher->bounds_only; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		search->nprobed = found[i].nprobed;
		search->nhits = found[i].nhits;
		search->postings = found[i].postings;
		search->nearer = search->rank > 0 ? near[i].postings : 0;
		search->nearer_squares = search->rank > 0 ? near[i].squares : 0;
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
	.get_array = gv_gpu_get_array,
	.get_block = gv_gpu_get_block,
	.get_refine = gv_gpu_get_refine,
	.searcher = create_searcher,
	.searcher_drop = drop_searcher,
	.begin = begin_searches,
	.done = are_searches_done,
	.finish = finish_searches,
	.rejection = gv_gpu_rejection
};
