/*
 * recallgrid.h
 *		Rows of an answer, each counted once, and the places of those expected.
 *
 * Calibration goes through the candidates of every query at every number of
 * lists, so this is a hash table that is emptied by counting `round` up:
 * entries of older rounds are free.  Open addressing, half full at most.
 */
#ifndef IVFPQ_RECALLGRID_H
#define IVFPQ_RECALLGRID_H

#include "am/build/calibrate.h"
#include "common/hashfn.h"
#include "port/pg_bitutils.h"

#include "am/search/search.h"

typedef struct IvfpqAnswerRow
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* equals the table's, or the entry is free */
	int32		place;			/* >= 0: expected, and not seen yet */
} IvfpqAnswerRow;

typedef struct IvfpqAnswerRows
{
	uint32		mask;			/* entries - 1 */
	uint32		round;
	IvfpqAnswerRow *entries;	/* [mask + 1] */
} IvfpqAnswerRows;

/* Forgets all rows. */
static inline void
IvfpqAnswerRowsForget(IvfpqAnswerRows *rows)
{
	if (++rows->round != 0)
		return;
	memset(rows->entries, 0, ((Size) rows->mask + 1) * sizeof(IvfpqAnswerRow));
	rows->round = 1;
}

/*
 * Empties the table and gives it capacity for n rows; memory from the current
 * context.
 */
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

/* Returns the entry of a row, or the free one that it would take. */
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

/* Expects a row at a place >= 0. */
static inline void
IvfpqAnswerRowsAwait(IvfpqAnswerRows *rows, uint64 id, int place)
{
	IvfpqAnswerRow *row = IvfpqAnswerRowsFind(rows, id);

	row->id = id;
	row->round = rows->round;
	row->place = place;
}

/*
 * Returns whether the row is seen for the first time, and sets *place to where
 * it is expected, or -1.
 */
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

/* ----
 * Recall grids: what calibration queries find with ever more lists
 * (recallgrid.c), and what it takes to find enough (recallgrid.c).
 */

#define IVFPQ_MAX_STEPS		48
#define IVFPQ_MAX_WIDTHS	36

/* The neighbors of a query that were found at a step of the grid. */
typedef struct IvfpqGridFound
{
	uint8		widths[IVFPQ_GROUND_TRUTH_ROWS];	/* the first that finds
													 * each neighbor; nwidths:
													 * none does */
} IvfpqGridFound;

typedef struct IvfpqRecallGrid
{
	IvfpqCalibration *calibration;
	IvfpqParallel *parallel;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	IvfpqGridSpec spec;			/* which the grid is laid out for */
	int			nsteps;
	int			probes[IVFPQ_MAX_STEPS];
	int			nwidths;
	int			widths[IVFPQ_MAX_WIDTHS];	/* candidates */

	IvfpqGroundTruth *ground_truth; /* of the query at hand */
	int			capacity;		/* postings that are kept of a query */
	GvTopK		sorted;			/* those so far, nearest first; memory for
								 * twice as many */
	IvfpqAnswerRows rows;		/* of the answer at hand */
	int		   *nneighbors;		/* [spec.nqueries]; 0: nothing to find */
	IvfpqGridFound *found;			/* [spec.nqueries][nsteps] */
} IvfpqRecallGrid;

/* recallgrid.c */
extern IvfpqRecallGrid *IvfpqRecallGridBegin(IvfpqCalibration *calibration,
											 Relation index, const IvfpqModel *model,
											 IvfpqParallel *parallel);
extern void IvfpqRecallGridMeasure(IvfpqRecallGrid *grid,
								   IvfpqCalibMirror *mirror,
								   const IvfpqGridSpec *spec);
extern void IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
								IvfpqParallel *parallel);
extern void IvfpqRecallGridEnd(IvfpqRecallGrid *grid);

/* recallgrid.c */
extern int	IvfpqCheapest(const IvfpqRecallGrid *grid, double z,
						  IvfpqMetaData *meta);

#endif							/* IVFPQ_RECALLGRID_H */
