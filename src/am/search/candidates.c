/*
 * candidates.c
 *		From a query to candidates: nearest lists, one look-up table, a scan of
 *		the probed lists.  Joins pages and engine; no lock is held while the
 *		engine works.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"

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
GvBlock
IvfpqSearchView(const IvfpqSearch *search, const IvfpqBlockView *view)
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
	GvBlock		block = IvfpqSearchView(search, view);

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
		blocks[b] = IvfpqSearchView(search, &views[b]);
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
