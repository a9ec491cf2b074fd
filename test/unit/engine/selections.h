/*
 * selections.h
 *		Inputs that selection may find hard, and what a sort makes of them.
 */
#ifndef SELECTIONS_H
#define SELECTIONS_H

#include "cpu/select/items.h"
#include "unit.h"

typedef enum Input
{
	IN_UNIFORM,
	IN_SORTED,
	IN_REVERSED,
	IN_ALL_EQUAL,
	IN_FEW_VALUES,
	IN_ZEROS,					/* of both signs */
	IN_SPECIAL,					/* NaN, infinities, zeros among others */
	IN_ALL_NAN,					/* of both signs, with payloads */
	IN_PIPE,					/* up, then down */
	IN_SAW,						/* ascends again and again */
	IN_ALIKE,					/* the keys differ in their last byte */
	IN_SPREAD,					/* as many keys under each leading byte */
	IN_SAMPLE_HOSTILE,			/* samples are the smallest items left */
	IN_PIVOT_HOSTILE,			/* pivots are the smallest items left */
	NINPUTS
} Input;

/* n values in guarded memory. */
extern float *input_values(Input input, int64_t n);

/* A value and its position. */
typedef struct Sorted
{
	float		value;			/* NaN and -0 as they are returned */
	uint32_t	position;
} Sorted;

/* A row in gv_select.h's order, by qsort and a comparison of its own. */
extern Sorted *sort_row(const float *row, int64_t n);

static inline bool
same_bits(float a, float b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

/* An engine's gv_select. */
typedef GvStatus (*SelectRows) (const GvSelect *spec, const float *values,
								uint32_t *positions, float *selected);

/*
 * Checks that each method selects from rows what sorted [rows] says, whose rows
 * begin with the longest of ks [nks]; ks that there cannot be are left out.
 */
extern void check_ks(SelectRows select_rows, Input input, const float *values,
					 int64_t rows, int64_t columns, Sorted *const *sorted,
					 const int64_t *ks, int nks);

/* The same of a matrix whose rows are sorted for that. */
extern void check_matrix(SelectRows select_rows, Input input,
						 const float *values, int64_t rows, int64_t columns,
						 const int64_t *ks, int nks);

/* Checks answers of gv_quantiles against a sorted row of n. */
extern void check_quantiles(const Sorted *sorted, int64_t n,
							const int64_t *ranks, const float *quantiles,
							const int64_t *errors, int32_t nranks,
							bool approximate, Input input);

#endif							/* SELECTIONS_H */
