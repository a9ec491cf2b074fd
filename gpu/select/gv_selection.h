/*
 * gv_selection.h
 *		k-selection on a device: the k first of each row of a matrix that lies
 *		there, and quantiles of an array.
 *
 * The order, and what an item is, are gv_select.h's: answers are those of
 * gv_select and gv_quantiles on a processor, bit for bit, by every way and
 * for every input.
 *
 * Ways, n = columns; times are of a row that fills its share of the device
 *	team		quick multi-select: a warp has the row in registers up to 1,024
 *				values, two to 16 warps up to 16,384; k <= 2,048.  One read.
 *				For k <= 376 of a warp's row, 248 of a block's, a bound is the
 *				last of some threads' minima or an estimate between two that
 *				were counted, 12 at most, mostly 1 to 4, of n / threads steps
 *				each.
 *				Beyond that keys are counted: at most 64 counts, and half of
 *				that again for ties.  No memory but shared.  Komarov, Dashti,
 *				D'Souza, 2014
 *	threshold	beyond that, k <= 4,096 and n / 24: a sample of n / 32 values,
 *				n / 64 for k <= 256, 4,096 at least and a million at most,
 *				gives an item that is after the k-th and before another few
 *				hundred with a probability of 1 - 10^-6; one read keeps what is
 *				not after it.  Where it did not hold, as in rows made for it,
 *				the row goes by radix.  Memory for 8,192 items a row, of at
 *				most 256 MB at a time
 *	warp		k <= 2,048, one read: n + k log(n / k) steps in random order,
 *				n log^2(k) / 32 where a row descends; a row is spread over
 *				blocks, which tell each other their bounds.  Johnson, Douze,
 *				Jegou, 2017, section 4.2
 *	sample		any k: a sample of 4,096 gives 255 splitters, n log(256) steps
 *				count the buckets, what is in the k-th item's bucket is
 *				divided evenly by 11 bits at a time, and a last read gathers:
 *				at most 8 reads whatever the input, 3 or 4 where it is not made
 *				for it; memory for k + max(k / 8, 4,096) items a row.  Ribizel,
 *				Anzt, 2019, its variant that counts in shared memory
 *	radix		the same without a sample: at most 7 reads, 3 or 4 mostly
 * All then sort k items and some more: up to 8,192 in shared memory, beyond by
 * CUB, rows side by side where they are many.
 *
 * Everything here may be called by one thread at a time for each selector, and
 * for the device that the thread has chosen.  A stream is a cudaStream_t; no
 * header of CUDA's is needed to include this one.
 */
#ifndef GV_SELECTION_H
#define GV_SELECTION_H

#ifdef __cplusplus
extern "C"
{
#endif

#include "engine/gv_select.h"

typedef enum GvRowsWay
{
	GV_ROWS_TEAM,
	GV_ROWS_THRESHOLD,
	GV_ROWS_WARP,
	GV_ROWS_SAMPLE,
	GV_ROWS_RADIX
} GvRowsWay;

#define GV_NROWS_WAYS	(GV_ROWS_RADIX + 1)

#define GV_TEAM_COLUMNS	16384	/* that a block has in registers */

/* Memory that selections work in, grown as needed and kept. */
typedef struct GvSelector GvSelector;

extern GvStatus gv_gpu_selector(GvSelector **selector);
extern void gv_gpu_selector_drop(GvSelector *selector);

/* Can a valid spec be answered so?  And how is it best?  Its method counts. */
extern bool gv_gpu_rows_can(const GvSelect *spec, GvRowsWay way);
extern GvRowsWay gv_gpu_rows_choose(const GvSelect *spec);

/* Bytes of the selector's memory that a call takes, as gv_buffer_need does. */
extern size_t gv_gpu_rows_bytes(const GvSelect *spec, GvRowsWay way);

/*
 * Of each row of d_values [rows][columns] the k first, in order: positions
 * [rows][k] in the row, values [rows][k].  The spec is valid and the way one
 * that can.  All of it is work for the stream, in which calls with one
 * selector stay; returns before it is done.
 */
extern GvStatus gv_gpu_select_rows(GvSelector *selector, const GvSelect *spec,
								   GvRowsWay way, const float *d_values,
								   uint32_t *d_positions, float *d_selected,
								   void *stream);

/*
 * See gv_quantiles, which its answers are the same as if exact; approximate:
 * one level of SampleSelect, one read.  values lie on the device, all else
 * with the host.  Exact: two reads, and a sort of the buckets that hold a
 * wanted rank: memory for 2 n items at most, n / 128 a rank where the input is
 * not made for it.  Waits for the stream.
 */
extern GvStatus gv_gpu_quantiles(GvSelector *selector, const float *d_values,
								 int64_t n, const int64_t *ranks,
								 int32_t nranks, bool approximate,
								 float *quantiles, int64_t *rank_errors,
								 void *stream);

#ifdef GV_TEST_BUILD

/* "team", "threshold", "warp", "sample", "radix" */
extern const char *gv_gpu_rows_name(GvRowsWay way);

/*
 * The same of arrays that the host has.  On the device values lie as they do
 * with the host, modulo 16 bytes.
 */
extern GvStatus gv_gpu_select_host(GvSelector *selector, const GvSelect *spec,
								   GvRowsWay way, const float *values,
								   uint32_t *positions, float *selected);
extern GvStatus gv_gpu_quantiles_host(GvSelector *selector,
									  const float *values, int64_t n,
									  const int64_t *ranks, int32_t nranks,
									  bool approximate, float *quantiles,
									  int64_t *rank_errors);

/* Rows that a threshold did not hold for so far; waits for all. */
extern GvStatus gv_gpu_rows_missed(GvSelector *selector, uint32_t *missed);

/*
 * Samples give a threshold this many ranks too low or, negative, too high; 0:
 * none.
 */
extern void gv_gpu_rows_mislead(int32_t ranks);

#endif

#ifdef __cplusplus
}
#endif

#endif							/* GV_SELECTION_H */
