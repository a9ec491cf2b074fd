/*
 * views.h
 *		The status of gpuvecd and of its mirrors, by its own answer and by
 *		shared memory (views.c).
 */
#ifndef IVFPQ_VIEWS_H
#define IVFPQ_VIEWS_H

#include "client/mirrorqueue.h"

/* A status; filled by IvfpqGetServerStatus. */
typedef struct IvfpqServerStatus
{
	bool		preloaded;		/* else there is no gpuvecd, */
	bool		preload_helps;	/* preloading would start one */
	bool		has_device;		/* a device seems to be there */
	const char *state;			/* in a word, as gpuvec_stat has it */
	bool		is_external;	/* others start it */
	const char *problem;		/* why it is not to be reached; may be "" */
	bool		is_others;		/* the problem: it serves another cluster */
	bool		up;
	int			pid;			/* 0 = does not run */
	const char *engine;
	const char *device;
	int64		restarts;
	int64		memory;			/* for mirrors, bytes; 0 = not known */
	int64		used;
	int			nmirrors;		/* that it told of */
	GvMirrorStatus *mirrors;	/* [nmirrors] */
} IvfpqServerStatus;

extern void IvfpqGetServerStatus(IvfpqServerStatus *status);
extern const char *IvfpqGetMirrorState(const IvfpqServerStatus *status,
									   const GvMirrorKey *key, char **error);

#endif							/* IVFPQ_VIEWS_H */
