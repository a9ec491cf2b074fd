/*
 * ivfpqstatus.h
 *		What gpuvecd says of itself.  Private to src/client.
 */
#ifndef IVFPQSTATUS_H
#define IVFPQSTATUS_H

#include "client/ivfpqconnect.h"

extern IvfpqServed IvfpqAskStatus(GvRole role, int64 deadline,
								  GvStatusReply *head,
								  GvMirrorStatus **mirrors,
								  IvfpqReply *reply);

#endif							/* IVFPQSTATUS_H */
