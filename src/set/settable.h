/*
 * settable.h
 *		Tables that set functions read: opened as a SELECT opens them, and read
 *		in the order in which they are stored.
 *
 * A row's position is its number, from 0, among the rows that have a vector.
 * It is the same in every reading of one opened table, because all use one
 * snapshot and begin with the table or where its position is known.
 *
 * Opening and rows one by one are settable.c's; after a survey of all of them
 * settable.c has vectors by their positions.
 */
#ifndef IVFPQ_SETTABLE_H
#define IVFPQ_SETTABLE_H

#include "access/tableam.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "am/types/vector.h"
#include "set/localset.h"

/* Bytes of the batches in which vectors are handed on, about. */
#define IVFPQ_BATCH_BYTES	(4 * 1024 * 1024)

/* A block that a reading may begin at. */
typedef struct IvfpqMark
{
	int64		position;		/* of the first row in it */
	BlockNumber block;
} IvfpqMark;

typedef struct IvfpqTable
{
	Relation	rel;
	Snapshot	snapshot;		/* registered */
	IvfpqType	type;			/* of vectors; its metric says nothing */
	AttrNumber	vector_column;
	AttrNumber	key_column;		/* 0: rows are known by their TIDs */
	Oid			key_type;		/* int2, int4 or int8 */

	/* after IvfpqTableSurvey */
	int64		nrows;			/* with a vector */
	int64	   *keys;			/* [nrows], with a key column */
	ItemPointerData *tids;		/* [nrows], without */
	IvfpqMark  *marks;			/* [nmarks] ascending, of a heap */
	int64		nmarks;
	float	   *kept;			/* [nkept][dims] vectors of the first rows */
	int64		nkept;
	int64		kept_capacity;
	IvfpqWork  *work;			/* gpuvecd has all rows; or NULL */
	int64		work_rows;		/* rows that *work can keep */

	/* after a whole reading */
	int64		nskipped;		/* rows without a vector */
	int			dims;			/* of all vectors, of the first from when it
								 * was read; 0 = there are none */

	/* the reading under way; after IvfpqTableNext the row */
	TableScanDesc scan;			/* or NULL */
	TupleTableSlot *slot;
	int64		next;			/* position of the row that comes next */
	int64		nulls;			/* rows without a vector so far */
	Datum		vector;			/* as it is stored; after IvfpqTableFloats
								 * whole, and good until the next row */
	MemoryContext home;			/* in which it was opened: of scans */
	MemoryContext context;		/* reset with every row */
} IvfpqTable;

/*
 * Open a relation; ERROR unless it is a table or materialized view of which
 * policies hide no row from the caller.
 */
extern Relation IvfpqTableRelation(Oid relid);

/*
 * The column of that name and its type, domains seen through; ERROR unless
 * there is one and the caller may read it.  A key's has to be int2, int4 or
 * int8, which IvfpqKeyNumber widens.
 */
extern AttrNumber IvfpqTableColumn(Relation rel, const char *name, Oid *type);
extern AttrNumber IvfpqTableKeyColumn(Relation rel, const char *name,
									  Oid *type);
extern int64 IvfpqKeyNumber(Datum key, Oid type);

/*
 * Open a table and find its columns; key is NULL where none is wanted.  ERROR
 * unless it is a table or materialized view of which the caller may read these
 * columns and all rows.  The lock stays until the end of the transaction.
 */
extern void IvfpqTableOpen(IvfpqTable *table, Oid relid, const char *key,
						   const char *vector);

/* Let the first row come next, or that of a mark. */

/*
 * The next row: its vector is in table->vector, its TID in table->slot.  Past
 * the last row comes the first again, with the next call.
 */
extern bool IvfpqTableNext(IvfpqTable *table);

/*
 * The current row's vector as floats [dims], once a row; ERROR unless it is as
 * long as the first.  Good until the next row.
 */
extern const float *IvfpqTableFloats(IvfpqTable *table);

/* The key in a slot of this table; ERROR if it is NULL. */
extern int64 IvfpqTableKey(const IvfpqTable *table, TupleTableSlot *slot);

/*
 * Read keys or TIDs of all rows, and of the first vector how long it is.
 * ERROR for a key that is NULL or comes twice.  Until IvfpqTableForget vectors
 * of the first rows are kept, as many as keep_bytes hold; or, if the caller
 * has use for that, gpuvecd has all rows, to be asked about them
 * (table->work).
 */
extern void IvfpqTableSurvey(IvfpqTable *table, Size keep_bytes, bool send);
extern void IvfpqTableForget(IvfpqTable *table);

/* gpuvecd cannot be asked about the rows, or need not be any more. */
extern void IvfpqTableStopAsking(IvfpqTable *table);

/*
 * The vector at a position, after a survey; good until another row is read.
 */
extern const float *IvfpqTableVector(IvfpqTable *table, int64 position);

/*
 * Vectors from position `first` on, after a survey, at most `most` and no
 * more than there are; how many, at least one.  They are kept ones or in the
 * caller's array, [most][dims].
 */
extern int	IvfpqTableRead(IvfpqTable *table, int64 first, int most,
						   float *buffer, const float **vectors);

/* Compares two int64, for qsort of keys or positions; can be canceled. */
extern int	IvfpqCompareSigned(const void *a, const void *b);

/* How many vectors make a batch. */
extern int	IvfpqTableBatch(const IvfpqTable *table);

/* Done with the table; says how many rows were left out. */
extern void IvfpqTableClose(IvfpqTable *table);

#endif							/* IVFPQ_SETTABLE_H */
