/*
 * socketplace.h
 *		Where gpuvecd listens, and whose it is (socketplace.c).  Private to
 *		src/client.
 */
#ifndef IVFPQ_SOCKETPLACE_H
#define IVFPQ_SOCKETPLACE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "protocol/gv_protocol.h"

extern void IvfpqPlaceInit(void);
extern bool IvfpqServerIsExternal(void);
extern bool IvfpqIsServerOwner(uid_t uid);
extern bool IvfpqFindSocket(struct sockaddr_un *address, const char **reason);
extern const char *IvfpqConnectProblem(int error);

#endif							/* IVFPQ_SOCKETPLACE_H */
