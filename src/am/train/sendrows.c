/*
 * sendrows.c
 *		The rows that gpuvecd trains on, read by all participants.
 *
 * Each worker joins the build and sends the rows of the blocks that it claims;
 * gpuvecd says under which numbers it has them.  A worker that cannot join is
 * skipped: the others read its blocks.  A worker that fails later leaves rows
 * in gpuvecd whose numbers are lost, and then the build by gpuvecd has failed.
 */
#include "postgres.h"

#include "am/train/train.h"

/* The state that all participants share (IVFPQ_PARALLEL_SENT). */
typedef struct Sent
{
	IvfpqTicket ticket;
	uint64		most;			/* rows to send */
	pg_atomic_uint64 nsent;		/* rows; may come to be more than `most` */
	pg_atomic_uint32 failed;	/* 1: a participant could not send, */
	char		reason[160];	/* for this reason */
} Sent;

/* Rows on their way from one participant. */
typedef struct Sender
{
	Sent	   *sent;
	IvfpqBuilder *builder;
} Sender;

/* This participant could not send; the first reason counts. */
static void
fail(Sent *sent, IvfpqBuilder *builder)
{
	if (pg_atomic_exchange_u32(&sent->failed, 1) == 0)
		strlcpy(sent->reason, IvfpqBuilderReason(builder),
				sizeof(sent->reason));
}

/* IvfpqRowSink: raw rows [n][dims]. */
static bool
send_rows(void *arg, const float *rows, const uint64 *ids, int n)
{
	Sender	   *sender = arg;
	Sent	   *sent = sender->sent;
	uint64		at = pg_atomic_read_u32(&sent->failed) != 0 ? sent->most :
	pg_atomic_fetch_add_u64(&sent->nsent, n);

	if (at >= sent->most)
		return false;
	if (!IvfpqBuilderTrainOn(sender->builder, GV_SAMPLE, rows, ids,
							 Min(n, (int64) (sent->most - at))))
	{
		fail(sent, sender->builder);
		return false;
	}
	return at + n < sent->most;
}

/* Does a participant's part. */
static void
send_part(IvfpqReader *reader, IvfpqParallel *parallel, Sent *sent,
		  IvfpqBuilder *builder)
{
	Sender		sender = {sent, builder};

	reader->sink = send_rows;
	reader->sink_arg = &sender;
	IvfpqReaderRun(reader, parallel);
	if (pg_atomic_read_u32(&sent->failed) == 0 &&
		!IvfpqBuilderTrainEnd(builder, GV_SAMPLE))
		fail(sent, builder);
}

/*
 * Has the rows that `reader` needs read and sent by all participants, `most`
 * of them, after those that *builder has; false: the build by gpuvecd has
 * failed.
 */
bool
IvfpqSendRows(IvfpqReader *reader, IvfpqParallel *parallel,
			  IvfpqBuilder *builder,
			  int64 most)
{
	Sent	   *sent =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_SENT, sizeof(Sent));
	bool		failed;

	memset(sent, 0, sizeof(*sent));
	sent->ticket = IvfpqBuilderTicket(builder);
	sent->most = most;
	pg_atomic_init_u64(&sent->nsent, 0);
	pg_atomic_init_u32(&sent->failed, 0);
	IvfpqReaderShare(reader, parallel);
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_SEND);
	send_part(reader, parallel, sent, builder);
	(void) IvfpqParallelEndPhase(parallel);

	failed = pg_atomic_read_u32(&sent->failed) != 0;
	if (failed)
		IvfpqBuilderLose(builder, sent->reason);
	else
		IvfpqBuilderSampled(builder, sent->ticket.spec.sample_rows - most +
							Min(pg_atomic_read_u64(&sent->nsent),
								sent->most));
	IvfpqReaderEnd(parallel);
	return !failed;
}

/* Does a worker's part. */
void
IvfpqSendHelp(IvfpqReader *reader, IvfpqParallel *parallel)
{
	Sent	   *sent = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SENT);
	IvfpqBuilder *builder = IvfpqBuilderJoin(&sent->ticket, NULL);

	IvfpqReaderJoin(reader, parallel);
	if (IvfpqBuilderIsOpen(builder))
	{
		IvfpqBuilderSample(builder,
						   IvfpqParallelMemory(parallel,
											   IVFPQ_PARALLEL_SAMPLE));
		send_part(reader, parallel, sent, builder);
	}
	IvfpqBuilderEnd(builder);
}
