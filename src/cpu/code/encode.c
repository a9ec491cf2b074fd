/*
 * encode.c
 *		Product quantization: computes codes, and the number T of each posting.
 *
 * Many postings are encoded in tiles, as in the training of codebooks (pq.c):
 * the vectors are side by side, one in each lane.  The one or two postings of
 * an inserted row would leave most lanes idle.  So each of these postings is
 * compared with all codewords of a sub-quantizer, which are side by side.
 */
#include <string.h>

#include "cpu/simd/gv_words.h"
#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_WORD_ROWS	/* postings encoded at a time */
#define TILE_DIMS	64			/* dimensions transposed at a time */
#define ALONE		4			/* at most this many postings are encoded one
								 * by one */
#define ALONE_DIMS	16			/* postings are encoded one by one only if no
								 * sub-quantizer has more dimensions */

/* Postings that are encoded together, with their codes and T. */
typedef struct Tile
{
	int			n;				/* <= TILE_ROWS */
	const float *rows[TILE_ROWS];	/* [dims] */
	const float *centroids[TILE_ROWS];	/* [dims] */
	uint8_t    *codes[TILE_ROWS];
	float	   *t[TILE_ROWS];
	double		terms[TILE_ROWS];	/* the sums for T so far */
} Tile;

/* Rounds up to whole registers, which take no longer than parts of them. */
static inline int
padded(int n)
{
	return (n + GV_CPU_LANES - 1) / GV_CPU_LANES * GV_CPU_LANES;
}

/*
 * Computes the residuals of dimensions first .. first + len - 1, side by side.
 * The last register is filled up with zeros.
 */
static void
find_residuals(const Tile *tile, int32_t first, int32_t len,
			   float *restrict residuals /* [TILE_DIMS][TILE_ROWS] */ )
{
	int32_t		d;
	int			i;

	for (i = tile->n; i < padded(tile->n); i++)
		for (d = 0; d < len; d++)
			residuals[d * TILE_ROWS + i] = 0.0f;

	for (i = 0; i < tile->n; i++)
	{
		const float *row = tile->rows[i] + first;
		const float *centroid = tile->centroids[i] + first;

		for (d = 0; d < len; d++)
			residuals[d * TILE_ROWS + i] =
				gv_difference(row[d], centroid[d]);
	}
}

/*
 * Stores the code of posting i for sub-quantizer j, and adds the codeword's
 * terms to the posting's T.
 */
static inline void
keep_code(const GvModel *model, int32_t j, int32_t code, Tile *tile, int i)
{
	int32_t		start = gv_sub_start(model, j);
	int32_t		dims = gv_sub_start(model, j + 1) - start;
	const float *word = model->codebooks + (size_t) GV_CODEWORDS * start +
	(size_t) code * dims;
	const float *centroid = tile->centroids[i] + start;
	int32_t		d;

	tile->codes[i][j / 2] |= (uint8_t) (j % 2 == 0 ? code : code << 4);
	for (d = 0; d < dims; d++)
		tile->terms[i] += word[d] * (word[d] + 2.0 * centroid[d]);
}

/* Finds the codes of a tile for sub-quantizer j. */
static void
encode_sub(const GvModel *model, int32_t j, Tile *tile)
{
	int32_t		start = gv_sub_start(model, j);
	int32_t		dims = gv_sub_start(model, j + 1) - start;
	const float *codebook = model->codebooks + (size_t) GV_CODEWORDS * start;
	float		dist[GV_CODEWORDS * TILE_ROWS] GV_CPU_ALIGNED = {0};
	float		residuals[TILE_DIMS * TILE_ROWS] GV_CPU_ALIGNED;
	float		best[TILE_ROWS];
	int32_t		code[TILE_ROWS];
	int32_t		first;
	int			i;

	for (first = 0; first < dims; first += TILE_DIMS)
	{
		int32_t		len = dims - first < TILE_DIMS ? dims - first : TILE_DIMS;

		find_residuals(tile, start + first, len, residuals);
		gv_kernels->add_distances(residuals, TILE_ROWS, padded(tile->n),
								  codebook + first, dims, len, dist);
	}
	gv_kernels->nearest_words(dist, padded(tile->n), best, code);
	for (i = 0; i < tile->n; i++)
		keep_code(model, j, code[i], tile, i);
}

/*
 * Like encode_sub, one posting after the other.  The sub-quantizer has at most
 * ALONE_DIMS dimensions.
 */
static void
encode_sub_alone(const GvModel *model, int32_t j, Tile *tile)
{
	int32_t		start = gv_sub_start(model, j);
	int32_t		dims = gv_sub_start(model, j + 1) - start;
	const float *codebook = model->codebooks + (size_t) GV_CODEWORDS * start;
	float		residual[ALONE_DIMS];
	int32_t		d;
	int			i;

	for (i = 0; i < tile->n; i++)
	{
		for (d = 0; d < dims; d++)
			residual[d] = gv_difference(tile->rows[i][start + d],
										tile->centroids[i][start + d]);
		keep_code(model, j,
				  gv_kernels->nearest_word(residual, codebook, dims), tile, i);
	}
}

static void
encode_tile(const GvModel *model, Tile *tile)
{
	bool		alone = tile->n <= ALONE &&
	(int64_t) ALONE_DIMS * model->m >= model->dims;
	int32_t		j;
	int			i;

	for (i = 0; i < tile->n; i++)
		tile->terms[i] = 0.0;
	for (j = 0; j < model->m && alone; j++)
		encode_sub_alone(model, j, tile);
	for (j = 0; j < model->m && !alone; j++)
		encode_sub(model, j, tile);
	for (i = 0; i < tile->n && model->metric != GV_IP; i++)
		*tile->t[i] = gv_clamp(tile->terms[i]);
	tile->n = 0;
}

GvStatus
gv_encode(const GvModel *model, const float *x /* [n][dims] */ ,
		  const float *centroids /* [..][dims] */ ,
		  const int32_t *lists /* [n][lists_per_row] */ , int64_t n,
		  int32_t lists_per_row, uint8_t *codes, float *t)
{
	size_t		code_bytes;
	size_t		dims;
	Tile		tile;
	int64_t		i;

	GV_CALL(gv_engine_calls, gv_valid_model(model) &&
			model->codebooks != NULL && x != NULL && centroids != NULL &&
			lists != NULL && n >= 1 && lists_per_row >= 1 && codes != NULL &&
			t != NULL);
	code_bytes = (size_t) gv_code_bytes(model->m);
	dims = (size_t) model->dims;
	memset(codes, 0, code_bytes * (size_t) (n * lists_per_row));
	memset(t, 0, sizeof(float) * (size_t) (n * lists_per_row));
	tile.n = 0;
	for (i = 0; i < n * lists_per_row; i++)
	{
		if (lists[i] < 0)
			continue;
		tile.rows[tile.n] = x + (size_t) (i / lists_per_row) * dims;
		tile.centroids[tile.n] = centroids + (size_t) lists[i] * dims;
		tile.codes[tile.n] = codes + (size_t) i * code_bytes;
		tile.t[tile.n++] = t + i;
		if (tile.n == TILE_ROWS)
			encode_tile(model, &tile);
	}
	if (tile.n > 0)
		encode_tile(model, &tile);
	return GV_OK;
}
