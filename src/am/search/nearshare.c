/*
 * nearshare.c
 *		The selectivity of a condition on keys among the rows nearest to a
 *		query: by a sample of all postings.
 *
 * Lists tell how many of their postings satisfy it.  But where keys go
 * against the vectors, and the more rows satisfy the condition the farther
 * they are, those of a list that do are its far ones: of 1,000 rows nearest
 * to the query there may be none, though their lists have hundreds.  So all
 * postings of some blocks are scored, whether they satisfy it or not.  As
 * many of these as are nearer than the last of the rows needed tell how many
 * all of them are.
 *
 * By chance they may be a few more than expected.  So they count only where
 * they say that the selectivity is smaller than lists tell, and say it beyond
 * what single postings do by chance; or, where to read more lists is to ask
 * gpuvecd again, beyond all that chance does.  Then they also tell how far
 * away candidates may be.  But a block is taken whole, and near copies are
 * often many of one block, which by chance is taken or is not: the variance
 * of their number is the sum of the squares of each block's.  Only what is
 * beyond that is beyond doubt; what is not makes a search read more lists,
 * where it reads too few else.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"

/* The best postings of those taken that are kept. */
#define SAMPLE_KEPT		1024

/*
 * Standard deviations that single postings rarely differ by, such that are
 * beyond doubt, and postings that are few.
 */
#define CHANCE			2.0
#define DOUBT			3.0
#define FEW				4

/* Begin a search's sample. */
void
IvfpqSampleBegin(IvfpqSearch *search)
{
	IvfpqBlockSample *sample = &search->sample;
	Size		bytes = gv_scan_scratch(search->model->gv.m, SAMPLE_KEPT);

	if (sample->memory == NULL)
		sample->memory = palloc(bytes + GV_ALIGN);
	IvfpqTopKResize(&sample->best, SAMPLE_KEPT);
	sample->scan.model = &search->model->gv;
	sample->scan.table = search->query.table;
	sample->scan.best = &sample->best;
	sample->nblocks = 0;
	sample->scan.reach = GV_SCORE_MAX;
	sample->scan.scratch = (void *) TYPEALIGN(GV_ALIGN, sample->memory);
	IvfpqCheckStatus(gv_scan_begin(&sample->scan));
	sample->is_open = true;
}

/* IvfpqListReader.wants: also blocks that are taken. */
bool
IvfpqSampleWants(const void *arg, const IvfpqSlotHeader *header,
				 const char *keys)
{
	const IvfpqSearch *search = arg;

	return (search->sample.is_open &&
			gv_sampled(header->list, header->ordinal)) ||
		IvfpqWantsBlock(search->condition, header, keys);
}

/* The reader has come to a block: take it, if it is to be. */
void
IvfpqSampleBlock(IvfpqSearch *search, float base, const GvBlock *block)
{
	const IvfpqListReader *reader = &search->reader;
	IvfpqBlockSample *sample = &search->sample;
	GvBlock		taken = *block;

	/* postings that come again would count twice */
	if (!sample->is_open || reader->reread ||
		!gv_sampled(reader->list, reader->nleft / IVFPQ_BLOCK_POSTINGS))
		return;
	taken.rowids = NULL;
	taken.first_id = (uint64) GV_BLOCK * sample->nblocks++;
	IvfpqCheckStatus(gv_scan(&sample->scan, base, &taken, 1));
}

/*
 * The score of the n-th best row of the search's candidates, a row having so
 * many postings at most, and how many postings these n have; 0 where there
 * are not as many.
 */
static int
nth_row(const GvTopK *candidates, double n, int lists_per_row, float *score)
{
	GvTopK		best = {0};
	tidset_hash *seen = tidset_create(CurrentMemoryContext, 32, NULL);
	int			postings = 0;

	/* apart, for more may be offered to the candidates */
	IvfpqTopKResize(&best, (int) Max(Min(n * lists_per_row,
										 candidates->count), 1));
	for (int i = 0; i < candidates->count; i++)
		gv_topk_push(&best, candidates->scores[i], candidates->ids[i]);
	gv_topk_sort(&best);
	while (postings < best.count && seen->members < n)
	{
		bool		found;

		tidset_insert(seen, best.ids[postings++], &found);
	}
	if (postings > 0)
		*score = best.scores[postings - 1];
	if (seen->members < n)
		postings = 0;
	tidset_destroy(seen);
	pfree(best.scores);
	pfree(best.ids);
	return postings;
}

/*
 * How many postings of the sample are not beyond a score, and the variance of
 * that.
 */
static double
count_nearer(const IvfpqBlockSample *sample, float last, double *variance)
{
	uint8	   *counts = palloc0(Max(sample->nblocks, 1));
	double		nearer = 0;

	*variance = 0;
	for (int i = 0; i < sample->best.count; i++)
		if (sample->best.scores[i] <= last)
			counts[sample->best.ids[i] / GV_BLOCK]++;
	for (uint32 b = 0; b < sample->nblocks; b++)
	{
		nearer += counts[b];
		*variance += (double) counts[b] * counts[b];
	}
	pfree(counts);
	return nearer;
}

/* Returns the sample's count of the rows needed, and of those as near. */
IvfpqNearCount
IvfpqSampleCount(IvfpqSearch *search, double rows)
{
	IvfpqNearCount count = {0};
	float		last = 0;

	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	IvfpqCheckStatus(gv_scan_finish(&search->sample.scan));
	count.matched = nth_row(&search->candidates, rows,
							search->model->meta.lists_per_row, &last);
	if (count.matched > 0)
		count.nearer = count_nearer(&search->sample, last, &count.variance);
	return count;
}

/*
 * The selectivity of the nearest rows that a sample tells, if it is smaller
 * than lists tell; else what they do.  *beyond_doubt tells whether it is.
 *
 * by_chance: 0, or the rows whose last one tells what is near.  How far off
 * that one of n rows is varies by 1 / sqrt(n) of it, and whole blocks bring
 * more; only what is beyond that is taken for a smaller selectivity then.
 */
double
IvfpqSampledSelectivity(const IvfpqNearCount *count, double selectivity,
						double by_chance,
						bool *beyond_doubt)
{
	double		expected = count->matched / (selectivity * GV_SAMPLED_ONE_OF);
	double		beyond = count->nearer - expected;
	double		least = count->nearer;
	double		variance = count->variance;

	*beyond_doubt = false;
	if (count->matched == 0 || count->nearer <= FEW)
		return selectivity;
	if (by_chance > 0)
		least = variance += expected * expected / by_chance;
	if (beyond <= CHANCE * sqrt(least))
		return selectivity;
	*beyond_doubt = beyond > DOUBT * sqrt(variance);
	return count->matched / (GV_SAMPLED_ONE_OF * count->nearer);
}

/*
 * The greatest score of the nearest `rows` rows, where each has lists_per_row
 * postings.
 */
float
IvfpqSampleReach(IvfpqSearch *search, double rows, double lists_per_row)
{
	GvTopK	   *best = &search->sample.best;
	double		nth = ceil(rows * lists_per_row / GV_SAMPLED_ONE_OF);

	if (nth >= best->count)
		return GV_SCORE_MAX;
	gv_topk_sort(best);
	return best->scores[(int) nth];
}

/* No more blocks are taken. */
void
IvfpqSampleEnd(IvfpqSearch *search)
{
	search->sample.is_open = false;
}
