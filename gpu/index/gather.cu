/*
 * gather.cu
 *		Long parts of a batch: started one by one, or some together, whose
 *		lists are scanned for all of their queries (gv_listscan.h).
 *
 * Of thousands of queries each list is met by many, and its codes need be read
 * and looked up once for all of them.  For that the lists of all must be
 * chosen first; so parts come as always, one after the other, up to there,
 * which keeps scores of lists in L2 and the host a part ahead of the device,
 * and wait for the others.  Half of a batch is one stream's, so one half is
 * scanned while the host and the device are at the choice of the other's
 * lists.
 */
#include <string.h>

#include "gpu/index/gv_index.h"

/*
 * Queries that must meet a list, on average, so that its look-ups are worth
 * it.
 */
#define LEAST_PAIRS		8
#define LEAST_QUERIES	256		/* of a batch, that it is worth to look */
#define PART_QUERIES	1280	/* of a part that is gathered: fewer launches,
								 * and more to do for each, than by parts of
								 * 512 */

static GV_TUNABLE int32_t gather_by = -1;	/* see gv_gpu_gather_by */

#ifdef GV_TEST_BUILD
/* See gv_index.h. */
void
gv_gpu_gather_by(int32_t n)
{
	gather_by = n;
}
#endif

/*
 * Returns whether lists may be scanned for all queries that probe them, as far
 * as the first search of a batch of `all` tells.
 */
static bool
may_suit(const GvDeviceModel *model, const GvSearch *first, int32_t all)
{
	if (gather_by == 0 || first->condition != NULL || first->rank > 0 ||
		model->shape.chunks > GV_ROUGH_CHUNKS ||
		model->dims > GV_ROUGH_DIMS * model->m)
		return false;
	return gather_by > 0 ||
		(all >= LEAST_QUERIES && (int64_t) all * first->probes >=
		 (int64_t) LEAST_PAIRS * model->nlists);
}

/* And does a part suit? */
static bool
suits(const GvBatch *batch, bool small)
{
	return !small && batch->tests == 0 && batch->postings > 0 &&
		gv_gpu_can_sift(batch);
}

/*
 * Places arrays of n queries with npairs pairs of a query and a list, behind a
 * stream's other memory.
 */
static void
place_lists(const GvDeviceModel *model, char *work, size_t *bytes, int64_t n,
			int64_t npairs, GvListScan *lists)
{
	int64_t		nsubs;

	lists->steps = (model->m + GV_ROUGH_SUBS - 1) / GV_ROUGH_SUBS;
	lists->most_groups =
		(int32_t) (npairs / GV_PAIRS_TOGETHER + model->nlists);
	nsubs = lists->steps * GV_ROUGH_SUBS;
#define PLACE(array, count) \
	lists->array = (decltype(lists->array)) \
		((uintptr_t) work + gv_carve(bytes, (count) * sizeof(*lists->array)))
	PLACE(d_words, nsubs * GV_CODEWORDS);
	PLACE(d_units, nsubs);
	PLACE(d_queries, n * nsubs);
	PLACE(d_aims, n);
	PLACE(d_counts, n);
	PLACE(d_whole, n);
	PLACE(d_near, n * GV_NEAR_CAPACITY);
	PLACE(d_starts, model->nlists);
	PLACE(d_pairs, npairs);
	PLACE(d_groups, lists->most_groups);
	PLACE(d_totals, 1);
#undef PLACE
}

/* See gv_index.h. */
void
gv_gpu_place_gathered(const GvDeviceModel *model, GvSearcher *searcher,
					  GvSearcher *stream, GvPlaces *places,
						GvGathered *gathered)
{
	int64_t		npairs = 0;

	places->own_bytes = 0;
	for (int i = 0; i < gathered->nparts; i++)
	{
		gv_gpu_place_part(model, searcher, stream, places,
						  &gathered->parts[i]);
		npairs += (int64_t) gathered->parts[i].n * gathered->parts[i].probes;
	}
	if (gathered->by_lists)
		place_lists(model, (char *) stream->d_work.memory + places->own_from,
					&places->own_bytes, gathered->n, npairs,
					&gathered->lists);
}

/* How much memory is that? */
static void
size_gathered(const GvDeviceModel *model, const GvSearcher *searcher,
			  GvGathered *gathered)
{
	GvPlaces	places = {};

	/* of neither anything is changed */
	gv_gpu_place_gathered(model, (GvSearcher *) searcher,
						  (GvSearcher *) searcher, &places, gathered);
	gathered->own_from = places.common_bytes;
	gathered->work_bytes = places.common_bytes + places.own_bytes;
}

/*
 * Takes parts of the first of n searches, of a batch of `all`, whose lists are
 * scanned for all of them together.  False: that does not suit.
 */
static bool
take_parts(const GvSearcher *searcher, const GvMirror *mirror,
			 const GvSearch *searches, int32_t n, int32_t all,
			 GvGathered *gathered)
{
	const GvDeviceModel *model = &mirror->model;
	int32_t		most = gather_by > 0 ? gather_by : PART_QUERIES;
	int32_t		nparts = (all + most - 1) / most;
	int64_t		npairs = 0;
	int32_t		together;
	bool		small;

	/* one turn for each lane, at least, and about the same of each */
	for (int32_t turns = 2;; turns++)
		if ((together = (nparts + turns - 1) / turns) <= GV_MOST_GATHERED)
			break;
	most = (all + nparts - 1) / nparts;
	while (gathered->nparts < together && gathered->n < n)
	{
		int			i = gathered->nparts;
		int32_t		left = n - gathered->n;

		gathered->taken[i] =
			gv_gpu_next_part(searcher, mirror, searches + gathered->n,
							 left < most ? left : most, &gathered->parts[i],
							 &small);
		if (!suits(&gathered->parts[i], small))
			break;
		gathered->parts[i].by_lists = true;
		gathered->n += gathered->taken[i];
		gathered->nparts++;
		size_gathered(model, searcher, gathered);
		if (gathered->work_bytes > (size_t) searcher->most_work)
		{
			gathered->n -= gathered->taken[i];
			gathered->nparts--;
			break;
		}
		npairs += (int64_t) gathered->parts[i].n *
			gathered->parts[i].probes;
	}
	return gathered->nparts > 0 &&
		(gather_by > 0 || npairs >= (int64_t) LEAST_PAIRS * model->nlists);
}

/* See gv_index.h. */
void
gv_gpu_gather_parts(const GvSearcher *searcher, const GvMirror *mirror,
			  const GvSearch *searches, int32_t n, int32_t all,
			  GvGathered *gathered)
{
	int32_t		most = gv_gpu_part_of(all);

	gathered->nparts = 0;
	gathered->n = 0;
	gathered->small = false;
	gathered->by_lists = true;
	if (!may_suit(&mirror->model, searches, all) ||
		!take_parts(searcher, mirror, searches, n, all, gathered))
	{
		gathered->by_lists = false;
		gathered->nparts = 1;
		gathered->taken[0] = gathered->n =
			gv_gpu_next_part(searcher, mirror, searches, n < most ? n : most,
							 &gathered->parts[0], &gathered->small);
	}
	size_gathered(&mirror->model, searcher, gathered);
}

/* Bytes from the start of an array to the end of another behind it. */
static size_t
span(const void *first, const void *last, size_t last_bytes)
{
	return (const char *) last - (const char *) first + last_bytes;
}

/* A part whose queries and answers are copied, as kernels see it. */
static GvBatch
copied_part(const GvBatch *batch)
{
	GvBatch		copied = *batch;

	copied.in_queries = batch->d_queries;
	copied.in_wanted = batch->d_wanted;
	copied.out_probed = batch->d_probed;
	copied.out_hits = batch->d_hits;
	copied.out_found = batch->d_found;
	if (batch->out_bounds != NULL)
		copied.out_bounds = batch->d_bounds;
	return copied;
}

static GvStatus
copy_in(const GvBatch *batch, cudaStream_t stream)
{
	return gv_cuda_status(cudaMemcpyAsync(batch->d_queries, batch->in_queries,
										  span(batch->in_queries,
											   batch->in_wanted, batch->n *
											   sizeof(GvWanted)),
										  cudaMemcpyHostToDevice, stream));
}

static GvStatus
copy_out(const GvBatch *batch, cudaStream_t stream)
{
	size_t		nhits = (size_t) batch->n * batch->capacity;

	GV_CUDA_TRY(cudaMemcpyAsync(batch->out_probed, batch->d_probed,
								batch->out_bounds != NULL ?
								span(batch->out_probed, batch->out_bounds,
									 nhits * sizeof(GvBound)) :
								span(batch->out_probed, batch->out_hits,
									 nhits * sizeof(GvHit)),
								cudaMemcpyDeviceToHost, stream));
	return gv_cuda_status(cudaMemcpyAsync(batch->out_found, batch->d_found,
										  batch->n * sizeof(GvFound),
										  cudaMemcpyDeviceToHost, stream));
}

/* See gv_index.h. */
GvStatus
gv_gpu_start_long(const GvDeviceModel *model, const GvBatch *batch,
				  GvSearcher *searcher)
{
	GvBatch		copied = copied_part(batch);

	GV_TRY(copy_in(batch, searcher->stream));
	GV_TRY(gv_gpu_steps(model, &copied, searcher));
	return copy_out(batch, searcher->stream);
}

/* A part's share of the arrays, from its first query on. */
static GvListScan
lists_from(const GvListScan *all, int32_t first)
{
	GvListScan	mine = *all;

	mine.first = first;
	mine.d_queries += (int64_t) first * GV_ROUGH_SUBS * all->steps;
	mine.d_aims += first;
	mine.d_counts += first;
	mine.d_whole += first;
	mine.d_near += (int64_t) first * GV_NEAR_CAPACITY;
	return mine;
}

/* Launch all steps of parts that are gathered, as their queries come. */
static GvStatus
launch_gathered(const GvDeviceModel *model, const GvGathered *gathered,
				GvUpload *upload, GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int32_t		first = 0;

	/* 1. parts, up to whom each meets */
	GV_TRY(gv_gpu_rough_words(model, &gathered->lists, stream));
	for (int i = 0; i < gathered->nparts; i++)
	{
		const GvBatch *part = &gathered->parts[i];
		GvBatch		copied = copied_part(part);
		GvListScan	mine = lists_from(&gathered->lists, first);

		gv_gpu_upload_part(upload, i);
		GV_TRY(copy_in(part, stream));
		GV_TRY(gv_gpu_first_steps(model, &copied, searcher));
		GV_TRY(gv_gpu_aim(model, &copied, &mine, stream));
		first += part->n;
	}

	/* 2. all of them */
	GV_TRY(gv_gpu_order_pairs(model, &gathered->lists, stream));
	first = 0;
	for (int i = 0; i < gathered->nparts; i++)
	{
		GvListScan	mine = lists_from(&gathered->lists, first);

		GV_TRY(gv_gpu_enter(&gathered->parts[i], &mine, stream));
		first += gathered->parts[i].n;
	}
	GV_TRY(gv_gpu_list_scan(model, &gathered->lists, stream));

	/* 3. parts, as if each had been scanned */
	first = 0;
	for (int i = 0; i < gathered->nparts; i++)
	{
		const GvBatch *part = &gathered->parts[i];
		GvBatch		copied = copied_part(part);
		GvListScan	mine = lists_from(&gathered->lists, first);

		copied.d_whole = mine.d_whole;
		GV_TRY(gv_gpu_rescore(model, &copied, &mine, stream));
		GV_TRY(gv_gpu_scan(model, &copied, searcher));
		GV_TRY(gv_gpu_last_steps(model, &copied, searcher));
		GV_TRY(copy_out(part, stream));
		first += part->n;
	}
	return GV_OK;
}

/* See gv_index.h. */
GvStatus
gv_gpu_start_gathered(const GvDeviceModel *model, const GvGathered *gathered,
					  const GvSearch *searches, GvSearcher *searcher)
{
	GvUpload	upload;
	GvStatus	status;

	gv_gpu_upload_begin(&upload, model, gathered, searches);
	status = launch_gathered(model, gathered, &upload, searcher);
	gv_gpu_upload_end(&upload);
	return status;
}
