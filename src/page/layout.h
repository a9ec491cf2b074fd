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
