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
#include <stdlib.h>
#include <string.h>

#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/gv_index.h"
#include "gpu/product/gv_product.h"

/*
 * Answers of batches of up to here are looked for as they arrive; beyond, to
 * look at all of them takes longer than to ask.
 */
#define MOST_EXPECTED	8

/* Bytes that one part of a batch may have, of four under way. */
static GvStatus
find_most_work(int32_t device, int64_t *most)
{
	size_t		nfree;
	size_t		total;

	GV_CUDA_TRY(cudaMemGetInfo(&nfree, &total));
	*most = gv_gpu_stream_bytes(total) - gv_blas_bytes(device, 0);
	return GV_OK;
}

/* A lane on a device, and the second one if `lanes` is 2. */
static GvStatus
make_streams(int32_t device, int nstreams, GvSearcher **searcher)
{
	GvSearcher *made = (GvSearcher *) calloc(1, sizeof(GvSearcher));
	int			number;
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->hopper = gv_has_hopper(device);
	made->in.pinned = true;
	made->out.pinned = true;
	status = gv_choose_device(device);
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamCreateWithFlags(&made->stream,
														  cudaStreamNonBlocking));
	if (status == GV_OK)
		status = gv_cuda_status(cudaGetDevice(&number));
	if (status == GV_OK)
		status = gv_cuda_status(cudaDeviceGetAttribute(&made->nsms,
													   cudaDevAttrMultiProcessorCount,
													   number));
#ifdef GV_TEST_BUILD
	/* both lanes count there, of which the second is made first */
	if (status == GV_OK && nstreams > 1)
		status = gv_buffer_need(&made->d_ways,
								GV_COARSE_WAYS * sizeof(unsigned));
	if (status == GV_OK && nstreams > 1)
		status = gv_cuda_status(cudaMemsetAsync(made->d_ways.memory, 0,
												made->d_ways.bytes,
												made->stream));
#endif
	if (status == GV_OK)
		status = gv_gpu_overlaps(&made->overlap);
	if (status == GV_OK)
		status = find_most_work(device, &made->most_work);
	if (status == GV_OK)
		status = gv_blas_create(device, 0, made->stream, &made->blas);
	if (status == GV_OK && nstreams > 1)
		status = make_streams(device, nstreams - 1, &made->beside);
	if (status != GV_OK)
	{
		gv_gpu_searcher_drop(made);
		return status;
	}
	*searcher = made;
	return GV_OK;
}

/* See gv_searcher. */
GvStatus
gv_gpu_searcher(int32_t device, GvSearcher **searcher)
{
	return make_streams(device, 2, searcher);
}

void
gv_gpu_searcher_drop(GvSearcher *searcher)
{
	(void) gv_choose_device(searcher->device);
	(void) gv_gpu_wait_whole(searcher);
	if (searcher->beside != NULL)
		gv_gpu_searcher_drop(searcher->beside);
	gv_gpu_replays_drop(searcher);
	gv_blas_drop(searcher->blas);
	if (searcher->stream != NULL)
		(void) cudaStreamDestroy(searcher->stream);
	gv_buffer_free(&searcher->in);
	gv_buffer_free(&searcher->out);
	gv_buffer_free(&searcher->d_work);
	gv_buffer_free(&searcher->d_sort);
	GV_TEST_ONLY(gv_buffer_free(&searcher->d_ways);)
	free(searcher);
}

/* Tell the askers where their answers will be. */
static void
place_answers(const GvBatch *batch, GvSearch *searches, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
	{
		size_t		first = (size_t) i * batch->capacity;

		searches[i].probed = batch->out_probed + (size_t) i * batch->probes;
		searches[i].hits = (GvHit *) batch->out_hits + first;
		searches[i].bounds = searches[i].bounded ?
			batch->out_bounds + first : NULL;
		searches[i].matches = searches[i].condition == NULL ? NULL :
			(int32_t *) batch->out_matches + (size_t) i * batch->probes;
	}
}

/*
 * Memory for what a stream's steps hand each other.  Steps read some of it
 * before they know how much of it there is: where nothing was written are
 * zeros.
 */
GvStatus
gv_gpu_grow_work(GvSearcher *searcher, size_t bytes)
{
	if (searcher->d_work.bytes >= bytes)
		return GV_OK;
	GV_TRY(gv_gpu_wait_whole(searcher));
	gv_gpu_replays_drop(searcher);
	GV_TRY(gv_buffer_need(&searcher->d_work, bytes));
	return gv_cuda_status(cudaMemsetAsync(searcher->d_work.memory, 0,
										  searcher->d_work.bytes,
											searcher->stream));
}

/* Memory for what comes from the host, and what goes back. */
GvStatus
gv_gpu_need(GvSearcher *searcher, size_t in_bytes, size_t out_bytes)
{
	/* graphs have the addresses of what grows */
	if (searcher->in.bytes < in_bytes || searcher->out.bytes < out_bytes)
	{
		GV_TRY(gv_gpu_wait_whole(searcher));
		GV_TRY(gv_gpu_wait_whole(searcher->beside));
		gv_gpu_replays_drop(searcher);
		gv_gpu_replays_drop(searcher->beside);
	}
	GV_TRY(gv_buffer_need(&searcher->in, in_bytes));
	return gv_buffer_need(&searcher->out, out_bytes);
}

/* Memory for all parts of n searches. */
static GvStatus
prepare(GvSearcher *searcher, const GvMirror *mirror,
		const GvSearch *searches, int32_t n)
{
	size_t		near_at;
	GvPlaces	places = {};
	size_t		most_bytes = 0;
	int			nturns = 0;

	places.out_bytes = gv_gpu_found_bytes(n, &near_at);
	for (int32_t done = 0; done < n; nturns++)
	{
		GvGathered	gathered;

		gv_gpu_gather_parts(searcher, mirror, searches + done, n - done, n,
					  &gathered);
		gv_gpu_place_gathered(&mirror->model, searcher, searcher, &places,
							  &gathered);
		if (most_bytes < gathered.work_bytes)
			most_bytes = gathered.work_bytes;
		done += gathered.n;
	}
	GV_TRY(gv_gpu_need(searcher, places.in_bytes, places.out_bytes));
	if (nturns > 1)
		GV_TRY(gv_gpu_grow_work(searcher->beside, most_bytes));
	return gv_gpu_grow_work(searcher, most_bytes);
}

/* Start a part of its own: its searches are the first of n, of a batch's. */
static GvStatus
start_part(const GvDeviceModel *model, GvGathered *gathered,
		   GvSearch *searches,
		   bool expects, GvSearcher *searcher)
{
	const GvBatch *batch = &gathered->parts[0];

	gv_gpu_upload_queries(model, batch, searches, gathered->n);
	if (batch->tests > 0)
		gv_gpu_upload_conditions(batch, searches, gathered->n);
	if (!gathered->small)
		return gv_gpu_start_long(model, batch, searcher);
	if (expects && batch->tests == 0)
		gv_gpu_expect(searcher, batch, gathered->n);
	return gv_gpu_replay(model, batch, searcher);
}

/* Start all parts of n searches. */
static GvStatus
start(GvSearcher *searcher, const GvMirror *mirror, GvSearch *searches,
	  int32_t n)
{
	const GvDeviceModel *model = &mirror->model;
	GvSearcher *stream = searcher;
	GvPlaces	places = {};
	size_t		near_at;

	places.out_bytes = gv_gpu_found_bytes(n, &near_at);
	searcher->both = false;
	for (int32_t done = 0; done < n;)
	{
		GvGathered	gathered;
		int32_t		first = done;

		gv_gpu_gather_parts(searcher, mirror, searches + done, n - done, n,
					  &gathered);
		searcher->both |= stream != searcher;
		places.own_from = gathered.own_from;
		gv_gpu_place_gathered(model, searcher, stream, &places, &gathered);
		for (int i = 0; i < gathered.nparts; i++)
		{
			GvBatch    *batch = &gathered.parts[i];

			/* where long parts of two streams fill the device, steps that wait
			 * are in the way */
			batch->overlap = searcher->overlap && !gathered.by_lists &&
				(gathered.small || gathered.n >= n);
			batch->out_found = (GvFound *) searcher->out.memory + first;
			if (batch->sampled)
				batch->out_near = (GvNear *) ((char *) searcher->out.memory +
											  near_at) + first;
			first += gathered.taken[i];
		}
		/*
		 * what was looked for is of an earlier part, and this one ends later
		 */
		stream->completion.n = 0;
		if (gathered.by_lists)
			GV_TRY(gv_gpu_start_gathered(model, &gathered, searches + done,
										 stream));
		else
			GV_TRY(start_part(model, &gathered, searches + done,
							  n <= MOST_EXPECTED, stream));
		for (int i = 0; i < gathered.nparts; i++)
		{
			place_answers(&gathered.parts[i], searches + done,
						  gathered.taken[i]);
			done += gathered.taken[i];
		}
		stream = stream == searcher ? searcher->beside : searcher;
	}
	return GV_OK;
}

/* Wait for the lanes that have work. */
static GvStatus
wait_streams(GvSearcher *searcher)
{
	GvStatus	status = gv_gpu_wait(searcher);

	if (searcher->both)
		GV_TRY(gv_gpu_wait(searcher->beside));
	return status;
}

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
GvStatus
gv_gpu_begin(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
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
	searcher->given = searches[0].given;
	if (!searcher->given)
		GV_TRY(prepare(searcher, mirror, searches, n));
	if (searcher->version != mirror->version)
	{
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->stream, mirror->changed, 0));
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->beside->stream,
										mirror->changed, 0));
	}
	status = searcher->given ?
		gv_gpu_begin_given(searcher, &mirror->model, searches, n) :
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
bool
gv_gpu_done(GvSearcher *searcher)
{
	return gv_gpu_is_complete(searcher) &&
		(!searcher->both || gv_gpu_is_complete(searcher->beside));
}

/* See gv_mirror_finish. */
GvStatus
gv_gpu_finish(GvSearcher *searcher)
{
	const GvFound *found = (const GvFound *) searcher->out.memory;
	size_t		near_at;
	const GvNear *near;

	(void) gv_gpu_found_bytes(searcher->n, &near_at);
	near = (const GvNear *) ((const char *) searcher->out.memory + near_at);
	GV_TRY(wait_streams(searcher));
	for (int32_t i = 0; i < searcher->n && !searcher->given; i++)
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
