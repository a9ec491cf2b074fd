/*
 * remotebuild.h
 *		A build by gpuvecd from the inside.  Private to src/client.
 */
#ifndef IVFPQ_REMOTEBUILD_H
#define IVFPQ_REMOTEBUILD_H

#include "client/channel/ring.h"
#include "client/work/builder.h"

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
extern bool IvfpqBuilderTake(void *arg, uint64 number,
							 const IvfpqRequest *request);

/* buildjoin.c */
extern int	IvfpqSharingClaim(IvfpqSharing *sharing, int64 *first);
extern void IvfpqSharingAnswered(IvfpqSharing *sharing, int64 first);

#endif							/* IVFPQ_REMOTEBUILD_H */
