/*
 * msgring.h
 *		Slots of memory in which messages are made: one is filled while others
 *		are on their way.  Private to src/client.
 *
 * A slot that was sent is kept until it is answered, and the next one is free
 * before it is filled.  Where the role allows that and there is such memory,
 * gpuvecd shares the slots, so that they are not copied through the socket.
 * Once all are answered a caller may name slots for answers (IvfpqRingOffset);
 * which of them are free is his to know.
 */
#ifndef IVFPQ_MSGRING_H
#define IVFPQ_MSGRING_H

#include "client/serverconn.h"

/*
 * Has the answer to a slot; false: it makes no sense.  Where there is none
 * the answers are empty.
 */
typedef bool (*IvfpqSlotAnswered) (void *arg, uint64 number,
								   const IvfpqRequest *request);

typedef struct IvfpqRing
{
	IvfpqChannel *channel;
	int			nslots;			/* up to IVFPQ_MAX_REQUESTS */
	Size		payload_bytes;	/* bytes of a slot */
	char	   *slots;			/* [nslots] heads and payloads */
	bool		is_shared;
	int			memory_fd;		/* of the slots until they are shared; or -1 */
	uint64		answered;		/* slots before this one are done with */
	uint64		filled;			/* slots before this one are full; it is being
								 * filled */
	IvfpqSlotAnswered take;		/* or NULL */
	void	   *take_arg;
} IvfpqRing;

extern bool IvfpqRingOpen(IvfpqRing *ring, IvfpqChannel *channel, int nslots,
						  Size payload_bytes, bool share);
extern void IvfpqRingClose(IvfpqRing *ring);
extern char *IvfpqRingSlot(const IvfpqRing *ring, uint64 number);
extern int64 IvfpqRingOffset(const IvfpqRing *ring, uint64 number);
extern bool IvfpqRingMove(IvfpqRing *ring);
extern bool IvfpqRingAwait(IvfpqRing *ring, uint64 most);
extern bool IvfpqRingSend(IvfpqRing *ring, GvMessageType type,
						  const void *head, Size head_bytes, Size bytes,
						  uint32 max_length);

#endif							/* IVFPQ_MSGRING_H */
