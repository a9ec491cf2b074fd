/*
 * layout.c
 *		Where the bytes of blocks and of refine records lie on pages.
 *
 * A block's body holds 32 TIDs, 32 T values, 32 addresses of refine records if
 * the index has refine records, a head and 32 abbreviated keys for each key,
 * and 32 codes.  As many blocks as fit share a page.  A body longer than a
 * page is divided into two parts of equal size, each alone on its page.  So
 * when a posting is added to a block, at most four pages change: the two pages
 * of the block, the directory page and, if the row was pending, a pending
 * page.  A generic WAL record may have no more than four buffers.
 */
#include "postgres.h"

#include "page/layout.h"

/*
 * Number of bytes of a block that depend neither on the width of codes nor on
 * keys: TIDs, T values and, if there are refine records, their addresses.
 */
#define FIXED_BYTES(refine) \
	(IVFPQ_BLOCK_POSTINGS * ((int) sizeof(float4) + \
						   ((refine) ? 2 : 1) * (int) sizeof(ItemPointerData)))

/* Maximum body bytes on one page, a multiple of IVFPQ_BLOCK_POSTINGS. */
#define MAX_PART_BYTES \
	TYPEALIGN_DOWN(IVFPQ_BLOCK_POSTINGS, IVFPQ_PAGE_BYTES - sizeof(IvfpqSlotHeader))

/* The default number of sub-quantizers is at least min(dims, MIN_PQ_DIM). */
#define MIN_PQ_DIM	40

/* Writes n bytes to `to`, at offset `at` of a part's body. */
typedef void (*PutBytes) (const void *to, int part, int at,
						  const void *from, int n);

/* Where patch_bytes writes: a slot and a patch for each part of a block. */
typedef struct Patching
{
	const int  *slots_at;		/* [nparts] offset of each slot on its page */
	IvfpqPatch *patches;		/* [nparts] patch of each page */
} Patching;

/*
 * Returns the largest pq_dim for which a block with these keys fits on
 * IVFPQ_MAX_PARTS pages, with or without refine records.
 */
int
IvfpqMaxPqDim(const IvfpqKeyForm *keys)
{
	int			code_bytes;

	code_bytes = (IVFPQ_MAX_PARTS * MAX_PART_BYTES - FIXED_BYTES(true) -
				  IvfpqKeysBytes(keys)) / IVFPQ_BLOCK_POSTINGS;
	return 2 * code_bytes;
}

/*
 * Computes the layout for pq_dim sub-quantizers of 4 bits.  Returns false if
 * pq_dim is less than 1 or a block would take too many pages.
 */
bool
IvfpqLayoutInit(IvfpqLayout *layout, int pq_dim, bool refine,
				const IvfpqKeyForm *keys)
{
	if (pq_dim < 1 || pq_dim > IvfpqMaxPqDim(keys))
		return false;

	layout->refine = refine;
	layout->keys = *keys;
	layout->keys_at = FIXED_BYTES(refine);
	layout->code_bytes = (pq_dim + 1) / 2;
	layout->codes = layout->keys_at + IvfpqKeysBytes(keys);
	layout->body_bytes = layout->codes +
		IVFPQ_BLOCK_POSTINGS * layout->code_bytes;
	layout->nparts = (layout->body_bytes + MAX_PART_BYTES - 1) / MAX_PART_BYTES;
	layout->part_bytes =
		TYPEALIGN(IVFPQ_BLOCK_POSTINGS,
				  (layout->body_bytes + layout->nparts - 1) / layout->nparts);
	layout->slot_bytes = sizeof(IvfpqSlotHeader) + layout->part_bytes;
	layout->slots_per_page =
		layout->nparts > 1 ? 1 : IVFPQ_PAGE_BYTES / layout->slot_bytes;
	return true;
}

/*
 * Computes the layout of a trained index from its metapage.  Returns false if
 * the metapage's values are out of range.
 */
bool
IvfpqLayoutGet(IvfpqLayout *layout, const IvfpqMetaData *meta)
{
	IvfpqKeyForm keys;

	if (!IvfpqKeyFormGet(meta, &keys) ||
		!IvfpqLayoutInit(layout, meta->pq_dim,
						 meta->refine != IVFPQ_REFINE_NONE, &keys))
		return false;
	layout->training = meta->training;
	return true;
}

/*
 * Returns the default number of sub-quantizers, for users who do not choose
 * one.  It is max((dims + 1) / 2, min(dims, MIN_PQ_DIM)), because codes with
 * fewer bits would be too coarse, whatever the dimensions (src/am/README,
 * "Defaults").  IvfpqMaxPqDim(keys) is the upper limit.
 *
 * If a smaller number lets one more block share a page, that number is taken.
 * It must be at least MIN_PQ_DIM and 3/8 of dims.  With refine records or
 * keys, 1/3 of dims is enough, because refine records make it cheap to check
 * more candidates, and keys take space beside the codes.
 */
int
IvfpqDefaultPqDim(int dims, bool refine, const IvfpqKeyForm *keys)
{
	int			half = Min(Max((dims + 1) / 2, Min(dims, MIN_PQ_DIM)),
						   IvfpqMaxPqDim(keys));
	IvfpqLayout layout;
	int			least = refine || keys->nkeys > 0 ? (dims + 2) / 3 :
	(3 * dims + 7) / 8;
	int			slot_bytes;
	int			fewer;

	if (!IvfpqLayoutInit(&layout, half, refine, keys) || layout.nparts > 1)
		return half;

	slot_bytes = TYPEALIGN_DOWN(IVFPQ_BLOCK_POSTINGS,
								IVFPQ_PAGE_BYTES / (layout.slots_per_page + 1));
	fewer = 2 * ((slot_bytes - (int) sizeof(IvfpqSlotHeader) -
				  layout.codes) / IVFPQ_BLOCK_POSTINGS);
	if (fewer >= least && fewer >= MIN_PQ_DIM)
		return Min(fewer, half);
	return half;
}

/* Gets the keys from the metapage.  Returns false if they are out of range. */
bool
IvfpqKeyFormGet(const IvfpqMetaData *meta, IvfpqKeyForm *form)
{
	memset(form, 0, sizeof(*form));
	for (int k = 0; k < (int) lengthof(meta->key_kinds); k++)
	{
		int			kind = meta->key_kinds[k];
		int			width = meta->key_widths[k];

		if (kind == 0 && width == 0)
			continue;
		if (k != form->nkeys || k == IVFPQ_MAX_KEYS ||
			kind < IVFPQ_KEY_ORDERED || kind > IVFPQ_KEY_SIGNATURE ||
			(width != 1 && width != 2 && width != 4 && width != 8))
			return false;
		form->kind[k] = kind;
		form->width[k] = width;
		form->nkeys++;
	}
	return true;
}

/* Returns the offset of posting i's abbreviated key k in a block's keys. */
static int
key_abbrev_at(const IvfpqKeyForm *form, int k, int i)
{
	int			at = form->nkeys * (int) sizeof(IvfpqKeyHead);

	for (int before = 0; before < k; before++)
		at += IVFPQ_BLOCK_POSTINGS * form->width[before];
	return at + i * form->width[k];
}

/* Returns the number of bytes that keys take in a block, heads included. */
int
IvfpqKeysBytes(const IvfpqKeyForm *form)
{
	return key_abbrev_at(form, form->nkeys, 0);
}

/* Stores an abbreviated key in `width` bytes of *bytes; returns `bytes`. */
const void *
IvfpqKeyAbbrevBytes(uint64 abbrev, int width, IvfpqKeyBytes *bytes)
{
	switch (width)
	{
		case 1:
			bytes->one = (uint8) abbrev;
			break;
		case 2:
			bytes->two = (uint16) abbrev;
			break;
		case 4:
			bytes->four = (uint32) abbrev;
			break;
		default:
			bytes->eight = abbrev;
	}
	return bytes;
}

/* Returns the abbreviated key in `width` bytes, which may be unaligned. */
uint64
IvfpqKeyAbbrevOf(const char *bytes, int width)
{
	IvfpqKeyBytes abbrev;

	memcpy(&abbrev, bytes, width);
	switch (width)
	{
		case 1:
			return abbrev.one;
		case 2:
			return abbrev.two;
		case 4:
			return abbrev.four;
		default:
			return abbrev.eight;
	}
}

/* Gets the abbreviated keys of posting i from the keys of its block. */
void
IvfpqKeyAbbrevsGet(const IvfpqKeyForm *form, const char *keys, int i,
				   IvfpqKeyAbbrevs *abbrevs)
{
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) keys;

	memset(abbrevs, 0, sizeof(*abbrevs));
	for (int k = 0; k < form->nkeys; k++)
	{
		abbrevs->abbrev[k] =
			IvfpqKeyAbbrevOf(keys + key_abbrev_at(form, k, i),
							 form->width[k]);
		abbrevs->nulls |= (heads[k].nulls >> i & 1) << k;
	}
}

/* Returns a hash of a posting's abbreviated keys. */
uint64
IvfpqKeyAbbrevsDigest(const IvfpqKeyForm *form, const IvfpqKeyAbbrevs *abbrevs)
{
	uint64		digest = abbrevs->nulls;

	for (int k = 0; k < form->nkeys; k++)
	{
		/* each step maps different digests to different digests */
		digest = (digest ^ abbrevs->abbrev[k]) *
			UINT64CONST(0x9E3779B97F4A7C15);
		digest ^= digest >> 32;
	}
	return digest;
}

/*
 * Returns a copy of `head`, the head of key k, that is widened to cover
 * posting i.  If i is 0, returns a new head and ignores `head`, because `head`
 * was left by an earlier owner of the slot.
 */
IvfpqKeyHead
IvfpqKeyHeadWith(const IvfpqKeyForm *form, int k, const IvfpqKeyHead *head,
				 int i, const IvfpqKeyAbbrevs *abbrevs)
{
	IvfpqKeyHead with = {0};
	uint64		abbrev = abbrevs->abbrev[k];

	if (i > 0)
		with = *head;
	else if (form->kind[k] == IVFPQ_KEY_ORDERED)
		with.low = PG_UINT64_MAX;

	if (abbrevs->nulls >> k & 1)
		with.nulls |= 1U << i;
	else
		switch (form->kind[k])
		{
			case IVFPQ_KEY_ORDERED:
				with.low = Min(with.low, abbrev);
				with.high = Max(with.high, abbrev);
				break;
			case IVFPQ_KEY_HASH:
				with.low |= UINT64CONST(1) << abbrev % 64;
				break;
			default:
				with.low |= abbrev;
		}
	return with;
}

/* Returns whether the head of key k covers a posting with these keys. */
bool
IvfpqKeyHeadCovers(const IvfpqKeyForm *form, int k, const IvfpqKeyHead *head,
				   const IvfpqKeyAbbrevs *abbrevs)
{
	uint64		abbrev = abbrevs->abbrev[k];

	if (abbrevs->nulls >> k & 1)
		return true;
	switch (form->kind[k])
	{
		case IVFPQ_KEY_ORDERED:
			return head->low <= abbrev && abbrev <= head->high;
		case IVFPQ_KEY_HASH:
			return (head->low >> abbrev % 64 & 1) != 0;
		default:
			return (abbrev & ~head->low) == 0;
	}
}

/*
 * Writes posting i of a block.  Each byte of the posting is written, so that
 * bytes left by an earlier owner of the slot do no harm.  `body` is the body
 * of part 0, which has the heads of keys.
 */
static pg_attribute_always_inline void
put_posting(const IvfpqLayout *layout, const char *body, int i,
			const IvfpqPosting *posting, PutBytes put, const void *to)
{
	int			tids = IVFPQ_BLOCK_POSTINGS * (int) sizeof(ItemPointerData);
	int			ts = IVFPQ_BLOCK_POSTINGS * (int) sizeof(float4);
	const IvfpqKeyForm *form = &layout->keys;
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *)
	(body + layout->keys_at);
	int			at = layout->codes + i;
	int			part = 0;

	put(to, 0, i * (int) sizeof(ItemPointerData), &posting->tid,
		sizeof(ItemPointerData));
	put(to, 0, tids + i * (int) sizeof(float4), &posting->t, sizeof(float4));
	if (layout->refine)
		put(to, 0, tids + ts + i * (int) sizeof(ItemPointerData),
			&posting->refine, sizeof(ItemPointerData));

	/* abbreviated keys, and the heads that change because of them */
	for (int k = 0; k < form->nkeys; k++)
	{
		IvfpqKeyHead head = IvfpqKeyHeadWith(form, k, &heads[k], i,
											 posting->keys);
		IvfpqKeyBytes bytes;

		if (i == 0 || memcmp(&head, &heads[k], sizeof(head)) != 0)
			put(to, 0, layout->keys_at + k * (int) sizeof(head), &head,
				sizeof(head));
		put(to, 0, layout->keys_at + key_abbrev_at(form, k, i),
			IvfpqKeyAbbrevBytes(posting->keys->abbrev[k], form->width[k],
								&bytes),
			form->width[k]);
	}

	/* no division here, because this runs for every byte of an index */
	for (int p = 0; p < layout->code_bytes; p++, at += IVFPQ_BLOCK_POSTINGS)
	{
		for (; at >= layout->part_bytes; at -= layout->part_bytes)
			part++;
		put(to, part, at, &posting->code[p], 1);
	}
}

/*
 * Returns header->secondary with bit i set to posting->secondary.  The old bit
 * may be that of an earlier owner of the slot.
 */
static uint32
secondary_bits(const IvfpqSlotHeader *header, int i,
			   const IvfpqPosting *posting)
{
	return (header->secondary & ~(1U << i)) | (uint32) posting->secondary << i;
}

/* PutBytes for bodies in memory: `to` is char *[nparts], the parts' bodies. */
static inline void
put_bytes(const void *to, int part, int at, const void *from, int n)
{
	memcpy(((char *const *) to)[part] + at, from, n);
}

/*
 * Writes posting i of a block to parts [nparts], the bodies of the block's
 * parts.  `header` is the header of part 0.
 */
void
IvfpqBodySet(const IvfpqLayout *layout, IvfpqSlotHeader *header,
			 char *const *parts, int i, const IvfpqPosting *posting)
{
	header->secondary = secondary_bits(header, i, posting);
	put_posting(layout, parts[0], i, posting, put_bytes, parts);
}

/* PutBytes for patches: `to` points to a Patching. */
static inline void
patch_bytes(const void *to, int part, int at, const void *from, int n)
{
	const Patching *patching = to;

	IvfpqPatchAdd(&patching->patches[part],
				  patching->slots_at[part] + (int) sizeof(IvfpqSlotHeader) + at,
				  from, n);
}

/*
 * Does what IvfpqBodySet does, but adds the bytes to patches [nparts], one for
 * the page of each part, and leaves the pages as they are.  slots_at [nparts]
 * has the offset of each part's slot on its page.  `header` is the header of
 * part 0 on its page; the body follows it.
 */
void
IvfpqBodyPatch(const IvfpqLayout *layout, const IvfpqSlotHeader *header,
			   const int *slots_at, int i, const IvfpqPosting *posting,
			   IvfpqPatch *patches)
{
	Patching	patching = {slots_at, patches};
	uint32		secondary = secondary_bits(header, i, posting);

	if (secondary != header->secondary)
		IvfpqPatchAdd(&patches[0],
					  slots_at[0] + (int) offsetof(IvfpqSlotHeader, secondary),
					  &secondary, sizeof(secondary));
	put_posting(layout, (const char *) (header + 1), i, posting, patch_bytes,
				&patching);
}

/*
 * Sets *view to the arrays in a block's body.  The parts of the body must be
 * contiguous.  The block has `count` postings; `header` says which are dead.
 */
void
IvfpqBodyView(const IvfpqLayout *layout, const char *body, int count,
			  const IvfpqSlotHeader *header, IvfpqBlockView *view)
{
	view->tids = (const ItemPointerData *) body;
	view->t = (const float4 *) (view->tids + IVFPQ_BLOCK_POSTINGS);
	view->refine = layout->refine ?
		(const ItemPointerData *) (view->t + IVFPQ_BLOCK_POSTINGS) : NULL;
	view->keys = layout->keys.nkeys > 0 ? body + layout->keys_at : NULL;
	view->codes = (const uint8 *) body + layout->codes;
	view->ahead = NULL;
	view->live = (0xFFFFFFFF >> (IVFPQ_BLOCK_POSTINGS - count)) &
		~header->dead;
	view->secondary = header->secondary;
	view->passed_over = false;
}

/* Returns the number of bytes of a vector in refine records of this kind. */
int
IvfpqRecordCodeBytes(IvfpqRefine refine, int dims)
{
	return refine == IVFPQ_REFINE_HALF ? dims * (int) sizeof(uint16) : dims;
}

/* Returns the slot size of a refine record with code_bytes code bytes. */
int
IvfpqRecordSlotBytes(int code_bytes)
{
	return TYPEALIGN(sizeof(float4),
					 offsetof(IvfpqRecord, codes) + code_bytes);
}

/* Returns how many refine records with code_bytes code bytes fit on a page. */
int
IvfpqRecordSlots(int code_bytes)
{
	return (IVFPQ_PAGE_BYTES - sizeof(IvfpqRecordHeader)) /
		IvfpqRecordSlotBytes(code_bytes);
}

/* Returns the maximum dims for which a refine record fits on a page. */
int
IvfpqRecordMaxDims(IvfpqRefine refine)
{
	int			bytes = TYPEALIGN_DOWN(sizeof(float4),
									   IVFPQ_PAGE_BYTES -
									   sizeof(IvfpqRecordHeader)) -
	offsetof(IvfpqRecord, codes);

	return bytes / IvfpqRecordCodeBytes(refine, 1);
}
