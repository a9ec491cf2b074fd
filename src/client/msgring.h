/*
 * msgring.h
 *		A ring of slots in which messages are made: one is filled while others
 *		are on their way.  Private to src/client.
 *
 * A slot that was sent stays unchanged until it is answered, and only then can
 * it be filled again.  The slots may be in memory shared with gpuvecd, so that
 * messages are not copied through the socket.  When all messages are answered,
 * the caller may request that gpuvecd writes answers into shared slots
 * (IvfpqRingOffset); the caller keeps track of which slots are free.
 */
#ifndef IVFPQ_MSGRING_H
#define IVFPQ_MSGRING_H

#include "client/serverconn.h"

typedef struct IvfpqRing
{
	IvfpqChannel *channel;
	int			nslots;			/* up to IVFPQ_MAX_REQUESTS */
	Size		payload_bytes;	/* maximum payload of a slot */
	char	   *slots;			/* [nslots] heads and payloads */
	bool		is_shared;
	int			memory_fd;		/* descriptor to share the slots by, or -1 */
	uint64		answered;		/* slots before this one are answered */
	uint64		filled;			/* number of the slot being filled; all
								 * earlier slots are sent */
	IvfpqAnswered take;			/* for slot `answered`; NULL if the answers
								 * are empty */
	void	   *take_arg;
} IvfpqRing;

extern bool IvfpqRingOpen(IvfpqRing *ring, IvfpqChannel *channel, int nslots,
						  Size payload_bytes, bool share);
extern void IvfpqRingClose(IvfpqRing *ring);
extern char *IvfpqRingSlot(const IvfpqRing *ring, uint64 number);
extern int64 IvfpqRingOffset(const IvfpqRing *ring, uint64 number);
extern bool IvfpqRingAwait(IvfpqRing *ring, uint64 most);
extern bool IvfpqRingSend(IvfpqRing *ring, GvMessageType type,
						  const void *head, Size head_bytes, Size bytes,
						  uint32 max_length);

#endif							/* IVFPQ_MSGRING_H */
