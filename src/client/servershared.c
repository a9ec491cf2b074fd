/*
 * servershared.c
 *		Shared memory: the state of gpuvecd, and statistics.
 *
 * Only this file requests main shared memory from PostgreSQL.  Other modules
 * register their parts of it with IvfpqShare.  servershared.h has the rules of
 * locking.
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

/* If two sessions report a time-out within this time, gpuvecd is suspended. */
#define REPORTS_US	INT64CONST(10000000)

IvfpqShared *ivfpq_shared = NULL;

/* What IvfpqShare registered: IvfpqSharedPart, in TopMemoryContext. */
static List *parts = NIL;

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

/* shmem_request_hook */
static void
request_memory(void)
{
	ListCell   *cell;

	if (prev_shmem_request)
		prev_shmem_request();
	foreach(cell, parts)
	{
		const IvfpqSharedPart *part = lfirst(cell);

		RequestAddinShmemSpace(MAXALIGN(part->size));
		RequestNamedLWLockTranche(part->name, 1);
	}
}

/* shmem_startup_hook */
static void
attach_memory(void)
{
	ListCell   *cell;

	if (prev_shmem_startup)
		prev_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	foreach(cell, parts)
	{
		const IvfpqSharedPart *part = lfirst(cell);
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

/*
 * Registers a part of shared memory during preloading.  *part must stay valid.
 */
void
IvfpqShare(const IvfpqSharedPart *part)
{
	MemoryContext previous = MemoryContextSwitchTo(TopMemoryContext);

	Assert(process_shared_preload_libraries_in_progress);
	if (parts == NIL)
	{
		prev_shmem_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		prev_shmem_startup = shmem_startup_hook;
		shmem_startup_hook = attach_memory;
	}
	parts = lappend(parts, unconstify(IvfpqSharedPart *, part));
	MemoryContextSwitchTo(previous);
}

/*
 * Initializes IvfpqShared, when the server starts and after a crash of the
 * cluster.  Both events begin a new incarnation, in which mirrors of earlier
 * incarnations are not valid (server/README, "Incarnations").
 */
static void
init_shared(void *memory, LWLock *lock)
{
	IvfpqShared *shared = memory;

	pg_atomic_init_u32(&shared->state,
					   ivfpq_server == IVFPQ_SERVER_OFF ?
					   IVFPQ_STATE_OFF : IVFPQ_STATE_STARTING);
	pg_atomic_init_u32(&shared->suspended, 0);
	pg_atomic_init_u32(&shared->check_requested, 0);
	pg_atomic_init_u32(&shared->has_device, 0);
	pg_atomic_init_u32(&shared->loaders_awaited, 0);
	for (int i = 0; i < IVFPQ_MAX_LOADERS; i++)
		pg_atomic_init_u32(&shared->loader_connected[i], 0);
	pg_atomic_init_u64(&shared->instance, 0);
	while (shared->incarnation == 0)
		if (!pg_strong_random(&shared->incarnation,
							  sizeof(shared->incarnation)))
			elog(ERROR, "could not get random numbers");
	pg_atomic_init_u64(&shared->epoch, 1);
	for (int i = 0; i < IVFPQ_NOUTCOMES; i++)
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

/*
 * Requests shared memory during preloading, and makes the postmaster start the
 * supervisor, and start it again when it ends.
 */
void
IvfpqClientInit(void)
{
	BackgroundWorker worker = {
		.bgw_name = "gpuvec supervisor",
		.bgw_type = "gpuvec supervisor",
		.bgw_flags = BGWORKER_SHMEM_ACCESS,
		.bgw_start_time = BgWorkerStart_PostmasterStart,
		.bgw_restart_time = 5,
		.bgw_library_name = "gpuvec",
		.bgw_function_name = "gpuvec_supervisor_main"
	};

	IvfpqPlaceInit();
	IvfpqShare(&part);
	if (ivfpq_server != IVFPQ_SERVER_OFF && !IsBinaryUpgrade)
		RegisterBackgroundWorker(&worker);
}

/* Returns the time of a monotonic clock in microseconds. */
int64
IvfpqNow(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Returns whether the machine seems to have a device. */
bool
IvfpqSeesDevice(void)
{
	return access("/dev/nvidiactl", F_OK) == 0 ||
		access("/dev/dxg", F_OK) == 0;
}

/*
 * Returns whether gpuvecd would be started if the library were preloaded.
 * With gpuvec.server = auto, gpuvecd is only started if there is a device.
 */
bool
IvfpqPreloadHelps(void)
{
	if (ivfpq_server != IVFPQ_SERVER_AUTO)
		return ivfpq_server != IVFPQ_SERVER_OFF;
	return IvfpqSeesDevice();
}

/*
 * Returns the hint for an error that says that gpuvecd does not serve the
 * session.  The hint mentions the log only if there is a supervisor.
 */
const char *
IvfpqUnservedHint(void)
{
	if (ivfpq_shared == NULL)
		return IvfpqPreloadHelps() ?
			"Add \"gpuvec\" to \"shared_preload_libraries\" and restart the server, or set \"gpuvec.engine\" to \"cpu\"." :
			"Set \"gpuvec.engine\" to \"cpu\".";
	if (IvfpqSharedState() == IVFPQ_STATE_OFF)
		return "Set \"gpuvec.engine\" to \"cpu\", because \"gpuvec.server\" is set to \"off\".";
	return "See the server log, or set \"gpuvec.on_gpu_error\" to \"fallback\".";
}

IvfpqServerState
IvfpqSharedState(void)
{
	if (ivfpq_shared == NULL)
		return IVFPQ_STATE_OFF;
	return (IvfpqServerState) pg_atomic_read_u32(&ivfpq_shared->state);
}

/* Returns the name of the state, as gpuvec_stat shows it. */
const char *
IvfpqStateName(void)
{
	static const char *const names[] = {
		[IVFPQ_STATE_OFF] = "off",
		[IVFPQ_STATE_STARTING] = "starting",
		[IVFPQ_STATE_UP] = "up",
		[IVFPQ_STATE_DOWN] = "down",
		[IVFPQ_STATE_NO_DEVICE] = "no GPU",
		[IVFPQ_STATE_MISMATCH] = "other version"
	};
	IvfpqServerState state = IvfpqSharedState();

	if (state == IVFPQ_STATE_UP &&
		pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return "suspended";
	return names[state];
}

/*
 * Returns whether the settings, and the device that gpuvecd has, choose
 * gpuvecd as the engine.  gpuvecd may be down nevertheless.
 */
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

/*
 * Returns whether gpuvecd is the chosen engine, answers, and runs on a device.
 */
bool
IvfpqServerHasDevice(void)
{
	return IvfpqServerIsWanted() && ivfpq_shared != NULL &&
		IvfpqSharedState() == IVFPQ_STATE_UP &&
		pg_atomic_read_u32(&ivfpq_shared->suspended) == 0 &&
		pg_atomic_read_u32(&ivfpq_shared->has_device) != 0;
}

const char *
IvfpqOutcomeName(IvfpqOutcome served)
{
	static const char *const names[IVFPQ_NOUTCOMES] = {
		[IVFPQ_ANSWERED] = "served",
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

/*
 * Counts, for gpuvec_stat, index scans and the rows that they returned out of
 * order.  full_pass says whether one of the scans ended with a full pass.
 */
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

/*
 * Returns how many bytes mirrors may use, as reported by gpuvecd.  Counts all
 * devices or, if of_one is set, only the device that has most.  Returns 0 if
 * the number is unknown.
 */
int64
IvfpqServerMemory(bool of_one)
{
	IvfpqServerInfo server;

	if (ivfpq_shared == NULL)
		return 0;
	IvfpqSharedGetServer(&server);
	return of_one ? server.most : server.memory;
}

/*
 * Reports that gpuvecd has not answered this session since the time `since`,
 * when ivfpq_shared->answers was `answers`.  Does nothing if the wait was
 * shorter than gpuvec.server_timeout, or if gpuvecd answered another session
 * meanwhile.  Otherwise makes the supervisor check gpuvecd.  If another
 * session has reported a time-out within REPORTS_US, all sessions use their
 * own engine until the supervisor has checked gpuvecd.
 */
void
IvfpqReportTimeout(int64 since, uint64 answers)
{
	IvfpqTimeoutReport report = {MyProcPid, IvfpqNow(), answers};
	IvfpqTimeoutReport *last = &ivfpq_shared->timeout_report;

	if (pg_atomic_read_u64(&ivfpq_shared->answers) != answers ||
		report.noted - since < (int64) ivfpq_server_timeout * 1000)
		return;
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	if (last->pid != 0 && last->pid != MyProcPid && last->answers == answers &&
		report.noted - last->noted < REPORTS_US)
		pg_atomic_write_u32(&ivfpq_shared->suspended, 1);
	*last = report;
	LWLockRelease(ivfpq_shared->lock);
	pg_atomic_write_u32(&ivfpq_shared->check_requested, 1);
	IvfpqWakeSupervisor();
}

/* Sets the latch of the supervisor, if it runs. */
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

/*
 * Returns the least latency of a class, which is given by a latency's highest
 * bit and the two bits below it.
 */
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
	uint32		value = (uint32) Min(Max(us, 0), PG_UINT32_MAX);
	int			octave = pg_leftmost_one_pos32(Max(value, 1));
	int			class = value < 4 ? (int) value :
	(octave - 1) * 4 + (int) ((value >> (octave - 2)) & 3);

	pg_atomic_fetch_add_u64(&ivfpq_shared->latency[class], 1);
}

/*
 * Returns the microseconds within which this fraction of the searches was
 * answered, accurate to the width of a class.  Returns -1 if there were no
 * searches.
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

		/* assume that latencies are spread evenly within the class */
		if (seen + counts[i] >= fraction * total && counts[i] > 0)
			return start + (class_start(i + 1) - start) *
				(fraction * total - seen) / counts[i];
		seen += counts[i];
	}
	return class_start(IVFPQ_NLATENCIES - 1);
}
