/*
 * candidates.c
 *		From a query to candidates: nearest lists, one look-up table, a scan of
 *		the probed lists.  Joins pages and engine; no lock is held while the
 *		engine works.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/bufcache.h"

StaticAssertDecl(IVFPQ_OPTIMISTIC_BLOCKS <= GV_OPTIMISTIC_BLOCKS,
				 "the engine tries as many blocks at once");

/* Scratch that a search keeps for the next batch. */
#define MOST_SCRATCH	(256 * 1024)

/* Half of what searches may leave in the process's heap. */
#define KEPT_HEAP		(512 * 1024)

/*
 * A search takes and frees some hundred kilobytes, which malloc would ask of
 * the kernel for each, page fault by page fault: 7 % of a short search.  After
 * a mapped block is freed, glibc lets the heap keep twice its size
 * (mallopt(3), "Dynamic adjustment"); other libraries lose nothing by it.
 */
static void
keep_heap(void)
{
	static bool kept = false;

	if (!kept)
		pfree(palloc(KEPT_HEAP));
	kept = true;
}

/* Prepare to search a trained index; memory from the current context. */
void
IvfpqSearchInit(IvfpqSearch *search, Relation index, const IvfpqModel *model)
{
	keep_heap();
	memset(search, 0, sizeof(*search));
	search->index = index;
	search->model = model;
	IvfpqQueryInit(&search->query, model, model->gv.metric);
	IvfpqListReaderInit(&search->reader, index, &model->meta, NULL);
}

/* Restricts the search to postings whose keys satisfy a condition. */
void
IvfpqSearchCondition(IvfpqSearch *search, const GvCondition *condition)
{
	search->condition = condition;
	search->reader.wants = IvfpqSampleWants;
	search->reader.wants_arg = search;
}

/* Sets the transformed query [dims] of the searches that follow. */
void
IvfpqSearchQuery(IvfpqSearch *search, const float *query)
{
	IvfpqQuerySet(&search->query, query);
	search->remote.nknown = 0;	/* of the last query */
	search->lists_read = 0;
	search->postings_read = 0;
	search->matched = 0;
}

/* Begins a search for the best `capacity` postings. */
void
IvfpqSearchOpen(IvfpqSearch *search, int capacity)
{
	const GvModel *gv = &search->model->gv;
	Size		bytes = gv_scan_scratch(gv->m, capacity);

	IvfpqTopKResize(&search->candidates, capacity);
	if (bytes > search->scan_bytes)
	{
		if (search->scan_memory)
			pfree(search->scan_memory);
		search->scan_bytes = 0;
		search->scan_memory = palloc_extended(bytes + GV_ALIGN,
											  MCXT_ALLOC_HUGE);
		search->scan_bytes = bytes;
	}
	search->scan.model = gv;
	search->scan.table = search->query.table;
	search->scan.best = &search->candidates;
	search->scan.reach = GV_SCORE_MAX;
	search->scan.condition = search->condition;
	search->scan.scratch = (void *) TYPEALIGN(GV_ALIGN, search->scan_memory);
	IvfpqCheckStatus(gv_scan_begin(&search->scan));
}

/* Returns a block of a list in the form that the engine scans. */
static GvBlock
search_view(const IvfpqSearch *search, const IvfpqBlockView *view)
{
	GvBlock		block = {
		.codes = view->codes,
		.t = view->t,
		.rowids = (const uint16_t *) (search->addresses ? view->refine :
									  view->tids),
		.live = view->live,
		.keys = view->keys,
		.ahead = view->ahead
	};

	return block;
}

/*
 * Offers the live postings of a block of the i-th nearest list to the open
 * search; `again`: they may have been offered before
 * (IvfpqListReader.reread).
 */
void
IvfpqSearchBlock(IvfpqSearch *search, int i, const IvfpqBlockView *view,
				 bool again)
{
	GvBlock		block = search_view(search, view);

	search->postings_read += pg_popcount32(view->live);
	if (view->passed_over)
		return;
	/* not made before it is needed: never where gpuvecd answers */
	(void) IvfpqQueryTable(&search->query);
	search->candidates.unique = again;
	IvfpqCheckStatus(gv_scan(&search->scan, search->lists.scores[i], &block,
							 1));
	if (search->condition != NULL)
		IvfpqSampleBlock(search, search->lists.scores[i], &block);
}

/*
 * Brings everything offered so far into search->candidates.  More may be
 * offered afterwards.
 */
void
IvfpqSearchSettle(IvfpqSearch *search)
{
	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	search->matched += search->scan.matched;
}

/*
 * Goes on with the open search for the best `capacity` postings.  Returns
 * false if some of these may have been left out already.
 */
bool
IvfpqSearchWiden(IvfpqSearch *search, int capacity)
{
	GvTopK		found;

	IvfpqSearchSettle(search);
	found = search->candidates;
	memset(&search->candidates, 0, sizeof(GvTopK));
	IvfpqSearchOpen(search, capacity);
	for (int i = 0; i < found.count; i++)
		gv_topk_push(&search->candidates, found.scores[i], found.ids[i]);
	pfree(found.scores);
	pfree(found.ids);
	return found.count < found.capacity;
}

/*
 * Offers the next blocks of the i-th nearest list, which is open, by an
 * optimistic read.  Returns false if no such blocks follow, or they changed
 * meanwhile.
 */
static bool
read_optimistic(IvfpqSearch *search, int i)
{
	IvfpqBlockView views[IVFPQ_OPTIMISTIC_BLOCKS];
	GvBlock		blocks[IVFPQ_OPTIMISTIC_BLOCKS];
	int			n = IvfpqListNextOptimistic(&search->reader, views);
	bool		valid;

	if (n == 0)
		return false;
	for (int b = 0; b < n; b++)
		blocks[b] = search_view(search, &views[b]);
	(void) IvfpqQueryTable(&search->query);
	IvfpqCheckStatus(gv_scan_optimistic(&search->scan, search->lists.scores[i],
										blocks, n));
	valid = IvfpqListConfirm(&search->reader, views);
	IvfpqCheckStatus(gv_scan_commit(&search->scan, valid));
	for (int b = 0; b < n && valid; b++)
		search->postings_read += pg_popcount32(views[b].live);
	return valid;
}

/* Offers the postings of the i-th nearest list, which is open. */
static void
read_list(IvfpqSearch *search, int i)
{
	int64		postings = search->postings_read;
	int64		matched = search->scan.matched;
	IvfpqBlockView view;

	for (;;)
	{
		while (read_optimistic(search, i))
			;
		if (!IvfpqListNext(&search->reader, &view))
			break;
		IvfpqSearchBlock(search, i, &view, search->reader.reread);
	}
	search->candidates.unique = false;
	search->lists_read++;
	if (search->condition == NULL)
		return;
	search->counts[search->ncounts].postings = search->postings_read -
		postings;
	search->counts[search->ncounts++].matched = search->scan.matched - matched;
}

/* Offers every posting of the i-th nearest list. */
void
IvfpqSearchList(IvfpqSearch *search, int i)
{
	IvfpqListOpen(&search->reader, (uint32) search->lists.ids[i]);
	read_list(search, i);
}

/* Offers the postings of nearest lists first .. end - 1. */
void
IvfpqSearchLists(IvfpqSearch *search, int first, int end)
{
	const uint64 *lists = search->lists.ids + first;
	int			n = end - first;
	IvfpqDirEntry *entries = palloc_extended(Max(n, 1) *
											 sizeof(IvfpqDirEntry),
											 MCXT_ALLOC_HUGE);
	int64		had_read = IvfpqCountReads();
	int			nprefetched = 0;	/* lists */

	IvfpqDirEntriesRead(search->index, &search->model->meta,
						lists, n, entries);
	IvfpqListsBegin(&search->reader, entries, n);
	for (int i = 0; i < n; i++)
	{
		/* prefetched pages are there when the list is read */
		IvfpqPrefetchNotice(search->index, &had_read);
		if (i >= nprefetched && IvfpqPrefetchHelps(search->index))
			nprefetched = i + IvfpqPrefetchLists(&search->reader, lists + i,
												 entries + i, n - i);
		IvfpqListOpenAt(&search->reader, (uint32) lists[i], &entries[i],
						i + 1 < n ? &entries[i + 1] : NULL);
		read_list(search, first + i);
	}
	pfree(entries);
}

/* Finds the `probes` nearest lists. */
void
IvfpqSearchNearest(IvfpqSearch *search, int probes)
{
	IvfpqTopKResize(&search->lists, probes);
	IvfpqNearestLists(search->index, search->model, &search->query,
					  &search->lists);
}

/*
 * Counts the postings in the `probes` nearest lists, dead ones included, by
 * the directory.  No search finds more, even where damage has made these
 * numbers wrong.
 */
int64
IvfpqSearchCount(IvfpqSearch *search, int probes)
{
	IvfpqDirEntry *entries = palloc_extended(probes * sizeof(IvfpqDirEntry),
											 MCXT_ALLOC_HUGE);
	int64		postings = 0;

	IvfpqSearchNearest(search, probes);
	IvfpqDirEntriesRead(search->index, &search->model->meta,
						search->lists.ids, search->lists.count, entries);
	for (int i = 0; i < search->lists.count; i++)
		postings += entries[i].nitems;
	pfree(entries);
	return postings;
}

/*
 * Keeps a row's better posting only, and at most n rows.  Fewer than n rows do
 * not prove that there are no others: dead rows' postings may lead to the
 * record of another row, and crowd out postings behind them.
 */
void
IvfpqSearchDistinct(IvfpqSearch *search, int n)
{
	GvTopK	   *candidates = &search->candidates;
	int		   *first = palloc_extended(Max(candidates->count, 1) * sizeof(int),
										MCXT_ALLOC_HUGE);
	int			kept = IvfpqDistinct(candidates->ids, candidates->count, n,
									 first);

	for (int i = 0; i < kept; i++)
	{
		candidates->scores[i] = candidates->scores[first[i]];
		candidates->ids[i] = candidates->ids[first[i]];
	}
	candidates->count = kept;
	pfree(first);
}

/* Ends a search: the best rows offered, at most `candidates`, remain. */
void
IvfpqSearchTake(IvfpqSearch *search, int candidates)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	IvfpqSearchSettle(search);
	search->found_all = search->candidates.count < search->candidates.capacity;

	/*
	 * these have enough rows, even if all are primary and secondary postings
	 */
	gv_topk_first(&search->candidates,
				  (int) Min((int64) candidates * lists_per_row, PG_INT32_MAX));
	if (search->scan_bytes > MOST_SCRATCH)
	{
		/* leave the memory to the rows */
		pfree(search->scan_memory);
		search->scan_memory = NULL;
		search->scan_bytes = 0;
	}
	if (lists_per_row > 1)
		IvfpqSearchDistinct(search, candidates);
}

/*
 * Fills search->candidates with the best rows of the `probes` nearest lists,
 * by the score of their better posting, ties by id.  All postings of a row
 * carry the same address, so that it names the row as well as its TID does.
 * gpuvecd and the session's engine find the same candidates in the same lists.
 * But the last of the nearest lists may differ, because gpuvecd does not
 * choose lists by codes of centroids.
 */
void
IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	if (IvfpqSearchRemote(search, probes, candidates * lists_per_row, 0, 0))
	{
		search->found_all = search->candidates.count < candidates *
			lists_per_row;
		if (lists_per_row > 1)
			IvfpqSearchDistinct(search, candidates);
		return;
	}
	IvfpqSearchNearest(search, probes);
	IvfpqSearchOpen(search, candidates * lists_per_row);
	IvfpqSearchLists(search, 0, search->lists.count);
	IvfpqSearchTake(search, candidates);
}

/* ----
 * Which of some numbers have not come before.
 *
 * A search asks that of its candidates, a hundred or so, and would spend more
 * time with making a set of them than with anything else that it does to them.
 * So this is no set: a table of places, in which each number is looked for
 * from where its hash is on.
 */

#define GOLDEN_RATIO	UINT64CONST(0x9E3779B97F4A7C15)

/*
 * Which of numbers [n] come for the first time, no more than `most`: their
 * places, ascending, to first [n]; returns how many.
 */
int
IvfpqDistinct(const uint64 *numbers, int n, int most, int *first)
{
	int			bits = pg_ceil_log2_32(Max(n, 1)) + 1;
	uint32		mask = ((uint32) 1 << bits) - 1;
	int		   *table;			/* a place and 1, or 0 */
	int			count = 0;

	if (n == 0)
		return 0;
	table = palloc_extended(((Size) mask + 1) * sizeof(int),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int i = 0; i < n && count < most; i++)
	{
		uint32		at = (uint32) (numbers[i] * GOLDEN_RATIO >> (64 - bits));

		while (table[at] != 0 && numbers[table[at] - 1] != numbers[i])
			at = (at + 1) & mask;
		if (table[at] != 0)
			continue;
		table[at] = i + 1;
		first[count++] = i;
	}
	pfree(table);
	return count;
}

/* ----
 * Many searches side by side: a list is read for all searches that probe
 * it.
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
	GvBlock		block = search_view(&chunk->searches[0], view);
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
read_optimistic_together(IvfpqListReader *reader, Chunk *chunk)
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
read_list_together(IvfpqListReader *reader, Chunk *chunk, const uint64 *pairs,
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
		if (read_optimistic_together(reader, chunk))
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
		read_list_together(reader, chunk, pairs + first, end - first);
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
