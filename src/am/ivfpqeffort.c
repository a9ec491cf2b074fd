/*
 * ivfpqeffort.c
 *		How many lists and candidates each batch of a scan takes.
 *
 * A setting comes before an option, an option before what calibration found
 * for the recall asked for; an index that was not calibrated takes what
 * reached recall@10 of .95 on real embeddings.  See src/README, "Defaults".
 */
#include "postgres.h"

#include <math.h>

#include "am/ivfpqscan.h"

/*
 * Each batch takes this many times the candidates, and probes this many times
 * the lists, of the one before.
 */
#define CANDIDATES_GROWTH	4.0
#define PROBES_GROWTH		1.4

#define IVFPQ_FIRST_ROWS		10	/* given out by the first batch */
#define IVFPQ_DEEP_ROWS		100 /* by the second, when calibration says how */

/* Lists for a table of that many rows. */
int
IvfpqDefaultLists(double rows)
{
	return (int) Max(1, Min(rows / 100.0, IVFPQ_MAX_LISTS));
}

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

/*
 * The number of the smallest calibrated target that is not below the recall
 * asked for; -1 when there is none.
 */
static int
find_target(const IvfpqMetaData *meta)
{
	static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

	if (meta->rows_at_calibration == 0)
		return -1;
	for (int i = 0; i < IVFPQ_TARGETS; i++)
		if (recalls[i] >= ivfpq_recall)
			return i;
	return -1;
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
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	int			probes = given(ivfpq_probes, options ? options->probes : 0);
	int			candidates = given(ivfpq_candidates,
								   options ? options->candidates : 0);
	int			target = find_target(meta);
	const IvfpqTarget *known = NULL;
	int			after = Max(batch - 1, 0);	/* batches after the known ones */

	if (target >= 0)
		known = &meta->targets[batch > 0][target];
	effort->everything = meta->nlists == 0 ||
		(probes == 0 && (ivfpq_recall > IVFPQ_MOST_RECALL ||
						 (known && known->candidates == 0)));

	if (probes == 0 && known)
		effort->probes = grow(known->probes, PROBES_GROWTH, after,
							  meta->nlists);
	else
		effort->probes = grow(probes > 0 ? probes : IvfpqFormulaProbes(meta),
							  PROBES_GROWTH, batch, meta->nlists);
	effort->probes = Max(effort->probes, 1);

	if (candidates == 0 && known)
	{
		effort->candidates = grow(known->candidates, CANDIDATES_GROWTH, after,
								  PG_INT32_MAX / 4);
		effort->quota = batch == 0 ? IVFPQ_FIRST_ROWS :
			grow(IVFPQ_DEEP_ROWS, CANDIDATES_GROWTH, after, PG_INT32_MAX);
	}
	else
	{
		effort->candidates = grow(candidates > 0 ? candidates :
								  IvfpqFormulaCandidates(meta),
								  CANDIDATES_GROWTH, batch, PG_INT32_MAX / 4);
		effort->quota = grow(IVFPQ_FIRST_ROWS, CANDIDATES_GROWTH, batch,
							 PG_INT32_MAX);
	}
}
