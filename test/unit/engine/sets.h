/*
 * sets.h
 *		What the checks of sets share.
 */
#ifndef SETS_H
#define SETS_H

#include "engine/gv_set.h"
#include "unit.h"

/* Of an exact search. */
typedef struct Neighbor
{
	double		distance;
	int64_t		position;
} Neighbor;

/* The inputs of a set. */
typedef struct SetInputs
{
	const void *queries;		/* or first centroids, or ranks */
	const int64_t *self;
	const float *rows;
	int64_t		nrows;
	int64_t		batch;			/* rows that come at a time */
	const float *lists;			/* centroids, with spec.nlists */
} SetInputs;

/*
 * sets.c: all inputs of a set, but for rows that are kept, until it has
 * finished; the first status that is not GV_OK
 */
extern GvStatus run_set(GvSet *set, const GvSetSpec *spec,
						const SetInputs *inputs, bool kept,
						const GvStop *stop, GvSetDone *done, double *errors);

/* sets.c: a set that has finished, or NULL */
extern GvSet *finished_set(const GvSetSpec *spec, const SetInputs *inputs,
						   GvSetDone *done, double *errors);

/* check_sets.c: rows [nrows] in order, for a query; to be freed */
extern Neighbor *sorted_rows(const GvSetSpec *spec, const float *query,
							  const float *rows, int64_t nrows);

/* check_sets.c: vectors that are hard to compare in fp32 */
typedef enum Kind
{
	KIND_UNIFORM,
	KIND_FEW_VALUES,			/* ties */
	KIND_DUPLICATES,
	KIND_OFFSET,				/* near 1,000 */
	KIND_FAR_OFFSET,			/* near 1e6: the last bits differ */
	KIND_TINY,					/* squares of 1e-30 underflow */
	KIND_SUBNORMAL,
	KIND_HUGE,					/* squares of 1e30 overflow */
	KIND_MIXED,					/* from 1e-30 to 1e30 */
	KIND_ZEROS,					/* zero and constant vectors among others */
	KIND_ALL_EQUAL,
	NKINDS
} Kind;

extern void make_vector(Kind kind, float *x, int32_t dims,
						const float *earlier, int64_t nearlier);

/*
 * check_sets.c: one search, whose result must be sorted
 * [nqueries][nsorted[i]]
 */
extern void check_search(const GvSetSpec *spec, const SetInputs *inputs,
						 Neighbor *const *sorted, const int64_t *nsorted);

/* One function a file. */
extern void test_exact_sets(void);
extern void test_near_sets(void);
extern void test_kmeans_sets(void);
extern void test_set_calls(void);

#endif							/* SETS_H */
