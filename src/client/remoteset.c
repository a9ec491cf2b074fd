/*
 * remoteset.c
 *		Work on a set of rows by gpuvecd (engine/gv_set.h): inputs go there,
 *		outputs come back.
 *
 * Items are gathered in slots, a ring of them, each a message.  A full slot is
 * on its way until it is answered, and the next one is filled meanwhile.
 * Where there is much to bring the slots lie in memory that gpuvecd shares,
 * else they go through the socket.  Nothing is kept of what has been answered:
 * after a failure the caller begins again.
 *
 * When outputs are asked for all inputs are answered, so gpuvecd writes
 * outputs into the slots that it shares, one after the other: one that is
 * being copied, and two that are on their way.  It can still write there
 * later, so what counts is the copy, which is looked at.
 */
#include "postgres.h"

#include "client/msgring.h"
#include "client/servershared.h"
#include "utils/memutils.h"

#include "client/remoteset.h"

#define NSLOTS			4
#define SLOT_BYTES		((Size) 4 << 20)	/* items of a slot, at most */

/* To bring less than this, memory to share is not worth while. */
#define LEAST_SHARED	((int64) 8 << 20)

/* Often enough that the socket, which holds some 200 kB, is never empty. */
#define MOVE_BYTES		((Size) 64 << 10)

StaticAssertDecl(NSLOTS * (SLOT_BYTES + BLCKSZ) <= GV_MAX_SHARED,
				 "gpuvecd takes so much");

struct IvfpqRemoteSet
{
	IvfpqChannel channel;
	GvSetSpec	spec;
	int64		nrows;			/* given, in this pass */
	GvSetDone	done;
	bool		failed;
	bool		keeps;			/* rows: there is another way */

	IvfpqRing	ring;
	GvSetInput	input;			/* what the slot being filled holds */
	Size		used;			/* bytes of it */

	uint64		ngot;			/* requests for outputs that are answered */
	GvGetRequest prefetched[2]; /* on their way, first come first */
	int			nprefetched;

	MemoryContextCallback callback;
};

/* Releases the resources that the memory context does not. */
static void
release(void *arg)
{
	IvfpqRemoteSet *set = arg;

	IvfpqChannelClose(&set->channel, IVFPQ_DOWN, "the work ended");
	IvfpqRingClose(&set->ring);
}

/* Why it failed. */
const char *
IvfpqRemoteSetReason(const IvfpqRemoteSet *set)
{
	return set->channel.reason;
}

/* gpuvecd should have done the work and could not: as the user wants it. */
static void
complain(const char *reason)
{
	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("gpuvecd could not do the work: %s", reason),
				 errhint("%s", IvfpqUnservedHint())));
}

/*
 * The end of a function: did it work?  If not, nothing else will.  That there
 * is no memory for a set that keeps rows is no failure: it need not.
 */
static bool
conclude(IvfpqRemoteSet *set, bool worked)
{
	if (worked)
		return true;
	if (set->keeps && set->channel.refusal == GV_REFUSED_NO_MEMORY)
		return false;
	if (ivfpq_shared && !set->failed)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sets_failed, 1);
	set->failed = true;
	complain(set->channel.reason);
	return false;
}

/* Bytes that are to be brought, in all passes. */
static int64
bytes_to_bring(const GvSetSpec *spec)
{
	int64		bytes = (int64) (spec->iterations + 1) * spec->nrows *
	gv_set_input_bytes(spec, GV_SET_ROWS);

	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_QUERIES);
	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_SELF);
	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_RANKS);
	bytes += spec->nlists * gv_set_input_bytes(spec, GV_SET_LISTS);
	return bytes + spec->k * gv_set_input_bytes(spec, GV_SET_SEEDS);
}

/* Make the ring; false: it failed. */
static bool
make_ring(IvfpqRemoteSet *set)
{
	int64		total = bytes_to_bring(&set->spec);

	return IvfpqRingOpen(&set->ring, &set->channel, NSLOTS,
						 (Size) Min((int64) SLOT_BYTES, total),
						 total >= LEAST_SHARED);
}

/* Say what is to be done; false: it failed. */
static bool
begin(IvfpqRemoteSet *set)
{
	return IvfpqChannelExchange(&set->channel, GV_MSG_SET, &set->spec,
								sizeof(set->spec), NULL, 0, 0) == IVFPQ_SERVED;
}

/* See remoteset.h. */
IvfpqRemoteSet *
IvfpqRemoteSetBegin(const GvSetSpec *spec)
{
	IvfpqRemoteSet *set;
	const char *reason;

	if (!IvfpqServerIsWanted())
		return NULL;
	if (!IvfpqServerAnswers(&reason))
	{
		complain(reason ? reason : "there is none");
		return NULL;
	}
	set = palloc0(sizeof(IvfpqRemoteSet));
	IvfpqChannelInit(&set->channel, CurrentMemoryContext);
	set->spec = *spec;
	set->keeps = spec->own != 0;
	set->callback.func = release;
	set->callback.arg = set;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &set->callback);
	if (conclude(set, IvfpqChannelOpen(&set->channel, GV_ROLE_SET) &&
				 begin(set) && make_ring(set)))
		return set;
	IvfpqRemoteSetEnd(set);
	return NULL;
}

/* The work is over, or given up. */
void
IvfpqRemoteSetEnd(IvfpqRemoteSet *set)
{
	char	   *slots = set->ring.is_shared ? NULL : set->ring.slots;

	release(set);
	if (slots != NULL)
		pfree(slots);
	set->ring.slots = NULL;
	if (set->channel.in != NULL)
		pfree(set->channel.in);
	set->channel.in = NULL;
	set->channel.capacity = 0;
}

/* The slot being filled goes on its way; false: it failed. */
static bool
dispatch(IvfpqRemoteSet *set)
{
	Size		used = set->used;
	GvPutRequest put = {set->input, 0, 0};

	if (used == 0)
		return true;
	put.n = used / gv_set_input_bytes(&set->spec, set->input);
	set->used = 0;
	return IvfpqRingSend(&set->ring, GV_MSG_PUT, &put, sizeof(put), used, 0);
}

/* Put as many of n items into the slot being filled as go; -1: it failed. */
static int64
fill(IvfpqRemoteSet *set, const char *items, int64 n, int64 item)
{
	int64		most = Max((int64) MOVE_BYTES / item, 1);
	int64		free_items = (int64) (set->ring.payload_bytes - set->used) /
	item;
	int64		some = Min(n, Min(most, free_items));
	Size		before = set->used;

	if (some == 0)
		return dispatch(set) ? 0 : -1;
	memcpy(IvfpqRingSlot(&set->ring, set->ring.filled) + set->used, items,
		   some * item);
	set->used += some * item;
	if (before / MOVE_BYTES != set->used / MOVE_BYTES &&
		set->ring.answered < set->ring.filled && !IvfpqRingMove(&set->ring))
		return -1;
	return some;
}

static bool
put(IvfpqRemoteSet *set, GvSetInput input, const char *items, int64 n)
{
	int64		item = gv_set_input_bytes(&set->spec, input);

	if (set->input != input && !dispatch(set))
		return false;
	set->input = input;
	while (n > 0)
	{
		int64		some = fill(set, items, n, item);

		if (some < 0)
			return false;
		items += some * item;
		n -= some;
	}
	return true;
}

/* Give it more items of an input; they may be on their way for a while. */
bool
IvfpqRemoteSetPut(IvfpqRemoteSet *set, GvSetInput input, const void *items,
				  int64 n)
{
	Assert(gv_set_input_bytes(&set->spec, input) > 0);
	if (input == GV_SET_ROWS)
		set->nrows += n;
	return conclude(set, IvfpqChannelIsOpen(&set->channel) &&
					put(set, input, items, n));
}

static bool
ask(IvfpqRemoteSet *set, const GvSetSpec *spec)
{
	if (!dispatch(set) || !IvfpqRingAwait(&set->ring, 0) ||
		IvfpqChannelExchange(&set->channel, GV_MSG_ASK, spec, sizeof(*spec),
							 NULL, 0, 0) != IVFPQ_SERVED)
		return false;
	set->spec = *spec;
	memset(&set->done, 0, sizeof(set->done));
	return true;
}

/* Ask a set that began with no queries what comes next, as gv_set_ask does. */
bool
IvfpqRemoteSetAsk(IvfpqRemoteSet *set, const GvSetSpec *spec)
{
	return conclude(set, IvfpqChannelIsOpen(&set->channel) && ask(set, spec));
}

/*
 * Does what a run is said to have come to make sense?  Each is a pass, and it
 * is known which is the last, or there might be no end.
 */
static bool
check_done(const IvfpqRemoteSet *set, const GvSetDone *reply)
{
	bool		is_last = set->done.passes == set->spec.iterations;
	bool		clusters = set->spec.kind == GV_SET_KMEANS && is_last;

	return reply->passes == set->done.passes + 1 &&
		reply->finished == is_last && reply->again <= 1 - reply->finished &&
		reply->found >= (clusters ? 1 : 0) &&
		reply->found <= (clusters ? set->spec.k : 0);
}

static bool
run(IvfpqRemoteSet *set)
{
	GvSetDone	done;

	if (!dispatch(set) || !IvfpqRingAwait(&set->ring, 0) ||
		IvfpqChannelExchange(&set->channel, GV_MSG_RUN, NULL, 0, NULL, 0,
							 sizeof(done)) != IVFPQ_SERVED)
		return false;
	memcpy(&done, IvfpqAnswerBody(&set->channel), sizeof(done));
	if (!check_done(set, &done))
	{
		(void) IvfpqChannelReject(&set->channel);
		return false;
	}
	set->done = done;
	return true;
}

/* All is there: have it go on until it is finished, or wants rows again. */
bool
IvfpqRemoteSetRun(IvfpqRemoteSet *set, GvSetDone *done)
{
	if (!conclude(set, IvfpqChannelIsOpen(&set->channel) && run(set)))
		return false;
	*done = set->done;
	if (done->again)
		set->nrows = 0;
	if (done->finished && ivfpq_shared)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sets, 1);
	return true;
}

/*
 * Callers look things up by positions, add up sizes and go on with centroids:
 * are they such?
 */
static bool
check_items(const IvfpqRemoteSet *set, GvSetOutput output, const void *items,
			int64 n)
{
	const int64 *numbers = items;
	int64		least = 0;
	int64		most = set->nrows;

	if (output == GV_SET_CENTROIDS)
		return gv_is_finite(items, n * set->spec.dims);
	if (output == GV_SET_POSITIONS)
	{
		least = set->spec.kind == GV_SET_EXACT ? -1 : 0;
		most--;
	}
	else if (output != GV_SET_SIZES)
		return true;
	for (int64 i = 0; i < n; i++)
		if (numbers[i] < least || numbers[i] > most)
			return false;
	return true;
}

/* Items of an output that one request may ask for. */
static int64
items_at_once(const IvfpqRemoteSet *set, GvSetOutput output)
{
	int64		bytes = set->ring.is_shared ? (int64) set->ring.payload_bytes :
	GV_MAX_MESSAGE;

	return bytes / gv_set_output_bytes(&set->spec, output);
}

/* The request that is the `later`-th after those that are answered. */
static GvGetRequest
make_request(const IvfpqRemoteSet *set, int later, GvSetOutput output,
			 int64 first, int64 n)
{
	GvGetRequest request = {output, 0, first, n,
	IvfpqRingOffset(&set->ring, set->ngot + later)};

	return request;
}

/* How long its answer is. */
static uint32
answer_bytes(const IvfpqRemoteSet *set, const GvGetRequest *request)
{
	int64		item = gv_set_output_bytes(&set->spec,
										   (GvSetOutput) request->output);

	return request->offset >= 0 ? 0 : (uint32) (request->n * item);
}

/* Wait for the answer to the first request on its way; false: it failed. */
static bool
await_answer(IvfpqChannel *channel, uint32 length)
{
	while (!IvfpqChannelMove(channel))
		if (!IvfpqChannelIsOpen(channel) || IvfpqChannelWait(channel) == 0)
			return false;
	if (channel->served != IVFPQ_SERVED)
		return false;
	if (IvfpqAnswerLength(channel) != length)
	{
		(void) IvfpqChannelReject(channel);
		return false;
	}
	IvfpqChannelTaken(channel);
	return true;
}

/* Have a request answered, which may be on its way; false: it failed. */
static bool
have_answered(IvfpqRemoteSet *set, const GvGetRequest *request)
{
	uint32		length = answer_bytes(set, request);

	if (set->nprefetched == 0)
		return IvfpqChannelExchange(&set->channel, GV_MSG_GET, request,
									sizeof(*request), NULL, 0,
									length) == IVFPQ_SERVED;
	if (memcmp(request, &set->prefetched[0], sizeof(*request)) != 0)
		elog(ERROR, "other items were asked for before");
	set->prefetched[0] = set->prefetched[1];
	set->nprefetched--;
	return await_answer(&set->channel, length);
}

/* Get n items, no more than a request may ask for; false: it failed. */
static bool
get(IvfpqRemoteSet *set, GvSetOutput output, int64 first, int64 n, char *items)
{
	GvGetRequest request = make_request(set, 0, output, first, n);

	if (!have_answered(set, &request))
		return false;
	memcpy(items, request.offset >= 0 ? IvfpqRingSlot(&set->ring, set->ngot) :
		   IvfpqAnswerBody(&set->channel),
		   n * gv_set_output_bytes(&set->spec, output));
	set->ngot++;
	/* the copy, which gpuvecd cannot change any more */
	if (check_items(set, output, items, n))
		return true;
	(void) IvfpqChannelReject(&set->channel);
	return false;
}

/* Ask for items already, see remoteset.h. */
void
IvfpqRemoteSetPrefetch(IvfpqRemoteSet *set, GvSetOutput output, int64 first,
					   int64 n)
{
	GvGetRequest request = make_request(set, set->nprefetched, output, first,
										n);

	if (n > items_at_once(set, output) ||
		set->nprefetched == lengthof(set->prefetched) ||
		IvfpqChannelAdd(&set->channel, GV_MSG_GET, &request, sizeof(request),
						NULL, 0, answer_bytes(set, &request)) == NULL)
		return;
	set->prefetched[set->nprefetched++] = request;
	/* what has come meanwhile, if it has, is there at the next call, too */
	(void) IvfpqChannelMove(&set->channel);
}

/* Get items first .. first + n - 1 of an output of work that is finished. */
bool
IvfpqRemoteSetGet(IvfpqRemoteSet *set, GvSetOutput output, int64 first,
				  int64 n, void *items)
{
	int64		item = gv_set_output_bytes(&set->spec, output);
	int64		most = items_at_once(set, output);
	bool		worked = IvfpqChannelIsOpen(&set->channel);

	for (int64 done = 0; worked && done < n; done += most)
		worked = get(set, output, first + done, Min(most, n - done),
					 (char *) items + done * item);
	return conclude(set, worked);
}
