/*
 * kmeans.c
 *		The nearest centroid of each of many vectors, and Lloyd's k-means.
 *
 * The nearest centroid of a vector is defined as the one with the least
 * gv_cpu_sqdist, ties to the smaller number.  A cheaper filter does most of
 * the work.  It computes |x - c|^2 = |x|^2 + |c|^2 - 2 <x, c>, with products
 * <x, c> from a blocked matrix product.  The filter keeps every centroid that,
 * within the bound of the filter's rounding errors, might be the nearest, and
 * only these few centroids are rescored.  So the answer depends neither on
 * blocking nor on how far the data are from the origin: a large offset costs
 * time, not accuracy.
 *
 * The bound.  With u = 2^-24, a product <x, c> of the tiles below has an error
 * below (dims + 4) u |x| |c| (gv_estimate_error), and 16-lane sums have an
 * error below (dims / 16 + 6) u times the sum of magnitudes.  Let slack =
 * (dims + 64) u, which is more than both together.  Then
 *	|c|^2 (1 - 2 slack) - 2 <x, c>  >
 *		best (1 + 2 slack) - |x|^2 (1 - 2 slack) + (something denormal)
 * proves that c is farther than the best centroid rescored so far.
 */
#include <math.h>
#include <string.h>

#include "cpu/pq/assign.h"

#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define SLICE		GV_CPU_SLICE_DIMS
#define FEW_ROWS	4			/* with fewer rows than this, a tile does not
								 * pay */

/* The vectors of a tile, and the best centroid found so far for each. */
typedef struct Tile
{
	int32_t		dims;
	int			nrows;			/* <= TILE_ROWS */
	double		slack;
	const float *x;				/* [nrows][dims] */
	int32_t    *nearest;		/* [nrows] */
	float		best[TILE_ROWS];	/* squared distance to nearest */
	double		square[TILE_ROWS];	/* |x|^2 */
	float		limit[TILE_ROWS];	/* limit of the filter: a centroid whose
									 * value is above it is not the nearest */
} Tile;

/*
 * Rescores centroid c for a row of the tile, and lowers the row's limit if c is
 * nearer than the best centroid so far.
 */
static void
rerank(Tile *tile, int row, const float *centroid, int32_t c)
{
	const float *x = tile->x + (size_t) row * tile->dims;
	float		dist = gv_score(gv_cpu_sqdist(x, centroid, tile->dims));

	if (dist > tile->best[row] ||
		(dist == tile->best[row] && c >= tile->nearest[row]))
		return;
	tile->best[row] = dist;
	tile->nearest[row] = c;
	tile->limit[row] = gv_cpu_limit(dist, tile->square[row], tile->slack);
}

/*
 * Begins a tile of n rows.  `nearest` has an estimate of each row's nearest
 * centroid, or -1.  Rescores only these estimates, to set the filter's limits;
 * any other centroid may still be the nearest.
 */
static void
start_tile(Tile *tile, const float *centroids, int32_t dims, const float *x,
		   int n, int32_t *nearest)
{
	int			row;

	tile->dims = dims;
	tile->nrows = n;
	tile->slack = gv_cpu_slack(dims);
	tile->x = x;
	tile->nearest = nearest;
	for (row = 0; row < n; row++)
	{
		const float *vector = x + (size_t) row * dims;

		tile->best[row] = nearest[row] < 0 ? GV_SCORE_MAX :
			gv_score(gv_cpu_sqdist(vector, centroids +
								   (size_t) nearest[row] * dims, dims));
		if (nearest[row] < 0)
			nearest[row] = 0;
		tile->square[row] = gv_square(vector, dims);
		tile->limit[row] = gv_cpu_limit(tile->best[row], tile->square[row],
										tile->slack);
	}
}

/*
 * Copies dimensions first .. first + len - 1 of centroids [ncents][dims] to a
 * slice [SLICE][TILE_CENTS].  The rest of the slice is 0.  Copies four
 * centroids at a time, because the elements of one centroid go to addresses
 * that are TILE_CENTS apart.
 */
static void
pack_slice(const float *centroids, int32_t dims, int ncents, int32_t first,
		   int32_t len, float *restrict panel)
{
	int			c;
	int32_t		d;

	for (c = 0; c + 4 <= ncents; c += 4)
	{
		const float *from = centroids + (size_t) c * dims + first;

		for (d = 0; d < len; d++)
		{
			float	   *to = panel + d * TILE_CENTS + c;

			to[0] = from[d];
			to[1] = from[dims + d];
			to[2] = from[2 * (size_t) dims + d];
			to[3] = from[3 * (size_t) dims + d];
		}
	}
	for (; c < ncents; c++)
		for (d = 0; d < len; d++)
			panel[d * TILE_CENTS + c] =
				centroids[(size_t) c * dims + first + d];
	for (d = 0; d < len; d++)
		for (c = ncents; c < TILE_CENTS; c++)
			panel[d * TILE_CENTS + c] = 0.0f;
	for (d = len * TILE_CENTS; d < SLICE * TILE_CENTS; d++)
		panel[d] = 0.0f;
}

void
gv_cpu_pack(const float *centroids, int32_t dims, int ncents, float *panel)
{
	int32_t		first;

	for (first = 0; first < dims; first += SLICE)
		pack_slice(centroids, dims, ncents, first,
				   gv_at_most(dims - first, SLICE),
				   panel + (size_t) first * TILE_CENTS);
}

void
gv_cpu_multiply(const float *x, int32_t dims, int nrows, const float *panel,
				float *products)
{
	int32_t		first;

	memset(products, 0, sizeof(float) * nrows * TILE_CENTS);
	for (first = 0; first < dims; first += SLICE)
		gv_kernels->estimate(x + first, dims, nrows,
							 gv_at_most(dims - first, SLICE),
							 panel + (size_t) first * TILE_CENTS, products);
}

void
gv_cpu_products(const float *x, int nrows, const float *centroids, int ncents,
				int32_t dims, bool estimates, float *products)
{
	float		slice[SLICE * TILE_CENTS];
	int32_t		first;

	memset(products, 0, sizeof(float) * nrows * TILE_CENTS);
	for (first = 0; first < dims; first += SLICE)
	{
		int32_t		len = gv_at_most(dims - first, SLICE);

		pack_slice(centroids, dims, ncents, first, len, slice);
		(estimates ? gv_kernels->estimate : gv_kernels->multiply)
			(x + first, dims, nrows, len, slice, products);
	}
}

void
gv_cpu_lower_squares(const float *centroids, int ncents, int32_t dims,
					 float *squares)
{
	double		kept = 1.0 - 2.0 * gv_cpu_slack(dims);
	int			c;

	for (c = 0; c < ncents; c++)
	{
		const float *centroid = centroids + (size_t) c * dims;
		float		square = gv_cpu_dot(centroid, centroid, dims);

		squares[c] = square < GV_CPU_HUGE_SQUARE ? (float) (square * kept) :
			-HUGE_VALF;
	}
	for (; c < TILE_CENTS; c++)
		squares[c] = HUGE_VALF;
}

/*
 * Rescores for one row those of centroids c0 .. c0 + ncents - 1 that the row's
 * filter lets through.  The most promising centroid is rescored first, so that
 * the others are compared with a tight limit.
 */
static void
filter_row(Tile *tile, int row, const float *centroids, int32_t c0,
		   int ncents, const float *squares, const float *products)
{
	uint64_t	hits = gv_kernels->within(squares, products,
										  tile->limit[row]);
	float		least = HUGE_VALF;
	int			first = -1;
	uint64_t	left;

	if (ncents < TILE_CENTS)
		hits &= (UINT64_C(1) << ncents) - 1;
	for (left = hits; left != 0; left &= left - 1)
	{
		int			c = __builtin_ctzll(left);
		float		value = squares[c] - 2.0f * products[c];

		if (first < 0 || value < least)
		{
			least = value;
			first = c;
		}
	}
	if (first >= 0)
		rerank(tile, row, centroids + (size_t) first * tile->dims, c0 + first);
	for (left = hits; left != 0; left &= left - 1)
	{
		int			c = __builtin_ctzll(left);

		if (c != first && !(squares[c] - 2.0f * products[c] > tile->limit[row]))
			rerank(tile, row, centroids + (size_t) c * tile->dims, c0 + c);
	}
}

/*
 * Applies the filter to all rows of the tile and `ncents` centroids, the first
 * of which is centroid c0.
 */
static void
filter_tile(Tile *tile, const float *centroids, int32_t c0, int ncents)
{
	float		products[TILE_ROWS * TILE_CENTS];
	float		squares[TILE_CENTS];	/* |c|^2, lowered by its slack */
	int			row;

	gv_cpu_lower_squares(centroids, ncents, tile->dims, squares);
	gv_cpu_products(tile->x, tile->nrows, centroids, ncents, tile->dims, true,
					products);
	for (row = 0; row < tile->nrows; row++)
		filter_row(tile, row, centroids, c0, ncents, squares,
				   products + row * TILE_CENTS);
}

GvStatus
gv_cpu_assign(int32_t dims, const float *centroids /* [k][dims] */ , int32_t k,
			  const float *x /* [n][dims] */ , int64_t n, int32_t *nearest,
			  float *sqdist, const GvStop *stop)
{
	GvPoll		poll = {stop, 0};
	int64_t		done;

	for (done = 0; done < n; done += TILE_ROWS)
	{
		Tile		tile;
		int			nrows = gv_at_most(n - done, TILE_ROWS);
		int32_t		first;
		int32_t		c;
		int			row;

		start_tile(&tile, centroids, dims, x + (size_t) done * dims, nrows,
				   nearest + done);
		for (first = 0; first < k; first += TILE_CENTS)
		{
			int			ncents = gv_at_most(k - first, TILE_CENTS);

			if (gv_poll(&poll, (int64_t) nrows * ncents * dims))
				return GV_CANCELED;
			if (nrows >= FEW_ROWS)
				filter_tile(&tile, centroids + (size_t) first * dims, first,
							ncents);
			for (row = 0; row < nrows && nrows < FEW_ROWS; row++)
				for (c = first; c < first + ncents; c++)
					rerank(&tile, row, centroids + (size_t) c * dims, c);
		}
		if (sqdist != NULL)
			memcpy(sqdist + done, tile.best, sizeof(float) * nrows);
	}
	return GV_OK;
}

GvStatus
gv_assign(int32_t dims, const float *centroids, int32_t k, const float *x,
		  int64_t n, int32_t *nearest, float *sqdist, const GvStop *stop)
{
	GV_CALL(gv_engine_calls, gv_valid_dims(dims) && centroids != NULL &&
			k >= 1 && x != NULL && n >= 1 && nearest != NULL &&
			gv_valid_stop(stop));
	memset(nearest, -1, sizeof(int32_t) * (size_t) n);
	return gv_cpu_assign(dims, centroids, k, x, n, nearest, sqdist, stop);
}

/* ----
 * Lloyd's k-means with even clusters.
 *
 * A pass assigns the rows, rebalances the clusters, and moves each centroid to
 * the mean of its rows.  Rebalancing splits the biggest clusters.  A new
 * cluster takes the place of an empty one while there is any.  After that, as
 * long as a cluster is bigger than max_imbalance allows, a new cluster takes
 * the place of the smallest one, whose rows find other clusters in the next
 * pass.  A few last passes only assign and rebalance, so that the returned
 * centroids have clusters of the requested sizes.
 *
 * Rows at distance 0 from each other cannot be told apart and stay together.
 * Source: Lloyd, "Least squares quantization in PCM", 1982.
 */

#define FULL_ROWS	128			/* rows for each centroid that early passes
								 * use */
#define RUN_ROWS	128			/* consecutive rows that early passes use or
								 * skip */
#define LAST_PASSES	12			/* maximum number of passes to reach even
								 * sizes */
#define SEED_DRAWS	32			/* rows drawn to find one far from another */
#define SPLIT_STEPS	4			/* iterations to split a cluster */
#define CHUNK		512			/* dimensions summed at a time */

/*
 * The rows of cluster c are order[start[c]] .. order[start[c] + count[c] - 1].
 * Rows without a cluster are in no such range: the rows that this pass does
 * not use, and the rows of a cluster that was dissolved.
 */
typedef struct Clusters
{
	const GvKmeans *spec;
	const float *x;				/* [n][dims] */
	float	   *centroids;		/* [k][dims] */
	int32_t		k;				/* centroids to make, at most n */
	int64_t		nrows;			/* rows that this pass uses */
	int32_t    *nearest;		/* [n], -1 for a row that is not used */
	int64_t    *order;			/* [n] */
	int64_t    *start;			/* [k] */
	int64_t    *count;			/* [k] */
	uint8_t    *stuck;			/* [k] whether the cluster's rows cannot be
								 * told apart */
	uint64_t	random;
	GvPoll		poll;
	bool		canceled;
} Clusters;

static inline const float *
row_of(const Clusters *cl, int64_t row)
{
	return cl->x + (size_t) row * cl->spec->dims;
}

static inline float *
centroid_of(const Clusters *cl, int32_t c)
{
	return cl->centroids + (size_t) c * cl->spec->dims;
}

/*
 * Returns the squared distance of a row from a vector.  Sets cl->canceled if
 * the caller must give up.
 */
static float
distance(Clusters *cl, int64_t row, const float *vector)
{
	if (gv_poll(&cl->poll, cl->spec->dims))
		cl->canceled = true;
	return gv_score(gv_cpu_sqdist(row_of(cl, row), vector, cl->spec->dims));
}

/* Lays out the scratch, and returns its size. */
static size_t
carve_clusters(Clusters *cl, const GvKmeans *spec, char *scratch)
{
	size_t		n = (size_t) spec->n;
	size_t		k = spec->n < spec->k ? n : (size_t) spec->k;
	size_t		next = 0;

	cl->k = (int32_t) k;
	cl->nearest = gv_carve(scratch, &next, sizeof(int32_t) * n);
	cl->order = gv_carve(scratch, &next, sizeof(int64_t) * n);
	cl->start = gv_carve(scratch, &next, sizeof(int64_t) * k);
	cl->count = gv_carve(scratch, &next, sizeof(int64_t) * k);
	cl->stuck = gv_carve(scratch, &next, k);
	return next;
}

static bool
valid_spec(const GvKmeans *spec)
{
	return spec != NULL && gv_valid_dims(spec->dims) &&
		spec->n >= 1 && spec->k >= 1 && spec->iterations >= 0 &&
		spec->max_imbalance > 1.0;	/* false for NaN */
}

/* Returns 0 for an invalid spec. */
size_t
gv_kmeans_scratch(const GvKmeans *spec)
{
	Clusters	cl;

	return valid_spec(spec) ? carve_clusters(&cl, spec, NULL) : 0;
}

/* Sets the initial centroids to k random rows, drawn without repetition. */
static void
draw_centroids(Clusters *cl)
{
	int64_t		n = cl->spec->n;
	int64_t		i;

	for (i = 0; i < n; i++)
		cl->order[i] = i;
	for (i = 0; i < cl->k; i++)
	{
		int64_t		j = i + gv_random_below(&cl->random, n - i);
		int64_t		row = cl->order[j];

		cl->order[j] = cl->order[i];
		cl->order[i] = row;
		memcpy(centroid_of(cl, (int32_t) i), row_of(cl, row),
			   sizeof(float) * cl->spec->dims);
	}
}

/* Groups the rows by nearest[], by a counting sort. */
static void
group_rows(Clusters *cl)
{
	int64_t		row;
	int64_t		next = 0;
	int32_t		c;

	memset(cl->count, 0, sizeof(int64_t) * cl->k);
	memset(cl->stuck, 0, cl->k);
	for (row = 0; row < cl->spec->n; row++)
		if (cl->nearest[row] >= 0)
			cl->count[cl->nearest[row]]++;
	for (c = 0; c < cl->k; c++)
	{
		cl->start[c] = next;
		next += cl->count[c];
		cl->count[c] = 0;
	}
	cl->nrows = next;
	for (row = 0; row < cl->spec->n; row++)
		if ((c = cl->nearest[row]) >= 0)
			cl->order[cl->start[c] + cl->count[c]++] = row;
}

/*
 * Assigns one run of rows in every `step` runs, and groups these rows.  A
 * row's previous cluster is the estimate of its next cluster.
 */
static void
assign_rows(Clusters *cl, int64_t step)
{
	int64_t		n = cl->spec->n;
	int64_t		run = step > 1 ? RUN_ROWS : n;
	int64_t		i;
	int64_t		row;

	for (i = 0; i < n; i += run)
	{
		int64_t		end = n - i < run ? n : i + run;

		if (i / run % step != 0)
		{
			for (row = i; row < end; row++)
				cl->nearest[row] = -1;
			continue;
		}
		if (gv_poll(&cl->poll, (end - i) * cl->k * cl->spec->dims) ||
			gv_cpu_assign(cl->spec->dims, cl->centroids, cl->k, row_of(cl, i),
						  end - i, cl->nearest + i, NULL,
						  cl->poll.stop) != GV_OK)
		{
			cl->canceled = true;
			return;
		}
	}
	group_rows(cl);
}

/*
 * Sets the centroid of cluster c, which is not empty, to the mean of the
 * cluster's rows.
 */
static void
move_centroid(Clusters *cl, int32_t c)
{
	const int64_t *members = cl->order + cl->start[c];
	int64_t		count = cl->count[c];
	float	   *centroid = centroid_of(cl, c);
	int32_t		dims = cl->spec->dims;
	int32_t		first;

	for (first = 0; first < dims; first += CHUNK)
	{
		int32_t		len = gv_at_most(dims - first, CHUNK);
		double		sums[CHUNK] = {0};
		int64_t		i;
		int32_t		d;

		for (i = 0; i < count; i++)
		{
			const float *x = row_of(cl, members[i]) + first;

			if (gv_poll(&cl->poll, len))
				cl->canceled = true;
			for (d = 0; d < len; d++)
				sums[d] += x[d];
		}
		for (d = 0; d < len; d++)
			centroid[first + d] = gv_clamp(sums[d] / (double) count);
	}
}

/*
 * Finds two rows of cluster c that differ.  Row *a is drawn at random, and row
 * *b is the farthest from it among SEED_DRAWS rows drawn at random or, if all
 * of these equal row *a, among all rows.  Returns false if the cluster's rows
 * cannot be told apart.
 */
static bool
find_seeds(Clusters *cl, int32_t c, int64_t *a, int64_t *b)
{
	const int64_t *members = cl->order + cl->start[c];
	int64_t		count = cl->count[c];
	float		farthest = 0.0f;
	int64_t		i;

	*a = members[gv_random_below(&cl->random, count)];
	for (i = 0; i < SEED_DRAWS + count && !cl->canceled; i++)
	{
		int64_t		row;
		float		dist;

		/* compare all rows only if the drawn rows do not differ */
		if (i >= SEED_DRAWS && farthest > 0.0f)
			break;
		row = i < SEED_DRAWS ?
			members[gv_random_below(&cl->random, count)] :
			members[i - SEED_DRAWS];
		dist = distance(cl, row, row_of(cl, *a));
		if (dist > farthest)
		{
			farthest = dist;
			*b = row;
		}
	}
	return farthest > 0.0f;
}

/*
 * Reorders the `count` rows of cluster c: first the rows that are nearer to
 * its own centroid, then the rows that are nearer to the centroid of cluster
 * `other`.  Returns how many rows are in the first part.
 */
static int64_t
partition(Clusters *cl, int32_t c, int64_t count, int32_t other)
{
	int64_t    *members = cl->order + cl->start[c];
	int64_t		low = 0;
	int64_t		high = count;

	while (low < high && !cl->canceled)
	{
		int64_t		row = members[low];

		if (distance(cl, row, centroid_of(cl, c)) <=
			distance(cl, row, centroid_of(cl, other)))
			low++;
		else
		{
			members[low] = members[--high];
			members[high] = row;
		}
	}
	return low;
}

/*
 * Splits cluster c, whose rows a and b differ, by a few steps of 2-means that
 * begin with a and b.  Some of the rows move to cluster `other`, whose place
 * is free.
 */
static void
split(Clusters *cl, int32_t c, int32_t other, int64_t a, int64_t b)
{
	size_t		bytes = sizeof(float) * cl->spec->dims;
	int64_t		count = cl->count[c];
	int			i;

	memcpy(centroid_of(cl, c), row_of(cl, a), bytes);
	memcpy(centroid_of(cl, other), row_of(cl, b), bytes);
	for (i = 0; i < SPLIT_STEPS && !cl->canceled; i++)
	{
		int64_t		nfirst = partition(cl, c, count, other);

		/*
		 * If rounding made the two means equal, this step cannot divide the
		 * rows.  The counts then remain those of the step before, although
		 * the rows have been reordered.
		 */
		if (nfirst == 0 || nfirst == count)
			break;
		cl->count[c] = nfirst;
		cl->start[other] = cl->start[c] + nfirst;
		cl->count[other] = count - nfirst;
		move_centroid(cl, c);
		move_centroid(cl, other);
	}
}

/*
 * Sets *smallest to the smallest cluster, and *biggest to the biggest cluster
 * that may still be split, or to -1 if no cluster may be split.
 */
static void
find_extremes(const Clusters *cl, int32_t *smallest, int32_t *biggest)
{
	int32_t		small = 0;
	int32_t		big = -1;
	int32_t		c;

	for (c = 0; c < cl->k; c++)
	{
		if (!cl->stuck[c] && cl->count[c] > 1 &&
			(big < 0 || cl->count[c] > cl->count[big]))
			big = c;
		if (cl->count[c] < cl->count[small])
			small = c;
	}
	*smallest = small;
	*biggest = big;
}

/*
 * Fills empty clusters and splits oversized ones, as described above.  Returns
 * whether any cluster was split.  Splits at most k clusters, because the
 * splits of a pass are only an approximation: the next pass assigns the rows
 * again.
 */
static bool
rebalance(Clusters *cl)
{
	double		limit = cl->spec->max_imbalance * (double) cl->nrows / cl->k;
	bool		changed = false;
	int32_t		i;

	for (i = 0; i < cl->k && !cl->canceled; i++)
	{
		int32_t		small;
		int32_t		big;
		int64_t		a;
		int64_t		b = 0;

		find_extremes(cl, &small, &big);
		if (gv_poll(&cl->poll, 2 * (int64_t) cl->k))
			cl->canceled = true;
		if (big < 0)
			break;
		if (cl->count[small] > 0 &&
			((double) cl->count[big] <= limit ||
			 cl->count[small] > cl->count[big] / 4 * 3))
			break;				/* no cluster is empty, and all have about the
								 * same size */
		if (find_seeds(cl, big, &a, &b))
		{
			split(cl, big, small, a, b);
			cl->stuck[small] = 0;
			changed = true;
		}
		else
			cl->stuck[big] = 1;
	}
	return changed;
}

/*
 * Closes the gaps that empty clusters leave among centroids [k][dims] and
 * sizes [k].  Returns the number of clusters that remain.
 */
static int32_t
drop_empty(int32_t dims, int32_t k, float *centroids, int64_t *sizes)
{
	int32_t		found = 0;
	int32_t		c;

	for (c = 0; c < k; c++)
	{
		if (sizes[c] == 0)
			continue;
		if (found < c)
			memcpy(centroids + (size_t) found * dims,
				   centroids + (size_t) c * dims, sizeof(float) * dims);
		sizes[found++] = sizes[c];
	}
	return found;
}

GvStatus
gv_kmeans(const GvKmeans *spec, const float *x /* [n][dims] */ ,
		  float *centroids /* [k][dims] */ , int32_t *found,
		  void *scratch, const GvStop *stop)
{
	Clusters	cl = {.spec = spec, .x = x, .centroids = centroids};
	int			pass;
	int32_t		c;

	GV_CALL(gv_engine_calls, valid_spec(spec) && x != NULL &&
			centroids != NULL && found != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	(void) carve_clusters(&cl, spec, scratch);
	cl.random = spec->seed;
	cl.poll.stop = stop;

	draw_centroids(&cl);
	memset(cl.nearest, -1, sizeof(int32_t) * spec->n);
	for (pass = 0; !cl.canceled; pass++)
	{
		bool		is_last = pass >= spec->iterations;
		int64_t		step = pass < spec->iterations / 2 ?
		spec->n / cl.k / FULL_ROWS : 1;
		bool		changed;

		assign_rows(&cl, step > 1 ? step : 1);
		if (cl.canceled || pass == spec->iterations + LAST_PASSES)
			break;
		changed = rebalance(&cl);
		if (is_last && !changed)
			break;
		for (c = 0; c < cl.k && !cl.canceled && !is_last; c++)
			if (cl.count[c] > 0)
				move_centroid(&cl, c);
	}
	if (cl.canceled)
		return GV_CANCELED;
	*found = drop_empty(spec->dims, cl.k, centroids, cl.count);
	return GV_OK;
}
