/*
 * team.h
 *		The participants of a build: its leader, and parallel workers if there
 *		are any (team.c).
 */
#ifndef IVFPQ_TEAM_H
#define IVFPQ_TEAM_H

#include "access/relscan.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/sharedfileset.h"
#include "storage/shm_toc.h"
#include "storage/spin.h"

#include "client/client.h"
#include "page/page.h"

/* A round of calibration (ladder.c). */
typedef struct IvfpqClimb
{
	int			number;			/* of the round */
	int			nqueries;		/* 0: there is none */
	int			most;			/* lists, */
	int			most_width;		/* and candidates of the ladder */
} IvfpqClimb;

/* What all participants see. */
typedef struct IvfpqTeamShared
{
	Oid			heap;
	Oid			index;
	bool		concurrent;
	int			nparts;			/* parts of maintenance_work_mem: workers that
								 * were asked for, and the leader */
	SharedFileSet files;		/* unless the leader is alone */
	ConditionVariable changed;	/* narrived or round */

	slock_t		mutex;			/* protects these */
	int			size;			/* participants; 0 = not known yet */
	int			narrived;		/* at the end of this round */
	int			round;
	double		heap_tuples;
	bool		broken_hot_chain;

	pg_atomic_uint64 done;		/* rows, of the phase */
	pg_atomic_uint64 ncopies;	/* that there are to be written */
	pg_atomic_uint64 next_range;	/* of lists, that is still to be written */
	pg_atomic_uint64 next_page; /* that is still to be logged */
	pg_atomic_uint32 refine_head;	/* see IvfpqRecordBuilderFinish */

	pg_atomic_uint64 next_query;	/* of calibration, to be searched for */

	/* written by the leader while workers wait */
	IvfpqMetaData meta;
	IvfpqClimb	climb;
	BlockNumber npages;			/* of the index */
} IvfpqTeamShared;

/* A participant's view. */
typedef struct IvfpqTeam
{
	IvfpqTeamShared *shared;
	int			me;				/* 0 = the leader */
	bool		parallel;		/* false: the leader is alone */
	IvfpqSharing *sharing;		/* of a build by gpuvecd; or NULL */
	IvfpqListEntry *entries;	/* [nlists] all zero in the beginning */
	ParallelTableScanDesc scan; /* NULL: alone */
	struct IvfpqWorkers *workers;	/* the leader's hold on them */
} IvfpqTeam;

/* team.c */
extern int	IvfpqCountWorkers(Relation heap, Relation index);
extern void IvfpqTeamInit(IvfpqTeamShared *shared);
extern void IvfpqTeamAlone(IvfpqTeam *team, int nlists);
extern bool IvfpqTeamGather(IvfpqTeam *team);
extern void IvfpqTeamRelease(IvfpqTeam *team);
extern void IvfpqTeamDone(IvfpqTeam *team, int64 n);

#endif							/* IVFPQ_TEAM_H */
