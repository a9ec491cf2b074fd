/*
 * serverprocess.h
 *		The process gpuvecd, as the supervisor sees it.  Private to src/client.
 */
#ifndef IVFPQ_SERVERPROCESS_H
#define IVFPQ_SERVERPROCESS_H

extern bool IvfpqChildStart(void);
extern int	IvfpqChildPid(void);
extern int	IvfpqChildLog(void);
extern bool IvfpqChildReadLog(void);
extern bool IvfpqChildEnded(int *status);
extern void IvfpqChildLogEnd(int status);
extern void IvfpqChildTerminate(void);
extern void IvfpqChildStop(int *status);

#endif							/* IVFPQ_SERVERPROCESS_H */
