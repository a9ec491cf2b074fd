/*
 * gv_exactset.h
 *		Exact search over rows that come by batches: its state, and how rows
 *		and queries are paired.
 */
#ifndef GV_EXACTSET_H
#define GV_EXACTSET_H

#include "cpu/code/gv_assign.h"
#include "cpu/exact/gv_nearlists.h"
#include "cpu/exact/gv_screen.h"

#define GV_EXACT_QUERIES	GV_CPU_TILE_ROWS	/* of a tile */

typedef struct GvExact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbors that there can be: <= k */
	bool		keeps;			/* rows, for whatever is asked: */
	float	   *rows;			/* [nrows][dims] */
	int64_t		nrows;
	float	   *queries;		/* [nqueries][dims]; with spec.own in rows */
	int64_t    *self;			/* [nqueries], with spec.self */
	GvKnn	   *nearest;		/* [nqueries][kept] */
	GvPrefilter prefilter;
	float	   *mean;			/* [dims] of the prefilter */
	GvPrefiltered *prefiltered; /* [nqueries] */
	float	   *limits;			/* [nqueries] */
	int32_t		npanels;		/* of a block */
	float	   *placed;			/* [GV_EXACT_QUERIES][dims] rows or queries */
	float	   *panels;			/* [npanels] see gv_prefilter_panel */
	float	   *squares;		/* [npanels][GV_PREFILTER_ROWS] */
	float	   *products;		/* [GV_EXACT_QUERIES][GV_PREFILTER_ROWS] */
	bool		has_twins;		/* of the panel that queries are compared with */
	uint8_t		twins[GV_PREFILTER_ROWS];	/* the first of its rows that has
											 * the same bits */

	/* without lists */
	int64_t		tile[GV_EXACT_QUERIES]; /* numbers of queries */
	int32_t		in_order[GV_PREFILTER_ROWS];	/* 0, 1, 2, .. */

	/* with lists, else NULL */
	GvNearLists *lists;
	float	   *gathered;		/* [GV_PREFILTER_ROWS][dims] rows of a panel */
} GvExact;

/* A panel and the queries that it is compared with. */
typedef struct GvPairing
{
	const float *rows;			/* [..][dims] */
	int64_t		first;			/* the first row's position */
	const int32_t *places;		/* [nrows] where the panel's rows are; they
								 * ascend */
	int			nrows;			/* <= GV_PREFILTER_ROWS */
	const float *panel;
	const float *squares;		/* [GV_PREFILTER_ROWS] */
	const int64_t *queries;		/* [nqueries] their numbers */
	int			nqueries;		/* <= GV_EXACT_QUERIES */
} GvPairing;

/* A query's neighbors, the last of them first. */
static inline GvKnn *
gv_exact_knn(const GvExact *exact, int64_t query)
{
	return exact->nearest + query * exact->kept;
}

/* Is a row the query itself? */
static inline bool
gv_exact_is_self(const GvExact *exact, int64_t query, int64_t position)
{
	if (exact->spec.own)
		return exact->spec.first + query == position;
	return exact->spec.self && exact->self[query] == position;
}

/*
 * The row that was rescored last for a query.  Where all rows are equal no
 * prefilter can discard any, but then the next one is as far.
 */
typedef struct GvReranked
{
	const float *row;			/* NULL: none was */
	double		distance;
} GvReranked;

/* exactset.c: GV_SET_EXACT of gv_cpu_sets */
extern const GvSetOps gv_cpu_exact_set;

/* exactmeet.c */

/* Rescores a pair.  True when the query's last neighbor is another now. */
extern bool gv_exact_rerank(GvExact *exact, int64_t query, const float *row,
							int64_t position, GvReranked *reranked);

/*
 * With the first rows [n]: makes the prefilter, and what it needs of queries.
 * False, as everywhere here: canceled.
 */
extern bool gv_exact_prepare(GvExact *exact, const float *rows, int64_t n,
							 GvPoll *poll);

/*
 * n <= GV_EXACT_QUERIES queries into exact->placed, to be compared with
 * panels.
 */
extern void gv_exact_place(GvExact *exact, const int64_t *queries, int n);

/* A panel and a tile of queries, which are placed. */
extern bool gv_exact_pairs(GvExact *exact, const GvPairing *pairing,
						   GvPoll *poll);

/* exactlists.c: with lists; rows that have not been searched are gathered */
extern GvStatus gv_exact_put_listed(GvExact *exact, const float *rows,
									int64_t n, const GvStop *stop);
extern GvStatus gv_exact_search_lists(GvExact *exact, const GvStop *stop);

#endif							/* GV_EXACTSET_H */
