/*
 * candidates.c
 *		From nearest lists to candidates: the session's engine scans the lists.
 *
 * A search finds its nearest lists (IvfpqSearchNearest), opens a scan
 * (IvfpqSearchOpen), offers the postings of lists to the scan, and ends with
 * the best rows as candidates (IvfpqSearchTake).  No lock is held while the
 * engine works.  The query's look-up table is made when it is first needed, so
 * no table is made if gpuvecd answers from an up-to-date mirror.
 *
 * Many searches.  IvfpqSearchListsTogether reads a list once for all searches
 * that probe it, because copying a list's blocks from their pages takes as long as
 * scanning them.  Lists are copied in chunks of a few lists, to memory that
 * stays in the processor's cache.  Each chunk is scanned for one search after
 * another, so that a search's look-up table is brought into the innermost
 * cache only once per chunk.  The more lists the searches have in common, the
 * more this saves.  The nearest lists of each search are read first, because
 * the postings found there rule out most postings of the other lists.  So a
 * list may be read twice: first for the searches of which it is one of the
 * nearest lists, and then for the other searches that probe it.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/bufcache.h"
#include "page/metapage.h"

StaticAssertDecl(IVFPQ_OPTIMISTIC_BLOCKS <= GV_OPTIMISTIC_BLOCKS,
				 "the engine tries as many blocks at once");

/* Maximum bytes of scratch memory that a search keeps for its next batch. */
#define MOST_SCRATCH	(256 * 1024)

/* Bytes of the block by which IvfpqSearchInit lets the heap keep memory. */
#define KEPT_HEAP		(512 * 1024)

/*
 * If many searches run together, the nearest lists of each search are read
 * before all other lists.  The nearest are LEAST_NEAR lists, or 1 / NEAR_PART
 * of the search's lists if that is more.
 */
#define LEAST_NEAR	4
#define NEAR_PART	8

/*
 * A pair of a search and one of its lists, packed into a number.  Its parts,
 * from the highest bit down: 1 if the list is not one of the search's nearest,
 * the list, the search, and the list's place among the search's lists.  Pairs
 * that agree in the first two parts share one reading of the list.
 */
#define PAIR_FAR_SHIFT		56
#define PAIR_LIST_SHIFT		32
#define PAIR_SEARCH_SHIFT	24
#define PAIR_READING(pair)	((pair) >> PAIR_LIST_SHIFT)
#define PAIR_SEARCH(pair)	((uint32) (pair) >> PAIR_SEARCH_SHIFT)
#define PAIR_PLACE(pair)	((int) ((pair) & ((1 << PAIR_SEARCH_SHIFT) - 1)))

StaticAssertDecl(IVFPQ_MAX_LISTS <= 1 << (PAIR_FAR_SHIFT - PAIR_LIST_SHIFT),
				 "no room for the list");
StaticAssertDecl(IVFPQ_TOGETHER <= 1 << (PAIR_LIST_SHIFT - PAIR_SEARCH_SHIFT),
				 "no room for the search");
StaticAssertDecl(IVFPQ_MAX_LISTS <= 1 << PAIR_SEARCH_SHIFT,
				 "no room for the place");

/*
 * Maximum number of lists in a chunk, and maximum size of their blocks in
 * bytes.  If IVFPQ_OPTIMISTIC_BLOCKS blocks need more memory than that, a
 * chunk holds this number of blocks.
 */
#define CHUNK_LISTS		32
#define CHUNK_BYTES		(256 * 1024)

/* A list in a chunk. */
typedef struct ChunkList
{
	int			first;			/* its blocks are first .. end - 1 */
	int			again;			/* postings of the blocks from `again` on may
								 * be repeats */
	int			end;
	int			postings;		/* live postings in its blocks */
	int			places[IVFPQ_TOGETHER]; /* [n] the list's place among each
										 * search's lists, or -1 if the search
										 * does not probe it */
} ChunkList;

typedef struct Chunk
{
	IvfpqSearch *searches;		/* [n] the searches for which lists are
								 * scanned */
	int			n;
	IvfpqPostingChoice choice;	/* the postings to offer; NULL = all */
	int			choice_arg;
	int			capacity;		/* blocks for which there is memory */
	int			nblocks;
	GvBlock    *blocks;			/* [capacity] */
	char	   *bodies;			/* [capacity] T, row ids and codes of each
								 * block */
	Size		body_bytes;
	int			nlists;
	ChunkList	lists[CHUNK_LISTS];
} Chunk;

/* Prepares to search a trained index.  Allocates in the current context. */
void
IvfpqSearchInit(IvfpqSearch *search, Relation index, const IvfpqModel *model)
{
	static bool heap_is_kept = false;

	/*
	 * Let the process's heap keep some memory.  A search allocates and frees
	 * some hundred kilobytes.  If malloc requested this memory from the
	 * kernel again for each search, page faults would take 7 % of a short
	 * search.  Once a block that malloc has mapped is freed, glibc lets the
	 * heap keep up to twice the block's size (mallopt(3), "Dynamic
	 * adjustment").  With other libraries this does no harm.
	 */
	if (!heap_is_kept)
		pfree(palloc(KEPT_HEAP));
	heap_is_kept = true;

	memset(search, 0, sizeof(*search));
	search->index = index;
	search->model = model;
	IvfpqQueryInit(&search->query, model, model->gv.metric);
	IvfpqListReaderInit(&search->reader, index, &model->meta, &model->layout,
						NULL);
}

/*
 * IvfpqListReader.wants callback.  Returns whether a block has postings that
 * may satisfy the condition, or belongs to the sample.
 */
static bool
wants_block(const void *arg, const IvfpqSlotHeader *header, const char *keys)
{
	const IvfpqSearch *search = arg;

	return (search->sample.is_open &&
			gv_sampled(header->list, header->ordinal)) ||
		IvfpqWantsBlock(search->condition, header, keys);
}

/* Restricts the search to postings whose keys satisfy a condition. */
void
IvfpqSearchCondition(IvfpqSearch *search, const GvCondition *condition)
{
	search->condition = condition;
	search->reader.wants = wants_block;
	search->reader.wants_arg = search;
}

/* Sets the transformed query [dims] of the searches that follow. */
void
IvfpqSearchQuery(IvfpqSearch *search, const float *query)
{
	IvfpqQuerySet(&search->query, query);
	IvfpqSearchForgetAnswer(search);
	search->lists_read = 0;
	search->postings_read = 0;
	search->matched = 0;
}

/* Finds the `probes` nearest lists. */
void
IvfpqSearchNearest(IvfpqSearch *search, int probes)
{
	IvfpqTopKResize(&search->lists, probes);
	IvfpqNearestLists(search->index, search->model, &search->query, NULL, 1,
					  &search->lists);
}

/*
 * Returns the number of postings, including dead ones, that the directory
 * records for the `probes` nearest lists.  A search of these lists reads no
 * more postings, even if damage has made the directory's numbers wrong.
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
engine_block(const IvfpqSearch *search, const IvfpqBlockView *view)
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
 * Offers the live postings of a block to the open search, and also to the
 * sample if the sample includes the block.  search->reader has just copied the
 * block from the i-th nearest list.
 */
void
IvfpqSearchBlock(IvfpqSearch *search, int i, const IvfpqBlockView *view)
{
	const IvfpqListReader *reader = &search->reader;
	IvfpqBlockSample *sample = &search->sample;
	GvBlock		block = engine_block(search, view);

	search->postings_read += pg_popcount32(view->live);
	if (view->passed_over)
		return;
	(void) IvfpqQueryTable(&search->query);
	search->candidates.unique = reader->reread;
	IvfpqCheckStatus(gv_scan(&search->scan, search->lists.scores[i], &block,
							 1));

	/* leave out a second reading, whose postings would count twice */
	if (search->condition == NULL || !sample->is_open || reader->reread ||
		!gv_sampled(reader->list, reader->nleft / IVFPQ_BLOCK_POSTINGS))
		return;
	block.rowids = NULL;
	block.first_id = (uint64) GV_BLOCK * sample->nblocks++;
	IvfpqCheckStatus(gv_scan(&sample->scan, search->lists.scores[i], &block,
							 1));
}

/* Offers the postings of the i-th nearest list, which the reader has open. */
static void
read_list(IvfpqSearch *search, int i)
{
	IvfpqListReader *reader = &search->reader;
	int64		postings = search->postings_read;
	int64		matched = search->scan.matched;
	IvfpqBlockView views[IVFPQ_OPTIMISTIC_BLOCKS];
	GvBlock		blocks[IVFPQ_OPTIMISTIC_BLOCKS];
	int			n;

	while ((n = IvfpqListReaderNext(reader, views)) > 0)
	{
		bool		valid;

		if (reader->noptimistic == 0)
		{
			IvfpqSearchBlock(search, i, &views[0]);
			continue;
		}
		for (int b = 0; b < n; b++)
			blocks[b] = engine_block(search, &views[b]);
		(void) IvfpqQueryTable(&search->query);
		IvfpqCheckStatus(gv_scan_optimistic(&search->scan,
											search->lists.scores[i], blocks,
											n));
		valid = IvfpqListReaderConfirm(reader, views);
		IvfpqCheckStatus(gv_scan_commit(&search->scan, valid));
		for (int b = 0; b < n && valid; b++)
			search->postings_read += pg_popcount32(views[b].live);
	}
	search->candidates.unique = false;
	search->lists_read++;
	if (search->condition == NULL)
		return;
	search->counts[search->ncounts].postings = search->postings_read -
		postings;
	search->counts[search->ncounts++].matched = search->scan.matched - matched;
}

/* Offers the postings of the nearest lists first .. end - 1. */
void
IvfpqSearchLists(IvfpqSearch *search, int first, int end)
{
	IvfpqListReaderStart(&search->reader, search->lists.ids + first,
						 end - first);
	for (int i = first; i < end; i++)
	{
		IvfpqListReaderOpen(&search->reader, i - first);
		read_list(search, i);
	}
	IvfpqListReaderStop(&search->reader);
}

/*
 * Collects in search->candidates the best of all postings offered so far.
 * More postings may be offered afterwards.
 */
void
IvfpqSearchSettle(IvfpqSearch *search)
{
	IvfpqCheckStatus(gv_scan_finish(&search->scan));
	search->matched += search->scan.matched;
}

/*
 * Finds the first occurrence of each number in numbers [n].  Writes the
 * positions of these occurrences, ascending and no more than `most`, to first
 * [n], and returns their number.
 *
 * A search calls this function for a hundred candidates or so, and building a
 * set of their ids would take longer than all other work on them.  So the
 * function uses a plain hash table of positions, with linear probing.
 */
int
IvfpqDistinct(const uint64 *numbers, int n, int most, int *first)
{
	int			bits = pg_ceil_log2_32(Max(n, 1)) + 1;
	uint32		mask = ((uint32) 1 << bits) - 1;
	int		   *table;			/* a position + 1, or 0 if the slot is free */
	int			count = 0;

	if (n == 0)
		return 0;
	table = palloc_extended(((Size) mask + 1) * sizeof(int),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int i = 0; i < n && count < most; i++)
	{
		uint32		at = (uint32) (numbers[i] * IVFPQ_GOLDEN_RATIO >> (64 - bits));

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

/*
 * Keeps only the better posting of each row, and at most n rows.  If fewer
 * than n rows remain, the lists may still have other rows: a dead row's
 * posting may lead to the record of another row, and so seem to be a repeat,
 * and it may have displaced a farther posting.
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

/* Ends a search.  Leaves the best `candidates` rows in search->candidates. */
void
IvfpqSearchTake(IvfpqSearch *search, int candidates)
{
	int			lists_per_row = search->model->meta.lists_per_row;

	IvfpqSearchSettle(search);
	search->found_all = search->candidates.count < search->candidates.capacity;

	/*
	 * This many postings contain enough rows, even if both postings of each
	 * row are among them.
	 */
	gv_topk_first(&search->candidates,
				  (int) Min((int64) candidates * lists_per_row, PG_INT32_MAX));
	if (search->scan_bytes > MOST_SCRATCH)
	{
		/* free the memory, because fetching the rows will need some */
		pfree(search->scan_memory);
		search->scan_memory = NULL;
		search->scan_bytes = 0;
	}
	if (lists_per_row > 1)
		IvfpqSearchDistinct(search, candidates);
}

/* Reserves memory for the counts of nlists lists. */
void
IvfpqCountsReserve(IvfpqSearch *search, int nlists)
{
	if (nlists <= search->counts_capacity)
		return;
	if (search->counts_capacity > 0)
		pfree(search->counts);
	search->counts = palloc_extended(nlists * sizeof(IvfpqListCount),
									 MCXT_ALLOC_HUGE);
	search->counts_capacity = nlists;
}

/*
 * Sums the counts of the n nearest lists, which hold the fraction `part` of
 * the rows needed.  See ivfpqsearch.c for the reason for the weights.
 */
IvfpqListSums
IvfpqSumCounts(const IvfpqListCount *counts, int n, double part)
{
	double		ratio = pow(1 - part, 1.0 / Max(n, 1));
	double		weight = 1;
	IvfpqListSums sums = {0};

	for (int i = 0; i < n; i++)
	{
		sums.postings += counts[i].postings;
		sums.matched += counts[i].matched;
		sums.weighted_postings += weight * counts[i].postings;
		sums.weighted_matched += weight * counts[i].matched;
		weight *= ratio;
	}
	return sums;
}

/*
 * Returns pairs, one for each list of each of searches [n].  Pairs in which
 * the list is one of the search's nearest come first.  Both the nearest and
 * the other pairs are sorted by list.
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

/*
 * Adds a list to the chunk.  pairs [npairs] are the pairs of this list, one
 * for each search that probes it.  add_block adds the list's blocks next.
 */
static void
begin_list(Chunk *chunk, const uint64 *pairs, int npairs)
{
	ChunkList  *list = &chunk->lists[chunk->nlists++];

	list->first = list->again = list->end = chunk->nblocks;
	list->postings = 0;
	memset(list->places, -1, chunk->n * sizeof(int));
	for (int p = 0; p < npairs; p++)
		list->places[PAIR_SEARCH(pairs[p])] = PAIR_PLACE(pairs[p]);
}

/*
 * Adds a copy of a block to the chunk's last list.  If `again` is true, the
 * block's postings may be repeats of postings added before.
 */
static void
add_block(Chunk *chunk, const IvfpqBlockView *view, bool again)
{
	GvBlock		block = engine_block(&chunk->searches[0], view);
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
	if (chunk->choice != NULL)
		block.live &= chunk->choice(chunk->choice_arg, view);
	chunk->blocks[chunk->nblocks++] = block;
	list->postings += pg_popcount32(block.live);
	list->end++;
	if (!again)
		list->again = list->end;
}

/*
 * Offers the postings of a chunk's lists to the searches that probe them, and
 * empties the chunk.
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
			const ChunkList *list = &chunk->lists[l];
			float		base;

			if (list->places[s] < 0)
				continue;
			base = search->lists.scores[list->places[s]];
			search->postings_read += list->postings;
			IvfpqCheckStatus(gv_scan(&search->scan, base,
									 chunk->blocks + list->first,
									 list->again - list->first));
			if (list->again == list->end)
				continue;
			search->candidates.unique = true;
			IvfpqCheckStatus(gv_scan(&search->scan, base,
									 chunk->blocks + list->again,
									 list->end - list->again));
			search->candidates.unique = false;
		}
	}
	chunk->nblocks = chunk->nlists = 0;
}

/*
 * Copies the list that the reader has open into the chunk, for the searches of
 * pairs [npairs].  Offers the chunk's postings whenever it is full.
 */
static void
copy_list(IvfpqListReader *reader, Chunk *chunk, const uint64 *pairs,
		  int npairs)
{
	IvfpqBlockView views[IVFPQ_OPTIMISTIC_BLOCKS];

	if (chunk->nlists == CHUNK_LISTS)
		offer_chunk(chunk);
	begin_list(chunk, pairs, npairs);
	for (;;)
	{
		ChunkList  *list;
		int			again;
		int			postings;
		int			n;

		if (chunk->capacity - chunk->nblocks < IVFPQ_OPTIMISTIC_BLOCKS)
		{
			offer_chunk(chunk);
			begin_list(chunk, pairs, npairs);
		}
		list = &chunk->lists[chunk->nlists - 1];
		again = list->again;
		postings = list->postings;
		n = IvfpqListReaderNext(reader, views);
		if (n == 0)
			break;
		for (int b = 0; b < n; b++)
			add_block(chunk, &views[b], reader->reread);
		if (IvfpqListReaderConfirm(reader, views))
			continue;
		/* The blocks changed while they were copied: take them out. */
		chunk->nblocks -= n;
		list->end -= n;
		list->again = again;
		list->postings = postings;
	}
	for (int p = 0; p < npairs; p++)
		chunk->searches[PAIR_SEARCH(pairs[p])].lists_read++;
}

/*
 * Offers the postings of each search's lists to the search, for open searches
 * [n <= IVFPQ_TOGETHER] of one index, which have no conditions.  Unless
 * `choice` is NULL, offers only the postings that it chooses.
 */
void
IvfpqSearchListsTogether(IvfpqSearch *searches, int n,
						 IvfpqPostingChoice choice, int choice_arg)
{
	IvfpqListReader *reader = &searches[0].reader;
	int			npairs;
	uint64	   *pairs = sort_pairs(searches, n, &npairs);
	uint64	   *lists = palloc_extended(Max(npairs, 1) * sizeof(uint64),
										MCXT_ALLOC_HUGE);
	Chunk	   *chunk = palloc(sizeof(Chunk));
	int			nlists = 0;
	int			first = 0;

	chunk->searches = searches;
	chunk->n = n;
	chunk->choice = choice;
	chunk->choice_arg = choice_arg;
	chunk->body_bytes = TYPEALIGN(GV_ALIGN, GV_BLOCK *
								  (gv_code_bytes(searches[0].model->gv.m) +
								   sizeof(float) + sizeof(ItemPointerData)));
	chunk->capacity = (int) Max(CHUNK_BYTES / chunk->body_bytes,
								IVFPQ_OPTIMISTIC_BLOCKS);
	chunk->blocks = palloc(chunk->capacity * sizeof(GvBlock));
	chunk->bodies = palloc(chunk->capacity * chunk->body_bytes);
	chunk->nblocks = chunk->nlists = 0;
	for (int p = 0; p < npairs; p++)
		if (p == 0 || PAIR_READING(pairs[p]) != PAIR_READING(pairs[p - 1]))
			lists[nlists++] = (uint32) PAIR_READING(pairs[p]) % IVFPQ_MAX_LISTS;
	IvfpqListReaderStart(reader, lists, nlists);
	for (int l = 0; l < nlists; l++)
	{
		int			end = first + 1;

		while (end < npairs &&
			   PAIR_READING(pairs[end]) == PAIR_READING(pairs[first]))
			end++;
		IvfpqListReaderOpen(reader, l);
		copy_list(reader, chunk, pairs + first, end - first);
		first = end;
	}
	IvfpqListReaderStop(reader);
	offer_chunk(chunk);
	pfree(chunk->bodies);
	pfree(chunk->blocks);
	pfree(chunk);
	pfree(lists);
	pfree(pairs);
}

/*
 * Fills the candidates of searches [n <= IVFPQ_TOGETHER] of one index.  The
 * searches have no conditions, and their nearest lists have been found.  The
 * candidates are those that IvfpqSearchRun finds in these lists.
 */
void
IvfpqSearchTogether(IvfpqSearch *searches, int n, int candidates)
{
	int			lists_per_row = searches[0].model->meta.lists_per_row;

	for (int s = 0; s < n; s++)
	{
		(void) IvfpqQueryTable(&searches[s].query);
		IvfpqSearchOpen(&searches[s], candidates * lists_per_row);
	}
	IvfpqSearchListsTogether(searches, n, NULL, 0);
	for (int s = 0; s < n; s++)
		IvfpqSearchTake(&searches[s], candidates);
}
