/*
 * format.h
 *		The on-disk format of gpuivfpq: the contents of each kind of page.
 *
 * README, "Format", draws the pages and gives the reasons.  A change of what
 * stands here is a new IVFPQ_VERSION.
 */
#ifndef IVFPQ_FORMAT_H
#define IVFPQ_FORMAT_H

#include "storage/block.h"
#include "storage/bufpage.h"
#include "storage/itemptr.h"

#define IVFPQ_MAGIC			0x67764958	/* "gvIX" */
#define IVFPQ_VERSION		7	/* the only one that is written and read */
#define IVFPQ_METAPAGE		0
#define IVFPQ_PAGE_ID		0xFF91	/* last 2 bytes of every page */

#define IVFPQ_MAX_DIMS		16000
#define IVFPQ_MAX_LISTS		(1 << 24)
#define IVFPQ_MAX_ROTATED	2000	/* dims, in an index with a rotation */
#define IVFPQ_BLOCK_POSTINGS	32	/* postings in a block */
#define IVFPQ_MAX_PARTS		2	/* pages that a block may take */
#define IVFPQ_NO_LIST		((uint32) 0xFFFFFFFF)	/* owner of a free slot */

typedef enum IvfpqPageKind
{
	IVFPQ_KIND_META = 1,
	IVFPQ_KIND_ARRAY,			/* slice of an immutable array of floats */
	IVFPQ_KIND_DIRECTORY,
	IVFPQ_KIND_SLAB,			/* small-list page */
	IVFPQ_KIND_PENDING,
	IVFPQ_KIND_FREE,			/* may become a page of any kind */
	IVFPQ_KIND_REFINE
} IvfpqPageKind;

/* Special space of every page. */
typedef struct IvfpqSpecialData
{
	uint16		kind;			/* IvfpqPageKind */
	uint16		flags;			/* IVFPQ_PENDING_... or 0 */
	uint16		unused;			/* 0 */
	uint16		page_id;		/* IVFPQ_PAGE_ID */
} IvfpqSpecialData;

typedef IvfpqSpecialData *IvfpqSpecial;

#define IvfpqPageSpecial(page)	((IvfpqSpecial) PageGetSpecialPointer(page))

/*
 * Flag of a pending page: flushing has seen all of its rows, and no list can
 * take any of them.
 */
#define IVFPQ_PENDING_MISMATCHED	1

/* Bytes between page header and special space. */
#define IVFPQ_PAGE_BYTES \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(IvfpqSpecialData)))

/*
 * Recall targets, and depths (numbers of nearest rows), for which the metapage
 * has calibrated search parameters.
 */
#define IVFPQ_TARGETS		7
#define IVFPQ_TARGET_RECALLS {0.80, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999}
#define IVFPQ_DEPTHS		6
#define IVFPQ_DEPTH_ROWS	{10, 100, 300, 1000, 3000, 10000}

/* Search parameters that reach a target; 0 = not known. */
typedef struct IvfpqTarget
{
	int32		probes;
	int32		candidates;
} IvfpqTarget;

/* The queries that an index was calibrated with. */
typedef enum IvfpqCalibratedFor
{
	IVFPQ_FOR_ROWS,				/* calibration queries */
	IVFPQ_FOR_QUERIES			/* queries from the query log */
} IvfpqCalibratedFor;

/* Refine records, which bound a row's distance before it is fetched. */
typedef enum IvfpqRefine
{
	IVFPQ_REFINE_NONE,
	IVFPQ_REFINE_SQ8,			/* 8 bits a dimension */
	IVFPQ_REFINE_HALF			/* half precision */
} IvfpqRefine;

/* Keys: the columns of an index behind the vector. */
#define IVFPQ_MAX_KEYS		7

/* The form in which a key's abbreviated keys stand for its values. */
typedef enum IvfpqKeyKind
{
	IVFPQ_KEY_ORDERED = 1,		/* abbreviated keys ascend as values do */
	IVFPQ_KEY_HASH,				/* tells only whether values are equal */
	IVFPQ_KEY_SIGNATURE			/* a set of bits */
} IvfpqKeyKind;

/*
 * Flags of dims.  BY_ROW: the first row decided on dims, and once no row is
 * left the next one does.  CHECKED: each pending row was compared with dims
 * when it was appended, so none has other dimensions.
 */
#define IVFPQ_DIMS_BY_ROW	1
#define IVFPQ_DIMS_CHECKED	2

/*
 * Metapage.  nlists = 0 means untrained: all rows are pending.  Once the index
 * is trained only the results of calibration, rows_at_advice, the ends of the
 * pending list and refine_head change.
 */
typedef struct IvfpqMetaData
{
	uint32		magic;
	uint16		version;
	uint8		metric;			/* GvMetric */
	uint8		code_bits;		/* 4 */
	uint64		build_id;		/* random for each build and training; 0 =
								 * made by ambuildempty, and never mirrored */
	int32		dims;			/* 0 = not known */
	int32		pq_dim;			/* sub-quantizers */
	int32		nlists;			/* 0 = untrained */
	int32		nparents;
	int32		lists_per_row;	/* lists that hold a row: 1 or 2 */
	float4		scale;			/* of gv_transform */
	BlockNumber mean;			/* first page: [dims] floats */
	BlockNumber codebooks;		/* first page: [16 * dims] floats */
	BlockNumber parents;		/* first page: [nparents][dims] floats */
	BlockNumber parent_offsets; /* first page: [nparents + 1] int32, the first
								 * list of each parent */
	BlockNumber centroids;		/* first page: [nlists][dims] floats, by
								 * parent */
	BlockNumber codes;			/* first page: blocks of the centroids' codes
								 * (array.h) */
	BlockNumber directory;		/* first page: [nlists] IvfpqDirEntry */
	int32		dims_flags;		/* IVFPQ_DIMS_... */

	int64		rows_at_training;
	int64		rows_at_calibration;	/* 0 = not calibrated */
	char		unused[80];		/* 0 */
	float4		coarse_fraction;	/* of the lists that a search compares; 1
									 * = all, flat; 0 = not calibrated */
	int32		calibration_queries;
	int64		rows_at_advice; /* when the log last said that the index has
								 * outgrown its training; 0 = never */
	BlockNumber pending_head;	/* InvalidBlockNumber = no pending page */
	BlockNumber pending_tail;
	uint64		pending_head_seq;	/* IvfpqPendingHeader.seq of the head */

	int32		refine;			/* IvfpqRefine */
	BlockNumber refine_head;	/* first refine page with free slots */

	int32		calibrated_depths;	/* number of depths measured, from the
									 * first on */
	int32		calibrated_for; /* IvfpqCalibratedFor */
	IvfpqTarget targets[IVFPQ_DEPTHS][IVFPQ_TARGETS];

	/* 0 behind the last key */
	uint8		key_kinds[8];	/* [IVFPQ_MAX_KEYS] IvfpqKeyKind */
	uint8		key_widths[8];	/* bytes of an abbreviated key: 1, 2, 4 or 8 */

	int32		rotated;		/* 1: vectors are rotated */
	BlockNumber rotation;		/* first page: [dims][dims] floats */
} IvfpqMetaData;

/* Where a block starts: the slot of its part 0. */
typedef struct IvfpqAddress
{
	BlockNumber page;			/* InvalidBlockNumber = none */
	uint32		slot;
} IvfpqAddress;

/*
 * Directory page: an array of entries, one a list.  Within a gen postings are
 * only appended: positions 0 .. nitems - 1 never change their meaning.  The
 * newest block holds the last of them.
 */
typedef struct IvfpqDirEntry
{
	uint32		gen;			/* incremented when the list is rewritten or
								 * emptied */
	uint32		nitems;			/* postings appended, dead ones included */
	uint32		ndead;
	uint32		nfirst;			/* live primary postings */
	uint32		del_seq;		/* incremented when postings are marked dead */
	IvfpqAddress head;			/* newest block */
} IvfpqDirEntry;

#define IVFPQ_ENTRIES_PER_PAGE \
	((int) (IVFPQ_PAGE_BYTES / sizeof(IvfpqDirEntry)))

/*
 * Small-list page: equal slots, each with this header and a part of a block's
 * body.  A block is one slot or, if its body is longer than a page, two parts,
 * each alone on its page.  The body, which is cut into parts of equal size:
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
	uint32		dead;			/* bit i: posting i is dead (in part 0) */
	uint32		secondary;		/* bit i: posting i is secondary (in part 0) */
	BlockNumber prev_page;		/* next older block (in part 0) */
	uint16		prev_slot;
	uint16		part;			/* 0 .. nparts - 1 */
	BlockNumber next_part;		/* page of the next part, or
								 * InvalidBlockNumber */
} IvfpqSlotHeader;

/*
 * Head of a key: the summary of the abbreviated keys of a block's postings,
 * dead ones included, that are not NULL.  Ordered keys: the least and the
 * greatest.  Hashes: in `low`, a set of hash % 64.  Signatures: in `low`, the
 * OR of all.  A head only grows until the block is rewritten.  If all postings
 * are NULL, `low` is above `high` (ordered keys) or 0.
 */
typedef struct IvfpqKeyHead
{
	uint64		low;
	uint64		high;			/* ordered keys only, else 0 */
	uint32		nulls;			/* bit i: posting i's key is NULL, abbreviated
								 * to 0 */
	uint32		unused;			/* 0 */
} IvfpqKeyHead;

/*
 * Refine page: this header, then equal slots, one a row.  Pages with free
 * slots are chained from the metapage.  A page that has become full stays in
 * the chain until an inserter finds it full at the head.  In a trained index a
 * refine page never becomes a page of another kind, so a posting's address
 * always leads to a slot.
 */
typedef struct IvfpqRecordHeader
{
	BlockNumber next;			/* in the chain, or InvalidBlockNumber */
	uint16		chained;		/* 1: the page is in the chain */
	uint16		nused;			/* slots that are not free */
} IvfpqRecordHeader;

/*
 * Slot of a refine page: a row's vector in 8 bits a dimension (GvRefine), or
 * in half precision (GvHalfRecord) with min and step 0.  Postings address it
 * by an ItemPointerData of block and slot + 1.
 */
typedef struct IvfpqRecord
{
	float4		min;
	float4		step;
	float4		error;
	ItemPointerData tid;		/* the row; offset 0 = the slot is free */
	uint8		codes[FLEXIBLE_ARRAY_MEMBER];	/* [dims], or uint16 [dims] */
} IvfpqRecord;

/*
 * Pending page: this header, then TIDs.  Pages are chained from the oldest to
 * the newest.
 */
typedef struct IvfpqPendingHeader
{
	uint64		seq;			/* ascends along the chain */
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
