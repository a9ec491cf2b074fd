/*
 * pq.c
 *		Product quantization: trains codebooks and encodes postings.  The
 *		kernels make look-up tables.
 *
 * A tile of vectors is transposed, so that the values of a dimension are side
 * by side.  Then the distances of the vectors to a codeword are independent
 * sums, and the nearest codewords are found without branches, whose outcome a
 * processor could not predict.  Source: Jegou, Douze, Schmid, "Product
 * quantization for nearest neighbor search", 2011.
 */
#include <string.h>

#include "cpu/simd/kernels.h"
#include "engine/gv_call.h"

#define ITERATIONS	12			/* iterations of a codebook's k-means */
#define MAX_ROWS	16384		/* maximum number of residuals that train a
								 * codebook */
#define TRIES		8			/* tries to draw a new initial codeword */
#define TILE_ROWS	GV_CPU_WORD_ROWS	/* vectors compared at a time */

/* One sub-quantizer in training.  The arrays are in the caller's scratch. */
typedef struct Trainer
{
	int32_t		dims;			/* dimensions of this sub-quantizer */
	int32_t		nrows;			/* <= MAX_ROWS */
	float	   *data;			/* [dims][nrows] the residuals */
	float	   *dist;			/* [nrows] squared distance to the nearest
								 * codeword */
	uint8_t    *code;			/* [nrows] number of the nearest codeword */
	float	   *words;			/* [GV_CODEWORDS][dims] the codewords, in the
								 * output */
	double	   *sums;			/* [GV_CODEWORDS][dims] sums of each
								 * codeword's rows */
	int32_t		counts[GV_CODEWORDS];
} Trainer;

/* Sets codeword k to the vector of a row. */
static void
set_word(Trainer *trainer, int k, int32_t row)
{
	int32_t		d;

	for (d = 0; d < trainer->dims; d++)
		trainer->words[(size_t) k * trainer->dims + d] =
			trainer->data[(size_t) d * trainer->nrows + row];
}

/* Returns the squared distance of a row from codeword k. */
static float
word_distance(const Trainer *trainer, int32_t row, int k)
{
	const float *word = trainer->words + (size_t) k * trainer->dims;
	float		sum = 0.0f;
	int32_t		d;

	for (d = 0; d < trainer->dims; d++)
	{
		float		diff = trainer->data[(size_t) d * trainer->nrows + row] -
		word[d];

		sum += diff * diff;
	}
	return gv_score(sum);
}

/*
 * Sets the codewords to random rows.  Draws at most TRIES rows for a codeword,
 * until one differs from all earlier codewords.
 */
static void
draw_words(Trainer *trainer, uint64_t *random)
{
	int			k;

	for (k = 0; k < GV_CODEWORDS; k++)
	{
		int			tries;

		for (tries = 0; tries < TRIES; tries++)
		{
			int32_t		row = (int32_t) gv_random_below(random,
														trainer->nrows);
			int			other = 0;

			set_word(trainer, k, row);
			while (other < k && word_distance(trainer, row, other) > 0.0f)
				other++;
			if (other == k)
				break;
		}
	}
}

/*
 * Finds each row's nearest codeword, and the sum and number of each codeword's
 * rows.
 */
static void
assign_rows(Trainer *trainer)
{
	int32_t		dims = trainer->dims;
	int32_t		nrows = trainer->nrows;
	int32_t		done;

	memset(trainer->counts, 0, sizeof(trainer->counts));
	memset(trainer->sums, 0, sizeof(double) * GV_CODEWORDS * dims);
	for (done = 0; done < nrows; done += TILE_ROWS)
	{
		int			ntile = gv_at_most(nrows - done, TILE_ROWS);
		float		dist[GV_CODEWORDS * TILE_ROWS] GV_CPU_ALIGNED = {0};
		int32_t		code[TILE_ROWS] GV_CPU_ALIGNED;
		int32_t		d;
		int			i;

		gv_kernels->add_distances(trainer->data + done, (size_t) nrows, ntile,
								  trainer->words, dims, dims, dist);
		gv_kernels->nearest_words(dist, ntile, trainer->dist + done, code);
		for (i = 0; i < ntile; i++)
		{
			trainer->code[done + i] = (uint8_t) code[i];
			trainer->counts[code[i]]++;
		}
		for (d = 0; d < dims; d++)
		{
			const float *x = trainer->data + (size_t) d * nrows + done;

			for (i = 0; i < ntile; i++)
				trainer->sums[(size_t) code[i] * dims + d] += x[i];
		}
	}
}

/*
 * Sets codeword k, to which no row was assigned, to the row that is farthest
 * from its own codeword.  If every row equals its codeword, codeword k becomes
 * a copy of codeword `held`.
 */
static void
refill_word(Trainer *trainer, int k, int held)
{
	int32_t		farthest = 0;
	int32_t		row;
	int32_t		d;

	for (row = 1; row < trainer->nrows; row++)
		if (trainer->dist[row] > trainer->dist[farthest])
			farthest = row;

	if (!(trainer->dist[farthest] > 0.0f))
	{
		for (d = 0; d < trainer->dims; d++)
			trainer->words[(size_t) k * trainer->dims + d] =
				trainer->words[(size_t) held * trainer->dims + d];
		return;
	}

	/*
	 * rows near the new codeword are no longer far, so the next call does not
	 * choose an equal row
	 */
	set_word(trainer, k, farthest);
	for (row = 0; row < trainer->nrows; row++)
	{
		float		dist = word_distance(trainer, row, k);

		if (dist < trainer->dist[row])
			trainer->dist[row] = dist;
	}
}

/* Sets each codeword to the mean of its rows. */
static void
move_words(Trainer *trainer)
{
	int			held = trainer->code[0];
	int			k;
	int32_t		d;

	for (k = 0; k < GV_CODEWORDS; k++)
	{
		if (trainer->counts[k] == 0)
			continue;
		for (d = 0; d < trainer->dims; d++)
		{
			size_t		i = (size_t) k * trainer->dims + d;

			trainer->words[i] =
				gv_clamp(trainer->sums[i] / trainer->counts[k]);
		}
	}
	for (k = 0; k < GV_CODEWORDS; k++)
		if (trainer->counts[k] == 0)
			refill_word(trainer, k, held);
}

/* Lays out the scratch, and returns its size. */
static size_t
carve_trainer(Trainer *trainer, int32_t dims, int32_t m, int64_t n,
			  char *scratch)
{
	size_t		ndims = (size_t) (dims + m - 1) / (size_t) m;	/* the most */
	size_t		nrows = (size_t) gv_at_most(n, MAX_ROWS);
	size_t		next = 0;

	trainer->nrows = (int32_t) nrows;
	trainer->data = gv_carve(scratch, &next, sizeof(float) * nrows * ndims);
	trainer->dist = gv_carve(scratch, &next, sizeof(float) * nrows);
	trainer->code = gv_carve(scratch, &next, nrows);
	trainer->sums = gv_carve(scratch, &next,
							 sizeof(double) * GV_CODEWORDS * ndims);
	return next;
}

/* Returns 0 for invalid arguments. */
size_t
gv_codebooks_scratch(int32_t dims, int32_t m, int64_t n)
{
	Trainer		trainer;

	if (!gv_valid_shape(dims, m) || n < 1)
		return 0;
	return carve_trainer(&trainer, dims, m, n, NULL);
}

/*
 * Copies nrows of the n residuals, at even intervals, to trainer->data, and
 * trains one sub-quantizer with them.
 */
static bool
train_words(Trainer *trainer, const float *residuals, int32_t stride,
			int64_t n, uint64_t seed, GvPoll *poll)
{
	int32_t		nrows = trainer->nrows;
	int64_t		work = (int64_t) nrows * trainer->dims;
	int32_t		row;
	int32_t		d;
	int			i;

	for (row = 0; row < nrows; row++)
	{
		/*
		 * computes n * row / nrows in two parts, so that no product overflows
		 */
		int64_t		from = n / nrows * row + n % nrows * row / nrows;
		const float *x = residuals + (size_t) from * stride;

		for (d = 0; d < trainer->dims; d++)
			trainer->data[(size_t) d * nrows + row] = x[d];
	}
	draw_words(trainer, &seed);
	for (i = 0; i < ITERATIONS; i++)
	{
		if (gv_poll(poll, work * (GV_CODEWORDS + 4)))
			return false;
		assign_rows(trainer);
		move_words(trainer);
	}
	return true;
}

GvStatus
gv_codebooks(int32_t dims, int32_t m, int64_t n,
			 const float *residuals /* [n][dims] */ , uint64_t seed,
			 float *codebooks, void *scratch, const GvStop *stop)
{
	GvModel		model = {.dims = dims, .m = m};
	GvPoll		poll = {stop, 0};
	Trainer		trainer;
	int32_t		j;

	GV_CALL(gv_engine_calls, gv_valid_shape(dims, m) && n >= 1 &&
			residuals != NULL && codebooks != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	(void) carve_trainer(&trainer, dims, m, n, scratch);
	for (j = 0; j < m; j++)
	{
		int32_t		first = gv_sub_start(&model, j);

		trainer.dims = gv_sub_start(&model, j + 1) - first;
		trainer.words = codebooks + (size_t) GV_CODEWORDS * first;
		if (!train_words(&trainer, residuals + first, dims, n,
						 seed + (uint64_t) j, &poll))
			return GV_CANCELED;
	}
	return GV_OK;
}

/* ----
 * Computes the codes and the number T of each posting.
 *
 * Many postings are encoded in tiles, as in the training of codebooks: the
 * vectors are side by side, one in each lane.  The one or two postings of an
 * inserted row would leave most lanes idle.  So each of these postings is
 * compared with all codewords of a sub-quantizer, which are side by side.
 */

#define TILE_DIMS	64			/* dimensions transposed at a time */
#define ALONE		4			/* maximum number of postings that are encoded
								 * one by one */
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

/*
 * Rounds a number of postings up to whole registers, because a whole register
 * takes no longer than a part of one.
 */
static inline int
padded(int n)
{
	return (n + GV_CPU_LANES - 1) / GV_CPU_LANES * GV_CPU_LANES;
}

/*
 * Computes dimensions first .. first + len - 1 of the residuals of a tile's
 * postings.  The values of a dimension are side by side, and zeros fill the
 * rest of the last register.
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
		int32_t		len = gv_at_most(dims - first, TILE_DIMS);

		find_residuals(tile, start + first, len, residuals);
		gv_kernels->add_distances(residuals, TILE_ROWS, padded(tile->n),
								  codebook + first, dims, len, dist);
	}
	gv_kernels->nearest_words(dist, padded(tile->n), best, code);
	for (i = 0; i < tile->n; i++)
		keep_code(model, j, code[i], tile, i);
}

/*
 * Like encode_sub, but encodes one posting after the other.  The sub-quantizer
 * has at most ALONE_DIMS dimensions.
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
