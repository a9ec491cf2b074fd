/*
 * sets.h
 *		What the checks of sets share.
 */
#ifndef SETS_H
#define SETS_H

#include "engine/gv_set.h"
#include "unit.h"

/* Of an exact search. */
typedef struct Neighbour
{
	double		distance;
	int64_t		position;
} Neighbour;

/* What one set was given. */
typedef struct SetInputs
{
	const void *queries;		/* or first centroids, or ranks */
	const int64_t *self;
	const float *rows;
	int64_t		nrows;
	int64_t		batch;			/* rows that come at a time */
} SetInputs;

/* sets.c: a set that has finished, or NULL */
extern GvSet *finished_set(const GvSetSpec *spec, const SetInputs *inputs,
						   GvSetDone *done, double *errors);

/* One function a file. */
extern void test_exact_sets(void);
extern void test_kmeans_sets(void);
extern void test_set_calls(void);

#endif							/* SETS_H */
