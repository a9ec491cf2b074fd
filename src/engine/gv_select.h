/*
 * gv_select.h
 *		The k smallest values of each row of a matrix, and quantiles of an
 *		array, of floats or of doubles.
 *
 * The conventions of gv_engine.h hold: the caller passes arrays and scratch
 * aligned to 64 bytes, calls return a status and poll a GvStop at least every
 * 100 ms, and every method of every engine gives the same answer.
 *
 * The order
 * Values ascend, ties by position.  NaN comes last and equals NaN, whatever
 * its sign and payload; -0 equals 0.  Returned values are made from their
 * keys, so NaN is returned as the positive quiet NaN, -0 is returned as 0, and
 * all other values are unchanged.
 *
 * An item is gv_select_key(value) << 32 | position, which has 64 bits for floats
 * and 96 for doubles.  Because a position occurs once in a row, no two items are
 * equal, and the order of items is the order above.  So methods need not handle ties: a pivot or splitter that is one of
 * the items has items on both sides, equal values are distributed over several
 * buckets like different ones, and exactly k - 1 items are below the k-th, so
 * the selected items fit into the memory for them.
 *
 * Methods, with their steps for a row of n = columns values
 *	warp	one pass that drops values above a threshold: n + k log(n / k)
 *			steps where the row is in random order, six times n where it
 *			descends; memory for 2 k items.  Johnson, Douze, Jegou,
 *			"Billion-scale similarity search with GPUs", 2017, section 4.2
 *	sample	n log(256) steps and a pass to gather, and the same for every
 *			further level (below 2^16 values none, below 2^24 about one); at
 *			most 16 levels (20 for doubles), whatever the input; memory for k + 2^16 items.
 *			Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019
 *	multi	quickselect, 3 n steps, at most 72 n (104 n); memory for n items.  Komarov,
 *			Dashti, D'Souza, "Fast k-NNG construction with GPU-based quick
 *			multi-select", 2014
 * All methods then sort k items.
 */
#ifndef GV_SELECT_H
#define GV_SELECT_H

#include <string.h>

#include "engine/gv_engine.h"

#define GV_WARP_MAX_K		2048
#define GV_SELECT_MAX_N		(INT64_C(1) << 31)	/* values in a row, at most */

typedef enum GvSelectMethod
{
	GV_SELECT_AUTO,				/* gv_select_choose decides */
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
	bool		doubles;		/* the values are doubles, not floats */
} GvSelect;

typedef struct GvQuantiles
{
	int64_t		n;				/* 1 .. GV_SELECT_MAX_N */
	int32_t		nranks;			/* >= 1 */
	bool		approximate;
	bool		doubles;		/* the values are doubles, not floats */
} GvQuantiles;

/* Returns the key of a value.  Keys ascend as values do. */
static inline uint32_t
gv_select_key(float value)
{
	float		plain = value + 0.0f;	/* -0 becomes 0 */
	uint32_t	bits;

	memcpy(&bits, &plain, sizeof(bits));
	bits = value != value ? UINT32_C(0x7FC00000) : bits;
	return bits ^ (-(bits >> 31) | UINT32_C(0x80000000));
}

/* Returns the value that has this key. */
static inline float
gv_select_value(uint32_t key)
{
	uint32_t	bits = key ^ (((key >> 31) - 1) | UINT32_C(0x80000000));
	float		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* The same for doubles. */
static inline uint64_t
gv_select_key_double(double value)
{
	double		plain = value + 0.0;
	uint64_t	bits;

	memcpy(&bits, &plain, sizeof(bits));
	bits = value != value ? UINT64_C(0x7FF8) << 48 : bits;
	return bits ^ (-(bits >> 63) | UINT64_C(1) << 63);
}

static inline double
gv_select_value_double(uint64_t key)
{
	uint64_t	bits = key ^ (((key >> 63) - 1) | UINT64_C(1) << 63);
	double		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Returns "auto", "warp", "sample" or "multi". */
extern const char *gv_select_name(GvSelectMethod method);

/*
 * Returns the method that will be used for the spec, or GV_SELECT_AUTO if the
 * spec is invalid.
 */
extern GvSelectMethod gv_select_choose(const GvSelect *spec);

/*
 * Selects the first k values of each row of values [rows][columns], in the
 * order above.  Stores their positions in the row, from 0, in positions
 * [rows][k], and their values in selected [rows][k].  gv_select_scratch
 * returns 0 for an invalid spec.
 */
extern size_t gv_select_scratch(const GvSelect *spec);
extern GvStatus gv_select(const GvSelect *spec, const void *values,
						  uint32_t *positions, void *selected,
						  void *scratch, const GvStop *stop);

/*
 * Sets quantiles [nranks] to the values that would stand at ranks [nranks] if
 * values [n] were sorted.  Ranks count from 0, are in any order, and may
 * repeat.  gv_quantiles_scratch returns 0 for an invalid spec.
 *
 * Exact quantiles take one level of SampleSelect, then quickselect in the
 * buckets that contain a requested rank, and memory for n items, of which only
 * these buckets are written.  Up to 8 ranks of up to 2^24 floats take
 * quickselect alone, which writes all items.  All rank_errors are 0.
 *
 * An approximate quantile is the splitter of one level whose rank is nearest
 * to ranks[i]; its rank is exactly ranks[i] + rank_errors[i].  This takes
 * memory for 4,096 items.  An error is at most the size of the largest bucket:
 * n / 256 items on average, and more than n / 64 with a probability below
 * 10^-5 unless the input was constructed to cause larger errors.  The error is
 * 0 for n <= 4,096.
 */
extern size_t gv_quantiles_scratch(const GvQuantiles *spec);
extern GvStatus gv_quantiles(const GvQuantiles *spec, const void *values,
							 const int64_t *ranks, void *quantiles,
							 int64_t *rank_errors, void *scratch,
							 const GvStop *stop);

#endif							/* GV_SELECT_H */
