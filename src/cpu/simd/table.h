/*
 * table.h
 *		A query's look-up table and its filter, made by functions of a level
 *		for one sub-quantizer.
 *
 * Included by portable.c and by body.h, because functions cannot be shared
 * between levels.  The including file defines LEVEL, the attribute of its
 * functions, and find_entries, find_range and put_bytes, which are described
 * in portable.c.
 */
#ifndef GV_TABLE_H
#define GV_TABLE_H

#include <math.h>

#include "cpu/simd/kernels.h"

/*
 * Makes the filter of a table whose entries [m][GV_CODEWORDS] are there
 * already.
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

#endif							/* GV_TABLE_H */
