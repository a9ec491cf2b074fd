/*
 * remotesearch.c
 *		A search by gpuvecd, or the reason why there is none.
 *
 * The caller's own engine answers whenever this does not.  A session remembers
 * a refusal for a while, so that it does not ask in vain for every query.
 */
#include "postgres.h"

#include "client/serverconn.h"
#include "client/servershared.h"
#include "miscadmin.h"

#include "client/mirrorqueue.h"
#include "client/remotesearch.h"

/* How long a session believes that there is no mirror. */
#define MISSING_US			1000000

/* How long it does not ask for a mirror when a search waited in vain. */
#define SILENT_US			INT64CONST(1000000)
#define MOST_SILENT_US		INT64CONST(60000000)

/* How often a session says that a mirror lacks something. */
#define STALE_US			200000

/* Searches alone in their batches, after which the next may be, too. */
#define ALONE_LONG			16

/* Indexes that a session remembers something about, at most. */
#define NMEMORIES			16

/* This session's memory of a mirror. */
typedef struct Memory
{
	GvMirrorKey key;
	IvfpqServed missing;		/* IVFPQ_SERVED: it is there */
	uint64		epoch;			/* `missing` is good for */
	int64		missing_until;
	int64		stale_until;	/* not to be asked to catch up before */
	int			silences;		/* searches in a row that waited in vain */
	int64		silent_until;	/* not to be asked again before */
	int			silent_ms;		/* unless with more patience than this, */
	uint64		instance;		/* or by another run of gpuvecd */
} Memory;

static Memory memories[NMEMORIES];

static void
ask_count(IvfpqServed served)
{
	if (ivfpq_shared == NULL)
		return;
	pg_atomic_fetch_add_u64(&ivfpq_shared->served[served], 1);
	if (served == IVFPQ_SERVED)
		pg_atomic_fetch_add_u64(&ivfpq_shared->answers, 1);
}

/* Returns the memory of a mirror; overwrites another mirror's in its slot. */
static Memory *
recall(const GvMirrorKey *key)
{
	Memory	   *memory = &memories[(key->relation ^ key->build_id) % NMEMORIES];

	if (!IvfpqSameKey(&memory->key, key))
	{
		memset(memory, 0, sizeof(*memory));
		memory->key = *key;
	}
	return memory;
}

/* IVFPQ_SERVED: ask gpuvecd; else why not. */
static IvfpqServed
ask_decide(Relation index, const IvfpqMetaData *meta,
			   const GvSearchRequest *request)
{
	const GvMirrorKey *key = &request->key;
	Memory	   *memory;

	if (!IvfpqServerIsWanted() || !IvfpqCanMirror(index, meta) ||
		request->probes < 1 || request->probes > GV_MAX_PROBES ||
		request->capacity < 1 || request->capacity > GV_MAX_HITS ||
		request->nvalues > GV_MAX_VALUES)
		return IVFPQ_NOT_ASKED;
	if (IvfpqSharedState() != IVFPQ_STATE_UP)
		return IVFPQ_DOWN;
	if (pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return IVFPQ_SUSPENDED;
	memory = recall(key);
	if (memory->silences > 0 &&
		memory->instance == pg_atomic_read_u64(&ivfpq_shared->instance) &&
		ivfpq_request_timeout <= memory->silent_ms &&
		IvfpqNow() < memory->silent_until)
		return IVFPQ_SUSPENDED;
	if (memory->missing != IVFPQ_SERVED &&
		memory->epoch == pg_atomic_read_u64(&ivfpq_shared->epoch) &&
		IvfpqNow() < memory->missing_until)
		return memory->missing;
	return IVFPQ_SERVED;
}

/* There is no mirror, or it is not ready: remember that; ask for one. */
static void
note_missing(const GvMirrorKey *key, IvfpqServed served, uint64 epoch)
{
	Memory	   *memory = recall(key);

	memory->missing = served;
	memory->epoch = epoch;
	memory->missing_until = IvfpqNow() + MISSING_US;
	if (served == IVFPQ_NOT_MIRRORED && ivfpq_auto_mirror)
		(void) IvfpqRequestMirror(key, true, false);
}

/*
 * A search waited in vain: let this session not ask for the mirror for a
 * while, each time for longer.  Another mirror may be on a device that
 * answers.
 */
static void
note_silence(const GvMirrorKey *key, int64 begun, uint64 served)
{
	Memory	   *memory = recall(key);

	memory->instance = pg_atomic_read_u64(&ivfpq_shared->instance);
	memory->silent_until = IvfpqNow() +
		Min(SILENT_US << Min(memory->silences, 6), MOST_SILENT_US);
	memory->silent_ms = ivfpq_request_timeout;
	memory->silences++;
	IvfpqNoteSilence(begun, served);
}

/* Do the sums of an answer make sense? */
static bool
check_sums(const GvSearchReply *head)
{
	return head->matches >= 0 && head->nearer >= 0 &&
		head->nearer_squares >= 0 && head->nitems >= head->matches &&
		head->weighted_matches >= 0 &&
		head->weighted_nitems >= head->weighted_matches;
}

/* Do its lists, and what hits say of these? */
static bool
check_lists(const IvfpqMetaData *meta, const IvfpqAnswer *answer)
{
	const GvSearchReply *head = &answer->head;

	for (int i = 0; i < head->nprobed; i++)
		if (answer->probed[i].list < 0 ||
			answer->probed[i].list >= meta->nlists ||
			(answer->matches && answer->matches[i] < 0))
			return false;
	for (int i = 0; i < head->nhits; i++)
		if (answer->hits[i].probe >= (uint32) head->nprobed)
			return false;
	return true;
}

/*
 * Does an answer hold what it says, and nothing that was not asked for?  It is
 * the first of `length` bytes; returns how many it takes, 0 = no.
 */
static Size
check_answer(const char *body, Size length, const GvSearchRequest *request,
				 const IvfpqMetaData *meta, IvfpqAnswer *answer)
{
	bool		bounds = IvfpqMirrorHasRecords(meta);
	const GvSearchReply *head = (const GvSearchReply *) body;
	bool		matches;
	int			nlists;
	Size		used;

	if (length < sizeof(*head) ||
		head->nprobed < 0 || head->nprobed > request->probes ||
		head->nhits < 0 || head->nhits > request->capacity ||
		(head->is_brief && request->version == 0))
		return 0;
	nlists = head->is_brief ? 0 : head->nprobed;
	matches = request->ntests > 0 && !head->is_brief;
	used = sizeof(*head) +
		nlists * sizeof(GvProbeReply) + head->nhits * sizeof(GvHit) +
		head->nbounds * sizeof(GvBound) +
		(matches ? nlists * sizeof(int32) : 0);
	if (used > length ||
		head->nbounds != (bounds ? (uint32) head->nhits : 0))
		return 0;
	answer->head = *head;
	answer->probed = head->is_brief ? NULL : (const GvProbeReply *) (head + 1);
	answer->hits = (const GvHit *) ((const GvProbeReply *) (head + 1) + nlists);
	answer->bounds = bounds ? (const GvBound *) (answer->hits + head->nhits) :
		NULL;
	answer->matches = matches ?
		(const int32 *) (body + used) - nlists : NULL;
	return check_sums(head) && (head->is_brief || check_lists(meta, answer)) ?
		used : 0;
}

/*
 * A session that was alone for a while polls for its answers: that
 * takes no processor from others who search.  With 64 sessions on 16 cores to
 * do so after a single lone batch cost 7 % of their queries; one session's are
 * 7 us faster.
 */
static void
note_company(IvfpqChannel *channel, const GvSearchReply *head)
{
	static int	alone = 0;

	if (head->batch > 1 || head->engine_us >= IVFPQ_SOON_US)
		alone = 0;
	else if (alone < ALONE_LONG)
		alone++;
	channel->soon = alone == ALONE_LONG;
}

/* How many values the sets of a condition have. */
static int64
count_values(const GvCondition *condition)
{
	int64		n = 0;

	for (int i = 0; condition != NULL && i < condition->ntests; i++)
		if (condition->tests[i].kind == GV_TEST_SET)
			n += condition->tests[i].nvalues;
	return n;
}

/* Returns the bytes behind a request with a condition, *bytes of them. */
static char *
make_tail(const GvSearchRequest *request, const IvfpqQuestion *question,
		  Size *bytes)
{
	Size		query_bytes = request->dims * sizeof(float);
	Size		values_at = request->ntests * sizeof(GvTestRequest);
	Size		query_at = values_at + request->nvalues * sizeof(uint64);
	char	   *tail = palloc0(query_at + query_bytes);
	GvTestRequest *tests = (GvTestRequest *) tail;
	uint64	   *values = (uint64 *) (tail + values_at);

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
	memcpy(tail + query_at, question->query, query_bytes);
	*bytes = query_at + query_bytes;
	return tail;
}

/* Sends the request and receives its answer, of at most `most` bytes. */
static IvfpqServed
exchange(IvfpqChannel *channel, const GvSearchRequest *request,
		 const IvfpqQuestion *question, uint32 most)
{
	Size		bytes = request->dims * sizeof(float);
	char	   *tail = NULL;
	IvfpqServed served;

	if (request->ntests > 0)
		tail = make_tail(request, question, &bytes);
	served = IvfpqChannelAsk(channel, GV_MSG_SEARCH, request,
							 sizeof(*request),
							 tail ? tail : (const char *) question->query,
							 bytes, most);
	if (tail)
		pfree(tail);
	return served;
}

/* Remembers the outcome of a request that was sent after `begun`. */
static void
ask_note(const GvMirrorKey *key, IvfpqServed served, int64 begun,
			 uint64 before, uint64 epoch)
{
	if (served == IVFPQ_SERVED)
		recall(key)->silences = 0;
	else if (served == IVFPQ_TIMED_OUT)
		note_silence(key, begun, before);
	else if (served == IVFPQ_NOT_MIRRORED || served == IVFPQ_LOADING)
		note_missing(key, served, epoch);
}

/* Ask; *reason why it is not served. */
static IvfpqServed
ask(const GvSearchRequest *request, const IvfpqMetaData *meta,
	const IvfpqQuestion *question, IvfpqAnswer *answer, const char **reason)
{
	uint32		most = sizeof(GvSearchReply) +
	request->probes * (sizeof(GvProbeReply) + sizeof(int32)) +
	request->capacity * (sizeof(GvHit) + sizeof(GvBound));
	uint64		epoch = pg_atomic_read_u64(&ivfpq_shared->epoch);
	uint64		before = IvfpqCountServed();
	int64		begun = IvfpqNow();
	IvfpqChannel *channel = IvfpqConnect(GV_ROLE_SESSION, begun +
										 (int64) ivfpq_request_timeout * 1000);
	IvfpqServed served = exchange(channel, request, question, most);

	answer->engine = channel->welcome.engine;
	if (served == IVFPQ_SERVED &&
		check_answer(IvfpqAnswerBody(channel), IvfpqAnswerLength(channel),
						 request, meta, answer) != IvfpqAnswerLength(channel))
		served = IvfpqChannelReject(channel);
	*reason = channel->reason;
	if (served == IVFPQ_SERVED)
	{
		IvfpqCountLatency(IvfpqNow() - begun);
		note_company(channel, &answer->head);
	}
	ask_note(&request->key, served, begun, before, epoch);
	return served;
}

/* The user may want an error rather than the session's own engine. */
static void
ask_complain(IvfpqServed served, const char *reason)
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
					 detail ? errdetail("State is \"%s\"; %s.",
										IvfpqStateName(), detail) :
					 errdetail("State is \"%s\".", IvfpqStateName()),
					 errhint("%s", IvfpqUnservedHint())));
			break;
		case IVFPQ_SUSPENDED:
		case IVFPQ_TIMED_OUT:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 served == IVFPQ_SUSPENDED ?
					 errmsg("gpuvecd does not answer") :
					 errmsg("gpuvecd did not answer within %d ms",
							ivfpq_request_timeout),
					 errhint("Set gpuvec.request_timeout higher, or gpuvec.on_gpu_error to fallback.")));
			break;
		case IVFPQ_BROKEN:
		case IVFPQ_REFUSED:
		case IVFPQ_ENGINE_FAILED:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 served == IVFPQ_BROKEN ?
					 errmsg("lost the connection to gpuvecd") :
					 errmsg("gpuvecd refused a search"),
					 detail ? errdetail("gpuvecd: %s.", detail) : 0,
					 errhint("Look into the server's log, or set gpuvec.on_gpu_error to fallback.")));
			break;
		default:
			/* nothing failed */
			break;
	}
}

/*
 * Search an index's mirror.  IVFPQ_SERVED: *answer is what gpuvecd found.
 * Anything else: why the caller has to search himself; an error if the user
 * wants that.
 */
IvfpqServed
IvfpqAskSearch(Relation index, const IvfpqMetaData *meta,
			   const IvfpqQuestion *question, IvfpqAnswer *answer)
{
	const GvCondition *condition = question->condition;
	GvSearchRequest request = {
		.key = IvfpqMirrorKey(index, meta),
		.dims = meta->dims,
		.probes = question->probes,
		.compare = Max(question->compare, 1),
		.capacity = question->capacity,
		.ntests = condition ? condition->ntests : 0,
		.nvalues = (int32) Min(count_values(condition), PG_INT32_MAX),
		.version = question->version,
		.part = question->part,
		.rank = question->rank
	};
	const char *reason = "";
	IvfpqServed served = ask_decide(index, meta, &request);

	if (served == IVFPQ_SERVED)
		served = ask(&request, meta, question, answer, &reason);
	ask_count(served);
	if (served != IVFPQ_SERVED)
		ask_complain(served, reason);
	return served;
}

/*
 * An answer showed that the mirror lacks something; when `useless`, too much
 * to use the answer, and the caller searches itself.
 */
void
IvfpqAskStale(Relation index, const IvfpqMetaData *meta, bool useless)
{
	GvMirrorKey key = IvfpqMirrorKey(index, meta);
	Memory	   *memory;
	int64		now;

	if (ivfpq_shared == NULL)
		return;
	if (useless)
	{
		ask_count(IVFPQ_STALE);
		pg_atomic_fetch_sub_u64(&ivfpq_shared->served[IVFPQ_SERVED], 1);
	}
	memory = recall(&key);
	now = IvfpqNow();
	if (now < memory->stale_until)
		return;
	memory->stale_until = now + STALE_US;
	(void) IvfpqRequestMirror(&key, false, false);
}

/* ----
 * Many searches by gpuvecd in one message, or the reason why there are
 * none.
 *
 * The connection is another than that of single searches, with a thread of
 * gpuvecd's own behind it; the process has one of either at a time.
 */

/* Searches that have the patience of one. */
#define OF_ONE_PATIENCE		256

/* When the last answer was there. */
static int64 idle_since;

/* The request as that of one search. */
static GvSearchRequest
single_request(Relation index, const IvfpqMetaData *meta,
			   const IvfpqQuestion *question)
{
	GvSearchRequest request = {
		.key = IvfpqMirrorKey(index, meta),
		.dims = meta->dims,
		.probes = question->probes,
		.compare = Max(question->compare, 1),
		.capacity = question->capacity,
		.version = question->version
	};

	return request;
}

/*
 * Searches that go into a message; 0: gpuvecd is not to be asked, and why is
 * counted.
 */
int
IvfpqAskBulkCapacity(Relation index, const IvfpqMetaData *meta,
					 const IvfpqQuestion *question, IvfpqServed *served)
{
	GvSearchRequest request = single_request(index, meta, question);
	int			most = gv_searches_most(meta->dims, question->probes,
										question->capacity);

	*served = most == 0 ? IVFPQ_NOT_ASKED :
		ask_decide(index, meta, &request);
	if (*served == IVFPQ_SERVED)
		return most;
	ask_count(*served);
	ask_complain(*served, "");
	return 0;
}

/*
 * A connection for many searches.  gpuvecd closes one that is idle, so that is
 * not used when it is half as old.
 */
static IvfpqChannel *
connect_bulk(int64 deadline)
{
	if (IvfpqNow() - idle_since > GV_BULK_IDLE_MS * INT64CONST(1000) / 2)
		IvfpqDisconnect();
	return IvfpqConnect(GV_ROLE_BULK, deadline);
}

/* Are all answers what they should be? */
static bool
check_answers(const IvfpqChannel *channel, const IvfpqMetaData *meta,
			  const IvfpqAnswers *answers)
{
	IvfpqAnswers copy = *answers;
	IvfpqAnswer answer;

	while (copy.nleft > 0)
		if (!IvfpqNextAnswer(&copy, meta, &answer))
			return false;
	return copy.next == copy.end;
}

/*
 * Search for transformed queries [n][dims], no more than IvfpqAskBulkCapacity;
 * the question's own is not looked at.  IVFPQ_SERVED: IvfpqNextAnswer has what
 * gpuvecd found, until it is asked anything else.
 */
IvfpqServed
IvfpqAskBulk(Relation index, const IvfpqMetaData *meta,
			 const IvfpqQuestion *question, const float *queries, int n,
			 IvfpqAnswers *answers)
{
	GvSearchRequest single = single_request(index, meta, question);
	GvSearchesRequest request = {
		.key = single.key,
		.n = n,
		.dims = single.dims,
		.probes = single.probes,
		.compare = single.compare,
		.capacity = single.capacity,
		.version = single.version
	};
	Size		most = n * gv_answer_bytes(request.probes, request.capacity,
										   request.capacity);
	uint64		epoch = pg_atomic_read_u64(&ivfpq_shared->epoch);
	uint64		before = IvfpqCountServed();
	int64		begun = IvfpqNow();
	IvfpqChannel *channel =
	connect_bulk(begun + (int64) ivfpq_request_timeout *
				 1000 * (1 + n / OF_ONE_PATIENCE));
	IvfpqServed served = IvfpqChannelAsk(channel, GV_MSG_SEARCHES, &request,
										 sizeof(request),
										 (const char *) queries,
										 (Size) n * meta->dims *
										 sizeof(float), (uint32) most);

	idle_since = IvfpqNow();
	if (served == IVFPQ_SERVED)
	{
		answers->request = single;
		answers->engine = channel->welcome.engine;
		answers->nleft = n;
		answers->next = IvfpqAnswerBody(channel);
		answers->end = answers->next + IvfpqAnswerLength(channel);
		if (!check_answers(channel, meta, answers))
			served = IvfpqChannelReject(channel);
	}
	ask_note(&single.key, served, begun, before, epoch);
	ask_count(served);
	if (served != IVFPQ_SERVED)
		ask_complain(served, channel->reason);
	return served;
}

/* The next answer, in the order of the queries; false: it makes no sense. */
bool
IvfpqNextAnswer(IvfpqAnswers *answers, const IvfpqMetaData *meta,
				IvfpqAnswer *answer)
{
	Size		length = answers->end - answers->next;
	Size		used = check_answer(answers->next, length,
										&answers->request, meta, answer);

	answer->engine = answers->engine;
	used = TYPEALIGN(8, used);
	if (used == 0 || used > length)
		return false;
	answers->next += used;
	answers->nleft--;
	return true;
}
