/*
 * remotebuild.h
 *		A build by gpuvecd from the inside.  Private to src/client.
 */
#ifndef IVFPQ_REMOTEBUILD_H
#define IVFPQ_REMOTEBUILD_H

#include "client/channel/link.h"
#include "client/work/builder.h"

#define IVFPQ_BUILDER_SLOTS	4

typedef struct IvfpqSlot
{
	float	   *rows;			/* [batch_rows][dims] */
	uint64	   *ids;			/* [batch_rows] */
	int			n;
	bool		sampled;		/* the rows are gpuvecd's, of its sample */
	int64		first;			/* number of the first of them */
	IvfpqParcel parcel;			/* once it is full */
} IvfpqSlot;

struct IvfpqBuilder
{
	IvfpqLink	link;
	GvBuilderSpec spec;
	GvTrained	trained;
	uint64		id;				/* under which others join it */
	IvfpqSlot	slots[IVFPQ_BUILDER_SLOTS]; /* a ring */
	uint64		answered;		/* slots before this one are done with */
	uint64		sent;			/* ... are sent */
	uint64		filled;			/* ... are full; this one is being filled */
	uint64	   *sample_ids;		/* [sample_rows] of the sample; or NULL */
	int64		nsample;		/* of these, that gpuvecd is known to have */
	IvfpqSharing *sharing;		/* who has these encoded; or NULL */
	IvfpqEncodedSink sink;
	void	   *sink_arg;
	MemoryContextCallback callback;
};

/* buildjoin.c */
extern int	IvfpqSharingClaim(IvfpqSharing *sharing, int64 *first);
extern void IvfpqSharingAnswered(IvfpqSharing *sharing, int64 first);

#endif							/* IVFPQ_REMOTEBUILD_H */
