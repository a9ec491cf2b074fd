/*
 * ivfpqbuilder.c
 *		A build by gpuvecd: rows go there, lists and codes come back.
 *
 * Rows are gathered in slots, a ring of them.  A full slot is on its way until
 * its answer has come, and keeps its rows as long: when gpuvecd fails, who
 * builds does those itself and goes on.  Bytes move whenever a row is added,
 * as many as the socket takes, so gpuvecd gets on with one slot while the
 * next is filled.
 *
 * Rows of the sample need not be sent again: between slots with rows there are
 * some that only name them.  Who builds has to read these anew when gpuvecd
 * fails.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "client/ivfpqbuilder.h"
#include "client/ivfpqshared.h"

#define NSLOTS			4
#define SLOT_BYTES		((Size) 4 << 20)	/* rows of a slot */
#define MOST_ROWS		8192
#define ARRAY_FLOATS	(GV_MAX_MESSAGE / 4)

/* Often enough that the socket, which holds some 200 kB, is never empty. */
#define ROWS_A_MOVE		64

typedef struct Slot
{
	float	   *rows;			/* [batch_rows][dims] */
	uint64	   *ids;			/* [batch_rows] */
	int			n;
	bool		sampled;		/* the rows are gpuvecd's */
	IvfpqParcel parcel;			/* once it is full */
} Slot;

struct IvfpqBuilder
{
	IvfpqLink	link;
	GvBuilderSpec spec;
	GvTrained	trained;
	Slot		slots[NSLOTS];	/* number i in slots[i % NSLOTS] */
	uint64		answered;		/* slots before this one are done with */
	uint64		sent;			/* ... are sent */
	uint64		filled;			/* ... are full; this one is being filled */
	uint64	   *sample_ids;		/* [sample_rows] of the sample */
	int64		nsample;
	int64		nreused;		/* of these are, or were, in slots; nsample:
								 * none is to be reused */
	IvfpqEncodedSink sink;
	void	   *sink_arg;
	MemoryContextCallback callback;
};

/* The context of the build is gone, perhaps by an error. */
static void
close_late(void *arg)
{
	IvfpqLinkClose(&((IvfpqBuilder *) arg)->link, "the build ended");
}

static Slot *
slot_of(IvfpqBuilder *builder, uint64 number)
{
	return &builder->slots[number % NSLOTS];
}

/* Is gpuvecd there to build? */
static bool
is_there(const char **reason)
{
	IvfpqServerState state = IvfpqSharedState();

	*reason = NULL;
	if (state == IVFPQ_STATE_UP)
	{
		if (pg_atomic_read_u32(&ivfpq_shared->suspended) == 0)
			return true;
		*reason = "it does not answer";
	}
	else if (state != IVFPQ_STATE_OFF)
		*reason = "it is not running";
	return false;
}

/* Say hello and what is to be built. */
static bool
greet(IvfpqBuilder *builder, const float *mean)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_BUILDER, (uint32) MyProcPid};
	GvBuildRequest request = {spec->metric, spec->dims, spec->m, spec->copies,
		spec->refine, spec->nlists, spec->nparents, spec->nqueries,
		spec->depth, spec->batch_rows, spec->iterations, spec->scale,
	spec->max_share, spec->seed, spec->sample_rows};
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0);
	if (!IvfpqLinkExchange(&builder->link, &parcel, sizeof(GvWelcome)))
		return false;
	IvfpqLinkTaken(&builder->link);
	IvfpqLinkPack(&parcel, GV_MSG_BUILD, &request, sizeof(request), mean,
				  spec->dims * sizeof(float));
	if (!IvfpqLinkExchange(&builder->link, &parcel, 0))
		return false;
	IvfpqLinkTaken(&builder->link);
	return true;
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
	if (!is_there(&reason))
	{
		if (reason != NULL || ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
			IvfpqBuilderFailed(index, reason ? reason : "there is none");
		return NULL;
	}
	builder = palloc0(sizeof(IvfpqBuilder));
	builder->link.sock = PGINVALID_SOCKET;
	builder->callback.func = close_late;
	builder->callback.arg = builder;
	MemoryContextRegisterResetCallback(CurrentMemoryContext,
									   &builder->callback);
	builder->spec = *spec;
	builder->spec.batch_rows = Max(1, Min(SLOT_BYTES / row, MOST_ROWS));
	if (!IvfpqLinkOpen(&builder->link) || !greet(builder, mean))
	{
		IvfpqBuilderFailed(index, builder->link.reason);
		return NULL;
	}
	for (int i = 0; i < NSLOTS; i++)
	{
		Slot	   *slot = &builder->slots[i];

		slot->rows = palloc_extended(builder->spec.batch_rows * row,
									 MCXT_ALLOC_HUGE);
		slot->ids = palloc(builder->spec.batch_rows * sizeof(uint64));
	}
	builder->sample_ids = palloc_extended(spec->sample_rows * sizeof(uint64),
										  MCXT_ALLOC_HUGE);
	return builder;
}

/* gpuvecd is not, or no more, what builds the index: say why. */
void
IvfpqBuilderFailed(Relation index, const char *reason)
{
	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("gpuvecd could not build index \"%s\": %s",
						RelationGetRelationName(index), reason),
				 errhint("Look into the server's log, or set gpuvec.on_gpu_error to fallback.")));
	ereport(NOTICE,
			(errmsg("gpuvecd could not build index \"%s\": %s",
					RelationGetRelationName(index), reason),
			 errdetail("It is built without a card, which takes longer.")));
}

/* Why it failed. */
const char *
IvfpqBuilderReason(const IvfpqBuilder *builder)
{
	return builder->link.reason;
}

void
IvfpqBuilderEnd(IvfpqBuilder *builder)
{
	IvfpqLinkClose(&builder->link, "the build ended");
}

/* Does the answer to a slot tell what has become of its rows? */
static bool
is_encoding(const Slot *slot)
{
	return slot->parcel.header.type == GV_MSG_ENCODE ||
		slot->parcel.header.type == GV_MSG_SAMPLED;
}

/* The most bytes that the answer to a slot may have. */
static uint32
most_answer(const IvfpqBuilder *builder, const Slot *slot)
{
	const GvBuilderSpec *spec = &builder->spec;

	if (!is_encoding(slot))
		return 0;
	return (uint32) Min(sizeof(GvEncodeReply) +
						gv_encoded_bytes(spec, slot->n,
										 gv_builder_most_neighbours(spec,
																	slot->n)),
						PG_UINT32_MAX);
}

/* Do the numbers in the arrays lie where they must? */
static bool
check_numbers(const IvfpqBuilder *builder, const GvEncoded *encoded, int n)
{
	const GvBuilderSpec *spec = &builder->spec;

	for (int i = 0; i < n * spec->copies; i++)
		if (encoded->lists[i] >= builder->trained.nlists ||
			encoded->lists[i] < (i % spec->copies == 0 ? 0 : -1))
			return false;
	for (int i = 0; i < encoded->nneighbours; i++)
		if (encoded->neighbours[i].query < 0 ||
			encoded->neighbours[i].query >= spec->nqueries ||
			encoded->neighbours[i].row < 0 || encoded->neighbours[i].row >= n)
			return false;
	return true;
}

/* Where the arrays of an answer about a slot lie; false: it makes no sense. */
static bool
open_answer(IvfpqBuilder *builder, const Slot *slot, GvEncoded *encoded)
{
	const GvBuilderSpec *spec = &builder->spec;
	const IvfpqLink *link = &builder->link;
	GvEncodeReply *reply = (GvEncodeReply *) link->body;

	if (link->header.length < sizeof(*reply) || reply->n != slot->n ||
		reply->nneighbours < 0 ||
		reply->nneighbours > gv_builder_most_neighbours(spec, slot->n) ||
		link->header.length != sizeof(*reply) +
		gv_encoded_bytes(spec, slot->n, reply->nneighbours))
		return false;
	gv_encoded_open(spec, reply + 1, slot->n, reply->nneighbours, encoded);
	encoded->nneighbours = reply->nneighbours;
	return check_numbers(builder, encoded, slot->n);
}

/* The answer to the oldest slot on its way is there. */
static void
take_answer(IvfpqBuilder *builder)
{
	Slot	   *slot = slot_of(builder, builder->answered);
	GvEncoded	encoded;

	if (builder->link.header.request != slot->parcel.header.type)
	{
		IvfpqLinkClose(&builder->link, "its answer makes no sense");
		return;
	}
	if (is_encoding(slot))
	{
		if (!open_answer(builder, slot, &encoded))
		{
			IvfpqLinkClose(&builder->link, "its answer makes no sense");
			return;
		}
		builder->sink(builder->sink_arg, slot->ids, &encoded, slot->n);
	}
	slot->n = 0;
	slot->sampled = false;
	builder->answered++;
	IvfpqLinkTaken(&builder->link);
}

/* Move what can be moved without waiting; false: it failed. */
static bool
move(IvfpqBuilder *builder)
{
	IvfpqLink  *link = &builder->link;

	while (link->sock != PGINVALID_SOCKET &&
		   builder->sent < builder->filled &&
		   IvfpqLinkSend(link, &slot_of(builder, builder->sent)->parcel))
		builder->sent++;
	while (link->sock != PGINVALID_SOCKET &&
		   builder->answered < builder->filled)
	{
		if (!IvfpqLinkReceive(link, most_answer(builder,
												slot_of(builder,
														builder->answered))))
			break;
		take_answer(builder);
	}
	return link->sock != PGINVALID_SOCKET;
}

/* Wait until no more than `most` slots are on their way; false: it failed. */
static bool
await(IvfpqBuilder *builder, uint64 most)
{
	while (move(builder))
	{
		if (builder->filled - builder->answered <= most)
			return true;
		if (!IvfpqLinkWait(&builder->link, builder->sent < builder->filled))
			return false;
	}
	return false;
}

/* The slot being filled goes on its way. */
static bool
dispatch(IvfpqBuilder *builder, GvMessageType type, GvRows kind)
{
	const GvBuilderSpec *spec = &builder->spec;
	Slot	   *slot = slot_of(builder, builder->filled);
	GvRowsRequest request = {kind, slot->n};

	if (slot->n == 0)
		return true;
	IvfpqLinkPack(&slot->parcel, type, &request, sizeof(request), slot->rows,
				  (Size) slot->n * spec->dims * sizeof(float));
	slot->sampled = false;
	builder->filled++;
	/* the next one has to be free, to be filled */
	return await(builder, NSLOTS - 1);
}

/* The next rows of the sample go on their way, by their numbers. */
static bool
dispatch_sampled(IvfpqBuilder *builder)
{
	Slot	   *slot = slot_of(builder, builder->filled);
	int64		left = builder->nsample - builder->nreused;
	GvSampledRequest request = {builder->nreused, 0, 0};

	if (left == 0)
		return true;
	Assert(slot->n == 0);
	slot->n = (int) Min(left, builder->spec.batch_rows);
	slot->sampled = true;
	memcpy(slot->ids, builder->sample_ids + builder->nreused,
		   slot->n * sizeof(uint64));
	builder->nreused += slot->n;
	request.n = slot->n;
	IvfpqLinkPack(&slot->parcel, GV_MSG_SAMPLED, &request, sizeof(request),
				  NULL, 0);
	builder->filled++;
	return await(builder, NSLOTS - 1);
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

	if (kind == GV_SAMPLE)
	{
		Assert(builder->nsample + n <= builder->spec.sample_rows);
		memcpy(builder->sample_ids + builder->nsample, ids,
			   n * sizeof(uint64));
		builder->nsample += n;
		builder->nreused = builder->nsample;
	}
	for (int64 done = 0; done < n;)
	{
		Slot	   *slot = slot_of(builder, builder->filled);
		int			some = (int) Min(n - done,
									 builder->spec.batch_rows - slot->n);

		memcpy(slot->rows + (Size) slot->n * dims, rows + done * dims,
			   (Size) some * dims * sizeof(float));
		slot->n += some;
		done += some;
		if (slot->n == builder->spec.batch_rows ?
			!dispatch(builder, GV_MSG_ROWS, kind) :
			slot->n % ROWS_A_MOVE == 0 && !move(builder))
			return false;
	}
	return true;
}

/* All rows of a kind have been given; false: it failed. */
bool
IvfpqBuilderTrainEnd(IvfpqBuilder *builder, GvRows kind)
{
	return dispatch(builder, GV_MSG_ROWS, kind);
}

/* Have it train; false: it failed. */
bool
IvfpqBuilderTrain(IvfpqBuilder *builder, GvTrained *trained)
{
	const GvBuilderSpec *spec = &builder->spec;
	IvfpqParcel parcel;
	GvTrainReply reply;

	if (!await(builder, 0))
		return false;
	IvfpqLinkPack(&parcel, GV_MSG_TRAIN, NULL, 0, NULL, 0);
	if (!IvfpqLinkExchange(&builder->link, &parcel, sizeof(reply)))
		return false;
	memcpy(&reply, builder->link.body, sizeof(reply));
	IvfpqLinkTaken(&builder->link);
	if (reply.nlists < 1 || reply.nlists > spec->nlists ||
		reply.nparents < 1 || reply.nparents > spec->nparents ||
		reply.nparents > reply.nlists)
	{
		IvfpqLinkClose(&builder->link, "its answer makes no sense");
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
		IvfpqParcel parcel;

		IvfpqLinkPack(&parcel, GV_MSG_TRAINED, &request, sizeof(request),
					  NULL, 0);
		if (!IvfpqLinkExchange(&builder->link, &parcel,
							   (uint32) (request.count * sizeof(float))))
			return false;
		memcpy((float *) values + first, builder->link.body,
			   request.count * sizeof(float));
		IvfpqLinkTaken(&builder->link);
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

/*
 * From now on the rows of the sample are encoded as well, so that they are not
 * to be added; returns how many, and their TIDs in the order of the sample.
 */
int64
IvfpqBuilderReuse(IvfpqBuilder *builder, const uint64 **ids)
{
	builder->nreused = 0;
	*ids = builder->sample_ids;
	return builder->nsample;
}

/* Add a raw row [dims] to be encoded; false: it failed, the row is kept. */
bool
IvfpqBuilderAdd(IvfpqBuilder *builder, const float *row, uint64 id)
{
	int			dims = builder->spec.dims;
	Slot	   *slot = slot_of(builder, builder->filled);

	memcpy(slot->rows + (Size) slot->n * dims, row, dims * sizeof(float));
	slot->ids[slot->n++] = id;
	if (slot->n == builder->spec.batch_rows)
		return dispatch(builder, GV_MSG_ENCODE, 0) &&
			dispatch_sampled(builder);
	if (slot->n % ROWS_A_MOVE == 0)
		return move(builder);
	return true;
}

/* All rows have been added: wait for what is on its way; false: it failed. */
bool
IvfpqBuilderFlush(IvfpqBuilder *builder)
{
	if (!dispatch(builder, GV_MSG_ENCODE, 0))
		return false;
	while (builder->nreused < builder->nsample)
		if (!dispatch_sampled(builder))
			return false;
	return await(builder, 0);
}

/*
 * After a failure: the next rows that were not answered; *rows is NULL for
 * those of the sample.  False when there are no more.
 */
bool
IvfpqBuilderUnanswered(IvfpqBuilder *builder, const float **rows,
					   const uint64 **ids, int *n)
{
	while (builder->answered <= builder->filled)
	{
		Slot	   *slot = slot_of(builder, builder->answered++);

		*rows = slot->sampled ? NULL : slot->rows;
		*ids = slot->ids;
		*n = slot->n;
		slot->n = 0;			/* the ring may come to it again */
		slot->sampled = false;
		if (*n > 0)
			return true;
	}
	*rows = NULL;
	*ids = builder->sample_ids + builder->nreused;
	*n = (int) (builder->nsample - builder->nreused);
	builder->nreused = builder->nsample;
	return *n > 0;
}

/* Have it make room to search what will be built; false: it failed. */
bool
IvfpqBuilderTrial(IvfpqBuilder *builder, int64 copies)
{
	GvTrialRequest request = {copies};
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_TRIAL, &request, sizeof(request), NULL, 0);
	if (!IvfpqLinkExchange(&builder->link, &parcel, 0))
		return false;
	IvfpqLinkTaken(&builder->link);
	return true;
}

/* Give it lists, a message of GV_MSG_PIECES; false: it failed. */
bool
IvfpqBuilderPieces(IvfpqBuilder *builder, const char *message, Size bytes)
{
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_PIECES, NULL, 0, message, bytes);
	if (!IvfpqLinkExchange(&builder->link, &parcel, 0))
		return false;
	IvfpqLinkTaken(&builder->link);
	return true;
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
	IvfpqLink  *link = &builder->link;
	Size		head = request->n * sizeof(int32);
	Size		total = 0;
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_TRY, request, sizeof(*request), queries,
				  bytes);
	if (!IvfpqLinkAsk(link, &parcel, (uint32) (head + (Size) request->n *
											   request->capacity * 6)))
		return false;
	*nhits = (const int32 *) link->body;
	*rowids = link->body + head;
	for (int i = 0; i < request->n && link->header.length >= head; i++)
	{
		if ((*nhits)[i] < 0 || (*nhits)[i] > request->capacity)
			break;
		total += (*nhits)[i];
	}
	if (link->header.length == head + total * 6)
	{
		IvfpqLinkTaken(link);
		return true;
	}
	IvfpqLinkClose(link, "its answer makes no sense");
	return false;
}
