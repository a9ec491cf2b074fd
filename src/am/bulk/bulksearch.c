/*
 * bulksearch.c
 *		The nearest rows of many queries at once: gpuvec_search, and the same
 *		for other code of this backend.
 *
 * Queries are taken in portions, as many as memory allows, and a portion is
 * searched in rounds.  A round is to many queries what a batch is to a scan:
 * it has the search parameters for a number of rows (params.c).  The first
 * round is for the rows requested.  Queries that it left short of rows,
 * because the snapshot does not see enough of the candidates, go on to the
 * next round, which is for more.  Where a scan would make a full pass, all
 * rows are reranked.  Each round reranks its candidates again, since few
 * queries see a second round.
 *
 * In a round queries go through the search IVFPQ_TOGETHER at a time, in the
 * order of their nearest lists, so that those side by side have lists in
 * common.  A round takes its queries in slices, as many as memory allows; the
 * rows of a slice are reranked together (bulkrerank.c).
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
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/bulk/bulksearch.h"
#include "am/scan/querylog.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/heaptids.h"
#include "client/client.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Queries that the query log gets, the last of all. */
#define MOST_KEPT		1000

/* The factor from a round's rows to the next one's, as in a scan's batches. */
#define ROUND_GROWTH	4.0

/* Queries whose nearest lists are searched for together. */
#define NEAR_TOGETHER	256

/* Tables, or scratch, of the searches that are under way together. */
#define TOGETHER_BYTES	((Size) 8 * 1024 * 1024)

/* Nanoseconds that a query answered by gpuvecd takes here, without its rows. */
#define ANSWER_NS		5000.0

/* A round: its search parameters and its queries. */
typedef struct Round
{
	IvfpqSearchParams params;
	bool		is_last;		/* it takes all lists that may be read */
	int		   *active;			/* [nactive] numbers of queries */
	int			nactive;

	/* of the slice under way, [nactive]: */
	int		   *left;			/* [nleft] those gpuvecd did not answer */
	int			nleft;
	uint64	   *lists;			/* [nleft][probes] nearest lists of these, */
	float	   *scores;			/* [nleft][probes] and their scores */
	int		   *nlists;			/* [nleft] */
	uint64	   *order;			/* [nleft] nearest list, then index in left */
	uint64	   *scratch;		/* to sort them */
} Round;

/* Argument of take_answer. */
typedef struct Asked
{
	IvfpqBulk  *bulk;
	Round	   *round;
} Asked;

PG_FUNCTION_INFO_V1(gpuvec_search);

/*
 * Returns whether a scan would make a full pass rather than search with these
 * parameters.  See batch.c.
 */
static bool
full_pass_is_better(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	if (params->recall_unreached)
		return true;
	if (params->candidates > IVFPQ_MIN_RERANKED &&
		!IvfpqHasRows(bulk->index, &bulk->model->meta,
					  params->candidates / IVFPQ_RERANKED_FRACTION))
		return true;
	return ivfpq_order == IVFPQ_ORDER_STRICT && !params->calibrated &&
		params->quota > IVFPQ_BULK_SECOND &&
		!IvfpqHasRows(bulk->index, &bulk->model->meta,
					  params->quota / (1 - ivfpq_recall));
}

/* Returns the number of postings that the lists have, dead ones included. */
static double
count_postings(IvfpqBulk *bulk)
{
	IvfpqListTotals totals;

	IvfpqSumLists(bulk->index, &bulk->model->meta, &totals);
	return totals.live + totals.dead;
}

/*
 * Sets *params to what a round for that many rows takes, and *is_last if the
 * round reads all lists that may be read.  Returns false if all rows should be
 * reranked instead.  Where all rows of `drained` lists were candidates
 * already, the round needs more lists.
 */
static bool
bulk_params(IvfpqBulk *bulk, double rows, int drained,
			IvfpqSearchParams *params,
			bool *is_last)
{
	const IvfpqMetaData *meta = &bulk->model->meta;
	int			most = meta->nlists;
	IvfpqSearchParams first;

	if (bulk->everything)
		return false;
	IvfpqParamsForRows(params, bulk->index, meta, ivfpq_recall,
					   Min(rows, PG_INT32_MAX));
	if (params->read_all)
		return false;
	if (ivfpq_max_probes > 0)
	{
		IvfpqParamsForBatch(&first, bulk->index, meta, ivfpq_recall, 0);
		most = Min(most, Max(ivfpq_max_probes, first.probes));
	}
	if (full_pass_is_better(bulk, params))
	{
		if (ivfpq_max_probes == 0)
			return false;
		params->probes = most;
		params->candidates = PG_INT32_MAX / 4;
	}
	if (params->probes <= drained)
		params->probes = 2 * drained;
	params->probes = Min(params->probes, most);
	*is_last = params->probes == most;

	/*
	 * Ask for one candidate more than there are, so that a short result
	 * proves that there are no others.  If concurrent inserts make it find
	 * that one, the next round counts again.
	 */
	if (params->candidates > IVFPQ_FEW_CANDIDATES)
		params->candidates = (int) Min(params->candidates,
									   count_postings(bulk) + 1);
	return true;
}

/* Returns the bytes that a query takes in a slice of a round. */
static Size
bulk_slice_bytes(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	Size		candidate = 2 * sizeof(uint64); /* keys, and to sort them */

	if (bulk->model->meta.refine != IVFPQ_REFINE_NONE)
		candidate += sizeof(IvfpqBulkBound);
	else
		candidate += sizeof(uint64);
	if (IvfpqServerIsWanted())
		candidate += (Size) bulk->model->meta.lists_per_row *
			(sizeof(GvHit) + sizeof(GvBound));
	return (Size) params->candidates * candidate + 2 * sizeof(uint64) +
		(Size) params->probes * (sizeof(uint64) + sizeof(float));
}

/* Returns the bytes that a search takes. */
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
 * Returns the number of searches to have memory for: their tables are as long
 * as vectors.
 */
static int
bulk_searches(const IvfpqBulk *bulk)
{
	Size		bytes = gv_table_bytes(bulk->model->gv.m) +
	bulk->model->meta.dims * sizeof(float);
	int			most = (int) Max(Min(IVFPQ_TOGETHER, TOGETHER_BYTES / bytes), 1);

	return Min(bulk->queries.n, most);
}

/* Returns the number of searches to have under way at once. */
static int
bulk_together(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	return (int) Max(1, Min((Size) bulk->nsearches, TOGETHER_BYTES /
							search_bytes(bulk, params)));
}

/*
 * Returns whether a round for one query fits in memory.  As in a scan, a small
 * one always does.
 */
static bool
bulk_fits(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	return params->candidates <= IVFPQ_FEW_CANDIDATES ||
		bulk_slice_bytes(bulk, params) + search_bytes(bulk, params) <=
		IvfpqMemoryLimit();
}

/* Returns the number of queries of a portion. */
static int
bulk_portion(IvfpqBulk *bulk)
{
	Size		bytes = sizeof(IvfpqBulkQuery) + sizeof(int) +
	2 * sizeof(double) + bulk->k * sizeof(IvfpqBulkRow) +
	(Size) bulk->queries.dims * 2 * sizeof(float);
	IvfpqSearchParams params;
	bool		is_last;

	if (bulk->model->meta.nlists > 0 &&
		bulk_params(bulk, Max(bulk->k, IVFPQ_FIRST_ROWS), 0, &params,
					&is_last))
		bytes += bulk_slice_bytes(bulk, &params);
	return (int) Max(1, Min(IvfpqMemoryLimit() / bytes, IVFPQ_BULK_PORTION));
}

/* Finds the nearest lists of n of the queries left, from number `first` on. */
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
	IvfpqNearestLists(bulk->index, bulk->model, &search->query, vectors, n,
					  lists);
	for (int i = 0; i < n; i++)
	{
		round->nlists[first + i] = lists[i].count;
		round->order[first + i] = (uint64) (first + i);
		if (lists[i].count > 0) /* else the index is damaged */
			round->order[first + i] |= lists[i].ids[0] << 32;
	}
}

/* Finds the nearest lists of the queries left, and sorts these by them. */
static void
find_lists(IvfpqBulk *bulk, Round *round)
{
	for (int first = 0; first < round->nleft; first += NEAR_TOGETHER)
		find_some_lists(bulk, round, first,
						Min(NEAR_TOGETHER, round->nleft - first));
	IvfpqSortBits(round->order, round->scratch, round->nleft, 32);
}

/* Gives a search the i-th query left, and the lists that were found for it. */
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

/* Finds the candidates of the slice's queries left. */
static void
find_candidates(IvfpqBulk *bulk, Round *round)
{
	int			at_a_time = bulk_together(bulk, &round->params);

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

/*
 * Callback: takes gpuvecd's answer to the i-th query of the slice, or leaves
 * the query to the session.
 */
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

/* Returns the vectors of the slice's queries in one array, in their order. */
static const float *
slice_vectors(IvfpqBulk *bulk, const Round *round)
{
	Size		dims = bulk->model->meta.dims;
	int			same = 0;
	float	   *vectors;

	/* reranking in the first round leaves queries in another order */
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

/* Has gpuvecd find candidates.  Queries that it has none for are left. */
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

/* Searches for the slice's queries, and reranks the candidates. */
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
	Size		bytes = bulk_slice_bytes(bulk, &round->params);
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

/* Searches for all queries of the portion. */
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
		if (!bulk_params(bulk, rows, drained, &round.params, &round.is_last) ||
			!bulk_fits(bulk, &round.params))
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
 * Answers a portion of the queries, from number `first` on, into bulk->asked.
 * Returns how many.
 */
static int
bulk_next(IvfpqBulk *bulk, int first)
{
	int			n = Min(bulk_portion(bulk), bulk->queries.n - first);
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
	/* not in the portion's memory, which searches would keep */
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
 * Prepares to answer queries.  Reads pending rows before any list, since rows
 * move from there to lists.
 */
static void
bulk_begin(IvfpqBulk *bulk)
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
	bulk->rerank.warned = &bulk->warned_mismatched;
	if (bulk->model->meta.nlists == 0)
	{
		bulk->everything = true;
		return;
	}
	read_pending(bulk);
	bulk->nsearches = bulk_searches(bulk);
	bulk->searches = palloc0(bulk->nsearches * sizeof(IvfpqSearch));
	for (int s = 0; s < bulk->nsearches; s++)
	{
		IvfpqSearchInit(&bulk->searches[s], bulk->index, bulk->model);
		bulk->searches[s].addresses = addresses;
	}
}

static void
bulk_end(IvfpqBulk *bulk)
{
	IvfpqRerankEnd(&bulk->rerank);
	MemoryContextDelete(bulk->round);
	MemoryContextDelete(bulk->portion);
}

/* Looks up the function of the operator that the index serves. */
static void
find_distance(IvfpqBulk *bulk)
{
	Oid			type = bulk->type.type;
	Oid			family = bulk->index->rd_opfamily[0];
	Oid			operator = InvalidOid;

	for (int s = 1; s <= IVFPQ_NSTRATEGIES && !OidIsValid(operator); s++)
		operator = get_opfamily_member(family, type, type, s);
	fmgr_info(get_opcode(operator), &bulk->distance);
	bulk->real_distance = IvfpqRealDistanceOf(&bulk->distance);
	bulk->is_cosine = bulk->real_distance == gv_distance_cosine;
}

/*
 * Raises an error unless the queries have the dimensions of the index's rows.
 * Pending rows that do not have them are passed over, as in a scan.
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
 * Answers all queries: sink gets the rows of each, nearest first.  Call as the
 * table's owner, if the index has expressions.
 */
static void
bulk_answer(IvfpqBulk *bulk, IvfpqBulkSink sink, void *arg)
{
	int			n;

	IvfpqTypeInit(&bulk->type, bulk->index);
	find_distance(bulk);
	check_dims(bulk);
	IvfpqCastBegin(&bulk->cast, bulk->type.type);
	bulk_begin(bulk);
	for (int first = 0; first < bulk->queries.n; first += n)
	{
		n = bulk_next(bulk, first);
		for (int q = 0; q < n; q++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[q];

			CHECK_FOR_INTERRUPTS();
			sink(arg, first + q, query->rows, query->nrows);
			bulk->report.returned += query->nrows;
		}
	}
	bulk_end(bulk);
}

/*
 * Counts the work as a scan for each query.  With `more` it belongs to the
 * call that was counted last.
 */
static void
bulk_count(IvfpqBulk *bulk, bool more)
{
	IvfpqScanReport *report = &bulk->report;

	report->index = RelationGetRelid(bulk->index);
	report->recall = ivfpq_recall;
	if (bulk->searches != NULL)
		report->remote = bulk->searches[0].remote.report;
	IvfpqReportBulk(report, bulk->queries.n, more);
	for (int i = 0; i < bulk->queries.n; i++)
		pgstat_count_index_scan(bulk->index);
}

/*
 * Returns whether the index has all rows that the snapshot sees.  One that was
 * built where rows had changed in place has only the rows' last versions.
 */
static bool
bulk_is_whole(Relation index)
{
	return !index->rd_index->indcheckxmin ||
		TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							  TransactionXmin);
}

/* Raises an error unless the caller may have this index searched. */
static void
check_rights(Relation heap, Relation index)
{
	IvfpqCheckSelect(heap, index);
	IvfpqCheckActing(heap, index);
	if (check_enable_rls(RelationGetRelid(heap), InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" cannot be searched under row-level security",
						RelationGetRelationName(index)),
				 errdetail("Policies of table \"%s\" hide rows from the current user.",
						   RelationGetRelationName(heap)),
				 errhint("Use SELECT ... ORDER BY, which policies apply to.")));
}

/* Raises an error unless the index has all rows that the snapshot sees. */
static void
check_whole(Relation index)
{
	IvfpqCheckValid(index);
	if (!bulk_is_whole(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is too new for this transaction",
						RelationGetRelationName(index)),
				 errdetail("It lacks rows that changed while transactions that are still running could see them."),
				 errhint("Try again when the transactions that were running when it was built have ended.")));
}

/*
 * Keeps the last queries in the query log, if that is on.  Call as the user
 * that asked, not as the table's owner.
 */
static void
keep_queries(const IvfpqBulk *bulk)
{
	const IvfpqQueries *queries = &bulk->queries;

	if (!ivfpq_keep_queries || bulk->model->meta.nlists == 0)
		return;
	for (int i = Max(queries->n - MOST_KEPT, 0); i < queries->n; i++)
		IvfpqLogQuery(bulk->index, queries->vectors +
					  (Size) i * queries->dims, queries->dims);
}

/* Puts the rows of a query, counted from 0, into the result. */
static void
put_answer(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	ReturnSetInfo *rsinfo = arg;

	for (int i = 0; i < n; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = Int32GetDatum((int32) query + 1);
		values[1] = PointerGetDatum(&rows[i].tid);
		values[2] = Float8GetDatum(rows[i].distance);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
}

/* gpuvec_search(index regclass, queries real[][], k integer) */
Datum
gpuvec_search(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqIdentity caller;
	IvfpqBulk	bulk = {0};

	bulk.queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(1));
	bulk.k = PG_GETARG_INT32(2);
	if (bulk.k < 1 || bulk.k > IVFPQ_BULK_MOST_K)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("k must be between 1 and %d, not %d", IVFPQ_BULK_MOST_K, bulk.k),
				 errhint("k is how many rows each query wants.")));
	InitMaterializedSRF(fcinfo, 0);
	bulk.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									 &bulk.heap);
	check_rights(bulk.heap, bulk.index);
	check_whole(bulk.index);
	if (bulk.queries.n > 0)
	{
		bulk.model = IvfpqModelGet(bulk.index);
		bulk.snapshot = RegisterSnapshot(GetActiveSnapshot());
		PredicateLockRelation(bulk.index, bulk.snapshot);
		IvfpqCountersOpen();
		IvfpqActAsOwner(&caller, bulk.heap);
		bulk_answer(&bulk, put_answer, rsinfo);
		IvfpqActAsCaller(&caller);
		keep_queries(&bulk);
		bulk_count(&bulk, false);
		UnregisterSnapshot(bulk.snapshot);
	}
	/* locks stay, as those of a SELECT do */
	relation_close(bulk.index, NoLock);
	table_close(bulk.heap, NoLock);
	return (Datum) 0;
}

bool
IvfpqBulkServes(Relation heap, Relation index, int dims)
{
	HeapTuple	tuple = index->rd_indextuple;
	IvfpqMetaData meta;

	if (!bulk_is_whole(index) ||
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
	double		pending;		/* rows, each reranked for every query */
	double		postings;
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
	postings = *rows * meta->lists_per_row / meta->nlists;
	if (!bulk_params(&bulk, Max(k, IVFPQ_FIRST_ROWS), 0, &params,
					 &is_last))
		return *rows * (IVFPQ_FETCH_NS + n * dims * IVFPQ_DIMENSION_NS);
	if (IvfpqServerIsWanted())
		return pending + n * (params.candidates * row + ANSWER_NS);
	return pending +
		n * (params.candidates * row +
			 params.probes * postings * bulk.model->gv.m * IVFPQ_LOOKUP_NS +
			 IvfpqCentroidsToCompare(meta, params.probes,
									 params.beyond_parents) *
			 dims * IVFPQ_LOOKUP_NS);
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

	bulk.model = IvfpqModelGet(bulk.index);
	PredicateLockRelation(bulk.index, bulk.snapshot);
	IvfpqCountersOpen();
	bulk_answer(&bulk, request->sink, request->arg);
	bulk_count(&bulk, request->more);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
