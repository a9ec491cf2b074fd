/*
 * given.cu
 *		Bounds of hits that are returned: the last step of a batch alone.
 *
 * Records of the hits of a search may be on other devices than the lists they
 * were found in.  Queries and hits are copied to the device and bounds back,
 * some searches at a time, one after another on the searcher's first stream.
 */
#include <string.h>

#include "gpu/index/gv_index.h"

#define MOST_QUERIES	4096	/* of a launch */

/* Some searches, and how many bytes go to the device and come back. */
struct Given
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
place_given(const GvSearcher *searcher, const GvDeviceModel *model,
			const GvSearch *searches, int32_t n, Given *given)
{
	GvBatch    *batch = &given->batch;
	char	   *work = (char *) searcher->d_work.memory;
	size_t		bytes;

	memset(batch, 0, sizeof(*batch));
	batch->capacity = 1;
	do
	{
		int32_t		capacity = batch->capacity;

		if (capacity < searches[batch->n].nhits)
			capacity = searches[batch->n].nhits;
		bytes = (batch->n + 1) * (model->dims * sizeof(float) +
								  sizeof(GvWanted) + sizeof(GvFound) +
								  capacity * (sizeof(GvHit) +
											  sizeof(GvBound)));
		if (batch->n > 0 && (int64_t) bytes > searcher->most_work)
			break;
		batch->capacity = capacity;
		batch->n++;
	} while (batch->n < n && batch->n < MOST_QUERIES);

	given->in_bytes = 0;
	gv_place(&batch->d_queries, work, &given->in_bytes,
			 (int64_t) batch->n * model->dims);
	gv_place(&batch->d_wanted, work, &given->in_bytes, batch->n);
	gv_place(&batch->d_found, work, &given->in_bytes, batch->n);
	gv_place(&batch->d_hits, work, &given->in_bytes,
			 (int64_t) batch->n * batch->capacity);
	bytes = given->in_bytes;
	gv_place(&batch->d_bounds, work, &bytes,
			 (int64_t) batch->n * batch->capacity);
	given->out_bytes = bytes - given->in_bytes;
	batch->out_probed = batch->d_probed;
	batch->out_hits = batch->d_hits;
	batch->out_found = batch->d_found;
	batch->out_bounds = batch->d_bounds;
}

/* Where in the host's memory an array goes to the device from. */
template <typename T>
static T *
source(char *in, const Given *given, T *d_array)
{
	return (T *) (in + ((char *) d_array - (char *) given->batch.d_queries));
}

/* Searches and their hits to the host's memory at `in`. */
static void
upload_given(const GvDeviceModel *model, const Given *given,
		  const GvSearch *searches, char *in)
{
	GvBatch		batch = given->batch;
	GvFound    *found = source(in, given, batch.d_found);
	uint4	   *hits = source(in, given, batch.d_hits);

	batch.in_queries = source(in, given, batch.d_queries);
	batch.in_wanted = source(in, given, batch.d_wanted);
	gv_gpu_upload_queries(model, &batch, searches, batch.n);
	memset(found, 0, batch.n * sizeof(GvFound));
	for (int32_t i = 0; i < batch.n; i++)
	{
		found[i].nhits = searches[i].nhits;
		if (searches[i].nhits > 0)
			memcpy(hits + (size_t) i * batch.capacity, searches[i].hits,
				   searches[i].nhits * sizeof(GvHit));
	}
}

/* See gv_mirror_begin, of searches whose hits are returned. */
GvStatus
gv_gpu_begin_given(GvSearcher *searcher, const GvDeviceModel *model,
				   GvSearch *searches, int32_t n)
{
	size_t		in_bytes = 0;
	size_t		out_bytes = 0;
	size_t		most_bytes = 0;
	Given		given;

	for (int32_t done = 0; done < n; done += given.batch.n)
	{
		place_given(searcher, model, searches + done, n - done, &given);
		in_bytes += given.in_bytes;
		out_bytes += given.out_bytes;
		if (most_bytes < given.in_bytes + given.out_bytes)
			most_bytes = given.in_bytes + given.out_bytes;
	}
	GV_TRY(gv_gpu_need(searcher, in_bytes, out_bytes));
	GV_TRY(gv_gpu_grow_work(searcher, most_bytes));
	searcher->both = false;
	searcher->completion.n = 0;
	in_bytes = 0;
	out_bytes = 0;
	for (int32_t done = 0; done < n; done += given.batch.n)
	{
		char	   *in = (char *) searcher->in.memory + in_bytes;
		GvBound    *out = (GvBound *) ((char *) searcher->out.memory +
									   out_bytes);

		place_given(searcher, model, searches + done, n - done, &given);
		upload_given(model, &given, searches + done, in);
		GV_CUDA_TRY(cudaMemcpyAsync(given.batch.d_queries, in, given.in_bytes,
									cudaMemcpyHostToDevice,
									searcher->stream));
		GV_TRY(gv_gpu_bound(model, &given.batch, searcher->stream));
		GV_CUDA_TRY(cudaMemcpyAsync(out, given.batch.d_bounds,
									given.out_bytes, cudaMemcpyDeviceToHost,
									searcher->stream));
		for (int32_t i = 0; i < given.batch.n; i++)
			searches[done + i].bounds = out +
				(size_t) i * given.batch.capacity;
		in_bytes += given.in_bytes;
		out_bytes += given.out_bytes;
	}
	return GV_OK;
}
