/*
 * supervisor.h
 *		The background worker that runs gpuvecd, and its parts.  Private to
 *		src/client.
 */
#ifndef IVFPQ_SUPERVISOR_H
#define IVFPQ_SUPERVISOR_H

#include "protocol/gv_protocol.h"

/* serverprocess.c: the process gpuvecd */
extern bool IvfpqChildStart(void);
extern int	IvfpqChildPid(void);
extern int	IvfpqChildLog(void);
extern bool IvfpqChildReadLog(void);
extern bool IvfpqChildEnded(int *status);
extern void IvfpqChildLogEnd(int status);
extern void IvfpqChildTerminate(void);
extern void IvfpqChildStop(int *status);

/* serverprocess.c */
extern bool IvfpqFindProgram(char *path);

/* supervisor.c */

/* supervisor.c: loaders */

#endif							/* IVFPQ_SUPERVISOR_H */
