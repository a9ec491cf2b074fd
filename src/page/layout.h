/*
 * layout.h
 *		How blocks of codes lie on pages: arithmetic and bytes, no buffers
 *		(layout.c).
 */
#ifndef IVFPQ_LAYOUT_H
#define IVFPQ_LAYOUT_H

#include "page/buffer/patch.h"
#include "page/format.h"

/* Bytes of one copy's code. */
static inline int
IvfpqCodeBytes(int pq_dim)
{
	return (pq_dim + 1) / 2;
}

/* The keys of an index's copies. */
typedef struct IvfpqKeyForm
{
	int			nkeys;
	uint8		kind[IVFPQ_MAX_KEYS];	/* IvfpqKeyKind */
	uint8		width[IVFPQ_MAX_KEYS];	/* bytes of an image */
} IvfpqKeyForm;

/* The images of one copy's keys. */
typedef struct IvfpqKeyImages
{
	uint64		image[IVFPQ_MAX_KEYS];	/* 0 where NULL */
	uint32		nulls;			/* bit k: key k is NULL */
} IvfpqKeyImages;

/* How blocks lie on pages; follows from pq_dim, refine and keys. */
typedef struct IvfpqLayout
{
	bool		refine;			/* copies carry addresses of refine records */
	IvfpqKeyForm keys;
	int			keys_at;		/* where keys begin in a body; in part 0 */
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
	const IvfpqKeyImages *keys; /* if the index has keys */
} IvfpqCopy;

/* One block as read.  Pointers reach into the reader's memory. */
typedef struct IvfpqBlockView
{
	const ItemPointerData *tids;	/* [32] */
	const float4 *t;			/* [32] */
	const ItemPointerData *refine;	/* [32], or NULL */
	const char *keys;			/* heads and images, or NULL */
	const uint8 *codes;			/* [code_bytes][32] */
	uint32		live;			/* bit i: copy i exists and is not dead */
	uint32		second;			/* bit i: copy i is its row's second */
	bool		passed_over;	/* no copy is wanted (IvfpqListReader.wants):
								 * only `keys` heads, `live` and `second` are
								 * there */
} IvfpqBlockView;

extern int	IvfpqMaxPqDim(void);
extern bool IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine);
extern int	IvfpqDefaultPqDim(int dims, bool refine);
extern void IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
						 char *const *parts, int i, const IvfpqCopy *copy);
extern void IvfpqBodyView(const IvfpqLayout *layout, const char *body,
						  int count, const IvfpqSlotHeader *header,
						  IvfpqBlockView *view);
extern void IvfpqBodyPatch(const IvfpqLayout *layout,
						   const IvfpqSlotHeader *header, const int *slots_at,
						   int i, const IvfpqCopy *copy, IvfpqPatch *patches);

#endif							/* IVFPQ_LAYOUT_H */
