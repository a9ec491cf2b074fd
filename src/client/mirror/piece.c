/*
 * piece.c
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

#include "miscadmin.h"

#include "client/mirror/load.h"

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

	IvfpqRecordsNote(load, view);
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
void
IvfpqMessageBegin(IvfpqLoad *load)
{
	load->used = sizeof(GvListsRequest);
	load->nchunks = 0;
	load->naddresses = 0;
}

/* The chunks that bring a mirror's list up to date. */
typedef struct Plan
{
	bool		died;			/* send `live` first, because a tail has to
								 * come to the same del_seq */
	GvChunk		live;
	GvChunk		blocks;
	uint32		lowest;			/* block that has to be read */
} Plan;

/*
 * Compare the list's entry with the state that the mirror has it in; false
 * when they agree.
 */
static bool
make_plan(Plan *plan, int32 list, const IvfpqDirEntry *entry,
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
add_planned(IvfpqLoad *load, const Plan *plan)
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
IvfpqChunkResult
IvfpqMessageAdd(IvfpqLoad *load, int32 list, const GvListState *have)
{
	int			attempts = 0;
	Plan		plan;
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
void
IvfpqLongBegin(IvfpqLoad *load, IvfpqLongList *longlist, int32 list)
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
bool
IvfpqLongNext(IvfpqLoad *load, IvfpqLongList *longlist)
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
	IvfpqMessageBegin(load);
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
