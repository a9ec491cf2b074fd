/*
 * select.h
 *		k-selection on a device: the first k values of each row of a matrix in
 *		its memory, and quantiles of an array.
 *
 * gv_select.h defines the order, items and methods.  Every method gives the
 * answers of gv_select and gv_quantiles on a processor, bit for bit, whatever
 * the input.  src/cpu/select has the same methods in files of the same names.
 *
 * Methods on a device, for a row of n = columns values
 *	warp	(warpselect.cu) k <= 2,048, one read.  n + k log(n / k) steps if
 *			the row is in random order, n log^2(k) / 32 if it descends.  If
 *			rows are few, several blocks share a row
 *	multi	(multiselect.cu) one read of a row that fits into the registers of
 *			a block: n <= 16,384 and k <= 7,275, or n <= 8,192.  At most 64
 *			counts of the row, and half as many again if values are equal.
 *			Longer rows are selected as by sample, with even divisions alone
 *	sample	(sampleselect.cu) any n and k: a sample of 4,096 gives 255
 *			splitters, n log(256) steps count the buckets, the k-th item's
 *			bucket is divided evenly by 11 bits at a time, and a last read
 *			gathers.  3 or 4 reads, at most 8 whatever the input; memory for
 *			k + max(k / 8, 4,096) items, twice
 * All methods then sort k items and a few more: up to 8,192 in shared memory,
 * more by CUB.
 *
 * One thread at a time may use a selector, on the device that was current when
 * the selector was made.  A stream is a cudaStream_t; this header needs none
 * of CUDA's.
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
 * Selects the first k values of each row of d_values [rows][columns], of less
 * than 2^31 rows, by the spec's method: positions in the row -> d_positions
 * [rows][k], values -> d_selected [rows][k].  The spec is valid.  Returns
 * before the stream is done; all calls with one selector use one stream.
 */
extern GvStatus gv_gpu_select_rows(GvSelector *selector, const GvSelect *spec,
								   const float *d_values,
								   uint32_t *d_positions, float *d_selected,
								   void *stream);

/*
 * gv_quantiles with values on the device and all else in the host's memory.
 * Exact quantiles take two reads, and a sort of the buckets that contain a
 * wanted rank: memory for n / 128 items a rank on average, and for 2 n items
 * at most.  Approximate ones take one read.  Waits for the stream.
 */
extern GvStatus gv_gpu_quantiles(GvSelector *selector, const float *d_values,
								 int64_t n, const int64_t *ranks,
								 int32_t nranks, bool approximate,
								 float *quantiles, int64_t *rank_errors,
								 void *stream);

#ifdef __cplusplus
}
#endif

#endif							/* GV_GPU_SELECT_H */
