/*
 * gv_nearlists.h
 *		Lists of queries and rows for an exact search of only the rows of
 *		near lists (gv_set.h, "With nlists > 0").
 *
 * Rows are gathered to blocks, so that a block has many of each list, and then
 * put in the order of their lists.
 */
#ifndef GV_NEARLISTS_H
#define GV_NEARLISTS_H

#include "engine/gv_set.h"

typedef struct GvNearLists
{
	GvSetSpec	spec;
	float	   *centroids;		/* [nlists][dims] */
	int32_t    *near;			/* [nlists][probes] lists, the nearest first */
	bool		has_queries;	/* near and query_order are there */

	int64_t    *query_order;	/* [nqueries] numbers, by list */
	int64_t    *query_starts;	/* [nlists + 1] of lists, in query_order */

	/* the block that is being gathered */
	int64_t		first;			/* position of its first row */
	int64_t		nrows;			/* so far */
	int64_t		capacity;		/* rows at most */
	float	   *rows;			/* [capacity][dims] in their order */
	int32_t    *row_order;		/* [capacity] places in rows, by list */
	int64_t    *row_starts;		/* [nlists + 1] of lists, in row_order */
	int32_t    *panels;			/* [nlists] for the caller: first panel */

	int32_t    *found;			/* [max(nqueries, capacity)] for its own use */
} GvNearLists;

/* Bytes of everything, and panels that suffice for a block, or for most. */
extern int64_t gv_near_lists_size(const GvSetSpec *spec);
extern int32_t gv_near_lists_panels(const GvSetSpec *spec);

/* NULL: there is no memory.  NULL may be dropped. */
extern GvNearLists *gv_near_lists_make(const GvSetSpec *spec);
extern void gv_near_lists_drop(GvNearLists *lists);

/* Centroids [n][dims], the first of which has number `first`. */
extern void gv_near_lists_put(GvNearLists *lists, const float *centroids,
							  int64_t first, int64_t n);

/* Gathers rows, no more than fit the memory; returns how many. */
extern int64_t gv_near_lists_add(GvNearLists *lists, const float *rows,
								 int64_t n);

/* Sort rows gathered, and once queries [nqueries][dims], by list. */
extern GvStatus gv_near_lists_sort(GvNearLists *lists, const float *queries,
								   const GvStop *stop);

/* Done with the block: begin the next one. */
extern void gv_near_lists_next(GvNearLists *lists);

#endif							/* GV_NEARLISTS_H */
