/*
 * session.c
 *		What any client may ask: hello, status, and searches in batches.
 *
 * These make answers; who called sends them.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <string.h>

#define current(counter) __atomic_load_n(&gv_server.counter, __ATOMIC_RELAXED)

/* A thread's means to search; they are large. */
GvStatus
gv_worker_open(GvWorker **worker)
{
	GvWorker   *made = calloc(1, sizeof(GvWorker));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	status = gv_searcher(&made->searcher);
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
	gv_searcher_drop(worker->searcher);
	free(worker->probes);
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
	else if (hello->role < GV_ROLE_SESSION || hello->role > GV_ROLE_BUILDER)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, "an unknown role");
	else if (connection->surplus ||
			 (hello->role != GV_ROLE_SESSION &&
			  current(loaders) >= GV_MAX_LOADERS))
		gv_refuse(connection, GV_REFUSED_FULL, "too many connections");
	else if ((welcome = gv_reply(connection, sizeof(*welcome))) != NULL)
	{
		connection->role = hello->role;
		memset(welcome, 0, sizeof(*welcome));
		welcome->instance = gv_server.instance;
		welcome->pid = (uint32_t) gv_server.pid;
		strncpy(welcome->engine, gv_server.engine,
				sizeof(welcome->engine) - 1);
		strncpy(welcome->release, gv_server.release,
				sizeof(welcome->release) - 1);
	}
}

/* The counters, and every mirror. */
void
gv_session_status(GvConnection *connection)
{
	int32_t		room = gv_mirrors_status(NULL, NULL, 0);
	GvStatusReply *reply;
	int			i;

	reply = gv_reply(connection, sizeof(*reply) +
					 (size_t) room * sizeof(GvMirrorStatus));
	if (reply == NULL)
		return;
	memset(reply, 0, sizeof(*reply));
	reply->instance = gv_server.instance;
	memcpy(reply->device, gv_server.device, sizeof(reply->device));
	reply->searches = current(searches);
	reply->batches = current(batches);
	reply->largest_batch = current(largest_batch);
	for (i = 0; i < GV_NREFUSALS; i++)
		reply->refusals[i] = current(refusals[i]);
	reply->received = current(received);
	reply->sent = current(sent);
	reply->connections = current(connections);
	reply->nmirrors = gv_mirrors_status(reply, (GvMirrorStatus *) (reply + 1),
										room);
	/* some may have come or gone since they were counted */
	if (reply->nmirrors > room)
		reply->nmirrors = room;
	gv_reply_cut(connection, sizeof(*reply) +
				 (size_t) reply->nmirrors * sizeof(GvMirrorStatus));
}

/* Does a search make sense?  If not, it has been refused. */
bool
gv_session_check(GvConnection *connection)
{
	const GvSearchRequest *request = gv_payload(connection);
	size_t		length = gv_message(connection)->length;

	if (request->dims >= 1 && request->dims <= GV_MAX_DIMS &&
		length == sizeof(*request) + 4 * (size_t) request->dims &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS)
		return true;
	gv_refuse(connection, GV_REFUSED_PROTOCOL, "a search out of range");
	return false;
}

/* No list is searched twice, and no more copies come back than there are. */
static int32_t
probes_of(const GvHeldMirror *held, const GvSearchRequest *request)
{
	return request->probes < held->spec.nlists ? request->probes :
		held->spec.nlists;
}

static int32_t
capacity_of(const GvHeldMirror *held, const GvSearchRequest *request)
{
	if (request->capacity <= held->nitems)
		return request->capacity;
	return held->nitems > 0 ? (int32_t) held->nitems : 1;
}

/*
 * Make room for a search's answer, and have the engine put hits and bounds
 * there.  They stand behind the probes, whose number is known afterwards.
 */
static bool
prepare(const GvHeldMirror *held, GvConnection *asker, GvSearch *search)
{
	const GvSearchRequest *request = gv_payload(asker);
	bool		bounds = held->spec.refine_slots > 0;
	GvSearchReply *reply;
	GvProbeReply *probed;

	if (request->dims != held->spec.dims)
	{
		gv_refuse(asker, GV_REFUSED_PROTOCOL, "the mirror has other dims");
		return false;
	}
	memset(search, 0, sizeof(*search));
	search->query = (const float *) (request + 1);
	search->probes = probes_of(held, request);
	search->compare = request->compare;
	search->capacity = capacity_of(held, request);
	reply = gv_reply(asker, sizeof(*reply) +
					 (size_t) search->probes * sizeof(GvProbeReply) +
					 (size_t) search->capacity *
					 (sizeof(GvHit) + (bounds ? sizeof(GvBound) : 0)));
	if (reply == NULL)
		return false;
	probed = (GvProbeReply *) (reply + 1);
	search->hits = (GvHit *) (probed + search->probes);
	if (bounds)
		search->bounds = (GvBound *) (search->hits + search->capacity);
	return true;
}

/* Memory for the probes of n searches. */
static bool
place_probes(GvWorker *worker, int n)
{
	size_t		total = 0;
	int			i;

	for (i = 0; i < n; i++)
		total += (size_t) worker->searches[i].probes;
	if (total > worker->probes_room)
	{
		free(worker->probes);
		worker->probes = malloc(total * sizeof(GvProbe));
		worker->probes_room = worker->probes != NULL ? total : 0;
		if (worker->probes == NULL)
			return false;
	}
	total = 0;
	for (i = 0; i < n; i++)
	{
		worker->searches[i].probed = worker->probes + total;
		total += (size_t) worker->searches[i].probes;
	}
	return true;
}

/* Have the engine search; if it cannot do all at once, one by one. */
static void
search(GvWorker *worker, GvMirror *mirror, int n)
{
	GvStatus	status = gv_mirror_search(worker->searcher, mirror,
										  worker->searches, n);
	bool		again = n > 1 && (status == GV_NO_MEMORY ||
								  status == GV_INVALID);
	int			i;

	for (i = 0; i < n; i++)
	{
		if (again)
			status = gv_mirror_search(worker->searcher, mirror,
									  &worker->searches[i], 1);
		worker->statuses[i] = status;
		if (status == GV_FAILED)
			again = false;
	}
}

/* Complete the answer around the hits. */
static void
complete(const GvHeldMirror *held, GvConnection *asker, const GvSearch *found,
		 int batch, uint64_t began_ns, uint64_t ended_ns)
{
	GvSearchReply *reply = (GvSearchReply *) (asker->out + sizeof(GvMessage));
	GvProbeReply *probed = (GvProbeReply *) (reply + 1);
	GvHit	   *hits = (GvHit *) (probed + found->nprobed);
	GvBound    *bounds = (GvBound *) (hits + found->nhits);
	int32_t		nbounds = found->bounds != NULL ? found->nhits : 0;
	int32_t		i;

	reply->nprobed = found->nprobed;
	reply->nhits = found->nhits;
	reply->copies = found->copies;
	reply->batch = (uint32_t) batch;
	reply->queued_us = (uint32_t) ((began_ns - asker->whole_ns) / 1000);
	reply->engine_us = (uint32_t) ((ended_ns - began_ns) / 1000);
	reply->nbounds = (uint32_t) nbounds;
	for (i = 0; i < found->nprobed; i++)
	{
		probed[i].list = found->probed[i].list;
		probed[i].base = found->probed[i].base;
		probed[i].state = held->states[found->probed[i].list];
	}
	memmove(hits, found->hits, (size_t) found->nhits * sizeof(GvHit));
	if (nbounds > 0)
		memmove(bounds, found->bounds, (size_t) nbounds * sizeof(GvBound));
	gv_reply_cut(asker, (size_t) ((char *) (bounds + nbounds) -
								  (char *) reply));
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

static void
refuse_all(GvConnection **askers, int n, GvRefusalCode code)
{
	int			i;

	for (i = 0; i < n; i++)
		gv_refuse(askers[i], code, gv_refusal_name(code));
}

/*
 * Answer n <= GV_MAX_BATCH searches of one mirror, which is locked against
 * changes for as long as it takes; so each answer's list states are those of
 * what was searched.
 */
void
gv_session_batch(GvWorker *worker, GvConnection **askers, int n)
{
	const GvSearchRequest *first = gv_payload(askers[0]);
	GvConnection *ready[GV_MAX_BATCH];
	GvRefusalCode refusal = GV_REFUSED_FAILED;
	GvHeldMirror *held = NULL;
	uint64_t	began_ns = gv_now_ns();
	uint64_t	ended_ns;
	int			nready = 0;
	int			answered = 0;
	int			i;

	if (!gv_server_failed())
		held = gv_mirrors_acquire(&first->key, 0, &refusal);
	if (held == NULL)
	{
		refuse_all(askers, n, refusal);
		return;
	}
	pthread_rwlock_rdlock(&held->lock);
	for (i = 0; i < n; i++)
		if (prepare(held, askers[i], &worker->searches[nready]))
			ready[nready++] = askers[i];
	if (!place_probes(worker, nready))
	{
		refuse_all(ready, nready, GV_REFUSED_NO_MEMORY);
		nready = 0;
	}
	if (nready > 0)
		search(worker, held->mirror, nready);
	ended_ns = gv_now_ns();
	for (i = 0; i < nready; i++)
		if (worker->statuses[i] == GV_OK)
		{
			complete(held, ready[i], &worker->searches[i], nready, began_ns,
					 ended_ns);
			answered++;
		}
		else
			refuse_all(&ready[i], 1, gv_status_refusal(worker->statuses[i]));
	pthread_rwlock_unlock(&held->lock);
	if (answered > 0)
		count_batch(answered);
	gv_mirrors_release(held, answered);
}
