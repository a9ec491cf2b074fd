/*
 * sampleselect.c
 *		SampleSelect: finds the first k items of a row, or several ranks of one
 *		array at once.
 *
 * Sources: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019
 * (exact selection: sections IV.B to IV.E; approximate: II.C); the tree of
 * splitters is that of Sanders, Winkel, "Super Scalar Sample Sort", 2004.
 */
#include "cpu/select/items.h"

#define CHUNK	256				/* items made at a time */
#define FEW_RANKS	8			/* ranks of floats for which buckets do not
								 * pay */
#define SIDE	16				/* items that go down the tree side by side */

/* ----
 * Splitters: a sample of items that divides all items into buckets.
 *
 * Bucket b has the items that are not below sorted[b - 1] (if b > 0) and are
 * below sorted[b] (if b < GV_BUCKETS - 1).  `tree` has the same splitters as a
 * complete binary tree in an array, in which the children of node i are 2 i +
 * 1 and 2 i + 2.  So an item's bucket is found without a branch:
 *
 *	i = 0; 8 times: i = 2 i + 1 + (item >= tree[i]); bucket = i - 255
 *
 * Items are distinct, so sorted[b] is the first item of bucket b + 1, and its
 * rank is the number of items in the buckets before that one.
 */

#if GV_BUCKET_BITS > 8
typedef uint16_t Bucket;		/* a number of a bucket */
#else
typedef uint8_t Bucket;
#endif

typedef struct Splitters
{
	GvItem		sorted[GV_NSPLITTERS];
	GvItem		tree[GV_NSPLITTERS];
	int64_t		counts[GV_BUCKETS]; /* number of items in each bucket */
} Splitters;

/* The items of a row from `first` to `last`, both included. */
typedef struct ItemRange
{
	GvItem		first;
	GvItem		last;
	int64_t		count;
	int64_t		nbefore;		/* items below first */
} ItemRange;

/*
 * Finds the buckets of items [CHUNK].  SIDE items go down the tree together, so
 * that their loads overlap.
 */
static inline void
find_buckets(const Splitters *splitters, const GvItem *items, Bucket *buckets)
{
	int			first;

	for (first = 0; first < CHUNK; first += SIDE)
	{
		uint32_t	nodes[SIDE] = {0};
		int			level;
		int			i;

		for (level = 0; level < GV_BUCKET_BITS; level++)
			for (i = 0; i < SIDE; i++)
				nodes[i] = 2 * nodes[i] + 1 +
					(items[first + i] >= splitters->tree[nodes[i]]);
		for (i = 0; i < SIDE; i++)
			buckets[first + i] = (Bucket) (nodes[i] - GV_NSPLITTERS);
	}
}

static inline bool
in_range(const ItemRange *range, GvItem item)
{
	return item - range->first <= range->last - range->first;
}

/*
 * Takes a sample of a range that has only a part of the values.  The places
 * from which the sample is taken are found by counting the items in the range.
 */
static bool
sample_range(const GvValue *values, int64_t n, const ItemRange *range,
			 uint64_t state, GvItem *sample, GvPoll *poll)
{
	int64_t		next = gv_sample_place(&state, 0, range->count);
	int64_t		j = 0;
	int64_t		nseen = 0;
	int64_t		i;

	for (i = 0; i < n && j < GV_SAMPLE_ITEMS; i++)
	{
		GvItem		item = gv_item(values[i], i);

		if (i % CHUNK == 0 && gv_poll(poll, 2 * CHUNK))
			return false;
		if (!in_range(range, item) || nseen++ < next)
			continue;
		sample[j++] = item;
		if (j < GV_SAMPLE_ITEMS)
			next = gv_sample_place(&state, j, range->count);
	}
	return true;
}

/*
 * Makes splitters for those items of values [n] that are in the range, of
 * which there must be more than GV_SAMPLE_ITEMS.  `level` is the level of
 * division, counted from 0.  The items are divided into GV_SAMPLE_ITEMS
 * stretches of equal length, and the sample takes one item at random from each
 * stretch.  The sample is stored in scratch [GV_SAMPLE_ITEMS].  From level
 * GV_SAMPLED_LEVELS on, there is no sample, and the range is divided evenly.
 * Each of these levels narrows the range by GV_BUCKET_BITS of its GV_ITEM_BITS,
 * so no input takes more than 8 of them, or 12 for doubles.
 */
static bool
make_splitters(Splitters *splitters, const GvValue *values, int64_t n,
			   const ItemRange *range, int level, GvItem *scratch,
			   GvPoll *poll)
{
	uint64_t	state = GV_SAMPLE_SEED(level);
	GvItem		part = (range->last - range->first) / GV_BUCKETS;
	bool		is_sampled = level < GV_SAMPLED_LEVELS;
	int			node = 0;
	int			reach;
	int64_t		i;

	if (is_sampled && range->count < n &&
		!sample_range(values, n, range, state, scratch, poll))
		return false;
	for (i = 0; is_sampled && range->count == n && i < GV_SAMPLE_ITEMS; i++)
	{
		int64_t		place = gv_sample_place(&state, i, n);

		scratch[i] = gv_item(values[place], place);
	}
	if (is_sampled && !gv_items_sort(scratch, GV_SAMPLE_ITEMS, poll))
		return false;
	for (i = 0; i < GV_NSPLITTERS; i++)
		splitters->sorted[i] = is_sampled ?
			scratch[(i + 1) * (GV_SAMPLE_ITEMS / GV_BUCKETS)] :
			range->first + ((GvItem) i + 1) * part;

	/*
	 * the lowest level of the tree has every second splitter, and each level
	 * above has every second of the splitters that remain
	 */
	for (reach = GV_BUCKETS / 2; reach > 0; reach /= 2)
		for (i = reach; i < GV_BUCKETS; i += 2 * reach)
			splitters->tree[node++] = splitters->sorted[i - 1];
	return true;
}

/* Counts the items of the range in each bucket. */
static bool
count_items(Splitters *splitters, const GvValue *values, int64_t n,
			const ItemRange *range, GvPoll *poll)
{
	GvItem		items[CHUNK] = {0};
	Bucket		buckets[CHUNK];
	int64_t		first;

	memset(splitters->counts, 0, sizeof(splitters->counts));
	for (first = 0; first < n; first += CHUNK)
	{
		int64_t		count = gv_at_most(n - first, CHUNK);
		int64_t		i;

		if (gv_poll(poll, 8 * CHUNK))
			return false;
		gv_items_load(values + first, count, first, items);
		find_buckets(splitters, items, buckets);
		for (i = 0; i < count; i++)
			splitters->counts[buckets[i]] += in_range(range, items[i]);
	}
	return true;
}

/* Narrows a range to the bucket that contains the item of the given rank. */
static void
enter_bucket(const Splitters *splitters, int64_t rank, ItemRange *range)
{
	int			b = 0;

	for (; rank - range->nbefore >= splitters->counts[b]; b++)
		range->nbefore += splitters->counts[b];
	range->count = splitters->counts[b];
	if (b > 0)
		range->first = splitters->sorted[b - 1];
	if (b < GV_NSPLITTERS)
		range->last = splitters->sorted[b] - 1;
}

/* ----
 * SampleSelect of one row: its first k items, in order.
 *
 * The paper copies the bucket that has the k-th item before it divides that
 * bucket.  Here the bucket is only a range of items, and the next level reads
 * all values again to find the items in the range.  So the memory is the same
 * whatever the input, and the first level, which mostly is the last, writes
 * nothing.
 */

/*
 * The scratch has the result [k] and the last bucket [GV_UNDIVIDED_ITEMS].
 * Each of these arrays has space for one more item, because gather() writes an
 * item before it knows whether the item belongs there.
 */
size_t
gv_sampleselect_scratch(int64_t k)
{
	size_t		bytes = 0;

	(void) gv_carve(NULL, &bytes, sizeof(GvItem) * ((size_t) k + 1));
	(void) gv_carve(NULL, &bytes, sizeof(GvItem) * (GV_UNDIVIDED_ITEMS + 1));
	return bytes;
}

/*
 * Copies the items below the range to the array `before` [range->nbefore], and
 * the items in the range to the array `inside` [range->count].
 */
static bool
gather(const GvValue *values, int64_t n, const ItemRange *range,
	   GvItem *before, GvItem *inside, GvPoll *poll)
{
	GvItem		items[CHUNK];
	int64_t		nbefore = 0;
	int64_t		ninside = 0;
	int64_t		first;

	for (first = 0; first < n; first += CHUNK)
	{
		int64_t		count = gv_at_most(n - first, CHUNK);
		int64_t		i;

		if (gv_poll(poll, 2 * CHUNK))
			return false;
		gv_items_load(values + first, count, first, items);
		for (i = 0; i < count; i++)
		{
			before[nbefore] = items[i];
			nbefore += items[i] < range->first;
			inside[ninside] = items[i];
			ninside += in_range(range, items[i]);
		}
	}
	return true;
}

/* Stores the first k items of values [n], k <= n, in scratch [k]. */
bool
gv_sampleselect(const GvValue *values, int64_t n, int64_t k, void *scratch,
				GvPoll *poll)
{
	size_t		next = 0;
	GvItem	   *selected = gv_carve(scratch, &next,
									sizeof(GvItem) * ((size_t) k + 1));
	GvItem	   *inside = (GvItem *) ((char *) scratch + next);
	ItemRange	range = {0, GV_LAST_ITEM, n, 0};
	int64_t		rest;
	int			level;

	/* narrow the range that contains the k-th item, until it has few items */
	for (level = 0; range.count > GV_UNDIVIDED_ITEMS; level++)
	{
		Splitters	splitters;

		if (!make_splitters(&splitters, values, n, &range, level, inside,
							poll) ||
			!count_items(&splitters, values, n, &range, poll))
			return false;
		enter_bucket(&splitters, k - 1, &range);
	}
	if (!gather(values, n, &range, selected, inside, poll))
		return false;
	rest = k - range.nbefore;
	if (!gv_items_pick(inside, range.count, rest - 1, poll))
		return false;
	memcpy(selected + range.nbefore, inside, sizeof(GvItem) * (size_t) rest);
	return gv_items_sort(selected, k, poll);
}

/* ----
 * Finds the items of several ranks of one array at once, exactly or
 * approximately.
 *
 * One level of SampleSelect counts the items of each bucket, from which the
 * buckets' ranges of ranks follow.  That is enough for an approximate answer:
 * the rank of a splitter is the number of items in the buckets before it.  For
 * an exact answer, the items of the buckets that contain a requested rank are
 * copied, bucket by bucket, and quickselect finds all ranks in a bucket, the
 * middle one first.  No further level is needed, because quickselect takes
 * only a few steps for each item, whatever the items are.  Quickselect alone is
 * faster for few ranks of floats, whose items take one comparison.
 *
 * Source of the search for the middle rank first: Chambers, "Algorithm 410:
 * Partial sorting", 1971.
 */

/*
 * A request is stored as rank << 32 | number of the request, so that requests
 * are sorted as items are.
 */
static inline int64_t
rank_of(GvItem wanted)
{
	return (int64_t) (wanted >> 32);
}

/* State of one call. */
typedef struct Quantiles
{
	const GvValue *values;		/* [n] */
	int64_t		n;
	GvItem	   *wanted;			/* [nranks], sorted */
	int32_t		nranks;
	GvItem	   *items;			/* [n]; approximate: [GV_SAMPLE_ITEMS] */
	Bucket	   *buckets;		/* [n] bucket of each value; only for exact
								 * answers */
	Splitters  *splitters;
	GvValue    *quantiles;		/* [nranks] */
	int64_t    *rank_errors;	/* [nranks] */
	GvPoll		poll;
} Quantiles;

/* Lays out the scratch, and returns its size. */
static size_t
lay_out(Quantiles *q, bool approximate, char *scratch)
{
	size_t		n = (size_t) q->n;
	size_t		most = (size_t) gv_at_most(q->n, GV_SAMPLE_ITEMS);
	size_t		bytes = 0;

	q->wanted = gv_carve(scratch, &bytes,
						 sizeof(GvItem) * (size_t) q->nranks);
	q->items = gv_carve(scratch, &bytes,
						sizeof(GvItem) * (approximate ? most : n));
	q->buckets = gv_carve(scratch, &bytes, approximate ? 0 : sizeof(Bucket) * n);
	q->splitters = gv_carve(scratch, &bytes, sizeof(Splitters));
	return bytes;
}

size_t
gv_ranks_scratch(const GvQuantiles *spec)
{
	Quantiles	q = {.n = spec->n, .nranks = spec->nranks};

	return lay_out(&q, spec->approximate, NULL);
}

static void
answer(Quantiles *q, GvItem wanted, GvItem item, int64_t rank)
{
	uint32_t	place = (uint32_t) wanted;

	q->quantiles[place] = gv_item_value(item);
	q->rank_errors[place] = rank - rank_of(wanted);
}

/*
 * Answers requests wanted[first .. last - 1].  All of their ranks are ranks of
 * items [n], the least of which has rank `base`.  The middle request divides
 * the items and the requests, so recursion is no deeper than log2 of the
 * number of requests.
 */
static bool
pick_ranks(Quantiles *q, int32_t first, int32_t last, GvItem *items,
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
 * Answers all requests exactly, for more than GV_UNDIVIDED_ITEMS values.  The
 * items of a bucket b that has a requested rank are copied to q->items, from
 * items[places[b]] on.
 */
static bool
pick_from_buckets(Quantiles *q)
{
	Splitters  *splitters = q->splitters;
	ItemRange	range = {0, GV_LAST_ITEM, q->n, 0};
	GvItem		items[CHUNK] = {0};
	int64_t		places[GV_BUCKETS]; /* -1: no rank is in the bucket */
	int32_t		ends[GV_BUCKETS];	/* end of the bucket's ranks in `wanted` */
	int64_t		start = 0;
	int64_t		place = 0;
	int32_t		next = 0;
	int64_t		i;
	int			b;

	if (!make_splitters(splitters, q->values, q->n, &range, 0, q->items,
						&q->poll))
		return false;
	memset(splitters->counts, 0, sizeof(splitters->counts));
	for (i = 0; i < q->n; i += CHUNK)
	{
		int64_t		count = gv_at_most(q->n - i, CHUNK);
		Bucket		buckets[CHUNK];
		int64_t		j;

		if (gv_poll(&q->poll, 8 * CHUNK))
			return false;
		gv_items_load(q->values + i, count, i, items);
		find_buckets(splitters, items, buckets);
		memcpy(q->buckets + i, buckets, sizeof(Bucket) * (size_t) count);
		for (j = 0; j < count; j++)
			splitters->counts[buckets[j]]++;
	}
	for (b = 0; b < GV_BUCKETS; b++)
	{
		int32_t		first = next;

		start += splitters->counts[b];
		while (next < q->nranks && rank_of(q->wanted[next]) < start)
			next++;
		ends[b] = next;
		places[b] = next > first ? place : -1;
		place += next > first ? splitters->counts[b] : 0;
	}
	for (i = 0; i < q->n; i++)
	{
		b = q->buckets[i];
		if (i % CHUNK == 0 && gv_poll(&q->poll, 2 * CHUNK))
			return false;
		if (places[b] >= 0)
			q->items[places[b]++] = gv_item(q->values[i], i);
	}

	/* each place has become the end of its bucket's items */
	for (b = 0, start = 0, next = 0; b < GV_BUCKETS; b++)
	{
		int64_t		count = splitters->counts[b];

		if (ends[b] > next &&
			!pick_ranks(q, next, ends[b], q->items + places[b] - count, count,
						start))
			return false;
		next = ends[b];
		start += count;
	}
	return true;
}

/*
 * Answers each request by the splitter with the nearest rank, or by the
 * smaller one of two splitters that are equally near.
 */
static bool
answer_by_splitters(Quantiles *q)
{
	ItemRange	range = {0, GV_LAST_ITEM, q->n, 0};
	int64_t		rank;
	int			s = 0;
	int32_t		i;

	if (!make_splitters(q->splitters, q->values, q->n, &range, 0, q->items,
						&q->poll) ||
		!count_items(q->splitters, q->values, q->n, &range, &q->poll))
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

GvStatus
gv_ranks(const GvQuantiles *spec, const void *values, const int64_t *ranks,
		 void *quantiles, int64_t *rank_errors, void *scratch,
		 const GvStop *stop)
{
	Quantiles	q = {.values = values, .n = spec->n, .nranks = spec->nranks,
		.quantiles = quantiles, .rank_errors = rank_errors,
	.poll = {stop, 0}};
	bool		done;
	bool		few = GV_ITEM_BITS == 64 && q.nranks <= FEW_RANKS &&
	q.n <= GV_LONG_ROW;
	int32_t		i;

	lay_out(&q, spec->approximate, scratch);
	for (i = 0; i < q.nranks; i++)
	{
		if (ranks[i] < 0 || ranks[i] >= q.n)
			return GV_INVALID;
		q.wanted[i] = (GvItem) ranks[i] << 32 | (uint32_t) i;
	}
	if (!gv_items_sort(q.wanted, q.nranks, &q.poll))
		return GV_CANCELED;
	if (q.n <= (spec->approximate ? GV_SAMPLE_ITEMS : GV_UNDIVIDED_ITEMS) ||
		(few && !spec->approximate))
	{
		/* buckets would not pay */
		gv_items_load(q.values, q.n, 0, q.items);
		done = pick_ranks(&q, 0, q.nranks, q.items, q.n, 0);
	}
	else if (spec->approximate)
		done = answer_by_splitters(&q);
	else
		done = pick_from_buckets(&q);
	return done ? GV_OK : GV_CANCELED;
}
