/*
 * buildopen.c
 *		A build by gpuvecd begins, or is joined.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "client/work/remotebuild.h"

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
	builder->ring.take = IvfpqBuilderTake;
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
