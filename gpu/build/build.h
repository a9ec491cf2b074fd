/*
 * build.h
 *	The CUDA builders: the steps that encode rows, and codebooks.
 */
#ifndef GV_BUILD_H
#define GV_BUILD_H

#include "gpu/kmeans/kmeans.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
}

/* -- codebooks.cu: see gv_codebooks; d_residuals is [n][dims] */
extern GvStatus gv_gpu_codebooks(int32_t dims, int32_t m, int32_t n,
								 const float *d_residuals, uint64_t seed,
								 float *d_codebooks, cudaStream_t stream);

/* -- encode.cu */

/* Rows, and the arrays that the steps of encoding read and fill. */
struct GvDeviceRows
{
	GvMetric	metric;
	int32_t		dims;
	int32_t		m;
	int32_t		n;
	int32_t		lists_per_row;
	float		scale;
	const float *d_mean;
	const float *d_codebooks;
	const float *d_centroids;
	float	   *d_rows;			/* [n][dims] */
	const GvProbe *d_nearest;	/* [n][near], nearest first */
	int32_t		near;
	int32_t    *d_lists;		/* [n][lists_per_row] */
	float	   *d_terms;		/* [n][lists_per_row] */
	uint8_t    *d_codes;		/* [n][lists_per_row][code_bytes] */
	float	   *d_min;			/* [n]; this array and the next three are for
								 * refine records */
	float	   *d_step;
	float	   *d_error;
	uint8_t    *d_records;		/* [n][dims], or uint16_t [n][dims] */
};

extern GvStatus gv_gpu_transform(const GvDeviceRows *rows,
								 cudaStream_t stream);
extern GvStatus gv_gpu_lists(const GvDeviceRows *rows, cudaStream_t stream);
extern GvStatus gv_gpu_residuals(const GvDeviceRows *rows, float *d_residuals,
								 cudaStream_t stream);
extern GvStatus gv_gpu_codes(const GvDeviceRows *rows, GvRecords records,
							 cudaStream_t stream);

#endif							/* GV_BUILD_H */
