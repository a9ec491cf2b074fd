/*
 * delta.h
 *		Generic WAL records of changes that the caller knows.
 *
 * The caller locks the pages exclusively, and makes a patch for each page,
 * which lists the bytes to be written to the page.  IvfpqPatchLog then writes
 * the bytes and logs all patches as one WAL record.
 */
#ifndef IVFPQ_DELTA_H
#define IVFPQ_DELTA_H

#include "access/generic_xlog.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#define IVFPQ_MAX_PATCHES	MAX_GENERIC_XLOG_PAGES	/* per WAL record */

/*
 * A patch: the bytes to be written to a page, in the form that generic WAL
 * records have:
 *
 *		+--------+--------+--------------+--------+---
 *		| offset | length | length bytes | offset | ...
 *		+--------+--------+--------------+--------+---
 *
 * Offset and length are OffsetNumbers.  Nothing is aligned.
 */
typedef struct IvfpqPatch
{
	Buffer		buffer;			/* buffer of the page, exclusively locked */
	int			nbytes;			/* number of bytes used in `bytes` */
	char		bytes[BLCKSZ];
} IvfpqPatch;

static inline void
IvfpqPatchInit(IvfpqPatch *patch, Buffer buffer)
{
	patch->buffer = buffer;
	patch->nbytes = 0;
}

/* Adds `length` bytes to be written at `offset` of the page. */
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

/* Writes the bytes of a patch to a page. */
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
