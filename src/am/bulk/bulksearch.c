/*
 * bulksearch.c
 *		Finds the nearest rows of many queries at once, for gpuvec_search and
 *		for other code of this backend.
 *
 * Queries are taken in portions, each with as many queries as memory allows.
 * A portion is searched in rounds.  A round corresponds to a batch of a scan:
 * it takes the search parameters for a number of rows (params.c).  The first
 * round searches for the number of rows requested.  It may find fewer rows for
 * a query, if the snapshot does not see enough of the query's candidates.  The
 * next round searches for more rows, but only for the queries that are not
 * answered yet.  Where a scan would make a full pass, all rows are reranked.
 * Each round reranks its candidates again, which costs little, since few
 * queries take part in a second round.
 *
 * In a round, IVFPQ_TOGETHER queries at a time go through the search, in the
 * order of their nearest lists, so that queries that are searched together
 * have lists in common.  A round takes its queries in slices, each with as
 * many queries as memory allows, and reranks the candidates of a slice
 * together (bulkrerank.c).
 *
 * gpuvec_search computes an expression of the index as the table's owner, as
 * gpuvec_recall does (am/README, "Rights").
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/predicate.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/bulk/bulksearch.h"
#include "am/scan/querylog.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/heaptids.h"
#include "client/client.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* A call adds only its last queries to the query log, at most this many. */
#define MOST_KEPT		1000

/* A second round searches for at least this many rows. */
#define SECOND_ROUND	100

/* As in a scan, each round multiplies the number of rows by this factor. */
#define ROUND_GROWTH	4.0

/* Number of queries whose nearest lists are found together. */
#define NEAR_TOGETHER	256

/*
 * Maximum bytes for the look-up tables of searches that run together, and also
 * for their scratch memory.
 */
#define TOGETHER_BYTES	((Size) 8 * 1024 * 1024)

/*
 * Nanoseconds of a search under conditions on keys, by this session and by
 * gpuvecd in a message of many, of testing a posting's keys, of reranking a row
 * in the cache for a query, and for each dimension.
 */
#define SEARCH_NS		200000.0
#define SERVED_NS		30000.0
#define KEYS_NS			6.0
#define CACHED_ROW_NS	8.0
#define CACHED_NS		0.25

/*
 * Nanoseconds that this session takes for a query that gpuvecd answers,
 * without the time to rerank rows.
 */
#define ANSWER_NS		5000.0

/* A round: its search parameters and its queries. */
typedef struct Round
{
	IvfpqBulk  *bulk;
	IvfpqSearchParams params;
	bool		is_last;		/* the round reads all lists that may be read */

	/* of the current slice: */
	int		   *active;			/* [nactive] numbers of the slice's queries */
	int			nactive;
	int		   *left;			/* [nleft] numbers of the queries that gpuvecd
								 * did not answer */
	int			nleft;
	float	   *vectors;		/* [nleft][dims] these queries, transformed */
	int		   *found;			/* [nfound] numbers of the queries whose
								 * candidates have to be reranked */
	int			nfound;
	int		   *whole;			/* [nwhole] numbers of the queries for which
								 * all rows that match have to be reranked */
	int			nwhole;
	GvTopK	   *lists;			/* [nleft] nearest lists of the queries in
								 * `left` */
	uint64	   *order;			/* [nleft] sort keys of the queries in `left`:
								 * the nearest list, then the index in left */
	uint64	   *scratch;		/* [nleft] working memory to sort `order` */
} Round;

PG_FUNCTION_INFO_V1(gpuvec_search);

/*
 * Sets *params to the search parameters of a round for `rows` rows, and sets
 * *is_last if the round reads all lists that may be read.  If all rows of
 * `ndrained` lists were candidates already, the round takes more lists.
 * Returns false if all rows should be reranked instead, as in the full pass of
 * a scan (scan/depth.c).
 */
static bool
bulk_params(IvfpqBulk *bulk, double rows, int ndrained,
			IvfpqSearchParams *params, bool *is_last)
{
	Relation	index = bulk->index;
	const IvfpqMetaData *meta = &bulk->model->meta;
	bool		is_rest;
	int			most;
	IvfpqListTotals totals;

	if (bulk->everything)
		return false;
	IvfpqParamsForRows(params, index, meta, ivfpq_recall,
					   Min(rows, PG_INT32_MAX));
	if (params->read_all)
		return false;

	/*
	 * in the last case, calibration did not reach the recall at this depth;
	 * with conditions a search can take all lists
	 */
	is_rest = (params->recall_unreached && bulk->nconditions == 0) ||
		IvfpqDepthIsTooLarge(index, meta, params->candidates) ||
		(ivfpq_order == IVFPQ_ORDER_STRICT && !params->calibrated &&
		 params->quota > SECOND_ROUND &&
		 !IvfpqHasRows(index, meta, params->quota / (1 - ivfpq_recall)));
	if (!IvfpqDepthLimitProbes(params, index, meta, ivfpq_recall, is_rest,
							   ndrained, &most))
		return false;
	*is_last = params->probes == most;
	if (bulk->nconditions > 0)
	{
		bulk->goal = (IvfpqKeyGoal)
		{
			.recall = ivfpq_recall, .rows = params->quota,
				.is_spread = true, .by_keys = true, .most_probes = most,
				.reads_all = is_rest, .selectivity = 1
		};
		if (!is_rest)
			params->candidates = IvfpqKeyCapacity(&bulk->searches[0],
												  &bulk->goal);
		*is_last = true;		/* a search tells whether it found all rows */
	}

	/*
	 * Ask for one candidate more than there are postings, so that a search
	 * that finds fewer proves that there are no more.  If concurrent inserts
	 * make a search find this candidate, the next round counts the postings
	 * again.
	 */
	if (params->candidates > IVFPQ_FEW_CANDIDATES)
	{
		IvfpqSumLists(index, meta, &totals);
		params->candidates = (int) Min(params->candidates,
									   totals.live + totals.dead + 1);
	}
	bulk->goal.candidates = params->candidates;
	return true;
}

/* Returns the bytes that one query takes in a slice of a round. */
static Size
bulk_slice_bytes(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	/* sort keys, and scratch to sort them */
	Size		candidate = 2 * sizeof(uint64) + sizeof(IvfpqBulkBound);

	return (Size) params->candidates * candidate + 2 * sizeof(uint64) +
		bulk->queries.dims * sizeof(float) +
		(Size) params->probes * (sizeof(uint64) + sizeof(float));
}

/* Returns the bytes that one search takes. */
static Size
search_bytes(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	int64		capacity = (int64) params->candidates *
	bulk->model->meta.lists_per_row;

	return gv_scan_scratch(bulk->model->gv.m,
						   (int32) Min(capacity, PG_INT32_MAX)) +
		capacity * (sizeof(float) + sizeof(uint64));
}

/*
 * Finds the nearest lists of the queries in round->left, and sorts these
 * queries by their nearest list.
 */
static void
find_lists(Round *round)
{
	IvfpqBulk  *bulk = round->bulk;
	IvfpqSearch *search = &bulk->searches[0];
	const float *vectors[NEAR_TOGETHER];

	search->query.deep = round->params.beyond_parents;
	for (int first = 0; first < round->nleft; first += NEAR_TOGETHER)
	{
		int			n = Min(NEAR_TOGETHER, round->nleft - first);

		for (int i = 0; i < n; i++)
			vectors[i] = round->vectors + (Size) (first + i) *
				bulk->queries.dims;
		IvfpqNearestLists(bulk->index, bulk->model, &search->query, vectors, n,
						  round->lists + first);
	}
	for (int i = 0; i < round->nleft; i++)
	{
		round->order[i] = (uint64) i;
		if (round->lists[i].count > 0)	/* otherwise the index is damaged */
			round->order[i] |= round->lists[i].ids[0] << 32;
	}
	IvfpqSortBits(round->order, round->scratch, round->nleft, 32);
}

/* Transforms query `number` into vector [dims]. */
static void
transform(const IvfpqBulk *bulk, int number, float *vector)
{
	CHECK_FOR_INTERRUPTS();
	IvfpqTransform(bulk->index, bulk->model, bulk->floats +
				   (Size) number * bulk->queries.dims, vector);
}

/* Finds the candidates of the queries in round->left, in this session. */
static void
find_candidates(Round *round)
{
	IvfpqBulk  *bulk = round->bulk;
	const IvfpqSearchParams *params = &round->params;
	Size		fitting = TOGETHER_BYTES / search_bytes(bulk, params);
	int			at_a_time = (int) Max(1, Min((Size) bulk->nsearches, fitting));

	if (round->nleft == 0)
		return;
	round->vectors = MemoryContextAllocHuge(bulk->round, (Size) round->nleft *
											bulk->queries.dims *
											sizeof(float));
	for (int i = 0; i < round->nleft; i++)
		transform(bulk, round->left[i], round->vectors + (Size) i *
				  bulk->queries.dims);
	find_lists(round);
	for (int first = 0; first < round->nleft; first += at_a_time)
	{
		int			n = Min(at_a_time, round->nleft - first);

		for (int s = 0; s < n; s++)
		{
			uint32		i = (uint32) round->order[first + s];
			const GvTopK *lists = &round->lists[i];
			IvfpqSearch *search = &bulk->searches[s];

			IvfpqSearchQuery(search, round->vectors + (Size) i *
							 bulk->queries.dims);
			IvfpqTopKResize(&search->lists, params->probes);
			search->lists.count = lists->count;
			memcpy(search->lists.ids, lists->ids,
				   lists->count * sizeof(uint64));
			memcpy(search->lists.scores, lists->scores,
				   lists->count * sizeof(float));
		}
		IvfpqSearchTogether(bulk->searches, n, params->candidates);
		for (int s = 0; s < n; s++)
		{
			uint64		order = round->order[first + s];
			int			number = round->left[(uint32) order];

			IvfpqBulkTake(bulk, &bulk->searches[s], number,
						  (uint32) (order >> 32), params->candidates);
			round->found[round->nfound++] = number;
		}
	}
}

/* Notes what a search under conditions on keys has found for a query. */
static void
take_by_keys(Round *round, const IvfpqSearch *search, int number,
			 const IvfpqKeyGoal *goal)
{
	if (goal->everything)
		round->whole[round->nwhole++] = number;
	else
	{
		IvfpqBulkTake(round->bulk, search, number, search->remote.nearest,
					  goal->candidates);
		round->found[round->nfound++] = number;
	}
	round->bulk->asked[number].is_drained = goal->everything || goal->is_all;
}

/*
 * Callbacks of IvfpqSearchBulkRemote (IvfpqBulkTaker), for query i of the slice.
 * A query without an answer of gpuvecd is added to round->left, so that this
 * session answers it.
 */
static void
transform_message(void *arg, int first, int n, float *vectors)
{
	const Round *round = arg;

	for (int i = 0; i < n; i++)
		transform(round->bulk, round->active[first + i], vectors + (Size) i *
				  round->bulk->queries.dims);
}

static bool
take_nearest(void *arg, const IvfpqRemoteResult *answer, int i, int capacity)
{
	const Round *round = arg;

	CHECK_FOR_INTERRUPTS();
	return IvfpqBulkTakeNearest(round->bulk, answer, round->active[i],
								capacity, round->params.candidates);
}

static int
settle(void *arg, int *again)
{
	const Round *round = arg;
	int			n = IvfpqBulkSettle(round->bulk, again);

	/* numbers in the slice, which ascend as the told queries do */
	for (int i = 0, at = 0; i < n; i++)
	{
		while (round->active[at] != again[i])
			at++;
		again[i] = at;
	}
	return n;
}

static void
take_answer(void *arg, IvfpqSearch *search, int i, bool found)
{
	Round	   *round = arg;

	CHECK_FOR_INTERRUPTS();
	if (found && round->bulk->nconditions > 0)
	{
		IvfpqKeyGoal goal = round->bulk->goal;

		found = IvfpqSearchKeysTake(search, &goal);
		if (found)
			take_by_keys(round, search, round->active[i], &goal);
	}
	else if (found)
	{
		IvfpqBulkTake(round->bulk, search, round->active[i],
					  search->remote.nearest, round->params.candidates);
		round->found[round->nfound++] = round->active[i];
	}
	if (!found)
		round->left[round->nleft++] = round->active[i];
}

/*
 * Returns whether gpuvecd can tell distances.  Mirrors of indexes with refine
 * records have no rows, and rows whose keys are rechecked have to be fetched.
 */
static bool
may_ask_distances(const IvfpqBulk *bulk)
{
	return bulk->engine_distance != NULL && !bulk->searches[0].addresses &&
		bulk->quals.nrechecks == 0;
}

/*
 * Returns the slice's part of bulk->floats, in the order of round->active, or
 * NULL if gpuvecd cannot tell distances.
 */
static const float *
slice_floats(const Round *round)
{
	IvfpqBulk  *bulk = round->bulk;
	Size		dims = bulk->model->meta.dims;
	int			same = 0;
	float	   *ordered;

	if (!may_ask_distances(bulk))
		return NULL;
	/* an earlier round may have answered queries between these */
	while (same < round->nactive &&
		   round->active[same] == round->active[0] + same)
		same++;
	if (same == round->nactive)
		return bulk->floats + round->active[0] * dims;
	ordered = MemoryContextAllocHuge(bulk->round, round->nactive * dims *
									 sizeof(float));
	for (int i = 0; i < round->nactive; i++)
		memcpy(ordered + i * dims, bulk->floats + round->active[i] * dims,
			   dims * sizeof(float));
	return ordered;
}

/*
 * Searches for query `number` under conditions on keys, as a scan does.
 * Remembers the first request that gpuvecd has answered, for other queries.
 */
static void
search_by_keys(Round *round, int number)
{
	IvfpqBulk  *bulk = round->bulk;
	IvfpqSearch *search = &bulk->searches[0];
	IvfpqKeyGoal goal = bulk->goal;
	int			dims = bulk->queries.dims;
	float	   *vector = palloc(dims * sizeof(float));

	transform(bulk, number, vector);
	IvfpqSearchQuery(search, vector);
	search->asked = NULL;
	if (may_ask_distances(bulk))
		search->asked = bulk->floats + (Size) number * dims;
	IvfpqSearchKeys(search, &goal);
	bulk->goal.guess = goal.selectivity;
	if (bulk->goal.probes == 0)
	{
		bulk->goal.probes = goal.probes;
		bulk->goal.asked = goal.asked;
	}
	take_by_keys(round, search, number, &goal);
	pfree(vector);
}

/*
 * Finds the candidates of the slice's queries under conditions on keys.  The
 * last request to gpuvecd that one query needed is made for the others, too.
 * Those that need another request are searched for one by one.
 */
static void
find_by_keys(Round *round, const IvfpqBulkTaker *taker)
{
	IvfpqBulk  *bulk = round->bulk;
	int			n = round->nactive;

	if (bulk->goal.probes == 0)
		search_by_keys(round, round->active[--round->nactive]);
	if (bulk->goal.probes > 0 && round->nactive > 0)
		IvfpqSearchKeysBulk(&bulk->searches[0], &bulk->goal,
							slice_floats(round), round->nactive, taker);
	else
	{
		memcpy(round->left, round->active, round->nactive * sizeof(int));
		round->nleft = round->nactive;
	}
	round->nactive = n;
	for (int i = 0; i < round->nleft; i++)
		search_by_keys(round, round->left[i]);
}

/*
 * Reranks pending rows and the candidates of the slice's queries.  This
 * session searches for the queries that gpuvecd does not answer.
 */
static void
search_slice(Round *round)
{
	IvfpqBulk  *bulk = round->bulk;
	const IvfpqSearchParams *params = &round->params;
	MemoryContext oldcontext = MemoryContextSwitchTo(bulk->round);
	Size		n = round->nactive;
	Size		probes = params->probes;
	uint64	   *ids = palloc_extended(n * probes * sizeof(uint64),
									  MCXT_ALLOC_HUGE);
	float	   *scores = palloc_extended(n * probes * sizeof(float),
										 MCXT_ALLOC_HUGE);
	IvfpqBulkTaker taker = {
		round, transform_message, take_nearest, settle, take_answer
	};

	round->lists = palloc_extended(n * sizeof(GvTopK),
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (Size i = 0; i < n; i++)
	{
		round->lists[i].capacity = params->probes;
		round->lists[i].ids = ids + i * probes;
		round->lists[i].scores = scores + i * probes;
	}
	round->left = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->found = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->whole = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->order = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	round->scratch = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	MemoryContextSwitchTo(oldcontext);

	IvfpqBulkRerankPending(bulk, round->active, round->nactive);
	round->nleft = round->nfound = round->nwhole = 0;
	if (bulk->nconditions > 0)
		find_by_keys(round, &taker);
	else if (IvfpqServerIsWanted())
	{
		bulk->searches[0].query.deep = params->beyond_parents;
		IvfpqSearchBulkRemote(&bulk->searches[0],
							  slice_floats(round), round->nactive,
							  params->probes, params->candidates, 0, 0,
							  &taker);
		find_candidates(round);
	}
	else
	{
		memcpy(round->left, round->active, n * sizeof(int));
		round->nleft = round->nactive;
		find_candidates(round);
	}
	IvfpqBulkRerankFound(bulk, round->found, round->nfound);
	if (round->nwhole > 0)
		IvfpqBulkRerankAll(bulk, round->whole, round->nwhole);
	MemoryContextReset(bulk->round);
}

/*
 * Searches for the active queries [n], in slices.  Moves the queries that are
 * not answered yet to the front of `active`, and returns their number.  If all
 * rows in the lists of an unanswered query were candidates, sets *ndrained to
 * the number of probes.
 *
 * A query is answered when it has k rows, unless so many of its candidates are
 * invisible that IvfpqDepthVisibleQuota lowers the round's quota below k.  In
 * the last round, a query is also answered when all rows in its lists were
 * candidates.
 */
static int
search_round(Round *round, int *active, int n, int *ndrained)
{
	IvfpqBulk  *bulk = round->bulk;
	const IvfpqSearchParams *params = &round->params;
	Size		bytes = bulk_slice_bytes(bulk, params);
	int			at_a_time = (int) Max(1, Min((Size) n, IvfpqMemoryLimit() /
											 2 / bytes));
	int			nleft = 0;

	for (int first = 0; first < n; first += at_a_time)
	{
		round->active = active + first;
		round->nactive = Min(at_a_time, n - first);
		search_slice(round);
		for (int i = first; i < first + round->nactive; i++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[active[i]];

			if ((round->is_last && query->is_drained) ||
				(query->nrows == bulk->k &&
				 bulk->k <= IvfpqDepthVisibleQuota(params->quota,
												   query->ncandidates,
												   query->nfetched,
												   query->invisible)))
				continue;
			if (query->is_drained)
				*ndrained = params->probes;
			active[nleft++] = active[i];
		}
	}
	bulk->report.counts[IVFPQ_COUNT_BATCHES]++;
	if (bulk->report.probes == 0)
	{
		bulk->report.probes = params->probes;
		bulk->report.candidates = params->candidates;
	}
	return nleft;
}

static void
search_portion(IvfpqBulk *bulk)
{
	Round		round = {.bulk = bulk};
	IvfpqSearchParams *params = &round.params;
	double		rows = Max(bulk->k, IVFPQ_FIRST_ROWS);
	int		   *active = MemoryContextAllocHuge(bulk->portion,
												bulk->nasked * sizeof(int));
	int			n = bulk->nasked;
	int			ndrained = 0;

	for (int i = 0; i < n; i++)
		active[i] = i;
	if (bulk->matching != NULL)
	{
		IvfpqBulkRerankMatching(bulk, active, n);
		return;
	}
	for (; n > 0; rows = Max(rows * ROUND_GROWTH, SECOND_ROUND))
	{
		/* as in a scan, a round of few candidates needs no check of memory */
		if (!bulk_params(bulk, rows, ndrained, params, &round.is_last) ||
			(params->candidates > IVFPQ_FEW_CANDIDATES &&
			 bulk_slice_bytes(bulk, params) + search_bytes(bulk, params) >
			 IvfpqMemoryLimit()))
		{
			IvfpqBulkRerankAll(bulk, active, n);
			bulk->report.counts[IVFPQ_COUNT_FULL_PASSES] = 1;
			return;
		}
		n = search_round(&round, active, n, &ndrained);
	}
}

/*
 * Sets vector [dims] to a query's elements as the column's type stores them:
 * halfvec rounds them.
 */
static void
cast_query(IvfpqBulk *bulk, const float *asked, float *vector)
{
	int			dims = bulk->queries.dims;
	MemoryContext oldcontext = MemoryContextSwitchTo(bulk->round);
	Datum		value = IvfpqCastVector(&bulk->cast, asked, dims);

	memcpy(vector, IvfpqValueFloats(&bulk->type, value, &dims),
		   bulk->queries.dims * sizeof(float));
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(bulk->round);
}

/*
 * Returns whether the column's type stores other elements than were asked.  A
 * type that stores floats does not; a first query is cast to see whether it
 * does store them.
 */
static bool
casts_queries(IvfpqBulk *bulk)
{
	float	   *vector;

	if (!bulk->type.has_toreal)
		return false;
	vector = palloc(bulk->queries.dims * sizeof(float));
	cast_query(bulk, bulk->queries.vectors, vector);
	pfree(vector);
	return bulk->type.stored != IVFPQ_STORED_FLOATS ||
		!bulk->type.is_stored_so;
}

/* Adds a query to the portion, which begins with query `first`. */
static void
add_query(IvfpqBulk *bulk, int first)
{
	int			number = bulk->nasked++;
	IvfpqBulkQuery *query = &bulk->asked[number];
	int			dims = bulk->queries.dims;
	const float *vector = bulk->floats + (Size) number * dims;

	memset(query, 0, sizeof(*query));
	query->rows = bulk->rows + (Size) number * bulk->k;
	if (bulk->cast_floats != NULL)
		cast_query(bulk, bulk->queries.vectors + (Size) (first + number) * dims,
				   bulk->cast_floats + (Size) number * dims);
	if (bulk->is_cosine)
		bulk->squares[number] = gv_square(vector, dims);
}

/*
 * Answers the next portion of the queries, which begins with query `first` and
 * has as many queries as memory allows.  Leaves the answers in bulk->asked.
 * Returns the number of queries.
 */
static int
bulk_next(IvfpqBulk *bulk, int first)
{
	int			dims = bulk->queries.dims;
	Size		vector_bytes = (Size) dims * sizeof(float);
	Size		bytes = sizeof(IvfpqBulkQuery) + sizeof(int) +
	2 * sizeof(double) + bulk->k * sizeof(IvfpqBulkRow) + vector_bytes;
	IvfpqSearchParams params;
	bool		is_last;
	int			n;
	MemoryContext oldcontext;

	if (bulk->model->meta.nlists > 0 &&
		bulk_params(bulk, Max(bulk->k, IVFPQ_FIRST_ROWS), 0, &params,
					&is_last))
		bytes += bulk_slice_bytes(bulk, &params);
	n = (int) Max(1, Min(IvfpqMemoryLimit() / bytes, IVFPQ_BULK_PORTION));
	n = Min(n, bulk->queries.n - first);

	MemoryContextReset(bulk->portion);
	oldcontext = MemoryContextSwitchTo(bulk->portion);
	bulk->asked = palloc_extended(n * sizeof(IvfpqBulkQuery),
								  MCXT_ALLOC_HUGE);
	bulk->nasked = 0;
	bulk->floats = bulk->queries.vectors + (Size) first * dims;
	bulk->cast_floats = NULL;
	if (bulk->casts_queries)
	{
		bulk->cast_floats = palloc_extended(n * vector_bytes, MCXT_ALLOC_HUGE);
		bulk->floats = bulk->cast_floats;
	}
	bulk->squares = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	bulk->farthest = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	bulk->rows = palloc_extended((Size) n * bulk->k * sizeof(IvfpqBulkRow),
								 MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_query(bulk, first);
	}
	MemoryContextSwitchTo(oldcontext);

	/*
	 * searches keep memory for later portions, so it must not be in
	 * bulk->portion
	 */
	search_portion(bulk);
	for (int i = 0; i < n; i++)
		IvfpqBulkSort(&bulk->asked[i]);
	return n;
}

/*
 * Reads the pending rows.  If they are too many, or if a new training was
 * published meanwhile, sets bulk->everything.
 */
static void
read_pending(IvfpqBulk *bulk)
{
	IvfpqPendingReader reader;
	int64		capacity = 0;
	int64		n = 0;
	int			count;

	IvfpqPendingOpen(&reader, bulk->index, &bulk->model->meta);
	while (n <= IVFPQ_MIN_RERANKED && IvfpqPendingNext(&reader, &count))
		for (int i = 0; i < count; i++)
		{
			IvfpqGrow(bulk->pending, n, capacity);
			bulk->pending[n++] = IvfpqTidToId(&reader.tids[i]);
		}
	IvfpqPendingClose(&reader);
	bulk->everything = n > IVFPQ_MIN_RERANKED ||
		!IvfpqPendingWasRead(bulk->index, &bulk->model->meta);
	if (n == 0 || bulk->everything)
		return;
	/* remove duplicates, because a page may have been read twice */
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
 * Raises an error unless the queries have the dimensions of the index's rows.
 * Sets pending_dims if pending rows of other dimensions must be skipped, as in
 * a scan.
 */
static void
check_dims(IvfpqBulk *bulk)
{
	const IvfpqMetaData *meta = &bulk->model->meta;
	int			expected = IvfpqRowDims(bulk->heap, bulk->index, meta);

	if (expected > 0 && expected != bulk->queries.dims &&
		(meta->nlists > 0 || IvfpqDimsBind(bulk->heap, bulk->index, meta)))
		IvfpqCheckDims(expected, bulk->queries.dims);
	if (bulk->type.typmod_dims == 0 &&
		!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
		bulk->pending_dims = expected;
}

/*
 * Prepares to answer queries.  Reads the pending rows before any list, because
 * rows move from the pending list to lists.
 */
static void
bulk_begin(IvfpqBulk *bulk)
{
	const IvfpqMetaData *meta = &bulk->model->meta;
	Oid			type;
	Oid			operator = InvalidOid;	/* the index's operator */
	Size		bytes;
	double		search_ns = IvfpqServerIsWanted() ? SERVED_NS : SEARCH_NS;
	double		few;			/* rows */

	IvfpqTypeInit(&bulk->type, bulk->index);
	type = bulk->type.type;
	for (int s = 1; s <= IVFPQ_NSTRATEGIES && !OidIsValid(operator); s++)
		operator = get_opfamily_member(bulk->index->rd_opfamily[0], type, type,
									   s);
	fmgr_info(get_opcode(operator), &bulk->distance);
	bulk->engine_distance = bulk->type.has_toreal ?
		IvfpqDistanceOfMetric(bulk->type.metric) :
		IvfpqRealDistanceOf(&bulk->distance);
	bulk->is_cosine = bulk->engine_distance == gv_distance_cosine;
	IvfpqTypeStudy(&bulk->type);
	check_dims(bulk);
	IvfpqCastBegin(&bulk->cast, type);

	bulk->portion = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq queries",
										  ALLOCSET_DEFAULT_SIZES);
	bulk->round = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq round",
										ALLOCSET_DEFAULT_SIZES);
	bulk->casts_queries = casts_queries(bulk);
	IvfpqRerankBegin(&bulk->rerank, bulk->heap, bulk->index,
					 bulk->snapshot);
	bulk->rerank.warned = &bulk->warned_mismatched;
	bulk->sees_pages = IvfpqRerankMayLook(&bulk->rerank);
	if (bulk->nconditions > 0)
	{
		IvfpqModelCheckKeys(bulk->index, bulk->model, &bulk->keys.form);
		IvfpqKeyQualsMake(&bulk->quals, &bulk->keys, bulk->conditions,
						  bulk->nconditions);
		bulk->rerank.quals = &bulk->quals;
		/* see start_search of a scan */
		bulk->rerank.recheck_all_keys = meta->refine != IVFPQ_REFINE_NONE;
	}
	if (meta->nlists == 0)
	{
		bulk->everything = true;
		return;
	}
	read_pending(bulk);

	/* run fewer searches than IVFPQ_TOGETHER if they take much memory */
	bytes = gv_table_bytes(bulk->model->gv.m) + meta->dims * sizeof(float);
	bulk->nsearches = (int) Max(Min(IVFPQ_TOGETHER, TOGETHER_BYTES / bytes),
								1);
	bulk->nsearches = Min(bulk->nsearches, bulk->queries.n);
	bulk->searches = palloc0(bulk->nsearches * sizeof(IvfpqSearch));
	IvfpqBulkNearestInit(bulk);
	for (int s = 0; s < bulk->nsearches; s++)
	{
		IvfpqSearchInit(&bulk->searches[s], bulk->index, bulk->model);
		bulk->searches[s].report = &bulk->report;
		bulk->searches[s].addresses = meta->refine != IVFPQ_REFINE_NONE;
	}
	if (bulk->nconditions == 0)
		return;
	IvfpqSearchCondition(&bulk->searches[0], &bulk->quals.condition);

	/* if few rows match, to rerank them all takes less than a search */
	few = search_ns / (CACHED_ROW_NS + meta->dims * CACHED_NS);
	if (!bulk->everything && ivfpq_max_probes == 0 &&
		IvfpqRowsAbout(bulk->index, meta) * meta->lists_per_row * KEYS_NS <
		bulk->queries.n * search_ns &&
		IvfpqBulkReadMatching(bulk, (int64) (few * meta->lists_per_row)))
		IvfpqSearchNoServer(&bulk->searches[0], "conditions on keys");
}

/*
 * Answers all queries.  Calls `sink` with the rows of each query, the nearest
 * first.  If the index has expressions, the caller must act as the table's
 * owner.
 */
static void
bulk_answer(IvfpqBulk *bulk, IvfpqBulkSink sink, void *arg)
{
	int			n;

	PredicateLockRelation(bulk->index, bulk->snapshot);
	bulk->model = IvfpqModelGet(bulk->index);
	bulk_begin(bulk);
	for (int first = 0; first < bulk->queries.n && !bulk->quals.never;
		 first += n)
	{
		n = bulk_next(bulk, first);
		for (int q = 0; q < n; q++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[q];

			CHECK_FOR_INTERRUPTS();
			sink(arg, first + q, query->rows, query->nrows);
			bulk->report.counts[IVFPQ_COUNT_RETURNED] += query->nrows;
		}
	}
	IvfpqRerankEnd(&bulk->rerank);
	MemoryContextDelete(bulk->round);
	MemoryContextDelete(bulk->portion);
}

/*
 * Counts the work as one scan for each query.  If `more` is true, adds the
 * work to that of the previous call.  Must run as the calling user, because
 * the target recall is that user's setting.
 */
static void
bulk_count(IvfpqBulk *bulk, bool more)
{
	IvfpqScanReport *report = &bulk->report;

	report->index = RelationGetRelid(bulk->index);
	report->recall = ivfpq_recall;
	report->counts[IVFPQ_COUNT_SCANS] = bulk->queries.n;
	IvfpqReportScan(report, more);
	for (int i = 0; i < bulk->queries.n; i++)
		pgstat_count_index_scan(bulk->index);
}

/*
 * Raises an error unless the caller may search this index, and the index has
 * all rows that the snapshot sees.
 */
static void
check_searchable(Relation heap, Relation index)
{
	IvfpqCheckSelect(heap, index, 1);
	IvfpqCheckActing(heap, index);
	if (check_enable_rls(RelationGetRelid(heap), InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot search index \"%s\" under row-level security",
						RelationGetRelationName(index)),
				 errdetail("Policies of table \"%s\" hide rows from the current user.",
						   RelationGetRelationName(heap)),
				 errhint("Use SELECT ... ORDER BY, which applies policies.")));
	IvfpqCheckValid(index);
	if (!IvfpqIsWhole(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot use index \"%s\" with this snapshot",
						RelationGetRelationName(index)),
				 errdetail("The index may lack row versions that the snapshot can see."),
				 errhint("Retry when the transactions that were running while the index was built have ended.")));
}

/* A row of gpuvec_search, laid out as in a tuple. */
typedef struct Answer
{
	int32		query;			/* from 1 */
	ItemPointerData tid;
	float8		distance;
} Answer;

/* The result of gpuvec_search, and a tuple that is changed for each row. */
typedef struct Answers
{
	Tuplestorestate *store;
	TupleTableSlot *slot;		/* has the tuple */
	Answer	   *answer;			/* the tuple's columns */
} Answers;

/* Begins the result.  Forms the tuple, whose columns have the layout of all. */
static void
begin_result(Answers *result, const ReturnSetInfo *rsinfo)
{
	ItemPointerData none = {0};
	Datum		values[3] = {
		Int32GetDatum(0), PointerGetDatum(&none), Float8GetDatum(0)
	};
	bool		nulls[3] = {false};
	MinimalTuple tuple = IvfpqFormMinimalTuple(rsinfo->setDesc, values,
											   nulls);

	result->store = rsinfo->setResult;
	result->slot = MakeSingleTupleTableSlot(rsinfo->setDesc,
											&TTSOpsMinimalTuple);
	ExecStoreMinimalTuple(tuple, result->slot, true);
	result->answer = (Answer *) ((char *) tuple - MINIMAL_TUPLE_OFFSET +
								 tuple->t_hoff);
}

/* IvfpqBulkSink callback.  Puts the rows of a query into the result. */
static void
put_answer(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	Answers    *result = arg;

	for (int i = 0; i < n; i++)
	{
		result->answer->query = (int32) query + 1;
		result->answer->tid = rows[i].tid;
		result->answer->distance = rows[i].distance;
		tuplestore_puttupleslot(result->store, result->slot);
	}
}

/*
 * Converts a value to another type, as a literal would be read, unless it has
 * that type.
 */
static Datum
convert(Datum value, Oid from, Oid to)
{
	Oid			function;
	Oid			argument;
	bool		is_varlena;
	char	   *text;

	if (from == to)
		return value;
	getTypeOutputInfo(from, &function, &is_varlena);
	text = OidOutputFunctionCall(function, value);

	getTypeInputInfo(to, &function, &argument);
	return OidInputFunctionCall(function, text, argument, -1);
}

/*
 * Sets *condition to a condition on the key in column `attno`: equality with a
 * value or, if it is an array, with any of its elements.  A key that is an
 * array has to overlap the value, any other set has to contain it.
 */
static void
make_condition(Relation index, const IvfpqKey *key, int attno, Datum value,
			   Oid type, ScanKey condition)
{
	Oid			input = index->rd_opcintype[attno - 1];
	Oid			column = getBaseType(TupleDescAttr(RelationGetDescr(index),
												   attno - 1)->atttypid);
	int			strategy = BTEqualStrategyNumber;
	int			flags = 0;
	Oid			operator;

	type = getBaseType(type);
	if (key->kind == IVFPQ_KEY_SIGNATURE &&
		OidIsValid(get_element_type(column)))
	{
		strategy = IVFPQ_OVERLAP_STRATEGY;
		input = ANYARRAYOID;
	}
	else if (key->kind == IVFPQ_KEY_SIGNATURE)
		strategy = IVFPQ_CONTAINS_STRATEGY;
	else if (OidIsValid(get_element_type(type)))
	{
		flags = SK_SEARCHARRAY;
		column = get_array_type(column);
	}
	operator = get_opfamily_member(key->family, input, input, strategy);
	if (!OidIsValid(operator))
		elog(ERROR, "missing operator %d(%u,%u) in opfamily %u", strategy,
			 input, input, key->family);
	ScanKeyEntryInitialize(condition, flags, attno, strategy, input,
						   key->collation, get_opcode(operator),
						   convert(value, type, column));
}

/* Reads the conditions on keys, which follow the other arguments. */
static void
read_conditions(IvfpqBulk *bulk, FunctionCallInfo fcinfo)
{
	Datum	   *values;
	Oid		   *types;
	bool	   *nulls;
	int			n = extract_variadic_args(fcinfo, 3, true, &values, &types,
										  &nulls);

	if (n <= 0)
		return;
	IvfpqKeysInit(&bulk->keys, bulk->index);
	if (n > bulk->keys.nkeys)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("index \"%s\" has %d keys, not %d",
						RelationGetRelationName(bulk->index),
						bulk->keys.nkeys, n),
				 errhint("Keys are the columns of the index that follow the vector, as in \"USING gpuivfpq (embedding, tenant)\".")));
	IvfpqCheckSelect(bulk->heap, bulk->index, 1 + n);
	bulk->conditions = palloc(n * sizeof(ScanKeyData));
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			make_condition(bulk->index, &bulk->keys.keys[i], i + 2, values[i],
						   types[i], &bulk->conditions[bulk->nconditions++]);
}

/*
 * gpuvec_search(index regclass, queries real[][], k integer)
 * gpuvec_search(index regclass, queries real[][], k integer,
 *				 VARIADIC keys "any")
 */
Datum
gpuvec_search(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqBulk	bulk = {0};
	IvfpqQueries queries;
	IvfpqIdentity caller;
	Answers		result;

	InitMaterializedSRF(fcinfo, 0);
	/* a function with keys, which may be NULL, is not strict */
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2))
		return (Datum) 0;
	queries = bulk.queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(1));
	bulk.k = PG_GETARG_INT32(2);
	if (bulk.k < 1 || bulk.k > IVFPQ_BULK_MOST_K)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"k\" must be between 1 and %d, not %d", IVFPQ_BULK_MOST_K, bulk.k),
				 errhint("\"k\" is the number of rows to return for each query.")));
	bulk.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									 NULL, &bulk.heap);
	check_searchable(bulk.heap, bulk.index);
	if (PG_NARGS() > 3)
		read_conditions(&bulk, fcinfo);
	if (queries.n > 0)
	{
		bulk.snapshot = RegisterSnapshot(GetActiveSnapshot());
		IvfpqCountersOpen();
		begin_result(&result, rsinfo);
		IvfpqActAsOwner(&caller, bulk.heap);
		bulk_answer(&bulk, put_answer, &result);
		IvfpqActAsCaller(&caller);
		ExecDropSingleTupleTableSlot(result.slot);

		/* nothing is logged while acting as the owner */
		if (bulk.model->meta.nlists > 0)
			for (int i = Max(queries.n - MOST_KEPT, 0); i < queries.n; i++)
				IvfpqLogQuery(bulk.index, &bulk.model->meta, queries.vectors +
							  (Size) i * queries.dims,
							  ivfpq_recall, bulk.nconditions > 0);
		bulk_count(&bulk, false);
		UnregisterSnapshot(bulk.snapshot);
	}
	/* keep the locks, as a SELECT does */
	relation_close(bulk.index, NoLock);
	table_close(bulk.heap, NoLock);
	return (Datum) 0;
}

bool
IvfpqBulkServes(Relation heap, Relation index, int dims)
{
	HeapTuple	tuple = index->rd_indextuple;
	IvfpqMetaData meta;

	if (!IvfpqIsWhole(index) ||
		!heap_attisnull(tuple, Anum_pg_index_indpred, NULL) ||
		!heap_attisnull(tuple, Anum_pg_index_indexprs, NULL))
		return false;
	IvfpqMetaRead(index, &meta);
	return meta.nlists > 0 && IvfpqRowDims(heap, index, &meta) == dims;
}

double
IvfpqBulkCost(Relation heap, Relation index, double n, int dims, int k,
			  double *rows)
{
	IvfpqBulk	bulk = {.heap = heap, .index = index, .k = k};
	const IvfpqMetaData *meta;
	double		row = IVFPQ_FETCH_NS + dims * IVFPQ_DIMENSION_NS;
	double		pending;		/* number of pending rows, later the time of
								 * reranking them */
	IvfpqSearchParams params;
	bool		is_last;

	bulk.model = IvfpqModelGet(index);
	meta = &bulk.model->meta;
	*rows = IvfpqRowsAbout(index, meta);
	pending = (double) IvfpqPendingEstimate(index);
	if (pending > IVFPQ_MIN_RERANKED)	/* the estimate may be too high */
		pending = (double) IvfpqCountPending(index, meta);
	bulk.everything = pending > IVFPQ_MIN_RERANKED;
	pending *= IVFPQ_FETCH_NS + n * dims * IVFPQ_DIMENSION_NS;
	if (!bulk_params(&bulk, Max(k, IVFPQ_FIRST_ROWS), 0, &params,
					 &is_last))
		return *rows * (IVFPQ_FETCH_NS + n * dims * IVFPQ_DIMENSION_NS);
	if (IvfpqServerIsWanted())
		return pending + n * (params.candidates * row + ANSWER_NS);
	return pending + n * IvfpqSearchNs(meta, *rows, params.probes,
									   params.candidates,
									   params.beyond_parents);
}

void
IvfpqBulkFind(const IvfpqBulkRequest *request)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq searches",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	IvfpqBulk	bulk = {
		.heap = request->heap,
		.index = request->index,
		.snapshot = request->snapshot,
		.k = request->k,
		.queries = {.vectors = request->vectors, .n = request->n,
		.dims = request->dims}
	};

	IvfpqCountersOpen();
	bulk_answer(&bulk, request->sink, request->arg);
	bulk_count(&bulk, request->more);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
