/*
 * verifymirror.c
 *		Compares gpuvecd's mirror of an index with the index's pages, for
 *		gpuvec_verify_index.
 *
 * A mirror may be behind the index, and that is not an error.  A list is not
 * compared if it was rewritten, or if postings in it died, after the mirror
 * got it.  If a list only grew, the postings that the mirror has are compared.
 *
 * Rows of the table are compared with those that the statement's snapshot sees,
 * unless the index may have later versions of them.  While the snapshot sees
 * them, their TIDs belong to no other rows.
 *
 * Refine records are compared only while a lock on the table shows that no
 * VACUUM runs, because VACUUM frees records.  They are not compared on a
 * standby, where a lock does not exclude the VACUUM of the primary.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "am/common/identity.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "client/client.h"
#include "page/array.h"
#include "page/listread.h"
#include "page/metapage.h"
#include "page/refinepage.h"

/* Maximum number of lists in a request.  The answer may have fewer lists. */
#define LISTS_AT_ONCE	4096

/* Maximum numbers of array elements and of refine records in a request. */
#define VALUES_AT_ONCE	(1024 * 1024)
#define RECORDS_AT_ONCE	1024

/* Maximum bytes of the rows of a request. */
#define ROWS_BYTES		(1024 * 1024)

/* The TID of a posting and the address of its refine record. */
typedef struct NotedPosting
{
	ItemPointerData address;
	ItemPointerData tid;
} NotedPosting;

typedef struct MirrorCheck
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqProblem report;
	void	   *arg;

	/* lists */
	IvfpqListReader reader;
	int			code_bytes;
	uint64	   *keys;			/* [keys_bytes] aligned copy of block keys */
	Size		keys_bytes;
	int			next;			/* list to be compared next */
	int			block;			/* first block of list `next` to be compared */

	/* refine records and rows */
	bool		records;		/* records can be compared, because the table
								 * is locked */
	Relation	heap;			/* the table, if rows are compared; or NULL */
	GvRowForm	rows;
	NotedPosting *noted;		/* [capacity] postings whose records or rows
								 * will be compared next */
	int64		nnoted;
	int64		capacity;
} MirrorCheck;

/* Reports a warning that says why the mirror is not compared. */
static void
not_compared(const MirrorCheck *check, const char *reason)
{
	char		problem[320];

	snprintf(problem, sizeof(problem),
			 "could not compare the mirror of gpuvecd: %s", reason);
	check->report(check->arg, false, InvalidBlockNumber, IVFPQ_NO_LIST,
				  problem);
}

/* Reports an error: a part of the mirror differs from the pages. */
static void
report_difference(const MirrorCheck *check, BlockNumber blkno, uint32 list,
				  const char *what)
{
	char		problem[128];

	snprintf(problem, sizeof(problem),
			 "%s differ between the mirror of gpuvecd and the pages of the index", what);
	check->report(check->arg, true, blkno, list, problem);
}

/*
 * Compares an array of the model, which begins on page `page`, with the same
 * array in the mirror.  Returns false if the mirror cannot be read.
 */
static bool
check_array(const MirrorCheck *check, GvArray array, const char *name,
			BlockNumber page, int64 n)
{
	IvfpqArrayReader reader;
	const float *run = NULL;
	int			left = 0;
	bool		same = true;

	IvfpqArrayOpen(&reader, check->index, page, 1, n);
	for (int64 first = 0; first < n && same; first += VALUES_AT_ONCE)
	{
		int64		count = Min(n - first, VALUES_AT_ONCE);
		const char *values;
		const char *reason;

		if (IvfpqMirrorValues(check->index, check->meta, array, first, count,
							  &values, &reason) != IVFPQ_ANSWERED)
		{
			IvfpqArrayClose(&reader);
			not_compared(check, reason);
			return false;
		}
		for (int64 done = 0; done < count && same;)
		{
			int			some;

			if (left == 0)
				run = IvfpqArrayNext(&reader, &left);
			some = (int) Min(left, count - done);
			same = memcmp(run, values + done * sizeof(float),
						  some * sizeof(float)) == 0;
			run += some;
			left -= some;
			done += some;
		}
	}
	IvfpqArrayClose(&reader);
	if (!same)
		report_difference(check, page, IVFPQ_NO_LIST, name);
	return true;
}

static int
compare_noted(const void *a, const void *b)
{
	const NotedPosting *x = a;
	const NotedPosting *y = b;
	int			c = ItemPointerCompare((ItemPointer) &x->address,
									   (ItemPointer) &y->address);

	return c != 0 ? c : ItemPointerCompare((ItemPointer) &x->tid,
										   (ItemPointer) &y->tid);
}

/*
 * Sorts the noted postings, keeps each row once, even if it has two, and returns
 * the number of rows.
 */
static int64
sort_noted(MirrorCheck *check)
{
	qsort(check->noted, check->nnoted, sizeof(NotedPosting), compare_noted);
	return qunique(check->noted, check->nnoted, sizeof(NotedPosting),
				   compare_noted);
}

/*
 * Compares the refine records of the noted postings, and forgets these
 * postings.  Returns false if the mirror cannot be read.
 *
 * If a VACUUM was interrupted, the record of a dead row may be gone although
 * the row still has a posting.  Then the slot on the page is free, or has the
 * record of another row, and the record is not compared.
 */
static bool
check_records(MirrorCheck *check)
{
	int			dims = check->meta->dims;
	Size		slot_bytes = IvfpqRecordSlotBytes(dims);
	char	   *slots;
	ItemPointerData addresses[RECORDS_AT_ONCE];
	int64		nrows;
	int64		differences = 0;
	char		what[64];

	if (check->nnoted == 0)
		return true;

	nrows = sort_noted(check);
	slots = palloc(RECORDS_AT_ONCE * slot_bytes);
	for (int64 done = 0; done < nrows; done += RECORDS_AT_ONCE)
	{
		const NotedPosting *noted = check->noted + done;
		int			n = (int) Min(nrows - done, RECORDS_AT_ONCE);
		const char *items;
		const char *reason;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
			addresses[i] = noted[i].address;
		IvfpqRecordRead(check->index, dims, addresses, n, slots, NULL);
		if (IvfpqMirrorRecords(check->index, check->meta, addresses, n,
							   &items, &reason) != IVFPQ_ANSWERED)
		{
			not_compared(check, reason);
			pfree(slots);
			return false;
		}
		for (int i = 0; i < n; i++)
		{
			const IvfpqRecord *record = (const IvfpqRecord *)
			(slots + i * slot_bytes);
			const GvRefineItem *item = (const GvRefineItem *)
			(items + i * gv_refine_stride(dims));

			if (memcmp(&record->tid, &noted[i].tid,
					   sizeof(ItemPointerData)) == 0 &&
				(memcmp(item->rowid, &record->tid, sizeof(item->rowid)) != 0 ||
				 memcmp(&item->min, &record->min, sizeof(float)) != 0 ||
				 memcmp(&item->step, &record->step, sizeof(float)) != 0 ||
				 memcmp(&item->error, &record->error, sizeof(float)) != 0 ||
				 memcmp(item->codes, record->codes, dims) != 0))
				differences++;
		}
	}
	pfree(slots);
	check->nnoted = 0;
	if (differences > 0)
	{
		snprintf(what, sizeof(what), "%lld refine records",
				 (long long) differences);
		report_difference(check, InvalidBlockNumber, IVFPQ_NO_LIST, what);
	}
	return true;
}

/*
 * Compares the rows of the noted postings, and forgets these postings.  Returns
 * false if the mirror cannot be read.  A row that the mirror lacks is not an
 * error.
 */
static bool
check_rows(MirrorCheck *check)
{
	int			dims = check->meta->dims;
	Size		stride = gv_row_stride(check->rows, dims);
	int			most = (int) Max(ROWS_BYTES / stride, 1);
	ItemPointerData *tids = palloc(most * sizeof(ItemPointerData));
	char	   *mine = palloc(most * stride);
	int64		nrows = sort_noted(check);
	int64		differences = 0;
	char		what[64];

	for (int64 done = 0; done < nrows; done += most)
	{
		int			n = (int) Min(nrows - done, most);
		const char *items;
		const char *reason;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
			tids[i] = check->noted[done + i].tid;
		(void) ivfpq_row_source->read(check->index, check->heap,
									  GetActiveSnapshot(), check->rows, dims,
									  tids, n, false, mine);
		if (IvfpqMirrorRows(check->index, check->meta, check->rows, tids, n,
							&items, &reason) != IVFPQ_ANSWERED)
		{
			not_compared(check, reason);
			return false;
		}
		for (int i = 0; i < n && items != NULL; i++)
		{
			const GvRowItem *row = (const GvRowItem *) (mine + i * stride);
			const GvRowItem *item = (const GvRowItem *) (items + i * stride);

			differences += row->known && item->known &&
				memcmp(row, item, sizeof(GvRowItem) +
					   gv_row_bytes(check->rows, dims)) != 0;
		}
	}
	pfree(mine);
	pfree(tids);
	check->nnoted = 0;
	if (differences > 0)
	{
		snprintf(what, sizeof(what), "%lld rows", (long long) differences);
		report_difference(check, InvalidBlockNumber, IVFPQ_NO_LIST, what);
	}
	return true;
}

/*
 * Returns whether posting i has the same keys in the view and in check->keys,
 * and whether the key heads in check->keys include these keys.  The key heads
 * in the view are not compared, because they may include keys of later
 * postings as well.
 */
static bool
same_keys(const MirrorCheck *check, const IvfpqBlockView *view, int i)
{
	const IvfpqKeyForm *form = &check->reader.layout.keys;
	IvfpqKeyAbbrevs paged;
	IvfpqKeyAbbrevs mirrored;

	IvfpqKeyAbbrevsGet(form, view->keys, i, &paged);
	IvfpqKeyAbbrevsGet(form, (const char *) check->keys, i, &mirrored);
	if (memcmp(&paged, &mirrored, sizeof(paged)) != 0)
		return false;
	for (int k = 0; k < form->nkeys; k++)
		if (!IvfpqKeyHeadCovers(form, k, (const IvfpqKeyHead *) check->keys + k,
								&mirrored))
			return false;
	return true;
}

/*
 * Returns whether posting i is equal in the view and in the chunk's block b.
 */
static bool
same_posting(const MirrorCheck *check, const IvfpqBlockView *view,
			 const GvListChunk *chunk, int b, int i)
{
	const ItemPointerData *rowids = view->refine ? view->refine : view->tids;
	const uint8 *codes = chunk->codes +
	(Size) b * check->code_bytes * GV_BLOCK;
	Size		at = (Size) b * GV_BLOCK + i;

	if (memcmp(&rowids[i], chunk->rowids + 3 * at,
			   sizeof(ItemPointerData)) != 0 ||
		memcmp(&view->t[i], &chunk->t[at], sizeof(float)) != 0 ||
		(check->keys_bytes > 0 && !same_keys(check, view, i)))
		return false;
	for (int p = 0; p < check->code_bytes; p++)
		if (view->codes[p * GV_BLOCK + i] != codes[p * GV_BLOCK + i])
			return false;
	return true;
}

/*
 * Compares the first `count` postings of a block with the postings of block b
 * of the chunk.  Returns the number of postings that differ.  If records or
 * rows are compared, notes the live postings of the block.
 */
static int
compare_block(MirrorCheck *check, const IvfpqBlockView *view, int count,
			  const GvListChunk *chunk, int b)
{
	uint32		unlike = view->live ^ chunk->live[b];
	int			differences = 0;

	if (check->keys_bytes > 0)
		memcpy(check->keys, (const char *) chunk->keys + b * check->keys_bytes,
			   check->keys_bytes);
	for (int i = 0; i < count; i++)
	{
		bool		live = (view->live >> i & 1) != 0;

		/* gcc 12.2 compiles a comparison of two bits wrongly here */
		if ((unlike >> i & 1) != 0 ||
			(live && !same_posting(check, view, chunk, b, i)))
			differences++;
		if (live && (check->records || check->heap != NULL))
		{
			IvfpqGrow(check->noted, check->nnoted, check->capacity);
			check->noted[check->nnoted].address =
				check->records ? view->refine[i] : view->tids[i];
			check->noted[check->nnoted++].tid = view->tids[i];
		}
	}
	return differences;
}

/*
 * Compares a chunk with its list.  Differences count only if the list was
 * not rewritten, and no posting in it died, between the time of *state and the
 * end of the comparison.
 */
static void
check_chunk(MirrorCheck *check, const GvListChunk *chunk,
			const GvListState *state)
{
	IvfpqListReader *reader = &check->reader;
	IvfpqBlockView view;
	IvfpqDirEntry entry;
	int64		nnoted = check->nnoted;
	uint32		nitems;
	int			differences = 0;
	char		what[64];

	IvfpqListOpen(reader, (uint32) chunk->list);
	if (reader->entry.gen != state->gen ||
		reader->entry.del_seq != state->del_seq)
		return;
	nitems = Max(reader->entry.nitems, (uint32) chunk->first * GV_BLOCK);
	if (state->nitems > nitems)
		differences = (int) (state->nitems - nitems);
	while (IvfpqListNext(reader, &view) && !reader->reread)
	{
		int			b = (int) (reader->nleft / GV_BLOCK) - chunk->first;

		if (b >= 0 && b < chunk->nblocks && reader->nleft < state->nitems)
			differences += compare_block(check, &view,
										 Min(state->nitems - reader->nleft,
											 GV_BLOCK),
										 chunk, b);
	}
	IvfpqDirEntryRead(check->index, check->meta, (uint32) chunk->list,
					  &entry);
	if (entry.gen != state->gen || entry.del_seq != state->del_seq)
		check->nnoted = nnoted;
	else if (differences > 0)
	{
		snprintf(what, sizeof(what), "%d postings of the list", differences);
		report_difference(check, InvalidBlockNumber, (uint32) chunk->list, what);
	}
}

/*
 * Checks the lists of one answer.  Returns false after the last list, or if
 * the check cannot continue.  If an answer has only one chunk, the chunk may
 * be only a part of its list.  Then the next request asks for the rest of that
 * list, even if no block is left.
 */
static bool
check_lists(MirrorCheck *check)
{
	int			nlists = check->meta->nlists;
	IvfpqMirrorChunks chunks;
	GvListChunk chunk;
	GvListState state;
	const char *reason;
	int			nchunks = 0;

	if (IvfpqMirrorRead(check->index, check->meta, check->next,
						Min(nlists - check->next, LISTS_AT_ONCE),
						check->block, &chunks, &reason) != IVFPQ_ANSWERED)
	{
		not_compared(check, reason);
		return false;
	}
	/* stop at the first chunk that is out of order or too large */
	while (IvfpqMirrorNext(&chunks, &chunk, &state) &&
		   chunk.list == check->next && chunk.list < nlists &&
		   chunk.first == check->block &&
		   chunk.nblocks <= INT_MAX / GV_BLOCK - chunk.first)
	{
		CHECK_FOR_INTERRUPTS();
		check_chunk(check, &chunk, &state);
		check->next++;
		check->block = 0;
		nchunks++;
	}
	if (nchunks == 0 || chunks.next != chunks.end)
	{
		check->report(check->arg, true, InvalidBlockNumber,
					  (uint32) check->next,
					  "invalid response from gpuvecd");
		return false;
	}
	if (nchunks == 1 && chunk.nblocks > 0)
	{
		check->next--;
		check->block = chunk.first + chunk.nblocks;
	}
	return (check->heap != NULL ? check_rows(check) : check_records(check)) &&
		check->next < nlists;
}

/* Reports differences between the pages of an index and gpuvecd's mirror. */
void
IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg)
{
	IvfpqModel *model = IvfpqModelGet(index);
	const IvfpqMetaData *meta = &model->meta;
	MirrorCheck check = {
		.index = index,
		.meta = meta,
		.report = report,
		.arg = arg,
		.code_bytes = gv_code_bytes(meta->pq_dim)
	};
	Oid			heap;
	bool		has_records;
	bool		more;

	if (meta->nlists == 0)
		return;					/* an untrained index has no mirror */
	heap = IndexGetRelation(RelationGetRelid(index), false);
	has_records = IvfpqMirrorHasRecords(meta) && !RecoveryInProgress();
	IvfpqListReaderInit(&check.reader, index, meta, &model->layout, NULL);
	check.keys_bytes = IvfpqKeysBytes(&check.reader.layout.keys);
	check.keys = palloc(Max(check.keys_bytes, 1));
	more = check_array(&check, GV_CODEBOOKS, "codebooks", meta->codebooks,
					   (int64) GV_CODEWORDS * meta->dims) &&
		check_array(&check, GV_PARENTS, "parents", meta->parents,
					(int64) meta->nparents * meta->dims) &&
		check_array(&check, GV_PARENT_OFFSETS, "first lists of parents",
					meta->parent_offsets, meta->nparents + 1) &&
		check_array(&check, GV_CENTROIDS, "centroids", meta->centroids,
					(int64) meta->nlists * meta->dims);
	if (meta->refine == IVFPQ_REFINE_NONE && ivfpq_row_source != NULL &&
		IvfpqIsWhole(index))
	{
		check.heap = table_open(heap, AccessShareLock);
		check.rows = ivfpq_row_source->form(index, check.heap);
		if (check.rows == GV_ROWS_NONE)
		{
			table_close(check.heap, AccessShareLock);
			check.heap = NULL;
		}
	}
	while (more)
	{
		/* the lock keeps VACUUM from freeing records during the comparison */
		check.records = has_records &&
			ConditionalLockRelationOid(heap, ShareUpdateExclusiveLock);
		more = check_lists(&check);
		if (check.records)
			UnlockRelationOid(heap, ShareUpdateExclusiveLock);
	}
	if (check.heap != NULL)
		table_close(check.heap, AccessShareLock);
	IvfpqListReaderFree(&check.reader);
	pfree(check.keys);
}
