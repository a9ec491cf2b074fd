/*
 * keycandidates.c
 *		From a query to candidates that fulfil a condition on keys.
 *
 * Calibration says which lists hold the nearest n rows.  Ten that fulfil the
 * condition are among the nearest 10 / share; what share that is, near the
 * query, only lists tell.  So lists are read the nearest first, and those read
 * tell the share, until they are as many as calibration wants for n = rows /
 * share.  It is one pass: what was found stands, and the next lists are added.
 *
 * The nearest n rows are not evenly in the lists read.  Of P lists that hold a
 * part r of them, the first i hold about 1 - (1 - r)^(i / P).  So the i-th list
 * counts (1 - r)^(i / P), and keys that go with vectors are seen as they are
 * where the rows are.
 *
 * Keys may go against vectors, too; nearshare.c sees that.
 */
#include "postgres.h"

#include <math.h>

#include "utils/rel.h"

#include "am/search/effort.h"
#include "am/search/search.h"

/* No more lists are added at once than so many times those read. */
#define MOST_GROWTH		1

/*
 * Lists are ranked beyond those that seem to be needed: at first, when nothing
 * is known of the share, and later.
 */
#define RANKED_AT_FIRST	1.5
#define RANKED_LATER	1.25

/* The first lists are those for a share so many times as large as is likely. */
#define FIRST_SHARE		4

/*
 * To ask gpuvecd again takes longer than to have it read lists that are not
 * needed.  So the first are those for the likely share, it is asked for so many
 * times as many as the share says, and for all of these as soon as so many
 * copies that fulfil the condition tell it.
 */
#define ASKED_SHARE		1.0
#define ASKED_BEYOND	1.5
#define TELLING_COPIES	64

/*
 * Candidates kept beyond what an even share takes: far rows may fulfil the
 * condition more often than near ones.
 */
#define KEPT_BEYOND		1.5

/*
 * So many times more are kept where the first lists show that fewer copies than
 * this fulfil it, so that it costs little; but no more than that.
 */
#define SPARSE			0.1
#define KEPT_SPARSE		25
#define MOST_SPARSE		5000

/*
 * Where so many lists are wanted all are read: the last may be those of a dense
 * group of rows far from others, which fulfils the condition.  Where the sample
 * has said that rows farther away do so more often, that is likely.
 */
#define NEARLY_ALL		0.75
#define NEARLY_ALL_FAR	0.4

/* The share of all lists is so much larger than that near the query. */
#define GROWS			1.5

/* The least and the greatest part of the rows that lists are taken to hold. */
#define LEAST_PART		0.5
#define MOST_PART		0.999

/* Lists while they are read. */
typedef struct Reading
{
	IvfpqSearch *search;
	IvfpqKeyGoal *goal;
	bool	   *is_read;		/* [nlists] */
	int			nread;
	int			next;			/* of search->lists */
	double		flat_share;		/* of all copies read those that fulfil it */
	double		matched;		/* ... how many there are */
	bool		grows;			/* the share, with the distance */
	bool		is_sure;		/* ... and that is no chance */
	bool		left_out;		/* copies were, before more were kept */
	IvfpqEffort effort;			/* what the share asks for */
} Reading;

/* What as many rows take as hold those wanted. */
static void
get_effort(const IvfpqSearch *search, const IvfpqKeyGoal *goal, double share,
		   IvfpqEffort *effort)
{
	double		among = goal->rows / Max(share, IVFPQ_LEAST_SHARE);

	IvfpqEffortWithin(effort, search->index, &search->model->meta,
					  goal->recall, among, goal->is_spread ?
					  IvfpqSpreadRows(among, goal->by_keys) : among);
	effort->probes = Min(effort->probes, goal->most_probes);
	if (effort->probes > (goal->is_far ? NEARLY_ALL_FAR : NEARLY_ALL) *
		goal->most_probes)
		effort->probes = goal->most_probes;
}

/* How many candidates a search keeps, whatever the share will be. */
int
IvfpqKeyCapacity(const IvfpqSearch *search, const IvfpqKeyGoal *goal)
{
	double		all = Max(search->model->meta.rows_at_calibration,
						  search->index->rd_rel->reltuples);
	double		most = 0;

	for (double share = 1; share == 1 || goal->rows / share < all; share /= 4)
	{
		IvfpqEffort effort;

		get_effort(search, goal, share, &effort);
		most = Max(most, IvfpqKeyCandidates(effort.candidates, share));
	}
	return (int) Min(ceil(KEPT_BEYOND * most), PG_INT32_MAX / 4);
}

/* Rank the lists that were not read, at least so many if there are. */
static void
rank_lists(Reading *reading, int wanted)
{
	IvfpqSearch *search = reading->search;
	GvTopK	   *lists = &search->lists;
	double		n = RANKED_AT_FIRST * wanted;
	int			kept = 0;

	if (reading->nread > 0)
		n = Max(Min(RANKED_LATER * reading->effort.probes,
					RANKED_AT_FIRST * (reading->nread + wanted)),
				reading->nread + wanted);
	search->query.deep = reading->goal->rows / reading->goal->share >
		IVFPQ_PARENTS_ROWS;
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

/* Read the next lists, so many if there are. */
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

/*
 * The share that lists tell whose weight falls by this ratio from each to the
 * next.
 */
static double
weighted_share(const IvfpqListCount *counts, int n, double ratio)
{
	double		weight = 1;
	double		copies = 0;
	double		matched = 0;

	for (int i = 0; i < n; i++)
	{
		copies += weight * counts[i].copies;
		matched += weight * counts[i].matched;
		weight *= ratio;
	}
	return matched / Max(copies, 1);
}

/*
 * The share of the rows near the query, and what it asks for.  Where all lists
 * seem to be read the sample has its say.
 */
static void
tell_share(Reading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;
	int			nread = reading->nread;
	double		part = Min(Max(goal->recall, LEAST_PART), MOST_PART);
	double		share = weighted_share(search->counts, nread,
									   pow(1 - part, 1.0 / nread));
	bool		is_sure;

	reading->flat_share = weighted_share(search->counts, nread, 1);
	reading->grows = reading->is_sure = reading->flat_share > GROWS * share;
	reading->matched = 0;
	for (int i = 0; i < nread; i++)
		reading->matched += search->counts[i].matched;
	goal->share = Max(share, IVFPQ_LEAST_SHARE);
	get_effort(search, goal, goal->share, &reading->effort);
	if (!search->sample.is_open || reading->effort.probes > nread)
		return;
	share = IvfpqSampleShare(search, goal->rows, share, &is_sure);
	if (share >= goal->share)
		return;
	reading->is_sure |= is_sure;
	goal->share = Max(share, IVFPQ_LEAST_SHARE);
	goal->is_spread = false;
	goal->is_far = true;
	reading->grows = true;
	get_effort(search, goal, goal->share, &reading->effort);
}

/*
 * As many rows are candidates as the share makes of all candidates.
 */
static int
wanted_candidates(const Reading *reading)
{
	return IvfpqKeyCandidates(reading->effort.candidates,
							  Max(reading->goal->share, reading->flat_share));
}

/*
 * Of the rows found, the best first, those that are candidates: so many or,
 * where the share grows with the distance, those no farther than these.
 */
static int
count_candidates(const Reading *reading)
{
	IvfpqSearch *search = reading->search;
	const GvTopK *found = &search->candidates;
	int			n = Min(wanted_candidates(reading), found->count);
	float		reach;

	if (!reading->grows || search->sample.memory == NULL)
		return n;
	reach = IvfpqSampleReach(search, reading->effort.candidates,
							 search->model->meta.copies);
	for (; n < found->count; n++)
		if (found->scores[n] > reach)
			break;
	return n;
}

/* The first lists have been read: keep more from now on, where they are few. */
static void
widen(Reading *reading)
{
	IvfpqSearch *search = reading->search;
	IvfpqKeyGoal *goal = reading->goal;

	if (reading->flat_share > SPARSE || goal->candidates >= MOST_SPARSE)
		return;
	goal->candidates = Min(goal->candidates * KEPT_SPARSE, MOST_SPARSE);
	reading->left_out = !IvfpqSearchWiden(search, goal->candidates *
										  search->model->meta.copies);
}

/* Read `wanted` lists, then as many as the share asks for. */
static void
read_until_enough(Reading *reading, int wanted)
{
	while (wanted > 0)
	{
		int			before = reading->nread;

		read_lists(reading, wanted);
		if (reading->nread == before)
			break;
		tell_share(reading);
		if (reading->effort.everything)
			break;
		if (before == 0)
			widen(reading);
		wanted = Min(reading->effort.probes - reading->nread,
					 MOST_GROWTH * reading->nread);
	}
}

/* How many lists to ask gpuvecd for where so many seem to be needed. */
static int
ask_for(const Reading *reading, int wanted)
{
	return (int) Min(ceil(ASKED_BEYOND * wanted),
					 reading->goal->most_probes);
}

/*
 * The same by gpuvecd, and the best copies of the lists read: a search of so
 * many lists, and one of more if the share asks for them.  False when gpuvecd
 * does not answer.  Where the share surely grows with the distance, which a
 * mirror does not tell well, the session had better search.
 */
static bool
ask_until_enough(Reading *reading, int wanted)
{
	IvfpqSearch *search = reading->search;
	const IvfpqKeyGoal *goal = reading->goal;

	while (wanted > reading->nread)
	{
		int			before = reading->nread;

		search->query.deep = goal->rows / goal->share > IVFPQ_PARENTS_ROWS;
		if (!IvfpqSearchRemote(search, wanted, goal->candidates *
							   search->model->meta.copies))
			return false;
		reading->nread = search->ncounts;
		if (reading->nread == before)
			break;
		tell_share(reading);
		if (reading->effort.probes <= reading->nread)
		{
			/* enough, unless keys go against the vectors */
			IvfpqSampleLists(search, reading->nread);
			tell_share(reading);
			IvfpqSampleEnd(search);
		}
		if (reading->effort.everything)
			break;
		wanted = reading->effort.probes;
		if (wanted > reading->nread)
			wanted = ask_for(reading, wanted);
		if (reading->matched < TELLING_COPIES)
			wanted = Min(wanted, (1 + MOST_GROWTH) * reading->nread);
	}
	return true;
}

/* Does the search's end not depend on rows behind the candidates? */
static bool
needs_candidates_alone(const Reading *reading)
{
	return !reading->grows && reading->nread < reading->goal->most_probes;
}

/* By the session's own engine. */
static void
read_alone(Reading *reading, int wanted)
{
	IvfpqSearch *search = reading->search;
	const IvfpqKeyGoal *goal = reading->goal;

	memset(reading->is_read, 0, search->model->meta.nlists * sizeof(bool));
	reading->nread = 0;
	search->ncounts = 0;
	search->lists.count = 0;
	IvfpqSearchOpen(search, goal->candidates * search->model->meta.copies);
	IvfpqSampleBegin(search);
	read_until_enough(reading, wanted);
	IvfpqSampleEnd(search);
	IvfpqSearchTake(search, needs_candidates_alone(reading) ?
					Min(wanted_candidates(reading), goal->candidates) :
					goal->candidates);
}

/*
 * Fill search->candidates with the best rows that fulfil search->condition, as
 * many as hold those wanted.  They are fewer than goal->candidates, and all, if
 * all lists were read that may be.
 */
void
IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal)
{
	int			nlists = search->model->meta.nlists;
	Reading		reading = {.search = search, .goal = goal};
	IvfpqEffort least;
	IvfpqEffort asked;

	reading.is_read = palloc0(nlists * sizeof(bool));
	IvfpqQueryKeepScores(&search->query, nlists);
	search->counts = palloc(nlists * sizeof(IvfpqListCount));
	get_effort(search, goal, Min(FIRST_SHARE * goal->share, 1), &least);
	get_effort(search, goal, Min(ASKED_SHARE * goal->share, 1), &asked);
	if (goal->reads_all)
	{
		IvfpqSearchAlone(search, "conditions on keys");
		read_alone(&reading, goal->most_probes);
	}
	else if (ask_until_enough(&reading, ask_for(&reading, asked.probes)) &&
			 !reading.is_sure)
	{
		search->found_all = search->candidates.count <
			goal->candidates * search->model->meta.copies;
		IvfpqSearchDistinct(search, goal->candidates);
	}
	else
		read_alone(&reading, least.probes);

	goal->everything = reading.effort.everything && !goal->reads_all;
	goal->is_all = reading.nread >= goal->most_probes &&
		search->found_all && !reading.left_out &&
		search->candidates.count < goal->candidates;
	if (!goal->is_all)
		search->candidates.count = count_candidates(&reading);
	IvfpqQueryDropScores(&search->query);
	pfree(reading.is_read);
	pfree(search->counts);
	search->counts = NULL;
}
