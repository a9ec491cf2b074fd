/*
 * gv_exactset.h
 *		Exact search over rows that come in batches: its state, and the
 *		functions that compare rows with queries.
 */
#ifndef GV_EXACTSET_H
#define GV_EXACTSET_H

#include "cpu/exact/gv_nearlists.h"
#include "cpu/exact/gv_screen.h"
#include "cpu/pq/assign.h"

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

/* The following are in exactmeet.c. */

/* Rescores a pair.  Returns true if this changed the query's last neighbor. */
extern bool gv_exact_rerank(GvExact *exact, int64_t query, const float *row,
							int64_t position, GvReranked *reranked);

/*
 * Fits the prefilter to the first rows [n], and computes what the prefilter
 * needs of all queries.  Like all these functions, returns false if the caller
 * must give up.
 */
extern bool gv_exact_prepare(GvExact *exact, const float *rows, int64_t n,
							 GvPoll *poll);

/*
 * Places n <= GV_EXACT_QUERIES queries in exact->placed, to be compared with
 * panels.
 */
extern void gv_exact_place(GvExact *exact, const int64_t *queries, int n);

/* Compares a panel with a tile of queries that gv_exact_place has placed. */
extern bool gv_exact_pairs(GvExact *exact, const GvPairing *pairing,
						   GvPoll *poll);

/*
 * These are in exactlists.c, and are used with lists.  gv_exact_put_listed
 * gathers rows [n], and searches each block that is full.
 * gv_exact_search_lists searches the rows that are gathered.
 */
extern GvStatus gv_exact_put_listed(GvExact *exact, const float *rows,
									int64_t n, const GvStop *stop);
extern GvStatus gv_exact_search_lists(GvExact *exact, const GvStop *stop);

#endif							/* GV_EXACTSET_H */
