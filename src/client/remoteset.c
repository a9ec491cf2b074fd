/*
 * remoteset.c
 *		Work on a set of rows by gpuvecd (engine/gv_set.h): we send inputs, and
 *		gpuvecd returns outputs.
 *
 * Items are collected in the slots of a ring.  A full slot is sent as a
 * message and is under way until it is answered; meanwhile the next slot is
 * filled.  If there is much to send, the slots are in memory shared with
 * gpuvecd; otherwise they go through the socket.  The items of an answered
 * slot are not kept, so after a failure the caller begins again.
 *
 * When outputs are requested, all inputs have been answered and the slots are
 * free.  gpuvecd writes outputs into shared slots, one after the other: while
 * one slot is being copied, two are under way.  gpuvecd could change a slot
 * later, so only our copy is checked and used.
 */
#include "postgres.h"

#include "client/msgring.h"
#include "client/servershared.h"
#include "utils/memutils.h"

#include "client/remoteset.h"

#define NSLOTS			4
#define SLOT_BYTES		((Size) 4 << 20)	/* bytes of items in a slot */

/* Below this many input bytes, setting up shared memory does not pay off. */
#define LEAST_SHARED	((int64) 8 << 20)

/*
 * We send and receive each time that this many bytes were added.  Then the
 * socket, which holds some 200 kB, never runs empty.
 */
#define MOVE_BYTES		((Size) 64 << 10)

StaticAssertDecl(NSLOTS * (SLOT_BYTES + BLCKSZ) <= GV_MAX_SHARED,
				 "gpuvecd takes so much");

struct IvfpqRemoteSet
{
	IvfpqChannel channel;
	GvSetSpec	spec;
	int64		nrows;			/* rows put in this pass */
	GvSetDone	done;
	bool		failed;
	bool		keeps;			/* gpuvecd keeps the rows (spec.own) */

	IvfpqRing	ring;
	GvSetInput	input;			/* kind of items in the slot being filled */
	Size		used;			/* bytes used in that slot */

	uint64		ngot;			/* requests for outputs that are answered */
	GvGetRequest prefetched[2]; /* requests not answered yet, oldest first */
	int			nprefetched;

	MemoryContextCallback callback;
};

/* Releases the resources that the memory context does not. */
static void
release(void *arg)
{
	IvfpqRemoteSet *set = arg;

	IvfpqChannelClose(&set->channel, IVFPQ_DOWN, "the job has ended");
	IvfpqRingClose(&set->ring);
}

const char *
IvfpqRemoteSetReason(const IvfpqRemoteSet *set)
{
	return set->channel.reason;
}

/*
 * Raises an error, if gpuvec.on_gpu_error says so, because gpuvecd should have
 * done the work and could not.
 */
static void
complain(const char *reason)
{
	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("gpuvecd could not run the job: %s", reason),
				 errhint("%s", IvfpqUnservedHint())));
}

/*
 * Counts and reports a failure of a public function.  Returns `worked`.  After
 * a failure all later calls fail, too.  Lack of memory is no failure if the
 * set keeps rows, because the caller can work without keeping them.
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

/* Returns the bytes of all inputs, in all passes. */
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

IvfpqRemoteSet *
IvfpqRemoteSetBegin(const GvSetSpec *spec)
{
	IvfpqRemoteSet *set;
	int64		total;
	const char *reason;

	if (!IvfpqServerIsWanted())
		return NULL;
	reason = IvfpqServerProblem();
	if (reason != NULL)
	{
		complain(reason);
		return NULL;
	}
	set = palloc0(sizeof(IvfpqRemoteSet));
	IvfpqChannelInit(&set->channel, CurrentMemoryContext);
	set->spec = *spec;
	set->keeps = spec->own != 0;
	set->callback.func = release;
	set->callback.arg = set;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &set->callback);
	total = bytes_to_bring(spec);
	if (conclude(set,
				 IvfpqChannelOpen(&set->channel, GV_ROLE_SET) &&
				 IvfpqChannelExchange(&set->channel, GV_MSG_SET, spec,
									  sizeof(*spec), NULL, 0, 0) &&
				 IvfpqRingOpen(&set->ring, &set->channel, NSLOTS,
							   (Size) Min((int64) SLOT_BYTES, total),
							   total >= LEAST_SHARED)))
		return set;
	IvfpqRemoteSetEnd(set);
	return NULL;
}

/* Ends the work, whether it is finished or not. */
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

/* Sends the slot being filled.  Returns false if that failed. */
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

/* Adds items of an input.  Does not wait until gpuvecd has them. */
bool
IvfpqRemoteSetPut(IvfpqRemoteSet *set, GvSetInput input, const void *items,
				  int64 n)
{
	int64		item = gv_set_input_bytes(&set->spec, input);
	int64		most = Max((int64) MOVE_BYTES / item, 1);
	int64		done = 0;
	bool		worked = IvfpqChannelIsOpen(&set->channel);

	if (input == GV_SET_ROWS)
		set->nrows += n;
	if (worked && set->input != input)
		worked = dispatch(set);
	set->input = input;
	while (worked && done < n)
	{
		Size		before = set->used;
		int64		free_items = (int64) (set->ring.payload_bytes - before) /
		item;
		int64		some = Min(n - done, Min(most, free_items));

		if (some == 0)
		{
			worked = dispatch(set);
			continue;
		}
		memcpy(IvfpqRingSlot(&set->ring, set->ring.filled) + before,
			   (const char *) items + done * item, some * item);
		set->used += some * item;
		done += some;
		if (before / MOVE_BYTES != set->used / MOVE_BYTES &&
			set->ring.answered < set->ring.filled)
			worked = IvfpqChannelMove(&set->channel);
	}
	return conclude(set, worked);
}

/* Asks a question about the rows that the set keeps, like gv_set_ask. */
bool
IvfpqRemoteSetAsk(IvfpqRemoteSet *set, const GvSetSpec *spec)
{
	if (!conclude(set,
				  IvfpqChannelIsOpen(&set->channel) && dispatch(set) &&
				  IvfpqRingAwait(&set->ring, 0) &&
				  IvfpqChannelExchange(&set->channel, GV_MSG_ASK, spec,
									   sizeof(*spec), NULL, 0, 0)))
		return false;
	set->spec = *spec;
	memset(&set->done, 0, sizeof(set->done));
	return true;
}

/*
 * Returns whether the reply to a run is possible.  Each run is one pass, and
 * the reply must say after the right pass that it was the last one.  Otherwise
 * gpuvecd could make us run passes for ever.
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

/* Runs the set on its inputs until it is finished or needs the rows again. */
bool
IvfpqRemoteSetRun(IvfpqRemoteSet *set, GvSetDone *done)
{
	IvfpqChannel *channel = &set->channel;
	bool		worked = IvfpqChannelIsOpen(channel) && dispatch(set) &&
	IvfpqRingAwait(&set->ring, 0) &&
	IvfpqChannelExchange(channel, GV_MSG_RUN, NULL, 0, NULL, 0,
						 sizeof(*done));

	if (worked)
	{
		memcpy(done, IvfpqAnswerBody(channel), sizeof(*done));
		worked = check_done(set, done) || IvfpqChannelReject(channel);
	}
	if (!conclude(set, worked))
		return false;
	set->done = *done;
	if (done->again)
		set->nrows = 0;
	if (done->finished && ivfpq_shared)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sets, 1);
	return true;
}

/*
 * Returns whether the items are valid.  Callers rely on that, because they use
 * positions as indexes, add up sizes and compute with centroids.
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

/* Returns how many items of an output one request may ask for. */
static int64
items_at_once(const IvfpqRemoteSet *set, GvSetOutput output)
{
	int64		bytes = set->ring.is_shared ? (int64) set->ring.payload_bytes :
	GV_MAX_MESSAGE;

	return bytes / gv_set_output_bytes(&set->spec, output);
}

/*
 * Makes a request for n items.  `later` is the number of unanswered requests
 * before this one, and determines the slot for the answer.
 */
static GvGetRequest
make_request(const IvfpqRemoteSet *set, int later, GvSetOutput output,
			 int64 first, int64 n)
{
	GvGetRequest request = {output, 0, first, n,
	IvfpqRingOffset(&set->ring, set->ngot + later)};

	return request;
}

/* Returns the length of a request's answer; 0 if the items come in a slot. */
static uint32
answer_bytes(const IvfpqRemoteSet *set, const GvGetRequest *request)
{
	int64		item = gv_set_output_bytes(&set->spec,
										   (GvSetOutput) request->output);

	return request->offset >= 0 ? 0 : (uint32) (request->n * item);
}

/* Sends a request without waiting.  Returns false if the channel is closed. */
static bool
send_request(IvfpqRemoteSet *set, const GvGetRequest *request)
{
	return IvfpqChannelAdd(&set->channel, GV_MSG_GET, request,
						   sizeof(*request), NULL, 0,
						   answer_bytes(set, request)) != NULL;
}

/*
 * Copies n items of an output to `items`; n is at most items_at_once().  Sends
 * the request for the items, unless IvfpqRemoteSetPrefetch has sent it
 * already, and waits for the answer.  Later prefetched requests stay under
 * way.  Returns false on failure.
 */
static bool
get(IvfpqRemoteSet *set, GvSetOutput output, int64 first, int64 n, char *items)
{
	IvfpqChannel *channel = &set->channel;
	GvGetRequest request = make_request(set, 0, output, first, n);

	if (set->nprefetched > 0)
	{
		if (memcmp(&request, &set->prefetched[0], sizeof(request)) != 0)
			elog(ERROR, "other items were asked for before");
		set->prefetched[0] = set->prefetched[1];
		set->nprefetched--;
	}
	else if (!send_request(set, &request))
		return false;
	if (!IvfpqChannelAwait(channel, set->nprefetched))
		return false;
	if (IvfpqAnswerLength(channel) != answer_bytes(set, &request))
		return IvfpqChannelReject(channel);
	memcpy(items, request.offset >= 0 ? IvfpqRingSlot(&set->ring, set->ngot) :
		   IvfpqAnswerBody(channel),
		   n * gv_set_output_bytes(&set->spec, output));
	set->ngot++;
	/* check the copy, which gpuvecd cannot change */
	return check_items(set, output, items, n) || IvfpqChannelReject(channel);
}

void
IvfpqRemoteSetPrefetch(IvfpqRemoteSet *set, GvSetOutput output, int64 first,
					   int64 n)
{
	GvGetRequest request = make_request(set, set->nprefetched, output, first,
										n);

	if (n > items_at_once(set, output) ||
		set->nprefetched == lengthof(set->prefetched) ||
		!send_request(set, &request))
		return;
	set->prefetched[set->nprefetched++] = request;
	(void) IvfpqChannelAwait(&set->channel, set->nprefetched);
}

/* Copies items first .. first + n - 1 of an output of a finished set. */
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
