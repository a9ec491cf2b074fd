/*
 * rounds.c
 *		Portions of queries, and the rounds in which each is searched.
 *
 * A round is to many queries what a batch is to a scan: so many lists and
 * candidates for so many rows (effort.c).  The first one is for the rows
 * wanted.  Queries that it left short of rows, because the snapshot does not
 * see enough of the candidates, go on to the next one, for more; and those for
 * which a scan would make a pass over all rows have all rows measured.  Each
 * round measures its candidates anew, since few queries see a second one.
 *
 * In a round queries go through the search IVFPQ_TOGETHER at a time, in the
 * order of their nearest lists, so that those side by side have lists in
 * common; and slices of queries, as many as memory allows, have their rows
 * measured together.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "am/common/count.h"
#include "am/common/engine.h"
#include "am/common/options.h"
#include "am/common/tid.h"
#include "am/many/many.h"
#include "client/client.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Rows that a round is for grow so: as those of a scan's batches. */
#define ROUND_GROWTH	4.0

/* Queries whose nearest lists are looked for together. */
#define NEAR_TOGETHER	256

/* A round: how much it takes, for whom. */
typedef struct Round
{
	IvfpqEffort effort;
	bool		is_last;		/* it takes all lists that may be read */
	int		   *active;			/* [nactive] numbers of queries */
	int			nactive;

	/* of the slice under way, [nactive]: */
	int		   *left;			/* [nleft] those that gpuvecd did not answer; */
	int			nleft;			/* of these: */
	uint64	   *lists;			/* ... [probes] nearest lists, and their */
	float	   *scores;			/* ... [probes] */
	int		   *nlists;
	uint64	   *order;			/* by nearest list: that, and which one */
	uint64	   *room;			/* to sort them */
} Round;

/* What take_answer gets. */
typedef struct Asked
{
	IvfpqMany  *many;
	Round	   *round;
} Asked;

/* The nearest lists of n of the queries that are left, from `first` on. */
static void
find_some_lists(IvfpqMany *many, Round *round, int first, int n)
{
	IvfpqSearch *search = &many->searches[0];
	int			probes = round->effort.probes;
	const float *vectors[NEAR_TOGETHER];
	GvTopK		lists[NEAR_TOGETHER] = {{0}};

	for (int i = 0; i < n; i++)
	{
		Size		at = (Size) (first + i) * probes;

		vectors[i] = many->asked[round->left[first + i]].vector;
		lists[i].capacity = probes;
		lists[i].ids = round->lists + at;
		lists[i].scores = round->scores + at;
	}
	search->query.deep = round->effort.deep;
	IvfpqNearestListsMany(many->index, many->model, &search->query, vectors, n,
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
find_lists(IvfpqMany *many, Round *round)
{
	for (int first = 0; first < round->nleft; first += NEAR_TOGETHER)
		find_some_lists(many, round, first,
						Min(NEAR_TOGETHER, round->nleft - first));
	IvfpqSortBits(round->order, round->room, round->nleft, 32);
}

/* Give a search the query, and the lists that were found for it. */
static void
set_search(IvfpqMany *many, const Round *round, int i, IvfpqSearch *search)
{
	int			probes = round->effort.probes;

	IvfpqSearchQuery(search, many->asked[round->left[i]].vector);
	IvfpqTopKResize(&search->lists, probes);
	search->lists.count = round->nlists[i];
	memcpy(search->lists.ids, round->lists + (Size) i * probes,
		   round->nlists[i] * sizeof(uint64));
	memcpy(search->lists.scores, round->scores + (Size) i * probes,
		   round->nlists[i] * sizeof(float));
}

/* Find the candidates of the slice's queries that are left. */
static void
find_candidates(IvfpqMany *many, Round *round)
{
	int			at_a_time = IvfpqManyTogether(many, &round->effort);

	find_lists(many, round);
	for (int first = 0; first < round->nleft; first += at_a_time)
	{
		int			n = Min(at_a_time, round->nleft - first);

		for (int s = 0; s < n; s++)
			set_search(many, round, (int) (uint32) round->order[first + s],
					   &many->searches[s]);
		IvfpqSearchTogether(many->searches, n, round->effort.candidates);
		for (int s = 0; s < n; s++)
		{
			uint64		order = round->order[first + s];

			IvfpqManyTake(many, &many->searches[s], round->left[(uint32) order],
						  (uint32) (order >> 32), round->effort.candidates);
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
		IvfpqManyTake(asked->many, search, round->active[i],
					  search->remote.nearest, round->effort.candidates);
	else
		round->left[round->nleft++] = round->active[i];
}

/* The vectors of the slice's queries, one behind the other. */
static const float *
slice_vectors(IvfpqMany *many, const Round *round)
{
	Size		dims = many->model->meta.dims;
	int			same = 0;
	float	   *vectors;

	/* a second round's come in the order in which the first measured them */
	while (same < round->nactive && round->active[same] == same)
		same++;
	if (same == round->nactive)
		return many->vectors;
	vectors = MemoryContextAllocHuge(many->round, round->nactive * dims *
									 sizeof(float));
	for (int i = 0; i < round->nactive; i++)
		memcpy(vectors + i * dims, many->asked[round->active[i]].vector,
			   dims * sizeof(float));
	return vectors;
}

/* Have gpuvecd find candidates; the queries that it has none for are left. */
static void
ask_candidates(IvfpqMany *many, Round *round)
{
	Asked		asked = {many, round};

	round->nleft = 0;
	if (!IvfpqServerIsWanted())
	{
		memcpy(round->left, round->active, round->nactive * sizeof(int));
		round->nleft = round->nactive;
		return;
	}
	many->searches[0].query.deep = round->effort.deep;
	IvfpqSearchManyRemote(&many->searches[0], slice_vectors(many, round),
						  round->nactive, round->effort.probes,
						  round->effort.candidates, take_answer, &asked);
}

/* Search for the slice's queries, and measure what was found. */
static void
search_slice(IvfpqMany *many, Round *round)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(many->round);
	Size		n = round->nactive;
	Size		probes = round->effort.probes;

	round->lists = palloc_extended(n * probes * sizeof(uint64),
								   MCXT_ALLOC_HUGE);
	round->scores = palloc_extended(n * probes * sizeof(float),
									MCXT_ALLOC_HUGE);
	round->nlists = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->left = palloc_extended(n * sizeof(int), MCXT_ALLOC_HUGE);
	round->order = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	round->room = palloc_extended(n * sizeof(uint64), MCXT_ALLOC_HUGE);
	MemoryContextSwitchTo(oldcontext);

	for (Size i = 0; i < n; i++)
		IvfpqManyForget(many, round->active[i]);
	IvfpqBulkRerankPending(many, round->active, round->nactive);
	ask_candidates(many, round);
	find_candidates(many, round);
	IvfpqBulkRerankFound(many, round->active, round->nactive);
	MemoryContextReset(many->round);
}

/*
 * Has the query the rows that it asked for?  As in a scan, the round is good
 * for no more than the share of candidates seen where half of those beyond the
 * rows wanted, which are there because scores are not exact, are gone.
 */
static bool
is_answered(const IvfpqMany *many, const Round *round,
			const IvfpqManyQuery *query)
{
	double		seen = 1;
	double		good = round->effort.quota;

	if (query->invisible > 0)
		seen = 1 - (double) query->invisible / query->fetched;
	if (query->invisible > 0 &&
		query->ncandidates * seen < (query->ncandidates + good) / 2)
		good *= seen;
	return (query->nrows == many->k && many->k <= good) ||
		(round->is_last && query->is_drained);
}

/*
 * Search for the active queries [n]; how many are not answered yet, which are
 * then the first of them.  *drained: in how many lists no other row is.
 */
static int
search_round(IvfpqMany *many, Round *round, int *active, int n, int *drained)
{
	Size		bytes = IvfpqManySliceBytes(many, &round->effort);
	int			at_a_time = (int) Max(1, Min((Size) n, IvfpqMemoryLimit() /
											 2 / bytes));
	int			nleft = 0;

	for (int first = 0; first < n; first += at_a_time)
	{
		round->active = active + first;
		round->nactive = Min(at_a_time, n - first);
		search_slice(many, round);
		for (int i = first; i < Min(first + at_a_time, n); i++)
		{
			const IvfpqManyQuery *query = &many->asked[active[i]];

			if (is_answered(many, round, query))
				continue;
			if (query->is_drained)
				*drained = round->effort.probes;
			active[nleft++] = active[i];
		}
	}
	many->report.batches++;
	if (many->report.probes == 0)
	{
		many->report.probes = round->effort.probes;
		many->report.candidates = round->effort.candidates;
	}
	return nleft;
}

/* Search for all queries of the portion. */
static void
search_portion(IvfpqMany *many)
{
	double		rows = Max(many->k, IVFPQ_FIRST_ROWS);
	int		   *active = MemoryContextAllocHuge(many->portion,
												many->nasked * sizeof(int));
	int			n = many->nasked;
	int			drained = 0;
	Round		round;

	for (int i = 0; i < n; i++)
		active[i] = i;
	for (; n > 0; rows = Max(rows * ROUND_GROWTH, IVFPQ_MANY_SECOND))
	{
		if (!IvfpqManyEffort(many, rows, drained, &round.effort, &round.is_last) ||
			!IvfpqManyFits(many, &round.effort))
		{
			for (int i = 0; i < n; i++)
				IvfpqManyForget(many, active[i]);
			IvfpqBulkRerankAll(many, active, n);
			many->report.full_pass = true;
			return;
		}
		n = search_round(many, &round, active, n, &drained);
	}
}

/* Make the next of those that were asked one of the portion. */
static void
add_query(IvfpqMany *many)
{
	int			number = many->nasked++;
	IvfpqManyQuery *query = &many->asked[number];
	int			dims = many->queries.dims;
	const float *vector = many->floats + (Size) number * dims;
	MemoryContext oldcontext;
	Datum		value;

	memset(query, 0, sizeof(*query));
	query->rows = many->rows + (Size) number * many->k;
	if (many->is_cosine)
		many->squares[number] = gv_square(vector, dims);
	if (many->real_distance == NULL)
	{
		oldcontext = MemoryContextSwitchTo(many->round);
		value = IvfpqCastVector(&many->cast, vector, dims);
		/* as the type has it: halfvec rounds */
		if (many->type.has_toreal)
			vector = IvfpqValueFloats(&many->type, value, &dims);
		MemoryContextSwitchTo(oldcontext);
		query->value = datumCopy(value, false, -1);
	}
	if (many->vectors != NULL)
	{
		float	   *to = many->vectors + (Size) number * dims;

		IvfpqTransform(many->index, many->model, vector, to);
		query->vector = to;
		query->is_boundable = IvfpqIsBoundable(&many->type, vector, dims) &&
			IvfpqQueryIsBoundable(&many->model->gv, vector, to);
	}
	MemoryContextReset(many->round);
}

/*
 * Answer a portion of the queries, from number first on, into many->asked;
 * how many.
 */
int
IvfpqManyNext(IvfpqMany *many, int first)
{
	int			n = Min(IvfpqManyPortion(many), many->queries.n - first);
	MemoryContext oldcontext;

	MemoryContextReset(many->portion);
	oldcontext = MemoryContextSwitchTo(many->portion);
	many->asked = palloc_extended(n * sizeof(IvfpqManyQuery),
								  MCXT_ALLOC_HUGE);
	many->nasked = 0;
	many->floats = many->queries.vectors + (Size) first * many->queries.dims;
	many->vectors = NULL;
	if (many->model->meta.nlists > 0)
		many->vectors = palloc_extended((Size) n * many->queries.dims *
										sizeof(float), MCXT_ALLOC_HUGE);
	many->squares = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	many->farthest = palloc_extended(n * sizeof(double), MCXT_ALLOC_HUGE);
	many->rows = palloc_extended((Size) n * many->k * sizeof(IvfpqManyRow),
								 MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_query(many);
	}
	MemoryContextSwitchTo(oldcontext);
	/* not in the portion's memory: searches keep theirs */
	search_portion(many);
	for (int i = 0; i < n; i++)
		IvfpqManySort(&many->asked[i]);
	return n;
}

/* The pending rows; all rows are to be measured if they are too many. */
static void
read_pending(IvfpqMany *many)
{
	IvfpqPendingReader reader;
	int64		room = IVFPQ_PENDING_PER_PAGE;
	int64		n = 0;
	int			count;

	many->pending = palloc(room * sizeof(uint64));
	IvfpqPendingOpen(&reader, many->index, &many->model->meta);
	while (n <= IVFPQ_MIN_RERANKED && IvfpqPendingNext(&reader, &count))
	{
		if (n + count > room)
		{
			room = 2 * (n + count);
			many->pending = repalloc(many->pending, room * sizeof(uint64));
		}
		for (int i = 0; i < count; i++)
			many->pending[n++] = IvfpqTidToId(&reader.tids[i]);
	}
	IvfpqPendingClose(&reader);
	many->everything = n > IVFPQ_MIN_RERANKED;
	if (n == 0 || many->everything)
		return;
	/* a page may have been read twice */
	qsort(many->pending, n, sizeof(uint64), IvfpqCompareNumbers);
	many->pending_set = tidset_create(CurrentMemoryContext, (uint32) n, NULL);
	for (int64 i = 0; i < n; i++)
	{
		bool		found;

		tidset_insert(many->pending_set, many->pending[i], &found);
		if (!found)
			many->pending[many->npending++] = many->pending[i];
	}
}

/*
 * Prepare to answer queries.  Pending rows are read before any list, since
 * rows move from there to lists.
 */
void
IvfpqManyBegin(IvfpqMany *many)
{
	bool		addresses = many->model->meta.refine != IVFPQ_REFINE_NONE;

	many->portion = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq queries",
										  ALLOCSET_DEFAULT_SIZES);
	many->round = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq round",
										ALLOCSET_DEFAULT_SIZES);
	IvfpqRerankBegin(&many->rerank, many->heap, many->index,
					  many->snapshot);
	if (many->model->meta.nlists == 0)
	{
		many->everything = true;
		return;
	}
	read_pending(many);
	many->nsearches = IvfpqManySearches(many);
	many->searches = palloc0(many->nsearches * sizeof(IvfpqSearch));
	for (int s = 0; s < many->nsearches; s++)
	{
		IvfpqSearchInit(&many->searches[s], many->index, many->model);
		many->searches[s].addresses = addresses;
	}
}

void
IvfpqManyEnd(IvfpqMany *many)
{
	IvfpqRerankEnd(&many->rerank);
	MemoryContextDelete(many->round);
	MemoryContextDelete(many->portion);
}
