/*
 * params.c
 *		Search parameters: the probes and candidates of a scan for its first
 *		n rows.
 *
 * A setting takes precedence over an option, and an option over calibration's
 * value for the target recall.  For an index that was not calibrated, formulas
 * give values that reached a recall@10 of .95 on real embeddings.  See
 * src/am/README, "Defaults".
 */
#include "postgres.h"

#include <math.h>

#include "utils/rel.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/search/params.h"
#include "am/search/search.h"

/*
 * Without calibration, each batch multiplies the candidates and rows of the
 * previous batch by CANDIDATES_GROWTH, and the probes by PROBES_GROWTH.
 */
#define CANDIDATES_GROWTH	4.0
#define PROBES_GROWTH		2.0

/*
 * Extrapolation to recalls above the targets (IvfpqBeyondTargets): the minimum
 * exponent, and the recall beyond which parameters do not grow.
 */
#define LEAST_SLOPE			0.3
#define HIGHEST				0.9999

#define MOST_CANDIDATES		(PG_INT32_MAX / 4)

/*
 * If a recall is out of reach at a depth, a search takes OUT_OF_REACH
 * candidates, about the most that calibration tries, or OUT_OF_REACH_FRACTION
 * of the table's rows if that is more.
 */
#define OUT_OF_REACH		20000
#define OUT_OF_REACH_FRACTION	0.05

/*
 * If the rows needed are spread over the nearest n rows, calibration is looked
 * up at the depth max(n / SPREAD, min(n, NOT_SPREAD)).  Calibration's queries
 * are slightly perturbed rows, and its results at smaller depths depend more
 * on chance.
 */
#define SPREAD				1.6
#define NOT_SPREAD			100

/*
 * If keys alone determine which rows are needed, these divisors replace
 * SPREAD.  If recall falls linearly with the logarithm of the rank, its mean
 * over n rows is the recall of rank n / e.  Calibration at depth m gives the
 * mean over the last fifth of m rows, which is the recall of rank .9 m.  So m
 * would be n / (.9 e).  The m used is less, because calibration's results have
 * a margin for its few queries.  Up to a depth of 100, the divisor is
 * KEYS_SPREAD_NEAR, because each additional list is a larger fraction of the
 * cost of these short searches.
 */
#define KEYS_SPREAD			3.0
#define KEYS_SPREAD_NEAR	4.0

/*
 * If n postings are expected to satisfy the key quals, KEYS_MARGIN standard
 * deviations of n are added to the number of candidates.
 */
#define KEYS_MARGIN			2.0

/*
 * Minimum number of candidates, as in calibration.  Rows unlike the training
 * sample would be missed with fewer, because their scores are less exact.
 */
#define LEAST_CANDIDATES	40

/* Index of the second depth.  Every calibration has at least two depths. */
#define SECOND		1

/* The search parameters that calibration found for a recall. */
typedef struct Known
{
	int			nreached;		/* number of depths, counted from the
								 * smallest, that reach the recall */
	int			ndepths;		/* number of depths, counted from the
								 * smallest, that have parameters at all */
	IvfpqTarget targets[IVFPQ_DEPTHS];
} Known;

static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

/* Returns the probes for an index without calibration. */
int
IvfpqFormulaProbes(const IvfpqMetaData *meta)
{
	double		probes = (meta->lists_per_row > 1 ? 1.8 : 4.5) *
	pow(meta->nlists, 0.45);

	return (int) Max(1, Min(ceil(probes), meta->nlists));
}

/*
 * Returns the candidates for an index without calibration.  The more
 * dimensions share a sub-quantizer, the less exact scores are, so the more
 * candidates are needed.
 */
int
IvfpqFormulaCandidates(const IvfpqMetaData *meta)
{
	double		width = (double) meta->dims / meta->pq_dim;

	return (int) Min(1000, Max(60, ceil(20 + 10 * width * width)));
}

/*
 * Estimates the time of a search in nanoseconds, in an index of `rows` rows
 * with the lists that *meta describes.  `deep` is as in IvfpqQuery.
 */
double
IvfpqSearchNs(const IvfpqMetaData *meta, double rows, double probes,
			  double candidates, bool deep)
{
	double		postings = probes * rows * meta->lists_per_row / meta->nlists;

	return candidates * (IVFPQ_FETCH_NS + meta->dims * IVFPQ_DIMENSION_NS) +
		postings * meta->pq_dim * IVFPQ_LOOKUP_NS +
		IvfpqCentroidsToCompare(meta, (int) probes, deep) *
		meta->dims * IVFPQ_LOOKUP_NS;
}

/*
 * Extrapolates a parameter to a recall above a known recall.  The parameter is
 * `lower` at a recall of .95 (IVFPQ_LOWER_RECALL), and `upper` at the known
 * recall.  We assume that it is proportional to a power of 1 - recall.
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
 * Sets *target to the search parameters for the recall at a depth.  These are
 * the parameters of the smallest target that is not below the recall.  If
 * calibration did not reach such a target, the parameters are extrapolated
 * from the highest target that it reached.
 *
 * Returns false if the recall is out of reach.  Then *target has the
 * parameters of the highest target reached, or 0 candidates if none was
 * reached.  They are used if a user set one of the two parameters and needs
 * the other.
 */
static bool
find_target(const IvfpqMetaData *meta, int depth, double recall,
			IvfpqTarget *target)
{
	const IvfpqTarget *targets = meta->targets[depth];
	const IvfpqTarget *lower = targets;
	int			t = 0;

	while (t < IVFPQ_TARGETS - 1 && recalls[t] < recall)
		t++;
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
	while (lower < &targets[t] &&
		   recalls[lower - targets] < IVFPQ_LOWER_RECALL)
		lower++;
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
 * Sets *known for the recall.  The first two depths are used even if
 * calibration did not reach the recall there.  Larger depths are used only as
 * long as calibration reached the recall.
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

/* Returns the number of rows up to which calibration reached the recall. */
double
IvfpqKnownRows(const IvfpqMetaData *meta, double recall)
{
	Known		known;

	find_targets(meta, recall, &known);
	return known.nreached > 0 ? depths[known.nreached - 1] : 0;
}

/*
 * Interpolates the search parameters for `rows` geometrically between known
 * depths.  Beyond the known depths, interpolates towards the depth of all
 * rows, where we assume that all lists are probed and all rows are candidates.
 */
static void
interpolate(const Known *known, const IvfpqMetaData *meta, double all,
			double rows, double *probes, double *candidates)
{
	int			d = 0;
	const IvfpqTarget *start;
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
	start = &known->targets[d - 1];
	from = depths[d - 1];
	to = d < known->ndepths ? depths[d] : Max(all, from * CANDIDATES_GROWTH);
	end.probes = meta->nlists;
	end.candidates = (int) Min(Max(to, *candidates), MOST_CANDIDATES);
	if (d < known->ndepths)
		end = known->targets[d];
	fraction = Min(log(rows / from) / log(to / from), 1);
	*probes = start->probes *
		pow(end.probes / Max((double) start->probes, 1), fraction);
	*candidates = start->candidates *
		pow(end.candidates / Max((double) start->candidates, 1), fraction);
	*candidates = Max(*candidates, rows);
}

/* Sets the search parameters for the nearest `rows`. */
void
IvfpqParamsForRows(IvfpqSearchParams *params, Relation index,
				   const IvfpqMetaData *meta,
				   double recall, double rows)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			named_probes = ivfpq_probes > 0 ? ivfpq_probes :
	options->probes;			/* set by the user; 0 = not set */
	int			named_candidates = ivfpq_candidates > 0 ? ivfpq_candidates :
	options->candidates;
	double		all = (double) meta->rows_at_calibration;
	double		factor = Max(rows / IVFPQ_FIRST_ROWS, 1);
	double		remaining = all;
	double		left = 1;		/* fraction of rows left since calibration, or
								 * 1 if few are gone */
	double		looked;			/* depth at which to look up calibration */
	double		probes_factor = 1;
	double		probes;
	double		candidates;
	Known		known;
	bool		reached;
	bool		unreached;

	if (all != 0)
		remaining = Max(IvfpqRowsAbout(index, meta), 1);
	if (remaining < IVFPQ_ENOUGH_LEFT * all)
		left = remaining / all;
	looked = rows / left;
	find_targets(meta, recall, &known);
	if (known.ndepths == 0 || named_probes > 0)
		probes_factor = pow(PROBES_GROWTH,
							log(factor) / log(CANDIDATES_GROWTH));
	if (known.ndepths == 0)
	{
		probes = IvfpqFormulaProbes(meta) * probes_factor;
		candidates = IvfpqFormulaCandidates(meta) * factor;
	}
	else
	{
		double		most = Max(meta->rows_at_calibration,
							   index->rd_rel->reltuples);

		interpolate(&known, meta, most, rows, &probes, &candidates);
		if (left != 1)
		{
			double		more_probes;
			double		more;

			/*
			 * These rows were among the nearest rows / left at calibration.
			 * So they need the probes for rows / left, and `left` times the
			 * candidates for rows / left.  Neither parameter is less than for
			 * `rows`, because the remaining rows may all be near the query.
			 */
			interpolate(&known, meta, most, looked, &more_probes, &more);
			probes = Max(more_probes, probes);
			more = IvfpqKeyCandidates((int) Min(ceil(more), MOST_CANDIDATES),
									  left);
			candidates = Max(candidates, more);
		}
	}
	unreached = named_probes == 0 && known.nreached > 0 &&
		known.nreached < meta->calibrated_depths &&
		looked > depths[known.nreached - 1];
	if (unreached)
	{
		/*
		 * Use the largest parameters that calibration tried, to come as near
		 * to the recall as possible.  The scan decides whether to read
		 * everything instead.
		 */
		probes = meta->nlists;
		candidates = Max(Min(Max(OUT_OF_REACH, OUT_OF_REACH_FRACTION * all),
							 all), rows);
	}
	if (named_probes > 0)
		probes = named_probes * probes_factor;
	if (named_candidates > 0)
		candidates = named_candidates * factor;

	/* without calibration, assume that the formulas reach IVFPQ_SURE_RECALL */
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
 * Returns the depth at which to look up calibration for rows that are spread
 * over the nearest `rows`.  by_keys: only keys determine the rows needed.
 */
double
IvfpqSpreadRows(double rows, bool by_keys)
{
	if (by_keys)
	{
		/* makes both terms below equal at a depth of 100 */
		double		beyond = NOT_SPREAD * (KEYS_SPREAD_NEAR / KEYS_SPREAD - 1);

		return Max(Min(rows, IVFPQ_FIRST_ROWS),
				   Max(rows / KEYS_SPREAD_NEAR, rows / KEYS_SPREAD - beyond));
	}
	return Max(Min(rows, NOT_SPREAD), rows / SPREAD);
}

/*
 * Sets the search parameters for rows that are spread over the nearest `rows`.
 * The probes are those for `spread` rows (IvfpqSpreadRows), the candidates
 * those for `rows`, so that even the last row needed is a candidate.
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
 * Estimates how many candidates satisfy key quals, with a margin for chance.
 */
int
IvfpqKeyCandidates(int candidates, double selectivity)
{
	double		expected = candidates * selectivity;

	return (int) Min(Max(ceil(expected + KEYS_MARGIN * sqrt(expected)),
						 LEAST_CANDIDATES), candidates);
}

/*
 * Returns the quota of a batch that must reach rows_needed: the smallest depth
 * >= rows_needed.  The depths are those of calibration, 10, 100, ...  Beyond
 * calibration's last depth, each depth is four times the previous depth.
 * Without calibration, or if the user set the candidates, this holds from the
 * depth 10 on.
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

/* Sets the parameters of batch 0, 1, ... of a scan without a known limit. */
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
