/*
 * kernels.h
 *		The innermost loops of src/cpu, in a table for each level of
 *		instructions that a processor may have.
 *
 * These few loops take nearly all of the time.  The portable version of a loop
 * defines its result.  Every other version gives the same bits, because it
 * adds the same numbers in the same order; only estimates may differ.  So
 * neither an index nor an answer depends on the processor that made it.
 * test/unit/engine/check_levels.c compares the versions.
 *
 * All memory except abbreviated keys may be unaligned.  Nothing is read beyond
 * the shapes stated here.
 */
#ifndef GV_KERNELS_H
#define GV_KERNELS_H

#include <string.h>

#include "cpu/cpu.h"

/*
 * GV_HAS_NEON is defined on arm64, except on the rare big-endian one, whose
 * registers have another order of lanes.
 */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define GV_HAS_NEON
#endif

/*
 * A look-up table in bytes, stored behind the fp32 table of gv_table.  Let q
 * be an entry of this table, and let a be the same entry of the fp32 table.
 * For sums over the sub-quantizers of any posting,
 *	sum of a, added up in fp32  >=  step * (sum of q) - lift.
 * The 16 bytes of sub-quantizer j are stored twice, from offset 128 (j / 4) +
 * 64 (j % 2) + 32 (j / 2 % 2) on.  So a register of 32 bytes serves 32
 * postings, and a register of 64 bytes serves two byte columns that follow
 * each other.  Zeros follow the last bytes, up to a multiple of 128.
 */
typedef struct GvFilter
{
	bool		usable;			/* false: `bytes` is undefined */
	float		step;
	float		lift;
	uint8_t		unused[52];		/* so that `bytes` is aligned to 64 */
	uint8_t		bytes[];
} GvFilter;

/*
 * The filter leaves out a posting if the posting's sum of bytes exceeds a
 * bound.  The bound is (reach - (base + T)) * inverse, in fp32, in this order.
 */
typedef struct GvCut
{
	float		base;
	float		reach;
	float		inverse;
} GvCut;

typedef struct GvKernels
{
	/* true if `filter` is quicker than sum_postings, so that it pays */
	bool		filters;

	/*
	 * dots computes the products [n], and sqdists the squared distances [n],
	 * of q [dims] with rows [n][dims], as gv_cpu_dot and gv_cpu_sqdist do.
	 */
	void		(*dots) (const float *q, const float *rows, int32_t n,
						 int32_t dims, float *products);
	void		(*sqdists) (const float *q, const float *rows, int32_t n,
							int32_t dims, float *squares);

	/*
	 * Computes the partial sums [GV_CPU_LANES] of (x - a) (x - b), over dims
	 * dimensions.
	 */
	void		(*residual_products) (const float *x, const float *a,
									  const float *b, int32_t dims,
									  float *sums);

	/*
	 * dot64 returns the product, and sqdist64 the squared distance, of two
	 * vectors in double, for gv_distance_ip and gv_distance_l2.
	 */
	double		(*dot64) (const float *a, const float *b, int32_t dims);
	double		(*sqdist64) (const float *a, const float *b, int32_t dims);

	/*
	 * Adds to products [nrows][GV_CPU_TILE_CENTS] the products of the rows of
	 * x with the centroids of a panel.  The rows have `len` numbers and the
	 * stride `stride`.  The panel [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS] has
	 * zeros from dimension len on.  The products of four dimensions are added
	 * at a time, as (x0 c0 + x1 c1) + (x2 c2 + x3 c3).
	 */
	void		(*multiply) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * Like multiply, but with an error for which callers must allow.  Each
	 * level adds in an order of its own: it adds up the dimensions of this
	 * panel, and then adds the sum to the number in `products`.  The panel
	 * needs no zeros.  Over all panels the error of a product is below
	 * gv_estimate_error(dims) |x| |c|, unless terms underflow.
	 */
	void		(*estimate) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * Returns a bit for each of GV_CPU_TILE_CENTS centroids.  Bit c is set if
	 * squares[c] - 2 products[c], in fp32, is not above limit.  NaN is not
	 * above any limit.
	 */
	uint64_t	(*within) (const float *squares, const float *products,
						   float limit);

	/*
	 * Returns a bit for each of GV_CPU_COMPARED values.  Bit i is set unless
	 * values[i] >= limit.
	 */
	uint64_t	(*below) (const float *values, float limit);

	/*
	 * add_distances adds squared distances between vectors and codewords,
	 * over the first len dimensions of words [GV_CODEWORDS][dims], to dist
	 * [GV_CODEWORDS][GV_CPU_WORD_ROWS].  The nrows vectors x are transposed,
	 * with the stride `stride` from one dimension to the next.  nearest_words
	 * finds the nearest codeword of each vector, ties to the smaller number,
	 * and stores it in code [nrows] and its distance in best [nrows].
	 */
	void		(*add_distances) (const float *x, size_t stride, int nrows,
								  const float *words, int32_t dims,
								  int32_t len, float *dist);
	void		(*nearest_words) (const float *dist, int nrows, float *best,
								  int32_t *code);

	/*
	 * Returns which of words [GV_CODEWORDS][dims] is nearest to x [dims].  It
	 * is the same one that add_distances and nearest_words find.
	 */
	int32_t		(*nearest_word) (const float *x, const float *words,
								 int32_t dims);

	/*
	 * Makes the entries of a query's look-up table, and its filter, for
	 * gv_table.
	 */
	void		(*table) (const GvModel *model, const float *query,
						  float *table);

	/*
	 * Computes the sums [n] of the table entries of postings (see "The score
	 * S" in gv_engine.h).  `stride` is the stride of the columns of codes.
	 * The kernel reads the codes, and writes the sums, of n postings, rounded
	 * up to a multiple of GV_BLOCK.
	 */
	void		(*sum_postings) (const float *table, int32_t m,
								 const uint8_t *codes, int32_t stride,
								 int32_t n, float *sums);

	/*
	 * Copies the codes of those postings of a block whose bit is set in
	 * `wanted`, side by side, to columns with the stride GV_GATHERED_STRIDE.
	 * May write GV_BLOCK bytes in each column.
	 */
	void		(*gather) (const uint8_t *codes, int32_t code_bytes,
						   uint32_t wanted, uint8_t *gathered);

	/*
	 * Returns a bit for each posting of a block.  The bit is set if the
	 * posting may not be left out; bits of unused and dead postings are
	 * undefined.  The kernel may also prefetch as many bytes from `ahead` as
	 * the codes have.  It prefetches a little at a time while it adds up the
	 * sums, because a burst of prefetches would make the processor wait for
	 * the first ones.
	 */
	uint32_t	(*filter) (const uint8_t *bytes, int32_t m,
						   const uint8_t *codes, const float *t,
						   const GvCut *cut, const uint8_t *ahead);

	/*
	 * Returns a bit for each key of abbrevs [GV_BLOCK], each of `width`
	 * bytes.  Bit i is set if key i satisfies a test, which is not a test for
	 * NULL.
	 */
	uint32_t	(*match) (const GvKeyTest *test, int width,
						  const void *abbrevs);

	/*
	 * Computes sums over the dimensions of q [dims] and a vector x^, which
	 * has the half-precision values half_vector [dims] or, if half_vector is
	 * NULL, is the vector of a refine record.  The sums are those of the
	 * squares of q - x^.  If magnitudes is not NULL, the sums are those of
	 * the products of q and x^ instead, and magnitudes are the sums of the
	 * products' magnitudes.  Each result is in GV_CPU_LANES partial sums.
	 */
	void		(*record_sums) (const float *q, const GvRefine *record,
								const uint16_t *half_vector, int32_t dims,
								float *sums, float *magnitudes);
} GvKernels;

#define GV_CPU_LANES		16	/* interleaved partial sums in fp32 */
#define GV_CPU_LANES64		8	/* interleaved partial sums in double */
#define GV_CPU_TILE_CENTS	64	/* centroids in a tile or panel */
#define GV_CPU_SLICE_DIMS	64	/* dimensions in a slice of a panel */
#define GV_CPU_COMPARED		64	/* values compared with a limit at a time */
#define GV_CPU_WORD_ROWS	64	/* vectors compared with codewords at a time */
#define GV_GATHERED_STRIDE	192 /* stride of postings gathered from several
								 * blocks */
#define GV_FETCHED			64	/* bytes that a processor fetches at a time */

/* Prefetches the cache line at an address into the second-level cache. */
static inline void
gv_fetch(const uint8_t *at)
{
	__builtin_prefetch(at, 0, 2);
}

/*
 * Returns a factor g such that the error of an estimated product is below g
 * |x| |c|.  There is a rounding for each dimension of a panel, and one for
 * each panel.  The factor 1.001 covers products of errors.
 */
static inline double
gv_estimate_error(int32_t dims)
{
	int32_t		summed = dims < GV_CPU_SLICE_DIMS ? dims : GV_CPU_SLICE_DIMS;

	return (summed + dims / GV_CPU_SLICE_DIMS + 2) * 1.001 / 16777216.0;
}

/* Adds up partial sums in double, pairwise: l takes l + 4, l + 2 and l + 1. */
static inline double
gv_add_lanes64(double *sums /* [GV_CPU_LANES64] */ )
{
	int			half;
	int			l;

	for (half = GV_CPU_LANES64 / 2; half > 0; half /= 2)
		for (l = 0; l < half; l++)
			sums[l] += sums[l + half];
	return sums[0];
}

/* Returns the element of a refine record's vector x^ that has this code. */
static inline float
gv_refine_decode(float min, float step, uint8_t code)
{
	return min + step * (float) code;
}

/*
 * Returns the value of a half-precision number, as the processors' own
 * instructions do.  Infinity and NaN are accepted, too, although gv_to_half
 * does not make them.  A float whose exponent and mantissa have the same bits
 * has the number's value times 2^-112, even if the number is subnormal.
 */
static inline float
gv_half_value(uint16_t half)
{
	uint32_t	bits = (uint32_t) (half & 0x7FFF) << 13;
	uint32_t	scale = 0x77800000; /* 2^112 */
	float		value;
	float		factor;

	if (bits >= 0x0F800000)
		bits |= 0x7F800000;
	bits |= (uint32_t) (half & 0x8000) << 16;
	memcpy(&value, &bits, sizeof(value));
	memcpy(&factor, &scale, sizeof(factor));
	return value * factor;
}

/*
 * Clears the first bits that are set in *bits, at most 16, and stores their
 * numbers as bytes in `places`.  The rest of `places` is 0.
 */
static inline void
gv_take_places(uint32_t *bits, uint64_t *places /* [2] */ )
{
	int			n;

	places[0] = places[1] = 0;
	for (n = 0; n < 16 && *bits != 0; n++, *bits &= *bits - 1)
		places[n / 8] |= (uint64_t) __builtin_ctz(*bits) << n % 8 * 8;
}

/* The kernels in use, which gv_simd_use chooses. */
extern const GvKernels *gv_kernels;

extern const GvKernels gv_portable_kernels; /* in portable.c */
#ifdef __x86_64__
extern const GvKernels gv_avx2_kernels;
extern const GvKernels gv_avx512_kernels;
#endif
#ifdef GV_HAS_NEON
extern const GvKernels gv_neon_kernels;
#endif

/*
 * Return <a, b> and |a - b|^2 in fp32 (distance.c).  Dimension i is added to
 * partial sum i mod 16, in ascending order.  Then partial sum l takes partial
 * sums l + 8, l + 4, l + 2 and l + 1.  Results may overflow, which gv_score
 * turns into GV_SCORE_MAX.
 */
extern float gv_cpu_dot(const float *a, const float *b, int32_t dims);
extern float gv_cpu_sqdist(const float *a, const float *b, int32_t dims);

/*
 * Return the mean of a, and <a - a_mean, b - b_mean>, in double, for Pearson's
 * distance.
 */
extern double gv_cpu_mean64(const float *a, int32_t dims);
extern double gv_cpu_centered_dot64(const float *a, double a_mean,
									const float *b, double b_mean,
									int32_t dims);

/* These functions of distance.c handle the filter of a look-up table. */
#ifdef GV_TEST_BUILD
extern void gv_filter_make(float *table, int32_t m);
#endif
extern const GvFilter *gv_filter_of(const float *table, int32_t m);
extern bool gv_filter_cut(const GvFilter *filter, float score, GvCut *cut);

#define GV_FILTER_UNIT		(1.0 / 16777216.0)	/* u: see distance.c */
#define GV_FILTER_LEVELS	255
#define GV_FILTER_HUGE		1e37	/* from here on, sums might overflow */

/* Returns where the bytes of sub-quantizer j begin. */
static inline size_t
gv_filter_place(int32_t j)
{
	size_t		place = (size_t) j;

	return place / 4 * 128 + place % 2 * 64 + place / 2 % 2 * 32;
}

#endif							/* GV_KERNELS_H */
