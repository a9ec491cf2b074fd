/*
 * kernels.h
 *		The innermost loops of src/cpu, in a table for each level of
 *		instructions that a processor may have.
 *
 * These few loops take nearly all of the time.  Their portable versions define
 * them.  Every other version gives the same bits, because it adds the same
 * numbers in the same order.  So neither an index nor an answer depends on the
 * processor that made it.  test/unit/engine/check_levels.c compares the
 * versions.
 *
 * All memory except abbreviated keys may be unaligned.  Nothing is read beyond
 * the shapes stated here.
 */
#ifndef GV_KERNELS_H
#define GV_KERNELS_H

#include <string.h>

#include "cpu/cpu.h"

/*
 * arm64, except the rare big-endian one, whose registers have another order of
 * lanes
 */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define GV_HAS_NEON
#endif

/*
 * A look-up table in bytes, stored behind the fp32 table of gv_table.  Let q
 * be an entry of this table and a the entry of the fp32 table.  For sums over
 * the sub-quantizers of any posting,
 *	sum of a, added up in fp32  >=  step * (sum of q) - lift.
 * Sub-quantizer j has its 16 bytes twice, at 128 (j / 4) + 64 (j % 2) +
 * 32 (j / 2 % 2).  So they serve 32 postings in a register, or a byte column
 * and the next one in a register of 64 bytes.  Behind the last bytes are zeros
 * up to a multiple of 128.
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
 * The bound of a posting's sum of bytes: a posting whose sum exceeds it is
 * left out.  The bound is (reach - (base + T)) * inverse, in fp32, in this
 * order.
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
	 * Products [n] and squared distances [n] of q [dims] with rows [n][dims],
	 * as gv_cpu_dot and gv_cpu_sqdist compute them.
	 */
	void		(*dots) (const float *q, const float *rows, int32_t n,
						 int32_t dims, float *products);
	void		(*sqdists) (const float *q, const float *rows, int32_t n,
							int32_t dims, float *squares);

	/* Partial sums [GV_CPU_LANES] of (x - a) (x - b), over dims dimensions. */
	void		(*residual_products) (const float *x, const float *a,
									  const float *b, int32_t dims,
									  float *sums);

	/*
	 * Product and squared distance of two vectors, in double; for
	 * gv_distance_ip and gv_distance_l2.
	 */
	double		(*dot64) (const float *a, const float *b, int32_t dims);
	double		(*sqdist64) (const float *a, const float *b, int32_t dims);

	/*
	 * Adds to products [nrows][GV_CPU_TILE_CENTS] the products of x with a
	 * panel.  The rows of x have `len` numbers and are `stride` apart.  The
	 * panel [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS] has centroids, with zeros
	 * from dimension len on.  Four dimensions are added at a time, (x0 c0 +
	 * x1 c1) + (x2 c2 + x3 c3).
	 */
	void		(*multiply) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * Like multiply, with an error for which callers must allow.  Each level
	 * adds in an order of its own: first the dimensions of this panel, and
	 * then the number in products.  The panel needs no zeros.  Over all
	 * panels a product's error is below gv_estimate_error(dims) |x| |c|,
	 * unless terms underflow.
	 */
	void		(*estimate) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * Bit c is set if squares[c] - 2 products[c], in fp32, is not above
	 * limit, for GV_CPU_TILE_CENTS centroids.  NaN is not above any limit.
	 */
	uint64_t	(*within) (const float *squares, const float *products,
						   float limit);

	/* Bit i is set unless values[i] >= limit, for GV_CPU_COMPARED values. */
	uint64_t	(*below) (const float *values, float limit);

	/*
	 * add_distances adds to dist [GV_CODEWORDS][GV_CPU_WORD_ROWS] the squared
	 * distances of nrows vectors x, whose dimensions are `stride` apart, from
	 * words [GV_CODEWORDS][dims], over their first len dimensions.
	 * nearest_words finds the nearest words code [nrows], ties to the smaller
	 * number, and their distances best [nrows].
	 */
	void		(*add_distances) (const float *x, size_t stride, int nrows,
								  const float *words, int32_t dims,
								  int32_t len, float *dist);
	void		(*nearest_words) (const float *dist, int nrows, float *best,
								  int32_t *code);

	/*
	 * Returns the nearest of words [GV_CODEWORDS][dims] to x [dims], the same
	 * one that add_distances and nearest_words find.
	 */
	int32_t		(*nearest_word) (const float *x, const float *words,
								 int32_t dims);

	/* Makes the entries of a table and its filter, for gv_table. */
	void		(*table) (const GvModel *model, const float *query,
						  float *table);

	/*
	 * Computes the sums [n] of postings' entries ("The score S").  The codes
	 * are in columns that are `stride` apart.  The kernel reads and adds up n
	 * postings, rounded up to a multiple of GV_BLOCK.
	 */
	void		(*sum_postings) (const float *table, int32_t m,
								 const uint8_t *codes, int32_t stride,
								 int32_t n, float *sums);

	/*
	 * Copies the codes of those postings of a block whose bit is set in
	 * `wanted`, side by side, to columns that are GV_GATHERED_STRIDE apart.
	 * May write GV_BLOCK bytes in each column.
	 */
	void		(*gather) (const uint8_t *codes, int32_t code_bytes,
						   uint32_t wanted, uint8_t *gathered);

	/*
	 * Returns the postings that may not be left out.  Bits of unused and dead
	 * postings are undefined.  Meanwhile the kernel may prefetch from `ahead`
	 * as many bytes as the codes have.  Then memory works while sums are
	 * added up, whereas a burst of prefetches would make the processor wait
	 * for the first ones.
	 */
	uint32_t	(*filter) (const uint8_t *bytes, int32_t m,
						   const uint8_t *codes, const float *t,
						   const GvCut *cut, const uint8_t *ahead);

	/*
	 * Bit i is set if key i of abbrevs [GV_BLOCK], each of `width` bytes,
	 * satisfies a test.  The test is not one for NULL.
	 */
	uint32_t	(*match) (const GvKeyTest *test, int width,
						  const void *abbrevs);

	/*
	 * Sums over q [dims] and an x^, of half-precision values [dims] or, if
	 * half_vector is NULL, of a refine record: squares of q - x^ or, if
	 * magnitudes is not NULL, products and the products' magnitudes.  Each is
	 * in GV_CPU_LANES partial sums.
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

/* Prefetches the line at an address into the second-level cache. */
static inline void
gv_fetch(const uint8_t *at)
{
	__builtin_prefetch(at, 0, 2);
}

/*
 * Returns g, such that the error of an estimated product is below g |x| |c|.
 * There is a rounding for each dimension of a panel, and one for each panel.
 * The factor 1.001 covers products of errors.
 */
static inline double
gv_estimate_error(int32_t dims)
{
	int32_t		summed = dims < GV_CPU_SLICE_DIMS ? dims : GV_CPU_SLICE_DIMS;

	return (summed + dims / GV_CPU_SLICE_DIMS + 2) * 1.001 / 16777216.0;
}

/* Adds partial sums in double pairwise: l takes l + 4, l + 2, l + 1. */
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

/* Returns an element of the x^ of a refine record. */
static inline float
gv_refine_decode(float min, float step, uint8_t code)
{
	return min + step * (float) code;
}

/*
 * Returns the value of a half-precision number, like the processors' own
 * instructions.  These accept infinity and NaN, too, which gv_to_half does not
 * make.  A float with the same bits has the number's value times 2^-112, even
 * if the number is subnormal.
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
 * Takes the first bits out of *bits, at most 16, and stores their numbers as
 * bytes in `places`.  The rest of `places` is 0.
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
 * partial sum i mod 16, in ascending order.  Then l takes l + 8, l + 4, l + 2,
 * l + 1.  Results may overflow; gv_score turns that into GV_SCORE_MAX.
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

/* These are in distance.c, and handle the table in bytes. */
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
