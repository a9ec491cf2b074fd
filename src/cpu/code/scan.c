/*
 * scan.c
 *		The score S of the live postings of lists' blocks.
 *
 * A condition on keys is tested before anything else of a block is read.  Once
 * there is a worst score to beat, the filter (simd/table.c) rejects most of
 * the postings that do not beat it.  The rest, from all lists, are gathered
 * side by side until they fill registers, and are then scored together.  Their
 * pairs are kept without an order (keep.c) until the scan is finished.
 *
 * Postings of an optimistic read are buffered behind those that count.  If
 * postings are gathered, they are not yet scored there; else they are.  They
 * are dropped if their blocks turn out to have changed.  No byte of a block is
 * ever used to compute an address.
 */
#include "cpu/code/gv_scan.h"
#include "engine/gv_call.h"

/*
 * Number of postings that are gathered before they are scored, at least, even
 * if fewer pairs are needed.
 */
#define LEAST		16

/* Codes with more bytes than this are not gathered. */
#define MOST_BYTES	512

/* The scratch of a GvScan.  Postings wait in it to be scored. */
typedef struct Waiting
{
	GvKept		kept;
	const GvFilter *filter;
	bool		cuts;			/* the filter is used, and rejects postings
								 * above `worst` */
	float		worst;
	GvCut		cut;
	bool		gathers;		/* false: each block's postings are scored at
								 * once */
	int32_t		enough;			/* postings are scored when this many are
								 * gathered */
	int32_t		n;				/* postings that wait */
	int32_t		nsure;			/* postings that waited before the optimistic
								 * read */
	int64_t		sure_matched;	/* GvScan.matched before the optimistic read */
	float		bases[GV_KEPT_MOST];	/* base + T of each posting, or S if
										 * it is scored */
	uint64_t	ids[GV_KEPT_MOST];
	uint8_t    *codes;			/* [code_bytes][GV_GATHERED_STRIDE] */
} Waiting;

/* Returns the row id of a block's posting i, which has 48 bits. */
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
 * Lays out the arrays of a Waiting in memory at `start`, and returns their
 * size.  If `start` is NULL, only computes the size.
 */
static size_t
lay_out(int32_t m, int32_t capacity, char *start)
{
	size_t		code_bytes = (size_t) gv_code_bytes(m);
	int32_t		allocated = gv_kept_allocation(capacity);
	size_t		next = 0;
	size_t		codes;
	size_t		scores;
	size_t		ids;

	(void) gv_carve(&next, sizeof(Waiting));
	codes = gv_carve(&next, code_bytes > MOST_BYTES ? 0 :
					 code_bytes * GV_GATHERED_STRIDE);
	scores = gv_carve(&next, sizeof(float) * (size_t) allocated);
	ids = gv_carve(&next, sizeof(uint64_t) * (size_t) allocated);
	if (start != NULL)
	{
		Waiting    *waiting = (Waiting *) start;

		waiting->codes = (uint8_t *) start + codes;
		waiting->kept.scores = (float *) (start + scores);
		waiting->kept.ids = (uint64_t *) (start + ids);
		waiting->kept.capacity = capacity;
		waiting->kept.allocated = allocated;
	}
	return next;
}

/* Returns 0 for invalid arguments. */
size_t
gv_scan_scratch(int32_t m, int32_t capacity)
{
	if (!gv_valid_dims(m) || capacity < 1)
		return 0;
	return lay_out(m, capacity, NULL);
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
			(scan->condition == NULL || gv_condition_fits(scan->condition)));
	scan->matched = 0;
	waiting = scan->scratch;
	(void) lay_out(scan->model->m, scan->best->capacity, scan->scratch);
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

/* Sets the filter to reject postings above the worst score that is kept. */
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

/* Gathers those postings of a block whose bit is set in `wanted`. */
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
 * Scores those postings of a block whose bit is set in `wanted`, into scores
 * and ids [GV_BLOCK].  Returns their number.
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
 * Returns the set of a block's live postings that satisfy the condition, and
 * adds their number to scan->matched.
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
 * Offers postings that may have been offered before, to a GvTopK that is
 * `unique`.
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

/* Prefetches codes [code_bytes][GV_BLOCK]. */
static void
fetch_codes(const uint8_t *codes, int32_t code_bytes)
{
	int32_t		bytes = code_bytes * GV_BLOCK;
	int32_t		at;

	for (at = 0; at < bytes; at += GV_FETCHED)
		gv_fetch(codes + at);
}

/*
 * Adds the live postings of a block that satisfy the condition to those that
 * wait, except the ones that the filter rejects.  The filter prefetches the
 * codes of a later block.  If there is none, it prefetches the codes that it
 * reads itself, which does no harm.
 */
static void
take_block(GvScan *scan, Waiting *waiting, float base, const GvBlock *block)
{
	uint32_t	wanted = find_matching(scan, block);
	const uint8_t *ahead = block->ahead;

	if (wanted != 0 && waiting->cuts)
		wanted &= gv_kernels->filter(waiting->filter->bytes, scan->model->m,
									 block->codes, block->t, &waiting->cut,
									 ahead != NULL ? ahead : block->codes);
	else if (ahead != NULL)
		fetch_codes(ahead, gv_code_bytes(scan->model->m));
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
valid_keys(const void *keys)
{
	return keys != NULL && (uintptr_t) keys % sizeof(uint64_t) == 0;
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
			 (scan->condition != NULL && !valid_keys(blocks[b].keys))))
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
