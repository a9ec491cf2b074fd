/*
 * client.h
 *		PostgreSQL's side of gpuvecd, as the rest of the extension sees it:
 *		searches, mirrors, builds, sets, status and settings.
 *
 * No query depends on gpuvecd: whatever goes wrong, the session's own engine
 * answers.  While a function waits for gpuvecd, it holds no locks on relations
 * or pages, except those locks that the session held before the call.
 */
#ifndef IVFPQ_CLIENT_H
#define IVFPQ_CLIENT_H

#include "client/mirrorqueue.h"
#include "client/remotebuild.h"
#include "client/remotesearch.h"
#include "client/remoteset.h"
#include "client/servershared.h"
#include "client/settings.h"
#include "client/views.h"

/* for _PG_init, while the library is preloaded (servershared.c) */
extern void IvfpqClientInit(void);

#endif							/* IVFPQ_CLIENT_H */
