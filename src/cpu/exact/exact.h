/*
 * exact.h
 *		Exact search of sets: the neighbors of a query, and the prefilter.
 *
 * The neighbors of a query are the rows that are nearest to the query so far.
 * They are ordered by distance, with NaN after all numbers, and then by
 * position.  They are stored as a heap with the last neighbor on top.  The
 * heap is full from the start: its free places come after every row.  So a row
 * costs one comparison, and log(n) more comparisons if it enters the heap.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "cpu/pq/assign.h"
#include "engine/gv_set.h"

#define GV_NO_ROW	INT64_MAX	/* position of a free place */

/* One neighbor. */
typedef struct GvKnn
{
	double		distance;		/* NaN in a free place */
	int64_t		position;
} GvKnn;

/* ----
 * The prefilter is a test in fp32 that discards a pair of a query and a row if
 * the row is certainly farther from the query than the neighbors that the
 * query has.  prefilter.c has the proof.
 *
 * Vectors are placed first.  The placed vector y of a vector x is computed in
 * double, and then rounded to fp32:
 *	y = ((x - shift) factor - mean) scale
 * Here shift and factor belong to the vector.  They are 0 and 1, except that
 * for cosine and Pearson the factor makes the vector's length one, and for
 * Pearson the shift is the mean of the vector's components.  mean [dims] and
 * scale belong to the first rows, so that neither an offset nor a range costs
 * digits.  Queries of GV_SET_IP are only scaled.
 *
 * A row has a number `square`.  A query has a `limit`, which falls as the
 * query finds neighbors.  A pair is discarded if square - 2 <query, row> >
 * limit, in fp32.
 */

#define GV_PREFILTER_ROWS		GV_CPU_TILE_CENTS	/* rows of a panel */

typedef struct GvPrefilter
{
	GvSetMetric metric;
	int32_t		dims;
	bool		is_fitted;
	float	   *mean;			/* [dims] */
	double		scale;			/* a power of two */
	double		mean_length;	/* |mean| scale */
	double		slack;			/* slack of fp32 (see prefilter.c) */
	double		slack64;		/* slack of double (see prefilter.c) */
} GvPrefilter;

/* A query, and how it is placed. */
typedef struct GvPrefiltered
{
	double		shift;
	double		factor;
	double		square;			/* |y|^2 */
	double		unit;			/* GV_SET_IP: factor by which products of y
								 * are larger */
	double		offset;			/* GV_SET_IP: <query, mean> times unit */
	bool		is_null;		/* all distances of the query are NaN */
} GvPrefiltered;

/*
 * Fits a prefilter to rows [n][dims].  On entry, all members of the prefilter
 * are zero, except that `mean` points to an array.  placed [n][dims] is
 * scratch.
 */
extern void gv_prefilter_fit(GvPrefilter *prefilter, GvSetMetric metric,
							 int32_t dims, const float *rows, int64_t n,
							 float *placed);

/*
 * Returns the numbers of a query that the prefilter needs.  placed [dims] is
 * scratch.
 */
extern GvPrefiltered gv_prefilter_query(const GvPrefilter *prefilter,
										const float *query, float *placed);

/* Places a query, to be multiplied with panels. */
extern void gv_prefilter_place(const GvPrefilter *prefilter,
							   const GvPrefiltered *prefiltered,
							   const float *query, float *placed);

/*
 * Makes a panel and squares [GV_PREFILTER_ROWS] from n <= GV_PREFILTER_ROWS
 * rows.  Squares from element n on are not NaN.  placed [n][dims] is scratch.
 */
extern void gv_prefilter_rows(const GvPrefilter *prefilter, const float *rows,
							  int n, float *placed, float *panel, float *squares);

/* Returns the limit of a query whose farthest neighbor is `last`. */
extern float gv_prefilter_limit(const GvPrefilter *prefilter,
								const GvPrefiltered *prefiltered, GvKnn last);

/* This is in exactset.c: GV_SET_EXACT of gv_cpu_sets. */
extern const GvSetOps gv_cpu_exact_set;

#endif							/* GV_EXACT_H */
