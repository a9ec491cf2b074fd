/*
 * util.h
 *		Snapshots under which a background worker reads rows, phases of a
 *		build's progress, growing arrays, and sorts of rows (util.c).
 */
#ifndef IVFPQ_UTIL_H
#define IVFPQ_UTIL_H

#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "utils/tuplesort.h"

extern void IvfpqSnapshotsAreOurs(void);
extern void IvfpqSnapshotTake(void);
extern void IvfpqSnapshotDrop(void);
extern void IvfpqSnapshotForget(void);
extern void IvfpqSnapshotRenew(void);

/*
 * Build phases for pg_stat_progress_create_index.  Core owns
 * PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE = 1.
 */
#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

/*
 * Makes capacity for one more item in an array that has n, by doubling it.
 * The array is NULL, and its capacity 0, at first; the current context owns
 * its memory then.
 */
#define IvfpqGrow(array, n, capacity) \
	do { \
		if ((n) >= (capacity)) \
		{ \
			(capacity) = Max(64, 2 * (capacity)); \
			(array) = (array) == NULL ? \
				palloc_extended((Size) (capacity) * sizeof(*(array)), \
								MCXT_ALLOC_HUGE) : \
				repalloc_huge((array), \
							  (Size) (capacity) * sizeof(*(array))); \
		} \
	} while (0)

/*
 * A sort of rows by one or two keys, on disk if there are many.  A key is an
 * int8 or a float8; a row may have a payload, of the same size in all rows.
 * Rows are put in any order.  After IvfpqSortPerform, IvfpqSortNext reads them
 * in ascending order, and returns false at their end.
 */
typedef struct IvfpqSort
{
	Tuplesortstate *state;		/* NULL: there is no sort */
	int			nkeys;
	TupleTableSlot *in;			/* a row to be put; NULL: keys alone are
								 * sorted as Datums */
	TupleTableSlot *out;		/* a row that was read */
	bytea	   *item;			/* the payload of `in`, or NULL */

	/* the row that was read last: */
	Datum		keys[2];
	const char *payload;		/* not aligned */
} IvfpqSort;

extern void IvfpqSortBegin(IvfpqSort *sort, Oid first, Oid second,
						   Size payload_bytes, int memory_kb);
extern void IvfpqSortPut(IvfpqSort *sort, Datum first, Datum second,
						 const void *payload);
extern void IvfpqSortPerform(IvfpqSort *sort);
extern bool IvfpqSortNext(IvfpqSort *sort);
extern void IvfpqSortEnd(IvfpqSort *sort);

#endif							/* IVFPQ_UTIL_H */
