/*
 * blockkeys.c
 *		The keys of a block: a head for each, which sums up its abbreviated
 *		keys, then these column by column. format.h says what a head holds.
 */
#include "postgres.h"

#include "page/format/layout.h"

/*
 * Which keys the contents of a metapage tell of; false where they make no
 * sense.
 */
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

/* Bytes that the heads of a block's keys take. */
int
IvfpqKeyHeadsBytes(const IvfpqKeyForm *form)
{
	return form->nkeys * (int) sizeof(IvfpqKeyHead);
}

/* Returns where posting i's abbreviated key k is in a block's keys. */
int
IvfpqKeyAbbrevAt(const IvfpqKeyForm *form, int k, int i)
{
	int			at = IvfpqKeyHeadsBytes(form);

	for (int before = 0; before < k; before++)
		at += IVFPQ_BLOCK_POSTINGS * form->width[before];
	return at + i * form->width[k];
}

/* Bytes that keys take in a block. */
int
IvfpqKeysBytes(const IvfpqKeyForm *form)
{
	return IvfpqKeyAbbrevAt(form, form->nkeys, 0);
}

/* Stores an abbreviated key in `width` bytes; returns these. */
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

/*
 * Returns the abbreviated key stored in `width` bytes, which need not be
 * aligned.
 */
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

/* Gets the abbreviated keys of posting i of a block with these keys. */
void
IvfpqKeyAbbrevsGet(const IvfpqKeyForm *form, const char *keys, int i,
				   IvfpqKeyAbbrevs *abbrevs)
{
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) keys;

	memset(abbrevs, 0, sizeof(*abbrevs));
	for (int k = 0; k < form->nkeys; k++)
	{
		abbrevs->abbrev[k] =
			IvfpqKeyAbbrevOf(keys + IvfpqKeyAbbrevAt(form, k, i),
							 form->width[k]);
		abbrevs->nulls |= (heads[k].nulls >> i & 1) << k;
	}
}

/*
 * Returns a number that tells the abbreviated keys of two postings apart, as
 * far as any can.
 */
uint64
IvfpqKeyAbbrevsDigest(const IvfpqKeyForm *form, const IvfpqKeyAbbrevs *abbrevs)
{
	uint64		digest = abbrevs->nulls;

	for (int k = 0; k < form->nkeys; k++)
	{
		/* each step maps numbers one to one */
		digest = (digest ^ abbrevs->abbrev[k]) *
			UINT64CONST(0x9E3779B97F4A7C15);
		digest ^= digest >> 32;
	}
	return digest;
}

/* Returns the head of key k without any posting. */
static IvfpqKeyHead
empty_head(const IvfpqKeyForm *form, int k)
{
	IvfpqKeyHead head = {0};

	if (form->kind[k] == IVFPQ_KEY_ORDERED)
		head.low = PG_UINT64_MAX;
	return head;
}

/*
 * Returns the head of key k, `head` before, with posting i in it.  Posting 0
 * is a block's first, so it begins the head, whatever an earlier owner of the
 * slot left.
 */
IvfpqKeyHead
IvfpqKeyHeadWith(const IvfpqKeyForm *form, int k, const IvfpqKeyHead *head,
				 int i, const IvfpqKeyAbbrevs *abbrevs)
{
	IvfpqKeyHead with = i == 0 ? empty_head(form, k) : *head;
	uint64		abbrev = abbrevs->abbrev[k];

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

/* Returns whether a head of key k covers this posting. */
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
