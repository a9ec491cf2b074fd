/*
 * connect.h
 *		The connection to gpuvecd, one a process.  Private to src/client.
 *
 * A request is sent, then its answer is received; another one can be sent
 * only after that, or on a new connection.  An error thrown while waiting, a
 * time-out and an answer that makes no sense close the connection, so that it
 * is never out of step; the next request opens another.
 */
#ifndef IVFPQ_CONNECT_H
#define IVFPQ_CONNECT_H

#include <sys/socket.h>

#include "client/state/served.h"
#include "protocol/gv_protocol.h"

/* What a request consists of, behind its header. */
#define IVFPQ_REQUEST_PARTS		4

/* So long, in microseconds, an answer is looked for without sleeping. */
#define IVFPQ_SOON_US			60

/* An answer; pointers are good until the process' next request. */
typedef struct IvfpqReply
{
	const char *body;			/* 8-aligned */
	uint32		length;
	uint32		refusal;		/* GvRefusalCode; 0 = not refused */
	const char *reason;			/* of a refusal, or of what went wrong; never
								 * NULL */
} IvfpqReply;

extern pgsocket IvfpqOpenSocket(const char **reason);
extern ssize_t IvfpqSendMessage(pgsocket sock, struct msghdr *message,
								int passed_fd);
extern IvfpqServed IvfpqSend(GvRole role, GvMessageType type,
							 const struct iovec *parts, int nparts,
							 int64 deadline, IvfpqReply *reply);
extern IvfpqServed IvfpqPass(GvRole role, GvMessageType type,
							 const void *request, Size bytes, int fd,
							 int64 deadline, IvfpqReply *reply);
extern IvfpqServed IvfpqReceive(uint32 max_length, int64 deadline,
								IvfpqReply *reply);
extern IvfpqServed IvfpqExchange(GvRole role, GvMessageType type,
								 const struct iovec *parts, int nparts,
								 uint32 max_length, int64 deadline,
								 IvfpqReply *reply);
extern void IvfpqExpectSoon(bool soon);
extern const GvWelcome *IvfpqWelcome(void);
extern void IvfpqDisconnect(void);

#endif							/* IVFPQ_CONNECT_H */
