/*
 * unit.h
 *		Checks, guarded memory, random data and naive references for the tests
 *		of the engine.
 */
#ifndef UNIT_H
#define UNIT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gv_engine.h"

#define UNIT_ALIGN	64
#define UNIT_GUARD	256			/* bytes watched behind an array */

extern long unit_passed;
extern long unit_failed;

/* Set by GPUVEC_UNIT_SMALL: leave out repetitions, for slow checkers. */
extern bool unit_small;

/* The level that GPUVEC_UNIT_SIMD names, or AUTO. */
static inline GvSimd
unit_simd(void)
{
	const char *name = getenv("GPUVEC_UNIT_SIMD");
	GvSimd		level = GV_SIMD_AUTO;

	while (name != NULL && strcmp(name, gv_simd_name(level)) != 0)
		if (++level == GV_NSIMD)
			abort();
	return level;
}

/* Is a test among those that a program's arguments name, or is none named? */
static inline bool
unit_is_wanted(int argc, char **argv, const char *name)
{
	int			i;

	for (i = 1; i < argc && strcmp(argv[i], name) != 0; i++)
		;
	return argc < 2 || i < argc;
}

/* Count a condition; tell where and with which numbers it fails. */
#define CHECK(condition, ...) \
	do { \
		if (condition) \
			unit_passed++; \
		else if (unit_failed++ < 50) \
		{ \
			printf("FAILED %s:%d: %s: ", __func__, __LINE__, #condition); \
			printf(__VA_ARGS__); \
			printf("\n"); \
		} \
	} while (0)

/* A call that must succeed: its status is 0. */
#define OK(call) \
	do { \
		int			status_ = (int) (call); \
\
		CHECK(status_ == 0, "%s: %d", #call, status_); \
	} while (0)

/* A call that breaks the contract is refused. */
#define INVALID(call)	CHECK((call) == GV_INVALID, "accepted")

/*
 * Memory of exactly `bytes` bytes, filled with garbage (0xFF: NaN as floats)
 * and watched: unit_free checks the bytes behind it.
 */
static inline void *
unit_alloc(size_t bytes)
{
	size_t		padded = (bytes + UNIT_ALIGN - 1) / UNIT_ALIGN * UNIT_ALIGN;
	void	   *block;
	char	   *memory;

	if (posix_memalign(&block, UNIT_ALIGN,
					   UNIT_ALIGN + padded + UNIT_GUARD) != 0)
		abort();
	memory = block;
	memcpy(memory, &bytes, sizeof(bytes));
	memset(memory + UNIT_ALIGN, 0xFF, bytes);
	memset(memory + UNIT_ALIGN + bytes, 0x5A, padded - bytes + UNIT_GUARD);
	return memory + UNIT_ALIGN;
}

static inline void
unit_free(void *array)
{
	char	   *memory = (char *) array - UNIT_ALIGN;
	size_t		bytes;
	size_t		i;
	int			touched = 0;

	memcpy(&bytes, memory, sizeof(bytes));
	for (i = 0; i < UNIT_GUARD; i++)
		touched += memory[UNIT_ALIGN + bytes + i] != 0x5A;
	CHECK(touched == 0, "%d bytes written behind an array of %zu", touched,
		  bytes);
	free(memory);
}

/*
 * Variables that give up what they have at the end of their scope: memory of
 * unit_alloc, memory of malloc, and what a function takes the address of.
 */
#define UNIT_OWN(function)	__attribute__((cleanup(function)))
#define OWN			UNIT_OWN(unit_free_own)
#define FREED		UNIT_OWN(unit_free_heap)
#define OwnTopK		UNIT_OWN(free_topk) GvTopK

static inline void
unit_free_own(void *variable)
{
	void	   *array;

	memcpy(&array, variable, sizeof(array));
	if (array != NULL)
		unit_free(array);
}

static inline void
unit_free_heap(void *variable)
{
	void	   *array;

	memcpy(&array, variable, sizeof(array));
	free(array);
}

extern uint64_t unit_seed;

static inline uint64_t
unit_random(void)
{
	unit_seed ^= unit_seed << 13;
	unit_seed ^= unit_seed >> 7;
	unit_seed ^= unit_seed << 17;
	return unit_seed * UINT64_C(0x2545F4914F6CDD1D);
}

/* Uniform in [-1, 1). */
static inline float
unit_float(void)
{
	return (float) (unit_random() >> 40) / 8388608.0f - 1.0f;
}

/* A GvStop that asks for the end when it is asked the last'th time, or never. */
typedef struct Patience
{
	int			asked;
	int			last;
} Patience;

static inline bool
lose_patience(void *arg)
{
	Patience   *patience = arg;

	return ++patience->asked == patience->last;
}

static inline bool
unit_stop_now(void *arg)
{
	return true;
}

/* n random numbers in guarded memory, multiplied by factor. */
static inline float *
unit_floats(size_t n, float factor)
{
	float	   *x = unit_alloc(n * sizeof(float));
	size_t		i;

	for (i = 0; i < n; i++)
		x[i] = unit_float() * factor;
	return x;
}

static const int32_t all_dims[] = {1, 2, 3, 5, 7, 16, 17, 50, 100, 384, 768,
1025, 16000};

#define NDIMS	((int) (sizeof(all_dims) / sizeof(all_dims[0])))

/* The order of sums that gv_engine.h prescribes for list scores. */
static inline float
lanes16(const float *a, const float *b, int32_t dims, bool product)
{
	float		sums[16] = {0};
	int32_t		i;
	int			half;

	for (i = 0; i < dims; i++)
	{
		float		diff = a[i] - b[i];
		float		term = product ? a[i] * b[i] : diff * diff;

		sums[i % 16] += term;
	}
	for (half = 8; half > 0; half /= 2)
		for (i = 0; i < half; i++)
			sums[i] += sums[i + half];
	return sums[0];
}

static inline float
score_of(float value)
{
	return value < GV_SCORE_MAX ? value : GV_SCORE_MAX;
}

static inline double
naive_sqdist(const float *a, const float *b, int32_t dims)
{
	double		sum = 0.0;
	int32_t		i;

	for (i = 0; i < dims; i++)
		sum += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
	return sum;
}

/* The codeword of sub-quantizer j in a row's codes; it has *len dimensions. */
static inline const float *
unit_word(const GvModel *model, const uint8_t *codes, int32_t j,
		  int32_t *start, int32_t *len)
{
	int			code = codes[j / 2] >> (j % 2 * 4) & 15;

	*start = gv_sub_start(model, j);
	*len = gv_sub_start(model, j + 1) - *start;
	return model->codebooks + GV_CODEWORDS * *start + code * *len;
}

/* The mean squared error of codes of x [n][dims]. */
static inline double
code_error(const GvModel *model, const float *x, int64_t n)
{
	int32_t		bytes = gv_code_bytes(model->m);
	FREED float *zero = calloc(model->dims, sizeof(float));
	FREED int32_t *lists = calloc(n, sizeof(int32_t));
	OWN uint8_t *codes = unit_alloc((size_t) n * bytes);
	OWN float  *t = unit_alloc(sizeof(float) * n);
	double		sum = 0.0;
	int64_t		row;
	int32_t		j;

	(void) gv_encode(model, x, zero, lists, n, 1, codes, t);
	for (row = 0; row < n; row++)
		for (j = 0; j < model->m; j++)
		{
			int32_t		start;
			int32_t		len;
			const float *word = unit_word(model, codes + row * bytes, j,
										  &start, &len);

			sum += naive_sqdist(x + row * model->dims + start, word, len) /
				(double) n;
		}
	return sum;
}

/* The value of a finite half, by definition. */
static inline double
half_value(uint16_t half)
{
	int			exponent = half >> 10 & 31;
	double		mantissa = half & 1023;
	double		value = exponent == 0 ? ldexp(mantissa, -24) :
		ldexp(1024 + mantissa, exponent - 25);

	return half & 0x8000 ? -value : value;
}

static inline bool
all_finite(const float *x, size_t n)
{
	size_t		i;

	for (i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

typedef struct Pair
{
	float		score;
	uint64_t	id;
} Pair;

static inline int
compare_pairs(const void *a, const void *b)
{
	const Pair *x = a;
	const Pair *y = b;

	if (x->score != y->score)
		return x->score < y->score ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static inline GvTopK
new_topk(int32_t capacity, bool unique)
{
	GvTopK		top = {.capacity = capacity,.unique = unique};

	top.scores = unit_alloc(sizeof(float) * capacity);
	top.ids = unit_alloc(sizeof(uint64_t) * capacity);
	gv_topk_reset(&top);
	return top;
}

static inline void
free_topk(GvTopK *top)
{
	unit_free(top->scores);
	unit_free(top->ids);
}

/* top, once sorted, must hold the first of the n pairs, which get sorted. */
static inline void
check_topk(GvTopK *top, Pair *pairs, int n)
{
	int			nwrong = 0;
	int			i;

	qsort(pairs, n, sizeof(Pair), compare_pairs);
	gv_topk_sort(top);
	gv_topk_sort(top);
	CHECK(top->count == (n < top->capacity ? n : top->capacity),
		  "%d of %d", top->count, n);
	for (i = 0; i < top->count; i++)
		nwrong += top->scores[i] != pairs[i].score ||
			top->ids[i] != pairs[i].id;
	CHECK(nwrong == 0, "%d pairs differ, n %d capacity %d", nwrong, n,
		  top->capacity);
}

/* A scan, begun, whose scratch finish_scan frees. */
static inline GvScan
begin_scan(const GvModel *model, const float *table, GvTopK *best)
{
	GvScan		scan = {.model = model, .table = table, .best = best,
	.reach = GV_SCORE_MAX};

	scan.scratch = unit_alloc(gv_scan_scratch(model->m, best->capacity));
	CHECK(gv_scan_begin(&scan) == GV_OK, "begin");
	return scan;
}

static inline void
finish_scan(GvScan *scan)
{
	CHECK(gv_scan_finish(scan) == GV_OK, "finish");
	unit_free(scan->scratch);
}

/* All at once. */
static inline void
scan_blocks(const GvModel *model, const float *table, float base,
			const GvBlock *blocks, int32_t nblocks, GvTopK *best)
{
	GvScan		scan = begin_scan(model, table, best);

	CHECK(gv_scan(&scan, base, blocks, nblocks) == GV_OK, "scan");
	finish_scan(&scan);
}

/* The biggest cluster of n rows; *mse gets the mean squared error. */
static inline int64_t
biggest_cluster(int32_t dims, const float *centroids, int32_t k,
				const float *x, int64_t n, double *mse)
{
	OWN int32_t *nearest = unit_alloc(sizeof(int32_t) * n);
	OWN float  *sqdist = unit_alloc(sizeof(float) * n);
	int64_t    *count = calloc(k, sizeof(int64_t));
	int64_t		most = 0;
	int64_t		row;

	(void) gv_assign(dims, centroids, k, x, n, nearest, sqdist, NULL);
	*mse = 0.0;
	for (row = 0; row < n; row++)
	{
		*mse += sqdist[row] / (double) n;
		if (++count[nearest[row]] > most)
			most = count[nearest[row]];
	}
	free(count);
	return most;
}

/* Clustered rows: Gaussian-like clouds of very different sizes. */
static inline float *
clustered(int64_t n, int32_t dims, int32_t nclouds, float spread)
{
	OWN float  *centers = unit_floats((size_t) nclouds * dims, 1.0f);
	float	   *x = unit_alloc(sizeof(float) * n * dims);
	int64_t		row;
	int32_t		d;

	for (row = 0; row < n; row++)
	{
		double		u = (unit_float() + 1.0) / 2.0;
		const float *center = centers + (size_t) (u * u * nclouds) * dims;

		for (d = 0; d < dims; d++)
			x[row * dims + d] = center[d] +
				spread * (unit_float() + unit_float() + unit_float());
	}
	return x;
}

/* One function a file of tests; check_engine.c calls them all. */
extern void test_vectors(void);
extern void test_training(void);
extern void test_codes(void);
extern void test_groups(void);
extern void test_refine(void);
extern void test_halves(void);
extern void test_rotation(void);
extern void test_exact(void);
extern void test_levels(void);
extern void test_keep(void);
extern void test_keys(void);
extern void test_select(void);
extern void test_quantiles(void);
extern void test_doubles(void);
extern void test_mirror(void);
extern void test_builder(void);
extern void test_memory(void);

/* The groups of a tree, and the memory that they are in. */
static inline void *
unit_groups(const GvTree *tree, GvGroups *groups)
{
	void	   *memory = unit_alloc(gv_groups_bytes(tree));
	OWN void   *scratch = unit_alloc(gv_groups_scratch(tree));

	CHECK(gv_groups_make(tree, groups, memory, scratch, NULL) == GV_OK, " ");
	return memory;
}

#endif							/* UNIT_H */
