/*
 * status.h
 *		What gpuvecd says of itself.  Private to src/client.
 */
#ifndef IVFPQ_STATUS_H
#define IVFPQ_STATUS_H

#include "client/channel/connect.h"

extern IvfpqServed IvfpqAskStatus(GvRole role, int64 deadline,
								  GvStatusReply *head,
								  GvMirrorStatus **mirrors,
								  IvfpqReply *reply);

#endif							/* IVFPQ_STATUS_H */
