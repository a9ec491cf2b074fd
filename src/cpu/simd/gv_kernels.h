/*
 * gv_kernels.h
 *		The innermost loops of src/cpu, in a table for each level of
 *		instructions that a processor may have.
 *
 * Everything that takes time comes down to these few loops.  Their portable
 * versions define them: every other one gives the same bits, because it adds
 * the same numbers in the same order, so an index does not depend on the
 * processor that built it nor an answer on the one that found it.
 * test/unit/engine/check_levels.c compares them.
 *
 * Any memory but abbreviated keys may be unaligned; none is read beyond the
 * shapes stated here.
 */
#ifndef GV_KERNELS_H
#define GV_KERNELS_H

#include <string.h>

#include "cpu/gv_cpu.h"

/* arm64, but for the rare one whose registers have another order of lanes */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define GV_HAS_NEON
#endif

/*
 * A look-up table in bytes, behind the fp32 one of gv_table.  With q an entry
 * here and a the fp32 one, and sums over the sub-quantizers of any posting,
 *		sum of a, added up in fp32  >=  step * (sum of q) - lift.
 * Sub-quantizer j has its 16 bytes twice, at 128 (j / 4) + 64 (j % 2) +
 * 32 (j / 2 % 2): for 32 postings in a register, or for a byte column and the
 * next one in a register of 64.  Behind the last are zeros up to a whole 128.
 */
typedef struct GvFilter
{
	bool		usable;			/* false: the bytes are undefined */
	float		step;
	float		lift;
	uint8_t		unused[52];		/* so that bytes are aligned to 64 */
	uint8_t		bytes[];
} GvFilter;

/*
 * The bound that a posting's sum of bytes exceeds if the posting is left out:
 * (reach - (base + T)) * inverse, in fp32, in this order.
 */
typedef struct GvCut
{
	float		base;
	float		reach;
	float		inverse;
} GvCut;

typedef struct GvKernels
{
	/* is filter worth a call: quicker than sum_postings? */
	bool		filters;

	/* products [n], squares [n] of q [dims] and rows [n][dims]: gv_cpu_dot */
	void		(*dots) (const float *q, const float *rows, int32_t n,
						 int32_t dims, float *products);
	void		(*sqdists) (const float *q, const float *rows, int32_t n,
							int32_t dims, float *squares);

	/* what (x - a) (x - b) [dims] add up to, in sums [GV_CPU_LANES] */
	void		(*residual_products) (const float *x, const float *a,
									  const float *b, int32_t dims,
									  float *sums);

	/* the same of two vectors, in double: gv_distance_l2 and _ip */
	double		(*dot64) (const float *a, const float *b, int32_t dims);
	double		(*sqdist64) (const float *a, const float *b, int32_t dims);

	/*
	 * products [nrows][GV_CPU_TILE_CENTS] += those of x, rows of `len`
	 * numbers that lie `stride` apart, and a panel
	 * [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS] of centroids, with zeros from
	 * dimension len on; by fours, (x0 c0 + x1 c1) + (x2 c2 + x3 c3).
	 */
	void		(*multiply) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * The same with an error that callers have to allow for: each level sums
	 * up in an order of its own, dimensions of this panel first and then what
	 * products hold; a panel needs no zeros.  Over all panels a product's
	 * error is below gv_estimate_error (dims) |x| |c|, unless some underflow.
	 */
	void		(*estimate) (const float *x, int32_t stride, int nrows,
							 int32_t len, const float *panel,
							 float *products);

	/*
	 * Bit c: squares [c] - 2 products [c], in fp32, is not above limit; of
	 * GV_CPU_TILE_CENTS centroids.  NaN is above nothing.
	 */
	uint64_t	(*within) (const float *squares, const float *products,
						   float limit);

	/* bit i: values [i] is not limit or above; of GV_CPU_COMPARED values */
	uint64_t	(*below) (const float *values, float limit);

	/*
	 * dist [GV_CODEWORDS][GV_CPU_WORD_ROWS] += squared distances of nrows
	 * vectors x, whose dimensions lie `stride` apart, to the first len of
	 * dims dimensions of words [GV_CODEWORDS][dims]; and the nearest words
	 * code [nrows], ties to the smaller number, with their distances best.
	 */
	void		(*add_distances) (const float *x, size_t stride, int nrows,
								  const float *words, int32_t dims,
								  int32_t len, float *dist);
	void		(*nearest_words) (const float *dist, int nrows, float *best,
								  int32_t *code);

	/* the nearest of words [GV_CODEWORDS][dims] to x [dims], as by these */
	int32_t		(*nearest_word) (const float *x, const float *words,
								 int32_t dims);

	/* the entries of a table and its filter: gv_table */
	void		(*table) (const GvModel *model, const float *query,
						  float *table);

	/*
	 * sums [n] of postings' entries ("The score S"), whose codes stand in
	 * columns that lie `stride` apart; those of more postings are read and
	 * summed, up to a whole number of GV_BLOCK.
	 */
	void		(*sum_postings) (const float *table, int32_t m,
								 const uint8_t *codes, int32_t stride,
								 int32_t n, float *sums);

	/*
	 * The codes of those postings of a block that `wanted` has a bit for,
	 * side by side, to columns that lie GV_GATHERED_STRIDE apart; of each
	 * column GV_BLOCK bytes may be written.
	 */
	void		(*gather) (const uint8_t *codes, int32_t code_bytes,
						   uint32_t wanted, uint8_t *gathered);

	/*
	 * The postings that may not be left out; unused and dead ones are any.
	 * Meanwhile as many bytes `ahead` as the codes are may be fetched into
	 * the cache: memory then works while sums are added up, where a burst of
	 * fetches has the processor wait for the first ones.
	 */
	uint32_t	(*filter) (const uint8_t *bytes, int32_t m,
						   const uint8_t *codes, const float *t,
						   const GvCut *cut, const uint8_t *ahead);

	/*
	 * Bit i: key i of abbrevs [GV_BLOCK], each of `width` bytes, satisfies a
	 * test; one that is not of NULL.
	 */
	uint32_t	(*match) (const GvKeyTest *test, int width,
						  const void *abbrevs);

	/*
	 * Sums over a refine record x^ and q [dims]: squares of q - x^, or
	 * products, and the products' magnitudes; each in GV_CPU_LANES sums.
	 */
	void		(*record_squares) (const float *q, const GvRefine *record,
								   int32_t dims, float *sums);
	void		(*record_products) (const float *q, const GvRefine *record,
									int32_t dims, float *sums,
									float *magnitudes);

	/* the same of the x^ that half-precision values [dims] stand for */
	void		(*half_squares) (const float *q, const uint16_t *half_vector,
								 int32_t dims, float *sums);
	void		(*half_products) (const float *q, const uint16_t *half_vector,
								  int32_t dims, float *sums,
								  float *magnitudes);
} GvKernels;

#define GV_CPU_LANES		16	/* interleaved partial sums in fp32 */
#define GV_CPU_LANES64		8	/* interleaved partial sums in double */
#define GV_CPU_TILE_CENTS	64	/* centroids of a tile or panel */
#define GV_CPU_SLICE_DIMS	64	/* dimensions of a panel */
#define GV_CPU_COMPARED		64	/* values compared with a limit at a time */
#define GV_CPU_WORD_ROWS	64	/* vectors compared with codewords at a time */
#define GV_GATHERED_STRIDE	192 /* for postings gathered from several blocks */
#define GV_FETCHED			64	/* bytes that a processor fetches at once */

/* Have the processor fetch what is `at` a place into its second cache. */
static inline void
gv_fetch(const uint8_t *at)
{
	__builtin_prefetch(at, 0, 2);
}

/*
 * A panel's products add up with as many roundings as it has dimensions, and
 * panels with one each; 1.001 is for products of errors.
 */
static inline double
gv_estimate_error(int32_t dims)
{
	int32_t		summed = dims < GV_CPU_SLICE_DIMS ? dims : GV_CPU_SLICE_DIMS;

	return (summed + dims / GV_CPU_SLICE_DIMS + 2) * 1.001 / 16777216.0;
}

/* Partial sums in double, added pairwise: l takes l + 4, l + 2, l + 1. */
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

/* An element of the x^ of a refine record. */
static inline float
gv_refine_decode(float min, float step, uint8_t code)
{
	return min + step * (float) code;
}

/*
 * Returns the value of a half-precision number, as processors' own
 * instructions say: also infinity or NaN, which gv_to_half does not make.  A
 * float of the same bits has its value times 2^-112, a subnormal one, too.
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
 * The numbers of the first bits, at most 16, taken out of *bits; then zeros.
 */
static inline void
gv_take_places(uint32_t *bits, uint64_t *places /* [2] */ )
{
	int			n;

	places[0] = places[1] = 0;
	for (n = 0; n < 16 && *bits != 0; n++, *bits &= *bits - 1)
		places[n / 8] |= (uint64_t) __builtin_ctz(*bits) << n % 8 * 8;
}

/* Those in use: gv_simd_use. */
extern const GvKernels *gv_kernels;

extern const GvKernels gv_portable_kernels; /* portable.c */
#ifdef __x86_64__
extern const GvKernels gv_avx2_kernels;
extern const GvKernels gv_avx512_kernels;
#endif
#ifdef GV_HAS_NEON
extern const GvKernels gv_neon_kernels;
#endif

/*
 * distance.c.  <a, b> and |a - b|^2 in fp32: dimension i goes to partial sum
 * i mod 16, each sum ascending; then l takes l + 8, l + 4, l + 2, l + 1.
 * They may overflow; gv_score turns that into GV_SCORE_MAX.
 */
extern float gv_cpu_dot(const float *a, const float *b, int32_t dims);
extern float gv_cpu_sqdist(const float *a, const float *b, int32_t dims);

/* In double, for Pearson's distance: mean, and <a - a_mean, b - b_mean>. */
extern double gv_cpu_mean64(const float *a, int32_t dims);
extern double gv_cpu_centered_dot64(const float *a, double a_mean,
									const float *b, double b_mean,
									int32_t dims);

/* table.c: the table in bytes, where it lies and what is made of it */
#ifdef GV_TEST_BUILD
extern void gv_filter_make(float *table, int32_t m);
#endif
extern const GvFilter *gv_filter_of(const float *table, int32_t m);
extern bool gv_filter_cut(const GvFilter *filter, float score, GvCut *cut);

#define GV_FILTER_UNIT		(1.0 / 16777216.0)	/* u: see table.c */
#define GV_FILTER_LEVELS	255
#define GV_FILTER_HUGE		1e37	/* from here on sums might overflow */

/* Where the bytes of sub-quantizer j begin. */
static inline size_t
gv_filter_place(int32_t j)
{
	size_t		place = (size_t) j;

	return place / 4 * 128 + place % 2 * 64 + place / 2 % 2 * 32;
}

#endif							/* GV_KERNELS_H */
