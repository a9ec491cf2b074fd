/*
 * searchjob.c
 *		Searches: batches of searches of sessions, and searches for many
 *		queries of one message.
 *
 * A session's search has one query, and goes to the queue of eventloop.c to be
 * answered with a batch.  Searches of bulk clients, and searches that calibrate
 * a build, may have many, and are done by the client's own thread, since
 * sessions would have to wait for them.
 */
#include "server/server.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests and answers */

/*
 * Returns the place in shared memory for the answers to a request, behind the
 * queries.  Returns NULL if not all of queries and answers have room there.
 */
static char *
shared_answers(const GvMirrorEntry *entry, const GvConnection *connection)
{
	const GvSearchRequest *request = gv_payload(connection);
	int64_t		queries = (int64_t) gv_shared_queries_bytes(request);
	int64_t		answers = request->n *
	gv_answer_most(request, entry->spec.refine_slots > 0);
	char	   *at = gv_shared_at(connection, request->offset,
								  queries + answers);

	return at == NULL ? NULL : at + queries;
}

/*
 * Returns NULL if a mirror can be searched as the request asks, and otherwise
 * an error message.  Sets *asked to the request's condition in the engine's
 * form, whose values stay in the message.
 */
static const char *
open_search(const GvMirrorEntry *entry, const GvConnection *connection,
			GvAskedCondition *asked)
{
	const GvSearchRequest *request = gv_payload(connection);
	const GvTestRequest *tests = (const GvTestRequest *) (request + 1);
	const uint64_t *values = (const uint64_t *) (tests + request->ntests);
	int64_t		left = request->nvalues;
	int32_t		i;

	if (request->dims != entry->spec.dims)
		return "the mirror has other dimensions";
	if (request->n > 1 &&
		request->n > gv_queries_most(request, entry->spec.refine_slots > 0))
		return "more queries than a response can answer";
	if (request->shared && shared_answers(entry, connection) == NULL)
		return "queries or answers outside the shared memory";
	asked->condition.form = entry->spec.keys;
	asked->condition.ntests = request->ntests;
	asked->condition.tests = asked->tests;
	for (i = 0; i < request->ntests; i++)
	{
		const GvTestRequest *test = &tests[i];

		if (test->unused != 0 || test->nvalues < 0 || test->nvalues > left)
			return "a malformed condition";
		asked->tests[i] = (GvKeyTest)
		{
			test->key, (GvTestKind) test->kind, test->low, test->high,
				test->nvalues, values
		};
		values += test->nvalues;
		left -= test->nvalues;
	}
	return left != 0 || !gv_condition_valid(&asked->condition) ?
		"a condition that the mirror's keys cannot be given" : NULL;
}

/*
 * Returns whether the answer to a request is brief.  This does not change while
 * the mirror's lock is held, as it is from prepare to put_answer.
 */
static bool
is_brief(const GvMirrorEntry *entry, const GvSearchRequest *request)
{
	return request->version != 0 && request->version == entry->version;
}

/*
 * Sets searches [n] to a request's queries from `first` on, in the engine's
 * form.  Limits probes to the mirror's lists, and capacity to its postings.
 * Lets the engine search all lists in any order if their order has no effect
 * on the sums in the answer, and without returning the lists if the answer is
 * brief besides.  The caller holds the mirror's lock.
 */
static void
prepare(const GvMirrorEntry *entry, const GvConnection *connection,
		const GvAskedCondition *asked, int32_t first, int32_t n,
		GvSearch *searches)
{
	const GvSearchRequest *request = gv_payload(connection);
	const char *queries = request->shared ?
	connection->shm + request->offset :
	(const char *) (request + 1) + gv_tests_bytes(request);
	const float *asked_queries = (const float *) queries +
	(size_t) request->n * (size_t) request->dims;
	GvSearch	search = {
		.probes = request->probes,
		.compare = request->compare,
		.capacity = request->capacity,
		.bounded = entry->spec.refine_slots > 0,
		.condition = request->ntests > 0 ? &asked->condition : NULL
	};
	int32_t		i;

	if (search.probes > entry->spec.nlists)
		search.probes = entry->spec.nlists;
	search.by_number = request->ntests > 0 && request->part == 0 &&
		search.probes == entry->spec.nlists;
	search.sums = search.by_number && is_brief(entry, request);
	if (search.capacity > entry->nitems)
		search.capacity = entry->nitems > 0 ? (int32_t) entry->nitems : 1;
	if (request->rank <= search.capacity)
		search.rank = request->rank;
	for (i = 0; i < n; i++)
	{
		size_t		at = (size_t) (first + i) * (size_t) request->dims;

		searches[i] = search;
		searches[i].query = (const float *) queries + at;
		if (request->asked && entry->spec.rows != GV_ROWS_NONE)
			searches[i].asked = asked_queries + at;
	}
}

/*
 * Sets the sums over all searched lists in the head of an answer to a search
 * with a condition.  In the weighted sums a list weighs (1 - part)^(i / n), if
 * it is number i of n lists, the nearest one being number 0.
 */
static void
add_up(const GvMirrorEntry *entry, const GvSearch *found, double part,
	   GvSearchReply *head)
{
	double		ratio = pow(1 - part, 1.0 / found->nprobed);
	double		weight = 1;
	int32_t		i;

	head->matches = found->matched;
	/* all lists have the weight 1, and may be thousands */
	if (found->by_number)
	{
		head->nitems = entry->nitems;
		head->weighted_nitems = (double) head->nitems;
		head->weighted_matches = (double) head->matches;
	}
	for (i = 0; i < found->nprobed && !found->by_number; i++)
	{
		uint32_t	nitems = entry->states[found->probed[i].list].nitems;

		head->nitems += nitems;
		head->weighted_nitems += weight * nitems;
		head->weighted_matches += weight * found->matches[i];
		weight *= ratio;
	}
	head->nearer = found->nearer;
	head->nearer_squares = found->nearer_squares;
}

/*
 * Returns the head of the answer to one query, which the engine searched for
 * together with n - 1 other queries.
 */
static GvSearchReply
answer_head(const GvMirrorEntry *entry, const GvConnection *connection,
			const GvSearch *found, int32_t n, uint64_t began_ns,
			uint64_t ended_ns)
{
	const GvSearchRequest *request = gv_payload(connection);
	GvSearchReply head = {
		.nprobed = found->nprobed,
		.nhits = found->nhits,
		.nfound = found->nhits,
		.postings = found->postings,
		.batch = (uint32_t) n,
		.queued_us = (uint32_t) ((began_ns - connection->received_ns) / 1000),
		.engine_us = (uint32_t) ((ended_ns - began_ns) / 1000),
		.nbounds = found->bounded ? (uint32_t) found->nhits : 0,
		.is_brief = is_brief(entry, request),
		.nearest = found->nprobed > 0 && !found->by_number ?
		found->probed[0].list : 0,
		.ndistances = request->asked && found->asked != NULL ?
		(uint32_t) found->nhits : 0
	};

	if (request->ntests > 0)
		add_up(entry, found, request->part, &head);
	return head;
}

/*
 * Writes the answer to one query into at [bytes]: all hits, or the hits
 * kept [head->nhits].  Copies the results, because the next search overwrites
 * the searcher's memory.
 */
static void
put_answer(const GvMirrorEntry *entry, const GvSearch *found,
		   const int32_t *kept, const GvSearchReply *head, void *at,
		   size_t bytes)
{
	GvAnswerArrays arrays;
	size_t		nhits = (size_t) head->nhits;
	int32_t		i;

	/* clear the padding */
	memset((char *) at + bytes - 8, 0, 8);
	memcpy(at, head, sizeof(*head));
	/* a client that shares the memory may have changed the copy */
	arrays = gv_answer_arrays(head, at);
	for (i = 0; i < found->nprobed && !head->is_brief; i++)
	{
		arrays.probed[i].list = found->probed[i].list;
		arrays.probed[i].base = found->probed[i].base;
		arrays.probed[i].state = entry->states[found->probed[i].list];
		if (found->condition != NULL)
			arrays.matches[i] = found->matches[i];
	}
	for (i = 0; kept != NULL && i < head->nhits; i++)
	{
		arrays.hits[i] = found->hits[kept[i]];
		arrays.distances[i] = found->distances[kept[i]];
	}
	if (kept != NULL)
		return;
	if (nhits > 0)
		memcpy(arrays.hits, found->hits, nhits * sizeof(GvHit));
	if (head->nbounds > 0)
		memcpy(arrays.bounds, found->bounds, nhits * sizeof(GvBound));
	if (head->ndistances > 0)
		memcpy(arrays.distances, found->distances,
			   nhits * sizeof(GvRowDistance));
}

/* ---- batches of sessions' searches */

/*
 * If a search of the batch asks for distances, lets all ask for some, because
 * the engine computes them for all searches of a call or for none.
 */
static void
ask_alike(GvBatchSlot *batch)
{
	bool		any = false;
	int			i;

	for (i = 0; i < batch->n; i++)
		any |= batch->searches[i].asked != NULL;
	for (i = 0; i < batch->n && any; i++)
		if (batch->searches[i].asked == NULL)
			batch->searches[i].asked = batch->searches[i].query;
}

/*
 * Answers the i-th search of the batch and returns 1, or refuses it and
 * returns 0.
 */
static int
answer(GvBatchSlot *batch, int i, GvStatus status, uint64_t ended_ns)
{
	GvConnection *asker = batch->askers[i];
	const GvSearchRequest *request = gv_payload(asker);
	const GvSearch *found = &batch->searches[i];
	const int32_t *kept;
	GvSearchReply head;
	size_t		bytes;
	void	   *reply;

	if (status != GV_OK)
	{
		gv_refuse_status(asker, status);
		return 0;
	}
	head = answer_head(batch->entry, asker, found, batch->n, batch->began_ns,
					   ended_ns);
	kept = gv_keep_nearest(found, request, &head);
	bytes = (size_t) gv_answer_bytes(request, &head);
	reply = gv_reply(asker, bytes);
	if (reply == NULL)
		return 0;
	put_answer(batch->entry, found, kept, &head, reply, bytes);
	return 1;
}

/*
 * Does the searches of a batch one by one, after the engine could not do them
 * together; `status` says why.  Returns how many searches were answered; the
 * other searches are refused.  After GV_FAILED the engine is not used again.
 */
static int
search_singly(GvBatchSlot *batch, GvStatus status)
{
	int			answered = 0;
	int			i;

	for (i = 0; i < batch->n; i++)
	{
		/* give each search as much time as the watchdog gives a batch */
		gv_watchdog_round(true);
		if (status != GV_FAILED)
			status = gv_mirror_search_shards(batch->searchers, batch->nslots,
											 batch->entry->mirror,
											 &batch->searches[i], 1);
		answered += answer(batch, i, status, gv_now_ns());
	}
	return answered;
}

/* Counts a batch's answers, and unlocks and releases its mirror. */
static void
end_batch(GvBatchSlot *batch, int answered)
{
	pthread_rwlock_unlock(&batch->entry->lock);
	if (answered > 0)
	{
		gv_count(searches, answered);
		gv_count(batches, 1);
	}
	/* nobody else changes this counter */
	if (answered > gv_counted(largest_batch))
		__atomic_store_n(&gv_server.largest_batch, answered, __ATOMIC_RELAXED);
	gv_mirrors_release(batch->entry, answered);
	batch->entry = NULL;
}

/*
 * Askers that are not refused at once are moved to the front of batch->askers.
 */
void
gv_batch_begin(GvBatchSlot *batch, GvMirrorEntry *entry)
{
	GvConnection **askers = batch->askers;
	GvStatus	status;
	int			i;

	batch->began_ns = gv_now_ns();
	batch->entry = entry;
	batch->n = 0;
	for (i = 0; i < batch->nasked; i++)
	{
		GvConnection *asker = askers[i];
		GvAskedCondition *asked = &batch->conditions[batch->n];
		const char *wrong = open_search(entry, asker, asked);

		if (wrong != NULL)
		{
			gv_refuse(asker, GV_REFUSED_PROTOCOL, wrong);
			continue;
		}
		prepare(entry, asker, asked, 0, 1, &batch->searches[batch->n]);
		askers[i] = askers[batch->n];
		askers[batch->n++] = asker;
	}
	if (batch->n == 0)
		end_batch(batch, 0);
	else
	{
		ask_alike(batch);
		status = gv_mirror_begin_shards(batch->searchers, batch->nslots,
										entry->mirror, batch->searches,
										batch->n);
		if (status != GV_OK && batch->n > 1)
			end_batch(batch, search_singly(batch, status));
		else if (status != GV_OK)
			end_batch(batch, answer(batch, 0, status, 0));
	}
}

void
gv_batch_finish(GvBatchSlot *batch)
{
	GvStatus	status = gv_mirror_finish(batch->searcher);
	uint64_t	ended_ns = gv_now_ns();
	int			answered = 0;
	int			i;

	/* each later step of a search of shards takes memory, and may fail */
	if (gv_is_survivable(status) && batch->n > 1)
		answered = search_singly(batch, status);
	else
		for (i = 0; i < batch->n; i++)
			answered += answer(batch, i, status, ended_ns);
	end_batch(batch, answered);
}

/* ---- many queries of one message */

/*
 * Searches for all queries of a request in parts, and answers the request.  If
 * the engine cannot do a part, parts become half as large.  Unlocks the mirror
 * between parts, so that loaders have their turn: while a loader waits for the
 * mirror's lock, the loop's next batch waits behind it.  Each answer has the
 * states of the lists that were searched for it.  Returns the number of
 * queries answered.
 */
static int32_t
search_all(GvConnection *connection, GvMirrorEntry *entry,
		   const GvAskedCondition *asked)
{
	const GvSearchRequest *request = gv_payload(connection);
	const GvStop *stop = &connection->stop;
	int32_t		at_once = request->n < gv_server.at_once ? request->n :
	gv_server.at_once;
	GvSearch   *searches = malloc((size_t) at_once * sizeof(GvSearch));
	char	   *reply = request->shared ? shared_answers(entry, connection) :
	gv_reply(connection, (size_t) request->n * (size_t)
			 gv_answer_most(request, entry->spec.refine_slots > 0));
	char	   *next = reply;
	GvStatus	status = searches != NULL ? GV_OK : GV_NO_MEMORY;
	int32_t		done = 0;

	while (reply != NULL && status == GV_OK && done < request->n)
	{
		int32_t		left = request->n - done;
		int32_t		n = left < at_once ? left : at_once;
		uint64_t	began_ns;
		uint64_t	ended_ns;
		GvTeam		team;
		int			watched;
		int32_t		i;

		/*
		 * smaller parts would need as many searchers, so do not try smaller
		 * parts now
		 */
		status = stop->requested(stop->arg) ? GV_CANCELED :
			gv_searchers_take(entry, stop, &team);
		if (status != GV_OK)
			break;
		began_ns = gv_now_ns();
		prepare(entry, connection, asked, done, n, searches);
		watched = gv_watchdog_bulk_begin(began_ns);
		status = gv_mirror_search_shards(team.searchers, team.nshards,
										 entry->mirror, searches, n);
		gv_watchdog_bulk_end(watched);
		ended_ns = gv_now_ns();

		/*
		 * the results are in the searchers' memory, so copy them before
		 * another thread searches
		 */
		for (i = 0; i < n && status == GV_OK; i++)
		{
			GvSearchReply head = answer_head(entry, connection, &searches[i],
											 n, began_ns, ended_ns);
			size_t		bytes = (size_t) gv_answer_bytes(request, &head);

			put_answer(entry, &searches[i], NULL, &head, next, bytes);
			next += bytes;
		}
		pthread_rwlock_unlock(&entry->lock);
		gv_searchers_give(&team);
		if (status == GV_OK)
		{
			done += n;
			/* searches that calibrate a build are not users' searches */
			if (!gv_is_calibration(&entry->key))
			{
				gv_count(searches, n);
				gv_count(batches, 1);
			}
		}
		else if (gv_is_survivable(status) && n > 1)
		{
			at_once = n / 2;
			status = GV_OK;
		}
	}
	free(searches);
	if (reply == NULL)
		return 0;
	if (status == GV_OK)
	{
		if (request->shared)
			gv_count(sent, next - reply);
		else
			gv_reply_cut(connection, (size_t) (next - reply));
		return done;
	}
	/* replaces an answer that is not whole */
	gv_refuse(connection, status == GV_CANCELED ? GV_REFUSED_FAILED :
			  gv_status_refusal(status), "the searches failed");
	connection->close_after_send |= status == GV_CANCELED;
	return 0;
}

/*
 * Answers GV_MSG_SEARCH: puts a session's search into the queue, and answers
 * any other client's search here, in the client's own thread.
 */
static GvStatus
answer_search(GvConnection *connection, const char **wrong)
{
	const GvSearchRequest *request = gv_payload(connection);
	GvRefusalCode refusal;
	GvMirrorEntry *entry;
	GvAskedCondition asked;
	int32_t		answered = 0;

	*wrong = "a search out of range";
	if (request->n < 1 || request->n > GV_MAX_QUERIES ||
		(connection->role == GV_ROLE_SESSION &&
		 (request->n > 1 || request->shared)) ||
		request->dims < 1 || request->dims > GV_MAX_DIMS ||
		request->ntests < 0 || request->ntests > GV_MAX_TESTS ||
		request->nvalues < 0 || request->nvalues > GV_MAX_VALUES ||
		request->asked < 0 || request->asked > 1 ||
		request->keep < 0 || request->rows < 0 ||
		(request->keep > 0 && connection->role != GV_ROLE_SESSION) ||
		request->shared < 0 || request->shared > 1 ||
		gv_message(connection)->length !=
		sizeof(*request) + gv_tests_bytes(request) +
		(request->shared ? 0 : gv_queries_bytes(request)) ||
		request->probes < 1 || request->probes > GV_MAX_PROBES ||
		request->compare < 1 ||
		request->capacity < 1 || request->capacity > GV_MAX_HITS ||
		!(request->part >= 0 && request->part < 1) ||
		request->rank < 0 || request->rank > request->capacity ||
		(request->rank > 0 && request->ntests == 0))
		return GV_INVALID;
	connection->received_ns = gv_now_ns();
	if (request->shared)
		gv_count(received, gv_queries_bytes(request));
	if (connection->role == GV_ROLE_SESSION)
	{
		gv_batches_add(connection);
		return GV_OK;
	}
	entry = gv_mirrors_acquire(&request->key, connection->owner, &refusal);
	if (entry == NULL)
	{
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
		return GV_OK;
	}
	if (!connection->searches)
		gv_searchers_count(1);
	connection->searches = true;
	*wrong = open_search(entry, connection, &asked);
	if (*wrong == NULL)
		answered = search_all(connection, entry, &asked);
	gv_mirrors_release(entry, answered);
	return *wrong == NULL ? GV_OK : GV_INVALID;
}

const GvMessageKind gv_search_messages[] = {
	{GV_MSG_SEARCH, GV_BY(SESSION) | GV_BY(BULK) | GV_BY(BUILDER),
		GV_FROM(GvSearchRequest), .answer = answer_search, .phase = GV_JOB_OWNER,
	.in_memory = true},
	{0}
};
