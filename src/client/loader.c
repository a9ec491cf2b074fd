/*
 * loader.c
 *		Lists, read from pages, as chunks of a message.
 *
 * A list is read from its newest block to the oldest, as everyone does; the
 * blocks go to their places in the chunk.  When VACUUM rewrites the list
 * meanwhile, what was read is thrown away and the list read again.
 *
 * Dead flags may be newer than the state that the chunk names, never older,
 * because the entry is read first.  That is harmless: a copy that VACUUM has
 * marked is not visible.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "client/mirrorqueue.h"
#include "client/servershared.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "client/loader.h"
#include "page/array.h"
#include "page/metapage.h"
#include "page/refinepage.h"
#include "pgcompat.h"

static void records_note(IvfpqLoad *load, const IvfpqBlockView *view);
static IvfpqLoadResult load_send(IvfpqLoad *load, GvMessageType type,
									 const void *head, Size head_bytes,
									 Size bytes);
static IvfpqLoadResult load_ask(IvfpqLoad *load, GvMessageType type,
									const void *head, Size head_bytes,
									const void *tail, Size tail_bytes,
									uint32 length);

/* A list of no more blocks is sent whole when postings died. */
#define SMALL_LIST			16

/* How often a list is read again because it changed. */
#define MAX_ATTEMPTS		10

/* Where the arrays of a chunk are. */
typedef struct Chunk
{
	GvChunk    *head;
	uint32	   *live;
	char	   *t;
	char	   *rowids;
	char	   *keys;
	char	   *codes;
	Size		keys_bytes;		/* of a block */
	int			code_bytes;		/* likewise */
} Chunk;

static uint32
count_blocks(uint32 nitems)
{
	return (uint32) (((uint64) nitems + GV_BLOCK - 1) / GV_BLOCK);
}

static GvListState
state_of(const IvfpqDirEntry *entry)
{
	GvListState state = {entry->gen, entry->nitems, entry->del_seq};

	return state;
}

/*
 * Lay out a chunk of blocks `first` to first + nblocks - 1 at the message's
 * end; false when it does not fit.  It counts once it is finished.
 */
static bool
begin_chunk(IvfpqLoad *load, Chunk *chunk, const GvChunk *head)
{
	char	   *at = load->message + load->used;
	int64		n = head->nblocks;

	if (load->used + gv_chunk_bytes(head, load->code_bytes,
									load->keys_bytes) > load->capacity)
		return false;
	chunk->head = (GvChunk *) at;
	*chunk->head = *head;
	chunk->live = (uint32 *) (at + sizeof(GvChunk));
	chunk->t = (char *) (chunk->live + n);
	chunk->rowids = chunk->t + n * GV_BLOCK * sizeof(float);
	chunk->keys = chunk->rowids + n * GV_BLOCK * sizeof(ItemPointerData);
	chunk->keys_bytes = load->keys_bytes;
	chunk->codes = chunk->keys + n * load->keys_bytes;
	chunk->code_bytes = load->code_bytes * GV_BLOCK;
	return true;
}

static void
finish_chunk(IvfpqLoad *load, const Chunk *chunk)
{
	load->used += gv_chunk_bytes(chunk->head, load->code_bytes,
								 load->keys_bytes);
	load->nchunks++;
}

/* Put a block of the list into the chunk, whole. */
static void
put_block(IvfpqLoad *load, Chunk *chunk, uint32 ordinal,
		  const IvfpqBlockView *view)
{
	Size		i = ordinal - chunk->head->first;

	records_note(load, view);
	chunk->live[i] = view->live;
	memcpy(chunk->t + i * GV_BLOCK * sizeof(float), view->t,
		   GV_BLOCK * sizeof(float));
	memcpy(chunk->rowids + i * GV_BLOCK * sizeof(ItemPointerData),
		   view->refine ? view->refine : view->tids,
		   GV_BLOCK * sizeof(ItemPointerData));
	if (chunk->keys_bytes > 0)
		memcpy(chunk->keys + i * chunk->keys_bytes, view->keys,
			   chunk->keys_bytes);
	memcpy(chunk->codes + i * chunk->code_bytes, view->codes,
		   chunk->code_bytes);
}

/*
 * Read the open list down to block `lowest`: blocks from chunk->head->first on
 * go to `chunk`, the live bits of those below live->head->nblocks to `live`
 * (which may be NULL).  False when the list changed underneath.
 */
static bool
read_blocks(IvfpqLoad *load, Chunk *chunk, Chunk *live, uint32 lowest)
{
	uint32		expected = count_blocks(load->reader.entry.nitems);
	IvfpqBlockView view;

	while (expected > lowest)
	{
		uint32		ordinal;

		if (!IvfpqListNext(&load->reader, &view))
			return false;
		ordinal = load->reader.nleft / GV_BLOCK;
		if (load->reader.reread || ordinal != expected - 1)
			return false;
		expected = ordinal;
		if (live != NULL && ordinal < (uint32) live->head->nblocks)
			live->live[ordinal] = view.live;
		if (ordinal >= (uint32) chunk->head->first)
			put_block(load, chunk, ordinal, &view);
	}
	return true;
}

/* Begin a message of chunks. */
static void
message_begin(IvfpqLoad *load)
{
	load->used = sizeof(GvListsRequest);
	load->nchunks = 0;
	load->naddresses = 0;
}

/* The chunks that bring a mirror's list up to date. */
typedef struct ListPlan
{
	bool		died;			/* send `live` first, because a tail has to
								 * come to the same del_seq */
	GvChunk		live;
	GvChunk		blocks;
	uint32		lowest;			/* block that has to be read */
} ListPlan;

/*
 * Compare the list's entry with the state that the mirror has it in; false
 * when they agree.
 */
static bool
make_plan(ListPlan *plan, int32 list, const IvfpqDirEntry *entry,
		  const GvListState *have)
{
	GvListState state = state_of(entry);
	uint32		nblocks = count_blocks(entry->nitems);
	bool		died = entry->del_seq != have->del_seq;
	bool		whole = entry->gen != have->gen ||
	entry->nitems < have->nitems || (died && nblocks <= SMALL_LIST);

	if (memcmp(&state, have, sizeof(state)) == 0)
		return false;
	memset(plan, 0, sizeof(*plan));
	plan->blocks.list = list;
	plan->blocks.first = whole ? 0 : (int32) (have->nitems / GV_BLOCK);
	plan->blocks.nblocks = (int32) nblocks - plan->blocks.first;
	plan->blocks.state = state;
	plan->died = died && !whole;
	plan->lowest = plan->died ? 0 : (uint32) plan->blocks.first;
	plan->live.list = list;
	plan->live.flags = GV_CHUNK_LIVE;
	plan->live.nblocks = (int32) count_blocks(have->nitems);
	plan->live.state = state;
	plan->live.state.nitems = have->nitems;
	return true;
}

/* Clear the bits of postings that the mirror does not have. */
static void
cut_live(Chunk *live)
{
	uint32		rest = live->head->state.nitems % GV_BLOCK;

	if (rest != 0)
		live->live[live->head->nblocks - 1] &= (1U << rest) - 1;
}

/*
 * Read the open list as planned into one or two chunks at the message's end,
 * which count if the result is IVFPQ_CHUNK_DONE.
 */
static IvfpqChunkResult
add_planned(IvfpqLoad *load, const ListPlan *plan)
{
	Chunk		live;
	Chunk		blocks;
	Size		used = load->used;
	int			nchunks = load->nchunks;
	int64		naddresses = load->naddresses;
	IvfpqChunkResult result = IVFPQ_CHUNK_FULL;

	if (!plan->died || begin_chunk(load, &live, &plan->live))
	{
		if (plan->died)
			finish_chunk(load, &live);
		if (begin_chunk(load, &blocks, &plan->blocks))
			result = read_blocks(load, &blocks, plan->died ? &live : NULL,
								 plan->lowest) ?
				IVFPQ_CHUNK_DONE : IVFPQ_CHUNK_CHANGED;
	}
	if (result != IVFPQ_CHUNK_DONE)
	{
		load->used = used;
		load->nchunks = nchunks;
		load->naddresses = naddresses;
		return result;
	}
	if (plan->died)
		cut_live(&live);
	finish_chunk(load, &blocks);
	return result;
}

/* VACUUM rewrites a list now and then, not each time that we read it. */
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
 * Add to the message what the mirror, which has the list in state *have,
 * lacks of it.  The index is locked.
 */
static IvfpqChunkResult
message_add(IvfpqLoad *load, int32 list, const GvListState *have)
{
	int			attempts = 0;
	ListPlan		plan;
	IvfpqChunkResult result;

	do
	{
		count_attempt(load, list, &attempts);
		IvfpqListOpen(&load->reader, (uint32) list);
		if (!make_plan(&plan, list, &load->reader.entry, have))
			return IVFPQ_CHUNK_DONE;
		result = add_planned(load, &plan);
	} while (result == IVFPQ_CHUNK_CHANGED);
	return result;
}

/*
 * Note where all blocks of the open list are; false when it changed
 * underneath.
 */
static bool
find_blocks(IvfpqLoad *load, IvfpqLongList *longlist)
{
	IvfpqListReader *reader = &load->reader;
	IvfpqBlockView view;

	for (uint32 i = longlist->nblocks; i > 0; i--)
	{
		longlist->addresses[i - 1] = reader->next;
		if (!IvfpqListNext(reader, &view) || reader->reread ||
			reader->nleft != (i - 1) * GV_BLOCK)
			return false;
	}
	return true;
}

/*
 * Begin with a list that no message holds: find where its blocks are, because
 * they have to be sent from the oldest to the newest.  The index is locked;
 * the addresses are in load->context.
 */
static void
long_begin(IvfpqLoad *load, IvfpqLongList *longlist, int32 list)
{
	int			attempts = 0;

	memset(longlist, 0, sizeof(*longlist));
	longlist->list = list;
	do
	{
		count_attempt(load, list, &attempts);
		if (longlist->addresses != NULL)
			pfree(longlist->addresses);
		IvfpqListOpen(&load->reader, (uint32) list);
		longlist->state = state_of(&load->reader.entry);
		longlist->nblocks = count_blocks(longlist->state.nitems);
		longlist->addresses =
			MemoryContextAllocHuge(load->context, Max(longlist->nblocks, 1) *
								   sizeof(IvfpqAddress));
	} while (!find_blocks(load, longlist));
}

/* Blocks of a long list that a message holds. */
static uint32
blocks_a_message(const IvfpqLoad *load)
{
	GvChunk		one = {.nblocks = 1};
	int64		block = gv_chunk_bytes(&one, load->code_bytes,
									   load->keys_bytes) - sizeof(one);

	return (uint32) ((load->capacity - sizeof(GvListsRequest) -
					  sizeof(GvChunk)) / block);
}

/*
 * Make a message of the list's next blocks.  The index is locked.  False when
 * the list was rewritten since it was begun.
 */
static bool
long_next(IvfpqLoad *load, IvfpqLongList *longlist)
{
	IvfpqListReader *reader = &load->reader;
	uint32		end = Min(longlist->nblocks,
						  longlist->next + blocks_a_message(load));
	GvChunk		head = {.list = longlist->list, .state = longlist->state};
	Chunk		chunk;
	IvfpqBlockView view;

	head.first = (int32) longlist->next;
	head.nblocks = (int32) (end - longlist->next);
	head.state.nitems = Min(longlist->state.nitems, end * GV_BLOCK);
	message_begin(load);
	if (!begin_chunk(load, &chunk, &head))
		elog(ERROR, "a piece does not fit a message");
	IvfpqListOpen(reader, (uint32) longlist->list);
	if (reader->entry.gen != longlist->state.gen)
		return false;
	for (uint32 i = longlist->next; i < end; i++)
	{
		reader->next = longlist->addresses[i];
		reader->nleft = Min(longlist->state.nitems, (i + 1) * GV_BLOCK);
		if (!IvfpqListNext(reader, &view) || reader->reread ||
			reader->nleft != i * GV_BLOCK)
			return false;
		put_block(load, &chunk, i, &view);
	}
	finish_chunk(load, &chunk);
	longlist->next = end;
	return true;
}

/* ----
 * An index under a loader's lock.
 *
 * A loader waits for no lock: a waiter would stand in the way of others.  It
 * tries, and tries again later.
 */

/* How often, and how long, to try once a load is begun. */
#define RETRY_MS			50
#define MAX_TRIES			200

/*
 * No session wants to drop, rename or copy the database, for which sessions in
 * it have to end.  In a transaction.
 */
static bool
database_is_free(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
nap(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 RETRY_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Is the open relation the index that the mirror is to be of? */
static bool
is_the_one(IvfpqLoad *load)
{
	IvfpqStorage storage = IvfpqStorageOf(load->index);

	/* an OID may have been used again for anything */
	if (load->index->rd_rel->relkind != RELKIND_INDEX ||
		load->index->rd_rel->relam != get_index_am_oid("gpuivfpq", true) ||
		!load->index->rd_index->indisvalid ||
		storage.database != load->key.database ||
		storage.tablespace != load->key.tablespace ||
		storage.number != load->key.relation)
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
 * Begin a transaction and lock the index in it.  IVFPQ_LOAD_DONE: load->index
 * is open, load->meta as of now.  Otherwise no transaction is left.  Waits for
 * the lock only once the load has begun; before, a locked index would keep
 * other mirrors waiting.
 */
static IvfpqLoadResult
load_lock(IvfpqLoad *load)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		if (tries > 0)
			nap();
		StartTransactionCommand();
		if (!database_is_free())
		{
			CommitTransactionCommand();
			strlcpy(load->error, "the database is wanted by others",
					sizeof(load->error));
			return IVFPQ_LOAD_YIELD;
		}
		if (!ConditionalLockRelationOid(load->key.index, AccessShareLock))
		{
			CommitTransactionCommand();
			strlcpy(load->error, "the index is locked", sizeof(load->error));
			if (load->capacity == 0)
				return IVFPQ_LOAD_LOCKED;
			continue;
		}
		load->index = try_relation_open(load->key.index, NoLock);
		if (load->index != NULL && is_the_one(load))
		{
			/* pages need no snapshot, and VACUUM would spare what it sees */
			InvalidateCatalogSnapshot();
			load->reader.index = load->index;
			return IVFPQ_LOAD_DONE;
		}
		if (load->index != NULL)
			relation_close(load->index, NoLock);
		load->index = NULL;
		CommitTransactionCommand();
		strlcpy(load->error, "the index is not what it was",
				sizeof(load->error));
		return IVFPQ_LOAD_GONE;
	}
	return IVFPQ_LOAD_FAILED;
}

/* End the transaction, and unlock the index. */
static void
load_unlock(IvfpqLoad *load)
{
	relation_close(load->index, AccessShareLock);
	load->index = NULL;
	load->reader.index = NULL;
	CommitTransactionCommand();
}

/* ----
 * Refine records on their way to a mirror.
 *
 * A record is written before the postings that name it, and read here after
 * them; so what goes to gpuvecd ahead of its postings is the record they were
 * written for, or that of a later row.  A mirror may keep the record of a row
 * that is dead by now, whose slot another row has: the postings that lead
 * there are the dead row's, and before its TID can belong to another row
 * VACUUM has marked them, which a scan sees by their list's del_seq.
 */

/* Records read from pages at once. */
#define CHUNK			64

StaticAssertDecl(sizeof(ItemPointerData) ==
				 sizeof(((GvRefineItem *) NULL)->address),
				 "an address is three 16-bit words");

/* Bring a record into the form that travels; zeroed memory. */
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

/* Remember whose records have to go with a block's live postings. */
static void
records_note(IvfpqLoad *load, const IvfpqBlockView *view)
{
	if (!load->note_records || view->refine == NULL)
		return;
	if (load->naddresses + GV_BLOCK > load->addresses_capacity)
	{
		int64		capacity = load->addresses_capacity * 2 + 1024;
		ItemPointerData *addresses =
		MemoryContextAllocHuge(load->context,
							   capacity * sizeof(ItemPointerData));

		if (load->naddresses > 0)
			memcpy(addresses, load->addresses,
				   load->naddresses * sizeof(ItemPointerData));
		if (load->addresses)
			pfree(load->addresses);
		load->addresses = addresses;
		load->addresses_capacity = capacity;
	}
	for (int i = 0; i < GV_BLOCK; i++)
		if ((view->live & (1U << i)) != 0)
			load->addresses[load->naddresses++] = view->refine[i];
}

static int
compare_addresses(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/* Sort what is noted; each once. */
static void
sort_addresses(IvfpqLoad *load)
{
	int64		n = 0;

	qsort(load->addresses, load->naddresses, sizeof(ItemPointerData),
		  compare_addresses);
	for (int64 i = 0; i < load->naddresses; i++)
		if (i == 0 || compare_addresses(&load->addresses[i],
										&load->addresses[n - 1]) != 0)
			load->addresses[n++] = load->addresses[i];
	load->naddresses = n;
}

/* Read the records that are noted.  The index is locked. */
static void
records_read(IvfpqLoad *load)
{
	int			dims = load->meta.dims;
	Size		stride = gv_refine_stride(dims);
	Size		slot_bytes;
	char	   *slots;

	if (load->naddresses == 0)
		return;
	sort_addresses(load);
	slot_bytes = IvfpqRecordSlotBytes(dims);
	slots = palloc(CHUNK * slot_bytes);
	load->records = MemoryContextAllocExtended(load->context,
											   load->naddresses * stride,
											   MCXT_ALLOC_HUGE |
											   MCXT_ALLOC_ZERO);
	for (int64 done = 0; done < load->naddresses; done += CHUNK)
	{
		int			n = (int) Min(CHUNK, load->naddresses - done);

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

/* Send what was read, and forget it. */
static IvfpqLoadResult
records_send(IvfpqLoad *load)
{
	Size		stride = gv_refine_stride(load->meta.dims);
	int64		slice = (load->capacity - sizeof(GvListsRequest)) / stride;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	for (int64 done = 0; done < load->naddresses && result == IVFPQ_LOAD_DONE;
		 done += slice)
	{
		int64		n = Min(slice, load->naddresses - done);
		GvListsRequest request = {load->key, (int32) n, 0};

		result = load_ask(load, GV_MSG_REFINE, &request, sizeof(request),
							  load->records + done * stride, n * stride, 0);
	}
	if (load->records)
		pfree(load->records);
	load->records = NULL;
	load->naddresses = 0;
	return result;
}

/* Add the records of a page to the message; false when it is full. */
static bool
add_page(IvfpqLoad *load, BlockNumber blkno, Page page, int64 *n)
{
	int			dims = load->meta.dims;
	int			nslots = IvfpqRecordSlots(dims);
	Size		stride = gv_refine_stride(dims);

	if ((*n + nslots) * stride > load->capacity - sizeof(GvListsRequest))
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
 * Under one lock, read refine pages from *blkno on until a message is full,
 * and send it; *blkno becomes InvalidBlockNumber after the last one.
 */
static IvfpqLoadResult
send_some_pages(IvfpqLoad *load, BlockNumber *blkno, char *page)
{
	IvfpqLoadResult result = load_lock(load);
	GvListsRequest request = {.key = load->key};
	BlockNumber nblocks;
	int64		n = 0;

	if (result != IVFPQ_LOAD_DONE)
		return result;
	nblocks = RelationGetNumberOfBlocks(load->index);
	for (; *blkno < nblocks; (*blkno)++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!IvfpqIsFixedPage(&load->meta, *blkno) &&
			IvfpqRecordPageCopy(load->index, *blkno, load->strategy, page) &&
			!add_page(load, *blkno, (Page) page, &n))
			break;
	}
	if (*blkno >= nblocks)
		*blkno = InvalidBlockNumber;
	load_unlock(load);
	if (n == 0)
		return IVFPQ_LOAD_DONE;
	request.nchunks = (int32) n;
	return load_send(load, GV_MSG_REFINE, &request, sizeof(request),
						 n * gv_refine_stride(load->meta.dims));
}

/* Send all records there are. */
static IvfpqLoadResult
records_send_all(IvfpqLoad *load)
{
	BlockNumber blkno = 0;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;
	char	   *page = MemoryContextAlloc(load->context, BLCKSZ);

	while (result == IVFPQ_LOAD_DONE && blkno != InvalidBlockNumber)
		result = send_some_pages(load, &blkno, page);
	pfree(page);
	return result;
}

/* ----
 * A whole mirror, or what one lacks.
 *
 * While gpuvecd works on a message, the next one is being read: the answer is
 * awaited only before something else is sent.
 */

/*
 * How long gpuvecd may take for a message; shorter than DROP DATABASE waits.
 */
#define MESSAGE_US			INT64CONST(4000000)

/* Lists whose states are asked for together. */
#define STATES_RANGE		65536

/* Lists that are counted while the index is locked. */
#define COUNTED_LISTS		16384

/* Bytes of a message, if maintenance_work_mem allows for two. */
#define MESSAGE_BYTES		(4 * 1024 * 1024)

#define NSLOTS				2

/* The outcome of a request, as a result of the load. */
static IvfpqLoadResult
judge(IvfpqLoad *load)
{
	const IvfpqChannel *channel = load->channel;

	if (channel->served == IVFPQ_SERVED)
		return IVFPQ_LOAD_DONE;
	snprintf(load->error, sizeof(load->error), "gpuvecd: %s",
			 channel->reason);
	if (channel->served == IVFPQ_NOT_MIRRORED)
		return IVFPQ_LOAD_ABSENT;
	if (channel->refusal == GV_REFUSED_NO_MEMORY)
	{
		strlcpy(load->error, "gpuvecd has no room for it",
				sizeof(load->error));
		return IVFPQ_LOAD_NO_MEMORY;
	}
	return IVFPQ_LOAD_FAILED;
}

/* Give gpuvecd its time for what comes now. */
static void
start_clock(IvfpqLoad *load)
{
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
}

/* Receive the answer to what was sent last. */
static IvfpqLoadResult
await_answer(IvfpqLoad *load)
{
	start_clock(load);
	return IvfpqRingAwait(&load->ring, 0) ? IVFPQ_LOAD_DONE : judge(load);
}

/*
 * Send `bytes` of load->message, behind a head, whose answer says nothing but
 * that it is done.  load->message is another's place then.
 */
static IvfpqLoadResult
load_send(IvfpqLoad *load, GvMessageType type, const void *head,
			  Size head_bytes, Size bytes)
{
	start_clock(load);
	if (!IvfpqRingSend(&load->ring, type, head, head_bytes, bytes, 0))
		return judge(load);
	load->message = IvfpqRingSlot(&load->ring, load->ring.filled);
	return IVFPQ_LOAD_DONE;
}

/* Send what lies elsewhere and receive its answer, of this length. */
static IvfpqLoadResult
load_ask(IvfpqLoad *load, GvMessageType type, const void *head,
			 Size head_bytes, const void *tail, Size tail_bytes,
			 uint32 length)
{
	IvfpqLoadResult result = await_answer(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	start_clock(load);
	(void) IvfpqChannelExchange(load->channel, type, head, head_bytes, tail,
								tail_bytes, length);
	return judge(load);
}

/*
 * Send the chunks that are in the message, after the refine records of their
 * postings.
 */
static IvfpqLoadResult
send_chunks(IvfpqLoad *load)
{
	GvListsRequest *request = (GvListsRequest *) load->message;
	IvfpqLoadResult result = records_send(load);

	if (result != IVFPQ_LOAD_DONE || load->nchunks == 0)
		return result;
	request->key = load->key;
	request->nchunks = load->nchunks;
	request->unused = 0;
	return load_send(load, GV_MSG_LISTS, NULL, 0, load->used);
}

/* Send an array of the model, `count` elements from page `first` on. */
static IvfpqLoadResult
send_array(IvfpqLoad *load, GvArray array, BlockNumber first, int64 count)
{
	int64		slice = load->capacity / sizeof(float);

	for (int64 done = 0; done < count; done += slice)
	{
		GvArrayRequest request = {load->key, array, 0, done,
		Min(slice, count - done)};
		IvfpqLoadResult result = load_lock(load);
		float	   *values = (float *) load->message;
		IvfpqArrayReader reader;
		int64		filled = 0;

		if (result != IVFPQ_LOAD_DONE)
			return result;
		/* as vectors of one element, so that any slice can be read */
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
		result = load_send(load, GV_MSG_ARRAY, &request, sizeof(request),
							   request.count * sizeof(float));
		if (result != IVFPQ_LOAD_DONE)
			return result;
	}
	return IVFPQ_LOAD_DONE;
}

/* Send a list that no message holds. */
static IvfpqLoadResult
send_long_list(IvfpqLoad *load, int32 list)
{
	IvfpqLongList longlist = {.list = -1};
	IvfpqLoadResult result;

	do
	{
		result = load_lock(load);
		if (result != IVFPQ_LOAD_DONE)
			break;
		if (longlist.list < 0)
			long_begin(load, &longlist, list);
		if (!long_next(load, &longlist))
		{
			/* rewritten meanwhile: once more, from its first block */
			load_unlock(load);
			pfree(longlist.addresses);
			longlist.list = -1;
			longlist.addresses = NULL;
			continue;
		}
		records_read(load);
		load_unlock(load);
		result = send_chunks(load);
	} while (result == IVFPQ_LOAD_DONE &&
			 (longlist.list < 0 || longlist.next < longlist.nblocks));
	if (longlist.addresses)
		pfree(longlist.addresses);
	return result;
}

/*
 * Under one lock, read of lists *list to end - 1 as many as a message takes,
 * and send it.  have [end - *list]: what the mirror has of them.
 */
static IvfpqLoadResult
send_some_lists(IvfpqLoad *load, int32 *list, int32 end,
				const GvListState *have)
{
	int32		first = *list;
	IvfpqChunkResult chunk = IVFPQ_CHUNK_DONE;
	IvfpqLoadResult result = load_lock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	message_begin(load);
	while (*list < end && chunk == IVFPQ_CHUNK_DONE)
	{
		chunk = message_add(load, *list, &have[*list - first]);
		if (chunk == IVFPQ_CHUNK_FULL && load->nchunks > 0)
			break;
		load->postings += load->reader.entry.nitems;
		(*list)++;
	}
	records_read(load);
	load_unlock(load);

	if (chunk == IVFPQ_CHUNK_FULL && load->nchunks == 0)
		return send_long_list(load, *list - 1);
	return send_chunks(load);
}

/* The states that the mirror has lists first to first + count - 1 in. */
static IvfpqLoadResult
get_states(IvfpqLoad *load, int32 first, int32 count, GvListState *states)
{
	GvRangeRequest request = {load->key, first, count, 0, 0};
	uint32		bytes = count * sizeof(GvListState);
	IvfpqLoadResult result = load_ask(load, GV_MSG_STATES, &request,
										  sizeof(request), NULL, 0, bytes);

	if (result == IVFPQ_LOAD_DONE)
		memcpy(states, IvfpqAnswerBody(load->channel), bytes);
	return result;
}

/*
 * Bring all lists to what they are; `fresh`: the mirror has nothing of them
 * yet.
 */
static IvfpqLoadResult
send_lists(IvfpqLoad *load, bool fresh)
{
	int32		nlists = load->meta.nlists;
	GvListState *have;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	have = MemoryContextAllocZero(load->context,
								  Min(nlists, STATES_RANGE) *
								  sizeof(GvListState));
	load->postings = 0;
	/* to a mirror that has nothing yet all records come at once */
	load->note_records = !fresh && IvfpqMirrorHasRecords(&load->meta);
	for (int32 first = 0; first < nlists && result == IVFPQ_LOAD_DONE;
		 first += STATES_RANGE)
	{
		int32		end = Min(nlists, first + STATES_RANGE);
		int32		list = first;

		if (!fresh)
			result = get_states(load, first, end - first, have);
		while (list < end && result == IVFPQ_LOAD_DONE)
		{
			result = send_some_lists(load, &list, end, have + (list - first));
			if (fresh)
				IvfpqMirrorRequestProgress(&load->key, load->postings,
										   load->expected);
		}
	}
	pfree(have);
	if (result == IVFPQ_LOAD_DONE)
		result = await_answer(load);
	return result;
}

/* Which version of the directory is there now? */
static IvfpqLoadResult
get_version(IvfpqLoad *load, uint64 *version)
{
	IvfpqLoadResult result = load_lock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	*version = IvfpqDirectoryVersion(load->index, &load->meta);
	load_unlock(load);
	return IVFPQ_LOAD_DONE;
}

/*
 * Bring what the mirror lacks of lists.  If the directory is the same before
 * and behind, then all the time lists were what the mirror has now: say so.
 */
static IvfpqLoadResult
catch_up(IvfpqLoad *load)
{
	GvCurrentRequest request = {.key = load->key};
	uint64		version = 0;
	IvfpqLoadResult result = get_version(load, &request.version);

	if (result == IVFPQ_LOAD_DONE)
		result = send_lists(load, false);
	if (result == IVFPQ_LOAD_DONE)
		result = get_version(load, &version);
	if (result == IVFPQ_LOAD_DONE && version != 0 &&
		version == request.version)
		result = load_ask(load, GV_MSG_CURRENT, &request, sizeof(request),
							  NULL, 0, 0);
	return result;
}

/*
 * Count the postings that the lists hold now.  The index is locked, and after
 * some lists each time unlocked for a moment; it is still locked if the result
 * is IVFPQ_LOAD_DONE.
 */
static IvfpqLoadResult
count_postings(IvfpqLoad *load)
{
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	load->expected = 0;
	for (int list = 0; list < load->meta.nlists; list++)
	{
		IvfpqDirEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (list > 0 && list % COUNTED_LISTS == 0)
		{
			load_unlock(load);
			result = load_lock(load);
			if (result != IVFPQ_LOAD_DONE)
				break;
		}
		IvfpqDirEntryRead(load->index, &load->meta, list, &entry);
		load->expected += entry.nitems;
	}
	return result;
}

/* Begin a mirror, and bring its model.  *exists: there is one already. */
static IvfpqLoadResult
send_model(IvfpqLoad *load, bool *exists)
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
		}
	};
	IvfpqLoadResult result;

	if (IvfpqMirrorHasRecords(meta))
	{
		request.spec.refine_slots = IvfpqRecordSlots(meta->dims);
		request.spec.refine_records = load->expected / meta->lists_per_row;
	}
	result = load_ask(load, GV_MSG_BEGIN, &request, sizeof(request),
						  NULL, 0, 0);
	*exists = load->channel->refusal == GV_REFUSED_EXISTS;
	if (*exists)
		return IVFPQ_LOAD_DONE;
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_CODEBOOKS, meta->codebooks,
							(int64) GV_CODEWORDS * meta->dims);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_PARENTS, meta->parents,
							(int64) meta->nparents * meta->dims);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_PARENT_OFFSETS, meta->parent_offsets,
							(int64) meta->nparents + 1);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_CENTROIDS, meta->centroids,
							(int64) meta->nlists * meta->dims);
	return result;
}

/* A mirror that is not there yet; if it is, *exists. */
static IvfpqLoadResult
bring_all(IvfpqLoad *load, bool *exists)
{
	GvKeyRequest request = {load->key};
	IvfpqLoadResult result = send_model(load, exists);

	if (result != IVFPQ_LOAD_DONE || *exists)
		return result;
	result = send_lists(load, true);
	if (result == IVFPQ_LOAD_DONE && IvfpqMirrorHasRecords(&load->meta))
		result = records_send_all(load);
	/* what has changed meanwhile */
	if (result == IVFPQ_LOAD_DONE)
		result = catch_up(load);
	if (result == IVFPQ_LOAD_DONE)
		result = load_ask(load, GV_MSG_READY, &request, sizeof(request),
							  NULL, 0, 0);
	return result;
}

/*
 * Let go of mirrors of the pages that the index had before, rather than when
 * the supervisor sees that their files have gone.
 */
static IvfpqLoadResult
drop_older(IvfpqLoad *load)
{
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;
	GvKeyRequest request;

	while (result == IVFPQ_LOAD_DONE &&
		   IvfpqMirrorRequestOlder(&load->key, &request.key))
	{
		IvfpqMirrorRequestForget(&request.key);
		result = load_ask(load, GV_MSG_DROP, &request, sizeof(request),
							  NULL, 0, 0);
	}
	return result;
}

/* Looks at the index for the first time; allocates memory for the rest. */
static IvfpqLoadResult
prepare(IvfpqLoad *load, bool whole)
{
	MemoryContext old;
	IvfpqLoadResult result = load_lock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	old = MemoryContextSwitchTo(load->context);
	load->strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReaderInit(&load->reader, load->index, &load->meta, NULL,
						load->strategy);
	load->code_bytes = load->reader.layout.code_bytes;
	load->keys_bytes = IvfpqKeysBytes(&load->reader.layout.keys);
	load->capacity =
		Min(MESSAGE_BYTES, (Size) maintenance_work_mem * 1024 / 2);
	MemoryContextSwitchTo(old);
	if (whole)
		result = count_postings(load);
	if (result == IVFPQ_LOAD_DONE)
		load_unlock(load);
	return result;
}

/*
 * Connect, and make memory for messages.  `share` is set for a whole mirror;
 * changes are too few for shared memory to pay.
 */
static IvfpqLoadResult
open_ring(IvfpqLoad *load, bool share)
{
	MemoryContext old = MemoryContextSwitchTo(load->context);
	bool		opened;

	load->channel = IvfpqConnect(GV_ROLE_LOADER, IvfpqNow() + MESSAGE_US);
	opened = IvfpqRingOpen(&load->ring, load->channel, NSLOTS, load->capacity,
						   share);
	MemoryContextSwitchTo(old);
	if (!opened)
		return judge(load);
	load->message = IvfpqRingSlot(&load->ring, 0);
	return IVFPQ_LOAD_DONE;
}

/*
 * Bring the mirror of load->key to gpuvecd; not `whole`: only what it lacks.
 * Everything it needs is in load->context, the caller's.  May throw.
 */
static IvfpqLoadResult
load_mirror(IvfpqLoad *load, bool whole)
{
	IvfpqLoadResult result = prepare(load, whole);
	bool		exists = true;

	if (result == IVFPQ_LOAD_DONE)
		result = open_ring(load, whole);
	if (result == IVFPQ_LOAD_DONE && whole)
		result = drop_older(load);
	if (result == IVFPQ_LOAD_DONE && whole)
	{
		IvfpqMirrorRequestProgress(&load->key, 0, load->expected);
		result = bring_all(load, &exists);
	}
	if (result == IVFPQ_LOAD_DONE && exists)
		result = catch_up(load);
	load->fresh = !exists;
	return result;
}

/* ----
 * A background worker that brings mirrors of a database's indexes to
 * gpuvecd, and what they lack.
 *
 * It works where there can be no writing, too: on a hot standby.  It ends
 * soon after there is nothing to do, and at once when a session wants the
 * database for itself, because a database with a session in it can be
 * neither dropped nor copied.
 */

/* How often to look for work, and how long. */
#define LOOK_MS				50
#define IDLE_US				1000000

/* How long it stays when another database waits for a loader. */
#define TURN_US				1000000

/*
 * A mirror rests at least this many times as long as catching up took, within
 * these limits.
 */
#define CATCH_UP_REST		10
#define CATCH_UP_PAUSE_MS	200
#define CATCH_UP_MOST_MS	60000

/* The time before gpuvecd is asked again after it had no memory. */
#define NO_MEMORY_PAUSE_MS	30000

extern PGDLLEXPORT void gpuvec_loader_main(Datum arg);

/* How a loader of a database is started. */
void
IvfpqFillLoader(BackgroundWorker *worker, Oid database, int slot)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_ConsistentState;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "gpuvec",
			sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, "gpuvec_loader_main",
			sizeof(worker->bgw_function_name));
	snprintf(worker->bgw_name, BGW_MAXLEN, "gpuvec loader of database %u",
			 database);
	strlcpy(worker->bgw_type, "gpuvec loader", BGW_MAXLEN);
	worker->bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker->bgw_extra, &database, sizeof(Oid));
	worker->bgw_notify_pid = MyProcPid;
}

/* Load, and let an error be a result. */
static IvfpqLoadResult
load_safely(IvfpqLoad *load, bool whole)
{
	volatile IvfpqLoadResult result = IVFPQ_LOAD_FAILED;

	PG_TRY();
	{
		result = load_mirror(load, whole);
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
		/* it may be cut in a character, and is read in other databases, too */
		for (char *c = load->error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	/* gpuvecd throws an unfinished mirror away with the connection */
	if (result != IVFPQ_LOAD_DONE)
		IvfpqDisconnect();
	return result;
}

static void
log_done(const IvfpqLoad *load, int64 us)
{
	ereport(load->fresh ? LOG : DEBUG1,
			(errmsg("gpuvec: %s index \"%s\": %lld copies in %d lists, %.0f ms",
					load->fresh ? "mirrored" : "caught up with", load->name,
					(long long) load->postings, load->meta.nlists,
					us / 1000.0)));
}

/* Have it tried again, not before so long; once told, it is not told again. */
static void
note_failed(const IvfpqLoad *load, int pause_ms)
{
	if (IvfpqMirrorRequestFailed(&load->key, load->error, pause_ms))
		ereport(LOG,
				(errmsg("gpuvec: could not mirror index %u: %s",
						load->key.index, load->error)));
}

/* Tell everyone what became of it. */
static void
report(IvfpqLoad *load, IvfpqLoadResult result, int64 us)
{
	int64		rest = CATCH_UP_REST * us / 1000;

	switch (result)
	{
		case IVFPQ_LOAD_DONE:
			IvfpqMirrorRequestDone(&load->key, load->postings,
								   (int) Min(Max(rest, CATCH_UP_PAUSE_MS),
											 CATCH_UP_MOST_MS));
			log_done(load, us);
			break;
		case IVFPQ_LOAD_GONE:
			IvfpqMirrorRequestForget(&load->key);
			break;
		case IVFPQ_LOAD_ABSENT:
			IvfpqMirrorRequestEvicted(&load->key);
			break;
		case IVFPQ_LOAD_LOCKED:
			if (!IvfpqMirrorRequestPutBack(&load->key))
				note_failed(load, 0);
			break;
		case IVFPQ_LOAD_NO_MEMORY:
			note_failed(load, NO_MEMORY_PAUSE_MS);
			break;
		case IVFPQ_LOAD_YIELD:
		case IVFPQ_LOAD_FAILED:
			note_failed(load, 0);
			break;
	}
}

/* Serve one request; false when the loader is to end. */
static bool
serve(const IvfpqMirrorRequest *request)
{
	IvfpqLoad	load = {.key = request->key};
	bool		whole = request->state != IVFPQ_REQUEST_READY;
	int64		begun = IvfpqNow();
	IvfpqLoadResult result;

	load.context = AllocSetContextCreate(TopMemoryContext, "gpuvec load",
										 ALLOCSET_DEFAULT_SIZES);
	pgstat_report_activity(STATE_RUNNING, whole ? "gpuvec: loading a mirror" :
						   "gpuvec: catching up with an index");
	SetCurrentStatementStartTimestamp();
	result = load_safely(&load, whole);
	IvfpqRingClose(&load.ring);
	report(&load, result, IvfpqNow() - begun);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(load.context);
	return result != IVFPQ_LOAD_YIELD;
}

/* Wait a moment; false when a session wants the database for itself. */
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

static void
release_all(int code, Datum arg)
{
	LWLockReleaseAll();
	IvfpqMirrorRequestRelease("the loader was ended");
}

/* Entry of the worker.  arg: its slot; bgw_extra: OID of its database. */
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

	/* its sessions go on where no new ones are allowed */
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	LWLockAcquire(ivfpq_shared->lock, LW_EXCLUSIVE);
	ivfpq_shared->loader_connected[slot] = true;
	LWLockRelease(ivfpq_shared->lock);
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
