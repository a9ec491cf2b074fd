/*
 * remotebuild.h
 *		Builds by gpuvecd: it trains an index and encodes its rows.
 *
 * Functions that return false have failed for the rest of the build.  Encoded
 * rows go to the sink in the order in which they were added.
 */
#ifndef IVFPQ_REMOTEBUILD_H
#define IVFPQ_REMOTEBUILD_H

#include "client/msgring.h"
#include "port/atomics.h"
#include "utils/rel.h"

#include "engine/mirror/gv_builder.h"
#include "protocol/gv_protocol.h"

typedef struct IvfpqBuilder IvfpqBuilder;

/* A ticket with which others join a build. */
typedef struct IvfpqTicket
{
	uint64		id;				/* in gpuvecd */
	GvBuilderSpec spec;
	GvTrained	trained;		/* nlists 0: not yet */
} IvfpqTicket;

/*
 * The state that participants of a build share, in memory that all of them
 * see (remotebuild.c).
 */
typedef struct IvfpqSharing
{
	IvfpqTicket ticket;
	pg_atomic_uint32 failed;	/* 1: it did not do all for some of them */
	pg_atomic_uint64 next;		/* row of the sample that is not claimed */
	int64		nsample;
	bool		recovering;		/* a pass is for the rows below only, else for
								 * all others */
	int64		npassed;
	uint64		ids[FLEXIBLE_ARRAY_MEMBER]; /* [nsample] TIDs of the sample,
											 * in its order; [nsample], of
											 * which npassed, ascending; then
											 * a flag for each batch */
} IvfpqSharing;

extern Size IvfpqSharingSize(const IvfpqBuilder *builder);
extern void IvfpqSharingInit(IvfpqSharing *sharing, IvfpqBuilder *builder);
extern bool IvfpqSharingWants(const IvfpqSharing *sharing, uint64 id,
							  int64 *at);
extern bool IvfpqSharingRecover(IvfpqSharing *sharing);

typedef void (*IvfpqEncodedSink) (void *arg, const uint64 *ids,
								  const GvEncoded *encoded, int n);

extern IvfpqBuilder *IvfpqBuilderBegin(Relation index,
									   const GvBuilderSpec *spec,
									   const float *mean);
extern IvfpqTicket IvfpqBuilderTicket(const IvfpqBuilder *builder);
extern IvfpqBuilder *IvfpqBuilderJoin(const IvfpqTicket *ticket,
									  IvfpqSharing *sharing);
extern bool IvfpqBuilderIsOpen(const IvfpqBuilder *builder);
extern void IvfpqBuilderSample(IvfpqBuilder *builder, uint64 *ids);
extern void IvfpqBuilderSampled(IvfpqBuilder *builder, int64 n);
extern bool IvfpqBuilderTrainOn(IvfpqBuilder *builder, GvRows kind,
								const float *rows, const uint64 *ids,
								int64 n);
extern bool IvfpqBuilderTrainEnd(IvfpqBuilder *builder, GvRows kind);
extern bool IvfpqBuilderTrain(IvfpqBuilder *builder, GvTrained *trained);
extern bool IvfpqBuilderArray(IvfpqBuilder *builder, GvArray array,
							  void *values);
extern void IvfpqBuilderTo(IvfpqBuilder *builder, IvfpqEncodedSink sink,
						   void *sink_arg);
extern bool IvfpqBuilderAdd(IvfpqBuilder *builder, const float *row,
							uint64 id);
extern bool IvfpqBuilderFlush(IvfpqBuilder *builder);
extern bool IvfpqBuilderUnanswered(IvfpqBuilder *builder,
								   const float **rows, const uint64 **ids,
								   int *n);
extern bool IvfpqBuilderCalibMirror(IvfpqBuilder *builder, int64 postings);
extern bool IvfpqBuilderChunks(IvfpqBuilder *builder, const char *message,
							   Size bytes);
extern bool IvfpqBuilderTry(IvfpqBuilder *builder,
							const GvTryRequest *request, const float *queries,
							Size bytes, const int32 **nhits,
							const char **rowids);
extern const char *IvfpqBuilderReason(const IvfpqBuilder *builder);
extern void IvfpqBuilderFailed(Relation index, const char *reason,
							   bool partly);
extern void IvfpqBuilderLose(IvfpqBuilder *builder, const char *reason);
extern void IvfpqBuilderEnd(IvfpqBuilder *builder);

/* ----
 * A build by gpuvecd from the inside.  Private to src/client.
 */

#define IVFPQ_BUILDER_SLOTS	4

/* A slot of the ring, which has its rows [batch_rows][dims]. */
typedef struct IvfpqSlot
{
	uint64	   *ids;			/* [batch_rows] */
	int			n;
	bool		sampled;		/* the rows are gpuvecd's, of its sample */
	int64		first;			/* number of the first of them */
} IvfpqSlot;

struct IvfpqBuilder
{
	IvfpqChannel channel;
	GvBuilderSpec spec;
	GvTrained	trained;
	uint64		id;				/* under which others join it */
	IvfpqRing	ring;
	IvfpqSlot	slots[IVFPQ_BUILDER_SLOTS]; /* of it */
	uint64	   *sample_ids;		/* [sample_rows] of the sample */
	int64		nsample;		/* of these, that gpuvecd is known to have */
	IvfpqSharing *sharing;		/* who has these encoded; or NULL */
	IvfpqEncodedSink sink;
	void	   *sink_arg;
	MemoryContextCallback callback;
};

/* remotebuild.c: has the answer to a slot */

/* remotebuild.c */

#endif							/* IVFPQ_REMOTEBUILD_H */
