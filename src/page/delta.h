/*
 * delta.h
 *		Generic records of changes that are known: see delta.c.
 */
#ifndef IVFPQ_DELTA_H
#define IVFPQ_DELTA_H

#include "access/generic_xlog.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#define IVFPQ_MAX_PATCHES	MAX_GENERIC_XLOG_PAGES	/* in a record */

/*
 * The bytes to be written on a page, in the form that generic records have:
 *
 *		+--------+--------+-------------+--------+---
 *		| offset | length | length bytes | offset | ...
 *		+--------+--------+-------------+--------+---
 *
 * two OffsetNumbers and then the bytes, unaligned, one change behind the
 * other.
 */
typedef struct IvfpqPatch
{
	Buffer		buffer;			/* of the page, exclusively locked */
	int			nbytes;			/* in use */
	char		bytes[BLCKSZ];
} IvfpqPatch;

static inline void
IvfpqPatchInit(IvfpqPatch *patch, Buffer buffer)
{
	patch->buffer = buffer;
	patch->nbytes = 0;
}

/* `length` bytes are to be written at `offset` of the page. */
static inline void
IvfpqPatchAdd(IvfpqPatch *patch, OffsetNumber offset, const void *from,
			  OffsetNumber length)
{
	char	   *end = patch->bytes + patch->nbytes;

	Assert(offset >= SizeOfPageHeaderData && offset + length <= BLCKSZ);
	Assert(patch->nbytes + 2 * sizeof(OffsetNumber) + length <= BLCKSZ);
	memcpy(end, &offset, sizeof(offset));
	memcpy(end + sizeof(offset), &length, sizeof(length));
	memcpy(end + 2 * sizeof(OffsetNumber), from, length);
	patch->nbytes += 2 * (int) sizeof(OffsetNumber) + length;
}

/* Copies all bytes that were added to the patch onto a page. */
static inline void
IvfpqPatchApply(const IvfpqPatch *patch, char *page)
{
	const char *next = patch->bytes;

	while (next < patch->bytes + patch->nbytes)
	{
		OffsetNumber offset;
		OffsetNumber length;

		memcpy(&offset, next, sizeof(offset));
		memcpy(&length, next + sizeof(offset), sizeof(length));
		next += 2 * sizeof(OffsetNumber);
		memcpy(page + offset, next, length);
		next += length;
	}
}

extern void IvfpqPatchLog(Relation index, IvfpqPatch *patches,
						  int npatches);

#endif							/* IVFPQ_DELTA_H */
