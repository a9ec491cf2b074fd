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

#include "page/ivfpqpage.h"

/* Bytes of a block that every code width needs: TIDs and T. */
#define FIXED_BYTES \
	(IVFPQ_BLOCK_COPIES * (sizeof(ItemPointerData) + sizeof(float4)))

#define MIN_PQ_DIM	40

/* Body bytes one page can hold, a multiple of IVFPQ_BLOCK_COPIES. */
#define MAX_PART_BYTES \
	TYPEALIGN_DOWN(IVFPQ_BLOCK_COPIES, IVFPQ_PAGE_BYTES - sizeof(IvfpqSlotHeader))

/*
 * The largest number of sub-quantizers whose blocks span no more than
 * IVFPQ_MAX_PARTS pages.
 */
int
IvfpqMaxPqDim(void)
{
	int			code_bytes;

	code_bytes = (IVFPQ_MAX_PARTS * MAX_PART_BYTES - FIXED_BYTES) /
		IVFPQ_BLOCK_COPIES;
	return 2 * code_bytes;
}

/*
 * Fill in the layout for pq_dim sub-quantizers of 4 bits.  False when a block
 * would span too many pages.
 */
bool
IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim)
{
	if (pq_dim < 1 || pq_dim > IvfpqMaxPqDim())
		return false;

	layout->code_bytes = (pq_dim + 1) / 2;
	layout->body_bytes = FIXED_BYTES + IVFPQ_BLOCK_COPIES * layout->code_bytes;
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
 * few as three eighths of it when that lets one more block share a page; at
 * least 40 where there are so many dimensions, because fewer bits tell too
 * little whatever the dimension (src/README, "Defaults").
 */
int
IvfpqDefaultPqDim(int dims)
{
	int			half = Min(Max((dims + 1) / 2, Min(dims, MIN_PQ_DIM)),
						   IvfpqMaxPqDim());
	IvfpqLayout layout;
	int			slot_bytes;
	int			fewer;

	if (!IvfpqLayoutInit(&layout, half) || layout.nparts > 1)
		return half;

	slot_bytes = TYPEALIGN_DOWN(IVFPQ_BLOCK_COPIES,
								IVFPQ_PAGE_BYTES / (layout.slots_per_page + 1));
	fewer = 2 * (int) ((slot_bytes - (int) sizeof(IvfpqSlotHeader) -
						(int) FIXED_BYTES) / IVFPQ_BLOCK_COPIES);
	if (8 * fewer >= 3 * dims && fewer >= MIN_PQ_DIM)
		return Min(fewer, half);
	return half;
}

/*
 * Put copy i of a block into its parts; `header` is that of part 0.  Every byte of the copy is written,
 * so what an earlier owner of the slot left there does no harm.
 */
void
IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
			 char *const *parts, int i, const IvfpqCopy *copy)
{
	ItemPointerData *tids = (ItemPointerData *) parts[0];
	float4	   *t = (float4 *) (tids + IVFPQ_BLOCK_COPIES);
	int			codes = (char *) (t + IVFPQ_BLOCK_COPIES) - parts[0];

	header->second &= ~(1U << i);
	if (copy->second)
		header->second |= 1U << i;
	tids[i] = copy->tid;
	t[i] = copy->t;
	for (int p = 0; p < layout->code_bytes; p++)
	{
		int			at = codes + p * IVFPQ_BLOCK_COPIES + i;

		parts[at / layout->part_bytes][at % layout->part_bytes] =
			(char) copy->code[p];
	}
}

/*
 * A block's body, in one piece, as arrays.  Its first `count` copies are
 * written; the header tells which of them are dead.
 */
void
IvfpqBodyView(const char *body, int count, const IvfpqSlotHeader *header,
			  IvfpqBlockView *view)
{
	view->tids = (const ItemPointerData *) body;
	view->t = (const float4 *) (view->tids + IVFPQ_BLOCK_COPIES);
	view->codes = (const uint8 *) (view->t + IVFPQ_BLOCK_COPIES);
	view->live = (0xFFFFFFFF >> (IVFPQ_BLOCK_COPIES - count)) &
		~header->dead;
	view->second = header->second;
}
