/*
 * build.h
 *		What the files of the CUDA builders share.
 */
#ifndef GV_BUILD_H
#define GV_BUILD_H

#include "gpu/common/gv_batch.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
}

/* Device memory of n elements. */
template <typename T>
static inline GvStatus
gv_device_alloc(T **memory, int64_t n)
{
	return gv_cuda_status(cudaMalloc((void **) memory,
									 (size_t) (n > 0 ? n : 1) * sizeof(T)));
}

static inline int
gv_blocks_for(int64_t n, int threads)
{
	return (int) ((n + threads - 1) / threads);
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

/* The outcome of k-means, and how it was found. */
struct GvKmeansFound
{
	int32_t		k;
	int32_t		passes;			/* that compared everything */
	double		split_s;		/* dividing clusters */
};

/* kmeans.cu: see gv_kmeans; d_x [n][dims] -> d_centroids [k][dims] */
extern GvStatus gv_gpu_kmeans(const GvKmeans *spec, const float *d_x,
							  float *d_centroids, GvKmeansFound *found,
							  GvFinder *finder, const GvStop *stop);

#ifdef GV_TEST_BUILD
/* Compare everything after a rebalancing, too, unless `yes`. */
extern "C" void gv_gpu_kmeans_follows(bool yes);
#endif

/* split.cu: one step of it */
struct GvSplit
{
	int32_t		big;			/* cluster whose rows are divided */
	int32_t		small;			/* that gets the second half's place */
};

extern GvStatus gv_gpu_split(const float *d_x, int32_t dims,
							 const uint32_t *d_order,
							 const uint32_t *d_starts, const GvSplit *d_splits,
							 int32_t nsplits, uint64_t seed,
							 float *d_centroids, int32_t *d_done,
							 cudaStream_t stream);

/* reassign.cu: rows and the clusters that they are in */
struct GvClustered
{
	const float *d_x;			/* [n][dims] */
	int64_t		n;
	const float *d_centroids;	/* as they are now, */
	const GvTargets *targets;	/* and as these */
	const uint32_t *d_order;	/* [n] rows by cluster, as they were */
	const uint32_t *d_starts;	/* [k + 1] */
	GvProbe    *d_nearest;		/* [n] nearest of the centroids as they were;
								 * brought up to date */
};

/* Memory of the device to follow changes of a few centroids. */
struct GvReassign
{
	GvTargets	targets;
	int32_t		most_changed;
	int32_t		most_orphans;
	int32_t		piece;			/* orphans at once */
	uint32_t   *d_changed;		/* [most_changed] */
	uint32_t   *d_places;		/* [most_changed] */
	float	   *d_centroids;	/* [most_changed][dims] */
	uint32_t   *d_orphans;		/* [most_orphans] */
	float	   *d_rows;			/* [piece][dims] */
	GvProbe    *d_found;		/* [n] */
};

extern GvStatus gv_reassign_create(GvReassign *re, int32_t dims, int64_t n,
								   int32_t k, cudaStream_t stream);
extern void gv_reassign_drop(GvReassign *re);

/*
 * The centroids changed [nchanged], ascending, are others than before; their
 * clusters had norphans rows, those of the i-th from places[i] on.
 */
extern GvStatus gv_gpu_reassign(GvReassign *re, const GvClustered *of,
								const uint32_t *changed,
								const uint32_t *places, int32_t nchanged,
								int32_t norphans, GvFinder *finder,
								const GvStop *stop);

/* d_to [n][dims] = rows d_from[d_order[i]] */
extern GvStatus gv_gpu_gather(const float *d_from, const uint32_t *d_order,
							  int32_t n, int32_t dims, float *d_to,
							  cudaStream_t stream);

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

/* splitmix64: the next 64 random bits. */
static __host__ __device__ __forceinline__ uint64_t
gv_device_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/*
 * A target and its score for a row that has one already, or list -1: the
 * nearer counts, of equally near ones the first.
 */
static __device__ __forceinline__ void
gv_take_nearer(GvProbe *mine, int32_t list, float base)
{
	if (mine->list < 0 || base < mine->base ||
		(base == mine->base && list < mine->list))
		*mine = {list, base};
}

/* Round to float, values beyond its range to the largest of their sign. */
static __device__ __forceinline__ float
gv_device_clamp(double value)
{
	if (value > (double) FLT_MAX)
		return FLT_MAX;
	if (value < -(double) FLT_MAX)
		return -FLT_MAX;
	return (float) value;
}

#endif							/* GV_BUILD_H */
