/*
 * nearshare.c
 *		Of the rows nearest to a query, the share that fulfils a condition on
 *		keys: by a sample of all copies.
 *
 * Lists tell how many of their copies fulfil it.  But where keys go against the
 * vectors, and the more rows fulfil the condition the farther they are, those of
 * a list that do are its far ones: of 1,000 rows nearest to the query there may
 * be none, though their lists have hundreds.  So all copies of some blocks are
 * scored, whether they fulfil it or not.  As many of these as are nearer than
 * the last of the rows wanted tell how many all of them are.
 *
 * By chance they may be few more than expected.  So they count only where they
 * say that the share is smaller than lists tell, and say it beyond doubt.  Then
 * they also tell how far away candidates may be.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "am/common/engine.h"
#include "am/search/search.h"
#include "am/search/tidset.h"

/* Of so many blocks one is taken. */
#define SAMPLE_ONE_OF	32

/* The best copies of those taken that are kept. */
#define SAMPLE_KEPT		1024

/* Standard deviations that are beyond doubt, and copies that are few. */
#define CHANCE			2.0
#define FEW				4

/* Is the block taken? */
static bool
is_taken(uint32 list, uint32 ordinal)
{
	return murmurhash32(list ^ ordinal * 0x9E3779B1U) % SAMPLE_ONE_OF == 0;
}

/* Begin a search's sample. */
void
IvfpqSampleBegin(IvfpqSearch *search)
{
	IvfpqNearSample *sample = &search->sample;
	Size		bytes = gv_scan_scratch(search->model->gv.m, SAMPLE_KEPT);

	if (sample->memory == NULL)
		sample->memory = palloc(bytes + GV_ALIGN);
	IvfpqTopKResize(&sample->best, SAMPLE_KEPT);
	sample->scan.model = &search->model->gv;
	sample->scan.table = search->query.table;
	sample->scan.best = &sample->best;
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
			is_taken(header->list, header->ordinal)) ||
		IvfpqWantsBlock(search->condition, header, keys);
}

/* The reader has come to a block: take it, if it is to be. */
void
IvfpqSampleBlock(IvfpqSearch *search, float base, const GvBlock *block)
{
	const IvfpqListReader *reader = &search->reader;

	/* copies that come again would count twice */
	if (search->sample.is_open && !reader->reread &&
		is_taken(reader->list, reader->nleft / IVFPQ_BLOCK_COPIES))
		IvfpqCheckStatus(gv_scan(&search->sample.scan, base, block, 1));
}

/* IvfpqListReader.wants: nothing but blocks that are taken. */
static bool
wants_taken(const void *arg, const IvfpqSlotHeader *header, const char *keys)
{
	return is_taken(header->list, header->ordinal);
}

/*
 * Begin a sample of the first n of search->lists, which gpuvecd has read, from
 * their pages: of an answer only copies that fulfil the condition are known.
 */
void
IvfpqSampleLists(IvfpqSearch *search, int n)
{
	IvfpqListReader *reader = &search->reader;
	IvfpqBlockView view;

	(void) IvfpqQueryTable(&search->query);
	IvfpqSampleBegin(search);
	reader->wants = wants_taken;
	for (int i = 0; i < n; i++)
	{
		IvfpqListOpen(reader, (uint32) search->lists.ids[i]);
		while (IvfpqListNext(reader, &view))
		{
			GvBlock		block = IvfpqSearchView(search, &view);

			if (!view.passed_over)
				IvfpqSampleBlock(search, search->lists.scores[i], &block);
		}
	}
	reader->wants = IvfpqSampleWants;
}

/*
 * The score of the n-th best row of the search's candidates, and how many
 * copies these n have; 0 where there are not as many.
 */
static int
nth_row(const GvTopK *candidates, double n, float *score)
{
	GvTopK		sorted = {0};
	tidset_hash *seen = tidset_create(CurrentMemoryContext, 32, NULL);
	int			copies = 0;

	/* a copy: more may be offered to the candidates */
	IvfpqTopKResize(&sorted, Max(candidates->count, 1));
	sorted.count = candidates->count;
	memcpy(sorted.scores, candidates->scores, sorted.count * sizeof(float));
	memcpy(sorted.ids, candidates->ids, sorted.count * sizeof(uint64));
	gv_topk_sort(&sorted);
	while (copies < candidates->count && seen->members < n)
	{
		bool		found;

		tidset_insert(seen, sorted.ids[copies++], &found);
	}
	if (copies > 0)
		*score = sorted.scores[copies - 1];
	if (seen->members < n)
		copies = 0;
	tidset_destroy(seen);
	pfree(sorted.scores);
	pfree(sorted.ids);
	return copies;
}

/*
 * The share of the nearest rows, so many of which fulfil the condition, if it
 * is smaller than lists tell; else what they do.
 */
double
IvfpqSampleShare(IvfpqSearch *search, double rows, double share)
{
	IvfpqNearSample *sample = &search->sample;
	float		last = 0;
	double		nearer = 0;
	int			matched;

	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	IvfpqCheckStatus(gv_scan_finish(&sample->scan));
	matched = nth_row(&search->candidates, rows, &last);
	if (matched == 0)
		return share;
	for (int i = 0; i < sample->best.count; i++)
		nearer += sample->best.scores[i] <= last;
	if (nearer <= FEW ||
		matched >= share * SAMPLE_ONE_OF * (nearer - CHANCE * sqrt(nearer)))
		return share;
	return matched / (SAMPLE_ONE_OF * nearer);
}

/*
 * The score that so many of the nearest rows have at most, where each has so
 * many copies.
 */
float
IvfpqSampleReach(IvfpqSearch *search, double rows, double copies)
{
	GvTopK	   *best = &search->sample.best;
	double		nth = ceil(rows * copies / SAMPLE_ONE_OF);

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
