/*
 * replay.cu
 *		The steps of a batch: launched one by one, or recorded once and made
 *		again.
 *
 * A small batch takes less time than its launches, so they are recorded as a
 * graph, which is one launch.  A graph holds its kernels' arguments; it is
 * used again only for a batch whose arguments are the same to the last byte,
 * so it never has a stale address.  The queries and their parameters, which
 * differ from call to call, lie in memory, at the same place each time, and
 * the sizes of a mirror's lists are in the device's memory, too.
 *
 * A stream has GV_REPLAYS graphs at most, each some kilobytes of the driver's
 * memory on the device and 100 us of the host to make, as much as ten batches
 * gain by theirs.
 */
#include <string.h>

#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/gv_index.h"

/*
 * Select, and what follows.  Where the sample is asked for, a hit's score is
 * wanted on the device after it: so where no bounds follow, which give the
 * answers to the host, the last step does, and select leaves them on the
 * device.
 */
GvStatus
gv_gpu_last_steps(const GvDeviceModel *model, const GvBatch *batch,
				  GvSearcher *searcher)
{
	GvBatch		kept = *batch;

	if (batch->sampled && batch->out_bounds == NULL)
	{
		kept.out_probed = batch->d_probed;
		kept.out_hits = batch->d_hits;
		kept.out_found = batch->d_found;
	}
	GV_TRY(gv_gpu_select(model, &kept, searcher));
	if (model->refine_slots > 0)
		return gv_gpu_bound(model, batch, searcher->stream);
	if (batch->tests > 0)
		return gv_gpu_download_matches(model, batch, searcher->stream);
	return GV_OK;
}

/* From queries to their lists. */
GvStatus
gv_gpu_first_steps(const GvDeviceModel *model, const GvBatch *batch,
				   GvSearcher *searcher)
{
	GV_TRY(gv_gpu_table(model, batch, searcher->stream));
	if (batch->approx.d_half_queries != NULL)
	{
		GV_TRY(gv_gpu_list_scores(model, batch, searcher));
		return gv_gpu_choose(model, batch, searcher->stream);
	}
	GV_TRY(gv_gpu_coarse(model, batch, searcher->stream));
	return gv_gpu_probes(model, batch, searcher);
}

/* Launch all steps. */
GvStatus
gv_gpu_steps(const GvDeviceModel *model, const GvBatch *batch,
			 GvSearcher *searcher)
{
	GV_TRY(gv_gpu_first_steps(model, batch, searcher));
	GV_TRY(gv_gpu_scan(model, batch, searcher));
	return gv_gpu_last_steps(model, batch, searcher);
}

static void
forget(GvReplay *replay)
{
	if (replay->graph != NULL)
		(void) cudaGraphExecDestroy(replay->graph);
	replay->graph = NULL;
	replay->used = 0;
}

/* Record the steps of a batch, instead of launching them. */
static GvStatus
record(const GvDeviceModel *model, const GvBatch *batch, GvSearcher *searcher,
	   GvReplay *replay)
{
	cudaGraph_t graph = NULL;
	GvStatus	status;
	GvStatus	ended;

	GV_CUDA_TRY(cudaStreamBeginCapture(searcher->stream,
									   cudaStreamCaptureModeThreadLocal));
	status = gv_gpu_steps(model, batch, searcher);
	ended = gv_cuda_status(cudaStreamEndCapture(searcher->stream, &graph));
	if (status == GV_OK)
		status = ended;
	if (status == GV_OK)
		status = gv_cuda_status(cudaGraphInstantiate(&replay->graph, graph,
													 0));
	if (graph != NULL)
		(void) cudaGraphDestroy(graph);
	if (status != GV_OK)
		return status;
	memcpy(&replay->model, model, sizeof(*model));
	memcpy(&replay->batch, batch, sizeof(*batch));
	return GV_OK;
}

/*
 * The graph of just these arguments, or the place for it: the one that was
 * used longest ago, in the worst case.
 */
static GvReplay *
find_replay(const GvDeviceModel *model, const GvBatch *batch,
			GvSearcher *searcher, bool *found)
{
	GvReplay   *oldest = &searcher->replays[0];

	*found = true;
	for (int i = 0; i < GV_REPLAYS; i++)
	{
		GvReplay   *kept = &searcher->replays[i];

		if (kept->graph != NULL &&
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
GvStatus
gv_gpu_replay(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	bool		found;
	GvReplay   *replay = find_replay(model, batch, searcher, &found);
	uint64_t	now = ++searcher->clock;

	if (!found && replay->graph != NULL &&
		now - replay->used <= GV_REPLAY_KEPT)
	{
		GV_TEST_ONLY(searcher->counts.launched++;)
		return gv_gpu_steps(model, batch, searcher);
	}
	if (!found)
	{
		GV_TEST_ONLY(searcher->counts.again += replay->graph != NULL;)
		forget(replay);
		GV_TRY(record(model, batch, searcher, replay));
		GV_TEST_ONLY(searcher->counts.made++;)
	}
	GV_TEST_ONLY(searcher->counts.replayed += found;)
	replay->used = now;
	return gv_cuda_status(cudaGraphLaunch(replay->graph, searcher->stream));
}

#ifdef GV_TEST_BUILD

/* See gv_index.h. */
void
gv_gpu_replay_counts(const GvSearcher *searcher, GvReplayCounts *counts)
{
	*counts = searcher->counts;
	if (searcher->beside != NULL)
	{
		const GvReplayCounts *more = &searcher->beside->counts;

		counts->replayed += more->replayed;
		counts->made += more->made;
		counts->again += more->again;
		counts->launched += more->launched;
	}
}

#endif

/* None is of use any more, or under way. */
void
gv_gpu_replays_drop(GvSearcher *searcher)
{
	for (int i = 0; i < GV_REPLAYS; i++)
		forget(&searcher->replays[i]);
}
