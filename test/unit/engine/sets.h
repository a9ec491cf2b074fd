/*
 * sets.h
 *		What the checks of sets share.
 */
#ifndef SETS_H
#define SETS_H

#include "engine/gv_set.h"
#include "selections.h"

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
 * Runs of a set with the same inputs: one at each level of a processor's
 * instructions, or a device's.
 */
#ifdef UNIT_MIRRORS
#define SET_RUNS	1
#else
#define SET_RUNS	(GV_NSIMD - GV_SIMD_PORTABLE)
#endif

/*
 * All inputs of a set, but for rows that are kept, until it has finished; the
 * first status that is not GV_OK.  errors [iterations + 1] are those of
 * passes, or NULL.
 */
extern GvStatus run_set(GvSet *set, const GvSetSpec *spec,
						const SetInputs *inputs, bool kept,
						const GvStop *stop, GvSetDone *done, double *errors);

/* A set that has finished, or NULL. */
extern GvSet *finished_set(const GvSetSpec *spec, const SetInputs *inputs,
						   GvSetDone *done, double *errors);

/* An exact search: positions and distances [nqueries][k]. */
extern void find_neighbors(const GvSetSpec *spec, const SetInputs *inputs,
						   int64_t *positions, double *distances);

/*
 * All steps of a set of any kind without `self`, from the rows' own numbers:
 * the first status that is not GV_OK, after which the set has to be lost.
 */
extern GvStatus use_set(const GvSetSpec *spec, const float *rows,
						const GvStop *stop);

/*
 * Who asks for the end gets it, whenever that is, and is asked nasked times or
 * more.
 */
extern void check_set_stops(const GvSetSpec *spec, int nasked);

/* Vectors that are hard to compare in fp32, or as halves. */
typedef enum Kind
{
	KIND_UNIFORM,
	KIND_CLUSTERED,				/* in the order of clusters */
	KIND_FEW_VALUES,			/* ties */
	KIND_NEAR_TIES,				/* distances differ by their last bits */
	KIND_DUPLICATES,
	KIND_OFFSET,				/* near 1,000 */
	KIND_FAR_OFFSET,			/* near 1e6: the last bits differ */
	KIND_TINY,					/* squares of 1e-30 underflow */
	KIND_SUBNORMAL,
	KIND_HUGE,					/* squares of 1e30 overflow */
	KIND_MIXED,					/* from 1e-30 to 1e30 */
	KIND_OUTLIERS,				/* some that half precision cannot hold */
	KIND_ZEROS,					/* zero and constant vectors among others */
	KIND_COMING,				/* ever nearer to all queries */
	KIND_ALIKE,					/* all dimensions are rounded to a half the
								 * same way */
	KIND_ALL_EQUAL,
	NKINDS
} Kind;

/*
 * nrows rows of a kind, and queries, which may be rows, and lists of it as
 * spec has them.
 */
extern SetInputs make_inputs(const GvSetSpec *spec, Kind kind, int64_t nrows);
extern void free_inputs(SetInputs *inputs);

#define OwnInputs	UNIT_OWN(free_inputs) SetInputs

/*
 * check_setmeans.c: k-means from seeds [k][dims] finds what plain loops find,
 * bit for bit.
 */
extern void check_clusters(const GvSetSpec *spec, const float *seeds,
						   const float *rows);

/*
 * Multiplies rows by powers of two from 2^-30 to 2^29, so that sums in double
 * depend on the order in which they are added.
 */
extern void stretch_rows(float *rows, int64_t n, int32_t dims);

/* One function a file. */
extern void test_exact_sets(void);
extern void test_near_sets(void);
extern void test_kmeans_sets(void);
extern void test_set_calls(void);

#endif							/* SETS_H */
