/*
 * exact.h
 *		The neighbors of one query: the rows nearest to it so far.
 *
 * The neighbors are a heap with the last of them on top.  They are ordered by
 * distance, NaN after all numbers, ties by position.  The heap is full from
 * the start: its free places come after every row.  So a row costs one
 * comparison, and log(n) comparisons if it enters.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "cpu/cpu.h"
#include "cpu/pq/assign.h"
#include "cpu/simd/kernels.h"
#include "engine/gv_set.h"

#define GV_NO_ROW	INT64_MAX	/* position of a free place */

/* The work of pushing a pair to a large heap, for gv_poll. */
#define GV_KNN_WORK	256

/* One neighbor. */
typedef struct GvKnn
{
	double		distance;		/* NaN in a free place */
	int64_t		position;
} GvKnn;

/* These are in exactset.c. */

/* ----
 * A test in fp32 that discards pairs of a query and a row if they are
 * certainly farther apart than the neighbors that the query has.
 * prefilter.c proves it.
 *
 * Vectors are placed first: computed in double, then rounded to fp32.
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
	double		slack;			/* slack of fp32, and */
	double		slack64;		/* slack of double: see prefilter.c */
} GvPrefilter;

/* A query, and how it is placed. */
typedef struct GvPrefiltered
{
	double		shift;
	double		factor;
	double		square;			/* |y|^2 */
	double		unit;			/* GV_SET_IP: products of y are larger by this
								 * factor */
	double		offset;			/* GV_SET_IP: <query, mean> times unit */
	bool		is_null;		/* all distances of the query are NaN */
} GvPrefiltered;

/*
 * Returns the number of floats in a panel, which consists of slices
 * [GV_CPU_SLICE_DIMS][GV_PREFILTER_ROWS].
 */
static inline size_t
gv_prefilter_panel(int32_t dims)
{
	int32_t		nslices = (dims + GV_CPU_SLICE_DIMS - 1) / GV_CPU_SLICE_DIMS;

	return (size_t) nslices * GV_CPU_SLICE_DIMS * GV_PREFILTER_ROWS;
}

/* Begins a prefilter.  `mean` is memory for dims numbers. */
extern void gv_prefilter_reset(GvPrefilter *prefilter, GvSetMetric metric,
							   int32_t dims, float *mean);

/* Finds mean and scale from rows [n][dims].  placed [n][dims] is scratch. */
extern void gv_prefilter_fit(GvPrefilter *prefilter, const float *rows,
							 int64_t n,
							 float *placed);

/*
 * Returns the numbers that the prefilter needs of a query.  placed [dims] is
 * scratch.
 */
extern GvPrefiltered gv_prefilter_query(const GvPrefilter *prefilter,
										const float *query,
										float *placed);

/* Places a query, to be multiplied with panels. */
extern void gv_prefilter_place(const GvPrefilter *prefilter,
							   const GvPrefiltered *prefiltered,
							   const float *query,
							   float *placed);

/*
 * Makes a panel and squares [GV_PREFILTER_ROWS] from n <= GV_PREFILTER_ROWS
 * rows.  From place n on, squares are not NaN.  placed [n][dims] is scratch.
 */
extern void gv_prefilter_rows(const GvPrefilter *prefilter, const float *rows,
							  int n,
							  float *placed, float *panel, float *squares);

/* Returns the limit of a query whose farthest neighbor is `last`. */
extern float gv_prefilter_limit(const GvPrefilter *prefilter,
								const GvPrefiltered *prefiltered, GvKnn last);

/* ----
 * Lists of queries and rows, for an exact search among the rows of near
 * lists only (gv_set.h, "With nlists > 0").
 *
 * Rows are gathered until there is a block, so that a block has many rows of
 * each list.  Then they are ordered by list.
 */

typedef struct GvNearLists
{
	GvSetSpec	spec;
	float	   *centroids;		/* [nlists][dims] */
	int32_t    *near;			/* [nlists][probes] lists, the nearest first */
	bool		has_queries;	/* near and query_order are filled */

	int64_t    *query_order;	/* [nqueries] numbers of queries, ordered by
								 * list */
	int64_t    *query_starts;	/* [nlists + 1] where each list begins in
								 * query_order */

	/* the block that is being gathered */
	int64_t		first;			/* position of its first row */
	int64_t		nrows;			/* rows gathered so far */
	int64_t		capacity;		/* rows of a block, at most */
	float	   *rows;			/* [capacity][dims] in the order in which they
								 * came */
	int32_t    *row_order;		/* [capacity] places in `rows`, ordered by
								 * list */
	int64_t    *row_starts;		/* [nlists + 1] where each list begins in
								 * row_order */
	int32_t    *panels;			/* [nlists] first panel of each list, for the
								 * caller */

	int32_t    *found;			/* [max(nqueries, capacity)] list of each
								 * vector */
} GvNearLists;

/*
 * gv_near_lists_size returns the bytes of everything.  gv_near_lists_panels
 * returns the number of panels that are enough for all lists of a block, or
 * for most of them.
 */
extern int64_t gv_near_lists_size(const GvSetSpec *spec);
extern int32_t gv_near_lists_panels(const GvSetSpec *spec);

/*
 * gv_near_lists_make returns NULL if there is no memory.  gv_near_lists_drop
 * accepts NULL.
 */
extern GvNearLists *gv_near_lists_make(const GvSetSpec *spec);
extern void gv_near_lists_drop(GvNearLists *lists);

/* Stores centroids [n][dims], the first of which has number `first`. */

/* Gathers rows, as many as fit the memory.  Returns how many were gathered. */

/*
 * Orders the gathered rows by list and, in the first call, queries
 * [nqueries][dims], too.
 */

/* Removes the rows of the block, and begins the next block. */

/* ----
 * Exact search over rows that come in batches: its state, and the
 * functions that compare rows with queries.
 */

#define GV_EXACT_QUERIES	GV_CPU_TILE_ROWS	/* queries of a tile */

typedef struct GvExact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbors that a query can have, <= k */
	bool		keeps;			/* rows are kept, for several questions */
	float	   *rows;			/* [nrows][dims] if they are kept */
	int64_t		nrows;
	float	   *queries;		/* [nqueries][dims]; if spec.own, part of
								 * `rows` */
	int64_t    *self;			/* [nqueries], if spec.self */
	GvKnn	   *nearest;		/* [nqueries][kept] neighbors */
	GvPrefilter prefilter;
	float	   *mean;			/* [dims] of the prefilter */
	GvPrefiltered *prefiltered; /* [nqueries] */
	float	   *limits;			/* [nqueries] limits of the prefilter */
	int32_t		npanels;		/* panels of a block */
	float	   *placed;			/* [GV_EXACT_QUERIES][dims] placed rows or
								 * queries */
	float	   *panels;			/* [npanels], each of gv_prefilter_panel
								 * floats */
	float	   *squares;		/* [npanels][GV_PREFILTER_ROWS] */
	float	   *products;		/* [GV_EXACT_QUERIES][GV_PREFILTER_ROWS] */
	bool		has_twins;		/* `twins` belongs to the current panel */
	uint8_t		twins[GV_PREFILTER_ROWS];	/* [row] the first row of the
											 * panel with the same bits */

	/* used without lists */
	int64_t		tile[GV_EXACT_QUERIES]; /* numbers of queries */
	int32_t		in_order[GV_PREFILTER_ROWS];	/* 0, 1, 2, .. */

	/* used with lists, else NULL */
	GvNearLists *lists;
	float	   *gathered;		/* [GV_PREFILTER_ROWS][dims] rows of a panel */
} GvExact;

/* A panel, and the queries with which it is compared. */
typedef struct GvPairing
{
	const float *rows;			/* [..][dims] */
	int64_t		first;			/* the first row's position */
	const int32_t *places;		/* [nrows] places of the panel's rows in
								 * `rows`, ascending */
	int			nrows;			/* <= GV_PREFILTER_ROWS */
	const float *panel;
	const float *squares;		/* [GV_PREFILTER_ROWS] */
	const int64_t *queries;		/* [nqueries] numbers of the queries */
	int			nqueries;		/* <= GV_EXACT_QUERIES */
} GvPairing;

/* Returns a query's neighbors, which are a heap: the last of them is first. */
static inline GvKnn *
gv_exact_knn(const GvExact *exact, int64_t query)
{
	return exact->nearest + query * exact->kept;
}

/* Returns whether a row is the query itself. */
static inline bool
gv_exact_is_self(const GvExact *exact, int64_t query, int64_t position)
{
	if (exact->spec.own)
		return exact->spec.first + query == position;
	return exact->spec.self && exact->self[query] == position;
}

/*
 * The row that was rescored last for a query.  If all rows are equal, no
 * prefilter can discard any, but the next row is at the same distance.
 */
typedef struct GvReranked
{
	const float *row;			/* NULL: no row was rescored */
	double		distance;
} GvReranked;

/* This is in exactset.c: GV_SET_EXACT of gv_cpu_sets. */
extern const GvSetOps gv_cpu_exact_set;

/* The following are in exactset.c. */

/* Rescores a pair.  Returns true if this changed the query's last neighbor. */
extern bool gv_exact_rerank(GvExact *exact, int64_t query, const float *row,
							int64_t position, GvReranked *reranked);

/*
 * Fits the prefilter to the first rows [n], and computes what the prefilter
 * needs of all queries.  Like all these functions, returns false if the caller
 * must give up.
 */

/*
 * Places n <= GV_EXACT_QUERIES queries in exact->placed, to be compared with
 * panels.
 */
extern void gv_exact_place(GvExact *exact, const int64_t *queries, int n);

/* Compares a panel with a tile of queries that gv_exact_place has placed. */

/*
 * These are in exactset.c, and are used with lists.  gv_exact_put_listed
 * gathers rows [n], and searches each block that is full.
 * gv_exact_search_lists searches the rows that are gathered.
 */
extern GvStatus gv_exact_put_listed(GvExact *exact, const float *rows,
									int64_t n, const GvStop *stop);
extern GvStatus gv_exact_search_lists(GvExact *exact, const GvStop *stop);

#endif							/* GV_EXACT_H */
