/*
 * effort.c
 *		How many lists and candidates each batch of a scan takes.
 *
 * A setting comes before an option, an option before what calibration found
 * for the recall asked for; an index that was not calibrated takes what
 * reached recall@10 of .95 on real embeddings.  See src/am/README, "Defaults".
 */
#include "postgres.h"

#include <math.h>

#include "am/common/options.h"
#include "am/scan/effort.h"

/*
 * Each batch takes this many times the candidates, and probes this many times
 * the lists, of the one before.
 */
#define CANDIDATES_GROWTH	4.0
#define PROBES_GROWTH		2.0

/*
 * Beyond the targets: how fast numbers grow at least, and up to which recall.
 */
#define LEAST_SLOPE			0.3
#define HIGHEST				0.9999

#define MOST_CANDIDATES		(PG_INT32_MAX / 4)

static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/* Probes without calibration. */
int
IvfpqFormulaProbes(const IvfpqMetaData *meta)
{
	double		probes = (meta->copies > 1 ? 1.8 : 4.5) *
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

/* The smallest target of calibration that is not below the recall. */
static int
find_target(double recall)
{
	int			target = 0;

	while (target < IVFPQ_TARGETS - 1 && recalls[target] < recall)
		target++;
	return target;
}

/*
 * How much of something a recall beyond .99 takes, where .95 takes `lower` and
 * .99 takes `upper`: for equal parts of what is missing, equal factors.
 */
double
IvfpqBeyondTargets(double recall, double lower, double upper)
{
	double		slope = log(upper / Max(lower, 1)) /
	log((1 - IVFPQ_LOWER_RECALL) / (1 - IVFPQ_MOST_RECALL));

	return upper * pow((1 - IVFPQ_MOST_RECALL) / (1 - Min(recall, HIGHEST)),
					   Max(slope, LEAST_SLOPE));
}

/*
 * What the recall takes at a depth, as far as calibration knows; *reached says
 * whether it does, or need not, because formulas serve below .99.  Of a target
 * out of reach the one before is better than nothing: for a user that names
 * one of the two numbers and needs the other.  False when nothing is known.
 */
static bool
find_known(const IvfpqMetaData *meta, int depth, double recall,
		   IvfpqTarget *known, bool *reached)
{
	const IvfpqTarget *targets = meta->targets[depth];
	int			target = find_target(recall);
	const IvfpqTarget *lower = &targets[find_target(IVFPQ_LOWER_RECALL)];

	*reached = recall <= IVFPQ_MOST_RECALL;
	if (meta->rows_at_calibration == 0)
		return false;
	*reached = targets[target].candidates > 0;
	while (target > 0 && targets[target].candidates == 0)
		target--;
	*known = targets[target];
	if (*reached && recall > IVFPQ_MOST_RECALL)
	{
		known->probes = (int) Min(IvfpqBeyondTargets(recall, lower->probes,
													 known->probes),
								  meta->nlists);
		known->candidates = (int)
			Min(IvfpqBeyondTargets(recall, lower->candidates,
								   known->candidates),
				Min(Max(meta->rows_at_calibration, known->candidates),
					MOST_CANDIDATES));
	}
	return known->candidates > 0;
}

/* base x growth^exponent, at most `most`. */
static int
grow(double base, double growth, int exponent, int most)
{
	return (int) Min(ceil(base * pow(growth, exponent)), most);
}

/* What the user named, by setting or option; 0 = nothing. */
static int
given(int setting, int option)
{
	return setting > 0 ? setting : option;
}

/*
 * The effort of a batch, 0 the first.  Where calibration knows, the first
 * batch is good for 10 rows and the second for 100.
 */
void
IvfpqGetEffort(IvfpqEffort *effort, Relation index, const IvfpqMetaData *meta,
			   int batch)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			probes = given(ivfpq_probes, options->probes);
	int			candidates = given(ivfpq_candidates, options->candidates);
	IvfpqTarget target;
	bool		reached;
	bool		known = find_known(meta, batch > 0 ? 1 : 0, ivfpq_recall,
								   &target, &reached);
	int			after = Max(batch - 1, 0);	/* batches after the known ones */

	effort->everything = meta->nlists == 0 ||
		(probes == 0 && (ivfpq_recall >= 1 || !reached));

	if (probes == 0 && known)
		effort->probes = grow(target.probes, PROBES_GROWTH, after,
							  meta->nlists);
	else
		effort->probes = grow(probes > 0 ? probes : IvfpqFormulaProbes(meta),
							  PROBES_GROWTH, batch, meta->nlists);
	effort->probes = Max(effort->probes, 1);

	if (candidates == 0 && known)
	{
		effort->candidates = grow(target.candidates, CANDIDATES_GROWTH, after,
								  MOST_CANDIDATES);
		effort->quota = batch == 0 ? IVFPQ_FIRST_ROWS :
			grow(IVFPQ_DEEP_ROWS, CANDIDATES_GROWTH, after, PG_INT32_MAX);
	}
	else
	{
		effort->candidates = grow(candidates > 0 ? candidates :
								  IvfpqFormulaCandidates(meta),
								  CANDIDATES_GROWTH, batch, MOST_CANDIDATES);
		effort->quota = grow(IVFPQ_FIRST_ROWS, CANDIDATES_GROWTH, batch,
							 PG_INT32_MAX);
	}
}
