/*
 * place.c
 *		The lists of many vectors, through two levels of centroids.
 *
 * Rows are compared with all parents, and with the children of the nearest
 * ones only.  (row, parent) pairs are sorted by parent, so that a parent's
 * children meet all their rows in one blocked product.
 *
 * The second list of a row is chosen by the SOAR rule: among the nearest
 * lists the one that minimises |r'|^2 + lambda (<r', r> / |r|)^2, where r and
 * r' are the residuals in the first list and in the other.  A residual at
 * right angles to the first misleads for other queries than the first does.
 * Source: Sun, Simcha, Dopson, Guo, Kumar, "SOAR: Improved indexing for
 * approximate nearest neighbor search", 2023.
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_assign.h"
#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define LAMBDA		1.5

/* The t least values of a row so far, ascending, ties in order of arrival. */
typedef struct Nearest
{
	int			t;				/* how many are kept */
	float	   *values;			/* [n][t] */
	int32_t    *ids;			/* [n][t], -1 = none */
} Nearest;

/* State of one call; the arrays lie in the caller's scratch. */
typedef struct Placing
{
	const GvTree *tree;
	const float *x;				/* [n][dims] */
	int64_t		n;
	Nearest		parents;
	Nearest		lists;
	int64_t    *starts;			/* [nparents + 1] of each parent's pairs */
	int32_t    *rows;			/* [n * parents.t] rows, grouped by parent */
	float	   *tile;			/* [TILE_ROWS][dims] */
	GvPoll		poll;
} Placing;

/*
 * Parents whose children a row is compared with: a share of them that falls
 * as they grow in number, because the nearest list's parent ranks ever higher
 * among them.
 */
static int
parents_tried(const GvTree *tree)
{
	int			t = 6 + tree->nparents / 12;

	return t < tree->nparents ? t : tree->nparents;
}

static void
carve_nearest(Nearest *nearest, int t, int64_t n, char *scratch, size_t *next)
{
	size_t		values = gv_carve(next, sizeof(float) * n * t);
	size_t		ids = gv_carve(next, sizeof(int32_t) * n * t);

	nearest->t = t;
	if (scratch != NULL)
	{
		nearest->values = (float *) (scratch + values);
		nearest->ids = (int32_t *) (scratch + ids);
	}
}

/* Lay out the scratch, or with NULL only measure it. */
static size_t
carve(Placing *p, const GvTree *tree, int64_t n, char *scratch)
{
	int			nnear = tree->nlists < GV_SOAR_LISTS ? tree->nlists :
	GV_SOAR_LISTS;
	size_t		next = 0;
	size_t		starts;
	size_t		rows;
	size_t		tile;

	carve_nearest(&p->parents, parents_tried(tree), n, scratch, &next);
	carve_nearest(&p->lists, nnear, n, scratch, &next);
	starts = gv_carve(&next, sizeof(int64_t) * ((size_t) tree->nparents + 1));
	rows = gv_carve(&next, sizeof(int32_t) * n * p->parents.t);
	tile = gv_carve(&next, sizeof(float) * TILE_ROWS * tree->dims);
	if (scratch != NULL)
	{
		p->starts = (int64_t *) (scratch + starts);
		p->rows = (int32_t *) (scratch + rows);
		p->tile = (float *) (scratch + tile);
	}
	return next;
}

static bool
valid_tree(const GvTree *tree, int64_t nrows)
{
	return tree != NULL && gv_valid_dims(tree->dims) && tree->nparents >= 1 &&
		tree->nlists >= tree->nparents && tree->parents != NULL &&
		tree->starts != NULL && tree->centroids != NULL &&
		nrows >= 1 && nrows <= INT32_MAX;
}

/* See gv_engine.h; 0 for invalid arguments. */
size_t
gv_place_scratch(const GvTree *tree, int64_t n)
{
	Placing		p;

	return valid_tree(tree, n) ? carve(&p, tree, n, NULL) : 0;
}

static void
reset_nearest(Nearest *nearest, int64_t n)
{
	int64_t		i;

	for (i = 0; i < n * nearest->t; i++)
	{
		nearest->values[i] = GV_SCORE_MAX;
		nearest->ids[i] = -1;
	}
}

/* Offer a row a centroid. */
static inline void
keep(Nearest *nearest, int64_t row, float value, int32_t id)
{
	float	   *values = nearest->values + row * nearest->t;
	int32_t    *ids = nearest->ids + row * nearest->t;
	int			i = nearest->t - 1;

	if (ids[i] >= 0 && !(value < values[i]))
		return;
	while (i > 0 && (ids[i - 1] < 0 || value < values[i - 1]))
	{
		values[i] = values[i - 1];
		ids[i] = ids[i - 1];
		i--;
	}
	values[i] = value;
	ids[i] = id;
}

/*
 * Offer a row n <= TILE_CENTS centroids, numbered from `first`, whose products
 * with it are known.  Most rows have no use for any of them.
 */
static inline void
keep_nearer(Nearest *nearest, int64_t row, const float *restrict squares,
			const float *restrict products, int n, int32_t first)
{
	int64_t		last = (row + 1) * nearest->t - 1;
	float		limit = nearest->ids[last] < 0 ? HUGE_VALF :
	nearest->values[last];
	float		values[TILE_CENTS];
	int			nhits = 0;
	int			i;

	for (i = 0; i < n; i++)
		values[i] = gv_score(squares[i] - 2.0f * products[i]);
	for (i = 0; i < n; i++)
		nhits += values[i] < limit;
	for (i = 0; i < n && nhits > 0; i++)
		if (values[i] < limit)
			keep(nearest, row, values[i], first + i);
}

/*
 * Offer nrows <= TILE_ROWS rows k centroids, numbered from `first`.  What is
 * kept is |c|^2 - 2 <x, c>, which orders like the distance.
 */
static bool
compare_tile(Placing *p, const float *x, const int32_t *rows, int nrows,
			 const float *centroids, int32_t first, int32_t k,
			 Nearest *nearest)
{
	int32_t		dims = p->tree->dims;
	float		products[TILE_ROWS * TILE_CENTS];
	int32_t		c;

	for (c = 0; c < k; c += TILE_CENTS)
	{
		int			ncents = k - c < TILE_CENTS ? k - c : TILE_CENTS;
		const float *some = centroids + (size_t) c * dims;
		float		squares[TILE_CENTS];
		int			row;
		int			i;

		if (gv_poll(&p->poll, (int64_t) nrows * ncents * dims))
			return false;
		for (i = 0; i < ncents; i++)
			squares[i] = gv_cpu_dot(some + (size_t) i * dims,
									some + (size_t) i * dims, dims);
		gv_cpu_products(x, nrows, some, ncents, dims, products);
		for (row = 0; row < nrows; row++)
			keep_nearer(nearest, rows[row], squares,
						products + row * TILE_CENTS, ncents, first + c);
	}
	return true;
}

/* The nearest parents of every row. */
static bool
find_parents(Placing *p)
{
	int64_t		done;

	reset_nearest(&p->parents, p->n);
	for (done = 0; done < p->n; done += TILE_ROWS)
	{
		int64_t		left = p->n - done;
		int			nrows = left < TILE_ROWS ? (int) left : TILE_ROWS;
		int32_t		rows[TILE_ROWS];
		int			i;

		for (i = 0; i < nrows; i++)
			rows[i] = (int32_t) (done + i);
		if (!compare_tile(p, p->x + (size_t) done * p->tree->dims, rows, nrows,
						  p->tree->parents, 0, p->tree->nparents,
						  &p->parents))
			return false;
	}
	return true;
}

/* Group the (row, parent) pairs by parent: a counting sort. */
static void
group_pairs(Placing *p)
{
	int64_t		npairs = p->n * p->parents.t;
	int32_t		nparents = p->tree->nparents;
	int64_t		sum = 0;
	int64_t		i;

	memset(p->starts, 0, sizeof(int64_t) * ((size_t) nparents + 1));
	for (i = 0; i < npairs; i++)
		p->starts[p->parents.ids[i]]++;
	for (i = 0; i <= nparents; i++)
	{
		int64_t		count = i < nparents ? p->starts[i] : 0;

		p->starts[i] = sum;
		sum += count;
	}
	for (i = 0; i < npairs; i++)
		p->rows[p->starts[p->parents.ids[i]]++] =
			(int32_t) (i / p->parents.t);
	for (i = nparents; i > 0; i--)
		p->starts[i] = p->starts[i - 1];
	p->starts[0] = 0;
}

/* Offer every row the children of its parents. */
static bool
find_lists(Placing *p)
{
	const GvTree *tree = p->tree;
	size_t		bytes = sizeof(float) * tree->dims;
	int32_t		parent;

	reset_nearest(&p->lists, p->n);
	for (parent = 0; parent < tree->nparents; parent++)
	{
		int32_t		first = tree->starts[parent];
		int64_t		at;

		for (at = p->starts[parent]; at < p->starts[parent + 1];
			 at += TILE_ROWS)
		{
			int64_t		left = p->starts[parent + 1] - at;
			int			nrows = left < TILE_ROWS ? (int) left : TILE_ROWS;
			int			i;

			for (i = 0; i < nrows; i++)
				memcpy(p->tile + (size_t) i * tree->dims,
					   p->x + (size_t) p->rows[at + i] * tree->dims, bytes);
			if (!compare_tile(p, p->tile, p->rows + at, nrows,
							  tree->centroids + (size_t) first * tree->dims,
							  first, tree->starts[parent + 1] - first,
							  &p->lists))
				return false;
		}
	}
	return true;
}

/* See gv_engine.h. */
int32_t
gv_soar(int32_t dims, const float *x, const float *first,
		const float *const *others, int32_t n)
{
	double		square;
	double		least = 0.0;
	int32_t		best = -1;
	int32_t		i;

	if (!gv_valid_dims(dims) || n < 1)
		return -1;
	square = gv_cpu_sqdist(x, first, dims);
	for (i = 0; i < n; i++)
	{
		double		cost = gv_cpu_sqdist(x, others[i], dims);
		double		product = 0.0;
		float		sums[GV_CPU_LANES];
		int			l;

		gv_kernels->residual_products(x, others[i], first, dims, sums);
		for (l = 0; l < GV_CPU_LANES; l++)
			product += sums[l];
		if (square > 0.0)
			cost += LAMBDA * product * product / square;
		if (best < 0 || cost < least)
		{
			least = cost;
			best = i;
		}
	}
	return best;
}

/* The second list of a row; -1 when there is only one. */
static int32_t
second_list(const Placing *p, int64_t row)
{
	const GvTree *tree = p->tree;
	const int32_t *ids = p->lists.ids + row * p->lists.t;
	const float *others[GV_SOAR_LISTS];
	int32_t		n = 0;
	int32_t		best;

	while (n + 1 < p->lists.t && ids[n + 1] >= 0)
	{
		others[n] = tree->centroids + (size_t) ids[n + 1] * tree->dims;
		n++;
	}
	best = gv_soar(tree->dims, p->x + (size_t) row * tree->dims,
				   tree->centroids + (size_t) ids[0] * tree->dims, others, n);
	return best < 0 ? -1 : ids[best + 1];
}

/* See gv_engine.h. */
GvStatus
gv_place(const GvTree *tree, const float *x, int64_t n, int32_t copies,
		 int32_t *lists, void *scratch, const GvStop *stop)
{
	Placing		p = {.tree = tree, .x = x, .n = n, .poll = {stop, 0}};
	int64_t		row;

	GV_CALL(gv_engine_calls, valid_tree(tree, n) && x != NULL &&
			copies >= 1 && copies <= 2 && lists != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	(void) carve(&p, tree, n, scratch);
	if (!find_parents(&p))
		return GV_CANCELLED;
	group_pairs(&p);
	if (!find_lists(&p))
		return GV_CANCELLED;
	for (row = 0; row < n; row++)
	{
		lists[row * copies] = p.lists.ids[row * p.lists.t];
		if (copies < 2)
			continue;
		if (gv_poll(&p.poll, (int64_t) GV_SOAR_LISTS * 3 * tree->dims))
			return GV_CANCELLED;
		lists[row * copies + 1] = second_list(&p, row);
	}
	return GV_OK;
}
