/*
 * together.c
 *		Many searches side by side: a list is read for all searches that probe
 *		it.
 *
 * A list's blocks come from memory, which takes as long as to scan them; here
 * that is shared, and they are scanned while they are in the processor's cache.
 * So are the searches' tables, if they are no more than IVFPQ_TOGETHER, and the
 * more lists they have in common the better.
 *
 * The nearest lists of each search come first, since what is found there turns
 * away most copies of the others.  So a list may be read twice.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/engine.h"
#include "am/search/search.h"

/*
 * A list of a search, as a number: whether it is not among the nearest, the
 * list, which search, its how manyth.
 */
#define PAIR_FAR_SHIFT		56
#define PAIR_LIST_SHIFT		32
#define PAIR_SEARCH_SHIFT	26
#define PAIR_READING(pair)	((pair) >> PAIR_LIST_SHIFT)
#define PAIR_SEARCH(pair)	((uint32) (pair) >> PAIR_SEARCH_SHIFT)
#define PAIR_NUMBER(pair)	((int) ((pair) & ((1 << PAIR_SEARCH_SHIFT) - 1)))

StaticAssertDecl(IVFPQ_MAX_LISTS <= 1 << (PAIR_FAR_SHIFT - PAIR_LIST_SHIFT),
				 "no room for the list");
StaticAssertDecl(IVFPQ_TOGETHER <= 1 << (PAIR_LIST_SHIFT - PAIR_SEARCH_SHIFT),
				 "no room for the search");

/*
 * Lists that are read before others, of each search: at least so many, or this
 * part of its lists.
 */
#define LEAST_NEAR	4
#define NEAR_PART	8

/* The lists of searches [n], the nearest of all searches first, then by list. */
static uint64 *
sort_pairs(const IvfpqSearch *searches, int n, int *npairs)
{
	int			count = 0;
	uint64	   *pairs;

	for (int s = 0; s < n; s++)
		count += searches[s].lists.count;
	pairs = palloc_extended(Max(count, 1) * sizeof(uint64),
							MCXT_ALLOC_HUGE);
	*npairs = count;
	count = 0;
	for (int s = 0; s < n; s++)
	{
		const GvTopK *lists = &searches[s].lists;
		int			nnear = Max(LEAST_NEAR, lists->count / NEAR_PART);

		for (int i = 0; i < lists->count; i++)
			pairs[count++] = (uint64) (i >= nnear) << PAIR_FAR_SHIFT |
				lists->ids[i] << PAIR_LIST_SHIFT |
				(uint64) s << PAIR_SEARCH_SHIFT | (uint64) i;
	}
	IvfpqSortNumbers(pairs, count);
	return pairs;
}

/* Who probes the lists of pairs [n]. */
static IvfpqProber *
make_probers(IvfpqSearch *searches, const uint64 *pairs, int n)
{
	IvfpqProber *probers = palloc_extended(Max(n, 1) * sizeof(IvfpqProber),
										   MCXT_ALLOC_HUGE);

	for (int p = 0; p < n; p++)
	{
		probers[p].search = &searches[PAIR_SEARCH(pairs[p])];
		probers[p].i = PAIR_NUMBER(pairs[p]);
	}
	return probers;
}

/*
 * Fill the candidates of searches [n <= IVFPQ_TOGETHER] of one index, without
 * conditions, with the best rows of their lists, which have been found: as
 * many as IvfpqSearchRun finds in these lists, and the same.
 */
void
IvfpqSearchTogether(IvfpqSearch *searches, int n, int candidates)
{
	Relation	index = searches[0].index;
	IvfpqListReader *reader = &searches[0].reader;
	int			copies = searches[0].model->meta.copies;
	int64		had_read = IvfpqCountReads();
	int			nprefetched = 0;	/* lists */
	int			npairs;
	uint64	   *pairs = sort_pairs(searches, n, &npairs);
	uint64	   *lists = palloc_extended(Max(npairs, 1) * sizeof(uint64),
										MCXT_ALLOC_HUGE);
	IvfpqListEntry *entries = palloc_extended(Max(npairs, 1) *
											  sizeof(IvfpqListEntry),
											  MCXT_ALLOC_HUGE);
	IvfpqProber *probers = make_probers(searches, pairs, npairs);
	int			nlists = 0;
	int			first = 0;

	for (int s = 0; s < n; s++)
		IvfpqSearchOpen(&searches[s], candidates * copies);
	for (int p = 0; p < npairs; p++)
		if (p == 0 || PAIR_READING(pairs[p]) != PAIR_READING(pairs[p - 1]))
			lists[nlists++] = (uint32) PAIR_READING(pairs[p]) % IVFPQ_MAX_LISTS;
	IvfpqListEntriesRead(index, &searches[0].model->meta, lists, nlists,
						 entries);
	IvfpqListsBegin(reader, entries, nlists);
	for (int l = 0; l < nlists; l++)
	{
		int			end = first + 1;

		while (end < npairs &&
			   PAIR_READING(pairs[end]) == PAIR_READING(pairs[first]))
			end++;
		IvfpqPrefetchNotice(index, &had_read);
		if (l >= nprefetched && IvfpqPrefetchHelps(index))
			nprefetched = l + IvfpqPrefetchLists(reader, lists + l,
												 entries + l, nlists - l);
		IvfpqListOpenAt(reader, (uint32) lists[l], &entries[l],
						l + 1 < nlists ? &entries[l + 1] : NULL);
		IvfpqSearchRead(reader, probers + first, end - first);
		first = end;
	}
	for (int s = 0; s < n; s++)
		IvfpqSearchTake(&searches[s], candidates);
	pfree(probers);
	pfree(entries);
	pfree(lists);
	pfree(pairs);
}
