/*
 * path.h
 *		The edges of a graph that is in a table, in the order of distances.
 *
 * Keys are numbered from 0 as they are met.  A reader of edges sees numbers
 * only, which fit into arrays; edges themselves are sorted within
 * maintenance_work_mem, on disk if need be.
 */
#ifndef IVFPQ_PATH_H
#define IVFPQ_PATH_H

#include "executor/tuptable.h"
#include "utils/tuplesort.h"

#define IVFPQ_NO_KEY	(-1)
#define IVFPQ_MAX_KEYS	PG_INT32_MAX

typedef struct IvfpqEdge
{
	int32		ends[2];		/* numbers of two different keys */
	double		distance;
} IvfpqEdge;

typedef struct IvfpqEdges
{
	int32		nkeys;
	int64	   *keys;			/* [nkeys] by number */
	int64		nedges;
	int64		nread;			/* since the beginning */
	Tuplesortstate *sort;		/* of (distance, both ends) */
	TupleTableSlot *slot;		/* what comes out of it */
} IvfpqEdges;

/*
 * Read the table under the active snapshot, and number keys.  wanted [nwanted]
 * are keys, of which numbers [nwanted] receives the number, IVFPQ_NO_KEY where
 * no row has it.  ERROR if the table is none, the caller may not read it, or
 * it is no graph; rows with a NULL are left out with a NOTICE, and silently
 * edges from a key to itself.
 */

/* Sort what was read.  IvfpqNextEdge then begins with the shortest edge. */

/*
 * The next edge by ascending distance, as PostgreSQL orders: NaN last; false
 * after the last.
 */
extern bool IvfpqNextEdge(IvfpqEdges *edges, IvfpqEdge *edge);

/* Begin with the shortest edge again. */


#endif							/* IVFPQ_PATH_H */
