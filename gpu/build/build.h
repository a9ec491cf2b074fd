/*
 * build.h
 *	The CUDA builders: the search for the nearest of some vectors, the steps
 *	that encode rows, and codebooks.
 */
#ifndef GV_BUILD_H
#define GV_BUILD_H

#include "gpu/kmeans/kmeans.h"
#include "gpu/search/search.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
}

/* -- assign.cu */

/*
 * The vectors among which nearest vectors are searched for, as the part of a
 * mirror that a search for lists needs.
 */
struct GvCentroids
{
	GvMirror	mirror;			/* model, device, stream, `changed` */
	int32_t		capacity;		/* vectors */
	GvDeviceList *d_lists;		/* [capacity] all empty */
};

/* The memory of a search for the nearest vectors. */
struct GvAssigner
{
	GvSearcher	searcher;		/* stream, cuBLAS, d_sort, d_work */
	GvBuffer	d_batch;		/* scores, starts, wanted, found */
};

extern GvStatus gv_centroids_create(GvCentroids *centroids, GvMetric metric,
									int32_t dims, int32_t capacity,
									cudaStream_t stream);
extern void gv_centroids_drop(GvCentroids *centroids);
extern GvStatus gv_centroids_set(GvCentroids *centroids,
								 const float *d_vectors, int32_t n);

/*
 * Sets d_nearest [n][p] to the p nearest targets of rows [n][dims], ascending
 * by (score, target).  Scores are gv_coarse's; p is at most the number of
 * targets.
 */
extern GvStatus gv_gpu_assign(GvAssigner *assigner,
							  const GvCentroids *centroids,
							  const float *d_rows, int64_t n, int32_t p,
							  GvProbe *d_nearest, const GvStop *stop);
extern void gv_assigner_drop(GvAssigner *assigner);

/* -- codebooks.cu: see gv_codebooks; d_residuals [n][dims] */
extern GvStatus gv_gpu_codebooks(const GvModel *model, int32_t n,
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
	float	   *d_min;			/* [n]; this and the next: for refine
								 * records */
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
