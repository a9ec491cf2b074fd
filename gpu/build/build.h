/*
 * build.h
 *		What the files of the CUDA builders share.
 */
#ifndef GV_BUILD_H
#define GV_BUILD_H

#include "gpu/kmeans/kmeans.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
}

/*
 * Vectors, to the nearest of which others are assigned (assign.cu): the part
 * of a mirror that a search for lists needs.
 */
struct GvTargets
{
	GvMirror	mirror;			/* device, stream and `changed` of it */
	int32_t		capacity;			/* vectors */
	GvDeviceList *d_lists;		/* [capacity] all empty */
};

/* The memory of such searches. */
struct GvFinder
{
	GvSearcher	searcher;		/* stream and buffers */
	GvBuffer	d_batch;		/* scores, starts, wanted, found */
};

extern GvStatus gv_targets_create(GvTargets *targets, GvMetric metric,
								  int32_t dims, int32_t capacity,
								  cudaStream_t stream);
extern void gv_targets_drop(GvTargets *targets);
extern GvStatus gv_targets_set(GvTargets *targets, const float *d_vectors,
							   int32_t n);

/*
 * d_nearest [n][p]: for rows [n][dims] the p nearest targets, p at most their
 * number, ascending by (score, target), as gv_coarse gives scores.
 */
extern GvStatus gv_gpu_assign(GvFinder *finder, const GvTargets *targets,
							   const float *d_rows, int64_t n, int32_t p,
							   GvProbe *d_nearest, const GvStop *stop);
extern void gv_finder_drop(GvFinder *finder);

/* codebooks.cu: see gv_codebooks; d_residuals [n][dims], of which *d_n */
extern GvStatus gv_gpu_codebooks(const GvModel *model, int32_t n,
								 const float *d_residuals, uint64_t seed,
								 float *d_codebooks, cudaStream_t stream);

/* encode.cu: rows [n][dims] on their way to postings */
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
	const GvProbe *d_nearest;		/* [n][near], nearest first */
	int32_t		near;
	int32_t    *d_lists;		/* [n][lists_per_row] */
	float	   *d_t;			/* [n][lists_per_row] */
	uint8_t    *d_codes;		/* [n][lists_per_row][code_bytes] */
	float	   *d_min;			/* [n], the rest only with refine records */
	float	   *d_step;
	float	   *d_error;
	uint8_t    *d_records;		/* [n][dims], or uint16_t [n][dims] */
};

extern GvStatus gv_gpu_transform(const GvDeviceRows *rows,
								 cudaStream_t stream);
extern GvStatus gv_gpu_lists(const GvDeviceRows *rows, cudaStream_t stream);
extern GvStatus gv_gpu_residuals(const GvDeviceRows *rows, float *d_residuals,
								 cudaStream_t stream);
extern GvStatus gv_gpu_codes(const GvDeviceRows *rows, cudaStream_t stream);
extern GvStatus gv_gpu_refine(const GvDeviceRows *rows, cudaStream_t stream);
extern GvStatus gv_gpu_half_records(const GvDeviceRows *rows,
									cudaStream_t stream);

/* build.cu */
struct GvBuilder
{
	GvBuilderSpec spec;
	GvModel		model;			/* without arrays */
	cudaStream_t stream;
	GvFinder	finder;
	float	   *d_mean;
	float	   *d_sample;		/* [sample_rows][dims] transformed */
	int64_t		nsample;
	float	   *d_queries;		/* [nqueries][dims] transformed */
	int32_t		nqueries;
	GvTrained	trained;		/* nlists 0: not yet */
	float	   *d_codebooks;
	float	   *d_centroids;	/* [nlists][dims] */
	float	   *parents;		/* the host's [nparents][dims] */
	int32_t    *parent_offsets;			/* [nparents + 1] */
	GvTargets	lists;			/* centroids */
	GvTargets	nearest_rows;		/* rows of a batch, for the queries */
	GvTopK	   *best;			/* [nqueries] rows nearest to each */
	uint64_t	nencoded;		/* rows */
	GvBuffer	d_in;			/* rows of a batch */
	GvBuffer	d_out;			/* what comes back of it */
	GvBuffer	out;			/* pinned */
	GvBuffer	d_nearest;			/* probes of rows, and of queries */
};

#endif							/* GV_BUILD_H */
