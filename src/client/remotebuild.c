/*
 * remotebuild.c
 *		A build by gpuvecd begins, or is joined.
 */
#include "postgres.h"

#include "client/servershared.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "client/remotebuild.h"
#include "page/page.h"

static bool builder_take(void *arg, uint64 number,
							 const IvfpqRequest *request);

#define SLOT_BYTES		((Size) 4 << 20)	/* rows of a slot */
#define MOST_ROWS		8192

/* The context of the build is gone, perhaps by an error. */
static void
close_late(void *arg)
{
	IvfpqBuilderEnd(arg);
}

/* Say what is to be built. */
static bool
begin(IvfpqBuilder *builder, const float *mean)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvBuildReply reply;

	if (IvfpqChannelExchange(&builder->channel, GV_MSG_BUILD,
							 spec, sizeof(*spec), mean,
							 spec->dims * sizeof(float),
							 sizeof(reply)) != IVFPQ_SERVED)
		return false;
	memcpy(&reply, IvfpqAnswerBody(&builder->channel), sizeof(reply));
	builder->id = reply.id;
	return true;
}

/* A builder that is not connected yet, in the current context. */
static IvfpqBuilder *
make_builder(const GvBuilderSpec *spec)
{
	IvfpqBuilder *builder = palloc0(sizeof(IvfpqBuilder));

	IvfpqChannelInit(&builder->channel, CurrentMemoryContext);
	builder->callback.func = close_late;
	builder->callback.arg = builder;
	MemoryContextRegisterResetCallback(CurrentMemoryContext,
									   &builder->callback);
	builder->spec = *spec;
	return builder;
}

/* Memory for the ring, even when there is no connection. */
static void
make_slots(IvfpqBuilder *builder)
{
	const GvBuilderSpec *spec = &builder->spec;

	if (!IvfpqRingOpen(&builder->ring, &builder->channel, IVFPQ_BUILDER_SLOTS,
					   (Size) spec->batch_rows * spec->dims * sizeof(float),
					   false))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	builder->ring.take = builder_take;
	builder->ring.take_arg = builder;
	for (int i = 0; i < IVFPQ_BUILDER_SLOTS; i++)
		builder->slots[i].ids = palloc(spec->batch_rows * sizeof(uint64));
}

/*
 * Begin a build by gpuvecd; spec->batch_rows is found here.  NULL, and an
 * error or a notice where something failed, when it is not to be asked or
 * cannot.  The builder lives in the current context, which closes it.
 */
IvfpqBuilder *
IvfpqBuilderBegin(Relation index, const GvBuilderSpec *spec,
				  const float *mean)
{
	Size		row = spec->dims * sizeof(float);
	IvfpqBuilder *builder;
	const char *reason;

	if (!IvfpqServerIsWanted())
		return NULL;
	if (!IvfpqServerAnswers(&reason))
	{
		if (reason != NULL || ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
			IvfpqBuilderFailed(index, reason ? reason : "there is none",
							   false);
		return NULL;
	}
	builder = make_builder(spec);
	builder->spec.batch_rows = Max(1, Min(SLOT_BYTES / row, MOST_ROWS));
	if (!IvfpqChannelOpen(&builder->channel, GV_ROLE_BUILDER) ||
		!begin(builder, mean))
	{
		IvfpqBuilderFailed(index, builder->channel.reason, false);
		return NULL;
	}
	make_slots(builder);
	return builder;
}

/* The ticket with which others join the build. */
IvfpqTicket
IvfpqBuilderTicket(const IvfpqBuilder *builder)
{
	IvfpqTicket ticket = {builder->id, builder->spec, builder->trained};

	return ticket;
}

/*
 * Join the leader's build, in another process.  When that fails the builder is
 * not open, which is found out when rows are added, too.  `sharing` is NULL
 * before it is trained.
 */
IvfpqBuilder *
IvfpqBuilderJoin(const IvfpqTicket *ticket, IvfpqSharing *sharing)
{
	IvfpqBuilder *builder = make_builder(&ticket->spec);
	GvJoinRequest request = {ticket->id};

	builder->trained = ticket->trained;
	builder->sharing = sharing;
	make_slots(builder);
	if (IvfpqChannelOpen(&builder->channel, GV_ROLE_BUILDER))
		(void) IvfpqChannelExchange(&builder->channel, GV_MSG_JOIN, &request,
									sizeof(request), NULL, 0, 0);
	return builder;
}

/* ----
 * What the participants of a build by gpuvecd share: how to join it, and
 * who has which rows of the sample encoded.
 *
 * gpuvecd has the rows of the sample from training.  So a pass over the table
 * leaves them out, and participants claim batches of them instead, by their
 * numbers.  Batches that got no answer are lost; another pass over
 * the table finds their rows.
 */

static int64
count_batches(int64 nsample, int batch_rows)
{
	return (nsample + batch_rows - 1) / batch_rows;
}

/* Bytes for what participants share of the leader's build. */
Size
IvfpqSharingSize(const IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	return add_size(offsetof(IvfpqSharing, ids),
					add_size(mul_size(2 * sizeof(uint64), n),
							 count_batches(n, builder->spec.batch_rows)));
}

/* The batches' flags, behind both arrays of ids. */
static bool *
answered_flags(IvfpqSharing *sharing)
{
	return (bool *) (sharing->ids + 2 * sharing->nsample);
}

/*
 * Fill it in.  From now on the leader and who joins claim rows of the sample,
 * so that these are not to be added.
 */
void
IvfpqSharingInit(IvfpqSharing *sharing, IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	memset(sharing, 0, offsetof(IvfpqSharing, ids));
	sharing->ticket = IvfpqBuilderTicket(builder);
	pg_atomic_init_u32(&sharing->failed, 0);
	pg_atomic_init_u64(&sharing->next, 0);
	sharing->nsample = n;
	sharing->npassed = n;
	memcpy(sharing->ids, builder->sample_ids, n * sizeof(uint64));
	memcpy(sharing->ids + n, builder->sample_ids, n * sizeof(uint64));
	IvfpqSortNumbers(sharing->ids + n, n);
	memset(answered_flags(sharing), 0,
		   count_batches(n, builder->spec.batch_rows));
	builder->sharing = sharing;
}

/* Claim a batch of the sample; returns how many rows, 0: there is none. */
static int
sharing_claim(IvfpqSharing *sharing, int64 *first)
{
	int			batch_rows = sharing->ticket.spec.batch_rows;

	*first = (int64) pg_atomic_fetch_add_u64(&sharing->next, batch_rows);
	return (int) Max(0, Min(sharing->nsample - *first, batch_rows));
}

/* A participant has the answer to the batch that begins with this row. */
static void
sharing_answered(IvfpqSharing *sharing, int64 first)
{
	answered_flags(sharing)[first / sharing->ticket.spec.batch_rows] = true;
}

/*
 * All participants have done what they could: are rows of the sample lost?
 * Then the next pass over the table is for these only.
 */
bool
IvfpqSharingRecover(IvfpqSharing *sharing)
{
	const bool *answered = answered_flags(sharing);
	uint64	   *lost = sharing->ids + sharing->nsample;
	int64		nlost = 0;

	for (int64 i = 0; i < sharing->nsample; i++)
		if (!answered[i / sharing->ticket.spec.batch_rows])
			lost[nlost++] = sharing->ids[i];
	IvfpqSortNumbers(lost, nlost);
	sharing->npassed = nlost;
	sharing->recovering = nlost > 0;
	return sharing->recovering;
}

/*
 * Is a row that a pass over the table comes to to be added?  *at, 0 when the
 * pass begins, is where the last one was looked for.
 */
bool
IvfpqSharingWants(const IvfpqSharing *sharing, uint64 id, int64 *at)
{
	const uint64 *ids = sharing->ids + sharing->nsample;
	int64		n = sharing->npassed;
	int64		low = *at;

	/* rows come in the order of the table, by and large */
	if (low > 0 && ids[low - 1] >= id)
	{
		int64		high = low - 1;

		for (low = 0; low < high;)
		{
			int64		middle = low + (high - low) / 2;

			if (ids[middle] < id)
				low = middle + 1;
			else
				high = middle;
		}
	}
	while (low < n && ids[low] < id)
		low++;
	*at = low;
	return (low < n && ids[low] == id) == sharing->recovering;
}

/* ----
 * A build by gpuvecd: rows go there, lists and codes come back.
 *
 * Rows are gathered in slots, a ring of them.  A full slot is on its way until
 * its answer has come, and keeps its rows as long: when gpuvecd fails, who
 * builds does those itself and goes on.  Bytes move whenever a row is added,
 * as many as the socket takes, so gpuvecd gets on with one slot while the
 * next is filled.
 *
 * Rows of the sample need not be sent again: between slots with rows there are
 * some that only name them (remotebuild.c).  Who builds has to read these
 * anew when gpuvecd fails.
 */

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
		sharing_answered(builder->sharing, slot->first);
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
static bool
builder_take(void *arg, uint64 number, const IvfpqRequest *request)
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
		request.n = sharing_claim(sharing, &request.first);
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
