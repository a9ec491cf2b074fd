/*
 * gv_screen.h
 *		Which pairs of a query and a row are certainly farther apart than what
 *		the query has already: a test in fp32, with its proof in screen.c.
 *
 * Vectors are placed first: in double, then rounded to fp32,
 *		y = ((x - shift) factor - mean) scale
 * with shift and factor those of the vector: 0 and 1, for cosine what makes
 * its length one, for Pearson also its mean component; mean [dims] and scale
 * those of the first rows, so that neither an offset nor a range costs digits.
 * Queries of GV_SET_IP are only scaled.
 *
 * A row becomes a number `square`, a query a `limit` that falls with what it
 * has found, and square - 2 <query, row> > limit, in fp32, discards a pair.
 */
#ifndef GV_SCREEN_H
#define GV_SCREEN_H

#include "cpu/exact/gv_knn.h"
#include "cpu/simd/gv_kernels.h"
#include "engine/gv_set.h"

#define GV_PREFILTER_ROWS		GV_CPU_TILE_CENTS	/* of a panel */

typedef struct GvPrefilter
{
	GvSetMetric metric;
	int32_t		dims;
	bool		is_fitted;
	float	   *mean;			/* [dims] */
	double		scale;			/* a power of two */
	double		mean_length;	/* |mean| scale */
	double		slack;			/* of fp32, and */
	double		slack64;		/* of double: see screen.c */
} GvPrefilter;

/* A query, and how it is placed. */
typedef struct GvPrefiltered
{
	double		shift;
	double		factor;
	double		square;			/* |y|^2 */
	double		unit;			/* IP: products of y are this much larger */
	double		offset;			/* IP: <query, mean> times unit */
	bool		is_null;		/* all its distances are NaN */
} GvPrefiltered;

/* Floats of a panel: slices [GV_CPU_SLICE_DIMS][GV_PREFILTER_ROWS]. */
static inline size_t
gv_prefilter_panel(int32_t dims)
{
	int32_t		nslices = (dims + GV_CPU_SLICE_DIMS - 1) / GV_CPU_SLICE_DIMS;

	return (size_t) nslices * GV_CPU_SLICE_DIMS * GV_PREFILTER_ROWS;
}

/* Begin: mean has room for dims numbers. */
extern void gv_prefilter_reset(GvPrefilter *prefilter, GvSetMetric metric,
							   int32_t dims, float *mean);

/* Find mean and scale from rows [n][dims]; placed [n][dims] is for its use. */
extern void gv_prefilter_fit(GvPrefilter *prefilter, const float *rows,
							 int64_t n,
							 float *placed);

/* The filter's numbers of a query; placed [dims] is scratch. */
extern GvPrefiltered gv_prefilter_query(const GvPrefilter *prefilter,
										const float *query,
										float *placed);

/* The query itself, to be multiplied with panels. */
extern void gv_prefilter_place(const GvPrefilter *prefilter,
							   const GvPrefiltered *prefiltered,
							   const float *query,
							   float *placed);

/*
 * n <= GV_PREFILTER_ROWS rows become a panel and squares [GV_PREFILTER_ROWS], beyond
 * n any that are not NaN; placed [n][dims] is for its use.
 */
extern void gv_prefilter_rows(const GvPrefilter *prefilter, const float *rows,
							  int n,
							  float *placed, float *panel, float *squares);

/* The limit of a query whose farthest neighbor is `last`. */
extern float gv_prefilter_limit(const GvPrefilter *prefilter,
								const GvPrefiltered *prefiltered, GvKnn last);

#endif							/* GV_SCREEN_H */
