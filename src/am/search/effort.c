/*
 * effort.c
 *		How many lists and candidates a scan takes for its first n rows.
 *
 * A setting comes before an option, an option before what calibration found
 * for the recall asked for; an index that was not calibrated takes what
 * reached recall@10 of .95 on real embeddings.  See src/am/README, "Defaults".
 */
#include "postgres.h"

#include <math.h>

#include "utils/rel.h"

#include "am/common/count.h"
#include "am/common/options.h"
#include "am/search/effort.h"
#include "am/search/search.h"

/*
 * Where nothing is known, each batch takes this many times the candidates, for
 * as many times the rows, and probes this many times the lists of the one
 * before.
 */
#define CANDIDATES_GROWTH	4.0
#define PROBES_GROWTH		2.0

/*
 * Beyond the targets: how fast numbers grow at least, and up to which recall.
 */
#define LEAST_SLOPE			0.3
#define HIGHEST				0.9999

#define MOST_CANDIDATES		(PG_INT32_MAX / 4)

/*
 * Where a recall is out of reach at a depth: about as many as calibration
 * tried there, of a table's rows this share at most.
 */
#define OUT_OF_REACH		20000
#define OUT_OF_REACH_FRACTION	0.05

/*
 * Rows for each that calibration is asked for, and the rows up to which it is
 * asked for all: their queries are beside rows, and so the others' chance.
 */
#define SPREAD				1.6
#define NOT_SPREAD			100

/*
 * The same where keys alone tell the rows wanted.  If recall falls by equal
 * steps for equal factors of the rank, its mean over n rows is that of rank n
 * / e, and that of the last fifth, which calibration tells, of rank .9 n; the
 * rest is the margin of its few queries.  That of ten rows is larger, and so
 * is what is between ten and a hundred: each list that is read there costs
 * more of a query as short as these.
 */
#define KEYS_SPREAD			3.0
#define KEYS_SPREAD_NEAR	4.0

/*
 * Candidates beyond those that are expected to satisfy a condition on keys, in
 * standard deviations of these.
 */
#define KEYS_MARGIN			2.0

/* As calibration has it, for rows unlike others, whose scores tell less. */
#define LEAST_CANDIDATES	40

/* The depth of the second batch, the last that every calibration has. */
#define SECOND		1

static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

/* What calibration knows of a recall. */
typedef struct Known
{
	int			nreached;		/* the recall is reached at the first so many
								 * depths, */
	int			ndepths;		/* something is known at these; 0 = nothing is */
	IvfpqTarget targets[IVFPQ_DEPTHS];
} Known;

/* Probes without calibration. */
int
IvfpqFormulaProbes(const IvfpqMetaData *meta)
{
	double		probes = (meta->lists_per_row > 1 ? 1.8 : 4.5) *
	pow(meta->nlists, 0.45);

	return (int) Max(1, Min(ceil(probes), meta->nlists));
}

/*
 * Candidates without calibration.  The more dimensions share a sub-quantizer,
 * the less the score tells.
 */
int
IvfpqFormulaCandidates(const IvfpqMetaData *meta)
{
	double		width = (double) meta->dims / meta->pq_dim;

	return (int) Min(1000, Max(60, ceil(20 + 10 * width * width)));
}

/*
 * How much of something a recall takes beyond a known one, where .95 takes
 * `lower` and the known one `upper`: for equal parts of what is missing, equal
 * factors.
 */
double
IvfpqBeyondTargets(double recall, double known, double lower, double upper)
{
	double		slope = log(upper / Max(lower, 1)) /
	log((1 - IVFPQ_LOWER_RECALL) / (1 - known));

	return upper * pow((1 - known) / (1 - Min(recall, HIGHEST)),
					   Max(slope, LEAST_SLOPE));
}

/* The rung of a recall that is one of the targets. */
static int
target_index(double recall)
{
	int			t = 0;

	while (t < IVFPQ_TARGETS - 1 && recalls[t] < recall)
		t++;
	return t;
}

/*
 * What the recall takes at a depth: the smallest target that is not below it
 * or, beyond those that calibration could prove, more than the highest one
 * takes.  False when the recall is out of reach; then *target is the highest
 * within it, if any: better than nothing for a user that names one of the two
 * numbers and needs the other.
 */
static bool
find_known(const IvfpqMetaData *meta, int depth, double recall,
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
 * What is known of the recall.  Of the first two depths that may be less than
 * the recall; the others count as long as it is reached.
 */
static void
find_all_known(const IvfpqMetaData *meta, double recall, Known *known)
{
	known->nreached = known->ndepths = 0;
	for (int d = 0; d < meta->calibrated_depths; d++)
	{
		bool		reached = find_known(meta, d, recall, &known->targets[d]);

		if (known->targets[d].candidates == 0 || (!reached && d > SECOND))
			break;
		known->ndepths++;
		if (reached && known->nreached == d)
			known->nreached++;
	}
}

/* The rows up to which calibration reached the recall. */
double
IvfpqKnownRows(const IvfpqMetaData *meta, double recall)
{
	Known		known;

	find_all_known(meta, recall, &known);
	return known.nreached > 0 ? depths[known.nreached - 1] : 0;
}

/* Between from and to, in equal factors; fraction 0 .. 1 of the way. */
static double
between(double from, double to, double fraction)
{
	return from * pow(to / Max(from, 1), fraction);
}

/*
 * What so many rows take, between depths that are known in equal factors; and
 * beyond them as if all rows took all lists and all candidates.
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
 * The share of the rows at calibration that are left, if it is so small that
 * it matters; else 1.
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
 * What so many rows take.  Where only a share is left of the rows at
 * calibration they are spread over as many times more of those: they take
 * these ones' lists, and of their candidates the same share, which are the
 * ones left.  No fewer than without that: rows may be left near the query and
 * nowhere else.
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

/*
 * What rows take that are so deep that the recall is out of reach there: what
 * calibration had in vain.  That comes nearest to it; whether to read
 * everything instead is for the scan to say.
 */
static void
unreached_params(const IvfpqMetaData *meta, double rows, double *probes,
				 double *candidates)
{
	double		all = (double) meta->rows_at_calibration;

	*probes = meta->nlists;
	*candidates = Max(Min(Max(OUT_OF_REACH, OUT_OF_REACH_FRACTION * all), all),
					  rows);
}

/* What the user named, by setting or option; 0 = nothing. */
static int
given(int setting, int option)
{
	return setting > 0 ? setting : option;
}

/* The search parameters for the first so many rows. */
void
IvfpqParamsForRows(IvfpqSearchParams *params, Relation index,
				   const IvfpqMetaData *meta,
				   double recall, double rows)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			named_probes = given(ivfpq_probes, options->probes);
	int			named_candidates = given(ivfpq_candidates,
										 options->candidates);
	double		factor = Max(rows / IVFPQ_FIRST_ROWS, 1);
	double		left = fraction_left(index, meta);
	double		looked = rows / left;	/* calibration is asked for so many */
	double		probes_factor = 1;
	double		probes;
	double		candidates;
	Known		known;
	bool		reached;
	bool		unreached;

	find_all_known(meta, recall, &known);
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
		unreached_params(meta, rows, &probes, &candidates);
	if (named_probes > 0)
		probes = named_probes * probes_factor;
	if (named_candidates > 0)
		candidates = named_candidates * factor;

	/* what formulas take is good for as much as calibration can be asked */
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
 * The rows that calibration is asked for where those needed are spread over
 * the nearest ones, so many; or, by_keys, known to be: lists tell where they
 * are.
 */
double
IvfpqSpreadRows(double rows, bool by_keys)
{
	if (by_keys)
	{
		/* the two meet at a depth of 100 */
		double		beyond = NOT_SPREAD * (KEYS_SPREAD_NEAR / KEYS_SPREAD - 1);

		return Max(Min(rows, IVFPQ_FIRST_ROWS),
				   Max(rows / KEYS_SPREAD_NEAR, rows / KEYS_SPREAD - beyond));
	}
	return Max(Min(rows, NOT_SPREAD), rows / SPREAD);
}

/*
 * The search parameters for rows spread over the nearest ones, so many: lists
 * as IvfpqSpreadRows says, but candidates among which the last of them are,
 * too.
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
 * Of so many candidates those that satisfy a condition on keys, as a share of
 * rows does, with a margin for chance.
 */
int
IvfpqKeyCandidates(int candidates, double selectivity)
{
	double		expected = candidates * selectivity;

	return (int) Min(Max(ceil(expected + KEYS_MARGIN * sqrt(expected)),
						 LEAST_CANDIDATES), candidates);
}

/*
 * The rows that a batch goes for, where so many are needed: as many as at the
 * next depth that calibration knows, 10, 100, ..., and beyond the last one
 * four times as many.  Where nothing is known, or candidates are named, it is
 * four times as many from 10 on.
 */
double
IvfpqBatchRows(Relation index, const IvfpqMetaData *meta, double rows_needed)
{
	int			candidates = given(ivfpq_candidates,
								   IvfpqGetOptions(index)->candidates);
	int			n = 1;
	double		rows = depths[0];

	if (candidates == 0 && meta->rows_at_calibration > 0)
		n = Max(meta->calibrated_depths, SECOND + 1);
	for (int d = 1; d < n && rows < rows_needed; d++)
		rows = depths[d];
	while (rows < rows_needed)
		rows *= CANDIDATES_GROWTH;
	return rows;
}

/*
 * The search parameters of a batch, 0 the first, of a scan that knows no
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
