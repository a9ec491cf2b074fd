/*
 * bulkrerank.c
 *		Reranks the candidates of a round, with queries in blocks and rows in
 *		heap order.
 *
 * To compute a distance, the vectors of a row and a query are read from
 * memory, which takes longer than the computation.  The queries of a block are
 * neighbors.  Their vectors stay in the processor's cache, while the rows that
 * are candidates of any of these queries come in heap order.  Each row is
 * fetched once for a block, and reranked for all queries of the block that
 * have it among their candidates.  Neighbors share candidates, so that not
 * many more rows are fetched than with a single block of all queries.
 *
 * If gpuvecd has told the distances of a query's candidates, only its nearest
 * candidates are visited, to see whether they are visible (keep_visible).
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/bulk/bulksearch.h"
#include "am/search/heaptids.h"
#include "page/bufcache.h"

/*
 * A sort key says that a row must be reranked for a query.  The row's id is in
 * the high bits, and the query's number in the portion is in the low bits; or
 * there is the number of a NearRow in its batch.
 */
#define ROW_SHIFT		16
#define ROW_KEY(id, number)	((id) << ROW_SHIFT | (uint64) (number))
#define KEY_ROW(key)		((key) >> ROW_SHIFT)
#define KEY_NUMBER(key)		((int) ((key) & 0xFFFF))

StaticAssertDecl(IVFPQ_BULK_PORTION <= 1 << ROW_SHIFT,
				 "a query's number fits in a key");

/*
 * Maximum size in bytes of a block's vectors, or of the candidates of queries
 * that need no vectors, which must fit in part of a core's cache.
 */
#define BLOCK_BYTES		(512 * 1024)

/* Number of rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

/* As many bounds are selected by insertion, which rarely has to insert one. */
#define FEW_BOUNDS		32

/* The memory of a key's query is prefetched this many keys ahead. */
#define PREFETCHED		4

/* Number of distances between two checks for interrupts. */
#define DISTANCES_AT_ONCE	1024

/* Maximum number of rows in a NearBatch. */
#define NEAR_AT_ONCE	16384

StaticAssertDecl(NEAR_AT_ONCE <= 1 << ROW_SHIFT, "a number fits in a key");

/* Candidates whose distances are known, and which are looked for next. */
typedef struct NearBatch
{
	int			n;
	IvfpqBulkRow *rows[NEAR_AT_ONCE];	/* [n], by queries */
	int			queries[NEAR_AT_ONCE];	/* [n] numbers in the portion */
	bool		is_visible[NEAR_AT_ONCE];	/* [n] */
	uint64		keys[NEAR_AT_ONCE]; /* [n] sort keys */
	uint64		scratch[NEAR_AT_ONCE];	/* to sort keys */
	uint64		ids[NEAR_AT_ONCE];	/* [n] ids of rows, ascending */
	bool		seen[NEAR_AT_ONCE]; /* [n] the page of ids[i] says that the
									 * row is visible to everybody */
	IvfpqBulkRow copies[NEAR_AT_ONCE];	/* of rows that their queries may keep */
} NearBatch;

typedef struct ToldQuery
{
	int			number;			/* in the portion */
	int			lists;			/* number of lists searched for it */
	int64		postings;		/* likewise */
} ToldQuery;

/*
 * What gpuvecd's answers are taken with, kept for all queries of a request.
 *
 * `repeats` has the ids of one query's rows, with linear probing, each with
 * the query's serial number in the low bits.  Entries with another serial
 * number are free, so that the table is not cleared for each query.
 */
struct IvfpqBulkNearest
{
	uint64	   *repeats;		/* [1 << bits] */
	int			bits;
	uint64		serial;			/* 1 .. 0xFFFF */
	ToldQuery  *told;			/* [ntold] queries of a message whose nearest
								 * rows were taken from gpuvecd's answers */
	int64		ntold;
	int64		told_capacity;
	NearBatch	batch;
};

/* A row that has been fetched. */
typedef struct Fetched
{
	IvfpqBulkRow row;
	Datum		value;
	const float *vector;		/* [dims of the queries] the elements of
								 * `value`, some of which may be NaN or
								 * infinite; NULL if engine_distance cannot
								 * take them */
	double		square;			/* <vector, vector>, if is_cosine */
} Fetched;

/* Allocates what answers are taken with, in the current memory context. */
void
IvfpqBulkNearestInit(IvfpqBulk *bulk)
{
	bulk->nearest = palloc_extended(sizeof(*bulk->nearest), MCXT_ALLOC_HUGE);
	memset(bulk->nearest, 0, offsetof(struct IvfpqBulkNearest, batch));
	bulk->nearest->batch.n = 0;
}

/* Notes a search's candidates, with lower bounds from their refine records. */
static void
take_bounds(IvfpqBulk *bulk, const IvfpqSearch *search, IvfpqBulkQuery *query)
{
	int64		n = search->candidates.count;
	uint64	   *ids = search->candidates.ids;
	IvfpqRowBounds *bounds = palloc_extended(Max(n, 1) *
											 sizeof(IvfpqRowBounds),
											 MCXT_ALLOC_HUGE);
	int		   *first = palloc_extended(Max(n, 1) * sizeof(int),
										MCXT_ALLOC_HUGE);
	const float *floats = bulk->floats +
	(Size) (query - bulk->asked) * bulk->queries.dims;
	bool		is_boundable =
	IvfpqIsBoundable(&bulk->type, floats, bulk->queries.dims) &&
	IvfpqQueryIsBoundable(&bulk->model->gv, floats, search->query.vector);
	int			kept = 0;

	n = IvfpqRecordBounds(search, is_boundable ? search->query.vector : NULL,
						  ids, n, bounds);
	bulk->report.counts[IVFPQ_COUNT_REFINED] += n;
	/* the record of a dead row may lead to the same row as another record */
	n = IvfpqDistinct(ids, (int) n, (int) n, first);
	query->bounds = MemoryContextAllocHuge(bulk->round, Max(n, 1) *
										   sizeof(IvfpqBulkBound));
	for (int64 i = 0; i < n; i++)
	{
		uint64		id = ids[first[i]];

		if (bulk->pending_set != NULL &&
			tidset_lookup(bulk->pending_set, id) != NULL)
			continue;
		query->bounds[kept].bound = bounds[first[i]].least;
		query->bounds[kept++].id = id;
	}
	query->ncandidates = kept;
	pfree(first);
	pfree(bounds);
}

/* Notes a search's candidates, with the distances that gpuvecd has told. */
static void
take_distances(IvfpqBulk *bulk, const IvfpqSearch *search,
			   IvfpqBulkQuery *query)
{
	const GvTopK *found = &search->candidates;
	int			next = 0;
	int			kept = 0;

	query->bounds = MemoryContextAllocHuge(bulk->round, Max(found->count, 1) *
										   sizeof(IvfpqBulkBound));
	query->is_exact = true;
	query->nunknown = 0;
	for (int i = 0; i < found->count; i++)
	{
		const IvfpqKnownDistance *known =
		IvfpqNextDistance(&search->remote, &next, found->scores[i],
						  found->ids[i]);

		if (bulk->pending_set != NULL &&
			tidset_lookup(bulk->pending_set, found->ids[i]) != NULL)
			continue;
		query->bounds[kept].bound = IVFPQ_BULK_UNKNOWN;
		if (known != NULL && isfinite(known->distance))
			query->bounds[kept].bound = known->distance;
		else
			query->nunknown++;
		query->bounds[kept++].id = found->ids[i];
	}
	query->ncandidates = kept;
	bulk->report.counts[IVFPQ_COUNT_REFINED] += kept - query->nunknown;
}

void
IvfpqBulkTake(IvfpqBulk *bulk, const IvfpqSearch *search, int number,
			  uint32 nearest, int candidates)
{
	IvfpqBulkQuery *query = &bulk->asked[number];
	const GvTopK *found = &search->candidates;
	int			kept = 0;

	query->nearest = nearest;
	query->is_drained = search->found_all && found->count < candidates;
	query->nfetched = query->invisible = 0;
	query->bounds = NULL;
	query->is_exact = false;
	query->ids = NULL;
	bulk->report.counts[IVFPQ_COUNT_LISTS] += search->lists_read;
	bulk->report.counts[IVFPQ_COUNT_POSTINGS] += search->postings_read;
	if (search->addresses)
	{
		take_bounds(bulk, search, query);
		return;
	}
	if (search->remote.ndistances > 0 && !search->remote.is_behind)
	{
		take_distances(bulk, search, query);
		return;
	}
	query->ids = MemoryContextAllocHuge(bulk->round, Max(found->count, 1) *
										sizeof(uint64));
	for (int i = 0; i < found->count; i++)
		if (bulk->pending_set == NULL ||
			tidset_lookup(bulk->pending_set, found->ids[i]) == NULL)
			query->ids[kept++] = found->ids[i];
	query->ncandidates = kept;
}

/*
 * Comparator for the order in which scans return rows: by distance, then id.
 */
static int
compare_rows(const void *a, const void *b)
{
	const IvfpqBulkRow *x = a;
	const IvfpqBulkRow *y = b;
	int			c = float8_cmp_internal(x->distance, y->distance);

	return c != 0 ? c : (x->id > y->id) - (x->id < y->id);
}

/* Moves the first row of a heap of n rows down to its place. */
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

/* Keeps the row if it is among the k nearest rows of query `number`. */
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

static void
forget_rows(IvfpqBulk *bulk, const int *active, int n)
{
	for (int i = 0; i < n; i++)
	{
		bulk->asked[active[i]].nrows = 0;
		bulk->farthest[active[i]] = get_float8_nan();
	}
}

void
IvfpqBulkSort(IvfpqBulkQuery *query)
{
	qsort(query->rows, query->nrows, sizeof(IvfpqBulkRow), compare_rows);
}

/* Computes a row's distance from query `number` by the operator's function. */
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
 * Reranks a row for query `number`.
 *
 * The engine computes the distance in double, as gpuvecd does for rows that a
 * mirror has.  So it does not matter who computes it, although pgvector's
 * operators sum in float.
 *
 * The operator's function checks that all elements of both vectors are finite.
 * The engine's functions do not.  The queries' elements were checked before,
 * and a finite distance shows that the row's elements are finite, too.  If the
 * distance is not finite, the operator's function is called instead.
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
			distance = bulk->engine_distance(fetched->vector, floats, dims);
		if (!isfinite(distance))
			distance = call_distance(bulk, number, fetched);
	}

	/*
	 * Most rows are farther than the k rows kept, and are skipped here,
	 * before other data of the query is read from memory.  If either distance
	 * is NaN, the comparison is false, and the row is not skipped.
	 */
	if (distance > bulk->farthest[number])
		return;
	fetched->row.distance = distance;
	keep_row(bulk, number, &fetched->row);
}

/* Fetches the row with this id.  Returns false if there is none to rerank. */
static bool
fetch_row(IvfpqBulk *bulk, uint64 id, Fetched *fetched)
{
	int			dims = bulk->queries.dims;
	MemoryContext oldcontext;

	bulk->report.counts[IVFPQ_COUNT_RERANKED]++;
	if (!IvfpqRerankFetch(&bulk->rerank, id, &fetched->value))
		return false;
	/* detoast the vector once for all queries */
	oldcontext = MemoryContextSwitchTo(bulk->rerank.context);
	fetched->value = PointerGetDatum(PG_DETOAST_DATUM(fetched->value));
	fetched->row.id = id;
	fetched->row.tid = bulk->rerank.tid;
	/* if vector is NULL, the operator's function reports what is wrong */
	fetched->vector = NULL;
	if (bulk->type.has_toreal)
		fetched->vector = IvfpqValueFloats(&bulk->type, fetched->value, &dims);
	else if (bulk->engine_distance != NULL)
		fetched->vector = IvfpqRealFloats(DatumGetArrayTypeP(fetched->value),
										  dims);
	if (dims != bulk->queries.dims)
		fetched->vector = NULL;
	MemoryContextSwitchTo(oldcontext);
	if (fetched->vector != NULL && bulk->is_cosine)
		fetched->square = gv_square(fetched->vector, dims);
	return true;
}

/*
 * Reranks the row that all keys [n] belong to, for the query of each key.
 * Keys of other rows follow, up to `end`.
 */
static void
rerank_row(IvfpqBulk *bulk, const uint64 *keys, int64 n, const uint64 *end)
{
	int			dims = bulk->queries.dims;
	Fetched		fetched;
	bool		found = fetch_row(bulk, KEY_ROW(keys[0]), &fetched);
	MemoryContext oldcontext = MemoryContextSwitchTo(bulk->rerank.context);

	for (int64 i = 0; i < n; i++)
	{
		/* prefetch the memory of a later key's query */
		if (end - keys - i > PREFETCHED)
		{
			Size		later = KEY_NUMBER(keys[i + PREFETCHED]);
			const float *floats = bulk->floats + later * dims;

			IvfpqFetch((const char *) floats, (const char *) (floats + dims));
			__builtin_prefetch(bulk->rows + later * bulk->k);
		}
		if (found)
			rerank_for(bulk, KEY_NUMBER(keys[i]), &fetched);
		else
			bulk->asked[KEY_NUMBER(keys[i])].invisible++;
	}
	MemoryContextSwitchTo(oldcontext);
	if (found)
		IvfpqRerankDone(&bulk->rerank);
}

/* Returns how many of the sorted keys [n] belong to the first key's row. */
static int64
count_same(const uint64 *keys, int64 n)
{
	int64		same = 1;

	while (same < n && KEY_ROW(keys[same]) == KEY_ROW(keys[0]))
		same++;
	return same;
}

/*
 * Reranks the row of each of the keys [n] for the query of that key.  Sorts
 * the keys first, with scratch [n] as working memory.
 */
static void
bulk_rerank(IvfpqBulk *bulk, uint64 *keys, uint64 *scratch, int64 n)
{
	uint64		ids[ROWS_AT_ONCE];

	IvfpqSortBits(keys, scratch, n, ROW_SHIFT);
	for (int64 next = 0; next < n;)
	{
		int64		end = next;
		int			nrows = 0;

		while (end < n && nrows < ROWS_AT_ONCE)
		{
			ids[nrows++] = KEY_ROW(keys[end]);
			end += count_same(keys + end, n - end);
		}
		IvfpqRerankPrefetch(&bulk->rerank, ids, nrows, true);
		while (next < end)
		{
			int64		same = count_same(keys + next, end - next);

			CHECK_FOR_INTERRUPTS();
			rerank_row(bulk, keys + next, same, keys + n);
			next += same;
		}
		IvfpqRerankReleasePages(&bulk->rerank);
	}
}

/*
 * Fetches those rows of the sorted batch that are not known to be visible, each
 * once, and sets is_visible and the TID of the rows that the snapshot sees.
 */
static void
fetch_visible(IvfpqBulk *bulk, NearBatch *batch)
{
	IvfpqRerank *rerank = &bulk->rerank;
	uint64	   *ids = batch->scratch;
	int			nrows = 0;
	uint64		last = 0;		/* no row's id */
	bool		is_visible = false;

	for (int i = 0; i < batch->n; i++)
		if (!batch->seen[i] &&
			(nrows == 0 || ids[nrows - 1] != batch->ids[i]))
			ids[nrows++] = batch->ids[i];
	if (nrows == 0)
		return;
	IvfpqRerankPrefetch(rerank, ids, nrows, true);
	for (int i = 0; i < batch->n; i++)
	{
		int			number = KEY_NUMBER(batch->keys[i]);

		if (batch->seen[i])
			continue;
		if (batch->ids[i] != last)
		{
			CHECK_FOR_INTERRUPTS();
			last = batch->ids[i];
			is_visible = IvfpqRerankFetch(rerank, last, NULL);
			bulk->report.counts[IVFPQ_COUNT_RERANKED]++;
		}
		batch->is_visible[number] = is_visible;
		batch->rows[number]->tid = rerank->tid;
	}
	IvfpqRerankReleasePages(rerank);
}

/*
 * Sets is_visible of the batch's rows, and the TID of those that the snapshot
 * sees.
 *
 * First looks at the rows' pages, in heap order.  Most say that their rows are
 * visible to everybody, so that the rows need not be fetched (search/README,
 * "Many queries at once").  The other rows are fetched, without their values.
 */
static void
find_visible(IvfpqBulk *bulk, NearBatch *batch)
{
	IvfpqSortBits(batch->keys, batch->scratch, batch->n, ROW_SHIFT);
	for (int i = 0; i < batch->n; i++)
		batch->ids[i] = KEY_ROW(batch->keys[i]);
	if (bulk->sees_pages)
		IvfpqRerankLook(&bulk->rerank, batch->ids, batch->n, batch->seen);
	else
		memset(batch->seen, 0, sizeof(batch->seen));
	for (int i = 0; i < batch->n; i++)
	{
		int			number = KEY_NUMBER(batch->keys[i]);

		batch->is_visible[number] = batch->seen[i];
		IvfpqIdToTid(batch->ids[i], &batch->rows[number]->tid);
	}
	fetch_visible(bulk, batch);
}

/* Keeps those rows of the batch that the snapshot sees, and empties the batch. */
static void
keep_visible(IvfpqBulk *bulk, NearBatch *batch)
{
	if (batch->n == 0)
		return;
	find_visible(bulk, batch);
	/* in the order of queries, which finds their rows in the cache */
	for (int i = 0; i < batch->n; i++)
		if (batch->is_visible[i])
			keep_row(bulk, batch->queries[i], batch->rows[i]);
		else
			bulk->asked[batch->queries[i]].invisible++;
	batch->n = 0;
}

/* Adds a row to the batch, which is not full. */
static inline void
add_near(NearBatch *batch, int number, IvfpqBulkRow *row)
{
	batch->rows[batch->n] = row;
	batch->queries[batch->n] = number;
	batch->keys[batch->n] = ROW_KEY(row->id, batch->n);
	batch->n++;
}

/* Empties the table of repeats, and makes it large enough for n ids. */
static void
begin_repeats(struct IvfpqBulkNearest *near, int n)
{
	int			bits = pg_ceil_log2_32(Max(n, 1)) + 1;

	if (bits > near->bits)
	{
		if (near->repeats != NULL)
			pfree(near->repeats);
		near->bits = bits;
		near->repeats = palloc_extended(sizeof(uint64) << bits,
										MCXT_ALLOC_HUGE);
		near->serial = 0xFFFF;
	}
	if (near->serial == 0xFFFF)
	{
		memset(near->repeats, 0, sizeof(uint64) << near->bits);
		near->serial = 0;
	}
	near->serial++;
}

/* Returns whether this id was passed before, since begin_repeats. */
static inline bool
is_repeat(struct IvfpqBulkNearest *near, uint64 id)
{
	uint32		mask = ((uint32) 1 << near->bits) - 1;
	uint32		at = (uint32) (id * IVFPQ_GOLDEN_RATIO >> (64 - near->bits));
	uint64		entry = id << 16 | near->serial;

	for (; (near->repeats[at] & 0xFFFF) == near->serial; at = (at + 1) & mask)
		if (near->repeats[at] == entry)
			return true;
	near->repeats[at] = entry;
	return false;
}

/* Keeps those rows of told queries that the snapshot sees. */
static void
look_at_told(IvfpqBulk *bulk)
{
	NearBatch  *batch = &bulk->nearest->batch;

	if (batch->n == 0)
		return;
	find_visible(bulk, batch);
	for (int i = 0; i < batch->n; i++)
		if (!batch->is_visible[i])
			bulk->asked[batch->queries[i]].invisible++;
	batch->n = 0;
}

/*
 * The k nearest rows are found in one pass over the hits, which stay in the
 * processor's cache, and are not copied but to query->rows.
 */
bool
IvfpqBulkTakeNearest(IvfpqBulk *bulk, const IvfpqRemoteResult *answer,
					 int number, int capacity, int candidates)
{
	const GvSearchReply *head = &answer->head;
	struct IvfpqBulkNearest *near = bulk->nearest;
	IvfpqBulkQuery *query = &bulk->asked[number];
	IvfpqBulkRow *rows = query->rows;
	int			k = bulk->k;
	bool		repeats = bulk->model->meta.lists_per_row > 1;
	int			n = 0;
	int			nrows = 0;

	if (k > FEW_BOUNDS || query->nrows > 0 || bulk->pending_set != NULL)
		return false;
	if (repeats)
		begin_repeats(near, head->nhits);
	for (int i = 0; i < head->nhits && n < candidates; i++)
	{
		uint64		id = IvfpqWordsToId(answer->hits[i].rowid);
		double		distance = answer->distances[i].distance;
		int			at = nrows;

		if (repeats && is_repeat(near, id))
			continue;
		if (!answer->distances[i].known || !isfinite(distance))
			return false;
		n++;
		if (nrows < k)
			nrows++;
		else if (distance > rows[--at].distance ||
				 (distance == rows[at].distance && id > rows[at].id))
			continue;
		for (; at > 0 && (rows[at - 1].distance > distance ||
						  (rows[at - 1].distance == distance &&
						   rows[at - 1].id > id)); at--)
			rows[at] = rows[at - 1];
		rows[at].distance = distance;
		rows[at].id = id;
	}
	query->nearest = (uint32) head->nearest;
	query->is_drained = head->nhits < capacity && n < candidates;
	query->ncandidates = n;
	query->nfetched = query->nrows = nrows;
	query->invisible = 0;
	IvfpqGrow(near->told, near->ntold, near->told_capacity);
	near->told[near->ntold++] = (ToldQuery)
	{
		number, head->nprobed, head->postings
	};
	if (near->batch.n + nrows > NEAR_AT_ONCE)
		look_at_told(bulk);
	for (int i = 0; i < nrows; i++)
		add_near(&near->batch, number, &rows[i]);
	return true;
}

int
IvfpqBulkSettle(IvfpqBulk *bulk, int *again)
{
	struct IvfpqBulkNearest *near = bulk->nearest;
	int			nagain = 0;

	look_at_told(bulk);
	for (int64 i = 0; i < near->ntold; i++)
	{
		const ToldQuery *told = &near->told[i];
		IvfpqBulkQuery *query = &bulk->asked[told->number];

		if (query->invisible > 0)
		{
			query->nrows = 0;
			again[nagain++] = told->number;
			continue;
		}
		bulk->report.counts[IVFPQ_COUNT_LISTS] += told->lists;
		bulk->report.counts[IVFPQ_COUNT_POSTINGS] += told->postings;
		bulk->report.counts[IVFPQ_COUNT_REFINED] += query->ncandidates;
	}
	near->ntold = 0;
	return nagain;
}

static inline void
swap_bounds(IvfpqBulkBound *a, IvfpqBulkBound *b)
{
	IvfpqBulkBound was = *a;

	*a = *b;
	*b = was;
}

/*
 * Moves the m smallest of bounds [n] to the front, ascending, by insertion.
 * Candidates come in the order of their scores, so few of them are inserted.
 */
static void
select_few_bounds(IvfpqBulkBound *bounds, int n, int m)
{
	for (int i = 1; i < n; i++)
	{
		IvfpqBulkBound candidate = bounds[i];
		int			at = Min(i, m - 1);

		if (i >= m)
		{
			if (candidate.bound >= bounds[m - 1].bound)
				continue;
			bounds[i] = bounds[m - 1];
		}
		for (; at > 0 && bounds[at - 1].bound > candidate.bound; at--)
			bounds[at] = bounds[at - 1];
		bounds[at] = candidate;
	}
}

/*
 * Moves the m < n smallest of bounds [n] to the front, in any order (Hoare's
 * FIND).
 */
static void
select_bounds(IvfpqBulkBound *bounds, int n, int m)
{
	int			low = 0;
	int			high = n - 1;

	while (low < high)
	{
		double		pivot = bounds[(low + high) / 2].bound;
		int			i = low;
		int			j = high;

		while (i <= j)
		{
			while (bounds[i].bound < pivot)
				i++;
			while (bounds[j].bound > pivot)
				j--;
			if (i <= j)
				swap_bounds(&bounds[i++], &bounds[j--]);
		}
		if (m <= j)
			high = j;
		else if (m >= i)
			low = i;
		else
			return;
	}
}

/*
 * Chooses the candidates of a query that must be fetched next, moves them to
 * index nfetched, and returns their number.  Without bounds, chooses all
 * candidates that are left.  If m of the k rows are missing, chooses the m
 * candidates with the least bounds.  If no row is missing, chooses all
 * candidates that may be nearer than the farthest row.
 *
 * If distances are known and one candidate was invisible, chooses all that are
 * left.  Few visits would estimate badly how many rows the snapshot sees, and
 * then the query would take another round (search_round).
 */
static int
choose_next(const IvfpqBulk *bulk, IvfpqBulkQuery *query)
{
	IvfpqBulkBound *left = query->bounds + query->nfetched;
	int			nleft = query->ncandidates - query->nfetched;
	int			missing = bulk->k - query->nrows;
	int			chosen = 0;

	if (query->bounds == NULL || nleft <= missing ||
		(query->is_exact && query->invisible > 0))
		return nleft;
	if (missing > 0)
	{
		if (missing <= FEW_BOUNDS)
			select_few_bounds(left, nleft, missing);
		else
			select_bounds(left, nleft, missing);
		return missing;
	}
	for (int i = 0; i < nleft; i++)
		/* the distance may be NaN */
		if (!(left[i].bound > query->rows[0].distance))
			swap_bounds(&left[i], &left[chosen++]);
	return chosen;
}

/* Reranks the candidates of the active queries [n], which are one block. */
static void
rerank_block(IvfpqBulk *bulk, const int *active, int n, NearBatch *near)
{
	int64		capacity = 0;
	int64		nkeys;
	bool		more;
	uint64	   *keys;

	for (int i = 0; i < n; i++)
		if (!bulk->asked[active[i]].is_exact)
			capacity += bulk->asked[active[i]].ncandidates;
		else
			capacity += bulk->asked[active[i]].nunknown;
	keys = palloc_extended(2 * Max(capacity, 1) * sizeof(uint64),
						   MCXT_ALLOC_HUGE);
	do
	{
		more = false;
		nkeys = 0;
		for (int i = 0; i < n; i++)
		{
			IvfpqBulkQuery *query = &bulk->asked[active[i]];
			int			end = query->nfetched + choose_next(bulk, query);

			more |= end > query->nfetched;
			for (; query->nfetched < end; query->nfetched++)
			{
				const IvfpqBulkBound *bound = query->bounds == NULL ? NULL :
				&query->bounds[query->nfetched];

				if (query->is_exact && bound->bound != IVFPQ_BULK_UNKNOWN)
				{
					IvfpqBulkRow *row = &near->copies[near->n];

					row->distance = bound->bound;
					row->id = bound->id;
					add_near(near, active[i], row);
					if (near->n == NEAR_AT_ONCE)
						keep_visible(bulk, near);
				}
				else
					keys[nkeys++] = ROW_KEY(bound == NULL ?
											query->ids[query->nfetched] :
											bound->id, active[i]);
			}
		}
		bulk_rerank(bulk, keys, keys + capacity, nkeys);
		keep_visible(bulk, near);
	} while (more);
	pfree(keys);
}

void
IvfpqBulkRerankFound(IvfpqBulk *bulk, int *active, int n)
{
	uint64	   *order = palloc_extended(2 * n * sizeof(uint64), MCXT_ALLOC_HUGE);

	/* sort the queries by their nearest lists */
	for (int i = 0; i < n; i++)
		order[i] = (uint64) bulk->asked[active[i]].nearest << 32 | active[i];
	IvfpqSortBits(order, order + n, n, 32);
	for (int i = 0; i < n; i++)
		active[i] = (int) (uint32) order[i];
	pfree(order);
	for (int first = 0, end; first < n; first = end)
	{
		Size		bytes = 0;

		for (end = first; end < n && bytes < BLOCK_BYTES; end++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[active[end]];

			if (query->is_exact && query->nunknown == 0)
				bytes += query->ncandidates * sizeof(IvfpqBulkBound);
			else
				bytes += bulk->queries.dims * sizeof(float);
		}
		rerank_block(bulk, active + first, end - first, &bulk->nearest->batch);
	}
}

/* Reranks the sorted rows ids [nrows] for each of the active queries [n]. */
static void
rerank_for_all(IvfpqBulk *bulk, const uint64 *ids, int nrows,
			   const int *active, int n)
{
	IvfpqRerankPrefetch(&bulk->rerank, ids, nrows, true);
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
	IvfpqRerankReleasePages(&bulk->rerank);
}

/*
 * Forgets the rows kept for the active queries [n], and reranks the sorted rows
 * ids [nrows], some of which may be pending.  Queries come in blocks, whose
 * vectors stay in the processor's cache.
 */
static void
rerank_only(IvfpqBulk *bulk, const uint64 *ids, int64 nrows,
			const int *active, int n)
{
	int			block = Max(1, BLOCK_BYTES /
							(bulk->queries.dims * (int) sizeof(float)));
	bool		recheck_all_keys = bulk->rerank.recheck_all_keys;

	forget_rows(bulk, active, n);
	/* pending rows have no abbreviated keys */
	bulk->rerank.recheck_all_keys = true;
	bulk->rerank.dims = bulk->pending_dims;
	for (int first = 0; first < n; first += block)
		for (int64 i = 0; i < nrows; i += ROWS_AT_ONCE)
			rerank_for_all(bulk, ids + i, (int) Min(ROWS_AT_ONCE, nrows - i),
						   active + first, Min(block, n - first));
	bulk->rerank.dims = 0;
	bulk->rerank.recheck_all_keys = recheck_all_keys;
}

bool
IvfpqBulkReadMatching(IvfpqBulk *bulk, int64 most)
{
	IvfpqSort	tids;
	int64		capacity = 0;
	uint64		id = 0;
	bool		are_few = IvfpqSortTids(&tids, bulk->index,
										&bulk->quals.condition, most,
										work_mem);

	while (are_few && IvfpqNextTid(&tids, &id))
	{
		IvfpqGrow(bulk->matching, bulk->nmatching, capacity);
		bulk->matching[bulk->nmatching++] = id;
	}
	IvfpqSortEnd(&tids);
	if (are_few && bulk->nmatching == 0)
		bulk->quals.never = true;
	return are_few;
}

void
IvfpqBulkRerankPending(IvfpqBulk *bulk, const int *active, int n)
{
	rerank_only(bulk, bulk->pending, bulk->npending, active, n);
}

void
IvfpqBulkRerankMatching(IvfpqBulk *bulk, const int *active, int n)
{
	rerank_only(bulk, bulk->matching, bulk->nmatching, active, n);
}

void
IvfpqBulkRerankAll(IvfpqBulk *bulk, const int *active, int n)
{
	IvfpqSort	tids;
	uint64		ids[ROWS_AT_ONCE];
	uint64		id = 0;
	int			nrows = 0;
	bool		recheck_all_keys = bulk->rerank.recheck_all_keys;

	forget_rows(bulk, active, n);
	(void) IvfpqSortTids(&tids, bulk->index, bulk->nconditions > 0 ?
						 &bulk->quals.condition : NULL, PG_INT64_MAX, work_mem);
	bulk->rerank.recheck_all_keys = true;
	bulk->rerank.dims = bulk->pending_dims;
	while (IvfpqNextTid(&tids, &id))
	{
		ids[nrows++] = id;
		if (nrows == ROWS_AT_ONCE)
		{
			rerank_for_all(bulk, ids, nrows, active, n);
			nrows = 0;
		}
	}
	rerank_for_all(bulk, ids, nrows, active, n);
	bulk->rerank.dims = 0;
	bulk->rerank.recheck_all_keys = recheck_all_keys;
	IvfpqSortEnd(&tids);
}
