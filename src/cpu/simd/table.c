/*
 * table.c
 *		A query's look-up table and its filter.
 */
#include "cpu/simd/gv_kernels.h"

#define LEVEL

/* Entries [GV_CODEWORDS] of one sub-quantizer: "The score S". */
static inline void
find_entries(const float *restrict query /* [dims] */ ,
			 const float *restrict words /* [GV_CODEWORDS][dims] */ ,
			 int32_t dims, float weight, float *restrict entries)
{
	float		sums[GV_CODEWORDS] = {0};
	int32_t		d;
	int			k;

	for (d = 0; d < dims; d++)
		for (k = 0; k < GV_CODEWORDS; k++)
			sums[k] += query[d] * words[k * dims + d];
	for (k = 0; k < GV_CODEWORDS; k++)
		entries[k] = weight * sums[k];
}

/* The least and the most of a sub-quantizer's entries. */
static inline void
find_range(const float *restrict entries, float *least, float *most)
{
	float		low[GV_CODEWORDS];
	float		high[GV_CODEWORDS];
	int			half;
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
		low[k] = high[k] = entries[k];
	for (half = GV_CODEWORDS / 2; half > 0; half /= 2)
		for (k = 0; k < half; k++)
		{
			low[k] = low[k + half] < low[k] ? low[k + half] : low[k];
			high[k] = high[k + half] > high[k] ? high[k + half] : high[k];
		}
	*least = low[0];
	*most = high[0];
}

/* A sub-quantizer's bytes, twice. */
static inline void
put_bytes(const float *restrict entries, float least, float inverse,
		  uint8_t *restrict bytes)
{
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
	{
		int32_t		level = (int32_t) ((entries[k] - least) * inverse);

		level = level < GV_FILTER_LEVELS ? level : GV_FILTER_LEVELS;
		bytes[k] = bytes[k + GV_CODEWORDS] = (uint8_t) level;
	}
}

#include "cpu/simd/gv_table.h"

/* See gv_kernels.h. */
void
gv_portable_table(const GvModel *model, const float *query, float *table)
{
	make_table(model, query, table);
}

/* Make the filter of a table whose entries [m][GV_CODEWORDS] are there. */
void
gv_filter_make(float *table, int32_t m)
{
	make_filter(table, m);
}

/* See gv_table, and "The score S" in gv_engine.h. */
GvStatus
gv_cpu_table(const GvModel *model, const float *query /* [dims] */ ,
			 float *table /* [m][GV_CODEWORDS], and the filter */ )
{
	gv_kernels->table(model, query, table);
	return GV_OK;
}
