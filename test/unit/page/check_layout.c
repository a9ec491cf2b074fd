/*
 * layout.c
 *		Tests of page/layout.c without a server: blocks fit their pages
 *		for every pq_dim, and what is put into a block's parts comes out of its
 *		body.  Compiled with the server's headers, linked with that file alone.
 */
#include "postgres.h"

#include "page/record.h"

#undef printf					/* the server's is not linked */

#define GAP		IVFPQ_BLOCK_COPIES

static long passed;
static long failed;

static void
check(bool ok, const char *what, int number)
{
	if (ok)
		passed++;
	else if (failed++ < 20)
		printf("FAILED: %s, %d\n", what, number);
}

/* Slots lie within the page and hold the body, in as few parts as can be. */
static void
check_layouts(bool refine)
{
	IvfpqLayout layout;
	int			most = IvfpqMaxPqDim();

	check(!IvfpqLayoutInit(&layout, 0, refine), "pq_dim 0 refused", 0);
	check(!IvfpqLayoutInit(&layout, most + 1, refine), "beyond the most refused", most);
	for (int m = 1; m <= most; m++)
	{
		check(IvfpqLayoutInit(&layout, m, refine), "layout exists", m);
		check(layout.code_bytes == (m + 1) / 2, "code bytes", m);
		check(layout.slots_per_page * layout.slot_bytes <=
			  (int) IVFPQ_PAGE_BYTES, "slots fit the page", m);
		check((layout.slots_per_page + 1) * layout.slot_bytes >
			  (int) IVFPQ_PAGE_BYTES || layout.nparts > 1, "page is full", m);
		check(layout.nparts * layout.part_bytes >= layout.body_bytes,
			  "parts hold the body", m);
		check(layout.nparts >= 1 && layout.nparts <= IVFPQ_MAX_PARTS,
			  "number of parts", m);
		check(layout.nparts == 1 || layout.slots_per_page == 1,
			  "parts stand alone", m);
		check(layout.codes == IVFPQ_BLOCK_COPIES * (refine ? 16 : 10) &&
			  layout.codes <= layout.part_bytes,
			  "all but codes is in part 0", m);
		check(layout.slot_bytes % MAXIMUM_ALIGNOF == 0, "slots are aligned", m);
	}
}

/* The default is possible for every dimension, and not far from half of it. */
static void
check_defaults(bool refine)
{
	for (int dims = 1; dims <= IVFPQ_MAX_DIMS; dims++)
	{
		int			m = IvfpqDefaultPqDim(dims, refine);
		IvfpqLayout layout;

		check(IvfpqLayoutInit(&layout, m, refine), "default has a layout", dims);
		check(m >= 1 && (m <= (dims + 1) / 2 || m <= 40),
			  "default is half at most, or 40", dims);
		check(8 * m >= 3 * dims || m == IvfpqMaxPqDim() ||
			  (refine && 3 * m >= dims),
			  "default is three eighths at least", dims);
	}
}

/*
 * What a patch makes of pages is what setting a copy makes of parts: each part
 * lies on a page of its own, somewhere.
 */
static void
check_patch(const IvfpqLayout *layout, int i, const IvfpqCopy *copy,
			char pages[][BLCKSZ])
{
	int			slots_at[IVFPQ_MAX_PARTS];
	char	   *parts[IVFPQ_MAX_PARTS];
	char		set[IVFPQ_MAX_PARTS][BLCKSZ];
	IvfpqSlotHeader header;
	IvfpqPatch	patches[IVFPQ_MAX_PARTS];

	for (int p = 0; p < layout->nparts; p++)
	{
		slots_at[p] = SizeOfPageHeaderData +
			(layout->slots_per_page - 1) * layout->slot_bytes;
		memcpy(set[p], pages[p], BLCKSZ);
		parts[p] = set[p] + slots_at[p] + sizeof(IvfpqSlotHeader);
		IvfpqPatchInit(&patches[p], InvalidBuffer);
	}
	memcpy(&header, pages[0] + slots_at[0], sizeof(header));
	IvfpqBodyPatch(layout, &header, slots_at, i, copy, patches);
	IvfpqBodySet(layout, &header, parts, i, copy);
	memcpy(set[0] + slots_at[0], &header, sizeof(header));
	for (int p = 0; p < layout->nparts; p++)
	{
		IvfpqPatchApply(&patches[p], pages[p]);
		check(memcmp(pages[p], set[p], BLCKSZ) == 0, "patch", layout->code_bytes);
	}
}

/* Join the parts in one body; nothing lies behind any of them. */
static void
join_parts(const IvfpqLayout *layout, char *const *parts, char *body)
{
	int			part_bytes = layout->part_bytes;

	for (int p = 0; p < layout->nparts; p++)
	{
		memcpy(body + p * part_bytes, parts[p], part_bytes);
		for (int i = 0; i < GAP; i++)
			if (parts[p][part_bytes + i] != 0x5A)
			{
				check(false, "behind a part", p);
				return;
			}
	}
}

/* Fill a block copy by copy, read it back whole. */
static void
check_body(int m, bool refine)
{
	IvfpqLayout layout;
	IvfpqSlotHeader header = {.dead = 0x11,.second = 0xFFFFFFFF};
	IvfpqBlockView view;
	char	   *parts[IVFPQ_MAX_PARTS];
	char		pages[IVFPQ_MAX_PARTS][BLCKSZ];
	char	   *apart;			/* the parts, each with a gap behind */
	char	   *body;
	uint8	   *code;
	int			wrong = 0;

	check(IvfpqLayoutInit(&layout, m, refine), "layout exists", m);
	body = malloc(layout.nparts * layout.part_bytes);
	code = malloc(layout.code_bytes);
	apart = malloc(layout.nparts * (layout.part_bytes + GAP));
	memset(apart, 0x5A, layout.nparts * (layout.part_bytes + GAP));
	memset(pages, 0xA5, sizeof(pages));
	for (int p = 0; p < layout.nparts; p++)
		parts[p] = apart + p * (layout.part_bytes + GAP);

	for (int i = 0; i < IVFPQ_BLOCK_COPIES; i++)
	{
		IvfpqCopy	copy = {.t = i + 0.5f,.code = code,.second = i % 3 == 0};

		for (int p = 0; p < layout.code_bytes; p++)
			code[p] = (uint8) (7 * i + 13 * p);
		ItemPointerSet(&copy.tid, 1000000 + i, i + 1);
		ItemPointerSet(&copy.refine, 2000000 - i, 400 - i);
		IvfpqBodySet(&layout, &header, parts, i, &copy);
		check_patch(&layout, i, &copy, pages);
	}
	join_parts(&layout, parts, body);

	IvfpqBodyView(&layout, body, IVFPQ_BLOCK_COPIES, &header, &view);
	check(view.live == 0xFFFFFFEE, "live bits of a full block", m);
	check((view.refine != NULL) == refine, "addresses", m);
	for (int i = 0; i < IVFPQ_BLOCK_COPIES; i++)
	{
		wrong += view.t[i] != i + 0.5f;
		wrong += ((view.second >> i) & 1) != (i % 3 == 0);
		wrong += ItemPointerGetBlockNumberNoCheck(&view.tids[i]) != 1000000 + (BlockNumber) i;
		wrong += ItemPointerGetOffsetNumberNoCheck(&view.tids[i]) != i + 1;
		wrong += refine &&
			(ItemPointerGetBlockNumberNoCheck(&view.refine[i]) != 2000000 - (BlockNumber) i ||
			 ItemPointerGetOffsetNumberNoCheck(&view.refine[i]) != 400 - i);
		for (int p = 0; p < layout.code_bytes; p++)
			wrong += view.codes[p * IVFPQ_BLOCK_COPIES + i] !=
				(uint8) (7 * i + 13 * p);
	}
	check(wrong == 0, "copies read back", m);
	header.dead = 0x2;
	IvfpqBodyView(&layout, body, 3, &header, &view);
	check(view.live == 0x5, "live bits of three copies", m);
	free(apart);
	free(body);
	free(code);
}

/* Refine records: as many as fit a page, up to the most dimensions. */
static void
check_refine(void)
{
	int			room = IVFPQ_PAGE_BYTES - sizeof(IvfpqRecordHeader);

	for (int dims = 1; dims <= IvfpqRecordMaxDims(); dims++)
	{
		int			bytes = IvfpqRecordSlotBytes(dims);

		check(bytes >= (int) offsetof(IvfpqRecord, codes) + dims &&
			  bytes % sizeof(float4) == 0, "record fits its slot", dims);
		check(IvfpqRecordSlots(dims) * bytes <= room &&
			  (IvfpqRecordSlots(dims) + 1) * bytes > room,
			  "refine page is full", dims);
	}
	check(IvfpqRecordMaxDims() > 8000 &&
		  IvfpqRecordSlots(IvfpqRecordMaxDims()) == 1 &&
		  IvfpqRecordSlots(IvfpqRecordMaxDims() + 1) == 0,
		  "most dimensions", IvfpqRecordMaxDims());
}

int
main(void)
{
	static const int widths[] = {1, 2, 3, 148, 191, 488, 489, 600, 900, 983,
	984};

	for (int refine = 0; refine <= 1; refine++)
	{
		check_layouts(refine);
		check_defaults(refine);
		for (int i = 0; i < (int) lengthof(widths); i++)
			check_body(widths[i], refine);
	}
	check_refine();
	printf("layout: %ld passed, %ld failed\n", passed, failed);
	return failed > 0;
}
