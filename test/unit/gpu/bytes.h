/*
 * bytes.h
 *		What a mirror takes of a card's memory, from first principles, and
 *		mirrors without contents to compare that with (gpu/README, "Bytes a
 *		row").
 */
#ifndef BYTES_H
#define BYTES_H

#include "engine/mirror/gv_mirror.h"

/* An index that a card is to hold, or several cards together. */
typedef struct CardIndex
{
	int64_t		rows;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		lists;
	int64_t		postings;			/* of all rows */
	bool		records;		/* refine = sq8 */
	int32_t		key_bytes;		/* of a block: gv_keys_bytes */
	int32_t		cards;			/* that have a share of lists and records, and
								 * all centroids */
} CardIndex;

/* Of each card. */
extern int64_t card_bytes(const CardIndex *index);

/* Refine records that a page of an index has room for. */
extern int32_t card_record_slots(int32_t dims);

/*
 * A mirror of an index without keys, on devices 0 .. cards - 1, with lists
 * between half and one and a half times as long as the mean, all zero; NULL: an
 * engine's call has failed.
 */
extern GvMirror *card_mirror(const CardIndex *index);

#endif							/* BYTES_H */
