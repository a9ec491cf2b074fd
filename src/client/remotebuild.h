/*
 * remotebuild.h
 *		Builds by gpuvecd: it trains an index and encodes its rows.
 *
 * When a function on a builder returns false, the builder has failed for the
 * rest of the build, unless the function's comment says otherwise.  Encoded
 * rows go to the sink in the order in which they were added.
 */
#ifndef IVFPQ_REMOTEBUILD_H
#define IVFPQ_REMOTEBUILD_H

#include "port/atomics.h"
#include "utils/rel.h"

#include "client/remotesearch.h"
#include "engine/mirror/gv_builder.h"
#include "protocol/gv_protocol.h"

typedef struct IvfpqBuilder IvfpqBuilder;

/* The ticket with which other participants join a build. */
typedef struct IvfpqBuildHandle
{
	uint64		id;				/* of the build in gpuvecd */
	GvBuilderSpec spec;
	GvTrained	trained;		/* nlists 0: not trained yet */
} IvfpqBuildHandle;

/*
 * The state that the participants of a build share, in shared memory.
 *
 * `ids` holds three arrays.  The first has the TIDs of the sample [nsample],
 * in the order of the sample.  The second has space for TIDs [nsample], and
 * holds npassed of them in ascending order.  The third has a bool for each
 * batch of the sample, which says whether the batch is answered.
 */
typedef struct IvfpqBuildShared
{
	IvfpqBuildHandle ticket;
	pg_atomic_uint32 failed;	/* 1: gpuvecd failed for a participant */
	pg_atomic_uint64 next;		/* first row of the sample that is unclaimed */
	int64		nsample;
	bool		recovering;		/* if set, a pass adds only the rows in the
								 * second array, otherwise all other rows */
	int64		npassed;
	uint64		ids[FLEXIBLE_ARRAY_MEMBER];
} IvfpqBuildShared;

/*
 * Receives n encoded rows with their TIDs [n].  rows [n][dims] are the rows as
 * they were sent, or NULL if gpuvecd had them from training.
 */
typedef void (*IvfpqEncodedSink) (void *arg, const float *rows,
								  const uint64 *ids, const GvEncoded *encoded,
								  int n);

extern Size IvfpqSharingSize(const IvfpqBuilder *builder);
extern void IvfpqSharingInit(IvfpqBuildShared *sharing, IvfpqBuilder *builder);
extern bool IvfpqSharingWants(const IvfpqBuildShared *sharing, uint64 id,
							  int64 *at);
extern bool IvfpqSharingRecover(IvfpqBuildShared *sharing);

extern IvfpqBuilder *IvfpqBuilderBegin(Relation index,
									   const GvBuilderSpec *spec,
									   const GvModel *model);
extern IvfpqBuildHandle IvfpqBuilderTicket(const IvfpqBuilder *builder);
extern IvfpqBuilder *IvfpqBuilderJoin(const IvfpqBuildHandle *ticket,
									  const GvModel *model,
									  IvfpqBuildShared *sharing);
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
extern bool IvfpqBuilderLists(IvfpqBuilder *builder, int nchunks,
							  const char *chunks, Size bytes);
extern bool IvfpqBuilderSearch(IvfpqBuilder *builder,
							   const IvfpqRemoteQuery *question,
							   IvfpqRemoteResult *answers);

extern const char *IvfpqBuilderReason(const IvfpqBuilder *builder);
extern void IvfpqBuilderFailed(Relation index, const char *reason,
							   bool partly);
extern void IvfpqBuilderLose(IvfpqBuilder *builder, const char *reason);
extern void IvfpqBuilderEnd(IvfpqBuilder *builder);

#endif							/* IVFPQ_REMOTEBUILD_H */
