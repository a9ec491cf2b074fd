/*
 * servershared.h
 *		What all processes know of gpuvecd: its state, what became of searches,
 *		and mirror requests.  Private to src/client.
 *
 * It is there only when the library is preloaded; a crash of the cluster
 * clears it.
 */
#ifndef IVFPQ_SERVERSHARED_H
#define IVFPQ_SERVERSHARED_H

#include "client/settings.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "protocol/gv_protocol.h"

/* How gpuvecd is.  The names are those of gpuvec_stat. */
typedef enum IvfpqServerState
{
	IVFPQ_STATE_OFF,			/* it is not to be started */
	IVFPQ_STATE_STARTING,
	IVFPQ_STATE_UP,
	IVFPQ_STATE_DOWN,			/* it ended; the supervisor starts it again */
	IVFPQ_STATE_NO_DEVICE,		/* gpuvec.server = auto, and there is none */
	IVFPQ_STATE_MISMATCH		/* it speaks another version of the protocol */
} IvfpqServerState;

/* Mirrors that all processes together may request. */
#define IVFPQ_NREQUESTS		256

typedef enum IvfpqMirrorRequestState
{
	IVFPQ_REQUEST_FREE,			/* the slot is not used */
	IVFPQ_REQUEST_WAITING,		/* to be loaded */
	IVFPQ_REQUEST_LOADING,		/* a loader is at it */
	IVFPQ_REQUEST_READY,
	IVFPQ_REQUEST_FAILED,		/* may be asked for again from `retry_at` on */
	IVFPQ_REQUEST_EVICTED		/* was ready; gpuvecd gave it up */
} IvfpqMirrorRequestState;

typedef struct IvfpqMirrorRequest
{
	GvMirrorKey key;
	IvfpqMirrorRequestState state;
	bool		catch_up;		/* it is ready and lacks something */
	int			loader;			/* pid, while one is at it; else 0 */
	uint64		asked;			/* ticket of the last request */
	uint64		taken;			/* `asked` when a loader took it */
	uint64		done;			/* every request up to this one is fulfilled */
	uint64		refused;		/* the same of requests that failed */
	int			failures;		/* since it was last ready */
	TimestampTz retry_at;		/* not before */
	TimestampTz locked_since;	/* found locked since then; 0 = is not */
	TimestampTz ready_at;		/* when it was loaded; 0 = never */
	int64		postings;		/* loaded */
	int64		expected;		/* postings to load */
	char		error[160];		/* of the last failure; "" = none */
} IvfpqMirrorRequest;

/* Loaders that may run at the same time. */
#define IVFPQ_MAX_LOADERS	2

/*
 * Microseconds from request to answer, four classes an octave: class i holds
 * those of IvfpqLatencyClass() = i.
 */
#define IVFPQ_NLATENCIES	128

/* gpuvecd's last report of itself. */
typedef struct IvfpqServerInfo
{
	int			pid;			/* 0 = does not run */
	char		engine[16];
	char		device[128];
	int64		memory;			/* for mirrors, bytes */
	int64		most;			/* the same of the device that has most */
	int64		used;
	int64		restarts;
	TimestampTz started;		/* 0 = never */
	uint64		instance;		/* of the last one that we met; 0 = none */
	char		problem[200];	/* why an external one is not to be reached;
								 * "" = it is, or why is not known */
	bool		is_others;		/* the problem: it serves another cluster */
} IvfpqServerInfo;

/* A session that waited gpuvec.server_timeout in vain. */
typedef struct IvfpqSilence
{
	int			pid;			/* 0 = there was none */
	int64		noted;			/* when, IvfpqNow */
	uint64		served;			/* searches of all sessions, until then */
} IvfpqSilence;

typedef struct IvfpqShared
{
	/* read or changed by every search */
	pg_atomic_uint32 state;		/* IvfpqServerState */
	pg_atomic_uint32 suspended; /* 1: it answers no session in time */
	pg_atomic_uint32 doubted;	/* 1: the supervisor is to see whether it does */
	pg_atomic_uint32 has_device;	/* 1: its engine is "cuda" */
	pg_atomic_uint32 loaders_awaited;	/* 1: a database has none, and needs
										 * one, but others have all */
	pg_atomic_uint64 instance;	/* of its run; 0 = none */
	uint64		incarnation;	/* of this memory, random; does not change */
	pg_atomic_uint64 epoch;		/* grows when a mirror gets ready */
	pg_atomic_uint64 served[IVFPQ_NSERVED];
	pg_atomic_uint64 answers;	/* of gpuvecd to searches, useless ones, too;
								 * only grows */
	pg_atomic_uint64 scans;		/* of indexes, however they were searched */
	pg_atomic_uint64 out_of_order;	/* of them all */
	pg_atomic_uint64 full_passes;	/* scans that ended with one */
	pg_atomic_uint64 sets;		/* whose work gpuvecd has finished */
	pg_atomic_uint64 sets_failed;	/* whose work it failed to finish */
	pg_atomic_uint64 sent;		/* bytes, by all clients */
	pg_atomic_uint64 received;
	pg_atomic_uint64 latency[IVFPQ_NLATENCIES];

	/* the rest is under `lock` */
	LWLock	   *lock;
	ConditionVariable changed;	/* some IvfpqMirrorRequest is done or has
								 * failed */
	Latch	   *supervisor;		/* NULL: there is none */
	IvfpqServerInfo server;
	IvfpqSilence silence;		/* the last one */
	bool		loader_connected[IVFPQ_MAX_LOADERS];	/* it got into its
														 * database */
	uint64		tickets;		/* the last one handed out */
	IvfpqMirrorRequest requests[IVFPQ_NREQUESTS];
} IvfpqShared;

/* servershared.c; NULL without preloading */
extern IvfpqShared *ivfpq_shared;

extern bool IvfpqSeesDevice(void);
extern bool IvfpqPreloadHelps(void);
extern const char *IvfpqUnservedHint(void);
extern IvfpqServerState IvfpqSharedState(void);
extern const char *IvfpqStateName(void);
extern void IvfpqSharedSetServer(const IvfpqServerInfo *server);
extern void IvfpqSharedGetServer(IvfpqServerInfo *server);
extern uint64 IvfpqCountServed(void);
extern void IvfpqNoteSilence(int64 since, uint64 served);
extern void IvfpqWakeSupervisor(void);
extern void IvfpqCountLatency(int64 us);
extern double IvfpqLatencyQuantile(double fraction);

/* A monotonic clock. */
extern int64 IvfpqNow(void);

/* ----
 * Parts of the main shared memory, while the library is preloaded
 * (servershared.c).
 */

typedef struct IvfpqSharedPart
{
	const char *name;			/* of the memory and of its lock's tranche */
	Size		size;
	void	  **address;		/* where each process finds it */
	/* called once, when all of it is zero; the lock is the part's */
	void		(*init) (void *memory, LWLock *lock);
} IvfpqSharedPart;

extern void IvfpqShare(const IvfpqSharedPart *part);

#endif							/* IVFPQ_SERVERSHARED_H */
