/*
 * ivfpqlayout.c
 *		How blocks of codes lie on pages: arithmetic and bytes, no buffers.
 *
 * A block's body holds 32 TIDs, 32 T values and 32 codes.  As many blocks as
 * fit share a page; a body longer than a page is cut into two parts of equal
 * size, each alone on its page, so that adding a copy to a block changes at
 * most two pages beside the directory's and, while the pending list is
 * drained, one of its.
 */
#include "postgres.h"

#include "page/ivfpqrefine.h"

/*
 * Bytes of a block that every code width needs: TIDs and T, and with refine
 * records their addresses.
 */
#define FIXED_BYTES(refine) \
	(IVFPQ_BLOCK_COPIES * ((int) sizeof(float4) + \
						   ((refine) ? 2 : 1) * (int) sizeof(ItemPointerData)))

#define MIN_PQ_DIM	40

/* Body bytes one page can hold, a multiple of IVFPQ_BLOCK_COPIES. */
#define MAX_PART_BYTES \
	TYPEALIGN_DOWN(IVFPQ_BLOCK_COPIES, IVFPQ_PAGE_BYTES - sizeof(IvfpqSlotHeader))

/*
 * The largest number of sub-quantizers whose blocks span no more than
 * IVFPQ_MAX_PARTS pages, with or without refine records.
 */
int
IvfpqMaxPqDim(void)
{
	int			code_bytes;

	code_bytes = (IVFPQ_MAX_PARTS * MAX_PART_BYTES - FIXED_BYTES(true)) /
		IVFPQ_BLOCK_COPIES;
	return 2 * code_bytes;
}

/*
 * Fill in the layout for pq_dim sub-quantizers of 4 bits.  False when a block
 * would span too many pages.
 */
bool
IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine)
{
	if (pq_dim < 1 || pq_dim > IvfpqMaxPqDim())
		return false;

	layout->refine = refine;
	layout->code_bytes = (pq_dim + 1) / 2;
	layout->codes = FIXED_BYTES(refine);
	layout->body_bytes = layout->codes +
		IVFPQ_BLOCK_COPIES * layout->code_bytes;
	layout->nparts = (layout->body_bytes + MAX_PART_BYTES - 1) / MAX_PART_BYTES;
	layout->part_bytes =
		TYPEALIGN(IVFPQ_BLOCK_COPIES,
				  (layout->body_bytes + layout->nparts - 1) / layout->nparts);
	layout->slot_bytes = sizeof(IvfpqSlotHeader) + layout->part_bytes;
	layout->slots_per_page =
		layout->nparts > 1 ? 1 : IVFPQ_PAGE_BYTES / layout->slot_bytes;
	return true;
}

/*
 * Sub-quantizers for a dimension when the user names none: half of it, or as
 * few as three eighths of it when that lets one more block share a page, or a
 * third with refine records, which make candidates cheap; at least 40 where
 * there are so many dimensions, because fewer bits tell too little whatever
 * the dimension (src/README, "Defaults").
 */
int
IvfpqDefaultPqDim(int dims, bool refine)
{
	int			half = Min(Max((dims + 1) / 2, Min(dims, MIN_PQ_DIM)),
						   IvfpqMaxPqDim());
	IvfpqLayout layout;
	int			least = refine ? (dims + 2) / 3 : (3 * dims + 7) / 8;
	int			slot_bytes;
	int			fewer;

	if (!IvfpqLayoutInit(&layout, half, refine) || layout.nparts > 1)
		return half;

	slot_bytes = TYPEALIGN_DOWN(IVFPQ_BLOCK_COPIES,
								IVFPQ_PAGE_BYTES / (layout.slots_per_page + 1));
	fewer = 2 * ((slot_bytes - (int) sizeof(IvfpqSlotHeader) -
				  layout.codes) / IVFPQ_BLOCK_COPIES);
	if (fewer >= least && fewer >= MIN_PQ_DIM)
		return Min(fewer, half);
	return half;
}

/*
 * Put copy i of a block into its parts; `header` is that of part 0.  Every
 * byte of the copy is written, so what an earlier owner of the slot left
 * there does no harm.
 */
void
IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
			 char *const *parts, int i, const IvfpqCopy *copy)
{
	ItemPointerData *tids = (ItemPointerData *) parts[0];
	float4	   *t = (float4 *) (tids + IVFPQ_BLOCK_COPIES);
	ItemPointerData *refine = (ItemPointerData *) (t + IVFPQ_BLOCK_COPIES);
	int			at = layout->codes + i;

	header->second &= ~(1U << i);
	if (copy->second)
		header->second |= 1U << i;
	tids[i] = copy->tid;
	t[i] = copy->t;
	if (layout->refine)
		refine[i] = copy->refine;
	/* not by division: it is done for every byte of an index */
	for (int p = 0; p < layout->code_bytes; p++, at += IVFPQ_BLOCK_COPIES)
	{
		for (; at >= layout->part_bytes; at -= layout->part_bytes)
			parts++;
		(*parts)[at] = (char) copy->code[p];
	}
}

/*
 * A block's body, in one piece, as arrays.  Its first `count` copies are
 * written; the header tells which of them are dead.
 */
void
IvfpqBodyView(const IvfpqLayout *layout, const char *body, int count,
			  const IvfpqSlotHeader *header, IvfpqBlockView *view)
{
	view->tids = (const ItemPointerData *) body;
	view->t = (const float4 *) (view->tids + IVFPQ_BLOCK_COPIES);
	view->refine = layout->refine ?
		(const ItemPointerData *) (view->t + IVFPQ_BLOCK_COPIES) : NULL;
	view->codes = (const uint8 *) body + layout->codes;
	view->live = (0xFFFFFFFF >> (IVFPQ_BLOCK_COPIES - count)) &
		~header->dead;
	view->second = header->second;
}

/* Bytes of a refine record, and how many share a page. */
int
IvfpqRefineSlotBytes(int dims)
{
	return TYPEALIGN(sizeof(float4),
					 offsetof(IvfpqRefineRecord, codes) + dims);
}

int
IvfpqRefineSlots(int dims)
{
	return (IVFPQ_PAGE_BYTES - sizeof(IvfpqRefineHeader)) /
		IvfpqRefineSlotBytes(dims);
}

/* The most dimensions of which a refine record fits a page. */
int
IvfpqRefineMaxDims(void)
{
	return TYPEALIGN_DOWN(sizeof(float4),
						  IVFPQ_PAGE_BYTES - sizeof(IvfpqRefineHeader)) -
		offsetof(IvfpqRefineRecord, codes);
}
