/*
 * set.h
 *		Types and functions that whole-table functions share, grouped by the
 *		file that defines the functions.
 */
#ifndef IVFPQ_SET_H
#define IVFPQ_SET_H

#include "access/tableam.h"
#include "funcapi.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "am/types/vector.h"
#include "engine/gv_set.h"

/* setargs.c: arguments, and the progress that is reported */

/* Returns the metric with this name.  Raises an ERROR if it is unknown. */
extern GvSetMetric IvfpqMetricArgument(const text *name);
extern const char *IvfpqMetricName(GvSetMetric metric);

/* Raises an ERROR if an argument is not in its range. */
extern void IvfpqCheckRange(const char *name, int value, int least, int most,
							const char *hint);

/*
 * Raises an ERROR unless two sets of vectors have the same number of
 * dimensions.  `one` and `other` are the names of the two sets in the message.
 */
extern void IvfpqCheckSameDims(const char *one, int one_dims,
							   const char *other, int other_dims);

/*
 * Progress, as gpuvec_progress shows it for this session.  The numbers begin
 * with 1, because a slot contains zeros at first.
 */
typedef enum IvfpqProgressCommand
{
	IVFPQ_PROGRESS_EXACT = 1,
	IVFPQ_PROGRESS_GRAPH,
	IVFPQ_PROGRESS_JOIN,
	IVFPQ_PROGRESS_KMEANS,
	IVFPQ_PROGRESS_PATH,
	IVFPQ_PROGRESS_PERCENTILES
} IvfpqProgressCommand;

/* A phase counts rows, unless its comment says otherwise. */
typedef enum IvfpqProgressPhase
{
	IVFPQ_PROGRESS_KEYS = 1,
	IVFPQ_PROGRESS_ROWS,
	IVFPQ_PROGRESS_SEARCHING,	/* rows, which are counted again in each
								 * reading of the table */
	IVFPQ_PROGRESS_RECALL,
	IVFPQ_PROGRESS_CLUSTERING,
	IVFPQ_PROGRESS_JOINING,		/* edges; the phase may end before the last
								 * edge */
	IVFPQ_PROGRESS_WALKING		/* edges that were joined; the phase may end
								 * before the last one */
} IvfpqProgressPhase;

/*
 * Begins to show the progress of a command.  Does nothing if the command runs
 * within another command whose progress PostgreSQL shows, such as COPY.
 */
extern void IvfpqProgressBegin(IvfpqProgressCommand command, Oid relid);

/*
 * Begins a phase.  `total` is the number to which the phase will count, or 0
 * if that number is unknown.
 */
extern void IvfpqProgressPhaseOf(IvfpqProgressPhase phase, int64 total);

/* Reports that the phase has counted to `done`. */
extern void IvfpqProgressDone(int64 done);
extern void IvfpqProgressEnd(void);

/*
 * localset.c: work on a set of rows (engine/gv_set.h), by this session or by
 * gpuvecd
 *
 * gpuvecd may fail at any time.  Then IvfpqLocalSetPut, Ask, Run or Get
 * returns false, and the caller can only end the work.  The caller begins the
 * work again in this session and passes all inputs again.  The outputs that
 * the caller has already got stay valid, because both engines give the same
 * outputs.  If this session's own engine fails, or the session is interrupted,
 * these functions raise an error.
 */
typedef struct IvfpqLocalSet IvfpqLocalSet;

typedef enum IvfpqLocalSetPlace
{
	IVFPQ_WORK_SERVER,			/* gpuvecd */
	IVFPQ_WORK_HERE				/* this session */
} IvfpqLocalSetPlace;

/* Returns where to try the work first. */
extern IvfpqLocalSetPlace IvfpqLocalSetChoose(const GvSetSpec *spec);

/*
 * Begins work on a set.  The work ends when the caller calls IvfpqLocalSetEnd,
 * or else with the current memory context.
 */
extern IvfpqLocalSet *IvfpqLocalSetBegin(const GvSetSpec *spec,
										 IvfpqLocalSetPlace place);
extern void IvfpqLocalSetEnd(IvfpqLocalSet *work);

/*
 * Like gv_set_put, gv_set_ask, gv_set_run and gv_set_get, but return false if
 * gpuvecd fails (see above).  IvfpqLocalSetAsk is for work at gpuvecd only.
 */
extern bool IvfpqLocalSetPut(IvfpqLocalSet *work, GvSetInput input,
							 const void *items, int64 n);
extern bool IvfpqLocalSetAsk(IvfpqLocalSet *work, const GvSetSpec *spec);
extern bool IvfpqLocalSetRun(IvfpqLocalSet *work, GvSetDone *done);
extern bool IvfpqLocalSetGet(IvfpqLocalSet *work, GvSetOutput output,
							 int64 first, int64 n, void *items);

/*
 * Announces the items that a later call of IvfpqLocalSetGet will ask for, so
 * that gpuvecd sends them meanwhile.  Announced items have to be fetched in
 * the order of their announcements, before any other items.
 */
extern void IvfpqLocalSetPrefetch(IvfpqLocalSet *work, GvSetOutput output,
								  int64 first, int64 n);

/*
 * Returns how many queries of an exact search one set may have: at least one,
 * and at most spec->nqueries.  For a set in this session, the queries and
 * their results fit into maintenance_work_mem, for a set at gpuvecd into a
 * part of its memory.
 */
extern int64 IvfpqLocalSetQueries(const GvSetSpec *spec,
								  IvfpqLocalSetPlace place);

/*
 * Returns whether gpuvecd may keep this many rows, so that a set can be asked
 * about them several times.  The rows may take a third of a device's memory,
 * and GV_SET_OWN_BYTES at most.  If gpuvecd has no device, it would keep the
 * rows in the host's memory, so in this case the function returns true only if
 * gpuvec.engine = gpu.
 */
extern bool IvfpqLocalSetKeeps(int64 nrows, int dims);

/*
 * settable.c: tables that whole-table functions read.  A table is opened as
 * SELECT opens it, and its rows are read in the order in which they are
 * stored.
 *
 * The rows that have a vector are numbered from 0; a row's number is its
 * position.  The position is the same in every reading of an opened table,
 * because all readings use one snapshot, and begin either at the table's start
 * or at a block whose first position is known.
 */
/* Approximate size in bytes of the batches in which vectors are passed on. */
#define IVFPQ_BATCH_BYTES	(4 * 1024 * 1024)

/* Returns how many vectors of this length a batch has. */
static inline int
IvfpqRowsAtATime(int dims)
{
	return (int) Max(IVFPQ_BATCH_BYTES / sizeof(float) / dims, 1);
}

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
 * IvfpqTableColumn returns the number of the column with this name, and sets
 * *type to the column's type or, if that is a domain, to its base type.  Raises
 * an ERROR if the column does not exist or the caller may not read it.
 * IvfpqCheckKeyType raises an ERROR unless the column of this name and type has
 * keys of type int2, int4 or int8; key_type is the column's type or that of its
 * arrays' elements.  IvfpqKeyNumber converts a key of one of these three types.
 */
extern AttrNumber IvfpqTableColumn(Relation rel, const char *name, Oid *type);
extern void IvfpqCheckKeyType(const char *name, Oid type, Oid key_type);
extern int64 IvfpqKeyNumber(Datum key, Oid type);

/*
 * Asks the kernel for huge pages for a large array.  This saves page faults,
 * because a fault costs about the same for a small and a huge page, and random
 * accesses miss the TLB less often.
 */
extern void IvfpqAdviseHugePages(void *items, Size bytes);

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


/* exactsearch.c: exact neighbors of any number of queries */

/*
 * Lists of a table's rows.  A search that uses lists compares a query only
 * with the rows of the lists that are near the query's own list.  gv_set.h
 * defines which lists are near each other.
 */
typedef struct IvfpqLists
{
	int			n;				/* at least one */
	float	   *centroids;		/* [n][dims] */
	int			probes;			/* number of lists near each list */
} IvfpqLists;

typedef struct IvfpqNeighbors
{
	IvfpqTable *rows;			/* surveyed, not empty */
	GvSetMetric metric;
	int			k;				/* 1 .. rows->nrows */
	int64		nqueries;		/* at least one */
	IvfpqTable *from;			/* the table whose rows are the queries; NULL
								 * if the queries are in `vectors` */
	const float *vectors;		/* [nqueries][rows->dims] */
	bool		self;			/* the queries are rows of `rows`, and a query
								 * is not returned as its own neighbor */
	const int64 *selves;		/* [nqueries] if `self`: the position of each
								 * query in `rows`; NULL if a query's position
								 * is its number */
	const IvfpqLists *lists;	/* NULL to compare with all rows */
	IvfpqProgressPhase phase;	/* in which progress is reported */

	/*
	 * receives the k neighbors of one query, nearest first; a position of -1
	 * means that there are no more neighbors
	 */
	void		(*sink) (void *arg, int64 query, const int64 *positions,
						 const double *distances);
	void	   *arg;
} IvfpqNeighbors;

/*
 * Finds the neighbors and passes them to the sink, in the order of the
 * queries.  Reads the table once for each group of queries that fits into
 * memory.  May free the vectors that a survey kept (IvfpqTableForget).
 */
extern void IvfpqFindNeighbors(const IvfpqNeighbors *wanted);

/*
 * clustering.c: clusters n vectors [n][dims] in memory by k-means.  May
 * multiply the vectors, in place, by a power of two.  Sets centroids
 * [k][dims], and returns the number of centroids, which is at most k.  k must
 * not be larger than n.
 */
extern int IvfpqCluster (float *vectors, int n, int dims, int k,
						 int iterations, int seed, float *centroids);

#endif							/* IVFPQ_SET_H */
