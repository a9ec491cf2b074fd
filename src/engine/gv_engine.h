/*
 * gv_engine.h
 *		The engine API: quantization, list scanning and k-selection in plain C.
 *
 * The engine behind this header knows neither pages nor Datums.  Its callers
 * (backends and gpuvecd) pass plain arrays and scratch memory.  The engine
 * keeps no state, allocates nothing, prints nothing and never jumps out.
 * Operations that can fail return a GvStatus.
 *
 * Conventions
 * - Arrays are row-major; their shape stands beside them in brackets.
 * - Vectors are float32 and already transformed (gv_transform).
 * - The caller aligns scratch to 64 bytes; the gv_..._scratch function beside
 *   an operation returns the size of its scratch.
 * - A call that can exceed 100 ms takes a GvStop and polls it at least every
 *   100 ms.  Once the GvStop requests a stop, the call returns GV_CANCELED and
 *   its outputs are undefined.  If the GvStop is NULL, the call is never
 *   stopped.
 * - An engine is deterministic: same input and seed, same output.
 *
 * The method is IVFADC: a coarse quantizer with residual product quantization
 * (Jegou, Douze, Schmid, "Product quantization for nearest neighbor search",
 * 2011; Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017), with 4-bit codes laid out in blocks of 32 (Andre, Kermarrec, Le
 * Scouarnec, "Quicker ADC", 2019).  The terms of the score S that depend on
 * the list are folded into one number for each posting, so that one look-up
 * table serves every list.
 *
 * The score S
 *	L2 and cosine, for a posting x of list c with decoded residual r:
 *		|q - (c + r)|^2 = |q - c|^2 + T(x) - 2 <q, r>,
 *		T(x) = |r|^2 + 2 <c, r>
 *	inner product:
 *		-<q, c + r> = -<q, c> - <q, r>,  T(x) = 0
 *	Evaluated in fp32 without contraction, in this order:
 *		table[j][k] = w * <q_j, codebook_jk>, w = -2 (L2, cosine) or -1,
 *					  products added by ascending dimension
 *		sum			= table[0][code_0] + table[1][code_1] + ..., ascending
 *		S			= (base + T) + sum, base = the list's coarse score
 *	A live posting whose S is not below GV_SCORE_MAX (overflow) has
 *	S = GV_SCORE_MAX.  Candidates ascend by (S, row id), so engines agree row
 *	for row.
 */
#ifndef GV_ENGINE_H
#define GV_ENGINE_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/gv_keys.h"

#define GV_BLOCK		32		/* postings in a block */
#define GV_CODEWORDS	16		/* codewords of a 4-bit sub-quantizer */
#define GV_MAX_DIMS		16000
#define GV_MAX_ROTATED	2000	/* dimensions that can be rotated, at most */
#define GV_SCORE_MAX	FLT_MAX
#define GV_ALIGN		64		/* alignment of scratch, bytes */

#define GV_MAX_DEVICES	16		/* devices are numbered from 0, in the order
								 * in which they were found */

/*
 * Statuses are in the order of their severity: if several calls report
 * different statuses, the greatest one counts.
 */
typedef enum GvStatus
{
	GV_OK = 0,
	GV_CANCELED,				/* the GvStop requested a stop */
	GV_INVALID,					/* arguments break the contract */
	GV_NO_MEMORY,				/* there is no memory (gv_mirror.h) */
	GV_REJECTED,				/* the device refused a call as invalid, and
								 * nothing was changed (gv_mirror.h) */
	GV_FAILED					/* the engine is broken (gv_mirror.h) */
} GvStatus;

/*
 * Returns whether the engine still works after this failure.  If the engine
 * still works, the caller may make a smaller request, or a different one.
 */
static inline bool
gv_is_survivable(GvStatus status)
{
	return status == GV_NO_MEMORY || status == GV_REJECTED;
}

typedef enum GvMetric
{
	GV_L2 = 1,					/* squared Euclidean distance */
	GV_IP,						/* negative inner product */
	GV_COSINE					/* L2 between vectors scaled to length one */
} GvMetric;

/*
 * A way to stop a long call.  The call invokes `requested` between slices of
 * its work, and returns GV_CANCELED if `requested` returns true.
 */
typedef struct GvStop
{
	bool		(*requested) (void *arg);
	void	   *arg;
} GvStop;

/*
 * The results of training, except the centroids, which callers keep where they
 * like and pass in slices.  Sub-quantizer j owns the dimensions
 * gv_sub_start(j) to gv_sub_start(j + 1) - 1, so dims need not be divisible by
 * m.  Its codebook [GV_CODEWORDS][number of its dimensions] starts at
 * codebooks + GV_CODEWORDS * gv_sub_start(j).
 */
typedef struct GvModel
{
	GvMetric	metric;
	int32_t		dims;			/* 1 .. GV_MAX_DIMS */
	int32_t		m;				/* sub-quantizers, 1 .. dims */
	float		scale;			/* a power of two */
	const float *mean;			/* [dims], all 0 for GV_IP */
	const float *codebooks;		/* [GV_CODEWORDS * dims], see above */
	const float *rotation;		/* [dims][dims]; NULL if vectors are not
								 * rotated */
	float		rotation_error; /* gv_rotation_error; 0 without a rotation */
} GvModel;

static inline int32_t
gv_sub_start(const GvModel *model, int32_t j)
{
	return (int32_t) ((int64_t) j * model->dims / model->m);
}

/*
 * Returns the bytes of one posting's code.  Byte p holds code 2p in its low
 * nibble and code 2p + 1 in its high nibble.
 */
static inline int32_t
gv_code_bytes(int32_t m)
{
	return (m + 1) / 2;
}

/*
 * A block of up to GV_BLOCK postings.  A row id has 48 bits: three 16-bit
 * words w0, w1, w2, the most significant first.  As a uint64 it is
 * w0 << 32 | w1 << 16 | w2.
 */
typedef struct GvBlock
{
	const uint8_t *codes;		/* [gv_code_bytes(m)][GV_BLOCK] */
	const float *t;				/* [GV_BLOCK] */
	const uint16_t *rowids;		/* [GV_BLOCK][3]; or NULL, see first_id */
	uint64_t	first_id;		/* if rowids is NULL, posting i has row id
								 * first_id + i */
	uint32_t	live;			/* bit i: posting i exists and is live */
	const void *keys;			/* as gv_keys.h lays them out, or NULL */
	const uint8_t *ahead;		/* codes of a later block, or NULL; they are
								 * prefetched while this block is scanned, but
								 * never read */
} GvBlock;

/*
 * The nearest `capacity` (score, id) pairs seen so far.  Pairs are ordered by
 * ascending score, ties by id.  When the arrays are full, they are a heap with
 * the farthest pair first; gv_topk_sort orders them.
 *
 * If `unique` is true, no id occurs twice: a pair with an id that is present
 * already replaces the present pair if it is nearer, and is ignored otherwise.
 * A GvTopK that is `unique` is slower, and is used for lists that have to be
 * read a second time, which is rare.
 */
typedef struct GvTopK
{
	int32_t		capacity;		/* >= 1 */
	int32_t		count;
	bool		unique;
	float	   *scores;			/* [capacity] */
	uint64_t   *ids;			/* [capacity] */
} GvTopK;

/* Drops all pairs. */
extern void gv_topk_reset(GvTopK *top);

/*
 * Offers a pair.  NaN and overflow count as GV_SCORE_MAX.  Must not be called
 * between gv_topk_sort, which leaves no heap, and gv_topk_reset.
 */
extern void gv_topk_push(GvTopK *top, float score, uint64_t id);

/* Orders the pairs, ascending.  A second call changes nothing. */
extern void gv_topk_sort(GvTopK *top);

/*
 * Keeps only the nearest n pairs, or all pairs if there are fewer, and puts
 * them in ascending order.
 */
extern void gv_topk_first(GvTopK *top, int32_t n);

/*
 * Moves n raw vectors into the space in which the engine works: y =
 * (x' - mean) * scale, where x' is x / |x| for cosine and x otherwise.  If the
 * model has a rotation R (gv_rotate), y is multiplied by R.  The arrays x and
 * y may be the same.  Returns the number of vectors that cosine cannot place
 * because their length is zero; these become -mean * scale.
 */
extern int64_t gv_transform(const GvModel *model,
							const float *x /* [n][dims] */ , int64_t n,
							float *y /* [n][dims] */ );

/*
 * Computes mean and scale from a sample for the metric: the mean of x' (0 for
 * GV_IP), and the power of two that brings the root mean square of |x' - mean|
 * near one.  Both leave out rows that are many times longer than usual.  Sums
 * are in double, and the results are finite for any finite input.
 */
extern void gv_fit_transform(GvMetric metric, int32_t dims,
							 const float *x /* [n][dims] */ , int64_t n,
							 float *mean /* [dims] */ , float *scale);

/*
 * Convert arrays of n floats to half precision (IEEE 754 binary16) and back.
 * gv_to_half rounds to nearest, ties to even; a value that is too large
 * becomes the largest finite half.
 */
extern void gv_to_half(const float *x, int64_t n, uint16_t *half);
extern void gv_from_half(const uint16_t *half, int64_t n, float *x);

/*
 * Returns a - b, limited so that the result is finite if a and b are finite.
 * All residuals are computed by this function.
 */
static inline float
gv_difference(float a, float b)
{
	float		diff = a - b;

	diff = diff < FLT_MAX ? diff : FLT_MAX;
	return diff > -FLT_MAX ? diff : -FLT_MAX;
}

/* Returns whether all of x [n] are finite. */
extern bool gv_is_finite(const float *x, int64_t n);

/*
 * Return distances of raw vectors for SQL: Euclidean, negative inner product,
 * and cosine (NaN if either vector has length zero).  Sums are accumulated in
 * double in one fixed order: 8 interleaved partial sums, which are then added
 * pairwise.
 */
extern double gv_distance_l2(const float *a, const float *b, int32_t dims);
extern double gv_distance_ip(const float *a, const float *b, int32_t dims);
extern double gv_distance_cosine(const float *a, const float *b, int32_t dims);

/*
 * gv_square returns <a, a>, accumulated in the order of gv_distance_ip.
 * gv_distance_cosine_of returns the cosine distance of vectors whose squares
 * are known.
 */
extern double gv_square(const float *a, int32_t dims);
extern double gv_distance_cosine_of(const float *a, double a_square,
									const float *b, double b_square,
									int32_t dims);

/*
 * A scan of lists for one query.  The scan buffers postings and pairs that may
 * be among the best, so that many of them are processed at a time.
 */
typedef struct GvScan
{
	const GvModel *model;
	const float *table;			/* as gv_table made it */
	GvTopK	   *best;			/* must not be reset before the next
								 * gv_scan_begin */
	float		reach;			/* pairs with a score above `reach` may be
								 * left out; GV_SCORE_MAX leaves out none */
	const GvCondition *condition;	/* only postings that satisfy the
									 * condition are offered; NULL if all
									 * postings are offered.  Must not be
									 * changed before the next gv_scan_begin */
	int64_t		matched;		/* out: live postings that satisfied the
								 * condition since gv_scan_begin; a posting
								 * that is offered twice counts twice */
	void	   *scratch;		/* gv_scan_scratch(m, best->capacity) bytes */
} GvScan;

/*
 * k-means over n vectors: Lloyd's iterations, which start from distinct random
 * rows.  A cluster of more than max_imbalance times the mean size is split,
 * and the smallest clusters are dissolved, so that lists stay even.  Identical
 * rows stay together.  *found <= k is the number of centroids made; it is
 * below k if x has fewer than k distinct rows.
 */
typedef struct GvKmeans
{
	int32_t		dims;
	int64_t		n;				/* >= 1 */
	int32_t		k;				/* clusters requested, >= 1 */
	int32_t		iterations;
	double		max_imbalance;	/* > 1 */
	uint64_t	seed;
} GvKmeans;

/*
 * Two levels of centroids.  List l is row l of `centroids`.  Parent p owns the
 * lists parent_offsets[p] .. parent_offsets[p + 1] - 1, and has at least one
 * list.
 */
typedef struct GvTree
{
	int32_t		dims;
	int32_t		nparents;
	int32_t		nlists;
	const float *parents;		/* [nparents][dims] */
	const int32_t *parent_offsets;	/* [nparents + 1] */
	const float *centroids;		/* [nlists][dims] */
} GvTree;

/*
 * The lists of a tree, divided into groups, so that gv_place need not compare
 * a row with all lists.  Group g consists of the elements starts[g] ..
 * starts[g + 1] - 1 of `lists`, ascending.  If there are more groups than
 * `tried`, each list is in GV_LIST_GROUPS groups; otherwise each list is in
 * one group.
 */
typedef struct GvGroups
{
	int32_t		dims;
	int32_t		nlists;
	int32_t		ngroups;
	int32_t		tried;			/* number of groups with which a row is
								 * compared, 1 .. GV_TRIED_GROUPS */
	const float *centroids;		/* [nlists][dims], the centroids of the tree */
	const float *centers;		/* [ngroups][dims] */
	const int32_t *starts;		/* [ngroups + 1] */
	const int32_t *lists;		/* [starts[ngroups]] */
	const int32_t *others;		/* [starts[ngroups]] number of the list's
								 * other group, if it is smaller than this
								 * group's number; otherwise -1 */
} GvGroups;

#define GV_LIST_GROUPS	2
#define GV_TRIED_GROUPS	32
#define GV_SOAR_LISTS	16		/* lists among which a row's second list is
								 * chosen */

/*
 * A refine record, which stores a vector x in 8 bits for each dimension.  The
 * record stands for the vector x^ with x^_i = min + step * codes[i] in fp32
 * without contraction.  `error` is not below |x - x^|; it is HUGE_VALF if x is
 * so long that no bound can be computed.
 */
typedef struct GvRefine
{
	float		min;
	float		step;
	float		error;
	const uint8_t *codes;		/* [dims] */
} GvRefine;

/*
 * A refine record in half precision.  `values` are the elements of a vector x^
 * that stands for x.  `error` is not below |x - x^|, or is HUGE_VALF.
 */
typedef struct GvHalfRecord
{
	float		error;
	const uint16_t *values;		/* [dims] */
} GvHalfRecord;

/* Kinds of refine records, which bound the distances of rows. */
typedef enum GvRecords
{
	GV_RECORDS_NONE,
	GV_RECORDS_BYTES,			/* GvRefine */
	GV_RECORDS_HALF				/* GvHalfRecord */
} GvRecords;

/*
 * Returns how many bytes the codes or half-precision values of one record
 * take.
 */
static inline size_t
gv_record_code_bytes(GvRecords records, int32_t dims)
{
	return (size_t) dims * (records == GV_RECORDS_HALF ? sizeof(uint16_t) :
							sizeof(uint8_t));
}

/* The numbers from `least` to `most`, both included. */
typedef struct GvRange
{
	float		least;
	float		most;
} GvRange;

/*
 * The instructions that the engine uses: portable C, which is the oracle, or
 * instructions that only some processors have.  All levels give the same
 * answers, bit for bit.  GV_SIMD_AUTO stands for the last of the other levels
 * whose instructions this processor has.
 */
typedef enum GvSimd
{
	GV_SIMD_AUTO,
	GV_SIMD_PORTABLE,
	GV_SIMD_AVX2,
	GV_SIMD_AVX512,
	GV_SIMD_NEON
} GvSimd;

#define GV_NSIMD		(GV_SIMD_NEON + 1)

/* Returns whether this processor has the level's instructions. */
extern bool gv_simd_has(GvSimd level);

/*
 * Sets the level to use from now on.  Has no effect if gv_simd_has returns
 * false for the level.  Before the first call all kernels are portable.
 * During the call no other thread may use the engine.
 */
extern void gv_simd_use(GvSimd level);

/* Returns "auto", "portable", "avx2", "avx512" or "neon". */
extern const char *gv_simd_name(GvSimd level);

/*
 * Clusters x [n][dims], and sets the first *found of centroids [k][dims].
 * Source: Lloyd, "Least squares quantization in PCM", 1982.
 */
extern size_t gv_kmeans_scratch(const GvKmeans *spec);
extern GvStatus gv_kmeans(const GvKmeans *spec, const float *x,
						  float *centroids, int32_t *found,
						  void *scratch, const GvStop *stop);

/*
 * Trains codebooks [GV_CODEWORDS * dims] from residuals [n][dims], n >= 1, by
 * one k-means for each sub-quantizer.  GvModel describes the layout.
 */
extern size_t gv_codebooks_scratch(int32_t dims, int32_t m, int64_t n);
extern GvStatus gv_codebooks(int32_t dims, int32_t m, int64_t n,
							 const float *residuals, uint64_t seed,
							 float *codebooks, void *scratch,
							 const GvStop *stop);

/*
 * Learns a rotation [dims][dims], dims <= GV_MAX_ROTATED, from residuals x
 * [n][dims], whose lengths are about one.  A product quantizer of m
 * sub-quantizers loses less precision on rotated vectors.  The rotation is the
 * identity if x does not contain enough information to learn one.  Takes about
 * n dims^2 + 40 dims^3 multiplications.
 */
extern size_t gv_learn_rotation_scratch(int32_t dims, int32_t m);
extern GvStatus gv_learn_rotation(int32_t dims, int32_t m, const float *x,
								  int64_t n, float *rotation, void *scratch,
								  const GvStop *stop);

/*
 * Multiplies the rows [n][dims] of a rotation by x [dims], and stores the
 * products in y [n].  Each product is summed in double as gv_distance_ip does,
 * then rounded.
 */
extern void gv_rotate(int32_t dims, const float *rows, int32_t n,
					  const float *x, float *y);

/*
 * Returns rho, which bounds the error of a rotation.  If y is the product of
 * all rows of a rotation R with x, there is an orthogonal matrix Q near R such
 * that |y - Q x| <= rho |x| + FLT_MIN, for every x whose products do not
 * overflow.
 */
extern float gv_rotation_error(int32_t dims);

/*
 * gv_rotation_defect returns the sum of those terms of |R R' - 1|^2 that
 * combine a row with itself and with the rows before it.  gv_is_rotation gets
 * the defect of all rows, which is the sum of the rows' defects, and returns
 * whether it is small enough for the rho of gv_rotation_error.
 */
extern double gv_rotation_defect(int32_t dims, const float *rotation,
								 int32_t row);
extern bool gv_is_rotation(int32_t dims, double defect);

/*
 * Assigns each row of x [n][dims] to its nearest centroid of centroids
 * [k][dims] by squared Euclidean distance, summed as in gv_coarse, ties to the
 * smaller number.  Stores the number of the centroid in nearest [n], and the
 * squared distance in sqdist [n] unless sqdist is NULL.  Distances that
 * overflow count as equal to each other, and as larger than all other
 * distances.
 */
extern GvStatus gv_assign(int32_t dims, const float *centroids, int32_t k,
						  const float *x, int64_t n, int32_t *nearest,
						  float *sqdist, const GvStop *stop);

/*
 * Copies centroids [nlists][dims] to grouped [nlists][dims], ordered by
 * parent.  Centroid i belongs to parent owners[i].  Removes parents without
 * lists from parents [nparents][dims], so that the array has no gaps.  Fills
 * parent_offsets [nparents + 1] and returns the number of parents left.
 */
extern int32_t gv_group_lists(int32_t dims, int32_t nlists,
							  const float *centroids, const int32_t *owners,
							  int32_t nparents, float *parents,
							  int32_t *parent_offsets, float *grouped);

/*
 * Makes the groups of a tree in `memory`, which has gv_groups_bytes(tree)
 * bytes.  `memory` and the tree's centroids must stay where they are as long
 * as the groups are used.
 */
extern size_t gv_groups_bytes(const GvTree *tree);
extern size_t gv_groups_scratch(const GvTree *tree);
extern GvStatus gv_groups_make(const GvTree *tree, GvGroups *groups,
							   void *memory, void *scratch,
							   const GvStop *stop);

/*
 * Chooses the lists of each row of x [n][dims], n < 2^31, and stores their
 * numbers in lists [n][lists_per_row].  The first list is the nearest one in
 * the row's nearest groups.  If lists_per_row is 2, the second list is the one
 * that gv_soar chooses among the GV_SOAR_LISTS nearest lists, or -1 if there
 * is no other list.
 */
extern size_t gv_place_scratch(const GvGroups *groups, int64_t n,
							   int32_t lists_per_row);
extern GvStatus gv_place(const GvGroups *groups, const float *x, int64_t n,
						 int32_t lists_per_row, int32_t *lists, void *scratch,
						 const GvStop *stop);

/*
 * Chooses the second list of x [dims] among n lists.  others [n] are the
 * centroids [dims] of these lists, and `first` [dims] is the centroid of the
 * first list of x.  Returns the index of the second list's centroid in
 * `others`, or -1 if n is 0.
 */
extern int32_t gv_soar(int32_t dims, const float *x, const float *first,
					   const float *const *others, int32_t n);

/*
 * Encodes x [n][dims].  Row i is in lists_per_row lists, whose numbers are in
 * lists [n][lists_per_row].  The centroid of list l is row l of centroids
 * [..][dims].  Stores codes [n][lists_per_row][gv_code_bytes(m)] and t
 * [n][lists_per_row], each |t| <= GV_SCORE_MAX.  Codes and t are 0 if the list
 * is -1.  If m is odd, the spare nibble is 0.
 */
extern GvStatus gv_encode(const GvModel *model, const float *x,
						  const float *centroids, const int32_t *lists,
						  int64_t n, int32_t lists_per_row, uint8_t *codes,
						  float *t);

/*
 * Pushes the list scores of query [dims] for centroids [n][dims] (|q - c|^2,
 * or -<q, c> for GV_IP) into `best`, with ids first_id, first_id + 1 and so
 * on.  Sums are in fp32: dimension i is added to partial sum i mod 16, then
 * sum l takes sum l + 8, l + 4, l + 2, l + 1.  Overflow becomes GV_SCORE_MAX.
 */
extern GvStatus gv_coarse(const GvModel *model, const float *query,
						  const float *centroids, int32_t n,
						  uint64_t first_id, GvTopK *best);

/*
 * Computes the look-up table of query [dims].  `table` has gv_table_bytes(m)
 * bytes, which contain [m][GV_CODEWORDS] floats (see "The score S") and data
 * of the engine's own.  The table must not be moved.
 */
extern size_t gv_table_bytes(int32_t m);
extern GvStatus gv_table(const GvModel *model, const float *query,
						 float *table);

/*
 * Begins a scan, and drops postings that are still buffered in it.  Does not
 * check that the values of a condition's sets ascend.
 */
extern size_t gv_scan_scratch(int32_t m, int32_t capacity);
extern GvStatus gv_scan_begin(GvScan *scan);

/*
 * Offers to a scan every live posting of blocks [nblocks] of one list that
 * satisfies the condition, with its score S and its row id.  If there is a
 * condition, all blocks must have keys, and the codes of blocks without a
 * matching posting are not touched.  Blocks need not outlive the call.
 */
extern GvStatus gv_scan(GvScan *scan, float base, const GvBlock *blocks,
						int32_t nblocks);

/*
 * Like gv_scan, for blocks [nblocks], at most GV_OPTIMISTIC_BLOCKS, that other
 * processes may change during the call.  The call never reads memory outside
 * the blocks, whatever bytes it finds in the blocks at any time.  Postings of
 * these blocks count only if gv_scan_commit is told that the blocks stayed
 * valid; else they are dropped.  Each gv_scan_optimistic must be followed by
 * gv_scan_commit before any other call except gv_scan_begin.  scan->best must
 * not be `unique`.
 */
#define GV_OPTIMISTIC_BLOCKS	4

extern GvStatus gv_scan_optimistic(GvScan *scan, float base,
								   const GvBlock *blocks,
								   int32_t nblocks);
extern GvStatus gv_scan_commit(GvScan *scan, bool valid);

/*
 * Completes scan->best, which then has the best of all postings that were
 * offered, as if each posting had been pushed.  More postings may be offered
 * afterwards.
 */
extern GvStatus gv_scan_finish(GvScan *scan);

/*
 * Offers x [n][dims] with ids [n] to each of queries [nqueries][dims], with
 * the score that gv_coarse computes for a centroid.  best[i] keeps the pairs
 * nearest to query i, among the new pairs and the pairs that it already has.
 */
extern GvStatus gv_exact(GvMetric metric, int32_t dims, const float *queries,
						 int32_t nqueries, const float *x, int64_t n,
						 const uint64_t *ids, GvTopK *best,
						 const GvStop *stop);

/*
 * Makes refine records of x [n][dims], finite: codes [n][dims], and min, step,
 * error [n].  Here min = min x_i, step = (max x_i - min) / 255 and
 * code = (x_i - min) / step, rounded.
 */
extern GvStatus gv_refine_encode(int32_t dims, const float *x, int64_t n,
								 uint8_t *codes, float *min, float *step,
								 float *error);

/*
 * Computes bounds [n] of the distances between query [dims] and the vectors x
 * from which records [n] were made.  A bound is never above the true value:
 *	L2, cosine		|q - x| >= |q - x^| - error, at least 0
 *	inner product	-<q, x> >= -<q, x^> - |q| error
 * With u = 2^-24, sums in fp32 have relative errors below s = (dims + 64) u of
 * their terms' magnitudes.  The value of |q - x^|^2 is lowered by this error,
 * and by another FLT_MIN for terms that underflow.  The inner product is
 * lowered by 2 s (sum |q_i x^_i| + |q| error) + (1 + |q|) FLT_MIN, so that
 * -<q, x> is no smaller than the bound even when summed in fp32, in any order.
 * If a sum overflows, the bound is 0, or -HUGE_VALF for GV_IP.
 */
extern GvStatus gv_refine_bound(GvMetric metric, int32_t dims,
								const float *query, const GvRefine *records,
								int64_t n, float *bounds);

/*
 * Makes refine records in half precision of x [n][dims], finite: half_vectors
 * [n][dims], by gv_to_half, and error [n].  The error is large if no
 * half-precision value is near an element.
 */
extern GvStatus gv_half_encode(int32_t dims, const float *x, int64_t n,
							   uint16_t *half_vectors, float *error);

/*
 * Computes ranges [n] that contain the distances between query [dims] and the
 * vectors x from which records [n] were made:
 *	L2, cosine		|q - x| is in |q - x^| +- error, and not below 0
 *	inner product	-<q, x> is in -<q, x^> +- |q| error
 * Both ends are moved outwards by the amounts by which gv_refine_bound lowers
 * its bound.  Sums in fp32 err by at most s times their terms' magnitudes,
 * with the s of gv_refine_bound, so
 *	|q - x^|^2 is in sum (1 -+ s) -+ FLT_MIN
 *	-<q, x> is in -sum -+ (2 s (sum |q_i x^_i| + |q| error) +
 *		(1 + |q|) FLT_MIN), even when summed in fp32, in any order.
 * The range is 0 .. HUGE_VALF, or -HUGE_VALF .. HUGE_VALF for GV_IP, if a sum
 * overflows or if the error or a half-precision value is not a number.
 */
extern GvStatus gv_half_range(GvMetric metric, int32_t dims,
							  const float *query,
							  const GvHalfRecord *records,
							  int64_t n, GvRange *ranges);

#ifdef GV_TEST_BUILD

/*
 * Injects a fault into the operations of this header and gv_select.h that
 * report a status: the n-th call from now on (1 is the next call) reports
 * `status` instead.  If n is 0, no call fails.
 */
extern void gv_engine_fault(int64_t n, GvStatus status);

/*
 * Injected failures of memory allocation, for programs that are linked with
 * test/memory.
 */
typedef struct GvAllocations
{
	int			due;			/* the allocation with this number, counted
								 * from the next one, fails; 0 if none fails */
	bool		after;			/* all later allocations fail, too */
	int			live;			/* allocations not yet freed */
} GvAllocations;

extern GvAllocations gv_allocations;

#endif

#endif							/* GV_ENGINE_H */
