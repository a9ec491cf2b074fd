/*
 * searches.h
 *		Exact searches by one engine's own functions, from the first call to
 *		the last, and vectors that they may find hard, for the checks of them
 *		on a device.
 */
#ifndef SEARCHES_H
#define SEARCHES_H

#include "engine/gv_set.h"

#include "../engine/unit.h"

/* gpu/device/device.h, gpu/exact */
extern const GvSetOps gv_gpu_exact_set;
extern int32_t gv_exact_capacity;
extern int32_t gv_exact_seed;
extern int64_t gv_exact_ways[2];
extern bool gv_exact_no_hopper;

/* Of emulate/; not there on a device. */
extern int64_t gv_emulated_fault __attribute__((weak));

/* A step of a thread takes a processor a hundred times as long as its own. */
static inline bool
device_is_emulated(void)
{
	return &gv_emulated_fault != NULL;
}

/*
 * Bytes of the device's memory that are taken, and so many more, at most, that
 * a real device's are, which it gives in pieces.
 */
extern int64_t device_used(void);

#define DEVICE_PIECES	(device_is_emulated() ? 0 : INT64_C(32) << 20)

/* The distribution of rows and queries. */
typedef enum Look
{
	LOOK_NORMAL,
	LOOK_CLUSTERED,				/* in the order of clusters */
	LOOK_TIES,					/* small whole numbers */
	LOOK_SAME,					/* all rows are equal */
	LOOK_OFFSET,				/* small beside their common offset */
	LOOK_ZEROS,					/* every third vector does not vary */
	LOOK_RANGE,					/* lengths of 10^-30 to 10^30 */
	LOOK_OUTLIER,				/* one that half precision cannot hold */
	LOOK_TINY,					/* near the least float */
	LOOK_COMING,				/* ever nearer to all queries */
	LOOK_MIXED,					/* of clusters in turn */
	LOOK_OUTLIERS				/* some that half precision cannot hold */
} Look;

/* [n][dims] in guarded memory. */
extern float *look_vectors(Look look, int64_t n, int32_t dims);

/* The inputs of a set. */
typedef struct SearchInputs
{
	float	   *queries;		/* [nqueries][dims] */
	float	   *rows;			/* [nrows][dims] */
	int64_t    *self;			/* [nqueries], with spec.self */
	float	   *lists;			/* [nlists][dims], with spec.nlists */
	int64_t		batch;			/* rows put at a time */
} SearchInputs;

extern void free_search_inputs(SearchInputs *in);
#define OwnInputs	UNIT_OWN(free_search_inputs) SearchInputs

/* The outputs of a set. */
typedef struct SearchOutputs
{
	int64_t    *positions;		/* [nqueries][k] */
	double	   *distances;		/* the same */
} SearchOutputs;

static inline SearchOutputs
make_outputs(const GvSetSpec *spec)
{
	size_t		n = (size_t) (spec->nqueries * spec->k);
	SearchOutputs out = {unit_alloc(sizeof(int64_t) * n),
	unit_alloc(sizeof(double) * n)};

	return out;
}

static inline void
free_outputs(SearchOutputs *out)
{
	unit_free(out->positions);
	unit_free(out->distances);
}

#define OwnOutputs	UNIT_OWN(free_outputs) SearchOutputs

/* A whole search; the stop is asked where rows come, and out may be NULL. */
extern GvStatus run_search(const GvSetOps *ops, const GvSetSpec *spec,
						   const SearchInputs *in, const GvStop *stop,
						   const SearchOutputs *out);

/* The same of rows that a set keeps, of which there might have been more. */
extern GvStatus keep_rows(const GvSetOps *ops, const GvSetSpec *spec,
						  const SearchInputs *in, void **state);
extern GvStatus ask_search(const GvSetOps *ops, void *state,
						   const GvSetSpec *spec, const SearchInputs *in,
						   const SearchOutputs *out);

/* Neighbors that differ in a bit, but for which NaN a distance is. */
extern int64_t count_differences(const GvSetSpec *spec,
								 const SearchOutputs *a,
								 const SearchOutputs *b);

/* A GvStop that says no as often as *(int *) arg has it. */
extern bool counts_down(void *arg);

#endif							/* SEARCHES_H */
