/*
 * scan.c
 *		Computes the score S of the live postings in blocks of lists, and the
 *		scores of lists for a query.
 *
 * A condition on keys is tested before anything else of a block is read.  Once
 * there is a worst score to beat, the filter (simd/distance.c) rejects most of
 * the postings that do not beat it.  The postings that remain, from all lists,
 * are gathered side by side until they fill registers, and are then scored
 * together.  A scan keeps the pairs of their scores and row ids without an
 * order until the scan is finished.
 *
 * Postings of an optimistic read are appended to the buffer, behind the
 * postings that count in any case, and are dropped if their blocks turn out to
 * have changed.  If the scan gathers postings, they wait there without a
 * score; otherwise they are scored before they are appended.  No byte of a
 * block is ever used to compute an address.
 */
#include <math.h>

#include "cpu/pq/scan.h"
#include "engine/gv_call.h"

#define RUN		64				/* centroids compared at a time */

GvStatus
gv_coarse(const GvModel *model, const float *query,
		  const float *centroids /* [n][dims] */ , int32_t n,
		  uint64_t first_id, GvTopK *best)
{
	float		scores[RUN];
	bool		product;
	int32_t		dims;
	int32_t		done;
	int32_t		i;

	GV_CALL(gv_engine_calls, gv_valid_model(model) && query != NULL &&
			centroids != NULL && n >= 1 && gv_valid_topk(best));
	dims = model->dims;
	product = model->metric == GV_IP;
	for (done = 0; done < n; done += RUN)
	{
		const float *some = centroids + (size_t) done * dims;
		int32_t		count = gv_at_most(n - done, RUN);

		if (product)
			gv_kernels->dots(query, some, count, dims, scores);
		else
			gv_kernels->sqdists(query, some, count, dims, scores);
		for (i = 0; i < count; i++)
			gv_topk_push(best, gv_score(product ? -scores[i] : scores[i]),
						 first_id + (uint64_t) (done + i));
	}
	return GV_OK;
}

/* ----
 * Conditions on keys (gv_keys.h defines their meaning).
 *
 * A block's heads are tested first, because they are only a few words.  The
 * block's abbreviated keys are tested only if the heads show that a posting
 * may match.  The tests end as soon as no posting is left.
 */

/* Returns whether an abbreviated key fits the key's width. */
static bool
fits(uint64_t abbrev, int width)
{
	return width == 8 || abbrev >> 8 * width == 0;
}

bool
gv_form_valid(const GvKeyForm *form)
{
	int32_t		k;

	if (form == NULL || form->nkeys < 0 || form->nkeys > GV_MAX_KEYS)
		return false;
	for (k = 0; k < form->nkeys; k++)
	{
		int			width = form->width[k];

		if (form->kind[k] < GV_KEY_ORDERED ||
			form->kind[k] > GV_KEY_SIGNATURE ||
			(width != 1 && width != 2 && width != 4 && width != 8))
			return false;
	}
	for (; k <= GV_MAX_KEYS; k++)
		if (form->kind[k] != 0 || form->width[k] != 0)
			return false;
	return true;
}

/* Returns whether a test is valid for a key of this kind and width. */
static bool
valid_test(const GvKeyTest *test, GvKeyKind kind, int width)
{
	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return fits(test->low, width) && fits(test->high, width) &&
				(kind == GV_KEY_ORDERED ||
				 (kind == GV_KEY_HASH && test->low >= test->high));
		case GV_TEST_SET:
			return kind != GV_KEY_SIGNATURE && test->nvalues >= 0 &&
				(test->nvalues == 0 ||
				 (test->values != NULL &&
				  fits(test->values[test->nvalues - 1], width)));
		case GV_TEST_ANY_BIT:
		case GV_TEST_ALL_BITS:
			return kind == GV_KEY_SIGNATURE && fits(test->low, width);
		case GV_TEST_NULL:
		case GV_TEST_NOT_NULL:
			return true;
	}
	return false;
}

/*
 * Returns whether a condition is valid, except that the order of values in
 * sets is not checked: that takes time, and a query may begin a scan for each
 * list.
 */
static bool
condition_fits(const GvCondition *condition)
{
	int32_t		i;

	if (condition == NULL || !gv_form_valid(&condition->form) ||
		condition->ntests < 0 || condition->ntests > GV_MAX_TESTS ||
		(condition->tests == NULL && condition->ntests > 0))
		return false;
	for (i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];

		if (test->key < 0 || test->key >= condition->form.nkeys ||
			!valid_test(test, (GvKeyKind) condition->form.kind[test->key],
						condition->form.width[test->key]))
			return false;
	}
	return true;
}

bool
gv_condition_valid(const GvCondition *condition)
{
	int32_t		i;
	int32_t		v;

	if (!condition_fits(condition))
		return false;
	for (i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];

		for (v = 1; test->kind == GV_TEST_SET && v < test->nvalues; v++)
			if (test->values[v - 1] >= test->values[v])
				return false;
	}
	return true;
}

/*
 * Returns whether any abbreviated key from head->low to head->high, of an
 * ordered key, may satisfy a test.  The caller checks that head->low <=
 * head->high.
 */
static bool
may_match_ordered(const GvKeyTest *test, const GvKeyHead *head)
{
	int32_t		low = 0;
	int32_t		high = test->nvalues;

	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return test->low <= test->high && test->low <= head->high &&
				test->high >= head->low;
		case GV_TEST_SET:
			/* find the first value that is not below head->low */
			while (low < high)
			{
				int32_t		middle = low + (high - low) / 2;

				if (test->values[middle] < head->low)
					low = middle + 1;
				else
					high = middle;
			}
			return low < test->nvalues && test->values[low] <= head->high;
		default:
			return true;
	}
}

/*
 * Returns whether any of a block's hashes or signatures may satisfy a test.
 * head->low has the bits of all of them (GvKeyHead).
 */
static bool
may_match_bits(const GvKeyTest *test, const GvKeyHead *head)
{
	int32_t		v;

	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return test->low == test->high &&
				(head->low >> test->low % 64 & 1) != 0;
		case GV_TEST_SET:
			for (v = 0; v < test->nvalues; v++)
				if ((head->low >> test->values[v] % 64 & 1) != 0)
					return true;
			return false;
		case GV_TEST_ANY_BIT:
			return (head->low & test->low) != 0;
		case GV_TEST_ALL_BITS:
			return (head->low & test->low) == test->low;
		default:
			return true;
	}
}

bool
gv_may_match(const GvCondition *condition, const void *keys)
{
	const GvKeyHead *heads = keys;
	int32_t		i;

	for (i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];
		const GvKeyHead *head = &heads[test->key];
		bool		ordered = condition->form.kind[test->key] == GV_KEY_ORDERED;

		if (test->kind == GV_TEST_NULL ? head->nulls == 0 :
			head->nulls == UINT32_MAX ||
			(ordered ? head->low > head->high ||
			 !may_match_ordered(test, head) : !may_match_bits(test, head)))
			return false;
	}
	return true;
}

uint32_t
gv_match(const GvCondition *condition, const void *keys)
{
	const GvKeyForm *form = &condition->form;
	const GvKeyHead *heads = keys;
	uint32_t	matching = UINT32_MAX;
	int32_t		i;

	for (i = 0; i < condition->ntests && matching != 0; i++)
	{
		const GvKeyTest *test = &condition->tests[i];
		uint32_t	nulls = heads[test->key].nulls;

		matching &= test->kind == GV_TEST_NULL ? nulls : ~nulls;
		if (matching != 0 && test->kind < GV_TEST_NULL)
			matching &= gv_kernels->match(test, form->width[test->key],
										  (const char *) keys +
										  gv_keys_at(form, test->key));
	}
	return matching;
}

/* ----
 * Keeps the best of the pairs that a scan finds, without an order.
 *
 * A heap needs a dozen comparisons for each pair that enters it, and no
 * processor predicts the outcome of these comparisons.  Here a pair is
 * appended to an array, and counted in a bin, which is a range of scores.  The
 * counts show which bin has the last pair that is needed.  So pairs above that
 * bin are rejected at once, and the kept pairs are filtered again when the
 * memory is full.  In the end a few more pairs than needed are left, and a
 * heap chooses among them.
 *
 * A score's bin is computed so that a greater score is never in a smaller bin,
 * whatever the rounding.
 */

/*
 * If all of the best pairs are in bins below this one, the bins are too wide.
 */
#define USED_BINS	(GV_KEPT_BINS / 16)

/*
 * Returns the number of pairs for which to allocate memory, if the best
 * `capacity` pairs are needed.
 */
int32_t
gv_kept_allocation(int32_t capacity)
{
	int32_t		more = INT32_MAX - capacity;

	return capacity + (capacity < more - 2 * GV_KEPT_MOST ?
					   capacity + 2 * GV_KEPT_MOST : more);
}

/*
 * Removes all pairs.  From then on, pairs with a score above `worst` are
 * rejected.
 */
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
 * Returns a number that is not below any score in bins 0 .. bin.  For these
 * scores, `place` in bin_of is less than bin + 1.  The margins cover the two
 * relative errors of 2^-24 in `place`, and the errors of this function.
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
 * Lowers kept->worst, so that pairs in bins above the bin of the last of the
 * best pairs are rejected.
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

/*
 * Removes the pairs that are above kept->worst, and counts the other pairs in
 * new bins, which cover the range of their scores.
 */
static void
count_anew(GvKept *kept)
{
	float		least = GV_SCORE_MAX;
	float		most = -GV_SCORE_MAX;
	double		range;
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
 * Adds pairs first .. kept->count - 1 to the counts of the bins.  Lowers
 * kept->worst if the counts permit it, and counts all pairs again if the bins
 * are too wide.
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
 * Adds n <= GV_KEPT_MOST pairs with scores <= GV_SCORE_MAX to `kept`.  If
 * there is no memory for them, because too many scores are alike, first moves
 * all pairs in `kept` to `best`.
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

/* ---- scans ---- */

/*
 * Minimum number of postings that are gathered before they are scored, even if
 * fewer pairs are needed.
 */
#define LEAST		16

/* Codes with more bytes than this are not gathered. */
#define MOST_BYTES	512

/*
 * The scratch of a GvScan: the pairs that are kept, and a buffer of postings
 * that wait to be scored.
 */
typedef struct Waiting
{
	GvKept		kept;
	const GvFilter *filter;
	bool		cuts;			/* the filter is used, and rejects postings
								 * above `worst` */
	float		worst;
	GvCut		cut;
	bool		gathers;		/* if false, the postings of each block are
								 * scored at once */
	int32_t		enough;			/* postings are scored when this many are
								 * gathered */
	int32_t		n;				/* postings that wait */
	int32_t		nsure;			/* postings that waited before the optimistic
								 * read */
	int64_t		sure_matched;	/* GvScan.matched before the optimistic read */
	float		bases[GV_KEPT_MOST];	/* base + T of each posting or, if the
										 * posting has been scored, S */
	uint64_t	ids[GV_KEPT_MOST];
	uint8_t    *codes;			/* [code_bytes][GV_GATHERED_STRIDE] */
} Waiting;

/* Returns the row id, which has 48 bits, of posting i of a block. */
static inline uint64_t
row_id(const GvBlock *block, int i)
{
	const uint16_t *w;

	if (block->rowids == NULL)
		return block->first_id + (uint64_t) i;
	w = block->rowids + 3 * i;
	return (uint64_t) w[0] << 32 | (uint64_t) w[1] << 16 | w[2];
}

/*
 * Lays out the scratch, which has a Waiting and its arrays, and returns the
 * size of the scratch.
 */
static size_t
lay_out(Waiting *waiting, int32_t m, int32_t capacity, char *scratch)
{
	size_t		code_bytes = (size_t) gv_code_bytes(m);
	size_t		allocated = (size_t) gv_kept_allocation(capacity);
	size_t		next = 0;

	(void) gv_carve(scratch, &next, sizeof(Waiting));
	waiting->codes = gv_carve(scratch, &next, code_bytes > MOST_BYTES ? 0 :
							  code_bytes * GV_GATHERED_STRIDE);
	waiting->kept.scores = gv_carve(scratch, &next,
									sizeof(float) * allocated);
	waiting->kept.ids = gv_carve(scratch, &next,
								 sizeof(uint64_t) * allocated);
	waiting->kept.capacity = capacity;
	waiting->kept.allocated = (int32_t) allocated;
	return next;
}

/* Returns 0 for invalid arguments. */
size_t
gv_scan_scratch(int32_t m, int32_t capacity)
{
	Waiting		waiting;

	if (!gv_valid_dims(m) || capacity < 1)
		return 0;
	return lay_out(&waiting, m, capacity, NULL);
}

static bool
valid_scan(const GvScan *scan)
{
	return scan != NULL && gv_valid_model(scan->model) &&
		scan->table != NULL && gv_valid_topk(scan->best) &&
		gv_valid_scratch(scan->scratch);
}

GvStatus
gv_scan_begin(GvScan *scan)
{
	Waiting    *waiting;

	GV_CALL(gv_engine_calls, valid_scan(scan) &&
			(scan->condition == NULL || condition_fits(scan->condition)));
	scan->matched = 0;
	waiting = scan->scratch;
	(void) lay_out(waiting, scan->model->m, scan->best->capacity, scan->scratch);
	gv_kept_reset(&waiting->kept, GV_SCORE_MAX);
	waiting->filter = gv_filter_of(scan->table, scan->model->m);
	waiting->cuts = false;
	waiting->worst = GV_SCORE_MAX;
	waiting->enough = scan->best->capacity < LEAST ? LEAST :
		scan->best->capacity < GV_ENOUGH ? scan->best->capacity : GV_ENOUGH;
	waiting->gathers = gv_kernels->filters &&
		gv_code_bytes(scan->model->m) <= MOST_BYTES;
	waiting->n = 0;
	return GV_OK;
}

/*
 * Makes the filter reject postings above the worst score that is still useful.
 */
static void
renew_cut(Waiting *waiting)
{
	if (waiting->worst == waiting->kept.worst)
		return;
	waiting->worst = waiting->kept.worst;
	waiting->cuts = gv_kernels->filters &&
		gv_filter_cut(waiting->filter, waiting->worst, &waiting->cut);
}

/* Scores the postings that wait, and keeps their pairs. */
static void
score_waiting(const GvScan *scan, Waiting *waiting)
{
	float		sums[GV_KEPT_MOST];
	const float *scores = sums;
	int			i;

	if (waiting->n == 0)
		return;
	if (waiting->gathers)
	{
		gv_kernels->sum_postings(scan->table, scan->model->m, waiting->codes,
								 GV_GATHERED_STRIDE, waiting->n, sums);
		for (i = 0; i < waiting->n; i++)
			sums[i] = gv_score(waiting->bases[i] + sums[i]);
	}
	else
		scores = waiting->bases;
	gv_keep(&waiting->kept, scores, waiting->ids, waiting->n, scan->best);
	waiting->n = 0;
	renew_cut(waiting);
}

/*
 * Appends those postings of a block whose bit is set in `wanted` to the
 * gathered postings.
 */
static void
gather(const GvScan *scan, Waiting *waiting, float base, const GvBlock *block,
	   uint32_t wanted)
{
	gv_kernels->gather(block->codes, gv_code_bytes(scan->model->m), wanted,
					   waiting->codes + waiting->n);
	for (; wanted != 0; wanted &= wanted - 1)
	{
		int			i = __builtin_ctz(wanted);
		int			n = waiting->n++;

		waiting->bases[n] = base + block->t[i];
		waiting->ids[n] = row_id(block, i);
	}
}

/*
 * Computes the scores of those postings of a block whose bit is set in
 * `wanted`.  Stores them in scores [GV_BLOCK], and the row ids in ids
 * [GV_BLOCK].  Returns the number of these postings.
 */
static int32_t
score_block(const GvScan *scan, float base, const GvBlock *block,
			uint32_t wanted, float *scores, uint64_t *ids)
{
	float		sums[GV_BLOCK];
	int32_t		n = 0;

	gv_kernels->sum_postings(scan->table, scan->model->m, block->codes,
							 GV_BLOCK, GV_BLOCK, sums);
	for (; wanted != 0; wanted &= wanted - 1)
	{
		int			i = __builtin_ctz(wanted);

		scores[n] = gv_score((base + block->t[i]) + sums[i]);
		ids[n++] = row_id(block, i);
	}
	return n;
}

/*
 * Returns a bit for each posting of a block, which is set if the posting is
 * live and satisfies the condition.  Adds the number of these postings to
 * scan->matched.
 */
static inline uint32_t
find_matching(GvScan *scan, const GvBlock *block)
{
	const GvCondition *condition = scan->condition;
	uint32_t	matching = block->live;

	if (condition != NULL && matching != 0)
		matching &= gv_may_match(condition, block->keys) ?
			gv_match(condition, block->keys) : 0;
	scan->matched += __builtin_popcount(matching);
	return matching;
}

/*
 * Offers the postings of blocks to scan->best, which is `unique`, because they
 * may have been offered before.
 */
static void
scan_again(GvScan *scan, float base, const GvBlock *blocks, int32_t nblocks)
{
	float		scores[GV_BLOCK];
	uint64_t	ids[GV_BLOCK];
	int32_t		b;
	int32_t		n;

	for (b = 0; b < nblocks; b++)
	{
		uint32_t	wanted = find_matching(scan, &blocks[b]);

		if (wanted == 0)
			continue;
		for (n = score_block(scan, base, &blocks[b], wanted, scores, ids);
			 n > 0; n--)
			gv_topk_push(scan->best, scores[n - 1], ids[n - 1]);
	}
}

/*
 * Appends those live postings of a block that satisfy the condition to the
 * postings that wait, except postings that the filter rejects.  The filter
 * prefetches the codes of a later block.  If there is no later block, it
 * prefetches the codes that it is about to read, which does no harm.
 */
static void
take_block(GvScan *scan, Waiting *waiting, float base, const GvBlock *block)
{
	uint32_t	wanted = find_matching(scan, block);
	const uint8_t *ahead = block->ahead;
	int32_t		bytes = gv_code_bytes(scan->model->m) * GV_BLOCK;
	int32_t		at;

	if (wanted != 0 && waiting->cuts)
		wanted &= gv_kernels->filter(waiting->filter->bytes, scan->model->m,
									 block->codes, block->t, &waiting->cut,
									 ahead != NULL ? ahead : block->codes);
	else if (ahead != NULL)
		for (at = 0; at < bytes; at += GV_FETCHED)
			gv_fetch(ahead + at);
	if (wanted == 0)
		return;
	if (waiting->gathers)
		gather(scan, waiting, base, block, wanted);
	else
		waiting->n += score_block(scan, base, block, wanted,
								  waiting->bases + waiting->n,
								  waiting->ids + waiting->n);
}

/* Scores the postings that wait if there are enough of them. */
static inline void
score_enough(const GvScan *scan, Waiting *waiting)
{
	if (waiting->n >= waiting->enough || !waiting->gathers)
		score_waiting(scan, waiting);
}

static bool
valid_blocks(const GvScan *scan, const GvBlock *blocks, int32_t nblocks)
{
	int32_t		b;

	if (nblocks < 0 || (blocks == NULL && nblocks > 0))
		return false;
	for (b = 0; b < nblocks; b++)
		if (blocks[b].live != 0 &&
			(blocks[b].codes == NULL || blocks[b].t == NULL ||
			 (scan->condition != NULL &&
			  (blocks[b].keys == NULL ||
			   (uintptr_t) blocks[b].keys % sizeof(uint64_t) != 0))))
			return false;
	return true;
}

/* Scores the postings that wait, and moves all pairs to scan->best. */
static void
finish(const GvScan *scan)
{
	Waiting    *waiting = scan->scratch;

	score_waiting(scan, waiting);
	gv_kept_give(&waiting->kept, scan->best);
	renew_cut(waiting);
}

/* Prepares for blocks of a list with this base. */
static void
begin_blocks(const GvScan *scan, Waiting *waiting, float base)
{
	if (scan->reach < waiting->kept.worst)
		waiting->kept.worst = scan->reach;
	renew_cut(waiting);
	waiting->cut.base = base;
}

GvStatus
gv_scan(GvScan *scan, float base, const GvBlock *blocks, int32_t nblocks)
{
	Waiting    *waiting;
	int32_t		b;

	GV_CALL(gv_engine_calls, valid_scan(scan) &&
			valid_blocks(scan, blocks, nblocks));
	waiting = scan->scratch;
	if (scan->best->unique)
	{
		finish(scan);
		scan_again(scan, base, blocks, nblocks);
		return GV_OK;
	}
	begin_blocks(scan, waiting, base);
	for (b = 0; b < nblocks; b++)
	{
		take_block(scan, waiting, base, &blocks[b]);
		score_enough(scan, waiting);
	}
	return GV_OK;
}

GvStatus
gv_scan_optimistic(GvScan *scan, float base, const GvBlock *blocks,
				   int32_t nblocks)
{
	Waiting    *waiting;
	int32_t		b;

	GV_CALL(gv_engine_calls, valid_scan(scan) && !scan->best->unique &&
			nblocks <= GV_OPTIMISTIC_BLOCKS &&
			valid_blocks(scan, blocks, nblocks));
	waiting = scan->scratch;
	waiting->nsure = waiting->n;
	waiting->sure_matched = scan->matched;
	begin_blocks(scan, waiting, base);
	for (b = 0; b < nblocks; b++)
		take_block(scan, waiting, base, &blocks[b]);
	return GV_OK;
}

GvStatus
gv_scan_commit(GvScan *scan, bool valid)
{
	Waiting    *waiting;

	GV_CALL(gv_engine_calls, valid_scan(scan));
	waiting = scan->scratch;
	if (valid)
		score_enough(scan, waiting);
	else
	{
		waiting->n = waiting->nsure;
		scan->matched = waiting->sure_matched;
	}
	return GV_OK;
}

GvStatus
gv_scan_finish(GvScan *scan)
{
	GV_CALL(gv_engine_calls, valid_scan(scan));
	finish(scan);
	return GV_OK;
}
