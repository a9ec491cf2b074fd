/*
 * remotebuild.c
 *		A build by gpuvecd: rows go there, lists and codes come back.
 *
 * Rows are gathered in slots, a ring of them.  A full slot is on its way until
 * its answer has come, and keeps its rows as long: when gpuvecd fails, who
 * builds does those itself and goes on.  Bytes move whenever a row is added,
 * as many as the socket takes, so gpuvecd gets on with one slot while the
 * next is filled.
 *
 * Rows of the sample need not be sent again: between slots with rows there are
 * some that only name them (buildjoin.c).  Who builds has to read these
 * anew when gpuvecd fails.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "client/state/state.h"
#include "client/work/remotebuild.h"

#define ARRAY_FLOATS	(GV_MAX_MESSAGE / 4)

/* Often enough that the socket, which holds some 200 kB, is never empty. */
#define ROWS_A_MOVE		64

static IvfpqSlot *
slot_of(IvfpqBuilder *builder, uint64 number)
{
	return &builder->slots[number % IVFPQ_BUILDER_SLOTS];
}

/* A slot's rows [batch_rows][dims]. */
static float *
rows_of(const IvfpqBuilder *builder, uint64 number)
{
	return (float *) IvfpqRingSlot(&builder->ring, number);
}

/*
 * gpuvecd does not build the index, say why; or `partly` what it has not done
 * for one of those who build it, and perhaps does for others.
 */
void
IvfpqBuilderFailed(Relation index, const char *reason, bool partly)
{
	const char *name = RelationGetRelationName(index);

	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("gpuvecd could not build index \"%s\": %s", name,
						reason),
				 errhint("%s", IvfpqUnservedHint())));
	if (partly)
		ereport(NOTICE,
				(errmsg("gpuvecd could not build all of index \"%s\": %s",
						name, reason),
				 errdetail("What it has not done is done without a card, which takes longer.")));
	else
		ereport(NOTICE,
				(errmsg("gpuvecd could not build index \"%s\": %s", name,
						reason),
				 errdetail("It is built without a card, which takes longer.")));
}

/* Is there a connection, as far as we know? */
bool
IvfpqBuilderIsOpen(const IvfpqBuilder *builder)
{
	return IvfpqChannelIsOpen(&builder->channel);
}

/* Why it failed. */
const char *
IvfpqBuilderReason(const IvfpqBuilder *builder)
{
	return builder->channel.reason;
}

/* It failed for a participant, and so for all. */
void
IvfpqBuilderLose(IvfpqBuilder *builder, const char *reason)
{
	IvfpqChannelClose(&builder->channel, IVFPQ_BROKEN, reason);
}

void
IvfpqBuilderEnd(IvfpqBuilder *builder)
{
	IvfpqBuilderLose(builder, "the build ended");
}

/* Does the answer to a slot tell what has become of its rows? */
static bool
is_encoding(const IvfpqRequest *request)
{
	return request->header.type == GV_MSG_ENCODE ||
		request->header.type == GV_MSG_SAMPLED;
}

/* The most bytes that the answer about n rows that are encoded may have. */
static uint32
most_encoded(const IvfpqBuilder *builder, int n)
{
	const GvBuilderSpec *spec = &builder->spec;

	return (uint32) Min(sizeof(GvEncodeReply) +
						gv_encoded_bytes(spec, n,
										 gv_builder_most_neighbors(spec, n)),
						PG_UINT32_MAX);
}

/* Do the numbers in the arrays lie where they must? */
static bool
check_numbers(const IvfpqBuilder *builder, const GvEncoded *encoded, int n)
{
	const GvBuilderSpec *spec = &builder->spec;

	for (int i = 0; i < n * spec->lists_per_row; i++)
		if (encoded->lists[i] >= builder->trained.nlists ||
			encoded->lists[i] < (i % spec->lists_per_row == 0 ? 0 : -1))
			return false;
	for (int i = 0; i < encoded->nneighbors; i++)
		if (encoded->neighbors[i].query < 0 ||
			encoded->neighbors[i].query >= spec->nqueries ||
			encoded->neighbors[i].row < 0 || encoded->neighbors[i].row >= n)
			return false;
	return true;
}

/* Where the arrays of an answer about a slot lie; false: it makes no sense. */
static bool
open_answer(IvfpqBuilder *builder, const IvfpqSlot *slot, GvEncoded *encoded)
{
	const GvBuilderSpec *spec = &builder->spec;
	uint32		length = IvfpqAnswerLength(&builder->channel);
	GvEncodeReply *reply =
	(GvEncodeReply *) IvfpqAnswerBody(&builder->channel);

	if (length < sizeof(*reply) || reply->n != slot->n ||
		reply->nneighbors < 0 ||
		reply->nneighbors > gv_builder_most_neighbors(spec, slot->n) ||
		length != sizeof(*reply) +
		gv_encoded_bytes(spec, slot->n, reply->nneighbors))
		return false;
	gv_encoded_open(spec, reply + 1, slot->n, reply->nneighbors, encoded);
	encoded->nneighbors = reply->nneighbors;
	return check_numbers(builder, encoded, slot->n);
}

/* Rows have been encoded; false: the answer makes no sense. */
static bool
take_encoded(IvfpqBuilder *builder, IvfpqSlot *slot)
{
	GvEncoded	encoded;

	if (!open_answer(builder, slot, &encoded))
		return false;
	builder->sink(builder->sink_arg, slot->ids, &encoded, slot->n);
	if (slot->sampled)
		IvfpqSharingAnswered(builder->sharing, slot->first);
	return true;
}

/* Rows for training are there; false: the answer makes no sense. */
static bool
take_numbers(IvfpqBuilder *builder, IvfpqSlot *slot,
			 const IvfpqRequest *request)
{
	const GvRowsRequest *head = (const GvRowsRequest *) request->head;
	const GvRowsReply *reply =
	(const GvRowsReply *) IvfpqAnswerBody(&builder->channel);

	if (IvfpqAnswerLength(&builder->channel) != sizeof(*reply) ||
		reply->first < 0)
		return false;
	if (head->kind != GV_SAMPLE)
		return true;
	if (reply->first > builder->spec.sample_rows - slot->n)
		return false;
	memcpy(builder->sample_ids + reply->first, slot->ids,
		   slot->n * sizeof(uint64));
	builder->nsample = Max(builder->nsample, reply->first + slot->n);
	return true;
}

/* See IvfpqSlotAnswered. */
bool
IvfpqBuilderTake(void *arg, uint64 number, const IvfpqRequest *request)
{
	IvfpqBuilder *builder = arg;
	IvfpqSlot  *slot = slot_of(builder, number);

	if (!(is_encoding(request) ? take_encoded(builder, slot) :
		  take_numbers(builder, slot, request)))
		return false;
	slot->n = 0;
	slot->sampled = false;
	return true;
}

/* The slot being filled goes on its way. */
static bool
dispatch(IvfpqBuilder *builder, GvMessageType type, GvRows kind)
{
	IvfpqRing  *ring = &builder->ring;
	IvfpqSlot  *slot = slot_of(builder, ring->filled);
	GvRowsRequest request = {kind, slot->n};

	if (slot->n == 0)
		return true;
	slot->sampled = false;
	return IvfpqRingSend(ring, type, &request, sizeof(request),
						 (Size) slot->n * builder->spec.dims * sizeof(float),
						 type == GV_MSG_ENCODE ?
						 most_encoded(builder, slot->n) :
						 sizeof(GvRowsReply));
}

/* Rows of the sample go on their way by their numbers, if some are left. */
static bool
dispatch_sampled(IvfpqBuilder *builder, bool *some)
{
	IvfpqSharing *sharing = builder->sharing;
	IvfpqRing  *ring = &builder->ring;
	IvfpqSlot  *slot = slot_of(builder, ring->filled);
	GvSampledRequest request = {0, 0, 0};

	Assert(slot->n == 0);
	if (sharing != NULL)
		request.n = IvfpqSharingClaim(sharing, &request.first);
	*some = request.n > 0;
	if (!*some)
		return true;
	slot->n = request.n;
	slot->sampled = true;
	slot->first = request.first;
	memcpy(slot->ids, sharing->ids + request.first,
		   slot->n * sizeof(uint64));
	return IvfpqRingSend(ring, GV_MSG_SAMPLED, &request, sizeof(request), 0,
						 most_encoded(builder, slot->n));
}

/*
 * Send raw rows [n][dims], of rows with these TIDs if they are for the
 * sample, that training needs; false: it failed.
 */
bool
IvfpqBuilderTrainOn(IvfpqBuilder *builder, GvRows kind, const float *rows,
					const uint64 *ids, int64 n)
{
	int			dims = builder->spec.dims;

	for (int64 done = 0; done < n;)
	{
		uint64		number = builder->ring.filled;
		IvfpqSlot  *slot = slot_of(builder, number);
		int			some = (int) Min(n - done,
									 builder->spec.batch_rows - slot->n);

		memcpy(rows_of(builder, number) + (Size) slot->n * dims,
			   rows + done * dims, (Size) some * dims * sizeof(float));
		if (kind == GV_SAMPLE)
			memcpy(slot->ids + slot->n, ids + done, some * sizeof(uint64));
		slot->n += some;
		done += some;
		if (slot->n == builder->spec.batch_rows ?
			!dispatch(builder, GV_MSG_ROWS, kind) :
			slot->n % ROWS_A_MOVE == 0 && !IvfpqRingMove(&builder->ring))
			return false;
	}
	return true;
}

/* All rows of a kind have been given and have come; false: it failed. */
bool
IvfpqBuilderTrainEnd(IvfpqBuilder *builder, GvRows kind)
{
	return dispatch(builder, GV_MSG_ROWS, kind) &&
		IvfpqRingAwait(&builder->ring, 0);
}

/*
 * TIDs of rows that go to the sample are to be put there, [sample_rows], which
 * all who build may share.
 */
void
IvfpqBuilderSample(IvfpqBuilder *builder, uint64 *ids)
{
	builder->sample_ids = ids;
}

/* The sample has n rows, those of other participants included. */
void
IvfpqBuilderSampled(IvfpqBuilder *builder, int64 n)
{
	builder->nsample = n;
}

/* Ask, while no slot is on its way; false: it failed. */
static bool
ask(IvfpqBuilder *builder, GvMessageType type, const void *request,
	Size bytes, Size length)
{
	return IvfpqChannelExchange(&builder->channel, type, request, bytes,
								NULL, 0, (uint32) length) == IVFPQ_SERVED;
}

/* Have it train; false: it failed. */
bool
IvfpqBuilderTrain(IvfpqBuilder *builder, GvTrained *trained)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvTrainReply reply;

	if (!ask(builder, GV_MSG_TRAIN, NULL, 0, sizeof(reply)))
		return false;
	memcpy(&reply, IvfpqAnswerBody(&builder->channel), sizeof(reply));
	if (reply.nlists < 1 || reply.nlists > spec->nlists ||
		reply.nparents < 1 || reply.nparents > spec->nparents ||
		reply.nparents > reply.nlists)
	{
		(void) IvfpqChannelReject(&builder->channel);
		return false;
	}
	builder->trained.nlists = trained->nlists = reply.nlists;
	builder->trained.nparents = trained->nparents = reply.nparents;
	return true;
}

/* Get an array of what was trained, whole; false: it failed. */
bool
IvfpqBuilderArray(IvfpqBuilder *builder, GvArray array, void *values)
{
	int64		length = gv_builder_array_length(&builder->spec,
												 &builder->trained, array);

	for (int64 first = 0; first < length; first += ARRAY_FLOATS)
	{
		GvTrainedRequest request = {array, 0, first,
		Min(ARRAY_FLOATS, length - first)};
		Size		bytes = request.count * sizeof(float);

		if (!ask(builder, GV_MSG_TRAINED, &request, sizeof(request), bytes))
			return false;
		memcpy((float *) values + first, IvfpqAnswerBody(&builder->channel),
			   bytes);
	}
	return true;
}

/* Where encoded rows shall go. */
void
IvfpqBuilderTo(IvfpqBuilder *builder, IvfpqEncodedSink sink, void *sink_arg)
{
	builder->sink = sink;
	builder->sink_arg = sink_arg;
}

/* Add a raw row [dims] to be encoded; false: it failed, the row is kept. */
bool
IvfpqBuilderAdd(IvfpqBuilder *builder, const float *row, uint64 id)
{
	int			dims = builder->spec.dims;
	uint64		number = builder->ring.filled;
	IvfpqSlot  *slot = slot_of(builder, number);
	bool		some;

	memcpy(rows_of(builder, number) + (Size) slot->n * dims, row,
		   dims * sizeof(float));
	slot->ids[slot->n++] = id;
	if (slot->n == builder->spec.batch_rows)
		return dispatch(builder, GV_MSG_ENCODE, 0) &&
			dispatch_sampled(builder, &some);
	if (slot->n % ROWS_A_MOVE == 0)
		return IvfpqRingMove(&builder->ring);
	return true;
}

/*
 * All rows have been added: have those of the sample encoded that are not
 * claimed, and wait for what is on its way; false: it failed.
 */
bool
IvfpqBuilderFlush(IvfpqBuilder *builder)
{
	bool		some = true;

	if (!dispatch(builder, GV_MSG_ENCODE, 0))
		return false;
	while (some)
		if (!dispatch_sampled(builder, &some))
			return false;
	return IvfpqRingAwait(&builder->ring, 0);
}

/*
 * After a failure: the next rows that were added and not answered.  False when
 * there are no more.
 */
bool
IvfpqBuilderUnanswered(IvfpqBuilder *builder, const float **rows,
					   const uint64 **ids, int *n)
{
	IvfpqRing  *ring = &builder->ring;

	while (ring->answered <= ring->filled)
	{
		uint64		number = ring->answered++;
		IvfpqSlot  *slot = slot_of(builder, number);

		*rows = rows_of(builder, number);
		*ids = slot->ids;
		*n = slot->sampled ? 0 : slot->n;
		slot->n = 0;			/* the ring may come to it again */
		slot->sampled = false;
		if (*n > 0)
			return true;
	}
	return false;
}

/*
 * Has gpuvecd begin a calibration mirror of the index that is built; false: it
 * failed.
 */
bool
IvfpqBuilderCalibMirror(IvfpqBuilder *builder, int64 postings)
{
	GvCalibMirrorRequest request = {postings};

	return ask(builder, GV_MSG_CALIB_MIRROR, &request, sizeof(request), 0);
}

/* Give it lists, a message of GV_MSG_CHUNKS; false: it failed. */
bool
IvfpqBuilderChunks(IvfpqBuilder *builder, const char *message, Size bytes)
{
	return IvfpqChannelExchange(&builder->channel, GV_MSG_CHUNKS, NULL, 0,
								message, bytes, 0) == IVFPQ_SERVED;
}

/*
 * Search what it was given; nhits [request->n] and row ids of 6 bytes are
 * good until the next question; false: it failed.
 */
bool
IvfpqBuilderTry(IvfpqBuilder *builder, const GvTryRequest *request,
				const float *queries, Size bytes, const int32 **nhits,
				const char **rowids)
{
	IvfpqChannel *channel = &builder->channel;
	Size		head = request->n * sizeof(int32);
	Size		most = head + (Size) request->n * request->capacity * 6;
	Size		total = 0;

	if (IvfpqChannelAsk(channel, GV_MSG_TRY, request, sizeof(*request),
						queries, bytes, (uint32) most) != IVFPQ_SERVED)
		return false;
	*nhits = (const int32 *) IvfpqAnswerBody(channel);
	*rowids = IvfpqAnswerBody(channel) + head;
	for (int i = 0; i < request->n && IvfpqAnswerLength(channel) >= head; i++)
	{
		if ((*nhits)[i] < 0 || (*nhits)[i] > request->capacity)
			break;
		total += (*nhits)[i];
	}
	if (IvfpqAnswerLength(channel) == head + total * 6)
		return true;
	(void) IvfpqChannelReject(channel);
	return false;
}
