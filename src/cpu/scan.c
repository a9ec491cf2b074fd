/*
 * scan.c
 *		The score S of every live copy of a list's blocks.
 *
 * Sums of SPAN copies stay in registers while a column of codes goes by; a
 * copy's table entries are added one by one in ascending sub-quantizer order
 * because S is defined so, and pairs of them must not be added first.
 */
#include "cpu/gv_cpu.h"

#define SPAN	8				/* copies summed at a time */

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

/* A block's copy i as a 48-bit row id. */
static inline uint64_t
row_id(const GvBlock *block, int i)
{
	const uint16_t *w = block->rowids + 3 * i;

	return (uint64_t) w[0] << 32 | (uint64_t) w[1] << 16 | w[2];
}

/* See gv_scan. */
GvStatus
gv_cpu_scan(const GvModel *model, const float *table, float base,
			const GvBlock *blocks, int32_t nblocks, GvTopK *best)
{
	int32_t		b;
	int			i;

	for (b = 0; b < nblocks; b++)
	{
		const GvBlock *block = &blocks[b];
		float		sums[GV_BLOCK];

		if (block->live == 0)
			continue;
		for (i = 0; i < GV_BLOCK; i += SPAN)
			sum_span(table, model->m, block->codes + i, sums + i);
		for (i = 0; i < GV_BLOCK; i++)
		{
			float		score;

			if ((block->live >> i & 1) == 0)
				continue;
			score = gv_score((base + block->t[i]) + sums[i]);
			if (best->count < best->capacity || score <= best->scores[0])
				gv_topk_push(best, score, row_id(block, i));
		}
	}
	return GV_OK;
}
