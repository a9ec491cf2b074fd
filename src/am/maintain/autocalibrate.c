/*
 * autocalibrate.c
 *		Automatic calibration: measures the recall that an index's queries
 *		have, and calibrates the index with them if it is too low.
 *
 * A scan that finds enough new queries in the query log asks for the worker of
 * its database (worker.c), which calls IvfpqAutoCalibrate.  One pass over the
 * table finds the exact neighbors of the logged queries, as gpuvec_calibrate
 * does.  Index scans with the targets that were asked for then show the recall
 * of each.  A target without conditions is measured on the first PLAIN_ROWS
 * rows.  A scan with conditions goes deeper, to find rows that match, so its
 * target is measured on the first FILTERED_ROWS rows, among which it may need
 * any.  The calibration uses the ground truth that the pass has found.
 *
 * Targets that were calibrated for rows have to be confirmed: the lower end of
 * the interval must reach the target.  Those calibrated for queries have that
 * margin already.  The next sample would miss it by chance half of the time,
 * so here the measured recall itself decides.
 *
 * A machine is busy if its load is one process per processor, or if searches
 * wait for one another in gpuvecd.  Then a later query asks again.
 *
 * The processor time of all measurements is limited by
 * gpuvec.auto_calibrate_budget, for each day and all databases together.  Time
 * not used accumulates for a day.  A measurement that exceeds what is left is
 * completed, and the next has to wait until the excess is made up for.  One
 * that would exceed the budget of a day takes fewer queries, or is not made.
 * The time of code that is not in C cannot be foreseen, so a measurement that
 * calls such code is ended when it has used OWNER_SHARE of a day's budget.
 */
#include "postgres.h"

#include <float.h>
#include <time.h>
#include <unistd.h>

#include "access/genam.h"
#include "access/relscan.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "am/build/calibrate.h"
#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/scan/querylog.h"
#include "am/search/params.h"
#include "am/search/rerank.h"
#include "am/types/sqldistance.h"
#include "client/client.h"
#include "page/injection.h"
#include "page/metapage.h"
#include "pgcompat.h"

#define PLAIN_ROWS		10
#define FILTERED_ROWS	100

/* Fewer queries do not suffice for calibration. */
#define LEAST_QUERIES	100

#define DAY_SECONDS		86400.0

/*
 * Time of one dimension of the distance between a row and one of many queries,
 * 1.5 s for 200,000 rows x 128 and 300 queries (test/bench/RESULTS.md).  If
 * gpuvecd computes distances, a measurement takes little more than reading the
 * table.
 */
#define EXACT_NS		0.2

/*
 * gpuvecd has a queue if it answers at least QUEUE_BATCH searches in a batch,
 * on the average over QUEUE_MS.
 */
#define QUEUE_BATCH		2
#define QUEUE_MS		100

/*
 * Fraction of a day's budget that code of an owner may use at once.  Then the
 * index is not measured for another PAUSE_MS, besides the usual interval.
 */
#define OWNER_SHARE		0.1
#define PAUSE_MS		(23 * 3600 * 1000)

/* Processor time used by measurements, of all databases. */
typedef struct Budget
{
	LWLock	   *lock;
	double		used;			/* seconds not made up for yet */
	TimestampTz since;			/* when `used` was last reduced */
} Budget;

/* Searches for the queries of a sample, and the recall of one target. */
typedef struct Measure
{
	Relation	heap;
	Relation	index;
	const IvfpqRemeasure *with;
	int			strategy;
	Oid			distance;		/* the operator's function */
	MemoryContext tmp;			/* reset after every query */
} Measure;

double		ivfpq_auto_calibrate_budget = 600;
#ifdef GV_TEST_BUILD
double		ivfpq_forced_load = -1;
#endif

static Budget *budget = NULL;	/* NULL if not preloaded */

/*
 * Processor time of this process when the measurement under way began; negative
 * if there is none.
 */
static volatile double measured_since = -1;

static void
init_budget(void *memory, LWLock *lock)
{
	((Budget *) memory)->lock = lock;
}

static const IvfpqSharedPart part = {
	.name = "gpuvec calibration",
	.size = sizeof(Budget),
	.address = (void **) &budget,
	.init = init_budget
};

void
IvfpqAutoCalibrateInit(void)
{
	IvfpqShare(&part);
}

/* Returns the processor time of this process in seconds. */
static double
processor_seconds(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double) now.tv_sec + now.tv_nsec / 1e9;
}

/* Adds processor time to the budget's, and returns how much is left. */
static double
spend(double seconds)
{
	TimestampTz now = GetCurrentTimestamp();
	double		left;

	LWLockAcquire(budget->lock, LW_EXCLUSIVE);
	/* the clock may have been set back */
	if (now > budget->since)
		budget->used -= (now - budget->since) / (double) USECS_PER_SEC *
			ivfpq_auto_calibrate_budget / DAY_SECONDS;
	budget->used = Max(budget->used, 0) + seconds;
	budget->since = now;
	left = ivfpq_auto_calibrate_budget - budget->used;
	LWLockRelease(budget->lock);
	return left;
}

/*
 * Returns whether a measurement that calls code of an owner has to be ended.
 * May be called in a signal handler.
 */
bool
IvfpqCalibrationIsCostly(void)
{
	double		since = measured_since;

	return since >= 0 && processor_seconds() - since >
		OWNER_SHARE * ivfpq_auto_calibrate_budget;
}

/*
 * Charges a measurement that has ended, perhaps with the process.  A costly
 * one counts as made, so that it is not repeated before another day.
 */
static void
charge(int code, Datum index)
{
	double		begun = measured_since;

	if (code != 0 && IvfpqCalibrationIsCostly())
		IvfpqLogDone((Relation) DatumGetPointer(index), PAUSE_MS);
	measured_since = -1;
	(void) spend(processor_seconds() - begun);
}

/* Returns whether other processes need all processors. */
static bool
is_busy(void)
{
	double		load;

#ifdef GV_TEST_BUILD
	if (ivfpq_forced_load >= 0)
		return ivfpq_forced_load > 1;
#endif
	return getloadavg(&load, 1) == 1 &&
		load >= (double) sysconf(_SC_NPROCESSORS_ONLN);
}

/*
 * Returns whether searches wait for one another in gpuvecd, since it had the
 * status `before`.
 */
static bool
has_queue(const IvfpqServerStatus *before)
{
	IvfpqServerStatus after;

	if (!before->up)
		return false;
	pg_usleep(QUEUE_MS * 1000);
	CHECK_FOR_INTERRUPTS();
	IvfpqGetServerStatus(&after);
	return after.batches > before->batches &&
		after.searches - before->searches >=
		QUEUE_BATCH * (after.batches - before->batches);
}

bool
IvfpqMayAutoCalibrate(void)
{
	return budget != NULL && !is_busy() && spend(0) > 0;
}

/*
 * Sets *sums to the recall that index scans with this target have for the
 * first `depth` rows of each query.
 */
static void
measure_target(const Measure *measure, double target, int depth,
			   IvfpqRecallSums *sums)
{
	const IvfpqRemeasure *with = measure->with;
	IndexScanDesc scan;
	IvfpqRerank rows;
	ScanKeyData key;
	int			guc_level = NewGUCNestLevel();
	char		value[32];

	memset(sums, 0, sizeof(*sums));
	snprintf(value, sizeof(value), "%g", target);
	(void) set_config_option("gpuvec.recall", value, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	IvfpqSnapshotRenew();
	scan = IvfpqIndexBeginScan(measure->heap, measure->index,
							   GetActiveSnapshot());
	IvfpqRerankBegin(&rows, measure->heap, measure->index,
					 GetActiveSnapshot());
	ScanKeyEntryInitialize(&key, SK_ORDER_BY, 1, measure->strategy,
						   with->type.type, with->type.collation,
						   measure->distance, (Datum) 0);
	rows.distance = &key.sk_func;
	rows.collation = with->type.collation;
	for (int q = 0; q < with->given->n; q++)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(measure->tmp);
		IvfpqGroundTruth truth;
		int			known = IvfpqCalibrationGroundTruth(with->calibration, 0,
														q, &truth);
		double		farthest = -DBL_MAX;
		double		distance;
		ItemPointer tid;
		int			n = 0;
		int			found = 0;
		int			hits = 0;

		CHECK_FOR_INTERRUPTS();
		rows.query = IvfpqCastReal(with->type.type, with->given->vectors +
								   (Size) q * with->given->dims,
								   with->given->dims);
		/* rows that were deleted since the pass do not count */
		for (int i = 0; i < Min(known, depth); i++)
			if (IvfpqRerankRow(&rows, truth.neighbors[i], &distance))
			{
				farthest = Max(farthest, distance);
				n++;
			}
		if (n > 0)
		{
			key.sk_argument = rows.query;
			index_rescan(scan, NULL, 0, &key, 1);
			while (found < n &&
				   (tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
			{
				IvfpqRowDone();
				/* a scan returns rows that nobody has fetched yet */
				if (!IvfpqRerankRow(&rows, IvfpqTidToId(tid), &distance))
					continue;
				found++;
				hits += distance <= farthest;
			}
			sums->n++;
			sums->sum += (double) hits / n;
			sums->sum_squares += (double) hits / n * hits / n;
		}
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(measure->tmp);
	}
	IvfpqRerankEnd(&rows);
	index_endscan(scan);
	AtEOXact_GUC(false, guc_level);
}

/*
 * Measures the recall of all targets that were asked for.  Sets *measured to
 * that of the target which is missed most, or exceeded least, and returns by
 * how much it is exceeded.  The recall counts if the targets are for queries,
 * else the lower end of its interval (see the file's header).
 */
static double
measure_targets(const Measure *measure, uint32 targets, bool for_queries,
				IvfpqFoundRecall *measured)
{
	double		least = DBL_MAX;

	memset(measured, 0, sizeof(*measured));
	for (int i = 0; i < 2 * IVFPQ_TARGETS; i++)
	{
		double		target = ivfpq_recalls[i % IVFPQ_TARGETS];
		int			depth = i < IVFPQ_TARGETS ? PLAIN_ROWS : FILTERED_ROWS;
		IvfpqRecallSums sums;
		double		low;
		double		high;
		double		excess;

		if ((targets & (1U << i)) == 0)
			continue;
		measure_target(measure, target, depth, &sums);
		if (sums.n == 0)
			continue;
		IvfpqRecallInterval(&sums, &low, &high);
		excess = (for_queries ? sums.sum / sums.n : low) - target;
		if (excess >= least)
			continue;
		least = excess;
		measured->at = GetCurrentTimestamp();
		measured->target = (float4) target;
		measured->recall = (float4) (sums.sum / sums.n);
		measured->low = (float4) low;
		measured->high = (float4) high;
		measured->nqueries = (int32) sums.n;
		measured->depth = depth;
	}
	return least;
}

/*
 * Returns how many queries can be answered exactly with the budget of a day,
 * by gpuvecd if `served` is set.
 */
static double
affordable_queries(double rows, int dims, bool served)
{
	double		left = ivfpq_auto_calibrate_budget * 1e9 - rows * IVFPQ_FETCH_NS;
	double		query = served ? 0 : rows * dims * EXACT_NS;

	return left / Max(query, 1);
}

/*
 * Returns whether an index that is trained again will be calibrated with its
 * queries again: the query log has enough of them, and so has the budget.
 */
bool
IvfpqWillCalibrate(Relation index, const IvfpqMetaData *meta, int64 rows)
{
	IvfpqServerStatus server;

	if (!IvfpqLogSuffices(index))
		return false;
	IvfpqGetServerStatus(&server);
	return affordable_queries((double) rows, meta->dims,
							  server.up && IvfpqServerIsWanted()) >=
		LEAST_QUERIES;
}

/*
 * Takes fewer queries if the exact answers to all would use up the budget of a
 * day.  Returns false if even those to LEAST_QUERIES would.  `served` says
 * that gpuvecd finds the exact answers.  Sets *must_serve if the budget does
 * not suffice without gpuvecd.
 */
static bool
fit_budget(Relation index, const IvfpqMetaData *meta, IvfpqQueries *queries,
		   bool served, bool *must_serve, const char *name)
{
	double		rows = (double) IvfpqCountRows(index, meta);
	double		fits = affordable_queries(rows, meta->dims, served);

	*must_serve = affordable_queries(rows, meta->dims, false) < LEAST_QUERIES;
	queries->n = (int) Min(queries->n, Max(fits, LEAST_QUERIES));
	if (fits >= LEAST_QUERIES)
		return true;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("recall of index \"%s\" is not measured, because \"gpuvec.auto_calibrate_budget\" does not suffice",
					name),
			 errhint("Increase it, or call gpuvec_calibrate with your queries.")));
	return false;
}

/* Measures the recall, and calibrates the index if it is too low. */
static void
run_calibration(Relation heap, Relation index, IvfpqQueries *queries,
				uint32 targets, bool must_serve, const char *name)
{
	TimestampTz begun = GetCurrentTimestamp();
	Measure		measure = {.heap = heap, .index = index};
	IvfpqParallel parallel;
	IvfpqRemeasure *with;
	const IvfpqMetaData *meta;
	IvfpqFoundRecall before;
	IvfpqFoundRecall after;
	bool		for_queries;
	double		excess;

	IvfpqInjectionPoint("calibrate: begun");
	with = IvfpqRemeasureBegin(heap, index, queries, must_serve);
	if (with == NULL)
		return;
	IvfpqInjectionPoint("calibrate: answered");
	meta = &with->model->meta;
	measure.with = with;
	measure.distance =
		get_opcode(IvfpqDistanceOperator(index->rd_opfamily[0],
										 with->type.type,
										 &measure.strategy));
	measure.tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq recall query",
										ALLOCSET_DEFAULT_SIZES);
	IvfpqParallelInitSerial(&parallel);
	IvfpqCalibrationSettle(with->calibration, &parallel);
	for_queries = meta->calibrated_for == IVFPQ_FOR_QUERIES;
	excess = measure_targets(&measure, targets, for_queries, &before);
	if (before.at == 0)
		return;
	IvfpqMetaSetRecall(index, meta->build_id, &before);
	IvfpqInjectionPoint("calibrate: measured");

	/*
	 * The option says that targets were for queries before a REINDEX, or that
	 * a dump was restored.
	 */
	if (excess >= 0 && meta->rows_at_calibration > 0 &&
		with->rows >= meta->rows_at_calibration / IVFPQ_MAX_SHRINKAGE &&
		(for_queries ||
		 IvfpqGetOptions(index)->calibrated_for == IVFPQ_FOR_ROWS))
	{
		/* a worker may have died before it set the option */
		if (for_queries)
			IvfpqSetCalibratedFor(index, IVFPQ_FOR_QUERIES);
		return;
	}
	if (!IvfpqRemeasureStore(with, index))
		return;
	IvfpqInjectionPoint("calibrate: stored");
	(void) measure_targets(&measure, targets, true, &after);
	IvfpqMetaSetRecall(index, meta->build_id, &after);
	IvfpqSetCalibratedFor(index, IVFPQ_FOR_QUERIES);
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("calibrated index \"%s\" with %d of its queries: recall was %.3f (%.3f to %.3f) for target %g and is %.3f (%.3f to %.3f) for target %g, elapsed: %ld ms",
					name, queries->n, before.recall, before.low, before.high,
					before.target, after.recall, after.low, after.high,
					after.target,
					TimestampDifferenceMilliseconds(begun,
													GetCurrentTimestamp()))));
}

/*
 * Measures the recall of an index's queries, and calibrates the index with
 * them if it is too low.  The caller acts as the table's owner and keeps other
 * sessions from training the index.  An error leaves the old calibration.
 */
void
IvfpqAutoCalibrate(Relation heap, Relation index, const char *name)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq automatic calibration",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	IvfpqServerStatus server;
	IvfpqQueries queries;
	IvfpqMetaData meta;
	uint32		targets;
	bool		served;
	bool		must_serve;

	measured_since = processor_seconds();
	PG_ENSURE_ERROR_CLEANUP(charge, PointerGetDatum(index));
	{
		IvfpqMetaRead(index, &meta);
		IvfpqGetServerStatus(&server);
		served = server.up && IvfpqServerIsWanted();
		if (has_queue(&server))
			IvfpqInjectionPoint("calibrate: busy");
		else
		{
			if (IvfpqLogTake(index, &queries, &targets) &&
				queries.n >= LEAST_QUERIES && queries.dims == meta.dims &&
				fit_budget(index, &meta, &queries, served, &must_serve, name))
				run_calibration(heap, index, &queries, targets, must_serve,
								name);
			IvfpqLogDone(index, 0);
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(charge, PointerGetDatum(index));
	charge(0, PointerGetDatum(index));
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}
