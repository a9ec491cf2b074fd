/*
 * servershared.h
 *		Shared memory: the state of gpuvecd, statistics, mirror requests.
 *		Private to src/client, except for IvfpqShare.
 *
 * Fields that every search reads or counts are atomic.  One LWLock protects
 * the others, and no process waits for anything while it holds the LWLock.
 * Without preloading there is no shared memory (ivfpq_shared is NULL) and no
 * gpuvecd.  A crash of the cluster clears shared memory.
 */
#ifndef IVFPQ_SERVERSHARED_H
#define IVFPQ_SERVERSHARED_H

#include "client/settings.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/itemptr.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "protocol/gv_protocol.h"

/* The state of gpuvecd; IvfpqStateName has the names. */
typedef enum IvfpqServerState
{
	IVFPQ_STATE_OFF,			/* the settings do not allow gpuvecd */
	IVFPQ_STATE_STARTING,
	IVFPQ_STATE_UP,
	IVFPQ_STATE_DOWN,			/* not running; the supervisor tries again */
	IVFPQ_STATE_NO_DEVICE,		/* gpuvec.server = auto, and no device */
	IVFPQ_STATE_MISMATCH		/* gpuvecd has another protocol version */
} IvfpqServerState;

/* Maximum number of mirror requests, of all processes together. */
#define IVFPQ_NREQUESTS		256

typedef enum IvfpqMirrorRequestState
{
	IVFPQ_REQUEST_FREE,			/* the slot is not used */
	IVFPQ_REQUEST_WAITING,		/* waits for a loader */
	IVFPQ_REQUEST_LOADING,		/* a loader is working on it */
	IVFPQ_REQUEST_READY,
	IVFPQ_REQUEST_FAILED,		/* may be requested again at `retry_at` */
	IVFPQ_REQUEST_EVICTED		/* was ready; gpuvecd evicted it */
} IvfpqMirrorRequestState;

typedef struct IvfpqMirrorRequest
{
	GvMirrorKey key;
	IvfpqMirrorRequestState state;
	bool		refresh;		/* the mirror may be older than the index */
	int			loader;			/* PID of the loader at work; 0 = none */
	uint64		asked;			/* ticket of the last request */
	uint64		taken;			/* value of `asked` when a loader took it */
	uint64		done;			/* every request up to this ticket is done */
	uint64		refused;		/* every request up to this ticket failed */
	int			failures;		/* failures since it was last ready */
	TimestampTz retry_at;		/* no loader takes it before this time */
	TimestampTz locked_since;	/* first found locked then; 0 = not locked */
	TimestampTz ready_at;		/* when it was last loaded; 0 = never */
	int64		postings;		/* in the mirror when it was last ready */
	char		error[160];		/* message of the last failure; "" = none */
} IvfpqMirrorRequest;

/* A row that sessions see and a mirror lacks. */
typedef struct IvfpqLackingRow
{
	GvMirrorKey key;
	ItemPointerData tid;
} IvfpqLackingRow;

/* Maximum number of such rows, of all mirrors together. */
#define IVFPQ_NLACKING		1024

/* Loaders that may run at the same time. */
#define IVFPQ_MAX_LOADERS	2

/*
 * Number of classes of latencies, which are the microseconds from request to
 * answer.  There are four classes for each factor of two (class_start).
 */
#define IVFPQ_NLATENCIES	128

/* The last known status of gpuvecd. */
typedef struct IvfpqServerInfo
{
	int			pid;			/* 0 = not running */
	char		engine[16];
	char		device[128];
	int64		memory;			/* bytes that mirrors may use; 0 = unknown */
	int64		most;			/* likewise, on the device that has most */
	int64		used;			/* bytes in use */
	int64		restarts;
	TimestampTz started;		/* 0 = never */
	uint64		instance;		/* GvWelcome.instance; 0 = not known yet */
	char		problem[200];	/* why an external gpuvecd cannot be reached;
								 * "" if it can be reached, or if we do not
								 * know why not */
	bool		is_others;		/* it serves another cluster */
} IvfpqServerInfo;

/* A session that waited for gpuvec.server_timeout without an answer. */
typedef struct IvfpqTimeoutReport
{
	int			pid;			/* 0 = none yet */
	int64		noted;			/* when it was reported (IvfpqNow) */
	uint64		answers;		/* IvfpqShared.answers at that time */
} IvfpqTimeoutReport;

typedef struct IvfpqShared
{
	/* read or changed by every search */
	pg_atomic_uint32 state;		/* IvfpqServerState */
	pg_atomic_uint32 suspended; /* 1: sessions do not use gpuvecd */
	pg_atomic_uint32 check_requested;	/* 1: check whether gpuvecd answers */
	pg_atomic_uint32 has_device;	/* 1: gpuvecd's engine is "cuda" */
	pg_atomic_uint32 loaders_awaited;	/* 1 if a database needs a loader, but
										 * all loaders work for other
										 * databases */
	/* for each slot of a loader; 1: it has connected to its database */
	pg_atomic_uint32 loader_connected[IVFPQ_MAX_LOADERS];
	pg_atomic_uint64 instance;	/* instance of gpuvecd's run; 0 = none */
	uint64		incarnation;	/* random, of this memory; never changes */
	pg_atomic_uint64 epoch;		/* incremented after each load and catch-up */
	pg_atomic_uint64 served[IVFPQ_NOUTCOMES];
	pg_atomic_uint64 answers;	/* searches that gpuvecd answered, even if the
								 * answers were too old; never decreases, so
								 * equal values mean no answer in between */
	pg_atomic_uint64 scans;		/* index scans, by any engine */
	pg_atomic_uint64 out_of_order;	/* rows that scans returned out of order */
	pg_atomic_uint64 full_passes;	/* scans that ended with a full pass */
	pg_atomic_uint64 sets;		/* sets that gpuvecd finished */
	pg_atomic_uint64 sets_failed;	/* sets that gpuvecd failed to finish */
	pg_atomic_uint64 sent;		/* bytes sent to gpuvecd by all processes */
	pg_atomic_uint64 received;	/* bytes received from gpuvecd */
	pg_atomic_uint64 latency[IVFPQ_NLATENCIES]; /* searches in each class */

	/* the fields from here on are protected by `lock` */
	LWLock	   *lock;
	ConditionVariable changed;	/* some IvfpqMirrorRequest is done or failed */
	Latch	   *supervisor;		/* NULL: the supervisor is not running */
	IvfpqServerInfo server;
	IvfpqTimeoutReport timeout_report;	/* the last report */
	uint64		tickets;		/* the last ticket given to a request */
	IvfpqMirrorRequest requests[IVFPQ_NREQUESTS];
	int			nlacking;
	IvfpqLackingRow lacking[IVFPQ_NLACKING];	/* [nlacking] */
} IvfpqShared;

/* A part of main shared memory, which belongs to one module. */
typedef struct IvfpqSharedPart
{
	const char *name;			/* name of the memory and of its lock */
	Size		size;
	void	  **address;		/* each process stores the address here */

	/* initializes the part once; `memory` is zeroed, `lock` the part's own */
	void		(*init) (void *memory, LWLock *lock);
} IvfpqSharedPart;

extern void IvfpqShare(const IvfpqSharedPart *part);

/* NULL without preloading */
extern IvfpqShared *ivfpq_shared;

/* whether there is a gpuvecd, and why not */
extern bool IvfpqSeesDevice(void);
extern bool IvfpqPreloadHelps(void);
extern const char *IvfpqUnservedHint(void);
extern IvfpqServerState IvfpqSharedState(void);
extern const char *IvfpqStateName(void);
extern void IvfpqSharedSetServer(const IvfpqServerInfo *server);
extern void IvfpqSharedGetServer(IvfpqServerInfo *server);

/* searches that gpuvecd does not answer in time */
extern void IvfpqReportTimeout(int64 since, uint64 answers);
extern void IvfpqWakeSupervisor(void);

/* the clock, and the statistics of latencies */
extern int64 IvfpqNow(void);
extern void IvfpqCountLatency(int64 us);
extern double IvfpqLatencyQuantile(double fraction);

#endif							/* IVFPQ_SERVERSHARED_H */
