/*
 * digest.c
 *		What the engine computes from the same numbers, as one line for each
 *		operation and metric: a hash of all its bits.  Two programs that print
 *		the same, on whatever processors, make the same indexes and give the
 *		same answers.
 *
 * usage: digest [LEVEL]		instructions, as gpuvecd --simd says them
 *
 * test/packaging/processors.sh compiles it for several processors.
 */
#include "engine/gv_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIMS		48
#define M			24
#define NROWS		3000
#define NLISTS		60
#define NPARENTS	8
#define NQUERIES	20
#define CAPACITY	50

static uint32_t state = 12345;

/* From -1 to 1; the same everywhere, because it is exact. */
static float
next_float(void)
{
	state = state * 1664525u + 1013904223u;
	return (float) (int32_t) (state >> 8) / 8388608.0f - 1.0f;
}

static void *
room(size_t size)
{
	void	   *memory = aligned_alloc(64, (size + 127) & ~(size_t) 63);

	if (memory == NULL)
		abort();
	memset(memory, 0, (size + 127) & ~(size_t) 63);
	return memory;
}

static void
tell(const char *metric, const char *what, const void *bytes, size_t size)
{
	const unsigned char *byte = bytes;
	uint64_t	hash = UINT64_C(14695981039346656037);

	while (size-- > 0)
		hash = (hash ^ *byte++) * UINT64_C(1099511628211);
	printf("%s %s %016llx\n", metric, what, (unsigned long long) hash);
}

static void
must(GvStatus status)
{
	if (status != GV_OK)
		abort();
}

/* Rows around some points, so that there is something to find. */
static float *
make_rows(int32_t n)
{
	float	   *x = room(sizeof(float) * n * DIMS);
	int32_t		i;

	for (i = 0; i < n * DIMS; i++)
		x[i] = next_float() + (float) (i / DIMS % 20 * 7 % 11) * 0.125f;
	return x;
}

/* A model, lists and codes of x [NROWS][DIMS], as an index has them. */
typedef struct Index
{
	GvModel		model;
	float	   *centroids;		/* [NLISTS][DIMS] */
	int32_t		nlists;
	uint8_t    *codes;			/* [NROWS][code bytes] */
	float	   *t;				/* [NROWS] */
} Index;

static Index
build(const char *name, GvMetric metric, float *x)
{
	Index		index = {.model = {metric, DIMS, M, 1.0f, NULL, NULL}};
	float	   *mean = room(sizeof(float) * DIMS);
	float	   *parents = room(sizeof(float) * NPARENTS * DIMS);
	float	   *codebooks = room(sizeof(float) * GV_CODEWORDS * DIMS);
	float	   *residuals = room(sizeof(float) * NROWS * DIMS);
	int32_t    *lists = room(sizeof(int32_t) * NROWS * 2);
	int32_t    *first = room(sizeof(int32_t) * NROWS);
	float	   *sqdist = room(sizeof(float) * NROWS);
	int32_t		starts[NPARENTS + 1];
	GvKmeans	spec = {DIMS, NROWS, NLISTS, 6, 2.0, 7};
	GvTree		tree;
	GvGroups	groups;
	int32_t		found;
	int32_t		i;

	gv_fit_transform(metric, DIMS, x, NROWS, mean, &index.model.scale);
	index.model.mean = mean;
	gv_transform(&index.model, x, NROWS, x);
	tell(name, "transform", x, sizeof(float) * NROWS * DIMS);

	index.centroids = room(sizeof(float) * NLISTS * DIMS);
	must(gv_kmeans(&spec, x, index.centroids, &index.nlists,
				   room(gv_kmeans_scratch(&spec)), NULL));
	tell(name, "kmeans", index.centroids, sizeof(float) * index.nlists * DIMS);
	spec = (GvKmeans) {DIMS, index.nlists, NPARENTS, 6, 4.0, 8};
	must(gv_kmeans(&spec, index.centroids, parents, &found,
				   room(gv_kmeans_scratch(&spec)), NULL));
	for (i = 0; i <= found; i++)
		starts[i] = index.nlists * i / found;
	tree = (GvTree) {DIMS, found, index.nlists, parents, starts,
	index.centroids};
	must(gv_groups_make(&tree, &groups, room(gv_groups_bytes(&tree)),
						room(gv_groups_scratch(&tree)), NULL));
	tell(name, "groups", groups.lists,
		 sizeof(int32_t) * groups.starts[groups.ngroups]);
	must(gv_place(&groups, x, NROWS, 2, lists,
				  room(gv_place_scratch(&groups, NROWS, 2)), NULL));
	tell(name, "place", lists, sizeof(int32_t) * NROWS * 2);
	must(gv_assign(DIMS, index.centroids, index.nlists, x, NROWS, first,
				   sqdist, NULL));
	tell(name, "assign", first, sizeof(int32_t) * NROWS);
	tell(name, "assign-distances", sqdist, sizeof(float) * NROWS);

	for (i = 0; i < NROWS * DIMS; i++)
		residuals[i] = x[i] -
			index.centroids[first[i / DIMS] * DIMS + i % DIMS];
	must(gv_codebooks(DIMS, M, NROWS, residuals, 9, codebooks,
					  room(gv_codebooks_scratch(DIMS, M, NROWS)), NULL));
	tell(name, "codebooks", codebooks, sizeof(float) * GV_CODEWORDS * DIMS);
	index.model.codebooks = codebooks;
	index.codes = room((size_t) NROWS * gv_code_bytes(M));
	index.t = room(sizeof(float) * NROWS);
	must(gv_encode(&index.model, x, index.centroids, first, NROWS, 1,
				   index.codes, index.t));
	tell(name, "codes", index.codes, (size_t) NROWS * gv_code_bytes(M));
	tell(name, "t", index.t, sizeof(float) * NROWS);
	return index;
}

/* All rows as blocks of one list. */
static GvBlock *
make_blocks(const Index *index)
{
	int32_t		nblocks = (NROWS + GV_BLOCK - 1) / GV_BLOCK;
	size_t		bytes = (size_t) gv_code_bytes(M);
	uint8_t    *codes = room(nblocks * bytes * GV_BLOCK);
	float	   *t = room(sizeof(float) * nblocks * GV_BLOCK);
	GvBlock    *blocks = room(sizeof(GvBlock) * nblocks);
	int32_t		i;
	size_t		p;

	for (i = 0; i < NROWS; i++)
	{
		t[i] = index->t[i];
		for (p = 0; p < bytes; p++)
			codes[(i / GV_BLOCK * bytes + p) * GV_BLOCK + i % GV_BLOCK] =
				index->codes[i * bytes + p];
		blocks[i / GV_BLOCK].live |= UINT32_C(1) << i % GV_BLOCK;
	}
	for (i = 0; i < nblocks; i++)
	{
		blocks[i].codes = codes + i * bytes * GV_BLOCK;
		blocks[i].t = t + i * GV_BLOCK;
		blocks[i].first_id = (uint64_t) i * GV_BLOCK;
	}
	return blocks;
}

static void
search(const char *name, const Index *index, const float *x, float *queries)
{
	float		scores[3][NQUERIES][CAPACITY] = {{{0}}};
	uint64_t	ids[3][NQUERIES][CAPACITY] = {{{0}}};
	uint64_t   *numbers = room(sizeof(uint64_t) * NROWS);
	GvBlock    *blocks = make_blocks(index);
	float	   *table = room(gv_table_bytes(M));
	GvTopK		tops[3][NQUERIES];
	int32_t		i;
	int32_t		k;

	gv_transform(&index->model, queries, NQUERIES, queries);
	for (i = 0; i < NROWS; i++)
		numbers[i] = (uint64_t) i;
	for (k = 0; k < 3; k++)
		for (i = 0; i < NQUERIES; i++)
		{
			tops[k][i] = (GvTopK) {CAPACITY, 0, false, scores[k][i],
			ids[k][i]};
			gv_topk_reset(&tops[k][i]);
		}
	for (i = 0; i < NQUERIES; i++)
	{
		const float *query = queries + i * DIMS;
		GvScan		scan = {.model = &index->model,.table = table,
		.best = &tops[1][i],.reach = GV_SCORE_MAX};

		must(gv_coarse(&index->model, query, index->centroids, index->nlists,
					   0, &tops[0][i]));
		must(gv_table(&index->model, query, table));
		scan.scratch = room(gv_scan_scratch(M, CAPACITY));
		must(gv_scan_begin(&scan));
		must(gv_scan(&scan, 0.5f, blocks, (NROWS + GV_BLOCK - 1) / GV_BLOCK));
		must(gv_scan_finish(&scan));
		free(scan.scratch);
	}
	must(gv_exact(index->model.metric, DIMS, queries, NQUERIES, x, NROWS,
				  numbers, tops[2], NULL));
	for (k = 0; k < 3; k++)
		for (i = 0; i < NQUERIES; i++)
			gv_topk_sort(&tops[k][i]);
	tell(name, "coarse", ids[0], sizeof(ids[0]));
	tell(name, "coarse-scores", scores[0], sizeof(scores[0]));
	tell(name, "scan", ids[1], sizeof(ids[1]));
	tell(name, "scan-scores", scores[1], sizeof(scores[1]));
	tell(name, "exact", ids[2], sizeof(ids[2]));
	tell(name, "exact-scores", scores[2], sizeof(scores[2]));
}

static void
refine(const char *name, GvMetric metric, const float *x, const float *queries)
{
	uint8_t    *codes = room((size_t) NROWS * DIMS);
	float	   *numbers = room(sizeof(float) * NROWS * 3);
	float	   *bounds = room(sizeof(float) * NROWS);
	GvRefine   *records = room(sizeof(GvRefine) * NROWS);
	double	   *distances = room(sizeof(double) * NROWS * 3);
	int32_t		i;

	must(gv_refine_encode(DIMS, x, NROWS, codes, numbers, numbers + NROWS,
						  numbers + 2 * NROWS));
	tell(name, "refine-codes", codes, (size_t) NROWS * DIMS);
	tell(name, "refine-numbers", numbers, sizeof(float) * NROWS * 3);
	for (i = 0; i < NROWS; i++)
		records[i] = (GvRefine) {numbers[i], numbers[NROWS + i],
		numbers[2 * NROWS + i], codes + (size_t) i * DIMS};
	must(gv_refine_bound(metric, DIMS, queries, records, NROWS, bounds));
	tell(name, "refine-bounds", bounds, sizeof(float) * NROWS);
	for (i = 0; i < NROWS; i++)
	{
		distances[i * 3] = gv_distance_l2(queries, x + i * DIMS, DIMS);
		distances[i * 3 + 1] = gv_distance_ip(queries, x + i * DIMS, DIMS);
		distances[i * 3 + 2] = gv_distance_cosine(queries, x + i * DIMS, DIMS);
	}
	tell(name, "distances", distances, sizeof(double) * NROWS * 3);
}

static void
halves(const char *name, GvMetric metric, const float *x, const float *queries)
{
	uint16_t   *codes = room(sizeof(uint16_t) * NROWS * DIMS);
	float	   *errors = room(sizeof(float) * NROWS);
	GvHalfRecord   *records = room(sizeof(GvHalfRecord) * NROWS);
	GvRange    *ranges = room(sizeof(GvRange) * NROWS);
	int32_t		i;

	must(gv_half_encode(DIMS, x, NROWS, codes, errors));
	tell(name, "halves", codes, sizeof(uint16_t) * NROWS * DIMS);
	tell(name, "halves-errors", errors, sizeof(float) * NROWS);
	for (i = 0; i < NROWS; i++)
		records[i] = (GvHalfRecord) {errors[i], codes + (size_t) i * DIMS};
	must(gv_half_range(metric, DIMS, queries, records, NROWS, ranges));
	tell(name, "halves-ranges", ranges, sizeof(GvRange) * NROWS);
}

int
main(int argc, char **argv)
{
	static const struct
	{
		GvMetric	metric;
		const char *name;
	}			metrics[] = {{GV_L2, "l2"}, {GV_IP, "ip"}, {GV_COSINE, "cosine"}};
	GvSimd		level = GV_SIMD_AUTO;
	int			i;

	while (argc > 1 && strcmp(argv[1], gv_simd_name(level)) != 0)
		if (++level == GV_NSIMD)
			return 2;
	if (!gv_simd_has(level))
	{
		fprintf(stderr, "no %s\n", gv_simd_name(level));
		return 3;
	}
	gv_simd_use(level);
	for (i = 0; i < 3; i++)
	{
		float	   *x = make_rows(NROWS);
		float	   *queries = make_rows(NQUERIES);
		Index		index = build(metrics[i].name, metrics[i].metric, x);

		search(metrics[i].name, &index, x, queries);
		refine(metrics[i].name, metrics[i].metric, x, queries);
		halves(metrics[i].name, metrics[i].metric, x, queries);
	}
	return 0;
}
