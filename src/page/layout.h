/*
 * layout.h
 *		How blocks of codes lie on pages: arithmetic and bytes, no buffers
 *		(layout.c, layout.c).
 */
#ifndef IVFPQ_LAYOUT_H
#define IVFPQ_LAYOUT_H

#include "page/delta.h"
#include "page/format.h"

/* Bytes of one posting's code. */
static inline int
IvfpqCodeBytes(int pq_dim)
{
	return (pq_dim + 1) / 2;
}

/* The keys of an index's postings. */
typedef struct IvfpqKeyForm
{
	int			nkeys;
	uint8		kind[IVFPQ_MAX_KEYS];	/* IvfpqKeyKind */
	uint8		width[IVFPQ_MAX_KEYS];	/* bytes of an abbreviated key */
} IvfpqKeyForm;

/* The abbreviated keys of one posting. */
typedef struct IvfpqKeyAbbrevs
{
	uint64		abbrev[IVFPQ_MAX_KEYS]; /* 0 where NULL */
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

/* How blocks lie on pages; follows from pq_dim, refine and keys. */
typedef struct IvfpqLayout
{
	bool		refine;			/* postings have addresses of refine records */
	IvfpqKeyForm keys;
	int			keys_at;		/* where keys begin in a body; in part 0 */
	int			code_bytes;		/* bytes of one posting's code */
	int			codes;			/* where codes begin in a body */
	int			body_bytes;		/* of a block */
	int			nparts;			/* 1 .. IVFPQ_MAX_PARTS */
	int			part_bytes;		/* body bytes in one part */
	int			slot_bytes;		/* header and part */
	int			slots_per_page; /* 1 when nparts > 1 */
} IvfpqLayout;

/* A row's posting in a list, as inserted. */
typedef struct IvfpqPosting
{
	ItemPointerData tid;
	float4		t;
	const uint8 *code;			/* [code_bytes] */
	bool		secondary;		/* the row's secondary posting */
	ItemPointerData refine;		/* address, if the index has refine records */
	const IvfpqKeyAbbrevs *keys;	/* if the index has keys */
} IvfpqPosting;

/* One block as read.  Pointers reach into the reader's memory. */
typedef struct IvfpqBlockView
{
	const ItemPointerData *tids;	/* [32] */
	const float4 *t;			/* [32] */
	const ItemPointerData *refine;	/* [32], or NULL */
	const char *keys;			/* heads and abbreviated keys, or NULL */
	const uint8 *codes;			/* [code_bytes][32] */
	const uint8 *ahead;			/* codes to fetch while these are scanned, or
								 * NULL; never to be read */
	uint32		live;			/* bit i: posting i exists and is not dead */
	uint32		secondary;		/* bit i: posting i is secondary */
	bool		passed_over;	/* no posting is wanted
								 * (IvfpqListReader.wants): only `keys` heads,
								 * `live` and `secondary` are there */
} IvfpqBlockView;

/* layout.c */
extern int	IvfpqMaxPqDim(const IvfpqKeyForm *keys);
extern bool IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine,
							const IvfpqKeyForm *keys);
extern bool IvfpqLayoutGet(IvfpqLayout *layout, const IvfpqMetaData *meta);
extern int	IvfpqDefaultPqDim(int dims, bool refine,
							  const IvfpqKeyForm *keys);
extern void IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
						 char *const *parts, int i,
						 const IvfpqPosting *posting);
extern void IvfpqBodyView(const IvfpqLayout *layout, const char *body,
						  int count, const IvfpqSlotHeader *header,
						  IvfpqBlockView *view);
extern void IvfpqBodyPatch(const IvfpqLayout *layout,
						   const IvfpqSlotHeader *header, const int *slots_at,
						   int i, const IvfpqPosting *posting,
						   IvfpqPatch *patches);

/* layout of refine records */
extern int	IvfpqRecordCodeBytes(IvfpqRefine refine, int dims);
extern int	IvfpqRecordSlotBytes(int code_bytes);
extern int	IvfpqRecordSlots(int code_bytes);
extern int	IvfpqRecordMaxDims(IvfpqRefine refine);

/* layout.c */
extern bool IvfpqKeyFormGet(const IvfpqMetaData *meta, IvfpqKeyForm *form);
extern int	IvfpqKeyHeadsBytes(const IvfpqKeyForm *form);
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

#endif							/* IVFPQ_LAYOUT_H */
