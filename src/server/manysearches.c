/*
 * manysearches.c
 *		A thread that makes many searches of one message at once.
 *
 * They are no part of the batches of sessions (turns.c): these would wait for
 * them.  A device runs both side by side.  Its searchers for them are few,
 * since each may take a gigabyte, and threads share them.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <time.h>

/* How often a thread that waits for a searcher looks for more than that. */
#define LOOK_MS			100

/* The state of such a thread. */
typedef struct Bulk
{
	int32_t		device;			/* of its last searcher */
	GvSearcher *searcher;		/* while it searches */
	GvSearch	searches[GV_MAX_AT_ONCE];
} Bulk;

/* A device's searchers for them. */
typedef struct Pool
{
	int32_t		made;
	int32_t		nidle;
	GvSearcher *idle[GV_MAX_LOADERS];	/* [nidle] */
	int32_t		busy;			/* threads that have one, or wait for one */
} Pool;

static struct
{
	pthread_mutex_t lock;
	pthread_cond_t given;		/* one was given back */
	int32_t		threads;		/* such threads, at work or not */
	Pool		of[GV_MAX_DEVICES];
}			pools = {

	.lock = PTHREAD_MUTEX_INITIALIZER,
	.given = PTHREAD_COND_INITIALIZER
};

/*
 * The device to search a mirror on, which is locked: of its replicas' the one
 * with the fewest such threads, this thread's last one rather than another.
 */
static int32_t
least_busy(const Bulk *bulk, const GvMirrorEntry *entry)
{
	int32_t		best = gv_mirrors_device(entry, bulk->device);
	int32_t		i;

	for (i = 0; i < gv_ndevices(); i++)
		if (gv_mirrors_device(entry, i) == i &&
			__atomic_load_n(&pools.of[i].busy, __ATOMIC_RELAXED) <
			__atomic_load_n(&pools.of[best].busy, __ATOMIC_RELAXED))
			best = i;
	return best;
}

/* Does the request make sense?  If not, it has been refused. */
static bool
check_searches(GvConnection *connection)
{
	const GvSearchesRequest *request = gv_payload(connection);
	size_t		length = gv_message(connection)->length;

	if (request->dims >= 1 && request->dims <= GV_MAX_DIMS &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS &&
		request->unused == 0 && request->n >= 1 &&
		request->n <= gv_searches_most(request->dims, request->probes,
									   request->capacity) &&
		length == sizeof(*request) + (size_t) request->n * 4 *
		(size_t) request->dims)
		return true;
	gv_refuse(connection, GV_REFUSED_PROTOCOL, "searches out of range");
	return false;
}

/* Locked: wait for a searcher to be given back, not for long. */
static void
wait_a_while(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += LOOK_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	(void) pthread_cond_timedwait(&pools.given, &pools.lock, &until);
}

/*
 * Locked: a searcher of the pool, a new one where it has fewer than it may
 * have.  Without memory for that it is one that another thread has now.
 */
static GvStatus
pool_take(Pool *pool, int32_t device, const GvStop *stop,
		  GvSearcher **searcher)
{
	while (pool->nidle == 0)
	{
		if (pool->made < gv_mirrors_searchers_most(device))
		{
			GvStatus	status;

			pool->made++;
			pthread_mutex_unlock(&pools.lock);
			status = gv_mirrors_searcher(device, searcher);
			pthread_mutex_lock(&pools.lock);
			if (status == GV_OK)
				return GV_OK;
			pool->made--;
			if (status != GV_NO_MEMORY || pool->made == 0)
				return status;
		}
		wait_a_while();
		if (stop->requested(stop->arg))
			return GV_CANCELED;
	}
	*searcher = pool->idle[--pool->nidle];
	return GV_OK;
}

/* Get a searcher of a device.  No mirror is locked. */
static GvStatus
take_searcher(Bulk *bulk, int32_t device, const GvStop *stop)
{
	Pool	   *pool = &pools.of[device];
	GvStatus	status;

	pthread_mutex_lock(&pools.lock);
	(void) __atomic_add_fetch(&pool->busy, 1, __ATOMIC_RELAXED);
	status = pool_take(pool, device, stop, &bulk->searcher);
	if (status != GV_OK)
		(void) __atomic_sub_fetch(&pool->busy, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&pools.lock);
	bulk->device = device;
	return status;
}

static void
give_searcher(Bulk *bulk)
{
	Pool	   *pool = &pools.of[bulk->device];

	pthread_mutex_lock(&pools.lock);
	(void) __atomic_sub_fetch(&pool->busy, 1, __ATOMIC_RELAXED);
	pool->idle[pool->nidle++] = bulk->searcher;
	bulk->searcher = NULL;
	pthread_cond_broadcast(&pools.given);
	pthread_mutex_unlock(&pools.lock);
}

/*
 * A thread comes or goes; no pool keeps more searchers that are idle than
 * there are threads.
 */
static void
count_threads(int32_t more)
{
	int32_t		i;

	pthread_mutex_lock(&pools.lock);
	pools.threads += more;
	for (i = 0; i < gv_ndevices(); i++)
	{
		Pool	   *pool = &pools.of[i];

		while (pool->nidle > 0 && pool->made > pools.threads)
		{
			GvSearcher *searcher = pool->idle[--pool->nidle];

			pthread_mutex_unlock(&pools.lock);
			gv_mirrors_searcher_drop(i, searcher);
			pthread_mutex_lock(&pools.lock);
			pool->made--;
		}
	}
	pthread_mutex_unlock(&pools.lock);
}

/*
 * Lock the mirror, with a searcher of a device where it is.  For it nothing is
 * waited for under that lock, which others have who have searchers.
 */
static GvStatus
begin_batch(Bulk *bulk, GvMirrorEntry *entry, const GvStop *stop)
{
	for (;;)
	{
		int32_t		device;
		GvStatus	status;

		(void) gv_session_lock(entry, true);
		device = least_busy(bulk, entry);
		pthread_rwlock_unlock(&entry->lock);
		status = take_searcher(bulk, device, stop);
		if (status != GV_OK)
			return status;
		(void) gv_session_lock(entry, true);
		if (gv_mirrors_device(entry, device) == device)
			return GV_OK;
		pthread_rwlock_unlock(&entry->lock);
		give_searcher(bulk);
	}
}

/* Make the engine's searches of those numbered first .. first + n - 1. */
static void
prepare(Bulk *bulk, const GvMirrorEntry *entry,
		const GvSearchesRequest *request, int32_t first, int32_t n)
{
	const float *queries = (const float *) (request + 1);
	int64_t		postings = entry->nitems > 0 ? entry->nitems : 1;
	int32_t		i;

	/*
	 * no list is searched twice, and no more postings come back than there
	 * are
	 */
	for (i = 0; i < n; i++)
		bulk->searches[i] = (GvSearch)
	{
		.query = queries + (size_t) (first + i) * (size_t) request->dims,
			.probes = request->probes < entry->spec.nlists ? request->probes :
			entry->spec.nlists,
			.compare = request->compare,
			.capacity = request->capacity <= postings ? request->capacity :
			(int32_t) postings,
			.bounded = entry->spec.refine_slots > 0
	};
}

/* Put the answers of n searches at `next`; what is behind them. */
static char *
put_answers(const Bulk *bulk, const GvMirrorEntry *entry,
			const GvConnection *connection, int32_t n, uint64_t began_ns,
			char *next)
{
	const GvSearchesRequest *request = gv_payload(connection);
	bool		is_brief = request->version != 0 &&
	request->version == entry->version;
	uint64_t	ended_ns = gv_now_ns();
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		const GvSearch *found = &bulk->searches[i];
		GvSearchReply *reply = (GvSearchReply *) next;
		char	   *end = gv_session_put(entry, found, is_brief, reply);

		reply->batch = (uint32_t) n;
		reply->queued_us = (uint32_t) ((began_ns - connection->whole_ns) /
									   1000);
		reply->engine_us = (uint32_t) ((ended_ns - began_ns) / 1000);
		next += gv_answer_bytes(is_brief ? 0 : found->nprobed, found->nhits,
								found->bounded ? found->nhits : 0);
		while (end < next)
			*end++ = 0;
	}
	return next;
}

/*
 * Make all searches and put their answers at `next`, which is then behind
 * them.  A batch that cannot be searched at once is halved.  Between batches
 * loaders have their turn: while one waits for the mirror's lock the loop,
 * too, waits behind it with the next search.  Each answer tells the state of
 * the lists that it is of.
 */
static GvStatus
search_all(Bulk *bulk, GvMirrorEntry *entry, GvConnection *connection,
		   char **next)
{
	const GvSearchesRequest *request = gv_payload(connection);
	GvStop		stop = gv_connection_stop(connection);
	int32_t		at_once = gv_server.at_once;
	int32_t		first = 0;

	while (first < request->n)
	{
		int32_t		left = request->n - first;
		int32_t		n = left < at_once ? left : at_once;
		uint64_t	began_ns;
		int			watched;
		GvStatus	status;

		if (stop.requested(stop.arg))
			return GV_CANCELED;
		status = begin_batch(bulk, entry, &stop);
		if (status != GV_OK)
			return status;
		began_ns = gv_now_ns();
		prepare(bulk, entry, request, first, n);
		watched = gv_watchdog_bulk_begin(began_ns);
		status = gv_mirror_search(bulk->searcher, entry->mirror,
								  bulk->searches, n);
		gv_watchdog_bulk_end(watched);
		/* what it has found is the searcher's memory */
		if (status == GV_OK)
			*next = put_answers(bulk, entry, connection, n, began_ns, *next);
		pthread_rwlock_unlock(&entry->lock);
		give_searcher(bulk);
		if (gv_is_survivable(status) && n > 1)
		{
			at_once = n / 2;
			continue;
		}
		if (status != GV_OK)
			return status;
		gv_count(searches, n);
		gv_count(batches, 1);
		first += n;
	}
	return GV_OK;
}

/* Search an acquired mirror; how many searches have their answers. */
static int64_t
search_entry(Bulk *bulk, GvMirrorEntry *entry, GvConnection *connection)
{
	const GvSearchesRequest *request = gv_payload(connection);
	char	   *reply = gv_reply(connection, (size_t) request->n *
								 (size_t) gv_answer_bytes(request->probes,
														  request->capacity,
														  request->capacity));
	char	   *next = reply;
	GvStatus	status;

	if (reply == NULL)
		return 0;
	status = search_all(bulk, entry, connection, &next);
	if (status == GV_OK)
	{
		gv_reply_cut(connection, (size_t) (next - reply));
		return request->n;
	}
	/* in the place of an answer that is not whole */
	gv_refuse(connection, status == GV_CANCELED ? GV_REFUSED_FAILED :
			  gv_status_refusal(status), "the searches failed");
	connection->ending |= status == GV_CANCELED;
	return 0;
}

/* See GV_MSG_SEARCHES. */
void
gv_bulk_search(GvConnection *connection)
{
	const GvSearchesRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_FAILED;
	GvMirrorEntry *entry = NULL;
	int64_t		answered = 0;

	if (!check_searches(connection))
		return;
	connection->whole_ns = gv_now_ns();
	if (!gv_server_failed())
		entry = gv_mirrors_acquire(&request->key, 0, &refusal);
	if (entry == NULL)
	{
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
		return;
	}
	if (request->dims == entry->spec.dims)
		answered = search_entry(connection->work, entry, connection);
	else
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "the mirror has other dims");
	gv_mirrors_release(entry, answered);
}

/*
 * Serve such a client until its connection ends, or it is idle: a searcher is
 * kept for it.
 */
void
gv_bulk_serve(GvConnection *connection)
{
	Bulk	   *bulk = calloc(1, sizeof(Bulk));

	if (bulk == NULL)
		return;
	connection->idle_ms = GV_BULK_IDLE_MS;
	connection->work = bulk;
	count_threads(1);
	gv_thread_serve(connection, gv_message_answer);
	count_threads(-1);
	free(bulk);
}
