/*
 * servershared.c
 *		Shared memory: the state of gpuvecd, and counters.
 *
 * All that every search reads or counts is atomic; the rest is under one
 * LWLock, which no process holds while it waits for anything.
 */
#include "postgres.h"

#include <math.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "client/client.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "pgcompat.h"

/* Sessions that wait in vain count together when no further apart. */
#define SILENCE_US	INT64CONST(10000000)

IvfpqShared *ivfpq_shared = NULL;

/*
 * When the server starts, and when it has ended all processes after a crash:
 * each of these begins another incarnation, for which no mirror of the one
 * before is valid (server/socketdir.c).
 */
static void
init_shared(void *memory, LWLock *lock)
{
	IvfpqShared *shared = memory;

	pg_atomic_init_u32(&shared->state,
					   ivfpq_server == IVFPQ_SERVER_OFF ?
					   IVFPQ_STATE_OFF : IVFPQ_STATE_STARTING);
	pg_atomic_init_u32(&shared->suspended, 0);
	pg_atomic_init_u32(&shared->doubted, 0);
	pg_atomic_init_u32(&shared->has_device, 0);
	pg_atomic_init_u32(&shared->loaders_awaited, 0);
	pg_atomic_init_u64(&shared->instance, 0);
	while (shared->incarnation == 0)
		if (!pg_strong_random(&shared->incarnation,
							  sizeof(shared->incarnation)))
			elog(ERROR, "could not get random numbers");
	pg_atomic_init_u64(&shared->epoch, 1);
	for (int i = 0; i < IVFPQ_NSERVED; i++)
		pg_atomic_init_u64(&shared->served[i], 0);
	pg_atomic_init_u64(&shared->answers, 0);
	pg_atomic_init_u64(&shared->scans, 0);
	pg_atomic_init_u64(&shared->out_of_order, 0);
	pg_atomic_init_u64(&shared->full_passes, 0);
	pg_atomic_init_u64(&shared->sets, 0);
	pg_atomic_init_u64(&shared->sets_failed, 0);
	pg_atomic_init_u64(&shared->sent, 0);
	pg_atomic_init_u64(&shared->received, 0);
	for (int i = 0; i < IVFPQ_NLATENCIES; i++)
		pg_atomic_init_u64(&shared->latency[i], 0);
	shared->lock = lock;
	ConditionVariableInit(&shared->changed);
}

static const IvfpqSharedPart part = {
	.name = "gpuvec",
	.size = sizeof(IvfpqShared),
	.address = (void **) &ivfpq_shared,
	.init = init_shared
};

/* While the library is preloaded: ask for memory. */
static void
state_init(void)
{
	IvfpqShare(&part);
}

/* Microseconds of a clock that only goes on. */
int64
IvfpqNow(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Does there seem to be a device? */
bool
IvfpqSeesDevice(void)
{
	return access("/dev/nvidiactl", F_OK) == 0 ||
		access("/dev/dxg", F_OK) == 0;
}

/*
 * Not preloaded: would there be a gpuvecd if the library were?  With
 * gpuvec.server = auto only if there seems to be a device.
 */
bool
IvfpqPreloadHelps(void)
{
	if (ivfpq_server != IVFPQ_SERVER_AUTO)
		return ivfpq_server != IVFPQ_SERVER_OFF;
	return IvfpqSeesDevice();
}

/*
 * The hint for a session that wants an error where gpuvecd does not serve it:
 * the log tells nothing of a server that is not started.
 */
const char *
IvfpqUnservedHint(void)
{
	if (ivfpq_shared == NULL)
		return IvfpqPreloadHelps() ?
			"Add gpuvec to shared_preload_libraries and restart the server, or set gpuvec.engine to cpu." :
			"Set gpuvec.engine to cpu.";
	if (IvfpqSharedState() == IVFPQ_STATE_OFF)
		return "It is turned off by gpuvec.server: set gpuvec.engine to cpu.";
	return "Look into the server's log, or set gpuvec.on_gpu_error to fallback.";
}

/* How gpuvecd is. */
IvfpqServerState
IvfpqSharedState(void)
{
	if (ivfpq_shared == NULL)
		return IVFPQ_STATE_OFF;
	return (IvfpqServerState) pg_atomic_read_u32(&ivfpq_shared->state);
}

/* The state in a word. */
const char *
IvfpqStateName(void)
{
	static const char *const names[] = {
		[IVFPQ_STATE_OFF] = "off",
		[IVFPQ_STATE_STARTING] = "starting",
		[IVFPQ_STATE_UP] = "up",
		[IVFPQ_STATE_DOWN] = "down",
		[IVFPQ_STATE_NO_DEVICE] = "no card",
		[IVFPQ_STATE_MISMATCH] = "other version"
	};
	IvfpqServerState state = IvfpqSharedState();

	if (state == IVFPQ_STATE_UP &&
		pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return "suspended";
	return names[state];
}

/* See settings.h. */
bool
IvfpqServerIsWanted(void)
{
	if (ivfpq_engine == IVFPQ_ENGINE_CPU)
		return false;
	if (ivfpq_engine == IVFPQ_ENGINE_GPU)
		return true;
	return ivfpq_shared != NULL && ivfpq_server != IVFPQ_SERVER_OFF &&
		(ivfpq_server == IVFPQ_SERVER_CUDA ||
		 pg_atomic_read_u32(&ivfpq_shared->has_device) != 0);
}

/* See settings.h. */
bool
IvfpqServerHasDevice(void)
{
	return IvfpqServerIsWanted() && ivfpq_shared != NULL &&
		IvfpqSharedState() == IVFPQ_STATE_UP &&
		pg_atomic_read_u32(&ivfpq_shared->suspended) == 0 &&
		pg_atomic_read_u32(&ivfpq_shared->has_device) != 0;
}

/* See settings.h. */
const char *
IvfpqServedName(IvfpqServed served)
{
	static const char *const names[IVFPQ_NSERVED] = {
		[IVFPQ_SERVED] = "served",
		[IVFPQ_NOT_ASKED] = "not asked",
		[IVFPQ_DOWN] = "down",
		[IVFPQ_SUSPENDED] = "suspended",
		[IVFPQ_NOT_MIRRORED] = "not mirrored",
		[IVFPQ_LOADING] = "loading",
		[IVFPQ_TIMED_OUT] = "timed out",
		[IVFPQ_BROKEN] = "broken",
		[IVFPQ_REFUSED] = "refused",
		[IVFPQ_ENGINE_FAILED] = "engine failed",
		[IVFPQ_STALE] = "stale"
	};

	return names[served];
}

void
IvfpqSharedSetServer(const IvfpqServerInfo *server)
{
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->server = *server;
	LWLockRelease(ivfpq_shared->lock);
}

void
IvfpqSharedGetServer(IvfpqServerInfo *server)
{
	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	*server = ivfpq_shared->server;
	LWLockRelease(ivfpq_shared->lock);
}

/* See settings.h. */
void
IvfpqCountScans(int64 scans, int64 out_of_order, bool full_pass)
{
	if (ivfpq_shared == NULL)
		return;
	pg_atomic_fetch_add_u64(&ivfpq_shared->scans, scans);
	if (out_of_order > 0)
		pg_atomic_fetch_add_u64(&ivfpq_shared->out_of_order, out_of_order);
	if (full_pass)
		pg_atomic_fetch_add_u64(&ivfpq_shared->full_passes, 1);
}

/* See settings.h. */
int64
IvfpqServerMemory(bool of_one)
{
	int64		memory;

	if (ivfpq_shared == NULL)
		return 0;
	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	memory = of_one ? ivfpq_shared->server.most : ivfpq_shared->server.memory;
	LWLockRelease(ivfpq_shared->lock);
	return memory;
}

/*
 * Searches that it has answered, of all sessions: whatever the answers were
 * good for, so that it never is what it was before.
 */
uint64
IvfpqCountServed(void)
{
	return ivfpq_shared == NULL ? 0 :
		pg_atomic_read_u64(&ivfpq_shared->answers);
}

/*
 * It has not answered this session since `since`, when it had answered
 * `served` searches.  That concerns others only if it was long by the server's
 * setting, whatever the session's own, and if no other was answered meanwhile.
 * Then the supervisor is to look; and when the same has just happened to
 * another session each uses its own engine until it has.
 */
void
IvfpqNoteSilence(int64 since, uint64 served)
{
	IvfpqSilence silence = {MyProcPid, IvfpqNow(), served};
	IvfpqSilence *last;

	if (ivfpq_shared == NULL || IvfpqCountServed() != served ||
		silence.noted - since < (int64) ivfpq_server_timeout * 1000)
		return;
	last = &ivfpq_shared->silence;
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	if (last->pid != 0 && last->pid != MyProcPid && last->served == served &&
		silence.noted - last->noted < SILENCE_US)
		pg_atomic_write_u32(&ivfpq_shared->suspended, 1);
	*last = silence;
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_write_u32(&ivfpq_shared->doubted, 1);
	IvfpqWakeSupervisor();
}

/* There is something to do for the supervisor. */
void
IvfpqWakeSupervisor(void)
{
	Latch	   *latch;

	LWLockAcquire(ivfpq_shared->lock, LW_SHARED);
	latch = ivfpq_shared->supervisor;
	if (latch)
		SetLatch(latch);
	LWLockRelease(ivfpq_shared->lock);
}

/* The class of a latency: its highest bit and the two below. */
static int
latency_class(int64 us)
{
	uint32		value = (uint32) Min(Max(us, 0), PG_UINT32_MAX);
	int			octave;

	if (value < 4)
		return (int) value;
	octave = pg_leftmost_one_pos32(value);
	return (octave - 1) * 4 + (int) ((value >> (octave - 2)) & 3);
}

/* The least latency of a class. */
static double
class_start(int class)
{
	if (class < 4)
		return class;
	return ldexp(4 + class % 4, class / 4 - 1);
}

void
IvfpqCountLatency(int64 us)
{
	pg_atomic_fetch_add_u64(&ivfpq_shared->latency[latency_class(us)], 1);
}

/*
 * Microseconds that this fraction of the searches stayed below, give or take
 * what a class is wide; -1 when there was none.
 */
double
IvfpqLatencyQuantile(double fraction)
{
	uint64		counts[IVFPQ_NLATENCIES];
	uint64		total = 0;
	double		seen = 0;

	for (int i = 0; i < IVFPQ_NLATENCIES; i++)
	{
		counts[i] = pg_atomic_read_u64(&ivfpq_shared->latency[i]);
		total += counts[i];
	}
	if (total == 0)
		return -1;
	for (int i = 0; i < IVFPQ_NLATENCIES - 1; i++)
	{
		double		start = class_start(i);

		/* spread evenly within the class */
		if (seen + counts[i] >= fraction * total && counts[i] > 0)
			return start + (class_start(i + 1) - start) *
				(fraction * total - seen) / counts[i];
		seen += counts[i];
	}
	return class_start(IVFPQ_NLATENCIES - 1);
}

/* ----
 * The one place that asks for main shared memory.
 */

#define MAX_PARTS	3

static const IvfpqSharedPart *parts[MAX_PARTS];
static int	nparts = 0;

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static void
request_memory(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	for (int i = 0; i < nparts; i++)
	{
		RequestAddinShmemSpace(MAXALIGN(parts[i]->size));
		RequestNamedLWLockTranche(parts[i]->name, 1);
	}
}

static void
attach_memory(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nparts; i++)
	{
		const IvfpqSharedPart *part = parts[i];
		bool		found;

		*part->address = ShmemInitStruct(part->name, part->size, &found);
		if (!found)
		{
			memset(*part->address, 0, part->size);
			part->init(*part->address,
					   &GetNamedLWLockTranche(part->name)->lock);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

/* While the library is preloaded: have a part made. */
void
IvfpqShare(const IvfpqSharedPart *part)
{
	Assert(process_shared_preload_libraries_in_progress);
	if (nparts == 0)
	{
		prev_shmem_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		prev_shmem_startup = shmem_startup_hook;
		shmem_startup_hook = attach_memory;
	}
	Assert(nparts < MAX_PARTS);
	parts[nparts++] = part;
}

/* ----
 * What happens while the library is preloaded.
 */

/* The postmaster starts the supervisor, and again when it ends. */
static void
register_supervisor(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 5;
	strlcpy(worker.bgw_library_name, "gpuvec",
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "gpuvec_supervisor_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "gpuvec supervisor", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "gpuvec supervisor", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* Ask for shared memory and for the supervisor. */
void
IvfpqClientInit(void)
{
	IvfpqPlaceInit();
	state_init();
	if (ivfpq_server != IVFPQ_SERVER_OFF && !IsBinaryUpgrade)
		register_supervisor();
}
