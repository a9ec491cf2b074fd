/*
 * remotesearch.c
 *		Searches by gpuvecd: for one query, or for many in one message.
 *
 * If a function here returns no answer, the caller searches with its own
 * engine.  A session remembers for a while that a mirror is missing or did not
 * answer in time, so that not every query asks gpuvecd in vain.
 *
 * A message of many queries needs a connection with another role
 * (GV_ROLE_BULK), because gpuvecd serves this connection in a separate thread.
 * A process has one connection at a time, in either role.
 */
#include "postgres.h"

#include "client/client.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "miscadmin.h"

/* How long a session remembers that there is no mirror. */
#define MISSING_US			1000000

/*
 * After a first time-out, a session does not search in the mirror for
 * AVOID_US, and after several time-outs in a row for at most MAX_AVOID_US.
 */
#define AVOID_US			INT64CONST(1000000)
#define MAX_AVOID_US		INT64CONST(60000000)

/* Interval between a session's requests that a mirror catches up. */
#define STALE_US			200000

/*
 * After this many searches that were alone in their batches, the next one is
 * expected to be alone, too.
 */
#define SOLO_SEARCHES		16

/* Number of mirrors that a session remembers something about. */
#define NHINTS			16

/* Number of queries that add one gpuvec.request_timeout to the time limit. */
#define QUERIES_PER_TIMEOUT	256

/* The facts that this session remembers about a mirror; times are IvfpqNow. */
typedef struct MirrorHint
{
	GvMirrorKey key;

	/* IVFPQ_NOT_MIRRORED or IVFPQ_LOADING; IVFPQ_ANSWERED: neither */
	IvfpqOutcome missing;
	uint64		epoch;			/* `missing` holds in this epoch only */
	int64		missing_until;

	int64		stale_until;	/* no request to catch up before this time */

	/*
	 * After a time-out, the session does not search in the mirror before
	 * avoid_until, unless gpuvec.request_timeout was raised above avoid_ms or
	 * gpuvecd's instance has changed.
	 */
	int			timeouts;		/* time-outs in a row */
	int64		avoid_until;
	int			avoid_ms;		/* request_timeout at the last time-out */
	uint64		instance;		/* gpuvecd's instance at that time-out */
} MirrorHint;

static MirrorHint hints[NHINTS];

/* When the last answer to many queries came (IvfpqNow). */
static int64 idle_since;

/* Counts a message by its outcome. */
static void
count_outcome(IvfpqOutcome served)
{
	if (ivfpq_shared == NULL)
		return;
	pg_atomic_fetch_add_u64(&ivfpq_shared->served[served], 1);
	if (served == IVFPQ_ANSWERED)
		pg_atomic_fetch_add_u64(&ivfpq_shared->answers, 1);
}

/* Returns a mirror's hint.  Clears the hint if another mirror had the slot. */
static MirrorHint *
mirror_hint(const GvMirrorKey *key)
{
	MirrorHint *hint = &hints[(key->relation ^ key->build_id) % NHINTS];

	if (!gv_same_key(&hint->key, key))
	{
		memset(hint, 0, sizeof(*hint));
		hint->key = *key;
	}
	return hint;
}

/*
 * Decides whether to ask gpuvecd.  Returns IVFPQ_ANSWERED if so, and otherwise
 * the outcome that says why not.
 */
static IvfpqOutcome
decide(Relation index, const IvfpqMetaData *meta,
	   const GvSearchRequest *request)
{
	const GvMirrorKey *key = &request->key;
	MirrorHint *hint;

	if (!IvfpqServerIsWanted() || !IvfpqCanMirror(index, meta) ||
		request->probes < 1 || request->probes > GV_MAX_PROBES ||
		request->capacity < 1 || request->capacity > GV_MAX_HITS ||
		request->nvalues > GV_MAX_VALUES)
		return IVFPQ_NOT_ASKED;
	if (IvfpqSharedState() != IVFPQ_STATE_UP)
		return IVFPQ_DOWN;
	if (pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return IVFPQ_SUSPENDED;
	hint = mirror_hint(key);
	if (hint->timeouts > 0 &&
		hint->instance == pg_atomic_read_u64(&ivfpq_shared->instance) &&
		ivfpq_request_timeout <= hint->avoid_ms &&
		IvfpqNow() < hint->avoid_until)
		return IVFPQ_SUSPENDED;
	if (hint->missing != IVFPQ_ANSWERED &&
		hint->epoch == pg_atomic_read_u64(&ivfpq_shared->epoch) &&
		IvfpqNow() < hint->missing_until)
		return hint->missing;
	return IVFPQ_ANSWERED;
}

/*
 * Remembers the outcome of a search in a mirror.  `epoch` is the value of
 * ivfpq_shared->epoch that the caller read before it sent the search.
 *
 * If the mirror is missing, requests it.  After a time-out, this session does
 * not search in the mirror for a while, and for a longer while after each
 * further time-out in a row.  The session still searches in other mirrors,
 * which may be on a device that answers.
 */
static void
record_outcome(const GvMirrorKey *key, IvfpqOutcome served, uint64 epoch)
{
	MirrorHint *hint = mirror_hint(key);

	switch (served)
	{
		case IVFPQ_ANSWERED:
			hint->timeouts = 0;
			break;
		case IVFPQ_TIMED_OUT:
			hint->instance = pg_atomic_read_u64(&ivfpq_shared->instance);
			hint->avoid_until = IvfpqNow() +
				Min(AVOID_US << Min(hint->timeouts, 6), MAX_AVOID_US);
			hint->avoid_ms = ivfpq_request_timeout;
			hint->timeouts++;
			break;
		case IVFPQ_NOT_MIRRORED:
		case IVFPQ_LOADING:
			hint->missing = served;
			hint->epoch = epoch;
			hint->missing_until = IvfpqNow() + MISSING_US;
			if (served == IVFPQ_NOT_MIRRORED && ivfpq_auto_mirror)
				(void) IvfpqRequestMirror(key, true, false);
			break;
		default:
			break;
	}
}

/*
 * Checks one answer, which begins at `body`, `length` bytes before the end of
 * the message.  The answer has to be complete and no larger than requested,
 * and its numbers that callers use as indexes have to be in range.  Sets
 * *answer, and returns the bytes of the answer, or 0 if it is invalid.
 */
static Size
take_answer(const char *body, Size length, const GvSearchRequest *request,
			int nlists, bool has_records, IvfpqRemoteResult *answer)
{
	const GvSearchReply *head = (const GvSearchReply *) body;
	bool		brief;
	GvAnswerArrays arrays;
	int64		bytes;

	if (length < sizeof(*head) ||
		head->nprobed < 0 || head->nprobed > request->probes ||
		head->nhits < 0 || head->nhits > request->capacity ||
		head->nbounds != (has_records ? (uint32) head->nhits : 0) ||
		(head->is_brief && request->version == 0) ||
		head->matches < 0 || head->nearer < 0 || head->nearer_squares < 0 ||
		head->nitems < head->matches ||
		!(head->weighted_matches >= 0 &&
		  head->weighted_nitems >= head->weighted_matches))
		return 0;
	brief = head->is_brief != 0;
	bytes = gv_answer_bytes(request, head);
	if (bytes > (int64) length)
		return 0;
	arrays = gv_answer_arrays(head, body);
	for (int i = 0; i < head->nprobed && !brief; i++)
		if (arrays.probed[i].list < 0 || arrays.probed[i].list >= nlists ||
			(request->ntests > 0 && arrays.matches[i] < 0))
			return 0;
	for (int i = 0; i < head->nhits; i++)
		if (arrays.hits[i].probe >= (uint32) head->nprobed)
			return 0;
	answer->head = *head;
	answer->probed = brief ? NULL : arrays.probed;
	answer->hits = arrays.hits;
	answer->bounds = has_records ? arrays.bounds : NULL;
	answer->matches = request->ntests > 0 && !brief ? arrays.matches : NULL;
	return bytes;
}

/*
 * Lets the session poll for its answers after SOLO_SEARCHES searches that were
 * alone in their batches, because then polling takes no processor from other
 * sessions.  It makes the searches of a single session 7 us faster.  But 64
 * sessions on 16 cores lost 7 % of their throughput when they polled after
 * only one search alone.
 */
static void
choose_polling(IvfpqChannel *channel, const GvSearchReply *head)
{
	static int	alone = 0;

	if (head->batch > 1 || head->engine_us >= IVFPQ_BUSY_POLL_US)
		alone = 0;
	else if (alone < SOLO_SEARCHES)
		alone++;
	channel->busy_poll = alone == SOLO_SEARCHES;
}

/* Returns the GvSearchRequest of a question. */
GvSearchRequest
IvfpqSearchRequest(const GvMirrorKey *key, int dims,
				   const IvfpqRemoteQuery *question)
{
	const GvCondition *condition = question->condition;
	int64		nvalues = 0;
	GvSearchRequest request = {
		.key = *key,
		.n = question->n,
		.dims = dims,
		.probes = question->probes,
		.compare = Max(question->compare, 1),
		.capacity = question->capacity,
		.ntests = condition ? condition->ntests : 0,
		.rank = question->rank,
		.version = question->version,
		.part = question->part
	};

	for (int i = 0; i < request.ntests; i++)
		if (condition->tests[i].kind == GV_TEST_SET)
			nvalues += condition->tests[i].nvalues;
	request.nvalues = (int32) Min(nvalues, PG_INT32_MAX);
	return request;
}

/*
 * Returns how many queries a question like this one may have.  question->n is
 * ignored.  has_records says whether the mirror has refine records.
 */
int
IvfpqMaxQueries(const IvfpqMetaData *meta, const IvfpqRemoteQuery *question,
				bool has_records)
{
	GvMirrorKey none = {0};
	GvSearchRequest request = IvfpqSearchRequest(&none, meta->dims, question);

	return gv_queries_most(&request, has_records);
}

/*
 * Returns the tail of a request with a condition: tests, values and queries.
 * *bytes is the size of the queries on entry, and is set to the size of the
 * tail.
 */
static char *
make_tail(const GvSearchRequest *request, const IvfpqRemoteQuery *question,
		  Size *bytes)
{
	Size		tests_bytes = gv_tests_bytes(request);
	char	   *tail = palloc_extended(tests_bytes + *bytes,
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	GvTestRequest *tests = (GvTestRequest *) tail;
	uint64	   *values = (uint64 *) (tests + request->ntests);

	for (int i = 0; i < request->ntests; i++)
	{
		const GvKeyTest *test = &question->condition->tests[i];

		tests[i].key = test->key;
		tests[i].kind = test->kind;
		tests[i].low = test->low;
		tests[i].high = test->high;
		if (test->kind != GV_TEST_SET || test->nvalues == 0)
			continue;
		tests[i].nvalues = test->nvalues;
		memcpy(values, test->values, test->nvalues * sizeof(uint64));
		values += test->nvalues;
	}
	memcpy(tail + tests_bytes, question->queries, *bytes);
	*bytes += tests_bytes;
	return tail;
}

/*
 * Sends a question's request and receives the answers [question->n].  nlists
 * and has_records describe the index.
 */
IvfpqOutcome
IvfpqSearchExchange(IvfpqChannel *channel, const GvSearchRequest *request,
					const IvfpqRemoteQuery *question, int nlists,
					bool has_records, IvfpqRemoteResult *answers)
{
	Size		bytes = (Size) request->n * request->dims * sizeof(float);
	char	   *made = request->ntests == 0 ? NULL :
	make_tail(request, question, &bytes);
	IvfpqOutcome served =
	IvfpqChannelAsk(channel, GV_MSG_SEARCH, request, sizeof(*request),
					made ? made : (const char *) question->queries, bytes,
					(uint32) (request->n *
							  gv_answer_most(request, has_records)));
	const char *next;
	Size		left;
	Size		used = 1;

	if (made)
		pfree(made);
	if (served != IVFPQ_ANSWERED)
		return served;
	next = IvfpqAnswerBody(channel);
	left = IvfpqAnswerLength(channel);
	for (int i = 0; i < request->n && used > 0; i++)
	{
		used = take_answer(next, left, request, nlists, has_records,
						   &answers[i]);
		answers[i].engine = channel->welcome.engine;
		next += used;
		left -= used;
	}
	if (used == 0 || left > 0)
		(void) IvfpqChannelReject(channel);
	return channel->served;
}

/* Asks gpuvecd.  *reason explains any outcome other than IVFPQ_ANSWERED. */
static IvfpqOutcome
ask(const GvSearchRequest *request, const IvfpqMetaData *meta,
	const IvfpqRemoteQuery *question, IvfpqRemoteResult *answers,
	const char **reason)
{
	bool		bulk = request->n > 1;
	uint64		epoch = pg_atomic_read_u64(&ivfpq_shared->epoch);
	int64		begun = IvfpqNow();
	IvfpqChannel *channel;
	IvfpqOutcome served;

	/*
	 * gpuvecd closes a bulk client's connection that was idle for
	 * GV_BULK_IDLE_MS, so we use a connection again only within half of that
	 * time.
	 */
	if (bulk && begun - idle_since > GV_BULK_IDLE_MS * INT64CONST(1000) / 2)
		IvfpqDisconnect();
	channel = IvfpqConnect(bulk ? GV_ROLE_BULK : GV_ROLE_SESSION,
						   (int64) ivfpq_request_timeout * 1000 *
						   (1 + request->n / QUERIES_PER_TIMEOUT));
	served = IvfpqSearchExchange(channel, request, question, meta->nlists,
								 IvfpqMirrorHasRecords(meta), answers);
	*reason = channel->reason;
	if (bulk)
		idle_since = IvfpqNow();
	else if (served == IVFPQ_ANSWERED)
	{
		IvfpqCountLatency(IvfpqNow() - begun);
		choose_polling(channel, &answers->head);
	}
	record_outcome(&request->key, served, epoch);
	return served;
}

/*
 * Raises an error if the request failed and gpuvec.on_gpu_error asks for an
 * error.  Otherwise the session's own engine will answer.
 */
static void
report_failure(IvfpqOutcome served, const char *reason)
{
	const char *detail = reason[0] == '\0' ? NULL : reason;

	if (ivfpq_on_gpu_error != IVFPQ_ON_ERROR_ERROR)
		return;

	switch (served)
	{
		case IVFPQ_DOWN:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("gpuvecd is not running"),
					 detail ? errdetail("The state is \"%s\": %s.",
										IvfpqStateName(), detail) :
					 errdetail("The state is \"%s\".", IvfpqStateName()),
					 errhint("%s", IvfpqUnservedHint())));
			break;
		case IVFPQ_SUSPENDED:
		case IVFPQ_TIMED_OUT:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 served == IVFPQ_SUSPENDED ?
					 errmsg("gpuvecd is not responding") :
					 errmsg("gpuvecd did not respond within %d ms",
							ivfpq_request_timeout),
					 errhint("Increase \"gpuvec.request_timeout\", or set \"gpuvec.on_gpu_error\" to \"fallback\".")));
			break;
		case IVFPQ_BROKEN:
		case IVFPQ_REFUSED:
		case IVFPQ_ENGINE_FAILED:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 served == IVFPQ_BROKEN ?
					 errmsg("connection to gpuvecd was lost") :
					 errmsg("gpuvecd refused a search"),
					 detail ? errdetail("Reason: %s.", detail) : 0,
					 errhint("See the server log, or set \"gpuvec.on_gpu_error\" to \"fallback\".")));
			break;
		default:
			/* nothing failed */
			break;
	}
}

/*
 * Searches in an index's mirror.  If that works, sets answers [question->n],
 * in the order of the queries, and returns IVFPQ_ANSWERED.  Otherwise returns
 * the reason why the caller has to search by itself or, if gpuvec.on_gpu_error
 * says so, raises an error for a failure.
 */
IvfpqOutcome
IvfpqRemoteSearch(Relation index, const IvfpqMetaData *meta,
				  const IvfpqRemoteQuery *question, IvfpqRemoteResult *answers)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);
	GvSearchRequest request = IvfpqSearchRequest(&key, meta->dims, question);
	const char *reason = "";
	IvfpqOutcome served = decide(index, meta, &request);

	if (served == IVFPQ_ANSWERED)
		served = ask(&request, meta, question, answers, &reason);
	count_outcome(served);
	if (served != IVFPQ_ANSWERED)
		report_failure(served, reason);
	return served;
}

/*
 * Reports that an answer came from a mirror older than the index, and requests
 * that the mirror catches up.  If `useless` is set, the caller cannot use the
 * answer and searches by itself, and the search is counted as stale.
 */
void
IvfpqMirrorMarkStale(Relation index, const IvfpqMetaData *meta, bool useless)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);
	MirrorHint *hint;
	int64		now;

	if (ivfpq_shared == NULL)
		return;
	if (useless)
	{
		count_outcome(IVFPQ_STALE);
		pg_atomic_fetch_sub_u64(&ivfpq_shared->served[IVFPQ_ANSWERED], 1);
	}
	hint = mirror_hint(&key);
	now = IvfpqNow();
	if (now < hint->stale_until)
		return;
	hint->stale_until = now + STALE_US;
	(void) IvfpqRequestMirror(&key, false, false);
}
