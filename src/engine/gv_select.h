/*
 * gv_select.h
 *		The k smallest of each row of a matrix, and quantiles of an array.
 *
 * The conventions of gv_engine.h hold: arrays that the caller brings, scratch
 * aligned to 64 bytes, a status, a GvStop polled at least every 100 ms, the
 * same answer from every method and every engine.
 *
 * The order
 *	Values ascend; equal ones follow by position.  NaN comes last and equals
 *	NaN, whatever its sign and payload; -0 equals 0.  Values are returned by
 *	their key alone: NaN as the positive quiet NaN, -0 as 0, all others as they
 *	were.
 *
 * An item is gv_select_key(value) << 32 | position.  As a position occurs once
 * in a row, no two items are equal, and the order of items is the order above.
 * So methods need to know nothing of ties: a pivot or splitter taken from the
 * items has items on both sides, equal values spread over buckets as others
 * do, and exactly k - 1 items are below the k-th, which fit their memory.
 *
 * Methods, n = columns, times a row
 *	warp	one pass behind a threshold: n + k log(n / k) steps where the row
 *			is in random order, six times n where it descends; memory for 2 k
 *			items.  Johnson, Douze, Jegou, "Billion-scale similarity search
 *			with GPUs", 2017, section 4.2
 *	sample	n log(256) steps and a pass to gather, again for every further
 *			level (below 2^16 values none, below 2^24 about one); at most 16
 *			levels, whatever the input; memory for k + 2^16 items.  Ribizel,
 *			Anzt, "Approximate and Exact Selection on GPUs", 2019
 *	multi	quickselect, 3 n steps, at most 72 n; memory for n items.  Komarov,
 *			Dashti, D'Souza, "Fast k-NNG construction with GPU-based quick
 *			multi-select", 2014
 * All then sort k items.
 */
#ifndef GV_SELECT_H
#define GV_SELECT_H

#include <string.h>

#include "engine/gv_engine.h"

#define GV_WARP_MAX_K		2048
#define GV_SELECT_MAX_N		(INT64_C(1) << 31)	/* values in a row */

typedef enum GvSelectMethod
{
	GV_SELECT_AUTO,				/* what gv_select_choose says */
	GV_SELECT_WARP,				/* k <= GV_WARP_MAX_K */
	GV_SELECT_SAMPLE,
	GV_SELECT_MULTI
} GvSelectMethod;

#define GV_NSELECT		(GV_SELECT_MULTI + 1)

typedef struct GvSelect
{
	int64_t		rows;			/* >= 1 */
	int64_t		columns;		/* 1 .. GV_SELECT_MAX_N */
	int32_t		k;				/* 1 .. columns */
	GvSelectMethod method;
} GvSelect;

/* Keys ascend as values do. */
static inline uint32_t
gv_select_key(float value)
{
	float		plain = value + 0.0f;	/* -0 becomes 0 */
	uint32_t	bits;

	memcpy(&bits, &plain, sizeof(bits));
	bits = value != value ? UINT32_C(0x7FC00000) : bits;
	return bits ^ (-(bits >> 31) | UINT32_C(0x80000000));
}

/* The value that has this key. */
static inline float
gv_select_value(uint32_t key)
{
	uint32_t	bits = key ^ (((key >> 31) - 1) | UINT32_C(0x80000000));
	float		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* "auto", "warp", "sample", "multi" */
extern const char *gv_select_name(GvSelectMethod method);

/*
 * select: of each row of values [rows][columns] the k first in the order
 * above, in that order: their positions [rows][k] in the row, from 0, and what
 * they are, selected [rows][k].
 *
 * gv_select_choose: the method that the spec means, AUTO for an invalid one.
 * gv_select_scratch: 0 for an invalid one.
 */
extern GvSelectMethod gv_select_choose(const GvSelect *spec);
extern size_t gv_select_scratch(const GvSelect *spec);
extern GvStatus gv_select(const GvSelect *spec, const float *values,
						  uint32_t *positions, float *selected,
						  void *scratch, const GvStop *stop);

/*
 * quantiles: the values that would stand at ranks [nranks], from 0, in any
 * order, also repeated, if values [n], n <= GV_SELECT_MAX_N, were sorted ->
 * quantiles [nranks].  Exact: one level of SampleSelect, then quickselect in
 * the buckets that have a requested rank; memory for n items.
 *
 * Approximate: of the splitters of one level the one whose rank is nearest;
 * that rank is ranks[i] + rank_errors[i], exactly.  Memory for 4,096 items.
 * An error is at most the size of the largest bucket: n / 256 items on
 * average, and more than n / 64 with a probability below 10^-5 unless the
 * input was made for it; it is 0 for n <= 4,096.  Exact errors are all 0.
 */
extern size_t gv_quantiles_scratch(int64_t n, int32_t nranks,
								   bool approximate);
extern GvStatus gv_quantiles(const float *values, int64_t n,
							 const int64_t *ranks, int32_t nranks,
							 bool approximate, float *quantiles,
							 int64_t *rank_errors, void *scratch,
							 const GvStop *stop);

#endif							/* GV_SELECT_H */
