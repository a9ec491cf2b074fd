/*
 * page.h
 *		The on-disk format of gpuivfpq, and the only code that changes it.
 *
 * Pages know lists, blocks and TIDs; they never know a distance.  Every
 * change of a page is one generic WAL record of at most four buffers, except
 * during a build, which nobody else can see and which is logged whole at its
 * end.  README draws every page and states the lock order:
 *		metapage -> directory -> slab, refine and pending pages
 */
#ifndef IVFPQ_PAGE_H
#define IVFPQ_PAGE_H

#include "access/genam.h"
#include "access/generic_xlog.h"
#include "storage/block.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/itemptr.h"
#include "utils/rel.h"

#define IVFPQ_MAGIC			0x67764958	/* "gvIX" */
#define IVFPQ_VERSION		5	/* what is written */
#define IVFPQ_OLDEST_VERSION	5	/* ... and read, with all in between */
#define IVFPQ_METAPAGE		0
#define IVFPQ_PAGE_ID		0xFF91	/* last 2 bytes of every page */

#define IVFPQ_MAX_DIMS		16000
#define IVFPQ_MAX_LISTS		(1 << 24)
#define IVFPQ_BLOCK_COPIES	32	/* copies in a block */
#define IVFPQ_MAX_PARTS		2	/* pages a block may span */
#define IVFPQ_NO_LIST		((uint32) 0xFFFFFFFF)	/* owner of a free slot */

/* What a page holds. */
typedef enum IvfpqPageKind
{
	IVFPQ_KIND_META = 1,
	IVFPQ_KIND_ARRAY,			/* slice of an immutable array of floats */
	IVFPQ_KIND_DIRECTORY,
	IVFPQ_KIND_SLAB,
	IVFPQ_KIND_PENDING,
	IVFPQ_KIND_FREE,			/* given back whole; any kind may take it */
	IVFPQ_KIND_REFINE
} IvfpqPageKind;

/* What re-ranking knows of rows before it fetches them. */
typedef enum IvfpqRefine
{
	IVFPQ_REFINE_NONE,
	IVFPQ_REFINE_SQ8			/* 8 bits a dimension */
} IvfpqRefine;

/* Special space of every page, 8 bytes. */
typedef struct IvfpqSpecialData
{
	uint16		kind;			/* IvfpqPageKind */
	uint16		flags;			/* of a pending page; else 0 */
	uint16		unused;			/* 0 */
	uint16		page_id;		/* IVFPQ_PAGE_ID */
} IvfpqSpecialData;

typedef IvfpqSpecialData *IvfpqSpecial;

#define IvfpqPageSpecial(page)	((IvfpqSpecial) PageGetSpecialPointer(page))

/* Pending page: its rows have been looked at, and no list can take any. */
#define IVFPQ_PENDING_ODD	1

/* Bytes between page header and special space. */
#define IVFPQ_PAGE_BYTES \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(IvfpqSpecialData)))

/* Recalls for which the effort is known, for the first 10 and 100 rows. */
#define IVFPQ_TARGETS		5
#define IVFPQ_TARGET_RECALLS {0.80, 0.90, 0.95, 0.98, 0.99}
#define IVFPQ_DEPTHS		2
#define IVFPQ_FIRST_ROWS	10
#define IVFPQ_DEEP_ROWS		100

/* What it takes to reach a recall; 0 = not known. */
typedef struct IvfpqTarget
{
	int32		probes;
	int32		candidates;
} IvfpqTarget;

/* The first row decided on dims; when none is left, the next one does. */
#define IVFPQ_DIMS_BY_ROW	1
/* No pending row has other dims: each was checked when it came. */
#define IVFPQ_DIMS_CHECKED	2

/*
 * Metapage contents.  Everything but calibration, rows_at_advice, the pending
 * list's ends and the head of the refine pages with free slots is immutable
 * once trained; nlists = 0 means untrained: all rows are pending.
 */
typedef struct IvfpqMetaData
{
	uint32		magic;
	uint16		version;
	uint8		metric;			/* GvMetric */
	uint8		code_bits;		/* 4 */
	uint64		build_id;		/* random; 0 = made by ambuildempty */
	int32		dims;			/* 0 = not known */
	int32		pq_dim;			/* sub-quantizers */
	int32		nlists;			/* 0 = untrained */
	int32		nparents;
	int32		copies;			/* lists that hold a row: 1 or 2 */
	float4		scale;			/* of the engine's transform */
	BlockNumber mean;			/* first page: [dims] floats */
	BlockNumber codebooks;		/* first page: [16 * dims] floats */
	BlockNumber parents;		/* first page: [nparents][dims] floats */
	BlockNumber starts;			/* first page: [nparents + 1] int32, the first
								 * list of each parent */
	BlockNumber centroids;		/* first page: [nlists][dims] floats, by
								 * parent */
	BlockNumber codes;			/* first page: blocks of the centroids' codes,
								 * see array.h */
	BlockNumber directory;		/* first page: [nlists] IvfpqListEntry */
	int32		dims_flags;		/* IVFPQ_DIMS_...; 0 before 0.3.0 */

	int64		rows_at_training;
	int64		rows_at_calibration;	/* 0 = not calibrated */
	IvfpqTarget targets[IVFPQ_DEPTHS][IVFPQ_TARGETS];
	float4		coarse_share;	/* of the lists that a search compares; 1 =
								 * all, flat; 0 = not calibrated */
	int32		calibration_queries;
	int64		rows_at_advice;	/* when it was last told, in the log, that the
								 * index has outgrown its training; 0 = never */
	BlockNumber pending_head;	/* InvalidBlockNumber when there is none */
	BlockNumber pending_tail;
	uint64		pending_head_seq;	/* IvfpqPendingHeader.seq of the head */

	int32		refine;			/* IvfpqRefine */
	BlockNumber refine_head;	/* refine page with free slots */
} IvfpqMetaData;

/* Where a block starts. */
typedef struct IvfpqAddress
{
	BlockNumber page;			/* InvalidBlockNumber = none */
	uint32		slot;
} IvfpqAddress;

/*
 * Directory entry of a list.  Positions 0 .. nitems - 1 are append-only
 * within a gen; the newest block, `head`, holds the last of them.
 */
typedef struct IvfpqListEntry
{
	uint32		gen;			/* bumped when a list is rewritten or emptied */
	uint32		nitems;			/* copies appended, dead ones included */
	uint32		ndead;
	uint32		nfirst;			/* live copies that are their rows' first */
	uint32		del_seq;		/* bumped when copies are marked dead */
	IvfpqAddress head;			/* newest block */
} IvfpqListEntry;

#define IVFPQ_ENTRIES_PER_PAGE \
	((int) (IVFPQ_PAGE_BYTES / sizeof(IvfpqListEntry)))

/*
 * Every slot of a slab page starts with this.  A block is one slot or, when
 * its body is longer than a page, two parts, each alone on its page.  The
 * body, cut into parts of equal size:
 *		tids	ItemPointerData [32]
 *		t		float4 [32]
 *		refine	ItemPointerData [32], if the index has refine records
 *		codes	uint8 [code_bytes][32]
 */
typedef struct IvfpqSlotHeader
{
	uint32		list;			/* IVFPQ_NO_LIST = free */
	uint32		gen;
	uint32		ordinal;		/* of the block in its list, 0 = oldest */
	uint32		dead;			/* bit i: copy i is dead (part 0) */
	uint32		second;			/* bit i: copy i is its row's second (part 0) */
	BlockNumber prev_page;		/* next older block (part 0) */
	uint16		prev_slot;
	uint16		part;			/* 0 .. nparts - 1 */
	BlockNumber next_part;		/* page of the next part, if there is one */
} IvfpqSlotHeader;

/* Pending page: a header, then TIDs.  Pages are chained from old to new. */
typedef struct IvfpqPendingHeader
{
	uint64		seq;			/* ascending along the chain */
	uint64		next_seq;		/* seq of the next page */
	BlockNumber next;			/* InvalidBlockNumber at the tail */
	uint32		count;			/* TIDs held */
} IvfpqPendingHeader;

#define IVFPQ_PENDING_PER_PAGE \
	((int) ((IVFPQ_PAGE_BYTES - sizeof(IvfpqPendingHeader)) / sizeof(ItemPointerData)))

StaticAssertDecl(sizeof(IvfpqSpecialData) == 8, "special space is 8 bytes");
StaticAssertDecl(sizeof(IvfpqMetaData) == 208, "metapage contents are 208 bytes");
StaticAssertDecl(sizeof(IvfpqListEntry) == 28, "directory entry is 28 bytes");
StaticAssertDecl(sizeof(IvfpqSlotHeader) == 32, "slot header is 32 bytes");
StaticAssertDecl(sizeof(IvfpqPendingHeader) == 24, "pending header is 24 bytes");
StaticAssertDecl(sizeof(ItemPointerData) == 6, "a TID is three 16-bit words");

/* Bytes of one copy's code. */
static inline int
IvfpqCodeBytes(int pq_dim)
{
	return (pq_dim + 1) / 2;
}

/* How blocks lie on pages; follows from pq_dim and refine. */
typedef struct IvfpqLayout
{
	bool		refine;			/* copies carry addresses of refine records */
	int			code_bytes;		/* bytes of one copy's code */
	int			codes;			/* where codes begin in a body */
	int			body_bytes;		/* of a block */
	int			nparts;			/* 1 .. IVFPQ_MAX_PARTS */
	int			part_bytes;		/* body bytes in one part */
	int			slot_bytes;		/* header and part */
	int			slots_per_page; /* 1 when nparts > 1 */
} IvfpqLayout;

/* One copy of a row in a list, as inserted. */
typedef struct IvfpqCopy
{
	ItemPointerData tid;
	float4		t;
	const uint8 *code;			/* [code_bytes] */
	bool		second;			/* the row's second copy */
	ItemPointerData refine;		/* address, if the index has refine records */
} IvfpqCopy;

/* Where a row is pending. */
typedef struct IvfpqPendingPlace
{
	BlockNumber page;
	uint64		seq;			/* of that page */
} IvfpqPendingPlace;

/* One block as read.  Pointers reach into the reader's memory. */
typedef struct IvfpqBlockView
{
	const ItemPointerData *tids;	/* [32] */
	const float4 *t;			/* [32] */
	const ItemPointerData *refine;	/* [32], or NULL */
	const uint8 *codes;			/* [code_bytes][32] */
	uint32		live;			/* bit i: copy i exists and is not dead */
	uint32		second;			/* bit i: copy i is its row's second */
} IvfpqBlockView;

/* layout.c: arithmetic and bytes, no buffers */
extern int	IvfpqMaxPqDim(void);
extern bool IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine);
extern int	IvfpqDefaultPqDim(int dims, bool refine);
extern void IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
						 char *const *parts, int i, const IvfpqCopy *copy);
extern void IvfpqBodyView(const IvfpqLayout *layout, const char *body,
						  int count, const IvfpqSlotHeader *header,
						  IvfpqBlockView *view);

/* page.c: pages of any kind */
/* For qsort of uint64, among them TIDs as numbers (IvfpqTidToId). */
extern int	IvfpqCompareNumbers(const void *a, const void *b);

extern void IvfpqPageInit(Page page, IvfpqPageKind kind);
extern Buffer IvfpqReadPage(Relation index, BlockNumber blkno, int lockmode,
							IvfpqPageKind kind, BufferAccessStrategy strategy);
extern bool IvfpqPageIs(Page page, IvfpqPageKind kind);
extern bool IvfpqPageIsTrained(Page page);
extern void IvfpqCorrupted(Relation index, BlockNumber blkno,
						   const char *fmt,...)
			__attribute__((format(printf, 3, 4), noreturn));
extern Buffer IvfpqExtend(Relation index);
extern Buffer IvfpqGetFreePage(Relation index);
extern void IvfpqFreePage(Relation index, Buffer buf);
extern BlockNumber IvfpqReserve(Relation index, BlockNumber npages,
								bool shared);
extern void IvfpqFillPage(Relation index, BlockNumber blkno, Page page,
						  bool log);
extern void IvfpqPutPage(Relation index, BlockNumber blkno, Page page,
						 bool shared);
extern bool IvfpqBlockExists(Relation index, BlockNumber blkno);

/* meta.c: the metapage */
extern void IvfpqMetaInit(IvfpqMetaData *meta, int metric, int dims);
extern void IvfpqMetaCreate(Relation index, ForkNumber fork,
							const IvfpqMetaData *meta);
extern void IvfpqMetaRewrite(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMetaRead(Relation index, IvfpqMetaData *meta);
extern bool IvfpqMetaCalibrate(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMetaAdvised(Relation index, int64 rows);
extern BlockNumber IvfpqMetaPlace(IvfpqMetaData *meta, BlockNumber first);
extern BlockNumber IvfpqModelPages(const IvfpqMetaData *meta);
extern bool IvfpqIsFixedPage(const IvfpqMetaData *meta, BlockNumber blkno);
extern bool IvfpqIsReadable(const IvfpqMetaData *meta);
extern IvfpqMetaData *IvfpqMetaGet(Relation index, Page page);

/* list.c: the directory; reading lists */
typedef struct IvfpqListReader
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqLayout layout;
	BufferAccessStrategy strategy;
	uint32		list;
	IvfpqListEntry entry;		/* as read when the list was opened */
	IvfpqAddress next;			/* block to read next */
	uint32		nleft;			/* copies in it and in all older blocks */
	bool		reread;			/* a second reading is under way */
	BlockNumber cached;			/* page of which `page` has */
	uint32		copied;			/* these slots, a bit each */
	char	   *page;			/* [BLCKSZ] copy of parts of a slab page */
	bool		looks_ahead;	/* IvfpqListOpenAt opened it */
	Buffer		ahead;			/* page that comes next, or invalid */
	const char *ahead_at;		/* what of it is wanted: so much is not */
	const char *ahead_end;		/* asked for yet */
	const IvfpqListEntry *following;	/* list that comes next, or NULL */
	char	   *body;			/* [body_bytes] block gathered from parts */
} IvfpqListReader;

extern void IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
								const IvfpqMetaData *meta,
								BufferAccessStrategy strategy);
extern void IvfpqListOpen(IvfpqListReader *reader, uint32 list);
extern void IvfpqListOpenAt(IvfpqListReader *reader, uint32 list,
							const IvfpqListEntry *entry,
							const IvfpqListEntry *following);
extern bool IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view);
extern void IvfpqListReaderFree(IvfpqListReader *reader);

extern BlockNumber IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list);
extern IvfpqListEntry *IvfpqDirectoryEntry(Page page, uint32 list);
extern void IvfpqListEntryRead(Relation index, const IvfpqMetaData *meta,
							   uint32 list, IvfpqListEntry *entry);
extern void IvfpqListEntriesRead(Relation index, const IvfpqMetaData *meta,
								 const uint64 *lists, int n,
								 IvfpqListEntry *entries);
extern int	IvfpqListsAhead(const IvfpqListReader *reader,
							const uint64 *lists,
							const IvfpqListEntry *entries, int n);

/* append.c: appending to lists */
extern void IvfpqListAppend(Relation index, const IvfpqMetaData *meta,
							uint32 list, const IvfpqCopy *copy,
							const IvfpqPendingPlace *pending);
extern void IvfpqChainAppend(Relation index, const IvfpqLayout *layout,
							 uint32 list, IvfpqListEntry *chain,
							 const IvfpqCopy *copies, int ncopies);

/* slab.c: slots and blocks on slab pages */
extern IvfpqSlotHeader *IvfpqSlotGet(Page page, const IvfpqLayout *layout,
									 uint32 slot);
extern char *IvfpqSlotBody(IvfpqSlotHeader *slot);
extern void IvfpqSlabInit(Page page, const IvfpqLayout *layout);
extern int	IvfpqSlabFreeSlots(Page page, const IvfpqLayout *layout);

/*
 * A block's pages while they are changed: exclusively locked, part by part.
 * Every part is on a page of its own, so nothing is locked twice.
 */
typedef struct IvfpqBlockPages
{
	int			nparts;
	Buffer		buffers[IVFPQ_MAX_PARTS];
	uint32		slots[IVFPQ_MAX_PARTS];
	bool		init[IVFPQ_MAX_PARTS];	/* page must be made a slab first */
} IvfpqBlockPages;

extern void IvfpqBlockAllocate(Relation index, const IvfpqLayout *layout,
							   IvfpqBlockPages *block);
extern void IvfpqBlockLock(Relation index, const IvfpqLayout *layout,
						   IvfpqAddress address, uint32 list, uint32 gen,
						   uint32 ordinal, IvfpqBlockPages *block);
extern void IvfpqBlockRegister(GenericXLogState *state,
							   const IvfpqLayout *layout,
							   const IvfpqBlockPages *block,
							   IvfpqSlotHeader **headers);
extern void IvfpqBlockOccupy(const IvfpqBlockPages *block,
							 IvfpqSlotHeader **headers, uint32 list,
							 uint32 gen, uint32 ordinal, IvfpqAddress prev);
extern IvfpqAddress IvfpqBlockAddress(const IvfpqBlockPages *block);
extern void IvfpqBlockRelease(Relation index, const IvfpqLayout *layout,
							  IvfpqBlockPages *block);

/* rewrite.c: VACUUM's side of lists */
extern bool IvfpqSlabRead(Relation index, BlockNumber blkno,
						  BufferAccessStrategy strategy, char *page);
extern void IvfpqSlabRecordFree(Relation index, const IvfpqLayout *layout,
								BlockNumber blkno, Page page);
extern void IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
						  IvfpqAddress address, uint32 list, uint32 gen,
						  uint32 dead);
extern void IvfpqReclaimSlot(Relation index, const IvfpqLayout *layout,
							 IvfpqAddress address, uint32 list, uint32 gen);
extern bool IvfpqListRewrite(Relation index, const IvfpqMetaData *meta,
							 uint32 list, BufferAccessStrategy strategy);

/*
 * pending.c, pend.c: rows without a list.  A seal cuts the pending
 * list: pages from head up to tail get no more rows, because those that come
 * are appended behind.
 */
typedef struct IvfpqSeal
{
	BlockNumber head;
	uint64		head_seq;
	BlockNumber tail;			/* first page behind the cut */
	uint64		tail_seq;
} IvfpqSeal;

typedef struct IvfpqPendingReader
{
	Relation	index;
	BlockNumber next;			/* page to read next */
	uint64		next_seq;		/* its expected seq */
	bool		restarted;		/* set when TIDs may come twice; yours to clear */
	uint64		restarted_at;	/* head's seq when last restarted; 0 = never */
	uint64		build_id;		/* of the index then */
	IvfpqPendingPlace place;	/* where `tids` come from */
	bool		odd;			/* IVFPQ_PENDING_ODD of that page */
	ItemPointerData *tids;		/* [IVFPQ_PENDING_PER_PAGE] of one page */
} IvfpqPendingReader;

extern void IvfpqPendingOpen(IvfpqPendingReader *reader, Relation index,
							 const IvfpqMetaData *meta);
extern void IvfpqPendingOpenSealed(IvfpqPendingReader *reader, Relation index,
								   const IvfpqSeal *seal);
extern bool IvfpqPendingNext(IvfpqPendingReader *reader, int *count);
extern void IvfpqPendingClose(IvfpqPendingReader *reader);
extern bool IvfpqPendingHas(Relation index, const ItemPointerData *tid);
extern bool IvfpqPendingMayLeave(Relation index, const IvfpqMetaData *meta);
extern int	IvfpqPendingAppend(Relation index, ItemPointer tid, int dims);
extern int	IvfpqPendingSettleDims(Relation index, int dims);
extern bool IvfpqPendingFreeDims(Relation index,
								 const IvfpqPendingPlace *last, int count);
extern int64 IvfpqPendingEstimate(Relation index);
extern IvfpqPendingHeader *IvfpqPendingGet(Page page);
extern ItemPointerData *IvfpqPendingTids(Page page);
extern bool IvfpqPendingIs(Page page, uint64 seq);
extern void IvfpqPendingInit(Page page, uint64 seq, BlockNumber next,
							 uint64 next_seq, const ItemPointerData *tids,
							 int count);
extern void IvfpqPendingAddTail(Relation index, Buffer metabuf,
								Buffer tailbuf, const ItemPointerData *tid,
								uint64 gap);
extern int64 IvfpqPendingTrim(Relation index);
extern int64 IvfpqPendingVacuum(Relation index,
								IndexBulkDeleteCallback callback,
								void *callback_state, int64 *nleft);

/* unpend.c: rows on their way from the pending list to lists */
extern bool IvfpqPendingSeal(Relation index, IvfpqSeal *seal, bool renumber);
extern void IvfpqPendingKeep(Relation index, const IvfpqSeal *seal,
							 const ItemPointerData *tids, int64 ntids,
							 IvfpqMetaData *meta);
extern void IvfpqPendingPublish(Relation index, const IvfpqMetaData *meta);
extern void IvfpqPendingFree(Relation index, const IvfpqSeal *seal);
extern void IvfpqPendingSetOdd(Relation index, const IvfpqPendingPlace *place,
							   int count);
extern Buffer IvfpqPendingTake(Relation index,
							   const IvfpqPendingPlace *place,
							   const ItemPointerData *tid,
							   GenericXLogState *state);

/* compact.c: a pending list without the holes that VACUUM made */
extern bool IvfpqPendingIsSparse(int64 npages, int64 ntids);
extern void IvfpqPendingCompact(Relation index);

/* sweep.c: pages that a crash during training left with nobody */
typedef struct IvfpqSweep
{
	Relation	index;
	bool		trained;
	BlockNumber nblocks;		/* of the index when the sweep began */
	uint8	   *listed;			/* a bit for every page of the pending list */
	uint64		last_seq;		/* of its last page */
} IvfpqSweep;

extern void IvfpqSweepBegin(IvfpqSweep *sweep, Relation index);
extern void IvfpqSweepPage(IvfpqSweep *sweep, BlockNumber blkno,
						   BufferAccessStrategy strategy);
extern void IvfpqSweepEnd(IvfpqSweep *sweep);
extern void IvfpqSweepUntrained(Relation index, BufferAccessStrategy strategy);

/*
 * check.c, checklist.c, checkrecord.c: looking for damage.
 * Damage is reported through a callback, never raised, so that a check goes on
 * behind it; what an insert or VACUUM may be doing at the moment is not damage.
 */
typedef struct IvfpqFound
{
	ItemPointerData tid;
	uint16		place;			/* IvfpqPlace */
	ItemPointerData refine;		/* record of a copy that has one */
} IvfpqFound;

typedef enum IvfpqPlace
{
	IVFPQ_PENDING,
	IVFPQ_FIRST_COPY,
	IVFPQ_SECOND_COPY,
	IVFPQ_NO_RECORD				/* a copy, but its refine record is not its */
} IvfpqPlace;

typedef struct IvfpqChecker
{
	Relation	index;
	Relation	heap;			/* TIDs must lie within it */
	void	   *arg;			/* for the callbacks */

	/* list may be IVFPQ_NO_LIST, not error is a warning */
	void		(*report) (void *arg, bool error, BlockNumber blkno,
						   uint32 list, const char *problem);
	/* entries that are not dead */
	void		(*take) (void *arg, const IvfpqFound *found, int64 nfound);
	/* forget what was taken: it comes again */
	void		(*forget) (void *arg);
	/* rows of a refine page's slots, pages ascending, after all copies */
	void		(*records) (void *arg, BlockNumber blkno,
							const ItemPointerData *tids, int n);

	IvfpqMetaData meta;
	IvfpqLayout layout;
	BlockNumber nblocks;		/* of the index when the check began */
	BlockNumber heap_blocks;	/* at least */
	BufferAccessStrategy strategy;
	char	   *page;			/* [BLCKSZ] copy of a page */
	BlockNumber cached;			/* that page, while a chain is followed */
	char	   *body;			/* [body_bytes] block gathered from parts */
	uint8	   *reached;		/* a bit for every slot that a chain reaches */
	struct IvfpqLeftover *leftovers;	/* slots and pages not reached */
	int64		nleftovers;
	int64		max_leftovers;
	char		message[256];	/* why a page cannot be read */
} IvfpqChecker;

extern bool IvfpqCheckMeta(IvfpqChecker *checker, int metric);
extern void IvfpqCheckModel(IvfpqChecker *checker);
extern void IvfpqCheckSlabs(IvfpqChecker *checker);
extern bool IvfpqCheckCopyPage(IvfpqChecker *checker, BlockNumber blkno);
extern void IvfpqCheckReached(IvfpqChecker *checker, BlockNumber blkno,
							  uint32 slot);
extern bool IvfpqCheckTid(IvfpqChecker *checker, const ItemPointerData *tid);

extern bool IvfpqCheckList(IvfpqChecker *checker, uint32 list, bool silent);
extern void IvfpqCheckPending(IvfpqChecker *checker, bool silent);
extern bool IvfpqCheckEntry(IvfpqChecker *checker, uint32 list,
							IvfpqListEntry *entry);
extern bool IvfpqCheckAddress(IvfpqChecker *checker,
							  const ItemPointerData *address);
extern void IvfpqCheckRefinePage(IvfpqChecker *checker, BlockNumber blkno);
extern void IvfpqCheckRefineChain(IvfpqChecker *checker);

/*
 * writer.c: writing lists and the directory.  Pages are filled in memory
 * and put to blocks reserved for them.
 */
typedef struct IvfpqWriter
{
	Relation	index;
	bool		shared;			/* others use the index meanwhile */
	IvfpqLayout layout;
	struct
	{
		BlockNumber next;		/* page to be filled next */
		BlockNumber end;		/* page behind the last */
	}			reserved[2];	/* pages to fill, and those after them */
	BlockNumber nleft;			/* pages that will be reserved later */
	BlockNumber slab_blkno;		/* where `slab` belongs; invalid = no page */
	char	   *slab;			/* [BLCKSZ] page of slots being filled */
	uint32		slot;			/* next free slot of it */
	char	   *body;			/* [nparts][part_bytes] */
	uint32		second;			/* bit i: copy i is its row's second */
} IvfpqWriter;

extern void IvfpqWriterInit(IvfpqWriter *writer, Relation index,
							const IvfpqMetaData *meta, const uint32 *counts,
							int nlists, bool shared);
extern void IvfpqWriterList(IvfpqWriter *writer, uint32 list, uint32 nitems,
							void (*next) (void *arg, IvfpqCopy *copy),
							void *arg, IvfpqListEntry *entry);
extern void IvfpqWriterFinish(IvfpqWriter *writer);
extern void IvfpqDirectoryWrite(Relation index, const IvfpqMetaData *meta,
								const IvfpqListEntry *entries, bool shared);
extern void IvfpqLogBuild(Relation index, BlockNumber first,
						  BlockNumber end);

#endif							/* IVFPQ_PAGE_H */
