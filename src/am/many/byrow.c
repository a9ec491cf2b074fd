/*
 * byrow.c
 *		Reranks rows for many queries: in heap order, each row fetched once and
 *		reranked for all queries that have it among their candidates.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/many/many.h"
#include "am/search/heaptids.h"
#include "page/bufcache.h"
#include "pgcompat.h"

/* Rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

/* How many keys ahead a key's query is prefetched. */
#define PREFETCHED		4

/* Distances between two checks for interrupts. */
#define DISTANCES_AT_ONCE	1024

/* Ascending distance, ties by id: the order in which a scan returns rows. */
static int
compare_rows(const void *a, const void *b)
{
	const IvfpqBulkRow *x = a;
	const IvfpqBulkRow *y = b;
	int			c = float8_cmp_internal(x->distance, y->distance);

	return c != 0 ? c : (x->id > y->id) - (x->id < y->id);
}

/* Let the first of a heap of n rows sink to its place. */
static void
sink(IvfpqBulkRow *rows, int n)
{
	IvfpqBulkRow top = rows[0];
	int			at = 0;

	for (;;)
	{
		int			child = 2 * at + 1;

		if (child + 1 < n && compare_rows(&rows[child + 1], &rows[child]) > 0)
			child++;
		if (child >= n || compare_rows(&rows[child], &top) <= 0)
			break;
		rows[at] = rows[child];
		at = child;
	}
	rows[at] = top;
}

/* Keep the row if it is among the nearest k of the query of that number. */
static void
keep_row(IvfpqBulk *bulk, int number, const IvfpqBulkRow *row)
{
	IvfpqBulkQuery *query = &bulk->asked[number];
	IvfpqBulkRow *rows = query->rows;
	int			at;

	if (query->nrows == bulk->k)
	{
		if (compare_rows(row, &rows[0]) >= 0)
			return;
		rows[0] = *row;
		sink(rows, bulk->k);
	}
	else
	{
		for (at = query->nrows++; at > 0; at = (at - 1) / 2)
		{
			if (compare_rows(&rows[(at - 1) / 2], row) >= 0)
				break;
			rows[at] = rows[(at - 1) / 2];
		}
		rows[at] = *row;
	}
	if (query->nrows == bulk->k)
		bulk->farthest[number] = rows[0].distance;
}

/* Forget the rows that were kept for the query of that number. */
void
IvfpqBulkForget(IvfpqBulk *bulk, int number)
{
	bulk->asked[number].nrows = 0;
	bulk->farthest[number] = get_float8_nan();
}

/* Bring a query's rows into the order of the answer. */
void
IvfpqBulkSort(IvfpqBulkQuery *query)
{
	qsort(query->rows, query->nrows, sizeof(IvfpqBulkRow), compare_rows);
}

/* A row that has been fetched. */
typedef struct Fetched
{
	IvfpqBulkRow row;
	Datum		value;
	const float *vector;		/* [the queries' dims] the same, where
								 * real_distance may take it; else NULL.  Its
								 * elements have not been checked */
	double		square;			/* <vector, vector>, where a cosine takes it */
} Fetched;

/* Returns what the operator's function computes. */
static double
call_distance(IvfpqBulk *bulk, int number, const Fetched *fetched)
{
	IvfpqBulkQuery *query = &bulk->asked[number];

	if (query->value == 0)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(bulk->portion);

		query->value = IvfpqCastVector(&bulk->cast, bulk->floats +
									   (Size) number * bulk->queries.dims,
									   bulk->queries.dims);
		MemoryContextSwitchTo(oldcontext);
	}
	return DatumGetFloat8(FunctionCall2Coll(&bulk->distance,
											bulk->type.collation,
											fetched->value, query->value));
}

/*
 * Reranks a row for a query.  The operator's function checks every element of
 * both vectors.  Where our own function computes the distance, the queries'
 * elements have been checked before, and a row's are finite if its distance
 * is.
 */
static void
rerank_for(IvfpqBulk *bulk, int number, Fetched *fetched)
{
	int			dims = bulk->queries.dims;
	const float *floats = bulk->floats + (Size) number * dims;
	double		distance;

	if (fetched->vector == NULL)
		distance = call_distance(bulk, number, fetched);
	else
	{
		if (bulk->is_cosine)
			distance = gv_distance_cosine_of(fetched->vector, fetched->square,
											 floats, bulk->squares[number],
											 dims);
		else
			distance = bulk->real_distance(fetched->vector, floats, dims);
		if (!isfinite(distance))
			distance = call_distance(bulk, number, fetched);
	}
	/* most rows are; NaN is not farther.  The query itself is not read */
	if (distance > bulk->farthest[number])
		return;
	fetched->row.distance = distance;
	keep_row(bulk, number, &fetched->row);
}

/* Fetches the row of that id; false: there is nothing to rerank. */
static bool
fetch_row(IvfpqBulk *bulk, uint64 id, Fetched *fetched)
{
	bulk->report.reranked++;
	if (!IvfpqRerankWhole(&bulk->rerank, id, &fetched->value))
		return false;
	fetched->row.id = id;
	fetched->row.tid = bulk->rerank.slot->tts_tid;
	fetched->vector = NULL;
	if (bulk->real_distance == NULL)
		return true;
	/* NULL: the function says what is wrong */
	fetched->vector = IvfpqRealFloats(DatumGetArrayTypeP(fetched->value),
									  bulk->queries.dims);
	if (fetched->vector != NULL && bulk->is_cosine)
		fetched->square = gv_square(fetched->vector, bulk->queries.dims);
	return true;
}

/* Has the processor fetch what reranking for a query reads. */
static pg_attribute_always_inline void
prefetch_query(const IvfpqBulk *bulk, int number)
{
	const float *floats = bulk->floats + (Size) number * bulk->queries.dims;

	IvfpqFetch((const char *) floats,
			   (const char *) (floats + bulk->queries.dims));
	__builtin_prefetch(bulk->rows + (Size) number * bulk->k);
}

/*
 * Reranks a row for the queries of keys [n], which are all the row's.  The
 * keys of other rows follow, up to `end`.
 */
static void
rerank_row(IvfpqBulk *bulk, const uint64 *keys, int64 n, const uint64 *end)
{
	Fetched		fetched;
	bool		found = fetch_row(bulk, IVFPQ_BULK_ROW(keys[0]), &fetched);
	MemoryContext oldcontext = MemoryContextSwitchTo(bulk->rerank.context);

	for (int64 i = 0; i < n; i++)
	{
		int			number = IVFPQ_BULK_QUERY(keys[i]);

		if (end - keys - i > PREFETCHED)
			prefetch_query(bulk, IVFPQ_BULK_QUERY(keys[i + PREFETCHED]));
		if (found)
			rerank_for(bulk, number, &fetched);
		else
			bulk->asked[number].invisible++;
	}
	MemoryContextSwitchTo(oldcontext);
	if (found)
		IvfpqRerankDone(&bulk->rerank);
}

/* Returns how many of the keys [n] have the row of the first one. */
static int64
count_same(const uint64 *keys, int64 n)
{
	int64		same = 1;

	while (same < n && IVFPQ_BULK_ROW(keys[same]) == IVFPQ_BULK_ROW(keys[0]))
		same++;
	return same;
}

/*
 * Reranks rows for queries, as keys [n] say.  Sorts the keys, by way of
 * scratch [n].
 */
void
IvfpqBulkRerank(IvfpqBulk *bulk, uint64 *keys, uint64 *scratch, int64 n)
{
	uint64		ids[ROWS_AT_ONCE];

	IvfpqSortBits(keys, scratch, n, IVFPQ_BULK_ROW_SHIFT);
	for (int64 next = 0; next < n;)
	{
		int64		end = next;
		int			nrows = 0;

		while (end < n && nrows < ROWS_AT_ONCE)
		{
			ids[nrows++] = IVFPQ_BULK_ROW(keys[end]);
			end += count_same(keys + end, n - end);
		}
		IvfpqRerankPrefetchSorted(&bulk->rerank, ids, nrows);
		while (next < end)
		{
			int64		same = count_same(keys + next, end - next);

			CHECK_FOR_INTERRUPTS();
			rerank_row(bulk, keys + next, same, keys + n);
			next += same;
		}
		IvfpqRerankPause(&bulk->rerank);
	}
}

/* Reranks rows [nrows], ascending, for each of the active queries [n]. */
static void
rerank_for_all(IvfpqBulk *bulk, const uint64 *ids, int nrows,
			   const int *active, int n)
{
	IvfpqRerankPrefetchSorted(&bulk->rerank, ids, nrows);
	for (int i = 0; i < nrows; i++)
	{
		Fetched		fetched;
		MemoryContext oldcontext;

		CHECK_FOR_INTERRUPTS();
		if (!fetch_row(bulk, ids[i], &fetched))
			continue;
		oldcontext = MemoryContextSwitchTo(bulk->rerank.context);
		for (int q = 0; q < n; q++)
		{
			if (q % DISTANCES_AT_ONCE == DISTANCES_AT_ONCE - 1)
				CHECK_FOR_INTERRUPTS();
			rerank_for(bulk, active[q], &fetched);
		}
		MemoryContextSwitchTo(oldcontext);
		IvfpqRerankDone(&bulk->rerank);
	}
	IvfpqRerankPause(&bulk->rerank);
}

/* Reranks pending rows for the active queries [n]. */
void
IvfpqBulkRerankPending(IvfpqBulk *bulk, const int *active, int n)
{
	IvfpqRerankDims(&bulk->rerank, bulk->pending_dims,
					&bulk->warned_mismatched);
	for (int64 i = 0; i < bulk->npending; i += ROWS_AT_ONCE)
		rerank_for_all(bulk, bulk->pending + i,
					   (int) Min(ROWS_AT_ONCE, bulk->npending - i), active, n);
	IvfpqRerankDims(&bulk->rerank, 0, NULL);
}

/* Reranks all rows of the index for the active queries [n]. */
void
IvfpqBulkRerankAll(IvfpqBulk *bulk, const int *active, int n)
{
	Tuplesortstate *tids = IvfpqSortTids(bulk->index, NULL, work_mem);
	uint64		ids[ROWS_AT_ONCE];
	uint64		last = 0;
	int			nrows = 0;
	Datum		value;
	bool		isnull;

	IvfpqRerankDims(&bulk->rerank, bulk->pending_dims,
					&bulk->warned_mismatched);
	while (IvfpqTuplesortGetDatum(tids, &value, &isnull))
	{
		uint64		id = (uint64) DatumGetInt64(value);

		CHECK_FOR_INTERRUPTS();
		if (id == last)
			continue;
		last = ids[nrows++] = id;
		if (nrows == ROWS_AT_ONCE)
		{
			rerank_for_all(bulk, ids, nrows, active, n);
			nrows = 0;
		}
	}
	rerank_for_all(bulk, ids, nrows, active, n);
	IvfpqRerankDims(&bulk->rerank, 0, NULL);
	tuplesort_end(tids);
}
