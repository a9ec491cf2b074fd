/*
 * ladder.h
 *		Recall grids: what calibration queries find with ever more lists
 *		(ladder.c), and what it takes to find enough (cheapest.c).
 */
#ifndef IVFPQ_LADDER_H
#define IVFPQ_LADDER_H

#include "am/calibrate/answerrows.h"
#include "am/calibrate/calibrate.h"
#include "am/search/search.h"

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

/* ladder.c */
extern IvfpqRecallGrid *IvfpqRecallGridBegin(IvfpqCalibration *calibration,
											 Relation index, const IvfpqModel *model,
											 IvfpqParallel *parallel);
extern void IvfpqRecallGridMeasure(IvfpqRecallGrid *grid,
								   IvfpqCalibMirror *mirror,
								   const IvfpqGridSpec *spec);
extern void IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
								IvfpqParallel *parallel);
extern void IvfpqRecallGridEnd(IvfpqRecallGrid *grid);

/* cheapest.c */
extern int	IvfpqCheapest(const IvfpqRecallGrid *grid, double z,
						  IvfpqMetaData *meta);

#endif							/* IVFPQ_LADDER_H */
