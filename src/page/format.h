/*
 * format.h
 *		What stands on the pages of gpuivfpq: ../README draws each of them.
 */
#ifndef IVFPQ_FORMAT_H
#define IVFPQ_FORMAT_H

#include "storage/block.h"
#include "storage/bufpage.h"
#include "storage/itemptr.h"

#define IVFPQ_MAGIC			0x67764958	/* "gvIX" */
#define IVFPQ_VERSION		7	/* the one that is written and read */
#define IVFPQ_METAPAGE		0
#define IVFPQ_PAGE_ID		0xFF91	/* last 2 bytes of every page */

#define IVFPQ_MAX_DIMS		16000
#define IVFPQ_MAX_LISTS		(1 << 24)
#define IVFPQ_MAX_ROTATED	2000	/* dims of an index with a rotation */
#define IVFPQ_BLOCK_POSTINGS	32	/* postings in a block */
#define IVFPQ_MAX_PARTS		2	/* pages a block may take */
#define IVFPQ_NO_LIST		((uint32) 0xFFFFFFFF)	/* owner of a free slot */

/* The kind of a page's contents. */
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

/* The refine records, by which rows are bounded before they are fetched. */
typedef enum IvfpqRefine
{
	IVFPQ_REFINE_NONE,
	IVFPQ_REFINE_SQ8,			/* 8 bits a dimension */
	IVFPQ_REFINE_HALF			/* half precision */
} IvfpqRefine;

/*
 * Columns of an index behind the vector, and how abbreviated keys stand for
 * their values.
 */
#define IVFPQ_MAX_KEYS		7

typedef enum IvfpqKeyKind
{
	IVFPQ_KEY_ORDERED = 1,		/* abbreviated keys ascend as values do */
	IVFPQ_KEY_HASH,				/* equal or not */
	IVFPQ_KEY_SIGNATURE			/* a set of bits */
} IvfpqKeyKind;

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
#define IVFPQ_PENDING_MISMATCHED	1

/* Bytes between page header and special space. */
#define IVFPQ_PAGE_BYTES \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(IvfpqSpecialData)))

/*
 * Recalls for which the search parameters are known, and depths: the numbers
 * of nearest rows for which they are.
 */
#define IVFPQ_TARGETS		7
#define IVFPQ_TARGET_RECALLS {0.80, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999}
#define IVFPQ_DEPTHS		6
#define IVFPQ_DEPTH_ROWS	{10, 100, 300, 1000, 3000, 10000}

/* The search parameters that reach a recall; 0 = not known. */
typedef struct IvfpqTarget
{
	int32		probes;
	int32		candidates;
} IvfpqTarget;

/* Which queries calibration's targets are for. */
typedef enum IvfpqCalibratedFor
{
	IVFPQ_FOR_ROWS,				/* calibration queries */
	IVFPQ_FOR_QUERIES			/* queries from the query log */
} IvfpqCalibratedFor;

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
	int32		lists_per_row;	/* lists that hold a row: 1 or 2 */
	float4		scale;			/* of the engine's transform */
	BlockNumber mean;			/* first page: [dims] floats */
	BlockNumber codebooks;		/* first page: [16 * dims] floats */
	BlockNumber parents;		/* first page: [nparents][dims] floats */
	BlockNumber parent_offsets; /* first page: [nparents + 1] int32, the first
								 * list of each parent */
	BlockNumber centroids;		/* first page: [nlists][dims] floats, by
								 * parent */
	BlockNumber codes;			/* first page: blocks of the centroids' codes,
								 * see array.h */
	BlockNumber directory;		/* first page: [nlists] IvfpqDirEntry */
	int32		dims_flags;		/* IVFPQ_DIMS_... */

	int64		rows_at_training;
	int64		rows_at_calibration;	/* 0 = not calibrated */
	char		unused[80];		/* 0 */
	float4		coarse_fraction;	/* of the lists that a search compares; 1
									 * = all, flat; 0 = not calibrated */
	int32		calibration_queries;
	int64		rows_at_advice; /* when it was last told, in the log, that the
								 * index has outgrown its training; 0 = never */
	BlockNumber pending_head;	/* InvalidBlockNumber when there is none */
	BlockNumber pending_tail;
	uint64		pending_head_seq;	/* IvfpqPendingHeader.seq of the head */

	int32		refine;			/* IvfpqRefine */
	BlockNumber refine_head;	/* refine page with free slots */

	int32		calibrated_depths;	/* the first depths, which were measured */
	int32		calibrated_for; /* IvfpqCalibratedFor */
	IvfpqTarget targets[IVFPQ_DEPTHS][IVFPQ_TARGETS];

	/* 0 where there are no keys */
	uint8		key_kinds[8];	/* [IVFPQ_MAX_KEYS] IvfpqKeyKind; 0 = no more */
	uint8		key_widths[8];	/* bytes of an abbreviated key: 1, 2, 4 or 8 */

	int32		rotated;		/* 1: vectors are rotated */
	BlockNumber rotation;		/* first page: [dims][dims] floats */
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
typedef struct IvfpqDirEntry
{
	uint32		gen;			/* bumped when a list is rewritten or emptied */
	uint32		nitems;			/* postings appended, dead ones included */
	uint32		ndead;
	uint32		nfirst;			/* live primary postings */
	uint32		del_seq;		/* bumped when postings are marked dead */
	IvfpqAddress head;			/* newest block */
} IvfpqDirEntry;

#define IVFPQ_ENTRIES_PER_PAGE \
	((int) (IVFPQ_PAGE_BYTES / sizeof(IvfpqDirEntry)))

/*
 * Every slot of a slab page starts with this.  A block is one slot or, when
 * its body is longer than a page, two parts, each alone on its page.  The
 * body, cut into parts of equal size:
 *		tids	ItemPointerData [32]
 *		t		float4 [32]
 *		refine	ItemPointerData [32], if the index has refine records
 *		keys	IvfpqKeyHead [nkeys], then for each key its abbreviated keys
 *				[32], if the index has keys
 *		codes	uint8 [code_bytes][32]
 */
typedef struct IvfpqSlotHeader
{
	uint32		list;			/* IVFPQ_NO_LIST = free */
	uint32		gen;
	uint32		ordinal;		/* of the block in its list, 0 = oldest */
	uint32		dead;			/* bit i: posting i is dead (part 0) */
	uint32		secondary;		/* bit i: posting i is secondary (part 0) */
	BlockNumber prev_page;		/* next older block (part 0) */
	uint16		prev_slot;
	uint16		part;			/* 0 .. nparts - 1 */
	BlockNumber next_part;		/* page of the next part, if there is one */
} IvfpqSlotHeader;

/*
 * Sums up the abbreviated keys of a block's postings, dead ones included: of
 * those that are not NULL the least and the greatest; of hashes, in `low`, a
 * bit for each: number (hash % 64); of signatures, in `low`, all their bits.
 * It grows until the block is rewritten.  Without such a posting `low` is
 * above `high`, or 0.
 */
typedef struct IvfpqKeyHead
{
	uint64		low;
	uint64		high;			/* 0 but for ordered keys */
	uint32		nulls;			/* bit i: posting i's key is NULL, abbreviated
								 * to 0 */
	uint32		unused;			/* 0 */
} IvfpqKeyHead;

/*
 * Refine page: a header, then equal slots, one for each row.  Pages with free
 * slots are chained from the metapage; a page that has become full stays in
 * the chain until it is its head and an inserter finds it so.  In a trained
 * index a refine page never becomes a page of another kind, so a posting's
 * address always leads to a slot.
 */
typedef struct IvfpqRecordHeader
{
	BlockNumber next;			/* in the chain; InvalidBlockNumber = end */
	uint16		chained;		/* 1: the page is in the chain */
	uint16		nused;			/* slots that are not free */
} IvfpqRecordHeader;

/*
 * A slot: a row's vector in 8 bits a dimension (GvRefine), or in half
 * precision (GvHalfRecord), with min and step 0.  Its address, as postings
 * have it, is an ItemPointerData of block and slot + 1.
 */
typedef struct IvfpqRecord
{
	float4		min;
	float4		step;
	float4		error;
	ItemPointerData tid;		/* the row; offset 0 = the slot is free */
	uint8		codes[FLEXIBLE_ARRAY_MEMBER];	/* [dims], or uint16 [dims] */
} IvfpqRecord;

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
StaticAssertDecl(sizeof(IvfpqMetaData) == 576, "metapage contents are 576 bytes");
StaticAssertDecl(sizeof(IvfpqDirEntry) == 28, "directory entry is 28 bytes");
StaticAssertDecl(sizeof(IvfpqSlotHeader) == 32, "slot header is 32 bytes");
StaticAssertDecl(sizeof(IvfpqKeyHead) == 24, "a key's head is 24 bytes");
StaticAssertDecl(sizeof(IvfpqRecordHeader) == 8, "refine header is 8 bytes");
StaticAssertDecl(offsetof(IvfpqRecord, codes) == 18,
				 "a refine record's codes follow its TID");
StaticAssertDecl(sizeof(IvfpqPendingHeader) == 24, "pending header is 24 bytes");
StaticAssertDecl(sizeof(ItemPointerData) == 6, "a TID is three 16-bit words");

#endif							/* IVFPQ_FORMAT_H */
