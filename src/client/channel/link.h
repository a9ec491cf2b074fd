/*
 * link.h
 *		The connection of a build or of work on a set to gpuvecd.  Private to
 *		src/client.
 *
 * Unlike the connection of connect.h it has several requests on their
 * way at a time, and is its owner's alone.  Nothing here throws because of what
 * gpuvecd does; errors thrown while waiting leave it to the memory context of
 * the owner to close the connection.
 */
#ifndef IVFPQ_LINK_H
#define IVFPQ_LINK_H

#include "storage/latch.h"

#include "client/channel/connect.h"

/* A message on its way: header, head and tail. */
typedef struct IvfpqParcel
{
	GvMessage	header;
	char		head[sizeof(GvBuildRequest)];
	Size		head_bytes;
	const char *tail;			/* stays where it is until it is sent */
	Size		tail_bytes;
	Size		sent;			/* bytes of all three */
	int			passed_fd;		/* goes along with the first; -1 = none */
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

extern bool IvfpqLinkIsPossible(const char **reason);
extern bool IvfpqLinkOpen(IvfpqLink *link, GvRole role);
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

#endif							/* IVFPQ_LINK_H */
