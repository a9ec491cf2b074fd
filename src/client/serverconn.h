/*
 * serverconn.h
 *		Where gpuvecd listens, and whose it is (serverconn.c).  Private to
 *		src/client.
 */
#ifndef IVFPQ_SERVERCONN_H
#define IVFPQ_SERVERCONN_H

#include <sys/socket.h>
#include <sys/un.h>

#include "client/settings.h"
#include "storage/latch.h"

#include "protocol/gv_protocol.h"

extern void IvfpqPlaceInit(void);
extern bool IvfpqServerIsExternal(void);

/* ----
 * A socket to gpuvecd, the requests on their way through it, and what
 * became of them.  Private to src/client.
 *
 * Answers come in the order of the requests.  Searches, loaders and the
 * supervisor have one request on its way, builds and sets several.  Nothing
 * here throws because of what gpuvecd does or does not do: `served` says what
 * became of a request, `reason` why.  An error thrown while waiting, such as a
 * cancel, closes the channel before it goes on; so do a time-out and an answer
 * that makes no sense.  So a channel is never out of step, and gpuvecd never
 * works for a session that has gone.
 */

/* Requests that may be on their way. */
#define IVFPQ_MAX_REQUESTS		4

/* Memory for answers, from the beginning. */
#define IVFPQ_LEAST_CAPACITY		(16 * 1024)

/* So long, in microseconds, an answer is looked for without sleeping. */
#define IVFPQ_SOON_US			60

/* Room for the head of any request. */
typedef union IvfpqHead
{
	GvBeginRequest begin;
	GvBuilderSpec builder;
	GvSearchRequest search;
} IvfpqHead;

/* A request: header, head and tail. */
typedef struct IvfpqRequest
{
	GvMessage	header;
	char		head[sizeof(IvfpqHead)];
	Size		head_bytes;
	const char *tail;			/* stays where it is until it is sent */
	Size		tail_bytes;
	Size		sent;			/* bytes of all three */
	uint32		max_length;		/* of its answer */
} IvfpqRequest;

typedef struct IvfpqChannel
{
	pgsocket	sock;			/* PGINVALID_SOCKET: closed */
	WaitEventSet *events;		/* latch, postmaster's death, socket */
	int			pid;			/* whose it is */
	GvRole		role;
	GvWelcome	welcome;

	/* how long to wait, IvfpqNow; 0: for ever, as long as gpuvecd lives */
	int64		deadline;
	bool		soon;			/* answers are likely to come at once */

	/* the requests, a ring of them */
	IvfpqRequest requests[IVFPQ_MAX_REQUESTS];
	int			most;			/* that may be on their way */
	uint64		answered;		/* requests before this one are answered */
	uint64		sent;			/* requests before this one are sent */
	uint64		made;
	int			passed_fd;		/* goes along with the next bytes; -1 = none */

	/* the answer that comes in */
	MemoryContext context;		/* has its memory */
	char	   *in;				/* [capacity] a GvMessage and what follows */
	Size		capacity;
	Size		received;

	/* what became of the last request, or why the channel is closed */
	IvfpqServed served;
	uint32		refusal;		/* GvRefusalCode; 0 = not refused */
	char		reason[sizeof(((GvRefusal *) NULL)->reason) + 16];
} IvfpqChannel;

static inline bool
IvfpqChannelIsOpen(const IvfpqChannel *channel)
{
	return channel->sock != PGINVALID_SOCKET;
}

/* An answer, which is good until the channel's next request. */
static inline const char *
IvfpqAnswerBody(const IvfpqChannel *channel)
{
	return channel->in + sizeof(GvMessage);
}

static inline uint32
IvfpqAnswerLength(const IvfpqChannel *channel)
{
	return ((const GvMessage *) channel->in)->length;
}

/* serverconn.c */
extern void IvfpqChannelInit(IvfpqChannel *channel, MemoryContext context);
extern void IvfpqChannelClose(IvfpqChannel *channel, IvfpqServed served,
							  const char *reason);
extern IvfpqServed IvfpqChannelReject(IvfpqChannel *channel);
extern IvfpqRequest *IvfpqChannelAdd(IvfpqChannel *channel,
									 GvMessageType type,
									 const void *head, Size head_bytes,
									 const void *tail, Size tail_bytes,
									 uint32 max_length);
extern bool IvfpqChannelMove(IvfpqChannel *channel);
extern void IvfpqChannelTaken(IvfpqChannel *channel);
extern uint32 IvfpqChannelWait(IvfpqChannel *channel);
extern IvfpqServed IvfpqChannelAsk(IvfpqChannel *channel, GvMessageType type,
								   const void *head, Size head_bytes,
								   const void *tail, Size tail_bytes,
								   uint32 max_length);
extern IvfpqServed IvfpqChannelExchange(IvfpqChannel *channel,
										GvMessageType type,
										const void *head, Size head_bytes,
										const void *tail, Size tail_bytes,
										uint32 length);

/* serverconn.c; and the channel of the process, for one request at a time */
extern bool IvfpqChannelOpen(IvfpqChannel *channel, GvRole role);
extern IvfpqChannel *IvfpqConnect(GvRole role, int64 deadline);
extern void IvfpqDisconnect(void);
extern pgsocket IvfpqOwnSocket(void);
extern bool IvfpqServerAnswers(const char **reason);

/* serverconn.c */
extern IvfpqServed IvfpqAskStatus(IvfpqChannel *channel, GvStatusReply *head,
								  GvMirrorStatus **mirrors);

#endif							/* IVFPQ_SERVERCONN_H */
