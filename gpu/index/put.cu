/*
 * put.cu
 *		Queries into the memory that the device reads, by several threads where
 *		they are thousands.
 *
 * One core writes some 10 GB/s, and 10,000 queries are megabytes: that takes
 * as long as half of the device's work.  So several threads, which exist only
 * meanwhile, upload parts that are gathered, task by task in the order of the
 * parts.  The thread that launches the steps of a part helps until the whole
 * part is there; while it launches them, the others go on with the next parts.
 */
#include <math.h>
#include <sched.h>
#include <string.h>

#include "gpu/index/gv_index.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define STREAMED		16		/* numbers, of a line of the cache */
#define STREAMED_AHEAD	256
#define STREAMED_FROM	65		/* queries of a part that is copied */

#define TASK_QUERIES			64		/* queries that a thread takes at a
										 * time */

/*
 * Numbers of a query to where the device looks, past the caches: the processor
 * does not look there again, and need not read what it overwrites.
 */
static void
stream_out(float *to, const float *from, size_t n)
{
	size_t		i = 0;

#ifdef __SSE2__
	if ((uintptr_t) to % sizeof(__m128i) == 0)
		for (; i + STREAMED <= n; i += STREAMED)
		{
			_mm_prefetch((const char *) (from + i + STREAMED_AHEAD), _MM_HINT_T0);
			for (size_t j = i; j < i + STREAMED; j += 4)
				_mm_stream_si128((__m128i *) (to + j),
								 _mm_loadu_si128((const __m128i *) (from + j)));
		}
#endif
	memcpy(to + i, from + i, (n - i) * sizeof(float));
}

/* Some of a part's searches, from number `first` on; of n in all. */
static void
upload_some(const GvDeviceModel *model, const GvBatch *batch,
		 const GvSearch *searches, int32_t first, int32_t last, int32_t n)
{
	float	   *queries = (float *) batch->in_queries;
	GvWanted   *wanted = (GvWanted *) batch->in_wanted;

	for (int32_t i = first; i < last; i++)
	{
		float	   *to = queries + (size_t) i * model->dims;

		/* few are read at once, from the processor's cache */
		if (n >= STREAMED_FROM)
			stream_out(to, searches[i].query, model->dims);
		else
			memcpy(to, searches[i].query, model->dims * sizeof(float));
		wanted[i].probes = searches[i].probes;
		wanted[i].capacity = searches[i].capacity;
		wanted[i].length = model->refine_slots == 0 ||
			model->metric != GV_IP ? 0 :
			sqrt(-gv_distance_ip(searches[i].query, searches[i].query,
								 model->dims));
	}
#ifdef __SSE2__
	/* before anybody is told that they are there */
	if (n >= STREAMED_FROM)
		_mm_sfence();
#endif
}

/* Queries of n searches, and what they want, to where the device looks. */
void
gv_gpu_upload_queries(const GvDeviceModel *model, const GvBatch *batch,
				   const GvSearch *searches, int32_t n)
{
	memset((GvWanted *) batch->in_wanted + n, 0,
		   (batch->n - n) * sizeof(GvWanted));
	upload_some(model, batch, searches, 0, n, n);
}

static int32_t
count_tasks(int32_t n)
{
	return (n + TASK_QUERIES - 1) / TASK_QUERIES;
}

/* Put the next task there that nobody has taken; false: there is none. */
static bool
upload_task(GvUpload *upload)
{
	const GvGathered *gathered = upload->gathered;
	const GvSearch *searches = upload->searches;
	int32_t		task = __atomic_fetch_add(&upload->next, 1,
											 __ATOMIC_RELAXED);
	int			part = 0;
	int32_t		n;
	int32_t		first;

	while (part < gathered->nparts &&
		   task >= count_tasks(gathered->taken[part]))
	{
		task -= count_tasks(gathered->taken[part]);
		searches += gathered->taken[part++];
	}
	if (part >= gathered->nparts)
		return false;
	n = gathered->taken[part];
	first = task * TASK_QUERIES;
	upload_some(upload->model, &gathered->parts[part], searches, first,
			 n - first < TASK_QUERIES ? n : first + TASK_QUERIES, n);
	(void) __atomic_fetch_sub(&upload->left[part], 1, __ATOMIC_RELEASE);
	return true;
}

static void *
help(void *arg)
{
	while (upload_task((GvUpload *) arg))
		;
	return NULL;
}

/* See gv_index.h. */
void
gv_gpu_upload_begin(GvUpload *upload, const GvDeviceModel *model,
				 const GvGathered *gathered, const GvSearch *searches)
{
	int32_t		ntasks = 0;

	upload->model = model;
	upload->gathered = gathered;
	upload->searches = searches;
	upload->next = 0;
	for (int i = 0; i < gathered->nparts; i++)
		ntasks += upload->left[i] = count_tasks(gathered->taken[i]);
	gv_helpers_begin(&upload->helpers, gv_parallel_helpers(ntasks), help,
					 upload);
}

/* See gv_index.h. */
void
gv_gpu_upload_part(GvUpload *upload, int part)
{
	while (__atomic_load_n(&upload->left[part], __ATOMIC_ACQUIRE) > 0)
		if (!upload_task(upload))
			sched_yield();
}

/* See gv_index.h. */
void
gv_gpu_upload_end(GvUpload *upload)
{
	gv_helpers_end(&upload->helpers);
}
