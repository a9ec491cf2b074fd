/*
 * quantiles.c
 *		Finds several ranks of one array at once, exactly or approximately.
 *
 * One level of SampleSelect counts the items of each bucket, from which the
 * buckets' ranges of ranks follow.  That is enough for an approximate answer:
 * the rank of a splitter is the number of items in the buckets before it.  For
 * an exact answer, the items of the buckets that contain a requested rank are
 * copied, bucket by bucket, and quickselect finds all ranks in a bucket, the
 * middle one first.  No further level is needed, because quickselect takes a
 * few steps for an item, whatever the items are.
 *
 * Sources: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019;
 * several ranks by halves: Chambers, "Algorithm 410: Partial sorting", 1971.
 */
#include "cpu/select/gv_splitters.h"
#include "engine/gv_call.h"

#define CHUNK	256

/* Requested ranks are sorted as items: rank << 32 | number of the request. */
static inline int64_t
rank_of(uint64_t wanted)
{
	return (int64_t) (wanted >> 32);
}

/* State of one call. */
typedef struct Quantiles
{
	const float *values;		/* [n] */
	int64_t		n;
	uint64_t   *wanted;			/* [nranks], sorted */
	int32_t		nranks;
	uint64_t   *items;			/* [n]; approximate: [GV_SAMPLE_ITEMS] */
	uint8_t    *buckets;		/* [n] bucket of each value; only for exact
								 * answers */
	GvSplitters *splitters;
	float	   *quantiles;		/* [nranks] */
	int64_t    *rank_errors;	/* [nranks] */
	GvPoll		poll;
} Quantiles;

/*
 * Lays out the scratch and returns its size.  If `scratch` is NULL, only
 * computes the size.
 */
static size_t
lay_out(Quantiles *q, bool approximate, char *scratch)
{
	size_t		n = (size_t) q->n;
	size_t		most = n < GV_SAMPLE_ITEMS ? n : GV_SAMPLE_ITEMS;
	size_t		bytes = 0;
	size_t		wanted = gv_carve(&bytes,
								  sizeof(uint64_t) * (size_t) q->nranks);
	size_t		items = gv_carve(&bytes, sizeof(uint64_t) *
								 (approximate ? most : n));
	size_t		buckets = gv_carve(&bytes, approximate ? 0 : n);
	size_t		splitters = gv_carve(&bytes, sizeof(GvSplitters));

	if (scratch != NULL)
	{
		q->wanted = (uint64_t *) (scratch + wanted);
		q->items = (uint64_t *) (scratch + items);
		q->buckets = (uint8_t *) (scratch + buckets);
		q->splitters = (GvSplitters *) (scratch + splitters);
	}
	return bytes;
}

/* Returns 0 for invalid arguments. */
size_t
gv_quantiles_scratch(int64_t n, int32_t nranks, bool approximate)
{
	Quantiles	q = {.n = n, .nranks = nranks};

	if (n < 1 || n > GV_SELECT_MAX_N || nranks < 1)
		return 0;
	return lay_out(&q, approximate, NULL);
}

static void
answer(Quantiles *q, uint64_t wanted, uint64_t item, int64_t rank)
{
	uint32_t	place = (uint32_t) wanted;

	q->quantiles[place] = gv_item_value(item);
	q->rank_errors[place] = rank - rank_of(wanted);
}

/*
 * Finds ranks wanted[first .. last - 1].  All are ranks of items [n], the
 * first of which has rank `base`.  The middle rank divides items and ranks, so
 * calls are no deeper than log2 of the number of ranks.
 */
static bool
pick_ranks(Quantiles *q, int32_t first, int32_t last, uint64_t *items,
		   int64_t n, int64_t base)
{
	while (first < last)
	{
		int32_t		middle = first + (last - first) / 2;
		int64_t		rank = rank_of(q->wanted[middle]);
		int32_t		begin = middle;
		int32_t		end = middle;

		if (!gv_items_pick(items, n, rank - base, &q->poll))
			return false;
		for (; begin > first && rank_of(q->wanted[begin - 1]) == rank; begin--)
			answer(q, q->wanted[begin - 1], items[rank - base], rank);
		for (; end < last && rank_of(q->wanted[end]) == rank; end++)
			answer(q, q->wanted[end], items[rank - base], rank);
		if (!pick_ranks(q, first, begin, items, rank - base, base))
			return false;
		first = end;
		items += rank + 1 - base;
		n -= rank + 1 - base;
		base = rank + 1;
	}
	return true;
}

/*
 * Finds the ranks without buckets, which would not pay for at most
 * GV_UNDIVIDED_ITEMS values.
 */
static bool
pick_from_all(Quantiles *q)
{
	gv_items_load(q->values, q->n, 0, q->items);
	return pick_ranks(q, 0, q->nranks, q->items, q->n, 0);
}

/* Finds the bucket of each value, and counts the items in each bucket. */
static bool
fill_buckets(Quantiles *q)
{
	GvSplitters *splitters = q->splitters;
	int64_t		i;

	memset(splitters->counts, 0, sizeof(splitters->counts));
	for (i = 0; i < q->n; i++)
	{
		int			b = gv_bucket(splitters, gv_item(q->values[i], i));

		if (i % CHUNK == 0 && gv_poll(&q->poll, 8 * CHUNK))
			return false;
		q->buckets[i] = (uint8_t) b;
		splitters->counts[b]++;
	}
	return true;
}

/*
 * Sets starts [GV_BUCKETS] to the first rank of each bucket, and places
 * [GV_BUCKETS] to where the bucket's items go, or -1 if no rank in the bucket
 * is requested.
 */
static void
assign_places(const Quantiles *q, int64_t *starts, int64_t *places)
{
	int64_t		start = 0;
	int64_t		place = 0;
	int32_t		next = 0;
	int			b;

	for (b = 0; b < GV_BUCKETS; b++)
	{
		int64_t		count = q->splitters->counts[b];
		int32_t		begin = next;

		starts[b] = start;
		start += count;
		while (next < q->nranks && rank_of(q->wanted[next]) < start)
			next++;
		places[b] = next > begin ? place : -1;
		place += next > begin ? count : 0;
	}
}

/*
 * Copies the items of buckets that have a place.  Each of these places becomes
 * the end of its bucket.
 */
static bool
distribute(Quantiles *q, int64_t *places)
{
	int64_t		i;

	for (i = 0; i < q->n; i++)
	{
		int			b = q->buckets[i];

		if (i % CHUNK == 0 && gv_poll(&q->poll, 2 * CHUNK))
			return false;
		if (places[b] >= 0)
			q->items[places[b]++] = gv_item(q->values[i], i);
	}
	return true;
}

/* Finds exact ranks of more than GV_UNDIVIDED_ITEMS values. */
static bool
pick_from_buckets(Quantiles *q)
{
	GvItemRange range = gv_whole_range(q->n);
	int64_t		starts[GV_BUCKETS];
	int64_t		places[GV_BUCKETS];
	int32_t		next = 0;
	int			b;

	if (!gv_splitters_make(q->splitters, q->values, q->n, &range, 0, q->items,
						   &q->poll) ||
		!fill_buckets(q))
		return false;
	assign_places(q, starts, places);
	if (!distribute(q, places))
		return false;
	for (b = 0; b < GV_BUCKETS; b++)
	{
		int64_t		count = q->splitters->counts[b];
		int32_t		begin = next;

		while (next < q->nranks &&
			   rank_of(q->wanted[next]) < starts[b] + count)
			next++;
		if (next > begin &&
			!pick_ranks(q, begin, next, q->items + places[b] - count, count,
						starts[b]))
			return false;
	}
	return true;
}

/*
 * Answers each rank by the splitter with the nearest rank, or by the smaller
 * one of two that are equally near.
 */
static bool
answer_by_splitters(Quantiles *q)
{
	GvItemRange range = gv_whole_range(q->n);
	int64_t		rank;
	int			s = 0;
	int32_t		i;

	if (!gv_splitters_make(q->splitters, q->values, q->n, &range, 0, q->items,
						   &q->poll) ||
		!gv_splitters_count(q->splitters, q->values, q->n, &range, &q->poll))
		return false;
	rank = q->splitters->counts[0];
	for (i = 0; i < q->nranks; i++)
	{
		int64_t		wanted = rank_of(q->wanted[i]);

		/* advance while the next splitter is nearer */
		while (s + 1 < GV_NSPLITTERS &&
			   2 * wanted > 2 * rank + q->splitters->counts[s + 1])
			rank += q->splitters->counts[++s];
		answer(q, q->wanted[i], q->splitters->sorted[s], rank);
	}
	return true;
}

static bool
valid_ranks(const int64_t *ranks, int32_t nranks, int64_t n)
{
	int32_t		i;

	for (i = 0; ranks != NULL && i < nranks; i++)
		if (ranks[i] < 0 || ranks[i] >= n)
			return false;
	return ranks != NULL && nranks >= 1;
}

GvStatus
gv_quantiles(const float *values, int64_t n, const int64_t *ranks,
			 int32_t nranks, bool approximate, float *quantiles,
			 int64_t *rank_errors, void *scratch, const GvStop *stop)
{
	Quantiles	q = {.values = values, .n = n, .nranks = nranks,
		.quantiles = quantiles, .rank_errors = rank_errors,
	.poll = {stop, 0}};
	bool		done;
	int32_t		i;

	GV_CALL(gv_engine_calls, values != NULL && n >= 1 &&
			n <= GV_SELECT_MAX_N && valid_ranks(ranks, nranks, n) &&
			quantiles != NULL && rank_errors != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	lay_out(&q, approximate, scratch);
	for (i = 0; i < nranks; i++)
		q.wanted[i] = (uint64_t) ranks[i] << 32 | (uint32_t) i;
	if (!gv_items_sort(q.wanted, nranks, &q.poll))
		return GV_CANCELED;
	if (n <= (approximate ? GV_SAMPLE_ITEMS : GV_UNDIVIDED_ITEMS))
		done = pick_from_all(&q);
	else if (approximate)
		done = answer_by_splitters(&q);
	else
		done = pick_from_buckets(&q);
	return done ? GV_OK : GV_CANCELED;
}
