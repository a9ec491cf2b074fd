/*
 * scan.c
 *		The score S of the live copies of a list's blocks.
 *
 * A copy's table entries are added one by one in ascending sub-quantizer order
 * because S is defined so, and pairs of them must not be added first.
 *
 * Once the best are many enough to turn others away, the filter (filter.c)
 * finds most of the copies that they would.  The few that it lets through are
 * gathered in a block of their own and scored together.
 */
#include "cpu/gv_kernels.h"

#define SPAN		8			/* copies summed at a time */

/* A block of which more is left than this is scored as it is. */
#define MANY		4

/* Longer codes are not gathered. */
#define MOST_BYTES	512

/* Copies of any blocks of the list, gathered. */
typedef struct Gathered
{
	int			n;
	float		bases[GV_BLOCK];	/* base + T */
	uint64_t	ids[GV_BLOCK];
	uint8_t		codes[MOST_BYTES * GV_BLOCK];
} Gathered;

/* sums[i] of SPAN copies, whose codes are `codes`[..][first + i]. */
static void
sum_span(const float *restrict table, int32_t m,
		 const uint8_t *restrict codes, float *restrict sums)
{
	float		acc[SPAN] = {0};
	int32_t		p;
	int			i;

	for (p = 0; p < m / 2; p++)
	{
		const float *low = table + (size_t) p * 2 * GV_CODEWORDS;
		const float *high = low + GV_CODEWORDS;
		const uint8_t *column = codes + (size_t) p * GV_BLOCK;

		for (i = 0; i < SPAN; i++)
		{
			acc[i] += low[column[i] & 15];
			acc[i] += high[column[i] >> 4];
		}
	}
	if (m % 2 != 0)
	{
		const float *low = table + (size_t) p * 2 * GV_CODEWORDS;

		for (i = 0; i < SPAN; i++)
			acc[i] += low[codes[(size_t) p * GV_BLOCK + i] & 15];
	}
	for (i = 0; i < SPAN; i++)
		sums[i] = acc[i];
}

/* See gv_kernels.h. */
void
gv_portable_sum_block(const float *table, int32_t m, const uint8_t *codes,
					  float *sums)
{
	int			i;

	for (i = 0; i < GV_BLOCK; i += SPAN)
		sum_span(table, m, codes + i, sums + i);
}

/* A block's copy i as a 48-bit row id. */
static inline uint64_t
row_id(const GvBlock *block, int i)
{
	const uint16_t *w = block->rowids + 3 * i;

	return (uint64_t) w[0] << 32 | (uint64_t) w[1] << 16 | w[2];
}

static inline void
offer(GvTopK *best, float score, uint64_t id)
{
	if (best->count < best->capacity || score <= best->scores[0])
		gv_topk_push(best, score, id);
}

/* Are there more bits than MANY? */
static inline bool
has_many(uint32_t bits)
{
	int			i;

	for (i = 0; i < MANY; i++)
		bits &= bits - 1;
	return bits != 0;
}

/* Score the copies of a block that `wanted` has a bit for. */
static void
score_block(const float *table, int32_t m, float base, const GvBlock *block,
			uint32_t wanted, GvTopK *best)
{
	float		sums[GV_BLOCK];

	gv_kernels->sum_block(table, m, block->codes, sums);
	for (; wanted != 0; wanted &= wanted - 1)
	{
		int			i = __builtin_ctz(wanted);

		offer(best, gv_score((base + block->t[i]) + sums[i]),
			  row_id(block, i));
	}
}

/* Score the copies gathered. */
static void
score_gathered(const float *table, int32_t m, Gathered *gathered,
			   GvTopK *best)
{
	float		sums[GV_BLOCK];
	int			i;

	if (gathered->n == 0)
		return;
	gv_kernels->sum_block(table, m, gathered->codes, sums);
	for (i = 0; i < gathered->n; i++)
		offer(best, gv_score(gathered->bases[i] + sums[i]), gathered->ids[i]);
	gathered->n = 0;
}

/* Gather the copies of a block that `wanted` has a bit for. */
static void
gather(int32_t code_bytes, float base, const GvBlock *block, uint32_t wanted,
	   Gathered *gathered)
{
	for (; wanted != 0; wanted &= wanted - 1)
	{
		int			i = __builtin_ctz(wanted);
		int			n = gathered->n++;
		int32_t		p;

		gathered->bases[n] = base + block->t[i];
		gathered->ids[n] = row_id(block, i);
		for (p = 0; p < code_bytes; p++)
			gathered->codes[p * GV_BLOCK + n] =
				block->codes[p * GV_BLOCK + i];
	}
}

/* See gv_scan. */
GvStatus
gv_cpu_scan(const GvModel *model, const float *table, float base,
			const GvBlock *blocks, int32_t nblocks, GvTopK *best)
{
	const GvFilter *filter = gv_filter_of(table, model->m);
	int32_t		code_bytes = gv_code_bytes(model->m);
	bool		gathers = nblocks > 1 && code_bytes <= MOST_BYTES;
	Gathered	gathered;
	GvCut		cut;
	int32_t		b;

	gathered.n = 0;
	for (b = 0; b < nblocks; b++)
	{
		const GvBlock *block = &blocks[b];
		uint32_t	wanted = block->live;

		if (wanted == 0)
			continue;
		if (gv_kernels->filters && gv_filter_cut(filter, base, best, &cut))
			wanted &= gv_kernels->filter(filter->bytes, model->m,
										 block->codes, block->t, &cut);
		if (wanted == 0)
			continue;
		if (!gathers || has_many(wanted))
			score_block(table, model->m, base, block, wanted, best);
		else
			gather(code_bytes, base, block, wanted, &gathered);
		if (gathered.n > GV_BLOCK - MANY)
			score_gathered(table, model->m, &gathered, best);
	}
	score_gathered(table, model->m, &gathered, best);
	return GV_OK;
}
