/*
 * manysearches.c
 *		A thread that makes many searches of one message at once.
 *
 * They are no part of the batches of sessions (turns.c): these would wait for
 * them.  A card takes both side by side.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

/*
 * Searches that the engine gets at once, at most; then loaders have their turn,
 * and it is asked whether the client still waits.  The portable engine makes one
 * after another.
 */
#define AT_ONCE			4096
#define AT_ONCE_CPU		64

/* What such a thread has. */
typedef struct Many
{
	int32_t		device;			/* of the searcher */
	GvSearcher *searcher;		/* NULL: there is none yet */
	GvSearch	searches[AT_ONCE];
} Many;

/* How many such threads are at work, by device. */
static int32_t busy[GV_MAX_DEVICES];

static void
note_busy(int32_t device, int32_t more)
{
	(void) __atomic_add_fetch(&busy[device], more, __ATOMIC_RELAXED);
}

/*
 * The device to search a mirror on, which is locked: of its replicas' the one with
 * the fewest such threads, this thread's last one rather than another.
 */
static int32_t
least_busy(const Many *many, const GvHeldMirror *held)
{
	int32_t		best = gv_mirrors_device(held, many->device);
	int32_t		i;

	for (i = 0; i < gv_ndevices(); i++)
		if (gv_mirrors_device(held, i) == i &&
			__atomic_load_n(&busy[i], __ATOMIC_RELAXED) <
			__atomic_load_n(&busy[best], __ATOMIC_RELAXED))
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

/* Means to search on a device. */
static GvStatus
need_searcher(Many *many, int32_t device)
{
	GvStatus	status;

	if (many->searcher != NULL && many->device == device)
		return GV_OK;
	gv_searcher_drop(many->searcher);
	many->searcher = NULL;
	status = gv_searcher(device, &many->searcher);
	if (status != GV_OK)
		many->searcher = NULL;
	many->device = device;
	return status;
}

/* Make the engine's searches of those numbered first .. first + n - 1. */
static void
prepare(Many *many, const GvHeldMirror *held,
		const GvSearchesRequest *request, int32_t first, int32_t n)
{
	const float *queries = (const float *) (request + 1);
	int64_t		copies = held->nitems > 0 ? held->nitems : 1;
	int32_t		i;

	/* no list is searched twice, and no more copies come back than there are */
	for (i = 0; i < n; i++)
		many->searches[i] = (GvSearch)
	{
		.query = queries + (size_t) (first + i) * (size_t) request->dims,
			.probes = request->probes < held->spec.nlists ? request->probes :
			held->spec.nlists,
			.compare = request->compare,
			.capacity = request->capacity <= copies ? request->capacity :
			(int32_t) copies,
			.bounded = held->spec.refine_slots > 0
	};
}

/* Put the answers of n searches at `next`; what is behind them. */
static char *
put_answers(const Many *many, const GvHeldMirror *held,
			const GvConnection *connection, int32_t n, uint64_t began_ns,
			char *next)
{
	const GvSearchesRequest *request = gv_payload(connection);
	bool		is_brief = request->version != 0 &&
	request->version == held->version;
	uint64_t	ended_ns = gv_now_ns();
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		const GvSearch *found = &many->searches[i];
		GvSearchReply *reply = (GvSearchReply *) next;
		char	   *end = gv_session_put(held, found, is_brief, reply);

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
 * them.  What cannot be searched at once may be in halves.  Between batches
 * loaders have their turn: while one waits for the mirror's lock the loop, too,
 * waits behind it with the next search.  Each answer tells the state of the
 * lists that it is of.
 */
static GvStatus
search_all(Many *many, GvHeldMirror *held, GvConnection *connection,
		   char **next)
{
	const GvSearchesRequest *request = gv_payload(connection);
	GvStop		stop = gv_connection_stop(connection);
	int32_t		at_once = strcmp(gv_server.engine, "cpu") == 0 ?
	AT_ONCE_CPU : AT_ONCE;
	int32_t		first = 0;

	while (first < request->n)
	{
		int32_t		left = request->n - first;
		int32_t		n = left < at_once ? left : at_once;
		uint64_t	began_ns;
		int			watched;
		GvStatus	status;

		if (stop.requested(stop.arg))
			return GV_CANCELLED;
		(void) gv_session_lock(held, true);
		began_ns = gv_now_ns();
		prepare(many, held, request, first, n);
		watched = gv_watch_many_begin(began_ns);
		status = need_searcher(many, least_busy(many, held));
		if (status == GV_OK)
		{
			note_busy(many->device, 1);
			status = gv_mirror_search(many->searcher, held->mirror,
									  many->searches, n);
			note_busy(many->device, -1);
		}
		gv_watch_many_end(watched);
		if (status == GV_OK)
			*next = put_answers(many, held, connection, n, began_ns, *next);
		pthread_rwlock_unlock(&held->lock);
		if (status == GV_NO_MEMORY && n > 1)
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

/* Search an acquired mirror. */
static void
search_held(Many *many, GvHeldMirror *held, GvConnection *connection)
{
	const GvSearchesRequest *request = gv_payload(connection);
	char	   *reply = gv_reply(connection, (size_t) request->n *
								 (size_t) gv_answer_bytes(request->probes,
														  request->capacity,
														  request->capacity));
	char	   *next = reply;
	GvStatus	status;

	if (reply == NULL)
		return;
	status = search_all(many, held, connection, &next);
	if (status == GV_OK)
	{
		gv_reply_cut(connection, (size_t) (next - reply));
		return;
	}
	/* in the place of an answer that is not whole */
	gv_refuse(connection, status == GV_CANCELLED ? GV_REFUSED_FAILED :
			  gv_status_refusal(status), "the searches failed");
	connection->ending |= status == GV_CANCELLED;
}

/* See GV_MSG_SEARCHES. */
void
gv_many_search(GvConnection *connection)
{
	const GvSearchesRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_FAILED;
	GvHeldMirror *held = NULL;

	if (!check_searches(connection))
		return;
	connection->whole_ns = gv_now_ns();
	if (!gv_server_failed())
		held = gv_mirrors_acquire(&request->key, 0, &refusal);
	if (held == NULL)
	{
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
		return;
	}
	if (request->dims == held->spec.dims)
		search_held(connection->work, held, connection);
	else
		gv_refuse(connection, GV_REFUSED_PROTOCOL,
				  "the mirror has other dims");
	gv_mirrors_release(held, request->n);
}

/*
 * Serve such a client until its connection ends, or it is idle: what it has of
 * the card is in nobody's budget.
 */
void
gv_many_serve(GvConnection *connection)
{
	Many	   *many = calloc(1, sizeof(Many));
	struct timeval idle = {
		GV_MANY_IDLE_MS / 1000, GV_MANY_IDLE_MS % 1000 * 1000
	};

	if (many == NULL)
		return;
	(void) setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &idle,
					  sizeof(idle));
	connection->work = many;
	gv_thread_serve(connection, gv_message_answer);
	gv_searcher_drop(many->searcher);
	free(many);
}
