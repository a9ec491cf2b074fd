/*
 * buffers.c
 *		Pages of an index in memory, with locks and pins that are counted, and
 *		free space.
 *
 * Pages are local buffers', since those need not lie side by side.
 */
#include "backend.h"

#include <math.h>

#include "access/generic_xlog.h"
#include "executor/instrument.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/spccache.h"

RelationData backend_index;
RelationData backend_table;

static SMgrRelationData smgr;
void	   *backend_pages[MOST_PAGES];
BlockNumber backend_npages;
static int	locks[MOST_PAGES];
static int	pins[MOST_PAGES];
static Size free_space[MOST_PAGES];

int64		backend_reads;

/* PostgreSQL's */
Block	   *LocalBufferBlockPointers = backend_pages;
char	   *BufferBlocks;
int			NBuffers;
int			NLocBuffer = MOST_PAGES;
BufferUsage pgBufferUsage;

#define BUFFER_OF(blkno)	(-(Buffer) (blkno) - 1)

/* ---- a test's side */

/* The file has so many pages; new ones are zero. */
void
backend_set_npages(BlockNumber n)
{
	if (n > MOST_PAGES)
		FAULT("the index grows to %u pages", n);
	for (; backend_npages < n; backend_npages++)
		backend_pages[backend_npages] = calloc(1, BLCKSZ);
	while (backend_npages > n)
		free(backend_pages[--backend_npages]);
}

void
backend_set_free_space(BlockNumber blkno, Size bytes)
{
	if (blkno < MOST_PAGES)
		free_space[blkno] = bytes;
}

/* No pages, and nothing known. */
void
backend_clear(void)
{
	backend_set_npages(0);
	memset(free_space, 0, sizeof(free_space));
	smgr.smgr_targblock = InvalidBlockNumber;
	for (int i = 0; i <= MAX_FORKNUM; i++)
		smgr.smgr_cached_nblocks[i] = InvalidBlockNumber;
	backend_index.rd_smgr = &smgr;
	backend_table.rd_smgr = &smgr;
}

bool
backend_holds_nothing(void)
{
	for (int i = 0; i < MOST_PAGES; i++)
		if (locks[i] != 0 || pins[i] != 0)
			return false;
	return true;
}

/* Release all locks and pins, as the end of a transaction does. */
void
backend_let_go(void)
{
	memset(locks, 0, sizeof(locks));
	memset(pins, 0, sizeof(pins));
}

/* ---- PostgreSQL's buffer manager */

static BlockNumber
block_of(Buffer buffer)
{
	BlockNumber blkno = (BlockNumber) (-buffer - 1);

	if (blkno >= backend_npages)
		FAULT("buffer %d", buffer);
	return blkno;
}

/* As PageIsVerified does, without a checksum. */
static bool
is_valid(const char *page)
{
	const		PageHeaderData *header = (const PageHeaderData *) page;

	if (header->pd_upper != 0)
		return (header->pd_flags & ~PD_VALID_FLAG_BITS) == 0 &&
			header->pd_lower <= header->pd_upper &&
			header->pd_upper <= header->pd_special &&
			header->pd_special <= BLCKSZ &&
			header->pd_special == MAXALIGN(header->pd_special);
	for (int i = 0; i < BLCKSZ; i++)
		if (page[i] != 0)
			return false;
	return true;
}

Buffer
ReadBufferExtended(Relation reln, ForkNumber fork, BlockNumber blkno,
				   ReadBufferMode mode, BufferAccessStrategy strategy)
{
	if (reln != &backend_index)
		FAULT("a page of the table is read");
	if (++backend_reads > MOST_READS)
		FAULT("it reads pages without end");
	if (blkno == P_NEW)
	{
		blkno = backend_npages;
		backend_set_npages(backend_npages + 1);
	}
	if (blkno >= backend_npages)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not read block %u: %u pages", blkno, backend_npages)));
	if (!is_valid(backend_pages[blkno]))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("invalid page in block %u", blkno)));
	pins[blkno]++;
	if (mode == RBM_ZERO_AND_LOCK)
		LockBuffer(BUFFER_OF(blkno), BUFFER_LOCK_EXCLUSIVE);
	return BUFFER_OF(blkno);
}

Buffer
ReadBuffer(Relation reln, BlockNumber blkno)
{
	return ReadBufferExtended(reln, MAIN_FORKNUM, blkno, RBM_NORMAL, NULL);
}

void
ReleaseBuffer(Buffer buffer)
{
	if (pins[block_of(buffer)]-- <= 0)
		FAULT("block %u is not pinned", block_of(buffer));
}

void
LockBuffer(Buffer buffer, int mode)
{
	BlockNumber blkno = block_of(buffer);

	if (pins[blkno] <= 0)
		FAULT("block %u is not pinned", blkno);
	if (mode != BUFFER_LOCK_UNLOCK && locks[blkno] != 0)
		FAULT("block %u is locked: a session would wait for itself", blkno);
	if (mode == BUFFER_LOCK_UNLOCK && locks[blkno] == 0)
		FAULT("block %u is not locked", blkno);
	locks[blkno] = mode;
}

bool
ConditionalLockBuffer(Buffer buffer)
{
	if (locks[block_of(buffer)] != 0)
		return false;
	locks[block_of(buffer)] = BUFFER_LOCK_EXCLUSIVE;
	return true;
}

void
UnlockReleaseBuffer(Buffer buffer)
{
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	ReleaseBuffer(buffer);
}

void
MarkBufferDirty(Buffer buffer)
{
	if (locks[block_of(buffer)] != BUFFER_LOCK_EXCLUSIVE)
		FAULT("block %u is changed without a lock", block_of(buffer));
}

BlockNumber
BufferGetBlockNumber(Buffer buffer)
{
	return block_of(buffer);
}

BlockNumber
RelationGetNumberOfBlocksInFork(Relation relation, ForkNumber fork)
{
	return relation == &backend_index ? backend_npages : TABLE_PAGES;
}

PrefetchBufferResult
PrefetchBuffer(Relation reln, ForkNumber fork, BlockNumber blkno)
{
	PrefetchBufferResult result = {InvalidBuffer, false};

	if (blkno >= backend_npages)
		FAULT("block %u is prefetched, of %u", blkno, backend_npages);
	return result;
}

BufferAccessStrategy
GetAccessStrategy(BufferAccessStrategyType type)
{
	return NULL;
}

/* Pages are asked for in every second act, as if they came from files. */
int
get_tablespace_io_concurrency(Oid spcid)
{
	return 4;
}

#ifdef BMR_REL
Buffer
ExtendBufferedRel(BufferManagerRelation bmr, ForkNumber fork,
				  BufferAccessStrategy strategy, uint32 flags)
{
	return ReadBufferExtended(bmr.rel, fork, P_NEW, flags & EB_LOCK_FIRST ?
							  RBM_ZERO_AND_LOCK : RBM_NORMAL, strategy);
}

BlockNumber
ExtendBufferedRelBy(BufferManagerRelation bmr, ForkNumber fork,
					BufferAccessStrategy strategy, uint32 flags, uint32 n,
					Buffer *buffers, uint32 *extended)
{
	*extended = 1;
	buffers[0] = ExtendBufferedRel(bmr, fork, strategy, flags);
	return block_of(buffers[0]);
}
#endif

/* ---- the free space map, which may say anything */

BlockNumber
GetPageWithFreeSpace(Relation rel, Size needed)
{
	for (BlockNumber i = 0; i < MOST_PAGES; i++)
		if (free_space[i] >= needed)
			return i;
	return InvalidBlockNumber;
}

Size
GetRecordedFreeSpace(Relation rel, BlockNumber blkno)
{
	return blkno < MOST_PAGES ? free_space[blkno] : 0;
}

void
RecordPageWithFreeSpace(Relation rel, BlockNumber blkno, Size bytes)
{
	backend_set_free_space(blkno, bytes);
}

NO_OP(void FreeSpaceMapVacuum(Relation rel))
NO_OP(void FreeSpaceMapVacuumRange(Relation rel, BlockNumber start,
								   BlockNumber end))
NO_OP(void IndexFreeSpaceMapVacuum(Relation rel))

/* ---- locks of relations, which nobody else wants */

NO_OP(void LockRelationForExtension(Relation relation, LOCKMODE mode))
NO_OP(void UnlockRelationForExtension(Relation relation, LOCKMODE mode))

bool
ConditionalLockRelation(Relation relation, LOCKMODE mode)
{
	return true;
}

NO_OP(void UnlockRelation(Relation relation, LOCKMODE mode))
