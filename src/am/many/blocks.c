/*
 * blocks.c
 *		Reranks what a round found: queries in blocks.
 *
 * A distance takes two vectors from memory, a row's and a query's, which takes
 * longer than to compute it.  Queries of a block are neighbors, and their
 * vectors stay in the processor's cache while the rows that are candidates of
 * any of them come in heap order, each once.  Neighbors share candidates, so
 * that hardly more rows are fetched than for all queries at once.
 */
#include "postgres.h"

#include "am/many/many.h"

/* Bytes of a block's vectors, at most: a part of a core's own cache. */
#define BLOCK_BYTES		(512 * 1024)

/* Note the bounds that refine records give of a search's candidates. */
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
	int			kept = 0;

	n = IvfpqRecordBounds(search,
						  query->is_boundable ? query->vector : NULL, ids, n,
						  bounds);
	bulk->report.refined += n;
	/* the records of a dead row and of another may name one row */
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

/* Note the rows of a search's candidates. */
static void
take_rows(IvfpqBulk *bulk, const IvfpqSearch *search, IvfpqBulkQuery *query)
{
	const GvTopK *candidates = &search->candidates;
	int			kept = 0;

	query->ids = MemoryContextAllocHuge(bulk->round,
										Max(candidates->count, 1) *
										sizeof(uint64));
	for (int i = 0; i < candidates->count; i++)
		if (bulk->pending_set == NULL ||
			tidset_lookup(bulk->pending_set, candidates->ids[i]) == NULL)
			query->ids[kept++] = candidates->ids[i];
	query->ncandidates = kept;
}

/*
 * Notes what a search for the query of that number found.  `nearest` is its
 * nearest list; `candidates` is how many the search was asked for.
 */
void
IvfpqBulkTake(IvfpqBulk *bulk, const IvfpqSearch *search, int number,
			  uint32 nearest, int candidates)
{
	IvfpqBulkQuery *query = &bulk->asked[number];

	query->nearest = nearest;
	query->is_drained = search->found_all &&
		search->candidates.count < candidates;
	query->fetched = query->invisible = query->nfetched = 0;
	query->bounds = NULL;
	query->ids = NULL;
	bulk->report.lists += search->lists_read;
	bulk->report.postings += search->postings_read;
	if (search->addresses)
		take_bounds(bulk, search, query);
	else
		take_rows(bulk, search, query);
}

static inline void
swap_bounds(IvfpqBulkBound *a, IvfpqBulkBound *b)
{
	IvfpqBulkBound was = *a;

	*a = *b;
	*b = was;
}

/*
 * Bring the least m of bounds [n > m] to the front, in no order (Hoare's
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
 * Chooses the candidates of a query that have to be fetched next, and puts
 * them at number nfetched.  While rows are missing, these are as many
 * candidates, those of the least bounds; then all that may be nearer than the
 * last row; without bounds, all.  Returns how many.
 */
static int
choose_next(const IvfpqBulk *bulk, IvfpqBulkQuery *query)
{
	IvfpqBulkBound *left = query->bounds + query->nfetched;
	int			nleft = query->ncandidates - query->nfetched;
	int			missing = bulk->k - query->nrows;
	int			chosen = 0;

	if (query->bounds == NULL || nleft <= missing)
		return nleft;
	if (missing > 0)
	{
		select_bounds(left, nleft, missing);
		return missing;
	}
	for (int i = 0; i < nleft; i++)
		if (!(left[i].bound > query->rows[0].distance)) /* it may be NaN */
			swap_bounds(&left[i], &left[chosen++]);
	return chosen;
}

/* Reranks what was found for the active queries [n], a block. */
static void
rerank_block(IvfpqBulk *bulk, const int *active, int n)
{
	int64		capacity = 0;
	int64		nkeys;
	uint64	   *keys;

	for (int i = 0; i < n; i++)
		capacity += bulk->asked[active[i]].ncandidates;
	keys = palloc_extended(2 * Max(capacity, 1) * sizeof(uint64),
						   MCXT_ALLOC_HUGE);
	do
	{
		nkeys = 0;
		for (int i = 0; i < n; i++)
		{
			IvfpqBulkQuery *query = &bulk->asked[active[i]];
			int			end = query->nfetched + choose_next(bulk, query);

			query->fetched += end - query->nfetched;
			for (; query->nfetched < end; query->nfetched++)
				keys[nkeys++] = IVFPQ_BULK_KEY(query->bounds == NULL ?
											   query->ids[query->nfetched] :
											   query->bounds[query->nfetched].id,
											   active[i]);
		}
		IvfpqBulkRerank(bulk, keys, keys + capacity, nkeys);
	} while (nkeys > 0);
	pfree(keys);
}

/* Sorts the active queries [n] by their nearest lists. */
static void
sort_active(const IvfpqBulk *bulk, int *active, int n)
{
	uint64	   *order = palloc_extended(2 * n * sizeof(uint64), MCXT_ALLOC_HUGE);

	for (int i = 0; i < n; i++)
		order[i] = (uint64) bulk->asked[active[i]].nearest << 32 | active[i];
	IvfpqSortBits(order, order + n, n, 32);
	for (int i = 0; i < n; i++)
		active[i] = (int) (uint32) order[i];
	pfree(order);
}

/*
 * Reranks what was found for the active queries [n], which come into another
 * order.
 */
void
IvfpqBulkRerankFound(IvfpqBulk *bulk, int *active, int n)
{
	int			at_a_time = (int) Max(BLOCK_BYTES / sizeof(float) /
									  bulk->queries.dims, 1);

	sort_active(bulk, active, n);
	for (int first = 0; first < n; first += at_a_time)
		rerank_block(bulk, active + first, Min(at_a_time, n - first));
}
