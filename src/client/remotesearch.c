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
 *
 * If there are many queries, they and their answers are in memory that is
 * shared with gpuvecd.  Each of two slots has the queries of a message, and
 * behind them room for their answers.  gpuvecd could change the answers later,
 * so only our copy is checked and used.  The slots are kept for the messages
 * that follow in the same connection, because making memory and mapping it
 * takes as long as thousands of queries.  When gpuvecd closes the connection,
 * which it does if no message comes for GV_BULK_IDLE_MS, it gives the memory
 * back, though this process still has it mapped.
 *
 * Single searches share memory, too (GvMailbox), after the first MAIL_AFTER of a
 * connection.
 */
#include "postgres.h"

#include "client/client.h"
#include "client/msgring.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "miscadmin.h"
#include "utils/memutils.h"

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

/*
 * Number of a connection's searches before memory for them is shared, which
 * takes as long as some searches, and its size: with its head it takes 96 kB.
 * An answer for LIMIT 1,000 has some 50 kB.
 */
#define MAIL_AFTER			8
#define MAIL_BYTES			((Size) 95 << 10)

/* Number of mirrors that a session remembers something about. */
#define NHINTS			16

/* Number of queries that add one gpuvec.request_timeout to the time limit. */
#define QUERIES_PER_TIMEOUT	256

/*
 * A message in shared memory takes gpuvecd and a GPU some 200 us and 0.3 us a
 * query, and the session 3 us a query and more.  So with MESSAGE_QUERIES the
 * GPU is ready before the session is.  The answers to more queries would leave
 * the processor's cache before they are used.
 */
#define MESSAGE_QUERIES		1024

/* Maximum size of a slot, and what must be sent and received to share it. */
#define MOST_SLOT_BYTES		((Size) 16 << 20)
#define LEAST_SHARED_BYTES	((Size) 1 << 20)

StaticAssertDecl(IVFPQ_BULK_UNDER_WAY * (MOST_SLOT_BYTES + BLCKSZ) <= GV_MAX_SHARED,
				 "gpuvecd takes so much");

/* The facts that this session remembers about a mirror; times are IvfpqNow. */
typedef struct MirrorHint
{
	GvMirrorKey key;

	/* IVFPQ_NOT_MIRRORED or IVFPQ_LOADING; IVFPQ_ANSWERED: neither */
	IvfpqOutcome missing;
	uint64		epoch;			/* `missing` holds in this epoch only */
	int64		missing_until;

	int64		stale_until;	/* no request to catch up before this time */
	int64		lacking_until;	/* likewise, for rows that it lacks */

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

/*
 * Queries that are asked in messages.  Without shared memory, one message is
 * under way at a time.
 */
struct IvfpqRemoteBulk
{
	Relation	index;
	const IvfpqMetaData *meta;
	bool		has_records;	/* the index's mirrors have refine records */
	int			size;			/* maximum number of queries in a message */
	int			total;			/* number of all queries */
	Size		slot_bytes;		/* of a slot to share; 0 = do not share */
	IvfpqRing  *ring;			/* the slots; NULL if none are shared */
	char	   *copy;			/* copy of the last message's answers, if they
								 * were shared */
	char	   *tail;			/* the tests and, unless they are in a slot,
								 * the queries of the last message */
	Size		tests_bytes;
	IvfpqChannel *channel;
	uint64		sent;			/* messages before this one are sent */
	uint64		taken;			/* messages before this one are taken */
	int64		sent_at;		/* when the last message was sent (IvfpqNow) */
	uint64		epoch;			/* ivfpq_shared->epoch at that time */
	IvfpqRemoteQuery question;	/* of the last message */
	GvSearchRequest requests[IVFPQ_BULK_UNDER_WAY]; /* of messages, by number
													 * % IVFPQ_BULK_UNDER_WAY */
	IvfpqOutcome decided;		/* IVFPQ_ANSWERED, or why the next message
								 * cannot be sent */
	MemoryContext context;		/* has the bulk itself */
	MemoryContextCallback callback;
};

/* The slots of this process, and the connection in which they are shared. */
static IvfpqRing slots;
static uint64 slots_connection;

/*
 * The mailbox of this process.  It stays mapped until the next search, even if
 * its connection has ended.
 */
static IvfpqRing mailbox;

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
 * the message.  If gpuvecd may change the answer meanwhile, `copy` is not NULL
 * and has room for the answer, which is copied there first.  The answer has to
 * be complete and no larger than requested, and its numbers that callers use
 * as indexes have to be in range.  Sets *answer, and returns the bytes of the
 * answer, or 0 if it is invalid.
 */
static Size
take_answer(const char *body, Size length, char *copy,
			const GvSearchRequest *request, int nlists, bool has_records,
			IvfpqRemoteResult *answer)
{
	const GvSearchReply *head = &answer->head;
	bool		brief;
	GvAnswerArrays arrays;
	int64		bytes;

	if (length < sizeof(*head))
		return 0;
	memcpy(&answer->head, body, sizeof(*head));
	if (head->nprobed < 0 || head->nprobed > request->probes ||
		head->nhits < 0 || head->nhits > request->capacity ||
		head->nbounds != (has_records ? (uint32) head->nhits : 0) ||
		(head->ndistances != 0 &&
		 (!request->asked || head->ndistances != (uint32) head->nhits)) ||
		head->nfound < head->nhits || head->nfound > request->capacity ||
		head->omitted.n < 0 || head->omitted.n > head->nfound - head->nhits ||
		(head->omitted.n == 0 && head->nfound > head->nhits) ||
		(head->omitted.n > 0 &&
		 (request->keep == 0 || head->ndistances == 0 ||
		  head->omitted.n > request->rows - head->nhits ||
		  (request->ntests > 0 && head->nfound == request->capacity))) ||
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
	if (copy != NULL)
		body = memcpy(copy, body, bytes);
	arrays = gv_answer_arrays(head, body);
	for (int i = 0; i < head->nprobed && !brief; i++)
		if (arrays.probed[i].list < 0 || arrays.probed[i].list >= nlists ||
			(request->ntests > 0 && arrays.matches[i] < 0))
			return 0;
	for (int i = 0; i < head->nhits; i++)
		if (arrays.hits[i].probe >= (uint32) head->nprobed)
			return 0;
	answer->probed = brief ? NULL : arrays.probed;
	answer->hits = arrays.hits;
	answer->bounds = has_records ? arrays.bounds : NULL;
	answer->distances = head->ndistances > 0 ? arrays.distances : NULL;
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
		.keep = question->keep,
		.rows = question->rows,
		.ntests = condition ? condition->ntests : 0,
		.rank = question->rank,
		.version = question->version,
		.part = question->part,
		.asked = question->asked != NULL
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

/* Puts the tests of a request and their values [gv_tests_bytes] into `to`. */
static void
put_tests(const GvSearchRequest *request, const IvfpqRemoteQuery *question,
		  char *to)
{
	GvTestRequest *tests = (GvTestRequest *) to;
	uint64	   *values = (uint64 *) (tests + request->ntests);

	memset(to, 0, gv_tests_bytes(request));
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
}

/* Returns the tail of a request: tests, values and queries. */
static char *
make_tail(const GvSearchRequest *request, const IvfpqRemoteQuery *question)
{
	Size		bytes = (Size) request->n * request->dims * sizeof(float);
	char	   *tail = palloc_extended(gv_tests_bytes(request) +
									   gv_queries_bytes(request),
									   MCXT_ALLOC_HUGE);
	char	   *queries = tail + gv_tests_bytes(request);

	put_tests(request, question, tail);
	memcpy(queries, question->queries, bytes);
	if (request->asked)
		memcpy(queries + bytes, question->asked, bytes);
	return tail;
}

/*
 * Checks the answers [request->n] that begin at `body`, as take_answer does,
 * and closes the channel if one of them is invalid.  If `copy` is not NULL,
 * what follows the last answer does not belong to the message.
 */
static void
take_message(IvfpqChannel *channel, const char *body, Size length, char *copy,
			 const GvSearchRequest *request, int nlists, bool has_records,
			 IvfpqRemoteResult *answers)
{
	Size		used = 1;

	for (int i = 0; i < request->n && used > 0; i++)
	{
		used = take_answer(body, length, copy, request, nlists, has_records,
						   &answers[i]);
		answers[i].engine = channel->welcome.engine;
		body += used;
		length -= used;
		if (copy != NULL)
			copy += used;
	}
	if (used == 0 || (length > 0 && copy == NULL))
		(void) IvfpqChannelReject(channel);
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
	char	   *made = request->ntests == 0 && !request->asked ? NULL :
	make_tail(request, question);
	IvfpqOutcome served =
	IvfpqChannelAsk(channel, GV_MSG_SEARCH, request, sizeof(*request),
					made ? made : (const char *) question->queries,
					gv_tests_bytes(request) + gv_queries_bytes(request),
					(uint32) (request->n *
							  gv_answer_most(request, has_records)));

	if (made)
		pfree(made);
	if (served != IVFPQ_ANSWERED)
		return served;
	take_message(channel, IvfpqAnswerBody(channel), IvfpqAnswerLength(channel),
				 NULL, request, nlists, has_records, answers);
	return channel->served;
}

/*
 * Shares slots with gpuvecd.  Returns false if that fails; messages then go
 * through the socket.
 */
static bool
share_slots(IvfpqRing *ring, IvfpqChannel *channel, int nslots,
			Size payload_bytes)
{
	(void) IvfpqRingOpen(ring, channel, nslots, payload_bytes, true);
	if (ring->is_shared)
		return true;
	/* slots that are not shared would only be another copy */
	if (ring->slots != NULL)
		pfree(ring->slots);
	memset(ring, 0, sizeof(*ring));
	return false;
}

/* Shares memory for single searches, once a connection has had some. */
static void
share_mailbox(IvfpqChannel *channel)
{
	static uint64 connection = 0;
	static int	searches = 0;

	if (connection != channel->connection)
	{
		IvfpqRingClose(&mailbox);
		connection = channel->connection;
		searches = 0;
	}
	if (!IvfpqChannelIsOpen(channel) || searches > MAIL_AFTER ||
		searches++ < MAIL_AFTER)
		return;
	/* the mailbox begins where the ring's slot has its head */
	if (share_slots(&mailbox, channel, 1, MAIL_BYTES))
		IvfpqChannelUse(channel, mailbox.slots,
						IvfpqRingOffset(&mailbox, 0) + MAIL_BYTES);
}

/* Asks gpuvecd.  *reason explains any outcome other than IVFPQ_ANSWERED. */
static IvfpqOutcome
ask(const GvSearchRequest *request, const IvfpqMetaData *meta,
	const IvfpqRemoteQuery *question, IvfpqRemoteResult *answers,
	const char **reason)
{
	uint64		epoch = pg_atomic_read_u64(&ivfpq_shared->epoch);
	int64		begun = IvfpqNow();
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_SESSION,
										 (int64) ivfpq_request_timeout * 1000);
	IvfpqOutcome served;

	share_mailbox(channel);
	served = IvfpqSearchExchange(channel, request, question, meta->nlists,
								 IvfpqMirrorHasRecords(meta), answers);
	*reason = channel->reason;
	if (served == IVFPQ_ANSWERED)
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
 * Searches in an index's mirror for one query.  If that works, sets *answer
 * and returns IVFPQ_ANSWERED.  Otherwise returns the reason why the caller has
 * to search by itself or, if gpuvec.on_gpu_error says so, raises an error for
 * a failure.
 */
IvfpqOutcome
IvfpqRemoteSearch(Relation index, const IvfpqMetaData *meta,
				  const IvfpqRemoteQuery *question, IvfpqRemoteResult *answer)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);
	GvSearchRequest request = IvfpqSearchRequest(&key, meta->dims, question);
	const char *reason = "";
	IvfpqOutcome served = decide(index, meta, &request);

	if (served == IVFPQ_ANSWERED)
		served = ask(&request, meta, question, answer, &reason);
	count_outcome(served);
	if (served != IVFPQ_ANSWERED)
		report_failure(served, reason);
	return served;
}

/* Tells gpuvecd whether there may be answers in the slots that are not taken. */
static void
mark_slots(bool in_use)
{
	if (slots.is_shared)
		__atomic_store_n((uint64 *) slots.slots, in_use, __ATOMIC_SEQ_CST);
}

/*
 * Ends the use of the slots: no more answers are taken from them.  Unmaps them
 * if an error kept them from being shared.
 */
static void
release(void *arg)
{
	mark_slots(false);
	if (slots_connection == 0)
		IvfpqRingClose(&slots);
}

/* Returns the bytes of the answers to a request, at most. */
static Size
answers_bytes(const IvfpqRemoteBulk *bulk, const GvSearchRequest *request)
{
	return request->n * gv_answer_most(request, bulk->has_records);
}

/* Returns the bytes of a request's queries and, at most, of their answers. */
static Size
message_bytes(const IvfpqRemoteBulk *bulk, const GvSearchRequest *request)
{
	return gv_shared_queries_bytes(request) + answers_bytes(bulk, request);
}

/*
 * Begins to ask question->n queries.  The question says what all of them have
 * in common; its queries and its version are not used.
 * A reset of the current memory context ends the bulk.
 */
IvfpqRemoteBulk *
IvfpqRemoteBulkBegin(Relation index, const IvfpqMetaData *meta,
					 const IvfpqRemoteQuery *question)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq messages",
												  ALLOCSET_SMALL_SIZES);
	IvfpqRemoteBulk *bulk = MemoryContextAllocZero(context,
												   sizeof(IvfpqRemoteBulk));
	GvMirrorKey none = {0};
	GvSearchRequest request = IvfpqSearchRequest(&none, meta->dims, question);
	Size		query_bytes;

	bulk->context = context;
	bulk->callback.func = release;
	MemoryContextRegisterResetCallback(context, &bulk->callback);
	bulk->index = index;
	bulk->meta = meta;
	bulk->has_records = IvfpqMirrorHasRecords(meta);
	bulk->total = question->n;
	bulk->size = Min(question->n, gv_queries_most(&request, bulk->has_records));
	bulk->decided = IVFPQ_ANSWERED;
	request.n = 1;
	query_bytes = message_bytes(bulk, &request);
	if (bulk->total > 1 && query_bytes <= MOST_SLOT_BYTES &&
		bulk->total * query_bytes >= LEAST_SHARED_BYTES)
	{
		bulk->size = (int) Min(Min(bulk->size, MESSAGE_QUERIES),
							   (int64) (MOST_SLOT_BYTES / query_bytes));
		bulk->slot_bytes = bulk->size * query_bytes;
	}
	bulk->tests_bytes = gv_tests_bytes(&request);
	bulk->tail = MemoryContextAlloc(context, Max(bulk->tests_bytes, 1));
	put_tests(&request, question, bulk->tail);
	return bulk;
}

/* Returns the maximum number of queries in a message. */
int
IvfpqRemoteBulkSize(const IvfpqRemoteBulk *bulk)
{
	return bulk->size;
}

/*
 * Returns whether a connection is surely open still that gpuvecd may have seen
 * idle since this time.  gpuvecd closes it after GV_BULK_IDLE_MS, half of which
 * is left for delays.
 */
static bool
is_fresh(int64 since)
{
	return IvfpqNow() - since <= GV_BULK_IDLE_MS * INT64CONST(1000) / 2;
}

/*
 * Returns whether a message may be sent now, before the answers to earlier ones
 * are taken.  If gpuvecd may have answered these long ago, it is about to close
 * the connection, and their answers must be taken first.
 */
bool
IvfpqRemoteBulkMaySend(const IvfpqRemoteBulk *bulk)
{
	uint64		under_way = bulk->sent - bulk->taken;

	if (bulk->decided != IVFPQ_ANSWERED)
		return false;
	return under_way == 0 ||
		(bulk->ring != NULL && under_way < IVFPQ_BULK_UNDER_WAY &&
		 IvfpqChannelIsOpen(bulk->channel) && is_fresh(bulk->sent_at));
}

/* Returns the time limit for the messages under way, in microseconds. */
static int64
time_limit(const IvfpqRemoteBulk *bulk)
{
	int			n = 0;

	for (uint64 i = bulk->taken; i < bulk->sent; i++)
		n += bulk->requests[i % IVFPQ_BULK_UNDER_WAY].n;
	return (int64) ivfpq_request_timeout * 1000 *
		(1 + n / QUERIES_PER_TIMEOUT);
}

/*
 * Connects, while no message is under way, and shares slots with gpuvecd if
 * that pays off and this connection has none that are large enough.  If sharing
 * fails, messages go through the socket.
 */
static void
prepare_channel(IvfpqRemoteBulk *bulk)
{
	int			nslots = bulk->total > bulk->size ? IVFPQ_BULK_UNDER_WAY : 1;
	IvfpqChannel *channel;
	MemoryContext oldcontext;
	bool		shared;

	if (!is_fresh(idle_since))
		IvfpqDisconnect();
	channel = bulk->channel = IvfpqConnect(GV_ROLE_BULK, time_limit(bulk));
	if (slots_connection != channel->connection)
		IvfpqRingClose(&slots);
	bulk->ring = NULL;
	if (bulk->slot_bytes == 0 || !IvfpqChannelIsOpen(channel))
		return;
	if (!slots.is_shared || slots.nslots < nslots ||
		slots.payload_bytes < bulk->slot_bytes)
	{
		IvfpqRingClose(&slots);
		slots_connection = 0;
		oldcontext = MemoryContextSwitchTo(bulk->context);
		shared = share_slots(&slots, channel, nslots, bulk->slot_bytes);
		MemoryContextSwitchTo(oldcontext);
		if (!shared)
			return;
		slots_connection = channel->connection;
		channel->max_in_flight = IVFPQ_BULK_UNDER_WAY;
	}
	bulk->ring = &slots;
	mark_slots(true);
}

/* Makes room for queries in the tail, behind the tests. */
static char *
extend_tail(IvfpqRemoteBulk *bulk, Size bytes)
{
	bulk->tail = repalloc_huge(bulk->tail, bulk->tests_bytes + bytes);
	return bulk->tail + bulk->tests_bytes;
}

/*
 * Sends a message, whose question is that of IvfpqRemoteBulkBegin except for
 * the number of queries, the version, and `asked`, which may be NULL.
 * put(arg, first, n, vectors) sets vectors [n][dims] to the queries, which are
 * made where gpuvecd reads them.
 */
void
IvfpqRemoteBulkSend(IvfpqRemoteBulk *bulk, const IvfpqRemoteQuery *question,
					IvfpqQueryPut put, void *arg, int first)
{
	GvMirrorKey key = IvfpqMirrorKey(bulk->index, bulk->meta);
	GvSearchRequest *request = &bulk->requests[bulk->sent % IVFPQ_BULK_UNDER_WAY];
	Size		bytes = (Size) question->n * bulk->meta->dims * sizeof(float);
	Size		tail_bytes = bulk->tests_bytes;
	char	   *queries;
	uint32		max_length = 0;

	Assert(IvfpqRemoteBulkMaySend(bulk));
	if (bulk->total == 1)
	{
		/* see IvfpqRemoteBulkTake */
		queries = extend_tail(bulk, bytes);
		put(arg, first, 1, (float *) queries);
		bulk->question = *question;
		bulk->question.queries = (float *) queries;
		return;
	}
	*request = IvfpqSearchRequest(&key, bulk->meta->dims, question);
	bulk->decided = decide(bulk->index, bulk->meta, request);
	if (bulk->decided != IVFPQ_ANSWERED)
		return;
	bulk->sent++;
	bulk->epoch = pg_atomic_read_u64(&ivfpq_shared->epoch);
	if (bulk->sent - bulk->taken == 1)
		prepare_channel(bulk);
	if (bulk->ring != NULL)
	{
		request->shared = 1;
		request->offset = IvfpqRingOffset(bulk->ring, bulk->sent - 1);
		queries = IvfpqRingSlot(bulk->ring, bulk->sent - 1);
	}
	else
	{
		tail_bytes += gv_queries_bytes(request);
		queries = extend_tail(bulk, gv_queries_bytes(request));
		max_length = (uint32) answers_bytes(bulk, request);
	}
	put(arg, first, request->n, (float *) queries);
	if (request->asked)
		memcpy(queries + bytes, question->asked, bytes);
	IvfpqChannelExpect(bulk->channel, time_limit(bulk));
	(void) IvfpqChannelAdd(bulk->channel, GV_MSG_SEARCH, request,
						   sizeof(*request), bulk->tail, tail_bytes,
						   max_length);
	if (bulk->ring != NULL)
		(void) IvfpqChannelMove(bulk->channel);
	bulk->sent_at = IvfpqNow();
}

/* Waits for the answers to the oldest message, and sets answers [request->n]. */
static IvfpqOutcome
await_message(IvfpqRemoteBulk *bulk, const GvSearchRequest *request,
			  IvfpqRemoteResult *answers)
{
	IvfpqChannel *channel = bulk->channel;
	const char *body;
	Size		length;
	char	   *copy = NULL;

	if (!IvfpqChannelAwait(channel, bulk->sent - bulk->taken - 1))
		return channel->served;
	if (request->shared)
	{
		length = answers_bytes(bulk, request);
		/* no later message is larger than the first */
		if (bulk->copy == NULL)
			bulk->copy = MemoryContextAllocHuge(bulk->context, length);
		copy = bulk->copy;
		body = IvfpqRingSlot(bulk->ring, bulk->taken) +
			gv_shared_queries_bytes(request);
	}
	else
	{
		body = IvfpqAnswerBody(channel);
		length = IvfpqAnswerLength(channel);
	}
	take_message(channel, body, length, copy, request, bulk->meta->nlists,
				 bulk->has_records, answers);
	return channel->served;
}

IvfpqOutcome
IvfpqRemoteBulkTake(IvfpqRemoteBulk *bulk, IvfpqRemoteResult *answers)
{
	const GvSearchRequest *request = &bulk->requests[bulk->taken % IVFPQ_BULK_UNDER_WAY];
	IvfpqOutcome served = bulk->decided;
	const char *reason = "";

	/* a query that is alone goes the way of other scans' queries */
	if (bulk->total == 1)
		return IvfpqRemoteSearch(bulk->index, bulk->meta, &bulk->question,
								 answers);
	if (bulk->taken < bulk->sent)
	{
		served = await_message(bulk, request, answers);
		record_outcome(&request->key, served, bulk->epoch);
		reason = bulk->channel->reason;
		idle_since = IvfpqNow();
		bulk->taken++;
		if (bulk->taken < bulk->sent)
			IvfpqChannelExpect(bulk->channel, time_limit(bulk));
	}
	count_outcome(served);
	if (served != IVFPQ_ANSWERED)
		report_failure(served, reason);
	return served;
}

/* Ends the bulk.  Answers to messages under way are lost. */
void
IvfpqRemoteBulkEnd(IvfpqRemoteBulk *bulk)
{
	MemoryContextDelete(bulk->context);
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

/*
 * Returns whether the mirror was reported as older than the index lately, so
 * that its answers may have to be merged with rows that it lacks.
 */
bool
IvfpqMirrorMayBeStale(Relation index, const IvfpqMetaData *meta)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);

	return IvfpqNow() < mirror_hint(&key)->stale_until;
}

/*
 * Reports rows tids [n] that an answer told no distances of, though the session
 * sees them, so that a loader brings them.
 */
void
IvfpqMirrorLacksRows(Relation index, const IvfpqMetaData *meta,
					 const ItemPointerData *tids, int n)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);
	MirrorHint *hint;
	int64		now;

	if (ivfpq_shared == NULL || n == 0)
		return;
	hint = mirror_hint(&key);
	now = IvfpqNow();
	if (now < hint->lacking_until)
		return;
	hint->lacking_until = now + STALE_US;
	IvfpqMirrorNoteLacking(&key, tids, n);
}
