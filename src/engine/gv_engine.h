/*
 * gv_engine.h
 *		The engine API: quantization, list scanning and k-selection in plain C.
 *
 * The engine behind this header knows neither pages nor Datums.  Its callers
 * (a backend, gpuvecd) pass plain arrays and scratch memory; it keeps no
 * state, allocates nothing, prints nothing and never jumps out.  Every
 * operation returns a GvStatus.
 *
 * Conventions
 *	- arrays are row-major; their shape stands beside them in brackets
 *	- vectors are float32, already transformed (gv_transform)
 *	- scratch is aligned to 64 bytes by the caller; its size comes from the
 *	  gv_..._scratch function beside the operation
 *	- a call that can exceed 100 ms takes a GvStop, polls it at least every
 *	  100 ms, and returns GV_CANCELED with its outputs undefined; NULL: never
 *	- an engine is deterministic: same input and seed, same output
 *
 * The method is IVFADC: a coarse quantizer with residual product quantization
 * (Jegou, Douze, Schmid, "Product quantization for nearest neighbor search",
 * 2011; Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017), with 4-bit codes laid out in blocks of 32 (Andre, Kermarrec, Le
 * Scouarnec, "Quicker ADC", 2019) and the list term folded into one number a
 * posting, so that one look-up table serves every list.
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
 *	A live posting whose S is not below GV_SCORE_MAX (overflow) has that S.
 *	Candidates ascend by (S, row id), so engines agree row for row.
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
#define GV_MAX_ROTATED	2000	/* dimensions that can be rotated */
#define GV_SCORE_MAX	FLT_MAX
#define GV_ALIGN		64		/* alignment of scratch, bytes */

/* Devices, numbered from 0 as they were found. */
#define GV_MAX_DEVICES	16

/* In the order of gravity: of several calls' statuses the greatest counts. */
typedef enum GvStatus
{
	GV_OK = 0,
	GV_CANCELED,				/* the GvStop asked for it */
	GV_INVALID,					/* arguments break the contract */
	GV_NO_MEMORY,				/* there is no memory (gv_mirror.h) */
	GV_REJECTED,				/* the device took a call for wrong, and is as
								 * it was (gv_mirror.h) */
	GV_FAILED					/* the engine is broken (gv_mirror.h) */
} GvStatus;

/* May less be asked of the engine, or something else, after this failure? */
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

/* Asked between slices of work; true ends the call with GV_CANCELED. */
typedef struct GvStop
{
	bool		(*requested) (void *arg);
	void	   *arg;
} GvStop;

/*
 * The results of training, without the centroids, which callers keep where
 * they like and pass in slices.  Sub-quantizer j owns the dimensions
 * gv_sub_start(j) to gv_sub_start(j + 1) - 1, so dims need not divide by m;
 * its codebook [GV_CODEWORDS][its dims] starts at
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
	const float *rotation;		/* [dims][dims], or NULL: nothing is rotated */
	float		rotation_error; /* gv_rotation_error, or 0: the same */
} GvModel;

static inline int32_t
gv_sub_start(const GvModel *model, int32_t j)
{
	return (int32_t) ((int64_t) j * model->dims / model->m);
}

/* Bytes of one posting's code: byte p holds code 2p low, code 2p + 1 high. */
static inline int32_t
gv_code_bytes(int32_t m)
{
	return (m + 1) / 2;
}

/*
 * A block of up to GV_BLOCK postings.  A row id is 48 bits, three 16-bit
 * words, most significant first; as uint64 it is w0 << 32 | w1 << 16 | w2.
 */
typedef struct GvBlock
{
	const uint8_t *codes;		/* [gv_code_bytes(m)][GV_BLOCK] */
	const float *t;				/* [GV_BLOCK] */
	const uint16_t *rowids;		/* [GV_BLOCK][3], or NULL: */
	uint64_t	first_id;		/* posting i has row id first_id + i */
	uint32_t	live;			/* bit i: posting i is there and live */
	const void *keys;			/* as gv_keys.h lays them out, or NULL */
	const uint8_t *ahead;		/* codes of a later block, which a processor
								 * fetches meanwhile, or NULL; never read */
} GvBlock;

/*
 * The nearest `capacity` (score, id) pairs seen so far, ascending by score,
 * ties by id.  When they are full the arrays are a heap with the farthest pair
 * first; gv_topk_sort orders them.  With `unique`, a pair whose id is already
 * there is ignored unless it is nearer (slower: for rare second readings).
 */
typedef struct GvTopK
{
	int32_t		capacity;		/* >= 1 */
	int32_t		count;
	bool		unique;
	float	   *scores;			/* [capacity] */
	uint64_t   *ids;			/* [capacity] */
} GvTopK;

extern void gv_topk_reset(GvTopK *top);
extern void gv_topk_push(GvTopK *top, float score, uint64_t id);
extern void gv_topk_sort(GvTopK *top);
extern void gv_topk_first(GvTopK *top, int32_t n);

/*
 * Put n raw vectors into the space the engine works in:
 * y = (x' - mean) * scale, x' = x / |x| for cosine, else x, and with a
 * rotation y = R that (gv_rotate).  y may be x.  Returns the number of vectors
 * that cosine cannot place (zero length); those become -mean * scale.
 */
extern int64_t gv_transform(const GvModel *model,
							const float *x /* [n][dims] */ , int64_t n,
							float *y /* [n][dims] */ );

/*
 * Mean and scale of a sample for the metric: the mean of x' (0 for GV_IP),
 * and the power of two that brings the root mean square of |x' - mean| near
 * one, both without rows that are many times longer than usual.  Sums in
 * double; finite for any finite input.
 */
extern void gv_fit_transform(GvMetric metric, int32_t dims,
							 const float *x /* [n][dims] */ , int64_t n,
							 float *mean /* [dims] */ , float *scale);

/*
 * Half precision (IEEE 754 binary16), for large arrays: rounded to
 * nearest, ties to even; what is too large becomes the largest finite half.
 */
extern void gv_to_half(const float *x, int64_t n, uint16_t *half);
extern void gv_from_half(const uint16_t *half, int64_t n, float *x);

/* a - b, finite when both are: of which all residuals are made. */
static inline float
gv_difference(float a, float b)
{
	float		diff = a - b;

	diff = diff < FLT_MAX ? diff : FLT_MAX;
	return diff > -FLT_MAX ? diff : -FLT_MAX;
}

/* Are all of x [n] finite? */
extern bool gv_is_finite(const float *x, int64_t n);

/*
 * Distances of raw vectors for SQL, accumulated in double in one fixed order
 * (8 interleaved partial sums, added pairwise): Euclidean, negative inner
 * product, cosine (NaN when either vector has length zero).
 */
extern double gv_distance_l2(const float *a, const float *b, int32_t dims);
extern double gv_distance_ip(const float *a, const float *b, int32_t dims);
extern double gv_distance_cosine(const float *a, const float *b, int32_t dims);

/*
 * The cosine distance of vectors whose squares are known: gv_square is <a, a>,
 * accumulated likewise.
 */
extern double gv_square(const float *a, int32_t dims);
extern double gv_distance_cosine_of(const float *a, double a_square,
									const float *b, double b_square,
									int32_t dims);

/*
 * A scan of lists for one query.  Postings and pairs that may belong to the
 * best wait in it, to be processed many at a time.
 */
typedef struct GvScan
{
	const GvModel *model;
	const float *table;			/* gv_table's */
	GvTopK	   *best;			/* not to be reset before the next begin */
	float		reach;			/* pairs above may be left out; GV_SCORE_MAX */
	const GvCondition *condition;	/* postings that do not satisfy it are not
									 * offered; NULL: all are.  Not to be
									 * changed before the next begin */
	int64_t		matched;		/* out: live postings that satisfy it, since
								 * begin; those offered again count again */
	void	   *scratch;		/* gv_scan_scratch(m, best->capacity) bytes */
} GvScan;

/*
 * k-means over n vectors.  Lloyd's iterations from distinct random rows; a
 * cluster of more than max_imbalance times the mean size is split and the
 * smallest ones dissolved, so that lists stay even; identical rows stay
 * together.  *found <= k is the number of centroids made: fewer when x has
 * fewer distinct rows.
 */
typedef struct GvKmeans
{
	int32_t		dims;
	int64_t		n;				/* >= 1 */
	int32_t		k;				/* requested, >= 1 */
	int32_t		iterations;
	double		max_imbalance;	/* > 1 */
	uint64_t	seed;
} GvKmeans;

/*
 * Two levels of centroids: list l is row l of centroids, and parent p owns
 * the lists parent_offsets[p] .. parent_offsets[p + 1] - 1, at least one.
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
 * A tree's lists by groups, for placing rows: group g has the lists starts[g]
 * .. starts[g + 1] - 1 of `lists`, ascending.  Where there are more groups
 * than are tried a list is in GV_LIST_GROUPS of them.
 */
typedef struct GvGroups
{
	int32_t		dims;
	int32_t		nlists;
	int32_t		ngroups;
	int32_t		tried;			/* groups that a row is compared with, 1 ..
								 * GV_TRIED_GROUPS */
	const float *centroids;		/* [nlists][dims], the tree's */
	const float *centers;		/* [ngroups][dims] */
	const int32_t *starts;		/* [ngroups + 1] */
	const int32_t *lists;		/* [starts[ngroups]] */
	const int32_t *others;		/* [starts[ngroups]] the list's other group,
								 * if that comes before this one, or -1 */
} GvGroups;

#define GV_LIST_GROUPS	2
#define GV_TRIED_GROUPS	32
#define GV_SOAR_LISTS	16		/* lists among which the second is chosen */

/*
 * A refine record: a vector in 8 bits a dimension.  It stands for x^, with
 * x^_i = min + step * codes[i] in fp32 without contraction, and error is not
 * below |x - x^|; HUGE_VALF where x is too long to be bounded.
 */
typedef struct GvRefine
{
	float		min;
	float		step;
	float		error;
	const uint8_t *codes;		/* [dims] */
} GvRefine;

/*
 * The same in half precision: x^ is what the values stand for, and error is
 * not below |x - x^|, or HUGE_VALF.
 */
typedef struct GvHalfRecord
{
	float		error;
	const uint16_t *values;		/* [dims] */
} GvHalfRecord;

/* Kinds of refine records, by which rows' distances are bounded. */
typedef enum GvRecords
{
	GV_RECORDS_NONE,
	GV_RECORDS_BYTES,			/* GvRefine */
	GV_RECORDS_HALF				/* GvHalfRecord */
} GvRecords;

/* Bytes of such a record's codes or half-precision values. */
static inline size_t
gv_record_code_bytes(GvRecords records, int32_t dims)
{
	return (size_t) dims * (records == GV_RECORDS_HALF ? sizeof(uint16_t) :
							sizeof(uint8_t));
}

/* The numbers from least to most, both included. */
typedef struct GvRange
{
	float		least;
	float		most;
} GvRange;

/*
 * The instructions that the engine uses: portable C, the oracle, or those that
 * only some processors have.  The answers are the same, bit for bit.  AUTO is
 * the last level that this processor has.
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

/*
 * gv_simd_use: work so from now on; without effect where gv_simd_has is false.
 * Before it is called everything is portable.  No other thread may be in the
 * engine.
 */
extern bool gv_simd_has(GvSimd level);
extern void gv_simd_use(GvSimd level);

/* "auto", "portable", "avx2", "avx512", "neon" */
extern const char *gv_simd_name(GvSimd level);

/*
 * kmeans: x [n][dims] -> centroids [k][dims], of which *found are filled.
 * Source: Lloyd, "Least squares quantization in PCM", 1982.
 */
extern size_t gv_kmeans_scratch(const GvKmeans *spec);
extern GvStatus gv_kmeans(const GvKmeans *spec, const float *x,
						  float *centroids, int32_t *found,
						  void *scratch, const GvStop *stop);

/*
 * codebooks: residuals [n][dims], n >= 1 -> codebooks
 * [GV_CODEWORDS * dims], one k-means a sub-quantizer (layout: GvModel).
 */
extern size_t gv_codebooks_scratch(int32_t dims, int32_t m, int64_t n);
extern GvStatus gv_codebooks(int32_t dims, int32_t m, int64_t n,
							 const float *residuals, uint64_t seed,
							 float *codebooks, void *scratch,
							 const GvStop *stop);

/*
 * learn_rotation: x [n][dims], residuals, their lengths about one -> rotation
 * [dims][dims], dims <= GV_MAX_ROTATED, after which a product quantizer of m
 * sub-quantizers loses less; the identity where x tells nothing.  About
 * n dims^2 + 40 dims^3 multiplications.
 */
extern size_t gv_learn_rotation_scratch(int32_t dims, int32_t m);
extern GvStatus gv_learn_rotation(int32_t dims, int32_t m, const float *x,
								  int64_t n, float *rotation, void *scratch,
								  const GvStop *stop);

/*
 * rotate: rows [n][dims] of a rotation times x [dims] -> y [n], each product
 * summed in double as gv_distance_ip does, then rounded.
 *
 * rotation_error: rho.  All rows of a rotation R together are near an
 * orthogonal Q: |y - Q x| <= rho |x| + FLT_MIN, of an x none of whose products
 * overflows.
 *
 * rotation_defect: what a row adds to |R R' - 1|^2, with the rows before it;
 * is_rotation: the defect of all rows is small enough for rho.
 */
extern void gv_rotate(int32_t dims, const float *rows, int32_t n,
					  const float *x, float *y);
extern float gv_rotation_error(int32_t dims);
extern double gv_rotation_defect(int32_t dims, const float *rotation,
								 int32_t row);
extern bool gv_is_rotation(int32_t dims, double defect);

/*
 * assign: x [n][dims] -> nearest [n] by squared Euclidean distance among
 * centroids [k][dims], summed as in gv_coarse, ties to the smaller number; its
 * squared distance into sqdist [n] unless NULL.  Distances that overflow count
 * as equal and largest.
 */
extern GvStatus gv_assign(int32_t dims, const float *centroids, int32_t k,
						  const float *x, int64_t n, int32_t *nearest,
						  float *sqdist, const GvStop *stop);

/*
 * group_lists: copy centroids [nlists][dims], centroid i belonging to parent
 * owners[i], to grouped [nlists][dims], parent by parent, and close the gaps
 * that parents [nparents][dims] without lists leave.  Returns parent_offsets
 * [nparents + 1] and the number of parents left.
 */
extern int32_t gv_group_lists(int32_t dims, int32_t nlists,
							  const float *centroids, const int32_t *owners,
							  int32_t nparents, float *parents,
							  int32_t *parent_offsets, float *grouped);

/*
 * groups_make: the groups of a tree, whose centroids are to stay where they
 * are; in `memory`, gv_groups_bytes(tree) bytes, which have to stay, too.
 */
extern size_t gv_groups_bytes(const GvTree *tree);
extern size_t gv_groups_scratch(const GvTree *tree);
extern GvStatus gv_groups_make(const GvTree *tree, GvGroups *groups,
							   void *memory, void *scratch,
							   const GvStop *stop);

/*
 * place: the lists of x [n][dims], n < 2^31, into lists [n][lists_per_row]:
 * the nearest in its nearest groups and, with lists_per_row = 2, a second one
 * (gv_soar among the GV_SOAR_LISTS nearest), or -1 when there is no other.
 */
extern size_t gv_place_scratch(const GvGroups *groups, int64_t n,
							   int32_t lists_per_row);
extern GvStatus gv_place(const GvGroups *groups, const float *x, int64_t n,
						 int32_t lists_per_row, int32_t *lists, void *scratch,
						 const GvStop *stop);

/*
 * soar: which of the other centroids [n] -> [dims] is the second list of x
 * [dims], whose first centroid is `first` [dims]; -1 when n is 0.
 */
extern int32_t gv_soar(int32_t dims, const float *x, const float *first,
					   const float *const *others, int32_t n);

/*
 * encode: x [n][dims], each in lists_per_row lists, whose numbers in centroids
 * [..][dims] are lists [n][lists_per_row] -> codes
 * [n][lists_per_row][gv_code_bytes(m)] and t [n][lists_per_row], each |t| <=
 * GV_SCORE_MAX.  Where the list is -1 both are 0, and so is the spare nibble
 * of an odd m.
 */
extern GvStatus gv_encode(const GvModel *model, const float *x,
						  const float *centroids, const int32_t *lists,
						  int64_t n, int32_t lists_per_row, uint8_t *codes,
						  float *t);

/*
 * coarse: the list score of query [dims] against centroids [n][dims]
 * (|q - c|^2, or -<q, c> for GV_IP) pushed into best with ids first_id,
 * first_id + 1, ...  In fp32: dimension i goes to partial sum i mod 16, then
 * sum l takes sum l + 8, l + 4, l + 2, l + 1; overflow is GV_SCORE_MAX.
 */
extern GvStatus gv_coarse(const GvModel *model, const float *query,
						  const float *centroids, int32_t n,
						  uint64_t first_id, GvTopK *best);

/*
 * table: query [dims] -> table, gv_table_bytes(m) bytes: [m][GV_CODEWORDS],
 * see "The score S", and what the engine knows of them besides.  Not to be
 * moved.
 */
extern size_t gv_table_bytes(int32_t m);
extern GvStatus gv_table(const GvModel *model, const float *query,
						 float *table);

/*
 * scan: offers every live posting of blocks [nblocks] of one list that
 * satisfies the condition to a scan, with its score S and its row id.  With a
 * condition all blocks have keys; codes of those without such a posting are
 * not touched.  Blocks need not outlive the call.
 *
 * scan_begin: begins a scan; postings that wait in it are dropped.  Does not
 * check that the values of a condition's sets ascend.
 *
 * scan_optimistic: the same of blocks [nblocks], at most GV_OPTIMISTIC_BLOCKS,
 * whose memory others may write to meanwhile: whatever bytes it finds there,
 * at any time, it reads nothing else.  Postings taken from them count only
 * when scan_commit is told that the blocks stayed valid; else they are
 * dropped.  Each scan_optimistic is followed by scan_commit, before anything
 * else but scan_begin.  scan->best is not `unique`.
 *
 * scan_finish: scan->best has the best of all that was offered, as if each had
 * been pushed.  More may be offered then.
 */
#define GV_OPTIMISTIC_BLOCKS	4

extern size_t gv_scan_scratch(int32_t m, int32_t capacity);
extern GvStatus gv_scan_begin(GvScan *scan);
extern GvStatus gv_scan(GvScan *scan, float base, const GvBlock *blocks,
						int32_t nblocks);
extern GvStatus gv_scan_optimistic(GvScan *scan, float base,
								   const GvBlock *blocks,
								   int32_t nblocks);
extern GvStatus gv_scan_commit(GvScan *scan, bool valid);
extern GvStatus gv_scan_finish(GvScan *scan);

/*
 * exact: x [n][dims] with ids [n], offered to each of queries
 * [nqueries][dims] by the score that gv_coarse gives a centroid; what is
 * nearest to query i is in best[i], which is not reset.
 */
extern GvStatus gv_exact(GvMetric metric, int32_t dims, const float *queries,
						 int32_t nqueries, const float *x, int64_t n,
						 const uint64_t *ids, GvTopK *best,
						 const GvStop *stop);

/*
 * refine_encode: x [n][dims], finite -> codes [n][dims], min, step, error [n]
 * of their refine records: min = min x_i, step = (max x_i - min) / 255,
 * code = (x_i - min) / step, rounded.
 */
extern GvStatus gv_refine_encode(int32_t dims, const float *x, int64_t n,
								 uint8_t *codes, float *min, float *step,
								 float *error);

/*
 * refine_bound: bounds [n] of what lies between query [dims] and the vectors
 * x that the records [n] stand for, never above the true value:
 *		L2, cosine		|q - x| >= |q - x^| - error, at least 0
 *		inner product	-<q, x> >= -<q, x^> - |q| error
 * With u = 2^-24, sums in fp32 have relative errors below s = (dims + 64) u
 * of their terms' magnitudes, for which |q - x^|^2 is lowered; it loses
 * another FLT_MIN for what underflows.  The inner product is lowered by
 * 2 s (sum |q_i x^_i| + |q| error) + (1 + |q|) FLT_MIN, so that -<q, x> is no
 * smaller than the bound even when summed in fp32, in any order.
 * Where a sum overflows the bound is 0, or -HUGE_VALF for GV_IP.
 */
extern GvStatus gv_refine_bound(GvMetric metric, int32_t dims,
								const float *query, const GvRefine *records,
								int64_t n, float *bounds);

/*
 * half_encode: x [n][dims], finite -> half-precision values [n][dims], by
 * gv_to_half, and error [n], which is large where no half-precision value is
 * near an element.
 */
extern GvStatus gv_half_encode(int32_t dims, const float *x, int64_t n,
							   uint16_t *half_vectors, float *error);

/*
 * half_range: ranges [n] that hold what lies between query [dims] and the
 * vectors x that the records [n] stand for:
 *		L2, cosine		|q - x| is in |q - x^| +- error, and not below 0
 *		inner product	-<q, x> is in -<q, x^> +- |q| error
 * Both ends are moved outwards by what gv_refine_bound lowers its bound by:
 * with sums in fp32 that err by no more than s of their terms' magnitudes,
 *		|q - x^|^2 is in sum (1 -+ s) -+ FLT_MIN
 *		-<q, x> is in -sum -+ (2 s (sum |q_i x^_i| + |q| error) +
 *		(1 + |q|) FLT_MIN), even when summed in fp32, in any order.
 * Where a sum overflows, the error is not a number, or a half-precision value
 * is none, the range is 0 .. HUGE_VALF, or -HUGE_VALF .. HUGE_VALF for GV_IP.
 */
extern GvStatus gv_half_range(GvMetric metric, int32_t dims,
							  const float *query,
							  const GvHalfRecord *records,
							  int64_t n, GvRange *ranges);

#ifdef GV_TEST_BUILD

/*
 * Fault injection: from now on the n-th call of an operation here or in
 * gv_select.h that reports a status (1 = the next) reports this one instead;
 * 0 = none does.
 */
extern void gv_engine_fault(int64_t n, GvStatus status);

/*
 * The allocation that fails, counted down from here to 1; 0: none does.  With
 * `after` all that follow it fail, too.  `live` is what is allocated and not
 * freed.  Only what is linked with test/memory counts.
 */
typedef struct GvAllocations
{
	int			due;
	bool		after;
	int			live;
} GvAllocations;

extern GvAllocations gv_allocations;

#endif

#endif							/* GV_ENGINE_H */
