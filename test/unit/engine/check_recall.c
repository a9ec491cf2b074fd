/*
 * check_recall.c
 *		An index of 20,000 rows in memory: what its candidates are worth.
 */
#include "unit.h"

/* ---------- all together ---------- */

/* An index of one set of rows, in memory. */
typedef struct Index
{
	GvModel		model;
	int32_t		nlists;
	int64_t		n;
	float	   *centroids;		/* [nlists][dims] */
	float	   *books;
	int32_t    *nearest;		/* [n] */
	GvBlock    *blocks;			/* [nlists][1]: long lists get more below */
	int32_t    *first;			/* [nlists + 1] block numbers */
	uint8_t    *codes;			/* [blocks][code bytes][GV_BLOCK] */
	float	   *t;
	uint16_t   *rowids;
} Index;

/* Puts a row into slot i of a block, id and all. */
static void
place_row(Index *index, const float *x, int64_t row, int32_t block, int i)
{
	int32_t		dims = index->model.dims;
	int32_t		nbytes = gv_code_bytes(index->model.m);
	OWN uint8_t *code = unit_alloc(nbytes);
	uint16_t   *w = index->rowids + 3 * ((size_t) block * GV_BLOCK + i);
	int32_t		p;

	(void) gv_encode(&index->model, x + row * dims, index->centroids,
					 index->nearest + row, 1, 1, code,
					 index->t + (size_t) block * GV_BLOCK + i);
	for (p = 0; p < nbytes; p++)
		index->codes[((size_t) block * nbytes + p) * GV_BLOCK + i] = code[p];
	w[0] = 0;
	w[1] = (uint16_t) (row >> 16);
	w[2] = (uint16_t) row;
	index->blocks[block].live |= (uint32_t) 1 << i;
}

static void
fill_lists(Index *index, const float *x)
{
	size_t		nblocks = (size_t) index->n / GV_BLOCK + index->nlists;
	size_t		nbytes = (size_t) gv_code_bytes(index->model.m) * GV_BLOCK;
	int64_t    *count = calloc(index->nlists, sizeof(int64_t));
	int64_t		row;
	size_t		b;
	int32_t		c;

	index->blocks = calloc(nblocks, sizeof(GvBlock));
	index->first = calloc(index->nlists + 1, sizeof(int32_t));
	index->codes = calloc(nblocks, nbytes);
	index->t = calloc(nblocks, GV_BLOCK * sizeof(float));
	index->rowids = calloc(nblocks, GV_BLOCK * 3 * sizeof(uint16_t));
	for (b = 0; b < nblocks; b++)
		index->blocks[b] = (GvBlock) {
			.codes = index->codes + b * nbytes,.t = index->t + b * GV_BLOCK,
			.rowids = index->rowids + b * 3 * GV_BLOCK
		};
	for (row = 0; row < index->n; row++)
		count[index->nearest[row]]++;
	for (c = 0; c < index->nlists; c++)
	{
		index->first[c + 1] = index->first[c] +
			(int32_t) ((count[c] + GV_BLOCK - 1) / GV_BLOCK);
		count[c] = 0;
	}
	for (row = 0; row < index->n; row++)
	{
		int64_t		at = count[index->nearest[row]]++;

		place_row(index, x, row, index->first[index->nearest[row]] +
				  (int32_t) (at / GV_BLOCK), (int) (at % GV_BLOCK));
	}
	free(count);
}

static void
build_index(Index *index, const float *x)
{
	int32_t		dims = index->model.dims;
	GvKmeans	spec = {dims, index->n, index->nlists, 8, 2.0, 1};
	float	   *residuals = unit_alloc(sizeof(float) * index->n * dims);
	void	   *scratch = unit_alloc(gv_kmeans_scratch(&spec));
	int64_t		i;

	index->centroids = unit_alloc(sizeof(float) * index->nlists * dims);
	index->books = unit_alloc(sizeof(float) * GV_CODEWORDS * dims);
	index->nearest = unit_alloc(sizeof(int32_t) * index->n);
	(void) gv_kmeans(&spec, x, index->centroids, &index->nlists, scratch,
					 NULL);
	unit_free(scratch);
	(void) gv_assign(dims, index->centroids, index->nlists, x, index->n,
					 index->nearest, NULL, NULL);
	for (i = 0; i < index->n * dims; i++)
		residuals[i] = x[i] -
			index->centroids[(size_t) index->nearest[i / dims] * dims +
							 i % dims];
	scratch = unit_alloc(gv_codebooks_scratch(dims, index->model.m, index->n));
	(void) gv_codebooks(dims, index->model.m, index->n, residuals, 1,
						index->books, scratch, NULL);
	index->model.codebooks = index->books;
	unit_free(scratch);
	unit_free(residuals);
	fill_lists(index, x);
}

static void
free_index(Index *index)
{
	unit_free(index->centroids);
	unit_free(index->books);
	unit_free(index->nearest);
	free(index->blocks);
	free(index->first);
	free(index->codes);
	free(index->t);
	free(index->rowids);
}

static double
exact(const Index *index, const float *q, const float *v)
{
	return index->model.metric == GV_IP ? gv_distance_ip(q, v,
														 index->model.dims) :
		gv_distance_l2(q, v, index->model.dims);
}

/*
 * Of the 10 nearest rows within the probed lists, how many are among the 100
 * candidates of the scan?
 */
static int
query_hits(const Index *index, const float *x, const float *q, int32_t nprobes)
{
	GvTopK		lists = new_topk(nprobes, false);
	GvTopK		found = new_topk(100, false);
	GvTopK		want = new_topk(10, false);
	int32_t		dims = index->model.dims;
	OWN float  *table = unit_alloc(gv_table_bytes(index->model.m));
	int			nhits = 0;
	GvScan		scan;
	int32_t		i;
	int32_t		j;

	(void) gv_table(&index->model, q, table);
	(void) gv_coarse(&index->model, q, index->centroids, index->nlists, 0,
					 &lists);
	scan = begin_scan(&index->model, table, &found);
	for (i = 0; i < lists.count; i++)
	{
		int32_t		c = (int32_t) lists.ids[i];
		int64_t		row;

		(void) gv_scan(&scan, lists.scores[i],
					   index->blocks + index->first[c],
					   index->first[c + 1] - index->first[c]);
		for (row = 0; row < index->n; row++)
			if (index->nearest[row] == c)
				gv_topk_push(&want,
							 (float) exact(index, q, x + row * dims), row);
	}
	finish_scan(&scan);
	for (i = 0; i < want.count; i++)
		for (j = 0; j < found.count; j++)
			nhits += want.ids[i] == found.ids[j];
	free_topk(&lists);
	free_topk(&found);
	free_topk(&want);
	return nhits;
}

void
test_recall(void)
{
	int64_t		n = 20000;
	int32_t		dims = 64;
	OWN float  *x = clustered(n, dims, 100, 0.3f);
	int			metric;

	for (metric = GV_L2; metric <= GV_IP; metric++)
	{
		Index		index = {.model = {.metric = (GvMetric) metric,
				.dims = dims,.m = dims / 2,.scale = 1.0f},
		.nlists = 200,.n = n};
		int			nhits = 0;
		int			i;

		build_index(&index, x);
		for (i = 0; i < 100; i++)
		{
			OWN float  *q = unit_floats(dims, 0.3f);
			int32_t		d;

			for (d = 0; d < dims; d++)
				q[d] += x[(size_t) (i * 199) * dims + d];
			nhits += query_hits(&index, x, q, 10);
		}
		printf("recall of 100 candidates, metric %d: %.3f\n", metric,
			   nhits / 1000.0);
		CHECK(nhits >= 985, "%d of 1000", nhits);
		free_index(&index);
	}
}
