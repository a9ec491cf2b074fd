/*
 * util.h
 *		Snapshots for background workers that read rows, a count of these rows,
 *		phases of a build's progress, growing arrays, and sorts of rows
 *		(util.c).
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

/* Number of rows that this process has read.  Only IvfpqRowDone changes it. */
extern volatile uint32 ivfpq_rows_done;

/* Notes that a row was read and its indexed values were computed. */
static inline void
IvfpqRowDone(void)
{
	ivfpq_rows_done++;
}

/* Build phases for pg_stat_progress_create_index.  Core owns phase 1. */
#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

/*
 * Makes capacity for one more item in an array that has n items, by doubling
 * the array.  If the array is NULL and its capacity is 0, allocates it in the
 * current context.
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
 * A sort of rows by one or two keys, int8 or float8, on disk if there are many
 * rows.  Rows may have a payload, of the same size in each row.  Rows are put
 * into the sort in any order.  After IvfpqSortPerform, IvfpqSortNext reads
 * them in ascending order.
 */
typedef struct IvfpqSort
{
	Tuplesortstate *state;		/* NULL: there is no sort */
	int			nkeys;
	TupleTableSlot *in;			/* slot of a row that is put into the sort;
								 * NULL if a row is just one key, sorted as a
								 * Datum */
	TupleTableSlot *out;		/* slot of the row that was read last */
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
