/*
 * format.h
 *		The on-disk format of gpuivfpq: the contents of each kind of page.
 *
 * README, "Format", draws the pages and gives the reasons.  A change of the
 * format defined here requires a new IVFPQ_VERSION.
 */
#ifndef IVFPQ_FORMAT_H
#define IVFPQ_FORMAT_H

#include "storage/block.h"
#include "storage/bufpage.h"
#include "storage/itemptr.h"

#define IVFPQ_MAGIC			0x67764958	/* "gvIX" */
#define IVFPQ_VERSION		7	/* the only version that we write and read */
#define IVFPQ_METAPAGE		0
#define IVFPQ_PAGE_ID		0xFF91	/* last 2 bytes of every page */

#define IVFPQ_MAX_DIMS		16000
#define IVFPQ_MAX_LISTS		(1 << 24)
#define IVFPQ_MAX_ROTATED	2000	/* maximum dims if vectors are rotated */
#define IVFPQ_BLOCK_POSTINGS	32	/* postings in a block */
#define IVFPQ_MAX_PARTS		2	/* parts of a block, each on its own page */
#define IVFPQ_NO_LIST		((uint32) 0xFFFFFFFF)	/* marks a free slot */

typedef enum IvfpqPageKind
{
	IVFPQ_KIND_META = 1,
	IVFPQ_KIND_ARRAY,			/* part of an immutable array of floats */
	IVFPQ_KIND_DIRECTORY,
	IVFPQ_KIND_SLAB,			/* small-list page */
	IVFPQ_KIND_PENDING,
	IVFPQ_KIND_FREE,			/* may become a page of any kind */
	IVFPQ_KIND_REFINE
} IvfpqPageKind;

/* Special space at the end of every page. */
typedef struct IvfpqSpecialData
{
	uint16		kind;			/* IvfpqPageKind */
	uint16		flags;			/* IVFPQ_PENDING_MISMATCHED,
								 * IVFPQ_DIRECTORY_FROZEN, IVFPQ_FREE_TAKEN or
								 * 0 */
	uint16		training;		/* number of the training that wrote the page,
								 * if it is an array, directory, small-list or
								 * refine page; else 0 */
	uint16		page_id;		/* always IVFPQ_PAGE_ID */
} IvfpqSpecialData;

typedef IvfpqSpecialData *IvfpqSpecial;

#define IvfpqPageSpecial(page)	((IvfpqSpecial) PageGetSpecialPointer(page))

/*
 * Flag of a pending page.  Flushing has seen all rows of the page, and no list
 * can take any of them, because they are mismatched.
 */
#define IVFPQ_PENDING_MISMATCHED	1

/*
 * Flag of a directory page.  The page's lists take no more postings, because a
 * new training is about to replace them.
 */
#define IVFPQ_DIRECTORY_FROZEN		2

/* Flag of a free page.  A training has taken it, and is about to fill it. */
#define IVFPQ_FREE_TAKEN			4

/* Number of bytes between page header and special space. */
#define IVFPQ_PAGE_BYTES \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(IvfpqSpecialData)))

/*
 * Recall targets and depths.  The metapage has calibrated search parameters
 * for each recall target at each depth.  A depth is the number of nearest rows
 * for which the recall holds.
 */
#define IVFPQ_TARGETS		7
#define IVFPQ_TARGET_RECALLS {0.80, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999}
#define IVFPQ_DEPTHS		6
#define IVFPQ_DEPTH_ROWS	{10, 100, 300, 1000, 3000, 10000}

/* Search parameters that reach a recall target; 0 = not known. */
typedef struct IvfpqTarget
{
	int32		probes;
	int32		candidates;
} IvfpqTarget;

/*
 * The recall that searches of the query log's queries had for a target, with
 * its 95 % interval.  `target` is the recall target for which it was lowest.
 */
typedef struct IvfpqFoundRecall
{
	int64		at;				/* TimestampTz; 0 = never measured */
	float4		target;
	float4		recall;
	float4		low;
	float4		high;
	int32		nqueries;
	int32		depth;			/* nearest rows of each query */
} IvfpqFoundRecall;

/* The kind of queries with which an index was calibrated. */
typedef enum IvfpqCalibratedFor
{
	IVFPQ_FOR_ROWS,				/* calibration queries */
	IVFPQ_FOR_QUERIES			/* queries from the query log */
} IvfpqCalibratedFor;

/* Kind of refine records, which bound distances before rows are fetched. */
typedef enum IvfpqRefine
{
	IVFPQ_REFINE_NONE,
	IVFPQ_REFINE_SQ8,			/* 8 bits for each dimension */
	IVFPQ_REFINE_HALF			/* half precision */
} IvfpqRefine;

/* Maximum number of keys.  Keys are the index's columns after the vector. */
#define IVFPQ_MAX_KEYS		7

/* How the abbreviated keys of a key represent the key's values. */
typedef enum IvfpqKeyKind
{
	IVFPQ_KEY_ORDERED = 1,		/* abbreviated keys sort like the values */
	IVFPQ_KEY_HASH,				/* hashes: of use only for tests of equality */
	IVFPQ_KEY_SIGNATURE			/* sets of bits */
} IvfpqKeyKind;

/*
 * Values of dims_flags.  BY_ROW: the first row determined dims, and when no
 * row is left, the next row determines dims anew.  CHECKED: each pending row
 * was compared with dims when it was appended, so no pending row has other
 * dimensions.
 */
#define IVFPQ_DIMS_BY_ROW	1
#define IVFPQ_DIMS_CHECKED	2

/*
 * Contents of the metapage.  If nlists is 0, the index is untrained and all
 * its rows are pending.  In a trained index only the results of calibration,
 * `measured`, the ends of the pending list, refine_head and retired_xid change,
 * unless a new training replaces everything.
 */
typedef struct IvfpqMetaData
{
	uint32		magic;
	uint16		version;
	uint8		metric;			/* GvMetric */
	uint8		code_bits;		/* bits of a code for each sub-quantizer: 4 */
	uint64		build_id;		/* random number of the build or training; 0
								 * (ambuildempty) = never mirrored */
	int32		dims;			/* dimensions of vectors; 0 = not known */
	int32		pq_dim;			/* number of sub-quantizers */
	int32		nlists;			/* number of lists; 0 = untrained */
	int32		nparents;
	int32		lists_per_row;	/* number of lists each row is in: 1 or 2 */
	float4		scale;			/* factor by which gv_transform multiplies */
	BlockNumber mean;			/* first page of [dims] floats */
	BlockNumber codebooks;		/* first page of [16 * dims] floats */
	BlockNumber parents;		/* first page of [nparents][dims] floats */
	BlockNumber parent_offsets; /* first page of [nparents + 1] int32: the
								 * first list of each parent */
	BlockNumber centroids;		/* first page of [nlists][dims] floats,
								 * grouped by parent */
	BlockNumber codes;			/* first page of centroids' codes (array.h) */
	BlockNumber directory;		/* first page of [nlists] IvfpqDirEntry */
	int32		dims_flags;		/* IVFPQ_DIMS_... */

	int64		rows_at_training;
	int64		rows_at_calibration;	/* 0 = not calibrated */
	IvfpqFoundRecall measured;
	int32		codes_unused;	/* 1 if the centroids' codes miss so many
								 * lists that searches do not use them, else 0 */
	char		unused[40];		/* always 0 */
	uint32		training;		/* number of this training: 0 for the first,
								 * ascends modulo 65536 */
	float4		coarse_fraction;	/* fraction of lists compared with a
									 * query; 1 = all, without regard to
									 * parents; 0 = not calibrated */
	int32		calibration_queries;
	uint64		retired_xid;	/* full XID; pages of earlier trainings may be
								 * freed when no snapshot is as old; 0 = there
								 * are no pages of other trainings */
	BlockNumber pending_head;	/* first pending page, or InvalidBlockNumber */
	BlockNumber pending_tail;
	uint64		pending_head_seq;	/* seq of the first pending page */

	int32		refine;			/* IvfpqRefine */
	BlockNumber refine_head;	/* head of the chain of refine pages */

	int32		calibrated_depths;	/* number of calibrated depths, counted
									 * from the smallest */
	int32		calibrated_for; /* IvfpqCalibratedFor */
	IvfpqTarget targets[IVFPQ_DEPTHS][IVFPQ_TARGETS];

	/* arrays indexed by key; 0 after the last key */
	uint8		key_kinds[8];	/* [IVFPQ_MAX_KEYS] IvfpqKeyKind */
	uint8		key_widths[8];	/* bytes of an abbreviated key: 1, 2, 4 or 8 */

	int32		rotated;		/* 1 if vectors are rotated, else 0 */
	BlockNumber rotation;		/* first page of [dims][dims] floats */
} IvfpqMetaData;

/* Address of a block: the slot that holds part 0 of the block. */
typedef struct IvfpqAddress
{
	BlockNumber page;			/* InvalidBlockNumber = no block */
	uint32		slot;
} IvfpqAddress;

/*
 * Entry of a list in the directory.  A directory page is an array of entries,
 * one for each list.  As long as gen is unchanged, postings are only appended
 * to the list, so each position from 0 to nitems - 1 keeps its posting.  The
 * newest block holds the postings at the last positions.
 */
typedef struct IvfpqDirEntry
{
	uint32		gen;			/* incremented when the list is rewritten or
								 * emptied */
	uint32		nitems;			/* postings of this gen, dead ones included */
	uint32		ndead;
	uint32		nfirst;			/* live primary postings */
	uint32		del_seq;		/* incremented when postings are marked dead */
	IvfpqAddress head;			/* address of the newest block */
} IvfpqDirEntry;

#define IVFPQ_ENTRIES_PER_PAGE \
	((int) (IVFPQ_PAGE_BYTES / sizeof(IvfpqDirEntry)))

/*
 * Header of a slot.  A small-list page is an array of slots of equal size,
 * each with this header and a part of a block's body.  A block takes one slot.
 * If its body is longer than a page, the block has two parts, each in a slot
 * that is alone on its page.  `dead`, `secondary`, `prev_page` and `prev_slot`
 * are used only in part 0.  The body is divided into parts of equal size.  It
 * contains:
 *		tids	ItemPointerData [32]
 *		t		float4 [32]
 *		refine	ItemPointerData [32], if the index has refine records
 *		keys	IvfpqKeyHead [nkeys], then for each key its abbreviated keys
 *				[32], if the index has keys
 *		codes	uint8 [code_bytes][32]
 */
typedef struct IvfpqSlotHeader
{
	uint32		list;			/* IVFPQ_NO_LIST = the slot is free */
	uint32		gen;
	uint32		ordinal;		/* number in the list; 0 = the oldest block */
	uint32		dead;			/* bit i: posting i is dead */
	uint32		secondary;		/* bit i: posting i is secondary */
	BlockNumber prev_page;		/* page of the next older block */
	uint16		prev_slot;
	uint16		part;			/* number of the part, 0 .. nparts - 1 */
	BlockNumber next_part;		/* page of next part, or InvalidBlockNumber */
} IvfpqSlotHeader;

/*
 * Head of a key: a summary of the abbreviated keys that a block's postings
 * have for this key.  Dead postings are included; postings whose key is NULL
 * are not.  For ordered keys, `low` and `high` are the least and the greatest
 * abbreviated key.  For hashes, bit (hash % 64) of `low` is set for each hash.
 * For signatures, `low` is the OR of all signatures.  Until the block is
 * rewritten, a head is only widened.  If the key is NULL in all postings,
 * `low` is greater than `high` (ordered keys) or 0 (hashes and signatures).
 */
typedef struct IvfpqKeyHead
{
	uint64		low;
	uint64		high;			/* for ordered keys only, else 0 */
	uint32		nulls;			/* bit i: posting i's key is NULL, and its
								 * abbreviated key is 0 */
	uint32		unused;			/* always 0 */
} IvfpqKeyHead;

/*
 * Header of a refine page, which is followed by slots of equal size, one for
 * each row.  Pages with free slots form a chain, whose head the metapage
 * names.  A full page stays in the chain until an inserter finds it at the
 * head.  In a trained index a refine page never becomes a page of another
 * kind, so the address in a posting always points to a slot.
 */
typedef struct IvfpqRecordHeader
{
	BlockNumber next;			/* next in the chain, or InvalidBlockNumber */
	uint16		chained;		/* 1: the page is in the chain */
	uint16		nused;			/* number of slots in use */
} IvfpqRecordHeader;

/*
 * Slot of a refine page.  It holds a row's vector in 8 bits a dimension
 * (GvRefine) or in half precision (GvHalfRecord, with min and step 0).
 * Postings hold the address of the slot: an ItemPointerData of the block
 * number and slot + 1.
 */
typedef struct IvfpqRecord
{
	float4		min;
	float4		step;
	float4		error;
	ItemPointerData tid;		/* TID of the row; offset 0 = free slot */
	uint8		codes[FLEXIBLE_ARRAY_MEMBER];	/* [dims], or uint16 [dims] in
												 * half precision */
} IvfpqRecord;

/*
 * Header of a pending page, which is followed by TIDs.  The pages form a chain
 * from the oldest to the newest.
 */
typedef struct IvfpqPendingHeader
{
	uint64		seq;			/* sequence number; ascends along the chain */
	uint64		next_seq;		/* seq of the next page */
	BlockNumber next;			/* next page; InvalidBlockNumber at the tail */
	uint32		count;			/* number of TIDs on the page */
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
