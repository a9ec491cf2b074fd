/*
 * damage.c
 *		Changes of an index's pages, as disks and crashes make them.
 */
#include "samples.h"

static void
swap_pages(char *a, char *b)
{
	char		kept[BLCKSZ];

	memcpy(kept, a, BLCKSZ);
	memcpy(a, b, BLCKSZ);
	memcpy(b, kept, BLCKSZ);
}

/* Numbers within a page. */
static void
change_bytes(char *page, const Damage *damage)
{
	int			at = damage->at % BLCKSZ;
	uint32		number;

	switch (damage->kind)
	{
		case DAMAGE_BYTE:
			page[at] = (char) damage->value;
			break;
		case DAMAGE_SHORT:
			memcpy(page + Min(at, BLCKSZ - 2), &damage->value, 2);
			break;
		case DAMAGE_LONG:
			memcpy(page + Min(at, BLCKSZ - 4), &damage->value, 4);
			break;
		case DAMAGE_ADD:
			at = Min(at, BLCKSZ - 4);
			memcpy(&number, page + at, 4);
			number += damage->value;
			memcpy(page + at, &number, 4);
			break;
		default:
			page[at] ^= (char) (1 << damage->value % 8);
			break;
	}
}

static void
change_page(const Damage *damage)
{
	BlockNumber n = backend_npages;
	char	   *page;
	char	   *other;
	int			at = damage->at % BLCKSZ;

	if (n == 0)
		return;
	page = backend_pages[damage->page % n];
	other = backend_pages[damage->value % n];
	switch (damage->kind % NDAMAGES)
	{
		case DAMAGE_COPY:
			memmove(page, other, BLCKSZ);
			break;
		case DAMAGE_SWAP:
			if (page != other)
				swap_pages(page, other);
			break;
		case DAMAGE_ZERO:
			memset(page, 0, BLCKSZ);
			break;
		case DAMAGE_TEAR:
			memmove(page + at, other + at, BLCKSZ - at);
			break;
		case DAMAGE_CUT:
			backend_set_npages(damage->page % n);
			break;
		case DAMAGE_FREE:
			backend_set_free_space(damage->page, damage->at);
			break;
		default:
			change_bytes(page, damage);
			break;
	}
}

void
damage_index(const Damage *damages, int n)
{
	for (int i = 0; i < n; i++)
		change_page(&damages[i]);
}
