/*
 * gv_nearlists.h
 *		Lists of queries and rows, for an exact search among the rows of near
 *		lists only (gv_set.h, "With nlists > 0").
 *
 * Rows are gathered until there is a block, so that a block has many rows of
 * each list.  Then they are ordered by list.
 */
#ifndef GV_NEARLISTS_H
#define GV_NEARLISTS_H

#include "engine/gv_set.h"

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
extern void gv_near_lists_put(GvNearLists *lists, const float *centroids,
							  int64_t first, int64_t n);

/* Gathers rows, as many as fit the memory.  Returns how many were gathered. */
extern int64_t gv_near_lists_add(GvNearLists *lists, const float *rows,
								 int64_t n);

/*
 * Orders the gathered rows by list and, in the first call, queries
 * [nqueries][dims], too.
 */
extern GvStatus gv_near_lists_sort(GvNearLists *lists, const float *queries,
								   const GvStop *stop);

/* Removes the rows of the block, and begins the next block. */
extern void gv_near_lists_next(GvNearLists *lists);

#endif							/* GV_NEARLISTS_H */
