/*
 * ivfpqsearch.c
 *		A search from a query to candidates, without and with key quals.
 *
 * Without key quals a search is one request to gpuvecd or, where that does not
 * answer, one scan of the nearest lists.
 *
 * Key quals.  Calibration gives the probes for the nearest n rows.  The ten
 * nearest rows that match are among the nearest 10 / selectivity, but only
 * lists tell the selectivity near the query.  So lists are read nearest first,
 * and those read tell the selectivity, until they are the probes that
 * calibration gives for n = rows / selectivity.  It is one pass: postings found
 * are kept, and the next lists are added.
 *
 * Weights.  The nearest n rows are not spread evenly over the lists read.  Of P
 * lists that hold a fraction r of them, the first i hold about
 * 1 - (1 - r)^(i / P).  So the i-th list counts (1 - r)^(i / P), and keys that
 * correlate with vectors are counted where the rows are.
 *
 * Sample.  Keys may correlate with the distance, too, so that the more rows
 * match the farther they are.  Then the postings of a list that match are its
 * far ones: among the 1,000 rows nearest to the query there may be none, though
 * their lists have hundreds.  So all postings of some blocks are scored,
 * whether they match or not.  The number of these that are nearer than the last
 * of the rows needed tells the number of all that are.
 *
 * By chance the sample may have a few more of them than expected.  So it counts
 * only where it says that the selectivity is smaller than lists tell, by more
 * than single postings deviate by chance; or, where to read more lists is to
 * ask gpuvecd again, by more than all that chance does.  Then it also tells how
 * far away candidates may be.  But a block is taken whole, and near copies are
 * often many of one block, which by chance is taken or is not: the variance of
 * their number is the sum of the squares of each block's.  Only what is beyond
 * that is beyond doubt; a deviation that is not makes a search read more lists,
 * because it would otherwise read too few.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/search/params.h"
#include "am/search/search.h"

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

/* The best postings of the sample that are kept. */
#define SAMPLE_KEPT		1024

/*
 * Standard deviations that single postings rarely differ by, standard
 * deviations that are beyond doubt, and a number of postings that tells nothing.
 */
#define CHANCE			2.0
#define DOUBT			3.0
#define FEW				4

/* A search with key quals while lists are read. */
typedef struct KeyedReading
{
	IvfpqSearch *search;
	IvfpqKeyGoal *goal;
	double		part;			/* fraction of the rows that lists read are
								 * taken to hold */

	/* lists read so far */
	bool		by_server;		/* by gpuvecd */
	int			asked;			/* rows requested from it */
	bool	   *is_read;		/* [nlists] read by the session */
	int			next;			/* of search->lists, to be read by it */
	int			nread;
	bool		left_out;		/* postings were, before more were kept */

	/* estimates by these */
	IvfpqListSums sums;
	double		flat_selectivity;	/* of all postings read, unweighted */
	bool		grows;			/* the selectivity, with the distance */
	bool		is_sure;		/* it does not grow by chance */
	IvfpqSearchParams params;	/* for the selectivity */
} KeyedReading;

/*
 * Fills search->candidates with the best rows of the `probes` nearest lists,
 * by the score of their better posting, ties by id.  All postings of a row
 * carry the same address, so that it names the row as well as its TID does.
 * gpuvecd and the session's engine find the same candidates in the same lists.
 * But the last of the nearest lists may differ, because gpuvecd does not
 * choose lists by codes of centroids.
 */
void
IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	if (IvfpqSearchRemote(search, probes, candidates * lists_per_row, 0, 0))
	{
		search->found_all = search->candidates.count < candidates *
			lists_per_row;
		if (lists_per_row > 1)
			IvfpqSearchDistinct(search, candidates);
		return;
	}
	IvfpqSearchNearest(search, probes);
	IvfpqSearchOpen(search, candidates * lists_per_row);
	IvfpqSearchLists(search, 0, search->lists.count);
	IvfpqSearchTake(search, candidates);
}

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

/* Returns the candidates that a search keeps, enough for any selectivity. */
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

/* Returns whether so many rows are needed that all lists are compared. */
static bool
is_deep(const KeyedReading *reading)
{
	return reading->params.beyond_parents ||
		reading->goal->rows / reading->goal->selectivity > IVFPQ_PARENTS_ROWS;
}

/* Ranks lists that were not read, at least `more` if there are. */
static void
rank_lists(KeyedReading *reading, int more)
{
	IvfpqSearch *search = reading->search;
	GvTopK	   *lists = &search->lists;
	double		n = RANKED_AT_FIRST * more;
	int			kept = 0;

	if (reading->nread > 0)
		n = Max(Min(RANKED_LATER * reading->params.probes,
					RANKED_AT_FIRST * (reading->nread + more)),
				reading->nread + more);
	search->query.deep = is_deep(reading);
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

/* Reads the next `more` lists, or all that are left. */
static void
read_lists(KeyedReading *reading, int more)
{
	IvfpqSearch *search = reading->search;
	int			end;

	if (reading->next + more > search->lists.count)
		rank_lists(reading, more);
	end = Min(reading->next + more, search->lists.count);
	IvfpqSearchLists(search, reading->next, end);
	for (; reading->next < end; reading->next++)
		reading->is_read[search->lists.ids[reading->next]] = true;
	reading->nread = search->ncounts;
}

/* Begins a search's sample. */
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

/*
 * Returns how many postings the n best rows of the candidates have, if a row
 * has no more than lists_per_row, and sets *score to the score of the last of
 * these rows.  Returns 0 if there are fewer rows.
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
 * Returns the sample's count: of the postings of the nearest `rows` rows that
 * match, and of those of the sample that are not beyond the last one.
 */
static IvfpqNearCount
sample_count(IvfpqSearch *search, double rows)
{
	const IvfpqBlockSample *sample = &search->sample;
	IvfpqNearCount count = {0};
	float		last = 0;
	uint8	   *counts;

	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	IvfpqCheckStatus(gv_scan_finish(&search->sample.scan));
	count.matched = nth_row(&search->candidates, rows,
							search->model->meta.lists_per_row, &last);
	if (count.matched == 0)
		return count;
	counts = palloc0(Max(sample->nblocks, 1));
	for (int i = 0; i < sample->best.count; i++)
		if (sample->best.scores[i] <= last)
			counts[sample->best.ids[i] / GV_BLOCK]++;
	for (uint32 b = 0; b < sample->nblocks; b++)
	{
		count.nearer += counts[b];
		count.variance += (double) counts[b] * counts[b];
	}
	pfree(counts);
	return count;
}

/*
 * Returns the selectivity among the nearest rows: as a sample's count tells if
 * that is smaller than lists tell, else `selectivity`, which lists tell.
 * *beyond_doubt tells whether it is smaller beyond doubt.
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
 * Returns the greatest score of the nearest `rows` rows, where each has
 * lists_per_row postings, as the sample tells.
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

/*
 * Estimates the selectivity near the query, and sets the search parameters for
 * it.  Where enough lists seem to be read, the sample counts as well.  If rows
 * farther away surely match more often, they may be a dense group
 * (NEARLY_ALL), whose lists are anywhere: then all lists are read.
 */
static void
estimate_selectivity(KeyedReading *reading)
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
									   reading->part);
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
	selectivity = sampled_selectivity(&count, selectivity,
									  reading->by_server ? goal->rows : 0,
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
 * Returns the candidates needed: the selectivity's fraction of all candidates.
 */
static int
candidates_needed(const KeyedReading *reading)
{
	return IvfpqKeyCandidates(reading->params.candidates,
							  Max(reading->goal->selectivity,
								  reading->flat_selectivity));
}

/* Returns the number of lists times `factor`, but no more than may be read. */
static int
scale_lists(const KeyedReading *reading, double factor, int probes)
{
	return (int) Min(ceil(factor * probes), reading->goal->most_probes);
}

/* Returns the number of rows times `factor`, but no more than are kept. */
static int
scale_rows(const IvfpqKeyGoal *goal, double factor, int rows)
{
	return (int) Min(ceil(factor * rows), goal->candidates);
}

/*
 * Returns the number of lists to ask gpuvecd for at first, by the estimated
 * selectivity.  The selectivity of an earlier batch has precedence over the
 * planner's estimate.  That of other searches does not count: rows must not
 * depend on earlier statements of a session.
 */
static int
ask_first(KeyedReading *reading)
{
	const IvfpqKeyGoal *goal = reading->goal;
	double		guess = goal->selectivity >= 1 ? goal->guess : 0;
	IvfpqSearchParams params;

	get_params(reading->search, goal, guess > 0 ? guess : goal->selectivity,
			   &params);
	reading->asked = goal->candidates;
	if (guess > 0)
		reading->asked = scale_rows(goal, ASKED_GUESSED,
									IvfpqKeyCandidates(params.candidates,
													   guess));
	return scale_lists(reading, ASKED_BEYOND, params.probes);
}

/*
 * Returns the number of lists to ask for after an answer has told the
 * selectivity; 0 if those read are enough.  They are not where more rows than
 * were requested may be candidates.
 */
static int
ask_next(KeyedReading *reading)
{
	const IvfpqKeyGoal *goal = reading->goal;
	const GvTopK *found = &reading->search->candidates;
	int			probes = reading->params.probes;
	int			rows = reading->grows ? goal->candidates :
	scale_rows(goal, 1, candidates_needed(reading));

	if (probes > reading->nread)
		probes = scale_lists(reading, ASKED_BEYOND, probes);
	else if (rows > reading->asked && found->count == found->capacity)
		probes = reading->nread;
	else
		return 0;
	reading->asked = Max(scale_rows(goal, KEPT_BEYOND, rows), reading->asked);
	if (reading->sums.matched < TELLING_POSTINGS)
		probes = Min(probes, (1 + MOST_GROWTH) * reading->nread);
	return probes;
}

/*
 * Has gpuvecd search enough lists: those for the estimated selectivity, and
 * more in another search if the selectivity turns out to need them.  Returns
 * false when gpuvecd does not answer, or where the selectivity surely grows
 * with the distance, which a mirror does not tell well; then the session's own
 * search is better.
 */
static bool
read_remote(KeyedReading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	int			probes = ask_first(reading);

	reading->by_server = true;
	while (probes > 0)
	{
		int			before = reading->nread;
		int			rows = reading->asked;
		int			postings = rows * search->model->meta.lists_per_row;
		double		rank =
		ceil(goal->rows * search->model->meta.lists_per_row);

		search->query.deep = is_deep(reading);
		if (!IvfpqSearchRemote(search, probes, postings, reading->part,
							   (int) Min(rank, postings)))
			return false;
		reading->nread = search->ncounts;
		estimate_selectivity(reading);
		if (reading->params.read_all || goal->is_far)
			break;
		probes = ask_next(reading);
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

/*
 * Reads `more` lists, then as many as the selectivity needs.  After the first
 * lists, keeps more candidates if few postings match.
 */
static void
read_until_enough(KeyedReading *reading, int more)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;

	while (more > 0)
	{
		int			before = reading->nread;

		read_lists(reading, more);
		if (reading->nread == before)
			break;
		estimate_selectivity(reading);
		if (reading->params.read_all)
			break;
		if (before == 0 && reading->flat_selectivity <= SPARSE &&
			goal->candidates <= MOST_SPARSE / KEPT_SPARSE)
		{
			goal->candidates *= KEPT_SPARSE;
			reading->left_out =
				!IvfpqSearchWiden(search, goal->candidates *
								  search->model->meta.lists_per_row);
		}
		more = Min(reading->params.probes - reading->nread,
				   MOST_GROWTH * reading->nread);
	}
}

/*
 * Searches by the session's own engine, from the selectivity that `first` has,
 * until enough lists are read.
 */
static void
read_local(KeyedReading *reading, const IvfpqKeyGoal *first)
{
	IvfpqSearch *search = reading->search;
	const IvfpqKeyGoal *goal = reading->goal;
	int			nlists = search->model->meta.nlists;
	int			candidates;
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
	search->sample.is_open = false;
	IvfpqQueryDropScores(&search->query);
	pfree(reading->is_read);

	/*
	 * Drop the rows beyond the candidates needed, unless farther rows match
	 * more often, or all rows that match may have been found.
	 */
	candidates = goal->candidates;
	if (!reading->grows && reading->nread < goal->most_probes)
		candidates = Min(candidates_needed(reading), candidates);
	IvfpqSearchTake(search, candidates);
}

/*
 * Counts the candidates among the rows found, the best first: those needed or,
 * where the selectivity grows with the distance, all that are within the reach
 * of the unfiltered candidates.  A mirror's sample does not tell this reach;
 * then all rows found are candidates.
 */
static int
count_candidates(const KeyedReading *reading)
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
 * Fills search->candidates with the best rows that satisfy search->condition,
 * enough for goal->rows at goal->recall.  They are all rows that match, and
 * goal->is_all is set, if all lists that may be probed were read and fewer
 * than goal->candidates were found.
 */
void
IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal)
{
	KeyedReading reading = {.search = search, .goal = goal,
	.part = Min(Max(goal->recall, LEAST_PART), MOST_PART)};
	IvfpqKeyGoal first = *goal;

	goal->is_far = false;
	if (goal->reads_all)
		IvfpqSearchNoServer(search, "conditions on keys");
	if (goal->reads_all || !read_remote(&reading))
		read_local(&reading, &first);

	goal->everything = reading.params.read_all && !goal->reads_all;
	goal->is_all = reading.nread >= goal->most_probes &&
		search->found_all && !reading.left_out &&
		search->candidates.count < goal->candidates;
	if (!goal->is_all)
		search->candidates.count = count_candidates(&reading);
}
