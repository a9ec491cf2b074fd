/*
 * together.c
 *		Many searches side by side: a list is read for all searches that probe
 *		it.
 *
 * A list's blocks are copied from pages, which takes as long as to scan them;
 * here that is shared.  Some lists at a time are copied to where they lie in
 * the processor's cache, a chunk, and are scanned for one search after the
 * other, whose table then comes into the innermost cache once a chunk.  The
 * more lists searches have in common the better.
 *
 * The nearest lists of each search come first, since what is found there turns
 * away most postings of the others.  So a list may be read twice.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/bufcache.h"

/*
 * A list of a search, as a number: whether it is not among the nearest, the
 * list, which search, its how manyth.
 */
#define PAIR_FAR_SHIFT		56
#define PAIR_LIST_SHIFT		32
#define PAIR_SEARCH_SHIFT	24
#define PAIR_READING(pair)	((pair) >> PAIR_LIST_SHIFT)
#define PAIR_SEARCH(pair)	((uint32) (pair) >> PAIR_SEARCH_SHIFT)
#define PAIR_NUMBER(pair)	((int) ((pair) & ((1 << PAIR_SEARCH_SHIFT) - 1)))

StaticAssertDecl(IVFPQ_MAX_LISTS <= 1 << (PAIR_FAR_SHIFT - PAIR_LIST_SHIFT),
				 "no room for the list");
StaticAssertDecl(IVFPQ_TOGETHER <= 1 << (PAIR_LIST_SHIFT - PAIR_SEARCH_SHIFT),
				 "no room for the search");
StaticAssertDecl(IVFPQ_MAX_LISTS <= 1 << PAIR_SEARCH_SHIFT,
				 "no room for the number");

/*
 * Lists of a chunk, and bytes of their blocks, at most, but for a few blocks.
 */
#define CHUNK_LISTS		32
#define CHUNK_BYTES		(256 * 1024)

/* A list of a chunk. */
typedef struct ChunkList
{
	int			first;			/* its blocks: first .. end - 1; */
	int			again;			/* postings from here on may be repeats */
	int			end;
	int			postings;		/* live ones */
	int			numbers[IVFPQ_TOGETHER];	/* [n] which of each search's
											 * lists it is; -1: none */
} ChunkList;

typedef struct Chunk
{
	IvfpqSearch *searches;		/* [n] that lists are scanned for */
	int			n;
	int			capacity;		/* blocks that there is memory for */
	int			nblocks;
	GvBlock    *blocks;			/* [capacity] */
	char	   *bodies;			/* [capacity] of each T, row ids, codes */
	Size		body_bytes;
	int			nlists;
	ChunkList	lists[CHUNK_LISTS];
} Chunk;

/*
 * Lists that are read before others, of each search: at least LEAST_NEAR, or 1
 * / NEAR_PART of its lists.
 */
#define LEAST_NEAR	4
#define NEAR_PART	8

/*
 * The lists of searches [n], the nearest of all searches first, then by list.
 */
static uint64 *
sort_pairs(const IvfpqSearch *searches, int n, int *npairs)
{
	int			count = 0;
	uint64	   *pairs;

	for (int s = 0; s < n; s++)
		count += searches[s].lists.count;
	pairs = palloc_extended(Max(count, 1) * 2 * sizeof(uint64),
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
	IvfpqSortBits(pairs, pairs + count, count, PAIR_LIST_SHIFT);
	return pairs;
}

/* An empty chunk for searches [n]. */
static Chunk *
make_chunk(IvfpqSearch *searches, int n)
{
	Chunk	   *chunk = palloc(sizeof(Chunk));
	Size		codes = gv_code_bytes(searches[0].model->gv.m) * GV_BLOCK;

	chunk->searches = searches;
	chunk->n = n;
	chunk->body_bytes = TYPEALIGN(GV_ALIGN, codes + GV_BLOCK *
								  (sizeof(float) + sizeof(ItemPointerData)));
	chunk->capacity = (int) Max(CHUNK_BYTES / chunk->body_bytes,
								IVFPQ_OPTIMISTIC_BLOCKS);
	chunk->blocks = palloc(chunk->capacity * sizeof(GvBlock));
	chunk->bodies = palloc(chunk->capacity * chunk->body_bytes);
	chunk->nblocks = chunk->nlists = 0;
	return chunk;
}

static void
free_chunk(Chunk *chunk)
{
	pfree(chunk->bodies);
	pfree(chunk->blocks);
	pfree(chunk);
}

/* Blocks of the list of these pairs come next. */
static void
begin_list(Chunk *chunk, const uint64 *pairs, int npairs)
{
	ChunkList  *list = &chunk->lists[chunk->nlists++];

	list->first = list->again = list->end = chunk->nblocks;
	list->postings = 0;
	memset(list->numbers, -1, chunk->n * sizeof(int));
	for (int p = 0; p < npairs; p++)
		list->numbers[PAIR_SEARCH(pairs[p])] = PAIR_NUMBER(pairs[p]);
}

/* Copy a block of the list that was begun last; maybe it comes `again`. */
static void
add_block(Chunk *chunk, const IvfpqBlockView *view, bool again)
{
	GvBlock		block = IvfpqSearchView(&chunk->searches[0], view);
	ChunkList  *list = &chunk->lists[chunk->nlists - 1];
	Size		codes = gv_code_bytes(chunk->searches[0].model->gv.m) * GV_BLOCK;
	char	   *to = chunk->bodies + chunk->nblocks * chunk->body_bytes;

	if (block.ahead != NULL)
		IvfpqFetch((const char *) block.ahead,
				   (const char *) block.ahead + codes);
	block.ahead = NULL;
	memcpy(to, block.t, GV_BLOCK * sizeof(float));
	block.t = (const float *) to;
	to += GV_BLOCK * sizeof(float);
	memcpy(to, block.codes, codes);
	block.codes = (const uint8_t *) to;
	to += codes;
	memcpy(to, block.rowids, GV_BLOCK * sizeof(ItemPointerData));
	block.rowids = (const uint16_t *) to;
	chunk->blocks[chunk->nblocks++] = block;
	list->postings += pg_popcount32(block.live);
	list->end++;
	if (!again)
		list->again = list->end;
}

/* Offer the postings of a list to the search whose `number`th it is. */
static void
offer_list(IvfpqSearch *search, int number, const Chunk *chunk,
		   const ChunkList *list)
{
	float		base = search->lists.scores[number];

	search->postings_read += list->postings;
	IvfpqCheckStatus(gv_scan(&search->scan, base, chunk->blocks + list->first,
							 list->again - list->first));
	if (list->again == list->end)
		return;
	search->candidates.unique = true;
	IvfpqCheckStatus(gv_scan(&search->scan, base, chunk->blocks + list->again,
							 list->end - list->again));
	search->candidates.unique = false;
}

/*
 * Offer the postings of a chunk's lists to those that probe them; then it is
 * empty.
 */
static void
offer_chunk(Chunk *chunk)
{
	for (int s = 0; s < chunk->n; s++)
	{
		IvfpqSearch *search = &chunk->searches[s];

		CHECK_FOR_INTERRUPTS();
		for (int l = 0; l < chunk->nlists; l++)
		{
			int			number = chunk->lists[l].numbers[s];

			if (number >= 0)
				offer_list(search, number, chunk, &chunk->lists[l]);
		}
	}
	chunk->nblocks = chunk->nlists = 0;
}

/*
 * Copy the next blocks of the list that was begun last from where they lie;
 * false if there are none such, or they changed meanwhile.
 */
static bool
read_optimistic(IvfpqListReader *reader, Chunk *chunk)
{
	IvfpqBlockView views[IVFPQ_OPTIMISTIC_BLOCKS];
	ChunkList  *list = &chunk->lists[chunk->nlists - 1];
	int			n = IvfpqListNextOptimistic(reader, views);
	int			again = list->again;
	int			postings = list->postings;

	if (n == 0)
		return false;
	for (int b = 0; b < n; b++)
		add_block(chunk, &views[b], reader->reread);
	if (IvfpqListConfirm(reader, views))
		return true;
	chunk->nblocks -= n;
	list->end -= n;
	list->again = again;
	list->postings = postings;
	return false;
}

/* Copy a list, which is open, for those that probe it. */
static void
read_list(IvfpqListReader *reader, Chunk *chunk, const uint64 *pairs,
		  int npairs)
{
	IvfpqBlockView view;

	if (chunk->nlists == CHUNK_LISTS)
		offer_chunk(chunk);
	begin_list(chunk, pairs, npairs);
	for (;;)
	{
		if (chunk->capacity - chunk->nblocks < IVFPQ_OPTIMISTIC_BLOCKS)
		{
			offer_chunk(chunk);
			begin_list(chunk, pairs, npairs);
		}
		if (read_optimistic(reader, chunk))
			continue;
		if (!IvfpqListNext(reader, &view))
			break;
		add_block(chunk, &view, reader->reread);
	}
	for (int p = 0; p < npairs; p++)
		chunk->searches[PAIR_SEARCH(pairs[p])].lists_read++;
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
	int			lists_per_row = searches[0].model->meta.lists_per_row;
	int64		had_read = IvfpqCountReads();
	int			nprefetched = 0;	/* lists */
	int			npairs;
	uint64	   *pairs = sort_pairs(searches, n, &npairs);
	uint64	   *lists = palloc_extended(Max(npairs, 1) * sizeof(uint64),
										MCXT_ALLOC_HUGE);
	IvfpqDirEntry *entries = palloc_extended(Max(npairs, 1) *
											 sizeof(IvfpqDirEntry),
											 MCXT_ALLOC_HUGE);
	Chunk	   *chunk = make_chunk(searches, n);
	int			nlists = 0;
	int			first = 0;

	for (int s = 0; s < n; s++)
	{
		(void) IvfpqQueryTable(&searches[s].query);
		IvfpqSearchOpen(&searches[s], candidates * lists_per_row);
	}
	for (int p = 0; p < npairs; p++)
		if (p == 0 || PAIR_READING(pairs[p]) != PAIR_READING(pairs[p - 1]))
			lists[nlists++] = (uint32) PAIR_READING(pairs[p]) % IVFPQ_MAX_LISTS;
	IvfpqDirEntriesRead(index, &searches[0].model->meta, lists, nlists,
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
		read_list(reader, chunk, pairs + first, end - first);
		first = end;
	}
	offer_chunk(chunk);
	for (int s = 0; s < n; s++)
		IvfpqSearchTake(&searches[s], candidates);
	free_chunk(chunk);
	pfree(entries);
	pfree(lists);
	pfree(pairs);
}
