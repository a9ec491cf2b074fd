/*
 * askmany.c
 *		Many searches by gpuvecd in one message, or the reason why there are
 *		none.
 *
 * The connection is another than that of single searches, with a thread of
 * gpuvecd's own behind it; the process has one of either at a time.
 */
#include "postgres.h"

#include "client/asking.h"
#include "client/channel/channel.h"
#include "client/mirror/wanted.h"
#include "client/state/state.h"

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
		IvfpqAskDecide(index, meta, &request);
	if (*served == IVFPQ_SERVED)
		return most;
	IvfpqAskCount(*served);
	IvfpqAskComplain(*served, "");
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
	IvfpqAskNote(&single.key, served, begun, before, epoch);
	IvfpqAskCount(served);
	if (served != IVFPQ_SERVED)
		IvfpqAskComplain(served, channel->reason);
	return served;
}

/* The next answer, in the order of the queries; false: it makes no sense. */
bool
IvfpqNextAnswer(IvfpqAnswers *answers, const IvfpqMetaData *meta,
				IvfpqAnswer *answer)
{
	Size		length = answers->end - answers->next;
	Size		used = IvfpqCheckAnswer(answers->next, length,
										&answers->request, meta, answer);

	answer->engine = answers->engine;
	used = TYPEALIGN(8, used);
	if (used == 0 || used > length)
		return false;
	answers->next += used;
	answers->nleft--;
	return true;
}
