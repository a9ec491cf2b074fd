/*
 * loader.c
 *		A background worker that brings mirrors of a database's indexes to
 *		gpuvecd and refreshes them.
 *
 * client/README, "Loading Mirrors", describes the course of a load.  If a lock
 * is not free, the loader tries again later: if it waited, it would block
 * sessions that request the lock after it.
 *
 * The loader reads a list from its newest block to its oldest, like all
 * readers, and copies each block to its place in the chunk.  If VACUUM
 * rewrites the list meanwhile, the loader discards what it read and reads the
 * list again.  The dead flags that it copies may be newer than the state that
 * the chunk names, never older, because the directory entry is read first.
 * Newer flags are harmless, because a posting that VACUUM has marked is not
 * visible.
 *
 * A refine record is written before the postings that point to it, and read
 * here after them.  So the loader sends, ahead of the postings, either the
 * record for which the postings were written or the record of a later row in
 * the same slot.  A mirror may keep the record of a dead row although the slot
 * has been reused.  Only postings of the dead row lead to that record.  Before
 * the TID can belong to another row, VACUUM has marked these postings as dead,
 * and a scan notices this by the list's del_seq.
 *
 * Rows of the table go the same way: those of the postings in a message are read
 * after the postings, and sent ahead of them.  A row that no fresh snapshot sees
 * is sent as one that is not known, because the mirror may have a row that had
 * the same TID before.  A new mirror gets all rows after its lists, in the order
 * of the heap.
 *
 * The worker ends when it has had nothing to do for a while, and at once if a
 * session wants the database for itself, because a database can be neither
 * dropped nor copied while a loader is connected to it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "client/mirrorqueue.h"
#include "client/servershared.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "nodes/tidbitmap.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "client/msgring.h"
#include "page/array.h"
#include "page/injection.h"
#include "page/listread.h"
#include "page/metapage.h"
#include "page/refinepage.h"
#include "pgcompat.h"

/*
 * Time limit for one message.  It must be shorter than the time that DROP
 * DATABASE waits for other sessions to leave.
 */
#define MESSAGE_US			INT64CONST(4000000)

/* Number of lists whose states are requested at once. */
#define STATES_RANGE		65536

/* Number of lists that are counted under one lock of the index. */
#define COUNTED_LISTS		16384

/* Maximum bytes of a message, if two fit into maintenance_work_mem. */
#define MESSAGE_BYTES		(4 * 1024 * 1024)

/* Minimum bytes of a message, which any block of codes and keys fits into. */
#define LEAST_MESSAGE_BYTES	(512 * 1024)

/* One slot is filled while gpuvecd reads the other. */
#define NSLOTS				2

/* If postings died, a list of at most this many blocks is sent whole. */
#define SMALL_LIST			16

/* How many times a list is read before its changes count as corruption. */
#define MAX_ATTEMPTS		10

/* Interval and number of attempts to lock the index, once a load has begun. */
#define RETRY_MS			50
#define MAX_TRIES			200

/* Number of refine records that are read from pages at once. */
#define RECORDS_AT_ONCE		64

StaticAssertDecl(sizeof(ItemPointerData) ==
				 sizeof(((GvRefineItem *) NULL)->address),
				 "an address is three 16-bit words");

/*
 * How often a loader looks for work, and after how long without work it ends.
 */
#define LOOK_MS				50
#define IDLE_US				1000000

/* A loader ends after this time if another database waits for a loader. */
#define TURN_US				1000000

/*
 * After a catch-up, a mirror does not catch up again for CATCH_UP_REST times
 * the duration of that catch-up, but for at least CATCH_UP_PAUSE_MS and at
 * most CATCH_UP_MOST_MS.
 */
#define CATCH_UP_REST		10
#define CATCH_UP_PAUSE_MS	200
#define CATCH_UP_MOST_MS	60000

/* Pause after gpuvecd had no memory for a mirror. */
#define NO_MEMORY_PAUSE_MS	30000

/* A load or a catch-up of one mirror. */
typedef struct IvfpqLoad
{
	GvMirrorKey key;
	char		name[NAMEDATALEN];	/* of the index */
	IvfpqLoadResult result;		/* IVFPQ_LOAD_FAILED until the load has ended */
	char		error[160];		/* reason, unless IVFPQ_LOAD_DONE */
	bool		fresh;			/* a whole mirror was loaded */
	int64		postings;		/* number of postings in the lists that this
								 * pass has read so far, whether sent or not */
	int64		expected;		/* postings of a whole pass */
	bool		whole;			/* the mirror is to be loaded if there is none */

	/* opened and read again under each lock */
	Relation	index;
	IvfpqMetaData meta;

	/* valid during the whole load */
	MemoryContext context;
	BufferAccessStrategy strategy;
	IvfpqListReader reader;
	int			code_bytes;
	Size		keys_bytes;		/* of a block */
	IvfpqChannel *channel;
	IvfpqRing	ring;			/* [NSLOTS] */

	/* the message: chunks, an array, or refine records */
	Size		capacity;		/* maximum bytes of a message, or 0 before the
								 * load has begun */
	char	   *message;		/* [capacity], in the slot being filled */
	Size		used;
	int			nchunks;

	/* rows of the table */
	bool		without_rows;	/* the table is not looked at */
	Relation	heap;			/* opened with the index; NULL if mirrors have
								 * no rows */
	GvRowForm	rows;			/* as the mirror stores them */
	TIDBitmap  *tids;			/* of the postings sent to a new mirror */
	char	   *items;			/* [capacity] a message of rows */

	/* refine records or rows of the postings in the message */
	bool		notes_records;	/* whether to send them */
	bool		notes_rows;
	ItemPointerData *addresses; /* [addresses_capacity] or TIDs */
	int64		naddresses;
	int64		addresses_capacity;
	char	   *records;		/* [naddresses] GvRefineItem; NULL: not read */
} IvfpqLoad;

/*
 * A list that is longer than a message.  The addresses of its blocks are
 * collected first, because the blocks are read from the newest to the oldest
 * but must be sent from the oldest to the newest.
 */
typedef struct IvfpqLongList
{
	int32		list;
	GvListState state;			/* of the list when it was begun */
	uint32		nblocks;
	uint32		next;			/* block to send next */
	IvfpqAddress *addresses;	/* [nblocks] */
} IvfpqLongList;

/* Ends the load with this result.  load_safely() catches the error. */
static void
give_up(IvfpqLoad *load, IvfpqLoadResult result, const char *error)
{
	load->result = result;
	ereport(ERROR, (errmsg_internal("%s", error)));
}

/* Ends the load if gpuvecd has not answered the last request. */
static void
check_answer(IvfpqLoad *load)
{
	const IvfpqChannel *channel = load->channel;

	if (channel->served == IVFPQ_ANSWERED)
		return;
	if (channel->served == IVFPQ_NOT_MIRRORED)
		give_up(load, IVFPQ_LOAD_ABSENT, channel->reason);
	if (channel->refusal == GV_REFUSED_NO_MEMORY)
		give_up(load, IVFPQ_LOAD_NO_MEMORY, "gpuvecd does not have enough memory");
	ereport(ERROR, (errmsg_internal("gpuvecd: %s", channel->reason)));
}

/* Waits for the answers to all messages that were sent. */
static void
await_answers(IvfpqLoad *load)
{
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
	if (!IvfpqRingAwait(&load->ring, 0))
		check_answer(load);
}

/*
 * Sends a head and `bytes` bytes of load->message without waiting for the
 * answer, which must be empty.  Sets load->message to the next slot.
 */
static void
load_send(IvfpqLoad *load, GvMessageType type, const void *head,
		  Size head_bytes, Size bytes)
{
	IvfpqInjectionPoint("loader: step");
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
	if (!IvfpqRingSend(&load->ring, type, head, head_bytes, bytes, 0))
		check_answer(load);
	load->message = IvfpqRingSlot(&load->ring, load->ring.filled);
}

/*
 * Sends a head and a tail that is outside the ring, and waits for the answer,
 * which must have `length` bytes.
 */
static void
load_ask(IvfpqLoad *load, GvMessageType type, const void *head,
		 Size head_bytes, const void *tail, Size tail_bytes,
		 uint32 length)
{
	await_answers(load);
	IvfpqInjectionPoint("loader: step");
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
	(void) IvfpqChannelExchange(load->channel, type, head, head_bytes, tail,
								tail_bytes, length);
	check_answer(load);
}

/*
 * Returns false if a session wants to drop, rename or copy the database, for
 * which all other sessions in the database have to end.  The caller is in a
 * transaction, which holds the lock taken here until the transaction ends.
 */
static bool
database_is_free(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Returns whether the open index is still of the build whose mirror is loaded.
 * If it is, sets load->meta and load->name.
 */
static bool
is_the_one(IvfpqLoad *load)
{
	if (!load->index->rd_index->indisvalid)
		return false;
	IvfpqMetaRead(load->index, &load->meta);
	if (load->meta.build_id != load->key.build_id ||
		!IvfpqCanMirror(load->index, &load->meta))
		return false;
	strlcpy(load->name, RelationGetRelationName(load->index),
			sizeof(load->name));
	return true;
}

/*
 * Opens the table of the index, if mirrors of the index may have rows.  Returns
 * false, and closes the index, if the lock is not free.  A whole load does
 * without rows if the table is locked when it begins, since it may be locked by
 * who waits for the mirror.
 */
static bool
open_heap(IvfpqLoad *load)
{
	Oid			table = load->index->rd_index->indrelid;

	load->heap = NULL;
	if (load->meta.refine != IVFPQ_REFINE_NONE || ivfpq_row_source == NULL ||
		ivfpq_mirror_rows == IVFPQ_MIRROR_ROWS_OFF || load->without_rows)
		return true;
	if (ConditionalLockRelationOid(table, AccessShareLock))
	{
		load->heap = table_open(table, NoLock);
		return true;
	}
	load->without_rows = load->whole && load->capacity == 0;
	if (!load->without_rows)
		relation_close(load->index, NoLock);
	return load->without_rows;
}

/*
 * Begins a transaction and locks the index in it.  Then load->index is open
 * and load->meta is current.  If that fails, no transaction is left.  Before
 * the load has begun, tries the lock only once, since a locked index would
 * otherwise keep other mirrors waiting.
 */
static void
load_lock(IvfpqLoad *load)
{
	for (int tries = 1;; tries++)
	{
		bool		opened;

		StartTransactionCommand();
		if (!database_is_free())
		{
			CommitTransactionCommand();
			give_up(load, IVFPQ_LOAD_YIELD,
					"another process is waiting for the database");
		}
		opened = IvfpqMirrorIndexOpen(&load->key, &load->index);
		if (opened && (load->index == NULL || !is_the_one(load)))
		{
			if (load->index != NULL)
				relation_close(load->index, NoLock);
			CommitTransactionCommand();
			give_up(load, IVFPQ_LOAD_GONE, "the index has changed");
		}
		if (opened && open_heap(load))
			break;
		CommitTransactionCommand();
		if (load->capacity == 0 || tries == MAX_TRIES)
			give_up(load, load->capacity == 0 ? IVFPQ_LOAD_LOCKED :
					IVFPQ_LOAD_FAILED, "the index is locked");
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT |
						 WL_EXIT_ON_PM_DEATH, RETRY_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}

	/*
	 * The snapshot keeps pages of this training, if there is a new one.  It
	 * holds VACUUM back no longer than this part of the load takes.
	 */
	PushActiveSnapshot(GetTransactionSnapshot());
	load->reader.index = load->index;
	IvfpqInjectionPoint("loader: step");
}

/* Unlocks the index and ends the transaction. */
static void
load_unlock(IvfpqLoad *load)
{
	relation_close(load->index, NoLock);
	if (load->heap != NULL)
		table_close(load->heap, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Converts a record to the form that gpuvecd receives.  *item must be zeroed.
 */
static void
make_item(GvRefineItem *item, const ItemPointerData *address,
		  const IvfpqRecord *record, int dims)
{
	memcpy(item->address, address, sizeof(item->address));
	memcpy(item->rowid, &record->tid, sizeof(item->rowid));
	item->min = record->min;
	item->step = record->step;
	item->error = record->error;
	memcpy(item->codes, record->codes, dims);
}

/*
 * Adds the addresses of the refine records of a block's live postings, or the
 * TIDs of their rows, to load->addresses.
 */
static void
records_note(IvfpqLoad *load, const IvfpqBlockView *view)
{
	const ItemPointerData *addresses = load->notes_rows ? view->tids :
	view->refine;

	if (load->tids != NULL)
		for (int i = 0; i < GV_BLOCK; i++)
			if ((view->live & (1U << i)) != 0)
				tbm_add_tuples(load->tids, (ItemPointer) &view->tids[i], 1,
							   false);
	if ((!load->notes_records && !load->notes_rows) || addresses == NULL)
		return;
	if (load->naddresses + GV_BLOCK > load->addresses_capacity)
	{
		load->addresses_capacity *= 2;
		load->addresses = repalloc_huge(load->addresses,
										load->addresses_capacity *
										sizeof(ItemPointerData));
	}
	for (int i = 0; i < GV_BLOCK; i++)
		if ((view->live & (1U << i)) != 0)
			load->addresses[load->naddresses++] = addresses[i];
}

static int
compare_addresses(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/* Sorts load->addresses, and keeps each only once. */
static void
sort_addresses(IvfpqLoad *load)
{
	qsort(load->addresses, load->naddresses, sizeof(ItemPointerData),
		  compare_addresses);
	load->naddresses = qunique(load->addresses, load->naddresses,
							   sizeof(ItemPointerData), compare_addresses);
}

/*
 * Reads the records at load->addresses, each only once, into load->records.
 * The index must be locked.
 */
static void
records_read(IvfpqLoad *load)
{
	int			dims = load->meta.dims;
	Size		stride = gv_refine_stride(dims);
	Size		slot_bytes = IvfpqRecordSlotBytes(dims);
	char	   *slots;

	if (load->naddresses == 0 || !load->notes_records)
		return;
	sort_addresses(load);
	slots = palloc(RECORDS_AT_ONCE * slot_bytes);
	load->records = MemoryContextAllocExtended(load->context,
											   load->naddresses * stride,
											   MCXT_ALLOC_HUGE |
											   MCXT_ALLOC_ZERO);
	for (int64 done = 0; done < load->naddresses; done += RECORDS_AT_ONCE)
	{
		int			n = (int) Min(RECORDS_AT_ONCE, load->naddresses - done);

		CHECK_FOR_INTERRUPTS();
		IvfpqRecordRead(load->index, dims, load->addresses + done, n, slots,
						NULL);
		for (int i = 0; i < n; i++)
			make_item((GvRefineItem *) (load->records + (done + i) * stride),
					  &load->addresses[done + i],
					  (IvfpqRecord *) (slots + i * slot_bytes), dims);
	}
	pfree(slots);
}

/* Sends the records that were read, and forgets them. */
static void
records_send(IvfpqLoad *load)
{
	Size		stride = gv_refine_stride(load->meta.dims);
	int64		slice = load->capacity / stride;

	for (int64 done = 0; done < load->naddresses; done += slice)
	{
		int64		n = Min(slice, load->naddresses - done);
		GvListsRequest request = {load->key, (int32) n, 0};

		load_ask(load, GV_MSG_REFINE, &request, sizeof(request),
				 load->records + done * stride, n * stride, 0);
	}
	if (load->records)
		pfree(load->records);
	load->records = NULL;
	load->naddresses = 0;
}

/* Returns how many rows fit into a message. */
static int
rows_at_once(const IvfpqLoad *load)
{
	return (int) (load->capacity / gv_row_stride(load->rows, load->meta.dims));
}

/*
 * Locks the index, reads the rows at tids [n] into `items`, and returns their
 * number.  See IvfpqRowSource.
 */
static int
rows_read(IvfpqLoad *load, const ItemPointerData *tids, int n,
		  bool only_known, char *items)
{
	MemoryContext old;
	int			count;

	load_lock(load);
	old = MemoryContextSwitchTo(CurTransactionContext);
	count = ivfpq_row_source->read(load->index, load->heap, NULL, load->rows,
								   load->meta.dims, tids, n, only_known, items);
	MemoryContextSwitchTo(old);
	load_unlock(load);
	return count;
}

/* Sends the rows of the postings in the message, and forgets their TIDs. */
static void
rows_send(IvfpqLoad *load)
{
	int			most = rows_at_once(load);

	sort_addresses(load);
	if (load->items == NULL)
		load->items = MemoryContextAlloc(load->context, load->capacity);
	for (int64 done = 0; done < load->naddresses; done += most)
	{
		int			n = (int) Min(most, load->naddresses - done);
		GvListsRequest request = {load->key, n, 0};

		(void) rows_read(load, load->addresses + done, n, false, load->items);
		load_ask(load, GV_MSG_ROWS, &request, sizeof(request), load->items,
				 n * gv_row_stride(load->rows, load->meta.dims), 0);
	}
	load->naddresses = 0;
}

/* Sends rows that sessions have missed. */
static void
rows_send_lacking(IvfpqLoad *load)
{
	if (load->addresses_capacity < IVFPQ_NLACKING)
	{
		load->addresses_capacity = IVFPQ_NLACKING;
		load->addresses = repalloc(load->addresses, IVFPQ_NLACKING *
								   sizeof(ItemPointerData));
	}
	load->naddresses = IvfpqMirrorTakeLacking(&load->key, load->addresses);
	rows_send(load);
}

/* Sends the rows at tids [n] to a new mirror. */
static void
rows_send_new(IvfpqLoad *load, const ItemPointerData *tids, int n)
{
	GvListsRequest request = {.key = load->key};

	request.nchunks = rows_read(load, tids, n, true, load->message);
	if (request.nchunks > 0)
		load_send(load, GV_MSG_ROWS, &request, sizeof(request),
				  request.nchunks *
				  gv_row_stride(load->rows, load->meta.dims));
}

/*
 * Sends the rows of all postings that were sent to a new mirror.  Of pages
 * whose offsets the bitmap has lost, sends all rows.
 */
static void
rows_send_all(IvfpqLoad *load)
{
	int			most = rows_at_once(load);
	ItemPointerData *tids =
	MemoryContextAlloc(load->context, most * sizeof(ItemPointerData));
	IvfpqTidIterator iterator;
	BlockNumber blkno;
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	int			noffsets;
	int			n = 0;

	IvfpqTidIterate(&iterator, load->tids);
	while ((noffsets = IvfpqTidNextPage(&iterator, &blkno, offsets)) > 0)
		for (int i = 0; i < noffsets; i++)
		{
			ItemPointerSet(&tids[n], blkno, offsets[i]);
			if (++n < most)
				continue;
			rows_send_new(load, tids, n);
			n = 0;
		}
	if (n > 0)
		rows_send_new(load, tids, n);
	IvfpqTidIterateEnd(&iterator);
	tbm_free(load->tids);
	load->tids = NULL;
	pfree(tids);
}

/*
 * Adds the records of a page to the message, and their number to *n.  Returns
 * false if the message has no space for a full page of records.
 */
static bool
add_page(IvfpqLoad *load, BlockNumber blkno, Page page, int32 *n)
{
	int			dims = load->meta.dims;
	int			nslots = IvfpqRecordSlots(dims);
	Size		stride = gv_refine_stride(dims);

	if ((*n + nslots) * stride > load->capacity)
		return false;
	for (int slot = 0; slot < nslots; slot++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, dims, slot);
		GvRefineItem *item = (GvRefineItem *) (load->message + *n * stride);
		ItemPointerData address;

		if (!ItemPointerIsValid(&record->tid))
			continue;
		ItemPointerSet(&address, blkno, slot + 1);
		memset(item, 0, stride);
		make_item(item, &address, record, dims);
		(*n)++;
	}
	return true;
}

/*
 * Sends the records on all refine pages.  Locks the index once for each
 * message.
 */
static void
records_send_all(IvfpqLoad *load)
{
	char	   *page = MemoryContextAlloc(load->context, BLCKSZ);
	BlockNumber blkno = 0;
	BlockNumber nblocks;

	do
	{
		GvListsRequest request = {.key = load->key};

		load_lock(load);
		nblocks = RelationGetNumberOfBlocks(load->index);
		for (; blkno < nblocks; blkno++)
		{
			CHECK_FOR_INTERRUPTS();
			if (!IvfpqIsFixedPage(&load->meta, blkno) &&
				IvfpqRecordPageCopy(load->index, &load->meta, blkno,
									load->strategy, page) &&
				!add_page(load, blkno, (Page) page, &request.nchunks))
				break;
		}
		load_unlock(load);
		if (request.nchunks > 0)
			load_send(load, GV_MSG_REFINE, &request, sizeof(request),
					  request.nchunks * gv_refine_stride(load->meta.dims));
	} while (blkno < nblocks);
}

static GvListState
state_of(const IvfpqDirEntry *entry)
{
	GvListState state = {entry->gen, entry->nitems, entry->del_seq};

	return state;
}

static int64
chunk_bytes(const IvfpqLoad *load, const GvChunk *chunk)
{
	return gv_chunk_bytes(chunk, load->code_bytes, load->keys_bytes);
}

/* Copies a block of the list into the chunk. */
static void
put_block(IvfpqLoad *load, GvChunk *chunk, uint32 ordinal,
		  const IvfpqBlockView *view)
{
	GvBlock		block = {
		.codes = view->codes,
		.t = view->t,
		.rowids = (const uint16 *) (view->refine ? view->refine : view->tids),
		.live = view->live,
		.keys = view->keys
	};

	records_note(load, view);
	gv_chunk_put(chunk, load->code_bytes, load->keys_bytes,
				 ordinal - chunk->first, &block);
}

/* Returns the live bits of a chunk [nblocks]. */
static uint32 *
live_of(GvChunk *chunk)
{
	return gv_chunk_arrays(chunk, 0).live;
}

/*
 * Reads the open list's next block, which must have this ordinal.  Returns
 * false if the list changed meanwhile.
 */
static bool
read_block(IvfpqListReader *reader, uint32 ordinal, IvfpqBlockView *view)
{
	return IvfpqListNext(reader, view) && !reader->reread &&
		reader->nleft == ordinal * GV_BLOCK;
}

/*
 * Reads the open list from its end down to block chunk->first, and copies its
 * blocks to the chunk.  Unless `live` is NULL, reads the list down to block 0,
 * and copies to `live` the live bits of the blocks below live->nblocks.
 * Returns false if the list changed meanwhile.
 */
static bool
read_blocks(IvfpqLoad *load, GvChunk *chunk, GvChunk *live)
{
	uint32		ordinal = (uint32) gv_blocks_of(load->reader.entry.nitems);
	uint32		first = (uint32) chunk->first;
	IvfpqBlockView view;

	while (ordinal > (live != NULL ? 0 : first))
	{
		if (!read_block(&load->reader, --ordinal, &view))
			return false;
		if (live != NULL && ordinal < (uint32) live->nblocks)
			live_of(live)[ordinal] = view.live;
		if (ordinal >= first)
			put_block(load, chunk, ordinal, &view);
	}
	return true;
}

static void
message_begin(IvfpqLoad *load)
{
	load->used = 0;
	load->nchunks = 0;
	load->naddresses = 0;
}

/*
 * Counts an attempt to read a list, and raises an error after too many: VACUUM
 * rewrites a list now and then, but not each time that we read it.
 */
static void
count_attempt(const IvfpqLoad *load, int32 list, int *attempts)
{
	CHECK_FOR_INTERRUPTS();
	if (++*attempts > MAX_ATTEMPTS)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("could not read list %d of index \"%s\"", list,
						RelationGetRelationName(load->index))));
}

/*
 * Adds to the message the part of a list that the mirror lacks, which may be
 * nothing.  *have is the state of the list in the mirror.  Returns false if
 * the part does not fit into the message.  The index must be locked.
 *
 * The part is a chunk of blocks.  If postings of a long list died, a chunk of
 * the live bits of all blocks that the mirror has comes before it, to give the
 * list the del_seq that the blocks require.
 */
static bool
message_add(IvfpqLoad *load, int32 list, const GvListState *have)
{
	int64		naddresses = load->naddresses;
	int			attempts = 0;
	uint32		rest = have->nitems % GV_BLOCK;
	GvChunk    *live;
	GvChunk    *blocks;
	Size		bytes;

	do
	{
		GvChunk		live_head = {.list = list, .flags = GV_CHUNK_LIVE};
		GvChunk		head = {.list = list};
		Size		live_bytes = 0;
		int32		nblocks;
		bool		died;
		bool		whole;

		count_attempt(load, list, &attempts);
		load->naddresses = naddresses;
		IvfpqListOpen(&load->reader, (uint32) list);
		head.state = state_of(&load->reader.entry);
		if (memcmp(&head.state, have, sizeof(*have)) == 0)
			return true;
		nblocks = (int32) gv_blocks_of(head.state.nitems);
		died = head.state.del_seq != have->del_seq;
		whole = head.state.gen != have->gen ||
			head.state.nitems < have->nitems ||
			(died && nblocks <= SMALL_LIST);
		head.first = whole ? 0 : (int32) (have->nitems / GV_BLOCK);
		head.nblocks = nblocks - head.first;
		live = NULL;
		if (died && !whole)
		{
			live = (GvChunk *) (load->message + load->used);
			live_head.nblocks = (int32) gv_blocks_of(have->nitems);
			live_head.state = head.state;
			live_head.state.nitems = have->nitems;
			live_bytes = chunk_bytes(load, &live_head);
		}
		bytes = live_bytes + chunk_bytes(load, &head);
		if (load->used + bytes > load->capacity)
			return false;
		if (live != NULL)
			*live = live_head;
		blocks = (GvChunk *) (load->message + load->used + live_bytes);
		*blocks = head;
	} while (!read_blocks(load, blocks, live));
	/* clear the live bits of postings that the mirror does not have */
	if (live != NULL && rest != 0)
		live_of(live)[live->nblocks - 1] &= (1U << rest) - 1;
	load->used += bytes;
	load->nchunks += live != NULL ? 2 : 1;
	return true;
}

/*
 * Begins a list that is longer than a message: collects the addresses of its
 * blocks in load->context.  The index must be locked.
 */
static void
long_begin(IvfpqLoad *load, IvfpqLongList *longlist)
{
	IvfpqBlockView view;
	uint32		left;
	int			attempts = 0;

	do
	{
		count_attempt(load, longlist->list, &attempts);
		if (longlist->addresses != NULL)
			pfree(longlist->addresses);
		IvfpqListOpen(&load->reader, (uint32) longlist->list);
		longlist->state = state_of(&load->reader.entry);
		longlist->nblocks = (uint32) gv_blocks_of(longlist->state.nitems);
		longlist->addresses =
			MemoryContextAllocHuge(load->context, Max(longlist->nblocks, 1) *
								   sizeof(IvfpqAddress));
		for (left = longlist->nblocks; left > 0; left--)
		{
			longlist->addresses[left - 1] = load->reader.next;
			if (!read_block(&load->reader, left - 1, &view))
				break;
		}
	} while (left > 0);
	longlist->next = 0;
}

/*
 * Makes a message of the next blocks of a long list.  The index must be
 * locked.  Returns false if the list was rewritten since long_begin().
 */
static bool
long_next(IvfpqLoad *load, IvfpqLongList *longlist)
{
	IvfpqListReader *reader = &load->reader;
	GvChunk    *chunk;
	GvChunk		one = {.nblocks = 1};
	int64		block_bytes = chunk_bytes(load, &one) - sizeof(one);
	uint32		most = (uint32) ((load->capacity - sizeof(GvChunk)) /
								 block_bytes);
	uint32		end = Min(longlist->nblocks, longlist->next + most);
	IvfpqBlockView view;

	message_begin(load);
	chunk = (GvChunk *) (load->message + load->used);
	*chunk = (GvChunk)
	{
		.list = longlist->list,
			.first = (int32) longlist->next,
			.nblocks = (int32) (end - longlist->next),
			.state = longlist->state
	};
	chunk->state.nitems = Min(longlist->state.nitems, end * GV_BLOCK);
	IvfpqListOpen(reader, (uint32) longlist->list);
	if (reader->entry.gen != longlist->state.gen)
		return false;
	for (uint32 i = longlist->next; i < end; i++)
	{
		reader->next = longlist->addresses[i];
		reader->nleft = Min(longlist->state.nitems, (i + 1) * GV_BLOCK);
		if (!read_block(reader, i, &view))
			return false;
		put_block(load, chunk, i, &view);
	}
	load->used += chunk_bytes(load, chunk);
	load->nchunks++;
	longlist->next = end;
	return true;
}

/*
 * Sends the refine records or rows of the postings in the message, and then its
 * chunks.  The records must come first; the head of this file says why.
 */
static void
send_chunks(IvfpqLoad *load)
{
	GvListsRequest request = {load->key, load->nchunks, 0};

	if (load->notes_rows)
		rows_send(load);
	else
		records_send(load);
	if (load->nchunks > 0)
		load_send(load, GV_MSG_LISTS, &request, sizeof(request), load->used);
}

/*
 * Sends an array of the model, whose `count` elements begin on page `first`.
 */
static void
send_array(IvfpqLoad *load, GvArray array, BlockNumber first, int64 count)
{
	int64		slice = load->capacity / sizeof(float);

	for (int64 done = 0; done < count; done += slice)
	{
		GvArrayRequest request = {load->key, array, 0, done,
		Min(slice, count - done)};
		float	   *values = (float *) load->message;
		IvfpqArrayReader reader;
		int64		filled = 0;

		load_lock(load);
		/* read vectors of one element, so that slices may begin anywhere */
		IvfpqArrayOpen(&reader, load->index, first, 1, done + request.count);
		reader.next = done;
		while (filled < request.count)
		{
			int			n;
			const float *run = IvfpqArrayNext(&reader, &n);

			memcpy(values + filled, run, n * sizeof(float));
			filled += n;
		}
		IvfpqArrayClose(&reader);
		load_unlock(load);
		load_send(load, GV_MSG_ARRAY, &request, sizeof(request),
				  request.count * sizeof(float));
	}
}

static void
send_long_list(IvfpqLoad *load, int32 list)
{
	IvfpqLongList longlist = {.list = list};
	bool		unchanged = false;

	do
	{
		load_lock(load);
		/* if the list was rewritten meanwhile, begin it again */
		if (!unchanged)
			long_begin(load, &longlist);
		unchanged = long_next(load, &longlist);
		if (unchanged)
			records_read(load);
		load_unlock(load);
		if (unchanged)
			send_chunks(load);
	} while (!unchanged || longlist.next < longlist.nblocks);
	pfree(longlist.addresses);
}

/*
 * Locks the index once, and reads the parts of lists *list .. end - 1 that the
 * mirror lacks, as far as they fit into one message.  Sends the message, and
 * sets *list to the first list that was not read.  have [end - *list] are the
 * states of the lists in the mirror.
 */
static void
send_some_lists(IvfpqLoad *load, int32 *list, int32 end,
				const GvListState *have)
{
	bool		fits = true;

	load_lock(load);
	message_begin(load);
	for (; *list < end && fits; (*list)++)
	{
		fits = message_add(load, *list, have++);
		if (!fits && load->nchunks > 0)
			break;
		load->postings += load->reader.entry.nitems;
	}
	records_read(load);
	load_unlock(load);

	if (!fits && load->nchunks == 0)
		send_long_list(load, *list - 1);
	else
		send_chunks(load);
}

/*
 * Sends the parts of all lists that the mirror lacks.  `fresh` means that the
 * mirror has no blocks yet.
 */
static void
send_lists(IvfpqLoad *load, bool fresh)
{
	int32		nlists = load->meta.nlists;
	GvListState *have =
	MemoryContextAllocZero(load->context,
						   Min(nlists, STATES_RANGE) * sizeof(GvListState));

	load->postings = 0;
	/* a new mirror gets all records or rows at once, after its lists */
	load->notes_records = !fresh && IvfpqMirrorHasRecords(&load->meta);
	load->notes_rows = !fresh && load->rows != GV_ROWS_NONE;
	if (fresh && load->rows != GV_ROWS_NONE)
	{
		MemoryContext old = MemoryContextSwitchTo(load->context);

		load->tids = tbm_create((Size) maintenance_work_mem * 1024, NULL);
		MemoryContextSwitchTo(old);
	}
	for (int32 first = 0; first < nlists; first += STATES_RANGE)
	{
		int32		end = Min(nlists, first + STATES_RANGE);
		int32		list = first;

		if (!fresh)
		{
			GvRangeRequest request = {load->key, first, end - first, 0, 0};
			uint32		bytes = (end - first) * sizeof(GvListState);

			load_ask(load, GV_MSG_LIST_STATES, &request, sizeof(request),
					 NULL, 0, bytes);
			memcpy(have, IvfpqAnswerBody(load->channel), bytes);
		}
		while (list < end)
			send_some_lists(load, &list, end, have + (list - first));
	}
	pfree(have);
	await_answers(load);
}

/* Reads the current version of the directory. */
static uint64
get_version(IvfpqLoad *load)
{
	uint64		version;

	load_lock(load);
	version = IvfpqDirectoryVersion(load->index, &load->meta);
	load_unlock(load);
	return version;
}

/*
 * Sends the parts of all lists that the mirror lacks.  If the directory's
 * version is the same before and after, no list has changed meanwhile, and
 * gpuvecd is told that the mirror has this version.
 */
static void
refresh(IvfpqLoad *load)
{
	GvCurrentRequest request = {load->key, get_version(load)};

	send_lists(load, false);
	if (load->rows != GV_ROWS_NONE)
		rows_send_lacking(load);
	if (request.version != 0 && get_version(load) == request.version)
		load_ask(load, GV_MSG_MARK_CURRENT, &request, sizeof(request),
				 NULL, 0, 0);
}

/*
 * Sets load->expected to the number of postings in all lists.  The index must
 * be locked.  Unlocks the index for a moment after every COUNTED_LISTS lists.
 */
static void
count_postings(IvfpqLoad *load)
{
	for (int list = 0; list < load->meta.nlists; list++)
	{
		IvfpqDirEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (list > 0 && list % COUNTED_LISTS == 0)
		{
			load_unlock(load);
			load_lock(load);
		}
		IvfpqDirEntryRead(load->index, &load->meta, list, &entry);
		load->expected += entry.nitems;
	}
}

/*
 * Begins a mirror and sends its model.  Returns false if the mirror already
 * exists.
 */
static bool
send_model(IvfpqLoad *load)
{
	const IvfpqMetaData *meta = &load->meta;
	GvBeginRequest request = {
		.key = load->key,
		.spec = {
			.metric = meta->metric,
			.dims = meta->dims,
			.m = meta->pq_dim,
			.nlists = meta->nlists,
			.nparents = meta->nparents,
			.postings = load->expected,
			.keys = IvfpqMirrorKeys(meta)
		},
		.must = ivfpq_mirror_rows == IVFPQ_MIRROR_ROWS_ON
	};
	const GvBeginReply *reply;

	if (IvfpqMirrorHasRecords(meta))
		request.spec.refine_slots = IvfpqRecordSlots(meta->dims);
	request.spec.rows = load->rows;
	if (request.spec.refine_slots > 0 || request.spec.rows != GV_ROWS_NONE)
		request.spec.refine_records = load->expected / meta->lists_per_row;
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
	(void) IvfpqChannelExchange(load->channel, GV_MSG_BEGIN, &request,
								sizeof(request), NULL, 0, sizeof(*reply));
	if (load->channel->refusal == GV_REFUSED_EXISTS)
		return false;
	check_answer(load);
	reply = (const GvBeginReply *) IvfpqAnswerBody(load->channel);
	if ((GvRowForm) reply->rows != load->rows)
		load->rows = GV_ROWS_NONE;
	send_array(load, GV_CODEBOOKS, meta->codebooks,
			   (int64) GV_CODEWORDS * meta->dims);
	send_array(load, GV_PARENTS, meta->parents,
			   (int64) meta->nparents * meta->dims);
	send_array(load, GV_PARENT_OFFSETS, meta->parent_offsets,
			   (int64) meta->nparents + 1);
	send_array(load, GV_CENTROIDS, meta->centroids,
			   (int64) meta->nlists * meta->dims);
	return true;
}

/*
 * Looks at the index for the first time, allocates memory for the load, and
 * connects to gpuvecd.  If `whole` is set, also counts the postings, and
 * shares the messages' memory with gpuvecd, which the few changes of a
 * catch-up are not worth.
 */
static void
prepare(IvfpqLoad *load, bool whole)
{
	MemoryContext old;
	bool		opened;

	load_lock(load);
	old = MemoryContextSwitchTo(load->context);
	load->strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReaderInit(&load->reader, load->index, &load->meta, NULL,
						load->strategy);
	load->code_bytes = load->reader.layout.code_bytes;
	load->keys_bytes = IvfpqKeysBytes(&load->reader.layout.keys);
	load->capacity = Max(LEAST_MESSAGE_BYTES,
						 Min(MESSAGE_BYTES,
							 (Size) maintenance_work_mem * 1024 / 2));
	load->addresses_capacity = 1024;
	load->addresses = palloc(load->addresses_capacity *
							 sizeof(ItemPointerData));
	MemoryContextSwitchTo(old);
	if (load->heap != NULL)
		load->rows = ivfpq_row_source->form(load->index, load->heap);
	if (whole)
		count_postings(load);
	load_unlock(load);

	old = MemoryContextSwitchTo(load->context);
	load->channel = IvfpqConnect(GV_ROLE_LOADER, MESSAGE_US);
	opened = IvfpqRingOpen(&load->ring, load->channel, NSLOTS, load->capacity,
						   whole);
	MemoryContextSwitchTo(old);
	if (!opened)
		check_answer(load);
	load->message = IvfpqRingSlot(&load->ring, 0);
}

/* Returns whether the mirror stores rows. */
static bool
mirror_has_rows(IvfpqLoad *load)
{
	GvListsRequest request = {load->key, 1, 0};
	ItemPointerData any;

	ItemPointerSet(&any, 0, FirstOffsetNumber);
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
	(void) IvfpqChannelAsk(load->channel, GV_MSG_READ_ROWS, &request,
						   sizeof(request), (const char *) &any, sizeof(any),
						   gv_row_stride(GV_ROWS_FLOAT, load->meta.dims));
	check_answer(load);
	return IvfpqAnswerLength(load->channel) > 0;
}

/*
 * Loads the mirror of load->key if `whole` is set, and otherwise only lets the
 * mirror catch up.  All memory comes from load->context, which the caller
 * owns.  Raises an error unless the result is IVFPQ_LOAD_DONE.
 */
static void
load_mirror(IvfpqLoad *load, bool whole)
{
	GvKeyRequest request = {load->key};

	prepare(load, whole);
	if (whole)
	{
		GvKeyRequest older;

		/*
		 * Drop mirrors of files that the index had before, without waiting
		 * until the supervisor notices that these files are gone.
		 */
		while (IvfpqMirrorRequestOlder(&load->key, &older.key))
		{
			IvfpqMirrorRequestForget(&older.key);
			load_ask(load, GV_MSG_DROP, &older, sizeof(older), NULL, 0, 0);
		}
		load->fresh = send_model(load);
	}
	if (load->fresh)
	{
		send_lists(load, true);
		if (IvfpqMirrorHasRecords(&load->meta))
			records_send_all(load);
		if (load->rows != GV_ROWS_NONE)
			rows_send_all(load);
	}
	else if (load->meta.refine != IVFPQ_REFINE_NONE || !mirror_has_rows(load))
		load->rows = GV_ROWS_NONE;
	else if (load->rows == GV_ROWS_NONE)
	{
		/* its rows would become those of other tuples */
		load_ask(load, GV_MSG_DROP, &request, sizeof(request), NULL, 0, 0);
		give_up(load, IVFPQ_LOAD_ABSENT,
				"the mirror has rows, but they must not be read now");
	}
	/* lists may have changed meanwhile */
	refresh(load);
	if (load->fresh)
		load_ask(load, GV_MSG_READY, &request, sizeof(request), NULL, 0, 0);
	load->result = IVFPQ_LOAD_DONE;
}

extern PGDLLEXPORT void gpuvec_loader_main(Datum arg);

/* Runs load_mirror(), and turns an error into load->error. */
static void
load_safely(IvfpqLoad *load, bool whole)
{
	load->whole = whole;
	PG_TRY();
	{
		load_mirror(load, whole);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(load->context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		strlcpy(load->error, error->message, sizeof(load->error));

		/*
		 * The message may be cut within a character, and sessions in
		 * databases with other encodings read it, too, so replace all bytes
		 * that are not ASCII.
		 */
		for (char *c = load->error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	/* gpuvecd discards an unfinished mirror when the connection ends */
	if (load->result != IVFPQ_LOAD_DONE)
		IvfpqDisconnect();
}

/*
 * Records the result in the request and wakes the sessions that wait for it.
 * A failure is logged only if the error differs from the last one.
 */
static void
report(IvfpqLoad *load, int64 us)
{
	int64		rest = CATCH_UP_REST * us / 1000;
	int			pause_ms = 0;

	if (load->result == IVFPQ_LOAD_DONE)
		pause_ms = (int) Min(Max(rest, CATCH_UP_PAUSE_MS), CATCH_UP_MOST_MS);
	else if (load->result == IVFPQ_LOAD_NO_MEMORY)
		pause_ms = NO_MEMORY_PAUSE_MS;
	if (IvfpqMirrorRequestEnd(&load->key, load->result, load->postings,
							  load->error, pause_ms))
		ereport(LOG,
				(errmsg("could not load index %u into gpuvecd: %s",
						load->key.index, load->error)));
	if (load->result == IVFPQ_LOAD_DONE)
		ereport(load->fresh ? LOG : DEBUG1,
				(load->fresh ?
				 errmsg("loaded index \"%s\" into gpuvecd: %lld postings in %d lists, elapsed: %.0f ms",
						load->name, (long long) load->postings,
						load->meta.nlists, us / 1000.0) :
				 errmsg("updated index \"%s\" in gpuvecd: %lld postings in %d lists, elapsed: %.0f ms",
						load->name, (long long) load->postings,
						load->meta.nlists, us / 1000.0)));
}

/* Serves one request.  Returns false if the loader has to end. */
static bool
serve(const IvfpqMirrorRequest *request)
{
	IvfpqLoad	load = {.key = request->key, .result = IVFPQ_LOAD_FAILED};
	bool		whole = request->state != IVFPQ_REQUEST_READY;
	int64		begun = IvfpqNow();

	load.context = AllocSetContextCreate(TopMemoryContext, "gpuvec load",
										 ALLOCSET_DEFAULT_SIZES);
	pgstat_report_activity(STATE_RUNNING, whole ? "gpuvec: loading a mirror" :
						   "gpuvec: updating a mirror");
	SetCurrentStatementStartTimestamp();
	load_safely(&load, whole);
	IvfpqRingClose(&load.ring);
	report(&load, IvfpqNow() - begun);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(load.context);
	return load.result != IVFPQ_LOAD_YIELD;
}

/* Waits for LOOK_MS.  Returns false if a session wants the database. */
static bool
wait_a_moment(void)
{
	bool		alone;

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 LOOK_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	StartTransactionCommand();
	alone = database_is_free();
	CommitTransactionCommand();
	return alone;
}

/* Exit callback.  Releases the requests that this loader has taken. */
static void
release_all(int code, Datum arg)
{
	LWLockReleaseAll();
	IvfpqMirrorRequestRelease("the loader was terminated");
}

/*
 * Entry point of the worker, which supervisor.c names.  arg is the number of
 * the loader's slot, and bgw_extra holds the OID of the database.
 */
void
gpuvec_loader_main(Datum arg)
{
	int			slot = DatumGetInt32(arg);
	Oid			database;
	int64		begun;
	int64		last;

	memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof(Oid));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	IvfpqSetNoTransactionTimeout();

	/* rows are read by a snapshot of their own for each message */
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_SUSET, PGC_S_OVERRIDE);

	/* the database may allow no new connections, but its sessions may go on */
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	pg_atomic_write_u32(&ivfpq_shared->loader_connected[slot], 1);
	before_shmem_exit(release_all, (Datum) 0);

	begun = last = IvfpqNow();
	while (IvfpqNow() - last < IDLE_US)
	{
		IvfpqMirrorRequest request;

		CHECK_FOR_INTERRUPTS();
		if (IvfpqMirrorRequestTake(database, &request))
		{
			if (!serve(&request))
				break;
			last = IvfpqNow();
		}
		else if (!wait_a_moment())
			break;
		if (IvfpqNow() - begun > TURN_US &&
			pg_atomic_read_u32(&ivfpq_shared->loaders_awaited) != 0)
			break;
	}
	IvfpqDisconnect();
}
