/*
 * views.h
 *		The status of gpuvecd and of its mirrors, taken from gpuvecd's answer
 *		and from shared memory.
 */
#ifndef IVFPQ_VIEWS_H
#define IVFPQ_VIEWS_H

#include "client/mirrorqueue.h"

typedef struct IvfpqServerStatus
{
	bool		preloaded;		/* if not, there is no gpuvecd */
	bool		preload_helps;	/* preloading would start gpuvecd */
	bool		has_device;		/* the machine seems to have a device */
	const char *state;			/* name of the state, as in gpuvec_stat */
	bool		is_external;	/* PostgreSQL does not start gpuvecd */
	const char *problem;		/* why gpuvecd cannot be reached, or "" */
	bool		is_others;		/* it serves another cluster */
	bool		up;				/* gpuvecd has answered */
	int			pid;			/* 0 = not running */
	const char *engine;
	const char *device;
	int64		restarts;
	int64		memory;			/* bytes that mirrors may use; 0 = unknown */
	int64		used;			/* bytes in use */
	int64		searches;		/* answered so far; 0 if not up */
	int64		batches;		/* likewise */
	int			nmirrors;
	GvMirrorStatus *mirrors;	/* [nmirrors] */
} IvfpqServerStatus;

extern void IvfpqGetServerStatus(IvfpqServerStatus *status);
extern const char *IvfpqGetMirrorState(const IvfpqServerStatus *status,
									   const GvMirrorKey *key, char **error);

#endif							/* IVFPQ_VIEWS_H */
