/*
 * ivfpqsearch.c
 *		From a query to candidates that satisfy the key quals.
 *
 * Calibration gives the probes for the nearest n rows.  The ten nearest rows
 * that match are among the nearest 10 / selectivity, but only lists tell the
 * selectivity near the query.  So lists are read nearest first, and those read
 * tell the selectivity, until they are the probes that calibration gives for n
 * = rows / selectivity.  It is one pass: postings found are kept, and the next
 * lists are added.
 *
 * The nearest n rows are not spread evenly over the lists read.  Of P lists
 * that hold a fraction r of them, the first i hold about 1 - (1 - r)^(i / P).
 * So the i-th list counts (1 - r)^(i / P), and keys that correlate with
 * vectors are counted where the rows are.
 *
 * Keys may correlate with the distance, too; ivfpqsearch.c detects that.
 */
#include "postgres.h"

#include <math.h>

#include "am/search/params.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/search/search.h"

static void sample_begin(IvfpqSearch *search);
static IvfpqNearCount sample_count(IvfpqSearch *search, double rows);
static double sampled_selectivity(const IvfpqNearCount *count,
									  double selectivity,
									  double by_chance, bool *beyond_doubt);
static float sample_reach(IvfpqSearch *search, double rows,
							  double lists_per_row);
static void sample_end(IvfpqSearch *search);

/* The most lists that are added at once, in multiples of those read. */
#define MOST_GROWTH		1

/*
 * Lists are ranked beyond those that seem to be needed: at first, when nothing
 * is known of the selectivity, and later.
 */
#define RANKED_AT_FIRST	1.5
#define RANKED_LATER	1.25

/*
 * The first lists are those for the estimated selectivity times this.
 */
#define FIRST_FACTOR		4

/*
 * A further request to gpuvecd takes longer than reading lists that are not
 * needed.  So, once the selectivity is known, it is asked for ASKED_BEYOND
 * times the lists needed, and for all of these as soon as TELLING_POSTINGS
 * postings that match were counted.  It is asked for ASKED_GUESSED times the
 * candidates that the planner's estimate yields.
 */
#define ASKED_BEYOND	1.5
#define ASKED_GUESSED	1.1
#define TELLING_POSTINGS	64

/*
 * Candidates kept, in multiples of those for an even selectivity: far rows may
 * match more often than near ones.
 */
#define KEPT_BEYOND		1.5

/*
 * KEPT_SPARSE times as many are kept, up to MOST_SPARSE, where the first lists
 * show a selectivity below SPARSE, so that they cost little.
 */
#define SPARSE			0.1
#define KEPT_SPARSE		10
#define MOST_SPARSE		5000

/*
 * Where more than this fraction of the lists is needed, all are read: the last
 * may be those of a dense group of rows, far from others, that match.
 */
#define NEARLY_ALL		0.75

/*
 * The selectivity grows with the distance if it is this much larger overall.
 */
#define GROWS			1.5

/* A dense group has probably begun where it is this much larger. */
#define GROWS_FAR		3.0

/* The limits of the fraction of the rows that lists read are taken to hold. */
#define LEAST_PART		0.5
#define MOST_PART		0.999

/* Reserves memory for the counts of the postings of each list. */
void
IvfpqCountsReserve(IvfpqSearch *search, int nlists)
{
	if (nlists <= search->counts_capacity)
		return;
	if (search->counts_capacity > 0)
		pfree(search->counts);
	search->counts = palloc_extended(nlists * sizeof(IvfpqListCount),
									 MCXT_ALLOC_HUGE);
	search->counts_capacity = nlists;
}

/* Lists while they are read. */
typedef struct Reading
{
	IvfpqSearch *search;
	IvfpqKeyGoal *goal;
	bool	   *is_read;		/* [nlists], by the session */
	int			nread;
	int			next;			/* of search->lists */
	IvfpqListSums sums;			/* of the lists read */
	double		flat_selectivity;	/* of all postings read, unweighted */
	bool		grows;			/* the selectivity, with the distance */
	bool		is_sure;		/* it does not grow by chance */
	bool		left_out;		/* postings were, before more were kept */
	bool		by_server;		/* gpuvecd reads, */
	int			asked;			/* and this is the number of rows requested */
	IvfpqSearchParams params;	/* for the selectivity */
} Reading;

/*
 * Sets *params to what a search for goal->rows matching rows needs at this
 * selectivity.
 */
static void
get_params(const IvfpqSearch *search, const IvfpqKeyGoal *goal,
		   double selectivity,
		   IvfpqSearchParams *params)
{
	double		among = goal->rows / Max(selectivity, IVFPQ_LEAST_SELECTIVITY);

	IvfpqParamsForMatches(params, search->index, &search->model->meta,
						  goal->recall, among, goal->is_spread ?
						  IvfpqSpreadRows(among, goal->by_keys) : among);
	params->probes = Min(params->probes, goal->most_probes);
	if (goal->is_far || params->probes > NEARLY_ALL * goal->most_probes)
		params->probes = goal->most_probes;
}

/* The candidates that a search keeps, enough for any selectivity. */
int
IvfpqKeyCapacity(const IvfpqSearch *search, const IvfpqKeyGoal *goal)
{
	double		all = IvfpqRowsAbout(search->index, &search->model->meta);
	double		most = 0;

	for (double selectivity = 1; selectivity == 1 ||
		 goal->rows / selectivity < all; selectivity /= 4)
	{
		IvfpqSearchParams params;

		/* the same candidates as get_params finds, for half the work */
		IvfpqParamsForRows(&params, search->index, &search->model->meta,
						   goal->recall,
						   Min(goal->rows / selectivity, PG_INT32_MAX));
		most = Max(most, IvfpqKeyCandidates(params.candidates, selectivity));
	}
	return (int) Min(ceil(KEPT_BEYOND * most), PG_INT32_MAX / 4);
}

/* Ranks lists that were not read, at least `wanted` if there are. */
static void
rank_lists(Reading *reading, int wanted)
{
	IvfpqSearch *search = reading->search;
	GvTopK	   *lists = &search->lists;
	double		n = RANKED_AT_FIRST * wanted;
	int			kept = 0;

	if (reading->nread > 0)
		n = Max(Min(RANKED_LATER * reading->params.probes,
					RANKED_AT_FIRST * (reading->nread + wanted)),
				reading->nread + wanted);
	search->query.deep = reading->params.beyond_parents ||
		reading->goal->rows / reading->goal->selectivity > IVFPQ_PARENTS_ROWS;
	IvfpqSearchNearest(search, (int) Min(n, reading->goal->most_probes));
	for (int i = 0; i < lists->count; i++)
	{
		if (reading->is_read[lists->ids[i]])
			continue;
		lists->scores[kept] = lists->scores[i];
		lists->ids[kept++] = lists->ids[i];
	}
	lists->count = kept;
	reading->next = 0;
}

/* Reads the next `wanted` lists, or all that are left. */
static void
read_lists(Reading *reading, int wanted)
{
	IvfpqSearch *search = reading->search;
	int			end;

	if (reading->next + wanted > search->lists.count)
		rank_lists(reading, wanted);
	end = Min(reading->next + wanted, search->lists.count);
	IvfpqSearchLists(search, reading->next, end);
	for (; reading->next < end; reading->next++)
		reading->is_read[search->lists.ids[reading->next]] = true;
	reading->nread = search->ncounts;
}

/* The fraction of the rows that lists read are taken to hold. */
static double
part_of(const IvfpqKeyGoal *goal)
{
	return Min(Max(goal->recall, LEAST_PART), MOST_PART);
}

/* Sums the counts of n lists, which hold the fraction `part` of the rows. */
IvfpqListSums
IvfpqSumCounts(const IvfpqListCount *counts, int n, double part)
{
	double		ratio = pow(1 - part, 1.0 / Max(n, 1));
	double		weight = 1;
	IvfpqListSums sums = {0};

	for (int i = 0; i < n; i++)
	{
		sums.postings += counts[i].postings;
		sums.matched += counts[i].matched;
		sums.weighted_postings += weight * counts[i].postings;
		sums.weighted_matched += weight * counts[i].matched;
		weight *= ratio;
	}
	return sums;
}

/*
 * Estimates the selectivity near the query, and sets the search parameters for
 * it.  Where enough lists seem to be read, the sample counts as well.  If rows
 * farther away surely match more often, they may be a dense group
 * (NEARLY_ALL), whose lists are anywhere: then all lists are read.
 */
static void
estimate_selectivity(Reading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	const IvfpqListSums *sums = &reading->sums;
	double		selectivity;
	bool		is_sure;
	IvfpqNearCount count;

	if (reading->by_server)
		reading->sums = search->sums;
	else
		reading->sums = IvfpqSumCounts(search->counts, reading->nread,
									   part_of(goal));
	selectivity = sums->weighted_matched / Max(sums->weighted_postings, 1);
	reading->flat_selectivity = sums->matched / Max(sums->postings, 1);
	reading->grows = reading->is_sure = reading->flat_selectivity > GROWS *
		selectivity;
	goal->selectivity = Max(selectivity, IVFPQ_LEAST_SELECTIVITY);
	get_params(search, goal, goal->selectivity, &reading->params);
	if (reading->params.probes > reading->nread)
		return;
	count = reading->by_server ? search->near_count :
		sample_count(search, goal->rows);
	goal->is_far |= reading->flat_selectivity > GROWS_FAR * selectivity;
	selectivity =
		sampled_selectivity(&count, selectivity, reading->by_server ? goal->rows : 0,
								&is_sure);
	if (selectivity < goal->selectivity)
	{
		reading->is_sure |= is_sure;
		goal->selectivity = Max(selectivity, IVFPQ_LEAST_SELECTIVITY);
		goal->is_spread = false;
		goal->is_far |= is_sure;
		reading->grows = true;
	}
	get_params(search, goal, goal->selectivity, &reading->params);
}

/*
 * The candidates needed: the selectivity's fraction of all candidates.
 */
static int
candidates_needed(const Reading *reading)
{
	return IvfpqKeyCandidates(reading->params.candidates,
							  Max(reading->goal->selectivity,
								  reading->flat_selectivity));
}

/*
 * Counts the candidates among the rows found, the best first: those needed or,
 * where the selectivity grows with the distance, all that are within the reach
 * of the unfiltered candidates.  A mirror's sample does not tell this reach;
 * then all rows found are candidates.
 */
static int
count_candidates(const Reading *reading)
{
	IvfpqSearch *search = reading->search;
	const GvTopK *found = &search->candidates;
	int			n = Min(candidates_needed(reading), found->count);
	float		reach;

	if (!reading->grows)
		return n;
	if (reading->by_server)
		return found->count;
	reach = sample_reach(search, reading->params.candidates,
							 search->model->meta.lists_per_row);
	for (; n < found->count; n++)
		if (found->scores[n] > reach)
			break;
	return n;
}

/*
 * After the first lists, keeps more candidates if few postings match.
 */
static void
widen(Reading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;

	if (reading->flat_selectivity > SPARSE ||
		goal->candidates > MOST_SPARSE / KEPT_SPARSE)
		return;
	goal->candidates *= KEPT_SPARSE;
	reading->left_out = !IvfpqSearchWiden(search, goal->candidates *
										  search->model->meta.lists_per_row);
}

/* Reads `wanted` lists, then as many as the selectivity needs. */
static void
read_until_enough(Reading *reading, int wanted)
{
	while (wanted > 0)
	{
		int			before = reading->nread;

		read_lists(reading, wanted);
		if (reading->nread == before)
			break;
		estimate_selectivity(reading);
		if (reading->params.read_all)
			break;
		if (before == 0)
			widen(reading);
		wanted = Min(reading->params.probes - reading->nread,
					 MOST_GROWTH * reading->nread);
	}
}

/* The number of lists times `factor`, but no more than may be read. */
static int
times(const Reading *reading, double factor, int probes)
{
	return (int) Min(ceil(factor * probes), reading->goal->most_probes);
}

/* The number of candidates times `factor`, but no more than are kept. */
static int
kept_rows(const IvfpqKeyGoal *goal, double factor, int candidates)
{
	return (int) Min(ceil(factor * candidates), goal->candidates);
}

/*
 * The number of lists to ask gpuvecd for at first, by the estimated
 * selectivity.  The selectivity of an earlier batch has precedence over the
 * planner's estimate.  That of other searches does not count: rows must not
 * depend on earlier statements of a session.
 */
static int
ask_first(Reading *reading)
{
	const IvfpqKeyGoal *goal = reading->goal;
	double		guess = goal->selectivity >= 1 ? goal->guess : 0;
	IvfpqSearchParams params;

	get_params(reading->search, goal, guess > 0 ? guess : goal->selectivity, &params);
	reading->asked = goal->candidates;
	if (guess > 0)
		reading->asked = kept_rows(goal, ASKED_GUESSED,
								   IvfpqKeyCandidates(params.candidates, guess));
	return times(reading, ASKED_BEYOND, params.probes);
}

/*
 * The number of lists to ask for after an answer has told the selectivity; 0
 * if those read are enough.  They are not where more rows than were requested
 * may be candidates.
 */
static int
ask_next(Reading *reading)
{
	const IvfpqKeyGoal *goal = reading->goal;
	const GvTopK *found = &reading->search->candidates;
	int			wanted = reading->params.probes;
	int			rows = reading->grows ? goal->candidates :
	kept_rows(goal, 1, candidates_needed(reading));

	if (wanted > reading->nread)
		wanted = times(reading, ASKED_BEYOND, wanted);
	else if (rows > reading->asked && found->count == found->capacity)
		wanted = reading->nread;
	else
		return 0;
	reading->asked = Max(kept_rows(goal, KEPT_BEYOND, rows), reading->asked);
	if (reading->sums.matched < TELLING_POSTINGS)
		wanted = Min(wanted, (1 + MOST_GROWTH) * reading->nread);
	return wanted;
}

/*
 * Has gpuvecd search enough lists: those for the estimated selectivity, and
 * more in another search if the selectivity turns out to need them.  Returns
 * false when gpuvecd does not answer, or where the selectivity surely grows
 * with the distance, which a mirror does not tell well; then the session's own
 * search is better.
 */
static bool
ask_until_enough(Reading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	int			wanted = ask_first(reading);

	reading->by_server = true;
	while (wanted > 0)
	{
		int			before = reading->nread;
		int			rows = reading->asked;
		int			postings = rows * search->model->meta.lists_per_row;
		double		rank =
		ceil(goal->rows * search->model->meta.lists_per_row);

		search->query.deep = reading->params.beyond_parents ||
			goal->rows / goal->selectivity > IVFPQ_PARENTS_ROWS;
		if (!IvfpqSearchRemote(search, wanted, postings, part_of(goal),
							   (int) Min(rank, postings)))
			return false;
		reading->nread = search->ncounts;
		estimate_selectivity(reading);
		if (reading->params.read_all || goal->is_far)
			break;
		wanted = ask_next(reading);
		/* the request would not grow */
		if (reading->nread <= before && reading->asked <= rows)
			break;
	}
	if (reading->is_sure)
		return false;
	search->found_all = search->candidates.count < search->candidates.capacity;
	IvfpqSearchDistinct(search, goal->candidates);
	return true;
}

/* Returns whether the search does not depend on rows behind the candidates. */
static bool
needs_candidates_alone(const Reading *reading)
{
	return !reading->grows && reading->nread < reading->goal->most_probes;
}

/*
 * Searches by the session's own engine, from the selectivity that `first` has,
 * until enough lists are read.
 */
static void
read_alone(Reading *reading, const IvfpqKeyGoal *first)
{
	IvfpqSearch *search = reading->search;
	const IvfpqKeyGoal *goal = reading->goal;
	int			nlists = search->model->meta.nlists;
	IvfpqSearchParams least;

	reading->is_read = palloc0(nlists * sizeof(bool));
	reading->nread = 0;
	reading->by_server = false;
	search->ncounts = 0;
	/* an earlier answer knows no records of the postings scanned here */
	search->remote.nknown = 0;
	search->lists.count = 0;
	IvfpqCountsReserve(search, nlists);
	IvfpqQueryKeepScores(&search->query, nlists);
	IvfpqSearchOpen(search,
					goal->candidates * search->model->meta.lists_per_row);
	sample_begin(search);
	get_params(search, first, Min(FIRST_FACTOR * first->selectivity, 1),
			   &least);
	read_until_enough(reading, goal->reads_all ? goal->most_probes :
					  least.probes);
	sample_end(search);
	IvfpqQueryDropScores(&search->query);
	pfree(reading->is_read);
	IvfpqSearchTake(search, needs_candidates_alone(reading) ?
					Min(candidates_needed(reading), goal->candidates) :
					goal->candidates);
}

/*
 * Fills search->candidates with the best rows that satisfy search->condition,
 * enough for goal->rows at goal->recall.  They are all rows that match, and
 * goal->is_all is set, if all lists that may be probed were read and fewer
 * than goal->candidates were found.
 */
void
IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal)
{
	Reading		reading = {.search = search, .goal = goal};
	IvfpqKeyGoal first = *goal;

	if (goal->reads_all)
		IvfpqSearchAlone(search, "conditions on keys");
	if (goal->reads_all || !ask_until_enough(&reading))
		read_alone(&reading, &first);

	goal->everything = reading.params.read_all && !goal->reads_all;
	goal->is_all = reading.nread >= goal->most_probes &&
		search->found_all && !reading.left_out &&
		search->candidates.count < goal->candidates;
	if (!goal->is_all)
		search->candidates.count = count_candidates(&reading);
}

/* ----
 * The selectivity of a condition on keys among the rows nearest to a
 * query: by a sample of all postings.
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
static void
sample_begin(IvfpqSearch *search)
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
static IvfpqNearCount
sample_count(IvfpqSearch *search, double rows)
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
static double
sampled_selectivity(const IvfpqNearCount *count, double selectivity,
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
static float
sample_reach(IvfpqSearch *search, double rows, double lists_per_row)
{
	GvTopK	   *best = &search->sample.best;
	double		nth = ceil(rows * lists_per_row / GV_SAMPLED_ONE_OF);

	if (nth >= best->count)
		return GV_SCORE_MAX;
	gv_topk_sort(best);
	return best->scores[(int) nth];
}

/* No more blocks are taken. */
static void
sample_end(IvfpqSearch *search)
{
	search->sample.is_open = false;
}
