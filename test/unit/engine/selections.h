/*
 * selections.h
 *		Inputs that selection may find hard, and what a sort makes of them; of
 *		GvValues, or of doubles where GV_DOUBLES is defined (check_doubles.c).
 */
#ifndef SELECTIONS_H
#define SELECTIONS_H

#include "cpu/select/items.h"
#include "unit.h"

#define DOUBLES			(sizeof(GvValue) == 8)
#define input_values	GV_OF(input_values)
#define sort_row		GV_OF(sort_row)
#define check_ks		GV_OF(check_ks)
#define check_matrix	GV_OF(check_matrix)
#define check_quantiles	GV_OF(check_quantiles)
#define check_selection_set	GV_OF(check_selection_set)
#define check_quantiles_set	GV_OF(check_quantiles_set)

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
extern GvValue *input_values(Input input, int64_t n);

/* A value and its position. */
typedef struct Sorted
{
	GvValue		value;			/* NaN and -0 as they are returned */
	uint32_t	position;
} Sorted;

/* A row in gv_select.h's order, by qsort and a comparison of its own. */
extern Sorted *sort_row(const GvValue *row, int64_t n);

static inline bool
same_bits(GvValue a, GvValue b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

/* An engine's gv_select. */
typedef GvStatus (*SelectRows) (const GvSelect *spec, const GvValue *values,
								uint32_t *positions, GvValue *selected);

/*
 * Checks that each method selects from rows what sorted [rows] says, whose rows
 * begin with the longest of ks [nks]; ks that there cannot be are left out.
 */
extern void check_ks(SelectRows select_rows, Input input, const GvValue *values,
					 int64_t rows, int64_t columns, Sorted *const *sorted,
					 const int64_t *ks, int nks);

/* The same of a matrix whose rows are sorted for that. */
extern void check_matrix(SelectRows select_rows, Input input,
						 const GvValue *values, int64_t rows, int64_t columns,
						 const int64_t *ks, int nks);

/* Checks answers of gv_quantiles against a sorted row of n. */
extern void check_quantiles(const Sorted *sorted, int64_t n,
							const int64_t *ranks, const GvValue *quantiles,
							const int64_t *errors, int32_t nranks,
							bool approximate, Input input);

/* Checks that sets select from n values, and find quantiles of them. */
extern void check_selection_set(Input input, int64_t n, int32_t k,
								GvSelectMethod method);
extern void check_quantiles_set(Input input, int64_t n, int32_t nranks,
								bool approximate);

#endif							/* SELECTIONS_H */
