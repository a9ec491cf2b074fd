/*
 * ivfpqsearch.c
 *		A search from a query to candidates, without and with key quals.
 *
 * Without key quals a search is one request to gpuvecd.  If gpuvecd does not
 * answer, the search is one scan of the nearest lists.
 *
 * Key quals.  Calibration gives the probes for the nearest n rows.  The ten
 * nearest rows that match are among the nearest 10 / selectivity rows, but the
 * selectivity near the query is known only from the lists there.  So lists are
 * read nearest first, and the selectivity is estimated from the lists read so
 * far.  Reading ends when the number of lists read reaches calibration's
 * probes for n = rows / selectivity.  No list is read again: the postings
 * found are kept when the next lists are added.
 *
 * Weights.  The nearest n rows are not spread evenly over the lists read.  If
 * P lists hold a fraction r of these rows, the first i lists hold about
 *		1 - (1 - r)^(i / P)
 * of them.  So the postings of the i-th list get the weight
 *		(1 - r)^(i / P)
 * With these weights, keys that correlate with vectors are counted mostly
 * where the nearest rows are.
 *
 * Sample.  Keys may also correlate with the distance, so that farther rows
 * match more often.  Then the lists mislead: perhaps none of the 1,000 rows
 * nearest to the query matches, though their lists have hundreds of matching
 * rows.  So all postings of a sample of the blocks are scored, whether they
 * match or not.  If `nearer` of these postings are no farther than the last of
 * the `matched` nearest matching postings, the selectivity is about
 *		matched / (GV_SAMPLED_ONE_OF * nearer)
 *
 * Let `expected` be the number of near postings that corresponds to the
 * selectivity in the lists.  The sample is used, and tells how far away
 * candidates may be, if it has more near postings than chance explains:
 *		nearer - expected > CHANCE * sqrt(nearer)
 * The difference is beyond doubt if
 *		nearer - expected > DOUBT * sqrt(variance)
 * The variance is the sum, over blocks, of the square of each block's number
 * of near postings, because a block is sampled as a whole and often has many
 * near-duplicates of a row.  A difference that is not beyond doubt still makes
 * a search read more lists, because it would read too few if the difference is
 * real.  If reading more lists means another request to gpuvecd, the root is
 * sqrt(variance + expected^2 / rows) in both tests, because the last of the
 * `rows` rows needed may by chance be nearer or farther than usual.
 *
 * Few matches.  A GPU tests the keys of a million rows in less time than a
 * second request takes.  So if few rows match, the request is for all lists.
 * No list is missed then, the numbers of postings are those of the
 * whole index, and only the candidates depend on an estimate: the sample tells
 * how often rows near the query match, and so which rank the last of the
 * `rows` rows needed has.  If it is beyond doubt that the selectivity grows
 * with the distance, all rows that match are the candidates.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/search/params.h"
#include "am/search/search.h"
#include "page/metapage.h"

/* Maximum number of lists to add, as a multiple of the lists read so far. */
#define MOST_GROWTH		1

/*
 * More lists are ranked than are read next.  Before the first lists are read,
 * RANKED_AT_FIRST times the lists to read are ranked.  Later, RANKED_LATER
 * times the lists that the estimated selectivity needs are ranked.
 */
#define RANKED_AT_FIRST	1.5
#define RANKED_LATER	1.25

/*
 * The first lists to read are those that a search at FIRST_FACTOR times the
 * estimated selectivity needs.
 */
#define FIRST_FACTOR		4

/*
 * Another request to gpuvecd takes longer than reading some lists that are not
 * needed.  So gpuvecd is asked for ASKED_BEYOND times the lists needed.  While
 * fewer than TELLING_POSTINGS matching postings have been counted, a request
 * adds at most MOST_GROWTH times the lists read so far.  The first request is
 * for ASKED_GUESSED times the candidates needed at the selectivity that the
 * planner estimates.
 */
#define ASKED_BEYOND	1.5
#define ASKED_GUESSED	1.1
#define TELLING_POSTINGS	64

/*
 * An engine on a GPU selects this many lists, and this many postings, without
 * sorting all of them.  gpuvecd is asked for all lists if more lists are
 * needed, or if at most this many rows match.
 */
#define SELECTED		2048

/*
 * Keep KEPT_BEYOND times the candidates that would be needed if near and far
 * rows matched equally often, because far rows may match more often.
 */
#define KEPT_BEYOND		1.5

/*
 * If the selectivity in the first lists is at most SPARSE, the number of
 * candidates to keep is multiplied by KEPT_SPARSE, unless the product exceeds
 * MOST_SPARSE.  The additional candidates cost little, because few postings
 * match.
 */
#define SPARSE			0.1
#define KEPT_SPARSE		10
#define MOST_SPARSE		5000

/*
 * If more than the fraction NEARLY_ALL of the lists is needed, all lists are
 * read, because the farthest lists may have a dense group of matching rows.
 */
#define NEARLY_ALL		0.75

/*
 * The selectivity is assumed to grow with the distance if its unweighted
 * estimate exceeds GROWS times the weighted estimate, in which near lists
 * count most.
 */
#define GROWS			1.5

/*
 * If the unweighted estimate is more than GROWS_FAR times the weighted
 * estimate, the last lists read probably belong to a dense group (NEARLY_ALL).
 */
#define GROWS_FAR		3.0

/* KeyedReading.part, within limits */
#define PART(goal)		Min(Max((goal)->recall, 0.5), 0.999)

/* Number of the sample's best postings that are kept. */
#define SAMPLE_KEPT		1024

/*
 * Tests of the sample, in standard deviations (see the file's header).  A
 * sample with at most FEW near postings is not used.
 */
#define CHANCE			2.0
#define DOUBT			3.0
#define FEW				4

/* The state of a search with key quals while it reads lists. */
typedef struct KeyedReading
{
	IvfpqSearch *search;
	IvfpqKeyGoal *goal;
	double		part;			/* fraction of the nearest rows that the lists
								 * read are assumed to hold */

	/* lists read so far */
	bool		by_server;		/* gpuvecd reads the lists */
	int			asked;			/* rows requested from gpuvecd */
	bool		asks_all_lists; /* the last request was for all lists */
	bool	   *is_read;		/* [nlists] lists that the session has read */
	int			next;			/* place in search->lists of the list that the
								 * session reads next */
	int			nread;
	bool		left_out;		/* postings may have been left out before the
								 * number of candidates to keep was raised */

	/* estimates from the lists read */
	IvfpqListSums sums;
	double		flat_selectivity;	/* among all postings read, unweighted */
	bool		grows;			/* the selectivity grows with the distance */
	bool		is_sure;		/* the growth is beyond doubt */
	bool		is_complete;	/* gpuvecd has found all rows that match */
	IvfpqSearchParams params;	/* for goal->selectivity */
} KeyedReading;

/*
 * Fills search->candidates with the best rows of the `probes` nearest lists.
 * A row has the score of its better posting; rows with the same score are
 * ordered by id.  All postings of a row carry the same address, so an address
 * identifies a row just as a TID does.
 *
 * gpuvecd and the session's engine find the same candidates in the same lists.
 * But they may disagree on which lists are the last of the `probes` nearest,
 * because gpuvecd does not choose lists by codes of centroids.
 */
void
IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	if (IvfpqSearchRemote(search, probes, candidates, 0, 0))
	{
		search->found_all = search->candidates.count +
			search->remote.nleft_out < candidates * lists_per_row;
		if (lists_per_row > 1 && search->remote.omitted.n == 0)
			IvfpqSearchDistinct(search, candidates);
		return;
	}
	IvfpqSearchNearest(search, probes);
	IvfpqSearchOpen(search, candidates * lists_per_row);
	IvfpqSearchLists(search, 0, search->lists.count);
	IvfpqSearchTake(search, candidates);
}

/* Sets *params for a search for goal->rows matching rows at a selectivity. */
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

/* Returns how many candidates to keep, enough for any selectivity. */
int
IvfpqKeyCapacity(const IvfpqSearch *search, const IvfpqKeyGoal *goal)
{
	double		all = IvfpqRowsAbout(search->index, &search->model->meta);
	double		most = 0;

	for (double selectivity = 1; selectivity == 1 ||
		 goal->rows / selectivity < all; selectivity /= 4)
	{
		IvfpqSearchParams params;

		/* This yields the same candidates as get_params, for half the work. */
		IvfpqParamsForRows(&params, search->index, &search->model->meta,
						   goal->recall,
						   Min(goal->rows / selectivity, PG_INT32_MAX));
		most = Max(most, IvfpqKeyCandidates(params.candidates, selectivity));
	}
	return (int) Min(ceil(KEPT_BEYOND * most), PG_INT32_MAX / 4);
}

/* Returns whether all lists must be compared, because many rows are needed. */
static bool
is_deep(const KeyedReading *reading)
{
	return reading->params.beyond_parents ||
		reading->goal->rows / reading->goal->selectivity > IVFPQ_PARENTS_ROWS;
}

/* Reads the next `more` lists, or all that are left. */
static void
read_lists(KeyedReading *reading, int more)
{
	IvfpqSearch *search = reading->search;
	GvTopK	   *lists = &search->lists;
	int			end;

	if (reading->next + more > lists->count)
	{
		double		n = RANKED_AT_FIRST * more;
		int			kept = 0;

		/* rank lists; keep those not read yet, `more` or all that are left */
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
	end = Min(reading->next + more, lists->count);
	IvfpqSearchLists(search, reading->next, end);
	for (; reading->next < end; reading->next++)
		reading->is_read[lists->ids[reading->next]] = true;
	reading->nread = search->ncounts;
}

/*
 * Compares the sample with the nearest `rows` rows that match.  In the result,
 * `matched` counts the postings of these rows, and `nearer` counts the
 * sample's postings that are no farther than the last of these postings.  Both
 * are 0 if the candidates have fewer rows.
 */
static IvfpqNearCount
sample_count(IvfpqSearch *search, double rows)
{
	const IvfpqBlockSample *sample = &search->sample;
	const GvTopK *candidates = &search->candidates;
	int			lists_per_row = search->model->meta.lists_per_row;
	IvfpqNearCount count = {0};
	GvTopK		best = {0};
	tidset_hash *seen;
	int			postings = 0;
	float		last = 0;
	uint8	   *counts;

	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	IvfpqCheckStatus(gv_scan_finish(&search->sample.scan));

	/*
	 * Count the candidates' postings, best first, until `rows` rows have one
	 * of them.  No row has more than lists_per_row postings.  Sort a copy,
	 * because more postings may be offered to the candidates.
	 */
	seen = tidset_create(CurrentMemoryContext, 32, NULL);
	IvfpqTopKResize(&best, (int) Max(Min(rows * lists_per_row,
										 candidates->count), 1));
	for (int i = 0; i < candidates->count; i++)
		gv_topk_push(&best, candidates->scores[i], candidates->ids[i]);
	gv_topk_sort(&best);
	while (postings < best.count && seen->members < rows)
	{
		bool		found;

		tidset_insert(seen, best.ids[postings++], &found);
	}
	if (postings > 0 && seen->members >= rows)
	{
		count.matched = postings;
		last = best.scores[postings - 1];
	}
	tidset_destroy(seen);
	pfree(best.scores);
	pfree(best.ids);
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
 * Returns the selectivity among the nearest rows.  This is `selectivity`, as
 * measured in the lists, unless the sample shows a selectivity that is smaller
 * by more than chance.  *beyond_doubt says whether it is smaller beyond doubt.
 *
 * by_chance is the number of rows needed if more lists mean another request to
 * gpuvecd, else 0.  See the file's header for the tests.
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
 * Estimates the selectivity near the query from the lists read so far, and
 * sets the search parameters for it.  If the lists read are enough for these
 * parameters, uses the sample as well.  Sets goal->is_far if it is probable
 * (GROWS_FAR), or beyond doubt by the sample, that farther rows match more
 * often.  Then all lists must be read, because any list may have a dense group
 * of matching rows (NEARLY_ALL).
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
	else if (reading->asks_all_lists && count.matched > 0)
		goal->selectivity =
			Max(Min(count.matched / (GV_SAMPLED_ONE_OF * Max(count.nearer, 1)),
					1), goal->selectivity);
	get_params(search, goal, goal->selectivity, &reading->params);
}

/* Returns the number of params.candidates that are expected to match. */
static int
candidates_needed(const KeyedReading *reading)
{
	return IvfpqKeyCandidates(reading->params.candidates,
							  Max(reading->goal->selectivity,
								  reading->flat_selectivity));
}

/* Returns factor * n, but at most `most` lists or rows. */
static int
scale(double factor, int n, int most)
{
	return (int) Min(ceil(factor * n), most);
}

/*
 * Returns the number of lists to request from gpuvecd, if `probes` lists are
 * needed and the fraction `share` of all rows is estimated to match.  If few
 * match this is all lists, and enough candidates for any selectivity are
 * requested, because they cost little then.
 */
static int
choose_lists(KeyedReading *reading, int probes, double share)
{
	const IvfpqSearch *search = reading->search;
	const IvfpqMetaData *meta = &search->model->meta;
	const IvfpqKeyGoal *goal = reading->goal;
	int			most = SELECTED / meta->lists_per_row;
	double		rows = IvfpqRowsAbout(search->index, meta) * share;

	if (goal->most_probes == meta->nlists &&
		(rows <= SELECTED || (probes > SELECTED && reading->asked <= most)) &&
		IvfpqDirectoryHasVersion(search->index, meta))
	{
		reading->asked = Min(goal->candidates, most);
		return meta->nlists;
	}
	if (reading->nread > 0 && reading->sums.matched < TELLING_POSTINGS)
		probes = Min(probes, (1 + MOST_GROWTH) * reading->nread);
	return probes;
}

/*
 * Returns the number of lists for the next request to gpuvecd, or 0 if no
 * request is needed.  If the answer had all the rows requested, but more rows
 * may be candidates, the same lists are requested again with more rows.
 */
static int
ask_next(KeyedReading *reading)
{
	const IvfpqKeyGoal *goal = reading->goal;
	const GvTopK *found = &reading->search->candidates;
	int			probes = reading->params.probes;
	int			rows = reading->grows ? goal->candidates :
	Min(candidates_needed(reading), goal->candidates);

	if (probes <= reading->nread &&
		(rows <= reading->asked || found->count < found->capacity))
		return 0;
	reading->asked = Max(scale(KEPT_BEYOND, rows, goal->candidates),
						 reading->asked);
	if (probes <= reading->nread)
		return reading->nread;
	return choose_lists(reading,
						scale(ASKED_BEYOND, probes, goal->most_probes),
						reading->flat_selectivity);
}

/*
 * Returns the number of lists for a request of all rows that match, or 0 if
 * these are too many for one.  Called if it is beyond doubt that the
 * selectivity grows with the distance.
 */
static int
ask_all(KeyedReading *reading)
{
	IvfpqKeyGoal *goal = reading->goal;
	int			most = SELECTED / reading->search->model->meta.lists_per_row;

	if (reading->asks_all_lists ?
		reading->sums.matched >= SELECTED || reading->asked >= most :
		choose_lists(reading, 0, reading->flat_selectivity) == 0)
		return 0;
	reading->asked = most;
	goal->candidates = Max(goal->candidates, most);
	return goal->most_probes;
}

/*
 * Evaluates an answer of gpuvecd, whose postings are the candidates, to a
 * request for `rows` rows after `before` lists were read.  Returns the number
 * of lists to request next, or 0 if no request is needed.
 */
static int
next_request(KeyedReading *reading, int before, int rows)
{
	IvfpqSearch *search = reading->search;
	int			probes;

	reading->nread = search->ncounts;
	estimate_selectivity(reading);
	search->found_all = search->candidates.count + search->remote.nleft_out <
		rows * search->model->meta.lists_per_row;
	reading->is_complete = search->found_all &&
		reading->nread >= reading->goal->most_probes;
	if (reading->is_complete || reading->params.read_all)
		return 0;
	probes = reading->is_sure ? ask_all(reading) : ask_next(reading);
	/* stop if the next request would not be larger than this one */
	return reading->nread <= before && reading->asked <= rows ? 0 : probes;
}

/* Returns how many of the sample's postings a request counts. */
static int
sampled_rank(const IvfpqSearch *search, const IvfpqKeyGoal *goal, int rows)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	return (int) Min(ceil(goal->rows * lists_per_row), rows * lists_per_row);
}

/*
 * Requests a search of enough lists from gpuvecd: all lists if few rows match,
 * otherwise first the lists for an estimated selectivity, and then more
 * lists if the selectivity turns out to need them.  Returns false if gpuvecd
 * does not answer, or if it is beyond doubt that the selectivity grows with
 * the distance and the rows that match are not all found.  In that case the
 * session's own search is better, because a mirror's sample gives only a poor
 * estimate of the growth.
 *
 * The estimate is the selectivity that an earlier batch of the scan found or,
 * if there is none, the planner's estimate.  Selectivities in other searches
 * are not used, because the rows found must not depend on earlier statements
 * of a session.
 */
static bool
read_remote(KeyedReading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	double		guess = goal->selectivity >= 1 ? goal->guess : 0;
	int			keep = search->keep;
	IvfpqSearchParams params;
	int			probes;

	get_params(search, goal, guess > 0 ? guess : goal->selectivity, &params);
	probes = scale(ASKED_BEYOND, params.probes, goal->most_probes);
	reading->asked = goal->candidates;
	if (guess > 0)
		reading->asked = scale(ASKED_GUESSED,
							   IvfpqKeyCandidates(params.candidates, guess),
							   goal->candidates);
	probes = choose_lists(reading, probes, goal->guess > 0 ?
						  Min(goal->guess, goal->selectivity) :
						  goal->selectivity);
	reading->by_server = true;
	while (probes > 0)
	{
		int			before = reading->nread;
		int			rows = reading->asked;

		search->query.deep = is_deep(reading);
		/* if all lists are searched they have the same weight */
		reading->asks_all_lists = probes == search->model->meta.nlists;
		/* candidates may be left out only if they are all rows that match */
		search->keep = reading->asks_all_lists ? keep : 0;
		if (!IvfpqSearchRemote(search, probes, rows,
							   reading->asks_all_lists ? 0 : reading->part,
							   sampled_rank(search, goal, rows)))
			return false;
		goal->probes = probes;
		goal->asked = rows;
		probes = next_request(reading, before, rows);
	}
	if (reading->is_sure && !reading->is_complete)
		return false;
	IvfpqSearchDistinct(search, goal->candidates);
	return true;
}

/*
 * Raises the capacity of the open search and continues it.  Returns false if
 * some of the best `capacity` postings may have been left out already.
 */
static bool
widen(IvfpqSearch *search, int capacity)
{
	GvTopK		found;

	IvfpqSearchSettle(search);
	found = search->candidates;
	memset(&search->candidates, 0, sizeof(GvTopK));
	IvfpqSearchOpen(search, capacity);
	for (int i = 0; i < found.count; i++)
		gv_topk_push(&search->candidates, found.scores[i], found.ids[i]);
	pfree(found.scores);
	pfree(found.ids);
	return found.count < found.capacity;
}

/*
 * Searches by the session's own engine until enough lists are read.  *first is
 * the goal as the caller set it; its selectivity determines how many lists are
 * read first.
 */
static void
read_local(KeyedReading *reading, const IvfpqKeyGoal *first)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	IvfpqBlockSample *sample = &search->sample;
	int			lists_per_row = search->model->meta.lists_per_row;
	int			nlists = search->model->meta.nlists;
	float	   *list_scores;
	int			more;
	int			candidates;
	IvfpqSearchParams least;

	/* gpuvecd has answered, but the answer is not used */
	if (reading->nread > 0)
		IvfpqReportEngine(search->report, "session");
	reading->is_read = palloc0(nlists * sizeof(bool));
	reading->nread = 0;
	reading->by_server = reading->asks_all_lists = false;
	goal->candidates = first->candidates;
	search->ncounts = 0;

	/* an earlier answer's records do not belong to the postings read here */
	search->remote.nknown = 0;
	search->lists.count = 0;
	IvfpqCountsReserve(search, nlists);

	/* keep the scores of lists, because lists will be ranked again */
	list_scores = palloc_extended(nlists * sizeof(float), MCXT_ALLOC_HUGE);
	for (int i = 0; i < nlists; i++)
		list_scores[i] = NAN;
	search->query.list_scores = list_scores;
	IvfpqSearchOpen(search, goal->candidates * lists_per_row);

	/* start the scan that scores all postings of the sample's blocks */
	if (sample->memory == NULL)
		sample->memory = palloc(gv_scan_scratch(search->model->gv.m,
												SAMPLE_KEPT) + GV_ALIGN);
	IvfpqTopKResize(&sample->best, SAMPLE_KEPT);
	sample->scan.model = &search->model->gv;
	sample->scan.table = search->query.table;
	sample->scan.best = &sample->best;
	sample->nblocks = 0;
	sample->scan.reach = GV_SCORE_MAX;
	sample->scan.scratch = (void *) TYPEALIGN(GV_ALIGN, sample->memory);
	IvfpqCheckStatus(gv_scan_begin(&sample->scan));
	sample->is_open = true;

	get_params(search, first, Min(FIRST_FACTOR * first->selectivity, 1),
			   &least);
	more = goal->reads_all ? goal->most_probes : least.probes;
	while (more > 0)
	{
		int			before = reading->nread;

		read_lists(reading, more);
		if (reading->nread == before)
			break;
		estimate_selectivity(reading);
		if (reading->params.read_all)
			break;
		/* if few postings of the first lists match, keep more candidates */
		if (before == 0 && reading->flat_selectivity <= SPARSE &&
			goal->candidates <= MOST_SPARSE / KEPT_SPARSE)
		{
			goal->candidates *= KEPT_SPARSE;
			reading->left_out = !widen(search,
									   goal->candidates * lists_per_row);
		}
		more = Min(reading->params.probes - reading->nread,
				   MOST_GROWTH * reading->nread);
	}
	sample->is_open = false;
	pfree(list_scores);
	search->query.list_scores = NULL;
	pfree(reading->is_read);

	/*
	 * Drop the rows beyond the candidates needed, unless farther rows match
	 * more often, or all matching rows may have been found.
	 */
	candidates = goal->candidates;
	if (!reading->grows && reading->nread < goal->most_probes)
		candidates = Min(candidates_needed(reading), candidates);
	IvfpqSearchTake(search, candidates);
}

/*
 * Returns how many of the rows found, counted from the best, are candidates.
 * If the selectivity does not grow with the distance, these are the candidates
 * needed.  If it grows, all rows up to the distance that a search without key
 * quals would reach are candidates, too.  The sample gives an estimate of this
 * distance.  A mirror's sample does not give it, so after gpuvecd's search all
 * rows found are candidates.
 */
static int
count_candidates(const KeyedReading *reading)
{
	IvfpqSearch *search = reading->search;
	const GvTopK *found = &search->candidates;
	GvTopK	   *best = &search->sample.best;
	int			n = Min(candidates_needed(reading), found->count);
	double		nth;			/* posting of the sample at this distance */
	float		reach = GV_SCORE_MAX;

	if (!reading->grows)
		return n;
	if (reading->by_server)
		return found->count;

	/* each row has lists_per_row postings; the sample may have kept too few */
	nth = ceil((double) reading->params.candidates *
			   search->model->meta.lists_per_row / GV_SAMPLED_ONE_OF);
	if (nth < best->count)
	{
		gv_topk_sort(best);
		reach = best->scores[(int) nth];
	}
	for (; n < found->count; n++)
		if (found->scores[n] > reach)
			break;
	return n;
}

/* Ends the search, and sets the goal's results. */
static void
end_reading(KeyedReading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;

	goal->everything = reading->params.read_all && !goal->reads_all;
	goal->is_all = reading->nread >= goal->most_probes &&
		search->found_all && !reading->left_out &&
		IvfpqCandidatesFound(search) < goal->candidates;
	if (!goal->is_all)
		search->candidates.count = count_candidates(reading);
}

/*
 * Requests a search for each of n queries from gpuvecd: the same request as the
 * last one for an earlier query, whose result goal->probes and goal->asked are.
 * `asked` and the taker are those of IvfpqSearchBulkRemote.
 */
void
IvfpqSearchKeysBulk(IvfpqSearch *search, const IvfpqKeyGoal *goal,
					const float *asked, int n, const IvfpqBulkTaker *taker)
{
	IvfpqSearchBulkRemote(search, asked, n, goal->probes, goal->asked,
						  goal->probes == search->model->meta.nlists ? 0 :
						  PART(goal),
						  sampled_rank(search, goal, goal->asked), taker);
}

/*
 * Takes the rows that an answer to such a request has found, like
 * IvfpqSearchKeys.  Returns false if another request is needed.
 */
bool
IvfpqSearchKeysTake(IvfpqSearch *search, IvfpqKeyGoal *goal)
{
	KeyedReading reading = {
		.search = search, .goal = goal, .part = PART(goal), .by_server = true,
		.asked = goal->asked,
		.asks_all_lists = goal->probes == search->model->meta.nlists
	};

	goal->is_far = false;
	if (next_request(&reading, 0, goal->asked) > 0 ||
		(reading.is_sure && !reading.is_complete))
		return false;
	IvfpqSearchDistinct(search, goal->candidates);
	end_reading(&reading);
	return true;
}

/*
 * Fills search->candidates with the best rows that satisfy search->condition,
 * enough for goal->rows at goal->recall.  Sets goal->is_all if these are all
 * rows that match: all lists that may be probed were read, and fewer than
 * goal->candidates rows were found.
 */
void
IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal)
{
	KeyedReading reading = {.search = search, .goal = goal,
	.part = PART(goal)};
	IvfpqKeyGoal first = *goal;

	goal->is_far = false;
	if (goal->reads_all)
		IvfpqSearchNoServer(search, "conditions on keys");
	if (goal->reads_all || !read_remote(&reading))
	{
		goal->probes = goal->asked = 0;
		read_local(&reading, &first);
	}
	end_reading(&reading);
}
