/*
 * exact.h
 *		Exact search on the device: its arrays, and the functions of its files.
 *
 * The steps of a search:
 *
 *	rows		makes half copies and biases of a batch's rows (rows.cu)
 *	queries		makes half copies of queries, and bounds their errors (rows.cu)
 *	and then, for slots first .. last - 1 of a batch,
 *		thresholds	computes the score that a query's candidates must reach
 *					(thresholds.cu)
 *		filter		finds the slots that reach a query's threshold, which are
 *					the query's candidates (filter.cu, hopperfilter.cu)
 *		nearest		reranks the candidates by exact distances, and merges the
 *					nearest ones with those of earlier slots (nearest.cu)
 *
 * A query overflows if it has no threshold, or more candidates than its
 * capacity.  Queries that overflow are searched again by
 *		full scores	stores all scores in memory and computes a threshold from
 *					them (thresholds.cu); then filter and nearest follow
 * and, if too many slots reach that threshold as well, by
 *		brute force	reranks all rows
 *
 * batch.cu has the steps in order, nearlists.cu does the same for only the
 * rows of near lists, and exactset.cu implements gv_set.h.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "gpu/product/product.h"

extern "C"
{
#include "engine/gv_set.h"
}

#define GV_EXACT_NO_ROW	UINT32_C(0xFFFFFFFF)
#define GV_EXACT_ALIGN	256		/* arrays of slots, and all chunks of a batch
								 * except the last one, are multiples of this
								 * number */
#define GV_EXACT_FEW	16		/* up to this number, queries count as few */
#define GV_EXACT_COLUMNS (INT64_C(1) << 20) /* max slots that are searched by
											 * full scores at once */
#define GV_EXACT_SEED	2048	/* number of slots from whose scores the first
								 * thresholds come */
#define GV_EXACT_FEW_SEED	32768	/* the same number if queries are few */

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
	int32_t		half_dims;		/* dims, rounded up to a multiple of 16 */
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
	float	   *d_bias;			/* [n padded to GV_EXACT_ALIGN]; -infinity in
								 * the padding */
	float	   *d_error_bounds; /* [n] e(x) */
	uint32_t   *d_order;		/* [n] the row of each slot; if NULL, the
								 * stride gives a slot's row */
};

/*
 * A query's form: the numbers that the filter needs to know about the query.
 */
struct GvExactQuery
{
	double		square;			/* |p|^2, for L2 */
	double		unit;			/* s s_q, by which inner products are scaled in
								 * S; 1 for L2 */
	double		offset;			/* unit <u(q), m>; 0 for L2 */
	float		error_bound;	/* e(q), without the part that depends on the
								 * threshold */
	int32_t		kind;			/* GvExactKind */
};

/* Queries and their neighbors. */
struct GvExactQueries
{
	int64_t		n;
	int64_t		k;				/* number of neighbors of each query */
	const float *d_queries;		/* [n][dims] */
	const int64_t *d_self;		/* [n] each query's own position among the
								 * rows, or NULL */
	uint16_t   *d_half_queries; /* [n][half_dims] */
	GvExactQuery *d_forms;		/* [n] */
	double	   *d_distances;	/* [n][k] ascending; NaN for a missing
								 * neighbor */
	int64_t    *d_positions;	/* [n][k]; INT64_MAX for a missing neighbor */
};

/*
 * The queries of a launch: those in d_list or, if d_list is NULL, the n
 * queries from number `first` on.  Arrays that steps pass to each other are
 * indexed by a query's place in its part.
 */
struct GvExactPart
{
	const uint32_t *d_list;		/* [n] numbers of queries, or NULL */
	int64_t		first;
	int32_t		n;
};

/*
 * The candidates of queries.  The filter appends candidates, and nearest.cu
 * reranks them.
 */
struct GvExactFilter
{
	float	   *d_thresholds;	/* [n] least score A of a candidate */
	uint32_t   *d_counts;		/* [n] number of candidates found, which may
								 * exceed the capacity */
	uint32_t   *d_candidates;	/* [n][capacity] slots, which nearest.cu
								 * replaces by rows */
	uint32_t	capacity;
	bool		pdl;			/* some steps may be launched early: see
								 * gv_pdl_wait */
};

/* The candidates' distances, and memory to merge candidates with neighbors. */
struct GvExactFound
{
	double	   *d_distances;	/* [n][capacity] */
	double	   *d_merged;		/* [n][k] */
	int64_t    *d_merged_positions;
	uint32_t   *d_ready;		/* [n] number of blocks that have reranked; 0
								 * between launches */
};

/*
 * Two lists of queries that overflowed: one for full scores and one for brute
 * force.
 */
struct GvExactOverflowed
{
	uint32_t   *d_counts;		/* [2] number of queries in each list */
	uint32_t   *d_full_scores;	/* [n] numbers of queries */
	uint32_t   *d_brute_force;	/* [n] */
};

/* The matrix product of n queries with slots first .. first + nslots - 1. */
struct GvExactMatmul
{
	int32_t		half_dims;
	int32_t		n;
	uint32_t	first;
	uint32_t	nslots;
	const uint16_t *d_queries;	/* [n][half_dims] */
	const uint16_t *d_half_rows;	/* [nslots][half_dims] */
	const float *d_bias;		/* [nslots] */
	float	   *d_scores;		/* [n][nslots] where scores A are stored; if
								 * NULL, scores are compared with thresholds
								 * instead */
	GvExactFilter filter;
};

/* Returns the number of slots for which arrays of n rows have memory. */
static inline __host__ __device__ int64_t
gv_exact_padded(int64_t n)
{
	return (n + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN * GV_EXACT_ALIGN;
}

/* Places the arrays of queries in memory, except the vectors themselves. */
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

/*
 * Places the arrays of slots in memory, except the rows themselves and their
 * order.
 */
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
 * rows.cu.  _normalization computes the mean and the scale from n rows.  _rows
 * makes the half copies, biases and error bounds of rows.  _queries makes the
 * half copies and forms of queries, and clears the queries' neighbors.
 * _stride returns the stride of slots for n rows.
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
 * The filter's product.  In filter.cu, _scan computes it for few queries and
 * _matmul for any number.  In hopperfilter.cu, _hopper computes it on devices
 * of compute capability 9.0.  _scan_fits and _hopper_fits return whether these
 * functions should compute a product.
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

/* The memory of searches, and its sizes. */
struct GvExactWork
{
	int32_t		device;
	int			nsms;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL if gpu/product's own kernels compute
								 * products */
	GvBuffer	d_work;			/* memory of the device's arrays below */
	int32_t		piece;			/* maximum queries that are searched at once */
	int32_t		nfull;			/* maximum queries that are searched by full
								 * scores at once */
	int64_t		nscores;		/* number of scores that d_scores has memory
								 * for */
	float	   *d_scores;
	uint16_t   *d_gathered;		/* [nfull][half_dims] half copies of the
								 * queries in a list */
	GvExactFilter filter;		/* of a piece */
	GvExactFound found;
	GvExactOverflowed lists;
	uint32_t   *counts;			/* [2] in pinned host memory */
	int64_t		seen;			/* number of rows in earlier batches */
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

/* The slots that are compared with thresholds from scores. */
enum GvExactUse
{
	GV_FOR_THESE,				/* the slots that have the scores */
	GV_FOR_OTHERS,				/* other slots, too; a query without a
								 * threshold overflows, because hopperfilter.cu
								 * cannot filter without one */
	GV_FOR_OVERFLOWED			/* the slots that have the scores, for queries
								 * that had too many candidates: find the k-th
								 * bound exactly */
};

/*
 * thresholds.cu.  _thresholds computes the thresholds of a part's queries from
 * their neighbors, and appends queries without a threshold to the work's
 * lists.  _undefined appends queries whose distances are all NaN to the list
 * for brute force, unless they have k neighbors.  _score_thresholds computes
 * thresholds from scores and, if there are any, from neighbors, and appends
 * the slots that reach these thresholds to the candidates.  It also clears the
 * counts of `lists`, unless `lists` is NULL.
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

/* rows.cu.  Copies the half copies of a part's queries to d_gathered. */
extern GvStatus gv_gpu_exact_gather(const GvExactSearch *search,
									const GvExactPart *part);

/*
 * A range of slots that are all candidates, at most as many as a query's
 * capacity.  If n is 0, the candidates are the slots that the filter appended.
 */
struct GvExactSlots
{
	uint32_t	first;
	uint32_t	n;
};

/*
 * nearest.cu.  Reranks the candidates of a part's queries, or all of `slots`
 * if that range is not empty, and merges them with the neighbors found so far.
 * Appends queries with too many candidates to d_list, whose length is
 * *d_count.
 */
extern GvStatus gv_gpu_exact_nearest(const GvExactSearch *search,
									 const GvExactPart *part,
									 GvExactSlots slots, uint32_t *d_count,
									 uint32_t *d_list);

/* -- batch.cu */

/* The sizes from which the memory of searches is computed. */
struct GvExactAmount
{
	int64_t		n;				/* queries */
	int64_t		k;				/* number of neighbors of each query */
	int64_t		nrows;			/* maximum rows of a batch */
	int32_t		capacity;		/* least capacity of a query for candidates, or
								 * 0 for the default */
};

/*
 * _work allocates memory for searches of this amount, and _work_bytes returns
 * its bytes.  _work_drop frees the memory, and may also be called after _work
 * has failed.
 */
extern size_t gv_gpu_exact_work_bytes(int32_t device,
									  const GvExactNormalization *norm,
									  const GvExactAmount *amount);
extern GvStatus gv_gpu_exact_work(GvExactWork *work, int32_t device,
								  const GvExactNormalization *norm,
								  const GvExactAmount *amount);
extern void gv_gpu_exact_work_drop(GvExactWork *work);

/*
 * Searches the rows of a batch.  Afterwards the caller adds the number of
 * these rows to work->seen.  The search of the first batch also makes the half
 * copies of the queries.
 */
extern GvStatus gv_gpu_exact_search(const GvExactSearch *search);

/*
 * Functions for the tiles of nearlists.cu, whose rows have a given order and
 * are padded to GV_EXACT_ALIGN.  _tile_most returns the most queries that can
 * be searched at once.  _tile launches a search without waiting for it, and
 * appends queries that overflow to `lists`.  _finish searches the queries in
 * `lists` by full scores and by brute force; `counts` has the lengths of the
 * two lists.
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
 * _batch returns the most rows of a batch, which are more if the device keeps
 * all rows anyway.  _create allocates memory for batches of up to `capacity`
 * rows and for `kept` neighbors of each query, and _bytes returns the bytes of
 * this memory.  After _create, the caller copies the centroids [nlists][dims]
 * to *d_centroids through *stream.  _search searches a batch's rows, before
 * which `seen` rows have come in other batches.  All queries and centroids
 * must have been copied by then, and the normalization must be known.
 */
extern int64_t gv_gpu_exact_lists_batch(const GvSetSpec *spec);
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
