/*
 * nearest.c
 *		The t nearest of the centroids that are offered to each of many vectors
 *		(see gv_nearest.h).
 *
 * The proof.  Let E be the greatest estimate that is kept.  A centroid that
 * was not kept, or was dropped later, has an estimate of at least E, because
 * the kept estimates only fall.  Let `best` be the t-th least squared distance
 * after rescoring.  By assign.c a centroid is farther than that if
 *	|c|^2 (1 - 2 slack) - 2 <x, c>  >
 *		best (1 + 2 slack) - |x|^2 (1 - 2 slack) + (something denormal)
 * The left side is the estimate, so it is enough that E is above the right
 * side.  Estimates differ between levels of instructions, and so may the
 * centroids that are kept; the nearest centroids do not differ.
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_nearest.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define SLICE		GV_CPU_SLICE_DIMS
#define CAPACITY		GV_NEAREST_CAPACITY
#define AHEAD		2			/* rows to prefetch ahead */
#define SPARE		3			/* kept beyond what is needed and a quarter of
								 * that */

void
gv_nearest_carve(GvNearest *nearest, int32_t dims, int wanted, int64_t n,
				 char *scratch, size_t *next)
{
	size_t		counts = gv_carve(next, sizeof(int32_t) * n);
	size_t		limits = gv_carve(next, sizeof(float) * n);
	size_t		values = gv_carve(next, sizeof(float) * n * CAPACITY);
	size_t		ids = gv_carve(next, sizeof(int32_t) * n * CAPACITY);

	nearest->dims = dims;
	nearest->wanted = wanted;
	nearest->kept = wanted + wanted / 4 + SPARE;
	if (scratch != NULL)
	{
		nearest->counts = (int32_t *) (scratch + counts);
		nearest->limits = (float *) (scratch + limits);
		nearest->values = (float *) (scratch + values);
		nearest->ids = (int32_t *) (scratch + ids);
	}
}

void
gv_panel_carve(GvPanel *panel, int32_t dims, char *scratch, size_t *next)
{
	size_t		some = gv_carve(next, sizeof(float) * TILE_CENTS * dims);
	size_t		slices = gv_carve(next,
								  sizeof(float) * gv_nearest_slices(dims));

	if (scratch != NULL)
	{
		panel->some = (float *) (scratch + some);
		panel->slices = (float *) (scratch + slices);
	}
}

void
gv_nearest_begin(GvNearest *nearest, int64_t n)
{
	int64_t		row;

	for (row = 0; row < n; row++)
	{
		nearest->counts[row] = 0;
		nearest->limits[row] = HUGE_VALF;
	}
}

/*
 * Reduces what a row keeps to its nearest->kept least estimates.  The greatest
 * of these becomes the row's limit, because no dropped estimate is less.  This
 * is quickselect on sets of bits.
 */
static void
cut(GvNearest *nearest, int64_t row)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			n = nearest->counts[row];
	int			missing = nearest->kept;
	uint64_t	open = n < CAPACITY ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
	uint64_t	taken = 0;
	int			i;

	while (missing > 0)
	{
		int			at = __builtin_ctzll(open);
		uint64_t	less = gv_kernels->below(values, values[at]) & open;
		int			nless = __builtin_popcountll(less);

		if (nless >= missing)
		{
			open = less;
			continue;
		}
		less |= UINT64_C(1) << at;
		taken |= less;
		open &= ~less;
		missing -= nless + 1;
		nearest->limits[row] = values[at];
	}
	for (i = 0; taken != 0; taken &= taken - 1, i++)
	{
		int			from = __builtin_ctzll(taken);

		values[i] = values[from];
		ids[i] = ids[from];
	}
	nearest->counts[row] = nearest->kept;
}

/*
 * Returns whether a centroid with this other group was offered before to a row
 * that has tried these groups.  Compares four at a time, because all
 * processors have vector instructions for that.
 */
static inline bool
is_again(int32_t other, const int32_t *tried /* [GV_TRIED_GROUPS] */ ,
		 int ntried)
{
	uint32_t	again[4] = {0};
	int			first;
	int			i;

	if (other < 0)
		return false;
	for (first = 0; first < ntried; first += 4)
		for (i = 0; i < 4; i++)
			again[i] |= -(uint32_t) (tried[first + i] == other);
	return (again[0] | again[1] | again[2] | again[3]) != 0;
}

/*
 * Prefetches a row's state, some rows before more centroids are offered to the
 * row.
 */
static inline void
fetch_state(const GvNearest *nearest, int64_t row, const GvOffered *offered)
{
	__builtin_prefetch(&nearest->counts[row], 0);
	__builtin_prefetch(&nearest->limits[row], 0);
	if (offered->others == NULL)
		return;
	__builtin_prefetch(offered->tried + row * GV_TRIED_GROUPS, 0);
	__builtin_prefetch(offered->tried + row * GV_TRIED_GROUPS + 16, 0);
}

static inline void
fetch_kept(const GvNearest *nearest, int64_t row)
{
	__builtin_prefetch(nearest->values + row * CAPACITY + nearest->counts[row],
					   1);
	__builtin_prefetch(nearest->ids + row * CAPACITY + nearest->counts[row],
					   1);
}

/*
 * Offers a row the centroids first .. first + n - 1, n <= TILE_CENTS, whose
 * products with the row have been computed.
 */
static inline void
keep_nearer(GvNearest *nearest, int64_t row, const GvOffered *offered,
			int32_t first, int n, const float *squares, const float *products)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			count = nearest->counts[row];
	float		limit = nearest->limits[row];
	uint64_t	hits = gv_kernels->within(squares, products, limit);

	if (n < TILE_CENTS)
		hits &= (UINT64_C(1) << n) - 1;
	for (; hits != 0; hits &= hits - 1)
	{
		int			c = __builtin_ctzll(hits);
		float		value = squares[c] - 2.0f * products[c];

		if (value != value)
			value = -HUGE_VALF; /* after an overflow the centroid might be
								 * near */
		if (!(value < limit) ||
			(offered->others != NULL &&
			 is_again(offered->others[first + c],
					  offered->tried + row * GV_TRIED_GROUPS,
					  offered->ntried)))
			continue;
		values[count] = value;
		ids[count] = offered->members == NULL ? first + c :
			offered->members[first + c];
		if (++count == CAPACITY)
		{
			nearest->counts[row] = count;
			cut(nearest, row);
			count = nearest->counts[row];
			limit = nearest->limits[row];
		}
	}
	nearest->counts[row] = count;
}

/* Makes a panel of centroids first .. first + n - 1 of those offered. */
static void
make_panel(const GvOffered *offered, int32_t first, int n, int32_t dims,
		   GvPanel *panel, float *squares)
{
	const float *some = offered->centroids + (size_t) first * dims;
	int32_t		d;
	int			i;

	if (offered->members != NULL)
	{
		for (i = 0; i < n; i++)
			memcpy(panel->some + (size_t) i * dims, offered->centroids +
				   (size_t) offered->members[first + i] * dims,
				   sizeof(float) * dims);
		some = panel->some;
	}
	gv_cpu_lower_squares(some, n, dims, squares);
	for (d = 0; d < dims; d += SLICE)
		gv_cpu_pack(some, dims, n, d, dims - d < SLICE ? dims - d : SLICE,
					panel->slices + (size_t) d * TILE_CENTS);
}

/* Offers the n centroids of a panel to nrows <= TILE_ROWS vectors. */
static void
offer_panel(GvNearest *nearest, const float *x, const int32_t *rows,
			int nrows, const GvOffered *offered, int32_t first, int n,
			const float *slices, const float *squares)
{
	int32_t		dims = nearest->dims;
	float		products[TILE_ROWS * TILE_CENTS];
	int32_t		d;
	int			i;

	memset(products, 0, sizeof(float) * nrows * TILE_CENTS);
	for (d = 0; d < dims; d += SLICE)
		gv_kernels->estimate(x + d, dims, nrows,
							 dims - d < SLICE ? dims - d : SLICE,
							 slices + (size_t) d * TILE_CENTS, products);
	for (i = 0; i < nrows; i++)
	{
		if (i + 2 * AHEAD < nrows)
			fetch_state(nearest, rows[i + 2 * AHEAD], offered);
		if (i + AHEAD < nrows)
			fetch_kept(nearest, rows[i + AHEAD]);
		keep_nearer(nearest, rows[i], offered, first, n, squares,
					products + i * TILE_CENTS);
	}
}

bool
gv_nearest_offer(GvNearest *nearest, const float *x, const int32_t *rows,
				 int nrows, const GvOffered *offered, GvPanel *panel,
				 GvPoll *poll)
{
	int32_t		dims = nearest->dims;
	int32_t		first;

	for (first = 0; first < offered->n; first += TILE_CENTS)
	{
		int			n = offered->n - first < TILE_CENTS ?
		offered->n - first : TILE_CENTS;
		float		squares[TILE_CENTS];
		int			done;

		if (gv_poll(poll, (int64_t) nrows * n * dims))
			return false;
		make_panel(offered, first, n, dims, panel, squares);
		for (done = 0; done < nrows; done += TILE_ROWS)
			offer_panel(nearest, x + (size_t) done * dims, rows + done,
						nrows - done < TILE_ROWS ? nrows - done : TILE_ROWS,
						offered, first, n, panel->slices, squares);
	}
	return true;
}

/*
 * Inserts a rescored centroid at its place among a row's nearest, unless it is
 * there already.
 */
static void
insert(GvNearest *nearest, int64_t row, float value, int32_t id)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			n = nearest->counts[row];
	int			i;

	for (i = 0; i < n; i++)
		if (ids[i] == id)
			return;
	if (n == nearest->wanted)
	{
		n--;
		if (value > values[n] || (value == values[n] && id > ids[n]))
			return;
	}
	for (i = n; i > 0 && (value < values[i - 1] ||
						  (value == values[i - 1] && id < ids[i - 1])); i--)
	{
		values[i] = values[i - 1];
		ids[i] = ids[i - 1];
	}
	values[i] = value;
	ids[i] = id;
	nearest->counts[row] = n + 1;
}

/*
 * Rescores n centroids for a row, those with the numbers `ids` or, if `ids` is
 * NULL, the first n.
 */
static void
rerank(GvNearest *nearest, int64_t row, const float *x,
	   const float *centroids, const int32_t *ids, int32_t n)
{
	int32_t		dims = nearest->dims;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		int32_t		id = ids == NULL ? i : ids[i];
		const float *centroid = centroids + (size_t) id * dims;

		insert(nearest, row, gv_score(gv_cpu_sqdist(x, centroid, dims)), id);
	}
	for (i = nearest->counts[row]; i < nearest->wanted; i++)
		nearest->ids[row * CAPACITY + i] = -1;
}

void
gv_nearest_prepare(GvNearest *nearest, int64_t row, const float *centroids)
{
	const int32_t *ids = nearest->ids + row * CAPACITY;
	int			i;

	if (nearest->counts[row] > nearest->kept)
		cut(nearest, row);
	for (i = 0; i < nearest->counts[row]; i++)
		gv_nearest_fetch(centroids + (size_t) ids[i] * nearest->dims,
						 nearest->dims);
}

bool
gv_nearest_rescore(GvNearest *nearest, int64_t row, const float *x,
				   const float *centroids)
{
	double		slack = gv_cpu_slack(nearest->dims);
	double		square = -gv_distance_ip(x, x, nearest->dims);
	double		best;
	int32_t		ids[CAPACITY];
	int			n;

	if (nearest->counts[row] > nearest->kept)
		cut(nearest, row);
	n = nearest->counts[row];
	memcpy(ids, nearest->ids + row * CAPACITY, sizeof(int32_t) * n);
	nearest->counts[row] = 0;

	/*
	 * for a longer vector, estimates may be infinite, and were then not kept
	 */
	if (square < GV_CPU_HUGE_SQUARE)
	{
		rerank(nearest, row, x, centroids, ids, n);
		if (nearest->limits[row] == HUGE_VALF)
			return true;		/* the row has kept all centroids */
		best = nearest->values[row * CAPACITY + nearest->wanted - 1];
		if (best < GV_CPU_HUGE_SQUARE && nearest->limits[row] >
			(float) (best * (1.0 + 2.0 * slack) -
					 square * (1.0 - 2.0 * slack) + FLT_MIN))
			return true;
		nearest->counts[row] = 0;
	}
	return false;
}

void
gv_nearest_rerank(GvNearest *nearest, int64_t row, const float *x,
				  const GvOffered *offered)
{
	rerank(nearest, row, x, offered->centroids, offered->members, offered->n);
}
