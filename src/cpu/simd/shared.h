/*
 * shared.h
 *		The functions that portable.c and the other levels have in common: the
 *		nearest codewords of many vectors, a query's look-up table and its
 *		filter, the choice among sums over refine records, and the table of
 *		kernels.
 *
 * Included at the end of portable.c and of body.h, because functions cannot be
 * shared between levels.  The including file defines LEVEL, which is the
 * attribute of its functions, KERNELS, which is the name of its table of
 * kernels, FILTERS, which is the value of the table's member `filters`, and
 * all functions that portable.c has.
 */
#include <math.h>

#include "cpu/simd/kernels.h"

/*
 * The following functions find the nearest codewords of transposed vectors.
 * Their loops are over rows that do not depend on each other, and have no
 * branches.  So compilers use the vector instructions that a level has (-O3).
 */
static inline LEVEL void
add_dimension(const float *restrict x /* [nrows] */ , int nrows,
			  float word, float *restrict dist /* [nrows] */ )
{
	int			i;

	for (i = 0; i < nrows; i++)
	{
		float		diff = x[i] - word;

		dist[i] += diff * diff;
	}
}

static LEVEL void
add_distances(const float *x, size_t stride, int nrows, const float *words,
			  int32_t dims, int32_t len, float *dist)
{
	int			k;
	int32_t		d;

	for (k = 0; k < GV_CODEWORDS; k++)
		for (d = 0; d < len; d++)
			add_dimension(x + d * stride, nrows, words[(size_t) k * dims + d],
						  dist + k * GV_CPU_WORD_ROWS);
}

/*
 * Makes codeword k the best codeword of each row that is nearer to it than to
 * the row's best codeword so far.
 */
static inline LEVEL void
keep_nearer(const float *restrict dist /* [nrows] */ , int nrows, int32_t k,
			float *restrict best, int32_t *restrict code)
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

static LEVEL void
nearest_words(const float *dist, int nrows, float *best, int32_t *code)
{
	int			i;
	int			k;

	for (i = 0; i < nrows; i++)
	{
		best[i] = dist[i];
		code[i] = 0;
	}
	for (k = 1; k < GV_CODEWORDS; k++)
		keep_nearer(dist + k * GV_CPU_WORD_ROWS, nrows, k, best, code);
}

/*
 * Makes the filter of a table, whose entries [m][GV_CODEWORDS] must have been
 * computed.
 */
static LEVEL void
make_filter(float *table, int32_t m)
{
	GvFilter   *filter = (GvFilter *) gv_filter_of(table, m);
	double		offset = 0.0;	/* sum of lo_j (see distance.c) */
	double		size = 0.0;		/* M (see distance.c) */
	float		range = 0.0f;
	float		least;
	float		most;
	int32_t		j;
	int			i;

	for (j = 0; j < m; j++)
	{
		find_range(table + (size_t) j * GV_CODEWORDS, &least, &most);
		offset += least;
		size += -least > most ? -least : most;
		range = most - least > range ? most - least : range;
	}
	filter->step = range / GV_FILTER_LEVELS;
	filter->lift = (float) (((m + 64) * size + fabs(offset)) *
							GV_FILTER_UNIT - offset);
	filter->usable = filter->step >= FLT_MIN && size < GV_FILTER_HUGE;
	if (!filter->usable)
		return;
	for (j = 0; j < m; j++)
	{
		const float *entries = table + (size_t) j * GV_CODEWORDS;

		find_range(entries, &least, &most);
		put_bytes(entries, least, 1.0f / filter->step,
				  filter->bytes + gv_filter_place(j));
	}
	for (; j % 4 != 0; j++)
		for (i = 0; i < 2 * GV_CODEWORDS; i++)
			filter->bytes[gv_filter_place(j) + i] = 0;
}

/* Makes a query's look-up table and its filter (see gv_table). */
static LEVEL void
make_table(const GvModel *model, const float *query, float *table)
{
	float		weight = model->metric == GV_IP ? -1.0f : -2.0f;
	int32_t		start = 0;
	int32_t		j;

	for (j = 0; j < model->m; j++)
	{
		int32_t		end = gv_sub_start(model, j + 1);
		const float *words = model->codebooks + (size_t) GV_CODEWORDS * start;

		find_entries(query + start, words, end - start, weight,
					 table + (size_t) j * GV_CODEWORDS);
		start = end;
	}
	make_filter(table, model->m);
}

/*
 * Calls sum_elements with constant arguments, so that compilers make a loop
 * for each kind of sum.
 */
static LEVEL void
record_sums(const float *q, const GvRefine *record,
			const uint16_t *half_vector, int32_t dims, float *sums,
			float *magnitudes)
{
	if (half_vector != NULL && magnitudes != NULL)
		sum_elements(q, NULL, half_vector, dims, true, sums, magnitudes);
	else if (half_vector != NULL)
		sum_elements(q, NULL, half_vector, dims, false, sums, NULL);
	else if (magnitudes != NULL)
		sum_elements(q, record, NULL, dims, true, sums, magnitudes);
	else
		sum_elements(q, record, NULL, dims, false, sums, NULL);
}

const GvKernels KERNELS = {
	.filters = FILTERS,
	.dots = dots,
	.sqdists = sqdists,
	.residual_products = residual_products,
	.dot64 = dot64,
	.sqdist64 = sqdist64,
	.multiply = multiply,
	.estimate = estimate,
	.within = within,
	.below = below,
	.add_distances = add_distances,
	.nearest_words = nearest_words,
	.nearest_word = nearest_word,
	.table = make_table,
	.sum_postings = sum_postings,
	.gather = gather,
	.filter = filter,
	.match = match,
	.record_sums = record_sums,
};
