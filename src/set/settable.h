/*
 * settable.h
 *		Tables that whole-table functions read.  A table is opened as SELECT
 *		opens it, and its rows are read in the order in which they are stored.
 *
 * The rows that have a vector are numbered from 0; a row's number is its
 * position.  The position is the same in every reading of an opened table,
 * because all readings use one snapshot, and begin either at the table's start
 * or at a block whose first position is known.
 */
#ifndef IVFPQ_SETTABLE_H
#define IVFPQ_SETTABLE_H

#include "access/tableam.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "am/types/vector.h"
#include "set/localset.h"

/* Approximate size in bytes of the batches in which vectors are passed on. */
#define IVFPQ_BATCH_BYTES	(4 * 1024 * 1024)

/* A block at which a reading can begin. */
typedef struct IvfpqMark
{
	int64		position;		/* of the block's first row */
	BlockNumber block;
} IvfpqMark;

typedef struct IvfpqTable
{
	Relation	rel;
	Snapshot	snapshot;		/* registered */
	IvfpqType	type;			/* of the vectors; its metric is not set */
	AttrNumber	vector_column;
	AttrNumber	key_column;		/* 0 if rows are identified by their TIDs */
	Oid			key_type;		/* int2, int4 or int8 */

	/* set by IvfpqTableSurvey */
	int64		nrows;			/* rows that have a vector */
	int64	   *keys;			/* [nrows]; NULL if there is no key column */
	ItemPointerData *tids;		/* [nrows]; NULL if there is a key column */
	int64		capacity;		/* allocated length of keys or tids */
	IvfpqMark  *marks;			/* [nmarks] ascending; of a heap only */
	int64		nmarks;
	int64		marks_capacity;
	float	   *kept;			/* [nkept][dims] vectors of the first rows */
	int64		nkept;
	int64		kept_capacity;
	IvfpqLocalSet *work;		/* gpuvecd's set, if it keeps all rows;
								 * otherwise NULL */
	int64		work_rows;		/* number of rows that *work can keep */

	/* set by a reading of the whole table */
	int64		nskipped;		/* rows without a vector */
	int			dims;			/* of all vectors; 0 until the first vector
								 * was read */

	/* the reading under way, and its current row */
	TableScanDesc scan;			/* or NULL */
	TupleTableSlot *slot;
	int64		next;			/* position of the row after the current one */
	int64		nulls;			/* rows without a vector so far */
	Datum		vector;			/* the vector as it is stored;
								 * IvfpqTableFloats replaces this value by the
								 * detoasted value, which is valid until the
								 * next row is read */
	MemoryContext home;			/* context in which the table was opened; owns
								 * the scan */
	MemoryContext context;		/* reset for every row */
} IvfpqTable;

/*
 * Opens a relation.  Raises an ERROR if the relation is not a table or
 * materialized view, or if a policy hides some of its rows from the caller.
 */
extern Relation IvfpqTableRelation(Oid relid);

/*
 * Return the number of the column with this name, and set *type to the
 * column's type or, if that is a domain, to its base type.  Raise an ERROR if
 * the column does not exist or the caller may not read it.
 * IvfpqTableKeyColumn also raises an ERROR unless the type is int2, int4 or
 * int8.  IvfpqKeyNumber converts a key of one of these three types.
 */
extern AttrNumber IvfpqTableColumn(Relation rel, const char *name, Oid *type);
extern AttrNumber IvfpqTableKeyColumn(Relation rel, const char *name,
									  Oid *type);
extern int64 IvfpqKeyNumber(Datum key, Oid type);

/*
 * Opens a table and finds its columns.  `key` is NULL if no key is needed.
 * Raises an ERROR unless the relation is a table or materialized view, and the
 * caller may read all rows and both columns.  The table stays locked until the
 * end of the transaction.
 */
extern void IvfpqTableOpen(IvfpqTable *table, Oid relid, const char *key,
						   const char *vector);

/* Closes the table.  A NOTICE says how many rows have no vector. */
extern void IvfpqTableClose(IvfpqTable *table);

/*
 * Reads the next row that has a vector.  Sets table->vector, and stores the
 * row, with its TID, in table->slot.  Returns false after the last row; the
 * next call then reads the first row again.
 */
extern bool IvfpqTableNext(IvfpqTable *table);

/*
 * Returns the current row's vector as floats [dims], which are valid until the
 * next row is read.  Raises an ERROR if the vector does not have as many
 * dimensions as the first vector of the table.  May be called only once for
 * each row.
 */
extern const float *IvfpqTableFloats(IvfpqTable *table);

/*
 * Returns the key of the row in a slot of this table.  Raises an ERROR if the
 * key is NULL.
 */
extern int64 IvfpqTableKey(const IvfpqTable *table, TupleTableSlot *slot);

/*
 * Reads the keys or TIDs of all rows, and the number of dimensions.  Raises an
 * ERROR if a key is NULL or occurs twice.  Keeps the vectors of the first rows
 * until IvfpqTableForget, as many as fit into keep_bytes.  `send` says that
 * the caller can ask gpuvecd about the rows.  If `send` is true and gpuvecd
 * can keep all rows, the survey keeps no vectors, but sends all of them to
 * gpuvecd's set (table->work).
 */
extern void IvfpqTableSurvey(IvfpqTable *table, Size keep_bytes, bool send);

/* Frees the kept vectors and ends gpuvecd's set. */
extern void IvfpqTableForget(IvfpqTable *table);

/*
 * Ends gpuvecd's set, if there is one.  Called if the set has failed, or if it
 * is not needed any more.
 */
extern void IvfpqTableStopAsking(IvfpqTable *table);

/*
 * Returns the vector at a position, which is valid until another row is read.
 * The table must have been surveyed.
 */
extern const float *IvfpqTableVector(IvfpqTable *table, int64 position);

/*
 * Reads up to `most` vectors, beginning at position `first`.  The table must
 * have been surveyed, and must have at least `most` rows from `first` on.
 * Returns the number of vectors that were read, which is at least one.  Sets
 * *vectors either to vectors that the survey kept, or to the caller's buffer
 * [most][dims], which then contains the vectors.
 */
extern int	IvfpqTableRead(IvfpqTable *table, int64 first, int most,
						   float *buffer, const float **vectors);

/* Returns how many vectors fit into a batch of IVFPQ_BATCH_BYTES. */
extern int	IvfpqTableBatch(const IvfpqTable *table);

#endif							/* IVFPQ_SETTABLE_H */
