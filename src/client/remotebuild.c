/*
 * remotebuild.c
 *		A build by gpuvecd: we send rows, and gpuvecd returns model and codes.
 *
 * Rows are collected in the slots of a ring.  A full slot is sent, and keeps
 * its rows until it is answered: if gpuvecd fails, the caller encodes those
 * rows itself and goes on.  While rows are added, we send and receive as much
 * as the socket takes, so gpuvecd works on one slot while the next is filled.
 *
 * gpuvecd still has the rows of the sample from training, so they are not sent
 * again.  A pass over the table skips these rows.  Instead, participants claim
 * batches of the sample: after each slot with rows, they send a slot that only
 * names the numbers of a batch's rows.  If gpuvecd fails, the batches without
 * an answer are lost, and another pass over the table finds their rows.
 *
 * gpuvecd moves rows by mean and scale, but does not rotate.  If the index has
 * a rotation, we send transformed rows, and the build has no mean, no scale
 * and no cosine, so that gpuvecd leaves these rows as they are, bit for bit.
 */
#include "postgres.h"

#include "client/servershared.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "client/msgring.h"
#include "client/remotebuild.h"
#include "page/page.h"

/* Maximum bytes of rows, and maximum number of rows, in a slot. */
#define SLOT_BYTES		((Size) 4 << 20)
#define MOST_ROWS		8192

#define NSLOTS			4

/* Maximum number of elements of an array that one request asks for. */
#define ARRAY_FLOATS	(GV_MAX_MESSAGE / 4)

/*
 * We send and receive each time that this many rows were added.  Then the
 * socket, which holds some 200 kB, never runs empty.
 */
#define ROWS_A_MOVE		64

/* The state of a slot.  Its rows [batch_rows][dims] are in the ring. */
typedef struct Slot
{
	uint64	   *ids;			/* [batch_rows] */
	int			n;				/* rows; 0 if it only names rows of the sample */
} Slot;

struct IvfpqBuilder
{
	IvfpqChannel channel;
	GvBuilderSpec spec;
	const GvModel *model;		/* the caller's; transforms rows */
	GvTrained	trained;
	uint64		id;				/* of the build in gpuvecd */
	IvfpqRing	ring;
	Slot		slots[NSLOTS];	/* of the ring */
	uint64	   *sample_ids;		/* [sample_rows] TIDs of the sample */
	int64		nsample;		/* rows of the sample that gpuvecd has */
	IvfpqBuildShared *sharing;	/* with other participants; NULL: none yet */
	IvfpqEncodedSink sink;
	void	   *sink_arg;
	MemoryContextCallback callback;
};

/*
 * Raises an error or a notice, as gpuvec.on_gpu_error says, because gpuvecd
 * cannot build the index.  `partly` means that gpuvecd has failed for one
 * participant only, and perhaps not for others.
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
	ereport(NOTICE,
			(partly ?
			 errmsg("gpuvecd could not build all of index \"%s\": %s", name,
					reason) :
			 errmsg("gpuvecd could not build index \"%s\": %s", name, reason),
			 partly ?
			 errdetail("The rest is done without a GPU, which takes longer.") :
			 errdetail("The index is built without a GPU, which takes longer.")));
}

/* Returns whether the connection is open, as far as we know. */
bool
IvfpqBuilderIsOpen(const IvfpqBuilder *builder)
{
	return IvfpqChannelIsOpen(&builder->channel);
}

const char *
IvfpqBuilderReason(const IvfpqBuilder *builder)
{
	return builder->channel.reason;
}

/* Closes the connection, because the build has failed for a participant. */
void
IvfpqBuilderLose(IvfpqBuilder *builder, const char *reason)
{
	IvfpqChannelClose(&builder->channel, IVFPQ_BROKEN, reason);
}

void
IvfpqBuilderEnd(IvfpqBuilder *builder)
{
	IvfpqBuilderLose(builder, "the build has ended");
}

static int64
count_batches(int64 nsample, int batch_rows)
{
	return (nsample + batch_rows - 1) / batch_rows;
}

/* Returns the size of the IvfpqBuildShared for this build. */
Size
IvfpqSharingSize(const IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	return add_size(offsetof(IvfpqBuildShared, ids),
					add_size(mul_size(2 * sizeof(uint64), n),
							 count_batches(n, builder->spec.batch_rows)));
}

/* Returns the batches' flags, which are behind both arrays of TIDs. */
static bool *
answered_flags(IvfpqBuildShared *sharing)
{
	return (bool *) (sharing->ids + 2 * sharing->nsample);
}

/*
 * Initializes the shared state.  From now on, all participants claim batches
 * of the sample, so rows of the sample must not be added.
 */
void
IvfpqSharingInit(IvfpqBuildShared *sharing, IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	memset(sharing, 0, offsetof(IvfpqBuildShared, ids));
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

/*
 * Called when all participants have finished.  Returns whether rows of the
 * sample are lost.  If so, the next pass over the table is for these rows
 * only.
 */
bool
IvfpqSharingRecover(IvfpqBuildShared *sharing)
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
 * Returns whether a pass over the table has to add the row with this TID.  *at
 * is the position where the last call ended, and must be 0 when the pass
 * begins.
 */
bool
IvfpqSharingWants(const IvfpqBuildShared *sharing, uint64 id, int64 *at)
{
	const uint64 *ids = sharing->ids + sharing->nsample;
	int64		n = sharing->npassed;
	int64		low = *at;

	/* rows mostly come in the order of TIDs, so bisect only to go back */
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

static Slot *
slot_of(IvfpqBuilder *builder, uint64 number)
{
	return &builder->slots[number % NSLOTS];
}

/* Returns a slot's rows [batch_rows][dims]. */
static float *
rows_of(const IvfpqBuilder *builder, uint64 number)
{
	return (float *) IvfpqRingSlot(&builder->ring, number);
}

/*
 * Stores raw rows [n][dims] behind the rows of the slot being filled, as they
 * will be sent: transformed if there is a rotation, else raw.  The caller adds
 * n to the slot's number of rows.
 */
static void
fill(IvfpqBuilder *builder, const float *rows, int n)
{
	uint64		number = builder->ring.filled;
	int			dims = builder->spec.dims;
	float	   *to = rows_of(builder, number) +
	(Size) slot_of(builder, number)->n * dims;

	if (builder->model->rotation == NULL)
	{
		memcpy(to, rows, (Size) n * dims * sizeof(float));
		return;
	}
	for (int i = 0; i < n; i++, rows += dims, to += dims)
	{
		CHECK_FOR_INTERRUPTS();
		(void) gv_transform(builder->model, rows, 1, to);
	}
}

/* Returns the maximum length of an answer with n encoded rows. */
static uint32
most_encoded(const IvfpqBuilder *builder, int n)
{
	const GvBuilderSpec *spec = &builder->spec;

	return (uint32) Min(sizeof(GvEncodeReply) +
						gv_encoded_bytes(spec, n,
										 gv_builder_most_neighbors(spec, n)),
						PG_UINT32_MAX);
}

/*
 * Returns whether all list, query and row numbers of the answer are in range.
 */
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

/*
 * Passes encoded rows to the sink.  Returns false if the answer is malformed.
 */
static bool
take_encoded(IvfpqBuilder *builder, const Slot *slot,
			 const IvfpqRequest *request)
{
	const GvBuilderSpec *spec = &builder->spec;
	const GvEncodeSampleRequest *sample =
	request->header.type == GV_MSG_ENCODE_SAMPLE ?
	(const GvEncodeSampleRequest *) request->head : NULL;
	int			n = sample ? sample->n : slot->n;
	GvEncoded	encoded;
	uint32		length = IvfpqAnswerLength(&builder->channel);
	GvEncodeReply *reply =
	(GvEncodeReply *) IvfpqAnswerBody(&builder->channel);

	if (length < sizeof(*reply) || reply->n != n || reply->nneighbors < 0 ||
		reply->nneighbors > gv_builder_most_neighbors(spec, n) ||
		length != sizeof(*reply) +
		gv_encoded_bytes(spec, n, reply->nneighbors))
		return false;
	gv_encoded_open(spec, reply + 1, n, reply->nneighbors, &encoded);
	encoded.nneighbors = reply->nneighbors;
	if (!check_numbers(builder, &encoded, n))
		return false;
	builder->sink(builder->sink_arg,
				  sample ? NULL : rows_of(builder, builder->ring.answered),
				  sample ? builder->sharing->ids + sample->first : slot->ids,
				  &encoded, n);
	if (sample)
		answered_flags(builder->sharing)[sample->first /
										 spec->batch_rows] = true;
	return true;
}

/*
 * If a slot's rows belong to the sample, stores their TIDs in sample_ids, at
 * the numbers that gpuvecd gave to the rows.  Returns false if the answer is
 * malformed.
 */
static bool
take_numbers(IvfpqBuilder *builder, Slot *slot,
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

/* The ring's callback for answers (IvfpqAnswered). */
static bool
builder_take(void *arg, const IvfpqRequest *request)
{
	IvfpqBuilder *builder = arg;
	Slot	   *slot = slot_of(builder, builder->ring.answered);

	if (!(request->header.type == GV_MSG_TRAIN_ROWS ?
		  take_numbers(builder, slot, request) :
		  take_encoded(builder, slot, request)))
		return false;
	slot->n = 0;
	return true;
}

/* Memory context callback.  Closes the connection of the context's builder. */
static void
close_late(void *arg)
{
	IvfpqBuilderEnd(arg);
}

/* Makes a builder in the current context; it is not connected yet. */
static IvfpqBuilder *
make_builder(const GvBuilderSpec *spec, const GvModel *model)
{
	IvfpqBuilder *builder = palloc0(sizeof(IvfpqBuilder));

	IvfpqChannelInit(&builder->channel, CurrentMemoryContext);
	builder->callback.func = close_late;
	builder->callback.arg = builder;
	MemoryContextRegisterResetCallback(CurrentMemoryContext,
									   &builder->callback);
	builder->spec = *spec;
	builder->model = model;
	return builder;
}

/*
 * Allocates the ring and its slots, which are needed even without a
 * connection: rows that were added stay there until the caller takes them.
 */
static void
make_slots(IvfpqBuilder *builder)
{
	const GvBuilderSpec *spec = &builder->spec;

	if (!IvfpqRingOpen(&builder->ring, &builder->channel, NSLOTS,
					   (Size) spec->batch_rows * spec->dims * sizeof(float),
					   false))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	builder->ring.take = builder_take;
	builder->ring.take_arg = builder;
	for (int i = 0; i < NSLOTS; i++)
		builder->slots[i].ids = palloc(spec->batch_rows * sizeof(uint64));
}

/*
 * Begins a build by gpuvecd and chooses its batch_rows.  Returns NULL if the
 * settings do not choose gpuvecd, or if gpuvecd cannot build.  In the second
 * case, IvfpqBuilderFailed has reported the reason.  The builder is in the
 * current memory context, and a reset of the context closes the connection.
 * *model, which has metric, dims, mean, scale and perhaps a rotation, must
 * outlive the builder.
 */
IvfpqBuilder *
IvfpqBuilderBegin(Relation index, const GvBuilderSpec *spec,
				  const GvModel *model)
{
	Size		row = spec->dims * sizeof(float);
	const float *mean = model->mean;
	IvfpqBuilder *builder;
	GvBuildReply reply;
	const char *reason;

	if (!IvfpqServerIsWanted())
		return NULL;
	reason = IvfpqServerProblem();
	if (reason != NULL)
	{
		if (IvfpqSharedState() != IVFPQ_STATE_OFF ||
			ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
			IvfpqBuilderFailed(index, reason, false);
		return NULL;
	}
	builder = make_builder(spec, model);
	builder->spec.metric = model->metric;
	builder->spec.scale = model->scale;
	if (model->rotation != NULL)
	{
		/* with these numbers gv_transform changes no bit */
		mean = palloc0(row);
		builder->spec.scale = 1;
		if (model->metric == GV_COSINE)
			builder->spec.metric = GV_L2;
	}
	builder->spec.batch_rows = Max(1, Min(SLOT_BYTES / row, MOST_ROWS));
	if (!IvfpqChannelOpen(&builder->channel, GV_ROLE_BUILDER) ||
		!IvfpqChannelExchange(&builder->channel, GV_MSG_BUILD,
							  &builder->spec, sizeof(builder->spec),
							  mean, row, sizeof(reply)))
	{
		IvfpqBuilderFailed(index, builder->channel.reason, false);
		return NULL;
	}
	memcpy(&reply, IvfpqAnswerBody(&builder->channel), sizeof(reply));
	builder->id = reply.id;
	make_slots(builder);
	return builder;
}

/* Returns the ticket with which other participants join the build. */
IvfpqBuildHandle
IvfpqBuilderTicket(const IvfpqBuilder *builder)
{
	IvfpqBuildHandle ticket = {builder->id, builder->spec, builder->trained};

	return ticket;
}

/*
 * Joins the leader's build from another process.  If that fails, the returned
 * builder is not open, and adding rows fails, too.  *model is the leader's
 * model, as this process sees it.  `sharing` is NULL before training.
 */
IvfpqBuilder *
IvfpqBuilderJoin(const IvfpqBuildHandle *ticket, const GvModel *model,
				 IvfpqBuildShared *sharing)
{
	IvfpqBuilder *builder = make_builder(&ticket->spec, model);
	GvJoinRequest request = {ticket->id};

	builder->trained = ticket->trained;
	builder->sharing = sharing;
	make_slots(builder);
	if (IvfpqChannelOpen(&builder->channel, GV_ROLE_BUILDER))
		(void) IvfpqChannelExchange(&builder->channel, GV_MSG_JOIN, &request,
									sizeof(request), NULL, 0, 0);
	return builder;
}

/* Sends the slot being filled. */
static bool
dispatch(IvfpqBuilder *builder, GvMessageType type, GvRows kind)
{
	Slot	   *slot = slot_of(builder, builder->ring.filled);
	GvRowsRequest request = {kind, slot->n};

	return slot->n == 0 ||
		IvfpqRingSend(&builder->ring, type, &request, sizeof(request),
					  (Size) slot->n * builder->spec.dims * sizeof(float),
					  type == GV_MSG_ENCODE_ROWS ?
					  most_encoded(builder, slot->n) : sizeof(GvRowsReply));
}

/*
 * Claims a batch of the sample, and requests that gpuvecd encodes the batch.
 * Its slot has no rows.  Sets *some to whether there was an unclaimed batch.
 */
static bool
dispatch_sampled(IvfpqBuilder *builder, bool *some)
{
	IvfpqBuildShared *sharing = builder->sharing;
	int			batch_rows = builder->spec.batch_rows;
	GvEncodeSampleRequest request = {0, 0, 0};

	if (sharing != NULL)
	{
		request.first = (int64) pg_atomic_fetch_add_u64(&sharing->next,
														batch_rows);
		request.n = (int32) Max(0, Min(sharing->nsample - request.first,
									   batch_rows));
	}
	*some = request.n > 0;
	return !*some ||
		IvfpqRingSend(&builder->ring, GV_MSG_ENCODE_SAMPLE, &request,
					  sizeof(request), 0, most_encoded(builder, request.n));
}

/*
 * Sends raw rows [n][dims] that training needs.  ids [n] are the rows' TIDs,
 * and are used only for rows of the sample.
 */
bool
IvfpqBuilderTrainOn(IvfpqBuilder *builder, GvRows kind, const float *rows,
					const uint64 *ids, int64 n)
{
	int			dims = builder->spec.dims;

	for (int64 done = 0; done < n;)
	{
		Slot	   *slot = slot_of(builder, builder->ring.filled);
		int			some = (int) Min(n - done,
									 builder->spec.batch_rows - slot->n);

		fill(builder, rows + done * dims, some);
		if (kind == GV_SAMPLE)
			memcpy(slot->ids + slot->n, ids + done, some * sizeof(uint64));
		slot->n += some;
		done += some;
		if (slot->n == builder->spec.batch_rows ?
			!dispatch(builder, GV_MSG_TRAIN_ROWS, kind) :
			slot->n % ROWS_A_MOVE == 0 && !IvfpqChannelMove(&builder->channel))
			return false;
	}
	return true;
}

/* Sends the last rows of a kind and waits until gpuvecd has all of them. */
bool
IvfpqBuilderTrainEnd(IvfpqBuilder *builder, GvRows kind)
{
	return dispatch(builder, GV_MSG_TRAIN_ROWS, kind) &&
		IvfpqRingAwait(&builder->ring, 0);
}

/*
 * Sets the array [sample_rows] in which the TIDs of the sample's rows are
 * stored.  All participants may share the array.
 */
void
IvfpqBuilderSample(IvfpqBuilder *builder, uint64 *ids)
{
	builder->sample_ids = ids;
}

/*
 * Sets the number of rows in the sample, including rows that others have sent.
 */
void
IvfpqBuilderSampled(IvfpqBuilder *builder, int64 n)
{
	builder->nsample = n;
}

/* Sends a request and waits for the answer.  No slot may be under way. */
static bool
ask(IvfpqBuilder *builder, GvMessageType type, const void *request,
	Size bytes, Size length)
{
	return IvfpqChannelExchange(&builder->channel, type, request, bytes,
								NULL, 0, (uint32) length);
}

/* Lets gpuvecd train the index. */
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
		return IvfpqChannelReject(&builder->channel);
	builder->trained.nlists = trained->nlists = reply.nlists;
	builder->trained.nparents = trained->nparents = reply.nparents;
	return true;
}

/* Copies a whole array of the trained model to `values`. */
bool
IvfpqBuilderArray(IvfpqBuilder *builder, GvArray array, void *values)
{
	int64		length = gv_builder_array_length(&builder->spec,
												 &builder->trained, array);

	for (int64 first = 0; first < length; first += ARRAY_FLOATS)
	{
		GvGetModelRequest request = {array, 0, first,
		Min(ARRAY_FLOATS, length - first)};
		Size		bytes = request.count * sizeof(float);

		if (!ask(builder, GV_MSG_GET_MODEL, &request, sizeof(request), bytes))
			return false;
		memcpy((float *) values + first, IvfpqAnswerBody(&builder->channel),
			   bytes);
	}
	return true;
}

void
IvfpqBuilderTo(IvfpqBuilder *builder, IvfpqEncodedSink sink, void *sink_arg)
{
	builder->sink = sink;
	builder->sink_arg = sink_arg;
}

/*
 * Adds a raw row [dims] to be encoded.  The row is kept for
 * IvfpqBuilderUnanswered() even if this fails.
 */
bool
IvfpqBuilderAdd(IvfpqBuilder *builder, const float *row, uint64 id)
{
	Slot	   *slot = slot_of(builder, builder->ring.filled);
	bool		some;

	fill(builder, row, 1);
	slot->ids[slot->n++] = id;
	if (slot->n == builder->spec.batch_rows)
		return dispatch(builder, GV_MSG_ENCODE_ROWS, 0) &&
			dispatch_sampled(builder, &some);
	if (slot->n % ROWS_A_MOVE == 0)
		return IvfpqChannelMove(&builder->channel);
	return true;
}

/* Sends the last rows and batches of the sample, and waits for answers. */
bool
IvfpqBuilderFlush(IvfpqBuilder *builder)
{
	bool		some = true;

	if (!dispatch(builder, GV_MSG_ENCODE_ROWS, 0))
		return false;
	while (some)
		if (!dispatch_sampled(builder, &some))
			return false;
	return IvfpqRingAwait(&builder->ring, 0);
}

/*
 * After a failure, returns the rows of the next slot that was not answered, as
 * they were sent: transformed if there is a rotation, else raw.  Returns false
 * if there are no more rows.
 */
bool
IvfpqBuilderUnanswered(IvfpqBuilder *builder, const float **rows,
					   const uint64 **ids, int *n)
{
	IvfpqRing  *ring = &builder->ring;

	while (ring->answered <= ring->filled)
	{
		uint64		number = ring->answered++;
		Slot	   *slot = slot_of(builder, number);

		*rows = rows_of(builder, number);
		*ids = slot->ids;
		*n = slot->n;
		slot->n = 0;			/* the ring may use this slot again */
		if (*n > 0)
			return true;
	}
	return false;
}

/* Lets gpuvecd begin a calibration mirror of the index that is built. */
bool
IvfpqBuilderCalibMirror(IvfpqBuilder *builder, int64 postings)
{
	GvCalibMirrorRequest request = {postings};

	return ask(builder, GV_MSG_CALIB_MIRROR, &request, sizeof(request), 0);
}

/* Sends chunks of whole lists to the calibration mirror. */
bool
IvfpqBuilderLists(IvfpqBuilder *builder, int nchunks, const char *chunks,
				  Size bytes)
{
	GvListsRequest request = {.nchunks = nchunks};

	return IvfpqChannelExchange(&builder->channel, GV_MSG_LISTS, &request,
								sizeof(request), chunks, bytes, 0);
}

/*
 * Searches the calibration mirror, which has no refine records.  The answers
 * [question->n] are valid until the next request.
 */
bool
IvfpqBuilderSearch(IvfpqBuilder *builder, const IvfpqRemoteQuery *question,
				   IvfpqRemoteResult *answers)
{
	GvMirrorKey key = {0};
	GvSearchRequest request = IvfpqSearchRequest(&key, builder->spec.dims,
												 question);

	return IvfpqSearchExchange(&builder->channel, &request, question,
							   builder->trained.nlists, false,
							   answers) == IVFPQ_ANSWERED;
}
