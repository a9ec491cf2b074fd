/*
 * ladder.h
 *		What a calibration's queries find with ever more lists
 *		(ladder.c).
 */
#ifndef IVFPQ_LADDER_H
#define IVFPQ_LADDER_H

#include "am/calibrate/answerrows.h"
#include "am/calibrate/calibrate.h"
#include "am/scan/search.h"

#define IVFPQ_MAX_STEPS		48
#define IVFPQ_MAX_WIDTHS	32

/* Rows of an answer that count at each depth. */
#define IVFPQ_DEPTH_ROWS	{IVFPQ_FIRST_ROWS, IVFPQ_DEEP_ROWS}

/* What is to be found for a query. */
typedef struct IvfpqTruth
{
	int			nneighbours;
	uint64		neighbours[IVFPQ_DEEP_ROWS];	/* ids, the nearest first */
} IvfpqTruth;

/*
 * True neighbours found at each depth, step and width, and their squares,
 * summed over queries: whole numbers, so the order of adding does not matter.
 */
typedef struct IvfpqTally
{
	int64		nqueries;
	int64		sum[IVFPQ_DEPTHS][IVFPQ_MAX_STEPS][IVFPQ_MAX_WIDTHS];
	int64		squares[IVFPQ_DEPTHS][IVFPQ_MAX_STEPS][IVFPQ_MAX_WIDTHS];
} IvfpqTally;

typedef struct IvfpqLadder
{
	IvfpqCalibration *calibration;
	IvfpqTeam  *team;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	int			nsteps;
	int			probes[IVFPQ_MAX_STEPS];
	int			nwidths;
	int			widths[IVFPQ_MAX_WIDTHS];	/* candidates */

	IvfpqTruth *truth;			/* of the query at hand */
	GvTopK		sorted;			/* copy of the candidates */
	IvfpqAnswerRows rows;		/* of the answer at hand */
	IvfpqTally	found;
} IvfpqLadder;

extern IvfpqLadder *IvfpqLadderBegin(IvfpqCalibration *calibration,
									 Relation index, const IvfpqModel *model,
									 IvfpqTeam *team);
extern void IvfpqLadderClimb(IvfpqLadder *ladder, IvfpqTrial *trial,
							 int nqueries, int most, int most_width);
extern void IvfpqLadderHelp(IvfpqCalibration *calibration, Relation index,
							IvfpqTeam *team);
extern void IvfpqLadderEnd(IvfpqLadder *ladder);

#endif							/* IVFPQ_LADDER_H */
