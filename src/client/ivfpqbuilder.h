/*
 * ivfpqbuilder.h
 *		The connection of a build to gpuvecd.  Private to src/client.
 *
 * Unlike the connection of ivfpqconnect.h it has several requests on their
 * way at a time, and is a build's own.  Nothing here throws because of what
 * gpuvecd does; errors thrown while waiting leave it to the memory context of
 * the build to close the connection.
 */
#ifndef IVFPQBUILDER_H
#define IVFPQBUILDER_H

#include "storage/latch.h"

#include "client/ivfpqconnect.h"

/* A message on its way: header, head and tail. */
typedef struct IvfpqParcel
{
	GvMessage	header;
	char		head[sizeof(GvBuildRequest)];
	Size		head_bytes;
	const char *tail;			/* stays where it is until it is sent */
	Size		tail_bytes;
	Size		sent;			/* bytes of all three */
} IvfpqParcel;

typedef struct IvfpqLink
{
	pgsocket	sock;			/* PGINVALID_SOCKET: closed */
	WaitEventSet *events;		/* latch, postmaster's death, socket */
	GvMessage	header;			/* of the answer that comes in */
	Size		received;		/* bytes of header and body */
	MemoryContext context;		/* has the body */
	char	   *body;			/* [room] */
	Size		room;
	char		reason[160];	/* why it is closed */
} IvfpqLink;

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

/* ivfpqlink.c */
extern bool IvfpqLinkOpen(IvfpqLink *link);
extern void IvfpqLinkClose(IvfpqLink *link, const char *reason);
extern void IvfpqLinkPack(IvfpqParcel *parcel, GvMessageType type,
						  const void *head, Size head_bytes,
						  const void *tail, Size tail_bytes);
extern bool IvfpqLinkSend(IvfpqLink *link, IvfpqParcel *parcel);
extern bool IvfpqLinkReceive(IvfpqLink *link, uint32 max_length);
extern void IvfpqLinkTaken(IvfpqLink *link);
extern bool IvfpqLinkWait(IvfpqLink *link, bool to_send);
extern bool IvfpqLinkAsk(IvfpqLink *link, IvfpqParcel *parcel,
						 uint32 max_length);
extern bool IvfpqLinkExchange(IvfpqLink *link, IvfpqParcel *parcel,
							  uint32 length);

/* ivfpqsharing.c */
extern int	IvfpqSharingClaim(IvfpqSharing *sharing, int64 *first);
extern void IvfpqSharingAnswered(IvfpqSharing *sharing, int64 first);

#endif							/* IVFPQBUILDER_H */
