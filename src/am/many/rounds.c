/*
 * rounds.c
 *		Portions of queries, and the rounds in which each is searched.
 *
 * A round is to many queries what a batch is to a scan: it has the search
 * parameters for a number of rows (params.c).  The first round is for the rows
 * requested.  Queries that it left short of rows, because the snapshot does
 * not see enough of the candidates, go on to the next round, which is for
 * more.  Where a scan would make a full pass, all rows are reranked.  Each
 * round reranks its candidates again, since few queries see a second round.
 *
 * In a round queries go through the search IVFPQ_TOGETHER at a time, in the
 * order of their nearest lists, so that those side by side have lists in
 * common; and slices of queries, as many as memory allows, have their rows
 * reranked together.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/many/many.h"
#include "client/client.h"
#include "page/pending.h"
#include "pgcompat.h"

/* The factor from a round's rows to the next one's, as in a scan's batches. */
#define ROUND_GROWTH	4.0

/* Queries whose nearest lists are searched for together. */
#define NEAR_TOGETHER	256

/* A round: its search parameters and its queries. */
typedef struct Round
{
	IvfpqSearchParams params;
	bool		is_last;		/* it takes all lists that may be read */
	int		   *active;			/* [nactive] numbers of queries */
	int			nactive;

	/* of the slice under way, [nactive]: */
	int		   *left;			/* [nleft] those gpuvecd did not answer; */
	int			nleft;			/* of these: */
	uint64	   *lists;			/* [nleft][probes] nearest lists, and their */
	float	   *scores;			/* [nleft][probes] */
	int		   *nlists;
	uint64	   *order;			/* by nearest list: that, and which one */
	uint64	   *scratch;		/* to sort them */
} Round;

/* Argument of take_answer. */
typedef struct Asked
{
	IvfpqBulk  *bulk;
	Round	   *round;
} Asked;

/* The nearest lists of n of the queries that are left, from `first` on. */
static void
find_some_lists(IvfpqBulk *bulk, Round *round, int first, int n)
{
	IvfpqSearch *search = &bulk->searches[0];
	int			probes = round->params.probes;
	const float *vectors[NEAR_TOGETHER];
	GvTopK		lists[NEAR_TOGETHER] = {{0}};

	for (int i = 0; i < n; i++)
	{
		Size		at = (Size) (first + i) * probes;

		vectors[i] = bulk->asked[round->left[first + i]].vector;
		lists[i].capacity = probes;
		lists[i].ids = round->lists + at;
		lists[i].scores = round->scores + at;
	}
	search->query.deep = round->params.beyond_parents;
	IvfpqNearestListsBulk(bulk->index, bulk->model, &search->query, vectors, n,
						  lists);
	for (int i = 0; i < n; i++)
	{
		round->nlists[first + i] = lists[i].count;
		round->order[first + i] = (uint64) (first + i);
		if (lists[i].count > 0) /* else it is damaged */
			round->order[first + i] |= lists[i].ids[0] << 32;
	}
}

/* The nearest lists of the queries that are left, and an order of these. */
static void
find_lists(IvfpqBulk *bulk, Round *round)
{
	for (int first = 0; first < round->nleft; first += NEAR_TOGETHER)
		find_some_lists(bulk, round, first,
						Min(NEAR_TOGETHER, round->nleft - first));
	IvfpqSortBits(round->order, round->scratch, round->nleft, 32);
}

/* Gives a search the query, and the lists that were found for it. */
static void
set_search(IvfpqBulk *bulk, const Round *round, int i, IvfpqSearch *search)
{
	int			probes = round->params.probes;

	IvfpqSearchQuery(search, bulk->asked[round->left[i]].vector);
	IvfpqTopKResize(&search->lists, probes);
	search->lists.count = round->nlists[i];
	memcpy(search->lists.ids, round->lists + (Size) i * probes,
		   round->nlists[i] * sizeof(uint64));
	memcpy(search->lists.scores, round->scores + (Size) i * probes,
		   round->nlists[i] * sizeof(float));
}

/* Find the candidates of the slice's queries that are left. */
static void
find_candidates(IvfpqBulk *bulk, Round *round)
{
	int			at_a_time = IvfpqBulkTogether(bulk, &round->params);

	find_lists(bulk, round);
	for (int first = 0; first < round->nleft; first += at_a_time)
	{
		int			n = Min(at_a_time, round->nleft - first);

		for (int s = 0; s < n; s++)
			set_search(bulk, round, (int) (uint32) round->order[first + s],
					   &bulk->searches[s]);
		IvfpqSearchTogether(bulk->searches, n, round->params.candidates);
		for (int s = 0; s < n; s++)
		{
			uint64		order = round->order[first + s];

			IvfpqBulkTake(bulk, &bulk->searches[s], round->left[(uint32) order],
						  (uint32) (order >> 32), round->params.candidates);
		}
	}
}

/* gpuvecd has an answer to a query of the slice, or it is left. */
static void
take_answer(void *arg, IvfpqSearch *search, int i, bool found)
{
	Asked	   *asked = arg;
	Round	   *round = asked->round;

	CHECK_FOR_INTERRUPTS();
	if (found)
		IvfpqBulkTake(asked->bulk, search, round->active[i],
					  search->remote.nearest, round->params.candidates);
	else
		round->left[round->nleft++] = round->active[i];
}

/* The vectors of the slice's queries, one behind the other. */
static const float *
slice_vectors(IvfpqBulk *bulk, const Round *round)
{
	Size		dims = bulk->model->meta.dims;
	int			same = 0;
	float	   *vectors;

	/* a second round's come in the order in which the first reranked them */
	while (same < round->nactive && round->active[same] == same)
		same++;
	if (same == round->nactive)
		return bulk->vectors;
	vectors = MemoryContextAllocHuge(bulk->round, round->nactive * dims *
									 sizeof(float));
	for (int i = 0; i < round->nactive; i++)
		memcpy(vectors + i * dims, bulk->asked[round->active[i]].vector,
			   dims * sizeof(float));
	return vectors;
}

/* Have gpuvecd find candidates; the queries that it has none for are left. */
static void
ask_candidates(IvfpqBulk *bulk, Round *round)
{
	Asked		asked = {bulk, round};

	round->nleft = 0;
	if (!IvfpqServerIsWanted())
	{
		memcpy(round->left, round->active, round->nactive * sizeof(int));
		round->nleft = round->nactive;
		return;
	}
	bulk->searches[0].query.deep = round->params.beyond_parents;
	IvfpqSearchBulkRemote(&bulk->searches[0], slice_vectors(bulk, round),
						  round->nactive, round->params.probes,
						  round->params.candidates, take_answer, &asked);
}

/* Searches for the slice's queries, and reranks what was found. */
static void
search_slice(IvfpqBulk *bulk, Round *round)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(bulk->round);
	Size		n = round->nactive;
	Size		probes = round->params.probes;

	round->lists = palloc_extended(n * probes * sizeof(uint64),
								   MCXT_ALLOC_HUGE);
	round->scores = palloc_extended(n * probes * sizeof(float),
									MCXT_ALLOC_HUGE);
	round->nlists = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->left = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->order = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	round->scratch = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	MemoryContextSwitchTo(oldcontext);

	for (Size i = 0; i < n; i++)
		IvfpqBulkForget(bulk, round->active[i]);
	IvfpqBulkRerankPending(bulk, round->active, round->nactive);
	ask_candidates(bulk, round);
	find_candidates(bulk, round);
	IvfpqBulkRerankFound(bulk, round->active, round->nactive);
	MemoryContextReset(bulk->round);
}

/*
 * Returns whether the query has the rows that it asked for.  A search has more
 * candidates than its quota, because scores are not exact.  Where more are
 * invisible than half of this surplus, the round counts for its quota times
 * the fraction that is visible, as in a scan.
 */
static bool
is_answered(const IvfpqBulk *bulk, const Round *round,
			const IvfpqBulkQuery *query)
{
	double		seen = 1;
	double		good = round->params.quota;

	if (query->invisible > 0)
		seen = 1 - (double) query->invisible / query->fetched;
	if (query->invisible > 0 &&
		query->ncandidates * seen < (query->ncandidates + good) / 2)
		good *= seen;
	return (query->nrows == bulk->k && bulk->k <= good) ||
		(round->is_last && query->is_drained);
}

/*
 * Searches for the active queries [n].  Returns how many are not answered yet;
 * these are then the first.  Sets *drained to the round's probes if all rows
 * of one of these queries' lists were candidates.
 */
static int
search_round(IvfpqBulk *bulk, Round *round, int *active, int n, int *drained)
{
	Size		bytes = IvfpqBulkSliceBytes(bulk, &round->params);
	int			at_a_time = (int) Max(1, Min((Size) n, IvfpqMemoryLimit() /
											 2 / bytes));
	int			nleft = 0;

	for (int first = 0; first < n; first += at_a_time)
	{
		round->active = active + first;
		round->nactive = Min(at_a_time, n - first);
		search_slice(bulk, round);
		for (int i = first; i < Min(first + at_a_time, n); i++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[active[i]];

			if (is_answered(bulk, round, query))
				continue;
			if (query->is_drained)
				*drained = round->params.probes;
			active[nleft++] = active[i];
		}
	}
	bulk->report.batches++;
	if (bulk->report.probes == 0)
	{
		bulk->report.probes = round->params.probes;
		bulk->report.candidates = round->params.candidates;
	}
	return nleft;
}

/* Search for all queries of the portion. */
static void
search_portion(IvfpqBulk *bulk)
{
	double		rows = Max(bulk->k, IVFPQ_FIRST_ROWS);
	int		   *active = MemoryContextAllocHuge(bulk->portion,
												bulk->nasked * sizeof(int));
	int			n = bulk->nasked;
	int			drained = 0;
	Round		round;

	for (int i = 0; i < n; i++)
		active[i] = i;
	for (; n > 0; rows = Max(rows * ROUND_GROWTH, IVFPQ_BULK_SECOND))
	{
		if (!IvfpqBulkParams(bulk, rows, drained, &round.params, &round.is_last) ||
			!IvfpqBulkFits(bulk, &round.params))
		{
			for (int i = 0; i < n; i++)
				IvfpqBulkForget(bulk, active[i]);
			IvfpqBulkRerankAll(bulk, active, n);
			bulk->report.full_pass = true;
			return;
		}
		n = search_round(bulk, &round, active, n, &drained);
	}
}

/* Adds the next query to the portion. */
static void
add_query(IvfpqBulk *bulk)
{
	int			number = bulk->nasked++;
	IvfpqBulkQuery *query = &bulk->asked[number];
	int			dims = bulk->queries.dims;
	const float *vector = bulk->floats + (Size) number * dims;
	MemoryContext oldcontext;
	Datum		value;

	memset(query, 0, sizeof(*query));
	query->rows = bulk->rows + (Size) number * bulk->k;
	if (bulk->is_cosine)
		bulk->squares[number] = gv_square(vector, dims);
	if (bulk->real_distance == NULL)
	{
		oldcontext = MemoryContextSwitchTo(bulk->round);
		value = IvfpqCastVector(&bulk->cast, vector, dims);
		/* as the type has it: halfvec rounds */
		if (bulk->type.has_toreal)
			vector = IvfpqValueFloats(&bulk->type, value, &dims);
		MemoryContextSwitchTo(oldcontext);
		query->value = datumCopy(value, false, -1);
	}
	if (bulk->vectors != NULL)
	{
		float	   *to = bulk->vectors + (Size) number * dims;

		IvfpqTransform(bulk->index, bulk->model, vector, to);
		query->vector = to;
		query->is_boundable = IvfpqIsBoundable(&bulk->type, vector, dims) &&
			IvfpqQueryIsBoundable(&bulk->model->gv, vector, to);
	}
	MemoryContextReset(bulk->round);
}

/*
 * Answers a portion of the queries, from number first on, into bulk->asked.
 * Returns how many.
 */
int
IvfpqBulkNext(IvfpqBulk *bulk, int first)
{
	int			n = Min(IvfpqBulkPortion(bulk), bulk->queries.n - first);
	MemoryContext oldcontext;

	MemoryContextReset(bulk->portion);
	oldcontext = MemoryContextSwitchTo(bulk->portion);
	bulk->asked = palloc_extended(n * sizeof(IvfpqBulkQuery),
								  MCXT_ALLOC_HUGE);
	bulk->nasked = 0;
	bulk->floats = bulk->queries.vectors + (Size) first * bulk->queries.dims;
	bulk->vectors = NULL;
	if (bulk->model->meta.nlists > 0)
		bulk->vectors = palloc_extended((Size) n * bulk->queries.dims *
										sizeof(float), MCXT_ALLOC_HUGE);
	bulk->squares = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	bulk->farthest = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	bulk->rows = palloc_extended((Size) n * bulk->k * sizeof(IvfpqBulkRow),
								 MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_query(bulk);
	}
	MemoryContextSwitchTo(oldcontext);
	/* not in the portion's memory: searches keep theirs */
	search_portion(bulk);
	for (int i = 0; i < n; i++)
		IvfpqBulkSort(&bulk->asked[i]);
	return n;
}

/*
 * Reads the pending rows.  If they are too many, all rows are to be reranked.
 */
static void
read_pending(IvfpqBulk *bulk)
{
	IvfpqPendingReader reader;
	int64		capacity = IVFPQ_PENDING_PER_PAGE;
	int64		n = 0;
	int			count;

	bulk->pending = palloc(capacity * sizeof(uint64));
	IvfpqPendingOpen(&reader, bulk->index, &bulk->model->meta);
	while (n <= IVFPQ_MIN_RERANKED && IvfpqPendingNext(&reader, &count))
	{
		if (n + count > capacity)
		{
			capacity = 2 * (n + count);
			bulk->pending = repalloc(bulk->pending, capacity * sizeof(uint64));
		}
		for (int i = 0; i < count; i++)
			bulk->pending[n++] = IvfpqTidToId(&reader.tids[i]);
	}
	IvfpqPendingClose(&reader);
	bulk->everything = n > IVFPQ_MIN_RERANKED;
	if (n == 0 || bulk->everything)
		return;
	/* a page may have been read twice */
	qsort(bulk->pending, n, sizeof(uint64), IvfpqCompareNumbers);
	bulk->pending_set = tidset_create(CurrentMemoryContext, (uint32) n, NULL);
	for (int64 i = 0; i < n; i++)
	{
		bool		found;

		tidset_insert(bulk->pending_set, bulk->pending[i], &found);
		if (!found)
			bulk->pending[bulk->npending++] = bulk->pending[i];
	}
}

/*
 * Prepare to answer queries.  Pending rows are read before any list, since
 * rows move from there to lists.
 */
void
IvfpqBulkBegin(IvfpqBulk *bulk)
{
	bool		addresses = bulk->model->meta.refine != IVFPQ_REFINE_NONE;

	bulk->portion = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq queries",
										  ALLOCSET_DEFAULT_SIZES);
	bulk->round = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq round",
										ALLOCSET_DEFAULT_SIZES);
	IvfpqRerankBegin(&bulk->rerank, bulk->heap, bulk->index,
					 bulk->snapshot);
	if (bulk->model->meta.nlists == 0)
	{
		bulk->everything = true;
		return;
	}
	read_pending(bulk);
	bulk->nsearches = IvfpqBulkSearches(bulk);
	bulk->searches = palloc0(bulk->nsearches * sizeof(IvfpqSearch));
	for (int s = 0; s < bulk->nsearches; s++)
	{
		IvfpqSearchInit(&bulk->searches[s], bulk->index, bulk->model);
		bulk->searches[s].addresses = addresses;
	}
}

void
IvfpqBulkEnd(IvfpqBulk *bulk)
{
	IvfpqRerankEnd(&bulk->rerank);
	MemoryContextDelete(bulk->round);
	MemoryContextDelete(bulk->portion);
}
