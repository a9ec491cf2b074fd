/*
 * exact.h
 *		Exact search on the device: arrays, and the functions of its files.
 *
 *	rows	of a batch: half copies, biases (rows.cu)
 *	queries	half copies, and their errors (rows.cu)
 *	and for slots first .. last - 1 of a batch
 *		thresholds	what the scores of a query's candidates must reach
 *					(thresholds.cu)
 *		filter		the slots that reach it: candidates (filter.cu,
 *					hopperfilter.cu)
 *		nearest		the nearest candidates by exact distances, merged with
 *					those of earlier slots (nearest.cu)
 *	Queries that overflow, since they have no threshold or more candidates than
 *	fit, are searched again by
 *		full scores	all scores to memory, a threshold from these
 *					(thresholds.cu), then filter and nearest
 *	and if too many slots reach that threshold as well, by
 *		brute force	all rows are reranked
 * batch.cu has the steps in order, nearlists.cu does the same for the rows of
 * near lists alone, and exactset.cu implements gv_set.h.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "gpu/product/product.h"

extern "C"
{
#include "engine/gv_set.h"
}

#define GV_EXACT_NO_ROW	UINT32_C(0xFFFFFFFF)
#define GV_EXACT_ALIGN	256		/* slots; the last ones of a batch may be
								 * fewer */
#define GV_EXACT_FEW	16		/* most queries that are few */
#define GV_EXACT_COLUMNS (INT64_C(1) << 20) /* most slots of full scores */
#define GV_EXACT_SEED	2048	/* slots that first thresholds are from */
#define GV_EXACT_FEW_SEED	32768	/* the same for few queries */

/* The scale of a set's rows, and the length of their mean. */
struct GvExactScale
{
	double		scale;			/* of rows */
	double		length;			/* |m| */
};

struct GvExactNormalization
{
	int32_t		metric;			/* GvSetMetric */
	int32_t		dims;
	int32_t		half_dims;		/* rounded up to 16 */
	double	   *d_mean;			/* [dims] m */
	GvExactScale *d_scale;
};

/* The rows of a batch, in the order of slots. */
struct GvExactRows
{
	const float *d_rows;		/* [n][dims] */
	int64_t		n;				/* below 2^31 */
	int64_t		stride;
	uint16_t   *d_half_rows;	/* [n][half_dims] by slots */
	float	   *d_bias;			/* [n]; -infinity up to GV_EXACT_ALIGN */
	float	   *d_error_bounds; /* [n] e(x) */
	uint32_t   *d_order;		/* [n] rows by slots; NULL: by stride */
};

/* A query's form: the numbers that the filter needs of it. */
struct GvExactQuery
{
	double		square;			/* |p|^2, for L2 */
	double		unit;			/* of S, for inner products; 1 for L2 */
	double		offset;			/* unit <u(q), m>; 0 for L2 */
	float		error_bound;	/* e(q), without the part of the threshold */
	int32_t		kind;			/* GvExactKind */
};

/* Queries and their neighbors. */
struct GvExactQueries
{
	int64_t		n;
	int64_t		k;				/* neighbors of each */
	const float *d_queries;		/* [n][dims] */
	const int64_t *d_self;		/* [n], or NULL */
	uint16_t   *d_half_queries; /* [n][half_dims] */
	GvExactQuery *d_forms;		/* [n] */
	double	   *d_distances;	/* [n][k] sorted; NaN where there is none */
	int64_t    *d_positions;	/* [n][k] INT64_MAX where there is none */
};

/*
 * Some queries: those of a list, or n from `first` on.  Arrays that steps pass
 * to each other are indexed by the number among these.
 */
struct GvExactPart
{
	const uint32_t *d_list;		/* [n], or NULL */
	int64_t		first;
	int32_t		n;
};

/*
 * The candidates of queries, which the filter appends and nearest.cu uses up.
 */
struct GvExactFilter
{
	float	   *d_thresholds;	/* [n] least A of a candidate */
	uint32_t   *d_counts;		/* [n] candidates; may exceed capacity */
	uint32_t   *d_candidates;	/* [n][capacity] slots, and rows once
								 * reranked */
	uint32_t	capacity;
	bool		pdl;			/* some steps may be launched early */
};

/* The candidates' distances, and memory to merge them. */
struct GvExactFound
{
	double	   *d_distances;	/* [n][capacity] */
	double	   *d_merged;		/* [n][k] */
	int64_t    *d_merged_positions;
	uint32_t   *d_ready;		/* [n] blocks that have reranked; 0 */
};

/* Lists of queries that overflowed: for full scores, and for brute force. */
struct GvExactOverflowed
{
	uint32_t   *d_counts;		/* [2] of each list */
	uint32_t   *d_full_scores;	/* [n] numbers of queries */
	uint32_t   *d_brute_force;	/* [n] */
};

/* A product of n queries and slots first .. first + nslots - 1. */
struct GvExactMatmul
{
	int32_t		half_dims;
	int32_t		n;
	uint32_t	first;
	uint32_t	nslots;
	const uint16_t *d_queries;	/* [n][half_dims] */
	const uint16_t *d_half_rows;	/* [nslots][half_dims] */
	const float *d_bias;		/* [nslots] */
	float	   *d_scores;		/* [n][nslots] A is stored there; NULL: A is
								 * filtered */
	GvExactFilter filter;
};

/* Returns the slots that n rows have memory for. */
static inline __host__ __device__ int64_t
gv_exact_padded(int64_t n)
{
	return (n + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN * GV_EXACT_ALIGN;
}

/* Places the arrays of n queries, except the vectors themselves. */
static inline void
gv_exact_place_queries(GvExactQueries *queries, int32_t half_dims,
					   char *memory, size_t *bytes)
{
	int64_t		pairs = queries->n * queries->k;

	gv_place(&queries->d_half_queries, memory, bytes, queries->n * half_dims);
	gv_place(&queries->d_forms, memory, bytes, queries->n);
	gv_place(&queries->d_distances, memory, bytes, pairs);
	gv_place(&queries->d_positions, memory, bytes, pairs);
}

/* Places the arrays of slots, except the rows themselves and their order. */
static inline void
gv_exact_place_rows(GvExactRows *rows, int64_t slots, int32_t half_dims,
					char *memory, size_t *bytes)
{
	gv_place(&rows->d_half_rows, memory, bytes, slots * half_dims);
	gv_place(&rows->d_bias, memory, bytes, slots);
	gv_place(&rows->d_error_bounds, memory, bytes, slots);
}

/* -- steps */

/*
 * rows.cu.  _normalization: mean and scale from n rows.  _rows: half copies,
 * biases and error bounds of rows.  _queries: half copies and forms of
 * queries, which have no neighbors yet.  _stride: of slots, for n rows.
 */
extern GvStatus gv_gpu_exact_normalization(const GvExactNormalization *norm,
										   const float *d_rows, int64_t n,
										   cudaStream_t stream);
extern GvStatus gv_gpu_exact_rows(const GvExactNormalization *norm,
								  const GvExactRows *rows,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_queries(const GvExactNormalization *norm,
									 const GvExactQueries *queries,
									 cudaStream_t stream);
extern int64_t gv_gpu_exact_stride(int64_t n);

/*
 * The filter's product.  filter.cu: _scan for few queries, and _matmul for
 * any; hopperfilter.cu: _hopper, on devices of compute capability 9.0.
 */
extern bool gv_gpu_exact_scan_fits(const GvExactMatmul *matmul);
extern GvStatus gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_matmul(const GvExactMatmul *matmul,
									const GvBlas *blas, cudaStream_t stream);
extern bool gv_gpu_exact_hopper_fits(const GvExactMatmul *matmul,
									 int32_t device);
extern GvStatus gv_gpu_exact_hopper(const GvExactMatmul *matmul, int nsms,
									cudaStream_t stream);

/* Memory for searches. */
struct GvExactWork
{
	int32_t		device;
	int			nsms;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	GvBuffer	d_work;			/* all of the following */
	int32_t		piece;			/* queries at a time */
	int32_t		nfull;			/* queries of full scores at a time */
	int64_t		nscores;		/* memory for scores */
	float	   *d_scores;
	uint16_t   *d_gathered;		/* [matrix][half_dims] */
	GvExactFilter filter;		/* of a piece */
	GvExactFound found;
	GvExactOverflowed lists;
	uint32_t   *counts;			/* pinned [2] */
	int64_t		seen;			/* rows of earlier batches */
};

/* A search of the rows of a batch, or of a tile. */
struct GvExactSearch
{
	GvExactWork *work;
	const GvExactNormalization *norm;
	const GvExactRows *rows;
	const GvExactQueries *queries;
	const GvStop *stop;
};

/* The slots that thresholds from scores are for. */
enum GvExactUse
{
	GV_FOR_THESE,				/* those of the scores */
	GV_FOR_OTHERS,				/* others, too: queries without a threshold
								 * overflow, because hopperfilter.cu cannot
								 * compare sums with none */
	GV_FOR_OVERFLOWED			/* those of the scores, which had too many
								 * candidates: find the k-th bound exactly */
};

/*
 * thresholds.cu.  _thresholds: those of a part from its neighbors; queries
 * without one are appended to the work's lists.  _undefined: lists the queries
 * whose distances are all NaN for brute force.  _score_thresholds: thresholds
 * and candidates from scores and from neighbors, if there are any; clears
 * `lists` unless that is NULL.
 */
extern GvStatus gv_gpu_exact_thresholds(const GvExactSearch *search,
										const GvExactPart *part);
extern GvStatus gv_gpu_exact_undefined(const GvExactSearch *search,
									   const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_score_thresholds(const GvExactSearch *search,
											  const GvExactPart *part,
											  const GvExactMatmul *matmul,
											  GvExactUse use,
											  const GvExactOverflowed *lists);

/* rows.cu: copies the half copies of a part's queries side by side */
extern GvStatus gv_gpu_exact_gather(const GvExactSearch *search,
									const GvExactPart *part);

/* Slots that are all candidates, at most a query's capacity, or none. */
struct GvExactSlots
{
	uint32_t	first;
	uint32_t	n;
};

/*
 * nearest.cu: reranks the candidates of a part's queries, or `slots` if there
 * are any, and merges them with the neighbors so far.  Appends queries with
 * too many candidates to d_list.
 */
extern GvStatus gv_gpu_exact_nearest(const GvExactSearch *search,
									 const GvExactPart *part,
									 GvExactSlots slots, uint32_t *d_count,
									 uint32_t *d_list);

/* -- batch.cu */

/* The sizes that memory for searches follows from. */
struct GvExactAmount
{
	int64_t		n;				/* queries */
	int64_t		k;				/* neighbors of each */
	int64_t		nrows;			/* rows of a batch */
	int32_t		capacity;		/* least candidates of a query; 0: as usual */
};

/*
 * _work: allocates memory for this amount; _bytes: returns its bytes; _drop:
 * may be called when it was half made.
 */
extern size_t gv_gpu_exact_work_bytes(int32_t device,
									  const GvExactNormalization *norm,
									  const GvExactAmount *amount);
extern GvStatus gv_gpu_exact_work(GvExactWork *work, int32_t device,
								  const GvExactNormalization *norm,
								  const GvExactAmount *amount);
extern void gv_gpu_exact_work_drop(GvExactWork *work);

/*
 * Searches the rows of a batch.  The caller raises work->seen afterwards.  The
 * first batch makes half copies of queries.
 */
extern GvStatus gv_gpu_exact_search(const GvExactSearch *search);

/*
 * For the tiles of nearlists.cu: rows in an order, padded to GV_EXACT_ALIGN,
 * and at most _tile_most queries at once.  _tile: launches a search, does not
 * wait, and appends queries that overflow to `lists`.  _finish: searches these
 * to the end; counts are their numbers.
 */
extern int64_t gv_gpu_exact_tile_most(const GvExactWork *work,
									  const GvExactQueries *queries);
extern GvStatus gv_gpu_exact_tile(const GvExactSearch *search,
								  const GvExactPart *part,
								  const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_finish(const GvExactSearch *search,
									const GvExactOverflowed *lists,
									const uint32_t counts[2]);

/* -- nearlists.cu */

struct GvExactByList;

/*
 * _batch: returns the most rows of a batch.  _create: for batches of up to
 * `capacity` rows and `kept` neighbors of a query; the caller fills
 * *d_centroids [nlists][dims] through *stream.  _search: searches a batch's
 * rows after `seen` earlier ones; all queries and centroids are there, and the
 * normalization is known.
 */
extern int64_t gv_gpu_exact_lists_batch(int32_t dims);
extern size_t gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept,
									   int64_t capacity);
extern GvStatus gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept,
										  int64_t capacity,
										  GvExactByList **made,
										  float **d_centroids,
										  cudaStream_t *stream);
extern void gv_gpu_exact_lists_drop(GvExactByList *lists);
extern GvStatus gv_gpu_exact_lists_search(GvExactByList *lists,
										  const GvExactNormalization *norm,
										  GvExactRows *rows,
										  const GvExactQueries *queries,
										  int64_t seen, const GvStop *stop);

#endif							/* GV_EXACT_H */
