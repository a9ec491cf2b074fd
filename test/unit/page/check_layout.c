/*
 * layout.c
 *		Tests of page/layout.c without a server: blocks fit their pages for every
 *		pq_dim, and what is put into a block's parts comes out of its body; and
 *		of page/sort.c.  Compiled with the server's headers, linked with these
 *		and layout.c alone.
 */
#include "postgres.h"

#include "page/refinepage.h"

#undef printf					/* the server's are not linked */
#undef qsort

#define GAP		IVFPQ_BLOCK_POSTINGS

static long passed;
static long failed;

/* check_bounds.c */
extern void check_bounds(long *all_passed, long *all_failed);

/* Keys that indexes have: none, one, some, and the most bytes that can be. */
static const IvfpqKeyForm forms[] = {
	{0},
	{1, {IVFPQ_KEY_ORDERED}, {4}},
	{3, {IVFPQ_KEY_HASH, IVFPQ_KEY_SIGNATURE, IVFPQ_KEY_ORDERED}, {4, 8, 1}},
	{7, {IVFPQ_KEY_ORDERED, IVFPQ_KEY_ORDERED, IVFPQ_KEY_ORDERED,
		IVFPQ_KEY_ORDERED, IVFPQ_KEY_ORDERED, IVFPQ_KEY_ORDERED,
	IVFPQ_KEY_ORDERED}, {8, 8, 8, 8, 8, 8, 8}}
};

#ifdef USE_ASSERT_CHECKING
/* An assertion of layout.c fails, of a server that has assertions. */
void
ExceptionalCondition(const char *condition,
#if PG_VERSION_NUM < 160000
					 const char *kind,
#endif
					 const char *file, int line)
{
	printf("FAILED: %s, %s:%d\n", condition, file, line);
	exit(1);
}
#endif

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
check_layouts(bool refine, const IvfpqKeyForm *keys)
{
	IvfpqLayout layout;
	int			most = IvfpqMaxPqDim(keys);
	int			fixed = IVFPQ_BLOCK_POSTINGS * (refine ? 16 : 10);

	check(keys->nkeys > 0 ? most < 984 && most > 850 : most == 984,
		  "the most sub-quantizers", most);
	check(!IvfpqLayoutInit(&layout, 0, refine, keys), "pq_dim 0 refused", 0);
	check(!IvfpqLayoutInit(&layout, most + 1, refine, keys),
		  "beyond the most refused", most);
	for (int m = 1; m <= most; m++)
	{
		check(IvfpqLayoutInit(&layout, m, refine, keys), "layout exists", m);
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
		check(layout.keys_at == fixed && fixed % sizeof(uint64) == 0,
			  "keys are aligned", m);
		check(layout.codes == fixed + IvfpqKeysBytes(keys) &&
			  layout.codes <= layout.part_bytes,
			  "all but codes is in part 0", m);
		check(layout.slot_bytes % MAXIMUM_ALIGNOF == 0, "slots are aligned", m);
	}
}

/* The default is possible for every dimension, and not far from half of it. */
static void
check_defaults(bool refine, const IvfpqKeyForm *keys)
{
	bool		third = refine || keys->nkeys > 0;

	for (int dims = 1; dims <= IVFPQ_MAX_DIMS; dims++)
	{
		int			m = IvfpqDefaultPqDim(dims, refine, keys);
		IvfpqLayout layout;

		check(IvfpqLayoutInit(&layout, m, refine, keys), "default has a layout", dims);
		check(m >= 1 && (m <= (dims + 1) / 2 || m <= 40),
			  "default is half at most, or 40", dims);
		check(8 * m >= 3 * dims || m == IvfpqMaxPqDim(keys) ||
			  (third && 3 * m >= dims),
			  "default is three eighths at least", dims);
	}
}

/* The bytes of a row at 384 dimensions, with and without a key. */
static void
check_bytes(void)
{
	static const struct
	{
		int			pq_dim;
		int			slots;
	}			expected[] = {{148, 3}, {138, 3}};

	for (int f = 0; f < (int) lengthof(expected); f++)
	{
		IvfpqLayout layout;
		int			m = IvfpqDefaultPqDim(384, false, &forms[f]);

		check(IvfpqLayoutInit(&layout, m, false, &forms[f]) &&
			  m == expected[f].pq_dim &&
			  layout.slots_per_page == expected[f].slots,
			  "sub-quantizers of 384 dimensions", f);
	}
}

/*
 * A patch makes of pages what setting a posting makes of parts: each part
 * lies on a page of its own, somewhere.
 */
static void
check_patch(const IvfpqLayout *layout, int i, const IvfpqPosting *posting,
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
	IvfpqBodyPatch(layout, (const IvfpqSlotHeader *) (pages[0] + slots_at[0]),
				   slots_at, i, posting, patches);
	IvfpqBodySet(layout, &header, parts, i, posting);
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

/* Posting i's abbreviated key k. */
static uint64
make_abbrev(const IvfpqKeyForm *keys, int k, int i)
{
	uint64		abbrev = UINT64CONST(0x9E3779B97F4A7C15) * (uint64) (7 * i + k + 1);

	return abbrev >> (64 - 8 * keys->width[k]);
}

/* Posting i's abbreviated keys; every seventh is NULL. */
static IvfpqKeyAbbrevs
make_abbrevs(const IvfpqKeyForm *keys, int i)
{
	IvfpqKeyAbbrevs abbrevs = {.nulls = 0};

	for (int k = 0; k < keys->nkeys; k++)
		if ((i + k) % 7 == 0)
			abbrevs.nulls |= 1U << k;
		else
			abbrevs.abbrev[k] = make_abbrev(keys, k, i);
	return abbrevs;
}

/*
 * The block's abbreviated keys come out as they went in, and heads say of its
 * `count` postings what these have, and no more.
 */
static void
check_keys(const IvfpqKeyForm *keys, const char *view, int count)
{
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) view;
	int			wrong = 0;

	for (int k = 0; k < keys->nkeys; k++)
	{
		IvfpqKeyHead head = {.low = keys->kind[k] == IVFPQ_KEY_ORDERED ?
		PG_UINT64_MAX : 0};

		for (int i = 0; i < count; i++)
		{
			IvfpqKeyAbbrevs abbrevs = make_abbrevs(keys, i);
			IvfpqKeyAbbrevs found;
			uint64		abbrev = abbrevs.abbrev[k];

			IvfpqKeyAbbrevsGet(keys, view, i, &found);
			wrong += memcmp(&found, &abbrevs, sizeof(found)) != 0;
			wrong += !IvfpqKeyHeadCovers(keys, k, &heads[k], &found);
			if (abbrevs.nulls >> k & 1)
				head.nulls |= 1U << i;
			else if (keys->kind[k] == IVFPQ_KEY_ORDERED)
			{
				head.low = Min(head.low, abbrev);
				head.high = Max(head.high, abbrev);
			}
			else
				head.low |= keys->kind[k] == IVFPQ_KEY_HASH ?
					UINT64CONST(1) << abbrev % 64 : abbrev;
		}
		check(memcmp(&head, &heads[k], sizeof(head)) == 0, "head of a key", k);
	}
	check(wrong == 0, "images of keys", keys->nkeys);
}

/* A head does not cover what is not in it. */
static void
check_covers(void)
{
	static const IvfpqKeyAbbrevs in = {.abbrev = {20, 20, 20}};
	static const IvfpqKeyAbbrevs out[] = {{.abbrev = {19, 19, 19}},
	{.abbrev = {21, 21, 21}}};
	static const IvfpqKeyAbbrevs null = {.nulls = 7};
	static const IvfpqKeyForm all = {3, {IVFPQ_KEY_ORDERED, IVFPQ_KEY_HASH,
	IVFPQ_KEY_SIGNATURE}, {8, 8, 8}};

	for (int k = 0; k < all.nkeys; k++)
	{
		IvfpqKeyHead head = {5, 6, 7, 8};

		head = IvfpqKeyHeadWith(&all, k, &head, 0, &null);
		check(!IvfpqKeyHeadCovers(&all, k, &head, &in) && head.nulls == 1,
			  "head of nothing", k);
		head = IvfpqKeyHeadWith(&all, k, &head, 1, &in);
		check(IvfpqKeyHeadCovers(&all, k, &head, &in) &&
			  !IvfpqKeyHeadCovers(&all, k, &head, &out[0]) &&
			  !IvfpqKeyHeadCovers(&all, k, &head, &out[1]) &&
			  IvfpqKeyHeadCovers(&all, k, &head, &null), "head of one", k);
	}
	check(IvfpqKeyAbbrevsDigest(&all, &in) !=
		  IvfpqKeyAbbrevsDigest(&all, &out[0]) &&
		  IvfpqKeyAbbrevsDigest(&all, &null) !=
		  IvfpqKeyAbbrevsDigest(&all, &(IvfpqKeyAbbrevs) {.nulls = 0}),
		  "digests", 0);
}

/* Metapages tell of keys, or are damaged. */
static void
check_forms(void)
{
	static const struct
	{
		uint8		kinds[8];
		uint8		widths[8];
		int			nkeys;		/* -1: damaged */
	}			metas[] = {
		{{0}, {0}, 0},
		{{1, 2, 3}, {1, 4, 8}, 3},
		{{1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2}, 7},
		{{1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}, -1},
		{{4}, {4}, -1}, {{1}, {3}, -1}, {{1}, {0}, -1}, {{0}, {4}, -1},
		{{1, 0, 1}, {4, 0, 4}, -1}, {{0, 0, 0, 0, 0, 0, 0, 1}, {0}, -1},
		{{1}, {16}, -1}
	};

	for (int i = 0; i < (int) lengthof(metas); i++)
	{
		IvfpqMetaData meta = {.pq_dim = 40};
		IvfpqKeyForm form;
		IvfpqLayout layout;
		bool		sound = metas[i].nkeys >= 0;

		memcpy(meta.key_kinds, metas[i].kinds, sizeof(meta.key_kinds));
		memcpy(meta.key_widths, metas[i].widths, sizeof(meta.key_widths));
		check(IvfpqKeyFormGet(&meta, &form) == sound &&
			  (!sound || form.nkeys == metas[i].nkeys), "keys of a metapage",
			  i);
		check(IvfpqLayoutGet(&layout, &meta) == sound &&
			  (!sound || layout.keys.nkeys == metas[i].nkeys),
			  "layout of a metapage", i);
	}
}

/* Fills a block posting by posting, reads it back whole. */
static void
check_body(int m, bool refine, const IvfpqKeyForm *keys)
{
	IvfpqLayout layout;
	IvfpqSlotHeader header = {.dead = 0x11,.secondary = 0xFFFFFFFF};
	IvfpqBlockView view;
	char	   *parts[IVFPQ_MAX_PARTS];
	char		pages[IVFPQ_MAX_PARTS][BLCKSZ];
	char	   *apart;			/* the parts, each with a gap behind */
	char	   *body;
	uint8	   *code;
	int			wrong = 0;

	check(IvfpqLayoutInit(&layout, m, refine, keys), "layout exists", m);
	body = malloc(layout.nparts * layout.part_bytes);
	code = malloc(layout.code_bytes);
	apart = malloc(layout.nparts * (layout.part_bytes + GAP));
	memset(apart, 0x5A, layout.nparts * (layout.part_bytes + GAP));
	memset(pages, 0xA5, sizeof(pages));
	for (int p = 0; p < layout.nparts; p++)
		parts[p] = apart + p * (layout.part_bytes + GAP);

	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
	{
		IvfpqKeyAbbrevs abbrevs = make_abbrevs(keys, i);
		IvfpqPosting	posting =
			{.t = i + 0.5f,.code = code,.secondary = i % 3 == 0,
		.keys = &abbrevs};

		for (int p = 0; p < layout.code_bytes; p++)
			code[p] = (uint8) (7 * i + 13 * p);
		ItemPointerSet(&posting.tid, 1000000 + i, i + 1);
		ItemPointerSet(&posting.refine, 2000000 - i, 400 - i);
		IvfpqBodySet(&layout, &header, parts, i, &posting);
		check_patch(&layout, i, &posting, pages);
	}
	join_parts(&layout, parts, body);

	IvfpqBodyView(&layout, body, IVFPQ_BLOCK_POSTINGS, &header, &view);
	check(view.live == 0xFFFFFFEE, "live bits of a full block", m);
	check((view.refine != NULL) == refine, "addresses", m);
	check((view.keys != NULL) == (keys->nkeys > 0), "keys", m);
	if (view.keys)
		check_keys(keys, view.keys, IVFPQ_BLOCK_POSTINGS);
	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
	{
		wrong += view.t[i] != i + 0.5f;
		wrong += ((view.secondary >> i) & 1) != (i % 3 == 0);
		wrong += ItemPointerGetBlockNumberNoCheck(&view.tids[i]) != 1000000 + (BlockNumber) i;
		wrong += ItemPointerGetOffsetNumberNoCheck(&view.tids[i]) != i + 1;
		wrong += refine &&
			(ItemPointerGetBlockNumberNoCheck(&view.refine[i]) != 2000000 - (BlockNumber) i ||
			 ItemPointerGetOffsetNumberNoCheck(&view.refine[i]) != 400 - i);
		for (int p = 0; p < layout.code_bytes; p++)
			wrong += view.codes[p * IVFPQ_BLOCK_POSTINGS + i] !=
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
	int			space = IVFPQ_PAGE_BYTES - sizeof(IvfpqRecordHeader);

	for (int kind = IVFPQ_REFINE_SQ8; kind <= IVFPQ_REFINE_HALF; kind++)
	{
		int			most = IvfpqRecordMaxDims(kind);

		for (int dims = 1; dims <= most; dims++)
		{
			int			code_bytes = IvfpqRecordCodeBytes(kind, dims);
			int			bytes = IvfpqRecordSlotBytes(code_bytes);

			check(bytes >= (int) offsetof(IvfpqRecord, codes) + kind * dims &&
				  bytes % sizeof(float4) == 0, "record fits its slot", dims);
			check(IvfpqRecordSlots(code_bytes) * bytes <= space &&
				  (IvfpqRecordSlots(code_bytes) + 1) * bytes > space,
				  "refine page is full", dims);
		}
		check(most > 8000 / kind &&
			  IvfpqRecordSlots(IvfpqRecordCodeBytes(kind, most)) == 1 &&
			  IvfpqRecordSlots(IvfpqRecordCodeBytes(kind, most + 1)) == 0,
			  "most dimensions", most);
	}
}

/*
 * Numbers as searches have them, and others: they differ in some of the bits,
 * in one byte or in all, and many are equal.
 */
static void
check_sort(int n, uint64 differ, uint64 equal)
{
	static uint64 numbers[1000];
	static uint64 expected[1000];
	uint64		random = 0x9E3779B97F4A7C15 + n;

	for (int i = 0; i < n; i++)
	{
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		numbers[i] = expected[i] = (random & differ) | equal;
	}
	qsort(expected, n, sizeof(uint64), IvfpqCompareNumbers);
	IvfpqSortNumbers(numbers, n);
	check(memcmp(numbers, expected, n * sizeof(uint64)) == 0,
		  "numbers in order", n);
}

static void
check_sorts(void)
{
	static const uint64 differ[] = {0, 0xFF, 0x7FF, 0x3FFFF, 0xF00FF000F,
		UINT64_C(0xFF000000000000FF), UINT64_C(0xFFFF00FF),
	UINT64_C(0x80000000FFFFF), UINT64_MAX};

	for (int n = 0; n <= 1000; n += n < 70 || (n > 500 && n < 530) ? 1 : 43)
		for (int d = 0; d < (int) lengthof(differ); d++)
		{
			check_sort(n, differ[d], 0);
			check_sort(n, differ[d], UINT64_C(0xAA55000000330000) & ~differ[d]);
		}
}

int
main(void)
{
	static const int widths[] = {1, 2, 3, 148, 191, 488, 489, 600, 900, 983,
	984};

	for (int which = 0; which < 2 * (int) lengthof(forms); which++)
	{
		const IvfpqKeyForm *keys = &forms[which / 2];
		bool		refine = which % 2;

		check_layouts(refine, keys);
		check_defaults(refine, keys);
		for (int i = 0; i < (int) lengthof(widths); i++)
			check_body(Min(widths[i], IvfpqMaxPqDim(keys)), refine, keys);
	}
	check_bytes();
	check_covers();
	check_forms();
	check_refine();
	check_sorts();
	check_bounds(&passed, &failed);
	printf("check_page: %ld passed, %ld failed\n", passed, failed);
	return failed > 0;
}
