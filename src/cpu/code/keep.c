/*
 * keep.c
 *		The best of the pairs that a scan finds, kept without an order.
 *
 * A heap needs a dozen comparisons for each pair that enters it, and no
 * processor predicts their outcome.  Here a pair is appended, and counted in a
 * bin, which is a range of scores.  The bins show in which of them the last
 * needed pair is.  So a pair above that bin is rejected at once, and the kept
 * pairs are filtered again when the memory is full.  In the end a few pairs
 * too many are left, from which a heap chooses.
 *
 * A score's bin is computed so that a greater score is never in a smaller bin,
 * whatever the rounding.
 */
#include <math.h>

#include "cpu/code/gv_scan.h"

/* If the best pairs are all in bins below this one, the bins are too wide. */
#define USED_BINS	(GV_KEPT_BINS / 16)

/*
 * Returns the number of pairs to allocate memory for, if `capacity` are
 * needed.
 */
int32_t
gv_kept_allocation(int32_t capacity)
{
	int32_t		more = INT32_MAX - capacity;

	return capacity + (capacity < more - 2 * GV_KEPT_MOST ?
					   capacity + 2 * GV_KEPT_MOST : more);
}

/* Begins again without pairs.  Pairs above `worst` are not needed. */
void
gv_kept_reset(GvKept *kept, float worst)
{
	kept->count = 0;
	kept->worst = worst;
	kept->last = -1;
}

static inline int32_t
bin_of(const GvKept *kept, float score)
{
	float		place = (score - kept->least) * kept->scale;

	if (!(place > 0.0f))
		return 0;
	return place < GV_KEPT_BINS - 1 ? (int32_t) place : GV_KEPT_BINS - 1;
}

/*
 * Returns a number that is not below any score in bins 0 .. bin.  Such a score
 * has place < bin + 1.  The margins cover the two relative errors of 2^-24 in
 * place, and the errors of this function.
 */
static float
end_of(const GvKept *kept, int32_t bin)
{
	double		end;

	if (bin == GV_KEPT_BINS - 1 || kept->scale == 0.0f)
		return GV_SCORE_MAX;
	end = kept->least + (bin + 1.0) / kept->scale * (1.0 + 1e-6);
	end += fabs(end) * 1e-7 + fabs(kept->least) * 1e-14;
	return end < GV_SCORE_MAX ? (float) end : GV_SCORE_MAX;
}

/*
 * Lowers kept->worst, to reject all bins after the one that has the last of
 * the best pairs.
 */
static void
lower_worst(GvKept *kept)
{
	int32_t		last = kept->last;
	float		end;

	while (kept->nbest - kept->bins[last] >= kept->capacity)
		kept->nbest -= kept->bins[last--];
	if (last == kept->last)
		return;
	kept->last = last;
	end = end_of(kept, last);
	kept->worst = end < kept->worst ? end : kept->worst;
}

/* Removes pairs that are above kept->worst. */
static void
sweep(GvKept *kept)
{
	int32_t		n = 0;
	int32_t		i;

	for (i = 0; i < kept->count; i++)
	{
		float		score = kept->scores[i];

		kept->scores[n] = score;
		kept->ids[n] = kept->ids[i];
		n += score <= kept->worst;
	}
	kept->count = n;
}

/*
 * Removes pairs that are above kept->worst, and counts the others in new bins
 * that cover their range of scores.
 */
static void
count_anew(GvKept *kept)
{
	float		least = GV_SCORE_MAX;
	float		most = -GV_SCORE_MAX;
	double		range;
	int32_t		i;

	sweep(kept);
	for (i = 0; i < kept->count; i++)
	{
		least = kept->scores[i] < least ? kept->scores[i] : least;
		most = kept->scores[i] > most ? kept->scores[i] : most;
	}
	kept->least = least > -GV_SCORE_MAX ? least : -GV_SCORE_MAX;
	range = (double) most - kept->least;
	kept->scale = range > 1e-30 ? (float) (GV_KEPT_BINS / range) : 0.0f;
	for (i = 0; i < GV_KEPT_BINS; i++)
		kept->bins[i] = 0;
	for (i = 0; i < kept->count; i++)
		kept->bins[bin_of(kept, kept->scores[i])]++;
	kept->last = GV_KEPT_BINS - 1;
	kept->nbest = kept->count;
	kept->nadded = 0;
	lower_worst(kept);
}

/*
 * Counts pairs first .. count - 1.  Lowers kept->worst if the counts permit
 * it, and counts all pairs again if the bins are too wide.
 */
static void
count_more(GvKept *kept, int32_t first)
{
	int32_t		i;

	for (i = first; i < kept->count; i++)
	{
		int32_t		bin = bin_of(kept, kept->scores[i]);

		kept->bins[bin]++;
		kept->nbest += bin <= kept->last;
	}
	kept->nadded += kept->count - first;
	lower_worst(kept);
	if (kept->last < USED_BINS && kept->nadded > kept->capacity / 2)
		count_anew(kept);
}

/*
 * Keeps n <= GV_KEPT_MOST pairs with scores <= GV_SCORE_MAX.  If there is no
 * memory, because too many scores are alike, all pairs kept before move to
 * `best`.
 */
void
gv_keep(GvKept *kept, const float *scores, const uint64_t *ids, int32_t n,
		GvTopK *best)
{
	int32_t		first;
	int32_t		i;

	if (kept->allocated - kept->count < n)
		count_anew(kept);
	if (kept->allocated - kept->count < n)
		gv_kept_give(kept, best);
	first = kept->count;
	for (i = 0; i < n; i++)
	{
		kept->scores[kept->count] = scores[i];
		kept->ids[kept->count] = ids[i];
		kept->count += scores[i] <= kept->worst;
	}
	if (kept->last >= 0)
		count_more(kept, first);
	else if (kept->count >= kept->capacity)
		count_anew(kept);
}

/* Moves all pairs to `best`, and begins again. */
void
gv_kept_give(GvKept *kept, GvTopK *best)
{
	float		worst = kept->worst;
	int32_t		i;

	for (i = 0; i < kept->count; i++)
		if (kept->scores[i] <= worst)
			gv_topk_push(best, kept->scores[i], kept->ids[i]);
	if (best->count == best->capacity && best->scores[0] < worst)
		worst = best->scores[0];
	gv_kept_reset(kept, worst);
}
