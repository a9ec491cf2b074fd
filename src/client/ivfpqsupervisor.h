/*
 * ivfpqsupervisor.h
 *		The background worker that runs gpuvecd, and its parts.  Private to
 *		src/client.
 */
#ifndef IVFPQSUPERVISOR_H
#define IVFPQSUPERVISOR_H

#include "postmaster/bgworker.h"

/* ivfpqsupervisor.c */
extern void IvfpqSupervisorRegister(void);

/* ivfpqchild.c: the process gpuvecd */
extern bool IvfpqChildStart(void);
extern int	IvfpqChildPid(void);
extern int	IvfpqChildLog(void);
extern bool IvfpqChildReadLog(void);
extern bool IvfpqChildEnded(int *status);
extern void IvfpqChildTerminate(void);
extern void IvfpqChildStop(int *status);

/* ivfpqlaunch.c: loaders */
extern int64 IvfpqLaunchLoaders(bool *ended);

/* ivfpqloader.c */
extern void IvfpqFillLoader(BackgroundWorker *worker, Oid database, int slot);

#endif							/* IVFPQSUPERVISOR_H */
