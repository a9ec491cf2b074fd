/*
 * params.c
 *		Search parameters: the probes and candidates of a scan for its first
 *		n rows.
 *
 * A setting comes before an option, and an option before the calibration's
 * value for the target recall.  An index that was not calibrated takes values
 * that reached recall@10 of .95 on real embeddings.  See src/am/README,
 * "Defaults".
 *
 * The limit on an index owner's code that a worker runs stands here, too.  A
 * function of an index may wait forever, and may catch a cancellation.  So the
 * process ends itself, as pg_terminate_backend would have it end: no code can
 * catch that.  A timer checks whether a row was finished since its last check.
 * A worker has a snapshot only while it reads rows (util.c), so the time in
 * which it clusters or writes does not count.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/search/params.h"

/*
 * Without calibration, each batch has CANDIDATES_GROWTH times the candidates
 * and rows, and PROBES_GROWTH times the probes, of the one before.
 */
#define CANDIDATES_GROWTH	4.0
#define PROBES_GROWTH		2.0

/*
 * Beyond the targets: the least growth of the parameters, and the recall up to
 * which they grow.
 */
#define LEAST_SLOPE			0.3
#define HIGHEST				0.9999

#define MOST_CANDIDATES		(PG_INT32_MAX / 4)

/*
 * Candidates where a recall is out of reach at a depth: about those that
 * calibration tried there, and at least this fraction of the table's rows.
 */
#define OUT_OF_REACH		20000
#define OUT_OF_REACH_FRACTION	0.05

/*
 * Calibration is asked for one row of SPREAD, but for all up to NOT_SPREAD
 * rows: calibration queries are rows moved a little, and these depths depend
 * on chance more.
 */
#define SPREAD				1.6
#define NOT_SPREAD			100

/*
 * The same where keys alone tell the rows needed.  If recall falls by equal
 * steps for equal factors of the rank, its mean over n rows is the recall of
 * rank n / e.  The mean over the last fifth, which calibration tells, is the
 * recall of rank .9 n.  The rest is a margin, because calibration queries are
 * few.  For ten rows, and between ten and a hundred, the factor is larger:
 * each list read costs a larger fraction of these short queries.
 */
#define KEYS_SPREAD			3.0
#define KEYS_SPREAD_NEAR	4.0

/*
 * Candidates beyond those that are expected to satisfy the key quals, in
 * standard deviations of these.
 */
#define KEYS_MARGIN			2.0

/* Calibration's minimum, for unusual rows, whose scores tell less. */
#define LEAST_CANDIDATES	40

/* The depth of the second batch, the last that every calibration has. */
#define SECOND		1

/* How often the timer checks, and how long a cancellation may be unheeded. */
#define LOOK_MS			200
#define CANCEL_MS		1000

/* The search parameters that calibration found for a recall. */
typedef struct Known
{
	int			nreached;		/* depths, from the first, at which the recall
								 * is reached */
	int			ndepths;		/* depths at which anything is known */
	IvfpqTarget targets[IVFPQ_DEPTHS];
} Known;

static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

int			ivfpq_training_timeout = 60000;
volatile uint32 ivfpq_rows_done = 0;

static TimeoutId timer;
static int	timeout_ms;			/* 0: none */
static uint32 rows_seen;		/* at the last check */
static TimestampTz row_since;	/* the present row has been computed */
static TimestampTz cancel_since;	/* a cancellation is known; 0: there is
									 * none */
static volatile sig_atomic_t canceled = false;
static volatile IvfpqLimitHit hit = IVFPQ_LIMIT_NONE;

/* Returns the probes without calibration. */
int
IvfpqFormulaProbes(const IvfpqMetaData *meta)
{
	double		probes = (meta->lists_per_row > 1 ? 1.8 : 4.5) *
	pow(meta->nlists, 0.45);

	return (int) Max(1, Min(ceil(probes), meta->nlists));
}

/*
 * Returns the candidates without calibration.  The more dimensions share a
 * sub-quantizer, the less the score tells.
 */
int
IvfpqFormulaCandidates(const IvfpqMetaData *meta)
{
	double		width = (double) meta->dims / meta->pq_dim;

	return (int) Min(1000, Max(60, ceil(20 + 10 * width * width)));
}

/*
 * Extrapolates a parameter to a recall beyond a known one, where .95 takes
 * `lower` and the known one `upper`: the parameter is a power of 1 - recall.
 */
double
IvfpqBeyondTargets(double recall, double known, double lower, double upper)
{
	double		slope = log(upper / Max(lower, 1)) /
	log((1 - IVFPQ_LOWER_RECALL) / (1 - known));

	return upper * pow((1 - known) / (1 - Min(recall, HIGHEST)),
					   Max(slope, LEAST_SLOPE));
}

/*
 * Returns the index of the smallest target that is not below the recall, or of
 * the last one.
 */
static int
target_index(double recall)
{
	int			t = 0;

	while (t < IVFPQ_TARGETS - 1 && recalls[t] < recall)
		t++;
	return t;
}

/*
 * Sets *target to the search parameters for the recall at a depth: those of
 * the smallest target that is not below it or, beyond the targets that
 * calibration could prove, more than those of the highest one.  Returns false
 * when the recall is out of reach; then *target is the highest target reached,
 * if any, for users that set one of the two parameters and need the other.
 */
static bool
find_target(const IvfpqMetaData *meta, int depth, double recall,
			IvfpqTarget *target)
{
	const IvfpqTarget *targets = meta->targets[depth];
	const IvfpqTarget *lower = &targets[target_index(IVFPQ_LOWER_RECALL)];
	int			t = target_index(recall);

	if (recall > IVFPQ_SURE_RECALL)
		while (t < IVFPQ_TARGETS - 1 && targets[t].candidates == 0)
			t++;
	*target = targets[t];
	if (target->candidates > 0 && recall <= recalls[t])
		return true;
	while (t > 0 && targets[t].candidates == 0)
		t--;
	*target = targets[t];
	if (recall <= IVFPQ_SURE_RECALL || recalls[t] < IVFPQ_SURE_RECALL)
		return false;
	target->probes = (int) Min(IvfpqBeyondTargets(recall, recalls[t],
												  lower->probes,
												  target->probes),
							   meta->nlists);
	target->candidates = (int)
		Min(IvfpqBeyondTargets(recall, recalls[t], lower->candidates,
							   target->candidates),
			Min(Max(meta->rows_at_calibration, target->candidates),
				MOST_CANDIDATES));
	return true;
}

/*
 * Sets *known for the recall.  The first two depths count even if their
 * targets are below the recall; the others only as long as the recall is
 * reached.
 */
static void
find_targets(const IvfpqMetaData *meta, double recall, Known *known)
{
	known->nreached = known->ndepths = 0;
	for (int d = 0; d < meta->calibrated_depths; d++)
	{
		bool		reached = find_target(meta, d, recall, &known->targets[d]);

		if (known->targets[d].candidates == 0 || (!reached && d > SECOND))
			break;
		known->ndepths++;
		if (reached && known->nreached == d)
			known->nreached++;
	}
}

/* Returns the rows up to which calibration reached the recall. */
double
IvfpqKnownRows(const IvfpqMetaData *meta, double recall)
{
	Known		known;

	find_targets(meta, recall, &known);
	return known.nreached > 0 ? depths[known.nreached - 1] : 0;
}

/* Interpolates between from and to, in equal factors; fraction is 0 .. 1. */
static double
between(double from, double to, double fraction)
{
	return from * pow(to / Max(from, 1), fraction);
}

/*
 * Interpolates the search parameters for `rows` between known depths, in equal
 * factors; beyond them, as if all rows took all lists and all candidates.
 */
static void
interpolate(const Known *known, const IvfpqMetaData *meta, double all,
			double rows, double *probes, double *candidates)
{
	int			d = 0;
	double		from;
	double		to;
	double		fraction;
	IvfpqTarget end;

	while (d < known->ndepths && depths[d] < rows)
		d++;
	*probes = known->targets[Min(d, known->ndepths - 1)].probes;
	*candidates = known->targets[Min(d, known->ndepths - 1)].candidates;
	if (d == 0)
		return;
	from = depths[d - 1];
	to = d < known->ndepths ? depths[d] : Max(all, from * CANDIDATES_GROWTH);
	end.probes = meta->nlists;
	end.candidates = (int) Min(Max(to, *candidates), MOST_CANDIDATES);
	if (d < known->ndepths)
		end = known->targets[d];
	fraction = Min(log(rows / from) / log(to / from), 1);
	*probes = between(known->targets[d - 1].probes, end.probes, fraction);
	*candidates = Max(between(known->targets[d - 1].candidates,
							  end.candidates, fraction), rows);
}

/*
 * Returns the fraction of the rows at calibration that are left, if it is small
 * enough to matter; else 1.
 */
static double
fraction_left(Relation index, const IvfpqMetaData *meta)
{
	double		all = (double) meta->rows_at_calibration;
	double		rows;

	if (all == 0)
		return 1;
	rows = Max(IvfpqRowsAbout(index, meta), 1);
	return rows < IVFPQ_ENOUGH_LEFT * all ? rows / all : 1;
}

/*
 * Sets the search parameters for `rows`.  If only the fraction `left` remains
 * of the rows at calibration, these rows are spread over rows / left of those.
 * They need the probes for rows / left, and the fraction `left` of its
 * candidates.  Neither is less than for `rows` themselves, because the rows
 * left may all be near the query.
 */
static void
calibrated_params(const Known *known, const IvfpqMetaData *meta, double all,
				  double rows, double left, double *probes, double *candidates)
{
	double		fewer_probes;
	double		spread;

	interpolate(known, meta, all, rows, probes, candidates);
	if (left == 1)
		return;
	fewer_probes = *probes;
	interpolate(known, meta, all, rows / left, probes, &spread);
	*probes = Max(*probes, fewer_probes);
	spread = IvfpqKeyCandidates((int) Min(ceil(spread), MOST_CANDIDATES),
								left);
	*candidates = Max(*candidates, spread);
}

/* Sets the search parameters for the nearest `rows`. */
void
IvfpqParamsForRows(IvfpqSearchParams *params, Relation index,
				   const IvfpqMetaData *meta,
				   double recall, double rows)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			named_probes = ivfpq_probes > 0 ? ivfpq_probes :
	options->probes;			/* by the user; 0 = not */
	int			named_candidates = ivfpq_candidates > 0 ? ivfpq_candidates :
	options->candidates;
	double		all = (double) meta->rows_at_calibration;
	double		factor = Max(rows / IVFPQ_FIRST_ROWS, 1);
	double		left = fraction_left(index, meta);
	double		looked = rows / left;	/* depth to ask calibration for */
	double		probes_factor = 1;
	double		probes;
	double		candidates;
	Known		known;
	bool		reached;
	bool		unreached;

	find_targets(meta, recall, &known);
	if (known.ndepths == 0 || named_probes > 0)
		probes_factor = pow(PROBES_GROWTH,
							log(factor) / log(CANDIDATES_GROWTH));
	if (known.ndepths > 0)
		calibrated_params(&known, meta,
						  Max(meta->rows_at_calibration, index->rd_rel->reltuples),
						  rows, left, &probes, &candidates);
	else
	{
		probes = IvfpqFormulaProbes(meta) * probes_factor;
		candidates = IvfpqFormulaCandidates(meta) * factor;
	}
	unreached = named_probes == 0 && known.nreached > 0 &&
		known.nreached < meta->calibrated_depths &&
		looked > depths[known.nreached - 1];
	if (unreached)
	{
		/*
		 * The most that calibration tried, which comes nearest to the recall.
		 * The scan decides whether to read everything instead.
		 */
		probes = meta->nlists;
		candidates = Max(Min(Max(OUT_OF_REACH, OUT_OF_REACH_FRACTION * all),
							 all), rows);
	}
	if (named_probes > 0)
		probes = named_probes * probes_factor;
	if (named_candidates > 0)
		candidates = named_candidates * factor;

	/* the formulas reach what every calibration tells */
	reached = meta->rows_at_calibration == 0 ?
		recall <= IVFPQ_SURE_RECALL :
		known.nreached > (looked > depths[0] ? SECOND : 0);
	params->calibrated = known.nreached > 0 && named_probes == 0 &&
		named_candidates == 0 && looked <= depths[known.nreached - 1];
	params->beyond_parents = looked > IVFPQ_PARENTS_ROWS;
	params->read_all = meta->nlists == 0 ||
		(named_probes == 0 && (recall >= 1 || !reached));
	params->recall_unreached = !params->read_all && unreached;
	params->probes = (int) Max(1, Min(ceil(probes - 1e-6), meta->nlists));
	params->candidates = (int) Min(ceil(candidates - 1e-6), MOST_CANDIDATES);
	params->quota = (int64) rows;
}

/*
 * Returns the rows that calibration is asked for if the rows needed are spread
 * over the nearest `rows`; by_keys: the keys in the lists tell where they are.
 */
double
IvfpqSpreadRows(double rows, bool by_keys)
{
	if (by_keys)
	{
		/* both are equal at a depth of 100 */
		double		beyond = NOT_SPREAD * (KEYS_SPREAD_NEAR / KEYS_SPREAD - 1);

		return Max(Min(rows, IVFPQ_FIRST_ROWS),
				   Max(rows / KEYS_SPREAD_NEAR, rows / KEYS_SPREAD - beyond));
	}
	return Max(Min(rows, NOT_SPREAD), rows / SPREAD);
}

/*
 * Sets the search parameters for rows that are spread over the nearest `rows`:
 * the probes for `spread` (IvfpqSpreadRows), but the candidates for `rows`, so
 * that the last of them are among these, too.
 */
void
IvfpqParamsForMatches(IvfpqSearchParams *params, Relation index,
					  const IvfpqMetaData *meta, double recall, double rows,
					  double spread)
{
	IvfpqSearchParams last;

	IvfpqParamsForRows(params, index, meta, recall, Min(rows, PG_INT32_MAX));
	if (spread >= rows)
		return;
	last = *params;
	IvfpqParamsForRows(params, index, meta, recall, Min(spread, PG_INT32_MAX));
	params->candidates = last.candidates;
	params->calibrated = last.calibrated;
}

/*
 * Estimates the candidates that satisfy the key quals, by their selectivity,
 * with a margin for chance.
 */
int
IvfpqKeyCandidates(int candidates, double selectivity)
{
	double		expected = candidates * selectivity;

	return (int) Min(Max(ceil(expected + KEYS_MARGIN * sqrt(expected)),
						 LEAST_CANDIDATES), candidates);
}

/*
 * Returns the quota of a batch if rows_needed are needed: the next depth that
 * calibration knows, 10, 100, ..., and beyond the last one in factors of four.
 * Without calibration, or with candidates set by the user, it grows from 10 on
 * in factors of four.
 */
double
IvfpqBatchRows(Relation index, const IvfpqMetaData *meta, double rows_needed)
{
	bool		named = ivfpq_candidates > 0 ||
	IvfpqGetOptions(index)->candidates > 0;
	int			n = 1;
	double		rows = depths[0];

	if (!named && meta->rows_at_calibration > 0)
		n = Max(meta->calibrated_depths, SECOND + 1);
	for (int d = 1; d < n && rows < rows_needed; d++)
		rows = depths[d];
	while (rows < rows_needed)
		rows *= CANDIDATES_GROWTH;
	return rows;
}

/*
 * Sets the search parameters of a batch, 0 the first, of a scan that knows no
 * limit.
 */
void
IvfpqParamsForBatch(IvfpqSearchParams *params, Relation index,
					const IvfpqMetaData *meta,
					double recall, int batch)
{
	double		rows = IvfpqBatchRows(index, meta, 0);

	for (; batch > 0; batch--)
		rows = IvfpqBatchRows(index, meta, rows + 1);
	IvfpqParamsForRows(params, index, meta, recall, Min(rows, PG_INT32_MAX));
}

/*
 * The timer's handler, which runs as a signal handler: ends the process if the
 * limit is hit.
 */
static void
look(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (rows_seen != ivfpq_rows_done || !ActiveSnapshotSet())
		row_since = now;
	rows_seen = ivfpq_rows_done;
	if (canceled && cancel_since == 0)
		cancel_since = now;
	if (canceled &&
		TimestampDifferenceExceeds(cancel_since, now, CANCEL_MS))
		hit = IVFPQ_LIMIT_CANCEL;
	else if (timeout_ms > 0 &&
			 TimestampDifferenceExceeds(row_since, now, timeout_ms))
		hit = IVFPQ_LIMIT_ROW;
	else
		return;
	/* as die() does */
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/* Registers the timer: once in a process, before the other calls. */
void
IvfpqLimitInit(void)
{
	timer = RegisterTimeout(USER_TIMEOUT, look);
}

/*
 * Begins the limit: from here on each row has to be finished within
 * gpuvec.training_timeout, and a cancellation heeded within CANCEL_MS.
 */
void
IvfpqLimitBegin(void)
{
	timeout_ms = ivfpq_training_timeout;
	rows_seen = ivfpq_rows_done;
	row_since = GetCurrentTimestamp();
	cancel_since = 0;
	canceled = false;
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(row_since, LOOK_MS),
						 LOOK_MS);
}

/* Notes that a cancellation has come; called in a signal handler. */
void
IvfpqLimitCancel(void)
{
	canceled = true;
}

/* Ends the limit: no more of that code is run. */
void
IvfpqLimitEnd(void)
{
	disable_timeout(timer, false);
}

/* Returns the limit for which the process ends, if it does. */
IvfpqLimitHit
IvfpqLimitIsHit(void)
{
	return hit;
}
