/*
 * effort.h
 *		How many lists and candidates a batch of a scan takes (effort.c).
 */
#ifndef IVFPQ_EFFORT_H
#define IVFPQ_EFFORT_H

#include "page/page.h"

/* The highest recall that calibration looks for. */
#define IVFPQ_MOST_RECALL		0.99

/* What that takes, compared with this one, tells how fast it grows beyond. */
#define IVFPQ_LOWER_RECALL		0.95

typedef struct IvfpqEffort
{
	int			probes;
	int			candidates;
	int64		quota;			/* rows given out by the end of the batch */
	bool		everything;		/* read all lists and measure all rows */
} IvfpqEffort;

extern int	IvfpqFormulaProbes(const IvfpqMetaData *meta);
extern int	IvfpqFormulaCandidates(const IvfpqMetaData *meta);
extern double IvfpqBeyondTargets(double recall, double lower, double upper);
extern void IvfpqGetEffort(IvfpqEffort *effort, Relation index,
						   const IvfpqMetaData *meta, int batch);

#endif							/* IVFPQ_EFFORT_H */
