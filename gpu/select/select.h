/*
 * select.h
 *		k-selection on a device: the first k values of each row of a matrix in
 *		its memory, and quantiles of an array.
 *
 * gv_select.h defines the order, items and methods.  Every method gives the
 * answers of gv_select and gv_quantiles on a processor, bit for bit, whatever
 * the input.  src/cpu/select has the same methods in files of the same names.
 *
 * Methods on a device, for a row of n = columns values:
 *	warp	(warpselect.cu) takes k <= 2,048, and reads the row once.  It takes
 *			n + k log(n / k) steps if the row is in random order, and
 *			n log^2(k) / 32 steps if the row descends.  If rows are few,
 *			several blocks share a row
 *	multi	(multiselect.cu) takes a row that fits into the registers of a
 *			block: n <= 16,384 and k <= 7,275, or n <= 8,192.  It reads the row
 *			once and counts the row's keys at most 64 times, and half as many
 *			times again if values are equal.  Method sample selects from longer
 *			rows, with even divisions alone
 *	sample	(sampleselect.cu) takes any n and k.  A sample of 4,096 items gives
 *			255 splitters, n log(256) steps count the buckets, the k-th item's
 *			bucket is divided evenly by 11 bits at a time, and a last read
 *			gathers the items.  It reads the row 3 or 4 times, and at most 8
 *			times whatever the input, and needs memory for twice
 *			k + max(k / 8, 4,096) items
 * Each method then sorts k items and a few more: up to 8,192 items, or 4,096
 * of doubles, in shared memory, more items by CUB.  Method multi is chosen: it
 * is the quickest for random values (test/bench/PAPERS.md, "selectcard").
 * Doubles are selected by method sample alone, whatever the spec's method.
 *
 * One thread at a time may use a selector, on the device that was current when
 * the selector was made.  A stream is a cudaStream_t, declared as void * so
 * that this header needs no header of CUDA.
 */
#ifndef GV_GPU_SELECT_H
#define GV_GPU_SELECT_H

#ifdef __cplusplus
extern "C"
{
#endif

#include "engine/gv_select.h"

/* The memory that selections work in.  It grows as needed and is kept. */
typedef struct GvSelector GvSelector;

extern GvStatus gv_gpu_selector(GvSelector **selector);
extern void gv_gpu_selector_drop(GvSelector *selector);

/*
 * Returns the method of a valid spec or, for auto, the method that is chosen.
 */
extern GvSelectMethod gv_gpu_select_choose(const GvSelect *spec);

/*
 * Selects the first k values of each row of d_values [rows][columns] by the
 * spec's method.  Stores their positions in the row in d_positions [rows][k],
 * and the values in d_selected [rows][k].  The spec must be valid and have
 * less than 2^31 rows.  Returns before the stream is done.  All calls with one
 * selector must use the same stream.
 */
extern GvStatus gv_gpu_select_rows(GvSelector *selector, const GvSelect *spec,
								   const void *d_values,
								   uint32_t *d_positions, void *d_selected,
								   void *stream);

/*
 * Does what gv_quantiles does, with the values in the device's memory and
 * everything else in the host's.  Exact quantiles take two reads of the
 * values, and a sort of the buckets that contain a wanted rank.  For each rank
 * they need memory for n / 128 items on average, and in all for at most 2 n
 * items.  Approximate quantiles take one read.  Waits for the stream.
 */
extern GvStatus gv_gpu_quantiles(GvSelector *selector,
								 const GvQuantiles *spec,
								 const void *d_values, const int64_t *ranks,
								 void *quantiles, int64_t *rank_errors,
								 void *stream);

#ifdef __cplusplus
}
#endif

#endif							/* GV_GPU_SELECT_H */
