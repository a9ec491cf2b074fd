/*
 * blockkeys.c
 *		The keys of a block: a head for each, which sums up its images, then the
 *		images column by column.  format.h says what a head holds.
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

/* Where the image of copy i for key k is in a block's keys. */
int
IvfpqKeyImageAt(const IvfpqKeyForm *form, int k, int i)
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
	return IvfpqKeyImageAt(form, form->nkeys, 0);
}

/* An image of so many bytes as it is stored; returns them. */
const void *
IvfpqKeyImageBytes(uint64 image, int width, IvfpqKeyBytes *bytes)
{
	switch (width)
	{
		case 1:
			bytes->one = (uint8) image;
			break;
		case 2:
			bytes->two = (uint16) image;
			break;
		case 4:
			bytes->four = (uint32) image;
			break;
		default:
			bytes->eight = image;
	}
	return bytes;
}

/* The image that is stored in so many bytes, which need not be aligned. */
uint64
IvfpqKeyImageOf(const char *bytes, int width)
{
	IvfpqKeyBytes image;

	memcpy(&image, bytes, width);
	switch (width)
	{
		case 1:
			return image.one;
		case 2:
			return image.two;
		case 4:
			return image.four;
		default:
			return image.eight;
	}
}

/* The images of copy i of a block with these keys. */
void
IvfpqKeyImagesGet(const IvfpqKeyForm *form, const char *keys, int i,
				  IvfpqKeyImages *images)
{
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) keys;

	memset(images, 0, sizeof(*images));
	for (int k = 0; k < form->nkeys; k++)
	{
		images->image[k] = IvfpqKeyImageOf(keys + IvfpqKeyImageAt(form, k, i),
										   form->width[k]);
		images->nulls |= (heads[k].nulls >> i & 1) << k;
	}
}

/* A number that tells the images of two copies apart, as far as any can. */
uint64
IvfpqKeyImagesDigest(const IvfpqKeyForm *form, const IvfpqKeyImages *images)
{
	uint64		digest = images->nulls;

	for (int k = 0; k < form->nkeys; k++)
	{
		/* each step maps numbers one to one */
		digest = (digest ^ images->image[k]) *
			UINT64CONST(0x9E3779B97F4A7C15);
		digest ^= digest >> 32;
	}
	return digest;
}

/* The head of key k without any copy. */
static IvfpqKeyHead
empty_head(const IvfpqKeyForm *form, int k)
{
	IvfpqKeyHead head = {0};

	if (form->kind[k] == IVFPQ_KEY_ORDERED)
		head.low = PG_UINT64_MAX;
	return head;
}

/*
 * The head of key k, `head` before, with copy i in it.  Copy 0 is a block's
 * first, so it begins the head, whatever an earlier owner of the slot left.
 */
IvfpqKeyHead
IvfpqKeyHeadWith(const IvfpqKeyForm *form, int k, const IvfpqKeyHead *head,
				 int i, const IvfpqKeyImages *images)
{
	IvfpqKeyHead with = i == 0 ? empty_head(form, k) : *head;
	uint64		image = images->image[k];

	if (images->nulls >> k & 1)
		with.nulls |= 1U << i;
	else
		switch (form->kind[k])
		{
			case IVFPQ_KEY_ORDERED:
				with.low = Min(with.low, image);
				with.high = Max(with.high, image);
				break;
			case IVFPQ_KEY_HASH:
				with.low |= UINT64CONST(1) << image % 64;
				break;
			default:
				with.low |= image;
		}
	return with;
}

/* Does a head of key k tell of this copy? */
bool
IvfpqKeyHeadCovers(const IvfpqKeyForm *form, int k, const IvfpqKeyHead *head,
				   const IvfpqKeyImages *images)
{
	uint64		image = images->image[k];

	if (images->nulls >> k & 1)
		return true;
	switch (form->kind[k])
	{
		case IVFPQ_KEY_ORDERED:
			return head->low <= image && image <= head->high;
		case IVFPQ_KEY_HASH:
			return (head->low >> image % 64 & 1) != 0;
		default:
			return (image & ~head->low) == 0;
	}
}
