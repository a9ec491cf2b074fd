/*
 * gv_words.h
 *		The nearest codewords of transposed vectors: one source for every level
 *		of instructions.
 *
 * The loops are over rows that do not depend on each other, and have no
 * branches.  So compilers use the instructions that a level has (-O3).  Each
 * level's file has its own copy, because functions cannot be shared between
 * levels.
 */
#ifndef GV_WORDS_H
#define GV_WORDS_H

#include "cpu/simd/kernels.h"

/*
 * Adds to dist [nrows] the squared differences of one dimension of the rows
 * from a codeword's.
 */
static inline void
gv_add_dimension(const float *restrict x /* [nrows] */ , int nrows,
				 float word, float *restrict dist)
{
	int			i;

	for (i = 0; i < nrows; i++)
	{
		float		diff = x[i] - word;

		dist[i] += diff * diff;
	}
}

/*
 * Adds to dist [GV_CODEWORDS][GV_CPU_WORD_ROWS] the squared distances of nrows
 * vectors from the codewords, over the first len of their dims dimensions.
 */
static inline void
gv_add_distances(const float *x /* [len][stride] */ , size_t stride,
				 int nrows, const float *words /* [GV_CODEWORDS][dims] */ ,
				 int32_t dims, int32_t len, float *dist)
{
	int			k;
	int32_t		d;

	for (k = 0; k < GV_CODEWORDS; k++)
		for (d = 0; d < len; d++)
			gv_add_dimension(x + d * stride, nrows,
							 words[(size_t) k * dims + d],
							 dist + k * GV_CPU_WORD_ROWS);
}

/*
 * Makes codeword k the best of each row for which it is nearer than the best
 * so far.
 */
static inline void
gv_keep_nearer(const float *restrict dist /* [nrows] */ , int nrows,
			   int32_t k, float *restrict best, int32_t *restrict code)
{
	int			i;

	for (i = 0; i < nrows; i++)
	{
		float		was = best[i];
		float		now = dist[i];
		int32_t		nearer = -(now < was);	/* a mask */

		code[i] = (code[i] & ~nearer) | (k & nearer);
		best[i] = now < was ? now : was;
	}
}

/*
 * Finds the nearest codewords, ties to the smaller number, and their
 * distances.
 */
static inline void
gv_nearest_words(const float *dist /* [GV_CODEWORDS][GV_CPU_WORD_ROWS] */ ,
				 int nrows, float *best /* [nrows] */ ,
				 int32_t *code /* [nrows] */ )
{
	int			i;
	int			k;

	for (i = 0; i < nrows; i++)
	{
		best[i] = dist[i];
		code[i] = 0;
	}
	for (k = 1; k < GV_CODEWORDS; k++)
		gv_keep_nearer(dist + k * GV_CPU_WORD_ROWS, nrows, k, best, code);
}

#endif							/* GV_WORDS_H */
