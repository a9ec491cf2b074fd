/*
 * search.cu
 *		A batch of queries, from coarse search to the best copies.
 *
 *		table	queries and what they want are read from the host's memory;
 *				their look-up tables
 *		coarse	their scores against all centroids
 *		probes	the nearest lists, and a numbering of their blocks
 *		scan	the score S of every copy in them
 *		select	the best copies
 *		bound	what their refine records prove, if there are any
 *
 * The last steps of a small batch write answers into the host's memory, from
 * where the caller reads them: nothing is copied afterwards, and the host waits
 * once.  Long batches go in parts, in turn on two streams with memory of their
 * own, so that the host makes one ready, the bus carries another, and kernels
 * that wait for memory share the card with those that compute.  Their queries
 * and answers are copied, since a copy engine reads the bus at twice the rate
 * of threads and keeps none of them waiting.  Memory is taken when a batch
 * needs more than any before it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/gv_index.h"
#include "gpu/product/gv_product.h"

/* Queries that one part of a batch may have. */
#define MOST_QUERIES	512

#define COPY_BYTES		((int64_t) (sizeof(float) + sizeof(uint64_t)))

/* Batches from so many queries on go in two parts, and in four, at least. */
#define TWO_PARTS		32
#define FOUR_PARTS		256

/* Batches up to here are graphs; beyond, launches cost next to nothing. */
#define MOST_REPLAYED	64

/* Bytes that one part of a batch may have, of four under way. */
static GvStatus
find_most_work(int32_t device, int64_t *most)
{
	size_t		nfree;
	size_t		total;

	GV_CUDA_TRY(cudaMemGetInfo(&nfree, &total));
	*most = gv_gpu_lane_bytes(total) - gv_blas_bytes(device, 0);
	return GV_OK;
}

/* A lane on a device, and the second one if `lanes` is 2. */
static GvStatus
make_lanes(int32_t device, int lanes, GvSearcher **searcher)
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
	/* both lanes count there, of which the second is made first */
	if (status == GV_OK && lanes > 1)
		status = gv_buffer_need(&made->d_ways,
								GV_COARSE_WAYS * sizeof(unsigned));
	if (status == GV_OK && lanes > 1)
		status = gv_cuda_status(cudaMemsetAsync(made->d_ways.memory, 0,
												made->d_ways.bytes,
												made->stream));
	if (status == GV_OK)
		status = gv_gpu_overlaps(&made->overlap);
	if (status == GV_OK)
		status = find_most_work(device, &made->most_work);
	if (status == GV_OK)
		status = gv_blas_create(device, 0, made->stream, &made->blas);
	if (status == GV_OK && lanes > 1)
		status = make_lanes(device, lanes - 1, &made->beside);
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
	return make_lanes(device, 2, searcher);
}

void
gv_gpu_searcher_drop(GvSearcher *searcher)
{
	(void) gv_choose_device(searcher->device);
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
	gv_buffer_free(&searcher->d_ways);
	free(searcher);
}

/*
 * Point a batch's arrays at memory: in and out follow those of the parts
 * before it, work is every part's of the lane.  With NULL for memory only the
 * sizes count.  What is copied, queries and wanted, probes, hits and bounds,
 * has the same order on both sides.
 */
static void
place_batch(const GvCardModel *card, GvSearcher *searcher, GvSearcher *lane,
			size_t *in_bytes, size_t *out_bytes, size_t *work_bytes,
			GvBatch *batch)
{
	size_t		n = batch->n;
	char	   *in = (char *) searcher->in.memory;
	char	   *out = (char *) searcher->out.memory;
	char	   *work = (char *) lane->d_work.memory;
	size_t		hit_bytes = n * batch->capacity * sizeof(GvHit);
	size_t		bound_bytes = card->refine_slots == 0 ? 0 :
		n * batch->capacity * sizeof(GvBound);
	size_t		query_bytes = n * card->dims * sizeof(float);

#define PLACE(array, next, bytes) \
	batch->array = (decltype(batch->array)) ((uintptr_t) next + \
											 gv_carve(next##_bytes, bytes))
	PLACE(in_queries, in, query_bytes);
	PLACE(in_wanted, in, n * sizeof(GvWanted));
	PLACE(out_probed, out, n * batch->probes * sizeof(GvProbe));
	PLACE(out_hits, out, hit_bytes);
	if (bound_bytes > 0)
		PLACE(out_bounds, out, bound_bytes);
	PLACE(d_queries, work, query_bytes);
	PLACE(d_wanted, work, n * sizeof(GvWanted));
	PLACE(d_tables, work, n * gv_table_floats(&card->shape) * sizeof(float));
	PLACE(d_coarse, work, n * card->nlists * sizeof(float));
	PLACE(d_probed, work, n * batch->probes * sizeof(GvProbe));
	PLACE(d_hits, work, hit_bytes);
	PLACE(d_bounds, work, bound_bytes);
	PLACE(d_starts, work, n * (batch->probes + 1) * sizeof(uint32_t));
	PLACE(d_first, work, n * batch->probes * sizeof(uint8_t *));
	PLACE(d_scores, work, n * batch->copies * sizeof(float));
	if (!gv_gpu_sorts_copies(batch))
		PLACE(d_ids, work, n * batch->copies * sizeof(uint64_t));
	PLACE(d_found, work, n * sizeof(GvFound));
	if (gv_gpu_approximate_fits(card, batch))
	{
		PLACE(approx.d_halves, work, n * card->half_dims * sizeof(uint16_t));
		batch->approx.nparts = card->shape.chunks;
		PLACE(approx.d_squares, work,
			  n * batch->approx.nparts * sizeof(float2));
		PLACE(approx.d_least, work,
			  n * gv_nruns(card->nlists) * sizeof(float));
		batch->approx.d_ways = (unsigned *) searcher->d_ways.memory;
	}
	if (batch->tests > 0)
	{
		size_t		tests_bytes = n * batch->tests * sizeof(GvCardTest);
		size_t		values_bytes = batch->values * sizeof(uint64_t);
		size_t		matches_bytes = n * batch->probes * sizeof(uint32_t);

		PLACE(in_tests, in, tests_bytes);
		PLACE(in_values, in, values_bytes);
		PLACE(out_matches, out, matches_bytes);
		PLACE(d_tests, work, tests_bytes);
		PLACE(d_values, work, values_bytes);
		PLACE(d_matches, work, matches_bytes);
	}
#undef PLACE
}

/* Tests of a search's condition, and values of their sets. */
static int32_t
count_tests(const GvSearch *search, int32_t *nvalues)
{
	const GvCondition *condition = search->condition;

	*nvalues = 0;
	if (condition == NULL)
		return 0;
	for (int32_t i = 0; i < condition->ntests; i++)
		if (condition->tests[i].kind == GV_TEST_SET)
			*nvalues += condition->tests[i].nvalues;
	/* one that asks nothing still wants to hear how many copies there are */
	return condition->ntests > 0 ? condition->ntests : 1;
}

/* The least number at or above one that has three binary digits. */
static int64_t
round_up(int64_t number)
{
	int64_t		step = 1;

	while (step * 8 <= number)
		step *= 2;
	return (number + step - 1) / step * step;
}

/* Room for the scores of one search of so many probes. */
static int64_t
most_copies(const GvMirror *mirror, int32_t probes)
{
	int64_t		nblocks = (int64_t) probes * mirror->longest;

	return round_up(nblocks < mirror->nblocks ? nblocks : mirror->nblocks) *
		GV_BLOCK;
}

/*
 * Searches of n that a part should have, about the same of each; of small parts
 * a round number, because where the next one's answers go is part of its graph.
 */
static int32_t
part_of(int32_t n)
{
	int32_t		few = n >= FOUR_PARTS ? 4 : n >= TWO_PARTS ? 2 : 1;
	int32_t		nparts = (n + MOST_QUERIES - 1) / MOST_QUERIES;

	if (nparts < few)
		nparts = few;
	n = (n + nparts - 1) / nparts;
	return n <= MOST_REPLAYED ? (int32_t) round_up(n) : n;
}

/* Can a graph do it? */
static bool
is_small(const GvBatch *batch)
{
	return batch->n <= MOST_REPLAYED && batch->probes <= GV_MANY_PROBES &&
		batch->capacity <= GV_MANY_COPIES && batch->copies > 0;
}

/*
 * Round a small batch's shape up, so that few graphs serve many batches.  What
 * searches are added want nothing.
 */
static void
round_batch(const GvMirror *mirror, GvBatch *batch)
{
	int64_t		probes = round_up(batch->probes);

	batch->n = (int32_t) round_up(batch->n);
	batch->probes = (int32_t) (probes < mirror->spec.nlists ? probes :
							   mirror->spec.nlists);
	batch->capacity = (int32_t) round_up(batch->capacity);
	batch->copies = most_copies(mirror, batch->probes);
	batch->tests = (int32_t) round_up(batch->tests);
	batch->values = (int32_t) round_up(batch->values);
}

/* Most of what a batch takes of a lane's memory, if it is rounded up, too. */
static int64_t
rounded_bytes(const GvMirror *mirror, GvBatch batch)
{
	if (is_small(&batch))
		round_batch(mirror, &batch);
	return batch.n * (batch.copies * COPY_BYTES + mirror->spec.nlists * 4 +
					  batch.capacity * (int64_t) sizeof(GvHit) +
					  batch.tests * (int64_t) sizeof(GvCardTest)) +
		batch.values * (int64_t) sizeof(uint64_t);
}

/* The shape of a batch of the first of n searches, as many as fit at once. */
static void
take_searches(const GvMirror *mirror, const GvSearch *searches, int32_t n,
			  int64_t most_work, GvBatch *batch)
{
	memset(batch, 0, sizeof(*batch));
	while (batch->n < n)
	{
		const GvSearch *next = &searches[batch->n];
		int32_t		probes = next->probes < mirror->spec.nlists ?
			next->probes : mirror->spec.nlists;
		GvBatch		more = *batch;
		int32_t		nvalues;
		int32_t		ntests = count_tests(next, &nvalues);

		more.n++;
		more.values += nvalues;
		if (more.tests < ntests)
			more.tests = ntests;
		if (more.probes < probes)
			more.probes = probes;
		if (more.capacity < next->capacity)
			more.capacity = next->capacity;
		more.copies = most_copies(mirror, more.probes);
		if (batch->n > 0 && rounded_bytes(mirror, more) > most_work)
			break;
		*batch = more;
	}
}

/* Queries of n searches, and what they want, to where the card looks. */
static void
put_queries(const GvCardModel *card, const GvBatch *batch,
			const GvSearch *searches, int32_t n)
{
	float	   *queries = (float *) batch->in_queries;
	GvWanted   *wanted = (GvWanted *) batch->in_wanted;

	memset(wanted + n, 0, (batch->n - n) * sizeof(GvWanted));
	for (int32_t i = 0; i < n; i++)
	{
		memcpy(queries + (size_t) i * card->dims, searches[i].query,
			   card->dims * sizeof(float));
		wanted[i].probes = searches[i].probes;
		wanted[i].capacity = searches[i].capacity;
		wanted[i].length = card->refine_slots == 0 ||
			card->metric != GV_IP ? 0 :
			sqrt(-gv_distance_ip(searches[i].query, searches[i].query,
								 card->dims));
	}
}

/*
 * Memory for what is found of n searches, with room for those that a small
 * part is rounded up by; the same for all small batches.
 */
static size_t
found_bytes(int32_t n)
{
	size_t		bytes = 0;

	(void) gv_carve(&bytes, ((n > MOST_REPLAYED ? n : MOST_REPLAYED) +
							 MOST_REPLAYED) * sizeof(GvFound));
	return bytes;
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

/* The shape of the next part of a batch. */
static int32_t
next_part(const GvSearcher *searcher, const GvMirror *mirror,
		  const GvSearch *searches, int32_t n, GvBatch *batch, bool *small)
{
	int32_t		taken;

	take_searches(mirror, searches, n, searcher->most_work, batch);
	taken = batch->n;
	*small = is_small(batch);
	if (*small)
		round_batch(mirror, batch);
	return taken;
}

/*
 * Room for what a lane's steps hand each other.  Steps read some of it before
 * they know how much of it there is: where nothing was written are zeros.
 */
static GvStatus
grow_work(GvSearcher *lane, size_t bytes)
{
	if (lane->d_work.bytes >= bytes)
		return GV_OK;
	gv_gpu_replays_drop(lane);
	GV_TRY(gv_buffer_need(&lane->d_work, bytes));
	return gv_cuda_status(cudaMemsetAsync(lane->d_work.memory, 0,
										  lane->d_work.bytes, lane->stream));
}

/* Memory for all parts of n searches. */
static GvStatus
prepare(GvSearcher *searcher, const GvMirror *mirror,
		const GvSearch *searches, int32_t n)
{
	int32_t		most = part_of(n);
	size_t		in_bytes = 0;
	size_t		out_bytes = found_bytes(n);
	size_t		most_bytes = 0;
	int			nparts = 0;

	for (int32_t done = 0; done < n; nparts++)
	{
		size_t		work_bytes = 0;
		GvBatch		batch;
		bool		small;

		done += next_part(searcher, mirror, searches + done,
						  n - done < most ? n - done : most, &batch, &small);
		place_batch(&mirror->card, searcher, searcher, &in_bytes, &out_bytes,
					&work_bytes, &batch);
		if (most_bytes < work_bytes)
			most_bytes = work_bytes;
	}
	/* graphs have the addresses of what grows */
	if (searcher->in.bytes < in_bytes || searcher->out.bytes < out_bytes)
	{
		gv_gpu_replays_drop(searcher);
		gv_gpu_replays_drop(searcher->beside);
	}
	GV_TRY(gv_buffer_need(&searcher->in, in_bytes));
	GV_TRY(gv_buffer_need(&searcher->out, out_bytes));
	if (nparts > 1)
		GV_TRY(grow_work(searcher->beside, most_bytes));
	return grow_work(searcher, most_bytes);
}

/* Bytes from the start of an array to the end of another behind it. */
static size_t
span(const void *first, const void *last, size_t last_bytes)
{
	return (const char *) last - (const char *) first + last_bytes;
}

/* A part whose queries and answers are copied. */
static GvStatus
start_long(const GvCardModel *card, const GvBatch *batch, GvSearcher *lane)
{
	size_t		nhits = (size_t) batch->n * batch->capacity;
	GvBatch		copied = *batch;

	GV_CUDA_TRY(cudaMemcpyAsync(batch->d_queries, batch->in_queries,
								span(batch->in_queries, batch->in_wanted,
									 batch->n * sizeof(GvWanted)),
								cudaMemcpyHostToDevice, lane->stream));
	copied.in_queries = batch->d_queries;
	copied.in_wanted = batch->d_wanted;
	copied.out_probed = batch->d_probed;
	copied.out_hits = batch->d_hits;
	copied.out_found = batch->d_found;
	if (batch->out_bounds != NULL)
		copied.out_bounds = batch->d_bounds;
	GV_TRY(gv_gpu_steps(card, &copied, lane));
	GV_CUDA_TRY(cudaMemcpyAsync(batch->out_probed, batch->d_probed,
								batch->out_bounds != NULL ?
								span(batch->out_probed, batch->out_bounds,
									 nhits * sizeof(GvBound)) :
								span(batch->out_probed, batch->out_hits,
									 nhits * sizeof(GvHit)),
								cudaMemcpyDeviceToHost, lane->stream));
	return gv_cuda_status(cudaMemcpyAsync(batch->out_found, batch->d_found,
										  batch->n * sizeof(GvFound),
										  cudaMemcpyDeviceToHost,
										  lane->stream));
}

/* Start all parts of n searches. */
static GvStatus
start(GvSearcher *searcher, const GvMirror *mirror, GvSearch *searches,
	  int32_t n)
{
	const GvCardModel *card = &mirror->card;
	GvSearcher *lane = searcher;
	int32_t		most = part_of(n);
	size_t		in_bytes = 0;
	size_t		out_bytes = found_bytes(n);

	searcher->both = false;
	for (int32_t done = 0; done < n;)
	{
		size_t		work_bytes = 0;
		GvBatch		batch;
		bool		small;
		int32_t		taken = next_part(searcher, mirror, searches + done,
									  n - done < most ? n - done : most,
									  &batch, &small);

		searcher->both |= lane != searcher;
		/* where two lanes fill the card, steps that wait are in the way */
		batch.overlap = searcher->overlap && most >= n;
		place_batch(card, searcher, lane, &in_bytes, &out_bytes, &work_bytes,
					&batch);
		batch.out_found = (GvFound *) searcher->out.memory + done;
		put_queries(card, &batch, searches + done, taken);
		if (batch.tests > 0)
			gv_gpu_put_conditions(&batch, searches + done, taken);
		if (small)
			GV_TRY(gv_gpu_replay(card, &batch, lane));
		else
			GV_TRY(start_long(card, &batch, lane));
		place_answers(&batch, searches + done, taken);
		done += taken;
		lane = lane == searcher ? searcher->beside : searcher;
	}
	return GV_OK;
}

/* Wait for the lanes that have work. */
static GvStatus
wait_lanes(GvSearcher *searcher)
{
	GvStatus	status = gv_cuda_status(cudaStreamSynchronize(searcher->stream));

	if (searcher->both)
		GV_CUDA_TRY(cudaStreamSynchronize(searcher->beside->stream));
	return status;
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

/* See gv_mirror_begin. */
GvStatus
gv_gpu_begin(GvSearcher *searcher, GvMirror *mirror, GvSearch *searches,
			 int32_t n)
{
	GvStatus	status;

	if (!check_starts(mirror) || mirror->spec.device != searcher->device)
		return GV_INVALID;
	for (int32_t i = 0; i < n; i++)
		if ((searches[i].bounded && mirror->card.refine_slots == 0) ||
			(searches[i].condition != NULL &&
			 !gv_same_form(&searches[i].condition->form, &mirror->spec.keys)))
			return GV_INVALID;
	GV_TRY(gv_choose_device(searcher->device));
	GV_TRY(prepare(searcher, mirror, searches, n));
	if (searcher->version != mirror->version)
	{
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->stream, mirror->changed, 0));
		GV_CUDA_TRY(cudaStreamWaitEvent(searcher->beside->stream,
										mirror->changed, 0));
	}
	status = start(searcher, mirror, searches, n);
	if (status != GV_OK)
	{
		/* what has begun uses the searcher's memory */
		(void) wait_lanes(searcher);
		return status;
	}
	searcher->version = mirror->version;
	searcher->searches = searches;
	searcher->n = n;
	return GV_OK;
}

/* Has a stream done its work?  One that has failed is done, too. */
static bool
is_done(cudaStream_t stream)
{
	if (cudaStreamQuery(stream) != cudaErrorNotReady)
		return true;
	(void) cudaGetLastError();	/* or the next launch reports it */
	return false;
}

/* See gv_mirror_done; what failed finish will report. */
bool
gv_gpu_done(GvSearcher *searcher)
{
	return is_done(searcher->stream) &&
		(!searcher->both || is_done(searcher->beside->stream));
}

/* See gv_mirror_finish. */
GvStatus
gv_gpu_finish(GvSearcher *searcher)
{
	const GvFound *found = (const GvFound *) searcher->out.memory;

	GV_TRY(wait_lanes(searcher));
	for (int32_t i = 0; i < searcher->n; i++)
	{
		GvSearch   *search = &searcher->searches[i];

		search->nprobed = found[i].nprobed;
		search->nhits = found[i].nhits;
		search->copies = found[i].copies;
	}
	searcher->n = 0;
	return GV_OK;
}
