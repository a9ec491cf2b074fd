/*
 * serverconn.h
 *		The connection to gpuvecd.  Private to src/client.
 *
 * A channel is a socket to gpuvecd, with the requests that are under way and
 * the outcome of the last request.  Answers come in the order of the requests.
 * Searches, loaders and the supervisor use the channel of their process, which
 * has a deadline and, except for searches in shared memory, one request at a
 * time.  Each build and each set has a channel of its own, with several
 * requests under way.  This channel has no deadline: an answer may take any
 * time as long as gpuvecd answers pings.
 *
 * No error is raised because of what gpuvecd does or does not do: `served` is
 * the outcome of a request, and `reason` explains it.  If an error, such as a
 * cancel, is raised during a wait, the channel is closed before the error
 * propagates.  A time-out and an invalid answer close the channel, too.  So
 * an answer is never taken for that of another request, and gpuvecd notices
 * when nobody waits for its work.
 */
#ifndef IVFPQ_SERVERCONN_H
#define IVFPQ_SERVERCONN_H

#include <sys/socket.h>
#include <sys/un.h>

#include "client/settings.h"
#include "storage/latch.h"

#include "protocol/gv_protocol.h"

/* Maximum number of requests under way in a channel. */
#define IVFPQ_MAX_REQUESTS		4

/* How long to poll for an answer before sleeping, in microseconds. */
#define IVFPQ_BUSY_POLL_US			500

/* As large as the largest head of a request. */
typedef union IvfpqHead
{
	GvBeginRequest begin;
	GvBuilderSpec builder;
	GvSearchRequest search;
} IvfpqHead;

/*
 * Processes the answer to a request, which IvfpqAnswerBody returns.  Returns
 * false if the answer is invalid.
 */
typedef struct IvfpqRequest IvfpqRequest;
typedef bool (*IvfpqAnswered) (void *arg, const IvfpqRequest *request);

/* A request consists of a header, a head directly behind it, and a tail. */
struct IvfpqRequest
{
	GvMessage	header;
	char		head[sizeof(IvfpqHead)];
	Size		head_bytes;
	const char *tail;			/* not copied */
	Size		tail_bytes;
	Size		sent;			/* bytes of the request that are sent */
	uint32		max_length;		/* maximum length of the answer */
	IvfpqAnswered take;			/* or NULL */
	void	   *take_arg;
};

typedef struct IvfpqChannel
{
	pgsocket	sock;			/* PGINVALID_SOCKET: closed */
	WaitEventSet *events;		/* latch, postmaster's death, socket, wake_fd */
	GvRole		role;
	uint64		connection;		/* number of the connection; other connections
								 * of this channel have other numbers */
	GvWelcome	welcome;

	/* deadline of an answer (IvfpqNow), or 0 to wait while gpuvecd is alive */
	int64		deadline;
	int64		begun;			/* when IvfpqChannelExpect was called */
	uint64		answers;		/* ivfpq_shared->answers at that time */
	bool		busy_poll;		/* answers are expected within
								 * IVFPQ_BUSY_POLL_US */

	/* a ring of requests, which are numbered */
	IvfpqRequest requests[IVFPQ_MAX_REQUESTS];
	int			max_in_flight;	/* maximum number under way */
	uint64		answered;		/* requests before this one are answered */
	uint64		sent;			/* requests before this one are sent */
	uint64		made;			/* requests before this one are made */
	int			passed_fd;		/* passed with the next bytes; -1 = none */

	/* for searches in shared memory; NULL: they go through the socket */
	GvMailbox  *mailbox;
	Size		answer_bytes;	/* bytes behind the mailbox */
	int			wake_fd;		/* an eventfd, or -1 */

	/* the answer that is being received */
	MemoryContext context;		/* in which `in` is allocated */
	char	   *in;				/* [capacity] a GvMessage and its body */
	Size		capacity;
	Size		received;

	/* the outcome of the last request, or why the channel is closed */
	IvfpqOutcome served;
	uint32		refusal;		/* GvRefusalCode; 0 = not refused */
	char		reason[sizeof(((GvRefusal *) NULL)->reason) + 20];
} IvfpqChannel;

static inline bool
IvfpqChannelIsOpen(const IvfpqChannel *channel)
{
	return channel->sock != PGINVALID_SOCKET;
}

/* Returns the body of an answer, valid until the channel's next request. */
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

/* Returns whether gpuvecd is started by others, not by PostgreSQL. */
static inline bool
IvfpqServerIsExternal(void)
{
	return ivfpq_server == IVFPQ_SERVER_EXTERNAL;
}

/* where gpuvecd is */
extern void IvfpqPlaceInit(void);
extern const char *IvfpqServerProblem(void);

/* channels */
extern void IvfpqChannelInit(IvfpqChannel *channel, MemoryContext context);
extern void IvfpqChannelClose(IvfpqChannel *channel, IvfpqOutcome served,
							  const char *reason);
extern bool IvfpqChannelOpen(IvfpqChannel *channel, GvRole role);
extern void IvfpqChannelUse(IvfpqChannel *channel, void *memory, Size bytes);
extern bool IvfpqChannelReject(IvfpqChannel *channel);
extern void IvfpqChannelExpect(IvfpqChannel *channel, int64 timeout_us);
extern IvfpqRequest *IvfpqChannelAdd(IvfpqChannel *channel,
									 GvMessageType type,
									 const void *head, Size head_bytes,
									 const void *tail, Size tail_bytes,
									 uint32 max_length);
extern bool IvfpqChannelMove(IvfpqChannel *channel);
extern bool IvfpqChannelAwait(IvfpqChannel *channel, uint64 pending);
extern IvfpqOutcome IvfpqChannelAsk(IvfpqChannel *channel, GvMessageType type,
									const void *head, Size head_bytes,
									const void *tail, Size tail_bytes,
									uint32 max_length);
extern bool IvfpqChannelExchange(IvfpqChannel *channel, GvMessageType type,
								 const void *head, Size head_bytes,
								 const void *tail, Size tail_bytes,
								 uint32 length);

/* the channel of the process */
extern IvfpqChannel *IvfpqConnect(GvRole role, int64 timeout_us);
extern void IvfpqDisconnect(void);
extern pgsocket IvfpqOwnSocket(void);

/* for any channel */
extern IvfpqOutcome IvfpqFetchStatus(IvfpqChannel *channel,
									 GvStatusReply *head,
									 GvMirrorStatus **mirrors);

#endif							/* IVFPQ_SERVERCONN_H */
