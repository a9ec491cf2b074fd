/*
 * searchjob.c
 *		What any client may ask: hello, status, and searches in batches.
 *
 * These make answers, which their caller sends; but a session's search is put
 * in the queue, and answered with its batch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/server.h"

#define current(counter) __atomic_load_n(&gv_server.counter, __ATOMIC_RELAXED)

/*
 * A thread's means to search on a device; they are large.  For extra ones the
 * caller holds no mirror's lock.
 */
GvStatus
gv_worker_open(int32_t device, bool is_extra, GvWorker **worker)
{
	GvWorker   *made = calloc(1, sizeof(GvWorker));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->is_extra = is_extra;
	status = is_extra ? gv_mirrors_searcher(device, &made->searcher) :
		gv_searcher(device, &made->searcher);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	*worker = made;
	return GV_OK;
}

void
gv_worker_close(GvWorker *worker)
{
	if (worker == NULL)
		return;
	if (worker->is_extra)
		gv_mirrors_searcher_drop(worker->device, worker->searcher);
	else
		gv_searcher_drop(worker->searcher);
	free(worker);
}

/* The first message: who is it, and do we speak the same language? */
void
gv_session_hello(GvConnection *connection)
{
	const GvHello *hello = gv_payload(connection);
	GvWelcome  *welcome;

	if (hello->magic != GV_PROTOCOL_MAGIC)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, "a wrong magic number");
	else if (hello->version != GV_PROTOCOL_VERSION)
		gv_refuse(connection, GV_REFUSED_VERSION,
				  "gpuvecd speaks another version of the protocol");
	else if (gv_message(connection)->length != sizeof(*hello) ||
			 hello->role < GV_ROLE_SESSION ||
			 hello->role > GV_ROLE_SUPERVISOR || hello->incarnation == 0)
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "an unknown role, or no life");
	else if (!gv_incarnation_admits(connection, hello))
		return;
	else if (hello->role != GV_ROLE_SUPERVISOR &&
			 (connection->surplus || (hello->role != GV_ROLE_SESSION &&
									  current(loaders) >= GV_MAX_LOADERS)))
		gv_refuse(connection, GV_REFUSED_FULL, "too many connections");
	else if ((welcome = gv_reply(connection, sizeof(*welcome))) != NULL)
	{
		connection->role = hello->role;
		if (hello->role == GV_ROLE_SUPERVISOR)
			gv_incarnation_supervised(connection);
		memset(welcome, 0, sizeof(*welcome));
		welcome->instance = gv_server.instance;
		welcome->pid = (uint32_t) gv_server.pid;
		strncpy(welcome->engine, gv_server.engine,
				sizeof(welcome->engine) - 1);
		strncpy(welcome->release, gv_server.release,
				sizeof(welcome->release) - 1);
	}
}

/* Are we there? */
void
gv_session_ping(GvConnection *connection)
{
	gv_reply(connection, 0);
}

/* The counters, and every mirror. */
void
gv_session_status(GvConnection *connection)
{
	int32_t		capacity = gv_mirrors_status(NULL, NULL, 0);
	GvStatusReply *reply;
	int			i;

	reply = gv_reply(connection, sizeof(*reply) +
					 (size_t) capacity * sizeof(GvMirrorStatus));
	if (reply == NULL)
		return;
	memset(reply, 0, sizeof(*reply));
	reply->instance = gv_server.instance;
	memcpy(reply->device, gv_server.device, sizeof(reply->device));
	reply->searches = current(searches);
	reply->batches = current(batches);
	reply->largest_batch = current(largest_batch);
	reply->sets = current(sets);
	for (i = 0; i < GV_NREFUSALS; i++)
		reply->refusals[i] = current(refusals[i]);
	reply->received = current(received);
	reply->sent = current(sent);
	reply->connections = current(connections);
	reply->oldest_ms = gv_watchdog_oldest_ms();
	reply->nmirrors = gv_mirrors_status(reply, (GvMirrorStatus *) (reply + 1),
										capacity);
	/* some may have come or gone since they were counted */
	if (reply->nmirrors > capacity)
		reply->nmirrors = capacity;
	gv_reply_cut(connection, sizeof(*reply) +
				 (size_t) reply->nmirrors * sizeof(GvMirrorStatus));
}

/* Bytes of its condition. */
static size_t
tests_bytes(const GvSearchRequest *request)
{
	return (size_t) request->ntests * sizeof(GvTestRequest) +
		(size_t) request->nvalues * sizeof(uint64_t);
}

/* Does a search make sense?  If not, it has been refused. */
static bool
check_search(GvConnection *connection)
{
	const GvSearchRequest *request = gv_payload(connection);
	size_t		length = gv_message(connection)->length;

	if (request->dims >= 1 && request->dims <= GV_MAX_DIMS &&
		request->ntests >= 0 && request->ntests <= GV_MAX_TESTS &&
		request->nvalues >= 0 && request->nvalues <= GV_MAX_VALUES &&
		length == sizeof(*request) + tests_bytes(request) +
		4 * (size_t) request->dims &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS &&
		request->part >= 0 && request->part < 1 &&
		request->rank >= 0 && request->rank <= request->capacity &&
		(request->rank == 0 || request->ntests > 0) && request->unused == 0)
		return true;
	gv_refuse(connection, GV_REFUSED_PROTOCOL, "a search out of range");
	return false;
}

/* No list is searched twice, and no more postings come back than there are. */
static int32_t
probes_of(const GvMirrorEntry *entry, const GvSearchRequest *request)
{
	return request->probes < entry->spec.nlists ? request->probes :
		entry->spec.nlists;
}

static int32_t
capacity_of(const GvMirrorEntry *entry, const GvSearchRequest *request)
{
	if (request->capacity <= entry->nitems)
		return request->capacity;
	return entry->nitems > 0 ? (int32_t) entry->nitems : 1;
}

/* Make the engine's condition of a request's; false if it cannot be one. */
static bool
open_condition(const GvMirrorSpec *spec, const GvSearchRequest *request,
			   GvAskedCondition *asked)
{
	const GvTestRequest *tests = (const GvTestRequest *) (request + 1);
	const uint64_t *values = (const uint64_t *) (tests + request->ntests);
	int64_t		left = request->nvalues;
	int32_t		i;

	asked->condition.form = spec->keys;
	asked->condition.ntests = request->ntests;
	asked->condition.tests = asked->tests;
	for (i = 0; i < request->ntests; i++)
	{
		const GvTestRequest *test = &tests[i];

		if (test->unused != 0 || test->nvalues < 0 || test->nvalues > left)
			return false;
		asked->tests[i] = (GvKeyTest)
		{
			test->key, (GvTestKind) test->kind, test->low, test->high,
				test->nvalues, values
		};
		values += test->nvalues;
		left -= test->nvalues;
	}
	return left == 0 && gv_condition_valid(&asked->condition);
}

/* Make the engine's search of a request; if it cannot be, it is refused. */
static bool
prepare(const GvMirrorEntry *entry, GvConnection *asker, GvSearch *search,
		GvAskedCondition *asked)
{
	const GvSearchRequest *request = gv_payload(asker);

	if (request->dims != entry->spec.dims)
	{
		gv_refuse(asker, GV_REFUSED_PROTOCOL, "the mirror has other dims");
		return false;
	}
	if (!open_condition(&entry->spec, request, asked))
	{
		gv_refuse(asker, GV_REFUSED_PROTOCOL,
				  "a condition that the mirror's keys cannot be given");
		return false;
	}
	memset(search, 0, sizeof(*search));
	search->query = (const float *) ((const char *) (request + 1) +
									 tests_bytes(request));
	if (request->ntests > 0)
		search->condition = &asked->condition;
	search->probes = probes_of(entry, request);
	search->compare = request->compare;
	search->capacity = capacity_of(entry, request);
	if (request->rank <= search->capacity)
		search->rank = request->rank;	/* no others come back */
	search->bounded = entry->spec.refine_slots > 0;
	return true;
}

/* Sets the answer's sums over all lists searched under a condition. */
static void
add_up(const GvMirrorEntry *entry, const GvSearch *found, double part,
	   GvSearchReply *reply)
{
	double		ratio = pow(1 - part, 1.0 / found->nprobed);
	double		weight = 1;
	int32_t		i;

	for (i = 0; i < found->nprobed; i++)
	{
		uint32_t	nitems = entry->states[found->probed[i].list].nitems;

		reply->nitems += nitems;
		reply->matches += found->matches[i];
		reply->weighted_nitems += weight * nitems;
		reply->weighted_matches += weight * found->matches[i];
		weight *= ratio;
	}
	reply->nearer = found->nearer;
	reply->nearer_squares = found->nearer_squares;
}

/* The lists searched, and what of them the mirror has. */
static void
put_probed(const GvMirrorEntry *entry, const GvSearch *found,
		   GvProbeReply *probed)
{
	int32_t		i;

	for (i = 0; i < found->nprobed; i++)
	{
		probed[i].list = found->probed[i].list;
		probed[i].base = found->probed[i].base;
		probed[i].state = entry->states[found->probed[i].list];
	}
}

/*
 * Put what the engine found, and of lists what the mirror has unless the
 * answer is brief, behind the reply's head; returns what is behind that.
 */
static void *
session_put(const GvMirrorEntry *entry, const GvSearch *found,
			   bool is_brief,
			   GvSearchReply *reply)
{
	size_t		nprobed = is_brief ? 0 : (size_t) found->nprobed;
	size_t		nhits = (size_t) found->nhits;
	size_t		nbounds = found->bounded ? nhits : 0;
	GvHit	   *hits;
	GvBound    *bounds;

	memset(reply, 0, sizeof(*reply));
	reply->nprobed = found->nprobed;
	reply->nhits = found->nhits;
	reply->postings = found->postings;
	reply->nbounds = (uint32_t) nbounds;
	reply->is_brief = is_brief;
	reply->nearest = found->nprobed > 0 ? found->probed[0].list : 0;
	if (!is_brief)
		put_probed(entry, found, (GvProbeReply *) (reply + 1));
	hits = (GvHit *) ((GvProbeReply *) (reply + 1) + nprobed);
	memcpy(hits, found->hits, nhits * sizeof(GvHit));
	bounds = (GvBound *) (hits + nhits);
	if (nbounds > 0)
		memcpy(bounds, found->bounds, nbounds * sizeof(GvBound));
	return bounds + nbounds;
}

/*
 * Make an answer of what the engine has left in the searcher's memory, where
 * the next search will write: hence a copy, of a few thousand bytes.
 */
static bool
complete(const GvMirrorEntry *entry, GvConnection *asker,
		 const GvSearch *found,
		 int batch, uint64_t began_ns, uint64_t ended_ns)
{
	const GvSearchRequest *request = gv_payload(asker);
	bool		is_brief = request->version != 0 &&
	request->version == entry->version;
	size_t		nprobed = is_brief ? 0 : (size_t) found->nprobed;
	size_t		nhits = (size_t) found->nhits;
	size_t		nbounds = found->bounded ? nhits : 0;
	size_t		nmatches = found->matches != NULL ? nprobed : 0;
	GvSearchReply *reply = gv_reply(asker, sizeof(*reply) +
									nprobed * sizeof(GvProbeReply) +
									nhits * sizeof(GvHit) +
									nbounds * sizeof(GvBound) +
									nmatches * sizeof(int32_t));
	void	   *matches;

	if (reply == NULL)
		return false;
	matches = session_put(entry, found, is_brief, reply);
	reply->batch = (uint32_t) batch;
	reply->queued_us = (uint32_t) ((began_ns - asker->whole_ns) / 1000);
	reply->engine_us = (uint32_t) ((ended_ns - began_ns) / 1000);
	if (found->matches != NULL)
		add_up(entry, found, request->part, reply);
	if (nmatches > 0)
		memcpy(matches, found->matches, nmatches * sizeof(int32_t));
	return true;
}

/* Refuse n searches. */
void
gv_session_refuse(GvConnection **askers, int n, GvRefusalCode code)
{
	int			i;

	for (i = 0; i < n; i++)
		gv_refuse(askers[i], code, gv_refusal_name(code));
}

/* Answer the i-th search of the batch; how many were answered, 0 or 1. */
static int
answer(GvWorker *worker, int i, GvStatus status, uint64_t ended_ns)
{
	GvConnection *asker = worker->askers[i];

	if (status == GV_OK)
		return complete(worker->entry, asker, &worker->searches[i], worker->n,
						worker->began_ns, ended_ns);
	gv_session_refuse(&asker, 1, gv_status_refusal(status));
	return 0;
}

/*
 * Searches one by one where a batch could not be searched at once.  Returns
 * how many were answered; the others are refused.  Nothing more is asked of a
 * broken engine.
 */
static int
search_singly(GvWorker *worker, GvStatus status)
{
	int			answered = 0;
	int			i;

	for (i = 0; i < worker->n; i++)
	{
		/* each has the time that a batch has: together they may take longer */
		gv_watchdog_round(true);
		if (status != GV_FAILED)
			status = gv_mirror_search(worker->searcher, worker->entry->mirror,
									  &worker->searches[i], 1);
		answered += answer(worker, i, status, gv_now_ns());
	}
	return answered;
}

static void
count_batch(int answered)
{
	int64_t		largest = current(largest_batch);

	gv_count(searches, answered);
	gv_count(batches, 1);
	while (answered > largest &&
		   !__atomic_compare_exchange_n(&gv_server.largest_batch, &largest,
										answered, false, __ATOMIC_RELAXED,
										__ATOMIC_RELAXED))
		;
}

/* The batch has its answers; others may change the mirror. */
static void
end_batch(GvWorker *worker, int answered)
{
	pthread_rwlock_unlock(&worker->entry->lock);
	if (answered > 0)
		count_batch(answered);
	gv_mirrors_release(worker->entry, answered);
	worker->entry = NULL;
}

/*
 * Returns the mirror that a search names; NULL: there is none, see *refusal.
 */
GvMirrorEntry *
gv_session_acquire(const GvConnection *asker, GvRefusalCode *refusal)
{
	const GvSearchRequest *request = gv_payload(asker);

	*refusal = GV_REFUSED_FAILED;
	return gv_server_failed() ? NULL :
		gv_mirrors_acquire(&request->key, 0, refusal);
}

/*
 * Lock an acquired mirror against changes; false if that is not to be had at
 * once and `wait` is false.  A thread that has locked a mirror already must
 * not wait: behind one, perhaps, that wants to change it and waits for us.
 */
bool
gv_session_lock(GvMirrorEntry *entry, bool wait)
{
	if (wait)
		return pthread_rwlock_rdlock(&entry->lock) == 0;
	return pthread_rwlock_tryrdlock(&entry->lock) == 0;
}

/*
 * Begin the searches of worker->askers [nasked] in a mirror of the worker's
 * device, which was acquired and locked for them.  It stays so until they end,
 * so that each answer's list states are those of what was searched.
 * worker->entry tells whether to call gv_session_finish; if not, all have
 * their answers, and the mirror is unlocked and released.
 */
void
gv_session_begin(GvWorker *worker, GvMirrorEntry *entry)
{
	GvConnection **askers = worker->askers;
	GvStatus	status;
	int			i;

	worker->began_ns = gv_now_ns();
	worker->entry = entry;
	worker->n = 0;
	for (i = 0; i < worker->nasked; i++)
	{
		GvConnection *asker = askers[i];

		if (!prepare(entry, asker, &worker->searches[worker->n],
					 &worker->conditions[worker->n]))
			continue;
		askers[i] = askers[worker->n];
		askers[worker->n++] = asker;
	}
	if (worker->n == 0)
		end_batch(worker, 0);
	else
	{
		status = gv_mirror_begin(worker->searcher, entry->mirror,
								 worker->searches, worker->n);
		if (status != GV_OK && worker->n > 1)
			end_batch(worker, search_singly(worker, status));
		else if (status != GV_OK)
			end_batch(worker, answer(worker, 0, status, 0));
	}
}

/* Wait for the batch that is under way; its askers get their answers. */
void
gv_session_finish(GvWorker *worker)
{
	GvStatus	status = gv_mirror_finish(worker->searcher);
	uint64_t	ended_ns = gv_now_ns();
	int			answered = 0;
	int			i;

	/* of shards, which take memory for each step of a search */
	if (gv_is_survivable(status) && worker->n > 1)
		answered = search_singly(worker, status);
	else
		for (i = 0; i < worker->n; i++)
			answered += answer(worker, i, status, ended_ns);
	end_batch(worker, answered);
}

/* Means to search on a device, in the place of the last ones. */
static GvStatus
need_worker(GvConnection *connection, int32_t device)
{
	GvWorker   *worker = NULL;
	GvStatus	status;

	gv_worker_close(connection->work);
	status = gv_worker_open(device, true, &worker);
	connection->work = worker;
	return status;
}

/*
 * Lock an acquired mirror, for a search with such means on its device.  It is
 * let go while these are made.
 */
static GvStatus
lock_to_search(GvConnection *connection, GvMirrorEntry *entry)
{
	for (;;)
	{
		const GvWorker *worker = connection->work;
		int32_t		device;
		GvStatus	status;

		(void) gv_session_lock(entry, true);
		device = gv_mirrors_device(entry, -1);
		if (worker != NULL && worker->device == device)
			return GV_OK;
		pthread_rwlock_unlock(&entry->lock);
		status = need_worker(connection, device);
		if (status != GV_OK)
			return status;
	}
}

/* A search by a loader shares its batch with no other. */
static void
search_alone(GvConnection *connection)
{
	GvRefusalCode refusal;
	GvMirrorEntry *entry;
	GvStatus	status;

	connection->whole_ns = gv_now_ns();
	entry = gv_session_acquire(connection, &refusal);
	if (entry == NULL)
	{
		gv_session_refuse(&connection, 1, refusal);
		return;
	}
	status = lock_to_search(connection, entry);
	if (status == GV_OK)
	{
		GvWorker   *worker = connection->work;

		worker->askers[0] = connection;
		worker->nasked = 1;
		gv_session_begin(worker, entry);
		if (worker->entry != NULL)
			gv_session_finish(worker);
	}
	else
	{
		gv_mirrors_release(entry, 0);
		gv_refuse(connection, gv_status_refusal(status),
				  "no memory to search");
	}
}

/* See GV_MSG_SEARCH.  A session's is queued. */
void
gv_session_search(GvConnection *connection)
{
	if (!check_search(connection))
		return;
	if (connection->role == GV_ROLE_SESSION)
		gv_batches_add(connection);
	else
		search_alone(connection);
}

/* ----
 * A thread that makes many searches of one message at once.
 *
 * They are no part of the batches of sessions (eventloop.c): these would wait for
 * them.  A device runs both side by side.  Its searchers for them are few,
 * since each may take a gigabyte, and threads share them.
 */

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
prepare_bulk(Bulk *bulk, const GvMirrorEntry *entry,
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
		char	   *end = session_put(entry, found, is_brief, reply);

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
		prepare_bulk(bulk, entry, request, first, n);
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
