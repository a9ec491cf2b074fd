/*
 * answerrows.h
 *		Rows of an answer, each met once, and the places of those expected.
 *
 * Calibration goes through the candidates of every query at every number of
 * lists, so this is a table that is emptied by counting up: entries of older
 * rounds are free.  Open addressing, half full at most.
 */
#ifndef IVFPQ_ANSWERROWS_H
#define IVFPQ_ANSWERROWS_H

#include "common/hashfn.h"
#include "port/pg_bitutils.h"

typedef struct IvfpqAnswerRow
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* the table's, or the entry is free */
	int32		place;			/* >= 0: expected, and not met yet */
} IvfpqAnswerRow;

typedef struct IvfpqAnswerRows
{
	uint32		mask;			/* entries - 1 */
	uint32		round;
	IvfpqAnswerRow *entries;	/* [mask + 1] */
} IvfpqAnswerRows;

/* Forget all rows. */
static inline void
IvfpqAnswerRowsForget(IvfpqAnswerRows *rows)
{
	if (++rows->round != 0)
		return;
	memset(rows->entries, 0, ((Size) rows->mask + 1) * sizeof(IvfpqAnswerRow));
	rows->round = 1;
}

/* Room for n rows, none of them there; memory from the current context. */
static inline void
IvfpqAnswerRowsResize(IvfpqAnswerRows *rows, int n)
{
	Size		entries = pg_nextpower2_32(2 * n);

	if (rows->entries)
		pfree(rows->entries);
	rows->entries = palloc_extended(entries * sizeof(IvfpqAnswerRow),
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	rows->mask = entries - 1;
	rows->round = 1;			/* new memory is of round 0 */
}

/* The entry of a row, or the free one that it would take. */
static inline IvfpqAnswerRow *
IvfpqAnswerRowsFind(const IvfpqAnswerRows *rows, uint64 id)
{
	uint32		i = murmurhash32((uint32) id ^
								 (uint32) (id >> 32) * UINT32_C(0x9E3779B1));
	IvfpqAnswerRow *row = &rows->entries[i & rows->mask];

	while (row->round == rows->round && row->id != id)
		row = &rows->entries[++i & rows->mask];
	return row;
}

/* Expect a row at a place >= 0. */
static inline void
IvfpqAnswerRowsAwait(IvfpqAnswerRows *rows, uint64 id, int place)
{
	IvfpqAnswerRow *row = IvfpqAnswerRowsFind(rows, id);

	row->id = id;
	row->round = rows->round;
	row->place = place;
}

/* Is the row met for the first time?  *place: where it is expected, or -1. */
static inline bool
IvfpqAnswerRowsMeet(IvfpqAnswerRows *rows, uint64 id, int *place)
{
	IvfpqAnswerRow *row = IvfpqAnswerRowsFind(rows, id);
	bool		is_new = row->round != rows->round;

	*place = is_new ? -1 : row->place;
	row->id = id;
	row->round = rows->round;
	row->place = -1;
	return is_new || *place >= 0;
}

#endif							/* IVFPQ_ANSWERROWS_H */
