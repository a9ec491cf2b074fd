/*
 * layout.h
 *		Where the bytes of blocks and of refine records lie on pages.
 *
 * The functions declared here only compute and copy bytes.  They pin and lock
 * no buffer, and raise no error.  The caller has locked the pages that it
 * passes, as the operation requires.
 */
#ifndef IVFPQ_LAYOUT_H
#define IVFPQ_LAYOUT_H

#include "page/delta.h"
#include "page/format.h"

/* The keys of an index. */
typedef struct IvfpqKeyForm
{
	int			nkeys;
	uint8		kind[IVFPQ_MAX_KEYS];	/* IvfpqKeyKind */
	uint8		width[IVFPQ_MAX_KEYS];	/* bytes of each abbreviated key */
} IvfpqKeyForm;

/* The abbreviated keys of one posting. */
typedef struct IvfpqKeyAbbrevs
{
	uint64		abbrev[IVFPQ_MAX_KEYS]; /* 0 if the key is NULL */
	uint32		nulls;			/* bit k: key k is NULL */
} IvfpqKeyAbbrevs;

/* An abbreviated key as it is stored. */
typedef union IvfpqKeyBytes
{
	uint8		one;
	uint16		two;
	uint32		four;
	uint64		eight;
} IvfpqKeyBytes;

/* How blocks lie on pages, which follows from pq_dim, refine and keys. */
typedef struct IvfpqLayout
{
	uint32		training;		/* number of the training (metapage) */
	bool		refine;			/* postings have addresses of refine records */
	IvfpqKeyForm keys;
	int			keys_at;		/* offset of the keys in a body (in part 0) */
	int			code_bytes;		/* bytes of one posting's code */
	int			codes;			/* offset of the codes in a body */
	int			body_bytes;		/* bytes of a block's body */
	int			nparts;			/* parts of a block: 1 .. IVFPQ_MAX_PARTS */
	int			part_bytes;		/* bytes of the body in one part */
	int			slot_bytes;		/* bytes of a slot: header and part */
	int			slots_per_page; /* 1 if nparts > 1 */
} IvfpqLayout;

/* A posting to be written. */
typedef struct IvfpqPosting
{
	ItemPointerData tid;
	float4		t;
	const uint8 *code;			/* [code_bytes] */
	bool		secondary;		/* this is the row's secondary posting */
	ItemPointerData refine;		/* address of the refine record, if any */
	const IvfpqKeyAbbrevs *keys;	/* keys, if the index has any */
} IvfpqPosting;

/*
 * A reader's view of a block.  The pointers point to the reader's copy of the
 * block or, in an optimistic read, to the block on its page.
 */
typedef struct IvfpqBlockView
{
	const ItemPointerData *tids;	/* [32] */
	const float4 *t;			/* [32] */
	const ItemPointerData *refine;	/* [32], or NULL */
	const char *keys;			/* heads and abbreviated keys, or NULL */
	const uint8 *codes;			/* [code_bytes][32] */
	const uint8 *ahead;			/* codes of a later block, or NULL; the scan
								 * prefetches but never reads them */
	uint32		live;			/* bit i: posting i exists and is not dead */
	uint32		secondary;		/* bit i: posting i is secondary */
	bool		passed_over;	/* the caller needs no posting of the block;
								 * only `live`, `secondary` and the heads in
								 * `keys` are valid */
} IvfpqBlockView;

/* the layout of blocks */
extern int	IvfpqMaxPqDim(const IvfpqKeyForm *keys);
extern bool IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine,
							const IvfpqKeyForm *keys);
extern bool IvfpqLayoutGet(IvfpqLayout *layout, const IvfpqMetaData *meta);
extern int	IvfpqDefaultPqDim(int dims, bool refine,
							  const IvfpqKeyForm *keys);

/* keys in a block: heads, then abbreviated keys */
extern bool IvfpqKeyFormGet(const IvfpqMetaData *meta, IvfpqKeyForm *form);
extern int	IvfpqKeysBytes(const IvfpqKeyForm *form);
extern const void *IvfpqKeyAbbrevBytes(uint64 abbrev, int width,
									   IvfpqKeyBytes *bytes);
extern uint64 IvfpqKeyAbbrevOf(const char *bytes, int width);
extern void IvfpqKeyAbbrevsGet(const IvfpqKeyForm *form, const char *keys,
							   int i, IvfpqKeyAbbrevs *abbrevs);
extern uint64 IvfpqKeyAbbrevsDigest(const IvfpqKeyForm *form,
									const IvfpqKeyAbbrevs *abbrevs);
extern IvfpqKeyHead IvfpqKeyHeadWith(const IvfpqKeyForm *form, int k,
									 const IvfpqKeyHead *head, int i,
									 const IvfpqKeyAbbrevs *abbrevs);
extern bool IvfpqKeyHeadCovers(const IvfpqKeyForm *form, int k,
							   const IvfpqKeyHead *head,
							   const IvfpqKeyAbbrevs *abbrevs);

/* the body of a block: writing one posting, reading all of them */
extern void IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
						 char *const *parts, int i,
						 const IvfpqPosting *posting);
extern void IvfpqBodyPatch(const IvfpqLayout *layout,
						   const IvfpqSlotHeader *header, const int *slots_at,
						   int i, const IvfpqPosting *posting,
						   IvfpqPatch *patches);
extern void IvfpqBodyView(const IvfpqLayout *layout, const char *body,
						  int count, const IvfpqSlotHeader *header,
						  IvfpqBlockView *view);

/* the layout of refine pages */
extern int	IvfpqRecordCodeBytes(IvfpqRefine refine, int dims);
extern int	IvfpqRecordSlotBytes(int code_bytes);
extern int	IvfpqRecordSlots(int code_bytes);
extern int	IvfpqRecordMaxDims(IvfpqRefine refine);

#endif							/* IVFPQ_LAYOUT_H */
