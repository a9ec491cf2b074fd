/*
 * search.cu
 *		A batch of queries, from coarse search to the best copies.
 *
 *		in		queries and what they want, one copy to the card
 *		coarse	their scores against all centroids
 *		probes	the nearest lists, and a numbering of their blocks
 *		scan	the score S of every copy in them
 *		select	the best copies
 *		bound	what their refine records prove, if there are any
 *		out		all that, one copy back
 *
 * All on one stream; the host waits once, at the end.  Memory is taken when a
 * batch needs more than any before it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gv_cuda.h"

/* The most that scores of a batch may take; longer batches are cut. */
#define MOST_WORK		((int64_t) 1 << 30)

/* See gv_searcher. */
GvStatus
gv_gpu_searcher(GvSearcher **searcher)
{
	GvSearcher *made = (GvSearcher *) calloc(1, sizeof(GvSearcher));
	int			device;
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->in.pinned = true;
	made->out.pinned = true;
	status = gv_choose_device();
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamCreateWithFlags(&made->stream,
														  cudaStreamNonBlocking));
	if (status == GV_OK)
		status = gv_cuda_status(cudaGetDevice(&device));
	if (status == GV_OK)
		status = gv_cuda_status(cudaDeviceGetAttribute(&made->nsms,
													   cudaDevAttrMultiProcessorCount,
													   device));
	if (status != GV_OK)
	{
		gv_gpu_searcher_drop(made);
		return status;
	}
	*searcher = made;
	return GV_OK;
}

void
gv_gpu_searcher_drop(GvSearcher *searcher)
{
	if (searcher->stream != NULL)
		(void) cudaStreamDestroy(searcher->stream);
	gv_buffer_free(&searcher->in);
	gv_buffer_free(&searcher->d_in);
	gv_buffer_free(&searcher->out);
	gv_buffer_free(&searcher->d_out);
	gv_buffer_free(&searcher->d_work);
	gv_buffer_free(&searcher->d_sort);
	gv_buffer_free(&searcher->d_near);
	free(searcher);
}

/* Advance *next by bytes, rounded up; returns what it was. */
static size_t
carve(size_t *next, size_t bytes)
{
	size_t		start = *next;

	*next += (bytes + 255) / 256 * 256;
	return start;
}

/* Offsets of a batch's arrays in their buffers. */
struct BatchPlaces
{
	size_t		queries;		/* in */
	size_t		wanted;
	size_t		in_bytes;
	size_t		found;			/* out */
	size_t		probed;
	size_t		hits;
	size_t		bounds;
	size_t		out_bytes;
	size_t		coarse;			/* work */
	size_t		starts;
	size_t		scores;
	size_t		work_bytes;
};

static void
place_batch(const GvCardModel *card, const GvBatch *batch,
			BatchPlaces *places)
{
	size_t		n = batch->n;

	memset(places, 0, sizeof(*places));
	places->queries = carve(&places->in_bytes,
							n * card->dims * sizeof(float));
	places->wanted = carve(&places->in_bytes, n * sizeof(GvWanted));
	places->found = carve(&places->out_bytes, n * sizeof(GvFound));
	places->probed = carve(&places->out_bytes,
						   n * batch->probes * sizeof(GvProbe));
	places->hits = carve(&places->out_bytes,
						 n * batch->capacity * sizeof(GvHit));
	if (card->refine_slots > 0)
		places->bounds = carve(&places->out_bytes,
							   n * batch->capacity * sizeof(GvBound));
	places->coarse = carve(&places->work_bytes,
						   n * card->nlists * sizeof(float));
	places->starts = carve(&places->work_bytes,
						   n * (batch->probes + 1) * sizeof(uint32_t));
	places->scores = carve(&places->work_bytes,
						   n * batch->copies * sizeof(float));
}

/* Get the memory and point the batch at it. */
static GvStatus
prepare(GvSearcher *searcher, const GvCardModel *card,
		const BatchPlaces *places, GvBatch *batch)
{
	char	   *d_in;
	char	   *d_out;
	char	   *d_work;

	GV_TRY(gv_buffer_need(&searcher->in, places->in_bytes));
	GV_TRY(gv_buffer_need(&searcher->d_in, places->in_bytes));
	GV_TRY(gv_buffer_need(&searcher->out, places->out_bytes));
	GV_TRY(gv_buffer_need(&searcher->d_out, places->out_bytes));
	GV_TRY(gv_buffer_need(&searcher->d_work, places->work_bytes));
	d_in = (char *) searcher->d_in.memory;
	d_out = (char *) searcher->d_out.memory;
	d_work = (char *) searcher->d_work.memory;
	batch->d_queries = (const float *) (d_in + places->queries);
	batch->d_wanted = (const GvWanted *) (d_in + places->wanted);
	batch->d_found = (GvFound *) (d_out + places->found);
	batch->d_probed = (GvProbe *) (d_out + places->probed);
	batch->d_hits = (GvHit *) (d_out + places->hits);
	if (card->refine_slots > 0)
		batch->d_bounds = (GvBound *) (d_out + places->bounds);
	batch->d_coarse = (float *) (d_work + places->coarse);
	batch->d_starts = (uint32_t *) (d_work + places->starts);
	batch->d_scores = (float *) (d_work + places->scores);
	return GV_OK;
}

/* Hand the card's findings to their askers. */
static void
give_out(const GvSearcher *searcher, const BatchPlaces *places,
		 const GvBatch *batch, const GvMirror *mirror, GvSearch *searches)
{
	const char *out = (const char *) searcher->out.memory;
	const GvFound *found = (const GvFound *) (out + places->found);
	const GvProbe *probed = (const GvProbe *) (out + places->probed);
	const GvHit *hits = (const GvHit *) (out + places->hits);
	const GvBound *bounds = (const GvBound *) (out + places->bounds);

	for (int i = 0; i < batch->n; i++)
	{
		GvSearch   *search = &searches[i];

		search->nprobed = found[i].nprobed;
		search->nhits = found[i].nhits;
		memcpy(search->probed, probed + (size_t) i * batch->probes,
			   search->nprobed * sizeof(GvProbe));
		memcpy(search->hits, hits + (size_t) i * batch->capacity,
			   search->nhits * sizeof(GvHit));
		if (search->bounds != NULL)
			memcpy(search->bounds, bounds + (size_t) i * batch->capacity,
				   search->nhits * sizeof(GvBound));
		search->copies = 0;
		for (int p = 0; p < search->nprobed; p++)
			search->copies += mirror->lists[search->probed[p].list].nlive;
	}
}

/* All steps for as many searches as fit at once. */
static GvStatus
run(GvSearcher *searcher, const GvMirror *mirror, GvBatch *batch,
	GvSearch *searches)
{
	const GvCardModel *card = &mirror->card;
	BatchPlaces places;
	char	   *in;

	place_batch(card, batch, &places);
	GV_TRY(prepare(searcher, card, &places, batch));
	in = (char *) searcher->in.memory;
	for (int i = 0; i < batch->n; i++)
	{
		GvWanted   *wanted = (GvWanted *) (in + places.wanted) + i;

		memcpy(in + places.queries + (size_t) i * card->dims * sizeof(float),
			   searches[i].query, card->dims * sizeof(float));
		wanted->probes = searches[i].probes;
		wanted->capacity = searches[i].capacity;
		wanted->length = card->refine_slots == 0 ? 0 :
			sqrt(-gv_distance_ip(searches[i].query, searches[i].query,
								 card->dims));
	}

	GV_CUDA_TRY(cudaStreamWaitEvent(searcher->stream, mirror->changed, 0));
	GV_CUDA_TRY(cudaMemcpyAsync(searcher->d_in.memory, in, places.in_bytes,
								cudaMemcpyHostToDevice, searcher->stream));
	GV_CUDA_TRY(cudaMemsetAsync(batch->d_found, 0,
								batch->n * sizeof(GvFound),
								searcher->stream));
	if (gv_gpu_near_fits(card, batch))
		GV_TRY(gv_gpu_near(card, batch, searcher));
	else
	{
		GV_TRY(gv_gpu_coarse(card, batch, searcher->stream));
		GV_TRY(gv_gpu_probes(card, batch, searcher));
	}
	GV_TRY(gv_gpu_scan(card, batch, searcher));
	GV_TRY(gv_gpu_select(card, batch, searcher));
	if (card->refine_slots > 0)
		GV_TRY(gv_gpu_bound(card, batch, searcher->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(searcher->out.memory, searcher->d_out.memory,
								places.out_bytes, cudaMemcpyDeviceToHost,
								searcher->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(searcher->stream));
	give_out(searcher, &places, batch, mirror, searches);
	return GV_OK;
}

/* Do the lists of the parents cover all lists, ascending? */
static bool
check_starts(GvMirror *mirror)
{
	const GvMirrorSpec *spec = &mirror->spec;

	if (mirror->checked)
		return true;
	for (int32_t p = 0; p < spec->nparents; p++)
		if (mirror->starts[p] >= mirror->starts[p + 1])
			return false;
	mirror->checked = mirror->starts[0] == 0 &&
		mirror->starts[spec->nparents] == spec->nlists;
	return mirror->checked;
}

/* Room for the scores of one search of so many probes. */
static int64_t
most_copies(const GvMirror *mirror, int32_t probes)
{
	int64_t		nblocks = (int64_t) probes * mirror->longest;

	return (nblocks < mirror->nblocks ? nblocks : mirror->nblocks) * GV_BLOCK;
}

/* See gv_mirror_search. */
GvStatus
gv_gpu_search(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
			  int32_t n)
{
	if (!check_starts(mirror))
		return GV_INVALID;
	for (int32_t i = 0; i < n; i++)
		if (searches[i].bounds != NULL && mirror->card.refine_slots == 0)
			return GV_INVALID;
	GV_TRY(gv_choose_device());
	for (int32_t done = 0; done < n;)
	{
		GvBatch		batch;

		memset(&batch, 0, sizeof(batch));
		while (done + batch.n < n)
		{
			const GvSearch *next = &searches[done + batch.n];
			int32_t		probes = next->probes < mirror->spec.nlists ?
				next->probes : mirror->spec.nlists;
			int64_t		copies;

			if (probes < batch.probes)
				probes = batch.probes;
			copies = most_copies(mirror, probes);
			if (batch.n > 0 &&
				(batch.n + 1) * (copies + mirror->spec.nlists) * 4 > MOST_WORK)
				break;
			batch.n++;
			batch.probes = probes;
			batch.copies = copies;
			if (next->capacity > batch.capacity)
				batch.capacity = next->capacity;
		}
		GV_TRY(run(searcher, mirror, &batch, searches + done));
		done += batch.n;
	}
	return GV_OK;
}
